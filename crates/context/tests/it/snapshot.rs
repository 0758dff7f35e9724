//! Snapshots: what is exported is imported with the same hash, whole or as an increment, and
//! nothing else is.
//!
//! Method: histories of random changes over wide and deep directories under several rules; streams
//! are also taken apart here, cut at every byte, and changed in every bit.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Error, GcPace, Hash, Indexing, Meta, Options, Retain, Rules, Scheme, Snapshot, Store,
    StoreReader, ocaml_hash,
};
use terrane_io::FaultPlan;
use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Disk, MemoryDisk};
use terrane_io::{SimDisk, Survival};
use terrane_testkit::draw::Draw;
use terrane_testkit::sweep::Sweep;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

const HEAD_BYTES: usize = 96;

/// Many inodes of few steps.
pub(crate) const SMALL: Rules = Rules { scheme: Scheme::Tezos, branching: 2, flat_limit: 3 };
/// Directories that are one leaf of an inode.
pub(crate) const LEAFY: Rules = Rules { scheme: Scheme::Blake3, branching: 16, flat_limit: 5 };

pub(crate) fn options(rules: Rules) -> Options {
    let index = Arc::new(BtreeIndexes::new(1 << 20));
    Options::new(index).rules(rules).chunk_bytes(64 << 10)
}

struct Bench {
    disk: Arc<dyn Disk>,
    options: Options,
    store: Store,
}

impl Bench {
    fn new(rules: Rules) -> Self {
        let (disk, options): (Arc<dyn Disk>, _) = (MemoryDisk::new(), options(rules));
        let store = Store::create(Arc::clone(&disk), Path::new("store"), &options).unwrap();
        Self { disk, options, store }
    }

    fn import_new(&self, dir: &str, stream: &[u8]) -> Result<(Store, Snapshot), Error> {
        Store::import_new(Arc::clone(&self.disk), Path::new(dir), &self.options, &mut &*stream)
    }
}

fn export(store: &Store, commit: &Hash) -> Vec<u8> {
    let mut stream = Vec::new();
    let snapshot = store.export(commit, &mut stream).unwrap();
    assert_eq!((snapshot.commit, snapshot.bytes), (*commit, stream.len() as u64));
    stream
}

/// Commits of random changes, each on the one before.
fn history(store: &Store, seed: u64, commits: usize) -> Vec<Hash> {
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut context = store.empty();
    let mut made = Vec::new();

    for number in 0..commits {
        let changes = if number == 0 { 700 } else { 1 + rng.below(60) };
        for _ in 0..changes {
            let step = rng.below(500).to_string();
            let value = vec![rng.below(3) as u8; rng.below(120) as usize];
            match rng.below(40) {
                0 => drop(context.remove(&["wide", &step]).unwrap()),
                1 => drop(context.remove(&["deep", &step[..1]]).unwrap()),
                2 => {
                    if let Some(tree) = context.find_tree(&["deep"]).unwrap() {
                        context.add_tree(&["copies", &step], &tree).unwrap();
                    }
                }
                3..=14 => {
                    let path = ["deep", &step[..1], &step, "a", "b"];
                    context.add(&path[..3 + rng.below(3) as usize], value).unwrap();
                }
                _ => drop(context.add(&["wide", &step], value).unwrap()),
            }
        }

        let hash =
            store.commit(&context, &Meta::tezos(i64::try_from(number).unwrap(), "random")).unwrap();
        made.push(hash);
        context = store.checkout(&hash).unwrap().unwrap();
    }

    made
}

/// The elements of a stream: hash and body.
pub(crate) fn elements(stream: &[u8]) -> Vec<(Hash, Vec<u8>)> {
    let mut rest = &stream[HEAD_BYTES..];
    let mut all = Vec::new();
    loop {
        let length = leb(&mut rest);
        if length == 0 {
            assert_eq!(rest[..8], (all.len() as u64).to_le_bytes());
            assert_eq!(rest.len(), 12);
            return all;
        }
        let (element, after) = rest.split_at(length);
        all.push((Hash(element[..32].try_into().unwrap()), element[32..].to_vec()));
        rest = after;
    }
}

fn leb(bytes: &mut &[u8]) -> usize {
    let mut value = 0;
    let mut shift = 0;
    loop {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= usize::from(byte & 0x7F) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

/// A stream of these elements under a head.
pub(crate) fn stream_of(head: &[u8], elements: &[(Hash, Vec<u8>)]) -> Vec<u8> {
    let mut stream = head[..HEAD_BYTES - 4].to_vec();
    stream.extend_from_slice(&crc32c(&stream).to_le_bytes());
    for (hash, body) in elements {
        let mut length = 32 + body.len();
        while length >= 0x80 {
            stream.push(length as u8 | 0x80);
            length >>= 7;
        }
        stream.push(length as u8);
        stream.extend_from_slice(&hash.0);
        stream.extend_from_slice(body);
    }

    stream.push(0);
    stream.extend_from_slice(&(elements.len() as u64).to_le_bytes());
    let crc = crc32c_append(0, &stream);
    stream.extend_from_slice(&crc.to_le_bytes());

    stream
}

#[test]
fn a_commit_is_exported_and_imported_with_the_same_hash() {
    for (seed, rules) in [(1, Rules::TEZOS), (2, Rules::BLAKE3), (3, SMALL), (4, LEAFY)] {
        let bench = Bench::new(rules);
        let commits = history(&bench.store, seed, 4);
        let commit = commits[2];
        let stream = export(&bench.store, &commit);
        let (copy, snapshot) = bench.import_new("copy", &stream).unwrap();
        assert_eq!(snapshot.commit, commit);
        let newest: Vec<Hash> = copy.newest().map(|commit| commit.unwrap().hash).collect();
        assert_eq!(newest, [commit], "one commit");
        assert_eq!(copy.commit_info(&commit).unwrap().parents, [commits[1]]);
        let ours = bench.store.checkout(&commit).unwrap().unwrap();
        let theirs = copy.checkout(&commit).unwrap().unwrap();
        assert_eq!(ours.to_concrete().unwrap(), theirs.to_concrete().unwrap());
        let rebuilt = theirs.empty().of_concrete(&theirs.to_concrete().unwrap()).unwrap();
        assert_eq!(rebuilt.hash(), copy.commit_info(&commit).unwrap().root, "hashed anew");
        assert_eq!(export(&copy, &commit), stream, "importable again, and the same bytes");

        let mut next = theirs;
        next.add(&["wide", "new"], *b"1").unwrap();
        next.remove(&["deep"]).unwrap();
        let mut other = ours;
        other.add(&["wide", "new"], *b"1").unwrap();
        other.remove(&["deep"]).unwrap();
        let meta = Meta::tezos(9, "");

        assert_eq!(copy.commit(&next, &meta).unwrap(), bench.store.hash(&other, &meta));
    }
}

#[test]
fn a_reader_exports_the_same_bytes_and_a_store_of_one_commit() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 5, 3);
    let stream = export(&bench.store, &commits[1]);
    let reader = StoreReader::open(Arc::clone(&bench.disk), Path::new("store"), 1 << 20).unwrap();
    let mut read = Vec::new();
    reader.export(&commits[1], &mut read).unwrap();
    assert!(read == stream);
    let mut increments = [Vec::new(), Vec::new()];
    let [ours, theirs] = &mut increments;
    bench.store.export_since(&commits[1], &commits[2], ours).unwrap();
    reader.export_since(&commits[1], &commits[2], theirs).unwrap();
    assert!(increments[0] == increments[1]);

    for (dir, whose) in [("alone", true), ("read", false)] {
        let disk = Arc::clone(&bench.disk);
        let options = &bench.options;
        let made = if whose {
            bench.store.export_store(&commits[1], disk, Path::new(dir), options)
        } else {
            reader.export_store(&commits[1], disk, Path::new(dir), options)
        };
        assert_eq!(made.unwrap().elements, elements(&stream).len() as u64);
        let alone = Store::open(Arc::clone(&bench.disk), Path::new(dir), options).unwrap();
        assert_eq!(alone.stats().commits, 1);
        assert!(export(&alone, &commits[1]) == stream);
    }
}

#[test]
fn commits_that_are_not_there_cannot_be_exported() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 6, 4);
    let before = export(&bench.store, &commits[3]);
    bench.store.collect(&Retain::newest(1), &mut |_| GcPace::Go).unwrap();
    assert!(export(&bench.store, &commits[3]) == before, "after a collection");
    let mut out = Vec::new();
    let collected = bench.store.export(&commits[0], &mut out);
    assert!(matches!(collected, Err(Error::UnknownCommit { hash }) if hash == commits[0]));
    let since = bench.store.export_since(&commits[0], &commits[3], &mut out);
    assert!(matches!(since, Err(Error::UnknownCommit { hash }) if hash == commits[0]));
    assert!(out.is_empty(), "nothing was written");
}

#[test]
fn streams_are_in_post_order_and_have_each_object_once() {
    let bench = Bench::new(Rules::TEZOS);
    let mut context = bench.store.empty();
    let value = vec![7; 100];
    for number in 0..300 {
        context.add(&["wide", &number.to_string()], *b"same").unwrap();
    }
    for path in [["a", "b"], ["a", "c"], ["d", "b"], ["d", "c"], ["e", "b"]] {
        context.add(&path, value.clone()).unwrap();
    }
    let first = bench.store.commit(&context, &Meta::tezos(1, "")).unwrap();

    // The same content once more, at other places of the pack.
    let mut context = bench.store.checkout(&first).unwrap().unwrap();
    context.add(&["f", "b"], value.clone()).unwrap();
    context.add(&["f", "c"], value.clone()).unwrap();
    let commit = bench.store.commit(&context, &Meta::tezos(2, "")).unwrap();

    let all = elements(&export(&bench.store, &commit));
    let distinct: HashSet<(bool, Hash)> =
        all.iter().map(|(hash, body)| (body[0] == 1, *hash)).collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(all.last().map(|(hash, body)| (*hash, body[0])), Some((commit, 8)));

    // One value; a = d = f, e, root; 300 steps in 1 + 32 inodes; the commit.
    assert_eq!(all.len(), 1 + 3 + 33 + 1);
    let kinds: Vec<u8> = all.iter().map(|(_, body)| body[0]).collect();
    assert_eq!(kinds[..3], [1, 2, 2], "the value, a, e");
    assert_eq!(kinds[3..35], [3; 32], "leaves");

    assert_eq!(kinds[35..], [4, 2, 8], "their inode, the root, the commit");
}

#[test]
fn increments_carry_a_history_over() {
    for (seed, rules) in [(11, Rules::TEZOS), (12, Rules::BLAKE3), (13, SMALL), (14, LEAFY)] {
        let bench = Bench::new(rules);
        let commits = history(&bench.store, seed, 12);
        let whole = export(&bench.store, &commits[0]);
        let (copy, _) = bench.import_new("copy", &whole).unwrap();
        let mut bytes = 0;

        for pair in commits.windows(2) {
            let mut stream = Vec::new();
            let made = bench.store.export_since(&pair[0], &pair[1], &mut stream).unwrap();
            assert_eq!(copy.import(&mut &*stream).unwrap(), made);
            bytes += stream.len();
            let ours = &bench.store;
            let theirs = &copy;
            assert!(export(ours, &pair[1]) == export(theirs, &pair[1]));
        }

        assert!(bytes < 11 * whole.len(), "{bytes} bytes for 11 increments of {}", whole.len());
    }
}

#[test]
fn increments_have_what_changed_and_need_their_base() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 15, 2);
    let mut context = bench.store.checkout(&commits[1]).unwrap().unwrap();
    context.add(&["wide", "one more"], vec![9; 99]).unwrap();
    let next = bench.store.commit(&context, &Meta::tezos(7, "")).unwrap();
    let mut stream = Vec::new();
    bench.store.export_since(&commits[1], &next, &mut stream).unwrap();
    let kinds: Vec<u8> = elements(&stream).iter().map(|(_, body)| body[0]).collect();

    // The value, what leads to the leaf of the base, the leaf, its inode, the root, the commit.
    assert_eq!(kinds.iter().filter(|kind| [1, 2, 3, 4, 8].contains(kind)).count(), 5);
    assert!(kinds.len() <= 9, "{kinds:?}");

    let mut same = Vec::new();
    let again = bench.store.checkout(&commits[1]).unwrap().unwrap();
    let again = bench.store.commit(&again, &Meta::tezos(8, "")).unwrap();
    bench.store.export_since(&commits[1], &again, &mut same).unwrap();
    assert_eq!(elements(&same).len(), 2, "the root of the base, and the commit");

    let other = Bench::new(Rules::TEZOS);
    let refused = other.store.import(&mut &*stream);
    assert!(matches!(refused, Err(Error::UnknownCommit { hash }) if hash == commits[1]));
    let refused = other.import_new("new", &stream);
    assert!(matches!(refused, Err(Error::UnknownCommit { hash }) if hash == commits[1]));
    other.store.import(&mut &*export(&bench.store, &commits[1])).unwrap();
    for stream in [stream, same] {
        other.store.import(&mut &*stream).unwrap();
    }
    assert!(other.store.exists(&next).unwrap() && other.store.exists(&again).unwrap());

    assert!(!other.store.exists(&commits[0]).unwrap());
}

/// A small tree of every kind of object, and its increment.
fn small_streams() -> (Bench, Hash, Vec<u8>, Vec<u8>) {
    let bench = Bench::new(SMALL);
    let mut context = bench.store.empty();
    for step in ["a", "b", "c", "d", "e"] {
        context.add(&["dir", step], step.as_bytes()).unwrap();
    }
    context.add(&["long"], vec![1; 60]).unwrap();
    let base = bench.store.commit(&context, &Meta::tezos(1, "base")).unwrap();
    context.add(&["dir", "a"], *b"changed").unwrap();
    context.advance(base);
    let commit = bench.store.commit(&context, &Meta::tezos(2, "next")).unwrap();
    let whole = export(&bench.store, &base);
    let mut increment = Vec::new();
    bench.store.export_since(&base, &commit, &mut increment).unwrap();

    (bench, base, whole, increment)
}

#[test]
fn every_truncation_of_a_stream_is_reported_where_it_is() {
    let (bench, _, whole, increment) = small_streams();
    let target = bench.import_new("target", &whole).unwrap().0;
    for stream in [whole, increment] {
        for len in 0..stream.len() {
            match target.import(&mut &stream[..len]) {
                Err(Error::TruncatedStream { offset }) => assert_eq!(offset, len as u64),
                other => panic!("cut at {len}: {other:?}"),
            }
        }
        assert_eq!(target.stats().commits, 1);
    }
}

#[test]
fn every_changed_bit_of_a_stream_is_reported() {
    let (bench, base, whole, increment) = small_streams();
    let target = bench.import_new("target", &whole).unwrap().0;
    let mut wrong_hashes = 0;

    for stream in [whole, increment] {
        for bit in 0..8 * stream.len() {
            let mut changed = stream.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            match target.import(&mut &*changed) {
                Err(Error::WrongHash { .. }) => wrong_hashes += 1,
                Err(
                    Error::NotASnapshot
                    | Error::DamagedStream { .. }
                    | Error::TruncatedStream { .. }
                    | Error::UnexpectedElement { .. },
                ) => {}
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }

    assert!(wrong_hashes > 2000, "{wrong_hashes}");
    let newest: Vec<Hash> = target.newest().map(|commit| commit.unwrap().hash).collect();
    assert_eq!(newest, [base], "nothing else was committed");
}

#[test]
fn streams_that_are_whole_but_wrong_are_refused_by_their_elements() {
    let bench = Bench::new(Rules::TEZOS);
    let commit = bench.store.commit(&bench.store.empty(), &Meta::tezos(1, "")).unwrap();
    let stream = export(&bench.store, &commit);
    let commit_element = elements(&stream).remove(0);

    let value = |bytes: Vec<u8>| {
        let hash = Rules::TEZOS.value_hash(&bytes);
        (hash, [vec![1], bytes].concat())
    };

    let target = Bench::new(Rules::TEZOS);
    let refused = |elements: &[(Hash, Vec<u8>)]| match target
        .store
        .import(&mut &*stream_of(&stream, elements))
    {
        Err(Error::UnexpectedElement { index, what }) => (index, what.rule),
        other => panic!("{other:?}"),
    };

    let long = value(vec![3; 49]);
    let unused = [long.clone(), commit_element.clone()];
    assert_eq!(refused(&unused), (1, "elements that are not used"));
    assert_eq!(refused(&[value(vec![3; 48])]), (0, "length of a value of its own"));
    assert_eq!(
        refused(&[commit_element.clone(), long.clone()]),
        (1, "nothing follows the last commit")
    );
    assert_eq!(refused(std::slice::from_ref(&long)), (1, "number of commits"));
    assert_eq!(refused(&[(long.0, vec![9])]), (0, "kind of an element"));
    assert_eq!(refused(&[(long.0, vec![2, 0, 1, 4, 1, b'a'])]), (0, "what is kept is in the base"));
    assert_eq!(refused(&[(long.0, vec![5])]), (0, "an object is in the base"));
    let wrong = target.store.import(&mut &*stream_of(&stream, &[(commit, long.1)]));
    assert!(matches!(wrong, Err(Error::WrongHash { index: 0 })));

    let mut head = stream.clone();
    head[24] ^= 1;
    let mut named = commit;
    named.0[0] ^= 1;

    match target.store.import(&mut &*stream_of(&head, &[commit_element])) {
        Err(Error::RootMismatch { expected, found }) => {
            assert_eq!((expected, found), (named, commit));
        }
        other => panic!("{other:?}"),
    }

    let other = Bench::new(Rules::BLAKE3).store.import(&mut &*stream);
    assert!(matches!(other, Err(Error::ConfigMismatch { option: "rules", .. })));
}

fn blake2b(preimage: &[u8]) -> Hash {
    let digest = blake2b_simd::Params::new().hash_length(32).hash(preimage);
    Hash(digest.as_bytes().try_into().unwrap())
}

/// A leaf that binds the steps to `x`, and an inode of two leaves that are so far back, with their
/// hashes.
fn leaf(steps: [&str; 2]) -> (Hash, Vec<u8>) {
    let value = SMALL.value_hash(b"x");
    let mut preimage = vec![0, 2];
    let mut body = vec![3, 0, 2];
    for step in steps {
        preimage.extend_from_slice(&[1, step.as_bytes()[0], 1]);
        preimage.extend_from_slice(&value.0);
        body.extend_from_slice(&[1, 1, step.as_bytes()[0], 1, b'x']);
    }
    (blake2b(&preimage), body)
}

fn inode(depth: u8, count: u8, below: [(Hash, u8); 2]) -> (Hash, Vec<u8>) {
    let mut preimage = vec![1, depth, count, 2];
    for (bucket, (hash, _)) in (0..).zip(&below) {
        preimage.push(bucket);
        preimage.extend_from_slice(&hash.0);
    }
    let body =
        [&[4, 0, depth, count, 3, 0, 0, 0, 0, 0, 0, 0], &[below[0].1, below[1].1][..]].concat();
    (blake2b(&preimage), body)
}

/// An attacker who knows the rules makes a tree whose hashes are right, with steps in buckets where
/// no lookup would find them; or inodes at the wrong depth, or with a wrong count.
#[test]
fn inodes_that_no_set_of_steps_has_are_refused() {
    let bucket = |step: &str| ocaml_hash(0, step.as_bytes()) % 2;
    let all = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let of = |wanted: u32| all.into_iter().filter(move |step| bucket(step) == wanted);
    let (zero, one): (Vec<&str>, Vec<&str>) = (of(0).take(2).collect(), of(1).take(2).collect());
    let left = leaf([zero[0], zero[1]]);
    let right = leaf([one[0], one[1]]);
    let bench = Bench::new(SMALL);
    let mut context = bench.store.empty();
    for step in zero.iter().chain(&one) {
        context.add(&[step], *b"x").unwrap();
    }
    let meta = Meta::tezos(1, "");
    let commit = bench.store.commit(&context, &meta).unwrap();
    let stream = export(&bench.store, &commit);
    let good = inode(0, 4, [(left.0, 2), (right.0, 1)]);
    let mut elements = elements(&stream);
    assert_eq!(elements[..3], [left.clone(), right.clone(), good], "they are made right here");

    let target = Bench::new(SMALL);
    let mut refused = |two: [&(Hash, Vec<u8>); 2], inner: (Hash, Vec<u8>)| {
        elements.splice(..3, [two[0].clone(), two[1].clone(), inner]);
        match target.store.import(&mut &*stream_of(&stream, &elements)) {
            Err(Error::UnexpectedElement { index: 2, what }) => what.rule,
            other => panic!("{other:?}"),
        }
    };

    let swapped = inode(0, 4, [(right.0, 1), (left.0, 2)]);
    assert_eq!(refused([&left, &right], swapped), "steps are in their buckets");
    let mut pair = [zero[0], one[0]];
    pair.sort_unstable();
    let mixed = leaf(pair);
    let inner = inode(0, 4, [(left.0, 2), (mixed.0, 1)]);
    assert_eq!(refused([&left, &mixed], inner), "an inode is at its depth");
    let counted = inode(0, 5, [(left.0, 2), (right.0, 1)]);
    assert_eq!(refused([&left, &right], counted), "entries below an inode");
    let small = inode(0, 2, [(left.0, 2), (right.0, 1)]);

    assert_eq!(refused([&left, &right], small), "entries of an inode with buckets");
}

#[test]
fn a_directory_whose_import_did_not_end_is_refused_and_begun_anew() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 21, 2);
    let stream = export(&bench.store, &commits[1]);
    let cut = bench.import_new("copy", &stream[..stream.len() - 1]);
    assert!(matches!(cut, Err(Error::TruncatedStream { .. })));
    drop(cut);
    let (disk, dir) = (|| Arc::clone(&bench.disk), Path::new("copy"));
    let opened = Store::open(disk(), dir, &bench.options);
    assert!(matches!(opened, Err(Error::IncompleteImport { .. })));
    let created = Store::create(disk(), dir, &bench.options);
    assert!(matches!(created, Err(Error::IncompleteImport { .. })));
    let read = StoreReader::open(disk(), dir, 0);
    assert!(matches!(read, Err(Error::IncompleteImport { .. })));

    let (copy, _) = bench.import_new("copy", &stream).unwrap();
    copy.close().unwrap();
    let copy = Store::open(disk(), dir, &bench.options).unwrap();
    assert!(export(&copy, &commits[1]) == stream);
    copy.close().unwrap();

    assert!(matches!(bench.import_new("copy", &stream), Err(Error::AlreadyExists { .. })));
}

#[test]
fn imports_and_collections_keep_out_of_each_others_way() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 22, 3);
    let stream = export(&bench.store, &commits[2]);
    let target = Bench::new(Rules::TEZOS);
    history(&target.store, 23, 3);
    let mut refused = 0;
    target
        .store
        .collect(&Retain::newest(1), &mut |_| {
            let import = target.store.import(&mut &*stream);
            assert!(matches!(import, Err(Error::GcRunning)));
            refused += 1;
            GcPace::Go
        })
        .unwrap();
    assert!(refused > 0);

    // What a failed import has left, and all else but the import, is collected.
    target.store.import(&mut &stream[..stream.len() - 1]).unwrap_err();
    target.store.import(&mut &*stream).unwrap();
    target.store.collect(&Retain::newest(1), &mut |_| GcPace::Go).unwrap();
    assert!(export(&target.store, &commits[2]) == stream);

    assert_eq!(target.store.newest().count(), 1);
}

#[test]
fn a_store_that_indexes_everything_imports_no_object_twice() {
    let bench = Bench::new(Rules::TEZOS);
    let commits = history(&bench.store, 24, 2);
    let options = options(Rules::TEZOS).indexing(Indexing::Always);
    let target = Store::create(Arc::clone(&bench.disk), Path::new("always"), &options).unwrap();
    target.import(&mut &*export(&bench.store, &commits[0])).unwrap();
    target.split().unwrap();
    let before = target.stats().written_bytes;
    target.import(&mut &*export(&bench.store, &commits[1])).unwrap();
    let written = target.stats().written_bytes - before;
    let stream = export(&bench.store, &commits[1]);
    assert!(written < stream.len() as u64 / 2, "{written} bytes of {}", stream.len());
    assert!(export(&target, &commits[1]) == stream);
}

/// A loss of power at every call of an import into a new directory: the store is whole, or it is
/// refused and an import begins anew.
#[test]
fn an_import_that_loses_power_is_whole_or_begins_anew() {
    let (bench, base, whole, _) = small_streams();
    let import = |disk: &Arc<SimDisk>| {
        let disk: Arc<dyn Disk> = disk.clone();
        Store::import_new(disk, Path::new("copy"), &bench.options, &mut &*whole)
    };

    let [mut refused, mut opened] = [0, 0];
    Sweep::whole(1).crash(
        |disk| drop(import(disk)),
        |crash| {
            let survivals = [Survival::Nothing, Survival::Random(crash.call)];
            crash.power_losses(survivals, |image| {
                let shared: Arc<dyn Disk> = image.disk.clone();
                let store = match Store::open(shared, Path::new("copy"), &bench.options) {
                    Ok(store) => {
                        opened += 1;
                        store
                    }
                    Err(Error::IncompleteImport { .. } | Error::NotFound { .. }) => {
                        refused += 1;
                        import(&image.disk).unwrap().0
                    }
                    Err(error) => panic!("{error}"),
                };

                assert!(export(&store, &base) == whole);
            })
        },
    );

    assert!(refused > 20 && opened > 0, "{refused} refused, {opened} opened");
}

/// A commit and its branch were two writes, so a crash between them left a commit without its name.
#[test]
fn an_import_sets_its_branch_with_its_commit() {
    let source = Bench::new(Rules::TEZOS);
    let commits = history(&source.store, 5, 2);
    let stream = export(&source.store, &commits[0]);
    let path = Path::new("store");

    let fresh = |disk: &Arc<SimDisk>| -> Result<Store, Error> {
        let shared: Arc<dyn Disk> = disk.clone();
        Store::create(shared, path, &options(Rules::TEZOS))
    };

    // One frame and one sync, as without a branch.
    let cost = |import: &dyn Fn(&Store) -> Result<Snapshot, Error>| {
        let store = fresh(&SimDisk::new(1)).unwrap();
        let before = store.stats();
        import(&store).unwrap();
        let after = store.stats();
        (after.frames - before.frames, after.syncs - before.syncs)
    };

    let plain = cost(&|store| store.import(&mut &*stream));
    assert_eq!(cost(&|store| store.import_to(b"main", &mut &*stream)), plain);

    let whole = SimDisk::new(1);
    let store = fresh(&whole).unwrap();
    let changes = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&changes);
    let _watch = store.watch(b"main", move |change| seen.lock().unwrap().push(change.after));
    let before = whole.calls();
    store.import_to(b"main", &mut &*stream).unwrap();
    assert_eq!(*changes.lock().unwrap(), [Some(commits[0])]);
    assert_eq!(store.branch(b"main"), Some(commits[0]));

    // The import is over when its watches are called: one of them may close the store.
    let closing = Arc::new(fresh(&SimDisk::new(1)).unwrap());
    let weak = Arc::downgrade(&closing);
    closing.watch(b"main", move |_| weak.upgrade().unwrap().close().unwrap());
    let imported = Arc::clone(&closing);
    let input = stream.clone();
    let (sender, done) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        sender.send(imported.import_to(b"main", &mut &*input).is_ok()).unwrap();
    });
    let waited = done.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(waited, Ok(true), "the close in the watch waits for the import");
    thread.join().unwrap();

    // A commit that is there gets the branch.
    store.import_to(b"again", &mut &*stream).unwrap();
    assert_eq!(store.branch(b"again"), Some(commits[0]));
    let refused = store.import_to(b"", &mut &*stream);
    assert!(matches!(refused, Err(Error::BranchName { bytes: 0 })), "{refused:?}");

    for call in before..whole.calls() {
        let disk = SimDisk::new(1);
        let store = fresh(&disk).unwrap();
        disk.set_plan(FaultPlan::crash_at(call));
        drop(store.import_to(b"main", &mut &*stream));
        drop(store);
        for survival in [Survival::Nothing, Survival::Everything, Survival::Torn(call)] {
            let crashed: Arc<dyn Disk> = disk.after_crash(survival);
            let store = Store::open(crashed, path, &options(Rules::TEZOS)).unwrap();
            let is_there = store.exists(&commits[0]).unwrap();
            assert_eq!(store.branch(b"main").is_some(), is_there, "call {call}");
        }
    }

    // A new store has it as well, and a bad name makes none.
    let import = |name: &[u8]| {
        let disk = Arc::clone(&source.disk);
        let options = &source.options;
        Store::import_new_to(disk, Path::new("new"), options, name, &mut &*stream)
    };

    assert!(matches!(import(&[b'x'; 256]), Err(Error::BranchName { bytes: 256 })));
    assert!(source.disk.kind(Path::new("new")).unwrap().is_none());
    assert_eq!(import(b"main").unwrap().0.branch(b"main"), Some(commits[0]));
}

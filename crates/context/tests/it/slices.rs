//! Slices: several commits in one stream are imported as they were, all of them or none.
//!
//! Method: histories of random changes with branches and merges. Streams are compared with the
//! commits that they are of, cut at every byte, changed in every bit, and taken apart and put
//! together in the wrong order. Imports lose power, and meet faults, at every call of the disk.

use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex};

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Error, GcPace, Hash, Loss, Meta, Options, Result, Retain, Rules, Snapshot, Store, StoreReader,
};
use terrane_io::{Disk, FaultKind, MemoryDisk, SimDisk, Survival};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;

use crate::losses::{checked, repaired};
use crate::script::{DIR, content_of, create, go, open};
use crate::snapshot::{LEAFY, SMALL, elements, options, stream_of};

/// Kind of the elements of commits, by their first byte.
const COMMIT: u8 = 8;

fn store_in(disk: &Arc<dyn Disk>, dir: &str, rules: Rules) -> Store {
    Store::create(Arc::clone(disk), Path::new(dir), &options(rules)).unwrap()
}

fn new_store(rules: Rules) -> (Arc<dyn Disk>, Store) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = store_in(&disk, DIR, rules);
    (disk, store)
}

/// Commits of random changes with up to two parents each.
fn branched(store: &Store, rng: &mut ChaCha8Rng, count: usize) -> Vec<Hash> {
    let mut made: Vec<Hash> = Vec::new();
    for number in 0..count {
        let from = made.len().saturating_sub(5);
        let mut parents = BTreeSet::new();
        for _ in 0..rng.below(3).min(made.len() as u64) {
            parents.insert(made[from + rng.index(made.len() - from)]);
        }

        let parents: Vec<Hash> = parents.into_iter().collect();
        let mut context = match parents.first() {
            Some(parent) => store.checkout(parent).unwrap().unwrap(),
            None => store.empty(),
        };
        for _ in 0..if number == 0 { 60 } else { rng.below(6) } {
            let step = rng.below(40).to_string();
            let value = vec![rng.below(3) as u8; rng.below(100) as usize];
            match rng.below(12) {
                0 => drop(context.remove(&["deep", &step[..1]]).unwrap()),
                1 => {
                    if let Some(tree) = context.find_tree(&["deep"]).unwrap() {
                        context.add_tree(&["copies", &step], &tree).unwrap();
                    }
                }
                2..=5 => drop(context.add(&["deep", &step[..1], &step], value).unwrap()),
                _ => drop(context.add(&["wide", &step], value).unwrap()),
            }
        }

        context.set_parents(parents);
        let date = i64::try_from(number).unwrap();
        made.push(store.commit(&context, &Meta::tezos(date, "branched")).unwrap());
    }

    made
}

/// A commit with these values beside those of its parents.
fn commit(store: &Store, parents: &[Hash], values: &[(&str, usize)]) -> Hash {
    let mut context = match parents.first() {
        Some(parent) => store.checkout(parent).unwrap().unwrap(),
        None => store.empty(),
    };
    for (path, len) in values {
        let path: Vec<&str> = path.split('/').collect();
        context.add(&path, vec![7; *len]).unwrap();
    }
    context.set_parents(parents.to_vec());
    store.commit(&context, &Meta::tezos(1, "")).unwrap()
}

/// Ancestors of a commit, with the commit.
fn ancestors(store: &Store, commit: &Hash) -> BTreeSet<Hash> {
    let history = store.history(commit, usize::MAX).unwrap();
    history.commits.iter().map(|commit| commit.hash).collect()
}

fn commits_of(store: &Store) -> BTreeSet<Hash> {
    store.newest().map(|commit| commit.unwrap().hash).collect()
}

fn export(store: &Store, commits: &[Hash]) -> (Vec<u8>, Snapshot) {
    let mut stream = Vec::new();
    let snapshot = store.export_commits(commits, &mut stream).unwrap();
    assert_eq!(snapshot.bytes, stream.len() as u64);
    assert_eq!(snapshot.commits.last(), Some(&snapshot.commit));
    (stream, snapshot)
}

fn import_new(disk: &Arc<dyn Disk>, dir: &str, rules: Rules, stream: &[u8]) -> (Store, Snapshot) {
    let options = options(rules);
    Store::import_new(Arc::clone(disk), Path::new(dir), &options, &mut &*stream).unwrap()
}

/// Checks that commits of a copy are those of the original.
fn assert_same(ours: &Store, theirs: &Store, commits: &[Hash]) {
    for hash in commits {
        assert_eq!(ours.commit_info(hash).unwrap(), theirs.commit_info(hash).unwrap());
        let [ours, theirs] = [ours, theirs].map(|store| store.checkout(hash).unwrap().unwrap());
        let content = content_of(&theirs).unwrap();
        assert!(content_of(&ours).unwrap() == content, "{hash}");
        assert_eq!(ours.tree().hash(), theirs.tree().hash());
    }
}

/// Checks that no commit comes before its parents.
fn assert_in_order(store: &Store, commits: &[Hash]) {
    for (at, hash) in commits.iter().enumerate() {
        let parents = store.commit_info(hash).unwrap().parents;
        assert!(parents.iter().all(|parent| !commits[at..].contains(parent)), "{hash}");
    }
}

#[test]
fn commits_are_imported_as_they_were() {
    for_each_seed("commits_are_imported_as_they_were", 12, |rng, number| {
        let rules = [Rules::TEZOS, Rules::BLAKE3, SMALL, LEAFY][number as usize % 4];
        let (disk, source) = new_store(rules);
        let all = branched(&source, rng, 12);

        // One, two, or many, in any order, and some of them twice.
        let count = [1, 2, 5 + rng.index(8)][rng.index(3)];
        let wanted: Vec<Hash> = (0..count).map(|_| *rng.pick(&all)).collect();
        let (stream, exported) = export(&source, &wanted);
        let distinct: BTreeSet<Hash> = wanted.iter().copied().collect();
        assert_eq!(exported.commits.len(), distinct.len(), "each once");
        assert_eq!(exported.commits.iter().copied().collect::<BTreeSet<_>>(), distinct);
        assert_in_order(&source, &exported.commits);

        let objects = elements(&stream);
        let named: HashSet<(u8, Hash)> = objects
            .iter()
            .map(|(hash, body)| (if [1, COMMIT].contains(&body[0]) { body[0] } else { 0 }, *hash))
            .collect();
        assert_eq!(named.len(), objects.len(), "each object once");

        let (copy, imported) = import_new(&disk, "copy", rules, &stream);
        assert_eq!(imported, exported);
        assert_eq!(commits_of(&copy), distinct);
        assert_same(&source, &copy, &exported.commits);
        assert!(export(&copy, &exported.commits).0 == stream, "the same bytes");

        // A store of its own, by the writer and by a reader.
        let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();
        let mut read = Vec::new();
        assert_eq!(reader.export_commits(&wanted, &mut read).unwrap(), exported);
        assert!(read == stream);
        for (dir, is_reader) in [("alone", false), ("read", true)] {
            let path = Path::new(dir);
            let options = options(rules);
            let made = if is_reader {
                reader.export_commits_store(&wanted, Arc::clone(&disk), path, &options)
            } else {
                source.export_commits_store(&wanted, Arc::clone(&disk), path, &options)
            };
            assert_eq!(made.unwrap(), Snapshot { bytes: 0, ..exported.clone() });
            let alone = Store::open(Arc::clone(&disk), path, &options).unwrap();
            assert_eq!(commits_of(&alone), distinct);
            assert!(export(&alone, &exported.commits).0 == stream);
        }
    });
}

#[test]
fn a_range_is_imported_where_its_beginning_is() {
    for_each_seed("a_range_is_imported_where_its_beginning_is", 12, |rng, number| {
        let rules = [Rules::TEZOS, Rules::BLAKE3, SMALL, LEAFY][number as usize % 4];
        let (disk, source) = new_store(rules);
        let all = branched(&source, rng, 12);
        let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();

        for attempt in 0..6 {
            let from = *rng.pick(&all);
            let to = *rng.pick(&all);
            let mut between = ancestors(&source, &to);
            between.retain(|hash| !ancestors(&source, &from).contains(hash));
            let mut stream = Vec::new();
            let exported = source.export_range(&from, &to, &mut stream);
            if between.is_empty() {
                assert!(matches!(exported, Err(Error::NothingToExport)), "{exported:?}");
                assert!(stream.is_empty());
                continue;
            }

            let exported = exported.unwrap();
            assert_eq!(exported.commit, to);
            assert_eq!(exported.commits.iter().copied().collect::<BTreeSet<_>>(), between);
            let mut read = Vec::new();
            reader.export_range(&from, &to, &mut read).unwrap();
            assert!(read == stream);
            let mut listed = Vec::new();
            source.export_commits_since(&from, &exported.commits, &mut listed).unwrap();
            assert!(listed == stream);

            // Without its beginning a range has no meaning.
            let (_, other) = new_store(rules);
            let refused = other.import(&mut &*stream);
            assert!(matches!(refused, Err(Error::UnknownCommit { hash }) if hash == from));
            let new = Path::new("refused");
            let refused = Store::import_new(Arc::clone(&disk), new, &options(rules), &mut &*stream);
            assert!(matches!(refused, Err(Error::UnknownCommit { hash }) if hash == from));
            assert!(disk.kind(new).unwrap().is_none(), "nothing is made");

            let whole = export(&source, &[from]).0;
            let (copy, _) = import_new(&disk, &format!("copy-{attempt}"), rules, &whole);
            assert_eq!(copy.import_to(b"tip", &mut &*stream).unwrap(), exported);
            assert_eq!(copy.branch(b"tip"), Some(to));
            assert_same(&source, &copy, &exported.commits);
            let mut again = Vec::new();
            copy.export_range(&from, &to, &mut again).unwrap();
            assert!(again == stream, "the same bytes");
        }
    });
}

/// The commits behind the first one have what they change, wherever the commit before has it: a
/// directory that comes back after its removal is not written again.
#[test]
fn a_slice_has_only_what_no_commit_before_has() {
    let (_, store) = new_store(Rules::TEZOS);
    let mut context = store.empty();
    for number in 0..300 {
        context.add(&["wide", &number.to_string()], vec![1; 60]).unwrap();
    }
    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    let mut context = store.checkout(&first).unwrap().unwrap();
    let wide = context.find_tree(&["wide"]).unwrap().unwrap();
    context.remove(&["wide"]).unwrap();
    context.add(&["small"], vec![2; 60]).unwrap();
    let second = store.commit(&context, &Meta::tezos(2, "")).unwrap();
    let mut context = store.checkout(&second).unwrap().unwrap();
    context.add_tree(&["back", "again"], &wide).unwrap();
    let third = store.commit(&context, &Meta::tezos(3, "")).unwrap();
    let again = store.checkout(&third).unwrap().unwrap();
    let fourth = store.commit(&again, &Meta::tezos(4, "")).unwrap();

    let (stream, _) = export(&store, &[first, second, third, fourth]);
    let kinds: Vec<u8> = elements(&stream).iter().map(|(_, body)| body[0]).collect();
    let commits: Vec<usize> = (0..kinds.len()).filter(|at| kinds[*at] == COMMIT).collect();
    let first = commits[0];
    assert_eq!(commits[1] - first, 3, "the value, the root, the commit");
    assert_eq!(commits[2] - commits[1], 3, "the directory `back`, the root, the commit");
    assert_eq!(commits[3] - commits[2], 1, "the commit");
}

/// A stream of three commits on a base, with the store that it is from and the base.
fn small_slice() -> (Store, [Hash; 4], Vec<u8>) {
    let (_, source) = new_store(SMALL);
    let values = [("dir/a", 1), ("dir/b", 2), ("dir/c", 3), ("dir/d", 4), ("long", 60)];
    let base = commit(&source, &[], &values);
    let left = commit(&source, &[base], &[("dir/a", 5), ("new", 1)]);
    let right = commit(&source, &[base], &[("dir/e", 70)]);
    let merge = commit(&source, &[left, right], &[("dir/e", 70)]);
    let mut stream = Vec::new();
    source.export_range(&base, &merge, &mut stream).unwrap();
    (source, [base, left, right, merge], stream)
}

/// A store with the base of [`small_slice`].
fn with_base(source: &Store, base: Hash) -> Store {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    import_new(&disk, DIR, SMALL, &export(source, &[base]).0).0
}

#[test]
fn commits_that_are_there_stay_and_the_others_come() {
    let (source, [base, left, right, merge], stream) = small_slice();
    let target = with_base(&source, base);
    let mut part = Vec::new();
    source.export_since(&base, &right, &mut part).unwrap();
    target.import(&mut &*part).unwrap();

    let imported = target.import_to(b"main", &mut &*stream).unwrap();
    assert_eq!(imported.commits, [left, right, merge]);
    assert_eq!(commits_of(&target), BTreeSet::from([base, left, right, merge]));
    assert_eq!(target.stats().commits, 4, "none is there twice");
    assert_eq!(target.branch(b"main"), Some(merge));
    assert_same(&source, &target, &[base, left, right, merge]);

    // Once more: only the branch moves.
    target.import_to(b"again", &mut &*stream).unwrap();
    assert_eq!(target.stats().commits, 4);
    assert_eq!(target.branch(b"again"), Some(merge));

    // A branch may be set to a commit that is there while another one comes.
    let other = with_base(&source, base);
    let mut last = Vec::new();
    source.export_since(&base, &merge, &mut last).unwrap();
    other.import(&mut &*last).unwrap();
    other.import_to(b"main", &mut &*stream).unwrap();
    assert_eq!(other.branch(b"main"), Some(merge));
    assert_eq!(other.stats().commits, 4);

    // A collection keeps what the branch has, and the import after it is whole.
    other.collect(&Retain::newest(1), &mut go).unwrap();
    assert!(other.exists(&merge).unwrap());
    assert_same(&source, &other, &[merge]);
}

/// Input that looks at the store at each read.
struct Watched<'a, F: FnMut()> {
    input: &'a [u8],
    look: F,
}

impl<F: FnMut()> Read for Watched<'_, F> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        (self.look)();
        self.input.read(out)
    }
}

#[test]
fn commits_of_an_import_are_seen_all_at_once() {
    let (source, [base, left, right, merge], stream) = small_slice();
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let (target, _) = import_new(&disk, DIR, SMALL, &export(&source, &[base]).0);
    let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();
    let changes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&changes);
    let _watch = target.watch(b"main", move |change| seen.lock().unwrap().push(change.after));

    let mut looks = 0;
    let look = || {
        reader.sync().unwrap();
        assert_eq!(reader.newest().count(), 1);
        assert_eq!(commits_of(&target).len(), 1);
        looks += 1;
    };
    let mut input = Watched { input: &stream, look };
    let frames = target.stats().frames;
    target.import_to(b"main", &mut input).unwrap();
    assert!(looks > 10, "{looks}");
    assert_eq!(target.stats().frames - frames, 2, "one of objects, and one of commits");

    reader.sync().unwrap();
    let newest: Vec<Hash> = reader.newest().map(|commit| commit.unwrap().hash).collect();
    assert_eq!(newest, [merge, right, left, base]);
    assert_eq!(reader.branch(b"main"), Some(merge));
    assert_eq!(*changes.lock().unwrap(), [Some(merge)], "the branch moves once");
}

#[test]
fn every_truncation_of_a_slice_leaves_the_store_as_it_was() {
    let (source, [base, ..], stream) = small_slice();
    let target = with_base(&source, base);
    for len in 0..stream.len() {
        match target.import_to(b"main", &mut &stream[..len]) {
            Err(Error::TruncatedStream { offset }) => assert_eq!(offset, len as u64),
            other => panic!("cut at {len}: {other:?}"),
        }
        assert_eq!(target.stats().commits, 1, "cut at {len}");
    }
    assert_eq!((commits_of(&target), target.branches()), (BTreeSet::from([base]), Vec::new()));
}

#[test]
fn every_changed_bit_of_a_slice_is_reported() {
    let (source, [base, ..], stream) = small_slice();
    let target = with_base(&source, base);
    for bit in 0..8 * stream.len() {
        let mut changed = stream.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        match target.import_to(b"main", &mut &*changed) {
            Err(
                Error::WrongHash { .. }
                | Error::NotASnapshot
                | Error::DamagedStream { .. }
                | Error::TruncatedStream { .. }
                | Error::UnexpectedElement { .. },
            ) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
        assert_eq!(target.stats().commits, 1, "bit {bit}");
    }
    assert_eq!((commits_of(&target), target.branches()), (BTreeSet::from([base]), Vec::new()));
}

/// A head with another number of commits, and perhaps another last commit.
fn head_of(stream: &[u8], commits: u32, last: Option<&Hash>) -> Vec<u8> {
    let mut head = stream.to_vec();
    head[88..92].copy_from_slice(&commits.to_le_bytes());
    if let Some(last) = last {
        head[24..56].copy_from_slice(&last.0);
    }
    head
}

#[test]
fn slices_that_are_whole_but_wrong_are_refused() {
    let (_, source) = new_store(Rules::TEZOS);
    let one = source.commit(&source.empty(), &Meta::tezos(1, "one")).unwrap();
    let mut context = source.empty();
    context.set_parents(vec![one]);
    let two = source.commit(&context, &Meta::tezos(2, "two")).unwrap();
    let (stream, _) = export(&source, &[two, one]);
    let parts = elements(&stream);
    let [first, second] = [parts[0].clone(), parts[1].clone()];
    assert_eq!((first.0, second.0), (one, two), "parents first");

    let (_, target) = new_store(Rules::TEZOS);
    let import = |head: &[u8], parts: &[(Hash, Vec<u8>)]| {
        let refused = target.import(&mut &*stream_of(head, parts));
        assert_eq!(target.stats().commits, 0);
        match refused {
            Err(Error::UnexpectedElement { index, what }) => (index, what.rule),
            Err(Error::DamagedStream { what, .. }) => (u64::MAX, what.rule),
            other => panic!("{other:?}"),
        }
    };

    let both = [first.clone(), second.clone()];
    let order = "each commit once, before its children";
    let child_first = [second.clone(), first.clone()];
    assert_eq!(import(&head_of(&stream, 2, Some(&one)), &child_first), (1, order));
    let twice = [first.clone(), first.clone(), second.clone()];
    assert_eq!(import(&head_of(&stream, 3, None), &twice), (1, order));
    let behind = "nothing follows the last commit";
    assert_eq!(import(&head_of(&stream, 1, Some(&one)), &both), (1, behind));
    assert_eq!(import(&head_of(&stream, 3, None), &both), (2, "number of commits"));
    assert_eq!(import(&head_of(&stream, 0, None), &both), (u64::MAX, "number of commits"));

    // A value that only a later commit could use, and a reference to a commit.
    let bytes = vec![3; 49];
    let value = (Rules::TEZOS.value_hash(&bytes), [vec![1], bytes].concat());
    let unused = [value, first.clone(), second.clone()];
    assert_eq!(import(&stream, &unused), (1, "elements that are not used"));
    let mut rooted = second.clone();
    rooted.1[1] = 1;
    assert_eq!(import(&stream, &[first.clone(), rooted]), (1, "the root is a directory"));
    let entry = (one, vec![2, 0, 1, 3, 1, b'a', 1]);
    let used = [first.clone(), entry, second.clone()];
    assert_eq!(import(&stream, &used), (1, "kind of what a step is bound to"));

    // The last commit is the one that the head names.
    let wrong = target.import(&mut &*stream_of(&head_of(&stream, 1, None), &both));
    match wrong {
        Err(Error::RootMismatch { expected, found }) => assert_eq!((expected, found), (two, one)),
        other => panic!("{other:?}"),
    }
    target.import(&mut &*stream_of(&stream, &both)).unwrap();
    assert_eq!(commits_of(&target), BTreeSet::from([one, two]));
}

#[test]
fn nothing_cannot_be_exported_nor_what_is_not_there() {
    let (disk, store) = new_store(Rules::TEZOS);
    let one = commit(&store, &[], &[("a", 1)]);
    let two = commit(&store, &[one], &[("a", 2)]);
    let unknown = Hash([9; 32]);
    let mut out = Vec::new();
    assert!(matches!(store.export_commits(&[], &mut out), Err(Error::NothingToExport)));
    let refused =
        store.export_commits_store(&[], Arc::clone(&disk), Path::new("x"), &options(SMALL));
    assert!(matches!(refused, Err(Error::NothingToExport)));
    for refused in [
        store.export_commits(&[one, unknown], &mut out),
        store.export_commits_since(&unknown, &[one], &mut out),
        store.export_range(&unknown, &two, &mut out),
        store.export_range(&one, &unknown, &mut out),
    ] {
        assert!(matches!(refused, Err(Error::UnknownCommit { hash }) if hash == unknown));
    }
    assert!(out.is_empty(), "nothing was written");

    // Commits that a collection removes while a stream is written are in it.
    let mut collected = false;
    let mut stream = Vec::new();
    let mut out = Collecting { store: &store, collected: &mut collected, out: &mut stream };
    store.export_commits(&[one, two], &mut out).unwrap();
    assert!(collected && !store.exists(&one).unwrap());
    let (copy, _) = import_new(&disk, "copy", Rules::TEZOS, &stream);
    assert_eq!(commits_of(&copy), BTreeSet::from([one, two]));
}

/// Output that collects at the first write.
struct Collecting<'a> {
    store: &'a Store,
    collected: &'a mut bool,
    out: &'a mut Vec<u8>,
}

impl std::io::Write for Collecting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !std::mem::replace(self.collected, true) {
            self.store.collect(&Retain::newest(1), &mut |_| GcPace::Go).unwrap();
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn sim_options() -> Options {
    options(SMALL).hash_threads(1)
}

/// A simulated disk with a store of the base.
fn sim_with_base(source: &Store, base: Hash) -> Arc<SimDisk> {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &sim_options()).unwrap();
    store.import(&mut &*export(source, &[base]).0).unwrap();
    store.close().unwrap();
    drop(store);
    disk.process_kill()
}

fn import_into(disk: &Arc<SimDisk>, stream: &[u8]) -> Result<Snapshot> {
    let shared: Arc<dyn Disk> = disk.clone();
    let store = open(&shared, &sim_options())?;
    store.import_to(b"main", &mut &*stream)
}

/// Checks that a store has all commits of the slice and its branch, or none; returns whether it
/// has.
fn assert_all_or_none(source: &Store, store: &Store, commits: &[Hash; 4]) -> bool {
    let found = commits_of(store);
    let is_whole = found.len() == 4;
    let expected = if is_whole { &commits[..] } else { &commits[..1] };
    assert_eq!(found, expected.iter().copied().collect());
    assert_eq!(store.branch(b"main"), is_whole.then_some(commits[3]));
    assert_same(source, store, expected);
    is_whole
}

#[test]
fn a_slice_that_loses_power_is_whole_or_absent() {
    let (source, commits, stream) = small_slice();
    let start = sim_with_base(&source, commits[0]);
    let mut counts = [0, 0];
    Sweep::whole(1).on(&start).crash(
        |disk| import_into(disk, &stream).is_ok(),
        |crash| {
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Torn(crash.call)];
            crash.power_losses(survivals, |image| {
                let shared: Arc<dyn Disk> = image.disk.clone();
                let store = open(&shared, &sim_options()).unwrap();
                let is_whole = assert_all_or_none(&source, &store, &commits);
                assert!(is_whole || !crash.run, "it was reported durable");
                counts[usize::from(is_whole)] += 1;

                // It can be imported again, or first.
                store.import_to(b"main", &mut &*stream).unwrap();
                assert!(assert_all_or_none(&source, &store, &commits));
            })
        },
    );
    assert!(counts[0] > 10 && counts[1] > 0, "{counts:?}");
}

#[test]
fn a_slice_that_meets_a_fault_is_whole_or_absent() {
    let (source, commits, stream) = small_slice();
    let start = sim_with_base(&source, commits[0]);
    let mut failed = 0;
    for kind in FaultKind::ERRORS {
        Sweep::sampled(2, 3).on(&start).fault(kind, None, |disk, _| {
            let shared: Arc<dyn Disk> = disk.clone();
            let opened = open(&shared, &sim_options());
            let imported = match &opened {
                Ok(store) => store.import_to(b"main", &mut &*stream).map(drop),
                Err(_) => return,
            };
            disk.set_plan(terrane_io::FaultPlan::default());
            let store = opened.unwrap();

            // A commit is seen before its sync, which may be what failed.
            let is_seen = assert_all_or_none(&source, &store, &commits);
            match &imported {
                Ok(()) => assert!(is_seen),
                Err(Error::Disk(_) | Error::Index { .. } | Error::OutOfSpace { .. }) => failed += 1,
                Err(Error::Corrupt { .. }) if kind == FaultKind::ShortRead => failed += 1,
                Err(error) => panic!("{error:?}"),
            }
            drop(store);

            for survival in [Survival::Nothing, Survival::Everything] {
                let crashed: Arc<dyn Disk> = disk.after_crash(survival);
                let store = open(&crashed, &sim_options()).unwrap();
                let is_whole = assert_all_or_none(&source, &store, &commits);
                assert!(is_whole || imported.is_err(), "it was reported durable");
            }
        });
    }
    assert!(failed > 10, "{failed}");
}

/// Rot within the frame of an import: no commit of it is taken for whole, and a repair counts them.
#[test]
fn a_damaged_frame_of_commits_is_lost_as_a_whole() {
    let (source, commits, stream) = small_slice();
    let start = sim_with_base(&source, commits[0]);
    import_into(&start, &stream).unwrap();
    let disk = start.process_kill();
    let chunk = format!("{DIR}/chunk-00000000");
    let good = disk.read_raw(&chunk).unwrap();
    let mut units = (0..good.len()).step_by(8);
    let frame = units.rfind(|&at| good[at..].starts_with(b"TMF1")).unwrap();
    assert_eq!(good[frame + 8], 5, "the kind of a frame of commits");

    let mut exact = 0;
    for byte in (frame + 32..good.len()).step_by(5) {
        let damaged = disk.clone_disk();
        damaged.flip_bit(&chunk, byte as u64 * 8 + 1);
        let shared: Arc<dyn Disk> = damaged.clone();
        match open(&shared, &sim_options()) {
            // Padding, which no reader looks at.
            Ok(store) => assert!(assert_all_or_none(&source, &store, &commits)),
            Err(Error::Corrupt { .. }) => {
                assert!(checked(&damaged).problem_count > 0);
                let lost = repaired(&damaged, Loss::Accepted).unwrap().lost.unwrap();
                let count = lost.commit_count;
                assert!((1..=3).contains(&count) && (count == 3 || lost.is_lower_bound));
                exact += u64::from(!lost.is_lower_bound);
                assert!(lost.commits.iter().all(|hash| commits[1..].contains(hash)));
                let store = open(&shared, &sim_options()).unwrap();
                assert!(!assert_all_or_none(&source, &store, &commits));
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(exact, 0, "damage may hide a commit");

    // The frame is behind the damage: the head of the frame before.
    let mut units = (0..frame).step_by(8);
    let before = units.rfind(|&at| good[at..].starts_with(b"TMF1")).unwrap();
    let damaged = disk.clone_disk();
    damaged.flip_bit(&chunk, (before as u64 + 4) * 8);
    let lost = repaired(&damaged, Loss::Accepted).unwrap().lost;
    let lost = lost.expect("the frame behind the damage is gone");
    assert_eq!((lost.commit_count, lost.is_lower_bound), (3, true));
    assert_eq!(lost.commits.iter().copied().collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn an_import_has_a_limit_of_elements_over_all_commits() {
    let (source, [base, ..], stream) = small_slice();
    let count = elements(&stream).len() as u64;
    for (limit, is_enough) in [(count - 1, false), (count, true)] {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        drop(import_new(&disk, DIR, SMALL, &export(&source, &[base]).0));
        let index = Arc::new(BtreeIndexes::new(1 << 20));
        let options = Options::new(index).rules(SMALL).import_elements_max(limit);
        let target = open(&disk, &options).unwrap();
        match target.import(&mut &*stream) {
            Ok(_) => assert!(is_enough),
            Err(Error::LimitExceeded { limit: found, .. }) => {
                assert!(!is_enough && found == limit);
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

//! States brought from one store into another: as a stream, and as the nodes that Transact keeps.
//!
//! Goal: what is imported has the root, the values and the nodes of what was exported, counted so
//! that pruning takes them all; whatever is damaged, in the wrong order, or of another root leaves
//! nothing behind. Method: random states, the vectors, and streams put together by hand whose
//! checksums are right.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_kv::Table;
use terrane_kv::conformance::Subject;
use terrane_radix::{
    Address, Change, Committed, Committer, Error, ExchangeError, NodeHash, Options, Prefix, Root,
    Store, TextTree, Tree, VersionId, VersionInfo,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use super::histories::batch;
use super::rules::{State, node_bytes, nodes_of};
use super::{InMemory, fresh, reopened, tree, vectors};

type Nodes = Vec<(NodeHash, Vec<u8>)>;

fn at(bytes: &[u8]) -> Address {
    Address::new(bytes).unwrap()
}

fn export(tree: &Tree, root: &Root) -> Vec<u8> {
    let mut bytes = Vec::new();
    let exported = tree.export(root, &mut bytes).unwrap();
    assert_eq!((exported.root, exported.bytes), (*root, bytes.len() as u64));
    bytes
}

fn values(tree: &Tree, root: &Root) -> State {
    let leaves = tree.leaves(root, &Prefix::EMPTY).unwrap();
    leaves.map(|leaf| leaf.map(|(at, value)| (at.as_bytes().to_vec(), value)).unwrap()).collect()
}

fn commit_all(tree: &Tree, state: &State) -> Root {
    let changes: Vec<Change> = state.iter().map(|(a, v)| Change::Set(at(a), v.clone())).collect();
    tree.commit(&Root::EMPTY, &changes).unwrap().root
}

/// Nothing is there but trees.
fn check_empty(store: &Store) {
    assert_eq!(store.node_count().unwrap(), 1);
    assert_eq!(tree(store).versions().unwrap(), []);
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// The imported state is the one that was exported, and pruning leaves nothing of it.
fn check_imported(store: &Store, committed: &Committed, state: &State) {
    let tree = tree(store);
    let root = &committed.root;
    assert_eq!(values(&tree, root), *state);
    let mut nodes = BTreeSet::new();
    assert_eq!(nodes_of(state, &[], &mut nodes), *root);
    assert_eq!(tree.nodes(root).unwrap(), nodes);
    assert_eq!(committed.version.is_some(), !state.is_empty());
    if !state.is_empty() {
        assert_eq!(committed.added, nodes.len() as u64);
    }

    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    tree.prune(root).unwrap();
    check_empty(store);
}

/// A state of values of all sizes, in which sub-trees recur.
fn state(rng: &mut impl Draw) -> State {
    let mut state = State::new();
    for _ in 0..rng.below(6) {
        state = batch(rng, &state).1;
    }
    if rng.below(3) == 0 {
        for token in 0..40 {
            state.insert(vec![9, token, 1, 2, 3], vec![token % 3; 5_000]);
        }
    }
    state
}

pub(super) fn check(subject: &mut dyn Subject) {
    let sample = if subject.is_persistent() { 1 } else { 3 };
    for_each_seed("radix_exchange", by_effort(sample, 8), |rng, _| {
        let state = state(rng);
        let store = fresh(subject);
        let root = commit_all(&tree(&store), &state);
        let stream = export(&tree(&store), &root);
        let nodes: Nodes = tree(&store).export_nodes(&root).unwrap().map(Result::unwrap).collect();

        // Into memory, out of it again, and back.
        let memory = fresh(&mut InMemory);
        let committed = tree(&memory).import(&stream[..]).unwrap();
        assert_eq!(committed.root, root);
        assert_eq!(export(&tree(&memory), &root), stream);
        check_imported(&memory, &committed, &state);
        drop(store);
        let store = fresh(subject);
        let committed = tree(&store).import(&stream[..]).unwrap();
        let store = reopened(subject, store);
        assert_eq!(export(&tree(&store), &root), stream);
        check_imported(&store, &committed, &state);
        let committed = import_nodes(&tree(&store), &root, &nodes).unwrap();
        let store = reopened(subject, store);
        check_imported(&store, &committed, &state);
    });

    among_other_versions(subject);
    large_values(subject);
}

#[test]
fn exchange_on_memory() {
    check(&mut InMemory);
}

/// States that share nodes with the imported one, before and after it, and the same one twice.
fn among_other_versions(subject: &mut dyn Subject) {
    for_each_seed("radix_exchange_among_other_versions", by_effort(1, 4), |rng, _| {
        let store = fresh(subject);
        let tree = tree(&store);
        let one = state(rng);
        let (_, two) = batch(rng, &one);
        let (changes, three) = batch(rng, &two);
        let memory = fresh(&mut InMemory);
        let root = commit_all(&super::tree(&memory), &two);
        let stream = export(&super::tree(&memory), &root);

        let mut roots = vec![commit_all(&tree, &one)];
        for _ in 0..2 {
            roots.push(tree.import(&stream[..]).unwrap().root);
        }

        roots.push(tree.commit(&root, &changes).unwrap().root);
        assert_eq!(values(&tree, &roots[3]), three);
        assert_eq!(values(&tree, &root), two);
        rng.shuffle(&mut roots);

        for root in roots {
            let report = store.verify().unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            tree.prune(&root).unwrap();
        }

        check_empty(&store);
    });
}

fn large_values(subject: &mut dyn Subject) {
    let mut state = State::new();
    for (token, len) in [0, 1, 64, 65, 65_535, 65_536, 1_048_575, 1_048_576].into_iter().enumerate()
    {
        state.insert(vec![token as u8, 1], vec![token as u8; len]);
        state.insert(vec![token as u8], vec![1; len / 2]);
    }

    let memory = fresh(&mut InMemory);
    let root = commit_all(&tree(&memory), &state);
    let stream = export(&tree(&memory), &root);
    let nodes: Nodes = tree(&memory).export_nodes(&root).unwrap().map(Result::unwrap).collect();
    let store = fresh(subject);
    assert_eq!(tree(&store).import(&stream[..]).unwrap().root, root);
    let store = reopened(subject, store);
    assert_eq!(values(&tree(&store), &root), state);
    tree(&store).prune(&root).unwrap();
    assert_eq!(import_nodes(&tree(&store), &root, &nodes).unwrap().root, root);
    assert_eq!(values(&tree(&store), &root), state);

    assert!(store.verify().unwrap().is_clean());
}

/// More rows than are written together.
#[test]
fn a_state_of_many_rows_is_imported_in_parts_and_as_one_version() {
    for_each_seed("a_state_of_many_rows_is_imported", 1, |rng, _| {
        let state: State = (0..40_000).map(|_| (rng.bytes(4), rng.bytes(16))).collect();
        let one = fresh(&mut InMemory);
        let root = commit_all(&tree(&one), &state);
        let stream = export(&tree(&one), &root);
        let two = fresh(&mut InMemory);
        let committed = tree(&two).import(&stream[..]).unwrap();
        assert_eq!(committed.root, root);
        assert_eq!(committed.added, one.node_count().unwrap() - 1);
        assert_eq!(two.node_count().unwrap(), one.node_count().unwrap());
        let report = two.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(tree(&two).versions().unwrap().len(), 1);
        tree(&two).prune(&root).unwrap();
        check_empty(&two);
    });
}

/// A stream put together by hand, with checksums that are right.
struct Stream(Vec<u8>);

impl Stream {
    fn of(root: &Root) -> Self {
        Self::with(2, "transact", 1, root)
    }

    fn with(version: u32, scheme: &str, kind: u8, root: &Root) -> Self {
        let mut stream = Self(b"TRNRDXEX".to_vec());
        stream.0.extend(version.to_le_bytes());
        stream.0.push(scheme.len() as u8);
        stream.0.extend(scheme.bytes());
        stream.0.push(kind);
        stream.crc().bytes(&root.0).bytes(&[0, 0])
    }

    fn crc(mut self) -> Self {
        let crc = crc32c(&self.0);
        self.0.extend(crc.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn value(self, address: &[u8], value: &[u8]) -> Self {
        let len = (value.len() as u32).to_le_bytes();
        self.bytes(&[address.len() as u8]).bytes(address).bytes(&len).bytes(value)
    }

    fn mark(self) -> Self {
        self.bytes(&[0xff]).crc()
    }

    fn end(self, count: u64) -> Vec<u8> {
        self.bytes(&[0]).bytes(&count.to_le_bytes()).crc().0
    }
}

fn root_of(entries: &[(&[u8], &[u8])]) -> Root {
    let state: State = entries.iter().map(|(a, v)| (a.to_vec(), v.to_vec())).collect();
    nodes_of(&state, &[], &mut BTreeSet::new())
}

#[test]
fn a_stream_has_the_bytes_of_the_format() {
    let big = vec![5; 60_000];
    let more = vec![6; 10_000];
    let entries: [(&[u8], &[u8]); 4] =
        [(&[1], b"x"), (&[1, 2], &big), (&[1, 2, 0], &more), (&[2], b"yy")];
    let root = root_of(&entries);
    let [one, two, three, four] = entries;
    let stream = Stream::of(&root).value(one.0, one.1).value(two.0, two.1);
    let stream = stream.value(three.0, three.1).mark().value(four.0, four.1).end(4);
    let store = fresh(&mut InMemory);
    assert_eq!(tree(&store).import(&stream[..]).unwrap().root, root);
    assert_eq!(export(&tree(&store), &root), stream);
    let empty = Stream::of(&Root::EMPTY).end(0);
    assert_eq!(export(&tree(&store), &Root::EMPTY), empty);
    let committed = Committed { root: Root::EMPTY, version: None, added: 0 };

    assert_eq!(tree(&store).import(&empty[..]).unwrap(), committed);
}

#[test]
fn streams_that_break_a_rule_are_refused_by_name_and_leave_nothing() {
    let store = fresh(&mut InMemory);
    let tree = tree(&store);
    let entries: [(&[u8], &[u8]); 2] = [(&[1], b"x"), (&[2, 3], b"y")];
    let root = root_of(&entries);
    let [one, two] = entries;
    let start = || Stream::of(&root);
    let begun = || start().value(one.0, one.1);
    let right = begun().value(two.0, two.1).end(2);
    let head = start().0.len() as u64;
    let entry = begun().0.len() as u64;

    for (stream, rule, place) in [
        (start().value(two.0, two.1).value(one.0, one.1).end(2), "addresses do not ascend", None),
        (begun().value(one.0, one.1).end(2), "addresses do not ascend", Some(entry + 2)),
        (begun().value(two.0, two.1).end(3), "number of values", None),
        (begun().mark().value(two.0, two.1).end(2), "length of an address", Some(entry + 1)),
        (start().value(&[7; 36], b"x").end(1), "length of an address", Some(head + 1)),
        (start().value(&[7], &vec![0; 65_536]).end(1), "a mark is missing", None),
        (begun().bytes(&[1, 9, 0xff, 0xff, 0xff, 0xff]).0, "a value is too long", None),
        (begun().bytes(&[1, 9, 0, 0, 0, 0x10]).0, "a value is too long", None),
        (begun().bytes(&[1, 9, 0, 0, 0xff, 0x0f]).0, "it is cut short", Some(entry + 6)),
        (begun().0, "it is cut short", Some(entry)),
        (Vec::new(), "it is cut short", Some(0)),
        ([&right[..], &[0]].concat(), "something follows the end", Some(right.len() as u64)),
        (b"TRNMSNAP".to_vec(), "it is no export of a radix state", Some(8)),
    ] {
        match tree.import(&stream[..]) {
            Err(ExchangeError::Damaged { at, rule: found }) => {
                assert_eq!(found, rule);
                assert!(place.is_none_or(|place| place == at), "{rule}: at {at}");
            }
            other => panic!("{rule}: {other:?}"),
        }
        check_empty(&store);
    }

    for (stream, what) in [
        (Stream::with(1, "transact", 1, &root).end(0), "version"),
        (Stream::with(2, "strict", 1, &root).end(0), "scheme"),
        (Stream::with(2, "transact", 2, &root).end(0), "content"),
    ] {
        match tree.import(&stream[..]) {
            Err(ExchangeError::Unsupported { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{what}: {other:?}"),
        }
    }

    // Whole streams of other values than the root is of.
    for stream in [begun().end(1), begun().value(two.0, b"z").end(2), start().end(0)] {
        match tree.import(&stream[..]) {
            Err(ExchangeError::WrongRoot { expected, found }) => {
                assert_eq!(expected, root);
                assert_ne!(found, root);
            }
            other => panic!("{other:?}"),
        }
        check_empty(&store);
    }

    // A stream that fails.
    let failing = io::Read::chain(&right[..60], Failing);
    match tree.import(failing) {
        Err(ExchangeError::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }

    check_empty(&store);
    assert_eq!(tree.import(&right[..]).unwrap().root, root);
    match tree.export(&root, Failing) {
        Err(ExchangeError::Io { at: 0, source }) => {
            assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        }
        other => panic!("{other:?}"),
    }
}

struct Failing;

impl io::Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl io::Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::TimedOut.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_altered_byte_and_every_length_of_a_stream_is_refused() {
    let mut state = State::new();
    for token in 0..30 {
        state.insert(vec![token % 5, token], vec![token; usize::from(token)]);
        state.insert(vec![token % 5, token, 7, 7], b"same".to_vec());
    }

    let source = fresh(&mut InMemory);
    let root = commit_all(&tree(&source), &state);
    let stream = export(&tree(&source), &root);
    let store = fresh(&mut InMemory);
    let tree = tree(&store);
    refuses_damage(&stream, |stream| tree.import(stream).map(drop), |_| false);
    check_empty(&store);

    assert_eq!(tree.import(&stream[..]).unwrap().root, root);
}

/// No altered bit and no shorter stream is taken; `is_other` says which errors there may be besides
/// those of damage.
fn refuses_damage(
    stream: &[u8],
    import: impl Fn(&[u8]) -> Result<(), ExchangeError>,
    is_other: impl Fn(&ExchangeError) -> bool,
) {
    for at in 0..stream.len() {
        for bit in 0..8 {
            let mut altered = stream.to_vec();
            altered[at] ^= 1 << bit;
            let error = import(&altered).unwrap_err();
            let is_typed = match &error {
                // A length that grew is noticed where the stream ends.
                ExchangeError::Damaged { at: found, .. } => *found >= at as u64,
                ExchangeError::Unsupported { .. } => at < 12,
                other => is_other(other),
            };
            assert!(is_typed, "byte {at}, bit {bit}: {error}");
        }

        match import(&stream[..at]) {
            Err(ExchangeError::Damaged { at: found, rule: "it is cut short" }) => {
                assert_eq!(found, at as u64);
            }
            other => panic!("cut to {at}: {other:?}"),
        }
    }
}

/// The metadata of the version was left behind, and so were all versions but one.
#[test]
fn all_versions_of_a_tree_are_taken_over_with_their_metadata() {
    for_each_seed("all_versions_of_a_tree_are_taken_over", by_effort(3, 6), |rng, _| {
        let store = fresh(&mut InMemory);
        let tree = tree(&store);
        let mut states = vec![(Root::EMPTY, State::new())];
        for number in 0..=rng.below(25) {
            let (parent, before) = states[rng.below(states.len() as u64) as usize].clone();
            let (changes, after) = match rng.below(6) {
                0 if !before.is_empty() => {
                    let (address, value) = before.first_key_value().unwrap();
                    (vec![Change::Set(at(address), value.clone())], before.clone())
                }
                1 => (vec![Change::Set(at(&[3]), vec![4; 70_000])], {
                    let mut after = before.clone();
                    after.insert(vec![3], vec![4; 70_000]);
                    after
                }),
                _ => batch(rng, &before),
            };

            let metadata = vec![number as u8; rng.below(5) as usize];
            let committed = tree.commit_with(&parent, &changes, &metadata).unwrap();
            if committed.version.is_some() {
                states.push((committed.root, after));
            }
        }

        // Some are gone, so that others have new parents.
        let versions = tree.versions().unwrap();
        for version in &versions {
            if rng.below(3) == 0 {
                tree.prune(&version.root).unwrap();
            }
        }

        let mut stream = Vec::new();
        let exported = tree.export_all(&mut stream).unwrap();
        let expected = tree.versions().unwrap();
        assert_eq!(exported.versions, expected.len() as u64);
        assert_eq!(exported.bytes, stream.len() as u64);

        let other = fresh(&mut InMemory);
        // Numbers are others there.
        let before = commit_all(&super::tree(&other), &State::from([(vec![1], vec![2])]));
        super::tree(&other).prune(&before).unwrap();
        let taken = super::tree(&other);
        let committed = taken.import_all(&stream[..]).unwrap();
        let found = taken.versions().unwrap();
        assert_eq!(found.len(), expected.len());
        let place = |versions: &[VersionInfo], id: VersionId| {
            versions.iter().position(|version| version.id == id).unwrap()
        };

        for ((found_one, expected_one), made) in found.iter().zip(&expected).zip(&committed) {
            assert_eq!(Some(found_one.id), made.version);
            assert_eq!((found_one.root, &found_one.metadata), (made.root, &expected_one.metadata));
            assert_eq!(found_one.root, expected_one.root);
            let parents = [(found_one.parent, &found), (expected_one.parent, &expected)]
                .map(|(parent, versions)| parent.map(|parent| place(versions, parent)));
            assert_eq!(parents[0], parents[1]);
            let state = states.iter().find(|(root, _)| *root == found_one.root).unwrap();
            assert_eq!(values(&taken, &found_one.root), state.1);
        }

        let report = other.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        let mut again = Vec::new();
        taken.export_all(&mut again).unwrap();
        assert_eq!(again, stream);

        for version in found {
            taken.prune(&version.root).unwrap();
        }

        check_empty(&other);
    });
}

#[test]
fn a_stream_of_all_versions_that_breaks_a_rule_is_refused_and_leaves_nothing() {
    let source = fresh(&mut InMemory);
    let from = tree(&source);
    let set = |address: &[u8], value: &[u8]| Change::Set(at(address), value.to_vec());
    let first = [set(&[1], b"one"), set(&[1, 2], &[7; 70])];
    let first = from.commit_with(&Root::EMPTY, &first, b"height 1").unwrap().root;
    let second = [Change::Delete(at(&[1])), set(&[2], b"two")];
    from.commit_with(&first, &second, b"height 2").unwrap();
    from.commit_with(&first, &[set(&[1], b"one")], b"again").unwrap();
    let mut stream = Vec::new();
    let exported = from.export_all(&mut stream).unwrap();
    assert_eq!((exported.versions, exported.changes), (3, 4));
    let store = fresh(&mut InMemory);
    let tree = tree(&store);
    let is_other = |error: &ExchangeError| match error {
        // Other changes, or another parent, before the next checksum.
        ExchangeError::WrongRoot { .. } => true,
        ExchangeError::Store(error) => matches!(**error, Error::AddressNotFound { .. }),
        _ => false,
    };

    refuses_damage(&stream, |stream| tree.import_all(stream).map(drop), is_other);
    check_empty(&store);
    match tree.import(&stream[..]) {
        Err(ExchangeError::Unsupported { what: "content", .. }) => {}
        other => panic!("{other:?}"),
    }

    assert_eq!(tree.import_all(&stream[..]).unwrap().len(), 3);
    let one = export(&from, &first);
    assert_eq!(tree.import_all(&one[..]).unwrap()[0].root, first);
}

/// The metadata comes with one version, too; and a stream whose head is slow or wrong keeps nobody
/// from committing.
#[test]
fn metadata_is_imported_and_the_writer_is_free_until_the_head_has_come() {
    struct Committing<'a>(&'a Tree, &'a [u8], usize);

    impl io::Read for Committing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.2 > 0 {
                self.2 -= 1;
                let changes = [Change::Set(at(&[5]), b"meanwhile".to_vec())];
                self.0.commit(&Root::EMPTY, &changes).unwrap();
            }
            let count = self.1.len().min(buffer.len()).min(1);
            buffer[..count].copy_from_slice(&self.1[..count]);
            self.1 = &self.1[count..];
            Ok(count)
        }
    }

    let one = tree(&fresh(&mut InMemory));
    let changes = [Change::Set(at(&[1]), b"value".to_vec())];
    let root = one.commit_with(&Root::EMPTY, &changes, b"height 7").unwrap().root;
    let stream = export(&one, &root);
    let two = tree(&fresh(&mut InMemory));
    two.import(Committing(&two, &stream, 20)).unwrap();
    let versions = two.versions().unwrap();
    assert_eq!(versions.len(), 21);
    let last = versions.last().unwrap();

    assert_eq!((last.root, last.metadata.as_slice()), (root, &b"height 7"[..]));
}

fn entries(nodes: &Nodes) -> impl Iterator<Item = io::Result<(String, Vec<u8>)>> {
    nodes.iter().map(|(hash, bytes)| Ok((hash.to_string(), bytes.clone())))
}

fn import_nodes(tree: &Tree, root: &Root, nodes: &Nodes) -> Result<Committed, ExchangeError> {
    tree.import_nodes(root, entries(nodes), 1_000_000)
}

/// All nodes in their order, from the rules: a node, then what is below each child; each once.
fn rendered(state: &State, path: &[u8], out: &mut Nodes) -> NodeHash {
    let mut tokens = BTreeSet::new();
    for address in state.keys().filter(|address| address.starts_with(path)) {
        tokens.extend(address.get(path.len()).copied());
    }

    let below = |token: &u8| [path, &[*token]].concat();
    let children: Vec<(u8, NodeHash)> = tokens
        .iter()
        .map(|token| (*token, nodes_of(state, &below(token), &mut BTreeSet::new())))
        .collect();
    let hash = nodes_of(state, path, &mut BTreeSet::new());
    if !out.iter().any(|(known, _)| *known == hash) {
        out.push((hash, node_bytes(&children, state.get(path).map(Vec::as_slice))));
    }

    for token in &tokens {
        rendered(state, &below(token), out);
    }

    hash
}

#[test]
fn nodes_come_in_their_order_with_the_bytes_of_the_rules() {
    for_each_seed("nodes_come_in_their_order_with_the_bytes_of_the_rules", 6, |rng, _| {
        let mut state = State::new();
        for _ in 0..rng.below(4) {
            state = batch(rng, &state).1;
        }
        let tree = tree(&fresh(&mut InMemory));
        let root = commit_all(&tree, &state);
        let found: Nodes = tree.export_nodes(&root).unwrap().map(Result::unwrap).collect();
        let mut expected = Nodes::new();
        assert_eq!(rendered(&state, &[], &mut expected), root);
        assert_eq!(found, expected);
    });
}

/// The trees of the vectors, whose node sets are Transact's, as nodes and as streams.
#[test]
fn the_trees_of_the_vectors_are_taken_over_from_nodes() {
    let mut count = 0;
    for vector in vectors::vectors() {
        for step in vectors::steps(&vector) {
            let store = fresh(&mut InMemory);
            let source = TextTree(tree(&store));
            let init = Root::EMPTY.to_string();
            let is_first = step["from"] == "@init" && step["op"] == "commit";
            if !is_first || step.get("error").is_some() {
                continue;
            }

            let root = source.commit(&init, &vectors::changes(&step)).unwrap();
            let root: Root = root.parse().unwrap();
            let nodes: Nodes = source.0.export_nodes(&root).unwrap().map(Result::unwrap).collect();

            if let Some(new) = vector.get("new_nodes") {
                let expected: BTreeSet<&str> =
                    new.as_array().unwrap().iter().map(vectors::text).collect();
                let found: Vec<String> = nodes.iter().map(|(hash, _)| hash.to_string()).collect();
                assert_eq!(found.len(), expected.len());
                assert!(found.iter().all(|hash| expected.contains(hash.as_str())));
            }

            let mut shuffled = nodes.clone();
            shuffled.reverse();
            let other = fresh(&mut InMemory);
            assert_eq!(import_nodes(&tree(&other), &root, &shuffled).unwrap().root, root);
            assert_eq!(values(&tree(&other), &root), values(&source.0, &root));
            let by_hash: BTreeMap<NodeHash, Vec<u8>> = nodes.into_iter().collect();
            let third = fresh(&mut InMemory);
            let lookup = |hash: &NodeHash| Ok(by_hash.get(hash).cloned());
            let committed = tree(&third).import_nodes_by(&root, lookup, 1_000_000).unwrap();
            assert_eq!(committed.root, root);
            assert!(third.verify().unwrap().is_clean());
            let stream = export(&tree(&third), &root);
            assert_eq!(export(&source.0, &root), stream);
            count += 1;
        }
    }

    assert!(count > 20, "{count} trees");
}

#[test]
fn nodes_that_are_missing_damaged_or_too_many_are_refused_and_leave_nothing() {
    let mut state = State::new();
    for (address, value) in
        [(&[1, 2, 3][..], "a"), (&[1, 2, 4], "a"), (&[1, 2], "b"), (&[9; 35], "c")]
    {
        state.insert(address.to_vec(), value.into());
    }

    let source = fresh(&mut InMemory);
    let root = commit_all(&tree(&source), &state);
    let nodes: Nodes = tree(&source).export_nodes(&root).unwrap().map(Result::unwrap).collect();
    let store = fresh(&mut InMemory);
    let tree = tree(&store);

    for at in 0..nodes.len() {
        let mut fewer = nodes.clone();
        let (gone, bytes) = fewer.remove(at);
        match import_nodes(&tree, &root, &fewer) {
            Err(ExchangeError::MissingNode { node, .. }) => assert_eq!(node, gone),
            other => panic!("{other:?}"),
        }

        for index in 0..bytes.len() {
            let mut altered = nodes.clone();
            altered[at].1[index] ^= 1;
            match import_nodes(&tree, &root, &altered) {
                Err(ExchangeError::BrokenNode { node, .. }) => assert_eq!(node, gone),
                other => panic!("{other:?}"),
            }
        }
    }

    let refused = |hash: &str, bytes: &[u8]| {
        let entry = Ok((hash.to_owned(), bytes.to_vec()));
        tree.import_nodes(&root, entries(&nodes).chain([entry]), 9).is_err()
    };
    assert!(refused(&root.to_string().to_uppercase(), &nodes[0].1));
    assert!(refused(&root.to_string()[..62], &nodes[0].1));

    // A length in another form than Transact's, and nodes that no state has, under their true
    // hashes.
    let mut minimal = vec![0xa2, 0x61, b'c', 0xa0, 0x61, b'v', 0x5a, 0, 1, 0, 0];
    minimal.resize(minimal.len() + 65_536, 7);
    assert!(refused(&hash_of(&minimal).to_string(), &minimal));

    for node in [node_bytes(&[], Some(&[1])), node_bytes(&[(1, NodeHash::EMPTY)], None)] {
        let empty = (NodeHash::EMPTY, node_bytes(&[], None));
        let root = hash_of(&node);
        match import_nodes(&tree, &root, &vec![(root, node), empty]) {
            Err(ExchangeError::BrokenNode { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    match tree.import_nodes(&root, entries(&nodes), 3) {
        Err(ExchangeError::TooManyValues { max: 3 }) => {}
        other => panic!("{other:?}"),
    }

    // 36 nodes that stand for 256 to the power of 35 values; and one level more.
    let mut bomb: Nodes = Vec::new();
    let mut node = node_bytes(&[], Some(&[1]));
    for _ in 0..=36 {
        let hash = hash_of(&node);
        bomb.push((hash, node));
        node = node_bytes(&(0..=255).map(|token| (token, hash)).collect::<Vec<_>>(), None);
    }

    match import_nodes(&tree, &bomb[35].0.clone(), &bomb) {
        Err(ExchangeError::TooManyValues { .. }) => {}
        other => panic!("{other:?}"),
    }

    match import_nodes(&tree, &bomb[36].0.clone(), &bomb) {
        Err(ExchangeError::BrokenNode { rule, .. }) => assert!(rule.contains("too long"), "{rule}"),
        other => panic!("{other:?}"),
    }

    check_empty(&store);
    let nothing = tree.import_nodes(&Root::EMPTY, entries(&Vec::new()), 0).unwrap();
    assert_eq!((nothing.root, nothing.version), (Root::EMPTY, None));
    assert_eq!(import_nodes(&tree, &root, &nodes).unwrap().root, root);
}

/// A row that is gone: whatever needs it says so, and ends.
#[test]
fn a_missing_row_is_named_by_all_that_reads_it() {
    let mut state = State::new();
    for token in 0..6 {
        for low in 0..6 {
            state.insert(vec![token, low, 1, 1], vec![token ^ low; 70 + usize::from(low)]);
        }
    }

    let store = fresh(&mut InMemory);
    let root = commit_all(&tree(&store), &state);
    let database = Arc::clone(store.database());
    let mut keys = Vec::new();
    {
        let reader = database.reader().unwrap();
        let mut cursor = reader.cursor(Table::Main).unwrap();
        while let Some((key, row)) = cursor.next().unwrap() {
            keys.push((key, row));
        }
    }

    assert!(keys.len() > 10);
    let addresses: Vec<Address> = state.keys().map(|address| at(address)).collect();
    for (key, row) in keys {
        let change = |row: Option<&[u8]>| {
            let mut writer = database.writer().unwrap();
            match row {
                Some(row) => writer.overwrite(Table::Main, &key, row).unwrap(),
                None => writer.remove(Table::Main, &key).unwrap(),
            }
            writer.commit().unwrap();
        };

        change(None);
        let options = Options::default().cache_bytes(0).threads(1);
        let damaged = Store::open(Arc::clone(&database), &options).unwrap();
        let tree = tree(&damaged);
        let is_corruption = |error: &Error| matches!(error, Error::Corruption { .. });
        assert!(is_corruption(&tree.prove(&root, &addresses).unwrap_err()));
        match tree.export(&root, io::sink()) {
            Err(ExchangeError::Store(error)) => assert!(is_corruption(&error)),
            other => panic!("{other:?}"),
        }

        let nodes: Vec<_> = tree.export_nodes(&root).unwrap().collect();
        assert!(is_corruption(nodes.last().unwrap().as_ref().unwrap_err()));
        for (from, to) in [(Root::EMPTY, root), (root, Root::EMPTY)] {
            let found: Vec<_> = tree.diff(&from, &to).unwrap().collect();
            assert!(is_corruption(found.last().unwrap().as_ref().unwrap_err()));
            assert_eq!(found.iter().filter(|found| found.is_err()).count(), 1);
        }

        change(Some(&row));
    }
}

fn hash_of(bytes: &[u8]) -> NodeHash {
    use sha2::Digest;
    NodeHash(sha2::Sha512::digest(bytes)[..32].try_into().unwrap())
}

//! Traces that are made here, replayed into stores in memory.
//!
//! Goal: every event is executed and every recorded answer compared; what the trace says wrong, or
//! leaves out, is told with its place. Method: a scene records what it does to a store, with the
//! answers and hashes of that store, and is replayed into another one; then single answers and
//! events are changed.

use std::path::Path;
use std::sync::Arc;

use terrane::backends::BtreeIndexes;
use terrane::io::{Disk, MemoryDisk};
use terrane_testkit::RngCore;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use super::*;
use crate::engines::context::StepsBuf;
use crate::error::Class;
use crate::monitor::Silent;
use crate::traces::container::KeyBuf;
use crate::traces::container::replayable::{Header, Recorder, Statistics};

const PROTOCOL: [u8; 32] = [7; 32];
const CHAIN: [u8; 4] = [1, 2, 3, 4];

/// A store in memory.
fn empty_store() -> Store {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = store::Options::new(Arc::new(BtreeIndexes::default()));
    Store::create(disk, Path::new("/store"), &options).unwrap()
}

fn keep<T>(value: T) -> Scoped<T> {
    Scoped { is_last: false, value }
}

fn last<T>(value: T) -> Scoped<T> {
    Scoped { is_last: true, value }
}

fn key(path: &str) -> KeyBuf {
    KeyBuf::new(path.split('/').filter(|step| !step.is_empty()).map(str::as_bytes))
}

fn path(text: &str) -> Vec<&str> {
    text.split('/').filter(|step| !step.is_empty()).collect()
}

/// A trace of blocks of these events, at levels from 100 on, of 3 transactions each.
fn trace(blocks: &[Vec<Event<'_>>]) -> Vec<u8> {
    let header = Header { initial: None, last: (0, Vec::new()), block_count: blocks.len() as u64 };
    let mut recorder = Recorder::new(Vec::new(), &header).unwrap();
    for (level, events) in (100..).zip(blocks) {
        for event in events {
            recorder.event(event);
        }
        let statistics = Statistics { level, tzop_count_tx: 3, ..Statistics::default() };
        recorder.end_block(&statistics, false).unwrap();
    }
    recorder.finish().unwrap()
}

fn run_on(store: &Store, trace: &[u8]) -> Result<Report> {
    replay(trace, store, &Options::default(), &mut Silent)
}

fn run(blocks: &[Vec<Event<'_>>]) -> Result<Report> {
    run_on(&empty_store(), &trace(blocks))
}

/// The first commit of a chain, in which the protocol has put a value.
fn genesis() -> (Vec<u8>, TezosContext) {
    let store = empty_store();
    let patch = |context: &mut TezosContext| context.add(&["a", "b"], *b"1").map(drop);
    let hash = store.commit_genesis(ChainId(CHAIN), 9, &PROTOCOL, patch).unwrap();
    let context = store.checkout_tezos(&hash).unwrap().unwrap();
    (hash.to_base58().into_bytes(), context)
}

fn genesis_block<'a>(hash: &'a [u8], a_b: &'a KeyBuf, context: u64) -> Vec<Event<'a>> {
    vec![
        Event::Init { is_readonly: false },
        Event::CommitGenesisStart { chain: &CHAIN, time: 9, protocol: &PROTOCOL },
        Event::PatchContextEnter { context: keep(context) },
        Event::Add { context: last(context), key: a_b.key(), value: b"1", to: keep(context + 1) },
        Event::PatchContextExit { from: last(context), to: last(context + 1) },
        Event::CommitGenesisEnd { commit: MadeCommit { is_first: true, hash: keep(hash) } },
    ]
}

fn used(hash: &[u8]) -> UsedCommit<'_> {
    UsedCommit { is_instantiated: true, hash: keep(hash) }
}

fn made(hash: &[u8]) -> MadeCommit<'_> {
    MadeCommit { is_first: true, hash: keep(hash) }
}

#[test]
fn a_chain_is_begun_patched_and_gone_on_with() {
    let (first, mut context) = genesis();
    let store = empty_store();
    context.set_predecessor_block_metadata_hash(&[5; 32]).unwrap();
    context.set_predecessor_ops_metadata_hash(&[6; 32]).unwrap();
    let fork = TestChain::Forking { protocol: PROTOCOL, expiration: 77 };
    context.set_test_chain(fork).unwrap();

    let second = {
        let hash = store.hash_tezos(&context, 10, "m").to_base58();
        hash.into_bytes()
    };

    let a_b = key("a/b");

    // Hashes of the chain are raw or texts.
    let protocol = base58::encode_check(&[&[2, 170], PROTOCOL.as_slice()].concat()).into_bytes();
    let chain = base58::encode_check(&[&[87, 82, 0], CHAIN.as_slice()].concat()).into_bytes();
    let mut blocks = vec![
        genesis_block(&first, &a_b, 1),
        vec![
            Event::Exists { commit: used(&first), answer: true },
            Event::Exists { commit: used(&[3; 32]), answer: false },
            Event::Checkout { commit: used(&first), to: keep(1) },
            Event::GetProtocol { context: keep(1) },
            Event::GetTestChain { context: keep(1) },
            Event::FindPredecessorBlock { context: keep(1) },
            Event::AddPredecessorBlock { context: last(1), hash: &[5; 32], to: keep(2) },
            Event::AddPredecessorOps { context: last(2), hash: &[6; 32], to: keep(3) },
            Event::FindPredecessorOps { context: keep(3) },
            Event::AddProtocol { context: keep(3), hash: &[9; 32], to: last(4) },
            Event::AddProtocol { context: last(3), hash: &protocol, to: keep(5) },
            Event::RemoveTestChain { context: keep(5), to: keep(6) },
            Event::AddTestChain { context: last(6), status: Status::NotRunning, to: keep(7) },
            Event::ForkTestChain { context: last(7), protocol: &protocol, time: 77, to: keep(8) },
            Event::Hash { time: 10, message: None, context: keep(8) },
            Event::Commit {
                time: 10,
                message: Some(b"m"),
                context: last(8),
                commit: made(&second),
            },
            Event::ClearTestChain { chain: &chain },
            Event::Split,
            Event::Gc { commit: used(&second) },
        ],
    ];

    let target = empty_store();
    let report = run_on(&target, &trace(&blocks)).unwrap();
    assert_eq!(report.last_commit.unwrap().to_string().into_bytes(), second);
    assert_eq!((report.counts.commits, report.transactions), (2, Some(6)));

    // Two hashes, and two questions for commits.
    assert_eq!(report.checks_passed, 4);
    assert_eq!((report.blocks.report().ops, report.collections.report().ops), (2, 1));
    assert_eq!(target.head(ChainId(CHAIN)), None);
    assert!(!target.exists(&first_hash(&first)).unwrap(), "it was collected");

    // A running test chain is another status.
    let running =
        Status::Running { chain: &CHAIN, genesis: &[1; 32], protocol: &PROTOCOL, expiration: 77 };
    blocks[1][12] = Event::AddTestChain { context: last(6), status: running, to: keep(7) };
    run(&blocks).unwrap();
    blocks[1][13] = Event::AddTestChain { context: last(7), status: running, to: keep(8) };

    match run(&blocks) {
        Err(error @ Error::HashMismatch { .. }) => {
            assert!(error.to_string().starts_with("block 1 (level 101), event 15: commit Co"));
            assert_eq!(error.class(), Class::Check);
        }
        other => panic!("{other:?}"),
    }

    // If hashes are ignored, the trace's name stands for the commit that was made.
    let options = Options { ignores_hashes: true, ..Options::default() };
    let report = replay(trace(&blocks).as_slice(), &empty_store(), &options, &mut Silent).unwrap();
    assert_ne!(report.last_commit.unwrap().to_string().into_bytes(), second);
}

fn first_hash(text: &[u8]) -> Hash {
    str::from_utf8(text).unwrap().parse().unwrap()
}

/// All operations on trees, after the first commit; each with its right answer.
fn tree_events(keys: &[KeyBuf; 4]) -> Vec<Event<'_>> {
    let [root, a, b, a_b] = keys;
    let tree = |operation| Event::Tree(operation);

    // A directory with `s` = "v" and an empty one, which is not kept.
    let raw = RawTree::decoded(&[1, 2, 1, b's', 0, 1, b'v', 1, b't', 1, 0]);

    vec![
        Event::Mem { context: keep(1), key: a_b.key(), answer: true },
        Event::Mem { context: keep(1), key: a.key(), answer: false },
        Event::MemTree { context: keep(1), key: a.key(), answer: true },
        Event::Find { context: keep(1), key: b.key(), found: false },
        Event::FindTree { context: keep(1), key: b.key(), to: None },
        Event::FindTree { context: keep(1), key: a.key(), to: Some(keep(1)) },
        tree(TreeOperation::Mem { tree: keep(1), key: b.key(), answer: true }),
        tree(TreeOperation::MemTree { tree: keep(1), key: a.key(), answer: false }),
        tree(TreeOperation::Find { tree: keep(1), key: b.key(), found: true }),
        tree(TreeOperation::FindTree { tree: keep(1), key: b.key(), to: Some(keep(2)) }),
        tree(TreeOperation::FindTree { tree: keep(1), key: a.key(), to: None }),
        tree(TreeOperation::IsEmpty { tree: keep(1), answer: false }),
        tree(TreeOperation::Kind { tree: keep(1), kind: TreeKind::Directory }),
        tree(TreeOperation::Kind { tree: keep(2), kind: TreeKind::Value }),
        tree(TreeOperation::ToValue { tree: keep(2), found: true }),
        tree(TreeOperation::ToValue { tree: keep(1), found: false }),
        tree(TreeOperation::Hash { tree: keep(1), hash: () }),
        tree(TreeOperation::OfValue { context: keep(1), value: b"1", to: keep(3) }),
        tree(TreeOperation::Equal { left: keep(2), right: keep(3), answer: true }),
        tree(TreeOperation::Equal { left: keep(1), right: last(3), answer: false }),
        tree(TreeOperation::Equal { left: last(2), right: last(2), answer: true }),
        tree(TreeOperation::Empty { context: keep(1), to: keep(4) }),
        tree(TreeOperation::IsEmpty { tree: keep(4), answer: true }),
        tree(TreeOperation::Add { tree: keep(4), key: a_b.key(), value: b"x", to: keep(5) }),
        tree(TreeOperation::AddTree { tree: keep(5), key: b.key(), child: keep(1), to: keep(6) }),
        tree(TreeOperation::Remove { tree: last(6), key: a.key(), to: keep(7) }),
        tree(TreeOperation::MemTree { tree: keep(7), key: a.key(), answer: false }),
        tree(TreeOperation::Clear { depth: Some(1), tree: keep(7) }),
        tree(TreeOperation::OfRaw { raw, to: keep(8) }),
        Event::AddTree { context: keep(1), key: b.key(), tree: last(7), to: keep(2) },
        Event::AddTree { context: last(2), key: a_b.key(), tree: last(8), to: keep(3) },
        Event::Remove { context: keep(3), key: a.key(), to: last(4) },
        Event::MemTree { context: keep(3), key: root.key(), answer: true },
    ]
}

impl RawTree<'static> {
    /// The tree that these bytes code.
    fn decoded(bytes: &'static [u8]) -> Self {
        crate::traces::container::tests::raw_tree(bytes)
    }
}

fn keys() -> [KeyBuf; 4] {
    [key(""), key("a"), key("b"), key("a/b")]
}

#[test]
fn operations_on_trees_are_executed_and_every_wrong_answer_is_found() {
    use TreeOperation as Op;
    let (first, mut context) = genesis();
    let hash = {
        let mut tree = context.context().tree().empty();
        tree.add(&path("b"), *b"1").unwrap();
        let mut around = tree.empty();
        around.add_tree(&path("b"), &tree).unwrap();
        context.add_tree(&path("b"), &around).unwrap();
        context.add(&path("a/b/s"), *b"v").unwrap();
        empty_store().hash_tezos(&context, 11, "").to_base58().into_bytes()
    };

    let keys = keys();
    let a_b = key("a/b");
    let mut block = vec![Event::Checkout { commit: used(&first), to: keep(1) }];
    block.extend(tree_events(&keys));
    let commit = Event::Commit { time: 11, message: None, context: last(3), commit: made(&hash) };
    block.push(commit);
    let mut blocks = vec![genesis_block(&first, &a_b, 1), block];
    let report = run(&blocks).unwrap();

    assert_eq!(report.last_commit.unwrap().to_string().into_bytes(), hash);
    let counts = report.counts;
    assert_eq!((counts.mems, counts.mem_trees, counts.finds), (3, 4, 2));
    assert_eq!((counts.find_trees, counts.add_trees, counts.removes), (4, 3, 2));

    let mut wrong = 0;
    for at in 0..blocks[1].len() {
        let right = blocks[1][at];
        blocks[1][at] = match right {
            Event::Mem { context, key, answer } => Event::Mem { context, key, answer: !answer },
            Event::MemTree { context, key, answer } => {
                Event::MemTree { context, key, answer: !answer }
            }
            Event::Find { context, key, found } => Event::Find { context, key, found: !found },
            Event::FindTree { context, key, to } => {
                Event::FindTree { context, key, to: to.xor(Some(last(99))) }
            }
            Event::Tree(operation) => Event::Tree(match operation {
                Op::Mem { tree, key, answer } => Op::Mem { tree, key, answer: !answer },
                Op::MemTree { tree, key, answer } => Op::MemTree { tree, key, answer: !answer },
                Op::Find { tree, key, found } => Op::Find { tree, key, found: !found },
                Op::FindTree { tree, key, to } => {
                    Op::FindTree { tree, key, to: to.xor(Some(last(99))) }
                }
                Op::IsEmpty { tree, answer } => Op::IsEmpty { tree, answer: !answer },
                Op::Kind { tree, kind: TreeKind::Value } => {
                    Op::Kind { tree, kind: TreeKind::Directory }
                }
                Op::Kind { tree, .. } => Op::Kind { tree, kind: TreeKind::Value },
                Op::Equal { left, right, answer } => Op::Equal { left, right, answer: !answer },
                Op::ToValue { tree, found } => Op::ToValue { tree, found: !found },
                _ => continue,
            }),
            _ => continue,
        };

        match run(&blocks) {
            Err(error @ Error::ResultMismatch { place, .. }) => {
                assert_eq!(place, EventPlace { block: 1, level: Some(101), event: at as u64 });
                assert_eq!(error.class(), Class::Check);
            }
            other => panic!("{right:?}: {other:?}"),
        }

        blocks[1][at] = right;
        wrong += 1;
    }

    assert_eq!(wrong, 22);
}

/// Folds over `a/b` = 1, with a fold in the visits of another one.
fn folds(keys: &[KeyBuf; 4]) -> Vec<Event<'_>> {
    let [root, _, b, a_b] = keys;
    let eq = |depth| Some(Depth { kind: DepthKind::Eq, depth });
    let fold = |depth, of, key| Fold { depth, order: Order::Sorted, of, key };
    let visit =
        |tree| [Event::FoldEnter { tree: last(tree) }, Event::FoldExit { tree: last(tree) }];
    let mut events = vec![Event::FoldStart(fold(None, keep(1), root.key()))];

    // The root, with a fold of its tree in it, then `a`, with a question.
    events.extend([
        Event::FoldEnter { tree: keep(1) },
        Event::Tree(TreeOperation::FoldStart(fold(eq(2), keep(1), root.key()))),
        Event::Tree(TreeOperation::FoldEnter { tree: keep(2) }),
        Event::Tree(TreeOperation::ToValue { tree: keep(2), found: true }),
        Event::Tree(TreeOperation::FoldExit { tree: last(2) }),
        Event::Tree(TreeOperation::FoldEnd { count: 1 }),
        Event::FoldExit { tree: last(1) },
        Event::FoldEnter { tree: keep(3) },
        Event::Tree(TreeOperation::Mem { tree: keep(3), key: b.key(), answer: true }),
        Event::FoldExit { tree: last(3) },
    ]);

    events.extend(visit(4));
    events.push(Event::FoldEnd);

    // A fold over a value, or over an absent path, visits nothing.
    for at in [a_b, b] {
        events.extend([Event::FoldStart(fold(None, keep(1), at.key())), Event::FoldEnd]);
    }

    for (kind, visits) in [
        (DepthKind::Eq, 1),
        (DepthKind::Ge, 2),
        (DepthKind::Gt, 1),
        (DepthKind::Le, 2),
        (DepthKind::Lt, 1),
    ] {
        let depth = Some(Depth { kind, depth: 1 });
        events.push(Event::FoldStart(fold(depth, keep(1), root.key())));
        (0..visits).for_each(|_| events.extend(visit(9)));
        events.push(Event::FoldEnd);
    }

    events
}

/// Returns the error of a replay after a change of its second block.
fn failing<'a>(blocks: &[Vec<Event<'a>>; 2], change: impl FnOnce(&mut Vec<Event<'a>>)) -> Error {
    let mut blocks = blocks.clone();
    change(&mut blocks[1]);
    run(&blocks).unwrap_err()
}

#[test]
fn folds_nest_and_visit_what_was_recorded() {
    let (first, _) = genesis();
    let keys = keys();
    let a_b = key("a/b");
    let mut block = vec![Event::Checkout { commit: used(&first), to: keep(1) }];
    block.extend(folds(&keys));
    let blocks = [genesis_block(&first, &a_b, 1), block];
    let report = run(&blocks).unwrap();

    // Nine folds and two questions, and the hash.
    assert_eq!((report.counts.folds, report.checks_passed), (9, 12));

    // The last visit of the outer fold is left out, or there is one more.
    let error = failing(&blocks, |block| drop(block.drain(12..14)));
    assert!(matches!(error, Error::FoldMismatch { is_more: true, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "block 1 (level 101), event 12: a fold visits more than the recorded fold"
    );

    let error = failing(&blocks, |block| {
        let visit = [block[12], block[13]];
        block.splice(14..14, visit);
    });

    assert!(matches!(error, Error::FoldMismatch { is_more: false, .. }), "{error}");
    assert_eq!(error.class(), Class::Check);
    let error = failing(&blocks, |block| block.truncate(6));
    assert_eq!(error.to_string(), "block 1 (level 101), event 6: the block ends in a fold");
    assert_eq!(error.class(), Class::Input);

    // An event outside of a visit, where only events of the fold may stand; inside of a visit it
    // may stand.
    for at in [2, 4, 7, 12, 14] {
        let error = failing(&blocks, |block| block.insert(at, Event::Split));
        assert!(error.to_string().contains("outside of a visit"), "{at}: {error}");
    }

    let mut longer = blocks.clone();
    longer[1].insert(8, Event::Split);
    run(&longer).unwrap();

    for event in [Event::FoldEnd, blocks[1][2], blocks[1][4]] {
        let error = failing(&blocks, |block| block.push(event));
        assert!(error.to_string().contains("outside of one"), "{error}");
    }
}

#[test]
fn folds_that_nest_without_end_are_refused() {
    let (first, _) = genesis();
    let root = key("");
    let a_b = key("a/b");

    let fold = Fold { depth: None, order: Order::Undefined, of: keep(1), key: root.key() };
    let mut block = vec![Event::Checkout { commit: used(&first), to: keep(1) }];
    for _ in 0..100_000 {
        block.extend([Event::FoldStart(fold), Event::FoldEnter { tree: keep(1) }]);
    }

    let error = run(&[genesis_block(&first, &a_b, 1), block]).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
    assert!(
        matches!(error, Error::Unexpected { place: EventPlace { event: 129, .. }, .. }),
        "{error}"
    );
}

#[test]
fn what_was_never_made_or_is_forgotten_cannot_be_used() {
    let (first, _) = genesis();
    let a_b = key("a/b");
    let check = |events: &[Event<'_>], message: &str| {
        let mut blocks = vec![genesis_block(&first, &a_b, 1)];
        blocks.push(vec![Event::Checkout { commit: used(&first), to: keep(1) }]);
        blocks[1].extend_from_slice(events);
        let error = run(&blocks).unwrap_err();
        assert_eq!(error.class(), Class::Input);
        assert!(error.to_string().contains(message), "{error}");
    };

    let mem = |context| Event::Mem { context, key: a_b.key(), answer: true };
    check(&[mem(keep(2))], "event 1: the trace has no context 2 here");
    check(&[mem(last(1)), mem(keep(1))], "event 2: the trace has no context 1 here");
    let kind = |tree| Event::Tree(TreeOperation::Kind { tree, kind: TreeKind::Value });
    check(&[kind(keep(5))], "the trace has no tree 5 here");
    let find = |to| Event::FindTree { context: keep(1), key: a_b.key(), to: Some(to) };
    check(&[find(last(5)), kind(keep(5))], "event 2: the trace has no tree 5 here");
    check(&[Event::Checkout { commit: used(&[3; 32]), to: keep(2) }], "no commit Co");

    check(&[Event::Checkout { commit: used(b"what"), to: keep(2) }], "no commit what in the store");
    check(
        &[Event::AddProtocol { context: keep(1), hash: b"short", to: keep(2) }],
        "a hash has a wrong length or checksum",
    );

    check(&[Event::CommitGenesisEnd { commit: made(&first) }], "no first commit");
    check(&[Event::PatchContextEnter { context: keep(3) }], "no first commit");
    let long = KeyBuf::new([[b'x'; 256].as_slice()]);
    let add = Event::Add { context: keep(1), key: long.key(), value: b"", to: keep(2) };

    check(&[add], "event 1: a step of 256 bytes");
}

#[test]
fn a_cut_tail_is_left_out_and_replays_end_where_they_are_told_to() {
    let (first, _) = genesis();
    let a_b = key("a/b");
    let checkout = Event::Checkout { commit: used(&first), to: keep(1) };
    let blocks = [genesis_block(&first, &a_b, 1), vec![checkout], vec![checkout]];
    let whole = trace(&blocks);
    let two = trace(&blocks[..2]).len();

    for length in two + 1..whole.len() {
        let report = run_on(&empty_store(), &whole[..length]).unwrap();
        assert_eq!((report.truncated_at, report.counts.checkouts), (Some(two as u64), 1));
    }

    for until in 0..5 {
        let options = Options { until: Some(until), ..Options::default() };
        let report = replay(whole.as_slice(), &empty_store(), &options, &mut Silent).unwrap();
        assert_eq!(report.blocks.report().ops, until.min(3));
    }

    let mut damaged = whole;
    damaged[two + 12] = 99;
    let error = run_on(&empty_store(), &damaged).unwrap_err();
    assert!(matches!(error, Error::Trace(_)) && error.class() == Class::Input, "{error}");
}

/// A change or a question of a random block.
fn random_block(
    rng: &mut impl RngCore,
    context: &mut TezosContext,
    recorder: &mut Recorder<Vec<u8>>,
) {
    let mut now = 1;
    for _ in 0..30 {
        let mut steps = StepsBuf::new();
        (0..=rng.below(3)).for_each(|_| steps.push(&[b'a' + rng.below(4) as u8]));
        let at: Vec<&[u8]> = steps.steps().iter().collect();
        let key = KeyBuf::new(at.iter().copied());
        let value = vec![rng.below(256) as u8; rng.below(70) as usize];

        let from = last(now);
        let to = keep(now + 1);
        match rng.below(7) {
            0 | 1 => {
                context.add(&at, value.as_slice()).unwrap();
                recorder.event(&Event::Add { context: from, key: key.key(), value: &value, to });
                now += 1;
            }
            2 => {
                context.remove(&at).unwrap();
                recorder.event(&Event::Remove { context: from, key: key.key(), to });
                now += 1;
            }
            3 => {
                let found = context.find_tree(&at).unwrap();
                let tree = found.is_some().then_some(keep(now));
                recorder.event(&Event::FindTree { context: keep(now), key: key.key(), to: tree });
                if let Some((found, tree)) = found.zip(tree) {
                    let copy = [&at[..], &[b"copy"]].concat();
                    context.add_tree(&copy[1..], &found).unwrap();
                    let key = KeyBuf::new(copy[1..].iter().copied());
                    let tree = Scoped { is_last: true, ..tree };
                    recorder.event(&Event::AddTree { context: from, key: key.key(), tree, to });
                    now += 1;
                }
            }
            4 => {
                let answer = context.mem(&at).unwrap();
                recorder.event(&Event::Mem { context: keep(now), key: key.key(), answer });
            }
            5 => {
                let answer = context.mem_tree(&at).unwrap();
                recorder.event(&Event::MemTree { context: keep(now), key: key.key(), answer });
            }
            _ => {
                let found = context.find(&at).unwrap().is_some();
                recorder.event(&Event::Find { context: keep(now), key: key.key(), found });
            }
        }
    }

    // The commit uses the last one.
    let same = Event::AddProtocol { context: last(now), hash: &PROTOCOL, to: keep(1_000) };
    context.set_protocol(&PROTOCOL).unwrap();
    recorder.event(&same);
}

#[test]
fn a_recorded_history_gives_the_same_hashes() {
    for_each_seed("a_recorded_history_gives_the_same_hashes", 12, |rng, _| {
        let header = Header { initial: None, last: (0, Vec::new()), block_count: 20 };
        let mut recorder = Recorder::new(Vec::new(), &header).unwrap();
        let source = empty_store();
        let chain = ChainId(CHAIN);
        let mut commits = Vec::new();
        let hash = source.commit_genesis(chain, 0, &PROTOCOL, |_| Ok(())).unwrap();
        recorder.event(&Event::CommitGenesisStart { chain: &CHAIN, time: 0, protocol: &PROTOCOL });
        let text = hash.to_base58().into_bytes();
        recorder.event(&Event::CommitGenesisEnd { commit: made(&text) });
        recorder.end_block(&Statistics::default(), false).unwrap();
        commits.push(hash);
        for time in 1..20 {
            let parent = commits[rng.below(commits.len() as u64) as usize];
            // Raw bytes and texts are the same commit.
            recorder.event(&Event::Checkout { commit: used(parent.as_bytes()), to: keep(1) });
            let mut context = source.checkout_tezos(&parent).unwrap().unwrap();
            random_block(rng, &mut context, &mut recorder);
            let hash = source.commit_tezos(&context, time, "").unwrap();
            let context = last(1_000);
            let text = hash.to_base58().into_bytes();
            let commit = made(&text);
            recorder.event(&Event::Commit { time, message: None, context, commit });
            recorder.end_block(&Statistics::default(), false).unwrap();
            commits.push(hash);
        }
        let trace = recorder.finish().unwrap();
        let target = empty_store();
        let report = run_on(&target, &trace).unwrap();
        assert_eq!((report.counts.commits, report.truncated_at), (20, None));
        assert!(commits.iter().all(|hash| target.exists(hash).unwrap()));
    });
}

#[test]
fn a_raw_trace_is_executed_without_what_it_does_not_tell() {
    use crate::traces::container::tests::{RawRow, raw_trace_of};
    let (first, mut context) = genesis();
    context.add(&["x"], *b"v").unwrap();

    let second = empty_store().hash_tezos(&context, 12, "m").to_base58();
    let rows = |second: &str| {
        vec![
            RawRow::Genesis { commit: first.clone(), chain: CHAIN, protocol: PROTOCOL, time: 9 },
            RawRow::Unhandled,
            RawRow::Checkout { commit: first.clone(), to: Some(1) },
            RawRow::Checkout { commit: vec![3; 32], to: None },
            RawRow::Find { context: 1, key: key("a/b"), found: Some(b"1".to_vec()) },
            RawRow::Find { context: 1, key: key("x"), found: None },
            RawRow::List { context: 1 },
            RawRow::Add { context: 1, key: key("x"), value: b"v".to_vec(), to: 2 },
            RawRow::Commit { context: 2, commit: second.as_bytes().to_vec(), time: 12 },
            // Not executed: no commit follows.
            RawRow::Find { context: 77, key: key("x"), found: None },
        ]
    };

    let run = |trace: &[u8]| replay_raw(trace, &empty_store(), &Options::default(), &mut Silent);
    let trace = raw_trace_of(&rows(&second));
    let report = run(&trace).unwrap();
    assert_eq!(report.last_commit.unwrap().to_string(), second);
    assert_eq!((report.counts.commits, report.counts.finds, report.transactions), (2, 2, None));

    // Two finds, two hashes, and the commit that is not there.
    assert_eq!(report.checks_passed, 5);
    let report = run(&trace[..trace.len() - 1]).unwrap();
    assert!(report.truncated_at.is_some() && report.counts.commits == 2);
    let wrong = CommitHash([9; 32]).to_string();
    let error = run(&raw_trace_of(&rows(&wrong))).unwrap_err();

    assert!(error.to_string().starts_with("block 1, event 5: commit Co"), "{error}");
}

//! Replays over the engine in memory, whose commits are numbers, and over one that gives them
//! hashes of our choice.

use super::*;
use crate::engines::context::HASH_BYTES;
use crate::engines::context_memory::MemoryContexts;
use crate::engines::engine;
use crate::error::Class;
use crate::hex;
use crate::monitor::Silent;
use crate::traces::container::irmin::Recorder;
use crate::traces::container::tests::FIXTURE;

/// The engine in memory, which claims to have the hashes of Tezos: its numbers stand for them.
#[derive(Debug, Default)]
struct Claiming(MemoryContexts);

impl ContextEngine for Claiming {
    fn name(&self) -> &'static str {
        "claiming"
    }

    fn has_tezos_hashes(&self) -> bool {
        true
    }

    fn empty(&self) -> Box<dyn Context> {
        self.0.empty()
    }

    fn checkout(&self, commit: &CommitHash) -> engine::Result<Option<Box<dyn Context>>> {
        self.0.checkout(commit)
    }
}

fn run(trace: &[u8], engine: &mut dyn ContextEngine, until: Option<u64>) -> Result<Report> {
    let options = Options { until, ..Options::default() };
    replay(trace, engine, &options, &mut Silent)
}

/// A replay in memory.
fn in_memory(trace: &[u8]) -> Result<Report> {
    run(trace, &mut MemoryContexts::new(), None)
}

fn keep<T>(value: T) -> Scoped<T> {
    Scoped { is_last: false, value }
}

fn last<T>(value: T) -> Scoped<T> {
    Scoped { is_last: true, value }
}

fn path(text: &str) -> StepsBuf {
    text.split('/').map(str::as_bytes).collect()
}

/// Hash of the trace's commit of this number. The engine that claims hashes names its commits like
/// this, from 0 on.
fn hash(number: u8) -> CommitHash {
    let mut hash = [0; HASH_BYTES];
    hash[0] = number;
    CommitHash(hash)
}

type Out = Recorder<Vec<u8>>;

fn record(write: impl FnOnce(&mut Out)) -> Vec<u8> {
    let mut trace = Recorder::new(Vec::new()).unwrap();
    write(&mut trace);
    trace.finish().unwrap()
}

fn add(trace: &mut Out, at: &str, from: Scoped<i64>, to: Scoped<i64>) {
    trace.add((path(at).steps(), at.as_bytes()), (from, to)).unwrap();
}

fn ask(trace: &mut Out, question: Question, at: &str, answer: bool, of: Scoped<i64>) {
    trace.ask(question, (path(at).steps(), answer), of).unwrap();
}

fn commit(
    trace: &mut Out,
    made: Scoped<CommitHash>,
    parents: &[Scoped<CommitHash>],
    of: Scoped<i64>,
) {
    trace.commit((made, parents), (9, b"m"), of).unwrap();
}

/// Two children of one commit, which go on beside each other and are asked for what the other one
/// has.
fn forked() -> Vec<u8> {
    record(|trace| {
        add(trace, "data/a", keep(0), keep(1));
        ask(trace, Question::Mem, "data/a", false, keep(0));
        commit(trace, keep(hash(0)), &[], last(1));
        trace.checkout(keep(hash(0)), keep(2)).unwrap();
        trace.checkout(keep(hash(0)), keep(3)).unwrap();
        add(trace, "data/left", keep(2), keep(4));
        add(trace, "data/right", last(3), keep(5));
        ask(trace, Question::Find, "data/left", false, keep(2));
        ask(trace, Question::Find, "data/left", true, keep(4));
        ask(trace, Question::Find, "data/left", false, keep(5));
        commit(trace, keep(hash(1)), &[last(hash(0))], last(4));
        let copied = (path("data").steps().to_string(), path("copy/of"));
        trace.copy((path(&copied.0).steps(), copied.1.steps()), (last(5), keep(6))).unwrap();
        trace.remove(path("data/a").steps(), (last(6), keep(7))).unwrap();
        ask(trace, Question::MemTree, "copy", true, keep(7));
        ask(trace, Question::Mem, "copy/of/a", true, keep(7));
        ask(trace, Question::Mem, "data/a", false, last(7));
        trace.checkout(last(hash(1)), keep(8)).unwrap();
        commit(trace, last(hash(2)), &[], last(8));
    })
}

#[test]
fn the_published_trace_is_replayed_up_to_its_cut_row() {
    let trace = hex::decode(FIXTURE).unwrap();
    let report = in_memory(&trace).unwrap();
    let counts = Counts { adds: 3, finds: 2, commits: 1, ..Counts::default() };
    assert_eq!((report.counts, report.counts.total()), (counts, 6));
    assert_eq!((report.checks_passed, report.truncated_at), (2, Some(296)));
    assert_eq!((report.blocks.report().ops, report.commits.report().ops), (1, 1));

    // If the limit is the number of commits, the replay never reads the cut row.
    let mut engine = MemoryContexts::new();
    let report = run(&trace, &mut engine, Some(1)).unwrap();
    assert_eq!((report.counts, report.truncated_at), (counts, None));
    let mut context = engine.checkout(&report.last_commit.unwrap()).unwrap().unwrap();
    let mut value = Vec::new();
    assert!(context.find(path("data/version").steps(), &mut value).unwrap());

    assert_eq!(value, b"genesis");
}

#[test]
fn a_wrong_hash_stops_the_replay_unless_hashes_are_ignored() {
    let trace = hex::decode(FIXTURE).unwrap();
    let recorded = "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj";
    match run(&trace, &mut Claiming::default(), None) {
        Err(error @ Error::HashMismatch { block: 0, row: 5, expected, got }) => {
            assert_eq!((expected.to_string().as_str(), got), (recorded, hash(0)));
            assert_eq!(error.class(), Class::Check);
        }
        other => panic!("{other:?}"),
    }

    let options = Options { ignores_hashes: true, ..Options::default() };
    let report = replay(trace.as_slice(), &mut Claiming::default(), &options, &mut Silent);
    assert_eq!(report.unwrap().last_commit, Some(hash(0)));
}

#[test]
fn contexts_and_commits_fork_and_are_forgotten() {
    let trace = forked();
    let expected = Counts {
        checkouts: 3,
        adds: 3,
        removes: 1,
        copies: 1,
        finds: 3,
        mems: 3,
        mem_trees: 1,
        commits: 3,
        ..Counts::default()
    };

    let report = in_memory(&trace).unwrap();
    assert_eq!((report.counts, report.checks_passed), (expected, 7));
    let report = run(&trace, &mut Claiming::default(), None).unwrap();
    assert_eq!((report.counts, report.checks_passed), (expected, 10));
    assert_eq!(report.last_commit, Some(hash(2)));

    for until in 0..4 {
        let report = run(&trace, &mut MemoryContexts::new(), Some(until)).unwrap();
        assert_eq!(report.counts.commits, until.min(3));
    }
}

#[test]
fn a_wrong_answer_names_block_row_and_path() {
    for (question, name) in
        [(Question::Find, "find"), (Question::Mem, "mem"), (Question::MemTree, "mem_tree")]
    {
        for expected in [false, true] {
            let trace = record(|trace| {
                add(trace, "data/a", keep(0), keep(1));
                commit(trace, keep(hash(0)), &[], keep(1));
                ask(trace, question, if expected { "data/b" } else { "data/a" }, expected, keep(1));
            });
            let error = in_memory(&trace).unwrap_err();
            let message = format!(
                "block 1, row 2: {name} data/{}: recorded {expected}, found {}",
                if expected { "b" } else { "a" },
                !expected
            );
            assert_eq!((error.to_string(), error.class()), (message, Class::Check));
        }
    }
}

#[test]
fn what_was_never_made_or_is_forgotten_cannot_be_used() {
    let check = |write: &dyn Fn(&mut Out), message: &str| {
        let error = in_memory(&record(write)).unwrap_err();
        assert_eq!((error.to_string(), error.class()), (message.to_owned(), Class::Input));
    };

    let no = |number, row| format!("block 0, row {row}: the trace has no context {number} here");
    check(&|trace| add(trace, "a", keep(1), keep(2)), &no(1, 0));
    check(&|trace| ask(trace, Question::Mem, "a", false, keep(-1)), &no(-1, 0));
    check(&|trace| commit(trace, keep(hash(0)), &[], keep(2)), &no(2, 0));

    let forgotten = |scope: fn(i64) -> Scoped<i64>| {
        move |trace: &mut Out| {
            add(trace, "a", keep(0), scope(1));
            ask(trace, Question::Mem, "a", true, last(1));
            ask(trace, Question::Mem, "a", true, last(1));
        }
    };

    check(&forgotten(keep), &no(1, 2));
    check(&forgotten(last), &no(1, 1));
    let absent = |block, row| {
        format!(
            "block {block}, row {row}: no commit {} in the store; the trace may begin in the middle of a chain",
            hash(7)
        )
    };

    check(&|trace| trace.checkout(keep(hash(7)), keep(1)).unwrap(), &absent(0, 0));
    check(&|trace| commit(trace, keep(hash(0)), &[keep(hash(7))], keep(0)), &absent(0, 0));
    let twice = |trace: &mut Out| {
        commit(trace, keep(hash(7)), &[], keep(0));
        trace.checkout(last(hash(7)), keep(1)).unwrap();
        trace.checkout(keep(hash(7)), keep(1)).unwrap();
    };

    check(&twice, &absent(1, 2));
}

#[test]
fn a_copy_of_what_is_absent_is_a_failed_check() {
    let trace = record(|trace| {
        let source = path("a/b");
        let target = path("c");
        trace.copy((source.steps(), target.steps()), (keep(0), keep(1))).unwrap();
    });
    let error = in_memory(&trace).unwrap_err();
    let message = "block 0, row 0: nothing is at a/b, which is to be copied";
    assert_eq!((error.to_string().as_str(), error.class()), (message, Class::Check));
}

/// Monitor that stops after a number of blocks.
struct Stopping {
    blocks: u64,
    done: u64,
}

impl Monitor for Stopping {
    fn progress(&mut self, phase: Phase, done: u64, total: Option<u64>) {
        assert_eq!((phase, total), (Phase::Replay, Some(9)));
        self.done = done;
    }

    fn warn(&mut self, message: &dyn std::fmt::Display) {
        panic!("{message}");
    }

    fn stop(&self) -> bool {
        self.done == self.blocks
    }
}

#[test]
fn a_replay_is_interrupted_between_blocks() {
    let options = Options { until: Some(9), ..Options::default() };
    for blocks in 1..=4 {
        let mut monitor = Stopping { blocks, done: 0 };
        let mut engine = MemoryContexts::new();
        let trace = forked();
        match replay(trace.as_slice(), &mut engine, &options, &mut monitor) {
            Err(error @ Error::Interrupted) => {
                assert_eq!((blocks.min(3), error.class()), (blocks, Class::Interrupted));
            }
            Ok(report) => assert_eq!((blocks, report.counts.commits), (4, 3)),
            Err(error) => panic!("{error}"),
        }
        let made = (0..4).filter(|&n| engine.checkout(&hash(n)).unwrap().is_some()).count();
        assert_eq!(made as u64, blocks.min(3));
    }
}

#[test]
fn the_empty_context_is_there_even_if_it_was_used_for_the_last_time() {
    let trace = record(|trace| {
        add(trace, "a", last(0), keep(1));
        ask(trace, Question::Mem, "a", false, last(0));
        ask(trace, Question::Mem, "a", true, keep(1));
    });
    assert_eq!(in_memory(&trace).unwrap().checks_passed, 2);
}

#[test]
fn a_damaged_row_stops_the_replay_after_the_rows_before_it() {
    let mut trace = forked();
    let cut = trace.len() - 5;
    assert!(in_memory(&trace[..cut]).unwrap().truncated_at.is_some());
    let row = trace.len() - 9;
    trace[row] = 7;

    match in_memory(&trace) {
        Err(error @ Error::Trace(container::Error::Malformed { row: 17, .. })) => {
            assert_eq!(error.class(), Class::Input);
        }
        other => panic!("{other:?}"),
    }
}

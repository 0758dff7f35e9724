//! `terrane replay irmin-trace`: the published trace, its hash, damage, and a recorded workload
//! with collections, as irmin and as Octez record it; and `terrane context gen-trace`, which
//! records it.

use serde_json::Value;
use terrane_bench::workloads::context::{Generator, Options, profile, record};
use terrane_replay::engines::context_store::{ContextStore, Settings};
use terrane_replay::traces::container::irmin::{Operation, Operations, Question};
use terrane_replay::traces::container::replayable::{
    Event, Header, MadeCommit, Recorder, Statistics, UsedCommit,
};
use terrane_replay::traces::container::{Key, KeyBuf, Scoped};

use crate::program::{Answer, Place, command, text};

/// A file of irmin's own tests: one commit, and a row that is cut.
const TRACE: &str = concat!(
    "49726d5265704254000000000019040204646174610776657273696f6e000100000000000000002901020464617461077665",
    "7273696f6e0767656e6573697300000000000000000001000000000000000123040204646174611173616e64626f785f7061",
    "72616d65746572000100000000000000013e01010870726f746f636f6c2038ecdef0cd08640f318a9b055f6b0d0c9ae03091",
    "3a871d9b9d86fb846317da210000000000000000010100000000000000022101010a746573745f636861696e010000000000",
    "000000000201000000000000000351070134436f56385351756d69565539736169753346564e65444e65774a614a48387957",
    "6473474633574c6473527232503953374d7a436a000000005b37aac40747656e657369730000000000000000000340000134",
);
const COMMIT: &str = "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj";

fn published() -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&TRACE[at..at + 2], 16).unwrap();
    (0..TRACE.len()).step_by(2).map(digit).collect()
}

fn replay(place: &Place, trace: &[u8], arguments: &[&str]) -> Answer {
    let file = place.write("trace", trace);
    place.replay("irmin-trace", &[&[text(&file)], arguments].concat())
}

/// A21.
#[test]
fn the_published_trace_ends_in_the_published_commit_and_its_cut_row_is_tolerated() {
    let place = Place::new();
    for _ in 0..2 {
        // The second time all objects are there already.
        let report = replay(&place, &published(), &[]).done();
        assert_eq!(report["last_commit"], COMMIT);
        for (name, expected) in
            [("commits", 1), ("ops", 6), ("checks_passed", 3), ("truncated_at", 296)]
        {
            assert_eq!(report[name], expected, "{name}");
        }
        assert_eq!(report["operations"]["adds"], 3);
        assert_eq!(report["transactions_assumed"], true);
        for name in ["tps", "ops_per_s", "wall_s", "store_bytes", "rss_bytes", "cpu_s"] {
            assert!(report[name].as_f64() > Some(0.0), "{name}: {report}");
        }
        for name in ["mean", "stddev", "p50", "p90", "p99", "p999", "max"] {
            assert!(report["block_latency_ms"][name].is_f64(), "{name}: {report}");
        }
        assert!(report["read_bytes"].is_u64() && report["write_bytes"].is_u64(), "{report}");
    }

    // A part that is not read cannot be reported as cut.
    let report = replay(&place, &published(), &["--until", "1"]).done();
    assert_eq!((&report["truncated_at"], &report["commits"]), (&Value::Null, &1.into()));
}

/// A21.
#[test]
fn a_wrong_answer_or_hash_stops_it_with_block_and_row() {
    let trace = published();
    let genesis = trace.windows(7).position(|bytes| bytes == b"genesis").unwrap();
    let mut other = trace.clone();
    other[genesis] ^= 1;
    let place = Place::new();
    let message = replay(&place, &other, &[]).failed(1);
    assert!(message.contains("trace: block 0, row 5: commit Co"), "{message}");
    assert!(message.ends_with(&format!("recorded {COMMIT}")), "{message}");
    let report = replay(&place, &other, &["--no-check"]).done();
    assert_ne!(report["last_commit"], COMMIT);
    let mut other = trace.clone();
    // The answer of the first row, behind its key.
    let answer = trace.windows(7).position(|bytes| bytes == b"version").unwrap() + 8;
    assert_eq!(other[answer], 1, "a scope");
    other[answer - 1] = 1;
    let message = replay(&place, &other, &[]).failed(1);
    assert!(message.contains("block 0, row 0: find data/version: recorded true, found false"));
}

#[test]
fn what_is_no_trace_and_what_is_no_store_are_refused() {
    let place = Place::new();
    replay(&place, b"IrmRepBU", &[]).failed(2);
    let message = place.replay("irmin-trace", &["absent"]).failed(2);
    assert!(message.contains("absent"), "{message}");
    let place = Place::new();
    let file = place.write("store/mine", b"1");
    let message = replay(&place, &published(), &[]).failed(2);
    assert!(
        message.contains("not a context store of Terrane: the directory has \"mine\""),
        "{message}"
    );
    assert_eq!(std::fs::read(file).unwrap(), b"1");
}

#[test]
fn a_recorded_workload_gives_the_same_hashes_also_while_old_commits_are_collected() {
    let place = Place::new();
    let options =
        Options { seed: 3, values: 20_000, profile: &profile::YEAR_2021, fork_every: Some(3) };
    let mut trace = Vec::new();
    let mut engine = ContextStore::open(&place.path("recorded"), Settings::default()).unwrap();
    let tip = record::record(&mut Generator::new(options).unwrap(), &mut engine, 12, &mut trace);
    let tip = tip.unwrap().to_string();
    let collected =
        ["--gc-every", "4", "--gc-distance", "3", "--relaxed", "--memory-budget", "1MiB"];

    for (arguments, collections) in [(&[][..], 0), (&collected[..], 3)] {
        let place = Place::new();
        let report = replay(&place, &trace, arguments).done();
        assert_eq!(
            (&report["last_commit"], &report["commits"]),
            (&tip.as_str().into(), &13.into())
        );
        assert_eq!(report["collections"], collections);
    }
}

/// `terrane context gen-trace` of a small workload.
fn generate(file: &str, options: &[&str]) -> Answer {
    let mut program = command();
    program.args(["context", "gen-trace", file, "--profile", "2021", "--values", "20k"]);
    program.args(["--blocks", "9", "--json"]).args(options).output().unwrap().into()
}

#[test]
fn a_generated_trace_is_replayed_with_equal_hashes_and_is_the_same_each_time() {
    let place = Place::new();
    let file = place.path("generated");
    let report = generate(text(&file), &["--fork-every", "3"]).done();
    let trace = std::fs::read(&file).unwrap();
    assert_eq!(report["bytes"], trace.len());
    assert_eq!((&report["blocks"], &report["values"]), (&9.into(), &20_000.into()));
    let replayed = place.replay("irmin-trace", &[text(&file)]).done();
    assert_eq!((&replayed["commits"], &replayed["trace"]), (&10.into(), &"IrmRepBT".into()));
    // The last block is not one that was abandoned.
    assert_eq!(replayed["last_commit"], report["last_commit"]);
    assert!(replayed["checks_passed"].as_u64() > Some(9 * 224));
    // A store on disk makes the same commits, and stays.
    let again = place.path("again");
    let store = place.path("made");
    let made = generate(text(&again), &["--fork-every", "3", "--store", text(&store)]).done();
    assert_eq!(made["last_commit"], report["last_commit"]);
    assert!(std::fs::read(&again).unwrap() == trace);
    let mut log = command();
    log.args(["context", "log", "--limit", "1", "--json", "--store"]).arg(&store);
    let log = Answer::from(log.output().unwrap()).done();
    assert_eq!(log["commits"][0]["hash"], report["last_commit"]);
    let other = generate(text(&again), &["--fork-every", "3", "--seed", "5", "--force"]).done();
    assert_ne!(other["last_commit"], report["last_commit"]);
}

/// `-` was the name of a file, unlike in the other commands.
#[test]
fn a_trace_goes_to_standard_output() {
    let place = Place::new();
    let file = place.path("file");
    let arguments = ["--profile", "2021", "--values", "20k", "--blocks", "2"];
    let generate = |file: &str| {
        let mut program = command();
        program.args(["context", "gen-trace", file]).args(arguments);
        program.current_dir(place.path("")).output().unwrap()
    };

    let to_file = generate(text(&file));
    assert!(to_file.status.success(), "{to_file:?}");
    let to_stdout = generate("-");
    assert!(to_stdout.status.success());
    assert!(to_stdout.stdout == std::fs::read(&file).unwrap());
    let report = String::from_utf8_lossy(&to_stdout.stderr);
    assert!(report.contains("last commit"), "{report}");
    assert!(!place.path("-").exists());

    let mut program = command();
    program.args(["context", "gen-trace", "-", "--json"]).args(arguments);
    let answer: Answer = program.output().unwrap().into();
    assert!(answer.failed(2).contains("standard output"));
}

#[test]
fn what_cannot_be_generated_leaves_files_as_they_were() {
    let place = Place::new();
    let file = place.write("mine", b"1");
    assert!(generate(text(&file), &[]).failed(2).contains("--force"));
    place.write("store/theirs", b"1");
    let message = generate(text(&file), &["--force", "--store", text(&place.store())]).failed(2);
    assert!(message.contains("the directory has \"theirs\""), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), b"1");
    let mut program = command();
    let program = program.args(["context", "gen-trace", text(&place.path("new"))]);
    let answer: Answer = program.args(["--values", "100", "--json"]).output().unwrap().into();
    assert!(answer.failed(2).contains("values must be at least 20000"));
    assert!(!place.path("new").exists());
}

/// A key below `data`, as Octez records it.
fn logical(key: Key<'_>) -> KeyBuf {
    assert_eq!(key.items().next(), Some(b"data".as_slice()));
    KeyBuf::new(key.items().skip(1))
}

fn tracker(of: Scoped<i64>) -> Scoped<u64> {
    Scoped { is_last: of.is_last, value: of.value as u64 }
}

/// A trace of irmin's benchmark behind its first commit, as Octez would have recorded the same: one
/// commit a block, from level 1 on.
fn of_octez(trace: &[u8]) -> Vec<u8> {
    let mut rows = Operations::open(trace).unwrap();
    let header = Header { initial: Some((0, Vec::new())), last: (6, Vec::new()), block_count: 6 };
    let mut recorder = Recorder::new(Vec::new(), &header).unwrap();
    let mut level = 0;
    let mut trees = 1 << 40;

    while !matches!(rows.next_operation().unwrap(), Some(Operation::Commit { .. })) {}
    while let Some(row) = rows.next_operation().unwrap() {
        match row {
            Operation::Checkout { commit, context } => {
                let text = commit.value.to_string();
                let hash = Scoped { is_last: commit.is_last, value: text.as_bytes() };
                let commit = UsedCommit { is_instantiated: level > 0, hash };
                recorder.event(&Event::Checkout { commit, to: tracker(context) });
            }
            Operation::Add { key, value, from, to } => {
                let key = logical(key);
                let context = tracker(from);
                let to = tracker(to);
                recorder.event(&Event::Add { context, key: key.key(), value, to });
            }
            Operation::Remove { key, from, to } => {
                let key = logical(key);
                let context = tracker(from);
                let to = tracker(to);
                recorder.event(&Event::Remove { context, key: key.key(), to });
            }
            Operation::Copy { source, target, from, to } => {
                let source = logical(source);
                let target = logical(target);
                let context = Scoped { is_last: false, ..tracker(from) };
                let tree = Scoped { is_last: false, value: trees };
                recorder.event(&Event::FindTree { context, key: source.key(), to: Some(tree) });
                let context = tracker(from);
                let to = tracker(to);
                let tree = Scoped { is_last: true, ..tree };
                recorder.event(&Event::AddTree { context, key: target.key(), tree, to });
                trees += 1;
            }
            Operation::Ask { question, key, answer, context } => {
                let key = logical(key);
                let context = tracker(context);
                let key = key.key();
                recorder.event(&match question {
                    Question::Find => Event::Find { context, key, found: answer },
                    Question::Mem => Event::Mem { context, key, answer },
                    Question::MemTree => Event::MemTree { context, key, answer },
                });
            }
            Operation::Commit { hash, date, message, context, .. } => {
                let text = hash.value.to_string();
                let hash = Scoped { is_last: hash.is_last, value: text.as_bytes() };
                let commit = MadeCommit { is_first: true, hash };
                let context = tracker(context);
                let message = Some(message);
                recorder.event(&Event::Commit { time: date, message, context, commit });
                level += 1;
                let statistics = Statistics { level, tzop_count_tx: 5, ..Statistics::default() };
                recorder.end_block(&statistics, false).unwrap();
            }
        }
    }

    recorder.finish().unwrap()
}

#[test]
fn a_workload_that_octez_has_recorded_gives_the_same_hashes_and_its_transactions_count() {
    let place = Place::new();
    let options =
        Options { seed: 5, values: 20_000, profile: &profile::YEAR_2021, fork_every: Some(3) };
    let mut trace = Vec::new();
    let mut engine = ContextStore::open(&place.path("recorded"), Settings::default()).unwrap();
    let tip = record::record(&mut Generator::new(options).unwrap(), &mut engine, 6, &mut trace);
    let tip = tip.unwrap().to_string();
    let irmin = replay(&place, &trace, &[]).done();
    assert_eq!(
        (&irmin["trace"], &irmin["transactions_assumed"]),
        (&"IrmRepBT".into(), &true.into())
    );
    assert_eq!(
        (&irmin["transactions"], &irmin["last_commit"]),
        (&(7 * 46).into(), &tip.as_str().into())
    );
    // A store with what is before the trace, and the trace.
    let begun = || {
        let place = Place::new();
        let first = replay(&place, &trace, &["--until", "1"]).done();
        (place, first)
    };
    let octez_trace = of_octez(&trace);
    let (place, first) = begun();
    let octez = replay(&place, &octez_trace, &[]).done();
    assert_eq!(
        (&octez["trace"], &octez["last_commit"]),
        (&"TezosRep".into(), &tip.as_str().into())
    );
    assert_eq!(
        (&octez["transactions"], &octez["transactions_assumed"]),
        (&30.into(), &false.into())
    );
    assert_eq!(octez["transactions_per_block"], Value::Null);
    let count = |report: &Value, name: &str| report["operations"][name].as_u64().unwrap();

    for name in ["adds", "removes", "finds", "mems", "mem_trees", "commits", "checkouts"] {
        let expected = count(&irmin, name) - count(&first, name);
        assert_eq!(count(&octez, name), expected, "{name}");
    }

    assert_eq!(count(&octez, "add_trees"), count(&irmin, "copies"));
    let message = replay(&Place::new(), &octez_trace, &[]).failed(2);
    assert!(message.contains("terrane context import"), "{message}");
    // A cut tail is left out, and a wrong hash ends it with the level.
    let collected = ["--gc-every", "2", "--gc-distance", "3"];
    let cut = replay(&begun().0, &octez_trace[..octez_trace.len() - 1], &collected).done();
    assert_eq!((&cut["commits"], &cut["collections"]), (&5.into(), &2.into()));
    assert!(cut["truncated_at"].is_u64(), "{cut}");
    let mut wrong = octez_trace;
    let at = wrong.windows(tip.len()).rposition(|text| text == tip.as_bytes()).unwrap();
    wrong[at..at + tip.len()].copy_from_slice(COMMIT.as_bytes());
    let message = replay(&begun().0, &wrong, &[]).failed(1);
    assert!(message.contains("(level 6), event") && message.contains(COMMIT), "{message}");
    let report = replay(&begun().0, &wrong, &["--no-check"]).done();
    assert_eq!(report["last_commit"], tip);
}

#[test]
fn what_is_no_trace_of_any_kind_is_refused_before_a_store_is_made() {
    let place = Place::new();
    let message = replay(&place, b"TezosRop and so on", &[]).failed(2);
    assert!(
        message.contains("not a trace of irmin or Octez: the file begins with \"TezosRop\""),
        "{message}"
    );
    assert!(!place.store().exists());
    let message = replay(&place, b"Tezos", &[]).failed(2);
    assert!(message.contains("5 bytes are not a trace"), "{message}");
}

//! The benchmarks of the index, with some thousand entries.
//!
//! Goal: every engine gives the same answers, those of the workload, whatever its batches and
//! flushes; wrong answers end a run; nothing is left behind unless asked for. Method: one small
//! budget, so that the B+tree drains and splits.

use std::fs::File;
use std::path::Path;

use terrane_bench::workloads::Error;
use terrane_bench::workloads::index::engine::Engine;
use terrane_bench::workloads::index::{Common, bootstrap, high_insert, replay};
use terrane_replay::monitor::Silent;
use terrane_replay::traces::index::{Op, Recorder};

const ALL: [Engine; 3] = [Engine::Btree, Engine::Lsm, Engine::Memory];

fn common(engines: &[Engine]) -> Common {
    Common {
        engines: engines.to_vec(),
        seed: 7,
        flush_every: 1_000,
        memory_budget: 4 << 20,
        sample: 500,
        keep: false,
    }
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn inserts_give_the_same_finds_on_every_engine() {
    let store = tempfile::tempdir().unwrap();
    let options = high_insert::Options { entries: 12_345, batch: 100, common: common(&ALL) };
    let report = high_insert::run(store.path(), None, &options, &mut Silent).unwrap();
    assert_eq!(report.run.engines.len(), 3);

    for engine in &report.run.engines {
        let name = engine.engine.name();
        assert_eq!((engine.ops, engine.entries), (12_345, Some(12_345)), "{name}");
        // Hash of the keys drawn from seed 7 and of their values.
        assert_eq!(engine.result_hash, "6254beb9f6cef4582962937166f33f90", "{name}");
        let check = engine.check.as_ref().unwrap();
        assert_eq!((check.present.finds, check.absent.finds), (500, 500), "{name}");
        let calls = |call: Option<terrane_bench::workloads::index::report::CallReport>| {
            call.map(|call| (call.latency_us.ops, call.ops_per_call))
        };
        assert_eq!(calls(engine.calls.replace), Some((124, 100)), "{name}");
        assert_eq!(calls(engine.calls.flush), Some((13, 1_000)), "{name}");
        assert_eq!(engine.curve.last().unwrap().ops, 12_345, "{name}");
        assert!(engine.calls.find.is_none() && engine.ops_per_s > 0.0, "{name}");
    }

    let [btree, lsm, memory] = report.run.engines.as_slice() else { panic!("three engines") };
    assert!(btree.tree.as_ref().unwrap().height > 0 && lsm.tree.is_none());
    assert!(btree.io.engine.unwrap().syncs >= 13 && lsm.io.engine.unwrap().syncs >= 13);
    assert!(memory.io.engine.is_none() && memory.store_bytes == 0 && btree.store_bytes > 0);

    assert!(is_empty(store.path()), "nothing is left");
}

#[test]
fn what_is_kept_is_not_written_over() {
    let store = tempfile::tempdir().unwrap();
    let common = Common { keep: true, ..common(&[Engine::Btree]) };
    let options = high_insert::Options { entries: 500, batch: 1, common };
    let run = || high_insert::run(store.path(), None, &options, &mut Silent);
    run().unwrap();
    assert!(store.path().join("btree/tree").exists());
    let error = run().unwrap_err();
    assert!(
        matches!(&error, Error::Options(text) if text.contains("remove the directory first")),
        "{error}"
    );
}

#[test]
fn the_mix_of_a_start_gives_the_same_answers_on_every_engine() {
    let store = tempfile::tempdir().unwrap();
    let options =
        bootstrap::Options { entries: 5_000, ops: 5_000, absent_percent: 20, common: common(&ALL) };
    let report = bootstrap::run(store.path(), None, &options, &mut Silent).unwrap();
    for engine in &report.run.engines {
        let name = engine.engine.name();
        assert_eq!(engine.result_hash, "3e5f40ac398517c0f5be2e577c0521f6", "{name}");
        assert!(engine.load_s.is_some() && engine.check.is_some(), "{name}");
        let calls = [engine.calls.replace, engine.calls.find, engine.calls.mem];
        let [adds, finds, mems] = calls.map(|call| call.unwrap().latency_us.ops);
        assert_eq!((adds + finds + mems, engine.entries), (5_000, Some(5_000 + adds)), "{name}");
        // In the ratio of 10 : 69 : 20, within four standard deviations.
        assert!(adds.abs_diff(505) < 86 && mems.abs_diff(1_010) < 114, "{adds} {mems}");
    }

    assert!(is_empty(store.path()), "nothing is left");
}

/// A trace of every operation of our dialect; what is recorded of the last lookup is as told.
fn write_trace(path: &Path, last: bool) {
    let key = [7; 32];
    let value = [9; 13];
    let other = [8; 32];

    let mut recorder = Recorder::new(File::create(path).unwrap());
    for op in [
        Op::Mem { key, expected: Some(false) },
        Op::Add { key, value },
        Op::Find { key, expected: Some(true) },
        Op::Flush,
        Op::Add { key: other, value },
        Op::Remove { key },
        Op::Find { key: other, expected: Some(true) },
        Op::Flush,
        Op::Find { key, expected: Some(last) },
    ] {
        recorder.record(&op).unwrap();
    }

    recorder.finish().unwrap();
}

#[test]
fn a_trace_is_replayed_and_the_first_wrong_answer_ends_it() {
    let store = tempfile::tempdir().unwrap();
    let trace = store.path().join("trace");
    let options = replay::Options {
        dialect: None,
        limit: None,
        check: true,
        trace_flushes: true,
        common: common(&ALL),
    };

    let run =
        |options: &replay::Options| replay::run(store.path(), &trace, None, options, &mut Silent);
    write_trace(&trace, false);
    let report = run(&options).unwrap();
    assert_eq!((report.dialect, report.run.engines.len()), ("migration", 3));

    for engine in &report.run.engines {
        let entries = (engine.engine != Engine::Lsm).then_some(1);
        assert_eq!((engine.ops, engine.entries), (7, entries), "{}", engine.engine.name());
        assert_eq!(engine.calls.flush.unwrap().latency_us.ops, 3);
        assert_eq!(engine.result_hash, report.run.engines[0].result_hash);
    }

    write_trace(&trace, true);
    let error = run(&options).unwrap_err().to_string();
    assert!(error.contains("record 8") && error.contains(&"07".repeat(32)), "{error}");
    std::fs::remove_dir_all(store.path().join("btree")).unwrap();
    let some = replay::Options { limit: Some(8), ..options.clone() };
    assert_eq!(run(&some).unwrap().run.engines[0].ops, 6);
    let unchecked = replay::Options { check: false, trace_flushes: false, ..options };
    let report = run(&unchecked).unwrap();

    assert!(!report.checked && report.flush_every == Some(1_000));
    // A trace that ends inside a record.
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 1]).unwrap();

    assert!(matches!(run(&unchecked), Err(Error::Trace { .. })));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let store = tempfile::tempdir().unwrap();
    let options = high_insert::Options { entries: 0, batch: 1, common: common(&ALL) };
    assert!(high_insert::run(store.path(), None, &options, &mut Silent).is_err());
    let options =
        bootstrap::Options { entries: 1, ops: 1, absent_percent: 101, common: common(&ALL) };
    assert!(bootstrap::run(store.path(), None, &options, &mut Silent).is_err());
    assert!(is_empty(store.path()));
}

#[cfg(feature = "lmdb")]
#[test]
fn lmdb_gives_the_same_answers() {
    let store = tempfile::tempdir().unwrap();
    let engines = [Engine::Lmdb, Engine::Memory];
    let options = bootstrap::Options {
        entries: 5_000,
        ops: 2_000,
        absent_percent: 20,
        common: common(&engines),
    };

    let report = bootstrap::run(store.path(), None, &options, &mut Silent).unwrap();
    assert_eq!(report.run.engines[0].result_hash, report.run.engines[1].result_hash);
    assert_eq!(report.run.warnings.len(), 1, "no limit: {:?}", report.run.warnings);
}

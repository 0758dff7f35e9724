//! The benchmark of unspent outputs, with tables of some thousand entries.
//!
//! Goal: every mode does what it says and gives the same results; the table is at the end what it
//! must be; what is not there, or cannot be numbered, is refused. Method: one table that is set up
//! once for each way of loading, with batches so large against it that lookups often come upon
//! updates which are not in the state they read.

use terrane::lsm::Compression;
use terrane_bench::model::Goal;
use terrane_bench::workloads::Error;
use terrane_bench::workloads::utxo::Shape;
use terrane_bench::workloads::utxo::run::{self, Mode, Options, Report};
use terrane_bench::workloads::utxo::setup::{self, Loading};
use terrane_replay::monitor::Silent;

fn setup_options(loading: Loading) -> setup::Options {
    setup::Options {
        entries: 5_000,
        loading,
        churn_percent: 20,
        seed: 7,
        shape: Shape::Default,
        memory_budget: Some(1 << 20),
        memory_goal: Goal::Hit,
        compression: Compression::None,
        background_merges: true,
    }
}

fn options(mode: Mode) -> Options {
    Options {
        mode,
        batches: 40,
        batch_size: 256,
        in_flight: if mode == Mode::Pipelined { 4 } else { 1 },
        threads: 1,
        queue_depth: 256,
        check: true,
        memory_budget: None,
        memory_goal: Goal::Hit,
    }
}

/// Checks the invariants of every report.
fn check(report: &Report) {
    assert_eq!((report.missing, report.duplicates, report.entries), (0, 0, 5_000));
    assert!(report.checked && report.wall_s > 0.0 && report.ops_per_s > 0.0);
    assert_eq!(report.lookup_latency_us.is_some(), report.mode != Mode::UpdateOnly);
    assert_eq!(report.update_latency_us.is_some(), report.mode != Mode::LookupOnly);
}

#[test]
fn every_mode_finds_everything_and_leaves_what_it_must() {
    let mut streams = Vec::new();
    for loading in [Loading::Bulk, Loading::Updates] {
        let store = tempfile::tempdir().unwrap();
        let made = setup::run(store.path(), &setup_options(loading), &mut Silent).unwrap();
        assert_eq!((made.entries, made.loading), (5_000, loading));
        assert!(made.write_amplification > 0.5, "{}", made.write_amplification);
        let run = |options: &Options| {
            let report = run::run(store.path(), options, &mut Silent).unwrap();
            check(&report);
            report
        };
        let sequential = run(&options(Mode::Sequential));
        let background = run(&Options { threads: 2, ..options(Mode::Sequential) });
        let pipelined = run(&options(Mode::Pipelined));
        assert_eq!(sequential.result_hash, background.result_hash);
        assert_eq!(sequential.result_hash, pipelined.result_hash);
        let lookups = run(&options(Mode::LookupOnly));
        let overlapped = run(&Options { in_flight: 8, ..options(Mode::LookupOnly) });
        assert_eq!(lookups.result_hash, overlapped.result_hash);
        assert_ne!(lookups.result_hash, sequential.result_hash);
        let updates = run(&options(Mode::UpdateOnly));
        assert!((40..=60).contains(&updates.batches), "{} batches", updates.batches);
        streams.push(sequential.stream_hash);
        let left: Vec<_> = std::fs::read_dir(store.path()).unwrap().collect();
        assert!(left.iter().all(|entry| {
            !entry.as_ref().unwrap().file_name().to_string_lossy().contains("draws")
        }));
    }

    let pinned = "7ca66e346c51fea43ee9dd5264b37799c5c9bc8abee0ff49e2de6fb99dcfb026";
    assert_eq!(streams, [pinned, pinned], "seed 7, 5,000 entries, 40 batches of 256");
}

#[test]
fn in_memory_the_results_are_those_of_the_disk() {
    let store = tempfile::tempdir().unwrap();
    let table = setup_options(Loading::Updates);
    setup::run(store.path(), &table, &mut Silent).unwrap();
    let options = options(Mode::Sequential);
    let on_disk = run::run(store.path(), &options, &mut Silent).unwrap();
    let in_memory = run::run_in_memory(&table, &options, &mut Silent).unwrap();
    check(&in_memory);
    assert_eq!(in_memory.result_hash, on_disk.result_hash);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let refused = run::run(store.path(), &options(Mode::Sequential), &mut Silent);
    let Err(Error::Options(message)) = refused else { panic!("no table: {refused:?}") };
    assert!(message.contains("bench utxo setup"), "{message}");
    setup::run(store.path(), &setup_options(Loading::Bulk), &mut Silent).unwrap();

    for (batches, batch_size) in [(u64::MAX, 256), (1, 2_501), (1, 0)] {
        let options = Options { batches, batch_size, ..options(Mode::Sequential) };
        let refused = run::run(store.path(), &options, &mut Silent);
        assert!(matches!(refused, Err(Error::Options(_))), "{batches} x {batch_size}");
    }

    let huge = setup::Options { entries: 40_000_000_000, ..setup_options(Loading::Bulk) };
    let refused = setup::run(store.path(), &huge, &mut Silent);
    assert!(matches!(refused, Err(Error::Options(_) | Error::Space { .. })), "{refused:?}");
}

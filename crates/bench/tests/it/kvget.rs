//! The benchmark of random reads with tiny parameters.
//!
//! Goal: it measures what it says, and the same every time. Method: a small table is set up and
//! read in every way that there is; what is done has a known hash, and counts of reads are those of
//! the table's shape.

use std::path::Path;

use terrane::lsm::{Compression, Session, SessionOptions, SnapshotName, TableConfig};
use terrane_bench::model::Goal;
use terrane_bench::workloads::Error;
use terrane_bench::workloads::kvget::data::{Distribution, key, value};
use terrane_bench::workloads::kvget::report::Report;
use terrane_bench::workloads::kvget::run::{self, Budget, IoMode, Options, WarmUp};
use terrane_bench::workloads::kvget::{Shape, setup};
use terrane_bench::workloads::values::Values;
use terrane_replay::error::Class;
use terrane_replay::monitor::Silent;

/// No multiple of anything.
const KEYS: u64 = 10_007;

/// The options of the table.
fn levelled() -> setup::Options {
    let shape = Shape::Levelled10;
    setup::Options {
        keys: KEYS,
        seed: 1337,
        shape,
        values: Values::default(),
        compression: Compression::None,
    }
}

/// Hash of the operations of [`options`] on that table.
const STREAM_HASH: &str = "12a0b57b1ceb5394488df834602416173ab527b62dbc184b11bb61ede94dd6e0";

fn options() -> Options {
    Options { reads: 4_000, ..Options::default() }
}

fn read(store: &Path, options: &Options) -> Report {
    run::run(store, None, options, &mut Silent).unwrap()
}

#[test]
fn a_table_is_set_up_and_read_with_one_read_a_hit() {
    let store = tempfile::tempdir().unwrap();
    let made = setup::run(store.path(), &levelled(), &mut Silent).unwrap();
    assert_eq!((made.keys, made.buffer_entries), (KEYS, 0));
    assert!(made.levels.iter().sum::<u64>() >= KEYS);
    let report = read(store.path(), &options());
    println!("{}", report.workload.stream_hash);
    assert_eq!(report.workload.stream_hash, STREAM_HASH);
    assert_eq!((report.workload.found, report.workload.absent, report.missing), (4_000, 0, 0));

    assert!(report.workload.verified && report.convergence.converged);
    assert_eq!(report.convergence.windows, 40);
    assert!((1.0..1.05).contains(&report.io_per_get), "{}", report.io_per_get);
    assert_eq!(report.io.io_per_hit, Some(report.io_per_get));
    assert!(report.io.io_per_get_ci95.unwrap() < 0.05);
    let upper = report.model.upper_ratio;
    assert!((0.05..0.15).contains(&upper), "{upper} of the entries above the last level");

    // Other tests of this process read at the same time; alone it agrees, see the tests of the
    // program.
    if report.engine.io_mode == IoMode::Direct {
        assert!(report.io.process.unwrap().read_bytes >= report.io.engine.read_bytes);
        assert_eq!(report.memory.enforced_by, "direct_io");
    }
}

#[test]
fn absent_keys_are_never_found_and_hardly_ever_read() {
    let setup = setup::Options { shape: Shape::Default, ..levelled() };
    let options = Options { absent_percent: 100, goal: Goal::Miss, ..options() };
    let report = run::run_in_memory(&setup, &options, &mut Silent).unwrap();
    assert_eq!((report.workload.found, report.workload.absent), (0, 4_000));
    assert!(report.io_per_get <= 0.02, "{}", report.io_per_get);
    assert_eq!((report.io.io_per_hit, report.io.io_per_miss), (None, Some(report.io_per_get)));
    assert!(report.speed.cpu_bound_ceiling_ops_per_s.is_some() && report.io.device.is_none());
    let mixed = Options { absent_percent: 50, ..options };

    let report = run::run_in_memory(&setup, &mixed, &mut Silent).unwrap();
    assert!((1_800..2_200).contains(&report.workload.absent), "{}", report.workload.absent);
    assert_eq!(report.workload.found + report.workload.absent, 4_000);
    assert!((0.4..0.6).contains(&report.io_per_get), "{}", report.io_per_get);
}

/// Threads and batches do not change the operations. When all keys are read, all
/// are found.
#[test]
fn operations_do_not_depend_on_threads_or_batches() {
    let store = tempfile::tempdir().unwrap();
    setup::run(store.path(), &levelled(), &mut Silent).unwrap();
    let distribution = Distribution::Every;

    let mut before: Option<Report> = None;
    for (threads, batch) in [(1, 64), (3, 7), (64, 1)] {
        let options = Options { reads: KEYS, distribution, threads, batch, ..Options::default() };
        let report = read(store.path(), &options);
        assert_eq!(report.workload.found, KEYS);
        assert_eq!(report.workload.batches, report.speed.latency_us.get.ops);
        if let Some(before) = before {
            assert_eq!(report.workload.stream_hash, before.workload.stream_hash);
            assert_eq!(report.io.engine.read_requests, before.io.engine.read_requests);
        }
        before = Some(report);
    }
}

#[test]
fn a_memory_budget_is_told_with_what_is_expected_of_it() {
    let store = tempfile::tempdir().unwrap();
    setup::run(store.path(), &levelled(), &mut Silent).unwrap();
    let logical = KEYS * 142;
    let options = Options { memory_budget: Some(Budget::Ratio(0.5)), ..options() };
    let report = read(store.path(), &options);
    assert_eq!(report.memory.budget_bytes, Some(logical / 2));
    assert_eq!(report.memory.budget_exceeded_by_bytes, None);
    assert!(report.model.prediction.unwrap().predicted_io_per_hit < 1.0);

    let fixed = Options { warm_up: WarmUp::Fixed(0.0005), ..options };
    let report = read(store.path(), &fixed);
    assert_eq!(report.convergence.warmup_ops, KEYS.div_ceil(2_000));
}

/// Acceptance case 6: reads that the page cache serves are told from those of a device.
#[test]
fn reads_through_the_page_cache_are_reported() {
    let store = tempfile::tempdir().unwrap();
    setup::run(store.path(), &levelled(), &mut Silent).unwrap();
    let report = read(store.path(), &Options { buffered: true, ..options() });
    assert_eq!((report.engine.io_mode, report.memory.enforced_by), (IoMode::Buffered, "none"));
    assert!(!report.memory.memory_enforced);
    let codes: Vec<_> = report.warnings.iter().map(|warning| warning.code).collect();
    assert!(codes.contains(&"memory_not_enforced"), "{codes:?}");
    // The engine counts the reads that memory answered, so the process is not compared.
    assert!((1.0..1.05).contains(&report.io_per_get), "{}", report.io_per_get);
    assert_eq!(report.io.process_agrees, None);
}

/// A table under the benchmark's name whose entries are not what its label says.
fn planted(entries: &[(u64, u64)]) -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let session = Session::open_dir(store.path(), &SessionOptions::default().create_dir()).unwrap();
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    for &(number, seed) in entries {
        table.insert(&key(number), &value(seed, number, 0)).unwrap();
    }
    let label = "bench kvget 1, seed 1337, keys 3, shape default";
    table.save_snapshot(&SnapshotName::new("bench-kvget").unwrap(), label).unwrap();
    session.close().unwrap();
    store
}

#[test]
fn wrong_answers_end_a_run() {
    let wrong = |entries: &[(u64, u64)], absent_percent| {
        let options = Options { absent_percent, ..options() };
        match run::run(planted(entries).path(), None, &options, &mut Silent) {
            Err(error @ Error::Wrong(_)) => {
                assert_eq!(error.class(), Class::Check);
                error.to_string()
            }
            other => panic!("{other:?}"),
        }
    };

    let all = [(0, 1337), (1, 1337), (2, 1337)];
    assert!(wrong(&all[..2], 0).contains("key 2 is there and was not found"));
    assert!(wrong(&[all[0], (1, 7), all[2]], 0).contains("key 1 was found with another value"));
    assert!(wrong(&[(5, 1337)], 100).contains("key 5 is absent and was found"));
    let report = run::run(planted(&all).path(), None, &options(), &mut Silent).unwrap();

    assert_eq!((report.workload.found, report.io_per_get), (4_000, 0.0));
}

#[test]
fn senseless_options_and_foreign_stores_are_refused() {
    let store = tempfile::tempdir().unwrap();
    let refused = |options: &Options| match run::run(store.path(), None, options, &mut Silent) {
        Err(Error::Options(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(refused(&options()).contains("terrane bench kvget setup"));
    assert!(refused(&Options { absent_percent: 101, ..options() }).contains("absent"));
    assert!(refused(&Options { reads: 0, ..options() }).contains("reads"));
    assert!(refused(&Options { threads: 0, ..options() }).contains("threads"));
}

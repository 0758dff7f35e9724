//! The benchmark of reads beside writes, distributions of keys and kinds of values, with tiny
//! parameters.
//!
//! Goal: what is done follows from the seed alone, and every result is checked. Method: the same
//! run with other numbers of threads and other batches has the same hash and the same results.

use std::path::Path;

use terrane::lsm::Compression;
use terrane_bench::workloads::Error;
use terrane_bench::workloads::draws::Distribution;
use terrane_bench::workloads::kvget::run;
use terrane_bench::workloads::kvget::{Shape, setup};
use terrane_bench::workloads::mixed::{self, Mix, Options, Report};
use terrane_bench::workloads::values::Values;
use terrane_replay::monitor::Silent;

const KEYS: u64 = 1_003;

/// A memtable of some hundred entries, so that there are runs, compaction and reads.
fn options() -> Options {
    Options {
        keys: KEYS,
        values: Values::Ethereum,
        seed: 11,
        shape: Shape::Default,
        compression: Compression::Lz4,
        write_buffer_bytes: Some(16 << 10),
        mix: Mix { get: 50, put: 35, delete: 15 },
        ops: 3_001,
        round: 500,
        batch: 64,
        threads: 1,
        distribution: Distribution::Zipf(0.99),
        memory_budget: None,
    }
}

fn mixed(store: &Path, options: &Options) -> Report {
    mixed::run(store, options, &mut Silent).unwrap()
}

#[test]
fn threads_and_batches_change_neither_operations_nor_results() {
    let store = tempfile::tempdir().unwrap();
    let before = mixed(store.path(), &options());
    let work = &before.workload;
    assert_eq!(work.gets + work.puts + work.deletes, 3_001);
    assert_eq!(work.found + work.absent, work.gets);
    // Hot keys are deleted and put again, so both results occur.
    assert!(work.found > 250 && work.absent > 50, "{work:?}");
    assert!(work.gets.abs_diff(1_500) < 150 && work.deletes.abs_diff(450) < 110, "{work:?}");
    assert_eq!(before.windows.iter().map(|window| window.ops).sum::<u64>(), 3_001);
    assert!(before.windows.windows(2).all(|pair| pair[0].end_s < pair[1].end_s));
    assert!(
        before.write_amplification.unwrap() > 0.0
            && before.io_per_get > 0.0
            && before.verify_bytes == KEYS * 4
    );

    for (threads, batch) in [(4, 64), (3, 7)] {
        let report = mixed(store.path(), &Options { threads, batch, ..options() });
        let found = &report.workload;
        assert_eq!(found.stream_hash, work.stream_hash, "{threads} threads");
        assert_eq!((found.gets, found.found, found.puts), (work.gets, work.found, work.puts));
    }

    // A run of lookups alone finds the table as it was filled.
    let lookups = Mix { get: 100, put: 0, delete: 0 };
    let report = mixed(store.path(), &Options { mix: lookups, ..options() });
    assert_eq!((report.workload.found, report.write_amplification), (3_001, None));
    let updates = Mix { get: 0, put: 60, delete: 40 };
    let report = mixed(store.path(), &Options { mix: updates, ..options() });
    assert_eq!((report.workload.gets, report.latency_us.get.ops), (0, 0));
    assert!(report.latency_us.write.ops > 0);
}

#[test]
fn mixes_that_make_no_sense_are_refused() {
    let store = tempfile::tempdir().unwrap();
    for options in [
        Options { mix: Mix { get: 50, put: 49, delete: 0 }, ..options() },
        Options { ops: 0, ..options() },
        Options { threads: 0, ..options() },
        Options { batch: 0, ..options() },
        Options { keys: 0, ..options() },
    ] {
        let error = mixed::run(store.path(), &options, &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error}");
    }
}

/// Reads of `kvget` with every distribution and every kind of values: all are found and equal, and
/// the stream does not depend on the number of threads.
#[test]
fn every_distribution_and_every_kind_of_values_reads_what_was_written() {
    for (values, distribution) in [
        ("bitcoin", "zipf:1"),
        ("ethereum", "latest:0.99"),
        ("dict:32", "hotset:20,80"),
        ("hist:0x1,400x1", "uniform"),
        ("uniform:1..200", "every"),
    ] {
        let shape = Shape::Default;
        let setup = setup::Options {
            keys: 503,
            seed: 11,
            shape,
            values: Values::from_name(values).unwrap(),
            compression: Compression::Lz4,
        };
        let distribution = Distribution::from_name(distribution).unwrap();
        let mut hashes = Vec::new();
        for threads in [1, 4] {
            let options =
                run::Options { reads: 2_000, threads, distribution, ..run::Options::default() };
            let report = run::run_in_memory(&setup, &options, &mut Silent).unwrap();
            assert_eq!(report.workload.found, 2_000, "{values}");
            assert_eq!(report.workload.values, values);
            assert_eq!(report.workload.distribution, distribution.name());
            hashes.push(report.workload.stream_hash);
        }
        assert_eq!(hashes[0], hashes[1], "{values}");
    }
}

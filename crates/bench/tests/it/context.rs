//! The benchmark of the context store, with some thousand values.
//!
//! Goal: the same options give the same commits, whatever is set for speed and whether old commits
//! are collected beside; what is reported fits together; a state that was kept is used again, and
//! no other. Method: the smallest state, and few blocks.

use std::fmt::Display;
use std::path::Path;

use terrane::io::Access;
use terrane_bench::workloads::Error;
use terrane_bench::workloads::context::profile::{LIMA, YEAR_2021};
use terrane_bench::workloads::context::report::Report;
use terrane_bench::workloads::context::run::{Collection, Options, run};
use terrane_replay::engines::context_store::Settings;
use terrane_replay::monitor::{Monitor, Phase, Silent};

fn options(blocks: u64) -> Options {
    Options {
        seed: 7,
        values: 20_000,
        profile: &YEAR_2021,
        warm_up: 2,
        blocks,
        settings: Settings { is_durable: false, ..Settings::default() },
        pipelined: false,
        prefetch: false,
        collection: None,
        in_memory: false,
        keep: false,
    }
}

fn done(store: &Path, options: &Options) -> Report {
    run(store, options, &mut Silent).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn commits_do_not_depend_on_settings_or_collections() {
    let store = tempfile::tempdir().unwrap();
    let plain = done(store.path(), &options(20));
    assert!(is_empty(store.path()), "nothing is left");
    assert!(plain.phases[0].per_block.read_batches == 0.0);
    let access = Access::Direct;
    let settings = Settings { cache_bytes: 1 << 20, is_durable: true, hash_threads: 1, access };
    let collection = Some(Collection { every: 3, distance: 2, bytes_per_s: Some(1 << 30) });
    let changed = Options { settings, prefetch: true, collection, in_memory: true, ..options(10) };
    let collected = done(store.path(), &changed);
    assert_eq!(collected.last_commit, plain.last_commit);

    // The tree in memory has made the same commits, or the run had failed.
    let in_memory = collected.in_memory.as_ref().unwrap();
    assert!(plain.in_memory.is_none());
    for phase in [&in_memory.tree, &in_memory.map] {
        assert_eq!((phase.blocks, phase.ops), (10, collected.phases[0].ops));
        let all = phase.blocks_per_s * phase.wall_s;
        assert!((all - 10.0).abs() < 1e-6, "{phase:?}");
    }
    assert!(in_memory.tree.commit_latency_ms.is_some());
    assert!(in_memory.map.commit_latency_ms.is_none());

    let [before, beside] = collected.phases.as_slice() else { panic!("two phases") };
    assert!(before.per_block.read_batches > 0.5, "{:?}", before.per_block);
    assert!(!before.collecting && before.collections.is_none() && beside.collecting);
    let collections = beside.collections.unwrap();
    assert!(collections.count >= 1 && collections.commits >= 8, "{collections:?}");
    assert!(collections.store_peak_bytes >= collections.live_bytes, "{collections:?}");

    assert!(collections.freed_bytes > 0 && collections.wall_s >= collections.longest_s);
}

#[test]
fn what_is_reported_fits_together() {
    let store = tempfile::tempdir().unwrap();
    let report = done(store.path(), &Options { profile: &LIMA, warm_up: 0, ..options(3) });
    assert_eq!((report.profile, report.transactions_per_block), ("lima", Some(46)));
    let [phase] = report.phases.as_slice() else { panic!("one phase") };
    assert_eq!((phase.blocks, phase.ops), (3, 3 * 9_435));
    let tps = phase.tps.unwrap();
    assert!((tps * phase.wall_s - 3.0 * 46.0).abs() < 1e-6, "{tps} in {} s", phase.wall_s);
    let by_cpu = phase.tps_cpu.zip(phase.cpu_s).map(|(tps, cpu_s)| tps * cpu_s);
    assert!(by_cpu.is_none_or(|all| (all - 3.0 * 46.0).abs() < 1e-6), "{phase:?}");
    assert_eq!(phase.tps_cpu.is_some(), phase.cpu_s.is_some());

    // For each block, the measured nodes were hashed, and everything hashed was written
    // or is in a node.
    let each = &phase.per_block;
    let floor = &phase.hashing_floor;
    assert!((each.hashed - floor.preimages).abs() < 0.5, "{each:?} {floor:?}");
    let padding = floor.bytes - each.hashed_bytes;
    assert!(padding >= 0.0 && padding < 128.0 * each.hashed, "{each:?} {floor:?}");
    assert!(each.nodes + each.values <= each.hashed && each.nodes > 100.0, "{each:?}");

    assert!(floor.one_thread_ms > 0.0 && phase.over_floor > 0.0);
    let split = &phase.split_ms;
    let parts = split.operations + split.hash + split.encode + split.write + split.sync;
    let mean = phase.wall_s * 1e3 / 3.0;
    assert!((parts + split.rest - mean).abs() < mean * 1e-3, "{split:?} of {mean}");
    assert!(report.files.chunks > 0 && report.files.index_bytes > 0);

    assert!(phase.store_bytes > report.load.store_bytes);
}

#[test]
fn a_state_that_was_kept_is_used_again_and_no_other() {
    let store = tempfile::tempdir().unwrap();
    let first = done(store.path(), &Options { keep: true, ..options(5) });
    assert!(!first.load.reused);

    for _ in 0..2 {
        let again = done(store.path(), &options(5));
        assert!(again.load.reused);
        assert_eq!(again.last_commit, first.last_commit);
        // Blocks of earlier runs are gone, and so is the garbage of loading.
        assert!(again.load.store_bytes < first.files.chunk_bytes, "{again:?}");
    }

    for other in [Options { seed: 8, ..options(5) }, Options { values: 20_001, ..options(5) }] {
        match run(store.path(), &other, &mut Silent) {
            Err(Error::Options(message)) => assert!(message.contains("is not of"), "{message}"),
            other => panic!("{other:?}"),
        }
    }

    assert!(done(store.path(), &options(1)).load.reused);
}

/// Monitor that stops in a phase after a number of calls.
struct Stopping {
    phase: Phase,
    calls: u64,
}

impl Monitor for Stopping {
    fn progress(&mut self, phase: Phase, _: u64, _: Option<u64>) {
        if phase == self.phase {
            self.calls = self.calls.saturating_sub(1);
        }
    }

    fn warn(&mut self, _: &dyn Display) {}

    fn stop(&self) -> bool {
        self.calls == 0
    }
}

#[test]
fn what_was_measured_until_an_interruption_is_reported_and_half_a_state_is_removed() {
    let store = tempfile::tempdir().unwrap();
    let collection = Some(Collection { every: 2, distance: 2, bytes_per_s: None });
    let options = Options { collection, keep: true, ..options(6) };

    for (phase, calls) in [(Phase::Fill, 1), (Phase::Replay, 1)] {
        let outcome = run(store.path(), &options, &mut Stopping { phase, calls });
        assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
        assert!(is_empty(store.path()), "{phase:?}");
    }

    for (calls, blocks) in [(5, &[3][..]), (11, &[6, 3])] {
        let mut monitor = Stopping { phase: Phase::Replay, calls };
        let report = run(store.path(), &options, &mut monitor).unwrap();
        assert!(report.is_interrupted);
        let found: Vec<u64> = report.phases.iter().map(|phase| phase.blocks).collect();
        assert_eq!(found, blocks);
    }
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_made() {
    let store = tempfile::tempdir().unwrap();
    let none = Collection { every: 0, distance: 1, bytes_per_s: None };
    for options in [
        options(0),
        Options { values: 1, ..options(1) },
        Options { collection: Some(none), ..options(1) },
    ] {
        let outcome = run(store.path(), &options, &mut Silent);
        assert!(matches!(outcome, Err(Error::Options(_))), "{outcome:?}");
        assert!(is_empty(store.path()));
    }
}

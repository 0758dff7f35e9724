//! Building from sorted input: how full pages become, and what fails while pages are in flight.
//!
//! Goal: leaves are as full as asked for, whatever keys have in common; a build that fails at any
//! call says so, has done nothing and can be done again; writes are large. Method: pages are
//! counted by a check; every call of a build with several batches of pages in flight is made to
//! fail, or is the last one before the power goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{CheckReport, Config, Error, Index, IterRecords, check};
use terrane_io::Survival;
use terrane_io::{Disk, SimDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;

use crate::damage::{Model, shared};
use crate::model::DIR;

/// Builds, compares and checks.
fn built(config: &Config, model: &Model, fill_percent: u32) -> CheckReport {
    let disk = SimDisk::new(1);
    let index = Index::create(shared(&disk), Path::new(DIR), config).unwrap();
    index.build_sorted(&mut IterRecords::new(model.clone()), fill_percent, |_| {}).unwrap();
    assert!(content(&index) == *model);
    index.close().unwrap();
    let report = check(&shared(&disk), Path::new(DIR), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, []);
    report
}

fn content(index: &Index) -> Model {
    index.iter().unwrap().map(Result::unwrap).collect()
}

/// The entries of such a leaf take many times the bytes of a page before their prefix is cut off. A
/// leaf was cut off for want of entries, hardly a twentieth full.
#[test]
fn leaves_of_keys_with_long_common_prefixes_are_as_full_as_asked_for() {
    const ENTRIES: u64 = 12_000;
    let key = |number: u64| format!("{}{number:08}", "p".repeat(480)).into_bytes();
    let model: Model = (0..ENTRIES).map(|number| (key(number), vec![7; 8])).collect();
    for (config, entry_bytes) in [(Config::fixed(488, 8), 16), (Config::variable(), 20)] {
        let config = config.memory_bytes(1 << 20);
        for fill_percent in [50, 90, 100] {
            let report = built(&config, &model, fill_percent);
            // Enough leaves to hold the entries with both fences in full, and only the first 480
            // bytes cut off.
            let room = 4096 * u64::from(fill_percent) / 100 - 44 - 2 * 488;
            let most = ENTRIES.div_ceil(room / entry_bytes) + 2;
            assert!(report.leaves <= most, "{fill_percent} %: {} leaves of {most}", report.leaves);
            let asked = f64::from(fill_percent) / 100.0;
            let fill = report.leaf_fill;
            assert!((fill - asked).abs() < 0.05, "{fill_percent} %: {fill}");
        }
    }
}

/// Prefixes that come and go, separators that are now short and now long.
#[test]
fn leaves_of_any_keys_hold_all_entries() {
    for_each_seed("leaves_of_any_keys_hold_all_entries", 8, |rng, seed| {
        let mut model = Model::new();
        while model.len() < 4_000 {
            let shared = rng.bytes(1);
            let shared = shared.repeat(rng.below(500) as usize);
            for _ in 0..rng.below(300) {
                let key = [&shared[..], &rng.bytes(1 + rng.clone().below(4) as usize)].concat();
                model.insert(key, vec![1; rng.below(20) as usize]);
            }
        }
        let fill_percent = 50 + (seed % 51) as u32;
        let report = built(&Config::variable().memory_bytes(1 << 20), &model, fill_percent);
        // A long fence takes the room of entries, on one side of each group.
        let asked = f64::from(fill_percent) / 100.0;
        assert!(report.leaf_fill > asked * 0.6, "{fill_percent} %: {}", report.leaf_fill);
    });
}

fn small() -> Config {
    Config::variable().memory_bytes(1 << 20)
}

fn short_key(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

/// Entries whose leaves fill more batches than may be in flight.
fn many() -> Model {
    (0..1_800).map(|number| (short_key(number), vec![3; 740])).collect()
}

fn build(disk: &Arc<SimDisk>, model: &Model) -> Result<Index, Error> {
    let shared: Arc<dyn Disk> = disk.clone();
    let index = Index::open(shared, Path::new(DIR), &small())?;
    index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {})?;
    Ok(index)
}

/// A disk with an empty index.
fn empty_index() -> Arc<SimDisk> {
    let disk = SimDisk::new(5);
    Index::create(shared(&disk), Path::new(DIR), &small()).unwrap().close().unwrap();
    disk
}

#[test]
fn pages_of_a_build_are_written_in_large_batches() {
    let disk = empty_index();
    let index = Index::open(shared(&disk), Path::new(DIR), &small()).unwrap();
    let before = index.stats().unwrap();
    index.build_sorted(&mut IterRecords::new(many()), 90, |_| {}).unwrap();
    let stats = index.stats().unwrap();
    let pages = stats.page_writes - before.page_writes;
    let calls = stats.write_calls - before.write_calls;
    assert!(pages > 350, "{pages}");
    // Three checkpoints write a few pages each.
    assert!(calls <= pages.div_ceil(64) + 12, "{calls} for {pages} pages");
}

/// Asking how far a long call is does not wait for its end: here it would wait for ever.
#[test]
fn figures_are_told_while_a_build_goes_on() {
    let disk = empty_index();
    let index = Index::open(shared(&disk), Path::new(DIR), &small()).unwrap();
    let mut written = Vec::new();
    let progress = |_| written.push(index.stats().unwrap().page_writes);
    index.build_sorted(&mut IterRecords::new(many()), 90, progress).unwrap();
    assert!(written.len() > 5 && written.is_sorted(), "{written:?}");
    let stats = index.stats().unwrap();
    assert!(stats.page_writes > written[written.len() - 1]);
    assert!(stats.file_bytes > 360 * 4096 && stats.used_bytes <= stats.file_bytes, "{stats:?}");
}

#[test]
fn a_build_that_fails_at_any_call_has_done_nothing_and_can_be_done_again() {
    let model = many();
    let start = empty_index();
    let mut failed = 0;
    for kind in [FaultKind::Eio, FaultKind::TornWrite, FaultKind::Enospc] {
        Sweep::whole(1).on(&start).fault(kind, Some(Repeat::Once), |disk, fault| {
            // The opening comes first, and is not disturbed.
            disk.set_plan(FaultPlan::default());
            let index = Index::open(shared(disk), Path::new(DIR), &small()).unwrap();
            disk.set_plan(FaultPlan { fail: fault, ..FaultPlan::default() });
            let done = index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {});
            disk.set_plan(FaultPlan::default());
            match done {
                // The undisturbed run counts the calls of the build, so it reads nothing back.
                Ok(_) => assert!(fault.is_none() || content(&index) == model),
                // The outcome of a failed sync or superblock write is unknown.
                Err(_) if matches!(index.flush(true), Err(Error::Poisoned { .. })) => {}
                Err(Error::Disk(_)) => {
                    failed += 1;
                    assert!(index.is_empty().unwrap());
                    let mut again = IterRecords::new(model.clone());
                    index.build_sorted(&mut again, 90, |_| {}).unwrap();
                    assert!(content(&index) == model);
                }
                Err(error) => panic!("{error}"),
            }
        });
    }

    assert!(failed > 30, "{failed}");
}

#[test]
fn a_crash_at_any_call_of_a_build_leaves_all_of_it_or_nothing() {
    let model = many();
    let start = empty_index();
    let mut all = 0;
    let mut none = 0;
    Sweep::whole(1).on(&start).crash(
        |disk| drop(build(disk, &model)),
        |crash| {
            let survivals =
                [Survival::Nothing, Survival::Random(crash.call), Survival::Torn(crash.call)];
            crash.power_losses(survivals, |image| {
                let index = Index::open(shared(&image.disk), Path::new(DIR), &small()).unwrap();
                let found = content(&index);
                assert!(found.is_empty() || found == model, "{}", found.len());
                if found.is_empty() { none += 1 } else { all += 1 }
            })
        },
    );

    assert!(all > 5 && none > 50, "{all} {none}");
}

#[test]
fn input_that_panics_or_is_out_of_order_far_behind_is_refused_and_nothing_is_built() {
    let disk = empty_index();
    let index = Index::open(shared(&disk), Path::new(DIR), &small()).unwrap();
    let model = many();
    let last = model.len() as u64;
    let entries = |then: Vec<u8>| model.clone().into_iter().chain([(then, Vec::new())]);
    let error =
        index.build_sorted(&mut IterRecords::new(entries(vec![0; 4])), 90, |_| {}).unwrap_err();
    assert!(matches!(error, Error::NotSorted { position } if position == last), "{error}");
    let above_all = short_key(last - 1);
    let error =
        index.build_sorted(&mut IterRecords::new(entries(above_all)), 90, |_| {}).unwrap_err();
    assert!(matches!(error, Error::DuplicateKey { position } if position == last), "{error}");
    let mut left = last;
    let ending = model.clone().into_iter().inspect(|_| {
        left -= 1;
        assert!(left > 0, "the input ends badly");
    });

    let mut input = IterRecords::new(ending);
    let caught = catch_unwind(AssertUnwindSafe(|| index.build_sorted(&mut input, 90, |_| {})));
    assert!(caught.is_err());
    assert!(index.is_empty().unwrap());
    index.build_sorted(&mut IterRecords::new(model.clone()), 90, |_| {}).unwrap();
    assert!(content(&index) == model);
}

//! A full disk: the reserve of an index lets removals, compaction and closing go on.
//!
//! Goal: whatever fills the disk, an index is emptied again by whoever opens it, with nothing but
//! its own reserve; nothing that was committed is lost, at whichever call a crash falls.
//!
//! Method: a simulated disk of a fixed size is filled until an insertion is refused: once with all
//! updates in the log, once with most of them in the tree. Then entries are removed in batches
//! until none is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Index, Result, Update, check};
use terrane_io::Disk;
use terrane_io::FaultPlan;
use terrane_io::{SimDisk, Survival};
use terrane_testkit::sweep::Sweep;

use crate::model::DIR;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Entries of a batch, and bytes of the disk.
const BATCH: u64 = 20;
const CAPACITY: u64 = 1 << 20;

/// Where most entries are when the disk is full.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    Log,
    Tree,
}

impl Fill {
    fn config(self) -> Config {
        match self {
            Self::Log => Config::variable(),
            Self::Tree => Config::variable()
                .memory_bytes(1 << 20)
                .buffer_bytes(40 << 10)
                .log_bytes_max(1 << 16),
        }
    }
}

fn open(disk: &Arc<SimDisk>, fill: Fill) -> Result<Index> {
    Index::open_or_create(disk.clone(), Path::new(DIR), &fill.config())
}

/// Keys of a batch lie all over the range of keys.
fn key(number: u64) -> Vec<u8> {
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    [&spread.to_le_bytes()[..], &[7; 16]].concat()
}

fn batch(number: u64) -> Model {
    (number * BATCH..(number + 1) * BATCH).map(|n| (key(n), vec![n as u8; 400])).collect()
}

fn insert(index: &Index, number: u64) -> Result<()> {
    let entries = batch(number);
    let updates: Vec<_> = entries.iter().map(|(key, value)| Update::Replace(key, value)).collect();
    index.sync_to(index.commit(&updates)?)
}

fn remove(index: &Index, number: u64) -> Result<()> {
    let entries = batch(number);
    let updates: Vec<_> = entries.keys().map(|key| Update::Remove(key)).collect();
    index.sync_to(index.commit(&updates)?)
}

fn content(index: &Index) -> Model {
    let mut found = Model::new();
    let mut cursor = index.iter().unwrap();
    while let Some((key, value)) = cursor.next_ref().unwrap() {
        found.insert(key.to_vec(), value.to_vec());
    }
    found
}

/// Fills the disk; returns how many batches fit.
fn fill(disk: &Arc<SimDisk>, index: &Index) -> u64 {
    disk.set_plan(FaultPlan::capacity(CAPACITY));
    let (filled, error) =
        (0..10_000).find_map(|n| insert(index, n).err().map(|error| (n, error))).unwrap();
    assert_eq!(error.kind().name(), "no_space", "{error}");
    assert!(filled > 8, "{filled} batches");
    filled
}

#[test]
fn a_full_disk_is_emptied_again_by_whoever_opens_the_index() {
    for how in [Fill::Log, Fill::Tree] {
        for is_closed in [false, true] {
            let disk = SimDisk::new(1);
            let index = open(&disk, how).unwrap();
            let filled = fill(&disk, &index);
            assert_eq!(index.stats().unwrap().height > 0, how == Fill::Tree);
            if is_closed {
                index.close().unwrap();
            }
            drop(index);

            let disk = if is_closed { disk } else { disk.process_kill() };
            disk.set_plan(FaultPlan::capacity(CAPACITY));
            let index = open(&disk, how).unwrap();
            let mut model: Model = (0..filled).flat_map(batch).collect();
            for number in 0..filled {
                remove(&index, number).unwrap_or_else(|error| panic!("{how:?} {number}: {error}"));
                model.retain(|key, _| !batch(number).contains_key(key));
                if number % 16 == 0 {
                    assert!(content(&index) == model, "{how:?} {number}");
                }
            }
            index.compact().unwrap();
            assert!(content(&index).is_empty());
            // Room was made, so insertions go on and the reserve is back.
            insert(&index, 0).unwrap();
            assert!(index.stats().unwrap().reserve_bytes > 0);
            index.close().unwrap();
            drop(index);
            let shared: Arc<dyn Disk> = disk.clone();
            let report = check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
        }
    }
}

#[test]
fn removals_one_by_one_and_compaction_go_on_where_no_byte_is_free() {
    for how in [Fill::Log, Fill::Tree] {
        let disk = SimDisk::new(1);
        let index = open(&disk, how).unwrap();
        let filled = fill(&disk, &index);
        // Another program takes what is left.
        let free = disk.free_bytes(Path::new(DIR)).unwrap();
        disk.set_plan(FaultPlan::capacity(CAPACITY - free));
        let keys: Vec<_> = (0..filled).flat_map(batch).map(|(key, _)| key).collect();
        for key in keys.iter().take(40) {
            assert!(index.remove(key).unwrap());
        }
        index.flush(true).unwrap();
        let refused = insert(&index, filled).unwrap_err();
        assert_eq!(refused.kind().name(), "no_space", "{refused}");
        index.compact().unwrap();
        assert_eq!(content(&index).len(), keys.len() - 40);
        index.clear().unwrap();
        insert(&index, 0).unwrap();
        index.close().unwrap();
    }
}

/// A crash at a call of the removals leaves the state behind one of them, and removals go on.
#[test]
fn after_a_crash_at_any_call_on_a_full_disk_nothing_is_lost_and_removals_go_on() {
    let removals = 6;
    for how in [Fill::Log, Fill::Tree] {
        let full = SimDisk::new(3);
        let index = open(&full, how).unwrap();
        let filled = fill(&full, &index);
        let full = full.process_kill();
        let state = |gone: u64| (gone..filled).flat_map(batch).collect::<Model>();
        let run = |disk: &Arc<SimDisk>| {
            let Ok(index) = open(disk, how) else { return 0 };
            let done = (0..removals).find(|&number| remove(&index, number).is_err());
            let has_compacted = done.is_none() && index.compact().is_ok();
            assert!(disk.has_crashed() || has_compacted, "{how:?} {done:?}");
            done.unwrap_or(removals)
        };

        let sweep = Sweep::sampled(3, 16).on(&full).with_plan(FaultPlan::capacity(CAPACITY));
        let images = sweep.crash(run, |crash| {
            let done = *crash.run;
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Random(crash.call)];
            crash.power_losses(survivals, |image| {
                image.disk.set_plan(FaultPlan::capacity(CAPACITY));
                let index = open(&image.disk, how).unwrap();
                let found = content(&index);
                let is_state = found == state(done) || found == state(done + 1);
                assert!(is_state, "{how:?}: {} entries after {done} removals", found.len());
                for number in done..done + 4 {
                    remove(&index, number).unwrap();
                }
                assert!(content(&index) == state(done + 4), "{how:?}");
            })
        });
        assert!(images >= 12, "{how:?}: {images}");
    }
}

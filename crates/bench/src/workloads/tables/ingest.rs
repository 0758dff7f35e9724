//! `terrane bench ingest`: inserts, deletes and lookups, compaction included.
//!
//! A table gets all entries. Then every second entry is deleted, with as many deletions of keys
//! that never existed. Then all keys are looked up, 256 a batch, and the results are compared with
//! what is left. Compaction runs inside the updates, so the rates include it; making keys and
//! values is outside of the clock.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{Table, TableConfig, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{Result, check, key, report, value};
use crate::workloads::{bounded, open, seconds};

/// Keys of a batch of lookups.
const LOOKUPS: u64 = 256;

/// Updates and lookups of each entry: an insertion, a deletion and a lookup.
const OPS_PER_ENTRY: u64 = 3;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Entries that are inserted, and number of deletions and of lookups.
    pub entries: u64,
    /// Updates in a batch.
    pub batch: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Entries inserted.
    pub entries: u64,
    /// Updates in a batch.
    pub batch: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Entries inserted in a second.
    pub inserts_per_s: f64,
    /// Keys deleted in a second.
    pub deletes_per_s: f64,
    /// Both kinds of updates, in a second of either.
    pub updates_per_s: f64,
    /// Keys looked up in a second.
    pub lookups_per_s: f64,
    /// Keys that were found.
    pub found: u64,
    /// Pages read for each key looked up.
    pub reads_per_lookup: f64,
    /// Runs in the end.
    pub runs: u64,
    /// Entries of all runs and of the memtable in the end, tombstones included.
    pub stored_entries: u64,
}

/// A table, and the operations done on it.
struct Work<'a> {
    table: Table,
    options: &'a Options,
    monitor: &'a mut dyn Monitor,
    done: u64,
}

impl Work<'_> {
    /// Counts operations that were done.
    fn count(&mut self, ops: usize) -> Result<()> {
        self.done += ops as u64;
        let total = OPS_PER_ENTRY * self.options.entries;
        report(self.monitor, Phase::Operations, self.done, total)
    }

    /// Inserts all entries; returns the seconds that the engine took.
    fn insert(&mut self) -> Result<f64> {
        let Options { entries, batch, seed } = *self.options;
        let mut spent = 0.0;
        for first in (0..entries).step_by(batch as usize) {
            let numbers = first..entries.min(first + batch);
            let made: Vec<_> = numbers.map(|n| (key(seed, n), value(seed, n, 0))).collect();
            let batch: Vec<_> = made.iter().map(|(k, v)| (k, Update::Insert(v))).collect();

            let start = Instant::now();
            self.table.write_batch(&batch)?;
            spent += seconds(start);

            self.count(batch.len())?;
        }
        Ok(spent)
    }

    /// Deletes every second entry, and a key that never existed in place of each other one; returns
    /// the seconds that the engine took.
    fn delete(&mut self) -> Result<f64> {
        let Options { entries, batch, seed } = *self.options;
        let deleted = |n: u64| key(seed, if n.is_multiple_of(2) { n } else { entries + n });
        let mut spent = 0.0;
        for first in (0..entries).step_by(batch as usize) {
            let keys: Vec<_> = (first..entries.min(first + batch)).map(deleted).collect();
            let batch: Vec<_> = keys.iter().map(|key| (key, Update::Delete)).collect();

            let start = Instant::now();
            self.table.write_batch(&batch)?;
            spent += seconds(start);

            self.count(batch.len())?;
        }
        Ok(spent)
    }

    /// Looks all keys up and checks what is found. Returns the seconds that the engine took, and
    /// how many keys were found.
    fn look_up(&mut self) -> Result<(f64, u64)> {
        let Options { entries, seed, .. } = *self.options;
        let mut spent = 0.0;
        let mut found = 0;
        for first in (0..entries).step_by(LOOKUPS as usize) {
            let numbers = first..entries.min(first + LOOKUPS);
            let keys: Vec<_> = numbers.clone().map(|n| key(seed, n)).collect();

            let start = Instant::now();
            let lookups = self.table.get_many(&keys)?;
            spent += seconds(start);

            for (n, lookup) in numbers.zip(lookups) {
                let expected = (!n.is_multiple_of(2)).then(|| value(seed, n, 0));
                check(n, lookup.value(), expected.as_ref())?;
                found += u64::from(lookup.is_found());
            }
            self.count(keys.len())?;
        }
        Ok((spent, found))
    }
}

/// Measures in a session in `store`.
///
/// # Errors
/// [`Error`](crate::workloads::Error).
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { entries, batch, seed } = *options;
    bounded("entries", entries, 1)?;
    bounded("batch", batch, 1)?;

    let session = open(store)?;
    let table = session.new_table(&TableConfig::default())?;
    let mut work = Work { table, options, monitor, done: 0 };

    let insert_s = work.insert()?;
    let delete_s = work.delete()?;
    let (lookup_s, found) = work.look_up()?;

    let stats = work.table.stats();
    let count = entries as f64;
    drop(work);
    session.close()?;

    Ok(Report {
        entries,
        batch,
        seed,
        inserts_per_s: count / insert_s,
        deletes_per_s: count / delete_s,
        updates_per_s: 2.0 * count / (insert_s + delete_s),
        lookups_per_s: count / lookup_s,
        found,
        reads_per_lookup: stats.lookup_reads as f64 / stats.lookups as f64,
        runs: stats.runs(),
        stored_entries: stats.entries(),
    })
}

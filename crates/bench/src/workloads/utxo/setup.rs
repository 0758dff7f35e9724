//! `terrane bench utxo setup`: the table that runs work on, in the shape that it has in use.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{CompactionThread, Compression, Session, Table, TableConfig, Update};

use super::{
    BATCH_SIZE, ENTRY_SIZE, Key, Prepared, Shape, check_numbers, entry, merge_debt_bytes,
    table_config,
};
use crate::instruments::meter::Usage;
use crate::model::Goal;
use crate::workloads::{Error, Result, bounded, open, seconds};
use terrane_replay::monitor::{Monitor, Phase};

/// Way of loading the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loading {
    /// By a bulk load.
    Bulk,
    /// By batches of updates.
    Updates,
}

/// Options of a set-up.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Live entries.
    pub entries: u64,
    /// Way of loading the entries.
    pub loading: Loading,
    /// Entries that are replaced after loading, in per cent.
    pub churn_percent: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// The table's shape.
    pub shape: Shape,
    /// Compression of its pages.
    pub compression: Compression,
    /// Memory budget of the table.
    pub memory_budget: Option<u64>,
    /// Kind of lookups that the memory is spent on first.
    pub memory_goal: Goal,
    /// Whether merges run on a thread of their own.
    pub background_merges: bool,
}

/// Report of a set-up.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Live entries.
    pub entries: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Way in which the entries were loaded.
    pub loading: Loading,
    /// Loading, until a snapshot was durable.
    pub load_s: f64,
    /// Entries loaded in a second.
    pub inserts_per_s: f64,
    /// Replacing entries, until the second snapshot was durable.
    pub churn_s: f64,
    /// All of it.
    pub wall_s: f64,
    /// Time of all processors.
    pub cpu_s: f64,
    /// Bytes written while loading for each byte of keys and values.
    pub write_amplification: f64,
    /// Runs in the end.
    pub runs: u64,
    /// Physical entries of each level, the newest one first.
    pub levels: Vec<u64>,
    /// Merge work that is left to updates.
    pub merge_debt_bytes: u64,
    /// Bytes of the store.
    pub store_bytes: u64,
}

/// Bytes that loading may take on disk for each byte of keys and values: the last level twice while
/// it is merged, and what is above it.
const SPACE_AMPLIFICATION_MAX: u64 = 3;

/// Makes the table in `store`, which is made if it is missing; one from before is replaced.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let session = open(store)?;
    let needed = options.entries.saturating_mul(ENTRY_SIZE * SPACE_AMPLIFICATION_MAX);
    let free = disk.free_bytes(store).map_err(terrane::lsm::Error::from)?;
    if needed > free {
        return Err(Error::Space { needed, free });
    }
    let report = set_up(&session, options, monitor)?;
    session.close()?;
    Ok(Report { store_bytes: crate::instruments::meter::store_bytes(store).unwrap_or(0), ..report })
}

/// Makes the table in a session.
///
/// # Errors
/// [`Error`].
pub fn set_up(session: &Session, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let &Options {
        entries, loading, churn_percent, seed, shape, memory_budget, memory_goal, ..
    } = options;
    bounded("entries", entries, 2)?;
    let churned = entries * churn_percent / 100;
    check_numbers(entries + churned, 0, 1)?;
    let snapshot = Prepared::snapshot()?;
    session.delete_snapshot_if_exists(&snapshot)?;

    let compaction_thread = if options.background_merges {
        CompactionThread::Background
    } else {
        CompactionThread::Caller
    };

    let config = table_config(shape, memory_budget)
        .compaction_thread(compaction_thread)
        .compression(options.compression)
        .memory_goal(memory_goal.into());

    let start = Instant::now();
    let before = Usage::now();
    let mut table = load(session, &config, options, monitor)?;

    let loaded = Prepared { seed, entries, first: 0 };
    table.save_snapshot(&snapshot, &loaded.label())?;
    let load_s = seconds(start);

    // The churn replaces the oldest entries, which gives the table the shape that it has in use.
    let written = Usage::now().zip(before).map_or(0, |(now, then)| now.since(&then).write_bytes);
    replace(&mut table, (seed, entries, churned), monitor)?;
    session.delete_snapshot(&snapshot)?;
    let churned = Prepared { first: churned, ..loaded };
    table.save_snapshot(&snapshot, &churned.label())?;

    let wall_s = seconds(start);
    let stats = table.stats();
    Ok(Report {
        entries,
        seed,
        loading,
        load_s,
        inserts_per_s: entries as f64 / load_s,
        churn_s: wall_s - load_s,
        wall_s,
        cpu_s: Usage::now().zip(before).map_or(0.0, |(now, then)| now.since(&then).cpu_s),
        write_amplification: written as f64 / (entries * ENTRY_SIZE) as f64,
        runs: stats.runs(),
        levels: stats.levels.iter().map(|level| level.entries).collect(),
        merge_debt_bytes: merge_debt_bytes(&stats),
        store_bytes: 0,
    })
}

/// Loads the entries into a new table.
fn load(
    session: &Session,
    config: &TableConfig,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Table> {
    let &Options { entries, loading, churn_percent, seed, .. } = options;
    let all = entries + entries * churn_percent / 100;
    match loading {
        Loading::Bulk => bulk_load(session, config, (seed, entries), all, monitor),
        Loading::Updates => {
            let mut table = session.new_table(config)?;
            insert((seed, entries), all, monitor, &mut |batch| table.write_batch(batch))?;
            Ok(table)
        }
    }
}

/// Reports that `done` of `all` insertions have been made.
fn report_fill(done: u64, all: u64, monitor: &mut dyn Monitor) -> Result<()> {
    monitor.progress(Phase::Fill, done, Some(all));
    if monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
}

type Batch<'a> = [(&'a Key, Update<'a>)];

/// Inserts the first `count` numbers, in their order, which is none for keys.
fn insert(
    (seed, count): (u64, u64),
    all: u64,
    monitor: &mut dyn Monitor,
    put: &mut dyn FnMut(&Batch<'_>) -> terrane::lsm::Result<()>,
) -> Result<()> {
    for first in (0..count).step_by(2 * BATCH_SIZE as usize) {
        report_fill(first, all, monitor)?;
        let numbers = first..count.min(first + 2 * BATCH_SIZE);
        let pairs: Vec<_> = numbers.map(|number| entry(seed, number)).collect();
        let batch: Vec<_> = pairs.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        put(&batch)?;
    }

    Ok(())
}

fn bulk_load(
    session: &Session,
    config: &TableConfig,
    (seed, count): (u64, u64),
    all: u64,
    monitor: &mut dyn Monitor,
) -> Result<Table> {
    let mut loader = session.bulk_load(config)?;
    insert((seed, count), all, monitor, &mut |batch| loader.write_batch(batch))?;
    let mut watch = |done, of| {
        monitor.progress(Phase::Merge, done, Some(of));
        if monitor.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };

    match loader.finish_watched(&mut watch)? {
        ControlFlow::Continue(table) => Ok(table),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}

/// Deletes the first `count` numbers, and inserts `count` numbers from `next` on.
fn replace(
    table: &mut Table,
    (seed, next, count): (u64, u64, u64),
    monitor: &mut dyn Monitor,
) -> Result<()> {
    for first in (0..count).step_by(BATCH_SIZE as usize) {
        report_fill(next + first, next + count, monitor)?;
        let numbers = first..count.min(first + BATCH_SIZE);
        let old: Vec<_> = numbers.clone().map(|number| entry(seed, number).0).collect();
        let new: Vec<_> = numbers.map(|number| entry(seed, next + number)).collect();
        let deletes = old.iter().map(|key| (key, Update::Delete));
        let inserts = new.iter().map(|(key, value)| (key, Update::Insert(value)));
        let batch: Vec<_> = deletes.chain(inserts).collect();
        table.write_batch(&batch)?;
    }

    Ok(())
}

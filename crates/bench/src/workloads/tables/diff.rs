//! `terrane bench diff`: pages that it takes to find what changed between two versions of a table.
//!
//! A table gets all entries. Then come versions, each some updates after the one before: inserts
//! of new keys, new values of old keys, and deletions, a third each. Kept are pairs of neighbours:
//! those between which the memtable was flushed, since compactions begin there, and a few others.
//! In the end all compactions are completed, so each pair at a flush has compacted runs on one
//! side and their inputs on the other. Each pair is then compared in both directions, and so are
//! the first and the last version in one. Pages are counted at the disk; all changes are checked.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::io::CountedDisk;
use terrane::lsm::{CompactionSchedule, Lookup, Table, TableConfig, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{Result, fill, key, open_counted, report, value};
use crate::workloads::{Error, bounded, median, seconds};

/// Pairs that are kept without a flush between them, about.
const UNFLUSHED_PAIRS: u64 = 20;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Entries of the first version.
    pub entries: u64,
    /// Updates from one version to the next.
    pub updates: u64,
    /// Versions after the first one.
    pub versions: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// Diffs of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Diffs {
    /// Diffs taken.
    pub diffs: u64,
    /// Pages that a diff reads: the median.
    pub pages_median: u64,
    /// Pages that a diff reads, at most.
    pub pages_max: u64,
    /// Time of a diff: the median.
    pub wall_ms_median: f64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Entries of the first version.
    pub entries: u64,
    /// Updates from one version to the next.
    pub updates: u64,
    /// Versions after the first one.
    pub versions: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Entries of all runs of the last version and of its memtable, tombstones included.
    pub stored_entries: u64,
    /// Runs of the last version.
    pub runs: u64,
    /// Neighbours with a flush between them; `None` if the memtable was never flushed.
    pub flushed: Option<Diffs>,
    /// Pages of the compactions that began at one of these flushes, at most.
    pub compaction_pages_max: u64,
    /// Neighbours without a flush between them; `None` if there was a flush in each kept pair.
    pub unflushed: Option<Diffs>,
    /// The first and the last version.
    pub whole: Option<Diffs>,
}

/// An entry by its number, with the number of the value that it has from then on, if any.
type Change = (u64, Option<u64>);

/// Values of a key before some steps and after them.
type Sides = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Changes by key.
type Changes = BTreeMap<Vec<u8>, Sides>;

/// Pages and milliseconds of a diff.
type Cost = (u64, f64);

/// Changes of the step before a version: of three disjoint kinds, of keys that no other step
/// changes.
fn step(options: &Options, version: u64) -> Vec<Change> {
    let Options { entries, updates, .. } = *options;
    let each = updates / 3;
    let first = version * each;
    let new = (0..updates - 2 * each).map(|at| (entries + version * updates + at, Some(0)));
    let overwritten = (first..first + each).map(|n| (n, Some(version + 1)));
    let deleted = (first..first + each).map(|n| (entries / 2 + n, None));
    new.chain(overwritten).chain(deleted).collect()
}

fn apply(table: &mut Table, seed: u64, changes: &[Change]) -> Result<()> {
    let made = |&(n, round): &Change| (key(seed, n), round.map(|round| value(seed, n, round)));
    let made: Vec<_> = changes.iter().map(made).collect();
    let updates = made.iter().map(|(key, value)| match value {
        Some(value) => (key, Update::Insert(value)),
        None => (key, Update::Delete),
    });
    let batch: Vec<_> = updates.collect();
    Ok(table.write_batch(&batch)?)
}

/// Returns the expected difference of some steps.
fn expected(options: &Options, steps: Range<u64>) -> Changes {
    let Options { entries, seed, .. } = *options;
    let changes = steps.flat_map(|version| step(options, version));
    let sides = changes.map(|(n, round)| {
        let before = (n < entries).then(|| value(seed, n, 0).to_vec());
        (key(seed, n).to_vec(), (before, round.map(|round| value(seed, n, round).to_vec())))
    });
    sides.collect()
}

/// Two versions, and the steps between them.
struct Pair {
    older: Table,
    newer: Table,
    steps: Range<u64>,
    /// Pages of the compactions that began between the two; `None` without a flush.
    compaction_pages: Option<u64>,
}

/// Returns the pages of compactions by level.
fn compactions(table: &Table) -> Vec<u64> {
    table.stats().levels.iter().map(|level| level.merge_pages).collect()
}

/// Returns the cost of a diff, whose changes are checked.
fn measure(
    disk: &CountedDisk,
    (older, newer): (&Table, &Table),
    expected: &Changes,
    is_backward: bool,
) -> Result<Cost> {
    let before = disk.counts().read_pages;
    let start = Instant::now();
    let mut diff = older.diff(newer)?;
    let mut changes = Vec::with_capacity(expected.len());
    while let Some(change) = diff.next().transpose()? {
        changes.push(change);
    }
    let cost = (disk.counts().read_pages - before, seconds(start) * 1e3);

    let is_right = changes.len() == expected.len()
        && changes.iter().zip(expected).all(|(change, (key, (before, after)))| {
            let (old, new) = if is_backward { (after, before) } else { (before, after) };
            let is_same = |side: &Lookup, expected: &Option<Vec<u8>>| {
                side.value() == expected.as_deref() && side.blob().is_none()
            };
            change.key == *key && is_same(&change.old, old) && is_same(&change.new, new)
        });

    if is_right {
        return Ok(cost);
    }
    let counts = (changes.len(), expected.len());
    Err(Error::Wrong(format!("a diff of {} changes, not the {} made", counts.0, counts.1)))
}

/// Makes the versions and keeps pairs of neighbours.
fn pairs(table: &mut Table, options: &Options, monitor: &mut dyn Monitor) -> Result<Vec<Pair>> {
    let count = options.versions;
    let mut pairs = Vec::new();
    for version in 0..count {
        report(monitor, Phase::Operations, version * options.updates, count * options.updates)?;
        let older = table.fork()?;
        let debt = table.stats().merge_debt_pages;
        apply(table, options.seed, &step(options, version))?;

        // While the memtable fills, the debt only falls.
        let is_flushed = table.stats().merge_debt_pages > debt;
        if is_flushed || version.is_multiple_of(count.div_ceil(UNFLUSHED_PAIRS)) {
            let newer = table.fork()?;
            let before = compactions(&older);
            let after = compactions(&newer);
            let begun = after.iter().enumerate().filter(|(at, n)| before.get(*at) != Some(n));
            let compaction_pages = is_flushed.then(|| begun.map(|(_, pages)| pages).sum());
            pairs.push(Pair { older, newer, steps: version..version + 1, compaction_pages });
        }
    }

    Ok(pairs)
}

/// Completes all compactions, also those that other tables share with this one.
fn complete_compactions(table: &mut Table) -> Result<()> {
    let config = table.config().clone();
    table.set_config(&config.compaction_schedule(CompactionSchedule::OneShot))?;
    // The next update does all that is due.
    Ok(table.insert(b"one more", b"")?)
}

/// Sums diffs up; `None` if there are none.
fn summary(costs: &[Cost]) -> Option<Diffs> {
    let mut pages: Vec<u64> = costs.iter().map(|cost| cost.0).collect();
    pages.sort_unstable();
    Some(Diffs {
        diffs: pages.len() as u64,
        pages_median: *pages.get(pages.len() / 2)?,
        pages_max: *pages.last()?,
        wall_ms_median: median(costs.iter().map(|cost| cost.1).collect()),
    })
}

/// Measures in a session in `store`.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { entries, updates, versions, seed } = *options;
    bounded("entries", entries, 1)?;
    bounded("updates", updates, 1)?;
    bounded("versions", versions, 1)?;
    let least = 2 * updates * (versions + 1);
    if entries < least {
        let message =
            format!("each version changes other entries: entries must be at least {least}");
        return Err(Error::Options(message));
    }

    let (disk, session) = open_counted(store)?;
    let mut table = session.new_table(&TableConfig::default())?;
    fill(&mut table, seed, entries, monitor)?;

    let first = table.fork()?;
    let pairs = pairs(&mut table, options, monitor)?;
    let last = table.fork()?;
    complete_compactions(&mut table)?;

    let mut flushed = Vec::new();
    let mut unflushed = Vec::new();
    for (done, pair) in pairs.iter().enumerate() {
        report(monitor, Phase::Measure, done as u64, pairs.len() as u64)?;
        let Pair { older, newer, steps, compaction_pages } = pair;
        let expected = expected(options, steps.clone());
        let costs = if compaction_pages.is_some() { &mut flushed } else { &mut unflushed };
        costs.push(measure(&disk, (older, newer), &expected, false)?);
        costs.push(measure(&disk, (newer, older), &expected, true)?);
    }

    let whole = measure(&disk, (&first, &last), &expected(options, 0..versions), false)?;
    let stats = table.stats();
    let compaction_pages_max = pairs.iter().filter_map(|pair| pair.compaction_pages).max();
    drop((first, last, pairs, table));
    session.close()?;

    Ok(Report {
        entries,
        updates,
        versions,
        seed,
        stored_entries: stats.entries(),
        runs: stats.runs(),
        flushed: summary(&flushed),
        compaction_pages_max: compaction_pages_max.unwrap_or(0),
        unflushed: summary(&unflushed),
        whole: summary(&[whole]),
    })
}

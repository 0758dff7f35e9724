//! Tells how many pages it takes to find what changed between two versions of a large table.
//!
//! `cargo run --release --example diff [ENTRIES [UPDATES [VERSIONS [DIR]]]]`
//!
//! A table is filled with ENTRIES entries; keys are 34 bytes and uniform, values 60 bytes and
//! random. Then come VERSIONS versions, UPDATES updates apart: inserts of new keys, new values of
//! old keys, and deletions, a third each. Kept are pairs of neighbours: those between which the
//! write buffer was flushed, since there merges begin, and a few others; what only the versions
//! between them had goes. In the end all merges are completed, so that each pair at a flush has
//! merged runs on one side and their inputs on the other, and each pair is compared, in both
//! directions; so are the first and the last version.
//!
//! Pages are counted at the disk, and all changes are checked against what the updates did. DIR is
//! to be removed by the caller.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane::io::{CountedDisk, RealDisk};
use terrane::lsm::{
    CompactionSchedule, Lookup, Session, SessionOptions, Table, TableConfig, Update,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Pairs of versions without a flush between them.
const FEW: u64 = 20;

/// `SplitMix64`: the word that belongs to state `n`.
fn word(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn filled<const LEN: usize>(n: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(n.wrapping_mul(16) + at as u64).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

fn key(n: u64) -> [u8; 34] {
    filled(n)
}

/// The value that a key gets with update `round`; 0 for the first one.
fn value(n: u64, round: u64) -> [u8; 60] {
    filled(!(n + (round << 40)))
}

/// A key by its number, with the number of the value that it has from then on, if any.
type Change = (u64, Option<u64>);

/// The changes of the step before version `version`: of three disjoint kinds, of keys that no other
/// step changes.
fn step(entries: u64, updates: u64, version: u64) -> Vec<Change> {
    let each = updates / 3;
    let first = version * each;
    let new = (0..updates - 2 * each).map(|at| (entries + version * updates + at, Some(0)));
    let overwritten = (first..first + each).map(|n| (n, Some(version + 1)));
    let deleted = (first..first + each).map(|n| (entries / 2 + n, None));
    new.chain(overwritten).chain(deleted).collect()
}

fn apply(table: &mut Table, changes: &[Change]) -> Outcome<()> {
    let made = |&(n, round): &Change| (key(n), round.map(|round| value(n, round)));
    let made: Vec<_> = changes.iter().map(made).collect();
    let batch: Vec<_> = made
        .iter()
        .map(|(key, value)| match value {
            Some(value) => (key, Update::Insert(value)),
            None => (key, Update::Delete),
        })
        .collect();
    Ok(table.write_batch(&batch)?)
}

/// Values of a key before a step and after the step.
type Sides = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Returns the expected difference of some steps.
fn expected(entries: u64, updates: u64, steps: Range<u64>) -> BTreeMap<Vec<u8>, Sides> {
    let changes = steps.flat_map(|version| step(entries, updates, version));
    let sides = changes.map(|(n, round)| {
        let before = (n < entries).then(|| value(n, 0).to_vec());
        (key(n).to_vec(), (before, round.map(|round| value(n, round).to_vec())))
    });
    sides.collect()
}

/// Two versions, and the steps between them.
struct Pair {
    older: Table,
    newer: Table,
    steps: Range<u64>,
    /// Pages of the merges that began between them; `None` without a flush.
    merged: Option<u64>,
}

/// Pages of merges by level.
fn merges(table: &Table) -> Vec<u64> {
    table.stats().levels.iter().map(|level| level.merge_pages).collect()
}

/// The pages that a diff reads and the time that it takes; its changes are checked.
fn measure(
    disk: &CountedDisk,
    (older, newer): (&Table, &Table),
    expected: &BTreeMap<Vec<u8>, Sides>,
    is_back: bool,
) -> Outcome<(u64, Duration)> {
    let before = disk.counts().read_pages;
    let start = Instant::now();
    let mut diff = older.diff(newer)?;
    let mut changes = Vec::with_capacity(expected.len());
    while let Some(change) = diff.next().transpose()? {
        changes.push(change);
    }
    let measured = (disk.counts().read_pages - before, start.elapsed());

    let is_right = changes.len() == expected.len()
        && changes.iter().zip(expected).all(|(change, (key, (before, after)))| {
            let (old, new) = if is_back { (after, before) } else { (before, after) };
            let is_same = |side: &Lookup, expected: &Option<Vec<u8>>| {
                side.value() == expected.as_deref() && side.blob().is_none()
            };
            change.key == *key && is_same(&change.old, old) && is_same(&change.new, new)
        });
    if is_right {
        Ok(measured)
    } else {
        Err(format!("{} changes, not as made", changes.len()).into())
    }
}

/// Makes the versions and keeps pairs of them.
fn versions(table: &mut Table, entries: u64, updates: u64, count: u64) -> Outcome<Vec<Pair>> {
    let mut pairs = Vec::new();
    for version in 0..count {
        let older = table.fork()?;
        let debt = table.stats().merge_debt_pages;
        apply(table, &step(entries, updates, version))?;
        // While the memtable fills, the debt only falls.
        let is_flushed = table.stats().merge_debt_pages > debt;
        if is_flushed || version % count.div_ceil(FEW) == 0 {
            let newer = table.fork()?;
            let before = merges(&older);
            let after = merges(&newer);
            let begun =
                after.iter().enumerate().filter(|(at, pages)| before.get(*at) != Some(pages));
            let merged = is_flushed.then(|| begun.map(|(_, pages)| pages).sum());
            pairs.push(Pair { older, newer, steps: version..version + 1, merged });
        }
    }

    Ok(pairs)
}

/// Completes all merges, also those of others that this table shares.
fn complete_merges(table: &mut Table) -> Outcome<()> {
    let config = table.config().clone();
    table.set_config(&config.compaction_schedule(CompactionSchedule::OneShot))?;
    Ok(table.insert(b"one more", b"")?)
}

fn print(what: &str, mut all: Vec<(u64, Duration)>) {
    all.sort_unstable();
    if let (Some(median), Some(most)) = (all.get(all.len() / 2), all.last()) {
        let ms = median.1.as_secs_f64() * 1e3;
        let of = all.len();
        println!(
            "{what:22} {of:5} diffs, pages: median {:5}, most {:5}; {ms:.1} ms",
            median.0, most.0
        );
    }
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u64| args.next().map_or(Ok(default), |text| text.parse());
    let entries = number(10_000_000)?;
    let updates = number(1_000)?;
    let count = number(2_500)?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-diff".to_owned());
    let dir = Path::new(&dir);
    if entries < 2 * updates * (count + 1) {
        return Err("each version changes other entries; there are too few for so many".into());
    }

    std::fs::create_dir_all(dir)?;
    let disk = CountedDisk::new(RealDisk::auto());
    let session = Session::open(Arc::clone(&disk) as _, dir, &SessionOptions::default())?;

    let mut table = session.new_table(&TableConfig::default())?;
    for first in (0..entries).step_by(1_000) {
        let made: Vec<_> = (first..entries.min(first + 1_000)).map(|n| (n, Some(0))).collect();
        apply(&mut table, &made)?;
    }

    let first = table.fork()?;
    let pairs = versions(&mut table, entries, updates, count)?;
    let last = table.fork()?;
    complete_merges(&mut table)?;

    let mut at_flushes = Vec::new();
    let mut others = Vec::new();
    for Pair { older, newer, steps, merged } in &pairs {
        let expected = expected(entries, updates, steps.clone());
        let all = if merged.is_some() { &mut at_flushes } else { &mut others };
        all.push(measure(&disk, (older, newer), &expected, false)?);
        all.push(measure(&disk, (newer, older), &expected, true)?);
    }

    let stats = table.stats();
    println!("a table of {} entries in {} runs", stats.entries(), stats.runs());
    println!("neighbours, {updates} updates apart:");
    print("  a flush between them", at_flushes);
    let most = pairs.iter().filter_map(|pair| pair.merged).max().unwrap_or(0);
    println!("  merges that began with one of these flushes: up to {most} pages");
    print("  none", others);
    let expected = expected(entries, updates, 0..count);

    let all = measure(&disk, (&first, &last), &expected, false)?;
    print(&format!("{} updates apart", updates * count), vec![all]);
    drop((first, last, pairs, table));
    session.close()?;

    Ok(())
}

//! `terrane bench upsert`: what an upsert costs beside an insert, and beside a lookup and an
//! insert.
//!
//! 8-byte keys and values from a seeded generator, addition as merge operator, 250 operations a
//! batch, a write buffer of 1,000 entries, no page cache: as the report of `lsm-tree` has it. The
//! same pairs are inserted into one table and upserted into another, by turns, several times a
//! round, since a fill takes but a tenth of a second; then each key is upserted ten times, and a
//! rival looks it up, adds, and inserts ten times. Merges run inside the updates. Both tables of
//! each comparison are read at the end and must hold the same.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{
    DiskCache, IndexKind, MergeOperator, Session, Table, TableConfig, Update, WriteBuffer,
};

use super::{Error, Result, bounded, median, open, seconds, splitmix};
use terrane_replay::monitor::{Monitor, Phase};

/// Upserts of each key in the second comparison.
const UPSERTS_PER_KEY: u64 = 10;

/// Fills of either kind in a round.
const FILLS_PER_ROUND: u64 = 10;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Pairs.
    pub elements: u64,
    /// Operations in a batch.
    pub batch: u64,
    /// Times that each comparison is made.
    pub rounds: u64,
    /// First number of the keys.
    pub seed: u64,
}

/// Report of a run: medians of the rounds.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Pairs.
    pub elements: u64,
    /// Operations in a batch.
    pub batch: u64,
    /// Rounds.
    pub rounds: u64,
    /// Inserting all pairs.
    pub insert_s: f64,
    /// Upserting all pairs.
    pub upsert_s: f64,
    /// The ratio of the two, pair by pair.
    pub upsert_over_insert: f64,
    /// Upserting each key ten times.
    pub ten_upserts_s: f64,
    /// Looking up, adding and inserting each key ten times.
    pub ten_lookups_and_inserts_s: f64,
    /// Speed-up of upserts, round by round.
    pub speedup: f64,
}

type Pair = ([u8; 8], [u8; 8]);

/// Update that writes a value.
type Write = fn(&[u8; 8]) -> Update<'_>;

const INSERT: Write = |value| Update::Insert(value);
const UPSERT: Write = |value| Update::Upsert(value);

fn config() -> TableConfig {
    TableConfig::default()
        .merge_operator(MergeOperator::add_u64_wrapping())
        .write_buffer(WriteBuffer::Entries(1_000))
        .index(IndexKind::Compact)
        .disk_cache(DiskCache::None)
}

/// Table of the work, and its progress.
struct Bench<'a> {
    session: Session,
    options: &'a Options,
    pairs: &'a [Pair],
    monitor: &'a mut dyn Monitor,
    /// Pairs written, counted each time.
    done: u64,
}

impl<'a> Bench<'a> {
    /// Writes all pairs to a new table, this number of times.
    fn fill(&mut self, times: u64, update: Write) -> Result<(f64, Table)> {
        let mut table = self.session.new_table(&config())?;
        let start = Instant::now();
        for _ in 0..times {
            for chunk in self.chunks() {
                let batch: Vec<_> = chunk.iter().map(|(key, value)| (key, update(value))).collect();
                table.write_batch(&batch)?;
                self.tell(chunk.len())?;
            }
        }
        Ok((seconds(start), table))
    }

    fn ten_lookups_and_inserts(&mut self) -> Result<(f64, Table)> {
        let mut table = self.session.new_table(&config())?;
        let start = Instant::now();
        for _ in 0..UPSERTS_PER_KEY {
            for chunk in self.chunks() {
                let keys: Vec<_> = chunk.iter().map(|(key, _)| key).collect();
                let found = table.get_many(&keys)?;
                let sums = chunk.iter().zip(&found).map(|((_, value), found)| {
                    let old = found.value().and_then(<[u8]>::first_chunk).copied();
                    let old = u64::from_le_bytes(old.unwrap_or_default());
                    u64::from_le_bytes(*value).wrapping_add(old).to_le_bytes()
                });
                let sums: Vec<_> = sums.collect();
                let new = keys.into_iter().zip(&sums);
                let batch: Vec<_> = new.map(|(key, sum)| (key, Update::Insert(sum))).collect();
                table.write_batch(&batch)?;
                self.tell(chunk.len())?;
            }
        }

        Ok((seconds(start), table))
    }

    fn chunks(&self) -> impl Iterator<Item = &'a [Pair]> + use<'a> {
        self.pairs.chunks(usize::try_from(self.options.batch).unwrap_or(usize::MAX))
    }

    /// Hears, after each batch of pairs, whether to stop.
    fn tell(&mut self, pairs: usize) -> Result<()> {
        self.done += pairs as u64;
        let per_round = 2 * (FILLS_PER_ROUND + UPSERTS_PER_KEY);
        let total = self.options.elements * self.options.rounds * per_round;
        self.monitor.progress(Phase::Operations, self.done, Some(total));
        if self.monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Measures in a session in `store`.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    bounded("elements", options.elements, 1)?;
    bounded("batch", options.batch, 1)?;
    bounded("rounds", options.rounds, 1)?;

    let pairs: Vec<Pair> = (0..options.elements)
        .map(|number| {
            let key = splitmix(options.seed.wrapping_add(number));
            (key.to_le_bytes(), splitmix(!key).to_le_bytes())
        })
        .collect();

    let mut bench = Bench { session: open(store)?, options, pairs: &pairs, monitor, done: 0 };

    let mut inserts = vec![];
    let mut upserts = vec![];
    let mut upserts_over_inserts = vec![];
    let mut ten_upserts_s = vec![];

    let mut ten_inserts_s = vec![];
    let mut speedups = vec![];
    for _ in 0..options.rounds {
        for turn in 0..FILLS_PER_ROUND {
            // The two alternate, so that neither always profits from the caches of the other.
            let insert_first = turn % 2 == 0;
            let kinds = if insert_first { [INSERT, UPSERT] } else { [UPSERT, INSERT] };
            let first = bench.fill(1, kinds[0])?;
            let second = bench.fill(1, kinds[1])?;
            let ((insert_s, inserted), (upsert_s, upserted)) =
                if insert_first { (first, second) } else { (second, first) };
            if turn == 0 {
                compare(&inserted, &upserted, &pairs, 1)?;
            }
            inserts.push(insert_s);
            upserts.push(upsert_s);
            upserts_over_inserts.push(upsert_s / insert_s);
        }

        let (upsert_s, upserted) = bench.fill(UPSERTS_PER_KEY, UPSERT)?;
        let (insert_s, inserted) = bench.ten_lookups_and_inserts()?;
        compare(&inserted, &upserted, &pairs, UPSERTS_PER_KEY)?;
        ten_upserts_s.push(upsert_s);
        ten_inserts_s.push(insert_s);
        speedups.push(insert_s / upsert_s);
    }

    bench.session.close()?;
    Ok(Report {
        elements: options.elements,
        batch: options.batch,
        rounds: options.rounds,
        insert_s: median(inserts),
        upsert_s: median(upserts),
        upsert_over_insert: median(upserts_over_inserts),
        ten_upserts_s: median(ten_upserts_s),
        ten_lookups_and_inserts_s: median(ten_inserts_s),
        speedup: median(speedups),
    })
}

/// Both tables must hold each value times `factor`, and nothing else.
fn compare(inserted: &Table, upserted: &Table, pairs: &[Pair], factor: u64) -> Result<()> {
    for (name, table) in [("inserts", inserted), ("upserts", upserted)] {
        let mut cursor = table.cursor()?;
        let mut count = 0;
        while cursor.next_ref()?.is_some() {
            count += 1;
        }

        if count != pairs.len() {
            return Err(Error::Wrong(format!("{name}: {count} entries, not {}", pairs.len())));
        }

        let keys: Vec<_> = pairs.iter().map(|(key, _)| key).collect();
        for ((key, value), found) in pairs.iter().zip(table.get_many(&keys)?) {
            let expected = u64::from_le_bytes(*value).wrapping_mul(factor).to_le_bytes();
            if found.value() != Some(&expected) {
                return Err(Error::Wrong(format!("{name}: key {key:02x?} has {found:?}")));
            }
        }
    }

    Ok(())
}

//! `terrane bench union`: lookups in a union of tables while its debt is paid.
//!
//! Ten tables of a million entries (34-byte keys, 60-byte values), each with a random half of the
//! keys of a domain of two million, no page cache; and one reference table with all keys. Rounds of
//! 200 batches of 256 lookups of random keys of the domain: some at full debt, then one after each
//! per cent of the debt that is paid, then some with none. Every result is checked. Keys are drawn
//! from the whole domain, so one in a thousand is in no table.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{DiskCache, Session, Table, TableConfig, Update, WriteBuffer};

use super::{Error, Result, bounded, fill_bytes, median, open, seconds, splitmix};
use terrane_replay::monitor::{Monitor, Phase};

/// Keys in a batch of lookups.
const BATCH: u64 = 256;

/// Instalments that the debt is paid in.
const INSTALMENTS: u64 = 100;

/// The fewest entries of a table: with fewer all keys may have gone to the others, and no debt be
/// left.
const ENTRIES_MIN: u64 = 100;

/// Entries written with one call.
const FILL_BATCH: usize = 500;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Tables that are united.
    pub tables: u64,
    /// Entries of a table, about.
    pub entries: u64,
    /// Batches of lookups in a round.
    pub batches: u64,
    /// Rounds at full debt, and the number of rounds without debt.
    pub rounds: u64,
    /// Seed of the keys and of what is looked up.
    pub seed: u64,
}

/// A round of lookups.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Round {
    /// Debt that is left.
    pub debt: u64,
    /// Debt that is left, in per cent of the whole.
    pub debt_percent: f64,
    /// Keys looked up in a second.
    pub lookups_per_s: f64,
    /// Pages read for each of them.
    pub reads_per_lookup: f64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Tables united.
    pub tables: u64,
    /// Entries of all tables together.
    pub entries: u64,
    /// Keys that at least one has.
    pub keys: u64,
    /// The debt at first, in entries.
    pub debt: u64,
    /// The reference table.
    pub reference: Round,
    /// At 100, 75, 50, 25 and 0 per cent of the debt: medians of the rounds there.
    pub quarters: Vec<Round>,
    /// Paying all of the debt.
    pub pay_s: f64,
    /// Longest instalment of one per cent.
    pub instalment_max_s: f64,
    /// Rounds after each instalment.
    pub rounds: Vec<Round>,
}

/// Returns the key of a number.
fn key(options: &Options, number: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    fill_bytes(&mut key[..32], splitmix(options.seed ^ number));
    key
}

/// Returns the value of a key.
fn value(key: &[u8; 34]) -> [u8; 60] {
    let mut value = [0; 60];
    value[..34].copy_from_slice(key);
    value[34..].copy_from_slice(&key[8..]);
    value
}

/// Whether the input number `table` has the key of that number: each input has half of all numbers.
fn has(options: &Options, table: u64, number: u64) -> bool {
    splitmix(splitmix(options.seed.wrapping_add(table + 1)) ^ number) & 1 == 0
}

/// Whether any input has the key of that number.
fn in_any(options: &Options, number: u64) -> bool {
    (0..options.tables).any(|table| has(options, table, number))
}

/// Measures in a session in `store`.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { tables, entries, batches, rounds, .. } = *options;
    bounded("tables", tables, 2)?;
    bounded("entries", entries, ENTRIES_MIN)?;
    bounded("batches", batches, 1)?;
    bounded("rounds", rounds, 1)?;

    let session = open(store)?;
    let (inputs, reference_table) = fill_all(&session, options, monitor)?;
    let total = inputs.iter().map(|table| table.stats().entries()).sum();
    let keys = reference_table.stats().entries();
    let inputs: Vec<&Table> = inputs.iter().collect();
    let mut union = session.incremental_union(&inputs)?;
    let debt = union.remaining_union_debt();
    debug_assert!(debt > 0, "a new union owes the merge of its inputs");
    let mut lookups = Lookups { options, debt, drawn: 0 };
    let all_rounds = 2 * rounds + INSTALMENTS;

    let mut report = |done: u64| {
        monitor.progress(Phase::Measure, done, Some(all_rounds));
        if monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
    };

    // The reference is read beside the union, so that both meet the same caches and the same noise.
    let mut full = Vec::new();
    let mut of_reference = Vec::new();
    for round in 0..rounds {
        report(round)?;
        full.push(lookups.round(&union)?);
        of_reference.push(lookups.round(&reference_table)?);
    }

    // The debt is paid in instalments of one per cent; the last one pays the rest of the division.
    let mut paid = Vec::new();

    let mut pay_s = 0.0;
    let mut instalment_max_s = 0.0_f64;
    for instalment in 1..=INSTALMENTS {
        report(rounds + instalment)?;
        let target = debt - debt / INSTALMENTS * instalment;
        let target = if instalment == INSTALMENTS { 0 } else { target };
        let start = Instant::now();
        union.supply_union_credits(union.remaining_union_debt().saturating_sub(target))?;
        let spent = seconds(start);
        pay_s += spent;
        instalment_max_s = instalment_max_s.max(spent);
        paid.push(lookups.round(&union)?);
    }

    let mut none = Vec::new();
    for round in 0..rounds {
        report(rounds + INSTALMENTS + round)?;
        none.push(lookups.round(&union)?);
    }

    // A quarter is the median of the rounds just before it.
    let mut quarters = vec![typical(&full)];
    quarters.extend([25, 50, 75].map(|at: usize| typical(&paid[at - 2..=at])));
    quarters.push(typical(&none));
    session.close()?;

    Ok(Report {
        tables,
        entries: total,
        keys,
        debt,
        reference: typical(&of_reference),
        quarters,
        pay_s,
        instalment_max_s,
        rounds: paid,
    })
}

/// Fills the inputs of the union, and a reference table that has the keys of all inputs.
fn fill_all(
    session: &Session,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<(Vec<Table>, Table)> {
    // An input has about `entries` keys, half of all numbers. The reference has at most all of
    // them.
    let total = (options.tables + 2) * options.entries;
    let mut filled = 0;

    let mut inputs = Vec::new();
    for table in 0..options.tables {
        let has = |number: &u64| has(options, table, *number);
        inputs.push(fill(session, options, &has, &mut filled, total, monitor)?);
    }

    let in_any = |number: &u64| in_any(options, *number);
    let reference = fill(session, options, &in_any, &mut filled, total, monitor)?;
    Ok((inputs, reference))
}

/// Fills one table with the numbers that `has` accepts.
fn fill(
    session: &Session,
    options: &Options,
    has: &dyn Fn(&u64) -> bool,
    filled: &mut u64,
    total: u64,
    monitor: &mut dyn Monitor,
) -> Result<Table> {
    let config = TableConfig::default()
        .write_buffer(WriteBuffer::Entries(20_000))
        .disk_cache(DiskCache::None);

    let mut table = session.new_table(&config)?;
    let numbers: Vec<u64> = (0..2 * options.entries).filter(has).collect();
    for part in numbers.chunks(FILL_BATCH) {
        if monitor.stop() {
            return Err(Error::Interrupted);
        }
        let pairs: Vec<_> = part.iter().map(|&number| key(options, number)).collect();
        let pairs: Vec<_> = pairs.into_iter().map(|key| (key, value(&key))).collect();
        let batch: Vec<_> = pairs.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        table.write_batch(&batch)?;
        *filled += part.len() as u64;
        monitor.progress(Phase::Fill, *filled, Some(total));
    }

    Ok(table)
}

/// Keys to look up, never the same twice.
struct Lookups<'a> {
    options: &'a Options,
    debt: u64,
    drawn: u64,
}

impl Lookups<'_> {
    /// Looks up one round of keys in one table, and checks every answer.
    #[expect(clippy::cast_precision_loss, reason = "rates and ratios")]
    fn round(&mut self, table: &Table) -> Result<Round> {
        let mut spent = 0.0;
        let reads_before = table.stats().lookup_reads;
        for _ in 0..self.options.batches {
            let numbers: Vec<u64> = (0..BATCH)
                .map(|_| {
                    self.drawn += 1;
                    splitmix(self.options.seed.rotate_left(32) ^ self.drawn)
                        % (2 * self.options.entries)
                })
                .collect();

            let keys: Vec<_> = numbers.iter().map(|&number| key(self.options, number)).collect();

            // Only the lookups are inside the clock.
            let start = Instant::now();
            let found = table.get_many(&keys)?;
            spent += seconds(start);

            for ((number, key), found) in numbers.iter().zip(&keys).zip(found) {
                let expected = in_any(self.options, *number).then(|| value(key));
                if found.value() != expected.as_ref().map(<[u8; 60]>::as_slice) {
                    return Err(Error::Wrong(format!("key {number}: found {found:?}")));
                }
            }
        }

        let count = (self.options.batches * BATCH) as f64;
        let debt = table.remaining_union_debt();
        Ok(Round {
            debt,
            debt_percent: 100.0 * debt as f64 / self.debt as f64,
            lookups_per_s: count / spent,
            reads_per_lookup: (table.stats().lookup_reads - reads_before) as f64 / count,
        })
    }
}

/// Returns the median of some rounds, with the debt that the last round left.
fn typical(rounds: &[Round]) -> Round {
    let last = rounds[rounds.len() - 1];
    Round {
        lookups_per_s: median(rounds.iter().map(|round| round.lookups_per_s).collect()),
        reads_per_lookup: median(rounds.iter().map(|round| round.reads_per_lookup).collect()),
        ..last
    }
}

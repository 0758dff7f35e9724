//! `terrane bench utxo`: the primary benchmark of the report on `lsm-tree`, a set of unspent
//! outputs under load.
//!
//! Keys of 34 bytes, values of 60, all uniform and incompressible. Each batch looks up 256 keys
//! that the table has, drawn uniformly and without repetition, deletes exactly those, and inserts
//! 256 new ones; so the table keeps its size. One *operation* is a lookup, a deletion and an
//! insertion.
//!
//! Entries are *numbered*. Key and value follow from the number and the seed ([`entry`]), so every
//! value that is found is compared with what it must be. The first eight bytes of a key are a
//! bijection of its number, so no two numbers have the same key. [`setup`] inserts the numbers from
//! 0 on and then replaces the oldest ones, so that the table has the shape it has in use; what
//! lives then are the numbers from `first` on. [`run`] measures in a copy of that table, which it
//! forgets; it can be repeated.
//!
//! [`draws`] decides which numbers are looked up, before anything is measured.

use terrane::lsm::{CompactionPolicy, DiskCache, PAGE_SIZE, SnapshotName, TableConfig, TableStats};

use super::{Error, Result, fill_bytes, splitmix};

// Bottom-up: a module imports only from modules above it.
pub mod draws;
pub mod setup;
mod options;
mod work;
pub mod run;

/// Bytes of a key.
pub const KEY_SIZE: usize = 34;

/// Bytes of a value.
pub const VALUE_SIZE: usize = 60;

/// Bytes of a key and its value.
pub const ENTRY_SIZE: u64 = (KEY_SIZE + VALUE_SIZE) as u64;

/// Operations in a batch, as the report has it.
pub const BATCH_SIZE: u64 = 256;

/// The most entries that a run counts: numbers of entries take four bytes.
const NUMBERS_MAX: u64 = u32::MAX as u64;

/// A key.
pub type Key = [u8; KEY_SIZE];

/// A value.
pub type Value = [u8; VALUE_SIZE];

/// Key and value of a number.
#[must_use]
pub fn entry(seed: u64, number: u64) -> (Key, Value) {
    (key(seed, number), value(seed, number))
}

fn key(seed: u64, number: u64) -> Key {
    let mut key = [0; KEY_SIZE];
    // `splitmix` is a bijection.
    fill_bytes(&mut key, splitmix(seed ^ number));
    key
}

fn value(seed: u64, number: u64) -> Value {
    let mut value = [0; VALUE_SIZE];
    fill_bytes(&mut value, splitmix(!seed ^ number));
    value
}

/// The shape of a table that is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// The engine's own: lazy levelling, each level four times the one above.
    #[default]
    Default,
    /// One run on each level, each ten times the one above: for tables that are mostly read.
    Levelled10,
}

/// Returns the configuration of a table of a benchmark: past the page cache, and otherwise the
/// default of the engine.
#[must_use]
pub fn table_config(shape: Shape, memory_budget: Option<u64>) -> TableConfig {
    let base = TableConfig::default().disk_cache(DiskCache::None).memory_budget(memory_budget);
    match shape {
        Shape::Default => base,
        Shape::Levelled10 => base.compaction_policy(CompactionPolicy::Levelling).size_ratio(10),
    }
}

/// A prepared table: what its snapshot's label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Seed of keys and values.
    pub seed: u64,
    /// Live entries.
    pub entries: u64,
    /// The smallest number that lives; all from there on do.
    pub first: u64,
}

impl Prepared {
    /// The name that the snapshot has in its store.
    fn snapshot() -> Result<SnapshotName> {
        Ok(SnapshotName::new("bench-utxo")?)
    }

    fn label(self) -> String {
        let Self { seed, entries, first } = self;
        format!("bench utxo 1, seed {seed}, entries {entries}, first {first}")
    }

    fn from_label(label: &str) -> Option<Self> {
        let fields = label.strip_prefix("bench utxo 1, ")?;
        let mut fields = fields.split(", ").map(|field| field.split_once(' '));
        let mut number = |name: &str| {
            let (found, number) = fields.next()??;
            (found == name).then(|| number.parse().ok())?
        };
        let seed = number("seed")?;
        let entries = number("entries")?;
        let first = number("first")?;
        Some(Self { seed, entries, first })
    }
}

/// Returns the bytes that the compactions under way have still to read.
fn merge_debt_bytes(stats: &TableStats) -> u64 {
    stats.merge_debt_pages * PAGE_SIZE as u64
}

/// Refuses what cannot be numbered.
fn check_numbers(entries: u64, batches: u64, batch_size: u64) -> Result<()> {
    super::bounded("batch size", batch_size, 1)?;
    let ops = batches.checked_mul(batch_size);
    let total = ops.and_then(|ops| ops.checked_add(entries));

    if total.is_none_or(|total| total > NUMBERS_MAX) {
        let message = format!("entries and operations together must be at most {NUMBERS_MAX}");
        return Err(Error::Options(message));
    }

    if batch_size * 2 > entries {
        let message = format!("a batch must be at most half of the {entries} entries of the table");
        return Err(Error::Options(message));
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_back_and_nothing_else_is() {
        let prepared = Prepared { seed: 7, entries: 100, first: 20 };
        assert_eq!(Prepared::from_label(&prepared.label()), Some(prepared));
        for label in ["", "bench utxo 1, seed 7", "bench utxo 2, seed 7, entries 100, first 20"] {
            assert_eq!(Prepared::from_label(label), None, "{label}");
        }
    }

    #[test]
    fn entries_differ_by_number_and_seed_in_all_parts() {
        let one = entry(1, 1);
        let other = entry(1, 2);
        assert!(one.0[..8] != other.0[..8] && one.0[26..] != other.0[26..]);
        assert!(one.1[..8] != other.1[..8] && one.1[52..] != other.1[52..]);
        assert_ne!(one, entry(2, 1));
        assert_eq!(one, entry(1, 1));
    }
}

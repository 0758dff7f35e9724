//! Bytes on disk per byte of live keys and values, while entries are replaced.
//!
//! Goal: what a table takes on disk follows what is live in it, and the most that it takes for a
//! moment, as a merge ends, is known.
//!
//! Method: a bulk load, then batches of which each deletes the oldest entries and inserts as many
//! new ones. After each batch the sizes of all run files are added up on the simulated disk. The
//! bytes follow from the numbers below alone, so bounds are tight.

use terrane_lsm::{TableConfig, Update};

use crate::{SessionDir, buffer_of, key, value};

/// Live entries.
const ENTRIES: u64 = 120_000;

/// Entries that a batch replaces.
const BATCH: u64 = 1_000;

/// Bytes of a key and of a value.
const ENTRY_BYTES: u64 = 34 + 60;

/// Bytes on disk for each live one.
#[derive(Debug)]
struct Use {
    loaded: f64,
    /// When a fifth of the entries has been replaced.
    fifth: f64,
    /// The mean of the batches that replace all entries once more, and the most after one of them.
    mean: f64,
    most: f64,
    /// Bytes written for each byte of an entry that was inserted.
    written: f64,
}

fn replace(config: &TableConfig) -> Use {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut loader = session.bulk_load(config).unwrap();
    for first in (0..ENTRIES).step_by(BATCH as usize) {
        let entries: Vec<_> = (first..first + BATCH).map(|n| (key(n), value(n, 60))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        loader.write_batch(&batch).unwrap();
    }
    let mut table = loader.finish().unwrap();
    let factor = || place.run_bytes() as f64 / (ENTRIES * ENTRY_BYTES) as f64;
    let loaded = factor();

    let mut factors = Vec::new();
    let mut written = 0;
    for first in (0..3 * ENTRIES / 2).step_by(BATCH as usize) {
        let entries: Vec<_> = (first..first + BATCH)
            .map(|n| (key(n), key(n + ENTRIES), value(n + ENTRIES, 60)))
            .collect();
        let mut batch: Vec<_> = entries.iter().map(|(old, ..)| (old, Update::Delete)).collect();
        batch.extend(entries.iter().map(|(_, key, value)| (key, Update::Insert(value))));
        if first == ENTRIES / 2 {
            written = session.stats().written_bytes;
        }
        table.write_batch(&batch).unwrap();
        factors.push(factor());
    }

    let written = session.stats().written_bytes - written;
    let fifth = factors[(ENTRIES / 5 / BATCH) as usize - 1];
    let steady = &factors[(ENTRIES / 2 / BATCH) as usize..];
    Use {
        loaded,
        fifth,
        mean: steady.iter().sum::<f64>() / steady.len() as f64,
        most: steady.iter().fold(0.0, |most, factor| factor.max(most)),
        written: written as f64 / (ENTRIES * ENTRY_BYTES) as f64,
    }
}

/// The default policy, with tables of 120 and of 60 memtables, whose last level is level 3. A merge
/// on it begins with the twelfth run above in the first one, and in the second once a third of the
/// entries are deleted.
#[test]
fn a_table_whose_entries_are_replaced_takes_a_stated_part_of_the_disk() {
    let cases = [(1_000, 1.42, 1.41, 1.68, 9.0), (2_000, 1.41, 1.66, 2.06, 6.6)];
    for (entries, fifth, mean, most, written) in cases {
        let found = replace(&buffer_of(entries));
        println!("{entries} in a memtable: {found:.2?}");
        assert!(found.loaded < 1.10, "{found:?}");
        assert!(found.fifth < fifth, "{found:?}");
        assert!(found.mean < mean, "{found:?}");
        assert!(found.most < most, "{found:?}");
        assert!(found.written < written, "{found:?}");
    }
}

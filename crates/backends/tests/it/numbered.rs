//! Entries whose keys are numbers, and how much of the suite of rules is run.

use std::ops::Range;

use terrane_kv::conformance::Extent;
use terrane_kv::{Database, Reader, Result, Table};

/// A tenth of what the suite can do, or less: back-ends that sync take minutes for all of it.
pub(crate) fn extent() -> Extent {
    Extent {
        seed: 1,
        histories: 4,
        steps: 100,
        batch_entries: 4_000,
        value_bytes_max: 512 << 10,
        rounds: 15,
    }
}

/// A key; keys have the order of their numbers.
#[expect(clippy::big_endian_bytes, reason = "so that key order is the order of numbers")]
pub(crate) fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Binds some keys to one value, in one commit.
pub(crate) fn put(database: &dyn Database, numbers: Range<u32>, value: &[u8]) -> Result<()> {
    let mut writer = database.writer()?;
    for number in numbers {
        writer.overwrite(Table::Main, &key(number), value)?;
    }
    writer.commit().map(drop)
}

/// The numbers of all keys, in the order of a cursor.
#[expect(clippy::big_endian_bytes, reason = "so that key order is the order of numbers")]
pub(crate) fn keys(reader: &dyn Reader) -> Vec<u32> {
    let mut cursor = reader.cursor(Table::Main).unwrap();
    let entries = std::iter::from_fn(|| cursor.next().unwrap());
    entries.map(|(key, _)| u32::from_be_bytes(key.try_into().unwrap())).collect()
}

/// The value of a setting.
pub(crate) fn setting(database: &dyn Database, name: &str) -> String {
    let settings = database.settings();
    settings.into_iter().find(|(found, _)| *found == name).unwrap().1
}

//! Recipe: sorted data from another database become a named table, without a log and without
//! compaction, while the store goes on with its other tables.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{Store, StoreOptions, TableConfig, WriteBatch};

const ENTRIES: u64 = 10_000;

/// Entries in ascending order of their keys, as a cursor of the other database gives them.
fn old_database() -> impl Iterator<Item = ([u8; 8], [u8; 8])> {
    (0..ENTRIES).map(|number| (number.to_be_bytes(), (number * number).to_le_bytes()))
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open_dir(dir.join("new"), &StoreOptions::default().create_dir())?;
    let progress = store.create_table("progress", &TableConfig::default())?;

    // The table comes under its name at the end, whole, together with the batch.
    let mut loader = store.bulk_load("accounts", &TableConfig::default())?;
    for (key, value) in old_database() {
        loader.insert(key, value)?;
    }
    let mut done = WriteBatch::new();
    done.insert(&progress, "migrated", "accounts");
    let accounts = loader.finish_with(&done)?;

    assert_eq!(accounts.view()?.count_exact()?, ENTRIES);
    assert_eq!(progress.get(b"migrated")?.value(), Some(b"accounts".as_slice()));
    let stats = accounts.stats()?;
    println!("{} entries in {} run", stats.entries(), stats.runs());
    Ok(store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

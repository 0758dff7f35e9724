//! Recipe: a backup of a store that goes on committing, and a restore from it.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{BackupPlace, Store, StoreOptions, TableConfig, WriteBatch};

const ENTRIES: u64 = 5_000;

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open_dir(dir.join("live"), &StoreOptions::default().create_dir())?;
    let accounts = store.create_table("accounts", &TableConfig::default())?;
    let mut batch = WriteBatch::new();
    for number in 0..ENTRIES {
        batch.insert(&accounts, number.to_be_bytes(), "100");
    }
    store.write(&batch)?.wait()?;

    // The first backup copies all runs; a later one only those that it lacks.
    let place = BackupPlace::new(dir.join("backup"));
    let first = store.back_up(&place, &mut |_, _| {})?;
    accounts.insert(b"late", b"1")?.wait()?;
    let second = store.back_up(&place, &mut |_, _| {})?;
    println!(
        "first backup: {} bytes copied; second: {} copied, {} there already",
        first.bytes_copied, second.bytes_copied, second.bytes_shared
    );

    // The disaster.
    store.close()?;
    drop((store, accounts));
    std::fs::remove_dir_all(dir.join("live"))?;

    // A backup is a store: copy its directory (here: move it), check it, open it.
    std::fs::rename(dir.join("backup"), dir.join("live"))?;
    let store = Store::open_dir(dir.join("live"), &StoreOptions::default())?;
    assert_eq!(store.table("accounts")?.view()?.count_exact()?, ENTRIES + 1);
    println!("restored {} entries", ENTRIES + 1);
    Ok(store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

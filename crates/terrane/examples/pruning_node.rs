//! Recipe: a node that can go back to any of its last blocks, and forgets the older ones.
//!
//! A retained version is all tables as of one commit. It costs some 40 bytes, and keeps the log and
//! the runs that it needs until it is released.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{NamedTable, Store, StoreOptions, TableConfig, WriteBatch};

const KEPT: usize = 4;
const BLOCKS: u64 = 12;

/// Connects a block and retains the state after it; older states than the last few are released.
fn connect(store: &Store, accounts: &NamedTable, height: u64) -> Result<(), Box<dyn Error>> {
    let mut batch = WriteBatch::new();
    batch.insert(accounts, "height", height.to_le_bytes());
    batch.insert(accounts, format!("block/{height}"), "paid");
    let ticket = store.write(&batch)?;
    store.retain(None)?; // syncs the log, so there is no need to wait for the ticket
    assert!(ticket.is_durable());

    let versions = store.versions()?;
    for version in versions.iter().rev().skip(KEPT) {
        store.release(version.number)?;
    }
    Ok(())
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open_dir(dir.join("node"), &StoreOptions::default().create_dir())?;
    let accounts = store.create_table("accounts", &TableConfig::default())?;
    for height in 1..=BLOCKS {
        connect(&store, &accounts, height)?;
    }

    // An earlier state is read beside the present one.
    let versions = store.versions()?;
    assert_eq!(versions.len(), KEPT);
    let oldest = store.version(versions[0].number)?;
    let height = oldest.table("accounts")?.get(b"height")?;
    assert_eq!(height.value(), Some(9_u64.to_le_bytes().as_slice()));

    // A fork of the chain: all tables go back at once, and the node goes on from there.
    store.roll_back(versions[1].number)?;
    let height = accounts.get(b"height")?;
    assert_eq!(height.value(), Some(10_u64.to_le_bytes().as_slice()));
    assert!(!accounts.get(b"block/11")?.is_found());
    connect(&store, &accounts, 11)?;
    println!("went back to height 10, then on to 11");
    Ok(store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

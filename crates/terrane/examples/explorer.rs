//! Recipe: the history of an account, newest first, page by page, as a block explorer shows it.
//!
//! The key is the address and then the height as a big-endian number, so that an account's entries
//! stand together in the order of time.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{Store, StoreOptions, Table, TableConfig, WriteBatch};

const PAGE: usize = 3;

fn key(address: &str, height: u64) -> Vec<u8> {
    [address.as_bytes(), b"/", &height.to_be_bytes()].concat()
}

/// A page of heights below `before`, newest first.
fn page(history: &Table, address: &str, before: u64) -> Result<Vec<u64>, Box<dyn Error>> {
    let range = key(address, 0)..key(address, before);
    let mut heights = Vec::new();
    for record in history.range(range)?.rev().take(PAGE) {
        let record = record?;
        let (_, height) = record.key.split_at(record.key.len() - 8);
        heights.push(u64::from_be_bytes(height.try_into()?));
    }
    Ok(heights)
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open_dir(dir.join("index"), &StoreOptions::default().create_dir())?;
    let history = store.create_table("history", &TableConfig::default())?;

    let mut batch = WriteBatch::new();
    for height in 1..=8 {
        batch.insert(&history, key("alice", height), b"received 1");
    }
    batch.insert(&history, key("bob", 3), b"sent 8");
    store.write(&batch)?.wait()?;

    // A view stays as it is while blocks come, so that pages neither skip nor repeat an entry.
    let view = history.view()?;
    let mut before = u64::MAX;
    let mut shown = Vec::new();
    loop {
        let heights = page(&view, "alice", before)?;
        let Some(&oldest) = heights.last() else { break };
        println!("alice: {heights:?}");
        before = oldest;
        shown.push(heights);
    }

    assert_eq!(shown, [vec![8, 7, 6], vec![5, 4, 3], vec![2, 1]]);
    Ok(store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

//! Recipe: unspent outputs, and an index of them by address that is never behind.
//!
//! `derive` registers a function that says under which address a coin stands. From then on each
//! commit to the coins changes the index, too, in the same record: after a crash, a roll-back or a
//! restore both agree. When the function changes, its version is raised, and the index is made
//! anew.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{
    DerivedIndex, IndexEntries, NamedTable, Store, StoreOptions, TableConfig, WriteBatch,
};

/// Bytes of an address, at the beginning of a coin; its amount follows.
const ADDRESS_BYTES: usize = 20;

/// Raised whenever [`by_address`] makes other entries.
const BY_ADDRESS_VERSION: u32 = 1;

/// A coin stands under its address, with its amount.
fn by_address(_point: &[u8], coin: &[u8], entries: &mut IndexEntries<'_>) {
    if let Some((address, amount)) = coin.split_at_checked(ADDRESS_BYTES) {
        entries.add(address, amount);
    }
}

/// Coins by output, and by address.
struct Coins {
    store: Store,
    by_output: NamedTable,
    by_address: DerivedIndex,
}

impl Coins {
    fn open(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let store = Store::open_dir(dir, &StoreOptions::default().create_dir())?;
        let by_output = store.table_or_create("coins", &TableConfig::default())?;
        let by_address = by_output.derive("by-address", BY_ADDRESS_VERSION, by_address)?;
        Ok(Self { store, by_output, by_address })
    }

    /// Spends outputs and makes others, atomically.
    fn connect(&self, spent: &[&str], made: &[(&str, u8, u64)]) -> Result<(), Box<dyn Error>> {
        let mut batch = WriteBatch::new();
        for point in spent {
            batch.delete(&self.by_output, point);
        }
        for (point, owner, amount) in made {
            let coin = [&[*owner; ADDRESS_BYTES][..], &amount.to_le_bytes()].concat();
            batch.insert(&self.by_output, point, coin);
        }
        Ok(self.store.write(&batch)?.wait()?)
    }

    /// Sum of the coins of an address, read from the index alone.
    fn balance(&self, owner: u8) -> Result<u64, Box<dyn Error>> {
        let mut sum = 0;
        for entry in self.by_address.get([owner; ADDRESS_BYTES])? {
            sum += u64::from_le_bytes(entry?.value.as_slice().try_into()?);
        }
        Ok(sum)
    }
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let dir = dir.join("chain");
    let coins = Coins::open(&dir)?;
    coins.connect(&[], &[("tx1:0", 1, 50), ("tx2:0", 1, 7)])?;
    let before = coins.store.retain(None)?;
    coins.connect(&["tx1:0"], &[("tx3:0", 2, 30), ("tx3:1", 1, 20)])?;
    assert_eq!((coins.balance(1)?, coins.balance(2)?), (27, 30));

    // Another branch turns out to be longer: the index goes back with the coins.
    coins.store.roll_back(before)?;
    assert_eq!((coins.balance(1)?, coins.balance(2)?), (57, 0));
    coins.store.close()?;

    // The next run registers the function again, which reads nothing.
    let coins = Coins::open(&dir)?;
    assert!(coins.by_address.verify()?.is_equal());
    println!("address 1 has {}", coins.balance(1)?);
    Ok(coins.store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

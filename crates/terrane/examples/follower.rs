//! Recipe: a second process reads a store while the first one writes it.
//!
//! Without arguments this program writes a store and starts itself again as the follower:
//! `follower DIR` reads the store in DIR until it finds the last block.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use terrane::lsm::{ReaderOptions, Store, StoreOptions, StoreReader, TableConfig};

const BLOCKS: u64 = 20;

/// Follows a store until it has all blocks; returns how many views differed.
pub(crate) fn follow(dir: &Path) -> Result<u64, Box<dyn Error>> {
    let mut reader = StoreReader::open_dir(dir, &ReaderOptions::default())?;
    let mut views = 0;
    loop {
        // A refresh goes to the last commit; until the next one nothing that is read changes.
        let commit = reader.refresh()?;
        let blocks = reader.table("blocks")?.count_exact()?;
        println!("follower: commit {commit}, {blocks} blocks");
        views += 1;
        if blocks == BLOCKS {
            return Ok(views);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Writes the blocks. The follower may come and go meanwhile.
pub(crate) fn write(store: &Store) -> Result<(), Box<dyn Error>> {
    let blocks = store.table("blocks")?;
    for height in 0..BLOCKS {
        blocks.insert(&height.to_be_bytes(), b"block")?.wait()?;
    }
    Ok(())
}

pub(crate) fn create(dir: &Path) -> Result<Store, Box<dyn Error>> {
    let store = Store::open_dir(dir, &StoreOptions::default().create_dir())?;
    store.create_table("blocks", &TableConfig::default())?;
    Ok(store)
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(dir) = env::args_os().nth(1) {
        return follow(Path::new(&dir)).map(drop);
    }

    let place = tempfile::tempdir()?;
    let dir = place.path().join("chain");
    let store = create(&dir)?;
    let mut follower = Command::new(env::current_exe()?).arg(&dir).spawn()?;
    write(&store)?;
    let status = follower.wait()?;
    store.close()?;
    if status.success() { Ok(()) } else { Err("the follower failed".into()) }
}

//! Retains a version of a store after each block, and says what that costs: bytes written, bytes
//! kept, and time, with and without the versions.
//!
//! `cargo run --release --example retained [VERSIONS [DIR]]`
//!
//! A block is one commit of 512 insertions, durable before the next one; keys have 34 bytes, values
//! 60. Two stores in DIR get the same blocks, one after the other; in one of them each block is
//! followed by `Store::retain`. At the end some versions are opened and counted, and the store goes
//! back ten blocks. The caller removes DIR.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane::io::files::allocated_below;
use terrane::io::{CountedDisk, Disk, RealDisk};
use terrane::lsm::{Store, StoreOptions, TableConfig, TableName, Update};

/// Insertions of a block.
const UPDATES: u64 = 512;

/// Bytes of a key and a value.
const ENTRY_BYTES: u64 = 34 + 60;

/// A key that follows from a number, spread evenly: `SplitMix64`.
fn key(number: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    for (at, bytes) in key[..32].chunks_mut(8).enumerate() {
        let mut word =
            (number << 8 | at as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    key
}

/// A store, and the cost of filling it.
struct Cost {
    store: Store,
    took: Duration,
    written: u64,
    kept: u64,
}

fn fill(dir: &Path, blocks: u64, is_retained: bool) -> Result<Cost, Box<dyn Error>> {
    let disk = CountedDisk::new(RealDisk::auto());
    let shared = Arc::clone(&disk) as Arc<dyn Disk>;
    let store = Store::open(shared, dir, &StoreOptions::default().create_dir())?;
    let table = store.create_table(&TableName::default(), &TableConfig::default())?;

    let started = Instant::now();

    for block in 0..blocks {
        let keys: Vec<_> = (block * UPDATES..(block + 1) * UPDATES).map(key).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&[7; 60]))).collect();
        table.write_batch(&batch)?.wait()?;
        if is_retained {
            store.retain(None)?;
        }
    }

    let took = started.elapsed();
    let written = disk.counts().write_bytes;
    let kept = allocated_below(disk.as_ref(), dir)?;

    Ok(Cost { store, took, written, kept })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let blocks = arguments.next().map_or(Ok(2_160), |count| count.parse())?;
    let temporary = tempfile::tempdir()?;
    let dir = arguments.next().map_or_else(|| temporary.path().to_owned(), Into::into);

    let plain = fill(&dir.join("plain"), blocks, false)?;
    plain.store.close()?;
    let retained = fill(&dir.join("retained"), blocks, true)?;

    let updates = (blocks * UPDATES * ENTRY_BYTES) as f64;
    println!("{blocks} blocks, {:.1} MB of updates", updates / 1e6);
    for (name, cost) in [("plain", &plain), ("retained", &retained)] {
        let written = cost.written as f64;
        let kept = cost.kept as f64;
        println!(
            "{name:>9}: {:.2} s, {:.1} MB written, {:.1} MB on the disk",
            cost.took.as_secs_f64(),
            written / 1e6,
            kept / 1e6
        );
    }

    println!(
        "versions: {:.2} x the bytes of the updates kept, {:.2} x the bytes written, {:.2} x the time",
        retained.kept.saturating_sub(plain.kept) as f64 / updates,
        retained.written as f64 / plain.written as f64,
        retained.took.as_secs_f64() / plain.took.as_secs_f64(),
    );

    let store = retained.store;

    let versions = store.versions()?;
    for at in [0, versions.len() / 2, versions.len() - 1] {
        let started = Instant::now();
        let version = store.version(versions[at].number)?;
        let opened = started.elapsed();
        let count = version.table(&TableName::default())?.count_exact()?;
        assert_eq!(count, (at as u64 + 1) * UPDATES);
        println!("version {at}: opened in {:.3} s, {count} entries", opened.as_secs_f64());
    }

    let started = Instant::now();
    store.roll_back(versions[versions.len().saturating_sub(10)].number)?;
    println!("back by ten blocks in {:.3} s", started.elapsed().as_secs_f64());
    store.close()?;

    Ok(())
}

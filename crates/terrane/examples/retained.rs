//! Retains a version of a store after each block, and says what that costs beside undo records:
//! bytes written, bytes kept, and time, of plain blocks, of versions and of undo records.
//!
//! `cargo run --release --example retained [VERSIONS [DIR]]`
//!
//! A block is one commit of 512 insertions, durable before the next one; keys have 34 bytes, values
//! 60. Half of the insertions replace entries of the block before. Three stores in DIR get the same
//! blocks, one after the other. In the second, `Store::retain` follows each block. In the third,
//! each commit also writes the former values of its keys, which it reads first, to a table of undo
//! records. At the end some versions are opened and counted, and the store goes back ten blocks.
//! The caller removes DIR.

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

/// Means of going back to an earlier block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Versions,
    UndoRecords,
}

/// First number of the keys of a block: half of a block's keys are those of the block before.
fn first_of(block: u64) -> u64 {
    block * UPDATES / 2
}

fn fill(dir: &Path, blocks: u64, way: Way) -> Result<Cost, Box<dyn Error>> {
    let disk = CountedDisk::new(RealDisk::auto());
    let shared = Arc::clone(&disk) as Arc<dyn Disk>;
    let store = Store::open(shared, dir, &StoreOptions::default().create_dir())?;
    let table = store.create_table(&TableName::default(), &TableConfig::default())?;
    let undo = store.create_table(&TableName::new("undo")?, &TableConfig::default())?;

    let started = Instant::now();

    for block in 0..blocks {
        let first = first_of(block);
        let keys: Vec<_> = (first..first + UPDATES).map(key).collect();
        let value = [block as u8; 60];
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&value))).collect();

        if way == Way::UndoRecords {
            let former = table.get_many(&keys)?;
            let records: Vec<_> =
                keys.iter().map(|key| [&block.to_be_bytes()[..], key].concat()).collect();
            let undone: Vec<_> = records
                .iter()
                .zip(&former)
                .map(|(key, former)| (key, Update::Insert(former.value().unwrap_or_default())))
                .collect();
            let batch: Vec<_> = batch.iter().map(|&(key, update)| (&key[..], update)).collect();
            let undone: Vec<_> = undone.iter().map(|&(key, update)| (&key[..], update)).collect();
            store.commit(&[(&table, &batch), (&undo, &undone)])?.wait()?;
        } else {
            table.write_batch(&batch)?.wait()?;
        }
        if way == Way::Versions {
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

    let plain = fill(&dir.join("plain"), blocks, Way::Plain)?;
    plain.store.close()?;
    let undo = fill(&dir.join("undo"), blocks, Way::UndoRecords)?;
    undo.store.close()?;
    let retained = fill(&dir.join("retained"), blocks, Way::Versions)?;

    let updates = (blocks * UPDATES * ENTRY_BYTES) as f64;
    println!("{blocks} blocks, {:.1} MB of updates", updates / 1e6);
    for (name, cost) in [("plain", &plain), ("undo", &undo), ("retained", &retained)] {
        let written = cost.written as f64;
        let kept = cost.kept as f64;
        println!(
            "{name:>9}: {:.2} s, {:.2} ms a block, {:.1} MB written, {:.1} MB on the disk",
            cost.took.as_secs_f64(),
            cost.took.as_secs_f64() * 1e3 / blocks as f64,
            written / 1e6,
            kept / 1e6
        );
    }

    for (name, cost) in [("undo records", &undo), ("versions", &retained)] {
        println!(
            "{name}: {:.2} x the bytes of the updates kept, {:.2} x the bytes written, {:.2} x the time",
            cost.kept.saturating_sub(plain.kept) as f64 / updates,
            cost.written as f64 / plain.written as f64,
            cost.took.as_secs_f64() / plain.took.as_secs_f64(),
        );
    }

    let store = retained.store;

    let versions = store.versions()?;
    for at in [0, versions.len() / 2, versions.len() - 1] {
        let started = Instant::now();
        let version = store.version(versions[at].number)?;
        let opened = started.elapsed();
        let count = version.table(&TableName::default())?.count_exact()?;
        assert_eq!(count, first_of(at as u64) + UPDATES);
        println!("version {at}: opened in {:.3} s, {count} entries", opened.as_secs_f64());
    }

    let started = Instant::now();
    store.roll_back(versions[versions.len().saturating_sub(10)].number)?;
    println!("back by ten blocks in {:.3} s", started.elapsed().as_secs_f64());
    store.close()?;

    Ok(())
}

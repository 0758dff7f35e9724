//! `terrane bench retained`: a retained version of a store for each block, beside undo records.
//!
//! A block is one commit of 512 insertions, durable before the next one; half of them replace
//! values of the block before. Three stores get the same blocks, one after the other:
//!
//! | way            | after each block                                                           |
//! |----------------|----------------------------------------------------------------------------|
//! | `plain`        | nothing                                                                    |
//! | `undo_records` | nothing; the commit also writes the former values of its keys, which it reads first, to a second table |
//! | `versions`     | `Store::retain`                                                            |
//!
//! At the end the last undo records and some versions are compared with what was there, and the
//! store with versions goes back ten blocks.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::io::files::allocated_below;
use terrane::io::{CountedDisk, Disk, RealDisk};
use terrane::lsm::{NamedTable, Store, StoreOptions, Table, TableConfig, TableName, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{ENTRY_BYTES, Key, Result, Value, WorkDir, check, key, report, value};
use crate::workloads::{Error, bounded, seconds};

/// Insertions of a block.
const UPDATES: u64 = 512;

/// Blocks that the store goes back at the end, if it has as many.
const BLOCKS_BACK: usize = 10;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Blocks of each store.
    pub blocks: u64,
    /// Seed of keys and values.
    pub seed: u64,
}

/// Cost of the blocks of one store.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// Time of all blocks.
    pub wall_s: f64,
    /// Mean time of a block.
    pub block_ms: f64,
    /// Bytes written, log and manifests included.
    pub write_bytes: u64,
    /// Bytes of the blocks that the file system has allocated to the store in the end.
    pub disk_bytes: u64,
}

/// Cost of one way to go back, beside the plain store.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratios {
    /// Bytes on the disk beyond those of the plain store, for each byte of the updates.
    pub kept_bytes_per_update_byte: f64,
    /// Bytes written, to those of the plain store.
    pub write_ratio: f64,
    /// Time, to that of the plain store.
    pub time_ratio: f64,
}

impl Ratios {
    fn new(cost: &Cost, plain: &Cost, update_bytes: u64) -> Self {
        let kept = cost.disk_bytes.saturating_sub(plain.disk_bytes);
        Self {
            kept_bytes_per_update_byte: kept as f64 / update_bytes as f64,
            write_ratio: cost.write_bytes as f64 / plain.write_bytes as f64,
            time_ratio: cost.wall_s / plain.wall_s,
        }
    }
}

/// A version that was opened at the end.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Opened {
    /// Block after which the version was retained, from 0 on.
    pub block: u64,
    /// Time of opening.
    pub open_s: f64,
    /// Entries of the version.
    pub entries: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Blocks of each store.
    pub blocks: u64,
    /// Insertions of a block.
    pub updates_per_block: u64,
    /// Bytes of the keys and values of all insertions.
    pub update_bytes: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// The store that cannot go back.
    pub plain: Cost,
    /// The store with undo records.
    pub undo_records: Cost,
    /// The store with versions.
    pub versions: Cost,
    /// Undo records, beside the plain store.
    pub undo_records_to_plain: Ratios,
    /// Versions, beside the plain store.
    pub versions_to_plain: Ratios,
    /// The oldest version, one in the middle and the newest one.
    pub opened: Vec<Opened>,
    /// Blocks that the store went back.
    pub roll_back_blocks: u64,
    /// Time of going back.
    pub roll_back_s: f64,
}

/// Means of going back to an earlier block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    UndoRecords,
    Versions,
}

/// First number of a block: half of a block's numbers are those of the block before.
fn first_of(block: u64) -> u64 {
    block * UPDATES / 2
}

/// Returns the numbers of a block with their keys.
fn keys_of(seed: u64, block: u64) -> Vec<(u64, Key)> {
    let first = first_of(block);
    (first..first + UPDATES).map(|n| (n, key(seed, n))).collect()
}

/// Returns the value that a number has after a block which wrote it.
fn value_of(seed: u64, n: u64, block: u64) -> Value {
    value(seed, n, block)
}

/// Returns the value that a number of a block had before it, if any.
fn former_value_of(seed: u64, n: u64, block: u64) -> Option<Value> {
    let is_replaced = block > 0 && n < first_of(block - 1) + UPDATES;
    is_replaced.then(|| value_of(seed, n, block - 1))
}

/// Returns the key of an undo record. Records of a block lie together, in the order of the blocks.
#[expect(clippy::big_endian_bytes, reason = "the order of bytes is the order of blocks")]
fn record_key(block: u64, key: &Key) -> Vec<u8> {
    [&block.to_be_bytes()[..], key].concat()
}

/// A store that gets blocks.
struct Ledger {
    store: Store,
    disk: Arc<CountedDisk>,
    table: NamedTable,
    undo: NamedTable,
    way: Way,
    seed: u64,
}

impl Ledger {
    fn create(dir: &Path, way: Way, seed: u64) -> Result<Self> {
        let disk = CountedDisk::new(RealDisk::auto());
        let shared: Arc<dyn Disk> = disk.clone();
        let store = Store::open(shared, dir, &StoreOptions::default().create_dir())?;
        let table = store.create_table(&TableName::default(), &TableConfig::default())?;
        let undo = store.create_table(&TableName::new("undo")?, &TableConfig::default())?;
        Ok(Self { store, disk, table, undo, way, seed })
    }

    /// Commits a block, durably.
    fn commit(&self, block: u64) -> Result<()> {
        let numbered = keys_of(self.seed, block);
        let keys: Vec<&[u8]> = numbered.iter().map(|(_, key)| &key[..]).collect();
        let values: Vec<_> = numbered.iter().map(|&(n, _)| value_of(self.seed, n, block)).collect();
        let inserts = keys.iter().zip(&values).map(|(key, value)| (*key, Update::Insert(value)));
        let batch: Vec<_> = inserts.collect();

        if self.way == Way::UndoRecords {
            let former = self.table.get_many(&keys)?;
            let records: Vec<_> = numbered.iter().map(|(_, key)| record_key(block, key)).collect();
            let undone = records.iter().zip(&former).map(|(key, former)| {
                // An empty record undoes an insertion: no value of the ledger is empty.
                (&key[..], Update::Insert(former.value().unwrap_or_default()))
            });
            let undone: Vec<_> = undone.collect();
            self.store.commit(&[(&self.table, &batch), (&self.undo, &undone)])?.wait()?;
        } else {
            self.table.write_batch(&batch)?.wait()?;
        }
        if self.way == Way::Versions {
            self.store.retain(None)?;
        }

        Ok(())
    }

    /// Compares the undo records of a block with the values that its keys had before it.
    fn check_records(&self, block: u64) -> Result<()> {
        let numbered = keys_of(self.seed, block);
        let keys: Vec<_> = numbered.iter().map(|(_, key)| record_key(block, key)).collect();
        for ((n, _), record) in numbered.iter().zip(self.undo.get_many(&keys)?) {
            let former = former_value_of(self.seed, *n, block);
            let expected = former.as_ref().map_or(&[][..], |value| &value[..]);
            if record.value() != Some(expected) {
                return Err(Error::Wrong(format!("undo record of entry {n} in block {block}")));
            }
        }
        Ok(())
    }
}

/// Compares a table with the state after a block: how many entries there are, and the values of the
/// block. Returns the number of entries.
fn check_state(table: &Table, seed: u64, block: u64) -> Result<u64> {
    let entries = table.count_exact()?;
    let expected = first_of(block) + UPDATES;
    if entries != expected {
        let message = format!("{entries} entries after block {block}, expected {expected}");
        return Err(Error::Wrong(message));
    }

    let numbered = keys_of(seed, block);
    let keys: Vec<_> = numbered.iter().map(|(_, key)| key).collect();
    for ((n, _), found) in numbered.iter().zip(table.get_many(&keys)?) {
        check(*n, found.value(), Some(&value_of(seed, *n, block)))?;
    }

    Ok(entries)
}

/// Commits all blocks to a new store.
fn fill(
    dir: &Path,
    way: Way,
    options: &Options,
    done: u64,
    monitor: &mut dyn Monitor,
) -> Result<(Ledger, Cost)> {
    let Options { blocks, seed } = *options;
    let ledger = Ledger::create(dir, way, seed)?;

    let start = Instant::now();
    for block in 0..blocks {
        report(monitor, Phase::Measure, done + block, 3 * blocks)?;
        ledger.commit(block)?;
    }
    let wall_s = seconds(start);

    let write_bytes = ledger.disk.counts().write_bytes;
    let disk_bytes =
        allocated_below(ledger.disk.as_ref(), dir).map_err(terrane::lsm::Error::from)?;
    let block_ms = wall_s * 1e3 / blocks as f64;
    Ok((ledger, Cost { wall_s, block_ms, write_bytes, disk_bytes }))
}

/// Measures in stores in the directory `retained` below `dir`, which is removed at the end.
///
/// # Errors
/// [`Error`].
pub fn run(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { blocks, seed } = *options;
    bounded("blocks", blocks, 1)?;

    let work = WorkDir::create(dir, "retained")?;
    let place = |name: &str| work.path().join(name);
    let (ledger, plain) = fill(&place("plain"), Way::Plain, options, 0, monitor)?;
    check_state(ledger.table.view()?.as_ref(), seed, blocks - 1)?;
    ledger.store.close()?;

    let (ledger, undo_records) = fill(&place("undo"), Way::UndoRecords, options, blocks, monitor)?;
    check_state(ledger.table.view()?.as_ref(), seed, blocks - 1)?;
    ledger.check_records(blocks - 1)?;
    ledger.store.close()?;

    let (ledger, versions) = fill(&place("versions"), Way::Versions, options, 2 * blocks, monitor)?;
    let opened = open_versions(&ledger.store, options)?;
    let (roll_back_blocks, roll_back_s) = roll_back(&ledger, options)?;
    ledger.store.close()?;

    let update_bytes = blocks * UPDATES * ENTRY_BYTES;
    Ok(Report {
        blocks,
        updates_per_block: UPDATES,
        update_bytes,
        seed,
        plain,
        undo_records,
        versions,
        undo_records_to_plain: Ratios::new(&undo_records, &plain, update_bytes),
        versions_to_plain: Ratios::new(&versions, &plain, update_bytes),
        opened,
        roll_back_blocks,
        roll_back_s,
    })
}

/// Opens some versions and checks them.
fn open_versions(store: &Store, options: &Options) -> Result<Vec<Opened>> {
    let versions = store.versions()?;
    if versions.len() as u64 != options.blocks {
        return Err(Error::Wrong(format!("{} versions are retained", versions.len())));
    }

    let mut opened = Vec::new();
    for block in [0, versions.len() / 2, versions.len() - 1] {
        let start = Instant::now();
        let version = store.version(versions[block].number)?;
        let open_s = seconds(start);
        let block = block as u64;
        let table = version.table(&TableName::default())?;
        let entries = check_state(&table, options.seed, block)?;
        opened.push(Opened { block, open_s, entries });
    }

    Ok(opened)
}

/// Goes back and checks what is there then. Returns the number of blocks and the seconds.
fn roll_back(ledger: &Ledger, options: &Options) -> Result<(u64, f64)> {
    let versions = ledger.store.versions()?;
    let at = versions.len().saturating_sub(BLOCKS_BACK + 1);
    let start = Instant::now();
    ledger.store.roll_back(versions[at].number)?;
    let wall_s = seconds(start);

    let table = ledger.store.table(&TableName::default())?;
    check_state(table.view()?.as_ref(), options.seed, at as u64)?;
    Ok(((versions.len() - 1 - at) as u64, wall_s))
}

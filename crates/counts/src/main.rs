//! Fixed work on a table in memory, whose instructions `cargo xtask counts` has counted by
//! callgrind.
//!
//! The entries are those of the benchmark `utxo`: 34-byte keys, 60-byte values, evenly spread.
//! Merges are also counted with keys of 8 to 71 bytes and values of up to 127. Everything follows
//! from constants, and there is one thread, so each run executes the same instructions. What is
//! counted happens in the functions that are called like a region; each prints what its
//! instructions are to be divided by. Results are checked, since an engine that finds nothing would
//! be the cheapest.

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::{
    CompactionSchedule, FilterPolicy, LevelFilter, Session, SessionOptions, Table, TableConfig,
    Update, WriteBuffer,
};

/// Entries of the table that lookups and updates work on.
const ENTRIES: u64 = 1 << 16;

/// Bytes of a value where all have the same length.
const VALUE_BYTES: usize = 60;

/// Operations in a batch.
const BATCH: u64 = 256;

/// Batches in each region.
const BATCHES: u64 = 32;

/// Batches that merges are counted in: enough to fill two levels.
const MERGED_BATCHES: u64 = 160;

/// Small, so that the table has several levels and each region some flushes.
const WRITE_BUFFER_ENTRIES: u64 = 2_000;

/// Columns of ribbon filters, where there are some.
const COLUMNS: u8 = 10;

/// Any: hashes must be the same in each run.
const SALT: u64 = 1;

type Key = [u8; 34];
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// One step of `SplitMix64`.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn filled<const SIZE: usize>(seed: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (at, part) in (0u64..).zip(bytes.chunks_mut(8)) {
        let word = mix(seed.wrapping_add(at << 40)).to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    }
    bytes
}

fn key(number: u64) -> Key {
    filled(number)
}

/// A change to one key: its new value, or none.
type Change = (Vec<u8>, Option<Vec<u8>>);

/// Lengths of the key and the value of an entry.
type Lengths = fn(u64) -> (usize, usize);

/// Lengths that all entries have.
fn equal_lengths(_number: u64) -> (usize, usize) {
    (size_of::<Key>(), VALUE_BYTES)
}

/// Lengths that differ from entry to entry.
fn varied_lengths(number: u64) -> (usize, usize) {
    let random = mix(number) as usize;
    (8 + random % 64, (random >> 32) % 128)
}

/// Changes that insert a batch of entries from `first` on.
fn insertions(first: u64, lengths: Lengths) -> Vec<Change> {
    let change = |number| {
        let (key_bytes, value_bytes) = lengths(number);
        let key: [u8; 72] = filled(number);
        let value: [u8; 128] = filled(!number);
        (key[..key_bytes].to_vec(), Some(value[..value_bytes].to_vec()))
    };
    (first..first + BATCH).map(change).collect()
}

/// Changes as the engine takes them.
fn batch(changes: &[Change]) -> Vec<(&[u8], Update<'_>)> {
    let mut batch = Vec::with_capacity(changes.len());
    for (key, value) in changes {
        let update = value.as_ref().map_or(Update::Delete, |value| Update::Insert(value));
        batch.push((key.as_slice(), update));
    }
    batch
}

fn session() -> Outcome<Session> {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = SessionOptions::with_salt(SALT).create_dir();
    Ok(Session::open(disk, Path::new("/counts"), &options)?)
}

fn config(compaction_schedule: CompactionSchedule) -> TableConfig {
    let write_buffer = WriteBuffer::Entries(WRITE_BUFFER_ENTRIES);
    TableConfig::default().write_buffer(write_buffer).compaction_schedule(compaction_schedule)
}

/// Region: lookups; it is entered twice.
#[inline(never)]
fn region_lookups(table: &Table, batches: &[Vec<Key>]) -> Outcome<u64> {
    let mut found = 0;
    for keys in batches {
        let values = table.get_many(keys)?;
        found += values.iter().filter(|lookup| lookup.value().is_some()).count() as u64;
    }
    Ok(found)
}

/// Region: updates, with their flushes and merges; it is entered three times.
#[inline(never)]
fn region_updates(table: &mut Table, batches: &[Vec<(&[u8], Update<'_>)>]) -> Outcome<()> {
    for batch in batches {
        table.write_batch(batch)?;
    }
    Ok(())
}

/// Lookups of keys that are there, all over the table; returns keys asked of filters, by run.
fn lookups(table: &Table) -> Outcome<u64> {
    let number = |at: u64| mix(at) % ENTRIES;
    let batch = |batch: u64| (batch * BATCH..(batch + 1) * BATCH).map(|at| key(number(at)));
    let batches: Vec<Vec<Key>> = (0..BATCHES).map(|at| batch(at).collect()).collect();
    let found = region_lookups(table, &batches)?;
    let stats = table.stats();
    if found != BATCHES * BATCH {
        return Err(format!("{found} keys of {} found", BATCHES * BATCH).into());
    }
    Ok((stats.lookups - stats.memory_hits) * stats.runs())
}

/// A table with all entries.
fn loaded(session: &Session, config: &TableConfig) -> Outcome<Table> {
    let mut table = session.new_table(config)?;
    for first in (0..ENTRIES).step_by(BATCH as usize) {
        table.write_batch(&batch(&insertions(first, equal_lengths)))?;
    }
    Ok(table)
}

/// Each batch deletes the oldest entries and inserts the same number of new ones.
fn updates(table: &mut Table) -> Outcome<()> {
    let changes = |first: u64| {
        let mut changes = insertions(ENTRIES + first, equal_lengths);
        changes.extend((first..first + BATCH).map(|number| (key(number).to_vec(), None)));
        changes
    };

    let changes: Vec<_> = (0..BATCHES).map(|at| changes(at * BATCH)).collect();
    let batches: Vec<_> = changes.iter().map(|changes| batch(changes)).collect();
    region_updates(table, &batches)?;
    println!("operations {}", BATCHES * BATCH);
    println!("updates {}", 2 * BATCHES * BATCH);
    let live = table.count_exact()?;

    if live == ENTRIES { Ok(()) } else { Err(format!("{live} entries, not {ENTRIES}").into()) }
}

/// Updates of a table that makes each merge at once, so that it is known how many entries were
/// written.
fn merges(name: &str, lengths: Lengths) -> Outcome<()> {
    let session = session()?;
    let mut table = session.new_table(&config(CompactionSchedule::OneShot))?;
    let changes: Vec<_> = (0..MERGED_BATCHES).map(|at| insertions(at * BATCH, lengths)).collect();
    let batches: Vec<_> = changes.iter().map(|changes| batch(changes)).collect();
    region_updates(&mut table, &batches)?;
    let stats = session.stats();

    // The size is that of the entries in the table.
    println!("{name} {}", stats.written_bytes * stats.entries / stats.bytes);
    let live = table.count_exact()?;
    let expected = MERGED_BATCHES * BATCH;

    if live == expected { Ok(()) } else { Err(format!("{live} entries, not {expected}").into()) }
}

fn main() -> Outcome<()> {
    let session = session()?;
    let config = config(CompactionSchedule::Incremental);
    let mut table = loaded(&session, &config)?;
    let probes = lookups(&table)?;
    let stats = table.stats();
    println!("keys {}", stats.lookups);
    println!("probes {probes}");
    println!("reads {}", stats.lookup_reads);

    updates(&mut table)?;
    merges("written", equal_lengths)?;
    merges("varied-written", varied_lengths)?;
    let filter = FilterPolicy::PerLevel(vec![LevelFilter::Ribbon(COLUMNS)]);
    let table = loaded(&session, &config.filter(filter))?;
    println!("ribbon-probes {}", lookups(&table)?);

    Ok(())
}

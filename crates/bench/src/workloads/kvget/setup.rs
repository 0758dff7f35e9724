//! `terrane bench kvget setup`: the table that runs read.
//!
//! Every number below that of the keys is inserted, in order, which is at random as the tree sees
//! it. Merges are done as they become due, so none is left. What the last write buffer holds would
//! sit in memory during every run, and be found there; so the first keys are inserted once more, as
//! they are, until it has been flushed.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{
    CompactionSchedule, Compression, FilterPolicy, LevelFilter, Session, Table, TableConfig,
    Update, WriteBuffer,
};

use super::data::{KEY_BYTES, StreamHash, key};
use super::{Prepared, Shape, name_of};
use crate::instruments::meter::{Usage, store_bytes};
use crate::workloads::values::{ValueId, Values};
use crate::workloads::{Error, Result, open, seconds, utxo};
use terrane_replay::monitor::{Monitor, Phase};

/// Insertions in a batch, as the published benchmark has it.
const BATCH: u64 = 1_000;

/// Keys at most: the largest number that was published.
const KEYS_MAX: u64 = 20_000_000_000;

/// Bytes that loading may take on disk for each byte of keys and values: the last level twice while
/// it is merged, and what is above it.
const SPACE_AMPLIFICATION_MAX: u64 = 3;

/// A memtable takes at most this fraction of the bytes of keys and values: the load fills it 556
/// times, and with a size ratio of 10 each level holds five to six of what the one above hands
/// down, as it does on average while a table grows. A tenth of the entries is above the last level.
/// Small tables have the levels of large ones.
const BUFFER_SHARE: u64 = 434;

/// Bytes of the engine's default memtable, which larger tables have.
const BUFFER_BYTES_MAX: u64 = 4 << 20;

/// Bytes of an entry in a memtable beside its key and value.
const ENTRY_OVERHEAD_BYTES: u64 = 40;

/// Columns that ribbon filters have on disk in a table that is mostly read. A run keeps in memory
/// as many as its budget allows; more than these no budget below 1.5 % can use.
const UPPER_FILTER_COLUMNS: u8 = 16;

/// Columns of the filters of the last level.
const LAST_FILTER_COLUMNS: u8 = 12;

/// Options of a set-up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys.
    pub keys: u64,
    /// Seed of the values.
    pub seed: u64,
    /// The table's shape.
    pub shape: Shape,
    /// The values.
    pub values: Values,
    /// Compression of the table's pages.
    pub compression: Compression,
}

impl Options {
    /// Bytes of all keys and values, nearly: by the mean size of a value.
    fn expected_bytes(&self) -> u64 {
        let mean = KEY_BYTES as f64 + self.values.mean_bytes(self.seed);
        (self.keys as f64 * mean) as u64
    }
}

/// Report of a set-up.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Keys.
    pub keys: u64,
    /// Seed of the values.
    pub seed: u64,
    /// The table's shape.
    pub shape: &'static str,
    /// Name of the values.
    pub values: String,
    /// Name of the compression.
    pub compression: String,
    /// Bytes of a write buffer.
    pub write_buffer_max_bytes: u64,
    /// Bytes of all keys and values.
    pub logical_bytes: u64,
    /// Until the snapshot was durable.
    pub load_s: f64,
    /// Keys inserted in a second.
    pub inserts_per_s: f64,
    /// Time of all processors, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<f64>,
    /// Bytes written to runs for each byte of keys and values.
    pub write_amplification: f64,
    /// Runs.
    pub runs: u64,
    /// Physical entries of each level, the newest one first.
    pub levels: Vec<u64>,
    /// Entries that are still in a write buffer: none but in a table that is smaller than one.
    pub buffer_entries: u64,
    /// BLAKE3 of all keys and values in the order of their insertion.
    pub stream_hash: String,
    /// Bytes of the store, if it is on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_bytes: Option<u64>,
}

/// Makes the table in `store`, which is made if it is missing; one from before is replaced.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    check(options)?;
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let session = open(store)?;
    let needed = options.expected_bytes().saturating_mul(SPACE_AMPLIFICATION_MAX);
    let free = disk.free_bytes(store).map_err(terrane::lsm::Error::from)?;
    if needed > free {
        return Err(Error::Space { needed, free });
    }

    let report = set_up(&session, options, monitor)?;
    session.close()?;
    Ok(Report { store_bytes: store_bytes(store).ok(), ..report })
}

fn check(options: &Options) -> Result<()> {
    if (1..=KEYS_MAX).contains(&options.keys) {
        return Ok(());
    }
    Err(Error::Options(format!("keys must be at least 1 and at most {KEYS_MAX}")))
}

fn config(options: &Options) -> TableConfig {
    let buffer = (options.expected_bytes() / BUFFER_SHARE).clamp(1, BUFFER_BYTES_MAX);
    let base = utxo::table_config(options.shape, None)
        .write_buffer(WriteBuffer::Bytes(buffer))
        .compaction_schedule(CompactionSchedule::OneShot)
        .compression(options.compression);

    match options.shape {
        Shape::Default => base,
        Shape::Levelled10 => {
            // One filter setting for each level to come: a level holds ten times the level above.
            let overhead = options.keys.saturating_mul(ENTRY_OVERHEAD_BYTES);
            let fillings = options.expected_bytes().saturating_add(overhead) / buffer;
            let above_last = fillings.max(1).ilog10() as usize;
            let mut levels = vec![LevelFilter::Ribbon(UPPER_FILTER_COLUMNS); above_last];
            levels.push(LevelFilter::Ribbon(LAST_FILTER_COLUMNS));
            base.filter(FilterPolicy::PerLevel(levels))
        }
    }
}

/// Makes the table in a session.
///
/// # Errors
/// [`Error`].
pub fn set_up(session: &Session, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    check(options)?;
    let &Options { keys, seed, shape, ref values, compression } = options;
    let snapshot = Prepared::snapshot()?;
    session.delete_snapshot_if_exists(&snapshot)?;
    let config = config(options);
    let mut table = session.new_table(&config)?;
    let start = Instant::now();

    let before = Usage::now();
    let Loaded { stream_hash, logical_bytes } = load(&mut table, options, monitor)?;
    let prepared = Prepared { seed, keys, shape, values: values.clone(), logical_bytes };
    settle(&mut table, &prepared)?;
    table.save_snapshot(&snapshot, &prepared.label())?;
    let load_s = seconds(start);
    let stats = table.stats();
    let WriteBuffer::Bytes(buffer) = config.write_buffer else { unreachable!() };

    Ok(Report {
        keys,
        seed,
        shape: name_of(shape),
        values: values.name(),
        compression: compression.to_string(),
        write_buffer_max_bytes: buffer,
        logical_bytes,
        load_s,
        inserts_per_s: keys as f64 / load_s,
        cpu_s: Usage::now().zip(before).map(|(now, before)| now.since(&before).cpu_s),
        write_amplification: stats.written_bytes as f64 / logical_bytes as f64,
        runs: stats.runs(),
        levels: stats.levels.iter().map(|level| level.entries).collect(),
        buffer_entries: stats.buffer_entries,
        stream_hash,
        store_bytes: None,
    })
}

/// Entries that were inserted.
struct Loaded {
    stream_hash: String,
    /// Bytes of all keys and values.
    logical_bytes: u64,
}

/// Inserts every key.
fn load(table: &mut Table, options: &Options, monitor: &mut dyn Monitor) -> Result<Loaded> {
    let &Options { keys, seed, ref values, .. } = options;
    let mut hash = StreamHash::default();
    let mut logical_bytes = 0;
    let mut first = 0;
    // Used again and again.
    let mut pairs = vec![([0; KEY_BYTES], Vec::new()); BATCH as usize];

    while first < keys {
        monitor.progress(Phase::Fill, first, Some(keys));
        if monitor.stop() {
            return Err(Error::Interrupted);
        }
        let end = keys.min(first + BATCH);
        let pairs = &mut pairs[..(end - first) as usize];
        for (number, (at, value)) in (first..).zip(&mut *pairs) {
            *at = key(number);
            values.fill(ValueId { seed, number, version: 0 }, value);
            hash.put(at, value);
            logical_bytes += (KEY_BYTES + value.len()) as u64;
        }
        let batch: Vec<_> = pairs.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        table.write_batch(&batch)?;
        first = end;
    }

    Ok(Loaded { stream_hash: hash.finish(), logical_bytes })
}

/// Inserts keys once more until the write buffer has been flushed. A table that is smaller than
/// that keeps it.
fn settle(table: &mut Table, prepared: &Prepared) -> Result<()> {
    let mut value = Vec::new();
    for number in 0..prepared.keys {
        // The update that fills the memtable may be in the next batch.
        if table.stats().buffer_entries <= 1 {
            break;
        }
        let id = ValueId { seed: prepared.seed, number, version: 0 };
        prepared.values.fill(id, &mut value);
        table.insert(&key(number), &value)?;
    }
    Ok(())
}

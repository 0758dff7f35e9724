//! `terrane bench scan`: a cursor over a whole table, forward and backward, past the page cache.
//!
//! Two tables have the same number of entries. One is a single run, made by a bulk load. The other
//! has the several levels of a table in use: it gets all entries one batch after the other, and
//! then half as many again, each with the deletion of an old entry. Rates count the bytes that are
//! read. Each scan is checked by its order, its count and a sum over keys and values.
//!
//! A sequential read of the device may precede each round ([`SequentialReads`]); each rate is then
//! given as a share of it, too.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::io::CountedDisk;
use terrane::lsm::{PAGE_SIZE, Session, SnapshotName, Table, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{FILL_BATCH, Result, fill, key, open_counted, report, value};
use crate::instruments::device::SequentialReads;
use crate::instruments::meter::thread_cpu_s;
use crate::workloads::utxo::{self, Shape};
use crate::workloads::{Error, bounded, seconds};

/// Snapshots of the tables, by the names that reports give them.
const TABLES: [(&str, &str); 2] =
    [("one_run", "bench-scan-one-run"), ("steady", "bench-scan-steady")];

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Entries of each table.
    pub entries: u64,
    /// Times that each table is read in each direction.
    pub rounds: u64,
    /// Whether a sequential read of the device precedes each round.
    pub calibrate: bool,
    /// Whether the tables stay as snapshots, for later runs.
    pub keep: bool,
    /// Seed of keys and values.
    pub seed: u64,
}

/// A scan of one table in one direction.
#[derive(Debug, Clone, Serialize)]
pub struct Scan {
    /// The table: `one_run` or `steady`.
    pub table: &'static str,
    /// Direction: `forward` or `backward`.
    pub direction: &'static str,
    /// Runs of the table.
    pub runs: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Time of the scan.
    pub wall_s: f64,
    /// Bytes read in a second.
    pub read_bytes_per_s: f64,
    /// Entries read in a second.
    pub entries_per_s: f64,
    /// Processor time of the scanning thread for each entry.
    pub cpu_ns_per_entry: f64,
    /// Bytes read in a second, to those of the sequential read of the device before the round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_device: Option<f64>,
}

/// All scans that follow each other.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// Bytes that the device gave in a second before the round: requests of 1 MiB, 8 in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_read_bytes_per_s: Option<f64>,
    /// Both tables, each forward and backward.
    pub scans: Vec<Scan>,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Entries of each table.
    pub entries: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Whether the tables are those of an earlier run.
    pub is_reused: bool,
    /// Program that measured the device: `fio` or `terrane`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_measured_by: Option<&'static str>,
    /// The rounds, in their order.
    pub rounds: Vec<Round>,
}

/// Fingerprint of a set of entries: their number, and the sum of their parts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sum {
    count: u64,
    sum: u64,
}

impl Sum {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        for part in [key.first_chunk(), value.last_chunk()] {
            let number = part.map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.sum = self.sum.wrapping_add(number);
        }
    }

    fn of(seed: u64, numbers: Range<u64>) -> Self {
        let mut sum = Self::default();
        numbers.for_each(|n| sum.add(&key(seed, n), &value(seed, n, 0)));
        sum
    }
}

fn name(text: &str) -> Result<SnapshotName> {
    Ok(SnapshotName::new(text)?)
}

/// Opens the tables of an earlier run; `None` if one is missing or holds other entries.
fn open_tables(session: &Session, label: &str) -> Result<Option<Vec<Table>>> {
    let mut tables = Vec::new();
    for (_, snapshot) in TABLES {
        let name = name(snapshot)?;
        if !session.snapshot_exists(&name)? {
            return Ok(None);
        }
        match session.open_snapshot(&name, label) {
            Ok(table) => tables.push(table),
            Err(terrane::lsm::Error::SnapshotNotCompatible { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(tables))
}

fn delete_tables(session: &Session) -> Result<()> {
    for (_, snapshot) in TABLES {
        session.delete_snapshot_if_exists(&name(snapshot)?)?;
    }
    Ok(())
}

/// Builds both tables and saves them; those of an earlier run go.
fn build(
    session: &Session,
    options: &Options,
    label: &str,
    monitor: &mut dyn Monitor,
) -> Result<()> {
    let Options { entries, seed, .. } = *options;
    delete_tables(session)?;
    let config = utxo::table_config(Shape::Default, None);

    let mut loader = session.bulk_load(&config)?;
    for first in (0..entries).step_by(FILL_BATCH as usize) {
        report(monitor, Phase::Fill, first, entries)?;
        let numbers = first..entries.min(first + FILL_BATCH);
        let made: Vec<_> = numbers.map(|n| (key(seed, n), value(seed, n, 0))).collect();
        let batch: Vec<_> = made.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        loader.write_batch(&batch)?;
    }
    let mut watch = |done, total| {
        monitor.progress(Phase::Merge, done, Some(total));
        if monitor.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ControlFlow::Continue(table) = loader.finish_watched(&mut watch)? else {
        return Err(Error::Interrupted);
    };
    table.save_snapshot(&name(TABLES[0].1)?, label)?;
    drop(table);

    let mut table = session.new_table(&config)?;
    fill(&mut table, seed, entries, monitor)?;
    replace(&mut table, options, monitor)?;
    table.save_snapshot(&name(TABLES[1].1)?, label)?;
    Ok(())
}

/// Deletes the older half of the entries, and inserts as many others.
fn replace(table: &mut Table, options: &Options, monitor: &mut dyn Monitor) -> Result<()> {
    let Options { entries, seed, .. } = *options;
    let count = entries / 2;
    for first in (0..count).step_by(FILL_BATCH as usize) {
        report(monitor, Phase::Fill, first, count)?;
        let old = first..count.min(first + FILL_BATCH);
        let made: Vec<_> =
            old.clone().map(|n| entries + n).map(|n| (key(seed, n), value(seed, n, 0))).collect();
        let inserts = made.iter().map(|(key, value)| (*key, Update::Insert(value)));
        let batch: Vec<_> = inserts.chain(old.map(|n| (key(seed, n), Update::Delete))).collect();
        table.write_batch(&batch)?;
    }
    Ok(())
}

/// Entries between two reports of a scan.
const REPORT_EVERY: u64 = 1 << 16;

/// Reads all entries in one direction and checks them.
fn read(table: &Table, is_forward: bool, expected: Sum, monitor: &mut dyn Monitor) -> Result<()> {
    let mut cursor = table.cursor()?;
    if !is_forward {
        cursor.seek_to_end();
    }

    let mut sum = Sum::default();
    let mut last = [0; super::KEY_BYTES];
    loop {
        let record = if is_forward { cursor.next_ref()? } else { cursor.prev_ref()? };
        let Some(record) = record else { break };
        let is_in_order = sum.count == 0 || (record.key > &last[..]) == is_forward;
        if !is_in_order || record.key.len() != last.len() {
            return Err(Error::Wrong(format!("entry {}: out of order", sum.count)));
        }
        last.copy_from_slice(record.key);
        sum.add(record.key, record.value);
        if sum.count.is_multiple_of(REPORT_EVERY) && monitor.stop() {
            return Err(Error::Interrupted);
        }
    }

    if sum == expected {
        return Ok(());
    }
    Err(Error::Wrong(format!("{} entries, expected {}", sum.count, expected.count)))
}

/// The tables of a run with their contents, and the disk that they are read from.
struct Scans<'a> {
    disk: &'a CountedDisk,
    tables: &'a [Table],
    sums: [Sum; 2],
}

impl Scans<'_> {
    /// Reads each table in both directions.
    fn round(&self, device: Option<f64>, monitor: &mut dyn Monitor) -> Result<Round> {
        let mut scans = Vec::new();
        for ((table, sum), (title, _)) in self.tables.iter().zip(self.sums).zip(TABLES) {
            for (direction, is_forward) in [("forward", true), ("backward", false)] {
                let before = self.disk.counts();
                let cpu_before = thread_cpu_s();
                let start = Instant::now();
                read(table, is_forward, sum, monitor)?;
                let wall_s = seconds(start);
                let cpu_s = thread_cpu_s() - cpu_before;

                let read_bytes = (self.disk.counts() - before).read_pages * PAGE_SIZE as u64;
                let read_bytes_per_s = read_bytes as f64 / wall_s;
                scans.push(Scan {
                    table: title,
                    direction,
                    runs: table.stats().runs(),
                    read_bytes,
                    wall_s,
                    read_bytes_per_s,
                    entries_per_s: sum.count as f64 / wall_s,
                    cpu_ns_per_entry: cpu_s * 1e9 / sum.count as f64,
                    ratio_to_device: device.map(|device| read_bytes_per_s / device),
                });
            }
        }
        Ok(Round { device_read_bytes_per_s: device, scans })
    }
}

/// Measures in a session in `store`. Tables of an earlier run with the same options are used again,
/// and then stay whether or not `keep` asks for it.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { entries, rounds, seed, .. } = *options;
    bounded("entries", entries, 2)?;
    bounded("rounds", rounds, 1)?;
    let label = format!("bench scan 1, seed {seed}, entries {entries}");

    let (_, session) = open_counted(store)?;
    let is_reused = open_tables(&session, &label)?.is_some();
    let built = if is_reused { Ok(()) } else { build(&session, options, &label, monitor) };
    if built.is_err() {
        delete_tables(&session)?;
    }
    session.close()?;
    built?;

    // Another session has nothing in memory that the first one wrote.
    let (disk, session) = open_counted(store)?;
    let measured = measure(store, (&disk, &session), options, &label, monitor);
    if !is_reused && !options.keep {
        delete_tables(&session)?;
    }
    session.close()?;

    let (device_measured_by, rounds) = measured?;
    Ok(Report { entries, seed, is_reused, device_measured_by, rounds })
}

/// Takes all rounds; returns also who measured the device.
fn measure(
    store: &Path,
    (disk, session): (&CountedDisk, &Session),
    options: &Options,
    label: &str,
    monitor: &mut dyn Monitor,
) -> Result<(Option<&'static str>, Vec<Round>)> {
    let Options { entries, rounds, seed, .. } = *options;
    let missing = || Error::Wrong("a table that was just saved is not there".to_owned());
    let tables = open_tables(session, label)?.ok_or_else(missing)?;
    let replaced = entries / 2;
    let sums = [Sum::of(seed, 0..entries), Sum::of(seed, replaced..entries + replaced)];
    let scans = Scans { disk, tables: &tables, sums };
    let device = options.calibrate.then(|| SequentialReads::make(store, monitor)).transpose()?;

    let mut all = Vec::new();
    for round in 0..rounds {
        report(monitor, Phase::Measure, round, rounds)?;
        let rate = device.as_ref().map(|device| device.bytes_per_s(monitor)).transpose()?;
        all.push(scans.round(rate, monitor)?);
    }

    Ok((device.as_ref().map(SequentialReads::measured_by), all))
}

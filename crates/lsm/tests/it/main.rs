//! Tests of the table engine through its public interface.
//!
//! Helpers for several test modules: directories for a session on the real and the simulated disk,
//! keys and values that follow from a number, and the content of a table in key order.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod script;
mod serial_history;
mod store_script;

mod bitflip;
mod budgets;
mod bulk;
mod canonical;
mod churn;
mod compaction;
mod compression;
mod config;
mod crash;
mod derived;
mod diff;
mod export;
mod export_crash;
mod faults;
mod feed;
mod follower;
mod gate;
mod golden;
mod hostile;
mod install;
mod kill;
mod kill_followers;
mod ledger;
mod loss;
mod opening;
mod page_cache;
mod prefixes;
mod progress;
mod range_deletes;
mod ranges;
mod reader;
mod recovery;
mod salvage;
mod scans;
#[cfg(shuttle)]
mod schedules;
mod session_memory;
mod side_by_side;
mod sim;
mod slices;
mod snapshots;
mod space;
mod stats;
mod store;
mod store_damage;
mod store_faults;
mod store_locks;
mod store_model;
mod store_sweep;
mod store_threads;
mod store_versions;
mod submit;
mod tables;
mod trace;
mod transactions;
mod union;
mod upsert;
mod verify;
mod versions;
mod write_batches;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use terrane_io::{Access, Disk, OpenMode, RealDisk, SimDisk};
use terrane_lsm::{
    CompactionSchedule, Error, Session, SessionOptions, SnapshotName, Table, TableConfig, Update,
    WriteBuffer,
};

/// The salt of every session here, so that a failing run repeats to the byte.
const SALT: u64 = 0x5EED;

/// Minimum of `open_files_max`. On the simulated disk most tests use this limit, so that the
/// session closes and reopens files all the time.
const FEW_OPEN_FILES: usize = 4;

/// Directory for a session, on the real or on a simulated disk.
#[derive(Debug)]
enum SessionDir {
    Real { folder: TempDir, disk: Arc<RealDisk> },
    Simulated { disk: Arc<SimDisk> },
}

impl SessionDir {
    fn real() -> Self {
        Self::Real { folder: tempfile::tempdir().unwrap(), disk: RealDisk::auto() }
    }

    fn simulated(seed: u64) -> Self {
        Self::Simulated { disk: SimDisk::new(seed) }
    }

    /// Returns a directory of each kind: every property must hold on both disks.
    fn both() -> [Self; 2] {
        [Self::simulated(1), Self::real()]
    }

    fn disk(&self) -> Arc<dyn Disk> {
        match self {
            Self::Real { disk, .. } => Arc::clone(disk) as Arc<dyn Disk>,
            Self::Simulated { disk } => Arc::clone(disk) as Arc<dyn Disk>,
        }
    }

    /// The directory of the session.
    fn dir(&self) -> PathBuf {
        match self {
            Self::Real { folder, .. } => folder.path().join("session"),
            Self::Simulated { .. } => PathBuf::from("/session"),
        }
    }

    fn try_open(&self, salt: u64) -> Result<Session, Error> {
        self.try_open_with(salt, None)
    }

    fn try_open_with(&self, salt: u64, memory_budget: Option<u64>) -> Result<Session, Error> {
        let options = SessionOptions::with_salt(salt).create_dir().memory_budget(memory_budget);
        let options = match self {
            Self::Real { .. } => options,
            Self::Simulated { .. } => options.open_files_max(FEW_OPEN_FILES),
        };
        Session::open(self.disk(), &self.dir(), &options)
    }

    fn open(&self) -> Session {
        self.try_open(SALT).unwrap()
    }

    /// Continues with the disk as the death of the process leaves it, with nothing closed or
    /// dropped. On the real disk the caller drops all handles instead.
    fn kill(&mut self) {
        if let Self::Simulated { disk } = self {
            *disk = disk.process_kill();
        }
    }

    /// Paths of the run files.
    fn runs(&self) -> Vec<PathBuf> {
        let active = self.dir().join("active");
        let entries = self.disk().list(&active).unwrap();
        entries.into_iter().map(|entry| active.join(entry.name)).collect()
    }

    /// Bytes of the run files.
    fn run_bytes(&self) -> u64 {
        let disk = self.disk();
        let len = |path: &PathBuf| {
            disk.open(path, OpenMode::Read, Access::Buffered).unwrap().len().unwrap()
        };
        self.runs().iter().map(len).sum()
    }
}

/// Small memtables, both schedules: deep compactions start within a few hundred updates.
fn small_configs() -> Vec<TableConfig> {
    let mut configs = Vec::new();
    for (entries, compaction_schedule) in [
        (1, CompactionSchedule::Incremental),
        (2, CompactionSchedule::OneShot),
        (3, CompactionSchedule::Incremental),
        (1000, CompactionSchedule::OneShot),
        (1000, CompactionSchedule::Incremental),
    ] {
        configs.push(buffer_of(entries).compaction_schedule(compaction_schedule));
    }
    configs
}

/// Default configuration with a memtable of `entries` entries.
fn buffer_of(entries: u64) -> TableConfig {
    TableConfig::default().write_buffer(WriteBuffer::Entries(entries))
}

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).unwrap()
}

/// One SplitMix64 step: distinct numbers give distinct, evenly spread ones.
fn spread(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A key of 34 bytes like a transaction output's, evenly spread.
fn key(number: u64) -> [u8; 34] {
    let mut key = [0; 34];
    for (at, word) in key.chunks_mut(8).enumerate() {
        let bytes = spread(number ^ (at as u64) << 56).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
    key
}

/// A value that tells by its bytes which one it is.
fn value(number: u64, len: usize) -> Vec<u8> {
    let bytes = spread(number).to_le_bytes();
    let mut value = bytes.repeat(len.div_ceil(bytes.len()));
    value.truncate(len);
    value
}

/// Inserts keys of these numbers, with values of 60 bytes, in batches.
fn fill(table: &mut Table, numbers: impl IntoIterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    for part in numbers.chunks(1000) {
        let entries: Vec<_> = part.iter().map(|&n| (key(n), value(n, 60))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (*k, Update::Insert(v))).collect();
        table.write_batch(&batch).unwrap();
    }
}

/// Deletes keys of these numbers, in batches.
fn clear(table: &mut Table, numbers: impl IntoIterator<Item = u64>) {
    let batch: Vec<_> = numbers.into_iter().map(|n| (key(n), Update::Delete)).collect();
    for part in batch.chunks(1000) {
        table.write_batch(part).unwrap();
    }
}

/// All live entries, in the order in which a cursor gives them.
fn content(table: &Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = table.cursor().unwrap();
    let mut entries = Vec::new();
    while let Some(record) = cursor.next().transpose().unwrap() {
        entries.push((record.key, record.value.into_vec()));
    }
    entries
}

/// Whether a file or directory is there.
fn exists(disk: &dyn Disk, path: &Path) -> bool {
    disk.kind(path).unwrap().is_some()
}

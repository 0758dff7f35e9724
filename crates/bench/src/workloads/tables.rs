//! Benchmarks of one property of tables each, on entries like those of a set of unspent outputs.
//!
//! | module       | command          | property                                                     |
//! |--------------|------------------|--------------------------------------------------------------|
//! | [`ingest`]   | `bench ingest`   | rate of inserts, deletes and lookups, compaction included    |
//! | [`scan`]     | `bench scan`     | rate of a cursor over a whole table, beside the device's     |
//! | [`diff`]     | `bench diff`     | pages that the difference of two versions reads              |
//! | [`forks`]    | `bench forks`    | rate and memory with a fork for each block                   |
//! | [`retained`] | `bench retained` | bytes and time of a retained version for each block          |
//! | [`recover`]  | `bench recover`  | opening of a store whose process was killed                  |
//!
//! Keys have 34 bytes and values 60, all uniform and incompressible. Both follow from the seed and
//! the number of an entry ([`key`], [`value`]), so every result is compared with its expected
//! value. Begin with [`ingest`].
//!
//! * Benchmarks of tables work in a session and save nothing, but for [`scan`], which may keep its
//!   tables. Benchmarks of stores work in a directory of their own, which they remove.
//! * Rejected: one benchmark for [`forks`] and [`retained`]. Forks cost memory and no bytes on the
//!   disk, versions the reverse, so the two would share neither options nor fields.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane::io::{CountedDisk, Disk, RealDisk};
use terrane::lsm::{Session, Table, Update};
use terrane_replay::monitor::{Monitor, Phase};
use terrane_replay::store;

use super::{Error, Result, fill_bytes, splitmix};

// Bottom-up: a module imports only from modules above it.
pub mod ingest;
pub mod scan;
pub mod diff;
pub mod forks;
pub mod retained;
pub mod recover;

/// Bytes of a key.
pub const KEY_BYTES: usize = 34;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 60;

/// Bytes of a key and its value.
pub const ENTRY_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

/// Entries that a table is filled with at once.
const FILL_BATCH: u64 = 1_000;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// A value.
pub type Value = [u8; VALUE_BYTES];

/// Returns the key of a number. Different numbers have different keys.
#[must_use]
pub fn key(seed: u64, number: u64) -> Key {
    let mut key = [0; KEY_BYTES];
    // `splitmix` is a bijection, and its result is the first word of the key.
    fill_bytes(&mut key, splitmix(seed ^ number));
    key
}

/// Returns the value that a number has after `round` replacements.
#[must_use]
pub fn value(seed: u64, number: u64, round: u64) -> Value {
    let mut value = [0; VALUE_BYTES];
    fill_bytes(&mut value, splitmix(splitmix(!seed ^ number).wrapping_add(round)));
    value
}

/// Reports progress, and ends the benchmark if the monitor asks for it.
fn report(monitor: &mut dyn Monitor, phase: Phase, done: u64, total: u64) -> Result<()> {
    monitor.progress(phase, done, Some(total));
    if monitor.stop() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Inserts the first values of some numbers.
fn insert(table: &mut Table, seed: u64, numbers: Range<u64>) -> Result<()> {
    let entries: Vec<_> = numbers.map(|n| (key(seed, n), value(seed, n, 0))).collect();
    let batch: Vec<_> = entries.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
    Ok(table.write_batch(&batch)?)
}

/// Inserts the first values of the numbers below `entries`, batch by batch.
fn fill(table: &mut Table, seed: u64, entries: u64, monitor: &mut dyn Monitor) -> Result<()> {
    for first in (0..entries).step_by(FILL_BATCH as usize) {
        report(monitor, Phase::Fill, first, entries)?;
        insert(table, seed, first..entries.min(first + FILL_BATCH))?;
    }
    Ok(())
}

/// Refuses a value other than the expected one.
fn check(number: u64, found: Option<&[u8]>, expected: Option<&Value>) -> Result<()> {
    if found == expected.map(<[u8; VALUE_BYTES]>::as_slice) {
        return Ok(());
    }
    let found = found.map_or("no value", |_| "another value");
    Err(Error::Wrong(format!(
        "entry {number}: {found}, expected {}",
        match expected {
            Some(_) => "its own",
            None => "none",
        }
    )))
}

/// Opens a session on a disk that counts what is read and written.
fn open_counted(dir: &Path) -> Result<(Arc<CountedDisk>, Session)> {
    let disk = CountedDisk::new(RealDisk::auto());
    let shared: Arc<dyn Disk> = disk.clone();
    let session = store::open(&shared, dir)?;
    Ok((disk, session))
}

/// Directory of a benchmark's stores, removed when dropped.
struct WorkDir(PathBuf);

impl WorkDir {
    /// Creates the directory `name` below `dir`, which is created if it is missing.
    ///
    /// # Errors
    /// [`Error::Options`] if the directory exists, as what is in there is not ours.
    fn create(dir: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
        let path = dir.join(name);
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let path = path.display();
                Err(Error::Options(format!("{path} exists; remove it, or give another directory")))
            }
            Err(error) => Err(Error::io(&path, error)),
            Ok(()) => Ok(Self(path)),
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // A drop cannot return the error.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_number_and_values_by_round_too() {
        assert_eq!((key(1, 2), value(1, 2, 3)), (key(1, 2), value(1, 2, 3)));
        for other in [key(1, 3), key(2, 2)] {
            assert!(other[..8] != key(1, 2)[..8] && other[26..] != key(1, 2)[26..]);
        }
        for other in [value(1, 2, 4), value(1, 3, 3), value(2, 2, 3)] {
            assert!(other[..8] != value(1, 2, 3)[..8] && other[52..] != value(1, 2, 3)[52..]);
        }
    }

    #[test]
    fn a_directory_that_exists_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let work = WorkDir::create(&dir.path().join("deep"), "work").unwrap();
        std::fs::write(work.path().join("file"), "text").unwrap();

        assert!(matches!(
            WorkDir::create(&dir.path().join("deep"), "work"),
            Err(Error::Options(message)) if message.contains("exists")
        ));
        assert!(work.path().join("file").exists());

        drop(work);
        assert_eq!(std::fs::read_dir(dir.path().join("deep")).unwrap().count(), 0);
    }

    #[test]
    fn wrong_values_are_told_from_right_ones() {
        let right = value(1, 2, 0);
        assert!(check(2, Some(&right), Some(&right)).is_ok() && check(2, None, None).is_ok());
        for (found, expected) in
            [(Some(&right[..]), None), (None, Some(&right)), (Some(&[7; 60][..]), Some(&right))]
        {
            assert!(matches!(check(2, found, expected), Err(Error::Wrong(_))));
        }
    }
}

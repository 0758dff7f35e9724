//! Leases: which tree a reader in another process stands at, so that its pages are not written
//! over.
//!
//! A reader has one of the files `readers/<n>.lease`, whose lock it holds for as long as it lives;
//! the system gives the lock back however the process ends, and the lease ends with it. Nobody
//! removes these files.
//!
//! **No waiting.** A reader reads the superblock, writes its generation into its lease, and reads
//! the superblock again; if that has changed, it begins anew. A writer publishes a superblock and
//! then looks at the leases. So either the writer sees the lease, or the reader sees that it came
//! too late. A lease in which a writer finds nothing whole is being written at that moment: it may
//! be for any generation. Leases are never synced: after a loss of power there are no readers.

#![doc = include_str!("../../../../docs/format/btree-lease.md")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::EntryKind;
use terrane_io::bytes::Writer;
use terrane_io::checksum::crc32c;
use terrane_io::files::read_file;
use terrane_io::{Access, Disk, DiskFile, LockGuard, OpenMode};

use crate::page::error::{Error, Result};
use crate::page::page::{u32_at, u64_at};

/// The directory of the leases.
pub(crate) const READERS_DIR: &str = "readers";

/// First bytes of a lease's content: the last one is the version.
pub(crate) const LEASE_MAGIC: [u8; 8] = *b"TerBLse\x01";

/// Where the content begins: before it stands what the lock writes.
pub(crate) const LEASE_OFFSET: usize = 16;

/// Bytes of a lease.
pub(crate) const LEASE_BYTES: usize = 36;

/// Most readers at a time.
pub(crate) const READERS_MAX: u32 = 4096;

/// What keeps the pages of a reader; ends when it is dropped.
#[derive(Debug)]
pub(crate) enum Lease {
    /// A lease that a writer sees.
    Written { file: Arc<dyn DiskFile>, _guard: Box<dyn LockGuard> },
    /// No lease can be written; a shared lock keeps writers away.
    Shared { _guard: Box<dyn LockGuard> },
    /// No lease can be written, and a writer has the lock, or there is no file to lock.
    None,
}

fn lease_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(READERS_DIR).join(format!("{number}.lease"))
}

impl Lease {
    /// A lease that nobody else has, or the shared lock of the index where none can be written.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`], [`Error::Disk`].
    pub(crate) fn take(disk: &dyn Disk, dir: &Path, lock_file: &Path) -> Result<Self> {
        match Self::write_one(disk, dir) {
            Err(Error::Disk(error)) if error.cannot_write() || error.is_not_found() => {
                Self::without(disk, lock_file)
            }
            lease => lease,
        }
    }

    /// Keeps writers away, if that can be.
    fn without(disk: &dyn Disk, lock_file: &Path) -> Result<Self> {
        match disk.lock_shared(lock_file) {
            Ok(guard) => Ok(Self::Shared { _guard: guard }),
            Err(terrane_io::Error::Locked { .. }) => Ok(Self::None),
            Err(error) if error.is_not_found() || error.is_permission() => Ok(Self::None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no writer gives pages of the reader away.
    pub(crate) fn protects(&self) -> bool {
        !matches!(self, Self::None)
    }

    fn write_one(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        for number in 0..READERS_MAX {
            let path = lease_path(dir, number);
            match disk.lock(&path) {
                Ok(guard) => {
                    let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered)?;
                    let lease = Self::Written { file, _guard: guard };
                    // For any generation until it is renewed. On a full disk this is what fails.
                    lease.renew(0)?;
                    return Ok(lease);
                }
                Err(terrane_io::Error::Locked { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::TooManyReaders { path: dir.to_owned(), limit: READERS_MAX })
    }

    /// Says which generation it is for from now on.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn renew(&self, generation: u64) -> Result<()> {
        let Self::Written { file, .. } = self else { return Ok(()) };
        let mut out = Writer::new();
        out.put(&LEASE_MAGIC).u64(generation);
        let crc = crc32c(out.bytes());
        out.u32(crc);
        Ok(file.write_at(out.bytes(), LEASE_OFFSET as u64)?)
    }
}

/// The oldest generation that a reader stands at, and how many readers there are; 0 if that cannot
/// be told.
///
/// Cost: a directory, and a read for each reader.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn oldest(disk: &dyn Disk, dir: &Path) -> Result<(Option<u64>, u32)> {
    let (mut oldest, mut readers) = (None, 0);
    let entries = match disk.list(&dir.join(READERS_DIR)) {
        Err(error) if error.is_not_found() => return Ok((None, 0)),
        entries => entries?,
    };
    for entry in entries {
        let path = dir.join(READERS_DIR).join(entry.name);
        if entry.kind != EntryKind::File {
            // No reader has it: leases are files.
            continue;
        }
        // One that cannot be looked at may be held, and for any generation.
        let is_held = match disk.is_locked(&path) {
            Err(error) if error.is_unreadable() => true,
            is_held => is_held?,
        };
        if is_held {
            let content = match read_file(disk, &path, 4096) {
                Err(error) if error.is_unreadable() => Vec::new(),
                content => content?,
            };
            let generation = generation_of(&content).unwrap_or(0);
            oldest = Some(oldest.map_or(generation, |oldest: u64| oldest.min(generation)));
            readers += 1;
        }
    }
    Ok((oldest, readers))
}

fn generation_of(file: &[u8]) -> Option<u64> {
    let content = file.get(LEASE_OFFSET..LEASE_BYTES)?;
    let is_whole = content[..8] == LEASE_MAGIC && crc32c(&content[..16]) == u32_at(content, 16);
    is_whole.then(|| u64_at(content, 8))
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;

    use super::*;

    #[test]
    fn a_lease_counts_while_it_is_held() {
        let disk = SimDisk::new(1);
        let dir = Path::new("/i");
        disk.create_dir(dir).unwrap();
        disk.create_dir(&dir.join(READERS_DIR)).unwrap();
        let found = || oldest(disk.as_ref(), dir).unwrap();
        assert_eq!(found(), (None, 0));
        let first = Lease::take(disk.as_ref(), dir, &dir.join("lock")).unwrap();
        // Nothing whole yet: it may be for any generation.
        assert_eq!(found(), (Some(0), 1));
        first.renew(7).unwrap();
        let second = Lease::take(disk.as_ref(), dir, &dir.join("lock")).unwrap();
        second.renew(5).unwrap();
        assert_eq!(found(), (Some(5), 2));
        second.renew(9).unwrap();
        assert_eq!(found(), (Some(7), 2));
        drop(first);
        assert_eq!(found(), (Some(9), 1));
        let third = Lease::take(disk.as_ref(), dir, &dir.join("lock")).unwrap();
        third.renew(8).unwrap();
        assert_eq!(disk.list(&dir.join(READERS_DIR)).unwrap().len(), 2);
        assert_eq!(found(), (Some(8), 2));
    }
}

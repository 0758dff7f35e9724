//! Leases: the generation that a reader in another process reads, so that the writer does not reuse
//! its pages.
//!
//! A reader holds the lock of one of the files `readers/<n>.lease` for as long as it lives. The
//! system gives the lock back however the process ends, and the lease ends with it. Nobody removes
//! these files.
//!
//! **No waiting.** A reader reads the superblock, writes its generation into its lease, and reads
//! the superblock again; if the superblock has changed, the reader begins anew. A writer publishes
//! a superblock and then reads the leases. So either the writer sees the lease, or the reader sees
//! that it came too late. A lease without a whole content is being written at that moment, and may
//! be for any generation.
//!
//! Leases are never synced: after a loss of power there are no readers.
//!
//! Rejected: shared memory (writer and readers share none, by requirement); a list of changed pages
//! for readers to drop (pages keep their content, so there is nothing to drop).

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

/// Directory of the leases.
pub(crate) const READERS_DIR: &str = "readers";

/// First bytes of a lease's content; the last one is the version.
pub(crate) const LEASE_MAGIC: [u8; 8] = *b"TerBLse\x01";

/// Offset of the content; the lock writes before it.
pub(crate) const LEASE_OFFSET: usize = 16;

/// Bytes of a lease.
pub(crate) const LEASE_BYTES: usize = 36;

/// Most readers at a time.
pub(crate) const READERS_MAX: u32 = 4096;

/// Protection of a reader's pages, which ends when the lease is dropped.
#[derive(Debug)]
pub(crate) enum Lease {
    /// A lease that the writer sees.
    Written { file: Arc<dyn DiskFile>, _guard: Box<dyn LockGuard> },
    /// A shared lock that keeps writers away, where no lease can be written.
    Shared { _guard: Box<dyn LockGuard> },
    /// No protection: no lease can be written, and a writer has the lock or there is no file to
    /// lock.
    None,
}

fn lease_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(READERS_DIR).join(format!("{number}.lease"))
}

impl Lease {
    /// Takes a free lease, or the shared lock of the index where no lease can be written.
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

    /// Takes the shared lock of the index, if that is possible.
    fn without(disk: &dyn Disk, lock_file: &Path) -> Result<Self> {
        match disk.lock_shared(lock_file) {
            Ok(guard) => Ok(Self::Shared { _guard: guard }),
            Err(terrane_io::Error::Locked { .. }) => Ok(Self::None),
            Err(error) if error.is_not_found() || error.is_permission() => Ok(Self::None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether no writer reuses pages of the reader.
    pub(crate) fn protects(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Locks the first free lease and writes into it.
    fn write_one(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        // The lowest free number, so that the directory never has more leases than readers at a
        // time.
        for number in 0..READERS_MAX {
            let path = lease_path(dir, number);
            match disk.lock(&path) {
                Ok(guard) => {
                    let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered)?;
                    let lease = Self::Written { file, _guard: guard };
                    // The lease is for any generation until it is renewed. On a full disk this
                    // write fails.
                    lease.renew(0)?;
                    return Ok(lease);
                }
                Err(terrane_io::Error::Locked { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }

        Err(Error::TooManyReaders { path: dir.to_owned(), limit: READERS_MAX })
    }

    /// Sets the generation that the lease protects from now on.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn renew(&self, generation: u64) -> Result<()> {
        let Self::Written { file, .. } = self else { return Ok(()) };
        let mut out = Writer::new();
        out.put(&LEASE_MAGIC).u64(generation);
        let crc = crc32c(out.bytes());
        out.u32(crc);
        debug_assert_eq!(LEASE_OFFSET + out.bytes().len(), LEASE_BYTES, "the length of the format");
        Ok(file.write_at(out.bytes(), LEASE_OFFSET as u64)?)
    }
}

/// The oldest generation that a reader reads, or 0 if a lease does not tell; and the number of
/// readers.
///
/// Cost: a directory, and a read for each reader.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn oldest(disk: &dyn Disk, dir: &Path) -> Result<(Option<u64>, u32)> {
    let mut oldest = None;
    let mut readers = 0;

    let entries = match disk.list(&dir.join(READERS_DIR)) {
        Err(error) if error.is_not_found() => return Ok((None, 0)),
        entries => entries?,
    };

    for entry in entries {
        let path = dir.join(READERS_DIR).join(entry.name);
        if entry.kind != EntryKind::File {
            // No reader holds this: leases are files.
            continue;
        }

        // A lease that cannot be looked at may be held, for any generation.
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

/// The generation in a lease; `None` if its content is not whole.
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

//! Leases: what readers in other processes still need of a store, so that its writer does not
//! remove it.
//!
//! A reader has one of the files `readers/<n>.lease`, whose lock it holds for as long as it lives;
//! the system gives the lock back however the process ends, and the lease ends with it. Nobody
//! removes these files, so that a name never stands for another file while somebody looks at it;
//! there are about as many as there ever were readers at a time.
//!
//! **No waiting.** A reader first reads what it wants to use (a manifest, a snapshot), then writes
//! that into its lease, over what was there, and then looks whether what it has read is still
//! there; if not, it begins anew. A writer first takes away what leads to a file, and then looks
//! whether a lease names it. So either the writer sees the lease, or the reader sees that it came
//! too late. A lease in which a writer finds nothing whole is being written at that moment, or by a
//! newer program: it may need everything, and whatever could go stays until the next time.
//!
//! Leases are never synced: after a loss of power there are no readers.

#![doc = include_str!("../../../../docs/format/lease.md")]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::files::read_file;
use terrane_io::rare;
use terrane_io::{Access, Disk, DiskFile, EntryKind, LockGuard, OpenMode};

use crate::error::{Error, Result};
use crate::files::file_set::RUN_NUMBER_MAX;
use crate::trace::event;

/// The directory of the leases.
pub(crate) const READERS: &str = "readers";

/// First bytes of a lease's content.
pub(crate) const LEASE_MAGIC: [u8; 8] = *b"TerraLse";

/// Version of leases.
pub(crate) const LEASE_VERSION: u32 = 1;

/// Where the content of a lease begins: before it stands the number of the process.
pub(crate) const LEASE_OFFSET: u64 = 16;

/// Most leases of a store at a time.
pub(crate) const LEASES_MAX: u32 = 4096;

/// Files of other users that are passed over.
const REFUSALS_MAX: usize = 64;

/// Longest lease that is read, in bytes.
const LEASE_BYTES_MAX: u64 = 64 << 20;

/// Files that readers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Numbers of run files, ascending; `None` for all of them.
    runs: Option<Vec<u64>>,
    /// The first segment of the log; `u64::MAX` for none.
    pub(crate) segment: u64,
}

impl Needs {
    pub(crate) const NOTHING: Self = Self { runs: Some(Vec::new()), segment: u64::MAX };

    const EVERYTHING: Self = Self { runs: None, segment: 0 };

    /// Runs, ascending, and the log from a segment on.
    pub(crate) fn new(runs: Vec<u64>, segment: u64) -> Self {
        Self { runs: Some(runs), segment }
    }

    /// Whether a run file is needed.
    pub(crate) fn has_run(&self, number: u64) -> bool {
        self.runs.as_ref().is_none_or(|runs| runs.binary_search(&number).is_ok())
    }

    fn join(&mut self, other: Self) {
        self.runs = match (self.runs.take(), other.runs) {
            (Some(mut runs), Some(others)) => {
                runs.extend(others);
                runs.sort_unstable();
                runs.dedup();
                Some(runs)
            }
            _ => None,
        };
        self.segment = self.segment.min(other.segment);
    }

    /// Decodes the file of a lease. A file that is not whole pins everything.
    fn decode(file: &[u8]) -> Self {
        let content = file.get(LEASE_OFFSET as usize..).unwrap_or_default();
        Self::decode_content(content).ok().flatten().unwrap_or(Self::EVERYTHING)
    }

    fn decode_content(content: &[u8]) -> std::result::Result<Option<Self>, Overrun> {
        let mut input = Reader::new(content);
        if input.take(8)? != LEASE_MAGIC || input.u32()? != LEASE_VERSION {
            return Ok(None);
        }
        let segment = input.u64()?;

        let count = input.u32()?;
        let mut runs = Vec::new();
        for _ in 0..count {
            runs.push(input.u64()?);
        }
        let is_whole = crc32c(&content[..input.offset()]) == input.u32()?;
        let is_sorted = runs.is_sorted() && runs.last().is_none_or(|&run| run <= RUN_NUMBER_MAX);
        Ok((is_whole && is_sorted).then_some(Self::new(runs, segment)))
    }
}

/// The lease of a reader; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    file: Arc<dyn DiskFile>,
    _guard: Box<dyn LockGuard>,
}

fn lease_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(READERS).join(format!("{number}.lease"))
}

/// Whether a file of that name is a lease.
pub(crate) fn is_lease(name: &str) -> bool {
    let number = name.strip_suffix(".lease").and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| format!("{number}.lease") == name)
}

impl Lease {
    /// A lease in which nothing is written yet.
    ///
    /// # Errors
    /// [`Error::TooManyReaders`], [`Error::Disk`].
    pub(crate) fn take(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        // Another reader may have made the directory meanwhile.
        match disk.create_dir(&dir.join(READERS)) {
            Err(error) if error.system_kind() != Some(ErrorKind::AlreadyExists) => {
                return Err(error.into());
            }
            _ => {}
        }

        let mut refusals = Vec::new();
        for number in 1..=LEASES_MAX {
            let path = lease_path(dir, number);
            let guard = match disk.lock(&path) {
                Err(terrane_io::Error::Locked { .. }) => continue,
                // A file of another user, or no file at all.
                Err(error)
                    if (error.is_permission()
                        || matches!(error, terrane_io::Error::WrongKind { .. }))
                        && refusals.len() < REFUSALS_MAX =>
                {
                    refusals.push(error);
                    continue;
                }
                locked => locked?,
            };

            let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered)?;
            return Ok(Self { file, _guard: guard });
        }

        Err(Error::TooManyReaders { path: dir.to_owned(), limit: LEASES_MAX })
    }

    /// Says what is needed from now on: these runs, ascending, and the log from a segment on; on a
    /// full disk, that everything is. Whether that was still there must be looked at afterwards.
    ///
    /// # Errors
    /// [`Error::Disk`]: then everything may be needed.
    pub(crate) fn renew(&self, runs: &[u64], segment: u64) -> Result<()> {
        debug_assert!(runs.is_sorted(), "a writer takes an unsorted lease for a torn one");
        debug_assert!(u32::try_from(runs.len()).is_ok(), "runs are counted by u32");
        let mut out = Writer::new();
        out.put(&LEASE_MAGIC).u32(LEASE_VERSION).u64(segment).u32(runs.len() as u32);
        for &run in runs {
            out.u64(run);
        }
        let crc = crc32c(out.bytes());
        out.u32(crc);
        debug_assert_eq!(out.bytes().len(), 28 + 8 * runs.len(), "a lease has its length");

        let end = LEASE_OFFSET + out.bytes().len() as u64;
        if self.file.len()? < end {
            // Before anything is written over: on a full disk the earlier content stays whole.
            match self.file.allocate(end) {
                Err(error) if error.is_no_space() => {
                    rare::taken("a lease finds no room and says that everything is needed");
                    // A lease in which nothing whole stands says that everything is needed.
                    return Ok(self.file.set_len(LEASE_OFFSET)?);
                }
                allocated => allocated?,
            }
        }

        Ok(self.file.write_at(out.bytes(), LEASE_OFFSET)?)
    }
}

/// Returns the union of the files that live readers of the store in `dir` need.
///
/// Cost: one call if there never was a reader; else a few for each lease that there ever was.
///
/// # Errors
/// [`Error::Disk`]: then nothing is known, and everything may be needed.
pub(crate) fn needs(disk: &dyn Disk, dir: &Path) -> Result<Needs> {
    let mut needs = Needs::NOTHING;
    if disk.kind(&dir.join(READERS))?.is_none() {
        return Ok(needs);
    }
    for entry in disk.list(&dir.join(READERS))? {
        // Nobody can hold the lock of anything but a file.
        if is_lease(&entry.name) && entry.kind == EntryKind::File {
            needs.join(needs_of(disk, &dir.join(READERS).join(&entry.name))?);
        }
    }
    Ok(needs)
}

/// Returns the files that one reader needs, if the reader is alive.
fn needs_of(disk: &dyn Disk, path: &Path) -> Result<Needs> {
    let read = || {
        if disk.is_locked(path)? {
            Ok(Needs::decode(&read_file(disk, path, LEASE_BYTES_MAX)?))
        } else {
            Ok(Needs::NOTHING)
        }
    };

    match read() {
        // Of another user: nobody knows.
        Err(error) if error.system_kind() == Some(ErrorKind::PermissionDenied) => {
            let dir = path.parent().unwrap_or(path);
            event!(WARN, "lease.unreadable", dir, %error);
            Ok(Needs::EVERYTHING)
        }
        // A new lease is shorter than what is read of it.
        Err(terrane_io::Error::ShortRead { .. }) => Ok(Needs::EVERYTHING),
        read => Ok(read?),
    }
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;

    use super::*;

    fn take(disk: &Arc<dyn Disk>, dir: &Path, runs: &[u64], segment: u64) -> Lease {
        let lease = Lease::take(disk.as_ref(), dir).unwrap();
        lease.renew(runs, segment).unwrap();
        lease
    }

    #[test]
    fn a_lease_counts_while_it_is_held_and_whole() {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        let dir = Path::new("/store");
        disk.create_dir(dir).unwrap();
        let found = || needs(disk.as_ref(), dir).unwrap();
        assert_eq!(found(), Needs::NOTHING);
        let of = |runs: &[u64], segment| Needs::new(runs.to_vec(), segment);
        let first = take(&disk, dir, &[3, 5], 9);
        let second = take(&disk, dir, &[4, 5, 6], u64::MAX);
        assert_eq!(found(), of(&[3, 4, 5, 6], 9));

        // Over what was there, which was longer.
        second.renew(&[4, 5], u64::MAX).unwrap();
        assert_eq!(found(), of(&[3, 4, 5], 9));
        drop(first);
        assert_eq!(found(), of(&[4, 5], u64::MAX));

        // The file is used again.
        let third = take(&disk, dir, &[], 2);
        assert_eq!(found(), of(&[4, 5], 2));
        assert_eq!(disk.list(&dir.join(READERS)).unwrap().len(), 2);

        // Nothing whole: the reader may need whatever there is.
        let path = lease_path(dir, 2);

        let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
        let len = LEASE_OFFSET + 24 + 2 * 8 + 4;
        for bit in LEASE_OFFSET * 8..len * 8 {
            let mut byte = [0];
            file.read_at(&mut byte, bit / 8).unwrap();
            file.write_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
            assert_eq!(found(), Needs::EVERYTHING, "bit {bit}");
            file.write_at(&byte, bit / 8).unwrap();
        }

        for len in 0..len {
            file.set_len(len).unwrap();
            assert_eq!(found(), Needs::EVERYTHING, "{len} bytes");
        }

        assert!(Needs::EVERYTHING.has_run(7));
        drop((second, third));
        assert_eq!(found(), Needs::NOTHING);
    }
}

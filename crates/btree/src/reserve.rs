//! The reserve of an index: room on the disk that the writer gives up for removals when there is no other left.
//!
//! The reserve is allocated behind the durable mark, in the file `synced`, beyond the end of that file: it has no content, no
//! length and no format, and each opening allocates it anew. It is as long as the longest segment of the log, and a little more
//! ([`RESERVE_BYTES_SLACK`](crate::log::RESERVE_BYTES_SLACK)): so the live updates of a segment can be written again, and the segment be removed.
//!
//! A writer that gave the reserve up is *full*: removals, compaction and checkpoints go on, and insertions are refused until
//! the disk has room for the whole of the reserve again. The first insertion after that takes the reserve back.
//!
//! Invariant: giving up and taking back need the writer, so they never meet.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{self as io, Disk, DiskFile};

use crate::error::{Error, Result};
use crate::log::MARK_BYTES;

/// The part of the slack that collecting a segment of the log may take.
pub(crate) const COLLECTION_BYTES: u64 = 64 << 10;

/// The reserve of a writer. See the [module](self).
#[derive(Debug)]
pub(crate) struct Reserve {
    /// The file of the mark; `None` if there is none, and then there is no reserve.
    file: Option<Arc<dyn DiskFile>>,
    /// Its length; 0 if the disk cannot allocate.
    bytes: u64,
    is_full: bool,
}

impl Reserve {
    /// Allocates a reserve; on a full disk the writer begins full.
    pub(crate) fn open(file: Option<Arc<dyn DiskFile>>, bytes: u64) -> Self {
        let mut reserve = Self { file, ..Self::none() };
        if let Err(error) = reserve.grow(bytes) {
            reserve.bytes = bytes;
            reserve.is_full = error.is_no_space();
            reserve.warn("reserve.missing", &error);
        }
        reserve
    }

    /// No reserve.
    pub(crate) fn none() -> Self {
        Self { file: None, bytes: 0, is_full: false }
    }

    fn warn(&self, event: &'static str, error: &io::Error) {
        let path = self.file.as_ref().map(|file| file.path().display().to_string());
        tracing::warn!(path, bytes = self.bytes, %error, "{event}");
    }

    /// Its length, also while it is given up.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was given up.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Makes it longer, if it is shorter. While it is given up, only the length that it will have changes.
    ///
    /// # Errors
    /// Those of the disk: it has the length that it had.
    pub(crate) fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes > self.bytes {
            if !self.is_full {
                file.allocate(bytes)?;
            }
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Gives its room to whoever needs it; whether there was any.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn give_up(&mut self) -> io::Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_full && self.bytes > 0) else {
            return Ok(false);
        };
        file.set_len(MARK_BYTES as u64)?;
        // Some file systems free blocks only when it is durable that nobody has them.
        file.sync()?;
        self.is_full = true;
        tracing::warn!(path = %file.path().display(), bytes = self.bytes, "reserve.given_up");
        Ok(true)
    }

    /// Takes it back if it was given up.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] if the disk has no room for it; [`Error::Disk`].
    pub(crate) fn take_back(&mut self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_full) else { return Ok(()) };
        let refused = || Error::OutOfSpace { path: dir.to_owned(), reserve_bytes: self.bytes };
        // An allocation that fails in the middle would take from others what room there is.
        if disk.free_bytes(dir)? < self.bytes {
            return Err(refused());
        }
        match file.allocate(self.bytes) {
            Err(error) if error.is_no_space() => {
                file.set_len(MARK_BYTES as u64)?;
                Err(refused())
            }
            allocated => {
                allocated?;
                self.is_full = false;
                Ok(())
            }
        }
    }
}

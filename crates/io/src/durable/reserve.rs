//! A reserve: disk space that an engine gives up on a full disk, for calls that make room.
//!
//! The space is allocated behind the end of a file that the engine has anyway. It has no content,
//! no length and no format, and each opening allocates it anew; so no crash leaves it in a wrong
//! state. The file keeps its length while it is open, so cutting it to that length frees the
//! reserve and nothing else.
//!
//! An engine that has given the reserve up is *full*: it refuses calls that take room until the
//! disk has room for the whole reserve again. The first such call then [takes it
//! back](Reserve::take_back).

use std::path::Path;
use std::sync::Arc;

use crate::disk::disk::{Disk, DiskFile};
use crate::error::Result;

/// Disk space behind the end of a file.
#[derive(Debug)]
pub struct Reserve {
    /// `None` if there is no reserve.
    file: Option<Arc<dyn DiskFile>>,
    bytes: u64,
    is_full: bool,
}

impl Reserve {
    /// No reserve.
    #[must_use]
    pub fn none() -> Self {
        Self { file: None, bytes: 0, is_full: false }
    }

    /// Allocates a reserve. On a full disk the engine begins full; where nothing can be allocated,
    /// there is no reserve.
    #[must_use]
    pub fn open(file: Arc<dyn DiskFile>, bytes: u64) -> Self {
        let mut reserve = Self { file: Some(file), ..Self::none() };
        match reserve.grow(bytes) {
            Ok(()) => reserve,
            Err(error) if error.is_no_space() => Self { bytes, is_full: true, ..reserve },
            Err(_) => Self::none(),
        }
    }

    /// Length of the reserve in bytes, also while it is given up; 0 for none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the reserve is given up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Makes the reserve longer, if it is shorter than `bytes`. While it is given up, only its
    /// future length changes.
    ///
    /// # Errors
    /// Those of the disk: the reserve keeps its length, and its room unless another process took
    /// that at the same moment.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes <= self.bytes {
            return Ok(());
        }

        if !self.is_full
            && let Err(error) = allocate(file.as_ref(), bytes)
        {
            // The failed allocation freed the old room, too, and another process may have taken it.
            self.is_full = self.bytes > 0 && allocate(file.as_ref(), self.bytes).is_err();
            return Err(error);
        }

        debug_assert!(self.bytes < bytes, "a reserve only grows");
        self.bytes = bytes;
        Ok(())
    }

    /// Gives the room up. Returns whether there was any.
    ///
    /// # Errors
    /// Those of the disk. After a failed sync the reserve is given up, and earlier writes to the
    /// file may not be durable.
    pub fn give_up(&mut self) -> Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_full && self.bytes > 0) else {
            return Ok(false);
        };
        free_behind_end(file.as_ref())?;
        self.is_full = true;
        // Some file systems free blocks only once it is durable that nobody has them.
        file.sync()?;
        Ok(true)
    }

    /// Takes the reserve back if it is given up. Returns false if the disk has no room for it.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn take_back(&mut self, disk: &dyn Disk, dir: &Path) -> Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_full) else { return Ok(true) };

        // An allocation that fails in the middle would take the last room from others for a moment.
        if disk.free_bytes(dir)? < self.bytes {
            return Ok(false);
        }

        match allocate(file.as_ref(), self.bytes) {
            Err(error) if error.is_no_space() => Ok(false),
            allocated => {
                allocated?;
                self.is_full = false;
                Ok(true)
            }
        }
    }
}

/// Allocates the first bytes of a file, or nothing behind its end.
fn allocate(file: &dyn DiskFile, bytes: u64) -> Result<()> {
    file.allocate(bytes).inspect_err(|_| {
        // A part may have been allocated, which others need.
        let _ = free_behind_end(file);
    })
}

/// Frees the blocks behind the end of a file.
fn free_behind_end(file: &dyn DiskFile) -> Result<()> {
    file.set_len(file.len()?)
}

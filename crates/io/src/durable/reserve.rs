//! A reserve: room on the disk that an engine gives up for what makes room, when there is no other
//! left.
//!
//! The room is allocated behind the end of a file that the engine has anyway. It has no content, no
//! length and no format, and each opening allocates it anew; so no crash leaves it in a wrong
//! state. The file itself keeps its length while it is open, so cutting it to that length frees
//! what lies behind and nothing else.
//!
//! An engine that gave the reserve up is *full*: it refuses what takes room until the disk has room
//! for the whole of the reserve again, and the first such call then [takes it
//! back](Reserve::take_back).

use std::path::Path;
use std::sync::Arc;

use crate::disk::disk::{Disk, DiskFile};
use crate::error::Result;

/// Room behind the end of a file.
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

    /// Allocates a reserve. On a full disk the engine begins full; where nothing can be allocated
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

    /// Its length, also while it is given up; 0 for none.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was given up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Makes it longer, if it is shorter. While it is given up, only the length that it will have
    /// changes.
    ///
    /// # Errors
    /// Those of the disk: it has the length that it had, and is held as it was unless somebody took
    /// its room at that moment.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes <= self.bytes {
            return Ok(());
        }
        if !self.is_full
            && let Err(error) = allocate(file.as_ref(), bytes)
        {
            // That freed what there was, too. Somebody may have taken the room meanwhile.
            self.is_full = self.bytes > 0 && allocate(file.as_ref(), self.bytes).is_err();
            return Err(error);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Gives its room to whoever needs it; whether there was any.
    ///
    /// # Errors
    /// Those of the disk. After a sync that failed it is given up, and what was written to the file
    /// may not be durable.
    pub fn give_up(&mut self) -> Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_full && self.bytes > 0) else {
            return Ok(false);
        };
        free_behind_end(file.as_ref())?;
        self.is_full = true;
        // Some file systems free blocks only when it is durable that nobody has them.
        file.sync()?;
        Ok(true)
    }

    /// Takes it back if it was given up; false if the disk has no room for it.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn take_back(&mut self, disk: &dyn Disk, dir: &Path) -> Result<bool> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_full) else { return Ok(true) };
        // An allocation that fails in the middle would take from others, for a moment, what room
        // there is.
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

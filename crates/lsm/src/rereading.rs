//! What an interrupted merge has written, read again to go on with it.
//!
//! The pages of entries stay as they are. But filter, index and sums of a run are in memory until it is
//! finished; so whoever goes on later has to gather them once more, by reading these pages. That is done
//! in steps, like the merge itself. Blobs are read too: once the merge is complete its inputs go, and only
//! until then is damage no loss.
//!
//! Invariant: nothing is written, and nothing cut off, before all has been found whole.

use std::sync::Arc;

use crate::blob::BlobReader;
use crate::corrupt::Corrupt;
use crate::entry::{BlobSpan, EntryRef, key_hash};
use crate::error::{Error, Result};
use crate::files::{FileHandle, Partial};
use crate::page::PAYLOAD_SIZE;
use crate::run::Run;
use crate::run_builder::{Flushed, RunBuilder, RunPlan, blob_end};
use crate::run_reader::{Purpose, RunReader};

/// An unfinished run, and the right to go on with it.
#[derive(Debug)]
pub(crate) struct TakenOver {
    pub(crate) partial: Partial,
    pub(crate) handle: FileHandle,
}

impl TakenOver {
    /// Pages to read.
    pub(crate) fn pages(&self) -> u64 {
        let blob_pages = self.partial.blob_bytes.div_ceil(PAYLOAD_SIZE as u64);
        u64::from(self.partial.data_pages) + blob_pages
    }

    pub(crate) fn flushed(&self) -> Flushed {
        Flushed::durable(self.partial, &self.handle)
    }
}

/// An unfinished run that is being read.
#[derive(Debug)]
pub(crate) struct Rereading {
    partial: Partial,
    salt: u64,
    /// The largest key that can be in it.
    upper: Vec<u8>,
    run: Arc<Run>,
    reader: RunReader,
    blobs: Option<BlobReader>,
    /// How much of the blobs has been read.
    blob_bytes: u64,
    blob_pages: u64,
    builder: Box<RunBuilder>,
}

impl Rereading {
    /// Opens the files. `plan` is that of the merge.
    pub(crate) fn begin(taken: TakenOver, plan: &RunPlan) -> Result<Self> {
        let TakenOver { partial, handle } = taken;
        let run = Arc::new(Run::beginning(handle.attach(), &partial, plan.salt)?);
        let reader = RunReader::new(Arc::clone(&run), Purpose::Merge)?;
        let rereading = Self {
            partial,
            salt: plan.salt,
            upper: plan.upper.clone(),
            run,
            reader,
            blobs: None,
            blob_bytes: 0,
            blob_pages: 0,
            builder: Box::new(RunBuilder::resuming(handle, plan, &partial)?),
        };
        match rereading.reader.key() {
            Some(first) if first < plan.lower.as_slice() => Err(rereading.out_of_bounds()),
            _ => Ok(rereading),
        }
    }

    pub(crate) fn flushed(&self) -> Flushed {
        self.builder.durable(self.partial)
    }

    /// Number of the run.
    pub(crate) fn number(&self) -> u64 {
        self.partial.number
    }

    fn corrupt(&self, rule: &'static str, expected: u64, found: u64) -> Error {
        let page = self.reader.pages_passed();
        Error::corrupt(self.run.path(), Corrupt { page, rule, expected, found })
    }

    fn out_of_bounds(&self) -> Error {
        self.corrupt("keys are between those of the inputs", 1, 0)
    }

    /// Pages read so far.
    pub(crate) fn pages_read(&self) -> u64 {
        u64::from(self.reader.pages_passed()) + self.blob_pages
    }

    /// Reads about so many pages more; says whether all have been read.
    ///
    /// # Errors
    /// Also if anything is not as it was written; then nothing is to be done with what was read.
    pub(crate) fn step(&mut self, pages: u64) -> Result<bool> {
        let end = self.pages_read().saturating_add(pages);
        while let Some(entry) = self.reader.current() {
            if self.pages_read() >= end {
                return Ok(false);
            }
            if entry.key > self.upper.as_slice() {
                return Err(self.out_of_bounds());
            }
            self.check_blob(entry)?;
            let (starts_page, overflow) = (self.reader.starts_page(), self.reader.overflow_pages());
            let hash = || key_hash(self.salt, entry.key);
            self.builder.adopt(entry, starts_page, overflow, hash);
            self.reader.advance()?;
        }
        while self.blob_bytes < self.partial.blob_bytes {
            if self.pages_read() >= end {
                return Ok(false);
            }
            self.read_blobs()?;
        }
        Ok(true)
    }

    fn check_blob(&self, entry: EntryRef<'_>) -> Result<()> {
        let end = blob_end(entry);
        if end > self.partial.blob_bytes {
            return Err(self.corrupt("bytes of blobs", self.partial.blob_bytes, end));
        }
        Ok(())
    }

    /// Checks the next page of blobs.
    fn read_blobs(&mut self) -> Result<()> {
        let reader = match &mut self.blobs {
            Some(reader) => reader,
            none => none.insert(BlobReader::new(Arc::clone(&self.run))?),
        };
        let left = self.partial.blob_bytes - self.blob_bytes;
        let len = left.min(PAYLOAD_SIZE as u64) as u32;
        let part = reader.part(BlobSpan { offset: self.blob_bytes, len }, 0)?;
        self.blob_bytes += part.len() as u64;
        self.blob_pages += 1;
        Ok(())
    }

    /// The builder, ready for what comes next: all must have been read.
    pub(crate) fn finish(self) -> Result<Box<RunBuilder>> {
        self.builder.cut()?;
        Ok(self.builder)
    }
}

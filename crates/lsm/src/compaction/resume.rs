//! Resuming: rereads the output of an interrupted compaction, to continue behind it.
//!
//! The pages of entries stay as they are. But filter, index and sums of a run are in memory until
//! it is finished, so a resumed compaction rebuilds them by reading these pages, in steps. It reads
//! the blobs too: as long as the inputs are there, damage of the output is no loss.
//!
//! Invariant: no page is written or cut off before the whole output has been checked.

use std::ops::Range;

use terrane_io::{Access, AlignedBuf};

use crate::block::page::{
    PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageKind, PageLayout, decode_payload, overflow_pages,
    split_value,
};
use crate::corrupt::Corrupt;
use crate::entry::entry::{EntryRef, key_hash};
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, Partial};
use crate::files::handles::PooledFile;
use crate::run::writer::{AdoptedPage, Flushed, RunBuilder, RunPlan, blob_end};

/// Pages that are read with one call.
const CHUNK_PAGES: u32 = 32;

/// An unfinished run, and the right to continue it.
#[derive(Debug)]
pub(crate) struct ResumedPages {
    pub(crate) partial: Partial,
    pub(crate) handle: FileHandle,
}

impl ResumedPages {
    /// Pages to read.
    pub(crate) fn pages(&self) -> u64 {
        u64::from(self.partial.data_pages) + blob_pages(&self.partial)
    }

    pub(crate) fn flushed(&self) -> Flushed {
        Flushed::durable(self.partial, &self.handle)
    }
}

fn blob_pages(partial: &Partial) -> u64 {
    partial.blob_bytes.div_ceil(PAYLOAD_SIZE as u64)
}

/// Sequential reader of a file, from its first page to the page before `end`.
#[derive(Debug)]
struct PageSource {
    file: PooledFile,
    identity: u64,
    end: u32,
    /// The page that is read next.
    next: u32,
    chunk: AlignedBuf,
    /// The pages in `chunk`.
    loaded: Range<u32>,
    /// Whether the system's page cache is to forget the pages.
    forget: bool,
}

impl PageSource {
    fn new(file: PooledFile, identity: u64, end: u32, forget: bool) -> Self {
        let chunk = AlignedBuf::zeroed(CHUNK_PAGES as usize * PAGE_SIZE);
        Self { file, identity, end, next: 0, chunk, loaded: 0..0, forget }
    }

    fn corrupt(&self, what: Corrupt) -> Error {
        Error::corrupt(self.file.path(), what)
    }

    /// The next page, and its place.
    fn next(&mut self) -> Result<(&[u8], PageAddress)> {
        let page = self.next;
        if page >= self.end {
            let expected = u64::from(self.end);
            let found = u64::from(page);
            let rule = "pages of the last entry";
            return Err(self.corrupt(Corrupt { page, rule, expected, found }));
        }

        if !self.loaded.contains(&page) {
            let end = self.end.min(page + CHUNK_PAGES);
            // A read that fails leaves no pages that could pass for loaded ones.
            self.loaded = 0..0;
            let bytes = &mut self.chunk[..(end - page) as usize * PAGE_SIZE];
            let file = self.file.get()?;
            let offset = u64::from(page) * PAGE_SIZE as u64;
            file.read_at(bytes, offset)?;
            // The pages are read once, so direct access leaves nothing in the system's page cache.
            if self.forget {
                file.forget(offset, bytes.len() as u64);
            }
            self.loaded = page..end;
        }

        debug_assert!(self.loaded.contains(&page), "the page is in the chunk");
        debug_assert!(self.loaded.end - self.loaded.start <= CHUNK_PAGES);
        self.next += 1;
        debug_assert!(self.next <= self.end, "no page behind the end is read");
        let at = (page - self.loaded.start) as usize * PAGE_SIZE;
        Ok((&self.chunk[at..at + PAGE_SIZE], PageAddress { identity: self.identity, page }))
    }

    /// The content of the next page, which must be of this kind and position.
    fn payload(&mut self, kind: PageKind, position: u32) -> Result<&[u8]> {
        let (bytes, place) = self.next()?;
        if let Err(what) = decode_payload(bytes, place, kind, position) {
            return Err(self.corrupt(what));
        }
        let at = (place.page - self.loaded.start) as usize * PAGE_SIZE;
        Ok(&self.chunk[at + PAGE_SIZE - PAYLOAD_SIZE..at + PAGE_SIZE])
    }
}

/// An unfinished run that is being read.
#[derive(Debug)]
pub(crate) struct ResumedOutput {
    partial: Partial,
    salt: u64,
    /// The keys between which all keys are.
    bounds: (Vec<u8>, Vec<u8>),
    entries: PageSource,
    blobs: Option<PageSource>,
    builder: Box<RunBuilder>,
    /// The image of the page being read, if it is compressed.
    image: Vec<u8>,
}

impl ResumedOutput {
    /// Prepares to reread. `plan` is the plan of the compaction. Cost: no I/O.
    pub(crate) fn new(taken: ResumedPages, plan: &RunPlan) -> Self {
        let ResumedPages { partial, handle } = taken;
        let Partial { number, identity, data_pages, .. } = partial;
        let set = handle.set();
        let forget = plan.access == Access::Direct;
        let entries = set.file(number, Access::Buffered);
        let entries = PageSource::new(entries, identity, data_pages, forget);

        let blobs = (partial.blob_bytes > 0).then(|| {
            let pages = blob_pages(&partial) as u32;
            PageSource::new(set.blobs(number, Access::Buffered), identity, pages, forget)
        });

        Self {
            partial,
            salt: plan.salt,
            bounds: (plan.lower.clone(), plan.upper.clone()),
            entries,
            blobs,
            builder: Box::new(RunBuilder::resuming(handle, plan, &partial)),
            image: Vec::new(),
        }
    }

    pub(crate) fn flushed(&self) -> Flushed {
        self.builder.durable(self.partial)
    }

    /// Number of the run.
    pub(crate) fn number(&self) -> u64 {
        self.partial.number
    }

    /// Memory of the filter and the index so far, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.builder.memory_bytes()
    }

    /// Pages read so far.
    pub(crate) fn pages_read(&self) -> u64 {
        let blobs = self.blobs.as_ref().map_or(0, |blobs| blobs.next);
        u64::from(self.entries.next) + u64::from(blobs)
    }

    /// Reads about `pages` more pages; returns whether all have been read.
    ///
    /// # Errors
    /// Errors of the disk, and damage: anything that differs from what was written. The object is
    /// useless after an error.
    pub(crate) fn step(&mut self, pages: u64) -> Result<bool> {
        let end = self.pages_read().saturating_add(pages);
        while self.entries.next < self.entries.end {
            if self.pages_read() >= end {
                return Ok(false);
            }
            self.read_entries()?;
        }

        debug_assert_eq!(self.entries.next, self.entries.end, "blobs are read after all entries");
        while let Some(blobs) = self.blobs.as_mut().filter(|blobs| blobs.next < blobs.end) {
            let position = blobs.next;
            blobs.payload(PageKind::Blob, position)?;
            if self.pages_read() >= end {
                break;
            }
        }

        Ok(self.blobs.as_ref().is_none_or(|blobs| blobs.next == blobs.end))
    }

    /// Reads a key page and the overflow pages of its entry.
    fn read_entries(&mut self) -> Result<()> {
        let (bytes, place) = self.entries.next()?;
        // Copied, because overflow pages of the entry replace the chunk.
        let page: Box<[u8]> = bytes.into();
        let mut image = std::mem::take(&mut self.image);
        let layout = PageLayout::open(&page, place, &mut image);
        let layout = layout.map_err(|what| self.entries.corrupt(what))?;
        let bytes = layout.bytes(&page, &image);
        let large = self.read_large(layout, bytes)?;

        let broken = |rule, expected, found| {
            Err(self.entries.corrupt(Corrupt { page: place.page, rule, expected, found }))
        };

        for index in 0..layout.count() {
            let key = [layout.prefix(bytes), layout.suffix(bytes, index)].concat();
            // The builder has no last key before the first entry, and the first key may be empty.
            let is_first = place.page == 0 && index == 0;

            let is_above = is_first || key.as_slice() > self.builder.last_key();
            if !is_above || key < self.bounds.0 || key > self.bounds.1 {
                return broken("keys rise, and are between those of the inputs", 1, 0);
            }

            let kind = layout.kind(bytes, index);
            let (value, blob) = match &large {
                // A large value is longer than the place of a blob.
                Some((value, _)) => split_value(kind, value).unwrap_or_default(),
                None => layout.value(bytes, index),
            };

            let entry = EntryRef { key: &key, kind, value, blob };
            if blob_end(entry) > self.partial.blob_bytes {
                return broken("bytes of blobs", self.partial.blob_bytes, blob_end(entry));
            }

            let overflow = large.as_ref().map_or(0, |(_, overflow)| *overflow);
            let page = AdoptedPage { overflow, is_compressed: layout.is_compressed() };
            let starts_page = (index == 0).then_some(page);
            self.builder.adopt(entry, starts_page, || key_hash(self.salt, &key));
        }

        self.image = image;
        Ok(())
    }

    /// Returns the stored value of a key page's only entry and the number of its overflow pages;
    /// `None` for a page without overflow.
    fn read_large(&mut self, layout: PageLayout, bytes: &[u8]) -> Result<Option<(Vec<u8>, u32)>> {
        let Some(len) = layout.large_value_len() else { return Ok(None) };
        let key_len = layout.prefix(bytes).len() + layout.suffix(bytes, 0).len();
        let overflow = overflow_pages(key_len, len);
        let mut value = layout.stored_value(bytes, 0).to_vec();
        for position in 1..=overflow {
            let content = self.entries.payload(PageKind::Overflow, position)?;
            // Padding of the last overflow page is not part of the value.
            value.extend_from_slice(&content[..content.len().min(len - value.len())]);
        }
        Ok(Some((value, overflow)))
    }

    /// Returns the builder, ready for the next entry. All pages must have been read.
    pub(crate) fn finish(self) -> Box<RunBuilder> {
        assert_eq!(self.entries.next, self.entries.end, "every page of entries was checked");
        assert!(self.blobs.as_ref().is_none_or(|blobs| blobs.next == blobs.end));
        self.builder
    }
}

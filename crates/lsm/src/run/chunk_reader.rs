//! The pages of a part of a run file, read in chunks in one direction.
//!
//! A reader of a part of a run starts with one page, so that a short range costs one page. Then it
//! reads [`SECOND_CHUNK_PAGES`], and from there on doubles the chunk with each read. From the third
//! chunk on it asks for the next one before that is needed: while chunks grow, once half of the one
//! in memory is passed, so that a scan reads about twice as much as it takes in at most. A reader
//! of the largest chunks asks at once, and one that has to wait all the same asks for more of them,
//! up to [`CHUNKS_AHEAD_MAX`]. So in a scan of many runs the fastest runs read furthest ahead. No
//! reader asks for anything beyond the part. Where the cursors of a session have used up their
//! [allowance](crate::run::prefetch::ReadAhead), a reader goes on with single pages.
//!
//! Single pages come from the table's cache of pages if it has them, and the first page of a reader
//! goes there. Readers of several short ranges [ask](ChunkReader::ask_first) for their first pages
//! before any of them reads, so that the disk reads these side by side.
//!
//! Merges read whole runs in chunks of one size. Each of their readers has the next one under way
//! while the entries of this one are merged, and one that had to wait asks for more; all of them
//! together for [`MERGE_CHUNKS_EXTRA`] beyond that, in proportion to their sizes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use terrane_io::{Access, AlignedBuf};

use crate::block::page::PAGE_SIZE;
use crate::corrupt::Corrupt;
use crate::entry::entry::Order;
use crate::error::{Error, Result};
use crate::files::file_set::FileSet;
use crate::run::page_cache::PageCache;
use crate::run::prefetch::Prefetcher;
use crate::run::run::Run;

/// Pages that a merge reads with one call. It holds two such chunks of each of its inputs, and some
/// more of large ones.
const MERGE_CHUNK_PAGES: u32 = 16;

/// Chunks that the readers of a compaction request ahead, beside one for each reader.
const MERGE_CHUNKS_EXTRA: usize = 16;

/// Most pages that a scan reads with one call. Two such reads in flight keep a fast device busy;
/// larger ones gain nothing and leave the processor's caches.
const CHUNK_PAGES_MAX: u32 = 64;

/// Pages of the second chunk of a scan: a range that does not end with its first page mostly takes
/// several more, and four pages cost the device little more than one.
const SECOND_CHUNK_PAGES: u32 = 4;

/// From this size on chunks are read ahead.
const AHEAD_CHUNK_PAGES_MIN: u32 = 8;

/// Most chunks that one reader asks for ahead.
const CHUNKS_AHEAD_MAX: usize = 8;

/// Why a run is read. Reads ahead of one merge or scan share a queue.
#[derive(Debug, Clone)]
pub(crate) enum Reading {
    /// A compaction: all of a known part, once, with at most this many chunks ahead.
    Merge(Arc<Prefetcher>, usize),
    /// A cursor, which may stop at any entry, and the cache of its table.
    Scan(Arc<Prefetcher>, Option<Arc<PageCache>>),
}

impl Reading {
    /// For a merge of this many runs.
    pub(crate) fn merge(set: &FileSet, runs: usize) -> Self {
        let ahead_max = (1 + MERGE_CHUNKS_EXTRA / runs.max(1)).min(CHUNKS_AHEAD_MAX);
        debug_assert!((1..=CHUNKS_AHEAD_MAX).contains(&ahead_max));
        Self::Merge(Prefetcher::of_merge(set.handles()), ahead_max)
    }

    /// For a run of the merge that has so many pages `of` all: the largest one reads furthest
    /// ahead, since most of the merge waits for it.
    pub(crate) fn with_share(&self, pages: u64, of: u64) -> Self {
        let Self::Merge(prefetcher, _) = self else { return self.clone() };
        let extra = (MERGE_CHUNKS_EXTRA as u64).saturating_mul(pages) / of.max(1);
        Self::Merge(Arc::clone(prefetcher), (1 + extra as usize).min(CHUNKS_AHEAD_MAX))
    }

    fn prefetcher(&self) -> &Arc<Prefetcher> {
        match self {
            Self::Merge(prefetcher, _) | Self::Scan(prefetcher, _) => prefetcher,
        }
    }

    /// Most chunks that one reader asks for ahead.
    fn ahead_max(&self) -> usize {
        match self {
            Self::Merge(_, ahead_max) => *ahead_max,
            Self::Scan(..) => CHUNKS_AHEAD_MAX,
        }
    }

    /// Pages of the first chunk and of the largest ones.
    fn chunk_pages(&self) -> (u32, u32) {
        match self {
            Self::Merge(..) => (MERGE_CHUNK_PAGES, MERGE_CHUNK_PAGES),
            Self::Scan(..) => (1, CHUNK_PAGES_MAX),
        }
    }

    /// The cache that may have pages of a run.
    fn cache_of(&self, run: &Run) -> Option<&PageCache> {
        match self {
            Self::Scan(_, Some(cache)) if run.access() == Access::Direct => Some(cache),
            _ => None,
        }
    }
}

/// A chunk that has been asked for.
#[derive(Debug)]
struct Ahead {
    tag: u64,
    pages: Range<u32>,
}

/// A part of a run file on its way through memory.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    run: Arc<Run>,
    order: Order,
    reading: Reading,
    /// The pages in memory, and their bytes; none before the first read and after the end.
    pages: Range<u32>,
    buffer: Option<AlignedBuf>,
    /// Bytes of the buffer that count against the allowance.
    charged: usize,
    /// Asked for, in the order in which they are needed; they follow `pages`.
    ahead: VecDeque<Ahead>,
    /// The pages that follow those.
    rest: Range<u32>,
    /// Pages of the next chunk.
    chunk_pages: u32,
    /// Chunks to request ahead.
    ahead_max: usize,
    /// Whether the page in memory is the first one, and was read from the disk.
    is_first: bool,
}

impl ChunkReader {
    /// The pages `part` of a run. Reads nothing.
    pub(crate) fn new(run: Arc<Run>, part: Range<u32>, order: Order, reading: Reading) -> Self {
        debug_assert!(part.start <= part.end);
        let (chunk_pages, largest) = reading.chunk_pages();
        debug_assert!(0 < chunk_pages && chunk_pages <= largest);

        Self {
            run,
            order,
            reading,
            pages: 0..0,
            buffer: None,
            charged: 0,
            ahead: VecDeque::new(),
            rest: part,
            chunk_pages,
            ahead_max: 1,
            is_first: false,
        }
    }

    /// Reads in chunks of the size that another reader has come to.
    pub(crate) fn grow_to(&mut self, other: &Self) {
        debug_assert!(self.buffer.is_none() && self.ahead.is_empty(), "nothing was read");
        self.chunk_pages = other.chunk_pages;
        self.ahead_max = other.ahead_max;
    }

    /// Asks for the first page of a scan, of which nothing was read or asked for, unless the cache
    /// has the page. The page comes with the next [`submit`](Prefetcher::submit).
    pub(crate) fn ask_first(&mut self) {
        debug_assert!(self.buffer.is_none() && self.ahead.is_empty() && self.chunk_pages == 1);
        let page = self.next_chunk().start;
        let cache = self.reading.cache_of(&self.run);
        if cache.is_none_or(|cache| !cache.has(self.run.number(), page)) {
            self.is_first = self.ask();
        }
    }

    /// Keeps the page in memory for later readers, if it is the first one; it has been found whole.
    pub(crate) fn keep_first(&mut self) {
        if std::mem::take(&mut self.is_first)
            && let (Some(cache), Some(page)) = (self.reading.cache_of(&self.run), &self.buffer)
        {
            debug_assert_eq!(self.pages.len(), 1, "the first chunk is one page");
            cache.insert(self.run.number(), self.pages.start, &page[..PAGE_SIZE]);
        }
    }

    /// The bytes of a page of the part. Pages come in the order of the reader: those passed are
    /// gone.
    ///
    /// # Errors
    /// Those of the disk; damage found if the file says that there are pages beyond the part.
    pub(crate) fn page(&mut self, page: u32) -> Result<&[u8]> {
        while !self.pages.contains(&page) {
            if !self.read_next()? {
                let expected = u64::from(self.run.meta().data_pages);
                let found = u64::from(page);
                let rule = "overflow pages within the data pages";
                let what = Corrupt { page, rule, expected, found };
                return Err(Error::corrupt(self.run.path(), what));
            }
        }
        if self.is_growing() && self.is_in_second_half(page) {
            self.ask_ahead();
        }
        Ok(self.bytes(page))
    }

    /// Whether the chunks are those of a scan that has not come to the largest ones.
    fn is_growing(&self) -> bool {
        self.chunk_pages < self.reading.chunk_pages().1
    }

    /// Whether at least half of the chunk in memory is passed with this page of it.
    fn is_in_second_half(&self, page: u32) -> bool {
        debug_assert!(self.pages.contains(&page), "the page is in memory");
        let passed = match self.order {
            Order::Ascending => page + 1 - self.pages.start,
            Order::Descending => self.pages.end - page,
        };
        2 * passed as usize >= self.pages.len()
    }

    /// The bytes of a page in memory.
    #[inline]
    pub(crate) fn bytes(&self, page: u32) -> &[u8] {
        debug_assert!(self.buffer.is_none() || self.pages.contains(&page), "pages passed are gone");
        let at = (page - self.pages.start) as usize * PAGE_SIZE;
        self.buffer.as_deref().map_or(&[], |buffer| &buffer[at..at + PAGE_SIZE])
    }

    /// Whether to go on after `page`, which is in memory, may take a wait.
    pub(crate) fn may_wait_after(&self, page: u32) -> bool {
        page + 1 == self.pages.end
            && match self.ahead.front() {
                Some(next) => !self.reading.prefetcher().has_arrived(next.tag),
                None => !self.rest.is_empty(),
            }
    }

    /// Drops everything; no page may be read afterwards.
    pub(crate) fn end(&mut self) {
        for Ahead { tag, .. } in self.ahead.drain(..) {
            // These pages are not needed, so their errors are not reported.
            if let Ok(arrived) = self.reading.prefetcher().take(tag) {
                self.reading.prefetcher().discharge(arrived.buffer.len());
            }
        }
        (self.pages, self.rest) = (0..0, 0..0);
        self.buffer = None;
        self.reading.prefetcher().discharge(std::mem::take(&mut self.charged));
    }

    /// The pages of the next chunk, which are the first ones of the rest.
    fn next_chunk(&self) -> Range<u32> {
        debug_assert!(!self.rest.is_empty(), "no page beyond the part is read");
        let pages = self.chunk_pages.min(self.rest.len() as u32);
        debug_assert!(0 < pages && pages as usize <= self.rest.len());
        match self.order {
            Order::Ascending => self.rest.start..self.rest.start + pages,
            Order::Descending => self.rest.end - pages..self.rest.end,
        }
    }

    /// Cuts the next chunk off the rest.
    fn cut(&mut self) -> Range<u32> {
        let pages = self.next_chunk();
        match self.order {
            Order::Ascending => self.rest.start = pages.end,
            Order::Descending => self.rest.end = pages.start,
        }
        pages
    }

    /// Shrinks the next chunk to the buffer that is there, or to one page, if there is no allowance
    /// for more.
    fn fit_chunk(&mut self) {
        let bytes = self.chunk_pages as usize * PAGE_SIZE;
        if self.chunk_pages == 1 || bytes <= self.charged {
            return;
        }
        if self.reading.prefetcher().charge(bytes - self.charged) {
            self.charged = bytes;
        } else {
            self.chunk_pages = (self.charged / PAGE_SIZE).max(1) as u32;
        }
    }

    fn grow(&mut self) {
        let (_, largest) = self.reading.chunk_pages();
        let next = if self.chunk_pages == 1 { SECOND_CHUNK_PAGES } else { 2 * self.chunk_pages };
        self.chunk_pages = next.min(largest);
    }

    /// Goes to the next chunk, unless there is none.
    fn read_next(&mut self) -> Result<bool> {
        if let Some(Ahead { tag, pages }) = self.ahead.pop_front() {
            let prefetcher = self.reading.prefetcher();
            let arrived = prefetcher.take(tag)?;
            debug_assert_eq!(
                arrived.buffer.len(),
                pages.len() * PAGE_SIZE,
                "all that was asked for"
            );
            // The disk is slower than the reader, so more is asked for from here on. A scan that
            // may end soon only grows its chunks.
            if arrived.was_late && pages.len() as u32 == self.reading.chunk_pages().1 {
                self.ahead_max = (2 * self.ahead_max).min(self.reading.ahead_max());
            }

            self.pages = pages;
            prefetcher.discharge(std::mem::replace(&mut self.charged, arrived.buffer.len()));

            // Smaller ones, of readers on their way to this size, are not asked for again.
            if let Some(passed) = self.buffer.replace(arrived.buffer)
                && passed.len() == self.reading.chunk_pages().1 as usize * PAGE_SIZE
            {
                prefetcher.give_back(passed);
            }
        } else if self.rest.is_empty() {
            return Ok(false);
        } else {
            self.fit_chunk();
            let pages = self.cut();
            // A failed read leaves no page in memory.
            self.pages = 0..0;
            self.read(&pages)?;
            self.pages = pages;
            self.grow();
        }

        if !self.is_growing() {
            self.ask_ahead();
        }
        Ok(true)
    }

    /// Reads pages and waits for them.
    fn read(&mut self, pages: &Range<u32>) -> Result<()> {
        let bytes = pages.len() * PAGE_SIZE;
        self.is_first = self.buffer.is_none() && pages.len() == 1;
        let buffer = match &mut self.buffer {
            Some(buffer) if buffer.len() >= bytes => buffer,
            buffer => buffer.insert(AlignedBuf::zeroed(bytes)),
        };

        let cache = self.reading.cache_of(&self.run).filter(|_| pages.len() == 1);
        let copy = |page: &[u8]| buffer[..bytes].copy_from_slice(page);
        if cache.is_some_and(|cache| cache.look(self.run.number(), pages.start, copy).is_some()) {
            self.is_first = false;
            return Ok(());
        }
        Ok(self.run.file()?.read_at(&mut buffer[..bytes], offset_of(pages))?)
    }

    /// Asks for what is to be under way, once half of it has been taken: every time that the disk
    /// is asked costs as much as the reading of some pages.
    fn ask_ahead(&mut self) {
        if self.chunk_pages < AHEAD_CHUNK_PAGES_MIN || self.ahead.len() > self.ahead_max / 2 {
            return;
        }

        while self.ahead.len() < self.ahead_max && !self.rest.is_empty() && self.ask() {}

        debug_assert!(self.ahead.len() <= self.ahead_max);
        self.reading.prefetcher().submit();
    }

    /// Asks for the next chunk; says whether it is under way. One that is not is read when it is
    /// needed, and that read reports the error.
    fn ask(&mut self) -> bool {
        let pages = self.next_chunk();
        let (offset, bytes) = (offset_of(&pages), pages.len() * PAGE_SIZE);
        let prefetcher = self.reading.prefetcher();
        let Ok(Some(tag)) = prefetcher.begin(offset, bytes, || self.run.file_if_room()) else {
            return false;
        };
        self.cut();
        self.ahead.push_back(Ahead { tag, pages });
        self.grow();
        true
    }
}

impl Drop for ChunkReader {
    fn drop(&mut self) {
        self.reading.prefetcher().discharge(self.charged);
    }
}

fn offset_of(pages: &Range<u32>) -> u64 {
    u64::from(pages.start) * PAGE_SIZE as u64
}

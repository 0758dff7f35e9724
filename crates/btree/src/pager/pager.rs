//! The pager: reads the pages of a tree file through the cache, checks them, and writes new pages.
//!
//! Reads go past the system's page cache where the file system allows it, many side by side. One
//! call writes a batch of neighbours. Every page is checked before anybody sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use terrane_io::{AlignedBuf, Direction, Disk, DiskFile, IoQueue, Request};

use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::inner::Inner;
use crate::page::leaf::{Leaf, Sizes};
use crate::page::page::{self, Kind, PAGE_SIZE, Page, PageNo, PageRef};
use crate::pager::cache::Cache;
use crate::pager::stats::Counters;
use crate::pager::superblock;

/// Most requests in flight.
const QUEUE_DEPTH: usize = 64;

/// Most neighbours that one call writes.
const WRITE_PAGES_MAX: usize = 64;

/// The pages of a tree file. See the [module](self).
#[derive(Debug)]
pub(crate) struct Pager {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    pub(crate) tree: u64,
    pub(crate) sizes: Sizes,
    pub(crate) cache: Cache,
    pub(crate) counters: Counters,
    /// Generation that a reader reads; 0 for a writer, whose pages nobody overwrites.
    pub(crate) stands_at: AtomicU64,
    /// Whether the writer does not know of this reader, and so may overwrite any page that a newer
    /// tree does not have.
    pub(crate) is_unprotected: AtomicBool,
    /// Number of the last step of this generation that wrote leaves.
    step: AtomicU32,
}

/// A page to be written: its number and its sealed bytes.
pub(crate) type NewPage = (PageNo, Page);

impl Pager {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        tree: u64,
        sizes: Sizes,
        cache_bytes: usize,
    ) -> Self {
        let cache = Cache::new(cache_bytes);
        let counters = Counters::default();
        Self {
            disk,
            file,
            tree,
            sizes,
            cache,
            counters,
            stands_at: AtomicU64::new(0),
            is_unprotected: AtomicBool::new(false),
            step: AtomicU32::new(0),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        self.file.as_ref()
    }

    /// The error of damage in the tree file.
    pub(crate) fn corrupt(&self, what: Corrupt) -> Error {
        Error::Corrupt { path: PathBuf::from(self.path()), what }
    }

    /// Number of the step that is writing leaves.
    pub(crate) fn step(&self) -> u32 {
        self.step.load(Ordering::Relaxed)
    }

    /// Begins a step: its leaves are newer than all leaves written before.
    pub(crate) fn begin_step(&self) {
        self.step.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a generation, whose steps count from 0.
    pub(crate) fn begin_generation(&self) {
        self.step.store(0, Ordering::Relaxed);
    }

    /// Returns a page of the tree.
    ///
    /// Cost: a read of 4 KiB; none if the page is cached.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Corrupt`].
    pub(crate) fn load(&self, page: PageRef, level: u8) -> Result<Page> {
        if let Some(page) = self.cached(page, level) {
            return Ok(page);
        }
        let loaded = self.read(page, level)?;
        self.cache.put(page.number, loaded.clone());
        Ok(loaded)
    }

    /// The cached page, if it has the level that the reference says.
    fn cached(&self, page: PageRef, level: u8) -> Option<Page> {
        let found = self.cache.get(page).filter(|page| page.level() == level)?;
        self.counters.cache_hits[usize::from(level)].add(1);
        Some(found)
    }

    /// Turns an error of reading a page into [`Error::StaleReader`] if the reader has fallen
    /// behind: then the writer may have reused the page.
    fn explain(&self, error: Error) -> Error {
        let generation = self.stands_at.load(Ordering::Relaxed);
        if generation == 0 {
            return error;
        }

        // The superblock tells whether the writer may have reused the page.
        match superblock::read(self.disk.as_ref(), self.path()) {
            Ok(superblock) if superblock.oldest > generation => {
                Error::StaleReader { generation, oldest: superblock.oldest }
            }
            Ok(superblock)
                if superblock.generation > generation
                    && self.is_unprotected.load(Ordering::Relaxed) =>
            {
                Error::StaleReader { generation, oldest: superblock.generation }
            }
            _ => error,
        }
    }

    /// Like [`load`](Self::load), past the cache.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub(crate) fn read(&self, page: PageRef, level: u8) -> Result<Page> {
        self.read_unexplained(page, level).map_err(|error| self.explain(error))
    }

    /// The error of a page that the device does not give, or that lies behind the end of the file:
    /// damage.
    fn unreadable(&self, page: PageRef, error: terrane_io::Error) -> Error {
        // An error that may pass is no damage.
        if !error.is_unreadable() {
            return error.into();
        }
        tracing::warn!(path = %self.path().display(), page = page.number, %error, "page.unreadable");
        let page = u64::from(page.number);
        self.corrupt(Corrupt { page, rule: "the page can be read", expected: 1, found: 0 })
    }

    /// Reads a page, with the plain error if that fails.
    fn read_unexplained(&self, page: PageRef, level: u8) -> Result<Page> {
        let mut buffer = AlignedBuf::zeroed(PAGE_SIZE);
        let read = self.file.read_at(&mut buffer, offset(page.number));
        read.map_err(|error| self.unreadable(page, error))?;
        self.counters.page_reads[usize::from(level)].add(1);
        self.check(&buffer, page, level)
    }

    /// Checks that the bytes are the page that is meant, and that they make sense.
    fn check(&self, bytes: &[u8], page: PageRef, level: u8) -> Result<Page> {
        let broken = |what: Corrupt| self.corrupt(Corrupt { page: u64::from(page.number), ..what });
        let header = page::open_ref(bytes, self.tree, page).map_err(broken)?;

        let expected = if level == 0 { Kind::Leaf } else { Kind::Inner };
        if header.kind != expected || header.level != level {
            let expected = u64::from(level);
            let found = u64::from(header.level);
            return Err(broken(Corrupt::rule("level", expected, found)));
        }

        // A checksum says that a page is what was written, not that it makes sense.
        let bytes: &[u8; PAGE_SIZE] = bytes.try_into().expect("the header has been read");
        let checked = if level == 0 { Leaf::check(bytes, self.sizes) } else { Inner::check(bytes) };
        checked.map_err(broken)?;
        Ok(Page::new(bytes))
    }

    /// Returns pages of one level. Reads those that are not cached side by side; `keep` puts them
    /// into the cache.
    ///
    /// Cost: a read of 4 KiB for each page that is not cached, up to 64 in flight.
    ///
    /// # Errors
    /// Those of [`load`](Self::load), of the first page that fails.
    pub(crate) fn load_many(&self, pages: &[PageRef], level: u8, keep: bool) -> Result<Vec<Page>> {
        let mut loaded: Vec<Option<Page>> =
            pages.iter().map(|&page| self.cached(page, level)).collect();
        let missing: Vec<usize> = (0..pages.len()).filter(|&at| loaded[at].is_none()).collect();

        // One read needs no queue.
        if let [only] = missing[..] {
            loaded[only] = Some(self.read(pages[only], level)?);
        } else if !missing.is_empty() {
            self.read_many(pages, &missing, level, &mut loaded)?;
        }

        if keep {
            for &at in &missing {
                let page = loaded[at].clone().expect("it was read");
                self.cache.put(pages[at].number, page);
            }
        }

        debug_assert!(loaded.iter().all(Option::is_some), "a page for each reference");
        Ok(loaded.into_iter().flatten().collect())
    }

    /// Reads the missing pages with up to [`QUEUE_DEPTH`] requests in flight.
    fn read_many(
        &self,
        pages: &[PageRef],
        missing: &[usize],
        level: u8,
        loaded: &mut [Option<Page>],
    ) -> Result<()> {
        let mut queue = self.queue(QUEUE_DEPTH)?;

        // Buffers are used again, so no more than the queue's depth are allocated.
        let mut spare: Vec<AlignedBuf> = Vec::new();
        let mut failed = None;
        let mut left = missing.iter();

        loop {
            // After a failure no read begins, but all that are in flight end: they own their
            // buffers.
            while queue.outstanding() < QUEUE_DEPTH && failed.is_none() {
                let Some(&at) = left.next() else { break };
                let buffer = spare.pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE_SIZE));
                let request = self.request(pages[at].number, buffer, Direction::Read);
                queue.push(Request { tag: at as u64, ..request });
            }

            queue.submit();
            let Some(done) = queue.pop() else { break };
            self.counters.page_reads[usize::from(level)].add(1);

            let at = done.tag as usize;
            let page = done.result.map_err(|error| self.unreadable(pages[at], error));
            match page.and_then(|()| self.check(&done.buffer, pages[at], level)) {
                Ok(page) => loaded[at] = Some(page),
                Err(error) => failed = failed.or(Some(error)),
            }

            spare.push(done.buffer);
        }

        failed.map_or(Ok(()), |error| Err(self.explain(error)))
    }

    /// Returns the count and the bytes of a page that is neither leaf nor inner node.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub(crate) fn load_other(&self, page: PageRef, kind: Kind) -> Result<(usize, AlignedBuf)> {
        let mut buffer = AlignedBuf::zeroed(PAGE_SIZE);
        let read = self.file.read_at(&mut buffer, offset(page.number));
        read.map_err(|error| self.unreadable(page, error))?;

        let broken = |what: Corrupt| self.corrupt(what);
        let header = page::open_ref(&buffer, self.tree, page).map_err(broken)?;
        if header.kind != kind {
            let expected = kind as u64;
            let found = header.kind as u64;
            let page = u64::from(page.number);
            return Err(self.corrupt(Corrupt { page, rule: "kind", expected, found }));
        }

        Ok((usize::from(header.count), buffer))
    }

    /// A queue for requests on the file.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        Ok(self.disk.queue(depth)?)
    }

    /// A request on the pages from `first` on that fit into the buffer.
    pub(crate) fn request(
        &self,
        first: PageNo,
        buffer: AlignedBuf,
        direction: Direction,
    ) -> Request {
        debug_assert!(buffer.len().is_multiple_of(PAGE_SIZE), "whole pages");
        Request { tag: 0, file: self.file.clone(), offset: offset(first), buffer, direction }
    }

    /// Writes pages, ascending by number; the pages are not durable yet.
    ///
    /// Cost: a write for each batch of neighbours, up to 64 in flight.
    ///
    /// # Errors
    /// [`Error::Disk`]; any of the pages may have been written.
    pub(crate) fn write(&self, pages: &[NewPage]) -> Result<()> {
        debug_assert!(pages.is_sorted_by(|a, b| a.0 < b.0), "pages are in the order of the file");

        let mut batches: Vec<&[NewPage]> = Vec::new();
        let mut rest = pages;
        while !rest.is_empty() {
            let is_next = |at: &usize| rest[*at].0 == rest[0].0 + *at as PageNo;
            let end = (1..rest.len().min(WRITE_PAGES_MAX)).find(|at| !is_next(at));
            let (batch, behind) = rest.split_at(end.unwrap_or(rest.len().min(WRITE_PAGES_MAX)));
            batches.push(batch);
            rest = behind;
        }

        self.counters.page_writes.add(pages.len() as u64);
        self.counters.write_calls.add(batches.len() as u64);
        // The cache must not keep what these numbers stood for.
        for (number, _) in pages {
            self.cache.remove(*number);
        }

        let mut queue = self.queue(QUEUE_DEPTH)?;
        let mut failed = None;
        let mut left = batches.into_iter();

        loop {
            while queue.outstanding() < QUEUE_DEPTH {
                let Some(batch) = left.next() else { break };
                let mut buffer = AlignedBuf::zeroed(batch.len() * PAGE_SIZE);
                for (bytes, (_, page)) in buffer.chunks_exact_mut(PAGE_SIZE).zip(batch) {
                    bytes.copy_from_slice(page.bytes());
                }
                queue.push(self.request(batch[0].0, buffer, Direction::Write));
            }

            queue.submit();
            let Some(done) = queue.pop() else { break };
            if let Err(error) = done.result {
                failed = failed.or(Some(error));
            }
        }

        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Makes all written pages durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: from now on it is unknown which bytes are durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.counters.syncs.add(1);
        self.file.sync().map_err(|_| Error::Poisoned { path: self.path().to_owned() })
    }
}

/// Where a page begins in the file.
pub(crate) fn offset(page: PageNo) -> u64 {
    u64::from(page) * PAGE_SIZE as u64
}

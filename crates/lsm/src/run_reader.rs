//! Reads a run from front to back, for merges, cursors and checks.
//!
//! Pages come in chunks; a reader that starts small doubles its chunk with each read up to
//! [`CHUNK_PAGES_MAX`], so that a short range costs one page and a scan runs at the device's speed.
//! Every page is checked as it is entered.

use std::sync::Arc;

use terrane_io::{Access, AlignedBuf, DiskFile, OpenMode};

use crate::blob::Blob;
use crate::corrupt::Corrupt;
use crate::entry::{EntryRef, Kind};
use crate::error::{Error, Result};
use crate::page::{PAGE_SIZE, PageKind, PageLayout, decode_payload, overflow_pages, split_value};
use crate::run::Run;

/// Most pages that are read with one call.
pub(crate) const CHUNK_PAGES_MAX: u32 = 32;

/// Why a run is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All of it, once: large chunks through the page cache, which is told to forget them if the run is
    /// otherwise read past it.
    Merge,
    /// A part of it: small chunks first.
    Range,
}

/// A position in a run.
#[derive(Debug)]
pub(crate) struct RunReader {
    run: Arc<Run>,
    file: Arc<dyn DiskFile>,
    forget: bool,
    chunk: AlignedBuf,
    /// Number of the first page in `chunk`, and pages there.
    chunk_first: u32,
    chunk_pages: u32,
    /// Pages to read with the next call.
    chunk_next: u32,
    /// Page of the current entry; `data_pages` at the end.
    page: u32,
    layout: PageLayout,
    /// Index of the current entry in its page.
    index: usize,
    /// The current key. Invariant: begins with the page's prefix.
    key: Vec<u8>,
    /// The current stored value if it goes on in overflow pages, and the kind of its entry.
    large: Vec<u8>,
    large_kind: Kind,
    entries_passed: u64,
}

impl RunReader {
    /// A reader at the first entry.
    pub(crate) fn new(run: Arc<Run>, purpose: Purpose) -> Result<Self> {
        let mut reader = Self::closed(run, purpose)?;
        reader.enter(0)?;
        Ok(reader)
    }

    /// A reader at the first entry whose key is above `key`.
    pub(crate) fn after(run: Arc<Run>, purpose: Purpose, key: &[u8]) -> Result<Self> {
        let mut reader = Self::at(run, purpose, key)?;
        if reader.key() == Some(key) {
            reader.advance()?;
        }
        Ok(reader)
    }

    /// A reader at the first entry whose key is at least `key`.
    pub(crate) fn at(run: Arc<Run>, purpose: Purpose, key: &[u8]) -> Result<Self> {
        let mut reader = Self::closed(run, purpose)?;
        let page = reader.run.first_page_for(key);
        reader.enter(page)?;
        while let Some(entry) = reader.current() {
            if entry.key >= key {
                break;
            }
            reader.advance()?;
        }
        Ok(reader)
    }

    fn closed(run: Arc<Run>, purpose: Purpose) -> Result<Self> {
        let direct = run.file().access() == Access::Direct;
        // A merge reads ahead, which only the page cache does for a single reader.
        let (file, forget) = if direct && purpose == Purpose::Merge {
            (run.handle().set().disk().open(run.path(), OpenMode::Read, Access::Buffered)?, true)
        } else {
            (Arc::clone(run.file()), false)
        };
        let chunk_next = match purpose {
            Purpose::Merge => CHUNK_PAGES_MAX,
            Purpose::Range => 1,
        };
        Ok(Self {
            run,
            file,
            forget,
            chunk: AlignedBuf::zeroed(chunk_next as usize * PAGE_SIZE),
            chunk_first: 0,
            chunk_pages: 0,
            chunk_next,
            page: 0,
            layout: PageLayout::default(),
            index: 0,
            key: Vec::new(),
            large: Vec::new(),
            large_kind: Kind::Insert,
            entries_passed: 0,
        })
    }

    /// Pages passed, for the accounting of merges.
    pub(crate) fn pages_passed(&self) -> u32 {
        self.page
    }

    /// Whether the current entry is the first one of its page.
    pub(crate) fn starts_page(&self) -> bool {
        self.index == 0
    }

    /// Pages on which the current entry goes on.
    pub(crate) fn overflow_pages(&self) -> u32 {
        self.layout.large_value_len().map_or(0, |len| overflow_pages(self.key.len(), len))
    }

    /// Entries passed, for the accounting of unions.
    pub(crate) fn entries_passed(&self) -> u64 {
        self.entries_passed
    }

    fn corrupt(&self, what: Corrupt) -> Error {
        Error::corrupt(self.run.path(), what)
    }

    fn ended(&self) -> bool {
        self.page >= self.run.meta().data_pages
    }

    /// Offset in the chunk of page `page`, reading it if need be.
    fn load(&mut self, page: u32) -> Result<usize> {
        if page < self.chunk_first || page >= self.chunk_first + self.chunk_pages {
            let data_pages = self.run.meta().data_pages;
            if page >= data_pages {
                let found = u64::from(page);
                return Err(self.corrupt(Corrupt {
                    page,
                    rule: "overflow pages within the data pages",
                    expected: u64::from(data_pages),
                    found,
                }));
            }
            let pages = self.chunk_next.min(data_pages - page);
            let bytes = pages as usize * PAGE_SIZE;
            if self.chunk.len() < bytes {
                self.chunk = AlignedBuf::zeroed(bytes);
            }
            self.chunk_pages = 0;
            let offset = u64::from(page) * PAGE_SIZE as u64;
            self.file.read_at(&mut self.chunk[..bytes], offset)?;
            if self.forget {
                self.file.forget(offset, bytes as u64);
            }
            self.chunk_first = page;
            self.chunk_pages = pages;
            self.chunk_next = (self.chunk_next * 2).min(CHUNK_PAGES_MAX);
        }
        Ok((page - self.chunk_first) as usize * PAGE_SIZE)
    }

    /// The bytes of the current page.
    fn page_bytes(&self) -> &[u8] {
        let at = (self.page - self.chunk_first) as usize * PAGE_SIZE;
        &self.chunk[at..at + PAGE_SIZE]
    }

    /// Goes to the first entry of key page `page`.
    fn enter(&mut self, page: u32) -> Result<()> {
        self.page = page;
        if self.ended() {
            return Ok(());
        }
        let at = self.load(page)?;
        self.layout = PageLayout::parse(&self.chunk[at..at + PAGE_SIZE], self.run.place(page))
            .map_err(|what| self.corrupt(what))?;
        self.index = 0;
        self.key.clear();
        let prefix = self.layout.prefix(&self.chunk[at..at + PAGE_SIZE]);
        self.key.extend_from_slice(prefix);
        self.key.extend_from_slice(self.layout.suffix(&self.chunk[at..at + PAGE_SIZE], 0));
        if let Some(len) = self.layout.large_value_len() {
            self.read_large(len)?;
        }
        Ok(())
    }

    fn read_large(&mut self, len: usize) -> Result<()> {
        self.large.clear();
        let at = (self.page - self.chunk_first) as usize * PAGE_SIZE;
        let page = &self.chunk[at..at + PAGE_SIZE];
        self.large_kind = self.layout.kind(page, 0);
        self.large.extend_from_slice(self.layout.stored_value(page, 0));
        let key_page = self.page;
        for position in 1..=overflow_pages(self.key.len(), len) {
            let page = key_page + position;
            let at = self.load(page)?;
            let bytes = &self.chunk[at..at + PAGE_SIZE];
            let content = decode_payload(bytes, self.run.place(page), PageKind::Overflow, position)
                .map_err(|what| self.corrupt(what))?;
            let left = len - self.large.len();
            self.large.extend_from_slice(&content[..left.min(content.len())]);
            self.page = page;
        }
        Ok(())
    }

    /// The current key; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        (!self.ended()).then_some(self.key.as_slice())
    }

    /// The current entry; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        if self.ended() {
            return None;
        }
        if self.layout.large_value_len().is_some() {
            // A large value is longer than the place of a blob.
            let (value, blob) = split_value(self.large_kind, &self.large).unwrap_or_default();
            return Some(EntryRef { key: &self.key, kind: self.large_kind, value, blob });
        }
        let page = self.page_bytes();
        let (value, blob) = self.layout.value(page, self.index);
        Some(EntryRef { key: &self.key, kind: self.layout.kind(page, self.index), value, blob })
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        let entry = self.current().filter(|entry| entry.kind == Kind::InsertBlob)?;
        Some(Blob::Run { run: Arc::clone(&self.run), span: entry.blob })
    }

    /// Goes to the next entry.
    ///
    /// # Errors
    /// Also if the keys of the file do not rise.
    pub(crate) fn advance(&mut self) -> Result<()> {
        if self.ended() {
            return Ok(());
        }
        self.index += 1;
        self.entries_passed += 1;
        if self.index < self.layout.count() {
            let at = (self.page - self.chunk_first) as usize * PAGE_SIZE;
            let page = &self.chunk[at..at + PAGE_SIZE];
            let prefix_len = self.layout.prefix(page).len();
            let suffix = self.layout.suffix(page, self.index);
            if suffix <= &self.key[prefix_len..] {
                return Err(self.out_of_order());
            }
            self.key.truncate(prefix_len);
            self.key.extend_from_slice(suffix);
            return Ok(());
        }
        let before = std::mem::take(&mut self.key);
        self.enter(self.page + 1)?;
        if !self.ended() && self.key <= before {
            return Err(self.out_of_order());
        }
        Ok(())
    }

    fn out_of_order(&self) -> Error {
        let (page, found) = (self.page, self.index as u64);
        self.corrupt(Corrupt { page, rule: "keys rise", expected: found + 1, found })
    }
}

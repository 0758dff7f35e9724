//! Reads a run, or the part of it that is in a range of keys, in order: for merges, cursors and
//! checks.
//!
//! Making a reader reads nothing, since a bound of its first key is known: that of the range, or
//! the run's own. So a merge of many readers reads from each only when its turn comes.
//!
//! Every page is checked as it is entered. Which entries of a page are in the range is found out
//! then, and only for the few pages that the index cannot decide about; going from entry to entry
//! costs no comparison with the bounds.
//!
//! A masked run gives only the entries that its mask leaves. The reader steps over a few covered
//! entries; if there are more, it starts again behind the span, so that covered pages are not read.

#![expect(clippy::inline_always, reason = "the call would cost a merge as much as the work")]

use std::cmp::Ordering;
use std::ops::{Bound, Range};
use std::sync::Arc;

use terrane_io::key_order::key_prefix;

use crate::block::page::{
    EntryLocation, PAGE_SIZE, PAYLOAD_SIZE, PageKind, PageLayout, copy_short, decode_payload,
    overflow_pages, split_value,
};
use crate::corrupt::Corrupt;
use crate::entry::entry::{EntryRef, Kind, Order};
use crate::entry::key_range::{KeyRange, bound_key};
use crate::entry::mask::Span;
use crate::error::{Error, Result};
use crate::run::blob::Blob;
use crate::run::chunk_reader::{ChunkReader, Reading};
use crate::run::run::Run;

/// Entries under one span of a mask that are passed before the reader jumps over the rest: to jump
/// costs a read.
const COVERED_STEPS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    /// Nothing has been read; `key` is a bound of the first key.
    Unread,
    /// At an entry.
    Here,
    Ended,
}

/// Place of the entries of the page that the reader is on.
#[derive(Debug)]
enum PageContent {
    /// In the page, which is in the chunk.
    Chunk,
    /// In the page, but for the stored value of its only entry, which goes on in overflow pages.
    Large(LargeValue),
    /// In the image of the page, which is compressed.
    Image,
}

/// A stored value that goes on in overflow pages.
#[derive(Debug)]
struct LargeValue {
    /// The part in the key page ends at byte [`PAGE_SIZE`], where the rest begins.
    bytes: Vec<u8>,
    value: Range<usize>,
}

/// A position in a run.
#[derive(Debug)]
pub(crate) struct RunReader {
    run: Arc<Run>,
    order: Order,
    range: KeyRange,
    reading: Reading,
    chunks: ChunkReader,
    /// Key pages not entered yet, by ordinal.
    ordinals: Range<u32>,
    /// Key pages before this one may hold keys below the range.
    low_end: u32,
    /// Key pages from this one on may hold keys above the range.
    high_start: u32,
    state: ReaderState,
    /// Pages of the file entered so far.
    pages_entered: u32,
    entries_passed: u64,
    /// The key page entered last.
    page: u32,
    layout: PageLayout,
    /// The entries of the page, and how many bytes their keys share.
    entries: Vec<EntryLocation>,
    prefix_len: usize,
    /// The current one.
    entry: EntryLocation,
    /// Entries of the page that have not been passed; the current one is the first or the last of
    /// them.
    indexes: Range<usize>,
    /// The current key. Invariant: begins with the page's prefix.
    key: Vec<u8>,
    /// The last key of the page before.
    key_before: Vec<u8>,
    /// Where the bytes of the page's entries are.
    content: PageContent,
    /// The image of the page, if it is compressed.
    image: Vec<u8>,
}

impl RunReader {
    /// A reader before the first entry in the range, in this order. Reads nothing.
    pub(crate) fn new(run: &Arc<Run>, range: &KeyRange, order: Order, reading: Reading) -> Self {
        // Bounds beyond those of the run decide nothing.
        let low = bound_key(&range.from).filter(|key| *key >= run.min_key());
        let high = bound_key(&range.to).filter(|key| *key <= run.max_key());
        let mut ordinals = 0..run.meta().key_pages;
        let mut low_end = 0;
        let mut high_start = ordinals.end;

        if let Some(low) = low {
            let candidates = run.candidates(low);
            (ordinals.start, low_end) = (candidates.start, candidates.end);
        }

        if let Some(high) = high {
            let candidates = run.candidates(high);
            (high_start, ordinals.end) = (candidates.start, candidates.end);
        }

        let key = match order {
            Order::Ascending => low.unwrap_or(run.min_key()).to_vec(),
            Order::Descending => high.unwrap_or(run.max_key()).to_vec(),
        };

        debug_assert!(low_end <= run.meta().key_pages && high_start <= run.meta().key_pages);

        let is_empty = ordinals.is_empty() || range.misses(run.min_key(), run.max_key());
        let mut part = 0..0;
        if !is_empty {
            let (last, pages) = run.entry_pages(ordinals.end - 1);
            // Overflow pages of the last entry belong to the part.
            part = run.entry_pages(ordinals.start).0..last + pages;
        }

        Self {
            chunks: ChunkReader::new(Arc::clone(run), part, order, reading.clone()),
            reading,
            run: Arc::clone(run),
            order,
            range: range.clone(),
            ordinals,
            low_end,
            high_start,
            state: if is_empty { ReaderState::Ended } else { ReaderState::Unread },
            pages_entered: 0,
            entries_passed: 0,
            page: 0,
            layout: PageLayout::default(),
            entries: Vec::new(),
            prefix_len: 0,
            entry: EntryLocation::NOWHERE,
            indexes: 0..0,
            key,
            key_before: Vec::new(),
            content: PageContent::Chunk,
            image: Vec::new(),
        }
    }

    /// A reader that has read nothing, as one that goes on where another one has ended: it reads
    /// in requests of the same size.
    pub(crate) fn after(mut self, ended: &Self) -> Self {
        self.chunks.grow_to(&ended.chunks);
        self
    }

    /// Whether the first entry has been gone to.
    #[inline]
    pub(crate) fn is_loaded(&self) -> bool {
        self.state != ReaderState::Unread
    }

    /// Asks for the page of the first entry, unless it is there.
    pub(crate) fn ask_first(&mut self) {
        if self.state == ReaderState::Unread {
            self.chunks.ask_first();
        }
    }

    /// Goes to the first entry, unless that has been done.
    pub(crate) fn load(&mut self) -> Result<()> {
        if self.is_loaded() {
            return Ok(());
        }
        self.next_page(Ordering::is_ge)?;
        self.pass_covered()
    }

    /// Goes on to the first entry that the run's mask does not cover, if the current one is
    /// covered.
    fn pass_covered(&mut self) -> Result<()> {
        while self.state == ReaderState::Here
            && let Some(span) = self.run.mask().span_of(&self.key).cloned()
        {
            let mut steps = 0;
            while self.state == ReaderState::Here && span.covers(&self.key) && steps < COVERED_STEPS
            {
                self.step()?;
                steps += 1;
            }
            // A span with more keys than that costs less to jump over than to pass.
            if self.state == ReaderState::Here && span.covers(&self.key) {
                self.jump_over(&span)?;
            }
        }

        Ok(())
    }

    /// Begins anew behind a span of keys, in the order of the reader.
    fn jump_over(&mut self, span: &Span) -> Result<()> {
        let range = match (self.order, &span.end) {
            (Order::Ascending, Some(end)) => self.range.from(Bound::Included(end.clone())),
            // Nothing is at or behind the last possible key.
            (Order::Ascending, None) => KeyRange {
                from: Bound::Excluded(self.run.max_key().to_vec()),
                to: Bound::Unbounded,
            },
            (Order::Descending, _) => self.range.to(Bound::Excluded(span.from.clone())),
        };

        let next = Self::new(&self.run, &range, self.order, self.reading.clone());
        let entered = self.pages_entered_before(&next);
        let passed = self.entries_passed;

        // Reads under way for the old position are of no use.
        self.chunks.end();
        *self = Self { pages_entered: entered, entries_passed: passed, ..next };
        if self.state == ReaderState::Unread { self.next_page(Ordering::is_ge) } else { Ok(()) }
    }

    /// The pages in front of those that the `next` reader of this run will enter, for the
    /// accounting of merges: what is jumped over counts as passed.
    fn pages_entered_before(&self, next: &Self) -> u32 {
        if self.order == Order::Descending || self.ordinals.start == 0 {
            return self.pages_entered;
        }

        let (page, pages) = self.run.entry_pages(self.ordinals.start - 1);
        let start = match next.state {
            ReaderState::Ended if self.ordinals.is_empty() => page + pages,
            ReaderState::Ended => {
                let (last, pages) = self.run.entry_pages(self.ordinals.end - 1);
                last + pages
            }
            ReaderState::Unread | ReaderState::Here => self.run.entry_pages(next.ordinals.start).0,
        };

        (self.pages_entered + start).saturating_sub(page + pages)
    }

    /// Whether there is no further entry. A reader before its first entry may come to that, too.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.state == ReaderState::Ended
    }

    /// Whether one page at most follows the one that the reader is on.
    pub(crate) fn is_near_end(&self) -> bool {
        self.state == ReaderState::Here && self.ordinals.len() <= 1
    }

    /// Whether to pass the entries of this page may take a wait for the next one, in ascending
    /// order.
    pub(crate) fn may_wait(&self) -> bool {
        self.state == ReaderState::Here && self.chunks.may_wait_after(self.page)
    }

    /// Pages passed, for the accounting of merges.
    pub(crate) fn pages_passed(&self) -> u32 {
        self.pages_entered - u32::from(self.state == ReaderState::Here)
    }

    /// Entries passed, for the accounting of unions.
    pub(crate) fn entries_passed(&self) -> u64 {
        self.entries_passed
    }

    fn corrupt(&self, what: Corrupt) -> Error {
        Error::corrupt(self.run.path(), what)
    }

    fn out_of_order(&self, index: usize) -> Error {
        let page = self.page;
        let found = index as u64;
        self.corrupt(Corrupt { page, rule: "keys rise", expected: found + 1, found })
    }

    /// Index of the current entry in its page; `None` unless the reader is at one.
    #[inline]
    fn index(&self) -> Option<usize> {
        match self.order {
            _ if self.indexes.is_empty() => None,
            Order::Ascending => Some(self.indexes.start),
            Order::Descending => Some(self.indexes.end - 1),
        }
    }

    /// Enters key pages until one has an entry in the range. Its key must stand to that of before
    /// as `is_right` says.
    #[inline(never)]
    fn next_page(&mut self, is_right: impl Fn(Ordering) -> bool) -> Result<()> {
        // The last key is kept: the first key of the next page has to be beyond it.
        std::mem::swap(&mut self.key, &mut self.key_before);
        self.indexes = 0..0;
        while self.indexes.is_empty() {
            let ordinal = match self.order {
                Order::Ascending => self.ordinals.next(),
                Order::Descending => self.ordinals.next_back(),
            };
            let Some(ordinal) = ordinal else {
                self.state = ReaderState::Ended;
                self.content = PageContent::Chunk;
                self.chunks.end();
                return Ok(());
            };
            self.enter(ordinal)?;
        }

        self.state = ReaderState::Here;
        let ordering = match self.order {
            Order::Ascending => self.key.cmp(&self.key_before),
            Order::Descending => self.key_before.cmp(&self.key),
        };

        if is_right(ordering) { Ok(()) } else { Err(self.out_of_order(self.indexes.start)) }
    }

    /// Goes to the first entry of a key page that is in the range, if there is one.
    fn enter(&mut self, ordinal: u32) -> Result<()> {
        let (page, pages) = self.run.entry_pages(ordinal);
        debug_assert!(pages >= 1, "an entry has its key page");
        self.page = page;
        self.pages_entered += pages;
        self.content = PageContent::Chunk;
        let overflow_bytes = (pages as usize - 1) * PAYLOAD_SIZE;

        let mut large = vec![0; if pages > 1 { PAGE_SIZE + overflow_bytes } else { 0 }];
        // Chunks come in the order of the reader: downwards, overflow pages precede their key page.
        if self.order == Order::Descending {
            self.read_overflow(page, pages, &mut large)?;
        }

        let place = self.run.place(page);
        let layout = PageLayout::open(self.chunks.page(page)?, place, &mut self.image);
        self.layout = layout.map_err(|what| self.corrupt(what))?;
        self.chunks.keep_first();
        if self.layout.is_compressed() {
            self.content = PageContent::Image;
        }
        let bytes = self.layout.bytes(self.chunks.bytes(page), &self.image);
        if let Some(index) = self.layout.entries(bytes, &mut self.entries) {
            return Err(self.out_of_order(index));
        }

        self.check_bounds(bytes)?;
        self.indexes = self.indexes_in_range(ordinal, bytes);
        let Some(index) = self.index() else { return Ok(()) };
        let prefix = self.layout.prefix(bytes);
        let entry = self.entries[index];
        self.entry = entry;
        self.prefix_len = prefix.len();
        self.key.clear();
        self.key.extend_from_slice(prefix);
        self.key.extend_from_slice(entry.suffix(bytes));
        let len = self.layout.large_value_len();
        let expected = 1 + len.map_or(0, |len| overflow_pages(self.key.len(), len));

        // The page map says how many pages an entry takes; the entry itself must agree.
        if pages != expected {
            let expected = u64::from(expected);
            let found = u64::from(pages);
            let rule = "pages of a large entry";
            return Err(self.corrupt(Corrupt { page, rule, expected, found }));
        }

        let Some(len) = len else { return Ok(()) };
        let inline = entry.stored_value(bytes);
        // The part in the key page ends where the overflow pages begin, so the value is one slice.
        let start = PAGE_SIZE - inline.len();
        large[start..PAGE_SIZE].copy_from_slice(inline);

        if self.order == Order::Ascending {
            self.read_overflow(page, pages, &mut large)?;
        }

        debug_assert!(start + len <= large.len(), "the pages hold the whole value");
        self.content = PageContent::Large(LargeValue { bytes: large, value: start..start + len });
        Ok(())
    }

    /// Whether the keys of a page, which rise, are between those that the run says are its smallest
    /// and its largest: merges rely on it.
    fn check_bounds(&self, page: &[u8]) -> Result<()> {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else {
            return Ok(());
        };

        let prefix = self.layout.prefix(page);
        let is_low = compare_joined(prefix, first.suffix(page), self.run.min_key()).is_lt();
        if is_low || compare_joined(prefix, last.suffix(page), self.run.max_key()).is_gt() {
            let page = self.page;
            let rule = "keys between the smallest and the largest of the run";
            let found = if is_low { 0 } else { self.entries.len() as u64 - 1 };
            return Err(self.corrupt(Corrupt { page, rule, expected: 0, found }));
        }

        Ok(())
    }

    /// Reads the overflow pages of an entry in the order of the reader.
    fn read_overflow(&mut self, key_page: u32, pages: u32, large: &mut [u8]) -> Result<()> {
        for step in 1..pages {
            let position = match self.order {
                Order::Ascending => step,
                Order::Descending => pages - step,
            };
            let page = key_page + position;
            let place = self.run.place(page);
            let bytes = self.chunks.page(page)?;
            let content = decode_payload(bytes, place, PageKind::Overflow, position)
                .map_err(|what| Error::corrupt(self.run.path(), what))?;
            let start = PAGE_SIZE + (position as usize - 1) * PAYLOAD_SIZE;
            large[start..start + PAYLOAD_SIZE].copy_from_slice(content);
        }

        Ok(())
    }

    /// Indexes of the entries of a key page that are in the range.
    fn indexes_in_range(&self, ordinal: u32, page: &[u8]) -> Range<usize> {
        let mut start = 0;
        let mut end = self.layout.count();
        if ordinal < self.low_end {
            start = match &self.range.from {
                Bound::Included(key) => self.layout.search(page, key).unwrap_or_else(|at| at),
                Bound::Excluded(key) => {
                    self.layout.search(page, key).map_or_else(|at| at, |at| at + 1)
                }
                Bound::Unbounded => start,
            };
        }

        if ordinal >= self.high_start {
            end = match &self.range.to {
                Bound::Included(key) => {
                    self.layout.search(page, key).map_or_else(|at| at, |at| at + 1)
                }
                Bound::Excluded(key) => self.layout.search(page, key).unwrap_or_else(|at| at),
                Bound::Unbounded => end,
            };
        }

        start..end
    }

    /// The current key, or a bound of the first one; `None` at the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        (self.state != ReaderState::Ended).then_some(self.key.as_slice())
    }

    /// First bytes of the current key as a number; `None` at the end.
    #[inline]
    pub(crate) fn key_prefix(&self) -> Option<u64> {
        match self.state {
            ReaderState::Here => Some(self.entry.key_prefix),
            ReaderState::Unread => Some(key_prefix(&self.key)),
            ReaderState::Ended => None,
        }
    }

    /// The current entry; `None` at the end.
    #[inline(always)]
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        if self.state != ReaderState::Here {
            return None;
        }
        let kind = self.entry.kind;
        let stored = match &self.content {
            PageContent::Chunk => self.entry.stored_value(self.chunks.bytes(self.page)),
            PageContent::Large(LargeValue { bytes, value }) => &bytes[value.clone()],
            PageContent::Image => self.entry.stored_value(&self.image),
        };
        // Checked when the page was parsed; and a large value is longer than the place of a blob.
        let (value, blob) = split_value(kind, stored).unwrap_or_default();
        Some(EntryRef { key: &self.key, kind, value, blob })
    }

    /// The kind of the current entry; `None` at the end.
    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        (self.state == ReaderState::Here).then_some(self.entry.kind)
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
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.step()?;
        if self.run.mask().is_empty() { Ok(()) } else { self.pass_covered() }
    }

    /// Goes to the next entry, covered or not.
    #[inline(always)]
    fn step(&mut self) -> Result<()> {
        if self.state != ReaderState::Here {
            return Ok(());
        }

        self.entries_passed += 1;
        match self.order {
            Order::Ascending => self.indexes.start += 1,
            Order::Descending => self.indexes.end -= 1,
        }

        let Some(index) = self.index() else { return self.next_page(Ordering::is_gt) };
        self.entry = self.entries[index];
        let bytes = match &self.content {
            PageContent::Image => &self.image,
            // A large entry is alone on its page, so no step comes to it.
            PageContent::Chunk | PageContent::Large(_) => self.chunks.bytes(self.page),
        };
        let suffix = self.entry.suffix(bytes);
        let key_len = self.prefix_len + suffix.len();
        if self.key.len() != key_len {
            self.key.resize(key_len, 0);
        }
        copy_short(&mut self.key[self.prefix_len..], suffix);

        Ok(())
    }
}

/// How a key in two parts stands to another one.
fn compare_joined(prefix: &[u8], suffix: &[u8], key: &[u8]) -> Ordering {
    let (start, rest) = key.split_at(prefix.len().min(key.len()));
    prefix.cmp(start).then_with(|| suffix.cmp(rest))
}

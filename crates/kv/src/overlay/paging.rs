//! Cursor over a source that answers for some entries after or before a key.
//!
//! A walk asks for 1, 2, 4 .. [`PAGE_ENTRIES_MAX`] entries at a time.
//!
//! Invariant: the cursor holds keys and entries of its own and no borrow of the source, so the
//! source may move or be locked between two calls.

use std::collections::VecDeque;
use std::ops::Bound;

use crate::database::{Entry, Result};
use crate::gap::{Gap, GapCursor, Way};

/// Most entries of a page.
pub const PAGE_ENTRIES_MAX: usize = 64;
/// Bytes of entries after which a source may end a page.
pub const PAGE_BYTES: usize = 64 << 10;

/// A table that answers by pages. Invariant: a page is empty only if no entry is left.
pub trait Pages {
    /// The first entries from a bound on, ascending.
    ///
    /// # Errors
    /// Those of the source.
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>>;

    /// The last entries up to a bound, descending.
    ///
    /// # Errors
    /// Those of the source.
    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>>;
}

/// A cursor over pages.
pub struct PagedCursor<P> {
    pages: P,
    gap: Gap<Vec<u8>>,
    /// Entries read and not returned yet, in the order of the walk.
    ahead: VecDeque<Entry>,
    way: Way,
    /// Entries to ask for next.
    entries: usize,
}

impl<P: Pages> PagedCursor<P> {
    /// A cursor before the first entry.
    pub fn new(pages: P) -> Self {
        Self { pages, gap: Gap::First, ahead: VecDeque::new(), way: Way::Forward, entries: 1 }
    }
}

impl<P: Pages> GapCursor for PagedCursor<P> {
    type Key = Vec<u8>;

    fn go_to(&mut self, gap: Gap<Vec<u8>>) -> Result<()> {
        // LMDB refuses an empty key as a bound, and no key is empty.
        self.gap = if gap == Gap::Before(Vec::new()) { Gap::First } else { gap };
        self.ahead.clear();
        self.entries = 1;
        Ok(())
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        // What was read ahead lies the other way.
        if self.way != way {
            self.way = way;
            self.ahead.clear();
            self.entries = 1;
        }

        // Doubling keeps a lookup beside a key cheap and a long walk at few calls.
        if self.ahead.is_empty() {
            let Some((low, high)) = self.gap.ahead(way) else { return Ok(None) };
            let page = match way {
                Way::Forward => self.pages.after(low, self.entries),
                Way::Backward => self.pages.before(high, self.entries),
            };
            self.ahead = page?.into();
            debug_assert!(self.ahead.len() <= self.entries, "a page keeps to its limit");
            self.entries = (2 * self.entries).min(PAGE_ENTRIES_MAX);
        }

        let entry = self.ahead.pop_front();
        if let Some((key, _)) = &entry {
            self.gap = way.past(key.clone());
        }

        Ok(entry)
    }
}

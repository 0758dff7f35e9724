//! A cursor over a source that answers questions for some entries after or before a key.
//!
//! Invariant: the cursor keeps keys and entries of its own and nothing of the source, so that the source may move or be
//! locked between two calls. A walk asks for 1, 2, 4 .. [`PAGE_ENTRIES_MAX`] entries at a time.

use std::collections::VecDeque;
use std::ops::Bound;

use terrane_kv::{Cursor, Entry, Result};

/// Entries that are asked for at once, at most.
pub(crate) const PAGE_ENTRIES_MAX: usize = 64;
/// Bytes of entries after which a source may stop.
pub(crate) const PAGE_BYTES: usize = 64 << 10;

/// A table that answers by pages. A page is empty only where there is nothing.
pub(crate) trait Pages {
    /// The first entries from a bound on, ascending.
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>>;
    /// The last entries up to a bound, descending.
    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>>;
}

/// Where a cursor stands.
enum Place {
    First,
    Last,
    Before(Vec<u8>),
    After(Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// A cursor over pages.
pub(crate) struct PagedCursor<P> {
    pages: P,
    place: Place,
    /// What was read and not given yet, in the direction of the walk.
    ahead: VecDeque<Entry>,
    direction: Direction,
    /// How many entries to ask for next.
    entries: usize,
}

impl<P: Pages> PagedCursor<P> {
    /// Stands before the first entry.
    pub(crate) fn new(pages: P) -> Self {
        let (place, ahead) = (Place::First, VecDeque::new());
        Self { pages, place, ahead, direction: Direction::Up, entries: 1 }
    }

    fn go(&mut self, place: Place) {
        self.place = place;
        self.ahead.clear();
        self.entries = 1;
    }

    fn walk(
        &mut self,
        direction: Direction,
        read: impl FnOnce(&P, &Place, usize) -> Result<Vec<Entry>>,
    ) -> Result<Option<Entry>> {
        if self.direction != direction {
            self.direction = direction;
            self.ahead.clear();
            self.entries = 1;
        }
        if self.ahead.is_empty() {
            self.ahead = read(&self.pages, &self.place, self.entries)?.into();
            self.entries = (2 * self.entries).min(PAGE_ENTRIES_MAX);
        }
        let entry = self.ahead.pop_front();
        if let Some((key, _)) = &entry {
            self.place = match direction {
                Direction::Up => Place::After(key.clone()),
                Direction::Down => Place::Before(key.clone()),
            };
        }
        Ok(entry)
    }
}

impl<P: Pages> Cursor for PagedCursor<P> {
    fn seek_first(&mut self) -> Result<()> {
        self.go(Place::First);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.go(Place::Last);
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.go(if key.is_empty() { Place::First } else { Place::Before(key.to_vec()) });
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.walk(Direction::Up, |pages, place, entries| match place {
            Place::First => pages.after(Bound::Unbounded, entries),
            Place::Last => Ok(Vec::new()),
            Place::Before(key) => pages.after(Bound::Included(key), entries),
            Place::After(key) => pages.after(Bound::Excluded(key), entries),
        })
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.walk(Direction::Down, |pages, place, entries| match place {
            Place::First => Ok(Vec::new()),
            Place::Last => pages.before(Bound::Unbounded, entries),
            Place::Before(key) => pages.before(Bound::Excluded(key), entries),
            Place::After(key) => pages.before(Bound::Included(key), entries),
        })
    }
}

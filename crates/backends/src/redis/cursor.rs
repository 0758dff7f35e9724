//! Cursor: pages of a table on the server, each merged with the entries above it, which are the
//! writer's changes or the values that a snapshot needs undone.
//!
//! Invariant: the page is a gapless part of the merged table. The cursor stands at `at` in the
//! page, or at `gap` if the page is empty.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrane_kv::overlay::undo::Old;
use terrane_kv::{Cursor, Entry, Result};

use super::inner::{Page, PageRange};

/// Entries of the first page after a seek; each further page has twice as many.
const ENTRIES_FIRST: usize = 16;
/// Most entries of a page.
const ENTRIES_MAX: usize = 1_024;
/// Bytes after which a page ends.
const BYTES_MAX: usize = 1 << 20;

/// Entries above a part of the server's table.
#[derive(Debug, Default)]
pub(crate) struct Above {
    /// Keys with their values, ascending; `None` for a removed key.
    entries: Vec<(Vec<u8>, Old)>,
    /// Whether the range has no more entries.
    is_all: bool,
}

impl Above {
    /// Takes entries in the order of the direction, up to the size of a page.
    pub(crate) fn take<'a>(
        entries: impl DoubleEndedIterator<Item = (&'a [u8], &'a Old)>,
        range: &PageRange,
    ) -> Self {
        let mut above = Self { entries: Vec::new(), is_all: true };
        let mut bytes = 0;
        let mut take = |(key, value): (&[u8], &Old)| {
            // Both limits bound a page, as they bound a page of the server.
            if above.entries.len() >= range.entries_max || bytes >= range.bytes_max {
                above.is_all = false;
                return false;
            }
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            above.entries.push((key.to_vec(), value.clone()));
            true
        };

        if range.is_backward {
            let _ = entries.rev().all(&mut take);
            // A page stands in the order of its keys, whichever way it was read.
            above.entries.reverse();
        } else {
            let _ = { entries }.all(&mut take);
        }

        above
    }
}

/// A table on the server and the entries above it. The cursor reads the page first and the entries
/// above afterwards: see [`Undo`](terrane_kv::overlay::undo::Undo).
pub(crate) trait View {
    /// A page of the table as the server has it.
    fn page(&self, range: &PageRange) -> Result<Page>;

    /// Entries above a range.
    fn above(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), range: &PageRange) -> Above;
}

#[derive(Debug)]
enum Gap {
    First,
    Last,
    Before(Vec<u8>),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct MergedCursor<V> {
    view: V,
    page: Vec<Entry>,
    at: usize,
    gap: Gap,
    entries_max: usize,
}

impl<V: View> MergedCursor<V> {
    pub(crate) fn new(view: V) -> Self {
        Self { view, page: Vec::new(), at: 0, gap: Gap::First, entries_max: ENTRIES_FIRST }
    }

    fn go_to(&mut self, gap: Gap) {
        self.page.clear();
        self.at = 0;
        self.gap = gap;
        self.entries_max = ENTRIES_FIRST;
    }

    /// Reads the part of the merged table that follows `bound` in the direction, ascending; empty
    /// only at the end.
    fn fetch(&mut self, mut bound: Bound<Vec<u8>>, is_backward: bool) -> Result<Vec<Entry>> {
        loop {
            let (first, last): (&[u8], &[u8]) =
                if is_backward { (b"+", b"-") } else { (b"-", b"+") };
            let from = match &bound {
                Bound::Unbounded => first.to_vec(),
                Bound::Included(key) => [b"[", &key[..]].concat(),
                Bound::Excluded(key) => [b"(", &key[..]].concat(),
            };

            let to = last.to_vec();
            let entries_max = self.entries_max;
            let range = PageRange { from, to, is_backward, entries_max, bytes_max: BYTES_MAX };
            // Pages grow as the cursor goes on, so that a short look stays cheap.
            self.entries_max = (2 * entries_max).min(ENTRIES_MAX);
            let page = self.view.page(&range)?;
            let here = bound.as_ref().map(Vec::as_slice);
            let bounds =
                if is_backward { (Bound::Unbounded, here) } else { (here, Bound::Unbounded) };
            let (merged, end) = merge(page, self.view.above(bounds, &range), is_backward);

            match end {
                // All entries of the page are removed in the transaction, so the next page counts.
                Some(end) if merged.is_empty() => bound = Bound::Excluded(end),
                _ => return Ok(merged),
            }
        }
    }
}

/// Merges the part that page and entries above both cover, ascending; returns also the key it ends
/// with, unless it is the last part.
fn merge(page: Page, above: Above, is_backward: bool) -> (Vec<Entry>, Option<Vec<u8>>) {
    let far =
        |first: Option<Vec<u8>>, last: Option<Vec<u8>>| if is_backward { first } else { last };
    let key = |entry: Option<&Entry>| entry.map(|(key, _)| key.clone());
    // Behind the nearer end of two cut pages nothing is known.
    let below_end =
        (!page.is_last).then(|| far(key(page.entries.first()), key(page.entries.last())));
    let key = |entry: Option<&(Vec<u8>, Old)>| entry.map(|(key, _)| key.clone());

    let above_end =
        (!above.is_all).then(|| far(key(above.entries.first()), key(above.entries.last())));
    let end = match (below_end.flatten(), above_end.flatten()) {
        (Some(below), Some(above)) if is_backward => Some(below.max(above)),
        (Some(below), Some(above)) => Some(below.min(above)),
        (below, above) => below.or(above),
    };

    let covers = |key: &[u8]| match &end {
        Some(end) if is_backward => key >= &end[..],
        Some(end) => key <= &end[..],
        None => true,
    };

    if above.entries.is_empty() {
        let covered = page.entries.into_iter().filter(|(key, _)| covers(key));
        return (covered.collect(), end);
    }

    // Changes of the transaction hide the entries of the server.
    let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = page.entries.into_iter().collect();
    for (key, value) in above.entries {
        match value {
            Some(value) => merged.insert(key, value),
            None => merged.remove(&key),
        };
    }

    (merged.into_iter().filter(|(key, _)| covers(key)).collect(), end)
}

impl<V: View> Cursor for MergedCursor<V> {
    fn seek_first(&mut self) -> Result<()> {
        self.go_to(Gap::First);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.go_to(Gap::Last);
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.go_to(Gap::Before(key.to_vec()));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        if self.at == self.page.len() {
            // The next page begins behind the last entry of this one.
            let bound = match (self.page.last(), &self.gap) {
                (Some((key, _)), _) => Bound::Excluded(key.clone()),
                (None, Gap::First) => Bound::Unbounded,
                (None, Gap::Before(key)) => Bound::Included(key.clone()),
                (None, Gap::Last) => return Ok(None),
            };

            let page = self.fetch(bound, false)?;
            if page.is_empty() {
                return Ok(None);
            }

            self.page = page;
            self.at = 0;
        }

        self.at += 1;
        Ok(Some(self.page[self.at - 1].clone()))
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        if self.at == 0 {
            let bound = match (self.page.first(), &self.gap) {
                (Some((key, _)), _) | (None, Gap::Before(key)) => Bound::Excluded(key.clone()),
                (None, Gap::Last) => Bound::Unbounded,
                (None, Gap::First) => return Ok(None),
            };
            let page = self.fetch(bound, true)?;
            if page.is_empty() {
                return Ok(None);
            }
            self.at = page.len();
            self.page = page;
        }

        self.at -= 1;
        Ok(Some(self.page[self.at].clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    /// A server's table and what lies above it, as maps.
    struct Maps {
        server: BTreeMap<Vec<u8>, Vec<u8>>,
        above: BTreeMap<Vec<u8>, Old>,
        bytes_max: usize,
    }

    fn bound(end: &[u8]) -> Bound<Vec<u8>> {
        match end[0] {
            b'[' => Bound::Included(end[1..].to_vec()),
            b'(' => Bound::Excluded(end[1..].to_vec()),
            _ => Bound::Unbounded,
        }
    }

    impl View for Maps {
        fn page(&self, range: &PageRange) -> Result<Page> {
            let (low, high) = if range.is_backward {
                (bound(&range.to), bound(&range.from))
            } else {
                (bound(&range.from), bound(&range.to))
            };

            let all =
                self.server.range((low, high)).map(|(key, value)| (key.clone(), value.clone()));

            let mut all: Vec<Entry> = all.collect();
            if range.is_backward {
                all.reverse();
            }

            let is_last = all.len() < range.entries_max;
            all.truncate(range.entries_max);
            if range.is_backward {
                all.reverse();
            }

            Ok(Page { entries: all, is_last })
        }

        fn above(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>), range: &PageRange) -> Above {
            let entries = self.above.range::<[u8], _>(bounds);
            let range =
                PageRange { from: Vec::new(), to: Vec::new(), bytes_max: self.bytes_max, ..*range };
            Above::take(entries.map(|(key, value)| (&key[..], value)), &range)
        }
    }

    #[test]
    fn a_cursor_walks_the_merged_view_both_ways() {
        for_each_seed("a_cursor_walks_the_merged_view_both_ways", 200, |rng, _| {
            let mut maps =
                Maps { server: BTreeMap::new(), above: BTreeMap::new(), bytes_max: 1 << 20 };
            if rng.below(2) == 0 {
                maps.bytes_max = 1 + rng.below(40) as usize;
            }

            let keys = 1 + rng.below(120);
            let key = |number: u64| number.to_string().into_bytes();
            for _ in 0..rng.below(150) {
                maps.server.insert(key(rng.below(keys)), vec![1]);
            }

            for _ in 0..rng.below(150) {
                let value = (rng.below(3) > 0).then(|| vec![2]);
                maps.above.insert(key(rng.below(keys)), value);
            }

            let mut merged = maps.server.clone();
            for (key, value) in &maps.above {
                match value {
                    Some(value) => merged.insert(key.clone(), value.clone()),
                    None => merged.remove(key),
                };
            }

            let entries: Vec<Entry> = merged.into_iter().collect();
            let mut cursor = MergedCursor::new(maps);
            let mut at = 0;
            for _ in 0..300 {
                match rng.below(40) {
                    0 => {
                        cursor.seek_first().unwrap();
                        at = 0;
                    }
                    1 => {
                        cursor.seek_last().unwrap();
                        at = entries.len();
                    }
                    2 => {
                        let sought = key(rng.below(keys));
                        cursor.seek(&sought).unwrap();
                        at = entries.partition_point(|(key, _)| *key < sought);
                    }
                    step if (step / 8) % 2 == 0 => {
                        assert_eq!(cursor.next().unwrap(), entries.get(at).cloned());
                        at = (at + 1).min(entries.len());
                    }
                    _ => {
                        at = match at.checked_sub(1) {
                            Some(before) => {
                                assert_eq!(cursor.prev().unwrap(), Some(entries[before].clone()));
                                before
                            }
                            None => {
                                assert_eq!(cursor.prev().unwrap(), None);
                                0
                            }
                        };
                    }
                }
            }
        });
    }
}

//! Read set of a transaction: the keys that it has looked up, and the parts of ranges that its
//! iterators have gone through.
//!
//! A part of a range counts with its gaps: an iterator that gave two neighbours has read that
//! nothing stands between them. So a key that another commit inserts there is a conflict (a
//! phantom), and a key behind the place where the iterator stands is none.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::key_range::KeyRange;
use crate::entry::mask::Span;
use crate::store::options::TableName;

/// Reads of a transaction, by table.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    tables: BTreeMap<u64, TableReads>,
}

#[derive(Debug)]
struct TableReads {
    name: TableName,
    keys: BTreeSet<Vec<u8>>,
    scans: Vec<Scan>,
}

/// An iterator's way through its range.
#[derive(Debug)]
struct Scan {
    /// `None` for a range without keys.
    range: Option<Span>,
    /// The last key from the front.
    front: Option<Vec<u8>>,
    /// The last key from the back.
    back: Option<Vec<u8>>,
    /// Whether the whole range was read.
    is_whole: bool,
}

/// One iterator of a transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanId {
    table: u64,
    index: usize,
}

/// The last key that an iterator gave.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Passed<'a> {
    /// From the front, up to and including this key.
    Front(&'a [u8]),
    /// From the back, down to and including this key.
    Back(&'a [u8]),
    /// All of the range.
    Whole,
}

impl Reads {
    fn of(&mut self, table: u64, name: &TableName) -> &mut TableReads {
        self.tables.entry(table).or_insert_with(|| TableReads {
            name: name.clone(),
            keys: BTreeSet::new(),
            scans: Vec::new(),
        })
    }

    /// Notes lookups.
    pub(crate) fn add_keys<K: AsRef<[u8]>>(&mut self, table: u64, name: &TableName, keys: &[K]) {
        let reads = self.of(table, name);
        for key in keys {
            if !reads.keys.contains(key.as_ref()) {
                reads.keys.insert(key.as_ref().to_vec());
            }
        }
    }

    /// Notes an iterator, which has read nothing yet.
    pub(crate) fn add_scan(&mut self, table: u64, name: &TableName, range: &KeyRange) -> ScanId {
        let reads = self.of(table, name);
        let range = Span::of(range);
        reads.scans.push(Scan { range, front: None, back: None, is_whole: false });
        ScanId { table, index: reads.scans.len() - 1 }
    }

    /// Notes how far an iterator has come.
    pub(crate) fn pass(&mut self, scan: ScanId, passed: Passed<'_>) {
        let scans = self.tables.get_mut(&scan.table).map(|reads| &mut reads.scans);
        let Some(scan) = scans.and_then(|scans| scans.get_mut(scan.index)) else { return };
        match passed {
            Passed::Front(key) => scan.front = Some(key.to_vec()),
            Passed::Back(key) => scan.back = Some(key.to_vec()),
            Passed::Whole => scan.is_whole = true,
        }
    }

    /// The read set, ready to be compared with write sets.
    pub(crate) fn finish(self) -> ReadSet {
        let mut tables = BTreeMap::new();
        for (id, reads) in self.tables {
            let spans = joined(reads.scans.into_iter().flat_map(Scan::spans).collect());
            tables.insert(id, TableReadSet { name: reads.name, keys: reads.keys, spans });
        }
        ReadSet { tables }
    }
}

impl Scan {
    /// The spans that were read, gaps included.
    fn spans(self) -> Vec<Span> {
        let Some(range) = self.range else { return Vec::new() };
        if self.is_whole {
            return vec![range];
        }
        let behind = |key: Vec<u8>| [key.as_slice(), &[0]].concat();
        let front = self.front.map(|key| Span { from: range.from.clone(), end: Some(behind(key)) });
        let back = self.back.map(|from| Span { from, end: range.end });
        front.into_iter().chain(back).collect()
    }
}

/// Sorts spans and joins those that overlap or touch.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| !span.is_empty());
    spans.sort_unstable();

    let mut all: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match all.last_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| *end >= span.from) => {
                let is_longer = match (&last.end, &span.end) {
                    (None, _) => false,
                    (Some(_), None) => true,
                    (Some(last), Some(end)) => end > last,
                };
                if is_longer {
                    last.end = span.end;
                }
            }
            _ => all.push(span),
        }
    }
    debug_assert!(
        all.is_sorted_by(|one, next| one.end.as_ref().is_some_and(|end| *end < next.from)),
        "spans that touch are one"
    );
    all
}

/// Reads of a transaction that is about to commit.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    tables: BTreeMap<u64, TableReadSet>,
}

/// Reads of one table. The spans are in key order and do not touch.
#[derive(Debug)]
pub(crate) struct TableReadSet {
    pub(crate) name: TableName,
    keys: BTreeSet<Vec<u8>>,
    spans: Vec<Span>,
}

impl ReadSet {
    /// Whether nothing was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Reads by number of the table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u64, &TableReadSet)> {
        self.tables.iter().map(|(id, reads)| (*id, reads))
    }
}

impl TableReadSet {
    /// Whether a key was read, alone or in a range.
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        let at = self.spans.partition_point(|span| span.from.as_slice() <= key);
        self.keys.contains(key) || at > 0 && self.spans[at - 1].covers(key)
    }

    /// Whether any key of a span was read.
    pub(crate) fn meets(&self, span: &Span) -> bool {
        if span.is_empty() {
            return false;
        }
        let is_read =
            self.keys.range(span.from.clone()..).next().is_some_and(|key| span.covers(key));
        let at = self.spans.partition_point(|own| own.from <= span.from);
        let from_below = at > 0 && self.spans[at - 1].covers(&span.from);
        is_read || from_below || self.spans.get(at).is_some_and(|own| span.covers(&own.from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Bound;

    fn name() -> TableName {
        TableName::default()
    }

    /// All pairs of spans over a few keys against the keys themselves.
    #[test]
    fn a_span_meets_what_was_read_if_they_share_a_key() {
        let keys: Vec<Vec<u8>> = (0..6).map(|n| vec![n]).collect();
        let spans = |end: u8| (0..end).flat_map(move |from| (from..=end).map(move |to| (from, to)));
        for (from, to) in spans(5) {
            for (other_from, other_to) in spans(5) {
                let mut reads = Reads::default();
                let range = KeyRange::new(&(vec![from]..vec![to]));
                let scan = reads.add_scan(1, &name(), &range);
                reads.pass(scan, Passed::Whole);
                let reads = reads.finish();
                let (_, read) = reads.tables().next().unwrap();

                let span = Span { from: vec![other_from], end: Some(vec![other_to]) };
                let shares = keys.iter().any(|key| read.has_key(key) && span.covers(key));
                assert_eq!(read.meets(&span), shares, "{from}..{to} {other_from}..{other_to}");
                for (number, key) in (0..).zip(&keys) {
                    assert_eq!(read.has_key(key), from <= number && number < to);
                }
            }
        }
    }

    #[test]
    fn an_iterator_has_read_what_it_passed_and_the_gaps_on_the_way() {
        let mut reads = Reads::default();
        let range = KeyRange { from: Bound::Included(vec![10]), to: Bound::Excluded(vec![90]) };
        let scan = reads.add_scan(1, &name(), &range);
        reads.pass(scan, Passed::Front(&[20]));
        reads.pass(scan, Passed::Front(&[30]));
        reads.pass(scan, Passed::Back(&[80]));
        let untouched = reads.add_scan(2, &name(), &range);
        reads.add_keys(1, &name(), &[[5], [5]]);
        assert_eq!(untouched.table, 2);

        let reads = reads.finish();
        let of = |table| reads.tables().find(|(id, _)| *id == table).unwrap().1;
        let read: Vec<u8> = (0..=100).filter(|&key| of(1).has_key(&[key])).collect();
        let expected: Vec<u8> = [5].into_iter().chain(10..=30).chain(80..=89).collect();
        assert_eq!(read, expected);
        assert!((0..=100).all(|key| !of(2).has_key(&[key])), "nothing was read yet");
        assert!(of(1).has_key(&[20, 0]) && !of(1).has_key(&[30, 0]));
        assert!(of(1).meets(&Span { from: vec![31], end: None }));
        assert!(!of(1).meets(&Span { from: vec![31], end: Some(vec![80]) }));
        assert!(of(1).meets(&Span { from: vec![1], end: Some(vec![6]) }));
    }

    #[test]
    fn spans_are_joined_where_they_touch() {
        let span = |from: u8, end: u8| Span { from: vec![from], end: Some(vec![end]) };
        let all = vec![span(7, 9), span(1, 3), span(3, 5), span(2, 4), span(8, 8)];
        assert_eq!(joined(all), [span(1, 5), span(7, 9)]);
    }
}

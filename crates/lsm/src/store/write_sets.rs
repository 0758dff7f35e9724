//! Write sets of recent commits, for the validation of transactions.
//!
//! While a transaction lives, the store keeps for each commit the keys and the deleted ranges that
//! the commit wrote. A transaction is valid if no write set since its view meets its read set.
//!
//! Invariants:
//! - A transaction begins, and a commit is noted, under the lock that orders commits. So a
//!   transaction misses no write set.
//! - Write sets take at most a fixed number of bytes. If one has to go, transactions that began
//!   before it are too old, and every later validation of them says so.

use std::collections::{BTreeMap, VecDeque};

use terrane_io::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use terrane_io::sync::{Arc, Mutex};

use crate::conflict::{Conflict, ConflictCause};
use crate::entry::entry::Update;
use crate::entry::mask::Span;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::store::reads::{ReadSet, TableReadSet};

/// Bytes of a written key beside itself.
const KEY_OVERHEAD: usize = size_of::<usize>();

/// Bytes of a write set without keys, about.
const SET_OVERHEAD: u64 = size_of::<WriteSet>() as u64;

/// The write sets that live transactions need.
#[derive(Debug)]
pub(crate) struct WriteSets {
    bytes_max: u64,
    /// Number of live transactions: nothing is kept without any.
    live: AtomicUsize,
    /// The last commit that the tables show: a commit that a manifest makes has its number before.
    shown: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Moments at which live transactions began, with their number.
    begun: BTreeMap<u64, usize>,
    /// Oldest first.
    sets: VecDeque<Arc<WriteSet>>,
    /// Number of sets that were noted so far.
    moment: u64,
    /// Moment of the last set that had to go while a transaction needed it.
    lost: u64,
    bytes: u64,
}

/// Keys and ranges that one commit wrote.
#[derive(Debug)]
struct WriteSet {
    /// Number of this set, from 1 on.
    moment: u64,
    commit: u64,
    written: Written,
    bytes: u64,
}

#[derive(Debug)]
enum Written {
    Tables(BTreeMap<u64, TableWrites>),
    /// The whole content of these tables; of all tables if there is no list.
    Replaced(Option<Vec<u64>>),
}

/// Keys, one behind the other, and deleted ranges.
#[derive(Debug, Default)]
struct TableWrites {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    spans: Vec<Span>,
}

impl TableWrites {
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    fn add(&mut self, key: &[u8], update: Update<'_>) {
        if let Update::DeleteRange(end) = update {
            self.spans.push(Span { from: key.to_vec(), end: end.map(<[u8]>::to_vec) });
        } else {
            self.bytes.extend_from_slice(key);
            self.ends.push(self.bytes.len());
        }
    }

    /// The first key or range that was read.
    fn conflict(&self, reads: &TableReadSet) -> Option<ConflictCause> {
        let table = || reads.name.to_string();
        let key = self.keys().find(|key| reads.has_key(key));
        let span = || self.spans.iter().find(|span| reads.meets(span));
        match key {
            Some(key) => Some(ConflictCause::Key { table: table(), key: key.to_vec() }),
            None => span().map(|Span { from, end }| ConflictCause::Range {
                table: table(),
                from: from.clone(),
                end: end.clone(),
            }),
        }
    }
}

impl WriteSet {
    /// The first table in which something was read.
    fn conflict(&self, reads: &ReadSet) -> Option<ConflictCause> {
        match &self.written {
            Written::Tables(tables) => reads
                .tables()
                .find_map(|(id, reads)| tables.get(&id).and_then(|table| table.conflict(reads))),
            Written::Replaced(ids) => reads
                .tables()
                .find(|(id, _)| ids.as_ref().is_none_or(|ids| ids.contains(id)))
                .map(|(_, reads)| ConflictCause::Table { table: reads.name.to_string() }),
        }
    }
}

/// Bytes that an update takes in a write set.
fn bytes_of((key, update): (&[u8], Update<'_>)) -> u64 {
    let end = match update {
        Update::DeleteRange(end) => size_of::<Span>() + end.map_or(0, <[u8]>::len),
        _ => KEY_OVERHEAD,
    };
    (key.len() + end) as u64
}

impl WriteSets {
    /// No write sets; `commit` is the last commit of the store.
    pub(crate) fn new(bytes_max: u64, commit: u64) -> Self {
        let live = AtomicUsize::new(0);
        Self { bytes_max, live, shown: AtomicU64::new(commit), kept: Mutex::default() }
    }

    /// Notes a transaction; the caller holds the lock that orders commits, and all tables. Returns
    /// its moment, and the last commit that the tables show.
    pub(crate) fn begin(&self) -> (u64, u64) {
        self.live.fetch_add(1, Ordering::AcqRel);
        let mut kept = lock(&self.kept);
        let moment = kept.moment;
        *kept.begun.entry(moment).or_default() += 1;
        (moment, self.shown.load(Ordering::Acquire))
    }

    /// Ends a transaction, and lets go of what only it needed.
    pub(crate) fn end(&self, moment: u64) {
        let mut kept = lock(&self.kept);
        debug_assert!(kept.begun.contains_key(&moment), "a transaction ends once");
        if let Some(count) = kept.begun.get_mut(&moment) {
            debug_assert!(*count > 0, "moments without a transaction are forgotten");
            *count -= 1;
            if *count == 0 {
                kept.begun.remove(&moment);
            }
        }

        let oldest = kept.begun.keys().next().copied().unwrap_or(u64::MAX);
        while kept.sets.front().is_some_and(|set| set.moment <= oldest)
            && let Some(set) = kept.sets.pop_front()
        {
            kept.bytes -= set.bytes;
        }
        debug_assert!(!kept.sets.is_empty() || kept.bytes == 0, "every byte is of a set");
        let before = self.live.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "each transaction was counted once");
    }

    /// Notes what a commit wrote; the caller holds the lock that orders commits.
    pub(crate) fn note<'a>(
        &self,
        commit: u64,
        updates: impl Iterator<Item = (u64, &'a [u8], Update<'a>)> + Clone,
    ) {
        self.shown.store(commit, Ordering::Release);
        if self.live.load(Ordering::Acquire) == 0 {
            return;
        }

        let bytes = updates.clone().map(|(_, key, update)| bytes_of((key, update))).sum();
        let mut tables: BTreeMap<u64, TableWrites> = BTreeMap::new();
        if bytes <= self.bytes_max {
            for (table, key, update) in updates {
                tables.entry(table).or_default().add(key, update);
            }
        }
        self.push(commit, Written::Tables(tables), bytes);
    }

    /// Notes that the whole content of some tables was replaced, or of all tables; the caller holds
    /// the lock that orders commits.
    pub(crate) fn note_replaced(&self, commit: u64, ids: Option<Vec<u64>>) {
        self.shown.store(commit, Ordering::Release);
        if self.live.load(Ordering::Acquire) > 0 {
            self.push(commit, Written::Replaced(ids), 0);
        }
    }

    /// Notes that a table was dropped, after so many commits; the caller holds the lock that orders
    /// commits.
    pub(crate) fn note_dropped(&self, commit: u64, id: u64) {
        if self.live.load(Ordering::Acquire) > 0 {
            self.push(commit, Written::Replaced(Some(vec![id])), 0);
        }
    }

    fn push(&self, commit: u64, written: Written, bytes: u64) {
        let bytes = bytes + SET_OVERHEAD;
        let mut kept = lock(&self.kept);
        kept.moment += 1;
        let moment = kept.moment;
        kept.bytes += bytes;
        debug_assert!(
            kept.sets.back().is_none_or(|last| last.moment < moment),
            "moments are counted upwards"
        );
        kept.sets.push_back(Arc::new(WriteSet { moment, commit, written, bytes }));

        // A set that is larger than all may be goes at once, with all before it.
        while kept.bytes > self.bytes_max
            && let Some(set) = kept.sets.pop_front()
        {
            kept.bytes -= set.bytes;
            kept.lost = set.moment;
        }
        debug_assert!(kept.bytes <= self.bytes_max, "write sets stay within their bound");
    }

    /// Compares a read set with all write sets after `checked`; `view` is the commit that was read.
    /// Returns the moment of the last one.
    ///
    /// # Errors
    /// [`Error::Conflict`].
    pub(crate) fn check(&self, reads: &ReadSet, checked: u64, view: u64) -> Result<u64> {
        let (sets, moment) = {
            let kept = lock(&self.kept);
            if kept.lost > checked {
                return Err(conflict(view, ConflictCause::TooOld));
            }
            let first = kept.sets.partition_point(|set| set.moment <= checked);
            (kept.sets.iter().skip(first).cloned().collect::<Vec<_>>(), kept.moment)
        };
        debug_assert!(checked <= moment, "moments are counted upwards");
        debug_assert_eq!(sets.len() as u64, moment - checked, "no set is missing");

        match sets.iter().find_map(|set| Some((set.commit, set.conflict(reads)?))) {
            Some((commit, cause)) => Err(conflict(commit, cause)),
            None => Ok(moment),
        }
    }
}

/// The error of a conflict.
pub(crate) fn conflict(commit: u64, cause: ConflictCause) -> Error {
    Error::Conflict(Box::new(Conflict { commit, cause }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::options::TableName;
    use crate::store::reads::Reads;

    fn reads_of(table: u64, key: &[u8]) -> ReadSet {
        let mut reads = Reads::default();
        reads.add_keys(table, &TableName::default(), &[key]);
        reads.finish()
    }

    fn insert(sets: &WriteSets, commit: u64, key: &[u8]) {
        sets.note(commit, [(1, key, Update::Insert(b"value"))].into_iter());
    }

    #[test]
    fn write_sets_are_kept_while_a_transaction_needs_them() {
        let sets = WriteSets::new(10_000, 0);
        insert(&sets, 1, b"a");
        assert_eq!(lock(&sets.kept).moment, 0, "nobody needs it");

        let (first, _) = sets.begin();
        insert(&sets, 2, b"a");
        let (second, view) = sets.begin();
        assert_eq!(view, 2);
        insert(&sets, 3, b"b");
        assert_eq!(lock(&sets.kept).sets.len(), 2);

        let cause = |result: Result<u64>| match result {
            Err(Error::Conflict(conflict)) => Some((conflict.commit, conflict.cause)),
            _ => None,
        };
        let of_key =
            |key: &[u8]| ConflictCause::Key { table: "main".to_owned(), key: key.to_vec() };
        let reads = reads_of(1, b"a");
        assert_eq!(cause(sets.check(&reads, first, 1)), Some((2, of_key(b"a"))));
        assert_eq!(sets.check(&reads, second, 2).unwrap(), 2);
        let reads = reads_of(1, b"b");
        assert_eq!(cause(sets.check(&reads, second, 2)), Some((3, of_key(b"b"))));
        assert!(sets.check(&reads_of(2, b"b"), first, 1).is_ok(), "of another table");

        sets.end(first);
        assert_eq!(lock(&sets.kept).sets.len(), 1);
        sets.end(second);
        let kept = lock(&sets.kept);
        assert_eq!((kept.sets.len(), kept.bytes), (0, 0));
    }

    /// A transaction older than what is kept is refused, whatever it has read; one that began later
    /// is not.
    #[test]
    fn a_transaction_older_than_what_is_kept_is_refused() {
        let sets = WriteSets::new(5 * (SET_OVERHEAD + 20), 0);
        let (old, _) = sets.begin();
        for commit in 1..=10 {
            insert(&sets, commit, &[commit as u8; 12]);
        }
        assert_eq!(lock(&sets.kept).sets.len(), 5, "20 bytes of keys each");
        let (young, _) = sets.begin();
        insert(&sets, 11, b"key");

        let is_too_old = |result: Result<u64>| matches!(result, Err(Error::Conflict(c)) if c.cause == ConflictCause::TooOld);
        let reads = reads_of(1, b"other");
        assert!(is_too_old(sets.check(&reads, old, 0)));
        assert!(sets.check(&reads, young, 10).is_ok());

        // One set that is larger than all may be.
        insert(&sets, 12, &[7; 1_000]);
        assert!(is_too_old(sets.check(&reads, young, 10)));
        assert_eq!(lock(&sets.kept).bytes, 0);
    }
}

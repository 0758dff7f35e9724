//! Ordered reading of a table as it was when the cursor was made, forward and back.
//!
//! A cursor stands in a *gap*: before the first entry of its range, between two of them, or after
//! the last. Going forward passes the entry after the gap, going back the one before it. While it
//! moves in one direction its readers stand at the next entry, or still at the one that was given
//! last; when it turns or seeks they are let go of, and opened again at the gap by the next read.
//!
//! The iterator has a second end. `next_back` takes the last entry off the range: readers of their
//! own go down from the end of the range, and the range ends below the entry from then on. The two
//! ends meet where no entry is left between the gap and the end. If the gap moves down, the readers
//! of the end are opened again, because they may not have been opened for the keys down there.

use std::ops::Bound;
use std::sync::Arc;

use crate::compaction::levels::Levels;
use crate::compaction::loser_tree::MergeIterator;
use crate::compaction::sources::{Scan, Sources};
use crate::entry::entry::{EntryRef, Kind, Order};
use crate::entry::key_range::KeyRange;
use crate::entry::merge_operator::{MergeOperator, TooLarge};
use crate::error::{Error, Result};
use crate::lookup::result::Record;
use crate::run::blob::{Blob, BlobRef};
use crate::run::chunk_reader::Reading;
use crate::run::page_cache::PageCache;
use crate::run::prefetch::Prefetcher;
use crate::session::inner::Registered;
use crate::trace::event;

/// Where a cursor without readers stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Gap {
    /// Before all entries of the range.
    Start,
    /// After all keys below this one.
    Before(Vec<u8>),
    /// After this key and all below it.
    After(Vec<u8>),
    /// After all entries of the range.
    End,
}

/// Readers at a gap, on their way in one direction.
#[derive(Debug)]
struct Readers {
    merge: MergeIterator,
    order: Order,
    /// Whether the entry that the readers stand at has been given, so that the gap is beyond it.
    is_passed: bool,
}

impl Readers {
    fn gap(&self) -> Gap {
        let key = self.merge.current().map(|entry| entry.key.to_vec());
        match (key, self.order, self.is_passed) {
            (Some(key), Order::Ascending, true) | (Some(key), Order::Descending, false) => {
                Gap::After(key)
            }
            (Some(key), Order::Ascending, false) | (Some(key), Order::Descending, true) => {
                Gap::Before(key)
            }
            (None, Order::Ascending, _) => Gap::End,
            (None, Order::Descending, _) => Gap::Start,
        }
    }

    /// Whether a key is after the gap.
    fn is_before(&self, key: &[u8]) -> bool {
        match (self.merge.current(), self.order, self.is_passed) {
            (Some(entry), Order::Ascending, true) | (Some(entry), Order::Descending, false) => {
                key > entry.key
            }
            (Some(entry), Order::Ascending, false) | (Some(entry), Order::Descending, true) => {
                key >= entry.key
            }
            (None, Order::Ascending, _) => false,
            (None, Order::Descending, _) => true,
        }
    }

    /// The entry that the readers stand at.
    fn record(&self) -> Option<RecordRef<'_>> {
        let EntryRef { key, value, .. } = self.merge.current()?;
        Some(RecordRef { key, value, merge: &self.merge })
    }

    /// Goes to the next live entry that has not been given, and refuses one that its upserts have
    /// made too large; false at the end.
    fn load(&mut self) -> Result<bool> {
        let is_there = self.settle()?;
        if self.merge.kind() == Some(Kind::TooLarge)
            && let Some(entry) = self.merge.current()
        {
            return Err(TooLarge::error(entry.key, entry.value));
        }
        Ok(is_there)
    }

    /// Goes to the next live entry that has not been given; false at the end.
    fn settle(&mut self) -> Result<bool> {
        self.merge.load()?;
        // The step past the given entry comes only now: until this call the caller may borrow the
        // entry.
        if std::mem::take(&mut self.is_passed) {
            self.merge.advance()?;
        }
        // A deletion hides older entries of its key, which the merge has passed over, and is not
        // shown.
        while let Some(kind) = self.merge.kind() {
            if kind != Kind::Delete {
                return Ok(true);
            }
            self.merge.advance()?;
        }
        Ok(false)
    }
}

/// A live entry in the memory of the cursor that gave it, until the cursor moves.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Stands at the entry.
    merge: &'a MergeIterator,
}

impl RecordRef<'_> {
    /// Its blob, if it has one.
    #[must_use]
    pub fn blob(&self) -> Option<BlobRef> {
        let has_blob = self.merge.kind() == Some(Kind::InsertBlob);
        has_blob.then(|| self.merge.blob()).flatten().as_ref().map(Blob::downgrade)
    }

    /// The same in memory of its own.
    #[must_use]
    pub fn to_record(&self) -> Record {
        Record { key: self.key.to_vec(), value: self.value.into(), blob: self.blob() }
    }
}

/// A position in a stable view of a table; reads the live entries of a range in key order and
/// against it.
///
/// **Iterator.** A cursor is a double-ended iterator of `Result<Record>`: `for`, `.rev()`,
/// `.by_ref()` and `.collect::<Result<Vec<_>>>()` work on it.
///
/// ```
/// # use terrane_lsm::{Record, Result, Session, SessionOptions, TableConfig};
/// # let folder = tempfile::tempdir()?;
/// # let session = Session::open_dir(folder.path(), &SessionOptions::default())?;
/// # let mut table = session.new_table(&TableConfig::default())?;
/// table.insert(b"coin/1", b"12")?;
/// table.insert(b"coin/2", b"345")?;
/// for record in table.prefix(b"coin/")? {
///     println!("{:?}", record?.key);
/// }
/// let newest: Vec<Record> = table.prefix(b"coin/")?.rev().take(1).collect::<Result<_>>()?;
/// assert_eq!(newest[0].key, b"coin/2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **Position.** The position is a gap between two entries, or before the first or after the last
/// entry of the range. `next` reads the entry after the gap and passes it. [`prev`](Self::prev)
/// reads the entry before the gap and passes it, so after `next`, `prev` reads the same entry
/// again.
///
/// **The other end.** `next_back` (and `rev`) reads the last entry of the range and takes it off
/// the range: the cursor never reads that entry again. At the gap `next_back` ends, as `next` does
/// at the shortened end, so the two never give an entry twice.
///
/// **Stability.** Later updates of the table, and dropping it, do not disturb a cursor. A cursor
/// keeps the files and memtables that may hold keys of its range, and no others.
///
/// **Errors.** After an error, each further read returns the same error, so that no reader takes a
/// broken scan for a complete one. The iterator gives the error once and ends.
///
/// **Cost.** Making a cursor, [`seek`](Self::seek) and its like read nothing. The first read after
/// them, or after a turn, positions the readers: one page of each run whose keys lie around the
/// position, unless the table's cache has it, and one more where they fall between two pages; runs
/// beyond the position are read when the cursor gets there. From then on each page of each run on
/// the way is read once, in chunks that grow from 4 KiB to 256 KiB. From the third chunk of a run
/// on, chunks are read ahead, up to the end of the range: while they grow, each one when half of
/// the chunk before is passed, and then at most 8 MiB for all runs together. So a cursor holds at
/// most these 8 MiB, and 256 KiB for each run that it is in the middle of; as much again if both
/// ends are read. To turn or to seek in the middle of that waits for what is being read.
///
/// **Bulk reads.** [`next_ref`](Self::next_ref) copies nothing but the keys of compressed pages and
/// is the way to read much:
///
/// ```
/// # use std::sync::Arc;
/// # use terrane_lsm::{Session, SessionOptions, TableConfig};
/// # let folder = tempfile::tempdir()?;
/// # let session = Session::open_dir(folder.path(), &SessionOptions::default())?;
/// # let mut table = session.new_table(&TableConfig::default())?;
/// table.insert(b"a", b"12")?;
/// table.insert(b"b", b"345")?;
/// let mut value_bytes = 0;
/// let mut cursor = table.cursor()?;
/// while let Some(record) = cursor.next_ref()? {
///     value_bytes += record.value.len();
/// }
/// assert_eq!(value_bytes, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Cursor {
    // Fields drop in order: readers before what keeps the session's lock.
    readers: Option<Readers>,
    /// Readers of the end, which go down. Invariant: opened for all keys from the gap to the end.
    /// In a box, because few cursors have them.
    back: Option<Box<Readers>>,
    /// Where the cursor stands while there are no readers.
    gap: Gap,
    view: Sources,
    /// The entries that are left: `next_back` shortens it.
    range: KeyRange,
    is_shortened: bool,
    resolve: MergeOperator,
    failed: Option<Error>,
    /// Whether the iterator has given the error.
    has_told: bool,
    /// Pages of the table in memory.
    cache: Option<Arc<PageCache>>,
    session: Registered,
}

impl Cursor {
    /// A cursor before the first entry of a range.
    pub(crate) fn new(
        session: Registered,
        tree: &Levels,
        range: KeyRange,
        resolve: MergeOperator,
        cache: Option<Arc<PageCache>>,
    ) -> Self {
        let mut view = tree.sources();
        // The memtable is the newest source, so it comes first.
        view.buffers.insert(0, tree.buffer.clone());
        // Sources outside the range are let go of, so that their files can be removed.
        view.narrow(&range);
        Self {
            readers: None,
            back: None,
            gap: Gap::Start,
            view,
            range,
            is_shortened: false,
            resolve,
            failed: None,
            has_told: false,
            cache,
            session,
        }
    }

    /// Asks the disk for the first pages of a new cursor, together with those of others that share
    /// the prefetcher. The pages are read with its next submission.
    pub(crate) fn ask_first(&mut self, prefetcher: &Arc<Prefetcher>) {
        debug_assert!(self.readers.is_none() && self.gap == Gap::Start, "the cursor is new");
        let mut readers = self.open(&self.range, Order::Ascending, Arc::clone(prefetcher));
        readers.merge.ask_first();
        self.readers = Some(readers);
    }

    /// The range on one side of the gap; `None` if the gap is at that end of it.
    fn ahead(&self, order: Order) -> Option<KeyRange> {
        match (order, &self.gap) {
            (Order::Ascending, gap) => range_after(&self.range, gap),
            (Order::Descending, Gap::End) => Some(self.range.clone()),
            (Order::Descending, Gap::Before(key)) => {
                Some(self.range.to(Bound::Excluded(key.clone())))
            }
            (Order::Descending, Gap::After(key)) => {
                Some(self.range.to(Bound::Included(key.clone())))
            }
            (Order::Descending, Gap::Start) => None,
        }
    }

    /// Moves the gap. The next read opens readers there.
    fn go_to(&mut self, gap: Gap) {
        self.gap = gap;
        self.readers = None;
    }

    /// Moves the gap on request. The next read of either end opens readers there.
    fn seek_to(&mut self, gap: Gap) {
        self.go_to(gap);
        self.back = None;
    }

    /// Whether a key of the range is after the gap.
    fn is_ahead(&self, key: &[u8]) -> bool {
        match (&self.readers, &self.gap) {
            (Some(readers), _) => readers.is_before(key),
            (None, Gap::Start) => true,
            (None, Gap::Before(gap)) => key >= gap.as_slice(),
            (None, Gap::After(gap)) => key > gap.as_slice(),
            (None, Gap::End) => false,
        }
    }

    /// Goes to the next entry in this direction, and passes it if `pass` says so. Says whether
    /// there is one.
    fn read(&mut self, order: Order, pass: bool) -> Result<bool> {
        self.attempt(|cursor| cursor.try_read(order, pass))
    }

    /// Reads unless an earlier read has failed, and remembers a failure.
    fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        // A later read must not make a broken scan look complete.
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.session.check_open()?;
        let result = read(self);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.readers = None;
            self.back = None;
        }
        result
    }

    /// Readers of a range.
    fn open(&self, range: &KeyRange, order: Order, prefetcher: Arc<Prefetcher>) -> Readers {
        let reading = Reading::Scan(prefetcher, self.cache.clone());
        let scan = Scan { order, operator: self.resolve.clone(), reading };
        Readers { merge: scan.of_table(&self.view, range), order, is_passed: false }
    }

    fn try_read(&mut self, order: Order, pass: bool) -> Result<bool> {
        // Readers go in one direction only, so a turn opens others at the gap.
        if let Some(readers) = &self.readers
            && readers.order != order
        {
            let gap = readers.gap();
            self.go_to(gap);
        }

        if order == Order::Descending {
            // The gap moves down, where the readers of the end may not reach.
            self.back = None;
        }

        if self.readers.is_none() {
            let Some(range) = self.ahead(order) else { return Ok(false) };
            self.readers = Some(self.open(&range, order, self.session.prefetcher()));
        }

        let Some(readers) = &mut self.readers else { return Ok(false) };
        debug_assert!(readers.order == order, "readers go in one direction");
        let is_there = readers.load()?;

        // The range may have become shorter since the readers were opened.
        let is_left = is_there
            && (!self.is_shortened
                || readers.merge.current().is_some_and(|entry| !self.range.is_above(entry.key)));
        readers.is_passed = is_left && pass;
        Ok(is_left)
    }

    /// Goes to the last entry of the range that is after the gap, and takes it off the range.
    fn try_read_back(&mut self) -> Result<Option<Record>> {
        if self.back.is_none() {
            // Readers that stand at the gap know it better than the field.
            let gap = self.readers.as_ref().map(Readers::gap);
            let ahead = match &gap {
                Some(gap) => range_after(&self.range, gap),
                None => range_after(&self.range, &self.gap),
            };
            let Some(range) = ahead else { return Ok(None) };
            let prefetcher = self.session.prefetcher();
            self.back = Some(Box::new(self.open(&range, Order::Descending, prefetcher)));
        }

        let Some(mut back) = self.back.take() else { return Ok(None) };
        let is_there = back.load()?;
        let record = back.record().filter(|record| is_there && self.is_ahead(record.key));
        let record = record.map(|record| record.to_record());

        if let Some(record) = &record {
            debug_assert!(!self.range.is_above(&record.key), "an entry is given once");
            // The range ends below this entry from now on, so that neither end gives the entry
            // again.
            self.range.to = Bound::Excluded(record.key.clone());
            self.is_shortened = true;
        }
        back.is_passed = record.is_some();
        self.back = Some(back);
        Ok(record)
    }

    /// The entry that the readers stand at.
    fn record(&self) -> Option<RecordRef<'_>> {
        self.readers.as_ref()?.record()
    }

    /// Hands an entry to the user of the iterator, and an error once: then the iterator has ended.
    fn give(&mut self, record: Result<Option<Record>>) -> Option<Result<Record>> {
        if record.is_err() && std::mem::replace(&mut self.has_told, true) {
            return None;
        }
        record.transpose()
    }

    fn tell_read(&self, count: usize) {
        event!(TRACE, "cursor.read", self.session.dir(), cursor = self.session.id(), count);
    }

    fn read_one(&mut self, order: Order, pass: bool) -> Result<Option<RecordRef<'_>>> {
        self.tell_read(1);
        self.read_ref(order, pass)
    }

    fn read_ref(&mut self, order: Order, pass: bool) -> Result<Option<RecordRef<'_>>> {
        let is_there = self.read(order, pass)?;
        Ok(is_there.then(|| self.record()).flatten())
    }

    fn read_while(
        &mut self,
        order: Order,
        count: usize,
        mut is_wanted: impl FnMut(&RecordRef<'_>) -> bool,
    ) -> Result<Vec<Record>> {
        self.tell_read(count);
        let mut taken = Vec::new();
        while taken.len() < count {
            // An entry that is not wanted stays behind the gap, so it is passed only after the
            // look.
            let Some(record) = self.read_ref(order, false)?.filter(&mut is_wanted) else { break };
            taken.push(record.to_record());
            if let Some(readers) = &mut self.readers {
                readers.is_passed = true;
            }
        }
        debug_assert!(taken.len() <= count, "no more is taken than was asked for");
        Ok(taken)
    }

    /// The entry before the gap, which is passed; `None` at the start of the range, also when asked
    /// again.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref).
    pub fn prev(&mut self) -> Option<Result<Record>> {
        self.prev_ref().map(|record| record.map(|record| record.to_record())).transpose()
    }

    /// The entry after the gap, which is passed, without copying; `None` at the end of the range,
    /// also when asked again.
    ///
    /// # Errors
    /// Any error of the disk, damage found, and [`SessionClosed`](crate::Error::SessionClosed). A
    /// failed read ahead is an error when the cursor gets there.
    pub fn next_ref(&mut self) -> Result<Option<RecordRef<'_>>> {
        self.read_one(Order::Ascending, true)
    }

    /// Like [`prev`](Self::prev), without copying.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref).
    pub fn prev_ref(&mut self) -> Result<Option<RecordRef<'_>>> {
        self.read_one(Order::Descending, true)
    }

    /// The entry that `next` will give, without passing it.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref).
    pub fn peek(&mut self) -> Result<Option<RecordRef<'_>>> {
        self.read_one(Order::Ascending, false)
    }

    /// The entry that [`prev`](Self::prev) will give, without passing it.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref).
    pub fn peek_prev(&mut self) -> Result<Option<RecordRef<'_>>> {
        self.read_one(Order::Descending, false)
    }

    /// Goes to the gap before the first entry of the range whose key is at least `key`. Cost: none.
    pub fn seek(&mut self, key: &[u8]) {
        self.seek_to(Gap::Before(key.to_vec()));
    }

    /// Goes to the gap after all entries of the range whose key is at most `key`. Cost: none.
    pub fn seek_after(&mut self, key: &[u8]) {
        self.seek_to(Gap::After(key.to_vec()));
    }

    /// Goes before the first entry of the range, where a new cursor stands. Cost: none.
    pub fn seek_to_start(&mut self) {
        self.seek_to(Gap::Start);
    }

    /// Goes after the last entry of the range. Cost: none.
    pub fn seek_to_end(&mut self) {
        self.seek_to(Gap::End);
    }

    /// The next `count` entries; fewer only at the end of the range.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref); the entries read before are lost then.
    pub fn next_many(&mut self, count: usize) -> Result<Vec<Record>> {
        self.next_while(count, |_| true)
    }

    /// The `count` entries before the gap, the nearest first; fewer only at the start of the range.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref); the entries read before are lost then.
    pub fn prev_many(&mut self, count: usize) -> Result<Vec<Record>> {
        self.prev_while(count, |_| true)
    }

    /// The keys of the next entries, at most so many.
    pub(crate) fn next_keys(&mut self, count: usize) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        while keys.len() < count
            && let Some(record) = self.next_ref()?
        {
            keys.push(record.key.to_vec());
        }
        debug_assert!(keys.len() <= count, "no more is taken than was asked for");
        debug_assert!(keys.is_sorted_by(|one, next| one < next), "keys rise");
        Ok(keys)
    }

    /// The next entries, up to `count` of them, as long as `is_wanted` holds. The first that is not
    /// wanted is not passed.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref); the entries read before are lost then.
    pub fn next_while(
        &mut self,
        count: usize,
        is_wanted: impl FnMut(&RecordRef<'_>) -> bool,
    ) -> Result<Vec<Record>> {
        self.read_while(Order::Ascending, count, is_wanted)
    }

    /// The entries before the gap, the nearest first, up to `count` of them, as long as `is_wanted`
    /// holds. The first that is not wanted is not passed.
    ///
    /// # Errors
    /// The errors of [`next_ref`](Self::next_ref); the entries read before are lost then.
    pub fn prev_while(
        &mut self,
        count: usize,
        is_wanted: impl FnMut(&RecordRef<'_>) -> bool,
    ) -> Result<Vec<Record>> {
        self.read_while(Order::Descending, count, is_wanted)
    }
}

impl Iterator for Cursor {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.next_ref().map(|record| record.map(|record| record.to_record()));
        self.give(record)
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.tell_read(1);
        let record = self.attempt(Self::try_read_back);
        self.give(record)
    }
}

/// The part of a range after a gap; `None` if the gap is at its end.
fn range_after(range: &KeyRange, gap: &Gap) -> Option<KeyRange> {
    match gap {
        Gap::Start => Some(range.clone()),
        Gap::Before(key) => Some(range.from(Bound::Included(key.clone()))),
        Gap::After(key) => Some(range.from(Bound::Excluded(key.clone()))),
        Gap::End => None,
    }
}

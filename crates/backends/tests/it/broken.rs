//! Back-ends that break one rule each: a database in memory behind handles that can be closed and
//! opened again, with a flaw.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use terrane_kv::Memory;
use terrane_kv::conformance::Subject;
use terrane_kv::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, PowerLoss, Reader, Receipt,
    Result, Table, Writer, check_entry, check_indexes,
};

const NAME: &str = "broken";
const SLOTS: [&str; 16] = [
    "i0", "i1", "i2", "i3", "i4", "i5", "i6", "i7", "i8", "i9", "i10", "i11", "i12", "i13", "i14",
    "i15",
];

/// Fault of a back-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// None at all.
    Sound,
    /// Put replaces what is there.
    PutReplaces,
    /// Put refuses what is there, and replaces it all the same.
    RefusedPutReplaces,
    /// Delete succeeds on an absent key.
    DeleteSucceeds,
    /// Remove fails on an absent key.
    RemoveFails,
    /// `get_many` answers in the order of the keys.
    GetManySorts,
    /// All indexes are one.
    OneIndex,
    /// An index that was not named is taken for an empty one.
    AnyIndex,
    /// Any text may name an index.
    AnyName,
    /// Keys are cut to 255 bytes.
    KeysCut,
    /// Entries of a wrong size vanish without an error.
    AnySize,
    /// Values are cut to 32 KiB.
    ValuesCut,
    /// An empty value is no value.
    EmptyIsAbsent,
    /// Changes are seen before the commit.
    SeenAtOnce,
    /// A writer that is dropped commits.
    DropCommits,
    /// A writer reads what was committed.
    OwnGetStale,
    OwnCursorStale,
    OwnCountStale,
    /// A refused put takes back what the transaction did.
    RefusalRollsBack,
    /// Cursors take shorter keys first.
    OrderByLength,
    /// A seek to a key that is there goes behind it.
    SeekBehind,
    /// Turning round skips an entry.
    TurnSkips,
    /// The end is before the last entry.
    LastSkipped,
    /// The cursor of a writer shows the last committed entry even if it was removed.
    RemovedLastStays,
    /// Readers answer of the present.
    MovingValues,
    MovingCounts,
    MovingCursors,
    /// A snapshot is made when it is first read.
    LateSnapshot,
    /// Readers fail once the handle is dropped.
    ReaderEndsWithHandle,
    ReceiptsRepeat,
    SettleFails,
    /// Rollbacks are counted as transactions.
    CountsRollbacks,
    /// Claims to survive a loss of power without a sync.
    Boasts,
    SettingTwice,
    /// Compaction loses an entry.
    CompactionLoses,
    OpenAfterClose,
    /// Each seventh change is lost.
    SeventhLost,
    /// Changes after the five hundredth are lost.
    BatchCut,
    /// Writers do not wait for each other.
    WritersBeside,
    /// A commit appears in two halves.
    HalfCommits,
    /// Opening again finds nothing.
    Forgets,
    /// Indexes are known by their place, not by their name.
    IndexByPlace,
}

/// Opens databases with a flaw.
pub(crate) struct Broken {
    pub(crate) flaw: Flaw,
    store: Option<Arc<Store>>,
}

impl Broken {
    pub(crate) fn new(flaw: Flaw) -> Self {
        Self { flaw, store: None }
    }
}

impl Subject for Broken {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.store = None;
        self.reopen(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        if self.flaw != Flaw::AnyName {
            check_indexes(NAME, indexes)?;
        }

        let store = match self.store.take().filter(|_| self.flaw != Flaw::Forgets) {
            Some(store) => store,
            None => Arc::new(Store {
                memory: Memory::new(&SLOTS)?,
                names: Mutex::default(),
                changes: AtomicU64::new(0),
                rollbacks: AtomicU64::new(0),
                writers: AtomicU64::new(0),
                is_half: AtomicBool::new(false),
                is_half_seen: AtomicBool::new(false),
            }),
        };

        self.store = Some(Arc::clone(&store));
        let mut names = store.names.lock().unwrap_or_else(PoisonError::into_inner);
        for &name in indexes {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }

        drop(names);
        let indexes = indexes.iter().map(|&name| name.to_owned()).collect();
        let is_dropped = AtomicBool::new(false);
        let parts = Arc::new(Parts { store, indexes, flaw: self.flaw, is_dropped });

        Ok(Arc::new(Handle { parts, is_closed: AtomicBool::new(false) }))
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Store {
    memory: Memory,
    /// The index of each slot.
    names: Mutex<Vec<String>>,
    changes: AtomicU64,
    rollbacks: AtomicU64,
    /// Writers that were made.
    writers: AtomicU64,
    /// Half of a commit has been made, and nobody has seen it yet.
    is_half: AtomicBool,
    is_half_seen: AtomicBool,
}

/// State that a handle shares with its readers.
#[derive(Debug)]
struct Parts {
    store: Arc<Store>,
    indexes: Vec<String>,
    flaw: Flaw,
    is_dropped: AtomicBool,
}

impl Parts {
    fn slot(&self, table: Table<'_>) -> Result<Table<'static>> {
        let Table::Index(name) = table else {
            return Ok(Table::Main);
        };

        let place = self.indexes.iter().position(|index| index == name);
        let names = self.store.names.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match (place, self.flaw) {
            (None, Flaw::AnyIndex) => 15,
            (None, _) => return Err(Error::UnknownIndex { name: name.to_owned() }),
            (Some(_), Flaw::OneIndex) => 0,
            (Some(place), Flaw::IndexByPlace) => place,
            (Some(_), _) => names.iter().position(|known| known == name).unwrap(),
        };

        Ok(Table::Index(SLOTS[slot]))
    }

    fn present(&self) -> Result<Box<dyn Reader + Send>> {
        self.store.memory.reader()
    }

    fn cut<'a>(&self, key: &'a [u8], value: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        match self.flaw {
            Flaw::KeysCut => (&key[..key.len().min(255)], value),
            Flaw::ValuesCut => (key, &value[..value.len().min(32 << 10)]),
            _ => (key, value),
        }
    }

    fn cursor<'a>(&'a self, entries: Vec<Entry>, live: Option<Table<'static>>) -> BrokenCursor<'a> {
        let mut entries = entries;
        if self.flaw == Flaw::OrderByLength {
            entries.sort_by_key(|(key, _)| (key.len(), key.clone()));
        }
        BrokenCursor { parts: self, entries, live, at: 0, was_forward: None }
    }
}

fn broken(call: &'static str) -> Error {
    Error::BackEnd { back_end: NAME, call, source: "as planned".into() }
}

fn entries_of(reader: &dyn Reader, slot: Table<'_>) -> Result<Vec<Entry>> {
    let mut cursor = reader.cursor(slot)?;
    let mut entries = Vec::new();
    while let Some(entry) = cursor.next()? {
        entries.push(entry);
    }
    Ok(entries)
}

#[derive(Debug)]
struct Handle {
    parts: Arc<Parts>,
    is_closed: AtomicBool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.parts.is_dropped.store(true, Ordering::SeqCst);
    }
}

impl Handle {
    fn open(&self, call: &'static str) -> Result<()> {
        let is_closed = self.is_closed.load(Ordering::SeqCst);
        if is_closed && self.parts.flaw != Flaw::OpenAfterClose {
            return Err(broken(call));
        }
        Ok(())
    }
}

impl Database for Handle {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.open("reader")?;
        let store = &self.parts.store;
        let is_half = store.is_half.load(Ordering::SeqCst);
        let inner = match self.parts.flaw {
            Flaw::LateSnapshot => None,
            _ => Some(self.parts.present()?),
        };
        if is_half {
            store.is_half_seen.store(true, Ordering::SeqCst);
        }
        Ok(Box::new(BrokenReader { parts: Arc::clone(&self.parts), inner: Mutex::new(inner) }))
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.open("writer")?;
        let parts = &*self.parts;
        if matches!(parts.flaw, Flaw::SeenAtOnce | Flaw::WritersBeside | Flaw::HalfCommits) {
            let base = parts.present()?;
            let number = parts.store.writers.fetch_add(1, Ordering::SeqCst);
            let changes = BTreeMap::new();
            return Ok(Box::new(BufferingWriter { parts, number, base, changes }));
        }
        let inner = Some(parts.store.memory.writer()?);
        Ok(Box::new(BrokenWriter { parts, inner, change_count: 0 }))
    }

    fn settle(&self, _: Receipt) -> Result<()> {
        self.open("settle")?;
        if self.parts.flaw == Flaw::SettleFails { Err(broken("settle")) } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        self.open("sync")
    }

    fn guarantee(&self) -> Guarantee {
        let power_loss = match self.parts.flaw {
            Flaw::Boasts => PowerLoss::EveryCommit,
            _ => PowerLoss::NoPromise,
        };
        let text = "nothing is promised".to_owned();
        Guarantee { durability: Durability::None, survives_kill: true, power_loss, text }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let count = if self.parts.flaw == Flaw::SettingTwice { 2 } else { 1 };
        (0..count).map(|number| ("setting", number.to_string())).collect()
    }

    fn counts(&self) -> Counts {
        let counts = self.parts.store.memory.counts();
        match self.parts.flaw {
            Flaw::CountsRollbacks => {
                let rollbacks = self.parts.store.rollbacks.load(Ordering::SeqCst);
                Counts { transactions: counts.transactions + rollbacks, ..counts }
            }
            _ => counts,
        }
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.open("disk_bytes")?;
        self.parts.store.memory.disk_bytes()
    }

    fn compact(&self) -> Result<()> {
        self.open("compact")?;
        if self.parts.flaw == Flaw::CompactionLoses {
            let mut writer = self.parts.store.memory.writer()?;
            let first = writer.cursor(Table::Main)?.next()?;
            if let Some((key, _)) = first {
                writer.remove(Table::Main, &key)?;
            }
            writer.commit()?;
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.open("close")?;
        self.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

struct BrokenReader {
    parts: Arc<Parts>,
    /// `None` until it is first read, if it is to be late.
    inner: Mutex<Option<Box<dyn Reader + Send>>>,
}

impl BrokenReader {
    fn with<T>(&self, moving: Flaw, ask: impl FnOnce(&dyn Reader) -> Result<T>) -> Result<T> {
        let Parts { flaw, is_dropped, .. } = &*self.parts;
        if *flaw == Flaw::ReaderEndsWithHandle && is_dropped.load(Ordering::SeqCst) {
            return Err(broken("read"));
        }
        if *flaw == moving {
            return ask(&*self.parts.present()?);
        }

        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_none() {
            *inner = Some(self.parts.present()?);
        }

        ask(&**inner.as_ref().unwrap())
    }
}

impl Reader for BrokenReader {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let slot = self.parts.slot(table)?;
        let (key, _) = self.parts.cut(key, &[]);
        let value = self.with(Flaw::MovingValues, |reader| reader.get(slot, key))?;
        Ok(value.filter(|value| self.parts.flaw != Flaw::EmptyIsAbsent || !value.is_empty()))
    }

    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut keys = keys.to_vec();
        if self.parts.flaw == Flaw::GetManySorts {
            keys.sort_unstable();
        }
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let slot = self.parts.slot(table)?;
        let entries = self.with(Flaw::MovingCursors, |reader| entries_of(reader, slot))?;
        let live = (self.parts.flaw == Flaw::MovingCursors).then_some(slot);
        Ok(Box::new(self.parts.cursor(entries, live)))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let slot = self.parts.slot(table)?;
        self.with(Flaw::MovingCounts, |reader| reader.count(slot))
    }
}

struct BrokenWriter<'a> {
    parts: &'a Parts,
    /// `None` only while it is replaced or given up.
    inner: Option<Box<dyn Writer + 'a>>,
    change_count: u64,
}

impl<'a> BrokenWriter<'a> {
    fn inner(&self) -> &(dyn Writer + 'a) {
        &**self.inner.as_ref().unwrap()
    }

    fn inner_mut(&mut self) -> &mut (dyn Writer + 'a) {
        &mut **self.inner.as_mut().unwrap()
    }

    /// Whether a change is to get lost.
    fn is_lost(&mut self) -> bool {
        self.change_count += 1;
        let all = self.parts.store.changes.fetch_add(1, Ordering::SeqCst);
        match self.parts.flaw {
            Flaw::SeventhLost => all % 7 == 6,
            Flaw::BatchCut => self.change_count > 500,
            _ => false,
        }
    }
}

impl Drop for BrokenWriter<'_> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        self.parts.store.rollbacks.fetch_add(1, Ordering::SeqCst);
        if self.parts.flaw == Flaw::DropCommits {
            inner.commit().unwrap();
        }
    }
}

impl Reader for BrokenWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let slot = self.parts.slot(table)?;
        let (key, _) = self.parts.cut(key, &[]);
        if self.parts.flaw == Flaw::OwnGetStale {
            return self.parts.present()?.get(slot, key);
        }
        self.inner().get(slot, key)
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        let slot = self.parts.slot(table)?;
        let mut entries = entries_of(self.inner(), slot)?;
        match self.parts.flaw {
            Flaw::OwnCursorStale => entries = entries_of(&*self.parts.present()?, slot)?,
            Flaw::RemovedLastStays => {
                let last = entries_of(&*self.parts.present()?, slot)?.pop();
                entries.extend(last.filter(|last| entries.last().is_none_or(|own| own.0 < last.0)));
            }
            _ => {}
        }
        Ok(Box::new(self.parts.cursor(entries, None)))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        let slot = self.parts.slot(table)?;
        if self.parts.flaw == Flaw::OwnCountStale {
            return self.parts.present()?.count(slot);
        }
        self.inner().count(slot)
    }
}

impl Writer for BrokenWriter<'_> {
    fn put(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        if self.parts.flaw == Flaw::AnySize && check_entry(key, value).is_err() {
            return Ok(());
        }

        check_entry(key, value)?;
        if self.parts.flaw == Flaw::PutReplaces || self.get(table, key)?.is_none() {
            return self.overwrite(table, key, value);
        }

        match self.parts.flaw {
            Flaw::RefusedPutReplaces => self.overwrite(table, key, value)?,
            Flaw::RefusalRollsBack => {
                self.inner = None;
                self.inner = Some(self.parts.store.memory.writer()?);
            }
            _ => {}
        }

        Err(Error::DuplicateEntry { table: table.to_string(), key: key.to_vec() })
    }

    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let slot = self.parts.slot(table)?;
        let (key, value) = self.parts.cut(key, value);
        if self.is_lost() {
            return Ok(());
        }
        match self.inner_mut().overwrite(slot, key, value) {
            Err(Error::Size { .. }) if self.parts.flaw == Flaw::AnySize => Ok(()),
            written => written,
        }
    }

    fn delete(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        if self.parts.flaw != Flaw::DeleteSucceeds && self.get(table, key)?.is_none() {
            return Err(Error::NotFound { table: table.to_string(), key: key.to_vec() });
        }
        self.remove(table, key)
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        let slot = self.parts.slot(table)?;
        let (key, _) = self.parts.cut(key, &[]);
        if self.parts.flaw == Flaw::RemoveFails && self.get(table, key)?.is_none() {
            return Err(Error::NotFound { table: table.to_string(), key: key.to_vec() });
        }
        if self.is_lost() {
            return Ok(());
        }
        self.inner_mut().remove(slot, key)
    }

    fn commit(mut self: Box<Self>) -> Result<Receipt> {
        let receipt = self.inner.take().unwrap().commit()?;
        Ok(if self.parts.flaw == Flaw::ReceiptsRepeat { Receipt(1) } else { receipt })
    }
}

/// Holds its changes back and makes them in transactions of its own.
struct BufferingWriter<'a> {
    parts: &'a Parts,
    /// How many were made before it.
    number: u64,
    base: Box<dyn Reader + Send>,
    changes: BTreeMap<(Table<'static>, Vec<u8>), Option<Vec<u8>>>,
}

impl BufferingWriter<'_> {
    fn entries(&self, slot: Table<'static>) -> Result<Vec<Entry>> {
        let mut entries: BTreeMap<_, _> = entries_of(&*self.base, slot)?.into_iter().collect();
        for ((table, key), value) in &self.changes {
            match value {
                _ if *table != slot => {}
                Some(value) => {
                    entries.insert(key.clone(), value.clone());
                }
                None => {
                    entries.remove(key);
                }
            }
        }

        Ok(entries.into_iter().collect())
    }

    fn change(&mut self, table: Table<'_>, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let slot = self.parts.slot(table)?;
        self.changes.insert((slot, key.to_vec()), value.map(<[u8]>::to_vec));
        if self.parts.flaw == Flaw::SeenAtOnce {
            self.write(usize::MAX)?;
        }
        Ok(())
    }

    /// Commits the first of its changes.
    fn write(&self, count: usize) -> Result<Receipt> {
        let mut writer = self.parts.store.memory.writer()?;
        for ((slot, key), value) in self.changes.iter().take(count) {
            match value {
                Some(value) => writer.overwrite(*slot, key, value)?,
                None => writer.remove(*slot, key)?,
            }
        }
        writer.commit()
    }
}

impl Reader for BufferingWriter<'_> {
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let slot = self.parts.slot(table)?;
        match self.changes.get(&(slot, key.to_vec())) {
            Some(change) => Ok(change.clone()),
            None => self.base.get(slot, key),
        }
    }

    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(self.parts.cursor(self.entries(self.parts.slot(table)?)?, None)))
    }

    fn count(&self, table: Table<'_>) -> Result<u64> {
        Ok(self.entries(self.parts.slot(table)?)?.len() as u64)
    }
}

impl Writer for BufferingWriter<'_> {
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        if self.parts.flaw == Flaw::WritersBeside && self.number == 2 {
            // The first one beside which the rule makes another and which it commits; so the two
            // surely overlap.
            while self.parts.store.writers.load(Ordering::SeqCst) < 4 {
                thread::yield_now();
            }
        }
        self.change(table, key, Some(value))
    }

    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        self.change(table, key, None)
    }

    fn commit(self: Box<Self>) -> Result<Receipt> {
        let store = &self.parts.store;
        let is_first = store.memory.counts().transactions == 0;
        if self.parts.flaw == Flaw::HalfCommits
            && !is_first
            && !store.is_half_seen.load(Ordering::SeqCst)
        {
            // Once, so that a reader surely meets the half; readers run for as long as commits go
            // on.
            self.write(self.changes.len() / 2)?;
            store.is_half.store(true, Ordering::SeqCst);
            while !store.is_half_seen.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            store.is_half.store(false, Ordering::SeqCst);
        }

        self.write(usize::MAX)
    }
}

struct BrokenCursor<'a> {
    parts: &'a Parts,
    entries: Vec<Entry>,
    /// The table, if the entries are those of the present.
    live: Option<Table<'static>>,
    /// How many entries are before it.
    at: usize,
    was_forward: Option<bool>,
}

impl BrokenCursor<'_> {
    fn refresh(&mut self) -> Result<()> {
        if let Some(slot) = self.live {
            self.entries = entries_of(&*self.parts.present()?, slot)?;
        }
        Ok(())
    }

    fn go(&mut self, at: usize) {
        self.at = at;
        self.was_forward = None;
    }

    /// Whether this step turns round and skips therefore.
    fn skips(&mut self, is_forward: bool) -> bool {
        let turns = self.was_forward.replace(is_forward) == Some(!is_forward);
        turns && self.parts.flaw == Flaw::TurnSkips
    }
}

impl Cursor for BrokenCursor<'_> {
    fn seek_first(&mut self) -> Result<()> {
        self.go(0);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.refresh()?;
        let skipped = usize::from(self.parts.flaw == Flaw::LastSkipped);
        self.go(self.entries.len().saturating_sub(skipped));
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.refresh()?;
        let is_behind = self.parts.flaw == Flaw::SeekBehind;
        let before =
            |entry: &Entry| entry.0.as_slice() < key || is_behind && entry.0.as_slice() == key;
        self.go(self.entries.partition_point(before));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.refresh()?;
        if self.skips(true) {
            self.at += 1;
        }
        let entry = self.entries.get(self.at).cloned();
        self.at += usize::from(entry.is_some());
        Ok(entry)
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.refresh()?;
        if self.skips(false) {
            self.at = self.at.saturating_sub(1);
        }
        let before = self.at.checked_sub(1);
        let entry = before.and_then(|before| self.entries.get(before)).cloned();
        self.at -= usize::from(entry.is_some());
        Ok(entry)
    }
}

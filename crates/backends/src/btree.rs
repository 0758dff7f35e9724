//! A database in one B+tree index: tables are ranges of it, and values that are too long for a row are in pieces.
//!
//! The rows are described in `docs/format/tables.md`. A commit is one commit of the index; a snapshot is one of the index.
//!
//! Invariant: the number of the next value is above that of each piece that there is.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_btree::{Config, Index, IndexReader, PAGE_SIZE, Update};
use terrane_io::Disk;
use terrane_kv::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, Reader, Receipt, Result, Writer,
};

use crate::engine::{
    Changes, Common, Engine, Gap, Known, Snapshot, Way, check_dir, disk_error, locked,
};
use crate::row::{
    self, INDEX_MAX, MAIN, NAMES, PIECE_BYTES, PIECES, ROWS_VERSION, Row, Split, WHOLE_BYTES_MAX,
};

pub(crate) const NAME: &str = "btree";

/// Memory unless told otherwise, in bytes.
const MEMORY_BYTES_DEFAULT: usize = 256 << 20;

/// Most bytes of a commit: what the engine takes at the most.
const COMMIT_BYTES_MAX: usize = 1 << 30;

/// Pieces that are read at a time.
const PIECES_AT_ONCE: usize = 4096;

/// How a [`BtreeDatabase`] is opened. Every option may be changed at each opening.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BtreeOptions {
    /// How durable commits are. `None` asks for no sync at all, `Async` for those of checkpoints only.
    pub durability: Durability,
    /// Memory for cached pages and for updates that are not in leaves yet, in bytes; 256 MiB unless set, 1 MiB at least. A
    /// commit takes its size on top of it.
    pub memory_bytes: usize,
    /// The part of it that updates wait in; a third unless set, half at most.
    pub buffer_bytes: Option<usize>,
    /// Bytes of a page: 4096, and nothing else.
    pub page_bytes: usize,
    /// About how much of the log is kept, in bytes; 128 MiB unless set.
    pub log_bytes_max: u64,
}

impl Default for BtreeOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            memory_bytes: MEMORY_BYTES_DEFAULT,
            buffer_bytes: None,
            page_bytes: PAGE_SIZE,
            log_bytes_max: Config::variable().log_bytes_max,
        }
    }
}

impl BtreeOptions {
    /// The same with another durability.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    pub(crate) fn config(&self) -> Result<Config> {
        if self.page_bytes != PAGE_SIZE {
            let option = format!("page_bytes {}", self.page_bytes);
            let why = "pages have 4096 bytes; leave it as it is".to_owned();
            return Err(Error::Unsupported { back_end: NAME, option, why });
        }
        let mut config = Config::variable().with_memory(self.memory_bytes);
        config.buffer_bytes = self.buffer_bytes;
        Ok(config.with_log(self.log_bytes_max).with_batch(COMMIT_BYTES_MAX))
    }
}

/// An error of the engine in terms of a database.
pub(crate) fn error(call: &'static str, error: terrane_btree::Error) -> Error {
    use terrane_btree::Error as Btree;
    let back_end = NAME;
    match error {
        Btree::Disk(error) => disk_error(back_end, call, error),
        Btree::Full { .. } | Btree::NoSpace { .. } | Btree::OutOfSpace { .. } => {
            let limit = "the file or the disk is full".to_owned();
            Error::StoreFull { back_end, limit, source: Some(error.into()) }
        }
        Btree::Poisoned { .. } => Error::Poisoned { back_end },
        Btree::Locked { path, pid } => locked(back_end, &path, pid),
        Btree::BatchTooLarge { bytes, limit } => {
            Error::Size { what: "transaction", bytes, min: 0, max: limit }
        }
        Btree::InvalidConfig { option, value, allowed } => {
            let (option, why) = (format!("{option} {value}"), allowed.to_owned());
            Error::Unsupported { back_end, option, why }
        }
        Btree::Corrupt { .. }
        | Btree::TreeMissing { .. }
        | Btree::NotAnIndex { .. }
        | Btree::ConfigMismatch { .. }
        | Btree::UnsupportedVersion { .. } => {
            let what = error.to_string();
            Error::Corruption { back_end, what, source: Some(error.into()) }
        }
        error => Error::BackEnd { back_end, call, source: error.into() },
    }
}

/// A row that this program does not write.
fn broken(what: String) -> Error {
    Error::Corruption { back_end: NAME, what, source: None }
}

/// A database in one B+tree; `docs/format/tables.md` says how.
///
/// Cost: a lookup is one of the index, and one of each piece of a value of 768 bytes or more, side by side; `count` is one lookup.
/// A commit looks up each key that it changes and that its writer has not read, and writes once to the log, as much as its keys and values take, and does its
/// share of draining; with [`Durability::Each`] it syncs the log.
#[derive(Debug)]
pub struct BtreeDatabase {
    common: Common,
    engine: Btree,
    options: BtreeOptions,
    dir: PathBuf,
}

#[derive(Debug)]
struct Btree {
    /// Also of the snapshots, whose pages are not kept without it.
    index: Arc<Index>,
    /// The main table and the indexes: the key of the row of each, and its number.
    tables: Arc<[(Vec<u8>, u8)]>,
    is_synced_each: bool,
    /// Of the next value in pieces.
    next_value: AtomicU64,
}

impl BtreeDatabase {
    /// Opens the database in a directory, which is made if it is missing, with these indexes; those that are not there yet are
    /// made, and others that are there are left alone.
    ///
    /// Cost: as of opening an index: in proportion to the log.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be, and for more than 253 indexes over all
    /// openings; [`Error::Locked`]; [`Error::Corruption`], also if something else is there; [`Error::StoreFull`],
    /// [`Error::BackEnd`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &BtreeOptions,
    ) -> Result<Self> {
        let config = options.config()?;
        let (common, disk) = Common::new(NAME, indexes, options.durability, disk)?;
        let call = check_dir(NAME, disk.as_ref(), dir)?;
        let failed = |failure| error(call, failure);
        let index = Index::open_or_create(disk, dir, &config).map_err(failed)?;
        let tables = open_tables(&index, indexes)?;
        let mut last = index.range_back([PIECES]..).map_err(failed)?;
        let next_value = match last.next().map_err(failed)? {
            None => 0,
            Some((key, _)) => {
                let id = row::piece_id(key).and_then(|id| id.checked_add(1));
                id.ok_or_else(|| broken(format!("key {key:02x?} of a piece")))?
            }
        };
        let engine = Btree {
            index: Arc::new(index),
            tables: tables.into(),
            is_synced_each: options.durability == Durability::Each,
            next_value: AtomicU64::new(next_value),
        };
        let (options, dir) = (options.clone(), dir.to_owned());
        Ok(Self { common, engine, options, dir })
    }
}

/// The key of the row of each table, and its number.
type Tables = Vec<(Vec<u8>, u8)>;

/// The names of the main table and of the tables of these indexes.
fn names_of(indexes: &[&str]) -> impl Iterator<Item = String> {
    std::iter::once("main".to_owned()).chain(indexes.iter().map(|name| format!("index-{name}")))
}

/// The keys of the rows of all tables that are there, and their numbers; `None` if the index has no
/// such rows.
fn stored_tables(mut rows: terrane_btree::Cursor) -> Result<Option<Tables>> {
    let failed = |failure| error("open", failure);
    match rows.next().map_err(failed)? {
        Some((key, value)) if key == row::name_key("") => {
            if value != [ROWS_VERSION] {
                let what = format!("rows of version {value:02x?}; this program reads 1");
                return Err(broken(what));
            }
        }
        _ => return Ok(None),
    }

    let mut known = Tables::new();
    while let Some((key, value)) = rows.next().map_err(failed)? {
        let Some((number, _)) = row::read_name(value) else {
            return Err(broken(format!("row {key:02x?} of a table")));
        };
        known.push((key.to_vec(), number));
    }
    Ok(Some(known))
}

/// The rows of the main table and of these indexes; makes those that are missing, durably.
fn open_tables(index: &Index, indexes: &[&str]) -> Result<Vec<(Vec<u8>, u8)>> {
    let failed = |failure| error("open", failure);
    let mut known = match stored_tables(index.range([NAMES]..[MAIN]).map_err(failed)?)? {
        Some(known) => known,
        None if index.is_empty().map_err(failed)? => Vec::new(),
        None => return Err(broken("the index is not one of tables".to_owned())),
    };
    let mut made = vec![(row::name_key(""), vec![ROWS_VERSION])];
    let mut tables = Vec::new();
    for name in names_of(indexes) {
        let key = row::name_key(&name);
        let number = match known.iter().find(|(known, _)| *known == key) {
            Some((_, number)) => *number,
            None => {
                let is_free = |number: &u8| known.iter().all(|(_, known)| known != number);
                let numbers = if known.is_empty() { MAIN..=MAIN } else { MAIN + 1..=INDEX_MAX };
                let Some(number) = numbers.into_iter().find(is_free) else {
                    let why = "the database has 253 indexes; use one of them".to_owned();
                    return Err(Error::Unsupported { back_end: NAME, option: name, why });
                };
                known.push((key.clone(), number));
                made.push((key.clone(), row::name_value(number, 0)));
                number
            }
        };
        tables.push((key, number));
    }
    if made.len() > 1 {
        let updates: Vec<_> = made.iter().map(|(key, value)| Update::Replace(key, value)).collect();
        let position = index.commit(&updates).map_err(failed)?;
        index.sync_to(position).map_err(failed)?;
    }
    Ok(tables)
}

/// What there is of a key before a commit.
#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    Whole,
    Split(Split),
}

impl Before {
    fn of_row(key: &[u8], row: Option<&[u8]>) -> Result<Self> {
        let Some(row) = row else { return Ok(Self::Nothing) };
        Ok(match read_row(key, row)? {
            Row::Whole(_) => Self::Whole,
            Row::Split(split) => Self::Split(split),
        })
    }

    /// If that is all there is to know: of a value in pieces it is also to be known which they are.
    fn of_value(bytes: Option<usize>) -> Option<Self> {
        match bytes {
            None => Some(Self::Nothing),
            Some(bytes) => (bytes <= WHOLE_BYTES_MAX).then_some(Self::Whole),
        }
    }
}

/// The rows of a commit.
#[derive(Default)]
struct Rows<'a> {
    /// With whether the key is there already.
    put: Vec<(Vec<u8>, Vec<u8>, bool)>,
    pieces: Vec<(Split, &'a [u8])>,
    removed: Vec<Vec<u8>>,
    /// Values whose pieces go.
    gone: Vec<Split>,
}

impl<'a> Rows<'a> {
    /// What a change makes of the row of a key; returns by how many the entries of its table become more.
    fn change(
        &mut self,
        key: Vec<u8>,
        before: Before,
        after: Option<&'a [u8]>,
        next_value: &AtomicU64,
    ) -> i64 {
        if let Before::Split(split) = before {
            self.gone.push(split);
        }
        let was_there = !matches!(before, Before::Nothing);
        match after {
            None if !was_there => {}
            None => self.removed.push(key),
            Some(value) if value.len() <= WHOLE_BYTES_MAX => {
                self.put.push((key, row::whole(value), was_there));
            }
            Some(value) => {
                let id = next_value.fetch_add(1, Ordering::Relaxed);
                let split = Split { id, bytes: value.len() as u32 };
                self.put.push((key, split.row(), was_there));
                self.pieces.push((split, value));
            }
        }
        i64::from(after.is_some()) - i64::from(was_there)
    }

    /// The keys of the pieces that come and of those that go.
    fn piece_keys(&self) -> (Vec<[u8; 13]>, Vec<[u8; 13]>) {
        let keys = |split: &Split| {
            let split = *split;
            (0..split.pieces()).map(move |number| split.piece_key(number))
        };
        let put = self.pieces.iter().flat_map(|(split, _)| keys(split)).collect();
        (put, self.gone.iter().flat_map(keys).collect())
    }

    /// The updates, and of each whether its key is there: new pieces are not, and those that go are.
    fn updates<'b>(
        &'b self,
        put: &'b [[u8; 13]],
        gone: &'b [[u8; 13]],
    ) -> (Vec<Update<'b>>, Vec<bool>) {
        let rows =
            self.put.iter().map(|(key, row, is_there)| (Update::Replace(key, row), *is_there));
        let values = self.pieces.iter().flat_map(|(_, value)| value.chunks(PIECE_BYTES));
        let pieces =
            put.iter().zip(values).map(|(key, piece)| (Update::Replace(key, piece), false));
        let removed = self.removed.iter().map(Vec::as_slice);
        let removed = removed.chain(gone.iter().map(<[u8; 13]>::as_slice));
        let removed = removed.map(|key| (Update::Remove(key), true));
        rows.chain(pieces).chain(removed).unzip()
    }
}

fn read_row<'a>(key: &[u8], value: &'a [u8]) -> Result<Row<'a>> {
    row::read(value).ok_or_else(|| broken(format!("row {key:02x?}")))
}

impl Btree {
    /// An error of writing: after some of them nothing can be written.
    fn error(&self, call: &'static str, failure: terrane_btree::Error) -> Error {
        match failure {
            terrane_btree::Error::Disk(_) if self.index.is_poisoned() => {
                Error::Poisoned { back_end: NAME }
            }
            failure => error(call, failure),
        }
    }
}

impl Engine for Btree {
    type Snapshot = Rooted;

    const WANTS_KNOWN: bool = true;

    fn snapshot(&self) -> Result<Rooted> {
        let snapshot = self.index.snapshot().map_err(|failure| error("reader", failure))?;
        let tables = self.tables.clone();
        Ok(Rooted { source: Source::Own { snapshot, _index: self.index.clone() }, tables })
    }

    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt> {
        let failed = |failure| self.error("commit", failure);
        let mut rows = Rows::default();
        for (((name, number), changes), known) in self.tables.iter().zip(changes).zip(known) {
            if changes.is_empty() {
                continue;
            }
            let keys: Vec<Vec<u8>> = changes.keys().map(|key| row::key(*number, key)).collect();
            let known = |key: &Vec<u8>| known.get(key).copied().and_then(Before::of_value);
            let known: Vec<Option<Before>> = changes.keys().map(known).collect();
            let unknown = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
            let unknown = unknown.map(|(key, _)| key.as_slice());
            let refs: Vec<&[u8]> = std::iter::once(name.as_slice()).chain(unknown).collect();
            let mut found = self.index.find_many(&refs).map_err(failed)?.into_iter();
            let name_row = found.next().flatten();
            let mut more = 0;
            for ((key, after), known) in keys.into_iter().zip(changes.values()).zip(known) {
                let before = match known {
                    Some(before) => before,
                    None => Before::of_row(&key, found.next().flatten().as_deref())?,
                };
                more += rows.change(key, before, after.as_deref(), &self.next_value);
            }
            if more != 0 {
                let entries = entries_of(name, name_row.as_deref())?;
                let entries = entries.checked_add_signed(more).ok_or_else(|| {
                    broken(format!("row {name:02x?} says {entries} entries, too few"))
                })?;
                rows.put.push((name.clone(), row::name_value(*number, entries), true));
            }
        }
        let (put, gone) = rows.piece_keys();
        let (updates, was_there) = rows.updates(&put, &gone);
        let position = self.index.commit_known(&updates, was_there).map_err(failed)?;
        if self.is_synced_each {
            self.index.sync_to(position).map_err(failed)?;
        }
        Ok(Receipt(position))
    }
}

/// How many entries the row of a table says that it has.
fn entries_of(key: &[u8], value: Option<&[u8]>) -> Result<u64> {
    let entries = value.and_then(row::read_name).map(|(_, entries)| entries);
    entries.ok_or_else(|| broken(format!("row {key:02x?} of a table")))
}

impl Database for BtreeDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common.reader(&self.engine)
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        if self.engine.index.is_poisoned() {
            return Err(Error::Poisoned { back_end: NAME });
        }
        self.common.writer(&self.engine)
    }

    fn last_commit(&self) -> Option<u64> {
        Some(self.common.last_commit())
    }

    fn settle(&self, receipt: Receipt) -> Result<()> {
        self.common.check_open("settle")?;
        match self.common.durability() {
            Durability::None | Durability::Async => Ok(()),
            Durability::Each | Durability::Group => {
                let settled = self.engine.index.sync_to(receipt.0);
                settled.map_err(|failure| self.engine.error("settle", failure))
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.common.check_open("sync")?;
        self.common.check_syncs()?;
        self.engine.index.flush(true).map_err(|failure| self.engine.error("sync", failure))
    }

    fn guarantee(&self) -> Guarantee {
        self.common.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let buffer_bytes = options.buffer_bytes.unwrap_or(options.memory_bytes / 3);
        vec![
            ("path", self.dir.display().to_string()),
            ("durability", options.durability.name().to_owned()),
            ("memory_bytes", options.memory_bytes.to_string()),
            ("buffer_bytes", buffer_bytes.to_string()),
            ("page_bytes", PAGE_SIZE.to_string()),
            ("log_bytes_max", options.log_bytes_max.to_string()),
        ]
    }

    fn counts(&self) -> Counts {
        self.common.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common.disk_bytes(&self.dir)
    }

    /// Packs entries of half-empty leaves into fewer, moves pages from the end of the file into free ones and cuts the file; pages
    /// that snapshots need stay.
    fn compact(&self) -> Result<()> {
        self.common.check_open("compact")?;
        let compacted = self.engine.index.compact();
        compacted.map(drop).map_err(|failure| self.engine.error("compact", failure))
    }

    fn close(&self) -> Result<()> {
        if !self.common.close() {
            return Ok(());
        }
        self.engine.index.close().map_err(|failure| error("close", failure))
    }
}

/// A snapshot of the index.
pub(crate) struct Rooted {
    source: Source,
    tables: Arc<[(Vec<u8>, u8)]>,
}

/// Where a snapshot reads.
enum Source {
    /// In the index of this process.
    Own { snapshot: terrane_btree::Snapshot, _index: Arc<Index> },
    /// In a reader, which nobody syncs while a snapshot has it.
    Reader(Arc<IndexReader>),
}

impl Source {
    fn find(&self, key: &[u8]) -> terrane_btree::Result<Option<Vec<u8>>> {
        match self {
            Self::Own { snapshot, .. } => snapshot.find(key),
            Self::Reader(reader) => reader.find(key),
        }
    }

    fn find_many(&self, keys: &[&[u8]]) -> terrane_btree::Result<Vec<Option<Vec<u8>>>> {
        match self {
            Self::Own { snapshot, .. } => snapshot.find_many(keys),
            Self::Reader(reader) => reader.find_many(keys),
        }
    }

    fn range(&self, range: Range<Vec<u8>>) -> terrane_btree::Result<terrane_btree::Cursor> {
        match self {
            Self::Own { snapshot, .. } => snapshot.range(range),
            Self::Reader(reader) => reader.range(range),
        }
    }

    fn range_back(&self, range: Range<Vec<u8>>) -> terrane_btree::Result<terrane_btree::Cursor> {
        match self {
            Self::Own { snapshot, .. } => snapshot.range_back(range),
            Self::Reader(reader) => reader.range_back(range),
        }
    }
}

impl Rooted {
    /// The tables of these indexes, as a reader of the index sees them now.
    pub(crate) fn of_reader(reader: Arc<IndexReader>, indexes: &[&str]) -> Result<Self> {
        let rows = reader.range([NAMES]..[MAIN]).map_err(|failure| error("open", failure))?;
        let Some(known) = stored_tables(rows)? else {
            return Err(broken("the index is not one of tables".to_owned()));
        };
        let table = |name: String| {
            let key = row::name_key(&name);
            let found = known.iter().find(|(known, _)| *known == key).cloned();
            let why = "the database has no such index, and is open for reading only".to_owned();
            found.ok_or(Error::Unsupported { back_end: NAME, option: name, why })
        };
        let tables: Result<Vec<_>> = names_of(indexes).map(table).collect();
        Ok(Self { source: Source::Reader(reader), tables: tables?.into() })
    }

    /// The value that a row stands for.
    fn value(&self, key: &[u8], mut row: Vec<u8>) -> Result<Vec<u8>> {
        match read_row(key, &row)? {
            Row::Whole(_) => {
                row.remove(0);
                Ok(row)
            }
            Row::Split(split) => {
                let mut values = self.values(&[(key, split)])?;
                values.pop().ok_or_else(|| broken(format!("value of row {key:02x?}")))
            }
        }
    }

    /// The values that are in pieces.
    fn values(&self, splits: &[(&[u8], Split)]) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<[u8; 13]> = splits
            .iter()
            .flat_map(|(_, split)| (0..split.pieces()).map(|number| split.piece_key(number)))
            .collect();
        let mut values = Vec::with_capacity(splits.len());
        let mut rest = splits.iter();
        let mut value: Option<(&[u8], Split, Vec<u8>)> = None;
        for keys in keys.chunks(PIECES_AT_ONCE) {
            let refs: Vec<&[u8]> = keys.iter().map(<[u8; 13]>::as_slice).collect();
            let pieces = self.source.find_many(&refs).map_err(|failure| error("get", failure))?;
            for (at, piece) in refs.iter().zip(pieces) {
                let next = || rest.next().map(|(key, split)| (*key, *split, Vec::new()));
                let Some((key, split, mut bytes)) = value.take().or_else(next) else { continue };
                let missing = split.bytes as usize - bytes.len();
                let piece = piece.filter(|piece| piece.len() == missing.min(PIECE_BYTES));
                let Some(piece) = piece else {
                    let what = format!("piece {at:02x?} of row {key:02x?}");
                    return Err(broken(what));
                };
                bytes.extend_from_slice(&piece);
                if bytes.len() == split.bytes as usize {
                    values.push(bytes);
                } else {
                    value = Some((key, split, bytes));
                }
            }
        }
        Ok(values)
    }
}

impl Snapshot for Rooted {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = row::key(self.tables[table].1, key);
        let row = self.source.find(&key).map_err(|failure| error("get", failure))?;
        row.map(|row| self.value(&key, row)).transpose()
    }

    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> =
            keys.iter().map(|key| row::key(self.tables[table].1, key)).collect();
        let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = self.source.find_many(&refs);
        let mut values = found.map_err(|failure| error("get_many", failure))?;
        let (mut splits, mut places) = (Vec::new(), Vec::new());
        for (at, (key, value)) in refs.iter().zip(&mut values).enumerate() {
            let Some(row) = value else { continue };
            match read_row(key, row)? {
                Row::Whole(_) => drop(row.remove(0)),
                Row::Split(split) => {
                    splits.push((*key, split));
                    places.push(at);
                }
            }
        }
        for (at, value) in places.into_iter().zip(self.values(&splits)?) {
            values[at] = Some(value);
        }
        Ok(values)
    }

    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(TableCursor { rooted: self, table, gap: Gap::First, going: None }))
    }

    fn count(&self, table: usize) -> Result<u64> {
        let key = &self.tables[table].0;
        let row = self.source.find(key).map_err(|failure| error("count", failure))?;
        entries_of(key, row.as_deref())
    }
}

/// A cursor over a table: one of the index in the way that it went last.
///
/// Invariant: the cursor of the index is at the gap.
struct TableCursor<'a> {
    rooted: &'a Rooted,
    table: usize,
    gap: Gap,
    going: Option<(Way, terrane_btree::Cursor)>,
}

impl TableCursor<'_> {
    /// A cursor of the index that goes from the gap in one way to the end of the table.
    fn begin(&self, way: Way) -> terrane_btree::Result<terrane_btree::Cursor> {
        let number = self.rooted.tables[self.table].1;
        let source = &self.rooted.source;
        let (low, high) = (vec![number], vec![number + 1]);
        let at = |key: &[u8]| row::key(number, key);
        let behind = |key: &[u8]| [at(key), vec![0]].concat();
        let at = match &self.gap {
            Gap::First => low.clone(),
            Gap::Last => high.clone(),
            Gap::Before(key) => at(key),
            Gap::After(key) => behind(key),
        };
        match way {
            Way::Forward => source.range(at..high),
            Way::Backward => source.range_back(low..at),
        }
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        let failed = |failure| error("cursor", failure);
        let going = self.going.take().filter(|(going, _)| *going == way);
        let mut going = match going {
            Some((_, going)) => going,
            None => self.begin(way).map_err(failed)?,
        };
        let found = going.next().map_err(failed)?;
        let found = found.map(|(key, row)| (key.to_vec(), row.to_vec()));
        self.going = Some((way, going));
        let Some((mut key, row)) = found else { return Ok(None) };
        let value = self.rooted.value(&key, row)?;
        key.remove(0);
        self.gap = match way {
            Way::Forward => Gap::After(key.clone()),
            Way::Backward => Gap::Before(key.clone()),
        };
        Ok(Some((key, value)))
    }

    fn go_to(&mut self, gap: Gap) {
        (self.gap, self.going) = (gap, None);
    }
}

impl Cursor for TableCursor<'_> {
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
        self.step(Way::Forward)
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.step(Way::Backward)
    }
}

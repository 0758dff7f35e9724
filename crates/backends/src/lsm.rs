//! A database in the tables of an LSM store.
//!
//! Each table is a named table of the store: `main`, and `index-` with the name of each index. A commit is one record of the
//! log, whatever tables it is for. Values of any size are values of the engine, as they are. A snapshot is a view of each
//! table, all of one commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Disk;
use terrane_kv::{
    Counts, Cursor, Database, Durability, Entry, Error, Guarantee, Reader, Receipt, Result, Writer,
};
use terrane_lsm::{
    CheckpointThread, CompactionPolicy, CompactionThread, FilterPolicy, NamedTable, PAGE_SIZE,
    SessionOptions, Store, StoreOptions, TableConfig, TableName, Update, WriteBuffer,
};

use crate::engine::{Changes, Common, Engine, Known, Snapshot, check_dir, disk_error, locked};

pub(crate) const NAME: &str = "lsm";

/// Bytes of a write buffer unless told otherwise: as much as a checkpoint of the log comes after, which writes it out anyway.
const WRITE_BUFFER_BYTES_DEFAULT: u64 = 32 << 20;

/// How an [`LsmDatabase`] is opened. Every option may be changed at each opening.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LsmOptions {
    /// How durable commits are. `None` asks for no sync at all, `Async` for those of checkpoints only.
    pub durability: Durability,
    /// Memory of all tables together for what is not written yet, filters, indexes and cached pages: half of it for the main
    /// one. `None` (the default) for a write buffer of its own for each and as much as filters and indexes take.
    pub memory_bytes: Option<u64>,
    /// Bytes of the write buffer of each table; 32 MiB unless set or ruled by `memory_bytes`, beside which it must not be set.
    /// What is being flushed takes as much again.
    pub write_buffer_bytes: Option<u64>,
    /// Bytes of a page: 4096, and nothing else.
    pub page_bytes: usize,
    /// The name of an algorithm to compress values with: there is none.
    pub compression: Option<String>,
    /// How much memory filters get. Not beside `memory_bytes`.
    pub filter: FilterPolicy,
    /// Shape of the levels.
    pub merge_policy: CompactionPolicy,
    /// How much larger each level is than the one above; 2 to 16.
    pub size_ratio: u32,
    /// Bytes of the log; 64 MiB unless set.
    pub log_bytes_max: Option<u64>,
    /// Whether threads make checkpoints and merges. Otherwise commits do their share of them.
    pub background: bool,
}

impl Default for LsmOptions {
    fn default() -> Self {
        let table = TableConfig::default();
        Self {
            durability: Durability::default(),
            memory_bytes: None,
            write_buffer_bytes: None,
            page_bytes: PAGE_SIZE,
            compression: None,
            filter: table.filter,
            merge_policy: table.merge_policy,
            size_ratio: table.size_ratio,
            log_bytes_max: None,
            background: false,
        }
    }
}

impl LsmOptions {
    /// The same with another durability.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    fn check(&self) -> Result<()> {
        let refuse = |option: String, why: &str| {
            Err(Error::Unsupported { back_end: NAME, option, why: why.to_owned() })
        };
        if self.page_bytes != PAGE_SIZE {
            let option = format!("page_bytes {}", self.page_bytes);
            return refuse(option, "pages have 4096 bytes; leave it as it is");
        }
        match &self.compression {
            Some(name) => {
                refuse(format!("compression {name}"), "values are stored as they are; leave it out")
            }
            None => Ok(()),
        }
    }

    /// The configuration of one of so many tables.
    fn table(&self, tables: usize, is_main: bool) -> TableConfig {
        let others = tables as u64 - 1;
        let mut config = TableConfig {
            filter: self.filter.clone(),
            merge_policy: self.merge_policy,
            size_ratio: self.size_ratio,
            memory_budget: self.memory_bytes.map(|bytes| match (is_main, others) {
                (true, 0) => bytes,
                (true, _) => bytes / 2,
                (false, others) => bytes / 2 / others,
            }),
            ..TableConfig::default()
        };
        let default = self.memory_bytes.is_none().then_some(WRITE_BUFFER_BYTES_DEFAULT);
        if let Some(bytes) = self.write_buffer_bytes.or(default) {
            config.write_buffer = WriteBuffer::Bytes(bytes);
        }
        if self.background {
            config.merge_thread = CompactionThread::Background;
        }
        config
    }

    fn store(&self) -> StoreOptions {
        let durability = match self.durability {
            Durability::None | Durability::Async => terrane_lsm::Durability::Buffered,
            Durability::Each => terrane_lsm::Durability::Each,
            Durability::Group => terrane_lsm::Durability::Group,
        };
        let thread =
            if self.background { CheckpointThread::Background } else { CheckpointThread::Caller };
        // The size of a state is that of its rows; a full disk is told to whoever commits.
        let session = SessionOptions::default().create_dir().reserve_bytes(0);
        let options = StoreOptions::default().session(session).durability(durability);
        let options = options.checkpoint_thread(thread);
        match self.log_bytes_max {
            Some(bytes) => options.log_bytes_max(bytes),
            None => options,
        }
    }
}

/// An error of the engine in terms of a database.
pub(crate) fn error(call: &'static str, error: terrane_lsm::Error) -> Error {
    use terrane_lsm::Error as Lsm;
    let back_end = NAME;
    match error {
        Lsm::Disk(error) => disk_error(back_end, call, error),
        Lsm::OutOfSpace { .. } | Lsm::ReserveTooLarge { .. } => {
            let limit = "the disk is full".to_owned();
            Error::StoreFull { back_end, limit, source: Some(error.into()) }
        }
        Lsm::Poisoned { .. } => Error::Poisoned { back_end },
        Lsm::SessionDirLocked { path, pid } => locked(back_end, &path, pid),
        Lsm::ReadOnly { .. } => Error::ReadOnly { back_end },
        Lsm::CommitTooLarge { bytes, limit } => {
            Error::Size { what: "transaction", bytes, min: 0, max: limit }
        }
        Lsm::InvalidConfig { option, value, allowed } => {
            let (option, why) = (format!("{option} {value}"), format!("allowed is {allowed}"));
            Error::Unsupported { back_end, option, why }
        }
        Lsm::Corrupt { .. }
        | Lsm::NotTerrane { .. }
        | Lsm::SessionDirCorrupted { .. }
        | Lsm::StoreCorrupted { .. }
        | Lsm::SnapshotCorrupted { .. } => {
            let what = error.to_string();
            Error::Corruption { back_end, what, source: Some(error.into()) }
        }
        error => Error::BackEnd { back_end, call, source: error.into() },
    }
}

/// The names of the main table and of the tables of these indexes.
pub(crate) fn table_names(indexes: &[&str]) -> Result<Vec<TableName>> {
    let indexes = indexes.iter().map(|name| TableName::new(&format!("index-{name}")));
    let names = std::iter::once(TableName::new("main")).chain(indexes);
    names.collect::<terrane_lsm::Result<_>>().map_err(|failure| error("open", failure))
}

/// A database in an LSM store: each table is a named table of it, and a commit is one record of its log.
///
/// Cost: `overwrite` and `remove` read nothing; `put`, `delete` and `get` look one key up, `count` goes over the whole table.
/// A commit writes once to the log, as much as its keys and values take, and does its share of merges and checkpoints; with
/// [`Durability::Each`] it syncs the log.
#[derive(Debug)]
pub struct LsmDatabase {
    common: Common,
    engine: Lsm,
    options: LsmOptions,
    dir: PathBuf,
}

#[derive(Debug)]
struct Lsm {
    store: Store,
    tables: Vec<NamedTable>,
}

impl LsmDatabase {
    /// Opens the database in a directory, which is made if it is missing (its parent must be there), with these indexes; those
    /// that are not there yet are made, and others that are there are left alone.
    ///
    /// Cost: as of opening a store: in proportion to the log.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be; [`Error::Locked`]; [`Error::Corruption`],
    /// also if something else is there; [`Error::StoreFull`], [`Error::BackEnd`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &LsmOptions,
    ) -> Result<Self> {
        options.check()?;
        let (common, disk) = Common::new(NAME, indexes, options.durability, disk)?;
        let call = check_dir(NAME, disk.as_ref(), dir)?;
        let count = indexes.len() + 1;
        let failed = |failure| error(call, failure);
        let names = table_names(indexes)?;
        for is_main in [true, false] {
            options.table(count.max(2), is_main).validate().map_err(failed)?;
        }
        let store = Store::open(disk, dir, &options.store()).map_err(failed)?;
        let known = store.tables().map_err(failed)?;
        let mut tables = Vec::with_capacity(count);
        for (number, name) in names.iter().enumerate() {
            let config = options.table(count, number == 0);
            let table = match known.iter().find(|table| table.name == *name) {
                None => store.create_table(name, &config).map_err(failed)?,
                Some(info) => {
                    let table = store.table(name).map_err(failed)?;
                    if info.config != config {
                        table.set_config(&config).map_err(failed)?;
                    }
                    table
                }
            };
            tables.push(table);
        }
        let (options, dir) = (options.clone(), dir.to_owned());
        Ok(Self { common, engine: Lsm { store, tables }, options, dir })
    }
}

impl Lsm {
    /// An error of writing: what a failed sync has left is told from other failures.
    fn error(&self, call: &'static str, failure: terrane_lsm::Error) -> Error {
        match failure {
            terrane_lsm::Error::Disk(_) if self.store.is_poisoned() => {
                Error::Poisoned { back_end: NAME }
            }
            failure => error(call, failure),
        }
    }
}

impl Engine for Lsm {
    type Snapshot = Views;

    const WANTS_KNOWN: bool = false;

    fn snapshot(&self) -> Result<Views> {
        let tables: Vec<&NamedTable> = self.tables.iter().collect();
        Ok(Views(self.store.views(&tables).map_err(|failure| error("reader", failure))?))
    }

    fn commit(&self, changes: &[Changes], _known: &[Known]) -> Result<Receipt> {
        let mut batches = Vec::with_capacity(changes.len());
        for (table, changes) in self.tables.iter().zip(changes).filter(|(_, c)| !c.is_empty()) {
            let updates = changes
                .iter()
                .map(|(key, value)| (key, value.as_deref().map_or(Update::Delete, Update::Insert)));
            batches.push((table, updates.collect::<Vec<_>>()));
        }
        let batches: Vec<_> =
            batches.iter().map(|(table, updates)| (*table, updates.as_slice())).collect();
        let ticket = self.store.commit(&batches);
        Ok(Receipt(ticket.map_err(|failure| self.error("commit", failure))?.commit()))
    }
}

impl Database for LsmDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.common.reader(&self.engine)
    }

    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        if self.engine.store.is_poisoned() {
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
                let settled = self.engine.store.sync_to(receipt.0);
                settled.map_err(|failure| self.engine.error("settle", failure))
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.common.check_open("sync")?;
        self.common.check_syncs()?;
        self.engine.store.sync().map_err(|failure| self.engine.error("sync", failure))
    }

    fn guarantee(&self) -> Guarantee {
        self.common.guarantee()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let config = options.table(self.engine.tables.len(), true);
        let mut settings = vec![
            ("path", self.dir.display().to_string()),
            ("durability", options.durability.name().to_owned()),
            ("write_buffer", format!("{:?}", config.effective_write_buffer())),
            ("page_bytes", PAGE_SIZE.to_string()),
            ("compression", "none".to_owned()),
            ("filter", format!("{:?}", options.filter)),
            ("merge_policy", format!("{:?}", options.merge_policy)),
            ("size_ratio", options.size_ratio.to_string()),
            ("background", options.background.to_string()),
        ];
        settings.extend(options.memory_bytes.map(|bytes| ("memory_bytes", bytes.to_string())));
        settings.extend(options.log_bytes_max.map(|bytes| ("log_bytes_max", bytes.to_string())));
        settings
    }

    fn counts(&self) -> Counts {
        self.common.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.common.disk_bytes(&self.dir)
    }

    /// Merges each table into one run, and lets go of the log but for its smallest segment.
    fn compact(&self) -> Result<()> {
        self.common.check_open("compact")?;
        let compacted = self.engine.store.compact(&mut |_, _| {});
        compacted.map_err(|failure| self.engine.error("compact", failure))
    }

    fn close(&self) -> Result<()> {
        if !self.common.close() {
            return Ok(());
        }
        self.engine.store.close().map_err(|failure| self.engine.error("close", failure))
    }
}

/// Views of all tables as of one commit.
pub(crate) struct Views(pub(crate) Vec<Arc<terrane_lsm::Table>>);

impl Snapshot for Views {
    fn get(&self, table: usize, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.0[table].get(key).map_err(|failure| error("get", failure))?;
        Ok(value_of(found))
    }

    fn get_many(&self, table: usize, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let found = self.0[table].get_many(keys).map_err(|failure| error("get_many", failure))?;
        Ok(found.into_iter().map(value_of).collect())
    }

    fn cursor(&self, table: usize) -> Result<Box<dyn Cursor + '_>> {
        let cursor = self.0[table].cursor().map_err(|failure| error("cursor", failure))?;
        Ok(Box::new(TableCursor(cursor)))
    }

    fn count(&self, table: usize) -> Result<u64> {
        let failed = |failure| error("count", failure);
        let mut cursor = self.0[table].cursor().map_err(failed)?;
        let mut count = 0;
        while cursor.next_ref().map_err(failed)?.is_some() {
            count += 1;
        }
        Ok(count)
    }
}

fn value_of(found: terrane_lsm::Lookup) -> Option<Vec<u8>> {
    match found {
        terrane_lsm::Lookup::Found(value) | terrane_lsm::Lookup::FoundWithBlob(value, _) => {
            Some(value.into_vec())
        }
        _ => None,
    }
}

struct TableCursor(terrane_lsm::Cursor);

impl Cursor for TableCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.0.seek_to_start();
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.0.seek_to_end();
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.0.seek(key);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let record = self.0.next().map_err(|failure| error("next", failure))?;
        Ok(record.map(|record| (record.key, record.value.into_vec())))
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        let record = self.0.prev().map_err(|failure| error("prev", failure))?;
        Ok(record.map(|record| (record.key, record.value.into_vec())))
    }
}

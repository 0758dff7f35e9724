//! Options of an [`LsmDatabase`](crate::LsmDatabase), names of its tables, errors of the engine.

use terrane_kv::overlay::failure::{disk_error, locked};
use terrane_kv::{Durability, Error, Result};
use terrane_lsm::{
    CheckpointThread, CompactionPolicy, CompactionThread, FilterPolicy, PAGE_SIZE, SessionOptions,
    StoreOptions, TableConfig, TableName, WriteBuffer,
};

pub(super) const NAME: &str = "lsm";

/// Default bytes of a memtable: a checkpoint of the WAL comes after as many bytes and flushes the
/// memtable anyway.
const WRITE_BUFFER_BYTES_DEFAULT: u64 = 32 << 20;

/// Options of an [`LsmDatabase`](crate::LsmDatabase). Each opening may change every option.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LsmOptions {
    /// Durability of commits. `None` never syncs, `Buffered` syncs at checkpoints only.
    pub durability: Durability,
    /// Memory of all tables for memtables, filters, indexes and cached pages; the main table gets
    /// half. `None` (the default): a memtable of its own for each table, and as much as filters and
    /// indexes take.
    pub memory_bytes: Option<u64>,
    /// Memory budget of the whole store, which tables, snapshots and caches share as they need it
    /// ([`SessionOptions::memory_budget`]). Not beside `memory_bytes`, which divides memory in
    /// advance. `None` by default.
    pub shared_memory_bytes: Option<u64>,
    /// Bytes of the memtable of each table; default 32 MiB, or a part of `memory_bytes`, beside
    /// which it must not be set. A memtable that is being flushed takes as much again.
    pub write_buffer_bytes: Option<u64>,
    /// Bytes of a page: 4096, and nothing else.
    pub page_bytes: usize,
    /// The name of an algorithm to compress values with: there is none.
    pub compression: Option<String>,
    /// Memory of filters. Not beside `memory_bytes`.
    pub filter: FilterPolicy,
    /// Shape of the levels.
    pub compaction_policy: CompactionPolicy,
    /// Size of each level over the level above; 2 to 16.
    pub size_ratio: u32,
    /// Bytes of the WAL; default 64 MiB.
    pub log_bytes_max: Option<u64>,
    /// Whether threads do compaction and checkpoints. Otherwise commits do their share.
    pub background: bool,
    /// Salt of all hashes of a store that is created, drawn at random if `None` (the default); set
    /// it for runs that are to be repeatable to the byte. A store that exists keeps its own.
    pub salt: Option<u64>,
}

impl Default for LsmOptions {
    fn default() -> Self {
        let table = TableConfig::default();
        Self {
            durability: Durability::Each,
            memory_bytes: None,
            shared_memory_bytes: None,
            write_buffer_bytes: None,
            page_bytes: PAGE_SIZE,
            compression: None,
            filter: table.filter,
            compaction_policy: table.compaction_policy,
            size_ratio: table.size_ratio,
            log_bytes_max: None,
            background: false,
            salt: None,
        }
    }
}

impl LsmOptions {
    terrane_io::setters! {
        durability: Durability,
        memory_bytes: impl Into<Option<u64>>,
        shared_memory_bytes: impl Into<Option<u64>>,
        write_buffer_bytes: impl Into<Option<u64>>,
        page_bytes: usize,
        compression: impl Into<Option<String>>,
        filter: FilterPolicy,
        compaction_policy: CompactionPolicy,
        size_ratio: u32,
        log_bytes_max: impl Into<Option<u64>>,
        background: bool,
        salt: impl Into<Option<u64>>,
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse = |option: String, why: &str| {
            Err(Error::Unsupported { back_end: NAME, option, why: why.to_owned() })
        };

        if self.page_bytes != PAGE_SIZE {
            let option = format!("page_bytes {}", self.page_bytes);
            return refuse(option, "pages have 4096 bytes; leave it as it is");
        }

        if let (Some(_), Some(shared)) = (self.memory_bytes, self.shared_memory_bytes) {
            let option = format!("shared_memory_bytes {shared}");
            return refuse(option, "memory_bytes is given, and divides the memory; leave one out");
        }

        match &self.compression {
            Some(name) => {
                refuse(format!("compression {name}"), "values are stored as they are; leave it out")
            }
            None => Ok(()),
        }
    }

    /// Configuration of the main table or an index, if the database has this many tables.
    pub(super) fn table(&self, tables: usize, is_main: bool) -> TableConfig {
        debug_assert!(tables > 0, "the main table is one of them");
        // The main table gets half of the memory; the indexes share the other half.
        let others = tables as u64 - 1;
        let mut config = TableConfig::default()
            .filter(self.filter.clone())
            .compaction_policy(self.compaction_policy)
            .size_ratio(self.size_ratio)
            .memory_budget(self.memory_bytes.map(|bytes| match (is_main, others) {
                (true, 0) => bytes,
                (true, _) => bytes / 2,
                (false, others) => bytes / 2 / others,
            }));

        // A memory budget sizes the write buffer itself.
        let default = self.memory_bytes.is_none().then_some(WRITE_BUFFER_BYTES_DEFAULT);
        if let Some(bytes) = self.write_buffer_bytes.or(default) {
            config.write_buffer = WriteBuffer::Bytes(bytes);
        }

        if self.background {
            config.compaction_thread = CompactionThread::Background;
        }

        config
    }

    pub(super) fn store(&self) -> StoreOptions {
        // Without durability the disk below drops all syncs, so the store need not know.
        let durability = match self.durability {
            Durability::None | Durability::Buffered => terrane_lsm::Durability::Buffered,
            Durability::Each => terrane_lsm::Durability::Each,
            Durability::Group => terrane_lsm::Durability::Group,
        };

        let thread =
            if self.background { CheckpointThread::Background } else { CheckpointThread::Caller };

        // No reserve: the size of a state is that of its records, and a commit on a full disk
        // fails.
        let mut session = SessionOptions::default().create_dir().reserve_bytes(0);
        session.salt = self.salt;
        let session = session.memory_budget(self.shared_memory_bytes);
        let options = StoreOptions::default().session(session).durability(durability);
        let options = options.checkpoint_thread(thread);

        match self.log_bytes_max {
            Some(bytes) => options.log_bytes_max(bytes),
            None => options,
        }
    }
}

/// An error of the engine, in terms of a database.
pub(super) fn error(call: &'static str, error: terrane_lsm::Error) -> Error {
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
            let option = format!("{option} {value}");
            let why = format!("allowed is {allowed}");
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
pub(super) fn table_names(indexes: &[&str]) -> Result<Vec<TableName>> {
    let indexes = indexes.iter().map(|name| TableName::new(&format!("index-{name}")));
    let names = std::iter::once(TableName::new("main")).chain(indexes);
    names.collect::<terrane_lsm::Result<_>>().map_err(|failure| error("open", failure))
}

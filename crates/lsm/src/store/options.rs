//! How a store is opened, how durable its commits are, and what its tables are called.

use std::fmt;
use std::str::FromStr;

use terrane_io::Durability;

use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::manifest::snapshot_meta::is_name;
use crate::table::session::SessionOptions;

/// Smallest [`StoreOptions::log_bytes_max`].
pub const LOG_BYTES_MIN: u64 = 64 << 10;

/// Largest [`StoreOptions::log_bytes_max`].
pub const LOG_BYTES_MAX: u64 = 1 << 40;

/// Bytes of write sets that a store keeps while transactions live, unless told otherwise.
pub const WRITE_SET_BYTES: u64 = 64 << 20;

/// The name of a table: as that of a snapshot, see [`SnapshotName`](crate::SnapshotName).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName(pub(crate) String);

impl TableName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidTableName`].
    pub fn new(text: &str) -> Result<Self> {
        if is_name(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::InvalidTableName { text: text.to_owned() })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TableName {
    /// `main`.
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl AsRef<str> for TableName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for TableName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<&str> for TableName {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

#[cfg(feature = "serde")]
terrane_io::serde_as_text!(TableName, TableName::new);

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where checkpoints are made, and segments of the log ahead of the commits that need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CheckpointThread {
    /// In the commit that finds the log long enough, and in the commit that finds a segment half
    /// full. Calls on the disk come in one order then.
    Caller,
    /// On threads of the store; commits wait only if they fall behind by half of the log.
    #[default]
    Background,
}

/// How a store is opened.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct StoreOptions {
    /// How its session is opened.
    pub session: SessionOptions,
    /// Default durability of a commit; [`Group`](Durability::Group) unless set.
    ///
    /// **Damage of the newest commits.** Rotten bytes of the log are an error when the store is
    /// opened, never a commit that is quietly gone, if anything on the disk says that the commit
    /// was durable:
    ///
    /// - a later commit that was synced;
    /// - a mark that the writer puts behind each sync, which is itself not synced;
    /// - a checkpoint, which holds the commit.
    ///
    /// One case cannot be told from a commit whose sync never ended: the power went after the last
    /// sync of all, before its mark was on the disk, and the records of that sync are damaged
    /// besides. The next sync brings the mark to the disk, or the system does within half a minute
    /// on Linux. Commits that nobody has waited for ([`Buffered`](Durability::Buffered)) are not
    /// missed either.
    pub durability: Durability,
    /// Bytes of the log, 64 KiB to 1 TiB; 64 MiB unless set. A checkpoint is due when half of it is
    /// written since the last one, and commits wait for it when all of it is. More takes longer to
    /// recover and rewrites less.
    pub log_bytes_max: Option<u64>,
    /// Where checkpoints are made; on a thread unless set.
    pub checkpoint_thread: CheckpointThread,
    /// Merge operators of the tables that are not built in: the store knows their
    /// names.
    pub merge_operators: Vec<MergeOperator>,
    /// Bytes of keys and deleted ranges that the store remembers of recent commits, to validate
    /// [transactions](crate::Store::transaction); [`WRITE_SET_BYTES`] unless set. None are kept
    /// while no transaction lives. A transaction during whose life commits write more than this
    /// is refused with [`Error::Conflict`].
    pub write_set_bytes_max: Option<u64>,
}

impl StoreOptions {
    /// The same for a session opened otherwise.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> Self {
        Self { session, ..self }
    }

    /// The same, creating a missing directory.
    #[must_use]
    pub fn create_dir(self) -> Self {
        Self { session: self.session.create_dir(), ..self }
    }

    /// The same with a memory budget for all tables, cursors and caches of the store together, in
    /// bytes: see [`SessionOptions::memory_budget`].
    #[must_use]
    pub fn memory_budget(self, memory_budget: impl Into<Option<u64>>) -> Self {
        Self { session: self.session.memory_budget(memory_budget), ..self }
    }

    /// The same with another [`durability`](Self::durability).
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// The same with another [`log_bytes_max`](Self::log_bytes_max).
    #[must_use]
    pub fn log_bytes_max(self, bytes: u64) -> Self {
        Self { log_bytes_max: Some(bytes), ..self }
    }

    /// The same with another [`checkpoint_thread`](Self::checkpoint_thread).
    #[must_use]
    pub fn checkpoint_thread(self, checkpoint_thread: CheckpointThread) -> Self {
        Self { checkpoint_thread, ..self }
    }

    /// The same with one more merge operator.
    #[must_use]
    pub fn merge_operator(mut self, operator: MergeOperator) -> Self {
        self.merge_operators.push(operator);
        self
    }

    /// The same with another [`write_set_bytes_max`](Self::write_set_bytes_max).
    #[must_use]
    pub fn write_set_bytes_max(self, bytes: u64) -> Self {
        Self { write_set_bytes_max: Some(bytes), ..self }
    }

    pub(crate) fn log_bytes(&self) -> Result<u64> {
        let bytes = self.log_bytes_max.unwrap_or(64 << 20);
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) {
            return Err(Error::InvalidConfig {
                option: "log_bytes_max",
                value: bytes.to_string(),
                allowed: format!("{LOG_BYTES_MIN} to {LOG_BYTES_MAX}"),
            });
        }
        Ok(bytes)
    }
}

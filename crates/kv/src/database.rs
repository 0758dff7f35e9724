//! Traits of a key-value back-end, [`Database`], [`Reader`], [`Writer`] and [`Cursor`], with their
//! errors and guarantees.

use std::fmt::{self, Debug};
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::{Durability, ErrorKind};

/// Most bytes of a key on every back-end; a key has at least one.
pub const KEY_BYTES_MAX: usize = 256;
/// Most bytes of a value on every back-end.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// Most indexes of a database.
pub const INDEXES_MAX: usize = 16;
/// Most characters of an index's name: lower-case letters, digits and `_`, the first a letter.
pub const INDEX_NAME_CHARS_MAX: usize = 32;

/// One of the tables of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table<'a> {
    /// The main one.
    Main,
    /// The index of this name.
    Index(&'a str),
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main => f.write_str("the main table"),
            Self::Index(name) => write!(f, "index {name}"),
        }
    }
}

/// Whether `name` may name an index.
#[must_use]
pub fn is_index_name(name: &str) -> bool {
    name.len() <= INDEX_NAME_CHARS_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Cause of an error, as the back-end reports it.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error of a database: one variant for each reaction of the caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key to put exists already. The call changed nothing.
    #[error("{table} has key {} already", hex(.key))]
    DuplicateEntry {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// A key to delete does not exist. The call changed nothing.
    #[error("{table} has no key {}", hex(.key))]
    NotFound {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// No index of this name was given when the database was opened.
    #[error("no index {name:?}: name it when the database is opened")]
    UnknownIndex {
        /// The name.
        name: String,
    },
    /// A key or value of a size that a database does not take.
    #[error("a {what} of {bytes} bytes; at least {min} and at most {max} are taken")]
    Size {
        /// "key" or "value".
        what: &'static str,
        /// Bytes that it has.
        bytes: usize,
        /// Fewest bytes.
        min: usize,
        /// Most bytes.
        max: usize,
    },
    /// Map, disk or quota are full. The transaction changed nothing. Reads go on, and commits do
    /// once there is room.
    #[error("{back_end}: no room: {limit}")]
    StoreFull {
        /// Which back-end.
        back_end: &'static str,
        /// The full resource, and its size.
        limit: String,
        /// Cause that the back-end reports.
        source: Option<Source>,
    },
    /// Another thread or process holds a lock. Nothing was changed; try again later.
    #[error("{back_end}: busy: {what}")]
    Busy {
        /// Which back-end.
        back_end: &'static str,
        /// The lock and its holder.
        what: String,
        /// Cause that the back-end reports.
        source: Option<Source>,
    },
    /// Another process has the store open for writing.
    #[error("{back_end}: locked: {what}")]
    Locked {
        /// Which back-end.
        back_end: &'static str,
        /// The holder, if the system knows it.
        what: String,
    },
    /// The database was opened for reading.
    #[error("{back_end}: open for reading only")]
    ReadOnly {
        /// Which back-end.
        back_end: &'static str,
    },
    /// An option that the back-end cannot honour.
    #[error("{back_end}: {option}: {why}")]
    Unsupported {
        /// Which back-end.
        back_end: &'static str,
        /// The option.
        option: String,
        /// Why not, and what to do.
        why: String,
    },
    /// Stored bytes are not the bytes that were written. Restore from a copy.
    #[error("{back_end}: corrupted: {what}")]
    Corruption {
        /// Which back-end.
        back_end: &'static str,
        /// Where, and which rule they break.
        what: String,
        /// Cause that the back-end reports.
        source: Option<Source>,
    },
    /// An earlier fsync failed, so what is on disk is unknown. Close the database and open it anew.
    #[error("{back_end}: poisoned: an earlier fsync failed; close the database and open it anew")]
    Poisoned {
        /// Which back-end.
        back_end: &'static str,
    },
    /// The outcome of a commit is unknown: the connection broke between request and answer. Read to
    /// find out.
    #[error("{back_end}: the outcome of a commit is unknown")]
    Unknown {
        /// Which back-end.
        back_end: &'static str,
        /// Cause that the back-end reports.
        source: Option<Source>,
    },
    /// Any other failure: of a system call, a server that does not answer, a closed database.
    /// Nothing was changed.
    #[error("{back_end}: {call} failed")]
    BackEnd {
        /// Which back-end.
        back_end: &'static str,
        /// The failed call.
        call: &'static str,
        /// Cause that the back-end reports.
        source: Source,
    },
}

impl Error {
    /// The kind of the error, the same for all back-ends.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::DuplicateEntry { .. } => ErrorKind::AlreadyExists,
            Self::Size { .. } | Self::UnknownIndex { .. } => ErrorKind::InvalidInput,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::StoreFull { .. } => ErrorKind::NoSpace,
            Self::Busy { .. } | Self::Locked { .. } => ErrorKind::Locked,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Corruption { .. } => ErrorKind::Corrupt,
            Self::Poisoned { .. } => ErrorKind::Poisoned,
            Self::Unknown { .. } => ErrorKind::Io,
            Self::BackEnd { source, .. } => kind_of_cause(&**source),
        }
    }
}

terrane_io::error_kind_questions!(Error);

/// The kind of an error of the disk among the causes of an error.
fn kind_of_cause(error: &(dyn std::error::Error + 'static)) -> ErrorKind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // The error of the disk tells more than those of the calls around it.
        if let Some(disk) = error.downcast_ref::<terrane_io::Error>() {
            return disk.kind();
        }
        // Engines that pass an error of the disk on as their own have the system's as its cause.
        if let Some(system) = error.downcast_ref::<Arc<std::io::Error>>() {
            let source = Arc::clone(system);
            return terrane_io::Error::Io { call: "call", path: PathBuf::new(), source }.kind();
        }
        cause = error.source();
    }
    ErrorKind::Io
}

/// The result of a call of a database.
pub type Result<T> = std::result::Result<T, Error>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// State after a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum PowerLoss {
    /// No promise: perhaps nothing can be read.
    NoPromise,
    /// A state that once was committed; the last commits may be missing.
    Consistent,
    /// All settled commits.
    EveryCommit,
}

/// Promise of a database under its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Guarantee {
    /// Durability that the settings amount to.
    pub durability: Durability,
    /// Whether settled commits survive a killed process.
    pub survives_kill: bool,
    /// State after a loss of power.
    pub power_loss: PowerLoss,
    /// The promise in a sentence, with the settings behind it.
    pub text: String,
}

/// Counters of a database since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Transactions that were committed.
    pub transactions: u64,
    /// Calls that make data durable (fsync, fdatasync, msync, or a server's answer to the like).
    pub syncs: u64,
    /// Bytes that were written to files or sent to a server.
    pub bytes_written: u64,
    /// Bytes that were read from files or received from a server; a memory map does not count them.
    pub bytes_read: u64,
}

/// Number of a commit; later commits have greater numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Receipt(pub u64);

/// An entry: key and value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Cursor over the entries of a table in the order of their keys. It stands in a gap between
/// entries: [`next`](Self::next) returns the entry after the gap and steps over it,
/// [`prev`](Self::prev) the entry before. A new cursor stands before the first entry.
pub trait Cursor {
    /// Goes before the first entry.
    ///
    /// # Errors
    /// Those of the back-end.
    fn seek_first(&mut self) -> Result<()>;

    /// Goes behind the last entry.
    ///
    /// # Errors
    /// Those of the back-end.
    fn seek_last(&mut self) -> Result<()>;

    /// Goes before the first entry whose key is not less than `key`.
    ///
    /// # Errors
    /// Those of the back-end.
    fn seek(&mut self, key: &[u8]) -> Result<()>;

    /// The entry after the cursor, which steps over it; `None` at the end.
    ///
    /// # Errors
    /// Those of the back-end.
    fn next(&mut self) -> Result<Option<Entry>>;

    /// The entry before the cursor, which steps over it; `None` at the beginning.
    ///
    /// # Errors
    /// Those of the back-end.
    fn prev(&mut self) -> Result<Option<Entry>>;
}

/// A snapshot of a database. See the [contract](crate).
pub trait Reader {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] and those of the back-end.
    fn get(&self, table: Table<'_>, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The value of each of `keys`, in their order. Back-ends that gain by it read them side by
    /// side.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// A cursor over a table.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>>;

    /// How many entries a table has.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    fn count(&self, table: Table<'_>) -> Result<u64>;
}

/// A transaction that changes a database, all or nothing. If it is dropped without a commit,
/// nothing is changed. See the [contract](crate).
pub trait Writer: Reader {
    /// Binds a key that does not exist.
    ///
    /// # Errors
    /// [`Error::DuplicateEntry`] if the key exists; [`Error::Size`], [`Error::UnknownIndex`] and
    /// those of the back-end.
    fn put(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        // A back-end without an insert of its own looks for the key first.
        if self.get(table, key)?.is_some() {
            return Err(Error::DuplicateEntry { table: table.to_string(), key: key.to_vec() });
        }
        self.overwrite(table, key, value)
    }

    /// Binds a key, whether it exists or not. Cost: reads nothing on back-ends that can write
    /// blindly.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::UnknownIndex`] and those of the back-end.
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes an existing key.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the key does not exist; [`Error::UnknownIndex`] and those of the
    /// back-end.
    fn delete(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        // A removal alone does not tell of an absent key.
        if self.get(table, key)?.is_none() {
            return Err(Error::NotFound { table: table.to_string(), key: key.to_vec() });
        }
        self.remove(table, key)
    }

    /// Removes a key, whether it exists or not. Cost: reads nothing on back-ends that can write
    /// blindly.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] and those of the back-end.
    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()>;

    /// Makes all changes visible together. They are durable after [`Database::settle`].
    ///
    /// # Errors
    /// [`Error::StoreFull`], [`Error::Busy`] and the others of the back-end: nothing was changed,
    /// but for [`Error::Unknown`] and [`Error::Poisoned`].
    fn commit(self: Box<Self>) -> Result<Receipt>;
}

/// A database. See the [contract](crate).
pub trait Database: Debug + Send + Sync {
    /// The name of the back-end, as commands take it.
    fn name(&self) -> &'static str;

    /// Takes a snapshot of all tables.
    ///
    /// # Errors
    /// Those of the back-end.
    fn reader(&self) -> Result<Box<dyn Reader + Send>>;

    /// Begins a transaction; waits until no other thread has one.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`]; [`Error::Busy`] if this thread has the writer (it
    /// would wait for ever), or if another process keeps it for longer than the back-end's time
    /// limit; those of the back-end.
    fn writer(&self) -> Result<Box<dyn Writer + '_>>;

    /// A number that changes with each commit of any process, before the commit returns; `None` if
    /// finding out takes a system call or a request. While the number is the same, everything read
    /// before is current.
    fn last_commit(&self) -> Option<u64> {
        None
    }

    /// Returns when a commit is as durable as the [`guarantee`](Self::guarantee) says.
    ///
    /// # Errors
    /// [`Error::Poisoned`] and those of the back-end: the commit is visible and not durable.
    fn settle(&self, receipt: Receipt) -> Result<()>;

    /// Syncs all commits, whatever the durability, so that they survive a loss of power.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the back-end cannot; those of the back-end.
    fn sync(&self) -> Result<()>;

    /// Promise of the database under the settings in effect.
    fn guarantee(&self) -> Guarantee;

    /// Settings in effect, each with its value as text, read back from the back-end where possible.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Counters since the database was opened.
    fn counts(&self) -> Counts;

    /// Bytes that the database takes: allocated blocks, not lengths of files; memory, if it has no
    /// files.
    ///
    /// # Errors
    /// Those of the back-end.
    fn disk_bytes(&self) -> Result<u64>;

    /// Problems of the back-end's files, one a line, that reading all entries does not show. Cost:
    /// may read everything.
    ///
    /// # Errors
    /// Those of the back-end.
    fn check(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Gives the space of removed entries back to the file system, as far as the back-end can.
    ///
    /// # Errors
    /// Those of the back-end; no entry is lost.
    fn compact(&self) -> Result<()>;

    /// Makes all commits durable as far as the guarantee goes, and gives up files, locks and
    /// connections. Later calls fail.
    ///
    /// # Errors
    /// Those of the back-end. The database is closed in any case.
    fn close(&self) -> Result<()>;
}

/// Checks the sizes of an entry to write.
///
/// # Errors
/// [`Error::Size`].
pub fn check_entry(key: &[u8], value: &[u8]) -> Result<()> {
    for (what, bytes, min, max) in
        [("key", key.len(), 1, KEY_BYTES_MAX), ("value", value.len(), 0, VALUE_BYTES_MAX)]
    {
        if !(min..=max).contains(&bytes) {
            return Err(Error::Size { what, bytes, min, max });
        }
    }
    Ok(())
}

/// Checks the names of the indexes of a database.
///
/// # Errors
/// [`Error::Unsupported`] for a name that cannot name an index, one that is there twice, and too
/// many of them.
pub fn check_indexes(back_end: &'static str, indexes: &[&str]) -> Result<()> {
    let refuse = |option: String, why: String| Err(Error::Unsupported { back_end, option, why });
    // Each index is a table of the back-end, so their number is bounded.
    if indexes.len() > INDEXES_MAX {
        let why = format!("there are at most {INDEXES_MAX}");
        return refuse(format!("{} indexes", indexes.len()), why);
    }

    for (number, name) in indexes.iter().enumerate() {
        if !is_index_name(name) {
            let why = format!(
                "a name has 1 to {INDEX_NAME_CHARS_MAX} of a-z, 0-9 and _, the first a letter"
            );
            return refuse(format!("index {name:?}"), why);
        }
        if indexes.iter().take(number).any(|before| before == name) {
            return refuse(format!("index {name:?}"), "it is named twice; name it once".to_owned());
        }
    }

    Ok(())
}

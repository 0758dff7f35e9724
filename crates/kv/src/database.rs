//! The traits of a key-value back-end: [`Database`], [`Reader`], [`Writer`] and [`Cursor`], with
//! their errors and guarantees.

use std::fmt::{self, Debug};

use terrane_io::ErrorKind;

/// Bytes of a key at most, on every back-end; at least one.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of a value at most, on every back-end.
pub const VALUE_BYTES_MAX: usize = 256 << 20;
/// Indexes of a database at most.
pub const INDEXES_MAX: usize = 16;
/// Characters of the name of an index: lower-case letters, digits and `_`, the first a letter.
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

/// What a back-end says of its own trouble.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// What goes wrong in a database, by what the caller can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that was to be put is there. Nothing was changed by the call.
    #[error("{table} has key {} already", hex(.key))]
    DuplicateEntry {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
    },
    /// A key that was to be deleted is not there. Nothing was changed by the call.
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
        /// How many it has.
        bytes: usize,
        /// How few it may have.
        min: usize,
        /// How many it may have.
        max: usize,
    },
    /// Map, disk or quota are full. Nothing was changed by the transaction; reads go on, and so do
    /// commits once there is room.
    #[error("{back_end}: no room: {limit}")]
    StoreFull {
        /// Which back-end.
        back_end: &'static str,
        /// What is full, and how full.
        limit: String,
        /// What the back-end said.
        source: Option<Source>,
    },
    /// Somebody else holds what is needed. Nothing was changed; try again later.
    #[error("{back_end}: busy: {what}")]
    Busy {
        /// Which back-end.
        back_end: &'static str,
        /// Who holds what.
        what: String,
        /// What the back-end said.
        source: Option<Source>,
    },
    /// Another process has the store open for writing.
    #[error("{back_end}: locked: {what}")]
    Locked {
        /// Which back-end.
        back_end: &'static str,
        /// By whom, where the system tells.
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
    /// Stored bytes are not what was written. Restore from a copy.
    #[error("{back_end}: corrupted: {what}")]
    Corruption {
        /// Which back-end.
        back_end: &'static str,
        /// Where, and which rule they break.
        what: String,
        /// What the back-end said.
        source: Option<Source>,
    },
    /// An earlier fsync failed, so what is on disk is unknown. Close the database and open it anew.
    #[error("{back_end}: poisoned: an earlier fsync failed; close the database and open it anew")]
    Poisoned {
        /// Which back-end.
        back_end: &'static str,
    },
    /// It is not known whether a commit took place: the connection broke between request and
    /// answer. Read to find out.
    #[error("{back_end}: the outcome of a commit is unknown")]
    Unknown {
        /// Which back-end.
        back_end: &'static str,
        /// What the back-end said.
        source: Option<Source>,
    },
    /// Everything else: a failed system call, a server that does not answer, a closed database.
    /// Nothing was changed.
    #[error("{back_end}: {call} failed")]
    BackEnd {
        /// Which back-end.
        back_end: &'static str,
        /// What was called.
        call: &'static str,
        /// What the back-end said.
        source: Source,
    },
}

impl Error {
    /// What the error means, whichever back-end it came from.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::DuplicateEntry { .. } | Self::Size { .. } | Self::UnknownIndex { .. } => {
                ErrorKind::BadInput
            }
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::StoreFull { .. } => ErrorKind::NoSpace,
            Self::Busy { .. } | Self::Locked { .. } => ErrorKind::Locked,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Corruption { .. } => ErrorKind::Corrupt,
            Self::Poisoned { .. } | Self::Unknown { .. } => ErrorKind::Environment,
            Self::BackEnd { source, .. } => kind_of_cause(&**source),
        }
    }
}

/// The kind of an error of the disk among the causes of an error.
fn kind_of_cause(error: &(dyn std::error::Error + 'static)) -> ErrorKind {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(disk) = error.downcast_ref::<terrane_io::Error>() {
            return disk.error_kind();
        }
        cause = error.source();
    }
    ErrorKind::Environment
}

/// The result of a call of a database.
pub type Result<T> = std::result::Result<T, Error>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// How durable commits are, as the caller asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Durability {
    /// No sync is ever asked for.
    None,
    /// Commits are flushed at the system's leisure.
    Async,
    /// A commit that returned survives a loss of power: a sync for each.
    #[default]
    Each,
    /// The same; callers that commit side by side share a sync.
    Group,
}

impl Durability {
    /// The name that benchmarks and commands use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Async => "async",
            Self::Each => "each",
            Self::Group => "group",
        }
    }
}

/// What a loss of power leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PowerLoss {
    /// Perhaps nothing that can be read.
    NoPromise,
    /// A state that once was committed; the last commits may be missing.
    Consistent,
    /// Every commit that was settled.
    EveryCommit,
}

/// What the settings of a database really promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarantee {
    /// The level that it amounts to.
    pub durability: Durability,
    /// Whether settled commits survive a killed process.
    pub survives_kill: bool,
    /// What a loss of power leaves.
    pub power_loss: PowerLoss,
    /// The same in a sentence, with the settings that it rests on.
    pub text: String,
}

/// What a database has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

/// The number of a commit; later ones have greater ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// An entry: key and value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// Goes over the entries of a table in the order of their keys. It stands before, between or after
/// entries: [`next`](Self::next) gives the entry after it and steps over it, [`prev`](Self::prev)
/// the one before. A new one stands before the first.
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

/// Reads a database. See the [module](self).
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
    /// As [`get`](Self::get).
    fn get_many(&self, table: Table<'_>, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    /// A cursor over a table.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn cursor(&self, table: Table<'_>) -> Result<Box<dyn Cursor + '_>>;

    /// How many entries a table has.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn count(&self, table: Table<'_>) -> Result<u64>;
}

/// Changes a database, all or nothing; dropped without a commit it has changed nothing. See the
/// [module](self).
pub trait Writer: Reader {
    /// Binds a key that is not there.
    ///
    /// # Errors
    /// [`Error::DuplicateEntry`] if it is; [`Error::Size`], [`Error::UnknownIndex`] and those of
    /// the back-end.
    fn put(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        if self.get(table, key)?.is_some() {
            return Err(Error::DuplicateEntry { table: table.to_string(), key: key.to_vec() });
        }
        self.overwrite(table, key, value)
    }

    /// Binds a key, whether it is there or not. Cost: reads nothing on back-ends that can write
    /// blindly.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::UnknownIndex`] and those of the back-end.
    fn overwrite(&mut self, table: Table<'_>, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key that is there.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not; [`Error::UnknownIndex`] and those of the back-end.
    fn delete(&mut self, table: Table<'_>, key: &[u8]) -> Result<()> {
        if self.get(table, key)?.is_none() {
            return Err(Error::NotFound { table: table.to_string(), key: key.to_vec() });
        }
        self.remove(table, key)
    }

    /// Removes a key, whether it is there or not. Cost: reads nothing on back-ends that can write
    /// blindly.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] and those of the back-end.
    fn remove(&mut self, table: Table<'_>, key: &[u8]) -> Result<()>;

    /// Makes all changes visible, as a whole. They are durable after [`Database::settle`].
    ///
    /// # Errors
    /// [`Error::StoreFull`], [`Error::Busy`] and the others of the back-end: nothing was changed,
    /// but for [`Error::Unknown`] and [`Error::Poisoned`].
    fn commit(self: Box<Self>) -> Result<Receipt>;
}

/// A database. See the [module](self).
pub trait Database: Debug + Send + Sync {
    /// The name of the back-end, as commands take it.
    fn name(&self) -> &'static str;

    /// A snapshot of all tables.
    ///
    /// # Errors
    /// Those of the back-end.
    fn reader(&self) -> Result<Box<dyn Reader + Send>>;

    /// The writer, when no other lives.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Poisoned`]; [`Error::Busy`] if this thread has one, which it
    /// would wait for for ever, and where another process may have one, after the time that the
    /// back-end was told to wait; and those of the back-end.
    fn writer(&self) -> Result<Box<dyn Writer + '_>>;

    /// A number that is another one after each commit, whoever made it, by the time that the commit
    /// returns; `None` where that cannot be told without a system call or a question to a server.
    /// What was read when it was the same is still so.
    fn last_commit(&self) -> Option<u64> {
        None
    }

    /// Returns when a commit is as durable as the [`guarantee`](Self::guarantee) says.
    ///
    /// # Errors
    /// [`Error::Poisoned`] and those of the back-end: the commit is visible and not durable.
    fn settle(&self, receipt: Receipt) -> Result<()>;

    /// Makes everything that was committed survive a loss of power, whatever the durability, as far
    /// as the back-end can.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where it cannot; those of the back-end.
    fn sync(&self) -> Result<()>;

    /// What commits are worth under the settings in effect.
    fn guarantee(&self) -> Guarantee;

    /// The settings in effect, each with its value as text, read back from the back-end where it
    /// tells.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// What was done so far.
    fn counts(&self) -> Counts;

    /// Bytes that the database takes, allocated blocks and not lengths of files; for a database
    /// without files, of its memory.
    ///
    /// # Errors
    /// Those of the back-end.
    fn disk_bytes(&self) -> Result<u64>;

    /// Problems of what the back-end keeps, one a line, as far as the back-end can find any that
    /// reading all entries does not show. Cost: may read everything.
    ///
    /// # Errors
    /// Those of the back-end.
    fn check(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Gives space that removed entries took back to the file system, as far as the back-end can.
    ///
    /// # Errors
    /// Those of the back-end; nothing is lost then.
    fn compact(&self) -> Result<()>;

    /// Makes what was committed durable as far as the guarantee goes, and gives up files, locks and
    /// connections. Whatever is called afterwards fails.
    ///
    /// # Errors
    /// Those of the back-end. The database is closed in any case.
    fn close(&self) -> Result<()>;
}

/// Checks the sizes of an entry that is to be written.
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

/// Checks the indexes that a database is to be opened with.
///
/// # Errors
/// [`Error::Unsupported`] for a name that cannot name an index, one that is there twice, and too
/// many of them.
pub fn check_indexes(back_end: &'static str, indexes: &[&str]) -> Result<()> {
    let refuse = |option: String, why: String| Err(Error::Unsupported { back_end, option, why });
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

//! The trait of engines, and the terms that all engines have.
//!
//! An engine is opened by [`open`](crate::engines::open) in a folder of its own, under [`Terms`].
//! Workloads know nothing else of an engine, so that each engine does the same work on the same
//! bytes. An engine that cannot do a workload says so ([`Error::Cannot`]); a report then has that
//! sentence where others have a figure.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// An error of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine cannot do what the workload needs, by design.
    #[error("{0}")]
    Cannot(&'static str),
    /// The engine failed.
    #[error("{engine}: {message}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// Its words.
        message: String,
    },
    /// The engine gave a wrong answer.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// An option does not fit.
    #[error("{0}")]
    Options(String),
    /// No limit could be set on memory, and without one the comparison would be worth nothing.
    #[error(transparent)]
    Limit(#[from] terrane_bench::instruments::limits::Error),
    /// The system failed.
    #[error("{what}: {source}")]
    System {
        /// The attempt.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Turns an error of the engine `engine` into ours.
pub fn of<E: std::fmt::Display>(engine: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Engine { engine, message: error.to_string() }
}

/// The event that a commit of a workload survives. Engines are compared within one class only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Nothing is promised between two syncs: the log is off where that is possible.
    None,
    /// A loss of power: each commit returns after an fsync.
    FsyncEach,
}

/// The terms under which an engine is opened; the same for all.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Bytes that the process and its page cache may have together, while the workload is measured.
    pub memory: u64,
    /// Entries that are loaded.
    pub entries: u64,
    /// Bytes of a key and its value.
    pub entry_bytes: u64,
    /// The event that commits survive.
    pub durability: Durability,
    /// Threads that read or write at a time.
    pub threads: u64,
    /// Whether commits make a root: [`Engine::commit`] instead of [`Engine::write`].
    pub has_root: bool,
}

impl Terms {
    /// A cache for an engine that reads past the page cache: the rest is its code, buffers of
    /// writes and merges, and the workload's own 16 MiB.
    pub fn cache_direct(&self) -> u64 {
        self.memory / 2
    }

    /// A cache for an engine that reads through the page cache, which has the other half.
    pub fn cache_buffered(&self) -> u64 {
        self.memory / 2
    }

    /// A buffer of writes.
    pub fn write_buffer(&self) -> u64 {
        (self.memory / 16).clamp(4 << 20, 64 << 20)
    }

    /// Size of a memory map that the data never outgrow: ten times the logical bytes, and 4 GiB.
    pub fn map_bytes(&self) -> u64 {
        (self.entries * self.entry_bytes * 10 + (4 << 30)).next_multiple_of(1 << 20)
    }
}

/// How an engine reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Past the page cache.
    Direct,
    /// Through the page cache.
    Buffered,
    /// By mapping files.
    Mmap,
}

/// A description that an engine gives of itself, for reports.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct About {
    /// Its version: of the crate, and of the library in it.
    pub version: String,
    /// How it reads.
    pub io_mode: IoMode,
    /// Each option that differs from the engine's default, and those that matter to memory.
    pub settings: BTreeMap<String, String>,
}

impl About {
    /// An engine of this version, with settings as pairs.
    pub fn new<const N: usize>(
        version: &str,
        io_mode: IoMode,
        settings: [(&str, String); N],
    ) -> Self {
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
        Self { version: version.to_owned(), io_mode, settings }
    }
}

/// A root over all entries. Two engines of one scheme have the same root over the same entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Shape and hash of the tree.
    pub scheme: String,
    /// Hash in lower-case hexadecimal digits.
    pub hash: String,
}

impl Root {
    /// The root of a tree of a scheme.
    pub fn new(scheme: &str, hash: &[u8]) -> Self {
        Self { scheme: scheme.to_owned(), hash: terrane_replay::hex::encode(hash) }
    }
}

/// Changes of one commit, in the order of the workload.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// End of the key, and of the value if there is one.
    ops: Vec<(usize, Option<usize>)>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
    }

    /// Sets a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ops.push((key_end, Some(self.bytes.len())));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ops.push((self.bytes.len(), None));
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Keys, with the value that each gets; none where it is removed.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut begin = 0;
        self.ops.iter().map(move |&(key_end, value_end)| {
            let key = &self.bytes[begin..key_end];
            begin = value_end.unwrap_or(key_end);
            (key, value_end.map(|end| &self.bytes[key_end..end]))
        })
    }
}

/// An open engine. Threads share it. Its changes go through [`write`](Self::write), or through
/// [`commit`](Self::commit) if it was opened for a workload whose commits make a root.
pub trait Engine: Send + Sync {
    /// A description of itself.
    fn about(&self) -> About;

    /// Writes entries whose keys are above all before, by the engine's best means for that.
    ///
    /// # Errors
    /// Those of the engine.
    fn load(&self, batch: &Batch) -> Result<()>;

    /// Ends the load: everything is on disk, and merges have ended.
    ///
    /// # Errors
    /// Those of the engine.
    fn settle(&self) -> Result<()>;

    /// Looks up keys by the engine's own call for many where it has one. `found` gets the position
    /// of each key and its value, in any order.
    ///
    /// # Errors
    /// Those of the engine, and of `found`.
    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()>;

    /// Commits changes, which then survive what [`Terms::durability`] says.
    ///
    /// # Errors
    /// Those of the engine; [`Error::Cannot`] where each commit makes a root.
    fn write(&self, _batch: &Batch) -> Result<()> {
        Err(Error::Cannot("each of its commits makes a root"))
    }

    /// Commits changes, which then survive what [`Terms::durability`] says. Returns the root after
    /// them.
    ///
    /// # Errors
    /// Those of the engine; [`Error::Cannot`] where entries have no root.
    fn commit(&self, _batch: &Batch) -> Result<Root> {
        Err(Error::Cannot("it keeps no root over its entries"))
    }

    /// The root over all entries.
    ///
    /// # Errors
    /// Those of the engine; [`Error::Cannot`] where entries have no root.
    fn root(&self) -> Result<Root> {
        Err(Error::Cannot("it keeps no root over its entries"))
    }

    /// Reads up to `limit` entries in the order of keys from `from` on; returns how many.
    ///
    /// # Errors
    /// Those of the engine, and of `each`; [`Error::Cannot`] where keys have no order.
    fn scan(
        &self,
        _from: &[u8],
        _limit: usize,
        _each: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<usize> {
        Err(Error::Cannot("it has no order of keys"))
    }

    /// Closes the engine in good order.
    ///
    /// # Errors
    /// Those of the engine.
    fn close(self: Box<Self>) -> Result<()>;
}

//! Options of a [`BtreeDatabase`](crate::BtreeDatabase), and errors of the engine.

use terrane_btree::{Config, PAGE_SIZE};
use terrane_kv::overlay::failure::{disk_error, locked};
use terrane_kv::{Durability, Error, Result};

pub(super) const NAME: &str = "btree";

/// Default memory, in bytes.
const MEMORY_BYTES_DEFAULT: usize = 256 << 20;

/// Most bytes of a commit: the limit of the engine.
const COMMIT_BYTES_MAX: usize = 1 << 30;

/// Options of a [`BtreeDatabase`](crate::BtreeDatabase). Each opening may change every option.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BtreeOptions {
    /// Durability of commits. `None` never syncs, `Buffered` syncs at checkpoints only.
    pub durability: Durability,
    /// Bytes of memory for cached pages and pending updates; default 256 MiB, at least 1 MiB. A
    /// commit takes its own size in addition.
    pub memory_bytes: usize,
    /// Part of `memory_bytes` for pending updates; default a third, at most half.
    pub buffer_bytes: Option<usize>,
    /// Bytes of a page: 4096, and nothing else.
    pub page_bytes: usize,
    /// Approximate bytes of the WAL; default 128 MiB.
    pub log_bytes_max: u64,
}

impl Default for BtreeOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Each,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            buffer_bytes: None,
            page_bytes: PAGE_SIZE,
            log_bytes_max: Config::variable().log_bytes_max,
        }
    }
}

impl BtreeOptions {
    terrane_io::setters! {
        durability: Durability,
        memory_bytes: usize,
        buffer_bytes: impl Into<Option<usize>>,
        page_bytes: usize,
        log_bytes_max: u64,
    }

    pub(super) fn config(&self) -> Result<Config> {
        if self.page_bytes != PAGE_SIZE {
            let option = format!("page_bytes {}", self.page_bytes);
            let why = "pages have 4096 bytes; leave it as it is".to_owned();
            return Err(Error::Unsupported { back_end: NAME, option, why });
        }
        let mut config = Config::variable().memory_bytes(self.memory_bytes);
        config.buffer_bytes = self.buffer_bytes;
        // A commit is one batch of the index, so the largest commit bounds the batch.
        Ok(config.log_bytes_max(self.log_bytes_max).batch_bytes_max(COMMIT_BYTES_MAX))
    }
}

/// An error of the engine, in terms of a database.
pub(super) fn error(call: &'static str, error: terrane_btree::Error) -> Error {
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
            let option = format!("{option} {value}");
            let why = allowed.to_owned();
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

/// The error for a row that this program never writes.
pub(super) fn broken(what: String) -> Error {
    Error::Corruption { back_end: NAME, what, source: None }
}

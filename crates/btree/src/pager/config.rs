//! Configuration of an index: sizes of entries and a memory budget, checked at every opening.

use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::error::{Error, Result};
use crate::page::leaf::Sizes;

/// Default memory of an index, in bytes.
const MEMORY_BYTES_DEFAULT: usize = 1 << 30;

/// Least memory of an index, in bytes.
pub const MEMORY_BYTES_MIN: usize = 1 << 20;

/// Default length of the WAL, in bytes: about a second to read at opening.
const LOG_BYTES_DEFAULT: u64 = 128 << 20;

/// Least length of the WAL, in bytes.
pub const LOG_BYTES_MIN: u64 = 64 << 10;

/// Most bytes of the updates of one call, which are one frame of the WAL.
const BATCH_BYTES_MAX: usize = 1 << 30;

/// Sizes of the entries of an index, and its limits.
///
/// The index records the sizes of keys and values, which cannot change. The limits can be chosen
/// anew at each opening.
#[doc(alias = "options")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Config {
    /// Bytes of every key; `None` for keys of up to [`KEY_BYTES_MAX`] bytes.
    pub key_bytes: Option<usize>,
    /// Bytes of every value; `None` for values of up to [`VALUE_BYTES_MAX`] bytes.
    pub value_bytes: Option<usize>,
    /// Memory budget for everything, in bytes: cached pages, pending updates, inner nodes not
    /// written yet, buffers. Default 1 GiB, at least [`MEMORY_BYTES_MIN`].
    pub memory_bytes: usize,
    /// Part of the budget for pending updates, in bytes. More of them means more updates per
    /// written leaf. `None` (the default) for a third; at most half.
    pub buffer_bytes: Option<usize>,
    /// Length of the WAL to be kept, in bytes: about as much as an opening after a crash may have
    /// to read. A shorter WAL means that leaves are written more often. Default 128 MiB, at least
    /// [`LOG_BYTES_MIN`].
    pub log_bytes_max: u64,
    /// Most bytes of the updates of one call. `None` (the default) for 8 MiB, or an eighth of the
    /// memory if that is less. Up to 1 GiB is allowed; a large batch comes on top of the memory
    /// budget until later calls have applied it.
    pub batch_bytes_max: Option<usize>,
}

impl Config {
    /// Configuration for keys and values of one size each.
    #[must_use]
    pub fn fixed(key_bytes: usize, value_bytes: usize) -> Self {
        Self { key_bytes: Some(key_bytes), value_bytes: Some(value_bytes), ..Self::variable() }
    }

    /// Configuration for keys and values of any size up to the limits.
    #[must_use]
    pub fn variable() -> Self {
        Self {
            key_bytes: None,
            value_bytes: None,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            buffer_bytes: None,
            log_bytes_max: LOG_BYTES_DEFAULT,
            batch_bytes_max: None,
        }
    }

    terrane_io::setters! {
        key_bytes: impl Into<Option<usize>>,
        value_bytes: impl Into<Option<usize>>,
        memory_bytes: usize,
        buffer_bytes: impl Into<Option<usize>>,
        log_bytes_max: u64,
        batch_bytes_max: impl Into<Option<usize>>,
    }

    /// Checks all options and derives the limits.
    pub(crate) fn check(&self) -> Result<Limits> {
        let refuse =
            |option, value: String, allowed| Err(Error::InvalidConfig { option, value, allowed });

        if self.key_bytes.is_some_and(|bytes| !(1..=KEY_BYTES_MAX).contains(&bytes)) {
            return refuse(
                "key_bytes",
                format!("{:?}", self.key_bytes),
                "1 to 512 bytes are allowed",
            );
        }

        if self.value_bytes.is_some_and(|bytes| bytes > VALUE_BYTES_MAX) {
            return refuse(
                "value_bytes",
                format!("{:?}", self.value_bytes),
                "up to 768 bytes are allowed",
            );
        }

        if self.memory_bytes < MEMORY_BYTES_MIN {
            return refuse("memory_bytes", self.memory_bytes.to_string(), "1 MiB is the least");
        }

        if self.log_bytes_max < LOG_BYTES_MIN {
            return refuse("log_bytes_max", self.log_bytes_max.to_string(), "64 KiB is the least");
        }

        if self.batch_bytes_max.is_some_and(|bytes| bytes > BATCH_BYTES_MAX) {
            let value = format!("{:?}", self.batch_bytes_max);
            return refuse("batch_bytes_max", value, "1 GiB is the most");
        }

        let buffer_bytes = self.buffer_bytes.unwrap_or(self.memory_bytes / 3);
        if buffer_bytes > self.memory_bytes / 2 {
            return refuse(
                "buffer_bytes",
                buffer_bytes.to_string(),
                "half of the memory is the most",
            );
        }

        let sizes = Sizes {
            key: self.key_bytes.map(|bytes| bytes as u16),
            value: self.value_bytes.map(|bytes| bytes as u16),
        };

        Ok(Limits {
            sizes,
            memory_bytes: self.memory_bytes,
            buffer_bytes,
            log_bytes: self.log_bytes_max,
            // Segments are the least that can be removed, so a log has eight of them or more.
            segment_bytes: (self.log_bytes_max / 8).min(16 << 20),
            unflushed_bytes: (self.memory_bytes / 32).min(1 << 20),
            batch_bytes: self.batch_bytes_max.unwrap_or((self.memory_bytes / 8).min(8 << 20)),
            fresh_nodes: (self.memory_bytes / 16 / 4096).max(8) as u64,
            other_bytes: (self.memory_bytes / 8).min(4 << 20),
        })
    }
}

impl Default for Config {
    /// Keys and values of any size: [`Config::variable`].
    fn default() -> Self {
        Self::variable()
    }
}

/// Limits that follow from a configuration.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) sizes: Sizes,
    pub(crate) memory_bytes: usize,
    /// Bytes of pending updates.
    pub(crate) buffer_bytes: usize,
    pub(crate) log_bytes: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes of unflushed updates; above that the writer flushes.
    pub(crate) unflushed_bytes: usize,
    /// Bytes of the updates of one call.
    pub(crate) batch_bytes: usize,
    /// Number of inner nodes that wait for a checkpoint; above that the writer makes one.
    pub(crate) fresh_nodes: u64,
    /// Bytes of the buffers of reads and writes.
    pub(crate) other_bytes: usize,
}

impl Sizes {
    /// Checks the sizes of an entry.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::ValueSize`].
    pub(crate) fn check(self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if self.key.map_or(key.len() > KEY_BYTES_MAX, |bytes| key.len() != usize::from(bytes)) {
            let allowed = says(self.key, KEY_BYTES_MAX);
            return Err(Error::KeySize { bytes: key.len(), allowed });
        }
        let Some(value) = value else { return Ok(()) };
        let is_wrong = |bytes: u16| value.len() != usize::from(bytes);
        if self.value.map_or(value.len() > VALUE_BYTES_MAX, is_wrong) {
            let allowed = says(self.value, VALUE_BYTES_MAX);
            return Err(Error::ValueSize { bytes: value.len(), allowed });
        }
        Ok(())
    }
}

/// The allowed length of a key or value, in words.
fn says(fixed: Option<u16>, most: usize) -> String {
    match fixed {
        Some(bytes) => format!("each has {bytes} in this index"),
        None => format!("at most {most} are allowed"),
    }
}

//! What an index holds and how much memory it may use; checked when an index is created or opened.

use crate::error::{Error, Result};

/// Longest key, in bytes: a leaf must hold at least two entries.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 768;

/// Memory of an index unless told otherwise, in bytes.
const MEMORY_BUDGET_DEFAULT: usize = 1 << 30;

/// Least memory of an index, in bytes.
pub const MEMORY_BUDGET_MIN: usize = 1 << 20;

/// What an index holds and how much memory it may use.
///
/// Sizes of keys and values are recorded in the index and cannot change; the rest can be chosen anew at each opening.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Bytes of every key; `None` for keys of up to [`KEY_BYTES_MAX`] bytes.
    pub key_bytes: Option<usize>,
    /// Bytes of every value; `None` for values of up to [`VALUE_BYTES_MAX`] bytes.
    pub value_bytes: Option<usize>,
    /// Memory for everything, in bytes: cached pages, updates not yet in leaves, the log's buffer, sorting. Default: 1 GiB.
    pub memory_bytes: usize,
}

impl Config {
    /// Keys and values of one size each.
    #[must_use]
    pub fn fixed(key_bytes: usize, value_bytes: usize) -> Self {
        Self { key_bytes: Some(key_bytes), value_bytes: Some(value_bytes), ..Self::variable() }
    }

    /// Keys and values of any size up to the limits.
    #[must_use]
    pub fn variable() -> Self {
        Self { key_bytes: None, value_bytes: None, memory_bytes: MEMORY_BUDGET_DEFAULT }
    }

    /// The same with another memory budget.
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }
}

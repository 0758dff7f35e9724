//! Families of traces, and the limits that errors and readers share.

use std::fmt;

/// Bytes of magic and version.
pub(super) const PREAMBLE_BYTES: usize = 12;

/// Version of the container; there is no other.
pub(super) const VERSION: i32 = 0;

/// Bytes of a row that is a block at most: a change of the protocol moves some hundred thousand
/// values in one block.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a row that is one operation at most.
const OPERATION_BYTES_MAX: u64 = 1 << 26;

/// Most directories that lie in each other in a raw tree; real ones have less than 20.
pub(super) const DEPTH_MAX: u32 = 64;

/// Program that a trace is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Benchmark of irmin.
    Irmin,
    /// Octez: blocks for replays.
    Replayable,
    /// Octez: events as they were recorded.
    Raw,
}

impl Family {
    /// Magic bytes that a trace of the family begins with.
    #[must_use]
    pub fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Irmin => b"IrmRepBT",
            Self::Replayable => b"TezosRep",
            Self::Raw => b"TezosRaw",
        }
    }

    /// Returns the family of a trace that begins with these bytes.
    #[must_use]
    pub fn of(start: &[u8]) -> Option<Self> {
        let all = [Self::Irmin, Self::Replayable, Self::Raw];
        all.into_iter().find(|family| start.starts_with(family.magic()))
    }

    /// Length of the longest row that a trace of the family may have.
    pub(super) fn row_bytes_max(self) -> u64 {
        match self {
            Self::Replayable => BLOCK_BYTES_MAX,
            Self::Irmin | Self::Raw => OPERATION_BYTES_MAX,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.magic()))
    }
}

//! Dialects of a trace of an index: which operations each has, and their tags.

use std::fmt;

/// Program that a trace is from, which decides the codes of its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Traces of the migration of cactus, and our own.
    Migration,
    /// Traces of the benchmark of mirage/index.
    Mirage,
    /// Recordings of cactus itself, keys and values of fixed sizes.
    Recorder,
    /// Recordings of cactus itself, keys and values as strings.
    RecorderStrings,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Migration, Self::Mirage, Self::Recorder, Self::RecorderStrings];

    /// The name that options and reports have.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Migration => "migration",
            Self::Mirage => "mirage",
            Self::Recorder => "recorder",
            Self::RecorderStrings => "recorder-strings",
        }
    }

    /// Operations in the order of their tags, from 0 on.
    pub(super) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Migration => &[Kind::Flush, Kind::Mem, Kind::Find, Kind::Add, Kind::Remove],
            Self::Mirage => &[
                Kind::Clear,
                Kind::Flush,
                Kind::Mem,
                Kind::Find,
                Kind::RoMem,
                Kind::RoFind,
                Kind::Add,
            ],
            Self::Recorder | Self::RecorderStrings => {
                &[Kind::Add, Kind::Find, Kind::Mem, Kind::Flush]
            }
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An operation without its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Flush,
    Clear,
    Mem,
    Find,
    RoMem,
    RoFind,
    Add,
    Remove,
}

//! What is wrong with stored bytes: the one error of every decoder of this crate, and what a check notes.

use std::path::PathBuf;

/// Where and how stored bytes break the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page}: {rule}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// The 4 KiB page of the file, counted from 0; 0 for a part that is not stored in pages.
    pub page: u64,
    /// The line of the format document that is broken.
    pub rule: &'static str,
    /// What the rule asks for.
    pub expected: u64,
    /// What the bytes say.
    pub found: u64,
}

impl Corrupt {
    /// A broken rule of a part that is not stored in pages, or whose page the caller knows.
    pub(crate) fn rule(rule: &'static str, expected: u64, found: u64) -> Self {
        Self { page: 0, rule, expected, found }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The place and the rule.
    pub what: Corrupt,
    /// The keys that cannot be relied on: from the first on, and below the second if there is one.
    pub keys: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

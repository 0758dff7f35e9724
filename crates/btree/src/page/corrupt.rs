//! Damage of stored bytes: the one error of every decoder of this crate, and the finding of a
//! check.

use std::path::PathBuf;

/// The place and the kind of the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[error("page {page}: {rule}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// Page of 4 KiB in the file, counted from 0; 0 for a part that is not stored in pages.
    pub page: u64,
    /// The rule of the format document that is broken.
    pub rule: &'static str,
    /// The value that the rule asks for.
    pub expected: u64,
    /// The value that the bytes have.
    pub found: u64,
}

impl Corrupt {
    /// Damage of a part that is not stored in pages, or whose page the caller knows.
    pub(crate) fn rule(rule: &'static str, expected: u64, found: u64) -> Self {
        Self { page: 0, rule, expected, found }
    }
}

/// A finding of a check, a scrub or a repair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Problem {
    /// The damaged file.
    pub path: PathBuf,
    /// The place and the rule.
    pub what: Corrupt,
    /// The keys that are affected: from the first on, and below the second if there is one.
    pub keys: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

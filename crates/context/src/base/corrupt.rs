//! Corrupt bytes: the one error of every decoder of this crate.

/// Violation of a rule of the format by stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// Rule of the format document that the bytes break.
    pub rule: &'static str,
    /// Value that the rule asks for.
    pub expected: u64,
    /// Value in the bytes.
    pub found: u64,
}

impl Corrupt {
    pub(crate) fn rule(rule: &'static str, expected: u64, found: u64) -> Self {
        Self { rule, expected, found }
    }

    /// Returns the violation of bytes that end inside an item.
    pub(crate) fn short(rule: &'static str) -> Self {
        Self { rule, expected: 1, found: 0 }
    }
}

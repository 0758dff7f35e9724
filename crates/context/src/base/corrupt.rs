//! What is wrong with stored bytes: the one error of every decoder of this crate.

/// How stored bytes break the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// The line of the format document that is broken.
    pub rule: &'static str,
    /// What the rule asks for.
    pub expected: u64,
    /// What the bytes say.
    pub found: u64,
}

impl Corrupt {
    pub(crate) fn rule(rule: &'static str, expected: u64, found: u64) -> Self {
        Self { rule, expected, found }
    }

    /// The bytes end inside of something.
    pub(crate) fn short(rule: &'static str) -> Self {
        Self { rule, expected: 1, found: 0 }
    }
}

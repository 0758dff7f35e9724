//! Kinds of errors: one word for programs, shared by the errors of all engines.

/// Reaction of a caller to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense, or is not allowed: ask otherwise.
    BadInput,
    /// There is no such store, table, snapshot, version or key.
    NotFound,
    /// Stored bytes are not as they were written, or are gone: verify, repair, restore from a copy.
    Corrupt,
    /// Another process, or another handle of this one, holds the store: wait, or end it.
    Locked,
    /// The disk, the quota or the reserve is used up: make room.
    NoSpace,
    /// The system does not allow it to this user.
    Permission,
    /// The store was opened, or can only be opened, for reading.
    ReadOnly,
    /// A format or a feature that this program or this system does not have.
    Unsupported,
    /// Anything else in the system, or in the state of this process, that is in the way.
    Environment,
}

impl ErrorKind {
    /// The kind as a word; the same in all versions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BadInput => "bad_input",
            Self::NotFound => "not_found",
            Self::Corrupt => "corrupt",
            Self::Locked => "locked",
            Self::NoSpace => "no_space",
            Self::Permission => "permission",
            Self::ReadOnly => "read_only",
            Self::Unsupported => "unsupported",
            Self::Environment => "environment",
        }
    }
}

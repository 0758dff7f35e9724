//! Kinds of errors: one word for programs, shared by the errors of all engines.

/// Reaction of a caller to an error.
///
/// Every error of every engine has a kind, so a program that reacts need not know the engine:
///
/// | kind | react |
/// |---|---|
/// | [`InvalidInput`](Self::InvalidInput), [`Unsupported`](Self::Unsupported), [`ReadOnly`](Self::ReadOnly) | ask otherwise |
/// | [`NotFound`](Self::NotFound), [`AlreadyExists`](Self::AlreadyExists) | create it, or open it |
/// | [`Conflict`](Self::Conflict), [`Locked`](Self::Locked) | read again and retry; wait |
/// | [`NoSpace`](Self::NoSpace), [`Permission`](Self::Permission), [`Io`](Self::Io) | mend the system and call again |
/// | [`Closed`](Self::Closed), [`Poisoned`](Self::Poisoned) | open the store anew |
/// | [`Corrupt`](Self::Corrupt) | verify, repair, restore from a copy |
/// | [`Interrupted`](Self::Interrupted) | call again if the work is still wanted |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense, or is not allowed: ask otherwise.
    #[cfg_attr(feature = "serde", serde(rename = "bad_input"))]
    InvalidInput,
    /// There is no such store, table, snapshot, version or key.
    NotFound,
    /// The name is taken, or the key is there.
    AlreadyExists,
    /// Stored bytes are not as they were written, or are gone: verify, repair, restore from a copy.
    Corrupt,
    /// Another process, or another handle of this one, holds the store: wait, or end it.
    Locked,
    /// Another change came first: read again and retry.
    Conflict,
    /// The disk, the quota or the reserve is used up: make room.
    NoSpace,
    /// The system does not allow it to this user.
    Permission,
    /// The store was opened, or can only be opened, for reading.
    ReadOnly,
    /// A format or a feature that this program or this system does not have.
    Unsupported,
    /// The store, or what the handle belongs to, was closed.
    Closed,
    /// An earlier fsync failed, or a commit panicked: close the store and open it anew.
    Poisoned,
    /// The caller, or the user, stopped the work.
    Interrupted,
    /// Any other failure of the system, of a server or of a stream.
    Io,
}

impl ErrorKind {
    /// The kind as a word; the same in all versions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidInput => "bad_input",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Corrupt => "corrupt",
            Self::Locked => "locked",
            Self::Conflict => "conflict",
            Self::NoSpace => "no_space",
            Self::Permission => "permission",
            Self::ReadOnly => "read_only",
            Self::Unsupported => "unsupported",
            Self::Closed => "closed",
            Self::Poisoned => "poisoned",
            Self::Interrupted => "interrupted",
            Self::Io => "io",
        }
    }
}

/// Gives an error type with a method `kind` its questions `is_corruption`, `is_not_found` and the
/// others.
#[doc(hidden)]
#[macro_export]
macro_rules! error_kind_questions {
    ($error:ty) => {
        impl $error {
            /// Whether stored bytes are damaged or gone.
            #[must_use]
            pub fn is_corruption(&self) -> bool {
                self.kind() == $crate::ErrorKind::Corrupt
            }

            /// Whether the requested store, table, snapshot, version, key or file does not exist.
            #[must_use]
            pub fn is_not_found(&self) -> bool {
                self.kind() == $crate::ErrorKind::NotFound
            }

            /// Whether the name is taken, or the key is there.
            #[must_use]
            pub fn is_already_exists(&self) -> bool {
                self.kind() == $crate::ErrorKind::AlreadyExists
            }

            /// Whether the disk, the quota or the reserve is used up. Deletions and dropping tables
            /// go on as far as there is room for them.
            #[must_use]
            pub fn is_no_space(&self) -> bool {
                self.kind() == $crate::ErrorKind::NoSpace
            }

            /// Whether another process or handle holds the store or a lock.
            #[must_use]
            pub fn is_locked(&self) -> bool {
                self.kind() == $crate::ErrorKind::Locked
            }

            /// Whether another change came first, so that the caller reads again and retries.
            #[must_use]
            pub fn is_conflict(&self) -> bool {
                self.kind() == $crate::ErrorKind::Conflict
            }

            /// Whether the store must be opened anew before it can be written.
            #[must_use]
            pub fn is_poisoned(&self) -> bool {
                self.kind() == $crate::ErrorKind::Poisoned
            }

            /// Whether the store or handle was closed.
            #[must_use]
            pub fn is_closed(&self) -> bool {
                self.kind() == $crate::ErrorKind::Closed
            }
        }
    };
}

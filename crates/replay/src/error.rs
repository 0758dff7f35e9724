//! Classes of errors by what a caller can do, from which exit codes follow.
//!
//! Invariant: the class of an error of an engine follows from its kind, so the meaning of an error
//! is stated once, beside the error.

use terrane::io::ErrorKind;
use terrane::kv;
use terrane::lsm::Error;
use terrane::mpt;
use terrane::radix;
use terrane::state_dir;
use terrane::{btree, context};

/// Reaction of a caller to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A check failed or stored bytes are damaged: the data are not what they should be.
    Check,
    /// The input or the request is at fault: correct it and call again.
    Input,
    /// Disk, permissions or another process: mend the environment and call again.
    Environment,
    /// The user asked to stop; the state is that of the last whole block.
    Interrupted,
}

impl Class {
    /// Returns the class of an error of an engine, by its kind. An error of the disk is never the
    /// fault of the request.
    #[must_use]
    pub fn of(kind: ErrorKind, is_of_disk: bool) -> Self {
        match kind {
            ErrorKind::Corrupt => Self::Check,
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::InvalidInput
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::Conflict
            | ErrorKind::ReadOnly
            | ErrorKind::Unsupported
                if !is_of_disk =>
            {
                Self::Input
            }
            _ => Self::Environment,
        }
    }
}

/// Returns the kind of the first error of an engine among an error and its causes; `None` if there
/// is none.
#[must_use]
pub fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let found = error
            .downcast_ref::<Error>()
            .map(Error::kind)
            .or_else(|| error.downcast_ref::<btree::Error>().map(btree::Error::kind))
            .or_else(|| error.downcast_ref::<context::Error>().map(context::Error::kind))
            .or_else(|| error.downcast_ref::<kv::Error>().map(kv::Error::kind))
            .or_else(|| error.downcast_ref::<radix::Error>().map(radix::Error::kind))
            .or_else(|| error.downcast_ref::<state_dir::Error>().map(state_dir::Error::kind))
            .or_else(|| error.downcast_ref::<mpt::Error>().map(mpt::Error::kind))
            .or_else(|| error.downcast_ref::<terrane::io::Error>().map(terrane::io::Error::kind));
        if found.is_some() {
            return found;
        }
        cause = error.source();
    }
    None
}

impl From<&Error> for Class {
    fn from(error: &Error) -> Self {
        Self::of(error.kind(), matches!(error, Error::Disk(_)))
    }
}

impl From<&mpt::Error> for Class {
    fn from(error: &mpt::Error) -> Self {
        match error {
            mpt::Error::Store(error) => Self::from(error),
            error => Self::of(error.kind(), false),
        }
    }
}

impl From<&mpt::TransferError> for Class {
    fn from(error: &mpt::TransferError) -> Self {
        use mpt::TransferError;
        match error {
            TransferError::State(error) => Self::from(error),
            TransferError::Io(_) => Self::Environment,
            error => Self::of(error.kind(), false),
        }
    }
}

impl From<&btree::Error> for Class {
    fn from(error: &btree::Error) -> Self {
        Self::of(error.kind(), matches!(error, btree::Error::Disk(_)))
    }
}

impl From<&context::Error> for Class {
    fn from(error: &context::Error) -> Self {
        use context::Error;
        Self::of(error.kind(), matches!(error, Error::Disk(_) | Error::Index { .. }))
    }
}

impl From<&context::ProofError> for Class {
    fn from(error: &context::ProofError) -> Self {
        use context::ProofError;
        match error {
            ProofError::RootMismatch { .. }
            | ProofError::BeforeMismatch { .. }
            | ProofError::AfterMismatch { .. }
            | ProofError::NotProvided { .. }
            | ProofError::Shape { .. } => Self::Check,
            ProofError::Tree(error) => Self::from(error),
            _ => Self::Input,
        }
    }
}

impl From<&kv::Error> for Class {
    fn from(error: &kv::Error) -> Self {
        use kv::Error;
        Self::of(error.kind(), matches!(error, Error::ReadOnly { .. } | Error::BackEnd { .. }))
    }
}

impl From<&radix::Error> for Class {
    fn from(error: &radix::Error) -> Self {
        use radix::Error;
        match error {
            Error::StoreFull(source)
            | Error::Busy(source)
            | Error::ReadOnly(source)
            | Error::Unsupported(source)
            | Error::BackEnd(source) => Self::from(source),
            error => Self::of(error.kind(), false),
        }
    }
}

impl Class {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check_failed",
            Self::Input => "bad_input",
            Self::Environment => "environment",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<&state_dir::Error> for Class {
    fn from(error: &state_dir::Error) -> Self {
        use state_dir::Error;
        match error {
            Error::Database(error) => Self::from(&**error),
            Error::Store(error) => Self::from(&**error),
            error => Self::of(error.kind(), matches!(error, Error::Disk(_) | Error::Io { .. })),
        }
    }
}

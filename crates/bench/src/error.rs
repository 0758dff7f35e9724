//! What a caller can do about an error: the classes that exit codes are made of.

use terrane::backends::backend;
use terrane::context::radix;
use terrane::{Error, btree, context};

/// How to react to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A check failed or stored bytes are damaged: the data are not what they should be.
    Check,
    /// The input or the request is at fault: correct it and call again.
    Input,
    /// Disk, permissions, another process: mend the environment and call again.
    Environment,
    /// The user asked to stop; the state is that of the last whole block.
    Interrupted,
}

impl From<&Error> for Class {
    fn from(error: &Error) -> Self {
        match error {
            Error::Corrupt { .. }
            | Error::FileMissing { .. }
            | Error::SnapshotCorrupted { .. }
            | Error::SessionDirCorrupted { .. }
            | Error::StoreCorrupted { .. }
            | Error::CanonicalDigestMismatch { .. }
            | Error::Disk(terrane::io::Error::WrongKind { .. }) => Self::Check,
            Error::NotTerrane { .. }
            | Error::UnknownVersion { .. }
            | Error::SessionDirDoesNotExist { .. }
            | Error::InvalidSnapshotName { .. }
            | Error::SnapshotExists { .. }
            | Error::SnapshotDoesNotExist { .. }
            | Error::SnapshotNotCompatible { .. }
            | Error::SnapshotExportDirExists { .. }
            | Error::SnapshotImportDirDoesNotExist { .. }
            | Error::ResolveNotCompatible { .. }
            | Error::InvalidTableName { .. }
            | Error::TableExists { .. }
            | Error::TableDoesNotExist { .. }
            | Error::VersionExists { .. }
            | Error::VersionDoesNotExist { .. }
            | Error::NotABackup { .. }
            | Error::ReadOnly { .. }
            | Error::InvalidConfig { .. }
            | Error::CommitTooLarge { .. }
            | Error::LabelTooLarge { .. }
            | Error::KeyTooLarge { .. }
            | Error::ValueTooLarge { .. }
            | Error::UpsertTooLarge { .. }
            | Error::BlobTooLarge { .. }
            | Error::CanonicalMalformed { .. } => Self::Input,
            _ => Self::Environment,
        }
    }
}

impl From<&btree::Error> for Class {
    fn from(error: &btree::Error) -> Self {
        use btree::Error;
        match error {
            Error::Corrupt { .. }
            | Error::TreeMissing { .. }
            | Error::Disk(
                terrane::io::Error::ShortRead { .. } | terrane::io::Error::WrongKind { .. },
            ) => Self::Check,
            Error::AlreadyExists { .. }
            | Error::DirectoryInUse { .. }
            | Error::NotEmpty { .. }
            | Error::NotFound { .. }
            | Error::NotAnIndex { .. }
            | Error::UnsupportedVersion { .. }
            | Error::ConfigMismatch { .. }
            | Error::ReadOnly
            | Error::KeySize { .. }
            | Error::ValueSize { .. }
            | Error::BatchTooLarge { .. }
            | Error::NotSorted { .. }
            | Error::DuplicateKey { .. }
            | Error::TruncatedInput { .. }
            | Error::RecordTooLarge { .. }
            | Error::InvalidConfig { .. } => Self::Input,
            _ => Self::Environment,
        }
    }
}

impl From<&context::Error> for Class {
    fn from(error: &context::Error) -> Self {
        use context::Error;
        match error {
            Error::Corrupt { .. }
            | Error::ForeignChunk { .. }
            | Error::LostControl { .. }
            | Error::WouldLose { .. }
            | Error::DamagedStream { .. }
            | Error::WrongHash { .. }
            | Error::RootMismatch { .. }
            | Error::NotProvided { .. }
            | Error::Disk(
                terrane::io::Error::ShortRead { .. } | terrane::io::Error::WrongKind { .. },
            ) => Self::Check,
            Error::Disk(_)
            | Error::Stream { .. }
            | Error::Index { .. }
            | Error::Poisoned { .. }
            | Error::Locked { .. }
            | Error::VolumeMissing { .. }
            | Error::GcRunning => Self::Environment,
            Error::GcCancelled => Self::Interrupted,
            _ => Self::Input,
        }
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

impl From<&backend::Error> for Class {
    fn from(error: &backend::Error) -> Self {
        use backend::Error;
        match error {
            Error::Corruption { .. } => Self::Check,
            Error::DuplicateEntry { .. }
            | Error::NotFound { .. }
            | Error::UnknownIndex { .. }
            | Error::Size { .. }
            | Error::Unsupported { .. } => Self::Input,
            _ => Self::Environment,
        }
    }
}

impl From<&radix::Error> for Class {
    fn from(error: &radix::Error) -> Self {
        use radix::Error;
        match error {
            Error::Corruption { .. } | Error::CorruptRow { .. } => Self::Check,
            Error::StoreFull(source)
            | Error::Busy(source)
            | Error::ReadOnly(source)
            | Error::Unsupported(source)
            | Error::BackEnd(source) => Self::from(source),
            _ => Self::Input,
        }
    }
}

impl Class {
    /// The name used in reports.
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

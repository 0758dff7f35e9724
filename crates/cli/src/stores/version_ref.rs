//! A retained version as an argument: its number or its name.

use std::path::Path;

use terrane::lsm::{SnapshotName, StoreReader, Version, VersionInfo};

use crate::stores::open::open_to_read;
use crate::ui::exit::Failure;

/// Number or name of a version.
#[derive(Debug, Clone)]
pub(crate) enum VersionRef {
    Number(u64),
    Name(SnapshotName),
}

/// Parses the name of a snapshot.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn snapshot_name(text: &str) -> Result<SnapshotName, String> {
    SnapshotName::new(text)
        .map_err(|_| "1 to 64 characters of a-z, 0-9, `_`, `-`, no device name".to_owned())
}

/// Parses the name of a version.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn name(text: &str) -> Result<SnapshotName, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("digits only would be a number".to_owned());
    }
    SnapshotName::new(text).map_err(|error| error.to_string())
}

/// Parses the number or the name of a version; digits only are a number.
pub(crate) fn which(text: &str) -> Result<VersionRef, String> {
    match text.parse() {
        Ok(number) => Ok(VersionRef::Number(number)),
        Err(_) => name(text).map(VersionRef::Name),
    }
}

impl VersionRef {
    /// Opens the version.
    pub(crate) fn open(&self, reader: &StoreReader) -> Result<Version, Failure> {
        Ok(match self {
            Self::Number(number) => reader.version(*number)?,
            Self::Name(name) => reader.version_named(name)?,
        })
    }

    /// Returns the number of the version. Refuses a missing version before the store is opened for
    /// writing.
    pub(crate) fn number(&self, dir: &Path) -> Result<u64, Failure> {
        let versions = open_to_read(dir)?.versions()?;
        let is_it = |version: &&VersionInfo| match self {
            Self::Number(number) => version.number == *number,
            Self::Name(name) => version.name.as_ref() == Some(name),
        };

        let missing = || match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => format!("`{name}`"),
        };

        match versions.iter().find(is_it) {
            Some(version) => Ok(version.number),
            None => Err(terrane::lsm::Error::VersionDoesNotExist { version: missing() }.into()),
        }
    }
}

//! Errors that back-ends share: of the disk, of locks, of a closed database.

use std::path::Path;

use terrane_io::{Disk, EntryKind};

use crate::database::{Error, Result};

/// An error of the disk, in terms of a back-end.
pub fn disk_error(back_end: &'static str, call: &'static str, error: terrane_io::Error) -> Error {
    match error {
        error if error.is_no_space() => {
            let limit = "the disk or the quota is full; make room and try again".to_owned();
            Error::StoreFull { back_end, limit, source: Some(error.into()) }
        }
        terrane_io::Error::Locked { path, pid } => locked(back_end, &path, pid),
        error @ (terrane_io::Error::WrongKind { .. } | terrane_io::Error::ShortRead { .. }) => {
            Error::Corruption { back_end, what: error.to_string(), source: Some(error.into()) }
        }
        error if call == "open" && error.is_not_found() => Error::Corruption {
            back_end,
            what: format!(
                "a part of the database is missing; put it back, restore a copy, or try `terrane verify --repair` on the \
                 directory: {error}"
            ),
            source: Some(error.into()),
        },
        error => Error::BackEnd { back_end, call, source: error.into() },
    }
}

/// Refuses anything but a directory in the place of a database. Returns the name of the call that
/// opens the database: "open", or "create" if there is no directory.
///
/// # Errors
/// [`Error::Unsupported`], those of the system.
pub fn check_dir(back_end: &'static str, disk: &dyn Disk, dir: &Path) -> Result<&'static str> {
    let kind = disk.kind(dir).map_err(|error| disk_error(back_end, "stat", error))?;
    match kind {
        None => Ok("create"),
        Some(EntryKind::Directory) => Ok("open"),
        Some(found) => {
            let why =
                format!("{} is a {}; this back-end takes a directory", dir.display(), found.name());
            Err(Error::Unsupported { back_end, option: "path".to_owned(), why })
        }
    }
}

/// The error for a store that another process has open.
pub fn locked(back_end: &'static str, path: &Path, pid: Option<u32>) -> Error {
    let by = pid.map_or(String::new(), |pid| format!(" by process {pid}"));
    Error::Locked { back_end, what: format!("{} is in use{by}", path.display()) }
}

/// The error of a call after the database was closed.
pub fn closed(back_end: &'static str, call: &'static str) -> Error {
    Error::BackEnd { back_end, call, source: "the database is closed".into() }
}

//! Errors of SQLite and of the system, in terms of a database.

use rusqlite::{ErrorCode, ffi};
use terrane_kv::{Error, Source};

pub(super) const NAME: &str = "sqlite";

pub(super) fn back_end_error(call: &'static str, source: impl Into<Source>) -> Error {
    Error::BackEnd { back_end: NAME, call, source: source.into() }
}

/// An error of SQLite, in terms of a database, by its code.
pub(super) fn error_of(call: &'static str, error: rusqlite::Error) -> Error {
    let corruption = |what: &str, error: rusqlite::Error| Error::Corruption {
        back_end: NAME,
        what: what.into(),
        source: Some(error.into()),
    };

    match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => Error::StoreFull {
                back_end: NAME,
                limit: "the disk, or the pages that the file may have".into(),
                source: Some(error.into()),
            },
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed => Error::Busy {
                back_end: NAME,
                what: "another connection holds a lock of the file".into(),
                source: Some(error.into()),
            },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                corruption("the file breaks SQLite's rules of pages", error)
            }
            ErrorCode::ReadOnly => Error::ReadOnly { back_end: NAME },
            _ => match failure.extended_code {
                ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC => {
                    Error::Poisoned { back_end: NAME }
                }
                ffi::SQLITE_IOERR_SHORT_READ
                | ffi::SQLITE_IOERR_CORRUPTFS
                | ffi::SQLITE_IOERR_DATA => corruption("the file ends within a page", error),
                _ => back_end_error(call, error),
            },
        },
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
            corruption("a table has a column that is not of bytes", error)
        }
        _ => back_end_error(call, error),
    }
}

pub(super) fn closed(call: &'static str) -> Error {
    back_end_error(call, "the database is closed")
}

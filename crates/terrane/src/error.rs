//! One error for programs that use several engines.

use crate::kv;
use crate::state_dir;
use terrane_io::ErrorKind;

/// The result of a program over several engines.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of any engine, into which `?` converts the error of each.
///
/// ```
/// use terrane::io::ErrorKind;
/// use terrane::lsm::{Store, StoreOptions, TableName};
///
/// fn balance(dir: &std::path::Path, account: &[u8]) -> terrane::Result<Option<Vec<u8>>> {
///     let store = Store::open_dir(dir, &StoreOptions::default())?; // lsm::Error
///     let database = terrane::kv::open("memory:", &[])?; // kv::OpenError
///     let reader = database.reader()?; // kv::Error
///     let found = reader.get(terrane::kv::Table::Main, account)?;
///     let stored = store.table(&TableName::default())?.get(account)?;
///     Ok(found.or(stored.value().map(<[u8]>::to_vec)))
/// }
///
/// let error = balance(std::path::Path::new("/no/such/store"), b"alice").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert!(error.is_not_found());
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a session, a store or a table.
    #[error(transparent)]
    Lsm(#[from] terrane_lsm::Error),
    /// An error of a B+tree index.
    #[error(transparent)]
    Btree(#[from] terrane_btree::Error),
    /// An error of a context store.
    #[error(transparent)]
    Context(#[from] terrane_context::Error),
    /// An error of a radix state.
    #[error(transparent)]
    Radix(#[from] terrane_radix::Error),
    /// An error of an Ethereum state.
    #[error(transparent)]
    Mpt(#[from] terrane_mpt::Error),
    /// An error of a key-value database.
    #[error(transparent)]
    Kv(#[from] terrane_kv::Error),
    /// A key-value database cannot be opened by its URL.
    #[error(transparent)]
    OpenKv(#[from] kv::OpenError),
    /// A radix state cannot be opened by its directory.
    #[error(transparent)]
    StateDir(#[from] state_dir::Error),
    /// A call on the disk failed.
    #[error(transparent)]
    Disk(#[from] terrane_io::Error),
}

impl Error {
    /// Reaction of a caller to the error, whichever engine it came from.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Lsm(error) => error.kind(),
            Self::Btree(error) => error.kind(),
            Self::Context(error) => error.kind(),
            Self::Radix(error) => error.kind(),
            Self::Mpt(error) => error.kind(),
            Self::Kv(error) => error.kind(),
            Self::OpenKv(error) => error.kind(),
            Self::StateDir(error) => error.kind(),
            Self::Disk(error) => error.kind(),
        }
    }
}

terrane_io::error_kind_questions!(Error);

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// The same answer of the system has the same kind in every family, and its text and its cause
    /// are reached through all of them.
    #[test]
    fn the_kind_and_the_cause_of_an_error_pass_through_every_family() {
        for (errno, kind) in [
            (2, ErrorKind::NotFound),
            (5, ErrorKind::Io),
            (13, ErrorKind::Permission),
            (17, ErrorKind::AlreadyExists),
            (28, ErrorKind::NoSpace),
            (30, ErrorKind::ReadOnly),
        ] {
            let disk = || {
                let source = std::io::Error::from_raw_os_error(errno);
                terrane_io::Error::io("open", Path::new("/s/file"), source)
            };
            let back_end = || terrane_kv::Error::BackEnd {
                back_end: "lsm",
                call: "get",
                source: Box::new(disk()),
            };

            let families: [Error; 9] = [
                terrane_lsm::Error::from(disk()).into(),
                terrane_btree::Error::from(disk()).into(),
                terrane_context::Error::from(disk()).into(),
                terrane_radix::Error::from(back_end()).into(),
                terrane_mpt::Error::from(terrane_lsm::Error::from(disk())).into(),
                back_end().into(),
                kv::OpenError::from(back_end()).into(),
                state_dir::Error::Disk(Box::new(disk())).into(),
                disk().into(),
            ];
            for error in families {
                assert_eq!(error.kind(), kind, "{error:?}");
                assert_eq!(error.is_no_space(), kind == ErrorKind::NoSpace);
                assert_eq!(error.is_not_found(), kind == ErrorKind::NotFound);
                assert_eq!(error.is_already_exists(), kind == ErrorKind::AlreadyExists);
                assert!(!error.is_corruption() && !error.is_conflict() && !error.is_locked());

                let mut cause = error.source();
                while let Some(next) = cause.and_then(|cause| cause.source()) {
                    cause = Some(next);
                }
                let system = cause.and_then(|cause| cause.downcast_ref::<Arc<std::io::Error>>());
                assert_eq!(system.and_then(|error| error.raw_os_error()), Some(errno), "{error:?}");
            }
        }
    }
}

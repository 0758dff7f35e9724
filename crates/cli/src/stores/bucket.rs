//! Addresses of buckets in the place of directories: `s3://`, `gs://`, `az://`, `file://`.
//!
//! `ADDRESS#COMMIT` names a commit of the store in the bucket. A program that is built without the
//! feature `object-store` recognises addresses and refuses them.

use std::path::Path;

#[cfg(not(feature = "object-store"))]
use terrane::lsm::StoreReader;

use crate::ui::exit::Failure;

/// Schemes of addresses.
const SCHEMES: [&str; 4] = ["s3://", "gs://", "az://", "file://"];

/// Returns the address that stands in the place of a path.
pub(crate) fn address(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}

/// Parts of `ADDRESS#COMMIT`.
///
/// # Errors
/// [`Failure`] if the commit is no number.
#[cfg(feature = "object-store")]
pub(crate) fn with_commit(address: &str) -> Result<(&str, Option<u64>), Failure> {
    let Some((address, commit)) = address.split_once('#') else { return Ok((address, None)) };
    match commit.parse() {
        Ok(commit) => Ok((address, Some(commit))),
        Err(_) => Err(Failure::usage(format!("`{commit}` behind `#` is no number of a commit"))),
    }
}

/// Opens the store in a bucket for reading, with a memory budget.
///
/// # Errors
/// [`Failure`].
#[cfg(not(feature = "object-store"))]
pub(crate) fn open_reader(
    _address: &str,
    _memory_budget: Option<u64>,
) -> Result<StoreReader, Failure> {
    Err(Failure::not_built("object-store"))
}

#[cfg(feature = "object-store")]
pub(crate) use with_object_store::{is_passing, open, open_reader};

#[cfg(feature = "object-store")]
mod with_object_store {
    use terrane::lsm::{ReaderOptions, StoreReader};
    use terrane_object::{Bucket, CACHE_BYTES_DEFAULT};

    use super::with_commit;
    use crate::ui::args;
    use crate::ui::exit::Failure;

    /// Environment variable with the size of the cache of a store in a bucket.
    const CACHE_VARIABLE: &str = "TERRANE_BUCKET_CACHE";

    /// Opens a bucket.
    ///
    /// # Errors
    /// [`Failure`], also if the address names a commit.
    pub(crate) fn open(address: &str) -> Result<Bucket, Failure> {
        Ok(Bucket::open(address)?)
    }

    /// Opens the store in a bucket for reading, with a memory budget.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn open_reader(
        address: &str,
        memory_budget: Option<u64>,
    ) -> Result<StoreReader, Failure> {
        let (address, commit) = with_commit(address)?;
        let cache_bytes = match std::env::var(CACHE_VARIABLE) {
            Ok(size) => args::size(&size)
                .map_err(|reason| Failure::usage(format!("{CACHE_VARIABLE}: {reason}")))?,
            Err(_) => CACHE_BYTES_DEFAULT,
        };
        let disk = open(address)?.open_disk(commit, cache_bytes)?;
        let dir = disk.dir().to_owned();
        let options = ReaderOptions::default().memory_budget(memory_budget);
        Ok(StoreReader::open(disk, &dir, &options)?)
    }

    /// Whether a later attempt may succeed without anybody's doing.
    pub(crate) fn is_passing(error: &terrane_object::Error) -> bool {
        use terrane_object::Error;
        matches!(
            error,
            Error::Request { .. }
                | Error::StaleList { .. }
                | Error::Contention { .. }
                | Error::UploadRevoked { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        assert_eq!(address(Path::new("s3://ledger/main")), Some("s3://ledger/main"));
        for path in ["/data/ledger", "s3:/ledger", "ledger", "ftp:/ledger"] {
            assert_eq!(address(Path::new(path)), None, "{path}");
        }
    }

    #[cfg(feature = "object-store")]
    #[test]
    fn a_commit_stands_behind_the_address() {
        assert_eq!(with_commit("s3://a/b#12").unwrap(), ("s3://a/b", Some(12)));
        assert!(with_commit("s3://a/b#last").is_err());
    }
}

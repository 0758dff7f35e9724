//! Addresses of buckets: `s3://`, `gs://`, `az://` and `file://`, with credentials from the
//! environment.
//!
//! | scheme | service | environment |
//! |---|---|---|
//! | `s3://BUCKET/PREFIX` | S3 and what speaks its protocol | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`; else the instance's role |
//! | `gs://BUCKET/PREFIX` | Google Cloud Storage | `GOOGLE_SERVICE_ACCOUNT` or `GOOGLE_APPLICATION_CREDENTIALS` (a file); else the instance's account |
//! | `az://CONTAINER/PREFIX` | Azure Blob Storage | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY` or a token |
//! | `file:///DIR` | a directory, with the layout of a bucket | none |
//!
//! An address holds no credentials: it stands in reports and shell histories.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use crate::error::{Error, Result};

/// Schemes of addresses.
const SCHEMES: [&str; 4] = ["s3://", "gs://", "az://", "file://"];

/// Whether a text is meant as an address of a bucket: it begins with one of the schemes.
///
/// ```
/// assert!(terrane_object::is_address("s3://ledger/main"));
/// assert!(!terrane_object::is_address("/data/ledger"));
/// ```
#[must_use]
pub fn is_address(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// A bucket and a prefix in it.
pub(crate) struct Resolved {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
}

/// Resolves an address; makes the directory of a `file://` address if `creates`.
///
/// # Errors
/// [`Error::Address`].
pub(crate) fn resolve(address: &str, creates: bool) -> Result<Resolved> {
    let refused = |reason: String| Error::Address { address: address.to_owned(), reason };
    let url = Url::parse(address).map_err(|error| refused(error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it holds credentials, which come from the environment".to_owned()));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("it has a query or a fragment".to_owned()));
    }

    let name = url.host_str().unwrap_or_default().to_owned();
    if url.scheme() == "file" {
        let dir: PathBuf =
            url.to_file_path().map_err(|()| refused("the path is not absolute".to_owned()))?;
        if creates {
            std::fs::create_dir_all(&dir).map_err(|error| refused(error.to_string()))?;
        }
        let store = LocalFileSystem::new_with_prefix(&dir)
            .map_err(|error| refused(error.to_string()))?
            .with_fsync(true);
        return Ok(Resolved { store: Arc::new(store), prefix: Path::default() });
    }

    if name.is_empty() {
        return Err(refused("the name of the bucket is missing".to_owned()));
    }
    let prefix = Path::from_url_path(url.path()).map_err(|error| refused(error.to_string()))?;
    let refused_by = |error: object_store::Error| refused(error.to_string());

    // The provider of another library of this process is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(name);
            Arc::new(builder.build().map_err(refused_by)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(name);
            Arc::new(builder.build().map_err(refused_by)?)
        }
        "az" => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(name);
            Arc::new(builder.build().map_err(refused_by)?)
        }
        scheme => return Err(refused(format!("unknown scheme {scheme}"))),
    };
    Ok(Resolved { store, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_bucket_or_with_secrets_are_refused() {
        for address in ["s3://", "s3:///x", "s3://key:secret@b/x", "ftp://b/x", "s3://b/x?y=1", "x"]
        {
            assert!(matches!(resolve(address, false), Err(Error::Address { .. })), "{address}");
        }
    }
}

//! TLS: whose certificates are trusted, and the client's own.
//!
//! Invariant: with TLS a node has proved that it is the address it is reached at, or there is no
//! connection. No option turns that off.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use terrane_kv::{Error, Result};

use crate::error::unsupported;
use crate::options::Tls;

/// The configuration of connections.
///
/// # Errors
/// [`Error::Unsupported`] with the file that cannot be used.
pub(crate) fn config(tls: &Tls) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match &tls.ca_file {
        Some(path) => {
            for certificate in certificates("the file of authorities", path)? {
                let added = roots.add(certificate);
                added.map_err(|error| refused("the file of authorities", path, &error))?;
            }
        }
        None => {
            // A certificate of the system that cannot be read is one authority less.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        let why = "no authority is known: name a file in TERRANE_CASSANDRA_CA_FILE";
        return Err(unsupported("TLS", why));
    }

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unsupported("TLS", error.to_string()))?
        .with_root_certificates(roots);

    let config = match (&tls.cert_file, &tls.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let chain = certificates("the file of the certificate", cert)?;
            let own = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| refused("the file of the key", key, &error))?;
            let config = builder.with_client_auth_cert(chain, own);
            config.map_err(|error| refused("the file of the key", key, &error))?
        }
        _ => {
            let why = "a certificate of this client needs its key, and the reverse";
            return Err(unsupported("TLS", why));
        }
    };

    Ok(Arc::new(config))
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| refused(what, path, &error))?;
    if certificates.is_empty() {
        return Err(refused(what, path, &"it has no certificate in PEM form"));
    }
    Ok(certificates)
}

fn refused(what: &str, path: &Path, why: &dyn std::fmt::Display) -> Error {
    unsupported(format!("{what} {}", path.display()), why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.pem");
        std::fs::write(&path, "no certificate").unwrap();
        for ca_file in [path, dir.path().join("absent.pem")] {
            let shown = ca_file.display().to_string();
            let error = config(&Tls { ca_file: Some(ca_file), ..Tls::default() }).unwrap_err();
            assert!(error.to_string().contains(&shown), "{error}");
        }
    }
}

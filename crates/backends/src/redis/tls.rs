//! TLS: which URLs ask for it, and whose certificates are trusted.
//!
//! Invariant: a connection to a `rediss://` URL is encrypted, and its server has proved that it is
//! the host of the URL, or there is no connection. No URL and no option turns that off, and no
//! message here repeats a URL, which may have a password.

use ::redis::parse_redis_url;
use terrane_kv::Result;

use super::error::unsupported;

#[cfg(feature = "redis-tls")]
pub(crate) use self::built::certificates;

/// Whether a URL asks for TLS.
pub(crate) fn is_asked(url: &str) -> bool {
    parse_redis_url(url).is_some_and(|url| matches!(url.scheme(), "rediss" | "valkeys"))
}

/// Refuses a URL that asks for TLS where there is none, or for TLS without its promise.
pub(crate) fn check(url: &str) -> Result<()> {
    if !is_asked(url) {
        return Ok(());
    }

    if cfg!(not(feature = "redis-tls")) {
        let why = "this build has no TLS, which rediss:// asks for: build it with the feature `redis-tls`";
        return Err(unsupported("url", why));
    }

    // The client takes `#insecure` for not checking the certificate.
    if parse_redis_url(url).is_some_and(|url| url.fragment().is_some()) {
        let why = "rediss:// takes no fragment: a server whose certificate is not checked is nobody. \
                   Leave out what begins with #, and name the file of its authority";
        return Err(unsupported("url", why));
    }

    Ok(())
}

/// The part that needs the libraries of TLS.
#[cfg(feature = "redis-tls")]
mod built {
    use std::fs::File;
    use std::io::{self, Read as _};
    use std::path::Path;

    use ::redis::TlsCertificates;
    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use terrane_kv::{Error, Result};

    use crate::redis::error::{NAME, unsupported};

    /// Bytes of a file of certificates at most; those of all public authorities have some 250,000.
    const CA_FILE_BYTES_MAX: u64 = 4 << 20;

    /// Whom the client trusts: nothing where no URL asks for TLS, and no root where the system's
    /// are to do.
    ///
    /// Sets the process's cryptography for TLS to that of `ring`, unless the process has chosen
    /// another one.
    pub(crate) fn certificates(
        urls: &[String],
        ca_file: Option<&Path>,
    ) -> Result<Option<TlsCertificates>> {
        if !urls.iter().any(|url| super::is_asked(url)) {
            return Ok(None);
        }
        // Fails where there is one already, which does as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let root_cert = ca_file.map(read).transpose()?;
        Ok(Some(TlsCertificates { client_tls: None, root_cert }))
    }

    /// Reads a file of certificates. The client would take a file without any for one that trusts
    /// nobody.
    fn read(path: &Path) -> Result<Vec<u8>> {
        let refused =
            |why: String| unsupported(format!("the file of authorities {}", path.display()), why);
        // The limit bounds the memory that a wrong file can take.
        let mut pem = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(CA_FILE_BYTES_MAX + 1).read_to_end(&mut pem));
        read.map_err(|error| cannot_read(path, &error))?;

        if pem.len() as u64 > CA_FILE_BYTES_MAX {
            return Err(refused(format!("has more than {CA_FILE_BYTES_MAX} bytes")));
        }

        // Each certificate is tried here, so that the error names the file.
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate =
                certificate.map_err(|error| refused(format!("is not in PEM form: {error}")))?;
            roots.add(certificate).map_err(|error| {
                refused(format!("has a certificate that cannot be trusted: {error}"))
            })?;
        }

        if roots.is_empty() {
            return Err(refused("has no certificate in PEM form".to_owned()));
        }

        Ok(pem)
    }

    fn cannot_read(path: &Path, error: &io::Error) -> Error {
        let why = format!("the file of authorities {} cannot be read: {error}", path.display());
        let source = io::Error::new(error.kind(), why).into();
        Error::BackEnd { back_end: NAME, call: "opening", source }
    }
}

#[cfg(test)]
mod tests {
    use terrane_kv::Error;

    use super::*;
    use crate::redis::options::Options;

    fn refusal(options: &Options) -> String {
        let error = options.check().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("secret-word"), "{shown}");
        shown
    }

    #[test]
    fn both_names_of_the_scheme_ask_for_tls() {
        for (url, asks) in [
            ("rediss://h", true),
            ("valkeys://h", true),
            ("REDISS://:p@h:1/2", true),
            ("redis://h", false),
            ("redis://rediss", false),
            ("redis+unix:///rediss", false),
            ("no URL", false),
        ] {
            assert_eq!(is_asked(url), asks, "{url}");
        }
    }

    #[cfg(not(feature = "redis-tls"))]
    #[test]
    fn a_build_without_tls_names_the_feature() {
        for url in
            ["rediss://:secret-word@h:1/", "valkeys://:secret-word@h", "rediss://secret-word@h"]
        {
            for options in [Options::server(url), Options::cluster(["redis://h", url])] {
                let shown = refusal(&options);
                assert!(shown.contains("redis-tls"), "{shown}");
            }
        }
    }

    #[cfg(feature = "redis-tls")]
    #[test]
    fn no_url_turns_the_check_of_certificates_off() {
        for fragment in ["insecure", "", "else"] {
            refusal(&Options::server(format!("rediss://:secret-word@h/#{fragment}")));
        }
        Options::server("rediss://:secret-word@h/1").check().unwrap();
    }

    #[test]
    fn authorities_are_refused_where_nothing_is_encrypted() {
        let file = Some("ca.pem".into());
        for urls in [vec!["redis://:secret-word@h"], vec!["redis+unix:///s?pass=secret-word"]] {
            refusal(&Options::cluster(urls).ca_file(file.clone()));
        }
    }
}

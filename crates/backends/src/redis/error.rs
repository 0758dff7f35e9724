//! Errors of a server or connection, in terms of a database.
//!
//! The mapping uses the kind of an error and its code, the first word of a server's error reply,
//! and no other text.

use ::redis::{ErrorKind, RedisError};
use terrane_kv::Error;

/// The name of the back-end.
pub(crate) const NAME: &str = "redis";

/// Errors that the back-end finds itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The database was closed.
    #[error("the database is closed; open it anew")]
    Closed,
    /// The server fell behind what it had confirmed.
    #[error(
        "the server is at commit {found} and had confirmed commit {known}: a restart or failover lost commits; \
         open the database anew to go on from what is left"
    )]
    CommitsLost {
        /// The last commit that was confirmed.
        known: u64,
        /// The last commit that the server has.
        found: u64,
    },
    /// A commit was refused because the fence is not where this database put it.
    #[error("the server did not carry the commit out: it came with an outdated fence")]
    Fenced,
    /// Staged changes are gone.
    #[error(
        "the server lost changes that were staged for a commit, to their expiry or to eviction; try again"
    )]
    Unstaged,
    /// Nothing is stored under the prefix.
    #[error("no store under the prefix {prefix:?}; open it for writing once to make it")]
    NoStore {
        /// The prefix.
        prefix: String,
    },
    /// A reply of another form than the command or script gives.
    #[error("{call} was answered with something else than its reply; is this Redis 7 or later?")]
    Reply {
        /// The command or script.
        call: &'static str,
    },
}

/// An error that the back-end found itself.
pub(crate) fn store_error(call: &'static str, source: StoreError) -> Error {
    Error::BackEnd { back_end: NAME, call, source: source.into() }
}

/// A reply of an unexpected form.
pub(crate) fn bad_reply(call: &'static str) -> Error {
    store_error(call, StoreError::Reply { call })
}

/// Stored data that breaks a rule of the layout.
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::Corruption { back_end: NAME, what: what.into(), source: None }
}

/// An option that cannot be honoured.
pub(crate) fn unsupported(option: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Unsupported { back_end: NAME, option: option.into(), why: why.into() }
}

/// Another process has the store.
pub(crate) fn locked(what: impl Into<String>) -> Error {
    Error::Locked { back_end: NAME, what: what.into() }
}

/// An error of a server or connection, in terms of a database.
pub(crate) fn error_of(call: &'static str, error: RedisError) -> Error {
    let busy = |what: &str, source: RedisError| Error::Busy {
        back_end: NAME,
        what: what.to_owned(),
        source: Some(source.into()),
    };

    // The code at the front of a reply is stable; its text is not.
    match error.code() {
        Some("OOM") => Error::StoreFull {
            back_end: NAME,
            limit: "the server's memory has reached its maxmemory".to_owned(),
            source: Some(error.into()),
        },
        Some("LOADING") => busy("the server is loading its data", error),
        Some("BUSY") => busy("the server is running a script", error),
        Some("TRYAGAIN" | "CLUSTERDOWN") => busy("the cluster is being rearranged", error),
        Some("MASTERDOWN" | "NOREPLICAS") => busy("the server misses its peers", error),
        Some("READONLY") => Error::ReadOnly { back_end: NAME },
        Some("WRONGTYPE") => Error::Corruption {
            back_end: NAME,
            what: "a key under the prefix has another type than the store gives it".to_owned(),
            source: Some(error.into()),
        },
        _ if error.kind() == ErrorKind::InvalidClientConfig => {
            unsupported("url", error.to_string())
        }
        _ => Error::BackEnd { back_end: NAME, call, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that a reply of a server means, and its kind in a word.
    fn kind(reply: &str) -> &'static str {
        let value = ::redis::parse_redis_value(reply.as_bytes()).unwrap();
        match error_of("call", value.extract_error().unwrap_err()) {
            Error::StoreFull { .. } => "full",
            Error::Busy { .. } => "busy",
            Error::ReadOnly { .. } => "read only",
            Error::Corruption { .. } => "corrupted",
            Error::Unsupported { .. } => "unsupported",
            Error::BackEnd { .. } => "back-end",
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_code_of_a_reply_decides_and_not_its_text() {
        for (code, expected) in [
            ("OOM", "full"),
            ("LOADING", "busy"),
            ("BUSY", "busy"),
            ("TRYAGAIN", "busy"),
            ("CLUSTERDOWN", "busy"),
            ("MASTERDOWN", "busy"),
            ("NOREPLICAS", "busy"),
            ("READONLY", "read only"),
            ("WRONGTYPE", "corrupted"),
            ("ERR", "back-end"),
            ("MISCONF", "back-end"),
            ("NOPERM", "back-end"),
            ("NOAUTH", "back-end"),
        ] {
            assert_eq!(kind(&format!("-{code} whatever\r\n")), expected, "{code}");
            assert_eq!(kind(&format!("-ERR OOM LOADING {code}\r\n")), "back-end");
        }
    }
}

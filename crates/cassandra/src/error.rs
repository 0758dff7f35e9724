//! Errors of a cluster, in terms of a database.
//!
//! Invariant: only an error of the conditional write can leave a commit unknown. Every other
//! request is repeated as it was, or its commit has not taken place.

use scylla::errors::{DbError, ExecutionError, NewSessionError, PrepareError, RequestAttemptError};
use terrane_kv::{Error, Source};

/// The name of the back-end.
pub(crate) const NAME: &str = "cassandra";

/// A call that failed for another reason than those with a variant of their own.
pub(crate) fn failed(call: &'static str, source: impl Into<Source>) -> Error {
    Error::BackEnd { back_end: NAME, call, source: source.into() }
}

/// An option that cannot be honoured.
pub(crate) fn unsupported(option: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Unsupported { back_end: NAME, option: option.into(), why: why.into() }
}

/// Stored data that breaks a rule of the layout.
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::Corruption { back_end: NAME, what: what.into(), source: None }
}

/// Another process has the store.
pub(crate) fn locked(what: impl Into<String>) -> Error {
    Error::Locked { back_end: NAME, what: what.into() }
}

/// Something stands in the way for now.
pub(crate) fn busy(what: impl Into<String>) -> Error {
    Error::Busy { back_end: NAME, what: what.into(), source: None }
}

/// Whether the same request may succeed later: too few replicas answer, or none in time.
pub(crate) fn is_transient(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::EmptyPlan
        | ExecutionError::ConnectionPoolError(_)
        | ExecutionError::RequestTimeout(_)
        | ExecutionError::SchemaAgreementError(_)
        | ExecutionError::PrepareError(PrepareError::ConnectionPoolError(_)) => true,
        ExecutionError::LastAttemptError(attempt) => is_transient_attempt(attempt),
        ExecutionError::PrepareError(PrepareError::AllAttemptsFailed { first_attempt }) => {
            is_transient_attempt(first_attempt)
        }
        _ => false,
    }
}

fn is_transient_attempt(attempt: &RequestAttemptError) -> bool {
    match attempt {
        RequestAttemptError::BrokenConnectionError(_)
        | RequestAttemptError::UnableToAllocStreamId => true,
        RequestAttemptError::DbError(error, _) => matches!(
            error,
            DbError::Unavailable { .. }
                | DbError::Overloaded
                | DbError::IsBootstrapping
                | DbError::ReadTimeout { .. }
                | DbError::WriteTimeout { .. }
                | DbError::ReadFailure { .. }
                | DbError::WriteFailure { .. }
                | DbError::TruncateError
                | DbError::ServerError
                | DbError::RateLimitReached { .. }
        ),
        _ => false,
    }
}

/// An error of a request, in terms of a database.
pub(crate) fn error_of(call: &'static str, error: ExecutionError) -> Error {
    if is_transient(&error) {
        let what = format!("{call}: too few replicas answer; wait until the cluster is whole");
        return Error::Busy { back_end: NAME, what, source: Some(error.into()) };
    }
    if let ExecutionError::LastAttemptError(RequestAttemptError::DbError(
        DbError::Unauthorized | DbError::AuthenticationError,
        why,
    )) = &error
    {
        return unsupported("credentials", why.clone());
    }
    failed(call, error)
}

/// An error of preparing a statement.
pub(crate) fn error_of_prepare(error: PrepareError) -> Error {
    error_of("prepare", error.into())
}

/// An error of connecting.
pub(crate) fn error_of_connect(error: NewSessionError) -> Error {
    match &error {
        NewSessionError::FailedToResolveAnyHostname(hosts) => {
            unsupported("contact points", format!("no host of {} is known", hosts.join(", ")))
        }
        NewSessionError::EmptyKnownNodesList => unsupported("contact points", "none is given"),
        _ => {
            let what = "no contact point lets this program in; are the nodes up, and are user, password \
                        and TLS those of the cluster?";
            Error::Busy { back_end: NAME, what: what.to_owned(), source: Some(error.into()) }
        }
    }
}

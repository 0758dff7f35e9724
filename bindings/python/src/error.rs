//! Exceptions. The Python half has a class for each kind; this half names the kind.

use std::fmt;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Kind of a proof that proves something else, or nothing. Engines have no such kind.
const INVALID_PROOF: &str = "invalid_proof";

/// Reason why a call fails, without the interpreter.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
}

/// Result inside of a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self { kind: "bad_input", message: message.into() }
    }

    pub(crate) fn proof(error: &dyn std::error::Error) -> Self {
        Self { kind: INVALID_PROOF, message: chain(error) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A message with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        let text = found.to_string();
        // A transparent error repeats its cause.
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = found.source();
    }
    message
}

macro_rules! from_engines {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self { kind: error.kind().name(), message: chain(&error) }
            }
        }
    )+};
}

from_engines!(
    terrane::lsm::Error,
    terrane::btree::Error,
    terrane::radix::Error,
    terrane::mpt::Error,
    terrane::state_dir::Error,
    terrane::io::Error,
);

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        Python::attach(|py| {
            let make = MAKE.import(py, "terrane._errors", "error_of");
            match make.and_then(|make| make.call1((failure.kind, failure.message))) {
                Ok(exception) => PyErr::from_value(exception),
                Err(error) => error,
            }
        })
    }
}

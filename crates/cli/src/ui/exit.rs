//! Failures of commands, with their exit codes.

use std::io;
use std::path::Path;

use terrane::io::ErrorKind;
use terrane::radix::ExchangeError;
use terrane::state_dir;
use terrane_bench::instruments::{device, limits};
use terrane_bench::workloads;
use terrane_replay::engines::engine::EngineError;
use terrane_replay::error::Class;
use terrane_replay::traces::{irmin, octez};
use terrane_replay::{bitcoin, changes, ethereum};

/// Environment variable that stands in for `--store`.
pub(crate) const STORE_VARIABLE: &str = "TERRANE_STORE";

/// Advice for a full disk.
const NO_SPACE: &str = "next, to make room: `terrane table delete`, `terrane snapshot delete`, `terrane version delete`, \
or `terrane delete` and then `terrane compact`; a reserve is given up with `--reserve 0`";

/// Failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    class: Class,
    /// Word for programs, if that of the class says too little.
    kind: Option<&'static str>,
    message: String,
}

impl Failure {
    fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, kind: None, message: message.into() }
    }

    /// Sets the library's word for the failure if it says more than the class, and does not
    /// contradict the exit code.
    fn of_kind(self, kind: ErrorKind) -> Self {
        use ErrorKind::{Corrupt, Locked, NoSpace, NotFound, Permission, ReadOnly, Unsupported};
        let says_more = match self.class {
            Class::Check => matches!(kind, Corrupt | NotFound),
            Class::Input => matches!(kind, NotFound | ReadOnly | Unsupported),
            Class::Environment => matches!(kind, Locked | NoSpace | Permission | ReadOnly),
            Class::Interrupted => false,
        };
        if says_more { Self { kind: Some(kind.name()), ..self } } else { self }
    }

    fn of_kind_if(self, kind: Option<ErrorKind>) -> Self {
        match kind {
            Some(kind) => self.of_kind(kind),
            None => self,
        }
    }

    /// Arguments that are not a command.
    pub(crate) fn arguments(message: impl Into<String>) -> Self {
        Self { kind: Some("usage"), ..Self::usage(message) }
    }

    /// Command without the place that it works on; `options` are the ways to name the place.
    pub(crate) fn no_store(options: &str) -> Self {
        Self::arguments(format!(
            "no store is named; next: give {options}, or set the variable {STORE_VARIABLE}"
        ))
    }

    /// Back-end or service that this build lacks.
    #[cfg(not(all(feature = "lmdb", feature = "sqlite", feature = "object-store")))]
    pub(crate) fn not_built(feature: &str) -> Self {
        let message = format!("this program was built without {feature}; next: build it with");
        let failure = Self::usage(format!("{message} --features {feature}"));
        failure.of_kind(ErrorKind::Unsupported)
    }

    /// Damage of stored data; exit code 1.
    #[cfg(feature = "object-store")]
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self { kind: Some("corrupt"), ..Self::check(message) }
    }

    /// Bad usage or bad input; exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Class::Input, message)
    }

    /// Failed check, or damage; exit code 1.
    pub(crate) fn check(message: impl Into<String>) -> Self {
        Self::new(Class::Check, message)
    }

    /// Requested thing that does not exist; exit code 1.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { kind: Some("not_found"), ..Self::new(Class::Check, message) }
    }

    /// Failure of the environment, such as disk or permissions; exit code 3.
    pub(crate) fn environment(message: impl Into<String>) -> Self {
        Self::new(Class::Environment, message)
    }

    /// Failure of the system, with this message; exit code 3.
    pub(crate) fn of_system(error: &io::Error, message: impl Into<String>) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => Some(ErrorKind::Permission.name()),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some(ErrorKind::NoSpace.name())
            }
            io::ErrorKind::ReadOnlyFilesystem => Some(ErrorKind::ReadOnly.name()),
            _ => None,
        };
        Self { kind, ..Self::environment(message) }
    }

    /// Failure of the system about a file or directory; exit code 3.
    pub(crate) fn of_file(path: &Path, error: &io::Error) -> Self {
        Self::of_system(error, format!("{}: {error}", path.display()))
    }

    /// Interruption by the user; exit code 130.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self::new(Class::Interrupted, message)
    }

    /// Fault of the stream of a radix state, or of reading or writing it.
    pub(crate) fn exchange(error: &ExchangeError) -> Self {
        let class = match error {
            ExchangeError::Io { .. } => Class::Environment,
            ExchangeError::Unsupported { .. } | ExchangeError::TooManyValues { .. } => Class::Input,
            ExchangeError::Store(error) => Class::from(&**error),
            _ => Class::Check,
        };
        Self::new(class, in_full(error))
    }

    /// Puts the name of a file before the message.
    pub(crate) fn about(self, file: &str) -> Self {
        Self { message: format!("{file}: {}", self.message), ..self }
    }

    /// Adds a note at the end of the message.
    pub(crate) fn with_note(self, note: &str) -> Self {
        Self { message: format!("{}; {note}", self.message), ..self }
    }

    /// Ends the message with the next command to type, if it names none yet and there is one.
    pub(crate) fn with_next(self, store: Option<&Path>) -> Self {
        const LISTS: [(&str, &str); 4] = [
            ("table `", "table"),
            ("snapshot `", "snapshot"),
            ("version ", "version"),
            ("feed `", "feed"),
        ];

        let Some(store) = store.filter(|_| !self.message.contains("next: ")) else { return self };
        let store = store.display();
        let listed = LISTS.iter().find(|(start, _)| self.message.starts_with(start));
        match (self.kind(), listed) {
            ("not_found", Some((_, what))) => {
                self.with_note(&format!("next: terrane {what} list --store {store}"))
            }
            ("corrupt", _) => self.with_note(&format!("next: terrane verify {store}")),
            _ => self,
        }
    }

    /// Returns the failure of an error of the library. An error about a canonical stream gets the
    /// name of `file`.
    pub(crate) fn with_file(error: terrane::lsm::Error, file: &Path) -> Self {
        use terrane::lsm::Error;
        let is_about_file = matches!(
            error,
            Error::Stream { .. }
                | Error::CanonicalMalformed { .. }
                | Error::CanonicalDigestMismatch { .. }
        );
        let failure = Self::from(error);
        if is_about_file { failure.about(&file.display().to_string()) } else { failure }
    }

    /// Returns the word for programs, `error.kind`.
    pub(crate) fn kind(&self) -> &'static str {
        self.kind.unwrap_or(self.class.name())
    }

    /// Returns the sentence for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        match self.class {
            Class::Check => 1,
            Class::Input => 2,
            Class::Environment => 3,
            Class::Interrupted => 130,
        }
    }
}

/// Defines the failure of an error: the error in full, its class, and its kind if it has one.
macro_rules! failures {
    ($($error:ident: $type:ty => $class:expr, $kind:expr;)+) => {
        $(
            impl From<$type> for Failure {
                fn from($error: $type) -> Self {
                    Self::new($class, in_full(&$error)).of_kind_if($kind)
                }
            }
        )+
    };
}

failures! {
    error: EngineError => error.class(), error.kind();
    error: bitcoin::Error => error.class(), error.kind();
    error: changes::Error => error.class(), error.kind();
    error: ethereum::Error => error.class(), error.kind();
    error: terrane::mpt::Error => Class::from(&error), Some(error.kind());
    error: terrane::mpt::TransferError => Class::from(&error), Some(error.kind());
    error: irmin::Error => error.class(), None;
    error: octez::Error => error.class(), None;
    error: workloads::Error => error.class(), error.kind();
    error: limits::Error => error.class(), None;
    error: device::Error => error.class(), None;
    error: terrane::btree::Error => Class::from(&error), Some(error.kind());
    error: terrane::context::Error => Class::from(&error), Some(error.kind());
    error: terrane::context::ProofError => Class::from(&error), None;
    error: state_dir::Error => Class::from(&error), Some(error.kind());
    error: terrane::kv::Error => Class::from(&error), Some(error.kind());
}

impl From<terrane::lsm::Error> for Failure {
    fn from(error: terrane::lsm::Error) -> Self {
        let failure = Self::new(Class::from(&error), in_full(&error)).of_kind(error.kind());
        match error {
            terrane::lsm::Error::Stream { source } => Self::of_system(&source, failure.message),
            terrane::lsm::Error::ReserveTooLarge { .. } => failure.with_note("next: --reserve 0"),
            error if error.is_no_space() => failure.with_note(NO_SPACE),
            _ => failure,
        }
    }
}

#[cfg(feature = "object-store")]
impl From<terrane_object::Error> for Failure {
    fn from(error: terrane_object::Error) -> Self {
        if let terrane_object::Error::Store(error) = error {
            return Self::from(error);
        }
        let kind = error.kind();
        let is_disk = matches!(error, terrane_object::Error::Disk(_));
        // Another writer of a bucket, or a stale list, is no fault of the command.
        let is_passing = kind == ErrorKind::Conflict;
        Self::new(Class::of(kind, is_disk || is_passing), in_full(&error)).of_kind(kind)
    }
}

impl From<terrane::radix::Error> for Failure {
    fn from(error: terrane::radix::Error) -> Self {
        use terrane::radix::Error;
        let failure = Self::new(Class::from(&error), in_full(&error)).of_kind(error.kind());
        let is_absent = matches!(
            error,
            Error::UnknownRoot { .. }
                | Error::UnknownTree { .. }
                | Error::AddressNotFound { .. }
                | Error::PrefixNotFound { .. }
        );
        if is_absent { Self::not_found(failure.message) } else { failure }
    }
}

/// Returns an error and its causes in one line. Skips a cause whose text is already part of the
/// line.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

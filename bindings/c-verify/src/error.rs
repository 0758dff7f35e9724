//! Codes, the message of a thread, and the guard around each call.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrane::lsm::ErrorKind;

/// Outcome of a call. Numbers keep their meaning in all versions.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum terrane_code {
    /// Success.
    TERRANE_OK = 0,
    /// The request makes no sense: null, bytes that are not a name, offsets that do not ascend.
    TERRANE_BAD_INPUT = 1,
    /// There is no such store, table, snapshot, version or key.
    TERRANE_NOT_FOUND = 2,
    /// The name is taken.
    TERRANE_ALREADY_EXISTS = 3,
    /// Stored bytes are not as they were written, or are gone.
    TERRANE_CORRUPT = 4,
    /// Another process, or another handle of this one, holds the store.
    TERRANE_LOCKED = 5,
    /// Another change came first.
    TERRANE_CONFLICT = 6,
    /// The disk, the quota or the reserve is used up.
    TERRANE_NO_SPACE = 7,
    /// The system does not allow it to this user.
    TERRANE_PERMISSION = 8,
    /// The store was opened, or can only be opened, for reading.
    TERRANE_READ_ONLY = 9,
    /// A format or a feature that this library or this system does not have.
    TERRANE_UNSUPPORTED = 10,
    /// The store was closed.
    TERRANE_CLOSED = 11,
    /// An earlier fsync failed: close the store and open it anew.
    TERRANE_POISONED = 12,
    /// The caller stopped the work.
    TERRANE_INTERRUPTED = 13,
    /// Any other failure of the system.
    TERRANE_IO = 14,
    /// The caller's memory is too small; the call says how much is needed.
    TERRANE_TOO_SMALL = 15,
    /// A proof proves something else, or nothing.
    TERRANE_INVALID_PROOF = 16,
    /// A bug of the library. The handle must not be used any more, but for freeing it.
    TERRANE_PANIC = 17,
}

/// Reason why a call fails.
#[derive(Debug)]
pub struct Failure {
    /// Its code.
    pub code: terrane_code,
    /// Its message.
    pub message: String,
}

impl Failure {
    /// A request that makes no sense.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self { code: terrane_code::TERRANE_BAD_INPUT, message: message.into() }
    }

    /// A thing that is not there.
    pub fn not_found(message: &str) -> Self {
        Self { code: terrane_code::TERRANE_NOT_FOUND, message: message.to_owned() }
    }

    /// Memory that does not suffice.
    pub fn too_small(what: &str) -> Self {
        let message = format!("the memory for {what} is too small");
        Self { code: terrane_code::TERRANE_TOO_SMALL, message }
    }

    /// A proof that proves something else, or nothing.
    pub fn proof(error: &dyn std::fmt::Display) -> Self {
        Self { code: terrane_code::TERRANE_INVALID_PROOF, message: error.to_string() }
    }
}

/// Code of the kind of an engine's error.
fn code_of(kind: ErrorKind) -> terrane_code {
    match kind {
        ErrorKind::InvalidInput => terrane_code::TERRANE_BAD_INPUT,
        ErrorKind::NotFound => terrane_code::TERRANE_NOT_FOUND,
        ErrorKind::AlreadyExists => terrane_code::TERRANE_ALREADY_EXISTS,
        ErrorKind::Corrupt => terrane_code::TERRANE_CORRUPT,
        ErrorKind::Locked => terrane_code::TERRANE_LOCKED,
        ErrorKind::Conflict => terrane_code::TERRANE_CONFLICT,
        ErrorKind::NoSpace => terrane_code::TERRANE_NO_SPACE,
        ErrorKind::Permission => terrane_code::TERRANE_PERMISSION,
        ErrorKind::ReadOnly => terrane_code::TERRANE_READ_ONLY,
        ErrorKind::Unsupported => terrane_code::TERRANE_UNSUPPORTED,
        ErrorKind::Closed => terrane_code::TERRANE_CLOSED,
        ErrorKind::Poisoned => terrane_code::TERRANE_POISONED,
        ErrorKind::Interrupted => terrane_code::TERRANE_INTERRUPTED,
        _ => terrane_code::TERRANE_IO,
    }
}

macro_rules! from_engines {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                // The causes come after the message, as a chain.
                let mut message = error.to_string();
                let mut cause = std::error::Error::source(&error);
                while let Some(found) = cause {
                    message.push_str(": ");
                    message.push_str(&found.to_string());
                    cause = found.source();
                }
                Self { code: code_of(error.kind()), message }
            }
        }
    )+};
}

from_engines!(
    terrane::lsm::Error,
    terrane::btree::Error,
    terrane::context::Error,
    terrane::radix::Error,
    terrane::mpt::Error,
    terrane::state_dir::Error,
);

/// Result inside of a call.
pub type Outcome<T> = Result<T, Failure>;

thread_local! {
    /// Message of the last failed call of this thread.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn keep_message(message: &str) {
    // A message is text of ours and of the system; a zero byte in it would end it for C.
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    MESSAGE.with_borrow_mut(|kept| *kept = text);
}

/// Runs the body of a call. Keeps the message of a failure, and turns a panic into a code.
pub fn guard(body: impl FnOnce() -> Outcome<()>) -> terrane_code {
    // A caller is told not to use what a panic may have left half changed.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => terrane_code::TERRANE_OK,
        Ok(Err(failure)) => {
            keep_message(&failure.message);
            failure.code
        }
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            keep_message(&format!("a bug of the library: {}", text.unwrap_or_default()));
            terrane_code::TERRANE_PANIC
        }
    }
}

/// Returns the message of the last failed call of this thread; empty if none has failed. Valid
/// until the next failed call of this thread, and owned by the library.
#[unsafe(no_mangle)]
pub extern "C" fn terrane_error_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Returns the version of the library, such as `0.1.0`. Static.
#[unsafe(no_mangle)]
pub extern "C" fn terrane_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Borrows the handle at a pointer.
///
/// # Safety
/// The pointer is null, or a handle that its function has made and nobody has freed.
pub unsafe fn handle<'a, T>(pointer: *const T) -> Outcome<&'a T> {
    // SAFETY: the caller keeps the contract above; a handle is an aligned box.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::bad_input("a handle is null"))
}

/// Borrows the handle at a pointer for changes.
///
/// # Safety
/// The contract of [`handle`]; also, no other thread uses the handle during the call.
pub unsafe fn handle_mut<'a, T>(pointer: *mut T) -> Outcome<&'a mut T> {
    // SAFETY: the caller keeps the contract above; a handle is an aligned box.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::bad_input("a handle is null"))
}

/// Takes the handle at a pointer back; `None` for null.
///
/// # Safety
/// The contract of [`handle`]; nobody uses the pointer afterwards.
pub unsafe fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: a handle that is not null came from `Box::into_raw` and is freed here only.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Frees the handle at a pointer; null is nothing. A panic of its destructor goes nowhere.
///
/// # Safety
/// The contract of [`take`].
pub unsafe fn free<T>(pointer: *mut T) {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        drop(unsafe { take(pointer) });
        Ok(())
    });
}

/// Writes a value to an out-parameter.
///
/// # Safety
/// The pointer is null, or valid for a write of `T`.
pub unsafe fn give<T>(out: *mut T, value: T) -> Outcome<()> {
    if out.is_null() {
        return Err(Failure::bad_input("an out-parameter is null"));
    }
    // SAFETY: not null, so valid for a write by the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Makes a handle of a value and writes it to an out-parameter.
///
/// # Safety
/// The contract of [`give`].
pub unsafe fn give_handle<T>(out: *mut *mut T, value: T) -> Outcome<()> {
    if out.is_null() {
        return Err(Failure::bad_input("an out-parameter is null"));
    }
    // SAFETY: not null, so valid for a write by the caller's contract.
    unsafe { out.write(Box::into_raw(Box::new(value))) };
    Ok(())
}

//! Verifiers of Terrane's proofs for C, without the engines.
//!
//! | module     | contents                                                    |
//! |------------|-------------------------------------------------------------|
//! | `error`    | codes, the message of a thread, the guard around each call   |
//! | `bytes`    | bytes that a caller gives, arenas that a caller has filled   |
//! | `verifier` | proofs of radix, Ethereum and context states, checked        |
//!
//! A wallet or a light client that checks proofs links this library. The library of stores
//! (`bindings/c`) has the same functions besides its own, so that a program links one of the two.
//! `include/terrane_verify.h` is made from these sources by cbindgen and says how to call them.
//!
//! Invariants:
//!
//! * A panic never crosses: each function works inside of `error::guard`.
//! * A pointer from the caller is read only by `bytes` and by functions of `error`, which refuse
//!   null.
//! * No function does I/O or starts a thread; the linker leaves the engines out.

// The names of C functions and types are those of C.
#![expect(non_camel_case_types, reason = "C names")]
#![expect(clippy::missing_errors_doc, reason = "a failure is a code, which the header explains")]

// Bottom-up: a module imports only from modules above it.
pub mod error;
pub mod bytes;
pub mod verifier;

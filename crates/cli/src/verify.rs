//! `terrane verify` and `terrane salvage`: check everything in a store, repair it on request, and
//! take what is whole out of it.
//!
//! The folder imports `ui`, `stores` and `commands`. Nothing imports it but `main.rs`.
//!
//! Begin with [`verify`], which recognises the directory and checks LSM stores
//! itself; [`check_btree`], [`check_context`] and [`check_radix`] check the others,
//! [`check_mpt`] what the tables of an Ethereum state say. The libraries
//! check and repair; this folder chooses how much loss is accepted, runs the check again after a
//! repair, and reports the difference.
//!
//! # Invariants
//!
//! - Without `--repair` nothing is written. Without `--accept-loss` a repair drops nothing.
//! - Exit code 0 means that the last check found no problem and that nothing was lost.
//! - A problem is `repaired` only if a check after the repair does not find it again.
//! - Each problem names its file, a place in it, and the rule that it breaks.
//!
//! Rejected: trusting the report of a repair. Only a second check shows that the store is whole.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod outcome;
pub(crate) mod check_btree;
pub(crate) mod check_context;
pub(crate) mod check_radix;
pub(crate) mod check_mpt;
#[cfg(feature = "object-store")]
mod check_bucket;
mod verify;
mod salvage;

pub(crate) use self::salvage::{EXAMPLES as SALVAGE_EXAMPLES, Salvage};
pub(crate) use self::verify::{EXAMPLES, Verify};

//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod disk;
pub mod files;
pub(crate) mod anchor;
pub(crate) mod posix;
pub(crate) mod threads;
#[cfg_attr(not(target_os = "linux"), path = "disk/uring_absent.rs")]
pub(crate) mod uring;
pub(crate) mod real;

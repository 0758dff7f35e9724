//! Hash functions of the Merkle states: many messages at once, in the lanes of the processor's
//! vectors.
//!
//! Each public module is one function; begin with [`keccak256`]. The crate imports no other crate
//! of the workspace. Published implementations hash single messages; this crate has what they lack:
//! several messages of different lengths side by side.
//!
//! Rejected: one lane count for all processors, since a vector that the processor lacks is slower
//! than hashing message after message.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod lanes;
pub mod keccak256;
pub mod sha512;

//! Hash functions of the Merkle states: many messages at once, in the lanes of the processor's
//! vectors.
//!
//! Each module is one function; begin with [`sha512`]. The crate imports no other crate of the
//! workspace. Published implementations hash single messages; this crate has what they lack:
//! several messages of different lengths side by side.
//!
//! Rejected: one lane count for all processors, since a vector that the processor lacks is slower
//! than hashing message after message.

#![forbid(unsafe_code)]

pub mod sha512;

//! Hash functions of the Merkle states, many messages at once in the lanes of the processor's
//! vectors.
//!
//! Each module is one function. Other crates use published implementations for single messages;
//! this crate holds what they lack: several messages of different lengths side by side.

#![forbid(unsafe_code)]

pub mod sha512;

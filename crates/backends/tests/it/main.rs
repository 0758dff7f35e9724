//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]

#[cfg(feature = "lmdb")]
mod lmdb;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

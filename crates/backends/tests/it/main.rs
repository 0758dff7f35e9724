//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]
#![cfg_attr(
    any(feature = "lmdb", feature = "sqlite"),
    expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")
)]

#[cfg(feature = "lmdb")]
mod lmdb;
mod memory;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
mod numbered;
#[cfg(feature = "sqlite")]
mod sqlite;

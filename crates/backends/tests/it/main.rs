//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;

mod conformance;

mod engines;

#[cfg(feature = "lmdb")]
mod lmdb;
mod memory;
#[cfg(any(feature = "lmdb", feature = "sqlite"))]
mod numbered;
mod radix;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "redis")]
mod redis;

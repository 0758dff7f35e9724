//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::result_large_err, reason = "a test does not pass many errors on")]

mod broken;

mod conformance;

mod engines;

mod lmdb;
mod memory;
mod numbered;
mod radix;
mod sqlite;

mod redis;

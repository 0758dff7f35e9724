//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;

mod conformance;

mod memory;

#[cfg(feature = "redis")]
mod redis;

//! Tests of replays as a library: real blocks, changes on every engine, and faults of the disk.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bitcoin;
mod changes;
mod ethereum;
mod faults;

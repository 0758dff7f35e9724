//! Stores on a real cluster, which `cargo xtask cassandra` starts.
//!
//! Without `TERRANE_TEST_CQL` (addresses of the nodes, as `127.0.0.1:9042,..`) each test prints
//! that it is skipped, and counts for nothing.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod setup;
mod proxy;
mod suite;
mod entries;
mod crashes;
mod outcomes;
mod race;
mod nodes;
mod skew;
mod secure;

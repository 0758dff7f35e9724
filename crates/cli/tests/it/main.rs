//! The built program, as a user calls it.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backup;
mod bench;
mod bench_tables;
mod bitcoin;
mod btree;
mod chain;
mod changes;
mod context;
mod context_tools;
mod index;
mod inspect;
mod irmin_trace;
mod kvget;
mod process;
mod program;
mod radix;
mod schema;
mod snapshot;
mod store;
mod tables;
mod verify;

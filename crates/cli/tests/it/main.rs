//! The built program, as a user calls it.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backup;
mod bench;
mod bench_mixed;
mod bench_page;
mod bench_sweep;
mod bench_tables;
mod bitcoin;
mod btree;
mod bucket;
mod chain;
mod changes;
mod context;
mod context_tools;
mod diff;
mod feeds;
mod import;
mod index;
mod inspect;
mod interrupts;
mod irmin_trace;
mod kinds;
mod kvget;
mod manual;
mod mpt;
mod points;
mod process;
mod program;
mod radix;
mod schema;
mod salvage;
mod snapshot;
mod stats;
mod store;
mod tables;
mod verify;
mod words;

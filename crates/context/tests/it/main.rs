//! Tests of the context store through its public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod script;
mod advance;
mod archive;
mod background;
mod checks;
mod clears;
mod collection;
mod crash;
mod cuts;
mod damage;
mod deep;
mod elsewhere;
mod faults;
mod flushes;
mod folds;
mod golden;
mod head;
mod heads;
mod hostile;
mod latencies;
mod losses;
mod memory;
mod model;
mod parts;
mod prefetch;
mod processes;
mod proof;
mod forger;
mod radix_forger;
mod shallow;
#[cfg(shuttle)]
mod schedules;
mod snapshot;
mod slices;
mod stores;
mod tezos;
mod trees;
mod values;
mod vectors;
mod verified_reads;
mod waits;

//! Tests of the benchmarks as a library, of radix states in directories, and of the recorded
//! results.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod context;
mod imported;
mod index;
mod kvget;
mod mixed;
mod model;
mod published;
mod radix;
mod radix_hostile;
mod results;
mod state;
mod utxo;

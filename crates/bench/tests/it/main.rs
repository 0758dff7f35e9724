//! Replays as a library.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bitcoin;
mod changes;
mod context;
mod faults;
mod index;
mod kvget;
mod radix;
mod radix_hostile;
mod results;
mod utxo;

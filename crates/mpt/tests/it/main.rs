//! Tests of the Ethereum state through its public interface.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod vectors;
mod naive;
mod roots;
mod records;
mod accounts;
mod chain;
mod transitions;
mod histories;
mod threads;
mod crash;
mod damage;
mod proofs;
mod heights;
mod ranges;
mod diffs;
mod witnesses;
mod published_witness;
mod imports;
mod committed;
mod binary;

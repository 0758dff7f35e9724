//! Tests of the context store through its public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod collection;

mod folds;

mod heads;

mod proof;

mod snapshot;

mod stores;

mod tezos;

mod trees;

mod vectors;

//! Tests of the context store through its public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod checks;
mod collection;

mod folds;

mod proof;

mod stores;

mod trees;

mod vectors;

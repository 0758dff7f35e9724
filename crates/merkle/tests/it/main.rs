//! Tests of the context store through its public face.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod script;

mod checks;

mod collection;

mod crash;

mod damage;

mod faults;

mod folds;

mod golden;

mod model;

mod processes;

mod proof;

mod stores;

mod trees;

mod vectors;

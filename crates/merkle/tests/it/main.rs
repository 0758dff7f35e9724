//! Tests of the context store through its public face.

mod folds;
mod proof;
mod trees;
mod vectors;

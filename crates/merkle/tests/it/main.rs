//! Tests of the context store through its public face.

mod folds;
mod trees;
mod vectors;

//! Tests of the context store through its public face.

mod stores;
mod trees;
mod vectors;

//! Tests of the context store through its public face.

mod collection;
mod stores;
mod trees;
mod vectors;

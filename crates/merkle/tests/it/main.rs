//! Tests of the context store through its public face.

mod trees;
mod vectors;

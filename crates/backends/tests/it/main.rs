//! Tests of the back-ends through their public face.

#![forbid(unsafe_code)]

mod memory;

//! Tests of the index through its public interface.

#![forbid(unsafe_code)]

mod crash;

mod model;

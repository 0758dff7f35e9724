//! Tests of the table engine through its public interface.
#![forbid(unsafe_code)]

mod verify;

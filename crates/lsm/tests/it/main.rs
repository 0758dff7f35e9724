//! Tests of the table engine through its public interface.
#![forbid(unsafe_code)]

mod script;

mod crash;

mod faults;

mod bitflip;

//! The built program, as a user calls it.

mod bitcoin;
mod chain;
mod changes;
mod process;
mod program;

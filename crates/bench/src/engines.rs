//! The engines that replays can run on.

pub mod lsm;
pub mod memory;

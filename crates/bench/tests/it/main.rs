//! Replays as a library.

mod bitcoin;
mod changes;

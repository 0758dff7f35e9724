//! Replays as a library.

mod bitcoin;

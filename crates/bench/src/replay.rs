//! Replays, and what they share: telling a caller how they get on, durable points, going back.

pub mod bitcoin;
pub mod changes;
mod checkpoints;
pub mod history;
pub mod monitor;

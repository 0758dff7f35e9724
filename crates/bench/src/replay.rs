//! Replays, and what they share: telling a caller how they get on, durable points, going back.

pub mod monitor;

mod checkpoints;

pub mod history;

pub mod bitcoin;

pub mod changes;

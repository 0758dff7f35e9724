//! Replays, and what they share: durable points, going back.

mod checkpoints;

pub mod history;

pub mod ledger;

pub mod radix_ledger;

pub mod bitcoin;

pub mod changes;

pub mod index_trace;

pub mod context_trace;

pub mod irmin_trace;

pub mod octez_trace;

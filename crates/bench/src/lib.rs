//! Replays of real histories over Terrane's engines, and benchmarks of them.
//!
//! A replay feeds an engine with a history that somebody else wrote (Bitcoin's blocks, a file of
//! neutral changes) and checks at every step that the engine's state is what the history says it
//! must be. Engines are reached through [`engine`] only, so that one replay compares them all;
//! workloads use the table engine directly.

#![forbid(unsafe_code)]

pub mod error;

pub mod store;

pub mod hex;

pub mod text;

mod mounts;

pub mod meter;

pub mod latency;

pub mod host;

pub mod confine;

pub mod radix_store;

pub mod engine;

pub mod context;

pub mod engines;

pub mod monitor;

pub mod model;

pub mod yardstick;

pub mod replay;

pub mod workload;

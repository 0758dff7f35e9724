//! Replays of real histories over the engines of Terrane, each step checked.
//!
//! A replay feeds an engine with a recorded history (the blocks of Bitcoin, a file
//! of neutral changes, a trace) and checks at every step that the state of the engine is what the
//! history says. Replays reach engines through [`engines::engine`] only, so one replay compares
//! them all.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
pub mod error;
pub mod store;
pub mod hex;
pub mod latency;
pub mod monitor;
pub mod engines;
pub mod ledger;
pub mod bitcoin;
pub mod changes;
pub mod ethereum;
pub mod traces;

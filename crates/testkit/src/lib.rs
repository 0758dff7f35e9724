//! Shared parts of Terrane's own tests: replayable seeds, awkward keys, a model of tables, golden
//! files, a skewed distribution, sweeps over crashes and faults, child processes, schedules of
//! threads, counts of long runs.
//!
//! This crate depends on no crate of ours but `terrane_io`, whose tests do without it (its
//! documentation tests depend on the facade). So every other crate can name it as a
//! dev-dependency, and no test binary ever holds two copies of one type.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
pub mod draw;
pub mod effort;
pub mod tally;
pub mod seeds;
pub mod zipf;
pub mod keys;
pub mod model;
pub mod golden;
pub mod trial;
pub mod sweep;
pub mod process;
#[cfg(shuttle)]
pub mod schedules;

pub use rand_chacha::ChaCha8Rng;
pub use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The programs of the workspace's README, compiled with its documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

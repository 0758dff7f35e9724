//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod checkpoints;
pub mod history;
pub mod ledger;
pub mod radix_ledger;

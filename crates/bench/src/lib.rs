//! Benchmarks of the engines of Terrane: fixed workloads whose every result is checked, and the instruments that measure them.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
pub mod report;
pub mod instruments;
pub mod model;
pub mod workloads;

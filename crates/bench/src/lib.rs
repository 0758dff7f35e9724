//! Benchmarks of the engines of Terrane, and the instruments that measure them.
//!
//! A benchmark is a library function with options and a serialisable report; the command line
//! parses arguments and prints. Begin with [`workloads`].

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
pub mod report;
pub mod instruments;
pub mod model;
pub mod workloads;

//! Forms that several reports share: numbers as text with their units.
//!
//! Imports nothing of this crate. A report itself is a serialisable struct beside its workload,
//! such as [`workloads::kvget::report::Report`](crate::workloads::kvget::report::Report), whose
//! JSON field names are a contract with readers of recorded results.
//!
//! Rejected: one list of metrics for all workloads. Their figures share too few names.

pub mod text;

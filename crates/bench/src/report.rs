//! Reports of benchmarks after they were measured: numbers as text, journals, comparisons, imports.
//!
//! | module         | contents                                                        |
//! |----------------|-----------------------------------------------------------------|
//! | [`text`]       | numbers as people read them                                     |
//! | [`journal`]    | records of the points of a sweep, durable one by one            |
//! | [`compare`]    | two results side by side, and rules that their difference keeps |
//! | [`bench_kvdb`] | logs of the published benchmark as results                      |
//! | [`page`]       | parts of a page: frame, plots, tables                           |
//! | [`rivals`]     | a comparison with rivals as tables and plots                    |
//! | [`html`]       | a page of reports: plots, figures with their commands, raw data |
//! | [`store_page`] | a page of a store: levels, runs, versions, snapshots            |
//!
//! Imports nothing of this crate. A report itself is a serialisable struct beside its workload,
//! such as [`workloads::kvget::report::Report`](crate::workloads::kvget::report::Report), whose
//! JSON field names are a contract with readers of recorded results.
//!
//! Rejected: one struct of metrics for all workloads. Their figures share too few names, so
//! [`compare`] finds metrics by their paths in the JSON object.

// Bottom-up: a module imports only from modules above it.
pub mod text;
pub mod journal;
pub mod compare;
pub mod bench_kvdb;
pub mod page;
pub mod rivals;
pub mod html;
pub mod store_page;

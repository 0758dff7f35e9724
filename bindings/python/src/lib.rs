//! The native half of the Python package `terrane`.
//!
//! | module        | contents                                                          |
//! |---------------|-------------------------------------------------------------------|
//! | `error`       | exceptions, made by the Python half from a kind and a message     |
//! | `buffer`      | memory of the engine that Python reads in place                   |
//! | `rows`        | rows and entries: contiguous bytes and offsets, in Arrow's layout |
//! | `input`       | keys and values from Python, borrowed where Python cannot change them |
//! | `reader`      | lookups and scans, of tables, views, versions, snapshots, forks   |
//! | `scan`        | iterators of entries, and chunks of entries                       |
//! | `table`       | named tables, forks                                               |
//! | `batch`       | write batches and transactions                                    |
//! | `states`      | tables with a root, radix states                                  |
//! | `store`       | stores                                                            |
//! | `verify`      | proofs, checked without a store                                   |
//! | `inspect`     | descriptions of files, as JSON                                    |
//!
//! `python/terrane/__init__.pyi` says how to call them.
//!
//! Invariants:
//!
//! * No call of an engine holds the interpreter's lock: each works inside of `py.detach`.
//! * Classes are frozen. Values that change stand behind a lock of their own, which is taken after
//!   the interpreter's lock has been let go of. Two threads therefore never wait for each other.
//! * Bytes that Python may change meanwhile are copied before the lock is let go of: a batch at
//!   once, never row by row. Bytes that Python cannot change (`bytes`, Arrow) are borrowed.

#![allow(missing_docs, reason = "the stubs are the documentation of these classes")]

// Bottom-up: a module imports only from modules above it.
mod error;
mod buffer;
mod rows;
mod input;
mod scan;
mod reader;
mod table;
mod batch;
mod states;
mod store;
mod verify;
mod inspect;

use pyo3::prelude::*;

#[pymodule]
fn _terrane(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<rows::Entries>()?;
    module.add_class::<scan::Items>()?;
    module.add_class::<scan::Chunks>()?;
    module.add_class::<scan::Changes>()?;
    module.add_class::<reader::Reader>()?;
    module.add_class::<table::View>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Fork>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batch::Transaction>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<states::CommittedTable>()?;
    module.add_class::<states::RadixState>()?;
    module.add_class::<states::RadixTree>()?;
    module.add_function(wrap_pyfunction!(verify::verify_radix_proof, module)?)?;
    module.add_function(wrap_pyfunction!(verify::verify_mpt_proof, module)?)?;
    module.add_function(wrap_pyfunction!(verify::verify_committed_proof, module)?)?;
    module.add_function(wrap_pyfunction!(verify::verify_context_proof, module)?)?;
    module.add_function(wrap_pyfunction!(inspect::inspect_json, module)?)
}

//! Inputs of a bulk load: streams of records, the external sort, and the reader of mirage/index
//! stores.
//!
//! May import: `page`. The sort does not know the index: the index reads the sort's last merge as a
//! stream.
//!
//! Begin with `input` (the trait of all streams), then `sort` (the sorter), `arena` (records in
//! memory), `run` and `merge` (records on disk), `manifest` (resuming), `migrate`.
//!
//! Invariants: the memory budget is a bound and no estimate. The manifest names only whole and
//! durable runs. The sort is stable, and runs follow each other in the order of the input.
//!
//! Rejected: finding finished runs by their names (a half-written run looks finished); the bulk
//! load of tables for it (its entries must go through a session, with its directory, salt and
//! levels); a stable sort in memory (takes half as much memory again; comparing places does the
//! same).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod input;
mod manifest;
mod run;
mod arena;
mod merge;
pub(crate) mod sort;
pub(crate) mod migrate;

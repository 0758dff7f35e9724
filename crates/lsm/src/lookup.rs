//! Point lookups: batches of keys through the memtable, filters, index and pages of a table.
//!
//! This folder imports `compaction` (for the sources of a union), `memory`, `run` and what stands
//! below. `table` calls it for `get` and `get_many`.
//!
//! Begin with [`lookup`](mod@lookup): one batch, all reads side by side. [`plan`] is the order of
//! the runs and how entries of one key combine, also over unions. [`submitted`] is batches whose
//! results are taken later, on one thread of the session. [`result`](mod@result) is the answers;
//! [`spare_pages`] are buffers between batches.
//!
//! Invariant: a result depends on the entries alone, not on the batch, on the runs or on the order
//! in which reads complete. A key that is present costs one read and a little.
//!
//! Rejected:
//! - reading all candidates of a key at once: it reads overwritten versions in vain, and saves
//!   latency only for the one key in a hundred that meets a false positive;
//! - a queue for each submitted batch: a ring and its memory for every batch in flight;
//! - a future that is polled again and again: it burns a core while the device works;
//! - merge operators on the lookup thread: a user's function runs where the results are taken.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod result;
pub(crate) mod plan;
pub(crate) mod spare_pages;
pub(crate) mod lookup;
pub(crate) mod submitted;

//! Overlay: the uncommitted changes of one transaction over tables that an engine keeps.
//!
//! A writer collects its changes in memory, sorted by key, and hands all of them to the engine as
//! one commit. The writer's reads and cursors merge the changes with a snapshot of the engine, so
//! that a transaction reads its own writes. Engines that can only answer lookups, scans and atomic
//! batches become a [`Database`](crate::Database) that way; the LSM store and the B+tree index are
//! such engines.
//!
//! Begin with [`engine`]: the trait of an engine, and the database made of one. [`snapshot`] and
//! [`transaction`] are its reader and writer, which back-ends without files use by themselves.
//! [`changes`] has the merging cursor, [`read_only`] the database of a process that does not own
//! the files.
//! [`names`], [`undo`] and [`paging`] also serve back-ends with transactions of their own (LMDB,
//! SQLite, Redis). The folder imports the traits of this crate, [`gap`](crate::gap),
//! [`removals`](crate::removals), [`turn`](crate::turn) and `terrane_io`.
//!
//! Invariant: while a writer lives, nobody else commits. The writer's snapshot, whenever it is
//! taken, is the state at the writer's creation.
//!
//! Lock order: the turn of the writer ([`crate::turn`]), then the locks inside the engine.
//!
//! Rejected: single removals as the only record of what a transaction removed. A cursor that looks
//! beside each of n removals would cross n of them each time; [`crate::removals`] joins them
//! to ranges that a cursor jumps over.

// Bottom-up: a module imports only from modules above it.
pub mod names;
pub mod undo;
pub mod paging;
pub mod failure;
pub mod changes;
pub mod snapshot;
pub mod transaction;
pub mod engine;
pub mod read_only;

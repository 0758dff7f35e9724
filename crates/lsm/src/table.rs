//! Tables without a WAL: writes, reads, cursors, diffs, forks and bulk loads over the levels of one
//! session.
//!
//! Imports: everything down to `session`; `store` adds names and durability. Begin with [`table`],
//! then [`cursor`]. The file [`session`] holds the public `Session`, the directory that tables come
//! from.
//!
//! Invariants:
//! - A table has one writer, which borrows it exclusively; threads share it for reads. Forks are
//!   independent and `Send`.
//! - After an error a table is what it was before the call.
//! - Sources are searched from the newest to the oldest: memtable, flush, runs of the levels,
//!   union.
//! - Two tables differ at most in keys of sources newer than the newest source they share. A diff
//!   reads only those.
//!
//! Rejected:
//! - A cursor with a thread for each run; prefetching at once (short ranges would pay for it).
//! - A diff that reads rewritten sources and drops equal entries: it reads the last level for a
//!   thousand updates. That way remains only where the inputs of a compaction are gone.
//! - A log of changed keys for each version: every update would be written once more.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod divergence;
pub(crate) mod cursor;
pub(crate) mod diff;
pub(crate) mod canonical;
pub(crate) mod shares;
pub(crate) mod table;
pub(crate) mod bulk_load;
pub(crate) mod session;

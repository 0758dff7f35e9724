//! A session: the open directory. It owns the file set, the snapshots, the background threads and
//! the group commit.
//!
//! Imports: everything down to `manifest`; `table` and `store` are built on top. Begin with
//! [`inner`], the state that all handles share, then [`registry`], which orders operations on
//! snapshots, and [`snapshot`], which saves and opens them.
//!
//! Invariants:
//! - One process writes a session at a time; the lock file of the directory says so.
//! - A snapshot is one small file that names runs. Runs live in one directory and are removed with
//!   their last user.
//! - Saving *reserves* the name, does its I/O without a lock, and publishes the name once the
//!   snapshot is durable.
//! - An output file has one writer at a time, which never writes below a page that a snapshot
//!   relies on.
//! - After a failed sync the session is poisoned: reads go on, and no later call claims durability.
//!
//! Rejected:
//! - A directory of hard links for each snapshot: dozens of operations instead of two, and not
//!   atomic.
//! - Trusting a file that looks whole after power loss: a footer may be durable and pages before it
//!   may not.
//! - A copy of the snapshot metadata in memory: later damage would go unseen.
//! - Hard links as exports: damage to the copy would damage the original. An archive file: a second
//!   format to verify.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod registry;
pub(crate) mod inner;
pub(crate) mod current_manifest;
pub(crate) mod group_commit;
pub(crate) mod snapshot;
pub(crate) mod transfer;

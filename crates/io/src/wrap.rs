//! Disks around other disks: the same calls, with something added or left out.
//!
//! May import: `disk`.
//!
//! `counted` counts calls and bytes, for tests of I/O budgets. `no_sync` leaves syncs out, for
//! stores that must survive their process and nothing else. `forward` has the calls that a
//! wrapper passes on unchanged. `forward_queue` is the queue of both: a
//! queue knows only the files of its own disk, so each request gets the file below its own.
//!
//! Invariant: a wrapper passes every call on to the disk below exactly once, or not at all where
//! its purpose is to leave the call out.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod forward;
pub(crate) mod forward_queue;
pub(crate) mod counted;
pub(crate) mod no_sync;

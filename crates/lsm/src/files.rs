//! The files of a session: numbers, users, open handles, writes in flight, removal and the reserve.
//!
//! Everything above reads and writes run files through this folder, and no other folder removes
//! them. It imports `error`, `trace`, `stats` and the disk of `terrane_io`.
//!
//! Begin with [`file_set`]: which run files exist, who uses them, when they go. [`handles`] keeps a
//! bounded number of them open (RocksDB: the table cache). [`write_queue`] writes chunks of runs
//! while compactions go on. [`reclaim`] removes large files where no caller waits. [`reserve`] is
//! disk space for deletions on a full disk. [`lost_found`] keeps files that nothing names.
//! [`parallel`] divides work among threads.
//!
//! Lock order: a slot of the handles, then their clock. A thread that holds the clock only tries
//! the lock of a slot; a thread that changes the reserve holds neither. The file set holds its lock
//! for no call of the disk.
//!
//! Invariant: a file that is not durable is synced before it is closed, because the system forgets
//! a failed write-back with the last descriptor.
//!
//! Rejected:
//! - one descriptor for each run for life: a thousand forks of a table have thousands of runs;
//! - waiting for a free handle: calls that hold one file and want another would wait for each
//!   other;
//! - writing through the page cache: a failed write-back is known only at the sync;
//! - cutting large files down in parts: each part is a journal change in some update;
//! - refusing insertions below a watermark of free bytes: a system call for each batch.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod reserve;
pub(crate) mod reclaim;
pub(crate) mod handles;
pub(crate) mod write_queue;
pub(crate) mod file_set;
pub(crate) mod lost_found;
pub(crate) mod parallel;

//! An entry: the value that a table stores for a key, its limits, and how entries of one key
//! combine.
//!
//! The bottom of the engine: every folder above speaks of entries, key ranges and masks, and none
//! of these types does I/O. This folder imports `error` only.
//!
//! Begin with [`entry`](self::entry::Kind): the kinds of an entry and the table of how a newer
//! entry combines with an older one. [`merge_operator`] is the function that combines upserts
//! (RocksDB: the same name); [`mask`] is how a range deletion hides keys of a source; [`key_range`]
//! is the keys between two bounds; [`digest`] is the fingerprint of a whole state.
//!
//! Invariant: combining entries is associative if the merge operator is, so compactions may combine
//! them in any grouping and at any time.
//!
//! Rejected:
//! - merge operators that may fail: a compaction that cannot go on would stall its table for good;
//! - range tombstones as entries of runs: every filter, lookup, cursor and compaction would have to
//!   look for entries that cover others. A mask belongs to the reference to a run instead;
//! - sequence numbers in entries: eight bytes each, and no reader needs them, since a view is a
//!   fork.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod digest;
pub(crate) mod entry;
pub(crate) mod key_range;
pub(crate) mod mask;
pub(crate) mod merge_operator;

//! Named tables that last: commits over several tables, checkpoints, recovery, retained versions,
//! backups and readers.
//!
//! Imports: everything below, above all `manifest` and `table`. Begin with [`store`], the public
//! API; [`inner`] has the state and the lock order; [`commit`], [`checkpoint`] and [`segments`] are
//! what goes on side by side; [`recovery`] says what opening does.
//!
//! Invariants:
//! - A commit is applied in memory, then appended to the WAL. If either fails, the commit is taken
//!   back from all tables, so recovery never undoes.
//! - Nobody waits for the disk with the state or a table locked, but for the write of a record.
//!   Slow work holds the writers of its own tables at most.
//! - A checkpoint writes the changed tables out as snapshots do, then the manifest, then removes
//!   old WAL segments.
//! - Recovery applies the WAL in memory. The process never appends behind a WAL it found: it
//!   rewrites, syncs and seals the found end first, because bytes of a dead process may be visible
//!   and not durable.
//! - Transactions are validated when they commit, against the write sets of the commits since their
//!   view. Write sets exist only while transactions live.
//! - An install, a replacement and a rollback are commits without a record: a manifest has them.
//! - An index is a table whose changes are in the same records as those of its source. A commit to
//!   a source whose index function the process does not know is refused.
//! - A version is a place in the WAL: a base that a checkpoint left, and a commit. Retaining writes
//!   some forty bytes.
//!
//! Rejected:
//! - A checkpoint before the first commit: it needs room that a full disk lacks.
//! - Flushing and compacting during recovery: opening would take time in proportion to the levels.
//! - Images of the memtable for each version: entries would be written twice, and each base would
//!   keep its runs.
//! - Shared memory with readers: a killed process leaves it in any state.
//! - Backups that carry the end of the WAL: a crash could leave a gap.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod options;
pub(crate) mod reads;
pub(crate) mod write_sets;
pub(crate) mod helper;
pub(crate) mod index_entries;
pub(crate) mod inner;
pub(crate) mod index_batches;
pub(crate) mod segments;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod manifest_commit;
pub(crate) mod recovery;
pub(crate) mod backup;
pub(crate) mod store;
pub(crate) mod write_batch;
pub(crate) mod transaction;
pub(crate) mod install;
pub(crate) mod derive;
pub(crate) mod compact;
pub(crate) mod versions;
pub(crate) mod feed;
pub(crate) mod feed_cursor;
pub(crate) mod reader;
pub(crate) mod files;
pub(crate) mod followed_copy;
pub(crate) mod follower;

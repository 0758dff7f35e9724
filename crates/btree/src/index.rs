//! The index as a process uses it: one writer, any number of readers in other processes, and
//! snapshots.
//!
//! May import: every folder above, except `check`.
//!
//! Begin with `index` (the public handle) and `writer` (its state, and room for a batch). The
//! writer's work stands in `flush`, `apply`, `checkpoint`, `rewrite` (changes of the whole tree)
//! and `full_disk` (removals without room); `maintain` has the public calls on top of them.
//! `directory` and `published` are what every opening needs. Then `reader` (a published state in
//! another process) and `lease` (the pages that a writer must keep for it), `snapshot` and `scrub`.
//!
//! Lock order: the writer's mutex, then the visible state, then a shard of the page cache. Readers
//! in other processes take no lock of the writer: they write a lease and check that it came in
//! time.
//!
//! Invariants: a published tree with the WAL behind it is what was flushed. The WAL is durable up
//! to a tree before the superblock of that tree is written. A failed sync poisons the writer; any
//! other failure leaves everything as it was.
//!
//! Filtering, clearing and building make a tree that nobody sees, and publish it: all of it or
//! nothing. From then on each frame of the WAL says so, so that no reader puts new updates above an
//! old tree.
//!
//! Rejected: shared memory between processes; a list of changed pages for readers to drop (pages
//! keep their content); counting entries lazily (`len` would cost an apply of everything).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod lease;
pub(crate) mod directory;
pub(crate) mod published;
pub(crate) mod snapshot;
pub(crate) mod scrub;
pub(crate) mod writer;
pub(crate) mod checkpoint;
pub(crate) mod rewrite;
pub(crate) mod apply;
pub(crate) mod flush;
pub(crate) mod full_disk;
pub(crate) mod index;
pub(crate) mod maintain;
pub(crate) mod reader;

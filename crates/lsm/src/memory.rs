//! Memory: the budget of a table for memtables, filters and indexes, and the budget of a session.
//!
//! A table with a memory budget stays within it at all times, whatever the size of the table. This
//! folder imports `run`, `filter`, `block` and `config`; `compaction` and `table` call it before
//! they take memory.
//!
//! Begin with [`budget`]: how memtables, filters and indexes share the bytes, and how filters are
//! reduced when a compaction begins. The [cache of pages](crate::run::page_cache) has the rest.
//! [`grants`] is the budget of a session: it grants tables, cursors and one cache what they hold
//! (RocksDB: `WriteBufferManager`).
//!
//! Invariant: a compaction gets no more than what is free when it begins, and nothing but the
//! beginning of a compaction adds to what is held.
//!
//! Lock order: the accounts of a session, the members of a page cache, then one of its shards.
//!
//! Rejected:
//! - filter bits by a forecast of the table's size: half of the budget lies idle, and a growing
//!   table overtakes any forecast;
//! - first come, first served: the last level takes everything, and small runs are read in vain;
//! - one cache for each session whose tables have budgets of their own; one for each fork, which
//!   keeps pages twice;
//! - caching entries: the page is what was read, and its neighbours come free;
//! - a queue by age with linked lists: 16 bytes more a page, for the same hits on hot keys.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod budget;
pub(crate) mod grants;

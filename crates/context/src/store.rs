//! Store: one writer and many readers of a directory — commits, branches, history, collection,
//! check, repair.
//!
//! May import `base`, `object`, `tree`, `pack` and `proof`. Begin with [`store`](mod@store) (the
//! writer),
//! then [`inner`] (state that writer and reader share), [`reader`], [`gc`]. Only [`tezos`] knows a
//! Tezos node.
//!
//! **Lock order.** A thread that holds a lock takes only locks further down:
//!
//! | level | lock | held by |
//! |-------|------|---------|
//! | 0 | `Store::collector` | the start of a collection on a thread of its own; released by `close` before it joins the thread |
//! | 1 | `Store::collection` | a collection, an import, `add_volume`, `close`, for all of the call |
//! | 2 | `Store::writer` | every append, checkpoint and branch change; a search by hash |
//! | 2 | `StoreReader::tail` | `StoreReader::sync` |
//! | 3 | `StoreInner::view` | short reads and updates; a checkout while it pins its root |
//! | 3 | `Syncer::state` | group commit; released during the fsync |
//! | 3 | `StoreInner::tables` | a reader that looks a commit up, while it reads tables from the pack |
//! | 4 | `Syncer::{written, thread}`, `Store::{reserve, held, collected_to, marks, counters, preimages}`, pins, `Watches::{queue, list}`, the index | one at a time |
//! | 5 | `Pack::catalog`, handles and cache of the pack | one at a time |
//!
//! No two locks of level 3 are held together. Level 4 is taken under level 1, 2 or 3: `written`
//! under `state`; pins, `queue` and `counters` under `view`. `collection` is only tried, but for
//! `close`, which waits. Watches are called under no lock, so a watch may close the store.
//!
//! Two rules depend on the order: a collection hides commits and looks at pins under one `view`
//! lock, so no checkout slips between; and it switches to its marks under `writer`, so no append
//! refers to garbage.
//!
//! Rejected: a write-ahead log beside the pack (the last frames are the log); watch calls under
//! `writer` (a call that commits would wait for itself); a channel for each watch (grows while
//! nobody reads).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod context;
pub(crate) mod options;
pub(crate) mod watch;
pub(crate) mod verified_source;
pub(crate) mod inner;
pub(crate) mod syncer;
pub(crate) mod reindex;
pub(crate) mod store;
pub(crate) mod auto_flush;
pub(crate) mod reader;
pub(crate) mod gc;
pub(crate) mod background_gc;
pub(crate) mod check;
pub(crate) mod repair;
pub(crate) mod history;
pub(crate) mod branches;
pub(crate) mod tezos;

//! Events of the engine, through the `tracing` crate, with the target `terrane_lsm`.
//!
//! Each event has a name, which is also its message, and the field `session`, the directory of the
//! session. The fields `table` and `cursor` hold numbers that are unique in a session.
//!
//! An operation that changes something emits an event when it begins and another one when it has
//! succeeded; a failed operation emits the first one only. A read emits one event.
//!
//! | events | level | fields |
//! |---|---|---|
//! | `session.open`, `.new` or `.restore`, `.opened`; `.close`, `.closed` | DEBUG | |
//! | `session.list_snapshots`, `.snapshot_exists`, `.snapshot_info` | DEBUG | `snapshot` |
//! | `session.delete_snapshot`, `.deleted`; `.rename_snapshot`, `.renamed` | DEBUG | `snapshot`, `to` |
//! | `session.export_snapshot`, `.exported`; `.import_snapshot`, `.imported` | DEBUG | `snapshot` |
//! | `session.import_canonical`, `.canonical_imported` | DEBUG | |
//! | `session.retrieve_blobs` | TRACE | `count` |
//! | `store.recovered` | DEBUG | `from`, `to`: the commits of the manifest and of the log; `log_bytes` |
//! | `store.create_table`, `.rename_table`, `.drop_table` | DEBUG | `name`, `to` |
//! | `store.install`, `.installed` | DEBUG | `name` |
//! | `store.checkpoint`, `.checkpointed` | DEBUG | `commit` |
//! | `transaction.conflict` | DEBUG | `conflict`: why an attempt is repeated |
//! | `checkpoint.failed` | WARN | `error` |
//! | `table.new`, `.newed` | DEBUG | `duplicate_of`, `union_of` or `snapshot` |
//! | `table.close`, `.closed`; `.set_config`, `.config_set` | DEBUG | |
//! | `table.save_snapshot`, `.saved` | DEBUG | `snapshot` |
//! | `table.export_canonical` | DEBUG | |
//! | `table.lookups` | TRACE | `count` |
//! | `table.submit` | TRACE | `count` |
//! | `table.range_lookup` | TRACE | |
//! | `table.updates`, `.updated` | TRACE | `count` |
//! | `table.union_debt`; `.supply_union_credits`, `.union_credits_supplied` | TRACE | `credits`, `unused` |
//! | `cursor.new`, `.closed` | DEBUG | `table` |
//! | `cursor.read` | TRACE | `count` |
//! | `diff.new`, closed as a cursor | DEBUG | `table`, `newer` |
//! | `diff.read` | TRACE | |
//! | `memory.flush` | DEBUG | a memtable is flushed early, since the session's budget has no room for it |
//! | `memory.flush_failed` | WARN | `error`: why the memtable stays; its next flush is due as ever |
//! | `reserve.missing`, `.let_go`, `.taken_back` | WARN | `bytes`, `error` |
//! | `session.damaged` | WARN | `error`: a snapshot or the manifest that cannot be read, so that no run is removed |
//! | `store.manifest_damaged` | WARN | `path`, `reason`: of one copy; the other one is used, and written in its place |
//! | `orphans.kept`, `.taken_back` | WARN | `count` of files that were moved to `lost+found`, and from there |
//! | `reader.unleased` | WARN | `error`: why no lease could be written; a shared lock is held instead |
//! | `log.unmarked` | WARN | `commit`: durable, but the log does not say so; `error` |
//! | `log.segment_unusable` | WARN | `path`, `error`: an old segment cannot be written again; a new file took its place |
//! | `cleanup.failed` | WARN | `error`: what could not be removed, and why |
//!
//! Builds with debug assertions also emit the compaction schedule, at level TRACE: `table.flush`,
//! `table.level_added`, `table.run_added`, `table.union_folded`, `merge.started`, `merge.forced` (a
//! compaction was completed because it was due, with this many pages left), `merge.completed`.
//!
//! Without a subscriber an event costs a comparison.

/// Emits an event of the session in the directory `$dir`.
macro_rules! event {
    ($level:ident, $name:literal, $dir:expr $(, $($field:tt)+)?) => {
        tracing::event!(
            name: $name,
            target: "terrane_lsm",
            tracing::Level::$level,
            message = $name,
            session = %$dir.display()
            $(, $($field)+)?
        )
    };
}

/// Emits an event in builds with debug assertions only.
macro_rules! debug_event {
    ($name:literal, $dir:expr $(, $($field:tt)+)?) => {
        if cfg!(debug_assertions) {
            crate::trace::event!(TRACE, $name, $dir $(, $($field)+)?);
        }
    };
}

pub(crate) use {debug_event, event};

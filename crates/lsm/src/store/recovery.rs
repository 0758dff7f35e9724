//! The opening of a store: its tables as the manifest has them, and the log applied to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::rare;

use crate::entry::merge_operator::MergeOperator;
use crate::error::Result;
use crate::files::file_set::lock;
use crate::manifest::manifest::{NamedMeta, StoreManifest, VersionMeta};
use crate::manifest::wal::{LOG, SegmentScan, segment_name, segments};
use crate::manifest::wal_reader::WalReader;
use crate::session::inner::{Holder, SessionInner};
use crate::session::snapshot::{self, OpenOptions};
use crate::store::inner::{FoundLog, Slot, State, corrupted, damaged};
use crate::table::table::Table;

/// Weight of a memtable in each table up to which recovery does not flush: 64 MiB of WAL with
/// entries of ordinary size and a half more. What is longer than that is written out as a run.
const REPLAYED_BYTES_MAX: u64 = 128 << 20;

/// Opens all named tables.
pub(crate) fn open_tables(
    inner: &Arc<SessionInner>,
    manifest: &StoreManifest,
    merge_operators: &[MergeOperator],
) -> Result<BTreeMap<u64, Arc<Slot>>> {
    let mut tables = BTreeMap::new();
    for named in &manifest.tables {
        tables.insert(named.id, Slot::of(open_table(inner, named, merge_operators)?));
    }
    Ok(tables)
}

/// Opens a named table as the manifest has it.
pub(crate) fn open_table(
    inner: &Arc<SessionInner>,
    NamedMeta { name, meta, .. }: &NamedMeta,
    merge_operators: &[MergeOperator],
) -> Result<Table> {
    let session = inner.register(Holder::Table);
    let mut meta = meta.clone();
    let given = merge_operators.iter().find(|resolve| resolve.name() == meta.resolve);
    meta.config.merge_operator = snapshot::resolve_of(name, &meta.resolve, given)?;
    let tree =
        snapshot::open_tree(&session, name, &meta, &OpenOptions::default()).map_err(damaged)?;
    Ok(Table::new(session, tree, meta.config))
}

/// Applies the log from where the manifest says; `older` is what its other copy says, if that is
/// older. Returns how long that part is.
pub(crate) fn recover(
    inner: &SessionInner,
    manifest: &StoreManifest,
    older: Option<&StoreManifest>,
    (is_logged, state): (bool, &mut State),
) -> Result<u64> {
    let disk = inner.disk();
    let dir = inner.dir();
    let has_log = disk.kind(&dir.join(LOG))?.is_some();
    let numbers = if has_log { segments(disk, dir)? } else { Vec::new() };

    let leased = inner.leased_segment()?.min(inner.cursor_needs()?.named);
    let spares = |number: &u64| {
        let is_old = manifest.segment == 0 || *number < manifest.segment;
        let mut manifests = std::iter::once(manifest).chain(older);
        is_old && *number < leased && !manifests.any(|manifest| manifest.needs_segment(*number))
    };

    state.spares = numbers.iter().copied().filter(spares).collect();
    if manifest.sequence == 0 {
        // Before the first manifest nothing is committed: these are of an attempt to make it that
        // has failed. The next one begins with the first number again, so that a greater one tells
        // of a manifest.
        for number in state.spares.drain(..) {
            rare::taken("a segment that was being made is removed");
            disk.remove(&dir.join(LOG).join(segment_name(number)))?;
        }
        return Ok(0);
    }

    if manifest.segment == 0 {
        state.segment = numbers.last().copied().unwrap_or(0);
        return Ok(0);
    }

    let from = (manifest.segment, manifest.commit);

    let mut walk =
        WalReader::begin(inner.files().disk(), dir, inner.salt(), from).map_err(damaged)?;
    while walk.advance().map_err(damaged)? {
        apply(&walk, manifest.next_table, state).map_err(damaged)?;
    }
    walk.check_end().map_err(damaged)?;

    if let Some(version) = manifest.versions.iter().find(|version| version.number > walk.commit()) {
        // The log was durable up to there when the version was retained.
        let reason = ends_before(version.number, walk.commit());
        return Err(corrupted(&dir.join(LOG).join(segment_name(walk.segment())), reason));
    }

    debug_assert!(walk.segment() >= manifest.segment, "the WAL is read forwards");
    state.segment = walk.segment();
    let from = manifest.segment;
    let last = walk.segment();
    let end = walk.position();
    state.found = is_logged.then_some(FoundLog { from, last, end });

    for number in numbers {
        if number > state.segment {
            // It was being made when the process ended, or the records before it are torn: then
            // the walk has seen that none of its commits was durable.
            let is_next = number == state.segment + 1;
            if !is_next
                && let Some(mut scan) = SegmentScan::open(disk, dir, inner.salt(), number)?
                && scan.advance()?
            {
                // Records are written to a segment only when the one before the last is sealed.
                let path = dir.join(LOG).join(segment_name(state.segment));
                return Err(corrupted(&path, "the seal is missing"));
            }
            disk.remove(&dir.join(LOG).join(segment_name(number)))?;
        }
    }

    Ok(walk.bytes())
}

/// The reason that a log is damaged which ends before a version.
pub(crate) fn ends_before(version: u64, last: u64) -> String {
    format!("the log ends with commit {last}, and version {version} was retained")
}

/// Applies the log to tables that were opened as the base of a version has them, up to the commit
/// of the version; `next_table` is a number that no table has.
pub(crate) fn apply_log_of_version(
    inner: &SessionInner,
    version: &VersionMeta,
    next_table: u64,
    tables: &mut BTreeMap<u64, Table>,
) -> Result<()> {
    if version.until == 0 {
        return Ok(());
    }
    let from = (version.base.segment, version.base.commit);

    // A reader has no file to write runs to.
    let flush_at = (!inner.is_read_only()).then_some(REPLAYED_BYTES_MAX);
    let mut walk = WalReader::begin(inner.files().disk(), inner.dir(), inner.salt(), from)?;
    while walk.commit() < version.number {
        inner.check_open()?;
        if !walk.advance()? {
            let path = inner.dir().join(LOG).join(segment_name(walk.segment()));
            return Err(corrupted(&path, ends_before(version.number, walk.commit())));
        }
        let Some(record) = walk.record() else { continue };
        for part in record.updates(next_table)? {
            if let Some(table) = tables.get_mut(&part.table) {
                table.replay(&part.updates, flush_at)?;
            }
        }
    }

    debug_assert_eq!(walk.commit(), version.number, "commits have no gap");
    Ok(())
}

/// Applies the record that a walk has come to.
fn apply(walk: &WalReader, next_table: u64, state: &mut State) -> Result<()> {
    let Some(record) = walk.record() else { return Ok(()) };
    for part in record.updates(next_table)? {
        // A table that is not there was dropped since.
        let Some(slot) = state.tables.get(&part.table) else { continue };
        if let Some(named) = &mut *lock(&slot.table) {
            named.table.replay(&part.updates, Some(REPLAYED_BYTES_MAX))?;
            state.changes += 1;
            named.changed = state.changes;
        }
    }
    debug_assert!(record.commit > state.commit, "records stand in the order of commits");
    state.commit = record.commit;
    Ok(())
}

//! The opening of a store: its tables as the manifest has them, and the log applied to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Result;
use crate::log::{LOG, SegmentScan, segment_name, segments};
use crate::resolve::Resolve;
use crate::session_core::{Holder, SessionCore};
use crate::snapshot::{self, Verify};
use crate::store_core::{Named, State, corrupted, damaged};
use crate::store_manifest::{NamedMeta, StoreManifest};
use crate::table::Table;

/// Opens all named tables.
pub(crate) fn open_tables(
    core: &Arc<SessionCore>,
    manifest: &StoreManifest,
    resolves: &[Resolve],
) -> Result<BTreeMap<u64, Named>> {
    let mut tables = BTreeMap::new();
    for named in &manifest.tables {
        let table = open_table(core, named, resolves)?;
        let (id, slot) = (named.id, Arc::default());
        tables.insert(id, Named { table, changed: 0, written: 0, slot });
    }
    Ok(tables)
}

/// Opens a named table as the manifest has it.
pub(crate) fn open_table(
    core: &Arc<SessionCore>,
    NamedMeta { name, meta, .. }: &NamedMeta,
    resolves: &[Resolve],
) -> Result<Table> {
    let session = core.register(Holder::Table);
    let mut meta = meta.clone();
    let given = resolves.iter().find(|resolve| resolve.name() == meta.resolve);
    meta.config.resolve = snapshot::resolve_of(name, &meta.resolve, given)?;
    let tree = snapshot::open_tree(&session, name, &meta, Verify::Lazy).map_err(damaged)?;
    Ok(Table::new(session, tree, meta.config))
}

/// Applies the log from where the manifest says. Returns how long that part is.
pub(crate) fn recover(
    core: &SessionCore,
    manifest: &StoreManifest,
    state: &mut State,
) -> Result<u64> {
    let (disk, dir) = (core.disk(), core.dir());
    let has_log = disk.kind(&dir.join(LOG))?.is_some();
    let numbers = if has_log { segments(disk, dir)? } else { Vec::new() };
    let leased = core.leased_segment()?;
    let spares =
        |number: &u64| (manifest.segment == 0 || *number < manifest.segment) && *number < leased;
    state.spares = numbers.iter().copied().filter(spares).collect();
    if manifest.segment == 0 {
        state.segment = numbers.last().copied().unwrap_or(0);
        return Ok(0);
    }
    let mut log_bytes = 0;
    state.segment = manifest.segment - 1;
    loop {
        let number = state.segment + 1;
        let is_there = numbers.contains(&number);
        let scan = if is_there { SegmentScan::open(disk, dir, core.salt(), number)? } else { None };
        let Some(scan) = scan else {
            // The segment before says that it was there.
            let path = dir.join(LOG).join(segment_name(number));
            let reason = if is_there { "not a segment of the log" } else { "the file is missing" };
            return Err(corrupted(&path, reason));
        };
        let is_sealed = scan.sealed.is_some();
        log_bytes += apply_segment(scan, manifest.next_table, state).map_err(damaged)?;
        state.segment = number;
        if !is_sealed {
            break;
        }
    }
    for number in numbers {
        if number > state.segment {
            if let Some(mut scan) = SegmentScan::open(disk, dir, core.salt(), number)?
                && scan.next()?.is_some()
            {
                // Records are written to a segment only when the one before is sealed.
                let path = dir.join(LOG).join(segment_name(state.segment));
                return Err(corrupted(&path, "the seal is missing"));
            }
            // It was being made when the process ended.
            disk.remove(&dir.join(LOG).join(segment_name(number)))?;
        }
    }
    Ok(log_bytes)
}

/// Applies the records of a segment. Returns the length of the segment up to there.
pub(crate) fn apply_segment(
    mut scan: SegmentScan,
    next_table: u64,
    state: &mut State,
) -> Result<u64> {
    let first = scan.header.first;
    if first != state.commit + 1 {
        return Err(scan.damage(0, "first commit of the segment", state.commit + 1, first));
    }
    loop {
        let at = scan.position();
        let Some(record) = scan.next()? else { break };
        if record.commit != state.commit + 1 {
            return Err(scan.damage(at, "number of the commit", state.commit + 1, record.commit));
        }
        let Ok(parts) = record.parts() else {
            return Err(scan.damage(at, "updates of the commit", record.commit, 0));
        };
        for part in &parts {
            if part.table >= next_table {
                let last = next_table.saturating_sub(1);
                return Err(scan.damage(at, "number of a table", last, part.table));
            }
            // A table that is not there was dropped since.
            if let Some(named) = state.tables.get_mut(&part.table) {
                named.table.updates(&part.updates)?;
                (state.changes, named.changed) = (state.changes + 1, state.changes + 1);
            }
        }
        state.commit = record.commit;
    }
    scan.check_end(state.commit)?;
    Ok(scan.position())
}

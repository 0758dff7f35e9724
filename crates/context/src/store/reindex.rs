//! Rebuilding the index of a store whose index is lost or stale, or that is repaired.
//!
//! The index has an entry with the number of its commits and the identity of its store. An index
//! without the entry, or with fewer commits than the control record counts, is stale.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::pack::control::{Control, Indexing};
use crate::pack::index::{
    IndexEngine, IndexKey, IndexValue, Object, ObjectIndex, STATE_KEY, key, state_value, value,
};
use crate::pack::marks::Marks;
use crate::store::inner::StoreInner;

/// Entries of one insertion into the index.
const BATCH: usize = 4096;

/// Returns whether an index states that it has all commits of a control record.
pub(crate) fn is_current(index: &dyn ObjectIndex, control: &Control) -> Result<bool> {
    let Some(state) = index.find(&STATE_KEY).map_err(Error::index)? else {
        // A store without a control record since its creation needs no state; entries may exist
        // already.
        return Ok(control.commits == 0);
    };
    let least = state_value(control.commits, control.store);
    let commits = |state: &IndexValue| state.first_chunk().map_or(0, |at| u64::from_le_bytes(*at));
    Ok(state[8..] == least[8..] && commits(&state) >= control.commits)
}

/// Opens the index for writing, and rebuilds it if it is lost or stale. Returns the number of
/// entries of a rebuilt index.
pub(crate) fn open_current(
    inner: &mut StoreInner,
    engine: &Arc<dyn IndexEngine>,
) -> Result<Option<u64>> {
    let dir = inner.pack.locations().index();
    let open =
        |inner: &StoreInner| engine.open(Arc::clone(&inner.disk), &dir).map_err(Error::index);
    let control = inner.view().control;

    let index = open(inner)?;

    if is_current(&*index, &control)? {
        inner.index = Some(index);
        return Ok(None);
    }

    // The files are removed and made anew, so the index is closed first.
    index.close().map_err(Error::index)?;
    drop(index);
    let (_, entries) = make(inner, engine, is_of_object, &mut |_| {})?;
    inner.index = Some(open(inner)?);

    Ok(Some(entries))
}

/// Findings of a walk over the commits.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// Commits whose records are readable.
    pub(crate) commits: u64,
    /// Unreadable commits and directories.
    pub(crate) unreadable: u64,
}

/// Returns whether an error is about stored bytes of one object, which its readers report.
fn is_of_object(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Collected { .. } | Error::VolumeMissing { .. })
}

/// Calls `add` with each entry of the index. Objects whose errors `skips` lets pass, and all that
/// only they reach, are left out; an unreadable commit has its entry all the same.
///
/// Cost: reads the commits; for an index of all objects, everything that is in use.
///
/// # Errors
/// Errors of `add` and errors that `skips` stops at; the error of a commit whose predecessor
/// nothing names.
pub(crate) fn walk(
    inner: &StoreInner,
    skips: fn(&Error) -> bool,
    add: &mut dyn FnMut((IndexKey, IndexValue)) -> Result<()>,
) -> Result<Walked> {
    let control = inner.view().control;
    let all = control.indexing == Indexing::Always;
    let tail = control.tail;

    // With volumes, earlier chunks have objects as well.
    let first = if control.volumes > 0 { 0 } else { control.first };
    let mut seen = Marks::new(first, tail.chunk + 1);
    let mut walked = Walked::default();
    let mut unreadable = 0;

    for (extent, record) in inner.chain() {
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                let is_last = extent.at < control.retained;
                if !skips(&error) || (!is_last && inner.commit_before(extent.at).is_err()) {
                    return Err(error);
                }
                walked.unreadable += 1;

                // With an entry, a lookup reports the damage instead of an unknown commit.
                if let Some(hash) = inner.hash_in_tables(extent).filter(|_| extent.at < tail) {
                    add((key(Object::Commit, &hash), value(extent)))?;
                }
                continue;
            }
        };
        walked.commits += 1;

        // Commits behind the tail are in the view, and are indexed by the next control record.
        if extent.at < tail {
            add((key(Object::Commit, &record.commit.hash), value(extent)))?;
        }
        if let Some(root) = record.root.filter(|root| all && root.extent.at < tail) {
            let mut skip = |error| {
                unreadable += 1;
                if skips(&error) { Ok(()) } else { Err(error) }
            };
            inner.each_object(root, &mut seen, &mut skip, &mut |object, link| {
                add((key(object, &link.hash), value(link.extent)))
            })?;
        }
    }

    walked.unreadable += unreadable;
    Ok(walked)
}

/// Returns whether the index is complete and readable, so that a repair can keep it.
pub(crate) fn is_intact(inner: &StoreInner, engine: &Arc<dyn IndexEngine>) -> bool {
    let dir = inner.pack.locations().index();
    let Ok(Some(index)) = engine.read(Arc::clone(&inner.disk), &dir) else { return false };
    let control = inner.view().control;
    // Reads all entries, so that damage is found now and not by a later lookup.
    let is_intact = is_current(&*index, &control).unwrap_or(false)
        && index.each_from(&STATE_KEY, &mut |_, _| true).is_ok();
    index.close().is_ok() && is_intact
}

/// Rebuilds the index. Returns the number of readable commits of the store, and of entries of the
/// index.
///
/// Cost: that of [`walk`].
pub(crate) fn make(
    inner: &StoreInner,
    engine: &Arc<dyn IndexEngine>,
    skips: fn(&Error) -> bool,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u64)> {
    let dir = inner.pack.locations().index();
    engine.remove(&*inner.disk, &dir).map_err(Error::index)?;
    let index = engine.open(Arc::clone(&inner.disk), &dir).map_err(Error::index)?;

    let mut batch: Vec<(IndexKey, IndexValue)> = Vec::new();
    let mut entries = 0;

    let mut add = |entry: Option<(IndexKey, IndexValue)>| -> Result<()> {
        let is_last = entry.is_none();
        batch.extend(entry);
        if is_last || batch.len() >= BATCH {
            entries += batch.len() as u64;
            progress(batch.len() as u64);
            index.insert(&batch).map_err(Error::index)?;
            batch.clear();
        }
        debug_assert!(batch.len() < BATCH, "a full batch was inserted");
        Ok(())
    };

    let walked = walk(inner, skips, &mut |entry| add(Some(entry)))?;
    add(None)?;

    // The state is the last entry, so that an interrupted rebuild is repeated.
    index.flush().map_err(Error::index)?;
    let control = inner.view().control;
    let state = (STATE_KEY, state_value(control.commits, control.store));
    index.insert(&[state]).map_err(Error::index)?;
    index.flush().map_err(Error::index)?;
    index.close().map_err(Error::index)?;

    Ok((walked.commits, entries))
}

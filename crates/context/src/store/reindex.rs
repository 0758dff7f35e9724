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

    index.close().map_err(Error::index)?;
    drop(index);
    let (_, entries) = make(inner, engine, &mut |_| {})?;
    inner.index = Some(open(inner)?);

    Ok(Some(entries))
}

/// Rebuilds the index. Returns the number of commits of the store, and of entries of the index.
///
/// Cost: reads the commits; for an index of all objects, everything that is in use.
pub(crate) fn make(
    inner: &StoreInner,
    engine: &Arc<dyn IndexEngine>,
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
        Ok(())
    };

    let control = inner.view().control;
    let all = control.indexing == Indexing::Always;
    let tail = control.tail;

    // With volumes, earlier chunks have objects as well.
    let first = if control.volumes > 0 { 0 } else { control.first };
    let mut seen = Marks::new(first, tail.chunk + 1);
    let mut commits = 0;

    for commit in inner.newest() {
        let (extent, record) = commit?;
        commits += 1;

        // Commits behind the tail are in the view, and are indexed by the next control record.
        if extent.at < tail {
            add(Some((key(Object::Commit, &record.commit.hash), value(extent))))?;
        }
        if let Some(root) = record.root.filter(|root| all && root.extent.at < tail) {
            inner.each_object(root, &mut seen, &mut Err, &mut |object, link| {
                add(Some((key(object, &link.hash), value(link.extent))))
            })?;
        }
    }

    add(None)?;

    // The state is the last entry, so that an interrupted rebuild is repeated.
    index.flush().map_err(Error::index)?;
    let state = (STATE_KEY, state_value(control.commits, control.store));
    index.insert(&[state]).map_err(Error::index)?;
    index.flush().map_err(Error::index)?;
    index.close().map_err(Error::index)?;

    Ok((commits, entries))
}

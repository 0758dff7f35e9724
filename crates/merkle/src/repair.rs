//! Repair: the index and the control record, which can be made again from the pack, are.
//!
//! The pack itself is not changed. A control record that is whole and leads anywhere stays; in the place of one that is lost, or
//! leads to what is damaged, comes the last copy in the pack. The index is always made anew.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Disk, OpenMode};

use crate::address::Address;
use crate::check::{chunk_numbers, open};
use crate::chunk::Chunk;
use crate::commit::STATE;
use crate::control::{CONTROL, CONTROL_PAGE_BYTES, Control, Indexing};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::frame::FrameKind;
use crate::index::{IndexEngine, IndexKey, IndexValue, Object, key, value};
use crate::marks::Marks;
use crate::pack::Pack;
use crate::store::{index_dir, read_control, take_lock};

/// Entries that are put into the index at once.
const BATCH: usize = 4096;

/// What a repair has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepairReport {
    /// The control record was made again.
    pub control: bool,
    /// Entries of the new index.
    pub indexed: u64,
    /// Commits that the store has.
    pub commits: u64,
    /// Branches that it has.
    pub branches: u64,
}

/// Makes the control record again if it is lost or leads to what is damaged, and the index anew. Nobody else may have the store open for writing.
///
/// Cost: reads the commits; for a lost control record, the chunks from the last one back to the first that has a copy; for
/// an index of all objects, everything that is in use.
///
/// # Errors
/// [`Locked`](Error::Locked), [`NotFound`](Error::NotFound) without any chunk, [`Corrupt`](Error::Corrupt) if there is no copy
/// of the control record or what it refers to is damaged, [`Disk`](Error::Disk), [`Index`](Error::Index).
pub fn repair(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: &Arc<dyn IndexEngine>,
    progress: &mut dyn FnMut(u64),
) -> Result<RepairReport> {
    let _lock = take_lock(&**disk, dir)?;
    let mut report = RepairReport::default();
    let pack = Arc::new(Pack::new(Arc::clone(disk), dir, false, 64 << 20));
    let core = match open(disk, dir, &pack, None) {
        Ok(core) => core,
        Err(
            error @ (Error::Corrupt { .. }
            | Error::NotFound { .. }
            | Error::NotAContextStore { .. }),
        ) => {
            let Some(control) = control_of_pack(&**disk, dir, &pack)? else { return Err(error) };
            write_control(&**disk, dir, &control)?;
            report.control = true;
            open(disk, dir, &pack, None)?
        }
        Err(error) => return Err(error),
    };
    report.branches = core.view().branches.len() as u64;
    report.commits = rebuild(&core, index, &mut report.indexed, progress)?;
    Ok(report)
}

/// The control record that the last frame with a copy of it leads to.
fn control_of_pack(disk: &dyn Disk, dir: &Path, pack: &Pack) -> Result<Option<Control>> {
    let path = dir.join(CONTROL);
    let sequence = read_control(disk, dir).ok().and_then(|all| Some(all.first()?.sequence));
    for number in chunk_numbers(disk, dir)?.into_iter().rev() {
        let Ok(chunk) = pack.chunk(number) else { continue };
        if let Some(mut control) = control_of_chunk(&path, &chunk)? {
            // Above what either page has.
            control.sequence = control.sequence.max(sequence.unwrap_or(0)) + 2;
            return Ok(Some(control));
        }
    }
    Ok(None)
}

fn control_of_chunk(path: &Path, chunk: &Chunk) -> Result<Option<Control>> {
    let mut last = None;
    for (run, head) in chunk.frames()? {
        if head.kind != FrameKind::Branches {
            continue;
        }
        chunk.each_record(run, &mut |_, body| {
            if let Ok([STATE, copy @ ..]) = body {
                let end = Address { chunk: chunk.head.number, unit: run.unit + run.units };
                last = Some((Control::of_copy(path, copy)?, end, head.crc));
            }
            Ok(())
        })?;
    }
    Ok(last.map(|(control, tail, chain)| Control { tail, chain, ..control }))
}

fn write_control(disk: &dyn Disk, dir: &Path, control: &Control) -> Result<()> {
    let staged = dir.join("control.new");
    let file = disk.open(&staged, OpenMode::Truncate, Access::Buffered)?;
    file.set_len(2 * CONTROL_PAGE_BYTES as u64)?;
    file.write_at(&control.encode(), control.offset())?;
    file.sync()?;
    drop(file);
    disk.rename(&staged, &dir.join(CONTROL))?;
    Ok(disk.sync_dir(dir)?)
}

/// Makes the index anew; how many commits it has.
fn rebuild(
    core: &Core,
    engine: &Arc<dyn IndexEngine>,
    indexed: &mut u64,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    let dir = index_dir(&core.dir);
    engine.remove(&*core.disk, &dir).map_err(Error::index)?;
    let index = engine.open(Arc::clone(&core.disk), &dir).map_err(Error::index)?;
    let mut batch: Vec<(IndexKey, IndexValue)> = Vec::new();
    let mut add = |entry: Option<(IndexKey, IndexValue)>| -> Result<()> {
        let is_last = entry.is_none();
        batch.extend(entry);
        if is_last || batch.len() >= BATCH {
            *indexed += batch.len() as u64;
            progress(batch.len() as u64);
            index.insert(&batch).map_err(Error::index)?;
            batch.clear();
        }
        Ok(())
    };
    let (all, tail) = {
        let control = core.view().control;
        (control.indexing == Indexing::Always, control.tail)
    };
    let control = core.view().control;
    // With volumes, objects of the chunks before are there as well.
    let first = if control.volumes > 0 { 0 } else { control.first };
    let mut seen = Marks::new(first, tail.chunk + 1);
    let mut commits = 0;
    for commit in core.newest() {
        let (place, record) = commit?;
        commits += 1;
        if place.at < tail {
            add(Some((key(Object::Commit, &record.commit.hash), value(place))))?;
        }
        if let Some(root) = record.root.filter(|root| all && root.place.at < tail) {
            core.each_object(root, &mut seen, &mut Err, &mut |object, link| {
                add(Some((key(object, &link.hash), value(link.place))))
            })?;
        }
    }
    add(None)?;
    index.flush().map_err(Error::index)?;
    index.close().map_err(Error::index)?;
    Ok(commits)
}

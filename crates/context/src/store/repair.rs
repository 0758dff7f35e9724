//! Repair: rebuilds the index, the control record and the markers of volumes from the pack.
//!
//! Intact files stay as they are. A control record that leads to intact frames stays; the last copy
//! in the pack replaces one that is lost or leads to damage. The index is always rebuilt.
//!
//! A pack that ends before its durable end has lost commits. Without consent ([`Loss`]) a repair
//! refuses such a pack. With consent, it moves all bytes behind the first damage to the directory
//! `lost+found`, and the report names the lost commits.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Disk, OpenMode};

use crate::base::address::Address;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::pack::archive::heal_markers;
use crate::pack::chunk::{Chunk, chunk_path};
use crate::pack::commit::{Branches, COMMIT, CommitRecord, STATE, apply_branches};
use crate::pack::control::{CONTROL, Control, ControlFile};
use crate::pack::frame::FrameKind;
use crate::pack::index::{IndexEngine, IndexKey, IndexValue, Object, extent, key};
use crate::pack::locations::Locations;
use crate::pack::pack::{FollowLimit, Pack};
use crate::store::check::{OpenedStore, chunk_numbers, open, open_as};
use crate::store::inner::{StoreInner, table_at};
use crate::store::reindex::make;
use crate::store::store::{enter, read_control, take_lock, write_control};

/// Directory that receives the bytes behind the damage.
const LOST_AND_FOUND: &str = "lost+found";
/// Upper bound of the named commits; further ones are only counted.
const NAMED_MAX: usize = 1000;

/// Consent to the loss of durable commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The repair is refused, and changes nothing.
    Refused,
    /// The repair drops the lost commits, and names them.
    Accepted,
}

/// Commits and bytes that a repair dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// Number of lost commits.
    pub commit_count: u64,
    /// Known hashes of lost commits, from the rest of the pack, the tables, and the index: the
    /// first 1,000.
    pub commits: Vec<Hash>,
    /// Branches that are known to have moved or to be gone, with their new heads.
    pub branches: Vec<(Vec<u8>, Option<Hash>)>,
    /// Bytes moved to `lost+found`.
    pub moved_bytes: u64,
}

/// Result of a repair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepairReport {
    /// Whether the control record was rewritten.
    pub control: bool,
    /// Rewritten markers of volumes.
    pub markers: u64,
    /// Entries of the new index.
    pub indexed: u64,
    /// Commits of the store.
    pub commits: u64,
    /// Branches of the store.
    pub branches: u64,
    /// Loss, if there was any.
    pub lost: Option<Lost>,
}

/// Repairs the store in `dir`: rewrites a control record that is lost, has a damaged copy, or leads
/// to damage; rewrites damaged markers of volumes that have parts of this store; and rebuilds the
/// index.
///
/// No other handle may have the store open for writing.
///
/// Cost: reads the commits; for a lost control record, the chunks from the last one back to the
/// first that has a copy; for an index of all objects, everything that is in use.
///
/// # Errors
/// [`Locked`](Error::Locked), [`NotFound`](Error::NotFound) without any chunk,
/// [`AbsentLocation`](Error::AbsentLocation), [`ForeignLocation`](Error::ForeignLocation),
/// [`WouldLose`](Error::WouldLose) if commits are lost and `loss` refuses that: nothing was changed
/// then; [`Corrupt`](Error::Corrupt) if there is no copy of the control record or what it refers to
/// is damaged, [`Disk`](Error::Disk), [`Index`](Error::Index).
#[doc(alias = "RepairDB")]
pub fn repair(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: &Arc<dyn IndexEngine>,
    loss: Loss,
    progress: &mut dyn FnMut(u64),
) -> Result<RepairReport> {
    let (dir, anchor) = enter(&**disk, dir)?;
    let dir = dir.as_path();
    let _lock = take_lock(&**disk, dir)?;
    let locations = &Locations::enter(&**disk, (dir, &anchor))?;
    let mut report = RepairReport::default();
    let path = dir.join(CONTROL);
    let read = read_control(&**disk, dir);
    let sequence = read.as_ref().map_or(0, |file| file.newest().sequence);

    // A record that leads to intact frames needs no change, or only its second copy.
    let found = match open(disk, locations) {
        Ok(found) => {
            let is_whole = read.is_ok_and(|file| file.damaged.is_empty());
            report.control = found.fell_back || !is_whole;
            found
        }
        Err(error) if is_damage(&error) => {
            // The end that must be reached: what the file `control` still says of it.
            let durable = match &read {
                Ok(file) => Some(file.durable()),
                Err(_) => ControlFile::mark_of(&**disk, &path).map(|mark| mark.end),
            };
            let mut controls = read.map(|file| file.whole).unwrap_or_default();
            controls.extend(control_of_pack(disk, locations)?);
            report.control = true;

            // A copy in the pack may lead where the file does not.
            match controls.iter().find_map(|control| open_to(disk, locations, control, durable)) {
                Some(found) => found,
                None => {
                    let found = longest(disk, locations, &controls, durable).ok_or(error)?;
                    let lost = name_lost(&**disk, dir, index, &controls, &found)?;
                    report.lost = Some(drop_lost(&**disk, dir, loss, found.end, lost)?);
                    found
                }
            }
        }
        Err(error) => return Err(error),
    };

    let inner = found.inner;
    if report.control {
        let mut control = inner.view().control;
        // The sequence must exceed those of both pages.
        control.sequence = control.sequence.max(sequence) + 2;
        write_control(&**disk, dir, &control, found.end)?;
        inner.view_mut().control = control;
    }

    // Derived files come last, from the repaired record.
    let control = inner.view().control;
    report.markers = heal_markers(&**disk, &locations.archive(), control.volumes, control.store)?;
    report.branches = inner.view().branches.len() as u64;
    (report.commits, report.indexed) = make(&inner, index, progress)?;

    Ok(report)
}

/// Returns whether an error is about stored bytes, so that another control record may lead further.
fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::NotFound { .. }
            | Error::LostControl { .. }
            | Error::NotAContextStore { .. }
            | Error::Disk(
                terrane_io::Error::Io { .. }
                    | terrane_io::Error::ShortRead { .. }
                    | terrane_io::Error::WrongKind { .. }
            )
    )
}

/// Opens the store by a control record, if intact frames lead to the durable end.
fn open_to(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    control: &Control,
    durable: Option<Address>,
) -> Option<OpenedStore> {
    let limit = FollowLimit::to(durable.unwrap_or(control.tail).max(control.tail));
    open_as(disk, locations, control, control.first, limit).ok()
}

/// Drops lost commits with the consent of the caller: moves the bytes behind `end` away.
fn drop_lost(disk: &dyn Disk, dir: &Path, loss: Loss, end: Address, lost: Lost) -> Result<Lost> {
    match loss {
        Loss::Refused => {
            Err(Error::WouldLose { path: dir.to_owned(), commits: lost.commit_count, at: end })
        }
        Loss::Accepted => Ok(Lost { moved_bytes: move_off(disk, dir, end)?, ..lost }),
    }
}

/// Opens the store by the control record that leads furthest, up to the first damage.
fn longest(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    controls: &[Control],
    durable: Option<Address>,
) -> Option<OpenedStore> {
    let open = |control: &Control| {
        let durable = durable.unwrap_or(control.tail).max(control.tail);
        let limit = FollowLimit { durable, stops_at_damage: true };
        open_as(disk, locations, control, control.first, limit).ok()
    };

    controls.iter().filter_map(open).max_by_key(|found| found.end)
}

/// Collects the commits and branches behind the recovered end.
fn name_lost(
    disk: &dyn Disk,
    dir: &Path,
    index: &Arc<dyn IndexEngine>,
    controls: &[Control],
    found: &OpenedStore,
) -> Result<Lost> {
    let inner = &found.inner;
    let mut commits = BTreeSet::new();
    add_framed(disk, dir, found, &mut commits)?;

    // The tables and branches of the newest control record, as far as they are intact.
    let mut branches = Vec::new();
    let newest = controls.iter().max_by_key(|control| control.commits);
    if let Some(newest) = newest {
        if let Some(Ok(table)) = newest.table.map(|at| table_at(&inner.pack, at)) {
            commits.extend(
                table.commits.iter().filter(|(_, at)| at.at >= found.end).map(|(hash, _)| *hash),
            );
        }
        branches = moved_branches(inner, newest);
    }

    add_indexed(index, found, &mut commits);

    // The control record counts commits whose bytes are gone.
    let counted = newest.map_or(0, |newest| newest.commits.saturating_sub(inner.view().commits));
    let commit_count = counted.max(commits.len() as u64);
    let commits = commits.into_iter().take(NAMED_MAX).collect();
    Ok(Lost { commit_count, commits, branches, moved_bytes: 0 })
}

/// Adds the commits in intact frames behind the damage.
fn add_framed(
    disk: &dyn Disk,
    dir: &Path,
    found: &OpenedStore,
    commits: &mut BTreeSet<Hash>,
) -> Result<()> {
    let inner = &found.inner;
    let empty = inner.env.rules.empty_hash();
    for number in chunk_numbers(disk, dir)?.into_iter().filter(|number| *number >= found.end.chunk)
    {
        let Ok(chunk) = inner.pack.chunk(number) else { continue };
        for run in chunk.whole_runs().unwrap_or_default() {
            let looked = chunk.each_record(run, &mut |extent, body| {
                let record = body.ok().filter(|body| body.first() == Some(&COMMIT));
                let record = record.map(|body| CommitRecord::decode(extent.at, empty, body));
                if let Some(Ok(record)) = record.filter(|_| extent.at >= found.end) {
                    commits.insert(record.commit.hash);
                }
                Ok(())
            });
            // An unreadable commit cannot be named.
            looked.ok();
        }
    }

    Ok(())
}

/// Returns the branches of a control record whose heads differ now, with their heads now.
fn moved_branches(inner: &StoreInner, control: &Control) -> Vec<(Vec<u8>, Option<Hash>)> {
    let mut heads = Branches::new();
    let Some(Ok(body)) = control.branches.map(|at| inner.pack.body(at)) else { return Vec::new() };
    if apply_branches(&body, &mut heads).is_err() {
        return Vec::new();
    }
    let now = heads.into_iter().map(|(name, head)| (inner.branch(&name), name, head));
    now.filter(|(now, _, head)| *now != Some(*head)).map(|(now, name, _)| (name, now)).collect()
}

/// Adds the commits behind the damage that the index has: their bytes may be gone.
fn add_indexed(index: &Arc<dyn IndexEngine>, found: &OpenedStore, commits: &mut BTreeSet<Hash>) {
    let inner = &found.inner;
    let dir = inner.pack.locations().index();
    let Ok(Some(index)) = index.read(Arc::clone(&inner.disk), &dir) else { return };

    let mut visit = |found_key: &IndexKey, value: &IndexValue| {
        let hash = Hash(found_key.last_chunk().copied().unwrap_or_default());
        let is_commit = *found_key == key(Object::Commit, &hash);
        if is_commit && extent(*value).at >= found.end {
            commits.insert(hash);
        }
        is_commit
    };

    index.each_from(&key(Object::Commit, &Hash([0; 32])), &mut visit).ok();
    index.close().ok();
}

/// Moves the bytes behind the end of the pack to `lost+found`; returns their number.
fn move_off(disk: &dyn Disk, dir: &Path, end: Address) -> Result<u64> {
    let lost = dir.join(LOST_AND_FOUND);
    if disk.kind(&lost)?.is_none() {
        disk.create_dir(&lost)?;
        disk.sync_dir(dir)?;
    }

    // A chunk moved by an earlier repair stays.
    let target = |name: &str| -> Result<std::path::PathBuf> {
        let mut path = lost.join(name);
        let mut number = 1;
        while disk.kind(&path)?.is_some() {
            path = lost.join(format!("{name}.{number}"));
            number += 1;
        }
        Ok(path)
    };

    // Copies are durable before the pack loses the bytes.
    let mut moved = 0;
    let path = chunk_path(dir, end.chunk);
    let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered)?;
    let len = file.len()?;

    if len > end.offset() {
        let mut bytes = vec![0; (len - end.offset()) as usize];
        // Unreadable bytes cannot be copied.
        if file.read_at(&mut bytes, end.offset()).is_ok() {
            let copy = target(&format!("chunk-{:08x}-from-{}", end.chunk, end.offset()))?;
            let copy = disk.open(&copy, OpenMode::CreateNew, Access::Buffered)?;
            copy.write_at(&bytes, 0)?;
            copy.sync()?;
        }
        moved += bytes.len() as u64;
    }

    for number in chunk_numbers(disk, dir)?.into_iter().filter(|number| *number > end.chunk) {
        let path = chunk_path(dir, number);
        moved += disk.allocated_bytes(&path).unwrap_or(0);
        disk.rename(&path, &target(&format!("chunk-{number:08x}"))?)?;
    }

    disk.sync_dir(&lost)?;
    disk.sync_dir(dir)?;

    // Last, so that a crash before leaves the bytes in the pack.
    if len > end.offset() {
        file.set_len(end.offset())?;
        file.sync()?;
    }

    Ok(moved)
}

/// Returns the control record of the last frame with a copy of it.
fn control_of_pack(disk: &Arc<dyn Disk>, locations: &Arc<Locations>) -> Result<Option<Control>> {
    let dir = locations.dir();
    let pack = Pack::new(Arc::clone(disk), Arc::clone(locations), false, 0);

    // From the last chunk back: the newest copy counts.
    for number in chunk_numbers(&**disk, dir)?.into_iter().rev() {
        let Ok(chunk) = pack.chunk(number) else { continue };
        let control = control_of_chunk(&dir.join(CONTROL), &chunk)?;
        if let Some(control) = control.filter(|control| control.store == chunk.head.store) {
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

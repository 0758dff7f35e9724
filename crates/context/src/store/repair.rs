//! Repair: rebuilds the index, the control record and the markers of volumes from the pack.
//!
//! Intact files stay as they are. A control record that leads to intact frames stays; the last copy
//! in the pack replaces one that is lost or leads to damage. The index is rebuilt, unless damage in
//! the pack would make the new index poorer than an intact old one.
//!
//! A pack that ends before its durable end, or whose newest commit is unreadable, has lost commits.
//! Without consent ([`Loss`]) a repair refuses such a pack. With consent, it moves all bytes behind
//! the damage to the directory `lost+found`, and the report names the lost commits.
//!
//! The end of the kept part comes from the newest control record whose own frames are intact: of
//! the file `control`, of a copy in the pack, of the empty store at the beginning of the pack, or
//! of the last chunk, with the tables of commits of the chunks before. From there the frames are
//! followed up to the damage.
//!
//! Invariant: all that can fail because of damage comes before the first write, so a failed repair
//! leaves the store as it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Disk, Loss, OpenMode};

use crate::base::address::{Address, Extent};
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::pack::archive::heal_markers;
use crate::pack::chunk::{CHUNK_VERSION, Chunk, ChunkHead, FIRST_UNIT, chunk_path};
use crate::pack::commit::{
    Branches, COMMIT, COMMITS, CommitRecord, CommitTable, STATE, apply_branches,
};
use crate::pack::control::{CONTROL, Control, ControlFile};
use crate::pack::frame::FrameKind;
use crate::pack::index::{IndexEngine, IndexKey, IndexValue, Object, extent, key};
use crate::pack::locations::Locations;
use crate::pack::pack::{FollowLimit, Pack};
use crate::pack::run_map::Run;
use crate::store::check::{OpenedStore, chunk_numbers, open, open_as};
use crate::store::inner::{StoreInner, View, table_at, tables_from};
use crate::store::reindex::{is_current, is_intact, make, walk};
use crate::store::store::{enter, read_control, take_lock, write_control};
use crate::tree::head::Head;

/// Directory that receives the bytes behind the damage.
const LOST_AND_FOUND: &str = "lost+found";
/// Upper bound of the named commits; further ones are only counted.
const NAMED_MAX: usize = 1000;

/// Commits and bytes that a repair dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Lost {
    /// Number of lost commits.
    pub commit_count: u64,
    /// Whether more commits than `commit_count` may be lost: frames are gone, and no control record
    /// counts what was in the frames.
    pub is_lower_bound: bool,
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct RepairReport {
    /// Whether the control record was rewritten.
    pub control: bool,
    /// Rewritten markers of volumes.
    pub markers: u64,
    /// Entries of the new index; 0 if the old index was kept.
    pub indexed: u64,
    /// Readable commits of the store.
    pub commits: u64,
    /// Branches of the store.
    pub branches: u64,
    /// Loss, if there was any.
    pub lost: Option<Lost>,
}

/// Content of the file `control`, or the rest of it.
struct Known {
    /// Control records: those of the file, newest first, and then the last copy in the pack.
    controls: Vec<Control>,
    /// Durable end, if the file still names it.
    durable: Option<Address>,
}

impl Known {
    /// Collects what is left of the file `control`, and the last copy of the control record in the
    /// pack.
    fn collect(
        disk: &Arc<dyn Disk>,
        locations: &Arc<Locations>,
        read: Result<ControlFile>,
    ) -> Result<Self> {
        let path = locations.dir().join(CONTROL);
        let durable = match &read {
            Ok(file) => Some(file.durable()),
            Err(_) => ControlFile::mark_of(&**disk, &path).map(|mark| mark.end),
        };
        let mut controls = read.map(|file| file.whole).unwrap_or_default();
        controls.extend(each_copy(disk, locations)?.next());
        Ok(Self { controls, durable })
    }

    /// Control record that knows most of the store.
    fn newest(&self) -> Option<&Control> {
        self.controls.iter().max_by_key(|control| control.sequence)
    }
}

/// Repairs the store in `dir`: rewrites a control record that is lost, has a damaged copy, or leads
/// to damage; rewrites damaged markers of volumes that have parts of this store; and rebuilds the
/// index.
///
/// Damaged objects stay: their readers, and a check, report the damage. No other handle may have
/// the store open for writing.
///
/// Cost: reads the commits twice; for a lost control record, the chunks from the last one back to
/// the first that has a copy; for an index of all objects, everything that is in use, twice.
///
/// # Errors
/// [`Locked`](Error::Locked), [`NotFound`](Error::NotFound) without any chunk,
/// [`AbsentLocation`](Error::AbsentLocation), [`ForeignLocation`](Error::ForeignLocation),
/// [`WouldLose`](Error::WouldLose) if commits are lost and `loss` refuses that,
/// [`Irreparable`](Error::Irreparable) if no control record leads to intact frames: nothing was
/// changed then; [`Disk`](Error::Disk), [`Index`](Error::Index).
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
    let sequence = read_control(&**disk, dir).map_or(0, |file| file.newest().sequence);
    let Recovered { found, rewrites_control, mut lost } = recover(disk, locations, index, loss)?;

    // The last step that damage can stop: from here on only the disk fails.
    let inner = found.inner;
    let (commits, keeps_index) = try_index(&inner, index, lost.is_some())?;

    if let Some(lost) = &mut lost {
        lost.moved_bytes = move_off(&**disk, dir, found.end)?;
        begin_chunk(&**disk, dir, found.end, inner.view().control)?;
    }

    if rewrites_control {
        let mut control = inner.view().control;
        // The sequence must exceed those of both pages.
        control.sequence = control.sequence.max(sequence) + 2;
        write_control(&**disk, dir, &control, found.end)?;
        inner.view_mut().control = control;
    }

    // Derived files come last, from the repaired record.
    let control = inner.view().control;
    let markers = heal_markers(&**disk, &locations.archive(), control.volumes, control.store)?;
    let branches = inner.view().branches.len() as u64;

    let mut indexed = 0;
    if !keeps_index {
        (_, indexed) = make(&inner, index, is_of_object, progress)?;
    }

    Ok(RepairReport { control: rewrites_control, markers, indexed, commits, branches, lost })
}

/// Store as a repair leaves it, before anything is written.
struct Recovered {
    found: OpenedStore,
    rewrites_control: bool,
    lost: Option<Lost>,
}

/// Opens the store up to its durable end or, with consent to the loss, up to the damage.
fn recover(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    index: &Arc<dyn IndexEngine>,
    loss: Loss,
) -> Result<Recovered> {
    let dir = locations.dir();
    let read = || read_control(&**disk, dir);

    // A record that leads to intact frames needs no change, or only its second copy.
    let opened = match open(disk, locations) {
        Ok(found) => {
            let is_whole = read().is_ok_and(|file| file.damaged.is_empty());
            let rewrites_control = found.fell_back || !is_whole;
            Ok(Recovered { found, rewrites_control, lost: None })
        }
        Err(error) if is_damage(&error) => {
            // A copy in the pack may lead where the file does not.
            let known = Known::collect(disk, locations, read())?;
            let mut controls = known.controls.iter();
            let found =
                controls.find_map(|control| open_to(disk, locations, control, known.durable));
            let found = found.ok_or(error);
            found.map(|found| Recovered { found, rewrites_control: true, lost: None })
        }
        Err(error) => return Err(error),
    };

    // Without its newest commit a store has no head from which the chain of commits begins.
    let damage = match opened {
        Ok(recovered) => match newest_damage(&recovered.found.inner) {
            None => return Ok(recovered),
            Some(damage) => damage,
        },
        Err(damage) => damage,
    };

    let known = Known::collect(disk, locations, read())?;
    let Some(found) = find_before_damage(disk, locations, &known)? else {
        let is_absent = matches!(damage, Error::NotFound { .. });
        let what = "no control record leads to intact commits";
        return Err(if is_absent { damage } else { irreparable(dir, &damage, what) });
    };

    let lost = name_lost(&**disk, dir, index, &known, &found)?;

    match loss {
        Loss::Refused => {
            let Lost { commit_count: commits, is_lower_bound, .. } = lost;
            Err(Error::WouldLose { path: dir.to_owned(), commits, is_lower_bound, at: found.end })
        }
        Loss::Accepted => Ok(Recovered { found, rewrites_control: true, lost: Some(lost) }),
    }
}

/// Walks over all that a new index takes. Returns the number of readable commits, and whether the
/// old index has more and stays.
fn try_index(
    inner: &StoreInner,
    index: &Arc<dyn IndexEngine>,
    has_lost: bool,
) -> Result<(u64, bool)> {
    let walked = walk(inner, is_of_object, &mut |_| Ok(()));
    let is_poorer = walked.as_ref().map_or_else(is_damage, |walked| walked.unreadable > 0);
    let keeps_index = is_poorer && !has_lost && is_intact(inner, index);

    match walked {
        Ok(walked) => Ok((walked.commits, keeps_index)),
        Err(_) if keeps_index => {
            Ok((inner.chain().filter(|(_, record)| record.is_ok()).count() as u64, true))
        }
        Err(error) if is_damage(&error) => {
            Err(irreparable(&inner.dir, &error, "nothing names the commits before"))
        }
        Err(error) => Err(error),
    }
}

/// Returns whether an error is about stored bytes, so that another control record may lead further.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. }
        | Error::NotFound { .. }
        | Error::LostControl { .. }
        | Error::NotAContextStore { .. } => true,
        Error::Disk(
            cause @ (terrane_io::Error::Io { .. }
            | terrane_io::Error::ShortRead { .. }
            | terrane_io::Error::WrongKind { .. }),
        ) => !cause.is_too_many_files(),
        _ => false,
    }
}

/// Returns whether an error concerns one object only, so that the index can do without the object.
fn is_of_object(error: &Error) -> bool {
    is_damage(error) || matches!(error, Error::Collected { .. } | Error::VolumeMissing { .. })
}

/// Error of a store of which a repair can keep nothing.
fn irreparable(dir: &Path, damage: &Error, what: &str) -> Error {
    Error::Irreparable { path: dir.to_owned(), reason: format!("{damage}; {what}") }
}

/// Returns the error of the newest commit, if its record is damaged.
fn newest_damage(inner: &StoreInner) -> Option<Error> {
    let (_, record) = inner.chain().next()?;
    record.err().filter(is_damage)
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

/// Opens the store by the newest control record whose frames are intact and whose newest commit is
/// readable, up to the first damage.
fn find_before_damage(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    known: &Known,
) -> Result<Option<OpenedStore>> {
    let Some(newest) = known.newest() else { return Ok(None) };
    let copies = each_copy(disk, locations)?;
    let mut file: Vec<Control> = known.controls.clone();
    file.sort_by_key(|control| std::cmp::Reverse((control.tail, control.sequence)));
    let begun = control_of_begin(disk, locations, newest)?;
    let controls = file.into_iter().chain(copies).chain(empty_store(newest)).chain(begun);

    for control in controls.filter(|control| control.store == newest.store) {
        let durable = known.durable.unwrap_or(control.tail).max(control.tail);
        let limit = FollowLimit { durable, stops_at_damage: true };
        for control in as_of(&control, newest) {
            let opened = open_as(disk, locations, &control, control.first, limit);
            let Ok(found) = opened else { continue };
            if newest_damage(&found.inner).is_none() {
                return Ok(Some(found));
            }
        }
    }

    // The last chunk has no head either, and follows a compacted one: it begins anew.
    for control in begun.iter().flat_map(|control| as_of(control, newest)) {
        let opened = open_as_begun(disk, locations, control);
        if let Some(found) = opened.filter(|found| newest_damage(&found.inner).is_none()) {
            return Ok(Some(found));
        }
    }

    Ok(None)
}

/// Opens the store by a control record at the beginning of a chunk that has no head.
fn open_as_begun(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    control: Control,
) -> Option<OpenedStore> {
    let pack = Arc::new(Pack::new(Arc::clone(disk), Arc::clone(locations), false, 0));
    pack.set_store(control.store).ok()?;
    // A chunk with a head was opened before.
    if pack.chunk(control.tail.chunk).is_ok() {
        return None;
    }
    pack.set_first(control.first);
    pack.set_volumes(control.volumes);

    let mut view = View::new(control);
    if let Some(kept) = control.kept {
        view.kept.extend(table_at(&pack, kept).ok()?.commits);
    }

    let inner = StoreInner::new(Arc::clone(disk), pack, control.rules, view, Head::new(0));
    Some(OpenedStore { inner, end: control.tail, fell_back: false })
}

/// Returns the control record of the beginning of the last chunk, which has the tables of commits
/// of the chunks before; `None` if there is no such table.
///
/// A collection leaves no copies of the control record in the chunks that it compacts, but the
/// tables. The heads of branches are lost.
///
/// Cost: reads the chunks back to the last one with a table.
fn control_of_begin(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    newest: &Control,
) -> Result<Option<Control>> {
    let pack = Pack::new(Arc::clone(disk), Arc::clone(locations), false, 0);
    let tail = Address { chunk: newest.tail.chunk, unit: FIRST_UNIT };
    let chain = pack.chunk(tail.chunk).map_or(newest.store as u32, |chunk| chunk.head.chain);
    let numbers = chunk_numbers(&**disk, locations.dir())?.into_iter();
    let below = numbers.filter(|number| (newest.first..tail.chunk).contains(number));

    for number in below.rev() {
        let Ok(chunk) = pack.chunk(number) else { continue };
        let mut last = None;
        for run in chunk.whole_runs().unwrap_or_default() {
            let looked = chunk.each_record(run, &mut |extent, body| {
                let table = body.ok().filter(|body| body.first() == Some(&COMMITS));
                let table = table.and_then(|body| CommitTable::decode(extent.at, body).ok());
                last = table.map(|table| (extent, table)).or_else(|| last.take());
                Ok(())
            });
            // An unreadable table is none.
            looked.ok();
        }

        let Some((extent, table)) = last else { continue };
        let commits = tables_from(&pack, Some(extent)).flatten().map(|table| table.commits.len());
        return Ok(Some(Control {
            tail,
            chain,
            last: table.commits.iter().map(|(_, commit)| *commit).max_by_key(|commit| commit.at),
            branches: None,
            table: Some(extent),
            commits: commits.sum::<usize>() as u64,
            ..*newest
        }));
    }

    Ok(None)
}

/// Returns a control record with what collections have taken since: with the commits that the
/// newest record keeps as exceptions, and without, if the table of the exceptions is lost.
fn as_of(control: &Control, newest: &Control) -> Vec<Control> {
    // The chunks of the record are gone.
    if newest.first > control.tail.chunk {
        return Vec::new();
    }

    let mut control = Control {
        first: control.first.max(newest.first),
        volumes: control.volumes.max(newest.volumes),
        indexing: newest.indexing,
        ..*control
    };

    if newest.retained > control.retained {
        (control.retained, control.kept) = (newest.retained, newest.kept);
        control.collecting = newest.collecting;
    }

    let mut all = vec![control];
    if control.kept.is_some() {
        all.push(Control { kept: None, ..control });
    }
    all
}

/// Control record of the store before its first frame, if its first chunk is still there.
fn empty_store(newest: &Control) -> Option<Control> {
    (newest.first == 0).then_some(Control {
        tail: Address { chunk: 0, unit: FIRST_UNIT },
        chain: newest.store as u32,
        last: None,
        branches: None,
        table: None,
        kept: None,
        commits: 0,
        retained: Address { chunk: 0, unit: 0 },
        ..*newest
    })
}

/// Collects the commits and branches behind the recovered end.
fn name_lost(
    disk: &dyn Disk,
    dir: &Path,
    index: &Arc<dyn IndexEngine>,
    known: &Known,
    found: &OpenedStore,
) -> Result<Lost> {
    let inner = &found.inner;
    let mut commits = BTreeMap::new();
    add_framed(disk, dir, found, &mut commits)?;

    // The tables and branches of the newest control record, as far as they are intact. What is
    // behind the newest commit that is left is lost.
    let newest = known.newest().filter(|newest| newest.tail > found.end);
    let last = inner.view().last.map(|last| last.at);
    let tabled = newest.is_some_and(|newest| add_tabled(inner, newest, last, &mut commits));
    let indexed = add_indexed(index, inner, known.newest(), last, &mut commits);
    let branches = newest.map_or_else(Vec::new, |newest| moved_branches(inner, newest));

    // What a collection has hidden was not lost now.
    if let Some(newest) = newest {
        commits.retain(|_, extent| extent.at >= newest.retained);
    }

    // The tables, the index, or without a collection the control record, tell of all commits before
    // its tail. What a collection keeps as an exception may be in none.
    let has_exceptions = newest.is_some_and(|newest| newest.kept.is_some());
    let never = Address { chunk: 0, unit: 0 };
    let counted = newest.filter(|newest| newest.retained == never);
    let counted = counted.map(|newest| newest.commits.saturating_sub(inner.view().commits));
    let is_counted =
        newest.is_none() || counted.is_some() || (!has_exceptions && (tabled || indexed));

    let found_below = newest.map_or(0, |newest| {
        commits.values().filter(|extent| extent.at < newest.tail).count() as u64
    });
    let below_tail = counted.unwrap_or(0).max(found_below);
    let from = newest.map_or(found.end, |newest| newest.tail);
    let (behind, is_gapless) = count_framed(disk, dir, inner, from, known.durable)?;

    let named = commits.len() as u64;
    let commit_count = (below_tail + behind).max(named);
    let commits = commits.into_keys().take(NAMED_MAX).collect();
    let is_lower_bound = !(is_counted && is_gapless);
    Ok(Lost { commit_count, is_lower_bound, commits, branches, moved_bytes: 0 })
}

/// Returns the number of commits in a frame, and whether it is exact: damage may hide commits of
/// an import.
fn count_in_frame(chunk: &Chunk, run: Run, kind: FrameKind) -> (u64, bool) {
    match kind {
        FrameKind::Objects | FrameKind::Branches => return (0, true),
        FrameKind::Commit | FrameKind::CommitTo => return (1, true),
        FrameKind::Commits => {}
    }

    let mut count = 0;
    let mut is_exact = true;
    let looked = chunk.each_record(run, &mut |_, body| {
        match body {
            Ok(body) => count += u64::from(body.first() == Some(&COMMIT)),
            Err(_) => is_exact = false,
        }
        Ok(())
    });

    // An import has a commit at least.
    (count.max(1), is_exact && looked.is_ok())
}

/// Counts the commits in the frames from `from` to the durable end by the heads of the frames, and
/// those of imports by their records. Returns also whether the count is exact, since no frame is
/// missing.
fn count_framed(
    disk: &dyn Disk,
    dir: &Path,
    inner: &StoreInner,
    from: Address,
    durable: Option<Address>,
) -> Result<(u64, bool)> {
    let mut at = from;
    let mut count = 0;
    let mut is_counted = true;

    // A head tells the length of its frame, and the head of the next chunk the length of this one.
    while durable.is_some_and(|durable| at < durable) {
        let Ok(chunk) = inner.pack.chunk(at.chunk) else { break };
        let len = chunk.file.len()?;
        if let Ok(Some((run, head))) = chunk.begun_frame_at(at.offset(), len) {
            let Some(unit) = run.unit.checked_add(run.units) else { break };
            at.unit = unit;
            let (commits, is_exact) = count_in_frame(&chunk, run, head.kind);
            count += commits;
            is_counted &= is_exact;
            continue;
        }
        match inner.pack.chunk(at.chunk + 1) {
            Ok(next) if next.head.before == at.unit => {
                at = Address { chunk: at.chunk + 1, unit: FIRST_UNIT };
            }
            _ => break,
        }
    }

    if durable.is_some_and(|durable| at >= durable) {
        return Ok((count, is_counted));
    }

    // Behind a gap, the frames that are left.
    for number in chunk_numbers(disk, dir)?.into_iter().filter(|number| *number >= at.chunk) {
        let Ok(chunk) = inner.pack.chunk(number) else { continue };
        let frames = chunk.whole_frames().unwrap_or_default().into_iter();
        let is_behind = |unit| Address { chunk: number, unit } > at;
        count += frames
            .filter(|(run, _)| is_behind(run.unit))
            .map(|(run, head)| count_in_frame(&chunk, run, head.kind).0)
            .sum::<u64>();
    }

    Ok((count, false))
}

/// Adds the commits in intact frames behind the damage.
fn add_framed(
    disk: &dyn Disk,
    dir: &Path,
    found: &OpenedStore,
    commits: &mut BTreeMap<Hash, Extent>,
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
                    commits.insert(record.commit.hash, extent);
                }
                Ok(())
            });
            // An unreadable commit cannot be named.
            looked.ok();
        }
    }

    Ok(())
}

/// Adds the commits behind `last` that the tables of a control record have. Returns whether the
/// tables are readable down to it.
fn add_tabled(
    inner: &StoreInner,
    control: &Control,
    last: Option<Address>,
    commits: &mut BTreeMap<Hash, Extent>,
) -> bool {
    for table in tables_from(&inner.pack, control.table) {
        let Ok(table) = table else { return false };
        let lost = table.commits.iter().filter(|(_, extent)| Some(extent.at) > last);
        let before = commits.len();
        commits.extend(lost.copied());

        // Tables are in order of time.
        let is_below = table.commits.iter().any(|(_, extent)| Some(extent.at) <= last);
        if is_below || commits.len() == before {
            break;
        }
    }

    true
}

/// Returns the branches of a control record whose heads differ now, with their heads now.
fn moved_branches(inner: &StoreInner, control: &Control) -> Vec<(Vec<u8>, Option<Hash>)> {
    let mut heads = Branches::new();
    let Some(at) = control.branches else { return Vec::new() };
    let read = inner.pack.with_body(at, |body| apply_branches(body, &mut heads));
    if !matches!(read, Ok(Ok(()))) {
        return Vec::new();
    }
    let now = heads.into_iter().map(|(name, head)| (inner.branch(&name), name, head));
    now.filter(|(now, _, head)| *now != Some(*head)).map(|(now, name, _)| (name, now)).collect()
}

/// Adds the commits behind `last` that the index has: their bytes may be gone. Returns whether the
/// index is readable, and has all commits of the newest control record.
fn add_indexed(
    index: &Arc<dyn IndexEngine>,
    inner: &StoreInner,
    newest: Option<&Control>,
    last: Option<Address>,
    commits: &mut BTreeMap<Hash, Extent>,
) -> bool {
    let dir = inner.pack.locations().index();
    let Ok(Some(index)) = index.read(Arc::clone(&inner.disk), &dir) else { return false };
    let mut visit = |found_key: &IndexKey, value: &IndexValue| {
        let hash = Hash(found_key.last_chunk().copied().unwrap_or_default());
        let is_commit = *found_key == key(Object::Commit, &hash);
        let extent = extent(*value);
        if is_commit && Some(extent.at) > last {
            commits.insert(hash, extent);
        }
        is_commit
    };

    let read = index.each_from(&key(Object::Commit, &Hash([0; 32])), &mut visit);
    let is_current = newest.is_some_and(|newest| is_current(&*index, newest).unwrap_or(false));
    index.close().ok();
    read.is_ok() && is_current
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
    let has_chunk = disk.kind(&path)?.is_some();
    let opened = has_chunk.then(|| disk.open(&path, OpenMode::ReadWrite, Access::Buffered));
    let opened = opened.transpose()?;
    let len = opened.as_ref().map_or(Ok(0), |file| file.len())?;

    if let Some(file) = opened.as_ref().filter(|_| len > end.offset()) {
        let mut bytes = vec![0; (len - end.offset()) as usize];
        // Unreadable bytes cannot be copied.
        if file.read_at(&mut bytes, end.offset()).is_ok() {
            let copy = target(&format!("chunk-{:08x}-from-{}", end.chunk, end.offset()))?;
            let copy = disk.open(&copy, OpenMode::CreateNew, Access::Buffered)?;
            copy.write_at(&bytes, 0)?;
            copy.sync()?;
        }
        // Counted also if they could not be copied: the pack loses them.
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
    if let Some(file) = opened.filter(|_| len > end.offset()) {
        file.set_len(end.offset())?;
        file.sync()?;
    }

    Ok(moved)
}

/// Gives the chunk with the end of the pack a head if it has none.
fn begin_chunk(disk: &dyn Disk, dir: &Path, end: Address, control: Control) -> Result<()> {
    let path = chunk_path(dir, end.chunk);
    let id = (end.chunk, Some(control.store));
    if Chunk::open(disk, &path, id, OpenMode::Read, Access::Buffered).is_ok() {
        return Ok(());
    }

    assert_eq!(end, control.tail, "only a chunk that begins with the tail can begin anew");
    if disk.kind(&path)?.is_some() {
        disk.remove(&path)?;
    }

    let head = ChunkHead {
        version: CHUNK_VERSION,
        number: end.chunk,
        store: control.store,
        before: 0,
        chain: control.chain,
        map: None,
    };

    Chunk::create(disk, dir, head)?.file.sync()?;
    Ok(disk.sync_dir(dir)?)
}

/// Returns the copies of the control record in the chunks, newest first.
///
/// Cost: reads the heads of the frames of each chunk that the caller reaches.
fn each_copy(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
) -> Result<impl Iterator<Item = Control>> {
    let dir = locations.dir();
    let pack = Pack::new(Arc::clone(disk), Arc::clone(locations), false, 0);
    let path = dir.join(CONTROL);

    // A chunk that is damaged has no copies.
    let numbers = chunk_numbers(&**disk, dir)?;
    Ok(numbers.into_iter().rev().flat_map(move |number| {
        let chunk = pack.chunk(number).ok();
        let copies = chunk.map(|chunk| copies_of_chunk(&path, &chunk).unwrap_or_default());
        copies.unwrap_or_default().into_iter().rev()
    }))
}

/// Returns the intact copies of the control record in a chunk, ascending.
fn copies_of_chunk(path: &Path, chunk: &Chunk) -> Result<Vec<Control>> {
    let mut copies = Vec::new();
    for (run, head) in chunk.frames()? {
        if head.kind != FrameKind::Branches {
            continue;
        }
        let looked = chunk.each_record(run, &mut |_, body| {
            if let Ok([STATE, copy @ ..]) = body {
                let tail = Address { chunk: chunk.head.number, unit: run.unit + run.units };
                let control = Control { tail, chain: head.crc, ..Control::of_copy(path, copy)? };
                copies.extend((control.store == chunk.head.store).then_some(control));
            }
            Ok(())
        });

        // An unreadable copy is none.
        looked.ok();
    }

    Ok(copies)
}

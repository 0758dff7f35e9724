//! Check of a store: every byte that a commit needs, and everything that leads to a commit.
//!
//! The check reads
//! - the locations elsewhere, the control record, the heads of all chunks and parts, the markers of
//!   volumes;
//! - every frame and every record, with its checksum and its format;
//! - every object that a commit reaches, once: it is there, it has the hash of its references, and
//!   a directory has its canonical shape;
//! - the heads of branches; and the index of a store that no writer has open.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Disk;

use crate::base::address::{Address, Extent, Link, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::BRANCHING_MAX;
use crate::base::path::step_text;
use crate::object::record::{ENTRIES_DELTA, FLAT, INNER, INNER_DELTA, LEAF, Record, VALUE};
use crate::pack::archive::check_marker;
use crate::pack::chunk::{Chunk, FIRST_UNIT, chunk_number, chunk_path};
use crate::pack::control::Control;
use crate::pack::frame::FRAME_HEAD_BYTES;
use crate::pack::index::{IndexEngine, Object, extent, key};
use crate::pack::locations::Locations;
use crate::pack::pack::{FollowLimit, Pack};
use crate::pack::run_map::Run;
use crate::store::inner::{StoreInner, View, recover};
use crate::store::reindex::is_current;
use crate::store::store::{enter, read_control};
use crate::tree::digest;
use crate::tree::head::Head;
use crate::tree::node::{Content, Node, Shape, Source};

/// Upper bound of listed problems; further ones are only counted.
const PROBLEMS_MAX: usize = 1000;

/// Problem of a stored file or record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The record, if the problem is in a record.
    pub address: Option<Address>,
    /// Path in the tree that leads to the record, if one does.
    pub tree_path: Option<String>,
    /// Broken rule.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.path.display())?;
        if let Some(address) = self.address {
            write!(out, ": {address}")?;
        }
        if let Some(path) = &self.tree_path {
            write!(out, " ({path})")?;
        }
        write!(out, ": {}", self.what)
    }
}

/// Number and size of the records of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct KindCount {
    /// Records.
    pub count: u64,
    /// Bytes of these records.
    pub bytes: u64,
}

/// Records of the pack by kind, in use or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Kinds {
    /// Values stored on their own.
    pub values: KindCount,
    /// Flat directories.
    pub flat: KindCount,
    /// Inodes that list their steps.
    pub leaves: KindCount,
    /// Inodes with buckets.
    pub inner: KindCount,
    /// Changes of directories and of either kind of inode.
    pub deltas: KindCount,
    /// Commits.
    pub commits: KindCount,
    /// Branches and tables.
    pub others: KindCount,
}

impl Kinds {
    fn add(&mut self, kind: u8, bytes: u64) {
        let count = match kind {
            VALUE => &mut self.values,
            FLAT => &mut self.flat,
            LEAF => &mut self.leaves,
            INNER => &mut self.inner,
            INNER_DELTA | ENTRIES_DELTA => &mut self.deltas,
            crate::pack::commit::COMMIT => &mut self.commits,
            _ => &mut self.others,
        };
        count.count += 1;
        count.bytes += bytes;
    }
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct CheckReport {
    /// Chunks read.
    pub chunks: u64,
    /// Bytes of the chunks.
    pub bytes: u64,
    /// Records by kind.
    pub kinds: Kinds,
    /// Commits of the store.
    pub commits: u64,
    /// Objects that commits reach.
    pub objects: u64,
    /// Problems: the first 1,000.
    pub problems: Vec<Problem>,
    /// Number of problems.
    pub problem_count: u64,
}

impl CheckReport {
    fn note(
        &mut self,
        path: PathBuf,
        address: Option<Address>,
        tree_path: Option<String>,
        what: String,
    ) {
        // Every reader of a damaged record meets the same damage: it counts once.
        let is_known = |known: &Problem| {
            known.path == path
                && known.address == address
                && (address.is_some() || known.what == what)
        };

        if let Some(known) = self.problems.iter_mut().find(|known| is_known(known)) {
            // A later reader of the record may know its path where an earlier one did not.
            known.tree_path = known.tree_path.take().or(tree_path);
            return;
        }

        self.problem_count += 1;
        // The list is bounded; the count goes on.
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { path, address, tree_path, what });
        }
    }

    /// Notes an error about stored bytes or an unreadable file; returns any other error.
    fn note_error(&mut self, dir: &Path, tree_path: Option<&str>, error: Error) -> Result<()> {
        let tree_path = tree_path.map(ToOwned::to_owned);
        match error {
            Error::Corrupt { path, address, what } => {
                self.note(path, address, tree_path, what.to_string());
            }
            Error::Collected { address } => {
                let what = "a commit needs the object, which was collected".to_owned();
                self.note(chunk_path(dir, address.chunk), Some(address), tree_path, what);
            }
            Error::VolumeMissing { path, address } => {
                let what = "a commit needs an archived object, whose volume is missing".to_owned();
                self.note(path, Some(address), tree_path, what);
            }
            Error::NotAContextStore { path } => {
                self.note(path, None, tree_path, "not a file of a context store".to_owned());
            }
            Error::AbsentVolume { ref path }
            | Error::ForeignVolume { ref path }
            | Error::AbsentLocation { ref path, .. }
            | Error::ForeignLocation { ref path, .. }
            | Error::ForeignChunk { ref path }
            | Error::LostControl { ref path } => {
                self.note(path.clone(), None, tree_path, error.to_string());
            }
            Error::Disk(
                ref cause @ (terrane_io::Error::Io { ref path, .. }
                | terrane_io::Error::WrongKind { ref path, .. }
                | terrane_io::Error::ShortRead { ref path, .. }),
            ) if !cause.is_too_many_files() => {
                self.note(path.clone(), None, tree_path, error.to_string());
            }
            other => return Err(other),
        }

        Ok(())
    }
}

/// Options of a check.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct CheckOptions<'a> {
    /// Engine of the index; `None` skips the index, for a store that a writer has open.
    pub index: Option<&'a Arc<dyn IndexEngine>>,
    /// Whether to recompute the hash of every object; otherwise only checksums and formats are
    /// checked.
    pub hashes: bool,
}

impl<'a> CheckOptions<'a> {
    terrane_io::setters! {
        index: impl Into<Option<&'a Arc<dyn IndexEngine>>>,
        hashes: bool,
    }
}

/// Checks the store in `dir`, and changes nothing.
///
/// An unreadable sector is a problem like damage, and the check goes on behind it. Calls
/// `progress` with the bytes of each chunk, and then with 0 for each commit.
///
/// Cost: reads all of the store, and most of what is in use twice. Takes 24 bytes of memory for
/// each object in use.
///
/// # Errors
/// [`NotFound`](Error::NotFound), [`Disk`](Error::Disk), [`Index`](Error::Index). What is wrong in
/// the store is in the report.
#[doc(alias = "integrity_check")]
pub fn check(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: &CheckOptions<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let (dir, anchor) = enter(&**disk, dir)?;
    let dir = dir.as_path();
    let (locations, errors) = Locations::look(&**disk, (dir, &anchor))?;

    for error in errors {
        report.note_error(dir, None, error)?;
    }

    let pack = Arc::new(Pack::new(Arc::clone(disk), Arc::clone(&locations), false, CACHE_BYTES));
    let mut durable = None;

    match read_control(&**disk, dir) {
        Ok(file) => {
            if let Err(error) = pack.set_store(file.newest().store) {
                report.note_error(dir, None, error)?;
            }
            durable = Some(file.durable());
            for error in file.damaged {
                report.note_error(dir, None, error)?;
            }
        }
        Err(error @ Error::NotFound { .. }) => return Err(error),
        Err(error) => report.note_error(dir, None, error)?,
    }

    // All bytes first, whether or not the store can be opened.
    check_chunks(&**disk, dir, &pack, durable, &mut report, progress)?;
    let inner = match open(disk, &locations) {
        Ok(found) => found.inner,
        Err(error) => {
            report.note_error(dir, None, error)?;
            return Ok(report);
        }
    };

    // Then all that the commits reach.
    let mut checker = Checker {
        inner: &inner,
        dir,
        hashes: options.hashes,
        seen: FastMap::default(),
        kept: FastMap::default(),
        report,
    };

    checker.chunks()?;
    checker.volumes()?;
    checker.commits(progress)?;
    checker.branches();

    if let Some(engine) = options.index {
        checker.index(engine)?;
    }

    Ok(checker.report)
}

/// Size of the cache of a check, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Store opened for a check or a repair.
pub(crate) struct OpenedStore {
    pub(crate) inner: StoreInner,
    /// End of the frames.
    pub(crate) end: Address,
    /// Whether the newest control record leads to damage and the older one was used.
    pub(crate) fell_back: bool,
}

/// Opens the store by the newest control record that leads to intact frames.
pub(crate) fn open(disk: &Arc<dyn Disk>, locations: &Arc<Locations>) -> Result<OpenedStore> {
    let dir = locations.dir();
    let file = read_control(&**disk, dir)?;
    let limit = FollowLimit::to(file.durable());
    let mut failed = None;
    for control in &file.whole {
        match open_as(disk, locations, control, file.newest().first, limit) {
            Ok(found) => return Ok(OpenedStore { fell_back: failed.is_some(), ..found }),
            // The error of the newer record is the more useful one.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or(Error::NotFound { path: dir.to_owned() }))
}

/// Opens the store by a control record. Chunks below `first` may be gone.
pub(crate) fn open_as(
    disk: &Arc<dyn Disk>,
    locations: &Arc<Locations>,
    control: &Control,
    first: u32,
    limit: FollowLimit,
) -> Result<OpenedStore> {
    let pack = Arc::new(Pack::new(Arc::clone(disk), Arc::clone(locations), false, CACHE_BYTES));
    let mut view = View::new(*control);
    view.first_known = first;
    let tail = recover(&pack, &mut view, limit)?;

    let inner = StoreInner::new(Arc::clone(disk), pack, control.rules, view, Head::new(0));
    Ok(OpenedStore { inner, end: tail.end, fell_back: false })
}

/// Returns the numbers of the present chunks, ascending.
pub(crate) fn chunk_numbers(disk: &dyn Disk, dir: &Path) -> Result<Vec<u32>> {
    let entries = disk.list(dir)?;
    Ok(entries.iter().filter_map(|entry| chunk_number(&entry.name)).collect())
}

/// Reads every record of every chunk and part.
fn check_chunks(
    disk: &dyn Disk,
    dir: &Path,
    pack: &Pack,
    durable: Option<Address>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let chunks = chunk_numbers(disk, dir)?.into_iter().map(|number| (number, None));
    let parts = pack.parts()?.into_iter().map(|(number, part)| (number, Some(part)));
    for (number, part) in chunks.chain(parts) {
        let opened = match part {
            None => pack.chunk(number),
            Some(part) => pack.part(number, part),
        };

        let chunk = match opened {
            Ok(chunk) => chunk,
            Err(error) => {
                report.note_error(dir, None, error)?;
                continue;
            }
        };

        let end = if part.is_none() { durable_end(disk, dir, pack, &chunk, durable)? } else { 0 };
        let runs = match chunk.whole_runs() {
            Ok(runs) => runs,
            Err(error) => {
                report.note_error(dir, None, error)?;
                continue;
            }
        };

        if chunk.runs.is_none() {
            note_gaps(&chunk, &runs, end, report);
        }
        check_records(dir, &chunk, runs, report)?;

        let bytes = chunk.file.len()?;
        report.chunks += 1;
        report.bytes += bytes;
        progress(bytes);
    }

    Ok(())
}

/// Notes gaps between two frames, or before the durable end of a chunk: each is a damaged frame.
fn note_gaps(chunk: &Chunk, runs: &[Run], end: u32, report: &mut CheckReport) {
    let ends = runs.iter().map(|run| run.unit + run.units);
    let starts = runs.iter().map(|run| run.unit - FRAME_HEAD_UNITS);
    let gaps = std::iter::once(FIRST_UNIT).chain(ends).zip(starts.chain([end]));
    for (unit, next) in gaps.filter(|(unit, next)| unit < next) {
        let at = Address { chunk: chunk.head.number, unit };
        let what = Corrupt::rule("a frame is whole", u64::from(next), u64::from(unit));
        report.note(chunk.file.path().to_owned(), Some(at), None, what.to_string());
    }
}

/// Checks each record of a chunk by its checksum and format, whether a commit reaches it or not.
fn check_records(
    dir: &Path,
    chunk: &Chunk,
    runs: Vec<Run>,
    report: &mut CheckReport,
) -> Result<()> {
    let path = chunk.file.path();
    for run in runs {
        let looked = chunk.each_record(run, &mut |extent, body| {
            let checked = body.and_then(|body| {
                let kind = body.first().copied().unwrap_or(0);
                report.kinds.add(kind, u64::from(extent.bytes));
                match kind {
                    FLAT..=ENTRIES_DELTA => Record::decode(extent, body).map(drop),
                    _ => Ok(()),
                }
            });
            if let Err(what) = checked {
                report.note(path.to_owned(), Some(extent.at), None, what.to_string());
            }
            Ok(())
        });

        if let Err(error) = looked {
            report.note_error(dir, None, error)?;
        }
    }

    Ok(())
}

/// Returns a lower bound of the durable end of a chunk, from the next chunk or the file `control`.
fn durable_end(
    disk: &dyn Disk,
    dir: &Path,
    pack: &Pack,
    chunk: &Chunk,
    durable: Option<Address>,
) -> Result<u32> {
    let number = chunk.head.number;
    let store = chunk.head.store;

    // The successor was begun after a sync of this chunk.
    if let Some(next) = number.checked_add(1)
        && disk.kind(&chunk_path(dir, next))?.is_some()
        && let Ok(next) = pack.chunk(next)
        && next.head.store == store
    {
        return Ok(next.head.before);
    }
    Ok(durable.filter(|end| end.chunk == number).map_or(0, |end| end.unit))
}

/// Length of the head of a frame, in units.
const FRAME_HEAD_UNITS: u32 = (FRAME_HEAD_BYTES as u64 / UNIT_BYTES) as u32;

struct Checker<'a> {
    inner: &'a StoreInner,
    dir: &'a Path,
    hashes: bool,
    /// Checked objects, each with the first bytes of the hash of its references.
    seen: FastMap<Address, u64>,
    /// Commits of the store.
    kept: FastMap<Hash, Extent>,
    report: CheckReport,
}

fn short(hash: &Hash) -> u64 {
    hash.0.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

/// Reference to an object to be checked.
struct Task {
    link: Link,
    is_value: bool,
    /// Depth of an inode, `None` for the root of a directory; and the path of the directory.
    depth: Option<u8>,
    path: Arc<str>,
}

impl Checker<'_> {
    fn commits(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let inner = self.inner;
        for commit in inner.newest() {
            let (extent, record) = match commit {
                Ok(commit) => commit,
                Err(error) => {
                    self.report.note_error(self.dir, None, error)?;
                    continue;
                }
            };

            self.report.commits += 1;
            self.kept.insert(record.commit.hash, extent);

            let info = record.commit.info();
            // The hash covers the whole commit, so another hash means a damaged field.
            if inner.env.rules.commit_hash(&info) != record.commit.hash {
                self.wrong(
                    extent.at,
                    None,
                    "the content of the commit has another hash".to_owned(),
                );
            }

            if let Some(root) = record.root {
                let path = Arc::from("");
                self.walk(Task { link: root, is_value: false, depth: None, path })?;
            }

            progress(0);
        }

        Ok(())
    }

    fn wrong(&mut self, at: Address, path: Option<&str>, what: String) {
        let file = chunk_path(self.dir, at.chunk);
        self.report.note(file, Some(at), path.map(ToOwned::to_owned), what);
    }

    /// Checks an object and all objects below that were not checked.
    fn walk(&mut self, task: Task) -> Result<()> {
        // A list and no recursion: a tree can be deeper than a stack.
        let mut tasks = vec![task];
        while let Some(task) = tasks.pop() {
            // An object is checked once; all its references must state one hash.
            let known = self.seen.insert(task.link.extent.at, short(&task.link.hash));
            match known {
                Some(hash) if hash == short(&task.link.hash) => continue,
                Some(_) => {
                    let what = "two references state different hashes for the record".to_owned();
                    self.wrong(task.link.extent.at, Some(&task.path), what);
                    continue;
                }
                None => self.report.objects += 1,
            }

            let looked =
                if task.is_value { self.value(&task) } else { self.node(&task, &mut tasks) };
            if let Err(error) = looked {
                self.report.note_error(self.dir, Some(&task.path), error)?;
            }
        }

        Ok(())
    }

    fn value(&mut self, task: &Task) -> Result<()> {
        let value = self.inner.pack.value(&task.link)?;
        if self.hashes && self.inner.env.rules.value_hash(&value) != task.link.hash {
            self.wrong(task.link.extent.at, Some(&task.path), "WrongHash of a value".to_owned());
        }
        Ok(())
    }

    fn node(&mut self, task: &Task, tasks: &mut Vec<Task>) -> Result<()> {
        let env = &self.inner.env;
        let node = Node::of_record(self.inner.pack.record_at(task.link.extent)?, &task.link);
        if self.hashes && digest::hash_of(env, &node) != task.link.hash {
            self.wrong(
                task.link.extent.at,
                Some(&task.path),
                "WrongHash of a directory".to_owned(),
            );
        }

        if let Err(what) = node.check_shape(&env.rules, task.depth.unwrap_or(0)) {
            self.wrong(task.link.extent.at, Some(&task.path), what.to_string());
        }

        // Children are tasks, not recursion: a path may have more nodes than a thread has stack
        // for.
        match node.shape() {
            Shape::Entries(entries) => {
                for item in 0..entries.len() {
                    let path =
                        || Arc::from(format!("{}/{}", task.path, step_text(entries.step(item))));
                    match entries.spot(item).content() {
                        Content::ValueAt(link) => {
                            tasks.push(Task { link, is_value: true, depth: None, path: path() });
                        }
                        Content::DirAt(link) => {
                            tasks.push(Task { link, is_value: false, depth: None, path: path() });
                        }
                        _ => {}
                    }
                }
            }
            Shape::Inner(inner) => {
                let depth = Some(inner.depth().saturating_add(1));
                for bucket in 0..BRANCHING_MAX as usize {
                    if let Some(link) = inner.stored_link(bucket) {
                        let path = Arc::clone(&task.path);
                        tasks.push(Task { link, is_value: false, depth, path });
                    }
                }
            }
        }

        Ok(())
    }

    /// Checks that the chunks of the control record are there.
    fn chunks(&mut self) -> Result<()> {
        let (first, last) = {
            let view = self.inner.view();
            (view.control.first.max(view.first_known), view.control.tail.chunk)
        };
        let numbers: BTreeSet<u32> =
            chunk_numbers(&*self.inner.disk, self.dir)?.into_iter().collect();
        for number in (first..=last).filter(|number| !numbers.contains(number)) {
            self.report.note_error(self.dir, None, self.inner.pack.lost(number))?;
        }
        Ok(())
    }

    /// Checks that the volumes of the control record are there, each with its marker.
    fn volumes(&mut self) -> Result<()> {
        let inner = self.inner;
        let Control { volumes, store, .. } = inner.view().control;
        let archive = inner.pack.locations().archive();
        for volume in 0..volumes {
            if let Err(error) = check_marker(&*inner.disk, &archive, volume, store) {
                self.report.note_error(self.dir, None, error)?;
            }
        }
        Ok(())
    }

    fn branches(&mut self) {
        for (name, head) in self.inner.branches() {
            if !self.kept.contains_key(&head) {
                let what = format!("the head {head} of branch {} is missing", step_text(&name));
                self.report.note(self.dir.to_owned(), None, None, what);
            }
        }
    }

    /// Checks that the index has every commit below the tail of the control record. A lost index is
    /// one problem.
    fn index(&mut self, engine: &Arc<dyn IndexEngine>) -> Result<()> {
        let inner = self.inner;
        let path = inner.pack.locations().index();
        let lost = |reason: &str| format!("{reason}; `terrane verify --repair` rebuilds the index");

        // A lost index can be rebuilt, so it is one problem and ends this part of the check.
        let index = match engine.read(Arc::clone(&inner.disk), &path) {
            Ok(Some(index)) => index,
            Ok(None) => {
                self.report.note(path, None, None, lost("the index is missing"));
                return Ok(());
            }
            Err(error) => {
                self.report.note(path, None, None, lost(&format!("the index: {error}")));
                return Ok(());
            }
        };

        let (indexed, control) = {
            let view = inner.view();
            (view.indexed, view.control)
        };

        if !is_current(&*index, &control)? {
            self.report.note(path, None, None, lost("the index is stale or empty"));
            return index.close().map_err(Error::index);
        }

        for (hash, at) in self.kept.iter().filter(|(_, at)| at.at < indexed) {
            let found = index.find(&key(Object::Commit, hash)).map_err(Error::index)?.map(extent);
            if found != Some(*at) {
                let what = format!(
                    "AbsentValue: commit {hash} is missing in the index, or has another address there"
                );
                self.report.note(path.clone(), Some(at.at), None, what);
            }
        }

        index.close().map_err(Error::index)
    }
}

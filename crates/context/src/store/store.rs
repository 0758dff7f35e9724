//! Store: one writer that commits, in a directory of its own.
//!
//! A commit hashes the changes, appends them with the commit record as one frame to the pack, and
//! syncs. Commits of several threads share an fsync (group commit). A new chunk comes with a new
//! control record. Opening follows the frames behind the control record, truncates a torn write,
//! and needs neither the index nor a log.
//!
//! The lock order is in the header of [`store`](crate::store).

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrane_io::Anchor;
use terrane_io::files::{create_afresh, create_dirs};
use terrane_io::process::OwnThread;
use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, Mutex, PoisonError, RwLock};
use terrane_io::{Access, Disk, DiskFile, Durability, EntryKind, LockGuard, OpenMode, Reserve};

use crate::base::address::{Address, Extent, Link, Origin};
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::{CommitInfo, Rules};
use crate::base::lock::lock;
use crate::base::stats::{CommitStats, PreimageSizes, Stats};
use crate::object::pins::Pins;
use crate::pack::chunk::{
    CHUNK_HEAD_BYTES, CHUNK_VERSION, ChunkHead, FIRST_UNIT, chunk_number, chunk_path,
};
use crate::pack::commit::{BranchRecord, Commit, CommitRecord, CommitTable, STATE, put_branches};
use crate::pack::control::{
    CONTROL, CONTROL_PAGE_BYTES, Control, ControlFile, Indexing, Mark, STATE_BYTES, encode_file,
    is_control,
};
use crate::pack::frame::{FRAME_FULL_BYTES, FRAME_HEAD_BYTES, FrameKind, FrameWriter};
use crate::pack::index::{
    IndexEngine, IndexKey, IndexValue, Object, STATE_KEY, extent, key, state_value, value,
};
use crate::pack::locations::Locations;
use crate::pack::marks::Marks;
use crate::pack::pack::{FollowLimit, Pack, Tail};
use crate::store::context::Context;
use crate::store::inner::{StoreInner, View, recover};
use crate::store::options::Options;
use crate::store::reindex::open_current;
use crate::store::syncer::{Syncer, Ticket};
use crate::store::watch::HeadChange;
use crate::tree::digest::{self, Hasher};
use crate::tree::edit::{PassWork, Sharing};
use crate::tree::encode::{EncodedPart, Records, Sink, Written};
use crate::tree::head::Head;
use crate::tree::node::Child;
use crate::tree::tree::{Kind, Tree};

/// Name of the file that the writer locks.
const LOCK: &str = "lock";
/// Name of the file that marks a store whose import has not ended.
pub(crate) const IMPORTING: &str = "importing";
/// Upper bound of the name of a branch, in bytes.
const BRANCH_BYTES_MAX: usize = 255;

/// Largest buffer that is kept for the next frame, in bytes.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Lower bound of the reserve: the frames, the tables and the index entries of a collection.
const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// Entries of one insertion into the index.
const INDEX_BATCH: usize = 4096;

/// Metadata of a commit.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// Seconds since 1970.
    pub date: i64,
    /// Author.
    pub author: &'a [u8],
    /// Free text.
    pub message: &'a [u8],
}

impl<'a> Meta<'a> {
    /// Metadata of a commit in a Tezos context, whose author is `Tezos`.
    pub fn tezos(date: i64, message: &'a str) -> Self {
        Self { date, author: b"Tezos", message: message.as_bytes() }
    }
}

/// Findings of opening a store: what was found, truncated and rebuilt.
///
/// Opening never drops durable bytes. It fails instead, and [`repair`](crate::repair())
/// says what would be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Commits behind the control record.
    pub commits: u64,
    /// Bytes of a torn write behind the last frame, so of no commit that was reported durable. A
    /// writer has truncated them.
    pub cut_bytes: u64,
    /// The newest control record leads to damage, and the one before was used, with the frames that
    /// follow; no commit was lost.
    pub fell_back: bool,
    /// Damaged or unreadable copies of the control record, or its durable mark. A writer has
    /// rewritten them.
    pub damaged_copies: u64,
    /// Entries of a rebuilt index, if the index was lost or stale.
    pub indexed: Option<u64>,
}

impl Recovery {
    /// Returns sentences about the findings; none if the store was closed properly and is intact.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();

        // A sentence for each finding that a user should know; silence means a clean shutdown.
        if self.cut_bytes > 0 {
            notes.push(format!(
                "{} bytes of an unfinished write follow the last commit; no durable commit was among them",
                self.cut_bytes
            ));
        }

        if self.fell_back {
            notes.push(
                "the newest control record leads to damage; the older one was used, and no commit was lost; \
                 run `terrane verify`"
                    .to_owned(),
            );
        }

        if self.damaged_copies > 0 {
            notes.push(format!(
                "{} of the copies in the file `control` cannot be read; the others were used",
                self.damaged_copies
            ));
        }

        if let Some(entries) = self.indexed {
            notes.push(format!("the index was lost or stale, and was rebuilt: {entries} entries"));
        }

        notes
    }
}

/// Changes of the control record by a collection.
#[derive(Debug, Default)]
pub(crate) struct ControlChange {
    /// First commit from which on all are kept, and the kept commits before it.
    pub(crate) retained: Option<(Address, Vec<(Hash, Extent)>)>,
    pub(crate) collecting: Option<u32>,
    pub(crate) first: Option<u32>,
    pub(crate) volumes: Option<u16>,
}

/// State of the writer, under one mutex.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) tail: Tail,
    /// Buffer for the next frame.
    spare: Vec<u8>,
    /// Objects to be indexed by the next control record, if the index has all objects.
    unindexed: FastMap<IndexKey, IndexValue>,
    closed: bool,
    lock: Option<Box<dyn LockGuard>>,
}

impl Writer {
    /// Adds objects to the next insertion into the index: whether each is a value, its hash and its
    /// extent.
    pub(crate) fn index(&mut self, objects: impl Iterator<Item = (bool, Hash, Extent)>) {
        self.unindexed.extend(objects.map(|(is_value, hash, extent)| {
            let object = if is_value { Object::Value } else { Object::Dir };
            (key(object, &hash), value(extent))
        }));
    }
}

/// Condition on the head of a branch before a change.
#[derive(Debug, Clone, Copy)]
enum BranchTest {
    Any,
    Is(Option<Hash>),
}

/// Whether a commit waits for its sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Yes,
    No,
}

/// Result of a change of a branch.
#[derive(Debug, Clone, Copy)]
struct BranchChange {
    before: Option<Hash>,
    is_set: bool,
}

/// Commits that a collection must keep beside its plan.
#[derive(Debug, Default)]
pub(crate) struct HeldCommits {
    /// Number of running calls that hold each commit.
    pub(crate) counts: FastMap<Hash, u32>,
    /// Commits made again since a collection began to mark; `None` while no collection marks.
    pub(crate) again: Option<Vec<Hash>>,
}

impl HeldCommits {
    fn make_again(&mut self, hash: Hash) {
        if let Some(again) = &mut self.again {
            again.push(hash);
        }
    }
}

/// Guard that holds a commit. See [`Store::hold`].
#[derive(Debug)]
pub(crate) struct HeldCommit<'a> {
    store: &'a Store,
    hash: Hash,
}

impl Drop for HeldCommit<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.store.held);
        debug_assert!(held.counts.contains_key(&self.hash), "each guard counts once");
        let count = held.counts.get_mut(&self.hash).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if count == 0 {
            held.counts.remove(&self.hash);
        }
    }
}

pub(crate) fn check_branch_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > BRANCH_BYTES_MAX {
        return Err(Error::BranchName { bytes: name.len() });
    }
    Ok(())
}

/// Store open for writing. All calls take `&self`, and several threads may call at once.
#[doc(alias = "DB")]
#[derive(Debug)]
pub struct Store {
    pub(crate) inner: StoreInner,
    pub(crate) options: Options,
    recovery: Recovery,
    /// The holder of `writer` writes the pages; the syncing thread writes the mark.
    control_file: Arc<dyn DiskFile>,
    hasher: Hasher,
    /// Room behind the control records, which a collection may use on a full disk.
    reserve: Mutex<Reserve>,
    pub(crate) writer: Mutex<Writer>,
    /// Set by `close`; ends a running collection.
    pub(crate) closing: AtomicBool,
    /// Held by a collection, an import, and calls that exclude both.
    pub(crate) collection: Mutex<()>,
    /// Thread of the latest collection that runs on a thread of its own.
    pub(crate) collector: Mutex<Option<OwnThread>>,
    /// Target of the latest collection since the store was opened.
    pub(crate) collected_to: Mutex<Option<Hash>>,
    pub(crate) held: Mutex<HeldCommits>,
    /// Live records, while a collection removes the others.
    pub(crate) marks: RwLock<Option<Arc<Marks>>>,
    syncer: Arc<Syncer>,
    counters: Mutex<CommitStats>,
    preimages: Mutex<PreimageSizes>,
}

pub(crate) fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn LockGuard>> {
    // The error names the store, not its lock file.
    disk.lock(&dir.join(LOCK)).map_err(|error| match error {
        terrane_io::Error::Locked { pid, .. } => Error::Locked { path: dir.to_owned(), pid },
        other => other.into(),
    })
}

/// Returns the absolute directory of a store, which a change of the working directory does not
/// affect, and an anchor that keeps paths below it from leading elsewhere.
pub(crate) fn enter(disk: &dyn Disk, dir: &Path) -> Result<(PathBuf, Arc<dyn Anchor>)> {
    let dir = disk.absolute(dir)?;
    match disk.anchor(&dir) {
        Ok(anchor) => Ok((dir, anchor.into())),
        Err(error) if error.is_not_found() => Err(Error::NotFound { path: dir }),
        Err(error) => Err(error.into()),
    }
}

/// Part of the budget that the nodes of the newest commit take, in bytes: most reads are at that
/// commit.
fn head_bytes(options: &Options) -> usize {
    match options.indexing {
        Indexing::Minimal => options.cache_bytes / 8 * 7,
        // A node may be stored as a record whose base no node knows.
        Indexing::Always => 0,
    }
}

fn new_pack(disk: &Arc<dyn Disk>, locations: &Arc<Locations>, options: &Options) -> Arc<Pack> {
    let cache_bytes = options.cache_bytes - head_bytes(options);
    let pack = Pack::new(Arc::clone(disk), Arc::clone(locations), true, cache_bytes);
    let pack = pack.with_access(options.access);
    Arc::new(if head_bytes(options) > 0 { pack.without_nodes() } else { pack })
}

/// Makes the name of the store's directory durable.
fn sync_parent(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match dir.parent() {
        Some(parent) => Ok(disk.sync_dir(parent)?),
        None => Ok(()),
    }
}

/// Writes the record with a copy of the control record.
fn put_state(control: &Control, body: &mut Vec<u8>) {
    body.push(STATE);
    control.put(body);
}

/// Refuses a directory whose import was interrupted.
pub(crate) fn check_whole(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match disk.kind(&dir.join(IMPORTING))? {
        Some(_) => Err(Error::IncompleteImport { path: dir.to_owned() }),
        None => Ok(()),
    }
}

/// Reads the file `control` of a store.
///
/// # Errors
/// [`NotFound`](Error::NotFound), [`LostControl`](Error::LostControl), those of
/// [`ControlFile::read`].
pub(crate) fn read_control(disk: &dyn Disk, dir: &Path) -> Result<ControlFile> {
    let path = dir.join(CONTROL);
    if disk.kind(&path)?.is_none() {
        return Err(absent(disk, dir)?);
    }
    ControlFile::read(disk, &path)
}

/// Error of a directory without a control record.
fn absent(disk: &dyn Disk, dir: &Path) -> Result<Error> {
    check_whole(disk, dir)?;
    let path = dir.to_owned();
    Ok(if has_pack(disk, dir)? { Error::LostControl { path } } else { Error::NotFound { path } })
}

/// Control record of a new store.
fn first_control(options: &Options, store: u64, tail: &Tail) -> Control {
    Control {
        rules: options.rules,
        indexing: options.indexing,
        volumes: 0,
        store,
        sequence: 0,
        tail: tail.end,
        chain: tail.chain,
        first: 0,
        last: None,
        branches: None,
        table: None,
        kept: None,
        commits: 0,
        retained: Address { chunk: 0, unit: 0 },
        collecting: 0,
    }
}

/// Returns whether a directory has more of a pack than an interrupted creation leaves: the first
/// chunk with at most a copy of the control record.
fn has_pack(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Ok(false);
    }
    let entries = disk.list(dir)?;
    let mut numbers = entries.iter().filter_map(|entry| chunk_number(&entry.name));

    // Creation writes `control` last, so one chunk without commits is no lost store.
    match (numbers.next(), numbers.next()) {
        (None, _) => Ok(false),
        (Some(0), None) => {
            let file = disk.open(&chunk_path(dir, 0), OpenMode::Read, Access::Buffered)?;
            let made =
                CHUNK_HEAD_BYTES + FRAME_HEAD_BYTES + STATE_BYTES.next_multiple_of(8) as usize;
            Ok(file.len()? > made as u64)
        }
        _ => Ok(true),
    }
}

/// Replaces the file `control` durably: the record in both pages, under numbers above all former
/// ones, and a mark.
pub(crate) fn write_control(
    disk: &dyn Disk,
    dir: &Path,
    control: &Control,
    end: Address,
) -> Result<()> {
    // Rename makes the file appear complete or not at all.
    let staged = dir.join("control.new");
    let file = create_afresh(disk, &staged, OpenMode::CreateNew, Access::Buffered)?;
    file.write_at(&encode_file(control, Mark { store: control.store, end }), 0)?;
    file.sync()?;
    drop(file);
    disk.rename(&staged, &dir.join(CONTROL))?;
    Ok(disk.sync_dir(dir)?)
}

/// Refuses rules that differ from those of the store.
pub(crate) fn check_rules(dir: &Path, given: &Rules, control: &Control) -> Result<()> {
    // The first difference is named: the hashes of a store depend on each rule.
    let mismatch = |option, stored: String, given: String| {
        Err(Error::ConfigMismatch { path: dir.to_owned(), option, stored, given })
    };

    let stored = control.rules;
    if stored.scheme != given.scheme {
        return mismatch("scheme", format!("{:?}", stored.scheme), format!("{:?}", given.scheme));
    }

    if stored.branching != given.branching {
        return mismatch("branching", stored.branching.to_string(), given.branching.to_string());
    }

    if stored.flat_limit != given.flat_limit {
        return mismatch("flat_limit", stored.flat_limit.to_string(), given.flat_limit.to_string());
    }

    Ok(())
}

/// Returns whether `dir` holds a context store, of any version.
///
/// Cost: one read.
///
/// # Errors
/// [`Disk`](Error::Disk).
pub fn is_store(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Ok(false);
    }
    let (dir, _anchor) = enter(disk, dir)?;

    let path = dir.join(CONTROL);
    if disk.kind(&path)? != Some(EntryKind::File) {
        return Ok(false);
    }
    let file = disk.open(&path, OpenMode::Read, Access::Buffered)?;

    // One page is enough: the other may be truncated or unreadable.
    let mut page = vec![0; CONTROL_PAGE_BYTES];
    for number in 0..2 {
        let read = file.read_at(&mut page, number * CONTROL_PAGE_BYTES as u64);
        if read.is_ok() && is_control(&page) {
            return Ok(true);
        }
    }

    Ok(false)
}

/// Length of the reserve: 1 MiB with default chunks. A chunk with fewer live bytes can be rewritten
/// within it.
fn reserve_bytes(options: &Options) -> u64 {
    (options.chunk_bytes / 16).max(RESERVE_BYTES_MIN)
}

impl Store {
    /// Creates a store in `dir`, and the directory if it is missing.
    ///
    /// Cost: a few writes and syncs.
    ///
    /// # Errors
    /// [`AlreadyExists`](Error::AlreadyExists), [`Locked`](Error::Locked),
    /// [`InvalidConfig`](Error::InvalidConfig), [`IncompleteImport`](Error::IncompleteImport),
    /// [`ForeignLocation`](Error::ForeignLocation), [`Disk`](Error::Disk).
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Self> {
        // Checked before anything is created.
        options.check()?;
        create_dirs(&*disk, dir)?;
        let (dir, anchor) = enter(&*disk, dir)?;
        let guard = take_lock(&*disk, &dir)?;
        check_whole(&*disk, &dir)?;
        Self::create_locked(disk, (&dir, &anchor), options, guard)
    }

    /// Creates a store in `dir`, whose lock is held.
    pub(crate) fn create_locked(
        disk: Arc<dyn Disk>,
        (dir, anchor): (&Path, &Arc<dyn Anchor>),
        options: &Options,
        guard: Box<dyn LockGuard>,
    ) -> Result<Self> {
        let now = disk.clock().wall().as_nanos() as u64;
        let store = now.wrapping_mul(0x9E37_79B9_7F4A_7C15);

        // A directory with a store, or with the rest of one, is never overwritten.
        if disk.kind(&dir.join(CONTROL))?.is_some() {
            return Err(Error::AlreadyExists { path: dir.to_owned() });
        }

        if has_pack(&*disk, dir)? {
            return Err(Error::LostControl { path: dir.to_owned() });
        }
        let (locations, store) =
            Locations::create(&*disk, (dir, anchor), &options.wanted(), store)?;

        // The chain begins with the identity, so a chunk of another store does not continue it.
        let chain = store as u32;
        let pack = new_pack(&disk, &locations, options);
        let version = CHUNK_VERSION;
        let head = ChunkHead { version, number: 0, store, before: 0, chain, map: None };
        let chunk = pack.create_chunk(head)?;
        chunk.file.allocate(options.chunk_bytes)?;
        let tail = Tail { chunk, end: Address { chunk: 0, unit: FIRST_UNIT }, chain };

        let mut control = first_control(options, store, &tail);

        // A copy of the control record at the beginning of the pack, for a repair.
        let mut frame = FrameWriter::new(tail.end);
        frame.put(&mut |body| put_state(&control, body))?;
        let start = tail.end;
        let (tail, _) = pack.append(&tail, frame, FrameKind::Branches, start)?;
        tail.chunk.file.sync()?;
        (control.tail, control.chain) = (tail.end, tail.chain);

        // The file `control` makes the directory a store, so it comes last and complete.
        disk.sync_dir(dir)?;
        pack.set_store(store)?;
        write_control(&*disk, dir, &control, tail.end)?;
        // The record was written under two numbers, one for each page.
        control.sequence += 1;
        sync_parent(&*disk, dir)?;

        Self::assemble(
            disk,
            dir,
            options,
            pack,
            View::new(control),
            tail,
            Recovery::default(),
            guard,
        )
    }

    /// Opens the store in `dir` for writing, and truncates a torn write.
    ///
    /// Opening never truncates durable bytes. The file `control` bounds the durable end from below,
    /// by the control record and by a mark that the writer moves after each sync. The mark needs no
    /// sync of its own, so after a power loss it may lag by the writes that the system had not
    /// written back.
    ///
    /// If it lags, or with [`Buffered`](Durability::Buffered) durability, damage of the last frame
    /// alone looks like a torn write, and is truncated. After the death of the process alone, the
    /// mark is exact.
    ///
    /// Cost: reads the control record and the frames behind it: less than two chunks; the objects
    /// of these once more if all are [indexed](Indexing::Always). An index that is lost is made
    /// anew: reads the commits, or everything that is in use.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound), [`Locked`](Error::Locked),
    /// [`ConfigMismatch`](Error::ConfigMismatch), [`IncompleteImport`](Error::IncompleteImport),
    /// [`LostControl`](Error::LostControl), [`Corrupt`](Error::Corrupt) also if the pack ends
    /// before where it was durable, [`ForeignChunk`](Error::ForeignChunk),
    /// [`AbsentLocation`](Error::AbsentLocation), [`ForeignLocation`](Error::ForeignLocation),
    /// [`Disk`](Error::Disk), [`Index`](Error::Index).
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Self> {
        options.check()?;
        let (dir, anchor) = enter(&*disk, dir)?;
        let dir = dir.as_path();

        // Before the lock, which would create a file in a directory that holds no store.
        if disk.kind(&dir.join(CONTROL))?.is_none() {
            return Err(absent(&*disk, dir)?);
        }
        let guard = take_lock(&*disk, dir)?;
        check_whole(&*disk, dir)?;
        let file = read_control(&*disk, dir)?;

        let newest = *file.newest();
        for control in &file.whole {
            check_rules(dir, &options.rules, control)?;
        }
        let of_store = (newest.store, newest.volumes);
        let locations =
            Locations::enter_to_write(&*disk, (dir, &anchor), &options.wanted(), of_store)?;

        // The newest record that leads to intact frames counts; the older one is the fallback.
        let mut failed = None;
        for mut control in file.whole.iter().copied() {
            control.indexing = options.indexing;
            control.volumes = control.volumes.max(newest.volumes);
            let pack = new_pack(&disk, &locations, options);
            let mut view = View::new(control);
            view.first_known = newest.first;

            let tail = match recover(&pack, &mut view, FollowLimit::to(file.durable())) {
                Ok(tail) => pack.to_append(tail)?,
                // The older record may still lead to intact frames.
                Err(error @ (Error::Corrupt { .. } | Error::Disk(_))) => {
                    failed = failed.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };

            let cut_bytes = Self::finish_recovery(&pack, &mut view, &tail, file.durable())?;
            sync_parent(&*disk, dir)?;
            let fell_back = failed.is_some();

            // Both pages are rewritten: the damaged one must not be the only other copy.
            if fell_back || !file.damaged.is_empty() {
                view.control.sequence = newest.sequence + 1;
                write_control(&*disk, dir, &view.control, tail.end)?;
                // The record was written under two numbers, one for each page.
                view.control.sequence += 1;
            }

            let recovery = Recovery {
                commits: view.commits - control.commits,
                cut_bytes,
                fell_back,
                damaged_copies: file.damaged.len() as u64,
                indexed: None,
            };

            return Self::assemble(disk, dir, options, pack, view, tail, recovery, guard);
        }

        Err(failed.unwrap_or(Error::NotFound { path: dir.to_owned() }))
    }

    /// Truncates a torn write behind the recovered tail, removes leftovers, and makes the rest
    /// durable. Returns the number of truncated bytes.
    fn finish_recovery(pack: &Pack, view: &mut View, tail: &Tail, durable: Address) -> Result<u64> {
        // Only behind the durable end that recovery reached is anything truncated.
        let cut_bytes = pack.cut(tail)?;
        Pack::write_again(tail, durable)?;
        pack.remove_strays(view.control.first)?;
        view.control.first = pack.first_present(view.control.first, view.first_known)?;
        pack.set_first(view.control.first);

        // A killed process may have left unsynced names and an unsynced chunk.
        pack.sync_new(&tail.chunk)?;
        Ok(cut_bytes)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a store, put together in two places"
    )]
    fn assemble(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        pack: Arc<Pack>,
        view: View,
        tail: Tail,
        mut recovery: Recovery,
        guard: Box<dyn LockGuard>,
    ) -> Result<Self> {
        let control_file = disk.open(&dir.join(CONTROL), OpenMode::ReadWrite, Access::Buffered)?;

        // A killed process may not have synced the record that was read: commits that it hides must
        // not come back.
        control_file.sync()?;

        let mut inner =
            StoreInner::new(disk, pack, options.rules, view, Head::new(head_bytes(options)));
        if options.verify_reads {
            inner.verify_reads();
        }
        recovery.indexed = open_current(&mut inner, &options.index)?;

        // The index lacks the objects behind the control record.
        let mut unindexed = FastMap::default();
        if options.indexing == Indexing::Always {
            inner.each_recent(&mut |object, link| {
                unindexed.insert(key(object, &link.hash), value(link.extent));
            })?;
        }

        // Opening synced the last chunk; earlier chunks were synced when their successor was begun.
        let syncer = Syncer::new(Arc::clone(&inner.pack), Arc::clone(&control_file), tail.clone());

        // The mark on the disk may lag behind what opening has synced.
        syncer.move_mark(inner.view().control.store, tail.end);

        Ok(Self {
            inner,
            options: options.clone(),
            recovery,
            hasher: Hasher::new(options.hash_threads),
            reserve: Mutex::new(Reserve::open(Arc::clone(&control_file), reserve_bytes(options))),
            control_file,
            syncer: Arc::new(syncer),
            writer: Mutex::new(Writer {
                tail,
                spare: Vec::new(),
                unindexed,
                closed: false,
                lock: Some(guard),
            }),
            counters: Mutex::new(CommitStats::default()),
            preimages: Mutex::default(),
            closing: AtomicBool::new(false),
            collection: Mutex::new(()),
            collector: Mutex::new(None),
            collected_to: Mutex::new(None),
            held: Mutex::default(),
            marks: RwLock::new(None),
        })
    }

    /// Findings of opening.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Returns the options that the store in `dir` needs: its rules and indexing, and otherwise
    /// those of [`Options::new`].
    ///
    /// Reads the control record alone, so archive and index may be away.
    ///
    /// Cost: three reads.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound), [`LostControl`](Error::LostControl),
    /// [`Corrupt`](Error::Corrupt), [`IncompleteImport`](Error::IncompleteImport),
    /// [`Disk`](Error::Disk).
    pub fn options_of(disk: &dyn Disk, dir: &Path, index: Arc<dyn IndexEngine>) -> Result<Options> {
        let (dir, _anchor) = enter(disk, dir)?;
        let control = *read_control(disk, &dir)?.newest();
        let rules = control.rules;
        let indexing = control.indexing;
        Ok(Options { rules, indexing, ..Options::new(index) })
    }

    /// Hashing rules of the store.
    pub fn rules(&self) -> &Rules {
        &self.inner.env.rules
    }

    /// Directory of the volumes of the archive, which may be elsewhere and may not exist yet.
    pub fn archive_dir(&self) -> PathBuf {
        self.inner.pack.locations().archive()
    }

    /// Directory of the index, which may be elsewhere.
    pub fn index_dir(&self) -> PathBuf {
        self.inner.pack.locations().index()
    }

    /// Returns the empty context, without parents.
    pub fn empty(&self) -> Context {
        Context::new(self.inner.empty(), Vec::new())
    }

    /// Checks out a commit; `None` if it never existed, or was collected.
    ///
    /// Cost: two reads at most beside those of the index.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), [`Corrupt`](Error::Corrupt), [`Index`](Error::Index).
    pub fn checkout(&self, hash: &Hash) -> Result<Option<Context>> {
        let start = self.now();
        let context = self.inner.checkout(hash);
        self.inner.latencies.checkout.add(self.now().saturating_sub(start));
        context
    }

    /// Returns whether a commit exists.
    ///
    /// # Errors
    /// Errors of [`checkout`](Self::checkout).
    pub fn exists(&self, hash: &Hash) -> Result<bool> {
        Ok(self.inner.find_commit(hash)?.is_some())
    }

    /// Returns a commit.
    ///
    /// # Errors
    /// Errors of [`checkout`](Self::checkout), and [`UnknownCommit`](Error::UnknownCommit).
    pub fn commit_info(&self, hash: &Hash) -> Result<Commit> {
        self.inner.commit_of(hash)
    }

    /// Returns the tree with a hash, in a store that indexes [all objects](Indexing::Always);
    /// `None` if the store never wrote it, or collected it, and for a value of at most 48 bytes,
    /// which is part of its directory.
    ///
    /// No collection removes the tree while a caller has it. Since the index lags behind the
    /// pack, an object may be stored twice. It is then not found after the copy in the index was
    /// collected, or if it was written shortly before a crash.
    ///
    /// Cost: a lookup in the index, and one read, or two.
    ///
    /// # Errors
    /// Errors of [`checkout`](Self::checkout), and [`Closed`](Error::Closed).
    pub fn find_object(&self, kind: Kind, hash: &Hash) -> Result<Option<Tree>> {
        // The empty directory is never stored, so no index has it.
        if kind == Kind::Directory && *hash == self.rules().empty_hash() {
            return Ok(Some(self.inner.empty()));
        }

        let object = if kind == Kind::Value { Object::Value } else { Object::Dir };
        let pins = Pins::default();
        self.inner.check_process()?;
        let link = {
            // A collection switches to its marks under this lock.
            let writer = lock(&self.writer);
            if writer.closed {
                return Err(Error::Closed);
            }
            let Some(extent) = self.find_whole(&writer, object, hash)? else {
                return Ok(None);
            };
            pins.add(self.inner.pinned.pin(extent));
            Link { extent, hash: *hash }
        };

        // An index may have an entry of a hash that the record does not have: check the content.
        let env = &self.inner.env;
        let root = if kind == Kind::Value {
            let value = env.load_value(&link)?;
            (self.rules().value_hash(&value) == *hash).then(|| Child::ValueAt(Box::new(link)))
        } else {
            let node = env.load(&link)?;
            // The index also has inodes, which are no directories.
            let is_dir = node.check_shape(&env.rules, 0).is_ok();
            (is_dir && digest::hash_of(env, &node) == *hash).then_some(Child::Dir(node))
        };

        Ok(root.map(|root| Tree::at(Arc::clone(env), root, pins)))
    }

    /// Returns the commits, newest first.
    pub fn newest(&self) -> impl Iterator<Item = Result<Commit>> + '_ {
        self.inner.newest().map(|commit| Ok(commit?.1.commit))
    }

    pub(crate) fn check_writable(&self, writer: &Writer) -> Result<()> {
        self.inner.check_process()?;
        if writer.closed {
            return Err(Error::Closed);
        }
        self.syncer.check_poison()
    }

    /// Poisons the store if `result` is an error.
    pub(crate) fn or_poison<E: Into<Error>>(
        &self,
        result: std::result::Result<(), E>,
    ) -> Result<()> {
        if result.is_err() {
            self.syncer.poison();
        }
        result.map_err(Into::into)
    }

    /// Returns the hash that a commit of `context` would have. Writes nothing.
    pub fn hash(&self, context: &Context, meta: &Meta<'_>) -> Hash {
        let root = context.tree().hash_by(&self.hasher);
        self.commit_hash(&root, context.parents(), meta)
    }

    fn commit_hash(&self, root: &Hash, parents: &[Hash], meta: &Meta<'_>) -> Hash {
        let Meta { date, author, message } = *meta;
        self.rules().commit_hash(&CommitInfo { root, parents, date, author, message })
    }

    /// Commits `context`: appends its changes and a commit record. Durable when the call returns,
    /// unless the store is [`Buffered`](Durability::Buffered). The context and its parents stay as
    /// they are.
    ///
    /// Cost: one write and one sync; now and then those of a new chunk. In a store that indexes
    /// [all objects](Indexing::Always) also a look into the index for each object, and one read for
    /// each directory that is there already.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk) and [`Index`](Error::Index): nothing was committed, unless it was the
    /// sync that failed: then the store is [`Poisoned`](Error::Poisoned) from here on, and the
    /// commit may be there when it is opened anew; [`Closed`](Error::Closed);
    /// [`NotADirectory`](Error::NotADirectory) for a tree that is a value;
    /// [`DanglingHash`](Error::DanglingHash) for a shallow part that the index of all objects does
    /// not have; [`TooDeep`](Error::TooDeep) if such parts make the tree too high;
    /// [`CommitTooLarge`](Error::CommitTooLarge); [`ForeignTree`](Error::ForeignTree) for a tree of
    /// another store, while one that belongs to none is copied.
    pub fn commit(&self, context: &Context, meta: &Meta<'_>) -> Result<Hash> {
        let hash = self.commit_and_set(context, meta, None, self.waits())?;
        Ok(hash.expect("only the test of a branch refuses a commit"))
    }

    /// Commits like [`commit`](Self::commit), and does not wait for the sync: the ticket does. The
    /// commit is seen at once, and its child can be built while it becomes durable (pipelined
    /// durability). A later commit never survives a crash that an earlier one did not survive.
    ///
    /// Cost: one write; one sync by a thread of the store, which commits meanwhile share.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit), without those of the sync.
    pub fn commit_async(&self, context: &Context, meta: &Meta<'_>) -> Result<(Hash, Ticket)> {
        let hash = self.commit_and_set(context, meta, None, Waits::No)?;
        let hash = hash.expect("only the test of a branch refuses a commit");
        Ok((hash, self.sync_async()))
    }

    /// Commits like [`commit_to`](Self::commit_to), and does not wait for the sync, as
    /// [`commit_async`](Self::commit_async).
    ///
    /// # Errors
    /// Errors of [`commit_to`](Self::commit_to), without those of the sync.
    pub fn commit_to_async(
        &self,
        branch: &[u8],
        context: &Context,
        meta: &Meta<'_>,
    ) -> Result<(Hash, Ticket)> {
        let to = Some((branch, BranchTest::Any));
        let hash = self.commit_and_set(context, meta, to, Waits::No)?;
        Ok((hash.expect("any head of the branch will do"), self.sync_async()))
    }

    /// Whether a commit waits for its sync.
    fn waits(&self) -> Waits {
        if self.options.durability > Durability::Buffered { Waits::Yes } else { Waits::No }
    }

    /// Commits like [`commit`](Self::commit), and sets the head of a branch to the commit: both or
    /// neither, with one sync. No collection comes between.
    ///
    /// Cost: as a commit.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit), and [`BranchName`](Error::BranchName).
    pub fn commit_to(&self, branch: &[u8], context: &Context, meta: &Meta<'_>) -> Result<Hash> {
        let hash =
            self.commit_and_set(context, meta, Some((branch, BranchTest::Any)), self.waits())?;
        Ok(hash.expect("any head of the branch will do"))
    }

    /// Commits like [`commit_to`](Self::commit_to) if the head of the branch is `test`. Otherwise
    /// writes nothing, and returns `None`.
    ///
    /// # Errors
    /// Errors of [`commit_to`](Self::commit_to).
    pub fn test_and_commit_to(
        &self,
        branch: &[u8],
        test: Option<&Hash>,
        context: &Context,
        meta: &Meta<'_>,
    ) -> Result<Option<Hash>> {
        self.commit_and_set(
            context,
            meta,
            Some((branch, BranchTest::Is(test.copied()))),
            self.waits(),
        )
    }

    fn commit_and_set(
        &self,
        context: &Context,
        meta: &Meta<'_>,
        to: Option<(&[u8], BranchTest)>,
        waits: Waits,
    ) -> Result<Option<Hash>> {
        if let Some((name, _)) = to {
            check_branch_name(name)?;
        }
        let begun = self.now();

        // Hashing needs no lock, and encoding on its threads none: commits overlap here.
        let tree = &*self.own_tree(context.tree())?;

        let (root, parts) = self.hash_tree(tree)?;
        let hash = self.commit_hash(&root, context.parents(), meta);
        let end = {
            let mut writer = lock(&self.writer);
            self.check_writable(&writer)?;
            // Tested under the writer's lock, so that the head stays the same up to the commit.
            if let Some((name, BranchTest::Is(test))) = to
                && self.branch(name) != test
            {
                return Ok(None);
            }
            if self.inner.find_commit(&hash)?.is_none() {
                let commit = Commit {
                    hash,
                    root,
                    parents: context.parents().to_vec(),
                    date: meta.date,
                    author: meta.author.to_vec(),
                    message: meta.message.to_vec(),
                };
                let branch = to.map(|(name, _)| name);
                let written = self.write(&mut writer, tree, parts, Some((commit, branch)))?;
                // With the lock: another commit of these nodes refers to the same records.
                written.keep();
            } else {
                lock(&self.held).make_again(hash);
                if let Some((name, _)) = to {
                    self.move_branch(&mut writer, name, Some(hash))?;
                }
            }
            writer.tail.end
        };

        // Outside the writer's lock: other commits append while this one waits for the fsync.
        self.inner.head.set(tree.root(), tree.added());
        if waits == Waits::Yes {
            let start = self.now();
            self.syncer.sync_to(end)?;
            let sync_time = self.now().saturating_sub(start);
            self.inner.latencies.sync.add(sync_time);
            lock(&self.counters).sync_time += sync_time;
        }

        self.inner.latencies.commit.add(self.now().saturating_sub(begun));

        if to.is_some() {
            self.inner.call_watches(end);
        }
        Ok(Some(hash))
    }

    /// Makes collections keep a commit until the guard is dropped, if the commit exists before they
    /// remove anything.
    pub(crate) fn hold(&self, hash: Hash) -> HeldCommit<'_> {
        *lock(&self.held).counts.entry(hash).or_default() += 1;
        HeldCommit { store: self, hash }
    }

    /// Returns the tree if it belongs to this store; a copy of a tree without a store.
    ///
    /// Commits store extents in nodes, and extents of another store mean nothing here.
    fn own_tree<'a>(&self, tree: &'a Tree) -> Result<Cow<'a, Tree>> {
        if Arc::ptr_eq(&tree.env, &self.inner.env) {
            return Ok(Cow::Borrowed(tree));
        }

        // The copy has the hashes of the original, so only the records are written again.
        let mut copy = self.inner.empty();
        copy.add_tree::<&[u8]>(&[], tree)?;
        Ok(Cow::Owned(copy))
    }

    fn now(&self) -> Duration {
        self.inner.disk.clock().monotonic()
    }

    /// Size at which a frame of objects is full.
    fn full_frame_bytes(&self) -> u64 {
        (self.options.chunk_bytes / 2).min(FRAME_FULL_BYTES as u64)
    }

    /// Puts the values that wait into a tree and hashes it, on all threads; counts the work. Also
    /// returns what these threads encoded.
    fn hash_tree(&self, tree: &Tree) -> Result<(Hash, Vec<EncodedPart>)> {
        if tree.kind() == Kind::Value {
            return Err(Error::NotADirectory);
        }

        let start = self.now();
        // An index of all objects is asked before each object is encoded, so a commit does that.
        let encoded_max = match self.options.indexing {
            Indexing::Always => 0,
            Indexing::Minimal => self.full_frame_bytes() as usize,
        };
        let sharing = Sharing { hasher: &self.hasher, encoded_max };
        let (hash, PassWork { hashed, encoded }) = tree.root_hash(sharing);
        let hash_time = self.now().saturating_sub(start);
        self.inner.latencies.hash.add(hash_time);
        lock(&self.preimages).merge(&hashed.sizes);
        let mut counters = lock(&self.counters);
        counters.hash_time += hash_time;
        counters.hashed += hashed.count;
        counters.hashed_bytes += hashed.bytes;
        counters.hashed_again += hashed.again;

        Ok((hash, encoded))
    }

    /// Writes the changes of a tree without a commit; they are garbage until a commit reaches them.
    ///
    /// With [`Tree::clear`] after it, a tree of any size is built in little memory. The caller
    /// does both after about every 10,000 changes, or lets
    /// [`Context::set_auto_flush`] do so.
    ///
    /// Cost: one write.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit).
    pub fn flush(&self, tree: &Tree) -> Result<()> {
        let tree = &*self.own_tree(tree)?;
        let (_, parts) = self.hash_tree(tree)?;

        // No sync: a commit that reaches these objects makes them durable.
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let written = self.write(&mut writer, tree, parts, None)?;
        written.keep();
        Ok(())
    }

    /// Appends a frame with the changes of a tree, with its commit if there is one, and with the
    /// branch that is set to the commit. The caller must [keep](Written::keep) the result.
    fn write(
        &self,
        writer: &mut Writer,
        tree: &Tree,
        parts: Vec<EncodedPart>,
        commit: Option<(Commit, Option<&[u8]>)>,
    ) -> Result<Written> {
        let hash = commit.as_ref().map(|(commit, _)| commit.hash);
        let branch = commit.as_ref().and_then(|(_, branch)| *branch);

        let start = self.now();
        let written_before = lock(&self.counters).write_time;

        let mut written = Written::with_parts(parts);
        let (root, extent) = self.write_frame(writer, commit, &mut |sink| match tree.root() {
            Child::Dir(node) if node.count() == 0 => Ok(None),
            other => match written.root(&self.inner.env, other, sink)? {
                Some((link, _)) => Ok(Some(link)),
                None => Err(Error::NotADirectory),
            },
        })?;

        // The tree may read the new records, also after its commit was collected.
        if let Some(root) = root {
            tree.pins.add(self.inner.pinned.pin(root.extent));
        }

        if self.options.indexing == Indexing::Always {
            writer.index(written.objects());
        }

        let mut counters = lock(&self.counters);
        let (nodes, values) = written.counts();
        let writing = counters.write_time.saturating_sub(written_before);
        let encode_time = self.now().saturating_sub(start).saturating_sub(writing);
        self.inner.latencies.encode.add(encode_time);
        counters.encode_time += encode_time;
        counters.nodes += nodes;
        counters.values += values;
        drop(counters);

        // Last: from here on other threads see the commit.
        if let (Some(hash), Some(extent)) = (hash, extent) {
            self.show_commits(writer, &[(hash, extent)], branch.map(|name| (name, hash)));
        }

        Ok(written)
    }

    /// Adds the commits of a written frame to the view, all at once, with the branch set in the
    /// frame.
    fn show_commits(
        &self,
        writer: &Writer,
        commits: &[(Hash, Extent)],
        branch: Option<(&[u8], Hash)>,
    ) {
        let before = branch.and_then(|(name, _)| self.branch(name));
        let mut view = self.inner.view_mut();
        for (hash, extent) in commits {
            debug_assert!(extent.at < writer.tail.end, "the frame of the commit was appended");
            view.add_commit(*hash, *extent);
        }

        if let Some((name, head)) = branch.filter(|(_, head)| before != Some(*head)) {
            view.branches.insert(name.to_vec(), head);
            drop(view);
            let change = HeadChange { branch: name.to_vec(), before, after: Some(head) };
            self.inner.watches.push(writer.tail.end, change);
        }
    }

    /// Appends a frame with commits whose trees are stored, parents first, and with the head of a
    /// branch, if any. All are seen at once, and a crash leaves all or none.
    ///
    /// # Errors
    /// [`CommitTooLarge`](Error::CommitTooLarge) if the frame has no room for all of them; those of
    /// a write.
    pub(crate) fn write_commits(
        &self,
        writer: &mut Writer,
        commits: Vec<(Commit, Option<Link>)>,
        branch: Option<(&[u8], Hash)>,
    ) -> Result<()> {
        debug_assert!(!commits.is_empty(), "a frame of commits has commits");
        self.hold_reserve()?;
        self.roll_if_full(writer)?;

        let mut frame = FrameWriter::new(writer.tail.end);
        let mut before = self.inner.view().last;
        let mut written = Vec::with_capacity(commits.len());
        for (commit, root) in commits {
            let hash = commit.hash;
            let record = CommitRecord { commit, root, before };
            let at = frame.next();
            let extent = frame.put(&mut |body| record.put(at, body))?;
            before = Some(extent);
            written.push((hash, extent));
        }

        if let Some((name, head)) = branch {
            let record = BranchRecord { name: name.to_vec(), head: Some(head) };
            frame.put(&mut |body| record.put(body))?;
        }

        self.append(writer, frame, FrameKind::Commits)?;
        self.show_commits(writer, &written, branch);
        Ok(())
    }

    /// Appends a frame with the records that `fill` writes, with a commit of the root that `fill`
    /// returns, if there is one, and with the branch that is set to the commit.
    ///
    /// Returns the root and the extent of the commit. The view does not have the commit and the
    /// branch yet.
    pub(crate) fn write_frame(
        &self,
        writer: &mut Writer,
        commit: Option<(Commit, Option<&[u8]>)>,
        fill: &mut dyn FnMut(&mut dyn Sink) -> Result<Option<Link>>,
    ) -> Result<(Option<Link>, Option<Extent>)> {
        self.hold_reserve()?;

        self.roll_if_full(writer)?;
        let frame = FrameWriter::reusing(writer.tail.end, std::mem::take(&mut writer.spare));
        let mut sink = StoreSink { store: self, writer, frame };
        let root = fill(&mut sink)?;
        let mut kind = FrameKind::Objects;
        let mut extent = None;

        // The sink may end its frame, and the commit and the branch must be in the last frame
        // together: write both without the sink.
        let mut frame = sink.frame;
        if let Some((commit, branch)) = commit {
            let head = commit.hash;
            let record = CommitRecord { commit, root, before: self.inner.view().last };
            let at = frame.next();
            kind = FrameKind::Commit;
            extent = Some(frame.put(&mut |body| record.put(at, body))?);
            if let Some(name) = branch {
                let record = BranchRecord { name: name.to_vec(), head: Some(head) };
                kind = FrameKind::CommitTo;
                frame.put(&mut |body| record.put(body))?;
            }
        }

        self.append(writer, frame, kind)?;
        Ok((root, extent))
    }

    fn append(&self, writer: &mut Writer, frame: FrameWriter, kind: FrameKind) -> Result<()> {
        // The durable end as of now: it tells corruption from a torn write when the pack is
        // recovered.
        let synced = self.syncer.end();
        debug_assert!(synced <= writer.tail.end, "only appended frames are durable");
        let start = self.now();
        (writer.tail, writer.spare) = self.inner.pack.append(&writer.tail, frame, kind, synced)?;

        if writer.spare.capacity() > SPARE_BYTES_MAX {
            writer.spare = Vec::new();
        }
        let write_time = self.now().saturating_sub(start);
        self.inner.latencies.write.add(write_time);
        lock(&self.counters).write_time += write_time;

        // For a thread that syncs: it does not take the writer's lock.
        self.syncer.wrote(&writer.tail);
        Ok(())
    }

    /// Begins the next chunk if this one is full.
    pub(crate) fn roll_if_full(&self, writer: &mut Writer) -> Result<()> {
        // A chunk of an earlier version takes no records of this one.
        let is_newest = writer.tail.chunk.head.version == CHUNK_VERSION;
        if is_newest && writer.tail.end.offset() < self.options.chunk_bytes {
            return Ok(());
        }
        self.roll(writer)
    }

    /// Restores the reserve if a collection used it. Only collections go on without the reserve.
    fn hold_reserve(&self) -> Result<()> {
        let mut reserve = lock(&self.reserve);

        // Without the reserve a later collection could not free anything on a full disk.
        if reserve.take_back(&*self.inner.disk, &self.inner.dir)? {
            return Ok(());
        }
        Err(Error::OutOfSpace { path: self.inner.dir.clone(), reserve_bytes: reserve.bytes() })
    }

    /// Releases the reserve for a collection, if the disk has less room than the reserve.
    pub(crate) fn give_reserve_up(&self) -> Result<()> {
        let mut reserve = lock(&self.reserve);
        if self.inner.disk.free_bytes(&self.inner.dir)? < reserve.bytes() {
            rare::taken("a context store gives its reserve up");
            // This sync also covers a control record written by another thread, and a failed sync
            // is reported once.
            self.or_poison(reserve.give_up().map(drop))?;
        }
        Ok(())
    }

    /// Restores the reserve after a collection, if the disk has room.
    pub(crate) fn try_to_hold_reserve(&self) {
        // If there is no room, the next commit fails with `OutOfSpace`.
        let _ = self.hold_reserve();
    }

    /// Makes all commits durable.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), after which the store is poisoned; [`Poisoned`](Error::Poisoned).
    #[doc(alias = "SyncWAL")]
    pub fn sync(&self) -> Result<()> {
        self.syncer.sync_to(self.syncer.written_end())
    }

    /// Begins to make all commits so far durable, and does not wait: the ticket does.
    ///
    /// Cost: one sync by a thread of the store; commits meanwhile share the next one.
    pub fn sync_async(&self) -> Ticket {
        let end = self.syncer.written_end();
        self.syncer.begin(end);
        Ticket::new(&self.syncer, end)
    }

    /// Makes the pack durable, updates the index, and writes the control record.
    pub(crate) fn checkpoint(&self, writer: &mut Writer, change: &ControlChange) -> Result<()> {
        self.checkpoint_in(writer, change, false)
    }

    /// Writes a checkpoint. If `rolls` is set, begins the next chunk before the control record,
    /// which then names the chunk, so that its loss is noticed.
    fn checkpoint_in(
        &self,
        writer: &mut Writer,
        change: &ControlChange,
        rolls: bool,
    ) -> Result<()> {
        let (commits, mut control) = self.write_tables(writer, change)?;
        self.syncer.sync_to(writer.tail.end)?;

        debug_assert!(
            writer.tail.end <= self.syncer.end(),
            "frames are durable before the record that names them"
        );

        // The index follows the pack: it never has an object that a crash could take.
        let entry = |(hash, extent): (Hash, Extent)| (key(Object::Commit, &hash), value(extent));
        let mut entries: Vec<(IndexKey, IndexValue)> = commits.into_iter().map(entry).collect();
        entries.extend(writer.unindexed.iter().map(|(key, value)| (*key, *value)));
        entries.sort_unstable_by_key(|entry| entry.0);
        self.index_entries(&entries)?;

        // The state comes last: an index with it has all commits that the control record counts.
        self.index_entries(&[(STATE_KEY, state_value(control.commits, control.store))])?;
        writer.unindexed.clear();

        if rolls {
            // From here on frames go to the new chunk, even if the control record fails: recovery
            // by the former record follows the chunks as well.
            let tail = self.inner.pack.roll(&writer.tail, self.options.chunk_bytes)?;
            self.or_poison(self.inner.pack.sync_new(&tail.chunk))?;
            self.syncer.wrote(&tail);
            writer.tail = tail;
        }

        // The record refers to synced frames only.
        control.sequence += 1;
        control.tail = writer.tail.end;
        control.chain = writer.tail.chain;
        debug_assert!(control.first <= control.tail.chunk, "the last chunk is kept");
        let written = self.control_file.write_at(&control.encode(), control.offset());

        // If this write fails, the record that hides commits may be on disk all the same: no later
        // commit may build on either state.
        if change.retained.is_some() {
            self.or_poison(written)?;
        } else {
            written?;
        }

        self.or_poison(self.control_file.sync())?;

        let mut view = self.inner.view_mut();
        debug_assert!(
            view.recent.values().all(|commit| commit.at < control.tail),
            "all are indexed"
        );

        debug_assert!(view.control.sequence < control.sequence, "records are numbered upwards");
        // The index has these commits now.
        view.recent.clear();
        view.indexed = control.tail;

        if let Some((_, kept)) = &change.retained {
            view.kept = kept.iter().copied().collect();
        }
        view.control = control;

        Ok(())
    }

    fn index_entries(&self, entries: &[(IndexKey, IndexValue)]) -> Result<()> {
        let Some(index) = &self.inner.index else { return Ok(()) };

        // Batches bound the memory of the index; the flush makes them durable before the record.
        for some in entries.chunks(INDEX_BATCH) {
            index.insert(some).map_err(Error::index)?;
        }
        index.flush().map_err(Error::index)
    }

    /// Appends the table of branches and the table of recent commits. Returns these commits, and
    /// the next control record.
    fn write_tables(
        &self,
        writer: &mut Writer,
        change: &ControlChange,
    ) -> Result<(Vec<(Hash, Extent)>, Control)> {
        let mut frame = FrameWriter::new(writer.tail.end);
        let view = self.inner.view();
        let mut control = Control { last: view.last, commits: view.commits, ..view.control };
        control.branches = None;

        if !view.branches.is_empty() {
            control.branches = Some(frame.put(&mut |body| put_branches(&view.branches, body))?);
        }

        // A reader has no index: it finds these commits in the table.
        let mut commits: Vec<_> =
            view.recent.iter().map(|(hash, extent)| (*hash, *extent)).collect();
        commits.sort_unstable_by_key(|commit| commit.1.at);

        if !commits.is_empty() {
            let table = CommitTable { before: control.table, commits: commits.clone() };
            let at = frame.next();
            control.table = Some(frame.put(&mut |body| table.put(at, body))?);
        }

        drop(view);

        // The changes of a collection come on top of the view.
        debug_assert!(
            change.first.is_none_or(|first| control.first <= first),
            "chunks go from the first on"
        );
        control.collecting = change.collecting.unwrap_or(control.collecting);
        control.first = change.first.unwrap_or(control.first);
        control.volumes = change.volumes.unwrap_or(control.volumes);

        if let Some((retained, kept)) = &change.retained {
            let table = CommitTable { before: None, commits: kept.clone() };
            let at = frame.next();
            (control.retained, control.kept) = (*retained, None);
            if !kept.is_empty() {
                control.kept = Some(frame.put(&mut |body| table.put(at, body))?);
            }
        }

        // The copy of the record comes last, so that the tail can be checked against it.
        frame.put(&mut |body| put_state(&control, body))?;
        self.append(writer, frame, FrameKind::Branches)?;
        Ok((commits, control))
    }

    /// Ends the current chunk and begins another, so that a collection can collect it.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit), and [`EmptyChunk`](Error::EmptyChunk) if nothing was
    /// written since the last one.
    pub fn split(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;

        // A chunk without commits has nothing to collect.
        let end = writer.tail.end;

        let view = self.inner.view();
        // A chunk may have only the tables of an earlier close.
        let has_commit = view.last.is_some_and(|last| last.at.chunk == end.chunk);
        if end.unit == FIRST_UNIT || (!has_commit && end == view.control.tail) {
            return Err(Error::EmptyChunk);
        }
        drop(view);
        self.roll(&mut writer)
    }

    /// Ends the current chunk, and begins the next one.
    pub(crate) fn roll(&self, writer: &mut Writer) -> Result<()> {
        self.checkpoint_in(writer, &ControlChange::default(), true)
    }

    /// Head of a branch, if the branch exists.
    pub fn branch(&self, name: &[u8]) -> Option<Hash> {
        self.inner.branch(name)
    }

    /// All branches with their heads, by name.
    pub fn branches(&self) -> Vec<(Vec<u8>, Hash)> {
        self.inner.branches()
    }

    /// Sets the head of a branch; the last writer wins. Durable like a commit.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit), and [`UnknownCommit`](Error::UnknownCommit),
    /// [`BranchName`](Error::BranchName).
    pub fn set_branch(&self, name: &[u8], head: &Hash) -> Result<()> {
        self.change_branch(name, Some(*head), BranchTest::Any).map(drop)
    }

    /// Removes a branch; returns whether it existed.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit).
    pub fn remove_branch(&self, name: &[u8]) -> Result<bool> {
        Ok(self.change_branch(name, None, BranchTest::Any)?.before.is_some())
    }

    /// Sets the head of a branch to `set`, or removes the branch, if its head is `test` (compare
    /// and set). Returns whether it was.
    ///
    /// # Errors
    /// Errors of [`set_branch`](Self::set_branch).
    pub fn test_and_set_branch(
        &self,
        name: &[u8],
        test: Option<&Hash>,
        set: Option<&Hash>,
    ) -> Result<bool> {
        Ok(self.change_branch(name, set.copied(), BranchTest::Is(test.copied()))?.is_set)
    }

    fn change_branch(
        &self,
        name: &[u8],
        head: Option<Hash>,
        test: BranchTest,
    ) -> Result<BranchChange> {
        check_branch_name(name)?;
        let (end, before) = {
            let mut writer = lock(&self.writer);
            self.check_writable(&writer)?;
            let current = self.branch(name);
            if matches!(test, BranchTest::Is(test) if test != current) {
                return Ok(BranchChange { before: current, is_set: false });
            }

            // A branch names only commits that exist, so that no collection drops a head.
            if let Some(hash) = head
                && self.inner.find_commit(&hash)?.is_none()
            {
                return Err(Error::UnknownCommit { hash });
            }
            // A call that changes nothing also waits for the sync: the equal head may be another
            // thread's unsynced change.
            self.move_branch(&mut writer, name, head)?;
            (writer.tail.end, current)
        };

        if self.options.durability >= Durability::Group {
            self.syncer.sync_to(end)?;
        }
        self.inner.call_watches(end);

        Ok(BranchChange { before, is_set: true })
    }

    /// Appends a frame that sets the head of a branch, or removes the branch; appends nothing if
    /// nothing changes.
    pub(crate) fn move_branch(
        &self,
        writer: &mut Writer,
        name: &[u8],
        head: Option<Hash>,
    ) -> Result<()> {
        let before = self.branch(name);
        if head == before {
            return Ok(());
        }

        self.roll_if_full(writer)?;
        let record = BranchRecord { name: name.to_vec(), head };
        let mut frame = FrameWriter::new(writer.tail.end);
        frame.put(&mut |body| record.put(body))?;
        self.append(writer, frame, FrameKind::Branches)?;

        // After the append: the view never shows a branch that recovery would not find.
        record.apply(&mut self.inner.view_mut().branches);
        let change = HeadChange { branch: name.to_vec(), before, after: head };
        self.inner.watches.push(writer.tail.end, change);

        Ok(())
    }

    /// Returns the extent of an object in the index, or about to be, if a record may refer to it.
    fn find_whole(&self, writer: &Writer, object: Object, hash: &Hash) -> Result<Option<Extent>> {
        // Objects written since the last control record are not indexed yet.
        let found = match writer.unindexed.get(&key(object, hash)) {
            Some(found) => Some(extent(*found)),
            None => self.inner.indexed(object, hash)?,
        };
        Ok(found.filter(|extent| self.is_whole(extent.at)))
    }

    /// Returns whether a record may refer to an indexed object: not to one that a running
    /// collection removes, wholly or in part.
    fn is_whole(&self, at: Address) -> bool {
        if at.chunk >= self.inner.view().control.collecting {
            return true;
        }

        // While a collection removes garbage, only marked objects of its chunks may be referred to.
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        marks.as_ref().is_some_and(|marks| marks.is_live(at))
    }

    /// Contents of the store, and its work since it was opened.
    pub fn stats(&self) -> Stats {
        let view = self.inner.view();

        let counters = &self.inner.pack.counters;
        let get = |counter: &terrane_io::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: view.commits,
            chunks: view.control.tail.chunk - view.control.first + 1,
            cache_bytes: (self.inner.pack.cache_bytes() + self.inner.head.weight()) as u64,
            cache_hits: get(&counters.cache_hits),
            reads: get(&counters.reads),
            read_bytes: get(&counters.read_bytes),
            batches: get(&counters.batches),
            written_bytes: get(&counters.written_bytes),
            frames: get(&counters.frames),
            syncs: get(&counters.syncs),
            committed: *lock(&self.counters),
            latencies: self.inner.latencies.read(),
        }
    }

    /// Histogram of the lengths of preimages hashed since the store was opened, from which the
    /// minimal cost of hashing follows.
    pub fn preimage_sizes(&self) -> PreimageSizes {
        lock(&self.preimages).clone()
    }

    /// Cancels a collection, joins its thread if it has one of its own, makes all commits durable,
    /// and releases the lock. Later calls are
    /// refused, but checked-out contexts stay readable. Closing twice is no error.
    ///
    /// The callback `pace` of a collection must not call this.
    ///
    /// # Errors
    /// Errors of [`commit`](Self::commit).
    pub fn close(&self) -> Result<()> {
        self.inner.check_process()?;
        self.closing.store(true, Ordering::Release);
        let collector = lock(&self.collector).take();
        if let Some(collector) = collector.filter(|thread| !thread.is_caller()) {
            // The handle of the collection reports a panic.
            collector.join();
        }
        self.syncer.close();

        // Waits for a running collection, which `closing` ends soon.
        let _ended = lock(&self.collection);
        let mut writer = lock(&self.writer);
        if writer.closed {
            return Ok(());
        }

        // A poisoned store writes nothing: the next opening recovers from the frames.
        if !self.syncer.is_poisoned() {
            self.checkpoint(&mut writer, &ControlChange::default())?;
        }
        writer.closed = true;
        self.inner.closed.store(true, Ordering::Release);
        writer.lock = None;

        self.inner.index.as_ref().map_or(Ok(()), |index| index.close().map_err(Error::index))
    }
}

/// Ends the thread of the store. Nothing is written: a dropped store is opened like a killed one.
impl Drop for Store {
    fn drop(&mut self) {
        // In a child there is no thread, and it may have held the locks.
        if self.inner.check_process().is_ok() {
            self.syncer.close();
        }
    }
}

/// Sink of a commit: knows the objects of the store, and ends frames that are full. The last frame
/// of a commit has its commit record.
struct StoreSink<'a> {
    store: &'a Store,
    writer: &'a mut Writer,
    frame: FrameWriter,
}

impl Sink for StoreSink<'_> {
    fn next(&self) -> Origin {
        self.frame.next()
    }

    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent> {
        let extent = self.frame.put(write)?;

        // A full frame is appended without a commit: its objects are garbage until the last frame.
        if self.frame.len() as u64 >= self.store.full_frame_bytes() {
            let blank = FrameWriter::new(extent.at);
            let full = std::mem::replace(&mut self.frame, blank);
            self.store.append(self.writer, full, FrameKind::Objects)?;
            self.store.roll_if_full(self.writer)?;
            self.frame = FrameWriter::new(self.writer.tail.end);
        }
        Ok(extent)
    }

    fn append(&mut self, records: &Records) -> Result<bool> {
        if self.frame.len() as u64 + records.frame_bytes() >= self.store.full_frame_bytes() {
            return Ok(false);
        }
        self.frame.append(records)
    }

    fn known(&mut self, is_value: bool, hash: &Hash) -> Result<Option<Extent>> {
        if self.store.options.indexing != Indexing::Always {
            return Ok(None);
        }
        let object = if is_value { Object::Value } else { Object::Dir };
        self.store.find_whole(self.writer, object, hash)
    }
}

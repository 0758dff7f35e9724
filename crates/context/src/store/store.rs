//! The store: one writer that commits, in a directory of its own.
//!
//! A commit hashes what changed, writes it and its commit record as one frame at the end of the pack, and syncs; commits
//! of several threads share a sync. The control record is written when a chunk is begun; opening follows the frames
//! behind it, cuts what is not whole, and needs neither the index nor a log.

use std::borrow::Cow;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use terrane_io::Anchor;
use terrane_io::files::{create_afresh, create_dirs};
use terrane_io::{Access, Disk, DiskFile, EntryKind, LockGuard, OpenMode, Reserve};

use crate::base::address::{Address, Extent, Link};
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::{CommitInfo, Rules};
use crate::base::stats::{CommitStats, PreimageSizes, Stats};
use crate::object::pins::{Pinned, Pins};
use crate::pack::chunk::{CHUNK_HEAD_BYTES, ChunkHead, FIRST_UNIT, chunk_number, chunk_path};
use crate::pack::commit::{BranchRecord, Commit, CommitRecord, CommitTable, STATE, put_branches};
use crate::pack::control::{
    CONTROL, CONTROL_PAGE_BYTES, Control, ControlFile, Indexing, MARK_AT, Mark, STATE_BYTES,
    encode_file, is_control,
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
use crate::store::options::{Durability, Options};
use crate::store::reindex::open_current;
use crate::store::watch::{HeadChange, Watches};
use crate::tree::digest;
use crate::tree::encode::{Sink, Written};
use crate::tree::node::{Child, Env};
use crate::tree::tree::{Kind, Tree};

/// Name of the file that a writer locks.
const LOCK: &str = "lock";
/// Name of the file that is there while a snapshot is imported into a new store.
pub(crate) const IMPORTING: &str = "importing";
/// The longest name of a branch, in bytes.
const BRANCH_BYTES_MAX: usize = 255;

/// A buffer up to this size is kept for the next frame, in bytes.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Of more nodes the tree and the cache are told while another thread syncs.
const KEPT_ALONE_MAX: u64 = 500;

/// Shortest reserve: the frames, the tables and the index entries that a collection writes.
const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// Entries that are put into the index at once.
const INDEX_BATCH: usize = 4096;

/// What a commit says about itself.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// Seconds since 1970.
    pub date: i64,
    /// Who made it.
    pub author: &'a [u8],
    /// Free text.
    pub message: &'a [u8],
}

impl<'a> Meta<'a> {
    /// By `Tezos`, as all commits of a Tezos context are.
    pub fn tezos(date: i64, message: &'a str) -> Self {
        Self { date, author: b"Tezos", message: message.as_bytes() }
    }
}

/// What opening a store has found, dropped and made anew. Nothing that was known to be durable is ever dropped: opening fails then,
/// and [`repair`](crate::store::repair()) says what would be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// Commits behind the control record, which were read from the end of the pack.
    pub commits: u64,
    /// Bytes behind the last whole frame: of a write that a crash has cut short, so of no commit that was reported durable. A
    /// writer has cut them.
    pub cut_bytes: u64,
    /// The newest control record leads to what is damaged, and the one before it was used, with the frames that follow; no commit
    /// was lost.
    pub fell_back: bool,
    /// Copies of the control record, or its durable mark, that are damaged or cannot be read. A writer has written them anew.
    pub damaged_copies: u64,
    /// Entries of an index that was lost or out of date, and was made anew.
    pub indexed: Option<u64>,
}

impl Recovery {
    /// Sentences that say what was found, for who opened the store; none if it was closed properly and is whole.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.cut_bytes > 0 {
            notes.push(format!(
                "{} bytes of an unfinished write follow the last commit; no durable commit was among them",
                self.cut_bytes
            ));
        }
        if self.fell_back {
            notes.push(
                "the newest control record leads to damage; the one before it was used, and no commit was lost; \
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
            notes.push(format!(
                "the index was lost or out of date, and was made anew: {entries} entries"
            ));
        }
        notes
    }
}

/// What a collection changes in the control record.
#[derive(Debug, Default)]
pub(crate) struct ControlChange {
    /// The first commit that is kept with all that follow, and those before it that are.
    pub(crate) retained: Option<(Address, Vec<(Hash, Extent)>)>,
    pub(crate) collecting: Option<u32>,
    pub(crate) first: Option<u32>,
    pub(crate) volumes: Option<u16>,
}

/// What only the writer changes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) tail: Tail,
    /// A buffer for the next frame.
    spare: Vec<u8>,
    /// Objects that the index does not have yet, if it is to have them all.
    unindexed: FastMap<IndexKey, IndexValue>,
    closed: bool,
    lock: Option<Box<dyn LockGuard>>,
}

impl Writer {
    /// Has the next control record file objects in the index: whether each is a value, its hash and its place.
    pub(crate) fn index(&mut self, objects: impl Iterator<Item = (bool, Hash, Extent)>) {
        self.unindexed.extend(objects.map(|(is_value, hash, extent)| {
            let object = if is_value { Object::Value } else { Object::Dir };
            (key(object, &hash), value(extent))
        }));
    }
}

/// What the head of a branch must be before it is changed.
#[derive(Debug, Clone, Copy)]
enum BranchTest {
    Any,
    Is(Option<Hash>),
}

/// What came of a change.
#[derive(Debug, Clone, Copy)]
struct BranchChange {
    before: Option<Hash>,
    is_set: bool,
}

/// Commits that a collection keeps although it was not asked to.
#[derive(Debug, Default)]
pub(crate) struct HeldCommits {
    /// By how many calls under way each is held.
    pub(crate) counts: FastMap<Hash, u32>,
    /// Those that were made again since a collection that is still looking for what is in use began; none if no collection does.
    pub(crate) again: Option<Vec<Hash>>,
}

impl HeldCommits {
    fn make_again(&mut self, hash: Hash) {
        if let Some(again) = &mut self.again {
            again.push(hash);
        }
    }
}

/// Holds a commit. See [`Store::hold`].
#[derive(Debug)]
pub(crate) struct HeldCommit<'a> {
    store: &'a Store,
    hash: Hash,
}

impl Drop for HeldCommit<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.store.held);
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

/// How far the pack is durable.
#[derive(Debug)]
struct Synced {
    end: Address,
    syncing: bool,
}

/// A store that is open for writing. All calls take `&self` and may run at once on several threads.
#[derive(Debug)]
pub struct Store {
    pub(crate) inner: StoreInner,
    pub(crate) options: Options,
    recovery: Recovery,
    /// Its pages are written by who has the writer, its mark by who syncs.
    control_file: Arc<dyn DiskFile>,
    /// Room behind the control records that a collection may take on a full disk.
    reserve: Mutex<Reserve>,
    pub(crate) writer: Mutex<Writer>,
    /// Set when the store is being closed: a collection ends.
    pub(crate) closing: AtomicBool,
    /// HeldCommits by a collection.
    pub(crate) collection: Mutex<()>,
    pub(crate) held: Mutex<HeldCommits>,
    /// What a collection has found to be in use, while it takes the rest away.
    pub(crate) marks: RwLock<Option<Arc<Marks>>>,
    /// The end of the last frame that was written, and its file.
    written: Mutex<Tail>,
    synced: Mutex<Synced>,
    sync_ended: Condvar,
    poisoned: AtomicBool,
    counters: Mutex<CommitStats>,
    preimages: Mutex<PreimageSizes>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn take_lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn LockGuard>> {
    disk.lock(&dir.join(LOCK)).map_err(|error| match error {
        terrane_io::Error::Locked { pid, .. } => Error::Locked { path: dir.to_owned(), pid },
        other => other.into(),
    })
}

/// The directory of a store from the root on, so that a change of the working directory changes nothing, and what keeps every
/// path below it from leading elsewhere.
pub(crate) fn enter(disk: &dyn Disk, dir: &Path) -> Result<(PathBuf, Arc<dyn Anchor>)> {
    let dir = disk.absolute(dir)?;
    match disk.anchor(&dir) {
        Ok(anchor) => Ok((dir, anchor.into())),
        Err(error) if error.is_not_found() => Err(Error::NotFound { path: dir }),
        Err(error) => Err(error.into()),
    }
}

fn new_pack(disk: &Arc<dyn Disk>, locations: &Arc<Locations>, options: &Options) -> Arc<Pack> {
    let pack = Pack::new(Arc::clone(disk), Arc::clone(locations), true, options.cache_bytes);
    Arc::new(pack.with_access(options.access))
}

/// Makes the name of the store's directory durable.
fn sync_parent(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match dir.parent() {
        Some(parent) => Ok(disk.sync_dir(parent)?),
        None => Ok(()),
    }
}

/// The record that has a copy of the control record.
fn put_state(control: &Control, body: &mut Vec<u8>) {
    body.push(STATE);
    control.put(body);
}

/// Refuses a directory whose import did not end.
pub(crate) fn check_whole(disk: &dyn Disk, dir: &Path) -> Result<()> {
    match disk.kind(&dir.join(IMPORTING))? {
        Some(_) => Err(Error::IncompleteImport { path: dir.to_owned() }),
        None => Ok(()),
    }
}

/// What the file `control` of a store says.
///
/// # Errors
/// [`NotFound`](Error::NotFound), [`LostControl`](Error::LostControl), those of [`ControlFile::read`].
pub(crate) fn read_control(disk: &dyn Disk, dir: &Path) -> Result<ControlFile> {
    let path = dir.join(CONTROL);
    if disk.kind(&path)?.is_none() {
        return Err(absent(disk, dir)?);
    }
    ControlFile::read(disk, &path)
}

/// The error of a directory without a control record.
fn absent(disk: &dyn Disk, dir: &Path) -> Result<Error> {
    check_whole(disk, dir)?;
    let path = dir.to_owned();
    Ok(if has_pack(disk, dir)? { Error::LostControl { path } } else { Error::NotFound { path } })
}

/// Whether a directory has more of a pack than what the making of a store leaves when it is interrupted: the first chunk, with
/// a copy of the control record at most.
fn has_pack(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Ok(false);
    }
    let entries = disk.list(dir)?;
    let mut numbers = entries.iter().filter_map(|entry| chunk_number(&entry.name));
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

/// Writes the file `control` anew, durably: the record in both pages, under numbers above all that were, and a mark.
pub(crate) fn write_control(
    disk: &dyn Disk,
    dir: &Path,
    control: &Control,
    end: Address,
) -> Result<()> {
    let staged = dir.join("control.new");
    let file = create_afresh(disk, &staged, OpenMode::CreateNew, Access::Buffered)?;
    file.write_at(&encode_file(control, Mark { store: control.store, end }), 0)?;
    file.sync()?;
    drop(file);
    disk.rename(&staged, &dir.join(CONTROL))?;
    Ok(disk.sync_dir(dir)?)
}

/// Refuses rules that are not those of the store.
pub(crate) fn check_rules(dir: &Path, given: &Rules, control: &Control) -> Result<()> {
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

/// Whether `dir` holds a context store, of whatever version.
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
    // One page is enough: the other one may be cut off, or unreadable.
    let mut page = vec![0; CONTROL_PAGE_BYTES];
    for number in 0..2 {
        let read = file.read_at(&mut page, number * CONTROL_PAGE_BYTES as u64);
        if read.is_ok() && is_control(&page) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How long the reserve is: 1 MiB unless chunks have another length than usual. A chunk of which no more is in use can be
/// rewritten within it.
fn reserve_bytes(options: &Options) -> u64 {
    (options.chunk_bytes / 16).max(RESERVE_BYTES_MIN)
}

impl Store {
    /// Makes a store in `dir`, which is made if need be.
    ///
    /// Cost: a few writes and syncs.
    ///
    /// # Errors
    /// [`AlreadyExists`](Error::AlreadyExists), [`Locked`](Error::Locked), [`InvalidConfig`](Error::InvalidConfig),
    /// [`IncompleteImport`](Error::IncompleteImport), [`ForeignLocation`](Error::ForeignLocation), [`Disk`](Error::Disk).
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Self> {
        options.check()?;
        create_dirs(&*disk, dir)?;
        let (dir, anchor) = enter(&*disk, dir)?;
        let guard = take_lock(&*disk, &dir)?;
        check_whole(&*disk, &dir)?;
        Self::create_locked(disk, (&dir, &anchor), options, guard)
    }

    /// Makes a store in `dir`, whose lock is held.
    pub(crate) fn create_locked(
        disk: Arc<dyn Disk>,
        (dir, anchor): (&Path, &Arc<dyn Anchor>),
        options: &Options,
        guard: Box<dyn LockGuard>,
    ) -> Result<Self> {
        let now = disk.clock().wall().as_nanos() as u64;
        let store = now.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if disk.kind(&dir.join(CONTROL))?.is_some() {
            return Err(Error::AlreadyExists { path: dir.to_owned() });
        }
        if has_pack(&*disk, dir)? {
            return Err(Error::LostControl { path: dir.to_owned() });
        }
        let (locations, store) =
            Locations::create(&*disk, (dir, anchor), &options.wanted(), store)?;
        let chain = store as u32;
        let pack = new_pack(&disk, &locations, options);
        let chunk =
            pack.create_chunk(ChunkHead { number: 0, store, before: 0, chain, map: None })?;
        chunk.file.allocate(options.chunk_bytes)?;
        let tail = Tail { chunk, end: Address { chunk: 0, unit: FIRST_UNIT }, chain };
        let mut control = Control {
            rules: options.rules,
            indexing: options.indexing,
            volumes: 0,
            store,
            sequence: 0,
            tail: tail.end,
            chain,
            first: 0,
            last: None,
            branches: None,
            table: None,
            kept: None,
            commits: 0,
            retained: Address { chunk: 0, unit: 0 },
            collecting: 0,
        };
        let mut frame = FrameWriter::new(tail.end);
        frame.put(&mut |body| put_state(&control, body))?;
        let start = tail.end;
        let (tail, _) = pack.append(&tail, frame, FrameKind::Branches, start)?;
        tail.chunk.file.sync()?;
        (control.tail, control.chain) = (tail.end, tail.chain);
        // The name of the file is that of the store: it comes last, and whole.
        disk.sync_dir(dir)?;
        pack.set_store(store)?;
        write_control(&*disk, dir, &control, tail.end)?;
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

    /// Opens the store in `dir` for writing. What a crash has left unfinished is cut.
    ///
    /// Nothing is cut that was durable. The file `control` says up to where that was at least: the control record, and a mark that
    /// is moved after each sync. The mark needs no sync of its own, so it can be behind after a loss of power, by what the system
    /// had not yet written back. Then, and under [`Relaxed`](Durability::Relaxed) durability, damage of the last frame alone cannot be
    /// told from a write that the crash has cut short, and is cut. After the death of the process alone it always can.
    ///
    /// Cost: reads the control record and the frames behind it: less than two chunks; the objects of these once more if all are
    /// [indexed](Indexing::Always). An index that is lost is made anew: reads the commits, or everything that is in use.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound), [`Locked`](Error::Locked), [`ConfigMismatch`](Error::ConfigMismatch),
    /// [`IncompleteImport`](Error::IncompleteImport), [`LostControl`](Error::LostControl), [`Corrupt`](Error::Corrupt) also if the
    /// pack ends before where it was durable, [`ForeignChunk`](Error::ForeignChunk), [`AbsentLocation`](Error::AbsentLocation),
    /// [`ForeignLocation`](Error::ForeignLocation), [`Disk`](Error::Disk), [`Index`](Error::Index).
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Self> {
        options.check()?;
        let (dir, anchor) = enter(&*disk, dir)?;
        let dir = dir.as_path();
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
        let mut failed = None;
        for mut control in file.whole.iter().copied() {
            control.indexing = options.indexing;
            control.volumes = control.volumes.max(newest.volumes);
            let pack = new_pack(&disk, &locations, options);
            let mut view = View::new(control);
            view.first_known = newest.first;
            let tail = match recover(&pack, &mut view, FollowLimit::to(file.durable())) {
                Ok(tail) => pack.to_append(tail)?,
                // The older record may still have all that it refers to, where it can be read.
                Err(error @ (Error::Corrupt { .. } | Error::Disk(_))) => {
                    failed = failed.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };

            let cut_bytes = pack.cut(&tail)?;
            Pack::write_again(&tail, file.durable())?;
            pack.remove_strays(control.first)?;
            view.control.first = pack.first_present(control.first, view.first_known)?;
            pack.set_first(view.control.first);
            // A process that was killed may have left names, and a chunk, that are not durable yet.
            pack.sync_new(&tail.chunk)?;
            sync_parent(&*disk, dir)?;
            let fell_back = failed.is_some();
            if fell_back || !file.damaged.is_empty() {
                view.control.sequence = newest.sequence + 1;
                write_control(&*disk, dir, &view.control, tail.end)?;
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
        // A process that was killed may not have synced the record that was read: commits that it hides must not come back.
        control_file.sync()?;
        let source: Arc<dyn crate::tree::node::Source> = Arc::clone(&pack) as _;
        let env = Arc::new(Env { rules: options.rules, source: Some(source), proof: false });
        let mut inner = StoreInner {
            disk,
            dir: dir.to_owned(),
            pack,
            env,
            index: None,
            tables: Mutex::default(),
            view: RwLock::new(view),
            pinned: Pinned::default(),
            closed: AtomicBool::new(false),
            watches: Watches::default(),
        };
        recovery.indexed = open_current(&mut inner, &options.index)?;
        // What lies behind the control record, the index does not have.
        let mut unindexed = FastMap::default();
        if options.indexing == Indexing::Always {
            inner.each_recent(&mut |object, link| {
                unindexed.insert(key(object, &link.hash), value(link.extent));
            })?;
        }
        let store = Self {
            inner,
            options: options.clone(),
            recovery,
            reserve: Mutex::new(Reserve::open(Arc::clone(&control_file), reserve_bytes(options))),
            control_file,
            written: Mutex::new(tail.clone()),
            // Opening has synced the last chunk, and those before it were synced when it was begun.
            synced: Mutex::new(Synced { end: tail.end, syncing: false }),
            writer: Mutex::new(Writer {
                tail,
                spare: Vec::new(),
                unindexed,
                closed: false,
                lock: Some(guard),
            }),
            sync_ended: Condvar::new(),
            poisoned: AtomicBool::new(false),
            counters: Mutex::new(CommitStats::default()),
            preimages: Mutex::default(),
            closing: AtomicBool::new(false),
            collection: Mutex::new(()),
            held: Mutex::default(),
            marks: RwLock::new(None),
        };
        store.move_mark(store.inner.view().control.store, lock(&store.written).end);
        Ok(store)
    }

    /// Notes in the file `control` that the pack is durable up to `end`. The mark reaches the disk when the system writes it
    /// back, or with the next control record.
    fn move_mark(&self, store: u64, end: Address) {
        // Without the mark damage of the last frame cannot be told from a torn write, and nothing else is lost.
        let _ = self.control_file.write_at(&Mark { store, end }.encode(), MARK_AT);
    }

    /// What opening has found.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Options as the store in `dir` needs them: its rules and its indexing, and otherwise those of
    /// [`Options::new`]. Looks at the control record alone, so archive and index may be away.
    ///
    /// Cost: three reads.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound), [`LostControl`](Error::LostControl), [`Corrupt`](Error::Corrupt),
    /// [`IncompleteImport`](Error::IncompleteImport), [`Disk`](Error::Disk).
    pub fn options_of(disk: &dyn Disk, dir: &Path, index: Arc<dyn IndexEngine>) -> Result<Options> {
        let (dir, _anchor) = enter(disk, dir)?;
        let control = *read_control(disk, &dir)?.newest();
        let (rules, indexing) = (control.rules, control.indexing);
        Ok(Options { rules, indexing, ..Options::new(index) })
    }

    /// The hashing rules.
    pub fn rules(&self) -> &Rules {
        &self.inner.env.rules
    }

    /// The directory of the volumes of the archive, which may be elsewhere, and may not be made yet.
    pub fn archive_dir(&self) -> PathBuf {
        self.inner.pack.locations().archive()
    }

    /// The directory of the index, which may be elsewhere.
    pub fn index_dir(&self) -> PathBuf {
        self.inner.pack.locations().index()
    }

    /// The empty context, without parents.
    pub fn empty(&self) -> Context {
        Context::new(self.inner.empty(), Vec::new())
    }

    /// The context of a commit; none for a commit that was never made, or was collected.
    ///
    /// Cost: two reads at most beside those of the index.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), [`Corrupt`](Error::Corrupt), [`Index`](Error::Index).
    pub fn checkout(&self, hash: &Hash) -> Result<Option<Context>> {
        self.inner.checkout(hash)
    }

    /// Whether there is such a commit.
    ///
    /// # Errors
    /// As [`checkout`](Self::checkout).
    pub fn exists(&self, hash: &Hash) -> Result<bool> {
        Ok(self.inner.find_commit(hash)?.is_some())
    }

    /// What is stored about a commit.
    ///
    /// # Errors
    /// As [`checkout`](Self::checkout), and [`UnknownCommit`](Error::UnknownCommit).
    pub fn commit_info(&self, hash: &Hash) -> Result<Commit> {
        self.inner.commit_of(hash)
    }

    /// The tree that is stored under a hash, for stores that index [all objects](Indexing::Always); none for one that was
    /// never written to this store, or was collected, and for a value of at most 48 bytes, which is a part of its directory.
    /// What is found stays as long as somebody has the tree, whatever is collected. Since the index follows the pack at some
    /// distance, an object may have been written twice; it is not found any more when the copy that the index has was
    /// collected, or when it was written shortly before a crash.
    ///
    /// Cost: that of the index, and one read, or two.
    ///
    /// # Errors
    /// As [`checkout`](Self::checkout), and [`Closed`](Error::Closed).
    pub fn find_object(&self, kind: Kind, hash: &Hash) -> Result<Option<Tree>> {
        if kind == Kind::Directory && *hash == self.rules().empty_hash() {
            return Ok(Some(self.inner.empty()));
        }
        let object = if kind == Kind::Value { Object::Value } else { Object::Dir };
        let pins = Pins::default();
        let link = {
            // A collection switches to what it has found to be in use under this lock.
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
        let env = &self.inner.env;
        let root = if kind == Kind::Value {
            let value = env.load_value(&link)?;
            (self.rules().value_hash(&value) == *hash).then(|| Child::ValueAt(Box::new(link)))
        } else {
            let node = env.load(&link)?;
            // Inodes are indexed as well.
            let is_dir = node.check_shape(&env.rules, 0).is_ok();
            (is_dir && digest::hash_of(env, &node) == *hash).then_some(Child::Dir(node))
        };
        Ok(root.map(|root| Tree::at(Arc::clone(env), root, pins)))
    }

    /// Commits in the order in which they were made, the newest first.
    pub fn newest(&self) -> impl Iterator<Item = Result<Commit>> + '_ {
        self.inner.newest().map(|commit| Ok(commit?.1.commit))
    }

    pub(crate) fn check_writable(&self, writer: &Writer) -> Result<()> {
        if writer.closed {
            return Err(Error::Closed);
        }
        self.check_poison()
    }

    fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            let path = lock(&self.written).chunk.file.path().to_owned();
            return Err(Error::Poisoned { path });
        }
        Ok(())
    }

    /// Lets nothing be written any more after a call that has failed.
    pub(crate) fn or_poison<E: Into<Error>>(
        &self,
        result: std::result::Result<(), E>,
    ) -> Result<()> {
        if result.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        result.map_err(Into::into)
    }

    /// The hash that a commit of `context` would have. Nothing is written.
    pub fn hash(&self, context: &Context, meta: &Meta<'_>) -> Hash {
        let root = context.tree().hash_on(self.options.hash_threads);
        self.commit_hash(&root, context.parents(), meta)
    }

    fn commit_hash(&self, root: &Hash, parents: &[Hash], meta: &Meta<'_>) -> Hash {
        let Meta { date, author, message } = *meta;
        self.rules().commit_hash(&CommitInfo { root, parents, date, author, message })
    }

    /// Writes what changed in `context`, and a commit of it; durable when the call returns, unless the store is
    /// [`Relaxed`](Durability::Relaxed). The context stays as it is, its parents too.
    ///
    /// Cost: one write and one sync; now and then those of a new chunk. In a store that indexes [all objects](Indexing::Always)
    /// also a look into the index for each object, and one read for each directory that is there already.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk) and [`Index`](Error::Index): nothing was committed, unless it was the sync that failed: then the store is
    /// [`Poisoned`](Error::Poisoned) from here on, and the commit may be there when it is opened anew;
    /// [`Closed`](Error::Closed); [`NotADirectory`](Error::NotADirectory) for a tree that is a value;
    /// [`DanglingHash`](Error::DanglingHash) for a shallow part that the index of all objects does not have;
    /// [`TooDeep`](Error::TooDeep) if such parts make the tree too high; [`CommitTooLarge`](Error::CommitTooLarge);
    /// [`ForeignTree`](Error::ForeignTree) for a tree of another store, while one that belongs to none is copied.
    pub fn commit(&self, context: &Context, meta: &Meta<'_>) -> Result<Hash> {
        let hash = self.commit_and_set(context, meta, None)?;
        Ok(hash.expect("only the test of a branch refuses a commit"))
    }

    /// As [`commit`](Self::commit), and sets the head of a branch to the commit: both or neither, with one sync. No collection comes
    /// between them.
    ///
    /// Cost: that of a commit.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and [`BranchName`](Error::BranchName).
    pub fn commit_to(&self, branch: &[u8], context: &Context, meta: &Meta<'_>) -> Result<Hash> {
        let hash = self.commit_and_set(context, meta, Some((branch, BranchTest::Any)))?;
        Ok(hash.expect("any head of the branch will do"))
    }

    /// As [`commit_to`](Self::commit_to) if the head of the branch is `test` now. If it is not, nothing is written, and the result
    /// is none.
    ///
    /// # Errors
    /// As [`commit_to`](Self::commit_to).
    pub fn test_and_commit_to(
        &self,
        branch: &[u8],
        test: Option<&Hash>,
        context: &Context,
        meta: &Meta<'_>,
    ) -> Result<Option<Hash>> {
        self.commit_and_set(context, meta, Some((branch, BranchTest::Is(test.copied()))))
    }

    fn commit_and_set(
        &self,
        context: &Context,
        meta: &Meta<'_>,
        to: Option<(&[u8], BranchTest)>,
    ) -> Result<Option<Hash>> {
        if let Some((name, _)) = to {
            check_branch_name(name)?;
        }
        let tree = &*self.own_tree(context.tree())?;
        let hashed = self.hash_tree(tree)?;
        let hash = self.commit_hash(&hashed, context.parents(), meta);
        let (end, written) = {
            let mut writer = lock(&self.writer);
            self.check_writable(&writer)?;
            if let Some((name, BranchTest::Is(test))) = to
                && self.branch(name) != test
            {
                return Ok(None);
            }
            let mut written = Written::default();
            if self.inner.find_commit(&hash)?.is_none() {
                let commit = Commit {
                    hash,
                    root: hashed,
                    parents: context.parents().to_vec(),
                    date: meta.date,
                    author: meta.author.to_vec(),
                    message: meta.message.to_vec(),
                };
                let branch = to.map(|(name, _)| name);
                written = self.write(&mut writer, tree, Some((commit, branch)))?;
            } else {
                lock(&self.held).make_again(hash);
                if let Some((name, _)) = to {
                    self.move_branch(&mut writer, name, Some(hash))?;
                }
            }
            (writer.tail.end, written)
        };

        if self.options.durability == Durability::Relaxed {
            self.keep(written);
        } else {
            self.sync_and_keep(end, written)?;
        }
        if to.is_some() {
            self.inner.call_watches(end);
        }
        Ok(Some(hash))
    }

    /// Makes the pack durable up to `end`, and meanwhile or before tells the tree and the cache what was written.
    fn sync_and_keep(&self, end: Address, written: Written<'_>) -> Result<()> {
        let start = self.now();
        if self.options.hash_threads > 1 && written.counts().0 > KEPT_ALONE_MAX {
            thread::scope(|scope| {
                let sync = thread::Builder::new().spawn_scoped(scope, || self.sync_to(end));
                self.keep(written);
                match sync {
                    Ok(sync) => sync.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // The system gives no thread.
                    Err(_) => self.sync_to(end),
                }
            })?;
        } else {
            self.keep(written);
            self.sync_to(end)?;
        }
        lock(&self.counters).sync_time += self.now().saturating_sub(start);
        Ok(())
    }

    /// Has collections keep a commit until the guard is dropped, if it is there before they take anything away.
    pub(crate) fn hold(&self, hash: Hash) -> HeldCommit<'_> {
        *lock(&self.held).counts.entry(hash).or_default() += 1;
        HeldCommit { store: self, hash }
    }

    /// Tells the nodes of a tree where they are, and the cache of their records.
    fn keep(&self, written: Written<'_>) {
        written.keep(|before, extent, record| {
            if let Some(before) = before {
                self.inner.pack.uncache(before.at);
            }
            self.inner.pack.cache_record(extent.at, record);
        });
    }

    /// The tree, if it is one of this store, or a copy of one that belongs to none: what is written is noted in its nodes, and
    /// the places of another store mean nothing here.
    fn own_tree<'a>(&self, tree: &'a Tree) -> Result<Cow<'a, Tree>> {
        if Arc::ptr_eq(&tree.env, &self.inner.env) {
            return Ok(Cow::Borrowed(tree));
        }
        let mut copy = self.inner.empty();
        copy.add_tree::<&[u8]>(&[], tree)?;
        Ok(Cow::Owned(copy))
    }

    fn now(&self) -> Duration {
        self.inner.disk.clock().monotonic()
    }

    /// The hash of a tree, computed with all threads and counted.
    fn hash_tree(&self, tree: &Tree) -> Result<Hash> {
        let Child::Dir(node) = tree.root() else {
            return match tree.root() {
                Child::DirAt(far) => Ok(far.0.hash),
                Child::Blinded { is_value: false, hash } => Ok(**hash),
                _ => Err(Error::NotADirectory),
            };
        };
        let start = self.now();
        let (hash, hashed) = digest::hash(&self.inner.env, node, self.options.hash_threads);
        let hash_time = self.now().saturating_sub(start);
        lock(&self.preimages).merge(&hashed.sizes);
        let mut counters = lock(&self.counters);
        counters.hash_time += hash_time;
        counters.hashed += hashed.count;
        counters.hashed_bytes += hashed.bytes;
        counters.hashed_again += hashed.again;
        Ok(hash)
    }

    /// Writes what changed in a tree without a commit. It is garbage until a commit reaches it. With [`Tree::clear`] behind it, a tree
    /// of any size is built in little memory; who builds one does both after each 10,000 changes or so, as no call does by itself.
    ///
    /// Cost: one write.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn flush(&self, tree: &Tree) -> Result<()> {
        let tree = &*self.own_tree(tree)?;
        self.hash_tree(tree)?;
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let written = self.write(&mut writer, tree, None)?;
        self.keep(written);
        Ok(())
    }

    /// Appends a frame with what changed in a tree, with its commit if there is one, and with the branch that is set to the
    /// commit; what was written is to be [kept](Self::keep).
    fn write<'a>(
        &self,
        writer: &mut Writer,
        tree: &'a Tree,
        commit: Option<(Commit, Option<&[u8]>)>,
    ) -> Result<Written<'a>> {
        let hash = commit.as_ref().map(|(commit, _)| commit.hash);
        let branch = commit.as_ref().and_then(|(_, branch)| *branch);
        let start = self.now();
        let written_before = lock(&self.counters).write_time;
        let mut written = Written::default();
        let (root, extent) = self.write_frame(writer, commit, &mut |sink| match tree.root() {
            Child::Dir(node) if node.count() == 0 => Ok(None),
            other => match written.child(&self.inner.env, other, sink)? {
                Some((link, _)) => Ok(Some(link)),
                None => Err(Error::NotADirectory),
            },
        })?;
        if let Some(root) = root {
            tree.pins.add(self.inner.pinned.pin(root.extent));
        }
        if self.options.indexing == Indexing::Always {
            writer.index(written.objects());
        }
        let mut counters = lock(&self.counters);
        let (nodes, values) = written.counts();
        let writing = counters.write_time.saturating_sub(written_before);
        counters.encode_time += self.now().saturating_sub(start).saturating_sub(writing);
        counters.nodes += nodes;
        counters.values += values;
        drop(counters);
        if let (Some(hash), Some(extent)) = (hash, extent) {
            self.show_commit(writer, hash, extent, branch);
        }
        Ok(written)
    }

    /// Adds a commit that was written to the view, with the branch that was set to it in the same frame.
    pub(crate) fn show_commit(
        &self,
        writer: &Writer,
        hash: Hash,
        extent: Extent,
        branch: Option<&[u8]>,
    ) {
        let before = branch.and_then(|name| self.branch(name));
        let mut view = self.inner.view_mut();
        view.add_commit(hash, extent);
        if let Some(name) = branch.filter(|_| before != Some(hash)) {
            view.branches.insert(name.to_vec(), hash);
            drop(view);
            let change = HeadChange { branch: name.to_vec(), before, after: Some(hash) };
            self.inner.watches.push(writer.tail.end, change);
        }
    }

    /// Appends a frame with what `fill` puts into it, with a commit of the root that it gives, if there is one, and with the branch
    /// that is set to the commit. Gives that root, and the place of the commit, which is not in the view yet, nor is the branch.
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
        let (mut kind, mut extent) = (FrameKind::Objects, None);
        // Not through the sink, which may end the frame: the commit is in the last one, and the branch with it.
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
        let synced = lock(&self.synced).end;
        let start = self.now();
        (writer.tail, writer.spare) = self.inner.pack.append(&writer.tail, frame, kind, synced)?;
        if writer.spare.capacity() > SPARE_BYTES_MAX {
            writer.spare = Vec::new();
        }
        lock(&self.counters).write_time += self.now().saturating_sub(start);
        *lock(&self.written) = writer.tail.clone();
        Ok(())
    }

    /// Ends the chunk if it is full, and begins the next one.
    pub(crate) fn roll_if_full(&self, writer: &mut Writer) -> Result<()> {
        if writer.tail.end.offset() < self.options.chunk_bytes {
            return Ok(());
        }
        self.roll(writer)
    }

    /// Makes the pack durable up to `end`. Whoever comes while a sync runs waits for the next one, which serves all who
    /// wait.
    fn sync_to(&self, end: Address) -> Result<()> {
        let mut synced = lock(&self.synced);
        while synced.end < end {
            self.check_poison()?;
            if synced.syncing {
                synced = self.sync_ended.wait(synced).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            synced.syncing = true;
            drop(synced);
            // Chunks before this one were synced when it was begun.
            let written = lock(&self.written).clone();
            let result = written.chunk.file.sync();
            self.inner.pack.counters.syncs.fetch_add(1, Ordering::Relaxed);
            synced = lock(&self.synced);
            synced.syncing = false;
            match result {
                Ok(()) => {
                    synced.end = synced.end.max(written.end);
                    self.move_mark(written.chunk.head.store, written.end);
                }
                Err(_) => self.poisoned.store(true, Ordering::Release),
            }
            self.sync_ended.notify_all();
            result?;
        }
        Ok(())
    }

    /// Takes the reserve back if a collection gave it up: nothing but collections goes on without it.
    fn hold_reserve(&self) -> Result<()> {
        let mut reserve = lock(&self.reserve);
        if reserve.take_back(&*self.inner.disk, &self.inner.dir)? {
            return Ok(());
        }
        Err(Error::OutOfSpace { path: self.inner.dir.clone(), reserve_bytes: reserve.bytes() })
    }

    /// Gives the reserve to a collection, if the disk has less room than that.
    pub(crate) fn give_reserve_up(&self) -> Result<()> {
        let mut reserve = lock(&self.reserve);
        if self.inner.disk.free_bytes(&self.inner.dir)? < reserve.bytes() {
            // The sync may have been told of a control record that was not written, and nobody is told twice.
            self.or_poison(reserve.give_up().map(drop))?;
        }
        Ok(())
    }

    /// Takes the reserve back after a collection, if there is room.
    pub(crate) fn try_to_hold_reserve(&self) {
        // Otherwise the next commit says that there is none.
        let _ = self.hold_reserve();
    }

    /// Makes every commit durable.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), after which the store is poisoned; [`Poisoned`](Error::Poisoned).
    pub fn sync(&self) -> Result<()> {
        let end = lock(&self.written).end;
        self.sync_to(end)
    }

    /// Makes the pack durable, brings the index up to it, and writes the control record.
    pub(crate) fn checkpoint(&self, writer: &mut Writer, change: &ControlChange) -> Result<()> {
        self.checkpoint_in(writer, change, false)
    }

    /// The same; begins the next chunk before the control record is written, if `rolls` says so: the record says then that the
    /// chunk is there, so that its loss is noticed.
    fn checkpoint_in(
        &self,
        writer: &mut Writer,
        change: &ControlChange,
        rolls: bool,
    ) -> Result<()> {
        let (commits, mut control) = self.write_tables(writer, change)?;
        self.sync_to(writer.tail.end)?;
        let entry = |(hash, extent): (Hash, Extent)| (key(Object::Commit, &hash), value(extent));
        let mut entries: Vec<(IndexKey, IndexValue)> = commits.into_iter().map(entry).collect();
        entries.extend(writer.unindexed.iter().map(|(key, value)| (*key, *value)));
        entries.sort_unstable_by_key(|entry| entry.0);
        self.index_entries(&entries)?;
        // Last, and only then does the control record count these commits.
        self.index_entries(&[(STATE_KEY, state_value(control.commits, control.store))])?;
        writer.unindexed.clear();
        if rolls {
            // From here on frames go there, whether or not the record can be written: one of before leads there as well.
            let tail = self.inner.pack.roll(&writer.tail, self.options.chunk_bytes)?;
            self.or_poison(self.inner.pack.sync_new(&tail.chunk))?;
            *lock(&self.written) = tail.clone();
            writer.tail = tail;
        }
        control.sequence += 1;
        control.tail = writer.tail.end;
        control.chain = writer.tail.chain;
        let written = self.control_file.write_at(&control.encode(), control.offset());
        // Whether commits are gone must not be left open while others are made.
        if change.retained.is_some() {
            self.or_poison(written)?;
        } else {
            written?;
        }
        self.or_poison(self.control_file.sync())?;
        let mut view = self.inner.view_mut();
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
        for some in entries.chunks(INDEX_BATCH) {
            index.insert(some).map_err(Error::index)?;
        }
        index.flush().map_err(Error::index)
    }

    /// Appends the table of branches and that of the commits since the last one; these commits, and what the control record
    /// is to say.
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
        let mut commits: Vec<_> =
            view.recent.iter().map(|(hash, extent)| (*hash, *extent)).collect();
        commits.sort_unstable_by_key(|commit| commit.1.at);
        if !commits.is_empty() {
            let table = CommitTable { before: control.table, commits: commits.clone() };
            let at = frame.next();
            control.table = Some(frame.put(&mut |body| table.put(at, body))?);
        }
        drop(view);
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
        frame.put(&mut |body| put_state(&control, body))?;
        self.append(writer, frame, FrameKind::Branches)?;
        Ok((commits, control))
    }

    /// Ends the chunk that is written to and begins another, which helps a collection of what is in it.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and [`EmptyChunk`](Error::EmptyChunk) if nothing was written since the last one.
    pub fn split(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let end = writer.tail.end;
        let view = self.inner.view();
        // A chunk may have nothing but tables, of when the store was closed.
        let has_commit = view.last.is_some_and(|last| last.at.chunk == end.chunk);
        if end.unit == FIRST_UNIT || (!has_commit && end == view.control.tail) {
            return Err(Error::EmptyChunk);
        }
        drop(view);
        self.roll(&mut writer)
    }

    /// Ends the chunk, and begins the next one.
    pub(crate) fn roll(&self, writer: &mut Writer) -> Result<()> {
        self.checkpoint_in(writer, &ControlChange::default(), true)
    }

    /// The head of a branch, if there is one.
    pub fn branch(&self, name: &[u8]) -> Option<Hash> {
        self.inner.branch(name)
    }

    /// All branches with their heads, by name.
    pub fn branches(&self) -> Vec<(Vec<u8>, Hash)> {
        self.inner.branches()
    }

    /// Sets the head of a branch; the last to do so wins. Durable as a commit is.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), and [`UnknownCommit`](Error::UnknownCommit), [`BranchName`](Error::BranchName).
    pub fn set_branch(&self, name: &[u8], head: &Hash) -> Result<()> {
        self.change_branch(name, Some(*head), BranchTest::Any).map(drop)
    }

    /// Removes a branch; says whether there was one.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn remove_branch(&self, name: &[u8]) -> Result<bool> {
        Ok(self.change_branch(name, None, BranchTest::Any)?.before.is_some())
    }

    /// Sets the head of a branch to `set`, or removes it, if it is `test` now; says whether it was. Of several that do so at
    /// once one wins.
    ///
    /// # Errors
    /// As [`set_branch`](Self::set_branch).
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
            if let Some(hash) = head
                && self.inner.find_commit(&hash)?.is_none()
            {
                return Err(Error::UnknownCommit { hash });
            }
            // Who sets what is set already waits for the sync as well: it may be another's that is under way.
            self.move_branch(&mut writer, name, head)?;
            (writer.tail.end, current)
        };
        if self.options.durability == Durability::Durable {
            self.sync_to(end)?;
        }
        self.inner.call_watches(end);
        Ok(BranchChange { before, is_set: true })
    }

    /// Appends a frame that sets the head of a branch, or removes the branch; none if nothing changes.
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
        record.apply(&mut self.inner.view_mut().branches);
        let change = HeadChange { branch: name.to_vec(), before, after: head };
        self.inner.watches.push(writer.tail.end, change);
        Ok(())
    }

    /// Where an object is, if the index has it, or will, and it may be referred to.
    fn find_whole(&self, writer: &Writer, object: Object, hash: &Hash) -> Result<Option<Extent>> {
        let found = match writer.unindexed.get(&key(object, hash)) {
            Some(found) => Some(extent(*found)),
            None => self.inner.indexed(object, hash)?,
        };
        Ok(found.filter(|extent| self.is_whole(extent.at)))
    }

    /// Whether an object that the index has may be referred to: not while a collection takes it away, or parts of it.
    fn is_whole(&self, at: Address) -> bool {
        if at.chunk >= self.inner.view().control.collecting {
            return true;
        }
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        marks.as_ref().is_some_and(|marks| marks.is_live(at))
    }

    /// What the store holds and has done since it was opened.
    pub fn stats(&self) -> Stats {
        let view = self.inner.view();
        let counters = &self.inner.pack.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: view.commits,
            chunks: view.control.tail.chunk - view.control.first + 1,
            cache_bytes: self.inner.pack.cache_bytes() as u64,
            cache_hits: get(&counters.cache_hits),
            reads: get(&counters.reads),
            read_bytes: get(&counters.read_bytes),
            batches: get(&counters.batches),
            written_bytes: get(&counters.written_bytes),
            frames: get(&counters.frames),
            syncs: get(&counters.syncs),
            committed: *lock(&self.counters),
        }
    }

    /// How long the preimages were that were hashed since it was opened: what hashing has cost at least.
    pub fn preimage_sizes(&self) -> PreimageSizes {
        lock(&self.preimages).clone()
    }

    /// Cancels a collection, makes everything durable and gives up the lock. Later calls are refused, but contexts that are
    /// checked out can be read; closing twice is no error. Not to be called by what paces a collection.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn close(&self) -> Result<()> {
        self.closing.store(true, Ordering::Release);
        let _ended = lock(&self.collection);
        let mut writer = lock(&self.writer);
        if writer.closed {
            return Ok(());
        }
        if !self.poisoned.load(Ordering::Acquire) {
            self.checkpoint(&mut writer, &ControlChange::default())?;
        }
        writer.closed = true;
        self.inner.closed.store(true, Ordering::Release);
        writer.lock = None;
        self.inner.index.as_ref().map_or(Ok(()), |index| index.close().map_err(Error::index))
    }
}

/// A frame that knows what the store has, and is ended when it is large: what a commit consists of may be of several
/// frames, of which the last has the commit.
struct StoreSink<'a> {
    store: &'a Store,
    writer: &'a mut Writer,
    frame: FrameWriter,
}

impl Sink for StoreSink<'_> {
    fn next(&self) -> Address {
        self.frame.next()
    }

    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent> {
        let extent = self.frame.put(write)?;
        let full = (self.store.options.chunk_bytes / 2).min(FRAME_FULL_BYTES as u64);
        if self.frame.len() as u64 >= full {
            let blank = FrameWriter::new(extent.at);
            let full = std::mem::replace(&mut self.frame, blank);
            self.store.append(self.writer, full, FrameKind::Objects)?;
            self.store.roll_if_full(self.writer)?;
            self.frame = FrameWriter::new(self.writer.tail.end);
        }
        Ok(extent)
    }

    fn known(&mut self, is_value: bool, hash: &Hash) -> Result<Option<Extent>> {
        if self.store.options.indexing != Indexing::Always {
            return Ok(None);
        }
        let object = if is_value { Object::Value } else { Object::Dir };
        self.store.find_whole(self.writer, object, hash)
    }
}

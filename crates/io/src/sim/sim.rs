//! A disk in memory that loses unsynced writes, and fails on demand.
//!
//! It makes the promises of [`disk`](crate::disk::disk) precise. It keeps the seen state and the
//! durable state apart: for the bytes of each file by 512-byte sectors, for lengths and for names.
//! At any moment, [`SimDisk::after_crash`] gives a disk as a loss of power may leave it, and
//! [`SimDisk::process_kill`] one as the death of the process leaves it.
//!
//! **Determinism.** The same seed and the same calls in the same order give the same bytes, the
//! same faults, the same order of completions and the same [`SimDisk::trace_hash`]. Time is
//! simulated: it advances with each call.
//!
//! The root directory `/` exists from the start; relative paths start there as well.

// Bottom-up: a module imports only from modules above it.
mod random;
mod image;
mod tree;
mod media;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use self::image::{PAGE_BYTES, SECTOR_BYTES, split};
pub use self::media::BadMedia;
use self::media::Media;
use self::random::{Random, mix};
pub use self::tree::Survival;
use self::tree::{NodeNo, Tree};
use crate::clock::Clock;
use crate::disk::disk::{
    Access, Completion, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard, OpenMode, QueueKind,
    Request,
};
use crate::durable::checksum::crc32c;
use crate::error::{Error, Result};
use crate::memory_disk::LockState;
use crate::sim::fault::{Class, FaultKind, FaultPlan, Repeat};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::wrap::counted::{Counters, Counts};

/// Space on a disk whose plan sets no limit, in bytes.
const CAPACITY_BYTES: u64 = 1 << 40;

/// Wall clock time at which every simulated disk starts: the first second of 2026.
const EPOCH: Duration = Duration::from_secs(490_896 * 3_600);

/// A simulated disk that loses, tears and reorders writes, and fails as its plan says.
pub struct SimDisk {
    shared: Arc<Shared>,
}

/// State that a disk shares with its files, locks and queues.
struct Shared {
    state: Mutex<State>,
    clock: SimClock,
    counters: Counters,
}

struct State {
    seed: u64,
    tree: Tree,
    /// Open files and locks by node.
    open: BTreeMap<NodeNo, usize>,
    locks: BTreeMap<NodeNo, LockState>,
    media: Media,
    /// Whether nodes may have become unreachable since the last sweep.
    is_sweep_due: bool,
    random: Random,
    calls: u64,
    faults: u64,
    trace: u64,
    plan: FaultPlan,
    has_crashed: bool,
}

/// A fault or a crash that hits a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    Nothing,
    Fault(FaultKind),
    /// The power goes during the call.
    Crash,
}

/// A call, as the plan and the trace see it.
struct Call<'a> {
    name: &'static str,
    class: Class,
    path: &'a Path,
    /// Other marks of this call: offset, length, checksum of the bytes.
    details: [u64; 3],
}

impl<'a> Call<'a> {
    fn new(name: &'static str, class: Class, path: &'a Path) -> Self {
        Self { name, class, path, details: [0; 3] }
    }

    fn error(&self, errno: Errno) -> Error {
        // The real disk reports these two as the kind of what stands there.
        match errno {
            Errno::LOOP => Error::wrong_kind(self.path, EntryKind::Link),
            Errno::NXIO => Error::wrong_kind(self.path, EntryKind::Other),
            _ => Error::io(self.name, self.path, errno.into()),
        }
    }

    fn crash_error(&self) -> Error {
        Error::io(self.name, self.path, io::Error::other("simulated crash"))
    }

    /// Duration of the call on the simulated disk.
    fn duration(&self) -> Duration {
        // Times are fixed, so that equal runs see equal clocks.
        match self.class {
            Class::Read => Duration::from_micros(80),
            Class::Write => Duration::from_micros(20),
            Class::Sync => Duration::from_millis(1),
            Class::Grow | Class::Other => Duration::from_micros(2),
        }
    }
}

/// Time that the calls on a disk take.
#[derive(Debug)]
struct SimClock {
    nanos: AtomicU64,
}

impl SimClock {
    fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        EPOCH + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Self::restarted(seed, Tree::new(), Media::default(), 0)
    }

    fn restarted(seed: u64, tree: Tree, media: Media, nanos: u64) -> Arc<Self> {
        let state = State {
            seed,
            tree,
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            media,
            is_sweep_due: false,
            random: Random::new(seed),
            calls: 0,
            faults: 0,
            trace: mix(seed),
            plan: FaultPlan::default(),
            has_crashed: false,
        };

        let clock = SimClock { nanos: AtomicU64::new(nanos) };
        let shared = Shared { state: Mutex::new(state), clock, counters: Counters::default() };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// Number of calls so far that could have failed, which is the number of the next call.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.shared.lock().calls
    }

    /// Number of calls that a planned fault has hit, without the crash.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.shared.lock().faults
    }

    /// Whether the planned crash has happened.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.shared.lock().has_crashed
    }

    /// Number of calls so far, by kind.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// Number of open files and locks.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.shared.lock().open.values().sum()
    }

    /// A hash of the seed, the calls so far and the bytes written.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace
    }

    /// Sets the faults from now on, in place of an earlier plan.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.shared.lock().plan = plan;
    }

    /// Advances the simulated time.
    pub fn advance(&self, by: Duration) {
        self.shared.clock.advance(by);
    }

    /// Number of operations that no sync has made durable: the bound of [`Survival::Prefix`].
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.shared.lock().tree.pending_count()
    }

    /// Returns a disk as this one is after a loss of power now, or at the planned crash. On the new
    /// disk nothing is open or locked, there is no plan, and calls count from 0.
    ///
    /// Cost: copies the changed files by reference, page by page; shares the rest.
    #[must_use]
    pub fn after_crash(&self, survival: Survival) -> Arc<Self> {
        let state = self.shared.lock();
        // Each way of surviving begins another sequence of draws.
        let salt = match survival {
            Survival::Nothing => 1,
            Survival::Everything => 2,
            Survival::Prefix(count) => mix(count).wrapping_add(3),
            Survival::Random(seed) => mix(seed).wrapping_add(4),
            Survival::Torn(seed) => mix(seed).wrapping_add(5),
        };
        self.restart(&state, state.tree.after_crash(survival), salt)
    }

    /// Returns a disk as this one is after the death of the process: the seen state is the same,
    /// and unsynced operations are still not durable. On the new disk nothing is open or locked,
    /// there is no plan, and calls count from 0.
    #[must_use]
    pub fn process_kill(&self) -> Arc<Self> {
        let state = self.shared.lock();
        let mut tree = state.tree.clone();
        // After the death of the process nobody has a file open.
        tree.sweep(&|_| false);
        self.restart(&state, tree, 6)
    }

    fn lock_guard(&self, taken: Option<NodeNo>, path: &Path) -> Result<Box<dyn LockGuard>> {
        match taken {
            Some(node) => Ok(Box::new(SimLock { shared: Arc::clone(&self.shared), node })),
            None => Err(Error::Locked { path: path.to_owned(), pid: Some(std::process::id()) }),
        }
    }

    fn restart(&self, state: &State, tree: Tree, salt: u64) -> Arc<Self> {
        let nanos = self.shared.clock.nanos.load(Ordering::Relaxed);
        // The seed depends on the history, so that two crashes of one run draw differently.
        let seed = mix(state.seed ^ mix(state.calls) ^ salt);
        Self::restarted(seed, tree, state.media.clone(), nanos)
    }

    /// Returns a disk with the same files, plan, numbers and future random numbers, on which
    /// nothing is open or locked. From then on the two disks are independent.
    #[must_use]
    pub fn clone_disk(&self) -> Arc<Self> {
        let state = self.shared.lock();
        // Open files and locks belong to handles, of which the copy has none.
        let state = State {
            tree: state.tree.clone(),
            open: BTreeMap::new(),
            locks: BTreeMap::new(),
            media: state.media.clone(),
            random: state.random.clone(),
            ..*state
        };

        let nanos = AtomicU64::new(self.shared.clock.nanos.load(Ordering::Relaxed));
        let shared = Shared {
            state: Mutex::new(state),
            clock: SimClock { nanos },
            counters: self.counts().into(),
        };

        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// The paths of all files, sorted. Like the methods below, this is not a call in the sense of
    /// [`calls`](Self::calls).
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        self.shared.lock().tree.files()
    }

    /// The seen bytes of a file; `None` if there is no such file.
    #[must_use]
    pub fn read_raw(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.shared.lock();
        let node = state.tree.find(path.as_ref()).ok()?;
        Some(state.tree.image(node).ok()?.to_bytes())
    }

    /// Gives a file these bytes, durably; creates the file and its directories if need be.
    ///
    /// # Panics
    /// If the path cannot be a file's: a test that asks for that is wrong.
    pub fn write_raw(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref();
        let planted = self.shared.lock().tree.plant(path, bytes);
        assert_eq!(planted, Ok(()), "cannot write {}", path.display());
    }

    /// Makes a part of a file unusable for good, like bad sectors: reads and writes of it fail with
    /// EIO, on this disk and all disks made from it, until the file is gone.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn add_bad_range(&self, path: impl AsRef<Path>, range: Range<u64>, what: BadMedia) {
        let mut state = self.shared.lock();
        let node = state.find_planted(path.as_ref());
        state.media.add_bad(node, range, what);
    }

    /// Lets nobody open a file or directory any more: EACCES.
    ///
    /// # Panics
    /// If there is nothing of this name.
    pub fn deny(&self, path: impl AsRef<Path>) {
        let mut state = self.shared.lock();
        let node = state.find_planted(path.as_ref());
        state.media.deny(node);
    }

    /// Sets whether the file system is mounted read-only: then every change of it fails with EROFS.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.shared.lock().media.is_read_only = is_read_only;
    }

    /// Undoes [`add_bad_range`](Self::add_bad_range), [`deny`](Self::deny) and
    /// [`set_read_only`](Self::set_read_only).
    pub fn heal(&self) {
        self.shared.lock().media = Media::default();
    }

    /// Puts a link or special file into the place of a name, durably.
    ///
    /// # Panics
    /// If the path cannot be a file's, or the kind is a file's or directory's.
    pub fn plant_special(&self, path: impl AsRef<Path>, kind: EntryKind) {
        assert!(matches!(kind, EntryKind::Link | EntryKind::Other), "{kind:?} is nothing special");
        let path = path.as_ref();
        let planted = self.shared.lock().tree.plant_special(path, kind);
        assert_eq!(planted, Ok(()), "cannot plant {}", path.display());
    }

    /// Flips a bit of a file, counted from the lowest bit of its first byte, in the seen and in the
    /// durable state. A bit behind the end does not exist.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) {
        let path = path.as_ref();
        let mut state = self.shared.lock();
        let flipped = state.tree.find(path).and_then(|node| state.tree.flip_bit(node, bit));
        assert_eq!(flipped, Ok(()), "cannot flip a bit of {}", path.display());
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("SimDisk")
            .field("seed", &state.seed)
            .field("calls", &state.calls)
            .field("faults", &state.faults)
            .field("has_crashed", &state.has_crashed)
            .finish_non_exhaustive()
    }
}

impl State {
    /// The path that a test names must exist.
    fn find_planted(&self, path: &Path) -> NodeNo {
        self.tree.find(path).unwrap_or_else(|errno| panic!("{}: {errno}", path.display()))
    }

    /// Takes the lock of a file; `None` if somebody holds a lock against it.
    fn take_lock(
        &mut self,
        node: NodeNo,
        is_shared: bool,
    ) -> std::result::Result<Option<NodeNo>, Errno> {
        self.tree.image(node)?;
        self.media.check_open(node)?;
        if !self.locks.entry(node).or_default().take(is_shared) {
            return Ok(None);
        }
        // A lock holds its file open.
        self.opened(node);
        Ok(Some(node))
    }

    /// Enters a call into the trace and finds out what hits it.
    ///
    /// # Errors
    /// Fails if the power went earlier.
    fn begin(&mut self, call: &Call<'_>) -> Result<Strike> {
        let number = self.calls;
        self.calls += 1;
        let path = call.path.as_os_str().as_encoded_bytes();

        // The trace covers each call with its arguments, so that two runs can be compared.
        let words = [u64::from(crc32c(call.name.as_bytes())), u64::from(crc32c(path))];
        for word in words.into_iter().chain(call.details) {
            self.trace = mix(self.trace ^ word).wrapping_add(word);
        }

        if self.has_crashed {
            return Err(call.crash_error());
        }

        // A plan that was set late strikes at the next call.
        if self.plan.crash_at_call.is_some_and(|at| number >= at) {
            self.has_crashed = true;
            return Ok(Strike::Crash);
        }

        match self.plan.fail {
            Some(fault) if number >= fault.at_call && fault.kind.applies_to(call.class) => {
                // A fault that strikes once is spent.
                if fault.repeat == Repeat::Once {
                    self.plan.fail = None;
                }
                self.faults += 1;
                Ok(Strike::Fault(fault.kind))
            }
            _ => Ok(Strike::Nothing),
        }
    }

    fn room_bytes(&self) -> u64 {
        // Removed files that are still open take room, as on a real disk.
        let usage = self.tree.usage_bytes(&|node| self.open.contains_key(&node));
        self.plan.capacity_bytes.unwrap_or(CAPACITY_BYTES).saturating_sub(usage)
    }

    /// Writes the bytes for which there is room.
    fn write(&mut self, node: NodeNo, offset: u64, bytes: &[u8]) -> std::result::Result<(), Errno> {
        // Counting room walks through all files, so it is left out where nothing limits the room.
        if self.plan.capacity_bytes.is_none() {
            return self.tree.write(node, offset, bytes);
        }

        let room = self.room_bytes();
        if self.tree.new_bytes(node, offset, bytes.len())? <= room {
            return self.tree.write(node, offset, bytes);
        }

        // A full disk takes the pages that still fit, as a real one may.
        let mut fitting = 0;
        for page in split(offset, bytes.len(), PAGE_BYTES) {
            if self.tree.new_bytes(node, offset, page.end)? > room {
                break;
            }
            fitting = page.end;
        }

        if fitting > 0 {
            self.tree.write(node, offset, &bytes[..fitting])?;
        }

        Err(Errno::NOSPC)
    }

    /// Writes a first part, which ends at the border of a sector.
    fn write_first_part(&mut self, node: NodeNo, offset: u64, bytes: &[u8]) {
        // A sector is the smallest part that a device writes.
        let sectors: Vec<_> = split(offset, bytes.len(), SECTOR_BYTES).collect();
        let count = self.random.index(sectors.len() + 1);
        if let Some(last) = sectors[..count].last() {
            // Bytes that do not fit are not written, which is one more way to write a part.
            let _ = self.write(node, offset, &bytes[..last.end]);
        }
    }

    /// Writes some of the sectors.
    fn write_torn(&mut self, node: NodeNo, offset: u64, bytes: &[u8]) {
        for sector in split(offset, bytes.len(), SECTOR_BYTES) {
            if self.random.chance(1, 2) {
                // The rest is not written, as above.
                let _ = self.write(node, offset + sector.start as u64, &bytes[sector]);
            }
        }
    }

    fn write_struck(&mut self, node: NodeNo, offset: u64, bytes: &[u8], strike: Strike) {
        let draw = match strike {
            Strike::Fault(FaultKind::ShortWrite | FaultKind::Enospc) => 0,
            Strike::Fault(FaultKind::TornWrite) => 1,
            Strike::Crash => self.random.below(4),
            _ => return,
        };

        // A crash leaves the first part of the write, any sectors of it, all of it, or nothing.
        match draw {
            0 => self.write_first_part(node, offset, bytes),
            1 => self.write_torn(node, offset, bytes),
            2 => {
                let _ = self.write(node, offset, bytes);
            }
            _ => {}
        }
    }

    /// Spoils the bytes that a read has found.
    fn spoil(&mut self, node: NodeNo, kind: FaultKind, buffer: &mut [u8], offset: u64) {
        if buffer.is_empty() {
            return;
        }

        match kind {
            FaultKind::BitRot => {
                let index = self.random.index(buffer.len());
                buffer[index] ^= 1 << self.random.below(8);
            }
            FaultKind::ZeroedSector => {
                let sectors: Vec<_> = split(offset, buffer.len(), SECTOR_BYTES).collect();
                let sector = sectors[self.random.index(sectors.len())].clone();
                buffer[sector].fill(0);
            }
            FaultKind::Misdirected => {
                let Ok(image) = self.tree.image(node) else { return };
                let pages = image.len().div_ceil(PAGE_BYTES as u64);
                buffer.fill(0);
                // A file of one page has no other page to give.
                if pages > 1 {
                    let asked = offset / PAGE_BYTES as u64;
                    let other = (asked + 1 + self.random.below(pages - 1)) % pages;
                    image.read(buffer, other * PAGE_BYTES as u64);
                }
            }
            _ => {}
        }
    }

    fn opened(&mut self, node: NodeNo) {
        *self.open.entry(node).or_default() += 1;
    }

    fn closed(&mut self, node: NodeNo) {
        if let Some(count) = self.open.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&node);
                // A file that has lost its names may go for good now.
                self.is_sweep_due = true;
            }
        }
    }

    fn has_open_limit(&self) -> bool {
        let count: usize = self.open.values().sum();
        self.plan.open_files_max.is_some_and(|max| count >= max)
    }

    fn open_node(&mut self, path: &Path, mode: OpenMode) -> std::result::Result<NodeNo, Errno> {
        if self.has_open_limit() {
            return Err(Errno::MFILE);
        }

        let is_new = matches!(mode, OpenMode::CreateNew | OpenMode::CreatePrivate);
        let node = match self.tree.find(path) {
            Ok(_) if is_new => return Err(Errno::EXIST),
            Ok(node) => node,
            Err(Errno::NOENT) if mode.creates() => {
                self.media.check_change()?;
                self.tree.create_file(path)?
            }
            Err(errno) => return Err(errno),
        };

        // Directories and special files have no image, so they are refused here.
        self.tree.image(node)?;
        self.media.check_open(node)?;
        if mode != OpenMode::Read {
            self.media.check_change()?;
        }

        if self.tree.image(node)?.len() > 0 && mode == OpenMode::Truncate {
            self.tree.set_len(node, 0)?;
        }

        self.opened(node);
        Ok(node)
    }

    /// Drops the nodes that nothing leads to any more.
    fn sweep(&mut self) {
        if std::mem::take(&mut self.is_sweep_due) {
            let open = &self.open;
            self.tree.sweep(&|node| open.contains_key(&node));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a call that happens in whole or not at all.
    fn call<T>(
        &self,
        call: &Call<'_>,
        act: impl FnOnce(&mut State) -> std::result::Result<T, Errno>,
    ) -> Result<T> {
        self.clock.advance(call.duration());
        let mut state = self.lock();
        match state.begin(call)? {
            Strike::Nothing => act(&mut state).map_err(|errno| call.error(errno)),
            Strike::Fault(kind) => Err(call.error(kind.errno())),
            Strike::Crash => {
                if state.random.chance(1, 2) {
                    // Nobody knows any more whether it succeeded.
                    let _ = act(&mut state);
                }
                Err(call.crash_error())
            }
        }
    }

    /// Carries out a call that changes the file system.
    fn change<T>(
        &self,
        call: &Call<'_>,
        act: impl FnOnce(&mut State) -> std::result::Result<T, Errno>,
    ) -> Result<T> {
        self.call(call, |state| {
            state.media.check_change()?;
            act(state)
        })
    }

    /// Carries out a sync; with `in_part`, makes only some of the pending operations durable.
    fn sync(
        &self,
        call: &Call<'_>,
        act: impl Fn(&mut State) -> std::result::Result<(), Errno>,
        in_part: impl Fn(&mut State) -> std::result::Result<(), Errno>,
    ) -> Result<()> {
        self.clock.advance(call.duration());
        let mut state = self.lock();
        match state.begin(call)? {
            Strike::Nothing => act(&mut state).map_err(|errno| call.error(errno)),
            Strike::Fault(kind) => {
                if kind == FaultKind::LyingSync {
                    return Ok(());
                }
                // Only a failed sync makes a part durable: other faults come before the device.
                if kind == FaultKind::FailedSync {
                    in_part(&mut state).map_err(|errno| call.error(errno))?;
                }
                Err(call.error(kind.errno()))
            }
            Strike::Crash => {
                // All or nothing: `after_crash` draws what survives in part, while after the death
                // of the process alone a later sync can still make the pending operations durable.
                if state.random.chance(1, 3) {
                    let _ = act(&mut state);
                }
                Err(call.crash_error())
            }
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode, access: Access) -> Result<Arc<dyn DiskFile>> {
        self.shared.counters.open(mode);
        let class = match mode {
            OpenMode::Read | OpenMode::ReadWrite => Class::Other,
            OpenMode::CreateNew | OpenMode::CreatePrivate | OpenMode::Truncate => Class::Grow,
        };

        let call = Call::new("open", class, path);
        let node = self.shared.call(&call, |state| state.open_node(path, mode))?;
        Ok(Arc::new(SimFile {
            shared: Arc::clone(&self.shared),
            node,
            path: path.to_owned(),
            access,
            is_writable: mode != OpenMode::Read,
        }))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.shared.counters.create_dir();
        let call = Call::new("mkdir", Class::Grow, path);
        self.shared.change(&call, |state| state.tree.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.shared.counters.remove_dir();
        let call = Call::new("rmdir", Class::Other, path);
        self.shared.change(&call, |state| state.tree.remove_dir(path))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.shared.counters.remove();
        let call = Call::new("unlink", Class::Other, path);
        self.shared.change(&call, |state| {
            state.is_sweep_due = true;
            state.tree.remove(path)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.counters.rename();
        let mut call = Call::new("rename", Class::Grow, from);
        call.details[0] = u64::from(crc32c(to.as_os_str().as_encoded_bytes()));
        self.shared.change(&call, |state| {
            state.is_sweep_due = true;
            state.tree.rename(from, to)
        })
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.shared.counters.hard_link();
        let mut call = Call::new("link", Class::Grow, to);
        call.details[0] = u64::from(crc32c(from.as_os_str().as_encoded_bytes()));
        self.shared.change(&call, |state| state.tree.hard_link(from, to))
    }

    fn list(&self, dir: &Path) -> Result<Vec<Entry>> {
        self.shared.counters.list();
        let call = Call::new("readdir", Class::Other, dir);
        self.shared.call(&call, |state| {
            if let Ok(node) = state.tree.find(dir) {
                state.media.check_open(node)?;
            }
            state.tree.list(dir)
        })
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.shared.counters.kind();
        let call = Call::new("stat", Class::Other, path);
        self.shared.call(&call, |state| match state.tree.find(path) {
            Ok(node) => Ok(Some(state.tree.kind(node))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.shared.counters.sync_dir();
        let call = Call::new("fsync", Class::Sync, dir);
        let act = |state: &mut State| {
            state.tree.sync_dir(dir)?;
            state.sweep();
            Ok(())
        };
        let in_part = |state: &mut State| state.tree.sync_dir_in_part(dir, &mut state.random);
        self.shared.sync(&call, act, in_part)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.shared.counters.lock();
        let call = Call::new("flock", Class::Other, path);
        let taken = self.shared.call(&call, |state| {
            if state.has_open_limit() {
                return Err(Errno::MFILE);
            }
            // Opened for writing, as the real one is.
            state.media.check_change()?;
            let node = match state.tree.find(path) {
                Err(Errno::NOENT) => state.tree.create_file(path)?,
                found => found?,
            };
            // A file of several names may be locked under another name.
            if state.tree.names_of(node)? > 1 {
                return Ok(None);
            }
            state.take_lock(node, false).map(Some)
        })?;

        match taken {
            Some(taken) => self.lock_guard(taken, path),
            None => Err(Error::SeveralNames { path: path.to_owned() }),
        }
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        self.shared.counters.lock();
        let call = Call::new("flock", Class::Other, path);
        let taken = self.shared.call(&call, |state| {
            if state.has_open_limit() {
                return Err(Errno::MFILE);
            }
            let node = state.tree.find(path)?;
            state.take_lock(node, true)
        })?;
        self.lock_guard(taken, path)
    }

    fn is_locked(&self, path: &Path) -> Result<bool> {
        self.shared.counters.lock();
        let call = Call::new("flock", Class::Other, path);
        self.shared.call(&call, |state| match state.tree.find(path) {
            Err(Errno::NOENT) => Ok(false),
            found => {
                let node = found?;
                state.tree.image(node)?;
                state.media.check_open(node)?;
                Ok(state.locks.get(&node) == Some(&LockState::Exclusive))
            }
        })
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64> {
        let call = Call::new("statvfs", Class::Other, dir);
        self.shared.call(&call, |state| {
            state.tree.find(dir)?;
            Ok(state.room_bytes())
        })
    }

    fn clock(&self) -> &dyn Clock {
        &self.shared.clock
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn IoQueue>> {
        let call = Call::new("io_uring_setup", Class::Other, Path::new("this system"));
        // Setting up a queue is a call that can fail.
        self.shared.call(&call, |_| Ok(()))?;
        Ok(Box::new(SimQueue {
            shared: Arc::clone(&self.shared),
            depth: depth.max(1),
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
        }))
    }

    fn queue_kind(&self) -> QueueKind {
        QueueKind::Simulated
    }
}

struct SimLock {
    shared: Arc<Shared>,
    node: NodeNo,
}

impl LockGuard for SimLock {}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock({})", self.node)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(lock) = state.locks.get_mut(&self.node) {
            lock.release();
            if *lock == LockState::Free {
                state.locks.remove(&self.node);
            }
        }
        state.closed(self.node);
    }
}

struct SimFile {
    shared: Arc<Shared>,
    node: NodeNo,
    path: PathBuf,
    access: Access,
    is_writable: bool,
}

impl SimFile {
    fn call(&self, name: &'static str, class: Class, details: [u64; 3]) -> Call<'_> {
        Call { name, class, path: &self.path, details }
    }

    fn check_writable(&self, refusal: Errno) -> std::result::Result<(), Errno> {
        if self.is_writable { Ok(()) } else { Err(refusal) }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.lock().closed(self.node);
    }
}

impl DiskFile for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access
    }

    fn len(&self) -> Result<u64> {
        let call = self.call("fstat", Class::Other, [0; 3]);
        self.shared.call(&call, |state| Ok(state.tree.image(self.node)?.len()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.shared.counters.read(buffer.len());
        let call = self.call("pread", Class::Read, [offset, buffer.len() as u64, 0]);
        self.shared.clock.advance(call.duration());
        let mut state = self.shared.lock();

        let strike = state.begin(&call)?;
        match strike {
            Strike::Crash => return Err(call.crash_error()),
            Strike::Fault(kind @ (FaultKind::Eio | FaultKind::Eintr | FaultKind::Eagain)) => {
                return Err(call.error(kind.errno()));
            }
            _ => {}
        }

        let expected = buffer.len();
        let readable = state.media.check_read(self.node, offset, expected);
        readable.map_err(|errno| call.error(errno))?;
        let image = state.tree.image(self.node).map_err(|errno| call.error(errno))?;

        let mut found = image.read(buffer, offset);
        match strike {
            Strike::Fault(FaultKind::ShortRead) if found > 0 => found = state.random.index(found),
            Strike::Fault(kind) => state.spoil(self.node, kind, &mut buffer[..found], offset),
            _ => {}
        }

        if found < expected {
            return Err(Error::ShortRead { path: self.path.clone(), offset, expected, found });
        }

        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.shared.counters.write(bytes.len());
        let details = [offset, bytes.len() as u64, u64::from(crc32c(bytes))];
        let call = self.call("pwrite", Class::Write, details);
        self.shared.clock.advance(call.duration());
        let mut state = self.shared.lock();
        let strike = state.begin(&call)?;

        // An empty write touches no medium.
        if !bytes.is_empty() {
            self.check_writable(Errno::BADF).map_err(|errno| call.error(errno))?;
            let writable = state.media.check_write(self.node, offset, bytes.len());
            writable.map_err(|errno| call.error(errno))?;
        }

        match strike {
            Strike::Nothing => {
                state.write(self.node, offset, bytes).map_err(|errno| call.error(errno))
            }
            Strike::Fault(kind) => {
                state.write_struck(self.node, offset, bytes, strike);
                Err(call.error(kind.errno()))
            }
            Strike::Crash => {
                state.write_struck(self.node, offset, bytes, strike);
                Err(call.crash_error())
            }
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.shared.counters.set_len();
        let call = self.call("ftruncate", Class::Grow, [len, 0, 0]);
        self.shared.change(&call, |state| {
            self.check_writable(Errno::INVAL)?;
            state.tree.set_len(self.node, len)
        })
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.shared.counters.allocate();
        let call = self.call("fallocate", Class::Grow, [len, 0, 0]);
        self.shared.change(&call, |state| {
            self.check_writable(Errno::BADF)?;
            // A reservation is refused as a whole, not granted in part.
            if state.tree.new_reserved_bytes(self.node, len)? > state.room_bytes() {
                return Err(Errno::NOSPC);
            }
            state.tree.reserve(self.node, len)
        })
    }

    fn sync(&self) -> Result<()> {
        self.shared.counters.sync();
        let call = self.call("fdatasync", Class::Sync, [0; 3]);
        let act = |state: &mut State| state.tree.sync(self.node);
        let in_part = |state: &mut State| state.tree.sync_in_part(self.node, &mut state.random);
        self.shared.sync(&call, act, in_part)
    }

    fn forget(&self, _offset: u64, _len: u64) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queue whose requests are carried out when their completion is taken, in an order drawn from
/// the disk's random numbers.
struct SimQueue {
    shared: Arc<Shared>,
    depth: usize,
    waiting: VecDeque<Request>,
    in_flight: Vec<Request>,
}

impl SimQueue {
    fn complete_one(&mut self) -> Option<Completion> {
        if self.in_flight.is_empty() {
            return None;
        }
        // Requests complete in any order.
        let index = self.shared.lock().random.index(self.in_flight.len());
        let request = self.in_flight.swap_remove(index);
        self.shared.counters.queued();
        Some(request.carry_out())
    }
}

impl IoQueue for SimQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    fn submit(&mut self) {
        let count = self.waiting.len().min(self.depth - self.in_flight.len());
        self.in_flight.extend(self.waiting.drain(..count));
    }

    fn pop(&mut self) -> Option<Completion> {
        self.submit();
        self.complete_one()
    }

    /// Finds nothing in a quarter of the cases, as a real queue does at times.
    fn poll(&mut self) -> Option<Completion> {
        self.submit();
        // A poll may come too early.
        if self.shared.lock().random.chance(1, 4) {
            return None;
        }
        self.complete_one()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        // A queue ends only after its requests have.
        while self.complete_one().is_some() {}
    }
}

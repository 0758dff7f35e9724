//! An LMDB environment whose map can grow while its snapshots live.
//!
//! LMDB reads through a memory map of a fixed size. Growing the map moves it, so LMDB demands that
//! nobody be reading. Here a snapshot may live as long as it likes: growth never waits for a
//! snapshot, and never deadlocks with one.
//!
//! - **Invariant:** only a running call holds an address in the map. Calls copy their results. A
//!   walk over many entries is a sequence of calls that begin at a key; no cursor of LMDB outlives
//!   its call.
//! - **Invariant:** a call of a snapshot holds the gate shared; [`resize`](Environment::resize)
//!   holds it alone. So growth waits for running calls, for microseconds.
//! - **Invariant:** while a write transaction is open, the map stays: LMDB then refuses to resize.
//!
//! Between two calls, an open read transaction keeps its number, the page numbers of its roots and
//! its slot in the lock file, which is another map.
//!
//! LMDB trusts the bytes of its file. Opening checks the heads, and that the file has the roots
//! that they name. Other damage may show as wrong answers or end the process:
//! [`check_file`](crate::check_file) finds it before the file is mapped.

use std::fs::File;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use heed::types::Bytes;
use heed::{
    CompactionOption, Database, Env, EnvFlags, EnvOpenOptions, MdbError, PutFlags, RoTxn, RwTxn,
    WithoutTls,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::check::{Finding, check_heads, main_flags};

/// Size of a buffer of zeros, which fills a file where the system cannot allocate, in bytes.
const ZEROS_BYTES: usize = 1 << 20;

/// About how many bytes of entries one transaction of a copy takes; they stay in memory until it
/// ends.
const COPIED_BYTES: usize = 16 << 20;

/// Kind of a failure, by the reaction of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The map is full: let the map grow and repeat the transaction.
    MapFull,
    /// The disk, the quota or the allowed size of a file is used up.
    NoRoom,
    /// All slots of readers are taken.
    ReadersFull,
    /// This process has the environment open already.
    OpenAlready,
    /// Stored bytes are not those of an environment.
    Corrupted,
    /// An earlier write of the head failed; the environment must be closed.
    Fatal,
    /// The map cannot be resized while a transaction writes.
    Writing,
    /// A failed system call, or anything else.
    Other,
}

/// A failure of LMDB.
#[derive(Debug, thiserror::Error)]
#[error("LMDB: {source}")]
pub struct Failure {
    /// The kind of the failure.
    pub kind: Kind,
    /// The error of LMDB.
    #[source]
    source: heed::Error,
}

impl From<heed::Error> for Failure {
    fn from(source: heed::Error) -> Self {
        let kind = match &source {
            heed::Error::Mdb(MdbError::MapFull) => Kind::MapFull,
            heed::Error::Mdb(MdbError::ReadersFull) => Kind::ReadersFull,
            heed::Error::Mdb(
                MdbError::PageNotFound
                | MdbError::Corrupted
                | MdbError::VersionMismatch
                | MdbError::Invalid
                | MdbError::Incompatible,
            ) => Kind::Corrupted,
            heed::Error::Mdb(MdbError::Panic) => Kind::Fatal,
            heed::Error::EnvAlreadyOpened => Kind::OpenAlready,
            heed::Error::Io(error) if is_no_room(error) => Kind::NoRoom,
            _ => Kind::Other,
        };

        Self { kind, source }
    }
}

impl From<Finding> for Failure {
    fn from(Finding { page, rule }: Finding) -> Self {
        let place = page.map_or_else(String::new, |page| format!("page {page}: "));
        let what = std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{place}{rule}"));
        Self { kind: Kind::Corrupted, source: heed::Error::Io(what) }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        heed::Error::Io(error).into()
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        std::io::Error::from(errno).into()
    }
}

/// Whether the disk, the quota or the allowed size of a file is used up.
fn is_no_room(error: &std::io::Error) -> bool {
    error
        .raw_os_error()
        .map(Errno::from_raw_os_error)
        .is_some_and(|errno| [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].contains(&errno))
}

/// The result of a call of an environment.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// Durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncMode {
    /// Each commit syncs the data, then the head.
    #[default]
    Full,
    /// Each commit syncs the data; the next one syncs its head. `MDB_NOMETASYNC`.
    NoMeta,
    /// Each commit tells the system to write, and does not wait. `MDB_MAPASYNC`; only with
    /// `write_map`.
    MapAsync,
    /// No commit syncs. `MDB_NOSYNC`.
    None,
}

/// The processes that may change an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EnvironmentAccess {
    /// This process.
    #[default]
    Write,
    /// Other processes: snapshots take a slot in the lock file.
    Read,
    /// No process: snapshots take no slot, and nothing is written.
    ReadAlone,
}

/// Options of opening an environment.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// The processes that may change the environment.
    pub access: EnvironmentAccess,
    /// Size of the map in bytes, a multiple of the system's pages.
    pub map_bytes: usize,
    /// Number of slots for readers, over all processes.
    pub readers_max: u32,
    /// Most tables.
    pub tables_max: u32,
    /// Whether the path names an existing directory, or a file.
    pub directory: bool,
    /// Whether the system reads ahead.
    pub read_ahead: bool,
    /// Whether pages are changed in the map instead of being written.
    ///
    /// The file then has the size of the map, in allocated blocks: touching a hole that cannot be
    /// filled would end the process.
    pub write_map: bool,
    /// Durability of a commit.
    pub sync: SyncMode,
}

/// An environment. Clones are the same environment, which closes with the last of its clones,
/// snapshots and transactions.
#[derive(Debug, Clone)]
pub struct Environment(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env<WithoutTls>,
    /// Held shared by calls that read the map, alone by calls that move it.
    gate: RwLock<()>,
    write_map: bool,
    /// Most tables that can be open at a time.
    tables_max: u32,
}

impl Inner {
    /// Takes the gate for a call that reads the map.
    fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the gate for a call that moves the map.
    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table of an environment.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentTable(Database<Bytes, Bytes>);

/// A table as it is stored, with the names of its flags.
#[derive(Debug, Clone)]
pub struct StoredTable {
    /// The table.
    pub table: EnvironmentTable,
    /// Flags that the table was made with, as `mdb_dump` writes them, such as `dupsort`: several
    /// values of a key, or another order of keys than that of their bytes.
    pub flags: Vec<&'static str>,
}

/// Names of the flags of a table, with their bits.
const FLAG_NAMES: [(u64, &str); 6] = [
    (0x02, "reversekey"),
    (0x04, "dupsort"),
    (0x08, "integerkey"),
    (0x10, "dupfixed"),
    (0x20, "integerdup"),
    (0x40, "reversedup"),
];

/// Names of the flags in a number.
fn flag_names(flags: u64) -> Vec<&'static str> {
    FLAG_NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}

/// A key and a value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Limit of the results of one call, which stops after the entry that reaches either number.
#[derive(Debug, Clone, Copy)]
pub struct PageLimit {
    /// Number of entries; at least 1.
    pub entries: usize,
    /// Number of bytes of keys and values.
    pub bytes: usize,
}

impl Environment {
    /// Opens an environment, or creates one if there is none.
    ///
    /// # Errors
    /// Those of LMDB; [`Kind::Corrupted`] also if a head breaks a rule, or the file ends
    /// before its roots.
    pub fn open(path: &Path, options: &EnvironmentOptions) -> Outcome<Self> {
        let mut flags = match options.sync {
            SyncMode::Full => EnvFlags::empty(),
            SyncMode::NoMeta => EnvFlags::NO_META_SYNC,
            SyncMode::MapAsync => EnvFlags::MAP_ASYNC,
            SyncMode::None => EnvFlags::NO_SYNC,
        };

        flags.set(EnvFlags::NO_SUB_DIR, !options.directory);
        flags.set(EnvFlags::NO_READ_AHEAD, !options.read_ahead);
        let is_read_only = options.access != EnvironmentAccess::Write;
        flags.set(EnvFlags::WRITE_MAP, options.write_map && !is_read_only);
        flags.set(EnvFlags::READ_ONLY, is_read_only);
        flags.set(EnvFlags::NO_LOCK, options.access == EnvironmentAccess::ReadAlone);

        if let Some(finding) = check_heads(&data_path(path, options.directory))? {
            return Err(finding.into());
        }

        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(options.map_bytes).max_readers(options.readers_max);
        open.max_dbs(options.tables_max);
        #[expect(unsafe_code, reason = "no safe way to open")]
        // SAFETY: the files are LMDB's own, which locks them against other processes; heed refuses
        // a second opening in this one. Flags that leave out syncs give up what a loss of power
        // leaves, and no rule of memory. Without locks nobody writes, as the caller promises by
        // `ReadAlone`. A map that is written is reached through LMDB only: no address of it leaves
        // a call, see the module. The heads were checked above, and with them that the roots lie in
        // the file. Pages below the roots are not: LMDB follows what a medium or another program
        // has changed there, which `check_file` finds for a caller who cannot trust the bytes.
        let env = unsafe { open.flags(flags).open(path)? };

        let write_map = options.write_map && !is_read_only;
        let tables_max = options.tables_max;

        let inner = Inner { env, gate: RwLock::new(()), write_map, tables_max };
        if inner.write_map {
            inner.allocate(options.map_bytes as u64)?;
        }

        Ok(Self(Arc::new(inner)))
    }

    /// The flags of LMDB in effect.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn flags(&self) -> Outcome<EnvFlags> {
        Ok(EnvFlags::from_bits_truncate(self.0.env.get_flags()?))
    }

    /// Number of slots for readers.
    pub fn readers_max(&self) -> u32 {
        self.0.env.max_readers()
    }

    /// Size of the map in bytes.
    pub fn map_bytes(&self) -> u64 {
        let _gate = self.0.shared();
        self.0.env.info().map_size as u64
    }

    /// Bytes up to the last page that was ever in use, including free pages.
    pub fn used_bytes(&self) -> u64 {
        let _gate = self.0.shared();
        (self.0.env.info().last_page_number as u64 + 1) * u64::from(self.0.env.stat().page_size)
    }

    /// Number of the newest transaction that changed anything.
    pub fn last_transaction(&self) -> u64 {
        let _gate = self.0.shared();
        self.0.env.info().last_txn_id as u64
    }

    /// Changes the size of the map to `bytes`, a multiple of the system's pages. If that is less
    /// than the pages in use, LMDB takes as much as these need. 0 adopts the size that another
    /// process has set. Snapshots go on.
    ///
    /// Cost: waits for running calls; with `write_map`, allocates the new blocks.
    ///
    /// # Errors
    /// [`Kind::Writing`]; [`Kind::NoRoom`], and the map keeps its old size.
    pub fn resize(&self, bytes: u64) -> Outcome<()> {
        let _gate = self.0.alone();
        if self.0.write_map {
            self.0.allocate(bytes)?;
        }
        self.0.resize_alone(bytes)
    }

    /// Takes a snapshot of all tables. Adopts the size of the map if another process has made it
    /// larger.
    ///
    /// LMDB notes the number of the newest transaction, and then copies the head of that number's
    /// parity. If any process commits the next transaction in between, the one after it overwrites
    /// that very head. The copy may then be newer than it should be, or half of each.
    ///
    /// Nobody can have begun to write that head if the newest transaction is still the same
    /// afterwards. Two numbers tell that: the one in the heads, or the one that the next snapshot
    /// gets. The latter counts where a process was killed after it wrote a head and before it
    /// published the number. Otherwise the snapshot is taken anew.
    ///
    /// # Errors
    /// [`Kind::ReadersFull`], and those of LMDB.
    pub fn snapshot(&self) -> Outcome<Snapshot> {
        let mut before: Option<Snapshot> = None;
        loop {
            let txn = self.resizing(|| self.0.env.clone().static_read_txn())?;
            let number = txn.id();
            if let Some(before) = before.take().filter(|before| before.txn.id() == number) {
                return Ok(before);
            }
            let snapshot = Snapshot { txn, inner: Arc::clone(&self.0) };
            // The copy was read before the heads are read below.
            fence(Ordering::SeqCst);
            if self.last_transaction() == number as u64 {
                return Ok(snapshot);
            }
            before = Some(snapshot);
        }
    }

    /// Opens tables by name; `None` for a table that does not exist. Creates no table.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn tables(&self, names: &[String]) -> Outcome<Vec<Option<EnvironmentTable>>> {
        let txn = self.resizing(|| self.0.env.read_txn())?;
        let _gate = self.0.shared();
        let mut tables = Vec::with_capacity(names.len());
        for name in names {
            let table = self.0.env.open_database::<Bytes, Bytes>(&txn, Some(name))?;
            tables.push(table.map(EnvironmentTable));
        }
        // Tables that a transaction has opened stay open only after its commit.
        txn.commit()?;
        Ok(tables)
    }

    /// Begins a write transaction. Waits without limit for that of another process or thread; a
    /// thread that already has one waits for ever.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn transaction(&self) -> Outcome<Transaction> {
        let txn = self.resizing(|| self.0.env.write_txn())?;
        #[expect(unsafe_code, reason = "a borrow of what the same value owns")]
        // SAFETY: the transaction borrows `env`, which lies in the allocation of `inner` and is
        // never moved or taken out of it. `Transaction` holds a share of that allocation and gives
        // the transaction up before it: `end` is the only place that takes it out, `drop` runs it,
        // and the field of the transaction is dropped before `inner`.
        let txn = unsafe { std::mem::transmute::<RwTxn<'_>, RwTxn<'static>>(txn) };
        Ok(Transaction { txn: Some(txn), inner: Arc::clone(&self.0) })
    }

    /// Runs `begin`, which begins a transaction. Adopts the size of the map first if another
    /// process has made it larger.
    fn resizing<T>(&self, begin: impl Fn() -> heed::Result<T>) -> Outcome<T> {
        let resized = |error: &heed::Error| matches!(error, heed::Error::Mdb(MdbError::MapResized));
        {
            let _gate = self.0.shared();
            match begin() {
                Err(error) if resized(&error) => {}
                other => return Ok(other?),
            }
        }

        let _gate = self.0.alone();
        match begin() {
            Err(error) if resized(&error) => {}
            other => return Ok(other?),
        }

        self.0.resize_alone(0)?;
        Ok(begin()?)
    }

    /// Frees slots of readers whose process has ended. Returns their number.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn free_dead_readers(&self) -> Outcome<usize> {
        Ok(self.0.env.clear_stale_readers()?)
    }

    /// Makes all commits durable. Cost: writes everything that the system has not written yet.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn sync(&self) -> Outcome<()> {
        let _gate = self.0.shared();
        Ok(self.0.env.force_sync()?)
    }

    /// Writes a copy of the newest state to a new file, without free pages, and syncs it.
    ///
    /// Cost: reads all pages in use and writes them once; commits go on meanwhile, growth of the
    /// map waits.
    ///
    /// # Errors
    /// Those of LMDB. A part of the file may be left.
    pub fn copy(&self, file: &Path) -> Outcome<()> {
        let mut file = File::create_new(file)?;
        let _gate = self.0.shared();
        self.0.env.copy_to_file(&mut file, CompactionOption::Enabled)?;
        Ok(file.sync_all()?)
    }

    /// Like [`copy`](Self::copy), with pages as full as the entries allow: the entries go into the
    /// copy in their order.
    ///
    /// Returns `false` and makes no copy in three cases:
    ///
    /// - A table has a name for which `is_own` is false.
    /// - A table does not have the plain order of keys with one value each.
    /// - There are more tables than may be open.
    ///
    /// # Errors
    /// Those of [`copy`](Self::copy).
    pub fn copy_packed(&self, file: &Path, is_own: impl Fn(&[u8]) -> bool) -> Outcome<bool> {
        let snapshot = self.snapshot()?;
        let Some(names) = snapshot.names(is_own)? else { return Ok(false) };
        if names.len() > self.0.tables_max as usize {
            return Ok(false);
        }

        drop(File::create_new(file)?);
        let options = EnvironmentOptions {
            access: EnvironmentAccess::Write,
            // Full pages are fewer, except those that divide a large entry from the next.
            map_bytes: (2 * self.used_bytes() as usize).next_multiple_of(COPIED_BYTES)
                + COPIED_BYTES,
            readers_max: 1,
            tables_max: names.len() as u32,
            directory: false,
            read_ahead: false,
            write_map: false,
            sync: SyncMode::None,
        };

        let copied = Self::open(file, &options).and_then(|copy| snapshot.append_to(&copy, &names));

        // Best effort: nobody looks for the lock file without the copy.
        let _ = std::fs::remove_file(lock_path(file, false));

        copied?;
        File::open(file)?.sync_all()?;
        Ok(true)
    }

    /// Whether the file system would give this file `bytes` more. Call it after a write has failed
    /// without a reason: LMDB reports a write cut short by a full disk as an I/O error.
    ///
    /// Cost: allocates and frees the bytes.
    ///
    /// # Errors
    /// Those of the file system, except that it is full.
    pub fn has_room(&self, bytes: u64) -> Outcome<bool> {
        // Nobody else may make the file longer meanwhile.
        let _transaction = self.transaction()?;

        let file = self.0.env.try_clone_inner_file()?;
        let length = file.metadata()?.len();
        let answer = match rustix::fs::fallocate(&file, FallocateFlags::empty(), length, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(true),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(false),
            Err(errno) => Err(errno.into()),
        };

        file.set_len(length)?;
        answer
    }

    /// Closes the files if no clone, snapshot or transaction of this environment lives.
    ///
    /// # Errors
    /// The environment, if one of them lives.
    pub fn close(self) -> std::result::Result<(), Self> {
        Arc::try_unwrap(self.0).map(drop).map_err(Self)
    }
}

impl Inner {
    /// Moves the map. The caller holds the gate alone.
    fn resize_alone(&self, bytes: u64) -> Outcome<()> {
        #[expect(unsafe_code, reason = "LMDB cannot tell who holds addresses in the map")]
        // SAFETY: LMDB asks that no transaction be active, since one may hold addresses in the old
        // map. One that writes makes LMDB refuse with EINVAL before it touches the map, and none
        // can begin, since the caller holds the gate alone. Those that read hold no address between
        // calls (see the module), and no call runs: each holds the gate shared. Their roots and the
        // pages below are page numbers, which mean the same pages in the new map, which has all
        // pages in use.
        let resized = unsafe { self.env.resize(bytes as usize) };
        resized.map_err(|source| match source {
            heed::Error::Io(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                Failure { kind: Kind::Writing, source: heed::Error::Io(error) }
            }
            source => source.into(),
        })
    }

    /// Fills the file with blocks up to a length. If there is no room, the file keeps its length.
    fn allocate(&self, bytes: u64) -> Outcome<()> {
        let file = self.env.try_clone_inner_file()?;
        let length = file.metadata()?.len();
        let filled = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1)) {
            Err(Errno::OPNOTSUPP) => fill(&file, length, bytes),
            other => other.map_err(Failure::from),
        };
        if filled.is_err() && file.metadata()?.len() > length {
            file.set_len(length)?;
        }
        filled
    }
}

/// Writes zeros behind the end of a file, up to a length.
fn fill(file: &File, mut from: u64, to: u64) -> Outcome<()> {
    let zeros = vec![0; ZEROS_BYTES];
    while from < to {
        let bytes = (to - from).min(ZEROS_BYTES as u64);
        file.write_all_at(&zeros[..bytes as usize], from)?;
        from += bytes;
    }
    Ok(())
}

/// Path of the data of an environment.
pub fn data_path(path: &Path, directory: bool) -> PathBuf {
    if directory { path.join("data.mdb") } else { path.to_owned() }
}

/// Path of the data of an open environment.
fn data_file(env: &Env<WithoutTls>) -> Outcome<PathBuf> {
    let is_file = env.get_flags()? & EnvFlags::NO_SUB_DIR.bits() != 0;
    Ok(data_path(env.path(), !is_file))
}

/// Path of the lock file of an environment.
pub fn lock_path(path: &Path, directory: bool) -> PathBuf {
    if directory {
        return path.join("lock.mdb");
    }
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    name.into()
}

/// Bounds of a range of keys.
type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Copies entries up to a limit.
fn page<'t>(
    entries: impl Iterator<Item = heed::Result<(&'t [u8], &'t [u8])>>,
    limit: PageLimit,
) -> Outcome<Vec<Pair>> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let (key, value) = entry?;
        bytes += key.len() + value.len();
        page.push((key.to_vec(), value.to_vec()));
        if page.len() >= limit.entries || bytes >= limit.bytes {
            break;
        }
    }

    Ok(page)
}

/// Lookups in the tables that a snapshot or a transaction sees.
pub trait ReadTables {
    /// Runs a call that reads.
    #[doc(hidden)]
    fn read<T>(&self, call: impl FnOnce(&RoTxn<'_>) -> Outcome<T>) -> Outcome<T>;

    /// Returns the value of a key, which must not be empty.
    ///
    /// # Errors
    /// Those of LMDB.
    fn get(&self, table: EnvironmentTable, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        self.read(|txn| Ok(table.0.get(txn, key)?.map(<[u8]>::to_vec)))
    }

    /// Returns entries from a bound on, whose key must not be empty.
    ///
    /// # Errors
    /// Those of LMDB.
    fn page_after(
        &self,
        table: EnvironmentTable,
        from: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        let range: KeyBounds<'_> = (from, Bound::Unbounded);
        self.read(|txn| page(table.0.range(txn, &range)?, limit))
    }

    /// Returns entries down from a bound, whose key must not be empty, the greatest first.
    ///
    /// # Errors
    /// Those of LMDB.
    fn page_before(
        &self,
        table: EnvironmentTable,
        to: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        let range: KeyBounds<'_> = (Bound::Unbounded, to);
        self.read(|txn| page(table.0.rev_range(txn, &range)?, limit))
    }

    /// Number of entries of a table. Costs nothing.
    ///
    /// # Errors
    /// Those of LMDB.
    fn len(&self, table: EnvironmentTable) -> Outcome<u64> {
        self.read(|txn| Ok(table.0.len(txn)?))
    }

    /// Whether a table has no entry.
    ///
    /// # Errors
    /// Those of LMDB.
    fn is_empty(&self, table: EnvironmentTable) -> Outcome<bool> {
        Ok(self.len(table)? == 0)
    }
}

/// A view of all tables as of one moment.
pub struct Snapshot {
    txn: RoTxn<'static, WithoutTls>,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl ReadTables for Snapshot {
    fn read<T>(&self, call: impl FnOnce(&RoTxn<'_>) -> Outcome<T>) -> Outcome<T> {
        let _gate = self.inner.shared();
        call(&self.txn)
    }
}

impl Snapshot {
    /// Finds a table by its name, or the main table for `None`; `None` if there is none. The main
    /// table has the name of each other table as a key. One call opens one table at most, and an
    /// environment has room for the number of them that it was opened with.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn find_table(&self, name: Option<&str>) -> Outcome<Option<StoredTable>> {
        let _gate = self.inner.shared();
        let env = &self.inner.env;
        let Some(main) = env.open_database::<Bytes, Bytes>(&self.txn, None)? else {
            return Ok(None);
        };
        let Some(name) = name else {
            let flags = flag_names(main_flags(&data_file(env)?)?);
            return Ok(Some(StoredTable { table: EnvironmentTable(main), flags }));
        };

        // The record of a table is 48 bytes; the value of a key of the main table may be, too.
        let record = main.get(&self.txn, name.as_bytes())?;
        let Some(flags) = record.filter(|record| record.len() == RECORD_BYTES) else {
            return Ok(None);
        };
        let flags =
            flags[TABLE_FLAGS].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let table = match env.open_database::<Bytes, Bytes>(&self.txn, Some(name)) {
            Err(heed::Error::Mdb(MdbError::Incompatible)) => None,
            opened => opened?,
        };

        let stored =
            |table| StoredTable { table: EnvironmentTable(table), flags: flag_names(flags) };
        Ok(table.map(stored))
    }

    /// The names of all tables; `None` if `is_own` is false for one of them, or one has flags.
    fn names(&self, is_own: impl Fn(&[u8]) -> bool) -> Outcome<Option<Vec<String>>> {
        let _gate = self.inner.shared();
        let mut names = Vec::new();
        let Some(all) = self.inner.env.open_database::<Bytes, Bytes>(&self.txn, None)? else {
            return Ok(Some(names));
        };

        for entry in all.iter(&self.txn)? {
            let (name, record) = entry?;
            let has_flags =
                record.get(TABLE_FLAGS).is_none_or(|flags| flags.iter().any(|b| *b != 0));
            match str::from_utf8(name) {
                Ok(text) if is_own(name) && !has_flags => names.push(text.to_owned()),
                _ => return Ok(None),
            }
        }

        Ok(Some(names))
    }

    /// Appends the entries of these tables to the same tables of another environment, which must be
    /// empty.
    fn append_to(&self, to: &Environment, names: &[String]) -> Outcome<()> {
        for name in names {
            let from = {
                let _gate = self.inner.shared();
                self.inner.env.open_database::<Bytes, Bytes>(&self.txn, Some(name))?
            };

            let Some(from) = from.map(EnvironmentTable) else { continue };

            let limit = PageLimit { entries: usize::MAX, bytes: COPIED_BYTES };
            let mut last: Option<Vec<u8>> = None;
            loop {
                let mut transaction = to.transaction()?;
                let table = transaction.table(name)?;
                let behind = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let entries = self.page_after(from, behind, limit)?;
                for (key, value) in &entries {
                    transaction.append(table, key, value)?;
                }
                transaction.commit()?;
                let Some((key, _)) = entries.into_iter().last() else { break };
                last = Some(key);
            }
        }

        Ok(())
    }
}

/// A write transaction; a dropped one has changed nothing. After a failed call it can only be
/// dropped.
pub struct Transaction {
    /// Taken by `end` only. The field stands before `inner`, from which it borrows.
    txn: Option<RwTxn<'static>>,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.end(drop);
    }
}

impl ReadTables for Transaction {
    fn read<T>(&self, call: impl FnOnce(&RoTxn<'_>) -> Outcome<T>) -> Outcome<T> {
        call(self.txn())
    }
}

impl Transaction {
    /// Ends the transaction, once.
    fn end<T>(&mut self, end: impl FnOnce(RwTxn<'static>) -> T) -> Option<T> {
        let _gate = self.inner.shared();
        self.txn.take().map(end)
    }

    fn txn(&self) -> &RwTxn<'static> {
        self.txn.as_ref().expect("taken when it is committed or dropped")
    }

    fn txn_mut(&mut self) -> &mut RwTxn<'static> {
        self.txn.as_mut().expect("taken when it is committed or dropped")
    }

    /// Number of this transaction: one above the newest transaction that changed anything.
    pub fn number(&self) -> u64 {
        self.txn().id() as u64
    }

    /// Opens a table, or creates it if there is none. Others may use the table once this
    /// transaction is committed, and not if it is dropped.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn table(&mut self, name: &str) -> Outcome<EnvironmentTable> {
        let inner = Arc::clone(&self.inner);
        Ok(EnvironmentTable(inner.env.create_database(self.txn_mut(), Some(name))?))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Kind::MapFull`], and those of LMDB.
    pub fn put(&mut self, table: EnvironmentTable, key: &[u8], value: &[u8]) -> Outcome<()> {
        Ok(table.0.put(self.txn_mut(), key, value)?)
    }

    /// Sets the value of a key above all others of the table, and leaves no room in the pages
    /// before it.
    fn append(&mut self, table: EnvironmentTable, key: &[u8], value: &[u8]) -> Outcome<()> {
        Ok(table.0.put_with_flags(self.txn_mut(), PutFlags::APPEND, key, value)?)
    }

    /// Removes a key, which must not be empty. Returns whether the key was present.
    ///
    /// # Errors
    /// [`Kind::MapFull`], and those of LMDB.
    pub fn remove(&mut self, table: EnvironmentTable, key: &[u8]) -> Outcome<bool> {
        Ok(table.0.delete(self.txn_mut(), key)?)
    }

    /// Makes all changes visible. Cost: writes the changed pages; the syncs of the environment's
    /// [`SyncMode`].
    ///
    /// # Errors
    /// [`Kind::MapFull`], [`Kind::NoRoom`], and those of LMDB; nothing has changed.
    pub fn commit(mut self) -> Outcome<()> {
        Ok(self.end(RwTxn::commit).expect("taken when it is committed or dropped")?)
    }
}

/// Bytes of the record of a table, `MDB_db`.
const RECORD_BYTES: usize = 48;

/// Place of a table's flags in its record, `MDB_db`. All are 0 for the plain order of keys with one
/// value each.
const TABLE_FLAGS: std::ops::Range<usize> = 4..6;

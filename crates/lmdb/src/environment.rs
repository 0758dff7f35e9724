//! An LMDB environment whose map can grow while snapshots of it live: what a back-end of the Merkle
//! state needs of LMDB.
//!
//! LMDB reads through a memory map of a fixed size. Growing the map moves it, so LMDB asks that
//! nobody be reading. Here a snapshot may live as long as it likes and still keeps no growth
//! waiting, and no growth can deadlock with it:
//!
//! * **Invariant:** nothing but a running call holds an address in the map. Calls copy what they
//!   find; a walk over many entries is a sequence of calls that begin at a key, and no cursor of
//!   LMDB outlives one.
//! * **Invariant:** a call of a snapshot holds the gate shared; [`resize`](Environment::resize)
//!   holds it alone. So growth waits for calls that run, microseconds, and never for a snapshot.
//! * **Invariant:** while a transaction that writes is open the map stays: LMDB refuses to resize
//!   then.
//!
//! What an open read transaction keeps between two calls is its number, the page numbers of its
//! roots and its slot in the file of locks, which is another map.
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

use crate::check::{Finding, check_heads};

/// Bytes of a buffer of zeros, with which a file is filled where the system cannot allocate.
const ZEROS_BYTES: usize = 1 << 20;

/// About how many bytes of entries one transaction of a copy takes: they are in memory until it
/// ends.
const COPIED_BYTES: usize = 16 << 20;

/// What went wrong, by what the caller can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The map is full: let it grow and do the transaction again.
    MapFull,
    /// Disk, quota or the allowed size of a file are full.
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

/// LMDB refused or failed.
#[derive(Debug, thiserror::Error)]
#[error("LMDB: {source}")]
pub struct Failure {
    /// What the caller can do.
    pub kind: Kind,
    /// What LMDB said.
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

fn is_no_room(error: &std::io::Error) -> bool {
    error
        .raw_os_error()
        .map(Errno::from_raw_os_error)
        .is_some_and(|errno| [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].contains(&errno))
}

/// The result of a call of an environment.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// When commits reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncMode {
    /// Data, then head, at each commit.
    #[default]
    Full,
    /// Data at each commit; the head goes with the next. `MDB_NOMETASYNC`.
    NoMeta,
    /// The system is told to write, and not waited for. `MDB_MAPASYNC`; takes effect with a map
    /// that is written only.
    MapAsync,
    /// Never. `MDB_NOSYNC`.
    None,
}

/// Processes that change an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EnvironmentAccess {
    /// This process may.
    #[default]
    Write,
    /// Other processes may: snapshots are noted in the file of locks.
    Read,
    /// Nobody does: snapshots are noted nowhere, and nothing is written.
    ReadAlone,
}

/// How an environment is opened.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// Processes that change it.
    pub access: EnvironmentAccess,
    /// Bytes of the map, a multiple of the system's pages.
    pub map_bytes: usize,
    /// Slots of readers, over all processes.
    pub readers_max: u32,
    /// Tables at most.
    pub tables_max: u32,
    /// Whether the path names a directory, which must be there, or a file.
    pub directory: bool,
    /// Whether the system reads ahead.
    pub read_ahead: bool,
    /// Whether pages are changed in the map in place of being written. The file then has the size
    /// of the map, in blocks that are allocated: a hole that cannot be filled would end the process
    /// when it is touched.
    pub write_map: bool,
    /// When commits reach the disk.
    pub sync: SyncMode,
}

/// An environment; clones are the same one. It is closed with the last of its clones, snapshots and
/// transactions.
#[derive(Debug, Clone)]
pub struct Environment(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env<WithoutTls>,
    /// Held shared by calls that look into the map, alone by what moves it.
    gate: RwLock<()>,
    write_map: bool,
    /// Tables that can be open at a time.
    tables_max: u32,
}

impl Inner {
    fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A table of an environment.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentTable(Database<Bytes, Bytes>);

/// A key and a value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// How much a call gives at most: it stops after the entry that reaches either.
#[derive(Debug, Clone, Copy)]
pub struct PageLimit {
    /// Entries; at least 1.
    pub entries: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

impl Environment {
    /// Opens an environment; makes it if there is none.
    ///
    /// # Errors
    /// What LMDB says; [`Kind::Corrupted`] also for heads that break a rule, and a file that ends
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
        let (write_map, tables_max) = (options.write_map && !is_read_only, options.tables_max);
        let inner = Inner { env, gate: RwLock::new(()), write_map, tables_max };
        if inner.write_map {
            inner.allocate(options.map_bytes as u64)?;
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The flags in effect, of LMDB's.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn flags(&self) -> Outcome<EnvFlags> {
        Ok(EnvFlags::from_bits_truncate(self.0.env.get_flags()?))
    }

    /// Slots of readers.
    pub fn readers_max(&self) -> u32 {
        self.0.env.max_readers()
    }

    /// Bytes of the map.
    pub fn map_bytes(&self) -> u64 {
        let _gate = self.0.shared();
        self.0.env.info().map_size as u64
    }

    /// Bytes up to the last page that was ever in use; free pages among them count.
    pub fn used_bytes(&self) -> u64 {
        let _gate = self.0.shared();
        (self.0.env.info().last_page_number as u64 + 1) * u64::from(self.0.env.stat().page_size)
    }

    /// The number of the newest transaction that changed anything.
    pub fn last_transaction(&self) -> u64 {
        let _gate = self.0.shared();
        self.0.env.info().last_txn_id as u64
    }

    /// Gives the map another size, a multiple of the system's pages; LMDB takes as much as its
    /// pages need if it is less. 0 takes the size that another process has given it. Snapshots go
    /// on. Cost: waits for calls that run; a map that is written has its new blocks allocated.
    ///
    /// # Errors
    /// [`Kind::Writing`]; [`Kind::NoRoom`], and the map has its old size.
    pub fn resize(&self, bytes: u64) -> Outcome<()> {
        let _gate = self.0.alone();
        if self.0.write_map {
            self.0.allocate(bytes)?;
        }
        self.0.resize_alone(bytes)
    }

    /// A snapshot of all tables. Adopts the size of the map if another process has made it larger.
    ///
    /// LMDB notes the number of the newest transaction and then copies the head of that number's
    /// parity. If the next transaction, of whatever process, is committed in between, the one after
    /// it writes that very head: the copy may then be newer than what others are given yet, or half
    /// of each. Nobody can have begun to write that head if afterwards the newest transaction is
    /// still the same, by the heads, or by the number that the next snapshot gets; the latter where
    /// a process was killed after it wrote a head and before it told the number. Else the snapshot
    /// is made anew.
    ///
    /// # Errors
    /// [`Kind::ReadersFull`], and what LMDB says.
    pub fn snapshot(&self) -> Outcome<Snapshot> {
        let mut before: Option<Snapshot> = None;
        loop {
            let txn = self.resizing(|| self.0.env.clone().static_read_txn())?;
            let number = txn.id();
            if let Some(before) = before.take().filter(|before| before.txn.id() == number) {
                return Ok(before);
            }
            let snapshot = Snapshot { txn, inner: Arc::clone(&self.0) };
            // What was copied was read before what is read now.
            fence(Ordering::SeqCst);
            if self.last_transaction() == number as u64 {
                return Ok(snapshot);
            }
            before = Some(snapshot);
        }
    }

    /// Tables by their names, where they are there; none is made.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn tables(&self, names: &[String]) -> Outcome<Vec<Option<EnvironmentTable>>> {
        let txn = self.resizing(|| self.0.env.read_txn())?;
        let _gate = self.0.shared();
        let mut tables = Vec::with_capacity(names.len());
        for name in names {
            let table = self.0.env.open_database::<Bytes, Bytes>(&txn, Some(name))?;
            tables.push(table.map(EnvironmentTable));
        }
        // Tables that a transaction has opened stay open after its commit only.
        txn.commit()?;
        Ok(tables)
    }

    /// A transaction that writes. Waits for the one of another process or thread, with no limit of
    /// time; a thread that has one waits for ever.
    ///
    /// # Errors
    /// What LMDB says.
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

    /// Does something that begins a transaction; adopts the size of the map first if another
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

    /// Frees slots of readers whose process has ended. Returns how many.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn free_dead_readers(&self) -> Outcome<usize> {
        Ok(self.0.env.clear_stale_readers()?)
    }

    /// Makes what was committed durable. Cost: writes what the system has not written yet.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn sync(&self) -> Outcome<()> {
        let _gate = self.0.shared();
        Ok(self.0.env.force_sync()?)
    }

    /// Writes a copy of the newest state to a new file, without its free pages, and syncs it. Cost:
    /// reads all that is in use and writes it once; commits go on meanwhile, growth of the map
    /// waits.
    ///
    /// # Errors
    /// What LMDB says. There may be a part of the file then.
    pub fn copy(&self, file: &Path) -> Outcome<()> {
        let mut file = File::create_new(file)?;
        let _gate = self.0.shared();
        self.0.env.copy_to_file(&mut file, CompactionOption::Enabled)?;
        Ok(file.sync_all()?)
    }

    /// The same with pages as full as the entries allow: these are put into the copy in their
    /// order. Returns `false`, and there is no copy, if there is a table that is not one's own by
    /// its name, or that has not the plain order of keys and one value for each, or if there are
    /// more tables than may be open.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub fn copy_packed(&self, file: &Path, is_own: impl Fn(&[u8]) -> bool) -> Outcome<bool> {
        let snapshot = self.snapshot()?;
        let Some(names) = snapshot.names(is_own)? else { return Ok(false) };
        if names.len() > self.0.tables_max as usize {
            return Ok(false);
        }
        drop(File::create_new(file)?);
        let options = EnvironmentOptions {
            access: EnvironmentAccess::Write,
            // Full pages are fewer, but for those that divide a large entry from the next.
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
        // Best effort: nobody looks for it without the copy.
        let _ = std::fs::remove_file(lock_path(file, false));
        copied?;
        File::open(file)?.sync_all()?;
        Ok(true)
    }

    /// Whether the file system would give this file `bytes` more. Asked after a write failed for
    /// reasons that were not told: LMDB calls a write that was cut short by a full disk an I/O
    /// error. Cost: allocates and frees them.
    ///
    /// # Errors
    /// Those of the file system, but for that it is full.
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
    /// The environment, if one does.
    pub fn close(self) -> std::result::Result<(), Self> {
        Arc::try_unwrap(self.0).map(drop).map_err(Self)
    }
}

impl Inner {
    /// Moves the map. The caller has the gate alone.
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

    /// Has the file filled with blocks up to a length. If there is no room the file has the length
    /// it had.
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

/// Where the data of an environment lies.
pub fn data_path(path: &Path, directory: bool) -> PathBuf {
    if directory { path.join("data.mdb") } else { path.to_owned() }
}

/// Where the locks of an environment lie.
pub fn lock_path(path: &Path, directory: bool) -> PathBuf {
    if directory {
        return path.join("lock.mdb");
    }
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    name.into()
}

/// Looks up one key.
fn find(txn: &RoTxn<'_>, table: EnvironmentTable, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
    Ok(table.0.get(txn, key)?.map(<[u8]>::to_vec))
}

/// A range of keys.
type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

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

fn page_after(
    txn: &RoTxn<'_>,
    table: EnvironmentTable,
    from: Bound<&[u8]>,
    limit: PageLimit,
) -> Outcome<Vec<Pair>> {
    let range: Range<'_> = (from, Bound::Unbounded);
    page(table.0.range(txn, &range)?, limit)
}

fn page_before(
    txn: &RoTxn<'_>,
    table: EnvironmentTable,
    to: Bound<&[u8]>,
    limit: PageLimit,
) -> Outcome<Vec<Pair>> {
    let range: Range<'_> = (Bound::Unbounded, to);
    page(table.0.rev_range(txn, &range)?, limit)
}

/// All tables as of one moment.
pub struct Snapshot {
    txn: RoTxn<'static, WithoutTls>,
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl Snapshot {
    /// The value of a key, which is not empty.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn get(&self, table: EnvironmentTable, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let _gate = self.inner.shared();
        find(&self.txn, table, key)
    }

    /// Entries from a bound on, whose key is not empty.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn page_after(
        &self,
        table: EnvironmentTable,
        from: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        let _gate = self.inner.shared();
        page_after(&self.txn, table, from, limit)
    }

    /// Entries down from a bound, whose key is not empty, the greatest first.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn page_before(
        &self,
        table: EnvironmentTable,
        to: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        let _gate = self.inner.shared();
        page_before(&self.txn, table, to, limit)
    }

    /// Entries of a table. Cost: none worth telling.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn len(&self, table: EnvironmentTable) -> Outcome<u64> {
        let _gate = self.inner.shared();
        Ok(table.0.len(&self.txn)?)
    }

    /// Whether a table has no entry.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn is_empty(&self, table: EnvironmentTable) -> Outcome<bool> {
        Ok(self.len(table)? == 0)
    }

    /// The names of all tables; `None` if one of them is not one's own, or has flags.
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

    /// Appends the entries of these tables to those of another environment, which are empty.
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

/// A transaction that writes; dropped it has changed nothing. After a failed call it can only be
/// dropped.
pub struct Transaction {
    /// Taken by `end` only. Stands before `inner`, which it borrows from.
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

impl Transaction {
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

    /// The number of this transaction: one more than that of the newest that changed anything.
    pub fn number(&self) -> u64 {
        self.txn().id() as u64
    }

    /// Opens a table; makes it if there is none. It may be used elsewhere once this transaction is
    /// committed, and not if it is dropped.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn table(&mut self, name: &str) -> Outcome<EnvironmentTable> {
        let inner = Arc::clone(&self.inner);
        Ok(EnvironmentTable(inner.env.create_database(self.txn_mut(), Some(name))?))
    }

    /// The value of a key, which is not empty.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn get(&self, table: EnvironmentTable, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        find(self.txn(), table, key)
    }

    /// Entries from a bound on, whose key is not empty.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn page_after(
        &self,
        table: EnvironmentTable,
        from: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        page_after(self.txn(), table, from, limit)
    }

    /// Entries down from a bound, whose key is not empty, the greatest first.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn page_before(
        &self,
        table: EnvironmentTable,
        to: Bound<&[u8]>,
        limit: PageLimit,
    ) -> Outcome<Vec<Pair>> {
        page_before(self.txn(), table, to, limit)
    }

    /// Entries of a table.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn len(&self, table: EnvironmentTable) -> Outcome<u64> {
        Ok(table.0.len(self.txn())?)
    }

    /// Whether a table has no entry.
    ///
    /// # Errors
    /// What LMDB says.
    pub fn is_empty(&self, table: EnvironmentTable) -> Outcome<bool> {
        Ok(self.len(table)? == 0)
    }

    /// Binds a key.
    ///
    /// # Errors
    /// [`Kind::MapFull`], and what LMDB says.
    pub fn put(&mut self, table: EnvironmentTable, key: &[u8], value: &[u8]) -> Outcome<()> {
        Ok(table.0.put(self.txn_mut(), key, value)?)
    }

    /// Binds a key above all others of the table, and leaves no room in the pages before it.
    fn append(&mut self, table: EnvironmentTable, key: &[u8], value: &[u8]) -> Outcome<()> {
        Ok(table.0.put_with_flags(self.txn_mut(), PutFlags::APPEND, key, value)?)
    }

    /// Removes a key, which is not empty. Returns whether it was there.
    ///
    /// # Errors
    /// [`Kind::MapFull`], and what LMDB says.
    pub fn remove(&mut self, table: EnvironmentTable, key: &[u8]) -> Outcome<bool> {
        Ok(table.0.delete(self.txn_mut(), key)?)
    }

    /// Makes all changes visible. Cost: writes the changed pages, and the syncs of the
    /// environment's [`SyncMode`].
    ///
    /// # Errors
    /// [`Kind::MapFull`], [`Kind::NoRoom`], and what LMDB says; nothing has changed then.
    pub fn commit(mut self) -> Outcome<()> {
        Ok(self.end(RwTxn::commit).expect("taken when it is committed or dropped")?)
    }
}

/// Where the flags of a table stand in its record, `MDB_db`: none for the plain order of keys and
/// one value for each.
const TABLE_FLAGS: std::ops::Range<usize> = 4..6;

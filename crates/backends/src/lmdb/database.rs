//! Database over an environment: opening, closing, and the rest of the contract.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::fs::FlockOperation;
use terrane_kv::overlay::names::IndexNames;
use terrane_kv::turn::Turn;
use terrane_kv::{
    Counts, Database, Durability, Error, Guarantee, PowerLoss, Reader, Receipt, Result, Writer,
};
use terrane_lmdb::{EnvironmentAccess, Failure, Kind, SyncMode, data_path, lock_path};

use super::compact::{copy_compact, replace, sync_folder};
use super::environment::{Open, open_environment, open_to_read, settings_of};
use super::failure::{NAME, back_end_error, busy, closed, error_of};
use super::inner::Inner;
use super::options::{LmdbGrowth, LmdbOptions};
use super::readers::Readers;
use super::snapshot::LmdbReader;
use super::writer::LmdbWriter;
use crate::own_file::{OwnFiles, with_suffix};

const FILES: OwnFiles = OwnFiles(NAME);

/// Database in LMDB. See the [module](super).
#[derive(Debug)]
pub struct LmdbDatabase {
    /// Absolute path, without links.
    path: PathBuf,
    access: EnvironmentAccess,
    inner: Inner,
    /// Right to write, grow the map, compact or close.
    turn: Turn,
    /// Shared by calls that use the environment, exclusive for compaction and closing. A writer,
    /// which has the turn, holds a clone of the environment instead.
    state: RwLock<State>,
}

#[derive(Debug)]
enum State {
    Open(Open),
    /// Closed for compaction and not opened again, because opening failed; the next call tries
    /// again.
    Lapsed,
    Closed,
}

impl LmdbDatabase {
    /// Opens a database; creates the file and the indexes that are missing. Cost: a few pages;
    /// waits for a writer of another process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be; [`Error::Locked`] if this
    /// process has it open; [`Error::Corruption`]; [`Error::StoreFull`]; those of the system.
    pub fn open(path: impl AsRef<Path>, indexes: &[&str], options: &LmdbOptions) -> Result<Self> {
        options.check()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);

        let path = path.as_ref();
        if options.directory {
            std::fs::create_dir_all(path).map_err(|error| back_end_error("mkdir", error))?;
        }

        let path = FILES.canonical(path)?;
        let data = data_path(&path, options.directory);
        let is_new = !FILES.check(&data)?;
        FILES.check(&lock_path(&path, options.directory))?;
        let open = open_environment(&path, &indexes, options)?;

        if is_new && matches!(options.sync, SyncMode::Full | SyncMode::NoMeta) {
            // LMDB syncs the content of the file and not its name.
            sync_folder(&data).map_err(|error| back_end_error("sync the folder", error))?;
            if options.directory {
                sync_folder(&path).map_err(|error| back_end_error("sync the folder", error))?;
            }
        }

        Ok(Self::new(path, options, indexes, open, EnvironmentAccess::Write))
    }

    fn new(
        path: PathBuf,
        options: &LmdbOptions,
        indexes: Arc<IndexNames>,
        open: Open,
        access: EnvironmentAccess,
    ) -> Self {
        Self {
            path,
            access,
            inner: Inner::new(options.clone(), indexes),
            turn: Turn::default(),
            state: RwLock::new(State::Open(open)),
        }
    }

    /// Opens an existing database for reading; writers are [`Error::ReadOnly`]. Other processes may
    /// write meanwhile.
    ///
    /// On read-only media and in directories of other users, this process can write no file of
    /// locks. LMDB then notes snapshots nowhere, and the caller must keep writers away while the
    /// database is open, for example by a shared lock that writers respect.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options and names that cannot be, and for an index that is not
    /// there; [`Error::Locked`] if this process has it open; [`Error::Corruption`]; those of the
    /// system, also if there is no such file.
    pub fn open_read_only(
        path: impl AsRef<Path>,
        indexes: &[&str],
        options: &LmdbOptions,
    ) -> Result<Self> {
        options.check()?;
        let indexes = Arc::new(IndexNames::new(NAME, indexes)?);
        let path = FILES.canonical(path.as_ref())?;

        let data = data_path(&path, options.directory);
        if !FILES.check(&data)? {
            let error = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(back_end_error("open", error));
        }

        let locks = lock_path(&path, options.directory);
        let can_lock = if FILES.check(&locks)? {
            FILES.can_write(&locks)?
        } else {
            FILES.can_write(data.parent().unwrap_or(Path::new("/")))?
        };

        let access = if can_lock { EnvironmentAccess::Read } else { EnvironmentAccess::ReadAlone };
        let open = open_to_read(&path, &indexes, options, access)?;
        Ok(Self::new(path, options, indexes, open, access))
    }

    /// Age of the oldest snapshot of this database. Pages freed since cannot be used again.
    pub fn oldest_reader(&self) -> Option<Duration> {
        self.inner.readers.oldest()
    }

    /// Bytes of the map now.
    ///
    /// # Errors
    /// [`Error::BackEnd`] if the database is closed.
    pub fn map_bytes(&self) -> Result<u64> {
        self.with_open("map size", |open| Ok(open.environment.map_bytes()))
    }

    /// Writes a copy of the newest state, without free pages, to a new file. Cost: reads what is in
    /// use and writes it once; [`compact`](Database::compact) and [`close`](Database::close) wait
    /// for it.
    ///
    /// # Errors
    /// [`Error::StoreFull`], those of the system. There may be a part of the file then.
    pub fn copy_to(&self, file: &Path) -> Result<()> {
        self.with_open("copy", |open| {
            open.environment.copy(file).map_err(|failure| error_of("copy", failure))
        })
    }

    /// Runs `act` on the environment, which stays open meanwhile. Opens a lapsed environment first.
    fn with_open<T>(&self, call: &'static str, act: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        loop {
            match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
                State::Open(open) => return act(open),
                State::Closed => return Err(closed(call)),
                State::Lapsed => {}
            }
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have opened it meanwhile.
            if matches!(*state, State::Lapsed) {
                *state = self.open_again()?;
            }
        }
    }

    fn open_again(&self) -> Result<State> {
        let Self { path, access, inner: Inner { options, indexes, .. }, .. } = self;
        let open = match access {
            EnvironmentAccess::Write => open_environment(path, indexes, options),
            _ => open_to_read(path, indexes, options, *access),
        };
        open.map(State::Open)
    }

    fn check_writes(&self) -> Result<()> {
        match self.access {
            EnvironmentAccess::Write => Ok(()),
            _ => Err(Error::ReadOnly { back_end: NAME }),
        }
    }
}

impl Database for LmdbDatabase {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        self.with_open("reader", |Open { environment, tables }| {
            let snapshot = match environment.snapshot() {
                // Readers that died keep their slots until somebody frees them.
                Err(Failure { kind: Kind::ReadersFull, .. }) => {
                    environment.free_dead_readers().and_then(|_| environment.snapshot())
                }
                snapshot => snapshot,
            };

            let snapshot = snapshot.map_err(|failure| error_of("reader", failure))?;
            Ok(Box::new(LmdbReader {
                snapshot,
                tables: Arc::clone(tables),
                indexes: Arc::clone(&self.inner.indexes),
                _lease: Readers::enter(&self.inner.readers),
            }) as Box<dyn Reader + Send>)
        })
    }

    /// Waits for the writer of this process or of another one, however long it takes.
    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        self.check_writes()?;
        let turn = self.turn.take(NAME)?;
        self.inner.check_poison()?;
        // A clone, so that the state is not locked for as long as the transaction.
        let open = self.with_open("writer", |open| Ok(open.clone()))?;
        let transaction =
            open.environment.transaction().map_err(|failure| error_of("writer", failure))?;
        Ok(Box::new(LmdbWriter::new(&self.inner, open, transaction, turn)))
    }

    fn last_commit(&self) -> Option<u64> {
        self.with_open("last commit", |open| Ok(open.environment.last_transaction())).ok()
    }

    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.with_open("settle", |_| self.inner.check_poison())
    }

    fn sync(&self) -> Result<()> {
        self.check_writes()?;
        self.inner.check_poison()?;
        self.with_open("sync", |open| open.environment.sync().map_err(|_| self.inner.poison()))?;
        self.inner.count_sync();
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        let (durability, power_loss, text) = match self.inner.options.sync {
            SyncMode::Full => (
                Durability::Each,
                PowerLoss::EveryCommit,
                "LMDB, data and head synced at each commit: every commit survives a loss of power",
            ),
            SyncMode::NoMeta => (
                Durability::Buffered,
                PowerLoss::Consistent,
                "LMDB with NOMETASYNC: consistent after a loss of power; the last commit may be undone",
            ),
            SyncMode::MapAsync => (
                Durability::None,
                PowerLoss::NoPromise,
                "LMDB with WRITEMAP and MAPASYNC: no sync; pages reach the disk in any order, so a loss of power may \
                 leave nothing that can be read",
            ),
            SyncMode::None => (
                Durability::None,
                PowerLoss::NoPromise,
                "LMDB with NOSYNC: a loss of power may leave nothing that can be read, unless the file system keeps the \
                 order of writes",
            ),
        };

        Guarantee { durability, survives_kill: true, power_loss, text: text.into() }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("path", self.path.display().to_string()),
            (
                "growth",
                match self.inner.options.growth {
                    LmdbGrowth::None => "none".into(),
                    LmdbGrowth::Double => "double".into(),
                    LmdbGrowth::Step(bytes) => format!("step of {bytes} bytes"),
                },
            ),
            ("map_bytes_max", self.inner.options.map_bytes_max.to_string()),
            ("bytes_written", "not told by LMDB".into()),
        ];

        // A closed database has no settings of its environment.
        let _ = self.with_open("settings", |open| {
            settings.extend(settings_of(&open.environment));
            Ok(())
        });

        settings
    }

    fn counts(&self) -> Counts {
        self.inner.counts()
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.with_open("size", |_| Ok(()))?;

        let directory = self.inner.options.directory;
        let mut bytes = 0;
        for path in [data_path(&self.path, directory), lock_path(&self.path, directory)] {
            match std::fs::metadata(path) {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // A database that is open without locks has no file of locks.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(back_end_error("stat", error)),
            }
        }

        Ok(bytes)
    }

    /// Replaces the file by a packed copy without free pages. Waits for the writer and running
    /// calls; needs the file alone. If a step fails, the database goes on with the old file.
    ///
    /// Cost: reads what is in use, writes it once, one sync.
    ///
    /// # Errors
    /// [`Error::Busy`] while a snapshot of it lives or another process has it open;
    /// [`Error::StoreFull`]; those of the system.
    fn compact(&self) -> Result<()> {
        self.check_writes()?;
        let _turn = self.turn.take(NAME)?;
        self.inner.check_poison()?;
        self.with_open("compact", |_| Ok(()))?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State::Open(open) = &*state else { return Err(closed("compact")) };

        // The lock keeps another process from writing a copy of the same name. LMDB itself does not
        // lock this file.
        let data = data_path(&self.path, self.inner.options.directory);
        let file = File::open(&data).map_err(|error| back_end_error("compact", error))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| busy("another process compacts it"))?;

        // A live snapshot has the old file mapped and would keep it.
        let readers = self.inner.readers.count();
        if readers > 0 {
            return Err(busy(&format!("{readers} snapshots live")));
        }

        let copy = with_suffix(&data, "-compact");
        let replaced = copy_compact(&open.environment, &data, &copy).and_then(|heads| {
            let State::Open(Open { environment, tables }) =
                std::mem::replace(&mut *state, State::Lapsed)
            else {
                return Err(closed("compact"));
            };

            if let Err(environment) = environment.close() {
                *state = State::Open(Open { environment, tables });
                return Err(busy("somebody in this process still uses it"));
            }

            let locks = lock_path(&self.path, self.inner.options.directory);
            let replaced = replace(&data, &locks, &copy, &heads);
            // If it cannot be opened now, the next call tries to.
            *state = self.open_again()?;
            replaced
        });

        if replaced.is_err() {
            // Best effort: the next compaction removes a leftover copy.
            let _ = std::fs::remove_file(&copy);
        }

        replaced
    }

    /// Waits for the writer and running calls. Live snapshots go on, and the last one gives the
    /// files up.
    fn close(&self) -> Result<()> {
        let _turn = self.turn.take(NAME)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        Ok(())
    }
}

//! Opening of stores: an existing one, or a new one, which is removed again if the command fails.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane::io::files::create_parents;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::inspect::{self, Inspection, SessionInfo};
use terrane::lsm::{
    Durability, ReaderOptions, Session, SessionOptions, SnapshotName, Store, StoreOptions,
    StoreReader, TableName,
};
use terrane_replay::store;

use crate::stores::bucket;
use crate::stores::index_path::IndexPath;
use crate::ui::exit::Failure;

/// Opens an existing store.
///
/// # Errors
/// [`Failure`]; nothing has been made then.
pub(crate) fn open(dir: &Path) -> Result<Session, Failure> {
    if content_of(dir)? != DirContent::Store {
        return Err(no_store(dir));
    }
    Ok(store::open(&disk(), dir)?)
}

/// Opens a store with a memory budget for `work`, or creates it in a missing or empty directory. If
/// `work` fails, removes a store that was created for it.
///
/// # Errors
/// [`Failure`], those of the work included.
pub(crate) fn open_or_make<T>(
    dir: &Path,
    memory_budget: Option<u64>,
    work: impl FnOnce(&Session) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let there = if dir.exists() { content_of(dir)? } else { DirContent::Nothing };
    if there == DirContent::Other {
        return Err(no_store(dir));
    }

    // Remembered before anything is created: exactly these directories are removed on failure.
    let missing: Vec<PathBuf> = dir
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .map(Path::to_owned)
        .collect();

    let opened = store::open_within(&disk(), dir, memory_budget);
    let done = opened.map_err(Failure::from).and_then(|session| {
        let done = work(&session);
        // Closed on failure too, which releases the lock before the store is removed.
        let closed = session.close();
        done.and_then(|done| closed.map(|()| done).map_err(Failure::from))
    });

    if done.is_err() && there == DirContent::Nothing {
        // The first failure is reported; if the removal fails too, an empty store is left.
        let _ = remove(dir, &missing);
    }

    done
}

/// Maximum bytes of the log. A command makes one commit and closes the store, so a short log
/// suffices.
const LOG_BYTES: u64 = 4 << 20;

/// Opens a store for its named tables; each commit is durable when the call returns. Creates the
/// store in a missing or empty directory if `made`.
///
/// # Errors
/// [`Failure`]; nothing has been made then, but perhaps an empty store.
pub(crate) fn open_tables(dir: &Path, made: bool) -> Result<Store, Failure> {
    open_tables_with(dir, made, Opening::default())
}

/// Options of the opening of a store.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opening {
    /// Another reserve of disk space.
    pub(crate) reserve_bytes: Option<u64>,
    /// Memory budget of the whole store.
    pub(crate) memory_budget: Option<u64>,
}

/// Opens a store as [`open_tables`] does, with options.
///
/// # Errors
/// Those of [`open_tables`].
pub(crate) fn open_tables_with(dir: &Path, made: bool, opening: Opening) -> Result<Store, Failure> {
    let there = if made && !dir.exists() { DirContent::Nothing } else { content_of(dir)? };
    if there == DirContent::Other || (there == DirContent::Nothing && !made) {
        return Err(no_store(dir));
    }

    if there == DirContent::Nothing {
        create_parents(disk().as_ref(), dir).map_err(terrane::lsm::Error::from)?;
    }

    let mut session = SessionOptions::default().create_dir();
    session.reserve_bytes = opening.reserve_bytes;
    session.memory_budget = opening.memory_budget;
    let options = StoreOptions::default().session(session).durability(Durability::Each);

    Ok(Store::open(disk(), dir, &options.log_bytes_max(LOG_BYTES))?)
}

/// Refuses a table that a store does not have, before the store is opened for writing: a refused
/// command changes nothing on disk.
///
/// # Errors
/// [`Failure`].
pub(crate) fn check_table(dir: &Path, name: &TableName) -> Result<(), Failure> {
    // Opening the directory reports any other fault.
    if content_of(dir)? != DirContent::Store {
        return Ok(());
    }
    if terrane::lsm::inspect::table_names(disk().as_ref(), dir)?.contains(name) {
        return Ok(());
    }
    Err(terrane::lsm::Error::TableDoesNotExist { name: name.to_string() }.into())
}

/// Refuses the name of a table that a store has, before the store is opened for writing.
///
/// # Errors
/// [`Failure`].
pub(crate) fn check_table_is_new(dir: &Path, name: &TableName) -> Result<(), Failure> {
    // Opening the directory reports any other fault, and creates a missing store.
    if !dir.exists() || content_of(dir)? != DirContent::Store {
        return Ok(());
    }
    if terrane::lsm::inspect::table_names(disk().as_ref(), dir)?.contains(name) {
        return Err(terrane::lsm::Error::TableExists { name: name.to_string() }.into());
    }
    Ok(())
}

/// Returns whether a store has a snapshot of this name. Returns `None` if that cannot be read;
/// opening the store then reports the reason. A command that must be refused learns it here, before
/// it opens the store for writing.
pub(crate) fn has_snapshot(dir: &Path, name: &SnapshotName) -> Option<bool> {
    open_to_read(dir).ok()?.session().snapshot_exists(name).ok()
}

/// Refuses a snapshot that a store does not have, before the store is opened for writing.
///
/// # Errors
/// [`Failure`].
pub(crate) fn check_snapshot(dir: &Path, name: &SnapshotName) -> Result<(), Failure> {
    match has_snapshot(dir, name) {
        Some(false) => {
            Err(terrane::lsm::Error::SnapshotDoesNotExist { name: name.to_string() }.into())
        }
        _ => Ok(()),
    }
}

/// Refuses the name of an existing snapshot, before the store is opened for writing.
///
/// # Errors
/// [`Failure`].
pub(crate) fn check_snapshot_is_new(dir: &Path, name: &SnapshotName) -> Result<(), Failure> {
    match has_snapshot(dir, name) {
        Some(true) => Err(terrane::lsm::Error::SnapshotExists { name: name.to_string() }.into()),
        _ => Ok(()),
    }
}

/// Inspects the store in a directory, without opening it.
///
/// # Errors
/// [`Failure`] if there is no store.
pub(crate) fn inspect_store(store: &Path) -> Result<SessionInfo, Failure> {
    if !store.is_dir() {
        let what = if store.exists() { "is not a directory" } else { "does not exist" };
        return Err(Failure::usage(format!("{} {what}", store.display())));
    }

    let disk: Arc<dyn Disk> = RealDisk::auto();
    match inspect::inspect(&disk, store)? {
        Inspection::Session(info) => Ok(info),
        _ => Err(Failure::usage(format!("{} is not a store", store.display()))),
    }
}

/// Opens a store for reading; another process may have it open.
///
/// # Errors
/// [`Failure`].
pub(crate) fn open_to_read(dir: &Path) -> Result<StoreReader, Failure> {
    open_to_read_within(dir, None)
}

/// Opens a store for reading, with a memory budget: in a directory, or at the address of a bucket.
///
/// # Errors
/// [`Failure`].
pub(crate) fn open_to_read_within(
    dir: &Path,
    memory_budget: Option<u64>,
) -> Result<StoreReader, Failure> {
    if let Some(address) = bucket::address(dir) {
        return bucket::open_reader(address, memory_budget);
    }
    if content_of(dir)? != DirContent::Store {
        return Err(no_store(dir));
    }
    let options = ReaderOptions::default().memory_budget(memory_budget);
    Ok(StoreReader::open(disk(), dir, &options)?)
}

/// Returns whether two paths lead to the same directory.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Returns whether `inner`, which may not exist yet, is `outer` or a directory below it.
pub(crate) fn is_within(inner: &Path, outer: &Path) -> bool {
    let Ok(outer) = outer.canonicalize() else { return false };
    let inner = std::path::absolute(inner).unwrap_or_else(|_| inner.to_owned());
    let there = inner.ancestors().find_map(|part| part.canonicalize().ok());
    there.is_some_and(|there| there.starts_with(outer))
}

/// Content of a directory.
#[derive(PartialEq, Eq)]
enum DirContent {
    Nothing,
    Store,
    Other,
}

fn disk() -> Arc<dyn Disk> {
    RealDisk::auto()
}

fn no_store(dir: &Path) -> Failure {
    let dir_shown = dir.display();
    Failure::usage(match IndexPath::of(&disk(), dir) {
        Ok(Some(_)) => format!("{dir_shown} is a B+tree; this command is for stores"),
        _ if terrane::context::is_store(disk().as_ref(), dir).is_ok_and(|is_one| is_one) => {
            format!("{dir_shown} is a context store; `terrane context` looks into it")
        }
        _ => format!("{dir_shown} is not a Terrane store"),
    })
}

fn content_of(dir: &Path) -> Result<DirContent, Failure> {
    let shown = dir.display();
    let mut entries = fs::read_dir(dir).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::usage(format!("{shown} does not exist")),
        ErrorKind::NotADirectory => Failure::usage(format!("{shown} is not a directory")),
        _ => Failure::of_file(dir, &error),
    })?;
    if store::is_store_like(disk().as_ref(), dir).map_err(terrane::lsm::Error::from)? {
        return Ok(DirContent::Store);
    }
    Ok(if entries.next().is_none() { DirContent::Nothing } else { DirContent::Other })
}

/// Removes a store without snapshots, and the directories in `made`.
fn remove(dir: &Path, made: &[PathBuf]) -> std::io::Result<()> {
    if dir.exists() {
        let disk = disk();

        // With the lock held, no other process has the store open or can open it.
        let _lock = disk.lock(&dir.join("lock")).map_err(std::io::Error::other)?;
        if let Ok(mut snapshots) = fs::read_dir(dir.join("snapshots"))
            && snapshots.next().is_some()
        {
            return Ok(());
        }

        // From here on, an interruption leaves a store whose creation has not been finished.
        if dir.join("metadata").exists() {
            fs::rename(dir.join("metadata"), dir.join("metadata.tmp"))?;
        }

        for part in ["active", "snapshots"].map(|part| dir.join(part)) {
            if part.exists() {
                fs::remove_dir_all(part)?;
            }
        }

        for part in ["metadata.tmp", "lock"].map(|part| dir.join(part)) {
            if part.exists() {
                fs::remove_file(part)?;
            }
        }
    }

    made.iter().filter(|dir| dir.exists()).try_for_each(fs::remove_dir)
}

/// Removes everything in a directory, and leaves the directory.
pub(crate) fn remove_content(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

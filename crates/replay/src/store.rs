//! Opening of LSM stores by directory: missing parents are created, and a foreign directory is told
//! apart from a damaged store.

use std::path::Path;
use std::sync::Arc;

use terrane::io::EntryKind;
use terrane::io::files::create_dirs;
use terrane::io::{self, Disk};
use terrane::lsm::{Error, Result, Session, SessionOptions};

/// Parts of a store; a directory with any of them counts as a store.
const PARTS: [&str; 3] = ["metadata", "active", "snapshots"];

/// Whether a directory has a part of a store, damaged or not.
///
/// # Errors
/// Those of the disk.
pub fn is_store_like(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    for part in PARTS {
        if disk.kind(&dir.join(part))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the store in `dir`, or creates the store and its missing parent directories, durably.
///
/// # Errors
/// [`Error::NotTerrane`] if `dir` is something else, which is left as it is; those of
/// [`Session::open`].
pub fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Session> {
    open_within(disk, dir, None)
}

/// Opens or creates like [`open`], with a
/// [memory budget](SessionOptions::memory_budget).
///
/// # Errors
/// Those of [`open`].
pub fn open_within(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    memory_budget: Option<u64>,
) -> Result<Session> {
    let foreign = |found| {
        Err(Error::NotTerrane { path: dir.to_owned(), expected: "the directory of a store", found })
    };

    if disk.kind(dir)?.is_some_and(|kind| kind != EntryKind::Directory) {
        return foreign("something that is not a directory".to_owned());
    }

    if let Some(parent) = dir.parent() {
        create_dirs(disk.as_ref(), parent)?;
    }

    let mut options = SessionOptions::default().create_dir();
    options.memory_budget = memory_budget;

    // A directory without any part of a store is foreign, however the session words it.
    match Session::open(disk.clone(), dir, &options) {
        Err(Error::SessionDirCorrupted { reason, .. }) if !is_store_like(disk.as_ref(), dir)? => {
            foreign(reason)
        }
        opened => opened,
    }
}

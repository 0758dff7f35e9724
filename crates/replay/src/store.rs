//! Stores as programs open them: the way to one is made, and what is no store is told from a
//! damaged one.

use std::path::Path;
use std::sync::Arc;

use terrane::io::EntryKind;
use terrane::io::files::create_dirs;
use terrane::io::{self, Disk};
use terrane::lsm::{Error, Result, Session, SessionOptions};

/// Parts of a store, of which one suffices for it to be taken for one.
const PARTS: [&str; 3] = ["metadata", "active", "snapshots"];

/// Whether a directory has a part of a store, be it a damaged one.
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

/// Opens the store in `dir`; a missing one is made, and so is the way to it, durably.
///
/// # Errors
/// [`Error::NotTerrane`] if something else is there, which is left as it is; those of
/// [`Session::open`].
pub fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Session> {
    let foreign = |found| {
        Err(Error::NotTerrane { path: dir.to_owned(), expected: "the directory of a store", found })
    };
    if disk.kind(dir)?.is_some_and(|kind| kind != EntryKind::Directory) {
        return foreign("what is no directory".to_owned());
    }
    if let Some(parent) = dir.parent() {
        create_dirs(disk.as_ref(), parent)?;
    }

    match Session::open(disk.clone(), dir, &SessionOptions::default().create_dir()) {
        Err(Error::SessionDirCorrupted { reason, .. }) if !is_store_like(disk.as_ref(), dir)? => {
            foreign(reason)
        }
        opened => opened,
    }
}

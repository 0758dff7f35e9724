//! The directory of an index: its files, and what a missing tree file means.
//!
//! A creation writes `tree.tmp` before the first segment of the WAL, and renames it to `tree` last.
//! A WAL with neither file beside it has therefore lost its tree file, and is not the beginning of
//! an index.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, Anchor, Disk, DiskFile, EntryKind, OpenMode};

use crate::index::lease::READERS_DIR;
use crate::log::wal::{self, LOG_DIR};
use crate::page::error::{Error, Result};
use crate::page::page::PAGE_SIZE;
use crate::pager::superblock::{Owner, Superblock};

/// Name of the file of pages.
pub(crate) const TREE_FILE: &str = "tree";

/// Name of the tree file while the index is being created.
pub(crate) const TREE_TEMPORARY: &str = "tree.tmp";

/// Name of the file whose lock the writer holds.
pub(crate) const LOCK_FILE: &str = "lock";

/// Returns the absolute path of a directory, and an anchor: from then on no call below it follows a
/// link.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Disk`].
pub(crate) fn enter(disk: &dyn Disk, dir: &Path) -> Result<(PathBuf, Box<dyn Anchor>)> {
    let dir = disk.absolute(dir)?;
    match disk.anchor(&dir) {
        Ok(anchor) => Ok((dir, anchor)),
        Err(error) if error.is_not_found() => Err(Error::NotFound { path: dir }),
        Err(error) => Err(error.into()),
    }
}

/// Returns the path of the tree file of an index.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::TreeMissing`] if the WAL of an index or the lease of a reader is
/// present.
pub(crate) fn existing_tree(disk: &dyn Disk, dir: &Path) -> Result<PathBuf> {
    let path = dir.join(TREE_FILE);
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }

    let Some(trace) = trace_of_index(disk, dir)? else {
        return Err(Error::NotFound { path: dir.to_owned() });
    };

    // A creation may have ended since the first look.
    if disk.kind(&path)?.is_some() {
        return Ok(path);
    }

    Err(Error::TreeMissing { path: dir.to_owned(), trace })
}

/// A file that only an index leaves behind, if the tree file is missing.
fn trace_of_index(disk: &dyn Disk, dir: &Path) -> Result<Option<PathBuf>> {
    if disk.kind(&dir.join(LOG_DIR))? != Some(EntryKind::Directory) {
        return Ok(None);
    }
    let lost = wal::find_lost_tree(disk, dir)?;
    Ok(lost.filter(|_| !is_unfinished(disk, dir)).map(|_| dir.join(LOG_DIR)))
}

/// Whether a creation was interrupted: it begins with a temporary tree file and an empty WAL.
fn is_unfinished(disk: &dyn Disk, dir: &Path) -> bool {
    // A creation leaves no lease and no frame behind.
    let has_temporary = disk.kind(&dir.join(TREE_TEMPORARY)).is_ok_and(|kind| kind.is_some());
    let has_readers = disk.list(&dir.join(READERS_DIR)).is_ok_and(|names| !names.is_empty());
    has_temporary && !has_readers && wal::is_unused(disk, dir)
}

/// Refuses a directory in which something else has the place of the WAL or of the readers.
pub(super) fn check_vacant(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if is_unfinished(disk, dir) {
        return Ok(());
    }

    if let Some(trace) = trace_of_index(disk, dir)? {
        return Err(Error::TreeMissing { path: dir.to_owned(), trace });
    }

    for name in [LOG_DIR, READERS_DIR] {
        let path = dir.join(name);
        match disk.kind(&path)? {
            None => {}
            Some(EntryKind::Directory) if disk.list(&path)?.is_empty() => {}
            Some(_) => return Err(Error::DirectoryInUse { path: dir.to_owned(), found: path }),
        }
    }

    Ok(())
}

/// Writes and syncs the tree file of an empty index; its name is not durable yet.
pub(crate) fn write_first_superblock(
    disk: &dyn Disk,
    path: &Path,
    owner: Owner,
) -> Result<Arc<dyn DiskFile>> {
    let superblock = Superblock::first(owner);
    // An interrupted creation may have left one.
    if disk.kind(path)?.is_some() {
        disk.remove(path)?;
    }

    let file = disk.open(path, OpenMode::CreateNew, Access::Buffered)?;

    // The first superblock of a tree is the second page; the page before it stays zero.
    let mut bytes = vec![0; PAGE_SIZE];
    bytes.extend(superblock.encode());
    file.write_at(&bytes, 0)?;
    file.sync()?;
    Ok(file)
}

/// A number for a new tree, from the clock and the path, that no other tree has.
pub(super) fn creation_number(disk: &dyn Disk, dir: &Path) -> u64 {
    let mut seed = terrane_io::bytes::Writer::new();
    seed.u64(disk.clock().wall().as_nanos() as u64).put(dir.as_os_str().as_encoded_bytes());
    let low = terrane_io::checksum::crc32c(seed.bytes());
    let high = terrane_io::checksum::crc32c(seed.u8(1).bytes());
    u64::from(high) << 32 | u64::from(low)
}

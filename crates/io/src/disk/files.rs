//! Whole small files and directories on any [`Disk`]: reading, atomic replacement, durable
//! creation, sizes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::disk::{Access, Disk, DiskFile, EntryKind, OpenMode};
use crate::error::{Error, Result};

/// Reads a whole file into memory; for small files.
///
/// # Errors
/// Those of [`Disk::open`] and [`DiskFile::read_at`]; a file above `limit` bytes is a
/// [`ShortRead`](crate::Error::ShortRead)-free `Io` error of kind `FileTooLarge`.
pub fn read_file(disk: &dyn Disk, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
    let len = file.len()?;
    // The limit bounds the memory that a foreign file can take.
    if len > limit {
        let kind = std::io::Error::from(std::io::ErrorKind::FileTooLarge);
        return Err(Error::io("read", path, kind));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("below the limit")];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Opens a new, empty file in the place of an old one, if there is one. Removes the old file
/// instead of emptying it: its other names keep their bytes.
///
/// # Errors
/// Those of [`Disk::open`] and [`Disk::remove`].
pub fn create_afresh(
    disk: &dyn Disk,
    path: &Path,
    mode: OpenMode,
    access: Access,
) -> Result<Arc<dyn DiskFile>> {
    debug_assert!(matches!(mode, OpenMode::CreateNew | OpenMode::CreatePrivate));
    // An interrupted writer may have left the file.
    match disk.open(path, mode, access) {
        Err(error) if error.is_already_exists() => {
            disk.remove(path)?;
            disk.open(path, mode, access)
        }
        opened => opened,
    }
}

/// Replaces a small file atomically and durably: writes `<name>.tmp`, syncs it, renames it over
/// `path`, syncs the directory. After a crash the file has either its old or its new content.
///
/// # Errors
/// [`Io`](crate::Error::Io). The temporary file may stay behind.
pub fn replace_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    replace_file_as(disk, path, bytes, OpenMode::CreateNew)
}

/// Like [`replace_file`]; `mode` is [`CreateNew`](OpenMode::CreateNew) or
/// [`CreatePrivate`](OpenMode::CreatePrivate).
///
/// # Errors
/// Those of [`replace_file`].
pub fn replace_file_as(disk: &dyn Disk, path: &Path, bytes: &[u8], mode: OpenMode) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let file = create_afresh(disk, &temporary, mode, Access::Buffered)?;
    file.write_at(bytes, 0)?;
    // The bytes are durable before the name is.
    file.sync()?;
    drop(file);

    // The rename replaces the old file at once, so a crash leaves one of the two whole.
    disk.rename(&temporary, path)?;
    match path.parent() {
        Some(dir) => disk.sync_dir(dir),
        None => Ok(()),
    }
}

/// Creates a directory and its missing parents, each durably.
///
/// # Errors
/// [`Io`](crate::Error::Io). Directories created before stay.
pub fn create_dirs(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    // Missing parents are found from below and made from above.
    for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        if disk.kind(dir)?.is_some() {
            break;
        }
        missing.push(dir);
    }

    for dir in missing.into_iter().rev() {
        disk.create_dir(dir)?;
        // Each name is durable before anything is made below it.
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent)?;
        }
    }

    Ok(())
}

/// Creates the missing directories above a path, each durably, and not the path itself.
///
/// # Errors
/// The errors of [`create_dirs`].
pub fn create_parents(disk: &dyn Disk, path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |parent| create_dirs(disk, parent))
}

/// Bytes that all files below a directory take. A file removed meanwhile does not count.
///
/// Cost: lists each directory, and asks for each file.
///
/// # Errors
/// [`Io`](crate::Error::Io).
pub fn allocated_below(disk: &dyn Disk, dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in disk.list(dir)? {
        let path = dir.join(&entry.name);
        let taken = match entry.kind {
            EntryKind::Directory => allocated_below(disk, &path),
            EntryKind::File => disk.allocated_bytes(&path),
            // Neither takes room of its own, and what a link leads to is not below.
            EntryKind::Link | EntryKind::Other => Ok(0),
        };
        // A file may go while the directory is read.
        bytes += match taken {
            Err(error) if error.is_not_found() => 0,
            taken => taken?,
        };
    }

    Ok(bytes)
}

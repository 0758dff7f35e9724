//! The directory `lost+found` of a session: keeps files that no snapshot and no table names, for a
//! while.
//!
//! A process that died leaves runs that no snapshot and no table refers to. So does a user who
//! loses the file of a snapshot, or a manifest, and puts it back later. Opening a session cannot
//! tell these apart, and removes neither: the files move here, and back to their place when a
//! snapshot or a table names them again.
//!
//! **How long.** The files that one opening has found stay until a later opening finds others, so
//! that a store whose process is killed again and again holds the remains of one crash. They also
//! go when the disk is full. Where there is no snapshot and no table at all, or one that cannot be
//! read, nothing goes.
//!
//! Invariant: a file has a durable name, here or in its old place, at every moment; no file here is
//! ever overwritten.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrane_io::rare;
use terrane_io::{self as io, Disk, EntryKind};

use crate::files::file_set::{blobs_number, file_number};

/// The directory, in that of the session.
pub(crate) const LOST_FOUND: &str = "lost+found";

/// Files of one name that can be here.
const SAME_NAME_MAX: u32 = 1000;

/// The number of the run that a file here belonged to, whatever was put behind its name.
pub(crate) fn run_number(name: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let base = match name.rsplit_once('.') {
        Some((base, count)) if digits(count) => base,
        _ => name,
    };
    file_number(base).or_else(|| blobs_number(base))
}

/// The names of the files here, sorted.
///
/// # Errors
/// Those of the disk.
pub(crate) fn names(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    let lost = dir.join(LOST_FOUND);
    if disk.kind(&lost)? != Some(EntryKind::Directory) {
        return Ok(Vec::new());
    }
    let files = disk.list(&lost)?.into_iter().filter(|entry| entry.kind == EntryKind::File);
    Ok(files.map(|entry| entry.name).collect())
}

/// Gives a file a second name, or, where the file system has none, another one. False if the name
/// is taken.
fn link(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<bool> {
    match disk.hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.system_kind() == Some(ErrorKind::AlreadyExists) => Ok(false),
        Err(error)
            if matches!(
                error.system_kind(),
                Some(
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::TooManyLinks
                )
            ) =>
        {
            // A rename would replace a file of that name.
            if disk.kind(to)?.is_some() {
                return Ok(false);
            }
            disk.rename(from, to).map(|()| true)
        }
        Err(error) => Err(error),
    }
}

/// Takes a name away that has been given up.
fn unlink(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Makes the directory, durably, unless it is there.
fn make(disk: &dyn Disk, dir: &Path) -> io::Result<PathBuf> {
    let lost = dir.join(LOST_FOUND);
    match disk.create_dir(&lost) {
        Err(error) if error.system_kind() == Some(ErrorKind::AlreadyExists) => {}
        made => {
            made?;
            disk.sync_dir(dir)?;
        }
    }
    Ok(lost)
}

/// Gives a file a second, durable name here; its old one stays. Does nothing on a file system
/// without second names.
///
/// # Errors
/// Those of the disk.
pub(crate) fn keep_copy(disk: &dyn Disk, dir: &Path, path: &Path) -> io::Result<()> {
    let lost = make(disk, dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for count in 0..=SAME_NAME_MAX {
        let to = match count {
            0 => lost.join(&*name),
            count => lost.join(format!("{name}.{count}")),
        };
        match disk.hard_link(path, &to) {
            Ok(()) => return disk.sync_dir(&lost),
            Err(error) if error.system_kind() == Some(ErrorKind::AlreadyExists) => {}
            // A copy is welcome, but nothing depends on it.
            Err(_) => return Ok(()),
        }
    }

    Ok(())
}

/// Moves files of one directory of the session here, durably.
///
/// # Errors
/// Those of the disk. Each file is here or in its old place then, or in both.
pub(crate) fn keep(disk: &dyn Disk, dir: &Path, from: &Path, names: &[String]) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }

    rare::taken("files move to lost+found");
    let lost = make(disk, dir)?;
    for name in names {
        let source = from.join(name);
        let mut is_linked = link(disk, &source, &lost.join(name))?;
        for count in 1..=SAME_NAME_MAX {
            if is_linked {
                break;
            }
            is_linked = link(disk, &source, &lost.join(format!("{name}.{count}")))?;
        }

        if !is_linked {
            let taken = std::io::Error::from(ErrorKind::AlreadyExists);
            return Err(io::Error::io("link", &lost.join(name), taken));
        }
    }

    // The new names are durable before the old ones go.
    disk.sync_dir(&lost)?;
    for name in names {
        unlink(disk, &from.join(name))?;
    }

    disk.sync_dir(from)
}

/// Moves files from here back to a directory of the session where they have no namesake, durably.
///
/// # Errors
/// Those of the disk. Each file is here or in its place then, or in both.
pub(crate) fn take_back(
    disk: &dyn Disk,
    dir: &Path,
    to: &Path,
    names: &[String],
) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    rare::taken("files come back from lost+found");
    let lost = dir.join(LOST_FOUND);
    for name in names {
        link(disk, &lost.join(name), &to.join(name))?;
    }
    // The files are durable in their place before their names here go.
    disk.sync_dir(to)?;
    names.iter().try_for_each(|name| unlink(disk, &lost.join(name)))
}

/// The paths of files of runs here, to be removed.
pub(crate) fn runs_in<'a>(
    dir: &'a Path,
    names: &'a [String],
) -> impl Iterator<Item = PathBuf> + 'a {
    let runs = names.iter().filter(|name| run_number(name).is_some());
    runs.map(move |name| dir.join(LOST_FOUND).join(name))
}

#[cfg(test)]
mod tests {
    use terrane_io::{Access, OpenMode, SimDisk, Survival};

    use terrane_testkit::sweep::Sweep;

    use super::*;

    #[test]
    fn the_number_of_a_run_is_found_behind_a_count_too() {
        let found = ["00000007.run", "00000008.blobs", "00000009.run.12", "x.run", "7.run", "a.1"];
        let found = found.map(run_number);
        assert_eq!(found, [Some(7), Some(8), Some(9), None, None, None]);
    }

    /// Whatever a crash leaves, no file is gone, and none has taken the place of another.
    #[test]
    fn a_crash_at_any_call_loses_no_file_on_its_way_here_or_back() {
        let dir = Path::new("/s");
        let active = Path::new("/s/active");
        let name = "00000001.run".to_owned();

        let write = |disk: &SimDisk, path: &Path, bytes: &[u8]| -> io::Result<()> {
            let file = disk.open(path, OpenMode::CreateNew, Access::Buffered)?;
            file.write_at(bytes, 0)?;
            file.sync()
        };

        let script = |disk: &SimDisk| -> io::Result<()> {
            keep(disk, dir, active, std::slice::from_ref(&name))?;
            write(disk, &active.join(&name), b"second")?;
            disk.sync_dir(active)?;
            keep(disk, dir, active, std::slice::from_ref(&name))?;
            take_back(disk, dir, active, std::slice::from_ref(&name))
        };

        let fresh = || {
            let disk = SimDisk::new(1);
            disk.create_dir(dir).unwrap();
            disk.create_dir(active).unwrap();
            write(&disk, &active.join(&name), b"first").unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            disk.sync_dir(dir).unwrap();
            disk.sync_dir(active).unwrap();
            disk
        };

        let disk = fresh();
        script(&disk).unwrap();
        assert_eq!(names(disk.as_ref(), dir).unwrap(), ["00000001.run.1"]);
        assert_eq!(disk.read_raw(active.join(&name)).unwrap(), b"first");

        Sweep::whole(1).on(&fresh()).crash(
            |disk| assert_eq!(script(disk).is_err(), disk.has_crashed()),
            |crash| {
                crash.power_losses((0..8).map(Survival::Torn), |image| {
                    let disk = &image.disk;
                    let contents: Vec<_> =
                        disk.files().iter().map(|path| disk.read_raw(path).unwrap()).collect();
                    assert!(contents.contains(&b"first".to_vec()));
                })
            },
        );
    }
}

//! The reserve of a session: disk space that the session frees when the disk is full.
//!
//! A session that has a reserve keeps a file, `reserve`, whose bytes are allocated and hold
//! nothing. When a write fails because the disk is full, the file is cut to its header, the write
//! is made once more, and the session is *full*: deletions, merges, checkpoints and whatever else
//! makes room in the end go on with what was freed; insertions and upserts are refused, until the
//! whole of the reserve can be allocated again. The first of them after room was made does that;
//! nothing needs to be reopened.
//!
//! Its wanted size stands in its header, so every opening of the session keeps the reserve. Of the
//! bytes behind the header any state is as good as another: if they are not there when the session
//! is opened, they were in use when the process ended, and are allocated, or the session begins
//! full. A file whose header is not whole is one whose making was cut short, and counts as none.
//!
//! Invariant: callers of [`Reserve::release`] and [`Reserve::take_back`] hold
//! [`Reserve::changing`]. The write that needs the space holds it too, so that no insertion takes
//! the space first.

use std::path::{Path, PathBuf};

use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Mutex, MutexGuard, PoisonError};
use terrane_io::{self as io, Access, Disk, DiskFile, OpenMode};

use crate::error::{Error, Result};
use crate::trace::event;

/// The file, in the directory of the session.
pub(crate) const RESERVE: &str = "reserve";

/// First bytes of the file.
pub(crate) const RESERVE_MAGIC: [u8; 8] = *b"TerraRes";

/// Version of the file.
pub(crate) const RESERVE_VERSION: u32 = 1;

/// Bytes before those that hold nothing.
pub(crate) const RESERVE_HEADER_SIZE: u64 = 24;

/// Smallest [`SessionOptions::reserve_bytes`](crate::SessionOptions::reserve_bytes) but for 0.
pub const RESERVE_BYTES_MIN: u64 = 64 << 10;

/// Largest [`SessionOptions::reserve_bytes`](crate::SessionOptions::reserve_bytes).
pub const RESERVE_BYTES_MAX: u64 = 1 << 40;

/// Reserve of a new store that was told nothing: room for a few segments of the log and manifests.
const RESERVE_BYTES_DEFAULT: u64 = 1 << 20;

/// But no more than such a part of the room that is free.
const RESERVE_SHARE: u64 = 16;

/// Which reserve a session is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedReserve {
    /// The one that it has.
    AsItIs,
    /// This many bytes; 0 for none.
    Bytes(u64),
    /// The one that it has; a new session gets [`RESERVE_BYTES_DEFAULT`], if there is room.
    DefaultIfNew,
}

impl WantedReserve {
    /// The bytes of another reserve than the session in `dir` has, if it is to have another.
    pub(crate) fn bytes(self, disk: &dyn Disk, dir: &Path, is_new: bool) -> Result<Option<u64>> {
        match self {
            Self::Bytes(bytes) => Ok(Some(bytes)),
            Self::DefaultIfNew if is_new => {
                let share = disk.free_bytes(dir)? / RESERVE_SHARE;
                let bytes = share.min(RESERVE_BYTES_DEFAULT);
                Ok((bytes >= RESERVE_BYTES_MIN).then_some(bytes))
            }
            Self::AsItIs | Self::DefaultIfNew => Ok(None),
        }
    }
}

/// The reserve of an open session, or that it has none.
#[derive(Debug)]
pub(crate) struct Reserve {
    path: PathBuf,
    /// 0 for none.
    bytes: u64,
    /// Whether it was let go, or was not to be had.
    is_full: AtomicBool,
    changing: Mutex<()>,
}

fn encode(bytes: u64) -> Vec<u8> {
    let mut out = Writer::new();
    out.put(&RESERVE_MAGIC).u32(RESERVE_VERSION).u64(bytes);
    let crc = crc32c(out.bytes());
    out.u32(crc);
    debug_assert_eq!(out.bytes().len() as u64, RESERVE_HEADER_SIZE);
    out.into_bytes()
}

/// The version, and how many bytes the file is to have; `None` if the header is not whole.
fn decode(header: &[u8]) -> Option<(u32, u64)> {
    let mut input = Reader::new(header);
    let content = input.clone().take(20).ok()?;
    let is_ours = input.take(8).ok()? == RESERVE_MAGIC;
    let version = input.u32().ok()?;
    let bytes = input.u64().ok()?;
    let is_whole = input.u32().ok()? == crc32c(content);
    (is_ours && is_whole).then_some((version, bytes))
}

/// How many bytes a file of a reserve is to have; `None` if the header is not whole.
///
/// # Errors
/// [`Error::UnknownVersion`], [`Error::Disk`].
pub(crate) fn read_header(file: &dyn DiskFile) -> Result<Option<u64>> {
    if file.len()? < RESERVE_HEADER_SIZE {
        return Ok(None);
    }

    let mut header = [0; RESERVE_HEADER_SIZE as usize];
    file.read_at(&mut header, 0)?;
    match decode(&header) {
        Some((RESERVE_VERSION, bytes)) => {
            Ok((RESERVE_BYTES_MIN..=RESERVE_BYTES_MAX).contains(&bytes).then_some(bytes))
        }
        Some((found, _)) => {
            let path = file.path().to_owned();
            let newest = RESERVE_VERSION;
            Err(Error::UnknownVersion { path, found, newest })
        }
        None => Ok(None),
    }
}

/// Reads the size of the reserve in the file at a path; `None` also if there is no file.
fn read_if_there(disk: &dyn Disk, path: &Path) -> Result<Option<u64>> {
    match disk.open(path, OpenMode::Read, Access::Buffered) {
        Err(error) if error.is_not_found() => Ok(None),
        opened => read_header(opened?.as_ref()),
    }
}

/// Whether the device or the system does not give the file. A link or a device in its place is
/// something else.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::Disk(io::Error::WrongKind { .. }) => false,
        Error::Disk(error) => error.is_unreadable(),
        _ => false,
    }
}

/// Whether this user may not read the file: its bytes are there all the same.
pub(crate) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Disk(error) if error.is_permission())
}

/// Refuses a reserve that the disk has no room for, before anything is changed. `dir` may be
/// missing.
///
/// # Errors
/// [`Error::ReserveTooLarge`], [`Error::UnknownVersion`], [`Error::Disk`].
pub(crate) fn check_room_for(disk: &dyn Disk, dir: &Path, wanted: Option<u64>) -> Result<()> {
    let Some(bytes) = wanted.filter(|&bytes| bytes > 0) else { return Ok(()) };
    let is_there = disk.kind(dir)?.is_some();
    let place = if is_there { Some(dir) } else { dir.parent() };
    let Some(place) = place else { return Ok(()) };

    if disk.kind(place)?.is_none() {
        // The error that follows says that the parent is missing.
        return Ok(());
    }

    let path = dir.join(RESERVE);
    let held = match disk.open(&path, OpenMode::Read, Access::Buffered) {
        Err(error) if error.is_not_found() => 0,
        opened => {
            let opened = opened.map_err(Error::from);
            match opened.and_then(|file| Ok((read_header(file.as_ref())?, file.len()?))) {
                // No larger than the one that it has, which may be given up at the moment.
                Ok((Some(kept), _)) if kept >= bytes => return Ok(()),
                // It will be made anew.
                Err(error) if is_unreadable(&error) => 0,
                read => read?.1,
            }
        }
    };

    // The room of the old reserve becomes free for the new one.
    let free = disk.free_bytes(place)?.saturating_add(held);
    if free < bytes {
        return Err(Error::ReserveTooLarge { path: dir.to_owned(), bytes, free });
    }

    Ok(())
}

impl Reserve {
    /// No reserve.
    pub(crate) fn none() -> Self {
        let path = PathBuf::new();
        let is_full = AtomicBool::new(false);
        let changing = Mutex::default();
        Self { path, bytes: 0, is_full, changing }
    }

    /// The reserve of the session in `dir`: as it was told to be, or as `wanted`, where 0 means
    /// none any more. A file that the medium does not give is made anew; one that this user may not
    /// read is left alone, and the session has none, unless `wanted` says how large another is to
    /// be.
    ///
    /// # Errors
    /// [`Error::UnknownVersion`], [`Error::Disk`]; but if the disk is full, so is the session.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, wanted: Option<u64>) -> Result<Self> {
        let path = dir.join(RESERVE);
        let mut is_there = disk.kind(&path)?.is_some();
        let stored = match read_if_there(disk, &path) {
            Err(error) if is_unreadable(&error) => {
                // It holds nothing but room, so another is as good.
                event!(WARN, "reserve.unreadable", dir, %error);
                if wanted.is_none() && is_denied(&error) {
                    // How large it is to be stands in it alone, and may be read again.
                    return Ok(Self::none());
                }
                disk.remove(&path)?;
                disk.sync_dir(dir)?;
                is_there = false;
                WantedReserve::DefaultIfNew.bytes(disk, dir, true)?
            }
            stored => stored?,
        };

        // A size given now counts more than the stored one.
        let bytes = wanted.or(stored).unwrap_or(0);
        if bytes == 0 {
            if wanted.is_some() && is_there {
                disk.remove(&path)?;
                disk.sync_dir(dir)?;
            }
            return Ok(Self::none());
        }

        let reserve = Self { path, bytes, ..Self::none() };
        match reserve.hold(disk) {
            Err(error) if error.is_no_space() => {
                event!(WARN, "reserve.missing", dir, bytes, %error);
                reserve.is_full.store(true, Ordering::Relaxed);
            }
            held => held?,
        }

        Ok(reserve)
    }

    /// Its bytes, 0 for none.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The directory of the session.
    pub(crate) fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Whether it was let go.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// The turn of who changes the file.
    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the file what it is to be.
    fn hold(&self, disk: &dyn Disk) -> io::Result<()> {
        let open = |mode| disk.open(&self.path, mode, Access::Buffered);
        let (file, is_new) = match open(OpenMode::ReadWrite) {
            // The file may be missing because a user has removed it to make room.
            Err(error) if error.is_not_found() => (open(OpenMode::CreateNew)?, true),
            opened => (opened?, false),
        };

        let header = encode(self.bytes);
        let mut found = vec![0; header.len()];
        if file.len()? >= RESERVE_HEADER_SIZE {
            file.read_at(&mut found, 0)?;
        }

        // Another size or a torn header: from here on the file is as good as new.
        if found != header {
            file.set_len(0)?;
            file.write_at(&header, 0)?;
            file.sync().or_else(|error| {
                // Otherwise it would look durable to the next attempt.
                file.set_len(0)?;
                Err(error)
            })?;
        }

        // Without a durable name the next opening would find no reserve.
        if is_new {
            disk.sync_dir(self.dir())?;
        }

        file.allocate(self.bytes).and_then(|()| file.set_len(self.bytes)).or_else(|error| {
            // A part may have been allocated, which others need.
            file.set_len(RESERVE_HEADER_SIZE)?;
            Err(error)
        })
    }

    /// Releases the space for the call that needs it.
    ///
    /// # Errors
    /// Those of the disk; the room may be there or not.
    pub(crate) fn release(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.open(&self.path, OpenMode::ReadWrite, Access::Buffered) {
            // A user has removed the file by hand.
            Err(error) if error.is_not_found() => {}
            opened => {
                let file = opened?;
                file.set_len(RESERVE_HEADER_SIZE)?;
                // Some file systems give blocks away only when it is durable that they are free.
                file.sync()?;
            }
        }

        event!(WARN, "reserve.let_go", self.dir(), bytes = self.bytes);
        self.is_full.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the room back, if there is enough of it. Says whether it is held now.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn take_back(&self, disk: &dyn Disk) -> io::Result<bool> {
        if !self.is_full() {
            return Ok(true);
        }

        // Allocating what is not there would take from others, for a moment, what there is.
        if disk.free_bytes(self.dir())? < self.bytes {
            return Ok(false);
        }

        match self.hold(disk) {
            Err(error) if error.is_no_space() => Ok(false),
            held => {
                held?;
                rare::taken("a table store takes its reserve back");
                event!(WARN, "reserve.taken_back", self.dir(), bytes = self.bytes);
                self.is_full.store(false, Ordering::Relaxed);
                Ok(true)
            }
        }
    }
}

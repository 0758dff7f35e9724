//! Cursors of change feeds: up to which commit a consumer has taken what the store tells, durably
//! and by name, so that the writer keeps the WAL behind it.
//!
//! A cursor is a small file, `feeds/<name>.cursor`. It belongs to nobody's process: the consumer
//! may be the writer of the store, a reader in another process, or not running. Whoever moves a
//! cursor holds its lock. Moving writes one of two slots in turn and syncs; a slot is a sector of
//! its own, so a torn write leaves the place before.
//!
//! **No waiting.** As with [leases](crate::manifest::lease): a consumer writes its cursor and then
//! checks that the manifest still leads to what the cursor needs; a writer publishes a manifest and
//! then looks at the cursors. A cursor that holds more bytes of the WAL than its limit holds
//! nothing any more: the writer goes on, and the consumer finds a gap.
//!
//! Invariant: the number and the place in a whole slot belong together, and never go back.

#![doc = include_str!("../../../../docs/format/feed.md")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::files::replace_file;
use terrane_io::{Access, Disk, DiskFile, EntryKind, LockGuard, OpenMode};

use crate::error::{Error, Result};
use crate::manifest::manifest::COUNT_MAX;
use crate::manifest::snapshot_meta::is_name;
use crate::manifest::wal::{LOG, segment_name, segments};
use crate::trace::event;

/// The directory of the cursors.
pub(crate) const FEEDS: &str = "feeds";

/// Suffix of a cursor's file.
const SUFFIX: &str = ".cursor";

/// First bytes of a slot.
pub(crate) const CURSOR_MAGIC: [u8; 8] = *b"TerraCur";

/// Version of cursors.
pub(crate) const CURSOR_VERSION: u32 = 1;

/// Bytes of a slot: a sector of its own.
pub(crate) const CURSOR_SLOT_SIZE: u64 = 512;

/// Slots of a cursor.
const SLOTS: u64 = 2;

/// Place of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CursorPlace {
    /// Counts the moves.
    pub(crate) sequence: u64,
    /// The last commit that was taken.
    pub(crate) commit: u64,
    /// The first segment of the WAL that the commits behind it need; 0 if there was none.
    pub(crate) segment: u64,
    /// Bytes of the WAL that the cursor may hold.
    pub(crate) bytes_max: u64,
}

impl CursorPlace {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&CURSOR_MAGIC).u32(CURSOR_VERSION);
        out.u64(self.sequence).u64(self.commit).u64(self.segment).u64(self.bytes_max);
        let crc = crc32c(out.bytes());
        out.u32(crc);
        debug_assert!(out.bytes().len() as u64 <= CURSOR_SLOT_SIZE, "a place fits its slot");
        out.into_bytes()
    }

    fn slot(&self) -> u64 {
        self.sequence % SLOTS * CURSOR_SLOT_SIZE
    }

    fn decode_slot(slot: &[u8], index: u64) -> std::result::Result<Option<Self>, Overrun> {
        let mut input = Reader::new(slot);
        if input.take(8)? != CURSOR_MAGIC || input.u32()? != CURSOR_VERSION {
            return Ok(None);
        }
        let place = Self {
            sequence: input.u64()?,
            commit: input.u64()?,
            segment: input.u64()?,
            bytes_max: input.u64()?,
        };
        let is_whole = crc32c(&slot[..input.offset()]) == input.u32()?;
        let counts = [place.sequence, place.commit, place.segment];
        let is_right = counts.iter().all(|&count| count <= COUNT_MAX);
        Ok((is_whole && is_right && place.sequence % SLOTS == index).then_some(place))
    }

    /// The newest whole place in the bytes of a cursor.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let slots = (0..SLOTS).zip(bytes.chunks(CURSOR_SLOT_SIZE as usize));
        let places = slots.filter_map(|(at, slot)| Self::decode_slot(slot, at).ok().flatten());
        places.max_by_key(|place| place.sequence)
    }
}

/// Needs of the cursors of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CursorNeeds {
    /// The first segment of the WAL that is kept for them; `u64::MAX` for none.
    pub(crate) held: u64,
    /// The first segment that any cursor names, also one that holds nothing any more; segments from
    /// there on are never written again under another number.
    pub(crate) named: u64,
    /// The first commit that a cursor that holds something still wants, less one.
    pub(crate) commit: u64,
}

impl CursorNeeds {
    pub(crate) const NOTHING: Self = Self { held: u64::MAX, named: u64::MAX, commit: u64::MAX };
}

/// The file of a cursor.
pub(crate) fn path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(FEEDS).join(format!("{name}{SUFFIX}"))
}

/// The name of the cursor whose file has this name.
pub(crate) fn cursor_name(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(SUFFIX).filter(|name| is_name(name))
}

fn check_name(name: &str) -> Result<()> {
    if is_name(name) { Ok(()) } else { Err(Error::InvalidFeedName { text: name.to_owned() }) }
}

/// Whether anybody has ever made a feed of the store.
pub(crate) fn has_feeds(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    Ok(disk.kind(&dir.join(FEEDS))? == Some(EntryKind::Directory))
}

/// Makes the directory of the feeds, durably, unless it is there: from then on the store keeps a
/// history for feeds.
pub(crate) fn make_dir(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if has_feeds(disk, dir)? {
        return Ok(());
    }
    match disk.create_dir(&dir.join(FEEDS)) {
        // Another process may have made it meanwhile.
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    Ok(disk.sync_dir(dir)?)
}

/// The names of the cursors, sorted.
pub(crate) fn names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>> {
    if !has_feeds(disk, dir)? {
        return Ok(Vec::new());
    }
    let entries = disk.list(&dir.join(FEEDS))?;
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    let mut names: Vec<_> =
        files.filter_map(|entry| cursor_name(&entry.name).map(str::to_owned)).collect();
    names.sort_unstable();
    Ok(names)
}

/// The place of a cursor.
///
/// # Errors
/// [`Error::FeedDoesNotExist`]; [`Error::StoreCorrupted`] if no slot is whole; [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, dir: &Path, name: &str) -> Result<CursorPlace> {
    let path = path_of(dir, name);
    let file = match disk.open(&path, OpenMode::Read, Access::Buffered) {
        Err(error) if error.is_not_found() => {
            return Err(Error::FeedDoesNotExist { name: name.to_owned() });
        }
        opened => opened?,
    };
    read_place(file.as_ref())
}

/// The place in the file of a cursor.
pub(crate) fn read_place(file: &dyn DiskFile) -> Result<CursorPlace> {
    let mut bytes = vec![0; file.len()?.min(SLOTS * CURSOR_SLOT_SIZE) as usize];
    file.read_at(&mut bytes, 0)?;
    CursorPlace::decode(&bytes).ok_or_else(|| Error::StoreCorrupted {
        path: file.path().to_owned(),
        reason: "neither slot of the cursor is whole; drop the cursor and make it again".to_owned(),
    })
}

/// Returns what the cursors of the store in `dir` need. A damaged cursor holds nothing, which is
/// told as an event.
///
/// Cost: one call if there never was a feed; else one small read for each cursor, and the lengths
/// of the segments.
///
/// # Errors
/// [`Error::Disk`]: then nothing is known, and everything may be needed.
pub(crate) fn needs(disk: &dyn Disk, dir: &Path) -> Result<CursorNeeds> {
    let mut needs = CursorNeeds::NOTHING;
    let names = names(disk, dir)?;
    if names.is_empty() || disk.kind(&dir.join(LOG))?.is_none() {
        return Ok(needs);
    }

    let mut sizes = Vec::new();
    for number in segments(disk, dir)? {
        let path = dir.join(LOG).join(segment_name(number));
        let file = disk.open(&path, OpenMode::Read, Access::Buffered);
        // Removed or renamed meanwhile.
        let file = match file {
            Err(error) if error.is_not_found() => continue,
            file => file?,
        };
        sizes.push((number, file.len()?));
    }

    for name in names {
        let place = match read(disk, dir, &name) {
            Err(Error::FeedDoesNotExist { .. }) => continue,
            Err(error @ (Error::StoreCorrupted { .. } | Error::Corrupt { .. })) => {
                event!(WARN, "feed.cursor_damaged", dir, name, %error);
                continue;
            }
            place => place?,
        };
        if place.segment == 0 {
            continue;
        }
        needs.named = needs.named.min(place.segment);
        // One whose segment is gone holds nothing: it was over its limit.
        let from = sizes.partition_point(|(number, _)| *number < place.segment);
        let is_there = sizes.get(from).is_some_and(|(number, _)| *number == place.segment);
        let bytes: u64 = sizes[from..].iter().map(|(_, bytes)| bytes).sum();
        if is_there && bytes <= place.bytes_max {
            needs.held = needs.held.min(place.segment);
            needs.commit = needs.commit.min(place.commit);
        } else {
            event!(WARN, "feed.over_limit", dir, name, bytes, limit = place.bytes_max);
        }
    }
    Ok(needs)
}

/// A cursor that this process moves; nobody else does meanwhile.
#[derive(Debug)]
pub(crate) struct CursorFile {
    file: Arc<dyn DiskFile>,
    place: CursorPlace,
    /// Whether a move has failed: which slot is whole is not known then.
    is_broken: bool,
    _guard: Box<dyn LockGuard>,
}

fn lock_cursor(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Box<dyn LockGuard>> {
    let path = dir.join(FEEDS).join(format!("{name}.lock"));
    disk.lock(&path).map_err(|error| match error {
        terrane_io::Error::Locked { pid, .. } => Error::FeedLocked { name: name.to_owned(), pid },
        error => error.into(),
    })
}

impl CursorFile {
    /// Makes a cursor, durably.
    ///
    /// # Errors
    /// [`Error::InvalidFeedName`], [`Error::FeedExists`], [`Error::FeedLocked`], [`Error::Disk`].
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        name: &str,
        place: CursorPlace,
    ) -> Result<Self> {
        check_name(name)?;
        make_dir(disk, dir)?;
        let guard = lock_cursor(disk, dir, name)?;
        let path = path_of(dir, name);
        if disk.kind(&path)?.is_some() {
            return Err(Error::FeedExists { name: name.to_owned() });
        }

        let mut bytes = vec![0; (SLOTS * CURSOR_SLOT_SIZE) as usize];
        let slot = place.slot() as usize;
        let encoded = place.encode();
        bytes[slot..slot + encoded.len()].copy_from_slice(&encoded);
        // Whole when it gets its name, and durable.
        replace_file(disk, &path, &bytes)?;
        let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered)?;
        Ok(Self { file, place, is_broken: false, _guard: guard })
    }

    /// Opens a cursor to move it.
    ///
    /// # Errors
    /// [`Error::InvalidFeedName`], [`Error::FeedDoesNotExist`], [`Error::FeedLocked`],
    /// [`Error::StoreCorrupted`], [`Error::Disk`].
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Self> {
        check_name(name)?;
        let path = path_of(dir, name);
        let missing = || Error::FeedDoesNotExist { name: name.to_owned() };
        // Looked for first: a lock makes a file.
        if disk.kind(&path)?.is_none() {
            return Err(missing());
        }
        let guard = lock_cursor(disk, dir, name)?;
        let file = match disk.open(&path, OpenMode::ReadWrite, Access::Buffered) {
            Err(error) if error.is_not_found() => return Err(missing()),
            opened => opened?,
        };
        let place = read_place(file.as_ref())?;
        // A process that died may have left a place that is seen and not durable: it is written
        // again before anything is let go for its sake.
        file.write_at(&place.encode(), place.slot())?;
        file.sync()?;
        disk.sync_dir(&dir.join(FEEDS))?;
        Ok(Self { file, place, is_broken: false, _guard: guard })
    }

    pub(crate) fn place(&self) -> CursorPlace {
        self.place
    }

    /// Moves the cursor, durably. It never goes back.
    ///
    /// Cost: one write and one fsync of a small file.
    ///
    /// # Errors
    /// [`Error::Disk`]: the cursor is where it was or where it was to be, and moves no more until
    /// it is opened again.
    pub(crate) fn advance(&mut self, commit: u64, segment: u64) -> Result<()> {
        debug_assert!(commit >= self.place.commit, "a cursor never goes back");
        if self.is_broken {
            return Err(Error::Poisoned { path: self.file.path().to_owned() });
        }
        let sequence = self.place.sequence + 1;
        let segment = segment.max(self.place.segment);
        let next = CursorPlace { sequence, commit, segment, ..self.place };
        self.is_broken = true;
        self.file.write_at(&next.encode(), next.slot())?;
        self.file.sync()?;
        self.is_broken = false;
        self.place = next;
        Ok(())
    }
}

/// Removes a cursor, durably. Nobody may have it open.
///
/// # Errors
/// [`Error::InvalidFeedName`], [`Error::FeedDoesNotExist`], [`Error::FeedLocked`],
/// [`Error::Disk`].
pub(crate) fn remove(disk: &dyn Disk, dir: &Path, name: &str) -> Result<()> {
    check_name(name)?;
    let path = path_of(dir, name);
    if disk.kind(&path)?.is_none() {
        return Err(Error::FeedDoesNotExist { name: name.to_owned() });
    }
    let _guard = lock_cursor(disk, dir, name)?;
    disk.remove(&path)?;
    Ok(disk.sync_dir(&dir.join(FEEDS))?)
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;

    use super::*;

    #[test]
    fn a_flipped_bit_gives_the_place_before_or_none() {
        let disk = SimDisk::new(1);
        let dir = Path::new("/store");
        disk.create_dir(dir).unwrap();
        let place = CursorPlace { sequence: 1, commit: 5, segment: 2, bytes_max: 1 << 30 };
        let mut cursor = CursorFile::create(disk.as_ref(), dir, "indexer", place).unwrap();
        cursor.advance(9, 3).unwrap();
        let moved = CursorPlace { sequence: 2, commit: 9, segment: 3, ..place };
        assert_eq!(read(disk.as_ref(), dir, "indexer").unwrap(), moved);

        let path = path_of(dir, "indexer");
        let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        let (mut older, mut newest) = (0, 0);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            match CursorPlace::decode(&bytes) {
                Some(found) if found == moved => newest += 1,
                found => {
                    assert_eq!(found, Some(place), "bit {bit}");
                    older += 1;
                }
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Magic, version, four numbers and the checksum decide; the rest of a slot means nothing.
        assert_eq!(older, (8 + 4 + 4 * 8 + 4) * 8);
        assert_eq!(older + newest, bytes.len() * 8);
        for len in 0..bytes.len() {
            let found = CursorPlace::decode(&bytes[..len]);
            assert!(found.is_none_or(|found| found == place || found == moved), "{len} bytes");
        }
    }
}

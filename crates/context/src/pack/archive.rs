//! Volumes of an archive: directories that receive the records that a collection would otherwise
//! remove.
//!
//! The volumes are `archive/volume-` ‖ number (8 hexadecimal digits) in the directory of the
//! store, which may be mounts, or lie [elsewhere](crate::pack::locations) without the `archive/`. A
//! volume holds parts of chunks in the format of [compacted chunks](crate::pack::chunk), named
//! `chunk-` ‖ number of the chunk ‖ `-` ‖ number of the part, and a marker, the file `volume`, with
//! the identity of its store.
//!
//! Invariants:
//! - A part is written under a name that ends in `.new`, synced, and renamed. So each part is
//!   complete; no part is ever changed or removed.
//! - A record leaves its chunk only after a part with the record, and the name of that part, are
//!   durable. So every record is in its chunk or in a part; after a crash between the two, in both.
//! - A record in a part is never copied into another part.
//! - The marker is durable before the control record counts the volume. A directory without marker
//!   (the mount point of a disk that is away) or with another marker gets no part.
//!
//! Rejected: all copies first and a switch behind them (needs the disk twice); whole chunks in
//! volumes (live records would be there twice); a table of parts in the pack (repeats the names).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, Disk, DiskFile, EntryKind, OpenMode};

use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::pack::chunk::{Chunk, chunk_number};
use crate::pack::marker::{Marker, Owner};

/// Directory of the volumes in a store.
const ARCHIVE: &str = "archive";
const VOLUME: &str = "volume-";
/// Name of the marker of a volume.
const MARKER: &str = "volume";
/// First bytes of a marker.
pub(crate) const VOLUME_MAGIC: [u8; 8] = *b"TRNMVOLM";
/// Format version of markers.
pub(crate) const VOLUME_VERSION: u32 = 1;
/// Suffix of the name of a file that is not yet complete.
pub(crate) const NEW_SUFFIX: &str = ".new";

/// Volume and number of a part of some chunk.
pub(crate) type PartId = (u16, u32);

/// The parts of each chunk.
#[derive(Debug, Default)]
pub(crate) struct Catalog(FastMap<u32, Vec<PartId>>);

/// Directory of the volumes of the store in `dir`, unless they lie
/// [elsewhere](crate::pack::locations).
pub(crate) fn archive_dir(dir: &Path) -> PathBuf {
    dir.join(ARCHIVE)
}

/// Directory of a volume. Here and below, `archive` is the directory of all volumes.
pub(crate) fn volume_dir(archive: &Path, volume: u16) -> PathBuf {
    archive.join(format!("{VOLUME}{volume:08x}"))
}

/// Path of a part of a chunk.
pub(crate) fn part_path(archive: &Path, chunk: u32, (volume, number): PartId) -> PathBuf {
    volume_dir(archive, volume).join(format!("chunk-{chunk:08x}-{number:08x}"))
}

/// Path of a file until the file is complete.
pub(crate) fn new_path(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(NEW_SUFFIX);
    PathBuf::from(new)
}

/// Path of the marker of a volume.
pub(crate) fn marker_path(archive: &Path, volume: u16) -> PathBuf {
    volume_dir(archive, volume).join(MARKER)
}

fn marker(volume: u16, store: u64) -> Marker {
    Marker { magic: VOLUME_MAGIC, version: VOLUME_VERSION, number: volume.into(), store }
}

/// Writes the marker of a volume to a staging file, which is not synced yet. Returns the file and
/// its path.
///
/// Cost: one write.
///
/// # Errors
/// Errors of [`check_marker`] for a marker that is there already, of this volume or not, and is not
/// one of it.
pub(crate) fn stage_marker(
    disk: &dyn Disk,
    archive: &Path,
    volume: u16,
    store: u64,
) -> Result<(Arc<dyn DiskFile>, PathBuf)> {
    match check_marker(disk, archive, volume, store) {
        Ok(()) | Err(Error::AbsentVolume { .. }) => {}
        Err(error) => return Err(error),
    }
    let staged = new_path(&marker_path(archive, volume));
    Ok((marker(volume, store).write(disk, &staged)?, staged))
}

/// Refuses a volume that is missing or belongs to another store.
///
/// Cost: one read.
///
/// # Errors
/// [`AbsentVolume`](Error::AbsentVolume) without a marker, [`ForeignVolume`](Error::ForeignVolume)
/// with that of another volume or store, [`UnsupportedVersion`](Error::UnsupportedVersion),
/// [`Corrupt`](Error::Corrupt), [`Disk`](Error::Disk).
pub(crate) fn check_marker(disk: &dyn Disk, archive: &Path, volume: u16, store: u64) -> Result<()> {
    match marker(volume, store).owner_at(disk, &marker_path(archive, volume))? {
        Owner::Own => Ok(()),
        Owner::Nobody => Err(Error::AbsentVolume { path: volume_dir(archive, volume) }),
        Owner::Other => Err(Error::ForeignVolume { path: volume_dir(archive, volume) }),
    }
}

/// Rewrites the markers of those of the first `count` volumes that have a part of this store and no
/// complete marker. Returns their number.
///
/// A volume without any part may be on a disk that is away, and stays as it is.
///
/// Cost: one listing for each volume without a whole marker, and one read for each of its parts.
pub(crate) fn heal_markers(disk: &dyn Disk, archive: &Path, count: u16, store: u64) -> Result<u64> {
    let mut healed = 0;
    for volume in 0..count {
        // A marker of another store or version is not damage, and must stay.
        match check_marker(disk, archive, volume, store) {
            Ok(()) | Err(Error::ForeignVolume { .. } | Error::UnsupportedVersion { .. }) => {
                continue;
            }
            Err(_) => {}
        }

        if !has_part_of(disk, archive, volume, store) {
            continue;
        }

        // Rename makes the marker appear complete or not at all.
        let path = marker_path(archive, volume);
        let staged = new_path(&path);
        marker(volume, store).write(disk, &staged)?.sync()?;
        disk.rename(&staged, &path)?;
        disk.sync_dir(&volume_dir(archive, volume))?;

        healed += 1;
    }

    Ok(healed)
}

/// Returns whether a volume has a part of this store.
fn has_part_of(disk: &dyn Disk, archive: &Path, volume: u16, store: u64) -> bool {
    let Ok(entries) = disk.list(&volume_dir(archive, volume)) else { return false };
    entries.iter().filter_map(|entry| part_numbers(&entry.name)).any(|(chunk, number)| {
        let path = part_path(archive, chunk, (volume, number));
        let id = (chunk, Some(store));
        Chunk::open(disk, &path, id, OpenMode::Read, Access::Buffered).is_ok()
    })
}

fn hexadecimal(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8)
}

fn part_numbers(name: &str) -> Option<(u32, u32)> {
    let (chunk, number) = name.rsplit_once('-')?;
    Some((chunk_number(chunk)?, hexadecimal(number)?))
}

/// Returns the present volumes, ascending.
///
/// Cost: one listing, and one look at each.
pub(crate) fn volumes(disk: &dyn Disk, archive: &Path) -> Result<Vec<u16>> {
    if disk.kind(archive)? != Some(EntryKind::Directory) {
        return Ok(Vec::new());
    }
    let number = |name: &str| u16::try_from(hexadecimal(name.strip_prefix(VOLUME)?)?).ok();

    // A link or a file of such a name is no volume.
    let mut volumes = Vec::new();
    for volume in disk.list(archive)?.iter().filter_map(|entry| number(&entry.name)) {
        if disk.kind(&volume_dir(archive, volume))? == Some(EntryKind::Directory) {
            volumes.push(volume);
        }
    }

    Ok(volumes)
}

/// Returns the first of `count` volumes without a marker: its directory is gone, or its disk is not
/// mounted.
///
/// Cost: one call for each volume.
pub(crate) fn missing(disk: &dyn Disk, archive: &Path, count: u16) -> Result<Option<u16>> {
    for volume in 0..count {
        if disk.kind(&marker_path(archive, volume))?.is_none() {
            return Ok(Some(volume));
        }
    }
    Ok(None)
}

/// Returns whether a volume has no part.
///
/// Cost: one listing.
pub(crate) fn is_empty(disk: &dyn Disk, archive: &Path, volume: u16) -> Result<bool> {
    let entries = disk.list(&volume_dir(archive, volume))?;
    Ok(!entries.iter().any(|entry| part_numbers(&entry.name).is_some()))
}

impl Catalog {
    /// Lists the parts in all present volumes.
    ///
    /// Cost: one listing for each volume.
    pub(crate) fn list(disk: &dyn Disk, archive: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        for volume in volumes(disk, archive)? {
            for entry in disk.list(&volume_dir(archive, volume))? {
                if let Some((chunk, number)) = part_numbers(&entry.name) {
                    catalog.add(chunk, (volume, number));
                }
            }
        }
        Ok(catalog)
    }

    pub(crate) fn add(&mut self, chunk: u32, part: PartId) {
        self.0.entry(chunk).or_default().push(part);
    }

    /// Returns the parts of a chunk, oldest first.
    pub(crate) fn parts(&self, chunk: u32) -> &[PartId] {
        self.0.get(&chunk).map_or(&[], Vec::as_slice)
    }

    /// Returns all parts with their chunks, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, PartId)> + '_ {
        self.0.iter().flat_map(|(chunk, parts)| parts.iter().map(|part| (*chunk, *part)))
    }

    /// Returns the next free number of a part of a chunk in a volume.
    pub(crate) fn next_part(&self, chunk: u32, volume: u16) -> PartId {
        // Numbers are never reused, since parts are never removed.
        let of_volume = self.parts(chunk).iter().filter(|part| part.0 == volume);
        let next = (volume, of_volume.map(|part| part.1 + 1).max().unwrap_or(0));
        debug_assert!(!self.parts(chunk).contains(&next), "the number is free");
        next
    }
}

/// Removes the incomplete files of an interrupted collection from the volumes.
pub(crate) fn remove_unfinished(disk: &dyn Disk, archive: &Path) -> Result<()> {
    for volume in volumes(disk, archive)? {
        // Only names that a collection writes are removed: a user may keep files beside them.
        let volume = volume_dir(archive, volume);
        for entry in disk.list(&volume)? {
            let unfinished = entry.name.strip_suffix(NEW_SUFFIX);
            if unfinished.is_some_and(|name| name == MARKER || part_numbers(name).is_some()) {
                disk.remove(&volume.join(&entry.name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use terrane_io::checksum::crc32c;

    use super::*;
    use crate::pack::marker::MARKER_BYTES;

    #[test]
    fn names_of_parts_are_read_back_and_nothing_else_is_a_part() {
        let path = part_path(Path::new("/s"), 0x1A, (3, 2));
        assert_eq!(path, Path::new("/s/volume-00000003/chunk-0000001a-00000002"));
        assert_eq!(part_numbers("chunk-0000001a-00000002"), Some((0x1A, 2)));
        for name in ["chunk-0000001a", "chunk-0000001a-2", "chunk-1a-00000002", "x", "-", ""] {
            assert_eq!(part_numbers(name), None, "{name}");
        }
        let new = new_path(&path);
        assert!(new.ends_with("chunk-0000001a-00000002.new"));
        assert_eq!(part_numbers("chunk-0000001a-00000002.new"), None);
    }

    #[test]
    fn a_marker_is_that_of_one_volume_of_one_store_and_every_byte_counts() {
        let disk = terrane_io::MemoryDisk::new();
        let dir = Path::new("/s");
        terrane_io::files::create_dirs(&*disk, &volume_dir(dir, 3)).unwrap();

        let check = |volume, store| check_marker(&*disk, dir, volume, store);
        assert!(
            matches!(check(3, 7), Err(Error::AbsentVolume { path }) if path == volume_dir(dir, 3))
        );
        assert!(matches!(check(4, 7), Err(Error::AbsentVolume { .. })), "no directory");
        let (_, staged) = stage_marker(&*disk, dir, 3, 7).unwrap();
        assert!(matches!(check(3, 7), Err(Error::AbsentVolume { .. })), "not in place yet");
        disk.rename(&staged, &marker_path(dir, 3)).unwrap();
        check(3, 7).unwrap();
        stage_marker(&*disk, dir, 3, 7).unwrap();
        assert!(matches!(check(3, 8), Err(Error::ForeignVolume { .. })));
        assert!(matches!(stage_marker(&*disk, dir, 3, 8), Err(Error::ForeignVolume { .. })));
        disk.create_dir(&volume_dir(dir, 2)).unwrap();
        disk.rename(&marker_path(dir, 3), &marker_path(dir, 2)).unwrap();
        assert!(matches!(check(2, 7), Err(Error::ForeignVolume { .. })), "that of volume 3");
        let good = marker(2, 7).encode();

        let put = |bytes: &[u8]| {
            let path = marker_path(dir, 2);
            let file = disk.open(&path, OpenMode::Truncate, Access::Buffered).unwrap();
            file.write_at(bytes, 0).unwrap();
            check(2, 7)
        };

        put(&good).unwrap();
        for bit in 0..MARKER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(put(&bytes), Err(Error::Corrupt { .. })), "bit {bit}");
        }

        for len in 0..MARKER_BYTES {
            assert!(matches!(put(&good[..len]), Err(Error::Corrupt { .. })), "{len} bytes");
        }
        let mut newer = good;
        newer[8] = 2;
        let crc = crc32c(&newer[..28]);
        newer[28..].copy_from_slice(&crc.to_le_bytes());

        assert!(matches!(put(&newer), Err(Error::UnsupportedVersion { found: 2, newest: 1, .. })));
    }

    #[test]
    fn parts_are_numbered_in_each_volume() {
        let mut catalog = Catalog::default();
        assert_eq!(catalog.next_part(5, 0), (0, 0));
        catalog.add(5, (0, 0));
        catalog.add(5, (0, 1));
        assert_eq!(catalog.next_part(5, 0), (0, 2));
        assert_eq!(catalog.next_part(5, 1), (1, 0));
        assert_eq!(catalog.next_part(6, 0), (0, 0));
        assert_eq!(catalog.parts(5), [(0, 0), (0, 1)]);
        assert_eq!(catalog.all().count(), 2);
    }
}

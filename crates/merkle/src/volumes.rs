//! Volumes: where collections of a store with an archive put what is no longer in use. They are the directories
//! `archive/volume-` ‖ number in 8 hexadecimal digits of the store, which may be mounts or links to other disks. A volume holds
//! parts of chunks, in the format of [compacted chunks](crate::chunk): `chunk-` ‖ number of the chunk ‖ `-` ‖ number of the part,
//! in 8 hexadecimal digits each.
//!
//! Invariants: a part is written under a name that ends in `.new`, synced, and renamed, so that one that is there is whole; it
//! is never changed or removed. A record leaves its chunk only after a part that has it, and the name of that, are durable;
//! so every record of a store with an archive is in its chunk, or in a part, or, after a crash between the two, in both. A
//! record that a part has is not copied into another.

use std::path::{Path, PathBuf};

use terrane_io::{Disk, EntryKind};

use crate::chunk::chunk_number;
use crate::error::Result;
use crate::quick::QuickMap;

/// Name of the directory of volumes.
const ARCHIVE: &str = "archive";
const VOLUME: &str = "volume-";
/// What the name of a file ends with until it is whole.
pub(crate) const NEW_SUFFIX: &str = ".new";

/// The volume and the number of a part of some chunk.
pub(crate) type Part = (u16, u32);

/// The parts of each chunk.
#[derive(Debug, Default)]
pub(crate) struct Catalog(QuickMap<u32, Vec<Part>>);

/// The directory of the volumes of the store in `dir`.
pub(crate) fn archive_dir(dir: &Path) -> PathBuf {
    dir.join(ARCHIVE)
}

/// The directory of a volume.
pub(crate) fn volume_dir(dir: &Path, volume: u16) -> PathBuf {
    archive_dir(dir).join(format!("{VOLUME}{volume:08x}"))
}

/// The path of a part of a chunk.
pub(crate) fn part_path(dir: &Path, chunk: u32, (volume, number): Part) -> PathBuf {
    volume_dir(dir, volume).join(format!("chunk-{chunk:08x}-{number:08x}"))
}

/// A file's path until it is whole.
pub(crate) fn new_path(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(NEW_SUFFIX);
    PathBuf::from(new)
}

fn hexadecimal(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8)
}

fn part_numbers(name: &str) -> Option<(u32, u32)> {
    let (chunk, number) = name.rsplit_once('-')?;
    Some((chunk_number(chunk)?, hexadecimal(number)?))
}

/// The volumes that are there, ascending; a link that leads nowhere is none.
///
/// Cost: one listing, and one look at each.
pub(crate) fn volumes(disk: &dyn Disk, dir: &Path) -> Result<Vec<u16>> {
    let archive = archive_dir(dir);
    if disk.kind(&archive)? != Some(EntryKind::Directory) {
        return Ok(Vec::new());
    }
    let number = |name: &str| u16::try_from(hexadecimal(name.strip_prefix(VOLUME)?)?).ok();
    let mut volumes = Vec::new();
    for volume in disk.list(&archive)?.iter().filter_map(|entry| number(&entry.name)) {
        if disk.kind(&volume_dir(dir, volume))? == Some(EntryKind::Directory) {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

/// The first of `count` volumes that is not there, if one is not. One that is empty although another was added behind it is
/// not there either: its disk is not mounted.
///
/// Cost: one listing, and one for each volume.
pub(crate) fn missing(disk: &dyn Disk, dir: &Path, count: u16) -> Result<Option<u16>> {
    let present = volumes(disk, dir)?;
    for volume in 0..count {
        if !present.contains(&volume) || (volume + 1 < count && is_empty(disk, dir, volume)?) {
            return Ok(Some(volume));
        }
    }
    Ok(None)
}

/// Whether a volume holds nothing.
///
/// Cost: one listing.
pub(crate) fn is_empty(disk: &dyn Disk, dir: &Path, volume: u16) -> Result<bool> {
    let entries = disk.list(&volume_dir(dir, volume))?;
    Ok(!entries.iter().any(|entry| part_numbers(&entry.name).is_some()))
}

impl Catalog {
    /// What is there.
    ///
    /// Cost: one listing for each volume.
    pub(crate) fn list(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let mut catalog = Self::default();
        for volume in volumes(disk, dir)? {
            for entry in disk.list(&volume_dir(dir, volume))? {
                if let Some((chunk, number)) = part_numbers(&entry.name) {
                    catalog.add(chunk, (volume, number));
                }
            }
        }
        Ok(catalog)
    }

    pub(crate) fn add(&mut self, chunk: u32, part: Part) {
        self.0.entry(chunk).or_default().push(part);
    }

    /// The parts of a chunk, in the order in which they were made.
    pub(crate) fn parts(&self, chunk: u32) -> &[Part] {
        self.0.get(&chunk).map_or(&[], Vec::as_slice)
    }

    /// All parts with their chunks, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, Part)> + '_ {
        self.0.iter().flat_map(|(chunk, parts)| parts.iter().map(|part| (*chunk, *part)))
    }

    /// A part of a chunk that a volume does not have yet.
    pub(crate) fn next_part(&self, chunk: u32, volume: u16) -> Part {
        let of_volume = self.parts(chunk).iter().filter(|part| part.0 == volume);
        (volume, of_volume.map(|part| part.1 + 1).max().unwrap_or(0))
    }
}

/// Removes what a collection that was interrupted has left unfinished in the volumes.
pub(crate) fn remove_unfinished(disk: &dyn Disk, dir: &Path) -> Result<()> {
    for volume in volumes(disk, dir)? {
        let volume = volume_dir(dir, volume);
        for entry in disk.list(&volume)? {
            if entry.name.ends_with(NEW_SUFFIX) {
                disk.remove(&volume.join(&entry.name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_back_and_nothing_else_is_a_part() {
        let path = part_path(Path::new("/s"), 0x1A, (3, 2));
        assert_eq!(path, Path::new("/s/archive/volume-00000003/chunk-0000001a-00000002"));
        assert_eq!(part_numbers("chunk-0000001a-00000002"), Some((0x1A, 2)));
        for name in ["chunk-0000001a", "chunk-0000001a-2", "chunk-1a-00000002", "x", "-", ""] {
            assert_eq!(part_numbers(name), None, "{name}");
        }
        let new = new_path(&path);
        assert!(new.ends_with("chunk-0000001a-00000002.new"));
        assert_eq!(part_numbers("chunk-0000001a-00000002.new"), None);
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

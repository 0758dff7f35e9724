//! Locations of the parts of a store: its own directory, and directories elsewhere that the options
//! name for the archive and the index.
//!
//! The file `locations` of the store names the directories elsewhere; without the file, all parts
//! are in the directory of the store. Each directory elsewhere has a [marker](crate::pack::marker)
//! of the store, and is anchored like the store. The volumes lie in the directory of the archive,
//! the index in the subdirectory `index` of its directory.
//!
//! | offset | size | field           | meaning                                                |
//! |--------|------|-----------------|--------------------------------------------------------|
//! | 0      | 8    | `magic`         | `TRNMLOCS`                                             |
//! | 8      | 4    | `version`       | format version, now 1                                  |
//! | 12     | 8    | `store`         | identity of the store                                  |
//! | 20     | 4    | `archive_bytes` | length of the path of the archive; 0 in the store      |
//! | 24     | 4    | `index_bytes`   | length of the path of the index; 0 in the store        |
//! | 28     | ..   | `archive`       | absolute path in UTF-8                                 |
//! | ..     | ..   | `index`         | absolute path in UTF-8                                 |
//! | ..     | 4    | `crc`           | CRC-32C of all bytes before                            |
//!
//! Invariant: a marker is durable before a file `locations` that leads to it, except during
//! creation of the store. Creation writes the file first, so that a repeated creation after a crash
//! finds the identity that its markers may have. The control record comes last and makes the
//! directory a store.
//!
//! Rejected: paths in the control record, whose page has a bounded size; options given at each
//! open, since a forgotten one would start an empty archive.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Anchor;
use terrane_io::checksum::crc32c;
use terrane_io::files::{create_afresh, create_dirs};
use terrane_io::{Access, Disk, OpenMode};

use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::pack::archive::{archive_dir, check_marker, new_path};
use crate::pack::index::IndexEngine;
use crate::pack::marker::{Marker, Owner};

/// Name of the file, in the directory of a store.
pub(crate) const LOCATIONS: &str = "locations";
/// First bytes of the file.
pub(crate) const LOCATIONS_MAGIC: [u8; 8] = *b"TRNMLOCS";
/// Format version of the file.
pub(crate) const LOCATIONS_VERSION: u32 = 1;
const HEAD_BYTES: usize = 28;
/// Longest path of a directory elsewhere, in bytes: the limit of Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Longest file.
const FILE_BYTES_MAX: u64 = (HEAD_BYTES + 2 * PATH_BYTES_MAX + 4) as u64;

/// First bytes of the marker of a directory elsewhere.
pub(crate) const LOCATION_MAGIC: [u8; 8] = *b"TRNMPART";
/// Format version of these markers.
pub(crate) const LOCATION_VERSION: u32 = 1;
/// Name of the directory of the index.
pub(crate) const INDEX: &str = "index";

/// Part of a store that can lie elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StorePart {
    Archive = 1,
    Index = 2,
}

impl StorePart {
    fn name(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Index => "index",
        }
    }

    fn marker(self, store: u64) -> Marker {
        let magic = LOCATION_MAGIC;
        let version = LOCATION_VERSION;
        Marker { magic, version, number: self as u32, store }
    }

    /// Path of the marker in a directory elsewhere.
    fn marker_path(self, dir: &Path) -> PathBuf {
        dir.join(format!("terrane-{}", self.name()))
    }

    /// Refuses a directory that is missing or belongs to another store.
    fn check(self, disk: &dyn Disk, dir: &Path, store: u64) -> Result<()> {
        let part = self.name();
        let path = dir.to_owned();
        match self.marker(store).owner_at(disk, &self.marker_path(dir))? {
            Owner::Own => Ok(()),
            Owner::Nobody => Err(Error::AbsentLocation { part, path }),
            Owner::Other => Err(Error::ForeignLocation { part, path }),
        }
    }

    /// Anchors a directory elsewhere.
    fn anchor(self, disk: &dyn Disk, dir: &Path) -> Result<Arc<dyn Anchor>> {
        match disk.anchor(dir) {
            Ok(anchor) => Ok(anchor.into()),
            Err(error) if error.is_not_found() => {
                Err(Error::AbsentLocation { part: self.name(), path: dir.to_owned() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses the directory of another store.
    fn check_free(self, disk: &dyn Disk, dir: &Path, store: u64) -> Result<()> {
        match self.check(disk, dir, store) {
            Ok(()) | Err(Error::AbsentLocation { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts the marker of a store into a directory, durably.
    fn claim(self, disk: &dyn Disk, dir: &Path, store: u64) -> Result<()> {
        let path = self.marker_path(dir);
        if self.marker(store).owner_at(disk, &path)? != Owner::Own {
            let staged = new_path(&path);
            self.marker(store).write(disk, &staged)?.sync()?;
            disk.rename(&staged, &path)?;
        }
        // A process that was killed may have made the name and not have synced it.
        Ok(disk.sync_dir(dir)?)
    }
}

/// Content of the file `locations`: directories elsewhere, by their absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) store: u64,
    archive: Option<String>,
    index: Option<String>,
}

impl Recorded {
    fn parts(&self) -> impl Iterator<Item = (StorePart, &Path)> {
        let parts = [(StorePart::Archive, &self.archive), (StorePart::Index, &self.index)];
        parts.into_iter().filter_map(|(part, path)| Some((part, Path::new(path.as_deref()?))))
    }

    fn encode(&self) -> Vec<u8> {
        let archive = self.archive.as_deref();
        let index = self.index.as_deref();
        let archive = archive.unwrap_or_default();
        let index = index.unwrap_or_default();
        let mut bytes = LOCATIONS_MAGIC.to_vec();
        bytes.extend_from_slice(&LOCATIONS_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.store.to_le_bytes());

        for path in [archive, index] {
            bytes.extend_from_slice(&(path.len() as u32).to_le_bytes());
        }
        bytes.extend_from_slice(archive.as_bytes());
        bytes.extend_from_slice(index.as_bytes());
        debug_assert_eq!(
            bytes.len(),
            HEAD_BYTES + archive.len() + index.len(),
            "the layout of the file"
        );
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());

        bytes
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let corrupt = |what| Error::Corrupt { path: path.to_owned(), address: None, what };
        let short = |_| corrupt(Corrupt::short("length of the file `locations`"));
        let Some((content, stored)) = bytes.split_last_chunk() else {
            return Err(corrupt(Corrupt::short("length of the file `locations`")));
        };
        let stored = u32::from_le_bytes(*stored);
        let computed = crc32c(content);

        if stored != computed {
            let expected = u64::from(computed);
            let found = u64::from(stored);
            let what = Corrupt::rule("checksum of the file `locations`", expected, found);
            return Err(corrupt(what));
        }

        let mut reader = terrane_io::bytes::Reader::new(content);
        if reader.take(8).map_err(short)? != LOCATIONS_MAGIC {
            return Err(Error::NotAContextStore { path: path.to_owned() });
        }
        let found = reader.u32().map_err(short)?;

        if found != LOCATIONS_VERSION {
            let path = path.to_owned();
            let newest = LOCATIONS_VERSION;
            return Err(Error::UnsupportedVersion { path, found, newest });
        }

        let store = reader.u64().map_err(short)?;

        // Both lengths precede the paths.
        let lens = [reader.u32().map_err(short)?, reader.u32().map_err(short)?];

        let mut text = |len: u32| -> Result<Option<String>> {
            let bytes = reader.take(len as usize).map_err(short)?;
            let text = std::str::from_utf8(bytes)
                .map_err(|_| corrupt(Corrupt::rule("paths are UTF-8", 1, 0)))?;
            Ok((!text.is_empty()).then(|| text.to_owned()))
        };

        let recorded = Self { store, archive: text(lens[0])?, index: text(lens[1])? };

        // The lengths and the paths must cover all of the file.
        if recorded.encode() != bytes {
            let what = Corrupt::rule("length of the file `locations`", 0, bytes.len() as u64);
            return Err(corrupt(what));
        }

        Ok(recorded)
    }

    /// Reads the file of the store in `dir`, if there is one.
    ///
    /// Cost: one read.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(LOCATIONS);
        if disk.kind(&path)?.is_none() {
            return Ok(None);
        }
        let file = disk.open(&path, OpenMode::Read, Access::Buffered)?;
        let len = file.len()?;

        if len > FILE_BYTES_MAX {
            let what = Corrupt::rule("length of the file `locations`", FILE_BYTES_MAX, len);
            return Err(Error::Corrupt { path, address: None, what });
        }

        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0)?;
        Self::decode(&path, &bytes).map(Some)
    }

    /// Writes the file, durably, or removes it if everything is in the store.
    fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let path = dir.join(LOCATIONS);

        // Rename makes the file appear complete or not at all.
        if self.parts().next().is_some() {
            let staged = new_path(&path);
            let file = create_afresh(disk, &staged, OpenMode::CreateNew, Access::Buffered)?;
            file.write_at(&self.encode(), 0)?;
            file.sync()?;
            drop(file);
            disk.rename(&staged, &path)?;
        } else if disk.kind(&path)?.is_some() {
            disk.remove(&path)?;
        }

        Ok(disk.sync_dir(dir)?)
    }
}

/// Directories elsewhere that the options of a store name. The store's own directory stands for
/// itself; `None` leaves a part where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) archive: Option<&'a Path>,
    pub(crate) index: Option<&'a Path>,
    pub(crate) engine: &'a Arc<dyn IndexEngine>,
}

impl Wanted<'_> {
    /// Returns the next content of the file `locations`, if it has the content `before` now.
    fn over(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        store: u64,
        before: Option<Recorded>,
    ) -> Result<Recorded> {
        let before = before.unwrap_or(Recorded { store, archive: None, index: None });
        let text = |option, wanted: Option<&Path>, before| -> Result<Option<String>> {
            let Some(wanted) = wanted else { return Ok(before) };
            let path = disk.absolute(wanted)?;
            if path == dir {
                return Ok(None);
            }

            // The file stores UTF-8, so that it means the same on every system.
            let text = path.to_str().filter(|text| (1..=PATH_BYTES_MAX).contains(&text.len()));
            let value = path.display().to_string();
            let allowed = "a path of at most 4,096 bytes of UTF-8";
            let invalid = Error::InvalidConfig { option, value, allowed };
            text.map(|text| Some(text.to_owned())).ok_or(invalid)
        };

        let archive = text("archive_dir", self.archive, before.archive)?;
        let index = text("index_dir", self.index, before.index)?;
        Ok(Recorded { store, archive, index })
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Locations {
    dir: PathBuf,
    recorded: Option<Recorded>,
    /// Anchors keep every path below the directories in them, as long as the store is open.
    _anchors: Vec<Arc<dyn Anchor>>,
}

impl Locations {
    /// Locations of a store that has everything in its directory.
    #[cfg(test)]
    pub(crate) fn inside(dir: &Path) -> Arc<Self> {
        Arc::new(Self { dir: dir.to_owned(), recorded: None, _anchors: Vec::new() })
    }

    fn new(
        disk: &dyn Disk,
        (dir, anchor): (&Path, &Arc<dyn Anchor>),
        recorded: Option<Recorded>,
    ) -> (Arc<Self>, Vec<Error>) {
        let mut anchors = vec![Arc::clone(anchor)];
        let mut errors = Vec::new();
        for (part, path) in recorded.iter().flat_map(Recorded::parts) {
            let store = recorded.as_ref().map_or(0, |recorded| recorded.store);
            match part.anchor(disk, path) {
                Ok(anchor) => {
                    anchors.push(anchor);
                    errors.extend(part.check(disk, path, store).err());
                }
                Err(error) => errors.push(error),
            }
        }

        (Arc::new(Self { dir: dir.to_owned(), recorded, _anchors: anchors }), errors)
    }

    /// Locations of the store in an anchored directory, and their errors. If the file is damaged,
    /// all parts count as being in the store.
    ///
    /// Cost: one look into the directory; with locations elsewhere, a read for each.
    pub(crate) fn look(
        disk: &dyn Disk,
        at: (&Path, &Arc<dyn Anchor>),
    ) -> Result<(Arc<Self>, Vec<Error>)> {
        match Recorded::read(disk, at.0) {
            Ok(recorded) => Ok(Self::new(disk, at, recorded)),
            Err(error @ (Error::Corrupt { .. } | Error::NotAContextStore { .. })) => {
                Ok((Self::new(disk, at, None).0, vec![error]))
            }
            Err(error) => Err(error),
        }
    }

    /// Locations of the store in an anchored directory.
    ///
    /// Cost: as [`look`](Self::look).
    ///
    /// # Errors
    /// [`AbsentLocation`](Error::AbsentLocation), [`ForeignLocation`](Error::ForeignLocation),
    /// [`UnsupportedVersion`](Error::UnsupportedVersion), [`Corrupt`](Error::Corrupt),
    /// [`Disk`](Error::Disk).
    pub(crate) fn enter(disk: &dyn Disk, at: (&Path, &Arc<dyn Anchor>)) -> Result<Arc<Self>> {
        let (locations, errors) = Self::look(disk, at)?;
        errors.into_iter().next().map_or(Ok(locations), Err)
    }

    /// Like [`enter`](Self::enter) for a reader, which needs no index: the index may be away.
    pub(crate) fn enter_to_read(
        disk: &dyn Disk,
        at: (&Path, &Arc<dyn Anchor>),
    ) -> Result<Arc<Self>> {
        let (locations, errors) = Self::look(disk, at)?;
        let of_index = |error: &Error| {
            matches!(error, Error::AbsentLocation { part, .. } | Error::ForeignLocation { part, .. }
                if *part == StorePart::Index.name())
        };
        errors.into_iter().find(|error| !of_index(error)).map_or(Ok(locations), Err)
    }

    /// Prepares the locations of a new store. Returns them with the identity of the store: `store`,
    /// or the identity of an attempt that a crash ended.
    ///
    /// Cost: without locations elsewhere, one look into the directory.
    pub(crate) fn create(
        disk: &dyn Disk,
        at: (&Path, &Arc<dyn Anchor>),
        wanted: &Wanted<'_>,
        store: u64,
    ) -> Result<(Arc<Self>, u64)> {
        let dir = at.0;
        let before = match Recorded::read(disk, dir) {
            Ok(before) => before,
            Err(Error::Corrupt { .. } | Error::NotAContextStore { .. }) => None,
            Err(error) => return Err(error),
        };

        let store = before.as_ref().map_or(store, |before| before.store);
        let is_left = before.is_some();

        // The options of an earlier attempt do not count.
        let recorded = wanted.over(disk, dir, store, None)?;
        for (part, path) in recorded.parts() {
            create_dirs(disk, path)?;
            let _anchor = part.anchor(disk, path)?;
            part.check_free(disk, path, store)?;
        }

        if is_left || recorded.parts().next().is_some() {
            recorded.write(disk, dir)?;
        }
        Self::claim(disk, &recorded, wanted)?;
        let recorded = recorded.parts().next().is_some().then(|| recorded.clone());
        let (locations, errors) = Self::new(disk, at, recorded);

        errors.into_iter().next().map_or(Ok((locations, store)), Err)
    }

    /// Writes the markers of a store into directories elsewhere, and removes any index there: it
    /// belongs to no store, or is stale.
    fn claim(disk: &dyn Disk, recorded: &Recorded, wanted: &Wanted<'_>) -> Result<()> {
        for (part, path) in recorded.parts() {
            let _anchor = part.anchor(disk, path)?;
            part.claim(disk, path, recorded.store)?;
            if part == StorePart::Index {
                wanted.engine.remove(disk, &path.join(INDEX)).map_err(Error::index)?;
            }
        }
        Ok(())
    }

    /// Locations of a store whose lock is held, after a move to the directories in the options.
    ///
    /// The archive moves only to a directory that has all of its volumes. The caller rebuilds
    /// the index.
    ///
    /// # Errors
    /// Errors of [`enter`](Self::enter), and [`AbsentVolume`](Error::AbsentVolume),
    /// [`ForeignVolume`](Error::ForeignVolume), [`InvalidConfig`](Error::InvalidConfig).
    pub(crate) fn enter_to_write(
        disk: &dyn Disk,
        at: (&Path, &Arc<dyn Anchor>),
        wanted: &Wanted<'_>,
        (store, volumes): (u64, u16),
    ) -> Result<Arc<Self>> {
        if wanted.archive.is_none() && wanted.index.is_none() {
            return Self::enter(disk, at);
        }

        let dir = at.0;
        let before = match Recorded::read(disk, dir) {
            Ok(before) => before,
            // The options replace the damaged file.
            Err(Error::Corrupt { .. } | Error::NotAContextStore { .. }) => None,
            Err(error) => return Err(error),
        };

        let recorded = wanted.over(disk, dir, store, before.clone())?;
        let known = before.clone().unwrap_or(Recorded { store, archive: None, index: None });
        if recorded == known {
            return Self::enter(disk, at);
        }

        // Only parts that move are claimed; the others keep their markers.
        let mut moved = Recorded { store, archive: None, index: None };
        if recorded.archive != known.archive {
            moved.archive.clone_from(&recorded.archive);
        }

        if recorded.index != known.index {
            moved.index.clone_from(&recorded.index);
        }

        for (part, path) in moved.parts() {
            create_dirs(disk, path)?;
            let _anchor = part.anchor(disk, path)?;
            part.check_free(disk, path, store)?;
        }

        // The archive moves by hand: an incomplete one would lose commits without a word.
        if recorded.archive != known.archive {
            let archive = recorded.archive.as_deref().map(Path::new);
            let archive = archive.map_or_else(|| archive_dir(dir), Path::to_owned);
            let _anchor = recorded.archive.is_some().then(|| disk.anchor(&archive)).transpose()?;
            for volume in 0..volumes {
                check_marker(disk, &archive, volume, store)?;
            }
        }

        Self::claim(disk, &moved, wanted)?;
        if recorded.index != known.index && recorded.index.is_none() {
            // An index in the store is a stale one from before the move elsewhere.
            wanted.engine.remove(disk, &dir.join(INDEX)).map_err(Error::index)?;
        }

        // The switch: before it the old directories count, behind it the new ones.
        recorded.write(disk, dir)?;
        if recorded.index != known.index {
            Self::remove_left(disk, dir, known.index.as_deref(), wanted, store);
        }
        Self::enter(disk, at)
    }

    /// Removes the index that was moved away, if its directory can be reached.
    fn remove_left(
        disk: &dyn Disk,
        dir: &Path,
        before: Option<&str>,
        wanted: &Wanted<'_>,
        store: u64,
    ) {
        let Some(before) = before.map(Path::new) else {
            wanted.engine.remove(disk, &dir.join(INDEX)).ok();
            return;
        };

        // The old directory may be away, or another store's by now: remove the own index only.
        let Ok(_anchor) = disk.anchor(before) else { return };
        if StorePart::Index.check(disk, before, store).is_ok()
            && wanted.engine.remove(disk, &before.join(INDEX)).is_ok()
        {
            disk.remove(&StorePart::Index.marker_path(before)).ok();
        }
    }

    /// Directory of the store.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Identity of the store, as the file `locations` says, if there is one.
    pub(crate) fn store(&self) -> Option<u64> {
        self.recorded.as_ref().map(|recorded| recorded.store)
    }

    /// Returns whether the archive lies in the directory of the store.
    pub(crate) fn has_archive_inside(&self) -> bool {
        self.recorded.as_ref().is_none_or(|recorded| recorded.archive.is_none())
    }

    /// Directory of the volumes.
    pub(crate) fn archive(&self) -> PathBuf {
        let archive = self.recorded.as_ref().and_then(|recorded| recorded.archive.as_deref());
        archive.map_or_else(|| archive_dir(&self.dir), PathBuf::from)
    }

    /// Directory of the index.
    pub(crate) fn index(&self) -> PathBuf {
        let index = self.recorded.as_ref().and_then(|recorded| recorded.index.as_deref());
        index.map_or(self.dir.as_path(), Path::new).join(INDEX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_of_locations_is_read_back_or_refused() {
        let path = Path::new("locations");
        for (archive, index) in [(Some("/cold"), Some("/fast/a")), (Some("/é"), None), (None, None)]
        {
            let archive = archive.map(str::to_owned);
            let index = index.map(str::to_owned);
            let recorded = Recorded { store: 7, archive, index };
            let bytes = recorded.encode();
            assert_eq!(Recorded::decode(path, &bytes).unwrap(), recorded);

            for bit in 0..bytes.len() * 8 {
                let mut altered = bytes.clone();
                altered[bit / 8] ^= 1 << (bit % 8);
                assert!(Recorded::decode(path, &altered).is_err(), "bit {bit}");
                // With a checksum that fits, lengths are not believed.
                let content = altered.len() - 4;
                let crc = crc32c(&altered[..content]);
                altered[content..].copy_from_slice(&crc.to_le_bytes());
                if let Ok(decoded) = Recorded::decode(path, &altered) {
                    assert_eq!(decoded.encode(), altered, "bit {bit}");
                }
            }

            for len in 0..bytes.len() {
                assert!(Recorded::decode(path, &bytes[..len]).is_err(), "{len} bytes");
            }
        }
    }
}

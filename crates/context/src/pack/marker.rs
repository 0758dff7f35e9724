//! Markers: small files that name the store of a directory. They tell the right directory from the
//! mount point of a disk that is away, and from the directory of another store.
//!
//! | offset | size | field     | meaning                                         |
//! |--------|------|-----------|-------------------------------------------------|
//! | 0      | 8    | `magic`   | kind of the directory                           |
//! | 8      | 4    | `version` | format version                                  |
//! | 12     | 4    | `number`  | which of the directories of its kind            |
//! | 16     | 8    | `store`   | identity of the store, as in its control record |
//! | 24     | 4    | –         | zero                                            |
//! | 28     | 4    | `crc`     | CRC-32C of bytes `0..28`                        |

use std::path::Path;
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::files::create_afresh;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};

/// Size of a marker.
pub(crate) const MARKER_BYTES: usize = 32;

/// Content of a marker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marker {
    pub(crate) magic: [u8; 8],
    pub(crate) version: u32,
    pub(crate) number: u32,
    pub(crate) store: u64,
}

/// Owner of a directory, as its marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// There is no marker.
    Nobody,
    /// The store that asks.
    Own,
    /// Another store, or another directory of the same store.
    Other,
}

impl Marker {
    pub(crate) fn encode(&self) -> [u8; MARKER_BYTES] {
        let mut bytes = [0; MARKER_BYTES];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Compares the marker with the file at `path`.
    ///
    /// Cost: one read.
    ///
    /// # Errors
    /// [`UnsupportedVersion`](Error::UnsupportedVersion), [`Corrupt`](Error::Corrupt),
    /// [`Disk`](Error::Disk).
    pub(crate) fn owner_at(&self, disk: &dyn Disk, path: &Path) -> Result<Owner> {
        if disk.kind(path)?.is_none() {
            return Ok(Owner::Nobody);
        }
        let corrupt = |what| Error::Corrupt { path: path.to_owned(), address: None, what };

        let mut bytes = [0; MARKER_BYTES];
        let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
        file.read_at(&mut bytes, 0).map_err(|error| match error {
            terrane_io::Error::ShortRead { .. } => corrupt(Corrupt::short("length of a marker")),
            other => other.into(),
        })?;

        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };

        let stored = word(28);
        let computed = crc32c(&bytes[..28]);

        if stored != computed {
            let expected = u64::from(computed);
            let found = u64::from(stored);
            return Err(corrupt(Corrupt::rule("checksum of a marker", expected, found)));
        }

        // A marker of another kind has its own versions.
        if bytes[..8] == self.magic && word(8) != self.version {
            let path = path.to_owned();
            let found = word(8);
            let newest = self.version;
            return Err(Error::UnsupportedVersion { path, found, newest });
        }

        Ok(if bytes == self.encode() { Owner::Own } else { Owner::Other })
    }

    /// Writes the marker to a new file at `path`, in place of one that is there, and does not sync
    /// it.
    ///
    /// Cost: one write.
    pub(crate) fn write(&self, disk: &dyn Disk, path: &Path) -> Result<Arc<dyn DiskFile>> {
        let file = create_afresh(disk, path, OpenMode::CreateNew, Access::Buffered)?;
        file.write_at(&self.encode(), 0)?;
        Ok(file)
    }
}

//! The durable mark: how far the WAL was durable, for the next opening.
//!
//! The last frame of the WAL has no successor that calls it durable. The writer therefore notes the
//! end of the WAL in a file of its own behind each sync, and never syncs that file. The mark
//! survives the end of the process at once, and a loss of power as soon as the system has written
//! it back.
//!
//! Invariant: a mark is never above the position that was durable when it was written.
//!
//! Rejected: a second sync (doubles the cost of a commit); the mark in the segment (its page would
//! be written with every sync); the length of the file (a torn write has the length, too).

use std::path::Path;
use std::sync::Arc;

use terrane_io::EntryKind;
use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::page::error::Result;

/// Name of the file of the mark.
pub(crate) const MARK_FILE: &str = "synced";

/// First bytes of a mark; the last one is the version.
pub(crate) const MARK_MAGIC: [u8; 8] = *b"TerBSyn\x01";

/// Bytes of a mark: less than a sector, so it is never torn.
pub(crate) const MARK_BYTES: usize = 28;

/// Most reads of a mark that a writer may be changing.
const ATTEMPTS_MAX: usize = 3;

/// The mark of a writer.
#[derive(Debug)]
pub(super) struct Mark {
    /// `None` if the file cannot be opened: then there is no mark.
    file: Option<Arc<dyn DiskFile>>,
    tree: u64,
}

fn encode(tree: u64, position: u64) -> Vec<u8> {
    let mut out = Writer::with_capacity(MARK_BYTES);
    out.put(&MARK_MAGIC).u64(tree).u64(position);
    let crc = crc32c(out.bytes());
    out.u32(crc);
    out.into_bytes()
}

fn decode(bytes: &[u8; MARK_BYTES], tree: u64) -> Option<u64> {
    let mut fields = Reader::new(bytes);
    let is_ours = fields.take(8).ok()? == MARK_MAGIC && fields.u64().ok()? == tree;

    let position = fields.u64().ok()?;
    (is_ours && fields.u32().ok()? == crc32c(&bytes[..MARK_BYTES - 4])).then_some(position)
}

impl Mark {
    /// Opens the mark of a WAL; creates its file if it is missing.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::page::error::Error::Disk) if something else stands in the place of
    /// the file.
    pub(super) fn open(disk: &dyn Disk, dir: &Path, tree: u64) -> Result<Self> {
        let path = dir.join(MARK_FILE);
        let open = |mode| disk.open(&path, mode, Access::Buffered);
        let opened = match open(OpenMode::ReadWrite) {
            Err(error) if error.is_not_found() => open(OpenMode::CreateNew),
            opened => opened,
        };

        match opened {
            Err(error @ terrane_io::Error::WrongKind { .. }) => Err(error.into()),
            Err(error) => {
                // The mark only makes more damage known: the WAL does without.
                tracing::warn!(path = %path.display(), %error, "mark.failed");
                Ok(Self { file: None, tree })
            }
            Ok(file) => Ok(Self { file: Some(file), tree }),
        }
    }

    /// The file of the mark. The reserve lies behind the mark.
    pub(super) fn file(&self) -> Option<Arc<dyn DiskFile>> {
        self.file.clone()
    }

    /// Notes that the WAL is durable up to a position. If the write fails, the old mark stays,
    /// which is true, too.
    pub(super) fn set(&self, position: u64) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_at(&encode(self.tree, position), 0) {
            tracing::debug!(path = %file.path().display(), %error, "mark.failed");
        }
    }
}

/// Refuses anything but a file in the place of the mark.
///
/// # Errors
/// [`Error::Disk`](crate::page::error::Error::Disk).
pub(crate) fn check_mark(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let path = dir.join(MARK_FILE);
    match disk.kind(&path)? {
        None | Some(EntryKind::File) => Ok(()),
        Some(found) => Err(terrane_io::Error::WrongKind { path, found }.into()),
    }
}

/// Least position up to which the WAL of a tree was durable; 0 without a whole mark.
///
/// Cost: one small read.
pub(crate) fn durable_mark(disk: &dyn Disk, dir: &Path, tree: u64) -> u64 {
    let Ok(file) = disk.open(&dir.join(MARK_FILE), OpenMode::Read, Access::Buffered) else {
        return 0;
    };
    let read = |_| {
        let mut bytes = [0; MARK_BYTES];
        file.read_at(&mut bytes, 0).ok().and_then(|()| decode(&bytes, tree))
    };
    (0..ATTEMPTS_MAX).find_map(read).unwrap_or(0)
}

//! Segments: the files of the log. Each begins with a head that says which tree it is of.
//!
//! Invariant: a head is durable before the name of its segment is, so a segment without a head was never in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use super::LOG_DIR;
use super::frame::{FRAME_ALIGN, FRAME_HEAD_BYTES, FRAME_MAGIC, Frame, SEALED, UPDATES, frame_crc};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::leaf::{NONE, Sizes};
use crate::page::page::u32_at;
use crate::pager::superblock::{NUMBER_MAX, Owner};

/// First bytes of a segment; the last one is the version.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"TerBLog\x01";

/// Bytes before the first frame of a segment.
pub(crate) const SEGMENT_HEAD_BYTES: usize = 32;

/// What a read is tried for where larger ones fail.
const SECTOR_BYTES: usize = 512;

/// Digits of a segment's name.
const NAME_DIGITS: usize = 20;

/// Head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) owner: Owner,
    /// The position of the first byte behind the head.
    pub(crate) start: u64,
}

/// What stands where a head belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadFound {
    Whole(Head),
    /// The file is empty, zero or shorter than a head: its making was interrupted.
    Unwritten,
    Damaged(Corrupt),
}

impl Head {
    fn encode(self) -> [u8; SEGMENT_HEAD_BYTES] {
        let mut out = Writer::with_capacity(SEGMENT_HEAD_BYTES);
        out.put(&SEGMENT_MAGIC).u64(self.owner.tree).u64(self.start);
        let sizes = self.owner.sizes;
        out.u16(sizes.key.unwrap_or(NONE)).u16(sizes.value.unwrap_or(NONE));
        let crc = crc32c(out.bytes());
        out.u32(crc);
        let mut head = [0; SEGMENT_HEAD_BYTES];
        head.copy_from_slice(out.bytes());
        head
    }

    fn decode(bytes: &[u8; SEGMENT_HEAD_BYTES]) -> std::result::Result<Self, Corrupt> {
        let (crc, found) = (crc32c(&bytes[..28]), u32_at(bytes, 28));
        let mut fields = Reader::new(bytes);
        if fields.take(8) != Ok(&SEGMENT_MAGIC[..]) {
            return Err(Corrupt::rule("magic of a log segment", 1, 0));
        }
        if crc != found {
            return Err(Corrupt::rule("crc of the head", u64::from(crc), u64::from(found)));
        }
        let [tree, start] = [(); 2].map(|()| fields.u64().unwrap_or_default());
        if start > NUMBER_MAX || !start.is_multiple_of(FRAME_ALIGN as u64) {
            return Err(Corrupt::rule("position of the log segment", NUMBER_MAX, start));
        }
        let [key, value] = [(); 2].map(|()| fields.u16().ok().filter(|&size| size != NONE));
        Ok(Self { owner: Owner { tree, sizes: Sizes { key, value } }, start })
    }

    /// Reads the head of a file.
    ///
    /// Cost: one read; of a file of zeros all of it.
    pub(crate) fn read(file: &dyn DiskFile) -> Result<HeadFound> {
        let len = file.len()?;
        let mut bytes = [0; SEGMENT_HEAD_BYTES];
        let part = len.min(SEGMENT_HEAD_BYTES as u64) as usize;
        file.read_at(&mut bytes[..part], 0)?;
        let is_begun =
            part < SEGMENT_HEAD_BYTES && bytes.starts_with(&SEGMENT_MAGIC[..part.min(8)]);
        if is_begun || (bytes.iter().all(|&byte| byte == 0) && is_zero(file, len)?) {
            return Ok(HeadFound::Unwritten);
        }
        Ok(Self::decode(&bytes).map_or_else(HeadFound::Damaged, HeadFound::Whole))
    }
}

fn is_zero(file: &dyn DiskFile, len: u64) -> Result<bool> {
    let mut window = vec![0; 1 << 16];
    for at in (0..len).step_by(window.len()) {
        let part = &mut window[..(len - at).min(1 << 16) as usize];
        file.read_at(part, at)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A file of the log.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) start: u64,
    pub(super) owner: Owner,
}

impl Segment {
    pub(super) fn path(dir: &Path, start: u64) -> PathBuf {
        dir.join(LOG_DIR).join(format!("{start:0NAME_DIGITS$}.log"))
    }

    /// Opens a segment; `None` if its making was interrupted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is of another tree, has another place, or has a damaged head.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        tree: u64,
        start: u64,
        mode: OpenMode,
    ) -> Result<Option<Self>> {
        let path = Self::path(dir, start);
        let file = disk.open(&path, mode, Access::Buffered)?;
        let mut found = Head::read(file.as_ref())?;
        if matches!(found, HeadFound::Damaged(_)) {
            // A read may be wrong once.
            found = Head::read(file.as_ref())?;
        }
        let what = match found {
            HeadFound::Unwritten => return Ok(None),
            HeadFound::Whole(head) if head.owner.tree != tree => {
                Corrupt::rule("log segment of this tree", tree, head.owner.tree)
            }
            HeadFound::Whole(head) if head.start != start => {
                Corrupt::rule("position of the log segment", start, head.start)
            }
            HeadFound::Whole(head) => {
                return Ok(Some(Self { file, start, owner: head.owner }));
            }
            HeadFound::Damaged(what) => what,
        };
        Err(Error::Corrupt { path, what })
    }

    /// Makes a segment with a durable head; its name is not durable yet. What an attempt that was given up left there is
    /// removed, anything else is not.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if another file stands there; [`Error::Disk`].
    pub(super) fn create(disk: &dyn Disk, dir: &Path, owner: Owner, start: u64) -> Result<Self> {
        let path = Self::path(dir, start);
        if disk.kind(&path)?.is_some() {
            let left = Self::open(disk, dir, owner.tree, start, OpenMode::Read)?;
            if left.is_some_and(|left| !left.is_unused()) {
                let what = Corrupt::rule("an unused segment at the end of the log", start, start);
                return Err(Error::Corrupt { path, what });
            }
            disk.remove(&path)?;
        }
        let file = disk.open(&path, OpenMode::CreateNew, Access::Buffered)?;
        file.write_at(&Head { owner, start }.encode(), 0)?;
        file.sync().map_err(|_| Error::Poisoned { path })?;
        Ok(Self { file, start, owner })
    }

    /// Whether nothing stands behind the head.
    fn is_unused(&self) -> bool {
        self.file.len().is_ok_and(|len| len <= SEGMENT_HEAD_BYTES as u64)
    }

    /// Where a position lies in the file.
    pub(super) fn offset(&self, position: u64) -> u64 {
        position - self.start + SEGMENT_HEAD_BYTES as u64
    }

    /// The position behind the last byte of the file.
    pub(super) fn file_end(&self) -> Result<u64> {
        let len = self.file.len()?;
        Ok(self.start.saturating_add(len.saturating_sub(SEGMENT_HEAD_BYTES as u64)))
    }

    /// The frame at a position; `None` if there is none, or none that is whole.
    pub(super) fn frame(&self, position: u64) -> Result<Option<Frame>> {
        let end = self.file_end()?;
        let behind_head = position.saturating_add(FRAME_HEAD_BYTES as u64);
        if position < self.start || behind_head > end {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_at(&mut head, self.offset(position))?;
        let mut fields = Reader::new(&head);
        let magic = fields.take(4).unwrap_or_default();
        let next = |fields: &mut Reader<'_>| fields.u32().unwrap_or_default();
        let (crc, kind, body_len) = (next(&mut fields), next(&mut fields), next(&mut fields));
        let [entries, synced, replaced] = [(); 3].map(|()| fields.u64().unwrap_or_default());
        let body_end = behind_head.saturating_add(u64::from(body_len));
        if magic != FRAME_MAGIC || body_end > end || !(UPDATES..=SEALED).contains(&kind) {
            return Ok(None);
        }
        let mut body = vec![0; body_len as usize];
        self.file.read_at(&mut body, self.offset(behind_head))?;
        let found = crc32c_append(frame_crc(self.owner.tree, position, &head[8..]), &body);
        let next = self.start + (body_end - self.start).next_multiple_of(FRAME_ALIGN as u64);
        let is_end = kind == SEALED;
        Ok((found == crc).then_some(Frame {
            position,
            next,
            is_end,
            entries,
            synced,
            replaced,
            body,
        }))
    }

    /// The same, where it matters that there is none: a read may be wrong once.
    pub(super) fn frame_read_twice(&self, position: u64) -> Result<Option<Frame>> {
        match self.frame(position)? {
            None => self.frame(position),
            found => Ok(found),
        }
    }

    /// Writes what was read once more: after a failed sync it may be in the system's cache only, and count as written.
    pub(super) fn write_again(&self) -> Result<()> {
        let len = self.file.len()?;
        let mut bytes = vec![0; 1 << 20];
        for at in (0..len).step_by(bytes.len()) {
            let part = &mut bytes[..(len - at).min(1 << 20) as usize];
            self.file.read_at(part, at)?;
            self.file.write_at(part, at)?;
        }
        Ok(())
    }

    /// Whether a whole frame behind `position` says that the log was durable beyond it.
    pub(super) fn was_durable_beyond(&self, position: u64) -> Result<bool> {
        let mut found = self.frame_behind(position)?;
        while let Some(frame) = found {
            if frame.synced > position {
                return Ok(true);
            }
            found = match self.frame(frame.next)? {
                None => self.frame_behind(frame.next)?,
                next => next,
            };
        }
        Ok(false)
    }

    /// The first whole frame behind a position, wherever it begins.
    ///
    /// Cost: reads the rest of the file.
    pub(super) fn frame_behind(&self, position: u64) -> Result<Option<Frame>> {
        let end = self.file_end()?;
        let mut at = self.next_place(position);
        let mut window = vec![0; 1 << 16];
        while at.saturating_add(FRAME_HEAD_BYTES as u64) <= end {
            let len = (end - at).min(window.len() as u64) as usize;
            self.file.read_at(&mut window[..len], self.offset(at))?;
            for offset in (0..len.saturating_sub(3)).step_by(FRAME_ALIGN) {
                if window[offset..offset + 4] == FRAME_MAGIC
                    && let Some(frame) = self.frame(at + offset as u64)?
                {
                    return Ok(Some(frame));
                }
            }
            at += (len / FRAME_ALIGN * FRAME_ALIGN).max(FRAME_ALIGN) as u64;
        }
        Ok(None)
    }

    /// The same where some sectors cannot be read: frames in these are passed over.
    pub(super) fn frame_behind_unreadable(&self, position: u64) -> Option<Frame> {
        let end = self.file_end().ok()?;
        let mut at = self.next_place(position);
        let mut sector = [0; SECTOR_BYTES];
        while at.saturating_add(FRAME_HEAD_BYTES as u64) <= end {
            let len = (end - at).min(SECTOR_BYTES as u64) as usize;
            if self.file.read_at(&mut sector[..len], self.offset(at)).is_ok() {
                for offset in (0..len.saturating_sub(3)).step_by(FRAME_ALIGN) {
                    if sector[offset..offset + 4] == FRAME_MAGIC
                        && let Ok(Some(frame)) = self.frame(at + offset as u64)
                    {
                        return Some(frame);
                    }
                }
            }
            at += (len / FRAME_ALIGN * FRAME_ALIGN).max(FRAME_ALIGN) as u64;
        }
        None
    }

    /// The first place behind a position where a frame can begin.
    fn next_place(&self, position: u64) -> u64 {
        let within = position.max(self.start) - self.start;
        self.start + (within + 1).next_multiple_of(FRAME_ALIGN as u64)
    }
}

/// Starts of the files that are named as segments are, ascending.
pub(super) fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let names = disk.list(&dir.join(LOG_DIR))?;
    let mut starts: Vec<u64> = names.iter().filter_map(|entry| start_of(&entry.name)).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// The position that a segment's name says; `None` for other names.
fn start_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let is_ours = digits.len() == NAME_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_ours)
}

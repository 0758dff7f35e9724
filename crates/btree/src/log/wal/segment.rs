//! Segments: the files of the WAL. Each begins with a head that names its tree and its position.
//!
//! Files of other trees are therefore neither read nor removed. A creation makes `tree.tmp` before
//! the first segment, so a WAL with neither `tree` nor `tree.tmp` beside it has lost its tree file.
//!
//! Invariant: a head is durable before the name of its segment is, so a segment without a head was
//! never in use.

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

/// Size of a read where larger reads fail, in bytes.
const SECTOR_BYTES: usize = 512;

/// Size of a read while the file is searched for frames, in bytes.
const SCAN_BYTES: usize = 1 << 16;

/// Number of digits in the name of a segment.
const NAME_DIGITS: usize = 20;

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) owner: Owner,
    /// Position of the first byte behind the head.
    pub(crate) start: u64,
}

/// Result of reading a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadRead {
    Whole(SegmentHead),
    /// The file is empty, zero or shorter than a head: its creation was interrupted.
    Unwritten,
    Damaged(Corrupt),
}

impl SegmentHead {
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
        let crc = crc32c(&bytes[..28]);
        let found = u32_at(bytes, 28);

        let mut fields = Reader::new(bytes);
        if fields.take(8) != Ok(&SEGMENT_MAGIC[..]) {
            return Err(Corrupt::rule("magic of a log segment", 1, 0));
        }

        if crc != found {
            return Err(Corrupt::rule("crc of the head", u64::from(crc), u64::from(found)));
        }

        let [tree, start] = [(); 2].map(|()| fields.u64().unwrap_or_default());
        // Frames begin at multiples of their alignment, and so do segments.
        if start > NUMBER_MAX || !start.is_multiple_of(FRAME_ALIGN as u64) {
            return Err(Corrupt::rule("position of the log segment", NUMBER_MAX, start));
        }

        let [key, value] = [(); 2].map(|()| fields.u16().ok().filter(|&size| size != NONE));
        Ok(Self { owner: Owner { tree, sizes: Sizes { key, value } }, start })
    }

    /// Reads the head of a file.
    ///
    /// Cost: one read; for a file of zeros, all of it.
    pub(crate) fn read(file: &dyn DiskFile) -> Result<HeadRead> {
        let len = file.len()?;
        let mut bytes = [0; SEGMENT_HEAD_BYTES];
        let part = len.min(SEGMENT_HEAD_BYTES as u64) as usize;
        file.read_at(&mut bytes[..part], 0)?;

        let is_begun =
            part < SEGMENT_HEAD_BYTES && bytes.starts_with(&SEGMENT_MAGIC[..part.min(8)]);

        // A crash during the creation leaves zeros, or a first part of the head.
        if is_begun || (bytes.iter().all(|&byte| byte == 0) && is_zero(file, len)?) {
            return Ok(HeadRead::Unwritten);
        }

        Ok(Self::decode(&bytes).map_or_else(HeadRead::Damaged, HeadRead::Whole))
    }
}

/// Whether the first `len` bytes of a file are all zero.
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

/// A file of the WAL.
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

    /// Opens a segment; `None` if its creation was interrupted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the segment belongs to another tree or position, or its head is
    /// damaged.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        tree: u64,
        start: u64,
        mode: OpenMode,
    ) -> Result<Option<Self>> {
        let path = Self::path(dir, start);
        let file = disk.open(&path, mode, Access::Buffered)?;

        let mut found = SegmentHead::read(file.as_ref())?;
        if matches!(found, HeadRead::Damaged(_)) {
            // A read may be wrong once.
            found = SegmentHead::read(file.as_ref())?;
        }

        let what = match found {
            HeadRead::Unwritten => return Ok(None),
            HeadRead::Whole(head) if head.owner.tree != tree => {
                Corrupt::rule("log segment of this tree", tree, head.owner.tree)
            }
            HeadRead::Whole(head) if head.start != start => {
                Corrupt::rule("position of the log segment", start, head.start)
            }
            HeadRead::Whole(head) => {
                return Ok(Some(Self { file, start, owner: head.owner }));
            }
            HeadRead::Damaged(what) => what,
        };

        Err(Error::Corrupt { path, what })
    }

    /// Creates a segment with a durable head; its name is not durable yet. Removes what an
    /// abandoned attempt left in its place, and nothing else.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if another file stands in its place; [`Error::Disk`].
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
        file.write_at(&SegmentHead { owner, start }.encode(), 0)?;
        // After a failed sync nobody knows which bytes are durable.
        file.sync().map_err(|_| Error::Poisoned { path })?;
        Ok(Self { file, start, owner })
    }

    /// Whether the file ends with the head.
    fn is_unused(&self) -> bool {
        self.file.len().is_ok_and(|len| len <= SEGMENT_HEAD_BYTES as u64)
    }

    /// Offset of a position in the file.
    pub(super) fn offset(&self, position: u64) -> u64 {
        debug_assert!(self.start <= position, "a position of this segment");
        position - self.start + SEGMENT_HEAD_BYTES as u64
    }

    /// Position behind the last byte of the file.
    pub(super) fn file_end(&self) -> Result<u64> {
        let len = self.file.len()?;
        Ok(self.start.saturating_add(len.saturating_sub(SEGMENT_HEAD_BYTES as u64)))
    }

    /// Returns the frame at a position; `None` if there is no whole frame.
    pub(super) fn frame(&self, position: u64) -> Result<Option<Frame>> {
        let end = self.file_end()?;
        let behind_head = position.saturating_add(FRAME_HEAD_BYTES as u64);
        if position < self.start || behind_head > end {
            return Ok(None);
        }

        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_at(&mut head, self.offset(position))?;

        // Every length is checked against the end of the file before it is used.
        let mut fields = Reader::new(&head);
        let magic = fields.take(4).unwrap_or_default();
        let next = |fields: &mut Reader<'_>| fields.u32().unwrap_or_default();
        let crc = next(&mut fields);
        let kind = next(&mut fields);
        let body_len = next(&mut fields);
        let [entries, synced, replaced] = [(); 3].map(|()| fields.u64().unwrap_or_default());

        let body_end = behind_head.saturating_add(u64::from(body_len));
        if magic != FRAME_MAGIC || body_end > end || !(UPDATES..=SEALED).contains(&kind) {
            return Ok(None);
        }

        let mut body = vec![0; body_len as usize];
        self.file.read_at(&mut body, self.offset(behind_head))?;

        let found = crc32c_append(frame_crc(self.owner.tree, position, &head[8..]), &body);
        let next = self.start + (body_end - self.start).next_multiple_of(FRAME_ALIGN as u64);
        debug_assert!(position < next, "a frame has a head");

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

    /// Like [`frame`](Self::frame), where a missing frame has consequences: a read may be wrong
    /// once.
    pub(super) fn frame_read_twice(&self, position: u64) -> Result<Option<Frame>> {
        match self.frame(position)? {
            None => self.frame(position),
            found => Ok(found),
        }
    }

    /// Writes the whole file once more. After a failed sync the bytes may be in the system's cache
    /// only and yet count as written.
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

    /// Whether a whole frame behind `position` says that the WAL was durable beyond `position`.
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

    /// Returns the first whole frame behind a position, wherever it begins.
    ///
    /// Cost: reads the rest of the file.
    pub(super) fn frame_behind(&self, position: u64) -> Result<Option<Frame>> {
        self.scan(position, SCAN_BYTES, Err)
    }

    /// Like [`frame_behind`](Self::frame_behind), passing over frames in sectors that cannot be
    /// read.
    pub(super) fn frame_behind_unreadable(&self, position: u64) -> Option<Frame> {
        self.scan(position, SECTOR_BYTES, |_| Ok(())).ok().flatten()
    }

    /// Searches for a whole frame behind a position, window by window. `failed` says whether a read
    /// that fails ends the search.
    fn scan(
        &self,
        position: u64,
        window_bytes: usize,
        failed: impl Fn(Error) -> Result<()>,
    ) -> Result<Option<Frame>> {
        let end = self.file_end()?;
        let mut at = self.next_place(position);
        let mut window = vec![0; window_bytes];

        while at.saturating_add(FRAME_HEAD_BYTES as u64) <= end {
            let len = (end - at).min(window_bytes as u64) as usize;
            if let Err(error) = self.file.read_at(&mut window[..len], self.offset(at)) {
                failed(error.into())?;
                // Zeros are no magic, so no frame is found in bytes that were not read.
                window.fill(0);
            }

            for offset in (0..len.saturating_sub(3)).step_by(FRAME_ALIGN) {
                if window[offset..offset + 4] != FRAME_MAGIC {
                    continue;
                }
                match self.frame(at + offset as u64) {
                    Ok(Some(frame)) => return Ok(Some(frame)),
                    Ok(None) => {}
                    Err(error) => failed(error)?,
                }
            }

            // One place at least, so that the search ends.
            at += (len / FRAME_ALIGN * FRAME_ALIGN).max(FRAME_ALIGN) as u64;
        }

        Ok(None)
    }

    /// The first position behind another where a frame can begin.
    fn next_place(&self, position: u64) -> u64 {
        let within = position.max(self.start) - self.start;
        self.start + (within + 1).next_multiple_of(FRAME_ALIGN as u64)
    }
}

/// Starts of the files that have the name of a segment, ascending.
pub(super) fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let names = disk.list(&dir.join(LOG_DIR))?;
    let mut starts: Vec<u64> = names.iter().filter_map(|entry| start_of(&entry.name)).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// The start that a segment's name tells; `None` for other names.
fn start_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let is_ours = digits.len() == NAME_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_ours)
}

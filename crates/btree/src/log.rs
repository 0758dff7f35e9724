//! The log: every update, in order, until the tree has it.
//!
//! Invariants: a segment that has a successor ends with a frame that says so and is durable; a frame is applied as a whole or
//! not at all; what a valid frame calls durable is never cut off.

#![doc = include_str!("../../../docs/format/btree-log.md")]

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::crc32c_append;
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::block::{EntryRef, REMOVED};
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};

/// The directory of the segments.
pub(crate) const LOG_DIR: &str = "log";

/// First bytes of a frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"TeLF";

/// Bytes of a frame besides its body.
pub(crate) const FRAME_HEAD_BYTES: usize = 40;

/// Frames begin at multiples of this.
const FRAME_ALIGN: usize = 8;

/// Kind of a frame with updates.
const UPDATES: u32 = 1;

/// Kind of the frame that ends a segment.
const SEALED: u32 = 2;

/// Updates that are to become a frame, behind room for its head, so that they are written from where they are.
#[derive(Debug)]
pub(crate) struct FrameBody {
    frame: Vec<u8>,
}

impl Default for FrameBody {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl FrameBody {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + bytes + FRAME_ALIGN);
        frame.resize(FRAME_HEAD_BYTES, 0);
        Self { frame }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let value_len = value.map_or(REMOVED, |value| value.len() as u16);
        self.frame.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.frame.extend_from_slice(&value_len.to_le_bytes());
        self.frame.extend_from_slice(key);
        self.frame.extend_from_slice(value.unwrap_or_default());
    }

    pub(crate) fn bytes(&self) -> usize {
        self.frame.len() - FRAME_HEAD_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    pub(crate) fn clear(&mut self) {
        self.frame.truncate(FRAME_HEAD_BYTES);
        // What one large batch took is not kept.
        self.frame.shrink_to(1 << 20);
    }
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Where it begins.
    pub(crate) position: u64,
    /// Where the next one begins.
    pub(crate) next: u64,
    is_end: bool,
    pub(crate) entries: u64,
    synced: u64,
    pub(crate) replaced: u64,
    body: Vec<u8>,
}

impl Frame {
    /// The updates; `None` in place of one that is malformed.
    pub(crate) fn updates(&self) -> impl Iterator<Item = Option<EntryRef<'_>>> {
        let mut input = Reader::new(&self.body);
        std::iter::from_fn(move || {
            if input.rest().is_empty() {
                return None;
            }
            let update = read_update(&mut input);
            if update.is_none() {
                input = Reader::new(&[]);
            }
            Some(update)
        })
    }
}

fn read_update<'a>(input: &mut Reader<'a>) -> Option<EntryRef<'a>> {
    let key_len = usize::from(input.u16().ok()?);
    let value_len = input.u16().ok()?;
    let key = input.take(key_len).ok()?;
    let value = match value_len {
        REMOVED => None,
        len => Some(input.take(usize::from(len)).ok()?),
    };
    Some((key, value))
}

fn frame_crc(tree: u64, position: u64, from_kind: &[u8]) -> u32 {
    let crc = crc32c_append(0, &tree.to_le_bytes());
    crc32c_append(crc32c_append(crc, &position.to_le_bytes()), from_kind)
}

/// Fills in the head of a frame, and the zeros behind its body.
fn encode(
    tree: u64,
    position: u64,
    kind: u32,
    [entries, synced, replaced]: [u64; 3],
    frame: &mut Vec<u8>,
) {
    let body_len = frame.len() - FRAME_HEAD_BYTES;
    let mut head = Writer::with_capacity(FRAME_HEAD_BYTES);
    head.put(&FRAME_MAGIC).u32(0).u32(kind).u32(body_len as u32);
    head.u64(entries).u64(synced).u64(replaced);
    frame[..FRAME_HEAD_BYTES].copy_from_slice(head.bytes());
    let crc = frame_crc(tree, position, &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
}

/// A file of the log.
#[derive(Debug)]
struct Segment {
    file: Arc<dyn DiskFile>,
    start: u64,
    tree: u64,
}

impl Segment {
    fn path(dir: &Path, start: u64) -> PathBuf {
        dir.join(LOG_DIR).join(format!("{start:020}.log"))
    }

    fn open(disk: &dyn Disk, dir: &Path, tree: u64, start: u64, mode: OpenMode) -> Result<Self> {
        let file = disk.open(&Self::path(dir, start), mode, Access::Buffered)?;
        Ok(Self { file, start, tree })
    }

    /// The frame at a position; `None` if there is none, or none that is whole.
    fn frame(&self, position: u64) -> Result<Option<Frame>> {
        let Some(at) = position.checked_sub(self.start) else { return Ok(None) };
        let len = self.file.len()?;
        if at.saturating_add(FRAME_HEAD_BYTES as u64) > len {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_at(&mut head, at)?;
        let mut fields = Reader::new(&head);
        let magic = fields.take(4).unwrap_or_default();
        let next = |fields: &mut Reader<'_>| fields.u32().unwrap_or_default();
        let (crc, kind, body_len) = (next(&mut fields), next(&mut fields), next(&mut fields));
        let [entries, synced, replaced] = [(); 3].map(|()| fields.u64().unwrap_or_default());
        let end = at + FRAME_HEAD_BYTES as u64 + u64::from(body_len);
        if magic != FRAME_MAGIC || end > len || !(UPDATES..=SEALED).contains(&kind) {
            return Ok(None);
        }
        let mut body = vec![0; body_len as usize];
        self.file.read_at(&mut body, at + FRAME_HEAD_BYTES as u64)?;
        let found = crc32c_append(frame_crc(self.tree, position, &head[8..]), &body);
        let next = self.start + end.next_multiple_of(FRAME_ALIGN as u64);
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
    fn frame_read_twice(&self, position: u64) -> Result<Option<Frame>> {
        match self.frame(position)? {
            None => self.frame(position),
            found => Ok(found),
        }
    }

    /// Writes what was read once more: after a failed sync it may be in the system's cache only, and count as written.
    fn write_again(&self) -> Result<()> {
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
    fn was_durable_beyond(&self, position: u64) -> Result<bool> {
        let end = self.start + self.file.len()?;
        let mut at = position.next_multiple_of(FRAME_ALIGN as u64) + FRAME_ALIGN as u64;
        let mut window = vec![0; 1 << 16];
        while at + FRAME_HEAD_BYTES as u64 <= end {
            let len = (end - at).min(window.len() as u64) as usize;
            self.file.read_at(&mut window[..len], at - self.start)?;
            for offset in (0..len.saturating_sub(3)).step_by(FRAME_ALIGN) {
                if window[offset..offset + 4] == FRAME_MAGIC {
                    let frame = self.frame(at + offset as u64)?;
                    if frame.is_some_and(|frame| frame.synced > position) {
                        return Ok(true);
                    }
                }
            }
            at += (len / FRAME_ALIGN * FRAME_ALIGN).max(FRAME_ALIGN) as u64;
        }
        Ok(false)
    }
}

/// Starts of the segments that there are, ascending.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>> {
    let names = disk.list(&dir.join(LOG_DIR))?;
    let start = |name: &str| name.strip_suffix(".log")?.parse().ok();
    let mut starts: Vec<u64> = names.iter().filter_map(|entry| start(&entry.name)).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// Where the oldest segment begins, if there is one.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn first_position(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>> {
    Ok(list(disk, dir)?.first().copied())
}

/// Reads a log from a position on; a writer may be appending to it.
#[derive(Debug)]
pub(crate) struct LogReader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    tree: u64,
    segment: Option<Segment>,
    position: u64,
}

impl LogReader {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, tree: u64, position: u64) -> Self {
        Self { disk, dir: dir.to_owned(), tree, segment: None, position }
    }

    /// Where the next frame begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next frame; `None` if there is none yet.
    ///
    /// Cost: one read and a look at the directory if there is none, else two reads; opening a file once a segment.
    ///
    /// # Errors
    /// Of kind `NotFound` if the segment is gone: the tree has all of it.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            let segment = match self.segment.take() {
                Some(segment) => segment,
                None => self.open_segment()?,
            };
            let frame = segment.frame(self.position)?;
            let is_end = frame.as_ref().is_some_and(|frame| frame.is_end);
            self.position = frame.as_ref().map_or(self.position, |frame| frame.next);
            // A segment may have ended before its successor was made: by a writer that was killed between the two.
            let has_successor = frame.is_none()
                && segment.start != self.position
                && self.disk.kind(&Segment::path(&self.dir, self.position))?.is_some();
            if !is_end && !has_successor {
                self.segment = Some(segment);
                return Ok(frame);
            }
        }
    }

    /// The same, unless all entries were replaced since: then what is read must begin with a newer tree.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn next_of(&mut self, replaced: u64) -> Result<Option<Frame>> {
        let position = self.position;
        let frame = self.next()?;
        if frame.as_ref().is_some_and(|frame| frame.replaced > replaced) {
            self.position = position;
            self.segment = None;
            return Ok(None);
        }
        Ok(frame)
    }

    fn open_segment(&self) -> Result<Segment> {
        let starts = list(self.disk.as_ref(), &self.dir)?;
        let start = starts.into_iter().rfind(|&start| start <= self.position);
        let start = start.unwrap_or(self.position);
        Segment::open(self.disk.as_ref(), &self.dir, self.tree, start, OpenMode::Read)
    }
}

/// Whether an error says that a file is not there.
pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Disk(error) if error.is_not_found())
}

/// The end of a log, as those know it who wait for it to be durable: one syncs at a time, for all that is written by then.
///
/// Invariant: all segments but the last are durable.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The last segment, and where its last frame ends.
    end: Mutex<(Arc<dyn DiskFile>, u64)>,
    /// Up to where the log is durable.
    synced: AtomicU64,
    /// Held by who syncs; whether a sync has failed, after which none is tried.
    turn: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tail {
    fn new(segment: &Segment, end: u64) -> Arc<Self> {
        Arc::new(Self {
            end: Mutex::new((segment.file.clone(), end)),
            synced: AtomicU64::new(end),
            turn: Mutex::new(false),
        })
    }

    fn set(&self, segment: &Segment, end: u64) {
        *lock(&self.end) = (segment.file.clone(), end);
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Makes the log durable up to a position at least; whether that took a sync.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: what is durable is unknown from now on.
    pub(crate) fn sync(&self, position: u64) -> Result<bool> {
        if self.synced() >= position {
            return Ok(false);
        }
        let mut has_failed = lock(&self.turn);
        if self.synced() >= position {
            return Ok(false);
        }
        let (file, end) = lock(&self.end).clone();
        *has_failed = *has_failed || file.sync().is_err();
        if *has_failed {
            return Err(Error::Poisoned { path: file.path().to_owned() });
        }
        self.synced.fetch_max(end, Ordering::AcqRel);
        Ok(true)
    }
}

/// The log of a writer.
#[derive(Debug)]
pub(crate) struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// The last segment.
    segment: Segment,
    /// Whether it has a frame that ends it, and its successor is still to be made.
    is_sealed: bool,
    /// Starts of all segments, ascending, the last one included.
    starts: VecDeque<u64>,
    end: u64,
    tail: Arc<Tail>,
    /// Where all entries were last replaced at once.
    pub(crate) replaced: u64,
    segment_bytes: u64,
}

impl Log {
    /// The first segment of a log, durable. What an attempt that was given up may have left is removed.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        tree: u64,
        start: u64,
        segment_bytes: u64,
    ) -> Result<Self> {
        let path = dir.join(LOG_DIR);
        if disk.kind(&path)?.is_none() {
            disk.create_dir(&path)?;
            disk.sync_dir(dir)?;
        }
        for old in list(disk.as_ref(), dir)? {
            disk.remove(&Segment::path(dir, old))?;
        }
        let segment = Segment::open(disk.as_ref(), dir, tree, start, OpenMode::Truncate)?;
        disk.sync_dir(&path)?;
        Ok(Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            tail: Tail::new(&segment, start),
            segment,
            is_sealed: false,
            starts: VecDeque::from([start]),
            end: start,
            replaced: 0,
            segment_bytes,
        })
    }

    /// Reads the log from `start` on, hands out its frames, cuts off a torn end, and goes on behind it.
    ///
    /// Cost: in proportion to the log.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the log ends before `must_reach`, or before what it says was durable; [`Error::Disk`]; those of
    /// `each`.
    pub(crate) fn recover(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        tree: u64,
        (start, must_reach): (u64, u64),
        segment_bytes: u64,
        mut each: impl FnMut(&Frame) -> Result<()>,
    ) -> Result<Self> {
        let starts = list(disk.as_ref(), dir)?;
        let Some(first) = starts.iter().rposition(|&first| first <= start) else {
            if start == must_reach && starts.is_empty() {
                return Self::create(disk, dir, tree, start, segment_bytes);
            }
            return Err(lost(&Segment::path(dir, start), start, must_reach));
        };
        for &old in &starts[..first] {
            disk.remove(&Segment::path(dir, old))?;
        }
        let starts = &starts[first..];
        let mut position = start;
        for (number, &segment_start) in starts.iter().enumerate() {
            let mode = OpenMode::ReadWrite;
            let segment = Segment::open(disk.as_ref(), dir, tree, segment_start, mode)?;
            let mut is_sealed = false;
            while let Some(frame) = segment.frame_read_twice(position)? {
                position = frame.next;
                is_sealed = frame.is_end;
                if is_sealed {
                    break;
                }
                each(&frame)?;
            }
            let next = starts.get(number + 1);
            if next.is_some_and(|&next| is_sealed && next == position) {
                continue;
            }
            // Behind the end there can only be what an earlier end had left.
            let is_lost = position < must_reach
                || next.is_some()
                || (!is_sealed && segment.was_durable_beyond(position)?);
            if is_lost {
                return Err(lost(segment.file.path(), position, must_reach));
            }
            segment.file.set_len(position - segment_start)?;
            segment.write_again()?;
            segment.file.sync()?;
            return Ok(Self {
                disk: disk.clone(),
                dir: dir.to_owned(),
                tail: Tail::new(&segment, position),
                segment,
                is_sealed,
                starts: starts.iter().copied().collect(),
                end: position,
                replaced: 0,
                segment_bytes,
            });
        }
        unreachable!("the last segment has no successor")
    }

    /// Where the next frame goes.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Up to where it is durable.
    pub(crate) fn synced(&self) -> u64 {
        self.tail.synced()
    }

    /// Its end, for who waits without the writer.
    pub(crate) fn tail(&self) -> Arc<Tail> {
        self.tail.clone()
    }

    /// Where the oldest byte kept stands.
    pub(crate) fn start(&self) -> u64 {
        self.starts.front().copied().unwrap_or(self.end)
    }

    /// Appends a frame. It is not durable yet.
    ///
    /// Cost: one write; a full segment is made durable before its successor is made.
    ///
    /// # Errors
    /// [`Error::Disk`]: nothing was appended, and the call may be tried again. [`Error::Poisoned`]: a sync failed.
    pub(crate) fn append(&mut self, body: &mut FrameBody, entries: u64) -> Result<()> {
        if self.is_sealed || self.end - self.segment.start >= self.segment_bytes {
            self.begin_segment(entries)?;
        }
        self.write(UPDATES, entries, body)
    }

    /// Lets what follows begin in a segment of its own, so that it can be kept without what is there.
    ///
    /// Cost: one write and two syncs, unless the last segment is empty.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub(crate) fn cut(&mut self, entries: u64) -> Result<()> {
        if self.end == self.segment.start { Ok(()) } else { self.begin_segment(entries) }
    }

    /// Ends the last segment, unless it has been ended, and makes its successor.
    fn begin_segment(&mut self, entries: u64) -> Result<()> {
        if !self.is_sealed {
            self.write(SEALED, entries, &mut FrameBody::default())?;
            self.is_sealed = true;
        }
        self.sync()?;
        let (disk, tree) = (self.disk.as_ref(), self.segment.tree);
        let segment = Segment::open(disk, &self.dir, tree, self.end, OpenMode::Truncate)?;
        let path = self.dir.join(LOG_DIR);
        // After a failed sync of a directory its names may be lost for good, as bytes after one of a file.
        disk.sync_dir(&path).map_err(|_| Error::Poisoned { path })?;
        self.segment = segment;
        self.tail.set(&self.segment, self.end);
        self.starts.push_back(self.end);
        self.is_sealed = false;
        Ok(())
    }

    fn write(&mut self, kind: u32, entries: u64, body: &mut FrameBody) -> Result<()> {
        let numbers = [entries, self.synced(), self.replaced];
        let frame = &mut body.frame;
        let body_end = frame.len();
        encode(self.segment.tree, self.end, kind, numbers, frame);
        let (written, bytes) =
            (self.segment.file.write_at(frame, self.end - self.segment.start), frame.len());
        // It may be written once more, elsewhere.
        frame.truncate(body_end);
        written?;
        self.end += bytes as u64;
        self.tail.set(&self.segment, self.end);
        Ok(())
    }

    /// Makes all of it durable; whether that took a sync.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: what is durable is unknown from now on.
    pub(crate) fn sync(&mut self) -> Result<bool> {
        self.tail.sync(self.end)
    }

    /// Removes the segments that are not needed from `start` on. One that cannot be removed stays until the next time.
    pub(crate) fn trim(&mut self, start: u64) {
        while self.starts.get(1).is_some_and(|&next| next <= start) {
            let path = Segment::path(&self.dir, self.starts[0]);
            if let Err(error) = self.disk.remove(&path) {
                tracing::warn!(path = %path.display(), %error, "cleanup.failed");
                return;
            }
            self.starts.pop_front();
        }
    }
}

fn lost(path: &Path, found: u64, expected: u64) -> Error {
    let what = Corrupt::rule("the log reaches as far as it was durable", expected, found);
    Error::Corrupt { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;
    use terrane_io::sim::Survival;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    const TREE: u64 = 99;

    fn body(number: u64) -> FrameBody {
        let mut body = FrameBody::default();
        body.push(&number.to_le_bytes(), (!number.is_multiple_of(3)).then_some(b"value"));
        body
    }

    fn read_all(disk: &Arc<dyn Disk>, must_reach: u64) -> Result<(Log, Vec<u64>)> {
        let mut found = Vec::new();
        let log = Log::recover(disk, Path::new("/i"), TREE, (0, must_reach), 300, |frame| {
            for update in frame.updates() {
                let (key, value) = update.unwrap();
                let number = u64::from_le_bytes(key.try_into().unwrap());
                assert_eq!(value.is_some(), !number.is_multiple_of(3));
                found.push(number);
            }
            Ok(())
        })?;
        Ok((log, found))
    }

    #[test]
    fn what_was_synced_is_read_again_and_what_follows_is_a_prefix() {
        for_each_seed("what_was_synced_is_read_again", 60, |rng, seed| {
            let disk = SimDisk::new(seed);
            let dir = Path::new("/i");
            let shared: Arc<dyn Disk> = disk.clone();
            disk.create_dir(dir).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            let mut log = Log::create(&shared, dir, TREE, 0, 300).unwrap();
            let (mut written, mut durable) = (0, 0);
            for number in 0..rng.below(60) {
                log.append(&mut body(number), number).unwrap();
                written += 1;
                if rng.chance(1, 4) {
                    log.sync().unwrap();
                    durable = written;
                }
            }
            let must_reach = log.synced();
            let survival =
                [Survival::Nothing, Survival::Random(seed), Survival::Everything][rng.index(3)];
            let after: Arc<dyn Disk> = disk.after_crash(survival);
            let (mut log, found) = read_all(&after, must_reach).unwrap();
            assert!(found.iter().copied().eq(0..found.len() as u64));
            assert!(found.len() >= durable && found.len() as u64 <= written as u64);
            log.append(&mut body(found.len() as u64), 0).unwrap();
            log.sync().unwrap();
            let (_, again) = read_all(&after, log.synced()).unwrap();
            assert_eq!(again.len(), found.len() + 1);
            // A reader sees the same.
            let mut reader = LogReader::new(after.clone(), dir, TREE, 0);
            let mut frames = 0;
            while reader.next().unwrap().is_some() {
                frames += 1;
            }
            assert_eq!((frames, reader.position()), (again.len(), log.end()));
        });
    }

    #[test]
    fn a_durable_frame_that_is_damaged_is_reported() {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let dir = Path::new("/i");
        disk.create_dir(dir).unwrap();
        let mut log = Log::create(&shared, dir, TREE, 0, 1 << 20).unwrap();
        // The last frame is not known to have been durable; the zeros behind a frame do not count.
        let mut durable = Vec::new();
        for number in 0..5 {
            let start = log.end();
            let mut updates = body(number);
            log.append(&mut updates, number).unwrap();
            log.sync().unwrap();
            if number < 4 {
                durable.extend(start..start + (FRAME_HEAD_BYTES + updates.bytes()) as u64);
            }
        }
        let path = Segment::path(dir, 0);
        let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
        for at in durable {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 4], at).unwrap();
            assert!(read_all(&shared, 0).is_err(), "byte {at}");
            file.write_at(&byte, at).unwrap();
        }
    }

    #[test]
    fn segments_that_are_not_needed_go() {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let dir = Path::new("/i");
        disk.create_dir(dir).unwrap();
        let mut log = Log::create(&shared, dir, TREE, 0, 300).unwrap();
        for number in 0..50 {
            log.append(&mut body(number), number).unwrap();
        }
        let count = || list(disk.as_ref(), dir).unwrap().len();
        let before = count();
        log.trim(log.end() / 2);
        assert!(count() < before && count() > 1);
        log.trim(log.end());
        assert_eq!(count(), 1);
    }

    /// What is cut off goes without what follows; nothing is cut where nothing is.
    #[test]
    fn a_log_that_was_cut_takes_no_room_once_it_is_not_needed() {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let dir = Path::new("/i");
        disk.create_dir(dir).unwrap();
        let mut log = Log::create(&shared, dir, TREE, 0, 1 << 20).unwrap();
        for number in 0..50 {
            log.append(&mut body(number), number).unwrap();
        }
        for _ in 0..2 {
            log.cut(50).unwrap();
            let starts = list(disk.as_ref(), dir).unwrap();
            assert_eq!(starts, [0, log.end()]);
        }
        log.trim(log.end());
        let bytes = terrane_io::disk::allocated_below(disk.as_ref(), &dir.join(LOG_DIR)).unwrap();
        assert_eq!(bytes, 0);
        let start = log.end();
        log.append(&mut body(50), 51).unwrap();
        log.sync().unwrap();
        let read = |found: &mut Vec<u64>, end| {
            Log::recover(&shared, dir, TREE, (start, end), 300, |frame| {
                found.push(frame.entries);
                Ok(())
            })
        };
        let mut found = Vec::new();
        assert_eq!(read(&mut found, log.end()).unwrap().end(), log.end());
        assert_eq!(found, [51]);
    }

    /// A writer was killed when it had ended a segment and not made the next one. A later checkpoint says that the log reaches
    /// as far as that end, and a reader took its own place, before it, for the end of a damaged log.
    #[test]
    fn readers_go_beyond_an_end_whose_successor_comes_later() {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        disk.create_dir(Path::new("/i")).unwrap();
        let mut log = Log::create(&disk, Path::new("/i"), TREE, 0, 300).unwrap();
        log.append(&mut body(1), 1).unwrap();
        log.write(SEALED, 1, &mut FrameBody::default()).unwrap();
        drop(log);
        let end = disk.open(
            Path::new("/i/log/00000000000000000000.log"),
            OpenMode::Read,
            Access::Buffered,
        );
        let end = end.unwrap().len().unwrap();
        let mut readers =
            [0, end].map(|start| LogReader::new(disk.clone(), Path::new("/i"), TREE, start));
        assert!(readers[0].next_of(0).unwrap().is_some());
        for reader in &mut readers {
            assert!(reader.next_of(0).unwrap().is_none());
            assert_eq!(reader.position(), end);
        }
        let (mut log, found) = read_all(&disk, end).unwrap();
        assert_eq!((log.end(), found.len()), (end, 1));
        log.append(&mut body(2), 2).unwrap();
        for reader in &mut readers {
            let frame = reader.next_of(0).unwrap().unwrap();
            assert_eq!((frame.position, frame.entries), (end, 2));
            assert!(reader.next_of(0).unwrap().is_none());
        }
    }
}

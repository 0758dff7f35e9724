//! The write-ahead log (WAL): every update, in order, until the tree has it.
//!
//! Invariants: a segment with a successor ends with a durable frame that says so. A frame is
//! applied as a whole or not at all. Nothing that a valid frame or the durable mark calls durable
//! is ever cut off.
//!
//! **Torn or rotten.** An incomplete frame is corruption if it was once durable; otherwise it is a
//! torn write, which an opening cuts off. The superblock, the durable mark or a later frame tells
//! that it was durable. One case cannot be told apart: damage of the last frame, if the power
//! failed after its sync and before the system wrote the mark back, some seconds later.

#![doc = include_str!("../../../../docs/format/btree-log.md")]

// Bottom-up: a module imports only from modules above it.
mod frame;
mod mark;
mod segment;
mod salvage;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError};
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use self::frame::{FRAME_ALIGN, SEALED, UPDATES, encode};
pub(crate) use self::frame::{FRAME_HEAD_BYTES, FRAME_MAGIC, Frame, FrameBody};
use self::mark::Mark;
pub(crate) use self::mark::{MARK_BYTES, MARK_MAGIC, check_mark, durable_mark};
pub(crate) use self::salvage::{LostTree, Salvaged, find_lost_tree, salvage};
use self::segment::{HeadRead, Segment, SegmentHead, list};
pub(crate) use self::segment::{SEGMENT_HEAD_BYTES, SEGMENT_MAGIC};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::pager::superblock::Owner;

/// Directory of the segments.
pub(crate) const LOG_DIR: &str = "log";

/// Shortest limit of a segment, in bytes.
const SEGMENT_BYTES_MIN: u64 = 32 << 10;

/// Part of the WAL that a segment may be: a full disk is emptied segment by segment.
const SEGMENT_PART: u64 = 16;

/// Bytes of the reserve besides the longest segment: the pages of two checkpoints, and the removals
/// between two collections.
pub(crate) const RESERVE_BYTES_SLACK: u64 = 96 << 10;

/// Start of the oldest segment of a tree, if there is one.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn first_position(disk: &dyn Disk, dir: &Path, tree: u64) -> Result<Option<u64>> {
    let is_ours =
        |&start: &u64| matches!(Segment::open(disk, dir, tree, start, OpenMode::Read), Ok(Some(_)));
    Ok(list(disk, dir)?.into_iter().find(is_ours))
}

/// A reader of the WAL from a position on, while a writer may append.
#[derive(Debug)]
pub(crate) struct WalReader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    tree: u64,
    segment: Option<Segment>,
    position: u64,
}

impl WalReader {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, tree: u64, position: u64) -> Self {
        Self { disk, dir: dir.to_owned(), tree, segment: None, position }
    }

    /// Where the next frame begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next frame; `None` if there is none yet.
    ///
    /// Cost: two reads; one read and a look at the directory if there is no frame. Opens a file for
    /// each segment.
    ///
    /// # Errors
    /// An error of kind `NotFound` says that the segment is gone, since the tree has all of it.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            let segment = match self.segment.take() {
                Some(segment) => Some(segment),
                None => self.open_segment()?,
            };

            // The writer is about to create the segment.
            let Some(segment) = segment else { return Ok(None) };

            let frame = segment.frame(self.position)?;
            let is_end = frame.as_ref().is_some_and(|frame| frame.is_end);
            self.position = frame.as_ref().map_or(self.position, |frame| frame.next);

            // A writer that was killed between two segments left an ended one behind.
            let has_successor = frame.is_none()
                && segment.start != self.position
                && self.disk.kind(&Segment::path(&self.dir, self.position))?.is_some();

            if !is_end && !has_successor {
                self.segment = Some(segment);
                return Ok(frame);
            }
        }
    }

    /// Like [`next`](Self::next), but stops where all entries were replaced: from there on the
    /// frames belong above a newer tree.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub(crate) fn next_of(&mut self, replaced: u64) -> Result<Option<Frame>> {
        let position = self.position;
        let frame = self.next()?;
        if frame.as_ref().is_some_and(|frame| frame.replaced > replaced) {
            // Read again once the reader knows the tree of the replacement.
            self.position = position;
            self.segment = None;
            return Ok(None);
        }
        Ok(frame)
    }

    /// The segment at the position; `None` if the writer is creating it.
    fn open_segment(&self) -> Result<Option<Segment>> {
        let starts = list(self.disk.as_ref(), &self.dir)?;
        let start = starts.into_iter().rfind(|&start| start <= self.position);
        let start = start.unwrap_or(self.position);
        let disk = self.disk.as_ref();

        // The last segment that begins at or before the position has it.
        let opened = Segment::open(disk, &self.dir, self.tree, start, OpenMode::Read)?;

        if opened.is_none() && start < self.position {
            return Err(unwritten(&self.dir, start));
        }
        Ok(opened)
    }
}

/// The error of a segment that was in use and has no head.
fn unwritten(dir: &Path, start: u64) -> Error {
    let what = Corrupt::rule("magic of a log segment", 1, 0);
    Error::Corrupt { path: Segment::path(dir, start), what }
}

/// Whether an error says that a file is missing.
pub(crate) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Disk(error) if error.is_not_found())
}

/// The end of the WAL, shared by all who wait for durability (group commit).
///
/// One caller syncs at a time. Callers that arrive during an fsync share the next one.
///
/// Invariant: all segments but the last are durable.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The last segment, and the end of its last frame.
    end: Mutex<(Arc<dyn DiskFile>, u64)>,
    /// Position up to which the WAL is durable.
    synced: AtomicU64,
    /// Whether a sync has failed; held during a sync. After a failure no sync is tried again.
    turn: Mutex<bool>,
    mark: Mark,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tail {
    /// The end of a WAL that is durable up to `end`.
    fn new(segment: &Segment, end: u64, mark: Mark) -> Arc<Self> {
        mark.set(end);
        Arc::new(Self {
            end: Mutex::new((segment.file.clone(), end)),
            synced: AtomicU64::new(end),
            turn: Mutex::new(false),
            mark,
        })
    }

    /// Moves the end behind a frame that was appended.
    fn set(&self, segment: &Segment, end: u64) {
        debug_assert!(lock(&self.end).1 <= end, "the end only moves on");
        *lock(&self.end) = (segment.file.clone(), end);
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    /// Makes the WAL durable at least up to `position`. Returns whether that took a sync.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: from now on it is unknown which bytes are durable.
    pub(crate) fn sync(&self, position: u64) -> Result<bool> {
        // Most positions are durable already, and need no turn.
        if self.synced() >= position {
            return Ok(false);
        }

        // The caller before this one may have synced for both.
        let mut has_failed = lock(&self.turn);
        if self.synced() >= position {
            return Ok(false);
        }

        let (file, end) = lock(&self.end).clone();
        *has_failed = *has_failed || file.sync().is_err();

        // A second fsync could succeed although the first one dropped the pages.
        if *has_failed {
            return Err(Error::Poisoned { path: file.path().to_owned() });
        }

        // Still under the lock, so that no mark overwrites a later one.
        self.mark.set(end);
        self.synced.fetch_max(end, Ordering::AcqRel);
        Ok(true)
    }
}

/// The WAL of a writer.
#[derive(Debug)]
pub(crate) struct Wal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// The last segment.
    segment: Segment,
    /// Whether the last segment has its end frame and its successor is still to be created.
    is_sealed: bool,
    /// Starts of all segments, ascending, the last segment included.
    starts: VecDeque<u64>,
    end: u64,
    tail: Arc<Tail>,
    /// Position at which all entries were last replaced at once.
    pub(crate) replaced: u64,
    segment_bytes: u64,
    /// Length of the longest segment since the WAL was opened.
    longest: u64,
}

/// Bytes of a body as a frame, including the end frame of a segment behind it.
fn frame_bytes(body: &FrameBody) -> u64 {
    (body.bytes().next_multiple_of(FRAME_ALIGN) + 2 * FRAME_HEAD_BYTES) as u64
}

impl Wal {
    /// Creates an empty, durable WAL that begins at a position.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if another file stands in the place of its segment; [`Error::Disk`].
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        owner: Owner,
        start: u64,
        segment_bytes: u64,
    ) -> Result<Self> {
        let segment = Segment::create(disk.as_ref(), dir, owner, start)?;
        disk.sync_dir(&dir.join(LOG_DIR))?;

        let mark = Mark::open(disk.as_ref(), dir, owner.tree)?;
        Ok(Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            tail: Tail::new(&segment, start, mark),
            segment,
            is_sealed: false,
            starts: VecDeque::from([start]),
            end: start,
            replaced: 0,
            segment_bytes,
            longest: 0,
        })
    }

    /// Reads the WAL from `start` on, hands its frames to `each`, cuts a torn end off, and goes on
    /// behind it. Removes segments that are not needed; leaves files of other trees alone.
    ///
    /// Cost: in proportion to the WAL.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the WAL ends before `must_reach`, or before a position that
    /// the WAL or the durable mark calls durable, or if a file of another tree stands among the
    /// segments; [`Error::Disk`]; those of `each`.
    pub(crate) fn recover(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        tree: u64,
        (start, must_reach): (u64, u64),
        segment_bytes: u64,
        mut each: impl FnMut(&Frame) -> Result<()>,
    ) -> Result<Self> {
        let must_reach = must_reach.max(durable_mark(disk.as_ref(), dir, tree));
        let (old, mut segments) = live_segments(disk.as_ref(), dir, tree, start)?;
        let starts: VecDeque<u64> = segments.iter().map(|segment| segment.start).collect();

        let (position, is_sealed) = read_frames(&segments, (start, must_reach), &mut each)?;
        let Some(segment) = segments.pop() else {
            return Err(lost_in(&Segment::path(dir, start), start, must_reach));
        };

        // A later frame that tells of a durable end behind this one proves that frames are missing.
        let was_longer = !is_sealed && segment.was_durable_beyond(position)?;
        if position < must_reach || was_longer || position < segment.start {
            return Err(lost_in(segment.file.path(), position, must_reach));
        }

        // Only now: a WAL that is refused stays as it is.
        for old in old {
            disk.remove(&Segment::path(dir, old))?;
        }

        // The end is torn, not damaged: nothing behind it was ever durable.
        segment.file.set_len(segment.offset(position))?;
        segment.write_again()?;
        segment.file.sync()?;

        // The creation of the segment may have been interrupted before its name was durable.
        disk.sync_dir(&dir.join(LOG_DIR))?;

        let mark = Mark::open(disk.as_ref(), dir, tree)?;

        // The reserve must fit the longest segment, also one from before this opening.
        let ends = starts.iter().skip(1).copied().chain([position]);
        let longest = starts.iter().zip(ends).map(|(start, end)| end.saturating_sub(*start)).max();

        Ok(Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            longest: longest.unwrap_or(0),
            tail: Tail::new(&segment, position, mark),
            segment,
            is_sealed,
            starts,
            end: position,
            replaced: 0,
            segment_bytes,
        })
    }

    /// Position of the next frame.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Position up to which the WAL is durable.
    pub(crate) fn synced(&self) -> u64 {
        self.tail.synced()
    }

    /// The end of the WAL, for callers that wait without the writer's lock.
    pub(crate) fn tail(&self) -> Arc<Tail> {
        self.tail.clone()
    }

    /// Position of the oldest byte kept.
    pub(crate) fn start(&self) -> u64 {
        self.starts.front().copied().unwrap_or(self.end)
    }

    /// Appends a frame, which is not durable yet.
    ///
    /// Cost: one write. A full segment is made durable before its successor is created.
    ///
    /// # Errors
    /// [`Error::Disk`]: nothing was appended, and the call may be repeated.
    /// [`Error::Poisoned`]: a sync failed.
    pub(crate) fn append(&mut self, body: &mut FrameBody, entries: u64) -> Result<()> {
        let len = self.end - self.segment.start;
        // An empty segment takes any frame, also one above the limit.
        let is_full = len > 0 && len + frame_bytes(body) > self.segment_limit();
        if self.is_sealed || is_full {
            self.begin_segment(entries)?;
        }
        self.write(UPDATES, entries, body)
    }

    /// Most bytes of a segment. A short WAL has short segments, since a segment is the least that
    /// can be removed.
    pub(crate) fn segment_limit(&self) -> u64 {
        let part = (self.end - self.start()) / SEGMENT_PART;
        // A power of two, so that the limit changes seldom.
        let part = 1 << part.max(1).ilog2();
        part.max(SEGMENT_BYTES_MIN).min(self.segment_bytes)
    }

    /// Length that the reserve must have before this frame is appended.
    pub(crate) fn reserve_bytes(&self, body: &FrameBody) -> u64 {
        let longest = self.longest.max(self.segment_limit()).max(frame_bytes(body));
        (longest + RESERVE_BYTES_SLACK).next_multiple_of(SEGMENT_BYTES_MIN)
    }

    /// Whether the last segment is the only one.
    pub(crate) fn has_one_segment(&self) -> bool {
        self.starts.len() == 1
    }

    /// Bytes of the oldest segment.
    pub(crate) fn oldest_bytes(&self) -> u64 {
        self.starts.get(1).copied().unwrap_or(self.end) - self.start()
    }

    /// The frames of the oldest segment, which is not the last one, and the start of the next
    /// segment.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a frame is not whole; [`Error::Disk`].
    pub(crate) fn oldest_frames(&self) -> Result<(Vec<Frame>, u64)> {
        debug_assert!(!self.has_one_segment(), "the last segment still grows");
        let start = self.start();
        let next = self.starts.get(1).copied().unwrap_or(self.end);
        let disk = self.disk.as_ref();
        let tree = self.segment.owner.tree;
        let segment = Segment::open(disk, &self.dir, tree, start, OpenMode::Read)?
            .ok_or_else(|| unwritten(&self.dir, start))?;

        let mut frames = Vec::new();
        let mut position = start;
        while position < next {
            let frame = segment.frame_read_twice(position)?;
            let frame = frame.ok_or_else(|| lost_in(segment.file.path(), position, next))?;
            position = frame.next;
            frames.push(frame);
        }

        Ok((frames, next))
    }

    /// The file that the reserve is allocated in, behind the durable mark.
    pub(crate) fn reserve_file(&self) -> Option<Arc<dyn DiskFile>> {
        self.tail.mark.file()
    }

    /// Begins a new segment, so that the frames to come can be kept without those before.
    ///
    /// Cost: one write and two syncs, unless the last segment is empty.
    ///
    /// # Errors
    /// Those of [`append`](Self::append).
    pub(crate) fn cut(&mut self, entries: u64) -> Result<()> {
        if self.end == self.segment.start { Ok(()) } else { self.begin_segment(entries) }
    }

    /// Seals the last segment, unless it is sealed, and creates its successor.
    fn begin_segment(&mut self, entries: u64) -> Result<()> {
        if !self.is_sealed {
            self.write(SEALED, entries, &mut FrameBody::default())?;
            self.is_sealed = true;
        }

        // Only the last segment of a WAL may have a torn end.
        self.sync()?;

        let disk = self.disk.as_ref();
        let segment = Segment::create(disk, &self.dir, self.segment.owner, self.end)?;
        let path = self.dir.join(LOG_DIR);

        // After a failed sync of a directory its names may be lost for good, as bytes of a file
        // after a failed fsync.
        disk.sync_dir(&path).map_err(|_| Error::Poisoned { path })?;

        assert!(self.starts.back().is_some_and(|&last| last < self.end), "starts ascend");
        self.segment = segment;
        self.tail.set(&self.segment, self.end);
        self.starts.push_back(self.end);
        self.is_sealed = false;
        Ok(())
    }

    /// Writes a frame behind the last one.
    fn write(&mut self, kind: u32, entries: u64, body: &mut FrameBody) -> Result<()> {
        debug_assert!(self.segment.start <= self.end, "a segment begins before its frames");
        debug_assert!(self.synced() <= self.end, "nothing is durable that was not written");

        // Each frame notes how far the WAL was durable before it: that tells a torn end from damage
        // later.
        let numbers = [entries, self.synced(), self.replaced];
        let frame = &mut body.frame;
        let body_end = frame.len();
        encode(self.segment.owner.tree, self.end, kind, numbers, frame);
        let bytes = frame.len();

        // A failed write may have left a part; the next attempt overwrites it at the same offset.
        let written = self.segment.file.write_at(frame, self.segment.offset(self.end));

        // The body may be written once more, elsewhere.
        frame.truncate(body_end);
        written?;

        self.end += bytes as u64;
        self.longest = self.longest.max(self.end - self.segment.start);
        self.tail.set(&self.segment, self.end);
        Ok(())
    }

    /// Makes the whole WAL durable. Returns whether that took a sync.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: from now on it is unknown which bytes are durable.
    pub(crate) fn sync(&mut self) -> Result<bool> {
        self.tail.sync(self.end)
    }

    /// Removes the segments that are not needed from `start` on. A segment that cannot be removed
    /// stays until the next call.
    pub(crate) fn trim(&mut self, start: u64) {
        // The last segment stays, since new frames go there.
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

/// Hands out the frames of segments that follow each other. Returns the end of the last whole
/// frame, and whether that frame ends its segment.
///
/// # Errors
/// [`Error::Corrupt`] if a segment but the last does not end exactly where the next begins, with a
/// frame that says so; those of `each`.
fn read_frames(
    segments: &[Segment],
    (start, must_reach): (u64, u64),
    each: &mut impl FnMut(&Frame) -> Result<()>,
) -> Result<(u64, bool)> {
    let mut position = start;
    let mut is_sealed = false;
    for (number, segment) in segments.iter().enumerate() {
        is_sealed = false;
        while let Some(frame) = segment.frame_read_twice(position)? {
            assert!(position < frame.next, "each frame takes the reader on");
            position = frame.next;
            is_sealed = frame.is_end;
            if is_sealed {
                break;
            }
            each(&frame)?;
        }

        match segments.get(number + 1) {
            Some(next) if is_sealed && next.start == position => {}
            // Only a WAL with an earlier end can have left segments behind this one.
            Some(_) => return Err(lost_in(segment.file.path(), position, must_reach)),
            None => {}
        }
    }

    Ok((position, is_sealed))
}

/// The starts of the segments that are not needed from `start` on, and the needed segments,
/// ascending.
///
/// # Errors
/// [`Error::Corrupt`] if a needed segment is missing, damaged or of another tree.
fn live_segments(
    disk: &dyn Disk,
    dir: &Path,
    tree: u64,
    start: u64,
) -> Result<(Vec<u64>, Vec<Segment>)> {
    let open = |at| Segment::open(disk, dir, tree, at, OpenMode::ReadWrite);
    let mut old = Vec::new();
    let mut live = VecDeque::new();
    let mut refused = None;
    let mut is_last = true;

    for at in list(disk, dir)?.into_iter().rev() {
        let has_first = live.front().is_some_and(|first: &Segment| first.start <= start);
        match open(at) {
            Ok(Some(_)) if has_first => old.push(at),
            // A segment that is not needed may be anything.
            _ if has_first => {}
            Ok(Some(segment)) => live.push_front(segment),
            // Its creation was interrupted.
            Ok(None) if is_last && at > start => {}
            Ok(None) => return Err(unwritten(dir, at)),
            Err(error @ Error::Corrupt { .. }) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }

        is_last = false;
    }

    match refused {
        Some(error) => Err(error),
        None => Ok((old, live.into())),
    }
}

/// Removes segments that a rewritten WAL does not need. A segment that cannot be removed stays.
pub(crate) fn remove_segments(disk: &dyn Disk, dir: &Path, starts: &[u64]) {
    for &start in starts {
        let path = Segment::path(dir, start);
        if let Err(error) = disk.remove(&path) {
            tracing::warn!(path = %path.display(), %error, "cleanup.failed");
        }
    }
}

/// Whether the WAL is what an interrupted creation leaves: at most the first segment, without a
/// frame.
pub(crate) fn is_unused(disk: &dyn Disk, dir: &Path) -> bool {
    let Ok(names) = disk.list(&dir.join(LOG_DIR)) else { return false };
    match &names[..] {
        [] => true,
        [only] if dir.join(LOG_DIR).join(&only.name) == Segment::path(dir, 0) => {
            let path = Segment::path(dir, 0);
            let opened = disk.open(&path, OpenMode::Read, Access::Buffered);
            opened.is_ok_and(|file| {
                file.len().is_ok_and(|len| len <= SEGMENT_HEAD_BYTES as u64)
                    && !matches!(
                        SegmentHead::read(file.as_ref()),
                        Err(_) | Ok(HeadRead::Damaged(_))
                    )
            })
        }
        _ => false,
    }
}

/// Removes the first segment of an interrupted creation.
pub(crate) fn remove_unused(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let path = Segment::path(dir, 0);
    if disk.kind(&path)?.is_some() {
        disk.remove(&path)?;
    }
    Ok(())
}

/// The error of a WAL that ends before a durable position.
pub(crate) fn lost(dir: &Path, found: u64, expected: u64) -> Error {
    let what = Corrupt::rule("the log reaches as far as it was durable", expected, found);
    Error::Corrupt { path: dir.join(LOG_DIR), what }
}

/// Like [`lost`], naming the segment.
fn lost_in(path: &Path, found: u64, expected: u64) -> Error {
    let what = Corrupt::rule("the log reaches as far as it was durable", expected, found);
    Error::Corrupt { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests;

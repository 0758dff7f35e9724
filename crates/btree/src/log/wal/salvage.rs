//! Salvage of a damaged WAL: all whole frames, and the gaps between them.
//!
//! Nothing is written. Frames behind a gap count, too. The updates in a gap are unknown, so a
//! repair reports its positions.

use std::collections::HashMap;
use std::path::Path;

use terrane_io::{Access, Disk, OpenMode};

use super::frame::Frame;
use super::mark::durable_mark;
use super::segment::{HeadRead, Segment, SegmentHead, list};
use crate::page::error::{Error, Result};
use crate::pager::superblock::Owner;

/// The findings of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Salvaged {
    /// Ranges of positions with durable frames that are lost, each from the first on and below the
    /// second, ascending.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// Whether the WAL must be written anew, as an opening would refuse it.
    pub(crate) is_broken: bool,
    /// Position for new frames.
    pub(crate) end: u64,
    /// Starts of the segments that were read.
    pub(crate) segments: Vec<u64>,
}

/// A tree whose WAL is present and whose tree file is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostTree {
    pub(crate) owner: Owner,
    /// Position at which the WAL begins.
    pub(crate) start: u64,
}

/// The tree that most segments of a directory belong to; `None` if there is no segment.
///
/// Cost: a read for each segment.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn find_lost_tree(disk: &dyn Disk, dir: &Path) -> Result<Option<LostTree>> {
    let mut found: HashMap<u64, (usize, LostTree)> = HashMap::new();
    for start in list(disk, dir)? {
        let path = Segment::path(dir, start);
        let opened = disk.open(&path, OpenMode::Read, Access::Buffered).map_err(Error::from);
        let head = opened.and_then(|file| SegmentHead::read(file.as_ref()));
        if let Ok(HeadRead::Whole(SegmentHead { owner, .. })) = head {
            let lost = LostTree { owner, start };
            found.entry(owner.tree).or_insert((0, lost)).0 += 1;
        }
    }

    // The number of the tree decides between equal counts, so that the answer does not depend on a
    // hash.
    let most = found.into_values().max_by_key(|(segments, lost)| (*segments, lost.owner.tree));
    Ok(most.map(|(_, lost)| lost))
}

/// Opens a file that may be a segment with a damaged head; `None` if the file has no frame of this
/// tree.
fn open_headless(disk: &dyn Disk, dir: &Path, owner: Owner, start: u64) -> Option<Segment> {
    let path = Segment::path(dir, start);
    let file = disk.open(&path, OpenMode::Read, Access::Buffered).ok()?;
    let segment = Segment { file, start, owner };
    let has_frame = segment.frame(start).is_ok_and(|frame| frame.is_some())
        || segment.frame_behind_unreadable(start).is_some();
    has_frame.then_some(segment)
}

/// The segments that are needed from a position on, ascending, and whether one of them is damaged.
fn segments(disk: &dyn Disk, dir: &Path, owner: Owner, start: u64) -> Result<(Vec<Segment>, bool)> {
    let mut segments = Vec::new();
    let mut is_broken = false;
    for at in list(disk, dir)?.into_iter().rev() {
        match Segment::open(disk, dir, owner.tree, at, OpenMode::Read) {
            Ok(Some(segment)) => segments.push(segment),
            // Its creation was interrupted.
            Ok(None) => is_broken |= !segments.is_empty() || at <= start,
            Err(_) => {
                is_broken = true;
                segments.extend(open_headless(disk, dir, owner, at));
            }
        }
        if segments.last().is_some_and(|segment| segment.start <= start) {
            break;
        }
    }

    segments.reverse();
    Ok((segments, is_broken))
}

/// Reads all whole frames of a WAL from `start` on, which was durable at least up to `must_reach`.
///
/// Cost: reads the WAL.
///
/// # Errors
/// [`Error::Disk`] if the segments cannot be listed; those of `each`.
pub(crate) fn salvage(
    disk: &dyn Disk,
    dir: &Path,
    owner: Owner,
    (start, must_reach): (u64, u64),
    mut each: impl FnMut(&Frame) -> Result<()>,
) -> Result<Salvaged> {
    let must_reach = must_reach.max(durable_mark(disk, dir, owner.tree));
    let (segments, is_broken) = segments(disk, dir, owner, start)?;
    let mut found = Salvaged { is_broken, end: start, ..Salvaged::default() };

    for (number, segment) in segments.iter().enumerate() {
        found.segments.push(segment.start);
        found.skip_to(segment.start);

        let is_last = number + 1 == segments.len();
        let mut is_sealed = false;
        while let Some(frame) = next_whole(segment, found.end, must_reach, is_last) {
            found.skip_to(frame.position);
            found.end = frame.next;
            is_sealed = frame.is_end;
            if is_sealed {
                break;
            }
            each(&frame)?;
        }

        found.is_broken |= !is_last && !is_sealed;
    }

    found.is_broken |= segments.is_empty();
    // Positions that were durable and have no frame are lost, too.
    found.skip_to(must_reach);
    Ok(found)
}

/// The frame at a position, or the next whole frame behind it unless the WAL ends here.
fn next_whole(segment: &Segment, position: u64, must_reach: u64, is_last: bool) -> Option<Frame> {
    // A frame that cannot be read is damaged.
    if let Ok(Some(frame)) = segment.frame_read_twice(position) {
        return Some(frame);
    }

    let is_torn =
        is_last && position >= must_reach && !segment.was_durable_beyond(position).unwrap_or(true);
    if is_torn { None } else { segment.frame_behind_unreadable(position) }
}

impl Salvaged {
    /// Moves on to a position; the bytes up to there are a gap.
    fn skip_to(&mut self, position: u64) {
        if self.end < position {
            debug_assert!(self.gaps.last().is_none_or(|gap| gap.1 <= self.end), "gaps ascend");
            self.gaps.push((self.end, position));
            self.is_broken = true;
            self.end = position;
        }
    }
}

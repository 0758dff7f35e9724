//! Prefetch: reads under way for the readers of one cursor or compaction.
//!
//! The readers share one queue, which is there while anything is under way. As it may take a
//! descriptor, it counts as an open file of the session, and when there is no room for it nothing
//! is read ahead. Merges, which keep theirs while they pause, leave half of the places that there
//! are for this to others. What the readers of a cursor have asked for and not yet taken is bounded
//! for all of them together by [`BYTES_MAX`]; those of a merge have a share each. Buffers are used
//! again.
//!
//! In a session with a memory budget all cursors together have an [allowance](ReadAhead). What a
//! cursor reads ahead and the chunks that its readers hold count, but for a page of each reader. A
//! cursor that gets no more of it reads page by page, and never fails for want of memory.
//!
//! The reader that takes a failed read gets the error; an error of a read that no reader takes is
//! dropped. Dropping the last reader waits for what is in flight.

use std::fmt;

use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex};
use terrane_io::{AlignedBuf, Completion, Direction, DiskFile, IoQueue, Request};

use crate::error::Result;
use crate::files::file_set::lock;
use crate::files::handles::{FileHandles, OpenFilePermit};

/// Most bytes that one cursor has asked for ahead.
const BYTES_MAX: usize = 8 << 20;

/// Most reads in flight, of all readers.
const DEPTH: usize = 64;

/// Buffers that are kept for later reads. Beyond it, readers have ended.
const SPARE_MAX: usize = 16;

/// Bytes that all cursors of a session together may hold in chunks.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    bytes_max: u64,
    used: AtomicU64,
}

impl ReadAhead {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, used: AtomicU64::new(0) })
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes that cursors hold.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes, or none.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.bytes_max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(bytes <= before, "what is given back was taken");
    }
}

#[derive(Default)]
struct PrefetchState {
    /// `None` while nothing is under way.
    queue: Option<(Box<dyn IoQueue>, OpenFilePermit)>,
    next_tag: u64,
    /// Completions that no reader has taken yet.
    arrived: Vec<Completion>,
    /// Bytes asked for and not yet taken.
    bytes: usize,
    spare: Vec<AlignedBuf>,
    /// Bytes taken of the allowance.
    charged: u64,
}

/// The reads ahead of one cursor or merge.
pub(crate) struct Prefetcher {
    handles: Arc<FileHandles>,
    bytes_max: usize,
    /// Places beyond which none is taken.
    permits_max: usize,
    /// Shared by all cursors of a session that has a memory budget.
    allowance: Option<Arc<ReadAhead>>,
    state: Mutex<PrefetchState>,
}

impl fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetcher")
            .field("bytes", &lock(&self.state).bytes)
            .finish_non_exhaustive()
    }
}

/// A read that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) buffer: AlignedBuf,
    /// Whether it had to be waited for.
    pub(crate) was_late: bool,
}

impl Prefetcher {
    /// Returns the prefetcher of a cursor. Nothing is under way yet.
    pub(crate) fn of_scan(
        handles: &Arc<FileHandles>,
        allowance: Option<&Arc<ReadAhead>>,
    ) -> Arc<Self> {
        Self::with_limits(handles, BYTES_MAX, handles.files_max() / 4, allowance)
    }

    /// Returns the prefetcher of a compaction, whose readers bound themselves what they ask for.
    pub(crate) fn of_merge(handles: &Arc<FileHandles>) -> Arc<Self> {
        Self::with_limits(handles, usize::MAX, handles.files_max() / 8, None)
    }

    fn with_limits(
        handles: &Arc<FileHandles>,
        bytes_max: usize,
        permits_max: usize,
        allowance: Option<&Arc<ReadAhead>>,
    ) -> Arc<Self> {
        let handles = Arc::clone(handles);
        let allowance = allowance.map(Arc::clone);
        Arc::new(Self { handles, bytes_max, permits_max, allowance, state: Mutex::default() })
    }

    /// Takes so many bytes of the allowance, or none; always succeeds without an allowance.
    pub(crate) fn charge(&self, bytes: usize) -> bool {
        let Some(allowance) = &self.allowance else { return true };
        let is_taken = allowance.take(bytes as u64);
        if is_taken {
            lock(&self.state).charged += bytes as u64;
        }
        is_taken
    }

    /// Gives bytes back to the allowance.
    pub(crate) fn discharge(&self, bytes: usize) {
        let Some(allowance) = &self.allowance else { return };
        let mut state = lock(&self.state);
        debug_assert!(bytes as u64 <= state.charged, "what is given back was taken");
        state.charged -= bytes as u64;
        allowance.give_back(bytes as u64);
    }

    /// Begins to read with the next [`submit`](Self::submit); returns what to take it by, or `None`
    /// if enough is under way, if there is no room for a queue or no allowance for the bytes, or if
    /// `file` gives no file now. The reader [discharges](Self::discharge) the bytes when it lets
    /// the buffer go.
    ///
    /// # Errors
    /// That of `file`; and if the disk gives no queue.
    pub(crate) fn begin(
        &self,
        offset: u64,
        bytes: usize,
        file: impl FnOnce() -> Result<Option<Arc<dyn DiskFile>>>,
    ) -> Result<Option<u64>> {
        if !self.charge(bytes) {
            return Ok(None);
        }
        let begun = self.begin_charged(offset, bytes, file);
        if !matches!(begun, Ok(Some(_))) {
            self.discharge(bytes);
        }
        begun
    }

    /// Begins to read bytes that the allowance covers.
    fn begin_charged(
        &self,
        offset: u64,
        bytes: usize,
        file: impl FnOnce() -> Result<Option<Arc<dyn DiskFile>>>,
    ) -> Result<Option<u64>> {
        let mut state = lock(&self.state);
        let PrefetchState { queue, next_tag, bytes: under_way, spare, .. } = &mut *state;
        // The limit bounds the memory of all reads ahead of one cursor.
        if *under_way + bytes > self.bytes_max {
            return Ok(None);
        }

        let Some(file) = file()? else { return Ok(None) };
        let (queue, _) = match queue {
            Some(queue) => queue,
            // A queue may hold a descriptor, so it needs a permit, as an open file does.
            None => {
                let Some(permit) = self.handles.permit(self.permits_max)? else { return Ok(None) };
                queue.insert((self.handles.disk().queue(DEPTH)?, permit))
            }
        };

        let tag = *next_tag;
        *next_tag += 1;
        *under_way += bytes;
        debug_assert!(*under_way <= self.bytes_max);
        // Buffers of one size are used again, which spares zeroing them.
        let at = spare.iter().position(|buffer| buffer.len() == bytes);
        let buffer = at.map_or_else(|| AlignedBuf::zeroed(bytes), |at| spare.swap_remove(at));
        debug_assert_eq!(buffer.len(), bytes, "what is taken is what was counted");
        let direction = Direction::Read;
        queue.push(Request { tag, file, offset, buffer, direction });

        Ok(Some(tag))
    }

    /// Whether the read under `tag` has arrived, so that `take` returns at once.
    pub(crate) fn has_arrived(&self, tag: u64) -> bool {
        let mut state = lock(&self.state);
        let PrefetchState { queue, arrived, .. } = &mut *state;
        while let Some(done) = queue.as_mut().and_then(|(queue, _)| queue.poll()) {
            arrived.push(done);
        }
        arrived.iter().any(|done| done.tag == tag)
    }

    /// Hands what was begun to the disk, all at once.
    pub(crate) fn submit(&self) {
        if let Some(queue) = &mut lock(&self.state).queue {
            queue.0.submit();
        }
    }

    /// Takes what was begun under `tag`, waiting for it; each once.
    ///
    /// # Errors
    /// That of the read.
    pub(crate) fn take(&self, tag: u64) -> Result<Arrived> {
        let mut state = lock(&self.state);
        debug_assert!(tag < state.next_tag, "a read is begun before it is taken");
        let PrefetchState { queue, arrived, bytes, charged, .. } = &mut *state;
        let Some((reads, _)) = queue else { unreachable!("begun before") };

        // All reads that are done are taken in first, so that `was_late` tells of real waits only.
        while let Some(done) = reads.poll() {
            arrived.push(done);
        }

        let mut was_late = false;
        let at = loop {
            if let Some(at) = arrived.iter().position(|done| done.tag == tag) {
                break at;
            }
            was_late = true;
            arrived.push(reads.pop().expect("the read was begun and not taken"));
        };

        let Completion { buffer, result, .. } = arrived.swap_remove(at);
        debug_assert!(arrived.iter().all(|done| done.tag != tag), "a read arrives once");
        // The queue may hold a descriptor, so it goes with the last read.
        if reads.outstanding() == 0 && arrived.is_empty() {
            *queue = None;
        }

        debug_assert!(buffer.len() <= *bytes, "each read is taken once");
        *bytes -= buffer.len();
        debug_assert!(queue.is_some() || *bytes == 0, "the queue goes with the last read");
        // An error leaves the counts right, so that other reads go on.
        if let (Err(_), Some(allowance)) = (&result, &self.allowance) {
            *charged -= buffer.len() as u64;
            allowance.give_back(buffer.len() as u64);
        }
        result?;
        Ok(Arrived { buffer, was_late })
    }

    /// Keeps a buffer for a later read, unless the memory is counted.
    pub(crate) fn give_back(&self, buffer: AlignedBuf) {
        if self.allowance.is_some() {
            return;
        }
        let mut state = lock(&self.state);
        if state.spare.len() < SPARE_MAX {
            state.spare.push(buffer);
        }
        debug_assert!(state.spare.len() <= SPARE_MAX);
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        if let Some(allowance) = &self.allowance {
            allowance.give_back(lock(&self.state).charged);
        }
    }
}

//! Write queue: writes chunks of runs while the compactions that made them go on.
//!
//! All merges of a session share one queue, which is there while anything is under way. As it may
//! take a descriptor, it counts as an open file of the session. The chunks under way are at most
//! [`IN_FLIGHT_MAX`], a quarter of the files that may be open, and the chunks that fit an eighth of
//! the reserve. The caller itself writes a chunk beyond these limits. The queue begins no write
//! while another thread waits for one, because the waiting thread holds the queue.
//!
//! A chunk in flight keeps its file open and its bytes, so that a write that fails can be made
//! again. The caller must ask for the result ([`InFlight::land`]); until then nothing may rely on
//! the write. Dropping an [`InFlight`] waits for the write, so that nothing is written to the file
//! of a run that is gone.
//!
//! Invariant: once [`WriteQueue::end`] has returned, after writing was ended in the session,
//! nothing is in flight.

use std::collections::BTreeMap;
use std::fmt;

use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use terrane_io::{AlignedBuf, Completion, Direction, IoQueue, Request};

use crate::error::Result;
use crate::files::handles::{FileHandles, OpenFilePermit, PooledFile};

/// Most chunks in flight.
const IN_FLIGHT_MAX: usize = 32;

/// Buffers that are kept for later chunks.
const SPARE_MAX: usize = 8;

#[derive(Default)]
struct WriteQueueState {
    /// `None` while nothing is in flight.
    queue: Option<(Box<dyn IoQueue>, OpenFilePermit)>,
    next_tag: u64,
    /// Results of writes that no caller has taken yet; a failed write with its bytes.
    landed: BTreeMap<u64, Option<(terrane_io::Error, AlignedBuf)>>,
    spare: Vec<AlignedBuf>,
}

impl WriteQueueState {
    /// Notes a write that has ended, and drops the queue after the last one.
    fn note(&mut self, done: Completion) {
        let Completion { tag, buffer, result } = done;
        let failed = match result {
            Ok(()) => {
                self.give_back(buffer);
                None
            }
            Err(error) => Some((error, buffer)),
        };
        debug_assert!(tag < self.next_tag, "a write is begun before it ends");
        let earlier = self.landed.insert(tag, failed);
        debug_assert!(earlier.is_none(), "a write ends once");
        self.queue.take_if(|(queue, _)| queue.outstanding() == 0);
    }

    /// Takes in what has ended; does not wait.
    fn reap(&mut self) {
        while let Some(done) = self.queue.as_mut().and_then(|(queue, _)| queue.poll()) {
            self.note(done);
        }
    }

    /// Waits for one more write to end; whether there was any.
    fn wait(&mut self) -> bool {
        let done = self.queue.as_mut().and_then(|(queue, _)| queue.pop());
        done.is_some_and(|done| {
            self.note(done);
            true
        })
    }

    fn give_back(&mut self, buffer: AlignedBuf) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
        debug_assert!(self.spare.len() <= SPARE_MAX);
    }
}

/// The write queue of a session.
pub(crate) struct WriteQueue {
    handles: Arc<FileHandles>,
    state: Mutex<WriteQueueState>,
}

impl fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteQueue").finish_non_exhaustive()
    }
}

impl WriteQueue {
    /// Nothing in flight yet.
    pub(crate) fn new(handles: &Arc<FileHandles>) -> Arc<Self> {
        Arc::new(Self { handles: Arc::clone(handles), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, WriteQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, unless another thread waits for a write.
    fn state_unless_busy(&self) -> Option<MutexGuard<'_, WriteQueueState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Chunks that an eighth of the reserve has room for, if there is one: when the disk is full
    /// all that is in flight is still written, and much is left for what must go on.
    fn in_reserve(&self, chunk_bytes: usize) -> usize {
        debug_assert!(0 < chunk_bytes);
        match self.handles.disk_reserve().bytes() as usize {
            0 => usize::MAX,
            bytes => bytes / 8 / chunk_bytes,
        }
    }

    /// Begins to write all of `chunk`, which is another buffer of the same length then; `None`, and
    /// nothing has happened, if it cannot be begun now.
    ///
    /// # Errors
    /// Errors of [`PooledFile::to_change`], and of a file that had to be closed. No write has begun
    /// then.
    pub(crate) fn begin(
        self: &Arc<Self>,
        file: &PooledFile,
        chunk: &mut AlignedBuf,
        offset: u64,
    ) -> Result<Option<InFlight>> {
        // The right is held until the request is in the queue, where `end` waits for it.
        let (_right, file) = file.to_change()?;
        let files_max = self.handles.files_max();
        let Some(mut state) = self.state_unless_busy() else { return Ok(None) };
        state.reap();

        let in_flight = state.queue.as_ref().map_or(0, |(queue, _)| queue.outstanding());
        // Beyond these limits the caller writes the chunk, and so goes no faster than the disk.
        if in_flight >= IN_FLIGHT_MAX.min(files_max / 4).min(self.in_reserve(chunk.len())) {
            return Ok(None);
        }

        let WriteQueueState { queue, next_tag, spare, .. } = &mut *state;
        let (queue, _) = match queue {
            Some(queue) => queue,
            None => {
                let Some(permit) = self.handles.permit(files_max / 4)? else { return Ok(None) };
                // Without a queue the caller writes the chunk itself, so this error has no one to
                // tell.
                let queued = self.handles.disk().queue(IN_FLIGHT_MAX);
                let Ok(queued) = queued else { return Ok(None) };
                queue.insert((queued, permit))
            }
        };

        let fits = spare.iter().position(|buffer| buffer.len() == chunk.len());
        let next = fits.map_or_else(|| AlignedBuf::zeroed(chunk.len()), |at| spare.swap_remove(at));
        let tag = *next_tag;
        *next_tag += 1;
        let buffer = std::mem::replace(chunk, next);
        debug_assert_eq!(buffer.len(), chunk.len(), "the next chunk is as large");
        queue.push(Request { tag, file, offset, buffer, direction: Direction::Write });
        queue.submit();
        debug_assert!(queue.outstanding() <= IN_FLIGHT_MAX);

        Ok(Some(InFlight { behind: Arc::clone(self), tag: Some(tag), offset }))
    }

    /// Waits for all that is in flight; no more may come.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        while state.wait() {}
        debug_assert!(state.queue.is_none(), "the last write drops the queue");
    }

    /// Waits for a write; returns the error and the bytes if it failed.
    fn take(&self, tag: u64) -> Option<(terrane_io::Error, AlignedBuf)> {
        let mut state = self.state();
        state.reap();
        loop {
            if let Some(failed) = state.landed.remove(&tag) {
                return failed;
            }
            assert!(state.wait(), "a write that was begun ends");
        }
    }
}

/// A chunk that failed to be written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pub(crate) chunk: AlignedBuf,
    pub(crate) offset: u64,
}

/// A chunk on its way to its file.
#[derive(Debug)]
pub(crate) struct InFlight {
    behind: Arc<WriteQueue>,
    /// `None` once the result was taken.
    tag: Option<u64>,
    offset: u64,
}

impl InFlight {
    /// Whether the write is known to have ended, so that `land` returns at once.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(mut state) = self.behind.state_unless_busy() else { return false };
        state.reap();
        self.tag.is_none_or(|tag| state.landed.contains_key(&tag))
    }

    /// Waits for the write.
    ///
    /// # Errors
    /// That of the disk, with what was to be written.
    pub(crate) fn land(mut self) -> std::result::Result<(), (terrane_io::Error, Unwritten)> {
        let failed = self.tag.take().and_then(|tag| self.behind.take(tag));
        failed
            .map_or(Ok(()), |(error, chunk)| Err((error, Unwritten { chunk, offset: self.offset })))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        drop(self.tag.take().and_then(|tag| self.behind.take(tag)));
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use terrane_io::SimDisk;
    use terrane_io::{Access, FaultKind, FaultPlan, Repeat};

    use super::*;
    use crate::error::Error;

    const CHUNK: usize = 8192;

    fn behind(files_max: usize) -> (Arc<SimDisk>, Arc<FileHandles>, Arc<WriteQueue>) {
        let disk = SimDisk::new(1);
        let pool = FileHandles::new(Arc::clone(&disk) as _, files_max);
        let behind = WriteQueue::new(&pool);
        (disk, pool, behind)
    }

    fn file(pool: &Arc<FileHandles>, n: u8) -> PooledFile {
        pool.create(PathBuf::from(format!("/{n}")), Access::Direct).unwrap()
    }

    fn chunk(byte: u8) -> AlignedBuf {
        let mut chunk = AlignedBuf::zeroed(CHUNK);
        chunk.fill(byte);
        chunk
    }

    fn content(disk: &SimDisk, n: u8) -> Vec<u8> {
        disk.read_raw(format!("/{n}")).unwrap()
    }

    /// Whether a queue is empty: nothing in flight, nothing kept, no permit taken.
    fn is_idle(behind: &WriteQueue) -> bool {
        let state = behind.state();
        state.queue.is_none() && state.landed.is_empty()
    }

    #[test]
    fn chunks_land_in_their_files_in_any_order_of_asking() {
        let (disk, pool, behind) = behind(1024);

        let files: Vec<PooledFile> = (0..8).map(|n| file(&pool, n)).collect();
        let mut in_flight = Vec::new();
        for (n, file) in (0..).zip(&files) {
            let mut bytes = chunk(n);
            let begun = behind.begin(file, &mut bytes, CHUNK as u64).unwrap().unwrap();
            assert_eq!(bytes.len(), CHUNK, "another buffer to fill");
            in_flight.push(begun);
        }

        while let Some(last) = in_flight.pop() {
            last.land().unwrap();
        }

        for n in 0..8 {
            let content = content(&disk, n);
            assert_eq!(content.len(), 2 * CHUNK);
            assert!(content[CHUNK..].iter().all(|&byte| byte == n));
        }

        assert!(is_idle(&behind));
        assert!(behind.state().spare.len() <= SPARE_MAX);
    }

    #[test]
    fn a_write_that_fails_gives_the_chunk_back() {
        let (disk, pool, behind) = behind(1024);
        let file = file(&pool, 1);
        // The call before it makes the queue.
        disk.set_plan(FaultPlan::fail(disk.calls() + 1, FaultKind::Eio, Repeat::Once));
        let mut bytes = chunk(7);
        let begun = behind.begin(&file, &mut bytes, 0).unwrap().unwrap();
        let (_, unwritten) = begun.land().unwrap_err();
        assert_eq!(unwritten.offset, 0);
        file.write_at(&unwritten.chunk, unwritten.offset).unwrap();
        assert_eq!(content(&disk, 1), [7; CHUNK]);
        assert!(is_idle(&behind));
    }

    #[test]
    fn no_more_is_in_flight_than_the_open_files_allow() {
        for (files_max, most) in [(4, 1), (16, 4), (1024, IN_FLIGHT_MAX)] {
            let (_, pool, behind) = behind(files_max);
            let file = file(&pool, 1);
            let mut begun = Vec::new();

            let mut seen = 0;
            for at in 0..100 {
                begun.extend(behind.begin(&file, &mut chunk(1), at * CHUNK as u64).unwrap());
                let state = behind.state();
                let now = state.queue.as_ref().map_or(0, |(queue, _)| queue.outstanding());
                assert!(now <= most, "{now} of {most}");
                seen = seen.max(now);
            }

            assert!(seen > 0 && !begun.is_empty());
        }
    }

    #[test]
    fn what_is_given_up_is_waited_for() {
        let (disk, pool, behind) = behind(1024);
        let file = file(&pool, 1);
        drop(behind.begin(&file, &mut chunk(3), 0).unwrap().unwrap());
        assert_eq!(content(&disk, 1), [3; CHUNK]);
        assert!(is_idle(&behind));
        drop(file);
        assert_eq!(disk.open_files(), 0);
    }

    #[test]
    fn after_the_end_nothing_is_in_flight_and_nothing_begins() {
        let (disk, pool, behind) = behind(1024);
        let file = file(&pool, 1);
        let begin = |at: u8| behind.begin(&file, &mut chunk(at), u64::from(at) * CHUNK as u64);
        let begun: Vec<InFlight> = (0..8).map(|at| begin(at).unwrap().unwrap()).collect();
        pool.end_writing();
        behind.end();
        let content = content(&disk, 1);
        assert_eq!(content.len(), 8 * CHUNK);
        assert!(begun.iter().all(InFlight::has_ended));
        assert!(matches!(begin(8), Err(Error::SessionClosed)));
        assert!(begun.into_iter().all(|begun| begun.land().is_ok()));

        assert!(is_idle(&behind));
    }
}

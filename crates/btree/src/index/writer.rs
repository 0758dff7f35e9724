//! The writer of an index: the WAL, the buffer of updates, their application to leaves,
//! checkpoints.
//!
//! An update goes into the unflushed buffer.
//!
//! - A *flush* appends the unflushed updates to the WAL as one frame and makes them pending.
//! - An *apply* takes the pending updates of the range that has waited longest to the leaves of one
//!   node, once the buffer or the WAL is too long.
//! - A *checkpoint* writes and syncs the new nodes, the applied positions and the free map, and
//!   then switches the superblock to the tree that the applies have led to.
//!
//! Invariants: the WAL has an update before any leaf has it. A published tree has only updates up
//! to which the WAL is durable. A published tree with the WAL behind it is what was flushed.
//!
//! A failed call leaves everything as it was, with two exceptions that poison the writer: a failed
//! sync, and a superblock write whose outcome is unknown.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::rare;
use terrane_io::{Disk, LockGuard, Reserve};

use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::log::wal::{FrameBody, Wal};
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::page::{PAGE_SIZE, PageRef};
use crate::pager::config::Limits;
use crate::pager::free_map::FreeMap;
use crate::pager::superblock::Superblock;
use crate::tree::state::{Core, State};
use crate::tree::tree::{Epoch, Tree};

/// Most applies in one call. Bounds the latency of a call: each apply reads and writes at most
/// [`APPLY_LEAVES_MAX`] leaves.
const APPLIES_MAX: usize = 32;

/// Most leaves that one apply writes.
pub(super) const APPLY_LEAVES_MAX: u64 = 256;

/// Pages of a checkpoint besides its new nodes: superblock, applied positions, parts of the free
/// map.
const CHECKPOINT_PAGES: u64 = 32;

/// Least size of the unflushed buffer, in bytes.
const UNFLUSHED_BYTES_MIN: usize = 16 << 10;

/// The user's function that a flush calls before it writes anything.
pub(crate) type FlushCallback = Box<dyn FnMut() -> std::result::Result<(), String> + Send>;

/// The writer of an index. See the [module](self).
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: Limits,
    pub(crate) free_map: FreeMap,
    pub(crate) wal: Wal,
    /// Disk space that removals may take on a full disk.
    pub(crate) reserve: Reserve,
    /// The unflushed updates, encoded as the next frame of the WAL.
    pub(crate) body: FrameBody,
    pub(crate) applied: Applied,
    /// The published superblock.
    pub(crate) superblock: Superblock,
    /// Generation of the superblock that the index was opened with.
    pub(crate) opened_generation: u64,
    /// Pages of the stored free map.
    pub(crate) maps: Vec<PageRef>,
    /// Number of entries as of the last flush.
    pub(crate) flushed_entries: u64,
    /// Epochs of the published tree and of older trees that somebody still reads, ascending.
    pub(crate) epochs: VecDeque<Arc<Epoch>>,
    /// Readers in other processes as of the last checkpoint: their oldest generation, and their
    /// number.
    pub(crate) readers: (Option<u64>, u32),
    pub(crate) quarantine: Quarantine,
    /// Key that the next scrub begins with.
    pub(crate) scrub_from: Vec<u8>,
    pub(crate) before_flush: Option<FlushCallback>,
    /// The file whose state on disk is unknown after a failed sync; nothing may be written any
    /// more.
    pub(crate) poisoned: Option<PathBuf>,
    pub(crate) _lock: Box<dyn LockGuard>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("superblock", &self.superblock).finish_non_exhaustive()
    }
}

/// Figures of a writer for [`Stats`](crate::Stats).
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterStats {
    pub(crate) file_pages: u64,
    pub(crate) used_pages: u64,
    pub(crate) held_pages: u64,
    pub(crate) log_bytes: u64,
    pub(crate) reserve_bytes: u64,
    pub(crate) generation: u64,
    pub(crate) readers: u32,
    pub(crate) damaged_ranges: u64,
    pub(crate) is_poisoned: bool,
}

/// Fill level of the buffer and the WAL, whichever is nearer to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// Far from it: calls apply nothing.
    Low,
    /// Three quarters are reached: each call applies in proportion to its own updates.
    High,
    /// The limit is reached: each call applies as much as one call may.
    Full,
}

impl Writer {
    pub(crate) fn stats(&self) -> WriterStats {
        debug_assert!(self.wal.start() <= self.wal.end(), "the log does not end before it starts");
        WriterStats {
            file_pages: self.free_map.pages(),
            used_pages: self.free_map.used_pages(),
            held_pages: self.free_map.held_pages(),
            log_bytes: self.wal.end() - self.wal.start(),
            reserve_bytes: if self.reserve.is_full() { 0 } else { self.reserve.bytes() },
            generation: self.superblock.generation,
            readers: self.readers.1,
            damaged_ranges: self.quarantine.len() as u64,
            is_poisoned: self.poisoned.is_some(),
        }
    }

    /// Refuses to go on once the writer is poisoned.
    pub(crate) fn check_usable(&self) -> Result<()> {
        match &self.poisoned {
            Some(path) => Err(Error::Poisoned { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Poisons the writer if `result` is a failed sync.
    pub(crate) fn poison_if_failed<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(Error::Poisoned { path }) = &result {
            self.poisoned = Some(path.clone());
        }
        result
    }

    /// Makes room for a batch of `bytes` bytes: flushes, applies and publishes as needed.
    ///
    /// On a full disk a batch that makes room itself goes on without; any other batch is refused.
    pub(crate) fn make_room(&mut self, core: &Core, bytes: usize, makes_room: bool) -> Result<()> {
        self.check_usable()?;
        if !makes_room {
            self.take_reserve_back(core)?;
        }

        // Flushed before the updates outgrow the reserve.
        if !self.body.is_empty() && self.body.bytes() + bytes > self.unflushed_bytes_max() {
            self.flush(core, false)?;
        }

        if self.reserve.is_full() {
            // On a full disk an apply would write its updates once more before the WAL gets
            // shorter.
            return self.adapt_cache(core);
        }

        if self.pressure(core)? != Pressure::Low {
            match self.reserve_pages(core) {
                Err(error) if makes_room && error.is_no_space() => return self.adapt_cache(core),
                reserved => reserved?,
            }
        }

        // Half as much again as comes in: the calls that follow one large flush apply it bit by
        // bit.
        let mut owed = bytes + bytes / 2;

        for _ in 0..APPLIES_MAX {
            match self.pressure(core)? {
                Pressure::Low => break,
                Pressure::High if owed == 0 => break,
                pressure => match self.apply_oldest(core) {
                    Ok(bytes) => owed = owed.saturating_sub(bytes),
                    // Updates of damaged leaves stop other updates only once the buffer has no room
                    // left.
                    Err(Error::Corrupt { .. }) if pressure == Pressure::High => {
                        rare::taken("updates of a damaged leaf wait while others are applied");
                        break;
                    }
                    Err(error) if makes_room && error.is_no_space() => break,
                    Err(error) => return Err(error),
                },
            }
        }

        self.adapt_cache(core)
    }

    /// Most bytes that may be unflushed. One frame must fit into the reserve, which may be all the
    /// room there is.
    fn unflushed_bytes_max(&self) -> usize {
        self.limits.unflushed_bytes.min(self.wal.segment_limit() as usize).max(UNFLUSHED_BYTES_MIN)
    }

    /// Grows the tree file so that the next apply and the checkpoint behind it find their free
    /// pages.
    fn reserve_pages(&mut self, core: &Core) -> Result<()> {
        let used = self.free_map.used_pages();
        let (leaves, fresh) = {
            let state = core.state()?;
            let updates = (state.pending.memory_bytes() / (PAGE_SIZE / 2)) as u64;
            (
                (used.min(APPLY_LEAVES_MAX / 4) + updates).min(APPLY_LEAVES_MAX),
                state.tree.fresh_nodes,
            )
        };

        // Held pages count as used: they become free only behind the next checkpoint.
        let wanted = used + leaves + fresh + CHECKPOINT_PAGES;
        if self.free_map.pages() >= wanted {
            return Ok(());
        }

        core.pager.file().allocate(wanted * PAGE_SIZE as u64)?;

        if self.free_map.grow(wanted) {
            Ok(())
        } else {
            Err(Error::Full { path: core.pager.path().to_owned() })
        }
    }

    /// Fill level of the buffer and the WAL.
    fn pressure(&self, core: &Core) -> Result<Pressure> {
        let buffered = core.state()?.pending.memory_bytes();
        debug_assert!(
            self.applied.oldest().0 <= self.wal.end(),
            "no update is applied before it is logged"
        );
        let logged = self.wal.end().saturating_sub(self.applied.oldest().0);
        let buffer_max = self.limits.buffer_bytes;
        let log_max = self.limits.log_bytes;

        Ok(if buffered > buffer_max || logged > log_max {
            Pressure::Full
        } else if buffered > buffer_max - buffer_max / 4 || logged > log_max - log_max / 4 {
            Pressure::High
        } else {
            Pressure::Low
        })
    }

    /// Gives the page cache the memory that nothing else takes.
    pub(super) fn adapt_cache(&self, core: &Core) -> Result<()> {
        let state = core.state()?;
        let taken = state.pending.memory_bytes()
            + state.unflushed.memory_bytes()
            + self.body.bytes()
            + state.tree.fresh_nodes as usize * (PAGE_SIZE + 256)
            + self.limits.other_bytes;
        drop(state);

        core.pager.cache.set_bytes(self.limits.memory_bytes.saturating_sub(taken));
        Ok(())
    }

    /// Makes everything durable and publishes the end of the WAL, so that a damaged end is told
    /// from a torn one.
    pub(crate) fn close(&mut self, core: &Core) -> Result<()> {
        self.with_reserve(core, |writer| writer.flush(core, true))?;
        let is_published = self.superblock.log_end == self.wal.end()
            && self.free_map.held_pages_of(self.superblock.generation) == 0
            && core.state()?.tree.fresh_nodes == 0;

        // On a full disk the checkpoint may fail: the WAL has everything.
        if is_published { Ok(()) } else { unless_no_space(self.checkpoint(core)) }
    }
}

/// The visible state of an index right after opening.
pub(crate) fn opened_state(tree: Tree, pending: UpdateBuffer, entries: u64) -> State {
    State { tree: Arc::new(tree), pending, unflushed: UpdateBuffer::default(), entries }
}

//! Flush and commit: how updates get into the WAL.
//!
//! A *flush* appends all unflushed updates as one frame and makes them pending. A *commit* appends
//! the updates of one batch as a frame of its own, and makes them visible at one moment.
//!
//! Invariant: an update is pending only once the WAL has it. After a failed append the updates are
//! still unflushed, and a committed batch has changed nothing.

use crate::index::writer::Writer;
use crate::log::pending::UpdateBuffer;
use crate::log::wal::FrameBody;
use crate::page::block::{self, EntryRef};
use crate::page::error::{Error, Result};
use crate::tree::state::Core;

/// Updates that become pending under one lock: bounds how long lookups wait.
const PENDING_CHUNK: usize = 1_000;

impl Writer {
    /// Appends the unflushed updates to the WAL, and makes the WAL durable if `sync` is set.
    ///
    /// Cost: one write, one sync; a write and two syncs more when a segment of the WAL is full.
    pub(crate) fn flush(&mut self, core: &Core, sync: bool) -> Result<()> {
        self.check_usable()?;

        if !self.body.is_empty() {
            if let Some(callback) = &mut self.before_flush {
                callback().map_err(|reason| Error::FlushRefused { reason })?;
            }

            let entries = core.state()?.entries;

            // The body leaves the writer for the call: the append borrows the writer as a whole.
            let mut body = std::mem::take(&mut self.body);
            let appended = self.append(core, &mut body, entries, entries < self.flushed_entries);
            self.body = body;
            appended?;
            self.body.clear();
            self.flushed_entries = entries;

            // Only now: a frame that was not appended leaves its updates unflushed.
            make_pending(core)?;
        }

        // Syncing without new updates still makes earlier flushes durable.
        if sync {
            let synced = self.wal.sync();
            core.pager.counters.syncs.add(u64::from(self.poison_if_failed(synced)?));
        }

        Ok(())
    }

    /// Begins a new segment, so that the WAL can be removed up to here once all flushed updates are
    /// applied and published.
    pub(crate) fn cut_log(&mut self, core: &Core) -> Result<()> {
        let before = self.wal.end();
        let cut = self.wal.cut(self.flushed_entries);
        core.pager.counters.log_bytes.add(self.wal.end() - before);
        self.poison_if_failed(cut)
    }

    /// Applies updates and appends them to the WAL as one frame: all of them or none, whatever
    /// fails. Returns the end of the WAL behind the frame.
    ///
    /// Cost: the lookups, and one write; as [`flush`](Self::flush) when a segment of the WAL is
    /// full.
    pub(crate) fn commit(
        &mut self,
        core: &Core,
        updates: &[EntryRef<'_>],
        was_there: impl FnOnce(&Core) -> Result<Vec<bool>>,
    ) -> Result<u64> {
        let bytes = updates.iter().map(|&(key, value)| block::entry_bytes(key, value)).sum();
        let was_there = was_there(core)?;
        debug_assert_eq!(was_there.len(), updates.len(), "an answer for each update");
        let makes_room = makes_room(updates.iter().map(|(_, value)| *value).zip(&was_there));
        // Room is made before anything changes, so that a failure leaves the index as it was.
        self.make_room(core, bytes, makes_room)?;

        // Unflushed updates of other callers, who asked for no flush, get a frame of their own.
        self.flush(core, false)?;

        let mut body = FrameBody::with_capacity(bytes);
        let mut entries = core.state()?.entries;

        // A removal of a missing key changes nothing: the frame leaves it out.
        let has_effect =
            |&((_, value), was_there): &(EntryRef<'_>, bool)| value.is_some() || was_there;

        let updates = updates.iter().copied().zip(was_there).filter(has_effect);
        for ((key, value), was_there) in updates.clone() {
            entries = (entries + u64::from(value.is_some())).saturating_sub(u64::from(was_there));
            body.push(key, value);
        }

        if let Some(callback) = &mut self.before_flush {
            callback().map_err(|reason| Error::FlushRefused { reason })?;
        }

        self.append(core, &mut body, entries, makes_room)?;

        // The frame is appended: nothing can fail any more.
        self.flushed_entries = entries;
        let mut state = core.state_mut();
        state.entries = entries;

        for ((key, value), _) in updates {
            state.pending.insert(key, value);
        }

        Ok(self.wal.end())
    }
}

/// Whether a batch gives disk space back: it only removes, or leaves fewer entries than before.
/// Takes the value of each update and whether its key is present.
pub(crate) fn makes_room<'a>(updates: impl Iterator<Item = (Option<&'a [u8]>, &'a bool)>) -> bool {
    let mut puts = 0;
    let mut more = 0;
    for (value, &was_there) in updates {
        puts += u64::from(value.is_some());
        more += i64::from(value.is_some()) - i64::from(was_there);
    }
    puts == 0 || more < 0
}

/// Makes all unflushed updates pending. Each update is visible throughout, in one buffer or in
/// both.
fn make_pending(core: &Core) -> Result<()> {
    let flushed = core.state()?.unflushed.clone();
    let mut updates = flushed.iter().peekable();
    while updates.peek().is_some() {
        // Taken anew for each chunk, so that lookups come in between.
        let mut state = core.state_mut();
        for (key, value) in updates.by_ref().take(PENDING_CHUNK) {
            state.pending.insert(key, value);
        }
    }
    core.state_mut().unflushed = UpdateBuffer::default();
    Ok(())
}

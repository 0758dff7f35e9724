//! Memory of a table: what it sets aside of its own budget, and what it is granted of the budget of
//! the session.

use std::sync::Arc;

use super::Table;
use crate::compaction::levels::{Capacity, Levels};
use crate::config::{DiskCache, TableConfig, WriteBuffer};
use crate::error::Result;
use crate::memory::grants::Grant;
use crate::run::page_cache::CacheShare;
use crate::session::inner::Registered;
use crate::trace::event;

/// Part of the session's memory budget that a table has; nothing without such a budget.
#[derive(Debug, Clone, Default)]
pub(super) struct TableGrant {
    /// A table that has not been updated holds that of its original, whose memory it keeps.
    grant: Option<Arc<Grant>>,
    /// Whether it is this table's own.
    is_own: bool,
    /// The number of flushes when the table asked for it.
    asked_at: Option<u64>,
}

impl TableGrant {
    /// The grant, if it is the table's own.
    pub(super) fn own(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref().filter(|_| self.is_own)
    }

    /// Returns the part of a fork, which keeps what it shares in memory, and counts zero itself
    /// until it is updated.
    pub(super) fn for_fork(&self) -> Self {
        Self { grant: self.grant.clone(), is_own: false, asked_at: None }
    }
}

/// A cache of pages, if lookups of the table read past the system's, and the table or the session
/// has a budget for one.
pub(super) fn new_cache(session: &Registered, config: &TableConfig) -> Option<CacheShare> {
    if config.disk_cache == DiskCache::All {
        return None;
    }
    match config.memory_budget {
        Some(budget) => Some(CacheShare::new(budget)),
        None => session.memory().map(|memory| memory.cache_share()),
    }
}

impl Table {
    /// Before the first update of a table with a memory budget: until then other things have all of
    /// it.
    pub(super) fn make_room_to_write(&mut self) {
        let is_forked = self.own_grant();
        if self.has_room_to_write {
            if is_forked {
                // The original has set memory aside for itself, and this table does so now.
                self.limit_cache(&self.tree);
            }
            return;
        }
        self.has_room_to_write = true;
        if let Some(budget) = self.config.memory_budget {
            self.tree.make_room_to_write(&self.context(), budget);
            self.limit_cache(&self.tree);
        }
    }

    /// Leaves to the cache of pages what a tree, which is the table's or is about to be, does not
    /// need.
    pub(super) fn limit_cache(&self, tree: &Levels) {
        let context = self.context();
        match (&self.cache, self.config.memory_budget) {
            (Some(cache), Some(budget)) => {
                let (bytes, runs) = tree.left_for_pages(&context, budget, self.has_room_to_write);
                cache.set(bytes, runs);
            }
            // The session says how large its cache may be.
            (Some(cache), None) => cache.set(u64::MAX, tree.run_numbers()),
            (None, _) => {}
        }
        if let (Some(grant), Some(budget)) = (self.grant.own(), self.config.memory_budget) {
            grant.note_own(budget, tree.beside_runs(&context, budget));
        }
    }

    /// Notes in the session's memory what the table holds before its first update.
    pub(super) fn join_session_memory(&mut self) {
        self.grant = TableGrant::default();
        if self.config.memory_budget.is_some() || !self.tree.buffer.is_empty() {
            self.own_grant();
            self.note_buffers();
        }
    }

    /// Takes a grant of its own in a session with a memory budget, unless it has one.
    fn own_grant(&mut self) -> bool {
        let Some(memory) = self.session.memory().filter(|_| !self.grant.is_own) else {
            return false;
        };
        let grant = Some(Arc::new(Grant::new(memory)));
        self.grant = TableGrant { grant, is_own: true, asked_at: None };
        true
    }

    /// Notes the memory of the write buffers.
    pub(super) fn note_buffers(&self) {
        // With a budget of its own the table has set aside what they take.
        if let Some(grant) = self.grant.own().filter(|_| self.config.memory_budget.is_none()) {
            grant.note_used(self.tree.buffer_memory_bytes());
        }
    }

    /// Asks for another grant if a memtable has begun since the last one, and makes the memtable
    /// as large as the grant.
    #[cold]
    pub(super) fn renew_grant(&mut self) {
        let flushes = Some(self.tree.flushes);
        let Some(grant) = self.grant.own().filter(|_| self.grant.asked_at != flushes) else {
            return;
        };

        if let WriteBuffer::Bytes(stated) = self.config.write_buffer {
            let granted = grant.renew(stated);
            // Levels are multiples of the capacity, so it changes by factors of two, and seldom.
            let capacity = (stated / stated.div_ceil(granted.max(1)).next_power_of_two()).max(1);
            grant.keep(capacity);
            self.capacity = Capacity::of(&self.config, Some(capacity));
            self.tree.untimed = 0;
        } else {
            // Entries have any size, so the table asks for all, and gets its part.
            grant.renew(u64::MAX);
        }
        self.grant.asked_at = flushes;
        // Time has another measure now.
        self.next_work = 0;
    }

    /// Before a batch, in a session with a memory budget: flushes what the grant has no room for.
    #[cold]
    pub(super) fn make_room_in_session(&mut self) {
        self.renew_grant();
        if !self.must_make_room() {
            return;
        }
        event!(DEBUG, "memory.flush", self.session.dir(), table = self.session.id());
        // No batch fails for want of memory: a flush that is due reports the same error.
        if let Err(error) = self.flush_early() {
            event!(WARN, "memory.flush_failed", self.session.dir(), %error);
        }
    }

    fn flush_early(&mut self) -> Result<()> {
        if self.grant_is_used_up() {
            self.tree = self.flush()?;
            self.note_buffers();
            self.renew_grant();
        }
        // The flush began under a larger grant than the memtable has.
        if self.flush_is_in_the_way()
            && let Some(flush) = &self.tree.flushing
        {
            flush.finish()?;
            self.note_buffers();
        }
        Ok(())
    }

    /// Writes the memtable as a run, and gives the grant back.
    ///
    /// Cost: that of the flush, and what is left of the one before.
    ///
    /// # Errors
    /// Those of a flush.
    pub(crate) fn release_memtable(&mut self) -> Result<()> {
        event!(DEBUG, "memory.flush", self.session.dir(), table = self.session.id());
        if let Some(flush) = self.begin_flush()? {
            flush.finish()?;
        }
        self.note_buffers();
        if let Some(grant) = self.grant.own() {
            grant.keep(0);
        }
        // The next update asks for another grant.
        self.grant.asked_at = None;
        Ok(())
    }

    /// Whether the table holds this grant of the session.
    pub(crate) fn has_grant(&self, number: u64) -> bool {
        self.grant.own().is_some_and(|grant| grant.number() == number)
    }

    /// Whether the session's memory budget has no room for the write buffers as they are.
    pub(super) fn must_make_room(&self) -> bool {
        self.shares_session_memory() && (self.grant_is_used_up() || self.flush_is_in_the_way())
    }

    /// Whether the grant has no room for more than the memtable, or the session wants it back.
    fn grant_is_used_up(&self) -> bool {
        let grant = self.grant.own().filter(|_| !self.tree.buffer.is_empty());
        grant.is_some_and(|grant| grant.is_used_up(self.tree.buffer.charged_bytes()))
    }

    /// Whether the write buffers are larger than the grant while one of them is being flushed.
    fn flush_is_in_the_way(&self) -> bool {
        let flush = self.tree.flushing.as_ref();
        self.grant.own().is_some_and(|grant| grant.is_exceeded())
            && flush.is_some_and(|flush| !flush.compaction.is_complete())
    }

    /// Whether the session's memory budget rules the write buffers.
    pub(super) fn shares_session_memory(&self) -> bool {
        self.session.memory().is_some() && self.config.memory_budget.is_none()
    }
}

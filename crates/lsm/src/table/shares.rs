//! Shares of compactions that updates do: how much is due at a moment, who does it, and when the
//! next share is due.
//!
//! A table alone does its shares inside [`Table::write_batch`](crate::Table::write_batch). A named
//! table of a store does them before its memtable changes, so that views and commits of other
//! tables go on meanwhile.

use std::sync::Arc;

use terrane_io::sync::atomic::Ordering;

use crate::compaction::levels::ScheduledCompaction;
use crate::config::{CompactionSchedule, CompactionThread, TableConfig};
use crate::error::Result;
use crate::session::inner::SessionInner;

/// How far a background thread may fall behind before updates help, in batches of merge work.
const LAG_BATCHES_MAX: u64 = 64;

/// Multiple of the allowed lag of the background thread beyond which updates wait for the thread.
const LAG_MAX_FACTOR: u64 = 4;

/// Shares of compactions that are due at some moment.
#[derive(Debug)]
pub(crate) struct DueShares {
    pub(crate) session: Arc<SessionInner>,
    pub(crate) work: ShareConfig,
    pub(crate) pending: Vec<ScheduledCompaction>,
    /// The moment, in ticks.
    pub(crate) now: u64,
}

impl DueShares {
    /// Does the shares.
    ///
    /// # Errors
    /// Those of the compactions; what was done before stays done.
    pub(crate) fn run(&self) -> Result<()> {
        self.pending.iter().try_for_each(|pending| self.work.run(&self.session, pending, self.now))
    }
}

/// How the shares of a table are done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareConfig {
    schedule: CompactionSchedule,
    thread: CompactionThread,
    /// Pages that are worth a step.
    batch: u64,
}

impl ShareConfig {
    pub(crate) fn of(config: &TableConfig) -> Self {
        Self {
            schedule: config.compaction_schedule,
            thread: config.compaction_thread,
            batch: u64::from(config.compaction_batch_pages),
        }
    }

    /// Does the share of a compaction that is due by `now`.
    ///
    /// # Errors
    /// Those of the compaction.
    pub(crate) fn run(
        &self,
        session: &SessionInner,
        pending: &ScheduledCompaction,
        now: u64,
    ) -> Result<()> {
        let compaction = &pending.compaction;
        if self.schedule == CompactionSchedule::OneShot {
            return compaction.finish().map(drop);
        }
        let required = pending.required(now);
        if required < compaction.done() + self.batch && required < compaction.total() {
            return Ok(());
        }

        match self.thread {
            // Who is at it, for another handle or to compact, goes on with it; what is due is
            // waited for.
            CompactionThread::Caller if required < compaction.total() => {
                compaction.advance_unless_busy(required)
            }
            CompactionThread::Caller => compaction.advance_to(required),
            CompactionThread::Background => {
                compaction.requested.fetch_max(required, Ordering::AcqRel);
                session.worker().advance(compaction);
                // Credit: what the thread may owe. Beyond it this call pays, or another merge's
                // call does if the thread is at this one; far beyond it, this call waits its turn.
                let lag = LAG_BATCHES_MAX * self.batch;
                if compaction.done() < required.saturating_sub(LAG_MAX_FACTOR * lag) {
                    return compaction.advance_to(required.saturating_sub(lag));
                }
                compaction.advance_unless_busy(required.saturating_sub(lag))
            }
        }
    }

    /// The first tick behind `now` at which a compaction needs work again; none if all of it is
    /// done at once.
    pub(crate) fn next_share(&self, pending: &ScheduledCompaction, now: u64) -> Option<u64> {
        if self.schedule == CompactionSchedule::OneShot {
            return None;
        }
        let asked = match self.thread {
            CompactionThread::Caller => 0,
            CompactionThread::Background => pending.compaction.requested.load(Ordering::Acquire),
        };
        let target = pending.compaction.done().max(asked) + self.batch;
        Some(pending.when(target).max(now + 1))
    }
}

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

/// Share of a debt of the background thread that a call pays, in batches of work. The call does
/// more if it makes more than half of that due itself, or if the debt would not be paid in time.
const PAID_BATCHES_MAX: u64 = 8;

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
                let before = compaction.requested.fetch_max(required, Ordering::AcqRel);
                session.worker().advance(compaction);

                let (done, left) = (compaction.done(), compaction.total().saturating_sub(required));
                let target = paid_up_to((required, before), done, left, self.batch);
                // If the thread is at this merge, another merge's call pays. Far behind, this call
                // waits for the whole step of the thread.
                if done < required.saturating_sub(LAG_MAX_FACTOR * LAG_BATCHES_MAX * self.batch) {
                    return compaction.advance_to(target);
                }
                compaction.advance_unless_busy(target)
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

/// Page up to which a call does what the background thread owes, where `before` pages were required
/// before the call, and `left` will be later.
fn paid_up_to((required, before): (u64, u64), done: u64, left: u64, batch: u64) -> u64 {
    // Credit: what the thread may owe. It falls to nothing when the merge is due, since a flush
    // then waits for all of it.
    let credit = (LAG_BATCHES_MAX * batch).min(left / 2);

    // As much of the debt as the call has of the time that is left.
    let own = required.saturating_sub(before);
    let in_time = required.saturating_sub(done).saturating_mul(own.max(batch)) / left.max(1);
    let paid = (PAID_BATCHES_MAX * batch).max(own.saturating_mul(2)).max(in_time);
    required.saturating_sub(credit).min(done.saturating_add(paid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u64 = 16;
    const PAID_MAX: u64 = PAID_BATCHES_MAX * BATCH;

    /// Calls that each make `own` pages more due, beside a thread that does nothing: what each one
    /// does, and what is owed after it.
    fn calls(total: u64, mut done: u64, mut required: u64, own: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        while required < total {
            let before = required;
            required = total.min(required + own);
            let target = paid_up_to((required, before), done, total - required, BATCH);
            all.push((target.saturating_sub(done), required - done.max(target)));
            done = done.max(target);
        }
        all
    }

    #[test]
    fn what_a_thread_owes_is_paid_in_parts_and_in_time() {
        // From the beginning: the debt is the credit, and is paid when the merge is due.
        let all = calls(20_000, 0, 0, BATCH);
        assert!(
            all.iter().all(|(paid, owed)| *paid <= 3 * BATCH && *owed <= LAG_BATCHES_MAX * BATCH)
        );
        assert_eq!(all.last().unwrap().1, 0);

        // A debt of three credits is paid in parts, each call a part.
        let all = calls(20_000, 5_000, 5_000 + 3 * LAG_BATCHES_MAX * BATCH, BATCH);
        assert_eq!(all.iter().map(|(paid, _)| *paid).max(), Some(PAID_MAX));
        let calls_needed =
            all.iter().position(|(_, owed)| *owed <= LAG_BATCHES_MAX * BATCH).unwrap();
        assert!((15..=25).contains(&calls_needed), "{calls_needed}");
        assert_eq!(all.last().unwrap().1, 0);

        // A call that makes much due does twice as much, so that the debt falls.
        let all = calls(200_000, 5_000, 50_000, 10_000);
        assert_eq!(all.iter().map(|(paid, _)| *paid).max(), Some(20_000));
        assert!(all.is_sorted_by(|before, after| before.1 >= after.1), "{all:?}");
        assert_eq!(all.last().unwrap().1, 0);

        // A debt of nearly four credits shortly before the merge is due.
        let all = calls(20_000, 16_000, 19_900, BATCH);
        assert!(all.iter().all(|(paid, _)| *paid < LAG_BATCHES_MAX * BATCH), "{all:?}");
        assert_eq!(all.last().unwrap().1, 0);
    }
}

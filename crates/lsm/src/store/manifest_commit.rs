//! Commits that a manifest makes: rollback, installation and replacement of tables.
//!
//! Such a commit has a number and no record. The log of the manifest before ends with the commit
//! before; the log of the new manifest goes on, in another segment, with the commit after. So a
//! crash leaves the one manifest or the other, and with it all of the commit or nothing.
//!
//! Invariant: the caller holds all writers from the choice of the number until the tables are
//! changed, so that no commit comes in between.

use terrane_io::sync::atomic::Ordering;

use crate::error::Result;
use crate::files::file_set::lock;
use crate::manifest::history::HistoryEvent;
use crate::manifest::manifest::StoreManifest;
use crate::manifest::wal::WalEnd;
use crate::session::current_manifest::CurrentManifest;
use crate::store::inner::{LogRoom, Shared, State};

/// A manifest that is durable, and not linked yet.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(crate) struct PublishedCommit {
    /// Whether both copies are new.
    pub(crate) both: bool,
    /// Bytes of the log that the manifest has taken the place of.
    pub(crate) log_bytes: u64,
}

/// The log as it was before the commit.
struct LogBefore {
    log: Option<WalEnd>,
    segment: u64,
    is_linked: bool,
    bytes: u64,
}

impl Shared {
    /// Begins a commit that has a number, but no record, and a segment behind it. `None` if the
    /// segment must be made first.
    fn begin_manifest_commit(&self, state: &mut State) -> Result<Option<LogBefore>> {
        let before = LogBefore {
            log: state.log.clone(),
            segment: state.segment,
            is_linked: state.is_linked,
            bytes: self.log_bytes.load(Ordering::Relaxed),
        };

        // The log of the manifest before ends with the commit before.
        state.commit += 1;
        state.is_linked = false;
        let begun =
            if self.is_logged() { self.switch(state, 0, LogRoom::Ordinary) } else { Ok(true) };
        if let Ok(true) = begun {
            return Ok(Some(before));
        }
        state.commit -= 1;
        state.is_linked = before.is_linked;
        begun.map(|_| None)
    }

    /// Publishes a manifest as the next commit; the caller holds all writers. The caller then
    /// changes the tables, and [links](Self::link) the log.
    ///
    /// # Errors
    /// [`Error::SnapshotTooLarge`](crate::Error::SnapshotTooLarge),
    /// [`Error::Disk`](crate::Error::Disk), [`Error::Poisoned`](crate::Error::Poisoned). The log
    /// goes on where it was; the segment that was begun is the next one to be made again.
    pub(crate) fn publish_commit(
        &self,
        published: &mut CurrentManifest,
        mut next: StoreManifest,
        event: impl FnOnce(u64, &StoreManifest, &StoreManifest) -> HistoryEvent,
    ) -> Result<PublishedCommit> {
        let before = loop {
            if let Some(before) = self.begin_manifest_commit(&mut lock(&self.state))? {
                break before;
            }
            self.make_next(0, LogRoom::Ordinary)?;
        };

        let (commit, segment) = {
            let state = lock(&self.state);
            (state.commit, if self.is_logged() { state.segment } else { 0 })
        };
        let made = self.settle_log().and_then(|()| {
            if self.inner.has_feeds()? {
                let event = event(segment, &published.manifest, &next);
                next.note(&published.manifest, commit, event);
            }
            published.publish(&self.inner, StoreManifest { commit, segment, ..next })
        });

        if made.is_err() {
            let mut state = lock(&self.state);
            debug_assert_eq!(state.commit, commit, "no commit came in between");
            state.commit -= 1;
            (state.log, state.segment) = (before.log, before.segment);
            state.is_linked = before.is_linked;
        }
        let both = made?;
        debug_assert_eq!(published.manifest.commit, commit, "the manifest is the commit");

        // The log goes on from other tables.
        published.chain = None;
        Ok(PublishedCommit { both, log_bytes: before.bytes })
    }
}

//! Commits that a manifest makes: rollback, installation and replacement of tables.
//!
//! Such a commit has a number and no record. The log of the manifest before ends with the commit
//! before; the log of the new manifest goes on, in another segment, with the commit after. So a
//! crash leaves the one manifest or the other, and with it all of the commit or nothing.
//!
//! Invariant: the caller holds the lock of the tables from the choice of the number until the
//! manifest is durable, so that no commit comes in between.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::manifest::manifest::StoreManifest;
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

impl Shared {
    /// Publishes a manifest as the next commit. The caller then changes the tables, and
    /// [links](Self::link) the log.
    ///
    /// # Errors
    /// [`Error::SnapshotTooLarge`](crate::Error::SnapshotTooLarge),
    /// [`Error::Disk`](crate::Error::Disk), [`Error::Poisoned`](crate::Error::Poisoned). The log
    /// goes on where it was; the segment that was begun is the next one to be begun again.
    pub(crate) fn publish_commit(
        &self,
        published: &mut CurrentManifest,
        state: &mut State,
        mut next: StoreManifest,
    ) -> Result<PublishedCommit> {
        let log_bytes = self.log_bytes.load(Ordering::Relaxed);
        let log = state.log.clone();
        let segment = state.segment;
        let is_linked = state.is_linked;
        state.commit += 1;
        state.is_linked = false;
        next.commit = state.commit;

        let made = self.begin_log(state, LogRoom::Ordinary).and_then(|segment| {
            next.segment = segment;
            published.publish(&self.inner, next)
        });

        if made.is_err() {
            state.commit -= 1;
            (state.log, state.segment, state.is_linked) = (log, segment, is_linked);
        }

        let both = made?;
        debug_assert_eq!(published.manifest.commit, state.commit, "no commit came in between");

        // The log goes on from other tables.
        published.chain = None;
        Ok(PublishedCommit { both, log_bytes })
    }
}

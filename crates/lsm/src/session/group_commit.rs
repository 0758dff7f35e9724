//! Which commits of a store are durable, who syncs the log, and who waits for that.
//!
//! One thread syncs at a time, for all commits that are written by then; the others wait. What
//! makes that fast is that many commits share a sync. So when a sync has ended, the next one is not
//! begun at once for the few commits that came meanwhile: the threads that have just been told are
//! about to come with their next ones, and whoever comes last syncs. One of those who wait watches
//! the time: if not all come, it syncs after half the time that a sync takes, or [`PATIENCE_MAX`]
//! if that is less. A thread that commits alone never waits.
//!
//! *Rejected:* beginning the next sync at once (with as little work between two syncs as a commit
//! is, half of the threads share each, and every sync wakes the other half in vain); a fixed delay
//! (slows a single thread); writing the records of all in one call by whoever syncs (a failed write
//! would have to take back commits that others have seen); a seal in the commit that switches (the
//! store stands still for four syncs).
//!
//! **Switch of segments.** A commit that fills its segment goes on in the next one without a sync.
//! The next turn then syncs the old segment, syncs the new one, seals the old one and syncs the
//! seal, in this order. Commits of the new segment are durable after that only.
//!
//! Invariants:
//! - Whoever waits is told when a sync ends, when commits become durable in another way, and when
//!   whoever watched gives up; so somebody always watches or syncs.
//! - At most one segment before the end of the log is not sealed.
//! - No commit of a segment is acknowledged as durable before the seal of the segment before it is
//!   durable. So recovery tells a lost commit from a torn end by the seals alone.

use std::time::Duration;

use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::files::file_set::lock;
use crate::manifest::wal::{WalEnd, WalFile};
use crate::session::inner::SessionInner;
use crate::trace::event;

/// How long a sync waits for others at the most: a few times what they take to come.
const PATIENCE_MAX: Duration = Duration::from_micros(100);

/// Commits that are known to survive power loss.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    inner: Arc<SessionInner>,
    syncs: Mutex<Syncs>,
    /// Told when `syncs` changes.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Syncs {
    /// The last durable commit.
    commit: u64,
    /// The same, for receipts that outlive the store.
    reached: Arc<AtomicU64>,
    /// The end of the log: its file, and the last commit written to it.
    end: Option<(WalFile, u64)>,
    /// The segment before the end, until it is sealed, and the last commit in it.
    unsealed: Option<(WalEnd, u64)>,
    is_syncing: bool,
    /// The commits that threads wait for.
    waiting: Vec<u64>,
    /// How many waited when the last sync ended: so many can be expected before the next one.
    expected: usize,
    /// How long the last sync took.
    took: Duration,
    /// Whether one of those who wait watches the time.
    is_watched: bool,
    /// Counts what feeds are told of: more durable commits, and changes of the list of tables.
    news: u64,
}

impl Syncs {
    fn reach(&mut self, commit: u64) {
        let before = self.commit;
        self.commit = self.commit.max(commit);
        self.reached.store(self.commit, Ordering::Release);
        self.waiting.retain(|waiting| *waiting > commit);
        self.news += 1;
        debug_assert!(self.commit >= before, "durable commits never become fewer");
        // Whoever watched may be done.
        self.is_watched = false;
    }

    /// How long the next sync waits for others to come; `None` if all are there who can be
    /// expected.
    fn patience(&self) -> Option<Duration> {
        let patience = (self.took / 2).min(PATIENCE_MAX);
        (self.waiting.len() < self.expected && !patience.is_zero()).then_some(patience)
    }
}

impl GroupCommit {
    /// Group commit of a store whose commits up to `commit` are durable and whose WAL has no new
    /// record.
    pub(crate) fn new(inner: Arc<SessionInner>, commit: u64) -> Self {
        let reached = Arc::new(AtomicU64::new(commit));
        let syncs = Syncs { commit, reached, ..Syncs::default() };
        Self { inner, syncs: Mutex::new(syncs), changed: Condvar::new() }
    }

    /// The last durable commit.
    pub(crate) fn commit(&self) -> u64 {
        lock(&self.syncs).commit
    }

    /// The last durable commit, as it changes.
    pub(crate) fn reached(&self) -> Arc<AtomicU64> {
        Arc::clone(&lock(&self.syncs).reached)
    }

    /// Tells feeds that the list of tables has changed, or that the store is closed.
    pub(crate) fn tell(&self) {
        lock(&self.syncs).news += 1;
        self.changed.notify_all();
    }

    /// How much feeds have been told so far.
    pub(crate) fn news(&self) -> u64 {
        lock(&self.syncs).news
    }

    /// Waits until there is more news than `seen`, for so long at most. Returns the time that is
    /// certain to have passed: all of it, or none.
    pub(crate) fn wait_for_news(&self, seen: u64, timeout: Duration) -> Duration {
        let syncs = lock(&self.syncs);
        let waited = self.changed.wait_timeout_while(syncs, timeout, |syncs| syncs.news == seen);
        let (_syncs, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() { timeout } else { Duration::ZERO }
    }

    /// Notes the end of the log, and the last commit that is written.
    pub(crate) fn set_end(&self, log: &WalFile, last: u64) {
        lock(&self.syncs).end = Some((log.clone(), last));
    }

    /// Notes that the commits up to `commit` are durable without the log; and its end, if that is
    /// not known.
    pub(crate) fn reach(&self, commit: u64, end: Option<(&WalFile, u64)>) {
        let mut syncs = lock(&self.syncs);
        syncs.reach(commit);
        if syncs.end.is_none() {
            syncs.end = end.map(|(log, last)| (log.clone(), last));
        }
        drop(syncs);
        self.changed.notify_all();
    }

    fn wait<'a>(&self, syncs: MutexGuard<'a, Syncs>) -> MutexGuard<'a, Syncs> {
        self.changed.wait(syncs).unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the log goes on in segment `log` behind commit `last`, the last one of `old`.
    ///
    /// Cost: no I/O. The next turn makes the switch durable.
    pub(crate) fn switch(&self, old: WalEnd, log: &WalFile, last: u64) {
        let mut syncs = lock(&self.syncs);
        assert!(syncs.unsealed.is_none(), "one segment at a time waits for its seal");
        debug_assert!(old.number() < log.number, "segments are numbered upwards");
        debug_assert!(syncs.commit <= last, "what is durable was written");
        syncs.unsealed = Some((old, last));
        syncs.end = Some((log.clone(), last));
    }

    /// Whether a segment before the end of the log is not sealed yet.
    pub(crate) fn is_unsealed(&self) -> bool {
        lock(&self.syncs).unsealed.is_some()
    }

    /// Makes the last switch of segments durable, and with it all commits that are written by then.
    ///
    /// Cost: four fsyncs if a segment is not sealed, otherwise none.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::Error::Disk), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::SessionClosed`](crate::Error::SessionClosed).
    pub(crate) fn seal_in_turn(&self) -> Result<()> {
        let mut syncs = lock(&self.syncs);
        while syncs.is_syncing {
            syncs = self.wait(syncs);
        }
        match syncs.end.clone() {
            Some((log, last)) if syncs.unsealed.is_some() => self.sync(syncs, &log, last),
            _ => Ok(()),
        }
    }

    /// The same, but does nothing while somebody else syncs; says whether all but the last segment
    /// are sealed then.
    ///
    /// # Errors
    /// The errors of [`seal_in_turn`](Self::seal_in_turn).
    pub(crate) fn seal_unless_busy(&self) -> Result<bool> {
        let syncs = lock(&self.syncs);
        match syncs.end.clone() {
            Some(_) if syncs.unsealed.is_some() && syncs.is_syncing => Ok(false),
            Some((log, last)) if syncs.unsealed.is_some() => {
                self.sync(syncs, &log, last).map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// Takes the turn, syncs the log up to commit `last` in segment `log`, and gives the turn back.
    fn sync(&self, mut syncs: MutexGuard<'_, Syncs>, log: &WalFile, last: u64) -> Result<()> {
        let clock = self.inner.disk().clock();
        self.inner.files().check_poisoned()?;
        assert!(!syncs.is_syncing, "one thread syncs at a time");
        syncs.is_syncing = true;
        syncs.is_watched = false;
        let unsealed = syncs.unsealed.clone();
        // Without the lock, so that others commit and queue up during the sync.
        drop(syncs);

        let start = clock.monotonic();
        let synced = match &unsealed {
            Some((old, old_last)) => self.sync_switch(old, *old_last, log),
            None => self.sync_file(log),
        };
        let took = clock.monotonic().saturating_sub(start);
        if synced.is_ok() {
            // A mark names only commits that its own sync made durable, and comes before anybody
            // is told.
            self.mark(log, last);
        }

        let mut syncs = lock(&self.syncs);
        debug_assert!(syncs.is_syncing, "the turn was held during the sync");
        debug_assert!(
            unsealed.is_none() || syncs.unsealed.is_some(),
            "only who has the turn seals a segment"
        );
        syncs.is_syncing = false;
        syncs.took = took;
        syncs.expected = syncs.waiting.len();
        if synced.is_ok() {
            if unsealed.is_some() {
                syncs.unsealed = None;
            }
            syncs.reach(last);
        }

        // Whoever wakes up finds it free.
        drop(syncs);
        self.changed.notify_all();
        synced
    }

    fn sync_file(&self, log: &WalFile) -> Result<()> {
        let file = &log.file;
        self.inner.files().synced(file.path(), file.sync())
    }

    /// Makes a switch durable, within a turn.
    ///
    /// The seal says that all of the old segment is durable, and that there is another one. So both
    /// are synced before it is written.
    fn sync_switch(&self, old: &WalEnd, old_last: u64, log: &WalFile) -> Result<()> {
        debug_assert!(old.number() < log.number, "segments are numbered upwards");
        self.sync_file(&old.log)?;
        self.mark(&old.log, old_last);
        lock(&self.syncs).reach(old_last);
        self.changed.notify_all();
        self.sync_file(log)?;

        {
            let _right = self.inner.files().handles().may_write()?;
            let path = old.log.file.path();
            old.seal(old_last).or_else(|error| self.inner.poison(path, error))?;
        }
        self.sync_file(&old.log)
    }

    /// Waits until a commit is durable, and syncs when it is this thread's turn. False if the log
    /// is not written to: then only a checkpoint makes it durable.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::Error::Disk), [`Error::Poisoned`](crate::Error::Poisoned),
    /// [`Error::SessionClosed`](crate::Error::SessionClosed).
    pub(crate) fn wait_for(&self, commit: u64) -> Result<bool> {
        let mut syncs = lock(&self.syncs);
        if syncs.commit >= commit {
            return Ok(true);
        }
        syncs.waiting.push(commit);
        debug_assert!(syncs.waiting.iter().all(|waiting| *waiting > syncs.commit));

        let waited = self.wait_among(syncs, commit);
        if !matches!(waited, Ok(true)) {
            // Others may count on this thread.
            let mut syncs = lock(&self.syncs);
            if let Some(at) = syncs.waiting.iter().position(|waiting| *waiting == commit) {
                syncs.waiting.swap_remove(at);
            }
            syncs.is_watched = false;
            drop(syncs);
            self.changed.notify_all();
        }

        waited
    }

    /// Marks the commits up to `last` as durable in the log. They are so without it: if it cannot
    /// be written, damage of these records may look like a torn end.
    fn mark(&self, log: &WalFile, last: u64) {
        let marked =
            self.inner.files().handles().may_write().and_then(|_right| Ok(log.mark(last)?));
        if let Err(error) = marked {
            event!(WARN, "log.unmarked", self.inner.dir(), commit = last, %error);
        }
    }

    fn wait_among<'a>(&'a self, mut syncs: MutexGuard<'a, Syncs>, commit: u64) -> Result<bool> {
        let mut is_patient = true;
        while syncs.commit < commit {
            self.inner.check_writable()?;
            if syncs.is_syncing {
                rare::taken("a commit waits for the sync of another one");
                syncs = self.wait(syncs);
                continue;
            }

            let Some((log, last)) = syncs.end.clone() else { return Ok(false) };
            match syncs.patience() {
                Some(_) if is_patient && syncs.is_watched => syncs = self.wait(syncs),
                Some(patience) if is_patient => {
                    syncs.is_watched = true;
                    let waited = self.changed.wait_timeout(syncs, patience);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    (syncs, is_patient) = (after, !timeout.timed_out());
                    if !is_patient {
                        rare::taken("a commit waits in vain for others to share its sync");
                    }
                    // It may have been woken for no reason, or by who was done before: others must
                    // not wait without a watch. That there are two for a moment does no harm.
                    syncs.is_watched = false;
                }
                _ => {
                    self.sync(syncs, &log, last)?;
                    if last >= commit {
                        return Ok(true);
                    }
                    syncs = lock(&self.syncs);
                }
            }
        }

        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use std::sync::mpsc::channel;
    use terrane_io::{Access, Disk, OpenMode, SimDisk};

    use super::*;
    use crate::session::inner::OpenSettings;

    /// Condition variables wake up for no reason, and for what has happened before somebody began
    /// to wait. Whoever watched went on to wait without a watch then, and with it everybody who
    /// came later, for good.
    #[test]
    fn whoever_is_woken_for_no_reason_goes_on_watching() {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        disk.create_dir(Path::new("/session")).unwrap();
        let inner =
            SessionInner::open(&disk, Path::new("/session"), OpenSettings::new(1, 4)).unwrap();
        let path = Path::new("/session/log");
        let file = disk.open(path, OpenMode::CreateNew, Access::Buffered).unwrap();

        let log = WalFile { file, number: 1 };
        let durable = Arc::new(GroupCommit::new(inner, 0));
        for commit in 1..200 {
            durable.set_end(&log, commit);
            {
                // Two more are expected, who never come.
                let mut syncs = lock(&durable.syncs);
                (syncs.expected, syncs.took) = (3, Duration::from_millis(1));
            }

            let (sender, done) = channel();
            let waiting = Arc::clone(&durable);
            let thread = terrane_io::sync::thread::spawn(move || {
                let waited = waiting.wait_for(commit);
                sender.send(waited).unwrap();
            });

            // Once, while it watches; it may be faster now and then.
            while durable.commit() < commit {
                let syncs = lock(&durable.syncs);
                if syncs.is_watched {
                    durable.changed.notify_all();
                    break;
                }
            }

            let waited = done.recv_timeout(Duration::from_secs(20));
            assert!(waited.expect("it watches").unwrap(), "commit {commit}");
            thread.join().unwrap();
            assert_eq!(durable.commit(), commit);
        }
    }
}

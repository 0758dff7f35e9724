//! Background collection: [`collect`](Store::collect) on a thread of its own, with a handle.
//!
//! The thread takes the lock of collections before [`Store::start_collection`] returns, and has
//! released the lock before a caller of [`CollectionHandle::wait`] sees the result. `close` cancels
//! the collection and joins the thread.
//!
//! Rejected: a permanent thread that waits for requests (a store that never collects would pay for
//! it); joining when the handle is dropped (a caller may start a collection and forget it).

use terrane_io::process::OwnThread;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::mpsc::sync_channel;
use terrane_io::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::lock::lock;
use crate::store::gc::{GcPace, GcProgress, GcReport, Retain};
use crate::store::store::Store;

/// Result of [`Store::start_collection`].
#[derive(Debug)]
#[must_use]
pub enum StartedCollection {
    /// The collection runs.
    Started(CollectionHandle),
    /// Another collection, or an import, runs already: the request was skipped.
    AlreadyRunning,
}

impl StartedCollection {
    /// Returns the handle, if the collection was started.
    pub fn started(self) -> Option<CollectionHandle> {
        match self {
            Self::Started(handle) => Some(handle),
            Self::AlreadyRunning => None,
        }
    }
}

/// Handle of a collection that runs on a thread of its own. Dropping the handle does not end the
/// collection.
#[derive(Debug)]
pub struct CollectionHandle {
    job: Arc<Job>,
}

/// State of a collection that its thread and its handle share.
#[derive(Debug, Default)]
struct Job {
    is_cancelled: AtomicBool,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

#[derive(Debug, Default)]
enum Outcome {
    #[default]
    Running,
    Ended(Result<GcReport>),
    Panicked,
}

impl Job {
    fn end(&self, outcome: Outcome) {
        *lock(&self.outcome) = outcome;
        self.ended.notify_all();
    }
}

/// Ends the job also if its thread panics, so that no caller waits for ever.
struct EndGuard(Arc<Job>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if matches!(*lock(&self.0.outcome), Outcome::Running) {
            self.0.end(Outcome::Panicked);
        }
    }
}

impl CollectionHandle {
    /// Waits for the collection, and returns its result.
    ///
    /// # Errors
    /// Errors of [`collect`](Store::collect); [`GcCancelled`](Error::GcCancelled) also if the store
    /// was closed.
    ///
    /// # Panics
    /// If the collection panicked, for example in `pace`.
    pub fn wait(self) -> Result<GcReport> {
        let mut outcome = lock(&self.job.outcome);
        loop {
            match std::mem::take(&mut *outcome) {
                Outcome::Running => {
                    outcome = self.job.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
                }
                Outcome::Ended(result) => return result,
                Outcome::Panicked => panic!("the thread of the collection panicked"),
            }
        }
    }

    /// Returns whether the collection has ended. If so, [`wait`](Self::wait) does not block.
    pub fn is_finished(&self) -> bool {
        !matches!(*lock(&self.job.outcome), Outcome::Running)
    }

    /// Asks the collection to stop at its next piece of work; does not wait. A collection that was
    /// stopped while it marked leaves everything as it was.
    pub fn cancel(&self) {
        self.job.is_cancelled.store(true, Ordering::Release);
    }
}

impl Store {
    /// Starts a [collection](Self::collect) on a thread of its own, and returns at once.
    ///
    /// If a collection or an import runs already, starts nothing and returns
    /// [`AlreadyRunning`](StartedCollection::AlreadyRunning). The thread keeps the store open until
    /// the collection ends; [`close`](Self::close) cancels the collection and joins the thread.
    ///
    /// Cost: the start of a thread; then that of [`collect`](Self::collect) on the thread.
    ///
    /// # Errors
    /// [`Closed`](Error::Closed), and [`Disk`](Error::Disk) if the system starts no thread. Errors
    /// of the collection come from [`CollectionHandle::wait`].
    pub fn start_collection(
        self: &Arc<Self>,
        retain: Retain,
        mut pace: impl FnMut(&GcProgress) -> GcPace + Send + 'static,
    ) -> Result<StartedCollection> {
        // Held up to the end, so that `close` finds the thread or prevents its start.
        let mut thread = lock(&self.collector);
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }

        let job = Arc::new(Job::default());
        let (store, guard) = (Arc::clone(self), EndGuard(Arc::clone(&job)));
        let (started, has_started) = sync_channel(1);
        let body = move || {
            let Ok(running) = store.no_collection() else { return };

            // The receiver waits for this message, or for the end of the thread.
            let _ = started.send(());
            let mut pace = |progress: &GcProgress| match pace(progress) {
                GcPace::Go if !guard.0.is_cancelled.load(Ordering::Acquire) => GcPace::Go,
                GcPace::Go | GcPace::Cancel => GcPace::Cancel,
            };
            let result = store.collect_alone(&retain, &mut pace);

            // Released first: a caller that sees the result may start the next collection.
            drop(running);
            guard.0.end(Outcome::Ended(result));
        };
        let spawned = OwnThread::spawn("terrane-collection", body);
        let spawned = spawned
            .map_err(|error| terrane_io::Error::io("start a thread for", &self.inner.dir, error))?;

        // A thread that found another collection ends without the message.
        if has_started.recv().is_err() {
            return Ok(StartedCollection::AlreadyRunning);
        }
        *thread = Some(spawned);
        Ok(StartedCollection::Started(CollectionHandle { job }))
    }

    /// Target of the latest collection that ended well: the oldest commit from which on all were
    /// kept. `None` if no collection ran, or if no such commit is left.
    ///
    /// In a store without [volumes](Self::add_volume), the target of the latest collection that
    /// removed commits survives reopening. With volumes no target survives.
    ///
    /// Cost: after reopening, one read for each table of commits.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), [`Corrupt`](Error::Corrupt).
    pub fn latest_collection_target(&self) -> Result<Option<Hash>> {
        if let Some(target) = *lock(&self.collected_to) {
            return Ok(Some(target));
        }
        self.inner.oldest_retained()
    }
}

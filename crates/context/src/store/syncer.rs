//! Syncer: makes the pack durable, for all threads that commit. Callers that arrive during an fsync
//! share the next one (group commit). A thread of its own syncs for callers that do not wait.
//!
//! Invariants:
//! - The durable end only rises, and is never behind what a ticket was redeemed for.
//! - After a failed fsync nothing becomes durable any more: the syncer is poisoned.
//!
//! Rejected: an fsync for each commit in the order of the commits (the device takes the same time
//! for one frame and for ten).

use terrane_io::DiskFile;
use terrane_io::process::OwnThread;
use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::base::address::Address;
use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::pack::control::{MARK_AT, Mark};
use crate::pack::pack::{Pack, Tail};

/// Durable end of the pack, and the work of those who sync.
#[derive(Debug)]
struct State {
    end: Address,
    is_syncing: bool,
    /// End that the syncing thread shall reach.
    wanted: Address,
    is_closing: bool,
}

/// Syncer of a store. See the [module](self).
#[derive(Debug)]
pub(crate) struct Syncer {
    pack: Arc<Pack>,
    /// The file `control`, which has the durable mark.
    control_file: Arc<dyn DiskFile>,
    /// Tail behind the last written frame.
    written: Mutex<Tail>,
    state: Mutex<State>,
    /// A sync ended, or is wanted.
    changed: Condvar,
    poisoned: AtomicBool,
    thread: Mutex<Option<OwnThread>>,
}

impl Syncer {
    /// Returns the syncer of a pack that is durable up to its tail.
    pub(crate) fn new(pack: Arc<Pack>, control_file: Arc<dyn DiskFile>, tail: Tail) -> Self {
        let end = tail.end;
        Self {
            pack,
            control_file,
            written: Mutex::new(tail),
            state: Mutex::new(State { end, is_syncing: false, wanted: end, is_closing: false }),
            changed: Condvar::new(),
            poisoned: AtomicBool::new(false),
            thread: Mutex::default(),
        }
    }

    /// Durable end of the pack.
    pub(crate) fn end(&self) -> Address {
        lock(&self.state).end
    }

    /// End of the last written frame.
    pub(crate) fn written_end(&self) -> Address {
        lock(&self.written).end
    }

    /// Notes the tail behind a written frame.
    pub(crate) fn wrote(&self, tail: &Tail) {
        *lock(&self.written) = tail.clone();
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    pub(crate) fn check_poison(&self) -> Result<()> {
        if self.is_poisoned() {
            let path = lock(&self.written).chunk.file.path().to_owned();
            return Err(Error::Poisoned { path });
        }
        Ok(())
    }

    /// Records in the file `control` that the pack is durable up to `end`. The mark reaches the
    /// disk when the system writes it back, or with the next control record.
    pub(crate) fn move_mark(&self, store: u64, end: Address) {
        // A failed write of the mark is harmless: only damage of the last frame then looks like a
        // torn write.
        let _ = self.control_file.write_at(&Mark { store, end }.encode(), MARK_AT);
    }

    /// Makes the pack durable up to `end`, or waits until another thread has done so.
    pub(crate) fn sync_to(&self, end: Address) -> Result<()> {
        let mut state = lock(&self.state);
        while state.end < end {
            self.check_poison()?;
            if state.is_syncing {
                rare::taken("a commit of a context waits for the sync of another one");
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }

            state.is_syncing = true;
            drop(state);

            // Earlier chunks were synced when this one was begun.
            let written = lock(&self.written).clone();
            debug_assert!(end <= written.end, "callers sync appended frames only");
            let result = written.chunk.file.sync();
            self.pack.counters.syncs.fetch_add(1, Ordering::Relaxed);

            state = lock(&self.state);
            state.is_syncing = false;

            match result {
                Ok(()) => {
                    state.end = state.end.max(written.end);
                    self.move_mark(written.chunk.head.store, written.end);
                }
                Err(_) => self.poison(),
            }

            self.changed.notify_all();
            result?;
        }

        Ok(())
    }

    /// Has the syncing thread make the pack durable up to `end`.
    pub(crate) fn begin(self: &Arc<Self>, end: Address) {
        let mut state = lock(&self.state);
        state.wanted = state.wanted.max(end);
        drop(state);
        self.changed.notify_all();

        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let syncer = Arc::clone(self);
            // Without a thread, who redeems the ticket syncs.
            *thread = OwnThread::spawn("terrane-context-sync", move || syncer.run()).ok();
        }
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        while !state.is_closing {
            if state.end < state.wanted && !self.is_poisoned() {
                let wanted = state.wanted;
                drop(state);
                // The store is poisoned by an error, and tells whoever redeems a ticket.
                let _ = self.sync_to(wanted);
                state = lock(&self.state);
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Ends the syncing thread, behind a sync that it runs.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closing = true;
        self.changed.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // The thread only syncs: a panic there shows as a poisoned lock nowhere.
            thread.join();
        }
    }
}

/// Ticket of commits that become durable behind the caller's back, from
/// [`Store::commit_async`](crate::Store::commit_async).
///
/// Dropping a ticket is harmless: the commits become durable all the same, in their order, or the
/// store is poisoned.
#[derive(Debug, Clone)]
#[must_use = "the commit is durable only once the ticket was waited for"]
pub struct Ticket {
    syncer: Arc<Syncer>,
    end: Address,
}

impl Ticket {
    pub(crate) fn new(syncer: &Arc<Syncer>, end: Address) -> Self {
        Self { syncer: Arc::clone(syncer), end }
    }

    /// Returns whether the commits are durable. Does not wait.
    pub fn is_durable(&self) -> bool {
        self.syncer.end() >= self.end
    }

    /// Waits until the commits are durable.
    ///
    /// Cost: one sync, which other tickets share.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk) and [`Poisoned`](Error::Poisoned) if a sync failed: the commits may or
    /// may not be there when the store is opened anew.
    pub fn wait(&self) -> Result<()> {
        self.syncer.sync_to(self.end)
    }
}

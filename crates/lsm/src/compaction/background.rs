//! The background thread that advances compactions, if a table's configuration asks for one.
//!
//! Its queue holds weak references, so the thread skips compactions that no table needs any more.
//! It ends with the session. The next call that needs a compaction returns the error of the thread.
//! If a merge operator panics, the next user repeats that step, and the thread continues with other
//! compactions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use terrane_io::process::{OwnThread, Process};
use terrane_io::sync::mpsc::{Sender, channel};
use terrane_io::sync::{Arc, Mutex, Weak};

use crate::compaction::compaction::Compaction;
use crate::files::file_set::lock;

#[derive(Debug)]
struct RunningThread {
    sender: Sender<Weak<Compaction>>,
    thread: OwnThread,
}

#[derive(Debug, Default)]
enum WorkerState {
    #[default]
    NotStarted,
    RunningThread(RunningThread),
    /// Stopped, or refused by the system.
    Stopped,
}

/// A thread that is started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    state: Mutex<WorkerState>,
    process: Process,
}

fn start() -> Option<RunningThread> {
    let (sender, receiver) = channel::<Weak<Compaction>>();
    let run = move || {
        while let Ok(compaction) = receiver.recv() {
            if let Some(compaction) = compaction.upgrade() {
                // A compaction detects by itself that a step of it did not end.
                let step = AssertUnwindSafe(|| compaction.advance_in_background());
                let _ = catch_unwind(step);
            }
        }
    };

    let thread = OwnThread::spawn("terrane-merge", run).ok()?;
    Some(RunningThread { sender, thread })
}

impl Worker {
    /// Queues `compaction` for the thread, which advances it to the requested pages. Without a
    /// thread (the system refused one, or the session is closing) this does nothing: the updates
    /// then do the work themselves.
    pub(crate) fn advance(&self, compaction: &Arc<Compaction>) {
        let mut state = lock(&self.state);
        if let WorkerState::NotStarted = *state {
            *state = start().map_or(WorkerState::Stopped, WorkerState::RunningThread);
        }
        debug_assert!(!matches!(*state, WorkerState::NotStarted), "a start was tried");
        if let WorkerState::RunningThread(running) = &*state {
            // The thread ends only after its sender is gone, even if a step panics, so the send
            // succeeds.
            let _ = running.sender.send(Arc::downgrade(compaction));
        }
    }

    /// Ends the thread after the requests queued so far.
    pub(crate) fn stop(&self) {
        // In a child there is no thread, and it may have held the lock.
        if !self.process.is_current() {
            return;
        }
        // The lock is free before the join, so callers find no thread instead of waiting for it.
        let state = std::mem::replace(&mut *lock(&self.state), WorkerState::Stopped);
        if let WorkerState::RunningThread(RunningThread { sender, thread }) = state {
            // Without a sender the loop of the thread ends; steps catch their panics, so the join
            // succeeds.
            drop(sender);
            thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

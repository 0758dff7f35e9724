//! The background thread that advances merges, where a table's configuration asks for one.
//!
//! Its queue refers to merges without keeping them, so what nobody needs any more is not done, and
//! it ends when the session does. What it fails at is reported by the next call that needs the
//! merge. If a merge operator panics, the merge is left for its next user, who does that part
//! again, and the thread goes on with others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use crate::compaction::compaction::Compaction;
use crate::files::file_set::lock;

#[derive(Debug)]
struct RunningThread {
    sender: Sender<Weak<Compaction>>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
enum WorkerState {
    #[default]
    NotStarted,
    RunningThread(RunningThread),
    /// Also after the system refused a thread.
    Stopped,
}

/// A thread that is started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    state: Mutex<WorkerState>,
}

fn start() -> Option<RunningThread> {
    let (sender, receiver) = channel::<Weak<Compaction>>();
    let run = move || {
        while let Ok(compaction) = receiver.recv() {
            if let Some(compaction) = compaction.upgrade() {
                // A merge notices by itself that a step of it did not end.
                let step = AssertUnwindSafe(|| compaction.advance_in_background());
                let _ = catch_unwind(step);
            }
        }
    };

    let thread = std::thread::Builder::new().name("terrane-merge".into()).spawn(run).ok()?;
    Some(RunningThread { sender, thread })
}

impl Worker {
    /// Asks for `merging` to be advanced to what was requested of it. Without a thread (the system
    /// refused one, or the session is closing) nothing happens: the updates then do the work
    /// themselves.
    pub(crate) fn advance(&self, compaction: &Arc<Compaction>) {
        let mut state = lock(&self.state);
        if let WorkerState::NotStarted = *state {
            *state = start().map_or(WorkerState::Stopped, WorkerState::RunningThread);
        }
        if let WorkerState::RunningThread(running) = &*state {
            // The thread ends only after its sender is gone, also if a merge panics, so it is
            // there.
            let _ = running.sender.send(Arc::downgrade(compaction));
        }
    }

    /// Ends the thread after what it was asked for so far.
    pub(crate) fn stop(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), WorkerState::Stopped);
        if let WorkerState::RunningThread(RunningThread { sender, thread }) = state {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

//! The background thread that advances merges, where a table's configuration asks for one.
//!
//! Its queue refers to merges without keeping them, so what nobody needs any more is not done, and it ends
//! when the session does. What it fails at is reported by the next call that needs the merge.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use crate::files::lock;
use crate::merging::Merging;

#[derive(Debug)]
struct Running {
    sender: Sender<Weak<Merging>>,
    thread: JoinHandle<()>,
}

/// A thread that is started when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    running: Mutex<Option<Running>>,
}

impl Worker {
    /// Asks for `merging` to be advanced to what was requested of it. Without a thread (the system
    /// refused one, or the session is closing) nothing happens: the updates then do the work themselves.
    pub(crate) fn advance(&self, merging: &Arc<Merging>) {
        let mut running = lock(&self.running);
        if running.is_none() {
            let (sender, receiver) = channel::<Weak<Merging>>();
            let run = move || {
                while let Ok(merging) = receiver.recv() {
                    if let Some(merging) = merging.upgrade() {
                        merging.advance_in_background();
                    }
                }
            };
            let thread = std::thread::Builder::new().name("terrane-merge".into()).spawn(run);
            *running = thread.ok().map(|thread| Running { sender, thread });
        }
        if let Some(running) = running.as_ref() {
            // The thread ends only after its sender is gone, so it is there to receive.
            let _ = running.sender.send(Arc::downgrade(merging));
        }
    }

    /// Ends the thread after what it was asked for so far.
    pub(crate) fn stop(&self) {
        if let Some(Running { sender, thread }) = lock(&self.running).take() {
            drop(sender);
            // A panic of the thread left its merge unfinished, which its next user notices.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

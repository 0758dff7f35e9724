//! The thread of requests: an asynchronous runtime behind synchronous calls.
//!
//! Invariant: a caller waits on a channel, never inside the runtime, so calls may come from any
//! thread but the runtime's own.

use std::future::Future;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// A runtime on a thread of its own, which ends with this.
#[derive(Debug)]
pub(crate) struct Runtime {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Start`].
    pub(crate) fn start() -> Result<Self> {
        let refused = |source| Error::Start { source: std::sync::Arc::new(source) };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            // A dropped sender ends the wait as a message does.
            let _ = runtime.block_on(stopped);
        };
        let thread =
            thread::Builder::new().name("terrane-object".to_owned()).spawn(run).map_err(refused)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the thread and waits for its output.
    ///
    /// # Errors
    /// [`Error::Ended`] if the future panicked.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        call: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.spawn(future).wait(call)
    }

    /// Starts a future on the thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Pending<T> {
        let (done, output) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // The caller may have gone away.
            let _ = done.send(future.await);
        });
        Pending { output }
    }
}

/// The output of a future to come.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    output: mpsc::Receiver<T>,
}

impl<T> Pending<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// [`Error::Ended`] if the future panicked.
    pub(crate) fn wait(self, call: &'static str) -> Result<T> {
        self.output.recv().map_err(|_| Error::Ended { call })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The last user may be a task of the runtime itself, which cannot wait for its own thread.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread was a panic of a task, which its caller has been told.
            let _ = thread.join();
        }
    }
}

//! The thread of requests: an asynchronous runtime behind synchronous calls.
//!
//! Invariant: a caller waits on a channel, never inside the runtime, so calls may come from any
//! thread but the runtime's own.

use std::future::Future;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use terrane_kv::Result;

use crate::error::failed;

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
    /// [`Error::BackEnd`](terrane_kv::Error::BackEnd) of the system.
    pub(crate) fn start() -> Result<Self> {
        let refused = |source: std::io::Error| failed("start of the thread of requests", source);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            // A dropped sender ends the wait as a message does.
            let _ = runtime.block_on(stopped);
        };

        let thread = thread::Builder::new().name("terrane-cassandra".to_owned());
        let thread = thread.spawn(run).map_err(refused)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the thread and waits for its output.
    ///
    /// # Errors
    /// Those of the future; [`Error::BackEnd`](terrane_kv::Error::BackEnd) if it panicked.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, output) = mpsc::sync_channel(1);
        self.spawn(async move {
            // The caller waits, unless it panicked.
            let _ = done.send(future.await);
        });
        output.recv().map_err(|_| failed(call, "the thread of requests has ended"))?
    }

    /// Starts a future on the thread.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(future);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The last user may be a task of the runtime itself, which cannot wait for its own thread.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread was a panic of a task, whose caller got an error.
            let _ = thread.join();
        }
    }
}

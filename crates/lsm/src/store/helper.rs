//! A thread that a store starts when there is something to do, one at a time, and that ends with
//! its task.

use terrane_io::process::OwnThread;
use terrane_io::sync::Mutex;
use terrane_io::sync::atomic::{AtomicBool, Ordering};

use crate::files::file_set::lock;

/// Place for one thread at a time.
#[derive(Debug)]
pub(crate) struct HelperThread {
    name: &'static str,
    /// Whether a task is under way. It is given back also by a task that panics.
    is_running: terrane_io::sync::Arc<AtomicBool>,
    thread: Mutex<Option<OwnThread>>,
}

/// The turn of a thread; given back on drop.
struct Turn(terrane_io::sync::Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl HelperThread {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, is_running: terrane_io::sync::Arc::default(), thread: Mutex::default() }
    }

    /// Runs a task on a thread, unless one is under way. If the system refuses a thread, the caller
    /// gets the task back.
    pub(crate) fn run<T: FnOnce() + Send + 'static>(&self, task: T) -> Result<(), T> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Ok(());
        }

        let turn = Turn(terrane_io::sync::Arc::clone(&self.is_running));
        // The task stays here until the thread takes it, since a failed start would drop it.
        let place = terrane_io::sync::Arc::new(Mutex::new(Some(task)));
        let handed = terrane_io::sync::Arc::clone(&place);
        let run = move || {
            let turn = turn;
            let task = lock(&handed).take();
            if let Some(task) = task {
                task();
            }
            drop(turn);
        };

        match OwnThread::spawn(self.name, run) {
            // An earlier one has ended.
            Ok(thread) => drop(lock(&self.thread).replace(thread)),
            Err(_) => {
                // The turn went with the closure.
                if let Some(task) = lock(&place).take() {
                    return Err(task);
                }
            }
        }
        Ok(())
    }

    /// Waits for the last task. A panic of it was told as such.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

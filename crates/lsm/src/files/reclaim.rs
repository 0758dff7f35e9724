//! Reclaims large files and large pieces of memory, on a thread that no caller waits for.
//!
//! Removing a file of gigabytes, or returning a filter of a hundred megabytes to the system, takes
//! tens of milliseconds. The caller is usually an update that happened to be the last user. It
//! hands the task to one thread, which the first task starts. The caller does the task itself if
//! there is no thread: on a simulated disk, whose calls must come in one order; if the system
//! refused a thread; or if too many tasks wait.
//!
//! Nothing uses what is handed over, and a task reports its own failure. A caller that needs the
//! disk space, or an empty directory, [waits](Reclaimer::wait) for the tasks.
//!
//! Invariant: at most [`WAITING_MAX`] tasks wait; the thread does them in their order of arrival.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrane_io::process::{OwnThread, Process};
use terrane_io::rare;
use terrane_io::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum of waiting tasks. A caller with one more does it itself, so that files do not come
/// faster than they go.
const WAITING_MAX: usize = 64;

/// Smaller pieces of memory than this go at once: they mostly stay with the process, and cost
/// microseconds.
pub(crate) const SWEPT_BYTES_MIN: usize = 256 << 10;

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct ReclaimState {
    waiting: VecDeque<Task>,
    /// Whether the thread is at a task.
    is_busy: bool,
    /// Whether the thread is to end, or could not be started.
    has_ended: bool,
    thread: Option<OwnThread>,
}

impl ReclaimState {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<ReclaimState>,
    /// Notified when a task arrives or ends, and at the end.
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ReclaimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, ReclaimState>) -> MutexGuard<'a, ReclaimState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until the end.
    fn run(&self) {
        let mut state = self.state();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                debug_assert!(!state.is_busy, "one thread does one task at a time");
                state.is_busy = true;
                drop(state);
                // Our tasks do not panic; if one did, callers of `wait` would wait forever.
                let _ = catch_unwind(AssertUnwindSafe(task));
                state = self.state();
                state.is_busy = false;
                self.changed.notify_all();
            } else if state.has_ended {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }
}

/// The reclaiming thread of a session, and its queue of tasks.
pub(crate) struct Reclaimer {
    shared: Arc<Shared>,
    process: Process,
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").finish_non_exhaustive()
    }
}

impl Reclaimer {
    /// Returns a reclaimer without a thread. With `at_once` it never starts one.
    pub(crate) fn new(at_once: bool) -> Self {
        let shared = Arc::<Shared>::default();
        shared.state().has_ended = at_once;
        Self { shared, process: Process::current() }
    }

    /// Runs a task, on the thread or at once.
    pub(crate) fn sweep(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state();
        if state.thread.is_none() && !state.has_ended {
            let shared = Arc::clone(&self.shared);
            state.thread = OwnThread::spawn("terrane-sweep", move || shared.run()).ok();
            state.has_ended = state.thread.is_none();
        }

        // No thread, or too far behind: the caller pays, so the queue stays bounded.
        if state.has_ended || state.waiting.len() >= WAITING_MAX {
            if !state.has_ended {
                rare::taken("more waits to be reclaimed than may wait");
            }
            drop(state);
            return task();
        }

        debug_assert!(state.thread.is_some(), "a task that waits has a thread");
        state.waiting.push_back(Box::new(task));
        debug_assert!(state.waiting.len() <= WAITING_MAX);
        self.shared.changed.notify_all();
    }

    /// Drops a value that holds `bytes` bytes of memory.
    pub(crate) fn reclaim<T: Send + 'static>(&self, memory: T, bytes: usize) {
        if bytes < SWEPT_BYTES_MIN {
            drop(memory);
        } else {
            self.sweep(move || drop(memory));
        }
    }

    /// Waits until all tasks are done; returns whether there were any.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.shared.state();
        let had_work = !state.is_idle();
        // A task must not wait for itself.
        let is_own = state.thread.as_ref().is_some_and(OwnThread::is_caller);
        while !state.is_idle() && !is_own {
            state = self.shared.wait(state);
        }
        debug_assert!(is_own || state.is_idle());
        had_work && !is_own
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        // In a child there is no thread, and it may have held the lock.
        if !self.process.is_current() {
            return;
        }
        let mut state = self.shared.state();
        state.has_ended = true;
        let thread = state.thread.take();
        drop(state);
        self.shared.changed.notify_all();
        // A task may hold the last reference to the reclaimer, and must not join itself.
        if let Some(thread) = thread.filter(|own| !own.is_caller()) {
            thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread::{self, ThreadId};

    use super::*;

    /// A reclaimer whose thread waits for the barrier in its first task, and a list of who did
    /// which task.
    struct BlockedReclaimer {
        reclaimer: Reclaimer,
        barrier: Arc<Barrier>,
        done: Arc<Mutex<Vec<(usize, ThreadId)>>>,
    }

    fn blocked() -> BlockedReclaimer {
        let reclaimer = Reclaimer::new(false);
        let barrier = Arc::new(Barrier::new(2));

        let waiting = Arc::clone(&barrier);
        reclaimer.sweep(move || {
            waiting.wait();
        });

        // Until the thread has it, it waits like others.
        let mut state = reclaimer.shared.state();
        while !state.is_busy {
            drop(state);
            thread::yield_now();
            state = reclaimer.shared.state();
        }

        drop(state);
        BlockedReclaimer { reclaimer, barrier, done: Arc::default() }
    }

    impl BlockedReclaimer {
        fn sweep(&self, number: usize) {
            let done = Arc::clone(&self.done);
            let note = move || done.lock().unwrap().push((number, thread::current().id()));
            self.reclaimer.sweep(note);
        }

        fn numbers(&self) -> Vec<usize> {
            self.done.lock().unwrap().iter().map(|(number, _)| *number).collect()
        }
    }

    #[test]
    fn tasks_are_done_by_another_thread_in_their_order_and_can_be_waited_for() {
        let blocked = blocked();
        (0..10).for_each(|number| blocked.sweep(number));
        assert_eq!(blocked.numbers(), []);
        blocked.barrier.wait();
        blocked.reclaimer.wait();
        assert_eq!(blocked.numbers(), (0..10).collect::<Vec<_>>());
        let own = thread::current().id();
        assert!(blocked.done.lock().unwrap().iter().all(|(_, thread)| *thread != own));
        assert!(!blocked.reclaimer.wait(), "nothing is left");
    }

    #[test]
    fn what_is_too_much_to_wait_is_done_at_once() {
        let blocked = blocked();
        (0..=WAITING_MAX).for_each(|number| blocked.sweep(number));
        assert_eq!(blocked.numbers(), [WAITING_MAX]);
        blocked.barrier.wait();
        assert!(blocked.done.lock().unwrap()[0].1 == thread::current().id());
    }

    #[test]
    fn without_a_thread_all_is_done_at_once() {
        let reclaimer = Reclaimer::new(true);
        let barrier = Arc::new(Barrier::new(1));
        let blocked = BlockedReclaimer { reclaimer, barrier, done: Arc::default() };
        blocked.sweep(7);
        assert_eq!(*blocked.done.lock().unwrap(), [(7, thread::current().id())]);
        assert!(!blocked.reclaimer.wait());
    }

    #[test]
    fn dropping_waits_and_a_task_may_hold_the_last_reference() {
        let blocked = blocked();
        blocked.sweep(0);
        let BlockedReclaimer { reclaimer, barrier, done } = blocked;
        let reclaimer = Arc::new(reclaimer);
        let last = Arc::clone(&reclaimer);
        let noted = Arc::clone(&done);

        // It neither waits for itself nor joins itself.
        reclaimer.sweep(move || {
            last.wait();
            drop(last);
            noted.lock().unwrap().push((1, thread::current().id()));
        });

        barrier.wait();
        reclaimer.wait();
        drop(reclaimer);

        assert_eq!(
            done.lock().unwrap().iter().map(|(number, _)| *number).collect::<Vec<_>>(),
            [0, 1]
        );
    }

    #[test]
    fn a_task_that_panics_keeps_nobody_waiting() {
        let blocked = blocked();
        blocked.reclaimer.sweep(|| panic!("for the test"));
        blocked.sweep(1);
        blocked.barrier.wait();
        blocked.reclaimer.wait();
        assert_eq!(blocked.numbers(), [1]);
    }

    #[test]
    fn small_memory_goes_at_once() {
        let blocked = blocked();
        let small = Arc::new(());
        let large = Arc::new(());
        blocked.reclaimer.reclaim(Arc::clone(&small), SWEPT_BYTES_MIN - 1);
        blocked.reclaimer.reclaim(Arc::clone(&large), SWEPT_BYTES_MIN);
        assert_eq!((Arc::strong_count(&small), Arc::strong_count(&large)), (1, 2));
        blocked.barrier.wait();
        blocked.reclaimer.wait();
        assert_eq!(Arc::strong_count(&large), 1);
    }
}

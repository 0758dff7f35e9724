//! A condition variable of `shuttle` whose waits end by a timeout, too.
//!
//! In `shuttle` time does not pass, and a wait with a timeout ends by a notification alone. Here
//! such a wait ends at any moment, and a draw says whether its time was over. Nobody else is woken
//! by that, and nobody is woken for no reason: what waits for a notification that is missing waits
//! for ever, and the test fails.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use shuttle::rand::Rng as _;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, MutexGuard};
use shuttle::thread;

/// Waiting threads, by the numbers of their waits.
#[derive(Debug, Default)]
struct Waits {
    next: u64,
    /// The longest wait first.
    waiting: VecDeque<u64>,
    /// Waits that are over, of threads that have not run since.
    over: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    woken: shuttle::sync::Condvar,
    /// Never held while another thread runs, so a lock of `std`.
    waits: std::sync::Mutex<Waits>,
}

impl Inner {
    fn waits(&self) -> std::sync::MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> u64 {
        let mut waits = self.waits();
        let number = waits.next;
        waits.next += 1;
        waits.waiting.push_back(number);
        number
    }

    /// Ends the wait of this number, unless it is over.
    fn end(&self, number: u64) {
        let mut waits = self.waits();
        if let Some(at) = waits.waiting.iter().position(|waiting| *waiting == number) {
            waits.waiting.remove(at);
            waits.over.insert(number);
        }
    }

    fn wait<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        number: u64,
    ) -> LockResult<MutexGuard<'a, T>> {
        while !self.waits().over.remove(&number) {
            guard = self.woken.wait(guard)?;
        }
        Ok(guard)
    }
}

/// A condition variable with the methods of that of `std`.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: Arc<Inner>,
}

/// The result of a wait with a timeout, with the method of that of `std`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult {
    is_over: bool,
}

impl WaitTimeoutResult {
    /// Whether the time was over.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.is_over
    }
}

type Waited<'a, T> = LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)>;

impl Condvar {
    /// A condition variable that nobody waits for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        let first = self.inner.waits().waiting.front().copied();
        if let Some(first) = first {
            self.inner.end(first);
        }
        self.inner.woken.notify_all();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        let all: Vec<u64> = self.inner.waits().waiting.iter().copied().collect();
        all.into_iter().for_each(|number| self.inner.end(number));
        self.inner.woken.notify_all();
    }

    /// Waits for a notification.
    ///
    /// # Errors
    /// A poisoned lock.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let number = self.inner.begin();
        self.inner.wait(guard, number)
    }

    /// Waits for a notification, or the end of some time, which comes at any moment.
    ///
    /// # Errors
    /// A poisoned lock.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> Waited<'a, T> {
        let number = self.inner.begin();
        let is_awake = Arc::new(AtomicBool::new(false));
        let clock = thread::spawn({
            let (inner, is_awake) = (Arc::clone(&self.inner), Arc::clone(&is_awake));
            move || {
                // Again and again, because the waiting thread may not be asleep yet.
                while !is_awake.load(Ordering::SeqCst) {
                    inner.end(number);
                    inner.woken.notify_all();
                    thread::yield_now();
                }
            }
        });
        let waited = self.inner.wait(guard, number);
        is_awake.store(true, Ordering::SeqCst);
        drop(clock);
        let result = WaitTimeoutResult { is_over: shuttle::rand::thread_rng().gen_bool(0.5) };
        match waited {
            Ok(guard) => Ok((guard, result)),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), result))),
        }
    }

    /// Waits while a condition holds, or until some time is over.
    ///
    /// # Errors
    /// A poisoned lock.
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        time: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> Waited<'a, T> {
        while condition(&mut guard) {
            let (after, result) = self.wait_timeout(guard, time)?;
            guard = after;
            if result.timed_out() {
                return Ok((guard, result));
            }
        }
        Ok((guard, WaitTimeoutResult { is_over: false }))
    }
}

//! A condition variable of `shuttle` whose waits end by a timeout, too.
//!
//! In `shuttle` time does not pass, and a wait with a timeout ends by a notification alone. Here
//! such a wait ends at any moment, and a draw says whether its time was over.

use std::sync::{LockResult, PoisonError};
use std::time::Duration;

use shuttle::rand::Rng as _;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, MutexGuard};
use shuttle::thread;

/// A condition variable with the methods of that of `std`.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: Arc<shuttle::sync::Condvar>,
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
        self.inner.notify_one();
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }

    /// Waits for a notification.
    ///
    /// # Errors
    /// A poisoned lock.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.inner.wait(guard)
    }

    /// Waits for a notification, or the end of some time, which comes at any moment.
    ///
    /// # Errors
    /// A poisoned lock.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, _: Duration) -> Waited<'a, T> {
        // Others are woken for no reason, which they must expect.
        let is_over = Arc::new(AtomicBool::new(false));
        let clock = thread::spawn({
            let (inner, is_over) = (Arc::clone(&self.inner), Arc::clone(&is_over));
            move || {
                while !is_over.load(Ordering::SeqCst) {
                    inner.notify_all();
                    thread::yield_now();
                }
            }
        });
        let waited = self.inner.wait(guard);
        is_over.store(true, Ordering::SeqCst);
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

//! Turn: the right to write, which one writer of a database has at a time.
//!
//! A call for the turn waits for the writer of another thread. If the calling thread has the turn,
//! the call fails: it would wait for ever.
//!
//! Invariant: a [`TurnGuard`] does not leave its thread, so the thread that took the turn holds it.

use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::database::{Error, Result};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Turn {
    /// The thread that has it.
    holder: Mutex<Option<ThreadId>>,
    /// Signalled when the turn is given up.
    given_up: Condvar,
}

/// Holder of the turn, which its drop gives up.
#[derive(Debug)]
pub struct TurnGuard<'a> {
    turn: &'a Turn,
    /// Keeps the guard in its thread.
    _here: PhantomData<*const ()>,
}

impl Turn {
    // Takes a poisoned lock too: no code under the lock can panic half way.
    fn holder(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread has the turn, and takes it.
    ///
    /// # Errors
    /// [`Error::Busy`] if this thread has it already.
    pub fn take(&self, back_end: &'static str) -> Result<TurnGuard<'_>> {
        let own = thread::current().id();
        let mut holder = self.holder();
        while let Some(thread) = *holder {
            if thread == own {
                let what = "this thread has a writer or a transaction already: finish it, or drop it, first";
                return Err(Error::Busy { back_end, what: what.to_owned(), source: None });
            }
            holder = self.given_up.wait(holder).unwrap_or_else(PoisonError::into_inner);
        }

        *holder = Some(own);
        Ok(TurnGuard { turn: self, _here: PhantomData })
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let holder = self.turn.holder().take();
        debug_assert_eq!(holder, Some(thread::current().id()));
        // A turn has one holder, so one that waits is enough.
        self.turn.given_up.notify_one();
    }
}

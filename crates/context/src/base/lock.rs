//! Locks whose poison is ignored: the state that a mutex guards here is whole between any two
//! statements, so a thread that panicked has left it usable.

use terrane_io::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

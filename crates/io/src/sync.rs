//! Locks, atomics and threads of the engines: those of the standard library.
//!
//! With `--cfg shuttle` they are those of the crate `shuttle`, which runs a test under many
//! schedules, one thread at a time (`cargo xtask schedules`). So engines take what blocks or races
//! from here, and only counters of the whole process, which no thread waits for, from `std`.
//!
//! `OnceLock` and `LazyLock` are those of `std` in both cases: what fills them must not block.

#[cfg(not(shuttle))]
pub use std::sync::*;
#[cfg(not(shuttle))]
pub use std::thread;

#[cfg(shuttle)]
mod scheduled;
#[cfg(shuttle)]
pub use scheduled::{Condvar, WaitTimeoutResult};
#[cfg(shuttle)]
pub use shuttle::sync::{
    Arc, Barrier, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak, atomic, mpsc,
};
#[cfg(shuttle)]
pub use shuttle::thread;
#[cfg(shuttle)]
pub use std::sync::{LazyLock, LockResult, OnceLock, PoisonError, TryLockError, TryLockResult};

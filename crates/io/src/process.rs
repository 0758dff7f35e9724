//! The process that made a handle, told apart from the processes that were forked off it.
//!
//! A child of `fork` has the memory, the open files and the locks of its parent, and none of its
//! threads. If it used a store, both would write the same files, and a lock that the child gave up
//! would be lost to the parent. So a handle belongs to the process that made it. In a child its
//! calls are refused, and dropping it changes nothing.
//!
//! A handler that `fork` runs in the child counts forks, so that a check costs one load. `vfork`
//! and `clone` called by hand run no handlers and are not noticed. `std::process::Command` is no
//! matter, since its child only becomes another program.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::sync::thread::{self, JoinHandle};

/// Forks on the way from the first process of the program to this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Registers the handler, which stays for the life of the program.
static REGISTERED: Once = Once::new();

/// A process of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    forks: u64,
}

impl Process {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler only adds to an atomic number, which is allowed in a child of a
            // process with threads. It is part of the program and not of a library that could be
            // unloaded before: Rust never unloads one.
            // Without memory for it (the only error), forks are not noticed.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self { forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether this is the running process, and not one that it was forked off.
    #[must_use]
    pub fn is_current(self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Refuses a call on the handle of another process.
    ///
    /// # Errors
    /// [`Error::Forked`] with the path.
    pub fn check(self, path: &Path) -> Result<()> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked { path: path.to_owned() }) }
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::current()
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A thread that only the process which started it joins or detaches: in a child there is none.
#[derive(Debug)]
pub struct OwnThread<T = ()> {
    /// Taken out once, in `join` or `drop`.
    handle: ManuallyDrop<JoinHandle<T>>,
    process: Process,
}

impl<T: Send + 'static> OwnThread<T> {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// That of the system, which refuses another thread.
    pub fn spawn(name: &str, work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Self> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self { handle: ManuallyDrop::new(handle), process: Process::current() })
    }
}

impl<T> OwnThread<T> {
    /// Whether the calling thread is this one.
    #[must_use]
    pub fn is_caller(&self) -> bool {
        self.handle.thread().id() == thread::current().id()
    }

    /// Waits for the end of the thread; `None` in a child, and after a panic of the thread.
    pub fn join(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        if !this.process.is_current() {
            return None;
        }
        // SAFETY: `this` is not used, and not dropped, after this.
        let handle = unsafe { ManuallyDrop::take(&mut this.handle) };
        handle.join().ok()
    }
}

impl<T> Drop for OwnThread<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: `handle` is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

/// Forks, and does some work in the child, which then ends without running anything of this
/// program: for tests of what a child may do. Returns the answer of the work; `None` if the child
/// did not get that far in a minute.
///
/// # Panics
/// If the system refuses to fork.
#[cfg(feature = "sim")]
pub fn in_child(work: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child is a copy of this thread alone. Locks that other threads held are never
    // released in it, which the alarm turns into an end by a signal.
    let child = unsafe { libc::fork() };
    assert!(0 <= child, "fork failed: {}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: both calls take numbers, and the second one does not return.
        unsafe {
            libc::alarm(60);
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            libc::_exit(match answer {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 2,
            })
        }
    }

    let mut status = 0;
    loop {
        // SAFETY: `status` lives during the call, which writes a number to it.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        let is_interrupted =
            || std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if ended == child || !is_interrupted() {
            break;
        }
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Some(true),
        Some(1) => Some(false),
        _ => None,
    }
}

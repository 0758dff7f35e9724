//! Queues by a pool of threads with positioned reads and writes.
//!
//! The pool belongs to a disk and serves all of its queues. It starts with the first queue, and
//! ends with the disk and the last queue. Jobs own their request, so they borrow nothing from the
//! thread that made it.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::disk::disk::{Completion, IoQueue, Request};
use crate::error::Error;
use crate::process::{OwnThread, Process};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A pool of threads that carry out requests.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: Arc<Jobs>,
    workers: Vec<OwnThread>,
    process: Process,
}

#[derive(Debug, Default)]
struct Jobs {
    list: Mutex<JobList>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct JobList {
    waiting: VecDeque<Job>,
    /// Set when the pool ends; no job is added after that.
    closed: bool,
}

#[derive(Debug)]
struct Job {
    request: Request,
    done: Arc<Done>,
}

/// The completions of one queue.
#[derive(Debug, Default)]
struct Done {
    completions: Mutex<VecDeque<Completion>>,
    added: Condvar,
}

/// Locks a mutex. No code of this module panics while it holds one, so the content is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts a pool of `threads` threads, at least one.
    pub(crate) fn new(threads: usize) -> io::Result<Arc<Self>> {
        let jobs: Arc<Jobs> = Arc::default();
        let process = Process::current();
        let mut pool = Self { jobs: Arc::clone(&jobs), workers: Vec::new(), process };
        for _ in 0..threads.max(1) {
            let jobs = Arc::clone(&jobs);
            match OwnThread::spawn("terrane-io", move || jobs.work()) {
                Ok(worker) => pool.workers.push(worker),
                // Too few threads are slow; no thread is an error.
                Err(error) if pool.workers.is_empty() => return Err(error),
                Err(_) => break,
            }
        }

        Ok(Arc::new(pool))
    }

    /// Returns a queue that keeps up to `depth` requests in the pool, of which as many run at once
    /// as the pool has threads.
    pub(crate) fn queue(self: &Arc<Self>, depth: usize) -> ThreadQueue {
        ThreadQueue {
            pool: Arc::clone(self),
            done: Arc::default(),
            depth: depth.max(1),
            waiting: VecDeque::new(),
            in_flight: 0,
            taken: VecDeque::new(),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // In a child there are no workers, and one may have held the lock.
        if !self.process.is_current() {
            return;
        }
        // Workers end when the list is closed and empty.
        lock(&self.jobs.list).closed = true;
        self.jobs.added.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing left to report.
            worker.join();
        }
    }
}

impl Jobs {
    /// Carries out jobs until the pool ends.
    fn work(&self) {
        while let Some(Job { request, done }) = self.take() {
            let completion = carry_out(request);
            lock(&done.completions).push_back(completion);
            done.added.notify_one();
        }
    }

    /// Returns the next job, waiting for it; `None` when the pool ends.
    fn take(&self) -> Option<Job> {
        let mut list = lock(&self.list);
        loop {
            // Jobs that wait are done before the pool ends.
            if let Some(job) = list.waiting.pop_front() {
                return Some(job);
            }
            if list.closed {
                return None;
            }
            list = self.added.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Carries out a request whose file may be of any kind. A panic counts as a failed request: without
/// its completion the owner of the queue would wait for ever.
fn carry_out(mut request: Request) -> Completion {
    // The file answers for its own state, and the content of the buffer is unspecified after a
    // failure.
    let result = catch_unwind(AssertUnwindSafe(|| request.transfer())).unwrap_or_else(|_| {
        let error = io::Error::other("the file panicked");
        Err(Error::io("queued request", request.file.path(), error))
    });
    Completion { tag: request.tag, buffer: request.buffer, result }
}

/// A queue over a [`Pool`].
pub(crate) struct ThreadQueue {
    pool: Arc<Pool>,
    done: Arc<Done>,
    depth: usize,
    /// Requests that were handed over and not given to the pool yet.
    waiting: VecDeque<Request>,
    /// Requests given to the pool and not in `taken` yet. Invariant: at most `depth`.
    in_flight: usize,
    /// Completions taken out of `done` together, so that its lock is taken once for all of them.
    taken: VecDeque<Completion>,
}

impl ThreadQueue {
    /// Takes the completions that are there; with `wait`, waits for the first one.
    fn collect(&mut self, wait: bool) {
        let mut completions = lock(&self.done.completions);
        while wait && completions.is_empty() {
            completions = self.done.added.wait(completions).unwrap_or_else(PoisonError::into_inner);
        }

        debug_assert!(completions.len() <= self.in_flight, "each request completes once");
        self.in_flight -= completions.len();
        self.taken.append(&mut completions);
    }
}

impl IoQueue for ThreadQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    fn submit(&mut self) {
        // No more requests are in flight than the depth allows.
        let count = self.waiting.len().min(self.depth - self.in_flight);
        if count == 0 {
            return;
        }
        if !self.pool.process.is_current() {
            // The files refuse them.
            self.taken.extend(self.waiting.drain(..).map(carry_out));
            return;
        }

        let done = &self.done;
        let jobs =
            self.waiting.drain(..count).map(|request| Job { request, done: Arc::clone(done) });
        lock(&self.pool.jobs.list).waiting.extend(jobs);
        self.in_flight += count;
        debug_assert!(self.in_flight <= self.depth, "the depth bounds the requests in flight");

        // One worker for each job is enough.
        for _ in 0..count.min(self.pool.workers.len()) {
            self.pool.jobs.added.notify_one();
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        if self.taken.is_empty() {
            // Requests that wait go out before this call waits.
            self.submit();
            if self.in_flight > 0 {
                self.collect(true);
                self.submit();
            }
        }
        self.taken.pop_front()
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.taken.is_empty() {
            self.collect(false);
            self.submit();
        }
        self.taken.pop_front()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_flight + self.taken.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        while self.in_flight > 0 && self.pool.process.is_current() {
            self.collect(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::path::Path;

    use super::*;
    use crate::aligned::AlignedBuf;
    use crate::disk::disk::{Access, Direction, DiskFile};
    use crate::error::Result;

    #[derive(Debug)]
    struct Bomb;

    impl DiskFile for Bomb {
        fn path(&self) -> &Path {
            Path::new("bomb")
        }

        fn access(&self) -> Access {
            Access::Buffered
        }

        fn len(&self) -> Result<u64> {
            Ok(0)
        }

        fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
            panic!("on purpose")
        }

        fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
            panic!("on purpose")
        }

        fn set_len(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn allocate(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn forget(&self, _: u64, _: u64) {}

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// The panic took the completion with it: `pop` and the drop of the queue waited for ever, and
    /// each one cost the pool a thread. What was to be written comes back, to be written again.
    #[test]
    fn a_request_that_panics_completes_with_an_error() {
        let pool = Pool::new(1).unwrap();
        let mut queue = pool.queue(4);
        for tag in 0..3 {
            let file = Arc::new(Bomb);
            let mut buffer = AlignedBuf::zeroed(1);
            buffer.fill(7);
            queue.push(Request { tag, file, offset: 0, buffer, direction: Direction::Write });
        }

        for tag in 0..2 {
            let completion = queue.pop().unwrap();
            assert_eq!(completion.tag, tag);
            assert!(completion.buffer.iter().all(|&byte| byte == 7));
            let error = completion.result.unwrap_err().to_string();
            assert!(error.contains("bomb"), "{error}");
        }
    }
}

//! Queues by `io_uring`.
//!
//! **Ownership.** A queue holds one ring, taken from the pool of its disk and given back when the
//! queue is dropped, so a ring outlives the threads that use it. Requests own their buffer and hold
//! their file open. They lie in the queue from before the kernel sees them until their completion
//! has been read. Dropping the queue waits for all of them, during unwinding too; forgetting the
//! queue leaks them. So the kernel never writes to memory that is used otherwise.
//!
//! **Exceptions.** The ring carries the common case. A request may complete short or with an error
//! (`EAGAIN`, `EINTR`, the end of the file, `EFAULT` and `ECANCELED` after the thread that
//! submitted it has died). Then a positioned call carries it out again, with the one loop for short
//! and interrupted transfers, and the answer of that call counts. If the kernel stops taking
//! requests from a ring, all of them are carried out that way, and the ring is not used again.
//!
//! **Rejected.** Registered files and buffers, `COOP_TASKRUN`, and waiting for more than one
//! completion at a time. Measured with one thread and 128 random direct reads of 4 KiB in flight,
//! on a virtual machine: they change the 2 to 2.5 us of CPU time per read by less than the runs
//! differ among themselves (0.3 us). `SINGLE_ISSUER` would bind a ring to one thread, but rings
//! move between threads with their queues.
//!
//! The time spent waiting is kept out of the system's iowait figure where the kernel allows.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use crate::disk::disk::{Completion, Direction, IoQueue, Request};
use crate::disk::posix::PosixFile;
use crate::process::Process;
use crate::sync::thread;
use crate::sync::{Arc, Mutex, PoisonError};

/// Most requests in flight of one queue; a larger depth is cut to this.
const DEPTH_MAX: usize = 4096;

/// Size of small rings, in requests. With one size for all of them queues can share rings.
const ENTRIES_MIN: usize = 256;

/// Most idle rings that are kept for later queues.
const IDLE_MAX: usize = 16;

/// Requests that are collected before one call of the kernel. Below 16 the calls show in CPU time;
/// above 64 the device idles meanwhile.
const BATCH: usize = 32;

/// Most bytes of one request; the kernel stops just below 2 GiB. The rest makes the request a short
/// one.
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// The rings that no queue holds at the moment.
#[derive(Default)]
pub(crate) struct RingPool {
    /// Invariant: nothing is in flight in these rings, and their queues are empty.
    idle: Mutex<Vec<Ring>>,
}

impl RingPool {
    /// A pool, if the system lets this process use `io_uring` and supports the needed operations.
    pub(crate) fn probe() -> io::Result<Arc<Self>> {
        let mut ring = Ring::new(ENTRIES_MIN)?;
        let mut probe = Probe::new();
        ring.uring.submitter().register_probe(&mut probe)?;

        if ![opcode::Read::CODE, opcode::Write::CODE].iter().all(|&code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }

        // Set-up may be allowed and use forbidden, so one request makes the round.
        // SAFETY: a no-op refers to no memory.
        unsafe { ring.uring.submission().push(&opcode::Nop::new().build()) }
            .map_err(io::Error::other)?;
        while ring.uring.completion().next().is_none() {
            match ring.enter(1) {
                Err(Errno::INTR) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }

        Ok(Arc::new(Self { idle: Mutex::new(vec![ring]) }))
    }

    /// Returns a queue that keeps up to `depth` requests in flight.
    pub(crate) fn queue(self: &Arc<Self>, depth: usize) -> io::Result<UringQueue> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = match self.take(depth) {
            Some(ring) => ring,
            None => Ring::new(depth.next_power_of_two().max(ENTRIES_MIN))?,
        };

        Ok(UringQueue {
            ring: ManuallyDrop::new(ring),
            pool: Arc::clone(self),
            depth,
            waiting: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
            unseen: VecDeque::new(),
            in_flight: 0,
            is_broken: false,
            done: VecDeque::new(),
            process: Process::current(),
        })
    }

    fn take(&self, depth: usize) -> Option<Ring> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let index = idle.iter().position(|ring| ring.entries() >= depth)?;
        Some(idle.swap_remove(index))
    }

    fn give_back(&self, ring: Ring) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(ring);
        }
    }
}

/// A ring, and the flags to wait with.
struct Ring {
    uring: IoUring,
    wait_flags: EnterFlags,
}

impl Ring {
    fn new(entries: usize) -> io::Result<Self> {
        let entries = u32::try_from(entries).map_err(io::Error::other)?;
        let uring = IoUring::new(entries)?;
        let mut wait_flags = EnterFlags::GETEVENTS;
        if uring.params().is_feature_no_iowait() {
            wait_flags |= EnterFlags::NO_IOWAIT;
        }
        Ok(Self { uring, wait_flags })
    }

    fn entries(&self) -> usize {
        self.uring.params().sq_entries() as usize
    }

    /// Hands the submission queue to the kernel, and waits for `wanted` completions.
    fn enter(&mut self, wanted: u32) -> Result<(), Errno> {
        let count = self.uring.submission().len();
        self.call(u32::try_from(count).expect("at most the ring's entries"), wanted)
    }

    /// Waits for one completion, and hands nothing over.
    fn wait(&mut self) -> Result<(), Errno> {
        self.call(0, 1)
    }

    fn call(&mut self, count: u32, wanted: u32) -> Result<(), Errno> {
        let flags = if wanted > 0 { self.wait_flags } else { EnterFlags::empty() };
        // SAFETY: no argument is passed, so none can dangle; the requests in the submission queue
        // are valid by the contract of `squeue::push`, kept in `UringQueue::hand_over`.
        let entered =
            unsafe { self.uring.submitter().enter::<()>(count, wanted, flags.bits(), None) };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}

/// A queue over one ring.
pub(crate) struct UringQueue {
    /// Taken out once, in `drop`.
    ring: ManuallyDrop<Ring>,
    pool: Arc<RingPool>,
    depth: usize,
    /// Requests that were handed over and are not in the ring yet.
    waiting: VecDeque<Request>,
    /// The requests in the ring, by `user_data`.
    ///
    /// Invariant: a request stays in its slot, untouched, from before it enters the submission
    /// queue until its completion has been read, or until the kernel can no longer see it.
    slots: Vec<Option<Request>>,
    /// Slots without a request.
    free: Vec<usize>,
    /// Slots of the requests in the submission queue, in its order; the kernel has not seen these.
    unseen: VecDeque<usize>,
    /// Number of slots in use. Invariant: at most `depth`, which is at most the entries of the
    /// ring, so neither of its two queues overflows.
    in_flight: usize,
    /// Whether the kernel has stopped taking requests from this ring.
    is_broken: bool,
    /// Completions to be taken.
    done: VecDeque<Completion>,
    process: Process,
}

impl UringQueue {
    /// Puts waiting requests into the submission queue, as many as the depth allows.
    fn hand_over(&mut self) {
        while self.in_flight < self.depth {
            let Some(request) = self.waiting.pop_front() else { return };
            // In a child of the process that opened the file, the file refuses the request.
            let file = request.file.as_any().downcast_ref::<PosixFile>();
            if self.is_broken || file.is_none_or(|file| file.check_process().is_err()) {
                self.done.push_back(request.carry_out());
                continue;
            }

            let slot = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            });

            let entry = describe(self.slots[slot].insert(request)).user_data(slot as u64);

            // SAFETY: the descriptor and the buffer belong to the request in `slot`, and by the
            // invariant of `slots` it stays there for as long as the kernel may use them.
            let pushed = unsafe { self.ring.uring.submission().push(&entry) };
            assert!(pushed.is_ok(), "fewer requests in flight than the ring has entries");

            self.unseen.push_back(slot);
            self.in_flight += 1;
            debug_assert!(self.unseen.len() <= self.in_flight, "unseen requests are in flight");
        }
    }

    /// Calls the kernel for the submission queue; with `wait`, waits for a completion. May return
    /// early: the caller checks whether it has what it needs.
    fn enter(&mut self, wait: bool) {
        if self.is_broken {
            // The kernel still completes requests that it took before, but waiting for them through
            // the ring fails.
            if wait {
                thread::sleep(Duration::from_micros(100));
            }
            return;
        }

        let entered = match self.ring.enter(u32::from(wait)) {
            // The kernel is short of memory for more: something must complete first.
            Err(Errno::AGAIN | Errno::BUSY) if self.unseen.len() < self.in_flight => {
                if wait {
                    self.ring.wait()
                } else {
                    Ok(())
                }
            }
            entered => entered,
        };

        let unseen = self.ring.uring.submission().len();
        self.unseen.drain(..self.unseen.len() - unseen);

        let is_hopeless = match entered {
            Ok(()) | Err(Errno::INTR) => false,
            // Short of memory, and nothing in flight will free some.
            Err(Errno::AGAIN | Errno::BUSY) => self.unseen.len() == self.in_flight,
            Err(_) => true,
        };

        if is_hopeless {
            self.give_up();
        }
    }

    /// Carries out the requests that the kernel has not seen, and gives the ring up.
    fn give_up(&mut self) {
        self.is_broken = true;
        for slot in self.unseen.drain(..) {
            let request = self.slots[slot].take().expect("in the submission queue");
            self.in_flight -= 1;
            self.done.push_back(request.carry_out());
        }
    }

    /// Takes the completions out of the ring.
    fn reap(&mut self) {
        for entry in self.ring.uring.completion() {
            let slot = usize::try_from(entry.user_data()).expect("an index of ours");
            let request = self.slots[slot].take().expect("in flight until now");
            self.free.push(slot);
            self.in_flight -= 1;
            // A short or failed transfer is carried out again by a positioned call, whose answer
            // counts.
            let is_whole = usize::try_from(entry.result()) == Ok(request.buffer.len());
            self.done.push_back(if is_whole {
                Completion { tag: request.tag, buffer: request.buffer, result: Ok(()) }
            } else {
                request.carry_out()
            });
        }
    }

    /// Submits waiting requests once enough of them fit to be worth a call.
    fn refill(&mut self) {
        let count = self.waiting.len().min(self.depth - self.in_flight);
        if count >= BATCH.min(self.depth.div_ceil(2)) {
            self.submit();
        }
    }
}

/// Describes a request to the kernel.
fn describe(request: &mut Request) -> squeue::Entry {
    let file = request.file.as_any().downcast_ref::<PosixFile>();
    let file = types::Fd(file.expect("checked by the caller").raw_fd());
    let len = request.buffer.len().min(TRANSFER_BYTES_MAX);
    let len = u32::try_from(len).expect("at most TRANSFER_BYTES_MAX");
    let start = request.buffer.as_mut_ptr();
    match request.direction {
        Direction::Read => opcode::Read::new(file, start, len).offset(request.offset).build(),
        Direction::Write => opcode::Write::new(file, start, len).offset(request.offset).build(),
    }
}

impl IoQueue for UringQueue {
    fn push(&mut self, request: Request) {
        self.waiting.push_back(request);
        self.refill();
    }

    fn submit(&mut self) {
        self.hand_over();
        if !self.unseen.is_empty() {
            self.enter(false);
        }
    }

    fn pop(&mut self) -> Option<Completion> {
        while self.done.is_empty() {
            self.reap();
            self.refill();
            if !self.done.is_empty() {
                break;
            }
            self.hand_over();
            if self.in_flight > 0 {
                self.enter(true);
            } else if self.done.is_empty() {
                return None;
            }
        }

        self.done.pop_front()
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            self.submit();
            self.reap();
        }
        self.done.pop_front()
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.in_flight + self.done.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // A child shares the ring with its parent, whose requests and completions they are.
        if !self.process.is_current() {
            return;
        }
        // The kernel may still write to the buffers of requests in flight.
        while self.in_flight > 0 {
            self.enter(true);
            self.reap();
        }
        // SAFETY: `ring` is not used after this.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        if !self.is_broken {
            self.pool.give_back(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::path::Path;

    use super::*;
    use crate::aligned::{ALIGN, AlignedBuf};
    use crate::disk::anchor::Anchors;
    use crate::disk::disk::{Access, DiskFile, OpenMode};
    use crate::disk::posix::{self, FileModes};

    const BLOCKS: usize = 64;

    /// A file whose block `n` is full of the byte `n`.
    fn numbered_blocks(dir: &Path) -> Arc<dyn DiskFile> {
        let bytes: Vec<u8> = (0..BLOCKS * ALIGN).map(|at| (at / ALIGN).to_le_bytes()[0]).collect();
        let path = dir.join("file");
        let place = Anchors::default().place("open", &path).unwrap();
        let modes = FileModes::default();
        let file = posix::open(&place, OpenMode::CreateNew, Access::Direct, modes).unwrap();
        file.write_at(&bytes, 0).unwrap();
        Arc::new(file)
    }

    fn read_of(file: &Arc<dyn DiskFile>, block: usize) -> Request {
        Request {
            tag: block as u64,
            file: Arc::clone(file),
            offset: (block * ALIGN) as u64,
            buffer: AlignedBuf::zeroed(ALIGN),
            direction: Direction::Read,
        }
    }

    fn push_all(queue: &mut UringQueue, file: &Arc<dyn DiskFile>) {
        for block in 0..BLOCKS {
            queue.push(read_of(file, block));
        }
    }

    fn check_all(queue: &mut UringQueue) {
        let mut tags = Vec::new();
        while let Some(completion) = queue.pop() {
            completion.result.unwrap();
            assert!(completion.buffer.iter().all(|&byte| u64::from(byte) == completion.tag));
            tags.push(completion.tag);
        }
        tags.sort_unstable();
        assert_eq!(tags, (0..BLOCKS as u64).collect::<Vec<_>>());
    }

    /// Puts /dev/null in the place of the ring's descriptor, so that every call on it fails.
    fn break_ring(queue: &UringQueue) {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is open, and `ManuallyDrop` leaves closing it to its owner.
        let ring = unsafe { OwnedFd::from_raw_fd(queue.ring.uring.as_raw_fd()) };
        rustix::io::dup2(&null, &mut ManuallyDrop::new(ring)).unwrap();
    }

    #[test]
    fn rings_are_used_again_by_later_queues() {
        let Ok(pool) = RingPool::probe() else { return };
        let temporary = tempfile::tempdir().unwrap();
        let file = numbered_blocks(temporary.path());
        for _ in 0..3 {
            let mut queue = pool.queue(8).unwrap();
            assert_eq!(pool.idle.lock().unwrap().len(), 0);
            push_all(&mut queue, &file);
            check_all(&mut queue);
            drop(queue);
            assert_eq!(pool.idle.lock().unwrap().len(), 1);
        }
    }

    /// Whether the ring fails before it has seen a request, with all that fit in its submission
    /// queue, or with a first batch in the kernel: each request completes, and so do later ones.
    #[test]
    fn requests_outlive_a_ring_that_fails() {
        let Ok(pool) = RingPool::probe() else { return };
        let temporary = tempfile::tempdir().unwrap();

        let file = numbered_blocks(temporary.path());
        for stage in ["unused", "filled", "entered"] {
            let mut queue = pool.queue(BLOCKS - BATCH / 2).unwrap();
            match stage {
                "unused" => break_ring(&queue),
                "filled" => {
                    for block in 0..BLOCKS {
                        queue.waiting.push_back(read_of(&file, block));
                    }
                    queue.hand_over();
                    assert_eq!(queue.unseen.len(), queue.depth);
                    break_ring(&queue);
                }
                _ => {
                    push_all(&mut queue, &file);
                    assert_eq!((queue.in_flight, queue.unseen.len()), (queue.depth, 0));
                    assert!(!queue.waiting.is_empty());
                    break_ring(&queue);
                }
            }

            if stage == "unused" {
                push_all(&mut queue, &file);
            }
            check_all(&mut queue);
            assert!(queue.is_broken, "{stage}");
            push_all(&mut queue, &file);
            check_all(&mut queue);
            drop(queue);
            assert!(pool.idle.lock().unwrap().len() <= 1, "a broken ring must not be kept");
            pool.idle.lock().unwrap().clear();
        }
    }

    /// Unwinding or not, a queue gives its ring back only when nothing is in flight.
    #[test]
    fn a_dropped_queue_gives_back_an_empty_ring() {
        let Ok(pool) = RingPool::probe() else { return };
        let temporary = tempfile::tempdir().unwrap();
        let file = numbered_blocks(temporary.path());
        let mut queue = pool.queue(BLOCKS).unwrap();
        push_all(&mut queue, &file);
        assert!(queue.in_flight > 0);
        drop(queue);
        let mut ring = pool.idle.lock().unwrap().pop().unwrap();
        assert!(ring.uring.submission().is_empty());
        assert!(ring.uring.completion().is_empty());
    }
}

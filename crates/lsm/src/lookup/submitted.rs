//! Submitted lookups, whose results are taken later: one thread of a session reads for all of them,
//! through one queue.
//!
//! The submitting thread does everything that needs no read (memtables, filters, indexes), on the
//! table as it is then. So a batch sees one state of the table. The first read starts the thread,
//! which ends with the session. The thread takes one read of each batch in turn, so that a long
//! batch does not hold up a short one.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use terrane_io::process::{OwnThread, Process};
use terrane_io::sync::atomic::{AtomicUsize, Ordering};
use terrane_io::sync::mpsc::{Receiver, Sender, channel};
use terrane_io::sync::{Arc, Condvar, Mutex, PoisonError};
use terrane_io::{Disk, IoQueue};

use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::lookup::lookup::{Batch, Flight, Landed, Search};
use crate::lookup::result::Lookup;

/// Batches that a session has under way at once.
pub const SUBMITTED_MAX: usize = 4_096;

/// Reads that the thread keeps in flight.
const QUEUE_DEPTH: usize = 256;

/// A batch of lookups that was submitted: see [`Table::submit`](crate::Table::submit). Dropping it
/// gives the batch up.
///
/// It is a future that needs no runtime: the reading thread wakes the task that awaits it.
#[derive(Debug)]
#[doc(alias = "multi_get_async")]
pub struct PendingLookups {
    slot: Arc<ResultSlot>,
}

/// Last step of a batch, after all reads, on the thread that takes the results.
type Conclude = Box<dyn FnOnce(Batch, &[Vec<u8>]) -> Result<Vec<Lookup>> + Send>;

/// A batch whose reads are to be done.
pub(crate) struct Submitted {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) batch: Batch,
    pub(crate) ready: VecDeque<Search>,
    pub(crate) conclude: Conclude,
}

impl fmt::Debug for Submitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitted").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct ResultSlot {
    state: Mutex<SlotState>,
    done: Condvar,
    /// How many there are.
    under_way: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum SlotState {
    /// In flight, with the waker of the task that awaits it.
    UnderWay(Option<Waker>),
    Done(Result<Box<Submitted>>),
    Taken,
}

impl Drop for ResultSlot {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ResultSlot {
    fn finish(&self, result: Result<Box<Submitted>>) {
        let before = std::mem::replace(&mut *lock(&self.state), SlotState::Done(result));
        self.done.notify_all();
        if let SlotState::UnderWay(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Takes the results, if they are ready. Merge operators run here, not on the reading thread.
fn take(state: &Mutex<SlotState>) -> Option<Result<Vec<Lookup>>> {
    let mut state = lock(state);
    if let SlotState::UnderWay(_) = *state {
        return None;
    }
    // A merge operator may be slow or panic, so it runs without the lock.
    let taken = std::mem::replace(&mut *state, SlotState::Taken);
    drop(state);
    Some(match taken {
        SlotState::Done(Ok(submitted)) => (submitted.conclude)(submitted.batch, &submitted.keys),
        SlotState::Done(Err(error)) => Err(error),
        SlotState::UnderWay(_) | SlotState::Taken => Err(Error::SessionClosed),
    })
}

impl PendingLookups {
    /// Whether [`wait`](Self::wait) would return without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !matches!(*lock(&self.slot.state), SlotState::UnderWay(_))
    }

    /// Waits for the results: those that [`Table::get_many`](crate::Table::get_many) would have
    /// given when the batch was submitted.
    ///
    /// # Errors
    /// Those of [`Table::get_many`](crate::Table::get_many).
    pub fn wait(self) -> Result<Vec<Lookup>> {
        let mut state = lock(&self.slot.state);
        while let SlotState::UnderWay(_) = *state {
            state = self.slot.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        take(&self.slot.state).unwrap_or(Err(Error::SessionClosed))
    }
}

impl Future for PendingLookups {
    type Output = Result<Vec<Lookup>>;

    /// Polls for the results of [`wait`](Self::wait). A poll after the results were taken returns
    /// [`Error::SessionClosed`].
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let SlotState::UnderWay(waker) = &mut *lock(&self.slot.state) {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        take(&self.slot.state).map_or(Poll::Pending, Poll::Ready)
    }
}

/// A batch that the thread has taken. If the thread dies with it, the batch ends with an error.
struct RunningBatch {
    /// Until it is finished.
    submitted: Option<Box<Submitted>>,
    slot: Arc<ResultSlot>,
    in_flight: u32,
    /// Whether it is in the list of those that have reads to begin.
    has_turn: bool,
    failed: Option<Error>,
}

impl fmt::Debug for RunningBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningBatch").finish_non_exhaustive()
    }
}

impl RunningBatch {
    /// Drops reads of a batch that was given up or has failed.
    fn drop_useless(&mut self) {
        let is_useless = self.failed.is_some() || Arc::strong_count(&self.slot) == 1;
        if is_useless && let Some(submitted) = &mut self.submitted {
            submitted.ready.clear();
        }
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && self.submitted.as_ref().is_none_or(|s| s.ready.is_empty())
    }

    /// Takes in what was read.
    fn step(&mut self, landed: Result<Landed>, flight: &mut Flight<u32>) {
        debug_assert!(self.in_flight > 0, "a read that lands was begun");
        self.in_flight -= 1;
        let Some(submitted) = &mut self.submitted else { return };
        let Submitted { keys, batch, ready, .. } = &mut **submitted;

        let next = landed.and_then(|landed| {
            let next = batch.step(keys, landed.search, &landed.buffer);
            flight.give_back(landed.buffer);
            next
        });

        match next {
            // A key that has waited already goes first.
            Ok(next) => next.into_iter().for_each(|search| ready.push_front(search)),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }
}

impl Drop for RunningBatch {
    fn drop(&mut self) {
        let result = match (self.failed.take(), self.submitted.take()) {
            (None, Some(submitted)) if self.in_flight == 0 && submitted.ready.is_empty() => {
                Ok(submitted)
            }
            (Some(error), _) => Err(error),
            _ => Err(Error::SessionClosed),
        };
        self.slot.finish(result);
    }
}

/// Work of the thread: batches under way and reads in flight.
struct Work {
    flight: Flight<u32>,
    running: Vec<Option<RunningBatch>>,
    free: Vec<u32>,
    /// Batches that have reads to begin, in the order of their turns.
    turns: VecDeque<u32>,
}

impl Work {
    fn new(queue: Box<dyn IoQueue>) -> Self {
        let flight = Flight::new(queue, Vec::new());
        Self { flight, running: Vec::new(), free: Vec::new(), turns: VecDeque::new() }
    }

    fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.flight.is_idle()
    }

    fn admit(&mut self, running: RunningBatch) {
        let id = if let Some(id) = self.free.pop() {
            self.running[id as usize] = Some(running);
            id
        } else {
            self.running.push(Some(running));
            self.running.len() as u32 - 1
        };
        self.reschedule(id);
    }

    /// Gives a batch its turn, or ends it.
    fn reschedule(&mut self, id: u32) {
        let Some(running) = &mut self.running[id as usize] else { return };
        running.drop_useless();
        if running.is_over() {
            self.running[id as usize] = None;
            self.free.push(id);
        } else if !running.has_turn
            && running.submitted.as_ref().is_some_and(|s| !s.ready.is_empty())
        {
            running.has_turn = true;
            self.turns.push_back(id);
        }
    }

    /// Begins as many reads as there is room for, one of each batch in turn.
    fn take_off(&mut self) {
        while let Some(id) = self.turns.pop_front() {
            // A batch may have ended since it got its turn.
            let Some(running) = &mut self.running[id as usize] else { continue };
            running.has_turn = false;
            running.drop_useless();

            if let Some(submitted) = &mut running.submitted
                && let Some(&search) = submitted.ready.front()
            {
                match self.flight.take_off(&mut submitted.batch, search, id) {
                    Ok(true) => {
                        submitted.ready.pop_front();
                        running.in_flight += 1;
                    }
                    Ok(false) => {
                        // The queue is full, so the batch keeps its place at the front.
                        running.has_turn = true;
                        self.turns.push_front(id);
                        return;
                    }
                    Err(error) => running.failed = Some(error),
                }
            }

            self.reschedule(id);
        }
    }

    /// Waits for a read.
    fn land(&mut self) {
        let Some((id, landed)) = self.flight.land_any() else { return };
        if let Some(running) = &mut self.running[id as usize] {
            running.step(landed, &mut self.flight);
        }
        self.reschedule(id);
    }
}

/// Serves batches until all senders are gone and all reads are done.
fn serve(disk: &dyn Disk, receiver: &Receiver<RunningBatch>) {
    let mut work = None;
    while let Ok(mut running) = receiver.recv() {
        if work.is_none() {
            match disk.queue(QUEUE_DEPTH) {
                Ok(queue) => work = Some(Work::new(queue)),
                // The next one tries again.
                Err(error) => running.failed = Some(error.into()),
            }
        }

        let Some(work) = &mut work else { continue };
        work.admit(running);
        while !work.is_idle() {
            while let Ok(running) = receiver.try_recv() {
                work.admit(running);
            }
            work.take_off();
            work.land();
        }
    }
}

#[derive(Debug)]
struct Thread {
    sender: Sender<RunningBatch>,
    handle: OwnThread,
}

#[derive(Debug, Default)]
enum ThreadState {
    /// Not started, or ended by the panic of a waker.
    #[default]
    NotStarted,
    Running(Thread),
    /// For good.
    Stopped,
}

/// The thread of a session, once it is needed.
#[derive(Debug, Default)]
pub(crate) struct LookupThread {
    thread: Mutex<ThreadState>,
    under_way: Arc<AtomicUsize>,
    process: Process,
}

impl LookupThread {
    /// Hands a batch over; without reads to do, or if the system refuses a thread, it is done at
    /// once.
    ///
    /// # Errors
    /// [`Error::TooManyLookups`]; [`Error::SessionClosed`] after [`stop`](Self::stop), if there are
    /// reads to do.
    pub(crate) fn submit(&self, disk: &Arc<dyn Disk>, batch: Submitted) -> Result<PendingLookups> {
        // Counted before it is compared, so that two threads cannot both take the last place.
        if self.under_way.fetch_add(1, Ordering::AcqRel) >= SUBMITTED_MAX {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::TooManyLookups { limit: SUBMITTED_MAX });
        }

        let state = Mutex::new(SlotState::UnderWay(None));
        let under_way = Arc::clone(&self.under_way);

        let slot = Arc::new(ResultSlot { state, done: Condvar::new(), under_way });
        let pending = PendingLookups { slot: Arc::clone(&slot) };
        if batch.ready.is_empty() {
            slot.finish(Ok(Box::new(batch)));
            return Ok(pending);
        }

        let submitted = Some(Box::new(batch));

        let mut running =
            RunningBatch { submitted, slot, in_flight: 0, has_turn: false, failed: None };
        let mut thread = lock(&self.thread);
        // Another one, if the first was ended by a panic of a waker.
        for _ in 0..2 {
            if let ThreadState::NotStarted = *thread {
                *thread = start(disk).map_or(ThreadState::NotStarted, ThreadState::Running);
            }

            match &*thread {
                ThreadState::Running(Thread { sender, .. }) => match sender.send(running) {
                    Ok(()) => return Ok(pending),
                    Err(refused) => running = refused.0,
                },
                ThreadState::NotStarted => break,
                // A thread that began now would outlive the session.
                ThreadState::Stopped => return Err(Error::SessionClosed),
            }

            *thread = ThreadState::NotStarted;
        }

        drop(thread);
        // Without a thread the caller reads for itself.
        let (sender, receiver) = channel();

        // Its receiver is here.
        let _ = sender.send(running);
        drop(sender);
        serve(disk.as_ref(), &receiver);
        Ok(pending)
    }

    /// Ends the thread after what it was given so far; there is none after it.
    pub(crate) fn stop(&self) {
        // In a child there is no thread, and it may have held the lock.
        if !self.process.is_current() {
            return;
        }
        let state = std::mem::replace(&mut *lock(&self.thread), ThreadState::Stopped);
        let ThreadState::Running(Thread { sender, handle }) = state else { return };
        drop(sender);
        // It may be the one that drops the last handle on the session.
        if !handle.is_caller() {
            // A panic of it has ended all batches with an error.
            handle.join();
        }
    }
}

fn start(disk: &Arc<dyn Disk>) -> Option<Thread> {
    let (sender, receiver) = channel();
    let disk = Arc::clone(disk);
    let run = move || serve(disk.as_ref(), &receiver);
    let handle = OwnThread::spawn("terrane-lookup", run).ok()?;
    Some(Thread { sender, handle })
}

impl Drop for LookupThread {
    fn drop(&mut self) {
        self.stop();
    }
}

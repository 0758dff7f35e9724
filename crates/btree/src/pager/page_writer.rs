//! The page writer of a bulk load: writes batches of neighbouring pages while the next batch is
//! made.
//!
//! The builder makes its pages in the buffer that is written, so nothing is copied. A page that is
//! no neighbour of the one before begins a new batch.
//!
//! Invariants: a buffer is being filled, in flight or spare, and there is at most one more than
//! batches may be in flight. Once a writer is finished or dropped, also after an error, nothing is
//! in flight, so its pages can be given back.
//!
//! Rejected: a second thread (making a page takes a tenth of a microsecond an entry; the device is
//! the bound); a file that grows page by page (each write would move its end).

use terrane_io::{AlignedBuf, Completion, Direction, IoQueue};

use crate::page::error::Result;
use crate::page::page::{PAGE_SIZE, PageNo};
use crate::pager::pager::Pager;

/// Most pages of a batch: 256 KiB, beyond which a device gains nothing.
const BATCH_PAGES: usize = 64;

/// Most batches in flight.
const BATCHES_IN_FLIGHT: usize = 4;

/// Writes new pages. See the [module](self).
pub(crate) struct PageWriter<'a> {
    pager: &'a Pager,
    queue: Box<dyn IoQueue>,
    /// The batch that is being filled, with the number of its first page and the count of its
    /// pages.
    batch: AlignedBuf,
    first: PageNo,
    count: usize,
    spare: Vec<AlignedBuf>,
}

impl<'a> PageWriter<'a> {
    /// A writer that has written nothing.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::page::error::Error::Disk).
    pub(crate) fn new(pager: &'a Pager) -> Result<Self> {
        let queue = pager.queue(BATCHES_IN_FLIGHT)?;
        let batch = AlignedBuf::zeroed(BATCH_PAGES * PAGE_SIZE);
        Ok(Self { pager, queue, batch, first: 0, count: 0, spare: Vec::new() })
    }

    /// Returns a page of zeros, to be filled and sealed before the next call.
    ///
    /// Cost: a write for each batch; waits for an earlier batch when four are in flight.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::page::error::Error::Disk): any of the earlier pages may or may not
    /// have been written.
    pub(crate) fn page(&mut self, number: PageNo) -> Result<&mut [u8]> {
        // One write takes a batch, so its pages are neighbours.
        let is_next = u64::from(self.first) + self.count as u64 == u64::from(number);
        if self.count == BATCH_PAGES || !is_next {
            self.send()?;
            self.first = number;
        }

        debug_assert!(self.count < BATCH_PAGES, "the batch has room for a page");
        // The page gets other content, so the cached one is void.
        self.pager.cache.remove(number);
        let page = &mut self.batch[self.count * PAGE_SIZE..][..PAGE_SIZE];
        page.fill(0);
        self.count += 1;
        Ok(page)
    }

    /// Waits until everything is written. The pages are not durable yet.
    ///
    /// # Errors
    /// Those of [`page`](Self::page).
    pub(crate) fn finish(mut self) -> Result<()> {
        self.send()?;

        while let Some(done) = self.queue.pop() {
            self.take_back(done)?;
        }

        debug_assert_eq!(self.queue.outstanding(), 0, "nothing is in flight");
        Ok(())
    }

    /// Starts writing the batch, if it has a page.
    fn send(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }

        while self.queue.outstanding() >= BATCHES_IN_FLIGHT {
            let Some(done) = self.queue.pop() else { break };
            self.take_back(done)?;
        }

        let buffer = if self.count == BATCH_PAGES {
            let spare = self.spare.pop();
            let next = spare.unwrap_or_else(|| AlignedBuf::zeroed(BATCH_PAGES * PAGE_SIZE));
            std::mem::replace(&mut self.batch, next)
        } else {
            // A request writes its whole buffer.
            let mut part = AlignedBuf::zeroed(self.count * PAGE_SIZE);
            part.copy_from_slice(&self.batch[..self.count * PAGE_SIZE]);
            part
        };

        self.pager.counters.page_writes.add(self.count as u64);
        self.pager.counters.write_calls.add(1);
        debug_assert!(self.queue.outstanding() < BATCHES_IN_FLIGHT, "memory stays bounded");
        self.queue.push(self.pager.request(self.first, buffer, Direction::Write));
        self.queue.submit();
        self.count = 0;
        Ok(())
    }

    /// Keeps the buffer of a write that has ended.
    fn take_back(&mut self, done: Completion) -> Result<()> {
        // Shorter buffers, of parts of a batch, are not used again.
        if done.buffer.len() == self.batch.len() {
            self.spare.push(done.buffer);
        }
        Ok(done.result?)
    }
}

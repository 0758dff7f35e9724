//! New pages on their way to the file: in rows of neighbours, some of which are in flight while the next one is made.
//!
//! Pages are made in the buffer that is written, so nothing is copied. Pages whose numbers are not neighbours begin a row
//! of their own.
//!
//! Invariants: a buffer is being filled, in flight or spare, and there are no more of them than rows that may be in flight and
//! one; nothing is in flight any more when a writer has been finished or dropped, also after an error, so pages that were
//! taken for it can be given back.

use terrane_io::{AlignedBuf, Completion, Direction, IoQueue};

use crate::page::error::Result;
use crate::page::page::{PAGE_SIZE, PageNo};
use crate::pager::pager::Pager;

/// Most pages of a row: 256 KiB, beyond which a device gains nothing.
const ROW_PAGES: usize = 64;

/// Rows in flight.
const ROWS_IN_FLIGHT: usize = 4;

/// Writes new pages. See the [module](self).
pub(crate) struct RowWriter<'a> {
    pager: &'a Pager,
    queue: Box<dyn IoQueue>,
    /// The row that is being filled: its buffer, the number of its first page, and how many pages it has.
    row: AlignedBuf,
    first: PageNo,
    count: usize,
    spare: Vec<AlignedBuf>,
}

impl<'a> RowWriter<'a> {
    /// Nothing written yet.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::page::error::Error::Disk).
    pub(crate) fn new(pager: &'a Pager) -> Result<Self> {
        let queue = pager.queue(ROWS_IN_FLIGHT)?;
        let row = AlignedBuf::zeroed(ROW_PAGES * PAGE_SIZE);
        Ok(Self { pager, queue, row, first: 0, count: 0, spare: Vec::new() })
    }

    /// A page of zeros, to be filled and sealed before the next call; it is written in its turn.
    ///
    /// Cost: a write for each row, waiting for an earlier one when four are in flight.
    ///
    /// # Errors
    /// [`Error::Disk`](crate::page::error::Error::Disk): any of the earlier pages may have been written or not.
    pub(crate) fn page(&mut self, number: PageNo) -> Result<&mut [u8]> {
        let is_next = u64::from(self.first) + self.count as u64 == u64::from(number);
        if self.count == ROW_PAGES || !is_next {
            self.send()?;
            self.first = number;
        }
        self.pager.cache.remove(number);
        let page = &mut self.row[self.count * PAGE_SIZE..][..PAGE_SIZE];
        page.fill(0);
        self.count += 1;
        Ok(page)
    }

    /// Waits until everything is written; it is not durable yet.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub(crate) fn finish(mut self) -> Result<()> {
        self.send()?;
        while let Some(done) = self.queue.pop() {
            self.take_back(done)?;
        }
        Ok(())
    }

    /// Starts writing the row, if it has a page.
    fn send(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        while self.queue.outstanding() >= ROWS_IN_FLIGHT {
            let Some(done) = self.queue.pop() else { break };
            self.take_back(done)?;
        }
        let buffer = if self.count == ROW_PAGES {
            let spare = self.spare.pop();
            let next = spare.unwrap_or_else(|| AlignedBuf::zeroed(ROW_PAGES * PAGE_SIZE));
            std::mem::replace(&mut self.row, next)
        } else {
            // All of a buffer is written.
            let mut part = AlignedBuf::zeroed(self.count * PAGE_SIZE);
            part.copy_from_slice(&self.row[..self.count * PAGE_SIZE]);
            part
        };
        self.pager.counters.page_writes.add(self.count as u64);
        self.pager.counters.write_calls.add(1);
        self.queue.push(self.pager.request(self.first, buffer, Direction::Write));
        self.queue.submit();
        self.count = 0;
        Ok(())
    }

    fn take_back(&mut self, done: Completion) -> Result<()> {
        if done.buffer.len() == self.row.len() {
            self.spare.push(done.buffer);
        }
        Ok(done.result?)
    }
}

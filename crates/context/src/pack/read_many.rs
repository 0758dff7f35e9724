//! Batched reads of records: whole pages through one queue of the disk; neighbours share a read.
//!
//! A read of pages may fail only because it reaches beyond the end of a chunk. So a record whose
//! pages cannot be read is read once more by itself, and that result counts.

use std::ops::Range;
use std::sync::Arc;

use terrane_io::{ALIGN, AlignedBuf, Completion, Direction, Disk, Request};

use crate::base::address::Extent;
use crate::pack::chunk::Chunk;

/// Reads in flight of one batch.
const QUEUE_DEPTH: usize = 64;
/// Upper bound of a shared read, in bytes; a longer record is read alone.
const READ_BYTES_MAX: u64 = 64 << 10;

/// Pages of a chunk, and the wanted records in them.
#[derive(Debug)]
struct Pages {
    chunk: Arc<Chunk>,
    start: u64,
    end: u64,
    records: Range<usize>,
}

impl Pages {
    /// Read of the pages; reuses a buffer of their length.
    fn request(&self, tag: usize, spare: Option<AlignedBuf>) -> Request {
        let len = (self.end - self.start) as usize;
        let buffer = spare.filter(|buffer| buffer.len() == len);
        Request {
            tag: tag as u64,
            file: Arc::clone(&self.chunk.file),
            offset: self.start,
            buffer: buffer.unwrap_or_else(|| AlignedBuf::zeroed(len)),
            direction: Direction::Read,
        }
    }
}

/// Wanted record: its chunk, its extent, and its offset in the file.
type Wanted = (Arc<Chunk>, Extent, u64);

/// Calls `visit` with the number and the body of each record, in any order. Missing and damaged
/// records are left out.
///
/// Cost: one submission of reads of pages, up to 64 in flight.
pub(crate) fn read_bodies(
    disk: &dyn Disk,
    records: &[(Arc<Chunk>, Extent)],
    visit: &mut dyn FnMut(usize, &[u8]),
) {
    let located = records.iter().enumerate().filter_map(|(number, (chunk, extent))| {
        let offset = chunk.offset_of(*extent).ok()??;
        Some((number, (Arc::clone(chunk), *extent, offset)))
    });

    let mut wanted: Vec<(usize, Wanted)> = located.collect();
    wanted.sort_unstable_by_key(|(_, (_, extent, _))| extent.at);
    let pages = pages_of(&wanted);

    // Completions come in any order, each with the records of its pages.
    let mut take = |done: Completion| -> AlignedBuf {
        let pages = &pages[done.tag as usize];
        for (number, (chunk, extent, offset)) in &wanted[pages.records.clone()] {
            let start = (offset - pages.start) as usize;
            let bytes = done.buffer.get(start..start + extent.bytes as usize);
            match bytes.filter(|_| done.result.is_ok()) {
                Some(bytes) => {
                    if let Ok(body) = chunk.open_body(*extent, bytes) {
                        visit(*number, body);
                    }
                }
                // An unreadable record is left out here, too.
                None => drop(chunk.read(*extent, |body| visit(*number, body))),
            }
        }

        done.buffer
    };

    let mut left = pages.iter().enumerate();

    // A single read needs no queue, and the system may refuse a queue.
    let queue = if pages.len() > 1 { disk.queue(QUEUE_DEPTH).ok() } else { None };
    let Some(mut queue) = queue else {
        left.for_each(|(tag, pages)| drop(take(pages.request(tag, None).carry_out())));
        return;
    };

    // The queue is kept full, and finished buffers are reused.
    let mut spare = Vec::new();
    loop {
        while queue.outstanding() < QUEUE_DEPTH {
            let Some((tag, pages)) = left.next() else { break };
            queue.push(pages.request(tag, spare.pop()));
        }
        debug_assert!(queue.outstanding() <= QUEUE_DEPTH, "the queue has a bound");
        queue.submit();
        match queue.pop() {
            Some(done) => spare.push(take(done)),
            None => return,
        }
    }
}

/// Pages of ascending records, with neighbours merged.
fn pages_of(wanted: &[(usize, Wanted)]) -> Vec<Pages> {
    let align = ALIGN as u64;
    let mut all: Vec<Pages> = Vec::new();
    for (number, (_, (chunk, extent, offset))) in wanted.iter().enumerate() {
        let start = offset / align * align;
        let end = (offset + u64::from(extent.bytes)).next_multiple_of(align);

        debug_assert!(start <= *offset && start <= end, "the pages have all of the record");

        // Merges a record into the pages before it while the read stays short.
        match all.last_mut() {
            Some(last)
                if Arc::ptr_eq(&last.chunk, chunk)
                    && start <= last.end
                    && end - last.start <= READ_BYTES_MAX =>
            {
                debug_assert_eq!(
                    last.records.end, number,
                    "each record is in the pages of one read"
                );
                last.end = last.end.max(end);
                last.records.end = number + 1;
            }
            _ => {
                let records = number..number + 1;
                all.push(Pages { chunk: Arc::clone(chunk), start, end, records });
            }
        }
    }

    debug_assert_eq!(
        all.last().map_or(0, |last| last.records.end),
        wanted.len(),
        "each record is in the pages of one read"
    );
    all
}

//! Blobs: byte strings kept apart from the values, so that lookups need not read them.
//!
//! In a memtable a blob is a piece of memory of its own. A run with blobs has a second file,
//! which is one stream of bytes cut into the payloads of pages of their own kind; the entry says
//! where in the stream its blob begins. Blobs stand in the order of their keys, so a merge copies
//! them front to back.
//!
//! Invariant: a [`BlobRef`] is weak. It keeps no memory and no file; as long as what it points into
//! is there it gives exactly the blob, and afterwards an error, never other bytes.

use std::fmt;
use std::sync::{Arc, Weak};

use terrane_io::{AlignedBuf, Direction, Disk, Request};

use crate::block::page::{PAGE_SIZE, PAYLOAD_SIZE, PageKind, decode_payload};
use crate::corrupt::Corrupt;
use crate::entry::entry::BlobSpan;
use crate::error::{Error, Result};
use crate::run::run::{Run, read_pages};

/// Default of reads in flight at once.
pub(crate) const READS_IN_FLIGHT: usize = 64;

/// Most pages that are read with one request.
const REQUEST_PAGES_MAX: u64 = 64;

/// A blob, kept.
#[derive(Debug, Clone)]
pub(crate) enum Blob {
    Memory(Arc<[u8]>),
    Run { run: Arc<Run>, span: BlobSpan },
}

#[derive(Clone)]
enum Target {
    Memory(Weak<[u8]>),
    Run { run: Weak<Run>, span: BlobSpan },
}

/// A weak reference to a blob, as lookups and cursors give it; resolved by
/// [`Session::retrieve_blobs`](crate::Session::retrieve_blobs).
///
/// It stays valid at least until its table is next updated or dropped; and as long as a fork of the
/// table made before then, or the cursor it came from, is left open as it is. Afterwards it may be
/// invalid, which it reports as an error. It never gives other bytes.
#[derive(Clone)]
#[doc(alias = "BlobIndex")]
pub struct BlobRef {
    target: Target,
    len: u32,
}

impl Blob {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Run { span, .. } => span.len as usize,
        }
    }

    /// Whether both are the same bytes at the same place; if not, their bytes may be equal.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            (Self::Run { run, span }, Self::Run { run: other, span: at }) => {
                run.number() == other.number() && span == at
            }
            _ => false,
        }
    }

    pub(crate) fn downgrade(&self) -> BlobRef {
        let target = match self {
            Self::Memory(bytes) => Target::Memory(Arc::downgrade(bytes)),
            Self::Run { run, span } => Target::Run { run: Arc::downgrade(run), span: *span },
        };
        BlobRef { target, len: self.len() as u32 }
    }
}

impl BlobRef {
    /// Length of the blob in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the blob has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The run that it points into, if it is one, and there.
    pub(crate) fn run(&self) -> Option<Arc<Run>> {
        match &self.target {
            Target::Run { run, .. } => run.upgrade(),
            Target::Memory(_) => None,
        }
    }

    /// Returns the bytes or run that it points into, unless these are gone. An empty blob needs no
    /// bytes, so its run need not be kept.
    fn upgrade(&self) -> Option<Blob> {
        if self.is_empty() {
            return Some(Blob::Memory(Arc::default()));
        }
        match &self.target {
            Target::Memory(bytes) => bytes.upgrade().map(Blob::Memory),
            Target::Run { run, span } => run.upgrade().map(|run| Blob::Run { run, span: *span }),
        }
    }
}

impl PartialEq for BlobRef {
    fn eq(&self, other: &Self) -> bool {
        match (&self.target, &other.target) {
            (Target::Memory(a), Target::Memory(b)) => a.ptr_eq(b),
            (Target::Run { run: a, span: at_a }, Target::Run { run: b, span: at_b }) => {
                a.ptr_eq(b) && at_a == at_b
            }
            _ => false,
        }
    }
}

impl Eq for BlobRef {}

impl fmt::Debug for BlobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobRef({} bytes)", self.len)
    }
}

/// The pages of a blob file that hold a span; none for an empty one.
///
/// # Errors
/// If the run has fewer bytes of blobs.
fn pages_of(run: &Run, span: BlobSpan) -> Result<std::ops::Range<u64>> {
    let end = span.offset.checked_add(u64::from(span.len));
    let Some(end) = end.filter(|&end| end <= run.meta().blob_bytes) else {
        let what = Corrupt::rule("bytes of blobs", run.meta().blob_bytes, span.offset);
        return Err(Error::corrupt(run.path(), what));
    };
    let payload = PAYLOAD_SIZE as u64;
    if span.len == 0 { Ok(0..0) } else { Ok(span.offset / payload..end.div_ceil(payload)) }
}

/// The part of a span that stands in blob page `page`, whose bytes these are: what to copy, and
/// where in the blob it belongs.
fn part_of<'a>(run: &Run, span: BlobSpan, page: u64, bytes: &'a [u8]) -> Result<(usize, &'a [u8])> {
    let number = page as u32;
    let content = decode_payload(bytes, run.place(number), PageKind::Blob, number);
    let content = content.map_err(|what| Error::corrupt(&run.blobs_path(), what))?;
    let page_start = page * PAYLOAD_SIZE as u64;
    let (from, to) = (span.offset, span.offset + u64::from(span.len));
    let start = from.saturating_sub(page_start) as usize;
    let end = (to - page_start).min(PAYLOAD_SIZE as u64) as usize;
    Ok((page_start.saturating_sub(from) as usize, &content[start..end]))
}

/// Reads blobs, all pages side by side; results in the order of the references.
///
/// # Errors
/// [`Error::BlobRefInvalid`] with the index of the first reference whose blob is gone,
/// [`Error::Disk`], [`Error::Corrupt`].
pub(crate) fn retrieve(disk: &dyn Disk, depth: usize, refs: &[BlobRef]) -> Result<Vec<Vec<u8>>> {
    // All references are resolved first, so an invalid one costs no read.
    let mut blobs = Vec::with_capacity(refs.len());
    for (index, reference) in refs.iter().enumerate() {
        blobs.push(reference.upgrade().ok_or(Error::BlobRefInvalid { index })?);
    }

    let mut results: Vec<Vec<u8>> = Vec::with_capacity(blobs.len());

    // First page, pages, and the blob that they belong to.
    let mut pieces: Vec<(u64, u64, usize)> = Vec::new();
    for (at, blob) in blobs.iter().enumerate() {
        match blob {
            Blob::Memory(bytes) => results.push(bytes.to_vec()),
            Blob::Run { run, span } => {
                // Before memory is taken for it.
                let pages = pages_of(run, *span)?;
                results.push(vec![0; span.len as usize]);
                for first in pages.clone().step_by(REQUEST_PAGES_MAX as usize) {
                    pieces.push((first, REQUEST_PAGES_MAX.min(pages.end - first), at));
                }
            }
        }
    }

    let mut fill = |(first, _, at): (u64, u64, usize), bytes: &[u8]| -> Result<()> {
        let Blob::Run { run, span } = &blobs[at] else { return Ok(()) };
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_SIZE)) {
            let (to, part) = part_of(run, *span, page, bytes)?;
            results[at][to..to + part.len()].copy_from_slice(part);
        }
        Ok(())
    };

    if !pieces.is_empty() {
        let mut queue = disk.queue(depth.min(pieces.len()))?;
        let mut next = pieces.iter().enumerate().peekable();
        loop {
            while queue.outstanding() < queue.depth() {
                let Some(&(tag, &(first, pages, at))) = next.peek() else { break };
                let file = match (queue.outstanding(), &blobs[at]) {
                    (_, Blob::Memory(_)) => unreachable!("has no pieces"),
                    (0, Blob::Run { run, .. }) => Some(run.blobs()?),
                    (_, Blob::Run { run, .. }) => run.blobs_if_room()?,
                };

                // The others wait until the reads in flight let go of their files.
                let Some(file) = file else { break };
                next.next();
                queue.push(Request {
                    tag: tag as u64,
                    file,
                    offset: first * PAGE_SIZE as u64,
                    buffer: AlignedBuf::zeroed(pages as usize * PAGE_SIZE),
                    direction: Direction::Read,
                });
            }

            let Some(done) = queue.pop() else { break };
            done.result?;
            fill(pieces[done.tag as usize], &done.buffer)?;
        }
    }

    debug_assert_eq!(results.len(), refs.len());
    Ok(results)
}

/// Reads the blobs of one run front to back, for merges; keeps one chunk.
#[derive(Debug)]
pub(crate) struct BlobReader {
    run: Arc<Run>,
    chunk: AlignedBuf,
    /// The pages in `chunk`.
    pages: std::ops::Range<u64>,
}

impl BlobReader {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        Self { run, chunk: AlignedBuf::zeroed(0), pages: 0..0 }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Some bytes of the blob at `span`, from its byte `from` on; empty only at its end.
    pub(crate) fn part(&mut self, span: BlobSpan, from: u32) -> Result<&[u8]> {
        let rest =
            BlobSpan { offset: span.offset + u64::from(from), len: span.len.saturating_sub(from) };
        let wanted = pages_of(&self.run, rest)?;
        let Some(page) = wanted.clone().next() else { return Ok(&[]) };

        if !self.pages.contains(&page) {
            // The next pages are probably wanted too, unless they are past the end.
            let end = self.run.meta().blob_pages().min(page + REQUEST_PAGES_MAX);
            // A failed read leaves no page that could pass for loaded.
            self.pages = 0..0;
            let file = self.run.blobs()?;
            self.chunk = read_pages(file.as_ref(), page as u32, (end - page) as u32)?;
            self.pages = page..end;
        }

        let at = (page - self.pages.start) as usize * PAGE_SIZE;
        Ok(part_of(&self.run, rest, page, &self.chunk[at..at + PAGE_SIZE])?.1)
    }
}

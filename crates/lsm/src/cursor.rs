//! Ordered reading of a table as it was when the cursor was made.

use std::sync::Arc;

use crate::entry::{Kind, Record};
use crate::error::{Error, Result};
use crate::kmerge::{KMerge, Source};
use crate::levels::Tree;
use crate::run_reader::{Purpose, RunReader};
use crate::session_core::SessionCore;
use crate::write_buffer::{SegmentReader, WriteBuffer};

/// A position in a stable view of a table; gives the live entries in key order.
///
/// Later updates of the table, and dropping it, do not disturb a cursor; it keeps the files that it reads
/// from alive. After an error it gives that error again, so that no reader takes a broken scan for a
/// complete one.
#[derive(Debug)]
pub struct Cursor {
    // Fields drop in order: readers before what keeps the session's lock.
    merge: KMerge,
    failed: Option<Error>,
    session: Arc<SessionCore>,
}

impl Cursor {
    /// A cursor at the first entry whose key is at least `from`.
    pub(crate) fn new(session: Arc<SessionCore>, tree: &Tree, from: &[u8]) -> Result<Self> {
        let sources = tree.sources();
        let mut readers = Vec::new();
        let mut add = |buffer: &WriteBuffer| {
            for segment in buffer.segments().iter().rev() {
                readers.push(Source::Segment(SegmentReader::at(Arc::clone(segment), from)));
            }
        };
        add(&tree.buffer);
        sources.buffers.iter().for_each(add);
        for run in sources.runs {
            if run.max_key() >= from {
                let reader = RunReader::at(run, Purpose::Range, from)?;
                readers.push(Source::Run(Box::new(reader)));
            }
        }
        Ok(Self { merge: KMerge::new(readers), failed: None, session })
    }

    /// The next live entry; `None` at the end, also when asked again.
    ///
    /// Cost: one page read for each page of each run that the cursor passes, in growing chunks.
    ///
    /// # Errors
    /// Any error of the disk, damage found, and [`SessionClosed`](crate::Error::SessionClosed).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot fail once for good")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.session.check_open()?;
        let result = self.next_live();
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    fn next_live(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(entry) = self.merge.current() else { return Ok(None) };
            let record = match entry.kind {
                Kind::Insert => Some(Record { key: entry.key.to_vec(), value: entry.value.into() }),
                Kind::Delete => None,
            };
            self.merge.advance()?;
            if record.is_some() {
                return Ok(record);
            }
        }
    }
}

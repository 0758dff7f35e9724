//! Slices: runs whose keys follow each other, read as one run.
//!
//! A compaction on a large last level cuts its output into slices, and so does a union. No key can
//! be in two of them. So a lookup asks the filter of one ([`crate::lookup::plan`]), a merge plays
//! its matches for all of them as for one source, and one that was passed is let go of.
//!
//! Which runs follow each other is seen from their smallest and largest keys, wherever they come
//! from.

use std::ops::Range;
use std::sync::Arc;

use crate::entry::entry::{EntryRef, Kind, Order};
use crate::entry::key_range::KeyRange;
use crate::error::Result;
use crate::run::blob::Blob;
use crate::run::chunk_reader::Reading;
use crate::run::reader::RunReader;
use crate::run::run::Run;

/// Whether all keys of a run are above those of another one.
pub(crate) fn follows(run: &Run, next: &Run) -> bool {
    run.max_key() < next.min_key()
}

/// The places of those runs, as many together as can be, of which each follows the one before.
pub(crate) fn groups(runs: &[Arc<Run>]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut end = 0;
    runs.chunk_by(|run, next| follows(run, next)).map(move |group| {
        let first = end;
        end += group.len();
        first..end
    })
}

/// A position in slices.
#[derive(Debug)]
pub(crate) struct SlicesReader {
    /// `None` behind the last entry: nobody else may hold the run.
    reader: Option<RunReader>,
    /// Those behind it, the next one last.
    rest: Vec<Arc<Run>>,
    range: KeyRange,
    order: Order,
    reading: Reading,
    /// Pages and entries of those before it.
    pages_before: u64,
    entries_before: u64,
}

impl SlicesReader {
    /// A reader before the first entry in the range, in this order; `None` without slices. Reads
    /// nothing.
    pub(crate) fn new(
        slices: &[Arc<Run>],
        range: &KeyRange,
        order: Order,
        reading: Reading,
    ) -> Option<Self> {
        debug_assert!(slices.is_sorted_by(|run, next| follows(run, next)), "keys follow");
        let mut rest = slices.to_vec();
        if order == Order::Ascending {
            rest.reverse();
        }
        // One that has nothing of the range has ended before it is read.
        let open = |run: Arc<Run>| RunReader::new(&run, range, order, reading.clone());
        let mut reader = open(rest.pop()?);
        while reader.has_ended()
            && let Some(next) = rest.pop()
        {
            reader = open(next);
        }

        Some(Self {
            reader: Some(reader),
            rest,
            range: range.clone(),
            order,
            reading,
            pages_before: 0,
            entries_before: 0,
        })
    }

    /// Whether the first entry has been gone to.
    #[inline]
    pub(crate) fn is_loaded(&self) -> bool {
        self.reader.as_ref().is_none_or(RunReader::is_loaded)
    }

    /// Asks for the page of the first entry, unless it is there.
    pub(crate) fn ask_first(&mut self) {
        self.reader.iter_mut().for_each(RunReader::ask_first);
    }

    /// Goes to the first entry, unless that has been done.
    pub(crate) fn load(&mut self) -> Result<()> {
        self.reader.as_mut().map_or(Ok(()), RunReader::load)?;
        self.pass_ended()
    }

    /// Goes on to the next slice while the one that is read has ended.
    fn pass_ended(&mut self) -> Result<()> {
        while let Some(ended) = self.reader.take_if(|reader| reader.has_ended()) {
            self.pages_before += u64::from(ended.pages_passed());
            self.entries_before += ended.entries_passed();
            let Some(next) = self.rest.pop() else { break };
            let reader = RunReader::new(&next, &self.range, self.order, self.reading.clone());
            self.reader.insert(reader.after(&ended)).load()?;
        }
        Ok(())
    }

    /// Goes to the next entry.
    ///
    /// # Errors
    /// Those of [`RunReader::advance`].
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        reader.advance()?;
        if reader.has_ended() { self.pass_ended() } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.reader.as_ref()?.current()
    }

    /// The kind of the current entry; `None` at the end.
    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.reader.as_ref()?.kind()
    }

    /// The current key, or a bound of the first one before it is loaded; `None` at the end.
    #[inline]
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.reader.as_ref()?.key()
    }

    /// First bytes of [`key`](Self::key) as a number; `None` at the end.
    #[inline]
    pub(crate) fn key_prefix(&self) -> Option<u64> {
        self.reader.as_ref()?.key_prefix()
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        self.reader.as_ref()?.blob()
    }

    /// Whether to pass the entries of this page may take a wait for the next one, in ascending
    /// order.
    pub(crate) fn may_wait(&self) -> bool {
        let is_over_soon = |reader: &RunReader| reader.is_near_end() && !self.rest.is_empty();
        self.reader.as_ref().is_some_and(|reader| reader.may_wait() || is_over_soon(reader))
    }

    /// Pages passed, for the accounting of merges.
    pub(crate) fn pages_passed(&self) -> u64 {
        let here = self.reader.as_ref().map_or(0, RunReader::pages_passed);
        self.pages_before + u64::from(here)
    }

    /// Entries passed, for the accounting of unions.
    pub(crate) fn entries_passed(&self) -> u64 {
        self.entries_before + self.reader.as_ref().map_or(0, RunReader::entries_passed)
    }
}

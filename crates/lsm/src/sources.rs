//! What readers of a table look into, newest first; and the merge of it all, in key order.
//!
//! Invariant: from newest to oldest stand the write buffers, the runs, and the union. No entry hides one
//! that is newer.

use std::sync::Arc;

use crate::entry::Order;
use crate::error::Result;
use crate::kmerge::{Combine, KMerge, Rules, Source};
use crate::merging::{Input, View};
use crate::resolve::Resolve;
use crate::run::Run;
use crate::run_reader::{Purpose, RunReader};
use crate::write_buffer::{SegmentReader, WriteBuffer};

/// What a reader of a table looks into.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sources {
    /// Write buffers, newest first; newer than all runs. A table's own, which updates
    /// go to, is not among them.
    pub(crate) buffers: Vec<WriteBuffer>,
    /// Newest first.
    pub(crate) runs: Vec<Arc<Run>>,
    /// Older than all of them.
    pub(crate) union: Option<Box<UnionSources>>,
}

/// How far a union has got: up to which key its slices hold everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Frontier {
    /// No key yet.
    #[default]
    Nothing,
    /// All keys up to this one, included.
    UpTo(Arc<[u8]>),
    /// All keys.
    Everything,
}

impl Frontier {
    /// Whether what the union has of `key` is in its slices.
    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo(last) => key <= last.as_ref(),
            Self::Everything => true,
        }
    }
}

/// What a reader of a union looks into.
#[derive(Debug, Clone)]
pub(crate) struct UnionSources {
    /// What has been united so far: runs whose keys follow each other.
    pub(crate) slices: Vec<Arc<Run>>,
    pub(crate) frontier: Frontier,
    /// Where the other keys are, left to right.
    pub(crate) tables: Vec<Sources>,
}

impl Sources {
    /// Adds what a merge shows, which must be older than what is there.
    pub(crate) fn add(&mut self, view: View) {
        match view {
            View::Output(run) => self.runs.extend(run),
            View::Inputs(inputs) => {
                for input in inputs.iter() {
                    match input {
                        Input::Run(run) => self.runs.push(Arc::clone(run)),
                        Input::Buffer(buffer) => self.buffers.push(buffer.clone()),
                    }
                }
            }
        }
    }
}

impl Frontier {
    /// The first key that is not covered, if there can be one.
    fn first_beyond(&self) -> Option<Vec<u8>> {
        match self {
            Self::Nothing => Some(Vec::new()),
            Self::UpTo(last) => Some([last, [0].as_slice()].concat()),
            Self::Everything => None,
        }
    }
}

impl Sources {
    /// All entries from key `from` on, in ascending order.
    ///
    /// Cost: one page read for each run, or two where the index is compact.
    pub(crate) fn merge_from(
        &self,
        from: &[u8],
        purpose: Purpose,
        resolve: &Resolve,
    ) -> Result<KMerge> {
        let mut readers = Vec::new();
        for buffer in &self.buffers {
            for segment in buffer.segments().iter().rev() {
                readers.push(Source::Segment(SegmentReader::at(segment.clone(), from)));
            }
        }
        readers_of(&self.runs, from, purpose, &mut readers)?;
        if let Some(union) = &self.union {
            readers_of(&union.slices, from, purpose, &mut readers)?;
            let tables = union.merge_from(from, purpose, resolve)?;
            readers.extend(tables.map(|merge| Source::Merge(Box::new(merge))));
        }
        merge(readers, Combine::Levels, resolve)
    }
}

impl UnionSources {
    /// Tells `visit` of all runs. The depth of the recursion is that of unions of unions.
    pub(crate) fn for_each_run(&self, visit: &mut dyn FnMut(&Arc<Run>)) {
        self.slices.iter().for_each(&mut *visit);
        self.tables.iter().for_each(|table| table.for_each_run(visit));
    }

    /// The entries from key `from` on that are not in the slices; `None` if there can be none. The depth of
    /// the recursion is that of unions of unions.
    pub(crate) fn merge_from(
        &self,
        from: &[u8],
        purpose: Purpose,
        resolve: &Resolve,
    ) -> Result<Option<KMerge>> {
        let Some(beyond) = self.frontier.first_beyond() else { return Ok(None) };
        let from = from.max(&beyond);
        let mut tables = Vec::new();
        for table in &self.tables {
            let table = table.merge_from(from, purpose, resolve)?;
            tables.push(Source::Merge(Box::new(table)));
        }
        merge(tables, Combine::Union, resolve).map(Some)
    }
}

impl Sources {
    /// Tells `visit` of all runs, those of the union included.
    pub(crate) fn for_each_run(&self, visit: &mut dyn FnMut(&Arc<Run>)) {
        self.runs.iter().for_each(&mut *visit);
        if let Some(union) = &self.union {
            union.for_each_run(visit);
        }
    }
}

fn merge(sources: Vec<Source>, combine: Combine, resolve: &Resolve) -> Result<KMerge> {
    let (resolve, order) = (resolve.clone(), Order::Ascending);
    KMerge::new(sources, Rules { combine, resolve, order })
}

fn readers_of(
    runs: &[Arc<Run>],
    from: &[u8],
    purpose: Purpose,
    readers: &mut Vec<Source>,
) -> Result<()> {
    for run in runs.iter().filter(|run| run.max_key() >= from) {
        let reader = RunReader::at(Arc::clone(run), purpose, from)?;
        readers.push(Source::Run(Box::new(reader)));
    }
    Ok(())
}

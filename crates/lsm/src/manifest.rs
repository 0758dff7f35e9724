//! The metadata files of a session: what they say and how they are checked.
//!
//! Invariant: a file is decoded only after its checksum was found right, and decoding is total all the same.

#![doc = include_str!("../../../docs/format/session.md")]

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;

use crate::config::{LEVELS_MAX, TableConfig};
use crate::files::{Partial, RUN_NUMBER_MAX, RunRef};
use crate::filter::FilterAllocation;
use crate::page::PAYLOAD_SIZE;
use crate::run::{Purpose, RUN_PAGES_MAX};
use crate::sources::Frontier;
use crate::union::UNION_DEPTH_MAX;

/// First bytes of `metadata`.
pub(crate) const SESSION_MAGIC: [u8; 8] = *b"TerraSes";

/// Newest version of `metadata`.
pub(crate) const SESSION_VERSION: u32 = 1;

/// First bytes of a snapshot's metadata.
pub(crate) const SNAPSHOT_MAGIC: [u8; 8] = *b"TerraSnp";

/// Newest version of snapshots.
pub(crate) const SNAPSHOT_VERSION: u32 = 4;

/// Largest metadata file that is read, in bytes.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Why a metadata file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0}")]
    Damaged(String),
    #[error("format version {found}; this program reads {newest}")]
    Version { found: u32, newest: u32 },
}

impl From<Overrun> for Refused {
    fn from(overrun: Overrun) -> Self {
        Self::Damaged(overrun.to_string())
    }
}

pub(crate) fn damaged<T>(what: &str) -> Result<T, Refused> {
    Err(Refused::Damaged(what.to_owned()))
}

/// Checks magic, checksum and version, in this order; returns what stands between.
pub(crate) fn open(bytes: &[u8], magic: [u8; 8], newest: u32) -> Result<Reader<'_>, Refused> {
    let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
        return damaged("shorter than its checksum");
    };
    let mut input = Reader::new(content);
    if input.take(8)? != magic {
        return damaged("wrong magic");
    }
    let (computed, stored) = (crc32c(content), u32::from_le_bytes(*crc));
    if computed != stored {
        return damaged(&format!(
            "checksum mismatch: computed {computed:08x}, stored {stored:08x}"
        ));
    }
    let found = input.u32()?;
    if found != newest {
        return Err(Refused::Version { found, newest });
    }
    Ok(input)
}

/// Ends what [`open`] reads.
pub(crate) fn close(mut out: Writer) -> Vec<u8> {
    let crc = crc32c(out.bytes());
    out.u32(crc);
    out.into_bytes()
}

/// Longest snapshot name, in characters.
pub const SNAPSHOT_NAME_LEN_MAX: usize = 64;

/// Whether a text can name a snapshot or a table.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    let numbered = |device: &str| {
        let rest = text.strip_prefix(device).map(str::as_bytes);
        matches!(rest, Some([b'1'..=b'9']))
    };
    let device = ["con", "prn", "aux", "nul"].contains(&text) || numbered("com") || numbered("lpt");
    let length = (1..=SNAPSHOT_NAME_LEN_MAX).contains(&text.len());
    length && text.bytes().all(allowed) && !device
}

/// Content of `metadata`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionMeta {
    pub(crate) salt: u64,
    pub(crate) created_ns: u64,
}

impl SessionMeta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&SESSION_MAGIC).u32(SESSION_VERSION).u64(self.salt).u64(self.created_ns);
        close(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let mut input = open(bytes, SESSION_MAGIC, SESSION_VERSION)?;
        let meta = Self { salt: input.u64()?, created_ns: input.u64()? };
        if !input.rest().is_empty() {
            return damaged("bytes after the end");
        }
        Ok(meta)
    }
}

/// A merge that a snapshot found under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeRef {
    pub(crate) due: u64,
    pub(crate) drop_deletes: bool,
    pub(crate) inputs: Vec<RunRef>,
    /// What it had written. The snapshot can do without.
    pub(crate) output: Option<Partial>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IncomingRef {
    Nothing,
    Single(RunRef),
    Merging(MergeRef),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LevelRef {
    pub(crate) incoming: IncomingRef,
    pub(crate) residents: Vec<RunRef>,
}

/// A union that a snapshot found under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnionRef {
    pub(crate) slices: Vec<RunRef>,
    pub(crate) frontier: Frontier,
    pub(crate) passed: u64,
    pub(crate) tables: Vec<UnionTableRef>,
}

/// A table of such a union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnionTableRef {
    /// Newest first.
    pub(crate) runs: Vec<RunRef>,
    pub(crate) older: Option<UnionRef>,
}

/// Content of a snapshot's metadata.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SnapshotMeta {
    pub(crate) created_ns: u64,
    pub(crate) label: String,
    /// Name of the resolve function.
    pub(crate) resolve: String,
    pub(crate) config: TableConfig,
    pub(crate) flushes: u64,
    pub(crate) now: u64,
    /// Images of the segments of the write buffer, oldest first.
    pub(crate) images: Vec<RunRef>,
    pub(crate) flushed: Option<RunRef>,
    pub(crate) levels: Vec<LevelRef>,
    pub(crate) union: Option<UnionRef>,
}

fn put_run(out: &mut Writer, run: &RunRef) {
    out.u64(run.number).u64(run.identity).u32(run.data_pages);
}

fn put_runs<'a>(out: &mut Writer, runs: impl ExactSizeIterator<Item = &'a RunRef>) {
    out.u32(runs.len() as u32);
    runs.for_each(|run| put_run(out, run));
}

fn take_run(input: &mut Reader<'_>) -> Result<RunRef, Overrun> {
    Ok(RunRef { number: input.u64()?, identity: input.u64()?, data_pages: input.u32()? })
}

fn take_runs(input: &mut Reader<'_>) -> Result<Vec<RunRef>, Overrun> {
    let count = input.u32()?;
    // Not allocated ahead: the count has not been checked against the bytes that are there.
    (0..count).map(|_| take_run(input)).collect()
}

fn put_partial(out: &mut Writer, output: Option<&Partial>) {
    out.u8(output.is_some().into());
    let Some(Partial { number, identity, data_pages, blob_bytes, work }) = output else { return };
    out.u64(*number).u64(*identity).u32(*data_pages).u64(*blob_bytes).u64(*work);
}

fn take_partial(input: &mut Reader<'_>) -> Result<Option<Partial>, Refused> {
    match input.u8()? {
        0 => return Ok(None),
        1 => {}
        _ => return damaged("unknown tag of a merge's output"),
    }
    let (number, identity, data_pages) = (input.u64()?, input.u64()?, input.u32()?);
    let (blob_bytes, work) = (input.u64()?, input.u64()?);
    let blob_pages = blob_bytes.div_ceil(PAYLOAD_SIZE as u64);
    if data_pages == 0 || u64::from(data_pages).max(blob_pages) > RUN_PAGES_MAX {
        return damaged("a merge's output of a size that no run reaches");
    }
    Ok(Some(Partial { number, identity, data_pages, blob_bytes, work }))
}

fn take_option(input: &mut Reader<'_>) -> Result<Option<RunRef>, Refused> {
    match take_runs(input)?.as_slice() {
        [] => Ok(None),
        [run] => Ok(Some(*run)),
        _ => damaged("more than one run where at most one can be"),
    }
}

fn put_union(out: &mut Writer, union: Option<&UnionRef>) {
    out.u32(union.is_some().into());
    let Some(union) = union else { return };
    put_runs(out, union.slices.iter());
    match &union.frontier {
        Frontier::Nothing => out.u8(0),
        Frontier::UpTo(last) => out.u8(1).string(last),
        Frontier::Everything => out.u8(2),
    };
    out.u64(union.passed).u32(union.tables.len() as u32);
    for table in &union.tables {
        put_runs(out, table.runs.iter());
        put_union(out, table.older.as_ref());
    }
}

/// Reads what [`put_union`] wrote; `depth` unions inside each other at most.
fn take_union(input: &mut Reader<'_>, depth: usize) -> Result<Option<UnionRef>, Refused> {
    match (input.u32()?, depth.checked_sub(1)) {
        (0, _) => Ok(None),
        (1, Some(depth)) => {
            let slices = take_runs(input)?;
            let frontier = match input.u8()? {
                0 => Frontier::Nothing,
                1 => Frontier::UpTo(input.string()?.into()),
                2 => Frontier::Everything,
                _ => return damaged("unknown tag of a union's frontier"),
            };
            let (passed, count) = (input.u64()?, input.u32()?);
            let mut tables = Vec::new();
            for _ in 0..count {
                let (runs, older) = (take_runs(input)?, take_union(input, depth)?);
                tables.push(UnionTableRef { runs, older });
            }
            Ok(Some(UnionRef { slices, frontier, passed, tables }))
        }
        _ => damaged("more unions than there can be"),
    }
}

impl UnionRef {
    /// All runs of the union.
    pub(crate) fn runs(&self) -> Vec<&RunRef> {
        let mut runs: Vec<&RunRef> = self.slices.iter().collect();
        for table in &self.tables {
            runs.extend(&table.runs);
            runs.extend(table.older.iter().flat_map(Self::runs));
        }
        runs
    }

    fn runs_mut(&mut self) -> Vec<&mut RunRef> {
        let mut runs: Vec<&mut RunRef> = self.slices.iter_mut().collect();
        for table in &mut self.tables {
            runs.extend(&mut table.runs);
            runs.extend(table.older.iter_mut().flat_map(Self::runs_mut));
        }
        runs
    }
}

impl LevelRef {
    /// All runs of the level, newest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &RunRef> {
        let incoming: &[RunRef] = match &self.incoming {
            IncomingRef::Nothing => &[],
            IncomingRef::Single(run) => std::slice::from_ref(run),
            IncomingRef::Merging(merge) => &merge.inputs,
        };
        incoming.iter().chain(&self.residents)
    }

    fn runs_mut(&mut self) -> impl Iterator<Item = &mut RunRef> {
        let incoming: &mut [RunRef] = match &mut self.incoming {
            IncomingRef::Nothing => &mut [],
            IncomingRef::Single(run) => std::slice::from_mut(run),
            IncomingRef::Merging(merge) => &mut merge.inputs,
        };
        incoming.iter_mut().chain(&mut self.residents)
    }
}

impl SnapshotMeta {
    /// What merges under way had written.
    pub(crate) fn partials(&self) -> impl Iterator<Item = &Partial> {
        self.levels.iter().filter_map(|level| match &level.incoming {
            IncomingRef::Merging(merge) => merge.output.as_ref(),
            IncomingRef::Nothing | IncomingRef::Single(_) => None,
        })
    }

    /// The numbers of all run files that the snapshot refers to.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let partials = self.partials().map(|partial| partial.number);
        self.runs().map(|run| run.number).chain(partials)
    }

    /// The same snapshot without what merges under way had written: it refers to whole runs only.
    pub(crate) fn without_progress(mut self) -> Self {
        for level in &mut self.levels {
            if let IncomingRef::Merging(merge) = &mut level.incoming {
                merge.output = None;
            }
        }
        self
    }

    /// All runs that the snapshot needs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &RunRef> {
        let levels = self.levels.iter().flat_map(LevelRef::runs);
        let union = self.union.iter().flat_map(UnionRef::runs);
        self.images.iter().chain(&self.flushed).chain(levels).chain(union)
    }

    /// The same, to be replaced.
    pub(crate) fn runs_mut(&mut self) -> impl Iterator<Item = &mut RunRef> {
        let levels = self.levels.iter_mut().flat_map(LevelRef::runs_mut);
        let union = self.union.iter_mut().flat_map(UnionRef::runs_mut);
        self.images.iter_mut().chain(&mut self.flushed).chain(levels).chain(union)
    }

    /// All of them with their level, counted from 1; `None` for images of the write buffer.
    pub(crate) fn leveled_runs(&self) -> impl Iterator<Item = (&RunRef, Option<u32>)> {
        let images = self.images.iter().map(|run| (run, None));
        let flushed = self.flushed.iter().map(|run| (run, Some(1)));
        let levels = (1..).zip(&self.levels);
        let levels = levels.flat_map(|(at, level)| level.runs().map(move |run| (run, Some(at))));
        let last = self.levels.len().max(1) as u32;
        let union = self.union.iter().flat_map(UnionRef::runs).map(move |run| (run, Some(last)));
        images.chain(flushed).chain(levels).chain(union)
    }

    /// The purpose of a run on such a level, and how its filter is made if it has one.
    pub(crate) fn role(&self, level: Option<u32>) -> (Purpose, Option<FilterAllocation>) {
        let Some(level) = level else { return (Purpose::BufferImage, None) };
        // As levels make them: level 1 is never the last one to them.
        let last = self.levels.len().max(2) as u32;
        (Purpose::Level, Some(self.config.filter_allocation(level, last)))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&SNAPSHOT_MAGIC).u32(SNAPSHOT_VERSION).u64(self.created_ns);
        out.string(self.label.as_bytes()).string(self.resolve.as_bytes());
        self.config.encode(&mut out);
        out.u64(self.flushes).u64(self.now);
        put_runs(&mut out, self.images.iter());
        put_runs(&mut out, self.flushed.as_slice().iter());
        out.u32(self.levels.len() as u32);
        for level in &self.levels {
            match &level.incoming {
                IncomingRef::Nothing => {
                    out.u8(0);
                }
                IncomingRef::Single(run) => {
                    out.u8(1);
                    put_run(&mut out, run);
                }
                IncomingRef::Merging(merge) => {
                    out.u8(2).u64(merge.due).u8(u8::from(merge.drop_deletes));
                    put_runs(&mut out, merge.inputs.iter());
                    put_partial(&mut out, merge.output.as_ref());
                }
            }
            put_runs(&mut out, level.residents.iter());
        }
        put_union(&mut out, self.union.as_ref());
        close(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let mut input = open(bytes, SNAPSHOT_MAGIC, SNAPSHOT_VERSION)?;
        let created_ns = input.u64()?;
        let Ok(label) = std::str::from_utf8(input.string()?) else {
            return damaged("label is not UTF-8");
        };
        let Ok(resolve) = std::str::from_utf8(input.string()?) else {
            return damaged("name of the resolve function is not UTF-8");
        };
        let Some(config) = TableConfig::decode(&mut input)? else {
            return damaged("configuration out of range");
        };
        let (flushes, now) = (input.u64()?, input.u64()?);
        let (images, flushed) = (take_runs(&mut input)?, take_option(&mut input)?);
        let count = input.u32()?;
        let mut levels = Vec::new();
        for _ in 0..count {
            let incoming = match input.u8()? {
                0 => IncomingRef::Nothing,
                1 => IncomingRef::Single(take_run(&mut input)?),
                2 => IncomingRef::Merging(MergeRef {
                    due: input.u64()?,
                    drop_deletes: input.u8()? != 0,
                    inputs: take_runs(&mut input)?,
                    output: take_partial(&mut input)?,
                }),
                _ => return damaged("unknown tag of a level"),
            };
            levels.push(LevelRef { incoming, residents: take_runs(&mut input)? });
        }
        let union = take_union(&mut input, UNION_DEPTH_MAX)?;
        if !input.rest().is_empty() {
            return damaged("bytes after the end");
        }
        // Far above what any table reaches, far below what arithmetic on ticks can bear.
        if flushes > 1 << 40 || now > 1 << 61 || levels.len() > LEVELS_MAX {
            return damaged("a time or a number of levels that no table reaches");
        }
        let (label, resolve) = (label.to_owned(), resolve.to_owned());
        let meta = Self {
            created_ns,
            label,
            resolve,
            config,
            flushes,
            now,
            images,
            flushed,
            levels,
            union,
        };
        if meta.numbers().any(|number| number > RUN_NUMBER_MAX) {
            return damaged("the number of a run that no session reaches");
        }
        Ok(meta)
    }
}

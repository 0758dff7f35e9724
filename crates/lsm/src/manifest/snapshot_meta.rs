//! The metadata files of a session: what they say and how they are checked.
//!
//! Invariant: a file is decoded only after its checksum was found right, and decoding is total all
//! the same.

#![doc = include_str!("../../../../docs/format/session.md")]

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;

use crate::block::codec::Compression;
use crate::block::page::PAYLOAD_SIZE;
use crate::compaction::compaction::ONE_RUN;
use crate::compaction::sources::Frontier;
use crate::compaction::union::UNION_DEPTH_MAX;
use crate::config::{LEVELS_MAX, TableConfig};
use crate::entry::mask::Mask;
use crate::files::file_set::{Partial, RUN_NUMBER_MAX, RunRef};
use crate::run::run::{Purpose, RUN_PAGES_MAX};
use crate::run::writer::RunBuild;

/// First bytes of `metadata`.
pub(crate) const SESSION_MAGIC: [u8; 8] = *b"TerraSes";

/// Newest version of `metadata`.
pub(crate) const SESSION_VERSION: u32 = 1;

/// First bytes of a snapshot's metadata.
pub(crate) const SNAPSHOT_MAGIC: [u8; 8] = *b"TerraSnp";

/// Newest version of snapshots.
pub(crate) const SNAPSHOT_VERSION: u32 = 6;

/// Version of snapshots whose merges have no slices; it is read.
const SNAPSHOT_VERSION_WITHOUT_SLICES: u32 = 5;

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
    let computed = crc32c(content);
    let stored = u32::from_le_bytes(*crc);

    if computed != stored {
        return damaged(&format!(
            "checksum mismatch: computed {computed:08x}, stored {stored:08x}"
        ));
    }

    // A damaged file says nothing of its version, so the checksum comes first.
    let found = input.u32()?;
    if found != newest {
        return Err(Refused::Version { found, newest });
    }
    Ok(input)
}

/// The version that the bytes of a snapshot state; 0 if they are too short for one.
pub(crate) fn snapshot_version(bytes: &[u8]) -> u32 {
    let version = bytes.get(8..12).and_then(|bytes| bytes.try_into().ok());
    version.map_or(0, u32::from_le_bytes)
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

/// A run of a table, and the keys that the table sees it without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MaskedRef {
    pub(crate) run: RunRef,
    pub(crate) mask: Mask,
}

/// A merge that a snapshot found under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeRef {
    pub(crate) due: u64,
    pub(crate) drop_deletes: bool,
    /// Entries of a slice; the largest number if the output is one run.
    pub(crate) slice_entries: u64,
    /// Slices that are whole, in key order.
    pub(crate) slices: Vec<MaskedRef>,
    /// Newest first, without the keys up to the last one of the slices.
    pub(crate) inputs: Vec<MaskedRef>,
    /// The keys that the table has deleted since the merge began: what it writes may have them.
    pub(crate) mask: Mask,
    /// Finished pages of the output. The snapshot is complete without them.
    pub(crate) output: Option<Partial>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IncomingRef {
    Nothing,
    Single(MaskedRef),
    Compaction(MergeRef),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LevelRef {
    pub(crate) incoming: IncomingRef,
    pub(crate) residents: Vec<MaskedRef>,
}

/// A union that a snapshot found under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnionRef {
    pub(crate) slices: Vec<MaskedRef>,
    pub(crate) frontier: Frontier,
    pub(crate) passed: u64,
    pub(crate) tables: Vec<UnionTableRef>,
}

/// A table of such a union.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnionTableRef {
    /// Newest first.
    pub(crate) runs: Vec<MaskedRef>,
    pub(crate) older: Option<UnionRef>,
}

/// Content of a snapshot's metadata.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SnapshotMeta {
    pub(crate) created_ns: u64,
    pub(crate) label: String,
    /// Name of the merge operator.
    pub(crate) resolve: String,
    pub(crate) config: TableConfig,
    pub(crate) flushes: u64,
    pub(crate) now: u64,
    /// Images of the segments of the write buffer, oldest first.
    pub(crate) images: Vec<MaskedRef>,
    pub(crate) flushed: Option<MaskedRef>,
    pub(crate) levels: Vec<LevelRef>,
    pub(crate) union: Option<UnionRef>,
}

/// The distinct masks of a snapshot, in order. References name them by their places, counted from
/// 1; 0 is no mask.
struct MaskList<'a>(Vec<&'a Mask>);

impl<'a> MaskList<'a> {
    fn of(masks: impl Iterator<Item = &'a Mask>) -> Self {
        let mut distinct: Vec<_> = masks.filter(|mask| !mask.is_empty()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        Self(distinct)
    }

    fn place(&self, mask: &Mask) -> u32 {
        debug_assert!(mask.is_empty() || self.0.binary_search(&mask).is_ok(), "masks are listed");
        if mask.is_empty() { 0 } else { self.0.partition_point(|other| *other < mask) as u32 + 1 }
    }

    fn encode(&self, out: &mut Writer) {
        out.u32(self.0.len() as u32);
        for mask in &self.0 {
            mask.encode(out);
        }
    }
}

/// Reads what a [`MaskList`] wrote.
fn take_masks(input: &mut Reader<'_>) -> Result<Vec<Mask>, Refused> {
    let count = input.u32()?;

    // Not allocated ahead: the count has not been checked against the bytes that are there.
    let mut masks = Vec::new();
    for _ in 0..count {
        match Mask::decode(input)? {
            Some(mask) if !mask.is_empty() => masks.push(mask),
            _ => return damaged("a mask without spans, or with spans that are none of a mask"),
        }
    }

    if !masks.is_sorted_by(|one, next| one < next) {
        return damaged("masks out of order");
    }
    Ok(masks)
}

/// Reads the place of one of these masks.
fn take_mask(input: &mut Reader<'_>, masks: &[Mask]) -> Result<Mask, Refused> {
    let place = input.u32()? as usize;
    let Some(at) = place.checked_sub(1) else { return Ok(Mask::default()) };
    match masks.get(at) {
        Some(mask) => Ok(mask.clone()),
        None => damaged("a mask that is not there"),
    }
}

fn put_run(out: &mut Writer, MaskedRef { run, mask }: &MaskedRef, masks: &MaskList<'_>) {
    out.u64(run.number).u64(run.identity).u32(run.data_pages).u32(masks.place(mask));
}

fn put_runs(out: &mut Writer, runs: &[MaskedRef], masks: &MaskList<'_>) {
    out.u32(runs.len() as u32);
    for run in runs {
        put_run(out, run, masks);
    }
}

fn take_run(input: &mut Reader<'_>, masks: &[Mask]) -> Result<MaskedRef, Refused> {
    let run = RunRef { number: input.u64()?, identity: input.u64()?, data_pages: input.u32()? };
    Ok(MaskedRef { run, mask: take_mask(input, masks)? })
}

fn take_runs(input: &mut Reader<'_>, masks: &[Mask]) -> Result<Vec<MaskedRef>, Refused> {
    let count = input.u32()?;
    // Not allocated ahead: the count has not been checked against the bytes that are there.
    (0..count).map(|_| take_run(input, masks)).collect()
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

    let number = input.u64()?;
    let identity = input.u64()?;
    let data_pages = input.u32()?;
    let blob_bytes = input.u64()?;
    let work = input.u64()?;

    // No run is larger than this, so a forged size is refused before anything is allocated.
    let blob_pages = blob_bytes.div_ceil(PAYLOAD_SIZE as u64);
    if data_pages == 0 || u64::from(data_pages).max(blob_pages) > RUN_PAGES_MAX {
        return damaged("a merge's output of a size that no run reaches");
    }
    Ok(Some(Partial { number, identity, data_pages, blob_bytes, work }))
}

fn take_option(input: &mut Reader<'_>, masks: &[Mask]) -> Result<Option<MaskedRef>, Refused> {
    let mut runs = take_runs(input, masks)?;
    let run = runs.pop();
    if runs.is_empty() { Ok(run) } else { damaged("more than one run where at most one can be") }
}

fn put_union(out: &mut Writer, union: Option<&UnionRef>, masks: &MaskList<'_>) {
    out.u32(union.is_some().into());
    let Some(union) = union else { return };
    put_runs(out, &union.slices, masks);

    match &union.frontier {
        Frontier::Nothing => out.u8(0),
        Frontier::UpTo(last) => out.u8(1).string(last),
        Frontier::Everything => out.u8(2),
    };

    out.u64(union.passed).u32(union.tables.len() as u32);
    for table in &union.tables {
        put_runs(out, &table.runs, masks);
        put_union(out, table.older.as_ref(), masks);
    }
}

/// Reads what [`put_union`] wrote; `depth` unions inside each other at most.
fn take_union(
    input: &mut Reader<'_>,
    depth: usize,
    masks: &[Mask],
) -> Result<Option<UnionRef>, Refused> {
    match (input.u32()?, depth.checked_sub(1)) {
        (0, _) => Ok(None),
        (1, Some(depth)) => {
            let slices = take_runs(input, masks)?;
            let frontier = match input.u8()? {
                0 => Frontier::Nothing,
                1 => Frontier::UpTo(input.string()?.into()),
                2 => Frontier::Everything,
                _ => return damaged("unknown tag of a union's frontier"),
            };
            let passed = input.u64()?;
            // The count has not been checked against the bytes that are there, so nothing is
            // allocated ahead.
            let count = input.u32()?;
            let mut tables = Vec::new();
            for _ in 0..count {
                let runs = take_runs(input, masks)?;
                let older = take_union(input, depth, masks)?;
                tables.push(UnionTableRef { runs, older });
            }
            Ok(Some(UnionRef { slices, frontier, passed, tables }))
        }
        _ => damaged("more unions than there can be"),
    }
}

impl UnionRef {
    /// All runs of the union.
    pub(crate) fn sources(&self) -> Vec<&MaskedRef> {
        let mut runs: Vec<_> = self.slices.iter().collect();
        for table in &self.tables {
            runs.extend(&table.runs);
            runs.extend(table.older.iter().flat_map(Self::sources));
        }
        runs
    }

    /// Like [`SnapshotMeta::replace_runs`]; returns whether anything is left. As long as the tables
    /// are there, slices can be made of them again.
    fn replace_runs(&mut self, replace: &dyn Fn(&RunRef) -> Option<RunRef>) -> bool {
        // A slice that has changed no longer holds all entries up to the frontier.
        if replace_all(&mut self.slices, replace) && !self.tables.is_empty() {
            self.slices.clear();
            (self.frontier, self.passed) = (Frontier::Nothing, 0);
        }
        for table in &mut self.tables {
            replace_all(&mut table.runs, replace);
            table.older.take_if(|older| !older.replace_runs(replace));
        }
        // A table without runs contributes nothing to a union.
        self.tables.retain(|table| !table.runs.is_empty() || table.older.is_some());
        !self.slices.is_empty() || !self.tables.is_empty()
    }

    fn sources_mut(&mut self) -> Vec<&mut MaskedRef> {
        let mut runs: Vec<_> = self.slices.iter_mut().collect();
        for table in &mut self.tables {
            runs.extend(&mut table.runs);
            runs.extend(table.older.iter_mut().flat_map(Self::sources_mut));
        }
        runs
    }
}

impl MaskedRef {
    /// Another run in the place of this one, under the same mask.
    fn replaced(&self, replace: &dyn Fn(&RunRef) -> Option<RunRef>) -> Option<Self> {
        replace(&self.run).map(|run| Self { run, mask: self.mask.clone() })
    }
}

/// Puts other runs in the place of some, as far as there are any; returns whether there is a
/// change.
fn replace_all(runs: &mut Vec<MaskedRef>, replace: &dyn Fn(&RunRef) -> Option<RunRef>) -> bool {
    let replaced: Vec<_> = runs.iter().filter_map(|run| run.replaced(replace)).collect();
    let is_changed = replaced != *runs;
    *runs = replaced;
    is_changed
}

impl LevelRef {
    /// All runs of the level, newest first.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &MaskedRef> {
        let (slices, inputs): (&[MaskedRef], &[MaskedRef]) = match &self.incoming {
            IncomingRef::Nothing => (&[], &[]),
            IncomingRef::Single(run) => (&[], std::slice::from_ref(run)),
            IncomingRef::Compaction(merge) => (&merge.slices, &merge.inputs),
        };
        slices.iter().chain(inputs).chain(&self.residents)
    }

    fn sources_mut(&mut self) -> impl Iterator<Item = &mut MaskedRef> {
        let (slices, inputs): (&mut [MaskedRef], &mut [MaskedRef]) = match &mut self.incoming {
            IncomingRef::Nothing => (&mut [], &mut []),
            IncomingRef::Single(run) => (&mut [], std::slice::from_mut(run)),
            IncomingRef::Compaction(merge) => (&mut merge.slices, &mut merge.inputs),
        };
        slices.iter_mut().chain(inputs).chain(&mut self.residents)
    }
}

impl SnapshotMeta {
    /// Finished pages of compactions under way.
    pub(crate) fn partials(&self) -> impl Iterator<Item = &Partial> {
        self.levels.iter().filter_map(|level| match &level.incoming {
            IncomingRef::Compaction(merge) => merge.output.as_ref(),
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
            if let IncomingRef::Compaction(merge) = &mut level.incoming {
                merge.output = None;
            }
        }
        self
    }

    /// All runs that the snapshot needs, with their masks.
    fn sources(&self) -> impl Iterator<Item = &MaskedRef> {
        let levels = self.levels.iter().flat_map(LevelRef::sources);
        let union = self.union.iter().flat_map(UnionRef::sources);
        self.images.iter().chain(&self.flushed).chain(levels).chain(union)
    }

    /// All masks.
    fn masks(&self) -> impl Iterator<Item = &Mask> {
        let of_merges = self.levels.iter().filter_map(|level| match &level.incoming {
            IncomingRef::Compaction(merge) => Some(&merge.mask),
            IncomingRef::Nothing | IncomingRef::Single(_) => None,
        });
        self.sources().map(|source| &source.mask).chain(of_merges)
    }

    /// All runs that the snapshot needs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &RunRef> {
        self.sources().map(|source| &source.run)
    }

    /// The same, to be replaced.
    pub(crate) fn runs_mut(&mut self) -> impl Iterator<Item = &mut RunRef> {
        let levels = self.levels.iter_mut().flat_map(LevelRef::sources_mut);
        let union = self.union.iter_mut().flat_map(UnionRef::sources_mut);
        let sources = self.images.iter_mut().chain(&mut self.flushed).chain(levels).chain(union);
        sources.map(|source| &mut source.run)
    }

    /// Puts other runs in the place of its runs; those that `replace` gives none for are no longer
    /// part of it. The merges whose inputs change begin anew, as do those whose output `is_lost`,
    /// and unions whose slices change. A union that has nothing left is gone.
    pub(crate) fn replace_runs(
        &mut self,
        replace: &dyn Fn(&RunRef) -> Option<RunRef>,
        is_lost: &dyn Fn(&Partial) -> bool,
    ) {
        replace_all(&mut self.images, replace);
        self.flushed = self.flushed.as_ref().and_then(|run| run.replaced(replace));
        for level in &mut self.levels {
            replace_all(&mut level.residents, replace);
            match &mut level.incoming {
                IncomingRef::Nothing => {}
                IncomingRef::Single(run) => {
                    let replaced = run.replaced(replace);
                    level.incoming = replaced.map_or(IncomingRef::Nothing, IncomingRef::Single);
                }
                IncomingRef::Compaction(merge) => {
                    replace_all(&mut merge.slices, replace);
                    let is_changed = replace_all(&mut merge.inputs, replace);
                    // Other inputs make another output, so the pages written so far are of no use.
                    merge.output.take_if(|output| is_changed || is_lost(output));
                    // A merge without inputs has no output but the slices that are whole.
                    if merge.inputs.is_empty() {
                        for slice in &mut merge.slices {
                            slice.mask = slice.mask.union(&merge.mask);
                        }
                        level.residents.splice(..0, merge.slices.drain(..));
                        level.incoming = IncomingRef::Nothing;
                    }
                }
            }
        }

        self.union.take_if(|union| !union.replace_runs(replace));
    }

    /// The run that nothing is older than, if there is one alone; a union may have several.
    pub(crate) fn oldest(&self) -> Option<&RunRef> {
        // A union lies below all levels, so the oldest runs are there.
        if let Some(union) = &self.union {
            return match union.sources().as_slice() {
                [source] => Some(&source.run),
                _ => None,
            };
        }
        let levels = self.levels.iter().flat_map(LevelRef::sources);
        // Images stand oldest first, levels newest first.
        let oldest = levels.last().or(self.flushed.as_ref()).or(self.images.first());
        oldest.map(|source| &source.run)
    }

    /// All of them with their level, counted from 1; `None` for images of the write buffer.
    pub(crate) fn leveled_runs(&self) -> impl Iterator<Item = (&RunRef, Option<u32>)> {
        let images = self.images.iter().map(|source| (source, None));
        let flushed = self.flushed.iter().map(|source| (source, Some(1)));
        let levels = (1..).zip(&self.levels);
        let levels =
            levels.flat_map(|(at, level)| level.sources().map(move |source| (source, Some(at))));
        // A union lies below all levels, so its runs count as those of the last one.
        let last = self.levels.len().max(1) as u32;
        let union = self.union.iter().flat_map(UnionRef::sources);
        let union = union.map(move |source| (source, Some(last)));
        let all = images.chain(flushed).chain(levels).chain(union);
        all.map(|(source, level)| (&source.run, level))
    }

    /// The purpose of a run on such a level, and how it is made.
    pub(crate) fn build(&self, level: Option<u32>) -> RunBuild {
        let index = self.config.index;
        let Some(level) = level else {
            let purpose = Purpose::BufferImage;
            let compression = Compression::None;
            return RunBuild { purpose, filter: None, prefix_bytes: 0, index, compression };
        };
        // As levels make them: level 1 is never the last one to them.
        let last = self.levels.len().max(2) as u32;
        RunBuild {
            purpose: Purpose::Level,
            filter: Some(self.config.filter_allocation(level, last)),
            prefix_bytes: self.config.prefix_bytes.unwrap_or(0),
            index,
            compression: self.config.compression_of(level as usize, last as usize),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&SNAPSHOT_MAGIC).u32(SNAPSHOT_VERSION).u64(self.created_ns);
        out.string(self.label.as_bytes()).string(self.resolve.as_bytes());
        self.config.encode(&mut out);
        out.u64(self.flushes).u64(self.now);
        // Masks come first: references name them by their places.
        let masks = &MaskList::of(self.masks());
        masks.encode(&mut out);
        put_runs(&mut out, &self.images, masks);
        put_runs(&mut out, self.flushed.as_slice(), masks);
        out.u32(self.levels.len() as u32);

        for level in &self.levels {
            match &level.incoming {
                IncomingRef::Nothing => {
                    out.u8(0);
                }
                IncomingRef::Single(run) => {
                    out.u8(1);
                    put_run(&mut out, run, masks);
                }
                IncomingRef::Compaction(merge) => {
                    out.u8(2).u64(merge.due).u8(u8::from(merge.drop_deletes));
                    out.u64(merge.slice_entries);
                    put_runs(&mut out, &merge.slices, masks);
                    put_runs(&mut out, &merge.inputs, masks);
                    out.u32(masks.place(&merge.mask));
                    put_partial(&mut out, merge.output.as_ref());
                }
            }

            put_runs(&mut out, &level.residents, masks);
        }

        put_union(&mut out, self.union.as_ref(), masks);
        close(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        let has_slices = snapshot_version(bytes) != SNAPSHOT_VERSION_WITHOUT_SLICES;
        let version = if has_slices { SNAPSHOT_VERSION } else { SNAPSHOT_VERSION_WITHOUT_SLICES };
        let mut input = open(bytes, SNAPSHOT_MAGIC, version)?;
        let created_ns = input.u64()?;
        let Ok(label) = std::str::from_utf8(input.string()?) else {
            return damaged("label is not UTF-8");
        };

        let Ok(resolve) = std::str::from_utf8(input.string()?) else {
            return damaged("name of the merge operator is not UTF-8");
        };

        let Some(config) = TableConfig::decode(&mut input)? else {
            return damaged("configuration out of range");
        };
        let flushes = input.u64()?;
        let now = input.u64()?;
        let masks = take_masks(&mut input)?;
        let images = take_runs(&mut input, &masks)?;
        let flushed = take_option(&mut input, &masks)?;

        let count = input.u32()?;
        let mut levels = Vec::new();
        // Every count is followed by bytes, so a forged count ends with them.
        for _ in 0..count {
            let incoming = match input.u8()? {
                0 => IncomingRef::Nothing,
                1 => IncomingRef::Single(take_run(&mut input, &masks)?),
                2 => IncomingRef::Compaction(MergeRef {
                    due: input.u64()?,
                    drop_deletes: input.u8()? != 0,
                    slice_entries: if has_slices { input.u64()? } else { ONE_RUN },
                    slices: if has_slices { take_runs(&mut input, &masks)? } else { Vec::new() },
                    inputs: take_runs(&mut input, &masks)?,
                    mask: take_mask(&mut input, &masks)?,
                    output: take_partial(&mut input)?,
                }),
                _ => return damaged("unknown tag of a level"),
            };
            levels.push(LevelRef { incoming, residents: take_runs(&mut input, &masks)? });
        }

        let union = take_union(&mut input, UNION_DEPTH_MAX, &masks)?;
        if !input.rest().is_empty() {
            return damaged("bytes after the end");
        }

        let is_forged = |level: &LevelRef| match &level.incoming {
            IncomingRef::Compaction(merge) => match merge.slice_entries {
                0 => true,
                ONE_RUN => !merge.slices.is_empty(),
                _ => false,
            },
            IncomingRef::Nothing | IncomingRef::Single(_) => false,
        };
        if levels.iter().any(is_forged) {
            return damaged("slices of a merge without any, or without entries");
        }

        // Far above what any table reaches, far below what arithmetic on ticks can bear.
        if flushes > 1 << 40 || now > 1 << 61 || levels.len() > LEVELS_MAX {
            return damaged("a time or a number of levels that no table reaches");
        }
        let label = label.to_owned();
        let resolve = resolve.to_owned();

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

        // Numbers are counted on from the highest one, so there must be room above it.
        if meta.numbers().any(|number| number > RUN_NUMBER_MAX) {
            return damaged("the number of a run that no session reaches");
        }
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::mask::Span;

    fn meta() -> SnapshotMeta {
        let mask = |from: u8| {
            let span = Span { from: vec![from], end: Some(vec![from + 1]) };
            Mask::default().with(&span)
        };

        let run = |number, mask| {
            let run = RunRef { number, identity: number, data_pages: 1 };
            MaskedRef { run, mask }
        };

        let merge = MergeRef {
            due: 9,
            drop_deletes: true,
            slice_entries: 100,
            slices: vec![run(8, Mask::default())],
            inputs: vec![run(3, mask(1)), run(4, Mask::default())],
            mask: mask(2),
            output: None,
        };

        let below = UnionTableRef { runs: vec![run(6, mask(1))], older: None };
        let union = UnionRef {
            slices: vec![run(5, mask(3))],
            frontier: Frontier::Nothing,
            passed: 0,
            tables: vec![below],
        };

        let incoming = IncomingRef::Compaction(merge);
        SnapshotMeta {
            images: vec![run(1, mask(1)), run(2, Mask::default())],
            levels: vec![LevelRef { incoming, residents: vec![run(7, mask(2))] }],
            union: Some(union),
            ..SnapshotMeta::default()
        }
    }

    fn seal(bytes: &mut [u8]) {
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }

    /// The older version differs in what it says of merges.
    #[test]
    fn a_snapshot_of_the_version_before_is_read_and_told_apart() {
        let mut meta = meta();
        meta.levels[0].incoming = IncomingRef::Nothing;
        let mut bytes = meta.encode();
        assert_eq!(snapshot_version(&bytes), SNAPSHOT_VERSION);

        bytes[8..12].copy_from_slice(&SNAPSHOT_VERSION_WITHOUT_SLICES.to_le_bytes());
        seal(&mut bytes);
        assert_eq!(snapshot_version(&bytes), SNAPSHOT_VERSION_WITHOUT_SLICES);
        assert_eq!(SnapshotMeta::decode(&bytes).unwrap(), meta);

        assert_eq!(snapshot_version(&bytes[..11]), 0);
    }

    /// Masks stand with the runs and merges that they belong to, each once; and whatever a byte is,
    /// if the checksum is right, it is refused or another snapshot.
    #[test]
    fn masks_are_decoded_or_refused() {
        let meta = meta();
        let bytes = meta.encode();
        assert_eq!(SnapshotMeta::decode(&bytes).unwrap(), meta);
        let masks = MaskList::of(meta.masks());
        assert_eq!(masks.0.len(), 3);

        for at in 12..bytes.len() - 4 {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                seal(&mut bytes);
                if let Ok(other) = SnapshotMeta::decode(&bytes) {
                    let again = SnapshotMeta::decode(&other.encode());
                    assert_eq!(again.as_ref(), Ok(&other), "byte {at}, bit {bit}");
                }
            }
        }
    }
}

//! Durable copies of tables: save, open, rename, delete.
//!
//! **Save** writes the segments of the write buffer as runs, its *images*, each once for all
//! snapshots that have the segment; writes what unfinished merges have ready, syncs all of that and
//! the runs that are not durable yet, syncs their directory, and only then writes the snapshot's
//! metadata under a temporary name, syncs it and renames it. **Delete** removes the metadata, syncs
//! the directory, and only then removes runs. **Rename** renames the metadata, which does not know
//! its name, and syncs the directory. So after a crash at any point a snapshot is either absent or
//! whole, and runs that nobody refers to are removed when the session is opened.
//!
//! Operations on different names run side by side; see the module `registry`.
//!
//! A merge under way is kept with what it has written: see [`crate::compaction::compaction`] for
//! how it is gone on with. That part of its output is never needed, since the inputs are there too.
//!
//! Cost of saving: one file for what came into the write buffer since it was last saved, one for
//! the metadata, a write and a sync for each merge under way, a sync for each run that no earlier
//! snapshot has synced; nothing that grows with the number of entries.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use terrane_io::Access;

use crate::block::codec::Compression;
use crate::block::index::IndexKind;
use crate::block::page::PAGE_SIZE;
use crate::compaction::compaction::{Compaction, CompactionSpec, Input, ONE_RUN, View, runs_under};
use crate::compaction::levels::{
    Capacity, CompactionEnv, Incoming, Level, Levels, ScheduledCompaction, TICKS_PER_FLUSH,
};
use crate::compaction::union::{Piece, Union, UnionProgress, UnionTable};
use crate::config::{CompactionThread, DiskCache, LEVELS_MAX, MemoryGoal, TableConfig};
use crate::corrupt::Corrupt;
use crate::entry::entry::{EntryRef, Order, key_hash};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Mask;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, RunRef};
use crate::files::parallel;
use crate::manifest::snapshot_meta::{
    IncomingRef, LevelRef, MANIFEST_BYTES_MAX, MaskedRef, MergeRef, SnapshotMeta, UnionRef,
    UnionTableRef, is_name,
};
use crate::memory::budget::{TableMemory, check_budget};
use crate::memtable::memtable::Memtable;
use crate::memtable::part::{Chunk, MemtablePart, NewEntry};
use crate::run::blob::retrieve;
use crate::run::check::{Checking, check_blobs_len};
use crate::run::chunk_reader;
use crate::run::reader::RunReader;
use crate::run::run::{Purpose, Run, RunMeta};
use crate::run::slices::follows;
use crate::run::writer::Flushed;
use crate::session::inner::{
    ACTIVE, Registered, SNAPSHOTS, SessionInner, snapshot_names, snapshot_path,
};
use crate::session::registry::{Operation, Reservation};
use crate::trace::event;

/// The name of a snapshot: 1 to 64 characters of `a-z`, `0-9`, `_` and `-`, and not the name of a
/// device of Windows, so that it is a file name everywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName(String);

impl SnapshotName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidSnapshotName`].
    pub fn new(text: &str) -> Result<Self> {
        if is_name(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::InvalidSnapshotName { text: text.to_owned() })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SnapshotName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for SnapshotName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<&str> for SnapshotName {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

#[cfg(feature = "serde")]
terrane_io::serde_as_text!(SnapshotName, SnapshotName::new);

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn path_of(inner: &SessionInner, name: &SnapshotName) -> PathBuf {
    snapshot_path(inner.dir(), name.as_str())
}

pub(crate) fn run_ref(run: &Run) -> RunRef {
    RunRef {
        number: run.number(),
        identity: run.meta().identity,
        data_pages: run.meta().data_pages,
    }
}

fn masked_ref(run: &Run) -> MaskedRef {
    MaskedRef { run: run_ref(run), mask: run.mask().clone() }
}

/// Longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 1 << 16;

/// Saves a table.
pub(crate) fn save(
    inner: &Arc<SessionInner>,
    context: &CompactionEnv<'_>,
    tree: &Levels,
    name: &SnapshotName,
    label: &str,
) -> Result<()> {
    inner.check_writable()?;
    if label.len() > LABEL_BYTES_MAX {
        return Err(Error::LabelTooLarge { bytes: label.len(), limit: LABEL_BYTES_MAX });
    }
    // Reserved first: nobody else takes the name while runs are written.
    let reservation = inner.snapshots().reserve(name.as_str())?;
    let written = write_out(inner, context, tree, label)?;
    publish(inner, reservation, &written.meta)?;
    // Shared once the snapshot pins the files.
    written.share(inner);
    Ok(())
}

/// All that a table needs on disk: bytes that are durable, under names that may not be yet. Its
/// files stay as long as this does.
pub(crate) struct WrittenOut {
    pub(crate) meta: SnapshotMeta,
    held: Vec<Arc<Run>>,
    #[expect(dead_code, reason = "keeps the files of the images")]
    images: Vec<FileHandle>,
    unfinished: Vec<Unfinished>,
    /// Bytes of the images that were written for it.
    pub(crate) image_bytes: u64,
}

impl WrittenOut {
    /// Lets tables that are opened from it share the runs and merges, once it is pinned.
    pub(crate) fn share(&self, inner: &SessionInner) {
        inner.share(&self.held);
        let outputs = self.unfinished.iter();
        inner.share_merges(outputs.map(|output| (output.number(), &output.compaction)));
    }
}

/// Writes all of a table that is in memory only, and syncs what is not durable.
pub(crate) fn write_out(
    inner: &SessionInner,
    context: &CompactionEnv<'_>,
    tree: &Levels,
    label: &str,
) -> Result<WrittenOut> {
    let config = context.config;
    let images = write_images(inner, context, &tree.buffer)?;
    let flushed = match &tree.flushing {
        Some(pending) => pending.finish()?.pop(),
        None => None,
    };

    let mut held: Vec<Arc<Run>> = Vec::new();
    let mut refer = |run: &Arc<Run>| {
        held.push(Arc::clone(run));
        masked_ref(run)
    };

    let flushed = flushed.as_ref().map(&mut refer);
    let mut unfinished = Vec::new();
    let levels = tree.levels.iter().map(|level| level_ref(level, &mut refer, &mut unfinished));
    let levels = levels.collect::<Result<_>>()?;

    let union = tree.union.as_ref();
    let union = union.map(|union| union_ref(union, &tree.union_mask, &mut refer));
    let meta = SnapshotMeta {
        created_ns: inner.disk().clock().wall().as_nanos() as u64,
        label: label.to_owned(),
        resolve: config.merge_operator.name().to_owned(),
        config: config.clone(),
        flushes: tree.flushes,
        now: tree.now(context),
        images: images.runs,
        flushed,
        levels,
        union,
    };

    debug_assert_eq!(meta.levels.len(), tree.levels.len(), "each level is named");
    debug_assert!(meta.flushed.is_none() || tree.flushing.is_some(), "a run of the flush");
    debug_assert_eq!(meta.union.is_some(), tree.union.is_some(), "the union is named");

    // Bytes are durable before anything names them.
    for run in &held {
        run.sync()?;
    }

    for output in &unfinished {
        output.flushed.sync()?;
    }
    let Images { held: images, bytes: image_bytes, .. } = images;
    Ok(WrittenOut { meta, held, images, unfinished, image_bytes })
}

/// Makes a snapshot of files that are there and whose bytes are durable; the caller holds them.
pub(crate) fn publish(
    inner: &SessionInner,
    reservation: Reservation<'_>,
    meta: &SnapshotMeta,
) -> Result<()> {
    let bytes = meta.encode();
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(Error::SnapshotTooLarge { bytes: bytes.len(), limit: MANIFEST_BYTES_MAX });
    }
    // Names of runs are durable before the metadata that refers to the runs.
    inner.sync_dir(ACTIVE)?;
    // Pinned before the name is visible, because a deletion may follow at once.
    inner.files().pin(meta.numbers());

    let path = snapshot_path(inner.dir(), reservation.name());
    if let Err(error) = inner.write_snapshot(&path, &bytes) {
        // After a failed sync of the directory the name may be there or not: the pins stay, so that
        // its runs do, and the next opening sees which it is.
        if inner.files().check_poisoned().is_ok() {
            let unpinned = inner.files().unpin(meta.numbers());
            // The first error is the one to report; closing tries again.
            if let Err(error) = unpinned {
                event!(WARN, "cleanup.failed", inner.dir(), %error);
            }
        }
        return Err(error);
    }

    reservation.publish(meta);
    Ok(())
}

/// The images of a write buffer, durable, oldest first.
#[derive(Default)]
struct Images {
    runs: Vec<MaskedRef>,
    held: Vec<FileHandle>,
    /// Bytes of those that were written now.
    bytes: u64,
}

/// Writes the segments of a write buffer that have no image among the files of the session yet.
fn write_images(
    inner: &SessionInner,
    context: &CompactionEnv<'_>,
    buffer: &Memtable,
) -> Result<Images> {
    let files = inner.files();
    let mut images = Images::default();
    for segment in buffer.parts() {
        let mask = segment.mask().cloned().unwrap_or_default();
        for saved in segment.saved_as() {
            let image = saved.image().attach(files);
            let (run, handle) = if let Some((run, handle)) = image {
                // The save that has written the image may not have synced it yet.
                files.sync_whole(run.number)?;
                (run, handle)
            } else {
                let Some(run) = write_image(context, saved.clone())? else { continue };
                run.sync()?;
                // Noted after the sync: an image that is known is durable.
                saved.image().set(files, run_ref(&run));
                images.bytes += run.meta().file_bytes();
                (run_ref(&run), run.handle().attach())
            };
            images.runs.push(MaskedRef { run, mask: mask.clone() });
            images.held.push(handle);
        }
    }

    debug_assert_eq!(images.runs.len(), images.held.len(), "each image is held");

    Ok(images)
}

fn write_image(context: &CompactionEnv<'_>, segment: MemtablePart) -> Result<Option<Arc<Run>>> {
    let spec = CompactionSpec {
        inputs: vec![Input::Buffer(Memtable::of(segment))],
        slices: Vec::new(),
        slice_entries: ONE_RUN,
        drop_deletes: false,
        operator: context.config.merge_operator.clone(),
        filter: None,
        prefix_bytes: 0,
        index: IndexKind::Ordinary,
        compression: Compression::None,
        access: Access::Buffered,
        salt: context.salt,
        purpose: Purpose::BufferImage,
    };
    Compaction::new(context.set, spec).finish_one()
}

/// The output of a merge under way, which a snapshot refers to.
struct Unfinished {
    compaction: Arc<Compaction>,
    flushed: Flushed,
}

impl Unfinished {
    fn number(&self) -> u64 {
        self.flushed.partial.number
    }
}

fn level_ref(
    level: &Level,
    refer: &mut impl FnMut(&Arc<Run>) -> MaskedRef,
    unfinished: &mut Vec<Unfinished>,
) -> Result<LevelRef> {
    let mut residents = Vec::new();
    let incoming = match &level.incoming {
        None => IncomingRef::Nothing,
        Some(Incoming::Single(run)) => IncomingRef::Single(refer(run)),
        Some(Incoming::Compaction(pending)) => match pending.compaction.flush()? {
            (View::Output(slices), _) => {
                // As `Level::of` has them.
                let slices = runs_under(&slices, &pending.mask);
                let mut slices = slices.iter().map(&mut *refer);
                let first = slices.next();
                residents.extend(slices);
                first.map_or(IncomingRef::Nothing, IncomingRef::Single)
            }
            (View::Inputs { slices, inputs }, flushed) => {
                let runs = inputs.iter().filter_map(Input::run);
                let output = flushed.as_ref().map(|flushed| flushed.partial);
                let compaction = Arc::clone(&pending.compaction);
                unfinished.extend(flushed.map(|flushed| Unfinished { compaction, flushed }));
                IncomingRef::Compaction(MergeRef {
                    due: pending.due,
                    drop_deletes: pending.compaction.drops_deletes(),
                    slice_entries: pending.compaction.slice_entries(),
                    slices: slices.iter().map(&mut *refer).collect(),
                    inputs: runs.map(&mut *refer).collect(),
                    mask: pending.mask.clone(),
                    output,
                })
            }
        },
    };

    residents.extend(level.residents.iter().map(refer));
    Ok(LevelRef { incoming, residents })
}

/// A union without the keys that a mask covers.
fn union_ref(
    union: &Union,
    mask: &Mask,
    refer: &mut impl FnMut(&Arc<Run>) -> MaskedRef,
) -> UnionRef {
    let (tables, progress) = union.progress();
    let UnionProgress { slices, frontier, passed } = progress;
    let slices = slices.iter().map(|run| refer(&run.under_mask(mask))).collect();
    let mut refs = Vec::new();
    for table in tables.iter() {
        let runs = table.runs();
        let runs = runs.iter().map(|run| refer(&run.under_mask(mask))).collect();
        let older = table.older.as_ref();
        let older = older.map(|(older, own)| union_ref(older, &own.union(mask), refer));
        refs.push(UnionTableRef { runs, older });
    }
    UnionRef { slices, frontier, passed, tables: refs }
}

/// How much is checked when a snapshot is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Verify {
    /// Footers, filters and indexes; pages of entries are checked whenever they are read.
    #[default]
    Lazy,
    /// Every page of every run, the order and the number of keys, and that filters, as they are
    /// stored, and indexes lead to every key. While a run is checked its whole filter is in memory,
    /// beside any memory budget: at most those of as many runs at once as threads read, which is
    /// one for each core.
    Full,
}

/// How a snapshot is opened. What is not given here is as it was when the snapshot was saved.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The merge operator that the table was saved with, unless it is a ready-made one. A
    /// snapshot knows only its name.
    pub merge_operator: Option<MergeOperator>,
    /// Another [`TableConfig::disk_cache`].
    pub disk_cache: Option<DiskCache>,
    /// Another [`TableConfig::memory_budget`], which also takes the place of `write_buffer` and
    /// `filter`. It must have room for the table as it is read: its indexes, and the write buffer
    /// that was saved with it. To stay within it while the table is updated takes eight times the
    /// indexes, or eleven times if the goal is hits.
    pub memory_budget: Option<u64>,
    /// Another [`TableConfig::memory_goal`].
    pub memory_goal: Option<MemoryGoal>,
    /// Another [`TableConfig::compaction_batch_pages`].
    pub compaction_batch_pages: Option<u32>,
    /// Another [`TableConfig::compaction_thread`].
    pub compaction_thread: Option<CompactionThread>,
    /// Another [`TableConfig::queue_depth`].
    pub queue_depth: Option<u32>,
    /// How much is checked.
    pub verify: Verify,
}

impl OpenOptions {
    /// The same with a [`merge_operator`](Self::merge_operator).
    #[must_use]
    pub fn merge_operator(self, merge_operator: MergeOperator) -> Self {
        Self { merge_operator: Some(merge_operator), ..self }
    }

    /// The same with another [`disk_cache`](Self::disk_cache).
    #[must_use]
    pub fn disk_cache(self, disk_cache: DiskCache) -> Self {
        Self { disk_cache: Some(disk_cache), ..self }
    }

    /// The same with another [`memory_budget`](Self::memory_budget), in bytes.
    #[must_use]
    pub fn memory_budget(self, bytes: u64) -> Self {
        Self { memory_budget: Some(bytes), ..self }
    }

    /// The same with another [`memory_goal`](Self::memory_goal).
    #[must_use]
    pub fn memory_goal(self, goal: MemoryGoal) -> Self {
        Self { memory_goal: Some(goal), ..self }
    }

    /// The same with another [`compaction_batch_pages`](Self::compaction_batch_pages).
    #[must_use]
    pub fn compaction_batch_pages(self, pages: u32) -> Self {
        Self { compaction_batch_pages: Some(pages), ..self }
    }

    /// The same with another [`compaction_thread`](Self::compaction_thread).
    #[must_use]
    pub fn compaction_thread(self, compaction_thread: CompactionThread) -> Self {
        Self { compaction_thread: Some(compaction_thread), ..self }
    }

    /// The same with another [`queue_depth`](Self::queue_depth).
    #[must_use]
    pub fn queue_depth(self, queue_depth: u32) -> Self {
        Self { queue_depth: Some(queue_depth), ..self }
    }

    /// The same with another [`verify`](Self::verify).
    #[must_use]
    pub fn verify(self, verify: Verify) -> Self {
        Self { verify, ..self }
    }

    /// A stored configuration with what is given here.
    fn over(&self, stored: &TableConfig) -> Result<TableConfig> {
        let mut config = stored.clone();
        // A memory budget rules these two options, so both go back to their defaults.
        if self.memory_budget.is_some() {
            let TableConfig { write_buffer, filter, .. } = TableConfig::default();
            let memory_budget = self.memory_budget;
            config = TableConfig { write_buffer, filter, memory_budget, ..config };
        }

        let config = TableConfig {
            disk_cache: self.disk_cache.unwrap_or(stored.disk_cache),
            memory_goal: self.memory_goal.unwrap_or(stored.memory_goal),
            compaction_batch_pages: self
                .compaction_batch_pages
                .unwrap_or(stored.compaction_batch_pages),
            compaction_thread: self.compaction_thread.unwrap_or(stored.compaction_thread),
            queue_depth: self.queue_depth.unwrap_or(stored.queue_depth),
            ..config
        };

        config.validate()?;
        Ok(config)
    }
}

/// A stored snapshot being read: it may be deleted meanwhile, its runs stay.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) meta: SnapshotMeta,
    _held: Vec<FileHandle>,
    _operation: Option<Operation<'a>>,
}

/// Begins to read a snapshot that another process may delete: leases what it needs. Cost: reads its
/// metadata twice.
fn read_leased<'a>(inner: &SessionInner, name: &SnapshotName) -> Result<Reading<'a>> {
    let read = || match inner.read_snapshot(name.as_str()) {
        Err(Error::Disk(error)) if error.is_not_found() => {
            Err(Error::SnapshotDoesNotExist { name: name.to_string() })
        }
        read => read.map_err(|error| damaged(inner.dir(), name.as_str(), error)),
    };

    // A writer may remove files between reading and leasing; then the metadata has changed.
    loop {
        inner.check_open()?;
        let meta = read()?;
        let held = inner.hold(meta.numbers())?;
        if read()? == meta {
            return Ok(Reading { meta, _held: held, _operation: None });
        }
    }
}

/// Begins to read a snapshot. Cost: reads its metadata.
pub(crate) fn read<'a>(inner: &'a SessionInner, name: &SnapshotName) -> Result<Reading<'a>> {
    if inner.is_read_only() {
        return read_leased(inner, name);
    }
    let read = || {
        let meta = inner
            .read_snapshot(name.as_str())
            .map_err(|error| damaged(inner.dir(), name.as_str(), error))?;
        let held = meta.numbers().map(|number| inner.files().attach(number)).collect();
        Ok((meta, held))
    };
    let (operation, (meta, held)) = inner.snapshots().read(name.as_str(), read)?;
    Ok(Reading { meta, _held: held, _operation: Some(operation) })
}

/// An error met while a snapshot of the session in `dir` was read: as the damage that it is, if so.
pub(crate) fn damaged(dir: &Path, name: &str, error: Error) -> Error {
    match error.damage() {
        Some((path, reason)) if path.starts_with(dir) => {
            Error::SnapshotCorrupted { name: name.to_owned(), path: path.to_owned(), reason }
        }
        _ => error,
    }
}

/// Opens a snapshot as the table registered; without a label, whatever it is.
pub(crate) fn open(
    inner: &Registered,
    name: &SnapshotName,
    label: Option<&str>,
    options: &OpenOptions,
) -> Result<(Levels, TableConfig)> {
    let Reading { mut meta, _held, _operation } = read(inner, name)?;
    if let Some(label) = label
        && meta.label != label
    {
        return Err(Error::SnapshotNotCompatible {
            name: name.to_string(),
            expected: label.to_owned(),
            actual: meta.label,
        });
    }

    // A snapshot stores only the name of the operator.
    meta.config.merge_operator =
        resolve_of(name.as_str(), &meta.resolve, options.merge_operator.as_ref())?;
    meta.config = options.over(&meta.config)?;
    let tree = open_tree(inner, name.as_str(), &meta, options)
        .map_err(|error| damaged(inner.dir(), name.as_str(), error))?;
    Ok((tree, meta.config))
}

/// The table that `meta`, whose files stay, describes; of the options those that are not in its
/// configuration.
pub(crate) fn open_tree(
    inner: &Registered,
    name: &str,
    meta: &SnapshotMeta,
    options: &OpenOptions,
) -> Result<Levels> {
    let runs = open_runs(inner, meta)?;
    if options.verify == Verify::Full {
        check_runs(inner, name, meta, &runs)?;
    }
    let tree = restore(inner, meta, &runs)?;
    // A table may outgrow the budget that it was saved with.
    if let Some(budget) = options.memory_budget {
        check_budget(budget, tree.memory_bytes_min(), "to read this snapshot")?;
    }
    read_filters(inner, &tree, &meta.config)?;
    inner.check_open()?;
    Ok(tree)
}

/// Brings as much of each filter into memory as serves the goal and the budget has room for: of
/// runs whose filters nobody has read any part, of the others, which are in somebody's budget, no
/// more than is there. Without a budget, all that nobody has read.
fn read_filters(inner: &SessionInner, tree: &Levels, config: &TableConfig) -> Result<()> {
    let _turn = inner.reading_filters();
    let mut held = TableMemory::default();
    tree.sources().for_each_run(&mut |run| held.add_run(run));

    let shares = match config.memory_budget {
        None => held.unread_filters(),
        Some(budget) => {
            let room = budget.saturating_sub(tree.unfiltered_bytes());
            held.filters_for(config.memory_goal, room, Run::is_unread)
        }
    };

    parallel::map(shares.len(), threads(inner, config), |at| {
        inner.check_open()?;
        let (run, part) = &shares[at];
        if run.is_unread() {
            return run.read_filter(*part);
        }
        run.reduce_filter(*part);
        Ok(())
    })?;

    Ok(())
}

/// The runs of a snapshot, by number.
type Runs = BTreeMap<u64, Arc<Run>>;

fn threads(inner: &SessionInner, config: &TableConfig) -> usize {
    parallel::threads(inner.disk(), config.queue_depth as usize)
}

/// Opens all runs of a snapshot, several at once.
fn open_runs(inner: &SessionInner, meta: &SnapshotMeta) -> Result<Runs> {
    let leveled = meta.leveled_runs().map(|(run, level)| (run.number, level.unwrap_or(1)));
    // A union may name a run twice, which is opened once.
    let distinct: BTreeMap<u64, u32> = leveled.collect();

    let wanted: Vec<(u64, u32)> = distinct.into_iter().collect();
    let runs = parallel::map(wanted.len(), threads(inner, &meta.config), |at| {
        inner.check_open()?;
        let (number, level) = wanted[at];
        let access = meta.config.disk_cache.access(level as usize);
        match meta.config.memory_budget {
            None => inner.run(number, access),
            Some(_) => inner.run_without_filter(number, access),
        }
    })?;

    Ok(runs.into_iter().map(|run| (run.number(), run)).collect())
}

fn check_runs(inner: &SessionInner, name: &str, meta: &SnapshotMeta, runs: &Runs) -> Result<()> {
    let checking = Checking {
        snapshot: name,
        threads: threads(inner, &meta.config),
        go_on: &|| inner.check_open(),
    };
    let runs: Vec<_> = runs.values().cloned().collect();
    checking.check(&runs)
}

/// Compares the footer of the run file at `path` with what a snapshot says of it.
pub(crate) fn check_footer(path: &Path, footer: &RunMeta, wanted: &RunRef) -> Result<()> {
    let broken =
        |rule, expected, found| Err(Error::corrupt(path, Corrupt::rule(rule, expected, found)));
    if footer.identity != wanted.identity {
        return broken("identity in the snapshot", wanted.identity, footer.identity);
    }
    if footer.data_pages != wanted.data_pages {
        let wanted = wanted.data_pages.into();
        let found = footer.data_pages.into();
        return broken("data pages in the snapshot", wanted, found);
    }
    Ok(())
}

/// The merge operator of that name: the one given, or a ready-made one.
pub(crate) fn resolve_of(
    name: &str,
    stored: &str,
    given: Option<&MergeOperator>,
) -> Result<MergeOperator> {
    let resolve = given.cloned().or_else(|| MergeOperator::by_name(stored));
    resolve.filter(|resolve| resolve.name() == stored).ok_or_else(|| Error::MergeOperatorMismatch {
        name: name.to_owned(),
        stored: stored.to_owned(),
        given: given.map(|resolve| resolve.name().to_owned()),
    })
}

fn restore(inner: &Registered, meta: &SnapshotMeta, runs: &Runs) -> Result<Levels> {
    let set = inner.files();
    let config = &meta.config;
    let salt = inner.salt();
    let capacity = Capacity::of(config, None);
    let context = CompactionEnv { set, config, capacity, salt, table: inner.id() };

    let open = |MaskedRef { run: wanted, mask }: &MaskedRef, level: usize| -> Result<Arc<Run>> {
        let run = &runs[&wanted.number];
        check_footer(run.path(), run.meta(), wanted)?;
        if run.meta().salt != inner.salt() {
            let what = Corrupt::rule("salt of the session", inner.salt(), run.meta().salt);
            return Err(Error::corrupt(run.path(), what));
        }
        // Nothing else of the blobs is read before one of them is needed.
        if run.meta().blob_bytes > 0 {
            check_blobs_len(&run.blobs_path(), run.blobs()?.as_ref(), run.meta())?;
        }
        Ok(run.with_access(meta.config.disk_cache.access(level)).with_mask(mask))
    };

    let mut tree = Levels { flushes: meta.flushes, ..Levels::default() };
    if !meta.images.is_empty() {
        let resolve = &meta.config.merge_operator;
        let read = |image: &MaskedRef| {
            // All of it, so that what is saved next can refer to the same image under another mask.
            let chunk = read_image(&open(image, 1)?.with_mask(&Mask::default()), resolve)?;
            Ok(MemtablePart::Chunk(Arc::new(chunk)).under_mask(&image.mask))
        };
        let segments = meta.images.iter().map(read).collect::<Result<_>>()?;
        tree.buffer = Memtable::of_parts(segments, resolve)?;
        // Replayed updates took no time, so the size of the memtable may say more than the clock.
        if config.memory_budget.is_none() && tree.now(&context) > meta.now {
            tree.set_time(&context, meta.now);
        }
    }

    tree.levels = restore_levels(inner, &context, meta, &open)?;
    if let Some(union) = &meta.union {
        let open = |wanted: &MaskedRef| open(wanted, LEVELS_MAX);
        tree.union = Some(Arc::new(restore_union(&context, union, &open)?));
    }

    if let Some(flushed) = &meta.flushed {
        let run = open(flushed, 1)?;
        let compaction = Arc::new(Compaction::completed(inner.files(), run));
        let start = meta.flushes * TICKS_PER_FLUSH;
        let due = start + TICKS_PER_FLUSH;
        let base = compaction.done();
        tree.flushing =
            Some(ScheduledCompaction { compaction, start, due, base, mask: Mask::default() });
    }

    Ok(tree)
}

/// The levels of a table, with their merges.
fn restore_levels(
    inner: &SessionInner,
    context: &CompactionEnv<'_>,
    meta: &SnapshotMeta,
    open: &impl Fn(&MaskedRef, usize) -> Result<Arc<Run>>,
) -> Result<Vec<Level>> {
    let mut opened = Vec::new();
    // All runs count before the first merge is planned, since they share the budget.
    let mut held = TableMemory::default();
    for (at, level) in (1..).zip(&meta.levels) {
        let runs: Vec<_> = level.sources().map(|run| open(run, at)).collect::<Result<_>>()?;
        for run in &runs {
            held.add_run(run);
        }
        opened.push((at, level, runs));
    }

    let mut levels = Vec::new();
    for (at, level, mut runs) in opened {
        debug_assert!(level.residents.len() <= runs.len(), "residents are sources");
        // The sources of a level end with its residents.
        let residents = runs.split_off(runs.len() - level.residents.len());
        let incoming = if let IncomingRef::Compaction(merge) = &level.incoming {
            let inputs = runs.split_off(merge.slices.len());
            check_slices(&runs)?;
            let time = (meta.now, context.merge_span((at, meta.levels.len()), &inputs));
            let inputs = inputs.into_iter().map(Input::Run).collect();
            let spec = context.spec(inputs, (at, meta.levels.len()), merge.drop_deletes, &held);
            let spec = spec.resuming(runs, merge.slice_entries);
            let incoming = restore_merge(inner, merge, spec, time)?;
            match &incoming {
                Incoming::Compaction(pending) => {
                    held.add_output(pending.compaction.planned_bytes());
                }
                Incoming::Single(run) => held.add_run(run),
            }
            Some(incoming)
        } else {
            runs.into_iter().next().map(Incoming::Single)
        };

        levels.push(Level { incoming, residents });
    }

    debug_assert_eq!(levels.len(), meta.levels.len(), "each level is restored");

    Ok(levels)
}

/// Refuses slices that do not follow each other.
fn check_slices(slices: &[Arc<Run>]) -> Result<()> {
    let wrong = slices.windows(2).position(|pair| !follows(&pair[0], &pair[1]));
    match wrong {
        None => Ok(()),
        Some(at) => {
            let what = Corrupt::rule("slices of a merge follow each other", 1, 0);
            Err(Error::corrupt(slices[at + 1].path(), what))
        }
    }
}

fn restore_union(
    context: &CompactionEnv<'_>,
    union: &UnionRef,
    open: &impl Fn(&MaskedRef) -> Result<Arc<Run>>,
) -> Result<Union> {
    let mut tables = Vec::new();
    for table in &union.tables {
        let runs = table.runs.iter().map(|run| Ok(Piece::Run(open(run)?)));
        let pieces = runs.collect::<Result<_>>()?;
        let older = match &table.older {
            None => None,
            Some(older) => Some((Arc::new(restore_union(context, older, open)?), Mask::default())),
        };
        tables.push(UnionTable { pieces, older });
    }

    let slices = union.slices.iter().map(open).collect::<Result<_>>()?;
    let progress = UnionProgress { slices, frontier: union.frontier.clone(), passed: union.passed };
    Ok(context.union(tables, progress))
}

/// The part of a write buffer that a run is the image of.
fn read_image(run: &Arc<Run>, resolve: &MergeOperator) -> Result<Chunk> {
    let salt = run.meta().salt;
    let files = run.handle().set();
    let mut chunk = Chunk::default();
    let reading = chunk_reader::Reading::merge(files, 1);
    let mut reader = RunReader::new(run, &KeyRange::ALL, Order::Ascending, reading);
    reader.load()?;

    while let Some(EntryRef { key, kind, value, .. }) = reader.current() {
        let blob = match reader.blob() {
            Some(blob) => retrieve(files.disk().as_ref(), 1, &[blob.downgrade()])?.pop(),
            None => None,
        };
        let blob: Option<Arc<[u8]>> = blob.map(Arc::from);
        let hash = key_hash(salt, key);
        chunk.put(NewEntry { key, hash, kind, value, blob: blob.as_ref() }, resolve, None)?;
        reader.advance()?;
    }

    // The next snapshot refers to the same image.
    chunk.image().set(files, run_ref(run));
    Ok(chunk)
}

/// The merge that a snapshot found under way. `time` is that of the snapshot, and how long such a
/// merge takes.
fn restore_merge(
    inner: &SessionInner,
    merge: &MergeRef,
    mut spec: CompactionSpec,
    time: (u64, u64),
) -> Result<Incoming> {
    let mut known = None;
    if let Some(output) = &merge.output {
        known = inner.compaction(&spec, output);
        if known.is_none() && inner.files().is_whole(output.number) {
            // It was completed since.
            match inner.run(output.number, spec.access) {
                Ok(run) if run.meta().identity == output.identity => {
                    inner.files().sync_whole(output.number)?;
                    if spec.slice_entries == ONE_RUN {
                        return Ok(Incoming::Single(run.with_mask(&merge.mask)));
                    }
                    spec = spec.with_slice(run);
                    check_slices(&spec.slices)?;
                }
                Err(error) if !error.is_damage() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    let compaction = known.unwrap_or_else(|| Arc::new(Compaction::new(inner.files(), spec)));
    if inner.is_read_only() {
        // It merges nothing.
        let due = clamped(merge.due, time.0);
        let mask = merge.mask.clone();
        return Ok(Incoming::Compaction(ScheduledCompaction {
            compaction,
            start: time.0,
            due,
            base: 0,
            mask,
        }));
    }

    let pending = resume(compaction, merge.due, time)?;
    Ok(Incoming::Compaction(ScheduledCompaction { mask: merge.mask.clone(), ..pending }))
}

/// A due time that lies ahead, whatever a snapshot says.
fn clamped(due: u64, now: u64) -> u64 {
    due.clamp(now + 1, now.saturating_add(1 << 61))
}

/// How much faster than at first a merge may go after its snapshot was opened.
const PACE_MAX: u64 = 4;

/// Goes on with a merge, part of whose work may have been lost. What is left of its time is used
/// for what is left of its work, at up to [`PACE_MAX`] times its first pace, so that no later
/// update has to do much at once; what does not fit is done here.
fn resume(
    compaction: Arc<Compaction>,
    due: u64,
    (now, span): (u64, u64),
) -> Result<ScheduledCompaction> {
    let due = clamped(due, now);
    debug_assert!(now < due && 0 < span, "a merge has time left");
    let pages = u128::from(compaction.work()) * u128::from(PACE_MAX);
    let fits = pages * u128::from(due - now) / u128::from(span);
    let fits = u64::try_from(fits).unwrap_or(u64::MAX);
    // There may turn out to be more to do.
    while compaction.left() > fits {
        compaction.advance_to(compaction.total() - fits)?;
    }
    let base = compaction.done();
    debug_assert!(base <= compaction.total(), "no more is done than there is");
    Ok(ScheduledCompaction { compaction, start: now, due, base, mask: Mask::default() })
}

/// Gives a snapshot another name.
pub(crate) fn rename(inner: &SessionInner, from: &SnapshotName, to: &SnapshotName) -> Result<()> {
    inner.check_writable()?;
    let files = inner.files().handles();
    let rename = || inner.disk().rename(&path_of(inner, from), &path_of(inner, to));
    let rename = || Ok(files.with_space(rename)?);
    let _operation = inner.snapshots().rename(from.as_str(), to.as_str(), rename)?;
    inner.sync_dir(SNAPSHOTS)
}

/// Deletes a snapshot. Tables opened from it go on working.
pub(crate) fn delete(inner: &SessionInner, name: &SnapshotName) -> Result<()> {
    inner.check_writable()?;
    let remove = || match inner.disk().remove(&path_of(inner, name)) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    };
    let (_operation, pins) = inner.snapshots().remove(name.as_str(), remove)?;
    // Until the name is gone for good, the runs must stay.
    inner.sync_dir(SNAPSHOTS)?;
    inner.let_go(pins)
}

/// Metadata of a stored snapshot.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: SnapshotName,
    /// The label that it was saved under.
    pub label: String,
    /// When it was saved, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Name of the table's merge operator.
    pub resolve: String,
    /// The configuration of its table; with that function if it is a ready-made one.
    pub config: TableConfig,
    /// Runs that it refers to.
    pub runs: u64,
    /// Bytes of their entries' pages; filters and indexes take a few per cent more. Without blobs.
    pub data_bytes: u64,
}

/// Metadata of a snapshot.
pub(crate) fn info(inner: &SessionInner, name: &SnapshotName) -> Result<SnapshotInfo> {
    let Reading { mut meta, .. } = read(inner, name)?;
    meta.config.merge_operator = MergeOperator::by_name(&meta.resolve).unwrap_or_default();
    let runs: BTreeMap<u64, u32> = meta.runs().map(|run| (run.number, run.data_pages)).collect();
    Ok(SnapshotInfo {
        name: name.clone(),
        runs: runs.len() as u64,
        data_bytes: runs.values().map(|&pages| u64::from(pages) * PAGE_SIZE as u64).sum(),
        label: meta.label,
        created_ns: meta.created_ns,
        resolve: meta.resolve,
        config: meta.config,
    })
}

/// Names of all snapshots, damaged ones included, sorted.
pub(crate) fn list(inner: &SessionInner) -> Result<Vec<SnapshotName>> {
    let names = if inner.is_read_only() {
        inner.check_open()?;
        snapshot_names(inner.disk(), inner.dir())?
    } else {
        inner.snapshots().names()?
    };
    Ok(names.iter().filter_map(|name| SnapshotName::new(name).ok()).collect())
}

/// Whether there is a snapshot of that name.
pub(crate) fn exists(inner: &SessionInner, name: &SnapshotName) -> Result<bool> {
    if inner.is_read_only() {
        Ok(list(inner)?.contains(name))
    } else {
        inner.snapshots().contains(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use terrane_io::{Access, Fault, FaultKind, FaultPlan, Repeat, SimDisk};

    use super::*;
    use crate::filter::filter::FilterPortion;
    use crate::table::session::{Session, SessionOptions};

    /// Runs that were opened without their filters by somebody who gave up: whoever is next reads
    /// them, with a budget or without, and so does whoever comes after one that failed.
    #[test]
    fn filters_that_nobody_has_read_are_read_by_the_next_who_opens_the_table() {
        let disk = SimDisk::new(1);
        let options = SessionOptions::with_salt(1).create_dir();
        let session = Session::open(disk.clone(), Path::new("/session"), &options).unwrap();
        let write_buffer = crate::config::WriteBuffer::Entries(2_000);
        let config = TableConfig { write_buffer, ..TableConfig::default() };

        let mut table = session.new_table(&config).unwrap();
        for number in 0..20_000_u64 {
            table.insert(&number.to_le_bytes(), b"value").unwrap();
        }
        let name = SnapshotName::new("a").unwrap();
        table.save_snapshot(&name, "").unwrap();
        drop(table);

        let numbers: Vec<u64> = session.inner().read_snapshot("a").unwrap().numbers().collect();
        for budget in [None, Some(16 << 20)] {
            let options = OpenOptions { memory_budget: budget, ..OpenOptions::default() };
            let unread = || -> Vec<_> {
                let inner = session.inner();
                let open = |&number| inner.run_without_filter(number, Access::Buffered).unwrap();
                numbers.iter().map(open).collect()
            };

            let open = || session.open_snapshot_with(&name, "", &options);
            let runs = unread();
            assert!(runs.iter().all(|run| run.filter().kept() == FilterPortion::Nothing));
            let before = disk.calls();
            let filter_bytes = open().unwrap().stats().filter_bytes;
            let calls = disk.calls() - before;
            assert!(filter_bytes > 10_000, "{budget:?}: {filter_bytes}");
            drop(runs);

            let mut failed = 0;
            for at_call in 0..calls {
                let runs = unread();
                let at_call = disk.calls() + at_call;
                let kind = FaultKind::Eio;
                let fault = Fault { at_call, kind, repeat: Repeat::Once };
                disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
                failed += u32::from(open().is_err());
                disk.set_plan(FaultPlan::default());
                assert_eq!(open().unwrap().stats().filter_bytes, filter_bytes, "{at_call}");
                drop(runs);
            }

            assert!(failed > 2, "{failed} calls failed");
        }
    }
}

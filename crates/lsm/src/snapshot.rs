//! Durable copies of tables: save, open, delete.
//!
//! **Save** writes the write buffer as a run, writes what unfinished merges have ready, syncs all of that and
//! the runs that are not durable yet, syncs their
//! directory, and only then writes the snapshot's metadata under a temporary name, syncs it and renames
//! it. **Delete** removes the metadata, syncs the directory, and only then removes runs. So after a crash
//! at any point a snapshot is either absent or whole, and runs that nobody refers to are removed when the
//! session is opened.
//!
//! A merge under way is kept with what it has written: see [`crate::merging`] for how it is gone on with.
//! That part of its output is never needed, since the inputs are there too.
//!
//! Cost of saving: one file for the write buffer and one for the metadata, a write and a sync for each merge
//! under way, a sync for each run that no earlier snapshot has synced; nothing that grows with the number of
//! entries.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::Access;

use crate::blob::retrieve;
use crate::config::TableConfig;
use crate::corrupt::Corrupt;
use crate::entry::{EntryRef, key_hash};
use crate::error::{Error, Result};
use crate::files::lock;
use crate::index::IndexKind;
use crate::levels::{Context, Incoming, Level, Pending, TICKS_PER_FLUSH, Tree};
use crate::manifest::{
    IncomingRef, LevelRef, MergeRef, RunRef, SnapshotMeta, UnionRef, UnionTableRef,
};
use crate::merging::{Input, MergeSpec, Merging, View};
use crate::resolve::Resolve;
use crate::run::{Purpose, Run};
use crate::run_builder::Flushed;
use crate::run_reader::{self, RunReader};
use crate::session_core::{ACTIVE, SNAPSHOTS, SessionCore, Stored, read_snapshot, snapshot_path};
use crate::union::{Piece, Progress, Union, UnionTable};
use crate::write_buffer::{NewEntry, WriteBuffer};

/// The name of a snapshot: 1 to 64 characters of `a-z`, `0-9`, `_` and `-`, and not the name of a device
/// of Windows, so that it is a file name everywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName(String);

/// Longest snapshot name, in characters.
pub const SNAPSHOT_NAME_LEN_MAX: usize = 64;

impl SnapshotName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidSnapshotName`].
    pub fn new(text: &str) -> Result<Self> {
        let allowed =
            |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
        let numbered = |device: &str| {
            let rest = text.strip_prefix(device).map(str::as_bytes);
            matches!(rest, Some([b'1'..=b'9']))
        };
        let device =
            ["con", "prn", "aux", "nul"].contains(&text) || numbered("com") || numbered("lpt");
        let length = (1..=SNAPSHOT_NAME_LEN_MAX).contains(&text.len());
        if !length || !text.bytes().all(allowed) || device {
            return Err(Error::InvalidSnapshotName { text: text.to_owned() });
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn path_of(core: &SessionCore, name: &SnapshotName) -> PathBuf {
    snapshot_path(core.dir(), name.as_str())
}

fn run_ref(run: &Run) -> RunRef {
    RunRef {
        number: run.number(),
        identity: run.meta().identity,
        data_pages: run.meta().data_pages,
    }
}

/// Longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 1 << 16;

/// Saves a table.
pub(crate) fn save(
    core: &Arc<SessionCore>,
    tree: &Tree,
    config: &TableConfig,
    name: &SnapshotName,
    label: &str,
) -> Result<()> {
    core.check_writable()?;
    if label.len() > LABEL_BYTES_MAX {
        return Err(Error::LabelTooLarge { bytes: label.len(), limit: LABEL_BYTES_MAX });
    }
    let mut stored = lock(&core.snapshots);
    core.check_open()?;
    if stored.contains_key(name.as_str()) {
        return Err(Error::SnapshotExists { name: name.to_string() });
    }
    let context = Context { set: core.files(), config, salt: core.salt() };
    // Runs are held by these handles until the snapshot pins them.
    let image = write_image(&context, &tree.buffer)?;
    let flushed = match &tree.flushing {
        Some(pending) => pending.merging.finish()?,
        None => None,
    };
    let mut held: Vec<Arc<Run>> = Vec::new();
    let mut refer = |run: &Arc<Run>| {
        held.push(Arc::clone(run));
        run_ref(run)
    };
    let image = image.as_ref().map(&mut refer);
    let flushed = flushed.as_ref().map(&mut refer);
    let mut unfinished = Vec::new();
    let levels = tree.levels.iter().map(|level| level_ref(level, &mut refer, &mut unfinished));
    let levels = levels.collect::<Result<_>>()?;
    let union = tree.union.as_ref().map(|union| union_ref(union, &mut refer));
    let meta = SnapshotMeta {
        created_ns: core.disk().clock().wall().as_nanos() as u64,
        label: label.to_owned(),
        resolve: config.resolve.name().to_owned(),
        config: config.clone(),
        flushes: tree.flushes,
        now: tree.now(&context),
        image,
        flushed,
        levels,
        union,
    };
    for run in &held {
        run.sync()?;
    }
    for output in &unfinished {
        output.flushed.sync()?;
    }
    core.sync_dir(ACTIVE)?;
    let pins: Vec<u64> = meta.numbers().collect();
    core.files().pin(pins.iter().copied());
    if let Err(error) = core.write_snapshot(&path_of(core, name), &meta.encode()) {
        // After a failed sync of the directory the name may be there or not: the pins stay, so that its
        // runs do, and the next opening sees which it is.
        if core.files().check_poisoned().is_ok() {
            core.files().unpin(pins)?;
        }
        return Err(error);
    }
    stored.insert(name.to_string(), Stored::Whole { pins });
    core.share(&held);
    core.share_merges(unfinished.iter().map(|output| (output.number(), &output.merging)));
    Ok(())
}

fn write_image(context: &Context<'_>, buffer: &WriteBuffer) -> Result<Option<Arc<Run>>> {
    if buffer.is_empty() {
        return Ok(None);
    }
    let spec = MergeSpec {
        inputs: vec![Input::Buffer(buffer.clone())],
        drop_deletes: false,
        resolve: context.config.resolve.clone(),
        filter: None,
        index: IndexKind::Ordinary,
        access: Access::Buffered,
        salt: context.salt,
        purpose: Purpose::BufferImage,
    };
    Merging::new(context.set, spec).finish()
}

/// The output of a merge under way, which a snapshot refers to.
struct Unfinished {
    merging: Arc<Merging>,
    flushed: Flushed,
}

impl Unfinished {
    fn number(&self) -> u64 {
        self.flushed.partial.number
    }
}

fn level_ref(
    level: &Level,
    refer: &mut impl FnMut(&Arc<Run>) -> RunRef,
    unfinished: &mut Vec<Unfinished>,
) -> Result<LevelRef> {
    let incoming = match &level.incoming {
        None => IncomingRef::Nothing,
        Some(Incoming::Single(run)) => IncomingRef::Single(refer(run)),
        Some(Incoming::Merging(pending)) => match pending.merging.flush()? {
            (View::Output(None), _) => IncomingRef::Nothing,
            (View::Output(Some(run)), _) => IncomingRef::Single(refer(&run)),
            (View::Inputs(inputs), flushed) => {
                let runs = inputs.iter().filter_map(Input::run);
                let output = flushed.as_ref().map(|flushed| flushed.partial);
                let merging = Arc::clone(&pending.merging);
                unfinished.extend(flushed.map(|flushed| Unfinished { merging, flushed }));
                IncomingRef::Merging(MergeRef {
                    due: pending.due,
                    drop_deletes: pending.merging.drops_deletes(),
                    inputs: runs.map(&mut *refer).collect(),
                    output,
                })
            }
        },
    };
    Ok(LevelRef { incoming, residents: level.residents.iter().map(refer).collect() })
}

fn union_ref(union: &Union, refer: &mut impl FnMut(&Arc<Run>) -> RunRef) -> UnionRef {
    let (tables, progress) = union.progress();
    let Progress { slices, frontier, passed } = progress;
    let slices = slices.iter().map(&mut *refer).collect();
    let mut refs = Vec::new();
    for table in tables.iter() {
        let runs = table.runs().iter().map(&mut *refer).collect();
        let older = table.older.as_ref().map(|older| union_ref(older, refer));
        refs.push(UnionTableRef { runs, older });
    }
    UnionRef { slices, frontier, passed, tables: refs }
}

/// Opens a snapshot as a new table.
pub(crate) fn open(
    core: &Arc<SessionCore>,
    name: &SnapshotName,
    label: &str,
    resolve: Option<&Resolve>,
) -> Result<(Tree, TableConfig)> {
    core.check_open()?;
    let stored = lock(&core.snapshots);
    if !stored.contains_key(name.as_str()) {
        return Err(Error::SnapshotDoesNotExist { name: name.to_string() });
    }
    let mut meta = match read_snapshot(core.disk(), core.dir(), name.as_str()) {
        Err(Error::Disk(error)) if error.is_not_found() => Err(Error::SnapshotCorrupted {
            name: name.to_string(),
            path: path_of(core, name),
            reason: "the file is missing".to_owned(),
        }),
        other => other,
    }?;
    if meta.label != label {
        return Err(Error::SnapshotNotCompatible {
            name: name.to_string(),
            expected: label.to_owned(),
            actual: meta.label,
        });
    }
    meta.config.resolve = resolve_of(name, &meta.resolve, resolve)?;
    let tree = restore(core, &meta).map_err(|error| match error {
        Error::Corrupt { path, what } => {
            Error::SnapshotCorrupted { name: name.to_string(), path, reason: what.to_string() }
        }
        Error::Disk(terrane_io::Error::Io { path, source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            let reason = "the file is missing".to_owned();
            Error::SnapshotCorrupted { name: name.to_string(), path, reason }
        }
        Error::Disk(terrane_io::Error::ShortRead { path, .. }) => {
            let reason = "the file ends early".to_owned();
            Error::SnapshotCorrupted { name: name.to_string(), path, reason }
        }
        error => error,
    })?;
    Ok((tree, meta.config))
}

/// The resolve function of that name: the one given, or a ready-made one.
fn resolve_of(name: &SnapshotName, stored: &str, given: Option<&Resolve>) -> Result<Resolve> {
    let resolve = given.cloned().or_else(|| Resolve::by_name(stored));
    resolve.filter(|resolve| resolve.name() == stored).ok_or_else(|| Error::ResolveNotCompatible {
        name: name.to_string(),
        stored: stored.to_owned(),
        given: given.map(|resolve| resolve.name().to_owned()),
    })
}

fn restore(core: &Arc<SessionCore>, meta: &SnapshotMeta) -> Result<Tree> {
    let context = Context { set: core.files(), config: &meta.config, salt: core.salt() };
    let open = |wanted: &RunRef| -> Result<Arc<Run>> {
        let run = core.run(wanted.number, context.access())?;
        let found = run_ref(&run);
        let broken = |rule, expected, found| {
            Err(Error::corrupt(run.path(), Corrupt::rule(rule, expected, found)))
        };
        if found.identity != wanted.identity {
            return broken("identity in the snapshot", wanted.identity, found.identity);
        }
        if found.data_pages != wanted.data_pages {
            return broken(
                "data pages in the snapshot",
                wanted.data_pages.into(),
                found.data_pages.into(),
            );
        }
        if run.meta().salt != core.salt() {
            return broken("salt of the session", core.salt(), run.meta().salt);
        }
        Ok(run)
    };
    let mut tree = Tree { flushes: meta.flushes, ..Tree::default() };
    if let Some(image) = &meta.image {
        tree.buffer = read_image(&open(image)?, &meta.config.resolve)?;
    }
    for (at, level) in (1..).zip(&meta.levels) {
        let incoming = match &level.incoming {
            IncomingRef::Nothing => None,
            IncomingRef::Single(run) => Some(Incoming::Single(open(run)?)),
            IncomingRef::Merging(merge) => {
                let inputs = merge.inputs.iter().map(|run| Ok(Input::Run(open(run)?)));
                let inputs = inputs.collect::<Result<_>>()?;
                let spec = context.spec(inputs, at, meta.levels.len(), merge.drop_deletes);
                Some(restore_merge(core, merge, spec, (meta.now, context.merge_ticks(at)))?)
            }
        };
        let residents = level.residents.iter().map(&open).collect::<Result<_>>()?;
        tree.levels.push(Level { incoming, residents });
    }
    if let Some(union) = &meta.union {
        tree.union = Some(Arc::new(restore_union(&context, union, &open)?));
    }
    if let Some(flushed) = &meta.flushed {
        let run = open(flushed)?;
        let merging = Arc::new(Merging::completed(core.files(), run));
        let start = meta.flushes * TICKS_PER_FLUSH;
        let (due, base) = (start + TICKS_PER_FLUSH, merging.done());
        tree.flushing = Some(Pending { merging, start, due, base });
    }
    Ok(tree)
}

fn restore_union(
    context: &Context<'_>,
    union: &UnionRef,
    open: &impl Fn(&RunRef) -> Result<Arc<Run>>,
) -> Result<Union> {
    let mut tables = Vec::new();
    for table in &union.tables {
        let runs = table.runs.iter().map(|run| Ok(Piece::Run(open(run)?)));
        let pieces = runs.collect::<Result<_>>()?;
        let older = match &table.older {
            None => None,
            Some(older) => Some(Arc::new(restore_union(context, older, open)?)),
        };
        tables.push(UnionTable { pieces, older });
    }
    let slices = union.slices.iter().map(open).collect::<Result<_>>()?;
    let progress = Progress { slices, frontier: union.frontier.clone(), passed: union.passed };
    Ok(context.union(tables, progress))
}

/// The write buffer that a run is the image of.
fn read_image(run: &Arc<Run>, resolve: &Resolve) -> Result<WriteBuffer> {
    let salt = run.meta().salt;
    let mut buffer = WriteBuffer::default();
    buffer.begin(resolve)?;
    let mut reader = RunReader::new(Arc::clone(run), run_reader::Purpose::Merge)?;
    while let Some(EntryRef { key, kind, value, .. }) = reader.current() {
        let blob = match reader.blob() {
            Some(blob) => {
                retrieve(run.handle().set().disk().as_ref(), 1, &[blob.downgrade()])?.pop()
            }
            None => None,
        };
        let blob: Option<Arc<[u8]>> = blob.map(Arc::from);
        let hash = key_hash(salt, key);
        buffer.put(NewEntry { key, hash, kind, value, blob: blob.as_ref() }, resolve, None)?;
        reader.advance()?;
    }
    Ok(buffer)
}

/// The merge that a snapshot found under way. `time` is that of the snapshot, and how long such a merge takes.
fn restore_merge(
    core: &Arc<SessionCore>,
    merge: &MergeRef,
    spec: MergeSpec,
    time: (u64, u64),
) -> Result<Incoming> {
    let mut known = None;
    if let Some(output) = &merge.output {
        known = core.merging(&spec, output);
        if known.is_none() && core.files().is_whole(output.number) {
            // It was completed since.
            match core.run(output.number, spec.access) {
                Ok(run) if run.meta().identity == output.identity => {
                    return Ok(Incoming::Single(run));
                }
                Err(error) if !error.is_damage() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
    let merging = known.unwrap_or_else(|| Arc::new(Merging::new(core.files(), spec)));
    Ok(Incoming::Merging(resume(merging, merge.due, time)?))
}

/// How much faster than at first a merge may go after its snapshot was opened.
const PACE_MAX: u64 = 4;

/// Goes on with a merge, part of whose work may have been lost. What is left of its time is used for what is
/// left of its work, at up to [`PACE_MAX`] times its first pace, so that no later update has to do much at
/// once; what does not fit is done here.
fn resume(merging: Arc<Merging>, due: u64, (now, span): (u64, u64)) -> Result<Pending> {
    let due = due.clamp(now + 1, now.saturating_add(1 << 61));
    let pages = u128::from(merging.work()) * u128::from(PACE_MAX);
    let fits = pages * u128::from(due - now) / u128::from(span);
    let fits = u64::try_from(fits).unwrap_or(u64::MAX);
    // There may turn out to be more to do.
    while merging.total() - merging.done() > fits {
        merging.advance_to(merging.total() - fits)?;
    }
    let base = merging.done();
    Ok(Pending { merging, start: now, due, base })
}

/// Deletes a snapshot. Tables opened from it go on working.
pub(crate) fn delete(core: &Arc<SessionCore>, name: &SnapshotName) -> Result<()> {
    core.check_writable()?;
    let mut stored = lock(&core.snapshots);
    core.check_open()?;
    if !stored.contains_key(name.as_str()) {
        return Err(Error::SnapshotDoesNotExist { name: name.to_string() });
    }
    let removed = core.disk().remove(&path_of(core, name));
    match removed {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }
    let pins = match stored.remove(name.as_str()) {
        Some(Stored::Whole { pins }) => pins,
        Some(Stored::Damaged) | None => Vec::new(),
    };
    // Until the name is gone for good, the runs must stay.
    core.sync_dir(SNAPSHOTS)?;
    core.files().unpin(pins)
}

/// Names of all snapshots, damaged ones included, sorted.
pub(crate) fn list(core: &Arc<SessionCore>) -> Result<Vec<SnapshotName>> {
    core.check_open()?;
    let stored = lock(&core.snapshots);
    Ok(stored.keys().filter_map(|name| SnapshotName::new(name).ok()).collect())
}

//! Copies of all entries of one place to another: `terrane btree build` and `terrane table build`.
//!
//! A copy streams the entries in key order and never holds all of them in memory. The copy has all
//! entries or does not exist, whatever ends the command. The digest is that of the state, so it
//! equals that of the source if nobody else writes to the source.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use std::vec;

use clap::Args;
use serde::Serialize;
use terrane::btree::{self, Config, Index, Records};
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{SnapshotName, StateDigest, Store, TableConfig, TableName, Update};
use terrane_replay::monitor::{Monitor as _, Phase};

use crate::stores::index_path::IndexPath;
use crate::stores::open::{Opening, check_table_is_new, open_tables_with};
use crate::stores::source::{Entries, KeyRange, MAIN_TABLE, Point, Source, StoredValue};
use crate::stores::version_ref::{VersionRef, snapshot_name, which};
use crate::ui::args;
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::{grouped, hex};

/// Entries that one call reads.
const CHUNK: usize = 256;

/// Bytes of entries that are loaded at once.
const BATCH_BYTES: usize = 1 << 20;

/// Source of the entries.
#[derive(Debug, Args)]
pub(crate) struct FromArgs {
    /// Directory of the store or of the B+tree to copy; another process may have it open
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Name of the table to copy
    #[arg(long, value_name = "NAME", default_value = MAIN_TABLE, value_parser = args::table_name)]
    from_table: TableName,
    /// Number or name of the retained version to copy; the present state if it is left out
    #[arg(long, alias = "at", value_name = "VERSION", value_parser = which)]
    version: Option<VersionRef>,
    /// Name of the snapshot to copy, instead of a table
    #[arg(long, value_name = "NAME", value_parser = snapshot_name,
        conflicts_with_all = ["from_table", "version"])]
    snapshot: Option<SnapshotName>,
}

/// Table to build.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Directory of the store.
    pub(crate) dir: &'a Path,
    pub(crate) name: &'a TableName,
    /// Whether the store is created if it is missing.
    pub(crate) create: bool,
    /// Memory budget of the store, and of the store with the source.
    pub(crate) memory_budget: Option<u64>,
}

/// Report of a copy.
#[derive(Debug, Serialize)]
pub(crate) struct Copied {
    entries: u64,
    digest: String,
    wall_s: f64,
    entries_per_s: f64,
}

impl Copied {
    /// Rest of the line about the copy, for people.
    pub(crate) fn lines(&self, made: String) -> [(&'static str, String); 4] {
        [
            ("built", made),
            ("entries", grouped(self.entries)),
            ("digest", self.digest.clone()),
            ("rate", format!("{} entries/s", grouped(self.entries_per_s as u64))),
        ]
    }
}

/// Stream of entries from the source, with digest and progress.
struct Stream<'a> {
    entries: Entries<'a>,
    chunk: vec::IntoIter<(Vec<u8>, StoredValue)>,
    current: (Vec<u8>, StoredValue),
    digest: StateDigest,
    progress: Progress,
    started: Instant,
    /// Reason why the stream ended early.
    failed: Option<Failure>,
}

impl FromArgs {
    fn point(&self) -> Point<'_> {
        match (&self.snapshot, &self.version) {
            (Some(name), _) => Point::Snapshot(name),
            (None, Some(version)) => Point::Version(version),
            (None, None) => Point::Now,
        }
    }

    /// Runs `work` on the entries, which are read within a memory budget if they come from a store.
    ///
    /// # Errors
    /// [`Failure`], those of the work included.
    fn copy(
        &self,
        progress: Progress,
        memory_budget: Option<u64>,
        work: impl FnOnce(&mut Stream<'_>) -> Result<(), Failure>,
    ) -> Result<Copied, Failure> {
        let started = Instant::now();
        let point = self.point();
        let source = Source::open_within(&self.from, &self.from_table, point, memory_budget)?;
        let mut stream = Stream {
            entries: source.entries(KeyRange::Prefix(Vec::new()), false)?,
            chunk: Vec::new().into_iter(),
            current: (Vec::new(), StoredValue { value: Vec::new(), blob: None }),
            digest: StateDigest::default(),
            progress,
            started,
            failed: None,
        };

        let done = work(&mut stream);

        // The error of the stream is the cause of the failed work.
        if let Some(failure) = stream.failed.take() {
            return Err(failure);
        }

        done?;
        let entries = stream.digest.count();
        let wall_s = stream.started.elapsed().as_secs_f64();
        let digest = hex(&stream.digest.finish());

        Ok(Copied { entries, digest, wall_s, entries_per_s: entries as f64 / wall_s })
    }
}

impl Stream<'_> {
    /// Moves to the next entry; returns `false` at the end.
    fn advance(&mut self) -> Result<bool, Failure> {
        let next = match self.chunk.next() {
            Some(next) => next,
            None => {
                self.progress.progress(Phase::Copy, self.digest.count(), None);
                if self.progress.stop() {
                    return Err(interrupted());
                }
                self.chunk = self.entries.take(CHUNK)?.into_iter();
                let Some(next) = self.chunk.next() else { return Ok(false) };
                next
            }
        };

        self.current = next;
        let (key, found) = &self.current;
        self.digest.add(key, &found.value, found.blob.as_deref());

        Ok(true)
    }
}

fn interrupted() -> Failure {
    Failure::interrupted("interrupted; nothing was built")
}

impl Records for Stream<'_> {
    fn next_ref(&mut self) -> btree::Result<Option<(&[u8], &[u8])>> {
        let advanced = self.advance().and_then(|is_there| {
            if is_there && self.current.1.blob.is_some() {
                let key = literal::shown(&self.current.0);
                return Err(Failure::usage(format!("`{key}` has a blob; a B+tree has none")));
            }
            Ok(is_there)
        });

        match advanced {
            Ok(true) => Ok(Some((&self.current.0, &self.current.1.value))),
            Ok(false) => Ok(None),
            Err(failure) => {
                let reason = failure.message().to_owned();
                self.failed = Some(failure);
                Err(btree::Error::Input { reason, source: None })
            }
        }
    }
}

/// Builds an index in a directory that is missing or empty, or has an index without entries.
///
/// # Errors
/// [`Failure`]; then there is no index, or one without entries if one was there.
pub(crate) fn to_index(
    from: &FromArgs,
    progress: Progress,
    dir: &Path,
    config: &Config,
    fill_percent: u32,
) -> Result<Copied, Failure> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let shown = dir.display();
    let is_new = match IndexPath::of(&disk, dir)? {
        Some(IndexPath::Dir) => false,
        Some(IndexPath::File) => {
            return Err(Failure::usage(format!("{shown} is a file; name its directory")));
        }
        None => match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => true,
            Ok(false) => return Err(Failure::usage(format!("{shown} is not empty"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(Failure::of_file(dir, &error)),
        },
    };

    let was_there = dir.exists();
    let copied = from.copy(progress, None, |stream| {
        let index = Index::open_or_create(disk.clone(), dir, config)?;
        if !index.is_empty()? {
            return Err(btree::Error::NotEmpty { path: dir.to_owned() }.into());
        }
        index.build_sorted(stream, fill_percent, |_| {})?;
        Ok(index.close()?)
    });

    if copied.is_err() && is_new && !was_there && dir.exists() {
        // The first failure is reported; if the removal fails too, an index without entries is
        // left.
        let _ = fs::remove_dir_all(dir);
    }

    copied
}

/// Loads a new table of a store in bulk, past the log; creates the store if that is allowed. Each
/// of the two stores keeps to the memory budget.
///
/// # Errors
/// [`Failure`]; then there is no such table.
pub(crate) fn to_table(
    from: &FromArgs,
    progress: Progress,
    target: &Target<'_>,
) -> Result<Copied, Failure> {
    let Target { dir, name, create, memory_budget } = *target;
    check_table_is_new(dir, name).map_err(|failure| {
        failure.with_note(&format!("next: terrane table delete {name} --store {}", dir.display()))
    })?;

    from.copy(progress, memory_budget, |stream| {
        let opening = Opening { memory_budget, ..Opening::default() };
        let store = open_tables_with(dir, create, opening)?;
        load(&store, name, stream)?;
        Ok(store.close()?)
    })
}

/// Loads the entries of the stream, and installs them under the name.
fn load(store: &Store, name: &TableName, stream: &mut Stream<'_>) -> Result<(), Failure> {
    let mut loader = store.session().bulk_load(&TableConfig::default())?;
    let mut batch: Vec<(Vec<u8>, StoredValue)> = Vec::new();
    let mut bytes = 0;

    loop {
        let is_there = stream.advance()?;
        if is_there {
            let (key, found) = &mut stream.current;
            let blob = found.blob.take();
            bytes += key.len() + found.value.len() + blob.as_ref().map_or(0, Vec::len);
            let value = std::mem::take(&mut found.value);
            batch.push((std::mem::take(key), StoredValue { value, blob }));
        }

        if !batch.is_empty() && (!is_there || bytes >= BATCH_BYTES) {
            let updates: Vec<(&[u8], Update<'_>)> = batch.iter().map(update).collect();
            loader.write_batch(&updates)?;
            batch.clear();
            bytes = 0;
        }

        if !is_there {
            break;
        }
    }

    let merged = loader.finish_watched(&mut |_, _| {
        if stream.progress.stop() {
            return ControlFlow::Break(interrupted());
        }
        ControlFlow::Continue(())
    })?;
    let table = match merged {
        ControlFlow::Continue(table) => table,
        ControlFlow::Break(failure) => return Err(failure),
    };

    store.install(name, &table)?;
    Ok(())
}

fn update((key, found): &(Vec<u8>, StoredValue)) -> (&[u8], Update<'_>) {
    let update = match &found.blob {
        None => Update::Insert(&found.value),
        Some(blob) => Update::InsertWithBlob(&found.value, blob),
    };
    (key, update)
}

/// Prints the report of a copy.
///
/// # Errors
/// Those of [`output::report`].
pub(crate) fn report<T: Serialize>(
    command: &str,
    json: bool,
    report: &T,
    copied: &Copied,
    made: String,
) -> Result<(), Failure> {
    output::report(command, json, report, &copied.lines(made))
}

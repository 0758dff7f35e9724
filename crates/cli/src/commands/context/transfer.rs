//! `terrane context export` and `import`: one commit as a file, which is that of
//! [`terrane::context`]'s snapshots, or as a store of its own.

use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::backends::BtreeIndexes;
use terrane::context::{Error, Options, Snapshot, Store, StoreReader};
use terrane::io::{Disk, RealDisk};

use super::{CACHE_BYTES, LocationArgs, checkout, open, open_to_write, options, store_bytes};
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::{Input, ModeArgs, Output};
use crate::ui::text::grouped;

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  The newest commit as a file:
    terrane context export tip.snapshot --store /data/context
  The difference from an older commit, for a store that has that commit:
    terrane context export day-2.snapshot --commit main --from CoV8SQ \\
      --store /data/context
  To another machine, without a file:
    terrane context export - --store /data/context |
      ssh host terrane context import - --store /data/context
  As a store of its own:
    terrane context export --to /data/copy --store /data/context

`export` works beside a process that has the store open. The export of one commit is always the \
same bytes. After Ctrl-C nothing is left of a file; the next call begins an unfinished directory \
anew.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  Make a store of a snapshot:
    terrane context import tip.snapshot --store /data/new
  Add what is new since then, and call it `main`:
    terrane context import day-2.snapshot --store /data/new --branch main

The store is created if it is missing. `import` computes the hash of every object; the commit \
exists, durably, when all hashes are right. An error or Ctrl-C leaves no commit: in an existing \
store the objects read so far are garbage, which `terrane context gc` removes; an unfinished new \
store cannot be opened, and the next import begins it anew.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE", required_unless_present = "to")]
    file: Option<PathBuf>,
    /// Directory for a new store with that one commit, instead of a file
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "from", "force"])]
    to: Option<PathBuf>,
    #[command(flatten)]
    locations: LocationArgs,
    /// Commit or branch; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    /// Older commit whose objects at the same paths are left out; an import then needs that commit
    #[arg(long, value_name = "COMMIT")]
    from: Option<String>,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File to read; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Branch that is set to the commit
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    #[command(flatten)]
    locations: LocationArgs,
    /// Maximum number of elements, each of which takes 128 bytes of memory or more
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "33_554_432")]
    elements_max: u64,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Serialize)]
struct Exported {
    commit: String,
    from: Option<String>,
    file: String,
    elements: u64,
    bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Copied {
    commit: String,
    to: String,
    elements: u64,
    store_bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Imported {
    commit: String,
    file: String,
    elements: u64,
    bytes: u64,
    created: bool,
    branch: Option<String>,
    store_bytes: u64,
    wall_s: f64,
}

/// Returns the failure of a transfer; a fault of the stream names the file.
fn failure(error: Error, file: &Path) -> Failure {
    let is_about_file = matches!(
        error,
        Error::Stream { .. }
            | Error::NotASnapshot
            | Error::SnapshotVersion { .. }
            | Error::TruncatedStream { .. }
            | Error::DamagedStream { .. }
            | Error::WrongHash { .. }
            | Error::UnexpectedElement { .. }
            | Error::RootMismatch { .. }
    );

    let failure = Failure::from(error);
    if is_about_file { failure.about(&file.display().to_string()) } else { failure }
}

/// Refuses a directory with foreign content.
fn check_vacant(disk: &dyn Disk, dir: &Path) -> Result<(), Failure> {
    if disk.kind(dir).map_err(Error::from)?.is_some() {
        let entries = disk.list(dir).map_err(Error::from)?;
        // An import that was interrupted right at its start leaves its lock file.
        if let Some(entry) = entries.iter().find(|entry| entry.name != "lock") {
            let dir = dir.display();
            let name = &entry.name;
            let message = format!("{dir} is not a context store of Terrane: it has {name:?}");
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}

/// Opens the store in a directory; returns `None` if there is none, or an unfinished import.
fn existing(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Option<StoreReader>, Failure> {
    match StoreReader::open(Arc::clone(disk), dir, CACHE_BYTES) {
        Ok(reader) => Ok(Some(reader)),
        Err(Error::IncompleteImport { .. }) => Ok(None),
        Err(Error::NotFound { .. }) => check_vacant(disk.as_ref(), dir).map(|()| None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the options of a new store.
fn new_options() -> Options {
    Options::new(Arc::new(BtreeIndexes::default())).cache_bytes(CACHE_BYTES)
}

impl ExportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        match (&self.file, &self.to) {
            (Some(_), _) if self.locations.is_some() => {
                Err(Failure::usage("a file has no archive and no index; give --to DIR"))
            }
            (Some(file), _) => self.write_file(file, command),
            (None, Some(dir)) => self.make_store(dir, command),
            (None, None) => Err(Failure::usage("give FILE or --to DIR")),
        }
    }

    fn make_store(&self, dir: &Path, command: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let reader = open(&self.common.store)?;
        let (commit, _) = checkout(&reader, self.commit.as_deref())?;

        let disk = self.mode.disk()?;
        if existing(&disk, dir)?.is_some() {
            let message =
                format!("{} holds a store already; choose another directory", dir.display());
            return Err(Failure::usage(message));
        }

        let done = reader.export_store(&commit, disk, dir, &self.locations.over(new_options()))?;
        let report = Copied {
            commit: commit.to_base58(),
            to: dir.display().to_string(),
            elements: done.elements,
            store_bytes: store_bytes(dir)?,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let lines = [
            ("exported", format!("{} to {}", report.commit, report.to)),
            ("elements", grouped(report.elements)),
            ("store", bytes(report.store_bytes)),
            ("time", format!("{:.3} s", report.wall_s)),
        ];

        output::report(command, self.common.output.json, &report, &lines)
    }

    fn write_file(&self, path: &Path, command: &str) -> Result<(), Failure> {
        let output = Output::new(path, self.force, self.common.output.json)?.with_mode(self.mode);
        let started = Instant::now();
        let signals = output.interrupts();
        let reader = open(&self.common.store)?;
        let (commit, _) = checkout(&reader, self.commit.as_deref())?;
        let from = self.from.as_ref().map(|_| checkout(&reader, self.from.as_deref()));
        let from = from.transpose()?.map(|(from, _)| from);
        let bar = ByteBar::new("exporting", self.common.output.quiet);

        let export = |out: &mut dyn Write| match &from {
            Some(from) => reader.export_since(from, &commit, out),
            None => reader.export(&commit, out),
        };

        let done = output.export((bar, None), signals, export, |error| failure(error, path))?;
        let Some(Snapshot { elements, bytes: size, .. }) = done else { return Ok(()) };

        let report = Exported {
            commit: commit.to_base58(),
            from: from.map(|from| from.to_base58()),
            file: path.display().to_string(),
            elements,
            bytes: size,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let mut lines = vec![("exported", format!("{} to {}", report.commit, report.file))];
        lines.extend(report.from.iter().map(|from| ("without what is in", from.clone())));
        lines.extend([
            ("elements", grouped(elements)),
            ("bytes", bytes(size)),
            ("time", format!("{:.3} s", report.wall_s)),
        ]);

        output.report(command, &report, &output::aligned(&lines))
    }
}

impl ImportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let path = self.file.as_path();
        let dir = self.common.store.as_path();

        // A missing input is refused before a store is created for it.
        let mut input =
            BufReader::new(Input::open(path, ByteBar::new("importing", self.common.output.quiet))?);
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let reader = existing(&disk, dir)?;
        let created = reader.is_none();

        let failed = |error| failure(error, path);
        let branch = self.branch.as_ref().map(String::as_bytes);
        let (store, snapshot) = match reader {
            Some(reader) => {
                let options = options(&reader).import_elements_max(self.elements_max);
                let options = self.locations.over(options);
                drop(reader);
                let store = open_to_write(disk, dir, &options)?;
                let imported = match branch {
                    Some(branch) => store.import_to(branch, &mut input),
                    None => store.import(&mut input),
                };
                let imported = imported.or_else(|error| {
                    store.close()?;
                    Err(error)
                });
                (store, imported.map_err(failed)?)
            }
            None => {
                let options = new_options().import_elements_max(self.elements_max);
                let options = self.locations.over(options);
                let imported = match branch {
                    Some(branch) => Store::import_new_to(disk, dir, &options, branch, &mut input),
                    None => Store::import_new(disk, dir, &options, &mut input),
                };
                imported.map_err(failed)?
            }
        };

        drop(input);
        store.close()?;
        let report = Imported {
            commit: snapshot.commit.to_base58(),
            file: path.display().to_string(),
            elements: snapshot.elements,
            bytes: snapshot.bytes,
            created,
            branch: self.branch.clone(),
            store_bytes: store_bytes(dir)?,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let made = if created { "a new store" } else { "the store" };
        let mut lines =
            vec![("imported", format!("{} into {made} {}", report.commit, dir.display()))];
        lines.extend(report.branch.iter().map(|branch| ("branch", branch.clone())));

        lines.extend([
            ("elements", grouped(report.elements)),
            ("bytes", bytes(report.bytes)),
            ("store", bytes(report.store_bytes)),
            ("time", format!("{:.3} s", report.wall_s)),
        ]);

        output::report(command, self.common.output.json, &report, &lines)
    }
}

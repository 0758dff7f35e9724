//! `terrane context export` and `import`: commits as a file, which is that of
//! [`terrane::context`]'s snapshots, or as a store of their own.

use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::backends::BtreeIndexes;
use terrane::context::{Error, Hash, Options, Snapshot, Store, StoreReader};
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
  All commits since then, for a store that has that commit:
    terrane context export week.snapshot --since CoV8SQ --store /data/context
  That commit and all commits since then, for any store:
    terrane context export week.snapshot --since CoV8SQ --whole \\
      --store /data/context
  Two commits, of which the second one is mostly like the first one:
    terrane context export two.snapshot --commit CoV8SQ --commit main \\
      --store /data/context
  As a store of its own:
    terrane context export --to /data/copy --store /data/context

`export` works beside a process that has the store open. The export of the same commits is always \
the same bytes. After Ctrl-C nothing is left of a file; the next call begins an unfinished \
directory anew.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  Make a store of a snapshot:
    terrane context import tip.snapshot --store /data/new
  Add what is new since then, and call it `main`:
    terrane context import day-2.snapshot --store /data/new --branch main

The store is created if it is missing. `import` computes the hash of every object; all commits of \
the snapshot exist, durably, when all hashes are right. An error or Ctrl-C leaves none of them: in \
an existing store the objects read so far are garbage, which `terrane context gc` removes; an \
unfinished new store cannot be opened, and the next import begins it anew.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE", required_unless_present = "to")]
    file: Option<PathBuf>,
    /// Directory for a new store with these commits alone, instead of a file
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "from", "force"])]
    to: Option<PathBuf>,
    #[command(flatten)]
    locations: LocationArgs,
    /// Commit or branch, several times for several commits; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Vec<String>,
    /// Older commit whose objects at the same paths are left out; an import then needs that commit
    #[arg(long, value_name = "COMMIT")]
    from: Option<String>,
    /// Older commit: exports all commits from there to --commit; an import then needs that commit
    #[arg(long, value_name = "COMMIT", conflicts_with = "from")]
    since: Option<String>,
    /// Exports the commit of --since too, whole, so that an import needs no other commit
    #[arg(long, requires = "since")]
    whole: bool,
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
    /// Branch that is set to the commit, or to the last one of several
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
    commits: Vec<String>,
    from: Option<String>,
    file: String,
    elements: u64,
    bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Copied {
    commit: String,
    commits: Vec<String>,
    to: String,
    elements: u64,
    store_bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Imported {
    commit: String,
    commits: Vec<String>,
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

/// Returns hashes as text.
fn texts(commits: &[Hash]) -> Vec<String> {
    commits.iter().map(Hash::to_base58).collect()
}

/// Returns a line for each commit of a snapshot, oldest first; none if the snapshot has only one.
fn commit_lines(commits: &[String]) -> impl Iterator<Item = (&'static str, String)> + '_ {
    let several = if commits.len() > 1 { commits } else { &[] };
    several.iter().map(|commit| ("commit", commit.clone()))
}

/// Commits that an export takes.
struct Selection {
    commits: Vec<Hash>,
    /// Commit whose objects are left out.
    base: Option<Hash>,
}

impl ExportArgs {
    /// Finds the commits to export.
    fn select(&self, reader: &StoreReader) -> Result<Selection, Failure> {
        let find = |text: &String| Ok(checkout(reader, Some(text))?.0);
        let mut commits: Vec<Hash> =
            self.commit.iter().map(find).collect::<Result<_, Failure>>()?;
        if commits.is_empty() {
            commits.push(checkout(reader, None)?.0);
        }

        let Some(since) = self.since.as_ref().map(find).transpose()? else {
            let base = self.from.as_ref().map(find).transpose()?;
            return Ok(Selection { commits, base });
        };
        let [tip] = commits[..] else {
            return Err(Failure::usage("--since takes one --commit, the end of the range"));
        };
        let between = reader.commits_between(&since, &tip)?.commits;
        if between.is_empty() && !self.whole {
            let since = since.to_base58();
            let message = format!("{} has no commit since {since}", tip.to_base58());
            return Err(Failure::usage(message));
        }

        let first = self.whole.then_some(since);
        let rest = between.iter().rev().map(|commit| commit.hash);
        let commits = first.into_iter().chain(rest).collect();
        Ok(Selection { commits, base: (!self.whole).then_some(since) })
    }

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
        let Selection { commits, base } = self.select(&reader)?;
        if base.is_some() {
            return Err(Failure::usage("a new store has no older commit; give --whole"));
        }

        let disk = self.mode.disk()?;
        if existing(&disk, dir)?.is_some() {
            let message =
                format!("{} holds a store already; choose another directory", dir.display());
            return Err(Failure::usage(message));
        }

        let options = self.locations.over(new_options());
        let done = reader.export_commits_store(&commits, disk, dir, &options)?;
        let report = Copied {
            commit: done.commit.to_base58(),
            commits: texts(&done.commits),
            to: dir.display().to_string(),
            elements: done.elements,
            store_bytes: store_bytes(dir)?,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let mut lines = vec![("exported", format!("{} to {}", report.commit, report.to))];
        lines.extend(commit_lines(&report.commits));
        lines.extend([
            ("elements", grouped(report.elements)),
            ("store", bytes(report.store_bytes)),
            ("time", format!("{:.3} s", report.wall_s)),
        ]);

        output::report(command, self.common.output.json, &report, &lines)
    }

    fn write_file(&self, path: &Path, command: &str) -> Result<(), Failure> {
        let output = Output::new(path, self.force, self.common.output.json)?.with_mode(self.mode);
        let started = Instant::now();
        let signals = output.interrupts();
        let reader = open(&self.common.store)?;
        let Selection { commits, base } = self.select(&reader)?;
        let bar = ByteBar::new("exporting", self.common.output.quiet);

        let export = |out: &mut dyn Write| match &base {
            Some(base) => reader.export_commits_since(base, &commits, out),
            None => reader.export_commits(&commits, out),
        };

        let done = output.export((bar, None), signals, export, |error| failure(error, path))?;
        let Some(Snapshot { commit, commits, elements, bytes: size }) = done else {
            return Ok(());
        };

        let report = Exported {
            commit: commit.to_base58(),
            commits: texts(&commits),
            from: base.map(|base| base.to_base58()),
            file: path.display().to_string(),
            elements,
            bytes: size,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let mut lines = vec![("exported", format!("{} to {}", report.commit, report.file))];
        lines.extend(commit_lines(&report.commits));
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
            commits: texts(&snapshot.commits),
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
        lines.extend(commit_lines(&report.commits));
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

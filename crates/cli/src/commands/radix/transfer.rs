//! `terrane radix export` and `import`: files of one version of a tree, or of all, between stores
//! and back-ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::radix::{self, ExchangeError, Root};

use super::{CommonArgs, RootArgs, TreeArgs, check_replay, find_root, number};
use crate::stores::back_ends::{BackEndArg, DurabilityArg};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::{Input, ModeArgs, Output};
use crate::ui::text::{count_of, grouped};

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  terrane radix export tip.radix --store /data/radix
  terrane radix export - --store /data/radix --root 4c5116ae |
    ssh there 'cat > tip.radix'

  With all versions, their metadata, and what each was made of:
    terrane radix export all.radix --all --store /data/radix

The same state gives the same bytes from every store and back-end.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  Into a new store:
    terrane radix import tip.radix --store /data/copy --backend lmdb
  All versions of a tree, from an export with --all:
    terrane radix import all.radix --store /data/copy
  Into a tree of a store that is there, after the versions that it has:
    terrane radix import tip.radix --store /data/radix --tree restored

`import` computes all roots anew; the store changes only if they are those in the file.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    root: RootArgs,
    /// Writes all versions of the tree, each as the difference from its parent
    #[arg(long, conflicts_with = "root")]
    all: bool,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File to read; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the tree that gets the versions; created if it is missing
    #[arg(long, value_name = "NAME", default_value = "state")]
    tree: String,
    /// Back-end of a new store; lsm if it is left out
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<BackEndArg>,
    /// Durability of the result when the command ends
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = DurabilityArg::Each)]
    durability: DurabilityArg,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Serialize)]
struct Written {
    tree: String,
    root: Option<String>,
    versions: u64,
    file: String,
    values: u64,
    bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Read {
    tree: String,
    root: String,
    version: Option<u64>,
    versions: u64,
    file: String,
    nodes: u64,
    bytes: u64,
    wall_s: f64,
}

/// Returns the failure of a transfer; a fault of the stream names the file.
fn failure(error: ExchangeError, file: &Path) -> Failure {
    match error {
        ExchangeError::Store(error) => Failure::from(*error),
        error => Failure::exchange(&error).about(&file.display().to_string()),
    }
}

impl ExportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let output =
            Output::new(&self.file, self.force, self.common.output.json)?.with_mode(self.mode);
        let started = Instant::now();
        let signals = output.interrupts();
        let store = self.common.open_to_read()?;
        let tree = self.tree.find(&store)?;
        let named = || find_root(&tree, self.root.root.as_deref());
        let root = if self.all { None } else { Some(named()?) };
        let bar = ByteBar::new("exporting", self.common.output.quiet);

        let export = |out: &mut dyn Write| match &root {
            Some(root) => tree.export(root, out).map(|done| (1, done.values, done.bytes)),
            None => tree.export_all(out).map(|done| (done.versions, done.changes, done.bytes)),
        };

        let to_failure = |error| failure(error, &self.file);
        let done = output.export((bar, None), signals, export, to_failure);
        let closed = store.close();
        let done = done?;
        closed?;
        let Some((versions, values, size)) = done else { return Ok(()) };

        let report = Written {
            tree: tree.name().to_owned(),
            root: root.map(|root| root.to_string()),
            versions,
            file: self.file.display().to_string(),
            values,
            bytes: size,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let what = match &report.root {
            Some(root) => root.clone(),
            None => count_of(versions, "version", "versions"),
        };

        let lines = [
            ("exported", format!("{what} to {}", report.file)),
            (if self.all { "changes" } else { "values" }, grouped(values)),
            ("bytes", bytes(size)),
            ("time", format!("{:.3} s", report.wall_s)),
        ];

        output.report(command, &report, &output::aligned(&lines))
    }
}

impl ImportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Instant::now();

        // A missing input is refused before a store is created for it.
        let mut input =
            Input::open(&self.file, ByteBar::new("importing", self.common.output.quiet))?;
        let opening = self.common.servers.opening(self.backend, self.durability);
        let store = opening.open_or_create(&self.common.store)?;
        check_replay(&store)?;
        let is_new = matches!(store.tree(&self.tree), Err(radix::Error::UnknownTree { .. }));
        let tree = store.tree_or_create(&self.tree)?;
        let imported = tree.import_all(&mut input);
        let done = input.close();

        // The error of the import is reported, not that of cleaning up.
        let is_over = imported.is_err() && is_new;
        let left = if is_over { store.delete_tree(&self.tree).map(drop) } else { Ok(()) };
        let closed = store.close();

        let imported = imported.map_err(|error| {
            let failure = failure(error, &self.file);
            match left {
                Ok(()) => failure,
                Err(left) => {
                    failure.with_note(&format!("tree {:?}, empty, is left: {left}", self.tree))
                }
            }
        })?;

        closed?;
        let last = imported.last();
        let report = Read {
            tree: self.tree.clone(),
            root: last.map_or(Root::EMPTY, |last| last.root).to_string(),
            version: last.and_then(|last| last.version).map(number),
            versions: imported.iter().filter(|one| one.version.is_some()).count() as u64,
            file: self.file.display().to_string(),
            nodes: imported.iter().map(|one| one.added).sum(),
            bytes: done,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let what = match report.versions {
            0 | 1 => report.root.clone(),
            several => count_of(several, "version", "versions"),
        };

        let lines = [
            ("imported", format!("{what} into tree {}", report.tree)),
            ("new nodes", grouped(report.nodes)),
            ("bytes", bytes(report.bytes)),
            ("time", format!("{:.3} s", report.wall_s)),
        ];

        output::report(command, self.common.output.json, &report, &lines)
    }
}

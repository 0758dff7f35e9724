//! `terrane snapshot`: lists, saves, deletes, exports and imports the snapshots of a store.
//!
//! # JSON
//!
//! Times are RFC 3339 in UTC; digests are lower-case hexadecimal.
//!
//! | command               | fields                                                                     |
//! |-----------------------|----------------------------------------------------------------------------|
//! | `list`                | `snapshots`: list of `name`, and `label`, `saved`, `format_version`, `runs`, `stored_entries` (in all runs together: every stored value of a key and every tombstone is one, so there are more than live keys), `tombstones` (how many of them), `bytes`, which are null if it is damaged, and all but `format_version` if this program does not read that one; `damage`: list of texts, and `ok` is false, with exit code 1, if it is not empty |
//! | `save`                | `name`, `table`, `label`                                                   |
//! | `rename`              | `from`, `to`                                                               |
//! | `delete`              | `name`, `deleted` (false only with `--if-exists`)                          |
//! | `export --to`         | `name`, `to`, `as`, `files_copied`, `bytes_copied`, `files_shared` (there already), `bytes_shared`, `files_rebuilt` (of those copied, for a store with another salt), `wall_s` |
//! | `export --canonical`  | `name`, `file`, `count`, `digest`, `bytes`, `wall_s`                       |
//! | `import --from`       | `name`, `from`, `as`, `files_copied`, `bytes_copied`, `files_rebuilt`, `wall_s` |
//! | `import --canonical`  | `file`, `as`, `label`, `count`, `digest`, `bytes`, `wall_s`                |

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::io::files::create_parents;
use terrane::lsm::inspect::SessionInfo;
use terrane::lsm::{CanonicalSummary, Error, SnapshotName, SnapshotPlace, TableConfig, TableName};

use crate::commands::kv::MemoryArgs;
use crate::stores::listed::Sums;
use crate::stores::open::{
    Opening, check_snapshot, check_snapshot_is_new, check_table, has_snapshot, inspect_store,
    is_same, open, open_or_make, open_tables_with, open_to_read_within,
};
use crate::stores::version_ref::snapshot_name;
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::{Input, ModeArgs, Output};
use crate::ui::text::{count_of, grouped, hex, table, time};

/// Sub-commands of `terrane snapshot`.
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    /// Lists the snapshots of a store; works beside a process that has it open
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Saves a named table as a snapshot, which never changes
    #[command(after_help = SAVE_EXAMPLES)]
    Save(SaveArgs),
    /// Renames a snapshot
    #[command(after_help = RENAME_EXAMPLES)]
    Rename(RenameArgs),
    /// Deletes a snapshot, and the files that only it needs
    #[command(aliases = ["drop", "remove"], after_help = DELETE_EXAMPLES)]
    Delete(DeleteArgs),
    /// Copies a snapshot to another store, or writes its content as one canonical file
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Imports a snapshot from another store, or the content of a canonical file
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane snapshot list --store /data/utxo
  terrane snapshot save monday --store /data/ledger --table accounts
  terrane snapshot export tip --store /data/utxo --to /backup/utxo
  terrane snapshot import tip --store /data/new --from /backup/utxo
  terrane snapshot export tip --store /data/utxo --canonical tip.canonical";

const LIST_EXAMPLES: &str = "\
Examples:
  terrane snapshot list --store /data/utxo
  terrane snapshot list --store /data/utxo --json

STORED ENTRIES counts the entries of all runs, not live keys: every stored value of a key is an \
entry, and so is every tombstone, which marks a deletion. `terrane inspect` shows the levels and \
runs of a snapshot.";

const SAVE_EXAMPLES: &str = "\
Examples:
  terrane snapshot save monday --store /data/ledger
  terrane snapshot save monday --store /data/ledger --table accounts \\
    --label ledger

A snapshot copies nothing: it shares its files with the table. It is durable when the command \
ends. A program that opens the snapshot must give its label; labels are for programs that share \
one store.";

const RENAME_EXAMPLES: &str = "\
Example:
  terrane snapshot rename tip before-upgrade --store /data/utxo";

const DELETE_EXAMPLES: &str = "\
Examples:
  terrane snapshot delete before-upgrade --store /data/utxo
  In a script that may have been cut short:
    terrane snapshot delete before-upgrade --store /data/utxo --if-exists";

const EXPORT_EXAMPLES: &str = "\
Examples:
  Make a backup; what is there already from an earlier one is not copied again:
    terrane snapshot export tip --store /data/utxo --to /backup/utxo \\
      --as tip-monday
  Write the content as one file, which is the same for equal contents:
    terrane snapshot export tip --store /data/utxo --canonical tip.canonical
  Compare its digest with somebody else's, without keeping the file:
    terrane snapshot export tip --store /data/utxo --canonical - > /dev/null
  The same in little memory:
    terrane snapshot export tip --store /data/utxo --canonical - \\
      --memory-budget 16MiB > /dev/null

The directory of --to is a store: inspect, verify and open it like any other. It is created if it \
is missing. Copies share nothing with their originals. `export` works beside a process that has \
the store open.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  Restore a snapshot from a backup; the store is created if it is missing:
    terrane snapshot import tip-monday --store /data/utxo --from /backup/utxo \\
      --as tip
  Take in a canonical file:
    terrane snapshot import --canonical tip.canonical --store /data/utxo \\
      --as tip --label utxo

`import` checks every page, every key, and that filters and indexes lead to every key; of a \
canonical file it checks order, count and digest. After a failure nothing is left of the attempt. \
After Ctrl-C an empty store may be left, if the command was creating one.";

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SaveArgs {
    /// Name of the new snapshot
    #[arg(value_name = "NAME", value_parser = snapshot_name)]
    name: SnapshotName,
    /// Name of the table
    #[arg(long, value_name = "NAME", default_value = "main", value_parser = args::table_name)]
    table: TableName,
    /// Label of the new snapshot
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// Name of the snapshot
    #[arg(value_name = "FROM", value_parser = snapshot_name)]
    from: SnapshotName,
    /// New name
    #[arg(value_name = "TO", value_parser = snapshot_name)]
    to: SnapshotName,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Name of the snapshot
    #[arg(value_name = "NAME", value_parser = snapshot_name)]
    name: SnapshotName,
    /// Succeeds if there is no such snapshot
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Name of the snapshot
    #[arg(value_name = "NAME", value_parser = snapshot_name)]
    name: SnapshotName,
    /// Directory of the store that gets the copy
    #[arg(long, value_name = "DIR", required_unless_present = "canonical")]
    to: Option<PathBuf>,
    /// Name of the copy; the same name if it is left out
    #[arg(long = "as", value_name = "NAME", value_parser = snapshot_name, requires = "to")]
    name_there: Option<SnapshotName>,
    /// File for the content in canonical form, instead of a copy; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    canonical: Option<PathBuf>,
    /// Replaces the file if it exists
    #[arg(long, requires = "canonical")]
    force: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Name of the snapshot in the other store
    #[arg(value_name = "NAME", value_parser = snapshot_name, required_unless_present = "canonical")]
    name: Option<SnapshotName>,
    /// Directory of the other store, which no other process may have open
    #[arg(long, value_name = "DIR", required_unless_present = "canonical")]
    from: Option<PathBuf>,
    /// Name of the imported snapshot; the same name if it is left out
    #[arg(
        long = "as",
        value_name = "NAME",
        value_parser = snapshot_name,
        required_unless_present = "from"
    )]
    name_here: Option<SnapshotName>,
    /// Canonical file to import, instead of a store; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "name"])]
    canonical: Option<PathBuf>,
    /// Label of the new snapshot
    #[arg(long, value_name = "TEXT", default_value = "", conflicts_with = "from")]
    label: String,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    common: StoreArgs,
}

impl Snapshot {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::List(_) => "snapshot list",
            Self::Save(_) => "snapshot save",
            Self::Rename(_) => "snapshot rename",
            Self::Delete(_) => "snapshot delete",
            Self::Export(_) => "snapshot export",
            Self::Import(_) => "snapshot import",
        }
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::List(args) => return args.run(),
            Self::Save(args) => args.run()?,
            Self::Rename(args) => args.run()?,
            Self::Delete(args) => args.run()?,
            Self::Export(args) => match (&args.to, &args.canonical) {
                (Some(dir), _) => args.export_to(dir)?,
                (None, Some(file)) => args.write_file(file)?,
                (None, None) => return Err(Failure::usage("give --to DIR or --canonical FILE")),
            },
            Self::Import(args) => {
                match (&args.name, &args.from, &args.canonical, &args.name_here) {
                    (Some(name), Some(dir), _, _) => args.import_from(name, dir)?,
                    (_, _, Some(file), Some(name)) => args.read_file(file, name)?,
                    _ => {
                        return Err(Failure::usage(
                            "give NAME --from DIR, or --canonical FILE --as NAME",
                        ));
                    }
                }
            }
        }

        Ok(0)
    }
}

#[derive(Serialize)]
struct Listed {
    snapshots: Vec<ListedSnapshot>,
    damage: Vec<String>,
}

/// Row of a snapshot. A damaged snapshot has only its name; one of an unknown format version has
/// its name and the version.
#[derive(Serialize, Default)]
struct ListedSnapshot {
    name: String,
    label: Option<String>,
    saved: Option<String>,
    format_version: Option<u32>,
    runs: Option<u64>,
    stored_entries: Option<u64>,
    tombstones: Option<u64>,
    bytes: Option<u64>,
}

impl Listed {
    fn new(info: SessionInfo) -> Self {
        let mut listed = Self { snapshots: Vec::new(), damage: Vec::new() };
        for (name, info) in info.snapshots {
            let snapshot = match info {
                Err(Error::UnknownVersion { found, .. }) => {
                    let format_version = Some(found);
                    ListedSnapshot { name, format_version, ..ListedSnapshot::default() }
                }
                Err(error) => {
                    listed.damage.push(error.to_string());
                    ListedSnapshot { name, ..ListedSnapshot::default() }
                }
                Ok(info) => {
                    let sums = Sums::of(&info);
                    ListedSnapshot {
                        name,
                        label: Some(info.label.clone()),
                        saved: Some(time(info.created_ns)),
                        format_version: Some(info.version),
                        runs: Some(sums.runs),
                        stored_entries: Some(sums.entries),
                        tombstones: Some(sums.tombstones),
                        bytes: Some(sums.bytes),
                    }
                }
            };

            listed.snapshots.push(snapshot);
        }

        listed
    }

    fn text(&self) -> String {
        let names =
            ["SNAPSHOT", "SAVED", "LABEL", "RUNS", "STORED ENTRIES", "OF THEM TOMBSTONES", "BYTES"];

        let mut rows = vec![names.map(str::to_owned).to_vec()];
        for snapshot in &self.snapshots {
            let number = |number: Option<u64>| number.map(grouped).unwrap_or_default();
            rows.push(vec![
                snapshot.name.clone(),
                match (&snapshot.saved, snapshot.format_version) {
                    (Some(saved), _) => saved.clone(),
                    (None, Some(version)) => format!("format version {version}"),
                    (None, None) => "damaged".to_owned(),
                },
                snapshot.label.clone().unwrap_or_default(),
                number(snapshot.runs),
                number(snapshot.stored_entries),
                number(snapshot.tombstones),
                snapshot.bytes.map(bytes).unwrap_or_default(),
            ]);
        }

        if self.snapshots.is_empty() { "no snapshots".to_owned() } else { table(3, &rows) }
    }
}

impl ListArgs {
    fn run(&self) -> Result<u8, Failure> {
        let StoreArgs { store, output } = &self.common;
        let info = inspect_store(store)?;
        let listed = Listed::new(info);
        let failure = (!listed.damage.is_empty()).then(|| Failure::check(listed.damage.join("; ")));

        output::checked("snapshot list", output.json, &listed, &listed.text(), failure.as_ref())
    }
}

#[derive(Serialize)]
struct Saved<'a> {
    name: &'a str,
    table: &'a str,
    label: &'a str,
}

impl SaveArgs {
    fn run(&self) -> Result<(), Failure> {
        check_table(&self.common.store, &self.table)?;
        check_snapshot_is_new(&self.common.store, &self.name)?;
        let opening = Opening { memory_budget: self.memory.budget(), ..Opening::default() };
        let store = open_tables_with(&self.common.store, false, opening)?;
        store.table(&self.table)?.save_snapshot(&self.name, &self.label)?;
        store.close()?;
        let saved =
            Saved { name: self.name.as_str(), table: self.table.as_str(), label: &self.label };
        let lines = [("saved", format!("{} of table {}", self.name, self.table))];
        output::report("snapshot save", self.common.output.json, &saved, &lines)
    }
}

impl RenameArgs {
    fn run(&self) -> Result<(), Failure> {
        check_snapshot(&self.common.store, &self.from)?;
        check_snapshot_is_new(&self.common.store, &self.to)?;
        let session = open(&self.common.store)?;
        session.rename_snapshot(&self.from, &self.to)?;
        session.close()?;
        let names = (self.from.as_str(), self.to.as_str());
        output::renamed("snapshot rename", self.common.output.json, names)
    }
}

#[derive(Serialize)]
struct Deleted<'a> {
    name: &'a str,
    deleted: bool,
}

impl DeleteArgs {
    fn run(&self) -> Result<(), Failure> {
        if !self.if_exists {
            check_snapshot(&self.common.store, &self.name)?;
        }

        let session = open(&self.common.store)?;
        let deleted = if self.if_exists {
            session.delete_snapshot_if_exists(&self.name)?
        } else {
            session.delete_snapshot(&self.name)?;
            true
        };

        session.close()?;
        let report = Deleted { name: self.name.as_str(), deleted };
        let lines = [output::deleted(deleted, self.name.as_str())];

        output::report("snapshot delete", self.common.output.json, &report, &lines)
    }
}

#[derive(Serialize)]
struct Exported<'a> {
    name: &'a str,
    to: String,
    r#as: &'a str,
    files_copied: u64,
    bytes_copied: u64,
    files_shared: u64,
    bytes_shared: u64,
    files_rebuilt: u64,
    wall_s: f64,
}

/// Lines of the report about the copied files, for people.
fn copied(files: u64, size: u64) -> String {
    format!("{}, {}", count_of(files, "file", "files"), bytes(size))
}

impl ExportArgs {
    fn export_to(&self, dir: &Path) -> Result<(), Failure> {
        if is_same(&self.common.store, dir) {
            return Err(Failure::usage("--to and --store are the same store"));
        }

        let started = Instant::now();
        let reader = open_to_read_within(&self.common.store, self.memory.budget())?;
        let session = reader.session();

        if session.snapshot_exists(&self.name)? {
            create_parents(self.mode.disk()?.as_ref(), dir).map_err(Error::from)?;
        }

        let name_there = self.name_there.as_ref().unwrap_or(&self.name);
        let place = SnapshotPlace::new(dir, name_there.clone()).on_disk(self.mode.disk()?);
        let mut bar = ByteBar::new("exporting", self.common.output.quiet);
        let mut progress = |done, total| bar.set(done, total);
        let report = session.export_snapshot_to(&self.name, &place, &mut progress)?;
        drop(bar);

        let exported = Exported {
            name: self.name.as_str(),
            to: dir.display().to_string(),
            r#as: name_there.as_str(),
            files_copied: report.files_copied,
            bytes_copied: report.bytes_copied,
            files_shared: report.files_shared,
            bytes_shared: report.bytes_shared,
            files_rebuilt: report.files_rebuilt,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let lines = [
            ("exported", format!("{} to {} as {name_there}", self.name, dir.display())),
            ("copied", copied(report.files_copied, report.bytes_copied)),
            ("there already", copied(report.files_shared, report.bytes_shared)),
        ];

        output::report("snapshot export", self.common.output.json, &exported, &lines)
    }

    fn write_file(&self, path: &Path) -> Result<(), Failure> {
        let output = Output::new(path, self.force, self.common.output.json)?.with_mode(self.mode);
        let started = Instant::now();
        let signals = output.interrupts();
        let reader = open_to_read_within(&self.common.store, self.memory.budget())?;
        let session = reader.session();
        let info = session.snapshot_info(&self.name)?;
        let bar = ByteBar::new("exporting", self.common.output.quiet);
        let export = |out: &mut dyn Write| session.export_canonical(&self.name, out);
        let to_failure = |error| Failure::with_file(error, path);
        let summary = output.export((bar, Some(info.data_bytes)), signals, export, to_failure)?;
        let Some(summary) = summary else { return Ok(()) };

        let file = path.display().to_string();
        let name = self.name.as_str();
        let wall_s = started.elapsed().as_secs_f64();
        let lines = summary_lines("exported", format!("{name} to {file}"), &summary);
        let exported = ExportedCanonical { name, file, summary: Summary::new(&summary), wall_s };

        output.report("snapshot export", &exported, &output::aligned(&lines))
    }
}

#[derive(Serialize)]
struct Summary {
    count: u64,
    digest: String,
    bytes: u64,
}

impl Summary {
    fn new(summary: &CanonicalSummary) -> Self {
        let CanonicalSummary { count, digest, bytes, .. } = summary;
        Self { count: *count, digest: hex(digest), bytes: *bytes }
    }
}

fn summary_lines(
    done: &'static str,
    what: String,
    summary: &CanonicalSummary,
) -> [(&'static str, String); 4] {
    [
        (done, what),
        ("count", summary.count.to_string()),
        ("digest", hex(&summary.digest)),
        ("bytes", bytes(summary.bytes)),
    ]
}

#[derive(Serialize)]
struct ExportedCanonical<'a> {
    name: &'a str,
    file: String,
    #[serde(flatten)]
    summary: Summary,
    wall_s: f64,
}

#[derive(Serialize)]
struct Imported<'a> {
    name: &'a str,
    from: String,
    r#as: &'a str,
    files_copied: u64,
    bytes_copied: u64,
    files_rebuilt: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct ImportedCanonical<'a> {
    file: String,
    r#as: &'a str,
    label: &'a str,
    #[serde(flatten)]
    summary: Summary,
    wall_s: f64,
}

impl ImportArgs {
    fn import_from(&self, name: &SnapshotName, dir: &Path) -> Result<(), Failure> {
        if !dir.exists() {
            return Err(Failure::usage(format!("{} does not exist", dir.display())));
        }

        if is_same(&self.common.store, dir) {
            return Err(Failure::usage("--from and --store are the same store"));
        }

        let started = Instant::now();
        let name_here = self.name_here.as_ref().unwrap_or(name);

        if has_snapshot(dir, name) == Some(true) {
            check_snapshot_is_new(&self.common.store, name_here)?;
        }

        let place = SnapshotPlace::new(dir, name.clone());
        let mut bar = ByteBar::new("importing", self.common.output.quiet);

        let mut progress = |done, total| bar.set(done, total);
        let report = open_or_make(&self.common.store, self.memory.budget(), |session| {
            Ok(session.import_snapshot_from(&place, name_here, &mut progress)?)
        })?;
        drop(bar);

        let imported = Imported {
            name: name.as_str(),
            from: dir.display().to_string(),
            r#as: name_here.as_str(),
            files_copied: report.files_copied,
            bytes_copied: report.bytes_copied,
            files_rebuilt: report.files_rebuilt,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let lines = [
            ("imported", format!("{name} from {} as {name_here}", dir.display())),
            ("copied", copied(report.files_copied, report.bytes_copied)),
        ];

        output::report("snapshot import", self.common.output.json, &imported, &lines)
    }

    fn read_file(&self, path: &Path, name: &SnapshotName) -> Result<(), Failure> {
        let started = Instant::now();

        // A missing input is refused before a store is created for it.
        let mut input = Input::open(path, ByteBar::new("importing", self.common.output.quiet))?;
        check_snapshot_is_new(&self.common.store, name)?;
        let summary = open_or_make(&self.common.store, self.memory.budget(), |session| {
            if session.snapshot_exists(name)? {
                return Err(Error::SnapshotExists { name: name.to_string() }.into());
            }
            let imported = session.import_canonical(&mut input, &TableConfig::default());
            let (table, summary) = imported.map_err(|error| Failure::with_file(error, path))?;
            table.save_snapshot(name, &self.label)?;
            Ok(summary)
        })?;

        input.close();
        let imported = ImportedCanonical {
            file: path.display().to_string(),
            r#as: name.as_str(),
            label: &self.label,
            summary: Summary::new(&summary),
            wall_s: started.elapsed().as_secs_f64(),
        };

        let lines = summary_lines("imported", format!("{} as {name}", path.display()), &summary);

        output::report("snapshot import", self.common.output.json, &imported, &lines)
    }
}

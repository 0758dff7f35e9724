//! `terrane context`: commits and trees of a context store.
//!
//! # JSON
//!
//! | command | fields                                                                           |
//! |---------|----------------------------------------------------------------------------------|
//! | `log`   | `commits`: list of `hash`, `root_hex` (hash of the root tree), `parents`, `date_s` (since 1970), `author`, `message` (as keys and values are written), `branches` |
//! | `ls`    | `commit`, `path`, `entries`: list of `step`, `kind` (`value`, `directory`), and with `--long` `bytes` of a value or `children` of a directory |
//! | `show`  | `commit`, `path`, `bytes`, `hash_hex`, `value_hex`                               |
//! | `diff`  | `from`, `to`, `below`, `added`, `removed`, `changed` (counts), and without `--summary` `changes`: list of `path`, `change` (`added`, `removed`, `changed`) |
//! | `dump-paths` | `commit`, `path`, `values`: list of `path`, and with `--long` `hash_hex`, `bytes` |
//! | `prove` | `commit`, `root_hex`, `file`, `bytes`, `answers`: list of `question` (`find`, `mem`, `mem_tree`, `list`, `length`), `path`, and what was found: `found`, `bytes` and `value_hex` of a value, `steps` of a list, `children` |
//! | `verify-proof` | `root_hex`, `file`, `bytes`, `hidden` (parts that are only hashes); with questions `answers` as above, without `values`: list of `path`, `bytes`, `value_hex`, and `directories`: list of `path`, `children` |
//! | `export` | `commit` (the last one), `commits` (all, parents first), `from` (the commit that an import needs, or null), `file`, `elements`, `bytes`, `wall_s`; with `--to` `commit`, `commits`, `to`, `elements`, `store_bytes`, `wall_s` |
//! | `import` | `commit` (the last one), `commits` (all, parents first), `file`, `elements`, `bytes`, `created` (whether a store was made), `branch`, `store_bytes`, `wall_s` |
//! | `split` | `chunks`                                                                         |
//! | `gc`    | `kept`, `collected` (commits), `chunks`, `compacted`, `removed`, `live_bytes`, `freed_bytes`, `archived_bytes` (moved to a volume), `put_off` (chunks whose garbage stays, as the disk is full), `store_bytes`, `wall_s` |
//! | `gen-trace` | `file`, `profile`, `seed`, `values`, `blocks`, `bytes`, `last_commit` (of the last block that is not abandoned), `wall_s` |
//! | `move` | `archive`, `index` (directories), `index_entries` (null if the index did not move), `wall_s` |
//! | `volume add` | `path`, `volumes` (how many there are)                                     |
//! | `volume list` | `volumes`: list of `path`, `bytes` (null for one that is missing)         |

mod compare;

mod generate;

mod relocate;

mod proofs;

mod transfer;

mod volume;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::backends::BtreeIndexes;
use terrane::context::{
    self, Commit, Context, GcPace, GcProgress, Hash, Kind, Options, Recovery, Retain, Store,
    StoreReader, Tree,
};
use terrane::io::{Disk, RealDisk};
use terrane_bench::instruments::meter;
use terrane_replay::monitor::Monitor as _;

use self::compare::{DiffArgs, DumpArgs};
use self::generate::GenTraceArgs;
use self::proofs::{ProveArgs, VerifyProofArgs};
use self::relocate::MoveArgs;
use self::transfer::{ExportArgs, ImportArgs};
use self::volume::VolumeCommand;
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output::{self, bytes};
use crate::ui::progress::{ByteBar, Progress};
use crate::ui::text::{count_of, hex, table, time};

/// Bytes of the cache of decoded objects.
const CACHE_BYTES: usize = 64 << 20;

/// Children of a directory that one call lists.
pub(crate) const PAGE: usize = 1024;

/// Path of the root.
pub(crate) const ROOT: [&[u8]; 0] = [];

/// Sub-commands of `terrane context`.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Lists commits, the newest first; works beside a process that has the store open
    #[command(after_help = LOG_EXAMPLES)]
    Log(LogArgs),
    /// Lists a directory of a commit; works beside a process that has the store open
    #[command(alias = "list", after_help = LS_EXAMPLES)]
    Ls(LsArgs),
    /// Prints a value of a commit; works beside a process that has the store open
    #[command(alias = "get", after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Lists the values that differ between two commits; works beside a process that has the store
    /// open
    #[command(after_help = compare::DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Prints the paths of all values of a commit; works beside a process that has the store open
    #[command(alias = "scan", after_help = compare::DUMP_EXAMPLES)]
    DumpPaths(DumpArgs),
    /// Writes a proof of the content of paths of a commit; works beside a process that has the
    /// store open
    #[command(after_help = proofs::PROVE_EXAMPLES)]
    Prove(ProveArgs),
    /// Checks a proof without a store, and prints the facts that it proves
    #[command(after_help = proofs::VERIFY_EXAMPLES)]
    VerifyProof(VerifyProofArgs),
    /// Writes a commit to a file or into a new store; works beside a process that has the store
    /// open
    #[command(after_help = transfer::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Reads a commit from a file and checks every hash
    #[command(after_help = transfer::IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Removes old commits and all objects that only they reach
    #[command(after_help = GC_EXAMPLES)]
    Gc(GcArgs),
    /// Adds and lists volumes: directories to which collections move old commits, which stay
    /// readable
    #[command(subcommand, after_help = volume::EXAMPLES)]
    Volume(VolumeCommand),
    /// Moves the archive or the index to another directory, for instance on another disk
    #[command(after_help = relocate::EXAMPLES)]
    Move(MoveArgs),
    /// Writes a generated history as a trace for `terrane replay irmin-trace`
    #[command(after_help = generate::EXAMPLES)]
    GenTrace(GenTraceArgs),
    /// Begins a new chunk, so that a later collection can remove the older chunks whole
    #[command(after_help = SPLIT_EXAMPLES)]
    Split(SplitArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane context log --store /data/context --limit 10
  terrane context ls data/contracts --store /data/context
  terrane context show data/version --store /data/context --commit main
  terrane context diff CoV8SQ main --store /data/context
  terrane context prove version.proof --find data/version --store /data/context
  terrane context export tip.snapshot --store /data/context
  terrane context gc --newest 1000 --store /data/context
  terrane context gen-trace lima.repbt

A commit is given by its hash (Co...), by the beginning of the hash, or by a branch. Steps of a \
path are separated by `/`. A step that is not text, or contains a `/`, is written as `hex:` and \
hexadecimal digits.";

const LOG_EXAMPLES: &str = "\
Example:
  terrane context log --store /data/context --limit 10 --json";

const LS_EXAMPLES: &str = "\
Examples:
  terrane context ls --store /data/context
  terrane context ls data/contracts/index --long --limit 20 \\
    --store /data/context --commit main";

const SHOW_EXAMPLES: &str = "\
Examples:
  terrane context show data/version --store /data/context
  terrane context show protocol --store /data/context --commit CoV8SQ --json";

const GC_EXAMPLES: &str = "\
Examples:
  Keep the 1,000 newest commits, and one more:
    terrane context gc --newest 1000 --keep CoV8SQ --store /data/context
  Keep a commit and all later ones:
    terrane context gc --since CoV8SQ --store /data/context
  Keep all commits, and remove objects that no commit reaches:
    terrane context gc --everything --store /data/context

A collection always keeps the heads of branches. In a store with an archive (`terrane context \
volume add`) all commits stay readable: a collection moves the old ones to the last volume. After \
Ctrl-C the store is unchanged, or part of the garbage is left for the next collection.";

const SPLIT_EXAMPLES: &str = "\
Example:
  terrane context split --store /data/context

After a split right behind a commit that is kept, a later collection of older commits removes \
whole files.";

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Maximum number of commits to list
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Path of the directory; the root if it is left out
    #[arg(value_name = "PATH", default_value = "")]
    path: String,
    /// Commit or branch; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    /// Adds the bytes of values and the numbers of children, which reads each of them
    #[arg(long)]
    long: bool,
    /// Maximum number of rows to list
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Path of the value
    #[arg(value_name = "PATH")]
    path: String,
    /// Commit or branch; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = false, args = ["newest", "since", "everything"])]
pub(crate) struct GcArgs {
    /// Keeps this number of the newest commits
    #[arg(long, value_name = "N", value_parser = args::count)]
    newest: Option<u64>,
    /// Keeps this commit and all later ones
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Keeps all commits
    #[arg(long)]
    everything: bool,
    /// Keeps this commit too; may be given several times
    #[arg(long, value_name = "COMMIT")]
    keep: Vec<String>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SplitArgs {
    #[command(flatten)]
    common: StoreArgs,
}

/// Directories outside the store for its archive and index.
#[derive(Debug, Args)]
struct LocationArgs {
    /// Directory for the volumes of the archive; the store remembers it
    #[arg(long, value_name = "DIR")]
    archive_dir: Option<PathBuf>,
    /// Directory for the index; the store remembers it
    #[arg(long, value_name = "DIR")]
    index_dir: Option<PathBuf>,
}

impl LocationArgs {
    fn is_some(&self) -> bool {
        self.archive_dir.is_some() || self.index_dir.is_some()
    }

    fn over(&self, options: Options) -> Options {
        let archive_dir = self.archive_dir.clone();
        let index_dir = self.index_dir.clone();
        options.archive_dir(archive_dir).index_dir(index_dir)
    }
}

#[derive(Serialize)]
struct Log {
    commits: Vec<Logged>,
}

#[derive(Serialize)]
struct Logged {
    hash: String,
    root_hex: String,
    parents: Vec<String>,
    date_s: i64,
    author: String,
    message: String,
    branches: Vec<String>,
}

#[derive(Serialize)]
struct Listing {
    commit: String,
    path: String,
    entries: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    step: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u64>,
}

#[derive(Serialize)]
struct Shown {
    commit: String,
    path: String,
    bytes: u64,
    hash_hex: String,
    value_hex: String,
}

#[derive(Serialize)]
struct Reclaimed {
    kept: u64,
    collected: u64,
    chunks: u64,
    compacted: u64,
    removed: u64,
    live_bytes: u64,
    freed_bytes: u64,
    archived_bytes: u64,
    put_off: u64,
    store_bytes: u64,
    wall_s: f64,
}

#[derive(Serialize)]
struct Split {
    chunks: u32,
}

impl ContextCommand {
    /// Returns the name of the sub-command.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Log(_) => "context log",
            Self::Ls(_) => "context ls",
            Self::Show(_) => "context show",
            Self::Diff(_) => "context diff",
            Self::DumpPaths(_) => "context dump-paths",
            Self::Prove(_) => "context prove",
            Self::VerifyProof(_) => "context verify-proof",
            Self::Export(_) => "context export",
            Self::Import(_) => "context import",
            Self::Gc(_) => "context gc",
            Self::Volume(volume) => volume.command(),
            Self::Move(_) => "context move",
            Self::GenTrace(_) => "context gen-trace",
            Self::Split(_) => "context split",
        }
    }

    /// Runs the command and prints its report.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let command = self.command();
        match self {
            Self::Log(args) => args.run(&args.common, command),
            Self::Ls(args) => args.run(&args.common, command),
            Self::Show(args) => args.run(&args.common, command),
            Self::Diff(args) => args.run(command),
            Self::DumpPaths(args) => args.run(command),
            Self::Prove(args) => args.run(command),
            Self::VerifyProof(args) => args.run(command),
            Self::Export(args) => args.run(command),
            Self::Import(args) => args.run(command),
            Self::Gc(args) => args.run(&args.common, command),
            Self::Volume(volume) => volume.run(),
            Self::Move(args) => args.run(command),
            Self::GenTrace(args) => args.run(command),
            Self::Split(args) => args.run(command),
        }
    }
}

pub(crate) fn open(dir: &Path) -> Result<StoreReader, Failure> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    if !context::is_store(disk.as_ref(), dir)? {
        let dir = dir.display();
        return Err(Failure::usage(format!("{dir} is not a context store of Terrane")));
    }
    let reader = StoreReader::open(disk, dir, CACHE_BYTES)?;
    note(dir, reader.recovery());
    Ok(reader)
}

/// Opens a store for writing, and prints the notes of its recovery.
fn open_to_write(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<Store, Failure> {
    let store = Store::open(disk, dir, options)?;
    note(dir, store.recovery());
    Ok(store)
}

/// Prints the notes of a recovery: everything that it found, dropped and rebuilt.
pub(crate) fn note(dir: &Path, recovery: Recovery) {
    for note in recovery.notes() {
        eprintln!("terrane: note: {}: {note}", dir.display());
    }
}

/// Returns the commit that `text` names: by its hash, a branch, or the beginning of the hash.
/// Without a text, returns the newest commit.
fn find(store: &StoreReader, text: Option<&str>) -> Result<Hash, Failure> {
    let Some(text) = text else {
        let newest = store.newest().next().transpose()?;
        return Ok(newest.ok_or_else(|| Failure::not_found("the store has no commit"))?.hash);
    };

    if let Ok(hash) = text.parse() {
        return Ok(hash);
    }

    if let Some(head) = store.branch(text.as_bytes()) {
        return Ok(head);
    }

    let mut found: Option<Hash> = None;
    for commit in store.newest() {
        let hash = commit?.hash;
        if hash.to_base58().starts_with(text) && found.replace(hash).is_some() {
            return Err(Failure::usage(format!("several commits begin with {text}")));
        }
    }

    found.ok_or_else(|| Failure::not_found(format!("no commit and no branch is {text}")))
}

pub(crate) fn checkout(store: &StoreReader, at: Option<&str>) -> Result<(Hash, Context), Failure> {
    let hash = find(store, at)?;
    let absent = || Failure::not_found(format!("there is no commit {hash}, or it was collected"));
    Ok((hash, store.checkout(&hash)?.ok_or_else(absent)?))
}

/// Parses a path into its steps.
fn steps(path: &str) -> Result<Vec<Vec<u8>>, Failure> {
    let steps = path.split('/').filter(|step| !step.is_empty());
    steps.map(|step| literal::field(step.as_bytes()).map_err(Failure::usage)).collect()
}

/// Returns a path as text that [`steps`] parses.
fn path_text<S: AsRef<[u8]>>(path: &[S]) -> String {
    let step = |step: &S| match step.as_ref() {
        step if step.contains(&b'/') => format!("hex:{}", hex(step)),
        step => literal::shown(step),
    };
    path.iter().map(step).collect::<Vec<_>>().join("/")
}

/// Returns the options to open the store of `reader` for writing.
fn options(reader: &StoreReader) -> Options {
    Options::new(Arc::new(BtreeIndexes::default()))
        .rules(*reader.rules())
        .indexing(reader.indexing())
        .cache_bytes(CACHE_BYTES)
}

pub(crate) fn store_bytes(dir: &Path) -> Result<u64, Failure> {
    meter::store_bytes(dir).map_err(|error| Failure::of_file(dir, &error))
}

fn kind(tree: &Tree) -> &'static str {
    match tree.kind() {
        Kind::Value => "value",
        Kind::Directory => "directory",
    }
}

impl LogArgs {
    fn run(&self, common: &StoreArgs, command: &str) -> Result<(), Failure> {
        let store = open(&common.store)?;
        let branches = store.branches();
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);

        let mut commits = Vec::new();
        for commit in store.newest().take(limit) {
            commits.push(Logged::new(&commit?, &branches));
        }

        if common.output.json {
            return output::report(command, true, &Log { commits }, &[]);
        }

        let names = ["COMMIT", "DATE", "AUTHOR", "BRANCHES", "MESSAGE"];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(commits.iter().map(Logged::row));

        output::print(&table(names.len(), &rows))
    }
}

impl Logged {
    fn new(commit: &Commit, branches: &[(Vec<u8>, Hash)]) -> Self {
        let heads = branches.iter().filter(|(_, head)| *head == commit.hash);
        Self {
            hash: commit.hash.to_base58(),
            root_hex: hex(commit.root.as_bytes()),
            parents: commit.parents.iter().map(Hash::to_base58).collect(),
            date_s: commit.date,
            author: literal::shown(&commit.author),
            message: literal::shown(&commit.message),
            branches: heads.map(|(name, _)| literal::shown(name)).collect(),
        }
    }

    fn row(&self) -> Vec<String> {
        // Dates before 1970 and after 2554 do not fit into nanoseconds and are shown as numbers.
        let ns = u64::try_from(self.date_s).ok().and_then(|s| s.checked_mul(1_000_000_000));
        vec![
            self.hash.clone(),
            ns.map_or_else(|| self.date_s.to_string(), time),
            self.author.clone(),
            self.branches.join(", "),
            self.message.clone(),
        ]
    }
}

impl LsArgs {
    fn run(&self, common: &StoreArgs, command: &str) -> Result<(), Failure> {
        let store = open(&common.store)?;
        let (commit, context) = checkout(&store, self.commit.as_deref())?;
        let path = steps(&self.path)?;
        let shown = &self.path;
        let found = context.find_tree(&path)?;

        let dir = found.ok_or_else(|| Failure::not_found(format!("nothing is at {shown:?}")))?;
        if dir.kind() == Kind::Value {
            let message = format!("a value is at {shown:?}; `terrane context show` writes it");
            return Err(Failure::usage(message));
        }

        let mut children = children(&dir)?;
        children.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        children.truncate(self.limit.map_or(usize::MAX, |limit| limit as usize));

        let entries: Result<Vec<Listed>, Failure> =
            children.iter().map(|(step, tree)| Listed::new(step, tree, self.long)).collect();
        let entries = entries?;
        if common.output.json {
            let commit = commit.to_base58();
            let path = self.path.clone();
            return output::report(command, true, &Listing { commit, path, entries }, &[]);
        }

        let lines: Vec<String> = entries.iter().map(|entry| entry.line(self.long)).collect();

        if lines.is_empty() { Ok(()) } else { output::print(&lines.join("\n")) }
    }
}

/// Step of a path, and its tree.
type Child = (Box<[u8]>, Tree);

/// Returns all children of a directory, in the order of storage.
fn children(dir: &Tree) -> Result<Vec<Child>, Failure> {
    let mut children = Vec::new();
    loop {
        let page = dir.list(&ROOT, children.len(), PAGE)?;
        if page.is_empty() {
            return Ok(children);
        }
        children.extend(page);
    }
}

impl Listed {
    fn new(step: &[u8], tree: &Tree, is_long: bool) -> Result<Self, Failure> {
        let mut listed =
            Self { step: path_text(&[step]), kind: kind(tree), bytes: None, children: None };
        if is_long {
            match tree.to_value()? {
                Some(value) => listed.bytes = Some(value.len() as u64),
                None => listed.children = Some(tree.length(&ROOT)?),
            }
        }
        Ok(listed)
    }

    fn line(&self, is_long: bool) -> String {
        let slash = if self.kind == "directory" { "/" } else { "" };
        if !is_long {
            return format!("{}{slash}", self.step);
        }
        let size = match (self.bytes, self.children) {
            (Some(bytes), _) => count_of(bytes, "byte", "bytes"),
            (None, children) => count_of(children.unwrap_or(0), "child", "children"),
        };
        format!("{size:>20}  {}{slash}", self.step)
    }
}

impl ShowArgs {
    fn run(&self, common: &StoreArgs, command: &str) -> Result<(), Failure> {
        let store = open(&common.store)?;
        let (commit, context) = checkout(&store, self.commit.as_deref())?;

        let shown = &self.path;
        let Some(tree) = context.find_tree(&steps(&self.path)?)? else {
            return Err(Failure::not_found(format!("nothing is at {shown:?}")));
        };

        let Some(value) = tree.to_value()? else {
            let message = format!("a directory is at {shown:?}; `terrane context ls` lists it");
            return Err(Failure::usage(message));
        };

        if !common.output.json {
            return output::print(&literal::shown(&value));
        }

        let report = Shown {
            commit: commit.to_base58(),
            path: self.path.clone(),
            bytes: value.len() as u64,
            hash_hex: hex(tree.hash().as_bytes()),
            value_hex: hex(&value),
        };

        output::report(command, true, &report, &[])
    }
}

impl GcArgs {
    /// Returns the commits to keep. Looks commits up before anything is opened for writing, so that
    /// a wrong name changes nothing.
    fn retain(&self, store: &StoreReader) -> Result<Retain, Failure> {
        let mut retain = match (self.newest, &self.since) {
            (Some(newest), _) => Retain::newest(newest),
            (None, Some(since)) => Retain::since(find(store, Some(since))?),
            (None, None) => Retain::everything(),
        };
        for commit in &self.keep {
            retain = retain.and(find(store, Some(commit))?);
        }
        Ok(retain)
    }

    fn run(&self, common: &StoreArgs, command: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let dir = &common.store;
        let reader = open(dir)?;
        let retain = self.retain(&reader)?;
        let has_archive = !reader.volumes().is_empty();
        let options = options(&reader);
        drop(reader);

        // The monitor handles Ctrl-C; the bar counts bytes.
        let interrupts = Progress::new(true);

        let mut bar = ByteBar::new("collecting", self.common.output.quiet);
        let store = open_to_write(RealDisk::auto(), dir, &options)?;
        let outcome = store.collect(&retain, &mut |progress: &GcProgress| {
            bar.set(progress.bytes.min(progress.total_bytes), progress.total_bytes);
            if interrupts.stop() { GcPace::Cancel } else { GcPace::Go }
        });

        drop(bar);
        let closed = store.close();
        let done = outcome?;
        closed?;

        let report = Reclaimed {
            kept: done.kept,
            collected: done.collected,
            chunks: done.chunks,
            compacted: done.compacted,
            removed: done.removed,
            live_bytes: done.live_bytes,
            freed_bytes: done.freed_bytes,
            archived_bytes: done.archived_bytes,
            put_off: done.put_off,
            store_bytes: store_bytes(dir)?,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let mut lines = vec![
            ("kept", count_of(report.kept, "commit", "commits")),
            ("collected", count_of(report.collected, "commit", "commits")),
            (
                "chunks",
                format!(
                    "{} looked at, {} compacted, {} removed",
                    report.chunks, report.compacted, report.removed
                ),
            ),
            ("freed", bytes(report.freed_bytes)),
            ("in use", format!("{} of these chunks", bytes(report.live_bytes))),
        ];

        if has_archive {
            lines.push(("archived", bytes(report.archived_bytes)));
        }

        if report.put_off > 0 {
            let chunks = count_of(report.put_off, "chunk", "chunks");
            let next = "the disk has no room to rewrite: make room, then `gc --everything`";
            lines.push(("put off", format!("{chunks} that {next}")));
        }

        lines.extend([
            ("store", bytes(report.store_bytes)),
            ("time", format!("{:.3} s", report.wall_s)),
        ]);

        output::report(command, common.output.json, &report, &lines)
    }
}

impl SplitArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let reader = open(&self.common.store)?;
        let options = options(&reader);
        drop(reader);
        let store = open_to_write(RealDisk::auto(), &self.common.store, &options)?;
        let done = store.split();
        store.close()?;
        done?;
        let report = Split { chunks: store.stats().chunks };
        let lines = [("chunks", report.chunks.to_string())];
        output::report(command, self.common.output.json, &report, &lines)
    }
}

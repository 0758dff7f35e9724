//! `terrane table`: lists, creates, builds, renames and deletes the named tables of a store.
//!
//! # JSON
//!
//! | command  | fields                                                                                     |
//! |----------|--------------------------------------------------------------------------------------------|
//! | `list`   | `tables`: list of `id`, `name`, `resolve`, `write_buffer_bytes` or `write_buffer_entries`, `memory_budget_bytes` (null for none), `compression` (`none`, `lz4`, `zstd`), and `runs`, `stored_entries` (in all runs together: every stored value of a key and every tombstone is one, so there are more than live keys), `tombstones` (how many of them), `bytes`, `merge_debt_bytes`, which are null if a file is damaged; `damage`: list of texts, and `ok` is false, with exit code 1, if it is not empty |
//! | `create` | `table`                                                                                    |
//! | `build`  | `table`, `entries`, `digest` (of the state, as everywhere), `wall_s`, `entries_per_s`           |
//! | `rename` | `from`, `to`                                                                               |
//! | `delete` | `table`, `dropped` (false only with `--if-exists`)                                         |

use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::lsm::inspect::StoreInfo;
use terrane::lsm::{
    CompressedLevels, Compression, MergeOperator, TableConfig, TableName, WriteBuffer,
};

use crate::commands::copy::{self, Copied, FromArgs, Target};
use crate::commands::kv::{MemoryArgs, ReserveArgs};
use crate::stores::listed::ListedTable;
use crate::stores::open::{
    Opening, check_table, check_table_is_new, inspect_store, open_tables, open_tables_with,
};
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::count_of;

/// Sub-commands of `terrane table`.
#[derive(Debug, Subcommand)]
pub(crate) enum Tables {
    /// Lists the tables of a store; works beside a process that has it open
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Creates an empty table
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// Builds a table from all entries of a B+tree, or of another table
    #[command(after_help = BUILD_EXAMPLES)]
    Build(BuildArgs),
    /// Renames a table
    #[command(after_help = RENAME_EXAMPLES)]
    Rename(RenameArgs),
    /// Deletes a table with all its entries; its snapshots stay
    #[command(aliases = ["drop", "remove"], after_help = DELETE_EXAMPLES)]
    Delete(DeleteArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane table create accounts --store /data/ledger
  terrane table list --store /data/ledger
  terrane put alice 100 --store /data/ledger --table accounts";

const BUILD_EXAMPLES: &str = "\
Examples:
  terrane table build accounts --store /data/ledger --from /data/index
  A table of another store, as it was at a retained version:
    terrane table build accounts --store /data/copy --create \\
      --from /data/ledger --from-table accounts --version 7
  The same in little memory, of which each of the two stores takes so much:
    terrane table build accounts --store /data/copy --create \\
      --from /data/ledger --from-table accounts --memory-budget 16MiB

There must be no table of that name. The entries go past the log, and the table appears whole, or \
not at all. If the command ends with exit code 0, all entries are durable; otherwise the table \
does not exist. `terrane btree build` copies in the other direction.";

const LIST_EXAMPLES: &str = "\
Examples:
  terrane table list --store /data/ledger
  terrane table list --store /data/ledger --json

STORED ENTRIES counts the entries of all runs, not live keys: every stored value of a key is an \
entry, and so is every tombstone, which marks a deletion. Compactions remove them later. `terrane \
count` reads the table and counts its live keys.

Runs, entries and bytes are those of the last checkpoint. Later commits are in the log, which \
`terrane inspect` shows.";

const CREATE_EXAMPLES: &str = "\
Examples:
  terrane table create accounts --store /data/ledger
  Sums that `put --upsert` adds to:
    terrane table create sums --store /data/ledger --resolve add-u64-wrapping
  At most so much memory for write buffer, filters and indexes:
    terrane table create accounts --store /data/ledger --memory-budget 256MiB
  With values that compress, on all levels but the newest:
    terrane table create accounts --store /data/ledger --compression lz4
  With keys of an owner of 20 bytes and an output, which are scanned by owner:
    terrane table create outputs --store /data/ledger --prefix-bytes 20
  In a store that can still delete when the disk is full:
    terrane table create accounts --store /data/ledger --reserve 256MiB

The store is created if it is missing. The table is durable when the command ends.";

const RENAME_EXAMPLES: &str = "\
Example:
  terrane table rename accounts accounts-old --store /data/ledger";

const DELETE_EXAMPLES: &str = "\
Examples:
  terrane table delete accounts-old --store /data/ledger
  In a script that may have been cut short:
    terrane table delete accounts-old --store /data/ledger --if-exists

To keep the entries of a table, save a snapshot first: `terrane snapshot save`.";

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the table
    #[arg(value_name = "NAME", value_parser = args::table_name)]
    name: TableName,
    /// Size of the write buffer, the updates in memory before they become a run; 4MiB if it is left
    /// out
    #[arg(long, value_name = "SIZE", value_parser = args::size, conflicts_with = "memory_budget")]
    write_buffer: Option<u64>,
    /// Bytes of memory for write buffer, filters and indexes together
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
    /// Merge operator that combines the values of upserts: newest, oldest,
    /// add-u64-wrapping, add-u64-saturating, add-i128-wrapping, max, min or concatenate
    #[arg(long, value_name = "NAME", value_parser = resolve, default_value = "newest")]
    resolve: MergeOperator,
    /// Codec of the pages of entries, for values that compress: none, lz4 or zstd (smaller and
    /// slower than lz4). A lookup stays one read, of a page that holds more
    #[arg(long, value_name = "CODEC", value_parser = args::compression, default_value = "none")]
    compression: Compression,
    /// First level that is compressed, with all deeper ones (1 is the newest), or `last` for the
    /// last one alone
    #[arg(long, value_name = "LEVEL|last", value_parser = args::compressed_levels,
        default_value = "2")]
    compressed_levels: CompressedLevels,
    /// Length of a prefix of keys that filters hold besides the keys, 1 to 255: a scan of one
    /// prefix then reads from no run that lacks it
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u8).range(1..))]
    prefix_bytes: Option<u8>,
    #[command(flatten)]
    reserve: ReserveArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Name of the table
    #[arg(value_name = "NAME", value_parser = args::table_name)]
    name: TableName,
    #[command(flatten)]
    from: FromArgs,
    /// Creates the store if it is missing
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// Name of the table
    #[arg(value_name = "FROM", value_parser = args::table_name)]
    from: TableName,
    /// New name
    #[arg(value_name = "TO", value_parser = args::table_name)]
    to: TableName,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Name of the table
    #[arg(value_name = "NAME", value_parser = args::table_name)]
    name: TableName,
    /// Succeeds if there is no such table
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    common: StoreArgs,
}

/// Parses the name of a built-in merge operator, with or without its prefix `terrane.`.
fn resolve(text: &str) -> Result<MergeOperator, String> {
    let found =
        MergeOperator::by_name(text).or_else(|| MergeOperator::by_name(&format!("terrane.{text}")));
    found.ok_or_else(|| {
        let names = MergeOperator::all_ready_made().map(|ready| ready.name().to_owned());
        format!("not ready-made; those that are: {}", names.join(", "))
    })
}

impl Tables {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::List(_) => "table list",
            Self::Create(_) => "table create",
            Self::Build(_) => "table build",
            Self::Rename(_) => "table rename",
            Self::Delete(_) => "table delete",
        }
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::List(args) => args.run(),
            Self::Create(args) => args.run().map(|()| 0),
            Self::Build(args) => args.run().map(|()| 0),
            Self::Rename(args) => args.run().map(|()| 0),
            Self::Delete(args) => args.run().map(|()| 0),
        }
    }
}

#[derive(Serialize)]
struct Listed {
    tables: Vec<ListedTable>,
    damage: Vec<String>,
}

impl Listed {
    fn new(store: Option<StoreInfo>) -> Self {
        let mut listed = Self { tables: Vec::new(), damage: Vec::new() };
        let Some(store) = store else { return listed };
        listed.damage = store.damage;
        let mut infos = store.manifest.map(|manifest| manifest.tables).unwrap_or_default();
        infos.sort_by(|left, right| left.name.cmp(&right.name));
        for info in &infos {
            listed.tables.push(ListedTable::new(info, &mut listed.damage));
        }
        listed
    }
}

/// Returns the line for a store without tables. If the store has snapshots, the line ends with a
/// command that reads one.
fn no_tables(store: &Path, snapshots: &[String]) -> String {
    match snapshots.last() {
        None => "no tables".to_owned(),
        Some(name) => {
            let count = count_of(snapshots.len() as u64, "snapshot", "snapshots");
            let store = store.display();
            let next = format!("terrane scan --snapshot {name} --store {store} --limit 10");
            format!("no tables, but {count}; next: {next}")
        }
    }
}

impl ListArgs {
    fn run(&self) -> Result<u8, Failure> {
        let StoreArgs { store, output } = &self.common;
        let info = inspect_store(store)?;
        let snapshots: Vec<String> = info.snapshots.into_iter().map(|(name, _)| name).collect();
        let listed = Listed::new(info.store);
        let text = match listed.tables.as_slice() {
            [] => no_tables(store, &snapshots),
            tables => ListedTable::text(tables),
        };

        let failure = (!listed.damage.is_empty()).then(|| Failure::check(listed.damage.join("; ")));

        output::checked("table list", output.json, &listed, &text, failure.as_ref())
    }
}

#[derive(Serialize)]
struct Created<'a> {
    table: &'a str,
}

impl CreateArgs {
    fn config(&self) -> TableConfig {
        let config = TableConfig::default()
            .merge_operator(self.resolve.clone())
            .memory_budget(self.memory_budget)
            .prefix_bytes(self.prefix_bytes)
            .compression(self.compression)
            .compressed_levels(self.compressed_levels);
        match self.write_buffer {
            Some(bytes) => config.write_buffer(WriteBuffer::Bytes(bytes)),
            None => config,
        }
    }

    fn run(&self) -> Result<(), Failure> {
        let config = self.config();
        // The configuration is checked before a store is created for it.
        config.validate()?;
        check_table_is_new(&self.common.store, &self.name)?;
        let opening = Opening { reserve_bytes: self.reserve.bytes(), ..Opening::default() };
        let store = open_tables_with(&self.common.store, true, opening)?;
        store.create_table(&self.name, &config)?;
        store.close()?;
        let created = Created { table: self.name.as_str() };
        let lines = [("created", self.name.to_string())];
        output::report("table create", self.common.output.json, &created, &lines)
    }
}

#[derive(Serialize)]
struct Built<'a> {
    table: &'a str,
    #[serde(flatten)]
    copied: &'a Copied,
}

impl BuildArgs {
    fn run(&self) -> Result<(), Failure> {
        let StoreArgs { store, output } = &self.common;
        let target = Target {
            dir: store,
            name: &self.name,
            create: self.create,
            memory_budget: self.memory.budget(),
        };
        let copied = copy::to_table(&self.from, Progress::new(output.quiet), &target)?;
        let built = Built { table: self.name.as_str(), copied: &copied };
        copy::report("table build", output.json, &built, &copied, format!("table {}", self.name))
    }
}

impl RenameArgs {
    fn run(&self) -> Result<(), Failure> {
        check_table(&self.common.store, &self.from)?;
        check_table_is_new(&self.common.store, &self.to)?;
        let store = open_tables(&self.common.store, false)?;
        store.rename_table(&self.from, &self.to)?;
        store.close()?;
        let names = (self.from.as_str(), self.to.as_str());
        output::renamed("table rename", self.common.output.json, names)
    }
}

#[derive(Serialize)]
struct Dropped<'a> {
    table: &'a str,
    dropped: bool,
}

impl DeleteArgs {
    fn run(&self) -> Result<(), Failure> {
        if !self.if_exists {
            check_table(&self.common.store, &self.name)?;
        }

        let store = open_tables(&self.common.store, false)?;
        let dropped = match store.drop_table(&self.name) {
            Err(terrane::lsm::Error::TableDoesNotExist { .. }) if self.if_exists => false,
            done => {
                done?;
                true
            }
        };

        store.close()?;
        let report = Dropped { table: self.name.as_str(), dropped };
        let lines = [output::deleted(dropped, self.name.as_str())];

        output::report("table delete", self.common.output.json, &report, &lines)
    }
}

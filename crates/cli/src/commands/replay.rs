//! `terrane replay`: replays real histories over an engine.

mod irmin_trace;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use terrane::radix::{self, Store};
use terrane::state_dir::{self, BackEnd, OpenStore, open_database};
use terrane_bench::instruments::meter;
use terrane_replay::engines::btree::Btree;
use terrane_replay::engines::context_tables::ContextTables;
use terrane_replay::engines::engine::Engine;
use terrane_replay::engines::lsm::Lsm;
use terrane_replay::engines::memory::Memory;
use terrane_replay::ledger::Ledger as _;
use terrane_replay::ledger::mpt_ledger::MptLedger;
use terrane_replay::ledger::radix_ledger::RadixLedger;
use terrane_replay::monitor::Monitor;
use terrane_replay::{bitcoin, changes, ethereum};

use crate::commands::context;
use crate::stores::back_ends::{BackEndArg, DurabilityArg, ServerArgs};
use crate::stores::open::remove_content;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::{Failure, STORE_VARIABLE};
use crate::ui::output;
use crate::ui::progress::Progress;

use self::irmin_trace::IrminTraceArgs;

/// Sub-commands of `terrane replay`.
#[derive(Debug, Subcommand)]
pub(crate) enum Replay {
    /// Replays Bitcoin's blocks into a table of unspent outputs
    #[command(after_help = BITCOIN_EXAMPLES)]
    Bitcoin(BitcoinArgs),
    /// Replays the first blocks of Ethereum into a state, checking every root
    #[command(after_help = ETHEREUM_EXAMPLES)]
    Ethereum(EthereumArgs),
    /// Replays an engine-independent history of changes and the checks in it
    #[command(after_help = CHANGES_EXAMPLES)]
    Changes(ChangesArgs),
    /// Replays a trace of operations on versioned trees, recorded by the benchmark of irmin or by
    /// Octez
    #[command(after_help = irmin_trace::EXAMPLES)]
    IrminTrace(IrminTraceArgs),
}

const BITCOIN_EXAMPLES: &str = "\
Examples:
  Replay the blocks shipped with the source, then show the set of coins:
    terrane replay bitcoin data/bitcoin-mainnet-0-4999.dat --store /tmp/demo
  Replay a node's blocks up to a height, for a program to read:
    terrane replay bitcoin ~/.bitcoin/blocks --store /data/utxo \\
      --until 100_000 --json
  In little memory:
    terrane replay bitcoin ~/.bitcoin/blocks --store /data/utxo \\
      --memory-budget 64MiB
  Go back to an earlier block, as far as blocks are kept:
    terrane replay bitcoin --store /data/utxo --rollback-to 99_000

With engine lsm the set of coins is a snapshot, which the report names: `terrane scan --snapshot \
NAME` reads it. A key is the transaction (32 bytes, internal order) and the number of the output \
(4 bytes, big-endian). A value is the amount in satoshi (8 bytes, little-endian), the height (4 \
bytes, little-endian), 1 for a coinbase (1 byte), and the script.

A second call on a store continues from the end of the first. At the end the replay reads the \
whole table for its count, sum, digest and hash.";

const ETHEREUM_EXAMPLES: &str = "\
Examples:
  Replay the blocks shipped with the source:
    terrane replay ethereum data/ethereum-mainnet-0-8191.era1 --store /tmp/state
  Go back to an earlier block, and forward again:
    terrane replay ethereum --store /tmp/state --rollback-to 4_096
    terrane replay ethereum data/ethereum-mainnet-0-8191.era1 --store /tmp/state

The state after each block follows from the accounts of block 0 and the rewards. A block with \
transactions ends the replay: there is no virtual machine. A second call on a store continues from \
the end of the first.";

const CHANGES_EXAMPLES: &str = "\
Examples:
  Replay a history into a new store:
    terrane replay changes history.txt.zst --store /tmp/demo
  Go on with a longer one:
    terrane replay changes history-2.txt.zst --store /tmp/demo --resume
  Check a history and its roots on a Merkle-radix state kept in SQLite:
    terrane replay changes history.txt --store /tmp/radix --engine radix \\
      --backend sqlite
  Check a history and its roots on a table with a Merkle-Patricia root:
    terrane replay changes history.txt --store /tmp/mpt --engine mpt
  Check a history without a store:
    generate-history | terrane replay changes - --engine memory

Format: a first line `terrane-changes 1`, then one record on each line: `begin H`, `put K V`, \
`del K`, `get K V`, `get K !`, `end [count=N] [digest=D] [root.SCHEME=R]`, `rollback H`, `expect \
[count=N] [digest=D] [root.SCHEME=R]`, `range K1 K2 n=N digest=D`. Bytes are lower-case \
hexadecimal, `-` is the empty string, `#` starts a comment line.";

/// Arguments of every replay.
#[derive(Debug, Args)]
struct StoreArgs {
    /// Directory of the store; created if it is missing. Engine `memory` writes nothing there
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Engine that holds the state
    #[arg(long, value_enum, default_value_t = EngineName::Lsm)]
    engine: EngineName,
    /// With engine lsm, bytes of memory for all tables, cursors and caches of the store together;
    /// 1MiB or more
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    /// Terrane's table engine
    Lsm,
    /// Terrane's B+tree; blocks are in memory until they are durable
    Btree,
    /// Terrane's context store: a Merkle tree with the hashes of Tezos; keys of up to 127 bytes
    Context,
    /// Terrane's Merkle-radix state: versions with the roots of Transact; keys of 1 to 35 bytes
    Radix,
    /// Terrane's tables with the root of a Merkle-Patricia trie, whose keys are hashed
    Mpt,
    /// Sorted map in memory; keeps nothing, so that a second call starts anew
    Memory,
    /// LMDB; blocks are in memory until they are durable. Keys of up to 252 bytes
    Lmdb,
    #[value(help = "SQLite; blocks are in memory until they are durable. Keys of up to 252 bytes")]
    Sqlite,
}

/// Arguments of engine `radix` alone.
#[derive(Debug, Args)]
struct RadixArgs {
    /// Back-end of engine radix; by default the one of the store, or lsm for a new store
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<BackEndArg>,
    /// Durability of a finished block with engine radix; by default each, and none in memory. With
    /// none and async, --checkpoint-every makes the state durable, where the back-end can
    #[arg(long, value_enum, value_name = "LEVEL")]
    durability: Option<DurabilityArg>,
    #[command(flatten)]
    servers: ServerArgs,
}

/// Arguments about the output.
#[derive(Debug, Args)]
pub(crate) struct BitcoinArgs {
    /// Block files (`blk*.dat`), or directories of them; may be left out with `--rollback-to`
    #[arg(value_name = "PATH", required_unless_present = "rollback_to")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// Height of the last block to replay
    #[arg(long, value_name = "HEIGHT", value_parser = args::height)]
    until: Option<u32>,
    /// Height to roll back to before the replay
    #[arg(long, value_name = "HEIGHT", value_parser = args::height)]
    rollback_to: Option<u32>,
    /// Number of the newest blocks that a rollback can reach
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "2160")]
    keep_versions: u64,
    /// Blocks between two durable points; the end of the replay is one too
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    checkpoint_every: u64,
    /// Network whose blocks these are
    #[arg(long, value_enum, default_value_t = NetworkName::Mainnet)]
    network: NetworkName,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NetworkName {
    /// Bitcoin itself
    Mainnet,
    /// Private chains for tests, with minimal proof of work
    Regtest,
}

#[derive(Debug, Args)]
pub(crate) struct EthereumArgs {
    /// Files of blocks (`.era1`); may be left out with `--rollback-to`
    #[arg(value_name = "FILE", required_unless_present = "rollback_to")]
    files: Vec<PathBuf>,
    /// Directory of the state; created if it is missing
    #[arg(long, value_name = "DIR", env = STORE_VARIABLE)]
    store: PathBuf,
    /// Height of the last block to replay
    #[arg(long, value_name = "HEIGHT", value_parser = args::height)]
    until: Option<u32>,
    /// Height to roll back to before the replay
    #[arg(long, value_name = "HEIGHT", value_parser = args::height)]
    rollback_to: Option<u32>,
    /// Keeps what reads and proofs at older heights need
    #[arg(long)]
    history: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ChangesArgs {
    /// Histories, one after the other; `.gz` and `.zst` are decompressed, `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    radix: RadixArgs,
    /// Continues from the store's newest block and skips the blocks up to it
    #[arg(long)]
    resume: bool,
    /// Number of the newest blocks that a rollback can reach; all if it is left out
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    keep_versions: Option<u64>,
    /// Blocks between two durable points; the end of the replay is one too
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1000")]
    checkpoint_every: u64,
    /// Longest line that is accepted; a longer one means a file of another kind
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "64MiB")]
    line_max: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Report, with the memory and disk space of the process.
#[derive(Serialize)]
struct Measurement<T> {
    engine: &'static str,
    #[serde(flatten)]
    report: T,
    /// Snapshot that `terrane get`, `scan` and `count` read.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
    rss_bytes: Option<u64>,
    store_bytes: u64,
}

impl Replay {
    /// Returns the name used in reports.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Bitcoin(_) => "replay bitcoin",
            Self::Ethereum(_) => "replay ethereum",
            Self::Changes(_) => "replay changes",
            Self::IrminTrace(_) => "replay irmin-trace",
        }
    }

    /// Runs the command and prints its report.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Bitcoin(args) => args.run(self.command()),
            Self::Ethereum(args) => args.run(self.command()),
            Self::Changes(args) => args.run(self.command()),
            Self::IrminTrace(args) => args.run(self.command()),
        }
    }
}

impl BitcoinArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let options = bitcoin::Options {
            network: match self.network {
                NetworkName::Mainnet => bitcoin::Network::Bitcoin,
                NetworkName::Regtest => bitcoin::Network::Regtest,
            },
            until: self.until,
            rollback_to: self.rollback_to,
            keep_versions: self.keep_versions,
            checkpoint_every: self.checkpoint_every,
        };

        let mut progress = Progress::new(self.output.quiet);
        self.store.check()?;
        check_inputs(&self.paths)?;
        let (name, report) = self.store.replay(&mut progress, |engine, progress| {
            let name = engine.name();
            Ok((name, bitcoin::replay(engine, &self.paths, &options, progress)?))
        })?;
        drop(progress);

        let optional = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let mut lines = vec![
            ("height", optional(report.height.map(|height| height.to_string()))),
            ("tip", optional(report.tip.clone())),
            ("transactions", report.transactions.to_string()),
            ("inputs", report.inputs.to_string()),
            ("outputs", report.outputs.to_string()),
            ("unspent outputs", report.utxo_count.to_string()),
            ("total", format!("{} satoshi", report.total_sat)),
            ("digest", report.digest.clone()),
            ("hash_serialized_3", report.hash_serialized_3.clone()),
            ("resumed from", optional(report.resumed_from.map(|height| height.to_string()))),
            ("blocks", format!("{} ({:.0}/s)", report.blocks, report.blocks_per_s)),
            ("lookups", format!("{:.0}/s", report.lookups_per_s)),
            ("time", format!("{:.3} s", report.wall_s)),
        ];

        // Other engines keep their tables in forms of their own.
        let snapshot = report.snapshot.clone().filter(|_| self.store.engine == EngineName::Lsm);
        let mut measured = self.store.measure(name, report)?;
        measured.snapshot = snapshot;
        lines.extend(measured.lines());
        if let (Some(snapshot), Some(dir)) = (&measured.snapshot, &self.store.store) {
            let dir = dir.display();
            lines.push(("snapshot", snapshot.clone()));
            let next = format!("terrane scan --snapshot {snapshot} --store {dir} --limit 3");
            lines.push(("next", next));
        }

        output::report(command, self.output.json, &measured, &lines)
    }
}

impl EthereumArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let options = ethereum::Options {
            until: self.until.map(u64::from),
            rollback_to: self.rollback_to.map(u64::from),
            history: self.history,
        };

        check_inputs(&self.files)?;
        let mut progress = Progress::new(self.output.quiet);
        let mut state = ethereum::open(&self.store, &options)?;
        let outcome = ethereum::replay(&mut state, &self.files, &options, &mut progress);
        let closed = state.close();
        drop(progress);
        let report = outcome?;
        closed?;

        let optional = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let mut lines = vec![
            ("height", optional(report.height.map(|height| height.to_string()))),
            ("tip", optional(report.tip.clone())),
            ("root", report.state_root.clone()),
            ("accounts", report.accounts.to_string()),
            ("blocks", format!("{} ({:.0}/s)", report.blocks, report.blocks_per_s)),
            ("uncles", report.uncles.to_string()),
            ("resumed from", optional(report.resumed_from.map(|height| height.to_string()))),
            ("time", format!("{:.3} s", report.wall_s)),
        ];
        let dir = &self.store;
        let store_bytes = meter::store_bytes(dir).map_err(|error| Failure::of_file(dir, &error))?;
        let rss_bytes = meter::rss_bytes();
        let measured =
            Measurement { engine: "mpt", report, snapshot: None, rss_bytes, store_bytes };
        lines.extend(measured.lines());
        output::report(command, self.output.json, &measured, &lines)
    }
}

impl ChangesArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let options = changes::Options {
            resume: self.resume,
            keep_versions: self.keep_versions,
            checkpoint_every: self.checkpoint_every,
            line_bytes_max: self.line_max,
        };

        let mut progress = Progress::new(self.output.quiet);
        self.store.check()?;
        check_inputs(&self.files)?;
        let (name, report) = match self.store.engine {
            EngineName::Radix => ("radix", self.replay_radix(&options, &mut progress)?),
            EngineName::Mpt => {
                self.radix.refuse()?;
                ("mpt", self.replay_mpt(&options, &mut progress)?)
            }
            _ => {
                self.radix.refuse()?;
                self.store.replay(&mut progress, |engine, progress| {
                    let name = engine.name();
                    Ok((name, changes::replay(engine, &self.files, &options, progress)?))
                })?
            }
        };

        drop(progress);

        let height = report.height.map_or_else(|| "none".to_owned(), |height| height.to_string());
        let mut lines = vec![
            ("height", height),
            ("blocks", report.blocks.to_string()),
            ("puts", report.puts.to_string()),
            ("deletes", report.deletes.to_string()),
            ("gets", report.gets.to_string()),
            ("rollbacks", report.rollbacks.to_string()),
            ("checks passed", report.checks_passed.to_string()),
            ("entries", report.count.to_string()),
            ("digest", report.digest.clone()),
            ("time", format!("{:.3} s ({:.0} changes/s)", report.wall_s, report.changes_per_s)),
        ];

        lines.extend(report.roots.iter().map(|(scheme, root)| (scheme.as_str(), root.clone())));
        let lines: Vec<_> =
            lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let measured = self.store.measure(name, report)?;
        let mut lines: Vec<_> =
            lines.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        lines.extend(measured.lines());

        output::report(command, self.output.json, &measured, &lines)
    }
}

impl ChangesArgs {
    fn replay_radix(
        &self,
        options: &changes::Options,
        monitor: &mut dyn Monitor,
    ) -> Result<changes::Report, Failure> {
        let store = self.radix.open(self.store.store.as_deref(), monitor)?;
        let ledger = RadixLedger::open(store.clone(), self.keep_versions);
        let ledger = ledger.map_err(changes::Error::from)?;
        let outcome = changes::replay_on(Box::new(ledger), &self.files, options, monitor);
        let closed = store.close();
        let report = outcome?;
        closed?;

        Ok(report)
    }

    fn replay_mpt(
        &self,
        options: &changes::Options,
        monitor: &mut dyn Monitor,
    ) -> Result<changes::Report, Failure> {
        let dir = self.store.store.as_deref().ok_or_else(|| Failure::no_store("--store DIR"))?;
        let before = Before::of(dir);
        let store = MptLedger::open_store(dir).map_err(changes::Error::from)?;
        let replayed = MptLedger::open(store.clone(), self.keep_versions)
            .map_err(changes::Error::from)
            .and_then(|ledger| changes::replay_on(Box::new(ledger), &self.files, options, monitor));
        let has_blocks = MptLedger::open(store.clone(), None);
        let has_blocks = has_blocks.is_ok_and(|ledger| ledger.tip().is_some());
        let closed = store.close();

        // A store that was created for an input that is refused before its first block goes again.
        let outcome = replayed.map_err(Failure::from);
        if let Err(failure) = &outcome
            && failure.code() == Failure::usage("").code()
            && before.was_created()
            && !has_blocks
        {
            // The first failure is reported; if the removal fails too, an empty store is left.
            let _ = before.restore(dir);
        }
        let report = outcome?;
        closed?;
        Ok(report)
    }
}

impl RadixArgs {
    /// Refuses options of engine radix beside another engine.
    fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--backend", self.backend.is_some()),
            ("--durability", self.durability.is_some()),
            ("--redis-url", !self.servers.redis_url.is_empty()),
            ("--contact-points", !self.servers.contact_points.is_empty()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => {
                Err(Failure::usage(format!("{option} applies to --engine radix only")))
            }
            None => Ok(()),
        }
    }

    fn open(&self, dir: Option<&Path>, monitor: &mut dyn Monitor) -> Result<OpenStore, Failure> {
        let durability = self.durability.unwrap_or(DurabilityArg::Each);
        if self.backend == Some(BackEndArg::Memory) {
            if let Some(dir) = dir {
                let dir = dir.display();
                monitor.warn(&format_args!("back-end memory keeps nothing; {dir} is not written"));
            }
            let durability = self.durability.unwrap_or(DurabilityArg::None).into();
            let database = open_database(BackEnd::Memory, Path::new(""), None, None, durability)?;
            return Ok(Store::open(database, &radix::Options::default())?.into());
        }

        let Some(dir) = dir else {
            return Err(Failure::usage("engine radix needs --store DIR, or --backend memory"));
        };

        Ok(self.servers.opening(self.backend, durability).open_or_create(dir)?)
    }
}

/// Refuses missing inputs before the replay creates a store for them. Reading an input finds any
/// other fault.
fn check_inputs(paths: &[PathBuf]) -> Result<(), Failure> {
    for path in paths.iter().filter(|path| path.as_path() != Path::new("-")) {
        let found = std::fs::metadata(path);
        if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let path = path.display();
            return Err(Failure::usage(format!("{path}: no such file or directory")));
        }
    }
    Ok(())
}

impl StoreArgs {
    /// Refuses a memory budget beside another engine.
    fn check(&self) -> Result<(), Failure> {
        if self.memory_budget.is_some() && self.engine != EngineName::Lsm {
            return Err(Failure::usage("--memory-budget applies to --engine lsm only"));
        }
        Ok(())
    }

    fn open(&self, monitor: &mut dyn Monitor) -> Result<Box<dyn Engine>, Failure> {
        match (self.engine, &self.store) {
            (EngineName::Memory, dir) => {
                if let Some(dir) = dir {
                    let dir = dir.display();
                    monitor
                        .warn(&format_args!("engine memory keeps nothing; {dir} is not written"));
                }
                Ok(Box::new(Memory))
            }
            (EngineName::Lsm, Some(dir)) => {
                Ok(Box::new(Lsm::open_within(dir, self.memory_budget)?))
            }
            (EngineName::Btree, Some(dir)) => Ok(Box::new(Btree::open(dir)?)),
            (EngineName::Context, Some(dir)) => {
                let engine = ContextTables::open(dir)?;
                context::note(dir, engine.recovery());
                Ok(Box::new(engine))
            }
            (EngineName::Lmdb, dir) => open_lmdb(dir.as_deref()),
            (EngineName::Sqlite, dir) => open_sqlite(dir.as_deref()),
            (EngineName::Radix, _) => {
                Err(Failure::usage("engine radix holds no tables; replay changes on it"))
            }
            (EngineName::Mpt, _) => {
                Err(Failure::usage("engine mpt holds no tables; replay changes on it"))
            }
            (EngineName::Lsm | EngineName::Btree | EngineName::Context, None) => {
                Err(Failure::no_store("--store DIR"))
            }
        }
    }

    fn measure<T>(&self, engine: &'static str, report: T) -> Result<Measurement<T>, Failure> {
        let store_bytes = match (self.engine, &self.store) {
            // Back-end memory writes nothing to the directory.
            (EngineName::Radix, Some(dir)) if !state_dir::is_store(dir)? => 0,
            (EngineName::Memory, _) | (_, None) => 0,
            (_, Some(dir)) => {
                meter::store_bytes(dir).map_err(|error| Failure::of_file(dir, &error))?
            }
        };
        let rss_bytes = meter::rss_bytes();
        Ok(Measurement { engine, report, snapshot: None, rss_bytes, store_bytes })
    }
}

#[cfg(feature = "lmdb")]
fn open_lmdb(dir: Option<&Path>) -> Result<Box<dyn Engine>, Failure> {
    use terrane_replay::engines::database_tables::{DatabaseTables, Kind};
    let dir = dir.ok_or_else(|| Failure::no_store("--store DIR"))?;
    Ok(Box::new(DatabaseTables::open(Kind::Lmdb, dir)?))
}

#[cfg(not(feature = "lmdb"))]
fn open_lmdb(_: Option<&Path>) -> Result<Box<dyn Engine>, Failure> {
    Err(Failure::not_built("lmdb"))
}

#[cfg(feature = "sqlite")]
fn open_sqlite(dir: Option<&Path>) -> Result<Box<dyn Engine>, Failure> {
    use terrane_replay::engines::database_tables::{DatabaseTables, Kind};
    let dir = dir.ok_or_else(|| Failure::no_store("--store DIR"))?;
    Ok(Box::new(DatabaseTables::open(Kind::Sqlite, dir)?))
}

#[cfg(not(feature = "sqlite"))]
fn open_sqlite(_: Option<&Path>) -> Result<Box<dyn Engine>, Failure> {
    Err(Failure::not_built("sqlite"))
}

/// State of the place of a store before a replay.
struct Before {
    /// Directories that were missing, the innermost first.
    missing: Vec<PathBuf>,
    /// Whether the directory was there and empty.
    was_empty: bool,
}

impl Before {
    fn of(dir: &Path) -> Self {
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let missing = dir.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        let was_empty = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
        Self { missing, was_empty }
    }

    /// Whether the replay has created the store.
    fn was_created(&self) -> bool {
        self.was_empty || !self.missing.is_empty()
    }

    /// Removes the store and the directories that were missing.
    fn restore(&self, dir: &Path) -> io::Result<()> {
        remove_content(dir)?;
        self.missing.iter().try_for_each(fs::remove_dir)
    }
}

impl StoreArgs {
    /// Runs a replay on the engine. If the input is refused before its first block, removes the
    /// store that was created for it.
    fn replay<T>(
        &self,
        progress: &mut Progress,
        replay: impl FnOnce(Box<dyn Engine>, &mut Progress) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let dir = self.store.as_deref().filter(|_| self.engine != EngineName::Memory);
        let before = dir.map(Before::of);
        let engine = self.open(progress)?;
        let outcome = replay(engine, progress);

        if let (Err(failure), Some(dir), Some(before)) = (&outcome, dir, before)
            && failure.code() == Failure::usage("").code()
            && before.was_created()
            && self
                .open(progress)
                .and_then(|engine| Ok(engine.snapshots()?))
                .is_ok_and(|s| s.is_empty())
        {
            // The first failure is reported; if the removal fails too, an empty store is left.
            let _ = before.restore(dir);
        }
        outcome
    }
}

impl<T> Measurement<T> {
    fn lines(&self) -> [(&'static str, String); 2] {
        let rss = self.rss_bytes.map_or_else(|| "unknown".to_owned(), output::bytes);
        [("memory", rss), ("store", output::bytes(self.store_bytes))]
    }
}

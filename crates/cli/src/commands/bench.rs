//! `terrane bench`: fixed workloads, measured and checked.

pub(crate) mod choices;

mod files;

mod head;

mod commits;

mod compare;

mod context;

mod disk;

mod import;

mod index;

mod kvget;

mod mixed;

mod model;

mod radix;

mod report;

mod state;

mod sweep;

mod tables;

mod utxo;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use terrane_bench::workloads::{union, upsert};

use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

use self::commits::CommitsArgs;
use self::compare::CompareArgs;
use self::context::ContextArgs;
use self::disk::DiskArgs;
use self::import::ImportArgs;
use self::index::Index;
use self::kvget::Kvget;
use self::mixed::MixedArgs;
use self::model::ModelArgs;
use self::radix::RadixArgs;
use self::report::ReportArgs;
use self::state::StateArgs;
use self::sweep::SweepArgs;
use self::tables::TableBench;
use self::utxo::Utxo;

/// Sub-commands of `terrane bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Looks up, deletes and inserts in a large table, like a set of unspent outputs
    #[command(subcommand, after_help = utxo::EXAMPLES)]
    Utxo(Utxo),
    /// Counts the reads of random lookups in a table with a memory budget
    #[command(subcommand, after_help = kvget::EXAMPLES)]
    Kvget(Kvget),
    /// Looks up beside puts and deletes, and checks every result
    #[command(after_help = mixed::EXAMPLES)]
    Mixed(MixedArgs),
    /// Compares engines as an index from hashes to objects
    #[command(subcommand, after_help = index::EXAMPLES)]
    Index(Index),
    /// Builds and commits blocks of operations on versioned trees of the context store
    #[command(after_help = context::EXAMPLES)]
    Context(ContextArgs),
    /// Compares the back-ends of the radix state by the ten tests of Transact and other loads
    #[command(after_help = radix::EXAMPLES)]
    Radix(RadixArgs),
    /// Commits blocks of accounts and slots to an Ethereum state, proves and goes back
    #[command(after_help = state::EXAMPLES)]
    State(StateArgs),
    /// Measures small commits, alone or beside other work of the store
    #[command(after_help = commits::EXAMPLES)]
    Commits(CommitsArgs),
    /// Measures the device alone: random and sequential reads, appends, a timer
    #[command(after_help = disk::EXAMPLES)]
    Disk(DiskArgs),
    /// Predicts the reads of random lookups in a table with a memory budget
    #[command(after_help = model::EXAMPLES)]
    Model(ModelArgs),
    /// Compares upserts with inserts, and with lookups followed by inserts
    #[command(after_help = UPSERT_EXAMPLES)]
    Upsert(UpsertArgs),
    /// Looks keys up in a union of tables while instalments pay the merge debt
    #[command(after_help = UNION_EXAMPLES)]
    Union(UnionArgs),
    /// Runs a benchmark for every combination of the values of some options; resumable
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(SweepArgs),
    /// Compares two results, and fails if a metric is worse than a rule allows
    #[command(after_help = compare::EXAMPLES)]
    Compare(CompareArgs),
    /// Draws reports as one page with plots
    #[command(after_help = report::EXAMPLES)]
    Report(ReportArgs),
    /// Reads logs of the published benchmark `bench_kvdb` as results
    #[command(name = "import-bench-kvdb", after_help = import::EXAMPLES)]
    Import(ImportArgs),
    #[command(flatten)]
    Table(TableBench),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane bench utxo setup --store /tmp/terrane-utxo --entries 10M
  terrane bench utxo run --store /tmp/terrane-utxo --calibrate
  terrane bench kvget setup --store /tmp/terrane-kvget --keys 10M
  terrane bench kvget run --store /tmp/terrane-kvget --memory-budget 0.2%
  terrane bench mixed --store /tmp/terrane-bench --mix get:50,put:50
  terrane bench index high-insert --store /tmp/terrane-index --entries 1M
  terrane bench context --store /tmp/terrane-context
  terrane bench radix --dir /tmp/terrane-bench --load tests
  terrane bench commits --store /tmp/terrane-bench --beside compaction
  terrane bench disk --dir /tmp/terrane-bench
  terrane bench model
  terrane bench sweep --journal batch.jsonl --vary batch=1,64 \\
    -- kvget run --store /tmp/terrane-kvget
  terrane bench compare before.json after.json --fail-if 'io_per_get>+3%'
  terrane bench upsert --store /tmp/terrane-bench
  terrane bench union --store /tmp/terrane-bench --entries 100k --json
  terrane bench ingest --store /tmp/terrane-bench
  terrane bench scan --store /tmp/terrane-bench --calibrate
  terrane bench recover --store /tmp/terrane-bench
  terrane bench queue --dir /tmp/terrane-bench

Benchmarks leave no data in the store, except those with a `setup` command or with `--keep`. Measure on a quiet \
machine.";

const UPSERT_EXAMPLES: &str = "\
Examples:
  The workload of the literature: 80,000 pairs of 8 bytes, 250 a batch:
    terrane bench upsert --store /tmp/terrane-bench
  Ten times as many, for a program to read:
    terrane bench upsert --store /tmp/terrane-bench --elements 800k --json";

const UNION_EXAMPLES: &str = "\
Examples:
  Ten tables of a million entries each (takes some minutes and 2 GB of disk):
    terrane bench union --store /tmp/terrane-bench
  A small one:
    terrane bench union --store /tmp/terrane-bench --entries 20k --rounds 5";

#[derive(Debug, Args)]
struct CommonArgs {
    /// Directory of the store to work in; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Seed of keys and values
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UpsertArgs {
    /// Pairs to insert and to upsert
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "80k")]
    elements: u64,
    /// Operations in a batch
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "250")]
    batch: u64,
    /// Repetitions of the whole workload; the report has the medians
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "9")]
    rounds: u64,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UnionArgs {
    /// Tables to unite
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10")]
    tables: u64,
    /// Entries of each table, about: half of the keys of a domain twice as large
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    entries: u64,
    /// Batches of 256 lookups in a round
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "200")]
    batches: u64,
    /// Rounds at full debt, and the same number without debt
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "50")]
    rounds: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl Bench {
    /// Returns the name of the sub-command.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Utxo(utxo) => utxo.command(),
            Self::Kvget(kvget) => kvget.command(),
            Self::Index(index) => index.command(),
            Self::Context(_) => "bench context",
            Self::Radix(_) => "bench radix",
            Self::State(_) => "bench state",
            Self::Commits(_) => "bench commits",
            Self::Disk(_) => "bench disk",
            Self::Mixed(_) => "bench mixed",
            Self::Model(_) => "bench model",
            Self::Upsert(_) => "bench upsert",
            Self::Union(_) => "bench union",
            Self::Sweep(_) => "bench sweep",
            Self::Compare(_) => "bench compare",
            Self::Report(_) => "bench report",
            Self::Import(_) => "bench import-bench-kvdb",
            Self::Table(table) => table.command(),
        }
    }

    /// Runs the command and returns the exit code.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::Utxo(utxo) => utxo.run()?,
            Self::Kvget(kvget) => return kvget.run(),
            Self::Mixed(mixed) => return mixed.run(self.command()),
            Self::Index(index) => return index.run(),
            Self::Context(context) => return context.run(self.command()),
            Self::Radix(radix) => return radix.run(self.command()),
            Self::State(state) => return state.run(self.command()),
            Self::Commits(commits) => commits.run(self.command())?,
            Self::Disk(disk) => disk.run(self.command())?,
            Self::Model(model) => model.run(self.command())?,
            Self::Upsert(upsert) => upsert.run(self.command())?,
            Self::Union(union) => union.run(self.command())?,
            Self::Sweep(sweep) => return sweep.run(self.command()),
            Self::Compare(compare) => return compare.run(self.command()),
            Self::Report(report) => report.run(self.command())?,
            Self::Import(import) => import.run(self.command())?,
            Self::Table(table) => table.run()?,
        }
        Ok(0)
    }
}

impl UpsertArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let Self { elements, batch, rounds, .. } = *self;
        let options = upsert::Options { elements, batch, rounds, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = upsert::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let lines = [
            ("pairs", format!("{} ({} a batch)", report.elements, report.batch)),
            ("insert", format!("{:.4} s", report.insert_s)),
            ("upsert", format!("{:.4} s", report.upsert_s)),
            ("upsert / insert", format!("{:.3}", report.upsert_over_insert)),
            ("10 upserts a key", format!("{:.4} s", report.ten_upserts_s)),
            ("10 lookups + inserts", format!("{:.4} s", report.ten_lookups_and_inserts_s)),
            ("upserts are faster", format!("{:.2} times", report.speedup)),
        ];

        output::report(command, self.common.output.json, &report, &lines)
    }
}

impl UnionArgs {
    fn run(&self, command: &str) -> Result<(), Failure> {
        let Self { tables, entries, batches, rounds, .. } = *self;
        let options = union::Options { tables, entries, batches, rounds, seed: self.common.seed };
        let mut progress = Progress::new(self.common.output.quiet);
        let report = union::run(&self.common.store, &options, &mut progress)?;
        drop(progress);

        let show = |round: &union::Round| {
            let rate = round.lookups_per_s;
            let reads = round.reads_per_lookup;
            format!("{rate:.0} lookups/s, {reads:.3} reads each")
        };

        let mut lines = vec![
            ("entries", format!("{} in {} tables", report.entries, report.tables)),
            ("keys", report.keys.to_string()),
            ("debt", report.debt.to_string()),
            ("paid in", format!("{:.2} s", report.pay_s)),
            ("longest 1 %", format!("{:.3} s", report.instalment_max_s)),
            ("one table", show(&report.reference)),
        ];

        let names = ["debt 100 %", "debt 75 %", "debt 50 %", "debt 25 %", "debt 0 %"];
        lines.extend(names.into_iter().zip(report.quarters.iter().map(show)));

        output::report(command, self.common.output.json, &report, &lines)
    }
}

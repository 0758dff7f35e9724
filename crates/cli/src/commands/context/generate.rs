//! `terrane context gen-trace`: the workload of `terrane bench context` as a trace of irmin's
//! benchmark, which this and other stores can replay.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::{Disk, MemoryDisk, RealDisk};
use terrane_bench::workloads::context::profile::Profile;
use terrane_bench::workloads::context::record::record;
use terrane_bench::workloads::context::{Generator, Options};
use terrane_replay::engines::context::{CommitHash, ContextEngine as _};
use terrane_replay::engines::context_store::{ContextStore, Settings, open_or_create};

use crate::commands::bench::choices::ProfileArg;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::Output;
use crate::ui::text::grouped;

pub(super) const EXAMPLES: &str = "\
Examples:
  100 blocks of the protocol Lima over 100,000 values, and their replay:
    terrane context gen-trace lima.repbt
    terrane replay irmin-trace lima.repbt --store /tmp/terrane-replay
  Small blocks, with a fork before each tenth one:
    terrane context gen-trace 2021.repbt --profile 2021 --blocks 1000 \\
      --fork-every 10
  Into a pipe:
    terrane context gen-trace - --blocks 1000 | zstd > lima.repbt.zst

The same options give the same trace. Its first commit is the starting state, value by value. A \
context store in memory, with the starting state and all blocks, computes the hashes; with \
--store it is that store, which stays. After Ctrl-C nothing is left of the file.";

#[derive(Debug, Args)]
pub(crate) struct GenTraceArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Operations of a block
    #[arg(long, value_enum, default_value_t = ProfileArg::Lima)]
    profile: ProfileArg,
    /// Values of the starting state
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "100k")]
    values: u64,
    /// Blocks
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "100")]
    blocks: u64,
    /// Blocks between two forks; a fork is one more block of the same parent, without descendants,
    /// and counts as a block
    #[arg(long, value_name = "N", value_parser = args::positive_count)]
    fork_every: Option<u64>,
    /// Seed of values and blocks
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    /// Directory of the store that makes the commits; created if it is missing
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Generated {
    file: String,
    profile: &'static str,
    seed: u64,
    values: u64,
    blocks: u64,
    bytes: u64,
    last_commit: String,
    wall_s: f64,
}

impl GenTraceArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Instant::now();
        let profile: &Profile = self.profile.into();
        let mut generator = Generator::new(Options {
            seed: self.seed,
            values: self.values,
            profile: self.profile.into(),
            fork_every: self.fork_every,
        })?;

        let output = Output::new(&self.file, self.force, self.output.json)?;
        let bar = ByteBar::new("writing", self.output.quiet);

        let mut written = 0;
        let write = |stream: &mut dyn Write| {
            let mut counting = Counting { stream, bytes: 0 };
            let tip = self.write(&mut generator, &mut counting)?;
            written = counting.bytes;
            Ok(tip)
        };

        let done =
            output.export((bar, None), output.interrupts(), write, |error: Failure| error)?;

        // The reader of standard output went away.
        let Some(last_commit) = done else { return Ok(()) };
        let report = Generated {
            file: self.file.display().to_string(),
            profile: profile.name,
            seed: self.seed,
            values: self.values,
            blocks: self.blocks,
            bytes: written,
            last_commit: last_commit.to_string(),
            wall_s: started.elapsed().as_secs_f64(),
        };

        let state = format!("{} values and {} blocks", grouped(self.values), grouped(self.blocks));
        let lines = [
            ("trace", format!("{}, {}", report.file, bytes(written))),
            ("of", format!("{state} of profile {}", profile.name)),
            ("last commit", report.last_commit.clone()),
            ("time", format!("{:.3} s", report.wall_s)),
        ];

        output.report(command, &report, &output::aligned(&lines))
    }

    /// Writes the trace; returns its last commit.
    fn write(&self, generator: &mut Generator, out: &mut dyn Write) -> Result<CommitHash, Failure> {
        let (disk, dir): (Arc<dyn Disk>, PathBuf) = match &self.store {
            Some(dir) => (RealDisk::auto(), dir.clone()),
            None => (MemoryDisk::new(), PathBuf::from("context")),
        };

        let settings = Settings { is_durable: false, ..Settings::default() };
        let mut engine = ContextStore::new(open_or_create(&disk, &dir, settings)?);

        // The engine is closed also after a failure or an interruption.
        let recorded = record(generator, &mut engine, self.blocks, out);
        let closed = engine.close();
        let tip = recorded?;
        closed?;
        Ok(tip)
    }
}

/// Stream that counts its bytes.
struct Counting<'a> {
    stream: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

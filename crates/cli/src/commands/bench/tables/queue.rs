//! `terrane bench queue`: rate and processor time of random reads through a queue of the disk.

use std::path::PathBuf;

use clap::Args;
use terrane::io::QueueChoice;
use terrane_bench::workloads::queue::{self, Options};

use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;

pub(super) const EXAMPLES: &str = "\
Examples:
  128 reads in flight, past the page cache:
    terrane bench queue --dir /tmp/terrane-bench
  The same on threads, for a program to read:
    terrane bench queue --dir /tmp/terrane-bench --queue threads --json

The file is made in DIR and removed at the end. Every read is checked. Processor time is that of \
the whole process, workers of the queue included.";

args::choices! {
    /// Kind of a queue.
    enum QueueArg => QueueChoice {
        /// io_uring where the system has it, threads elsewhere
        Auto => QueueChoice::Auto,
        /// io_uring, or an error
        IoUring => QueueChoice::IoUring,
        /// Threads
        Threads => QueueChoice::Threads,
    }
}

#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    /// Directory for the file; created if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Size of the file, in whole MiB
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "1GiB")]
    file_bytes: u64,
    /// Reads in flight
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "128")]
    depth: u64,
    /// Reads in all
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500k")]
    reads: u64,
    /// Kind of the queue
    #[arg(long, value_enum, default_value_t = QueueArg::Auto)]
    queue: QueueArg,
    /// Reads through the page cache
    #[arg(long)]
    buffered: bool,
    /// Seed of the pages to read
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl QueueArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let options = Options {
            file_bytes: self.file_bytes,
            depth: self.depth,
            reads: self.reads,
            queue: self.queue.into(),
            buffered: self.buffered,
            seed: self.seed,
        };
        let mut progress = Progress::new(self.output.quiet);
        let report = queue::run(&self.dir, &options, &mut progress)?;
        drop(progress);

        let file = output::bytes(report.file_bytes);
        let lines = [
            ("queue", format!("{}, {} in flight", report.queue, report.depth)),
            ("file", format!("{file}, {}", report.access)),
            ("reads", format!("{:.0}/s, of {}", report.reads_per_s, report.reads)),
            ("processor", format!("{:.2} us a read", report.cpu_us_per_read)),
        ];

        output::report(command, self.output.json, &report, &lines)
    }
}

//! Terrane and its rivals on one load, under one limit of memory.
//!
//! ```text
//! cargo run --release -- all --entries 10M --memory 256MiB --out DIR
//! ```
//!
//! runs the whole comparison unattended; [`all`] says in which order, and how it goes on after an
//! interruption. `run` is one point of it ([`point`]), in a process of its own. `table` prints what
//! a folder of results says. [`work`] has the workloads, [`engines`] the engines and their
//! settings. `differential` compares answers instead of speed: one trace on several engines.

#![deny(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod arguments;
mod engine;
mod kind;
mod engines;
mod work;
mod report;
mod files;
mod go;
mod differential;
mod point;
mod table;
mod all;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::arguments::{bytes, count};
use crate::engine::{Error, Result};
use crate::kind::Kind;
use crate::report::Plan;
use crate::work::Workload;

#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every engine on every workload, in rounds; go on where an earlier run ended.
    All(all::Options),
    /// Run one engine on one workload and print one JSON object.
    Run(RunOptions),
    /// Run one trace of operations on several engines and compare every answer.
    Differential(differential::Options),
    /// Print the tables of a folder of results.
    Table {
        /// Folder that `all` wrote.
        out: PathBuf,
    },
}

/// Options of a point.
#[derive(Debug, clap::Args)]
struct RunOptions {
    /// The engine.
    #[arg(long)]
    engine: Kind,
    /// The workload.
    #[arg(long)]
    workload: Workload,
    /// Entries that are loaded, as 1000000 or 1M.
    #[arg(long, value_parser = count, default_value = "1M")]
    entries: u64,
    /// Memory of process and page cache together, as 256MiB.
    #[arg(long, value_parser = bytes, default_value = "256MiB")]
    memory: u64,
    /// Seconds of warm-up.
    #[arg(long, default_value_t = 5.0)]
    warm: f64,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Seed of keys, values and draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the repetition, for the report.
    #[arg(long, default_value_t = 0)]
    round: u64,
    /// An empty folder for the files.
    #[arg(long)]
    dir: PathBuf,
}

fn run(options: &RunOptions) -> Result<()> {
    let plan = Plan {
        engine: options.engine,
        workload: options.workload,
        entries: options.entries,
        memory_bytes: options.memory,
        warm_s: options.warm,
        seconds: options.seconds,
        seed: options.seed,
        round: options.round,
    };
    std::fs::create_dir_all(&options.dir).map_err(|source| Error::System {
        what: format!("make {}", options.dir.display()),
        source,
    })?;
    let outcome = point::run(&plan, &options.dir)?;
    let text =
        serde_json::to_string(&outcome).map_err(|error| Error::Options(error.to_string()))?;
    writeln!(std::io::stdout(), "{text}")
        .map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::All(options) => all::run(&options),
        Command::Run(options) => run(&options),
        Command::Differential(options) => differential::run(&options),
        Command::Table { out } => table::print(&out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrane-peers: {error}");
            let code = match error {
                Error::Wrong(_) | Error::Engine { .. } | Error::Cannot(_) => 1,
                Error::Options(_) => 2,
                Error::Limit(_) | Error::System { .. } => 3,
            };
            ExitCode::from(code)
        }
    }
}

//! `terrane mpt export` and `import`: files of a whole state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{SessionOptions, StoreOptions};
use terrane::mpt::{self, Block, Import, Transferred};

use super::HeightArgs;
use crate::ui::args::StoreArgs;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::stream::{Input, ModeArgs, Output};
use crate::ui::text::grouped;

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  terrane mpt export tip.mpt --store /data/state
  terrane mpt export - --height 4_096 --store /data/state |
    ssh there 'cat > state.mpt'

The same state of the same block gives the same bytes from every store.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Example:
  terrane mpt import tip.mpt --store /data/copy

`import` computes the roots of all storages and of the state; the state opens only if they are \
those in the file. If the import is interrupted, the same command goes on with it.";

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    height: HeightArgs,
    /// Replaces the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// File to read; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Serialize)]
struct TransferReport {
    height: u64,
    root: String,
    file: String,
    accounts: u64,
    slots: u64,
    codes: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed: Option<bool>,
    wall_s: f64,
}

impl TransferReport {
    fn new(block: Block, done: Transferred, file: String, started: Instant) -> Self {
        let Transferred { accounts, slots, codes, bytes, .. } = done;
        Self {
            height: block.height,
            root: block.root.to_string(),
            file,
            accounts,
            slots,
            codes,
            bytes,
            resumed: None,
            wall_s: started.elapsed().as_secs_f64(),
        }
    }

    fn text(&self, verb: &str) -> String {
        output::aligned(&[
            (verb, format!("block {}, {}", self.height, self.file)),
            ("root", self.root.clone()),
            ("accounts", grouped(self.accounts)),
            ("slots", grouped(self.slots)),
            ("codes", grouped(self.codes)),
            ("bytes", bytes(self.bytes)),
            ("time", format!("{:.3} s", self.wall_s)),
        ])
    }
}

impl ExportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let output =
            Output::new(&self.file, self.force, self.common.output.json)?.with_mode(self.mode);
        let started = Instant::now();
        let signals = output.interrupts();
        let state = self.height.open(&self.common.store)?;
        let bar = ByteBar::new("exporting", self.common.output.quiet);
        let file = self.file.display().to_string();
        let to_failure = |error| Failure::from(error).about(&file);
        let done = output.export((bar, None), signals, |out| state.export(out), to_failure)?;
        let Some(done) = done else { return Ok(()) };

        let report = TransferReport::new(state.block(), done, file.clone(), started);
        output.report(command, &report, &report.text("exported"))
    }
}

impl ImportArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Instant::now();
        // A missing input is refused before a store is created for it.
        let bar = ByteBar::new("importing", self.common.output.quiet);
        let mut input = Input::open(&self.file, bar)?;
        let file = self.file.display().to_string();
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let store = StoreOptions::default().session(SessionOptions::default().create_dir());
        let options = mpt::Options::default().store(store);

        let mut import = Import::open(disk, &self.common.store, &options)?;
        let position = import.position();
        let resumed = position.last_account.is_some() || position.pending.is_some();
        let pushed = import.push_stream(&mut std::io::BufReader::new(&mut input));
        let (block, done) = pushed.map_err(|error| Failure::from(error).about(&file))?;
        let (state, committed) = import.finish(block.height, block.hash, Some(block.root))?;
        let waited = committed.ticket.wait().map_err(mpt::Error::from);
        let closed = state.close();
        input.close();
        waited?;
        closed?;

        let mut report = TransferReport::new(block, done, file, started);
        report.resumed = Some(resumed);
        if self.common.output.json {
            return output::report(command, true, &report, &[]);
        }
        output::print(&report.text("imported"))
    }
}

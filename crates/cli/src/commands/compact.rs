//! `terrane compact`: reclaims the space of deleted and replaced entries.
//!
//! # JSON
//!
//! `tables` (how many), `table` (null if all were compacted), `bytes_before`, `bytes_after` (of the
//! store on the disk), `wall_s`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::RealDisk;
use terrane::io::files::allocated_below;
use terrane::lsm::{Error, TableName};

use crate::commands::kv::MemoryArgs;
use crate::stores::open::{Opening, check_table, open_tables_with};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::text::count_of;

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane compact --store /data/ledger
  One table only:
    terrane compact --store /data/ledger --table accounts
  After entries were deleted from a full disk:
    terrane delete --prefix old/ --store /data/ledger
    terrane compact --store /data/ledger --json

Deleted entries occupy space until a compaction reaches them; `compact` merges each table into \
one run. It rewrites one table after the other and removes the old files of a table last, so \
there must be room for the live entries of the largest table. Snapshots and retained versions \
keep the files that they need: delete them first. An interrupted `compact` loses \
nothing and can be repeated.";

/// Bytes of a page: the library reports progress in pages.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Args)]
pub(crate) struct Compact {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Name of the table; all tables if it is left out
    #[arg(long, value_name = "NAME", value_parser = args::table_name)]
    table: Option<TableName>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Compacted<'a> {
    tables: u64,
    table: Option<&'a str>,
    bytes_before: u64,
    bytes_after: u64,
    wall_s: f64,
}

fn stored_bytes(dir: &Path) -> Result<u64, Failure> {
    Ok(allocated_below(RealDisk::auto().as_ref(), dir).map_err(Error::from)?)
}

impl Compact {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let started = Instant::now();
        if let Some(table) = &self.table {
            check_table(&self.store, table)?;
        }
        let opening = Opening { memory_budget: self.memory.budget(), ..Opening::default() };
        let store = open_tables_with(&self.store, false, opening)?;
        let bytes_before = stored_bytes(&self.store)?;

        let mut bar = ByteBar::new("compacting", self.output.quiet);
        let progress = &mut |done, total| bar.set(done * PAGE_BYTES, total * PAGE_BYTES);
        let (tables, compacted) = match &self.table {
            Some(table) => (1, store.compact_table(table, progress)),
            None => (store.tables()?.len() as u64, store.compact(progress)),
        };
        drop(bar);

        // Tables that were compacted before an error stay compacted, durably.
        let closed = store.close();
        compacted.and(closed)?;

        let bytes_after = stored_bytes(&self.store)?;
        let wall_s = started.elapsed().as_secs_f64();
        let lines = [
            ("compacted", count_of(tables, "table", "tables")),
            ("store", format!("{}, before {}", bytes(bytes_after), bytes(bytes_before))),
        ];

        let table = self.table.as_ref().map(TableName::as_str);
        let made = Compacted { tables, table, bytes_before, bytes_after, wall_s };

        output::report("compact", self.output.json, &made, &lines).map(|()| 0)
    }
}

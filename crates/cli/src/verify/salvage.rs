//! `terrane salvage`: takes what is whole out of a damaged store into a new one.
//!
//! # JSON
//!
//! The report on a store with tables:
//!
//! | field            | meaning                                                                  |
//! |------------------|--------------------------------------------------------------------------|
//! | `damaged`, `new` | the two directories                                                      |
//! | `tables`         | list of `name`, `entries` (live ones; null if this program cannot open the table) |
//! | `snapshots`      | list of names                                                            |
//! | `problems`       | those of `terrane verify`, in the damaged store                          |
//! | `lost`           | those of `terrane verify`; `ok` is false, and the exit code 1, unless this is empty and `doubtful` 0 |
//! | `doubtful`       | entries in tables and snapshots named `NAME-doubtful`                    |
//! | `is_lower_bound` | whether more may be lost than the numbers in `lost` say                  |
//! | `wall_s`         | seconds                                                                  |
//!
//! The report on a B+tree, a context store or a radix store is that of `terrane verify --repair
//! --accept-loss` on the copy.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::io::{Disk, LockGuard, Loss, RealDisk};
use terrane::lsm::salvage::{self, Salvaged};
use terrane::state_dir;

use crate::stores::back_ends::ServerArgs;
use crate::stores::index_path::IndexPath;
use crate::stores::open::{is_within, remove_content};
use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::ByteBar;
use crate::ui::text::{count_of, grouped, table};
use crate::verify::outcome::Reporting;
use crate::verify::verify::{Lost, Problem, is_context_store};
use crate::verify::{check_btree, check_context, check_radix};

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane salvage /data/ledger /data/salvaged
  From a read-only medium, for a program to read:
    terrane salvage /mnt/broken/ledger /data/salvaged --json

`salvage` writes nothing to the damaged directory. It copies what can be read, repairs the copy, \
and names what is lost: files, ranges of keys, commits. The exit code is 0 if nothing is lost, \
else 1. NEW must be missing or empty; there must be room for a copy.

Entries that are perhaps out of date, since a newer entry of the key may be lost, move to a table \
`NAME-doubtful`. If both copies of the manifest are lost, so are the names of tables: each run \
becomes a table `recovered-N`, and the log of a table becomes `recovered-log-N`. Retained versions \
are kept if no entry is lost. After an interruption NEW has the file `salvage-unfinished`: remove \
NEW and begin again.";

/// Bytes that are copied with one call.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes that are given up together if they cannot be read.
const SECTOR_BYTES: usize = 4096;

/// Error number of Linux for a sector that cannot be read.
const EIO: i32 = 5;

/// Locks that writers of the kinds of stores hold.
const LOCKS: [&str; 2] = ["lock", "radix-store.lock"];

#[derive(Debug, Args)]
pub(crate) struct Salvage {
    /// Directory of the damaged store; no other process may have it open
    #[arg(value_name = "DAMAGED")]
    damaged: PathBuf,
    /// Directory of the new store: missing or empty
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Table {
    name: String,
    entries: Option<u64>,
}

#[derive(Serialize)]
struct Report {
    damaged: String,
    new: String,
    tables: Vec<Table>,
    snapshots: Vec<String>,
    problems: Vec<Problem>,
    lost: Vec<Lost>,
    doubtful: u64,
    is_lower_bound: bool,
    wall_s: f64,
}

impl Salvage {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported; then the new directory is gone again.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let was_there = self.check_places()?;
        let disk: Arc<dyn Disk> = RealDisk::auto();

        let salvaged = self.salvage(&disk);
        if salvaged.is_err() {
            // The first failure is reported; if the removal fails too, a directory is left that
            // says that it is unfinished.
            let _ = self.remove_new(was_there);
        }
        salvaged
    }

    /// Refuses directories that cannot be salvaged from or into. Returns whether the new one is
    /// there.
    fn check_places(&self) -> Result<bool, Failure> {
        let (damaged, new) = (&self.damaged, &self.new);
        if !damaged.is_dir() {
            let what = if damaged.exists() { "is not a directory" } else { "does not exist" };
            return Err(Failure::usage(format!("{} {what}", damaged.display())));
        }
        if is_within(new, damaged) || is_within(damaged, new) {
            return Err(Failure::usage("one directory lies in the other; choose another NEW"));
        }

        match fs::read_dir(new).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Ok(true),
            Ok(false) => {
                Err(Failure::usage(format!("{} is not empty; choose another NEW", new.display())))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                Err(Failure::usage(format!("{} is not a directory", new.display())))
            }
            Err(error) => Err(Failure::of_file(new, &error)),
        }
    }

    fn remove_new(&self, was_there: bool) -> io::Result<()> {
        if !was_there {
            return if self.new.exists() { fs::remove_dir_all(&self.new) } else { Ok(()) };
        }
        remove_content(&self.new)
    }

    fn salvage(&self, disk: &Arc<dyn Disk>) -> Result<u8, Failure> {
        let (damaged, new) = (&self.damaged, &self.new);
        let reporting =
            Reporting { command: "salvage", json: self.output.json, quiet: self.output.quiet };
        let loss = Some(Loss::Accepted);

        if IndexPath::of(disk, damaged)? == Some(IndexPath::Dir) {
            self.copy(disk.as_ref())?;
            let code = check_btree::verify(disk, new, loss, reporting)?;
            return self.end().map(|()| code);
        }
        if state_dir::is_store(damaged)? {
            self.copy(disk.as_ref())?;
            let code = check_radix::verify(new, &self.servers, loss, reporting)?;
            return self.end().map(|()| code);
        }
        if is_context_store(disk.as_ref(), damaged)? {
            self.copy(disk.as_ref())?;
            let code = check_context::verify(disk, new, loss, reporting)?;
            return self.end().map(|()| code);
        }

        let started = Instant::now();
        let mut bar = ByteBar::new("salvaging", self.output.quiet);
        let salvaged =
            salvage::salvage(disk, damaged, new, &mut |done, total| bar.set(done, total))?;
        drop(bar);

        let failure = self.failure(&salvaged);
        let report = self.report(salvaged, started.elapsed().as_secs_f64());
        output::checked("salvage", self.output.json, &report, &report.text(), failure.as_ref())
    }

    fn failure(&self, salvaged: &Salvaged) -> Option<Failure> {
        if salvaged.is_complete() {
            return None;
        }
        let new = self.new.display();
        let lost = count_of(salvaged.lost.len() as u64, "thing was", "things were");
        let doubtful = count_of(salvaged.doubtful, "entry is", "entries are");
        Some(Failure::check(format!(
            "{lost} lost, {doubtful} doubtful; the rest is whole; next: terrane table list --store {new}"
        )))
    }

    fn report(&self, salvaged: Salvaged, wall_s: f64) -> Report {
        let tables = salvaged.tables.into_iter();
        Report {
            damaged: self.damaged.display().to_string(),
            new: self.new.display().to_string(),
            tables: tables
                .map(|found| Table { name: found.name, entries: found.entries })
                .collect(),
            snapshots: salvaged.snapshots,
            problems: salvaged.problems.into_iter().map(Problem::new).collect(),
            lost: salvaged.lost.iter().map(Lost::new).collect(),
            doubtful: salvaged.doubtful,
            is_lower_bound: salvaged.is_lower_bound,
            wall_s,
        }
    }

    /// Copies all files of the damaged directory, and notes that the new one is unfinished.
    fn copy(&self, disk: &dyn Disk) -> Result<(), Failure> {
        let mut locks: Vec<Box<dyn LockGuard>> = Vec::new();
        for name in LOCKS {
            match disk.lock_shared(&self.damaged.join(name)) {
                Ok(lock) => locks.push(lock),
                Err(error) if error.is_not_found() || error.is_permission() => {}
                Err(error) => return Err(terrane::lsm::Error::from(error).into()),
            }
        }

        fs::create_dir_all(&self.new).map_err(|error| Failure::of_file(&self.new, &error))?;
        let unfinished = self.new.join(salvage::UNFINISHED);
        File::create(&unfinished).map_err(|error| Failure::of_file(&unfinished, &error))?;

        let mut bar = ByteBar::new("copying", self.output.quiet);
        let mut done = 0;
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let from = self.damaged.join(&dir);
            for entry in fs::read_dir(&from).map_err(|error| Failure::of_file(&from, &error))? {
                let entry = entry.map_err(|error| Failure::of_file(&from, &error))?;
                let kind = entry.file_type().map_err(|error| Failure::of_file(&from, &error))?;
                let part = dir.join(entry.file_name());
                let to = self.new.join(&part);
                if kind.is_dir() {
                    fs::create_dir(&to).map_err(|error| Failure::of_file(&to, &error))?;
                    dirs.push(part);
                } else if kind.is_file() {
                    let mut told = |bytes| {
                        done += bytes;
                        bar.show(done, None);
                    };
                    copy_file(&entry.path(), &to, &mut told)
                        .map_err(|error| Failure::of_file(&to, &error))?;
                }
            }
        }

        Ok(())
    }

    /// Notes that the new directory is finished.
    fn end(&self) -> Result<(), Failure> {
        let unfinished = self.new.join(salvage::UNFINISHED);
        fs::remove_file(&unfinished).map_err(|error| Failure::of_file(&unfinished, &error))
    }
}

/// Copies a file; sectors that cannot be read become zeros.
fn copy_file(from: &Path, to: &Path, told: &mut dyn FnMut(u64)) -> io::Result<()> {
    let from = File::open(from)?;
    let mut to = File::create_new(to)?;
    let mut left = from.metadata()?.len();
    let mut offset = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    while left > 0 {
        let bytes = &mut chunk[..left.min(CHUNK_BYTES as u64) as usize];
        match from.read_exact_at(bytes, offset) {
            Err(error) if error.raw_os_error() == Some(EIO) => read_sectors(&from, bytes, offset)?,
            read => read?,
        }
        to.write_all(bytes)?;
        offset += bytes.len() as u64;
        left -= bytes.len() as u64;
        told(bytes.len() as u64);
    }
    to.sync_all()
}

fn read_sectors(from: &File, bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    for sector in bytes.chunks_mut(SECTOR_BYTES) {
        match from.read_exact_at(sector, offset) {
            Err(error) if error.raw_os_error() == Some(EIO) => sector.fill(0),
            read => read?,
        }
        offset += sector.len() as u64;
    }
    Ok(())
}

impl Report {
    fn text(&self) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(Problem::text).collect();
        lines.extend(self.lost.iter().map(Lost::text));

        let mut rows = vec![vec!["TABLE".to_owned(), "ENTRIES".to_owned()]];
        let entries =
            |entries: Option<u64>| entries.map_or_else(|| "not opened".to_owned(), grouped);
        rows.extend(
            self.tables.iter().map(|found| vec![found.name.clone(), entries(found.entries)]),
        );
        if !self.tables.is_empty() {
            lines.push(table(1, &rows));
        }
        if !self.snapshots.is_empty() {
            lines.push(format!("snapshots: {}", self.snapshots.join(", ")));
        }

        let at_least =
            if self.is_lower_bound { "; perhaps more than these numbers say" } else { "" };
        let lost = count_of(self.lost.len() as u64, "loss", "losses");
        let doubtful = count_of(self.doubtful, "doubtful entry", "doubtful entries");
        lines.push(format!(
            "salvaged {} into {} in {:.3} s: {lost}, {doubtful}{at_least}",
            self.damaged, self.new, self.wall_s
        ));
        lines.join("\n")
    }
}

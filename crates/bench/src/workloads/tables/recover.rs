//! `terrane bench recover`: opening of a store whose process was killed with commits in its WAL
//! that no checkpoint holds.
//!
//! A process of its own fills the store ([`fill`]), makes a checkpoint, and commits more in
//! batches of 512 updates, until the WAL has the bytes that are asked for. Then it says so and
//! waits, and [`run`] kills it. The store is opened twice, with what the page cache holds, and the
//! last commit is looked up. After a third opening follow commits of one update, of which the
//! first one does what opening has left. All entries are counted at the end.

use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrane::lsm::{Durability, NamedTable, Store, StoreOptions, TableConfig, TableName, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{FILL_BATCH, Result, WorkDir, check, key, report, value};
use crate::workloads::{Error, bounded, seconds};

/// Bytes that the WAL takes for an update in a batch, about.
const UPDATE_BYTES: u64 = 103;

/// Updates of a commit after the checkpoint.
const COMMIT_UPDATES: u64 = 512;

/// Times that the store is opened and closed unchanged.
const OPENINGS: usize = 2;

/// Between two looks at whether to stop.
const PATIENCE: Duration = Duration::from_millis(20);

/// Above this many bytes of the WAL the store makes a checkpoint by itself, while it is filled, at
/// least: the filling of small stores takes more than their WAL.
const FILL_LOG_BYTES_MIN: u64 = 64 << 20;

/// Bytes of the WAL from which on the store makes a checkpoint after it was opened.
const LATER_LOG_BYTES: u64 = 1 << 30;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Entries at the checkpoint.
    pub entries: u64,
    /// Bytes of the WAL after the checkpoint, about.
    pub wal_bytes: u64,
    /// Commits of one update after the store was opened; by default as many as the WAL has updates.
    pub commits: Option<u64>,
    /// Seed of keys and values.
    pub seed: u64,
}

impl Options {
    fn check(&self) -> Result<()> {
        bounded("entries", self.entries, 1)?;
        bounded(&format!("wal bytes / {UPDATE_BYTES}"), self.wal_updates(), 1)?;
        bounded("commits", self.commits(), 1)
    }

    /// Returns the number of updates after the checkpoint.
    fn wal_updates(&self) -> u64 {
        self.wal_bytes / UPDATE_BYTES
    }

    /// Returns the number of commits after the store was opened.
    fn commits(&self) -> u64 {
        self.commits.unwrap_or(self.wal_updates())
    }
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Entries at the checkpoint.
    pub entries: u64,
    /// Bytes of the WAL after the checkpoint, as asked for.
    pub wal_bytes: u64,
    /// Updates after the checkpoint.
    pub wal_updates: u64,
    /// Commits until the process was killed.
    pub commits_before: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Time of each opening.
    pub open_s: Vec<f64>,
    /// Commits of one update after the last opening.
    pub commits: u64,
    /// Time of the first of them.
    pub first_commit_ms: f64,
    /// Longest time of the others; 0 if there are none.
    pub later_commit_ms_max: f64,
}

/// A store that is filled and open, until its process is killed.
pub struct Filled {
    /// Commits made.
    pub commits: u64,
    /// Closing it would make a checkpoint.
    _store: Store,
}

fn commit(table: &NamedTable, seed: u64, numbers: Range<u64>) -> Result<()> {
    let entries: Vec<_> = numbers.map(|n| (key(seed, n), value(seed, n, 0))).collect();
    let batch: Vec<_> = entries.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
    // The process is killed, the machine is not: what is in the page cache survives.
    let _ = table.write_batch(&batch)?;
    Ok(())
}

fn buffered(log_bytes: u64) -> StoreOptions {
    StoreOptions::default().durability(Durability::Buffered).log_bytes_max(log_bytes)
}

/// Fills a new store in `dir`, in the process that is to be killed.
///
/// # Errors
/// [`Error`].
pub fn fill(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Filled> {
    options.check()?;
    let Options { entries, wal_bytes, seed, .. } = *options;
    let all = entries + options.wal_updates();
    // The store makes no checkpoint by itself within the bytes that are asked for.
    let log_bytes = (wal_bytes * 4).max(FILL_LOG_BYTES_MIN);
    let store = Store::open_dir(dir, &buffered(log_bytes).create_dir())?;
    let table = store.create_table(&TableName::default(), &TableConfig::default())?;

    for first in (0..entries).step_by(FILL_BATCH as usize) {
        report(monitor, Phase::Fill, first, all)?;
        commit(&table, seed, first..entries.min(first + FILL_BATCH))?;
    }
    store.checkpoint()?;

    for first in (entries..all).step_by(COMMIT_UPDATES as usize) {
        report(monitor, Phase::Fill, first, all)?;
        commit(&table, seed, first..all.min(first + COMMIT_UPDATES))?;
    }

    Ok(Filled { commits: store.last_commit(), _store: store })
}

/// Measures in a store in the directory `recover` below `dir`, which is removed at the end.
///
/// `filler` gives the command that calls [`fill`] with these options on the directory that it is
/// given, prints the number of commits as a line, and ends when its standard input does.
///
/// # Errors
/// [`Error`].
pub fn run(
    dir: &Path,
    options: &Options,
    filler: impl FnOnce(&Path) -> Command,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    options.check()?;
    let work = WorkDir::create(dir, "recover")?;
    let store = work.path().join("store");
    let commits_before = fill_and_kill(filler(&store), monitor)?;

    let mut open_s = Vec::new();
    for _ in 0..OPENINGS {
        open_s.push(open_killed(&store, options)?);
    }
    let (first_commit_ms, later_commit_ms_max) = go_on(&store, options, monitor)?;

    Ok(Report {
        entries: options.entries,
        wal_bytes: options.wal_bytes,
        wal_updates: options.wal_updates(),
        commits_before,
        seed: options.seed,
        open_s,
        commits: options.commits(),
        first_commit_ms,
        later_commit_ms_max,
    })
}

/// Runs the process that fills the store, and kills it when it has done so. Returns the number of
/// commits.
fn fill_and_kill(mut command: Command, monitor: &mut dyn Monitor) -> Result<u64> {
    let program = Path::new(command.get_program()).to_owned();
    let failed = |error| Error::io(&program, error);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let line = line_of(&mut child, monitor);

    // In any case the process goes: killed, or ended by itself before.
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    let line = line?;

    line.trim().parse().map_err(|_| {
        if monitor.stop() {
            return Error::Interrupted;
        }
        failed(std::io::Error::other("the process that fills the store ended early"))
    })
}

/// Waits for the line of a process; returns what there is if the process ends before.
fn line_of(child: &mut Child, monitor: &dyn Monitor) -> Result<String> {
    let Some(stdout) = child.stdout.take() else { return Ok(String::new()) };
    let (sender, receiver) = channel();
    // The thread ends with the process, at the latest.
    thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line);
        // The receiver is gone if the benchmark was interrupted.
        let _ = sender.send(line);
    });

    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(line) => return Ok(line),
            Err(RecvTimeoutError::Timeout) if monitor.stop() => return Err(Error::Interrupted),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
        }
    }
}

/// Opens the store, and leaves it as it is. Returns the seconds that the opening took.
fn open_killed(dir: &Path, options: &Options) -> Result<f64> {
    let start = Instant::now();
    let store = Store::open_dir(dir, &StoreOptions::default())?;
    let open_s = seconds(start);

    let last = options.entries + options.wal_updates() - 1;
    let found = store.table(&TableName::default())?.get(&key(options.seed, last))?;
    check(last, found.value(), Some(&value(options.seed, last, 0)))?;
    Ok(open_s)
}

/// Commits single updates to the store. Returns the milliseconds of the first commit, and of the
/// longest of the others.
fn go_on(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<(f64, f64)> {
    let before = options.entries + options.wal_updates();
    let commits = options.commits();
    let store = Store::open_dir(dir, &buffered(LATER_LOG_BYTES))?;
    let table = store.table(&TableName::default())?;
    let mut first_ms = 0.0;
    let mut later_ms_max = 0.0_f64;

    for number in 0..commits {
        report(monitor, Phase::Operations, number, commits)?;
        let start = Instant::now();
        commit(&table, options.seed, before + number..before + number + 1)?;
        let ms = seconds(start) * 1e3;
        if number == 0 {
            first_ms = ms;
        } else {
            later_ms_max = later_ms_max.max(ms);
        }
    }

    let count = table.view()?.count_exact()?;
    if count != before + commits {
        let message = format!("{count} entries, expected {}", before + commits);
        return Err(Error::Wrong(message));
    }
    Ok((first_ms, later_ms_max))
}

//! `terrane bench commits`: latencies of small commits to named tables, alone or beside other work
//! of the same store.
//!
//! Each thread commits one insertion after the other (34-byte key, 60-byte value) to its own table
//! and waits as the durability asks. Beside it, other tables of the store are filled so that they
//! flush and compact all the time, checkpoints follow on each other, and ranges are deleted, more
//! of them than a run masks. At the end every table has as many entries as it got.
//!
//! * A timer thread that does nothing sleeps for a millisecond again and again in the same run. By
//!   how much it wakes up late is the share of the machine in every latency.
//! * If commits are durable, the same file system first appends and syncs as many bytes by hand.
//! * Without a log, one thread, and nothing beside, the pages are counted that the longest commit
//!   reads and writes.
//! * Rejected: a rate of commits that is given. The threads and what is beside them take all of a
//!   small machine, which is the case that stalls.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrane::io::{Access, CountedDisk, Disk, OpenMode, RealDisk};
use terrane::lsm::{
    CompactionSchedule, CompactionThread, Durability, NamedTable, Store, StoreOptions, TableConfig,
    TableName, Update, WriteBuffer,
};
use terrane_replay::latency::{Latency, LatencyReport};
use terrane_replay::monitor::{Monitor, Phase};
use terrane_replay::store;

use super::{Error, Result, bounded, splitmix};

/// Bytes that the log takes for a commit of one insertion.
const RECORD_BYTES: usize = 152;

/// Longest run.
const SECONDS_MAX: f64 = 86_400.0;

/// Sleep of the idle timer.
const TIMER_STEP: Duration = Duration::from_millis(1);

/// Between two looks at the end of the run.
const LOOK: Duration = Duration::from_millis(20);

/// Updates in a batch beside the commits.
const BESIDE_BATCH: u64 = 100;

/// Keys of a deleted range.
const RANGE_KEYS: u64 = 16;

/// Ranges after which everything that is left is deleted: more than a run masks.
const RANGES: u64 = 4_000;

/// Part of the time for appending and syncing by hand.
const BY_HAND: f64 = 0.1;

/// When the compaction of the tables is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Merges {
    /// In equal shares inside the commits.
    Shares,
    /// On the thread of the session.
    Background,
    /// Each compaction at once when it is due.
    AtOnce,
}

/// Other work of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// A table that flushes and compacts all the time.
    Compaction,
    /// Checkpoints, one after the other.
    Checkpoint,
    /// A table whose ranges are deleted.
    RangeDelete,
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Threads that commit.
    pub threads: u64,
    /// Tables that they commit to, in turn.
    pub tables: u64,
    /// Durability of a commit; with [`Durability::None`] the store has no log.
    pub durability: Durability,
    /// Other work.
    pub beside: Vec<Beside>,
    /// When compaction is done.
    pub merges: Merges,
    /// Length of the measurement.
    pub seconds: f64,
    /// Seed of the keys.
    pub seed: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Threads that committed.
    pub threads: u64,
    /// Tables that they committed to.
    pub tables: u64,
    /// Durability of a commit.
    pub durability: &'static str,
    /// When compaction was done.
    pub merges: Merges,
    /// Other work.
    pub beside: Vec<Beside>,
    /// Length of the measurement.
    pub run_s: f64,
    /// Commits of all threads in a second.
    pub commits_per_s: f64,
    /// Latencies of the commits, durable if the durability asks for that.
    pub latency_us: LatencyReport,
    /// By how much the idle timer woke up late.
    pub idle_late_us: LatencyReport,
    /// The p99.99 of the commits beyond that of the idle timer.
    pub p9999_beyond_idle_us: f64,
    /// Appends of as many bytes in a second, each with an fsync, by one thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_hand_per_s: Option<f64>,
    /// Pages that the longest commit has read and written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_max: Option<u64>,
    /// Levels of the deepest table.
    pub levels: u64,
    /// Updates of the table that compacts.
    pub compaction_updates: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Ranges deleted.
    pub ranges_deleted: u64,
}

/// Counts of the other work.
#[derive(Debug, Default)]
struct BesideCounts {
    updates: AtomicU64,
    checkpoints: AtomicU64,
    ranges: AtomicU64,
}

/// Ends the run when a thread fails or returns.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn key(seed: u64, thread: u64, number: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    let mut state = splitmix(seed ^ thread.rotate_right(8) ^ number);
    for word in key[..32].as_chunks_mut::<8>().0 {
        *word = state.to_le_bytes();
        state = splitmix(state);
    }
    key
}

/// Key that stands in the order of its number.
fn ordered(number: u64) -> [u8; 8] {
    let mut key = number.to_le_bytes();
    key.reverse();
    key
}

fn table_name(number: u64) -> Result<TableName> {
    Ok(TableName::new(&format!("bench-commits-{number}"))?)
}

/// Measures in tables of its own in the store `dir`.
///
/// # Errors
/// [`Error`].
pub fn run(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    bounded("threads", options.threads, 1)?;
    bounded("tables", options.tables, 1)?;
    if !(options.seconds > 0.0 && options.seconds <= SECONDS_MAX) {
        let message = format!("seconds must be above 0 and at most {SECONDS_MAX}");
        return Err(Error::Options(message));
    }

    let disk: Arc<dyn Disk> = RealDisk::auto();
    store::open(&disk, dir)?.close()?;
    let is_durable = options.durability > Durability::Buffered;
    let by_hand_per_s = if is_durable { Some(by_hand(dir, options)?) } else { None };
    let counts_pages = options.durability == Durability::None
        && options.merges != Merges::Background
        && (options.threads, options.beside.len()) == (1, 0);
    let counted = counts_pages.then(|| CountedDisk::new(Arc::clone(&disk)));
    let disk = counted.clone().map_or(disk, |counted| counted as Arc<dyn Disk>);

    let store_options = StoreOptions::default().durability(options.durability);
    let store = Store::open(disk, dir, &store_options)?;
    drop_tables(&store)?;
    let measured = Bench { store: &store, options, counted: counted.as_deref() }.run(monitor);

    // Nothing stays behind, whatever has failed.
    let dropped = drop_tables(&store);
    let closed = store.close();
    let report = Report { by_hand_per_s, ..measured? };
    dropped?;
    closed?;
    Ok(report)
}

/// Drops the tables of this benchmark: its own, and those of a run that was interrupted.
fn drop_tables(store: &Store) -> Result<()> {
    for info in store.tables()? {
        if info.name.as_str().starts_with("bench-commits-") {
            store.drop_table(&info.name)?;
        }
    }
    Ok(())
}

/// Appends and syncs; returns how often in a second.
fn by_hand(dir: &Path, options: &Options) -> Result<f64> {
    let disk = RealDisk::auto();
    let path = dir.join("by-hand.tmp");
    let engine = |error: terrane::io::Error| Error::Engine(error.into());
    let file = disk.open(&path, OpenMode::Truncate, Access::Buffered).map_err(engine)?;
    let start = Instant::now();
    let mut count = 0_u64;
    while start.elapsed().as_secs_f64() < options.seconds * BY_HAND {
        file.append(&[7; RECORD_BYTES]).map_err(engine)?;
        file.sync().map_err(engine)?;
        count += 1;
    }

    let spent = start.elapsed().as_secs_f64();
    drop(file);
    disk.remove(&path).map_err(engine)?;
    Ok(count as f64 / spent)
}

/// A run on an open store.
struct Bench<'a> {
    store: &'a Store,
    options: &'a Options,
    counted: Option<&'a CountedDisk>,
}

/// Results of one thread that commits.
struct Committed {
    latency: Latency,
    commits: u64,
    pages_max: u64,
}

impl Bench<'_> {
    fn config(&self) -> TableConfig {
        let config = TableConfig::default().write_buffer(WriteBuffer::Entries(20_000));
        match self.options.merges {
            Merges::Shares => config,
            Merges::Background => config.compaction_thread(CompactionThread::Background),
            Merges::AtOnce => config.compaction_schedule(CompactionSchedule::OneShot),
        }
    }

    fn run(&self, monitor: &mut dyn Monitor) -> Result<Report> {
        let options = self.options;
        let mut tables = Vec::new();
        for number in 0..options.tables {
            tables.push(self.store.create_table(&table_name(number)?, &self.config())?);
        }
        let mut others = Vec::new();
        for number in 0..options.beside.len() as u64 {
            let name = table_name(options.tables + number)?;
            others.push(self.store.create_table(&name, &self.config())?);
        }

        let is_over = AtomicBool::new(false);
        let counts = BesideCounts::default();
        let start = Instant::now();
        let (committed, idle) = thread::scope(|scope| {
            let (is_over, counts) = (&is_over, &counts);
            let committers: Vec<_> = (0..options.threads)
                .map(|number| {
                    let table = &tables[(number % options.tables) as usize];
                    scope.spawn(move || self.commit_on(table, number, is_over))
                })
                .collect();
            let timer = scope.spawn(|| idle(is_over));
            let beside: Vec<_> = (options.beside.iter().zip(&others))
                .map(|(kind, table)| scope.spawn(move || self.go_on(*kind, table, counts, is_over)))
                .collect();

            let watched = self.watch(monitor, is_over);
            is_over.store(true, Ordering::Release);
            let mut committed = Vec::new();
            for committer in committers {
                committed.push(join(committer)?);
            }
            for thread in beside {
                join(thread)?;
            }
            let idle = timer.join().map_err(|_| Error::Wrong("the timer panicked".to_owned()))?;
            watched.map(|()| (committed, idle))
        })?;
        let run_s = start.elapsed().as_secs_f64();

        check(&tables, &committed)?;
        let mut latency = Latency::new();
        for thread in &committed {
            latency.merge(&thread.latency);
        }
        let latency_us = latency.report();
        let idle_late_us = idle.report();
        let mut levels = 0;
        for table in tables.iter().chain(&others) {
            levels = levels.max(table.stats()?.levels.len() as u64);
        }

        Ok(Report {
            threads: options.threads,
            tables: options.tables,
            durability: durability_name(options.durability),
            merges: options.merges,
            beside: options.beside.clone(),
            run_s,
            commits_per_s: latency_us.ops as f64 / run_s,
            latency_us,
            idle_late_us,
            p9999_beyond_idle_us: latency_us.p9999 - idle_late_us.p9999,
            by_hand_per_s: None,
            pages_max: self.counted.map(|_| committed.iter().map(|one| one.pages_max).sum()),
            levels,
            compaction_updates: counts.updates.into_inner(),
            checkpoints: counts.checkpoints.into_inner(),
            ranges_deleted: counts.ranges.into_inner(),
        })
    }

    /// Waits for the end of the measurement.
    fn watch(&self, monitor: &mut dyn Monitor, is_over: &AtomicBool) -> Result<()> {
        let start = Instant::now();
        let total = (self.options.seconds * 1e3) as u64;
        while !is_over.load(Ordering::Acquire) {
            let passed = start.elapsed();
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
            let left = self.options.seconds - passed.as_secs_f64();
            if left <= 0.0 {
                break;
            }
            monitor.progress(Phase::Measure, (passed.as_millis() as u64).min(total), Some(total));
            thread::sleep(LOOK.min(Duration::from_secs_f64(left)));
        }
        Ok(())
    }

    /// Commits one insertion after the other until the run is over.
    fn commit_on(
        &self,
        table: &NamedTable,
        thread: u64,
        is_over: &AtomicBool,
    ) -> Result<Committed> {
        let _ending = Ending(is_over);
        let Options { durability, seed, .. } = *self.options;
        let mut done = Committed { latency: Latency::new(), commits: 0, pages_max: 0 };
        let pages = || {
            let counts = self.counted.map(CountedDisk::counts);
            counts.map_or(0, |counts| counts.read_pages + counts.write_pages)
        };

        let mut pages_before = pages();
        while !is_over.load(Ordering::Relaxed) {
            let update = [(key(seed, thread, done.commits), Update::Insert(&[7; 60]))];
            let start = Instant::now();
            let ticket = self.store.commit_with(&[(table, &update[..])], durability)?;
            if durability == Durability::Group {
                ticket.wait()?;
            }
            done.latency.record(start.elapsed());
            done.commits += 1;

            if self.counted.is_some() {
                let pages_after = pages();
                done.pages_max = done.pages_max.max(pages_after - pages_before);
                pages_before = pages_after;
            }
        }
        Ok(done)
    }

    /// Does other work until the run is over.
    fn go_on(
        &self,
        kind: Beside,
        table: &NamedTable,
        counts: &BesideCounts,
        is_over: &AtomicBool,
    ) -> Result<()> {
        let _ending = Ending(is_over);
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) {
            match kind {
                Beside::Compaction => {
                    self.insert(table, round)?;
                    counts.updates.fetch_add(BESIDE_BATCH, Ordering::Relaxed);
                }
                Beside::Checkpoint => {
                    // Something to write out, also where nobody else commits.
                    self.insert(table, round)?;
                    self.store.checkpoint()?;
                    counts.checkpoints.fetch_add(1, Ordering::Relaxed);
                }
                Beside::RangeDelete => {
                    self.insert_ascending(table, round)?;
                    let from = ordered(round * BESIDE_BATCH);
                    let end = ordered(round * BESIDE_BATCH + RANGE_KEYS);
                    drop(table.delete_range(&from[..]..&end[..])?);
                    counts.ranges.fetch_add(1, Ordering::Relaxed);
                    if round % RANGES == RANGES - 1 {
                        drop(table.delete_range::<[u8], _>(..)?);
                    }
                }
            }
            round += 1;
        }
        Ok(())
    }

    /// Commits a batch of evenly spread keys, buffered.
    fn insert(&self, table: &NamedTable, round: u64) -> Result<()> {
        let numbers = round * BESIDE_BATCH..(round + 1) * BESIDE_BATCH;
        let keys: Vec<_> = numbers.map(|number| key(self.options.seed, u64::MAX, number)).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&[7; 60]))).collect();
        drop(self.store.commit_with(&[(table, &batch[..])], Durability::Buffered)?);
        Ok(())
    }

    /// Commits a batch of keys behind all that there were, buffered.
    fn insert_ascending(&self, table: &NamedTable, round: u64) -> Result<()> {
        let numbers = round * BESIDE_BATCH..(round + 1) * BESIDE_BATCH;
        let keys: Vec<_> = numbers.map(ordered).collect();
        let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(&[7; 60]))).collect();
        drop(self.store.commit_with(&[(table, &batch[..])], Durability::Buffered)?);
        Ok(())
    }
}

/// Counts what the tables have.
fn check(tables: &[NamedTable], committed: &[Committed]) -> Result<()> {
    for (number, table) in tables.iter().enumerate() {
        let threads = committed.iter().skip(number).step_by(tables.len());
        let expected: u64 = threads.map(|thread| thread.commits).sum();
        let found = table.view()?.count_exact()?;
        if found != expected {
            let message = format!("{} has {found} entries, not {expected}", table.name());
            return Err(Error::Wrong(message));
        }
    }
    Ok(())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| Error::Wrong("a thread panicked".to_owned()))?
}

/// Sleeps again and again; records by how much it wakes up late.
fn idle(is_over: &AtomicBool) -> Latency {
    let mut late = Latency::new();
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        thread::sleep(TIMER_STEP);
        late.record(start.elapsed().saturating_sub(TIMER_STEP));
    }
    late
}

/// Returns the name of a durability on the command line.
fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::None => "none",
        Durability::Buffered => "buffered",
        Durability::Group => "group",
        Durability::Each => "each",
    }
}

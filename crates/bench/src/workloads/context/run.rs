//! Run on the context store: loads the starting state, then builds and commits blocks one after the
//! other. A second phase, if asked for, has collections in a second thread.
//!
//! The store is the directory `context` below the given directory. The run removes the store at the
//! end unless `keep` is set. A kept store is used again and stays: its starting state is the head
//! of the branch `state`, whose message names the workload; everything else is collected.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use terrane::context::{
    Error as StoreError, GcPace, GcProgress, PreimageSizes, Retain, Stats, Store, Ticket, is_store,
};
use terrane::io::{Access, RealDisk};

use super::block::Block;
use super::profile::Profile;
use super::report::{
    BlockReport, CollectionsReport, FilesReport, InMemoryReport, LoadReport, PhaseReport, Report,
    SplitReport,
};
use super::{Generator, START_S, floor, in_memory};
use crate::instruments::bare;
use crate::instruments::meter::{Usage, reset_rss_peak, rss_bytes, rss_peak_bytes, store_bytes};
use crate::workloads::{Error, Result, bounded, seconds};
use terrane_replay::engines::context::{
    CommitHash, CommitInfo, Context as _, ContextEngine as _, StepsBuf,
};
use terrane_replay::engines::context_store::{ContextStore, Settings};
use terrane_replay::engines::engine::EngineError;
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// Directory of the store.
const DIR: &str = "context";
/// Branch of the starting state.
const STATE: &[u8] = b"state";
/// Author of all commits.
const AUTHOR: &[u8] = b"Tezos";
/// Values of the starting state between two flushes, which bound the memory of the load.
const FLUSH_VALUES: u64 = 100_000;
/// Values between two reports to the monitor.
const TOLD_EVERY: u64 = 10_000;
/// Shortest time between two sums of the files while a collection works.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Options of a run.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the run")]
pub struct Options {
    /// Seed that the whole workload follows from.
    pub seed: u64,
    /// Values of the starting state.
    pub values: u64,
    /// Kind of a block.
    pub profile: &'static Profile,
    /// Blocks before the first phase that are not measured.
    pub warm_up: u64,
    /// Blocks of a phase.
    pub blocks: u64,
    /// Options of opening the store.
    pub settings: Settings,
    /// Whether a block is built while the one before becomes durable. A block then ends when the
    /// one before is durable.
    pub pipelined: bool,
    /// Whether the paths of a block are read ahead, before its operations.
    pub prefetch: bool,
    /// Adds a second phase with collections.
    pub collection: Option<Collection>,
    /// Whether the blocks of the first phase are built again without a disk.
    pub in_memory: bool,
    /// Whether the run keeps the store.
    pub keep: bool,
}

/// Options of the collection of old commits.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// Blocks from one collection to the next; a collection waits for the end of the one before.
    pub every: u64,
    /// Newest commits that are kept.
    pub distance: u64,
    /// Bytes that it reads and writes in a second at most.
    pub bytes_per_s: Option<u64>,
}

/// Measures the store below `store`.
///
/// # Errors
/// [`Error::Wrong`] if a read finds something else than it must; [`Error::Options`];
/// [`Error::Context`]; [`Error::Interrupted`] while the state is loaded. A run that is interrupted
/// later is reported as far as it went.
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    bounded("blocks", options.blocks, 1)?;
    if let Some(Collection { every, distance, .. }) = options.collection {
        bounded("gc-every", every, 1)?;
        bounded("gc-distance", distance, 1)?;
    }

    let dir = store.join(DIR);
    let was_there = dir.exists();
    let outcome = run_in(&dir, options, monitor);

    // A state that was not loaded to its end is useless.
    let stays = was_there || (options.keep && outcome.is_ok());
    if !stays && dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| Error::io(&dir, error))?;
    }

    outcome
}

fn run_in(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let drawn = super::Options {
        seed: options.seed,
        values: options.values,
        profile: options.profile,
        fork_every: None,
    };
    let generator = Generator::new(drawn)?;

    let (state, load) = prepare(dir, options, &generator, monitor)?;
    // Pipelined commits do not wait, their tickets do.
    let is_durable = options.settings.is_durable && !options.pipelined;
    let engine = open(dir, Settings { is_durable, ..options.settings }, monitor)?;
    let mut run = Run {
        dir,
        options,
        engine,
        generator,
        tip: state,
        pending: None,
        block: Block::new(),
        value: Vec::new(),
        reported: 0,
        is_interrupted: false,
    };

    run.warm_up(monitor)?;
    let mut phases = vec![run.phase(None, monitor)?];
    let block_bytes = phases[0].per_block.appended_bytes as usize;
    let bare = bare::measure(dir, block_bytes.max(1), options.blocks)
        .map_err(|error| Error::io(dir, error))?;
    let measured = run.tip;
    if let Some(collection) = options.collection.filter(|_| !run.is_interrupted) {
        phases.push(run.phase(Some(collection), monitor)?);
    }
    let in_memory = if options.in_memory && !run.is_interrupted {
        let found = in_memory(drawn, options, measured, monitor)?;
        run.is_interrupted = found.is_none();
        found
    } else {
        None
    };
    wait(run.pending.take())?;
    run.engine.close()?;

    Ok(Report {
        profile: options.profile.name,
        seed: options.seed,
        values: options.values,
        durable: options.settings.is_durable,
        pipelined: options.pipelined,
        hash_threads: options.settings.hash_threads,
        direct: options.settings.access == Access::Direct,
        prefetch: options.prefetch,
        cache_budget_bytes: options.settings.cache_bytes as u64,
        transactions_per_block: options.profile.transactions,
        warm_up_blocks: options.warm_up,
        load,
        phases,
        bare,
        in_memory,
        files: FilesReport::of(dir).map_err(|error| Error::io(dir, error))?,
        last_commit: run.tip.to_string(),
        is_interrupted: run.is_interrupted,
    })
}

/// Measures the blocks of the first phase without a disk; `None` if the run is to stop. The last
/// commit must be that of the store.
fn in_memory(
    drawn: super::Options,
    options: &Options,
    measured: CommitHash,
    monitor: &mut dyn Monitor,
) -> Result<Option<InMemoryReport>> {
    let message = identity(options);
    let work = in_memory::Work {
        drawn,
        warm_up: options.warm_up,
        blocks: options.blocks,
        state: CommitInfo { date: START_S, author: AUTHOR, message: message.as_bytes() },
    };
    let Some((report, tip)) = in_memory::measure(&work, monitor)? else { return Ok(None) };
    if tip != measured {
        let message =
            format!("the tree in memory ends with commit {tip}, the store with {measured}");
        return Err(Error::Wrong(message));
    }
    Ok(Some(report))
}

/// Opens the store, and passes the notes of its recovery to the monitor.
fn open(dir: &Path, settings: Settings, monitor: &mut dyn Monitor) -> Result<ContextStore> {
    let engine = ContextStore::open(dir, settings)?;
    for note in engine.store().recovery().notes() {
        monitor.warn(&format_args!("{}: {note}", dir.display()));
    }
    Ok(engine)
}

/// Returns the message of the commit of a starting state, which names its workload.
fn identity(options: &Options) -> String {
    format!("terrane bench context: {} values, seed {}", options.values, options.seed)
}

/// Finds or loads the starting state, and collects everything else in the store.
fn prepare(
    dir: &Path,
    options: &Options,
    generator: &Generator,
    monitor: &mut dyn Monitor,
) -> Result<(CommitHash, LoadReport)> {
    let disk = RealDisk::auto();
    let reused = is_store(disk.as_ref(), dir).map_err(EngineError::from)?;
    let settings = Settings { is_durable: false, ..options.settings };
    let mut engine = open(dir, settings, monitor)?;
    let start = Instant::now();

    let state = if reused {
        find_state(&engine, options).map_err(EngineError::from)?.ok_or_else(|| {
            let dir = dir.display();
            let wanted = identity(options);
            Error::Options(format!(
                "{dir} exists already and is not of {wanted:?}; remove the directory first"
            ))
        })?
    } else {
        load(&engine, options, generator, monitor)?
    };

    let wall_s = seconds(start);

    // A collection keeps branches, so only the starting state survives.
    let start = Instant::now();
    engine.collect(0)?;
    let collect_s = seconds(start);
    engine.close()?;
    let store_bytes = bytes_of(dir)?;

    Ok((state, LoadReport { reused, wall_s, collect_s, store_bytes }))
}

fn bytes_of(dir: &Path) -> Result<u64> {
    store_bytes(dir).map_err(|error| Error::io(dir, error))
}

/// Returns the stored starting state, if it is that of the same workload.
fn find_state(
    engine: &ContextStore,
    options: &Options,
) -> std::result::Result<Option<CommitHash>, StoreError> {
    let Some(head) = engine.store().branch(STATE) else { return Ok(None) };
    let is_same = engine.store().commit_info(&head)?.message == identity(options).as_bytes();
    Ok(is_same.then_some(CommitHash(head.0)))
}

/// Loads the starting state value by value, and commits it to its branch.
fn load(
    engine: &ContextStore,
    options: &Options,
    generator: &Generator,
    monitor: &mut dyn Monitor,
) -> Result<CommitHash> {
    let mut context = engine.empty_context();
    let mut path = StepsBuf::new();
    let mut value = Vec::new();
    let count = generator.state().count();

    for number in 0..count {
        generator.state().entry(number, &mut path, &mut value);
        context.add(path.steps(), &value)?;
        if number % FLUSH_VALUES == FLUSH_VALUES - 1 {
            context.flush()?;
        }
        if number % TOLD_EVERY == 0 {
            monitor.progress(Phase::Fill, number, Some(count));
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
        }
    }

    let message = identity(options);
    let info = CommitInfo { date: START_S, author: AUTHOR, message: message.as_bytes() };
    Ok(context.commit_to(STATE, &info)?)
}

/// Waits until the commit of a ticket is durable.
fn wait(ticket: Option<Ticket>) -> Result<()> {
    ticket.map_or(Ok(()), |ticket| ticket.wait().map_err(|error| EngineError::from(error).into()))
}

/// State of a run between two blocks.
struct Run<'a> {
    dir: &'a Path,
    options: &'a Options,
    engine: ContextStore,
    generator: Generator,
    tip: CommitHash,
    /// Ticket of the commit before, of a pipelined run.
    pending: Option<Ticket>,
    block: Block,
    value: Vec<u8>,
    /// Blocks reported to the monitor.
    reported: u64,
    is_interrupted: bool,
}

/// Counters at one moment.
struct Reading {
    stats: Stats,
    preimages: PreimageSizes,
    usage: Option<Usage>,
}

impl Reading {
    fn now(store: &Store) -> Self {
        Self { stats: store.stats(), preimages: store.preimage_sizes(), usage: Usage::now() }
    }
}

/// Latencies of the blocks of a phase.
#[derive(Default)]
struct Times {
    blocks: Latency,
    operations: Latency,
    commits: Latency,
    all: Duration,
    in_operations: Duration,
    count: u64,
    ops: u64,
}

impl Run<'_> {
    /// Draws a block, and builds and commits it.
    fn block(&mut self, times: &mut Times) -> Result<()> {
        self.generator.next_block(&mut self.block);

        // The clock of a block runs from the checkout to the drop of the context.
        let start = Instant::now();
        let tip = self.tip;
        let absent = || Error::Wrong(format!("the store has lost commit {tip}"));

        let mut context = self.engine.checkout(&tip)?.ok_or_else(absent)?;
        if self.options.prefetch {
            context.prefetch(&self.block.paths());
        }

        self.block.apply(&mut *context, &mut self.value)?;
        let built = start.elapsed();
        let info = CommitInfo { date: self.block.date, author: AUTHOR, message: b"" };
        self.tip = context.commit(&info, &[tip])?;
        if self.options.pipelined {
            let before = self.pending.replace(self.engine.store().sync_async());
            wait(before)?;
        }
        let committed = start.elapsed();
        drop(context);
        let all = start.elapsed();

        debug_assert!(built <= committed && committed <= all);
        times.blocks.record(all);
        times.operations.record(built);
        times.commits.record(committed.saturating_sub(built));
        times.all += all;
        times.in_operations += built;
        times.count += 1;
        times.ops += self.block.count() as u64;

        Ok(())
    }

    /// Reports a block to the monitor, and returns whether to stop.
    fn report_block(&mut self, monitor: &mut dyn Monitor) -> bool {
        self.reported += 1;
        let phases = 1 + u64::from(self.options.collection.is_some());
        let total = self.options.warm_up + phases * self.options.blocks;
        monitor.progress(Phase::Replay, self.reported, Some(total));
        self.is_interrupted = monitor.stop();
        self.is_interrupted
    }

    fn warm_up(&mut self, monitor: &mut dyn Monitor) -> Result<()> {
        let mut times = Times::default();
        for _ in 0..self.options.warm_up {
            self.block(&mut times)?;
            if self.report_block(monitor) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Measures the blocks of a phase.
    fn phase(
        &mut self,
        collection: Option<Collection>,
        monitor: &mut dyn Monitor,
    ) -> Result<PhaseReport> {
        reset_rss_peak();
        let store = Arc::clone(self.engine.store());
        let before = Reading::now(&store);
        let mut times = Times::default();

        let collections = match collection {
            None => self.blocks(&mut times, None, monitor).map(|()| None)?,
            Some(collection) => Some(self.blocks_beside(&mut times, collection, monitor)?),
        };

        let now = Reading::now(&store);
        self.report(&times, collections, (&before, &now))
    }

    /// Builds the blocks of a phase. `begin` gets a request whenever a collection is due.
    fn blocks(
        &mut self,
        times: &mut Times,
        begin: Option<(u64, &SyncSender<()>)>,
        monitor: &mut dyn Monitor,
    ) -> Result<()> {
        for number in 0..self.options.blocks {
            if let Some((_, begin)) = begin.filter(|(every, _)| number.is_multiple_of(*every)) {
                // While a collection runs, one more may wait, and no third. A failed collection
                // shows at the end.
                let _ = begin.try_send(());
            }
            self.block(times)?;
            if self.report_block(monitor) {
                break;
            }
        }

        Ok(())
    }

    /// Builds the blocks of a phase, with collections in a second thread.
    fn blocks_beside(
        &mut self,
        times: &mut Times,
        collection: Collection,
        monitor: &mut dyn Monitor,
    ) -> Result<CollectionsReport> {
        let cancelled = AtomicBool::new(false);
        let collector = Collector {
            store: Arc::clone(self.engine.store()),
            dir: self.dir.to_owned(),
            collection,
            cancelled: &cancelled,
        };

        let (begin, begun) = sync_channel(1);
        std::thread::scope(|scope| {
            let collecting = scope.spawn(move || collector.run(&begun));
            let blocks = self.blocks(times, Some((collection.every, &begin)), monitor);

            // Without its sender, the collector ends after the requests that it has.
            drop(begin);
            if blocks.is_err() || self.is_interrupted {
                cancelled.store(true, Ordering::Relaxed);
            }
            let collected = match collecting.join() {
                Ok(collected) => collected,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            blocks.and(collected)
        })
    }

    /// Returns the report of a phase between two readings.
    fn report(
        &self,
        times: &Times,
        collections: Option<CollectionsReport>,
        (before, now): (&Reading, &Reading),
    ) -> Result<PhaseReport> {
        let threads = self.options.settings.hash_threads;
        let preimages = now.preimages.since(&before.preimages);
        let rules = self.engine.store().rules();
        let hashing_floor = floor::measure(rules, &preimages, times.count, threads);
        let wall_s = times.all.as_secs_f64();
        let blocks_per_s = times.count as f64 / wall_s.max(f64::MIN_POSITIVE);
        let mean_ms = wall_s * 1e3 / times.count.max(1) as f64;
        let usage = now.usage.zip(before.usage).map(|(now, before)| now.since(&before));

        let cpu_s = usage.map(|usage| usage.cpu_s);
        let transactions = self.options.profile.transactions;
        let all_transactions = transactions.map(|each| (each * times.count) as f64);

        Ok(PhaseReport {
            collecting: collections.is_some(),
            blocks: times.count,
            ops: times.ops,
            wall_s,
            blocks_per_s,
            tps: transactions.map(|each| each as f64 * blocks_per_s),
            tps_cpu: all_transactions
                .zip(cpu_s)
                .map(|(all, cpu_s)| all / cpu_s.max(f64::MIN_POSITIVE)),
            block_latency_ms: times.blocks.spread(),
            operations_latency_ms: times.operations.spread(),
            commit_latency_ms: times.commits.spread(),
            split_ms: split(times, &before.stats, &now.stats),
            per_block: per_block(times.count, &before.stats, &now.stats, usage),
            hashing_floor,
            over_floor: mean_ms / hashing_floor.all_threads_ms.max(f64::MIN_POSITIVE),
            cpu_s,
            rss_bytes: rss_bytes(),
            rss_peak_bytes: rss_peak_bytes(),
            store_bytes: bytes_of(self.dir)?,
            collections,
        })
    }
}

/// Splits the time of a block by its parts.
fn split(times: &Times, before: &Stats, now: &Stats) -> SplitReport {
    let each_ms = |time: Duration| time.as_secs_f64() * 1e3 / times.count.max(1) as f64;
    let before = &before.committed;
    let now = &now.committed;
    let hash = now.hash_time.saturating_sub(before.hash_time);
    let encode = now.encode_time.saturating_sub(before.encode_time);
    let write = now.write_time.saturating_sub(before.write_time);
    let sync = now.sync_time.saturating_sub(before.sync_time);
    let known = times.in_operations + hash + encode + write + sync;

    SplitReport {
        operations: each_ms(times.in_operations),
        hash: each_ms(hash),
        encode: each_ms(encode),
        write: each_ms(write),
        sync: each_ms(sync),
        rest: each_ms(times.all.saturating_sub(known)),
    }
}

/// Returns the mean counts of a block between two readings.
fn per_block(blocks: u64, before: &Stats, now: &Stats, usage: Option<Usage>) -> BlockReport {
    let each = |count: u64| count as f64 / blocks.max(1) as f64;
    let since = |of: fn(&Stats) -> u64| each(of(now) - of(before));
    BlockReport {
        hashed: since(|stats| stats.committed.hashed),
        hashed_bytes: since(|stats| stats.committed.hashed_bytes),
        hashed_again: since(|stats| stats.committed.hashed_again),
        nodes: since(|stats| stats.committed.nodes),
        values: since(|stats| stats.committed.values),
        appended_bytes: since(|stats| stats.written_bytes),
        object_reads: since(|stats| stats.reads),
        read_batches: since(|stats| stats.batches),
        object_read_bytes: since(|stats| stats.read_bytes),
        cache_hits: since(|stats| stats.cache_hits),
        read_bytes: usage.map(|usage| each(usage.read_bytes)),
        write_bytes: usage.map(|usage| each(usage.write_bytes)),
    }
}

/// Collector of old commits, beside the blocks.
struct Collector<'a> {
    store: Arc<Store>,
    dir: PathBuf,
    collection: Collection,
    cancelled: &'a AtomicBool,
}

impl Collector<'_> {
    /// Collects at each request, until all senders of requests are gone.
    fn run(&self, begin: &Receiver<()>) -> Result<CollectionsReport> {
        let mut report =
            CollectionsReport { store_peak_bytes: bytes_of(&self.dir)?, ..Default::default() };
        while begin.recv().is_ok() {
            let start = Instant::now();
            match self.collect(&mut report.store_peak_bytes) {
                Ok(done) => {
                    report.count += 1;
                    report.commits += done.collected;
                    report.compacted += done.compacted;
                    report.removed += done.removed;
                    report.freed_bytes += done.freed_bytes;
                    report.live_bytes = done.live_bytes;
                }
                Err(StoreError::GcCancelled) => {}
                Err(error) => return Err(EngineError::from(error).into()),
            }

            report.wall_s += seconds(start);
            report.longest_s = report.longest_s.max(seconds(start));
        }

        Ok(report)
    }

    fn collect(
        &self,
        peak_bytes: &mut u64,
    ) -> std::result::Result<terrane::context::GcReport, StoreError> {
        let start = Instant::now();
        let mut worked = 0;
        let mut last = 0;
        let mut looked = None::<Instant>;

        self.store.collect(
            &Retain::newest(self.collection.distance),
            &mut |progress: &GcProgress| {
                // Each phase of a collection counts its bytes from 0.
                worked += progress.bytes.checked_sub(last).unwrap_or(progress.bytes);
                last = progress.bytes;
                if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                    looked = Some(Instant::now());
                    // A file may vanish during the sum; the next sum counts then.
                    *peak_bytes =
                        bytes_of(&self.dir).map_or(*peak_bytes, |now| now.max(*peak_bytes));
                }
                if let Some(rate) = self.collection.bytes_per_s {
                    let due = Duration::from_secs_f64(worked as f64 / rate.max(1) as f64);
                    std::thread::sleep(due.saturating_sub(start.elapsed()));
                }
                if self.cancelled.load(Ordering::Relaxed) { GcPace::Cancel } else { GcPace::Go }
            },
        )
    }
}

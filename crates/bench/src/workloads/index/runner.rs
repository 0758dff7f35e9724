//! Calls of one engine, each timed and counted, and what they come to.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrane::btree::Stats;
use terrane::io::Counts;

use super::curve::Curve;
use super::engine::Engine;
use super::map::Map;
use super::report::{
    CallReport, Calls, CheckReport, EngineIo, EngineReport, EnginesReport, FindReport, IoReport,
    MemoryReport, TreeReport, since,
};
use super::{ENTRY_BYTES, Error, Key, Numbers, Result, Value, seconds, splitmix};
use crate::instruments::limits::MemoryLimit;
use crate::instruments::meter::{
    DeviceUsage, Usage, reset_rss_peak, rss_bytes, rss_peak_bytes, store_bytes,
};
use terrane_replay::hex;
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// Stream that the keys of the final check are drawn from.
const CHECK_STREAM: u64 = 0x6368_6563_6b00_0000;

/// Finds after which the monitor is told and asked.
const TOLD_EVERY: u64 = 1000;

/// Options common to all workloads.
#[derive(Debug, Clone)]
pub struct Common {
    /// The engines, one after the other.
    pub engines: Vec<Engine>,
    /// Seed of keys, values and operations.
    pub seed: u64,
    /// Operations after which a durable flush is made.
    pub flush_every: u64,
    /// Memory of each engine that has a budget, in bytes.
    pub memory_budget: u64,
    /// Finds of present keys at the end, and the number of finds of absent keys.
    pub sample: u64,
    /// Whether what the engines have written stays there.
    pub keep: bool,
}

/// A run of one engine.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    map: Box<dyn Map>,
    engine: Engine,
    common: &'a Common,
    dir: PathBuf,
    began: Instant,
    rss_before_bytes: Option<u64>,
    before: Reading,
    /// Time in calls.
    busy: Duration,
    ops: u64,
    replaced: u64,
    ops_per_call: u64,
    unflushed: u64,
    curve: Curve,
    latencies: Latencies,
    /// Hash of all keys looked up and of the values found.
    results: blake3::Hasher,
    load_s: Option<f64>,
    /// Entries that there must be at the end, where that is known.
    live: Option<u64>,
}

/// Counters at one moment.
#[derive(Debug)]
struct Reading {
    engine: Option<Counts>,
    stats: Option<Stats>,
    process: Option<Usage>,
    device: Option<DeviceUsage>,
}

impl Reading {
    fn now(map: &dyn Map, dir: &Path) -> Result<Self> {
        Ok(Self {
            engine: map.counts(),
            stats: map.stats()?,
            process: Usage::now(),
            device: dir.parent().and_then(DeviceUsage::of),
        })
    }
}

/// Latencies of each kind of call.
#[derive(Debug, Default)]
struct Latencies {
    replace: Latency,
    remove: Latency,
    find: Latency,
    mem: Latency,
    flush: Latency,
}

impl Latencies {
    /// Returns the report of the kinds of calls that were made. A call of `replace` has
    /// `ops_per_replace` operations, and a flush follows `ops_per_flush` operations.
    fn calls(&self, ops_per_replace: u64, ops_per_flush: u64) -> Calls {
        let call = |latency: &Latency, ops_per_call| {
            let latency_us = latency.report();
            (latency_us.ops > 0).then_some(CallReport { ops_per_call, latency_us })
        };

        Calls {
            replace: call(&self.replace, ops_per_replace),
            remove: call(&self.remove, 1),
            find: call(&self.find, 1),
            mem: call(&self.mem, 1),
            flush: call(&self.flush, ops_per_flush),
        }
    }
}

/// Kind of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// For its value.
    Find,
    /// For whether it is there.
    Mem,
}

/// Figures of an engine before the final check.
#[derive(Debug)]
struct Measured {
    now: Reading,
    generate_s: f64,
}

impl<'a> Runner<'a> {
    /// Makes an empty map below `store`.
    fn new(store: &Path, engine: Engine, common: &'a Common) -> Result<Self> {
        let dir = store.join(engine.name());
        if dir.exists() {
            let message = format!("{} exists already; remove the directory first", dir.display());
            return Err(Error::Options(message));
        }

        reset_rss_peak();
        let rss_before_bytes = rss_bytes();
        let map = engine.create(&dir, common.memory_budget)?;
        let before = Reading::now(map.as_ref(), &dir)?;

        Ok(Self {
            map,
            engine,
            common,
            dir,
            began: Instant::now(),
            rss_before_bytes,
            before,
            busy: Duration::ZERO,
            ops: 0,
            replaced: 0,
            ops_per_call: 1,
            unflushed: 0,
            curve: Curve::new(),
            latencies: Latencies::default(),
            results: blake3::Hasher::new(),
            load_s: None,
            live: None,
        })
    }

    /// Replaces entries, and flushes if it is time.
    pub(super) fn replace(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        let start = Instant::now();
        self.map.replace_many(entries)?;
        let took = start.elapsed();
        self.latencies.replace.record(took);
        self.replaced += entries.len() as u64;
        self.ops_per_call = self.ops_per_call.max(entries.len() as u64);
        self.count_call(took, entries.len() as u64)
    }

    /// Fills the empty map with entries in the order of their keys; what is measured begins after
    /// that.
    pub(super) fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        let start = Instant::now();
        self.map.load(sorted)?;
        self.map.flush()?;
        self.load_s = Some(seconds(start));
        self.before = Reading::now(self.map.as_ref(), &self.dir)?;
        self.began = Instant::now();
        Ok(())
    }

    /// Looks a key up, as a reader beside the writer if asked to.
    pub(super) fn find(
        &mut self,
        key: &Key,
        how: Lookup,
        as_reader: bool,
    ) -> Result<Option<Vec<u8>>> {
        let start = Instant::now();
        let found = if as_reader { self.map.find_as_reader(key)? } else { self.map.find(key)? };
        let took = start.elapsed();

        match how {
            Lookup::Find => self.latencies.find.record(took),
            Lookup::Mem => self.latencies.mem.record(took),
        }

        self.hash(key, found.as_deref());
        self.count_call(took, 1)?;
        Ok(found)
    }

    fn hash(&mut self, key: &Key, found: Option<&[u8]>) {
        self.results.update(key).update(found.unwrap_or(b"absent"));
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&mut self, key: &Key) -> Result<()> {
        let start = Instant::now();
        self.map.remove(key)?;
        let took = start.elapsed();
        self.latencies.remove.record(took);
        self.count_call(took, 1)
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) -> Result<()> {
        let start = Instant::now();
        self.map.clear()?;
        self.count_call(start.elapsed(), 1)
    }

    /// Counts a call of `ops` operations.
    fn count_call(&mut self, took: Duration, ops: u64) -> Result<()> {
        self.busy += took;
        self.ops += ops;
        self.unflushed += ops;
        if self.unflushed >= self.common.flush_every {
            self.flush()?;
        }
        self.curve.record(self.busy.as_secs_f64(), self.ops);
        Ok(())
    }

    /// Makes all durable, if anything is not.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.unflushed == 0 {
            return Ok(());
        }
        let start = Instant::now();
        self.map.flush()?;
        let took = start.elapsed();
        self.latencies.flush.record(took);
        self.busy += took;
        self.unflushed = 0;
        Ok(())
    }

    /// Ends what is measured, with everything durable.
    fn measured(&mut self) -> Result<Measured> {
        self.flush()?;
        let generate_s = (self.began.elapsed().saturating_sub(self.busy)).as_secs_f64();
        Ok(Measured { now: Reading::now(self.map.as_ref(), &self.dir)?, generate_s })
    }

    /// Compares finds of present numbers, below `live`, and of the same number of absent numbers.
    fn check(
        &mut self,
        numbers: Numbers,
        live: u64,
        monitor: &mut dyn Monitor,
    ) -> Result<CheckReport> {
        let entries = self.map.entries()?;
        self.live = Some(live);
        if let Some(entries) = entries.filter(|entries| *entries != live) {
            let engine = self.engine.name();
            let message = format!("{engine} has {entries} entries where {live} were put");
            return Err(Error::Wrong(message));
        }

        let present = self.finds(numbers, (0, live), true, monitor)?;
        let absent = self.finds(numbers, (live, live), false, monitor)?;
        Ok(CheckReport { present, absent })
    }

    /// Finds numbers drawn from `count` ones from `first` on.
    fn finds(
        &mut self,
        numbers: Numbers,
        (first, count): (u64, u64),
        is_there: bool,
        monitor: &mut dyn Monitor,
    ) -> Result<FindReport> {
        let seed = self.common.seed;
        let sample = self.common.sample.min(count);
        let before = Reading::now(self.map.as_ref(), &self.dir)?;

        let mut latency = Latency::new();
        let mut busy = Duration::ZERO;
        for at in 0..sample {
            let number = first + splitmix(seed ^ CHECK_STREAM.wrapping_add(at)) % count;
            let (key, value) = numbers.entry(number);
            let start = Instant::now();
            let found = self.map.find(&key)?;
            let took = start.elapsed();
            latency.record(took);
            busy += took;

            let expected = is_there.then_some(&value[..]);
            if found.as_deref() != expected {
                let engine = self.engine.name();
                let message = format!("{engine}, key {number}: {found:?}, not {expected:?}");
                return Err(Error::Wrong(message));
            }

            self.hash(&key, found.as_deref());
            if at % TOLD_EVERY == 0 {
                monitor.progress(Phase::Check, at, Some(sample));
                if monitor.stop() {
                    return Err(Error::Interrupted);
                }
            }
        }

        let now = Reading::now(self.map.as_ref(), &self.dir)?;
        Ok(find_report(sample, busy, &latency, &before, &now))
    }

    /// Closes the engine, removes its files unless `keep` asks for them, and returns the report.
    fn finish(self, measured: Measured, check: Option<CheckReport>) -> Result<EngineReport> {
        let entries = self.map.entries()?.or(self.live);
        let rss_peak_bytes = rss_peak_bytes();

        let start = Instant::now();
        self.map.close()?;
        let close_s = seconds(start);

        // The size counts after the close, which writes what is still in memory.
        let failed = |error| Error::io(&self.dir, error);
        let store_bytes = store_bytes(&self.dir).map_err(failed)?;
        if !self.common.keep && self.dir.exists() {
            std::fs::remove_dir_all(&self.dir).map_err(failed)?;
        }

        let Self { engine, before, ops, curve, rss_before_bytes, .. } = self;
        let Measured { now, generate_s } = measured;
        let wall_s = self.busy.as_secs_f64();
        let ops_of = (ops, self.replaced);

        let counts = now.engine.zip(before.engine).map(|(now, before)| now - before);
        let process = now.process.zip(before.process).map(|(now, before)| now.since(&before));
        let device = now.device.zip(before.device).map(|(now, before)| now.since(&before));
        let engine_io = counts.as_ref().map(EngineIo::of);

        let calls = self.latencies.calls(self.ops_per_call, self.common.flush_every);
        let tree = now.stats.zip(before.stats);
        Ok(EngineReport {
            engine,
            ops,
            wall_s,
            ops_per_s: ops as f64 / wall_s.max(f64::MIN_POSITIVE),
            generate_s,
            load_s: self.load_s,
            close_s,
            curve: curve.points(wall_s, ops),
            calls,
            io: IoReport::new(engine_io, process, device, ops_of),
            cpu_us_per_op: process.map(|process| process.cpu_s * 1e6 / ops.max(1) as f64),
            rss_before_bytes,
            rss_peak_bytes,
            entries,
            store_bytes,
            fill: entries
                .filter(|_| store_bytes > 0)
                .map(|entries| (entries * ENTRY_BYTES) as f64 / store_bytes as f64),
            tree: tree.map(|(now, before)| TreeReport::new(now, &before)),
            check,
            result_hash: hex::encode(&self.results.finalize().as_bytes()[..16]),
        })
    }
}

/// Returns the report of `finds` finds between two readings.
fn find_report(
    finds: u64,
    busy: Duration,
    latency: &Latency,
    before: &Reading,
    now: &Reading,
) -> FindReport {
    let each = |count: u64| count as f64 / finds.max(1) as f64;
    let pages = now.engine.zip(before.engine).map(|(now, before)| now - before);

    let stats = now.stats.as_ref().zip(before.stats.as_ref());
    let by_level = |of: fn(&Stats) -> &Vec<u64>| {
        let (now, before) = stats?;
        Some(since(of(now), of(before)).into_iter().map(each).collect())
    };

    FindReport {
        finds,
        finds_per_s: finds as f64 / busy.as_secs_f64().max(f64::MIN_POSITIVE),
        latency_us: latency.report(),
        page_reads_per_find: pages.map(|pages| each(pages.read_pages)),
        page_reads_by_level: by_level(|stats| &stats.page_reads),
        cache_hits_by_level: by_level(|stats| &stats.cache_hits),
    }
}

/// Runs `work` on each engine in turn, in directories below `store`, until the monitor asks to
/// stop. If `work` returns the numbers of its entries and how many live, finds are checked at the
/// end.
pub(super) fn run_engines(
    store: &Path,
    common: &Common,
    limit: Option<&MemoryLimit>,
    monitor: &mut dyn Monitor,
    mut work: impl FnMut(&mut Runner<'_>, &mut dyn Monitor) -> Result<Option<(Numbers, u64)>>,
) -> Result<EnginesReport> {
    let mut engines = Vec::new();
    for &engine in &common.engines {
        let mut runner = Runner::new(store, engine, common)?;
        let live = work(&mut runner, monitor)?;
        let measured = runner.measured()?;

        let check = live.map(|(numbers, live)| runner.check(numbers, live, monitor));
        let check = match check {
            Some(Err(Error::Interrupted)) => None,
            check => check.transpose()?,
        };

        engines.push(runner.finish(measured, check)?);
        if monitor.stop() {
            break;
        }
    }

    Ok(EnginesReport {
        memory: memory_report(common, limit),
        engines,
        warnings: memory_warning(common, limit).into_iter().collect(),
        is_interrupted: monitor.stop(),
    })
}

/// Returns the report on the memory of a run.
fn memory_report(common: &Common, limit: Option<&MemoryLimit>) -> MemoryReport {
    MemoryReport {
        budget_bytes: common.memory_budget,
        memory_enforced: limit.is_some(),
        enforced_by: limit.map(MemoryLimit::enforced_by),
        page_cache_peak_bytes: limit.and_then(MemoryLimit::page_cache_peak_bytes),
    }
}

/// Returns a warning if the memory of an engine is the page cache and no limit bounds the cache.
fn memory_warning(common: &Common, limit: Option<&MemoryLimit>) -> Option<String> {
    (common.engines.contains(&Engine::Lmdb) && limit.is_none()).then(|| {
        "memory not enforced: lmdb takes what page cache there is; give --memory-limit".to_owned()
    })
}

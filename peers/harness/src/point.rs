//! One point of a comparison: one engine, one workload, one process, one empty folder.
//!
//! 1. The entries are loaded, in the order of their keys, without a limit on memory; the engine is
//!    closed, its files are synced and leave the page cache.
//! 2. The process enters a control group, which limits its memory and page cache together.
//! 3. The engine is opened again, works for the warm-up, then for the measured time.
//! 4. It is closed, opened once more, and checked: live keys are there, deleted ones are gone.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use terrane_bench::instruments::bare;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::instruments::meter::{self, DeviceUsage, Usage};
use terrane_replay::latency::Latency;

use crate::engine::{About, Durability, Error, Kind, Result, Terms, open};
use crate::go;
use crate::work::{Work, Workload, load};

/// Bare appends that are measured beside durable commits.
const BARE: u64 = 500;

/// What a point is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The engine.
    pub engine: Kind,
    /// The workload.
    pub workload: Workload,
    /// Entries that are loaded.
    pub entries: u64,
    /// Bytes for process and page cache together.
    pub memory_bytes: u64,
    /// Seconds before the clock starts.
    pub warm_s: f64,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seed of keys, values and draws.
    pub seed: u64,
    /// Which repetition this is.
    pub round: u64,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "percentiles")]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    pub max: f64,
}

impl Percentiles {
    fn of(latency: &Latency) -> Option<Self> {
        let report = latency.report();
        (report.ops > 0).then_some(Self {
            p50: report.p50,
            p99: report.p99,
            p999: report.p999,
            p9999: report.p9999,
            max: report.max,
        })
    }
}

/// What came of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What it was.
    pub plan: Plan,
    /// What the engine says of itself.
    pub about: Option<AboutReport>,
    /// The sentence of an engine that cannot do this workload. Then there are no figures.
    pub cannot: Option<String>,
    /// The error of an engine that failed. Then there are no figures.
    pub failed: Option<String>,
    /// The figures.
    pub figures: Option<Figures>,
}

/// [`About`] in a report.
pub type AboutReport = serde_json::Value;

/// The figures of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// What enforced the limit on memory.
    pub memory_enforced_by: String,
    /// What commits survive.
    pub durability: Durability,
    /// Seconds of the load, with its end; absent without one.
    pub load_s: Option<f64>,
    /// Seconds of the open that was measured under the limit.
    pub open_s: f64,
    /// Operations that were measured.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latency of calls that read.
    pub reads_us: Option<Percentiles>,
    /// Latency of calls that write.
    pub writes_us: Option<Percentiles>,
    /// Processor time of all threads, for each operation.
    pub cpu_us_per_op: f64,
    /// Bytes that the process made the device read, for each operation.
    pub read_bytes_per_op: f64,
    /// Bytes that it made the device write, for each operation.
    pub write_bytes_per_op: f64,
    /// Requests to read that the device completed, for each operation, by anyone.
    pub device_reads_per_op: Option<f64>,
    /// The most memory of the process, the workload's own included.
    pub rss_peak_bytes: u64,
    /// Of it, the workload's own.
    pub workload_bytes: u64,
    /// The most page cache of the control group.
    pub page_cache_peak_bytes: Option<u64>,
    /// Bytes that the files occupy at the end.
    pub disk_bytes: u64,
    /// The same for each byte of keys and values; absent where their number is not known.
    pub disk_ratio: Option<f64>,
    /// Keys that were looked up after a new open, each with the right answer.
    pub checked: u64,
    /// An append and fdatasync by hand, beside durable commits: median and 99th percentile.
    pub bare_sync_us: Option<(f64, f64)>,
    /// Load averages of the host at the end.
    pub load_average: Option<[f64; 3]>,
}

/// Runs a point in `dir`, which is empty. Errors of the engine are part of the outcome.
///
/// # Errors
/// Of the system, and a limit on memory that cannot be set.
pub fn run(plan: &Plan, dir: &Path) -> Result<Outcome> {
    let mut outcome =
        Outcome { plan: plan.clone(), about: None, cannot: None, failed: None, figures: None };
    match measure(plan, dir, &mut outcome.about) {
        Ok(figures) => outcome.figures = Some(figures),
        Err(Error::Cannot(why)) => outcome.cannot = Some(why.to_owned()),
        Err(error @ (Error::Engine { .. } | Error::Wrong(_))) => {
            outcome.failed = Some(error.to_string())
        }
        Err(error) => return Err(error),
    }
    Ok(outcome)
}

fn measure(plan: &Plan, dir: &Path, about: &mut Option<AboutReport>) -> Result<Figures> {
    if plan.engine.is_go() {
        return go::measure(plan, dir, about);
    }
    let &Plan { engine: kind, workload, entries, memory_bytes, seed, .. } = plan;
    let durability = workload.durability();
    let entry_bytes = workload.entry_bytes();
    let terms = Terms { memory: memory_bytes, entries, entry_bytes, durability };

    // A load is not measured in its durability, so it has the weakest.
    let load_s = if workload.loads() {
        let begun = Instant::now();
        let engine = open(kind, dir, &terms)?;
        *about = describe(&engine.about());
        load(workload, engine.as_ref(), seed, entries)?;
        engine.close()?;
        leave_page_cache(dir)?;
        Some(begun.elapsed().as_secs_f64())
    } else {
        let engine = open(kind, dir, &terms)?;
        *about = describe(&engine.about());
        engine.load(&one_entry())?;
        engine.settle()?;
        engine.close()?;
        None
    };

    let bare_sync_us = bare_sync_us(workload, dir)?;
    let mut work = Work::new(workload, seed, entries);
    let workload_bytes = if workload == Workload::Utxo { entries * 4 } else { 0 };
    let limit = MemoryLimit::set(memory_bytes)?;
    let memory_enforced_by = limit.enforced_by().to_owned();
    meter::reset_rss_peak();
    let begun = Instant::now();
    let engine = open(kind, dir, &terms)?;
    let open_s = begun.elapsed().as_secs_f64();

    work.run(engine.as_ref(), Duration::from_secs_f64(plan.warm_s))?;
    let _ = limit.page_cache_peak_bytes();
    let (before, device_before) = (Usage::now(), DeviceUsage::of(dir));
    let measured = work.run(engine.as_ref(), Duration::from_secs_f64(plan.seconds))?;
    let (after, device_after) = (Usage::now(), DeviceUsage::of(dir));
    let page_cache_peak_bytes = limit.page_cache_peak_bytes();
    let rss_peak_bytes = meter::rss_peak_bytes().unwrap_or(0);
    engine.close()?;
    let disk_bytes = disk_bytes(dir)?;
    drop(limit);

    let engine = open(kind, dir, &terms)?;
    let checked = work.check(engine.as_ref())?;
    engine.close()?;

    let ops = measured.ops.max(1) as f64;
    let used = after.zip(before).map(|(after, before)| after.since(&before)).unwrap_or_default();
    let device = device_after.zip(device_before).map(|(after, before)| after.since(&before));
    Ok(Figures {
        memory_enforced_by,
        durability,
        load_s,
        open_s,
        ops: measured.ops,
        ops_per_s: measured.ops as f64 / measured.seconds,
        reads_us: Percentiles::of(&measured.reads),
        writes_us: Percentiles::of(&measured.writes),
        cpu_us_per_op: used.cpu_s * 1e6 / ops,
        read_bytes_per_op: used.read_bytes as f64 / ops,
        write_bytes_per_op: used.write_bytes as f64 / ops,
        device_reads_per_op: device.map(|device| device.read_requests as f64 / ops),
        rss_peak_bytes,
        workload_bytes,
        page_cache_peak_bytes,
        disk_bytes,
        disk_ratio: workload.loads().then(|| disk_bytes as f64 / (entries * entry_bytes) as f64),
        checked,
        bare_sync_us,
        load_average: terrane_bench::instruments::host::load_average(),
    })
}

/// Median and 99th percentile of an append and fdatasync of a commit's bytes, beside commits that
/// are durable.
pub fn bare_sync_us(workload: Workload, dir: &Path) -> Result<Option<(f64, f64)>> {
    if workload.durability() != Durability::FsyncEach {
        return Ok(None);
    }
    let bare = bare::measure(dir, 10 * workload.entry_bytes() as usize, BARE)
        .map_err(|source| Error::System { what: "append and fdatasync".to_owned(), source })?;
    Ok(Some((bare.append_sync_ms.p50 * 1e3, bare.append_sync_ms.p99 * 1e3)))
}

/// Bytes that the files below `dir` occupy.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    meter::allocated_bytes(dir)
        .map_err(|source| Error::System { what: "count the bytes of the files".to_owned(), source })
}

fn describe(about: &About) -> Option<AboutReport> {
    serde_json::to_value(about).ok()
}

/// An entry that no workload has, so that a store of commits is not empty.
fn one_entry() -> crate::engine::Batch {
    let mut batch = crate::engine::Batch::default();
    batch.put(&[0; 34], &[0; 60]);
    batch
}

/// Syncs all files below `dir` and takes them out of the page cache. Pages that the load left there
/// would count for nobody and be read for nothing.
pub fn leave_page_cache(dir: &Path) -> Result<()> {
    let system = |path: &Path| {
        let what = format!("take {} out of the page cache", path.display());
        move |source| Error::System { what, source }
    };
    for entry in std::fs::read_dir(dir).map_err(system(dir))? {
        let path = entry.map_err(system(dir))?.path();
        if path.is_dir() {
            leave_page_cache(&path)?;
            continue;
        }
        let file = std::fs::File::open(&path).map_err(system(&path))?;
        file.sync_all().map_err(system(&path))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| system(&path)(error.into()))?;
    }
    Ok(())
}

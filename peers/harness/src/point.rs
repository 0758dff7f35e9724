//! One point of a comparison: one engine, one workload, one process, one empty folder.
//!
//! 1. The entries are loaded, in the order of their keys, without a limit on memory; the engine is
//!    closed, its files are synced and leave the page cache.
//! 2. The process enters a control group, which limits its memory and page cache together.
//! 3. The engine is opened again, works for the warm-up, then for the measured time.
//! 4. It is closed, opened once more, and checked: live keys are there, deleted ones are gone.

use std::path::Path;
use std::time::{Duration, Instant};

use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::instruments::meter::{self, DeviceUsage, Usage};

use crate::engine::{About, Batch, Error, Result, Terms};
use crate::engines::open;
use crate::files::{bare_sync_us, disk_bytes, leave_page_cache};
use crate::go;
use crate::report::{AboutReport, Figures, Outcome, Percentiles, Plan};
use crate::work::{Work, load};

/// Runs a point in `dir`, which is empty. Errors of the engine are part of the outcome.
///
/// # Errors
/// Those of the system, and a limit on memory that cannot be set.
pub fn run(plan: &Plan, dir: &Path) -> Result<Outcome> {
    let mut outcome =
        Outcome { plan: plan.clone(), about: None, cannot: None, failed: None, figures: None };
    match measure(plan, dir, &mut outcome.about) {
        Ok(figures) => outcome.figures = Some(figures),
        Err(Error::Cannot(why)) => outcome.cannot = Some(why.to_owned()),
        Err(error @ (Error::Engine { .. } | Error::Wrong(_))) => {
            outcome.failed = Some(error.to_string());
        }
        Err(error) => return Err(error),
    }
    Ok(outcome)
}

fn measure(plan: &Plan, dir: &Path, about: &mut Option<AboutReport>) -> Result<Figures> {
    if let Some(why) = plan.engine.cannot(plan.workload.has_root()) {
        return Err(Error::Cannot(why));
    }
    if plan.engine.is_go() {
        return go::measure(plan, dir, about);
    }
    let &Plan { engine: kind, workload, entries, memory_bytes, seed, .. } = plan;
    let durability = workload.durability();
    let entry_bytes = workload.entry_bytes();
    let threads = workload.threads();
    let has_root = workload.has_root();
    let terms = Terms { memory: memory_bytes, entries, entry_bytes, durability, threads, has_root };

    // The durability of a load is not measured.
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
        workload_bytes: workload.own_bytes(entries),
        page_cache_peak_bytes,
        disk_bytes,
        disk_ratio: workload.loads().then(|| disk_bytes as f64 / (entries * entry_bytes) as f64),
        checked,
        bare_sync_us,
        roots: work.roots().to_vec(),
        load_average: terrane_bench::instruments::host::load_average(),
    })
}

fn describe(about: &About) -> Option<AboutReport> {
    serde_json::to_value(about).ok()
}

/// An entry that no workload has, so that a store of commits is not empty.
fn one_entry() -> Batch {
    let mut batch = Batch::default();
    batch.put(&[0; 34], &[0; 60]);
    batch
}

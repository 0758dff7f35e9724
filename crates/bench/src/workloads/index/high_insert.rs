//! `terrane bench index high-insert`: inserts of random keys into an empty map.
//!
//! Entries are inserted in the order of their numbers, in which their keys are random, with a
//! durable flush now and then. Generating them is not part of what is measured. At the end a sample
//! is found, and as many keys that are absent.

use std::path::Path;

use serde::Serialize;

use super::engine::Engine;
use super::report::{EngineReport, MemoryReport};
use super::runner::{Runner, memory_report, memory_warning};
use super::{Common, Error, Key, Numbers, Result, Value, bounded_entries};
use crate::instruments::limits::MemoryLimit;
use crate::workloads::bounded;
use terrane_replay::monitor::{Monitor, Phase};

/// Calls after which the limit is asked what it has seen.
const TOLD_EVERY: u64 = 256;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Entries to insert.
    pub entries: u64,
    /// Entries of a call.
    pub batch: u64,
    /// The rest.
    pub common: Common,
}

/// Report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Entries to insert.
    pub entries: u64,
    /// Entries of a call.
    pub batch: u64,
    /// Operations after which a durable flush is made.
    pub flush_every: u64,
    /// Seed of keys and values.
    pub seed: u64,
    /// Limit on memory.
    pub memory: MemoryReport,
    /// Each engine, in the order in which they were measured.
    pub engines: Vec<EngineReport>,
    /// Reasons to doubt the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether the monitor has stopped it.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// Measures in directories below `store`, by a process that may be under a `limit`. If the monitor
/// asks to stop, the report is of what was measured until then and [says
/// so](Report::is_interrupted).
///
/// # Errors
/// [`Error`].
pub fn run(
    store: &Path,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let Options { entries, batch, ref common } = *options;
    bounded_entries("entries", entries)?;
    bounded("batch", batch, 1)?;

    let mut engines = Vec::new();
    for &engine in &common.engines {
        engines.push(measure(store, engine, limit, options, monitor)?);
        if monitor.stop() {
            break;
        }
    }

    Ok(Report {
        entries,
        batch,
        flush_every: common.flush_every,
        seed: common.seed,
        memory: memory_report(common, limit),
        engines,
        warnings: memory_warning(common, limit).into_iter().collect(),
        is_interrupted: monitor.stop(),
    })
}

fn measure(
    store: &Path,
    engine: Engine,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<EngineReport> {
    let Options { entries, batch, ref common } = *options;
    let mut runner = Runner::new(store, engine, common)?;
    let numbers = Numbers::new(common.seed, 0);

    let mut done = 0;

    let mut calls = 0_u64;
    let mut part: Vec<(Key, Value)> = Vec::with_capacity(batch as usize);
    while done < entries && !monitor.stop() {
        let end = entries.min(done + batch);
        part.clear();
        part.extend((done..end).map(|number| numbers.entry(number)));
        runner.replace(&part)?;
        done = end;
        calls += 1;
        if calls.is_multiple_of(TOLD_EVERY) {
            // This call updates the peak, which the limit remembers.
            let _ = limit.and_then(MemoryLimit::page_cache_peak_bytes);
        }
        monitor.progress(Phase::Operations, done, Some(entries));
    }

    let measured = runner.measured()?;
    let check = match runner.check(numbers, done, monitor) {
        Err(Error::Interrupted) => None,
        check => Some(check?),
    };

    runner.finish(measured, check)
}

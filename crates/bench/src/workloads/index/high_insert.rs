//! `terrane bench index high-insert`: inserts of random keys into an empty map.
//!
//! Entries are inserted in the order of their numbers, in which their keys are random, with a
//! durable flush now and then. Generating them is not part of what is measured. At the end a sample
//! is found, and as many keys that are absent.

use std::path::Path;

use serde::Serialize;

use super::report::EnginesReport;
use super::runner::{Runner, run_engines};
use super::{Common, Key, Numbers, Result, Value, bounded_entries};
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
    /// The engines.
    #[serde(flatten)]
    pub run: EnginesReport,
}

/// Measures in directories below `store`, by a process that may be under a `limit`. If the monitor
/// asks to stop, the report is of what was measured until then and [says
/// so](EnginesReport::is_interrupted).
///
/// # Errors
/// [`Error`](super::Error).
pub fn run(
    store: &Path,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let Options { entries, batch, ref common } = *options;
    bounded_entries("entries", entries)?;
    bounded("batch", batch, 1)?;

    let measure = |runner: &mut Runner<'_>, monitor: &mut dyn Monitor| {
        measure(runner, limit, options, monitor).map(Some)
    };
    let run = run_engines(store, common, limit, monitor, measure)?;

    Ok(Report { entries, batch, flush_every: common.flush_every, seed: common.seed, run })
}

/// Runs the workload on one engine; returns the numbers of its entries, and how many live.
fn measure(
    runner: &mut Runner<'_>,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<(Numbers, u64)> {
    let Options { entries, batch, ref common } = *options;
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

    Ok((numbers, done))
}

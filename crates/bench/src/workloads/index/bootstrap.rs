//! `terrane bench index bootstrap`: what a node does that starts with many entries.
//!
//! A map is filled with entries in the order of their keys. Then come operations of three kinds in
//! the ratio of a trace of such a node: of 99, 10 add an entry, 69 find one, 20 ask whether one is
//! there. Each is a call of its own. Keys that are looked up are drawn uniformly from all that are
//! there, and some from such as are not; every answer is compared with what it must be. How many of
//! a trace's keys are absent is not published, so that is an option.

use std::path::Path;

use serde::Serialize;

use super::report::EnginesReport;
use super::runner::{Lookup, Runner, run_engines};
use super::{Common, Error, Numbers, Result, bounded_entries, splitmix};
use crate::instruments::limits::MemoryLimit;
use terrane_replay::monitor::{Monitor, Phase};

/// Operations of each kind in a round.
const ADDS: u64 = 10;
const FINDS: u64 = 69;
const MEMS: u64 = 20;

/// Streams that operations are drawn from.
const KIND_STREAM: u64 = 0x6B69_6E64_0000_0000;
const KEY_STREAM: u64 = 0x6B65_7900_0000_0000;
const ABSENT_STREAM: u64 = 0x6162_7365_0000_0000;

/// Numbers from here on are never added.
const ABSENT_NUMBER: u64 = 1 << 40;

/// Operations after which the monitor is told and asked.
const TOLD_EVERY: u64 = 4096;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Entries to begin with.
    pub entries: u64,
    /// Operations.
    pub ops: u64,
    /// Share of lookups for absent keys, in per cent.
    pub absent_percent: u64,
    /// The rest.
    pub common: Common,
}

/// Report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Entries to begin with.
    pub entries: u64,
    /// Operations.
    pub ops: u64,
    /// Share of lookups for absent keys, in per cent.
    pub absent_percent: u64,
    /// Operations after which a durable flush is made.
    pub flush_every: u64,
    /// Seed of keys, values and operations.
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
/// [`Error`].
pub fn run(
    store: &Path,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let Options { entries, ops, absent_percent, ref common } = *options;
    bounded_entries("entries", entries)?;
    bounded_entries("ops", ops)?;

    if absent_percent > 100 {
        return Err(Error::Options("absent must be at most 100".to_owned()));
    }

    let measure = |runner: &mut Runner<'_>, monitor: &mut dyn Monitor| {
        measure(runner, limit, options, monitor).map(Some)
    };
    let run = run_engines(store, common, limit, monitor, measure)?;

    Ok(Report {
        entries,
        ops,
        absent_percent,
        flush_every: common.flush_every,
        seed: common.seed,
        run,
    })
}

/// Runs the workload on one engine; returns the numbers of its entries, and how many live.
fn measure(
    runner: &mut Runner<'_>,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<(Numbers, u64)> {
    let Options { entries, ops, ref common, .. } = *options;

    let numbers = Numbers::new(common.seed, entries);
    let mut sorted = (0..entries).map(|number| {
        if number % TOLD_EVERY == 0 {
            monitor.progress(Phase::Fill, number, Some(entries));
        }
        numbers.entry(number)
    });

    runner.load(&mut sorted)?;
    let mut live = entries;
    for op in 0..ops {
        operation(runner, numbers, options, op, &mut live)?;
        if op % TOLD_EVERY == 0 {
            // This call updates the peak, which the limit remembers.
            let _ = limit.and_then(MemoryLimit::page_cache_peak_bytes);
            monitor.progress(Phase::Operations, op, Some(ops));
            if monitor.stop() {
                break;
            }
        }
    }

    Ok((numbers, live))
}

/// Does operation `op` with a map that has the numbers below `live`.
fn operation(
    runner: &mut Runner<'_>,
    numbers: Numbers,
    options: &Options,
    op: u64,
    live: &mut u64,
) -> Result<()> {
    let draw = |stream: u64| splitmix(options.common.seed ^ stream.wrapping_add(op));
    let kind = draw(KIND_STREAM) % (ADDS + FINDS + MEMS);
    if kind < ADDS {
        runner.replace(&[numbers.entry(*live)])?;
        *live += 1;
        return Ok(());
    }

    let is_there = draw(ABSENT_STREAM) % 100 >= options.absent_percent;
    let number = if is_there { draw(KEY_STREAM) % *live } else { ABSENT_NUMBER + op };
    let (key, value) = numbers.entry(number);
    let how = if kind < ADDS + FINDS { Lookup::Find } else { Lookup::Mem };
    let found = runner.find(&key, how, false)?;
    let expected = is_there.then_some(&value[..]);

    if found.as_deref() != expected {
        let message = format!("operation {op}, key {number}: {found:?}, not {expected:?}");
        return Err(Error::Wrong(message));
    }

    Ok(())
}

//! `terrane bench index replay`: what a trace of an index says, operation by operation.
//!
//! A trace says of a lookup whether the key was there; the first answer that differs ends the run.
//! Traces of the other kind tell nothing of answers; then the hash of all answers, which must be
//! the same for each engine, is what can be compared. Lookups of readers are made by a reader
//! beside the writer where the engine has one, as of the last flush.

use std::fs::File;
use std::path::Path;

use serde::Serialize;

use super::report::EnginesReport;
use super::runner::{Lookup, Runner, run_engines};
use super::{Common, Error, Key, Result};
use crate::instruments::limits::MemoryLimit;
use terrane_replay::hex;
use terrane_replay::monitor::{Monitor, Phase};
use terrane_replay::traces::index::{Dialect, Op, Trace};

/// Operations after which the monitor is told and asked.
const TOLD_EVERY: u64 = 4096;

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// The dialect; found out if not given.
    pub dialect: Option<Dialect>,
    /// Operations to replay; all if not given.
    pub limit: Option<u64>,
    /// Whether answers are compared with those that are recorded.
    pub check: bool,
    /// Whether flushes are those of the trace; otherwise a flush follows a fixed number of
    /// operations.
    pub trace_flushes: bool,
    /// The rest.
    pub common: Common,
}

/// Report of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The dialect of the trace.
    pub dialect: &'static str,
    /// Whether answers were compared with those that are recorded.
    pub checked: bool,
    /// Operations after which a durable flush is made; absent if the trace has told when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_every: Option<u64>,
    /// The engines.
    #[serde(flatten)]
    pub run: EnginesReport,
}

/// Replays a trace in directories below `store`, by a process that may be under a `limit`. If the
/// monitor asks to stop, the report is of what was measured until then and [says
/// so](EnginesReport::is_interrupted).
///
/// # Errors
/// [`Error`]; [`Error::Trace`] for a trace that cannot be read, [`Error::Wrong`] for the first
/// answer that differs.
pub fn run(
    store: &Path,
    trace: &Path,
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let mut common = options.common.clone();
    if options.trace_flushes {
        common.flush_every = u64::MAX;
    }
    let dialect = open(trace, options.dialect)?.dialect();

    let replay = |runner: &mut Runner<'_>, monitor: &mut dyn Monitor| {
        let operations = open(trace, Some(dialect))?;
        replay(runner, (trace, operations), limit, options, monitor).map(|()| None)
    };

    let mut run = run_engines(store, &common, limit, monitor, replay)?;
    let differ = run.engines.windows(2).any(|pair| pair[0].result_hash != pair[1].result_hash);
    if differ && !run.is_interrupted {
        run.warnings.push("the engines gave different answers: see result_hash".to_owned());
    }

    Ok(Report {
        dialect: dialect.name(),
        checked: options.check,
        flush_every: (!options.trace_flushes).then_some(common.flush_every),
        run,
    })
}

fn open(path: &Path, dialect: Option<Dialect>) -> Result<Trace<File>> {
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    match dialect {
        Some(dialect) => Ok(Trace::new(file, dialect)),
        None => Trace::detect(file).map_err(|error| Error::trace(path, error)),
    }
}

fn replay(
    runner: &mut Runner<'_>,
    (path, operations): (&Path, Trace<File>),
    limit: Option<&MemoryLimit>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<()> {
    let most = options.limit.unwrap_or(u64::MAX);
    for (record, op) in (0..most).zip(operations) {
        let op = op.map_err(|error| Error::trace(path, error))?;
        operation(runner, op, record, options)?;
        if record % TOLD_EVERY == 0 {
            // This call updates the peak, which the limit remembers.
            let _ = limit.and_then(MemoryLimit::page_cache_peak_bytes);
            monitor.progress(Phase::Operations, record, options.limit);
            if monitor.stop() {
                return Ok(());
            }
        }
    }

    Ok(())
}

fn operation(runner: &mut Runner<'_>, op: Op, record: u64, options: &Options) -> Result<()> {
    let mut look = |key: Key, expected: Option<bool>, how, as_reader| {
        let found = runner.find(&key, how, as_reader)?.is_some();
        match expected.filter(|expected| options.check && *expected != found) {
            None => Ok(()),
            Some(expected) => {
                let key = hex::encode(&key);
                let message =
                    format!("record {record}, key {key}: found is {found}, recorded {expected}");
                Err(Error::Wrong(message))
            }
        }
    };

    match op {
        Op::Mem { key, expected } => look(key, expected, Lookup::Mem, false),
        Op::Find { key, expected } => look(key, expected, Lookup::Find, false),
        Op::RoMem { key, expected } => look(key, expected, Lookup::Mem, true),
        Op::RoFind { key, expected } => look(key, expected, Lookup::Find, true),
        Op::Add { key, value } => runner.replace(&[(key, value)]),
        Op::Remove { key } => runner.remove(&key),
        Op::Clear => runner.clear(),
        Op::Flush if options.trace_flushes => runner.flush(),
        Op::Flush => Ok(()),
    }
}

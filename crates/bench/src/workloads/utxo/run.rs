//! `terrane bench utxo run`: the workload itself.
//!
//! - *sequential*: look up a batch, then update it, one after the other.
//! - *pipelined*: lookups of later batches are submitted before the updates of earlier ones; they
//!   are of an older state, and what the updates between have changed is put right afterwards. Same
//!   results.
//! - *lookup-only*: batches of keys that the table has, overlapped or one at a time; nothing
//!   changes.
//! - *update-only*: as sequential, without lookups; the clock stops when there is no more merge
//!   work left to later updates than there was at first.
//!
//! Every value that is found is compared with what it must be, and all go into one hash, which is
//! the same in each mode that looks up. Making keys and values is inside the clock.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{CompactionThread, OpenOptions, Session};

use super::draws::{Draws, Kind};
pub use super::options::{Mode, Options};
use super::work::{Moment, Work};
use super::{Prepared, merge_debt_bytes, setup};
use crate::instruments::meter::{reset_rss_peak, rss_bytes};
use crate::workloads::{Error, Result, label_of, open, open_in_memory, seconds};
use terrane_replay::latency::LatencyReport;
use terrane_replay::monitor::Monitor;

/// Report of a run. Bytes of memory are those at the end.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The order of things.
    pub mode: Mode,
    /// Live entries.
    pub entries: u64,
    /// Seed of keys, values and draws.
    pub seed: u64,
    /// Batches done.
    pub batches: u64,
    /// Operations in each.
    pub batch_size: u64,
    /// Batches of lookups under way at once.
    pub batches_in_flight: u64,
    /// Threads that worked.
    pub threads: u64,
    /// The measured time.
    pub wall_s: f64,
    /// Operations, each a lookup, a deletion and an insertion as far as the mode has them.
    pub ops_per_s: f64,
    /// Keys looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookups_per_s: Option<f64>,
    /// Reads of the engine for each key looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup_io_per_op: Option<f64>,
    /// Bytes that the process read from the device.
    pub device_read_bytes: u64,
    /// Bytes that the process wrote, or will have written when the page cache is.
    pub device_write_bytes: u64,
    /// Written bytes for each byte of keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
    /// Time of all processors.
    pub cpu_s: f64,
    /// Processor time of an operation.
    pub cpu_us_per_op: f64,
    /// Processor time of an operation in user mode.
    pub cpu_user_us_per_op: f64,
    /// Processor time of an operation in the kernel.
    pub cpu_system_us_per_op: f64,
    /// Making keys and values of an operation, which is inside the time.
    pub generate_us_per_op: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// The most that was, from before the table was opened.
    pub rss_peak_bytes: u64,
    /// Memory of filters.
    pub filter_bytes: u64,
    /// Memory of indexes.
    pub index_bytes: u64,
    /// Memory of write buffers.
    pub write_buffer_bytes: u64,
    /// Memory of cached pages.
    pub cache_bytes: u64,
    /// Memory of the pages that lookups in flight are read into.
    pub io_buffer_bytes: u64,
    /// Runs.
    pub runs: u64,
    /// Physical entries of each level, the newest one first.
    pub levels: Vec<u64>,
    /// Merge work left when the clock started.
    pub merge_debt_before_bytes: u64,
    /// And when it stopped.
    pub merge_debt_after_bytes: u64,
    /// Opening the table.
    pub open_s: f64,
    /// Batches of lookups, from call to result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup_latency_us: Option<LatencyReport>,
    /// Batches of updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_latency_us: Option<LatencyReport>,
    /// Keys drawn twice.
    pub duplicates: u64,
    /// Lookups that found nothing.
    pub missing: u64,
    /// Whether the whole table was read and compared at the end.
    pub checked: bool,
    /// BLAKE3 of all keys and values of the operations that were drawn.
    pub stream_hash: String,
    /// A hash of all values found, in their order.
    pub result_hash: String,
}

/// Measures on the table that was set up in `store`.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let session = open(store)?;
    let report = measure(&session, store, options, monitor);
    session.close()?;
    report
}

/// Sets a table up in memory and measures on it: what the engine costs without a device.
///
/// # Errors
/// [`Error`].
pub fn run_in_memory(
    setup: &setup::Options,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let session = open_in_memory()?;
    setup::set_up(&session, setup, monitor)?;
    measure(&session, &std::env::temp_dir(), options, monitor)
}

fn measure(
    session: &Session,
    draws_dir: &Path,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let snapshot = Prepared::snapshot()?;
    let label = label_of(session, &snapshot)?;
    let Some(prepared) = label.as_deref().and_then(Prepared::from_label) else {
        let message = "no table of this benchmark; make one with `terrane bench utxo setup`";
        return Err(Error::Options(message.to_owned()));
    };

    let label = prepared.label();
    let &Options { mode, batches, batch_size, .. } = options;
    let (kind, drawn) = match mode {
        Mode::Sequential | Mode::Pipelined => (Kind::Replaced, batches),
        Mode::LookupOnly => (Kind::Kept, batches),
        // Half of the batches more, which pay the merge debt.
        Mode::UpdateOnly => (Kind::Replaced, batches.saturating_add(batches.div_ceil(2))),
    };

    let draws = Draws::new(draws_dir, (prepared, kind), (drawn, batch_size), monitor)?;
    reset_rss_peak();
    let compaction_thread =
        if options.threads > 1 { CompactionThread::Background } else { CompactionThread::Caller };
    let mut open_options = OpenOptions::default().compaction_thread(compaction_thread);
    open_options = open_options.queue_depth(options.queue_depth);

    if let Some(bytes) = options.memory_budget {
        open_options = open_options.memory_budget(bytes).memory_goal(options.memory_goal.into());
    }

    let opening = Instant::now();
    let table = session.open_snapshot_with(&snapshot, &label, &open_options)?;
    let open_s = seconds(opening);
    let work = Work::new(table, draws.read()?, prepared, options, monitor);
    let before = work.moment();
    let work = work.done()?;
    let after = work.moment();

    if options.check {
        let batches = if mode == Mode::LookupOnly { 0 } else { work.batches() };
        work.compare(&draws, batches)?;
    }

    let outcome = Outcome { before, after, open_s, draws: &draws };
    Ok(report(options, &work, &outcome))
}

/// Parts of a report beside the work itself.
struct Outcome<'a> {
    before: Moment,
    after: Moment,
    open_s: f64,
    draws: &'a Draws,
}

fn report(options: &Options, work: &Work<'_>, outcome: &Outcome<'_>) -> Report {
    let Outcome { before, after, open_s, draws } = outcome;
    let was = &before.stats;
    let is = &after.stats;
    let wall_s = (after.at - before.at).as_secs_f64();
    let batches = work.batches();
    let ops = (batches * options.batch_size) as f64;
    let used = after.usage.since(&before.usage);
    let looks_up = options.mode != Mode::UpdateOnly;

    let update_bytes = is.update_bytes - was.update_bytes;

    let lookups = work.lookups.report();
    let updates = work.updates.report();
    Report {
        mode: options.mode,
        entries: draws.prepared.entries,
        seed: draws.prepared.seed,
        batches,
        batch_size: options.batch_size,
        batches_in_flight: options.in_flight,
        threads: options.threads,
        wall_s,
        ops_per_s: ops / wall_s,
        lookups_per_s: looks_up.then(|| ops / wall_s),
        lookup_io_per_op: looks_up.then(|| (is.lookup_reads - was.lookup_reads) as f64 / ops),
        device_read_bytes: used.read_bytes,
        device_write_bytes: used.write_bytes,
        write_amplification: (update_bytes > 0)
            .then(|| used.write_bytes as f64 / update_bytes as f64),
        cpu_s: used.cpu_s,
        cpu_us_per_op: used.cpu_s * 1e6 / ops,
        cpu_user_us_per_op: used.user_s * 1e6 / ops,
        cpu_system_us_per_op: used.system_s * 1e6 / ops,
        generate_us_per_op: work.generating.as_secs_f64() * 1e6 / ops,
        rss_bytes: rss_bytes().unwrap_or(0),
        rss_peak_bytes: after.rss_peak_bytes,
        filter_bytes: is.filter_bytes,
        index_bytes: is.index_bytes,
        write_buffer_bytes: is.buffer_bytes,
        cache_bytes: is.cache_bytes,
        io_buffer_bytes: work.reads_in_flight() * 4096,
        runs: is.runs(),
        levels: is.levels.iter().map(|level| level.entries).collect(),
        merge_debt_before_bytes: merge_debt_bytes(was),
        merge_debt_after_bytes: merge_debt_bytes(is),
        open_s: *open_s,
        lookup_latency_us: (lookups.ops > 0).then_some(lookups),
        update_latency_us: (updates.ops > 0).then_some(updates),
        duplicates: draws.duplicates,
        missing: work.missing,
        checked: options.check,
        stream_hash: draws.stream_hash.to_hex().to_string(),
        result_hash: work.result_hash(),
    }
}

//! Report of an engine in the workloads of the index.
//!
//! Latencies are of calls, not of operations: each kind says how many operations a call has.

use serde::Serialize;
use terrane::btree::Stats;
use terrane::io::Counts;

use super::ENTRY_BYTES;
pub use super::curve::Point;
pub use super::engine::Engine;
use crate::instruments::meter::{DeviceUsage, Usage};
use terrane_replay::latency::LatencyReport;

/// Part of a report that every workload has.
#[derive(Debug, Clone, Serialize)]
pub struct EnginesReport {
    /// Limit on memory.
    pub memory: MemoryReport,
    /// Each engine, in the order in which they were measured.
    pub engines: Vec<EngineReport>,
    /// Reasons to doubt the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether the monitor has stopped the run. The report is then of what was measured until it
    /// did.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// Report of one engine.
#[derive(Debug, Clone, Serialize)]
pub struct EngineReport {
    /// The engine.
    pub engine: Engine,
    /// Operations measured.
    pub ops: u64,
    /// Time in calls of the engine, durable flushes included.
    pub wall_s: f64,
    /// Operations in a second of that time.
    pub ops_per_s: f64,
    /// Time for generating and comparing between the calls.
    pub generate_s: f64,
    /// Making the entries that the run begins with, where it begins with any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_s: Option<f64>,
    /// Closing: what had been put off until then.
    pub close_s: f64,
    /// The rate over time.
    pub curve: Vec<Point>,
    /// Calls, by kind.
    pub calls: Calls,
    /// Bytes and requests of what was measured.
    pub io: IoReport,
    /// Processor time for an operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op: Option<f64>,
    /// Resident memory before the engine was opened, in bytes: what other engines and this program
    /// take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_before_bytes: Option<u64>,
    /// The most resident memory since then, in bytes; a memory map counts with what of it is
    /// resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_peak_bytes: Option<u64>,
    /// Entries at the end, where the engine or the workload tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Bytes of all files at the end.
    pub store_bytes: u64,
    /// Bytes of all keys and values, over those of the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// The B+tree itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeReport>,
    /// Finds at the end, of keys that are there and of others; absent if the run was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckReport>,
    /// Hash of all keys that were looked up and of what was found, the same for each engine.
    pub result_hash: String,
}

/// Calls of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CallReport {
    /// Operations of each call.
    pub ops_per_call: u64,
    /// Latencies of calls.
    pub latency_us: LatencyReport,
}

/// Calls by kind; none of a kind that was not called.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Calls {
    /// Replacing entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace: Option<CallReport>,
    /// Removing an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remove: Option<CallReport>,
    /// Finding an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub find: Option<CallReport>,
    /// Asking whether an entry is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem: Option<CallReport>,
    /// Making all durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush: Option<CallReport>,
}

/// Bytes and requests.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct IoReport {
    /// Bytes that the engine asked for; absent for engines on a memory map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineIo>,
    /// Bytes that the system counted for this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Usage>,
    /// Bytes that the device counted, for all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUsage>,
    /// Bytes read for an operation, by the process's count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_op: Option<f64>,
    /// Bytes written for an operation, by the process's count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_op: Option<f64>,
    /// Written bytes of an operation over the bytes of its key and value, for each replaced entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
}

/// Calls of an engine to its disk.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct EngineIo {
    /// Reads.
    pub read_requests: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes.
    pub write_requests: u64,
    /// Bytes of these.
    pub write_bytes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
}

impl EngineIo {
    pub(super) fn of(counts: &Counts) -> Self {
        Self {
            read_requests: counts.reads,
            read_bytes: counts.read_bytes,
            write_requests: counts.writes,
            write_bytes: counts.write_bytes,
            syncs: counts.syncs + counts.dir_syncs,
        }
    }
}

impl IoReport {
    /// Returns the report of `ops` operations, `replaced` of which replaced an entry.
    pub(super) fn new(
        engine: Option<EngineIo>,
        process: Option<Usage>,
        device: Option<DeviceUsage>,
        (ops, replaced): (u64, u64),
    ) -> Self {
        let each = |bytes: u64, of: u64| (of > 0).then(|| bytes as f64 / of as f64);
        let per_op = |bytes: fn(&Usage) -> u64| each(process.as_ref().map(bytes)?, ops);
        let written = process.as_ref().map(|process| process.write_bytes);
        Self {
            engine,
            process,
            device,
            read_bytes_per_op: per_op(|process| process.read_bytes),
            write_bytes_per_op: per_op(|process| process.write_bytes),
            write_amplification: written.and_then(|bytes| each(bytes, replaced * ENTRY_BYTES)),
        }
    }
}

/// The B+tree at the end, and what it did while it was measured.
#[derive(Debug, Clone, Serialize)]
pub struct TreeReport {
    /// Levels of inner nodes.
    pub height: u32,
    /// Pages of each level, from the leaves up.
    pub level_pages: Vec<u64>,
    /// Cached pages of each level, from the leaves up.
    pub cached_pages: Vec<u64>,
    /// Bytes of the tree file.
    pub file_bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
    /// Bytes of the log that an opening would read.
    pub log_bytes: u64,
    /// Updates that were not in leaves yet.
    pub buffered_updates: u64,
    /// Pages read, by level from the leaves up.
    pub page_reads: Vec<u64>,
    /// Pages found in memory, by level from the leaves up.
    pub cache_hits: Vec<u64>,
    /// Pages written.
    pub page_writes: u64,
    /// Bytes appended to the log.
    pub log_bytes_written: u64,
    /// Pages that became several.
    pub splits: u64,
    /// Pages that were joined with a neighbour.
    pub merges: u64,
    /// Leaves written for updates, and these.
    pub drained_leaves: u64,
    /// Updates that came into leaves.
    pub drained_updates: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// The differences of two counts by level.
pub(super) fn since(now: &[u64], before: &[u64]) -> Vec<u64> {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter().zip(before).map(|(now, before)| now - before).collect()
}

impl TreeReport {
    pub(super) fn new(now: Stats, before: &Stats) -> Self {
        Self {
            height: now.height,
            page_reads: since(&now.page_reads, &before.page_reads),
            cache_hits: since(&now.cache_hits, &before.cache_hits),
            page_writes: now.page_writes - before.page_writes,
            log_bytes_written: now.log_bytes_written - before.log_bytes_written,
            splits: now.splits - before.splits,
            merges: now.merges - before.merges,
            drained_leaves: now.drained_leaves - before.drained_leaves,
            drained_updates: now.drained_updates - before.drained_updates,
            checkpoints: now.checkpoints - before.checkpoints,
            file_bytes: now.file_bytes,
            used_bytes: now.used_bytes,
            log_bytes: now.log_bytes,
            buffered_updates: now.buffered_updates,
            level_pages: now.level_pages,
            cached_pages: now.cached_pages,
        }
    }
}

/// Finds at the end, each of them compared with what must be found.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// Finds of present keys.
    pub present: FindReport,
    /// Finds of absent keys.
    pub absent: FindReport,
}

/// Finds of single keys.
#[derive(Debug, Clone, Serialize)]
pub struct FindReport {
    /// Finds.
    pub finds: u64,
    /// Finds in a second.
    pub finds_per_s: f64,
    /// Latencies of finds.
    pub latency_us: LatencyReport,
    /// Pages of 4 KiB that the engine has read for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_reads_per_find: Option<f64>,
    /// Page reads of a find, by level of the B+tree from the leaves up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_reads_by_level: Option<Vec<f64>>,
    /// Pages found in memory for each, by level of the B+tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_hits_by_level: Option<Vec<f64>>,
}

/// Whether the memory of the run was bounded as a whole.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryReport {
    /// Bytes of the memory budget of each engine that has one.
    pub budget_bytes: u64,
    /// Whether process and page cache together could not have more than a limit.
    pub memory_enforced: bool,
    /// By what: `cgroup_v1` or `cgroup_v2`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced_by: Option<&'static str>,
    /// The most page cache that was seen under the limit, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_peak_bytes: Option<u64>,
}

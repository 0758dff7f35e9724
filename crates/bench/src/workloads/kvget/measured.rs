//! Options of a run, and the measurement that its report is made from.

use serde::Serialize;
use terrane::lsm::TableStats;

use super::Prepared;
use super::data::Distribution;
use crate::instruments::meter::{DeviceUsage, Usage};
use crate::model::Goal;
use terrane_replay::latency::Latency;

/// Memory budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Bytes.
    Bytes(u64),
    /// Bytes for each byte of keys and values.
    Ratio(f64),
}

impl Budget {
    /// Bytes of the budget, for so many bytes of keys and values.
    #[must_use]
    pub fn bytes(self, logical_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Ratio(ratio) => (logical_bytes as f64 * ratio) as u64,
        }
    }
}

/// Warm-up before any read counts. A cost is steady when three windows cost the same or
/// each page of the index has been needed 50 times, and the cache of pages has its size.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum WarmUp {
    /// Until the cost is steady, but not longer than the run.
    #[default]
    Steady,
    /// Fixed number of reads for each key, whatever their cost.
    Fixed(f64),
}

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Memory for filters, index, write buffer and cached pages; without one, what filters and
    /// index take as they are, and no cache.
    pub memory_budget: Option<Budget>,
    /// Kind of lookups that the memory is spent on.
    pub goal: Goal,
    /// Reads.
    pub reads: u64,
    /// Share of reads for absent keys, in per cent.
    pub absent_percent: u64,
    /// Distribution of the keys that are read.
    pub distribution: Distribution,
    /// Keys of each call.
    pub batch: u64,
    /// Threads that read.
    pub threads: u64,
    /// Warm-up before the measured reads.
    pub warm_up: WarmUp,
    /// Whether pages are read through the page cache, which is then memory that no budget counts.
    pub buffered: bool,
}

impl Default for Options {
    /// Half a million hits, 64 keys a call, by one thread.
    fn default() -> Self {
        Self {
            memory_budget: None,
            goal: Goal::default(),
            reads: 500_000,
            absent_percent: 0,
            distribution: Distribution::default(),
            batch: 64,
            threads: 1,
            warm_up: WarmUp::default(),
            buffered: false,
        }
    }
}

/// Mode of reading the pages of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Past the page cache.
    Direct,
    /// Through it, because the file system refuses to do otherwise.
    Buffered,
    /// Out of memory, without a device.
    Memory,
}

/// Outcome of the warm-up.
#[derive(Debug, Clone, Copy)]
pub(super) struct WarmedUp {
    pub(super) ops: u64,
    pub(super) converged: bool,
    /// References to each page of the index, in the warm-up and in what was measured.
    pub(super) index_refs_per_page: f64,
}

/// Sum of the windows of a run.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) sum: Window,
    pub(super) windows: Vec<WindowReport>,
    pub(super) io_per_get_ci95: Option<f64>,
    pub(super) latency: Latency,
    pub(super) stream_hash: String,
    /// Counters of the table before the run.
    pub(super) before: TableStats,
}

/// Operations between two moments, and their cost.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub(super) ops: u64,
    pub(super) found: u64,
    pub(super) absent: u64,
    /// Reads that the engine has asked for.
    pub(super) reads: u64,
    pub(super) wall_s: f64,
    pub(super) generate_s: f64,
    /// `None` as soon as the system has not told once.
    pub(super) process: Option<Usage>,
    pub(super) device: Option<DeviceUsage>,
}

impl Window {
    pub(super) fn io_per_get(&self) -> f64 {
        self.reads as f64 / self.ops as f64
    }

    pub(super) fn add(&mut self, other: &Self) {
        let is_first = self.ops == 0;
        self.ops += other.ops;
        self.found += other.found;
        self.absent += other.absent;
        self.reads += other.reads;
        self.wall_s += other.wall_s;
        self.generate_s += other.generate_s;

        if is_first {
            (self.process, self.device) = (other.process, other.device);
        } else {
            self.process = self.process.zip(other.process).map(|(sum, more)| sum.plus(&more));
            self.device = self.device.zip(other.device).map(|(sum, more)| sum.plus(&more));
        }
    }
}

/// Measured window.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct WindowReport {
    /// The number of its first operation.
    pub first_op: u64,
    pub ops: u64,
    pub found: u64,
    pub absent: u64,
    /// Reads of the engine.
    pub read_requests: u64,
    pub io_per_get: f64,
    pub wall_s: f64,
    pub lookups_per_s: f64,
}

impl WindowReport {
    /// Returns the report of a window, whose first operation has the number `first_op`.
    pub(super) fn new(first_op: u64, window: &Window) -> Self {
        Self {
            first_op,
            ops: window.ops,
            found: window.found,
            absent: window.absent,
            read_requests: window.reads,
            io_per_get: window.io_per_get(),
            wall_s: window.wall_s,
            lookups_per_s: window.ops as f64 / window.wall_s,
        }
    }
}

/// Everything a report is made of.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) prepared: Prepared,
    pub(super) options: Options,
    pub(super) io_mode: IoMode,
    /// The control group that the process was in.
    pub(super) limited_by: Option<&'static str>,
    pub(super) page_cache_peak_bytes: Option<u64>,
    /// Bytes that the table was given.
    pub(super) budget: Option<u64>,
    /// Resident memory before the table was opened.
    pub(super) binary_bytes: Option<u64>,
    pub(super) open_s: f64,
    pub(super) warm_up: WarmedUp,
    pub(super) measured: Measured,
    /// Counters of the table since it was opened.
    pub(super) stats: TableStats,
}

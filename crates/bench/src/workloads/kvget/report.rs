//! Report of `terrane bench kvget`: groups of figures, of which the most important ones
//! stand flat as well.
//!
//! Names carry their units; ratios are from 0 to 1; a figure that does not apply, or that the
//! system does not tell, is absent and never 0. Bits, rates and bytes a page are those of the table
//! as it was opened.

use serde::Serialize;
use terrane::lsm::TableStats;

use super::data::KEY_BYTES;
pub use super::measured::WindowReport;
use super::measured::{IoMode, Measurement};
use super::name_of;
use crate::instruments::device::Yardstick;
use crate::instruments::meter::{DeviceUsage, Usage, rss_bytes, rss_peak_bytes};
use crate::model::{FilterKind, Goal, Prediction, Shape};
use terrane_replay::latency::LatencyReport;

/// Version of the fields; raised when one goes or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Largest difference between the counts of the engine and of the process, in a run past the page
/// cache.
const DIFFERENCE_RATIO_MAX: f64 = 0.005;

/// The share of the device's work, from others than this process, above which a run is noisy.
const FOREIGN_RATIO_MAX: f64 = 0.05;

/// Bytes of every read of a lookup.
const PAGE_BYTES: u64 = terrane::lsm::PAGE_SIZE as u64;

/// Report of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Version of these fields.
    pub schema_version: u32,
    /// Reads of pages for each key that was looked up, to four digits.
    pub io_per_get: f64,
    /// Keys looked up in a second.
    pub lookups_per_s: f64,
    /// Processor time of a lookup, of all threads, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op: Option<f64>,
    /// Keys that should have been found and were not: 0, or there is no report.
    pub missing: u64,
    /// Time of the windows that were measured.
    pub measured_s: f64,
    /// Time until the table could be read.
    pub open_s: f64,
    /// The operations.
    pub workload: Workload,
    /// The engine that carried them out.
    pub engine: Engine,
    /// On which device, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// With which memory.
    pub memory: Memory,
    /// Reads.
    pub io: Io,
    /// Convergence of the cost.
    pub convergence: Convergence,
    /// Speed of the lookups.
    pub speed: Speed,
    /// Prediction of the model.
    pub model: Model,
    /// Reasons to doubt the figures.
    pub warnings: Vec<Warning>,
    /// The windows that were measured, which are told one by one.
    #[serde(skip)]
    pub windows: Vec<WindowReport>,
    /// Whether the run was to be longer.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// The operations.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Workload {
    pub name: &'static str,
    pub seed: u64,
    /// BLAKE3 of the operations: kind, key and value of each, in their order.
    pub stream_hash: String,
    pub entries: u64,
    pub key_bytes: usize,
    /// Mean bytes of a value, rounded to whole ones.
    pub value_bytes: usize,
    /// Name of the values.
    pub values: String,
    /// The incompressible share of the values, where all of it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy_ratio: Option<f64>,
    pub distribution: String,
    pub absent_ratio: f64,
    pub batches: u64,
    pub batch_size: u64,
    pub threads: u64,
    /// Keys looked up.
    pub ops: u64,
    pub found: u64,
    pub absent: u64,
    pub missing: u64,
    /// Whether every result was compared with what it must be.
    pub verified: bool,
}

/// The table.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Engine {
    pub engine: &'static str,
    pub engine_version: &'static str,
    pub options: EngineOptions,
    pub io_mode: IoMode,
    /// Nothing is written.
    pub durability: &'static str,
    pub logical_bytes: u64,
    pub disk_bytes: u64,
    pub space_amplification: f64,
    pub runs: u64,
    pub levels: Vec<Level>,
    pub merge_debt_bytes: u64,
}

/// Rate of the device alone, measured before and after the reads.
#[derive(Debug, Clone, Serialize)]
pub struct Device {
    /// Random 4 KiB reads per second, 96 in flight, one core: the mean of both.
    pub fio_read_iops: f64,
    /// Rate with one read in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fio_read_iops_qd1: Option<f64>,
    /// Difference of the two rates, over their mean.
    pub fio_read_iops_spread_ratio: f64,
    /// `fio` or `terrane`.
    pub measured_by: &'static str,
}

/// Options of the table.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct EngineOptions {
    pub shape: &'static str,
    pub memory_goal: Goal,
}

/// A level of the table, the newest one first.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Level {
    pub runs: u64,
    /// Physical ones.
    pub entries: u64,
    pub disk_bytes: u64,
    pub filter_bits_per_key: f64,
    /// False-positive rate of its filters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub false_positive_ratio: Option<f64>,
}

/// Memory by what it is for.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ratio: Option<f64>,
    /// Whether nothing is read from memory that is not counted here.
    pub memory_enforced: bool,
    /// `direct_io`, `cgroup_v1`, `cgroup_v2` or `none`.
    pub enforced_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_peak_bytes: Option<u64>,
    pub filter_bytes: u64,
    pub index_bytes: u64,
    pub cache_bytes: u64,
    pub write_buffer_bytes: u64,
    pub merge_buffer_bytes: u64,
    /// Pages in flight, which no budget counts.
    pub io_buffer_bytes: u64,
    /// Peak of the process without all of these and without what it had before the table was
    /// opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_exceeded_by_bytes: Option<u64>,
}

/// Reads, counted in three places.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Io {
    pub engine: EngineIo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessIo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceUsage>,
    pub classes: Classes,
    pub io_per_get: f64,
    /// The mean lies within so much of it with a probability of 95 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_per_get_ci95: Option<f64>,
    /// In a run of hits only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_per_hit: Option<f64>,
    /// In a run of misses only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_per_miss: Option<f64>,
    /// Bytes by the count of the process where there is one, otherwise by that of the engine.
    pub bytes_per_get: f64,
    /// Pages asked for, of a device or of a cache.
    pub block_lookups_per_get: f64,
    pub request_size_histogram: Vec<RequestSize>,
    pub read_amplification: f64,
    /// Difference between the bytes of the process and of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_difference_ratio: Option<f64>,
    /// Whether that is at most 0.5 %, as it must be past the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_agrees: Option<bool>,
    /// The share of the device's bytes that this process does not explain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_foreign_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noisy: Option<bool>,
}

/// Requests of the engine.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct EngineIo {
    pub read_requests: u64,
    pub read_bytes: u64,
}

/// Reads that the system charged to the process.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ProcessIo {
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Calls; requests of `io_uring` are none.
    pub read_calls: u64,
    pub write_calls: u64,
}

/// Reads of lookups by the class of the page.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Classes {
    pub filter: Class,
    pub index: Class,
    pub data: Class,
}

/// One kind of page or structure.
#[derive(Debug, Clone, Serialize)]
pub struct Class {
    /// Times that it was asked for.
    pub lookups: u64,
    /// Reads that memory answered.
    pub hits: u64,
    /// Reads from the device.
    pub requests: u64,
    /// Bytes of these.
    pub bytes: u64,
}

impl Class {
    fn in_memory(lookups: u64) -> Self {
        Self { lookups, hits: lookups, requests: 0, bytes: 0 }
    }
}

/// Requests of one size.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct RequestSize {
    pub size_bytes: u64,
    pub requests: u64,
}

/// The warm-up, and what the mean is one of.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Convergence {
    /// Whether the cost was steady before anything counted.
    pub converged: bool,
    pub warmup_ops: u64,
    /// When the warm-up ended.
    pub index_refs_per_page: f64,
    pub windows: usize,
}

/// Rates and latencies of the windows.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Speed {
    pub ops_per_s: f64,
    pub lookups_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_user_us_per_op: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_system_us_per_op: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_switches_per_op: Option<f64>,
    /// Lookups for each random read that the device gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<f64>,
    /// Reads of lookups for each random read that the device gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_io: Option<f64>,
    /// The rate with all data in memory, which no device can raise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_bound_ceiling_ops_per_s: Option<f64>,
    /// Latencies of calls, each with a batch of keys.
    pub latency_us: Latencies,
    #[serde(rename = "loop")]
    pub mode: &'static str,
    /// Drawing an operation and hashing it, which no other figure counts.
    pub generate_us_per_op: f64,
}

/// Latencies by kind of operation.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latencies {
    pub get: LatencyReport,
}

/// Prediction of the model for this table, with the inputs of the model.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Model {
    pub upper_ratio: f64,
    pub upper_runs: u64,
    pub index_bytes_per_page: f64,
    pub entries_per_page: f64,
    pub filter: FilterKind,
    /// Split of the budget by the model.
    #[serde(flatten)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Prediction>,
    /// Difference between measurement and prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_error_ratio: Option<f64>,
}

/// Something that makes figures doubtful.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Warning {
    pub code: &'static str,
    pub text: String,
}

/// Largest difference of the two yardsticks of one run.
const SPREAD_RATIO_MAX: f64 = 0.1;

impl Report {
    /// Adds what the device gives, measured before and after the run.
    pub fn calibrate(&mut self, before: &Yardstick, after: &Yardstick) {
        let iops = f64::midpoint(before.read_iops, after.read_iops);
        let spread = (before.read_iops - after.read_iops).abs() / iops;
        self.device = Some(Device {
            fio_read_iops: iops,
            fio_read_iops_qd1: before.read_iops_qd1,
            fio_read_iops_spread_ratio: spread,
            measured_by: before.measured_by,
        });

        self.speed.eta = Some(self.lookups_per_s / iops);
        self.speed.eta_io = Some(self.lookups_per_s * self.io_per_get / iops);
        if spread > SPREAD_RATIO_MAX {
            let text = format!("the device's rate changed by {:.0} %", spread * 100.0);
            self.warnings.push(Warning { code: "unstable_device", text });
        }
    }
}

/// One number for each of another.
fn per(of: f64, each: u64) -> f64 {
    of / each as f64
}

/// Four digits after the point.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// The report of a run.
pub(super) fn report(measurement: &Measurement) -> Report {
    let Measurement { measured, options, prepared, .. } = measurement;
    let sum = &measured.sum;
    let io = io(measurement);
    let memory = memory(measurement);
    let model = model(measurement, io.io_per_get);
    let speed = speed(measurement);

    let convergence = Convergence {
        converged: measurement.warm_up.converged,
        warmup_ops: measurement.warm_up.ops,
        index_refs_per_page: measurement.warm_up.index_refs_per_page,
        windows: measured.windows.len(),
    };

    Report {
        schema_version: SCHEMA_VERSION,
        io_per_get: io.io_per_get,
        lookups_per_s: speed.lookups_per_s,
        cpu_us_per_op: speed.cpu_us_per_op,
        missing: 0,
        measured_s: sum.wall_s,
        open_s: measurement.open_s,
        workload: Workload {
            name: "kvget",
            seed: prepared.seed,
            stream_hash: measured.stream_hash.clone(),
            entries: prepared.keys,
            key_bytes: KEY_BYTES,
            value_bytes: (prepared.entry_bytes() - KEY_BYTES as f64).round() as usize,
            values: prepared.values.name(),
            entropy_ratio: prepared.values.is_incompressible().then_some(1.0),
            distribution: options.distribution.name(),
            absent_ratio: options.absent_percent as f64 / 100.0,
            batches: speed.latency_us.get.ops,
            batch_size: options.batch,
            threads: options.threads,
            ops: sum.ops,
            found: sum.found,
            absent: sum.absent,
            missing: 0,
            verified: true,
        },
        engine: engine(measurement),
        warnings: warnings(measurement, &io, &memory, &convergence),
        device: None,
        memory,
        io,
        convergence,
        speed,
        model,
        windows: measured.windows.clone(),
        is_interrupted: sum.ops < options.reads,
    }
}

fn engine(measurement: &Measurement) -> Engine {
    let stats = &measurement.stats;
    let logical_bytes = measurement.prepared.logical_bytes;

    let disk_bytes = stats.levels.iter().map(|level| level.bytes).sum();
    let level = |level: &terrane::lsm::LevelStats| Level {
        runs: level.runs,
        entries: level.entries,
        disk_bytes: level.bytes,
        filter_bits_per_key: per(level.filter_bytes as f64 * 8.0, level.entries.max(1)),
        false_positive_ratio: level.filter.false_positive_rate(),
    };

    Engine {
        engine: "lsm",
        engine_version: env!("CARGO_PKG_VERSION"),
        options: EngineOptions {
            shape: name_of(measurement.prepared.shape),
            memory_goal: measurement.options.goal,
        },
        io_mode: measurement.io_mode,
        durability: "none",
        logical_bytes,
        disk_bytes,
        space_amplification: per(disk_bytes as f64, logical_bytes),
        runs: stats.runs(),
        levels: stats.levels.iter().map(level).collect(),
        merge_debt_bytes: stats.merge_debt_pages * PAGE_BYTES,
    }
}

fn memory(measurement: &Measurement) -> Memory {
    let stats = &measurement.stats;
    let options = &measurement.options;
    let direct = (measurement.io_mode == IoMode::Direct).then_some("direct_io");
    let enforced_by = direct.or(measurement.limited_by);
    let in_flight = options.batch.min(QUEUE_DEPTH) * options.threads * PAGE_BYTES;
    let used = stats.memory_bytes();
    let rss_peak_bytes = rss_peak_bytes();
    let known = used + in_flight;

    let other = rss_peak_bytes.zip(measurement.binary_bytes);
    let exceeded = measurement.budget.and_then(|budget| used.checked_sub(budget));
    Memory {
        budget_bytes: measurement.budget,
        budget_ratio: measurement
            .budget
            .map(|bytes| per(bytes as f64, measurement.prepared.logical_bytes)),
        memory_enforced: enforced_by.is_some(),
        enforced_by: enforced_by.unwrap_or("none"),
        rss_bytes: rss_bytes(),
        rss_peak_bytes,
        page_cache_peak_bytes: measurement.page_cache_peak_bytes,
        filter_bytes: stats.filter_bytes,
        index_bytes: stats.index_bytes,
        cache_bytes: stats.cache_bytes,
        write_buffer_bytes: stats.buffer_bytes,
        merge_buffer_bytes: stats.unfinished_bytes,
        io_buffer_bytes: in_flight,
        other_bytes: other.map(|(peak, binary)| peak.saturating_sub(binary + known)),
        budget_exceeded_by_bytes: exceeded.filter(|&bytes| bytes > 0),
    }
}

/// Reads that a call keeps in flight, as the table has it by default.
const QUEUE_DEPTH: u64 = 128;

fn io(measurement: &Measurement) -> Io {
    let sum = &measurement.measured.sum;
    let options = &measurement.options;
    let now = &measurement.stats.filter;
    let before = &measurement.measured.before.filter;
    let read_bytes = sum.reads * PAGE_BYTES;
    let asked = (now.found + now.false_positives) - (before.found + before.false_positives);
    let denied = now.denied - before.denied;
    let cache_hits = measurement.stats.cache_hits - measurement.measured.before.cache_hits;

    let pages = sum.reads + cache_hits;
    let exact = per(sum.reads as f64, sum.ops);
    let io_per_get = rounded(exact);

    let process = sum.process.map(|usage| ProcessIo {
        read_bytes: usage.read_bytes,
        write_bytes: usage.write_bytes,
        read_calls: usage.read_calls,
        write_calls: usage.write_calls,
    });

    let is_direct = measurement.io_mode == IoMode::Direct;
    let process_bytes = sum.process.filter(|_| is_direct).map(|usage| usage.read_bytes);
    let difference = process_bytes
        .filter(|_| read_bytes > 0)
        .map(|bytes| per(bytes.abs_diff(read_bytes) as f64, read_bytes));
    let foreign = foreign_ratio(sum.process.as_ref(), sum.device.as_ref());

    Io {
        engine: EngineIo { read_requests: sum.reads, read_bytes },
        process,
        device: sum.device,
        classes: Classes {
            filter: Class::in_memory(asked + denied),
            index: Class::in_memory(asked),
            data: Class {
                lookups: pages,
                hits: cache_hits,
                requests: sum.reads,
                bytes: read_bytes,
            },
        },
        io_per_get,
        io_per_get_ci95: measurement.measured.io_per_get_ci95,
        io_per_hit: (options.absent_percent == 0).then_some(io_per_get),
        io_per_miss: (options.absent_percent == 100).then_some(io_per_get),
        bytes_per_get: per(process_bytes.unwrap_or(read_bytes) as f64, sum.ops),
        block_lookups_per_get: per(pages as f64, sum.ops),
        request_size_histogram: vec![RequestSize { size_bytes: PAGE_BYTES, requests: sum.reads }],
        read_amplification: read_bytes as f64
            / (sum.ops as f64 * measurement.prepared.entry_bytes()),
        process_difference_ratio: difference,
        process_agrees: difference.map(|ratio| ratio <= DIFFERENCE_RATIO_MAX),
        device_foreign_ratio: foreign,
        noisy: foreign.map(|ratio| ratio > FOREIGN_RATIO_MAX),
    }
}

/// The share of what a device did that the process did not ask for; `None` if it did nothing.
fn foreign_ratio(process: Option<&Usage>, device: Option<&DeviceUsage>) -> Option<f64> {
    let (process, device) = process.zip(device)?;
    let own = process.read_bytes + process.write_bytes;
    let all = device.read_bytes + device.write_bytes;
    (all > 0).then(|| per(all.saturating_sub(own) as f64, all))
}

fn speed(measurement: &Measurement) -> Speed {
    let sum = &measurement.measured.sum;
    let us_per_op = |seconds: f64| per(seconds * 1e6, sum.ops);
    let usage = sum.process;
    let rate = sum.ops as f64 / sum.wall_s;

    Speed {
        ops_per_s: rate,
        lookups_per_s: rate,
        cpu_s: usage.map(|usage| usage.cpu_s),
        cpu_us_per_op: usage.map(|usage| us_per_op(usage.cpu_s)),
        cpu_user_us_per_op: usage.map(|usage| us_per_op(usage.user_s)),
        cpu_system_us_per_op: usage.map(|usage| us_per_op(usage.system_s)),
        context_switches_per_op: usage.map(|usage| per(usage.context_switches as f64, sum.ops)),
        eta: None,
        eta_io: None,
        cpu_bound_ceiling_ops_per_s: (measurement.io_mode == IoMode::Memory).then_some(rate),
        latency_us: Latencies { get: measurement.measured.latency.report() },
        mode: "closed",
        generate_us_per_op: us_per_op(sum.generate_s),
    }
}

/// The table as the model sees it: one last level, and the runs of all others.
fn shape(stats: &TableStats, entry_bytes: f64, filter: FilterKind) -> (Shape, u64) {
    let entries: u64 = stats.levels.iter().map(|level| level.entries).sum();
    let last = stats.levels.iter().rev().find(|level| level.entries > 0);
    let (last_entries, last_runs) = last.map_or((0, 0), |level| (level.entries, level.runs));

    // If the last level has several runs, the model counts all but one among the upper runs.
    let last_run = last_entries / last_runs.max(1);

    let upper_runs = stats.runs().saturating_sub(1);
    let pages = stats.key_pages.max(1);
    let shape = Shape {
        upper_ratio: per((entries - last_run) as f64, entries.max(1)),
        upper_runs: upper_runs as f64,
        index_bytes_per_page: per(stats.index_bytes as f64, pages),
        entries_per_page: per(entries.max(1) as f64, pages),
        entry_bytes,
        filter,
    };

    (shape, upper_runs)
}

fn model(measurement: &Measurement, io_per_get: f64) -> Model {
    let filter = match measurement.prepared.shape {
        super::Shape::Levelled10 => FilterKind::Ribbon,
        super::Shape::Default => FilterKind::Bloom,
    };

    let (shape, upper_runs) = shape(&measurement.stats, measurement.prepared.entry_bytes(), filter);
    let ratio =
        measurement.budget.map(|bytes| per(bytes as f64, measurement.prepared.logical_bytes));
    let prediction = ratio.map(|ratio| shape.predict(ratio, measurement.options.goal));
    let absent = measurement.options.absent_percent as f64 / 100.0;
    let expected = prediction.map(|prediction| prediction.io_per_get(absent));

    Model {
        upper_ratio: shape.upper_ratio,
        upper_runs,
        index_bytes_per_page: shape.index_bytes_per_page,
        entries_per_page: shape.entries_per_page,
        filter: shape.filter,
        prediction,
        model_error_ratio: expected
            .filter(|&expected| expected > 0.0)
            .map(|expected| (io_per_get - expected).abs() / expected),
    }
}

fn warnings(
    measurement: &Measurement,
    io: &Io,
    memory: &Memory,
    convergence: &Convergence,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code, text: String| warnings.push(Warning { code, text });
    if !convergence.converged {
        warn("not_converged", "the cost was not steady before reads counted".to_owned());
    }

    if measurement.io_mode == IoMode::Buffered && !memory.memory_enforced {
        let text = "reads go through the page cache, so memory that no budget counts serves them";
        warn("memory_not_enforced", text.to_owned());
    }

    if let Some(bytes) = memory.budget_exceeded_by_bytes {
        warn("budget_exceeded", format!("the table takes {bytes} bytes more than its budget"));
    }

    if let Some(ratio) = io.process_difference_ratio.filter(|_| io.process_agrees == Some(false)) {
        let text = format!("engine and process differ by {:.2} % of the bytes read", ratio * 100.0);
        warn("accounting_differs", text);
    }

    if let Some(ratio) = io.device_foreign_ratio.filter(|_| io.noisy == Some(true)) {
        let text = format!("{:.0} % of the device's work was for others", ratio * 100.0);
        warn("noisy_device", text);
    }

    warnings
}

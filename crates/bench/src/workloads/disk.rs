//! `terrane bench disk`: the device alone, beside which all other figures are read.
//!
//! Three measurements, one after the other in the same directory: random 4 KiB reads by the number
//! in flight, sequential reads, and appends that fdatasync makes durable, with an idle timer. The
//! yardstick of the other benchmarks (`fio` where it is installed) comes first and last, so that
//! the report says how steady the device was.

use std::path::Path;

use serde::Serialize;
use terrane_replay::monitor::Monitor;

use super::{Error, Result, bounded};
use crate::instruments::bare::{self, BareReport};
use crate::instruments::depths::{self, DepthReport};
use crate::instruments::device::{self, SequentialReads};

/// Version of the fields; raised when one goes or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Reads in flight at most.
const DEPTH_MAX: u64 = 4096;

/// Bytes of an append at most.
const APPEND_BYTES_MAX: u64 = 1 << 30;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Numbers of reads in flight, each of which gets a point.
    pub depths: Vec<u64>,
    /// Time of each point.
    pub seconds: f64,
    /// Bytes of the files that are read, rounded up to whole MiB.
    pub file_bytes: u64,
    /// Bytes of an append.
    pub append_bytes: u64,
    /// Appends, of which at most 500 are made.
    pub appends: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of these fields.
    pub schema_version: u32,
    /// Random 4 KiB reads per second, one core, 96 in flight: the mean of both yardsticks.
    pub fio_read_iops: f64,
    /// Rate with one read in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fio_read_iops_qd1: Option<f64>,
    /// Rate with a thread on each core, 96 in flight on each.
    pub fio_read_iops_all_cores: f64,
    /// Difference of the two yardsticks, over their mean.
    pub fio_read_iops_spread_ratio: f64,
    /// The program that measured the yardstick: `fio` or `terrane`.
    pub measured_by: &'static str,
    /// Access of the random reads: `direct` or `buffered`.
    pub access: &'static str,
    /// Bytes of the file that is read.
    pub file_bytes: u64,
    /// Time of each point.
    pub seconds_per_point: f64,
    /// Random reads by the number in flight; the last point has a thread on each core.
    pub depths: Vec<DepthReport>,
    /// Sequential reads of 1 MiB, 8 in flight, in bytes per second.
    pub sequential_read_bytes_per_s: f64,
    /// Appends with fdatasync, an idle timer, and one core on a fixed loop.
    pub bare: BareReport,
}

/// Measures the device of `dir`, which is created if it is missing. Nothing is left in it.
///
/// # Errors
/// [`Error`].
pub fn run(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { seconds, append_bytes, appends, .. } = *options;
    let chunk = device::CHUNK_BYTES as u64;
    let file_bytes = options.file_bytes.checked_next_multiple_of(chunk).unwrap_or(0);
    bounded("MiB of the file", file_bytes / chunk, 1)?;
    if let Some(depth) = options.depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
        let message = format!("a depth must be at least 1 and at most {DEPTH_MAX}, not {depth}");
        return Err(Error::Options(message));
    }
    if !(1..=APPEND_BYTES_MAX).contains(&append_bytes) {
        let message = format!("bytes of an append must be 1 to {APPEND_BYTES_MAX}");
        return Err(Error::Options(message));
    }

    std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
    let depths: Vec<usize> = options.depths.iter().map(|&depth| depth as usize).collect();

    let before = device::measure_file(dir, file_bytes, seconds, monitor)?;
    let curve = depths::curve(dir, file_bytes, &depths, seconds, monitor)?;
    let reads = SequentialReads::make_file(dir, file_bytes, monitor)?;
    let sequential_read_bytes_per_s = reads.bytes_per_s(monitor)?;
    drop(reads);
    let bare = bare::measure(dir, append_bytes as usize, appends)
        .map_err(|error| Error::io(dir, error))?;
    let after = device::measure_file(dir, file_bytes, seconds, monitor)?;

    let iops = f64::midpoint(before.read_iops, after.read_iops);
    let all_cores = curve.points.last().expect("the curve ends with all cores");
    Ok(Report {
        schema_version: SCHEMA_VERSION,
        fio_read_iops: iops,
        fio_read_iops_qd1: before.read_iops_qd1,
        fio_read_iops_all_cores: all_cores.reads_per_s,
        fio_read_iops_spread_ratio: (before.read_iops - after.read_iops).abs() / iops,
        measured_by: before.measured_by,
        access: curve.access,
        file_bytes,
        seconds_per_point: seconds,
        depths: curve.points,
        sequential_read_bytes_per_s,
        bare,
    })
}

//! `terrane bench kvget run`: reads of random keys, counted by the engine, by the process and by
//! the device.
//!
//! Operations are drawn before a window begins and results compared inside it. Only windows count:
//! drawing, and what the system is asked between them, is in no figure but `generate_us_per_op`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use terrane::io::{Access, Disk, OpenMode, RealDisk};
use terrane::lsm::{DiskCache, OpenOptions, Session, Table, TableStats};

use super::data::{KEY_BYTES, Operation, Operations, StreamHash, key};
pub use super::measured::{Budget, IoMode, Options, WarmUp};
use super::measured::{Measured, Measurement, WarmedUp, Window, WindowReport};
use super::report::{self, Report};
use super::windows::{confidence_95, is_steady, window_ops};
use super::{Prepared, setup};
use crate::instruments::limits::MemoryLimit;
use crate::instruments::meter::{DeviceUsage, Usage, reset_rss_peak, rss_bytes};
use crate::workloads::values::ValueId;
use crate::workloads::{Error, Result, bounded, label_of, open, open_in_memory, seconds};
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// References to each page of the index after which the warm-up may end.
const INDEX_REFS_PER_PAGE: f64 = 50.0;

/// Bytes of a page, of the index as well.
const PAGE_BYTES: u64 = 4096;

/// The streams that operations are drawn from.
const MEASURED_STREAM: u64 = 0;
const WARM_UP_STREAM: u64 = 1;

/// Measures on the table that was set up in `store`, by a process that may be under a `limit`. If
/// the monitor asks to stop once something has been measured, the report is of that and [says
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
    check(options)?;
    let session = open(store)?;
    let is_direct = !options.buffered && is_direct(store)?;
    let io_mode = if is_direct { IoMode::Direct } else { IoMode::Buffered };
    let place = TableLocation { dir: Some(store), io_mode, limit };
    let report = measure(&session, &place, options, monitor);
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
    check(options)?;
    let session = open_in_memory()?;
    setup::set_up(&session, setup, monitor)?;
    let place = TableLocation { dir: None, io_mode: IoMode::Memory, limit: None };
    measure(&session, &place, options, monitor)
}

fn check(options: &Options) -> Result<()> {
    bounded("reads", options.reads, 1)?;
    bounded("batch", options.batch, 1)?;
    bounded("threads", options.threads, 1)?;
    if options.absent_percent > 100 {
        return Err(Error::Options("absent must be at most 100".to_owned()));
    }
    Ok(())
}

/// Location of a table.
#[derive(Debug)]
struct TableLocation<'a> {
    /// Directory on the device whose counters are read; `None` in memory.
    dir: Option<&'a Path>,
    io_mode: IoMode,
    limit: Option<&'a MemoryLimit>,
}

/// Whether the file system of a store reads past the page cache.
fn is_direct(store: &Path) -> Result<bool> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let probe = disk.open(&store.join("metadata"), OpenMode::Read, Access::Direct);
    Ok(probe.map_err(terrane::lsm::Error::from)?.access() == Access::Direct)
}

/// Opens the prepared table, warms it up, measures, and returns the report.
fn measure(
    session: &Session,
    place: &TableLocation<'_>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report> {
    let snapshot = Prepared::snapshot()?;
    let label = label_of(session, &snapshot)?;
    let Some(prepared) = label.as_deref().and_then(Prepared::from_label) else {
        let message = "no table of this benchmark; make one with `terrane bench kvget setup`";
        return Err(Error::Options(message.to_owned()));
    };

    // Resident memory before the opening is that of the program, and no part of the budget.
    reset_rss_peak();
    let binary_bytes = rss_bytes();

    let budget = options.memory_budget.map(|budget| budget.bytes(prepared.logical_bytes));
    let mut open_options = OpenOptions::default().memory_goal(options.goal.into());
    if let Some(bytes) = budget {
        open_options = open_options.memory_budget(bytes);
    }

    if options.buffered {
        open_options = open_options.disk_cache(DiskCache::All);
    }

    let start = Instant::now();
    let table = session.open_snapshot_with(&snapshot, &prepared.label(), &open_options)?;
    let open_s = seconds(start);

    let mut reader = Reader::new(&table, place, &prepared, options);

    let warm_up = warm_up(&mut reader, options, monitor)?;
    let measured = reads(&mut reader, options, monitor)?;
    let measurement = Measurement {
        prepared: prepared.clone(),
        options: *options,
        io_mode: place.io_mode,
        limited_by: place.limit.map(MemoryLimit::enforced_by),
        page_cache_peak_bytes: place.limit.and_then(MemoryLimit::page_cache_peak_bytes),
        budget,
        binary_bytes,
        open_s,
        warm_up,
        measured,
        stats: table.stats(),
    };

    Ok(report::report(&measurement))
}

/// Returns the references to the index for each of its pages: by hits, and by false positives.
fn index_refs_per_page(stats: &TableStats) -> f64 {
    let refs = stats.filter.found + stats.filter.false_positives;
    refs as f64 / stats.index_bytes.div_ceil(PAGE_BYTES).max(1) as f64
}

/// Reads until the cost is steady, or until the limit of the warm-up.
fn warm_up(
    reader: &mut Reader<'_>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<WarmedUp> {
    let keys = reader.prepared.keys;
    let most = match options.warm_up {
        WarmUp::Steady => options.reads,
        WarmUp::Fixed(ratio) => (keys as f64 * ratio).ceil() as u64,
    };

    let operations = reader.operations(WARM_UP_STREAM);

    let mut ops = 0;
    let mut costs = Vec::new();

    let mut converged = false;
    let mut cache_bytes = 0;
    while ops < most && (options.warm_up != WarmUp::Steady || !converged) {
        monitor.progress(Phase::WarmUp, ops, Some(most));
        if monitor.stop() {
            return Err(Error::Interrupted);
        }
        let end = most.min(ops + window_ops(options.reads));
        costs.push(reader.window(&operations, ops..end, None)?.io_per_get());
        ops = end;
        let stats = reader.table.stats();

        let has_refs = index_refs_per_page(&stats) >= INDEX_REFS_PER_PAGE;
        // A cache that still grows makes the next reads cheaper.
        let is_grown = std::mem::replace(&mut cache_bytes, stats.cache_bytes) == cache_bytes;
        converged = is_grown && (has_refs || is_steady(&costs));
    }

    Ok(WarmedUp { ops, converged, index_refs_per_page: index_refs_per_page(&reader.table.stats()) })
}

/// Measures window after window.
fn reads(
    reader: &mut Reader<'_>,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Measured> {
    let operations = reader.operations(MEASURED_STREAM);
    let before = reader.table.stats();
    reader.latencies.fill_with(Latency::new);

    let mut sum = Window::default();

    let mut windows = Vec::new();
    let mut hash = StreamHash::default();
    while sum.ops < options.reads {
        monitor.progress(Phase::Operations, sum.ops, Some(options.reads));
        if monitor.stop() {
            if windows.is_empty() {
                return Err(Error::Interrupted);
            }
            // The windows measured until now stand.
            break;
        }
        let end = options.reads.min(sum.ops + window_ops(options.reads));
        let window = reader.window(&operations, sum.ops..end, Some(&mut hash))?;
        windows.push(WindowReport::new(sum.ops, &window));
        sum.add(&window);
    }

    let means: Vec<f64> = windows.iter().map(|window| window.io_per_get).collect();
    let mut latency = Latency::new();
    reader.latencies.iter().for_each(|of_thread| latency.merge(of_thread));

    Ok(Measured {
        sum,
        windows,
        io_per_get_ci95: confidence_95(&means),
        latency,
        stream_hash: hash.finish(),
        before,
    })
}

/// Reader of a table, which checks every answer.
struct Reader<'a> {
    table: &'a Table,
    place: &'a TableLocation<'a>,
    prepared: &'a Prepared,
    options: &'a Options,
    /// Latencies, one for each thread.
    latencies: Vec<Latency>,
}

/// Operations that have been drawn, with their keys.
struct Drawn<'a> {
    operations: Vec<Operation>,
    keys: Vec<[u8; KEY_BYTES]>,
    prepared: &'a Prepared,
    /// First operation that no thread has taken.
    next: AtomicUsize,
}

impl<'a> Reader<'a> {
    fn new(
        table: &'a Table,
        place: &'a TableLocation<'a>,
        prepared: &'a Prepared,
        options: &'a Options,
    ) -> Self {
        let latencies = (0..options.threads).map(|_| Latency::new()).collect();
        Self { table, place, prepared, options, latencies }
    }

    fn operations(&self, stream: u64) -> Operations {
        let &Prepared { seed, keys, .. } = self.prepared;
        let Options { absent_percent, distribution, .. } = *self.options;
        Operations::new((seed, stream), keys, absent_percent, distribution)
    }

    /// Draws operations with their keys, and adds them to the hash of the stream.
    fn draw(
        &self,
        operations: &Operations,
        numbers: std::ops::Range<u64>,
        hash: Option<&mut StreamHash>,
    ) -> Drawn<'a> {
        let operations: Vec<_> = numbers.map(|n| operations.operation(n)).collect();
        let keys: Vec<_> = operations.iter().map(|operation| key(operation.number)).collect();
        let prepared = self.prepared;

        if let Some(hash) = hash {
            let mut value = Vec::new();
            for (operation, key) in operations.iter().zip(&keys) {
                hash.get(key, expected(prepared, *operation, &mut value));
            }
        }

        Drawn { operations, keys, prepared, next: AtomicUsize::new(0) }
    }

    /// Carries out the operations of these numbers.
    fn window(
        &mut self,
        operations: &Operations,
        numbers: std::ops::Range<u64>,
        hash: Option<&mut StreamHash>,
    ) -> Result<Window> {
        let start = Instant::now();
        let drawn = self.draw(operations, numbers, hash);
        let generate_s = seconds(start);

        // Counters are read as close to the work as they can be, so that only the window is in
        // them.
        let device = || self.place.dir.and_then(DeviceUsage::of);
        let device_before = device();
        let process_before = Usage::now();
        let reads_before = self.table.stats().lookup_reads;

        let start = Instant::now();
        let batch = self.options.batch as usize;
        let found = carry_out(self.table, &drawn, batch, &mut self.latencies)?;
        let wall_s = seconds(start);

        let reads = self.table.stats().lookup_reads - reads_before;
        let process = Usage::now().zip(process_before).map(|(now, before)| now.since(&before));
        let device = device().zip(device_before).map(|(now, before)| now.since(&before));

        // This call updates the peak, which the limit remembers.
        let _ = self.place.limit.and_then(MemoryLimit::page_cache_peak_bytes);
        let ops = drawn.operations.len() as u64;
        debug_assert!(found <= ops);
        let absent = ops - found;

        Ok(Window { ops, found, absent, reads, wall_s, generate_s, process, device })
    }
}

/// Reads all drawn keys, by one thread for each of `latencies`, and returns
/// how many were found.
fn carry_out(
    table: &Table,
    drawn: &Drawn<'_>,
    batch: usize,
    latencies: &mut [Latency],
) -> Result<u64> {
    if let [latency] = latencies {
        return read(table, drawn, batch, latency);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = latencies
            .iter_mut()
            .map(|latency| scope.spawn(move || read(table, drawn, batch, latency)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a reader has panicked")).sum()
    })
}

/// Returns the value that a read must find, put into `value`; `None` if it must find nothing.
fn expected<'a>(
    prepared: &Prepared,
    operation: Operation,
    value: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    if !operation.is_present {
        return None;
    }
    let id = ValueId { seed: prepared.seed, number: operation.number, version: 0 };
    prepared.values.fill(id, value);
    Some(value)
}

/// Takes and reads keys until none is left, and returns how many were found.
fn read(table: &Table, drawn: &Drawn<'_>, batch: usize, latency: &mut Latency) -> Result<u64> {
    let mut count = 0;
    let mut value = Vec::new();
    loop {
        let first = drawn.next.fetch_add(batch, Ordering::Relaxed);
        let Some(keys) = drawn.keys.get(first..).filter(|keys| !keys.is_empty()) else {
            return Ok(count);
        };
        let keys = &keys[..batch.min(keys.len())];
        let start = Instant::now();

        let results = match keys {
            [key] => vec![table.get(key)?],
            keys => table.get_many(keys)?,
        };

        latency.record(start.elapsed());
        for (operation, result) in drawn.operations[first..].iter().zip(&results) {
            let number = operation.number;
            let expected = expected(drawn.prepared, *operation, &mut value);
            if result.value() != expected {
                let what = match (expected, result.value()) {
                    (None, _) => "is absent and was found",
                    (_, None) => "is there and was not found",
                    _ => "was found with another value",
                };
                return Err(Error::Wrong(format!("key {number} {what}")));
            }
            count += u64::from(operation.is_present);
        }
    }
}

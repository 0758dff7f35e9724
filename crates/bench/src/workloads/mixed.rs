//! `terrane bench mixed`: reads beside writes.
//!
//! A table is filled first, with the keys of `terrane bench kvget`; filling is not measured.
//! Operations come in rounds. In a round, reader threads look keys up in a fork of the table as of
//! the round's start, while the calling thread applies the round's puts and deletes to the table.
//! Reads and writes thus share device, memory and compaction as they do in a ledger, and every
//! result is known: a lookup finds what the rounds before have left.
//!
//! * Kind and key of operation n follow from the seed and n. Neither threads nor batches change the
//!   operations, the results, or their hash.
//! * The expected state is one word per key: the number of puts, and whether the key is there.
//!   These bytes are reported as `verify_bytes` and belong to no budget.
//! * Draws, keys and values of a round are made before its clock starts (`generate_us_per_op`).
//! * A run saves nothing: the table is gone afterwards.
//!
//! Rejected: lookups between the writes of one thread, where no read waits for a write; views of a
//! `Store`, whose WAL makes another benchmark of it (`bench commits`); the prepared table of
//! `kvget`, whose small memtable and one-shot compaction are for reading.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{Compression, Session, Table, TableStats, Update, WriteBuffer};
use terrane_replay::latency::{Latency, LatencyReport};
use terrane_replay::monitor::{Monitor, Phase};

use super::draws::{Distribution, Draws, Stream, below, mix};
use super::kvget::data::{KEY_BYTES, StreamHash, key};
use super::utxo::{Shape, table_config};
use super::values::{ValueId, Values};
use super::{Error, Result, bounded, open, seconds};
use crate::instruments::meter::{Usage, reset_rss_peak, rss_peak_bytes};

/// Version of the fields; raised when one goes or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Windows of the time series at most.
const WINDOWS_MAX: u64 = 100;

/// The stream that operations are drawn from; those of `kvget` are 0 and 1.
const STREAM: u64 = 2;

/// Bit of a key's word that says that the key is deleted. The other bits count the puts.
const DELETED: u32 = 1 << 31;

/// Insertions in a batch while the table is filled.
const FILL_BATCH: u64 = 1_000;

/// Shares of the kinds of operations, in per cent; together 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Lookups.
    pub get: u64,
    /// Insertions of a new value of a key.
    pub put: u64,
    /// Deletions, also of keys that are not there.
    pub delete: u64,
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys of the table.
    pub keys: u64,
    /// Values of the table.
    pub values: Values,
    /// Seed of values and operations.
    pub seed: u64,
    /// Shape of the table's levels.
    pub shape: Shape,
    /// Compression of its pages.
    pub compression: Compression,
    /// Bytes of a memtable, instead of the engine's.
    pub write_buffer_bytes: Option<u64>,
    /// Shares of the kinds of operations.
    pub mix: Mix,
    /// Operations.
    pub ops: u64,
    /// Operations of a round.
    pub round: u64,
    /// Keys of a call, of lookups and of writes.
    pub batch: u64,
    /// Threads that look up, beside the one that writes.
    pub threads: u64,
    /// Distribution of the keys of all operations.
    pub distribution: Distribution,
    /// Memory budget of the table, in bytes.
    pub memory_budget: Option<u64>,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of these fields.
    pub schema_version: u32,
    /// The operations.
    pub workload: Workload,
    /// Time of all rounds.
    pub measured_s: f64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// Lookups in a second.
    pub lookups_per_s: f64,
    /// Puts and deletes in a second.
    pub updates_per_s: f64,
    /// Page reads of lookups for each of them.
    pub io_per_get: f64,
    /// Processor time of an operation, of all threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_op: Option<f64>,
    /// Bytes that the process read from devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_read_bytes: Option<u64>,
    /// Bytes that the process wrote to devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_write_bytes: Option<u64>,
    /// Bytes written to runs for each byte of keys and values that was put or deleted; absent
    /// without updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<f64>,
    /// Lookups for each random read that the device gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<f64>,
    /// Random 4 KiB reads per second of the device, before the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fio_read_iops: Option<f64>,
    /// Latencies of calls, by kind.
    pub latency_us: Latencies,
    /// Work of compaction that was due at the start and at the end.
    pub merge_debt_before_bytes: u64,
    /// See [`merge_debt_before_bytes`](Self::merge_debt_before_bytes).
    pub merge_debt_after_bytes: u64,
    /// Bytes of all keys and values when the table was filled.
    pub logical_bytes: u64,
    /// Bytes of runs at the end.
    pub disk_bytes: u64,
    /// Runs at the end.
    pub runs: u64,
    /// Memory budget of the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Memory of the table at the end.
    pub table_memory_bytes: u64,
    /// Peak of the resident memory of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_peak_bytes: Option<u64>,
    /// Memory of the expected state, which no budget counts.
    pub verify_bytes: u64,
    /// Drawing an operation, outside of every other figure.
    pub generate_us_per_op: f64,
    /// The run as a time series.
    pub windows: Vec<Window>,
    /// Whether the run was to be longer.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// The operations.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Workload {
    pub name: &'static str,
    pub seed: u64,
    /// BLAKE3 of the operations: kind, key and value of each, in their order.
    pub stream_hash: String,
    pub entries: u64,
    pub values: String,
    pub compression: String,
    pub distribution: String,
    pub mix: Mix,
    pub batch_size: u64,
    pub round_ops: u64,
    pub threads: u64,
    pub ops: u64,
    pub gets: u64,
    pub puts: u64,
    pub deletes: u64,
    /// Lookups that found a value, and lookups that rightly found none.
    pub found: u64,
    pub absent: u64,
    /// Keys that should have been found and were not: 0, or there is no report.
    pub missing: u64,
    pub verified: bool,
}

/// Latencies of calls, each with a batch of keys.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latencies {
    pub get: LatencyReport,
    pub write: LatencyReport,
}

/// Some rounds of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Window {
    /// End of the window, in seconds of measured time.
    pub end_s: f64,
    /// Operations of the window.
    pub ops: u64,
    /// Operations in a second.
    pub ops_per_s: f64,
    /// Work of compaction that was due at the end of the window.
    pub merge_debt_bytes: u64,
    /// Bytes of runs at the end of the window.
    pub disk_bytes: u64,
    /// Longest call of lookups.
    pub get_max_us: f64,
    /// Longest call of writes.
    pub write_max_us: f64,
}

impl Report {
    /// Adds the rate of the device that was measured before the run.
    pub fn calibrate(&mut self, read_iops: f64) {
        self.fio_read_iops = Some(read_iops);
        self.eta = Some(self.lookups_per_s / read_iops);
    }
}

fn check(options: &Options) -> Result<()> {
    let Mix { get, put, delete } = options.mix;
    if get.checked_add(put).and_then(|sum| sum.checked_add(delete)) != Some(100) {
        return Err(Error::Options("the shares of the mix must add up to 100".to_owned()));
    }
    // Puts of a key are counted in 31 bits.
    bounded("keys", options.keys, 1)?;
    bounded("operations", options.ops, 1)?;
    bounded("operations of a round", options.round, 1)?;
    bounded("batch", options.batch, 1)?;
    if !(1..=1024).contains(&options.threads) {
        return Err(Error::Options("threads must be at least 1 and at most 1024".to_owned()));
    }
    Ok(())
}

/// Fills a table in `store`, which is made if it is missing, and measures on it. If the monitor
/// asks to stop after the first round, the report is of the rounds until then.
///
/// # Errors
/// [`Error`]; [`Error::Wrong`] for any result that is not the expected one.
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    check(options)?;
    let session = open(store)?;
    let report = measure(&session, options, monitor);
    session.close()?;
    report
}

fn measure(session: &Session, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let mut config = table_config(options.shape, options.memory_budget);
    config = config.compression(options.compression);
    if let Some(bytes) = options.write_buffer_bytes {
        config = config.write_buffer(WriteBuffer::Bytes(bytes));
    }
    let mut table = session.new_table(&config)?;
    let logical_bytes = fill(&mut table, options, monitor)?;
    reset_rss_peak();
    let report = Work::new(options).measure(&mut table, monitor)?;
    Ok(Report { logical_bytes, ..report })
}

/// Inserts every key, and returns the bytes of all keys and values.
fn fill(table: &mut Table, options: &Options, monitor: &mut dyn Monitor) -> Result<u64> {
    let Options { keys, seed, ref values, .. } = *options;
    let mut logical_bytes = 0;
    let mut pairs = vec![([0; KEY_BYTES], Vec::new()); FILL_BATCH as usize];
    for first in (0..keys).step_by(FILL_BATCH as usize) {
        monitor.progress(Phase::Fill, first, Some(keys));
        if monitor.stop() {
            return Err(Error::Interrupted);
        }
        let pairs = &mut pairs[..FILL_BATCH.min(keys - first) as usize];
        for (number, (at, value)) in (first..).zip(&mut *pairs) {
            *at = key(number);
            values.fill(ValueId { seed, number, version: 0 }, value);
            logical_bytes += (KEY_BYTES + value.len()) as u64;
        }
        let batch: Vec<_> = pairs.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        table.write_batch(&batch)?;
    }
    Ok(logical_bytes)
}

/// Operations of a round, drawn.
#[derive(Default)]
struct Round {
    keys: Vec<[u8; KEY_BYTES]>,
    /// Word of each key before the round.
    words: Vec<u32>,
    numbers: Vec<u64>,
    writes: Vec<Write>,
    next: AtomicUsize,
}

struct Write {
    key: [u8; KEY_BYTES],
    /// `None` for a deletion.
    value: Option<Vec<u8>>,
}

/// State of a run.
struct Work<'a> {
    options: &'a Options,
    draws: Draws,
    stream: Stream,
    /// The expected state, a word for each key.
    words: Vec<u32>,
    hash: StreamHash,
    counts: Counts,
    readers: Vec<Latency>,
    writer: Latency,
}

/// Operations that were done.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    gets: u64,
    puts: u64,
    deletes: u64,
    found: u64,
    /// Page reads of lookups.
    reads: u64,
    written_logical_bytes: u64,
}

impl<'a> Work<'a> {
    fn new(options: &'a Options) -> Self {
        Self {
            options,
            draws: options.distribution.draws(options.keys),
            stream: Stream { start: mix(options.seed, STREAM) },
            words: vec![0; options.keys as usize],
            hash: StreamHash::default(),
            counts: Counts::default(),
            readers: (0..options.threads).map(|_| Latency::new()).collect(),
            writer: Latency::new(),
        }
    }

    /// Draws the operations from `first` to before `end`. Lookups expect the state before all of
    /// them.
    fn draw(&mut self, first: u64, end: u64) -> Round {
        let Options { seed, mix: Mix { get, put, .. }, .. } = *self.options;
        let mut round = Round::default();
        let mut puts = Vec::new();
        let mut value = Vec::new();

        for n in first..end {
            let number = self.draws.number(n, self.stream.output(2 * n + 1));
            let key = key(number);
            let word = self.words[number as usize];
            match below(self.stream.output(2 * n), 100) {
                kind if kind < get => {
                    let expected = expected(self.options, number, word, &mut value);
                    self.hash.get(&key, expected);
                    round.keys.push(key);
                    round.numbers.push(number);
                    round.words.push(word);
                }
                kind => {
                    let is_put = kind < get + put;
                    puts.push((number, is_put));
                    round.writes.push(Write { key, value: None });
                }
            }
        }

        // Only now the state changes.
        for ((number, is_put), write) in puts.into_iter().zip(&mut round.writes) {
            let word = &mut self.words[number as usize];
            let version = *word & !DELETED;
            if is_put {
                *word = version + 1;
                let mut value = Vec::new();
                let id = ValueId { seed, number, version: u64::from(*word) };
                self.options.values.fill(id, &mut value);
                self.hash.put(&write.key, &value);
                self.counts.puts += 1;
                self.counts.written_logical_bytes += value.len() as u64;
                write.value = Some(value);
            } else {
                *word = version | DELETED;
                self.hash.delete(&write.key);
                self.counts.deletes += 1;
            }
            self.counts.written_logical_bytes += KEY_BYTES as u64;
        }
        round
    }

    fn measure(&mut self, table: &mut Table, monitor: &mut dyn Monitor) -> Result<Report> {
        let before = table.stats();
        let rounds = self.options.ops.div_ceil(self.options.round);
        let rounds_per_window = rounds.div_ceil(WINDOWS_MAX);
        let mut windows = Windows::default();
        let mut usage: Option<Usage> = None;
        let mut generate_s = 0.0;
        let mut done = 0;

        for round_number in 0..rounds {
            monitor.progress(Phase::Operations, done, Some(self.options.ops));
            if monitor.stop() {
                if done == 0 {
                    return Err(Error::Interrupted);
                }
                break;
            }

            let end = self.options.ops.min(done + self.options.round);
            let start = Instant::now();
            let round = self.draw(done, end);
            generate_s += seconds(start);

            let usage_before = Usage::now();
            let start = Instant::now();
            let longest = self.carry_out(table, &round)?;
            windows.add(seconds(start), end - done, longest);
            let used = Usage::now().zip(usage_before).map(|(now, before)| now.since(&before));
            usage = match (usage, used) {
                (None, used) if round_number == 0 => used,
                (sum, used) => sum.zip(used).map(|(sum, used)| sum.plus(&used)),
            };

            done = end;
            if (round_number + 1).is_multiple_of(rounds_per_window) || round_number + 1 == rounds {
                windows.close(&table.stats());
            }
        }
        windows.close(&table.stats());

        let run = Run { done, generate_s, usage, windows };
        Ok(self.report(&before, &table.stats(), run))
    }

    /// Carries a round out, and returns the longest calls of lookups and of writes.
    fn carry_out(&mut self, table: &mut Table, round: &Round) -> Result<Longest> {
        let batch = self.options.batch as usize;
        let options = self.options;
        let view = if round.keys.is_empty() { None } else { Some(table.fork()?) };
        let reads =
            |view: &Option<Table>| view.as_ref().map_or(0, |view| view.stats().lookup_reads);
        let reads_before = reads(&view);
        let mut latencies: Vec<Latency> = self.readers.iter().map(|_| Latency::new()).collect();
        let mut writes = Latency::new();

        let found: Result<u64> = std::thread::scope(|scope| {
            let mut readers = Vec::new();
            if let Some(view) = &view {
                readers.extend(
                    latencies
                        .iter_mut()
                        .map(|latency| scope.spawn(move || read(view, options, round, latency))),
                );
            }
            let written = write(table, &round.writes, batch, &mut writes);
            let found: Result<Vec<u64>> = readers
                .into_iter()
                .map(|reader| reader.join().expect("a reader has panicked"))
                .collect();
            written?;
            Ok(found?.iter().sum())
        });

        self.counts.found += found?;
        self.counts.gets += round.keys.len() as u64;
        self.counts.reads += reads(&view) - reads_before;

        let mut longest = Longest { get_us: 0.0, write_us: writes.report().max };
        for (sum, latency) in self.readers.iter_mut().zip(&latencies) {
            longest.get_us = longest.get_us.max(latency.report().max);
            sum.merge(latency);
        }
        self.writer.merge(&writes);
        Ok(longest)
    }

    fn report(&self, before: &TableStats, after: &TableStats, run: Run) -> Report {
        let Run { done, generate_s, usage, windows } = run;
        let Self { options, counts, .. } = self;
        let wall_s = windows.wall_s;
        let mut get = Latency::new();
        self.readers.iter().for_each(|reader| get.merge(reader));
        let written = after.written_bytes - before.written_bytes;
        let logical = counts.written_logical_bytes;

        Report {
            schema_version: SCHEMA_VERSION,
            workload: Workload {
                name: "mixed",
                seed: options.seed,
                stream_hash: self.hash.finish(),
                entries: options.keys,
                values: options.values.name(),
                compression: options.compression.to_string(),
                distribution: options.distribution.name(),
                mix: options.mix,
                batch_size: options.batch,
                round_ops: options.round,
                threads: options.threads,
                ops: done,
                gets: counts.gets,
                puts: counts.puts,
                deletes: counts.deletes,
                found: counts.found,
                absent: counts.gets - counts.found,
                missing: 0,
                verified: true,
            },
            measured_s: wall_s,
            ops_per_s: done as f64 / wall_s,
            lookups_per_s: counts.gets as f64 / wall_s,
            updates_per_s: (counts.puts + counts.deletes) as f64 / wall_s,
            io_per_get: counts.reads as f64 / counts.gets.max(1) as f64,
            cpu_us_per_op: usage.map(|usage| usage.cpu_s * 1e6 / done as f64),
            device_read_bytes: usage.map(|usage| usage.read_bytes),
            device_write_bytes: usage.map(|usage| usage.write_bytes),
            write_amplification: (logical > 0).then(|| written as f64 / logical as f64),
            eta: None,
            fio_read_iops: None,
            latency_us: Latencies { get: get.report(), write: self.writer.report() },
            merge_debt_before_bytes: debt_bytes(before),
            merge_debt_after_bytes: debt_bytes(after),
            disk_bytes: disk_bytes(after),
            runs: after.runs(),
            budget_bytes: options.memory_budget,
            logical_bytes: 0,
            table_memory_bytes: after.memory_bytes(),
            rss_peak_bytes: rss_peak_bytes(),
            verify_bytes: (self.words.len() * size_of::<u32>()) as u64,
            generate_us_per_op: generate_s * 1e6 / done as f64,
            windows: windows.closed,
            is_interrupted: done < options.ops,
        }
    }
}

/// Figures of all rounds.
struct Run {
    done: u64,
    generate_s: f64,
    usage: Option<Usage>,
    windows: Windows,
}

/// Longest calls.
#[derive(Debug, Clone, Copy, Default)]
struct Longest {
    get_us: f64,
    write_us: f64,
}

/// Windows of a run: those that are closed, and the sums of the open one.
#[derive(Debug, Default)]
struct Windows {
    closed: Vec<Window>,
    wall_s: f64,
    open_s: f64,
    open_ops: u64,
    longest: Longest,
}

impl Windows {
    fn add(&mut self, wall_s: f64, ops: u64, longest: Longest) {
        self.wall_s += wall_s;
        self.open_s += wall_s;
        self.open_ops += ops;
        self.longest.get_us = self.longest.get_us.max(longest.get_us);
        self.longest.write_us = self.longest.write_us.max(longest.write_us);
    }

    /// Closes the window, if it has operations.
    fn close(&mut self, stats: &TableStats) {
        if self.open_ops == 0 {
            return;
        }
        self.closed.push(Window {
            end_s: self.wall_s,
            ops: self.open_ops,
            ops_per_s: self.open_ops as f64 / self.open_s,
            merge_debt_bytes: debt_bytes(stats),
            disk_bytes: disk_bytes(stats),
            get_max_us: self.longest.get_us,
            write_max_us: self.longest.write_us,
        });
        (self.open_s, self.open_ops, self.longest) = (0.0, 0, Longest::default());
    }
}

fn debt_bytes(stats: &TableStats) -> u64 {
    stats.merge_debt_pages * terrane::lsm::PAGE_SIZE as u64
}

fn disk_bytes(stats: &TableStats) -> u64 {
    stats.levels.iter().map(|level| level.bytes).sum()
}

/// Returns the value of a key with this word, put into `value`; `None` if the key is deleted.
fn expected<'a>(
    options: &Options,
    number: u64,
    word: u32,
    value: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    if word & DELETED != 0 {
        return None;
    }
    let id = ValueId { seed: options.seed, number, version: u64::from(word) };
    options.values.fill(id, value);
    Some(value)
}

/// Takes and looks keys up until none is left, and returns how many were found.
fn read(view: &Table, options: &Options, round: &Round, latency: &mut Latency) -> Result<u64> {
    let batch = options.batch as usize;
    let mut value = Vec::new();
    let mut found = 0;
    loop {
        let first = round.next.fetch_add(batch, Ordering::Relaxed);
        let Some(keys) = round.keys.get(first..).filter(|keys| !keys.is_empty()) else {
            return Ok(found);
        };
        let keys = &keys[..batch.min(keys.len())];

        let start = Instant::now();
        let results = view.get_many(keys)?;
        latency.record(start.elapsed());

        let numbers = round.numbers[first..].iter().zip(&round.words[first..]);
        for ((&number, &word), result) in numbers.zip(&results) {
            let expected = expected(options, number, word, &mut value);
            if result.value() != expected {
                return Err(Error::Wrong(format!("key {number} is not what was last written")));
            }
            found += u64::from(expected.is_some());
        }
    }
}

/// Applies writes in their order.
fn write(table: &mut Table, writes: &[Write], batch: usize, latency: &mut Latency) -> Result<()> {
    for writes in writes.chunks(batch) {
        let updates: Vec<_> = writes
            .iter()
            .map(|Write { key, value }| match value {
                Some(value) => (key, Update::Insert(value)),
                None => (key, Update::Delete),
            })
            .collect();
        let start = Instant::now();
        table.write_batch(&updates)?;
        latency.record(start.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::open_in_memory;

    /// Goal: a result that is not the expected one ends a run. Method: lookups of a table whose
    /// keys have the values of another seed, or that has keys which should be deleted.
    #[test]
    fn wrong_results_are_found() {
        let options = Options {
            keys: 3,
            values: Values::default(),
            seed: 1,
            shape: Shape::Default,
            compression: Compression::None,
            write_buffer_bytes: None,
            mix: Mix { get: 100, put: 0, delete: 0 },
            ops: 10,
            round: 10,
            batch: 2,
            threads: 1,
            distribution: Distribution::Uniform,
            memory_budget: None,
        };
        let session = open_in_memory().unwrap();
        let mut table = session.new_table(&table_config(Shape::Default, None)).unwrap();
        fill(&mut table, &options, &mut terrane_replay::monitor::Silent).unwrap();

        let other = Options { seed: 2, ..options.clone() };
        let mut work = Work::new(&options);
        let round = work.draw(0, 10);
        assert_eq!(read(&table, &options, &round, &mut Latency::new()).unwrap(), 10);
        let again = Round { next: AtomicUsize::new(0), ..round };
        let error = read(&table, &other, &again, &mut Latency::new()).unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");

        let mut work = Work::new(&options);
        work.words.fill(DELETED);
        let round = work.draw(0, 10);
        let error = read(&table, &options, &round, &mut Latency::new()).unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
    }
}

//! `terrane stats`: shape and counters of a store and its tables, once or again and again.
//!
//! # JSON
//!
//! `commit` (the last one), `store`: object of the metrics of the whole store, `tables`: list of
//! `name`, the metrics of the table, and `levels`: list of `level` (from 1) and the metrics of the
//! level. Sizes end with `_bytes`. A latency is an object: `count`, `mean`, `p50`, `p99`, `p999`,
//! `max`, in the unit of its name. The metrics of the store that begin with `memory_` and are not
//! `memory_hits` are there with `--memory-budget` only.
//!
//! # Prometheus
//!
//! The text format, version 0.0.4: `terrane_NAME`, `terrane_table_NAME{table}` and
//! `terrane_level_NAME{table,level}`. Counters end with `_total`; latencies are summaries in
//! seconds.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Map, Value, json};
use terrane::lsm::{
    FilterStats, Latencies, LevelStats, MemoryStats, PAGE_SIZE, SessionStats, StoreReader,
    TableStats,
};

use crate::commands::kv::MemoryArgs;
use crate::stores::open::open_to_read_within;
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::text::{grouped, table, time};

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane stats --store /data/ledger
  Every second until Ctrl-C, on a terminal or as one line each time:
    terrane stats --store /data/ledger --watch
    terrane stats --store /data/ledger --watch --interval 10 --times 6
  For Prometheus, by the text-file collector of its node exporter:
    terrane stats --store /data/ledger --prometheus > terrane.prom
  What its tables would hold of a memory budget, read by a program of its own:
    terrane stats --store /data/ledger --memory-budget 256MiB

`stats` works beside the process that has the store open and shows the store as of its last \
commit. Runs, entries, bytes and memory are those of the tables opened for reading. Counters of \
lookups and updates are of one process: those of `stats` itself, which begin at zero. A program \
gets its own from `Session::stats` and `Table::stats`.";

/// Escape sequences that clear the screen of a terminal and move to its corner.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";

/// Quantiles of a latency in the text format of Prometheus.
const QUANTILES: [(&str, f64); 4] = [("0.5", 0.5), ("0.99", 0.99), ("0.999", 0.999), ("1", 1.0)];

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Prints the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
    /// Prints again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Seconds between two prints of --watch
    #[arg(long, value_name = "SECONDS", value_parser = args::seconds, default_value = "1",
        requires = "watch")]
    interval: Duration,
    /// Number of prints of --watch, instead of Ctrl-C
    #[arg(long, value_name = "N", value_parser = args::positive_count, requires = "watch")]
    times: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Kind of a metric in the text format of Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Number that rises and falls.
    Gauge,
    /// Number that only rises.
    Counter,
}

/// Value of a metric.
enum Measure {
    Number(Kind, u64),
    /// Latency of one kind of call.
    Latency(Latencies),
}

/// Metric: name, value and meaning.
struct Metric {
    name: &'static str,
    measure: Measure,
    help: &'static str,
}

impl Metric {
    fn gauge(name: &'static str, value: u64, help: &'static str) -> Self {
        Self { name, measure: Measure::Number(Kind::Gauge, value), help }
    }

    fn counter(name: &'static str, value: u64, help: &'static str) -> Self {
        Self { name, measure: Measure::Number(Kind::Counter, value), help }
    }

    fn latency(name: &'static str, times: &Latencies, help: &'static str) -> Self {
        Self { name, measure: Measure::Latency(times.clone()), help }
    }

    /// Returns the name in JSON, with the unit of a latency.
    fn json_name(&self) -> String {
        match self.measure {
            Measure::Number(..) => self.name.to_owned(),
            Measure::Latency(_) => format!("{}_us", self.name),
        }
    }

    fn json(&self) -> Value {
        match &self.measure {
            Measure::Number(_, value) => json!(value),
            Measure::Latency(times) => {
                let us = |time: Duration| time.as_secs_f64() * 1e6;
                json!({
                    "count": times.count(),
                    "mean": us(times.mean()),
                    "p50": us(times.quantile(0.5)),
                    "p99": us(times.quantile(0.99)),
                    "p999": us(times.quantile(0.999)),
                    "max": us(times.max()),
                })
            }
        }
    }

    fn text(&self) -> String {
        match &self.measure {
            Measure::Number(_, value) if self.name.ends_with("_bytes") => output::bytes(*value),
            Measure::Number(_, value) => grouped(*value),
            Measure::Latency(times) if times.count() == 0 => "no calls".to_owned(),
            Measure::Latency(times) => format!(
                "{} calls, p50 {:?}, p99 {:?}, max {:?}",
                grouped(times.count()),
                times.quantile(0.5),
                times.quantile(0.99),
                times.max()
            ),
        }
    }
}

/// Metrics of lookups and updates, from statistics of a session or of a table.
macro_rules! work_metrics {
    ($stats:ident) => {
        [
            Metric::counter("lookups", $stats.lookups, "Keys looked up"),
            Metric::counter("found", $stats.found, "Keys looked up that were present"),
            Metric::counter("memory_hits", $stats.memory_hits, "Keys that memtables decided"),
            Metric::counter("lookup_reads", $stats.lookup_reads, "Reads of lookups"),
            Metric::counter("cache_hits", $stats.cache_hits, "Pages found in page caches"),
            Metric::counter("updates", $stats.updates, "Updates accepted"),
            Metric::counter("update_bytes", $stats.update_bytes, "Bytes of the updates"),
            Metric::counter("written_bytes", $stats.written_bytes, "Bytes of runs written"),
            Metric::latency("lookup_time", &$stats.lookup_times, "Time of batches of lookups"),
            Metric::latency("update_time", &$stats.update_times, "Time of batches of updates"),
            Metric::latency("save_time", &$stats.save_times, "Time of saving snapshots"),
        ]
    };
}

/// Metrics of filters, under names that begin alike.
fn filter_metrics(filter: FilterStats) -> [Metric; 3] {
    [
        Metric::counter("filter_denied", filter.denied, "Questions that filters answered with no"),
        Metric::counter(
            "filter_found",
            filter.found,
            "Questions that filters answered with perhaps, of keys that were there",
        ),
        Metric::counter(
            "filter_false_positives",
            filter.false_positives,
            "Questions that filters answered with perhaps, of keys that were not there",
        ),
    ]
}

/// Numbers of the states that a store keeps. A session for reading does not count them.
#[derive(Clone, Copy)]
struct Kept {
    versions: u64,
    snapshots: u64,
}

fn store_metrics(stats: &SessionStats, commit: u64, kept: Kept) -> Vec<Metric> {
    let mut metrics = vec![
        Metric::gauge("last_commit", commit, "Number of the last commit"),
        Metric::gauge("versions", kept.versions, "Retained versions"),
        Metric::gauge("snapshots", kept.snapshots, "Snapshots"),
        Metric::gauge("open_tables", stats.tables, "Tables that are open"),
        Metric::gauge("open_cursors", stats.cursors, "Cursors that are open"),
        Metric::gauge("open_files", stats.open_files, "Files that are open"),
        Metric::gauge("reserve_bytes", stats.reserve_bytes, "Disk space kept in reserve"),
        Metric::gauge(
            "reserve_in_use",
            u64::from(stats.is_full),
            "Whether the disk was full and the reserve is in use",
        ),
        Metric::gauge("runs", stats.runs, "Runs, each counted once"),
        Metric::gauge("stored_entries", stats.entries, "Entries in runs, tombstones included"),
        Metric::gauge("tombstones", stats.deletes, "Tombstones in runs"),
        Metric::gauge("run_bytes", stats.bytes, "Bytes of the files of runs"),
        Metric::gauge("filter_bytes", stats.filter_bytes, "Memory of filters"),
        Metric::gauge("index_bytes", stats.index_bytes, "Memory of indexes"),
        Metric::counter("image_bytes", stats.image_bytes, "Bytes of images of memtables written"),
    ];
    metrics.extend(work_metrics!(stats));
    metrics.extend(filter_metrics(stats.filter));
    metrics.extend(stats.memory.iter().flat_map(memory_metrics));
    metrics
}

/// Metrics of a memory budget and its consumers. Filters and indexes are among those of the store.
fn memory_metrics(stats: &MemoryStats) -> [Metric; 9] {
    [
        Metric::gauge("memory_budget_bytes", stats.budget_bytes, "Memory budget of the store"),
        Metric::gauge("memory_granted_bytes", stats.granted_bytes(), "Memory of all consumers"),
        Metric::gauge("memory_peak_bytes", stats.peak_bytes, "Largest memory of all consumers"),
        Metric::gauge(
            "memory_write_buffer_bytes",
            stats.write_buffer_bytes,
            "Memory granted to write buffers",
        ),
        Metric::gauge(
            "memory_write_buffer_used_bytes",
            stats.write_buffer_used_bytes,
            "Memory of write buffers",
        ),
        Metric::gauge(
            "memory_unfinished_bytes",
            stats.unfinished_bytes,
            "Memory of filters and indexes that flushes and compactions are writing",
        ),
        Metric::gauge("memory_cache_bytes", stats.cache_bytes, "Memory of the page cache"),
        Metric::gauge("memory_cursor_bytes", stats.cursor_bytes, "Memory that cursors read into"),
        Metric::gauge(
            "memory_own_budget_bytes",
            stats.own_budget_bytes,
            "Memory set aside for tables with a budget of their own",
        ),
    ]
}

fn table_metrics(stats: &TableStats) -> Vec<Metric> {
    let bytes = stats.levels.iter().map(|level| level.bytes).sum::<u64>() + stats.union.bytes;
    let debt = stats.merge_debt_pages * PAGE_SIZE as u64;
    let mut metrics = vec![
        Metric::gauge("runs", stats.runs(), "Runs on all levels"),
        Metric::gauge("stored_entries", stats.entries(), "Entries, tombstones included"),
        Metric::gauge("run_bytes", bytes, "Bytes of the files of runs"),
        Metric::gauge("union_entries", stats.union.entries, "Entries of an incomplete union"),
        Metric::gauge("buffer_entries", stats.buffer_entries, "Entries in the memtable"),
        Metric::gauge("buffer_bytes", stats.buffer_bytes, "Memory of the memtable"),
        Metric::gauge("filter_bytes", stats.filter_bytes, "Memory of filters"),
        Metric::gauge("index_bytes", stats.index_bytes, "Memory of indexes"),
        Metric::gauge(
            "unfinished_bytes",
            stats.unfinished_bytes,
            "Memory of filters and indexes that flushes and compactions are writing",
        ),
        Metric::gauge("cache_bytes", stats.cache_bytes, "Memory of the page cache"),
        Metric::gauge("memory_bytes", stats.memory_bytes(), "Memory in all"),
        Metric::gauge("key_pages", stats.key_pages, "Key pages that the indexes point to"),
        Metric::gauge("merge_debt_bytes", debt, "Compaction work that is due later"),
    ];
    metrics.extend(work_metrics!(stats));
    metrics.extend(filter_metrics(stats.filter));
    metrics
}

fn level_metrics(level: &LevelStats) -> Vec<Metric> {
    let page = PAGE_SIZE as u64;
    let mut metrics = vec![
        Metric::gauge("runs", level.runs, "Runs of the level; slices of one count as one"),
        Metric::gauge("run_files", level.files, "Files of the runs"),
        Metric::gauge("stored_entries", level.entries, "Entries, tombstones included"),
        Metric::gauge("tombstones", level.deletes, "Tombstones"),
        Metric::gauge("run_bytes", level.bytes, "Bytes of the files of runs"),
        Metric::gauge("filter_bytes", level.filter_bytes, "Memory of filters"),
        Metric::gauge("index_bytes", level.index_bytes, "Memory of indexes"),
        Metric::gauge("merge_bytes", level.merge_pages * page, "Work of the compaction"),
        Metric::gauge(
            "merge_done_bytes",
            level.merge_pages_done * page,
            "Work of the compaction that is done",
        ),
    ];
    metrics.extend(filter_metrics(level.filter));
    metrics
}

/// Metrics of one table.
struct TableMetrics {
    name: String,
    metrics: Vec<Metric>,
    levels: Vec<Vec<Metric>>,
}

/// Metrics of a store at one moment.
struct Sample {
    commit: u64,
    store: Vec<Metric>,
    tables: Vec<TableMetrics>,
}

impl Sample {
    fn take(reader: &StoreReader) -> Result<Self, Failure> {
        let mut tables = Vec::new();
        for info in reader.tables() {
            let stats = reader.table(&info.name)?.stats();
            tables.push(TableMetrics {
                name: info.name.to_string(),
                metrics: table_metrics(&stats),
                levels: stats.levels.iter().map(level_metrics).collect(),
            });
        }

        let commit = reader.last_commit();
        let kept = Kept {
            versions: reader.versions()?.len() as u64,
            snapshots: reader.session().list_snapshots()?.len() as u64,
        };
        let store = store_metrics(&reader.session().stats(), commit, kept);

        Ok(Self { commit, store, tables })
    }

    fn json(&self) -> Map<String, Value> {
        let object = |metrics: &[Metric]| -> Map<String, Value> {
            metrics.iter().map(|metric| (metric.json_name(), metric.json())).collect()
        };
        let of_table = |of: &TableMetrics| {
            let mut table = Map::from_iter([("name".to_owned(), json!(of.name))]);
            table.extend(object(&of.metrics));
            let levels = (1..).zip(&of.levels).map(|(number, metrics)| {
                let mut level = Map::from_iter([("level".to_owned(), json!(number))]);
                level.extend(object(metrics));
                Value::Object(level)
            });
            table.insert("levels".to_owned(), Value::Array(levels.collect()));
            Value::Object(table)
        };

        Map::from_iter([
            ("commit".to_owned(), json!(self.commit)),
            ("store".to_owned(), Value::Object(object(&self.store))),
            ("tables".to_owned(), Value::Array(self.tables.iter().map(of_table).collect())),
        ])
    }

    fn text(&self) -> String {
        let rows = |metrics: &[Metric]| -> Vec<Vec<String>> {
            metrics.iter().map(|metric| vec![metric.name.to_owned(), metric.text()]).collect()
        };
        let mut parts = vec![table(2, &rows(&self.store))];
        for of in &self.tables {
            parts.push(format!("table {}\n{}", of.name, table(2, &rows(&of.metrics))));
            let Some(first) = of.levels.first() else { continue };
            let numbers = |metrics: &[Metric]| metrics.iter().map(Metric::text).collect::<Vec<_>>();
            let mut heads = vec!["LEVEL".to_owned()];
            heads.extend(first.iter().map(|metric| metric.name.to_uppercase().replace('_', " ")));
            let mut levels = vec![heads];
            for (number, metrics) in (1_u64..).zip(&of.levels) {
                let mut row = vec![number.to_string()];
                row.extend(numbers(metrics));
                levels.push(row);
            }
            parts.push(table(1, &levels));
        }
        parts.join("\n\n")
    }

    /// Returns the sums that fit on one line.
    fn line(&self) -> String {
        let sum = |name: &str| {
            let metrics = self.tables.iter().flat_map(|table| &table.metrics);
            metrics
                .filter(|metric| metric.name == name)
                .map(|metric| match metric.measure {
                    Measure::Number(_, value) => value,
                    Measure::Latency(_) => 0,
                })
                .sum::<u64>()
        };

        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!(
            "{} commit={} tables={} runs={} run_bytes={} merge_debt_bytes={} memory_bytes={}",
            time(u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)),
            self.commit,
            self.tables.len(),
            sum("runs"),
            sum("run_bytes"),
            sum("merge_debt_bytes"),
            sum("memory_bytes"),
        )
    }

    fn prometheus(&self) -> String {
        let mut text = String::new();
        let plain = self.store.iter().map(|metric| (String::new(), metric));
        write_families(&mut text, "terrane", &plain.collect::<Vec<_>>());

        let mut of_tables = Vec::new();
        let mut of_levels = Vec::new();
        for table in &self.tables {
            // A name has no character that would need an escape.
            let label = format!("table=\"{}\"", table.name);
            of_tables.extend(table.metrics.iter().map(|metric| (label.clone(), metric)));
            for (number, metrics) in (1_u64..).zip(&table.levels) {
                let label = format!("{label},level=\"{number}\"");
                of_levels.extend(metrics.iter().map(|metric| (label.clone(), metric)));
            }
        }

        write_families(&mut text, "terrane_table", &of_tables);
        write_families(&mut text, "terrane_level", &of_levels);
        text
    }
}

/// Writes metrics with their labels. The samples of one name stand together, behind the lines that
/// say its meaning and its kind.
fn write_families(text: &mut String, prefix: &str, metrics: &[(String, &Metric)]) {
    let mut written: Vec<&str> = Vec::new();
    for (_, first) in metrics {
        if written.contains(&first.name) {
            continue;
        }
        written.push(first.name);

        let (suffix, kind) = match first.measure {
            Measure::Number(Kind::Gauge, _) => ("", "gauge"),
            Measure::Number(Kind::Counter, _) => ("_total", "counter"),
            Measure::Latency(_) => ("_seconds", "summary"),
        };
        let name = format!("{prefix}_{}{suffix}", first.name);
        // Writing into a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}", first.help);
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, metric) in metrics.iter().filter(|(_, metric)| metric.name == first.name) {
            write_sample(text, &name, labels, metric);
        }
    }
}

fn write_sample(text: &mut String, name: &str, labels: &str, metric: &Metric) {
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    match &metric.measure {
        // Writing into a string cannot fail.
        Measure::Number(_, value) => {
            let _ = writeln!(text, "{name}{braced} {value}");
        }
        Measure::Latency(times) => {
            let before = if labels.is_empty() { String::new() } else { format!("{labels},") };
            for (quantile, share) in QUANTILES {
                let seconds = times.quantile(share).as_secs_f64();
                let _ = writeln!(text, "{name}{{{before}quantile=\"{quantile}\"}} {seconds}");
            }
            let sum = times.mean().as_secs_f64() * times.count() as f64;
            let _ = writeln!(text, "{name}_sum{braced} {sum}");
            let _ = writeln!(text, "{name}_count{braced} {}", times.count());
        }
    }
}

impl Stats {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if self.output.json && (self.prometheus || self.watch) {
            return Err(Failure::arguments("--json prints one object; give it alone"));
        }

        let mut reader = open_to_read_within(&self.store, self.memory.budget())?;
        if self.watch {
            return self.run_watch(&mut reader).map(|()| 0);
        }

        let sample = Sample::take(&reader)?;
        if self.prometheus {
            return output::print(sample.prometheus().trim_end()).map(|()| 0);
        }
        if self.output.json {
            return output::report("stats", true, &sample.json(), &[]).map(|()| 0);
        }

        output::print(&sample.text()).map(|()| 0)
    }

    /// Prints a sample after each interval. Ctrl-C ends the process.
    fn run_watch(&self, reader: &mut StoreReader) -> Result<(), Failure> {
        let is_terminal = io::stdout().is_terminal();
        for number in 1..=self.times.unwrap_or(u64::MAX) {
            let sample = Sample::take(reader)?;
            if is_terminal {
                output::print(&format!("{CLEAR_SCREEN}{}", sample.text()))?;
            } else if !output::print_line(&sample.line())? {
                return Ok(());
            }

            if Some(number) != self.times {
                thread::sleep(self.interval);
                reader.refresh()?;
            }
        }

        Ok(())
    }
}

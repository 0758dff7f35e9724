//! A comparison with rivals: points that the program in `peers/` has measured, as tables and plots.
//!
//! A point is one engine on one workload in one round: `plan`, and `figures`, or the sentence
//! `cannot`, or the error `failed`. Points of the same workload, entries and memory are a group.
//! Figures of a group are medians over its rounds; the rate has its range.
//!
//! [`Comparison::of`] takes the object that holds all points, a single point, or several of both.
//! Fields are found by name, since the program in `peers/` is built apart from this crate.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::report::page::{
    Error, RatioRow, Row, Table, Triple, View, at, counted, key, number, ratio_plot, short, text,
    triangle_plot,
};

/// Engine that all others are compared with.
const OURS: &str = "terrane";

/// Names of engines in tables; an engine that is not here has its own.
const NAMES: [(&str, &str); 15] = [
    ("terrane", "Terrane"),
    ("rocksdb", "RocksDB"),
    ("fjall", "fjall"),
    ("redb", "redb"),
    ("lmdb", "LMDB"),
    ("sqlite", "SQLite"),
    ("mdbx", "libmdbx"),
    ("paritydb", "ParityDB"),
    ("canopydb", "canopydb"),
    ("surrealkv", "SurrealKV"),
    ("pebble", "Pebble"),
    ("badger", "Badger"),
    ("nomt", "NOMT"),
    ("qmdb", "commonware QMDB"),
    ("pathdb", "go-ethereum pathdb"),
];

/// A workload of the comparison.
struct Workload {
    name: &'static str,
    /// One operation.
    operation: &'static str,
    /// Whether entries are loaded before.
    loads: bool,
    /// Bytes of keys and values that an operation looks up, and that it writes.
    logical_bytes: (f64, f64),
}

/// Workloads in the order of tables.
const WORKLOADS: [Workload; 7] = [
    Workload {
        name: "utxo",
        operation: "lookup + delete + insert",
        loads: true,
        logical_bytes: (94.0, 128.0),
    },
    Workload { name: "kvget", operation: "lookup", loads: true, logical_bytes: (142.0, 0.0) },
    Workload {
        name: "index",
        operation: "insert or find of an object's place",
        loads: true,
        logical_bytes: (0.0, 0.0),
    },
    Workload {
        name: "scan",
        operation: "scan of 1,000 entries",
        loads: true,
        logical_bytes: (94e3, 0.0),
    },
    Workload {
        name: "commits-1",
        operation: "durable commit of 10 entries, one thread",
        loads: false,
        logical_bytes: (0.0, 940.0),
    },
    Workload {
        name: "commits-8",
        operation: "durable commit of 10 entries, eight threads",
        loads: false,
        logical_bytes: (0.0, 940.0),
    },
    Workload {
        name: "state",
        operation: "block of 1,313 reads and 1,313 changes, with a root, durable",
        loads: true,
        logical_bytes: (1_313.0 * 106.0, 1_313.0 * 106.0),
    },
];

/// Rows of the headline table at most.
const HEADLINES_MAX: usize = 8;

/// Reason why a comparison cannot be shown.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unfit {
    /// A row in which a rival is faster has no reason.
    #[error("{workload}, {entries} entries: {rival} is faster, and there is no reason of it")]
    NoReason {
        /// Workload of the row.
        workload: String,
        /// Entries of the row.
        entries: u64,
        /// Fastest rival.
        rival: String,
    },
}

/// Figures of one engine in a group: medians over the rounds.
#[derive(Debug, Clone, PartialEq)]
struct Standing {
    engine: String,
    version: String,
    /// Median, least and greatest operations in a second.
    rate: (f64, f64, f64),
    p50_us: f64,
    p99_us: f64,
    longest_ms: f64,
    cpu_us: f64,
    read_bytes: f64,
    write_bytes: f64,
    rss_bytes: f64,
    page_cache_bytes: f64,
    disk_ratio: Option<f64>,
    rounds: usize,
    failed: usize,
}

/// An engine without figures, and why.
#[derive(Debug, Clone, PartialEq)]
struct Absentee {
    engine: String,
    why: String,
}

/// Points of one workload, number of entries and memory.
#[derive(Debug, Clone)]
struct Group {
    workload: String,
    entries: u64,
    memory_bytes: u64,
    /// The fastest first.
    standings: Vec<Standing>,
    absentees: Vec<Absentee>,
}

/// A comparison with rivals.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    groups: Vec<Group>,
}

fn engine_name(engine: &str) -> String {
    let known = NAMES.iter().find(|(name, _)| *name == engine);
    known.map_or(engine, |(_, name)| *name).to_owned()
}

fn workload(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the points in a report: all of a comparison, or the report if it is one.
fn points(report: &Value) -> Vec<&Value> {
    match report.get("points").and_then(Value::as_array) {
        Some(points) => points.iter().filter(|point| is_point(point)).collect(),
        None if is_point(report) => vec![report],
        None => Vec::new(),
    }
}

fn is_point(point: &Value) -> bool {
    at(point, "plan.engine").is_some_and(Value::is_string)
        && at(point, "plan.workload").is_some_and(Value::is_string)
}

impl Standing {
    /// Returns the medians of an engine's points; `None` if none has figures.
    fn of(engine: &str, points: &[&Value]) -> Option<Self> {
        let measured: Vec<&Value> =
            points.iter().copied().filter(|point| point["figures"].is_object()).collect();
        if measured.is_empty() {
            return None;
        }

        let all = |paths: &[&str]| -> Vec<f64> {
            let found = |point: &&Value| paths.iter().find_map(|path| number(point, path));
            measured.iter().filter_map(found).collect()
        };
        let of = |path: &str| median(all(&[path]));
        let rates = all(&["figures.ops_per_s"]);
        let longest = |point: &&Value| {
            let max = |path: &str| number(point, path).unwrap_or(0.0);
            max("figures.reads_us.max").max(max("figures.writes_us.max"))
        };
        let ratios = all(&["figures.disk_ratio"]);
        let rss = |point: &&Value| {
            let bytes = |path: &str| number(point, path).unwrap_or(0.0);
            (bytes("figures.rss_peak_bytes") - bytes("figures.workload_bytes")).max(0.0)
        };
        Some(Self {
            engine: engine.to_owned(),
            version: text(measured[0], "about.version").to_owned(),
            rate: (
                median(rates.clone()),
                rates.iter().copied().fold(f64::MAX, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
            ),
            // Of a workload that reads, calls that read.
            p50_us: median(all(&["figures.reads_us.p50", "figures.writes_us.p50"])),
            p99_us: median(all(&["figures.reads_us.p99", "figures.writes_us.p99"])),
            longest_ms: median(measured.iter().map(longest).collect()) / 1e3,
            cpu_us: of("figures.cpu_us_per_op"),
            read_bytes: of("figures.read_bytes_per_op"),
            write_bytes: of("figures.write_bytes_per_op"),
            rss_bytes: median(measured.iter().map(rss).collect()),
            page_cache_bytes: of("figures.page_cache_peak_bytes"),
            disk_ratio: (!ratios.is_empty()).then(|| median(ratios)),
            rounds: measured.len(),
            failed: points.len() - measured.len(),
        })
    }

    fn name(&self) -> String {
        engine_name(&self.engine)
    }

    fn cells(&self) -> Vec<String> {
        let (rate, low, high) = self.rate;
        let failed = match self.failed {
            0 => String::new(),
            failed => format!(" ({failed} of {} failed)", failed + self.rounds),
        };
        let mib = f64::from(1 << 20);
        vec![
            format!("{}{failed}", self.name()),
            format!("{rate:.0} ({low:.0}–{high:.0})"),
            format!("{:.0}", self.p50_us),
            format!("{:.0}", self.p99_us),
            format!("{:.1}", self.longest_ms),
            format!("{:.1}", self.cpu_us),
            format!("{:.0}", self.read_bytes),
            format!("{:.0}", self.write_bytes),
            format!("{:.0}", self.rss_bytes / mib),
            format!("{:.0}", self.page_cache_bytes / mib),
            self.disk_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        ]
    }
}

/// Heads of the columns of [`Standing::cells`].
const HEAD: [&str; 11] = [
    "engine",
    "operations/s (range)",
    "p50 µs",
    "p99 µs",
    "longest ms",
    "CPU µs",
    "read B",
    "written B",
    "RSS MiB",
    "page cache MiB",
    "disk ratio",
];

impl Group {
    fn of((workload, entries, memory_bytes): (String, u64, u64), points: &[&Value]) -> Self {
        let mut engines: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for point in points {
            engines.entry(text(point, "plan.engine")).or_default().push(point);
        }

        let mut standings = Vec::new();
        let mut absentees = Vec::new();
        for (engine, points) in engines {
            match Standing::of(engine, &points) {
                Some(standing) => standings.push(standing),
                None => {
                    let why = |point: &&Value| {
                        ["failed", "cannot"].map(|name| text(point, name).to_owned()).concat()
                    };
                    let why = points.iter().map(why).find(|why| !why.is_empty());
                    let why = why.unwrap_or_else(|| "no figures".to_owned());
                    absentees.push(Absentee { engine: engine.to_owned(), why });
                }
            }
        }
        standings.sort_by(|a, b| b.rate.0.total_cmp(&a.rate.0));
        Self { workload, entries, memory_bytes, standings, absentees }
    }

    fn loads(&self) -> bool {
        workload(&self.workload).is_none_or(|workload| workload.loads)
    }

    /// Name of the workload and how many entries it has.
    fn label(&self) -> String {
        if self.loads() {
            format!("{}, {} entries", self.workload, counted(self.entries as f64))
        } else {
            self.workload.clone()
        }
    }

    fn title(&self) -> String {
        let memory = self.memory_bytes >> 20;
        format!("{}, {memory} MiB for process and page cache", self.label())
    }

    fn operation(&self) -> &str {
        workload(&self.workload).map_or("", |workload| workload.operation)
    }

    fn ours(&self) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.engine == OURS)
    }

    fn best_rival(&self) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.engine != OURS)
    }

    /// Rate of Terrane for each operation of the fastest rival.
    fn ratio(&self) -> Option<f64> {
        let (ours, rival) = self.ours().zip(self.best_rival())?;
        (rival.rate.0 > 0.0).then(|| ours.rate.0 / rival.rate.0)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let empty = || std::iter::repeat_n(String::new(), HEAD.len() - 2);
        let absent = self.absentees.iter().map(|absentee| {
            let cells = [engine_name(&absentee.engine), absentee.why.clone()];
            cells.into_iter().chain(empty()).collect()
        });
        self.standings.iter().map(Standing::cells).chain(absent).collect()
    }

    /// Place of the workload among the known ones.
    fn place(&self) -> usize {
        let place = WORKLOADS.iter().position(|workload| workload.name == self.workload);
        place.unwrap_or(WORKLOADS.len())
    }
}

impl Comparison {
    /// Returns the comparison that the reports hold; empty if they hold none.
    #[must_use]
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut found: BTreeMap<(String, u64, u64), Vec<&Value>> = BTreeMap::new();
        for point in reports.into_iter().flat_map(points) {
            let whole = |path: &str| at(point, path).and_then(Value::as_u64).unwrap_or(0);
            let workload = text(point, "plan.workload").to_owned();
            let group = (workload, whole("plan.entries"), whole("plan.memory_bytes"));
            found.entry(group).or_default().push(point);
        }
        let mut groups: Vec<Group> =
            found.into_iter().map(|(group, points)| Group::of(group, &points)).collect();
        groups.sort_by_cached_key(|group| {
            let most_first = (Reverse(group.entries), Reverse(group.memory_bytes));
            (group.place(), group.workload.clone(), most_first)
        });
        Self { groups }
    }

    /// Whether there is nothing to compare.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns all groups as tables of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut made = String::new();
        for group in &self.groups {
            let _ =
                writeln!(made, "\n## {}\n\nAn operation: {}.\n", group.title(), group.operation());
            let _ = writeln!(made, "| {} |\n|---{}|", HEAD.join(" | "), "|--:".repeat(10));
            for row in group.rows() {
                let _ = writeln!(made, "| {} |", row.join(" | "));
            }
        }
        made
    }

    /// Groups of each workload in turn, the one with the most entries first.
    fn by_workload(&self) -> impl Iterator<Item = &[Group]> {
        self.groups.chunk_by(|a, b| a.workload == b.workload)
    }

    /// The group of each workload that has the most entries: it compares the main engines.
    fn main_groups(&self) -> impl Iterator<Item = &Group> {
        self.by_workload().map(|groups| &groups[0])
    }

    /// Returns the headline table as Markdown: Terrane beside the fastest rival. The main groups
    /// come first, then those of the others in which Terrane does worst. `reason` returns why a
    /// rival is faster, by workload and entries.
    ///
    /// # Errors
    /// [`Unfit::NoReason`].
    pub fn headlines(&self, reason: impl Fn(&str, u64) -> Option<String>) -> Result<String, Unfit> {
        let with_ratio = |group| Some((group, Group::ratio(group)?));
        let mut others: Vec<(&Group, f64)> =
            self.by_workload().flat_map(|groups| &groups[1..]).filter_map(with_ratio).collect();
        others.sort_by(|a, b| a.1.total_cmp(&b.1));
        let main = self.main_groups().filter_map(with_ratio);
        let rows = main.chain(others).take(HEADLINES_MAX);

        let mut made =
            "| workload | Terrane | best rival | Terrane / rival |\n|---|--:|--:|---|\n".to_owned();
        for (group, ratio) in rows {
            let Some((ours, rival)) = group.ours().zip(group.best_rival()) else { continue };
            let why = if ratio < 1.0 {
                let reason = reason(&group.workload, group.entries);
                let none = || Unfit::NoReason {
                    workload: group.workload.clone(),
                    entries: group.entries,
                    rival: rival.name(),
                };
                format!(": {}", reason.ok_or_else(none)?)
            } else {
                String::new()
            };
            let _ = writeln!(
                made,
                "| `{}`: {}; {} MiB | {}/s | {} {}/s | {}{why} |",
                group.label(),
                group.operation(),
                group.memory_bytes >> 20,
                counted(ours.rate.0.round()),
                rival.name(),
                counted(rival.rate.0.round()),
                short(ratio),
            );
        }
        Ok(made)
    }

    /// Engines of the main groups: Terrane, then the others by name.
    fn engines(&self) -> Vec<String> {
        let mut engines: Vec<String> = Vec::new();
        for standing in self.main_groups().flat_map(|group| &group.standings) {
            if !engines.contains(&standing.engine) {
                engines.push(standing.engine.clone());
            }
        }
        engines.sort_by_key(|engine| (engine != OURS, engine.clone()));
        engines
    }

    /// Returns a plot of the main groups that can stand alone: rates beside that of Terrane.
    ///
    /// # Errors
    /// [`Error::Plot`].
    pub fn svg(&self) -> Result<String, Error> {
        let engines = self.engines();
        let row = |group: &Group| {
            let ours = group.ours()?.rate.0;
            let ratio = |engine: &String| {
                let found = group.standings.iter().find(|standing| standing.engine == *engine);
                found.map(|standing| standing.rate.0 / ours)
            };
            Some(RatioRow { label: group.label(), ratios: engines.iter().map(ratio).collect() })
        };
        let rows: Vec<RatioRow> = self.main_groups().filter_map(row).collect();
        let names: Vec<String> = engines.iter().map(|engine| engine_name(engine)).collect();
        let axis = "operations in a second, Terrane = 1";
        ratio_plot("Terrane beside its rivals", axis, &names, &rows)
    }

    /// Returns the view of rates: the plot of the main groups.
    pub(super) fn rates(&self, command: &str) -> Result<View, Error> {
        let rows = self.groups.iter().flat_map(|group| {
            group.standings.iter().map(|standing| Row {
                label: format!("{}: {} {}", group.title(), standing.name(), standing.version),
                figure: format!("{}/s", counted(standing.rate.0.round())),
                command: command.to_owned(),
            })
        });
        Ok(View {
            id: "rivals",
            title: "Rivals",
            note: "Operations in a second of each engine for each one of Terrane, under the same \
                   limit of memory, medians over the rounds."
                .to_owned(),
            svg: Some(self.svg()?),
            rows: rows.collect(),
            is_wide: true,
            ..View::default()
        })
    }

    /// Returns the view with the whole table of each group.
    pub(super) fn tables(&self) -> View {
        let table = |group: &Group| Table {
            caption: format!("{}. An operation: {}.", group.title(), group.operation()),
            head: HEAD.map(str::to_owned).to_vec(),
            rows: group.rows(),
        };
        View {
            id: "rivals-tables",
            title: "Rivals: all figures",
            note: "Medians over the rounds; the rate with its range. Bytes are those of an \
                   operation."
                .to_owned(),
            tables: self.groups.iter().map(table).collect(),
            is_wide: true,
            ..View::default()
        }
    }

    /// Returns the triangle of amplifications; `None` without a workload that reads, writes and
    /// occupies space.
    pub(super) fn triangle(&self, command: &str) -> Result<Option<View>, Error> {
        let Some(group) = self.groups.iter().find(|group| group.workload == "utxo") else {
            return Ok(None);
        };
        let (looked_up, written) = WORKLOADS[0].logical_bytes;
        let triple = |standing: &Standing| {
            let space = standing.disk_ratio?;
            let values = [standing.read_bytes / looked_up, standing.write_bytes / written, space];
            Some(Triple { label: standing.name(), values })
        };
        let triples: Vec<Triple> = group.standings.iter().filter_map(triple).collect();
        if triples.is_empty() {
            return Ok(None);
        }

        let corners = ["reads", "writes", "space"];
        let rows = triples.iter().flat_map(|triple| {
            corners.iter().zip(triple.values).map(|(corner, value)| Row {
                label: format!("{}, {corner}", triple.label),
                figure: short(value),
                command: command.to_owned(),
            })
        });
        let rows: Vec<Row> = rows.collect();
        let names: Vec<String> = triples.iter().map(|triple| triple.label.clone()).collect();
        Ok(Some(View {
            id: "triangle",
            title: "Amplification beside rivals",
            note: format!(
                "{}: bytes that the device reads for each byte looked up, bytes written for each \
                 byte of updates, bytes on disk for each byte loaded. A smaller triangle is better.",
                group.label()
            ),
            svg: Some(triangle_plot("Amplification beside rivals", corners, &triples)?),
            key: key(&names),
            rows,
            ..View::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn point(engine: &str, workload: &str, round: u64, rate: f64) -> Value {
        json!({"plan": {"engine": engine, "workload": workload, "entries": 1_000_000,
                "memory_bytes": 1 << 26, "round": round},
            "about": {"version": "1"}, "cannot": null, "failed": null,
            "figures": {"ops_per_s": rate, "reads_us": {"p50": 10.0, "p99": 20.0, "max": 3e3},
                "writes_us": null, "cpu_us_per_op": 2.0, "read_bytes_per_op": 940.0,
                "write_bytes_per_op": 256.0, "rss_peak_bytes": 3 << 20, "workload_bytes": 1 << 20,
                "page_cache_peak_bytes": null, "disk_ratio": 1.5}})
    }

    fn comparison(ours: f64) -> Comparison {
        let absent = json!({"plan": {"engine": "paritydb", "workload": "utxo",
            "entries": 1_000_000, "memory_bytes": 1 << 26, "round": 0},
            "cannot": "it has no order", "failed": null, "figures": null});
        let points = [
            point("terrane", "utxo", 0, ours),
            point("redb", "utxo", 0, 50.0),
            point("redb", "utxo", 1, 40.0),
            point("redb", "utxo", 2, 70.0),
            absent,
        ];
        Comparison::of([&json!({"points": points}), &json!({"other": 1}), &json!(null)])
    }

    #[test]
    fn medians_have_their_range_and_engines_without_figures_their_sentence() {
        let made = comparison(100.0).markdown();
        let rows: Vec<&str> = made.lines().filter(|line| line.starts_with("| ")).collect();
        assert!(rows[1].starts_with("| Terrane | 100 (100–100) | 10 | 20 | 3.0 |"), "{made}");
        assert!(rows[2].starts_with("| redb | 50 (40–70) |"), "{made}");
        assert!(rows[3].starts_with("| ParityDB | it has no order |"), "{made}");
    }

    #[test]
    fn a_row_that_loses_stays_and_needs_its_reason() {
        let won = comparison(100.0).headlines(|_, _| None).unwrap();
        assert!(won.ends_with("| 100/s | redb 50/s | 2 |\n"), "{won}");
        let lost = comparison(25.0);
        let none = lost.headlines(|_, _| None).unwrap_err();
        assert!(none.to_string().contains("redb is faster"), "{none}");
        let told = lost.headlines(|workload, entries| Some(format!("{workload} {entries}")));
        assert!(told.unwrap().ends_with("| 0.5: utxo 1000000 |\n"));
    }

    #[test]
    fn plots_name_the_engines_and_hold_every_point() {
        let comparison = comparison(100.0);
        let svg = comparison.svg().unwrap();
        assert!(svg.contains("Terrane") && svg.contains("redb") && svg.contains("prefers-color"));
        // One dot of the key and one of the row for each engine.
        assert_eq!(svg.matches("<circle").count(), 4);
        let triangle = comparison.triangle("c").unwrap().unwrap();
        assert_eq!(triangle.rows.len(), 6);
        assert_eq!(triangle.rows[0].figure, "10");
        assert!(Comparison::of([&json!([])]).is_empty());
    }
}

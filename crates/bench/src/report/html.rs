//! A page of reports: plots, figures with their commands, raw data.
//!
//! A view shows the figures that the reports have for it, each with the command that measured it. A
//! view without figures says which command makes them. [`Page::of`] takes any report of a
//! benchmark: fields are found by name, and reports inside of reports (sweeps, imports) are taken
//! apart.

use serde_json::{Value, json};

use crate::report::page::{
    Axis, Bar, Error, Mark, Page, Row, View, add, at, bar_view, counted, key, missing, number,
    plain, plot, short, text,
};
use crate::report::rivals::Comparison;

/// Bytes of a key and its value in the published benchmark.
const PUBLISHED_ENTRY_BYTES: f64 = 142.0;

/// Reads per GET that Pebble 1.1.5 was published with: keys, and (MB of cache, reads) of each.
/// Bytes of keys and values are 142 a key.
const PUBLISHED: [(f64, [(f64, f64); 10]); 3] = [
    (
        2e8,
        [
            (23.0, 3.1321),
            (32.0, 2.2508),
            (45.0, 1.9693),
            (90.0, 1.7032),
            (135.0, 1.4449),
            (180.0, 1.1918),
            (210.0, 1.0421),
            (225.0, 1.0270),
            (450.0, 1.0158),
            (676.0, 1.0060),
        ],
    ),
    (
        2e9,
        [
            (226.0, 3.0749),
            (284.0, 2.1832),
            (452.0, 1.9536),
            (905.0, 1.6927),
            (1360.0, 1.4379),
            (1810.0, 1.2028),
            (2048.0, 1.1047),
            (2263.0, 1.0743),
            (4526.0, 1.0422),
            (6789.0, 1.0225),
        ],
    ),
    (
        2e10,
        [
            (2250.0, 2.8356),
            (2600.0, 2.4191),
            (4500.0, 1.9559),
            (9000.0, 1.7031),
            (13500.0, 1.4756),
            (18000.0, 1.3525),
            (21000.0, 1.3254),
            (22500.0, 1.3156),
            (45000.0, 1.1584),
            (68000.0, 1.0800),
        ],
    ),
];

/// One report of a benchmark, and the windows that it sums up.
#[derive(Debug, Clone)]
pub struct Input {
    /// Name of the file.
    pub file: String,
    /// Name in the plots, unlike that of any other report.
    name: String,
    /// Report.
    pub report: Value,
    /// Windows of the run, in order; empty unless the file has them.
    pub windows: Vec<Value>,
}

impl Page {
    /// Returns the page of some reports.
    ///
    /// # Errors
    /// [`Error`].
    pub fn of(title: &str, inputs: Vec<Input>) -> Result<Self, Error> {
        let inputs = named(inputs.into_iter().flat_map(flat).collect());
        let mut views = vec![card(&inputs)];
        let rivals = Comparison::of(inputs.iter().map(|input| &input.report));
        let measured_by = inputs.iter().find(|input| input.is_comparison()).map(Input::command);
        let measured_by = measured_by.unwrap_or_default();
        if !rivals.is_empty() {
            views.push(rivals.rates(&measured_by)?);
            views.extend(rivals.triangle(&measured_by)?);
        }
        views.extend([
            reads_by_memory(&inputs)?,
            latencies(&inputs)?,
            over_time(&inputs, &TIMELINES[0])?,
            over_time(&inputs, &TIMELINES[1])?,
            over_time(&inputs, &TIMELINES[2])?,
            rates(&inputs)?,
            bars(
                (
                    "eta",
                    "Share of the device",
                    "eta: operations for each random 4 KiB read that the device gives in the same \
                     run; 1 is its limit unless a cache answers.",
                    "terrane bench utxo run --calibrate",
                ),
                &inputs,
                &["speed.eta", "eta"],
            )?,
            bars(
                (
                    "cpu",
                    "Processor time of an operation",
                    "Microseconds of all threads, user and system.",
                    "terrane bench utxo run",
                ),
                &inputs,
                &["cpu_us_per_op", "speed.cpu_us_per_op"],
            )?,
            amplification(&inputs)?,
            bars(
                (
                    "stalls",
                    "Longest stall",
                    "Longest single batch of updates, in milliseconds.",
                    "terrane bench utxo run",
                ),
                &inputs,
                &["update_latency_us.max/1000", "latency_us.max/1000"],
            )?,
            blocks(&inputs)?,
            device(&inputs)?,
        ]);
        if !rivals.is_empty() {
            views.push(rivals.tables());
        }
        let raw = |input: &Input| {
            let Input { file, report, windows, .. } = input;
            json!({"file": file, "report": report, "windows": windows})
        };
        let data = Value::Array(inputs.iter().map(raw).collect());
        let subtitle =
            format!("{} reports. The raw data are in this file, below the plots.", inputs.len());
        Ok(Self::new(title, subtitle, views, &data))
    }
}

/// Takes reports inside of a report apart.
fn flat(input: Input) -> Vec<Input> {
    let inner = |name: &str, within: &dyn Fn(&Value) -> Option<Value>| {
        let list = input.report.get(name)?.as_array()?;
        let reports: Vec<Input> = list
            .iter()
            .filter_map(within)
            .map(|report| Input { report, windows: Vec::new(), ..input.clone() })
            .collect();
        (!reports.is_empty()).then_some(reports)
    };
    let report = |result: &Value| match result.get("report") {
        Some(report) => report.is_object().then(|| report.clone()),
        // An imported log is a result itself.
        None => result.get("io_per_get").map(|_| result.clone()),
    };
    inner("results", &report).unwrap_or_else(|| vec![input])
}

/// Gives each report a name of its own: reports of the same work are numbered.
fn named(mut inputs: Vec<Input>) -> Vec<Input> {
    let mut seen: Vec<String> = Vec::new();
    for input in &mut inputs {
        let name = input.short_name();
        seen.push(name.clone());
        let count = seen.iter().filter(|known| **known == name).count();
        input.name = if count > 1 { format!("{name} ({count})") } else { name };
    }
    inputs
}

impl Input {
    /// Returns the input of a file.
    #[must_use]
    pub fn new(file: &str, report: Value, windows: Vec<Value>) -> Self {
        Self { file: file.to_owned(), name: String::new(), report, windows }
    }

    /// Whether the report is a comparison with rivals, or a point of one.
    fn is_comparison(&self) -> bool {
        !Comparison::of([&self.report]).is_empty()
    }

    /// The command that measured the report, or its source.
    fn command(&self) -> String {
        let words = at(&self.report, "command_line").and_then(Value::as_array);
        if let Some(words) = words {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            return words.join(" ");
        }
        let line = text(&self.report, "command_line");
        if line.is_empty() && self.is_comparison() {
            format!("terrane-peers all ({})", self.file)
        } else if line.is_empty() {
            format!("{} ({})", text(&self.report, "command"), self.file)
        } else {
            line.to_owned()
        }
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    /// Short name: what was run, on how many entries, and with how much memory.
    fn short_name(&self) -> String {
        if self.is_comparison() {
            return "rivals".to_owned();
        }
        let report = &self.report;
        let command = text(report, "command").trim_start_matches("bench ").trim_end_matches(" run");
        let entries = number(report, "workload.entries").or_else(|| number(report, "entries"));
        let entries = entries.map(|entries| format!(" {}", counted(entries)));
        let mode = text(report, "mode");
        let engine = text(report, "engine.engine");
        let engine = if engine.is_empty() || engine == "lsm" { "" } else { engine };
        let words = [command, engine, mode].map(str::trim);
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let memory = number(report, "memory.budget_ratio")
            .map_or(String::new(), |ratio| format!(", {} % memory", short(ratio * 100.0)));
        let absent = number(report, "workload.absent_ratio")
            .filter(|ratio| *ratio > 0.0)
            .map_or(String::new(), |ratio| format!(", {} % absent", short(ratio * 100.0)));
        format!("{}{}{memory}{absent}", words.join(" "), entries.unwrap_or_default())
    }
}

/// Bars of one figure, the first path that a report has.
fn bars(
    of: (&'static str, &'static str, &str, &str),
    inputs: &[Input],
    paths: &[&str],
) -> Result<View, Error> {
    let bars = inputs.iter().filter_map(|input| {
        let value = paths.iter().find_map(|path| number(&input.report, path))?;
        Some(Bar { label: input.name(), value, command: input.command() })
    });
    bar_view(of, bars.collect())
}

fn rates(inputs: &[Input]) -> Result<View, Error> {
    bars(
        (
            "rate",
            "Operations in a second",
            "Operations, or lookups, of the whole run.",
            "terrane bench utxo run",
        ),
        inputs,
        &["ops_per_s", "lookups_per_s", "commits_per_s"],
    )
}

fn card(inputs: &[Input]) -> View {
    let rows = inputs.iter().map(|input| {
        let report = &input.report;
        let host = |name: &str| text(report, &format!("host.{name}")).to_owned();
        let cores = number(report, "host.cores").map(|cores| format!("{cores} cores"));
        let iops =
            ["device.fio_read_iops", "fio_read_iops"].iter().find_map(|path| number(report, path));
        let iops = iops.map(|iops| format!("device {} reads/s", counted(iops)));
        let version = text(report, "terrane");
        let revision: String = text(report, "git_revision").chars().take(8).collect();
        let words = [
            host("cpu_model"),
            cores.unwrap_or_default(),
            host("kernel"),
            host("filesystem"),
            iops.unwrap_or_default(),
            format!("terrane {version} {revision}").trim().to_owned(),
            text(report, "started_at").to_owned(),
        ];
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let label = format!("{}: {}", input.name(), words.join(", "));
        Row { label, figure: text(report, "status").to_owned(), command: input.command() }
    });
    View {
        id: "card",
        title: "Machine, versions, commands",
        note: "Where each report comes from.".to_owned(),
        rows: rows.collect(),
        is_wide: true,
        ..View::default()
    }
}

fn reads_by_memory(inputs: &[Input]) -> Result<View, Error> {
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for input in inputs {
        let report = &input.report;
        // An imported log states its cache, beside entries of 142 bytes.
        let imported = || {
            let bytes = number(report, "cache_bytes").zip(number(report, "entries"));
            bytes.map(|(cache, entries)| cache / (entries * PUBLISHED_ENTRY_BYTES))
        };
        let ratio = number(report, "memory.budget_ratio").or_else(imported);
        let ratio = ratio.filter(|ratio| *ratio > 0.0);
        if let Some((ratio, io)) = ratio.zip(number(report, "io_per_get")) {
            let name =
                if text(report, "source") == "imported" { "imported log" } else { "measured" };
            let absent = number(report, "workload.absent_ratio").unwrap_or(0.0);
            let name = if absent > 0.0 {
                format!("{name}, {:.0} % absent", absent * 100.0)
            } else {
                name.to_owned()
            };
            add(&mut series, &name, Mark::Dot, (ratio * 100.0, io));
            rows.push(Row {
                label: format!("{name} at {} %", short(ratio * 100.0)),
                figure: format!("{io:.4}"),
                command: input.command(),
            });
            let predicted = number(report, "model.predicted_io_per_hit")
                .zip(number(report, "model.predicted_io_per_miss"));
            if let Some((hit, miss)) = predicted {
                let io = hit * (1.0 - absent) + miss * absent;
                add(&mut series, "model of each run", Mark::Ring, (ratio * 100.0, io));
                rows.push(Row {
                    label: format!("{name} at {} %, by the model", short(ratio * 100.0)),
                    figure: format!("{io:.4}"),
                    command: input.command(),
                });
            }
        }
        let predictions = at(report, "predictions").and_then(Value::as_array);
        for found in predictions.into_iter().flatten() {
            let point = number(found, "memory_ratio").zip(number(found, "predicted_io_per_hit"));
            if let Some((ratio, io)) = point {
                add(&mut series, "model, hits", Mark::Line, (ratio * 100.0, io));
                rows.push(Row {
                    label: format!("model, hits at {} %", short(ratio * 100.0)),
                    figure: format!("{io:.4}"),
                    command: format!("terrane bench model ({})", input.file),
                });
            }
        }
    }
    let (id, title) = ("reads", "Reads for each lookup by memory");
    let note = "Memory is a share of the bytes of all keys and values.";
    if series.is_empty() {
        return Ok(missing(id, title, note, "terrane bench kvget run --memory-budget 0.2%"));
    }
    for (keys, points) in PUBLISHED {
        for (megabytes, io) in points {
            let name = format!("Pebble 1.1.5, {} keys, published", counted(keys));
            let percent = megabytes * 1e6 / (keys * PUBLISHED_ENTRY_BYTES) * 100.0;
            add(&mut series, &name, Mark::Line, (percent, io));
        }
    }
    let x = Axis { name: "memory, % of the data", is_log: true, text: plain };
    let y = Axis { name: "reads for each lookup", is_log: false, text: plain };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    let note = format!(
        "{note} Published points are of bench_kvdb: its cache alone, with a page cache besides."
    );
    Ok(View { id, title, note, svg, key: key(&names), rows, ..View::default() })
}

/// Percentiles of a report of latencies, and their places: each further nine is one more.
const PERCENTILES: [(&str, f64, &str); 6] = [
    ("p50", 0.0, "p50"),
    ("p90", 1.0, "p90"),
    ("p99", 2.0, "p99"),
    ("p999", 3.0, "p99.9"),
    ("p9999", 4.0, "p99.99"),
    ("max", 5.0, "max"),
];

fn percentile(number: f64) -> String {
    let known = PERCENTILES.iter().find(|(_, place, _)| (place - number).abs() < 0.01);
    known.map_or(String::new(), |(_, _, label)| (*label).to_owned())
}

/// Draws percentiles of the given fields.
fn percentiles(
    (id, title, note, made_by): (&'static str, &'static str, &str, &str),
    unit: &'static str,
    found: &[(String, &Value, String)],
) -> Result<View, Error> {
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for (name, latency, command) in found {
        for (field, place, label) in PERCENTILES {
            if let Some(value) = number(latency, field).filter(|value| *value > 0.0) {
                add(&mut series, name, Mark::Line, (place, value));
                rows.push(Row {
                    label: format!("{name}, {label}"),
                    figure: short(value),
                    command: command.clone(),
                });
            }
        }
    }
    if series.is_empty() {
        return Ok(missing(id, title, note, made_by));
    }
    let x = Axis { name: "share of operations that are faster", is_log: false, text: percentile };
    let y = Axis { name: unit, is_log: true, text: plain };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, ..View::default() })
}

fn latencies(inputs: &[Input]) -> Result<View, Error> {
    let fields = [
        ("speed.latency_us.get", "calls"),
        ("lookup_latency_us", "lookups"),
        ("update_latency_us", "updates"),
        ("latency_us", ""),
    ];
    let found: Vec<(String, &Value, String)> = inputs
        .iter()
        .flat_map(|input| {
            fields.iter().filter_map(move |(path, what)| {
                let latency = at(&input.report, path)?;
                latency.get("p50")?;
                Some((
                    format!("{} {what}", input.name()).trim().to_owned(),
                    latency,
                    input.command(),
                ))
            })
        })
        .collect();
    let of = (
        "latency",
        "Latency",
        "Of a batch, by share of the operations, to p99.99 and the longest.",
        "terrane bench utxo run",
    );
    percentiles(of, "microseconds", &found)
}

fn blocks(inputs: &[Input]) -> Result<View, Error> {
    let mut found = Vec::new();
    for input in inputs {
        let phases = at(&input.report, "phases").and_then(Value::as_array);
        for phase in phases.into_iter().flatten() {
            let Some(latency) = phase.get("block_latency_ms") else { continue };
            let collecting = if phase["collecting"] == true { ", collecting" } else { "" };
            found.push((format!("{}{collecting}", input.name()), latency, input.command()));
        }
        if let Some(latency) = at(&input.report, "block_latency_ms") {
            found.push((input.name(), latency, input.command()));
        }
    }
    let of = (
        "blocks",
        "Blocks of a context",
        "Checkout, operations and commit of a block.",
        "terrane bench context",
    );
    percentiles(of, "milliseconds", &found)
}

/// A series over the time of a run: the name of its view, its figure of a window, and a whole run.
struct Timeline {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    axis: &'static str,
    text: fn(f64) -> String,
    /// Figure of a window, the first path that it has.
    window: &'static [&'static str],
    /// Figure of the whole run, likewise.
    run: &'static [&'static str],
}

const TIMELINES: [Timeline; 3] = [
    Timeline {
        id: "time",
        title: "Rate over time",
        note: "Operations, or lookups, in a second, window by window.",
        axis: "operations in a second",
        text: counted,
        window: &["ops_per_s", "lookups_per_s"],
        run: &["ops_per_s", "lookups_per_s"],
    },
    Timeline {
        id: "debt",
        title: "Compaction debt over time",
        note: "MiB that compactions under way have still to read, at the end of each window. A \
               debt that only grows would end in a stall.",
        axis: "MiB to compact",
        text: plain,
        window: &["merge_debt_bytes/1048576"],
        run: &["merge_debt_after_bytes/1048576"],
    },
    Timeline {
        id: "size",
        title: "Size over time",
        note: "MiB of runs on disk at the end of each window, inputs of compactions included.",
        axis: "MiB on disk",
        text: plain,
        window: &["disk_bytes/1048576"],
        run: &["disk_bytes/1048576"],
    },
];

fn over_time(inputs: &[Input], timeline: &Timeline) -> Result<View, Error> {
    let &Timeline { id, title, note, axis, text, window: of_window, run } = timeline;
    let first = |value: &Value, paths: &[&str]| paths.iter().find_map(|path| number(value, path));
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for input in inputs {
        // Windows stand in a file of their own, or in the report.
        let inside = at(&input.report, "windows").and_then(Value::as_array);
        let windows = inside.filter(|_| input.windows.is_empty()).unwrap_or(&input.windows);
        let mut second = 0.0;
        let mut points = 0;
        for window in windows {
            second = match (number(window, "end_s"), number(window, "wall_s")) {
                (Some(end_s), _) => end_s,
                (None, Some(wall_s)) => second + wall_s,
                (None, None) => continue,
            };
            if let Some(figure) = first(window, of_window) {
                add(&mut series, &input.name(), Mark::Line, (second, figure));
                points += 1;
            }
        }
        if points > 0 {
            rows.push(Row {
                label: format!("{}, {points} windows", input.name()),
                figure: first(&input.report, run).map_or(String::new(), text),
                command: input.command(),
            });
        }
    }

    if series.is_empty() {
        return Ok(missing(id, title, note, "terrane bench mixed --json"));
    }
    let x = Axis { name: "seconds", is_log: false, text: plain };
    let y = Axis { name: axis, is_log: false, text };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, ..View::default() })
}

fn amplification(inputs: &[Input]) -> Result<View, Error> {
    let paths = [
        ("reads", &["io_per_get", "lookup_io_per_op"][..]),
        ("writes", &["write_amplification"]),
        ("space", &["engine.space_amplification", "space_amplification"]),
    ];
    let bars = inputs.iter().flat_map(|input| {
        paths.iter().filter_map(move |(what, paths)| {
            let value = paths.iter().find_map(|path| number(&input.report, path))?;
            Some(Bar { label: format!("{} {what}", input.name()), value, command: input.command() })
        })
    });
    let note = "Reads of a page for each lookup, bytes written for each byte of updates, bytes on \
                disk for each byte of data. 1 is the floor of each without a cache.";
    bar_view(("amplification", "Amplification", note, "terrane bench utxo run"), bars.collect())
}

fn device(inputs: &[Input]) -> Result<View, Error> {
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for input in inputs {
        let depths = at(&input.report, "depths").and_then(Value::as_array);
        for depth in depths.into_iter().flatten() {
            // A point with a thread on each core has another meaning of its depth.
            if number(depth, "threads").is_some_and(|threads| threads > 1.0) {
                continue;
            }
            if let Some((at, rate)) = number(depth, "depth").zip(number(depth, "reads_per_s")) {
                add(&mut series, &input.name(), Mark::Line, (at, rate));
                rows.push(Row {
                    label: format!("{at} in flight"),
                    figure: format!("{}/s", counted(rate)),
                    command: input.command(),
                });
            }
        }
    }
    let (id, title, note) =
        ("device", "The device alone", "Random 4 KiB reads in a second by reads in flight.");
    if series.is_empty() {
        return Ok(missing(id, title, note, "terrane bench disk"));
    }
    let x = Axis { name: "reads in flight", is_log: true, text: plain };
    let y = Axis { name: "reads in a second", is_log: false, text: counted };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, ..View::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(reports: Vec<Value>) -> Page {
        let inputs = reports.into_iter().map(|report| Input::new("a.json", report, Vec::new()));
        Page::of("A title", inputs.collect()).unwrap()
    }

    fn view<'a>(page: &'a Page, id: &str) -> &'a View {
        page.views.iter().find(|view| view.id == id).unwrap()
    }

    #[test]
    fn every_figure_has_its_command_and_views_without_figures_say_how_to_make_them() {
        let report = json!({"command": "bench utxo run",
            "command_line": "terrane bench utxo run --x",
            "mode": "sequential", "entries": 1000, "ops_per_s": 50.0, "eta": 0.5,
            "update_latency_us": {"p50": 1.0, "p99": 10.0, "max": 2000.0}});
        let page = page(vec![report]);
        let rows: Vec<&Row> = page.views.iter().flat_map(|view| &view.rows).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| row.command.ends_with("--x")));
        assert_eq!(view(&page, "stalls").rows[0].figure, "2");
        assert_eq!(view(&page, "eta").rows[0].figure, "0.5");
        let reads = view(&page, "reads");
        assert!(reads.svg.is_none() && reads.note.contains("terrane bench kvget run"));
        assert_eq!(page.plots(), 4);
    }

    #[test]
    fn reports_inside_of_reports_are_taken_apart_and_named_apart() {
        let one = json!({"command": "bench kvget run", "workload": {"entries": 10_000_000},
            "memory": {"budget_ratio": 0.002}, "io_per_get": 1.01});
        let sweep =
            json!({"command": "bench sweep", "results": [{"report": one}, {"report": one}]});
        let page = page(vec![sweep]);
        let card = &view(&page, "card").rows;
        assert!(card[0].label.starts_with("kvget 10M, 0.2 % memory:"), "{card:?}");
        assert!(card[1].label.starts_with("kvget 10M, 0.2 % memory (2):"), "{card:?}");
        assert_eq!(view(&page, "reads").rows.len(), 2);
    }

    /// Text of a report can neither end an element nor begin one.
    #[test]
    fn hostile_text_stays_text() {
        let evil = "</script><script>alert(1)</script>";
        let report = json!({"command": evil, "command_line": evil, "ops_per_s": 1e300,
            "latency_us": {"p50": -1.0, "max": "x"}, "phases": 7, "results": [evil],
            "memory": {"budget_ratio": 0.5}, "io_per_get": 0.0});
        let html = page(vec![report, json!(null), json!([1])]).html().unwrap();
        assert!(!html.contains("<script>alert"), "{html}");
        assert_eq!(html.matches("<script").count(), 1);
    }

    #[test]
    fn numbers_have_few_digits() {
        let shown = [0.0, 0.12345, 1.239, 12.0, 54_321.6].map(short);
        assert_eq!(shown, ["0", "0.1235", "1.24", "12", "54322"]);
        assert_eq!([999.0, 1e4, 2.5e6, 2e10].map(counted), ["999", "10k", "2.5M", "20G"]);
    }
}

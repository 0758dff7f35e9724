//! A page of reports: one self-contained HTML file with SVG plots, raw data, and no network.
//!
//! A view shows the figures that the reports have for it, each with the command that measured it. A
//! view without figures says which command makes them. Colours follow the reader's preference for
//! light or dark; the plots take the colour of the text. [`Page::of`] takes any report of a
//! benchmark: fields are found by name, and reports inside of reports (sweeps, imports) are taken
//! apart.

use askama::Template;
use plotters::prelude::{
    ChartBuilder, Circle, Color, EmptyElement, IntoDrawingArea, LineSeries, PointSeries, RGBColor,
    Rectangle, SVGBackend,
};
use serde_json::{Value, json};

/// Pixels of a plot, which the page scales.
const SIZE: (u32, u32) = (560, 340);

/// Size of the text of a plot: readable still where a phone shows a plot at two thirds.
const TEXT_PX: u32 = 15;

/// Colours of series, which stand out on white and on black.
const COLORS: [(u8, u8, u8); 8] = [
    (59, 130, 196),
    (217, 115, 26),
    (42, 157, 92),
    (196, 78, 138),
    (139, 111, 201),
    (150, 140, 50),
    (60, 160, 170),
    (140, 110, 90),
];

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

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plot cannot be drawn.
    #[error("a plot: {0}")]
    Plot(String),
    /// The template failed.
    #[error("the page: {0}")]
    Page(#[from] askama::Error),
}

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

/// Figures of a page.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    label: String,
    figure: String,
    command: String,
}

/// Name of a series and its colour.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    name: String,
    color: String,
}

/// Part of a page.
#[derive(Debug, Clone, Default)]
struct View {
    id: &'static str,
    title: &'static str,
    note: String,
    svg: Option<String>,
    key: Vec<Key>,
    rows: Vec<Row>,
    is_wide: bool,
}

/// A page of reports.
#[derive(Debug, Template)]
#[template(path = "report.html")]
pub struct Page {
    title: String,
    subtitle: String,
    views: Vec<View>,
    data: String,
}

/// A series of points: connected, or each by itself.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    is_line: bool,
}

/// An axis: its name, whether it is logarithmic, and the text of a value.
struct Axis {
    name: &'static str,
    is_log: bool,
    text: fn(f64) -> String,
}

/// A bar with its name.
struct Bar {
    label: String,
    value: f64,
    command: String,
}

impl Page {
    /// Returns the page of some reports.
    ///
    /// # Errors
    /// [`Error`].
    pub fn of(title: &str, inputs: Vec<Input>) -> Result<Self, Error> {
        let inputs = named(inputs.into_iter().flat_map(flat).collect());
        let views = vec![
            card(&inputs),
            reads_by_memory(&inputs)?,
            latencies(&inputs)?,
            over_time(&inputs)?,
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
        ];
        let raw = |input: &Input| {
            let Input { file, report, windows, .. } = input;
            json!({"file": file, "report": report, "windows": windows})
        };
        let data = Value::Array(inputs.iter().map(raw).collect());
        Ok(Self {
            title: title.to_owned(),
            subtitle: format!(
                "{} reports. The raw data are in this file, below the plots.",
                inputs.len()
            ),
            views,
            // No text of a report may end the element that holds the data.
            data: data.to_string().replace('<', "\\u003c"),
        })
    }
}

impl Page {
    /// Returns the HTML.
    ///
    /// # Errors
    /// [`Error::Page`].
    pub fn html(&self) -> Result<String, Error> {
        Ok(self.render()?)
    }

    /// Returns how many plots the page has.
    #[must_use]
    pub fn plots(&self) -> usize {
        self.views.iter().filter(|view| view.svg.is_some()).count()
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

fn at<'a>(report: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(report, |value, name| value.get(name))
}

/// Returns a figure by its path; `path/1000` is a thousandth of it.
fn number(report: &Value, path: &str) -> Option<f64> {
    let (path, divisor) = path.split_once('/').unwrap_or((path, "1"));
    let divisor: f64 = divisor.parse().ok()?;
    at(report, path)?.as_f64().filter(|number| number.is_finite()).map(|number| number / divisor)
}

fn text<'a>(report: &'a Value, path: &str) -> &'a str {
    at(report, path).and_then(Value::as_str).unwrap_or_default()
}

impl Input {
    /// Returns the input of a file.
    #[must_use]
    pub fn new(file: &str, report: Value, windows: Vec<Value>) -> Self {
        Self { file: file.to_owned(), name: String::new(), report, windows }
    }

    /// The command that measured the report, or its source.
    fn command(&self) -> String {
        let line = text(&self.report, "command_line");
        if line.is_empty() {
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

/// A count with its unit: 10M.
fn counted(number: f64) -> String {
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if number >= unit {
            return format!("{}{name}", short(number / unit));
        }
    }
    short(number)
}

/// A number with three digits, or all digits before the point.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn plain(number: f64) -> String {
    short(number)
}

/// Text of a logarithm on an axis of so many powers of ten: of whole ones alone if there are many.
fn of_log(number: f64, powers: f64, text: fn(f64) -> String) -> String {
    let is_whole = (number - number.round()).abs() < 1e-6;
    if is_whole || powers < 2.5 { text(10_f64.powf(number)) } else { String::new() }
}

fn color(number: usize) -> RGBColor {
    let (red, green, blue) = COLORS[number % COLORS.len()];
    RGBColor(red, green, blue)
}

fn key(names: &[String]) -> Vec<Key> {
    let keys = names.iter().enumerate().map(|(number, name)| {
        let RGBColor(red, green, blue) = color(number);
        Key { name: name.clone(), color: format!("rgb({red},{green},{blue})") }
    });
    keys.collect()
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Plot(error.to_string())
}

/// Returns the bounds of an axis that holds all numbers: with a margin, or whole powers of ten.
fn bounds(numbers: impl Iterator<Item = f64> + Clone, is_log: bool) -> (f64, f64) {
    let least = numbers.clone().fold(f64::MAX, f64::min);
    let most = numbers.fold(f64::MIN, f64::max);
    if is_log {
        (least.floor(), if most.ceil() > least.floor() { most.ceil() } else { least.floor() + 1.0 })
    } else {
        (least.min(0.0), if most > 0.0 { most * 1.08 } else { 1.0 })
    }
}

/// Makes an SVG take the colours of the page.
fn themed(svg: &str, title: &str) -> String {
    let svg = svg.replace("#000000", "currentColor");
    let role = format!("<svg role=\"img\" aria-label=\"{title}\" ");
    svg.replacen("<svg ", &role, 1)
}

/// Draws series of points.
fn plot(title: &str, axes: [&Axis; 2], series: &[Series]) -> Result<String, Error> {
    let [x, y] = axes;
    let moved =
        |axis: &Axis, number: f64| if axis.is_log { number.max(1e-9).log10() } else { number };
    let series: Vec<(bool, Vec<(f64, f64)>)> = series
        .iter()
        .map(|series| {
            let points = series.points.iter().map(|&(a, b)| (moved(x, a), moved(y, b)));
            (series.is_line, points.collect())
        })
        .collect();
    let all = series.iter().flat_map(|(_, points)| points.iter());
    let (x0, x1) = bounds(all.clone().map(|point| point.0), x.is_log);
    let (y0, y1) = bounds(all.map(|point| point.1), y.is_log);

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(18)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x0..x1, y0..y1)
            .map_err(failed)?;
        let label = |axis: &Axis, (from, to): (f64, f64), number: f64| {
            if axis.is_log { of_log(number, to - from, axis.text) } else { (axis.text)(number) }
        };
        let faint = RGBColor(128, 128, 128).mix(0.25);
        chart
            .configure_mesh()
            .x_desc(x.name)
            .y_desc(y.name)
            .label_style(("sans-serif", TEXT_PX))
            .axis_desc_style(("sans-serif", TEXT_PX))
            .light_line_style(RGBColor(128, 128, 128).mix(0.0))
            .bold_line_style(faint)
            .x_labels(7)
            .y_labels(7)
            .x_label_formatter(&|number| label(x, (x0, x1), *number))
            .y_label_formatter(&|number| label(y, (y0, y1), *number))
            .draw()
            .map_err(failed)?;
        for (number, (is_line, points)) in series.into_iter().enumerate() {
            let color = color(number);
            if is_line {
                chart
                    .draw_series(LineSeries::new(points, color.stroke_width(2)))
                    .map_err(failed)?;
            } else {
                let dot = |at: (f64, f64), size, style| {
                    EmptyElement::at(at) + Circle::new((0, 0), size, style)
                };
                chart
                    .draw_series(PointSeries::of_element(points, 4, color.filled(), &dot))
                    .map_err(failed)?;
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

/// Draws bars, the first one at the top.
fn bar_plot(title: &str, values: &[f64]) -> Result<String, Error> {
    let count = values.len();
    let most = bounds(values.iter().copied(), false).1;
    let mut svg = String::new();
    {
        let height = 60 + 30 * count as u32;
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(18)
            .x_label_area_size(30)
            .y_label_area_size(28)
            .build_cartesian_2d(0.0..most, 0.0..count as f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .label_style(("sans-serif", TEXT_PX))
            .light_line_style(RGBColor(128, 128, 128).mix(0.0))
            .bold_line_style(RGBColor(128, 128, 128).mix(0.25))
            .x_labels(6)
            .x_label_formatter(&|number| counted(*number))
            .draw()
            .map_err(failed)?;
        let bars = values.iter().enumerate().map(|(number, &value)| {
            let top = (count - number) as f64;
            Rectangle::new([(0.0, top - 0.82), (value, top - 0.18)], color(number).filled())
        });
        chart.draw_series(bars).map_err(failed)?;
        root.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

/// Returns the view of bars, or one that says what makes them.
fn bar_view(
    (id, title, note, made_by): (&'static str, &'static str, &str, &str),
    bars: Vec<Bar>,
) -> Result<View, Error> {
    if bars.is_empty() {
        return Ok(missing(id, title, note, made_by));
    }
    let values: Vec<f64> = bars.iter().map(|bar| bar.value).collect();
    let names: Vec<String> =
        bars.iter().map(|bar| format!("{}: {}", bar.label, short(bar.value))).collect();
    let rows = bars
        .into_iter()
        .map(|bar| Row { label: bar.label, figure: short(bar.value), command: bar.command })
        .collect();
    let svg = Some(bar_plot(title, &values)?);
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, is_wide: false })
}

fn missing(id: &'static str, title: &'static str, note: &str, made_by: &str) -> View {
    let note = format!("{note} No report here has it; {made_by} makes one.");
    View { id, title, note, ..View::default() }
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

/// Adds a point to the series of a name.
fn add(series: &mut Vec<Series>, name: &str, is_line: bool, point: (f64, f64)) {
    match series.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => series.push(Series { name: name.to_owned(), points: vec![point], is_line }),
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
            add(&mut series, &name, false, (ratio * 100.0, io));
            rows.push(Row {
                label: format!("{name} at {} %", short(ratio * 100.0)),
                figure: format!("{io:.4}"),
                command: input.command(),
            });
        }
        let predictions = at(report, "predictions").and_then(Value::as_array);
        for found in predictions.into_iter().flatten() {
            let point = number(found, "memory_ratio").zip(number(found, "predicted_io_per_hit"));
            if let Some((ratio, io)) = point {
                add(&mut series, "model, hits", true, (ratio * 100.0, io));
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
            add(&mut series, &name, true, (percent, io));
        }
    }
    let x = Axis { name: "memory, % of the data", is_log: true, text: plain };
    let y = Axis { name: "reads for each lookup", is_log: false, text: plain };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    let note = format!(
        "{note} Published points are of bench_kvdb: its cache alone, with a page cache besides."
    );
    Ok(View { id, title, note, svg, key: key(&names), rows, is_wide: false })
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
                add(&mut series, name, true, (place, value));
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
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, is_wide: false })
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

fn over_time(inputs: &[Input]) -> Result<View, Error> {
    let mut series = Vec::new();
    let mut rows = Vec::new();
    for input in inputs {
        let mut second = 0.0;
        for window in &input.windows {
            let Some((wall_s, rate)) =
                number(window, "wall_s").zip(number(window, "lookups_per_s"))
            else {
                continue;
            };
            second += wall_s;
            add(&mut series, &input.name(), true, (second, rate));
        }
        if !input.windows.is_empty() {
            rows.push(Row {
                label: format!("{}, {} windows", input.name(), input.windows.len()),
                figure: number(&input.report, "lookups_per_s")
                    .map_or(String::new(), |rate| format!("{}/s", counted(rate))),
                command: input.command(),
            });
        }
    }
    let (id, title, note) = ("time", "Rate over time", "Lookups in a second, window by window.");
    if series.is_empty() {
        return Ok(missing(id, title, note, "terrane bench kvget run --jsonl windows.jsonl"));
    }
    let x = Axis { name: "seconds", is_log: false, text: plain };
    let y = Axis { name: "lookups in a second", is_log: false, text: counted };
    let svg = Some(plot(title, [&x, &y], &series)?);
    let names: Vec<String> = series.into_iter().map(|series| series.name).collect();
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, is_wide: false })
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
                add(&mut series, &input.name(), true, (at, rate));
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
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, is_wide: false })
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

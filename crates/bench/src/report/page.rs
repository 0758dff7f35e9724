//! Parts of a page: its frame, plots, tables of figures with their commands, numbers as text.
//!
//! A page is one self-contained HTML file with SVG plots, raw data, and no network. Colours follow
//! the reader's preference for light or dark; the plots take the colour of the text. Pages of
//! benchmarks ([`html`](super::html)) and of a store ([`store_page`](super::store_page)) are made
//! of these parts.

use askama::Template;
use plotters::prelude::{
    ChartBuilder, Circle, Color, EmptyElement, IntoDrawingArea, IntoFont, LineSeries, PointSeries,
    RGBColor, Rectangle, SVGBackend, Text, TextStyle,
};
use serde_json::Value;

/// Pixels of a plot, which the page scales.
const SIZE: (u32, u32) = (560, 340);

/// Size of the text of a plot: readable still where a phone shows a plot at two thirds.
const TEXT_PX: u32 = 15;

/// Colours of series, which stand out on white and on black.
const COLORS: [(u8, u8, u8); 12] = [
    (59, 130, 196),
    (217, 115, 26),
    (42, 157, 92),
    (196, 78, 138),
    (139, 111, 201),
    (150, 140, 50),
    (60, 160, 170),
    (140, 110, 90),
    (200, 60, 50),
    (110, 120, 130),
    (120, 175, 60),
    (90, 90, 190),
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

/// Figures of a page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) figure: String,
    pub(super) command: String,
}

/// Name of a series and its colour.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Key {
    name: String,
    color: String,
}

/// Part of a page.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) note: String,
    pub(super) svg: Option<String>,
    pub(super) key: Vec<Key>,
    pub(super) tables: Vec<Table>,
    pub(super) rows: Vec<Row>,
    pub(super) is_wide: bool,
}

/// Table of figures: the first column names the row, the others are numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Table {
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A link to a page beside this one.
#[derive(Debug, Clone)]
struct Link {
    href: String,
    text: String,
}

/// A page: views, and the data that they were made from.
#[derive(Debug, Template)]
#[template(path = "report.html")]
pub struct Page {
    title: String,
    subtitle: String,
    links: Vec<Link>,
    pub(super) views: Vec<View>,
    data: String,
}

/// A series of points: connected, or each by itself.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) mark: Mark,
}

/// Form of the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// A line through them.
    Line,
    /// A dot each.
    Dot,
    /// A ring each, inside of which a dot of another series is seen.
    Ring,
}

/// An axis: its name, whether it is logarithmic, and the text of a value.
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) is_log: bool,
    pub(super) text: fn(f64) -> String,
}

/// A bar with its name.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    pub(super) command: String,
}

impl Page {
    pub(super) fn new(title: &str, subtitle: String, views: Vec<View>, data: &Value) -> Self {
        Self {
            title: title.to_owned(),
            subtitle,
            links: Vec::new(),
            views,
            // No text of a report may end the element that holds the data.
            data: data.to_string().replace('<', "\\u003c"),
        }
    }

    /// Adds a link to a page beside this one.
    #[must_use]
    pub fn link(mut self, href: &str, text: &str) -> Self {
        self.links.push(Link { href: href.to_owned(), text: text.to_owned() });
        self
    }

    /// Leaves out the views without figures.
    #[must_use]
    pub fn without_empty_views(mut self) -> Self {
        self.views
            .retain(|view| view.svg.is_some() || !view.tables.is_empty() || !view.rows.is_empty());
        self
    }

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

pub(super) fn at<'a>(report: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(report, |value, name| value.get(name))
}

/// Returns a figure by its path; `path/1000` is a thousandth of it.
pub(super) fn number(report: &Value, path: &str) -> Option<f64> {
    let (path, divisor) = path.split_once('/').unwrap_or((path, "1"));
    let divisor: f64 = divisor.parse().ok()?;
    at(report, path)?.as_f64().filter(|number| number.is_finite()).map(|number| number / divisor)
}

pub(super) fn text<'a>(report: &'a Value, path: &str) -> &'a str {
    at(report, path).and_then(Value::as_str).unwrap_or_default()
}

/// A count with its unit: 10M.
pub(super) fn counted(number: f64) -> String {
    for (unit, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if number >= unit {
            return format!("{}{name}", short(number / unit));
        }
    }
    short(number)
}

/// A number with three digits, or all digits before the point.
pub(super) fn short(number: f64) -> String {
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

pub(super) fn plain(number: f64) -> String {
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

pub(super) fn key(names: &[String]) -> Vec<Key> {
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
pub(super) fn plot(title: &str, axes: [&Axis; 2], series: &[Series]) -> Result<String, Error> {
    let [x, y] = axes;
    let moved =
        |axis: &Axis, number: f64| if axis.is_log { number.max(1e-9).log10() } else { number };
    let series: Vec<(Mark, Vec<(f64, f64)>)> = series
        .iter()
        .map(|series| {
            let points = series.points.iter().map(|&(a, b)| (moved(x, a), moved(y, b)));
            (series.mark, points.collect())
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
        for (number, (mark, points)) in series.into_iter().enumerate() {
            let color = color(number);
            let (size_px, style) = match mark {
                Mark::Line => {
                    let line = LineSeries::new(points, color.stroke_width(2));
                    chart.draw_series(line).map_err(failed)?;
                    continue;
                }
                Mark::Dot => (4, color.filled()),
                Mark::Ring => (7, color.stroke_width(2)),
            };
            let circle = |at: (f64, f64), size, style| {
                EmptyElement::at(at) + Circle::new((0, 0), size, style)
            };
            let marks = PointSeries::of_element(points, size_px, style, &circle);
            chart.draw_series(marks).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

/// Draws bars, the first one at the top.
pub(super) fn bar_plot(title: &str, values: &[f64]) -> Result<String, Error> {
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
pub(super) fn bar_view(
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
    Ok(View { id, title, note: note.to_owned(), svg, key: key(&names), rows, ..View::default() })
}

pub(super) fn missing(id: &'static str, title: &'static str, note: &str, made_by: &str) -> View {
    let note = format!("{note} No report here has it; {made_by} makes one.");
    View { id, title, note, ..View::default() }
}

/// Adds a point to the series of a name.
pub(super) fn add(series: &mut Vec<Series>, name: &str, mark: Mark, point: (f64, f64)) {
    match series.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => series.push(Series { name: name.to_owned(), points: vec![point], mark }),
    }
}

/// Three figures of one thing, each 1 or so at best.
pub(super) struct Triple {
    pub(super) label: String,
    pub(super) values: [f64; 3],
}

/// Least power of ten that a triangle shows; smaller figures are drawn there.
const TRIANGLE_LEAST: f64 = -1.0;

/// Draws a triangle for each triple. Corners are logarithmic: the smaller the triangle, the better.
pub(super) fn triangle_plot(
    title: &str,
    corners: [&str; 3],
    triples: &[Triple],
) -> Result<String, Error> {
    let power = |value: f64| value.max(1e-9).log10().max(TRIANGLE_LEAST) - TRIANGLE_LEAST;
    let values = triples.iter().flat_map(|triple| triple.values);
    let most = values.map(power).fold(1.0, f64::max).ceil();
    // Corners stand at 90, 210 and 330 degrees.
    let corner = |number: usize, share: f64| {
        let degrees = 90.0 + 120.0 * number as f64;
        let (sine, cosine) = degrees.to_radians().sin_cos();
        (share * cosine, share * sine)
    };
    let outline = |shares: [f64; 3]| [0, 1, 2, 0].map(|number| corner(number, shares[number]));

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (SIZE.0, 420)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .build_cartesian_2d(-1.4..1.4, -0.85..1.25)
            .map_err(failed)?;
        let faint = RGBColor(128, 128, 128).mix(0.35);
        let style = TextStyle::from(("sans-serif", TEXT_PX).into_font());
        for step in 1..=most as usize {
            let share = step as f64 / most;
            let grid = LineSeries::new(outline([share; 3]), faint);
            chart.draw_series(grid).map_err(failed)?;
            let power = 10_f64.powf(step as f64 + TRIANGLE_LEAST);
            let at = corner(0, share);
            let label = Text::new(short(power), (at.0 + 0.02, at.1), style.clone());
            chart.draw_series([label]).map_err(failed)?;
        }
        for (number, name) in corners.iter().enumerate() {
            let from = LineSeries::new([(0.0, 0.0), corner(number, 1.0)], faint);
            chart.draw_series(from).map_err(failed)?;
            // Left of the corner at the left, below those at the bottom.
            let at = corner(number, 1.06);
            let at =
                [(at.0 - 0.2, at.1 + 0.14), (at.0 - 0.3, at.1 - 0.06), (at.0 - 0.3, at.1 - 0.06)]
                    [number];
            let label = Text::new((*name).to_owned(), at, style.clone());
            chart.draw_series([label]).map_err(failed)?;
        }
        for (number, triple) in triples.iter().enumerate() {
            let color = color(number);
            let points = outline(triple.values.map(|value| power(value) / most));
            chart.draw_series(LineSeries::new(points, color.stroke_width(2))).map_err(failed)?;
            let dots = points.map(|at| Circle::new(at, 3, color.filled()));
            chart.draw_series(dots).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

/// A row of a plot of ratios: its name, and the ratio of each series that has one.
pub(super) struct RatioRow {
    pub(super) label: String,
    pub(super) ratios: Vec<Option<f64>>,
}

/// Draws dots on a logarithmic axis of ratios, a row for each thing that is compared. The plot
/// names its series and follows the reader's colours by itself, since a document may show it alone.
pub(super) fn ratio_plot(
    title: &str,
    axis: &str,
    names: &[String],
    rows: &[RatioRow],
) -> Result<String, Error> {
    let all = rows.iter().flat_map(|row| row.ratios.iter().flatten());
    let logs = all.map(|ratio| ratio.max(1e-9).log10()).chain([0.0]);
    let least = logs.clone().fold(f64::MAX, f64::min) - 0.1;
    let most = logs.fold(f64::MIN, f64::max) + 0.1;
    let count = rows.len();
    let width: i32 = 760;

    // Places of the names in the legend, which is as many lines high as the names need.
    let (mut left, mut middle) = (12, 16);
    let places: Vec<(i32, i32)> = names
        .iter()
        .map(|name| {
            let name_px = 34 + name.chars().map(|_| 9).sum::<i32>();
            if left + name_px > width && left > 12 {
                (left, middle) = (12, middle + 22);
            }
            let place = (left, middle);
            left += name_px;
            place
        })
        .collect();
    let legend_px = middle.cast_unsigned() + 18;
    let size = (width.cast_unsigned(), legend_px + 60 + 44 * count as u32);

    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let style = TextStyle::from(("sans-serif", TEXT_PX).into_font());
        for (number, (name, (left, middle))) in names.iter().zip(places).enumerate() {
            root.draw(&Circle::new((left, middle), 5, color(number).filled())).map_err(failed)?;
            let text = Text::new(name.clone(), (left + 10, middle - 7), style.clone());
            root.draw(&text).map_err(failed)?;
        }

        let (_, below) = root.split_vertically(legend_px);
        let mut chart = ChartBuilder::on(&below)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(42)
            .y_label_area_size(190)
            .build_cartesian_2d(least..most, 0.0..count as f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc(axis)
            .label_style(("sans-serif", TEXT_PX))
            .axis_desc_style(("sans-serif", TEXT_PX))
            .light_line_style(RGBColor(128, 128, 128).mix(0.0))
            .bold_line_style(RGBColor(128, 128, 128).mix(0.25))
            .x_labels(7)
            .x_label_formatter(&|log| short(10_f64.powf(*log)))
            .draw()
            .map_err(failed)?;
        let line = RGBColor(128, 128, 128);
        let one = LineSeries::new([(0.0, 0.0), (0.0, count as f64)], line.stroke_width(2));
        chart.draw_series(one).map_err(failed)?;
        for (number, row) in rows.iter().enumerate() {
            let middle = (count - number) as f64 - 0.5;
            let from = [(least, middle), (most, middle)];
            chart.draw_series(LineSeries::new(from, line.mix(0.25))).map_err(failed)?;
            let top = i32::try_from(8 + 44 * number + 16).unwrap_or(i32::MAX);
            below.draw(&Text::new(row.label.clone(), (12, top), style.clone())).map_err(failed)?;
            let ratios = row.ratios.iter().enumerate();
            let dots = ratios.filter_map(|(series, ratio)| {
                let log = (*ratio)?.max(1e-9).log10();
                Some(Circle::new((log, middle), 6, color(series).filled()))
            });
            chart.draw_series(dots).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    let style =
        "<style>svg{color:#1c1e21}@media(prefers-color-scheme:dark){svg{color:#e6e9ec}}</style>";
    let svg = themed(&svg, title);
    let end = svg.find('>').map_or(0, |end| end + 1);
    Ok([&svg[..end], style, &svg[end..]].concat())
}

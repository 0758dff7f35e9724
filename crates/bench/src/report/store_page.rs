//! A page of a store of tables: levels, runs, sizes, filters, merge debt, memory, versions,
//! snapshots.
//!
//! The caller inspects the store and passes the shapes of its tables and snapshots;
//! [`page`](page()) draws them in the style of the pages of benchmarks.

use serde_json::Value;
use terrane::lsm::PAGE_SIZE;
use terrane::lsm::inspect::{RunInfo, SnapshotInfo};

use crate::report::page::{
    Axis, Bar, Error, Mark, Page, Row, Series, Table, View, add, bar_view, key, plain, plot, short,
};
use crate::report::text::grouped;

/// Bars of one view at most: the greatest are drawn, the tables hold all.
const BARS_MAX: usize = 40;

/// Bytes of a MiB.
const MIB: f64 = (1 << 20) as f64;

/// Runs of a table or of a snapshot.
#[derive(Debug, Clone)]
pub struct Shape<'a> {
    /// Name, with the word for its kind.
    pub name: String,
    /// Runs by level, and the configuration.
    pub info: &'a SnapshotInfo,
}

/// List of a page, such as that of all versions.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// Name of the list.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

/// Description of a store for its page.
#[derive(Debug, Clone)]
pub struct Description<'a> {
    /// Title of the page.
    pub title: String,
    /// Figures of the whole store, by name.
    pub facts: Vec<(&'static str, String)>,
    /// Tables first, then snapshots.
    pub shapes: Vec<Shape<'a>>,
    /// Versions, snapshots, segments of the log.
    pub lists: Vec<List>,
    /// Command that makes this page.
    pub command: String,
    /// Report that stands in the page as raw data.
    pub data: Value,
}

/// Returns the page of a store.
///
/// # Errors
/// [`Error`].
pub fn page(store: &Description<'_>) -> Result<Page, Error> {
    let views = vec![
        facts(store),
        level_sizes(store)?,
        run_sizes(store)?,
        filters(store)?,
        debts(store)?,
        memory(store)?,
        lists(store),
        runs(store),
    ];
    let made = Page::new(
        &store.title,
        format!("Made by `{}`. The raw data are in this file, below the plots.", store.command),
        views,
        &store.data,
    );
    Ok(made.without_empty_views())
}

/// Runs of a shape with the names of their levels, newest first.
fn levelled(info: &SnapshotInfo) -> Vec<(String, &RunInfo, bool)> {
    let mut runs: Vec<(String, &RunInfo, bool)> = Vec::new();
    runs.extend(info.buffer.iter().map(|run| ("memtable".to_owned(), run, false)));
    runs.extend(info.flushed.iter().map(|run| ("flush".to_owned(), run, false)));
    for (number, level) in (1..).zip(&info.levels) {
        let inputs = level.merge.map_or(0..0, |m| m.slices..m.slices + m.input_runs);
        let of_level = (0..).zip(&level.runs);
        let name = format!("level {number}");
        runs.extend(of_level.map(|(at, run)| (name.clone(), run, inputs.contains(&at))));
    }
    runs.extend(info.union.iter().map(|run| ("union".to_owned(), run, false)));
    runs
}

/// Levels of a shape with their runs, in the order of [`levelled`].
fn by_level(info: &SnapshotInfo) -> Vec<(String, Vec<&RunInfo>)> {
    let mut levels: Vec<(String, Vec<&RunInfo>)> = Vec::new();
    for (level, run, _) in levelled(info) {
        match levels.last_mut() {
            Some((name, runs)) if *name == level => runs.push(run),
            _ => levels.push((level, vec![run])),
        }
    }
    levels
}

/// The greatest bars, in their order.
fn greatest(mut bars: Vec<Bar>) -> Vec<Bar> {
    if bars.len() > BARS_MAX {
        let mut values: Vec<f64> = bars.iter().map(|bar| bar.value).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        let least = values[BARS_MAX - 1];
        bars.retain(|bar| bar.value >= least);
        bars.truncate(BARS_MAX);
    }
    bars
}

/// Bars of a figure of each level, in the words of `figure`.
fn level_bars(store: &Description<'_>, figure: impl Fn(&[&RunInfo]) -> Option<f64>) -> Vec<Bar> {
    let shapes = store.shapes.iter().flat_map(|shape| {
        let levels = by_level(shape.info).into_iter();
        levels.filter_map(|(level, runs)| {
            let count = runs.len();
            let runs_word = if count == 1 { "run" } else { "runs" };
            let label = format!("{} {level}, {count} {runs_word}", shape.name);
            Some(Bar { label, value: figure(&runs)?, command: store.command.clone() })
        })
    });
    greatest(shapes.collect())
}

fn facts(store: &Description<'_>) -> View {
    let rows = store.facts.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]);
    View {
        id: "facts",
        title: "Store",
        tables: vec![Table {
            caption: String::new(),
            head: vec![String::new(), String::new()],
            rows: rows.collect(),
        }],
        is_wide: true,
        ..View::default()
    }
}

fn level_sizes(store: &Description<'_>) -> Result<View, Error> {
    let bars =
        level_bars(store, |runs| Some(runs.iter().map(|run| run.bytes as f64).sum::<f64>() / MIB));
    let note = "MiB of the runs of each level, their blobs included.";
    bar_view(("levels", "Size of levels", note, "a checkpoint of a table"), bars)
}

fn run_sizes(store: &Description<'_>) -> Result<View, Error> {
    let mut series: Vec<Series> = Vec::new();
    let mut rows = Vec::new();
    for shape in store.shapes.iter().take(8) {
        for (number, level) in (1_u32..).zip(&shape.info.levels) {
            for run in &level.runs {
                let mib = run.bytes as f64 / MIB;
                add(&mut series, &shape.name, Mark::Dot, (f64::from(number), mib.max(1e-3)));
                rows.push(Row {
                    label: format!("{} level {number}", shape.name),
                    figure: format!("{} MiB", short(mib)),
                    command: store.command.clone(),
                });
            }
        }
    }
    if series.is_empty() {
        return Ok(View::default());
    }
    let x = Axis { name: "level", is_log: false, text: plain };
    let y = Axis { name: "MiB of a run", is_log: true, text: plain };
    let names: Vec<String> = series.iter().map(|series| series.name.clone()).collect();
    Ok(View {
        id: "runs-by-level",
        title: "Size of each run",
        note: "One dot for each run, of the first eight tables.".to_owned(),
        svg: Some(plot("Size of each run", [&x, &y], &series)?),
        key: key(&names),
        rows,
        ..View::default()
    })
}

fn filters(store: &Description<'_>) -> Result<View, Error> {
    let bars = level_bars(store, |runs| {
        let entries: u64 = runs.iter().map(|run| run.meta.entries).sum();
        let bits = |run: &&RunInfo| run.meta.filter_bits_per_entry() * run.meta.entries as f64;
        (entries > 0).then(|| runs.iter().map(bits).sum::<f64>() / entries as f64)
    });
    let note = "Bits of filter for each entry; 0 for a level without filters.";
    bar_view(("filters", "Filters", note, "a checkpoint of a table"), bars)
}

fn debts(store: &Description<'_>) -> Result<View, Error> {
    let bars = store.shapes.iter().map(|shape| Bar {
        label: shape.name.clone(),
        value: shape.info.merge_debt_pages() as f64 * PAGE_SIZE as f64 / MIB,
        command: store.command.clone(),
    });
    let note = "MiB that compactions under way have yet to read.";
    bar_view(("debt", "Merge debt", note, "a checkpoint of a table"), greatest(bars.collect()))
}

fn memory(store: &Description<'_>) -> Result<View, Error> {
    let mib = |pages: u64| pages as f64 * PAGE_SIZE as f64 / MIB;
    let bars = store.shapes.iter().flat_map(|shape| {
        let sum = |pages: fn(&RunInfo) -> u32| {
            shape.info.level_runs().map(|run| u64::from(pages(run))).sum::<u64>()
        };
        let parts = [
            ("filters", mib(sum(|run| run.meta.filter_pages))),
            ("indexes", mib(sum(|run| run.meta.index_pages))),
        ];
        let budget = shape.info.config.memory_budget.map(|bytes| ("budget", bytes as f64 / MIB));
        parts.into_iter().chain(budget).map(|(part, value)| Bar {
            label: format!("{} {part}", shape.name),
            value,
            command: store.command.clone(),
        })
    });
    let note = "MiB of filters and indexes as the files have them, which an open table keeps in \
                memory as far as its budget goes; and the budget of a table that has its own.";
    bar_view(("memory", "Memory", note, "a checkpoint of a table"), greatest(bars.collect()))
}

fn lists(store: &Description<'_>) -> View {
    let filled = store.lists.iter().filter(|list| !list.rows.is_empty());
    let table = |list: &List| Table {
        caption: list.title.clone(),
        head: list.head.clone(),
        rows: list.rows.clone(),
    };
    View {
        id: "lists",
        title: "Tables, versions, snapshots",
        tables: filled.map(table).collect(),
        is_wide: true,
        ..View::default()
    }
}

fn runs(store: &Description<'_>) -> View {
    let row = |shape: &Shape<'_>, (level, run, merging): (String, &RunInfo, bool)| {
        let file = run.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let meta = &run.meta;
        vec![
            format!("{} {level}{}", shape.name, if merging { ", merging" } else { "" }),
            file,
            grouped(meta.entries),
            grouped(meta.deletes),
            grouped(run.bytes),
            grouped(meta.key_pages.into()),
            format!("{:.2}", meta.filter_bits_per_entry()),
            grouped(meta.index_pages.into()),
        ]
    };
    let rows: Vec<Vec<String>> = store
        .shapes
        .iter()
        .flat_map(|shape| levelled(shape.info).into_iter().map(|run| row(shape, run)))
        .collect();
    let head = [
        "level",
        "run",
        "entries",
        "tombstones",
        "bytes",
        "key pages",
        "filter bits/entry",
        "index pages",
    ];
    let head = head.map(str::to_owned).to_vec();
    let tables = Table { caption: String::new(), head, rows };
    View {
        id: "runs",
        title: "Runs",
        note: "Newest first. A snapshot may share runs with its table.".to_owned(),
        tables: if tables.rows.is_empty() { Vec::new() } else { vec![tables] },
        is_wide: true,
        ..View::default()
    }
}

//! Tables of a folder of results: a row for each engine, medians over the rounds with their range.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde::Deserialize;

use crate::engine::{Error, Result};
use crate::kind::Kind;
use crate::report::{Figures, Outcome, Percentiles};
use crate::work::Workload;

/// The part of `results.json` that a table needs.
#[derive(Debug, Deserialize)]
struct Results {
    points: Vec<Outcome>,
}

/// Prints the tables of `results.json` in `out`, as Markdown.
///
/// # Errors
/// [`Error::Options`] if it is missing or damaged.
pub fn print(out: &Path) -> Result<()> {
    let path = out.join("results.json");
    let text = std::fs::read(&path)
        .map_err(|source| Error::System { what: format!("read {}", path.display()), source })?;
    let results: Results = serde_json::from_slice(&text)
        .map_err(|error| Error::Options(format!("{}: {error}", path.display())))?;
    std::io::stdout()
        .write_all(render(&results.points).as_bytes())
        .map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}

fn render(points: &[Outcome]) -> String {
    let mut text = String::new();
    let mut groups: Vec<(Workload, u64, u64)> = Vec::new();
    for point in points {
        let group = (point.plan.workload, point.plan.entries, point.plan.memory_bytes);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for (workload, entries, memory) in groups {
        let of_group = |point: &&Outcome| {
            (point.plan.workload, point.plan.entries, point.plan.memory_bytes)
                == (workload, entries, memory)
        };
        let loaded =
            if workload.loads() { format!("{entries} entries") } else { "empty store".to_owned() };
        let _ = writeln!(
            text,
            "\n## {workload}, {loaded}, {} MiB for process and page cache\n\nAn operation: {}.\n",
            memory >> 20,
            workload.unit()
        );
        text.push_str("| engine | operations/s (range) | p50 µs | p99 µs | longest ms | CPU µs | read B | written B | RSS MiB | page cache MiB | disk ratio |\n");
        text.push_str("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
        text.push_str(&rows(points.iter().filter(of_group)));
    }
    text
}

/// The rows of one table, the fastest first; those without figures last.
fn rows<'a>(points: impl Iterator<Item = &'a Outcome>) -> String {
    let mut engines: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for point in points {
        engines.entry(Kind::name(point.plan.engine)).or_default().push(point);
    }
    let mut rows: Vec<(f64, String)> = Vec::new();
    for (engine, points) in engines {
        let figures: Vec<&Figures> =
            points.iter().filter_map(|point| point.figures.as_ref()).collect();
        let why = points.iter().find_map(|point| point.failed.as_ref().or(point.cannot.as_ref()));
        if figures.is_empty() {
            rows.push((
                -1.0,
                format!("| {engine} | {} | | | | | | | | | |\n", why.map_or("", |why| why)),
            ));
            continue;
        }
        let median = |of: &dyn Fn(&Figures) -> f64| median(figures.iter().map(|f| of(f)).collect());
        let rates: Vec<f64> = figures.iter().map(|f| f.ops_per_s).collect();
        let (low, high) =
            rates.iter().fold((f64::MAX, 0.0_f64), |(l, h), r| (l.min(*r), h.max(*r)));
        // Of a workload that reads, calls that read.
        let latency = |of: &dyn Fn(&Percentiles) -> f64| {
            median(&|f: &Figures| f.reads_us.as_ref().or(f.writes_us.as_ref()).map_or(0.0, of))
        };
        let longest = median(&|f: &Figures| {
            let max = |p: &Option<Percentiles>| p.map_or(0.0, |p| p.max);
            max(&f.reads_us).max(max(&f.writes_us))
        });
        let rate = median(&|f| f.ops_per_s);
        let failures = points.len() - figures.len();
        let note = if failures > 0 {
            format!(" ({failures} of {} failed)", points.len())
        } else {
            String::new()
        };
        rows.push((
            rate,
            format!(
                "| {engine}{note} | {rate:.0} ({low:.0}–{high:.0}) | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {} |\n",
                latency(&|p| p.p50),
                latency(&|p| p.p99),
                longest / 1e3,
                median(&|f| f.cpu_us_per_op),
                median(&|f| f.read_bytes_per_op),
                median(&|f| f.write_bytes_per_op),
                median(&|f| f.rss_peak_bytes.saturating_sub(f.workload_bytes) as f64 / f64::from(1 << 20)),
                median(&|f| f.page_cache_peak_bytes.unwrap_or(0) as f64 / f64::from(1 << 20)),
                figures[0].disk_ratio.map_or(String::new(), |_| format!("{:.2}", median(&|f| f.disk_ratio.unwrap_or(0.0)))),
            ),
        ));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

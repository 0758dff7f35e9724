//! Recorded runs as they are published: the headlines and the plot of README.md, the pages of
//! `docs/report`.
//!
//! Goal: all of them say what `bench/results` says. Method: they are made anew and compared.
//! `cargo xtask results` sets `TERRANE_RESULTS=write`, and then they are written instead.
//!
//! The comparison with rivals is `bench/results/peers`: one file with all `points`, or a file for
//! each point, as `terrane-peers` prints them. `reasons.json` beside them says why a rival is
//! faster, by `WORKLOAD ENTRIES`. Without the folder nothing of rivals is published.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use terrane_bench::report::html::Input;
use terrane_bench::report::page::Page;
use terrane_bench::report::rivals::Comparison;

use crate::results::{BEGIN, END, command_line, is_to_be_written, recorded, root};

/// Folder of the pages.
const REPORT: &str = "docs/report";

/// Plot of the README in that folder.
const PLOT: &str = "rivals.svg";

/// Why rivals are faster, beside the points.
const REASONS: &str = "reasons.json";

/// Bytes of a page at most.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Pages of commands: file, title, and what the names of their commands begin with.
const PAGES: [(&str, &str, &str); 4] = [
    ("utxo.html", "Unspent outputs", "bench utxo run"),
    ("kvget.html", "Reads by memory", "bench kvget run"),
    ("btree.html", "B+tree index", "bench index"),
    ("context.html", "Context store", "bench context"),
];

/// Page of the rivals.
const RIVALS: (&str, &str) = ("index.html", "Rivals");

/// A comparison with rivals as it was recorded.
struct Recorded {
    /// One report of all points.
    report: Value,
    /// Machines of the runs, each once.
    machines: Vec<String>,
    reasons: BTreeMap<String, String>,
}

/// Files of the report by name, and the section of the README.
struct Published {
    files: BTreeMap<String, String>,
    section: String,
}

/// Returns a report without paths of the machine that made it.
fn portable(mut report: Value) -> Value {
    let line = match &report["command_line"] {
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            Some(words.join(" "))
        }
        line => line.as_str().map(str::to_owned),
    };
    if let Some(line) = line {
        report["command_line"] = json!(command_line(&line));
    }
    report
}

/// Reads the comparison with rivals; `None` without its folder.
fn rivals(folder: &Path) -> Option<Recorded> {
    let mut names: Vec<_> = std::fs::read_dir(folder).ok()?.map(|entry| entry.unwrap()).collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let mut head = json!({});
    let (mut points, mut commands, mut machines) = (Vec::new(), Vec::new(), Vec::new());
    for path in names.into_iter().map(|entry| entry.path()) {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if !is_json || path.ends_with(REASONS) {
            continue;
        }
        let mut report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        match report["points"].take() {
            Value::Array(all) => {
                points.extend(all);
                report.as_object_mut().unwrap().remove("points");
                machines.extend(machine_of(&report));
                head = portable(report);
                commands.extend(head["command_line"].as_str().map(str::to_owned));
            }
            _ => points.push(report),
        }
    }

    let reasons = std::fs::read(folder.join(REASONS)).ok();
    let reasons = reasons.map(|bytes| serde_json::from_slice(&bytes).expect(REASONS));
    head["points"] = Value::Array(points);
    if !commands.is_empty() {
        // A comparison may be recorded in several runs.
        head["command_line"] = json!(commands.join("`, `"));
    }
    machines.sort();
    machines.dedup();
    Some(Recorded { report: head, machines, reasons: reasons.unwrap_or_default() })
}

/// The machine of a report, if it says so.
fn machine_of(report: &Value) -> Option<String> {
    let (cores, cpu) = (&report["host"]["cores"], &report["host"]["cpu_model"]);
    Some(format!("{} cores of {}", cores.as_u64()?, cpu.as_str()?))
}

fn page(title: &str, reports: Vec<(String, Value)>, links: &[(&str, &str)]) -> String {
    let inputs = reports.into_iter().map(|(file, report)| Input::new(&file, report, Vec::new()));
    let title = format!("Terrane: {title}");
    let mut page = Page::of(&title, inputs.collect()).unwrap().without_empty_views();
    for (href, text) in links {
        page = page.link(href, text);
    }
    page.html().unwrap()
}

/// Section of the README on rivals.
fn section(recorded: &Recorded, comparison: &Comparison) -> String {
    let reason = |workload: &str, entries: u64| {
        recorded.reasons.get(&format!("{workload} {entries}")).cloned()
    };
    let table = comparison
        .headlines(reason)
        .unwrap_or_else(|error| panic!("{error}; add it to bench/results/peers/{REASONS}"));
    let command = recorded.report["command_line"].as_str().unwrap_or("terrane-peers all");
    let machines = match &recorded.machines[..] {
        [] => String::new(),
        [machine] => format!(" on {machine}"),
        several => format!(", each run on one machine ({})", several.join("; ")),
    };
    format!(
        "\nBeside its rivals, all under one limit of memory for process and page cache, medians of \
         `{command}`{machines}. Rows in which a rival is faster stay, with the reason. [Terms](peers/README.md), [all \
         figures]({REPORT}/index.html).\n\n{table}\n\
         ![Operations in a second of each engine for each one of Terrane]({REPORT}/{PLOT})\n\n"
    )
}

/// Makes all that is published.
fn published(runs: &BTreeMap<String, Value>, recorded: Option<&Recorded>) -> Published {
    let mut files = BTreeMap::new();
    let of = |prefix: &str| -> Vec<(String, Value)> {
        let is_of = |report: &Value| {
            report["command"].as_str().is_some_and(|command| command.starts_with(prefix))
        };
        let found = runs.iter().filter(|(_, report)| is_of(report));
        found.map(|(name, report)| (name.clone(), portable(report.clone()))).collect()
    };
    let made: Vec<_> = PAGES
        .iter()
        .map(|(file, title, prefix)| (*file, *title, of(prefix)))
        .filter(|(_, _, reports)| !reports.is_empty())
        .collect();
    let comparison = recorded.map(|recorded| Comparison::of([&recorded.report]));
    let comparison = comparison.filter(|comparison| !comparison.is_empty());
    let links: Vec<(&str, &str)> = comparison
        .iter()
        .map(|_| RIVALS)
        .chain(made.iter().map(|(file, title, _)| (*file, *title)))
        .collect();

    for (file, title, reports) in made {
        files.insert(file.to_owned(), page(title, reports, &links));
    }
    let Some((recorded, comparison)) = recorded.zip(comparison) else {
        return Published { files, section: String::new() };
    };
    let reports = vec![("peers".to_owned(), recorded.report.clone())];
    files.insert(RIVALS.0.to_owned(), page(RIVALS.1, reports, &links));
    files.insert(PLOT.to_owned(), comparison.svg().unwrap());
    Published { files, section: section(recorded, &comparison) }
}

/// Names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn the_readme_and_the_report_show_the_recorded_runs() {
    let recorded_rivals = rivals(&root().join("bench/results/peers"));
    let Published { files, section } = published(&recorded(), recorded_rivals.as_ref());
    for (name, made) in &files {
        assert!(made.len() < PAGE_BYTES_MAX, "{name} has {} bytes", made.len());
    }

    let folder = root().join(REPORT);
    let readme = root().join("README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("README.md has a mark where rivals begin");
    let (found, after) = rest.split_once(END).expect("README.md has a mark where rivals end");
    if is_to_be_written() {
        std::fs::create_dir_all(&folder).unwrap();
        for stale in names(&folder).iter().filter(|name| !files.contains_key(*name)) {
            std::fs::remove_file(folder.join(stale)).unwrap();
        }
        for (name, made) in &files {
            std::fs::write(folder.join(name), made).unwrap();
        }
        std::fs::write(&readme, [before, BEGIN, &section, END, after].concat()).unwrap();
        return;
    }

    let remedy = "is not up to date: `cargo xtask results`";
    assert_eq!(found, section, "README.md {remedy}");
    assert_eq!(names(&folder), files.keys().cloned().collect::<Vec<_>>(), "{REPORT} {remedy}");
    for (name, made) in &files {
        // A page is long, so a difference is not printed.
        let found = std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(found == *made, "{REPORT}/{name} {remedy}");
    }
}

fn point(engine: &str, workload: &str, rate: f64) -> Value {
    json!({
        "plan": {"engine": engine, "workload": workload, "entries": 10_000_000,
            "memory_bytes": 268_435_456, "warm_s": 5.0, "seconds": 15.0, "seed": 1, "round": 0},
        "about": {"version": "1.2.3", "io_mode": "direct", "settings": {"cache": "1"}},
        "cannot": null, "failed": null,
        "figures": {"memory_enforced_by": "cgroup_v1", "durability": "none", "ops_per_s": rate,
            "reads_us": {"p50": 1.0, "p99": 2.0, "p999": 3.0, "p9999": 4.0, "max": 5.0},
            "writes_us": null, "cpu_us_per_op": 9.0, "read_bytes_per_op": 4_096.0,
            "write_bytes_per_op": 200.0, "device_reads_per_op": 1.0,
            "rss_peak_bytes": 130_035_712, "workload_bytes": 400_000,
            "page_cache_peak_bytes": 155_648, "disk_bytes": 30_392_320, "disk_ratio": 1.2,
            "checked": 4_256, "bare_sync_us": null, "load_average": [0.1, 0.2, 0.3]},
    })
}

/// One file of all points, a file of one point, a reason: as a folder has them.
#[test]
fn a_folder_of_points_becomes_headlines_a_plot_and_pages_without_machine_paths() {
    let dir = tempfile::tempdir().unwrap();
    let all = json!({
        "schema_version": 1, "host": {"cpu_model": "A & B", "cores": 2},
        "command_line": ["/some/where/terrane-peers", "all", "--out", "/some/where/out"],
        "points": [point("terrane", "utxo", 2e4), point("redb", "utxo", 1e4),
            point("terrane", "scan", 1e3)],
    });
    let more = point("lmdb", "scan", 4e3);
    let write = |name: &str, value: &Value| {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    };
    write("results.json", &all);
    write("scan-lmdb.json", &more);
    write(REASONS, &json!({"scan 10000000": "LMDB reads leaves in place"}));

    let recorded = rivals(dir.path()).unwrap();
    let Published { files, section } = published(&BTreeMap::new(), Some(&recorded));
    assert!(section.contains("`terrane-peers all --out DIR` on 2 cores of A & B"), "{section}");
    assert!(section.contains("| 20k/s | redb 10k/s | 2 |"), "{section}");
    assert!(section.contains("| 1k/s | LMDB 4k/s | 0.25: LMDB reads leaves in place |"));
    assert_eq!(files.keys().collect::<Vec<_>>(), [RIVALS.0, PLOT]);
    for made in files.values() {
        assert!(!made.contains("/some/where"), "a path of the machine");
    }
    assert!(files[RIVALS.0].contains("id=\"triangle\""));

    // An absent folder leaves all of it out.
    assert!(rivals(&dir.path().join("absent")).is_none());
    let Published { files, section } = published(&BTreeMap::new(), None);
    assert!(files.is_empty() && section.is_empty());
}

//! The tables of recorded runs in `bench/results/README.md`, made from `bench/results/*.json`.
//!
//! Goal: the page says what the files say. Method: each file is what `terrane bench ... --json` has
//! printed; the tables are made anew and compared with what stands between the two marks of the
//! page. `cargo xtask results` sets `TERRANE_RESULTS=write`, and then they are written instead.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) const BEGIN: &str = "<!-- made by `cargo xtask results`: begin -->\n";
pub(crate) const END: &str = "<!-- made by `cargo xtask results`: end -->";

/// Form of a number of a report.
#[derive(Clone, Copy)]
enum Show {
    /// The number itself.
    Plain,
    /// Thousands as `k`, millions as `M`.
    Count,
    /// That many digits behind the point.
    Digits(usize),
    /// Bytes as KiB.
    Kib,
    /// Bytes as MiB.
    Mib,
    /// Microseconds as milliseconds.
    Ms,
    /// A ratio as per cent.
    Percent,
}

use Show::{Count, Digits, Kib, Mib, Ms, Percent, Plain};

/// A column: its head, where its field is (a JSON pointer), how it is shown.
type Column = (&'static str, &'static str, Show);

/// The columns of the benchmarks of the index: a row for each engine.
const INDEX_COLUMNS: [Column; 11] = [
    ("engine", "/engine_report/engine", Plain),
    ("entries", "/engine_report/entries", Count),
    ("ops/s", "/engine_report/ops_per_s", Count),
    ("bytes read/op", "/engine_report/io/read_bytes_per_op", Digits(0)),
    ("written/op", "/engine_report/io/write_bytes_per_op", Digits(0)),
    ("replace p99.99, ms", "/engine_report/calls/replace/latency_us/p9999", Ms),
    ("max", "/engine_report/calls/replace/latency_us/max", Ms),
    ("flush max, ms", "/engine_report/calls/flush/latency_us/max", Ms),
    ("peak RSS, MiB", "/engine_report/rss_peak_bytes", Mib),
    ("reads/find", "/engine_report/check/present/page_reads_per_find", Digits(3)),
    ("files, MiB", "/engine_report/store_bytes", Mib),
];

/// The columns of the benchmark of the context store: a row for each phase.
const CONTEXT_COLUMNS: [Column; 16] = [
    ("profile", "/profile", Plain),
    ("values", "/values", Count),
    ("beside collections", "/phase/collecting", Plain),
    ("blocks", "/phase/blocks", Count),
    ("TPS", "/phase/tps", Count),
    ("block mean, ms", "/phase/block_latency_ms/mean", Digits(2)),
    ("±", "/phase/block_latency_ms/stddev", Digits(2)),
    ("p99", "/phase/block_latency_ms/p99", Digits(1)),
    ("max", "/phase/block_latency_ms/max", Digits(1)),
    ("operations", "/phase/operations_latency_ms/mean", Digits(2)),
    ("commit", "/phase/commit_latency_ms/mean", Digits(2)),
    ("hashing floor", "/phase/hashing_floor/all_threads_ms", Digits(2)),
    ("object reads/block", "/phase/per_block/object_reads", Digits(0)),
    ("KiB appended/block", "/phase/per_block/appended_bytes", Kib),
    ("peak RSS, MiB", "/phase/rss_peak_bytes", Mib),
    ("files, MiB", "/phase/store_bytes", Mib),
];

/// The columns of the ten tests of Transact: a row for each back-end and durability.
const TRANSACT_COLUMNS: [Column; 12] = [
    ("back-end", "/cell/backend", Plain),
    ("durability", "/cell/durability", Plain),
    ("real, s", "/cell/real_s/best", Digits(3)),
    ("median", "/cell/real_s/median", Digits(3)),
    ("user", "/cell/user_s/best", Digits(3)),
    ("system", "/cell/system_s/best", Digits(3)),
    ("× memory", "/cell/ratio_to_memory", Digits(2)),
    ("× hashing floor", "/cell/over_floor", Digits(2)),
    ("syncs", "/cell/syncs", Count),
    ("written by the process, MiB", "/cell/process_write_bytes", Mib),
    ("peak RSS, MiB", "/cell/rss_peak_bytes", Mib),
    ("on disk, MiB", "/cell/disk_bytes", Mib),
];

/// The columns of the other loads of the radix state: a row for each figure of each cell.
const RADIX_COLUMNS: [Column; 9] = [
    ("load", "/figure/name", Plain),
    ("back-end", "/cell/backend", Plain),
    ("durability", "/cell/durability", Plain),
    ("count", "/figure/count", Count),
    ("best, µs each", "/figure/best_us", Digits(2)),
    ("median", "/figure/median_us", Digits(2)),
    ("× hashing floor", "/figure/over_floor", Digits(2)),
    ("× appends and the same without syncs", "/figure/over_appends", Digits(2)),
    ("on disk, MiB", "/figure/disk_bytes", Mib),
];

/// The columns of blocks on an Ethereum state.
const STATE_COLUMNS: [Column; 21] = [
    ("load", "/load", Plain),
    ("distribution", "/distribution", Plain),
    ("accounts", "/accounts", Count),
    ("history", "/history", Plain),
    ("import, accounts/s", "/set_up/accounts_per_s", Count),
    ("blocks", "/blocks", Count),
    ("reads p50, ms", "/read_latency_ms/p50", Digits(2)),
    ("commit mean, ms", "/commit_latency_ms/mean", Digits(2)),
    ("p99", "/commit_latency_ms/p99", Digits(2)),
    ("max", "/commit_latency_ms/max", Digits(2)),
    ("sync p50", "/sync_latency_ms/p50", Digits(2)),
    ("bare sync p50", "/bare/append_sync_ms/p50", Digits(2)),
    ("commit × Keccak floor", "/over_floor", Digits(1)),
    ("pages read/block", "/per_block/page_reads", Count),
    ("CPU ms/block", "/per_block/cpu_ms", Digits(1)),
    ("proof at the tip p50, µs", "/proofs/latency_us/p50", Digits(0)),
    ("below", "/older_proofs/latency_us/p50", Digits(0)),
    ("history bytes/node", "/history_bytes/bytes_per_node", Digits(0)),
    ("reorg × applying", "/reorg/over_apply", Digits(2)),
    ("peak RSS, MiB", "/rss_peak_bytes", Mib),
    ("on disk, MiB", "/store_bytes", Mib),
];

/// The columns for each command, beside the file, the device's rate, and where and when.
const TABLES: [(&str, &[Column]); 10] = [
    ("bench radix", &TRANSACT_COLUMNS),
    (RADIX_LOADS, &RADIX_COLUMNS),
    ("bench context", &CONTEXT_COLUMNS),
    ("bench state", &STATE_COLUMNS),
    ("bench index high-insert", &INDEX_COLUMNS),
    ("bench index bootstrap", &INDEX_COLUMNS),
    (
        "bench utxo setup",
        &[
            ("entries", "/entries", Count),
            ("time, s", "/wall_s", Digits(0)),
            ("bytes written for each given", "/write_amplification", Digits(2)),
            ("runs", "/runs", Plain),
        ],
    ),
    (
        "bench utxo run",
        &[
            ("mode", "/mode", Plain),
            ("entries", "/entries", Count),
            ("batches", "/batches", Count),
            ("ops/s", "/ops_per_s", Count),
            ("η", "/eta", Digits(3)),
            ("reads/op", "/lookup_io_per_op", Digits(3)),
            ("CPU µs/op", "/cpu_us_per_op", Digits(2)),
            ("of it user", "/cpu_user_us_per_op", Digits(2)),
            ("peak RSS, MiB", "/rss_peak_bytes", Mib),
            ("update p99.9, ms", "/update_latency_us/p999", Ms),
            ("max", "/update_latency_us/max", Ms),
        ],
    ),
    (
        "bench kvget setup",
        &[
            ("keys", "/keys", Count),
            ("shape", "/shape", Plain),
            ("time, s", "/wall_s", Digits(0)),
            ("bytes written for each given", "/write_amplification", Digits(2)),
            ("runs", "/runs", Plain),
        ],
    ),
    (
        "bench kvget run",
        &[
            ("keys", "/workload/entries", Count),
            ("shape", "/engine/options/shape", Plain),
            ("memory", "/memory/budget_ratio", Percent),
            ("goal", "/engine/options/memory_goal", Plain),
            ("absent", "/workload/absent_ratio", Percent),
            ("reads/GET", "/io_per_get", Digits(4)),
            ("bytes/GET", "/io/bytes_per_get", Digits(0)),
            ("lookups/s", "/lookups_per_s", Count),
            ("η", "/speed/eta", Digits(3)),
            ("CPU µs/GET", "/cpu_us_per_op", Digits(2)),
        ],
    ),
];

/// Heading of the other loads of `bench radix`.
const RADIX_LOADS: &str = "bench radix, loads";

/// Fields of every recorded run, with the remedy where one is missing.
const REQUIRED: [(&str, &str); 5] = [
    ("/command_line", "record the whole output of --json"),
    ("/started_at", "record the whole output of --json"),
    ("/git_revision", "build with TERRANE_REVISION set to the commit"),
    ("/host/kernel", "record the whole output of --json"),
    ("/host/cpu_model", "measure on a machine that tells its processor"),
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shown(value: Option<&Value>, show: Show) -> String {
    let Some(value) = value.filter(|value| !value.is_null()) else { return "–".to_owned() };
    let Some(number) = value.as_f64() else {
        return value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    };

    match show {
        Plain => value.to_string(),
        Count if number >= 1e6 => format!("{} M", short(number / 1e6)),
        Count if number >= 1e4 => format!("{} k", short(number / 1e3)),
        Count => format!("{number:.0}"),
        Digits(digits) => format!("{number:.digits$}"),
        Kib => format!("{:.0}", number / 1024.0),
        Mib => format!("{:.1}", number / f64::from(1 << 20)),
        Ms => format!("{:.2}", number / 1e3),
        Percent => format!("{} %", short(number * 100.0)),
    }
}

/// A number to two digits behind the point, without zeros at its end.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The command as it is to be repeated: the program by its name, any directory as `DIR`.
pub(crate) fn command_line(line: &str) -> String {
    let (program, line) = line.split_once(' ').unwrap_or((line, ""));
    let mut words = vec![program.rsplit('/').next().unwrap_or(program)];
    let mut is_dir = false;
    for word in line.split(' ').filter(|word| !["--json", "--quiet"].contains(word)) {
        words.push(match word {
            _ if is_dir => "DIR",
            word if word.starts_with("--store=") => "--store=DIR",
            word => word,
        });
        is_dir = ["--store", "--dir", "--out", "--work"].contains(&word);
    }
    words.join(" ")
}

/// The row of a run, and the command that it is of.
fn row(name: &str, report: &Value) -> Result<(&'static str, String), String> {
    let text = |pointer: &str| report.pointer(pointer).and_then(Value::as_str);
    if report.pointer("/ok") != Some(&json!(true)) {
        return Err(format!("{name}: a run that failed is no result"));
    }
    for (pointer, advice) in REQUIRED {
        if text(pointer).is_none() {
            return Err(format!("{name}: there is no {pointer}; {advice}"));
        }
    }

    let command = text("/command").unwrap_or_default();
    let Some((command, columns)) = TABLES.iter().find(|(found, _)| *found == command) else {
        return Err(format!("{name}: no table for {command}"));
    };
    let line = command_line(text("/command_line").unwrap_or_default());
    let mut row = format!("| [{line}]({name}) |");
    for (_, pointer, show) in *columns {
        let _ = write!(row, " {} |", shown(report.pointer(pointer), *show));
    }

    // One report is flat, the other in groups.
    let device = ["/fio_read_iops", "/device/fio_read_iops"];
    let device = device.iter().find_map(|pointer| report.pointer(pointer));
    let _ = write!(row, " {} |", shown(device, Count));
    let at = |pointer| text(pointer).unwrap_or_default();
    let day = at("/started_at");
    let revision = at("/git_revision");
    let day = day.get(..10).unwrap_or(day);

    let revision = revision.get(..12).unwrap_or(revision);
    let kernel = at("/host/kernel");
    let cpu = at("/host/cpu_model");
    let _ = writeln!(row, " {day}, {revision}, {kernel}, {cpu} |");

    Ok((command, row))
}

/// A report for each engine or phase that it is of, or as it is.
fn by_part(report: &Value) -> Vec<Value> {
    if let Some(cells) = report.get("cells").and_then(Value::as_array) {
        let ran = cells.iter().filter(|cell| cell["refused"].is_null());
        return ran.flat_map(|cell| by_figure(report, cell)).collect();
    }

    let parts = [("engines", "engine_report"), ("phases", "phase")];
    let found = parts.iter().find_map(|(all, one)| Some((report.get(all)?.as_array()?, one)));
    let Some((parts, name)) = found else { return vec![report.clone()] };
    let of = |part: &Value| {
        let mut report = report.clone();
        report[name] = part.clone();
        report
    };

    parts.iter().map(of).collect()
}

/// A report for each figure of a cell of `bench radix`, or for the cell if it is of the ten tests.
fn by_figure(report: &Value, cell: &Value) -> Vec<Value> {
    let mut report = report.clone();
    report["cells"] = Value::Null;
    report["cell"] = cell.clone();
    if cell["load"] == "tests" {
        return vec![report];
    }
    report["command"] = json!(RADIX_LOADS);
    let of = |figure: &Value| {
        let mut report = report.clone();
        report["figure"] = figure.clone();
        report
    };

    cell["figures"].as_array().into_iter().flatten().map(of).collect()
}

/// All tables; nothing for commands without a run.
fn tables(reports: &BTreeMap<String, Value>) -> Result<String, String> {
    let rows = reports.iter().flat_map(|(name, report)| {
        by_part(report).into_iter().map(move |report| row(name, &report))
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;

    let mut text = String::new();
    for (command, columns) in &TABLES {
        let rows: String =
            rows.iter().filter(|(of, _)| of == command).map(|(_, row)| row.as_str()).collect();
        if rows.is_empty() {
            continue;
        }
        let heads = columns.iter().map(|(head, ..)| *head);
        let heads: Vec<_> = [*command]
            .into_iter()
            .chain(heads)
            .chain(["device, reads/s", "when and where"])
            .collect();
        let _ = writeln!(text, "\n| {} |\n|{}", heads.join(" | "), "---|".repeat(heads.len()));
        text += &rows;
    }

    Ok(text + "\n")
}

pub(crate) fn recorded() -> BTreeMap<String, Value> {
    let mut reports = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("bench/results")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let report = serde_json::from_slice(&std::fs::read(&path).unwrap());
            reports.insert(name.clone(), report.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    reports
}

/// Whether files are to be written instead of compared.
pub(crate) fn is_to_be_written() -> bool {
    std::env::var_os("TERRANE_RESULTS").is_some_and(|wish| wish == "write")
}

#[test]
fn the_page_has_the_tables_of_the_recorded_runs() {
    let path = root().join("bench/results/README.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a mark where tables begin");
    let (found, after) = rest.split_once(END).expect("the page has a mark where tables end");
    let expected = tables(&recorded()).unwrap();
    if is_to_be_written() {
        std::fs::write(&path, [before, BEGIN, &expected, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(found, expected, "bench/results/README.md is not up to date: `cargo xtask results`");
}

fn sample() -> Value {
    json!({
        "terrane": "0.1.0", "command": "bench utxo run", "ok": true, "mode": "sequential",
        "entries": 10_000_000, "batches": 10_000, "ops_per_s": 69_871.4, "eta": 0.7712,
        "update_latency_us": {"p999": 3_210.0, "max": 41_000.0}, "rss_peak_bytes": 62_914_560,
        "command_line": "/some/where/terrane bench utxo run --store /some/dir --json --batches 10k",
        "started_at": "2026-11-22T10:00:00Z", "git_revision": "0123456789abcdef0123",
        "fio_read_iops": 90_600.0, "host": {"kernel": "6.18", "cpu_model": "A & B"},
    })
}

#[test]
fn a_run_becomes_a_row_that_names_no_directory() {
    let made = tables(&BTreeMap::from([("a.json".to_owned(), sample())])).unwrap();
    let row = "| [terrane bench utxo run --store DIR --batches 10k](a.json) | \
               sequential | 10 M | 10 k | 69.87 k | 0.771 | – | – | – | 60.0 | 3.21 | 41.00 | \
               90.6 k | 2026-11-22, 0123456789ab, 6.18, A & B |";
    assert_eq!(made.lines().nth(3), Some(row));
    assert_eq!(made.lines().count(), 5, "{made}");
    assert_eq!(made.lines().nth(2).unwrap().matches('|').count(), row.matches('|').count());
}

#[test]
fn a_run_of_several_engines_becomes_a_row_for_each() {
    let mut report = sample();
    report["command"] = json!("bench index high-insert");
    report["engines"] = json!([{"engine": "btree", "ops_per_s": 1e6}, {"engine": "lmdb"}]);
    let made = tables(&BTreeMap::from([("a.json".to_owned(), report)])).unwrap();
    assert!(made.contains("| btree | – | 1 M |") && made.contains("| lmdb | – | – |"), "{made}");
    assert_eq!(made.lines().count(), 6, "{made}");
}

#[test]
fn a_run_of_two_phases_becomes_a_row_for_each() {
    let mut report = sample();
    report["command"] = json!("bench context");
    let phase = |collecting, mean| {
        json!({"collecting": collecting, "block_latency_ms": {"mean": mean},
               "per_block": {"appended_bytes": 2_048}})
    };
    report["phases"] = json!([phase(false, 20.5), phase(true, 25.0)]);
    let made = tables(&BTreeMap::from([("a.json".to_owned(), report)])).unwrap();
    assert!(made.contains("| false | – | – | 20.50 |") && made.contains("| true |"), "{made}");
    assert!(made.contains("| 2 | – | – |"), "{made}");
}

#[test]
fn a_run_of_the_radix_state_becomes_a_row_for_each_figure() {
    let mut report = sample();
    report["command"] = json!("bench radix");
    report["command_line"] = json!("terrane bench radix --dir /some/dir --json");
    report["cells"] = json!([
        {"load": "tests", "backend": "lsm", "refused": null, "real_s": {"best": 0.5}, "figures": []},
        {"load": "tests", "backend": "memory", "refused": "it keeps nothing", "figures": []},
        {"load": "batch", "backend": "lmdb", "refused": null,
         "figures": [{"name": "all", "best_us": 16.5}, {"name": "last", "best_us": 20.0}]},
    ]);

    let made = tables(&BTreeMap::from([("a.json".to_owned(), report)])).unwrap();
    assert!(made.contains("| lsm | – | 0.500 |") && !made.contains("| memory |"), "{made}");
    assert!(made.contains("| all | lmdb | – | – | 16.50 |") && made.contains("| last | lmdb |"));
    assert!(made.contains("[terrane bench radix --dir DIR]"), "{made}");
}

#[test]
fn runs_that_say_too_little_or_have_failed_are_refused() {
    let refused = |field: &str, value: Value| {
        let mut report = sample();
        report[field] = value;
        row("a.json", &report).unwrap_err()
    };
    assert!(refused("ok", json!(false)).contains("failed"));
    assert!(refused("git_revision", Value::Null).contains("TERRANE_REVISION"));
    assert!(refused("host", json!({"kernel": "6"})).contains("/host/cpu_model"));
    assert!(refused("command", json!("bench upsert")).contains("bench upsert"));
}

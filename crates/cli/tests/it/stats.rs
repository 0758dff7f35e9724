//! `terrane stats`, held against `scan` and against the grammar of Prometheus; `terrane compact` of
//! one table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::program::{Place, call, plain, text};

/// A store with two tables, a snapshot and a version.
fn ledger() -> Place {
    let place = Place::new();
    let store = place.store();
    let lines: Vec<String> = (0..500).map(|key| format!("key {key:04}\tvalue\n")).collect();
    let file = place.write("lines", lines.concat().as_bytes());
    for table in ["accounts", "main"] {
        call(&store, &["put", "--create", "--table", table, "--input", text(&file)]).done();
    }
    call(&store, &["delete", "--prefix", "key 00"]).done();
    call(&store, &["snapshot", "save", "monday"]).done();
    call(&store, &["version", "retain"]).done();
    place
}

#[test]
fn statistics_are_those_of_the_store() {
    let place = ledger();
    let store = place.store();
    let stats = call(&store, &["stats"]).done();
    assert_eq!(stats["commit"], stats["store"]["last_commit"]);
    assert_eq!((&stats["store"]["snapshots"], &stats["store"]["versions"]), (&1.into(), &1.into()));
    let tables = stats["tables"].as_array().unwrap();
    let names: Vec<&Value> = tables.iter().map(|table| &table["name"]).collect();
    assert_eq!(names, ["accounts", "main"]);
    for table in tables {
        // All values that are stored, of which some are deleted.
        assert!(table["stored_entries"].as_u64().unwrap() >= 400, "{table}");
        assert!(table["memory_bytes"].as_u64().unwrap() > 0, "{table}");
    }

    let people = plain(&store, &["stats"]).stdout;
    assert!(people.contains("table accounts\n") && people.contains("merge_debt_bytes"), "{people}");
    let refused = call(&store, &["stats", "--watch"]);
    refused.failed(2);
}

#[test]
fn a_memory_budget_of_the_store_is_kept_and_shown_with_its_consumers() {
    let place = ledger();
    let store = place.store();
    let shown = |stats: &Value| -> Vec<String> {
        let metrics = stats["store"].as_object().unwrap().keys();
        metrics.filter(|name| name.starts_with("memory_")).cloned().collect()
    };
    assert_eq!(shown(&call(&store, &["stats"]).done()), ["memory_hits"]);

    let stats = call(&store, &["stats", "--memory-budget", "4MiB"]).done();
    assert_eq!(shown(&stats).len(), 10, "{stats}");
    let bytes = |name: &str| stats["store"][name].as_u64().unwrap();
    assert_eq!(bytes("memory_budget_bytes"), 4 << 20);
    let buffers = bytes("memory_write_buffer_bytes");
    assert!(buffers > 0 && buffers <= bytes("memory_granted_bytes"), "{stats}");
    assert!(bytes("memory_granted_bytes") <= bytes("memory_peak_bytes"), "{stats}");
    let text = plain(&store, &["stats", "--prometheus", "--memory-budget", "4MiB"]).stdout;
    assert!(text.contains("\nterrane_memory_budget_bytes 4194304\n"), "{text}");

    for command in [&["put", "k", "v"][..], &["compact"], &["stats"]] {
        is_kept(&store, command);
    }
}

/// Runs a command with too small a budget, which is refused, and then with the smallest one.
fn is_kept(store: &Path, command: &[&str]) {
    let why = call(store, &[command, &["--memory-budget", "1MB"]].concat()).failed(2);
    assert!(why.contains("1048576 to"), "{why}");
    call(store, &[command, &["--memory-budget", "1MiB"]].concat()).done();
}

#[test]
fn commands_that_copy_or_replay_keep_to_a_memory_budget() {
    let place = ledger();
    let store = place.store();
    let [copy, backup, built] = ["copy", "backup", "built"].map(|name| place.path(name));
    let file = place.path("canonical");
    is_kept(&store, &["snapshot", "save", "tip"]);
    is_kept(&store, &["snapshot", "export", "tip", "--to", text(&copy)]);
    is_kept(&store, &["snapshot", "export", "tip", "--canonical", text(&file)]);
    is_kept(&store, &["snapshot", "import", "tip", "--as", "copied", "--from", text(&copy)]);
    is_kept(&store, &["snapshot", "import", "--canonical", text(&file), "--as", "read"]);
    is_kept(&store, &["backup", "--to", text(&backup)]);
    is_kept(&built, &["table", "build", "main", "--from", text(&store), "--create"]);

    // All of them have the same content.
    let content = |store: &Path, point: &[&str]| {
        let answer = plain(store, &[&["scan"][..], point].concat());
        assert!(answer.code == Some(0) && answer.stdout.lines().count() >= 400, "{answer:?}");
        answer.stdout
    };
    let expected = content(&store, &[]);
    for name in ["tip", "copied", "read"] {
        assert!(content(&store, &["--snapshot", name]) == expected, "{name}");
    }
    for dir in [&backup, &built] {
        assert!(content(dir, &[]) == expected, "{}", dir.display());
    }

    let history = place.write("history", b"terrane-changes 1\nbegin 1\nput 00 01\nend count=1\n");
    let replayed = place.path("replayed");
    is_kept(&replayed, &["replay", "changes", text(&history)]);
    let other = ["replay", "changes", text(&history), "--engine", "btree"];
    let why = call(&place.path("none"), &[&other[..], &["--memory-budget", "1MiB"]].concat());
    assert!(why.failed(2).contains("--engine lsm"));
    assert!(!place.path("none").exists());
}

#[test]
fn a_watch_prints_a_line_each_time_where_there_is_no_terminal() {
    let place = ledger();
    let store = place.store();
    let watch = ["stats", "--watch", "--interval", "0.001", "--times", "3"];
    let answer = plain(&store, &watch);
    assert_eq!((answer.code, answer.stdout.lines().count()), (Some(0), 3), "{answer:?}");
    for line in answer.stdout.lines() {
        let fields: Vec<&str> = line.split(' ').skip(1).collect();
        let names: Vec<&str> =
            fields.iter().map(|field| field.split_once('=').unwrap().0).collect();
        let expected =
            ["commit", "tables", "runs", "run_bytes", "merge_debt_bytes", "memory_bytes"];
        assert_eq!(names, expected, "{line}");
        assert!(!line.contains('\u{1b}'));
    }
    for wrong in [&["stats", "--times", "3"][..], &["stats", "--watch", "--interval", "0"]] {
        assert_eq!(plain(&store, wrong).code, Some(2), "{wrong:?}");
    }
}

/// Sample of the text format: name, labels and value.
type Sample<'a> = (&'a str, BTreeMap<&'a str, &'a str>, f64);

fn is_metric_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

/// Parses a sample strictly: `name{label="value",...} number`.
fn sample(line: &str) -> Sample<'_> {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
    };
    assert!(is_metric_name(name), "{line}");
    let mut found = BTreeMap::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, quoted) = label.split_once('=').unwrap();
        let value = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
        assert!(is_metric_name(key) && !key.contains(':'), "{line}");
        assert!(!value.contains(['"', '\\', '\n']), "{line}");
        assert_eq!(found.insert(key, value), None, "{line}");
    }
    (name, found, value.parse().unwrap())
}

/// The text format, version 0.0.4: each family has a HELP and a TYPE line before its samples, its
/// samples stand together, and no series comes twice.
#[test]
fn the_text_for_prometheus_follows_the_grammar() {
    let place = ledger();
    let text = plain(&place.store(), &["stats", "--prometheus"]).stdout;
    assert!(text.ends_with('\n') && !text.contains("\n\n"));

    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut series = BTreeSet::new();
    let mut family = "";
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, meaning) = rest.split_once(' ').unwrap();
            assert!(is_metric_name(name) && !meaning.is_empty(), "{line}");
            help = Some(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(help.take(), Some(name), "HELP stands before TYPE");
            assert!(["gauge", "counter", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert_eq!(families.insert(name, kind), None, "{name} comes twice");
            family = name;
        } else {
            let (name, labels, value) = sample(line);
            let of_family = match families[family] {
                "summary" => {
                    let is_part = name == family && labels.contains_key("quantile");
                    is_part
                        || [format!("{family}_sum"), format!("{family}_count")]
                            .contains(&name.to_owned())
                }
                _ => name == family && !labels.contains_key("quantile"),
            };
            assert!(of_family, "{line} in the family {family}");
            assert!(value >= 0.0, "{line}");
            let is_table = name.starts_with("terrane_table_") || name.starts_with("terrane_level_");
            assert_eq!(labels.contains_key("table"), is_table, "{line}");
            assert!(series.insert(line.rsplit_once(' ').unwrap().0), "{line} comes twice");
        }
    }

    assert!(families.len() > 50, "{} families", families.len());
    let stats = call(&place.store(), &["stats"]).done();
    let bytes = stats["store"]["run_bytes"].to_string();
    assert!(text.contains(&format!("\nterrane_run_bytes {bytes}\n")), "{text}");
}

#[test]
fn one_table_is_compacted_and_the_other_is_left() {
    let place = ledger();
    let store = place.store();
    call(&store, &["version", "delete", "3"]).done();
    call(&store, &["snapshot", "delete", "monday"]).done();
    let tombstones = |name: &str| {
        let stats = call(&store, &["table", "list"]).done();
        let tables = stats["tables"].as_array().unwrap().clone();
        tables.iter().find(|table| table["name"] == name).unwrap()["stored_entries"].clone()
    };
    call(&store, &["delete", "--prefix", "key 01", "--table", "accounts"]).done();

    let compacted = call(&store, &["compact", "--table", "main"]).done();
    assert_eq!((&compacted["tables"], &compacted["table"]), (&1.into(), &"main".into()));
    assert_eq!(tombstones("main"), 400);
    assert_ne!(tombstones("accounts"), 400, "not compacted");
    assert_eq!(call(&store, &["compact"]).done()["tables"], 2);
    assert_eq!(tombstones("accounts"), 400);
    assert_eq!(call(&store, &["count", "--table", "accounts"]).done()["count"], 400);

    let missing = call(&store, &["compact", "--table", "none"]);
    missing.failed(2);
    assert_eq!(missing.json()["error"]["kind"], "not_found");
}

//! `terrane bench`: small runs give every field of the reports, and checked answers.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Answer, Place, command, text};

fn bench(workload: &str, store: &Path, options: &[&str]) -> Answer {
    let mut bench = command();
    bench.args(["bench", workload, "--quiet", "--store"]).arg(store).args(options);
    bench.output().unwrap().into()
}

fn number(json: &Value, field: &str) -> f64 {
    json[field].as_f64().unwrap_or_else(|| panic!("{field} of {json}"))
}

#[test]
fn upserts_are_compared_with_inserts() {
    let store = tempfile::tempdir().unwrap();
    let options = ["--elements", "3k", "--rounds", "2", "--json"];
    let json = bench("upsert", store.path(), &options).done();
    assert_eq!((number(&json, "elements"), number(&json, "rounds")), (3_000.0, 2.0));

    for field in [
        "insert_s",
        "upsert_s",
        "upsert_over_insert",
        "ten_upserts_s",
        "ten_lookups_and_inserts_s",
        "speedup",
    ] {
        assert!(number(&json, field) > 0.0, "{field} of {json}");
    }

    let text = bench("upsert", store.path(), &["--elements", "300", "--rounds", "1"]);
    assert!(text.code == Some(0) && text.stdout.contains("upsert / insert"), "{text:?}");
    // Nothing stays behind.
    assert_eq!(std::fs::read_dir(store.path().join("active")).unwrap().count(), 0);
}

#[test]
fn a_union_gets_cheaper_while_its_debt_is_paid() {
    let store = tempfile::tempdir().unwrap();
    let options = ["--tables", "4", "--entries", "2k", "--batches", "3", "--rounds", "2", "--json"];
    let json = bench("union", store.path(), &options).done();
    let quarters = json["quarters"].as_array().unwrap();
    assert_eq!(quarters.len(), 5);
    let reads: Vec<f64> = quarters.iter().map(|round| number(round, "reads_per_lookup")).collect();
    assert!(reads.windows(2).all(|pair| pair[1] <= pair[0]), "{reads:?}");
    assert!(reads[4] < 1.05 && reads[0] > 1.5, "{reads:?}");
    assert_eq!(quarters[0]["debt"], json["debt"]);
    assert_eq!(quarters[4]["debt"], 0);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 100);
    assert!(number(&json["reference"], "lookups_per_s") > 0.0);
}

#[test]
fn small_commits_are_measured_alone_and_beside_other_work() {
    let place = Place::new();
    let store = place.store();
    let beside = "range-delete,compaction,checkpoint";
    let options = ["--threads", "2", "--tables", "2", "--seconds", "0.2", "--beside", beside];
    let json = bench("commits", &store, &[&options[..], &["--json"]].concat()).done();
    assert_eq!(json["beside"], serde_json::json!(["compaction", "checkpoint", "range-delete"]));
    assert_eq!((number(&json, "threads"), number(&json, "tables")), (2.0, 2.0));
    for field in ["run_s", "commits_per_s", "compaction_updates", "checkpoints", "ranges_deleted"] {
        assert!(number(&json, field) > 0.0, "{field} of {json}");
    }
    for field in ["latency_us", "idle_late_us"] {
        let latency = &json[field];
        assert!(number(latency, "ops") > 0.0, "{json}");
        let [p50, p9999, max] = ["p50", "p9999", "max"].map(|name| number(latency, name));
        assert!(0.0 < p50 && p50 <= p9999 && p9999 <= max, "{json}");
    }
    let difference = number(&json["latency_us"], "p9999") - number(&json["idle_late_us"], "p9999");
    assert!((number(&json, "p9999_beyond_idle_us") - difference).abs() < 1e-6, "{json}");
    assert_eq!((&json["by_hand_per_s"], &json["pages_max"]), (&Value::Null, &Value::Null));

    let options = ["--durability", "group", "--threads", "3", "--tables", "1", "--seconds", "0.1"];
    let json = bench("commits", &store, &[&options[..], &["--json"]].concat()).done();
    assert!(number(&json, "by_hand_per_s") > 0.0, "{json}");

    let options = ["--durability", "none", "--tables", "1", "--seconds", "0.1"];
    let json = bench("commits", &store, &[&options[..], &["--json"]].concat()).done();
    assert_eq!(json["pages_max"].as_u64().map(|pages| pages < 1_000_000), Some(true), "{json}");

    let text = bench("commits", &store, &["--seconds", "0.1", "--merges", "at-once"]);
    assert!(text.code == Some(0) && text.stdout.contains("idle timer"), "{text:?}");
    bench("commits", &store, &["--seconds", "0", "--json"]).failed(2);

    // Nothing stays behind.
    let tables = command().args(["table", "list", "--json", "--store"]).arg(&store).output();
    let json = Answer::from(tables.unwrap()).done();
    assert_eq!(json["tables"], serde_json::json!([]), "{json}");
}

#[test]
fn senseless_options_are_refused() {
    let store = tempfile::tempdir().unwrap();
    let message = bench("union", store.path(), &["--tables", "1", "--json"]).failed(2);
    assert!(message.contains("tables must be at least 2"), "{message}");
    bench("upsert", store.path(), &["--elements", "0", "--json"]).failed(2);

    // Absurd sizes allocated memory or overflowed a product before they were refused, and very few
    // entries gave NaN.
    for (workload, option, value) in [
        ("upsert", "--elements", "99999999999999"),
        ("union", "--entries", "9223372036854775807"),
        ("union", "--tables", "9223372036854775807"),
        ("union", "--rounds", "9223372036854775807"),
        ("union", "--entries", "1"),
    ] {
        let message = bench(workload, store.path(), &[option, value, "--json"]).failed(2);
        let name = option.trim_start_matches('-');
        assert!(message.contains(&format!("{name} must be at least")), "{message}");
    }

    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 0, "no store is made for them");
    let foreign = tempfile::tempdir().unwrap();
    std::fs::write(foreign.path().join("letter.txt"), "dear").unwrap();
    let message = bench("upsert", foreign.path(), &["--json"]).failed(2);
    assert!(message.contains("letter.txt"), "{message}");
    assert_eq!(std::fs::read_dir(foreign.path()).unwrap().count(), 1, "left as it was");
    let message = bench("upsert", &foreign.path().join("letter.txt"), &["--json"]).failed(2);
    assert!(message.contains("letter.txt"), "{message}");
}

/// A store without metadata was bad input to a benchmark and to a replay, and damage to the rest.
#[test]
fn a_damaged_store_is_exit_1_for_every_command() {
    let place = Place::new();
    let store = place.store();
    bench("upsert", &store, &["--elements", "9", "--rounds", "1", "--json"]).done();
    std::fs::remove_file(store.join("metadata")).unwrap();
    let history = place.write("history", b"terrane-changes 1\n");
    let list = ["snapshot", "delete", "a", "--json", "--store", text(&store)];

    for answer in [
        bench("upsert", &store, &["--json"]),
        bench("union", &store, &["--json"]),
        place.replay("changes", &[text(&history)]),
        command().args(list).output().unwrap().into(),
    ] {
        let message = answer.failed(1);
        assert!(message.contains("missing metadata"), "{message}");
    }
}

/// A signal was heeded only before a round, and by the last one never.
#[test]
fn ctrl_c_ends_a_benchmark_within_its_round() {
    let store = tempfile::tempdir().unwrap();
    let mut child = command();
    // Hours of work, in a single round.
    child.args(["bench", "upsert", "--elements", "1M", "--batch", "1", "--rounds", "1", "--json"]);
    child.arg("--store").arg(store.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    // A run is written once the round goes on.
    let active = store.path().join("active");

    while std::fs::read_dir(&active).map_or(0, Iterator::count) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the benchmark has ended");
        std::thread::yield_now();
    }

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let answer: Answer = child.wait_with_output().unwrap().into();
    assert_eq!(answer.failed(130), "interrupted");
    assert_eq!(std::fs::read_dir(active).unwrap().count(), 0, "nothing stays behind");
}

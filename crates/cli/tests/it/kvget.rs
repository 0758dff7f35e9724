//! `terrane bench kvget` and `terrane bench model`: the fields that other programs rely on.

use serde_json::Value;
use std::path::Path;

use crate::program::{Answer, Place, command, interrupted, text};
use crate::schema::{faults, schema};

fn kvget(what: &str, options: &[&str]) -> Answer {
    command().args(["bench", "kvget", what, "--quiet"]).args(options).output().unwrap().into()
}

fn model(options: &[&str]) -> Answer {
    command().args(["bench", "model"]).args(options).output().unwrap().into()
}

/// The fields of an object, sorted.
fn fields(json: &Value) -> Vec<&str> {
    json.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_run_reports_every_group_and_can_be_repeated_and_compared_with_the_model() {
    let place = Place::new();
    let store = place.store();
    let store = ["--store", text(&store)];
    let setup = kvget("setup", &[&store[..], &["--keys", "10k", "--json"]].concat()).done();
    assert_eq!((&setup["keys"], &setup["shape"]), (&10_000.into(), &"levelled-10".into()));
    assert!(setup["wall_s"].is_f64() && setup["host"]["kernel"].is_string(), "{setup}");
    let run = ["--reads", "2k", "--memory-budget", "50%", "--optimize-for", "hits", "--json"];
    let run = [&store[..], &run].concat();
    let answer = kvget("run", &run);
    let report = answer.done();
    check_schema(&report);
    assert_eq!(report["command"], "bench kvget run");
    assert_eq!((&report["status"], &report["source"]), (&"complete".into(), &"run".into()));
    assert!(report["command_line"].as_str().unwrap().ends_with("--optimize-for hits --json"));
    assert!(report["started_at"].as_str().unwrap().ends_with('Z') && report["wall_s"].is_f64());

    for (group, names) in [
        ("host", &["os", "kernel", "page_size_bytes", "container", "io_uring"][..]),
        ("workload", &["name", "seed", "stream_hash", "entries", "found", "missing", "verified"]),
        ("engine", &["engine", "options", "io_mode", "logical_bytes", "disk_bytes", "levels"]),
        (
            "memory",
            &[
                "budget_bytes",
                "budget_ratio",
                "memory_enforced",
                "enforced_by",
                "filter_bytes",
                "index_bytes",
                "cache_bytes",
                "write_buffer_bytes",
                "io_buffer_bytes",
            ],
        ),
        (
            "io",
            &[
                "engine",
                "classes",
                "io_per_get",
                "io_per_get_ci95",
                "io_per_hit",
                "bytes_per_get",
                "block_lookups_per_get",
                "request_size_histogram",
            ],
        ),
        ("convergence", &["converged", "warmup_ops", "index_refs_per_page", "windows"]),
        ("speed", &["ops_per_s", "lookups_per_s", "latency_us", "loop", "generate_us_per_op"]),
        ("model", &["predicted_io_per_hit", "predicted_io_per_miss", "model_error_ratio"]),
    ] {
        let found = fields(&report[group]);
        for name in names {
            assert!(found.contains(name), "{group} has no {name}: {found:?}");
        }
    }

    // Acceptance case 2, where there is a device that can be read past the page cache.
    if report["engine"]["io_mode"] == "direct" {
        assert_eq!(report["io"]["process_agrees"], true, "{}", report["io"]);
        assert_eq!(report["memory"]["enforced_by"], "direct_io");
    }

    let io_per_get = report["io_per_get"].as_f64().unwrap();
    let scaled = io_per_get * 1e4;
    assert!((scaled - scaled.round()).abs() < 1e-6, "four digits, not {io_per_get}");
    let again = kvget("run", &run).done();
    assert_eq!(again["workload"]["stream_hash"], report["workload"]["stream_hash"]);
    // Reads complete in any order, so the cache does not hold the same pages each time.
    let difference = again["io_per_get"].as_f64().unwrap() - io_per_get;
    assert!(difference.abs() < 0.02, "{difference}");
    let people = kvget("run", &[&store[..], &["--reads", "2k", "--absent", "50"]].concat());
    assert!(people.code == Some(0) && people.stdout.contains("I/O per GET"), "{people:?}");

    // Pages that were read before come out of the page cache, and are not taken for reads of the
    // device.
    let buffered = ["--reads", "2k", "--buffered", "--json"];
    let buffered = kvget("run", &[&store[..], &buffered].concat()).done();
    let bytes = |layer: &str| buffered["io"][layer]["read_bytes"].as_u64().unwrap();
    assert!(bytes("process") < bytes("engine") / 2, "{}", buffered["io"]);
    check_schema(&buffered);
    assert_eq!(buffered["memory"]["memory_enforced"], false);
    assert_eq!(buffered["warnings"][0]["code"], "memory_not_enforced");

    let file = place.write("run.json", answer.stdout.as_bytes());
    let beside = model(&["--beside", text(&file), "--json"]).done();
    assert_eq!(beside["measured"]["io_per_get"], report["io_per_get"]);
    assert_eq!(
        beside["predictions"][0]["predicted_io_per_hit"],
        report["model"]["predicted_io_per_hit"]
    );
}

#[test]
fn a_run_in_memory_needs_no_store_and_tells_the_ceiling() {
    let options = ["--in-memory", "--keys", "5k", "--reads", "2k", "--threads", "2", "--json"];
    let report = kvget("run", &options).done();
    check_schema(&report);
    assert_eq!(report["engine"]["io_mode"], "memory");
    assert!(report["speed"]["cpu_bound_ceiling_ops_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["workload"]["found"], 2_000);
}

/// Every report is what the schema that is shipped says, whatever the run.
fn check_schema(report: &Value) {
    let found = faults(&schema("bench-kvget-run.json"), report, "$");
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn recorded_reports_are_what_the_schema_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| text(name.as_ref()).starts_with("kvget-")) {
            check_schema(&serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap());
            count += 1;
        }
    }
    assert!(count >= 5, "{count} reports");
}

#[test]
fn a_report_goes_to_files_as_well() {
    let place = Place::new();
    let [out, jsonl, csv] = ["run.json", "run.jsonl", "run.csv"].map(|name| place.path(name));
    let files = ["--out", text(&out), "--jsonl", text(&jsonl), "--csv", text(&csv), "--json"];
    let run = ["--in-memory", "--keys", "5k", "--reads", "2k", "--memory-budget", "50%"];
    let answer = kvget("run", &[&run[..], &files].concat());
    let report = answer.done();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&out), answer.stdout);
    let lines = read(&jsonl);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (object, windows) = lines.split_last().unwrap();
    assert_eq!(*object, report);
    assert_eq!(windows.len() as u64, report["convergence"]["windows"].as_u64().unwrap());
    let sum = |name: &str| windows.iter().map(|window| window[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("ops"), sum("found")), (2_000, 2_000));
    assert_eq!(sum("read_requests"), report["io"]["engine"]["read_requests"].as_u64().unwrap());
    assert_eq!(windows[1]["first_op"], windows[0]["ops"]);
    let rows = read(&csv);
    let rows: Vec<Vec<&str>> = rows.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0].len()), (2, rows[1].len()));
    let cell = |name: &str| rows[1][rows[0].iter().position(|column| *column == name).unwrap()];
    assert_eq!(cell("io_per_get"), report["io_per_get"].to_string());
    assert_eq!((cell("workload_ops"), cell("status"), cell("speed_eta")), ("2000", "complete", ""));

    // Before anything is measured.
    let message = kvget("run", &[&run[..], &["--json", "--out", "/nonexistent/a"]].concat());
    assert!(message.failed(3).contains("/nonexistent/a"));
}

/// The report covers the measurement until then, with the exit code of an interruption.
#[test]
fn ctrl_c_ends_a_run_with_a_report_of_what_was_measured() {
    let place = Place::new();
    let out = place.path("run.json");
    let mut child = command();
    child.args(["bench", "kvget", "run", "--in-memory", "--keys", "2k", "--reads", "100M"]);
    child.args(["--warm", "fixed:1%", "--json", "--out", text(&out)]);
    // Setting the table up takes a small part of that time of the processor, and all reads hundreds
    // of times as much.
    let answer = interrupted(child, 150);
    assert_eq!(answer.failed(130), "interrupted");
    let report = answer.json();
    check_schema(&report);
    assert_eq!(report["status"], "interrupted");
    let ops = report["workload"]["ops"].as_u64().unwrap();
    assert!(ops > 0 && ops < 100_000_000, "{ops}");
    assert_eq!(report["workload"]["found"], ops);
    assert_eq!(std::fs::read_to_string(out).unwrap(), answer.stdout);
}

#[test]
fn the_model_predicts_without_a_store() {
    let json = model(&["--json"]).done();
    let rows = json["predictions"].as_array().unwrap();
    assert_eq!(rows.len(), 7);
    let hit = |row: &Value| format!("{:.3}", row["predicted_io_per_hit"].as_f64().unwrap());
    assert_eq!((hit(&rows[1]), hit(&rows[2])), ("1.039".to_owned(), "1.026".to_owned()));
    let options = ["--shape", "lazy-4", "--index-bytes", "8.25", "--memory", "0.5%", "--json"];
    let json = model(&options).done();
    assert_eq!(hit(&json["predictions"][0]), "1.105");
    let people = model(&["--filter", "bloom", "--optimize-for", "hits"]);
    assert!(people.code == Some(0) && people.stdout.contains("0.100 %"), "{people:?}");
}

#[test]
fn bad_options_and_reports_are_refused() {
    let place = Place::new();
    let store = place.store();
    let store = ["--store", text(&store), "--json"];
    let message = kvget("run", &store).failed(2);
    assert!(message.contains("terrane bench kvget setup"), "{message}");

    for options in [
        &["--absent", "101"][..],
        &["--memory-budget", "-1%"],
        &["--memory-budget", "1.5MiB"],
        &["--warm", "fixed"],
        &["--optimize-for", "speed"],
        // Said of the table in the store, which was set up as it was.
        &["--keys", "10k"],
        &["--in-memory"],
    ] {
        kvget("run", &[&store[..], options].concat()).failed(2);
    }

    let file = place.write("run.json", b"{}");
    let message = model(&["--beside", text(&file), "--json"]).failed(2);
    assert!(message.contains("run.json"), "{message}");
    model(&["--beside", "/nonexistent", "--json"]).failed(2);
    model(&["--index-bytes", "0", "--json"]).failed(2);
}

//! `terrane bench mixed` and `terrane bench disk`: the fields that other programs rely on, and the
//! options that are refused.

use crate::program::{Answer, Place, command, text};
use crate::schema::is_valid;

fn bench(arguments: &[&str]) -> Answer {
    command().args(["bench", "--quiet"]).args(arguments).output().unwrap().into()
}

#[test]
fn reads_beside_writes_are_what_the_schema_says() {
    let place = Place::new();
    let store = place.store();
    let store = ["--store", text(&store)];
    let run = ["mixed", "--ops", "5k", "--keys", "3k", "--distribution", "latest:0.99"];
    let run =
        [&run[..], &["--mix", "get:60,put:30,del:10", "--values", "bitcoin"], &store].concat();
    let options = ["--memory-budget", "1MiB", "--threads", "2", "--json"];
    let report = bench(&[&run[..], &options].concat()).done();
    is_valid("bench-mixed.json", &report);
    let workload = &report["workload"];
    assert_eq!((&workload["ops"], &workload["missing"]), (&5_000.into(), &0.into()));
    assert_eq!(workload["mix"], serde_json::json!({"get": 60, "put": 30, "delete": 10}));
    assert!(report["latency_us"]["get"]["p9999"].as_f64().unwrap() > 0.0);
    let people = bench(&run);
    assert!(people.code == Some(0) && people.stdout.contains("call of writes"), "{people:?}");

    for options in [
        &["--mix", "get:60"][..],
        &["--mix", "get:60,scan:40"],
        &["--distribution", "zipf:-1"],
        &["--distribution", "normal"],
        &["--threads", "0"],
    ] {
        bench(&[&run[..5], &store, options, &["--json"]].concat()).failed(2);
    }
}

#[test]
fn histograms_of_values_come_out_of_files() {
    let place = Place::new();
    let file = place.write("sizes", b"10 3\n\n400  1\n");
    let option = format!("hist:{}", text(&file));
    let run =
        ["kvget", "run", "--in-memory", "--keys", "1k", "--reads", "100", "--json", "--values"];
    let report = bench(&[&run[..], &[&option]].concat()).done();
    assert_eq!(report["workload"]["values"], "hist:10x3,400x1");
    let logical = report["engine"]["logical_bytes"].as_u64().unwrap();
    assert!(logical.abs_diff(1_000 * (32 + 107)) < 15_000, "{logical}");

    let bad = place.write("bad", b"10 3\n11\n");
    for (values, message) in [
        (format!("hist:{}", text(&bad)), "bad:2"),
        ("hist:/nonexistent".to_owned(), "/nonexistent"),
        ("dict:0".to_owned(), "dict:32"),
    ] {
        let found = bench(&[&run[..], &[&values]].concat()).failed(2);
        assert!(found.contains(message), "{found}");
    }
}

#[test]
fn the_device_alone_is_measured_and_nothing_is_left() {
    let place = Place::new();
    let dir = place.path("device");
    let run = ["disk", "--dir", text(&dir), "--depths", "1,8", "--seconds", "0.02"];
    let run = [&run[..], &["--file-bytes", "2MiB", "--appends", "3"]].concat();
    let report = bench(&[&run[..], &["--json"]].concat()).done();
    is_valid("bench-disk.json", &report);
    let depths = report["depths"].as_array().unwrap();
    assert_eq!(depths.len(), 3, "two depths, and all cores");
    assert_eq!((&depths[0]["depth"], &depths[1]["depth"]), (&1.into(), &8.into()));
    assert!(report["bare"]["append_sync_ms"]["p999"].as_f64().unwrap() > 0.0);
    let people = bench(&run);
    assert!(people.code == Some(0) && people.stdout.contains("idle timer"), "{people:?}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);

    for options in [&["--depths", "0"][..], &["--depths", "5000"], &["--seconds", "0"]] {
        bench(&[&run[..3], options, &["--json"]].concat()).failed(2);
    }
}

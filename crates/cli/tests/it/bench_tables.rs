//! `terrane bench` of one property of tables: small runs give every field of the reports, checked
//! results, and leave nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Answer, command};

fn bench(workload: &str, dir: &Path, options: &[&str]) -> Answer {
    let mut bench = command();
    let place = if workload == "queue" { "--dir" } else { "--store" };
    bench.args(["bench", workload, "--quiet", place]).arg(dir).args(options);
    bench.output().unwrap().into()
}

/// Checks that fields are positive numbers.
#[track_caller]
fn are_positive(json: &Value, fields: &[&str]) {
    for field in fields {
        let number = json[field].as_f64().unwrap_or_else(|| panic!("{field} of {json}"));
        assert!(number > 0.0 && number.is_finite(), "{field} of {json}");
    }
}

fn count_of(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Checks that a session in `dir` has neither runs nor snapshots.
#[track_caller]
fn is_empty_session(dir: &Path) {
    assert_eq!((count_of(&dir.join("active")), count_of(&dir.join("snapshots"))), (0, 0));
}

#[test]
fn ingest_inserts_deletes_and_finds_the_other_half() {
    let store = tempfile::tempdir().unwrap();
    let json = bench("ingest", store.path(), &["--entries", "3k", "--json"]).done();
    assert_eq!((&json["command"], &json["entries"]), (&"bench ingest".into(), &3_000.into()));
    assert_eq!(json["found"], 1_500);
    let rates = ["inserts_per_s", "deletes_per_s", "updates_per_s", "lookups_per_s"];
    are_positive(&json, &rates);
    assert!(json["stored_entries"].as_u64() >= Some(3_000), "{json}");
    assert!(json["reads_per_lookup"].is_number() && json["runs"].is_number(), "{json}");

    let text = bench("ingest", store.path(), &["--entries", "100", "--batch", "7"]);
    assert!(text.code == Some(0) && text.stdout.contains("50 found"), "{text:?}");
    is_empty_session(store.path());
}

#[test]
fn scans_read_whole_tables_which_stay_only_if_they_are_kept() {
    let store = tempfile::tempdir().unwrap();
    let options = ["--entries", "3k", "--rounds", "1", "--json"];
    let json = bench("scan", store.path(), &options).done();
    assert_eq!(json["is_reused"], false);
    let scans = json["rounds"][0]["scans"].as_array().unwrap();
    let names = |scan: &Value| [scan["table"].clone(), scan["direction"].clone()];
    assert_eq!(
        scans.iter().map(names).collect::<Vec<_>>(),
        [
            ["one_run", "forward"],
            ["one_run", "backward"],
            ["steady", "forward"],
            ["steady", "backward"],
        ]
    );
    for scan in scans {
        are_positive(scan, &["wall_s", "entries_per_s", "cpu_ns_per_entry"]);
        assert!(scan.get("ratio_to_device").is_none(), "{scan}");
    }
    // The pages of a run hold at least the keys and values of its entries.
    assert_eq!(scans[0]["runs"], 1);
    assert!(scans[0]["read_bytes"].as_u64() >= Some(3_000 * 94), "{json}");
    is_empty_session(store.path());

    let kept = bench("scan", store.path(), &[&options[..], &["--keep"]].concat()).done();
    let again = bench("scan", store.path(), &options).done();
    assert_eq!((&kept["is_reused"], &again["is_reused"]), (&false.into(), &true.into()));
    assert!(count_of(&store.path().join("snapshots")) > 0, "they were there before");

    // Tables with other entries are replaced.
    let text = bench("scan", store.path(), &["--entries", "100", "--rounds", "2"]);
    assert!(text.code == Some(0) && text.stdout.contains("levels, backward"), "{text:?}");
    is_empty_session(store.path());
}

#[test]
fn a_diff_of_neighbours_reads_less_than_one_of_all_versions() {
    let store = tempfile::tempdir().unwrap();
    // The memtable is flushed twice while the table is filled, and a third time between versions.
    let sizes = ["--entries", "58k", "--updates", "3k", "--versions", "3", "--json"];
    let json = bench("diff", store.path(), &sizes).done();
    for kind in ["flushed", "unflushed", "whole"] {
        are_positive(&json[kind], &["diffs", "wall_ms_median"]);
        assert!(json[kind]["pages_max"].as_u64() >= json[kind]["pages_median"].as_u64(), "{json}");
    }
    let pages = |kind: &str| json[kind]["pages_median"].as_u64().unwrap();
    assert!(pages("unflushed") <= pages("whole") && pages("whole") > 0, "{json}");
    are_positive(&json, &["runs", "stored_entries"]);
    assert!(json["compaction_pages_max"].is_u64(), "{json}");

    // Too few updates for a flush.
    let sizes = ["--entries", "1k", "--updates", "5", "--versions", "9"];
    let text = bench("diff", store.path(), &sizes);
    assert!(text.code == Some(0) && text.stdout.contains("neighbours, no flush"), "{text:?}");
    assert!(!text.stdout.contains("a flush between"), "{text:?}");
    is_empty_session(store.path());
}

#[test]
fn forks_hold_what_later_ones_lost() {
    let store = tempfile::tempdir().unwrap();
    let sizes = ["--forks", "8", "--blocks", "70", "--entries", "1k", "--json"];
    let json = bench("forks", store.path(), &sizes).done();
    are_positive(&json, &["plain_updates_per_s", "forked_updates_per_s", "rate_ratio"]);
    assert_eq!((&json["updates_per_block"], &json["checked_forks"]), (&512.into(), &1.into()));
    if cfg!(target_os = "linux") {
        are_positive(&json, &["open_files"]);
        assert!(json["forks_memory_bytes"].is_i64(), "{json}");
    }

    let text = bench("forks", store.path(), &["--forks", "1", "--blocks", "1", "--entries", "256"]);
    assert!(text.code == Some(0) && text.stdout.contains("0 old forks"), "{text:?}");
    is_empty_session(store.path());
}

#[test]
fn retained_versions_and_undo_records_lead_back() {
    let place = tempfile::tempdir().unwrap();
    let json = bench("retained", place.path(), &["--blocks", "13", "--json"]).done();
    for way in ["plain", "undo_records", "versions"] {
        are_positive(&json[way], &["wall_s", "block_ms", "write_bytes", "disk_bytes"]);
    }
    for way in ["undo_records_to_plain", "versions_to_plain"] {
        are_positive(&json[way], &["write_ratio", "time_ratio"]);
    }
    // Undo records are written beside the blocks.
    assert!(json["undo_records"]["write_bytes"].as_u64() > json["plain"]["write_bytes"].as_u64());
    let entries = |at: usize| json["opened"][at]["entries"].as_u64().unwrap();
    assert_eq!([entries(0), entries(1), entries(2)], [512, 512 + 6 * 256, 512 + 12 * 256]);
    assert_eq!(json["roll_back_blocks"], 10);

    let text = bench("retained", place.path(), &["--blocks", "1"]);
    assert!(text.code == Some(0) && text.stdout.contains("0 blocks in"), "{text:?}");
    assert_eq!(count_of(place.path()), 0);
}

#[test]
fn a_store_whose_process_was_killed_opens_and_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let sizes = ["--entries", "2k", "--wal-bytes", "103kB", "--commits", "20"];
    let json = bench("recover", place.path(), &[&sizes[..], &["--json"]].concat()).done();
    assert_eq!((&json["entries"], &json["wal_updates"]), (&2_000.into(), &1_000.into()));
    // Two commits of 1,000 entries, and two of the 1,000 updates after the checkpoint.
    assert_eq!((&json["commits_before"], &json["commits"]), (&4.into(), &20.into()));
    assert_eq!(json["open_s"].as_array().unwrap().len(), 2);
    are_positive(&json, &["first_commit_ms", "later_commit_ms_max"]);

    let text = bench("recover", place.path(), &sizes);
    assert!(text.code == Some(0) && text.stdout.contains("first commit"), "{text:?}");
    assert_eq!(count_of(place.path()), 0);
}

#[test]
fn a_queue_reads_the_pages_that_were_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let sizes = ["--file-bytes", "100kB", "--depth", "4", "--reads", "3k", "--json"];
    for (options, access) in [
        (&["--queue", "threads"][..], "direct"),
        (&["--queue", "threads", "--buffered"], "buffered"),
    ] {
        let json = bench("queue", place.path(), &[&sizes[..], options].concat()).done();
        assert_eq!((&json["queue"], &json["access"]), (&"threads".into(), &access.into()));
        assert_eq!((&json["file_bytes"], &json["reads"]), (&(1 << 20).into(), &3_000.into()));
        are_positive(&json, &["wall_s", "reads_per_s", "cpu_us_per_read"]);
    }

    let text = bench("queue", place.path(), &["--file-bytes", "1MiB", "--reads", "10"]);
    assert!(text.code == Some(0) && text.stdout.contains("us a read"), "{text:?}");
    assert_eq!(count_of(place.path()), 0);
}

#[test]
fn senseless_options_and_directories_in_use_are_refused() {
    let place = tempfile::tempdir().unwrap();
    for (workload, options, reason) in [
        ("ingest", ["--entries", "99999999999"], "entries must be at least 1"),
        ("scan", ["--entries", "1"], "entries must be at least 2"),
        ("diff", ["--entries", "5k"], "entries must be at least 5002000"),
        ("forks", ["--entries", "255"], "entries must be at least 256"),
        ("retained", ["--blocks", "99999999999"], "blocks must be at least 1"),
        ("recover", ["--wal-bytes", "102"], "wal bytes / 103 must be at least 1"),
        ("queue", ["--depth", "4097"], "depth must be at least 1 and at most 4096"),
    ] {
        let message =
            bench(workload, place.path(), &[&options[..], &["--json"]].concat()).failed(2);
        assert!(message.contains(reason), "{message}");
    }
    assert_eq!(count_of(place.path()), 0, "nothing is made for them");

    for workload in ["retained", "recover"] {
        let dir = place.path().join(workload);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("letter.txt"), "dear").unwrap();
        let message = bench(workload, place.path(), &["--json"]).failed(2);
        assert!(message.contains("exists"), "{message}");
        assert_eq!(count_of(&dir), 1, "left as it was");
    }
}

#[test]
fn ctrl_c_ends_the_process_that_fills_a_store_too() {
    let place = tempfile::tempdir().unwrap();
    let mut child = command();
    // Minutes of work before the process would be killed.
    child.args(["bench", "recover", "--entries", "90M", "--json", "--store"]).arg(place.path());
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let store = place.path().join("recover/store");
    while count_of(&store) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the benchmark has ended");
        std::thread::yield_now();
    }

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let answer: Answer = child.wait_with_output().unwrap().into();
    assert_eq!(answer.failed(130), "interrupted");
    assert_eq!(count_of(place.path()), 0, "nothing stays behind");
}

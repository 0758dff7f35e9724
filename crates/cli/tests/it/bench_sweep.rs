//! `terrane bench sweep`, `compare` and `import-bench-kvdb`: journals that survive a kill,
//! regressions that are found, logs that become results.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::program::{Answer, Place, command, text};
use crate::schema::is_valid;

fn bench(arguments: &[&str]) -> Answer {
    command().args(["bench", "--quiet"]).args(arguments).output().unwrap().into()
}

/// A sweep of points that take a few hundredths of a second each.
fn sweep(journal: &Path, options: &[&str]) -> Command {
    let mut sweep = command();
    sweep.args(["bench", "sweep", "--quiet", "--json", "--journal"]).arg(journal).args(options);
    let point = ["--", "kvget", "run", "--in-memory", "--keys", "500", "--warm", "fixed:1%"];
    sweep.args(point).args(["--reads", "200"]);
    sweep
}

const VARY: [&str; 4] = ["--vary", "batch=1,64", "--vary", "absent=0,50,100"];

fn answer(mut sweep: Command) -> Answer {
    sweep.output().unwrap().into()
}

#[test]
fn every_combination_has_a_record_and_no_point_runs_twice() {
    let place = Place::new();
    let journal = place.path("sweep.jsonl");
    let listed = answer(sweep(&journal, &[&VARY[..], &["--dry-run"]].concat())).done();
    assert_eq!((&listed["points"], &listed["done"]), (&6.into(), &0.into()));
    assert!(!journal.exists(), "a dry run writes nothing");
    is_valid("bench-sweep.json", &listed);
    // 500 entries of 142 bytes, three times at most, in memory alone.
    let estimate = json!({"disk_bytes": 0, "memory_bytes": 213_000});
    assert_eq!(listed["results"][5]["estimate"], estimate);

    let limited = [&VARY[..], &["--max-seconds", "0.001"]].concat();
    let report = answer(sweep(&journal, &limited)).done();
    assert!(report["done"].as_u64().unwrap() < 6 && report["status"] == "time_limit", "{report}");
    is_valid("bench-sweep.json", &report);
    let report = answer(sweep(&journal, &[&VARY[..], &["--resume"]].concat())).done();
    assert_eq!((&report["done"], &report["status"]), (&6.into(), &"complete".into()));
    is_valid("bench-sweep.json", &report);

    let results = report["results"].as_array().unwrap();
    let options: BTreeSet<String> =
        results.iter().map(|result| result["options"].to_string()).collect();
    assert_eq!(options.len(), 6);
    for result in results {
        let workload = &result["report"]["workload"];
        let absent: f64 = result["options"]["absent"].as_str().unwrap().parse().unwrap();
        assert_eq!(workload["absent_ratio"].as_f64(), Some(absent / 100.0));
        assert_eq!(
            workload["batch_size"].to_string(),
            result["options"]["batch"].as_str().unwrap()
        );
    }

    let lines = std::fs::read_to_string(&journal).unwrap();
    assert_eq!(lines.lines().count(), 7, "a header and six points");
    let again = answer(sweep(&journal, &[&VARY[..], &["--resume"]].concat())).done();
    assert_eq!((&again["run"], &again["results"]), (&0.into(), &report["results"]));

    // Another sweep is refused by the name of what differs; so is a journal that exists.
    let other = ["--vary", "batch=1,63", "--vary", "absent=0,50,100", "--resume"];
    assert!(answer(sweep(&journal, &other)).failed(2).ends_with("differs in vary"));
    assert!(answer(sweep(&journal, &VARY)).failed(2).contains("--resume"));
    assert_eq!(std::fs::read_to_string(&journal).unwrap(), lines);

    let damaged = lines.replacen("kvget", "kvgot", 1);
    std::fs::write(&journal, damaged).unwrap();
    assert!(
        answer(sweep(&journal, &[&VARY[..], &["--resume"]].concat())).failed(1).contains(":1:")
    );
}

/// Acceptance case 9: SIGKILL in the middle of a sweep, and a half-written record.
#[test]
fn a_killed_sweep_goes_on_where_it_was() {
    let place = Place::new();
    let journal = place.path("sweep.jsonl");
    let vary = ["--vary", "batch=1,2,3,4,5,6,7,8"];
    let mut child = sweep(&journal, &vary).stdout(Stdio::null()).spawn().unwrap();
    let records = || std::fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    while records() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the sweep has ended");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let before = std::fs::read_to_string(&journal).unwrap();
    let whole = before.lines().count() - 1;
    assert!(whole < 8, "killed in the middle");
    std::fs::write(&journal, format!("{before}{{\"checksum\":\"0123")).unwrap();

    let report = answer(sweep(&journal, &[&vary[..], &["--resume"]].concat()));
    assert!(report.stderr.contains("half-written"), "{report:?}");
    let report = report.done();
    assert_eq!((&report["done"], &report["run"]), (&8.into(), &(8 - whole).into()));
    let after = std::fs::read_to_string(&journal).unwrap();
    assert!(after.starts_with(&before) && after.lines().count() == 9, "{after}");
    for line in after.lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()["record"].is_object());
    }
}

/// Goal: a time limit ends a point that would take for minutes, between two of its windows, and the
/// point runs again. Method: a hundred million reads, and a limit of a tenth of a second.
#[test]
fn a_time_limit_ends_the_point_under_way() {
    let place = Place::new();
    let journal = place.path("sweep.jsonl");
    let mut sweep = command();
    sweep.args(["bench", "sweep", "--quiet", "--json", "--journal"]).arg(&journal);
    sweep.args(["--vary", "batch=1,64", "--max-seconds", "0.1", "--"]);
    sweep.args(["kvget", "run", "--in-memory", "--keys", "500", "--reads", "100M"]);
    let report = answer(sweep).done();
    assert_eq!((&report["status"], &report["done"]), (&"time_limit".into(), &0.into()));
    assert_eq!(std::fs::read_to_string(&journal).unwrap().lines().count(), 1, "a header alone");
}

/// Estimates count the entries that options name, of the point or of all points.
#[test]
fn a_dry_run_estimates_disk_and_memory() {
    let place = Place::new();
    let estimates = |vary: &str, point: &[&str]| {
        let mut sweep = command();
        sweep.args(["bench", "sweep", "--json", "--dry-run", "--journal"]).arg(place.path("none"));
        let report = answer({
            sweep.args(["--vary", vary, "--"]).args(point);
            sweep
        })
        .done();
        is_valid("bench-sweep.json", &report);
        let results = report["results"].as_array().unwrap().clone();
        results.into_iter().map(|mut result| result["estimate"].take()).collect::<Vec<_>>()
    };
    let of_keys = estimates("keys=1k,2k", &["mixed", "--store", "DIR", "--memory-budget=1MiB"]);
    let expected = |keys: u64| json!({"disk_bytes": keys * 426, "memory_bytes": 1 << 20});
    assert_eq!(of_keys, [expected(1_000), expected(2_000)]);
    let shared = ["kvget", "run", "--in-memory", "--keys", "1M"];
    let of_memory = estimates("memory-budget=1%", &shared);
    assert_eq!(of_memory, [json!({"disk_bytes": 0, "memory_bytes": 427_420_000})]);
    assert_eq!(estimates("batch=1", &["kvget", "run", "--store", "DIR"]), [json!(null)]);
}

#[test]
fn a_point_that_fails_ends_the_sweep() {
    let place = Place::new();
    let journal = place.path("sweep.jsonl");
    let message = answer(sweep(&journal, &["--vary", "absent=0,101"])).failed(2);
    assert!(message.contains("--absent=101"), "{message}");
    let report =
        answer(sweep(&journal, &["--vary", "absent=0,101", "--resume", "--dry-run"])).done();
    assert_eq!(report["done"], 1, "the point before it has its record");
    for vary in ["absent", "absent=", "=1", "absent=1,1", "a b=1"] {
        answer(sweep(&place.path("other"), &["--vary", vary])).failed(2);
    }
}

#[test]
fn a_deliberate_regression_is_caught() {
    let place = Place::new();
    let run = ["kvget", "run", "--in-memory", "--keys", "1k", "--reads", "1k", "--json"];
    let old: Value = bench(&run).done();
    let write = |name: &str, report: &Value| {
        text(&place.write(name, report.to_string().as_bytes())).to_owned()
    };
    let mut new = old.clone();
    let reads = old["io_per_get"].as_f64().unwrap();
    new["io_per_get"] = json!(reads * 1.2);
    new["io"]["io_per_get"] = json!(reads * 1.2);
    let [a, b] = [write("a.json", &old), write("b.json", &new)];

    let rule = ["--fail-if", "io_per_get>+3%", "--json"];
    let same = bench(&[&["compare", &a, &a][..], &rule].concat()).done();
    assert_eq!(same["metrics"][0]["metric"], "io_per_get");
    let answer = bench(&[&["compare", &a, &b][..], &rule].concat());
    assert!(answer.failed(1).contains("io_per_get>+3%"));
    is_valid("bench-compare.json", &answer.json());
    is_valid("bench-compare.json", &same);
    let metric = &answer.json()["metrics"][0];
    assert!((metric["change_ratio"].as_f64().unwrap() - 0.2).abs() < 1e-9, "{metric}");
    assert_eq!(metric["broken"], json!(["io_per_get>+3%"]));
    bench(&["compare", &b, &a, "--fail-if", "io_per_get>+3%", "--json"]).done();
    let people = bench(&["compare", &format!("{a},{a}"), &format!("{b},{b}")]);
    assert!(people.code == Some(0) && people.stdout.contains("+20.00 %"), "{people:?}");

    // Unlike work, files that are no reports, rules of another form.
    new["workload"]["entries"] = json!(7);
    let other = write("c.json", &new);
    assert!(bench(&["compare", &a, &other, "--json"]).failed(2).contains("workload.entries"));
    bench(&["compare", &a, &other, "--force", "--json"]).done();
    let empty = write("d.json", &json!({}));
    for arguments in [
        &["compare", &a, &empty][..],
        &["compare", &a, "/nonexistent"],
        &["compare", &a, &b, "--fail-if", "io_per_get>3%"],
        &["compare", &a, &b, "--fail-if", "p99>+3%x"],
        &["compare", &a, &b, "--fail-if", "nothing>+3%"],
        &["compare", &a],
    ] {
        bench(&[arguments, &["--json"]].concat()).failed(2);
    }
}

/// A log of the published form with counters of our own.
fn log() -> String {
    let table = |factor: u64| {
        let row = |name: &str, hits: u64, misses: u64| {
            let (hits, misses) = (hits * factor, misses * factor);
            format!("example.com/db.{name}\t{hits}\t{misses}\t{}\t0.50\n", hits + misses)
        };
        let rows = [
            row("readFilter", 2_000, 10),
            row("readIndex", 3_000, 20),
            row("readMetaindex", 0, 5),
            row("loadBlock", 10, 1_000),
            row("loadIndex", 800, 215),
        ];
        format!(
            "\nCache Statistics:\n----\nCaller\t\tHits\tMisses\tCalls\tHitRate\n{}",
            rows.concat()
        )
    };
    format!(
        "Threads: 64\nTotal data: 2000 while needInit=false\nOps: 0 write ops and 1000 read ops\n{}\
         ========= Warn up done ===============\n\
         Random read: 1000 ops in 500.00 ms (2000.00 ops/s)\n\
         Filter: Hit Count 1500; Miss Count: 500\nBlockCache: Hit Count 5810; Miss Count: 1250\n\
         TableCache: Hit Count 4000; Miss Count: 0\nAvg I/O per Get \u{2248} 1.2500\nDB State \n{}",
        table(1),
        table(2)
    )
}

#[test]
fn published_logs_become_results() {
    let place = Place::new();
    let good = place.write("RadmonRead_2B_45M.log", log().as_bytes());
    let other = place.write("run.log", log().as_bytes());
    let import = |arguments: &[&str]| bench(&[&["import-bench-kvdb"][..], arguments].concat());
    let report = import(&[text(&good), "--json"]).done();
    is_valid("bench-import-bench-kvdb.json", &report);
    let result = &report["imported"][0];
    assert_eq!((&result["io_per_get"], &result["cache_bytes"]), (&1.25.into(), &(45 << 20).into()));
    assert_eq!(
        (&result["source"], &result["memory_enforced"]),
        (&"imported".into(), &false.into())
    );
    assert!(import(&[text(&other), "--json"]).failed(2).contains("--cache-mb"));
    let both = import(&[text(&good), text(&other), "--cache-mb", "7"]);
    assert!(both.code == Some(0) && both.stdout.lines().count() == 2, "{both:?}");

    let bad = place.write("RadmonRead_2B_46M.log", log().replace("1.2500", "1.2600").as_bytes());
    assert!(import(&[text(&bad), "--json"]).failed(2).contains("RadmonRead_2B_46M.log"));
    import(&["/nonexistent", "--json"]).failed(2);
}

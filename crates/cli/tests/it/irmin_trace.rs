//! `terrane replay irmin-trace`: the published trace, its hash, damage, and a recorded workload with collections.

use serde_json::Value;
use terrane_bench::engines::context_store::{ContextStore, Settings};
use terrane_bench::workload::context::{Generator, Options, profile, record};

use crate::program::{Answer, Place, text};

/// A file of irmin's own tests: one commit, and a row that is cut.
const TRACE: &str = concat!(
    "49726d5265704254000000000019040204646174610776657273696f6e000100000000000000002901020464617461077665",
    "7273696f6e0767656e6573697300000000000000000001000000000000000123040204646174611173616e64626f785f7061",
    "72616d65746572000100000000000000013e01010870726f746f636f6c2038ecdef0cd08640f318a9b055f6b0d0c9ae03091",
    "3a871d9b9d86fb846317da210000000000000000010100000000000000022101010a746573745f636861696e010000000000",
    "000000000201000000000000000351070134436f56385351756d69565539736169753346564e65444e65774a614a48387957",
    "6473474633574c6473527232503953374d7a436a000000005b37aac40747656e657369730000000000000000000340000134",
);
const COMMIT: &str = "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj";

fn published() -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&TRACE[at..at + 2], 16).unwrap();
    (0..TRACE.len()).step_by(2).map(digit).collect()
}

fn replay(place: &Place, trace: &[u8], arguments: &[&str]) -> Answer {
    let file = place.write("trace", trace);
    place.replay("irmin-trace", &[&[text(&file)], arguments].concat())
}

/// A21.
#[test]
fn the_published_trace_ends_in_the_published_commit_and_its_cut_row_is_tolerated() {
    let place = Place::new();
    for _ in 0..2 {
        // The second time all objects are there already.
        let report = replay(&place, &published(), &[]).done();
        assert_eq!(report["last_commit"], COMMIT);
        for (name, expected) in
            [("commits", 1), ("ops", 6), ("checks_passed", 3), ("truncated_at", 296)]
        {
            assert_eq!(report[name], expected, "{name}");
        }
        assert_eq!(report["operations"]["adds"], 3);
        assert_eq!(report["transactions_assumed"], true);
        for name in ["tps", "ops_per_s", "wall_s", "store_bytes", "rss_bytes", "cpu_s"] {
            assert!(report[name].as_f64() > Some(0.0), "{name}: {report}");
        }
        for name in ["mean", "stddev", "p50", "p90", "p99", "p999", "max"] {
            assert!(report["block_latency_ms"][name].is_f64(), "{name}: {report}");
        }
        assert!(report["read_bytes"].is_u64() && report["write_bytes"].is_u64(), "{report}");
    }
    // What is not looked at is not cut.
    let report = replay(&place, &published(), &["--until", "1"]).done();
    assert_eq!((&report["truncated_at"], &report["commits"]), (&Value::Null, &1.into()));
}

/// A21.
#[test]
fn a_wrong_answer_or_hash_stops_it_with_block_and_row() {
    let trace = published();
    let genesis = trace.windows(7).position(|bytes| bytes == b"genesis").unwrap();
    let mut other = trace.clone();
    other[genesis] ^= 1;
    let place = Place::new();
    let message = replay(&place, &other, &[]).failed(1);
    assert!(message.contains("trace: block 0, row 5: commit Co"), "{message}");
    assert!(message.ends_with(&format!("recorded {COMMIT}")), "{message}");
    let report = replay(&place, &other, &["--no-check"]).done();
    assert_ne!(report["last_commit"], COMMIT);
    let mut other = trace.clone();
    // The answer of the first row, behind its key.
    let answer = trace.windows(7).position(|bytes| bytes == b"version").unwrap() + 8;
    assert_eq!(other[answer], 1, "a scope");
    other[answer - 1] = 1;
    let message = replay(&place, &other, &[]).failed(1);
    assert!(message.contains("block 0, row 0: find data/version: recorded true, found false"));
}

#[test]
fn what_is_no_trace_and_what_is_no_store_are_refused() {
    let place = Place::new();
    replay(&place, b"IrmRepBU", &[]).failed(2);
    let message = place.replay("irmin-trace", &["absent"]).failed(2);
    assert!(message.contains("absent"), "{message}");
    let place = Place::new();
    let file = place.write("store/mine", b"1");
    let message = replay(&place, &published(), &[]).failed(2);
    assert!(message.contains("no context store of Terrane: it has \"mine\""), "{message}");
    assert_eq!(std::fs::read(file).unwrap(), b"1");
}

#[test]
fn a_recorded_workload_gives_the_same_hashes_also_while_old_commits_are_collected() {
    let place = Place::new();
    let options =
        Options { seed: 3, values: 20_000, profile: &profile::YEAR_2021, fork_every: Some(3) };
    let mut trace = Vec::new();
    let mut engine = ContextStore::open(&place.path("recorded"), Settings::default()).unwrap();
    let tip = record::record(&mut Generator::new(options).unwrap(), &mut engine, 12, &mut trace);
    let tip = tip.unwrap().to_string();
    let collected =
        ["--gc-every", "4", "--gc-distance", "3", "--relaxed", "--memory-budget", "1MiB"];
    for (arguments, collections) in [(&[][..], 0), (&collected[..], 3)] {
        let place = Place::new();
        let report = replay(&place, &trace, arguments).done();
        assert_eq!(
            (&report["last_commit"], &report["commits"]),
            (&tip.as_str().into(), &13.into())
        );
        assert_eq!(report["collections"], collections);
    }
}

//! The model of reads beside the recorded runs of `bench kvget`.
//!
//! Goal: lookups cost what the model says, and as much at every size of the table. Method: the runs
//! in `bench/results` are compared with the predictions that they carry, and with each other.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::results::recorded;

/// Reads that a prediction may miss by where it says next to none.
const SMALL_READS: f64 = 0.01;

fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer}"))
}

/// Runs of record that converged in tables of levels apart by ten.
fn runs() -> BTreeMap<String, Value> {
    let runs = recorded().into_iter().filter(|(_, report)| {
        report["command"] == "bench kvget run"
            && report.pointer("/engine/options/shape").is_some_and(|shape| shape == "levelled-10")
    });
    let runs: BTreeMap<String, Value> = runs.collect();
    for (name, report) in &runs {
        assert_eq!(report.pointer("/convergence/converged"), Some(&true.into()), "{name}");
    }
    runs
}

#[test]
fn recorded_reads_are_within_three_per_cent_of_the_model() {
    let runs = runs();
    assert!(runs.len() >= 12, "{:?}", runs.keys());
    for (name, report) in runs {
        let absent = number(&report, "/workload/absent_ratio");
        let predicted = number(&report, "/model/predicted_io_per_hit") * (1.0 - absent)
            + number(&report, "/model/predicted_io_per_miss") * absent;
        let measured = number(&report, "/io_per_get");
        let bound = (0.03 * predicted).max(SMALL_READS);
        assert!((measured - predicted).abs() <= bound, "{name}: {measured}, not {predicted}");
    }
}

#[test]
fn recorded_reads_do_not_depend_on_the_number_of_keys() {
    // By memory and share of absent keys, both in thousandths: keys and reads.
    let mut sizes: BTreeMap<(u64, u64), Vec<(u64, f64)>> = BTreeMap::new();
    for report in runs().into_values() {
        let thousandths = |pointer| (number(&report, pointer) * 1e3).round() as u64;
        let group = (thousandths("/memory/budget_ratio"), thousandths("/workload/absent_ratio"));
        let keys = number(&report, "/workload/entries") as u64;
        let point = (keys, number(&report, "/io_per_get"));
        sizes.entry(group).or_default().push(point);
    }

    for group in [(2, 0), (5, 0), (10, 0), (5, 1_000), (10, 1_000)] {
        let points = &sizes[&group];
        for keys in [1_000_000, 10_000_000, 100_000_000] {
            assert!(points.iter().any(|point| point.0 == keys), "{group:?}: no run of {keys} keys");
        }
        let reads = points.iter().map(|point| point.1);
        let (least, most) =
            reads.fold((f64::MAX, 0.0_f64), |(least, most), io| (least.min(io), most.max(io)));
        assert!(most - least <= (0.02 * most).max(SMALL_READS), "{group:?}: {points:?}");
    }
}

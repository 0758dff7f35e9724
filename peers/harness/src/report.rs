//! Plans and outcomes of points: what the journal and the results hold.

use serde::{Deserialize, Serialize};
use terrane_replay::latency::Latency;

use crate::engine::{Durability, Root};
use crate::kind::Kind;
use crate::work::Workload;

/// A point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The engine.
    pub engine: Kind,
    /// The workload.
    pub workload: Workload,
    /// Entries that are loaded.
    pub entries: u64,
    /// Bytes for process and page cache together.
    pub memory_bytes: u64,
    /// Seconds before the clock starts.
    pub warm_s: f64,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seed of keys, values and draws.
    pub seed: u64,
    /// Which repetition this is.
    pub round: u64,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "percentiles")]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    pub max: f64,
}

impl Percentiles {
    /// Percentiles of a histogram; none of an empty one.
    pub fn of(latency: &Latency) -> Option<Self> {
        let report = latency.report();
        (report.ops > 0).then_some(Self {
            p50: report.p50,
            p99: report.p99,
            p999: report.p999,
            p9999: report.p9999,
            max: report.max,
        })
    }
}

/// The outcome of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The point.
    pub plan: Plan,
    /// Description that the engine gives of itself.
    pub about: Option<AboutReport>,
    /// The sentence of an engine that cannot do this workload. Then there are no figures.
    pub cannot: Option<String>,
    /// The error of an engine that failed. Then there are no figures.
    pub failed: Option<String>,
    /// The figures.
    pub figures: Option<Figures>,
}

impl Outcome {
    /// How a root differs from that of another point with the same scheme and the same entries
    /// after the same number of blocks.
    pub fn differing_root(&self, other: &Self) -> Option<String> {
        if (self.plan.entries, self.plan.seed) != (other.plan.entries, other.plan.seed) {
            return None;
        }
        let (own, others) = self.figures.as_ref().zip(other.figures.as_ref())?;
        own.roots.iter().find_map(|(block, root)| {
            let (_, expected) = others.roots.iter().find(|(at, expected)| {
                at == block && expected.scheme == root.scheme && expected.hash != root.hash
            })?;
            Some(format!(
                "wrong answer: after block {block} its root is {}, that of {} {}",
                root.hash, other.plan.engine, expected.hash
            ))
        })
    }
}

/// [`About`] in a report.
pub type AboutReport = serde_json::Value;

/// The figures of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The mechanism that enforced the limit on memory.
    pub memory_enforced_by: String,
    /// The event that commits survive.
    pub durability: Durability,
    /// Seconds of the load, with its end; absent without one.
    pub load_s: Option<f64>,
    /// Seconds of the open that was measured under the limit.
    pub open_s: f64,
    /// Operations that were measured.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latency of calls that read.
    pub reads_us: Option<Percentiles>,
    /// Latency of calls that write.
    pub writes_us: Option<Percentiles>,
    /// Processor time of all threads, for each operation.
    pub cpu_us_per_op: f64,
    /// Bytes that the process made the device read, for each operation.
    pub read_bytes_per_op: f64,
    /// Bytes that it made the device write, for each operation.
    pub write_bytes_per_op: f64,
    /// Requests to read that the device completed, for each operation, by anyone.
    pub device_reads_per_op: Option<f64>,
    /// The most memory of the process, the workload's own included.
    pub rss_peak_bytes: u64,
    /// The workload's own part of it.
    pub workload_bytes: u64,
    /// The most page cache of the control group.
    pub page_cache_peak_bytes: Option<u64>,
    /// Bytes that the files occupy at the end.
    pub disk_bytes: u64,
    /// The same for each byte of keys and values; absent where their number is not known.
    pub disk_ratio: Option<f64>,
    /// Keys that were looked up after a new open, each with the right answer.
    pub checked: u64,
    /// An append and fdatasync by hand, beside durable commits: median and 99th percentile.
    pub bare_sync_us: Option<(f64, f64)>,
    /// Load averages of the host at the end.
    pub load_average: Option<[f64; 3]>,
    /// Roots of `state` after so many blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<(u64, Root)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(engine: Kind, seed: u64, roots: &[(u64, &str, u8)]) -> Outcome {
        let plan = Plan {
            engine,
            workload: Workload::State,
            entries: 5_000,
            memory_bytes: 1 << 26,
            warm_s: 1.0,
            seconds: 1.0,
            seed,
            round: 0,
        };
        let roots: Vec<_> = roots
            .iter()
            .map(|&(block, scheme, hash)| (block, Root::new(scheme, &[hash])))
            .collect();
        let figures = serde_json::json!({
            "memory_enforced_by": "cgroup_v2", "durability": "fsync-each", "open_s": 0.0, "ops": 1,
            "ops_per_s": 1.0, "cpu_us_per_op": 0.0, "read_bytes_per_op": 0.0,
            "write_bytes_per_op": 0.0, "rss_peak_bytes": 0, "workload_bytes": 0, "disk_bytes": 0,
            "checked": 0, "roots": roots,
        });
        let figures = serde_json::from_value(figures).unwrap();
        Outcome { plan, about: None, cannot: None, failed: None, figures: Some(figures) }
    }

    #[test]
    fn roots_of_one_scheme_are_equal_after_the_same_block() {
        let first = outcome(Kind::Terrane, 1, &[(0, "mpt", 1), (1, "mpt", 2), (3, "mpt", 3)]);
        let equal = outcome(Kind::Pathdb, 1, &[(0, "mpt", 1), (1, "mpt", 2), (2, "mpt", 9)]);
        assert_eq!(equal.differing_root(&first), None);

        let wrong = outcome(Kind::Pathdb, 1, &[(0, "mpt", 1), (1, "mpt", 7)]);
        let message = wrong.differing_root(&first).unwrap();
        assert!(message.ends_with("after block 1 its root is 07, that of terrane 02"), "{message}");

        // Another scheme, or other entries, have other roots.
        assert_eq!(outcome(Kind::Pathdb, 1, &[(1, "x", 7)]).differing_root(&first), None);
        assert_eq!(outcome(Kind::Pathdb, 2, &[(1, "mpt", 7)]).differing_root(&first), None);
    }
}

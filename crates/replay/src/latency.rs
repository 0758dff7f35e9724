//! Latencies of one kind of operation: counted in nanoseconds to three digits, reported in
//! microseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency; longer ones count as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Digits that are kept of each latency.
const DIGITS: u8 = 3;

const NS_PER_US: f64 = 1e3;

const NS_PER_MS: f64 = 1e6;

/// The latencies of operations; about 300 KiB. Threads have one each, which are merged at the end.
#[derive(Debug, Clone)]
pub struct Latency {
    ns: Histogram<u64>,
}

/// Report of latencies in microseconds; 0 throughout if there were none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Half of the operations took no longer.
    pub p50: f64,
    /// Nine of ten took no longer.
    pub p90: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// 9,999 of 10,000 took no longer.
    pub p9999: f64,
    /// The slowest one.
    pub max: f64,
    /// Operations.
    pub ops: u64,
}

/// Report of the latencies of long operations in milliseconds; 0 throughout if there
/// were none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpreadReport {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub stddev: f64,
    /// Half of the operations took no longer.
    pub p50: f64,
    /// Nine of ten took no longer.
    pub p90: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// The slowest one.
    pub max: f64,
}

impl Latency {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        let ns =
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are constants");
        Self { ns }
    }

    /// Counts one operation.
    pub fn record(&mut self, latency: Duration) {
        // Longer latencies count as the longest one.
        self.ns.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts those of `other` too.
    pub fn merge(&mut self, other: &Self) {
        self.ns.add(&other.ns).expect("all have the same bounds");
    }

    /// Returns the report in microseconds.
    #[must_use]
    pub fn report(&self) -> LatencyReport {
        let us = |quantile| self.ns.value_at_quantile(quantile) as f64 / NS_PER_US;
        LatencyReport {
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            p9999: us(0.9999),
            max: us(1.0),
            ops: self.ns.len(),
        }
    }
}

impl Latency {
    /// Returns the report in milliseconds.
    #[must_use]
    pub fn spread(&self) -> SpreadReport {
        let ms = |ns: f64| ns / NS_PER_MS;
        let quantile = |quantile| ms(self.ns.value_at_quantile(quantile) as f64);
        SpreadReport {
            mean: ms(self.ns.mean()),
            stddev: ms(self.ns.stdev()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: quantile(1.0),
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equal to three digits.
    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= expected * 1e-3
    }

    #[test]
    fn quantiles_of_merged_latencies_are_those_of_all() {
        let mut all = Latency::new();
        let mut other = Latency::default();
        for us in 1..=10_000 {
            let latency = if us % 2 == 0 { &mut all } else { &mut other };
            latency.record(Duration::from_micros(us));
        }

        all.merge(&other);
        let report = all.report();
        assert_eq!(report.ops, 10_000);
        let quantiles = [report.p50, report.p90, report.p99, report.p999, report.p9999, report.max];

        for (found, expected) in
            quantiles.into_iter().zip([5_000.0, 9_000.0, 9_900.0, 9_990.0, 9_999.0, 10_000.0])
        {
            assert!(close(found, expected), "{report:?}");
        }

        assert_eq!(Latency::new().report().ops, 0);
    }

    /// Goal: percentiles are those of the operations. Method: random latencies over seven orders of
    /// magnitude, beside the list of them in order.
    #[test]
    fn percentiles_are_those_of_a_sorted_list() {
        const COUNT: usize = 20_000;
        let mut state = 7_u64;
        let mut latency = Latency::new();
        let mut sorted: Vec<u64> = (0..COUNT)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let ns = (state >> 40) >> (state >> 35 & 15);
                latency.record(Duration::from_nanos(ns + 1));
                ns + 1
            })
            .collect();
        sorted.sort_unstable();

        let report = latency.report();
        for (quantile, found) in [
            (0.5, report.p50),
            (0.9, report.p90),
            (0.99, report.p99),
            (0.999, report.p999),
            (0.9999, report.p9999),
            (1.0, report.max),
        ] {
            let rank = (quantile * COUNT as f64).ceil() as usize;
            let expected = sorted[rank.clamp(1, COUNT) - 1] as f64 / NS_PER_US;
            assert!(close(found, expected), "{quantile}: {found}, not {expected}");
        }
    }

    #[test]
    fn the_spread_of_latencies_is_that_of_all() {
        let mut latency = Latency::new();
        assert_eq!(latency.spread().mean.to_bits(), 0.0_f64.to_bits());
        for ms in [2, 4, 4, 4, 5, 5, 7, 9] {
            latency.record(Duration::from_millis(ms));
        }
        let spread = latency.spread();
        let found = [spread.mean, spread.stddev, spread.p50, spread.p90, spread.p999, spread.max];
        for (found, expected) in found.into_iter().zip([5.0, 2.0, 4.0, 9.0, 9.0, 9.0]) {
            assert!((found - expected).abs() <= 0.01, "{spread:?}");
        }
    }

    #[test]
    fn the_shortest_and_the_longest_latency_are_counted() {
        let mut latency = Latency::new();
        latency.record(Duration::ZERO);
        latency.record(Duration::from_secs(1 << 40));
        let report = latency.report();
        assert_eq!(report.ops, 2);
        assert!(close(report.max, LONGEST_NS as f64 / NS_PER_US), "{report:?}");
    }
}

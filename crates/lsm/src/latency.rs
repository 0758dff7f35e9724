//! Latency histograms, into which any thread records without waiting.
//!
//! Each power of two has eight buckets, so a recorded time is known to within an eighth of itself.
//! Times are nanoseconds of the disk's clock. A simulated disk has a clock of its own, so equal
//! runs record equal times.

use std::sync::OnceLock;
use std::time::Duration;

use terrane_io::sync::atomic::{AtomicU64, Ordering};

/// Number of buckets for each power of two, as a power of two itself.
const SUB_BITS: u32 = 3;

/// Longest time that is told apart from longer ones: five hours.
const LONGEST_NS: u64 = (1 << 44) - 1;

const BUCKETS: usize = bucket(LONGEST_NS) + 1;

/// Returns the bucket of a time.
const fn bucket(ns: u64) -> usize {
    // Times below 8 ns have a bucket each.
    if ns < 1 << SUB_BITS {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    ((shift as usize) << SUB_BITS) + (ns >> shift) as usize
}

/// Returns the longest time that belongs to a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let power = (bucket >> SUB_BITS) as u32;
    let sub = bucket as u64 & ((1 << SUB_BITS) - 1);
    match power.checked_sub(1) {
        None => sub,
        Some(shift) => ((sub + (1 << SUB_BITS) + 1) << shift) - 1,
    }
}

/// A histogram that is being recorded. It allocates its buckets with the first time.
#[derive(Debug, Default)]
pub(crate) struct LatencyRecorder {
    counts: OnceLock<Box<[AtomicU64]>>,
    sum_ns: AtomicU64,
}

impl LatencyRecorder {
    /// Adds a time. Cost: two additions in memory.
    pub(crate) fn record(&self, time: Duration) {
        // Longer times count as the longest one, so that every time has a bucket.
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_NS);
        let counts = self.counts.get_or_init(|| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect());
        debug_assert!(bucket(ns) < BUCKETS && ns <= bucket_end(bucket(ns)));
        debug_assert_eq!(counts.len(), BUCKETS);
        // No other memory depends on these counts, so relaxed additions are enough.
        counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns a copy of the histogram so far.
    pub(crate) fn snapshot(&self) -> Latencies {
        let counts = self.counts.get().map(|counts| counts.iter());
        Latencies {
            counts: counts.into_iter().flatten().map(|c| c.load(Ordering::Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

/// Latency histogram of one kind of call, by the clock of the disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[doc(alias = "Histogram")]
pub struct Latencies {
    /// Number of calls in each bucket; empty before the first call.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "read_counts"))]
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Latencies {
    /// Calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean time of the calls; zero before the first one.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// Time that a share of the calls (0.999, say) did not exceed, rounded up by at most an eighth.
    /// Zero before the first call.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        // At least one call counts, so that a share of 0 gives the shortest time.
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut passed = 0;
        let reaches = |&(_, &count): &(usize, &u64)| {
            passed += count;
            passed >= wanted
        };
        let found = self.counts.iter().enumerate().find(reaches);
        Duration::from_nanos(found.map_or(0, |(bucket, _)| bucket_end(bucket)))
    }

    /// Longest time, rounded up by at most an eighth.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }
}

/// Reads the counts of a histogram, and refuses what no recorder can have made.
#[cfg(feature = "serde")]
fn read_counts<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Vec<u64>, D::Error> {
    let counts = <Vec<u64> as serde::Deserialize>::deserialize(input)?;
    // `count` adds all counts, so forged ones must not overflow.
    let total = counts.iter().try_fold(0_u64, |total, &count| total.checked_add(count));
    if counts.len() > BUCKETS || total.is_none() {
        return Err(serde::de::Error::custom("not a latency histogram"));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_ends_at_most_an_eighth_above_it() {
        let mut last = None;
        for ns in
            (0..5_000).chain((13..44).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 3 << bit >> 1]))
        {
            let end = bucket_end(bucket(ns));
            assert!(ns <= end && end <= ns + ns / 8, "{ns} is counted as {end}");
            assert!(last <= Some(end), "{ns}");
            last = Some(end);
        }
        assert_eq!(bucket_end(BUCKETS - 1), LONGEST_NS);
    }

    #[test]
    fn quantiles_are_those_of_the_times_recorded() {
        let recorder = LatencyRecorder::default();
        assert_eq!(recorder.snapshot(), Latencies::default());
        assert_eq!(recorder.snapshot().quantile(0.5), Duration::ZERO);
        (1..=1_000).for_each(|us| recorder.record(Duration::from_micros(us)));
        recorder.record(Duration::from_secs(1_000_000));
        let latencies = recorder.snapshot();
        assert_eq!(latencies.count(), 1_001);

        for (share, us) in [(0.0, 1), (0.5, 501), (0.9, 901), (0.99, 991)] {
            let found = latencies.quantile(share).as_nanos();
            assert!((us * 1_000..=us * 1_125).contains(&found), "{share}: {found} ns");
        }

        assert_eq!(latencies.max(), Duration::from_nanos(LONGEST_NS));
        assert!(latencies.mean() > Duration::from_secs(17));
    }
}

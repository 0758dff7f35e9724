//! Histograms of latencies, which count without a lock.
//!
//! A bucket is a quarter of an octave: a reported latency is at most 25 % above the true one.

use std::sync::Arc;
use std::time::Duration;

use terrane_io::Disk;
use terrane_io::sync::atomic::{AtomicU64, Ordering};

/// Buckets of one octave, as a power of two.
const SUB_BITS: u32 = 2;
const SUB: usize = 1 << SUB_BITS;
/// Buckets for all durations up to 2^64 ns.
const BUCKETS: usize = (64 - SUB_BITS as usize) * SUB + SUB;

/// Bucket of a duration in nanoseconds.
fn bucket(ns: u64) -> usize {
    // Small durations have a bucket each.
    if ns < SUB as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() - SUB_BITS;
    (octave as usize) * SUB + (ns >> octave) as usize
}

/// Largest duration of a bucket, in nanoseconds.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let octave = (bucket / SUB - 1) as u32;
    let first = (SUB + bucket % SUB) as u64;
    ((first << octave) - 1).saturating_add(1 << octave)
}

/// Histogram of latencies. Durations are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Latency {
    /// Number of events.
    pub count: u64,
    /// Sum of all durations, in nanoseconds.
    pub total_ns: u64,
    /// The longest duration, in nanoseconds.
    pub max_ns: u64,
    /// Upper bounds of the buckets with events, in nanoseconds, ascending, each with its number
    /// of events.
    pub buckets: Vec<(u64, u64)>,
}

impl Latency {
    /// Mean duration; zero without events.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.total_ns.checked_div(self.count).unwrap_or(0))
    }

    /// Returns the duration that a share of the events does not exceed, such as 0.99; at most 25 %
    /// too long. Zero without events.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = ((share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            rank <= seen
        });
        let bound = found.map_or(self.max_ns, |(bound, _)| *bound);
        Duration::from_nanos(bound.min(self.max_ns))
    }
}

/// Latencies of a store since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Latencies {
    /// Commits as a whole; [asynchronous](crate::Store::commit_async) ones without their sync.
    pub commit: Latency,
    /// Hashing of a commit or a flush, with applying the values that wait. On several threads also
    /// encoding of most nodes.
    pub hash: Latency,
    /// Encoding of the records of a commit or a flush that were not encoded with the hashing.
    pub encode: Latency,
    /// Writes of frames.
    pub write: Latency,
    /// Waits of durable commits for an fsync.
    pub sync: Latency,
    /// Checkouts.
    pub checkout: Latency,
    /// One in 64 calls of [`Tree::find`](crate::Tree::find).
    pub find: Latency,
}

/// Counter of one kind of event.
///
/// Cost: three atomic additions and a maximum, no lock.
#[derive(Debug)]
pub(crate) struct LatencyCounter {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for LatencyCounter {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl LatencyCounter {
    pub(crate) fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        // A new longest duration is rare, so most calls only read.
        if self.max_ns.load(Ordering::Relaxed) < ns {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Latency {
        let counts = self.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(u64, u64)> = counts
            .enumerate()
            .filter(|&(_, count)| count > 0)
            .map(|(bucket, count)| (upper_bound(bucket), count))
            .collect();
        Latency {
            count: buckets.iter().map(|(_, count)| count).sum(),
            total_ns: self.total_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
            buckets,
        }
    }
}

/// Counters of a store.
#[derive(Debug, Default)]
pub(crate) struct LatencyCounters {
    pub(crate) commit: LatencyCounter,
    pub(crate) hash: LatencyCounter,
    pub(crate) encode: LatencyCounter,
    pub(crate) write: LatencyCounter,
    pub(crate) sync: LatencyCounter,
    pub(crate) checkout: LatencyCounter,
    pub(crate) find: LatencyCounter,
}

impl LatencyCounters {
    pub(crate) fn read(&self) -> Latencies {
        Latencies {
            commit: self.commit.read(),
            hash: self.hash.read(),
            encode: self.encode.read(),
            write: self.write.read(),
            sync: self.sync.read(),
            checkout: self.checkout.read(),
            find: self.find.read(),
        }
    }
}

/// One in so many finds is timed: reading the clock twice would slow each one.
const FINDS_EACH: u64 = 64;

/// Sampler of the latencies of finds.
#[derive(Debug)]
pub(crate) struct FindSampler {
    calls: AtomicU64,
    /// Has the clock.
    disk: Arc<dyn Disk>,
    counters: Arc<LatencyCounters>,
}

impl FindSampler {
    pub(crate) fn new(disk: Arc<dyn Disk>, counters: Arc<LatencyCounters>) -> Self {
        Self { calls: AtomicU64::new(0), disk, counters }
    }

    /// Counts a find; returns a timer if the find is one of the sample.
    pub(crate) fn begin(&self) -> Option<FindTimer<'_>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let start = || self.disk.clock().monotonic();
        call.is_multiple_of(FINDS_EACH).then(|| FindTimer { sampler: self, start: start() })
    }
}

/// Timer of a find, which ends when it is dropped.
pub(crate) struct FindTimer<'a> {
    sampler: &'a FindSampler,
    start: Duration,
}

impl Drop for FindTimer<'_> {
    fn drop(&mut self) {
        let time = self.sampler.disk.clock().monotonic().saturating_sub(self.start);
        self.sampler.counters.find.add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_durations_and_bound_them_by_a_quarter() {
        let mut last = None;
        for exponent in 0..64 {
            for part in 0..8 {
                let ns = (1u64 << exponent) + ((1u64 << exponent) / 8) * part;
                let bucket = bucket(ns);
                assert!(bucket < BUCKETS, "{ns} ns");
                let bound = upper_bound(bucket);
                assert!(ns <= bound && bound - ns <= ns / 4, "{ns} ns is in {bound}");
                assert!(last.is_none_or(|last| last <= bucket), "buckets ascend");
                last = Some(bucket);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(upper_bound(BUCKETS - 1), u64::MAX);
        assert!((1..BUCKETS).all(|bucket| upper_bound(bucket - 1) < upper_bound(bucket)));
        assert!((0..BUCKETS).all(|number| bucket(upper_bound(number)) == number));
    }

    #[test]
    fn quantiles_are_those_of_the_events() {
        let counter = LatencyCounter::default();
        assert_eq!(counter.read(), Latency::default());
        assert_eq!(counter.read().quantile(0.5), Duration::ZERO);
        for us in 1..=1_000 {
            counter.add(Duration::from_micros(us));
        }
        let latency = counter.read();
        assert_eq!((latency.count, latency.max_ns), (1_000, 1_000_000));
        assert_eq!(latency.mean(), Duration::from_nanos(500_500));
        for (share, us) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1_000)] {
            let found = latency.quantile(share);
            let least = Duration::from_micros(us);
            assert!(least <= found && found <= least * 5 / 4, "{share}: {found:?}");
        }
    }
}

//! The device alone: the rate and the latencies of random 4 KiB reads by the number in flight.
//!
//! One thread keeps a fixed number of reads in flight through the engine's own queue: each
//! completion is answered with the next read. The last point has one such thread on each core. The
//! file is that of the [yardstick](super::device): random bytes, read past the page cache where the
//! file system allows it.
//!
//! * Invariant: a latency begins when its read is pushed, so that of a full queue includes the wait
//!   for a place in it.
//! * The time of a point is at least the time asked for; reads in flight at its end are counted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrane::io::{
    ALIGN, Access, AlignedBuf, Direction, Disk, DiskFile, IoQueue, OpenMode, RealDisk, Request,
};
use terrane_replay::latency::{Latency, LatencyReport};
use terrane_replay::monitor::{Monitor, Phase};

use super::device::{Error, Random, Result, Scratch};
use super::meter::process_cpu_s;

/// Reads in flight on each core at the last point, the depth of the yardstick.
const ALL_CORES_DEPTH: usize = 96;

/// Reads between two looks at the clock and at the monitor.
const LOOK_EVERY: u64 = 64;

/// Random reads with a fixed number in flight.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DepthReport {
    /// Reads in flight on each thread.
    pub depth: u64,
    /// Threads that read.
    pub threads: u64,
    /// Reads in all.
    pub reads: u64,
    /// Reads in a second.
    pub reads_per_s: f64,
    /// Processor time of a read, of the whole process.
    pub cpu_us_per_read: f64,
    /// Latencies of the reads, in microseconds.
    pub latency_us: LatencyReport,
}

/// Access of the reads, and the points that were measured.
#[derive(Debug, Clone)]
pub struct Curve {
    /// `direct`, or `buffered` where the file system refuses that.
    pub access: &'static str,
    /// One point for each depth, in the order asked for, and one with a thread on each core.
    pub points: Vec<DepthReport>,
}

/// Measures a file of `bytes` in `dir` for `seconds` at each of `depths`, and once with all
/// cores. The file is gone afterwards.
///
/// # Errors
/// [`Error`].
pub fn curve(
    dir: &Path,
    bytes: u64,
    depths: &[usize],
    seconds: f64,
    monitor: &mut dyn Monitor,
) -> Result<Curve> {
    let disk = RealDisk::auto();
    let scratch = Scratch::make(&disk, dir, bytes, monitor)?;
    let file: Arc<dyn DiskFile> = disk.open(&scratch.path, OpenMode::Read, Access::Direct)?;
    let access = if file.access() == Access::Direct { "direct" } else { "buffered" };
    let time = Duration::from_secs_f64(seconds);

    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let alone = depths.iter().map(|&depth| (depth, 1));
    let loads: Vec<(usize, usize)> = alone.chain([(ALL_CORES_DEPTH, cores)]).collect();

    let mut points = Vec::with_capacity(loads.len());
    for (done, &(depth, threads)) in (0..).zip(&loads) {
        monitor.progress(Phase::Measure, done, Some(loads.len() as u64));
        points.push(point(disk.as_ref(), &file, Load { depth, threads, time }, monitor)?);
    }

    Ok(Curve { access, points })
}

/// Load of a point.
#[derive(Debug, Clone, Copy)]
struct Load {
    depth: usize,
    threads: usize,
    time: Duration,
}

/// Measures one point. The calling thread is one of those that read, and looks at the monitor.
fn point(
    disk: &dyn Disk,
    file: &Arc<dyn DiskFile>,
    Load { depth, threads, time }: Load,
    monitor: &dyn Monitor,
) -> Result<DepthReport> {
    let is_stopped = AtomicBool::new(false);
    let cpu_before = process_cpu_s();
    let start = Instant::now();

    let latencies: Result<Vec<Latency>> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads as u64)
            .map(|seed| {
                let stop = || is_stopped.load(Ordering::Relaxed);
                scope.spawn(move || Reads::new(disk, file, depth, seed)?.run(time, &stop))
            })
            .collect();

        // Only this thread asks the monitor. The others learn it from `is_stopped`.
        let stop = || monitor.stop();
        let own = Reads::new(disk, file, depth, 0).and_then(|reads| reads.run(time, &stop));
        if own.is_err() {
            is_stopped.store(true, Ordering::Relaxed);
        }

        let others = others.into_iter().map(|thread| thread.join().expect("a reader has panicked"));
        std::iter::once(own).chain(others).collect()
    });

    let wall_s = start.elapsed().as_secs_f64();
    let cpu_s = process_cpu_s() - cpu_before;
    let mut latency = Latency::new();
    latencies?.iter().for_each(|of_thread| latency.merge(of_thread));
    let latency_us = latency.report();

    Ok(DepthReport {
        depth: depth as u64,
        threads: threads as u64,
        reads: latency_us.ops,
        reads_per_s: latency_us.ops as f64 / wall_s,
        cpu_us_per_read: cpu_s * 1e6 / latency_us.ops as f64,
        latency_us,
    })
}

/// Random reads of one thread.
struct Reads<'a> {
    file: &'a Arc<dyn DiskFile>,
    queue: Box<dyn IoQueue>,
    random: Random,
    pages: u64,
    /// When the read with this tag was pushed.
    pushed: Vec<Instant>,
}

impl<'a> Reads<'a> {
    fn new(disk: &dyn Disk, file: &'a Arc<dyn DiskFile>, depth: usize, seed: u64) -> Result<Self> {
        let queue = disk.queue(depth)?;
        let pages = file.len()? / ALIGN as u64;
        let pushed = vec![Instant::now(); depth];
        Ok(Self { file, queue, random: Random::new(seed), pages, pushed })
    }

    /// Pushes the next read, which has the place `slot`.
    fn push(&mut self, slot: u64, buffer: AlignedBuf) {
        let offset = self.random.next() % self.pages * ALIGN as u64;
        self.pushed[slot as usize] = Instant::now();
        let file = self.file.clone();
        self.queue.push(Request { tag: slot, file, offset, buffer, direction: Direction::Read });
    }

    /// Reads for `time`, and returns the latencies.
    fn run(mut self, time: Duration, stop: &dyn Fn() -> bool) -> Result<Latency> {
        let mut latency = Latency::new();
        for slot in 0..self.pushed.len() as u64 {
            self.push(slot, AlignedBuf::zeroed(ALIGN));
        }
        self.queue.submit();

        let start = Instant::now();
        let mut is_over = false;
        for count in 1_u64.. {
            let Some(completion) = self.queue.pop() else { break };
            completion.result?;
            latency.record(self.pushed[completion.tag as usize].elapsed());

            if count.is_multiple_of(LOOK_EVERY) || self.pushed.len() == 1 {
                if stop() {
                    return Err(Error::Interrupted);
                }
                is_over = start.elapsed() >= time;
            }
            if !is_over {
                self.push(completion.tag, completion.buffer);
            }
        }
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_replay::error::Class;
    use terrane_replay::monitor::Silent;

    #[test]
    fn every_depth_and_all_cores_have_a_point_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let found = curve(dir.path(), 2 << 20, &[1, 7], 0.02, &mut Silent).unwrap();
        let depths: Vec<u64> = found.points.iter().map(|point| point.depth).collect();
        assert_eq!(depths, [1, 7, ALL_CORES_DEPTH as u64]);
        assert_eq!((found.points[0].threads, found.points[1].threads), (1, 1));
        let cores = thread::available_parallelism().unwrap().get() as u64;
        assert_eq!(found.points[2].threads, cores);

        for point in &found.points {
            let latency = &point.latency_us;
            assert_eq!(latency.ops, point.reads);
            assert!(point.reads >= point.depth * point.threads, "{point:?}");
            assert!(latency.p50 > 0.0 && latency.p50 <= latency.p9999, "{point:?}");
            assert!(latency.p9999 <= latency.max && point.reads_per_s > 0.0, "{point:?}");
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_stopped_point_ends_all_threads() {
        struct Stops;
        impl Monitor for Stops {
            fn progress(&mut self, _: Phase, _: u64, _: Option<u64>) {}
            fn warn(&mut self, _: &dyn std::fmt::Display) {}
            fn stop(&self) -> bool {
                true
            }
        }

        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::auto();
        let scratch = Scratch::make(&disk, dir.path(), 1 << 20, &mut Silent).unwrap();
        let file: Arc<dyn DiskFile> =
            disk.open(&scratch.path, OpenMode::Read, Access::Direct).unwrap();
        let load = Load { depth: 4, threads: 3, time: Duration::from_secs(3600) };
        let error = point(disk.as_ref(), &file, load, &Stops).unwrap_err();
        assert_eq!(error.class(), Class::Interrupted);
    }
}

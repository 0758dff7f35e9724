//! Yardstick of the device: the rate of random 4 KiB reads that figures are divided by.
//!
//! One thread reads whole pages of a file of 1 GiB of random bytes past the page cache, 96 at a
//! time, 32 handed over together: the job of the report of `lsm-tree`. The program `fio` does it if
//! it is installed, since its figure is one that others can repeat; otherwise a loop over the
//! engine's own queues, and the result says which. The file lies in the directory given, so on the
//! same file system as what is measured, and is removed in any case but a kill.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrane::io::{
    ALIGN, Access, AlignedBuf, Direction, Disk, DiskFile, OpenMode, RealDisk, Request,
};

use terrane_replay::error::Class;
use terrane_replay::monitor::Monitor;

/// Bytes of the file: more than a device's own cache of most kinds.
const FILE_BYTES: u64 = 1 << 30;

/// Bytes written at once when the file is made.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of each write of the job that writes beside the reads.
const BESIDE_BYTES: u64 = 256 << 10;

/// Between two looks at whether `fio` has ended.
const PATIENCE: Duration = Duration::from_millis(20);

/// The part of the time given that reads one after the other get.
const ONE_BY_ONE: f64 = 0.25;

/// Pattern of reads in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    /// At once, at most.
    depth: usize,
    /// Handed over together.
    batch: usize,
    /// Reads still in flight when the next batch is submitted.
    low: usize,
    /// Completions that a submission waits for.
    complete: usize,
}

/// The yardstick's own load.
const STEADY: Load = Load { depth: 96, batch: 32, low: 64, complete: 1 };

/// One read after the other.
const SINGLE: Load = Load { depth: 1, batch: 1, low: 1, complete: 1 };

/// 256 at once, all of them awaited, then the next 256: what batches of lookups do that do not
/// overlap.
const BURSTS: Load = Load { depth: 256, batch: 256, low: 1, complete: 256 };

/// Reason why there is no yardstick.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be written, read or removed.
    #[error(transparent)]
    Disk(#[from] terrane::io::Error),
    /// The program `fio` was started and gave no figure.
    #[error("fio gave no figure: {0}")]
    Fio(String),
    /// The monitor asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Disk(_) | Self::Fio(_) => Class::Environment,
            Self::Interrupted => Class::Interrupted,
        }
    }
}

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;

/// Rate of the device while nothing else uses it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Yardstick {
    /// Random 4 KiB reads per second, 96 in flight.
    pub read_iops: f64,
    /// `fio` or `terrane`.
    pub measured_by: &'static str,
    /// Random 4 KiB reads per second, one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops_qd1: Option<f64>,
}

/// Pattern of reads beside writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// 96 reads in flight, like the yardstick.
    Steady,
    /// 256 at once, each burst awaited in full before the next one begins.
    Bursts,
}

/// Rate of reads beside writes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Beside {
    /// Random 4 KiB reads per second.
    pub read_iops: f64,
    /// Bytes per second that were written meanwhile.
    pub write_bytes_per_s: f64,
}

/// Measures the device below `dir` for `seconds`, and a quarter more with one read at a time. A
/// second or so is spent before that on the file.
///
/// # Errors
/// [`Error`]; the file is gone in any case.
pub fn measure(dir: &Path, seconds: f64, monitor: &mut dyn Monitor) -> Result<Yardstick> {
    measure_file(dir, FILE_BYTES, seconds, monitor)
}

/// Measures as [`measure`] does, with a file of another size: whole MiB.
///
/// # Errors
/// [`Error`]; the file is gone in any case.
pub fn measure_file(
    dir: &Path,
    bytes: u64,
    seconds: f64,
    monitor: &mut dyn Monitor,
) -> Result<Yardstick> {
    measure_with(dir, bytes, fio_is_installed(), seconds, monitor)
}

fn measure_with(
    dir: &Path,
    bytes: u64,
    by_fio: bool,
    seconds: f64,
    monitor: &mut dyn Monitor,
) -> Result<Yardstick> {
    let disk = RealDisk::auto();
    let file = Scratch::make(&disk, dir, bytes, monitor)?;
    let mut rate = |load, seconds| {
        if by_fio {
            let job = [job("reads", (&file.path, bytes), seconds), reads(load)].concat();
            return Ok(fio(vec![job], monitor)?.read_iops);
        }
        own_reads(disk.as_ref(), &file.path, load, Duration::from_secs_f64(seconds), monitor)
    };

    let read_iops = rate(STEADY, seconds)?;
    let read_iops_qd1 = Some(rate(SINGLE, seconds * ONE_BY_ONE)?);
    let measured_by = if by_fio { "fio" } else { "terrane" };
    Ok(Yardstick { read_iops, measured_by, read_iops_qd1 })
}

/// Measures reads of this pattern beside sequential writes, past the page cache, of
/// `write_bytes_per_s`, for `seconds`; `None` where `fio` is not installed.
///
/// # Errors
/// [`Error`]; the files are gone in any case.
pub fn measure_beside_writes(
    dir: &Path,
    pattern: Pattern,
    write_bytes_per_s: u64,
    seconds: f64,
    monitor: &mut dyn Monitor,
) -> Result<Option<Beside>> {
    let work = Writes { file_bytes: FILE_BYTES, bytes_per_s: write_bytes_per_s };
    if fio_is_installed() {
        beside(dir, pattern, work, seconds, monitor).map(Some)
    } else {
        Ok(None)
    }
}

/// Writes beside reads, and the size of the files of both.
#[derive(Debug, Clone, Copy)]
struct Writes {
    file_bytes: u64,
    bytes_per_s: u64,
}

fn beside(
    dir: &Path,
    pattern: Pattern,
    Writes { file_bytes, bytes_per_s }: Writes,
    seconds: f64,
    monitor: &mut dyn Monitor,
) -> Result<Beside> {
    let disk = RealDisk::auto();
    let file = Scratch::make(&disk, dir, file_bytes, monitor)?;
    let load = match pattern {
        Pattern::Steady => STEADY,
        Pattern::Bursts => BURSTS,
    };

    let mut jobs = vec![[job("reads", (&file.path, file_bytes), seconds), reads(load)].concat()];

    // `fio` creates the file, and this scratch removes it.
    let written = Scratch { disk: disk.clone(), path: dir.join("terrane-yardstick-writes") };
    if bytes_per_s > 0 {
        let job = job("writes", (&written.path, file_bytes), seconds);
        jobs.push([job, writes(bytes_per_s)].concat());
    }

    fio(jobs, monitor)
}

/// Bytes of each sequential read.
const SEQUENTIAL_BYTES: u64 = 1 << 20;

/// Sequential reads in flight.
const SEQUENTIAL_DEPTH: usize = 8;

/// File whose sequential reads measure the device: requests of 1 MiB, 8 in flight, past the page
/// cache. The file is removed when this is dropped.
pub struct SequentialReads {
    file: Scratch,
    bytes: u64,
    by_fio: bool,
}

impl SequentialReads {
    /// Writes the file of 1 GiB into `dir`, durably.
    ///
    /// # Errors
    /// [`Error`]; the file is gone then.
    pub fn make(dir: &Path, monitor: &mut dyn Monitor) -> Result<Self> {
        Self::make_file(dir, FILE_BYTES, monitor)
    }

    /// Writes a file of another size, whole MiB, into `dir`, durably.
    ///
    /// # Errors
    /// [`Error`]; the file is gone then.
    pub fn make_file(dir: &Path, bytes: u64, monitor: &mut dyn Monitor) -> Result<Self> {
        Self::make_with(dir, bytes, fio_is_installed(), monitor)
    }

    fn make_with(dir: &Path, bytes: u64, by_fio: bool, monitor: &mut dyn Monitor) -> Result<Self> {
        let file = Scratch::make(&RealDisk::auto(), dir, bytes, monitor)?;
        Ok(Self { file, bytes, by_fio })
    }

    /// `fio` or `terrane`.
    #[must_use]
    pub fn measured_by(&self) -> &'static str {
        if self.by_fio { "fio" } else { "terrane" }
    }

    /// Reads the file once from its beginning to its end; returns the bytes read in a second.
    ///
    /// # Errors
    /// [`Error`].
    pub fn bytes_per_s(&self, monitor: &mut dyn Monitor) -> Result<f64> {
        if !self.by_fio {
            return self.own_bytes_per_s(monitor);
        }

        let mut words = vec!["--name=reads".to_owned(), file_of(&self.file.path)];
        let fixed = ["--direct=1", "--ioengine=io_uring", "--numjobs=1", "--rw=read"];
        words.extend(fixed.map(str::to_owned));
        words.push(format!("--bs={SEQUENTIAL_BYTES}"));
        words.push(format!("--iodepth={SEQUENTIAL_DEPTH}"));
        words.push(format!("--size={}", self.bytes));

        Ok(fio(vec![words], monitor)?.read_iops * SEQUENTIAL_BYTES as f64)
    }

    fn own_bytes_per_s(&self, monitor: &mut dyn Monitor) -> Result<f64> {
        let disk = &self.file.disk;
        let file: Arc<dyn DiskFile> = disk.open(&self.file.path, OpenMode::Read, Access::Direct)?;
        let mut queue = disk.queue(SEQUENTIAL_DEPTH)?;
        let buffer = || AlignedBuf::zeroed(SEQUENTIAL_BYTES as usize);
        let mut idle: Vec<AlignedBuf> = (0..SEQUENTIAL_DEPTH).map(|_| buffer()).collect();
        let mut offsets = (0..self.bytes).step_by(SEQUENTIAL_BYTES as usize);
        let start = Instant::now();

        loop {
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
            while !idle.is_empty()
                && let Some(offset) = offsets.next()
                && let Some(buffer) = idle.pop()
            {
                let file = file.clone();
                queue.push(Request { tag: 0, file, offset, buffer, direction: Direction::Read });
            }
            queue.submit();
            let Some(completion) = queue.pop() else { break };
            completion.result?;
            idle.push(completion.buffer);
        }

        Ok(self.bytes as f64 / start.elapsed().as_secs_f64())
    }
}

/// File of a measurement, removed when dropped.
pub(crate) struct Scratch {
    disk: Arc<RealDisk>,
    pub(crate) path: PathBuf,
}

impl Scratch {
    /// Writes the file of the yardstick: `bytes` of random bytes.
    pub(crate) fn make(
        disk: &Arc<RealDisk>,
        dir: &Path,
        bytes: u64,
        monitor: &mut dyn Monitor,
    ) -> Result<Self> {
        let mut state = Random(bytes);
        let fill = |_: u64, chunk: &mut [u8], monitor: &mut dyn Monitor| {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&state.next().to_le_bytes());
            }
            monitor.stop()
        };

        Self::filled(disk, dir.join("terrane-yardstick"), bytes, fill, monitor)
    }

    /// Writes `bytes` in whole chunks of [`CHUNK_BYTES`], durably, so that nothing is written back
    /// while reads are measured. `fill` gets each chunk with its offset, and returns whether to
    /// stop.
    pub(crate) fn filled(
        disk: &Arc<RealDisk>,
        path: PathBuf,
        bytes: u64,
        mut fill: impl FnMut(u64, &mut [u8], &mut dyn Monitor) -> bool,
        monitor: &mut dyn Monitor,
    ) -> Result<Self> {
        let scratch = Self { disk: disk.clone(), path };
        let file = disk.open(&scratch.path, OpenMode::Truncate, Access::Direct)?;

        let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
        for offset in (0..bytes).step_by(CHUNK_BYTES) {
            if fill(offset, &mut chunk, monitor) {
                return Err(Error::Interrupted);
            }
            file.write_at(&chunk, offset)?;
        }

        file.sync()?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A drop cannot return the error, and the file may not exist.
        let _ = self.disk.remove(&self.path);
    }
}

/// A stream of random numbers: Marsaglia's xorshift with Vigna's multiplier.
pub(crate) struct Random(u64);

impl Random {
    /// The stream of a seed; the state of such a stream is never 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Random reads of the file at `path` for some time: how many a second.
fn own_reads(
    disk: &dyn Disk,
    path: &Path,
    load: Load,
    time: Duration,
    monitor: &mut dyn Monitor,
) -> Result<f64> {
    let file: Arc<dyn DiskFile> = disk.open(path, OpenMode::Read, Access::Direct)?;
    let pages = file.len()? / ALIGN as u64;
    let mut random = Random(1);
    let mut queue = disk.queue(load.depth)?;
    let mut idle: Vec<AlignedBuf> = (0..load.depth).map(|_| AlignedBuf::zeroed(ALIGN)).collect();
    let mut done = 0_u64;
    let start = Instant::now();

    while start.elapsed() < time {
        if monitor.stop() {
            return Err(Error::Interrupted);
        }

        for buffer in idle.drain(idle.len() - load.batch..) {
            let offset = random.next() % pages * ALIGN as u64;
            let file = file.clone();
            queue.push(Request { tag: 0, file, offset, buffer, direction: Direction::Read });
        }

        queue.submit();
        while queue.outstanding() > load.low || queue.outstanding() + load.batch > load.depth {
            let Some(completion) = queue.pop() else { break };
            completion.result?;
            idle.push(completion.buffer);
            done += 1;
        }
    }

    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn fio_is_installed() -> bool {
    let mut command = Command::new("fio");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Returns the arguments that every job of `fio` has: file, size and duration.
fn job(name: &str, (path, bytes): (&Path, u64), seconds: f64) -> Vec<String> {
    let mut words = vec![format!("--name={name}"), file_of(path)];
    let milliseconds = Duration::from_secs_f64(seconds).as_millis();
    words.push(format!("--runtime={milliseconds}ms"));
    let fixed = ["--direct=1", "--ioengine=io_uring", "--numjobs=1", "--time_based"];
    words.extend(fixed.map(str::to_owned));
    words.push(format!("--size={bytes}"));
    words
}

/// Returns the argument that names the file of a job.
fn file_of(path: &Path) -> String {
    // `fio` splits names of files at colons.
    format!("--filename={}", path.display().to_string().replace(':', "\\:"))
}

/// Returns the arguments of a job that reads.
fn reads(load: Load) -> Vec<String> {
    let mut words = ["--rw=randread", "--bs=4k"].map(str::to_owned).to_vec();
    words.push(format!("--iodepth={}", load.depth));
    words.push(format!("--iodepth_batch_submit={}", load.batch));
    words.push(format!("--iodepth_low={}", load.low));
    words.push(format!("--iodepth_batch_complete_min={}", load.complete));
    words
}

/// Returns the arguments of a job that writes.
fn writes(bytes_per_s: u64) -> Vec<String> {
    let mut words = ["--rw=write", "--iodepth=4"].map(str::to_owned).to_vec();
    words.push(format!("--bs={BESIDE_BYTES}"));
    words.push(format!("--rate={bytes_per_s}"));
    words
}

/// Runs jobs side by side.
fn fio(jobs: Vec<Vec<String>>, monitor: &mut dyn Monitor) -> Result<Beside> {
    let failed = |error: io::Error| Error::Fio(error.to_string());
    let mut command = Command::new("fio");
    command.arg("--output-format=json").args(jobs.into_iter().flatten());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();

    // Both pipes are read while `fio` runs; otherwise `fio` would block on a full pipe.
    let (status, output, complaints) = thread::scope(|scope| {
        let output = scope.spawn(|| text(stdout));
        let complaints = scope.spawn(|| text(stderr));
        let status = wait(&mut child, monitor);
        (status, output.join().unwrap_or_default(), complaints.join().unwrap_or_default())
    });

    if !status? {
        let said = [complaints, output].concat();
        let line = said.lines().find(|line| !line.trim().is_empty());
        return Err(Error::Fio(line.unwrap_or("fio failed without a message").to_owned()));
    }

    rates(&output).ok_or_else(|| Error::Fio("the output has no rates".to_owned()))
}

fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // The part read before an error is still worth reporting.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until a child ends, or ends it; returns whether it did well.
fn wait(child: &mut Child, monitor: &dyn Monitor) -> Result<bool> {
    loop {
        let ended = child.try_wait().map_err(|error| Error::Fio(error.to_string()))?;
        if let Some(status) = ended {
            return Ok(status.success());
        }
        if monitor.stop() {
            // The process may have ended in between.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Interrupted);
        }
        thread::sleep(PATIENCE);
    }
}

/// The rates in fio's output, which may have notes in front.
fn rates(output: &str) -> Option<Beside> {
    let json = output.get(output.find('{')?..)?;
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    let jobs = value.get("jobs")?.as_array()?;
    let job = |name: &str| jobs.iter().find(|job| job["jobname"] == name);

    Some(Beside {
        read_iops: job("reads")?["read"]["iops"].as_f64()?,
        write_bytes_per_s: match job("writes") {
            Some(job) => job["write"]["bw_bytes"].as_f64()?,
            None => 0.0,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use super::*;
    use terrane_replay::monitor::{Phase, Silent};

    const SMALL: u64 = 2 << 20;

    fn is_empty(dir: &Path) -> bool {
        std::fs::read_dir(dir).unwrap().next().is_none()
    }

    #[test]
    fn sequential_reads_are_measured_by_both_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for by_fio in [false, fio_is_installed()] {
            let reads = SequentialReads::make_with(dir.path(), SMALL, by_fio, &mut Silent).unwrap();
            assert_eq!(reads.measured_by(), if by_fio { "fio" } else { "terrane" });
            assert!(reads.bytes_per_s(&mut Silent).unwrap() > 0.0);
            drop(reads);
            assert!(is_empty(dir.path()));
        }
    }

    #[test]
    fn the_loop_of_our_own_counts_reads_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let found = measure_with(dir.path(), SMALL, false, 0.05, &mut Silent).unwrap();
        assert_eq!(found.measured_by, "terrane");
        // Fewer reads would be slower than any device, and more would not be reads of the device.
        for iops in [found.read_iops, found.read_iops_qd1.unwrap()] {
            assert!(iops > 20.0 && iops < 1e8, "{found:?}");
        }
        assert!(is_empty(dir.path()));
    }

    #[test]
    fn the_file_is_whole_pages_of_random_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(&RealDisk::auto(), dir.path(), SMALL, &mut Silent).unwrap();
        let bytes = std::fs::read(&scratch.path).unwrap();
        assert_eq!(bytes.len() as u64, SMALL);
        let distinct: std::collections::BTreeSet<_> = bytes.chunks(8).collect();
        assert_eq!(distinct.len() as u64, SMALL / 8);
    }

    #[test]
    fn every_load_reads_what_it_is_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::auto();
        let scratch = Scratch::make(&disk, dir.path(), SMALL, &mut Silent).unwrap();
        let time = Duration::from_millis(10);
        for load in [STEADY, SINGLE, BURSTS] {
            let iops = own_reads(disk.as_ref(), &scratch.path, load, time, &mut Silent).unwrap();
            assert!(iops > 20.0, "{load:?} {iops}");
        }
        let job =
            [job("reads", (Path::new("a:b"), 1 << 30), 2.5), reads(STEADY)].concat().join(" ");
        assert_eq!(
            job,
            "--name=reads --filename=a\\:b --runtime=2500ms --direct=1 --ioengine=io_uring --numjobs=1 --time_based \
             --size=1073741824 --rw=randread --bs=4k --iodepth=96 --iodepth_batch_submit=32 --iodepth_low=64 \
             --iodepth_batch_complete_min=1"
        );
    }

    /// Only where `fio` is installed, as its figure is the only one.
    #[test]
    fn reads_beside_writes_are_measured_in_both_patterns_and_leave_nothing() {
        if !fio_is_installed() {
            return;
        }

        for pattern in [Pattern::Steady, Pattern::Bursts] {
            for bytes_per_s in [0, 4 << 20] {
                let dir = tempfile::tempdir().unwrap();
                let work = Writes { file_bytes: SMALL, bytes_per_s };
                let found = beside(dir.path(), pattern, work, 0.3, &mut Silent).unwrap();
                assert!(found.read_iops > 20.0 && found.read_iops < 1e8, "{found:?}");
                let is_written = found.write_bytes_per_s > 0.0;
                assert_eq!(is_written, bytes_per_s > 0, "{pattern:?} {found:?}");
                assert!(is_empty(dir.path()));
            }
        }
    }

    /// Monitor that stops after a number of questions.
    struct StopsAt(std::cell::Cell<u32>);

    impl Monitor for StopsAt {
        fn progress(&mut self, _: Phase, _: u64, _: Option<u64>) {}

        fn warn(&mut self, _: &dyn Display) {}

        fn stop(&self) -> bool {
            self.0.set(self.0.get().saturating_sub(1));
            self.0.get() == 0
        }
    }

    #[test]
    fn a_stopped_measurement_leaves_nothing() {
        // While the file is written, and while it is read.
        for asked in [1, 2, 4] {
            let dir = tempfile::tempdir().unwrap();
            let monitor = &mut StopsAt(asked.into());
            let error = measure_with(dir.path(), SMALL, false, 60.0, monitor).unwrap_err();
            assert_eq!(error.class(), Class::Interrupted);
            assert!(is_empty(dir.path()));
        }

        let dir = Path::new("/nonexistent");
        let error = measure_with(dir, SMALL, false, 60.0, &mut Silent).unwrap_err();
        assert_eq!(error.class(), Class::Environment);
    }

    #[test]
    fn rates_are_found_in_the_output_of_fio() {
        let output = r#"note: both depths differ
{"jobs": [{"jobname": "reads", "read": {"iops": 90123.5, "bw_bytes": 1}, "write": {"iops": 0}},
          {"jobname": "writes", "read": {"iops": 0}, "write": {"iops": 2, "bw_bytes": 50000000}}]}"#;
        let found = rates(output).unwrap();
        assert_eq!(found, Beside { read_iops: 90_123.5, write_bytes_per_s: 5e7 });
        assert_eq!(rates("fio: failed"), None);
        assert_eq!(rates(r#"{"jobs": []}"#), None);
    }

    #[test]
    fn a_child_that_takes_too_long_is_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let error = wait(&mut child, &StopsAt(2.into())).unwrap_err();
        assert_eq!(error.class(), Class::Interrupted);
        let mut child = Command::new("false").spawn().unwrap();
        assert!(!wait(&mut child, &Silent).unwrap());
    }
}

//! `terrane bench queue`: random 4 KiB reads through a queue of the disk.
//!
//! One thread keeps a number of reads of a file in flight, past the page cache unless asked
//! otherwise. The file is made for the run: each page begins with its number, by which every read
//! is checked. Processor time is that of the whole process, workers of the queue included.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::io::{
    ALIGN, Access, AlignedBuf, Direction, Disk, DiskFile, OpenMode, QueueChoice, RealDisk,
    RealOptions, Request,
};
use terrane_replay::monitor::{Monitor, Phase};

use super::{Error, Result, SPLITMIX_STEP, bounded, seconds, splitmix};
use crate::instruments::device::{CHUNK_BYTES, Scratch};
use crate::instruments::meter::process_cpu_s;

/// The most reads in flight.
const DEPTH_MAX: u64 = 4_096;

/// Reads between two reports of progress.
const REPORT_EVERY: u64 = 1 << 10;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the file, rounded up to whole MiB.
    pub file_bytes: u64,
    /// Reads in flight.
    pub depth: u64,
    /// Reads in all.
    pub reads: u64,
    /// The queue.
    pub queue: QueueChoice,
    /// Whether reads go through the page cache.
    pub buffered: bool,
    /// Seed of the places that are read.
    pub seed: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The queue: `io_uring` or `threads`.
    pub queue: &'static str,
    /// Access to the file: `direct` or `buffered`.
    pub access: &'static str,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Reads in flight.
    pub depth: u64,
    /// Reads in all.
    pub reads: u64,
    /// Seed of the places that are read.
    pub seed: u64,
    /// Time of all reads.
    pub wall_s: f64,
    /// Reads in a second.
    pub reads_per_s: f64,
    /// Processor time of a read.
    pub cpu_us_per_read: f64,
}

/// Writes the file of a run, each of whose pages begins with its number.
fn make_file(
    disk: &Arc<RealDisk>,
    path: PathBuf,
    bytes: u64,
    monitor: &mut dyn Monitor,
) -> Result<Scratch> {
    let fill = |offset: u64, chunk: &mut [u8], monitor: &mut dyn Monitor| {
        let first = offset / ALIGN as u64;
        for (number, page) in (first..).zip(chunk.chunks_exact_mut(ALIGN)) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        monitor.progress(Phase::Fill, first, Some(bytes / ALIGN as u64));
        monitor.stop()
    };

    Ok(Scratch::filled(disk, path, bytes, fill, monitor)?)
}

fn failed(error: terrane::io::Error) -> Error {
    Error::Engine(error.into())
}

/// Measures reads of a file in `dir`, which is created if it is missing. The file is removed.
///
/// # Errors
/// [`Error`].
pub fn run(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { depth, reads, queue, buffered, seed, .. } = *options;
    let file_bytes = options.file_bytes.checked_next_multiple_of(CHUNK_BYTES as u64).unwrap_or(0);
    bounded("MiB of the file", file_bytes / CHUNK_BYTES as u64, 1)?;
    bounded("reads", reads, 1)?;
    if !(1..=DEPTH_MAX).contains(&depth) {
        return Err(Error::Options(format!("depth must be at least 1 and at most {DEPTH_MAX}")));
    }

    std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
    let disk = RealDisk::new(RealOptions::default().queue(queue)).map_err(failed)?;
    let scratch = make_file(&disk, dir.join("terrane-bench-queue"), file_bytes, monitor)?;
    let access = if buffered { Access::Buffered } else { Access::Direct };
    let file = disk.open(&scratch.path, OpenMode::Read, access).map_err(failed)?;

    let cpu_before = process_cpu_s();
    let start = Instant::now();
    read(&disk, &file, file_bytes / ALIGN as u64, options, monitor)?;
    let wall_s = seconds(start);
    let cpu_s = process_cpu_s() - cpu_before;

    Ok(Report {
        queue: disk.queue_kind().name(),
        access: if buffered { "buffered" } else { "direct" },
        file_bytes,
        depth,
        reads,
        seed,
        wall_s,
        reads_per_s: reads as f64 / wall_s,
        cpu_us_per_read: cpu_s * 1e6 / reads as f64,
    })
}

/// Reads random pages of a file of `pages` pages, and checks what they are.
fn read(
    disk: &Arc<RealDisk>,
    file: &Arc<dyn DiskFile>,
    pages: u64,
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<()> {
    let Options { depth, reads, seed, .. } = *options;
    let mut queue = disk.queue(depth as usize).map_err(failed)?;
    let mut state = splitmix(seed);
    let mut pushed = 0;
    let mut popped = 0_u64;

    // Buffers are used again and again, as a store does; some wait while the queue is full.
    let mut idle: Vec<_> = (0..2 * depth).map(|_| AlignedBuf::zeroed(ALIGN)).collect();
    loop {
        while pushed < reads
            && let Some(buffer) = idle.pop()
        {
            state = state.wrapping_add(SPLITMIX_STEP);
            let page = splitmix(state) % pages;
            let offset = page * ALIGN as u64;
            let file = file.clone();
            queue.push(Request { tag: page, file, offset, buffer, direction: Direction::Read });
            pushed += 1;
        }

        let Some(completion) = queue.pop() else { return Ok(()) };
        completion.result.map_err(failed)?;
        if completion.buffer[..8] != completion.tag.to_le_bytes() {
            return Err(Error::Wrong(format!("page {} has other bytes", completion.tag)));
        }
        idle.push(completion.buffer);
        popped += 1;
        if popped.is_multiple_of(REPORT_EVERY) {
            monitor.progress(Phase::Operations, popped, Some(reads));
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
        }
    }
}

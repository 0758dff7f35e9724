//! Cost of a random 4 KiB read through a queue: reads per second and CPU time per read.
//!
//! `cargo run --release -p terrane-io --example queue -- FILE [--threads] [--buffered] [DEPTH
//! [READS]]`
//!
//! One thread keeps `DEPTH` reads of `FILE` in flight, past the page cache unless told otherwise. A
//! file that does not exist is made, 1 GiB long. CPU time is that of the whole process, user and
//! system, workers included.

use std::fs;
use std::path::Path;
use std::time::Instant;

use terrane_io::{
    ALIGN, Access, AlignedBuf, Direction, Disk, OpenMode, QueueChoice, RealDisk, RealOptions,
    Request,
};

const FILE_BYTES: usize = 1 << 30;
const CHUNK_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut queue = QueueChoice::Auto;
    let mut access = Access::Direct;
    let mut words = Vec::new();
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--threads" => queue = QueueChoice::Threads,
            "--buffered" => access = Access::Buffered,
            _ => words.push(word),
        }
    }

    let path = Path::new(words.first().ok_or("which file?")?);
    let depth = words.get(1).map_or(Ok(128), |word| word.parse())?;
    let reads: u64 = words.get(2).map_or(Ok(500_000), |word| word.parse())?;

    let disk = RealDisk::new(RealOptions::default().queue(queue))?;
    if disk.kind(path)?.is_none() {
        let file = disk.open(path, OpenMode::CreateNew, Access::Direct)?;
        let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
        chunk.fill(0xA5);
        for offset in (0..FILE_BYTES).step_by(CHUNK_BYTES) {
            file.write_at(&chunk, offset as u64)?;
        }
        file.sync()?;
    }

    let file = disk.open(path, OpenMode::Read, access)?;
    let blocks = file.len()? / ALIGN as u64;

    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % blocks * ALIGN as u64
    };

    let mut queue = disk.queue(depth)?;
    let start = Instant::now();
    let cpu_us_before = cpu_us()?;
    let mut pushed = 0;
    let mut sum = 0;

    // Buffers are used again and again, as a store does.
    let mut idle: Vec<AlignedBuf> = (0..2 * depth).map(|_| AlignedBuf::zeroed(ALIGN)).collect();
    loop {
        while pushed < reads
            && let Some(buffer) = idle.pop()
        {
            let file = file.clone();
            let offset = next();
            queue.push(Request { tag: pushed, file, offset, buffer, direction: Direction::Read });
            pushed += 1;
        }
        let Some(completion) = queue.pop() else { break };
        completion.result?;
        sum += u64::from(completion.buffer[0]);
        idle.push(completion.buffer);
    }

    let seconds = start.elapsed().as_secs_f64();
    let cpu_us = cpu_us()? - cpu_us_before;
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let reads = reads as f64;
    println!(
        "{} depth {depth} {access:?}: {:.0} reads/s, {:.2} us CPU per read (sum {sum})",
        disk.queue_kind().name(),
        reads / seconds,
        cpu_us / reads,
    );
    Ok(())
}

/// CPU time of this process so far, in microseconds: user and system, from `/proc/self/stat`, whose
/// unit on Linux is 10 ms.
fn cpu_us() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("unknown format")?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() * 10_000.0)
}

//! Bare figures of the host, beside which latencies of the same run are read: an append with its
//! fdatasync, a timer that nothing uses, and one core on a fixed loop. Machines are shared, and
//! these figures change by the hour.

use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrane_replay::latency::{Latency, SpreadReport};

/// Upper bound of the appends that are timed.
const APPENDS_MAX: u64 = 500;
/// Sleeps of the idle timer for each append, and the length of a sleep.
const SLEEPS: u64 = 10;
const SLEEP: Duration = Duration::from_millis(1);
/// Pieces of 1 KiB that the loop hashes: 16 MiB.
const LOOP_PIECES: usize = 16 << 10;

/// Bare figures of the host.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BareReport {
    /// Bytes of an append.
    pub append_bytes: u64,
    /// Appending them and making them durable by fdatasync.
    pub append_sync_ms: SpreadReport,
    /// By how much a timer of 1 ms woke up late.
    pub idle_late_ms: SpreadReport,
    /// One core hashing 16 MiB with BLAKE2b, in pieces of 1 KiB.
    pub loop_ms: f64,
}

/// Measures the host, with `count` appends, 500 at most, of `bytes` bytes to a file in `dir` that
/// goes afterwards.
///
/// # Errors
/// Those of the file.
pub fn measure(dir: &Path, bytes: usize, count: u64) -> std::io::Result<BareReport> {
    let path = dir.join("terrane-bare-appends");
    let count = count.clamp(1, APPENDS_MAX);
    let appends = appends(&path, bytes, count);
    std::fs::remove_file(&path)?;

    let mut late = Latency::new();
    for _ in 0..SLEEPS * count {
        let start = Instant::now();
        thread::sleep(SLEEP);
        late.record(start.elapsed().saturating_sub(SLEEP));
    }

    let start = Instant::now();
    let rules = terrane::context::Rules::TEZOS;
    let mut piece = vec![7; 1 << 10];
    for _ in 0..LOOP_PIECES {
        // Each piece depends on the one before.
        let hash = rules.value_hash(black_box(&piece));
        piece[..32].copy_from_slice(&hash.0);
    }
    let loop_ms = start.elapsed().as_secs_f64() * 1e3;

    Ok(BareReport {
        append_bytes: bytes as u64,
        append_sync_ms: appends?.spread(),
        idle_late_ms: late.spread(),
        loop_ms,
    })
}

fn appends(path: &Path, bytes: usize, count: u64) -> std::io::Result<Latency> {
    let mut file = std::fs::File::create(path)?;
    let mut latency = Latency::new();
    let mut block = vec![0_u8; bytes];
    for number in 0..count {
        // No device may recognise the blocks.
        for (at, byte) in block.iter_mut().enumerate().step_by(64) {
            *byte = (at as u64 / 64 + number * 31) as u8;
        }
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        latency.record(start.elapsed());
    }
    Ok(latency)
}

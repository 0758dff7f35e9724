//! Makes a million updates of one entry each, and says what the worst of them cost: pages read and
//! written by the call, and its latency.
//!
//! `cargo run --release --example stalls [UPDATES [DIR]]`. Three times: with merges in equal shares
//! inside the updates, with merges on the background thread, and for comparison with each merge
//! done at once when it is due. Keys are 34 bytes and uniform, values 60 bytes; every fourth update
//! deletes. Pages are counted by the counting disk; of the background thread's work they are
//! counted with the call that was running at that moment, so there only latencies are told.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use terrane::io::{CountedDisk, Disk, RealDisk};
use terrane::lsm::{
    CompactionSchedule, CompactionThread, DiskCache, Session, SessionOptions, TableConfig, Update,
    WriteBuffer,
};

/// `SplitMix64` of a number.
fn spread(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn key(number: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    let mut word = number;
    for bytes in key[..32].as_chunks_mut::<8>().0 {
        word = spread(word);
        *bytes = word.to_le_bytes();
    }
    key
}

struct Outcome {
    worst_pages: u64,
    levels: usize,
    /// In nanoseconds, ascending.
    latencies: Vec<u64>,
}

fn run(dir: &Path, config: &TableConfig, updates: u64) -> Result<Outcome, Box<dyn Error>> {
    let disk = CountedDisk::new(RealDisk::auto());
    let options = SessionOptions::default().create_dir();
    let session = Session::open(Arc::clone(&disk) as Arc<dyn Disk>, dir, &options)?;

    let mut table = session.new_table(config)?;
    let mut outcome = Outcome { worst_pages: 0, levels: 0, latencies: Vec::new() };
    let mut before = disk.counts();
    for number in 0..updates {
        let key = key(if number % 4 == 3 { number / 2 } else { number });
        let update = if number % 4 == 3 { Update::Delete } else { Update::Insert(&[7; 60]) };
        let start = Instant::now();
        table.write_batch(&[(key, update)])?;
        outcome.latencies.push(start.elapsed().as_nanos() as u64);
        let now = disk.counts();
        let spent = now - before;
        outcome.worst_pages = outcome.worst_pages.max(spent.read_pages + spent.write_pages);
        before = now;
    }

    outcome.levels = table.stats().levels.len();
    outcome.latencies.sort_unstable();
    session.close()?;
    Ok(outcome)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let updates: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-stalls".to_owned());
    if updates == 0 {
        return Err("at least one update".into());
    }
    let shares = TableConfig::default()
        .write_buffer(WriteBuffer::Entries(20_000))
        .disk_cache(DiskCache::All);

    let background = shares.clone().compaction_thread(CompactionThread::Background);
    let at_once = shares.clone().compaction_schedule(CompactionSchedule::OneShot);
    println!("{updates} updates of one entry, latencies in microseconds");
    println!(
        "{:12} {:>11} {:>6} {:>7} {:>7} {:>7} {:>8} {:>9}",
        "merges", "worst pages", "levels", "p50", "p99", "p99.9", "p99.99", "max"
    );
    let modes = [("in shares", shares), ("background", background), ("at once", at_once)];

    for (name, config) in modes {
        let outcome = run(Path::new(&dir), &config, updates)?;
        let at = |share: f64| {
            let rank = (outcome.latencies.len() - 1) as f64 * share;
            outcome.latencies[rank.round() as usize] as f64 / 1_000.0
        };
        let pages = match config.compaction_thread {
            CompactionThread::Background => "-".to_owned(),
            _ => outcome.worst_pages.to_string(),
        };
        println!(
            "{name:12} {pages:>11} {:>6} {:>7.1} {:>7.1} {:>7.1} {:>8.1} {:>9.1}",
            outcome.levels,
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            at(1.0)
        );
    }

    Ok(())
}

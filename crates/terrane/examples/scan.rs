//! Builds two tables of so many entries, one of a single run and one in its steady shape of several
//! levels, and says how fast a cursor reads them from one end to the other, past the page cache.
//!
//! `cargo run --profile bench --example scan [ENTRIES [DIR [ROUNDS]]] [--fio]`; with `--fio` each
//! round begins with a sequential read of a file in DIR by that program, in requests of 1 MiB, 8 in
//! flight, and each rate is given as a share of that. Tables that an earlier run left in DIR are
//! used again.
//!
//! Keys are 34 bytes and uniform, values 60 bytes. Rates count the bytes that are read; what is
//! read is checked by its order, its count and a sum over keys and values.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use terrane::io::{CountedDisk, RealDisk};
use terrane::lsm::{
    CompactionPolicy, CompactionSchedule, DiskCache, Session, SessionOptions, SnapshotName, Table,
    TableConfig, Update, WriteBuffer,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const BATCH: u64 = 1000;

/// Flushes that the table of one run is made of.
const FLUSHES: u64 = 8;

/// `SplitMix64`: the word that belongs to state `n`.
fn word(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn filled<const LEN: usize>(n: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(n.wrapping_mul(16) + at as u64).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

fn key(n: u64) -> [u8; 34] {
    filled(n)
}

fn value(n: u64) -> [u8; 60] {
    filled(!n)
}

/// Fingerprint of a set of entries: their number, and the sum of their parts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sum {
    count: u64,
    sum: u64,
}

impl Sum {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        for part in [key.first_chunk(), value.last_chunk()] {
            let number = part.map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.sum = self.sum.wrapping_add(number);
        }
    }

    fn of(numbers: impl Iterator<Item = u64>) -> Self {
        let mut sum = Self::default();
        numbers.for_each(|n| sum.add(&key(n), &value(n)));
        sum
    }
}

/// Inserts entries, and deletes others, in turn.
fn update(table: &mut Table, inserts: std::ops::Range<u64>, deletes: bool) -> Outcome<()> {
    for first in inserts.clone().step_by(BATCH as usize) {
        let numbers = first..inserts.end.min(first + BATCH);
        let entries: Vec<_> = numbers.clone().map(|n| (key(n), value(n))).collect();
        let mut batch: Vec<_> =
            entries.iter().map(|(key, value)| (*key, Update::Insert(value))).collect();
        if deletes {
            batch.extend(numbers.map(|n| (key(n - inserts.start), Update::Delete)));
        }
        table.write_batch(&batch)?;
    }

    Ok(())
}

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a valid name")
}

/// Builds both tables and saves them.
fn build(session: &Session, entries: u64, label: &str) -> Outcome<()> {
    for name in session.list_snapshots()? {
        session.delete_snapshot(&name)?;
    }
    let one_run = TableConfig::default()
        .compaction_policy(CompactionPolicy::Levelling)
        .compaction_schedule(CompactionSchedule::OneShot)
        .size_ratio(2 * FLUSHES as u32)
        .write_buffer(WriteBuffer::Entries(entries / FLUSHES))
        .disk_cache(DiskCache::None);

    let mut table = session.new_table(&one_run)?;
    update(&mut table, 0..entries, false)?;
    table.save_snapshot(&name("one-run"), label)?;
    drop(table);

    let steady = TableConfig::default().disk_cache(DiskCache::None);
    let mut table = session.new_table(&steady)?;
    update(&mut table, 0..entries, false)?;

    update(&mut table, entries..entries * 3 / 2, true)?;
    table.save_snapshot(&name("steady"), label)?;
    Ok(())
}

/// Reads all entries in one direction and checks them.
fn scan(table: &Table, is_forward: bool, expected: Sum) -> Outcome<()> {
    let mut cursor = table.cursor()?;
    if !is_forward {
        cursor.seek_to_end();
    }
    let mut sum = Sum::default();
    let mut last = [0; 34];
    loop {
        let record = if is_forward { cursor.next_ref()? } else { cursor.prev_ref()? };
        let Some(record) = record else { break };
        let is_in_order = sum.count == 0 || (record.key > &last[..]) == is_forward;
        if !is_in_order || record.key.len() != last.len() {
            return Err(format!("entry {}: out of order", sum.count).into());
        }
        last.copy_from_slice(record.key);
        sum.add(record.key, record.value);
    }
    if sum == expected { Ok(()) } else { Err(format!("{sum:?}, expected {expected:?}").into()) }
}

/// Processor time of this thread so far, in ns, where the system tells.
fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// Returns the rate of `fio` on a file in `dir` with direct I/O, in MB/s.
fn fio(dir: &Path) -> Outcome<f64> {
    let file = dir.join("fio.bin");
    let output = Command::new("fio")
        .args(["--name=sequential", "--rw=read", "--bs=1M", "--iodepth=8", "--direct=1"])
        .args(["--ioengine=io_uring", "--size=1G", "--output-format=terse", "--terse-version=3"])
        .arg(format!("--filename={}", file.display()))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);

    // The seventh field is the bandwidth of reads in KiB/s.
    let field = text.lines().last().and_then(|line| line.split(';').nth(6));
    let kib_per_s: f64 = field.ok_or_else(|| format!("fio said: {text}"))?.parse()?;
    Ok(kib_per_s * 1024.0 / 1e6)
}

fn main() -> Outcome<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let with_fio = arguments.iter().any(|argument| argument == "--fio");
    arguments.retain(|argument| argument != "--fio");
    let mut arguments = arguments.into_iter();
    let entries: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let entries = entries.next_multiple_of(FLUSHES);
    let dir = arguments.next().unwrap_or_else(|| "/tmp/terrane-scan".to_owned());
    let rounds: u32 = arguments.next().map_or(Ok(3), |text| text.parse())?;

    let disk = CountedDisk::new(RealDisk::auto());
    let options = SessionOptions::default().create_dir();
    let open = || Session::open(Arc::clone(&disk) as _, Path::new(&dir), &options);
    let label = format!("scan of {entries} entries");
    let session = open()?;
    if session.open_snapshot(&name("steady"), &label).is_err() {
        build(&session, entries, &label)?;
    }

    session.close()?;

    let sums = [Sum::of(0..entries), Sum::of(entries / 2..entries * 3 / 2)];
    let session = open()?;

    for round in 1..=rounds {
        let yardstick = if with_fio { Some(fio(Path::new(&dir))?) } else { None };
        if let Some(rate) = yardstick {
            println!("round {round}  fio, 1 MiB, depth 8     {rate:6.0} MB/s");
        }
        for (title, sum) in ["one-run", "steady"].into_iter().zip(sums) {
            let table = session.open_snapshot(&name(title), &label)?;
            for (direction, is_forward) in [("forward", true), ("backward", false)] {
                let before = disk.counts();
                let cpu_before = cpu_ns();
                let start = Instant::now();
                scan(&table, is_forward, sum)?;
                let seconds = start.elapsed().as_secs_f64();
                let cpu = (cpu_ns() - cpu_before) / sum.count as f64;
                let bytes = ((disk.counts() - before).read_pages * 4096) as f64;
                let rate = bytes / seconds / 1e6;
                let share = yardstick.map(|rate_max| format!(", {:.2} of fio", rate / rate_max));
                println!(
                    "round {round}  {title:7} {direction:8} {:2} runs {:5.0} MB {rate:6.0} MB/s {:5.2} M entries/s, {cpu:3.0} ns of CPU each{}",
                    table.stats().runs(),
                    bytes / 1e6,
                    sum.count as f64 / seconds / 1e6,
                    share.unwrap_or_default()
                );
            }
        }
    }

    Ok(())
}

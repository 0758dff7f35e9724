//! Says how long a store takes to open after its process was killed with so much of a log that no
//! checkpoint holds yet.
//!
//! `cargo run --release --example recover [ENTRIES [LOG_BYTES [DIR]]]`. Starts itself as the
//! process that fills the store with ENTRIES entries (keys of 34 bytes, values of 60, batches of
//! 1,000), makes a checkpoint, commits that much more in batches of 512 updates, and is killed.
//! Then opens the store, three times, with what the page cache holds, and goes on with as many
//! commits of one update as the log had updates. The caller removes DIR.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use terrane::lsm::{Durability, NamedTable, Store, StoreOptions, TableConfig, TableName, Update};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Set for the process that is killed.
const IS_CHILD: &str = "TERRANE_RECOVER_CHILD";

/// Bytes that the log takes for an update.
const UPDATE_BYTES: u64 = 103;

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

fn commit(table: &NamedTable, numbers: std::ops::Range<u64>) -> Outcome<()> {
    let entries: Vec<([u8; 34], [u8; 60])> = numbers.map(|n| (filled(n), filled(!n))).collect();
    let batch: Vec<_> = entries.iter().map(|(key, value)| (*key, Update::Insert(value))).collect();
    // Buffered: a killed process loses nothing of it.
    drop(table.write_batch(&batch)?);
    Ok(())
}

fn fill(dir: &Path, entries: u64, log_bytes: u64) -> Outcome<()> {
    let options = StoreOptions::default().create_dir().durability(Durability::Buffered);
    // The store makes no checkpoint by itself within the wanted bytes.
    let store = Store::open_dir(dir, &options.log_bytes_max((log_bytes * 4).max(64 << 20)))?;
    let table = store.create_table(&TableName::default(), &TableConfig::default())?;
    for first in (0..entries).step_by(1_000) {
        commit(&table, first..entries.min(first + 1_000))?;
    }
    store.checkpoint()?;

    let more = entries + log_bytes / UPDATE_BYTES;
    for first in (entries..more).step_by(512) {
        commit(&table, first..more.min(first + 512))?;
    }
    println!("{} commits", store.last_commit());

    std::process::abort();
}

/// Commits single updates after recovery, and says what the first one costs and the slowest of the
/// others. Returns how many of the entries before are there in the end.
fn go_on(dir: &Path, first: u64, commits: u64) -> Outcome<u64> {
    let options = StoreOptions::default().durability(Durability::Buffered);
    let opened = Store::open_dir(dir, &options.log_bytes_max(1 << 30))?;
    let table = opened.table(&TableName::default())?;
    let mut slowest = [Duration::ZERO; 2];

    for number in 0..commits {
        let start = Instant::now();
        commit(&table, first + number..first + number + 1)?;
        let slowest = &mut slowest[usize::from(number > 0)];
        *slowest = start.elapsed().max(*slowest);
    }

    let [at_first, later] = slowest.map(|took| took.as_secs_f64() * 1e3);
    println!("first commit: {at_first:.1} ms; slowest of {} after it: {later:.1} ms", commits - 1);
    Ok(table.view()?.count_exact()? - commits)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let entries: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let log_bytes: u64 = args.next().map_or(Ok(64 << 20), |text| text.parse())?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-recover".to_owned());
    let dir = Path::new(&dir);
    if std::env::var_os(IS_CHILD).is_some() {
        return fill(dir, entries, log_bytes);
    }
    std::fs::create_dir_all(dir)?;
    let store = dir.join("store");
    if store.exists() {
        std::fs::remove_dir_all(&store)?;
    }
    let args = [entries.to_string(), log_bytes.to_string(), store.display().to_string()];
    let status = Command::new(std::env::current_exe()?).args(args).env(IS_CHILD, "1").status()?;
    if status.success() {
        return Err("the process was to be killed".into());
    }
    let expected = entries + log_bytes / UPDATE_BYTES;
    for attempt in 1..=2 {
        let start = Instant::now();
        let opened = Store::open_dir(&store, &StoreOptions::default())?;
        let took = start.elapsed();
        let table = opened.table(&TableName::default())?;
        let last: [u8; 34] = filled(expected - 1);
        if table.get(&last)?.value() != Some(&filled::<60>(!(expected - 1))) {
            return Err("the last commit is lost".into());
        }
        println!(
            "open {attempt}: {:.3} s, {entries} entries and {} MB of log",
            took.as_secs_f64(),
            log_bytes / 1_000_000
        );
    }
    let count = go_on(&store, expected, (log_bytes / UPDATE_BYTES).max(100_000))?;
    if count != expected {
        return Err(format!("{count} entries, not {expected}").into());
    }
    Ok(())
}

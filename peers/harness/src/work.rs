//! The workloads: the same operations on the same bytes for every engine, every answer checked.
//!
//! | workload    | data (key + value) | an operation                                                |
//! |-------------|--------------------|-------------------------------------------------------------|
//! | `utxo`      | 34 + 60 bytes      | of a batch of 256: look up a live key, delete it, insert a new one |
//! | `kvget`     | 32 + 110 bytes     | look up one key; eight threads                              |
//! | `index`     | 32 + 13 bytes      | of 99: insert an object's place 10 times, find one 69 times, look for an absent one 20 times |
//! | `scan`      | 34 + 60 bytes      | read 1,000 entries in order from a random key on            |
//! | `commits-1` | 34 + 60 bytes      | commit ten new entries durably; one thread                  |
//! | `commits-8` | 34 + 60 bytes      | the same on eight threads                                   |
//!
//! Keys and values follow from a seed and a number by the functions of `terrane-bench`, so nothing
//! is stored to check them. Numbers of `utxo` that live are an array, drawn from without
//! repetition; it is made before memory is limited, and is not the engine's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use terrane_bench::workloads::{SPLITMIX_STEP, index, kvget, splitmix, utxo};
use terrane_replay::latency::Latency;

use crate::engine::{Batch, Durability, Engine, Error, Result};

/// Operations of a batch of `utxo`.
const BATCH: usize = 256;

/// Threads of `kvget`.
const READERS: u64 = 8;

/// Entries that one scan reads.
const SCANNED: usize = 1_000;

/// Entries of a durable commit.
const COMMITTED: u64 = 10;

/// Keys that are checked after the clock has stopped.
const CHECKED: usize = 4_096;

/// Numbers from here on are keys of durable commits.
const COMMITS_FROM: u64 = 1 << 40;

/// Numbers from here on are never inserted.
const ABSENT_FROM: u64 = 1 << 41;

/// Insertions, and lookups of present keys, of 99 operations of `index`; the rest asks for absent
/// keys.
const INDEX_INSERTS: u64 = 10;
const INDEX_FINDS: u64 = 69;
const INDEX_ROUND: u64 = 99;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// A set of unspent outputs.
    Utxo,
    /// Single lookups.
    Kvget,
    /// Places of objects by their hashes.
    Index,
    /// Short ranges.
    Scan,
    /// Durable commits of one thread.
    #[value(name = "commits-1")]
    #[serde(rename = "commits-1")]
    Commits1,
    /// Durable commits of eight threads.
    #[value(name = "commits-8")]
    #[serde(rename = "commits-8")]
    Commits8,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Utxo, Self::Kvget, Self::Index, Self::Scan, Self::Commits1, Self::Commits8];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utxo => "utxo",
            Self::Kvget => "kvget",
            Self::Index => "index",
            Self::Scan => "scan",
            Self::Commits1 => "commits-1",
            Self::Commits8 => "commits-8",
        }
    }

    /// Bytes of a key and its value.
    pub fn entry_bytes(self) -> u64 {
        match self {
            Self::Kvget => kvget::data::ENTRY_BYTES,
            Self::Index => index::ENTRY_BYTES,
            _ => utxo::ENTRY_SIZE,
        }
    }

    /// The class in which engines are compared.
    pub fn durability(self) -> Durability {
        match self {
            Self::Utxo | Self::Kvget | Self::Index | Self::Scan => Durability::None,
            Self::Commits1 | Self::Commits8 => Durability::FsyncEach,
        }
    }

    /// Threads that read or write at a time while it is measured.
    pub fn threads(self) -> u64 {
        match self {
            Self::Utxo | Self::Index | Self::Scan | Self::Commits1 => 1,
            Self::Kvget => READERS,
            Self::Commits8 => 8,
        }
    }

    /// Whether entries are loaded before.
    pub fn loads(self) -> bool {
        self.durability() == Durability::None
    }

    fn entry(self, seed: u64, number: u64) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::Kvget => {
                let value = kvget::data::value(seed, number, 0);
                (kvget::data::key(number).to_vec(), value.to_vec())
            }
            // The first bytes of key and value of `utxo`.
            Self::Index => {
                let (key, value) = utxo::entry(seed, number);
                (key[..index::KEY_BYTES].to_vec(), value[..index::VALUE_BYTES].to_vec())
            }
            _ => {
                let (key, value) = utxo::entry(seed, number);
                (key.to_vec(), value.to_vec())
            }
        }
    }
}

/// Draws: SplitMix64.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        let drawn = splitmix(self.0);
        self.0 = self.0.wrapping_add(SPLITMIX_STEP);
        drawn
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Loads entries `0..entries` in the order of their keys.
///
/// # Errors
/// Those of the engine.
pub fn load(workload: Workload, engine: &dyn Engine, seed: u64, entries: u64) -> Result<()> {
    // The first eight bytes decide the order, since no two keys share them.
    let mut order: Vec<(u64, u32)> = (0..entries)
        .map(|number| {
            let (key, _) = workload.entry(seed, number);
            (u64::from_be_bytes(std::array::from_fn(|i| key[i])), number as u32)
        })
        .collect();
    order.sort_unstable();

    let mut batch = Batch::default();
    for (_, number) in order {
        let (key, value) = workload.entry(seed, u64::from(number));
        batch.put(&key, &value);
        if batch.len() == 10_000 {
            engine.load(&batch)?;
            batch.clear();
        }
    }
    if batch.len() > 0 {
        engine.load(&batch)?;
    }
    engine.settle()
}

/// State of a workload over its warm-up and its measured part.
pub struct Work {
    workload: Workload,
    seed: u64,
    /// Numbers that live, of `utxo`; of the others, loaded numbers are `0..entries`.
    live: Vec<u32>,
    entries: u64,
    next: u64,
    /// The last numbers that were deleted.
    dead: Vec<u32>,
    draws: Draws,
    commits: AtomicU64,
}

/// Figures of a measured time.
pub struct Measured {
    /// Operations.
    pub ops: u64,
    /// Seconds on the clock.
    pub seconds: f64,
    /// Latency of a call that reads: a batch of `utxo`, a lookup, a scan.
    pub reads: Latency,
    /// Latency of a call that writes: the changes of a batch, a commit.
    pub writes: Latency,
}

impl Work {
    /// Prepares a workload on a store with `entries` loaded. Takes four bytes for each of them.
    pub fn new(workload: Workload, seed: u64, entries: u64) -> Self {
        let live =
            if workload == Workload::Utxo { (0..entries as u32).collect() } else { Vec::new() };
        Self {
            workload,
            seed,
            live,
            entries,
            next: entries,
            dead: Vec::new(),
            draws: Draws(seed ^ 0x5EED),
            commits: AtomicU64::new(COMMITS_FROM),
        }
    }

    /// Works for `time`.
    ///
    /// # Errors
    /// Those of the engine; [`Error::Wrong`] if an answer is not what it must be.
    pub fn run(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        match self.workload {
            Workload::Utxo => self.utxo(engine, time),
            Workload::Kvget => self.kvget(engine, time),
            Workload::Index => self.index(engine, time),
            Workload::Scan => self.scan(engine, time),
            Workload::Commits1 | Workload::Commits8 => {
                self.commits(engine, time, self.workload.threads())
            }
        }
    }

    fn utxo(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        let (mut reads, mut writes) = (Latency::new(), Latency::new());
        let (mut ops, mut spent) = (0, Duration::ZERO);
        let mut changes = Batch::default();
        while spent < time {
            // Drawn numbers are swapped to the end, so none is drawn twice in a batch.
            let size = self.live.len();
            for i in 0..BATCH {
                let position = self.draws.below((size - i) as u64) as usize;
                self.live.swap(position, size - 1 - i);
            }
            let drawn = &self.live[size - BATCH..];
            let expected: Vec<_> = drawn
                .iter()
                .map(|&number| self.workload.entry(self.seed, u64::from(number)))
                .collect();
            let keys: Vec<&[u8]> = expected.iter().map(|(key, _)| key.as_slice()).collect();
            changes.clear();
            for (key, _) in &expected {
                changes.delete(key);
            }
            for number in self.next..self.next + BATCH as u64 {
                let (key, value) = self.workload.entry(self.seed, number);
                changes.put(&key, &value);
            }

            let mut found = 0;
            let start = Instant::now();
            engine.get_many(&keys, &mut |position, value| {
                found += usize::from(value == Some(expected[position].1.as_slice()));
                Ok(())
            })?;
            let read = start.elapsed();
            engine.write(&changes)?;
            let all = start.elapsed();

            if found != BATCH {
                return Err(Error::Wrong(format!(
                    "{found} of {BATCH} live keys found with their values"
                )));
            }
            reads.record(read);
            writes.record(all - read);
            spent += all;
            ops += BATCH as u64;
            self.dead.splice(.., self.live[size - BATCH..].iter().copied());
            for (slot, number) in self.live[size - BATCH..].iter_mut().zip(self.next..) {
                *slot = number as u32;
            }
            self.next += BATCH as u64;
        }
        Ok(Measured { ops, seconds: spent.as_secs_f64(), reads, writes })
    }

    fn kvget(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        let start = Instant::now();
        let seeds: Vec<u64> = (0..READERS).map(|_| self.draws.next()).collect();
        let (seed, entries, workload) = (self.seed, self.entries, self.workload);
        let results = std::thread::scope(|scope| {
            let readers: Vec<_> = seeds
                .into_iter()
                .map(|stream| {
                    scope.spawn(move || -> Result<Latency> {
                        let (mut draws, mut latency) = (Draws(stream), Latency::new());
                        while start.elapsed() < time {
                            let (key, expected) = workload.entry(seed, draws.below(entries));
                            let begun = Instant::now();
                            let mut right = false;
                            engine.get_many(&[&key], &mut |_, value| {
                                right = value == Some(expected.as_slice());
                                Ok(())
                            })?;
                            latency.record(begun.elapsed());
                            if !right {
                                return Err(Error::Wrong(
                                    "a loaded key has another value".to_owned(),
                                ));
                            }
                        }
                        Ok(latency)
                    })
                })
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().expect("readers do not panic"))
                .collect::<Vec<_>>()
        });
        let seconds = start.elapsed().as_secs_f64();
        let reads = merged(results)?;
        Ok(Measured { ops: reads.report().ops, seconds, reads, writes: Latency::new() })
    }

    fn index(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        let (mut reads, mut writes) = (Latency::new(), Latency::new());
        let (mut spent, mut inserted) = (Duration::ZERO, Batch::default());
        while spent < time {
            let kind = self.draws.below(INDEX_ROUND);
            if kind < INDEX_INSERTS {
                let (key, value) = self.workload.entry(self.seed, self.next);
                inserted.clear();
                inserted.put(&key, &value);
                let begun = Instant::now();
                engine.write(&inserted)?;
                let took = begun.elapsed();
                writes.record(took);
                spent += took;
                self.next += 1;
                continue;
            }

            let is_present = kind < INDEX_INSERTS + INDEX_FINDS;
            let from = if is_present { 0 } else { ABSENT_FROM };
            let number = from + self.draws.below(self.next);
            let (key, value) = self.workload.entry(self.seed, number);
            let expected = is_present.then_some(value.as_slice());
            let mut is_right = false;
            let begun = Instant::now();
            engine.get_many(&[&key], &mut |_, found| {
                is_right = found == expected;
                Ok(())
            })?;
            let took = begun.elapsed();
            reads.record(took);
            spent += took;
            if !is_right {
                let state = if is_present { "there" } else { "absent" };
                return Err(Error::Wrong(format!("entry {number} must be {state}")));
            }
        }
        let ops = reads.report().ops + writes.report().ops;
        Ok(Measured { ops, seconds: spent.as_secs_f64(), reads, writes })
    }

    fn scan(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        let (mut reads, mut spent) = (Latency::new(), Duration::ZERO);
        while spent < time {
            let (from, value) = self.workload.entry(self.seed, self.draws.below(self.entries));
            let mut last: Vec<u8> = Vec::new();
            let begun = Instant::now();
            engine.scan(&from, SCANNED, &mut |key, got| {
                if last.is_empty() && (key, got) != (&from, &value) {
                    return Err(Error::Wrong(
                        "a scan does not begin with the key it was given".to_owned(),
                    ));
                }
                if key <= last.as_slice() {
                    return Err(Error::Wrong("keys of a scan do not ascend".to_owned()));
                }
                last.clear();
                last.extend_from_slice(key);
                Ok(())
            })?;
            reads.record(begun.elapsed());
            spent += begun.elapsed();
        }
        Ok(Measured {
            ops: reads.report().ops,
            seconds: spent.as_secs_f64(),
            reads,
            writes: Latency::new(),
        })
    }

    fn commits(&mut self, engine: &dyn Engine, time: Duration, threads: u64) -> Result<Measured> {
        let start = Instant::now();
        let (seed, workload, next) = (self.seed, self.workload, &self.commits);
        let results = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(move || -> Result<Latency> {
                        let (mut latency, mut batch) = (Latency::new(), Batch::default());
                        while start.elapsed() < time {
                            let first = next.fetch_add(COMMITTED, Ordering::Relaxed);
                            batch.clear();
                            for number in first..first + COMMITTED {
                                let (key, value) = workload.entry(seed, number);
                                batch.put(&key, &value);
                            }
                            let begun = Instant::now();
                            engine.write(&batch)?;
                            latency.record(begun.elapsed());
                        }
                        Ok(latency)
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().expect("writers do not panic"))
                .collect::<Vec<_>>()
        });
        let seconds = start.elapsed().as_secs_f64();
        let writes = merged(results)?;
        Ok(Measured { ops: writes.report().ops, seconds, reads: Latency::new(), writes })
    }

    /// Looks keys up that must be there, or must be gone, after the clock has stopped; returns how
    /// many. After durable commits, all of them.
    ///
    /// # Errors
    /// [`Error::Wrong`] on the first wrong answer.
    pub fn check(&mut self, engine: &dyn Engine) -> Result<u64> {
        let mut present: Vec<u64> = Vec::new();
        match self.workload {
            Workload::Utxo => {
                let live = self.live.iter().rev().step_by(self.live.len().div_ceil(CHECKED));
                present.extend(live.map(|&number| u64::from(number)));
            }
            Workload::Kvget | Workload::Scan => {
                present.extend(
                    (0..CHECKED.min(self.entries as usize)).map(|_| self.draws.below(self.entries)),
                );
            }
            Workload::Index => {
                // The last insertions, and any others.
                present.extend(self.next.saturating_sub(CHECKED as u64)..self.next);
                present.extend(
                    (0..CHECKED.min(self.entries as usize)).map(|_| self.draws.below(self.entries)),
                );
            }
            Workload::Commits1 | Workload::Commits8 => {
                present.extend(COMMITS_FROM..self.commits.load(Ordering::Relaxed));
            }
        }
        let mut absent: Vec<u64> = self.dead.iter().map(|&number| u64::from(number)).collect();
        if self.workload == Workload::Index {
            absent.extend(ABSENT_FROM..ABSENT_FROM + CHECKED as u64);
        }
        for (numbers, exists) in [(&present, true), (&absent, false)] {
            for part in numbers.chunks(BATCH) {
                let entries: Vec<_> =
                    part.iter().map(|&number| self.workload.entry(self.seed, number)).collect();
                let keys: Vec<&[u8]> = entries.iter().map(|(key, _)| key.as_slice()).collect();
                engine.get_many(&keys, &mut |position, value| {
                    let expected = exists.then_some(entries[position].1.as_slice());
                    if value == expected {
                        return Ok(());
                    }
                    let number = part[position];
                    Err(Error::Wrong(format!(
                        "entry {number} must be {}",
                        if exists { "there" } else { "gone" }
                    )))
                })?;
            }
        }
        Ok((present.len() + absent.len()) as u64)
    }
}

fn merged(results: Vec<Result<Latency>>) -> Result<Latency> {
    let mut all = Latency::new();
    for result in results {
        all.merge(&result?);
    }
    Ok(all)
}

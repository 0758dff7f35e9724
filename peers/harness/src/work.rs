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
//! | `state`     | 32 + 74 bytes      | a block: read 1,313 keys, change as many, return the root, durably |
//!
//! A block of `state` has the size of one of Ethereum's main network that changes 323 accounts and
//! 990 slots. Its 1,313 reads are one call for keys that are there. It overwrites 998 of them and
//! removes 99, as the blocks of `terrane bench state` do on average, and inserts 216. Keys are
//! Keccak-256 of a counter, as those of `kvget`; values are accounts in RLP, of 70 to 78 bytes. The
//! roots after the load and after block 1, 2, 4, 8, … are kept, so engines of one scheme can be
//! compared however many blocks each of them gets through.
//!
//! Keys and values follow from a seed and a number by the functions of `terrane-bench`, so nothing
//! is stored to check them. Numbers of `utxo` that live are an array, drawn from without
//! repetition, and versions of the values of `state` another one; they are made before memory is
//! limited, and are not the engine's.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use terrane_bench::workloads::draws::{Stream, mix};
use terrane_bench::workloads::{SPLITMIX_STEP, index, kvget, splitmix, utxo};
use terrane_replay::latency::Latency;

use crate::engine::{Batch, Durability, Engine, Error, Result, Root};

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

/// Keys that a block of `state` reads, and as many that it changes.
const BLOCK_READS: usize = 1_313;

/// Keys of its reads that a block overwrites, and those that it removes. The rest of its changes
/// are insertions.
const BLOCK_OVERWRITES: usize = 998;
const BLOCK_REMOVALS: usize = 99;

/// Bytes of a value of `state` at least, and on average.
const STATE_VALUE_BYTES_MIN: u8 = 70;
const STATE_VALUE_BYTES: u64 = 74;

/// Insertions of `state` that move no versions in memory.
const INSERTED_MAX: usize = 1 << 20;

/// Version of a number of `state` that was removed.
const REMOVED: u8 = u8::MAX;

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
    /// Blocks of changes to a state with a root.
    State,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Utxo,
        Self::Kvget,
        Self::Index,
        Self::Scan,
        Self::Commits1,
        Self::Commits8,
        Self::State,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Utxo => "utxo",
            Self::Kvget => "kvget",
            Self::Index => "index",
            Self::Scan => "scan",
            Self::Commits1 => "commits-1",
            Self::Commits8 => "commits-8",
            Self::State => "state",
        }
    }

    /// Bytes of a key and its value.
    pub fn entry_bytes(self) -> u64 {
        match self {
            Self::Kvget => kvget::data::ENTRY_BYTES,
            Self::Index => index::ENTRY_BYTES,
            Self::State => kvget::data::KEY_BYTES as u64 + STATE_VALUE_BYTES,
            _ => utxo::ENTRY_SIZE,
        }
    }

    /// The class in which engines are compared.
    pub fn durability(self) -> Durability {
        match self {
            Self::Utxo | Self::Kvget | Self::Index | Self::Scan => Durability::None,
            Self::Commits1 | Self::Commits8 | Self::State => Durability::FsyncEach,
        }
    }

    /// Threads that read or write at a time while it is measured.
    pub fn threads(self) -> u64 {
        match self {
            Self::Utxo | Self::Index | Self::Scan | Self::Commits1 | Self::State => 1,
            Self::Kvget => READERS,
            Self::Commits8 => 8,
        }
    }

    /// Whether entries are loaded before.
    pub fn loads(self) -> bool {
        !matches!(self, Self::Commits1 | Self::Commits8)
    }

    /// Whether a commit makes a root.
    pub fn has_root(self) -> bool {
        self == Self::State
    }

    /// Entries of a durable commit.
    pub fn committed(self) -> u64 {
        if self == Self::State { BLOCK_READS as u64 } else { COMMITTED }
    }

    /// Bytes that the workload itself keeps to know what is there.
    pub fn own_bytes(self, entries: u64) -> u64 {
        match self {
            Self::Utxo => entries * 4,
            Self::State => entries,
            _ => 0,
        }
    }

    fn entry(self, seed: u64, number: u64) -> (Vec<u8>, Vec<u8>) {
        match self {
            Self::State => (kvget::data::key(number).to_vec(), account(seed, number, 0)),
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

/// The value of a number of `state` after so many changes: an account in RLP, whose nonce has one
/// byte and whose balance up to eight.
fn account(seed: u64, number: u64, version: u8) -> Vec<u8> {
    let stream = Stream { start: mix(mix(seed, number), u64::from(version)) };
    let drawn = stream.output(0);
    let nonce = 1 + (drawn % 127) as u8;
    let balance_bytes = (drawn >> 8) % 9;
    let mut balance = stream.output(1).to_le_bytes();
    // A single byte below 0x80 would stand for itself.
    balance[0] |= 0x80;

    let extra = balance_bytes as u8;
    let mut value = vec![0xf8, STATE_VALUE_BYTES_MIN - 2 + extra, nonce, 0x80 + extra];
    value.extend_from_slice(&balance[..balance_bytes as usize]);
    for first in [2, 6] {
        value.push(0xa0);
        value.extend((first..first + 4).flat_map(|at| stream.output(at).to_le_bytes()));
    }
    value
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
    /// Version of the value of each number of `state`, or [`REMOVED`].
    versions: Vec<u8>,
    /// Blocks of `state` so far.
    blocks: u64,
    /// Roots of `state` after so many blocks: none, a power of two, and at last the present number.
    roots: Vec<(u64, Root)>,
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
    /// Prepares a workload on a store with `entries` loaded. Takes [`Workload::own_bytes`].
    pub fn new(workload: Workload, seed: u64, entries: u64) -> Self {
        let live =
            if workload == Workload::Utxo { (0..entries as u32).collect() } else { Vec::new() };
        let mut versions = Vec::new();
        if workload == Workload::State {
            versions.reserve(entries as usize + INSERTED_MAX);
            versions.resize(entries as usize, 0);
        }
        Self {
            workload,
            seed,
            live,
            entries,
            next: entries,
            dead: Vec::new(),
            draws: Draws(seed ^ 0x5EED),
            commits: AtomicU64::new(COMMITS_FROM),
            versions,
            blocks: 0,
            roots: Vec::new(),
        }
    }

    /// Roots after the load, after a power of two of blocks, and after the last block.
    pub fn roots(&self) -> &[(u64, Root)] {
        &self.roots
    }

    /// The present entry of a number.
    fn entry(&self, number: u64) -> (Vec<u8>, Vec<u8>) {
        let version = self.versions.get(number as usize).copied().unwrap_or(0);
        if version == 0 {
            return self.workload.entry(self.seed, number);
        }
        (kvget::data::key(number).to_vec(), account(self.seed, number, version))
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
            Workload::State => self.state(engine, time),
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

    fn state(&mut self, engine: &dyn Engine, time: Duration) -> Result<Measured> {
        if self.entries < 2 * BLOCK_READS as u64 {
            return Err(Error::Options(format!("state needs {} entries", 2 * BLOCK_READS)));
        }
        if self.roots.is_empty() {
            self.roots.push((0, engine.root()?));
        }
        let (mut reads, mut writes) = (Latency::new(), Latency::new());
        let (mut blocks, mut spent) = (0, Duration::ZERO);
        let (mut drawn, mut is_drawn) = (Vec::new(), HashSet::new());
        let mut changes = Batch::default();
        while spent < time {
            drawn.clear();
            is_drawn.clear();
            while drawn.len() < BLOCK_READS {
                let number = self.draws.below(self.next);
                if self.versions[number as usize] != REMOVED && is_drawn.insert(number) {
                    drawn.push(number);
                }
            }
            let expected: Vec<_> = drawn.iter().map(|&number| self.entry(number)).collect();
            let keys: Vec<&[u8]> = expected.iter().map(|(key, _)| key.as_slice()).collect();

            // The first of the drawn numbers are overwritten, the next removed.
            changes.clear();
            for &number in &drawn[..BLOCK_OVERWRITES] {
                let version = &mut self.versions[number as usize];
                *version = (*version + 1) % REMOVED;
                let (key, value) = self.entry(number);
                changes.put(&key, &value);
            }
            self.dead.clear();
            for place in BLOCK_OVERWRITES..BLOCK_OVERWRITES + BLOCK_REMOVALS {
                self.versions[drawn[place] as usize] = REMOVED;
                changes.delete(keys[place]);
                self.dead.push(drawn[place] as u32);
            }
            while changes.len() < BLOCK_READS {
                let (key, value) = self.workload.entry(self.seed, self.next);
                changes.put(&key, &value);
                self.versions.push(0);
                self.next += 1;
            }

            let mut found = 0;
            let start = Instant::now();
            engine.get_many(&keys, &mut |position, value| {
                found += usize::from(value == Some(expected[position].1.as_slice()));
                Ok(())
            })?;
            let read = start.elapsed();
            let start = Instant::now();
            let root = engine.commit(&changes)?;
            let written = start.elapsed();

            if found != BLOCK_READS {
                return Err(Error::Wrong(format!(
                    "{found} of {BLOCK_READS} keys found with their values"
                )));
            }
            reads.record(read);
            writes.record(written);
            spent += read + written;
            blocks += 1;
            self.blocks += 1;
            // The root before stays if its number of blocks is one that all engines keep.
            if self.roots.last().is_some_and(|(at, _)| *at != 0 && !at.is_power_of_two()) {
                self.roots.pop();
            }
            self.roots.push((self.blocks, root));
        }
        Ok(Measured { ops: blocks, seconds: spent.as_secs_f64(), reads, writes })
    }

    /// Looks keys up that must be there, or must be gone, after the clock has stopped; returns how
    /// many. After durable commits, all of them; of `state`, the root must be the last one.
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
            Workload::State => {
                let root = engine.root()?;
                if self.roots.last().is_none_or(|(_, last)| *last != root) {
                    return Err(Error::Wrong(format!("{} is not the last root", root.hash)));
                }
                // The last insertions, and any others.
                let drawn: Vec<u64> = (0..CHECKED).map(|_| self.draws.below(self.next)).collect();
                let last = self.next.saturating_sub(CHECKED as u64)..self.next;
                let is_there = |number: &u64| self.versions[*number as usize] != REMOVED;
                present.extend(last.chain(drawn).filter(is_there));
            }
        }
        let mut absent: Vec<u64> = self.dead.iter().map(|&number| u64::from(number)).collect();
        if self.workload == Workload::Index {
            absent.extend(ABSENT_FROM..ABSENT_FROM + CHECKED as u64);
        }
        for (numbers, exists) in [(&present, true), (&absent, false)] {
            for part in numbers.chunks(BATCH) {
                let entries: Vec<_> = part.iter().map(|&number| self.entry(number)).collect();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;
    use crate::engine::{About, IoMode};

    /// Entries in memory. The root is their number, and the sum of their bytes.
    #[derive(Default)]
    struct Model {
        entries: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    }

    impl Engine for Model {
        fn about(&self) -> About {
            About::new("0", IoMode::Buffered, [])
        }

        fn load(&self, batch: &Batch) -> Result<()> {
            self.commit(batch).map(drop)
        }

        fn settle(&self) -> Result<()> {
            Ok(())
        }

        fn get_many(
            &self,
            keys: &[&[u8]],
            found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
        ) -> Result<()> {
            let entries = self.entries.lock().unwrap();
            keys.iter()
                .enumerate()
                .try_for_each(|(place, key)| found(place, entries.get(*key).map(Vec::as_slice)))
        }

        fn commit(&self, batch: &Batch) -> Result<Root> {
            let mut entries = self.entries.lock().unwrap();
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => drop(entries.insert(key.to_vec(), value.to_vec())),
                    None => assert!(entries.remove(key).is_some(), "a removed key is there"),
                }
            }
            drop(entries);
            self.root()
        }

        fn root(&self) -> Result<Root> {
            let entries = self.entries.lock().unwrap();
            let sum: u64 = entries.values().flatten().map(|&b| u64::from(b)).sum();
            let count = entries.len() as u64;
            Ok(Root::new("model", &[count.to_be_bytes(), sum.to_be_bytes()].concat()))
        }

        fn close(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocks_overwrite_remove_and_insert_and_their_roots_are_kept() {
        let (engine, entries) = (Model::default(), 5_000);
        load(Workload::State, &engine, 7, entries).unwrap();
        let mut work = Work::new(Workload::State, 7, entries);
        for block in 1..=5 {
            let measured = work.run(&engine, Duration::from_nanos(1)).unwrap();
            assert_eq!(measured.ops, 1);
            let grown = (BLOCK_READS - BLOCK_OVERWRITES - 2 * BLOCK_REMOVALS) as u64;
            assert_eq!(engine.entries.lock().unwrap().len() as u64, entries + block * grown);
        }
        let kept: Vec<u64> = work.roots().iter().map(|(block, _)| *block).collect();
        assert_eq!(kept, [0, 1, 2, 4, 5]);
        assert!(work.check(&engine).unwrap() > CHECKED as u64);

        // A value that is lost is seen.
        engine.entries.lock().unwrap().clear();
        assert!(matches!(work.check(&engine), Err(Error::Wrong(_))));
        let other = work.run(&engine, Duration::from_nanos(1)).err().unwrap();
        assert!(other.to_string().contains("of 1313 keys found"), "{other}");
    }

    #[test]
    fn a_value_of_state_is_an_account_in_rlp() {
        let mut sizes = HashSet::new();
        for number in 0..1_000 {
            let value = account(1, number, (number % 3) as u8);
            let balance = usize::from(value[3] - 0x80);
            assert_eq!([value[0], value[1]], [0xf8, value.len() as u8 - 2]);
            assert!((1..0x80).contains(&value[2]), "a nonce of one byte");
            assert!(balance == 0 || value[4] >= 0x80, "a balance that needs its length");
            assert_eq!([value[4 + balance], value[37 + balance]], [0xa0; 2]);
            sizes.insert(value.len());
        }
        assert_eq!(sizes.len(), 9, "70 to 78 bytes");
        assert!(sizes.iter().all(|size| (70..=78).contains(size)));
    }
}

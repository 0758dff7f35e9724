//! Keeps the newest versions of a ledger's state, one for each block, and says what that costs: the
//! rate with and without them, the memory that they hold, and the files that are open.
//!
//! `cargo run --release --example versions [VERSIONS [BLOCKS [ENTRIES [DIR]]]]`
//!
//! The state begins with ENTRIES entries. Each block looks up 256 keys that it spends, deletes
//! them, and inserts 256 others; keys are 34 bytes and uniform, values 60 bytes and random, as in a
//! UTXO set. Two stores get the same blocks in turns of 64, so that both see the same machine: one
//! keeps nothing but its table, the other makes a duplicate for each block and drops the oldest
//! beyond VERSIONS. The first VERSIONS blocks are not timed. All lookups are checked, and so are
//! some of the old versions at the end.
//!
//! Memory is what the process has resident (on Linux). The plain store is filled first and takes
//! what one store takes; what the process has beyond two of these at the end is held by the
//! versions. The caller removes DIR.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use terrane::lsm::{Session, SessionOptions, Table, TableConfig, Update};

/// Keys that a block looks up and deletes, and number of keys that it inserts.
const CHANGES: usize = 256;

/// Blocks that one store gets before the other gets them.
const TURN: usize = 64;

/// `SplitMix64`: the words that follow state `n`.
fn words(mut state: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

fn fill(bytes: &mut [u8], state: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(state)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

fn key(n: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    fill(&mut key[..32], n << 20);
    key
}

fn value(n: u64) -> [u8; 60] {
    let mut value = [0; 60];
    fill(&mut value, !(n << 20));
    value
}

/// Outputs that a block spends and makes, with the numbers that they follow from.
struct Block {
    spent: Vec<(u64, [u8; 34])>,
    made: Vec<(u64, [u8; 34], [u8; 60])>,
}

/// Makes blocks; what they spend is drawn from what is there.
struct Chain {
    live: Vec<u64>,
    next: u64,
    draws: Box<dyn Iterator<Item = u64>>,
}

impl Chain {
    fn block(&mut self) -> Block {
        let spent = (0..CHANGES).map(|_| {
            let at = self.draws.next().unwrap_or(0) as usize % self.live.len();
            let n = self.live.swap_remove(at);
            (n, key(n))
        });

        let spent = spent.collect();
        let first = self.next;
        self.next += CHANGES as u64;
        self.live.extend(first..self.next);
        let made = (first..self.next).map(|n| (n, key(n), value(n))).collect();

        Block { spent, made }
    }
}

/// A store with the versions that it keeps, and the time that its blocks took.
struct Store {
    session: Session,
    /// Oldest first, with a number that the version after it does not hold any more; the last one
    /// is the newest.
    versions: VecDeque<(Table, u64)>,
    kept_max: usize,
    took: Duration,
}

fn check(n: u64, found: Option<&[u8]>, expected: bool) -> Result<(), Box<dyn Error>> {
    let value = expected.then(|| value(n));
    if found != value.as_ref().map(<[u8; 60]>::as_slice) {
        return Err(format!("key {n}: a wrong answer").into());
    }
    Ok(())
}

impl Store {
    fn new(dir: &Path, entries: u64, kept_max: usize) -> Result<Self, Box<dyn Error>> {
        let session = Session::open_dir(dir, &SessionOptions::default().create_dir())?;
        let mut table = session.new_table(&TableConfig::default())?;
        for first in (0..entries).step_by(1_000) {
            let made: Vec<_> =
                (first..entries.min(first + 1_000)).map(|n| (key(n), value(n))).collect();
            let batch: Vec<_> = made.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
            table.write_batch(&batch)?;
        }
        let versions = VecDeque::from([(table, 0)]);
        Ok(Self { session, versions, kept_max, took: Duration::ZERO })
    }

    fn apply(&mut self, block: &Block) -> Result<(), Box<dyn Error>> {
        let Some((newest, lost)) = self.versions.back_mut() else {
            return Err("no version".into());
        };
        let keys: Vec<_> = block.spent.iter().map(|(_, key)| key).collect();
        for ((n, _), lookup) in block.spent.iter().zip(newest.get_many(&keys)?) {
            check(*n, lookup.value(), true)?;
        }
        let deletes = block.spent.iter().map(|(_, key)| (key, Update::Delete));
        let inserts = block.made.iter().map(|(_, key, value)| (key, Update::Insert(value)));
        let batch: Vec<_> = deletes.chain(inserts).collect();
        if self.kept_max == 0 {
            newest.write_batch(&batch)?;
        } else {
            let mut next = newest.fork()?;
            next.write_batch(&batch)?;
            *lost = block.spent[0].0;
            self.versions.push_back((next, 0));
            if self.versions.len() > self.kept_max {
                self.versions.pop_front();
            }
        }

        Ok(())
    }

    /// Applies blocks and adds up the time.
    fn timed(&mut self, blocks: &[Block]) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        blocks.iter().try_for_each(|block| self.apply(block))?;
        self.took += start.elapsed();
        Ok(())
    }

    /// Each version holds what the next one lost, and the next one does not.
    fn check_versions(&self) -> Result<usize, Box<dyn Error>> {
        let mut checked = 0;
        for pair in (1..self.versions.len()).step_by(7) {
            let ((before, lost), (after, _)) = (&self.versions[pair - 1], &self.versions[pair]);
            check(*lost, before.get(&key(*lost))?.value(), true)?;
            check(*lost, after.get(&key(*lost))?.value(), false)?;
            checked += 1;
        }
        Ok(checked)
    }
}

/// Resident memory, where the system says.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn open_files() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| args.next().map_or(Ok(default), |text| text.parse());
    let kept = number(2_160)?;
    let blocks = number(6_480)?;
    let entries = number(500_000)?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-versions".to_owned());
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir)?;

    let entries = entries.max(CHANGES) as u64;
    let mut chain =
        Chain { live: (0..entries).collect(), next: entries, draws: Box::new(words(1)) };

    let warm_up: Vec<Block> = (0..kept).map(|_| chain.block()).collect();
    let before = resident_bytes();
    let mut plain = Store::new(&dir.join("plain"), entries, 0)?;
    warm_up.iter().try_for_each(|block| plain.apply(block))?;
    let of_plain = resident_bytes().zip(before).map(|(now, before)| now.saturating_sub(before));
    let mut keeping = Store::new(&dir.join("versions"), entries, kept)?;
    warm_up.iter().try_for_each(|block| keeping.apply(block))?;

    let mut done = 0;
    while done < blocks {
        let turn: Vec<Block> = (done..blocks).take(TURN).map(|_| chain.block()).collect();
        if (done / TURN).is_multiple_of(2) {
            plain.timed(&turn)?;
            keeping.timed(&turn)?;
        } else {
            keeping.timed(&turn)?;
            plain.timed(&turn)?;
        }
        done += turn.len();
    }

    let now = resident_bytes();
    let files = open_files();
    let checked = keeping.check_versions()?;

    let rate = |took: Duration| (blocks * 2 * CHANGES) as f64 / took.as_secs_f64() / 1e6;
    let plain_rate = rate(plain.took);
    let keeping_rate = rate(keeping.took);
    println!("without versions    {plain_rate:7.3} M updates/s, half as many lookups besides");

    println!("with {kept:5} versions {keeping_rate:7.3} M updates/s");
    println!("ratio               {:7.3}", keeping_rate / plain_rate);
    if let (Some(now), Some(before), Some(plain)) = (now, before, of_plain) {
        let held = now as f64 - before as f64 - 2.0 * plain as f64;
        let updates = (kept * 2 * CHANGES) as f64;
        println!(
            "memory of versions  {:7.1} MB, {:.1} bytes an update",
            held / 1e6,
            held / updates
        );
        println!("memory of a store   {:7.1} MB", plain as f64 / 1e6);
    }

    if let Some(files) = files {
        println!("open files          {files:7}");
    }
    println!("checked             {checked:7} old versions, all lookups");
    keeping.versions.clear();
    plain.versions.clear();
    keeping.session.close()?;
    plain.session.close()?;

    Ok(())
}

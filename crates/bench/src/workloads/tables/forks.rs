//! `terrane bench forks`: the newest forks of a table, one for each block of a ledger.
//!
//! Each block looks up 256 keys that it spends, deletes them, and inserts 256 others. Two tables
//! get the same blocks in turns of 64, so that both see the same machine. One table is changed in
//! place. The other one is forked for each block, and its oldest fork beyond a number is dropped.
//! The first blocks, one for each fork to keep, are not timed. All lookups are checked, and some of
//! the old forks at the end.
//!
//! Memory is what the process has resident. The plain table is filled first and takes what one
//! table takes. What the process has beyond two of these at the end is held by the forks.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::{Session, Table, TableConfig, Update};
use terrane_replay::monitor::{Monitor, Phase};

use super::{Key, Result, Value, check, fill, key, report, value};
use crate::instruments::meter::{open_files, rss_bytes};
use crate::workloads::{Error, SPLITMIX_STEP, bounded, open, seconds, splitmix};

/// Keys that a block looks up and deletes, and number of keys that it inserts.
const CHANGES: u64 = 256;

/// Blocks that one table gets before the other gets them.
const TURN: u64 = 64;

/// One in this many forks is checked at the end.
const CHECK_ONE_OF: usize = 7;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Forks that are kept.
    pub forks: u64,
    /// Blocks that are timed.
    pub blocks: u64,
    /// Entries of the tables.
    pub entries: u64,
    /// Seed of keys, values and blocks.
    pub seed: u64,
}

/// Report of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Forks that are kept.
    pub forks: u64,
    /// Blocks that were timed.
    pub blocks: u64,
    /// Entries of the tables.
    pub entries: u64,
    /// Seed of keys, values and blocks.
    pub seed: u64,
    /// Updates of a block, which has half as many lookups besides.
    pub updates_per_block: u64,
    /// Updates in a second without forks.
    pub plain_updates_per_s: f64,
    /// Updates in a second with a fork for each block.
    pub forked_updates_per_s: f64,
    /// The second rate to the first.
    pub rate_ratio: f64,
    /// Resident memory that the plain table takes, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_memory_bytes: Option<u64>,
    /// Resident memory that the forks hold, where the system tells; negative in small runs, whose
    /// tables share what the process had anyway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks_memory_bytes: Option<i64>,
    /// The same for each update of the blocks whose forks are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forks_memory_bytes_per_update: Option<f64>,
    /// Files that the process has open at the end, where the system tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Pairs of neighbouring forks that were checked at the end.
    pub checked_forks: u64,
}

/// Entries that a block spends and makes.
struct Block {
    spent: Vec<(u64, Key)>,
    made: Vec<(Key, Value)>,
}

/// Draws blocks; what they spend is drawn from what is there.
struct Chain {
    seed: u64,
    live: Vec<u64>,
    next: u64,
    state: u64,
}

impl Chain {
    fn new(options: &Options) -> Self {
        let Options { entries, seed, .. } = *options;
        Self { seed, live: (0..entries).collect(), next: entries, state: splitmix(seed) }
    }

    fn block(&mut self) -> Block {
        let mut spent = Vec::new();
        for _ in 0..CHANGES {
            self.state = self.state.wrapping_add(SPLITMIX_STEP);
            let at = (splitmix(self.state) % self.live.len() as u64) as usize;
            let n = self.live.swap_remove(at);
            spent.push((n, key(self.seed, n)));
        }

        let new = self.next..self.next + CHANGES;
        self.next = new.end;
        self.live.extend(new.clone());
        let made = new.map(|n| (key(self.seed, n), value(self.seed, n, 0))).collect();

        Block { spent, made }
    }

    fn blocks(&mut self, count: u64) -> Vec<Block> {
        (0..count).map(|_| self.block()).collect()
    }
}

/// A table with its forks, and the time that its blocks took.
struct Forked {
    seed: u64,
    /// Oldest first, each with a number that the fork after it does not hold any more; the last one
    /// is the newest.
    forks: VecDeque<(Table, u64)>,
    forks_max: u64,
    wall_s: f64,
}

impl Forked {
    fn new(
        session: &Session,
        options: &Options,
        forks_max: u64,
        monitor: &mut dyn Monitor,
    ) -> Result<Self> {
        let mut table = session.new_table(&TableConfig::default())?;
        fill(&mut table, options.seed, options.entries, monitor)?;
        let forks = VecDeque::from([(table, 0)]);
        Ok(Self { seed: options.seed, forks, forks_max, wall_s: 0.0 })
    }

    fn apply(&mut self, block: &Block) -> Result<()> {
        let Some((newest, lost)) = self.forks.back_mut() else {
            return Err(Error::Wrong("the newest fork is gone".to_owned()));
        };
        let keys: Vec<_> = block.spent.iter().map(|(_, key)| key).collect();
        for ((n, _), lookup) in block.spent.iter().zip(newest.get_many(&keys)?) {
            check(*n, lookup.value(), Some(&value(self.seed, *n, 0)))?;
        }

        let deletes = block.spent.iter().map(|(_, key)| (key, Update::Delete));
        let inserts = block.made.iter().map(|(key, value)| (key, Update::Insert(value)));
        let batch: Vec<_> = deletes.chain(inserts).collect();

        if self.forks_max == 0 {
            newest.write_batch(&batch)?;
        } else {
            let mut next = newest.fork()?;
            next.write_batch(&batch)?;
            *lost = block.spent[0].0;
            self.forks.push_back((next, 0));
            if self.forks.len() as u64 > self.forks_max {
                self.forks.pop_front();
            }
        }

        Ok(())
    }

    /// Applies blocks and adds up the time.
    fn apply_timed(&mut self, blocks: &[Block]) -> Result<()> {
        let start = Instant::now();
        blocks.iter().try_for_each(|block| self.apply(block))?;
        self.wall_s += seconds(start);
        Ok(())
    }

    /// Applies blocks of a chain that are not timed.
    fn warm_up(&mut self, chain: &mut Chain, count: u64, monitor: &mut dyn Monitor) -> Result<()> {
        for done in 0..count {
            report(monitor, Phase::WarmUp, done, count)?;
            self.apply(&chain.block())?;
        }
        Ok(())
    }

    /// Checks that each fork holds what the next one lost, and the next one does not.
    fn check_forks(&self) -> Result<u64> {
        let mut checked = 0;
        for at in (1..self.forks.len()).step_by(CHECK_ONE_OF) {
            let (before, lost) = &self.forks[at - 1];
            let (after, _) = &self.forks[at];
            let key = key(self.seed, *lost);
            let value = value(self.seed, *lost, 0);
            check(*lost, before.get(&key)?.value(), Some(&value))?;
            check(*lost, after.get(&key)?.value(), None)?;
            checked += 1;
        }
        Ok(checked)
    }
}

/// Resident memory of the process before the first table and after it.
#[derive(Debug, Clone, Copy)]
struct Memory {
    before: Option<u64>,
    with_plain: Option<u64>,
}

impl Memory {
    fn of_table(self) -> Option<u64> {
        Some(self.with_plain?.saturating_sub(self.before?))
    }

    /// Memory beyond that of two tables.
    fn of_forks(self, now: Option<u64>) -> Option<i64> {
        let tables = self.before?.checked_add(2 * self.of_table()?)?;
        Some(now?.cast_signed() - tables.cast_signed())
    }
}

/// Measures in a session in `store`.
///
/// # Errors
/// [`Error`].
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let Options { forks, blocks, entries, seed } = *options;
    bounded("forks", forks, 1)?;
    bounded("blocks", blocks, 1)?;
    bounded("entries", entries, CHANGES)?;

    let session = open(store)?;
    let mut chain = Chain::new(options);
    let mut same_chain = Chain::new(options);
    let before = rss_bytes();
    let mut plain = Forked::new(&session, options, 0, monitor)?;
    plain.warm_up(&mut chain, forks, monitor)?;
    let memory = Memory { before, with_plain: rss_bytes() };
    let mut forked = Forked::new(&session, options, forks, monitor)?;
    forked.warm_up(&mut same_chain, forks, monitor)?;

    for (turn, first) in (0..blocks).step_by(TURN as usize).enumerate() {
        report(monitor, Phase::Measure, first, blocks)?;
        let drawn = chain.blocks(TURN.min(blocks - first));
        // The order alternates, so that neither table always profits from the caches of the other.
        if turn.is_multiple_of(2) {
            plain.apply_timed(&drawn)?;
            forked.apply_timed(&drawn)?;
        } else {
            forked.apply_timed(&drawn)?;
            plain.apply_timed(&drawn)?;
        }
    }

    let forks_memory = memory.of_forks(rss_bytes());
    let open_files = open_files();
    let checked_forks = forked.check_forks()?;

    let updates = (blocks * 2 * CHANGES) as f64;
    let kept_updates = (forks * 2 * CHANGES) as f64;
    let report = Report {
        forks,
        blocks,
        entries,
        seed,
        updates_per_block: 2 * CHANGES,
        plain_updates_per_s: updates / plain.wall_s,
        forked_updates_per_s: updates / forked.wall_s,
        rate_ratio: plain.wall_s / forked.wall_s,
        table_memory_bytes: memory.of_table(),
        forks_memory_bytes: forks_memory,
        forks_memory_bytes_per_update: forks_memory.map(|bytes| bytes as f64 / kept_updates),
        open_files,
        checked_forks,
    };

    drop((plain, forked));
    session.close()?;
    Ok(report)
}

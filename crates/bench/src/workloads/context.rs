//! A workload of versioned trees after published counts of Tezos: a starting state, and blocks of
//! operations over it.
//!
//! Everything follows from a seed and numbers: a value of the state has a number, from which its
//! path and its bytes are made, see [`state`]; how often it was written is a byte. So the state is
//! never in memory, and the expected result of every read is known: an engine is checked while it
//! is measured.
//!
//! A block is drawn as *accesses*, see [`profile`]: reads, or a question, two reads and a write of
//! one path, as a balance is changed. They are shuffled. Forks are two blocks of one parent, the
//! first of which is abandoned.
//!
//! Cost: a byte for each value; drawing a block allocates nothing once its buffers have grown.

// Bottom-up: a module imports only from modules above it.
pub mod profile;
pub mod state;
pub mod block;
pub mod record;
pub mod report;
mod floor;
mod in_memory;
pub mod run;

use std::collections::HashSet;

use self::block::Block;
use self::profile::{Access, Action, Class, Hot, Profile};
use self::state::{GLOBAL_COUNT, State, VALUES_MIN, copied_path, rolls_path};
use super::{Error, OPTION_MAX, Result, SPLITMIX_STEP, splitmix};
use terrane_replay::engines::context::StepsBuf;

/// The version of what is not there.
const ABSENT: u8 = 255;

/// Values that are never there have numbers from here on.
const NEVER: u64 = 1 << 40;

/// Hottest balances that are the same in each block; the others are new in each block.
const LASTING_HOT_COUNT: u64 = 3;

/// One in this many draws is even; the others favour hot entries.
const EVEN_ONE_OF: u64 = 2;

/// One in this many items is new, if there are new items.
const FRESH_ONE_OF: u64 = 8;

/// One in this many fields of accounts is the size of a big map instead.
const SIZE_ONE_OF: u64 = 32;

/// Seconds between two blocks.
const BLOCK_S: i64 = 30;

/// When the first block was made, in seconds since 1970.
const START_S: i64 = 1_670_000_000;

/// Options of a generator.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// All follows from it.
    pub seed: u64,
    /// Values of the starting state: from [`VALUES_MIN`] on.
    pub values: u64,
    /// Kind of a block.
    pub profile: &'static Profile,
    /// Blocks from one fork to the next: the first of two blocks of one parent is abandoned.
    pub fork_every: Option<u64>,
}

/// Draws even numbers: a `SplitMix64` stream.
#[derive(Debug, Clone, Copy)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        let random = splitmix(self.0);
        self.0 = self.0.wrapping_add(SPLITMIX_STEP);
        random
    }

    fn below(&mut self, bound: u64) -> u64 {
        below(self.next(), bound)
    }
}

/// Maps a random number to one below `bound`, evenly but for one part in 2^64 / `bound`.
fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A prime above all counts: multiplying by it permutes the numbers below any of them.
const SCATTER: u64 = (1 << 32) + 15;

/// An access to be made: what, and to which number.
#[derive(Debug, Clone, Copy)]
struct Unit {
    action: Action,
    number: u64,
}

/// Draws blocks.
#[derive(Debug)]
pub struct Generator {
    options: Options,
    state: State,
    /// Number of writes of each value, modulo 255; new values follow those of the starting state.
    versions: Vec<u8>,
    /// The versions of what was copied last.
    copied: Vec<u8>,
    /// Copies made.
    copies: u64,
    /// Blocks drawn.
    blocks: u64,
    /// Blocks drawn that were not abandoned.
    kept: u64,
    /// The last block that was not abandoned.
    tip: Option<u64>,
    /// Undo record of an abandoned block: numbers with their earlier versions, in order.
    undo: Vec<(u64, u8)>,
    units: Vec<Unit>,
    /// Numbers that the block accesses.
    taken: HashSet<u64>,
    path: StepsBuf,
}

impl Generator {
    /// A generator at its first block.
    ///
    /// Cost: memory of a byte for each value.
    ///
    /// # Errors
    /// [`Error::Options`] for too few or too many values, and for forks of every 0 blocks.
    pub fn new(options: Options) -> Result<Self> {
        if !(VALUES_MIN..=OPTION_MAX).contains(&options.values) {
            let message = format!("values must be at least {VALUES_MIN} and at most {OPTION_MAX}");
            return Err(Error::Options(message));
        }

        if options.fork_every == Some(0) {
            return Err(Error::Options("blocks between two forks must be at least 1".to_owned()));
        }
        let state = State::new(options.seed, options.values);

        Ok(Self {
            options,
            state,
            versions: vec![0; options.values as usize],
            copied: Vec::new(),
            copies: 0,
            blocks: 0,
            kept: 0,
            tip: None,
            undo: Vec::new(),
            units: Vec::new(),
            taken: HashSet::new(),
            path: StepsBuf::new(),
        })
    }

    /// The starting state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Draws the next block into `block`.
    ///
    /// The parent of the block must be committed, with the hash of the block that has the parent's
    /// number, before it is applied.
    pub fn next_block(&mut self, block: &mut Block) {
        let is_fork = |every| (self.kept + 1).is_multiple_of(every);
        let is_abandoned = self.options.fork_every.is_some_and(is_fork) && !self.has_abandoned();
        block.clear(self.blocks, self.tip);
        block.is_abandoned = is_abandoned;
        block.date = START_S + self.blocks.cast_signed() * BLOCK_S;
        self.undo.clear();
        let fresh = self.versions.len();
        let mut random = Random(splitmix(splitmix(self.options.seed).wrapping_add(self.blocks)));

        self.draw(&mut random);
        self.emit(block);
        if is_abandoned {
            while let Some((number, version)) = self.undo.pop() {
                self.versions[number as usize] = version;
            }
            self.versions.truncate(fresh);
        } else {
            self.copy(block);
            self.tip = Some(self.blocks);
            self.kept += 1;
        }

        self.blocks += 1;
    }

    /// Whether the last block was abandoned.
    fn has_abandoned(&self) -> bool {
        self.tip.map_or(0, |tip| tip + 1) < self.blocks
    }

    /// Draws the accesses of a block.
    fn draw(&mut self, random: &mut Random) {
        self.units.clear();
        self.taken.clear();
        let profile = self.options.profile;

        for (at, &(hot, accesses)) in profile.hot.iter().enumerate() {
            let number = self.hot(hot, at as u64, random);
            self.taken.insert(number);
            self.push(Action::Change, number, accesses);
        }

        for group in profile.groups {
            let rest = group.accesses - group.paths;
            for at in 0..group.paths {
                let number = self.distinct(group, random);
                let more = rest / group.paths + u32::from(at < rest % group.paths);
                self.push(group.action, number, 1 + more);
            }
        }

        for at in (1..self.units.len()).rev() {
            self.units.swap(at, random.below(at as u64 + 1) as usize);
        }
    }

    fn push(&mut self, action: Action, number: u64, accesses: u32) {
        self.units.extend((0..accesses).map(|_| Unit { action, number }));
    }

    /// The number of a hot value, one that is short, as balances and counters are.
    fn hot(&mut self, hot: Hot, at: u64, random: &mut Random) -> u64 {
        let mut lasting = Random(splitmix(self.options.seed ^ at));
        let draws = if at < LASTING_HOT_COUNT { &mut lasting } else { random };
        match hot {
            Hot::GlobalCounter => self.state.global_counter(),
            Hot::MapSize(rank) => self.state.map_size_by_rank(rank),
            Hot::Balance => loop {
                let number = self.state.balance(draws.below(self.state.account_count()));
                if self.state.is_short(number) && !self.taken.contains(&number) {
                    return number;
                }
            },
        }
    }

    /// A number that the block does not access yet.
    fn distinct(&mut self, group: &Access, random: &mut Random) -> u64 {
        loop {
            let number = match group.class {
                Class::New => {
                    self.versions.push(ABSENT);
                    self.versions.len() as u64 - 1
                }
                Class::Never => NEVER + random.below(NEVER),
                class => self.number(class, random),
            };
            let can_be = group.action != Action::Remove
                || self.state.is_item_data(number) && self.version(number) != ABSENT;
            if can_be && self.taken.insert(number) {
                return number;
            }
        }
    }

    /// A number of a class.
    fn number(&self, class: Class, random: &mut Random) -> u64 {
        let state = &self.state;
        match class {
            Class::Global => state.global(random.below(GLOBAL_COUNT)),
            Class::Changing => state.changing_global(),
            Class::Account if random.below(SIZE_ONE_OF) == 0 => {
                state.map_size_by_rank(self.skewed(random, state.map_count()))
            }
            Class::Account => {
                state.account_field(self.skewed(random, state.account_count()), random.next())
            }
            Class::Storage => {
                state.storage_field(self.skewed(random, state.contract_count()), random.next())
            }
            Class::Item => {
                let new = self.versions.len() as u64 - self.options.values;
                if new > 0 && random.below(FRESH_ONE_OF) == 0 {
                    return self.options.values + random.below(new);
                }
                state.item(self.skewed(random, state.item_count()), random.below(4) == 0)
            }
            Class::Roll | Class::Copied => state.roll(random.below(state.roll_count())),
            Class::New | Class::Never => unreachable!("they are drawn above"),
        }
    }

    /// Draws one of `count`: the n-th is drawn as often as by Zipf's law, or evenly; which one is
    /// the n-th is scattered.
    fn skewed(&self, random: &mut Random, count: u64) -> u64 {
        let rank = if random.below(EVEN_ONE_OF) == 0 {
            random.below(count)
        } else {
            let log = random.below(u64::from((count + 1).ilog2()));
            (1 << log) + random.below(1 << log) - 1
        };
        let scattered = u128::from(rank) * u128::from(SCATTER) + u128::from(self.options.seed);
        (scattered % u128::from(count)) as u64
    }

    fn version(&self, number: u64) -> u8 {
        self.versions.get(number as usize).copied().unwrap_or(ABSENT)
    }

    fn set_version(&mut self, number: u64, version: u8) {
        self.undo.push((number, self.version(number)));
        self.versions[number as usize] = version;
    }

    /// Makes operations of the accesses.
    fn emit(&mut self, block: &mut Block) {
        for at in 0..self.units.len() {
            let Unit { action, number } = self.units[at];
            match action {
                Action::FindCopied => self.find_copied(number, block),
                Action::MemTree => self.mem_tree(number, block),
                Action::Mem | Action::Find | Action::Change | Action::Add | Action::Remove => {
                    self.access(action, number, block);
                }
            }
        }
    }

    /// Asks for the directory of a value. That of an item of the starting state is always there:
    /// its length is.
    fn mem_tree(&mut self, number: u64, block: &mut Block) {
        self.state.path(number, &mut self.path);
        self.path.pop();
        block.path(self.path.steps());
        block.mem_tree(number < self.options.values || self.version(number) != ABSENT);
    }

    fn access(&mut self, action: Action, number: u64, block: &mut Block) {
        let version = self.version(number);
        let is_there = version != ABSENT;
        self.state.path(number, &mut self.path);
        block.path(self.path.steps());

        if matches!(action, Action::Mem | Action::Change) {
            block.mem(is_there);
        }

        let find_count = match action {
            Action::Find => 1,
            Action::Change => 2,
            _ => 0,
        };

        for _ in 0..find_count {
            block.find(is_there, |out| self.state.value(number, version, out));
        }

        if action == Action::Remove {
            self.set_version(number, ABSENT);
            block.remove();
        } else if matches!(action, Action::Add | Action::Change) {
            // The first version follows the last one; an absent value gets the first version, too.
            let next = if version >= ABSENT - 1 { 0 } else { version + 1 };
            self.set_version(number, next);
            block.add(|out| self.state.value(number, next, out));
        }
    }

    /// Reads what was copied last; before the first copy it is not there.
    fn find_copied(&mut self, number: u64, block: &mut Block) {
        let at = number - self.state.roll(0);
        copied_path(self.copies.saturating_sub(1), at, &mut self.path);
        block.path(self.path.steps());
        let version = self.copied.get(at as usize);
        let state = &self.state;
        block.find(version.is_some(), |out| {
            state.value(number, version.copied().unwrap_or_default(), out);
        });
    }

    /// Copies a directory if it is time to.
    fn copy(&mut self, block: &mut Block) {
        let is_due = |every| (self.kept + 1).is_multiple_of(every);
        if !self.options.profile.copy_every.is_some_and(is_due) {
            return;
        }
        rolls_path(&mut self.path);
        block.path(self.path.steps());
        copied_path(self.copies, 0, &mut self.path);
        self.path.pop();

        block.copy_to(self.path.steps());
        let first = self.state.roll(0) as usize;
        let count = self.state.roll_count() as usize;
        self.copied.clear();
        self.copied.extend_from_slice(&self.versions[first..first + count]);

        self.copies += 1;
    }
}

#[cfg(test)]
mod tests;

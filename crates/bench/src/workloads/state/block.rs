//! Blocks: drawn numbers with their versions before and after.
//!
//! | of a block of the mix | number |
//! |---|---|
//! | contracts whose slots change | [`CONTRACTS`] |
//! | other accounts that change | [`ACCOUNTS`] - [`CONTRACTS`], one in [`NEW_ONE_OF`] new |
//! | slots | [`SLOTS`]: seven in ten overwritten, two new, one deleted |
//!
//! A contract is drawn by one of its slots, so large ones are drawn more often; its other slots are
//! drawn evenly.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::{ABSENT, ACCOUNTS_MIN, Layout, Place};
use super::{Load, order_by_hash};
use crate::workloads::draws::{Distribution, Draws, Stream, below, mix};
use crate::workloads::{Error, Result, bounded};

/// Accounts that a block changes.
pub const ACCOUNTS: u64 = 323;

/// Slots that a block changes.
pub const SLOTS: u64 = 990;

/// Contracts among the accounts.
pub const CONTRACTS: u64 = 113;

/// One in this many accounts without code is new.
pub const NEW_ONE_OF: u64 = 12;

/// Draws of a number after which another kind of change is taken.
const TRIES: u64 = 16;

/// Pairs of slots for collapses: as many as a block deletes, this many times.
const COLLAPSE_ROUNDS: usize = 16;

/// A change of an account or a slot: its number, and its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Number of the account or slot.
    pub number: u64,
    /// Version before the block.
    pub before: u8,
    /// Version after the block.
    pub after: u8,
}

/// A block.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Accounts that change, by number.
    pub accounts: Vec<Write>,
    /// Slots that change, by number.
    pub slots: Vec<Write>,
    /// The contract that is deleted.
    pub wiped: Option<u64>,
    /// Its slots, which go with it: numbers and versions before.
    pub wiped_slots: Vec<(u64, u8)>,
}

/// Options of a generator.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Load.
    pub load: Load,
    /// Seed of everything.
    pub seed: u64,
    /// Accounts at first.
    pub accounts: u64,
    /// Distribution of accounts and slots.
    pub distribution: Distribution,
}

/// Draws blocks.
#[derive(Debug)]
pub struct Generator {
    options: Options,
    layout: Layout,
    account_draws: Draws,
    slot_draws: Draws,
    account_versions: Vec<u8>,
    slot_versions: Vec<u8>,
    /// Slots whose branch has two leaves.
    collapsing: Vec<u64>,
    /// Blocks drawn.
    drawn: u64,
    /// Operations drawn, for distributions that count them.
    operations: u64,
}

/// Random numbers of a block.
struct Random {
    stream: Stream,
    at: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.at += 1;
        self.stream.output(self.at)
    }

    fn below(&mut self, bound: u64) -> u64 {
        below(self.next(), bound)
    }
}

/// Kind of a change of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Overwrite,
    Insert,
    Delete,
}

impl Kind {
    fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Self::Delete,
            1 | 2 => Self::Insert,
            _ => Self::Overwrite,
        }
    }

    fn fits(self, version: u8) -> bool {
        (version == ABSENT) == (self == Self::Insert)
    }

    fn after(self, version: u8) -> u8 {
        if self == Self::Delete { ABSENT } else { next_version(version) }
    }
}

/// The version after a write. An absent value gets the first one again.
fn next_version(version: u8) -> u8 {
    if version >= ABSENT - 1 { 0 } else { version + 1 }
}

impl Generator {
    /// A generator at its first block.
    ///
    /// # Errors
    /// [`Error::Options`] for too few or too many accounts.
    pub fn new(options: Options) -> Result<Self> {
        bounded("accounts", options.accounts, ACCOUNTS_MIN)?;
        let layout = Layout::new(options.load, options.seed, options.accounts);
        let numbers = layout.slot_numbers();
        if u64::from(u32::MAX) < numbers {
            return Err(Error::Options("accounts have too many slots".to_owned()));
        }
        let plain = layout.accounts() - layout.contracts();

        let mut account_versions = vec![ABSENT; layout.account_numbers() as usize];
        account_versions[..layout.accounts() as usize].fill(0);
        let mut slot_versions = vec![ABSENT; numbers as usize];
        for contract in 0..layout.contracts() {
            if let Some((first, size, _)) = layout.storage(contract) {
                slot_versions[first as usize..(first + size) as usize].fill(0);
            }
        }

        let mut generator = Self {
            account_draws: options.distribution.draws(plain.max(1)),
            slot_draws: options.distribution.draws(numbers),
            options,
            layout,
            account_versions,
            slot_versions,
            collapsing: Vec::new(),
            drawn: 0,
            operations: 0,
        };
        if options.load == Load::SiblingCollapse {
            generator.collapsing = generator.find_collapsing();
        }
        Ok(generator)
    }

    /// The state before the first block.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The version of an account.
    #[must_use]
    pub fn account_version(&self, account: u64) -> u8 {
        self.account_versions[account as usize]
    }

    /// The version of a slot.
    #[must_use]
    pub fn slot_version(&self, slot: u64) -> u8 {
        self.slot_versions[slot as usize]
    }

    /// An account that is there, and one of its slots if it has any, both drawn by the
    /// distribution.
    pub fn draw_target(&mut self, random: u64) -> (u64, Option<Place>) {
        let mut random = Random { stream: Stream { start: random }, at: 0 };
        if random.below(2) == 0 {
            return (self.draw_plain(&mut random), None);
        }
        let slot = self.draw_slot(&mut random);
        let place = self.layout.place(slot);
        (place.contract, Some(place))
    }

    /// Draws the next block, and changes the versions to those after it.
    pub fn next_block(&mut self) -> Block {
        let mut random =
            Random { stream: Stream { start: mix(self.options.seed, self.drawn) }, at: 0 };
        let mut accounts: BTreeMap<u64, u8> = BTreeMap::new();
        let mut slots: BTreeMap<u64, u8> = BTreeMap::new();
        let mut block = Block::default();

        if self.options.load == Load::WideWipe {
            self.wipe_largest(&mut block);
        }
        match self.options.load {
            Load::Mix | Load::WideWipe => self.draw_contracts(&mut random, &mut slots),
            Load::DeepPaths | Load::BigContract => self.draw_of_one(&mut random, &mut slots),
            Load::SiblingCollapse => self.draw_collapses(&mut slots),
        }
        for slot in slots.keys() {
            let contract = self.layout.place(*slot).contract;
            accounts.insert(contract, next_version(self.account_version(contract)));
        }
        self.draw_accounts(&mut random, &mut accounts);

        block.accounts.extend(accounts.into_iter().map(|(number, after)| {
            let before = std::mem::replace(&mut self.account_versions[number as usize], after);
            Write { number, before, after }
        }));
        block.slots.extend(slots.into_iter().map(|(number, after)| {
            let before = std::mem::replace(&mut self.slot_versions[number as usize], after);
            Write { number, before, after }
        }));
        self.drawn += 1;
        block
    }

    /// Changes the versions back to those before a block, the last one.
    pub fn undo(&mut self, block: &Block) {
        for write in &block.accounts {
            self.account_versions[write.number as usize] = write.before;
        }
        for write in &block.slots {
            self.slot_versions[write.number as usize] = write.before;
        }
        for (slot, before) in &block.wiped_slots {
            self.slot_versions[*slot as usize] = *before;
        }
    }

    /// Deletes the largest contract that is left; the first numbers are the largest.
    fn wipe_largest(&mut self, block: &mut Block) {
        let contracts = 0..self.layout.contracts();
        let Some(contract) = contracts.into_iter().find(|contract| self.is_contract(*contract))
        else {
            return;
        };
        let before = std::mem::replace(&mut self.account_versions[contract as usize], ABSENT);
        block.accounts.push(Write { number: contract, before, after: ABSENT });
        block.wiped = Some(contract);
        let (first, _, room) = self.layout.storage(contract).expect("a contract has storage");
        for slot in first..first + room {
            let before = std::mem::replace(&mut self.slot_versions[slot as usize], ABSENT);
            if before != ABSENT {
                block.wiped_slots.push((slot, before));
            }
        }
    }

    fn is_contract(&self, contract: u64) -> bool {
        self.account_version(contract) != ABSENT
    }

    /// The number of a slot that is there or not, in a contract that is there.
    fn draw_slot(&mut self, random: &mut Random) -> u64 {
        loop {
            let slot = self.slot_draws.number(self.operations, random.next());
            self.operations += 1;
            if self.is_contract(self.layout.place(slot).contract) {
                return slot;
            }
        }
    }

    /// The number of an account without code that is there.
    fn draw_plain(&mut self, random: &mut Random) -> u64 {
        let number = self.account_draws.number(self.operations, random.next());
        self.operations += 1;
        self.layout.contracts() + number
    }

    /// Slots of drawn contracts. A contract with fewer slots than its share leaves the rest to the
    /// next ones.
    fn draw_contracts(&mut self, random: &mut Random, slots: &mut BTreeMap<u64, u8>) {
        let mut taken = BTreeSet::new();
        for left in (1..=CONTRACTS).rev() {
            let lead = self.draw_slot(random);
            let contract = self.layout.place(lead).contract;
            if !taken.insert(contract) {
                continue;
            }
            let share = (SLOTS - slots.len() as u64).div_ceil(left);
            self.draw_slots(contract, share, random, slots);
        }
    }

    /// Up to `count` slots of a contract.
    fn draw_slots(
        &self,
        contract: u64,
        count: u64,
        random: &mut Random,
        slots: &mut BTreeMap<u64, u8>,
    ) {
        let Some((first, _, room)) = self.layout.storage(contract) else { return };
        for _ in 0..count.min(room) {
            let kind = Kind::draw(random);
            for _ in 0..TRIES {
                let slot = first + random.below(room);
                let version = self.slot_version(slot);
                if kind.fits(version) && !slots.contains_key(&slot) {
                    slots.insert(slot, kind.after(version));
                    break;
                }
            }
        }
    }

    /// Slots of contract 0, drawn by the distribution.
    fn draw_of_one(&mut self, random: &mut Random, slots: &mut BTreeMap<u64, u8>) {
        let (_, _, room) = self.layout.storage(0).expect("contract 0 has storage");
        for _ in 0..SLOTS.min(room / 2) {
            let kind = Kind::draw(random);
            for _ in 0..TRIES {
                let slot = self.slot_draws.number(self.operations, random.next()) % room;
                self.operations += 1;
                let version = self.slot_version(slot);
                if kind.fits(version) && !slots.contains_key(&slot) {
                    slots.insert(slot, kind.after(version));
                    break;
                }
            }
        }
    }

    /// Deletes slots in one block and sets them again in the next.
    fn draw_collapses(&self, slots: &mut BTreeMap<u64, u8>) {
        let count = SLOTS as usize;
        let rounds = self.collapsing.len().div_ceil(count).max(1);
        let round = (self.drawn / 2) as usize % rounds;
        for slot in self.collapsing.iter().skip(round * count).take(count) {
            let version = self.slot_version(*slot);
            let after = if version == ABSENT { 0 } else { ABSENT };
            slots.insert(*slot, after);
        }
    }

    /// Slots of contract 0 whose branch has one other child, a slot as well.
    fn find_collapsing(&self) -> Vec<u64> {
        let (first, size, _) = self.layout.storage(0).expect("contract 0 has storage");
        let key = |index| self.layout.slot_key(Place { contract: 0, index });
        let order = order_by_hash(size, key);
        let shared = |left: usize, right: usize| {
            let pair = order.get(left).zip(order.get(right));
            pair.map_or(0, |(left, right)| (left.0 ^ right.0).leading_zeros() / 4)
        };
        let is_pair = |at: &usize| {
            let own = shared(*at, at + 1);
            shared(at.wrapping_sub(1), *at) < own && shared(at + 1, at + 2) < own
        };
        let pairs: Vec<usize> = (0..order.len()).filter(is_pair).collect();
        let step = (pairs.len() / (SLOTS as usize * COLLAPSE_ROUNDS)).max(1);
        pairs.iter().step_by(step).map(|at| first + u64::from(order[*at].1)).collect()
    }

    /// Accounts without code, up to the number of accounts of a block.
    fn draw_accounts(&mut self, random: &mut Random, accounts: &mut BTreeMap<u64, u8>) {
        let made = self.layout.account_numbers() - self.layout.accounts();
        let mut tries = ACCOUNTS * TRIES;
        while (accounts.len() as u64) < ACCOUNTS && 0 < tries {
            tries -= 1;
            let number = if random.below(NEW_ONE_OF) == 0 {
                self.layout.accounts() + random.below(made)
            } else {
                self.draw_plain(random)
            };
            let after = next_version(self.account_version(number));
            accounts.entry(number).or_insert(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(load: Load, distribution: Distribution) -> Generator {
        let options = Options { load, seed: 7, accounts: 4_000, distribution };
        Generator::new(options).unwrap()
    }

    /// Goal: blocks are those of their load, and undoing them all leads back. Method: the versions
    /// beside copies of them.
    #[test]
    fn blocks_change_versions_and_are_undone() {
        for load in Load::ALL {
            for distribution in [Distribution::Uniform, Distribution::Zipf(0.99)] {
                let mut generator = generator(load, distribution);
                let first = (generator.account_versions.clone(), generator.slot_versions.clone());
                let mut blocks = Vec::new();
                for _ in 0..6 {
                    let before = generator.slot_versions.clone();
                    let block = generator.next_block();
                    assert!(!block.slots.is_empty(), "{load:?}");
                    for write in &block.slots {
                        assert_ne!(write.before, write.after, "{load:?}");
                        assert_eq!(generator.slot_version(write.number), write.after);
                        let contract = generator.layout.place(write.number).contract;
                        assert!(block.accounts.iter().any(|write| write.number == contract));
                        if block.wiped != Some(contract) {
                            assert_eq!(before[write.number as usize], write.before);
                        }
                    }
                    assert_eq!(block.wiped.is_some(), load == Load::WideWipe);
                    assert!(block.accounts.len() as u64 >= ACCOUNTS / 2, "{load:?}");
                    blocks.push(block);
                }
                for block in blocks.iter().rev() {
                    generator.undo(block);
                }
                assert_eq!(first, (generator.account_versions, generator.slot_versions));
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_blocks() {
        let mut left = generator(Load::Mix, Distribution::Uniform);
        let mut right = generator(Load::Mix, Distribution::Uniform);
        for _ in 0..3 {
            let (left, right) = (left.next_block(), right.next_block());
            assert_eq!((left.accounts, left.slots), (right.accounts, right.slots));
        }
    }
}

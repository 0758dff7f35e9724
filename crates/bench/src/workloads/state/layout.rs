//! Sizes of contracts, and the keys and values of numbers.
//!
//! The slots are shared out evenly among classes of contracts of 1, 4, 16, … slots, the largest
//! first. So a slot that is drawn evenly lies in a storage trie of any depth.
//!
//! | numbers of accounts  | are                                  |
//! |----------------------|--------------------------------------|
//! | 0 .. contracts       | contracts, the largest first         |
//! | .. accounts          | accounts without code                |
//! | .. [`Layout::account_numbers`] | not there at first, made by blocks |
//!
//! Numbers of slots follow the contracts. Each contract has a quarter more numbers than slots; the
//! slots of these are not there at first.

use terrane::mpt::{Account, Address, B256, U256};

use super::{Load, address_of, order_by_hash, slot_at};
use crate::workloads::draws::mix;
use crate::workloads::{fill_bytes, splitmix};

/// Fewest accounts of a state.
pub const ACCOUNTS_MIN: u64 = 1_000;

/// Slots for each account.
pub const SLOTS_OF_ACCOUNT: u64 = 2;

/// The version of what is not there.
pub const ABSENT: u8 = 255;

/// Most keys that are tried to find slots whose hashes share long prefixes.
const TRIED_MAX: u64 = 1 << 22;

/// Keys tried for each account.
const TRIED_OF_ACCOUNT: u64 = 4;

/// Pairs of slots with the longest shared prefixes.
const DEEP_PAIRS: usize = 1024;

/// Digits from which a pair gets a neighbour at each depth; branches above are there anyway.
const DEEP_FROM: u32 = 3;

/// Candidates on each side of a pair that may be such a neighbour.
const NEIGHBOURS_MAX: usize = 4096;

/// Codes of contracts.
const CODES: u64 = 1_000;

/// Contracts of one size.
#[derive(Debug, Clone, Copy)]
struct Class {
    /// Slots of a contract at first.
    size: u64,
    count: u64,
    first_contract: u64,
    first_slot: u64,
}

impl Class {
    /// Numbers of a contract.
    fn room(&self) -> u64 {
        self.size + self.size / 4 + 1
    }
}

/// A contract and the place of a slot in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the contract.
    pub contract: u64,
    /// Index of the slot in the contract.
    pub index: u64,
}

/// The state of a load before its first block.
#[derive(Debug)]
pub struct Layout {
    seed: u64,
    accounts: u64,
    classes: Vec<Class>,
    /// The keys of the slots of contract 0, if they were chosen.
    chosen: Vec<u64>,
}

impl Layout {
    /// A state of `accounts` accounts, at least [`ACCOUNTS_MIN`].
    ///
    /// Cost: none but for [`Load::DeepPaths`], which hashes up to four million keys.
    #[must_use]
    pub fn new(load: Load, seed: u64, accounts: u64) -> Self {
        assert!(ACCOUNTS_MIN <= accounts);
        let mut layout = Self { seed, accounts, classes: Vec::new(), chosen: Vec::new() };
        let mut slots = accounts * SLOTS_OF_ACCOUNT;
        match load {
            Load::SiblingCollapse | Load::BigContract => layout.add(slots, 1),
            Load::DeepPaths => {
                layout.chosen = deep_keys(TRIED_MAX.min(accounts * TRIED_OF_ACCOUNT));
                let chosen = layout.chosen.len() as u64;
                layout.add(chosen, 1);
                slots = slots.saturating_sub(chosen).max(ACCOUNTS_MIN);
                layout.add_classes(slots);
            }
            Load::Mix | Load::WideWipe => layout.add_classes(slots),
        }
        debug_assert!(layout.contracts() <= accounts);
        layout
    }

    fn add(&mut self, size: u64, count: u64) {
        let first_slot = self.slot_numbers();
        self.classes.push(Class { size, count, first_contract: self.contracts(), first_slot });
    }

    /// Shares `slots` slots out.
    fn add_classes(&mut self, slots: u64) {
        let largest = (slots / 16).max(1).ilog2() / 2;
        let share = slots / u64::from(largest + 1);
        for power in (0..=largest).rev() {
            let size = 1 << (2 * power);
            self.add(size, (share / size).max(1));
        }
    }

    /// Accounts that are there at first.
    #[must_use]
    pub fn accounts(&self) -> u64 {
        self.accounts
    }

    /// Accounts with storage.
    #[must_use]
    pub fn contracts(&self) -> u64 {
        self.classes.last().map_or(0, |class| class.first_contract + class.count)
    }

    /// Slots that are there at first.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.classes.iter().map(|class| class.size * class.count).sum()
    }

    /// Numbers of accounts.
    #[must_use]
    pub fn account_numbers(&self) -> u64 {
        self.accounts + self.accounts / 4
    }

    /// Numbers of slots.
    #[must_use]
    pub fn slot_numbers(&self) -> u64 {
        self.classes.last().map_or(0, |class| class.first_slot + class.count * class.room())
    }

    /// The place of a slot.
    #[must_use]
    pub fn place(&self, slot: u64) -> Place {
        let class = self.classes.iter().rfind(|class| class.first_slot <= slot);
        let class = class.expect("the first class begins with slot 0");
        let offset = slot - class.first_slot;
        Place {
            contract: class.first_contract + offset / class.room(),
            index: offset % class.room(),
        }
    }

    /// The number of the first slot of a contract, its slots at first, and its numbers; `None` for
    /// an account without storage.
    #[must_use]
    pub fn storage(&self, contract: u64) -> Option<(u64, u64, u64)> {
        let class = self.classes.iter().rfind(|class| class.first_contract <= contract)?;
        let offset = contract - class.first_contract;
        let room = class.room();
        (offset < class.count).then_some((class.first_slot + offset * room, class.size, room))
    }

    /// Whether a slot is there at first.
    #[must_use]
    pub fn is_there(&self, place: Place) -> bool {
        self.storage(place.contract).is_some_and(|(_, size, _)| place.index < size)
    }

    /// The address of an account.
    #[must_use]
    pub fn address(&self, account: u64) -> Address {
        address_of(self.seed, account)
    }

    /// The key of a slot.
    #[must_use]
    pub fn slot_key(&self, place: Place) -> B256 {
        let chosen = if place.contract == 0 { self.chosen.get(place.index as usize) } else { None };
        // Chosen keys are below the number of tried ones, and other keys of contract 0 above.
        let is_chosen = place.contract == 0 && !self.chosen.is_empty();
        let other = if is_chosen { TRIED_MAX + place.index } else { place.index };
        slot_at(chosen.copied().unwrap_or(other))
    }

    /// An account without its storage root.
    #[must_use]
    pub fn account(&self, account: u64, version: u8) -> Account {
        let random = mix(self.seed ^ u64::from(version), account);
        let nonce = u64::from(version) + account % 100;
        let balance = U256::from(random) << (random % 24) as usize;
        let plain = Account::new(nonce, balance);
        if account < self.contracts() {
            let mut code = [0; 32];
            fill_bytes(&mut code, splitmix(account % CODES));
            return plain.code_hash(B256::from(code));
        }
        plain
    }

    /// The value of a slot: a number of up to 8 bytes, an address or a word.
    #[must_use]
    pub fn value(&self, slot: u64, version: u8) -> U256 {
        let random = mix(!self.seed ^ u64::from(version) << 56, slot);
        let bytes = match random % 4 {
            0 => 4 + (random >> 8) as usize % 5,
            1 => 20,
            _ => 32,
        };
        let mut value = [0; 32];
        fill_bytes(&mut value[32 - bytes..], random);
        value[32 - bytes] |= 1;
        U256::from_be_bytes(value)
    }
}

/// Digits that the hashes share whose first eight bytes these are.
fn shared_digits(left: u64, right: u64) -> u32 {
    (left ^ right).leading_zeros() / 4
}

/// The keys below `tried` whose hashes share the longest prefixes in pairs, and for each
/// depth of a pair a key whose path leaves it there.
fn deep_keys(tried: u64) -> Vec<u64> {
    let order = order_by_hash(tried, slot_at);
    let mut pairs: Vec<(u32, usize)> =
        (1..order.len()).map(|at| (shared_digits(order[at - 1].0, order[at].0), at)).collect();
    pairs.sort_unstable_by(|left, right| right.cmp(left));
    pairs.truncate(DEEP_PAIRS.min(order.len() / 64));

    let mut chosen = std::collections::BTreeSet::new();
    for (digits, at) in pairs {
        chosen.extend([order[at - 1].1, order[at].1]);
        let around = order[..at - 1].iter().rev().take(NEIGHBOURS_MAX);
        let around = around.chain(order[at + 1..].iter().take(NEIGHBOURS_MAX));
        let mut has_neighbour = [false; 17];
        for (hash, number) in around {
            let depth = shared_digits(*hash, order[at].0);
            let is_wanted = (DEEP_FROM..digits).contains(&depth);
            if is_wanted && !std::mem::replace(&mut has_neighbour[depth as usize], true) {
                chosen.insert(*number);
            }
        }
    }
    chosen.into_iter().map(u64::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_place_and_every_contract_its_slots() {
        for load in Load::ALL {
            let layout = Layout::new(load, 7, ACCOUNTS_MIN);
            let mut expected = 0;
            let mut there = 0;
            for contract in 0..layout.contracts() {
                let (first, size, room) = layout.storage(contract).unwrap();
                assert_eq!(first, expected, "{load:?}");
                for index in [0, size - 1, size, room - 1] {
                    let place = Place { contract, index };
                    assert_eq!(layout.place(first + index), place);
                    assert_eq!(layout.is_there(place), index < size);
                }
                expected += room;
                there += size;
            }
            assert_eq!((expected, there), (layout.slot_numbers(), layout.slots()));
            assert_eq!(layout.storage(layout.contracts()), None);
            let about = SLOTS_OF_ACCOUNT * ACCOUNTS_MIN;
            assert!(there.abs_diff(about) < about / 2, "{load:?}: {there}");
        }
    }

    /// Goal: chosen keys make paths that are longer than those of random keys.
    #[test]
    fn chosen_keys_have_long_paths() {
        let layout = Layout::new(Load::DeepPaths, 7, 10_000);
        let (_, size, _) = layout.storage(0).unwrap();
        let mut hashes: Vec<u64> = (0..size)
            .map(|index| {
                let key = layout.slot_key(Place { contract: 0, index });
                super::super::head(&super::super::hash_of(key.as_slice()).0)
            })
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len() as u64, size, "keys are distinct");
        let deep = hashes.windows(2).filter(|pair| shared_digits(pair[0], pair[1]) >= 5).count();
        assert!(deep as u64 > size / 20, "{deep} of {size}");
    }
}

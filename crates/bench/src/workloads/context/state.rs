//! The starting state: values with numbers, in the order of their paths.
//!
//! | numbers, in this order | paths below `data` |
//! |---|---|
//! | of each big map, by id as text: two of each item | `big_maps/index/<id>/contents/<64 hex>/{data,len}` |
//! | and three more | `big_maps/index/<id>/{key_type,total_bytes,value_type}` |
//! | globals | `big_maps/next` to `contracts/global_counter` |
//! | 52 of 16 accounts, 15 of them with three fields | `contracts/index/<40 hex>/{balance,counter,manager}` |
//! | and a contract with seven | `contracts/index/<40 hex>/{balance,data/code,data/storage,len/code,…}` |
//! | globals, and rolls | `cycle/…` to `version`, `rolls/owner/current/<n>` |
//! | two | beside `data`: `protocol`, `test_chain` |
//!
//! The names of the n-th of k items or accounts are random, but for their first 64 bits, which are
//! random in the n-th of k equal parts of all numbers: so they are in order, and a name follows
//! from its number. Big maps have sizes by Zipf's law. Numbers from the count of values on are
//! items of their own, whose names are random.

use std::io::Write;

use super::below;
use crate::workloads::{SPLITMIX_STEP, splitmix};
use terrane_replay::engines::context::StepsBuf;

/// Fewest values that a state has; a block needs some thousand of each kind.
pub const VALUES_MIN: u64 = 20_000;

/// Values of which there is one big map.
const VALUES_PER_MAP: u64 = 500;

/// Fewest and most big maps.
const MAPS: (u64, u64) = (16, 20_000);

/// From one id of a big map to the next.
const ID_STEP: u64 = 17;

/// Values of a big map that are not those of items.
const MAP_FIELDS: [&[u8]; 3] = [b"key_type", b"total_bytes", b"value_type"];

/// Field that is the size of the map.
const MAP_SIZE_FIELD: u64 = 1;

/// Accounts of a group; one of them is a contract.
const GROUP_ACCOUNTS: u64 = 16;

/// Fields of an account.
const ACCOUNT_FIELDS: [&[&[u8]]; 3] = [&[b"balance"], &[b"counter"], &[b"manager"]];

/// Fields of a contract.
const CONTRACT_FIELDS: [&[&[u8]]; 7] = [
    &[b"balance"],
    &[b"data", b"code"],
    &[b"data", b"storage"],
    &[b"len", b"code"],
    &[b"len", b"storage"],
    &[b"paid_bytes"],
    &[b"used_bytes"],
];

/// Fields of a contract of depth 4, and the first one of depth 5.
const CONTRACT_FLAT_FIELDS: [u64; 3] = [0, 5, 6];
const STORAGE_FIELD: u64 = 1;
const STORAGE_FIELDS: u64 = 4;

/// Values of a group.
const GROUP_VALUES: u64 =
    (GROUP_ACCOUNTS - 1) * ACCOUNT_FIELDS.len() as u64 + CONTRACT_FIELDS.len() as u64;

/// Share of values of accounts, in per cent.
const ACCOUNTS_PERCENT: u64 = 45;

/// Globals between big maps and contracts. The first and the last are changed.
const GLOBALS_BEFORE: [&[&[u8]]; 4] = [
    &[b"big_maps", b"next"],
    &[b"block_priority"],
    &[b"constants", b"v1"],
    &[b"contracts", b"global_counter"],
];

/// Globals behind contracts and before the rolls.
const GLOBALS_MIDDLE: [&[&[u8]]; 13] = [
    &[b"cycle", b"current", b"nonces"],
    &[b"cycle", b"current", b"random_seed"],
    &[b"cycle", b"current", b"roll_snapshot"],
    &[b"cycle_eras"],
    &[b"delegates", b"count"],
    &[b"endorsement_branch"],
    &[b"first_level"],
    &[b"grand_parent_branch"],
    &[b"liquidity_baking_cpmm_address"],
    &[b"liquidity_baking_escape_ema"],
    &[b"ramp_up", b"rewards"],
    &[b"rolls", b"limbo"],
    &[b"rolls", b"next"],
];

/// Globals behind the rolls.
const GLOBALS_BEHIND: [&[&[u8]]; 5] = [
    &[b"sampler_state", b"last"],
    &[b"seed_status"],
    &[b"staking_balance", b"total"],
    &[b"tickets", b"root"],
    &[b"version"],
];

/// Number of globals that are only read.
pub(super) const GLOBAL_COUNT: u64 =
    (GLOBALS_BEFORE.len() - 2 + GLOBALS_MIDDLE.len() + GLOBALS_BEHIND.len()) as u64;

/// Values beside `data`.
const ROOTS: [&[u8]; 2] = [b"protocol", b"test_chain"];

/// Rolls, or one more.
const ROLLS: u64 = 64;

/// Values per 100,049 by the logarithm of their size, rounded down; the last one stands for 12 to
/// 17.
const SIZES: [u64; 13] = [750, 29_700, 48_500, 1_400, 3_900, 5_300, 9_400, 670, 240, 60, 60, 60, 9];

/// Sizes that the last one of [`SIZES`] stands for.
const LARGE_LOGS: u64 = 6;

/// The logarithm of the size of what is no item and no field.
const GLOBAL_LOG: u64 = 2;

/// A value of at most this logarithm of its size is short.
const SHORT_LOG: u64 = 2;

/// Bytes of the names of items and of accounts.
const ITEM_BYTES: usize = 32;
const ACCOUNT_BYTES: usize = 20;

/// A big map.
#[derive(Debug, Clone, Copy)]
struct Map {
    id: u64,
    /// Number of its first value.
    first: u64,
    /// Number of items before its own.
    first_item: u64,
    items: u64,
}

/// The starting state. It is a few numbers, and a table of big maps.
#[derive(Debug)]
pub struct State {
    seed: u64,
    values: u64,
    /// In the order of their ids as text.
    maps: Vec<Map>,
    /// Places in `maps` by size, the largest first.
    ranks: Vec<u32>,
    items: u64,
    groups: u64,
    rolls: u64,
}

/// Kind of an entry by its number.
#[derive(Debug, Clone, Copy)]
enum EntryKind {
    Item {
        map: u64,
        item: u64,
        is_length: bool,
    },
    MapField {
        map: u64,
        field: u64,
    },
    Account {
        account: u64,
        fields: &'static [&'static [u8]],
    },
    Global(&'static [&'static [u8]]),
    Roll(u64),
    Root(u64),
    /// An item that the starting state does not have.
    Other,
}

/// A start for a stream that has nothing to do with those of other seeds and numbers.
fn mix(seed: u64, number: u64) -> u64 {
    splitmix(splitmix(seed).wrapping_add(number))
}

/// Sets streams of one number apart.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Item = 1,
    Account,
    Other,
    Group,
    Size,
    Value,
}

impl State {
    /// Returns the state of this seed with `values` values.
    pub(super) fn new(seed: u64, values: u64) -> Self {
        let fixed =
            GLOBALS_BEFORE.len() + GLOBALS_MIDDLE.len() + GLOBALS_BEHIND.len() + ROOTS.len();
        let free = values - fixed as u64 - ROLLS;
        let groups = free * ACCOUNTS_PERCENT / 100 / GROUP_VALUES;
        let map_count = (values / VALUES_PER_MAP).clamp(MAPS.0, MAPS.1);

        let in_items = free - groups * GROUP_VALUES - map_count * MAP_FIELDS.len() as u64;
        let items = in_items / 2;
        let mut state = Self {
            seed,
            values,
            maps: Vec::new(),
            ranks: Vec::new(),
            items,
            groups,
            rolls: ROLLS + in_items % 2,
        };

        state.make_maps(map_count);
        state
    }

    /// Shares the items out: the n-th largest of the big maps has 1 / n of those of the largest
    /// one.
    fn make_maps(&mut self, count: u64) {
        let weight = |rank: u64| (1_u64 << 32) / (rank + 1);
        let total: u64 = (0..count).map(weight).sum();
        let share = |rank| (u128::from(self.items) * u128::from(weight(rank))) / u128::from(total);
        let shares: u64 = (0..count).map(|rank| share(rank) as u64).sum();

        let mut ids: Vec<(String, u64)> = (0..count)
            .map(|rank| {
                // Large maps are scattered among the ids; most ids ever given are gone.
                let id = (rank * super::SCATTER + self.seed % count) % count * ID_STEP;
                (id.to_string(), rank)
            })
            .collect();

        ids.sort();
        self.ranks = vec![0; count as usize];

        let mut first = 0;
        let mut first_item = 0;
        for (at, (id, rank)) in ids.iter().enumerate() {
            let rest = if *rank == 0 { self.items - shares } else { 0 };
            let items = share(*rank) as u64 + rest;
            let id = id.parse().expect("it was made of a number");
            self.maps.push(Map { id, first, first_item, items });
            self.ranks[*rank as usize] = at as u32;
            first += 2 * items + MAP_FIELDS.len() as u64;
            first_item += items;
        }
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.values
    }

    /// Makes `path` and `value` those of the value of a number below [`State::count`]. Paths are in
    /// order of their numbers.
    pub fn entry(&self, number: u64, path: &mut StepsBuf, value: &mut Vec<u8>) {
        self.path(number, path);
        value.clear();
        self.value(number, 0, value);
    }

    fn globals_first(&self) -> u64 {
        2 * self.items + (self.maps.len() * MAP_FIELDS.len()) as u64
    }

    fn accounts_first(&self) -> u64 {
        self.globals_first() + GLOBALS_BEFORE.len() as u64
    }

    fn middle_first(&self) -> u64 {
        self.accounts_first() + self.groups * GROUP_VALUES
    }

    fn behind_first(&self) -> u64 {
        self.roll(0) + self.rolls
    }

    fn stream(&self, stream: Stream, number: u64) -> u64 {
        mix(self.seed ^ stream as u64, number)
    }

    /// Account of a group that is its contract.
    fn contract_of(&self, group: u64) -> u64 {
        self.stream(Stream::Group, group) % GROUP_ACCOUNTS
    }

    /// The number of the first field of an account.
    fn account_first(&self, account: u64) -> u64 {
        let group = account / GROUP_ACCOUNTS;
        let at = account % GROUP_ACCOUNTS;
        let more = (CONTRACT_FIELDS.len() - ACCOUNT_FIELDS.len()) as u64;
        let behind = if at > self.contract_of(group) { more } else { 0 };
        self.accounts_first() + group * GROUP_VALUES + at * ACCOUNT_FIELDS.len() as u64 + behind
    }

    fn place(&self, number: u64) -> EntryKind {
        let fields = ACCOUNT_FIELDS.len() as u64;
        if number < self.globals_first() {
            let at = self.maps.partition_point(|map| map.first <= number) - 1;

            let map = &self.maps[at];
            let offset = number - map.first;
            if offset >= 2 * map.items {
                return EntryKind::MapField { map: at as u64, field: offset - 2 * map.items };
            }
            let item = offset / 2;
            let is_length = offset % 2 == 1;
            EntryKind::Item { map: at as u64, item, is_length }
        } else if number < self.accounts_first() {
            EntryKind::Global(GLOBALS_BEFORE[(number - self.globals_first()) as usize])
        } else if number < self.middle_first() {
            let offset = number - self.accounts_first();
            let group = offset / GROUP_VALUES;

            let offset = offset % GROUP_VALUES;
            let contract = self.contract_of(group);
            let (at, fields) = if offset < contract * fields {
                (offset / fields, ACCOUNT_FIELDS[(offset % fields) as usize])
            } else {
                let offset = offset - contract * fields;
                match offset.checked_sub(CONTRACT_FIELDS.len() as u64) {
                    None => (contract, CONTRACT_FIELDS[offset as usize]),
                    Some(offset) => {
                        (contract + 1 + offset / fields, ACCOUNT_FIELDS[(offset % fields) as usize])
                    }
                }
            };

            EntryKind::Account { account: group * GROUP_ACCOUNTS + at, fields }
        } else if number < self.roll(0) {
            EntryKind::Global(GLOBALS_MIDDLE[(number - self.middle_first()) as usize])
        } else if number < self.behind_first() {
            EntryKind::Roll(number - self.roll(0))
        } else if number < self.values - ROOTS.len() as u64 {
            EntryKind::Global(GLOBALS_BEHIND[(number - self.behind_first()) as usize])
        } else if number < self.values {
            EntryKind::Root(number + ROOTS.len() as u64 - self.values)
        } else {
            EntryKind::Other
        }
    }

    /// Makes `path` that of a number; of any number.
    pub(super) fn path(&self, number: u64, path: &mut StepsBuf) {
        path.clear();
        let place = self.place(number);
        if let EntryKind::Root(at) = place {
            path.push(ROOTS[at as usize]);
            return;
        }

        path.push(b"data");
        match place {
            EntryKind::Item { map, item, is_length } => {
                let at = self.maps[map as usize];
                push_map(path, at.id);
                path.push(b"contents");
                let start = self.stream(Stream::Item, at.first + item);
                push_name::<ITEM_BYTES>(path, start, Some((item, at.items)));
                path.push(if is_length { b"len" } else { b"data" });
            }
            EntryKind::MapField { map, field } => {
                push_map(path, self.maps[map as usize].id);
                path.push(MAP_FIELDS[field as usize]);
            }
            EntryKind::Account { account, fields } => {
                path.push(b"contracts");
                path.push(b"index");
                let start = self.stream(Stream::Account, account);
                push_name::<ACCOUNT_BYTES>(path, start, Some((account, self.account_count())));
                push_all(path, fields);
            }
            EntryKind::Global(steps) => push_all(path, steps),
            EntryKind::Roll(at) => {
                push_rolls(path);
                push_number(path, at, 4);
            }
            EntryKind::Other => {
                let start = self.stream(Stream::Other, number);
                let map = below(splitmix(start), self.map_count());
                push_map(path, self.maps[map as usize].id);
                path.push(b"contents");
                push_name::<ITEM_BYTES>(path, start, None);
                path.push(b"data");
            }
            EntryKind::Root(_) => unreachable!("they are beside `data`"),
        }
    }

    /// The logarithm of the size of a value, rounded down.
    fn size_log(&self, number: u64) -> u64 {
        let is_field = number >= self.accounts_first() && number < self.middle_first();
        if !is_field && number >= self.globals_first() && number < self.values {
            return GLOBAL_LOG;
        }
        let random = self.stream(Stream::Size, number);

        let mut left = below(random, SIZES.iter().sum());
        for (log, &count) in SIZES.iter().enumerate() {
            match left.checked_sub(count) {
                None if log + 1 == SIZES.len() => break,
                None => return log as u64,
                Some(rest) => left = rest,
            }
        }

        SIZES.len() as u64 - 1 + splitmix(random) % LARGE_LOGS
    }

    /// Whether a value has less than 8 bytes.
    pub(super) fn is_short(&self, number: u64) -> bool {
        self.size_log(number) <= SHORT_LOG
    }

    /// Appends the value of a number in a version. Values of following versions differ in their
    /// first byte.
    pub(super) fn value(&self, number: u64, version: u8, out: &mut Vec<u8>) {
        let mut random = self.stream(Stream::Value, number);
        let first = (random as u8).wrapping_add(version);
        random = mix(random, u64::from(version));
        let log = self.size_log(number);
        let size = (1 << log) + below(random, 1 << log) as usize;
        let start = out.len();

        while out.len() < start + size {
            random = random.wrapping_add(SPLITMIX_STEP);
            let part = splitmix(random).to_le_bytes();
            out.extend_from_slice(&part[..part.len().min(start + size - out.len())]);
        }

        out[start] = first;
    }

    pub(super) fn account_count(&self) -> u64 {
        self.groups * GROUP_ACCOUNTS
    }

    pub(super) fn contract_count(&self) -> u64 {
        self.groups
    }

    pub(super) fn map_count(&self) -> u64 {
        self.maps.len() as u64
    }

    pub(super) fn item_count(&self) -> u64 {
        self.items
    }

    pub(super) fn roll_count(&self) -> u64 {
        self.rolls
    }

    /// The number of a global that is only read.
    pub(super) fn global(&self, at: u64) -> u64 {
        let before = GLOBALS_BEFORE.len() as u64 - 2;
        let middle = before + GLOBALS_MIDDLE.len() as u64;
        if at < before {
            self.globals_first() + 1 + at
        } else if at < middle {
            self.middle_first() + at - before
        } else {
            self.behind_first() + at - middle
        }
    }

    pub(super) fn changing_global(&self) -> u64 {
        self.globals_first()
    }

    pub(super) fn global_counter(&self) -> u64 {
        self.accounts_first() - 1
    }

    /// The number of the size of the big map that is the `rank`-th largest, from 0 on.
    pub(super) fn map_size_by_rank(&self, rank: u64) -> u64 {
        let map = self.maps[self.ranks[rank as usize] as usize];
        map.first + 2 * map.items + MAP_SIZE_FIELD
    }

    pub(super) fn balance(&self, account: u64) -> u64 {
        self.account_first(account)
    }

    /// The number of a field of depth 4.
    pub(super) fn account_field(&self, account: u64, random: u64) -> u64 {
        let group = account / GROUP_ACCOUNTS;
        let at = account % GROUP_ACCOUNTS;
        let field = below(random, ACCOUNT_FIELDS.len() as u64);
        let is_contract = at == self.contract_of(group);
        let field = if is_contract { CONTRACT_FLAT_FIELDS[field as usize] } else { field };
        self.account_first(account) + field
    }

    /// The number of a field of depth 5.
    pub(super) fn storage_field(&self, group: u64, random: u64) -> u64 {
        let contract = group * GROUP_ACCOUNTS + self.contract_of(group);
        self.account_first(contract) + STORAGE_FIELD + below(random, STORAGE_FIELDS)
    }

    /// The number of an item's data or length.
    pub(super) fn item(&self, item: u64, is_length: bool) -> u64 {
        let at = self.maps.partition_point(|map| map.first_item <= item) - 1;
        let map = &self.maps[at];
        map.first + 2 * (item - map.first_item) + u64::from(is_length)
    }

    /// Whether a number is the data of an item, in the starting state or new.
    pub(super) fn is_item_data(&self, number: u64) -> bool {
        matches!(self.place(number), EntryKind::Item { is_length: false, .. } | EntryKind::Other)
    }

    pub(super) fn roll(&self, at: u64) -> u64 {
        self.middle_first() + GLOBALS_MIDDLE.len() as u64 + at
    }
}

/// Makes `path` that of the directory that is copied.
pub(super) fn rolls_path(path: &mut StepsBuf) {
    path.clear();
    path.push(b"data");
    push_rolls(path);
}

/// Makes `path` that of a roll in the copy of this number.
pub(super) fn copied_path(copy: u64, roll: u64, path: &mut StepsBuf) {
    path.clear();
    push_all(path, &[b"data", b"rolls", b"owner", b"snapshot"]);
    push_number(path, copy, 0);
    push_number(path, roll, 4);
}

fn push_all(path: &mut StepsBuf, steps: &[&[u8]]) {
    for step in steps {
        path.push(step);
    }
}

fn push_map(path: &mut StepsBuf, id: u64) {
    path.push(b"big_maps");
    path.push(b"index");
    push_number(path, id, 0);
}

fn push_rolls(path: &mut StepsBuf) {
    push_all(path, &[b"rolls", b"owner", b"current"]);
}

/// Appends a number as a step, with zeros in front up to `width`.
fn push_number(path: &mut StepsBuf, number: u64, width: usize) {
    path.push_with(|out| {
        write!(out, "{number:0width$}").expect("writing to memory does not fail");
    });
}

/// Appends a random name of `BYTES` bytes in hex; `part` is which of how many equal parts of all
/// names it is from.
fn push_name<const BYTES: usize>(path: &mut StepsBuf, start: u64, part: Option<(u64, u64)>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut words =
        (0..).map(|at: u64| splitmix(start.wrapping_add(at.wrapping_mul(SPLITMIX_STEP))));

    let mut first = words.next().unwrap_or_default();
    if let Some((at, count)) = part {
        let edge = |at: u64| ((u128::from(at)) << 64) / u128::from(count);
        let width = edge(at + 1) - edge(at);
        first = (edge(at) + ((u128::from(first) * width) >> 64)) as u64;
    }

    path.push_with(|out| {
        let words = std::iter::once(first).chain(words);
        // The highest digit comes first, so names are in the order of numbers.
        let digits = words.flat_map(|word| (0..16).rev().map(move |at| word >> (4 * at) & 15));
        out.extend(digits.take(2 * BYTES).map(|digit| DIGITS[digit as usize]));
    });
}

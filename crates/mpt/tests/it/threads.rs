//! Large blocks, whose work is divided among threads and whose nodes stay in memory.
//!
//! Goal: roots and tables do not depend on the number of threads and on the cache. Method: seeded
//! blocks of some hundred accounts and slots, in many small tries and in few large ones, on one
//! thread and on several, with caches that hold all, some and none, with the root of a naive trie.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use terrane_io::{Disk, MemoryDisk};
use terrane_mpt::{Account, State};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{self, DIR, Model, Step, apply, commit, options};

/// The entries of all tables, by name.
type Tables = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;

fn tables(state: &State) -> Tables {
    let content = |name: &str| {
        let table = state.store().table(name).unwrap();
        let record = |record: terrane_lsm::Result<terrane_lsm::Record>| {
            let record = record.unwrap();
            (record.key.clone(), record.value.to_vec())
        };
        table.cursor().unwrap().map(record).collect()
    };
    let tables = state.store().tables().unwrap();
    tables
        .iter()
        .map(|table| (table.name.as_str().to_owned(), content(table.name.as_str())))
        .collect()
}

/// Draws the changes of a block of `accounts` accounts with up to `slots` slots each.
fn draw_large(rng: &mut impl Draw, model: &Model, accounts: u64, slots: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    for number in 0..accounts {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let address = Address::new(bytes);
        if model.contains_key(&address) && rng.chance(1, 20) {
            steps.push(Step::Delete(address));
            continue;
        }
        if !model.contains_key(&address) || rng.chance(1, 2) {
            steps.push(Step::Set(address, rng.below(9), U256::from(rng.below(1 << 40)), None));
        }
        for _ in 0..rng.below(slots + 1) {
            let slot = B256::from(U256::from(rng.below(slots * 2)));
            let value = if rng.chance(1, 3) { 0 } else { rng.below(1 << 20) };
            steps.push(Step::Slot(address, slot, U256::from(value)));
        }
    }
    steps
}

#[test]
fn tables_and_roots_do_not_depend_on_threads_and_the_cache() {
    let name = "tables_and_roots_do_not_depend_on_threads_and_the_cache";
    for_each_seed(name, by_effort(1, 10), |rng, _| {
        for (accounts, slots) in [(200, 5), (2, 300)] {
            let open = |threads, node_cache| {
                let disk: Arc<dyn Disk> = MemoryDisk::new();
                let options = options().history(true).threads(threads).node_cache(node_cache);
                State::open(disk, Path::new(DIR), &options).unwrap()
            };
            let mut states = [open(1, 0), open(2, 1 << 20), open(5, 20_000)];
            let mut model = Model::new();
            for _ in 0..3 {
                let steps = draw_large(rng, &model, accounts, slots);
                apply(&mut model, &steps);
                for state in &mut states {
                    drop(commit(state, &steps, 0).unwrap());
                }
            }

            let root = chain::root(&model);
            let expected = tables(&states[0]);
            for state in &states {
                assert_eq!(state.root(), root);
                assert!(tables(state) == expected);
                assert!(state.verify().unwrap().is_clean());
            }
        }
    });
}

#[test]
fn slots_that_are_set_together_are_those_that_are_set_one_by_one() {
    let address = Address::repeat_byte(4);
    let slot = |number: u64| (B256::from(U256::from(number)), U256::from(number % 7));
    let slots: Vec<(B256, U256)> = (0..100).map(slot).collect();

    let mut state = chain::memory_state();
    let mut block = state.block(0, B256::ZERO).unwrap();
    block.set_account(address, &Account::new(1, U256::from(1)));
    block.set_slots(address, &slots);
    let together = block.root().unwrap();
    block.delete_account(address);
    block.set_account(address, &Account::new(1, U256::from(1)));
    for (slot, value) in &slots {
        block.set_slot(address, *slot, *value);
    }
    assert_eq!(block.root().unwrap(), together);
}

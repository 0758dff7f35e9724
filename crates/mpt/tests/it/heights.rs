//! Reads and proofs at older heights.
//!
//! Goal: at every height of a history, accounts, slots and proofs are those of the block, whatever
//! came later: changes, deletions, wipes, reorgs, prunes. Method: random blocks with reorgs to any
//! height, a model for each height, and prunes after which lower heights are unknown.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use terrane_io::{Disk, MemoryDisk};
use terrane_mpt::{Account, Error, State};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{self, DIR, Model, ModelAccount, Step, apply, commit, draw_block, options};

fn open(disk: &Arc<dyn Disk>, history: bool) -> State {
    State::open(Arc::clone(disk), Path::new(DIR), &options().history(history)).unwrap()
}

fn slots() -> Vec<B256> {
    (0..12_u64).map(|slot| B256::from(U256::from(slot))).collect()
}

/// Checks accounts, slots and proofs of a height.
fn check(state: &State, height: u64, model: &Model) {
    let at = state.at(height).unwrap();
    let root = chain::root(model);
    assert_eq!((at.block().height, at.block().root), (height, root));

    let addresses: Vec<Address> = (0..40).map(Address::repeat_byte).collect();
    let accounts = at.accounts(&addresses).unwrap();
    for (address, account) in addresses.iter().zip(accounts) {
        let expected = model.get(address);
        assert_eq!(account, expected.map(ModelAccount::account), "{address} at {height}");
        let values = at.slots(&slots().iter().map(|slot| (*address, *slot)).collect::<Vec<_>>());
        let value = |slot| expected.and_then(|account| account.slots.get(slot)).copied();
        let expected: Vec<_> = slots().iter().map(|slot| value(slot).unwrap_or_default()).collect();
        assert_eq!(values.unwrap(), expected, "{address} at {height}");

        let proof = at.prove(address, &slots()).unwrap();
        proof.verify(root).unwrap();
        assert_eq!(proof.account, account);
    }
}

#[test]
fn every_height_of_a_history_is_read_and_proved() {
    for_each_seed("every_height_of_a_history_is_read_and_proved", by_effort(2, 40), |rng, _| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut state = open(&disk, true);
        let mut models: Vec<Model> = Vec::new();
        let mut floor = 0;

        for branch in 0..14 {
            match rng.below(10) {
                0 if (floor as usize) < models.len() => {
                    let height = floor as usize + rng.index(models.len() - floor as usize);
                    drop(state.reorg_to(height as u64).unwrap());
                    models.truncate(height + 1);
                }
                1 => {
                    state.close().unwrap();
                    state = open(&disk, true);
                }
                2 if !models.is_empty() => {
                    floor = floor.max(rng.below(models.len() as u64));
                    state.prune_history(floor).unwrap();
                }
                _ => {
                    let mut model = models.last().cloned().unwrap_or_default();
                    let steps = draw_block(rng, &model);
                    apply(&mut model, &steps);
                    drop(commit(&mut state, &steps, branch).unwrap());
                    models.push(model);
                }
            }
        }

        for (height, model) in models.iter().enumerate() {
            let height = height as u64;
            if height < floor {
                assert!(matches!(state.at(height), Err(Error::UnknownHeight { .. })));
                assert!(matches!(state.reorg_to(height), Err(Error::UnknownHeight { .. })));
            } else {
                check(&state, height, model);
            }
        }
        assert!(state.at(models.len() as u64).is_err());
        assert!(state.verify().unwrap().is_clean());

        // Nothing of the pruned heights is left, and a prune up to the tip leaves no history.
        if let Some(tip) = state.tip() {
            state.prune_history(tip.height).unwrap();
            for table in
                ["changes", "value_history", "account_node_history", "storage_node_history"]
            {
                let table = state.store().table(table).unwrap();
                assert!(table.cursor().unwrap().next().is_none(), "{}", table.name());
            }
            check(&state, tip.height, models.last().unwrap());
            assert_eq!(state.prune_history(tip.height).unwrap().changes, 0);
        }
    });
}

#[test]
fn a_history_begins_and_ends_with_the_option() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let block = |state: &mut State, nonce: u64| {
        let step = Step::Set(Address::ZERO, nonce, U256::from(nonce), None);
        commit(state, &[step], 0).unwrap().ticket.wait().unwrap();
    };
    let nonce = |state: &State, height: u64| {
        state.at(height).map(|at| at.account(&Address::ZERO).unwrap().unwrap().nonce).ok()
    };

    let mut state = open(&disk, false);
    block(&mut state, 1);
    block(&mut state, 2);
    assert_eq!((nonce(&state, 0), nonce(&state, 1)), (None, Some(2)));
    state.close().unwrap();

    let mut state = open(&disk, true);
    block(&mut state, 3);
    block(&mut state, 4);
    let heights = |state: &State| [0, 1, 2, 3].map(|height| nonce(state, height));
    assert_eq!(heights(&state), [None, Some(2), Some(3), Some(4)]);
    let refused = state.prune_history(9);
    assert!(matches!(refused, Err(Error::UnknownHeight { height: 9 })));
    state.close().unwrap();

    let mut state = open(&disk, false);
    assert_eq!(heights(&state), [None, Some(2), Some(3), Some(4)]);
    block(&mut state, 5);
    assert_eq!(heights(&state), [None, None, None, None]);
    assert_eq!(nonce(&state, 4), Some(5));

    // Heights of the first history come again after a reorg below it, and its entries do not.
    drop(state.reorg_to(0).unwrap());
    state.close().unwrap();
    let mut state = open(&disk, true);
    for value in 11..15 {
        block(&mut state, value);
    }
    assert_eq!([0, 1, 2, 3, 4].map(|height| nonce(&state, height)), [1, 11, 12, 13, 14].map(Some));
}

/// The account of a number at a height: one in sixteen changes with each block.
fn account_at(number: u64, height: u64) -> Account {
    let changes = (height + 16 - number % 16) / 16;
    Account::new(changes, U256::from(number + 1))
}

fn address_of(number: u64) -> Address {
    Address::left_padding_from(&number.to_le_bytes())
}

/// Nodes change at many heights, and accounts come and go, so that differences follow each other in
/// long rows, with other masks, and whole copies stand between them.
#[test]
fn rows_of_differences_lead_back_to_every_node() {
    const ACCOUNTS: u64 = 400;
    const BLOCKS: u64 = 96;
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let mut state = open(&disk, true);
    let is_there = |number: u64, height: u64| number % 50 != height % 50;
    for height in 0..BLOCKS {
        let parent = state.tip().map_or(B256::ZERO, |tip| tip.hash);
        let mut block = state.block(height, parent).unwrap();
        for number in 0..ACCOUNTS {
            let is_new = height == 0 || !is_there(number, height - 1);
            if !is_there(number, height) {
                block.delete_account(address_of(number));
            } else if is_new || account_at(number, height) != account_at(number, height - 1) {
                block.set_account(address_of(number), &account_at(number, height));
            }
        }
        drop(block.commit(chain::hash(height, 0)).unwrap());
    }

    for height in (0..BLOCKS).step_by(by_effort(7, 1)) {
        let at = state.at(height).unwrap();
        for number in (height % 5..ACCOUNTS).step_by(by_effort(23, 3)) {
            let proof = at.prove(&address_of(number), &[]).unwrap();
            proof.verify(at.block().root).unwrap();
            let expected = is_there(number, height).then(|| account_at(number, height));
            assert_eq!(proof.account, expected, "{number} at {height}");
        }
    }

    let stats = state.store().table("account_node_history").unwrap().stats().unwrap();
    let bytes = stats.update_bytes / stats.updates;
    assert!(bytes <= 160, "{bytes} bytes for a node that changed");
    assert!(state.verify().unwrap().is_clean());

    // A difference that is damaged is an error, or a proof of another root, which is refused.
    let table = state.store().table("account_node_history").unwrap();
    let entries: Vec<_> = table.cursor().unwrap().map(std::result::Result::unwrap).collect();
    let is_difference = |entry: &&terrane_lsm::Record| entry.value[0] > 2;
    for entry in entries.iter().filter(is_difference).step_by(97) {
        let mut damaged = entry.value.to_vec();
        let at = 1 + damaged.len() / 2;
        damaged[at] ^= 4;
        drop(table.insert(&entry.key, &damaged).unwrap());
        for number in 0..ACCOUNTS / 20 {
            let height = height_in(&entry.key) - 1;
            if let Ok(proof) = state.at(height).unwrap().prove(&address_of(number), &[]) {
                let root = state.block_at(height).unwrap().unwrap().root;
                proof.verify(root).unwrap();
            }
        }
        drop(table.insert(&entry.key, &entry.value).unwrap());
    }
}

/// The height at the end of a key of a history.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is the order of heights")]
fn height_in(key: &[u8]) -> u64 {
    u64::from_be_bytes(*key.last_chunk().unwrap())
}

//! Differences between heights.
//!
//! Goal: the difference between any two heights, in either order, is that of their models; heights
//! that are not kept are refused. Method: random blocks, wipes included, with a reorg and a prune.

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256, keccak256};
use terrane_mpt::{Account, Error, StateDiff};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{Model, apply, commit, draw_block, memory_state};

type Accounts = BTreeMap<B256, Account>;
type Slots = BTreeMap<(B256, B256), U256>;

fn hashed(model: &Model) -> (Accounts, Slots) {
    let mut accounts = Accounts::new();
    let mut slots = Slots::new();
    for (address, account) in model {
        let hash = keccak256(address);
        accounts.insert(hash, account.account());
        slots.extend(account.slots.iter().map(|(slot, value)| ((hash, keccak256(slot)), *value)));
    }
    (accounts, slots)
}

/// Applies a difference to a model; each `before` must be what the model has.
fn follow(diff: &StateDiff, from: &Model) -> (Accounts, Slots) {
    let (mut accounts, mut slots) = hashed(from);
    for change in &diff.accounts {
        assert_ne!(change.before, change.after);
        let before = match change.after {
            Some(after) => accounts.insert(change.account, after),
            None => accounts.remove(&change.account),
        };
        assert_eq!(before, change.before);
    }
    for change in &diff.slots {
        assert_ne!(change.before, change.after);
        let key = (change.account, change.slot);
        let before = if change.after.is_zero() {
            slots.remove(&key)
        } else {
            slots.insert(key, change.after)
        };
        assert_eq!(before.unwrap_or_default(), change.before);
    }
    (accounts, slots)
}

#[test]
fn the_difference_of_two_heights_leads_from_one_to_the_other() {
    let name = "the_difference_of_two_heights_leads_from_one_to_the_other";
    for_each_seed(name, by_effort(3, 60), |rng, _| {
        let mut state = memory_state();
        let mut models: Vec<Model> = Vec::new();
        for branch in 0..8 {
            let mut model = models.last().cloned().unwrap_or_default();
            let steps = draw_block(rng, &model);
            apply(&mut model, &steps);
            drop(commit(&mut state, &steps, branch).unwrap());
            models.push(model);
            if branch == 4 {
                drop(state.reorg_to(2).unwrap());
                models.truncate(3);
            }
        }

        for (from, model) in models.iter().enumerate() {
            for (to, target) in models.iter().enumerate() {
                let diff = state.diff(from as u64, to as u64).unwrap();
                assert_eq!(follow(&diff, model), hashed(target), "{from} to {to}");
            }
        }
        let above = models.len() as u64;
        let unknown = |found: terrane_mpt::Result<StateDiff>| {
            assert!(matches!(found, Err(Error::UnknownHeight { .. })), "{found:?}");
        };
        unknown(state.diff(0, above));
        state.prune_history(2).unwrap();
        unknown(state.diff(1, 3));
        assert_eq!(follow(&state.diff(2, 3).unwrap(), &models[2]), hashed(&models[3]));
    });
}

//! Random histories of a state.
//!
//! Goal: after each block and each reorg, root and entries are those of a model, nodes are those of
//! the entries, and a state that is opened again is the same. Method: seeded blocks with new,
//! changed, deleted and recreated accounts, reorgs to any height, and reopening.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use terrane_io::{Disk, MemoryDisk};
use terrane_mpt::{Account, EMPTY_ROOT, Error, ErrorKind};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{self, Model, Step, apply, commit, draw_block, memory_state, open};

#[test]
fn blocks_and_reorgs_lead_to_the_state_of_the_model() {
    let name = "blocks_and_reorgs_lead_to_the_state_of_the_model";
    for_each_seed(name, by_effort(2, 40), |rng, _| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let mut state = open(&disk).unwrap();
        let mut models: Vec<Model> = Vec::new();

        for branch in 0..25 {
            match rng.below(8) {
                0 if !models.is_empty() => {
                    let height = rng.index(models.len());
                    let block = state.reorg_to(height as u64).unwrap().block;
                    assert_eq!(block, state.tip().unwrap());
                    models.truncate(height + 1);
                }
                1 => {
                    state.close().unwrap();
                    state = open(&disk).unwrap();
                }
                _ => {
                    let mut model = models.last().cloned().unwrap_or_default();
                    let steps = draw_block(rng, &model);
                    apply(&mut model, &steps);
                    drop(commit(&mut state, &steps, branch).unwrap());
                    models.push(model);
                }
            }
            chain::check(&state, models.last().unwrap_or(&Model::new()));
            if rng.chance(1, 4) {
                let report = state.verify().unwrap();
                assert!(report.is_clean(), "{report:?}");
            }
        }
        for (height, model) in models.iter().enumerate() {
            let block = state.block_at(height as u64).unwrap().unwrap();
            assert_eq!(block.root, chain::root(model));
        }
        assert_eq!(state.block_at(models.len() as u64).unwrap(), None);
    });
}

#[test]
fn a_root_that_is_not_that_of_the_header_changes_nothing() {
    let mut state = memory_state();
    assert_eq!(state.root(), EMPTY_ROOT);
    let alice = Address::repeat_byte(1);
    let mut block = state.block(5, B256::ZERO).unwrap();
    block.set_account(alice, &Account::new(1, U256::from(2)));
    let root = block.root().unwrap();
    let refused = block.commit_expecting(B256::repeat_byte(1), B256::ZERO).unwrap_err();
    assert!(matches!(refused, Error::RootMismatch { computed, .. } if computed == root));
    assert_eq!((state.tip(), state.account(&alice).unwrap()), (None, None));

    let mut block = state.block(5, B256::ZERO).unwrap();
    block.set_account(alice, &Account::new(1, U256::from(2)));
    let committed = block.commit_expecting(B256::repeat_byte(1), root).unwrap();
    assert_eq!(committed.block.height, 5);
    committed.ticket.wait().unwrap();
    assert_eq!(state.root(), root);
}

#[test]
fn blocks_that_do_not_follow_are_refused() {
    let mut state = memory_state();
    assert!(matches!(state.reorg_to(0), Err(Error::UnknownHeight { height: 0 })));
    drop(commit(&mut state, &[], 0).unwrap());
    let hash = chain::hash(0, 0);
    assert!(matches!(state.block(1, B256::ZERO), Err(Error::NotOnTip { .. })));
    assert!(matches!(state.block(0, hash), Err(Error::NotOnTip { .. })));
    assert!(matches!(state.block(2, hash), Err(Error::NotOnTip { .. })));
    assert!(state.block(1, hash).is_ok());
    assert!(matches!(state.reorg_to(1), Err(Error::UnknownHeight { height: 1 })));

    let orphan = [Step::Slot(Address::ZERO, B256::ZERO, U256::from(1))];
    let refused = commit(&mut state, &orphan, 0).unwrap_err();
    assert!(matches!(refused, Error::SlotWithoutAccount { .. }));
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn code_is_found_by_its_hash_and_goes_with_its_block() {
    let mut state = memory_state();
    drop(commit(&mut state, &[], 0).unwrap());
    let mut block = state.block(1, chain::hash(0, 0)).unwrap();
    let hash = block.set_code(b"code");
    block.set_account(Address::ZERO, &Account::default().code_hash(hash));
    drop(block.commit(chain::hash(1, 0)).unwrap());
    assert_eq!(state.code(&hash).unwrap().unwrap(), b"code"[..]);
    assert_eq!(state.code(&terrane_mpt::EMPTY_CODE_HASH).unwrap().unwrap(), b""[..]);

    // Code that is there already stays when a later block that sets it goes.
    let mut block = state.block(2, chain::hash(1, 0)).unwrap();
    block.set_code(b"code");
    drop(block.commit(chain::hash(2, 0)).unwrap());
    drop(state.reorg_to(1).unwrap());
    assert!(state.code(&hash).unwrap().is_some());
    drop(state.reorg_to(0).unwrap());
    assert_eq!(state.code(&hash).unwrap(), None);
}

#[test]
fn a_wiped_account_with_the_same_slots_has_the_same_root() {
    let mut state = memory_state();
    let address = Address::repeat_byte(3);
    let mut steps = vec![Step::Set(address, 1, U256::from(1), None)];
    for slot in 0..50_u64 {
        let slot = U256::from(slot);
        steps.push(Step::Slot(address, B256::from(slot), slot + U256::from(1)));
    }
    let root = commit(&mut state, &steps, 0).unwrap().block.root;
    steps.insert(0, Step::Delete(address));
    assert_eq!(commit(&mut state, &steps, 0).unwrap().block.root, root);
    assert!(state.verify().unwrap().is_clean());

    // Fewer slots after the wipe; the way back brings the others.
    steps.truncate(20);
    drop(commit(&mut state, &steps, 0).unwrap());
    let report = state.verify().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.slots, 18);
    assert_eq!(state.reorg_to(0).unwrap().block.root, root);
    assert_eq!(state.verify().unwrap().slots, 50);
}

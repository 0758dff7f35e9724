//! Damage within a state.
//!
//! Goal: a check names each node and entry that disagrees, a rebuild mends nodes, and a commit on
//! damaged nodes is an error or another root than the expected one. Method: entries of the tables
//! are changed behind the back of the state.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, keccak256};
use terrane_io::{Disk, MemoryDisk};
use terrane_mpt::{Error, ErrorKind, NodeTable, Problem, State};
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{self, DIR, Model, Step, apply, commit, options};

/// A state of accounts with slots, and its model.
/// A state without nodes in memory, which would hide what the tables lack.
fn state() -> (State, Model) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let mut state = State::open(disk, Path::new(DIR), &options().node_cache(0)).unwrap();
    let mut steps = Vec::new();
    for number in 0..40 {
        let address = Address::repeat_byte(number);
        steps.push(Step::Set(address, 1, U256::from(number), None));
        for slot in 0..12_u64 {
            let slot = U256::from(slot);
            steps.push(Step::Slot(address, B256::from(slot), slot + U256::from(1)));
        }
    }
    let mut model = Model::new();
    apply(&mut model, &steps);
    drop(commit(&mut state, &steps, 0).unwrap());
    chain::check(&state, &model);
    (state, model)
}

fn nodes(state: &State, table: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = state.store().table(table).unwrap();
    let record = |record: terrane_lsm::Result<terrane_lsm::Record>| {
        let record = record.unwrap();
        (record.key.clone(), record.value.to_vec())
    };
    table.cursor().unwrap().map(record).collect()
}

#[test]
fn nodes_that_are_damaged_or_missing_are_named_and_rebuilt() {
    for_each_seed("nodes_that_are_damaged", 2, |rng, _| {
        use terrane_testkit::draw::Draw;
        let (mut state, model) = state();
        for (name, kind) in
            [("account_nodes", NodeTable::Accounts), ("storage_nodes", NodeTable::Storage)]
        {
            let table = state.store().table(name).unwrap();
            let all = nodes(&state, name);
            let (key, value) = rng.pick(&all).clone();
            let mut other = value.clone();
            other[value.len() - 1] ^= 1;
            drop(table.insert(&key, &other).unwrap());
            let report = state.verify().unwrap();
            assert_eq!(report.problems, [Problem::Node { table: kind, key: key.clone() }]);

            drop(table.delete(&key).unwrap());
            drop(table.insert(&[key.clone(), vec![1, 2, 3]].concat(), &value).unwrap());
            drop(table.insert(&[key.clone(), vec![1, 2, 4]].concat(), &value).unwrap());
            let report = state.verify().unwrap();
            let stored = all.len() as u64 + 1;
            let derived = all.len() as u64;
            assert_eq!(
                report.problems,
                [
                    Problem::Node { table: kind, key },
                    Problem::SurplusNodes { table: kind, stored, derived }
                ]
            );

            state.rebuild().unwrap();
            assert!(state.verify().unwrap().is_clean());
            assert_eq!(nodes(&state, name), all);
        }
        chain::check(&state, &model);
        drop(commit(&mut state, &[Step::Delete(Address::repeat_byte(1))], 0).unwrap());
        assert!(state.verify().unwrap().is_clean());
    });
}

#[test]
fn damaged_entries_are_named_and_refuse_a_rebuild() {
    let (mut state, _) = state();
    let address = Address::repeat_byte(7);
    let slots = state.store().table("slots").unwrap();
    let slot = [keccak256(address), keccak256(B256::ZERO)].concat();
    drop(slots.insert(&slot, &[9]).unwrap());
    let report = state.verify().unwrap();
    assert!(report.problems.iter().any(|problem| matches!(
        problem,
        Problem::StorageRoot { account, .. } if *account == keccak256(address)
    )));

    let accounts = state.store().table("accounts").unwrap();
    drop(accounts.insert(keccak256(address).as_slice(), b"nothing").unwrap());
    let report = state.verify().unwrap();
    assert!(report.problems.iter().any(|problem| matches!(problem, Problem::Root { .. })));
    let account = keccak256(address);
    assert!(report.problems.contains(&Problem::SlotsWithoutAccount { account }));
    assert!(report.problems.iter().all(|problem| !problem.to_string().is_empty()));
    assert!(matches!(state.rebuild(), Err(Error::RootMismatch { .. })));
    assert_eq!(state.account(&address).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_commit_on_a_missing_node_is_an_error() {
    let (mut state, model) = state();
    let table = state.store().table("account_nodes").unwrap();
    let root = nodes(&state, "account_nodes")[0].0.clone();
    drop(table.delete(&root).unwrap());
    let step = Step::Set(Address::repeat_byte(1), 5, U256::from(5), None);
    let refused = commit(&mut state, std::slice::from_ref(&step), 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert_eq!(state.tip().unwrap().height, 0);
    assert_eq!(state.root(), chain::root(&model));
    state.rebuild().unwrap();
    drop(commit(&mut state, &[step], 0).unwrap());
}

//! Ranges of accounts and slots, and their proofs.
//!
//! Goal: a range of a state verifies and has exactly the entries that the model has there; ranges
//! one after the other are the whole state; no change of a range, of its entries, bounds or nodes,
//! several at once, verifies a false one. Method: random states at their tip and below it, raw
//! tries whose keys share long prefixes, so that nodes are embedded, and seeded mutations.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes, U256, keccak256};
use terrane_mpt::{
    Account, AccountRange, EMPTY_ROOT, KeccakMpt, MemoryTrie, NodeSet, ProofError, StateAt,
    StorageRange, TrieRange,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{Model, ModelAccount, apply, commit, draw_block, memory_state, root};

const LAST: B256 = B256::repeat_byte(0xff);

type Slots = BTreeMap<B256, U256>;

/// Accounts by hash, with their slots by hash.
fn hashed(model: &Model) -> BTreeMap<B256, (Account, Slots)> {
    let entry = |(address, account): (&_, &ModelAccount)| {
        let slots = account.slots.iter().map(|(slot, value)| (keccak256(slot), *value));
        (keccak256(address), (account.account(), slots.collect()))
    };
    model.iter().map(entry).collect()
}

fn draw_model(rng: &mut impl Draw) -> Model {
    let mut model = Model::new();
    for _ in 0..=rng.below(6) {
        let steps = draw_block(rng, &model);
        apply(&mut model, &steps);
    }
    model
}

fn next(hash: B256) -> B256 {
    B256::from(U256::from_be_bytes(hash.0).wrapping_add(U256::from(1)))
}

fn previous(hash: B256) -> B256 {
    B256::from(U256::from_be_bytes(hash.0).wrapping_sub(U256::from(1)))
}

/// A start: at an entry, beside one, at an end, or anywhere.
fn draw_key<T>(rng: &mut impl Draw, entries: &BTreeMap<B256, T>) -> B256 {
    let keys: Vec<B256> = entries.keys().copied().collect();
    match rng.below(7) {
        0 => B256::ZERO,
        1 => LAST,
        2 if !keys.is_empty() => next(*rng.pick(&keys)),
        3 if !keys.is_empty() => previous(*rng.pick(&keys)),
        4 | 5 if !keys.is_empty() => *rng.pick(&keys),
        _ => keccak256(rng.below(1 << 40).to_le_bytes()),
    }
}

/// Whether an account range that verified, with this answer, is true of the accounts.
fn is_true<T>(
    entries: &BTreeMap<B256, T>,
    (start, claimed, nodes): (B256, &[B256], &[Bytes]),
    has_more: bool,
) -> bool {
    let end = claimed.last().copied().filter(|_| !nodes.is_empty()).unwrap_or(LAST);
    let real: Vec<B256> = entries.range(start..=end).map(|(key, _)| *key).collect();
    real == claimed && has_more == entries.keys().any(|key| end < *key)
}

fn check_state(rng: &mut impl Draw, state: &StateAt, model: &Model) -> Vec<AccountRange> {
    let root = root(model);
    let accounts = hashed(model);
    let mut ranges = Vec::new();
    for _ in 0..12 {
        let start = draw_key(rng, &accounts);
        let limit = rng.index(12);
        let range = state.account_range(start, limit).unwrap();
        let has_more = range.verify(root).unwrap();
        let keys: Vec<B256> = range.accounts.iter().map(|(hash, _)| *hash).collect();
        assert!(is_true(&accounts, (start, &keys, &range.nodes), has_more));
        assert!(range.accounts.iter().all(|(hash, account)| accounts[hash].0 == *account));
        assert_eq!(range.accounts.len().min(limit.max(1)), range.accounts.len());
        ranges.push(range);
    }

    for (hash, (account, slots)) in accounts.iter().take(6) {
        let start = draw_key(rng, slots);
        let range = state.storage_range(*hash, start, rng.index(6)).unwrap();
        let has_more = range.verify(account.storage_root).unwrap();
        let keys: Vec<B256> = range.slots.iter().map(|(slot, _)| *slot).collect();
        assert!(is_true(slots, (start, &keys, &range.nodes), has_more));
        assert!(range.slots.iter().all(|(slot, value)| slots[slot] == *value));
    }
    ranges
}

#[test]
fn ranges_of_random_states_verify_and_are_all_of_their_entries() {
    let name = "ranges_of_random_states_verify_and_are_all_of_their_entries";
    for_each_seed(name, by_effort(6, 100), |rng, _| {
        let mut state = memory_state();
        let mut models = Vec::new();
        let mut model = Model::new();
        for branch in 0..4 {
            let steps = draw_block(rng, &model);
            apply(&mut model, &steps);
            drop(commit(&mut state, &steps, branch).unwrap());
            models.push(model.clone());
        }
        check_state(rng, &state.latest().unwrap(), &model);

        // All ranges, one after the other.
        let mut start = B256::ZERO;
        let mut found = BTreeMap::new();
        loop {
            let range = state.latest().unwrap().account_range(start, 1 + rng.index(5)).unwrap();
            let has_more = range.verify(root(&model)).unwrap();
            found.extend(range.accounts.iter().copied());
            if !has_more {
                break;
            }
            start = next(range.accounts.last().unwrap().0);
        }
        let real = hashed(&model).into_iter().map(|(hash, (account, _))| (hash, account));
        assert_eq!(found, real.collect());
    });
}

#[test]
fn a_whole_trie_needs_no_nodes() {
    let mut state = memory_state();
    drop(commit(&mut state, &[], 0).unwrap());
    let at = state.latest().unwrap();
    let range = at.account_range(B256::ZERO, 10).unwrap();
    assert_eq!((range.accounts.len(), range.nodes.len()), (0, 0));
    assert_eq!(range.verify(EMPTY_ROOT), Ok(false));
    assert_eq!(at.account_range(LAST, 10).unwrap().verify(EMPTY_ROOT), Ok(false));
    assert_eq!(at.storage_range(LAST, LAST, 10).unwrap().verify(EMPTY_ROOT), Ok(false));

    // Without nodes nothing but the whole trie is proved.
    let other = B256::repeat_byte(1);
    assert!(range.verify(other).is_err());
    let above = AccountRange::new(other, Vec::new(), Vec::new());
    assert_eq!(above.verify(other), Err(ProofError::MissingNode { hash: other }));
}

#[test]
fn changed_ranges_of_accounts_prove_nothing_false() {
    let name = "changed_ranges_of_accounts_prove_nothing_false";
    for_each_seed(name, by_effort(4, 100), |rng, _| {
        let model = draw_model(rng);
        let mut state = memory_state();
        let steps = crate::chain::difference(&Model::new(), &model);
        drop(commit(&mut state, &steps, 0).unwrap());
        let root = root(&model);
        let accounts = hashed(&model);
        let ranges = check_state(rng, &state.latest().unwrap(), &model);

        let mut verified = 0;
        for _ in 0..by_effort(600, 4_000) {
            let mut range = rng.pick(&ranges).clone();
            let other = rng.pick(&ranges);
            for _ in 0..=rng.below(3) {
                mutate(rng, &mut range, other, &accounts);
            }
            if let Ok(has_more) = range.verify(root) {
                verified += 1;
                let keys: Vec<B256> = range.accounts.iter().map(|(hash, _)| *hash).collect();
                assert!(is_true(&accounts, (range.start, &keys, &range.nodes), has_more));
                let is_so = |(hash, account): &(B256, Account)| accounts[hash].0 == *account;
                assert!(range.accounts.iter().all(is_so), "{range:?}");
            }
        }
        assert!(0 < verified || accounts.is_empty());
    });
}

fn mutate(
    rng: &mut impl Draw,
    range: &mut AccountRange,
    other: &AccountRange,
    real: &BTreeMap<B256, (Account, Slots)>,
) {
    let count = range.accounts.len();
    match rng.below(10) {
        0 => range.start = draw_key(rng, real),
        1 if 0 < count => drop(range.accounts.remove(rng.index(count))),
        2 if 0 < count => range.accounts.truncate(rng.index(count)),
        3 if 0 < count => {
            let at = rng.index(count);
            range.accounts[at].1 = Account::new(rng.below(3), U256::from(rng.below(3)));
        }
        4 if 0 < count => {
            let at = rng.index(count);
            range.accounts[at].0 = draw_key(rng, real);
        }
        5 => {
            // An account that is there, in its place.
            let at = rng.index(count + 1);
            let key = draw_key(rng, real);
            let account = real.get(&key).map_or(Account::default(), |found| found.0);
            range.accounts.insert(at, (key, account));
            range.accounts.sort_by_key(|(hash, _)| *hash);
        }
        6 => range.accounts.clone_from(&other.accounts),
        7 => range.nodes.clone_from(&other.nodes),
        8 => range.nodes.extend(other.nodes.iter().cloned()),
        _ => mutate_nodes(rng, &mut range.nodes),
    }
}

fn mutate_nodes(rng: &mut impl Draw, nodes: &mut Vec<Bytes>) {
    if nodes.is_empty() {
        return;
    }
    let at = rng.index(nodes.len());
    if rng.chance(1, 3) {
        nodes.remove(at);
        return;
    }
    let mut bytes = nodes[at].to_vec();
    let bit = rng.index(bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
    nodes[at] = bytes.into();
}

/// Keys that share long prefixes, so that leaves and branches are short enough to be embedded.
fn draw_raw(rng: &mut impl Draw) -> BTreeMap<B256, Vec<u8>> {
    let mut entries = BTreeMap::new();
    for _ in 0..rng.below(40) {
        let mut key = B256::ZERO;
        // Differences near the end make short leaves; those before it make extensions.
        for _ in 0..=rng.below(3) {
            let place = *rng.pick(&[0, 1, 15, 29, 30, 31, 31]);
            key[place] = *rng.pick(&[0, 1, 2, 16, 17, 255]);
        }
        let length = *rng.pick(&[1, 1, 1, 2, 40]);
        let value = rng.bytes(length);
        entries.insert(key, value);
    }
    entries
}

#[test]
fn changed_ranges_of_tries_with_embedded_nodes_prove_nothing_false() {
    let name = "changed_ranges_of_tries_with_embedded_nodes_prove_nothing_false";
    for_each_seed(name, by_effort(12, 400), |rng, _| {
        let entries = draw_raw(rng);
        let mut trie = MemoryTrie::<KeccakMpt>::default();
        let changes = entries.iter().map(|(key, value)| (key.to_vec(), Some(value.clone())));
        let root = trie.apply(&changes.collect::<Vec<_>>()).unwrap();

        for _ in 0..by_effort(60, 400) {
            let start = draw_key(rng, &entries);
            let end = draw_key(rng, &entries).max(start);
            let mut nodes = Vec::new();
            for bound in [start, end] {
                nodes.extend(trie.prove(bound.as_slice()).unwrap().into_iter().map(Bytes::from));
            }
            let real = |start: B256, end: B256| {
                let found = entries.range(start..=end);
                found.map(|(key, value)| (*key, value.clone())).collect::<Vec<_>>()
            };
            let claimed = real(start, end);
            let range = TrieRange { start, end, entries: &claimed };
            let has_more = entries.keys().any(|key| end < *key);
            assert_eq!(range.verify(root, &NodeSet::of(&nodes)), Ok(has_more), "{range:?}");

            // Some changes at once; if they verify, they are true.
            let mut claimed = claimed;
            let (mut start, mut end) = (start, end);
            for _ in 0..=rng.below(2) {
                let count = claimed.len();
                match rng.below(7) {
                    0 => start = draw_key(rng, &entries),
                    1 => end = draw_key(rng, &entries),
                    2 if 0 < count => drop(claimed.remove(rng.index(count))),
                    3 if 0 < count => {
                        let at = rng.index(count);
                        claimed[at].1 = vec![rng.below(4) as u8];
                    }
                    4 => {
                        let key = draw_key(rng, &entries);
                        let value = entries.get(&key).cloned().unwrap_or(vec![1]);
                        claimed.push((key, value));
                        claimed.sort();
                        claimed.dedup_by_key(|(key, _)| *key);
                    }
                    _ => mutate_nodes(rng, &mut nodes),
                }
            }
            let range = TrieRange { start, end, entries: &claimed };
            if let Ok(has_more) = range.verify(root, &NodeSet::of(&nodes)) {
                assert_eq!(claimed, real(start, end));
                assert_eq!(has_more, entries.keys().any(|key| end < *key));
            }
        }
    });
}

#[test]
fn ranges_that_are_none_are_refused() {
    let one = B256::repeat_byte(1);
    let two = B256::repeat_byte(2);
    let account = Account::new(1, U256::from(1));
    let refused = |range: AccountRange| {
        let nodes = vec![Bytes::from_static(b"node")];
        let error = AccountRange::new(range.start, range.accounts, nodes).verify(EMPTY_ROOT);
        assert!(matches!(error, Err(ProofError::InvalidRange { .. })), "{error:?}");
    };
    refused(AccountRange::new(one, vec![(two, account), (two, account)], vec![]));
    refused(AccountRange::new(one, vec![(two, account), (one, account)], vec![]));
    refused(AccountRange::new(two, vec![(one, account)], vec![]));
    let zero = StorageRange::new(one, one, vec![(two, U256::ZERO)], vec![]);
    let refused = zero.verify(EMPTY_ROOT);
    assert!(matches!(refused, Err(ProofError::InvalidRange { index: 0, .. })), "{refused:?}");
}

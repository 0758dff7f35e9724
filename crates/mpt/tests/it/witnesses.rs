//! Witnesses and stateless states.
//!
//! Goal: from the witness of a block, the reads of the block and the root after it are those of the
//! state; whatever is missing from a witness or changed in it, several things at once, no value and
//! no root is wrong. Method: random histories whose blocks read, change, delete and wipe, at the
//! tip and below it; seeded mutations; raw tries with embedded nodes against a trie in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use alloy_rlp::{Encodable, Header};
use terrane_io::{Disk, MemoryDisk};
use terrane_mpt::{
    Accesses, Account, ChangeSet, Error, KeccakMpt, MemoryTrie, NodeSet, PartialTrie,
    PartialTrieError, State, StatelessState, Witness, WitnessError,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::chain::{self, DIR, Model, ModelAccount, Step, apply, draw_block, options};

/// Reads of a block, with what the state before it has.
#[derive(Default)]
struct Reads {
    accounts: BTreeMap<Address, Option<Account>>,
    slots: BTreeMap<(Address, B256), U256>,
}

fn change_set(steps: &[Step]) -> ChangeSet {
    let mut changes = ChangeSet::default();
    for step in steps {
        match step {
            Step::Set(address, nonce, balance, code_hash) => {
                let account = Account::new(*nonce, *balance);
                let account = code_hash.map_or(account, |hash| account.code_hash(hash));
                changes.set_account(*address, &account);
            }
            Step::Slot(address, slot, value) => changes.set_slot(*address, *slot, *value),
            Step::Delete(address) => changes.delete_account(*address),
        }
    }
    changes
}

fn draw_reads(rng: &mut impl Draw, model: &Model) -> Reads {
    let mut reads = Reads::default();
    for _ in 0..rng.below(8) {
        let address = Address::repeat_byte(rng.below(44) as u8);
        let account = model.get(&address);
        reads.accounts.insert(address, account.map(ModelAccount::account));
        for _ in 0..rng.below(4) {
            let slot = B256::from(U256::from(rng.below(14)));
            let value = account.and_then(|account| account.slots.get(&slot)).copied();
            reads.slots.insert((address, slot), value.unwrap_or_default());
        }
    }
    reads
}

/// A block with its witness.
struct Recorded {
    before: B256,
    after: B256,
    steps: Vec<Step>,
    reads: Reads,
    witness: Witness,
}

/// Commits a random block and records it.
fn record(rng: &mut impl Draw, state: &mut State, model: &mut Model) -> Recorded {
    let before = chain::root(model);
    let reads = draw_reads(rng, model);
    let steps = draw_block(rng, model);
    let (height, parent) = match state.tip() {
        Some(tip) => (tip.height + 1, tip.hash),
        None => (0, B256::ZERO),
    };
    let mut block = state.block(height, parent).unwrap();
    for (address, account) in &reads.accounts {
        assert_eq!(block.account(address).unwrap(), *account);
    }
    for ((address, slot), value) in &reads.slots {
        assert_eq!(block.slot(address, slot).unwrap(), *value);
    }
    block.set_changes(change_set(&steps));
    let witness = block.witness(&[]).unwrap();
    assert_eq!(block.witness(&[]).unwrap(), witness);
    let after = block.commit(chain::hash(height, 0)).unwrap().block.root;
    apply(model, &steps);
    assert_eq!(after, chain::root(model));
    Recorded { before, after, steps, reads, witness }
}

/// Checks that nothing a witness gives is false; returns whether everything was given.
fn check(recorded: &Recorded, witness: &Witness) -> bool {
    let state = StatelessState::new(recorded.before, witness);
    let mut is_whole = true;
    for (address, account) in &recorded.reads.accounts {
        match state.account(address) {
            Ok(found) => assert_eq!(found, *account),
            Err(_) => is_whole = false,
        }
    }
    for ((address, slot), value) in &recorded.reads.slots {
        match state.slot(address, slot) {
            Ok(found) => assert_eq!(found, *value),
            Err(_) => is_whole = false,
        }
    }
    match state.apply(&change_set(&recorded.steps)) {
        Ok(root) => assert_eq!(root, recorded.after),
        Err(_) => is_whole = false,
    }
    is_whole
}

#[test]
fn the_witness_of_a_block_gives_its_reads_and_its_root_and_nothing_false() {
    let name = "the_witness_of_a_block_gives_its_reads_and_its_root_and_nothing_false";
    for_each_seed(name, by_effort(3, 60), |rng, _| {
        let mut state = chain::memory_state();
        let mut model = Model::new();
        let mut blocks = Vec::new();
        for _ in 0..10 {
            let recorded = record(rng, &mut state, &mut model);
            assert!(check(&recorded, &recorded.witness));
            let json = recorded.witness.to_json();
            assert_eq!(Witness::from_json(&json).unwrap(), recorded.witness);

            // Each node is needed.
            for at in 0..recorded.witness.state.len() {
                let mut witness = recorded.witness.clone();
                witness.state.remove(at);
                assert!(!check(&recorded, &witness));
            }
            blocks.push(recorded);
        }

        for _ in 0..by_effort(200, 2_000) {
            let recorded = rng.pick(&blocks);
            let mut witness = recorded.witness.clone();
            for _ in 0..=rng.below(3) {
                let other = rng.pick(&blocks);
                mutate(rng, &mut witness.state, &other.witness.state);
            }
            check(recorded, &witness);
        }
    });
}

fn mutate(rng: &mut impl Draw, nodes: &mut Vec<Bytes>, others: &[Bytes]) {
    if nodes.is_empty() {
        nodes.extend_from_slice(others);
        return;
    }
    let at = rng.index(nodes.len());
    match rng.below(4) {
        0 => drop(nodes.remove(at)),
        1 if !others.is_empty() => nodes[at] = rng.pick(others).clone(),
        _ => {
            let mut bytes = nodes[at].to_vec();
            let bit = rng.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            nodes[at] = bytes.into();
        }
    }
}

#[test]
fn witnesses_of_older_heights_are_those_of_their_blocks() {
    let name = "witnesses_of_older_heights_are_those_of_their_blocks";
    for_each_seed(name, by_effort(2, 30), |rng, _| {
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let options = options().history(true);
        let mut state = State::open(disk, Path::new(DIR), &options).unwrap();
        let mut model = Model::new();
        let blocks: Vec<Recorded> = (0..6).map(|_| record(rng, &mut state, &mut model)).collect();
        for (height, recorded) in blocks.iter().enumerate().skip(1) {
            let mut reads = Accesses::default();
            recorded.reads.accounts.keys().for_each(|address| reads.add_account(address));
            for (address, slot) in recorded.reads.slots.keys() {
                reads.add_slot(address, slot);
            }
            let before = state.at(height as u64 - 1).unwrap();
            let changes = change_set(&recorded.steps);
            assert_eq!(before.witness(&reads, &changes, &[]).unwrap(), recorded.witness);
        }
    });
}

#[test]
fn codes_and_headers_are_found_by_their_hashes() {
    let mut state = chain::memory_state();
    let mut block = state.block(0, B256::ZERO).unwrap();
    let hash = block.set_code(b"code");
    block.set_account(Address::ZERO, &Account::default().code_hash(hash));
    drop(block.commit(chain::hash(0, 0)).unwrap());

    let header = |parent: B256, root: B256| {
        let mut out = Vec::new();
        let fields = [parent, B256::ZERO, B256::ZERO, root];
        let payload_length = fields.iter().map(Encodable::length).sum();
        Header { list: true, payload_length }.encode(&mut out);
        for field in fields {
            field.encode(&mut out);
        }
        Bytes::from(out)
    };
    let old = header(B256::ZERO, B256::ZERO);
    let parent = header(keccak256(&old), state.root());
    let headers = [old.clone(), parent.clone()];
    let mut block = state.block(1, chain::hash(0, 0)).unwrap();
    assert_eq!(block.code(&hash).unwrap().unwrap(), b"code"[..]);
    let witness = block.witness(&headers).unwrap();
    assert_eq!(witness.codes, [Bytes::from_static(b"code")]);

    let (hashes, root) = witness.check_headers(keccak256(&parent)).unwrap();
    assert_eq!(hashes, headers.iter().map(keccak256).collect::<Vec<_>>());
    let stateless = StatelessState::new(root, &witness);
    assert_eq!(stateless.code(&hash).unwrap(), b"code"[..]);
    let other = B256::repeat_byte(1);
    assert_eq!(stateless.code(&other), Err(WitnessError::MissingCode { hash: other }));

    for (headers, parent) in [
        (vec![], keccak256(&parent)),
        (vec![parent.clone()], keccak256(&old)),
        (vec![parent.clone(), old.clone()], keccak256(&parent)),
        (vec![old.clone(), old.clone(), parent.clone()], keccak256(&parent)),
        (vec![Bytes::from_static(b"header")], keccak256(b"header")),
    ] {
        let witness = Witness::new(vec![], vec![], headers);
        let refused = witness.check_headers(parent);
        assert!(matches!(refused, Err(WitnessError::InvalidHeader { .. })), "{refused:?}");
    }
}

#[test]
fn slots_of_an_account_that_does_not_exist_are_refused() {
    let mut state = chain::memory_state();
    let mut block = state.block(0, B256::ZERO).unwrap();
    block.set_slot(Address::ZERO, B256::ZERO, U256::from(1));
    assert!(matches!(block.witness(&[]), Err(Error::SlotWithoutAccount { .. })));
    let stateless = StatelessState::new(terrane_mpt::EMPTY_ROOT, &Witness::default());
    let mut changes = ChangeSet::default();
    changes.set_slot(Address::ZERO, B256::ZERO, U256::from(1));
    let refused = stateless.apply(&changes);
    assert!(matches!(refused, Err(WitnessError::SlotWithoutAccount { .. })));
}

/// Keys that share long prefixes, so that leaves and branches are embedded.
fn draw_key(rng: &mut impl Draw) -> B256 {
    let mut key = B256::ZERO;
    for _ in 0..=rng.below(3) {
        let place = *rng.pick(&[0, 1, 15, 30, 31, 31]);
        key[place] = *rng.pick(&[0, 1, 2, 16, 17, 255]);
    }
    key
}

#[test]
fn partial_tries_with_embedded_nodes_have_the_roots_of_whole_tries() {
    let name = "partial_tries_with_embedded_nodes_have_the_roots_of_whole_tries";
    for_each_seed(name, by_effort(20, 600), |rng, _| {
        let mut trie = MemoryTrie::<KeccakMpt>::default();
        for _ in 0..20 {
            let mut changes = BTreeMap::new();
            for _ in 0..=rng.below(8) {
                let length = *rng.pick(&[1, 1, 2, 40]);
                let value = (!rng.chance(1, 2)).then(|| rng.bytes(length));
                changes.insert(draw_key(rng), value);
            }
            let before = trie.root();
            let mut known: BTreeSet<B256> = changes.keys().copied().collect();
            let root = loop {
                let proofs = known.iter().flat_map(|key| trie.prove(key.as_slice()).unwrap());
                let nodes = NodeSet::of(&proofs.map(Bytes::from).collect::<Vec<_>>());
                match partial_root(&nodes, before, &changes) {
                    Ok(root) => break root,
                    Err(PartialTrieError::Missing { path, .. }) => {
                        // A key below the node; there is one that was not known.
                        let starts = |key: &[u8]| {
                            let digits = key.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                            digits.take(path.len()).collect::<Vec<_>>() == path[..]
                        };
                        let below = trie.iter().find(|(key, _)| starts(key)).unwrap().0;
                        assert!(known.insert(B256::from_slice(below)));
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            let changes: Vec<_> =
                changes.into_iter().map(|(key, value)| (key.to_vec(), value)).collect();
            assert_eq!(root, trie.apply(&changes).unwrap());
        }
    });
}

fn partial_root(
    nodes: &NodeSet,
    before: B256,
    changes: &BTreeMap<B256, Option<Vec<u8>>>,
) -> Result<B256, PartialTrieError> {
    let mut partial = PartialTrie::new(nodes, before);
    for (key, value) in changes {
        if let Some(value) = value {
            partial.insert(key, value.clone())?;
        }
    }
    for key in changes.keys().filter(|key| changes[*key].is_none()) {
        partial.remove(key)?;
    }
    Ok(partial.root())
}

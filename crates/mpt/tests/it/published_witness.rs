//! The published witness of mainnet block 23,587,691.
//!
//! Goal: the root before the block is among the nodes; every account and slot that the witness has
//! is read from it; after changes of many accounts, the root is that of an independent trie, which
//! `alloy-trie` builds from all leaves and unknown hashes of the witness. Method: a decoder of its
//! own lists the nodes; balances, nonces and slots of accounts that the block names are changed.

use std::collections::BTreeMap;
use std::io::Read;

use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use alloy_rlp::{Header, PayloadView};
use alloy_trie::HashBuilder;
use nybbles::Nibbles;
use serde_json::Value;
use terrane_mpt::{Account, ChangeSet, EMPTY_ROOT, StatelessState, Witness, WitnessError};

fn block() -> Value {
    let packed = include_bytes!("../../../../data/ethereum-block-23587691.json.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> Vec<Bytes> {
    let bytes = |item: &Value| Bytes::from(hex::decode(item.as_str().unwrap()).unwrap());
    value.as_array().unwrap().iter().map(bytes).collect()
}

/// The leaves of a trie and the hashes of unknown nodes, by their paths.
#[derive(Default)]
struct Listed {
    leaves: BTreeMap<Vec<u8>, Vec<u8>>,
    unknown: BTreeMap<Vec<u8>, B256>,
}

impl Listed {
    /// Lists what is below a reference: a hash, or an embedded node.
    fn visit(&mut self, nodes: &BTreeMap<B256, Bytes>, path: &[u8], mut reference: &[u8]) {
        if reference[0] >= 0xc0 {
            return self.visit_node(nodes, path, reference);
        }
        let hash = Header::decode_bytes(&mut reference, false).unwrap();
        if hash.is_empty() {
            return;
        }
        let hash = B256::from_slice(hash);
        match nodes.get(&hash) {
            Some(node) => self.visit_node(nodes, path, node),
            None => drop(self.unknown.insert(path.to_vec(), hash)),
        }
    }

    fn visit_node(&mut self, nodes: &BTreeMap<B256, Bytes>, path: &[u8], mut node: &[u8]) {
        let PayloadView::List(items) = Header::decode_raw(&mut node).unwrap() else { panic!() };
        if items.len() == 17 {
            for (digit, item) in items[..16].iter().enumerate() {
                self.visit(nodes, &[path, &[digit as u8]].concat(), item);
            }
            return;
        }
        let mut prefix = items[0];
        let prefix = Header::decode_bytes(&mut prefix, false).unwrap();
        let digits: Vec<u8> = prefix.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
        let rest = if digits[0] % 2 == 1 { &digits[1..] } else { &digits[2..] };
        let path = [path, rest].concat();
        if digits[0] < 2 {
            return self.visit(nodes, &path, items[1]);
        }
        let mut value = items[1];
        let value = Header::decode_bytes(&mut value, false).unwrap();
        self.leaves.insert(path, value.to_vec());
    }

    /// The root with `alloy-trie`.
    fn root(&self) -> B256 {
        let leaves = self.leaves.iter().map(|(path, value)| (path, Ok(value)));
        let unknown = self.unknown.iter().map(|(path, hash)| (path, Err(hash)));
        let parts: BTreeMap<_, _> = leaves.chain(unknown).collect();
        let mut builder = HashBuilder::default();
        for (path, part) in parts {
            let path = Nibbles::from_nibbles(path);
            match part {
                Ok(value) => builder.add_leaf(path, value),
                Err(hash) => builder.add_branch(path, *hash, false),
            }
        }
        builder.root()
    }
}

fn digits(hash: B256) -> Vec<u8> {
    hash.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
}

fn key(path: &[u8]) -> B256 {
    B256::from_slice(&path.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>())
}

#[test]
fn the_witness_of_a_block_of_the_main_network_is_read_and_changed() {
    let block = block();
    let root: B256 = block["prev_state_root"].as_str().unwrap().parse().unwrap();
    assert_eq!(root.to_string()[..10], *"0x44e6f38a");
    let states = list(&block["states"]);
    let witness = Witness::new(states.clone(), list(&block["codes"]), vec![]);
    assert_eq!((states.len(), witness.codes.len()), (864, 20));
    let nodes: BTreeMap<B256, Bytes> =
        states.iter().map(|node| (keccak256(node), node.clone())).collect();
    let state = StatelessState::new(root, &witness);

    let mut accounts = Listed::default();
    accounts.visit(&nodes, &[], &alloy_rlp::encode(root));
    assert_eq!(accounts.root(), root);
    assert!(50 < accounts.leaves.len(), "{}", accounts.leaves.len());
    let mut slots = 0;
    for (path, leaf) in &accounts.leaves {
        let account = state.account_by_hash(&key(path)).unwrap().unwrap();
        assert_eq!(account.leaf_value(), *leaf);
        let mut storage = Listed::default();
        if account.storage_root != EMPTY_ROOT && nodes.contains_key(&account.storage_root) {
            storage.visit(&nodes, &[], &alloy_rlp::encode(account.storage_root));
            assert_eq!(storage.root(), account.storage_root);
            slots += storage.leaves.len();
        }
        // Codes of contracts that ran are there.
        if let Ok(code) = state.code(&account.code_hash) {
            assert_eq!(keccak256(code), account.code_hash);
        }
    }
    assert!(50 < slots, "{slots}");

    // Accounts that the block names: receivers of transactions and of withdrawals.
    let mut named: Vec<Address> = Vec::new();
    let to = |transaction: &Value| {
        let kind = transaction["transaction"].as_object().unwrap().values().next().unwrap().clone();
        kind["to"].as_str().map(|text| text.parse::<Address>().unwrap())
    };
    named.extend(block["transactions"].as_array().unwrap().iter().filter_map(to));
    let address = |item: &Value| item["address"].as_str().unwrap().parse::<Address>().unwrap();
    named.extend(block["withdrawals"].as_array().unwrap().iter().map(address));
    named.push(block["header"]["beneficiary"].as_str().unwrap().parse().unwrap());
    named.sort();
    named.dedup();
    assert!(20 < named.len(), "{}", named.len());

    let mut changes = ChangeSet::default();
    for (at, address) in named.iter().enumerate() {
        let account = state.account(address).unwrap().unwrap_or_default();
        let after = account.nonce(account.nonce + 1).balance(account.balance + U256::from(at));
        changes.set_account(*address, &after);
        accounts.leaves.insert(digits(keccak256(address)), after.leaf_value());
    }
    assert_eq!(state.apply(&changes).unwrap(), accounts.root());
    assert_ne!(accounts.root(), root);

    // Slots of a contract whose storage is known: numbers whose paths the witness has.
    let mut set = 0;
    for address in &named {
        let account = state.account(address).unwrap().unwrap_or_default();
        if account.storage_root == EMPTY_ROOT || !nodes.contains_key(&account.storage_root) {
            continue;
        }
        let mut storage = Listed::default();
        storage.visit(&nodes, &[], &alloy_rlp::encode(account.storage_root));
        for number in 0..400_u64 {
            let slot = B256::from(U256::from(number));
            match state.slot(address, &slot) {
                Ok(value) => {
                    let after = value + U256::from(1);
                    changes.set_slot(*address, slot, after);
                    storage.leaves.insert(digits(keccak256(slot)), alloy_rlp::encode(after));
                    set += 1;
                }
                Err(WitnessError::MissingNode { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let leaf = accounts.leaves.get_mut(&digits(keccak256(address))).unwrap();
        let account = Account::from_leaf_value(leaf).unwrap().storage_root(storage.root());
        *leaf = account.leaf_value();
    }
    assert!(0 < set);
    assert_eq!(state.apply(&changes).unwrap(), accounts.root());

    // Without any one of its nodes, the witness gives the same root or none.
    for at in (0..states.len()).step_by(97) {
        let mut left = states.clone();
        left.remove(at);
        let state = StatelessState::new(root, &Witness::new(left, vec![], vec![]));
        match state.apply(&changes) {
            Ok(found) => assert_eq!(found, accounts.root()),
            Err(error) => assert!(matches!(error, WitnessError::MissingNode { .. }), "{error}"),
        }
    }
}

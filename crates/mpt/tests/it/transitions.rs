//! State transitions of the published blockchain tests.
//!
//! Goal: `pre` has its root, the difference to `post` leads to the root of `post`, and a reorg
//! leads back to both. Method: all transitions one after the other in one state, each undone to the
//! empty state; a seeded sample of them unless all effort is asked for.

use std::io::Read;

use alloy_primitives::{Address, B256, U256};
use serde_json::Value;
use terrane_testkit::effort::places;

use crate::chain::{Model, ModelAccount, commit, difference, memory_state};

/// Transitions in the file.
const TRANSITIONS: usize = 2507;

fn lines() -> Vec<String> {
    let packed = include_bytes!("../../../../data/ethereum-state-transitions.jsonl.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The line with its numbers as texts: balances have more than 64 bits.
fn with_texts(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 64);
    let mut is_text = false;
    let mut is_number = false;
    for character in line.chars() {
        let begins = !is_text && character.is_ascii_digit();
        if begins != is_number {
            out.push('"');
        }
        is_number = begins;
        is_text ^= character == '"';
        out.push(character);
    }
    out
}

fn model(accounts: &Value) -> Model {
    let account = |(address, account): (&String, &Value)| {
        let slot = |slot: &Value| {
            let number = |text: &Value| U256::from_str_radix(text.as_str().unwrap(), 16).unwrap();
            (B256::from(number(&slot[0])), number(&slot[1]))
        };
        let code = account[2].as_str().unwrap();
        let account = ModelAccount {
            nonce: account[0].as_str().unwrap().parse().unwrap(),
            balance: account[1].as_str().unwrap().parse().unwrap(),
            code_hash: (!code.is_empty()).then(|| code.parse().unwrap()),
            slots: account[3].as_array().unwrap().iter().map(slot).collect(),
        };
        (address.parse::<Address>().unwrap(), account)
    };
    accounts.as_object().unwrap().iter().map(account).collect()
}

#[test]
fn published_transitions_lead_to_their_roots_and_back() {
    let lines = lines();
    assert_eq!(lines.len(), TRANSITIONS);
    let mut state = memory_state();
    let empty = commit(&mut state, &[], 0).unwrap().block.root;

    for index in places(0..TRANSITIONS as u64, 40, 28) {
        let test: Value = serde_json::from_str(&with_texts(&lines[index as usize])).unwrap();
        let name = test["name"].as_str().unwrap();
        let (pre, post) = (model(&test["pre"]), model(&test["post"]));
        let root = |key: &str| test[key].as_str().unwrap().parse::<B256>().unwrap();

        let steps = difference(&Model::new(), &pre);
        let before = commit(&mut state, &steps, index).unwrap().block.root;
        assert_eq!(before, root("pre_root"), "{index} {name}: before");
        let after = commit(&mut state, &difference(&pre, &post), index).unwrap().block.root;
        assert_eq!(after, root("post_root"), "{index} {name}: after");

        assert_eq!(state.reorg_to(1).unwrap().block.root, root("pre_root"), "{name}");
        assert_eq!(state.reorg_to(0).unwrap().block.root, empty, "{name}");
    }
    assert!(state.verify().unwrap().is_clean());
}

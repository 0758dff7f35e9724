//! Published vectors of tries and RLP.
//!
//! Goal: each root of the published trie tests, in the order of the file, in any order, built
//! bottom-up and by single changes. Method: the files in `vectors/`, of `ethereum/tests`.

use alloy_primitives::{B256, hex, keccak256};
use alloy_rlp::{Decodable, Encodable, Header, PayloadView};
use serde_json::Value;
use terrane_mpt::{KeccakMpt, MemoryTrie, TrieBuilder};

type Change = (Vec<u8>, Option<Vec<u8>>);

fn file(text: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

/// A text of a vector: hexadecimal after `0x`, or the characters themselves.
fn bytes(text: &str) -> Vec<u8> {
    match text.strip_prefix("0x") {
        Some(digits) => hex::decode(digits).unwrap(),
        None => text.as_bytes().to_vec(),
    }
}

fn changes(input: &Value, is_secure: bool) -> Vec<Change> {
    let change = |key: &str, value: Option<&str>| {
        let key = bytes(key);
        let key = if is_secure { keccak256(key).to_vec() } else { key };
        (key, value.map(bytes).filter(|value| !value.is_empty()))
    };
    match input {
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| change(key, value.as_str())).collect()
        }
        Value::Array(entries) => entries
            .iter()
            .map(|entry| change(entry[0].as_str().unwrap(), entry[1].as_str()))
            .collect(),
        _ => panic!("neither a list nor an object"),
    }
}

fn check_roots(text: &str, is_secure: bool) {
    let tests = file(text);
    assert!(!tests.is_empty());
    for (name, test) in &tests {
        let root: B256 = test["root"].as_str().unwrap().parse().unwrap();
        let changes = changes(&test["in"], is_secure);

        let mut trie = MemoryTrie::<KeccakMpt>::default();
        for change in &changes {
            trie.apply(std::slice::from_ref(change)).unwrap();
            trie.verify().unwrap();
        }
        assert_eq!(trie.root(), root, "{name}, change by change");

        let mut builder = TrieBuilder::<KeccakMpt>::default();
        trie.iter().for_each(|(key, value)| builder.push(key, value).unwrap());
        assert_eq!(builder.finish().0, root, "{name}, built at once");

        let mut backwards = MemoryTrie::<KeccakMpt>::default();
        for (key, value) in trie.iter().collect::<Vec<_>>().into_iter().rev() {
            backwards.apply(&[(key.to_vec(), Some(value.to_vec()))]).unwrap();
        }
        assert_eq!(backwards.root(), root, "{name}, backwards");
    }
}

#[test]
fn published_roots_of_ordered_changes() {
    check_roots(include_str!("../vectors/trietest.json"), false);
    check_roots(include_str!("../vectors/trietest_secureTrie.json"), true);
}

#[test]
fn published_roots_of_entries_in_any_order() {
    check_roots(include_str!("../vectors/trieanyorder.json"), false);
    check_roots(include_str!("../vectors/trieanyorder_secureTrie.json"), true);
    check_roots(include_str!("../vectors/hex_encoded_securetrie_test.json"), true);
}

#[test]
fn published_neighbours_of_keys() {
    for (name, test) in &file(include_str!("../vectors/trietestnextprev.json")) {
        let mut trie = MemoryTrie::<KeccakMpt>::default();
        let entries = test["in"].as_array().unwrap();
        let entry = |key: &Value| (bytes(key.as_str().unwrap()), Some(b"value".to_vec()));
        trie.apply(&entries.iter().map(entry).collect::<Vec<_>>()).unwrap();

        let neighbours = test["tests"].as_array().unwrap();
        assert!(!neighbours.is_empty());
        for neighbour in neighbours {
            let text = |index: usize| neighbour[index].as_str().unwrap();
            let key = text(0).as_bytes();
            let previous = trie.previous_key(key).unwrap_or_default();
            assert_eq!(previous, text(1).as_bytes(), "{name}: before {}", text(0));
            assert_eq!(trie.next_key(key).unwrap_or_default(), text(2).as_bytes());
        }
    }
}

/// The encoding of an item as the vectors write it: text, number, big number (`#`), list.
fn encode(item: &Value, out: &mut Vec<u8>) {
    match item {
        Value::String(text) => match text.strip_prefix('#') {
            Some(number) => number.parse::<alloy_primitives::U512>().unwrap().encode(out),
            None => text.as_bytes().encode(out),
        },
        Value::Number(number) => number.as_u64().unwrap().encode(out),
        Value::Array(items) => {
            let mut payload = Vec::new();
            for item in items {
                encode(item, &mut payload);
            }
            Header { list: true, payload_length: payload.len() }.encode(out);
            out.extend(payload);
        }
        _ => panic!("an item of no kind"),
    }
}

#[test]
fn published_encodings_of_rlp() {
    for (name, test) in &file(include_str!("../vectors/rlptest.json")) {
        let mut out = Vec::new();
        encode(&test["in"], &mut out);
        assert_eq!(out, bytes(test["out"].as_str().unwrap()), "{name}");
        assert!(is_rlp(&out), "{name}");
    }
}

/// Whether the bytes are one item, checked to its leaves.
fn is_rlp(mut bytes: &[u8]) -> bool {
    let Ok(item) = Header::decode_raw(&mut bytes) else { return false };
    let items = match item {
        PayloadView::String(_) => Vec::new(),
        PayloadView::List(items) => items,
    };
    bytes.is_empty() && items.into_iter().all(is_rlp)
}

#[test]
fn published_bytes_that_are_no_rlp_are_refused() {
    let tests = file(include_str!("../vectors/invalidRLPTest.json"));
    assert!(10 <= tests.len());
    for (name, test) in &tests {
        let text = test["out"].as_str().unwrap();
        let bytes = hex::decode(text.trim_start_matches("0x")).unwrap();
        assert!(!is_rlp(&bytes), "{name}");
        assert!(u64::decode(&mut &bytes[..]).is_err(), "{name}");
        assert!(terrane_mpt::Account::from_slim(&bytes).is_err(), "{name}");
        assert!(terrane_mpt::Account::from_leaf_value(&bytes).is_err(), "{name}");
    }
}

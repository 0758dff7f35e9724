//! Encodings of accounts.
//!
//! Goal: the leaf form is that of `alloy-trie`, both forms read back, and no other bytes are read
//! as an account. Method: seeded accounts with each byte of their forms changed.

use alloy_trie::TrieAccount;
use terrane_mpt::{Account, B256, EMPTY_CODE_HASH, EMPTY_ROOT, ErrorKind, U256};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

fn account(rng: &mut impl Draw) -> Account {
    let nonce = rng.below(u64::MAX) >> rng.below(64);
    let balance = U256::from(rng.below(u64::MAX)) << (rng.below(192) as usize);
    let hash = B256::from_slice(&rng.bytes(32));
    let mut account = Account::new(if rng.chance(1, 4) { 0 } else { nonce }, balance);
    if rng.chance(1, 2) {
        account = account.storage_root(hash);
    }
    if rng.chance(1, 2) {
        account = account.code_hash(hash);
    }
    account
}

#[test]
fn both_forms_read_back_and_only_they() {
    for_each_seed("both_forms_read_back_and_only_they", 50, |rng, _| {
        let account = account(rng);
        let Account { nonce, balance, storage_root, code_hash, .. } = account;
        let oracle = TrieAccount { nonce, balance, storage_root, code_hash };
        let leaf = account.leaf_value();
        assert_eq!(leaf, alloy_rlp::encode(oracle));
        assert_eq!(Account::from_leaf_value(&leaf).unwrap(), account);

        let slim = account.to_slim();
        assert!(slim.len() <= leaf.len());
        assert_eq!(Account::from_slim(&slim).unwrap(), account);
        for at in 0..slim.len() {
            let mut damaged = slim.clone();
            damaged[at] ^= 1 << rng.below(8);
            match Account::from_slim(&damaged) {
                Ok(other) => assert_eq!(other.to_slim(), damaged),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            }
            assert!(Account::from_slim(&slim[..at]).is_err());
        }
    });
}

#[test]
fn the_empty_account_has_four_empty_items() {
    let empty = Account::default();
    assert!(empty.is_empty());
    assert_eq!(empty.to_slim(), [0xc4, 0x80, 0x80, 0x80, 0x80]);
    assert_eq!(empty.storage_root, EMPTY_ROOT);
    assert_eq!(empty.code_hash, EMPTY_CODE_HASH);
    assert!(!Account::new(1, U256::ZERO).is_empty());
    assert!(!Account::new(0, U256::from(1)).is_empty());
    assert!(!Account::default().code_hash(B256::ZERO).is_empty());

    // A hash that stands for nothing is left out in the slim form, and only there.
    let mut long = vec![0xf8, 68, 0x80, 0x80, 0xa0];
    long.extend(EMPTY_ROOT);
    long.push(0xa0);
    long.extend(EMPTY_CODE_HASH);
    assert!(Account::from_slim(&long).is_err());
    assert_eq!(Account::from_leaf_value(&long).unwrap(), empty);
    assert!(Account::from_leaf_value(&empty.to_slim()).is_err());
}

//! Format of an unspent output in the table, and the hash of the set of outputs.
//!
//! | part  | bytes                                                                              |
//! |-------|------------------------------------------------------------------------------------|
//! | key   | txid (32, internal order) ‖ vout (u32-BE, so that key order is Bitcoin Core's)     |
//! | value | amount in satoshi (i64-LE) ‖ height (u32-LE) ‖ coinbase (u8, 0 or 1) ‖ script      |

use bitcoin::hashes::Hash as _;
use bitcoin::{OutPoint, ScriptBuf, TxOut, Txid};
use sha2::{Digest as _, Sha256};

/// Bytes of a key.
pub(super) const KEY_SIZE: usize = 36;
/// A script longer than this can never be satisfied, so its output is not stored.
const SCRIPT_SIZE_MAX: usize = 10_000;
const OP_RETURN: u8 = 0x6a;
/// Bytes of a value before its script.
const FIXED_SIZE: usize = 13;

/// A key of the table.
pub(super) type Key = [u8; KEY_SIZE];

/// Returns the key of an output.
#[expect(clippy::big_endian_bytes, reason = "so that key order is Bitcoin Core's order")]
pub(super) fn key(outpoint: &OutPoint) -> Key {
    let mut key = [0; KEY_SIZE];
    let (txid, vout) = key.split_at_mut(32);
    txid.copy_from_slice(outpoint.txid.as_byte_array());
    vout.copy_from_slice(&outpoint.vout.to_be_bytes());
    key
}

/// Returns whether an output with this script can never be spent and is left out of the table.
pub(super) fn is_unspendable(script: &ScriptBuf) -> bool {
    // Nobody can ever spend such a coin, so the set leaves it out.
    script.as_bytes().first() == Some(&OP_RETURN) || script.len() > SCRIPT_SIZE_MAX
}

/// Returns the value of an output made at `height`.
pub(super) fn value(output: &TxOut, height: u32, coinbase: bool) -> Vec<u8> {
    let script = output.script_pubkey.as_bytes();
    let mut value = Vec::with_capacity(FIXED_SIZE + script.len());
    value.extend(output.value.to_sat().to_le_bytes());
    value.extend(height.to_le_bytes());
    value.push(u8::from(coinbase));
    value.extend(script);
    value
}

/// An entry of the table, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coin<'a> {
    txid: [u8; 32],
    vout: u32,
    amount_sat: u64,
    height: u32,
    coinbase: bool,
    script: &'a [u8],
}

impl<'a> Coin<'a> {
    /// Takes an entry apart; `None` if it is not one of ours.
    #[expect(clippy::big_endian_bytes, reason = "the key's order")]
    pub(super) fn parse(key: &[u8], value: &'a [u8]) -> Option<Self> {
        let (txid, vout) = key.split_first_chunk::<32>()?;
        let (amount, rest) = value.split_first_chunk::<8>()?;
        let (height, rest) = rest.split_first_chunk::<4>()?;
        let (&coinbase, script) = rest.split_first()?;

        Some(Self {
            txid: *txid,
            vout: u32::from_be_bytes(vout.try_into().ok()?),
            amount_sat: u64::from_le_bytes(*amount),
            height: u32::from_le_bytes(*height),
            coinbase: match coinbase {
                0 => false,
                1 => true,
                _ => return None,
            },
            script,
        })
    }
}

/// Bitcoin Core's `hash_serialized_3`: double SHA-256 over the coins in key order, each as
/// txid ‖ vout (u32-LE) ‖ height · 2 + coinbase (u32-LE) ‖ amount (i64-LE) ‖ script with its
/// length as a compact size.
#[derive(Debug, Clone, Default)]
pub(super) struct SetHash {
    hash: Sha256,
    total_sat: u64,
}

impl SetHash {
    /// Adds a coin. Coins must come in key order.
    pub(super) fn add(&mut self, coin: &Coin<'_>) {
        // Height and coinbase share a number, as in Bitcoin Core.
        let code = coin.height.wrapping_shl(1) | u32::from(coin.coinbase);
        self.hash.update(coin.txid);
        self.hash.update(coin.vout.to_le_bytes());
        self.hash.update(code.to_le_bytes());
        self.hash.update(coin.amount_sat.to_le_bytes());
        self.hash.update(bitcoin::consensus::serialize(&bitcoin::VarInt::from(coin.script.len())));
        self.hash.update(coin.script);
        // Each amount is at most 21 · 10^14, but a test network's sum has no bound.
        self.total_sat = self.total_sat.saturating_add(coin.amount_sat);
    }

    /// Returns the sum of the amounts added, in satoshi.
    pub(super) fn total_sat(&self) -> u64 {
        self.total_sat
    }

    /// Returns the hash in display order.
    pub(super) fn finish(self) -> String {
        // Bitcoin Core hashes twice and shows the bytes in reverse.
        let hash = Sha256::digest(self.hash.finalize());
        Txid::from_byte_array(hash.into()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use bitcoin::Amount;

    use super::*;

    #[test]
    fn an_entry_is_read_back_and_a_cut_one_is_refused() {
        let outpoint = OutPoint { txid: Txid::from_byte_array([7; 32]), vout: 0x0102_0304 };
        let script_pubkey = ScriptBuf::from_bytes(vec![0x51, 0x52]);
        let output = TxOut { value: Amount::from_sat(5_000_000_000), script_pubkey };
        let key = key(&outpoint);
        let value = value(&output, 91_842, true);
        assert_eq!(key[32..], [1, 2, 3, 4]);
        let coin = Coin::parse(&key, &value).unwrap();
        assert_eq!((coin.vout, coin.amount_sat, coin.height), (0x0102_0304, 5_000_000_000, 91_842));
        assert_eq!((coin.coinbase, coin.script), (true, &[0x51, 0x52][..]));

        for size in 0..FIXED_SIZE {
            assert_eq!(Coin::parse(&key, &value[..size]), None);
        }

        assert_eq!(Coin::parse(&key[1..], &value), None);
    }

    #[test]
    fn only_scripts_that_nobody_can_satisfy_are_left_out() {
        let unspendable = |bytes: Vec<u8>| is_unspendable(&ScriptBuf::from_bytes(bytes));
        assert!(unspendable(vec![OP_RETURN]));
        assert!(unspendable(vec![0; 10_001]));
        assert!(!unspendable(vec![0; 10_000]));
        assert!(!unspendable(vec![]));
        assert!(!unspendable(vec![0, OP_RETURN]));
    }
}

//! Small chains of the regression-test network, where a block costs about two hashes.

use std::collections::BTreeMap;

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::constants::genesis_block;
use bitcoin::hashes::Hash as _;
use bitcoin::script::Builder;
use bitcoin::transaction::Version as TxVersion;
use bitcoin::{
    Amount, Block, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxMerkleNode, TxOut,
    Txid, Witness,
};
use sha2::{Digest as _, Sha256};

pub(crate) const MAGIC: [u8; 4] = [0xfa, 0xbf, 0xb5, 0xda];

pub(crate) fn genesis() -> Block {
    genesis_block(Network::Regtest)
}

pub(crate) fn output(sat: u64, script: &[u8]) -> TxOut {
    TxOut { value: Amount::from_sat(sat), script_pubkey: ScriptBuf::from_bytes(script.to_vec()) }
}

/// A coinbase; equal arguments give equal transactions, as in the days before BIP 34.
pub(crate) fn coinbase(tag: &[u8], outputs: Vec<TxOut>) -> Transaction {
    let mut script = Builder::new().into_script().into_bytes();
    script.extend(tag);
    transaction(vec![(OutPoint::null(), script)], outputs)
}

pub(crate) fn spend(sources: &[OutPoint], outputs: Vec<TxOut>) -> Transaction {
    transaction(sources.iter().map(|&source| (source, Vec::new())).collect(), outputs)
}

fn transaction(sources: Vec<(OutPoint, Vec<u8>)>, output: Vec<TxOut>) -> Transaction {
    let input = sources.into_iter().map(|(previous_output, script)| TxIn {
        previous_output,
        script_sig: ScriptBuf::from_bytes(script),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    });
    let input = input.collect();
    Transaction { version: TxVersion::ONE, lock_time: LockTime::ZERO, input, output }
}

/// Mines a block of these transactions, the coinbase first.
pub(crate) fn mine(previous: &Block, txdata: Vec<Transaction>) -> Block {
    let header = Header {
        version: Version::ONE,
        prev_blockhash: previous.block_hash(),
        merkle_root: TxMerkleNode::all_zeros(),
        time: previous.header.time + 600,
        bits: previous.header.bits,
        nonce: 0,
    };
    let mut block = Block { header, txdata };
    block.header.merkle_root = block.compute_merkle_root().unwrap();

    while !block.header.target().is_met_by(block.block_hash()) {
        block.header.nonce += 1;
    }

    block
}

/// Adds `count` blocks with one coinbase each; chains of different names differ.
pub(crate) fn extend(chain: &mut Vec<Block>, name: u8, count: usize) {
    for _ in 0..count {
        let tag = [4, name, chain.len().try_into().unwrap(), 0, 0];
        let coinbase = coinbase(&tag, vec![output(5_000_000_000, &[0x51, name])]);
        chain.push(mine(chain.last().unwrap(), vec![coinbase]));
    }
}

/// A chain of `count` blocks after genesis.
pub(crate) fn chain(name: u8, count: usize) -> Vec<Block> {
    let mut chain = vec![genesis()];
    extend(&mut chain, name, count);
    chain
}

/// A block as it stands in a block file.
pub(crate) fn record(block: &Block) -> Vec<u8> {
    let bytes = bitcoin::consensus::serialize(block);
    let size = u32::try_from(bytes.len()).unwrap().to_le_bytes();
    [MAGIC.as_slice(), &size, &bytes].concat()
}

pub(crate) fn file<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Vec<u8> {
    blocks.into_iter().flat_map(record).collect()
}

/// Height and coinbase flag of an output's block, and the output.
type Coin = (u32, bool, TxOut);

/// The hash of the unspent outputs of a valid chain, the slow and plain way: what Bitcoin Core does
/// with one map from transaction to a map from output number to coin.
pub(crate) fn hash_serialized_3(chain: &[Block]) -> String {
    let mut coins: BTreeMap<[u8; 32], BTreeMap<u32, Coin>> = BTreeMap::new();
    for (height, block) in chain.iter().enumerate().skip(1) {
        for transaction in &block.txdata {
            for input in transaction.input.iter().filter(|_| !transaction.is_coinbase()) {
                let OutPoint { txid, vout } = input.previous_output;
                coins.get_mut(&txid.to_byte_array()).unwrap().remove(&vout).unwrap();
            }
            for (vout, output) in transaction.output.iter().enumerate() {
                let script = output.script_pubkey.as_bytes();
                if script.first() != Some(&0x6a) && script.len() <= 10_000 {
                    let coin =
                        (height.try_into().unwrap(), transaction.is_coinbase(), output.clone());
                    let of_txid = coins.entry(transaction.compute_txid().to_byte_array());
                    of_txid.or_default().insert(vout.try_into().unwrap(), coin);
                }
            }
        }
    }

    let mut hash = Sha256::new();
    for (txid, outputs) in &coins {
        for (vout, (height, coinbase, output)) in outputs {
            hash.update(txid);
            hash.update(vout.to_le_bytes());
            hash.update((2 * height + u32::from(*coinbase)).to_le_bytes());
            hash.update(bitcoin::consensus::serialize(output));
        }
    }

    let hash: [u8; 32] = Sha256::digest(hash.finalize()).into();

    Txid::from_byte_array(hash).to_string()
}

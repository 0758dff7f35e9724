//! Change of the table of unspent outputs by one block.
//!
//! In two steps around one bulk lookup: [`Plan::new`] says which keys it needs, [`Plan::changes`]
//! turns their values into the block's net change. Outputs made and spent within the block never
//! reach the table.

use std::collections::{BTreeMap, HashMap, HashSet};

use bitcoin::{Amount, Block, OutPoint, Txid};

use super::coins::{self, Key};
use crate::ledger::history::NetChange;

/// Fault of a block whose header is good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The bytes after the header are no transactions.
    #[error("the block cannot be read: {0}")]
    Unreadable(#[source] bitcoin::consensus::encode::Error),
    /// The bytes are not the block that the header index knows at this place.
    #[error("the file has changed since its headers were read")]
    Replaced,
    /// The transactions are not those that the header commits to.
    #[error("the Merkle root of its transactions is not the header's")]
    MerkleRoot,
    /// The witnesses are not those that the coinbase commits to.
    #[error("the coinbase commits to other witnesses")]
    WitnessCommitment,
    /// The first transaction is not a coinbase.
    #[error("the first transaction {txid} is not a coinbase")]
    NoCoinbase {
        /// The transaction.
        txid: Txid,
    },
    /// An input spends an output that does not exist or was spent before.
    #[error("transaction {txid}: input {input} spends {outpoint}, which is missing")]
    Missing {
        /// The transaction.
        txid: Txid,
        /// The number of the input.
        input: usize,
        /// The output it spends.
        outpoint: OutPoint,
    },
    /// An output's amount is above all the money there can be.
    #[error("transaction {txid}: output {vout} has an amount of {amount_sat} satoshi")]
    Amount {
        /// The transaction.
        txid: Txid,
        /// The number of the output.
        vout: u32,
        /// The amount.
        amount_sat: u64,
    },
}

/// Counters over the blocks from genesis on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Transactions, coinbases included.
    pub(super) transactions: u64,
    /// Inputs, coinbases not included.
    pub(super) inputs: u64,
    /// Outputs made, whether stored or not.
    pub(super) outputs: u64,
}

impl Counters {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            transactions: self.transactions.saturating_add(other.transactions),
            inputs: self.inputs.saturating_add(other.inputs),
            outputs: self.outputs.saturating_add(other.outputs),
        }
    }
}

/// Checks that a block's transactions are those that its header commits to.
pub(super) fn check_commitments(block: &Block) -> Result<(), Fault> {
    // The Merkle root covers the transactions without their witnesses.
    if !block.check_merkle_root() {
        return Err(Fault::MerkleRoot);
    }
    if !block.check_witness_commitment() {
        return Err(Fault::WitnessCommitment);
    }
    Ok(())
}

/// An input that spends an output of an earlier block.
#[derive(Debug)]
struct Spend {
    key: Key,
    txid: Txid,
    input: usize,
    outpoint: OutPoint,
}

/// A block's effect as far as it can be told without the table.
#[derive(Debug)]
pub(super) struct Plan {
    counters: Counters,
    spends: Vec<Spend>,
    /// Outputs of the coinbase. BIP 30 lets two historical coinbases repeat an earlier one; theirs
    /// are the only outputs that can overwrite, and undoing that needs the value overwritten.
    coinbase_keys: Vec<Key>,
    /// Outputs made here and not spent here.
    created: HashMap<Key, Vec<u8>>,
}

impl Plan {
    pub(super) fn new(block: &Block, height: u32) -> Result<Self, Fault> {
        let mut plan = Self {
            counters: Counters::default(),
            spends: Vec::new(),
            coinbase_keys: Vec::new(),
            created: HashMap::new(),
        };

        // Two inputs must not spend one coin.
        let mut spent = HashSet::new();
        for (index, transaction) in block.txdata.iter().enumerate() {
            let txid = transaction.compute_txid();
            // The first transaction of a block makes new coins and spends none.
            let coinbase = index == 0;
            if coinbase && !transaction.is_coinbase() {
                return Err(Fault::NoCoinbase { txid });
            }
            plan.counters.transactions += 1;
            plan.counters.outputs += transaction.output.len() as u64;

            if !coinbase {
                plan.counters.inputs += transaction.input.len() as u64;
                for (input, source) in transaction.input.iter().enumerate() {
                    let outpoint = source.previous_output;
                    let key = coins::key(&outpoint);
                    // A coin that the block itself creates never gets into the state.
                    if plan.created.remove(&key).is_some() {
                        continue;
                    }
                    if !spent.insert(key) {
                        return Err(Fault::Missing { txid, input, outpoint });
                    }
                    plan.spends.push(Spend { key, txid, input, outpoint });
                }
            }

            for (output, vout) in transaction.output.iter().zip(0u32..) {
                if output.value > Amount::MAX_MONEY {
                    let amount_sat = output.value.to_sat();
                    return Err(Fault::Amount { txid, vout, amount_sat });
                }
                // The genesis coinbase is no part of the set of coins: a quirk of the first client.
                if height == 0 || coins::is_unspendable(&output.script_pubkey) {
                    continue;
                }
                let key = coins::key(&OutPoint { txid, vout });
                plan.created.insert(key, coins::value(output, height, coinbase));
                if coinbase {
                    plan.coinbase_keys.push(key);
                }
            }
        }

        Ok(plan)
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the keys to look up, all at once.
    pub(super) fn keys(&self) -> Vec<&[u8]> {
        let spends = self.spends.iter().map(|spend| &spend.key);
        spends.chain(&self.coinbase_keys).map(<[u8; _]>::as_slice).collect()
    }

    /// Returns the block's net change in key order, given the values of [`keys`](Self::keys).
    pub(super) fn changes(self, values: Vec<Option<Vec<u8>>>) -> Result<Vec<NetChange>, Fault> {
        debug_assert_eq!(values.len(), self.spends.len() + self.coinbase_keys.len());

        let mut values = values.into_iter();
        let mut changes = BTreeMap::new();
        for spend in &self.spends {
            let Spend { key, txid, input, outpoint } = *spend;
            let old = values.next().flatten().ok_or(Fault::Missing { txid, input, outpoint })?;
            changes.insert(key, (Some(old), None));
        }

        for (key, old) in self.coinbase_keys.iter().zip(values) {
            // An earlier coinbase may have had the same identity: its outputs are replaced.
            changes.entry(*key).or_insert((old, None));
        }

        for (key, value) in self.created {
            changes.entry(key).or_insert((None, None)).1 = Some(value);
        }
        let changes = changes.into_iter().filter(|(_, (old, new))| old != new);

        Ok(changes.map(|(key, (old, new))| NetChange { key: key.to_vec(), old, new }).collect())
    }
}

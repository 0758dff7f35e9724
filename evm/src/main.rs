//! Executes a block of the main network on a stateless state, and compares the root.
//!
//! ```text
//! cargo run -- ../data/ethereum-block-23587691.json.gz
//! ```
//!
//! The file has the header of the block, its transactions and withdrawals, the root of the state
//! before it, and its witness: nodes, codes, and the hashes of 256 blocks. The virtual machine
//! (`revm`) reads accounts, slots and codes from a [`StatelessState`]; what it leaves behind is a
//! [`ChangeSet`], after which the state must have the root of the header. The root of transactions,
//! the root of receipts, the gas and the requests are compared before, so an error shows where it
//! arises.
//!
//! The block is one of Prague: system calls for the beacon root (EIP-4788) and the parent's hash
//! (EIP-2935) come before the transactions, withdrawals (EIP-4895) and requests (EIP-7002,
//! EIP-7251) behind them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::Read;
use std::path::Path;

use alloy_consensus::proofs::{calculate_receipt_root, calculate_transaction_root};
use alloy_consensus::{
    Eip658Value, Receipt, ReceiptEnvelope, SignableTransaction, TxEip1559, TxEnvelope, TxLegacy,
};
use revm::context::{BlockEnv, CfgEnv, TxEnv};
use revm::context_interface::block::BlobExcessGasAndPrice;
use revm::database::{AccountState, CacheDB};
use revm::database_interface::{DBErrorMarker, DatabaseRef};
use revm::primitives::alloy_primitives::Signature;
use revm::primitives::eip4844::BLOB_BASE_FEE_UPDATE_FRACTION_PRAGUE;
use revm::primitives::hardfork::SpecId;
use revm::primitives::{Address, B256, Bytes, TxKind, U256, address, hex};
use revm::state::{AccountInfo, Bytecode};
use revm::{Context, ExecuteCommitEvm, MainBuilder, MainContext, SystemCallCommitEvm};
use serde_json::Value;
use terrane_mpt::{Account, ChangeSet, StatelessState, Witness, WitnessError};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The contract of beacon roots.
const BEACON_ROOTS: Address = address!("0x000F3df6D732807Ef1319fB7B8bB8522d0Beac02");

/// The contract of hashes of blocks.
const BLOCK_HASHES: Address = address!("0x0000F90827F1C53a10cb7A02335B175320002935");

/// The contracts of requests: withdrawals and consolidations.
const REQUESTS: [Address; 2] = [
    address!("0x00000961Ef480Eb55e80D19ad83579A64c007002"),
    address!("0x0000BBdDc7CE488642fb579F8B00f3a590007251"),
];

/// Wei in a gwei, the unit of withdrawals.
const GWEI: u64 = 1_000_000_000;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).ok_or("usage: terrane-evm BLOCK.json.gz")?;
    let block = read(Path::new(&path))?;
    let root = execute(&block)?;
    println!("block {}: root {root}, that of the header", block["header"]["number"]);
    Ok(())
}

/// A block and its witness.
fn read(path: &Path) -> Result<Value> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Executes the block; returns the root after it, which is that of the header.
fn execute(block: &Value) -> Result<B256> {
    let header = &block["header"];
    let number = number(&header["number"])?;
    let hashes = array(&block["block_hashes"])?;
    let hashes = hashes.iter().enumerate().map(|(back, hash)| {
        let number = number - 1 - back as u64;
        Ok((number, fixed(hash)?))
    });
    let witness = Witness::new(blobs(&block["states"])?, blobs(&block["codes"])?, Vec::new());
    let before = StatelessState::new(fixed(&block["prev_state_root"])?, &witness);
    let source = Source { state: before.clone(), hashes: hashes.collect::<Result<_>>()? };

    let mut evm = Context::mainnet()
        .with_db(CacheDB::new(source))
        .with_block(block_env(header)?)
        .with_cfg(CfgEnv::new_with_spec(SpecId::PRAGUE))
        .build_mainnet();
    evm.system_call_commit(BEACON_ROOTS, blob(&header["parent_beacon_block_root"])?)?;
    evm.system_call_commit(BLOCK_HASHES, blob(&header["parent_hash"])?)?;

    let mut envelopes = Vec::new();
    let mut receipts = Vec::new();
    let mut gas_used = 0;
    for item in array(&block["transactions"])? {
        let envelope = envelope(item)?;
        let result = evm.transact_commit(tx_env(&envelope)?)?;
        gas_used += result.tx_gas_used();
        let receipt = Receipt {
            status: Eip658Value::Eip658(result.is_success()),
            cumulative_gas_used: gas_used,
            logs: result.logs().to_vec(),
        };
        receipts.push(match envelope {
            TxEnvelope::Legacy(_) => ReceiptEnvelope::Legacy(receipt.into()),
            _ => ReceiptEnvelope::Eip1559(receipt.into()),
        });
        envelopes.push(envelope);
    }
    same("root of transactions", &calculate_transaction_root(&envelopes), header)?;
    same("root of receipts", &calculate_receipt_root(&receipts), header)?;
    if gas_used != self::number(&header["gas_used"])? {
        return Err(format!("{gas_used} gas was used").into());
    }

    let database = &mut evm.ctx.journaled_state.database;
    for withdrawal in array(&block["withdrawals"])? {
        let gwei = self::number(&withdrawal["amount"])?;
        let account = database.load_account(fixed20(&withdrawal["address"])?)?;
        account.info.balance += U256::from(gwei) * U256::from(GWEI);
        if gwei != 0 && account.account_state == AccountState::NotExisting {
            account.account_state = AccountState::Touched;
        }
    }
    for contract in REQUESTS {
        let requests = evm.system_call_commit(contract, Bytes::new())?;
        // The header of this block has the hash of no requests.
        if requests.output().is_none_or(|output| !output.is_empty()) {
            return Err(format!("{contract} has requests").into());
        }
    }

    let changes = changes(&evm.ctx.journaled_state.database, &before)?;
    let root = before.apply(&changes)?;
    same("root of the state", &root, header)?;
    Ok(root)
}

/// Compares a root with that of the header.
fn same(what: &str, computed: &B256, header: &Value) -> Result<()> {
    let field = match what {
        "root of transactions" => "transactions_root",
        "root of receipts" => "receipts_root",
        _ => "state_root",
    };
    let expected: B256 = fixed(&header[field])?;
    if *computed != expected {
        return Err(format!("the {what} is {computed}; {expected} was expected").into());
    }
    println!("{what}: {computed}");
    Ok(())
}

/// The changes of the block: everything that it has read or written, as it is now.
fn changes(database: &CacheDB<Source>, before: &StatelessState) -> Result<ChangeSet> {
    let mut changes = ChangeSet::default();
    for (address, found) in &database.cache.accounts {
        let is_gone = found.account_state == AccountState::NotExisting || found.info.is_empty();
        if is_gone {
            // Empty accounts do not exist (EIP-161).
            if before.account(address)?.is_some() {
                changes.delete_account(*address);
            }
            continue;
        }
        let account = Account::new(found.info.nonce, found.info.balance);
        changes.set_account(*address, &account.code_hash(found.info.code_hash));
        for (slot, value) in &found.storage {
            changes.set_slot(*address, B256::from(*slot), *value);
        }
    }
    Ok(changes)
}

/// The state before the block, as the virtual machine reads it.
#[derive(Debug)]
struct Source {
    state: StatelessState,
    /// Hashes of older blocks by their numbers.
    hashes: BTreeMap<u64, B256>,
}

/// A part that the witness does not have.
#[derive(Debug)]
enum Fault {
    Witness(WitnessError),
    BlockHash(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Witness(error) => error.fmt(out),
            Self::BlockHash(number) => write!(out, "the hash of block {number} is missing"),
        }
    }
}

impl Error for Fault {}

impl DBErrorMarker for Fault {}

impl DatabaseRef for Source {
    type Error = Fault;

    fn basic_ref(&self, address: Address) -> std::result::Result<Option<AccountInfo>, Fault> {
        let account = self.state.account(&address).map_err(Fault::Witness)?;
        Ok(account.map(|account| AccountInfo {
            nonce: account.nonce,
            balance: account.balance,
            code_hash: account.code_hash,
            code: None,
            ..AccountInfo::default()
        }))
    }

    fn code_by_hash_ref(&self, hash: B256) -> std::result::Result<Bytecode, Fault> {
        self.state.code(&hash).map(Bytecode::new_raw).map_err(Fault::Witness)
    }

    fn storage_ref(&self, address: Address, slot: U256) -> std::result::Result<U256, Fault> {
        self.state.slot(&address, &B256::from(slot)).map_err(Fault::Witness)
    }

    fn block_hash_ref(&self, number: u64) -> std::result::Result<B256, Fault> {
        self.hashes.get(&number).copied().ok_or(Fault::BlockHash(number))
    }
}

fn block_env(header: &Value) -> Result<BlockEnv> {
    let excess = number(&header["excess_blob_gas"])?;
    let blobs = BlobExcessGasAndPrice::new(excess, BLOB_BASE_FEE_UPDATE_FRACTION_PRAGUE);
    Ok(BlockEnv {
        number: U256::from(number(&header["number"])?),
        beneficiary: fixed20(&header["beneficiary"])?,
        timestamp: U256::from(number(&header["timestamp"])?),
        gas_limit: number(&header["gas_limit"])?,
        basefee: number(&header["base_fee_per_gas"])?,
        difficulty: U256::ZERO,
        prevrandao: Some(fixed(&header["mix_hash"])?),
        blob_excess_gas_and_price: Some(blobs),
        ..BlockEnv::default()
    })
}

/// A signed transaction.
fn envelope(item: &Value) -> Result<TxEnvelope> {
    let signature = &item["signature"];
    let is_odd = number(&signature["yParity"])? == 1;
    let signature = Signature::new(wide(&signature["r"])?, wide(&signature["s"])?, is_odd);
    let kinds = item["transaction"].as_object().ok_or("a transaction is an object")?;
    let (kind, fields) = kinds.iter().next().ok_or("a transaction has a kind")?;

    let to = match &fields["to"] {
        Value::Null => TxKind::Create,
        address => TxKind::Call(fixed20(address)?),
    };
    let price = |name: &str| -> Result<u128> { Ok(wide(&fields[name])?.try_into()?) };
    let envelope = match kind.as_str() {
        "Legacy" => {
            let transaction = TxLegacy {
                chain_id: Some(number(&fields["chain_id"])?),
                nonce: number(&fields["nonce"])?,
                gas_price: price("gas_price")?,
                gas_limit: number(&fields["gas_limit"])?,
                to,
                value: wide(&fields["value"])?,
                input: blob(&fields["input"])?,
            };
            TxEnvelope::Legacy(transaction.into_signed(signature))
        }
        "Eip1559" if array(&fields["access_list"])?.is_empty() => {
            let transaction = TxEip1559 {
                chain_id: number(&fields["chain_id"])?,
                nonce: number(&fields["nonce"])?,
                gas_limit: number(&fields["gas_limit"])?,
                max_fee_per_gas: price("max_fee_per_gas")?,
                max_priority_fee_per_gas: price("max_priority_fee_per_gas")?,
                to,
                value: wide(&fields["value"])?,
                access_list: Vec::new().into(),
                input: blob(&fields["input"])?,
            };
            TxEnvelope::Eip1559(transaction.into_signed(signature))
        }
        other => return Err(format!("a transaction of kind {other} is not known here").into()),
    };
    Ok(envelope)
}

/// A transaction as the virtual machine takes it; its sender follows from the signature.
fn tx_env(envelope: &TxEnvelope) -> Result<TxEnv> {
    let built = match envelope {
        TxEnvelope::Legacy(signed) => {
            let TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input } = signed.tx();
            TxEnv::builder()
                .caller(signed.recover_signer()?)
                .tx_type(Some(0))
                .chain_id(*chain_id)
                .nonce(*nonce)
                .gas_price(*gas_price)
                .gas_limit(*gas_limit)
                .kind(*to)
                .value(*value)
                .data(input.clone())
                .build()
        }
        TxEnvelope::Eip1559(signed) => {
            let transaction = signed.tx();
            TxEnv::builder()
                .caller(signed.recover_signer()?)
                .tx_type(Some(2))
                .chain_id(Some(transaction.chain_id))
                .nonce(transaction.nonce)
                .gas_price(transaction.max_fee_per_gas)
                .gas_priority_fee(Some(transaction.max_priority_fee_per_gas))
                .gas_limit(transaction.gas_limit)
                .kind(transaction.to)
                .value(transaction.value)
                .data(transaction.input.clone())
                .build()
        }
        _ => return Err("a transaction of another kind".into()),
    };
    built.map_err(|error| format!("{error:?}").into())
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| format!("{value} is no list").into())
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| format!("{value} is no text").into())
}

fn blob(value: &Value) -> Result<Bytes> {
    Ok(hex::decode(text(value)?)?.into())
}

fn blobs(value: &Value) -> Result<Vec<Bytes>> {
    array(value)?.iter().map(blob).collect()
}

fn fixed(value: &Value) -> Result<B256> {
    Ok(text(value)?.parse()?)
}

fn fixed20(value: &Value) -> Result<Address> {
    Ok(text(value)?.parse()?)
}

/// A number, plain or in hexadecimal digits.
fn wide(value: &Value) -> Result<U256> {
    match value.as_u64() {
        Some(number) => Ok(U256::from(number)),
        None => Ok(text(value)?.parse()?),
    }
}

fn number(value: &Value) -> Result<u64> {
    Ok(wide(value)?.try_into()?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn block() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/ethereum-block-23587691.json.gz");
        read(Path::new(path)).unwrap()
    }

    fn error_of(block: &Value) -> String {
        execute(block).unwrap_err().to_string()
    }

    #[test]
    fn the_block_ends_in_the_root_of_its_header() {
        let block = block();
        assert_eq!(execute(&block).unwrap(), fixed(&block["header"]["state_root"]).unwrap());
    }

    #[test]
    fn one_gwei_more_is_another_root() {
        let mut block = block();
        let gwei = number(&block["withdrawals"][0]["amount"]).unwrap();
        block["withdrawals"][0]["amount"] = (gwei + 1).into();
        assert!(error_of(&block).starts_with("the root of the state is 0x"));
    }

    #[test]
    fn a_changed_transaction_is_refused() {
        let mut block = block();
        block["transactions"].as_array_mut().unwrap().swap(0, 1);
        assert!(execute(&block).is_err());
    }

    /// Without the node of the parent's root no account can be read.
    #[test]
    fn a_witness_of_another_state_is_refused() {
        let mut block = block();
        block["prev_state_root"] = block["header"]["state_root"].clone();
        assert!(execute(&block).is_err());
    }

    /// Most of the codes are called: without one of them the block does not go on.
    #[test]
    fn a_witness_without_codes_is_refused() {
        let mut block = block();
        block["codes"] = Value::Array(Vec::new());
        assert!(execute(&block).is_err());
    }
}

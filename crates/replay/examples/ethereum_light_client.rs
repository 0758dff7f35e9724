//! Recipe: a light client of Ethereum, which trusts only the state roots of headers.
//!
//! A full node replays the first blocks of the main network. It proves an account, and a slot of
//! it, after block 0 and after block 1,000; no account of these blocks has a slot but zero. For
//! block 23,587,691 there is a published witness: from the root after block 23,587,690, the client
//! reads a contract, its code, and a slot of it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::{Path, PathBuf};

use serde_json::Value;
use terrane::mpt::{AccountProof, Address, B256, Bytes, StatelessState, U256, Witness};
use terrane_replay::ethereum::{self, Options};
use terrane_replay::monitor::Silent;

/// The state roots in the headers of blocks 0 and 1,000.
const ROOTS: [(u64, &str); 2] = [
    (0, "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544"),
    (1000, "0x97fb274dbf35776cf0837c76438bb0804ea7b6152da3c8b53c663caf00e17be5"),
];

/// The coinbase of many early blocks, which is no account of block 0.
const MINER: &str = "0xbb7b8287f3f0a933474a79eae42cbca977791171";

/// The contract of beacon roots (EIP-4788): a slot for each of 8,191 timestamps.
const BEACON_ROOTS: &str = "0x000f3df6d732807ef1319fb7b8bb8522d0beac02";

/// Slots of times in that contract.
const TIMES: u64 = 8191;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(name)
}

/// A full node: the proof of an account after each of the blocks, as JSON of `eth_getProof`.
fn full_node(dir: &Path, address: &Address) -> Result<Vec<String>, Box<dyn Error>> {
    let options = Options { until: Some(1000), history: true, ..Options::default() };
    let mut state = ethereum::open(dir, &options)?;
    let files = [data("ethereum-mainnet-0-8191.era1")];
    ethereum::replay(&mut state, &files, &options, &mut Silent)?;

    let prove = |(height, _): &(u64, &str)| -> Result<String, Box<dyn Error>> {
        Ok(state.at(*height)?.prove(address, &[B256::ZERO])?.to_json().to_string())
    };
    let proofs = ROOTS.iter().map(prove).collect::<Result<_, _>>()?;
    state.close()?;
    Ok(proofs)
}

/// The client takes proofs from anybody.
fn check(proofs: &[String], address: Address) -> Result<(), Box<dyn Error>> {
    for ((height, root), json) in ROOTS.iter().zip(proofs) {
        let proof = AccountProof::from_json(&serde_json::from_str(json)?)?;
        proof.verify(root.parse()?)?;
        assert_eq!(proof.address, address);
        match proof.account {
            Some(account) => println!("block {height}: {address} has {} wei", account.balance),
            None => println!("block {height}: there is no account {address}"),
        }
        assert_eq!(proof.slots[0].value, U256::ZERO, "proved, too");
    }

    // The later answer is none about block 0.
    let later = AccountProof::from_json(&serde_json::from_str(&proofs[1])?)?;
    let refused = later.verify(ROOTS[0].1.parse()?);
    println!("against another root: {}", refused.expect_err("the roots differ"));
    Ok(())
}

/// An account and a slot of a recent block, from a witness.
fn recent() -> Result<(), Box<dyn Error>> {
    let packed = std::fs::File::open(data("ethereum-block-23587691.json.gz"))?;
    let block: Value = serde_json::from_reader(flate2::read::GzDecoder::new(packed))?;
    let blobs = |name: &str| -> Result<Vec<Bytes>, Box<dyn Error>> {
        let texts = block[name].as_array().ok_or("a list")?.iter().filter_map(Value::as_str);
        Ok(texts.map(str::parse).collect::<Result<_, _>>()?)
    };
    let witness = Witness::new(blobs("states")?, blobs("codes")?, Vec::new());

    // The root is in the header of the parent; nodes that do not fit it are not found.
    let root: B256 = block["prev_state_root"].as_str().ok_or("a root")?.parse()?;
    let state = StatelessState::new(root, &witness);
    let contract: Address = BEACON_ROOTS.parse()?;
    let account = state.account(&contract)?.ok_or("the contract is there")?;
    let code = state.code(&account.code_hash)?;
    let time = block["header"]["timestamp"].as_u64().ok_or("a time")?;
    let slot = B256::from(U256::from(time % TIMES));
    let value = state.slot(&contract, &slot)?;
    println!("block 23587690: {contract} has {} bytes of code", code.len());
    println!("block 23587690: its slot {} is {value}", time % TIMES);
    assert_eq!(value % U256::from(TIMES), U256::from(time % TIMES));
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    let address = MINER.parse()?;
    let proofs = full_node(&place.path().join("state"), &address)?;
    check(&proofs, address)?;
    recent()
}

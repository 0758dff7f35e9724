//! Recipe: a light client of an Ethereum chain, which has the roots of headers and nothing else. It
//! checks an account and a slot of the first block and of the last one.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use terrane::lsm::StoreOptions;
use terrane::mpt::{Account, AccountProof, Address, B256, Block, Options, State, U256};

const CONTRACT: Address = Address::repeat_byte(0xc0);
const COUNTER: B256 = B256::ZERO;

/// A full node: three blocks, each of which counts up a slot. Returns the blocks, and the answer to
/// `eth_getProof` at the first and at the last one.
fn full_node(dir: &Path) -> Result<(Vec<Block>, [String; 2]), Box<dyn Error>> {
    let options = Options::default().store(StoreOptions::default().create_dir()).history(true);
    let mut state = State::open_dir(dir.join("state"), &options)?;
    let mut blocks: Vec<Block> = Vec::new();
    for height in 0..3_u8 {
        let parent = blocks.last().map_or(B256::ZERO, |block| block.hash);
        let mut block = state.block(u64::from(height), parent)?;
        block.set_account(CONTRACT, &Account::new(1, U256::from(height)));
        block.set_slot(CONTRACT, COUNTER, U256::from(height + 1));
        // A real node has the hash and the root from the header: `commit_expecting`.
        let committed = block.commit(B256::repeat_byte(height + 1))?;
        committed.ticket.wait()?;
        blocks.push(committed.block);
    }

    // The history proves any height, long after the block.
    let answer = |height| Ok(state.at(height)?.prove(&CONTRACT, &[COUNTER])?.to_json().to_string());
    let answers: Result<_, terrane::mpt::Error> =
        answer(0).and_then(|first| Ok([first, answer(2)?]));
    let answers = answers?;
    state.close()?;
    Ok((blocks, answers))
}

/// The light client: reads an answer and checks it against the root of a header.
fn light_client(root: B256, answer: &str) -> Result<AccountProof, Box<dyn Error>> {
    let proof = AccountProof::from_json(&serde_json::from_str(answer)?)?;
    proof.verify(root)?;
    Ok(proof)
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let (blocks, answers) = full_node(dir)?;
    for (block, answer) in [&blocks[0], &blocks[2]].into_iter().zip(&answers) {
        let proof = light_client(block.root, answer)?;
        let value = proof.slots[0].value;
        assert_eq!(value, U256::from(block.height + 1));
        println!("block {}: the counter is {value}", block.height);
    }

    // An answer about another block is refused.
    let other = light_client(blocks[1].root, &answers[0]);
    println!("against another root: {}", other.expect_err("the roots differ"));
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

//! Recipe: the state of accounts with a root for each block, and a light client that trusts only
//! the root.

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use terrane::radix::{Address, Change, Form, Proof, Root, verify_proof};
use terrane::state_dir::{self, BackEnd};

/// A full node: commits a block and proves two addresses. Returns the root and the proof.
fn full_node(dir: &Path, asked: &[Address]) -> Result<(Root, Vec<u8>), Box<dyn Error>> {
    let state = state_dir::open_or_create(&dir.join("state"), BackEnd::Lsm)?;
    let accounts = state.tree_or_create("accounts")?;

    let genesis =
        [Change::Set("a1".parse()?, b"100".to_vec()), Change::Set("b2".parse()?, b"7".to_vec())];
    let first = accounts.commit(&Root::EMPTY, &genesis)?;

    // Each commit names its parent, so that two blocks may have the same one.
    let payment =
        [Change::Set("a1".parse()?, b"90".to_vec()), Change::Set("b2".parse()?, b"17".to_vec())];
    let second = accounts.commit(&first.root, &payment)?;
    assert_eq!(accounts.get_one(&first.root, &"a1".parse()?)?.as_deref(), Some(&b"100"[..]));

    let proof = accounts.prove(&second.root, asked)?;
    let bytes = proof.to_bytes(Form::Compact);
    state.close()?;
    Ok((second.root, bytes))
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let asked: [Address; 2] = ["a1".parse()?, "c3".parse()?];
    let (root, proof) = full_node(dir, &asked)?;

    // The light client has the root from a block header and the bytes from anybody.
    let values = verify_proof(&root, &proof, &asked)?;
    assert_eq!(values, [Some(b"90".to_vec()), None]); // c3 is proved to be absent
    println!("a1 has 90 and c3 is absent, by {} bytes of proof", proof.len());

    // A proof of another state is refused.
    let other = Proof::from_bytes(&proof)?.verify(&Root::EMPTY).map(drop);
    println!("against another root: {}", other.expect_err("the roots differ"));
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}

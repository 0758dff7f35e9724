//! Forged proofs of radix states: whatever is accepted for a root says nothing that is not true of
//! the state of that root.
//!
//! Method: an honest compact proof is taken apart into its nodes; addresses, values, tokens, chains
//! and hashes, all of which the forger knows, are changed together; and what comes of it is put
//! into bytes again. Every value of a proof that is still accepted is compared with a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_kv::Memory;
use terrane_radix::{Address, Change, Form, INDEXES, Options, Proof, Root, Store};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

const CHAIN: u8 = 1;
const NODE: u8 = 2;
const HASH_BYTES: usize = 32;

/// A node of a proof, with the nodes of one child that lead to it.
#[derive(Debug, Clone, Default)]
struct Part {
    chain: u8,
    value: Option<Vec<u8>>,
    children: Vec<(u8, Below)>,
}

#[derive(Debug, Clone)]
enum Below {
    Hash(Vec<u8>),
    Part(Part),
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// Reads a part; `addresses` lead to it, and go on as they are from here.
fn read(bytes: &mut &[u8], mut addresses: Vec<&[u8]>) -> Part {
    let mut part = Part::default();
    let mut tag = take(bytes, 1)[0];
    if tag == CHAIN {
        part.chain = take(bytes, 1)[0];
        tag = take(bytes, 1)[0];
        addresses.retain(|address| address.len() > usize::from(part.chain));
        for address in &mut addresses {
            *address = &address[usize::from(part.chain)..];
        }
    }

    assert_eq!(tag, NODE);
    let value = take(bytes, 1)[0];
    part.value = value.checked_sub(1).map(|len| take(bytes, usize::from(len)).to_vec());
    let count = usize::from(take(bytes, 1)[0]);

    for token in take(bytes, count).to_vec() {
        let leads = |address: &&[u8]| address.first() == Some(&token);
        let below: Vec<&[u8]> =
            addresses.iter().copied().filter(leads).map(|address| &address[1..]).collect();
        let child = if below.is_empty() {
            Below::Hash(take(bytes, HASH_BYTES).to_vec())
        } else {
            Below::Part(read(bytes, below))
        };
        part.children.push((token, child));
    }

    part
}

fn write(part: &Part, out: &mut Vec<u8>) {
    if part.chain > 0 {
        out.extend([CHAIN, part.chain]);
    }
    out.push(NODE);
    out.push(part.value.as_ref().map_or(0, |value| value.len() as u8 + 1));
    out.extend(part.value.iter().flatten());
    out.push(part.children.len() as u8);
    out.extend(part.children.iter().map(|(token, _)| token));

    for (_, below) in &part.children {
        match below {
            Below::Hash(hash) => out.extend(hash),
            Below::Part(part) => write(part, out),
        }
    }
}

fn proof_of(addresses: &[Vec<u8>], nodes: &Part) -> Vec<u8> {
    let mut out = vec![1, 2, addresses.len() as u8];
    for address in addresses {
        out.push(address.len() as u8);
        out.extend(address);
    }
    write(nodes, &mut out);
    out
}

/// A short address over few tokens, so that many share their beginnings.
fn address(rng: &mut ChaCha8Rng) -> Vec<u8> {
    (0..=rng.below(4)).map(|_| rng.below(3) as u8).collect()
}

/// The hashes in a proof.
fn hashes(part: &Part, out: &mut Vec<Vec<u8>>) {
    for (_, below) in &part.children {
        match below {
            Below::Hash(hash) => out.push(hash.clone()),
            Below::Part(part) => hashes(part, out),
        }
    }
}

/// Changes one part, this one or one below.
fn forge(rng: &mut ChaCha8Rng, part: &mut Part, known: &[Vec<u8>]) {
    let mut below: Vec<&mut Part> = part
        .children
        .iter_mut()
        .filter_map(|(_, below)| if let Below::Part(part) = below { Some(part) } else { None })
        .collect();
    if !below.is_empty() && rng.chance(2, 3) {
        let at = rng.index(below.len());
        return forge(rng, below[at], known);
    }

    let count = part.children.len();
    let hash = rng.pick(known).clone();
    match rng.below(9) {
        0 => part.value = None,
        1 => part.value = Some(vec![rng.below(3) as u8]),
        2 => part.chain = part.chain.wrapping_add(1).wrapping_sub(2 * rng.below(2) as u8),
        3 if count > 0 => drop(part.children.remove(rng.index(count))),
        4 => {
            part.children.push((rng.below(4) as u8, Below::Hash(hash)));
            part.children.sort_by_key(|child| child.0);
        }
        5 if count > 0 => part.children[rng.index(count)].1 = Below::Hash(hash),
        6 if count > 1 => {
            let at = rng.index(count - 1);
            let one = part.children[at].0;
            let two = part.children[at + 1].0;
            part.children.swap(at, at + 1);
            (part.children[at].0, part.children[at + 1].0) = (one, two);
        }
        7 if count > 0 => {
            let leaf = Part { value: Some(vec![rng.below(3) as u8]), ..Part::default() };
            part.children[rng.index(count)].1 = Below::Part(leaf);
        }
        _ => *part = Part { chain: 0, value: part.value.take(), children: Vec::new() },
    }
}

#[test]
fn what_is_forged_for_a_root_is_refused_or_true() {
    let mut told = 0;
    let mut refused = 0;
    for_each_seed("what_is_forged_for_a_root_is_refused_or_true", 40, |rng, _seed| {
        let options = Options::default().cache_bytes(64 << 10).threads(1);
        let store = Store::open(Arc::new(Memory::new(&INDEXES).unwrap()), &options).unwrap();
        let tree = store.create_tree("state").unwrap();
        let state: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..rng.below(40)).map(|_| (address(rng), vec![rng.below(3) as u8])).collect();
        let set = |(at, value): (&Vec<u8>, &Vec<u8>)| {
            Change::Set(Address::new(at).unwrap(), value.clone())
        };
        let changes: Vec<Change> = state.iter().map(set).collect();
        let root = tree.commit(&Root::EMPTY, &changes).unwrap().root;

        for _ in 0..40 {
            let mut addresses: Vec<Vec<u8>> = (0..=rng.below(4)).map(|_| address(rng)).collect();
            addresses.sort();
            addresses.dedup();
            let asked: Vec<Address> =
                addresses.iter().map(|address| Address::new(address).unwrap()).collect();
            let honest = tree.prove(&root, &asked).unwrap().to_bytes(Form::Compact);
            let head = 3 + addresses.iter().map(|address| 1 + address.len()).sum::<usize>();
            let leading = addresses.iter().map(Vec::as_slice).collect();
            let mut part = read(&mut &honest[head..], leading);
            assert_eq!(proof_of(&addresses, &part), honest);

            let mut known = vec![vec![9; HASH_BYTES], root.0.to_vec(), Root::EMPTY.0.to_vec()];
            hashes(&part, &mut known);
            for _ in 0..rng.below(4) {
                forge(rng, &mut part, &known);
            }
            if rng.chance(1, 2) {
                // Of other addresses than it was made for.
                let at = rng.index(addresses.len());
                addresses[at] = address(rng);
                addresses.sort();
            }
            let Ok(proof) = Proof::from_bytes(&proof_of(&addresses, &part)) else {
                refused += 1;
                continue;
            };
            let Ok(values) = proof.verify(&root) else {
                refused += 1;
                continue;
            };
            for (address, value) in values {
                let truth = state.get(address.as_bytes()).map(Vec::as_slice);
                assert_eq!(value, truth, "{address}: {part:?}");
                told += 1;
            }
        }
    });
    if std::env::var_os("SEED").is_none() {
        assert!(told > 100 && refused > 500, "{told} {refused}");
    }
}

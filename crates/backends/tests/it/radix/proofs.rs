//! Proofs of what addresses hold, and of their holding nothing.
//!
//! Goal: a proof that is made is accepted and says what the map says; whatever else is accepted
//! says nothing that is wrong. Method: random states and sets of addresses, those that are there,
//! that end above or below others, and that stand beside them. Damage of every kind is done to the
//! bytes: at every byte, at every length, node by node. What is still accepted must be a proof that
//! is true of the map, in the one form that it has.

use std::collections::BTreeSet;

use terrane_kv::conformance::Subject;
use terrane_radix::{Address, Change, Form, Proof, ProofError, Root, Store, Tree, verify_proof};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use super::histories::{address, batch};
use super::rules::State;
use super::{InMemory, fresh, tree};

const FORMS: [Form; 2] = [Form::Full, Form::Compact];

fn at(bytes: &[u8]) -> Address {
    Address::new(bytes).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// A state of some commits.
fn state(rng: &mut impl Draw, tree: &Tree) -> (Root, State) {
    let mut root = Root::EMPTY;
    let mut state = State::new();
    for _ in 0..rng.below(8) {
        let (mut changes, mut after) = batch(rng, &state);
        if rng.below(4) == 0 {
            // A wide node, whose children are a bitmap in a proof.
            for token in 0..=255 {
                after.insert(vec![0xab, 0xab, 0xab, 0xab, 0xab, token], vec![token]);
            }
            changes = after.iter().map(|(a, v)| Change::Set(at(a), v.clone())).collect();
            changes.extend(
                state.keys().filter(|a| !after.contains_key(*a)).map(|a| Change::Delete(at(a))),
            );
        }

        root = tree.commit(&root, &changes).unwrap().root;
        state = after;
    }

    (root, state)
}

/// An address of the state, or near to one.
fn near(rng: &mut impl Draw, state: &State) -> Address {
    let mut bytes = match state.len() {
        0 => address(rng),
        len => state.keys().nth(rng.below(len as u64) as usize).unwrap().clone(),
    };

    match rng.below(6) {
        0 => bytes = address(rng),
        1 => bytes.truncate(1 + rng.below(bytes.len() as u64) as usize),
        2 => {
            let more = rng.below(36 - bytes.len() as u64) as usize;
            bytes.extend(rng.bytes(more));
        }
        3 => {
            let index = rng.index(bytes.len());
            bytes[index] ^= 1 << rng.below(8);
        }
        _ => {}
    }

    at(&bytes)
}

fn addresses(rng: &mut impl Draw, state: &State) -> Vec<Address> {
    (0..rng.below(12)).map(|_| near(rng, state)).collect()
}

fn expected(state: &State, addresses: &[Address]) -> Vec<Option<Vec<u8>>> {
    addresses.iter().map(|address| state.get(address.as_bytes()).cloned()).collect()
}

/// Whatever is accepted must be true, and have no other form.
fn check_sound(bytes: &[u8], root: &Root, state: &State) -> bool {
    let Ok(proof) = Proof::from_bytes(bytes) else { return false };
    assert!(FORMS.iter().any(|form| proof.to_bytes(*form) == bytes), "two forms of one proof");
    let Ok(values) = proof.verify(root) else { return false };
    for (address, value) in values {
        assert_eq!(value, state.get(address.as_bytes()).map(Vec::as_slice), "{address}");
    }
    true
}

fn prove_and_check(tree: &Tree, root: &Root, state: &State, asked: &[Address]) -> Proof {
    let proof = tree.prove(root, asked).unwrap();
    let distinct: BTreeSet<Address> = asked.iter().copied().collect();
    assert!(proof.verify(root).unwrap().map(|(address, _)| address).eq(distinct));
    for form in FORMS {
        let bytes = proof.to_bytes(form);
        assert_eq!(Proof::from_bytes(&bytes).as_ref(), Ok(&proof), "{form:?}");
        let found = verify_proof(root, &bytes, asked);
        assert_eq!(found, Ok(expected(state, asked)), "{form:?}");
        assert!(check_sound(&bytes, root, state));
    }
    proof
}

pub(super) fn check(subject: &mut dyn Subject) {
    let seeds = by_effort(if subject.is_persistent() { 1 } else { 4 }, 12);
    for_each_seed("radix_proofs", seeds, |rng, _| {
        let store: Store = fresh(subject);
        let tree = tree(&store);
        let (root, state) = state(rng, &tree);

        for _ in 0..8 {
            let asked = addresses(rng, &state);
            let proof = prove_and_check(&tree, &root, &state, &asked);
            for form in FORMS {
                let bytes = proof.to_bytes(form);
                let other = Root::from(terrane_radix::NodeHash([7; 32]));
                let found = verify_proof(&other, &bytes, &asked);
                assert_eq!(found, Err(ProofError::Root { expected: other, found: root }));
                let mut more = asked.clone();
                more.push(near(rng, &state));
                if !asked.contains(&more[asked.len()]) {
                    let found = verify_proof(&root, &bytes, &more);
                    assert_eq!(found, Err(ProofError::Addresses));
                }

                if let Some((_, fewer)) = asked.split_first().filter(|(a, f)| !f.contains(a)) {
                    assert_eq!(verify_proof(&root, &bytes, fewer), Err(ProofError::Addresses));
                }
            }
        }
    });
}

#[test]
fn proofs_on_memory() {
    check(&mut InMemory);
}

/// The example of three nodes whose bytes are published, in both forms.
#[test]
fn a_proof_of_one_value_has_the_bytes_of_the_format() {
    let tree = tree(&fresh(&mut InMemory));
    let asked = [at(&[0xab, 0xcd])];
    let changes = [Change::Set(asked[0], b"data_value".to_vec())];
    let root = tree.commit(&Root::EMPTY, &changes).unwrap().root;
    let proof = tree.prove(&root, &asked).unwrap();
    let head = |form| vec![1, form, 1, 2, 0xab, 0xcd];

    let mut full = head(1);
    for (token, hash) in [
        ("ab", "e0bbe378b6b59d1daf5491f0304a9059765a6658f1b80f70e167eb8a67972e7b"),
        ("cd", "8e17180ee8ff130e100c2c52b7925f4a7240ed71d32e4927f99e15b4d66f188e"),
    ] {
        full.extend(b"\xa2\x61c\xa1\x62");
        full.extend(token.bytes());
        full.extend(b"\x78\x40");
        full.extend(hash.bytes());
        full.extend(b"\x61v\xf6");
    }

    full.extend(hex("a26163a061764a646174615f76616c7565"));
    assert_eq!(proof.to_bytes(Form::Full), full);

    let mut compact = head(2);
    compact.extend([1, 2, 2, 11]);
    compact.extend(b"data_value");
    compact.push(0);
    assert_eq!(proof.to_bytes(Form::Compact), compact);

    // The same chain ends above, beside and below what is asked for.
    for (address, nodes) in [
        ("ab", vec![1, 1, 2, 0, 1, 0xcd]),
        ("abcc", vec![1, 1, 2, 0, 1, 0xcd]),
        ("ac", vec![2, 0, 1, 0xab]),
        ("abcd00", vec![1, 2, 2, 11]),
    ] {
        let asked: Address = address.parse().unwrap();
        let bytes = tree.prove(&root, &[asked]).unwrap().to_bytes(Form::Compact);
        let head = 4 + asked.as_bytes().len();
        assert_eq!(bytes[head..head + nodes.len()], nodes, "{address}");
        assert_eq!(verify_proof(&root, &bytes, &[asked]), Ok(vec![None]), "{address}");
    }
}

#[test]
fn the_empty_state_has_no_value_anywhere() {
    let tree = tree(&fresh(&mut InMemory));
    let asked = [at(&[1]), at(&[1, 2]), at(&[9; 35])];
    let proof = tree.prove(&Root::EMPTY, &asked).unwrap();
    for form in FORMS {
        let bytes = proof.to_bytes(form);
        assert_eq!(verify_proof(&Root::EMPTY, &bytes, &asked), Ok(vec![None; 3]));
        let nothing = tree.prove(&Root::EMPTY, &[]).unwrap().to_bytes(form);
        assert_eq!(verify_proof(&Root::EMPTY, &nothing, &[]), Ok(vec![]));
    }
}

#[test]
fn every_altered_byte_and_every_length_is_refused() {
    let mut accepted = 0;
    let seeds = by_effort(8, 12);
    for_each_seed("every_altered_byte_and_every_length_is_refused", seeds, |rng, _| {
        let tree = tree(&fresh(&mut InMemory));
        let (root, state) = state(rng, &tree);
        // No more than three, and one that is not there.
        let mut asked = addresses(rng, &state);
        asked.truncate(3);
        let absent = std::iter::repeat_with(|| address(rng)).find(|one| !state.contains_key(one));
        asked.push(at(&absent.unwrap()));
        let proof = tree.prove(&root, &asked).unwrap();

        for form in FORMS {
            let bytes = proof.to_bytes(form);
            let verify = |bytes: &[u8]| verify_proof(&root, bytes, &asked);
            let exhaustive = bytes.len() < 1_500;

            // Of large ones that are mostly hashes, a part of the bytes.
            let step = (1 + bytes.len() / 6_000) * by_effort(3, 1);
            for index in (0..bytes.len()).step_by(step) {
                let bits = if exhaustive { 0..8 } else { 0..1 };
                for bit in bits {
                    let bit = if exhaustive { bit } else { rng.below(8) };
                    let mut altered = bytes.clone();
                    altered[index] ^= 1 << bit;
                    assert!(verify(&altered).is_err(), "{form:?}: byte {index}, bit {bit}");
                    accepted += u64::from(check_sound(&altered, &root, &state));
                }
                assert!(verify(&bytes[..index]).is_err(), "{form:?}: cut to {index}");
            }

            for more in [vec![0], vec![1], bytes.clone(), bytes[bytes.len() / 2..].to_vec()] {
                assert!(verify(&[&bytes[..], &more].concat()).is_err(), "{form:?}: appended");
            }

            // Several changes at once: bytes, pieces that move, pieces that are gone or come twice.
            for _ in 0..by_effort(200, 500) {
                let mut altered = bytes.clone();
                for _ in 0..=rng.below(3) {
                    let one = rng.index(altered.len());
                    let two = rng.index(altered.len());
                    let piece = altered[one.min(two)..one.max(two)].to_vec();

                    match rng.below(4) {
                        0 => altered[one] = rng.below(256) as u8,
                        1 => altered.swap(one, two),
                        2 => drop(altered.splice(one.min(two)..one.max(two), [])),
                        _ => drop(altered.splice(one..one, piece)),
                    }

                    if altered.is_empty() {
                        break;
                    }
                }

                if altered != bytes {
                    assert!(verify(&altered).is_err(), "{form:?}");
                    accepted += u64::from(check_sound(&altered, &root, &state));
                }
            }
        }
    });

    // Proofs of absence of one address are such of many others too, so the check for truth was not
    // idle.
    assert!(
        accepted > by_effort(2, 100),
        "{accepted} altered proofs were proofs of something else"
    );
}

/// The nodes of the full form, which stand one behind the other.
fn split(mut bytes: &[u8], nodes: &BTreeSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let node = nodes.iter().find(|node| bytes.starts_with(node)).unwrap();
        parts.push(node.clone());
        bytes = &bytes[node.len()..];
    }
    parts
}

#[test]
fn nodes_that_are_swapped_left_out_doubled_or_exchanged_are_refused() {
    let mut tried = 0;
    for_each_seed(
        "nodes_that_are_swapped_left_out_doubled_or_exchanged_are_refused",
        24,
        |rng, _| {
            let tree = tree(&fresh(&mut InMemory));
            let (root, state) = state(rng, &tree);
            let asked = addresses(rng, &state);
            let all: BTreeSet<Vec<u8>> =
                tree.export_nodes(&root).unwrap().map(|node| node.unwrap().1).collect();
            let bytes = tree.prove(&root, &asked).unwrap().to_bytes(Form::Full);
            let distinct: BTreeSet<&Address> = asked.iter().collect();
            let head = 3 + distinct.iter().map(|a| 1 + a.as_bytes().len()).sum::<usize>();
            let nodes = split(&bytes[head..], &all);
            let mut refuse = |nodes: &[Vec<u8>]| {
                let altered = [&bytes[..head], &nodes.concat()].concat();
                assert!(verify_proof(&root, &altered, &asked).is_err());
                assert!(!check_sound(&altered, &root, &state));
                tried += 1;
            };

            for one in 0..nodes.len() {
                let mut altered = nodes.clone();
                altered.remove(one);
                refuse(&altered);
                let mut altered = nodes.clone();
                altered.insert(rng.index(nodes.len() + 1), nodes[one].clone());
                refuse(&altered);

                for two in one + 1..nodes.len() {
                    let mut altered = nodes.clone();
                    altered.swap(one, two);
                    refuse(&altered);
                }

                let other = all.iter().nth(rng.index(all.len())).unwrap();
                if *other != nodes[one] {
                    let mut altered = nodes.clone();
                    altered[one].clone_from(other);
                    refuse(&altered);
                }

                // Two children change places.
                let child = 69;
                if nodes[one].len() > 2 * child + 8 {
                    let start = if nodes[one][3] < 0xb8 { 4 } else { 5 };
                    let mut altered = nodes.clone();
                    altered[one][start..start + 2 * child].rotate_left(child);
                    if altered[one] != nodes[one] && nodes[one][start] == 0x62 {
                        refuse(&altered);
                    }
                }
            }

            // A node that nothing asks for.
            for other in all.iter().take(20) {
                let mut altered = nodes.clone();
                altered.push(other.clone());
                refuse(&altered);
            }
        },
    );
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn forms_that_are_not_the_shortest_are_refused() {
    let tree = tree(&fresh(&mut InMemory));
    let asked = [at(&[1, 2, 3])];
    let root = tree.commit(&Root::EMPTY, &[Change::Set(asked[0], b"v".to_vec())]).unwrap().root;
    let head = [1, 2, 1, 3, 1, 2, 3];
    let leaf: &[u8] = &[2, 2, b'v', 0];
    let verify = |nodes: &[&[u8]]| {
        let bytes = [&head[..], &nodes.concat()].concat();
        verify_proof(&root, &bytes, &asked)
    };

    assert_eq!(verify(&[&[1, 3], leaf]), Ok(vec![Some(b"v".to_vec())]));
    for (nodes, rule) in [
        (
            vec![&[1, 1, 1, 2], leaf],
            "neither an extension nor a node, or an extension below an extension",
        ),
        (vec![&[1, 0], leaf], "an extension of no nodes"),
        (vec![&[1, 4], leaf], "an extension where addresses end or part"),
        (vec![&[1, 255], leaf], "an extension where addresses end or part"),
        (vec![&[2, 0, 1, 1, 1, 2], leaf], "a node of an extension stands for itself"),
        (vec![&[1, 2, 2, 0, 1, 3], leaf], "a node of an extension stands for itself"),
        (vec![&[1, 3, 2, 0x82, 0, b'v', 0]], "a number is not canonical"),
        (vec![&[1, 3, 2, 2, b'v', 0x81, 2]], "more children than tokens"),
        (vec![&[1, 3, 2, 2, b'v', 2, 5, 5]], "children do not ascend"),
        (
            vec![&[1, 3, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]],
            "it is cut short",
        ),
        (vec![&[1, 3, 2, 0, 0]], "a node below the root has neither value nor child"),
        (vec![&[2, 2, b'v', 0]], "the empty address has a value"),
        (vec![&[3], leaf], "neither an extension nor a node, or an extension below an extension"),
    ] {
        match verify(&nodes) {
            Err(ProofError::Malformed { rule: found, .. }) => assert_eq!(found, rule, "{nodes:?}"),
            other => panic!("{nodes:?}: {other:?}"),
        }
    }

    for (bytes, expected) in [
        (&[][..], ProofError::Malformed { at: 0, rule: "it is cut short" }),
        (&[2, 1, 0], ProofError::UnsupportedVersion { found: 2 }),
        (&[1, 3, 0, 2, 0, 0], ProofError::Malformed { at: 3, rule: "unknown form" }),
        (&[1, 2, 1, 0], ProofError::Malformed { at: 4, rule: "length of an address" }),
        (&[1, 2, 1, 36], ProofError::Malformed { at: 4, rule: "it is cut short" }),
        (&[1, 2, 2, 1, 7, 1, 7], ProofError::Malformed { at: 7, rule: "addresses do not ascend" }),
        (
            &[1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ProofError::Malformed { at: 12, rule: "it is cut short" },
        ),
    ] {
        assert_eq!(Proof::from_bytes(bytes), Err(expected), "{bytes:?}");
    }
}

/// How large proofs are: the compact form must be smaller by what hashes as text cost.
#[test]
fn compact_proofs_are_less_than_half_of_full_ones() {
    let tree = tree(&fresh(&mut InMemory));
    for_each_seed("compact_proofs_are_less_than_half_of_full_ones", 1, |rng, _| {
        let keys: Vec<Address> = (0..1_000).map(|_| at(&rng.bytes(32))).collect();
        let changes: Vec<Change> =
            keys.iter().map(|key| Change::Set(*key, rng.bytes(16))).collect();
        let root = tree.commit(&Root::EMPTY, &changes).unwrap().root;

        for count in [1, 10, 100] {
            let proof = tree.prove(&root, &keys[..count]).unwrap();
            let [full, compact] = FORMS.map(|form| proof.to_bytes(form).len());
            println!("{count} of 1,000 addresses: {full} bytes full, {compact} compact");
            assert!(2 * compact < full, "{count}: {compact} of {full}");
        }

        let absent = tree.prove(&root, &[at(&rng.bytes(32))]).unwrap();
        let [full, compact] = FORMS.map(|form| absent.to_bytes(form).len());
        println!("one that is absent: {full} bytes full, {compact} compact");
        assert!(2 * compact < full);
    });
}

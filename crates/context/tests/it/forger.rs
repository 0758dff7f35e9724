//! Forged proofs: whatever is accepted for a root says nothing that is not true of the tree of that
//! root.
//!
//! Method: a forger knows the whole tree and all its hashes, begins with an honest proof or with
//! none, and changes kinds, hashes, blinding, lengths, shapes and the two ends of the proof
//! together. Every answer of what is still accepted is compared with the answer of the tree.

use terrane_context::{
    Error, ExtenderProof, Hash, InodeProof, InodeTree, KindedHash, Proof, ProofError, ProofTree,
    Result, Rules, Tree,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::proof::{Op, Parts, kinded, prove, random_op, random_path, run};

/// A proof of 101 bytes was once accepted for every tree: its two ends and its state said that the
/// root is a value, of which only the hash is known. No path leads through a value, so the proof
/// showed every path absent. The caller had compared the hash of the root with the one it trusts,
/// and not the kind.
#[test]
fn the_hash_of_a_root_alone_does_not_prove_that_paths_are_absent() {
    for rules in [Rules::TEZOS, Rules::BLAKE3] {
        let mut tree = Tree::new(rules).unwrap();
        tree.add(&["data", "key"], *b"value").unwrap();
        let root = tree.hash();
        let ends = [[0].as_slice(), root.as_bytes()].concat();
        let bytes = [[0, 0].as_slice(), &ends, &ends, &[1], root.as_bytes()].concat();
        assert_eq!(bytes.len(), 101);

        let forged = Proof::decode(&bytes).unwrap();
        let error = forged.verify(&rules, KindedHash::directory(root)).unwrap_err();
        assert!(matches!(error, ProofError::RootMismatch { .. }), "{error:?}");

        // Nor is it taken where the caller itself mistakes the kind, or the proof names the right
        // one.
        let error = forged.verify(&rules, KindedHash::value(root)).unwrap_err();
        assert!(matches!(error, ProofError::Shape { .. }), "{error:?}");
        let directory = KindedHash::directory(root);
        let forged = Proof::new(directory, directory, ProofTree::BlindedValue(root));
        let error = forged.verify(&rules, directory).unwrap_err();

        assert!(matches!(error, ProofError::Shape { .. }), "{error:?}");
    }
}

/// A tree, and what a forger knows of it.
struct Known {
    tree: Tree,
    /// Hashes of values, directories and inodes, and one of nothing.
    hashes: Vec<Hash>,
}

impl Known {
    fn of(rng: &mut ChaCha8Rng) -> Self {
        let rules = *rng.pick(&[
            Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS },
            Rules { branching: 4, flat_limit: 1, ..Rules::TEZOS },
            Rules { flat_limit: 5, ..Rules::BLAKE3 },
        ]);
        let mut tree = Tree::new(rules).unwrap();
        for _ in 0..=rng.below(80) {
            let mut at = random_path(rng);
            at.push(rng.below(24).to_string());
            tree.add(&at, [rng.below(3) as u8]).unwrap();
        }

        let mut hashes = vec![rules.empty_hash(), tree.hash(), Hash([9; 32])];
        for _ in 0..12 {
            hashes.extend(tree.find_tree(&random_path(rng)).unwrap().map(|found| found.hash()));
            let seen = prove(&tree, &[Op::Find(random_path(rng))]);
            each_part(&mut seen.state.clone(), &mut |part| match part {
                Part::Tree(ProofTree::BlindedNode(hash) | ProofTree::BlindedValue(hash))
                | Part::Inode(InodeTree::BlindedInode(hash)) => hashes.push(*hash),
                _ => {}
            });
        }

        Self { tree, hashes }
    }

    fn root(&self) -> KindedHash {
        kinded(&self.tree)
    }
}

/// A part of a state.
enum Part<'a> {
    Tree(&'a mut ProofTree),
    Inode(&'a mut InodeTree),
}

/// Visits all parts of a state, those below before those above.
fn each_part(tree: &mut ProofTree, visit: &mut dyn FnMut(Part<'_>)) {
    match tree {
        ProofTree::Node(entries) => {
            for (_, below) in entries.iter_mut() {
                each_part(below, visit);
            }
        }
        ProofTree::Inode(inode) => each_inode(inode, visit),
        ProofTree::Extender(chain) => each_bucket(&mut chain.proof, visit),
        ProofTree::Value(_) | ProofTree::BlindedValue(_) | ProofTree::BlindedNode(_) => {}
    }
    visit(Part::Tree(tree));
}

fn each_inode(inode: &mut InodeProof, visit: &mut dyn FnMut(Part<'_>)) {
    for (_, below) in &mut inode.proofs {
        each_bucket(below, visit);
    }
}

fn each_bucket(tree: &mut InodeTree, visit: &mut dyn FnMut(Part<'_>)) {
    match tree {
        InodeTree::Values(entries) => {
            for (_, below) in entries.iter_mut() {
                each_part(below, visit);
            }
        }
        InodeTree::Tree(inode) => each_inode(inode, visit),
        InodeTree::Extender(chain) => each_bucket(&mut chain.proof, visit),
        InodeTree::BlindedInode(_) => {}
    }
    visit(Part::Inode(tree));
}

/// Calls `forge` with one part.
fn at_random(rng: &mut ChaCha8Rng, state: &mut ProofTree, forge: impl FnOnce(Part<'_>)) {
    let mut count = 0;
    each_part(state, &mut |_| count += 1);
    let mut left = rng.index(count);
    let mut forge = Some(forge);
    each_part(state, &mut |part| {
        if left == 0
            && let Some(forge) = forge.take()
        {
            forge(part);
        }
        left = left.saturating_sub(1);
    });
}

/// The hash of a part, as far as it has one where it stands alone.
fn hash_of(rules: &Rules, tree: &ProofTree) -> Option<KindedHash> {
    let nothing = KindedHash::directory(Hash([0; 32]));
    match Proof::new(nothing, nothing, tree.clone()).verify(rules, nothing) {
        Err(ProofError::BeforeMismatch { found, .. }) => Some(found),
        _ => None,
    }
}

fn made_up(rng: &mut ChaCha8Rng, known: &Known) -> ProofTree {
    let hash = *rng.pick(&known.hashes);
    let entry = |rng: &mut ChaCha8Rng, tree| (rng.below(24).to_string().into_bytes().into(), tree);
    let bucket = |hash| InodeTree::BlindedInode(hash);

    match rng.below(7) {
        0 => ProofTree::Value(vec![rng.below(3) as u8]),
        1 => ProofTree::BlindedValue(hash),
        2 => ProofTree::BlindedNode(hash),
        3 => ProofTree::Node(Vec::new()),
        4 => ProofTree::Node(vec![entry(rng, ProofTree::BlindedValue(hash))]),
        5 => ProofTree::Inode(InodeProof {
            length: rng.below(90),
            proofs: vec![(0, bucket(hash)), (1, bucket(*rng.pick(&known.hashes)))],
        }),
        _ => ProofTree::Extender(ExtenderProof {
            length: rng.below(90),
            segment: vec![0; 1 + rng.index(3)],
            proof: Box::new(bucket(hash)),
        }),
    }
}

fn forge_tree(rng: &mut ChaCha8Rng, known: &Known, tree: &mut ProofTree) {
    let hash = hash_of(known.tree.rules(), tree);
    match (rng.below(8), &mut *tree, hash) {
        // Hidden in honesty, or as the other kind.
        (0..=2, _, Some(KindedHash { kind, hash })) => {
            let as_value = (kind == terrane_context::Kind::Value) != rng.chance(1, 4);
            *tree =
                if as_value { ProofTree::BlindedValue(hash) } else { ProofTree::BlindedNode(hash) };
        }
        (3, ProofTree::Node(entries), _) if !entries.is_empty() => {
            let at = rng.index(entries.len());
            entries.remove(at);
        }
        (4, ProofTree::Inode(inode), _) => forge_inode(rng, known, inode),
        (4, ProofTree::Extender(chain), _) => forge_chain(rng, chain),
        (5, ProofTree::Inode(inode), _) if inode.proofs.len() == 1 => {
            let (index, below) = inode.proofs.remove(0);
            let length = inode.length;
            let proof = Box::new(below);
            *tree = ProofTree::Extender(ExtenderProof { length, segment: vec![index], proof });
        }
        (5, ProofTree::BlindedValue(hash), _) => *tree = ProofTree::BlindedNode(*hash),
        (5, ProofTree::BlindedNode(hash), _) => *tree = ProofTree::BlindedValue(*hash),
        _ => *tree = made_up(rng, known),
    }
}

fn forge_inode(rng: &mut ChaCha8Rng, known: &Known, inode: &mut InodeProof) {
    match rng.below(4) {
        0 => inode.length = inode.length.wrapping_add(rng.below(5)).wrapping_sub(2),
        1 => inode.proofs.truncate(rng.index(inode.proofs.len() + 1)),
        2 => {
            let count = inode.proofs.len();
            if let Some((index, _)) = inode.proofs.get_mut(rng.index(count.max(1))) {
                *index ^= 1;
            }
            inode.proofs.sort_by_key(|proof| proof.0);
        }
        _ => {
            let hidden = InodeTree::BlindedInode(*rng.pick(&known.hashes));
            inode.proofs.push((rng.below(32) as u8, hidden));
            inode.proofs.sort_by_key(|proof| proof.0);
        }
    }
}

fn forge_chain(rng: &mut ChaCha8Rng, chain: &mut ExtenderProof) {
    match rng.below(3) {
        0 => chain.length = chain.length.wrapping_add(rng.below(5)).wrapping_sub(2),
        1 => drop(chain.segment.pop()),
        _ => chain.segment.push(rng.below(2) as u8),
    }
}

fn forge_bucket(rng: &mut ChaCha8Rng, known: &Known, tree: &mut InodeTree) {
    let hidden = InodeTree::BlindedInode(*rng.pick(&known.hashes));
    match (rng.below(4), &mut *tree) {
        (0, InodeTree::Values(entries)) if !entries.is_empty() => {
            let at = rng.index(entries.len());
            entries.remove(at);
        }
        (1, InodeTree::Values(entries)) => {
            let name: Box<[u8]> = rng.below(24).to_string().into_bytes().into();
            entries.push((name, made_up(rng, known)));
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        (0 | 1, InodeTree::Tree(inode)) => forge_inode(rng, known, inode),
        (0 | 1, InodeTree::Extender(chain)) => forge_chain(rng, chain),
        _ => *tree = hidden,
    }
}

fn forge_end(rng: &mut ChaCha8Rng, known: &Known, end: &mut KindedHash) {
    let hash = *rng.pick(&known.hashes);
    *end = match rng.below(4) {
        0 => KindedHash::directory(hash),
        1 => KindedHash::value(hash),
        2 => known.root(),
        _ => KindedHash::value(known.tree.hash()),
    };
}

fn forged(rng: &mut ChaCha8Rng, known: &Known) -> Parts {
    let ops: Vec<Op> = (0..=rng.below(3)).map(|_| random_op(rng)).collect();
    let mut parts = prove(&known.tree, &ops);
    for _ in 0..=rng.below(4) {
        match rng.below(12) {
            0 => forge_end(rng, known, &mut parts.before),
            1 => forge_end(rng, known, &mut parts.after),
            2 => parts.state = made_up(rng, known),
            3 => {
                // All of one root: the two ends and the state, as value or as directory.
                let root = known.tree.hash();
                let is_value = rng.chance(1, 2);
                let end =
                    if is_value { KindedHash::value(root) } else { KindedHash::directory(root) };
                let hidden =
                    if is_value { ProofTree::BlindedValue } else { ProofTree::BlindedNode };
                parts = Parts { before: end, after: end, state: hidden(root) };
            }
            _ => {
                let mut state = parts.state.clone();
                let mut choices = rng.clone();
                at_random(rng, &mut state, |part| match part {
                    Part::Tree(tree) => forge_tree(&mut choices, known, tree),
                    Part::Inode(tree) => forge_bucket(&mut choices, known, tree),
                });
                parts.state = state;
            }
        }
    }

    parts
}

/// All questions about a path, and what a tree says.
fn questions(tree: &Tree, path: &[String]) -> [Result<String>; 5] {
    [
        tree.find(path).map(|found| format!("{found:?}")),
        tree.mem(path).map(|found| found.to_string()),
        tree.mem_tree(path).map(|found| found.to_string()),
        tree.length(path).map(|count| count.to_string()),
        tree.list(path, 0, 40).map(|page| format!("{page:?}")),
    ]
}

#[test]
fn what_is_forged_is_refused_or_true() {
    let mut accepted = 0;
    let mut told = 0;
    let mut refused = 0;
    for_each_seed("what_is_forged_is_refused_or_true", 60, |rng, _seed| {
        let known = Known::of(rng);
        for _ in 0..25 {
            let parts = forged(rng, &known);
            // As its bytes, if it has any; else as it is.
            let proof = match parts.encode() {
                Ok(bytes) => Proof::decode(&bytes).unwrap(),
                Err(_) => parts.proof(),
            };
            let Ok(verified) = proof.verify(known.tree.rules(), known.root()) else {
                refused += 1;
                continue;
            };
            accepted += 1;
            for _ in 0..12 {
                let path = random_path(rng);
                let answers = questions(verified.tree(), &path);
                for (said, truth) in answers.into_iter().zip(questions(&known.tree, &path)) {
                    match said {
                        Ok(said) => assert_eq!(said, truth.unwrap(), "{path:?} {parts:?}"),
                        Err(Error::NotProvided { .. }) => continue,
                        Err(other) => panic!("{other:?} {parts:?}"),
                    }
                    told += 1;
                }
                let ops: Vec<Op> = (0..=rng.below(3)).map(|_| random_op(rng)).collect();
                if let Ok((after, said)) = verified.replay(|tree| run(tree, &ops)) {
                    let (changed, truth) = run(known.tree.clone(), &ops).unwrap();
                    assert_eq!((after, said), (kinded(&changed), truth), "{ops:?} {parts:?}");
                }
            }
        }
    });
    if std::env::var_os("SEED").is_none() {
        assert!(accepted > 100 && told > 1_000 && refused > 500, "{accepted} {told} {refused}");
    }
}

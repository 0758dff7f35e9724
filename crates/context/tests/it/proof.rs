//! Proofs: what is proven is what the tree does, what was tampered with is refused by name, and no
//! bytes are too bad.
//!
//! Method: every proof is made, encoded, decoded and verified, and compared with the same calls on
//! the tree itself; forgeries are made by changing one part of a proof that holds.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Change, Context, Error, ExtenderProof, Hash, InodeProof, InodeTree, Kind, KindedHash, Meta,
    NESTING_MAX, Options, Proof, ProofError, ProofTree, Result, Rules, Store, Target, Tree,
    Versions, merkle_tree, ocaml_hash, produce_tree_proof,
};
use terrane_io::{Disk, MemoryDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

const ROOT: [&str; 0] = [];
const SMALL: Rules = Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS };

/// A directory of `count` names, beside others.
fn tree_of(rules: Rules, count: usize) -> Tree {
    let mut tree = Tree::new(rules).unwrap();
    tree.add(&["beside"], *b"unseen").unwrap();
    tree.add(&["other", "x"], *b"unseen").unwrap();
    for name in 0..count {
        tree.add(&["d", &name.to_string()], name.to_string().into_bytes()).unwrap();
    }
    tree
}

/// A call, and what it said.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Find(Vec<String>),
    MemTree(Vec<String>),
    Length(Vec<String>),
    List(Vec<String>, usize, usize),
    Add(Vec<String>, u8),
    Remove(Vec<String>),
    Copy(Vec<String>, Vec<String>),
    IsEmpty,
}

pub(crate) fn path(text: &str) -> Vec<String> {
    text.split('/').map(str::to_owned).collect()
}

fn apply(tree: &mut Tree, op: &Op) -> Result<String> {
    Ok(match op {
        Op::Find(at) => format!("{:?}", tree.find(at)?),
        Op::MemTree(at) => format!("{:?} {:?}", tree.mem(at)?, tree.mem_tree(at)?),
        Op::Length(at) => tree.length(at)?.to_string(),
        Op::List(at, offset, length) => {
            let page = tree.list(at, *offset, *length)?;
            let line = |(step, tree): &(Box<[u8]>, Tree)| format!("{step:?} {tree:?}");
            page.iter().map(line).collect::<Vec<_>>().join(",")
        }
        Op::Add(at, value) => tree.add(at, [*value])?.to_string(),
        Op::Remove(at) => tree.remove(at)?.to_string(),
        Op::Copy(from, to) => match tree.find_tree(from)? {
            Some(found) => tree.add_tree(to, &found)?.to_string(),
            None => "absent".to_owned(),
        },
        Op::IsEmpty => tree.is_empty().to_string(),
    })
}

pub(crate) fn run(mut tree: Tree, ops: &[Op]) -> Result<(Tree, Vec<String>)> {
    let said = ops.iter().map(|op| apply(&mut tree, op)).collect::<Result<_>>()?;
    Ok((tree, said))
}

/// Parts of a proof, which a forger may change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    pub(crate) before: KindedHash,
    pub(crate) after: KindedHash,
    pub(crate) state: ProofTree,
}

impl Parts {
    pub(crate) fn proof(&self) -> Proof {
        Proof::new(self.before, self.after, self.state.clone())
    }

    pub(crate) fn encode(&self) -> std::result::Result<Vec<u8>, ProofError> {
        self.proof().encode()
    }
}

pub(crate) fn kinded(tree: &Tree) -> KindedHash {
    KindedHash { kind: tree.kind(), hash: tree.hash() }
}

/// Makes a proof and checks all that must hold of it.
pub(crate) fn prove(tree: &Tree, ops: &[Op]) -> Parts {
    let before = kinded(tree);
    let (proof, said) = produce_tree_proof(tree, |tree| run(tree, ops)).unwrap();
    let (changed, expected) = run(tree.clone(), ops).unwrap();
    assert_eq!(said, expected, "{ops:?}");

    let bytes = proof.encode().unwrap();
    let decoded = Proof::decode(&bytes).unwrap();
    assert_eq!(decoded, proof);

    let verified = decoded.verify(tree.rules(), before).unwrap();
    let (after, said) = verified.replay(|tree| run(tree, ops)).unwrap();
    assert_eq!(said, expected, "{ops:?}");
    assert_eq!(after, kinded(&changed), "{ops:?}");

    Parts { before, after, state: verified.state().clone() }
}

#[test]
fn every_operation_on_directories_of_every_size() {
    for (count, bytes_max) in [(32, 3_000), (257, 6_000), (100_000, 7_000)] {
        for rules in [Rules::TEZOS, Rules::BLAKE3] {
            let tree = tree_of(rules, count);
            let size = |ops: &[Op]| prove(&tree, ops).encode().unwrap().len();
            let last = format!("d/{}", count - 1);
            assert!(size(&[Op::Find(path(&last))]) <= bytes_max);
            assert!(size(&[Op::Find(path("d/absent"))]) <= bytes_max);
            assert!(size(&[Op::Add(path("d/new"), 7)]) <= bytes_max);
            assert!(size(&[Op::Add(path(&last), 7)]) <= bytes_max);
            assert!(size(&[Op::Length(path("d"))]) <= bytes_max.min(3_000));
            assert!(size(&[Op::List(path("d"), 3, 10)]) <= bytes_max);
            // One fewer than 257 is hashed flat, and takes all the others.
            let removal = size(&[Op::Remove(path(&last))]);
            assert!(removal <= if count == 257 { 20_000 } else { bytes_max }, "{removal}");
        }
    }
}

#[test]
fn sequences_of_calls_that_cross_every_limit() {
    for count in [31, 255, 256, 258] {
        let tree = tree_of(Rules::TEZOS, count);
        let adds = (0..4).map(|name| Op::Add(path(&format!("d/new {name}")), 1));
        let removals = (0..6).map(|name| Op::Remove(path(&format!("d/{name}"))));
        prove(&tree, &adds.clone().chain(removals.clone()).collect::<Vec<_>>());
        prove(&tree, &removals.chain(adds).collect::<Vec<_>>());
    }
}

/// Three names that share the first buckets of an inode of two, the third of which leaves the
/// others at depth 3.
fn names_of_a_chain() -> [String; 3] {
    let bucket = |depth, name: &str| ocaml_hash(depth, name.as_bytes()) % 2;
    let bits = |name: &str| [0, 1, 2, 3].map(|depth| bucket(depth, name));
    let mut found: [Option<String>; 3] = [None, None, None];

    for number in 0.. {
        let name = number.to_string();
        let place = match bits(&name) {
            [0, 0, 0, 0] if found[0].is_none() => 0,
            [0, 0, 0, 0] => 1,
            [0, 0, 0, 1] => 2,
            _ => continue,
        };
        found[place].get_or_insert(name);
        if found.iter().all(Option::is_some) {
            break;
        }
    }

    found.map(Option::unwrap)
}

#[test]
fn a_chain_of_inodes_is_an_extender() {
    let rules = Rules { branching: 2, flat_limit: 1, ..Rules::TEZOS };
    let [x, y, z] = names_of_a_chain();
    let mut tree = Tree::new(rules).unwrap();
    for (name, value) in [(&x, b"x"), (&y, b"y"), (&z, b"z")] {
        tree.add(&[name], *value).unwrap();
    }
    let proof = prove(&tree, &[Op::Find(vec![x.clone()])]);
    let y_hash = rules.value_hash(b"y");
    let mut values = vec![
        (x.as_bytes().into(), ProofTree::Value(b"x".to_vec())),
        (y.as_bytes().into(), ProofTree::BlindedValue(y_hash)),
    ];
    values.sort_by(|a: &(Box<[u8]>, _), b| a.0.cmp(&b.0));
    let ProofTree::Extender(ExtenderProof { length: 3, segment, proof: below }) = &proof.state
    else {
        panic!("{:?}", proof.state)
    };
    assert_eq!(segment, &[0, 0, 0]);
    let InodeTree::Tree(InodeProof { length: 3, proofs }) = &**below else { panic!("{below:?}") };
    assert_eq!(proofs[0], (0, InodeTree::Values(values)));
    assert!(matches!(proofs[1], (1, InodeTree::BlindedInode(_))));
    assert_eq!(proofs.len(), 2);

    let length = prove(&tree, &[Op::Length(vec![])]);
    let ProofTree::Extender(chain) = &length.state else { panic!("{:?}", length.state) };
    assert_eq!((chain.length, chain.segment.as_slice()), (3, [0].as_slice()));
    assert!(matches!(*chain.proof, InodeTree::BlindedInode(_)));

    prove(&tree, &[Op::Remove(vec![x]), Op::Remove(vec![y]), Op::Remove(vec![z]), Op::IsEmpty]);
}

#[test]
fn what_is_blinded_is_never_absent() {
    let tree = tree_of(Rules::TEZOS, 1_000);
    let check = |seen: &[Op], asked: Op| {
        let proof = prove(&tree, seen).proof();
        let verified = proof.verify(tree.rules(), kinded(&tree))?;
        let (_, said) = run(verified.tree().clone(), std::slice::from_ref(&asked))?;
        Ok::<_, ProofError>(said)
    };

    let missing = |seen: Op, asked: Op| match check(&[seen], asked) {
        Err(ProofError::NotProvided { path }) => path.to_string(),
        other => panic!("{other:?}"),
    };

    let find = |at: &str| Op::Find(path(at));
    assert_eq!(missing(find("d/1"), find("beside")), "beside");
    assert_eq!(missing(find("d/1"), find("other/x")), "other");
    assert_eq!(missing(find("beside"), Op::Length(path("d"))), "d");
    assert_eq!(missing(find("beside"), Op::List(path("d"), 0, 1)), "d");
    assert_eq!(missing(Op::Length(path("d")), find("d/1")), "d/1");
    assert_eq!(missing(Op::Length(path("d")), Op::MemTree(path("d/1"))), "d/1");
    assert_eq!(missing(Op::Length(path("d")), Op::Add(path("d/1"), 1)), "d/1");
    assert_eq!(missing(Op::Length(path("d")), Op::Remove(path("d/1"))), "d/1");
    assert_eq!(missing(Op::IsEmpty, find("beside")), "the root");
    assert_eq!(missing(Op::MemTree(path("beside")), find("beside")), "beside");

    // Proven absent, and present without being looked into.
    assert_eq!(check(&[find("nothing")], find("nor this")).unwrap(), ["None"]);
    assert_eq!(check(&[find("d/x")], find("d/x")).unwrap(), ["None"]);
    assert_eq!(check(&[find("beside")], find("beside/through")).unwrap(), ["None"]);
    assert_eq!(check(&[find("beside")], Op::MemTree(path("d"))).unwrap(), ["false true"]);
    assert_eq!(check(&[Op::Length(path("d"))], Op::Length(path("d"))).unwrap(), ["1000"]);

    // An equal binding is known by its hash alone.
    let mut value = tree.clone();
    value.add(&["one"], [1]).unwrap();
    let proof = prove(&value, &[Op::MemTree(path("one"))]);
    let said = verify(value.rules(), &proof, &[Op::Add(path("one"), 1)]);

    assert_eq!(said.unwrap(), ["false"]);
}

/// Runs calls on a proof, for who trusts the root that the proof names.
fn verify(
    rules: &Rules,
    parts: &Parts,
    ops: &[Op],
) -> std::result::Result<Vec<String>, ProofError> {
    let proof = parts.proof();
    let (_, said) = proof.verify(rules, parts.before)?.replay(|tree| run(tree, ops))?;
    Ok(said)
}

#[test]
fn what_was_tampered_with_is_refused_by_name() {
    let tree = tree_of(Rules::TEZOS, 20);
    let rules = tree.rules();
    let ops = [Op::Find(path("d/1")), Op::Add(path("d/2"), 2)];
    let proof = prove(&tree, &ops);

    let forged = |forge: &dyn Fn(&mut Parts)| {
        let mut forged = proof.clone();
        forge(&mut forged);
        assert_ne!(forged, proof);
        verify(rules, &forged, &ops).unwrap_err()
    };

    let before = |forge: &dyn Fn(&mut Parts)| {
        let error = forged(forge);
        assert!(matches!(error, ProofError::BeforeMismatch { .. }), "{error:?}");
    };

    before(&|proof| proof.before.hash.0[0] ^= 1);
    before(&|proof| proof.before.kind = Kind::Value);
    before(&|proof| *value_of(directory(proof), "1") = ProofTree::Value(b"forged".to_vec()));
    before(&|proof| *value_of(directory(proof), "3") = ProofTree::BlindedNode(Hash([1; 32])));
    before(&|proof| *value_of(directory(proof), "3") = ProofTree::BlindedValue(Hash([1; 32])));
    before(&|proof| drop(directory(proof).remove(3)));
    before(&|proof| directory(proof).push((b"z".as_slice().into(), ProofTree::Value(Vec::new()))));
    before(&|proof| directory(proof)[0].0 = b"!".as_slice().into());
    before(&|proof| proof.state = ProofTree::BlindedNode(Hash([1; 32])));

    for error in [
        forged(&|proof| proof.after.hash.0[31] ^= 1),
        forged(&|proof| proof.after.kind = Kind::Value),
    ] {
        assert!(matches!(error, ProofError::AfterMismatch { .. }), "{error:?}");
    }

    let error = forged(&|proof| proof.state = ProofTree::BlindedNode(proof.before.hash));
    assert!(matches!(error, ProofError::NotProvided { .. }), "{error:?}");
    let error = forged(&|proof| {
        let hash = rules.value_hash(b"1");
        *value_of(directory(proof), "1") = ProofTree::BlindedValue(hash);
    });
    let ProofError::NotProvided { path: at } = error else { panic!("{error:?}") };
    assert_eq!(at.to_string(), "d/1");
    let error = verify(rules, &proof, &[ops[0].clone(), Op::Add(path("d/2"), 3)]).unwrap_err();
    assert!(matches!(error, ProofError::AfterMismatch { .. }), "another computation: {error:?}");
    let error = verify(&Rules::BLAKE3, &proof, &ops).unwrap_err();

    assert!(matches!(error, ProofError::BeforeMismatch { .. }), "other rules: {error:?}");
}

/// Verifies the bytes of a proof.
fn verify_bytes(
    rules: &Rules,
    bytes: &[u8],
    ops: &[Op],
) -> std::result::Result<Vec<String>, ProofError> {
    let kind = if bytes[2] == 0 { Kind::Value } else { Kind::Directory };
    let named = KindedHash { kind, hash: Hash(bytes[3..35].try_into().unwrap()) };
    let proof = Proof::decode(bytes)?;
    let (_, said) = proof.verify(rules, named)?.replay(|tree| run(tree, ops))?;
    Ok(said)
}

/// The entries of `d`.
fn directory(proof: &mut Parts) -> &mut Vec<(Box<[u8]>, ProofTree)> {
    let ProofTree::Node(root) = &mut proof.state else { panic!() };
    match value_of(root, "d") {
        ProofTree::Node(entries) => entries,
        other => panic!("{other:?}"),
    }
}

fn value_of<'a>(entries: &'a mut [(Box<[u8]>, ProofTree)], step: &str) -> &'a mut ProofTree {
    &mut entries.iter_mut().find(|entry| &*entry.0 == step.as_bytes()).unwrap().1
}

/// Three steps in an inode at `d`, one of them seen.
fn inode_proof() -> (Rules, Parts, Vec<Op>) {
    let tree = tree_of(SMALL, 40);
    let ops = vec![Op::Find(path("d/1"))];
    let proof = prove(&tree, &ops);
    (SMALL, proof, ops)
}

fn inode(proof: &mut Parts) -> &mut InodeProof {
    let ProofTree::Node(root) = &mut proof.state else { panic!() };
    match value_of(root, "d") {
        ProofTree::Inode(inode) => inode,
        other => panic!("{other:?}"),
    }
}

/// The first leaf in an inode.
fn leaf(inode: &mut InodeProof) -> &mut Vec<(Box<[u8]>, ProofTree)> {
    for (_, tree) in &mut inode.proofs {
        match tree {
            InodeTree::BlindedInode(_) => {}
            InodeTree::Values(entries) => return entries,
            InodeTree::Tree(below) => return leaf(below),
            InodeTree::Extender(chain) => match &mut *chain.proof {
                InodeTree::Values(entries) => return entries,
                InodeTree::Tree(below) => return leaf(below),
                other => panic!("{other:?}"),
            },
        }
    }

    panic!("no leaf")
}

#[test]
fn a_state_that_is_no_part_of_a_tree_is_refused() {
    let (rules, proof, ops) = inode_proof();
    let shape = |expected: &str, forge: &dyn Fn(&mut Parts)| {
        let mut forged = proof.clone();
        forge(&mut forged);
        match verify(&rules, &forged, &ops) {
            Err(ProofError::Shape { rule, .. }) => assert_eq!(rule, expected),
            other => panic!("{expected}: {other:?}"),
        }
    };

    let length = "the length is that of what is below";
    shape("a small directory lists its steps", &|proof| inode(proof).length = 3);
    shape("a length has 63 bits", &|proof| inode(proof).length = u64::MAX);
    shape(length, &|proof| inode(proof).proofs.clear());
    shape(length, &|proof| drop(inode(proof).proofs.pop()));
    shape("an index is below the branching", &|proof| inode(proof).proofs[1].0 = 2);
    shape("the indices of buckets ascend", &|proof| inode(proof).proofs.reverse());
    shape("the indices of buckets ascend", &|proof| inode(proof).proofs[1].0 = 0);
    shape("a bucket that is there is not empty", &|proof| leaf(inode(proof)).clear());
    shape("steps ascend, and none is empty", &|proof| {
        let entries = leaf(inode(proof));
        entries.insert(0, entries[0].clone());
    });
    shape("steps ascend, and none is empty", &|proof| leaf(inode(proof))[0].0 = [].into());
    shape("a step has at most 255 bytes", &|proof| leaf(inode(proof))[0].0 = [9; 256].into());
    let other = (0u32..).map(|number| number.to_string());
    let own = ocaml_hash(0, b"1") % 2;
    let other = other.into_iter().find(|name| ocaml_hash(0, name.as_bytes()) % 2 != own).unwrap();
    shape("a step is in its bucket", &|proof| {
        leaf(inode(proof)).truncate(1);
        leaf(inode(proof))[0].0 = other.as_bytes().into();
    });
    shape("a large inode has buckets", &|proof| {
        let entry = leaf(inode(proof))[0].clone();
        inode(proof).proofs[0].1 = InodeTree::Values(vec![entry; 3]);
    });
    shape("a large directory has buckets", &|proof| {
        let ProofTree::Node(root) = &mut proof.state else { panic!() };
        *root = vec![root[0].clone(); 4];
    });
    shape("an empty directory is not bound", &|proof| {
        let ProofTree::Node(root) = &mut proof.state else { panic!() };
        *value_of(root, "other") = ProofTree::Node(Vec::new());
    });
    shape("an empty directory is not blinded", &|proof| {
        let ProofTree::Node(root) = &mut proof.state else { panic!() };
        *value_of(root, "other") = ProofTree::BlindedNode(rules.empty_hash());
    });
    shape("an empty directory is not blinded", &|proof| {
        proof.state = ProofTree::BlindedNode(rules.empty_hash());
    });

    let chain = |segment: Vec<u8>, length| {
        let proof = Box::new(InodeTree::BlindedInode(Hash([1; 32])));
        ProofTree::Extender(ExtenderProof { length, segment, proof })
    };

    shape("a chain has an index", &|proof| proof.state = chain(vec![], 9));
    shape("an index is below the branching", &|proof| proof.state = chain(vec![0, 2], 9));
    shape("inodes nest at most 64 deep", &|proof| proof.state = chain(vec![0; 65], 9));
    shape("a small directory lists its steps", &|proof| proof.state = chain(vec![0], 2));
    let error = verify(&Rules { branching: 3, ..rules }, &proof, &ops).unwrap_err();
    assert!(matches!(error, ProofError::Tree(Error::InvalidConfig { .. })), "{error:?}");
    let mut forged = proof.clone();
    inode(&mut forged).length += 1;
    let error = verify(&rules, &forged, &ops).unwrap_err();

    assert!(matches!(error, ProofError::BeforeMismatch { .. }), "{error:?}");
}

#[test]
fn a_proof_of_one_path_holds_its_hash_or_all_of_it() {
    let tree = tree_of(Rules::TEZOS, 40);
    let verify = |rules: &Rules, proof: &Proof, ops: &[Op]| {
        let (after, said) = proof.verify(rules, kinded(&tree))?.replay(|tree| run(tree, ops))?;
        assert_eq!(after, kinded(&tree));
        Ok::<_, ProofError>(said)
    };

    let hole = merkle_tree(&tree, &["d"], Target::Hole).unwrap();
    let raw = merkle_tree(&tree, &["d"], Target::Raw).unwrap();
    let find = [Op::Find(path("d/7"))];
    assert!(matches!(verify(tree.rules(), &hole, &find), Err(ProofError::NotProvided { .. })));
    let mem = [Op::MemTree(path("d")), Op::MemTree(path("absent"))];
    assert_eq!(verify(tree.rules(), &hole, &mem).unwrap(), ["false true", "false false"]);
    assert_eq!(verify(tree.rules(), &raw, &find).unwrap(), ["Some([55])"]);
    let other = [Op::Find(path("other/x"))];
    assert!(matches!(verify(tree.rules(), &raw, &other), Err(ProofError::NotProvided { .. })));
    let value = merkle_tree(&tree, &["d", "7"], Target::Raw).unwrap();
    assert_eq!(verify(tree.rules(), &value, &find).unwrap(), ["Some([55])"]);
    let absent = merkle_tree(&tree, &["d", "x", "y"], Target::Raw).unwrap();
    assert_eq!(verify(tree.rules(), &absent, &[Op::Find(path("d/x"))]).unwrap(), ["None"]);
    let whole = merkle_tree(&tree, &ROOT, Target::Raw).unwrap();

    assert_eq!(verify(tree.rules(), &whole, &other).unwrap().len(), 1);
}

#[test]
fn proofs_of_values_and_of_nothing() {
    let empty = Tree::new(Rules::TEZOS).unwrap();
    let proof = prove(&empty, &[Op::IsEmpty, Op::Find(path("x")), Op::Length(vec![])]);
    assert_eq!(proof.state, ProofTree::Node(Vec::new()));
    prove(&empty, &[Op::Add(path("x/y"), 1), Op::Remove(path("x/y")), Op::IsEmpty]);
    let value = empty.of_value(*b"v");
    let proof = prove(&value, &[Op::Find(vec![])]);
    assert_eq!(proof.state, ProofTree::Value(b"v".to_vec()));

    // A value that is all there is shows itself: its hash alone would not show what kind of tree it
    // is of.
    let proof = prove(&value, &[Op::MemTree(vec![])]);
    assert_eq!(proof.state, ProofTree::Value(b"v".to_vec()));
    prove(&value, &[Op::Add(path("x"), 1), Op::Find(path("x"))]);

    // The empty value and the empty directory share their hash, and are not taken for each other.
    let nothing = empty.of_value(*b"");
    let mut proof = prove(&nothing, &[Op::Find(vec![])]);
    proof.before.kind = Kind::Directory;
    let error = verify(&Rules::TEZOS, &proof, &[Op::Find(vec![])]).unwrap_err();

    assert!(matches!(error, ProofError::BeforeMismatch { .. }), "{error:?}");
}

#[test]
fn an_error_of_the_computation_is_that_of_the_proof() {
    let tree = tree_of(Rules::TEZOS, 3);
    let too_long = [Op::Add(vec!["x".repeat(256)], 1)];
    let outcome = produce_tree_proof(&tree, |tree| run(tree, &too_long));
    assert!(matches!(outcome, Err(ProofError::Tree(Error::StepSize { bytes: 256 }))));
}

#[test]
fn a_part_that_stands_in_many_places_is_proven_in_one() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    tree.add(&["v"], *b"1").unwrap();
    for _ in 0..40 {
        let mut above = tree.empty();
        above.add_tree(&["left"], &tree).unwrap();
        above.add_tree(&["right"], &tree).unwrap();
        tree = above;
    }
    let at: Vec<String> = (0..40).map(|_| "left".to_owned()).chain(["v".to_owned()]).collect();
    let proof = prove(&tree, &[Op::Find(at.clone()), Op::Add(at, 2)]);
    assert!(proof.encode().unwrap().len() < 41 * 64);
}

pub(crate) fn random_path(rng: &mut ChaCha8Rng) -> Vec<String> {
    let len = rng.below(4);
    (0..len).map(|level| rng.below(if level == 0 { 3 } else { 24 }).to_string()).collect()
}

pub(crate) fn random_op(rng: &mut ChaCha8Rng) -> Op {
    match rng.below(11) {
        0 => Op::Find(random_path(rng)),
        1 => Op::MemTree(random_path(rng)),
        2 => Op::Length(random_path(rng)),
        3 => Op::List(random_path(rng), rng.index(30), rng.index(8)),
        4..=6 => Op::Add([random_path(rng), vec!["v".to_owned()]].concat(), rng.below(3) as u8),
        7..=8 => Op::Remove([random_path(rng), vec!["v".to_owned()]].concat()),
        9 => Op::Copy(random_path(rng), [random_path(rng), vec!["c".to_owned()]].concat()),
        _ => Op::Remove(random_path(rng)),
    }
}

#[test]
fn random_calls_are_proven() {
    for_each_seed("random_calls_are_proven", 80, |rng, _seed| {
        let rules = *rng.pick(&[
            SMALL,
            Rules::TEZOS,
            Rules { flat_limit: 5, ..Rules::BLAKE3 },
            Rules { branching: 4, flat_limit: 1, ..Rules::TEZOS },
        ]);
        let mut tree = Tree::new(rules).unwrap();
        for _ in 0..rng.below(300) {
            let mut at = random_path(rng);
            at.push(rng.below(24).to_string());
            tree.add(&at, [rng.below(3) as u8]).unwrap();
        }
        for _ in 0..6 {
            let ops: Vec<Op> = (0..rng.below(7)).map(|_| random_op(rng)).collect();
            prove(&tree, &ops);
            tree = run(tree, &ops).unwrap().0;
        }
    });
}

#[test]
fn damaged_bytes_are_refused_or_fail_or_are_the_same() {
    let tree = tree_of(SMALL, 20);
    let mut changes = 0;
    for ops in [
        vec![Op::Find(path("d/1")), Op::Length(path("other"))],
        vec![Op::Add(path("d/new/x"), 1), Op::Remove(path("d/3"))],
    ] {
        let proof = prove(&tree, &ops);
        let said = verify(&SMALL, &proof, &ops).unwrap();
        let bytes = proof.encode().unwrap();
        for end in 0..bytes.len() {
            assert!(Proof::decode(&bytes[..end]).is_err(), "the first {end} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(decoded) = Proof::decode(&damaged) else { continue };
            assert_eq!(decoded.encode().unwrap(), damaged, "one form only");
            match verify_bytes(&SMALL, &damaged, &ops) {
                Err(_) => changes += 1,
                Ok(_) => panic!("bit {bit} of {said:?} changes nothing"),
            }
        }

        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(Proof::decode(&longer), Err(ProofError::Malformed { .. })));
    }

    assert!(changes > 1_000, "most bits are of hashes");
}

/// States that an adversary has made up are checked by rules alone: here each has the hash that it
/// claims, so that the computation runs on it.
#[test]
fn states_that_are_made_up_never_panic() {
    let (rules, proof, ops) = inode_proof();
    let bytes = proof.encode().unwrap();
    let mut ran = 0;
    for_each_seed("states_that_are_made_up_never_panic", 400, |rng, _seed| {
        let mut damaged = bytes.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.index(damaged.len());
            match rng.below(6) {
                0 => drop(damaged.drain(at..(at + 5).min(damaged.len()))),
                1 => damaged.splice(at..at, rng.bytes(3)).for_each(drop),
                _ => damaged[at] = rng.below(256) as u8,
            }
        }
        let Ok(decoded) = Proof::decode(&damaged) else { return };
        assert_eq!(decoded.encode().unwrap(), damaged);
        if let Err(ProofError::BeforeMismatch { found, .. }) = verify_bytes(&rules, &damaged, &ops)
        {
            damaged[2] = u8::from(found.kind == Kind::Directory);
            damaged[3..35].copy_from_slice(found.hash.as_bytes());
            for _ in 0..20 {
                let ops: Vec<Op> = (0..5).map(|_| made_up_op(rng)).collect();
                match verify_bytes(&rules, &damaged, &ops) {
                    Err(ProofError::AfterMismatch { .. } | ProofError::NotProvided { .. }) => {
                        ran += 1;
                    }
                    other => assert!(other.is_ok(), "{other:?}"),
                }
            }
        }
    });

    if std::env::var_os("SEED").is_none() {
        assert!(ran > 1_000, "{ran}");
    }
}

fn made_up_op(rng: &mut ChaCha8Rng) -> Op {
    let at = path(&format!("d/{}", rng.below(44)));
    match rng.below(5) {
        0 => Op::Find(at),
        1 => Op::Add(at, 1),
        2 => Op::List(path("d"), rng.index(40), 3),
        _ => Op::Remove(at),
    }
}

type Difference = (Vec<Box<[u8]>>, Change);

fn differences(left: &Tree, right: &Tree) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    left.diff(right, |path, change| {
        found.push((path.to_vec(), change));
        Ok::<_, Error>(())
    })?;
    Ok(found)
}

/// Within a computation that is recorded the tree has a source, as a tree of a store has.
#[test]
fn trees_with_a_source_are_proven_walked_and_copied_alike() {
    for_each_seed("trees_with_a_source_are_proven_walked_and_copied_alike", 10, |rng, _seed| {
        let mut tree = Tree::new(SMALL).unwrap();
        for _ in 0..rng.below(200) {
            let at = [random_path(rng), vec!["v".to_owned()]].concat();
            tree.add(&at, [rng.below(3) as u8]).unwrap();
        }
        let changes: Vec<Op> = (0..4).map(|_| random_op(rng)).collect();
        let ops: Vec<Op> = (0..4).map(|_| random_op(rng)).collect();
        let changed = run(tree.clone(), &changes).unwrap().0;
        let expected = prove(&changed, &ops);
        let outcome = produce_tree_proof(&tree, |view| {
            let view = run(view, &changes)?.0;
            assert_eq!(prove(&view, &ops), expected);
            let copy = view.to_memory()?;
            assert_eq!(copy, changed);
            assert_eq!(view.stats()?, changed.stats()?);
            assert_eq!(view.to_concrete()?, changed.to_concrete()?);
            assert_eq!(differences(&view, &tree)?, differences(&copy, &tree)?);
            let merged = view.merge(&tree, &view, |_, _| Ok(None))?;
            assert_eq!(merged, changed);
            Ok((view, ()))
        });
        let (proof, ()) = outcome.unwrap();
        let verified = proof.verify(&SMALL, kinded(&tree)).unwrap();
        let (after, _) = verified.replay(|tree| run(tree, &changes)).unwrap();
        assert_eq!(after, kinded(&changed));
    });
}

/// A store of one commit, of which nothing is in memory.
fn stored(tree: &Tree) -> Context {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let mut options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    options.rules = *tree.rules();
    let dir = Path::new("store");
    let store = Store::create(Arc::clone(&disk), dir, &options).unwrap();
    let mut context = store.empty();
    context.add_tree(&ROOT, tree).unwrap();
    let hash = store.commit(&context, &Meta::tezos(0, "")).unwrap();
    store.close().unwrap();
    drop((context, store));
    let store = Store::open(disk, dir, &options).unwrap();
    store.checkout(&hash).unwrap().unwrap()
}

#[test]
fn trees_of_a_store_are_proven_walked_and_merged_like_those_in_memory() {
    for_each_seed(
        "trees_of_a_store_are_proven_walked_and_merged_like_those_in_memory",
        20,
        |rng, _seed| {
            let mut tree = Tree::new(SMALL).unwrap();
            for _ in 0..rng.below(200) {
                let at = [random_path(rng), vec!["v".to_owned()]].concat();
                let long = if rng.chance(1, 4) { 60 } else { 1 };
                tree.add(&at, vec![rng.below(3) as u8; long]).unwrap();
            }
            tree.add(&["one"], [1]).unwrap();
            let context = stored(&tree);
            let ops: Vec<Op> = (0..4).map(|_| random_op(rng)).collect();
            assert_eq!(prove(context.tree(), &ops), prove(&tree, &ops));
            assert_eq!(context.stats().unwrap(), tree.stats().unwrap());
            assert_eq!(
                context.to_memory().unwrap().to_concrete().unwrap(),
                tree.to_concrete().unwrap()
            );

            let ours = run(context.tree().clone(), &ops).unwrap().0;
            let others: Vec<Op> = (0..2).map(|_| random_op(rng)).collect();
            let theirs = run(context.tree().clone(), &others).unwrap().0;
            let changed = run(tree.clone(), &ops).unwrap().0;
            let expected = differences(&tree, &changed).unwrap();
            assert_eq!(differences(context.tree(), &ours).unwrap(), expected);
            let keep = |_: &[Box<[u8]>], versions: Versions<'_>| Ok(Some(versions.ours.to_vec()));
            let in_memory = changed.merge(&tree, &theirs.to_memory().unwrap(), keep);
            match (ours.merge(context.tree(), &theirs, keep), in_memory) {
                (Ok(merged), Ok(expected)) => assert_eq!(merged, expected),
                (
                    Err(Error::Conflict { path, .. }),
                    Err(Error::Conflict { path: expected, .. }),
                ) => {
                    assert_eq!(path, expected);
                }
                (merged, expected) => panic!("{merged:?} {expected:?}"),
            }
        },
    );
}

/// A commit stores extents in nodes. Nodes of a tree without a store were once taken for nodes of
/// every store that the tree was grafted into.
#[test]
fn a_tree_in_memory_is_grafted_into_several_stores() {
    let mut tree = tree_of(Rules::TEZOS, 300);
    for _ in 0..2 {
        let context = stored(&tree);
        assert_eq!(context.find(&["d", "7"]).unwrap(), Some(b"7".to_vec()));
        assert_eq!(*context.tree(), tree);
    }

    tree.clear();
    assert_eq!(tree.find(&["d", "7"]).unwrap(), Some(b"7".to_vec()), "it is in memory still");
    let [one, mut other] = [stored(&tree), stored(&tree)];
    let outcome = other.add_tree(&["x"], one.tree());
    assert!(matches!(outcome, Err(Error::ForeignTree)), "{outcome:?}");
    assert!(other.add_tree(&["x"], &one.to_memory().unwrap()).unwrap());

    assert!(!other.add_tree(&["x"], &one.to_memory().unwrap()).unwrap(), "it is bound already");
}

/// A value that is stored in its directory is taken out of it to be compared with an equal one; the
/// directory then had a hash and the value none, which hashing had not foreseen.
#[test]
fn an_equal_binding_of_a_small_value_leaves_a_tree_that_can_be_compared_and_proven() {
    let mut tree = Tree::new(SMALL).unwrap();
    for name in 0..20 {
        tree.add(&["d", &name.to_string()], [7]).unwrap();
    }
    let mut context = stored(&tree);
    for name in 0..20 {
        assert!(!context.add(&["d", &name.to_string()], [7]).unwrap());
    }
    assert!(differences(context.tree(), &tree).unwrap().is_empty());
    tree.add(&["d", "19"], [8]).unwrap();
    assert_eq!(differences(context.tree(), &tree).unwrap().len(), 1);
    prove(context.tree(), &[Op::Find(path("d/3"))]);

    assert_eq!(context.to_memory().unwrap(), *context.tree());
}

/// A proof around the bytes of a state.
fn around(state: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1];
    bytes.extend([7; 32]);
    bytes.push(0);
    bytes.extend([8; 32]);
    bytes.extend(state.concat());
    bytes
}

/// Checks that these are the bytes of a state, and of no other.
fn is_state_of(state: &[&[u8]], tree: ProofTree) {
    let before = KindedHash::directory(Hash([7; 32]));
    let proof = Proof::new(before, KindedHash::value(Hash([8; 32])), tree);
    assert_eq!(Proof::decode(&around(state)).unwrap(), proof);
    assert_eq!(proof.encode().unwrap(), around(state));
}

#[test]
fn v1_bytes_are_those_of_the_format() {
    let hash = [9; 32];
    is_state_of(&[&[0, 0, 0, 0, 2], b"ab"], ProofTree::Value(b"ab".to_vec()));
    is_state_of(&[&[1], &hash], ProofTree::BlindedValue(Hash(hash)));
    is_state_of(&[&[3], &hash], ProofTree::BlindedNode(Hash(hash)));
    let entries = [(b"s".as_slice().into(), ProofTree::Value(vec![5]))];
    is_state_of(
        &[&[2, 0, 0, 0, 8], &[1, b's', 0, 0, 0, 0, 1, 5]],
        ProofTree::Node(entries.to_vec()),
    );
    let proofs =
        vec![(3, InodeTree::Values(entries.to_vec())), (31, InodeTree::BlindedInode(Hash(hash)))];
    let sparse = [
        [0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 48].as_slice(),
        &[3, 1, 0, 0, 0, 8, 1, b's', 0, 0, 0, 0, 1, 5],
        &[31, 0],
        &hash,
    ]
    .concat();
    let inode = InodeProof { length: 257, proofs };
    is_state_of(&[&[4], &sparse], ProofTree::Inode(inode.clone()));

    let extender = |segment: &[u8]| ExtenderProof {
        length: 257,
        segment: segment.to_vec(),
        proof: Box::new(InodeTree::Tree(inode.clone())),
    };

    let length = [0, 0, 0, 0, 0, 0, 1, 1];
    // 00000 00000 00000 and the bit that ends it.
    let bytes = [&[5], length.as_slice(), &[2, 0b0000_0000, 0b0000_0001], &[2], &sparse];
    is_state_of(&bytes, ProofTree::Extender(extender(&[0, 0, 0])));

    // 11111 00001, the bit that ends it, and padding.
    let bytes = [&[5], length.as_slice(), &[2, 0b1111_1000, 0b0110_0000], &[2], &sparse];
    is_state_of(&bytes, ProofTree::Extender(extender(&[31, 1])));

    let dense = InodeProof {
        length: 257,
        proofs: (0..32).step_by(2).map(|at| (at, InodeTree::BlindedInode(Hash(hash)))).collect(),
    };
    let slots = [[0].as_slice(), &hash, &[4]].concat().repeat(16);
    is_state_of(&[&[4], &length, &[1], &slots], ProofTree::Inode(dense));
}

#[test]
fn bytes_that_break_a_rule_are_refused_by_its_name() {
    let refused = |state: &[&[u8]], expected: &str| match Proof::decode(&around(state)) {
        Err(ProofError::Malformed { what, .. }) => assert_eq!(what.rule, expected),
        other => panic!("{expected}: {other:?}"),
    };

    let length = [0, 0, 0, 0, 0, 0, 1, 1];
    let blind = [[0].as_slice(), &[9; 32]].concat();
    let there = "what is announced is there";
    refused(&[&[6]], "tag of a tree");
    refused(&[&[0, 0xFF, 0xFF, 0xFF, 0xFF]], there);
    refused(&[&[2, 0xFF, 0xFF, 0xFF, 0xFF]], there);
    refused(&[&[2, 0, 0, 0, 3, 1, b's', 0, 0, 0, 0, 0]], there);
    refused(&[&[0, 0, 0, 0, 0, 0]], "nothing follows a proof");
    let ascend = "steps ascend, and none is empty";
    refused(&[&[2, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0]], ascend);
    let entry = [1, b's', 0, 0, 0, 0, 0];
    refused(&[&[2, 0, 0, 0, 14], &entry, &entry], ascend);
    refused(&[&[4, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]], "a length is not negative");
    refused(&[&[4], &length, &[2]], "tag of the buckets of an inode");

    let sparse = |items: &[&[u8]]| {
        let items = items.concat();
        [[4].as_slice(), &length, &[0, 0, 0, (items.len() >> 8) as u8, items.len() as u8], &items]
            .concat()
    };

    refused(&[&sparse(&[&[32], &blind])], "an index is below 32");
    refused(&[&sparse(&[&[1], &blind, &[1], &blind])], "the indices of buckets ascend");
    refused(&[&sparse(&[&[2], &blind, &[1], &blind])], "the indices of buckets ascend");
    refused(&[&sparse(&[&[2, 4]])], "a bucket of a list is there");
    refused(&[&sparse(&[&[2, 5]])], "tag of an inode");
    let many: Vec<u8> = (0..16).flat_map(|at| [vec![at], blind.clone()].concat()).collect();
    refused(&[&sparse(&[&many])], "16 buckets and more are dense");
    let few = [blind.repeat(15), vec![4; 17]].concat();
    refused(&[&[4], &length, &[1], &few], "fewer than 16 buckets are a list");
    let chain = |segment: &[u8]| {
        [[5].as_slice(), &length, &[segment.len() as u8], segment, &blind].concat()
    };
    refused(&[&chain(&[])], "the last byte of a segment ends it");
    refused(&[&chain(&[0, 1, 0])], "the last byte of a segment ends it");
    refused(&[&chain(&[0, 2])], "a segment has 5 bits for an index");
    refused(&[&chain(&[0x80])], "a chain has 1 to 406 indices");
    refused(&[&[5], &length, &[1, 4, 4]], "a chain ends in an inode");
    let mut bytes = around(&[&[1], &[9; 32]]);
    bytes[2] = 2;
    let error = Proof::decode(&bytes).unwrap_err();
    assert!(
        matches!(&error, ProofError::Malformed { offset: 2, what } if what.found == 2),
        "{error}"
    );
    bytes[1] = 3;
    let error = Proof::decode(&bytes).unwrap_err();

    assert!(matches!(error, ProofError::UnsupportedVersion { found: 3 }), "{error}");
}

#[test]
fn what_has_no_form_in_bytes_is_not_encoded() {
    let (_, proof, _) = inode_proof();
    let refused = |expected: &str, forge: &dyn Fn(&mut Parts)| {
        let mut forged = proof.clone();
        forge(&mut forged);
        match forged.encode() {
            Err(ProofError::Shape { rule, .. }) => assert_eq!(rule, expected),
            other => panic!("{expected}: {other:?}"),
        }
    };

    refused("a step has at most 255 bytes", &|proof| leaf(inode(proof))[0].0 = [9; 256].into());
    refused("steps ascend, and none is empty", &|proof| leaf(inode(proof))[0].0 = [].into());
    let indices = "the indices of buckets ascend, below 32";
    refused(indices, &|proof| inode(proof).proofs[1].0 = 32);
    refused(indices, &|proof| inode(proof).proofs.reverse());
    refused("a length has 63 bits", &|proof| inode(proof).length = 1 << 63);

    let chain = |segment: Vec<u8>| {
        let proof = Box::new(InodeTree::BlindedInode(Hash([1; 32])));
        ProofTree::Extender(ExtenderProof { length: 9, segment, proof })
    };

    refused("a chain has 1 to 406 indices", &|proof| proof.state = chain(vec![]));
    refused("a chain has 1 to 406 indices", &|proof| proof.state = chain(vec![0; 407]));
    refused("the indices of buckets are below 32", &|proof| proof.state = chain(vec![32]));
    let longest = Parts { state: chain(vec![21; 406]), ..proof }.proof();

    assert_eq!(Proof::decode(&longest.encode().unwrap()).unwrap(), longest);
}

/// Directories within each other.
fn nested(levels: usize) -> Parts {
    let mut state = ProofTree::Value(Vec::new());
    for _ in 0..levels {
        state = ProofTree::Node(vec![(b"d".as_slice().into(), state)]);
    }
    let kinded = KindedHash { kind: Kind::Directory, hash: Hash([0; 32]) };
    Parts { before: kinded, after: kinded, state }
}

#[test]
fn the_deepest_tree_is_proven() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    let deepest = vec!["d".to_owned(); NESTING_MAX];
    tree.add(&deepest, *b"v").unwrap();
    prove(&tree, &[Op::Find(deepest.clone()), Op::Add(deepest.clone(), 1)]);
    let deeper = [deepest.clone(), vec!["e".to_owned()]].concat();
    tree.add(&deeper, *b"v").unwrap();
    let outcome = merkle_tree(&tree, &deeper, Target::Raw);
    assert!(matches!(outcome, Err(ProofError::TooDeep)), "{outcome:?}");
    prove(&tree, &[Op::MemTree(deepest)]);
}

/// Directories within each other, each below sixty inodes.
fn nested_inodes(directories: usize) -> Parts {
    let mut state = ProofTree::Value(Vec::new());
    for _ in 0..directories {
        let mut below = InodeTree::Values(vec![(b"d".as_slice().into(), state)]);
        let mut whole = None;
        for depth in (0..60).rev() {
            let own = (ocaml_hash(depth, b"d") % 32) as u8;
            let mut proofs = vec![(own ^ 1, InodeTree::BlindedInode(Hash([1; 32]))), (own, below)];
            proofs.sort_by_key(|proof| proof.0);
            let inode = InodeProof { length: 1_000 - u64::from(depth), proofs };
            below = InodeTree::Tree(inode.clone());
            whole = Some(inode);
        }
        state = ProofTree::Inode(whole.unwrap());
    }

    Parts { state, ..nested(0) }
}

#[test]
fn no_proof_exhausts_the_stack() {
    let inodes = nested_inodes(4);
    assert_eq!(Proof::decode(&inodes.encode().unwrap()).unwrap(), inodes.proof());
    let error = verify(&Rules::TEZOS, &inodes, &[]).unwrap_err();
    let ProofError::BeforeMismatch { found, .. } = error else { panic!("{error:?}") };
    let forged = Parts { before: found, after: found, ..inodes };
    let at = Op::Find(vec!["d".to_owned(); 4]);
    assert_eq!(verify(&Rules::TEZOS, &forged, &[at]).unwrap(), ["Some([])"]);
    let removal = Op::Remove(vec!["d".to_owned(); 4]);
    let error = verify(&Rules::TEZOS, &forged, &[removal]).unwrap_err();
    assert!(matches!(error, ProofError::AfterMismatch { .. }), "{error:?}");
    assert!(matches!(verify(&Rules::TEZOS, &nested_inodes(5), &[]), Err(ProofError::TooDeep)));

    let limit = nested(NESTING_MAX);
    let bytes = limit.encode().unwrap();
    assert_eq!(Proof::decode(&bytes).unwrap(), limit.proof());
    let error = verify(&Rules::TEZOS, &limit, &[]).unwrap_err();
    assert!(matches!(error, ProofError::BeforeMismatch { .. }), "{error:?}");
    let over = nested(NESTING_MAX + 1);
    assert!(matches!(over.encode(), Err(ProofError::TooDeep)));
    assert!(matches!(verify(&Rules::TEZOS, &over, &[]), Err(ProofError::TooDeep)));

    // A million levels in bytes, each of which claims the rest.
    let mut bomb = around(&[]);
    let levels = 1_000_000u32;
    for level in 0..levels {
        let rest = (levels - level - 1) * 7 + 2;
        bomb.push(2);
        bomb.extend((0..4).rev().map(|byte| (rest >> (8 * byte)) as u8));
        bomb.extend([1, b'd']);
    }

    assert!(matches!(Proof::decode(&bomb), Err(ProofError::TooDeep)));
    // Chains within each other.
    let chain = [[3].as_slice(), &[0, 0, 0, 0, 0, 0, 1, 1], &[1, 4]].concat();
    let bomb = around(&[&[5], &chain[1..], &chain.repeat(100_000)]);
    assert!(matches!(Proof::decode(&bomb), Err(ProofError::TooDeep)));
}

/// A value that was added counts in what a removal looks at, whether it waits or not: else proofs
/// that others make of the same calls would be refused.
#[test]
fn a_removal_looks_at_what_it_needs_with_all_that_was_added() {
    let tree = tree_of(Rules::TEZOS, 257);
    let change = |tree: &mut Tree| {
        tree.add(&["d", "new"], *b"x")?;
        tree.remove(&["d", "7"])
    };

    let produced = |looks: bool| {
        let run = |mut tree: Tree| {
            tree.add(&["d", "new"], *b"x")?;
            if looks {
                tree.hash();
            }
            tree.remove(&["d", "7"]).map(|_| (tree, ()))
        };
        produce_tree_proof(&tree, run).unwrap().0
    };

    let proof = produced(true);
    assert_eq!(proof, produced(false));
    let verified = proof.verify(&Rules::TEZOS, kinded(&tree)).unwrap();
    verified.replay(|mut tree| change(&mut tree).map(|_| (tree, ()))).unwrap();
}

#[test]
fn a_removal_below_looks_at_no_more_than_a_binding_there() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    for name in 0..257 {
        for below in ["a", "b"] {
            tree.add(&["d", &name.to_string(), below], [1]).unwrap();
        }
    }

    let bytes = |change: fn(&mut Tree) -> Result<bool>| {
        let run = |mut tree: Tree| change(&mut tree).map(|_| (tree, ()));
        produce_tree_proof(&tree, run).unwrap().0.encode().unwrap().len()
    };

    let removed = bytes(|tree| tree.remove(&["d", "7", "a"]));
    let bound = bytes(|tree| tree.add(&["d", "7", "a"], *b"other"));
    assert!(removed <= bound, "{removed} {bound}");

    // Where the directory goes with its last step, all of the one above is gathered.
    let all = bytes(|tree| tree.remove(&["d", "7", "a"]).and(tree.remove(&["d", "7", "b"])));
    assert!(all > 4 * bound, "{all}");
}

//! The context of a Tezos node, against hashes of Octez.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    ChainId, Change, Error, Fold, Hash, KindedHash, Options, ProofError, Store, Target, TestChain,
    TezosContext,
};
use terrane_io::{Disk, MemoryDisk};

const MAINNET: ChainId = ChainId([0x7A, 0x06, 0xA7, 0x70]);

fn new_store() -> Store {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    Store::create(disk, Path::new("store"), &options).unwrap()
}

fn bytes(hex: &str) -> [u8; 32] {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

fn genesis(store: &Store) -> Hash {
    let protocol = bytes("0bcd7db2d718ba94e85bd262681049852e1f58512aa552124330d657845c73b7");
    store.commit_genesis(MAINNET, 0, &protocol, |_| Ok(())).unwrap()
}

#[test]
fn the_chain_of_octez_has_its_hashes() {
    let store = new_store();
    let first = genesis(&store);
    let commit = |context| store.commit_tezos(&context, 0, "").unwrap();
    let checkout = |hash: &Hash| store.checkout_tezos(hash).unwrap().unwrap();
    let mut block = checkout(&first);
    block.add(&["a", "b"], *b"Novembre").unwrap();
    block.add(&["a", "c"], *b"Juin").unwrap();
    block.add(&["version"], *b"0.0").unwrap();
    let block2 = commit(block);
    let mut block = checkout(&block2);
    block.remove(&["a", "b"]).unwrap();
    block.add(&["a", "d"], *b"Mars").unwrap();
    let block3a = commit(block);
    let mut block = checkout(&block2);
    block.remove(&["a", "c"]).unwrap();
    block.add(&["a", "d"], "Février".as_bytes()).unwrap();
    assert_eq!(store.hash_tezos(&block, 0, "").to_string().len(), 52);
    let block3b = commit(block);
    let texts = [first, block2, block3a, block3b].map(|hash| hash.to_string());
    assert_eq!(
        texts,
        [
            "CoVea41f9dPhkymYEfPsXV5FmyzDb91iz1Grk6zasb31zv9nEZjN",
            "CoWWrDEJJMrgbQFiUiefoBtEFU9kS1mqWj3bhf3cv2PaK2mQxKP6",
            "CoVLUg1mtrxhmq6o8uDAez5VHqZyCN3auL9vEihAiHWx15LDoXoL",
            "CoVbxvfe57FRQezgMZ7BmAttT8hPi6jw4xex8iF56GhPMZptzTHL",
        ]
    );
    let block = checkout(&block3a);
    assert_eq!(block.find(&["a", "d"]).unwrap().as_deref(), Some(&b"Mars"[..]));
    assert!(block.mem(&["a", "c"]).unwrap() && !block.mem(&["a", "b"]).unwrap());
    assert!(block.mem_tree(&["a"]).unwrap() && block.context().mem_tree(&["data", "a"]).unwrap());
    assert_eq!(block.length(&["a"]).unwrap(), 2);

    assert_eq!(block.list::<&str>(&[], 0, 9).unwrap().len(), 2, "a and version");
}

#[test]
fn the_genesis_of_mainnet_has_its_hash() {
    let store = new_store();
    let protocol = bytes("38ecdef0cd08640f318a9b055f6b0d0c9ae030913a871d9b9d86fb846317da21");

    let patch = |context: &mut terrane_context::TezosContext| {
        assert!(!context.mem(&["version"])?);
        context.add(&["version"], *b"genesis").map(|_| ())
    };

    let commit = store.commit_genesis(MAINNET, 1_530_374_852, &protocol, patch).unwrap();
    assert_eq!(commit.to_string(), "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj");
    assert_eq!(store.commit_info(&commit).unwrap().message, b"Genesis");
    assert_eq!(MAINNET.to_string(), "NetXdQprcVkpaWU");
    assert_eq!(store.branches(), [(b"NetXdQprcVkpaWU".to_vec(), commit)]);
    let context = store.checkout_tezos(&commit).unwrap().unwrap();
    assert_eq!(context.protocol().unwrap(), protocol);

    assert_eq!(context.test_chain().unwrap(), TestChain::NotRunning);
}

#[test]
fn heads_of_chains_and_of_test_chains_are_branches() {
    let store = new_store();
    let first = genesis(&store);
    store.set_master(&first).unwrap();
    assert_eq!(store.branch(b"main"), Some(first));
    assert_eq!(store.head(MAINNET), Some(first));
    let test = ChainId([1, 2, 3, 4]);
    let context = store.checkout_tezos(&first).unwrap().unwrap();
    let forked = store.commit_test_chain_genesis(&context, test, 7, 99).unwrap();
    let info = store.commit_info(&forked).unwrap();
    assert_eq!((info.date, info.author.as_slice()), (99, &b"Tezos"[..]));
    assert_eq!(info.message, b"Forking testchain at level 7.");
    assert_eq!((info.parents.as_slice(), store.head(test)), (&[first][..], Some(forked)));
    assert!(store.clear_test_chain(test).unwrap());
    assert!(!store.clear_test_chain(test).unwrap());
    assert_eq!(store.head(test), None);
    assert!(store.exists(&forked).unwrap());
    store.set_head(MAINNET, &forked).unwrap();
    assert_eq!(store.head(MAINNET), Some(forked));
    let unknown = store.set_head(MAINNET, &Hash([9; 32]));

    assert!(matches!(unknown, Err(Error::UnknownCommit { .. })));
}

#[test]
fn what_stands_beside_the_data_reads_back() {
    let store = new_store();
    let first = genesis(&store);
    let mut context = store.checkout_tezos(&first).unwrap().unwrap();
    let chain = ChainId([1, 2, 3, 4]);
    let expiration = -5;
    let protocol = [8; 32];

    for (status, len) in [
        (TestChain::Forking { protocol, expiration }, 41),
        (TestChain::Running { chain, genesis: [9; 32], protocol, expiration }, 77),
        (TestChain::NotRunning, 1),
    ] {
        context.set_test_chain(status).unwrap();
        assert_eq!(context.test_chain().unwrap(), status);
        let stored = context.context().find(&["test_chain"]).unwrap().unwrap();
        assert_eq!(stored.len(), len);
        for cut in 0..len {
            context.context_mut().add(&["test_chain"], &stored[..cut]).unwrap();
            assert!(matches!(context.test_chain(), Err(Error::Malformed { .. })), "{cut}");
        }
    }

    context.remove_test_chain().unwrap();
    assert!(matches!(context.test_chain(), Err(Error::Absent { path }) if path.0 == "test_chain"));

    assert_eq!(context.predecessor_block_metadata_hash().unwrap(), None);
    context.set_predecessor_block_metadata_hash(&[1; 32]).unwrap();
    context.set_predecessor_ops_metadata_hash(&[2; 32]).unwrap();
    context.set_protocol(&[3; 32]).unwrap();
    assert_eq!(context.predecessor_block_metadata_hash().unwrap(), Some([1; 32]));
    assert_eq!(context.predecessor_ops_metadata_hash().unwrap(), Some([2; 32]));
    assert_eq!(context.protocol().unwrap(), [3; 32]);
    context.context_mut().add(&["protocol"], *b"short").unwrap();
    assert!(matches!(context.protocol(), Err(Error::Malformed { .. })));
    assert_eq!(context.hash_version(), 0);
    context.set_hash_version(0).unwrap();
    let refused = context.set_hash_version(1);

    assert!(matches!(refused, Err(Error::UnsupportedHashVersion { version: 1 })));
}

#[test]
fn folds_and_differences_are_on_logical_paths() {
    let store = new_store();
    let first = genesis(&store);
    let mut before = store.checkout_tezos(&first).unwrap().unwrap();
    assert_eq!(before.seq::<&str>(&[]).unwrap().count(), 0, "a context without data");
    before.add(&["a", "b"], "1").unwrap();
    before.add(&["a", "c"], "2").unwrap();
    before.add(&["version"], "0").unwrap();
    let mut after = before.clone();
    after.add(&["a", "b"], "3").unwrap();
    after.remove(&["a", "c"]).unwrap();
    after.add(&["data", "protocol"], "4").unwrap();
    after.set_protocol(&[7; 32]).unwrap();

    let text = |path: &[Box<[u8]>]| {
        let steps = path.iter().map(|step| String::from_utf8_lossy(step).into_owned());
        steps.collect::<Vec<_>>().join("/")
    };
    let paths = |context: &TezosContext, from: &[&str]| {
        let visit = |path: &[Box<[u8]>], _, mut paths: Vec<String>| {
            paths.push(text(path));
            Ok::<_, Error>(paths)
        };
        context.fold(from, Fold::default(), Vec::new(), visit).unwrap()
    };
    assert_eq!(paths(&before, &[]), ["", "a", "a/b", "a/c", "version"]);
    assert_eq!(paths(&after, &["data"]), ["", "protocol"]);
    assert!(paths(&after, &["protocol"]).is_empty(), "beside the data");
    let steps = after.seq::<&str>(&[]).unwrap().map(|child| child.unwrap().0);
    assert_eq!(steps.map(|step| text(&[step])).collect::<Vec<_>>().len(), 3);

    let mut changes = Vec::new();
    let note = |path: &[Box<[u8]>], change| {
        changes.push((text(path), change));
        Ok::<_, Error>(())
    };
    before.diff(&after, note).unwrap();
    let expected =
        [("a/b", Change::Changed), ("a/c", Change::Removed), ("data/protocol", Change::Added)];
    assert_eq!(changes, expected.map(|(path, change)| (path.to_owned(), change)));
    let mut count = 0;
    let mut counting = |_: &[Box<[u8]>], change| {
        count += 1;
        assert_eq!(change, Change::Removed);
        Ok::<_, Error>(())
    };
    after.diff(&store.checkout_tezos(&first).unwrap().unwrap(), &mut counting).unwrap();
    assert_eq!(count, 3, "all data is gone in a context without any");
    assert_eq!(after.find_with(&["a", "b"], <[u8]>::to_vec).unwrap().unwrap(), b"3");
}

#[test]
fn a_proof_on_logical_paths_is_one_of_the_whole_context() {
    let store = new_store();
    let first = genesis(&store);
    let mut context = store.checkout_tezos(&first).unwrap().unwrap();
    context.add(&["a", "b"], "1").unwrap();
    context.add(&["a", "c"], vec![5; 300]).unwrap();
    let commit = store.commit_tezos(&context, 0, "").unwrap();
    let context = store.checkout_tezos(&commit).unwrap().unwrap();

    let run = |mut context: TezosContext| {
        let found = context.find(&["a", "b"])?;
        context.add(&["d"], "new")?;
        Ok((context, found))
    };
    let (proof, found) = context.produce_proof(run).unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
    let root = KindedHash::directory(store.commit_info(&commit).unwrap().root);
    let verified = proof.verify(store.rules(), root).unwrap();
    let (after, replayed) = verified.replay_tezos(run).unwrap();
    assert_eq!(replayed, found);
    let mut changed = context.clone();
    changed.add(&["d"], "new").unwrap();
    assert_eq!(after.hash, changed.context().hash());

    // What the computation did not read is not in the proof.
    let other = verified.replay_tezos(|context| {
        let found = context.find(&["a", "c"])?;
        Ok((context, found))
    });
    assert!(matches!(other, Err(ProofError::NotProvided { .. })), "{other:?}");

    let proof = context.merkle_tree(&["a", "c"], Target::Raw).unwrap();
    let verified = proof.verify(store.rules(), root).unwrap();
    assert_eq!(verified.tree().find(&["data", "a", "c"]).unwrap(), Some(vec![5; 300]));
    assert!(verified.tree().find(&["data", "a", "b"]).is_err());
}

//! Stores: commits, checkouts, branches, reopening, and what the pack holds.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Context, Error, Hash, Indexing, Kind, Meta, Options, Recovery, Store, StoreReader, Tree,
};
use terrane_io::{Disk, MemoryDisk, SimDisk};

const DIR: &str = "store";

fn options() -> Options {
    Options::new(Arc::new(BtreeIndexes::new(1 << 20)))
}

fn memory() -> Arc<dyn Disk> {
    MemoryDisk::new()
}

fn create(disk: &Arc<dyn Disk>) -> Store {
    Store::create(Arc::clone(disk), Path::new(DIR), &options()).unwrap()
}

fn open(disk: &Arc<dyn Disk>) -> Store {
    Store::open(Arc::clone(disk), Path::new(DIR), &options()).unwrap()
}

fn text(tree: &Tree, path: &[&str]) -> Option<String> {
    tree.find(path).unwrap().map(|value| String::from_utf8(value).unwrap())
}

fn checkout(store: &Store, hash: &Hash) -> Context {
    store.checkout(hash).unwrap().unwrap_or_else(|| panic!("{hash} is there"))
}

/// The chain of the Octez tests: genesis, block 2, and its children 3a and 3b.
fn octez_chain(store: &Store) -> [Hash; 4] {
    let mut genesis = store.empty();
    let protocol = "0bcd7db2d718ba94e85bd262681049852e1f58512aa552124330d657845c73b7";
    let bytes = (0..32).map(|at| u8::from_str_radix(&protocol[2 * at..2 * at + 2], 16).unwrap());
    genesis.add(&["protocol"], bytes.collect::<Vec<u8>>()).unwrap();
    genesis.add(&["test_chain"], *b"\0").unwrap();
    let genesis = store.commit(&genesis, &Meta::tezos(0, "Genesis")).unwrap();

    let commit = |context: &Context| store.commit(context, &Meta::tezos(0, "")).unwrap();
    let mut block = checkout(store, &genesis);
    block.add(&["data", "a", "b"], *b"Novembre").unwrap();
    block.add(&["data", "a", "c"], *b"Juin").unwrap();
    block.add(&["data", "version"], *b"0.0").unwrap();
    let block2 = commit(&block);

    let mut block = checkout(store, &block2);
    block.remove(&["data", "a", "b"]).unwrap();
    block.add(&["data", "a", "d"], *b"Mars").unwrap();
    let block3a = commit(&block);

    let mut block = checkout(store, &block2);
    block.remove(&["data", "a", "c"]).unwrap();
    block.add(&["data", "a", "d"], "Février".as_bytes()).unwrap();
    let block3b = commit(&block);

    [genesis, block2, block3a, block3b]
}

fn check_octez_chain(store: &Store, [genesis, block2, block3a, block3b]: [Hash; 4]) {
    let texts = [genesis, block2, block3a, block3b].map(|hash| hash.to_string());
    assert_eq!(
        texts,
        [
            "CoVea41f9dPhkymYEfPsXV5FmyzDb91iz1Grk6zasb31zv9nEZjN",
            "CoWWrDEJJMrgbQFiUiefoBtEFU9kS1mqWj3bhf3cv2PaK2mQxKP6",
            "CoVLUg1mtrxhmq6o8uDAez5VHqZyCN3auL9vEihAiHWx15LDoXoL",
            "CoVbxvfe57FRQezgMZ7BmAttT8hPi6jw4xex8iF56GhPMZptzTHL",
        ]
    );
    let a = checkout(store, &block3a);
    assert_eq!(text(&a, &["data", "version"]).as_deref(), Some("0.0"));
    assert_eq!(text(&a, &["data", "a", "b"]), None);
    assert_eq!(text(&a, &["data", "a", "c"]).as_deref(), Some("Juin"));
    assert_eq!(text(&a, &["data", "a", "d"]).as_deref(), Some("Mars"));
    let b = checkout(store, &block3b);
    assert_eq!(text(&b, &["data", "a", "b"]).as_deref(), Some("Novembre"));
    assert_eq!(text(&b, &["data", "a", "c"]), None);
    assert_eq!(text(&b, &["data", "a", "d"]).as_deref(), Some("Février"));

    assert_eq!(store.commit_info(&block3b).unwrap().parents, [block2]);
}

#[test]
fn forks_of_a_chain_stay_readable() {
    let disk = memory();
    let store = create(&disk);
    let chain = octez_chain(&store);
    check_octez_chain(&store, chain);
    store.close().unwrap();
    assert!(matches!(store.commit(&store.empty(), &Meta::tezos(0, "")), Err(Error::Closed)));
    store.close().unwrap();
    drop(store);
    let store = open(&disk);
    check_octez_chain(&store, chain);
    assert_eq!(store.recovery(), Recovery::default(), "it was closed");
    assert_eq!(octez_chain(&store), chain, "the same once more");
    let newest: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();

    assert_eq!(newest, [chain[3], chain[2], chain[1], chain[0]], "made once");
}

#[test]
fn commits_of_one_context_are_siblings() {
    let disk = memory();
    let store = create(&disk);
    let mut context = store.empty();
    context.add(&["x"], *b"1").unwrap();
    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    context.add(&["y"], *b"2").unwrap();
    let second = store.commit(&context, &Meta::tezos(2, "")).unwrap();
    assert_eq!(store.commit_info(&second).unwrap().parents, []);
    assert_eq!(store.hash(&context, &Meta::tezos(2, "")), second);
    let frames = store.stats().frames;
    assert_eq!(store.hash(&context, &Meta::tezos(3, "")).to_string().len(), 52);
    assert_eq!(store.stats().frames, frames, "hashing writes nothing");
    context.advance(second);
    let third = store.commit(&context, &Meta::tezos(3, "")).unwrap();
    assert_eq!(store.commit_info(&third).unwrap().parents, [second]);
    assert_eq!(text(&checkout(&store, &first), &["y"]), None);

    assert_eq!(text(&checkout(&store, &third), &["y"]).as_deref(), Some("2"));
}

#[test]
fn a_store_that_was_not_closed_has_every_commit() {
    let disk = memory();
    let small = options().chunk_bytes(4 << 10);
    let store = Store::create(Arc::clone(&disk), Path::new(DIR), &small).unwrap();
    let mut hashes = Vec::new();
    let mut context = store.empty();

    for block in 0..200u32 {
        for name in 0..20u32 {
            let path = ["data".to_owned(), (block * 7 % 50).to_string(), name.to_string()];
            context.add(&path, block.to_le_bytes()).unwrap();
        }
        context.add(&["big"], vec![block as u8; 1000]).unwrap();
        let hash = store.commit(&context, &Meta::tezos(i64::from(block), "")).unwrap();
        context = checkout(&store, &hash);
        hashes.push((hash, context.tree().hash()));
        store.set_branch(b"main", &hash).unwrap();
    }

    assert!(store.stats().chunks > 20, "{:?}", store.stats());
    drop(store);
    for round in 0..2 {
        let store = Store::open(Arc::clone(&disk), Path::new(DIR), &small).unwrap();
        assert_eq!(store.branch(b"main"), Some(hashes[199].0));
        for (block, (hash, root)) in hashes.iter().enumerate() {
            let context = checkout(&store, hash);
            assert_eq!(context.tree().hash(), *root);
            assert_eq!(context.find(&["big"]).unwrap(), Some(vec![block as u8; 1000]));
        }

        // What is read back and hashed anew has the hash that it had: the copy shares nothing.
        let last = checkout(&store, &hashes[199].0);
        let mut copy = Tree::new(*store.rules()).unwrap();
        for top in last.list(&["data"], 0, 100).unwrap() {
            for (name, value) in top.1.list(&[] as &[&str], 0, 100).unwrap() {
                let path = [b"data", &*top.0, &*name];
                copy.add(&path, value.to_value().unwrap().unwrap()).unwrap();
            }
        }

        copy.add(&["big"], last.find(&["big"]).unwrap().unwrap()).unwrap();
        assert_eq!(copy.hash(), hashes[199].1, "round {round}");
        store.close().unwrap();
    }
}

#[test]
fn a_copy_shares_what_it_copies() {
    let disk = memory();
    let store = create(&disk);
    let mut context = store.empty();
    let current = ["data", "rolls", "owner", "current"];
    let under = |rest: &[&'static str]| [current.as_slice(), rest].concat();
    context.add(&under(&["cpu", "0"]), [1, 2, 3, 4]).unwrap();
    context.add(&under(&["cpu", "1"]), [1, 2, 3, 4, 5]).unwrap();
    context.add(&under(&["cpu", "2", "a"]), [1, 2, 3, 4, 5, 0x3d]).unwrap();
    context.add(&under(&["cpu", "2", "b"]), [1, 2, 3, 4, 5, 0x3e]).unwrap();
    context.add(&under(&["index", "123"]), [1, 2, 3, 4, 5, 6, 7]).unwrap();
    let first = store.commit(&context, &Meta::tezos(0, "Genesis")).unwrap();
    let mut context = checkout(&store, &first);
    let copied = context.find_tree(&current).unwrap().unwrap();
    context.add_tree(&["data", "rolls", "owner", "snapshot", "01", "02"], &copied).unwrap();
    let second = store.commit(&context, &Meta::tezos(0, "Genesis")).unwrap();
    assert_eq!(second.to_string(), "CoVX1ptKigdesVSqaREXTTHKGegLGM4x1bSSFvPgX5V8qj85r98G");

    let mut wide = checkout(&store, &second);
    for name in 0..10_000u32 {
        wide.add(&["data", "wide", &name.to_string()], name.to_le_bytes()).unwrap();
    }
    let before = store.stats().written_bytes;
    let third = store.commit(&wide, &Meta::tezos(1, "")).unwrap();
    let whole = store.stats().written_bytes - before;
    let mut copy = checkout(&store, &third);
    let subtree = copy.find_tree(&["data", "wide"]).unwrap().unwrap();
    copy.add_tree(&["data", "again"], &subtree).unwrap();
    store.commit(&copy, &Meta::tezos(2, "")).unwrap();
    let copied = store.stats().written_bytes - before - whole;

    assert!(whole > 100_000 && copied < 2_000, "{whole} {copied}");
}

#[test]
fn the_length_of_a_wide_directory_reads_one_node() {
    let disk = memory();
    let store = create(&disk);
    let mut context = store.empty();
    for name in 0..100_000u32 {
        context.add(&["wide", &name.to_string()], name.to_le_bytes()).unwrap();
    }
    let hash = store.commit(&context, &Meta::tezos(0, "")).unwrap();

    let unpaged = |store: &Store| {
        let all = checkout(store, &hash).list(&["wide"], 0, usize::MAX).unwrap();
        all.into_iter().map(|(step, _)| step).collect::<Vec<_>>()
    };

    let all = unpaged(&store);
    assert_eq!(all.len(), 100_000);
    drop((store, context));
    let store = open(&disk);
    let context = checkout(&store, &hash);
    let before = store.stats().reads;
    assert_eq!(context.length(&["wide"]).unwrap(), 100_000);
    assert_eq!(store.stats().reads - before, 1);
    let mut paged = Vec::new();

    while paged.len() < 100_000 {
        let page = context.list(&["wide"], paged.len(), 7_777).unwrap();
        assert!(!page.is_empty());
        paged.extend(page.into_iter().map(|(step, _)| step));
    }

    assert_eq!(paged, all);
    assert_eq!(context.list(&["wide"], 100_000, 5).unwrap().len(), 0);
    assert_eq!(context.list(&["absent"], 0, 5).unwrap().len(), 0);
    drop(context);
}

#[test]
fn branches_and_compare_and_set() {
    let disk = memory();
    let store = create(&disk);
    let mut context = store.empty();
    let mut commits = Vec::new();

    for number in 0..9u8 {
        context.add(&["n"], [number]).unwrap();
        commits.push(store.commit(&context, &Meta::tezos(0, "")).unwrap());
    }

    store.set_branch(b"main", &commits[0]).unwrap();
    store.set_branch(b"a/b", &commits[1]).unwrap();
    assert_eq!(store.branches(), [(b"a/b".to_vec(), commits[1]), (b"main".to_vec(), commits[0])]);
    assert!(store.remove_branch(b"a/b").unwrap());
    assert!(!store.remove_branch(b"a/b").unwrap());
    assert!(matches!(store.set_branch(b"", &commits[0]), Err(Error::BranchName { bytes: 0 })));
    let unknown = store.rules().empty_hash();
    assert!(matches!(store.set_branch(b"x", &unknown), Err(Error::UnknownCommit { .. })));

    for _ in 0..50 {
        store.set_branch(b"main", &commits[0]).unwrap();
        let winners: Vec<Hash> = std::thread::scope(|scope| {
            let set = |commit: Hash| {
                let won =
                    store.test_and_set_branch(b"main", Some(&commits[0]), Some(&commit)).unwrap();
                won.then_some(commit)
            };
            let tasks: Vec<_> =
                commits[1..].iter().map(|&commit| scope.spawn(move || set(commit))).collect();
            tasks.into_iter().filter_map(|task| task.join().unwrap()).collect()
        });
        assert_eq!(winners.len(), 1);
        assert_eq!(store.branch(b"main"), Some(winners[0]));
    }

    assert!(!store.test_and_set_branch(b"new", Some(&commits[0]), None).unwrap());
    assert!(store.test_and_set_branch(b"new", None, Some(&commits[3])).unwrap());
    drop(store);
    assert_eq!(open(&disk).branch(b"new"), Some(commits[3]));
}

#[test]
fn a_second_writer_is_refused() {
    let disk = memory();
    let store = create(&disk);
    let again = || Store::open(Arc::clone(&disk), Path::new(DIR), &options());
    assert!(matches!(again(), Err(Error::Locked { .. })), "{:?}", again());
    let create_again = Store::create(Arc::clone(&disk), Path::new(DIR), &options());
    assert!(matches!(create_again, Err(Error::Locked { .. })));
    store.close().unwrap();
    drop(store);
    let create_again = Store::create(Arc::clone(&disk), Path::new(DIR), &options());
    assert!(matches!(create_again, Err(Error::AlreadyExists { .. })));
    let other = options().rules(terrane_context::Rules::BLAKE3);
    let error = Store::open(Arc::clone(&disk), Path::new(DIR), &other).unwrap_err();
    assert!(matches!(error, Error::ConfigMismatch { option: "scheme", .. }), "{error}");
    assert!(again().is_ok());
    let nowhere = Store::open(Arc::clone(&disk), Path::new("nowhere"), &options());

    assert!(matches!(nowhere, Err(Error::NotFound { .. })));
}

#[test]
fn a_reader_follows_the_writer() {
    let disk = memory();
    let small = options().chunk_bytes(4 << 10);
    let store = Store::create(Arc::clone(&disk), Path::new(DIR), &small).unwrap();
    let reader = || StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();
    let follower = reader();
    assert!(!follower.sync().unwrap());
    let mut context = store.empty();
    let mut commits: Vec<Hash> = Vec::new();

    for block in 0..100u32 {
        context.add(&["n"], block.to_le_bytes()).unwrap();
        context.add(&["filling"], vec![block as u8; 300]).unwrap();
        let hash = store.commit(&context, &Meta::tezos(i64::from(block), "")).unwrap();
        assert!(follower.commit_info(&hash).is_err(), "not before the next sync");
        context.advance(hash);
        store.set_branch(b"main", &hash).unwrap();

        if block % 3 == 0 {
            assert!(follower.sync().unwrap());
            assert_eq!(follower.branch(b"main"), Some(hash));
        }

        commits.push(hash);
        let seen = follower.checkout(&hash).unwrap().expect("a checkout syncs by itself");
        assert_eq!(seen.find(&["n"]).unwrap().unwrap(), block.to_le_bytes());
    }

    assert!(store.stats().chunks > 5);
    for other in [reader(), follower] {
        for (block, hash) in commits.iter().enumerate() {
            assert!(other.exists(hash).unwrap());
            let seen = other.checkout(hash).unwrap().unwrap();
            assert_eq!(seen.find(&["n"]).unwrap().unwrap(), (block as u32).to_le_bytes());
        }
        assert!(!other.exists(&store.rules().empty_hash()).unwrap());
        let newest: Vec<Hash> = other.newest().map(|commit| commit.unwrap().hash).collect();
        assert!(newest.iter().eq(commits.iter().rev()));
    }
}

/// A commit of a tree that was checked out of another store once wrote that store's places, and
/// panicked on those that lay behind its own end.
#[test]
fn trees_of_another_store_are_refused_and_those_of_none_copied() {
    let one = create(&memory());
    let two = create(&memory());
    let frames = two.stats().frames;
    let mut context = one.empty();
    for number in 0..300 {
        context.add(&["wide", &number.to_string()], vec![7; 60]).unwrap();
    }
    let meta = Meta::tezos(1, "");
    let hash = one.commit(&context, &meta).unwrap();
    let mut foreign = checkout(&one, &hash);
    foreign.add(&["more"], *b"x").unwrap();
    assert!(matches!(two.commit(&foreign, &meta), Err(Error::ForeignTree)));
    assert!(matches!(two.flush(&foreign), Err(Error::ForeignTree)));
    assert_eq!(two.stats().frames, frames, "nothing was written");

    let mut moved = two.empty();
    *moved.tree_mut() = checkout(&one, &hash).to_memory().unwrap();
    assert_eq!(two.commit(&moved, &meta).unwrap(), hash);
    assert_eq!(checkout(&two, &hash).find(&["wide", "299"]).unwrap(), Some(vec![7; 60]));
    let empty = one.empty();

    assert_eq!(two.commit(&empty, &meta).unwrap(), one.commit(&empty, &meta).unwrap());
}

/// A subtree that was checked out and not looked at hid how deep it was, and so did every tree that
/// it was bound in.
#[test]
fn a_stored_tree_that_was_not_loaded_is_as_deep_as_it_is() {
    let disk = memory();
    let store = create(&disk);
    let mut deep = store.empty();
    assert!(deep.add(&vec!["d"; 512], *b"v").unwrap());
    let hash = store.commit(&deep, &Meta::tezos(0, "")).unwrap();
    drop((store, deep));
    let store = open(&disk);
    let below = checkout(&store, &hash).find_tree(&["d"]).unwrap().unwrap();
    let mut other = store.empty();
    let refused = other.add_tree(&["x", "y"], &below);
    assert!(matches!(refused, Err(Error::TooDeep { levels: 513 })), "{refused:?}");
    assert!(other.is_empty());
    assert!(other.add_tree(&["x"], &below).unwrap());
    let hash = store.commit(&other, &Meta::tezos(1, "")).unwrap();
    let mut again = store.empty();
    let refused = again.add_tree(&["above"], checkout(&store, &hash).tree());

    assert!(matches!(refused, Err(Error::TooDeep { levels: 513 })), "{refused:?}");
}

#[test]
fn a_closed_store_finds_nothing_and_contexts_go_on() {
    let disk = memory();
    let store = create(&disk);
    let [_, block2, ..] = octez_chain(&store);
    let context = checkout(&store, &block2);
    store.close().unwrap();
    assert!(matches!(store.checkout(&block2), Err(Error::Closed)));
    assert!(matches!(store.exists(&block2), Err(Error::Closed)));
    assert!(matches!(store.set_branch(b"x", &block2), Err(Error::Closed)));
    assert_eq!(text(&context, &["data", "a", "c"]).as_deref(), Some("Juin"));
}

/// A store that was opened again took what was written before for nothing, and refused to end its
/// chunk.
#[test]
fn a_chunk_with_a_commit_is_ended_also_by_who_opens_the_store_next() {
    let disk = memory();
    let mut store = create(&disk);

    let again = |store: Store| {
        store.close().unwrap();
        open(&disk)
    };

    for chunks in 1..4 {
        for _ in 0..2 {
            // Closing writes tables, which are nothing to end a chunk for.
            assert!(matches!(store.split(), Err(Error::EmptyChunk)));
            store = again(store);
        }
        let mut context = store.empty();
        context.add(&["a"], [chunks]).unwrap();
        store.commit(&context, &Meta::tezos(0, "")).unwrap();
        store = again(store);
        store.split().unwrap();
        store = again(store);
        assert_eq!(store.stats().chunks, u32::from(chunks) + 1);
    }
}
/// Objects that a killed process wrote behind its last control record were once stored again by the
/// next process.
#[test]
fn an_index_of_all_objects_has_what_was_written_before_and_after_a_crash() {
    let disk = memory();
    let all = options().indexing(Indexing::Always);
    let mut store = Store::create(Arc::clone(&disk), Path::new(DIR), &all).unwrap();

    // Each time the same large values and directories, in a tree of its own.
    for round in 0..4u32 {
        let mut context = store.empty();
        for name in 0..50u32 {
            let path = [format!("round{round}"), "same".to_owned(), name.to_string()];
            context.add(&path, name.to_le_bytes().repeat(300)).unwrap();
        }

        let before = store.stats().written_bytes;
        let hash = store.commit(&context, &Meta::tezos(i64::from(round), "")).unwrap();
        let written = store.stats().written_bytes - before;
        assert_eq!(written > 50_000, round == 0, "round {round}: {written}");
        assert!(checkout(&store, &hash).tree().hash() == context.tree().hash());

        // In the same process, after a crash, and after the store was closed.
        match round {
            0 => {}
            1 => {
                drop((store, context));
                store = Store::open(Arc::clone(&disk), Path::new(DIR), &all).unwrap();
                assert_eq!(store.recovery().commits, 2);
            }
            _ => {
                store.close().unwrap();
                drop((store, context));
                store = Store::open(Arc::clone(&disk), Path::new(DIR), &all).unwrap();
            }
        }
    }
}

#[test]
fn values_have_less_than_512_mib() {
    let store = create(&memory());
    let mut context = store.empty();
    // The pages of these are never touched.
    let bytes = 1 << 29;
    let refused = context.add(&["x"], vec![0; bytes]);
    assert!(matches!(refused, Err(Error::ValueSize { bytes: found }) if found == bytes));
    let value = context.of_value(vec![0; bytes]);
    assert!(matches!(context.add_tree(&["x"], &value), Err(Error::ValueSize { .. })));
    assert!(context.is_empty());
    assert!(context.add(&["x"], vec![0; bytes - 1]).unwrap());
}

/// Chunks that were read once stayed open for ever.
#[test]
fn few_files_are_open_whatever_the_number_of_chunks() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let small = options().chunk_bytes(4 << 10).cache_bytes(0);
    let store = Store::create(Arc::clone(&shared), Path::new(DIR), &small).unwrap();
    let mut commits = Vec::new();
    let mut context = store.empty();

    for block in 0..400u32 {
        context.add(&["large"], block.to_le_bytes().repeat(1_100)).unwrap();
        let hash = store.commit(&context, &Meta::tezos(i64::from(block), "")).unwrap();
        context.advance(hash);
        commits.push(hash);
    }

    assert!(store.stats().chunks > 350, "{:?}", store.stats());
    let reader = StoreReader::open(Arc::clone(&shared), Path::new(DIR), 0).unwrap();

    let read = |at: usize| {
        let expected = (at as u32).to_le_bytes().repeat(1_100);
        for context in [store.checkout(&commits[at]), reader.checkout(&commits[at])] {
            assert!(context.unwrap().unwrap().find(&["large"]).unwrap().unwrap() == expected);
        }
    };

    (0..400).for_each(read);
    (0..400).rev().for_each(read);

    // Two handles, and the files of index, lock and control record.
    assert!(disk.open_files() < 2 * 256 + 20, "{}", disk.open_files());
    // What is closed meanwhile is found again by a collection.
    store
        .collect(&terrane_context::Retain::newest(300), &mut |_| terrane_context::GcPace::Go)
        .unwrap();
    (100..400).for_each(read);
    assert!(disk.open_files() < 2 * 256 + 20, "{}", disk.open_files());
}

/// An empty directory is never bound, not even if only its hash is given.
#[test]
fn a_shallow_empty_directory_is_the_empty_directory() {
    let store = create(&memory());
    let mut context = store.empty();
    context.add(&["a", "b"], *b"1").unwrap();
    let shallow = context.shallow(Kind::Directory, store.rules().empty_hash());
    assert!(shallow.is_empty() && !shallow.is_shallow());
    assert!(context.add_tree(&["a"], &shallow).unwrap());
    assert!(context.is_empty());
    // The empty value has that hash too.
    assert!(context.shallow(Kind::Value, store.rules().empty_hash()).is_shallow());
}

#[test]
fn a_commit_of_what_did_not_change_writes_no_object_of_a_tree() {
    let store = create(&memory());
    let [_, block2, ..] = octez_chain(&store);
    let mut context = checkout(&store, &block2);
    assert!(!context.remove(&["data", "absent"]).unwrap());
    assert!(!context.remove(&["data", "version", "through", "a", "value"]).unwrap());
    assert!(!context.add(&["data", "version"], *b"0.0").unwrap());
    let before = store.stats().committed;
    let hash = store.commit(&context, &Meta::tezos(1, "the same")).unwrap();
    let after = store.stats().committed;
    assert_eq!((after.nodes, after.values), (before.nodes, before.values));
    assert_eq!(store.commit_info(&hash).unwrap().root, store.commit_info(&block2).unwrap().root);
}

#[test]
fn a_reader_writes_nothing() {
    let disk = memory();
    let store = create(&disk);
    let chain = octez_chain(&store);
    store.set_branch(b"main", &chain[3]).unwrap();
    let counted = terrane_io::CountedDisk::new(Arc::clone(&disk));
    let shared: Arc<dyn Disk> = counted.clone();
    let reader = StoreReader::open(shared, Path::new(DIR), 1 << 20).unwrap();

    for hash in &chain {
        let context = reader.checkout(hash).unwrap().unwrap();
        assert_eq!(context.find(&["absent"]).unwrap(), None);
        assert!(context.length(&[] as &[&str]).unwrap() > 1);
    }

    assert!(!reader.exists(&store.rules().empty_hash()).unwrap());
    reader.export(&chain[2], &mut Vec::new()).unwrap();
    assert!(!reader.sync().unwrap());
    let counts = counted.counts();
    assert!(counts.reads > 5 && counts.opens > 2, "{counts:?}");
    let changes = [
        counts.creates,
        counts.writes,
        counts.set_lens,
        counts.allocates,
        counts.syncs,
        counts.dir_syncs,
        counts.dirs_created,
        counts.dirs_removed,
        counts.removes,
        counts.renames,
        counts.links,
        counts.locks,
    ];

    assert_eq!(changes, [0; 12], "{counts:?}");
}

/// An administrator who runs the tests may write there all the same.
#[test]
fn a_store_in_a_directory_that_nobody_may_write_to_can_be_read() {
    use std::fs;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    let disk: Arc<dyn Disk> = terrane_io::RealDisk::auto();
    let store = Store::create(Arc::clone(&disk), &dir, &options()).unwrap();
    let chain = octez_chain(&store);
    store.close().unwrap();
    drop(store);

    let protect = |is_readonly: bool| {
        let files = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        for path in files.chain([dir.clone()]) {
            let mut permissions = fs::metadata(&path).unwrap().permissions();
            permissions.set_readonly(is_readonly);
            fs::set_permissions(&path, permissions).unwrap();
        }
    };

    protect(true);
    let reader = StoreReader::open(disk, &dir, 1 << 20).unwrap();
    let context = reader.checkout(&chain[2]).unwrap().unwrap();
    assert_eq!(text(&context, &["data", "a", "d"]).as_deref(), Some("Mars"));

    protect(false);
}

/// A tree that is flushed and cleared now and then is the same, was written before its commit, and
/// is not in memory.
#[test]
fn a_large_tree_is_built_with_flushes_and_commits_as_if_there_were_none() {
    let options = options().cache_bytes(0);
    let make = || Store::create(memory(), Path::new(DIR), &options).unwrap();
    let whole = make();
    let parts = make();
    let mut at_once = whole.empty();
    let mut flushed = parts.empty();

    for number in 0..20_000u32 {
        // Scattered, and some of them written several times.
        let number = number.wrapping_mul(0x9E37_79B9) % 15_000;
        let path = [format!("{:02}", number % 40), format!("{number}")];
        let value = number.to_le_bytes();
        at_once.add(&path, value).unwrap();
        flushed.add(&path, value).unwrap();
        if number % 1000 == 0 {
            parts.flush(&flushed).unwrap();
            flushed.clear();
        }
    }

    parts.flush(&flushed).unwrap();
    flushed.clear();
    let written = parts.stats().written_bytes;
    let reads = parts.stats().reads;
    let meta = Meta::tezos(0, "");
    assert_eq!(parts.commit(&flushed, &meta).unwrap(), whole.commit(&at_once, &meta).unwrap());
    assert!(parts.stats().written_bytes - written < 500, "a commit record alone");
    assert!(written > 2 * whole.stats().written_bytes, "parts are written again and again");
    assert_eq!(flushed.find(&["00", "0"]).unwrap().as_deref(), Some([0; 4].as_slice()));

    assert!(parts.stats().reads > reads, "what was cleared is read");
}

#[test]
fn a_value_that_stands_in_several_places_is_written_once() {
    let disk = memory();
    let store = Store::create(Arc::clone(&disk), Path::new("store"), &options()).unwrap();
    let mut context = store.empty();
    let value = context.of_value(vec![7; 10_000]);

    for dir in ["a", "b", "c"] {
        context.add_tree(&[dir, "value"], &value).unwrap();
        context.add(&[dir, "name"], dir.as_bytes()).unwrap();
    }

    let before = store.stats();
    let commit = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    let stats = store.stats();
    assert_eq!(stats.committed.values - before.committed.values, 1);
    assert!(stats.written_bytes - before.written_bytes < 12_000);
    let context = store.checkout(&commit).unwrap().unwrap();

    for dir in ["a", "b", "c"] {
        assert_eq!(context.find(&[dir, "value"]).unwrap().unwrap(), vec![7; 10_000]);
    }
}

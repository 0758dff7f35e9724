//! Several stores in one database: two over clones of one in memory, two connections, two
//! processes.
//!
//! Goal: each sees what the other committed before its call began, also where it has all of it in
//! memory; what both do to one database is what a model gives, version numbers are never given
//! twice, and in the end what is stored is what the retained versions reach. Method: random commits
//! and prunes, drawn which store does them; after each the other one is asked.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use terrane_kv::Memory;
use terrane_kv::{Database, Table};
use terrane_radix::{
    Error, INDEXES, Loss, Options, Prefix, Pruned, Root, Store, VERSIONS, VersionId,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use super::faulty::{Call, Faulty};
use super::histories::{Model, batch, check_all};
use super::rules::State;
use super::words::{assert_whole, at, commit, content, prune, set, tree};

const NAMES: [&str; 2] = ["one", "two"];

/// Everything fits into memory, so that what is there is what answers.
fn open(database: &Arc<dyn Database>) -> Store {
    Store::open(Arc::clone(database), &Options::default().cache_bytes(64 << 20).threads(1)).unwrap()
}

fn in_memory() -> Arc<dyn Database> {
    Arc::new(Memory::new(&INDEXES).unwrap())
}

/// Changes made by one of two stores, drawn which, are seen by both.
fn two_stores_agree(databases: [&Arc<dyn Database>; 2], steps: usize) {
    for_each_seed("radix_shared", 1, |rng, _| {
        let stores = databases.map(open);
        for name in NAMES {
            stores[0].create_tree(name).unwrap();
        }

        let mut model = Model::default();
        let mut ids = BTreeSet::new();
        for step in 0..steps {
            let [one, other] = if rng.below(2) == 0 { [0, 1] } else { [1, 0] };
            let which = rng.below(2) as usize;
            let trees =
                [&stores[one], &stores[other]].map(|store| store.tree(NAMES[which]).unwrap());
            let own: Vec<usize> =
                (0..model.versions.len()).filter(|at| model.versions[*at].tree == which).collect();
            let picked = (!own.is_empty() && rng.below(20) != 0)
                .then(|| own[rng.below(own.len() as u64) as usize]);
            let root = match picked {
                Some(at) if rng.below(100) < 30 + own.len() as u64 => {
                    let root = model.versions[at].root;
                    let gone = model.remove(which, &root);
                    let expected = match model.has(which, &root) {
                        0 => Pruned::Removed { count: gone.len() as u64, hashes: gone },
                        left => Pruned::Counted(left),
                    };
                    assert_eq!(trees[0].prune(&root).unwrap(), expected, "step {step}");
                    root
                }
                _ => {
                    let (parent, state) = match picked {
                        Some(at) => (model.versions[at].root, model.versions[at].state.clone()),
                        None => (Root::EMPTY, State::new()),
                    };

                    let (changes, after) = batch(rng, &state);
                    let committed = trees[0].commit(&parent, &changes).unwrap();
                    if let Some(id) = committed.version {
                        assert!(ids.last().is_none_or(|last| *last < id), "step {step}: {id}");
                        ids.insert(id);
                        assert_eq!(model.add(which, after), committed.root, "step {step}");
                    }

                    committed.root
                }
            };

            let count = model.has(which, &root);
            for tree in &trees {
                if root == Root::EMPTY {
                    continue;
                }

                let versions = tree.versions().unwrap();
                assert_eq!(versions.iter().filter(|info| info.root == root).count(), count);
                assert_eq!(tree.has_root(&root).unwrap(), count > 0, "step {step}");
                let read = tree.get_one(&root, &at("00"));
                match read {
                    Err(Error::UnknownRoot { .. }) => assert_eq!(count, 0, "step {step}"),
                    read => assert!(read.is_ok() && count > 0, "step {step}: {read:?}"),
                }

                assert_eq!(tree.leaves(&root, &Prefix::EMPTY).is_ok(), count > 0, "step {step}");
            }
        }

        for store in &stores {
            check_all(store, &model, &NAMES);
        }

        drop(stores);
        check_all(&open(databases[0]), &model, &NAMES);
    });
}

#[test]
fn two_stores_over_one_memory_agree() {
    let database = Memory::new(&INDEXES).unwrap();
    let databases: [Arc<dyn Database>; 2] = [Arc::new(database.clone()), Arc::new(database)];
    two_stores_agree([&databases[0], &databases[1]], 600);
}

#[test]
fn two_stores_over_one_handle_on_lsm_tables_agree() {
    use terrane_backends::{LsmDatabase, LsmOptions};
    use terrane_io::RealDisk;
    use terrane_kv::Durability;

    let folder = tempfile::tempdir().unwrap();
    let options = LsmOptions::default().durability(Durability::None);
    let opened = LsmDatabase::open(RealDisk::auto(), folder.path(), &INDEXES, &options).unwrap();
    let database: Arc<dyn Database> = Arc::new(opened);
    two_stores_agree([&database, &database], 200);
}

#[test]
fn two_connections_of_sqlite_agree() {
    use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions, Synchronous};

    let folder = tempfile::tempdir().unwrap();
    let databases: [Arc<dyn Database>; 2] = std::array::from_fn(|_| {
        let file = SqliteOptions::file(folder.path().join("store.sqlite"));
        let options = file.synchronous(Synchronous::Off);
        Arc::new(SqliteDatabase::open(&INDEXES, &options).unwrap()) as _
    });
    two_stores_agree([&databases[0], &databases[1]], 200);
}

/// Where the other process finds the database.
const PLACE: &str = "TERRANE_TEST_SHARED_LMDB";

fn lmdb(path: &Path) -> Arc<dyn Database> {
    use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions, SyncMode};

    let options = LmdbOptions::default().sync(SyncMode::None);
    Arc::new(LmdbDatabase::open(path, &INDEXES, &options).unwrap())
}

/// A chain of commits of which only the newest three stay, in a tree that another process works on
/// as well.
fn work(store: &Store, who: &str) -> Vec<(VersionId, Root)> {
    let tree = tree(store);
    let mut chain: Vec<(VersionId, Root)> = Vec::new();
    for number in 0..200 {
        let parent = chain.last().map_or(Root::EMPTY, |(_, root)| *root);
        // Half of what is set is the same in both.
        let changes = [set(&format!("aa{who}"), number.to_string()), set("bb", number.to_string())];
        let committed = tree.commit(&parent, &changes).unwrap();
        assert!(committed.version > chain.last().map(|(id, _)| *id));
        chain.push((committed.version.unwrap(), committed.root));
        if chain.len() > 3 {
            prune(&tree, &chain.remove(0).1);
        }
    }

    chain
}

/// Work of the other process; none if the test is run by itself.
#[test]
fn the_other_process() {
    if let Some(place) = std::env::var_os(PLACE) {
        work(&open(&lmdb(Path::new(&place))), "02");
    }
}

#[test]
fn two_processes_on_one_lmdb_file_agree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.mdb");
    let store = open(&lmdb(&path));
    tree(&store);
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "radix::shared::the_other_process", "--nocapture"])
        .env(PLACE, &path)
        .spawn()
        .unwrap();
    let chain = work(&store, "01");
    assert!(other.wait().unwrap().success());
    let versions = tree(&store).versions().unwrap();
    assert_eq!(versions.len(), 6);

    for (id, root) in chain {
        assert!(versions.iter().any(|info| (info.id, info.root) == (id, root)));
    }

    assert!(versions.last().is_some_and(|info| info.id.to_string() == "400"), "{versions:?}");
    assert_whole(&store);
}

/// A number was given again after the newest version was pruned and the store opened anew.
#[test]
fn version_numbers_are_not_given_again() {
    let database = in_memory();
    let changes = [set("aa", "value")];
    let first = tree(&open(&database)).commit(&Root::EMPTY, &changes).unwrap();
    prune(&tree(&open(&database)), &first.root);
    let second = tree(&open(&database)).commit(&Root::EMPTY, &changes).unwrap();
    assert!(first.version < second.version, "{first:?}, {second:?}");
}

/// Trees that another store made, renamed or deleted.
#[test]
fn trees_of_another_store_are_seen() {
    let database = in_memory();
    let [one, other] = [open(&database), open(&database)];
    let mine = one.create_tree("tree").unwrap();
    let root = commit(&mine, &Root::EMPTY, &[set("aa", "value")]);
    let theirs = other.tree("tree").unwrap();
    assert!(theirs.contains(&root, &at("aa")).unwrap());
    assert!(matches!(other.create_tree("tree"), Err(Error::TreeExists { .. })));
    other.rename_tree("tree", "name").unwrap();
    assert_eq!(one.trees().unwrap(), ["name"]);
    assert!(mine.contains(&root, &at("aa")).unwrap());
    assert!(other.delete_tree("name").unwrap());
    let read = mine.get_one(&root, &at("aa"));
    assert!(matches!(read, Err(Error::UnknownTree { .. })), "{read:?}");
    assert!(matches!(mine.commit(&root, &[]), Err(Error::UnknownTree { .. })));
    one.create_tree("tree").unwrap();
    assert!(matches!(theirs.versions(), Err(Error::UnknownTree { .. })));

    assert_whole(&other);
}

/// All found nothing there, and those who got the writer later took what the first had made for
/// something else.
#[test]
fn threads_may_open_a_new_database_at_once() {
    let faulty = Faulty::new(in_memory());
    let database: Arc<dyn Database> = Arc::clone(&faulty) as Arc<dyn Database>;
    let opened = thread::scope(|scope| {
        // Until all wait for the writer.
        let writer = database.writer().unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&database))).collect();
        while faulty.count(Call::Writer) < 5 {
            thread::yield_now();
        }
        drop(writer);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });

    let root = commit(&tree(&opened[0]), &Root::EMPTY, &[set("aa", "value")]);
    assert!(opened.iter().all(|store| tree(store).has_root(&root).unwrap()));
}

/// The list of all forks of a version, and of all versions of a root, was one row, written anew for
/// each.
#[test]
fn rows_do_not_grow_with_forks_and_recurring_roots() {
    let database = in_memory();
    let store = open(&database);
    let tree = tree(&store);
    let empty = content(&*database)[VERSIONS].len();
    let root = commit(&tree, &Root::EMPTY, &[set("aa", "value")]);
    let forks: Vec<Root> =
        (0..300).map(|number| commit(&tree, &root, &[set("bb", format!("{number}"))])).collect();

    for _ in 0..300 {
        assert_eq!(commit(&tree, &root, &[set("aa", "value")]), root);
    }

    let rows = &content(&*database)[VERSIONS];
    assert!(rows.iter().all(|(key, value)| key.len() + value.len() < 200));
    assert_whole(&store);
    let first = tree.versions().unwrap().remove(0);
    assert_eq!((first.root, first.children.len()), (root, 301));

    for left in (1..=300).rev() {
        assert_eq!(tree.prune(&root).unwrap(), Pruned::Counted(left));
    }

    prune(&tree, &root);
    assert!(!tree.has_root(&root).unwrap());
    assert_whole(&store);

    for fork in forks {
        prune(&tree, &fork);
    }

    assert_eq!(content(&*database)[VERSIONS].len(), empty);
    // Newest first, as a tree is deleted.
    let root = commit(&tree, &Root::EMPTY, &[set("aa", "value")]);
    for number in 0..100 {
        commit(&tree, &root, &[set("bb", format!("{number}"))]);
        assert_eq!(commit(&tree, &root, &[set("aa", "value")]), root);
    }

    tree.retain(&BTreeSet::from([root])).unwrap();
    assert_whole(&store);
    assert_eq!(tree.versions().unwrap().len(), 101);
    tree.retain(&BTreeSet::new()).unwrap();
    assert_eq!(content(&*database)[VERSIONS].len(), empty);

    assert_eq!(database.reader().unwrap().count(Table::Main).unwrap(), 0);
}

/// A store of another format was taken for a damaged one.
#[test]
fn a_store_of_another_format_is_unsupported_and_left_alone() {
    use terrane_io::checksum::{crc32c, crc32c_append};

    let database = in_memory();
    commit(&tree(&open(&database)), &Root::EMPTY, &[set("aa", "value")]);
    let mut row = b"TRNRADX1transact".to_vec();
    row.extend(crc32c_append(crc32c(b"f"), &row).to_le_bytes());
    let mut writer = database.writer().unwrap();
    writer.overwrite(Table::Index(VERSIONS), b"f", &row).unwrap();
    writer.commit().unwrap();
    let before = content(&*database);
    let opened = Store::open(Arc::clone(&database), &Options::default());
    let repaired = Store::repair(&database, Loss::Accepted);

    for refused in [opened.map(drop), repaired.map(drop)] {
        let text = format!("{refused:?}");
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{text}");
        assert!(text.contains("TRNRADX1") && text.contains("TRNRADX3"), "{text}");
    }

    assert_eq!(content(&*database), before);
}

/// The store took keys that a transaction refuses; a transaction could not list what it had
/// changed.
#[test]
fn the_metadata_map_is_the_same_in_a_transaction() {
    let store = open(&in_memory());
    store.set_metadata(b"a1", Some(b"one")).unwrap();
    let mut transaction = store.transaction().unwrap();
    transaction.set_metadata(b"a2", Some(b"two")).unwrap();
    transaction.set_metadata(b"b", Some(b"other")).unwrap();
    let expected = [(b"a1".to_vec(), b"one".to_vec()), (b"a2".to_vec(), b"two".to_vec())];
    assert_eq!(transaction.metadata_entries(b"a").unwrap(), expected);

    for key in [&b""[..], &[7; 257]] {
        assert!(matches!(transaction.metadata(key), Err(Error::Size { .. })));
        assert!(matches!(store.metadata(key), Err(Error::Size { .. })));
    }

    transaction.finish().unwrap();
    assert_eq!(store.metadata_entries(b"a").unwrap(), expected);
}

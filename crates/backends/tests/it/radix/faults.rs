//! Every call to the database fails once, at each place of a commit, a prune, a transaction over
//! several trees, and more.
//!
//! Goal: the error reaches the caller typed; nothing was changed; the roots of before read whole,
//! through the same handle; and the same work, tried again, gives what it gives without faults.
//! Where it is not known whether a commit took place, the handle finds out and relies on nothing
//! that it knew.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_kv::Database;
use terrane_kv::conformance::Subject;
use terrane_radix::{Error, INDEXES, Loss, Options, PruneOptions, Root, Store};
use terrane_testkit::effort::by_effort;

use super::faulty::{CALLS, Call, Fault, Faulty};
use super::words::{assert_whole, commit, content, delete, leaves, set};

/// Content of all roots, by tree and number.
type States = BTreeMap<(String, usize), Vec<(String, Vec<u8>)>>;
type Work = fn(&Store) -> Result<(), Error>;

/// The roots that the work begins with: of tree `one` a chain of three and a fork, of tree `two`
/// one.
fn prepare(store: &Store) {
    let one = store.create_tree("one").unwrap();
    let long = vec![7; 200];
    let start = [
        set("aa0000", "1"),
        set("aa0001", &long),
        set("aa00", "inner"),
        set("bb0000", "1"),
        set("cc", "3"),
    ];
    let first = commit(&one, &Root::EMPTY, &start);
    let second = commit(&one, &first, &[set("aa0000", "2"), delete("cc")]);
    commit(&one, &second, &[set("dd", &long), set("bb0000", "4")]);
    commit(&one, &first, &[set("aa0001", "fork")]);
    let two = store.create_tree("two").unwrap();
    commit(&two, &Root::EMPTY, &start);

    store.set_metadata(b"height", Some(b"4")).unwrap();
}

/// The roots of a tree in the order of their commits.
fn roots(store: &Store, tree: &str) -> Result<Vec<Root>, Error> {
    Ok(store.tree(tree)?.versions()?.into_iter().map(|version| version.root).collect())
}

fn commits(store: &Store) -> Result<(), Error> {
    let one = store.tree("one")?;
    let parent = roots(store, "one")?[2];
    let changes =
        [set("aa0002", "5"), delete("aa0000"), set("ee0000", vec![9; 100]), set("f0", "1")];
    one.commit_with(&parent, &changes, b"metadata").map(drop)
}

fn prunes(store: &Store) -> Result<(), Error> {
    let root = roots(store, "one")?[1];
    store.tree("one")?.prune(&root).map(drop)
}

fn prunes_the_hub(store: &Store) -> Result<(), Error> {
    let root = roots(store, "one")?[0];
    store.tree("one")?.prune(&root).map(drop)
}

fn works_on_many_trees(store: &Store) -> Result<(), Error> {
    let one = roots(store, "one")?;
    let two = roots(store, "two")?;
    let mut transaction = store.transaction()?;
    let made = transaction.commit("one", &one[2], &[set("aa0009", "9")])?.root;
    transaction.commit("two", &two[0], &[delete("bb0000"), set("aa00", "else")])?;
    transaction.prune("one", &one[0], &PruneOptions::default())?;
    transaction.create_tree("three")?;
    transaction.commit("three", &Root::EMPTY, &[set("01", made.to_string())])?;
    transaction.set_metadata(b"height", Some(b"5"))?;
    transaction.set_metadata(b"other", Some(b""))?;
    transaction.finish()
}

fn deletes_a_tree(store: &Store) -> Result<(), Error> {
    store.delete_tree("one").map(drop)
}

fn prunes_in_bulk(store: &Store) -> Result<(), Error> {
    let of_one = roots(store, "one")?;
    store.tree("one")?.prune_below(&of_one[2], 0).map(drop)?;
    Ok(())
}

/// One value at so many places that its row does not hold all chains, and some more.
fn spills(store: &Store) -> Result<(), Error> {
    let changes: Vec<_> = (0..12).map(|n| set(&format!("c0{n:02x}{n:02x}"), "spilled")).collect();
    store.tree("two")?.commit(&Root::EMPTY, &changes).map(drop)
}

const WORKS: [(&str, Work); 7] = [
    ("commit", commits),
    ("prune", prunes),
    ("prune of a fork point", prunes_the_hub),
    ("transaction over several trees", works_on_many_trees),
    ("deletion of a tree", deletes_a_tree),
    ("prune in bulk", prunes_in_bulk),
    ("spilling commit", spills),
];

fn is_typed(error: &Error, fault: Fault) -> bool {
    match fault {
        Fault::BackEnd => matches!(error, Error::BackEnd(terrane_kv::Error::BackEnd { .. })),
        Fault::StoreFull => matches!(error, Error::StoreFull(terrane_kv::Error::StoreFull { .. })),
        Fault::Busy => matches!(error, Error::Busy(terrane_kv::Error::Busy { .. })),
        Fault::Size => matches!(error, Error::Size { what: "value", bytes: 900, min: 0, max: 800 }),
        Fault::UnknownDone | Fault::UnknownNotDone => {
            matches!(error, Error::BackEnd(terrane_kv::Error::Unknown { .. }))
        }
    }
}

fn all_leaves(store: &Store) -> States {
    let mut all = States::new();
    for name in store.trees().unwrap() {
        let tree = store.tree(&name).unwrap();
        for (number, root) in roots(store, &name).unwrap().iter().enumerate() {
            all.insert((name.clone(), number), leaves(&tree, root));
        }
    }
    all
}

fn open(database: &Arc<Faulty>, cache_bytes: usize) -> Store {
    let database: Arc<dyn Database> = Arc::clone(database) as _;
    Store::open(database, &Options::default().cache_bytes(cache_bytes).threads(1)).unwrap()
}

struct Trial<'a> {
    subject: &'a mut dyn Subject,
    name: &'static str,
    work: Work,
    /// Expected outcome of the work.
    expected: States,
}

impl Trial<'_> {
    fn prepared(&mut self) -> (Arc<Faulty>, Store) {
        let database = Faulty::new(self.subject.fresh(&INDEXES).unwrap());
        // Nothing is kept in memory but which roots there are, so that much is asked of the
        // database.
        let store = open(&database, 0);
        prepare(&store);
        (database, store)
    }

    /// Lets one call fail. Answers whether there was such a call.
    fn fail(&mut self, call: Call, after: u64, fault: Fault) -> bool {
        let step = format!("{}: {call:?} {after} fails as {fault:?}", self.name);
        let (database, store) = self.prepared();
        let before = content(&*database);
        let states = all_leaves(&store);
        database.fail(call, after, fault);
        let outcome = (self.work)(&store);
        if !database.heal() {
            assert!(outcome.is_ok(), "{step}: {outcome:?}");
            return false;
        }

        let error = outcome.expect_err(&step);
        assert!(is_typed(&error, fault), "{step}: {error:?}");
        if fault == Fault::UnknownDone {
            assert_eq!(all_leaves(&store), self.expected, "{step}");
        } else {
            assert_eq!(content(&*database), before, "{step}");
            assert_eq!(all_leaves(&store), states, "{step}");
            (self.work)(&store).expect(&step);
            assert_eq!(all_leaves(&store), self.expected, "{step}");
        }

        assert_whole(&store);
        true
    }
}

pub(super) fn check(subject: &mut dyn Subject) {
    let is_persistent = subject.is_persistent();
    for (name, work) in WORKS {
        let mut trial = Trial { subject: &mut *subject, name, work, expected: States::new() };
        let (_, store) = trial.prepared();
        work(&store).unwrap();
        trial.expected = all_leaves(&store);
        drop(store);

        let mut failed = 0;
        for call in CALLS {
            let faults = [Fault::BackEnd, Fault::StoreFull, Fault::Busy];
            let mut after = 0;
            // The calls are the same whatever the database: memory has more of them than others.
            let step = if is_persistent { by_effort(29, 1) } else { by_effort(3, 1) };
            while trial.fail(call, after, faults[after as usize % faults.len()]) {
                after += step;
            }
            failed += after;
        }

        for fault in [Fault::UnknownDone, Fault::UnknownNotDone, Fault::StoreFull, Fault::Busy] {
            assert!(trial.fail(Call::Commit, 0, fault));
        }

        assert!(failed > 10, "{name}: only {failed} calls");
    }

    roots_are_forgotten_after_an_unknown_commit(subject);
    a_transaction_that_failed_half_way_cannot_be_finished(subject);
}

/// The handle knew a root, and then it was pruned by a commit whose outcome nobody learned: taken
/// for retained it would be built upon, and spans would be counted of a version that is not there.
fn roots_are_forgotten_after_an_unknown_commit(subject: &mut dyn Subject) {
    let database = Faulty::new(subject.fresh(&INDEXES).unwrap());
    let store = open(&database, 1 << 20);
    let tree = store.create_tree("state").unwrap();
    let root = commit(&tree, &Root::EMPTY, &[set("aa00", "1"), set("bb00", "2")]);
    database.fail(Call::Commit, 0, Fault::UnknownDone);
    assert!(is_typed(&tree.prune(&root).unwrap_err(), Fault::UnknownDone));
    assert!(!tree.has_root(&root).unwrap());

    for refused in [
        tree.commit(&root, &[set("cc", "3")]).map(drop),
        tree.get(&root, &[]).map(drop),
        tree.compute_root(&root, &[]).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::UnknownRoot { .. })), "{refused:?}");
    }

    // Trees that came and went the same way.
    database.fail(Call::Commit, 0, Fault::UnknownDone);
    assert!(is_typed(&store.create_tree("made").unwrap_err(), Fault::UnknownDone));
    let made = store.tree("made").unwrap();
    commit(&made, &Root::EMPTY, &[set("aa", "1")]);
    database.fail(Call::Commit, 0, Fault::UnknownDone);
    assert!(is_typed(&store.delete_tree("made").unwrap_err(), Fault::UnknownDone));
    let refused = made.commit(&Root::EMPTY, &[set("aa", "1")]);
    assert!(matches!(refused, Err(Error::UnknownTree { .. })), "{refused:?}");

    assert_whole(&store);
}

fn a_transaction_that_failed_half_way_cannot_be_finished(subject: &mut dyn Subject) {
    let database = Faulty::new(subject.fresh(&INDEXES).unwrap());
    let store = open(&database, 1 << 20);
    let tree = store.create_tree("state").unwrap();
    let root = commit(&tree, &Root::EMPTY, &[set("aa00", "1"), set("bb00", "2")]);
    let before = content(&*database);

    for after in 0..4 {
        let mut transaction = store.transaction().unwrap();
        database.fail(Call::Write, after, Fault::StoreFull);
        let failed = transaction.commit("state", &root, &[set("aa01", "3")]);
        assert!(is_typed(&failed.unwrap_err(), Fault::StoreFull));
        // What came to nothing without a change is no reason to give up; this is not such a one.
        assert!(matches!(transaction.finish(), Err(Error::Aborted)));
        assert_eq!(content(&*database), before);
    }

    let mut transaction = store.transaction().unwrap();
    let refused = transaction.commit("state", &root, &[delete("cc")]);
    assert!(matches!(refused, Err(Error::AddressNotFound { .. })));
    let made = transaction.commit("state", &root, &[delete("bb00")]).unwrap().root;
    transaction.finish().unwrap();
    assert_eq!(leaves(&tree, &made), [("aa00".to_owned(), b"1".to_vec())]);

    assert_whole(&store);
}

/// Damage that the engine itself finds once was a failure of the back-end without a place, and
/// ended a check.
#[test]
fn what_the_engine_finds_damaged_is_told_with_its_place_and_checks_go_on() {
    let memory: Arc<dyn Database> = Arc::new(terrane_kv::Memory::new(&INDEXES).unwrap());
    let database = Faulty::new(Arc::clone(&memory));
    let options = Options::default().cache_bytes(0).threads(1);
    let store = Store::open(Arc::clone(&database) as Arc<dyn Database>, &options).unwrap();
    let tree = store.create_tree("tree").unwrap();
    let long = vec![7; 200];
    let changes = [set("aa00", "1"), set("aa01", &long), set("bb00", [8; 100]), set("bb01", "2")];
    let root = commit(&tree, &Root::EMPTY, &changes);
    let other = commit(&tree, &root, &[set("cc", "3")]);
    assert!(store.verify().unwrap().is_clean());

    for (key, _) in &content(&*memory)["main"] {
        database.damage(key);
        let mut is_told = false;
        for address in ["aa00", "aa01", "bb00", "bb01"] {
            let address = address.parse().unwrap();
            let one = tree.get_one(&root, &address);
            let many =
                tree.get(&root, &[address, "aa00".parse().unwrap(), "bb00".parse().unwrap()]);

            for error in [one.err(), many.err()].into_iter().flatten() {
                match error {
                    Error::Corruption { root: Some(of), ref what, node, .. } => {
                        assert_eq!(of, root);
                        assert!(what.contains("page 7") && what.contains("checksum"), "{what}");
                        assert!(node.0.starts_with(key), "{node}");
                        is_told = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        let report = tree.verify(&root).unwrap();
        assert!(!is_told || report.problems.len() == 1, "{:?}", report.problems);
        let report = store.verify().unwrap();
        assert!(!report.is_clean());
        assert_eq!(report.versions, 2);
        assert!(!report.problems.iter().any(|problem| problem.rule.contains("missing")));

        // The rest cannot be told from what is damaged.
        let repaired = Store::repair(&(Arc::clone(&database) as Arc<dyn Database>), Loss::Accepted);
        assert!(matches!(repaired, Err(Error::CorruptRecord { .. })), "{repaired:?}");
    }

    database.damage(&[]);
    assert!(store.verify().unwrap().is_clean());
    assert!(tree.has_root(&other).unwrap());
}

/// A server may take less than others; that was a failure of the back-end.
#[test]
fn a_row_that_is_too_large_for_the_database_is_told_as_a_size() {
    let database = Faulty::new(Arc::new(terrane_kv::Memory::new(&INDEXES).unwrap()));
    let options = Options::default().cache_bytes(0).threads(1);
    let store = Store::open(Arc::clone(&database) as Arc<dyn Database>, &options).unwrap();
    let tree = store.create_tree("tree").unwrap();
    database.fail(Call::Write, 0, Fault::Size);
    let failed = tree.commit(&Root::EMPTY, &[set("aa", [0; 900])]).unwrap_err();
    assert!(is_typed(&failed, Fault::Size), "{failed:?}");
    assert_whole(&store);
}

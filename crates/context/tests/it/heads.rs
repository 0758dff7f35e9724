//! Histories, merges and watches of branches.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Error, GcPace, Hash, HeadChange, History, Merged, Meta, Options, Reach, Retain, Store,
    StoreReader, Strategy, Versions, Write,
};
use terrane_io::{Disk, MemoryDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

fn new_store() -> (Arc<dyn Disk>, Store) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    let store = Store::create(Arc::clone(&disk), Path::new("store"), &options).unwrap();
    (disk, store)
}

/// Commits a tree that has these values beside what its first parent has.
fn commit(store: &Store, parents: &[Hash], values: &[(&str, &str)]) -> Hash {
    let mut context = match parents.first() {
        Some(parent) => store.checkout(parent).unwrap().unwrap(),
        None => store.empty(),
    };
    for (path, value) in values {
        let path: Vec<&str> = path.split('/').collect();
        context.add(&path, value.as_bytes()).unwrap();
    }
    context.set_parents(parents.to_vec());
    store.commit(&context, &Meta::tezos(0, "")).unwrap()
}

fn text(store: &Store, commit: &Hash, path: &str) -> Option<String> {
    let path: Vec<&str> = path.split('/').collect();
    let value = store.checkout(commit).unwrap().unwrap().find(&path).unwrap();
    value.map(|value| String::from_utf8(value).unwrap())
}

/// Puts the versions of a value one behind the other.
#[expect(clippy::unnecessary_wraps, reason = "a function that merges may refuse")]
fn join(_: &[Box<[u8]>], versions: Versions<'_>) -> Merged {
    Ok(Some([versions.ours, b"+", versions.theirs].concat()))
}

fn refuse(_: &[Box<[u8]>], _: Versions<'_>) -> Merged {
    Err("both changed".to_owned())
}

#[test]
fn history_leads_to_the_first_commit_or_to_those_that_are_gone() {
    let (_, store) = new_store();
    let one = commit(&store, &[], &[("a/x", "1")]);
    let two = commit(&store, &[one], &[("b", "1")]);
    let three = commit(&store, &[two], &[("a/x", "2")]);
    let side = commit(&store, &[two], &[("c", "1")]);
    let four = commit(&store, &[three, side], &[("c", "1")]);

    let hashes = |depth| {
        let history = store.history(&four, depth).unwrap();
        assert_eq!(history.missing, []);
        history.commits.iter().map(|commit| commit.hash).collect::<Vec<Hash>>()
    };

    assert_eq!(hashes(usize::MAX), [four, side, three, two, one]);
    assert_eq!(hashes(1), [four, side, three]);
    assert_eq!(hashes(0), [four]);

    let modified = |path: &[&str], count| store.last_modified(&four, path, count).unwrap();
    assert_eq!(modified(&["a", "x"], 9), [three, one]);
    assert_eq!(modified(&["a"], 1), [three]);
    assert_eq!(modified(&["c"], 9), [side], "the merge has it from a parent");
    assert_eq!(modified(&["b"], 9), [two]);
    assert_eq!(modified(&["z"], 9), []);

    store.collect(&Retain::newest(2), &mut |_| GcPace::Go).unwrap();
    let history = store.history(&four, usize::MAX).unwrap();
    let commits: Vec<Hash> = history.commits.iter().map(|commit| commit.hash).collect();
    assert_eq!(commits, [four, side]);
    let missing: BTreeSet<Hash> = history.missing.into_iter().collect();
    assert_eq!(missing, BTreeSet::from([two, three]));

    assert!(matches!(store.history(&one, 9), Err(Error::UnknownCommit { hash }) if hash == one));
}

#[test]
fn common_ancestors_are_those_of_a_search_of_everything() {
    for_each_seed("lcas", 20, |rng, _| {
        let (disk, store) = new_store();
        let mut all: Vec<Hash> = Vec::new();
        let mut ancestors: HashMap<Hash, BTreeSet<Hash>> = HashMap::new();
        for number in 0..25 {
            let count = rng.below(4).min(all.len() as u64);
            let from = all.len().saturating_sub(8);
            let parents: BTreeSet<Hash> =
                (0..count).map(|_| all[from + rng.index(all.len() - from)]).collect();
            let parents: Vec<Hash> = parents.into_iter().collect();
            let hash = commit(&store, &parents, &[("number", &number.to_string())]);
            let mut above: BTreeSet<Hash> = parents.iter().copied().collect();
            for parent in &parents {
                above.extend(&ancestors[parent]);
            }
            above.insert(hash);
            ancestors.insert(hash, above);
            all.push(hash);
        }
        let reader = StoreReader::open(disk, Path::new("store"), 1 << 20).unwrap();
        for _ in 0..60 {
            let ours = *rng.pick(&all);
            let theirs = *rng.pick(&all);
            let common: BTreeSet<Hash> =
                ancestors[&ours].intersection(&ancestors[&theirs]).copied().collect();
            let is_lowest = |hash: &&Hash| {
                !common.iter().any(|other| other != *hash && ancestors[other].contains(*hash))
            };
            let lowest: BTreeSet<Hash> = common.iter().filter(is_lowest).copied().collect();
            let found = store.lcas(&ours, &theirs, Reach::ALL).unwrap();
            assert_eq!(found.len(), lowest.len());
            assert_eq!(found.iter().copied().collect::<BTreeSet<Hash>>(), lowest);
            assert_eq!(reader.lcas(&ours, &theirs, Reach::ALL).unwrap(), found);
        }
    });
}

/// Also where a parent was imported after its child, so that the pack has the two in the wrong
/// order.
#[test]
fn commits_between_two_are_those_of_a_search_of_everything() {
    let mut out_of_order = 0;
    for_each_seed("commits_between", 20, |rng, _| {
        let (disk, store) = new_store();
        let mut all: Vec<Hash> = Vec::new();
        let mut parents_of: HashMap<Hash, Vec<Hash>> = HashMap::new();
        for number in 0..16 {
            let count = rng.below(3).min(all.len() as u64);
            let from = all.len().saturating_sub(6);
            let parents: BTreeSet<Hash> =
                (0..count).map(|_| all[from + rng.index(all.len() - from)]).collect();
            let parents: Vec<Hash> = parents.into_iter().collect();
            let hash = commit(&store, &parents, &[("number", &number.to_string())]);
            parents_of.insert(hash, parents);
            all.push(hash);
        }

        // The same commits in another order, and some of them missing.
        let mut order = all.clone();
        rng.shuffle(&mut order);
        order.truncate(13);
        let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
        let shuffled = Store::create(Arc::clone(&disk), Path::new("shuffled"), &options).unwrap();
        for hash in &order {
            let mut stream = Vec::new();
            store.export(hash, &mut stream).unwrap();
            shuffled.import(&mut &*stream).unwrap();
        }

        for (store, present) in [(&store, &all), (&shuffled, &order)] {
            let ancestors = |hash: &Hash| {
                let mut found = BTreeSet::new();
                let mut open = vec![*hash];
                while let Some(hash) = open.pop() {
                    if present.contains(&hash) && found.insert(hash) {
                        open.extend(&parents_of[&hash]);
                    }
                }
                found
            };

            for _ in 0..40 {
                let from = *rng.pick(present);
                let to = *rng.pick(present);
                let between: BTreeSet<Hash> =
                    ancestors(&to).difference(&ancestors(&from)).copied().collect();
                let found = store.commits_between(&from, &to).unwrap();
                let hashes: Vec<Hash> = found.commits.iter().map(|commit| commit.hash).collect();
                assert_eq!(hashes.len(), between.len(), "each once");
                assert_eq!(hashes.iter().copied().collect::<BTreeSet<Hash>>(), between);
                let is_behind =
                    |at: usize, hash: &Hash| !hashes[..at].iter().any(|other| other == hash);
                for (at, commit) in found.commits.iter().enumerate() {
                    assert!(commit.parents.iter().all(|parent| is_behind(at, parent)));
                    assert_eq!(*commit, store.commit_info(&commit.hash).unwrap());
                }

                let missing: BTreeSet<Hash> = found
                    .commits
                    .iter()
                    .flat_map(|commit| {
                        commit.parents.iter().filter(|parent| !present.contains(parent)).copied()
                    })
                    .collect();
                assert_eq!(found.missing.len(), missing.len(), "each once");
                assert_eq!(found.missing.into_iter().collect::<BTreeSet<Hash>>(), missing);

                // How often a search that stops at the beginning would be wrong.
                let newest: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();
                let at = |hash: &Hash| newest.iter().position(|other| other == hash);
                let is_later = |hash: &Hash| at(hash) < at(&from);
                out_of_order += usize::from(ancestors(&from).iter().any(is_later));
            }
        }
    });
    assert!(out_of_order > 50, "{out_of_order}");
}

/// The search visits the newest commits of the pack first: `root` before `from`, of which it is an
/// ancestor all the same.
#[test]
fn an_ancestor_that_was_imported_late_is_not_between() {
    let (disk, store) = new_store();
    let root = commit(&store, &[], &[("r", "1")]);
    let child = commit(&store, &[root], &[("a", "1")]);
    let from = commit(&store, &[child], &[("a", "2")]);
    let to = commit(&store, &[root], &[("b", "1")]);
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    let late = Store::create(disk, Path::new("late"), &options).unwrap();
    for hash in [child, from, root, to] {
        let mut stream = Vec::new();
        store.export(&hash, &mut stream).unwrap();
        late.import(&mut &*stream).unwrap();
    }

    for store in [store, late] {
        let between = store.commits_between(&from, &to).unwrap();
        assert_eq!(between.commits.iter().map(|commit| commit.hash).collect::<Vec<_>>(), [to]);
        assert_eq!(store.commits_between(&root, &root).unwrap(), History::default());
        assert_eq!(store.commits_between(&to, &root).unwrap(), History::default());
        let unknown = store.commits_between(&from, &Hash([7; 32]));
        assert!(matches!(unknown, Err(Error::UnknownCommit { .. })));
    }
}

#[test]
fn a_search_for_common_ancestors_has_limits() {
    let (_, store) = new_store();
    let root = commit(&store, &[], &[("r", "1")]);
    let a = commit(&store, &[root], &[("a", "1")]);
    let b = commit(&store, &[root], &[("b", "1")]);
    let c = commit(&store, &[a, b], &[("b", "1")]);
    let d = commit(&store, &[b, a], &[("d", "1")]);
    let lcas = |depth, ancestors| store.lcas(&c, &d, Reach { depth, ancestors });
    assert_eq!(lcas(usize::MAX, 2).unwrap(), [b, a], "the newest first");
    assert!(matches!(lcas(9, 1), Err(Error::TooManyLcas { limit: 1 })));
    assert!(matches!(lcas(0, 2), Err(Error::MaxDepthReached { depth: 0 })));
    assert_eq!(store.lcas(&a, &b, Reach { depth: 1, ancestors: 1 }).unwrap(), [root]);
    let alone = commit(&store, &[], &[("x", "1")]);
    assert_eq!(store.lcas(&a, &alone, Reach::ALL).unwrap(), []);
    let unknown = store.lcas(&a, &Hash([7; 32]), Reach::ALL);

    assert!(matches!(unknown, Err(Error::UnknownCommit { .. })));
}

#[test]
fn a_branch_is_moved_forward_only() {
    let (_, store) = new_store();
    let one = commit(&store, &[], &[("a", "1")]);
    let two = commit(&store, &[one], &[("a", "2")]);
    let side = commit(&store, &[one], &[("a", "3")]);
    let forward = |commit: &Hash| store.fast_forward(b"main", commit, Reach::ALL);
    forward(&one).unwrap();
    assert!(matches!(forward(&one), Err(Error::NoChange { name }) if name == "main"));
    forward(&two).unwrap();
    assert!(matches!(forward(&side), Err(Error::Rejected { .. })));
    assert!(matches!(forward(&one), Err(Error::Rejected { .. })));
    assert_eq!(store.branch(b"main"), Some(two));
    let three = commit(&store, &[side], &[("a", "4")]);
    store.set_branch(b"main", &one).unwrap();
    let near = store.fast_forward(b"main", &three, Reach { depth: 0, ancestors: 1 });

    assert!(matches!(near, Err(Error::MaxDepthReached { depth: 0 })));
}

#[test]
fn branches_are_merged_over_their_common_ancestor() {
    let (_, store) = new_store();
    let write = Write::new(Meta::tezos(5, "merge"));
    let base = commit(&store, &[], &[("a", "1"), ("b", "1"), ("both", "1")]);
    let ours = commit(&store, &[base], &[("a", "2"), ("both", "ours")]);
    let theirs = commit(&store, &[base], &[("b", "2"), ("both", "theirs")]);
    store.set_branch(b"main", &ours).unwrap();
    store.set_branch(b"side", &theirs).unwrap();

    match store.merge_branch(b"main", b"side", &write, Reach::ALL, &refuse) {
        Err(Error::Conflict { path, message }) => {
            assert_eq!((path.0.as_str(), message.as_str()), ("both", "both changed"));
        }
        other => panic!("{other:?}"),
    }

    assert_eq!(store.branch(b"main"), Some(ours), "a conflict changes nothing");
    let merge =
        |into: &[u8], from: &[u8]| store.merge_branch(into, from, &write, Reach::ALL, &join);
    let merged = merge(b"main", b"side").unwrap();
    assert_eq!(store.branch(b"main"), Some(merged));
    assert_eq!(store.commit_info(&merged).unwrap().parents, [ours, theirs]);
    let values = ["a", "b", "both"].map(|path| text(&store, &merged, path).unwrap());
    assert_eq!(values, ["2", "2", "ours+theirs"]);
    assert_eq!(merge(b"main", b"side").unwrap(), merged, "it is in there already");
    assert_eq!(merge(b"side", b"main").unwrap(), merged, "moved forward");
    assert_eq!(merge(b"new", b"main").unwrap(), merged, "made");

    assert!(matches!(merge(b"main", b"none"), Err(Error::UnknownBranch { .. })));
}

#[test]
fn several_common_ancestors_are_merged_first() {
    let (_, store) = new_store();
    let root = commit(&store, &[], &[("x", "0"), ("y", "0")]);
    let a = commit(&store, &[root], &[("x", "a")]);
    let b = commit(&store, &[root], &[("y", "b")]);

    // Both have merged the other's change, and made one of their own.
    let c = commit(&store, &[a, b], &[("y", "b"), ("c", "1")]);
    let d = commit(&store, &[b, a], &[("x", "a"), ("y", "d")]);
    store.set_branch(b"main", &c).unwrap();
    let write = Write::new(Meta::tezos(5, "merge"));

    // Over either ancestor alone, x or y would have been changed on both sides.
    let merged = store.merge_commit(b"main", &d, &write, Reach::ALL, &refuse).unwrap();
    let values = ["x", "y", "c"].map(|path| text(&store, &merged, path).unwrap());
    assert_eq!(values, ["a", "d", "1"]);
    let alone = commit(&store, &[], &[("z", "1")]);
    let merged = store.merge_commit(b"main", &alone, &write, Reach::ALL, &refuse).unwrap();
    assert_eq!(text(&store, &merged, "z").as_deref(), Some("1"), "nothing in common");

    assert_eq!(text(&store, &merged, "x").as_deref(), Some("a"));
}

#[test]
fn writes_do_what_they_are_told_if_the_branch_moves() {
    let (_, store) = new_store();
    let meta = Meta::tezos(1, "");

    let other = |number: u32| {
        let head = store.branch(b"main").into_iter().collect::<Vec<Hash>>();
        let moved = commit(&store, &head, &[("other", &number.to_string())]);
        store.set_branch(b"main", &moved).unwrap();
    };

    // Changes one value, while another does so the first `moves` times.
    let write = |write: &Write<'_>, value: &str, moves: u32| {
        let mut calls = 0;
        let made = store.with_tree(b"main", &["own"], write, |tree| {
            if calls < moves {
                other(calls);
            }
            calls += 1;
            let tree = tree.unwrap_or_else(|| store.empty().tree().clone());
            Some(tree.of_value(value.as_bytes()))
        });
        (made, calls)
    };

    let plain = Write::new(meta);
    let (made, _) = write(&plain, "1", 0);
    let first = made.unwrap().unwrap();
    assert_eq!(store.branch(b"main"), Some(first));
    assert_eq!(write(&plain, "1", 0).0.unwrap(), None, "nothing changed");
    let empty = write(&Write { allow_empty: true, ..plain.clone() }, "1", 0).0.unwrap();
    assert_eq!(store.commit_info(&empty.unwrap()).unwrap().parents, [first]);

    let (made, calls) = write(&plain, "2", 2);
    assert_eq!(calls, 3);
    let head = made.unwrap().unwrap();
    assert_eq!(text(&store, &head, "other").as_deref(), Some("1"), "on the newest head");
    let (made, calls) = write(&Write { retries: 1, ..plain.clone() }, "3", 9);
    assert!(matches!(made, Err(Error::TooManyRetries { count: 1 })));
    assert_eq!(calls, 2);
    assert_eq!(text(&store, &store.branch(b"main").unwrap(), "own").as_deref(), Some("2"));

    let merge = Write { strategy: Strategy::Merge(&refuse), ..plain.clone() };
    let (made, calls) = write(&merge, "4", 1);
    let head = made.unwrap().unwrap();
    assert_eq!((calls, store.branch(b"main")), (1, Some(head)));
    assert_eq!(store.commit_info(&head).unwrap().parents.len(), 2);
    assert_eq!(text(&store, &head, "own").as_deref(), Some("4"));
    assert_eq!(text(&store, &head, "other").as_deref(), Some("0"));

    let before = text(&store, &head, "other");
    let (made, _) = write(&Write { strategy: Strategy::Set, ..plain.clone() }, "5", 5);
    let head = made.unwrap().unwrap();
    assert_eq!(text(&store, &head, "other"), before, "the last one wins");
    let parents = Write { parents: Some(vec![first]), ..plain };
    let head = write(&parents, "6", 0).0.unwrap().unwrap();

    assert_eq!(store.commit_info(&head).unwrap().parents, [first]);
}

/// Notes the changes that it is called with.
fn note(changes: &Arc<Mutex<Vec<HeadChange>>>) -> impl Fn(&HeadChange) + Send + Sync + 'static {
    let changes = Arc::clone(changes);
    move |change| changes.lock().unwrap().push(change.clone())
}

fn taken(changes: &Arc<Mutex<Vec<HeadChange>>>) -> Vec<HeadChange> {
    std::mem::take(&mut changes.lock().unwrap())
}

#[test]
fn a_watch_is_called_once_for_each_change() {
    let (disk, store) = new_store();
    let reader = StoreReader::open(disk, Path::new("store"), 1 << 20).unwrap();
    let [main, all, key, read] = [(); 4].map(|()| Arc::new(Mutex::new(Vec::new())));
    let watch = store.watch(b"main", note(&main));
    store.watch_all(note(&all));
    store.watch_key(b"main", &["a"], note(&key));
    reader.watch_all(note(&read));
    let one = commit(&store, &[], &[("a", "1")]);
    let two = commit(&store, &[one], &[("b", "1")]);
    let three = commit(&store, &[two], &[("a", "2")]);
    let heads = [None, Some(one), Some(two), Some(three), None];
    let change =
        |branch: &[u8], before, after| HeadChange { branch: branch.to_vec(), before, after };
    let mut wanted = Vec::new();

    for pair in heads.windows(2) {
        assert!(store.test_and_set_branch(b"main", pair[0].as_ref(), pair[1].as_ref()).unwrap());
        assert!(!store.test_and_set_branch(b"main", Some(&Hash([1; 32])), None).unwrap());
        wanted.push(change(b"main", pair[0], pair[1]));
        if pair[1] == Some(two) {
            store.set_branch(b"main", &two).unwrap();
            reader.sync().unwrap();
            reader.sync().unwrap();
        }
    }

    assert_eq!(taken(&main), wanted);
    assert_eq!(taken(&all), wanted);
    let at_key = [wanted[0].clone(), wanted[2].clone(), wanted[3].clone()];
    assert_eq!(taken(&key), at_key, "not for what left it as it was");
    store.set_branch(b"other", &one).unwrap();
    assert_eq!(taken(&main), []);
    assert_eq!(taken(&all), [change(b"other", None, Some(one))]);
    reader.sync().unwrap();
    let seen = [
        change(b"main", None, Some(two)),
        change(b"main", Some(two), None),
        change(b"other", None, Some(one)),
    ];
    assert_eq!(taken(&read), seen, "what there was at each sync");
    assert!(store.unwatch(watch));
    assert!(!store.unwatch(watch));
    store.set_branch(b"main", &one).unwrap();

    assert_eq!(taken(&main), []);
}

#[test]
fn watches_are_called_in_order_and_may_change_branches() {
    let (_, store) = new_store();
    let commits: Vec<Hash> =
        (0..8).map(|number: u32| commit(&store, &[], &[("n", &number.to_string())])).collect();
    let store = Arc::new(store);
    let changes = Arc::new(Mutex::new(Vec::new()));
    store.watch(b"main", note(&changes));
    let weak = Arc::downgrade(&store);
    store.watch(b"main", move |change| {
        let (Some(store), Some(head)) = (weak.upgrade(), change.after) else { return };
        store.set_branch(b"copy", &head).unwrap();
    });
    let copies = Arc::new(Mutex::new(Vec::new()));
    store.watch(b"copy", note(&copies));
    std::thread::scope(|scope| {
        for hash in &commits {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..20 {
                    store.set_branch(b"main", hash).unwrap();
                }
            });
        }
    });
    let changes = taken(&changes);
    let mut head = None;

    for change in &changes {
        assert_eq!(change.before, head, "in the order in which they were made");
        head = change.after;
    }

    assert_eq!(head, store.branch(b"main"));
    assert_eq!(head, store.branch(b"copy"));
    assert_eq!(taken(&copies).len(), changes.len());
}

/// A commit and the branch that it becomes the head of were two writes with a sync each, between
/// which a collection could take the commit.
#[test]
fn a_commit_to_a_branch_is_one_write_and_one_sync() {
    let (disk, store) = new_store();
    let mut context = store.empty();
    context.add(&["a"], *b"1").unwrap();
    let before = store.stats();
    let first = store.commit_to(b"main", &context, &Meta::tezos(1, "")).unwrap();
    let after = store.stats();
    assert_eq!((after.frames - before.frames, after.syncs - before.syncs), (1, 1));
    assert_eq!(store.branch(b"main"), Some(first));

    // Refused without a trace if the branch is elsewhere.
    context.add(&["a"], *b"2").unwrap();
    let refused = store.test_and_commit_to(b"main", None, &context, &Meta::tezos(2, "")).unwrap();
    assert_eq!((refused, store.stats().frames), (None, after.frames));
    let second = store.test_and_commit_to(b"main", Some(&first), &context, &Meta::tezos(2, ""));
    let second = second.unwrap().unwrap();
    assert_eq!((store.branch(b"main"), store.newest().count()), (Some(second), 2));

    // A commit that is there already only moves the branch.
    assert_eq!(store.commit_to(b"x", &context, &Meta::tezos(2, "")).unwrap(), second);
    assert_eq!((store.branch(b"x"), store.newest().count()), (Some(second), 2));
    let bad = store.commit_to(b"", &context, &Meta::tezos(3, ""));
    assert!(matches!(bad, Err(Error::BranchName { bytes: 0 })), "{bad:?}");

    // Both are found behind the control record.
    drop((store, context));
    let options = Options::new(Arc::new(BtreeIndexes::new(1 << 20)));
    let store = Store::open(disk, Path::new("store"), &options).unwrap();
    let branches = [(b"main".to_vec(), second), (b"x".to_vec(), second)];

    assert_eq!((store.branches(), store.newest().count()), (branches.to_vec(), 2));
}

/// Beside collections that kept the newest commit only, one write in a thousand failed: its commit
/// was collected before its branch was set.
#[test]
fn writes_to_branches_never_fail_beside_collections() {
    let (_, store) = new_store();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let collections = std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut collections = 0;
            loop {
                store.collect(&Retain::newest(1), &mut |_| GcPace::Go).unwrap();
                collections += 1;
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return collections;
                }
            }
        });
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..60u8 {
                        let meta = Meta::tezos(i64::from(writer) * 1000 + i64::from(number), "");
                        let strategy = match number % 3 {
                            0 => Strategy::Set,
                            1 => Strategy::TestAndSet,
                            _ => Strategy::Merge(&join),
                        };
                        let write = Write { strategy, retries: 1000, ..Write::new(meta) };
                        let path = [format!("{writer}/{}", number % 7)];
                        let value = [number; 40];
                        let change = |_| Some(store.empty().tree().of_value(value));
                        store.with_tree(&[b'b', number % 2], &path, &write, change).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        collector.join().unwrap()
    });
    assert!(collections > 0);
}

//! Walks over whole trees: fold, diff, merge, sums and copies, each against plain maps of paths to
//! values.

use std::collections::{BTreeMap, BTreeSet};

use terrane_context::{
    Change, Concrete, Depth, Error, Fold, Kind, Merged, Order, Rules, Tree, TreeStats, Versions,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

type Path = Vec<Box<[u8]>>;
type Model = BTreeMap<Path, Vec<u8>>;

const ROOT: [&str; 0] = [];
/// Inodes at a few steps, so that small trees have all shapes.
const SMALL: Rules = Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS };

fn path(text: &str) -> Path {
    text.split('/').filter(|step| !step.is_empty()).map(|step| step.as_bytes().into()).collect()
}

fn text(path: &[Box<[u8]>]) -> String {
    path.iter().map(|step| String::from_utf8_lossy(step)).collect::<Vec<_>>().join("/")
}

fn tree_of(rules: Rules, model: &Model) -> Tree {
    let mut tree = Tree::new(rules).unwrap();
    for (path, value) in model {
        tree.add(path, value.as_slice()).unwrap();
    }
    tree
}

/// Values at paths none of which leads through another: two or three steps, of which the first
/// tells how many.
fn random_model(rng: &mut ChaCha8Rng) -> Model {
    let mut model = Model::new();
    for _ in 0..rng.below(120) {
        change_at_random(rng, &mut model);
    }
    model
}

fn change_at_random(rng: &mut ChaCha8Rng, model: &mut Model) {
    let mut key = vec![rng.below(4)];
    key.push(rng.below(if key[0] == 0 { 40 } else { 5 }));
    if key[0] > 1 {
        key.push(rng.below(9));
    }
    let key: Path = key.iter().map(|step| step.to_string().into_bytes().into()).collect();
    if rng.chance(1, 4) {
        model.remove(&key);
    } else {
        let value = [rng.below(3) as u8];
        model.insert(key, value.to_vec());
    }
}

fn visited(tree: &Tree, at: &str, depth: Option<Depth>, order: Order) -> Vec<String> {
    let visit = |path: &[Box<[u8]>], tree: Tree, mut all: Vec<String>| {
        let kind = if tree.kind() == Kind::Value { "=" } else { "" };
        all.push(text(path) + kind);
        Ok::<_, Error>(all)
    };
    tree.fold(&path(at), Fold { depth, order, ..Fold::default() }, Vec::new(), visit).unwrap()
}

#[test]
fn fold_visits_exactly_the_depths_that_are_asked_for() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    tree.add(&["foo", "toto"], *b"1").unwrap();
    tree.add(&["foo", "bar", "toto"], *b"2").unwrap();
    let expected: [(Option<Depth>, &[&str]); 9] = [
        (None, &["", "foo", "foo/bar", "foo/bar/toto=", "foo/toto="]),
        (Some(Depth::Eq(0)), &[""]),
        (Some(Depth::Eq(1)), &["foo"]),
        (Some(Depth::Eq(2)), &["foo/bar", "foo/toto="]),
        (Some(Depth::Eq(3)), &["foo/bar/toto="]),
        (Some(Depth::Lt(2)), &["", "foo"]),
        (Some(Depth::Le(2)), &["", "foo", "foo/bar", "foo/toto="]),
        (Some(Depth::Gt(2)), &["foo/bar/toto="]),
        (Some(Depth::Ge(2)), &["foo/bar", "foo/bar/toto=", "foo/toto="]),
    ];
    for (depth, expected) in expected {
        assert_eq!(visited(&tree, "", depth, Order::Sorted), expected, "{depth:?}");
    }
    assert_eq!(visited(&tree, "foo/bar", None, Order::Sorted), ["", "toto="]);
    assert!(visited(&tree, "", Some(Depth::Lt(0)), Order::Sorted).is_empty());

    for nowhere in ["foo/toto", "absent", "foo/toto/through"] {
        assert!(visited(&tree, nowhere, None, Order::Sorted).is_empty(), "{nowhere}");
    }
}

#[test]
fn fold_ends_with_the_first_error_of_the_callback() {
    let tree = tree_of(Rules::TEZOS, &[(path("a"), vec![1]), (path("b"), vec![2])].into());
    let outcome = tree.fold(&ROOT, Fold::default(), 0, |path, _, calls| {
        if path.len() == 1 { Err(Error::Closed) } else { Ok(calls + 1) }
    });
    assert!(matches!(outcome, Err(Error::Closed)));
}

#[test]
fn fold_does_not_load_what_cannot_match() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    let hidden = tree.shallow(Kind::Directory, Rules::TEZOS.value_hash(b"unknown"));
    tree.add(&["a", "b"], *b"1").unwrap();
    tree.add_tree(&["a", "hidden"], &hidden).unwrap();
    assert_eq!(visited(&tree, "", Some(Depth::Le(2)), Order::Sorted).len(), 4);
    assert_eq!(visited(&tree, "a/hidden", Some(Depth::Eq(0)), Order::Sorted), [""]);
    let outcome = tree.fold(&ROOT, Fold::default(), (), |_, _, ()| Ok::<_, Error>(()));
    let Err(Error::DanglingHash { path, .. }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(path.to_string(), "a/hidden");
}

type Accepts = fn(&usize, &usize) -> bool;

/// All paths of directories and values, the root included.
fn model_paths(model: &Model) -> BTreeSet<Path> {
    let all = model.keys().flat_map(|key| (0..=key.len()).map(|len| key[..len].to_vec()));
    all.chain([Path::new()]).collect()
}

#[test]
fn folds_of_every_depth_and_order_agree_with_a_map() {
    for_each_seed("folds_of_every_depth_and_order_agree_with_a_map", 20, |rng, seed| {
        let model = random_model(rng);
        let tree = tree_of(SMALL, &model);
        let name = |path: &Path| text(path) + if model.contains_key(path) { "=" } else { "" };
        let bound = rng.index(5);
        let tests: [(Depth, Accepts); 5] = [
            (Depth::Eq(bound), usize::eq),
            (Depth::Lt(bound), usize::lt),
            (Depth::Le(bound), usize::le),
            (Depth::Gt(bound), usize::gt),
            (Depth::Ge(bound), usize::ge),
        ];
        for (depth, accepts) in tests {
            let expected = model_paths(&model).into_iter().filter(|p| accepts(&p.len(), &bound));
            let expected: Vec<String> = expected.map(|path| name(&path)).collect();
            let sorted = visited(&tree, "", Some(depth), Order::Sorted);
            assert_eq!(sorted, expected, "seed {seed:#x} {depth:?}");
            let mut any = visited(&tree, "", Some(depth), Order::Undefined);
            any.sort_unstable();
            let mut expected = expected;
            expected.sort_unstable();
            assert_eq!(any, expected, "seed {seed:#x} {depth:?}");
        }
        let directories = model_paths(&model).len() - model.len();
        let stats = TreeStats {
            nodes: directories as u64,
            leaves: model.len() as u64,
            depth: model_paths(&model).iter().map(Vec::len).max().unwrap_or(0),
            width: widest(&model),
        };
        assert_eq!(tree.stats().unwrap(), stats, "seed {seed:#x}");
    });
}

fn widest(model: &Model) -> u64 {
    let mut widths: BTreeMap<Path, u64> = BTreeMap::new();
    for path in model_paths(model) {
        if let Some((_, parent)) = path.split_last() {
            *widths.entry(parent.to_vec()).or_default() += 1;
        }
    }
    widths.into_values().max().unwrap_or(0)
}

#[test]
fn a_sequence_has_the_order_of_the_pages() {
    let model = (0..300).map(|name| (path(&format!("d/{name}")), vec![1])).collect();
    let tree = tree_of(Rules::TEZOS, &model);
    let seq: Vec<_> = tree.seq(&["d"]).unwrap().map(Result::unwrap).collect();
    assert_eq!(seq, tree.list(&["d"], 0, 1_000).unwrap());
    assert_eq!(seq.len(), 300);
    assert_eq!(tree.seq(&["absent"]).unwrap().count(), 0);
    assert_eq!(tree.seq(&["d", "1"]).unwrap().count(), 0, "a value has no children");
}

#[test]
fn a_sequence_ends_with_its_first_error() {
    let tree = Tree::new(Rules::TEZOS).unwrap();
    let hidden = tree.shallow(Kind::Directory, Rules::TEZOS.value_hash(b"unknown"));
    assert!(matches!(hidden.seq(&ROOT), Err(Error::DanglingHash { .. })));
}

#[test]
fn singleton_and_update_tree_change_one_binding() {
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    let single = tree.singleton(&["x", "y"], *b"1").unwrap();
    assert_eq!(single.find(&["x", "y"]).unwrap(), Some(b"1".to_vec()));
    assert!(
        tree.update_tree(&["a"], |old| {
            assert!(old.is_none());
            Some(single.clone())
        })
        .unwrap()
    );
    assert_eq!(tree.find(&["a", "x", "y"]).unwrap(), Some(b"1".to_vec()));
    assert!(!tree.update_tree(&["a"], |old| old).unwrap(), "the same tree changes nothing");
    assert!(tree.update_tree(&["a", "x"], |_| None).unwrap());
    assert!(tree.is_empty());

    assert!(!tree.update_tree(&["a"], |_| None).unwrap());
}

#[test]
fn diff_agrees_with_maps() {
    for_each_seed("diff_agrees_with_maps", 40, |rng, seed| {
        let old = random_model(rng);
        let mut new = if rng.chance(1, 3) { random_model(rng) } else { old.clone() };
        for _ in 0..rng.below(6) {
            change_at_random(rng, &mut new);
        }
        let mut expected = Vec::new();
        for path in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            match (old.get(path), new.get(path)) {
                (None, _) => expected.push((path.clone(), Change::Added)),
                (_, None) => expected.push((path.clone(), Change::Removed)),
                (a, b) if a != b => expected.push((path.clone(), Change::Changed)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        let note = |path: &[Box<[u8]>], change| {
            found.push((path.to_vec(), change));
            Ok::<_, Error>(())
        };
        tree_of(SMALL, &old).diff(&tree_of(SMALL, &new), note).unwrap();
        assert_eq!(found, expected, "seed {seed:#x}");
    });
}

#[test]
fn diff_of_a_value_that_became_a_directory() {
    let old = tree_of(SMALL, &[(path("x"), vec![1]), (path("same"), vec![2])].into());
    let new = tree_of(SMALL, &[(path("x/y"), vec![1]), (path("same"), vec![2])].into());
    let mut found = Vec::new();
    old.diff(&new, |path, change| {
        found.push((text(path), change));
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(found, [("x".to_owned(), Change::Removed), ("x/y".to_owned(), Change::Added)]);
    let other = Tree::new(Rules::BLAKE3).unwrap();
    let outcome = old.diff(&other, |_, _| Ok::<_, Error>(()));
    assert!(matches!(outcome, Err(Error::ForeignTree)));
}

#[test]
fn diff_does_not_load_what_is_equal() {
    let mut old = Tree::new(Rules::TEZOS).unwrap();
    for name in 0..300 {
        let hash = Rules::TEZOS.value_hash(&[name as u8]);
        let hidden = old.shallow(Kind::Directory, hash);
        old.add_tree(&[name.to_string()], &hidden).unwrap();
    }

    let mut new = old.clone();
    new.add(&["added"], *b"1").unwrap();
    let mut found = Vec::new();
    old.diff(&new, |path, change| {
        found.push((text(path), change));
        Ok::<_, Error>(())
    })
    .unwrap();

    assert_eq!(found, [("added".to_owned(), Change::Added)]);
}

/// Merges paths and values: the base, and the two sides that changed it.
fn merge_models(base: &Model, ours: &Model, theirs: &Model) -> Option<Model> {
    let mut merged = Model::new();
    let all = [base, ours, theirs].into_iter().flat_map(BTreeMap::keys);
    for path in all.collect::<BTreeSet<_>>() {
        let b = base.get(path);
        let o = ours.get(path);
        let t = theirs.get(path);
        let value = if o == t || b == t {
            o.cloned()
        } else if b == o {
            t.cloned()
        } else {
            Some([b"merged".as_slice(), o?, t?].concat())
        };
        merged.extend(value.map(|value| (path.clone(), value)));
    }

    Some(merged)
}

#[expect(clippy::unnecessary_wraps, reason = "the type of a function that merges")]
fn join(_: &[Box<[u8]>], versions: Versions<'_>) -> Merged {
    Ok(Some([b"merged".as_slice(), versions.ours, versions.theirs].concat()))
}

#[test]
fn merge_agrees_with_maps() {
    let mut merged = 0;
    let mut conflicts = 0;
    for_each_seed("merge_agrees_with_maps", 60, |rng, seed| {
        let base = random_model(rng);
        let mut ours = base.clone();
        let mut theirs = base.clone();
        for _ in 0..rng.below(25) {
            change_at_random(rng, &mut ours);
            change_at_random(rng, &mut theirs);
        }
        let trees = [&base, &ours, &theirs].map(|model| tree_of(SMALL, model));
        let outcome = trees[1].merge(&trees[0], &trees[2], join);
        match (merge_models(&base, &ours, &theirs), outcome) {
            (Some(model), Ok(tree)) => {
                assert_eq!(tree.hash(), tree_of(SMALL, &model).hash(), "seed {seed:#x}");
                merged += 1;
            }
            (None, Err(Error::Conflict { .. })) => conflicts += 1,
            (model, outcome) => panic!("seed {seed:#x}: {model:?} {outcome:?}"),
        }
    });
    if std::env::var_os("SEED").is_none() {
        assert!(merged > 10 && conflicts > 3, "{merged} merged, {conflicts} conflicts");
    }
}

#[test]
fn merge_names_the_path_of_a_conflict() {
    let tree = |values: &[(&str, u8)]| {
        tree_of(SMALL, &values.iter().map(|(at, value)| (path(at), vec![*value])).collect())
    };
    let base = tree(&[("a/x", 1), ("a/y", 1), ("z", 1)]);

    let conflict = |ours: &[(&str, u8)], theirs: &[(&str, u8)]| {
        let refuse = |_: &[Box<[u8]>], _: Versions<'_>| Err("no rule".to_owned());
        match tree(ours).merge(&base, &tree(theirs), refuse) {
            Err(Error::Conflict { path, message }) => (path.to_string(), message),
            other => panic!("{other:?}"),
        }
    };

    let (at, message) = conflict(&[("a/x", 2), ("a/y", 1), ("z", 1)], &[("a/x", 3), ("z", 1)]);
    assert_eq!((at.as_str(), message.as_str()), ("a/x", "no rule"));
    let (at, _) = conflict(&[("a/y", 1), ("z", 1)], &[("a/x", 3), ("a/y", 1), ("z", 1)]);
    assert_eq!(at, "a/x", "removed and changed");
    let (at, _) = conflict(&[("a", 2), ("z", 1)], &[("a/x", 3), ("a/y", 1), ("z", 1)]);
    assert_eq!(at, "a", "a value and a directory");
    let (at, _) = conflict(&[("z", 1)], &[("a/x", 3), ("a/y", 1), ("z", 1)]);
    assert_eq!(at, "a/x", "a directory that was removed, and a change in it");

    let ours = tree(&[("a/x", 1), ("a/y", 1), ("b", 1)]);
    let theirs = tree(&[("c", 1), ("z", 1)]);
    let merged = ours.merge(&base, &theirs, join).unwrap();
    assert_eq!(merged, tree(&[("b", 1), ("c", 1)]), "changes of one side each");
    let added = tree(&[("a/n", 1), ("z", 1)]);

    assert_eq!(tree(&[("z", 1)]).merge(&base, &added, join).unwrap(), added);
}

#[test]
fn copies_and_plain_data_are_the_same_tree() {
    for_each_seed("copies_and_plain_data_are_the_same_tree", 10, |rng, seed| {
        let model = random_model(rng);
        for rules in [SMALL, Rules::BLAKE3] {
            let tree = tree_of(rules, &model);
            let mut copy = tree.to_memory().unwrap();
            assert_eq!(copy, tree, "seed {seed:#x}");
            assert_eq!(tree.to_concrete().unwrap(), copy.to_concrete().unwrap());
            assert_eq!(tree.of_concrete(&copy.to_concrete().unwrap()).unwrap(), tree);
            copy.add(&["new"], *b"1").unwrap();
            assert!(!tree.mem(&["new"]).unwrap(), "the copy is another tree");
            assert_eq!(copy.find(&["new"]).unwrap(), Some(b"1".to_vec()));
        }
    });
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    tree.add(&["a", "b"], *b"1").unwrap();
    let below =
        Concrete::Directory([(b"b".as_slice().into(), Concrete::Value(b"1".into()))].into());
    let whole = Concrete::Directory([(b"a".as_slice().into(), below)].into());
    assert_eq!(tree.to_concrete().unwrap(), whole);
    let value = tree.of_value(*b"v");
    assert_eq!(value.to_memory().unwrap(), value);
    let hidden = tree.shallow(Kind::Directory, tree.hash());

    assert!(matches!(hidden.to_memory(), Err(Error::DanglingHash { .. })));
}

#[test]
fn copies_keep_what_is_shared() {
    // Two to the power of forty paths.
    let mut tree = Tree::new(Rules::TEZOS).unwrap();
    tree.add(&["v"], *b"1").unwrap();
    for _ in 0..40 {
        let mut above = tree.empty();
        above.add_tree(&["left"], &tree).unwrap();
        above.add_tree(&["right"], &tree).unwrap();
        tree = above;
    }
    assert_eq!(tree.to_memory().unwrap(), tree);
}

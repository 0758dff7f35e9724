//! Trees in memory: the semantics of every call, and the shape that does not depend on history.

use terrane_context::{Error, Hash, Kind, Rules, Tree, ocaml_hash};
use terrane_testkit::draw::Draw;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

/// Value of all bindings of the published vectors.
const VALUE: [u8; 6] = [1, 2, 3, 4, 5, 6];

fn new() -> Tree {
    Tree::new(Rules::TEZOS).unwrap()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|name| name.to_string()).collect()
}

fn of_names(names: &[String]) -> Tree {
    let mut tree = new();
    for name in names {
        assert!(tree.add(&[name], VALUE).unwrap());
    }
    tree
}

#[test]
fn the_order_of_changes_does_not_matter() {
    let all = names(1_010);
    let expected = of_names(&all).hash();
    for seed in 0..3 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut order = all.clone();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let mut tree = new();

        for (number, name) in order.iter().enumerate() {
            tree.add(&[name], VALUE).unwrap();
            if number % 3 == 2 {
                let other = &order[rng.below(number as u64) as usize];
                assert!(tree.remove(&[other]).unwrap(), "seed {seed}");
                assert!(!tree.mem(&[other]).unwrap());
                tree.add(&[other], VALUE).unwrap();
            }
        }

        assert_eq!(tree.hash(), expected, "seed {seed}");
        assert_eq!(tree.length(&[] as &[&str]).unwrap(), 1_010);
    }
}

#[test]
fn the_flat_limit_is_crossed_both_ways() {
    let all = names(257);
    let flat: Hash = "CoUvU6bEZfdNV4EwCSC5poNpC5UoytFAahvoExrLbgn3cSikeri3".parse().unwrap();
    let mut tree = of_names(&all[..256]);
    assert_eq!(tree.hash(), flat);
    tree.add(&[&all[256]], VALUE).unwrap();
    assert_eq!(tree.hash(), of_names(&all).hash());
    assert_ne!(tree.hash(), flat);
    tree.remove(&[&all[256]]).unwrap();
    assert_eq!(tree.hash(), flat);
}

#[test]
fn ten_thousand_other_names_leave_no_trace() {
    for rules in
        [Rules::TEZOS, Rules::BLAKE3, Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS }]
    {
        let mut tree = Tree::new(rules).unwrap();
        for name in names(300) {
            tree.add(&["data", &name], name.as_bytes()).unwrap();
        }
        let before = tree.hash();
        let others: Vec<String> = (0..10_000).map(|name| format!("other {name}")).collect();

        for other in &others {
            assert!(tree.add(&["data", other], *b"x").unwrap());
            assert!(!tree.add(&["data", other], *b"x").unwrap());
        }

        assert_ne!(tree.hash(), before);
        assert_eq!(tree.length(&["data"]).unwrap(), 10_300);
        for other in &others {
            assert!(tree.remove(&["data", other]).unwrap());
            assert!(!tree.remove(&["data", other]).unwrap());
        }

        assert_eq!(tree.hash(), before, "{rules:?}");
    }
}

#[test]
fn parents_that_are_left_empty_go() {
    let mut tree = new();
    tree.add(&["a", "b"], *b"1").unwrap();
    tree.add(&["a", "c"], *b"2").unwrap();
    let full = tree.clone();
    assert!(tree.remove(&["a", "b"]).unwrap());
    assert!(tree.remove(&["a", "c"]).unwrap());
    assert!(!tree.mem_tree(&["a"]).unwrap());
    assert!(tree.is_empty());
    assert_eq!(tree.list(&[] as &[&str], 0, 10).unwrap().len(), 0);
    let empty = "CoVdWnWTqvYLikKj8koW6zpxCvK6FzZiD31YWEpD1UNAjWn7vhch";
    assert_eq!(tree.hash().to_string(), empty);
    assert_eq!(full.find(&["a", "c"]).unwrap(), Some(b"2".to_vec()), "the clone is another tree");

    let mut tree = full.clone();
    for absent in [vec!["x"], vec!["a", "x"], vec!["a", "b", "through"], vec!["a", "b", "c", "d"]] {
        assert!(!tree.remove(&absent).unwrap(), "{absent:?}");
    }
    assert_eq!(tree, full);
}

#[test]
fn values_and_directories_replace_each_other() {
    let mut tree = new();
    tree.add(&["x"], *b"value").unwrap();
    assert!(tree.add(&["x", "y"], *b"below").unwrap());
    assert_eq!(tree.find(&["x"]).unwrap(), None);
    assert!(!tree.mem(&["x"]).unwrap() && tree.mem_tree(&["x"]).unwrap());
    assert_eq!(tree.find(&["x", "y"]).unwrap(), Some(b"below".to_vec()));
    assert_eq!(tree.find(&["x", "y", "z"]).unwrap(), None, "through a value");
    assert!(tree.add(&["x"], *b"again").unwrap());
    assert!(!tree.mem_tree(&["x", "y"]).unwrap());
    assert!(!tree.add(&["x"], *b"again").unwrap(), "an equal binding changes nothing");
    assert_eq!(tree.find_tree(&["x"]).unwrap().unwrap().kind(), Kind::Value);
}

#[test]
fn an_empty_directory_is_never_bound_and_an_empty_value_is() {
    let mut tree = new();
    tree.add(&["v"], *b"").unwrap();
    assert_eq!(tree.find(&["v"]).unwrap(), Some(Vec::new()));
    let value = tree.find_tree(&["v"]).unwrap().unwrap();
    assert_eq!(value.hash(), tree.empty().hash(), "the collision of the format");
    assert_ne!(value, tree.empty(), "and yet they are not equal");
    let blake3 = Tree::new(Rules::BLAKE3).unwrap();
    assert_ne!(blake3.hash(), blake3.of_value(*b"").hash(), "none in the other scheme");

    let empty = tree.empty();
    assert!(!tree.add_tree(&["d"], &empty).unwrap());
    assert!(!tree.mem_tree(&["d"]).unwrap());
    assert!(tree.add_tree(&["v"], &empty).unwrap(), "it unbinds what is there");

    assert!(tree.is_empty());
}

#[test]
fn steps_of_any_bytes_and_lengths() {
    let steps: Vec<Vec<u8>> = [1, 127, 128, 255].iter().map(|&len| vec![0xFE; len]).collect();
    let mut tree = new();
    for step in &steps {
        tree.add(&[step], step.as_slice()).unwrap();
    }
    for step in &steps {
        assert_eq!(tree.find(&[step]).unwrap().as_ref(), Some(step));
    }
    let listed = tree.list(&[] as &[&str], 0, 9).unwrap();
    assert_eq!(listed.iter().map(|(step, _)| step.to_vec()).collect::<Vec<_>>(), steps);
    let error = tree.add(&[vec![1; 256]], *b"").unwrap_err();
    assert!(matches!(error, Error::StepSize { bytes: 256 }), "{error}");
    let error = tree.add(&["a", "", "b"], *b"").unwrap_err();

    assert!(matches!(error, Error::StepSize { bytes: 0 }), "{error}");
}

/// Names of one length that share their bucket at every depth: `MurmurHash3` has differences of two
/// words that cancel whatever the seed is, so that n pairs of words give 2^n names of equal hash.
fn names_of_equal_hash(pairs: u32) -> Vec<Vec<u8>> {
    let inverse =
        |odd: u32| (0..5).fold(odd, |x, _| x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x))));
    let unmix = |mixed: u32| {
        let word = mixed.wrapping_mul(inverse(0x1b87_3593)).rotate_right(15);
        word.wrapping_mul(inverse(0xcc9e_2d51)).to_le_bytes()
    };

    let name = |number: u32| {
        let words = (0..pairs).flat_map(|pair| {
            let flip = number >> pair & 1;
            [unmix(7 ^ flip << 18), unmix(9 ^ flip << 31)]
        });
        words.flatten().collect()
    };

    (0..1 << pairs).map(name).collect()
}

#[test]
fn names_that_are_chosen_to_share_all_buckets_still_work() {
    let names = names_of_equal_hash(9);
    for depth in 0..70 {
        assert!(names.iter().all(|name| ocaml_hash(depth, name) == ocaml_hash(depth, &names[0])));
    }
    for rules in [Rules::TEZOS, Rules::BLAKE3] {
        let mut tree = Tree::new(rules).unwrap();
        for name in &names {
            assert!(tree.add(&[name], name.as_slice()).unwrap());
        }
        let full = tree.hash();
        for name in &names {
            assert_eq!(tree.find(&[name]).unwrap().as_ref(), Some(name));
        }
        for name in &names[1..] {
            assert!(tree.remove(&[name]).unwrap());
        }
        assert_eq!(tree.length(&[] as &[&str]).unwrap(), 1);
        for name in names[1..].iter().rev() {
            assert!(tree.add(&[name], name.as_slice()).unwrap());
        }

        assert_eq!(tree.hash(), full);
    }
}

#[test]
fn trees_that_are_too_deep_are_refused() {
    let mut tree = new();
    let deep = vec!["d"; 512];
    assert!(tree.add(&deep, *b"v").unwrap());
    let mut long = deep.clone();
    long.push("d");
    assert!(matches!(tree.add(&long, *b"v"), Err(Error::TooDeep { levels: 513 })));
    let copy = tree.clone();
    assert!(matches!(tree.add_tree(&["above"], &copy), Err(Error::TooDeep { levels: 513 })));
    assert_eq!(tree, copy);
}

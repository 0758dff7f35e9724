//! Trees as deep as chosen names can make them, and trees that are far larger than what is stored
//! of them.
//!
//! Users choose names, and so the shape of inodes: names that collide under every seed nest 64
//! inodes in each directory. Method: such names in 512 directories, one in the other, a path of
//! about 33,000 nodes; and every call on the tree, on a thread with a small stack.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, CheckReport, Concrete, Depth, Error, Fold, GcPace, Hash, Meta, Options, Prefetch,
    ProofError, Retain, Rules, Store, Tree, check, ocaml_hash, produce_tree_proof,
};
use terrane_io::{Disk, MemoryDisk};

const ROOT: [&str; 0] = [];
/// Inodes from four steps on.
const SMALL: Rules = Rules { branching: 2, flat_limit: 3, ..Rules::TEZOS };
/// The highest tree that there may be.
const LEVELS: usize = 512;
const STACK_BYTES: usize = 256 << 10;

fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap();
    thread.join().unwrap();
}

/// The number that gives 1 modulo 2³² when it is multiplied by an odd one.
fn inverse(odd: u32) -> u32 {
    (0..5)
        .fold(odd, |inverse, _| inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse))))
}

/// The four bytes of a name that the hash of names mixes into `mixed`.
fn unmixed(mixed: u32) -> [u8; 4] {
    let word = mixed.wrapping_mul(inverse(0x1b87_3593)).rotate_right(15);
    word.wrapping_mul(inverse(0xcc9e_2d51)).to_le_bytes()
}

/// Names of 72 bytes that have one hash, whatever the seed: each of nine pairs of words is taken as
/// it is, or with two bits turned over that cancel each other out.
fn colliding(count: u32) -> Vec<Vec<u8>> {
    let name = |number: u32| {
        let pair = |at: u32| {
            let turned = number >> at & 1;
            let one = 0x1234_5678 ^ at;
            let two = 0x0fed_cba9 ^ at;
            [unmixed(one ^ turned << 18), unmixed(two ^ turned << 31)].concat()
        };
        (0..9).flat_map(pair).collect()
    };
    (0..count).map(name).collect()
}

#[test]
fn chosen_names_collide_under_every_seed() {
    let names = colliding(300);
    for seed in 0..64 {
        let hash = ocaml_hash(seed, &names[0]);
        assert!(names.iter().all(|name| ocaml_hash(seed, name) == hash), "{seed}");
    }
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

/// A tree of so many directories, each with `count` names that collide, the first of which leads
/// on.
fn nested(rules: Rules, levels: usize, count: u32) -> (Tree, Vec<Vec<u8>>) {
    let names = colliding(count);
    let mut tree = Tree::new(rules).unwrap().of_value(*b"end");
    for _ in 0..levels {
        let mut above = tree.empty();
        for name in &names[1..] {
            above.add(&[name], *b"beside").unwrap();
        }
        above.add_tree(&[&names[0]], &tree).unwrap();
        tree = above;
    }
    (tree, vec![names[0].clone(); levels])
}

fn options(rules: Rules) -> Options {
    Options::new(Arc::new(BtreeIndexes::new(1 << 20))).rules(rules)
}

fn import(disk: &Arc<dyn Disk>, options: &Options, mut stream: &[u8]) {
    let (store, _) =
        Store::import_new(Arc::clone(disk), Path::new("store"), options, &mut stream).unwrap();
    store.close().unwrap();
}

fn checked(disk: &Arc<dyn Disk>) -> CheckReport {
    let options = CheckOptions::default().index(None).hashes(true);
    check(disk, Path::new("store"), &options, &mut |_| {}).unwrap()
}

fn commit(store: &Store, tree: &Tree, date: i64) -> Hash {
    let mut context = store.empty();
    context.add_tree(&ROOT, tree).unwrap();
    store.commit(&context, &Meta::tezos(date, "")).unwrap()
}

/// Sixty directories of 300 such names once ended the process in a commit, for want of stack.
#[test]
fn trees_of_chosen_names_need_little_stack() {
    on_a_small_stack(|| {
        let (mut tree, path) = nested(SMALL, LEVELS, 4);
        let before = tree.clone();
        let hash = tree.hash();
        assert_eq!(tree.find(&path).unwrap().as_deref(), Some(b"end".as_slice()));

        let mut sibling = path.clone();
        *sibling.last_mut().unwrap() = colliding(3).pop().unwrap();
        assert!(tree.add(&path, *b"other").unwrap());
        assert!(tree.remove(&sibling).unwrap());
        assert!(tree.remove(&path).unwrap());
        assert!(tree.add(&path, *b"end").unwrap());
        assert!(tree.add(&sibling, *b"beside").unwrap());
        assert_eq!(tree.hash(), hash);

        assert!(tree.add(&path, *b"other").unwrap());
        let mut changes = Vec::new();
        before
            .diff(&tree, |at, change| {
                changes.push((at.len(), change));
                Ok::<_, Error>(())
            })
            .unwrap();
        assert_eq!(changes, [(LEVELS, terrane_context::Change::Changed)]);
        let mut theirs = before.clone();
        assert!(theirs.remove(&sibling).unwrap());
        let merged = tree.merge(&before, &theirs, |_, _| Ok(None)).unwrap();
        assert!(!merged.mem(&sibling).unwrap());
        assert_eq!(merged.find(&path).unwrap().as_deref(), Some(b"other".as_slice()));

        let stats = tree.stats().unwrap();
        assert_eq!((stats.depth, stats.leaves), (LEVELS, 3 * LEVELS as u64 + 1));
        assert_eq!(tree.to_memory().unwrap(), tree);
        let concrete = tree.to_concrete().unwrap();
        assert_eq!(tree.of_concrete(&concrete).unwrap(), tree);
        let outcome = produce_tree_proof(&tree, |tree| tree.find(&path).map(|_| (tree, ())));
        assert!(matches!(outcome, Err(ProofError::TooDeep)), "{outcome:?}");
    });
}

#[test]
fn stores_of_chosen_names_need_little_stack() {
    on_a_small_stack(|| {
        let (tree, path) = nested(SMALL, LEVELS, 4);
        let disk: Arc<dyn Disk> = MemoryDisk::new();
        let dir = Path::new("store");
        let store = Store::create(Arc::clone(&disk), dir, &options(SMALL)).unwrap();
        let first = commit(&store, &tree, 0);
        store.close().unwrap();
        drop(store);

        let store = Store::open(Arc::clone(&disk), dir, &options(SMALL)).unwrap();
        let mut context = store.checkout(&first).unwrap().unwrap();
        context.prefetch(&[&path], Prefetch::Target);
        assert_eq!(context.find(&path).unwrap().as_deref(), Some(b"end".as_slice()));
        context.add(&path, *b"other").unwrap();
        let second = store.commit(&context, &Meta::tezos(1, "")).unwrap();
        let context = store.checkout(&second).unwrap().unwrap();
        assert_eq!(context.to_memory().unwrap(), *context.tree());

        let mut stream = Vec::new();
        store.export(&second, &mut stream).unwrap();
        let other: Arc<dyn Disk> = MemoryDisk::new();
        import(&other, &options(SMALL), &stream);

        drop(context);
        store.collect(&Retain::since(second), &mut |_| GcPace::Go).unwrap();
        store.close().unwrap();
        drop(store);
        for disk in [disk, other] {
            let report = checked(&disk);
            assert!(report.problems.is_empty(), "{report:?}");
        }
    });
}

/// The rules of Tezos, as an attacker meets them.
#[test]
fn three_hundred_chosen_names_in_each_directory_need_little_stack() {
    on_a_small_stack(|| {
        let (tree, path) = nested(Rules::TEZOS, 20, 300);
        let store = Store::create(MemoryDisk::new(), Path::new("store"), &options(Rules::TEZOS));
        let store = store.unwrap();
        let hash = commit(&store, &tree, 0);
        let found = store.checkout(&hash).unwrap().unwrap().find(&path).unwrap();
        assert_eq!(found.as_deref(), Some(b"end".as_slice()));
    });
}

/// Two names in each directory that lead to one and the same: 2⁶⁰ values, of which one is stored.
fn doubled() -> Tree {
    let mut tree = Tree::new(Rules::TEZOS).unwrap().of_value([7; 40]);
    for _ in 0..60 {
        let mut above = tree.empty();
        above.add_tree(&["left"], &tree).unwrap();
        above.add_tree(&["right"], &tree).unwrap();
        tree = above;
    }
    tree
}

/// A snapshot of 2,930 bytes once kept walks busy for ever, and took all memory where they
/// collected what they met.
#[test]
fn a_tree_that_is_larger_than_what_is_stored_of_it_is_read_within_limits() {
    let tree = doubled();
    let fold = Fold { parts_max: 1_000, ..Fold::default() };
    let mut met = 0;
    let outcome: Result<(), Error> = tree.fold(&ROOT, fold, (), |_, _, ()| {
        met += 1;
        Ok(())
    });
    assert!(matches!(outcome, Err(Error::LimitExceeded { limit: 1_000, .. })), "{outcome:?}");
    assert_eq!(met, 1_001, "the root is there without being looked for");

    // What a fold passes by counts as well.
    let fold = Fold { depth: Some(Depth::Eq(60)), ..fold };
    let outcome: Result<u64, Error> = tree.fold(&ROOT, fold, 0, |_, _, count| Ok(count + 1));
    assert!(matches!(outcome, Err(Error::LimitExceeded { .. })), "{outcome:?}");
    let outcome = tree.to_concrete_within(1 << 20);
    assert!(matches!(outcome, Err(Error::LimitExceeded { limit: 1_048_576, .. })));

    // What is there once is within the limit.
    let part = doubled_part(&tree, 50);
    assert!(matches!(part.to_concrete_within(1 << 20), Ok(Concrete::Directory(_))));

    // A copy, a store and a snapshot have each part once.
    assert_eq!(tree.to_memory().unwrap(), tree);
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let dir = Path::new("store");
    let store = Store::create(Arc::clone(&disk), dir, &options(Rules::TEZOS)).unwrap();
    let hash = commit(&store, &tree, 0);
    let mut stream = Vec::new();
    store.export(&hash, &mut stream).unwrap();
    assert!(stream.len() < 8 << 10, "{}", stream.len());
    store.close().unwrap();
    drop(store);
    let other: Arc<dyn Disk> = MemoryDisk::new();
    import(&other, &options(Rules::TEZOS), &stream);

    for disk in [disk, other] {
        let report = checked(&disk);
        assert!(report.problems.is_empty() && report.objects < 100, "{report:?}");
    }
}

/// The memory of an import grows with the elements of the stream, which may come from anybody.
#[test]
fn an_import_takes_no_more_elements_than_it_may() {
    let (tree, _) = nested(SMALL, 10, 4);
    let store = Store::create(MemoryDisk::new(), Path::new("store"), &options(SMALL)).unwrap();
    let hash = commit(&store, &tree, 0);
    let mut stream = Vec::new();
    let elements = store.export(&hash, &mut stream).unwrap().elements;

    let import = |elements_max| {
        let options = options(SMALL).import_elements_max(elements_max);
        Store::import_new(MemoryDisk::new(), Path::new("store"), &options, &mut &*stream)
    };

    let error = import(elements - 2).map(drop).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { unit: "elements", .. }), "{error:?}");
    import(elements).unwrap();
}

/// Returns the tree `levels` directories below.
fn doubled_part(tree: &Tree, levels: usize) -> Tree {
    tree.find_tree(&vec!["left"; levels]).unwrap().unwrap()
}

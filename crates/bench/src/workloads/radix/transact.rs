//! The ten `merkle_trie_*` tests of Transact as a load: each in a store of its own, every answer
//! checked.
//!
//! If Transact's own batch names an address twice, which is refused here, the plain batch with
//! the same end state stands in its place. The random choices of `update` come from the seed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use sha2::{Digest as _, Sha512};
use terrane::radix::{self, Address, Change, Pruned, Root};

use super::super::{Error, Result};
use super::databases::{Bed, Databases};
use super::floor::{Shape, Step};
use super::keys::{Keys, address};
use super::{Timed, ensure};

type Test = fn(&Bed, u64) -> Result<()>;

/// The tests by their names.
pub const TESTS: [&str; 10] = [
    "empty_changes",
    "root_advance",
    "delete",
    "update",
    "update_same_address_space",
    "update_same_address_space_with_no_children",
    "pruning_parent",
    "pruning_successors",
    "pruning_duplicate_leaves",
    "pruning_successor_duplicate_leaves",
];

const BODIES: [Test; 10] = [
    empty_changes,
    root_advance,
    delete,
    update,
    same_address_space,
    same_address_space_without_children,
    pruning_parent,
    pruning_successors,
    pruning_duplicate_leaves,
    pruning_successor_duplicate_leaves,
];

/// Single-key commits of `update`.
pub const UPDATE_COMMITS: u64 = 1_000;
/// Random changes of either kind in its last batch.
const UPDATE_CHANGES: usize = 50;

/// Runs all of them.
pub(super) fn run(databases: &mut Databases, seed: u64) -> Result<Vec<Timed>> {
    let mut timed = Vec::with_capacity(TESTS.len());
    for (name, test) in TESTS.into_iter().zip(BODIES) {
        let start = Instant::now();
        let bed = databases.bed()?;
        test(&bed, seed).map_err(|error| match error {
            Error::Wrong(what) => Error::Wrong(format!("test {name}: {what}")),
            error => error,
        })?;
        databases.close(&bed)?;
        timed.push(Timed { name: name.to_owned(), wall_s: start.elapsed().as_secs_f64() });
    }

    Ok(timed)
}

/// The nodes that `update` hashes, which are all but some hundred of those of the ten tests.
#[must_use]
pub fn update_shape(seed: u64) -> Shape {
    let mut shape = Shape::default();
    for number in 0..UPDATE_COMMITS {
        let (address, value) = update_entry(number);
        shape.commit(&[(&address, Some(value.len()))]);
    }

    let (sets, deletes) = update_choices(seed);
    let addresses = |numbers: &BTreeSet<u64>| {
        numbers.iter().map(|number| update_entry(*number).0).collect::<Vec<_>>()
    };
    let sets = addresses(&sets);
    let deletes = addresses(&deletes);
    let sets = sets.iter().map(|address| (address.as_slice(), Some(3)));
    let deletes = deletes.iter().map(|address| (address.as_slice(), None));

    let steps: Vec<Step<'_>> = sets.chain(deletes).collect();

    // The test commits once dry and once for good, so both count.
    let mut dry = shape.clone();
    dry.reset();
    dry.commit(&steps);
    shape.commit(&steps);
    shape.add(&dry);

    shape
}

fn update_entry(number: u64) -> (Vec<u8>, Vec<u8>) {
    let value = format!("{number:016x}").into_bytes();
    (Sha512::digest(&value)[..32].to_vec(), value)
}

/// Keys that the last batch sets, and keys that it deletes.
fn update_choices(seed: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let mut random = Keys::new(seed);
    let mut choose = |from: u64| {
        let mut chosen = BTreeSet::new();
        while chosen.len() < UPDATE_CHANGES {
            chosen.insert(from + random.below(UPDATE_COMMITS / 2));
        }
        chosen
    };
    (choose(0), choose(UPDATE_COMMITS / 2))
}

fn parsed(text: &str) -> Result<Address> {
    text.parse().map_err(|error| Error::Options(format!("{text}: {error}")))
}

fn set(text: &str, value: &str) -> Result<Change> {
    Ok(Change::Set(parsed(text)?, value.as_bytes().to_vec()))
}

fn check_value(bed: &Bed, root: &Root, text: &str, value: Option<&str>) -> Result<()> {
    let found = bed.tree.get_one(root, &parsed(text)?)?;
    ensure(found.as_deref() == value.map(str::as_bytes), || {
        format!("{text} of root {root} reads {found:?} and not {value:?}")
    })
}

fn check_root(found: Root, expected: &str) -> Result<()> {
    ensure(found.to_string().starts_with(expected), || {
        format!("the root is {found} and begins not with {expected}")
    })
}

fn check_unknown(bed: &Bed, root: &Root) -> Result<()> {
    ensure(!bed.tree.has_root(root)?, || format!("root {root} can be read"))
}

fn empty_changes(bed: &Bed, _: u64) -> Result<()> {
    let root = bed.tree.compute_root(&Root::EMPTY, &[])?;
    ensure(root == Root::EMPTY, || format!("no changes gave {root}"))
}

fn root_advance(bed: &Bed, _: u64) -> Result<()> {
    let changes = [set("abcd", "data_value")?];
    let committed = bed.tree.commit(&Root::EMPTY, &changes)?;
    check_root(committed.root, "4c5116ae4e7439e4")?;
    ensure(committed.added == 3, || format!("{} nodes were added and not 3", committed.added))?;
    check_value(bed, &Root::EMPTY, "abcd", None)?;
    check_value(bed, &committed.root, "abcd", Some("data_value"))?;
    let versions = bed.tree.versions()?;

    ensure(
        matches!(versions.as_slice(), [one] if one.parent.is_none() && one.children.is_empty()),
        || format!("the versions are {versions:?}"),
    )
}

fn delete(bed: &Bed, _: u64) -> Result<()> {
    let first = bed.tree.commit(&Root::EMPTY, &[set("1234", "deletable")?])?.root;
    ensure("barf".parse::<Address>().is_err(), || "barf is an address".to_owned())?;
    let unknown = bed.tree.commit(&first, &[Change::Delete(parsed("ba")?)]);
    ensure(matches!(unknown, Err(radix::Error::AddressNotFound { .. })), || {
        format!("deleting an unknown address gave {unknown:?}")
    })?;
    let second = bed.tree.commit(&first, &[Change::Delete(parsed("1234")?)])?.root;
    check_value(bed, &first, "1234", Some("deletable"))?;
    check_value(bed, &second, "1234", None)
}

fn update(bed: &Bed, seed: u64) -> Result<()> {
    let mut root = Root::EMPTY;
    for number in 0..UPDATE_COMMITS {
        let (bytes, value) = update_entry(number);
        root = bed.tree.commit(&root, &[Change::Set(address(&bytes)?, value)])?.root;
    }

    let (sets, deletes) = update_choices(seed);
    let mut changes = Vec::with_capacity(sets.len() + deletes.len());
    for number in &sets {
        changes.push(Change::Set(address(&update_entry(*number).0)?, b"5.0".to_vec()));
    }

    for number in &deletes {
        changes.push(Change::Delete(address(&update_entry(*number).0)?));
    }

    let dry = bed.tree.compute_root(&root, &changes)?;
    check_unknown(bed, &dry)?;
    let last = bed.tree.commit(&root, &changes)?.root;
    ensure(last == dry, || format!("the dry run gave {dry}, the commit {last}"))?;

    for number in 0..UPDATE_COMMITS {
        let (bytes, value) = update_entry(number);
        let expected = if deletes.contains(&number) {
            None
        } else if sets.contains(&number) {
            Some(b"5.0".to_vec())
        } else {
            Some(value)
        };
        let found = bed.tree.get_one(&last, &address(&bytes)?)?;
        ensure(found == expected, || format!("key {number} reads {found:?}, not {expected:?}"))?;
    }

    Ok(())
}

/// Two of them begin with `e55420`.
const SPACE: [(&str, &str); 6] = [
    ("e5542002d3e2892516fa461cde69e05880609fbad3d38ab69435a189e126de672b620c", "asdfg"),
    ("c946ee72d38b8c51328f1a5f31eb5bd3300362ad0ca69dab54eff996775c7069216bda", "qwert"),
    ("487a6a63c71c9b7b63146ef68858e5d010b4978fd70dda0404d4fad5e298ccc9a560eb", "zxcvb"),
    ("e55420c026596ee643e26fd93927249ea28fb5f359ddbd18bc02562dc7e8dbc93e89b9", "yuiop"),
    ("cc1370ce67aa16c89721ee947e9733b2a3d2460db5b0ea6410288f426ad8d8040ea641", "hjklk"),
    ("d07e69664286712c3d268ca71464f2b3b2604346f833106f3e0f6a72276e57a16f3e0f", "bnmvc"),
];

/// Sets these addresses one by one.
fn fill(bed: &Bed, entries: &[(&str, &str)]) -> Result<Root> {
    let mut root = Root::EMPTY;
    for (address, value) in entries {
        root = bed.tree.commit(&root, &[set(address, value)?])?.root;
    }
    Ok(root)
}

/// Dry, and then in earnest.
fn commit_twice(bed: &Bed, root: &Root, changes: &[Change]) -> Result<Root> {
    let dry = bed.tree.compute_root(root, changes)?;
    check_unknown(bed, &dry)?;
    let made = bed.tree.commit(root, changes)?.root;
    ensure(made == dry, || format!("the dry run gave {dry}, the commit {made}"))?;
    Ok(made)
}

fn same_address_space(bed: &Bed, _: u64) -> Result<()> {
    let root = fill(bed, &SPACE)?;
    check_root(root, "9eb5a1068e149642")?;
    let (kept, deleted) = SPACE.split_at(3);

    let mut changes = Vec::new();
    for (address, _) in kept {
        changes.push(set(address, "2.0")?);
    }

    for (address, _) in deleted {
        changes.push(Change::Delete(parsed(address)?));
    }

    let mut twice = changes.clone();
    twice.push(set(deleted[0].0, "2.0")?);

    let refused = bed.tree.commit(&root, &twice);
    ensure(matches!(refused, Err(radix::Error::DuplicateAddress { .. })), || {
        format!("an address that is named twice gave {refused:?}")
    })?;

    let last = commit_twice(bed, &root, &changes)?;
    for (address, _) in kept {
        check_value(bed, &last, address, Some("2.0"))?;
    }

    for (address, _) in deleted {
        check_value(bed, &last, address, None)?;
    }
    Ok(())
}

fn same_address_space_without_children(bed: &Bed, _: u64) -> Result<()> {
    let present = [SPACE[0], SPACE[1], SPACE[2], SPACE[4], SPACE[5]];
    let added = SPACE[3];
    let root = fill(bed, &present)?;

    let deleted = [present[0].0, present[3].0, present[4].0];
    let mut changes = vec![set(added.0, "2.0")?];
    for address in deleted {
        changes.push(Change::Delete(parsed(address)?));
    }

    let last = commit_twice(bed, &root, &changes)?;
    check_value(bed, &last, added.0, Some("2.0"))?;
    for address in deleted {
        check_value(bed, &last, address, None)?;
    }

    for (address, value) in &present[1..3] {
        check_value(bed, &last, address, Some(value))?;
    }

    Ok(())
}

/// The state that the tests of pruning begin with.
fn parent(bed: &Bed) -> Result<Root> {
    let entries = [set("ab0000", "0001")?, set("ab0a01", "0002")?, set("abff00", "0003")?];
    Ok(bed.tree.commit(&Root::EMPTY, &entries)?.root)
}

/// Prunes a root, and checks that `count` nodes are gone from the database.
fn prune(bed: &Bed, root: &Root, count: u64) -> Result<()> {
    let before = bed.store.node_count()?;
    let pruned = bed.tree.prune(root)?;
    let is_right = matches!(&pruned, Pruned::Removed { count: found, hashes }
        if *found == count && hashes.len() as u64 == count);
    ensure(is_right, || format!("pruning {root} gave {pruned:?} and not {count} nodes"))?;
    check_unknown(bed, root)?;
    let after = bed.store.node_count()?;
    ensure(before - after == count, || format!("of {before} nodes {after} are stored still"))
}

/// Links between versions, as pairs of the roots of parent and child.
fn check_links(bed: &Bed, expected: &[(Root, Root)]) -> Result<()> {
    let versions = bed.tree.versions()?;
    let root = |id| versions.iter().find(|version| version.id == id).map(|version| version.root);
    let mut links: Vec<(Root, Root)> = versions
        .iter()
        .filter_map(|version| Some((root(version.parent?)?, version.root)))
        .collect();

    let mut back: Vec<(Root, Root)> = versions
        .iter()
        .flat_map(|version| version.children.iter().map(|child| (version.root, *child)))
        .filter_map(|(parent, child)| Some((parent, root(child)?)))
        .collect();

    let mut expected = expected.to_vec();
    for list in [&mut links, &mut back, &mut expected] {
        list.sort_unstable();
    }

    ensure(links == expected && back == expected, || {
        let mut text = String::new();
        for (parent, child) in &links {
            let _ = write!(text, " {parent} to {child}");
        }
        format!("versions are linked{text}")
    })
}

fn pruning_parent(bed: &Bed, _: u64) -> Result<()> {
    let parent = parent(bed)?;
    let child = bed.tree.commit(&parent, &[set("ab0000", "test")?])?.root;
    check_links(bed, &[(parent, child)])?;
    prune(bed, &parent, 4)?;
    check_value(bed, &child, "ab0000", Some("test"))?;
    check_value(bed, &child, "abff00", Some("0003"))
}

fn pruning_successors(bed: &Bed, _: u64) -> Result<()> {
    let parent = parent(bed)?;
    let left = bed.tree.commit(&parent, &[set("ab0000", "left")?])?.root;
    let right = bed.tree.commit(&parent, &[set("ab0a01", "right")?])?.root;
    check_links(bed, &[(parent, left), (parent, right)])?;
    prune(bed, &left, 4)?;
    check_links(bed, &[(parent, right)])?;
    check_value(bed, &parent, "ab0000", Some("0001"))?;
    check_value(bed, &right, "ab0a01", Some("right"))
}

/// A leaf that comes back two commits later: the roots of the three states.
fn duplicate_leaves(bed: &Bed) -> Result<[Root; 3]> {
    let parent = parent(bed)?;
    let changes = [set("ab0000", "change0")?, set("ab0001", "change1")?];
    let middle = bed.tree.commit(&parent, &changes)?.root;
    let last = bed.tree.commit(&middle, &[set("ab0000", "0001")?])?.root;
    Ok([parent, middle, last])
}

fn pruning_duplicate_leaves(bed: &Bed, _: u64) -> Result<()> {
    let [parent, _, last] = duplicate_leaves(bed)?;
    prune(bed, &parent, 3)?;
    check_value(bed, &last, "ab0000", Some("0001"))
}

fn pruning_successor_duplicate_leaves(bed: &Bed, _: u64) -> Result<()> {
    let [parent, _, last] = duplicate_leaves(bed)?;
    prune(bed, &last, 3)?;
    check_value(bed, &parent, "ab0000", Some("0001"))
}

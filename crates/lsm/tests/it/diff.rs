//! What changed between two versions of a table.
//!
//! Goal: the diff of any two tables of a session is the difference of what they hold, in both directions, whatever
//! they share and however that came about; and versions that are near each other cost few reads. Method: random
//! histories of duplicates, snapshots and unions on both disks, each pair compared with the difference of two
//! models; pages are counted on the simulated disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::SimDisk;
use terrane_lsm::{
    Diff, Error, Lookup, MergePolicy, Resolve, Session, SessionOptions, Table, TableConfig, Update,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::draw_config;
use crate::{Place, SALT, buffer_of, clear, fill, key, name, value};

/// Value and blob.
type Held = (Vec<u8>, Option<Vec<u8>>);

/// Key, what the older table has, what the newer one has.
type Changed = (Vec<u8>, Option<Held>, Option<Held>);

type Content = BTreeMap<Vec<u8>, Held>;

fn held(session: &Session, lookup: &Lookup) -> Option<Held> {
    let blob = lookup.blob().map(|blob| session.retrieve_blobs(&[blob.clone()]).unwrap().remove(0));
    lookup.value().map(|value| (value.to_vec(), blob))
}

fn read(session: &Session, mut diff: Diff) -> Vec<Changed> {
    let mut changes = Vec::new();
    while let Some(change) = diff.next().unwrap() {
        changes.push((change.key, held(session, &change.old), held(session, &change.new)));
    }
    assert_eq!(diff.next().unwrap(), None);
    changes
}

fn expected(older: &Content, newer: &Content) -> Vec<Changed> {
    let keys: std::collections::BTreeSet<_> = older.keys().chain(newer.keys()).collect();
    let both = keys.into_iter().map(|k| (k.clone(), older.get(k).cloned(), newer.get(k).cloned()));
    both.filter(|(_, old, new)| old != new).collect()
}

#[derive(Debug)]
struct Version {
    table: Table,
    content: Content,
}

/// A key, often one of few.
fn drawn_key(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let range = *rng.pick(&[8, 100, 1_000]);
    key(rng.below(range)).to_vec()
}

impl Version {
    /// Updates of all kinds; few values, so that many are what was there before.
    fn update(&mut self, count: usize, rng: &mut ChaCha8Rng) {
        let resolve = self.table.config().resolve.clone();
        let mut batch = Vec::new();
        for _ in 0..count {
            let len = *rng.pick(&[0, 3, 3, 60, 5_000]);
            let (value, blob) = (value(rng.below(2), len), value(rng.below(2), 700));
            batch.push((drawn_key(rng), rng.below(6), value, blob));
        }
        let updates: Vec<_> = batch
            .iter()
            .map(|(key, kind, value, blob)| {
                let update = match kind {
                    0 | 1 => Update::Delete,
                    2 => Update::InsertWithBlob(value, blob),
                    3 => Update::Upsert(value),
                    _ => Update::Insert(value),
                };
                (key, update)
            })
            .collect();
        self.table.updates(&updates).unwrap();
        for (key, kind, value, blob) in &batch {
            let older = self.content.remove(key);
            let now = match (kind, older) {
                (0 | 1, _) => continue,
                (2, _) => (value.clone(), Some(blob.clone())),
                (3, Some((older, _))) => (resolve.apply(value, &older), None),
                _ => (value.clone(), None),
            };
            self.content.insert(key.clone(), now);
        }
    }

    fn duplicate(&self) -> Self {
        Self { table: self.table.duplicate().unwrap(), content: self.content.clone() }
    }
}

/// What a union of two tables holds.
fn united(left: &Content, right: &Content, resolve: &Resolve) -> Content {
    let mut all = right.clone();
    for (key, (newer, blob)) in left {
        let now = match all.remove(key) {
            Some((older, _)) => (resolve.apply(newer, &older), blob.clone()),
            None => (newer.clone(), blob.clone()),
        };
        all.insert(key.clone(), now);
    }
    all
}

/// Does something at random with some of the versions.
fn step(
    session: &Session,
    versions: &mut Vec<Version>,
    snapshots: &mut Vec<Content>,
    rng: &mut ChaCha8Rng,
) {
    let at = rng.index(versions.len());
    match rng.below(20) {
        0..=5 => {
            let copy = versions[at].duplicate();
            versions.push(copy);
        }
        6 if versions.len() > 2 => drop(versions.swap_remove(at)),
        7 => {
            let text = format!("s{}", snapshots.len());
            versions[at].table.save_snapshot(&name(&text), "").unwrap();
            snapshots.push(versions[at].content.clone());
        }
        8 if !snapshots.is_empty() => {
            let at = rng.index(snapshots.len());
            let table = session.open_snapshot(&name(&format!("s{at}")), "").unwrap();
            versions.push(Version { table, content: snapshots[at].clone() });
        }
        9 => {
            let other = rng.index(versions.len());
            let (left, right) = (&versions[at], &versions[other]);
            let table = session.incremental_union(&[&left.table, &right.table]).unwrap();
            let content = united(&left.content, &right.content, &left.table.config().resolve);
            versions.push(Version { table, content });
        }
        10 => {
            let debt = versions[at].table.remaining_union_debt();
            let credits = debt.div_ceil(1 + rng.below(3));
            versions[at].table.supply_union_credits(credits).unwrap();
        }
        11 => {
            let config = draw_config(rng);
            let resolve = versions[at].table.config().resolve.clone();
            versions[at].table.set_config(&TableConfig { resolve, ..config }).unwrap();
        }
        _ => {
            let count = 1 + rng.index(40);
            versions[at].update(count, rng);
        }
    }
    if versions.len() > 8 {
        versions.swap_remove(rng.index(8));
    }
}

#[test]
fn a_diff_is_the_difference_of_any_two_tables() {
    let mut number = 0;
    for_each_seed("a_diff_is_the_difference_of_any_two_tables", 20, |rng, seed| {
        // Saving snapshots takes its time on the real disk.
        let is_real = number % 5 == 0;
        number += 1;
        for place in [is_real.then(Place::real), Some(Place::simulated(seed))].into_iter().flatten()
        {
            let session = place.open();
            let resolves = [Resolve::newest(), Resolve::oldest(), Resolve::add_u64_wrapping()];
            let config = TableConfig { resolve: rng.pick(&resolves).clone(), ..draw_config(rng) };
            let table = session.new_table(&config).unwrap();
            let mut versions = vec![Version { table, content: Content::new() }];
            let mut snapshots = Vec::new();
            for _ in 0..60 {
                step(&session, &mut versions, &mut snapshots, rng);
                let (one, other) = (rng.pick(&versions), rng.pick(&versions));
                for (older, newer) in [(one, other), (other, one)] {
                    let found = read(&session, older.table.diff(&newer.table).unwrap());
                    let expected = expected(&older.content, &newer.content);
                    assert!(found == expected, "{} keys, {} expected", found.len(), expected.len());
                }
            }
        }
    });
}

/// Entries that a step writes.
const STEP: u64 = 300;

/// Steps before what was inserted may be deleted.
const STEPS_KEPT: u64 = 10;

/// Adds 200 entries and deletes 100 old ones, the `at`-th such step.
fn advance(table: &mut Table, at: u64) {
    fill(table, at * 200..(at + 1) * 200);
    let deleted = at.checked_sub(STEPS_KEPT).map(|at| at * 100..(at + 1) * 100);
    clear(table, deleted.into_iter().flatten());
}

/// The pages that a diff reads, and its changes.
fn pages_of(disk: &SimDisk, older: &Table, newer: &Table) -> (u64, usize) {
    let before = disk.counts().read_pages;
    let mut diff = older.diff(newer).unwrap();
    assert_eq!(disk.counts().read_pages, before, "nothing is read before it is asked for");
    let mut count = 0;
    while diff.next().unwrap().is_some() {
        count += 1;
    }
    (disk.counts().read_pages - before, count)
}

/// Two versions 300 updates apart, at each flush of a growing table, which begins merges on all levels in turn.
/// In the end nearly all of these merges are complete, so one of each two has runs that hold the same as those
/// of the other.
#[test]
fn merges_between_two_versions_cost_no_reads() {
    for merge_policy in [MergePolicy::LazyLevelling, MergePolicy::Levelling, MergePolicy::Tiering] {
        let disk = SimDisk::new(1);
        let options = SessionOptions::with_salt(SALT).create_dir();
        let session = Session::open(Arc::clone(&disk) as _, "/session".as_ref(), &options).unwrap();
        let config = TableConfig { merge_policy, ..buffer_of(1_000) };
        let mut table = session.new_table(&config).unwrap();
        let mut pairs = Vec::new();
        for at in 0..700 {
            let is_flushed = (STEP * at) / 1_000 < (STEP * (at + 1)) / 1_000;
            let before = is_flushed.then(|| table.duplicate().unwrap());
            advance(&mut table, at);
            pairs.extend(before.map(|before| (before, table.duplicate().unwrap())));
        }
        let mut all = Vec::new();
        let mut most = 0;
        for (older, newer) in &pairs {
            let (pages, changes) = pages_of(&disk, older, newer);
            let (back, changes_back) = pages_of(&disk, newer, older);
            assert_eq!(changes as u64, if all.len() < 4 { changes as u64 } else { STEP });
            assert_eq!(changes, changes_back);
            all.push((pages, back));
            most = most.max(pages);
        }
        println!("{merge_policy:?} {most} {all:?}");
    }
}

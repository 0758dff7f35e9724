//! Diffs of two versions of a table.
//!
//! Goal: the diff of any two tables of a session is the difference of what they hold, in both
//! directions, whatever they share and however that came about; and versions that are near each
//! other cost few reads. Method: random histories of duplicates, snapshots and unions on both
//! disks, each pair compared with the difference of two models; pages are counted on the simulated
//! disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::SimDisk;
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    CompactionPolicy, Diff, Error, Lookup, MergeOperator, Session, SessionOptions, Table,
    TableConfig, Update,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::script::draw_config;
use crate::{SALT, SessionDir, buffer_of, clear, fill, key, name, value};

/// Value and blob.
type StoredValue = (Vec<u8>, Option<Vec<u8>>);

/// Key, what the older table has, what the newer one has.
type Changed = (Vec<u8>, Option<StoredValue>, Option<StoredValue>);

type Content = BTreeMap<Vec<u8>, StoredValue>;

fn held(session: &Session, lookup: &Lookup) -> Option<StoredValue> {
    let blob = lookup
        .blob()
        .map(|blob| session.retrieve_blobs(std::slice::from_ref(blob)).unwrap().remove(0));
    lookup.value().map(|value| (value.to_vec(), blob))
}

fn read(session: &Session, mut diff: Diff) -> Vec<Changed> {
    let mut changes = Vec::new();
    while let Some(change) = diff.next().transpose().unwrap() {
        changes.push((change.key, held(session, &change.old), held(session, &change.new)));
    }
    assert_eq!(diff.next().transpose().unwrap(), None);
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
        let resolve = self.table.config().merge_operator.clone();
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

        self.table.write_batch(&updates).unwrap();
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

    fn fork(&self) -> Self {
        Self { table: self.table.fork().unwrap(), content: self.content.clone() }
    }
}

/// Content of a union of two tables.
fn united(left: &Content, right: &Content, resolve: &MergeOperator) -> Content {
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
            let copy = versions[at].fork();
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
            let left = &versions[at];
            let right = &versions[other];
            let table = session.incremental_union(&[&left.table, &right.table]).unwrap();
            let content =
                united(&left.content, &right.content, &left.table.config().merge_operator);
            versions.push(Version { table, content });
        }
        10 => {
            let debt = versions[at].table.remaining_union_debt();
            let credits = debt.div_ceil(1 + rng.below(3));
            versions[at].table.supply_union_credits(credits).unwrap();
        }
        11 => {
            let config = draw_config(rng);
            let resolve = versions[at].table.config().merge_operator.clone();
            versions[at].table.set_config(&config.merge_operator(resolve)).unwrap();
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
    for_each_seed("a_diff_is_the_difference_of_any_two_tables", by_effort(4, 24), |rng, seed| {
        // Saving snapshots takes its time on the real disk.
        let is_real = number % 12 == 0;
        number += 1;
        for place in [is_real.then(SessionDir::real), Some(SessionDir::simulated(seed))]
            .into_iter()
            .flatten()
        {
            let session = place.open();
            let resolves = [
                MergeOperator::newest(),
                MergeOperator::oldest(),
                MergeOperator::add_u64_wrapping(),
            ];
            let config = draw_config(rng).merge_operator(rng.pick(&resolves).clone());
            let table = session.new_table(&config).unwrap();
            let mut versions = vec![Version { table, content: Content::new() }];
            let mut snapshots = Vec::new();
            for _ in 0..60 {
                step(&session, &mut versions, &mut snapshots, rng);
                let one = rng.pick(&versions);
                let other = rng.pick(&versions);
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
    while diff.next().transpose().unwrap().is_some() {
        count += 1;
    }
    (disk.counts().read_pages - before, count)
}

/// A table on a simulated disk.
fn simulated(config: &TableConfig) -> (Arc<SimDisk>, Session, Table) {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&disk) as _, "/session".as_ref(), &options).unwrap();
    let table = session.new_table(config).unwrap();
    (disk, session, table)
}

/// Pages of entries in the runs of a table.
fn pages_in(table: &Table) -> u64 {
    table.stats().levels.iter().map(|level| level.bytes).sum::<u64>() / 4_096
}

/// Two versions 300 updates apart, around each flush of a growing table, which begins merges on all
/// levels in turn. In the end nearly all of these merges are complete, so one of each two has runs
/// that hold the same as those of the other. What is read is the run that the write buffer has
/// become, and one page for each key that was there before and is changed.
#[test]
fn merges_between_two_versions_cost_a_diff_no_reads() {
    const BUFFER: u64 = 1_000;
    let policies = [
        (CompactionPolicy::LazyLevelling, 680),
        (CompactionPolicy::Levelling, 120),
        (CompactionPolicy::Tiering, 120),
    ];

    for (compaction_policy, steps) in policies {
        let (disk, _session, mut table) =
            simulated(&buffer_of(BUFFER).compaction_policy(compaction_policy));

        let mut pairs = Vec::new();
        for at in 0..steps {
            let is_flushed = STEP * at / BUFFER < STEP * (at + 1) / BUFFER;
            let before = is_flushed.then(|| table.fork().unwrap());
            advance(&mut table, at);
            pairs.extend(before.map(|before| (before, table.fork().unwrap())));
        }

        let flushed = BUFFER / 40 + 1;
        for (at, (older, newer)) in pairs.iter().enumerate().step_by(by_effort(3, 1)) {
            let (pages, changes) = pages_of(&disk, older, newer);
            assert!(pages <= flushed + 100 + 4, "{compaction_policy:?}, flush {at}: {pages} pages");
            assert_eq!((pages, changes), pages_of(&disk, newer, older), "in the other direction");
            // The first steps delete nothing.
            assert!(at < 4 || changes as u64 == STEP, "{changes} changes");
        }

        // Otherwise there is nothing to save.
        assert!(pages_in(&table) > 10 * flushed, "{} pages", pages_in(&table));
    }
}

/// The diff costs whole runs once the versions between the two are gone: only those versions knew
/// which runs a compaction had replaced.
#[test]
fn versions_far_from_each_other_cost_their_runs_and_the_keys_that_differ() {
    let (disk, _session, mut table) = simulated(&buffer_of(1_000));
    (0..100).for_each(|at| advance(&mut table, at));
    let older = table.fork().unwrap();
    (100..130).for_each(|at| advance(&mut table, at));
    let (pages, changes) = pages_of(&disk, &older, &table);
    assert_eq!(changes, 9_000);
    let both = pages_in(&older) + pages_in(&table);
    assert!(pages <= both + 9_000, "{pages} pages, {both} in both");
    assert!(pages_of(&disk, &older, &older) == (0, 0) && both > 500, "{both} pages");
}

#[test]
fn a_diff_holds_what_it_needs_and_refuses_what_it_cannot_do() {
    for place in SessionDir::both() {
        let session = place.open();

        let mut table = session.new_table(&buffer_of(2)).unwrap();
        let blob = |number| value(number, 9_000);
        for number in 0..20 {
            table.insert_with_blob(&key(number), b"old", &blob(number)).unwrap();
        }

        let mut newer = table.fork().unwrap();
        for number in 0..20 {
            // Half of them as they were, in other places.
            let other = number + 100 * (number % 2);
            newer.insert_with_blob(&key(number), b"old", &blob(other)).unwrap();
        }

        let mut diff = table.diff(&newer).unwrap();
        drop((table, newer));

        let mut seen = 0;
        while let Some(change) = diff.next().transpose().unwrap() {
            let number = (0..20).find(|&number| key(number) == change.key.as_slice()).unwrap();
            assert_eq!(held(&session, &change.old), Some((b"old".to_vec(), Some(blob(number)))));
            let new = Some((b"old".to_vec(), Some(blob(number + 100))));
            assert_eq!(held(&session, &change.new), new);
            seen += 1;
        }

        assert_eq!(seen, 10);
        drop(diff);
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());

        let elsewhere = SessionDir::simulated(2);
        let other = elsewhere.open();
        let table = session.new_table(&buffer_of(2));
        let foreign = other.new_table(&buffer_of(2));
        let table = table.unwrap();
        let foreign = foreign.unwrap();
        assert!(matches!(table.diff(&foreign), Err(Error::TablesOfDifferentSessions)));
        let mut diff = table.diff(&table).unwrap();
        session.close().unwrap();
        assert!(matches!(diff.next(), Some(Err(Error::SessionClosed))));
        assert!(diff.next().is_none(), "an error ends the iteration");
        assert!(matches!(table.diff(&table), Err(Error::SessionClosed)));
    }
}

/// A run that a merge has replaced is read in the place of the merged one. Whoever had it may let
/// go of it meanwhile.
#[test]
fn changes_refer_to_blobs_of_runs_that_nothing_else_keeps_any_more() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(100)).unwrap();
        fill(&mut table, 0..500);
        let older = table.fork().unwrap();
        for number in 500..600 {
            table.insert_with_blob(&key(number), b"new", &value(number, 700)).unwrap();
        }
        let between = table.fork().unwrap();
        table.compact(&mut |_, _| ()).unwrap();

        let mut diff = older.diff(&table).unwrap();
        drop(between);
        let changes: Vec<_> = diff.by_ref().map(Result::unwrap).collect();
        let found: Content = changes
            .iter()
            .map(|change| (change.key.clone(), held(&session, &change.new).unwrap()))
            .collect();
        let stored = |number| (b"new".to_vec(), Some(value(number, 700)));
        assert_eq!(found, (500..600).map(|at| (key(at).to_vec(), stored(at))).collect());
    }
}

/// Another merge operator makes something else of the same entries, but what both hold is
/// compared.
#[test]
fn tables_with_different_functions_are_compared_by_what_they_hold() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let made = |resolve: MergeOperator| {
        let mut table = session.new_table(&buffer_of(3).merge_operator(resolve)).unwrap();
        fill(&mut table, 0..50);
        for number in 0..50 {
            table.upsert(&key(number), &value(number + number % 2, 60)).unwrap();
        }
        table
    };

    let first = made(MergeOperator::oldest());
    let last = made(MergeOperator::newest());
    let changes = read(&session, first.diff(&last).unwrap());
    assert_eq!(changes.len(), 25);
    let number = (0..50).find(|&number| key(number) == changes[0].0.as_slice()).unwrap();
    let expected = [number, number + 1].map(|number| Some((value(number, 60), None)));
    assert_eq!([changes[0].1.clone(), changes[0].2.clone()], expected);
}

/// A read that fails is an error for good, so that nobody takes half of a diff for all of it.
#[test]
fn a_diff_that_failed_gives_its_error_once() {
    let (disk, _session, mut table) = simulated(&buffer_of(10));
    fill(&mut table, 0..500);
    let older = table.fork().unwrap();
    clear(&mut table, (0..500).step_by(5));
    let reads = |disk: &SimDisk| disk.counts().reads;
    let before = reads(&disk);
    let whole = pages_of(&disk, &older, &table);
    let count = reads(&disk) - before;
    assert!(count > 50 && whole.1 == 100, "{count} reads, {} changes", whole.1);

    for nth in [1, 2, count / 2, count] {
        let mut diff = older.diff(&table).unwrap();
        disk.set_plan(FaultPlan::fail(disk.calls() + nth, FaultKind::Eio, Repeat::Once));
        let failed = diff.by_ref().find_map(Result::err);
        assert!(matches!(failed, Some(Error::Disk(_))), "{failed:?}");
        assert!(diff.next().is_none(), "an error ends the iteration");
        disk.set_plan(FaultPlan::default());
        assert_eq!(pages_of(&disk, &older, &table), whole);
    }
}

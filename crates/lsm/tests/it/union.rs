//! Unions of tables.
//!
//! Goal: a union holds what its tables hold together, left to right, the same at every stage of
//! payment; its debt keeps the relations that the reference states; lookups get cheaper with every
//! instalment; nothing stays behind. Method: a plain map per table and the reference's table 1.2 as
//! the model, small buffers, so that tables have many runs and merges under way, and credits in
//! slices of all sizes.

use std::collections::BTreeMap;

use terrane_io::{CountedDisk, Disk};
use terrane_lsm::{
    BlobRef, Error, Lookup, MergeOperator, Session, Table, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{SessionDir, key, name, value};

pub(crate) type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<Vec<u8>>)>;

pub(crate) fn config(entries: u64) -> TableConfig {
    TableConfig::default()
        .merge_operator(MergeOperator::concatenate())
        .write_buffer(WriteBuffer::Entries(entries))
        .compaction_batch_pages(1)
}

/// Table 1.2 of the reference.
pub(crate) fn united(inputs: &[&Entries]) -> Entries {
    let mut all = Entries::new();
    for input in inputs {
        for (key, (value, blob)) in *input {
            match all.get_mut(key) {
                None => {
                    all.insert(key.clone(), (value.clone(), blob.clone()));
                }
                Some((left, _)) => *left = MergeOperator::concatenate().apply(left, value),
            }
        }
    }
    all
}

/// Applies a random batch to a table and to its model.
pub(crate) fn update(
    table: &mut Table,
    model: &mut Entries,
    rng: &mut impl Draw,
    keys: u64,
    count: usize,
) {
    for _ in 0..count {
        let key = [b'k', rng.below(keys) as u8, rng.below(2) as u8];

        let value = vec![rng.below(256) as u8; rng.index(9)];
        let blob = vec![rng.below(256) as u8; rng.index(3_000)];
        let update = match rng.below(6) {
            0 | 1 => Update::Insert(&value),
            2 => Update::InsertWithBlob(&value, &blob),
            3 => Update::Delete,
            _ => Update::Upsert(&value),
        };

        table.write_batch(&[(key, update)]).unwrap();
        match update {
            Update::Delete => {
                model.remove(key.as_slice());
            }
            Update::Upsert(_) => {
                let old = model.get(key.as_slice()).map(|(old, _)| old.clone());
                let value =
                    old.map_or(value.clone(), |o| MergeOperator::concatenate().apply(&value, &o));
                model.insert(key.to_vec(), (value, None));
            }
            Update::InsertWithBlob(..) => {
                model.insert(key.to_vec(), (value, Some(blob)));
            }
            _ => {
                model.insert(key.to_vec(), (value, None));
            }
        }
    }
}

pub(crate) fn assert_holds(session: &Session, table: &Table, model: &Entries, context: &str) {
    let mut cursor = table.cursor().unwrap();
    for (key, (value, blob)) in model {
        let record = cursor.next().transpose().unwrap().expect(context);
        assert_eq!((&record.key, &*record.value), (key, value.as_slice()), "{context}");
        let read = record.blob.map(|blob| session.retrieve_blobs(&[blob]).unwrap().remove(0));
        assert_eq!(&read, blob, "{context}");
    }

    assert_eq!(cursor.next().transpose().unwrap(), None, "{context}");
    let mut keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let absent: Vec<Vec<u8>> = keys.iter().map(|key| [key, b"!".as_slice()].concat()).collect();
    keys.extend(absent);

    for (key, found) in keys.iter().zip(table.get_many(&keys).unwrap()) {
        let found = match found {
            Lookup::FoundWithBlob(value, blob) => {
                let blob = session.retrieve_blobs(&[blob]).unwrap().remove(0);
                Some((value.into_vec(), Some(blob)))
            }
            Lookup::Found(value) => Some((value.into_vec(), None)),
            _ => None,
        };
        assert_eq!(found.as_ref(), model.get(key), "{context}: key {key:02x?}");
    }
}

/// Random tables: at every stage the union has the same content, and its inputs have theirs.
#[test]
fn a_union_holds_the_same_at_every_level_of_debt() {
    for_each_seed("a_union_holds_the_same_at_every_level_of_debt", 8, |rng, seed| {
        let place = SessionDir::simulated(seed);
        let session = place.open();
        let count = 1 + rng.index(4);
        let mut tables = Vec::new();
        let mut models = Vec::new();
        for _ in 0..count {
            let config = config(*rng.pick(&[1, 3, 4, 30, 1000]));
            let mut table = session.new_table(&config).unwrap();
            let mut model = Entries::new();
            let updates = *rng.pick(&[0, 1, 20, 300]);
            update(&mut table, &mut model, rng, 60, updates);
            tables.push(table);
            models.push(model);
        }
        let inputs: Vec<&Table> = tables.iter().collect();
        let mut union = session.incremental_union(&inputs).unwrap();
        assert_eq!(union.config(), tables[count - 1].config());
        let mut model = united(&models.iter().collect::<Vec<_>>());
        let immediate = session.union(&inputs).unwrap();
        assert_holds(&session, &immediate, &model, "immediate");
        assert_eq!(immediate.remaining_union_debt(), 0);
        let mut debt = union.remaining_union_debt();
        for step in 0.. {
            assert_holds(&session, &union, &model, &format!("debt {debt}"));
            if rng.chance(1, 4) {
                update(&mut union, &mut model, rng, 60, 5);
                assert_holds(&session, &union, &model, "updated");
            }
            if rng.chance(1, 4) {
                let at = rng.index(count);
                update(&mut tables[at], &mut models[at], rng, 60, 5);
            }
            assert!(union.remaining_union_debt() <= debt, "the debt rises");
            debt = union.remaining_union_debt();
            let saved = name(&format!("step-{step}"));
            if rng.chance(1, 5) {
                union.save_snapshot(&saved, "").unwrap();
                let mut opened = session.open_snapshot(&saved, "").unwrap();
                assert_holds(&session, &opened, &model, "opened");
                assert_eq!(opened.remaining_union_debt() == 0, debt == 0);
                opened.supply_union_credits(u64::MAX).unwrap();
                assert_holds(&session, &opened, &model, "opened and paid");
                session.delete_snapshot(&saved).unwrap();
            }
            let credits = rng.below(200);
            let unused = union.supply_union_credits(credits).unwrap();
            let now = union.remaining_union_debt();
            assert!(now <= debt.saturating_sub(credits), "{credits} credits: {debt} to {now}");
            assert!(unused <= credits && (unused == 0 || now == 0));
            if debt == 0 {
                assert_eq!(unused, credits);
                break;
            }
            debt = now;
        }
        for (table, model) in tables.iter().zip(&models) {
            assert_holds(&session, table, model, "an input");
        }
        drop((tables, union, immediate));
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn unions_of_unions_and_of_a_table_with_itself() {
    for_each_seed("unions_of_unions_and_of_a_table_with_itself", 8, |rng, seed| {
        let place = SessionDir::simulated(seed);
        let session = place.open();
        let mut tables = Vec::new();
        let mut models = Vec::new();
        for _ in 0..3 {
            let mut table = session.new_table(&config(4)).unwrap();
            let mut model = Entries::new();
            update(&mut table, &mut model, rng, 50, 150);
            tables.push(table);
            models.push(model);
        }
        for step in 0..12 {
            let picked: Vec<usize> = (0..=rng.index(3)).map(|_| rng.index(tables.len())).collect();
            let inputs: Vec<&Table> = picked.iter().map(|&at| &tables[at]).collect();
            let mut union = session.incremental_union(&inputs).unwrap();
            let mut model = united(&picked.iter().map(|&at| &models[at]).collect::<Vec<_>>());
            // Values grow with every union of unions.
            if model.values().any(|(value, _)| value.len() > 5_000) {
                break;
            }
            union.supply_union_credits(rng.below(union.remaining_union_debt() + 50)).unwrap();
            update(&mut union, &mut model, rng, 50, 20);
            let text = format!("step-{step}");
            union.save_snapshot(&name(&text), "").unwrap();
            tables.push(union);
            models.push(model);
            let at = rng.index(tables.len());
            let debt = tables[at].remaining_union_debt();
            tables[at].supply_union_credits(rng.below(debt + 1)).unwrap();
            for (table, model) in tables.iter().zip(&models) {
                assert_holds(&session, table, model, "after a union");
            }
            let opened = session.open_snapshot(&name(&text), "").unwrap();
            assert_holds(&session, &opened, &models[models.len() - 1], "opened");
        }
        for (mut table, model) in tables.into_iter().zip(&models) {
            table.supply_union_credits(u64::MAX).unwrap();
            assert_eq!(table.remaining_union_debt(), 0);
            assert_holds(&session, &table, model, "paid");
        }
    });
}

#[test]
fn the_rules_of_combination() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut left = session.new_table(&config(2)).unwrap();
        let mut right = session.new_table(&config(3)).unwrap();

        // Every pair of: nothing, deleted, a value, a value with a blob, an upsert, an upsert on a
        // deletion.
        let states: [&[Update<'_>]; 6] = [
            &[],
            &[Update::Insert(b"gone"), Update::Delete],
            &[Update::Insert(b"v")],
            &[Update::InsertWithBlob(b"w", b"blob")],
            &[Update::Upsert(b"u")],
            &[Update::Insert(b"gone"), Update::Delete, Update::Upsert(b"x")],
        ];

        let content: [Option<(&[u8], bool)>; 6] = [
            None,
            None,
            Some((b"v", false)),
            Some((b"w", true)),
            Some((b"u", false)),
            Some((b"x", false)),
        ];

        let mut expected = BTreeMap::new();
        for (l, of_left) in states.iter().enumerate() {
            for (r, of_right) in states.iter().enumerate() {
                let key = [l as u8, r as u8];
                of_left.iter().for_each(|update| left.write_batch(&[(key, *update)]).unwrap());
                of_right.iter().for_each(|update| right.write_batch(&[(key, *update)]).unwrap());
                let both = match (content[l], content[r]) {
                    (None, None) => continue,
                    (None, Some((value, has_blob))) | (Some((value, has_blob)), None) => {
                        (value.to_vec(), has_blob)
                    }
                    // Concatenation puts the newer value, the left one, behind the other.
                    (Some((u, has_blob)), Some((v, _))) => ([v, u].concat(), has_blob),
                };
                expected.insert(key.to_vec(), (both.0, both.1.then(|| b"blob".to_vec())));
            }
        }

        let mut union = session.incremental_union(&[&left, &right]).unwrap();
        assert_holds(&session, &union, &expected, "unpaid");
        union.supply_union_credits(u64::MAX).unwrap();
        assert_holds(&session, &union, &expected, "paid");
    }
}

#[test]
fn unions_that_are_refused_and_unions_of_nothing() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let other = SessionDir::simulated(2).open();

    let table = session.new_table(&config(4)).unwrap();
    let foreign = other.new_table(&config(4)).unwrap();
    assert!(matches!(
        session.incremental_union(&[&foreign, &table]),
        Err(Error::TableUnionNotCompatible { left: 0, right: 1, .. })
    ));

    let resolve = config(4).merge_operator(MergeOperator::max());
    let different = session.new_table(&resolve).unwrap();
    assert!(matches!(
        session.union(&[&table, &different, &table]),
        Err(Error::TableUnionNotCompatible { left: 1, right: 2, reason })
            if reason.contains("terrane.max") && reason.contains("terrane.concatenate")
    ));

    assert!(matches!(session.union(&[]), Err(Error::UnionOfNothing)));

    // Of empty tables: an empty table without debt.
    let mut empty = session.incremental_union(&[&table, &table]).unwrap();
    assert_eq!(empty.remaining_union_debt(), 0);
    assert_eq!(empty.supply_union_credits(7).unwrap(), 7);
    assert_eq!(crate::content(&empty), []);

    // Of one table: a duplicate.
    empty.insert(b"k", b"v").unwrap();
    let one = session.incremental_union(&[&empty]).unwrap();
    assert_eq!((one.remaining_union_debt(), crate::content(&one).len()), (0, 1));

    // Inside each other without end.
    let mut outer = session.incremental_union(&[&empty, &one]).unwrap();
    for _ in 1..32 {
        outer = session.incremental_union(&[&outer, &one]).unwrap();
    }
    let refused = session.incremental_union(&[&outer, &one]);
    assert!(matches!(refused, Err(Error::UnionTooDeep { limit: 32 })));
    outer.save_snapshot(&name("deep"), "").unwrap();
    let mut opened = session.open_snapshot(&name("deep"), "").unwrap();
    assert_eq!(opened.get(b"k").unwrap().value(), Some([b'v'; 33].as_slice()));
    opened.supply_union_credits(u64::MAX).unwrap();
    assert_eq!(opened.get(b"k").unwrap().value(), Some([b'v'; 33].as_slice()));
}

#[test]
fn a_union_of_more_runs_than_a_snapshot_can_name_is_refused() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&config(100)).unwrap();
    table.insert(b"k", b"v").unwrap();

    let mut union = session.incremental_union(&[&table, &table]).unwrap();
    for _ in 1..16 {
        union = session.incremental_union(&[&union, &union]).unwrap();
    }

    for inputs in [&[&union, &union], &[&union, &table]] {
        let refused = session.incremental_union(inputs).unwrap_err();
        let Error::UnionTooLarge { runs, limit: 65_536 } = refused else { panic!("{refused}") };
        assert!(runs == 2 * 65_536 || runs == 65_537, "{runs}");
    }

    // What is allowed works.
    union.save_snapshot(&name("large"), "").unwrap();
    drop((union, table));
    assert!(session.open_snapshot(&name("large"), "").unwrap().remaining_union_debt() > 0);
}

/// Each union among the tables of a union tells up to which key it has got, and keys may be long.
#[test]
fn a_snapshot_that_could_not_be_read_is_not_saved() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let tables = [0, 1].map(|number| {
        let mut table = session.new_table(&config(1_000)).unwrap();
        for at in 0..60u8 {
            table.insert(&[&[b'k'; 3_998][..], &[at, number]].concat(), b"").unwrap();
        }
        table
    });

    let mut union = session.incremental_union(&tables.each_ref()).unwrap();
    union.supply_union_credits(60).unwrap();
    let files = {
        let many = session.incremental_union(&vec![&union; 17_000]).unwrap();
        let files = place.runs();
        let refused = many.save_snapshot(&name("many"), "").unwrap_err();
        let Error::SnapshotTooLarge { bytes, limit } = refused else { panic!("{refused}") };
        assert!(bytes as u64 > limit && limit == 64 << 20, "{bytes} of {limit}");
        files
    };

    assert_eq!((session.list_snapshots().unwrap(), place.runs()), (Vec::new(), files));

    // The name is free again.
    let few = session.incremental_union(&vec![&union; 16_000]).unwrap();
    few.save_snapshot(&name("many"), "").unwrap();
    drop((few, union, tables));
    assert!(session.open_snapshot(&name("many"), "").unwrap().remaining_union_debt() > 0);
}

#[test]
fn references_from_a_union_outlive_its_inputs() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut left = session.new_table(&config(4)).unwrap();

        let keys: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n]).collect();
        let blobs: Vec<Vec<u8>> = (0..100usize).map(|n| vec![n as u8; 40 * n]).collect();
        for (key, blob) in keys.iter().zip(&blobs) {
            left.insert_with_blob(key, b"value", blob).unwrap();
        }
        let mut right = session.new_table(&config(4)).unwrap();
        right.insert(&[200], b"other").unwrap();
        let union = session.incremental_union(&[&left, &right]).unwrap();
        let found = union.get_many(&keys).unwrap();
        let refs: Vec<_> = found.iter().map(|found| found.blob().cloned().unwrap()).collect();

        for number in 0..1_001_u32 {
            left.insert(&[&[201], number.to_le_bytes().as_slice()].concat(), b"").unwrap();
            left.insert(&keys[number as usize % 100], b"without a blob").unwrap();
        }

        drop((left, right));
        assert_eq!(session.retrieve_blobs(&refs).unwrap(), blobs);
    }
}

/// The slices of a union change over time, and any holder may pay for them.
#[test]
fn references_outlive_the_slices_of_a_union_that_others_pay() {
    for place in SessionDir::both() {
        let session = place.open();
        let keys: Vec<Vec<u8>> = (0..200u8).map(|n| vec![n]).collect();

        let blobs: Vec<Vec<u8>> = (0..200usize).map(|n| vec![n as u8; 1 + 20 * n]).collect();
        let mut tables = [(); 2].map(|()| session.new_table(&config(8)).unwrap());
        for (number, (key, blob)) in keys.iter().zip(&blobs).enumerate() {
            tables[number % 2].insert_with_blob(key, b"value", blob).unwrap();
        }
        let mut union = session.incremental_union(&tables.each_ref()).unwrap();
        drop(tables);
        let mut payer = union.fork().unwrap();
        let bystander = union.fork().unwrap();

        let mut stages = Vec::new();
        let debt = payer.remaining_union_debt();
        for share in [1, 3, 5, 6] {
            let found = union.get_many(&keys).unwrap();
            stages.push(found.iter().map(|found| found.blob().cloned().unwrap()).collect());
            let left = debt - debt / 6 * share;
            let left = if share == 6 { 0 } else { left };
            payer.supply_union_credits(payer.remaining_union_debt() - left).unwrap();
            assert!(union.remaining_union_debt() <= left.max(1));
        }

        let refs: Vec<Vec<BlobRef>> = stages;
        let check = || {
            for refs in &refs {
                assert_eq!(session.retrieve_blobs(refs).unwrap(), blobs);
            }
        };

        check();

        // A table that has nothing to do with the blobs any more; the duplicate is open as it was.
        union.supply_union_credits(1).unwrap();
        drop(union);
        check();
        drop(bystander);

        for refs in &refs {
            let gone = session.retrieve_blobs(&refs[1..]);
            assert!(matches!(gone, Err(Error::BlobRefInvalid { .. })), "{gone:?}");
        }
    }
}

#[test]
fn an_instalment_paid_through_one_table_counts_for_all_that_share_the_union() {
    let session = SessionDir::simulated(1).open();
    let mut tables = Vec::new();
    for number in 0..3 {
        let mut table = session.new_table(&config(100)).unwrap();
        crate::fill(&mut table, number * 500..number * 500 + 1_000);
        tables.push(table);
    }

    let inputs: Vec<&Table> = tables.iter().collect();
    let mut first = session.incremental_union(&inputs).unwrap();
    let mut second = first.fork().unwrap();
    let debt = first.remaining_union_debt();
    first.supply_union_credits(debt / 3).unwrap();
    assert_eq!(first.remaining_union_debt(), second.remaining_union_debt());
    first.supply_union_credits(u64::MAX).unwrap();
    assert_eq!(first.remaining_union_debt(), 0);

    // Complete, but not yet a run of the other table's levels: the next supply or flush makes it
    // one.
    assert_eq!(second.remaining_union_debt(), 1);
    assert_eq!(second.supply_union_credits(5).unwrap(), 5);
    assert_eq!(second.remaining_union_debt(), 0);
    assert_eq!(crate::content(&first), crate::content(&second));
    assert_eq!(second.stats().runs(), 1);
}

#[test]
fn a_completed_union_gives_up_its_deletions() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut left = session.new_table(&config(500)).unwrap();
    crate::fill(&mut left, 0..5_000);
    let mut union = session.union(&[&left, &left]).unwrap();
    drop(left);
    crate::clear(&mut union, 0..5_000);
    crate::fill(&mut union, 10_000..10_600);
    crate::clear(&mut union, 10_000..10_600);

    // Other entries push the deletions down.
    for round in 0..4 {
        crate::fill(&mut union, 20_000..23_000);
        crate::clear(&mut union, 20_000..23_000 - round);
    }

    let stats = union.stats();
    assert!(stats.entries() < 12_000, "{} physical entries for at most 3 live", stats.entries());
    assert!(crate::content(&union).len() <= 3);
}

/// 10 tables whose keys are half of a domain twice their size.
fn ten_tables(session: &Session, size: u64) -> Vec<Table> {
    let mut tables = Vec::new();
    for number in 0..10 {
        let config = TableConfig::default()
            .write_buffer(WriteBuffer::Entries(1_000))
            .merge_operator(MergeOperator::newest())
            .disk_cache(terrane_lsm::DiskCache::None);
        let mut table = session.new_table(&config).unwrap();
        let in_table = |&at: &u64| crate::spread(at * 16 + number).is_multiple_of(2);
        crate::fill(&mut table, (0..2 * size).filter(in_table));
        tables.push(table);
    }

    tables
}

#[test]
fn every_quarter_of_the_debt_paid_saves_reads() {
    let place = SessionDir::simulated(1);
    let counted = CountedDisk::new(place.disk());

    let disk: std::sync::Arc<dyn Disk> = counted.clone();
    let session =
        Session::open(disk, &place.dir(), &terrane_lsm::SessionOptions::with_salt(5).create_dir())
            .unwrap();
    let size = 4_000;
    let tables = ten_tables(&session, size);
    let inputs: Vec<&Table> = tables.iter().collect();
    let before = counted.counts().write_bytes;
    let mut union = session.incremental_union(&inputs).unwrap();

    // F7: the write buffers, and little beside them.
    let written = counted.counts().write_bytes - before;
    assert!(written <= 10 * 1_100 * 120, "{written} bytes to begin the union");
    let full = union.remaining_union_debt();

    let keys: Vec<_> = (0..2 * size).step_by(3).map(key).collect();
    let mut reads = Vec::new();
    for quarter in 0..=4 {
        let target = full - full / 4 * quarter;
        let target = if quarter == 4 { 0 } else { target };
        let now = union.remaining_union_debt();
        union.supply_union_credits(now.saturating_sub(target)).unwrap();
        let before = union.stats().lookup_reads;
        for (at, found) in union.get_many(&keys).unwrap().iter().enumerate() {
            let number = at as u64 * 3;
            let is_there =
                (0..10).any(|table| crate::spread(number * 16 + table).is_multiple_of(2));
            assert_eq!(found.value().is_some(), is_there);
            assert!(found.value().is_none_or(|found| found == value(number, 60)));
        }
        reads.push((union.stats().lookup_reads - before) as f64 / keys.len() as f64);
    }

    assert!(reads.windows(2).all(|pair| pair[1] < pair[0]), "{reads:?}");
    assert!(reads[0] > 4.5 && reads[4] < 1.05, "{reads:?}");
    assert!(reads[2] <= 0.6 * reads[0], "{reads:?}");
}

//! Upserts and blobs.
//!
//! Goal: an upsert is a lookup and an insert without the lookup, in every configuration; a blob
//! reference gives exactly its blob or the error that says it is gone. Method: the acceptance cases
//! of the reference as they stand, the combination table exhaustively over two and three entries
//! spread over write buffer, flush and runs in all ways, and long histories against a plain map.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use terrane_lsm::{
    CompactionSchedule, Error, IndexKind, Lookup, MergeOperator, OpenOptions, Session, Table,
    TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{SessionDir, name, small_configs};

/// new + " " + old, as the reference's cases have it.
fn words() -> MergeOperator {
    MergeOperator::new("words", |newer, older| [newer, b" ", older].concat()).unwrap()
}

fn config(entries: u64, resolve: MergeOperator) -> TableConfig {
    TableConfig::default()
        .merge_operator(resolve)
        .write_buffer(WriteBuffer::Entries(entries))
        .compaction_batch_pages(1)
}

/// The value of a key, and its blob.
fn read(session: &Session, table: &Table, key: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    match table.get(key).unwrap() {
        Lookup::FoundWithBlob(value, blob) => {
            let blob = session.retrieve_blobs(&[blob]).unwrap().pop();
            Some((value.into_vec(), blob))
        }
        Lookup::Found(value) => Some((value.into_vec(), None)),
        _ => None,
    }
}

/// Half of a batch whose merge operator panicked could be read, and a snapshot made it durable.
#[test]
fn a_batch_whose_resolve_function_panics_leaves_nothing_behind() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let panics = MergeOperator::new("panics", |newer, older| {
        assert!(newer != b"panic", "on purpose");
        [newer, older].concat()
    })
    .unwrap();

    for entries in [4, 1 << 20] {
        let config = config(entries, panics.clone());
        let mut table = session.new_table(&config).unwrap();
        for number in 0..20_u8 {
            table
                .write_batch(&[(b"key", Update::Upsert(&[number])), (b"key", Update::Upsert(b"x"))])
                .unwrap();
            let found = table.get(b"key").unwrap();
            let batch = [
                (b"new", Update::Insert(b"1")),
                (b"key", Update::Upsert(b"2")),
                (b"key", Update::Upsert(b"panic")),
            ];
            let update = || table.write_batch(&batch);
            let panicked = catch_unwind(AssertUnwindSafe(update));
            assert!(panicked.is_err(), "no function was called");
            assert_eq!(table.get(b"key").unwrap(), found);
            assert_eq!(table.get(b"new").unwrap(), Lookup::NotFound);
        }

        table.save_snapshot(&name(&format!("saved-{entries}")), "test").unwrap();
    }
}

#[test]
fn overwrite_replaces_value_and_blob() {
    for place in SessionDir::both() {
        let session = place.open();
        for config in small_configs() {
            let mut table = session.new_table(&config).unwrap();
            table.insert_with_blob(b"0", b"Hello", b"World").unwrap();
            let expected = Some((b"Hello".to_vec(), Some(b"World".to_vec())));
            assert_eq!(read(&session, &table, b"0"), expected);
            table.insert(b"0", b"Goodbye").unwrap();
            assert_eq!(read(&session, &table, b"0"), Some((b"Goodbye".to_vec(), None)));
            table.delete(b"1").unwrap();
            assert_eq!(read(&session, &table, b"0"), Some((b"Goodbye".to_vec(), None)));
            assert_eq!(table.get(b"1").unwrap(), Lookup::NotFound);
        }
    }
}

#[test]
fn upserts_combine_and_drop_the_blob() {
    for place in SessionDir::both() {
        for (at, config) in small_configs().into_iter().enumerate() {
            let session = place.open();
            let config = config.merge_operator(words());
            let mut table = session.new_table(&config).unwrap();
            table.upsert(b"0", b"Hello").unwrap();
            table.upsert(b"0", b"Goodbye").unwrap();
            table.insert_with_blob(b"1", b"Hello", b"blob").unwrap();
            table.upsert(b"1", b"v").unwrap();
            table.insert(b"2", b"old").unwrap();
            table.delete(b"2").unwrap();
            table.upsert(b"2", b"v").unwrap();

            let check = |session: &Session, table: &Table| {
                let value = |key: &[u8]| read(session, table, key);
                assert_eq!(value(b"0"), Some((b"Goodbye Hello".to_vec(), None)));
                assert_eq!(value(b"1"), Some((b"v Hello".to_vec(), None)));
                assert_eq!(value(b"2"), Some((b"v".to_vec(), None)));
                let mut cursor = table.cursor().unwrap();
                let values = cursor.next_many(9).unwrap().into_iter().map(|r| r.value.into_vec());
                let expected: [&[u8]; 3] = [b"Goodbye Hello", b"v Hello", b"v"];
                assert!(values.eq(expected));
            };

            check(&session, &table);
            let name = name(&format!("s{at}"));
            table.save_snapshot(&name, "").unwrap();
            drop(table);
            session.close().unwrap();
            let session = place.open();
            let options = OpenOptions::default().merge_operator(words());
            let mut table = session.open_snapshot_with(&name, "", &options).unwrap();
            check(&session, &table);
            table.upsert(b"0", b"Again").unwrap();
            let expected = Some((b"Again Goodbye Hello".to_vec(), None));
            assert_eq!(read(&session, &table, b"0"), expected);
            drop(table);
            session.close().unwrap();
        }
    }
}

/// The entry kinds of the reference's table 1.1, and what is in the table before any.
const OPERATIONS: [Update<'static>; 4] = [
    Update::Delete,
    Update::Insert(b"i"),
    Update::InsertWithBlob(b"b", b"blob"),
    Update::Upsert(b"u"),
];

type State = Option<(Vec<u8>, Option<Vec<u8>>)>;

fn applied(state: State, update: Update<'_>, resolve: &MergeOperator) -> State {
    match update {
        Update::Insert(value) => Some((value.to_vec(), None)),
        Update::InsertWithBlob(value, blob) => Some((value.to_vec(), Some(blob.to_vec()))),
        Update::Upsert(value) => {
            let old = state.map(|(old, _)| resolve.apply(value, &old));
            Some((old.unwrap_or_else(|| value.to_vec()), None))
        }
        _ => None,
    }
}

/// All sequences of three operations on a key, with enough other updates between them to place them
/// in one memtable part, in several, in a flush, or in runs of several levels, compacted or not.
#[test]
fn every_combination_of_entries_in_every_place_gives_the_tables_answer() {
    let resolve = words();

    let session = SessionDir::simulated(1).open();
    let mut combinations = 0;
    for gap in [0, 1, 3, 40] {
        for schedule in [CompactionSchedule::Incremental, CompactionSchedule::OneShot] {
            let config = config(3, resolve.clone()).compaction_schedule(schedule);
            for number in 0..64_usize {
                let operations = [number / 16, number / 4 % 4, number % 4].map(|at| OPERATIONS[at]);

                let mut table = session.new_table(&config).unwrap();
                let mut state: State = None;
                for (step, operation) in operations.into_iter().enumerate() {
                    table.write_batch(&[(b"key", operation)]).unwrap();
                    state = applied(state, operation, &resolve);
                    // A duplicate freezes the segment.
                    let copy = table.fork().unwrap();
                    for other in 0..gap {
                        let other = [b'z', step as u8, other];
                        table.insert(&other, b"").unwrap();
                    }
                    assert_eq!(read(&session, &table, b"key"), state, "{operations:?} gap {gap}");
                    assert_eq!(read(&session, &copy, b"key"), state, "{operations:?} gap {gap}");
                }

                let first = table.cursor().unwrap().next().transpose().unwrap();
                let first = first.filter(|record| record.key == b"key");
                let first = first.map(|record| {
                    let blob = record.blob.map(|b| session.retrieve_blobs(&[b]).unwrap().remove(0));
                    (record.value.into_vec(), blob)
                });

                assert_eq!(first, state, "a cursor after {operations:?} gap {gap}");
                combinations += 1;
            }
        }
    }

    assert_eq!(combinations, 4 * 2 * 64);
}

#[test]
fn an_upsert_is_a_lookup_and_an_insert_in_all_configurations() {
    for_each_seed("an_upsert_is_a_lookup_and_an_insert_in_all_configurations", 6, |rng, seed| {
        let session = SessionDir::simulated(seed).open();
        for config in small_configs() {
            let resolve = rng.pick(&MergeOperator::all_ready_made()).clone();
            let config = config.merge_operator(resolve.clone()).compaction_batch_pages(1);
            let mut upserted = session.new_table(&config).unwrap();
            let mut inserted = session.new_table(&config).unwrap();
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for _ in 0..300 {
                let key = [rng.below(20) as u8, 0, 7];
                let len = rng.below(12);
                let value: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                if rng.chance(1, 6) {
                    upserted.delete(&key).unwrap();
                    inserted.delete(&key).unwrap();
                    model.remove(key.as_slice());
                    continue;
                }
                upserted.upsert(&key, &value).unwrap();
                let old = inserted.get(&key).unwrap();
                let new =
                    old.value().map_or_else(|| value.clone(), |old| resolve.apply(&value, old));
                inserted.insert(&key, &new).unwrap();
                model.insert(key.to_vec(), new);
            }
            let expected: Vec<_> = model.into_iter().collect();
            assert_eq!(crate::content(&upserted), expected, "{resolve:?}");
            assert_eq!(crate::content(&inserted), expected, "{resolve:?}");
            for (key, value) in &expected {
                assert_eq!(upserted.get(key).unwrap().value(), Some(value.as_slice()));
            }
        }
    });
}

#[test]
fn a_table_is_opened_with_its_own_resolve_function_only() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&config(4, words())).unwrap();
        table.upsert(b"k", b"a").unwrap();
        table.save_snapshot(&name("own"), "").unwrap();

        let refused = session.open_snapshot(&name("own"), "").unwrap_err();
        assert!(
            matches!(&refused, Error::MergeOperatorMismatch { name, stored, given: None }
                if name == "own" && stored == "words"),
            "{refused:?}"
        );

        let given = OpenOptions::default().merge_operator(MergeOperator::max());
        let refused = session.open_snapshot_with(&name("own"), "", &given).unwrap_err();
        assert!(
            matches!(&refused, Error::MergeOperatorMismatch { stored, given: Some(given), .. }
                if stored == "words" && given == "terrane.max"),
            "{refused:?}"
        );

        let given = OpenOptions::default().merge_operator(words());
        let mut opened = session.open_snapshot_with(&name("own"), "", &given).unwrap();
        opened.upsert(b"k", b"b").unwrap();
        assert_eq!(opened.get(b"k").unwrap().value(), Some(b"b a".as_slice()));
    }
}

/// Buffer of 4 entries; 0 to 99 with blobs.
fn with_blobs(session: &terrane_lsm::Session) -> (Table, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut table = session.new_table(&config(4, MergeOperator::newest())).unwrap();
    let keys: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n]).collect();
    let blobs: Vec<Vec<u8>> = (0..100usize).map(|n| vec![n as u8; n * n]).collect();
    for (key, blob) in keys.iter().zip(&blobs) {
        table.insert_with_blob(key, b"value", blob).unwrap();
    }
    (table, keys, blobs)
}

#[test]
fn a_blob_reference_gives_its_blob_or_says_that_it_is_gone() {
    for place in SessionDir::both() {
        let session = place.open();
        let (mut table, keys, blobs) = with_blobs(&session);
        let references = |table: &Table| -> Vec<_> {
            let found = table.get_many(&keys).unwrap();
            found.into_iter().map(|found| found.blob().cloned().unwrap()).collect()
        };

        assert_eq!(session.retrieve_blobs(&references(&table)).unwrap(), blobs);

        let mut gone = 0;
        let mut there = 0;
        for step in 0..300u32 {
            let refs = references(&table);
            table.insert(&[&[200], step.to_le_bytes().as_slice()].concat(), b"more").unwrap();
            for (at, reference) in refs.iter().enumerate() {
                match session.retrieve_blobs(std::slice::from_ref(reference)) {
                    Ok(read) => {
                        assert_eq!(read, [blobs[at].clone()]);
                        there += 1;
                    }
                    Err(Error::BlobRefInvalid { index: 0 }) => gone += 1,
                    Err(error) => panic!("{error}"),
                }
            }

            let first_bad = refs.iter().position(|reference| {
                session.retrieve_blobs(std::slice::from_ref(reference)).is_err()
            });

            match (session.retrieve_blobs(&refs), first_bad) {
                (Ok(read), None) => assert_eq!(read, blobs),
                (Err(Error::BlobRefInvalid { index }), Some(first)) => assert_eq!(index, first),
                (read, first) => panic!("{read:?}, first bad {first:?}"),
            }
        }

        assert!(gone > 0 && there > 0, "{gone} gone, {there} there: nothing was shown");
    }
}

#[test]
fn a_duplicate_or_a_cursor_left_open_keeps_references_valid() {
    for place in SessionDir::both() {
        let session = place.open();
        let (mut table, keys, blobs) = with_blobs(&session);
        for updates in [0, 1, 7, 1_001] {
            let copy = table.fork().unwrap();
            let found = copy.get_many(&keys).unwrap();
            let refs: Vec<_> = found.iter().map(|found| found.blob().cloned().unwrap()).collect();
            let before = table.get_many(&keys).unwrap();
            let before: Vec<_> =
                before.iter().map(|found| found.blob().cloned().unwrap()).collect();
            let mut cursor = table.cursor().unwrap();
            let records = cursor.next_many(100).unwrap();
            let of_cursor: Vec<_> =
                records.into_iter().map(|record| record.blob.unwrap()).collect();

            for number in 0..updates {
                table.insert(&[&[200], u32::to_le_bytes(number).as_slice()].concat(), b"").unwrap();
            }

            for refs in [&refs, &before, &of_cursor] {
                assert_eq!(session.retrieve_blobs(refs).unwrap(), blobs, "after {updates} updates");
            }
            drop(copy);

            assert_eq!(
                session.retrieve_blobs(&of_cursor).unwrap(),
                blobs,
                "after {updates} updates"
            );
        }
    }
}

/// A run whose blobs are all empty has no file of blobs, and was once taken for a run without any:
/// a duplicate did not keep it when another table's updates completed the merge that it went into.
#[test]
fn a_duplicate_keeps_references_to_empty_blobs_valid() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&config(1, MergeOperator::newest())).unwrap();
        table.insert_with_blob(b"key", b"value", b"").unwrap();
        for number in 0..40u8 {
            table.insert(&[number], b"").unwrap();
            let copy = table.fork().unwrap();
            let found = copy.get(b"key").unwrap();
            for other in 0..40u8 {
                table.insert(&[100, number, other], b"").unwrap();
            }
            let blobs = session.retrieve_blobs(&[found.blob().cloned().unwrap()]).unwrap();
            assert_eq!(blobs, [Vec::<u8>::new()]);
        }
    }
}

#[test]
fn blobs_of_all_sizes_survive_merges_snapshots_and_reopening() {
    for mut place in SessionDir::both() {
        let session = place.open();
        let index = IndexKind::Ordinary;
        let config = config(7, MergeOperator::newest()).index(index);
        let mut table = session.new_table(&config).unwrap();

        let sizes = [0, 1, 60, 4079, 4080, 4081, 8160, 10_000, 300_000];
        let mut expected = BTreeMap::new();
        for number in 0..200usize {
            let key = ((number * 7919) % 100).to_le_bytes().to_vec();
            let value = vec![number as u8; [0, 5, 4_000, 4_070, 9_000][number % 5]];
            let blob = vec![number as u8 ^ 0x55; sizes[number % sizes.len()]];
            match number % 11 {
                3 => table.delete(&key).unwrap(),
                _ => table.insert_with_blob(&key, &value, &blob).unwrap(),
            }
            match number % 11 {
                3 => expected.remove(&key),
                _ => expected.insert(key, (value, blob)),
            };
        }

        let check = |session: &terrane_lsm::Session, table: &Table| {
            for (key, (value, blob)) in &expected {
                let read = read(session, table, key);
                assert_eq!(read, Some((value.clone(), Some(blob.clone()))));
            }
            let mut cursor = table.cursor().unwrap();
            for (key, (value, blob)) in &expected {
                let record = cursor.next().transpose().unwrap().unwrap();
                assert_eq!((&record.key, &*record.value), (key, value.as_slice()));
                let read = session.retrieve_blobs(&[record.blob.unwrap()]).unwrap();
                assert_eq!(read, std::slice::from_ref(blob));
            }
            assert_eq!(cursor.next().transpose().unwrap(), None);
        };

        check(&session, &table);
        table.save_snapshot(&name("blobs"), "").unwrap();
        check(&session, &session.open_snapshot(&name("blobs"), "").unwrap());
        place.kill();
        drop((table, session));
        let session = place.open();
        let table = session.open_snapshot(&name("blobs"), "").unwrap();
        check(&session, &table);
        session.delete_snapshot(&name("blobs")).unwrap();
        drop(table);
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new(), "all files have gone");
    }
}

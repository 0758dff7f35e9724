//! Batches that own their entries and span tables.
//!
//! Goal: a batch is committed all or nothing, over tables and key types, and again after a failure;
//! reading through a batch gives what a commit would leave. Method: random batches against a model,
//! commits of others in between; a fault at every call of a commit.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk, Survival};
use terrane_lsm::{
    ConflictCause, Durability, Error, Lookup, MergeOperator, NamedTable, SnapshotName, Store,
    TableConfig, TableName, Update, WriteBatch, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::store_script::{Content, batch, content, open, options, state, write_batch};

fn config() -> TableConfig {
    TableConfig {
        write_buffer: WriteBuffer::Entries(8),
        resolve: MergeOperator::concatenate(),
        ..TableConfig::default()
    }
}

fn new_store(disk: &Arc<SimDisk>) -> (Store, [NamedTable; 2]) {
    let store = open(disk, Durability::Group).unwrap();
    let tables = ["main", "undo"].map(|name| store.table_or_create(name, &config()).unwrap());
    (store, tables)
}

fn value(lookup: &Lookup) -> Option<Vec<u8>> {
    lookup.value().map(<[u8]>::to_vec)
}

#[test]
fn a_batch_spans_tables_with_keys_of_different_types() {
    let disk = SimDisk::new(1);
    let (store, [main, undo]) = new_store(&disk);
    let mut batch = WriteBatch::new();
    assert!(batch.is_empty());
    assert_eq!((batch.len(), batch.bytes()), (0, 0));

    batch.insert(&main, "alice", b"100");
    batch.insert(&undo, 7_u64.to_le_bytes(), String::from("block"));
    batch.insert_with_blob(&main, vec![1, 2], [3], "a blob");
    batch.upsert(&main, "alice", "+1");
    batch.insert(&main, "prefix-a", "");
    batch.delete_prefix(&main, "prefix-");
    batch.insert(&undo, [9], "");
    batch.delete_range(&undo, &[8][..]..);
    batch.delete(&main, "nobody");
    assert_eq!((batch.len(), batch.bytes()), (9, 67));

    let entries: Vec<_> =
        batch.iter().map(|(table, key, update)| (table.name(), key, update)).collect();
    assert_eq!(entries.len(), 9);
    assert_eq!(entries[0], (main.name(), &b"alice"[..], Update::Insert(b"100")));
    assert_eq!(entries[8], (undo.name(), &[8][..], Update::DeleteRange(None)));

    let ticket = store.write(&batch).unwrap();
    ticket.wait().unwrap();
    assert_eq!(ticket.commit(), store.last_commit());
    assert_eq!(value(&main.get(b"alice").unwrap()), Some(b"100+1".to_vec()));
    assert_eq!(value(&undo.get(&7_u64.to_le_bytes()).unwrap()), Some(b"block".to_vec()));
    assert!(!undo.get(&[9]).unwrap().is_found() && !main.get(b"prefix-a").unwrap().is_found());
    assert!(main.get(&[1, 2]).unwrap().blob().is_some());

    // One commit: a loss of power after the wait keeps all of it.
    let found = state(&open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap());
    assert_eq!(found.unwrap(), state(&store).unwrap());

    // Cleared, the batch is committed as nothing, and filled again.
    batch.clear();
    assert!(batch.is_empty() && batch.bytes() == 0 && batch.iter().count() == 0);
    assert_eq!(store.write(&batch).unwrap().commit(), ticket.commit() + 1);
    batch.delete(&main, "alice");
    let ticket = store.write_with(&batch, Durability::Each).unwrap();
    assert!(ticket.is_durable());
    assert!(!main.get(b"alice").unwrap().is_found());
}

/// Random batches, read at every step, against a model of the table with the batch.
#[test]
fn reading_through_a_batch_is_reading_what_its_commit_leaves() {
    for_each_seed("reading_through_a_batch", by_effort(20, 300), |rng, _| {
        let (store, [main, undo]) = new_store(&SimDisk::new(1));
        let tables = [("main", &main), ("undo", &undo)];
        let mut models = [Content::new(), Content::new()];
        let mut steps = Vec::new();

        for _ in 0..30 {
            let at = rng.index(2);
            if rng.chance(1, 5) {
                // Somebody else's commit: the batch is read over the new view.
                let changes = batch(rng, 3);
                let others = write_batch(&store, &[(tables[at].0, changes.clone())]).unwrap();
                store.write(&others).unwrap().wait().unwrap();
                for (key, change) in &changes {
                    change.apply(&mut models[at], key);
                }
            } else {
                steps.push((tables[at].0, batch(rng, 2)));
            }

            let mine = write_batch(&store, &steps).unwrap();
            let mut expected = models.clone();
            for (name, changes) in &steps {
                let model = &mut expected[usize::from(*name == "undo")];
                for (key, change) in changes {
                    change.apply(model, key);
                }
            }
            let keys: Vec<_> = (0..48_u8).map(|number| [b'k', number]).collect();
            for ((_, table), model) in tables.iter().zip(&expected) {
                let found = mine.get_many(table, &keys).unwrap();
                let wanted: Vec<_> = keys.iter().map(|key| model.get(&key[..]).cloned()).collect();
                assert_eq!(found.iter().map(value).collect::<Vec<_>>(), wanted);
            }

            if rng.chance(1, 6) {
                store.write(&mine).unwrap().wait().unwrap();
                steps.clear();
                models = expected;
                assert_eq!(content(&main).unwrap(), models[0]);
            }
        }
    });
}

/// Entries are added to a batch that has been read, and the entries that were there are not applied
/// twice.
#[test]
fn a_batch_goes_on_after_it_was_read() {
    let (store, [main, _]) = new_store(&SimDisk::new(1));
    main.insert(b"k", b"0").unwrap().wait().unwrap();
    let mut batch = WriteBatch::new();
    let mut expected = b"0".to_vec();
    for number in 0..20 {
        batch.upsert(&main, "k", [number]);
        expected.push(number);
        assert_eq!(value(&batch.get(&main, "k").unwrap()), Some(expected.clone()));
    }
    store.write(&batch).unwrap().wait().unwrap();
    assert_eq!(value(&main.get(b"k").unwrap()), Some(expected));

    // A blob of the batch itself.
    batch.clear();
    batch.insert_with_blob(&main, "k", "", "of the batch");
    let blob = batch.get(&main, "k").unwrap().blob().unwrap().clone();
    assert_eq!(store.session().retrieve_blobs(&[blob]).unwrap(), [b"of the batch"]);
}

/// After an error nothing of the batch is there, and the same batch can be committed.
#[test]
fn a_batch_is_committed_again_after_a_failure() {
    let mut failed = 0;
    for call in 0..40 {
        let disk = SimDisk::new(1);
        let (store, [main, undo]) = new_store(&disk);
        main.insert(b"before", b"").unwrap().wait().unwrap();
        let before = state(&store).unwrap();
        let mut batch = WriteBatch::new();
        for number in 0..30_u32 {
            batch.insert(&main, number.to_le_bytes(), [7; 100]);
            batch.insert(&undo, number.to_le_bytes(), [8; 100]);
        }

        disk.set_plan(FaultPlan::fail(disk.calls() + call, FaultKind::Eio, Repeat::Once));
        let written = store.write(&batch);
        disk.set_plan(FaultPlan::default());
        if written.is_err() && !store.is_poisoned() {
            failed += 1;
            assert_eq!(state(&store).unwrap(), before);
            store.write(&batch).unwrap().wait().unwrap();
            assert_eq!(content(&undo).unwrap().len(), 30);
        }
    }
    assert!(failed >= 3, "{failed} commits failed");
}

#[test]
fn a_conditional_commit_is_refused_if_another_commit_came_in_between() {
    let (store, [main, undo]) = new_store(&SimDisk::new(1));
    let mut batch = WriteBatch::new();
    batch.insert(&main, "mine", "");
    let last = store.last_commit();
    undo.insert(b"another", b"").unwrap().wait().unwrap();

    match store.write_if(&batch, last) {
        Err(Error::Conflict(conflict)) => {
            assert_eq!(conflict.commit, last + 1);
            assert_eq!(conflict.cause, ConflictCause::LastCommit { expected: last });
        }
        other => panic!("{other:?}"),
    }
    assert!(!main.get(b"mine").unwrap().is_found());
    let ticket = store.write_if(&batch, last + 1).unwrap();
    assert_eq!((ticket.commit(), store.last_commit()), (last + 2, last + 2));
    ticket.wait().unwrap();
}

#[test]
fn a_batch_of_tables_that_are_not_there_is_refused() {
    let (store, [main, undo]) = new_store(&SimDisk::new(1));
    let (_other, [foreign, _]) = new_store(&SimDisk::new(2));
    let mut batch = WriteBatch::new();
    batch.insert(&main, "key", "");
    batch.insert(&foreign, "key", "");
    let refused = store.write(&batch);
    assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "main"));
    assert!(!main.get(b"key").unwrap().is_found());

    batch.clear();
    batch.insert(&main, "key", "");
    batch.insert(&undo, "key", "");
    store.drop_table("undo").unwrap();
    let refused = store.write(&batch);
    assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "undo"));
    assert!(!main.get(b"key").unwrap().is_found());

    // Entries that are too long are refused where they would be committed, and where they are read.
    batch.clear();
    batch.insert(&main, [0; 4_001], "");
    assert!(matches!(store.write(&batch), Err(Error::KeyTooLarge { bytes: 4_001, .. })));
    assert!(matches!(batch.get(&main, "key"), Err(Error::KeyTooLarge { .. })));
}

/// Names are text: literals, owned strings and checked names.
#[test]
fn tables_are_called_by_literals_and_by_names() {
    let disk = SimDisk::new(1) as Arc<dyn Disk>;
    let store = Store::open(disk, Path::new("/store"), &options(Durability::Group)).unwrap();
    drop(store.create_table("accounts", &config()).unwrap());
    let name: TableName = "accounts".parse().unwrap();
    assert_eq!(TableName::try_from("accounts").unwrap(), name);
    assert_eq!(SnapshotName::try_from("a").unwrap(), "a".parse().unwrap());
    assert_eq!(SnapshotName::new("a").unwrap().as_ref(), "a");
    assert_eq!((name.as_ref(), store.table(&name).unwrap().name()), ("accounts", &name));
    drop(store.table(&String::from("accounts")).unwrap());

    store.rename_table("accounts", "renamed").unwrap();
    drop(store.table_or_create("renamed", &config()).unwrap());
    store.drop_table("renamed").unwrap();
    for text in ["", "Accounts", "a/b"] {
        let refused = store.table(text);
        assert!(matches!(refused, Err(Error::InvalidTableName { text: t }) if t == text));
        assert!(text.parse::<SnapshotName>().is_err());
    }
}

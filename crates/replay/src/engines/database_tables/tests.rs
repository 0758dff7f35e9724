//! The engine against a sorted map, on each database: changes above stored entries, several tables,
//! snapshots, and what is left when the process ends between two durable points.

use std::sync::atomic::Ordering;

use super::*;
use crate::engines::engine::Engine as _;
use crate::engines::pending::tests::{Model, content, put, range};

const KINDS: &[Kind] = &[
    #[cfg(feature = "lmdb")]
    Kind::Lmdb,
    #[cfg(feature = "sqlite")]
    Kind::Sqlite,
];

#[test]
fn changes_are_found_before_and_after_they_are_stored() {
    for &kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let engine = DatabaseTables::open(kind, dir.path()).unwrap();
        let mut tables = [engine.new_table().unwrap(), engine.new_table().unwrap()];
        let mut models = [Model::new(), Model::new()];

        // More entries than a cursor reads at once, of which each round changes and removes some.
        for round in 0..3_u32 {
            for (number, (table, model)) in tables.iter_mut().zip(&mut models).enumerate() {
                for key in (0..CHUNK as u32 + 700).filter(|key| key % (round + 1) == 0) {
                    let text = key.to_le_bytes();
                    let value = [&text[..], &[round as u8, number as u8]].concat();
                    let is_kept = key % 7 != round;
                    put(table.as_mut(), model, &text, is_kept.then_some(&value[..]));
                }
                put(table.as_mut(), model, b"", Some(&[round as u8]));
                assert_eq!(content(table.as_ref(), b""), *model, "{kind:?} before");
                table.save(&format!("table {number} round {round}"), "label").unwrap();
            }

            engine.commit().unwrap();
            assert_eq!(engine.0.changes_bytes.load(Ordering::Relaxed), 0);
            for (table, model) in tables.iter().zip(&models) {
                assert_eq!(content(table.as_ref(), b""), *model, "{kind:?} after");
                assert_eq!(content(table.as_ref(), b"b"), range(model, b"b"));
                let keys = [&b""[..], b"absent", &[9, 0, 0, 0]];
                let expected: Vec<_> = keys.iter().map(|key| model.get(*key).cloned()).collect();
                assert_eq!(table.get_many(&keys).unwrap(), expected);
            }
            assert_eq!(engine.snapshots().unwrap().len(), 2, "only the last one of a table");
        }

        // Changes behind the durable point are gone with the process.
        put(tables[0].as_mut(), &mut Model::new(), b"lost", Some(b"value"));
        tables[0].save("table 0 round 9", "label").unwrap();
        drop((tables, engine));
        let engine = DatabaseTables::open(kind, dir.path()).unwrap();
        assert!(matches!(engine.open("table 0 round 2", "other"), Err(EngineError::Refused(_))));
        assert!(matches!(engine.open("table 0 round 1", "label"), Err(EngineError::Refused(_))));
        for (number, model) in models.iter().enumerate() {
            let table = engine.open(&format!("table {number} round 2"), "label").unwrap();
            assert_eq!(content(table.as_ref(), b""), *model, "{kind:?} reopened");
        }

        // A deleted table leaves no key behind, and the next table has another number.
        engine.delete("table 0 round 2").unwrap();
        engine.delete("table 1 round 2").unwrap();
        let reader = engine.0.store.database.reader().unwrap();
        assert_eq!(reader.count(kv::Table::Main).unwrap(), 0, "{kind:?}");
        drop(reader);
        assert!(content(engine.new_table().unwrap().as_ref(), b"").is_empty());
    }
}

#[test]
fn another_process_or_a_foreign_directory_is_refused() {
    for &kind in KINDS {
        let dir = tempfile::tempdir().unwrap();
        let held = DatabaseTables::open(kind, dir.path()).unwrap();
        let refused = DatabaseTables::open(kind, dir.path()).unwrap_err();
        assert!(matches!(refused, EngineError::Environment(_)), "{refused}");
        drop(held);
        DatabaseTables::open(kind, dir.path()).unwrap();

        let foreign = tempfile::tempdir().unwrap();
        std::fs::write(foreign.path().join("letters.txt"), b"dear reader").unwrap();
        let refused = DatabaseTables::open(kind, foreign.path()).unwrap_err();
        assert!(matches!(refused, EngineError::Refused(_)), "{refused}");
        assert_eq!(std::fs::read_dir(foreign.path()).unwrap().count(), 1, "nothing was written");
    }
}

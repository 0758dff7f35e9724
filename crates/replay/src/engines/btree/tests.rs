//! The engine against a sorted map: long values, changes above what is stored, points that a crash
//! cuts short.

use std::path::Path;
use std::sync::atomic::Ordering;

use terrane::io::FaultPlan;
use terrane::io::{SimDisk, Survival};

use super::*;
use crate::engines::engine::{Change, Engine as _, Table};
use crate::engines::pending::tests::{Model, content, put, range};

fn open(disk: &Arc<SimDisk>) -> Btree {
    let disk: Arc<dyn Disk> = disk.clone();
    Btree::open_on(&disk, Path::new("/index")).unwrap()
}

/// Values of every length around pieces, which grow, shrink and go.
#[test]
fn values_of_any_length_are_found_before_and_after_they_are_stored() {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    let mut table = engine.new_table().unwrap();

    let mut model = Model::new();
    let lengths = [0, 1, 699, 700, 701, 1_400, 1_401, 10_000];
    for (round, shift) in [0, 3, 5, 1].into_iter().enumerate() {
        for (at, key) in
            [&b""[..], b"a", b"a\0", b"b", b"b\0\0\0\x01", b"c", b"d", b"e"].iter().enumerate()
        {
            let length = lengths[(at + shift) % lengths.len()];
            let value = (at != round).then(|| vec![round as u8; length]);
            put(table.as_mut(), &mut model, key, value.as_deref());
        }

        assert_eq!(content(table.as_ref(), b""), model, "before");
        let name = format!("point {round}");
        table.save(&name, "label").unwrap();
        engine.commit().unwrap();
        assert_eq!(engine.0.changes_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(content(table.as_ref(), b""), model, "after");
        assert_eq!(content(table.as_ref(), b"b"), range(&model, b"b"));
        let keys = [&b"a"[..], b"absent", b"c"];
        let expected: Vec<_> = keys.iter().map(|key| model.get(*key).cloned()).collect();
        assert_eq!(table.get_many(&keys).unwrap(), expected);
        assert_eq!(engine.snapshots().unwrap(), [name], "only the last one of a table is there");
    }

    drop((table, engine));
    let engine = open(&disk);
    assert!(matches!(engine.open("point 3", "other"), Err(EngineError::Refused(_))));
    assert!(matches!(engine.open("point 2", "label"), Err(EngineError::Refused(_))));
    let table = engine.open("point 3", "label").unwrap();
    assert_eq!(content(table.as_ref(), b""), model);

    // A deleted table leaves no key behind, and the next table has another number.
    engine.delete("point 3").unwrap();
    assert!(engine.0.store.index.is_empty().unwrap());
    assert!(content(engine.new_table().unwrap().as_ref(), b"").is_empty());
}

/// Two tables that are saved together are both there, or neither, wherever a loss of power cuts the
/// commit short.
#[test]
fn tables_saved_together_become_durable_together() {
    let lay_out = |disk: &Arc<SimDisk>| {
        let engine = open(disk);
        let mut tables = [engine.new_table().unwrap(), engine.new_table().unwrap()];
        save(&engine, &mut tables, 1).unwrap();
        (engine, tables)
    };

    let calls_of = |disk: &Arc<SimDisk>| {
        let (engine, mut tables) = lay_out(disk);
        let before = disk.calls();
        save(&engine, &mut tables, 2).unwrap();
        before..disk.calls()
    };

    let mut older = 0;
    let mut newer = 0;
    for call in calls_of(&SimDisk::new(1)) {
        for survival in [Survival::Nothing, Survival::Everything] {
            let disk = SimDisk::new(1);
            let (engine, mut tables) = lay_out(&disk);
            disk.set_plan(FaultPlan::crash_at(call));

            // The call does not answer for a fault after its sync.
            let is_saved = save(&engine, &mut tables, 2).is_ok();
            drop((tables, engine));
            let engine = open(&disk.after_crash(survival));
            let mut names = engine.snapshots().unwrap();
            names.sort();
            let round = if names == ["log-2", "state-2"] { 2 } else { 1 };
            assert!(round == 2 || names == ["log-1", "state-1"], "{names:?}, call {call}");
            assert!(round == 2 || !is_saved, "call {call}");
            *(if round == 2 { &mut newer } else { &mut older }) += 1;

            for name in names {
                let table = engine.open(&name, "label").unwrap();
                assert_eq!(content(table.as_ref(), b"")[&b"key"[..]], [round; 2_000]);
            }
        }
    }

    assert!(older > 0 && newer > 0, "{older} {newer}");
}

fn save(engine: &Btree, tables: &mut [Box<dyn Table>; 2], round: u8) -> Result<()> {
    for (table, role) in tables.iter_mut().zip(["log", "state"]) {
        table.update(&[Change { key: b"key", value: Some(&[round; 2_000]) }])?;
        table.save(&format!("{role}-{round}"), "label")?;
    }
    engine.commit()
}

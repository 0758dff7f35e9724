//! Rules of readers: each is a snapshot for as long as it lives.

use std::thread;

use crate::database::{Database, Reader, Table};

use super::trial::{
    Change, Model, Outcome, TABLES, Trial, apply, commit, entry, failure, ok, value,
};

type Snapshots = Vec<(usize, Box<dyn Reader + Send>, Model)>;

fn check_all(step: &str, snapshots: &Snapshots) -> Outcome {
    for (age, reader, model) in snapshots {
        model.check(format_args!("{step}: the snapshot after commit {age}"), &**reader)?;
    }
    Ok(())
}

/// Commit `number`: each key is bound, bound to something else, removed and bound again in turn,
/// each in its own rhythm.
fn rewrite(database: &dyn Database, model: &mut Model, number: usize) -> Outcome {
    let value = format!("{number}");

    let keys: Vec<String> = (0..8).map(|key| format!("{key}")).collect();
    let mut changes: Vec<Change<'_>> = Vec::new();
    for table in TABLES {
        for (key, name) in keys.iter().enumerate() {
            // Each commit sets, removes or leaves each key in turn.
            match (number + key) % 4 {
                0 => {}
                1 | 2 => changes.push((table, name.as_bytes(), Some(value.as_bytes()))),
                _ => changes.push((table, name.as_bytes(), None)),
            }
        }
    }

    commit(format_args!("commit {number}"), database, model, &changes).map(|_| ())
}

/// Snapshots of different ages keep values, counts and cursors, whatever is committed, rolled back
/// or dropped.
pub(super) fn of_all_ages(trial: &mut Trial<'_>) -> Outcome {
    // In which order they go: the oldest first, the newest first, from the middle.
    for order in [|_: usize| 0, |count| count - 1, |count| count / 2] {
        let database = trial.fresh()?;

        let mut model = Model::default();
        let mut snapshots = Snapshots::new();
        for number in 0..8 {
            for _ in 0..2 {
                let reader = ok("make a reader", database.reader())?;
                snapshots.push((number, reader, model.clone()));
            }
            rewrite(&*database, &mut model, number + 1)?;
            let mut writer = ok("make a writer", database.writer())?;
            let dropped: [Change<'_>; 2] =
                [(Table::Main, b"0", None), (Table::Main, b"9", Some(b"9"))];
            apply("a transaction that is dropped", &mut *writer, &mut model.clone(), &dropped)?;
            drop(writer);
            check_all(&format!("after commit {}", number + 1), &snapshots)?;
        }

        model.check_present("the present", &*database)?;
        // A snapshot that goes may take old values along that the others need.
        while !snapshots.is_empty() {
            let (age, ..) = snapshots.remove(order(snapshots.len()));
            check_all(&format!("after a snapshot of commit {age} went"), &snapshots)?;
            rewrite(&*database, &mut model, snapshots.len())?;
            check_all("after one more commit", &snapshots)?;
        }

        model.check_present("after all snapshots went", &*database)?;
        ok("close", database.close())?;
    }

    Ok(())
}

/// A cursor that is half way goes on over what its reader saw.
pub(super) fn cursors_half_way(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();

    for table in TABLES {
        let changes: Vec<Change<'_>> = names
            .iter()
            .step_by(2)
            .map(|key| (table, key.as_bytes(), Some(key.as_bytes())))
            .collect();
        commit("write", &*database, &mut model, &changes)?;
    }

    let reader = ok("make a reader", database.reader())?;
    for table in TABLES {
        let map = model.table(table).clone();

        let mut cursor = ok("make a cursor", reader.cursor(table))?;
        let mut expected = map.iter();
        for (key, value) in expected.by_ref().take(map.len() / 2) {
            entry(format_args!("{table}: next"), cursor.next(), Some((key, value)))?;
        }

        // All that was there goes, and what was not comes.
        let changes: Vec<Change<'_>> = names
            .iter()
            .enumerate()
            .map(|(number, key)| (table, key.as_bytes(), (number % 2 > 0).then_some(&b"new"[..])))
            .collect();

        commit(format_args!("{table}: rewrite"), &*database, &mut model, &changes)?;
        for (key, value) in expected {
            let step = format!("{table}: next after a commit");
            entry(step, cursor.next(), Some((key, value)))?;
        }

        entry(format_args!("{table}: next at the end"), cursor.next(), None)?;
        for (key, value) in map.iter().rev() {
            entry(format_args!("{table}: back again"), cursor.prev(), Some((key, value)))?;
        }

        ok("seek", cursor.seek(b"051"))?;
        let step = format!("{table}: next after a seek after a commit");
        entry(step, cursor.next(), Some((b"052", b"052")))?;
    }

    drop(reader);
    model.check_present("the present", &*database)
}

/// Readers that are made while a writer lives see nothing of it, not even after its commit.
pub(super) fn beside_a_writer(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    rewrite(&*database, &mut model, 1)?;

    for number in 2..6 {
        let mut snapshots = Snapshots::new();

        let before = model.clone();
        let mut writer = ok("make a writer", database.writer())?;
        for table in TABLES {
            let value = [number as u8];
            let changes: [Change<'_>; 3] =
                [(table, b"0", Some(&value)), (table, b"1", None), (table, &value, Some(b"new"))];
            for change in changes {
                snapshots.push((number, ok("make a reader", database.reader())?, before.clone()));
                apply("a change", &mut *writer, &mut model, &[change])?;
                check_all("beside a writer", &snapshots)?;
            }
        }

        ok("commit", writer.commit())?;
        check_all("after the commit of the writer", &snapshots)?;
        model.check_present("the present", &*database)?;
    }

    Ok(())
}

/// A reader answers in another thread, and after the last handle of its database was dropped.
pub(super) fn elsewhere(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    rewrite(&*database, &mut model, 1)?;
    let before = model.clone();
    let reader = ok("make a reader", database.reader())?;
    rewrite(&*database, &mut model, 2)?;

    let checked = thread::scope(|scope| {
        let moved = scope.spawn(|| {
            before.check("a reader in another thread", &*reader)?;
            Ok(reader)
        });
        moved.join()
    });

    let reader = checked.unwrap_or_else(|_| {
        Err(failure("a reader in another thread", "an answer", "a panic", None))
    })?;
    drop(database);
    before.check("after the database was dropped", &*reader)?;
    value("an absent key", reader.get(Table::Main, b"absent"), None)
}

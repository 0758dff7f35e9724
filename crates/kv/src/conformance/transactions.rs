//! Rules of transactions: all or nothing, and a writer sees its own.

use crate::database::{Error, Table};

use super::trial::{
    Change, Model, Outcome, TABLES, Trial, apply, commit, is_duplicate, is_not_found, ok, refused,
};

const FIRST: [Change<'static>; 5] = [
    (TABLES[0], b"a", Some(b"1")),
    (TABLES[0], b"b", Some(b"2")),
    (TABLES[1], b"a", Some(b"3")),
    (TABLES[2], b"c", Some(b"")),
    (TABLES[2], b"d", Some(b"4")),
];
const SECOND: [Change<'static>; 6] = [
    (TABLES[0], b"a", None),
    (TABLES[0], b"b", Some(b"20")),
    (TABLES[0], b"z", Some(b"5")),
    (TABLES[1], b"a", None),
    (TABLES[1], b"b", Some(b"6")),
    (TABLES[2], b"c", Some(b"7")),
];

/// Nothing of a transaction is seen before its commit, and all of it after.
pub(super) fn atomic_commits(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut before = Model::default();
    for (number, changes) in [FIRST.as_slice(), &SECOND, &[], &FIRST].into_iter().enumerate() {
        let mut after = before.clone();
        let step = format!("transaction {number}");
        let mut writer = ok(format_args!("{step}: make a writer"), database.writer())?;
        for change in changes {
            apply(&step, &mut *writer, &mut after, &[*change])?;
            // Nothing of a transaction may show before its commit.
            before.check_present(format_args!("{step}: before its commit"), &*database)?;
        }
        ok(format_args!("{step}: commit"), writer.commit())?;
        after.check_present(format_args!("{step}: after its commit"), &*database)?;
        before = after;
    }

    Ok(())
}

/// A writer that is dropped has changed nothing, and the next one sees nothing of it.
pub(super) fn rollback(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    for changes in [FIRST.as_slice(), &SECOND] {
        let mut writer = ok("make a writer", database.writer())?;
        // A dropped transaction must leave nothing behind, not even in the next writer.
        apply("a transaction that is dropped", &mut *writer, &mut model.clone(), changes)?;
        drop(writer);
        model.check_present("after a dropped transaction", &*database)?;
        model.check("the writer after a dropped one", &*ok("make a writer", database.writer())?)?;
        commit("the same once more", &*database, &mut model, changes)?;
        model.check_present("after the same, committed", &*database)?;
    }

    Ok(())
}

/// A writer sees its own changes on top of what was committed, in every way of reading.
pub(super) fn own_reads(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    for (number, changes) in [FIRST.as_slice(), &SECOND, &FIRST].into_iter().enumerate() {
        let mut writer = ok("make a writer", database.writer())?;
        for change in changes {
            apply("a change", &mut *writer, &mut model, &[*change])?;
            // A writer reads its own changes at once.
            model.check(format_args!("transaction {number}: own reads"), &*writer)?;
        }
        ok("commit", writer.commit())?;
    }
    model.check_present("after the commits", &*database)
}

/// A thread that has a writer gets no other one, and is not left waiting for itself.
pub(super) fn one_writer_of_a_thread(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let mut writer = ok("make a writer", database.writer())?;
    apply("a change", &mut *writer, &mut model, &FIRST)?;
    // A thread that waited for its own writer would wait for ever.
    refused("make another writer", database.writer().map(drop), "Busy", |error| {
        matches!(error, Error::Busy { .. })
    })?;
    ok("commit", writer.commit())?;
    commit("write", &*database, &mut model, &SECOND)?;
    model.check_present("after a writer that was refused", &*database)
}

/// A call that is refused leaves the transaction as it was, and it can be committed.
pub(super) fn refused_calls(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    commit("write", &*database, &mut model, &FIRST)?;

    let mut writer = ok("make a writer", database.writer())?;
    for change in SECOND {
        apply("a change", &mut *writer, &mut model, &[change])?;
        // Refused calls in between must not change the transaction.
        for table in TABLES {
            if let Some(key) = model.table(table).keys().next() {
                let found = writer.put(table, key, b"refused");
                refused("put what is there", found, "DuplicateEntry", is_duplicate(table, key))?;
            }
            let found = writer.delete(table, b"absent");
            refused("delete what is not", found, "NotFound", is_not_found(table, b"absent"))?;
        }

        refused(
            "overwrite an empty key",
            writer.overwrite(TABLES[0], b"", b""),
            "Size",
            |error| matches!(error, Error::Size { .. }),
        )?;

        let found = writer.overwrite(Table::Index("other"), b"k", b"");
        refused("overwrite in no index", found, "UnknownIndex", |error| {
            matches!(error, Error::UnknownIndex { .. })
        })?;

        model.check("after refused calls", &*writer)?;
    }

    ok("commit", writer.commit())?;
    model.check_present("after a commit with refused calls before it", &*database)
}

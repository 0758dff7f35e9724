//! Rules of a database as a whole: receipts, counts, guarantees, closing and opening again.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrane_io::Durability;

use crate::database::{Database, Error, PowerLoss, Receipt, Result, Table};

use super::trial::{
    INDEXES, Model, Outcome, TABLES, Trial, commit, holds, ok, refused, same, value,
};

/// Receipts rise, each can be settled, and what was committed can be made to survive a loss of
/// power.
pub(super) fn receipts(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;

    let mut model = Model::default();
    let mut receipts: Vec<Receipt> = Vec::new();
    for number in 0_u8..10 {
        let changes = [(Table::Main, &b"key"[..], Some(&[number][..]))];
        // Transactions that change nothing are commits too.
        let changes = if number % 4 == 3 { &[] } else { changes.as_slice() };
        let receipt = commit("a commit", &*database, &mut model, changes)?;
        if let Some(last) = receipts.last() {
            let expected = format!("a number greater than {}", last.0);
            holds("the receipt of a later commit", *last < receipt, expected, receipt.0)?;
        }

        receipts.push(receipt);
        if number % 2 == 0 {
            ok("settle", database.settle(receipt))?;
        }
    }

    // Settling a commit again does no harm.
    for receipt in receipts {
        ok(format_args!("settle commit {} once more", receipt.0), database.settle(receipt))?;
    }

    let is_durable = database.guarantee().power_loss == PowerLoss::EveryCommit;
    match database.sync() {
        Err(Error::Unsupported { .. }) if !is_durable => {}
        synced => ok("sync", synced)?,
    }

    model.check_present("after it", &*database)
}

/// A commit is a transaction, a rollback and a read are none; what each level syncs is counted.
pub(super) fn counts(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let durability = database.guarantee().durability;

    for number in 0_u8..5 {
        let before = database.counts();
        let value = [number];
        let changes = TABLES.map(|table| (table, b"key".as_slice(), Some(value.as_slice())));
        let receipt = commit("a commit", &*database, &mut model, &changes)?;
        ok("settle", database.settle(receipt))?;
        let after = database.counts();
        same("transactions after a commit", after.transactions, before.transactions + 1)?;
        let written = after.bytes_written.cmp(&before.bytes_written);
        holds("bytes written by a commit", written.is_ge(), "no fewer than before", "fewer")?;

        match durability {
            Durability::None => same("syncs of a commit without sync", after.syncs, before.syncs)?,
            Durability::Buffered => {}
            Durability::Each | Durability::Group => {
                let is_more = before.syncs < after.syncs;
                holds("syncs after a settled commit", is_more, "more than before", after.syncs)?;
            }
        }

        // A transaction that is dropped is none.
        let mut writer = ok("make a writer", database.writer())?;
        ok("overwrite", writer.overwrite(Table::Main, b"other", b"value"))?;
        drop(writer);
        model.check_present("the present", &*database)?;
        let found = database.counts().transactions;
        same("transactions after a rollback and reads", found, after.transactions)?;
    }

    Ok(())
}

/// The guarantee of a database is consistent in itself.
pub(super) fn guarantee(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let guarantee = database.guarantee();
    let every_commit = guarantee.power_loss == PowerLoss::EveryCommit;

    match guarantee.durability {
        Durability::None | Durability::Buffered => {
            let step = format!("level {}", guarantee.durability.name());
            holds(step, !every_commit, "less than every commit after a loss of power", "it")?;
        }
        Durability::Each | Durability::Group => {
            let step = format!("level {}", guarantee.durability.name());
            let found = format!("{:?}", guarantee.power_loss);
            holds(step, every_commit, "every commit after a loss of power", found)?;
        }
    }

    // A commit that survives a loss of power also survives the death of the process.
    if guarantee.power_loss != PowerLoss::NoPromise {
        let step = "what survives a loss of power";
        holds(step, guarantee.survives_kill, "to survive a kill", "that it does not")?;
    }

    // Only a database that can be opened again can survive.
    if guarantee.survives_kill {
        let step = "what survives a kill";
        let is_persistent = trial.subject.is_persistent();
        holds(step, is_persistent, "a database that can be opened again", "that it cannot")?;
    }

    holds("the guarantee", !guarantee.text.is_empty(), "a sentence", "no text")?;
    let again = database.guarantee();
    let found = format!("{again:?}");
    holds("the guarantee, asked again", again == guarantee, format!("{guarantee:?}"), found)?;

    let name = database.name();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic());
    holds("the name of the back-end", is_name, "a word", format_args!("{name:?}"))?;
    let settings = database.settings();
    let names: BTreeSet<&str> = settings.iter().map(|(name, _)| *name).collect();
    same("names of settings that differ", names.len(), settings.len())?;

    for (name, value) in &settings {
        let is_whole = !name.is_empty() && !value.is_empty();
        holds("a setting", is_whole, "a name and a value", format_args!("{name:?} {value:?}"))?;
    }

    Ok(())
}

/// Compaction loses nothing, with and without snapshots.
pub(super) fn compaction(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let names: Vec<String> = (0..1000).map(|number| format!("{number:04}")).collect();
    let filler = [7; 500];

    for table in TABLES {
        let changes: Vec<_> =
            names.iter().map(|key| (table, key.as_bytes(), Some(filler.as_slice()))).collect();
        commit("write", &*database, &mut model, &changes)?;
    }

    let taken = ok("disk_bytes", database.disk_bytes())?;
    let entries = (TABLES.len() * names.len()) as u64;
    holds("disk_bytes", entries <= taken, "some bytes for each entry", taken)?;
    let before = model.clone();
    let reader = ok("make a reader", database.reader())?;

    // Nine in ten keys go, so that a compaction has something to give back.
    for table in TABLES {
        let gone = names.iter().filter(|name| !name.ends_with('0'));
        let changes: Vec<_> = gone.map(|key| (table, key.as_bytes(), None)).collect();
        commit("remove", &*database, &mut model, &changes)?;
    }

    // A reader may stand in its way.
    match database.compact() {
        Err(Error::Unsupported { .. } | Error::Busy { .. }) => {}
        compacted => ok("compact beside a reader", compacted)?,
    }

    before.check("a snapshot from before the compaction", &*reader)?;
    drop(reader);
    model.check_present("the present after a compaction beside a reader", &*database)?;

    match database.compact() {
        Err(Error::Unsupported { .. }) => {}
        compacted => ok("compact", compacted)?,
    }

    model.check_present("after a compaction", &*database)?;
    commit("write", &*database, &mut model, &[(Table::Main, b"key", Some(b"value"))])?;
    model.check_present("a commit after a compaction", &*database)
}

fn closed<T>(step: &str, result: Result<T>) -> Outcome {
    refused(step, result, "a failure, as it is closed", |_| true)
}

/// A closed database refuses; a reader from before refuses too, or answers as before.
pub(super) fn closing(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let receipt =
        commit("write", &*database, &mut model, &[(Table::Main, b"key", Some(b"value"))])?;
    let reader = ok("make a reader", database.reader())?;
    ok("close", database.close())?;
    closed("make a reader", database.reader())?;
    closed("make a writer", database.writer())?;
    closed("settle", database.settle(receipt))?;
    closed("sync", database.sync())?;
    closed("disk_bytes", database.disk_bytes())?;
    closed("compact", database.compact())?;

    // None of these can fail.
    let _ = (database.counts(), database.settings(), database.guarantee(), database.name());
    if let Ok(found) = reader.get(Table::Main, b"key") {
        value("a reader from before", Ok(found), Some(b"value"))?;
    }

    if let Ok(found) = reader.count(Table::Main) {
        same("the count of a reader from before", found, 1)?;
    }

    Ok(())
}

/// A database that is opened again has all commits and nothing else.
pub(super) fn reopening(trial: &mut Trial<'_>) -> Outcome {
    let mut database = trial.fresh()?;

    let mut model = Model::default();
    let mut last: Option<Receipt> = None;
    for number in 0_u8..5 {
        for table in TABLES {
            let key = [number, 1];
            let gone = [number.wrapping_sub(2), 1];
            let changes: [(_, &[u8], _); 3] = [
                (table, &key, Some(&[number; 100][..])),
                (table, b"k", Some(&key)),
                (table, &gone, None),
            ];
            last = Some(commit("write", &*database, &mut model, &changes)?);
        }

        if let Some(last) = last {
            ok("settle", database.settle(last))?;
        }

        let mut writer = ok("make a writer", database.writer())?;
        ok("overwrite", writer.overwrite(Table::Main, b"dropped", b"value"))?;
        drop(writer);
        database = trial.reopen(database, &INDEXES)?;
        model.check_present(format_args!("reopened {} times", number + 1), &*database)?;
    }

    // Without closing it first.
    drop(database);
    let database = ok("reopen what was dropped", trial.subject.reopen(&INDEXES))?;
    model.check_present("reopened after it was dropped", &*database)?;
    let name = database.name();
    let database = trial.reopen(database, &INDEXES)?;

    same("the name of the back-end", database.name(), name)
}

/// Indexes keep their entries by name: when others are added, when their order is another, and when
/// they were left out once.
pub(super) fn indexes_at_reopening(trial: &mut Trial<'_>) -> Outcome {
    let database = ok("open without indexes", trial.subject.fresh(&[]))?;
    put(&*database, Table::Main, b"main")?;
    let database = trial.reopen(database, &["one"])?;
    holds_names(&database, &[])?;
    put(&*database, Table::Index("one"), b"one")?;
    let database = trial.reopen(database, &["two", "one", "an_index"])?;
    holds_names(&database, &["one"])?;
    put(&*database, Table::Index("two"), b"two")?;
    let database = trial.reopen(database, &["one", "two"])?;
    holds_names(&database, &["one", "two"])?;

    let reader = ok("make a reader", database.reader())?;
    refused(
        "count an index that was left out",
        reader.count(Table::Index("an_index")),
        "UnknownIndex",
        |error| matches!(error, Error::UnknownIndex { .. }),
    )?;

    drop(reader);
    let database = trial.reopen(database, &["two"])?;
    holds_names(&database, &["two"])?;
    let database = trial.reopen(database, &["an_index", "two", "one"])?;

    holds_names(&database, &["one", "two"])
}

fn put(database: &dyn Database, table: Table<'_>, name: &[u8]) -> Outcome {
    let mut writer = ok("make a writer", database.writer())?;
    ok(format_args!("put into {table}"), writer.put(table, b"name", name))?;
    ok("commit", writer.commit()).map(|_| ())
}

fn holds_names(database: &Arc<dyn Database>, indexes: &[&str]) -> Outcome {
    let reader = ok("make a reader", database.reader())?;
    value("the main table", reader.get(Table::Main, b"name"), Some(b"main"))?;
    for name in indexes {
        let table = Table::Index(name);
        value(table, reader.get(table, b"name"), Some(name.as_bytes()))?;
        same(format_args!("{table}: count"), ok(table, reader.count(table))?, 1)?;
    }
    Ok(())
}

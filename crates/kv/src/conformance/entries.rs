//! Rules of single entries: effects of changes, answers of reads, limits of sizes.

use crate::database::{
    Database, Error, INDEXES_MAX, KEY_BYTES_MAX, Reader, Table, VALUE_BYTES_MAX, Writer,
};

use super::trial::{
    Model, Outcome, Random, TABLES, Trial, apply, check_table, commit, is_duplicate, is_not_found,
    ok, refused, same, show, value,
};

/// Put, overwrite, delete and remove act on existing and on missing keys as they should.
pub(super) fn changes(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    for round in ["in a new database", "over committed entries"] {
        let mut writer = ok(format_args!("{round}: make a writer"), database.writer())?;
        for table in TABLES {
            change_one(&format!("{round}: {table}"), &mut *writer, table)?;
            model.set(table, b"kept", Some(b"6"));
        }
        ok(format_args!("{round}: commit"), writer.commit())?;
        model.check_present(format_args!("{round}: after the commit"), &*database)?;
    }

    Ok(())
}

/// From nothing, or from key "kept" only, to that key with "6".
fn change_one(step: &str, writer: &mut dyn Writer, table: Table<'static>) -> Outcome {
    // The second round meets what the first one committed.
    let is_new = ok(step, writer.get(table, b"kept"))?.is_none();
    let kept = b"kept".as_slice();
    let key = b"key".as_slice();

    if is_new {
        ok(format_args!("{step}: put kept"), writer.put(table, kept, b"0"))?;
    }

    let duplicate = is_duplicate(table, kept);
    let found = writer.put(table, kept, b"1");
    refused(format_args!("{step}: put kept again"), found, "DuplicateEntry", duplicate)?;
    let expected = if is_new { b"0" } else { b"6" };
    value(format_args!("{step}: after a refused put"), writer.get(table, kept), Some(expected))?;
    ok(format_args!("{step}: overwrite kept"), writer.overwrite(table, kept, b"2"))?;
    value(format_args!("{step}: after overwrite"), writer.get(table, kept), Some(b"2"))?;

    let is_missing = is_not_found(table, key);
    let found = writer.delete(table, key);
    refused(format_args!("{step}: delete an absent key"), found, "NotFound", &is_missing)?;
    same(format_args!("{step}: count after it"), ok(step, writer.count(table))?, 1)?;
    ok(format_args!("{step}: remove an absent key"), writer.remove(table, key))?;
    same(format_args!("{step}: count after it"), ok(step, writer.count(table))?, 1)?;
    ok(format_args!("{step}: overwrite an absent key"), writer.overwrite(table, key, b"3"))?;
    value(format_args!("{step}: after it"), writer.get(table, key), Some(b"3"))?;
    same(format_args!("{step}: count after it"), ok(step, writer.count(table))?, 2)?;
    ok(format_args!("{step}: delete key"), writer.delete(table, key))?;
    value(format_args!("{step}: after delete"), writer.get(table, key), None)?;
    let found = writer.delete(table, key);
    refused(format_args!("{step}: delete key again"), found, "NotFound", &is_missing)?;
    ok(format_args!("{step}: put a deleted key"), writer.put(table, key, b"4"))?;
    ok(format_args!("{step}: remove key"), writer.remove(table, key))?;
    value(format_args!("{step}: after remove"), writer.get(table, key), None)?;

    ok(format_args!("{step}: remove kept"), writer.remove(table, kept))?;
    let found = writer.delete(table, kept);
    let is_missing = is_not_found(table, kept);
    refused(format_args!("{step}: delete a removed key"), found, "NotFound", is_missing)?;
    ok(format_args!("{step}: put a removed key"), writer.put(table, kept, b"5"))?;
    ok(format_args!("{step}: delete kept"), writer.delete(table, kept))?;
    same(format_args!("{step}: count of nothing"), ok(step, writer.count(table))?, 0)?;

    ok(format_args!("{step}: put kept anew"), writer.put(table, kept, b"6"))
}

/// Get, `get_many` and count answer the same of the same entries.
pub(super) fn reads(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    model.check_present("an empty database", &*database)?;
    let keys: [&[u8]; 5] = [b"a", b"b", b"c", b"cc", b"d"];

    for table in TABLES {
        let changes = keys.map(|key| (table, key, Some(key)));
        commit(format_args!("{table}: write"), &*database, &mut model, &changes)?;
    }

    let check = |step: &str, reader: &dyn Reader| {
        for table in TABLES {
            let step = format!("{step}: {table}");
            // Keys in no order, some of them twice and some absent.
            let asked: [&[u8]; 9] = [b"d", b"x", b"a", b"a", b"ccc", b"cc", b"0", b"d", b"d"];
            let found = ok(format_args!("{step}: get_many"), reader.get_many(table, &asked))?;
            same(format_args!("{step}: values of get_many"), found.len(), asked.len())?;
            for (number, (key, found)) in asked.iter().zip(found).enumerate() {
                let expected = keys.contains(key).then_some(*key);
                let step = format!("{step}: get_many, key {number}, {}", show(key));
                value(step, Ok(found), expected)?;
            }
            let none = ok(format_args!("{step}: get_many of none"), reader.get_many(table, &[]))?;
            same(format_args!("{step}: get_many of none"), none.len(), 0)?;
        }

        Ok(())
    };

    check("a reader", &*ok("make a reader", database.reader())?)?;
    check("a writer", &*ok("make a writer", database.writer())?)?;
    model.check_present("all of it", &*database)
}

/// One key is a separate entry in each table.
pub(super) fn tables(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let values: [&[u8]; 3] = [b"main", b"log", b"marks"];

    for (table, value) in TABLES.into_iter().zip(values) {
        let changes = [(table, b"key".as_slice(), Some(value)), (table, value, Some(b"own"))];
        commit(format_args!("write {table}"), &*database, &mut model, &changes)?;
        model.check_present(format_args!("after a change of {table}"), &*database)?;
    }

    for table in TABLES {
        commit("remove", &*database, &mut model, &[(table, b"key", None)])?;
        model.check_present(format_args!("after a removal from {table}"), &*database)?;
    }

    Ok(())
}

/// An index that was not named is unknown, to every call.
pub(super) fn unknown_index(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let table = Table::Index("other");
    let is_unknown = |error: &Error| match error {
        Error::UnknownIndex { name } => name == "other",
        _ => false,
    };

    // Each call must refuse, not only the first one.
    let check = |reader: &dyn Reader| {
        let expected = "UnknownIndex";
        refused("get", reader.get(table, b"k"), expected, is_unknown)?;
        refused("get_many", reader.get_many(table, &[b"k"]), expected, is_unknown)?;
        refused("count", reader.count(table), expected, is_unknown)?;
        refused("cursor", reader.cursor(table).map(|_| ()), expected, is_unknown)
    };

    check(&*ok("make a reader", database.reader())?)?;
    let mut writer = ok("make a writer", database.writer())?;
    check(&*writer)?;
    refused("put", writer.put(table, b"k", b""), "UnknownIndex", is_unknown)?;
    refused("overwrite", writer.overwrite(table, b"k", b""), "UnknownIndex", is_unknown)?;
    refused("delete", writer.delete(table, b"k"), "UnknownIndex", is_unknown)?;
    refused("remove", writer.remove(table, b"k"), "UnknownIndex", is_unknown)?;
    ok("commit", writer.commit())?;

    Model::default().check_present("after it", &*database)
}

/// The greatest number of indexes works; more indexes and invalid names are refused.
pub(super) fn names_of_indexes(trial: &mut Trial<'_>) -> Outcome {
    let longest = "x".repeat(32);
    let mut names: Vec<String> = (1..INDEXES_MAX).map(|number| format!("i_{number}")).collect();
    names.push(longest.clone());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let database = ok("open with as many as there may be", trial.subject.fresh(&names))?;

    let mut writer = ok("make a writer", database.writer())?;
    for name in &names {
        let table = Table::Index(name);
        ok(format_args!("put into {table}"), writer.put(table, b"name", name.as_bytes()))?;
    }

    ok("commit", writer.commit())?;
    let reader = ok("make a reader", database.reader())?;
    for name in &names {
        let table = Table::Index(name);
        value(table, reader.get(table, b"name"), Some(name.as_bytes()))?;
        same(table, ok(table, reader.count(table))?, 1)?;
    }

    drop(reader);
    ok("close", database.close())?;
    drop(database);

    let too_long = format!("{longest}x");
    let many: Vec<&str> = names.iter().copied().chain(["one_more"]).collect();
    let wrong: [&[&str]; 7] =
        [&many, &[""], &["Log"], &["1st"], &["a b"], &["a", "a"], &[too_long.as_str()]];

    for names in wrong {
        let found = trial.subject.fresh(names);
        refused(format_args!("open with {names:?}"), found, "Unsupported", |error| {
            matches!(error, Error::Unsupported { .. })
        })?;
    }

    Ok(())
}

/// Keys of all lengths are kept; a key that is empty or too long is refused, and is nowhere.
pub(super) fn sizes_of_keys(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let bytes: Vec<u8> = (0..KEY_BYTES_MAX).map(|byte| byte as u8).collect();

    for byte in [0, 1, 255] {
        let key = [byte; KEY_BYTES_MAX];
        for length in [1, 2, 127, 128, 254, 255, KEY_BYTES_MAX] {
            for table in TABLES {
                for key in [key.get(..length), bytes.get(..length)].into_iter().flatten() {
                    commit("write", &*database, &mut model, &[(table, key, Some(key))])?;
                }
            }
        }
    }

    model.check_present("keys of all lengths", &*database)?;

    let too_long = [7; KEY_BYTES_MAX + 1];
    let mut writer = ok("make a writer", database.writer())?;
    for key in [&[], too_long.as_slice()] {
        let step = format!("a key of {} bytes", key.len());
        let is_size = |error: &Error| match error {
            Error::Size { what, bytes, .. } => (*what, *bytes) == ("key", key.len()),
            _ => false,
        };

        for table in TABLES {
            refused(format_args!("{step}: put"), writer.put(table, key, b"v"), "Size", is_size)?;
            let found = writer.overwrite(table, key, b"v");
            refused(format_args!("{step}: overwrite"), found, "Size", is_size)?;
            value(format_args!("{step}: get"), writer.get(table, key), None)?;
            ok(format_args!("{step}: remove"), writer.remove(table, key))?;
            let found = writer.delete(table, key);
            let is_missing = is_not_found(table, key);
            refused(format_args!("{step}: delete"), found, "NotFound", is_missing)?;
        }
    }

    model.check("after refused keys", &*writer)?;
    ok("commit", writer.commit())?;
    model.check_present("after a commit without refused keys", &*database)
}

/// Values of all lengths are written, read, replaced and removed; one that is too long is refused.
pub(super) fn sizes_of_values(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut random = trial.random();
    let max = trial.extent.value_bytes_max;
    let mut lengths: Vec<usize> = vec![0];

    // Above 1 MiB only every other power, or the suite would write more than it has to.
    let powers = (0..=20).chain((22..usize::BITS).step_by(2)).map(|power| 1_usize << power);
    for power in powers.take_while(|power| *power < max) {
        lengths.extend([power - 1, power, power + 1]);
    }

    lengths.push(max);
    for (number, length) in lengths.into_iter().enumerate() {
        let bytes = random.bytes(length);
        let table = TABLES.get(number % 3).copied().unwrap_or(Table::Main);
        value_of(&format!("{table}: a value of {length} bytes"), &*database, table, &bytes)?;
    }

    let model = Model::default();
    model.check_present("after all values are removed", &*database)?;

    let too_long = vec![0; VALUE_BYTES_MAX + 1];
    let mut writer = ok("make a writer", database.writer())?;
    let is_size = |error: &Error| match error {
        Error::Size { what, bytes, .. } => (*what, *bytes) == ("value", VALUE_BYTES_MAX + 1),
        _ => false,
    };

    refused("put too long a value", writer.put(Table::Main, b"k", &too_long), "Size", is_size)?;
    let found = writer.overwrite(Table::Main, b"k", &too_long);
    refused("overwrite with too long a value", found, "Size", is_size)?;

    model.check("after too long a value", &*writer)
}

fn value_of(step: &str, database: &dyn Database, table: Table<'static>, bytes: &[u8]) -> Outcome {
    let mut model = Model::default();
    let mut writer = ok(format_args!("{step}: make a writer"), database.writer())?;
    ok(format_args!("{step}: put"), writer.put(table, b"key", bytes))?;
    value(format_args!("{step}: own read"), writer.get(table, b"key"), Some(bytes))?;
    ok(format_args!("{step}: commit"), writer.commit())?;
    model.set(table, b"key", Some(bytes));
    model.check_present(format_args!("{step}: after put"), database)?;
    let before = ok(format_args!("{step}: make a reader"), database.reader())?;
    let mut small = Model::default();
    commit(step, database, &mut small, &[(table, b"key", Some(b"small"))])?;
    small.check_present(format_args!("{step}: after it is replaced"), database)?;
    value(format_args!("{step}: a snapshot of it"), before.get(table, b"key"), Some(bytes))?;
    drop(before);

    // From small to large, the other way than before.
    commit(step, database, &mut small, &[(table, b"key", Some(bytes))])?;
    value(
        format_args!("{step}: after a small one is replaced by it"),
        ok(step, database.reader())?.get(table, b"key"),
        Some(bytes),
    )?;

    commit(step, database, &mut small, &[(table, b"key", None)])?;
    small.check_present(format_args!("{step}: after it is removed"), database)
}

/// A transaction has no largest number of changes.
pub(super) fn large_transactions(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut random = Random(trial.extent.seed);
    let mut model = Model::default();
    let table = Table::Index("log");
    let entries = trial.extent.batch_entries;
    let keys: Vec<Vec<u8>> = (0..entries).map(|_| random.bytes(32)).collect();
    let changes: Vec<_> = keys.iter().map(|key| (table, key.as_slice(), key.get(..20))).collect();
    let step = format!("{entries} entries in one transaction");
    let mut writer = ok("make a writer", database.writer())?;
    apply(&step, &mut *writer, &mut model, &changes)?;
    check_table(&format!("{step}: own reads"), &*writer, table, model.table(table))?;
    ok(format_args!("{step}: commit"), writer.commit())?;
    model.check_present(&step, &*database)?;

    let changes: Vec<_> = keys
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 3 > 0)
        .map(|(number, key)| (table, key.as_slice(), (number % 3 == 1).then_some(b"2".as_slice())))
        .collect();

    let step = format!("{} changes of them in one transaction", changes.len());
    let before = model.clone();
    let mut writer = ok("make a writer", database.writer())?;
    apply(&step, &mut *writer, &mut model, &changes)?;
    drop(writer);
    before.check_present(format_args!("{step}, rolled back"), &*database)?;
    let mut model = before;
    commit(&step, &*database, &mut model, &changes)?;

    model.check_present(&step, &*database)
}

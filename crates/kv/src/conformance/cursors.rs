//! Rules of cursors: the order of keys, seeks, and turning round anywhere, over what is committed
//! and what is not.

use crate::database::{KEY_BYTES_MAX, Reader, Table};

use super::trial::{
    Change, Map, Model, Outcome, Random, TABLES, Trial, apply, commit, entry, ok, show, walk,
};

/// Keys that a wrong order puts elsewhere: prefixes of each other, zeros, bytes above 127, digits.
fn keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = [
        [0].as_slice(),
        &[0, 0],
        &[0, 0, 0],
        &[0, 1],
        &[0, 255],
        &[1],
        b"0012",
        b"10",
        b"12",
        b"9",
        b"A",
        b"a",
        b"a\0",
        b"a\0a",
        b"aa",
        b"ab",
        b"b",
        &[127],
        &[127, 255],
        &[128],
        &[128, 0],
        &[0xC3, 0xA4],
        &[255],
        &[255, 0],
        &[255, 255],
    ]
    .map(<[u8]>::to_vec)
    .to_vec();

    // Keys of the greatest length, and of one byte less.
    for byte in [0, b'a', 255] {
        for length in [KEY_BYTES_MAX - 1, KEY_BYTES_MAX] {
            keys.push(vec![byte; length]);
        }
    }

    keys
}

/// Entries come by the bytes of their keys, the shorter first, in both directions.
pub(super) fn order(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    model.check_present("empty tables", &*database)?;

    for table in TABLES {
        // Not in the order of the keys, and some of them later.
        for keys in keys().rchunks(7) {
            let changes: Vec<Change<'_>> =
                keys.iter().map(|key| (table, key.as_slice(), Some(key.as_slice()))).collect();
            commit(format_args!("{table}: write"), &*database, &mut model, &changes)?;
        }
        model.check_present(format_args!("after a change of {table}"), &*database)?;
    }

    Ok(())
}

/// Seeks a cursor to each key of the map, to each key close to one, and beyond both ends, and goes
/// both ways from there.
fn seek_all(step: &str, reader: &dyn Reader, table: Table<'_>, map: &Map) -> Outcome {
    let mut targets: Vec<Vec<u8>> = vec![vec![], vec![0], vec![255; KEY_BYTES_MAX]];
    // Targets lie at each key, right behind it and right before it.
    for key in map.keys() {
        targets.push(key.clone());
        targets.push([key, [0].as_slice()].concat());
        if let Some((last, rest)) = key.split_last() {
            targets.push(rest.to_vec());
            targets.push([rest, &[last.wrapping_sub(1), 255]].concat());
        }
    }

    let mut cursor = ok(format_args!("{step}: make a cursor"), reader.cursor(table))?;
    for target in targets {
        let step = format!("{step}: seek {}", show(&target));
        let at = |(key, value)| (Vec::as_slice(key), Vec::as_slice(value));
        let after = map.range(target.clone()..).map(at).take(2).collect::<Vec<_>>();
        let before = map.range(..target.clone()).next_back().map(at);
        let first = after.first().copied();
        ok(&step, cursor.seek(&target))?;
        entry(format_args!("{step}: next"), cursor.next(), first)?;

        if first.is_some() {
            entry(format_args!("{step}: next, next"), cursor.next(), after.get(1).copied())?;
            if after.len() > 1 {
                entry(format_args!("{step}: turn"), cursor.prev(), after.get(1).copied())?;
            }
            entry(format_args!("{step}: turn back to it"), cursor.prev(), first)?;
        }

        entry(format_args!("{step}: the one before"), cursor.prev(), before)?;
        entry(format_args!("{step}: turn again"), cursor.next(), before.or(first))?;
        ok(&step, cursor.seek(&target))?;
        entry(format_args!("{step}: prev at once"), cursor.prev(), before)?;
    }

    let last = map.iter().next_back().map(|(key, value)| (key.as_slice(), value.as_slice()));
    let first = map.iter().next().map(|(key, value)| (key.as_slice(), value.as_slice()));
    ok(format_args!("{step}: seek_last"), cursor.seek_last())?;

    // A cursor at the end stays there.
    for _ in 0..2 {
        entry(format_args!("{step}: next after seek_last"), cursor.next(), None)?;
    }

    entry(format_args!("{step}: prev after seek_last"), cursor.prev(), last)?;
    entry(format_args!("{step}: next after that"), cursor.next(), last)?;
    ok(format_args!("{step}: seek_first"), cursor.seek_first())?;

    // A cursor at the beginning stays there.
    for _ in 0..2 {
        entry(format_args!("{step}: prev after seek_first"), cursor.prev(), None)?;
    }

    entry(format_args!("{step}: next after seek_first"), cursor.next(), first)?;
    entry(format_args!("{step}: prev after that"), cursor.prev(), first)
}

/// Reads the entries from a random key on as an iterator, from both ends in random turns.
fn both_ends(
    step: &str,
    reader: &dyn Reader,
    table: Table<'_>,
    map: &Map,
    random: &mut Random,
) -> Outcome {
    for number in 0..4 {
        let step = format!("{step}: iterator {number}");
        // The first iterator begins at the start, the others at any key.
        let from = map.keys().nth(random.below(map.len() + 1)).filter(|_| number > 0);
        let mut cursor = ok(format_args!("{step}: make a cursor"), reader.cursor(table))?;
        if let Some(from) = from {
            ok(format_args!("{step}: seek {}", show(from)), cursor.seek(from))?;
        }

        let mut entries = cursor.into_iter();
        let from = from.cloned().unwrap_or_default();
        let mut expected = map.range(from..).map(|(key, value)| (key.as_slice(), value.as_slice()));
        let mut is_over = false;
        // Either end may give the next entry, and no entry may come twice.
        while !is_over {
            let is_front = random.below(2) == 0;
            let (found, wanted) = if is_front {
                (entries.next(), expected.next())
            } else {
                (entries.next_back(), expected.next_back())
            };
            let end = if is_front { "front" } else { "back" };
            entry(format_args!("{step}: {end}"), found.transpose(), wanted)?;
            is_over = wanted.is_none();
        }
        entry(format_args!("{step}: front after the end"), entries.next().transpose(), None)?;
        entry(format_args!("{step}: back after the end"), entries.next_back().transpose(), None)?;
    }

    Ok(())
}

/// Seeks to keys that are there and to keys that are not, to both ends, and in empty tables.
pub(super) fn seeks(trial: &mut Trial<'_>) -> Outcome {
    let database = trial.fresh()?;
    let mut model = Model::default();
    let mut random = trial.random();
    let keys = keys();

    // In small tables both ends meet, where most mistakes are.
    for count in [0, 1, 2, keys.len()] {
        let changes: Vec<Change<'_>> = keys
            .iter()
            .rev()
            .take(count)
            .flat_map(|key| TABLES.map(|table| (table, key.as_slice(), Some(key.as_slice()))))
            .collect();

        commit("write", &*database, &mut model, &changes)?;
        let reader = ok("make a reader", database.reader())?;

        for table in TABLES {
            let step = format!("{count} entries: {table}");
            let map = model.table(table);
            seek_all(&step, &*reader, table, map)?;
            let mut cursor = ok(&step, reader.cursor(table))?;
            walk(&step, &mut *cursor, map, &mut random, 200)?;
            both_ends(&step, &*reader, table, map, &mut random)?;
        }

        // Two cursors of one reader go their own ways.
        let mut one = ok("make a cursor", reader.cursor(Table::Main))?;
        let mut other = ok("make a cursor", reader.cursor(Table::Main))?;
        ok("seek_last", other.seek_last())?;
        let map = model.table(Table::Main);

        for (first, last) in map.iter().zip(map.iter().rev()) {
            entry("one cursor of two", one.next(), Some((first.0, first.1)))?;
            entry("the other cursor of two", other.prev(), Some((last.0, last.1)))?;
        }
    }

    Ok(())
}

/// A cursor of a writer goes over committed entries with its changes on top, wherever those are.
pub(super) fn of_a_writer(trial: &mut Trial<'_>) -> Outcome {
    let some = |text: &'static str| text.split(' ').filter(|key| !key.is_empty());

    // What is committed; what is removed, then overwritten or inserted, then removed.
    let cases = [
        ("", "", "a b c", ""),
        ("", "", "a b c", "a c"),
        ("", "a b", "a b c", "a b c"),
        ("b d f h", "", "a c e g i", ""),
        ("b d f h", "b d", "", ""),
        ("b d f h", "f h", "", ""),
        ("b d f h", "d f", "", ""),
        ("b d f h", "b d f h", "", ""),
        ("b d f h", "b d f h", "a", ""),
        ("b d f h", "b d f h", "b h", ""),
        ("b d f h", "", "b h d", ""),
        ("b d f h", "b h", "b c", "c"),
        ("b d f h", "d", "a c e d i", "a i"),
        ("b d f h", "b h", "aa bb gg hh", "f"),
        ("b bb bbb", "bb", "bbbb ba", "b"),
    ];

    for (number, (committed, removed, written, gone)) in cases.into_iter().enumerate() {
        let database = trial.fresh()?;
        let mut random = trial.random();
        let mut model = Model::default();
        let step = format!("case {number}");

        let mut changes: Vec<Change<'_>> = Vec::new();
        for table in TABLES {
            changes.extend(some(committed).map(|key| (table, key.as_bytes(), Some(&b"old"[..]))));
        }

        commit(&step, &*database, &mut model, &changes)?;
        let base = model.clone();

        let mut writer = ok(format_args!("{step}: make a writer"), database.writer())?;
        for table in TABLES {
            let mut changes: Vec<Change<'_>> = Vec::new();
            changes.extend(some(removed).map(|key| (table, key.as_bytes(), None)));
            changes.extend(some(written).map(|key| (table, key.as_bytes(), Some(&b"new"[..]))));
            changes.extend(some(gone).map(|key| (table, key.as_bytes(), None)));
            apply(&step, &mut *writer, &mut model, &changes)?;
        }

        model.check(&step, &*writer)?;
        for table in TABLES {
            let step = format!("{step}: {table}");
            seek_all(&step, &*writer, table, model.table(table))?;
            let mut cursor = ok(&step, writer.cursor(table))?;
            walk(&step, &mut *cursor, model.table(table), &mut random, 100)?;
            both_ends(&step, &*writer, table, model.table(table), &mut random)?;
        }

        let reader = ok(format_args!("{step}: make a reader"), database.reader())?;
        seek_all(
            &format!("{step}: a reader beside"),
            &*reader,
            Table::Main,
            base.table(Table::Main),
        )?;

        drop(reader);
        ok(format_args!("{step}: commit"), writer.commit())?;
        let reader = ok(format_args!("{step}: make a reader"), database.reader())?;
        seek_all(&format!("{step}: after it"), &*reader, Table::Main, model.table(Table::Main))?;
        drop(reader);
        ok("close", database.close())?;
    }

    Ok(())
}

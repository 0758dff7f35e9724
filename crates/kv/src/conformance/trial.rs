//! Vocabulary of the rules: calls that return a failure, a model of the tables, random numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use crate::database::{Cursor, Database, Entry, Error, Reader, Receipt, Result, Table, Writer};

use super::{Extent, Failure, Subject};

pub(super) type Outcome<T = ()> = std::result::Result<T, Failure>;
pub(super) type Map = BTreeMap<Vec<u8>, Vec<u8>>;
/// A key of a table and what it is bound to; `None` removes it.
pub(super) type Change<'a> = (Table<'static>, &'a [u8], Option<&'a [u8]>);

pub(super) const INDEXES: [&str; 2] = ["log", "marks"];
pub(super) const TABLES: [Table<'static>; 3] =
    [Table::Main, Table::Index("log"), Table::Index("marks")];

/// Environment of a rule.
pub(super) struct Trial<'a> {
    pub(super) subject: &'a mut dyn Subject,
    pub(super) extent: &'a Extent,
}

impl Trial<'_> {
    /// An empty database with the [`INDEXES`].
    pub(super) fn fresh(&mut self) -> Outcome<Arc<dyn Database>> {
        ok("open a fresh database", self.subject.fresh(&INDEXES))
    }

    /// Closes a database and opens it again.
    pub(super) fn reopen(
        &mut self,
        database: Arc<dyn Database>,
        indexes: &[&str],
    ) -> Outcome<Arc<dyn Database>> {
        ok("close", database.close())?;
        drop(database);
        ok(format_args!("reopen with indexes {indexes:?}"), self.subject.reopen(indexes))
    }

    pub(super) fn random(&self) -> Random {
        Random(self.extent.seed)
    }
}

pub(super) fn failure(
    step: impl Display,
    expected: impl Display,
    found: impl Display,
    source: Option<Box<Error>>,
) -> Failure {
    Failure {
        rule: "",
        step: step.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
        source,
    }
}

/// The result of a call that must succeed.
pub(super) fn ok<T>(step: impl Display, result: Result<T>) -> Outcome<T> {
    result.map_err(|error| failure(step, "success", error.to_string(), Some(Box::new(error))))
}

pub(super) fn same<T: PartialEq + Debug + Copy>(
    step: impl Display,
    found: T,
    expected: T,
) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(failure(step, format_args!("{expected:?}"), format_args!("{found:?}"), None))
}

pub(super) fn holds(
    step: impl Display,
    condition: bool,
    expected: impl Display,
    found: impl Display,
) -> Outcome {
    if condition { Ok(()) } else { Err(failure(step, expected, found, None)) }
}

/// A call that must fail in a certain way.
pub(super) fn refused<T>(
    step: impl Display,
    result: Result<T>,
    expected: &str,
    is_expected: impl Fn(&Error) -> bool,
) -> Outcome {
    match result {
        Ok(_) => Err(failure(step, expected, "success", None)),
        Err(error) if is_expected(&error) => Ok(()),
        Err(error) => Err(failure(step, expected, error.to_string(), Some(Box::new(error)))),
    }
}

pub(super) fn is_duplicate(table: Table<'_>, key: &[u8]) -> impl Fn(&Error) -> bool {
    let wanted = (table.to_string(), key.to_vec());
    move |error| match error {
        Error::DuplicateEntry { table, key } => (table, key) == (&wanted.0, &wanted.1),
        _ => false,
    }
}

pub(super) fn is_not_found(table: Table<'_>, key: &[u8]) -> impl Fn(&Error) -> bool {
    let wanted = (table.to_string(), key.to_vec());
    move |error| match error {
        Error::NotFound { table, key } => (table, key) == (&wanted.0, &wanted.1),
        _ => false,
    }
}

/// Bytes for a reader of a failure: all of a few, the first of many.
pub(super) struct Shown<'a>(&'a [u8]);

pub(super) fn show(bytes: &[u8]) -> Shown<'_> {
    Shown(bytes)
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Long bytes would hide the rest of a message.
        const FEW: usize = 20;
        if self.0.is_empty() {
            return f.write_str("no bytes");
        }
        for byte in self.0.iter().take(FEW) {
            write!(f, "{byte:02x}")?;
        }
        if self.0.len() > FEW {
            write!(f, ".. of {} bytes", self.0.len())?;
        }
        Ok(())
    }
}

fn show_value(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| show(value).to_string())
}

fn show_entry(entry: Option<(&[u8], &[u8])>) -> String {
    match entry {
        Some((key, value)) => format!("key {} with {}", show(key), show(value)),
        None => "no entry".to_owned(),
    }
}

/// A value that was read must be this one.
pub(super) fn value(
    step: impl Display,
    found: Result<Option<Vec<u8>>>,
    expected: Option<&[u8]>,
) -> Outcome {
    let found = ok(&step, found)?;
    let found = found.as_deref();
    if found == expected {
        return Ok(());
    }
    Err(failure(step, show_value(expected), show_value(found), None))
}

/// Checks the entry that a cursor stepped over.
pub(super) fn entry(
    step: impl Display,
    found: Result<Option<Entry>>,
    expected: Option<(&[u8], &[u8])>,
) -> Outcome {
    let found = ok(&step, found)?;
    let found = found.as_ref().map(|(key, value)| (key.as_slice(), value.as_slice()));
    if found == expected {
        return Ok(());
    }
    Err(failure(step, show_entry(expected), show_entry(found), None))
}

/// Expected content of the tables.
#[derive(Clone, Default)]
pub(super) struct Model([Map; 3]);

impl Model {
    pub(super) fn table(&self, table: Table<'_>) -> &Map {
        let [main, log, marks] = &self.0;
        match table {
            Table::Main => main,
            Table::Index("log") => log,
            Table::Index(_) => marks,
        }
    }

    pub(super) fn table_mut(&mut self, table: Table<'_>) -> &mut Map {
        let [main, log, marks] = &mut self.0;
        match table {
            Table::Main => main,
            Table::Index("log") => log,
            Table::Index(_) => marks,
        }
    }

    pub(super) fn set(&mut self, table: Table<'_>, key: &[u8], value: Option<&[u8]>) {
        match value {
            Some(value) => self.table_mut(table).insert(key.to_vec(), value.to_vec()),
            None => self.table_mut(table).remove(key),
        };
    }

    /// Checks that a reader sees this and nothing else, in every way of reading.
    pub(super) fn check(&self, step: impl Display, reader: &dyn Reader) -> Outcome {
        for table in TABLES {
            let step = format!("{step}: {table}");
            check_table(&step, reader, table, self.table(table))?;
        }
        Ok(())
    }

    /// Checks what a new reader sees.
    pub(super) fn check_present(&self, step: impl Display, database: &dyn Database) -> Outcome {
        let reader = ok(format_args!("{step}: make a reader"), database.reader())?;
        self.check(step, &*reader)
    }
}

pub(super) fn check_table(step: &str, reader: &dyn Reader, table: Table<'_>, map: &Map) -> Outcome {
    let count = ok(format_args!("{step}: count"), reader.count(table))?;
    same(format_args!("{step}: count"), count, map.len() as u64)?;
    let keys: Vec<&[u8]> = map.keys().map(Vec::as_slice).collect();
    let values = ok(format_args!("{step}: get_many"), reader.get_many(table, &keys))?;
    same(format_args!("{step}: values of get_many"), values.len(), keys.len())?;

    for ((key, expected), found) in map.iter().zip(values) {
        value(format_args!("{step}: get_many, key {}", show(key)), Ok(found), Some(expected))?;
        let found = reader.get(table, key);
        value(format_args!("{step}: get {}", show(key)), found, Some(expected))?;
        // The next possible key is the easiest to confuse with this one.
        let neighbour = [key, [0].as_slice()].concat();
        if !map.contains_key(&neighbour) {
            let found = reader.get(table, &neighbour);
            value(format_args!("{step}: get {}", show(&neighbour)), found, None)?;
        }
    }

    // A cursor goes over the table in both directions, and stays at either end.
    let mut cursor = ok(format_args!("{step}: make a cursor"), reader.cursor(table))?;
    for (key, value) in map {
        entry(format_args!("{step}: next"), cursor.next(), Some((key, value)))?;
    }

    entry(format_args!("{step}: next at the end"), cursor.next(), None)?;
    for (key, value) in map.iter().rev() {
        entry(format_args!("{step}: prev"), cursor.prev(), Some((key, value)))?;
    }

    entry(format_args!("{step}: prev at the beginning"), cursor.prev(), None)
}

/// Makes changes in a transaction and in the model.
pub(super) fn apply(
    step: impl Display,
    writer: &mut dyn Writer,
    model: &mut Model,
    changes: &[Change<'_>],
) -> Outcome {
    for &(table, key, value) in changes {
        // The model changes first: a call that fails ends the trial.
        model.set(table, key, value);
        let changed = match value {
            Some(value) => writer.overwrite(table, key, value),
            None => writer.remove(table, key),
        };
        let call = if value.is_some() { "overwrite" } else { "remove" };
        ok(format_args!("{step}: {table}: {call} {}", show(key)), changed)?;
    }
    Ok(())
}

/// Makes and commits changes.
pub(super) fn commit(
    step: impl Display,
    database: &dyn Database,
    model: &mut Model,
    changes: &[Change<'_>],
) -> Outcome<Receipt> {
    let mut writer = ok(format_args!("{step}: make a writer"), database.writer())?;
    apply(&step, &mut *writer, model, changes)?;
    ok(format_args!("{step}: commit"), writer.commit())
}

/// Takes a cursor that stands before the first entry hither and thither.
pub(super) fn walk(
    step: impl Display,
    cursor: &mut dyn Cursor,
    map: &Map,
    random: &mut Random,
    steps: usize,
) -> Outcome {
    let entries: Vec<(&[u8], &[u8])> =
        map.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();

    // `at` is the number of the entry behind the gap of the cursor.
    let mut at = 0;
    for number in 0..steps {
        match random.below(10) {
            0 => {
                ok(format_args!("{step}: seek_first"), cursor.seek_first())?;
                at = 0;
            }
            1 => {
                ok(format_args!("{step}: seek_last"), cursor.seek_last())?;
                at = entries.len();
            }
            2 | 3 => {
                // Keys near those of the table are the ones that cursors get wrong.
                let known = entries.get(random.below(entries.len().max(1)));
                let mut key = known.map_or_else(|| random.bytes(3), |(key, _)| key.to_vec());
                match random.below(4) {
                    0 => key.push(0),
                    1 => key.truncate(key.len() / 2),
                    2 => key.push(255),
                    _ => {}
                }
                ok(format_args!("{step}: seek {}", show(&key)), cursor.seek(&key))?;
                at = entries.partition_point(|(before, _)| *before < key.as_slice());
            }
            4..7 => {
                let expected = entries.get(at).copied();
                entry(format_args!("{step}: step {number}: next"), cursor.next(), expected)?;
                at += usize::from(expected.is_some());
            }
            _ => {
                let expected = at.checked_sub(1).and_then(|before| entries.get(before)).copied();
                entry(format_args!("{step}: step {number}: prev"), cursor.prev(), expected)?;
                at -= usize::from(expected.is_some());
            }
        }
    }

    Ok(())
}

/// Random numbers that follow from a seed: `SplitMix64`.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        // SplitMix64: small, and the same on every machine.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

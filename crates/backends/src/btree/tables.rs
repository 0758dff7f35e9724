//! Directory of the tables in an index: a row for each table, with its number and its entries.

use terrane_btree::{Index, Update};
use terrane_kv::{Error, Result};

use super::options::{NAME, broken, error};
use super::row::{self, INDEX_MAX, MAIN, NAMES, ROWS_VERSION};

/// The key of the row of each table, and its number.
pub(super) type Tables = Vec<(Vec<u8>, u8)>;

/// The names of the main table and of the tables of these indexes.
pub(super) fn names_of(indexes: &[&str]) -> impl Iterator<Item = String> {
    std::iter::once("main".to_owned()).chain(indexes.iter().map(|name| format!("index-{name}")))
}

/// Reads the keys and numbers of all tables; `None` if the index holds no tables.
pub(super) fn stored_tables(mut rows: terrane_btree::Cursor) -> Result<Option<Tables>> {
    let failed = |failure| error("open", failure);
    match rows.next_ref().map_err(failed)? {
        Some((key, value)) if key == row::name_key("") => {
            if value != [ROWS_VERSION] {
                let what = format!("rows of version {value:02x?}; this program reads 1");
                return Err(broken(what));
            }
        }
        _ => return Ok(None),
    }

    let mut known = Tables::new();
    while let Some((key, value)) = rows.next_ref().map_err(failed)? {
        let Some((number, _)) = row::read_name(value) else {
            return Err(broken(format!("row {key:02x?} of a table")));
        };
        known.push((key.to_vec(), number));
    }

    Ok(Some(known))
}

/// Finds the rows of the main table and of these indexes; creates missing ones durably.
pub(super) fn open_tables(index: &Index, indexes: &[&str]) -> Result<Vec<(Vec<u8>, u8)>> {
    let failed = |failure| error("open", failure);
    let mut known = match stored_tables(index.range([NAMES]..[MAIN]).map_err(failed)?)? {
        Some(known) => known,
        None if index.is_empty().map_err(failed)? => Vec::new(),
        None => return Err(broken("the index is not one of tables".to_owned())),
    };

    let mut made = vec![(row::name_key(""), vec![ROWS_VERSION])];
    let mut tables = Vec::new();
    for name in names_of(indexes) {
        let key = row::name_key(&name);
        let number = match known.iter().find(|(known, _)| *known == key) {
            Some((_, number)) => *number,
            None => {
                let is_free = |number: &u8| known.iter().all(|(_, known)| known != number);
                // The first table of a database is the main one, whose number is fixed.
                let numbers = if known.is_empty() { MAIN..=MAIN } else { MAIN + 1..=INDEX_MAX };
                let Some(number) = numbers.into_iter().find(is_free) else {
                    let why = "the database has 253 indexes; use one of them".to_owned();
                    return Err(Error::Unsupported { back_end: NAME, option: name, why });
                };
                known.push((key.clone(), number));
                made.push((key.clone(), row::name_value(number, 0)));
                number
            }
        };

        tables.push((key, number));
    }

    if made.len() > 1 {
        let updates: Vec<_> = made.iter().map(|(key, value)| Update::Replace(key, value)).collect();
        let position = index.commit(&updates).map_err(failed)?;
        index.sync_to(position).map_err(failed)?;
    }

    Ok(tables)
}

/// Number of entries in the row of a table.
pub(super) fn entries_of(key: &[u8], value: Option<&[u8]>) -> Result<u64> {
    let entries = value.and_then(row::read_name).map(|(_, entries)| entries);
    entries.ok_or_else(|| broken(format!("row {key:02x?} of a table")))
}

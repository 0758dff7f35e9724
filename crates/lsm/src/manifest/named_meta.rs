//! A named table in a manifest: its number, its name, whose index it is, and the state of its runs.
//!
//! Invariants: a list of tables is ascending by number, and a name is in it once. An index stands
//! in a list with its source, which is no index itself.

use terrane_io::bytes::{Reader, Writer};

use crate::manifest::snapshot_meta::{self, Refused, SnapshotMeta};

/// A named table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedMeta {
    /// Never used again, also after the table was dropped.
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Whose index the table is; `None` for an ordinary table.
    pub(crate) derived: Option<Derived>,
    pub(crate) meta: SnapshotMeta,
}

/// Source of an index: each commit to the source changes the index, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Derived {
    /// The number of the table that the index is derived from.
    pub(crate) source: u64,
    /// Version of the function that made all entries of the index; 0 if the index must be made
    /// anew.
    pub(crate) version: u32,
}

/// Form of the lists of tables in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListForm {
    /// Tables only.
    Plain,
    /// Each table says whose index it is.
    WithIndexes,
}

impl NamedMeta {
    /// Whether both are the same table under the same name.
    pub(crate) fn is_same_table(&self, other: &Self) -> bool {
        (self.id, &self.name) == (other.id, &other.name)
    }
}

pub(crate) fn put_tables(out: &mut Writer, tables: &[NamedMeta], form: ListForm) {
    debug_assert!(u32::try_from(tables.len()).is_ok(), "tables are counted by u32");
    out.u32(tables.len() as u32);
    for table in tables {
        out.u64(table.id).string(table.name.as_bytes());
        match (form, table.derived) {
            (ListForm::WithIndexes, Some(Derived { source, version })) => {
                out.u8(1).u64(source).u32(version);
            }
            (ListForm::WithIndexes, None) => {
                out.u8(0);
            }
            (ListForm::Plain, derived) => {
                debug_assert!(derived.is_none(), "a plain list has no indexes");
            }
        }
        out.string(&table.meta.encode());
    }
}

pub(crate) fn take_name(input: &mut Reader<'_>) -> std::result::Result<String, Refused> {
    match std::str::from_utf8(input.string()?) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => snapshot_meta::damaged("a name is not UTF-8"),
    }
}

fn take_derived(
    input: &mut Reader<'_>,
    form: ListForm,
) -> std::result::Result<Option<Derived>, Refused> {
    if form == ListForm::Plain {
        return Ok(None);
    }
    match input.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Derived { source: input.u64()?, version: input.u32()? })),
        _ => snapshot_meta::damaged("unknown kind of table"),
    }
}

pub(crate) fn take_tables(
    input: &mut Reader<'_>,
    next_table: u64,
    form: ListForm,
) -> std::result::Result<Vec<NamedMeta>, Refused> {
    let mut tables: Vec<NamedMeta> = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.u64()?;
        let name = take_name(input)?;
        let derived = take_derived(input, form)?;
        let meta = SnapshotMeta::decode(input.string()?)?;
        if id >= next_table || tables.last().is_some_and(|last| last.id >= id) {
            return snapshot_meta::damaged("numbers of tables out of order");
        }
        if tables.iter().any(|table| table.name == name) {
            return snapshot_meta::damaged("two tables of one name");
        }
        tables.push(NamedMeta { id, name, derived, meta });
    }

    Ok(tables)
}

/// Refuses a list in which an index stands without its source.
pub(crate) fn check_indexes(tables: &[NamedMeta]) -> std::result::Result<(), Refused> {
    for Derived { source, .. } in tables.iter().filter_map(|table| table.derived) {
        let found = tables.iter().find(|table| table.id == source);
        if found.is_none_or(|source| source.derived.is_some()) {
            return snapshot_meta::damaged("an index of no table");
        }
    }
    Ok(())
}

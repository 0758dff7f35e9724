//! A named table in a manifest: its number, its name, and the state of its runs.
//!
//! Invariant: a list of tables is ascending by number, and a name is in it once.

use terrane_io::bytes::{Reader, Writer};

use crate::manifest::snapshot_meta::{self, Refused, SnapshotMeta};

/// A named table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedMeta {
    /// Never used again, also after the table was dropped.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) meta: SnapshotMeta,
}

impl NamedMeta {
    /// Whether both are the same table under the same name.
    pub(crate) fn is_same_table(&self, other: &Self) -> bool {
        (self.id, &self.name) == (other.id, &other.name)
    }
}

pub(crate) fn put_tables(out: &mut Writer, tables: &[NamedMeta]) {
    debug_assert!(u32::try_from(tables.len()).is_ok(), "tables are counted by u32");
    out.u32(tables.len() as u32);
    for table in tables {
        out.u64(table.id).string(table.name.as_bytes()).string(&table.meta.encode());
    }
}

pub(crate) fn take_name(input: &mut Reader<'_>) -> std::result::Result<String, Refused> {
    match std::str::from_utf8(input.string()?) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => snapshot_meta::damaged("a name is not UTF-8"),
    }
}

pub(crate) fn take_tables(
    input: &mut Reader<'_>,
    next_table: u64,
) -> std::result::Result<Vec<NamedMeta>, Refused> {
    let mut tables: Vec<NamedMeta> = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.u64()?;
        let name = take_name(input)?;
        let meta = SnapshotMeta::decode(input.string()?)?;
        if id >= next_table || tables.last().is_some_and(|last| last.id >= id) {
            return snapshot_meta::damaged("numbers of tables out of order");
        }
        if tables.iter().any(|table| table.name == name) {
            return snapshot_meta::damaged("two tables of one name");
        }
        tables.push(NamedMeta { id, name, meta });
    }

    Ok(tables)
}

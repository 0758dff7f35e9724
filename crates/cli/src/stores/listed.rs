//! Rows of tables, versions and snapshots in lists, and sums over their runs.

use serde::Serialize;
use terrane::lsm::inspect::{NamedTableInfo, SnapshotInfo};
use terrane::lsm::{PAGE_SIZE, VersionInfo, WriteBuffer};

use crate::ui::output::bytes;
use crate::ui::text::{count_of, grouped, table};

/// Sums over the runs of a snapshot.
#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) runs: u64,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) bytes: u64,
    pub(crate) merge_debt_bytes: u64,
}

impl Sums {
    pub(crate) fn of(info: &SnapshotInfo) -> Self {
        let merge_debt_bytes = info.merge_debt_pages() * PAGE_SIZE as u64;
        let mut sums = Self { merge_debt_bytes, ..Self::default() };
        for run in info.buffer.iter().chain(info.level_runs()) {
            sums.runs += 1;
            sums.entries = sums.entries.saturating_add(run.meta.entries);
            sums.tombstones = sums.tombstones.saturating_add(run.meta.deletes);
            sums.bytes = sums.bytes.saturating_add(run.bytes);
        }
        sums
    }
}

/// Row of a named table in the lists of `terrane table` and `terrane inspect`.
#[derive(Serialize)]
pub(crate) struct ListedTable {
    id: u64,
    name: String,
    /// The table whose index it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_of: Option<String>,
    resolve: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_bytes: Option<u64>,
    memory_budget_bytes: Option<u64>,
    compression: String,
    runs: Option<u64>,
    /// Entries of all runs; older entries of a key and tombstones count too.
    stored_entries: Option<u64>,
    tombstones: Option<u64>,
    bytes: Option<u64>,
    merge_debt_bytes: Option<u64>,
}

impl ListedTable {
    /// Returns the row of a table; adds its damage to `damage`.
    pub(crate) fn new(info: &NamedTableInfo, damage: &mut Vec<String>) -> Self {
        let (write_buffer_entries, write_buffer_bytes) = match info.config.effective_write_buffer()
        {
            WriteBuffer::Entries(entries) => (Some(entries), None),
            WriteBuffer::Bytes(bytes) => (None, Some(bytes)),
            _ => (None, None),
        };

        let sums = match &info.shape {
            Ok(shape) => Some(Sums::of(shape)),
            Err(reason) => {
                damage.push(reason.clone());
                None
            }
        };

        let sum = |field: fn(&Sums) -> u64| sums.as_ref().map(field);

        Self {
            id: info.id,
            name: info.name.clone(),
            index_of: info.index_of.as_ref().map(|source| source.table.clone()),
            resolve: info.resolve.clone(),
            write_buffer_entries,
            write_buffer_bytes,
            memory_budget_bytes: info.config.memory_budget,
            compression: info.config.compression.to_string(),
            runs: sum(|sums| sums.runs),
            stored_entries: sum(|sums| sums.entries),
            tombstones: sum(|sums| sums.tombstones),
            bytes: sum(|sums| sums.bytes),
            merge_debt_bytes: sum(|sums| sums.merge_debt_bytes),
        }
    }

    fn row(&self) -> Vec<String> {
        let number = |number: Option<u64>| number.map_or_else(|| "damaged".to_owned(), grouped);
        let size = |size: Option<u64>| size.map(bytes).unwrap_or_default();
        let buffer = match (self.write_buffer_entries, self.write_buffer_bytes) {
            (Some(entries), _) => count_of(entries, "entry", "entries"),
            (None, size) => size.map(bytes).unwrap_or_default(),
        };

        let name = match &self.index_of {
            Some(table) => format!("{} (index of {table})", self.name),
            None => self.name.clone(),
        };
        vec![
            name,
            self.resolve.clone(),
            self.id.to_string(),
            buffer,
            number(self.runs),
            self.stored_entries.map(grouped).unwrap_or_default(),
            self.tombstones.map(grouped).unwrap_or_default(),
            size(self.bytes),
            size(self.merge_debt_bytes),
        ]
    }

    /// Returns the rows as a table for people.
    pub(crate) fn text(tables: &[Self]) -> String {
        let names = [
            "TABLE",
            "RESOLVE",
            "ID",
            "WRITE BUFFER",
            "RUNS",
            "STORED ENTRIES",
            "OF THEM TOMBSTONES",
            "BYTES",
            "MERGE DEBT",
        ];

        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(tables.iter().map(Self::row));

        table(2, &rows)
    }
}

/// Row of a retained version in the lists of `terrane version` and `terrane inspect`.
#[derive(Serialize)]
pub(crate) struct ListedVersion {
    number: u64,
    name: Option<String>,
    tables: Vec<String>,
}

impl ListedVersion {
    pub(crate) fn new(info: &VersionInfo) -> Self {
        Self {
            number: info.number,
            name: info.name.as_ref().map(ToString::to_string),
            tables: info.tables.iter().map(ToString::to_string).collect(),
        }
    }

    /// Returns the rows as a table for people.
    pub(crate) fn text(versions: &[Self]) -> String {
        let mut rows = vec![["VERSION", "NAME", "TABLES"].map(str::to_owned).to_vec()];
        for Self { number, name, tables } in versions {
            let name = name.clone().unwrap_or_default();
            rows.push(vec![number.to_string(), name, tables.join(", ")]);
        }
        table(3, &rows)
    }
}

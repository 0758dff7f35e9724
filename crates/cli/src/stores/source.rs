//! Source of entries for `terrane get`, `scan` and `count`: a named table of a store, or a B+tree,
//! whose entries have no blobs.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrane::btree::{self, IndexReader};
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{
    BlobRef, Cursor, Lookup, Record, Session, SnapshotName, StoreReader, Table, TableName,
};

use crate::stores::bucket;
use crate::stores::index_path::{IndexPath, config_of};
use crate::stores::open::open_to_read_within;
use crate::stores::version_ref::VersionRef;
use crate::ui::exit::Failure;

/// Default name of the table.
pub(crate) const MAIN_TABLE: &str = "main";

/// Point in time at which a table is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point<'a> {
    /// The last commit.
    Now,
    /// A retained version of the table.
    Version(&'a VersionRef),
    /// A snapshot, which has a table of its own.
    Snapshot(&'a SnapshotName),
}

/// Table or B+tree, opened for reading. Another process may write to it.
pub(crate) enum Source {
    Table(StoreReader, Arc<Table>),
    Index(IndexReader),
}

/// Value of a key, and its blob.
pub(crate) struct StoredValue {
    pub(crate) value: Vec<u8>,
    pub(crate) blob: Option<Vec<u8>>,
}

/// Range of keys: between two bounds, or all with a prefix.
pub(crate) enum KeyRange {
    Prefix(Vec<u8>),
    Between(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

/// Iterator over the entries of a range, in either direction.
pub(crate) enum Entries<'a> {
    Table { session: &'a Session, cursor: Cursor, reverse: bool },
    Index(btree::Cursor),
}

impl StoredValue {
    /// Returns the fields of a line after the key.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        [self.value.as_slice()].into_iter().chain(self.blob.as_deref())
    }
}

impl Source {
    /// Opens the B+tree in a directory, or the table of this name of the store there: as it is now,
    /// as of a version, or the table of a snapshot.
    ///
    /// # Errors
    /// [`Failure`], also if a B+tree is asked for what only stores have.
    pub(crate) fn open(dir: &Path, table: &TableName, point: Point<'_>) -> Result<Self, Failure> {
        Self::open_within(dir, table, point, None)
    }

    /// Opens like [`open`](Self::open); a store keeps to the memory budget.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub(crate) fn open_within(
        dir: &Path,
        table: &TableName,
        point: Point<'_>,
        memory_budget: Option<u64>,
    ) -> Result<Self, Failure> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        if bucket::address(dir).is_none() && IndexPath::of(&disk, dir)? == Some(IndexPath::Dir) {
            if table.as_str() != MAIN_TABLE || !matches!(point, Point::Now) {
                let dir = dir.display();
                let message = format!("{dir} is a B+tree: no tables, no versions, no snapshots");
                return Err(Failure::usage(message));
            }
            let config = config_of(&disk, dir)?;
            return Ok(Self::Index(IndexReader::open(disk, dir, &config)?));
        }

        let reader = open_to_read_within(dir, memory_budget)?;
        let table = match point {
            Point::Now => {
                reader.table(table).map_err(|error| missing_table(dir, &reader, error))?
            }
            Point::Version(version) => version.open(&reader)?.table(table)?,
            Point::Snapshot(name) => Arc::new(open_snapshot(&reader, name)?),
        };

        Ok(Self::Table(reader, table))
    }

    /// Returns the values of keys, in the order of the keys.
    pub(crate) fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<StoredValue>>, Failure> {
        match self {
            Self::Table(reader, table) => {
                let found = table.get_many(keys)?;
                let blobs = blobs(reader.session(), found.iter().map(Lookup::blob))?;
                let entry = |(found, blob): (&Lookup, _)| {
                    found.value().map(|value| StoredValue { value: value.to_vec(), blob })
                };
                Ok(found.iter().zip(blobs).map(entry).collect())
            }
            Self::Index(reader) => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = reader.find_many(&keys)?.into_iter();
                Ok(found
                    .map(|value| value.map(|value| StoredValue { value, blob: None }))
                    .collect())
            }
        }
    }

    /// Returns the entries of a range, from its end if `reverse`.
    pub(crate) fn entries(&self, range: KeyRange, reverse: bool) -> Result<Entries<'_>, Failure> {
        Ok(match self {
            Self::Table(reader, table) => {
                let mut cursor = range.cursor(table)?;
                if reverse {
                    cursor.seek_to_end();
                }
                Entries::Table { session: reader.session(), cursor, reverse }
            }
            Self::Index(reader) => {
                let bounds = range.bounds();
                Entries::Index(if reverse {
                    reader.range_back::<Vec<u8>>(bounds)?
                } else {
                    reader.range::<Vec<u8>>(bounds)?
                })
            }
        })
    }

    /// Returns the number of entries in a range. Reads all of them.
    pub(crate) fn count(&self, range: KeyRange) -> Result<u64, Failure> {
        let mut count = 0;
        match self {
            Self::Table(_, table) => {
                let mut cursor = range.cursor(table)?;
                while cursor.next_ref()?.is_some() {
                    count += 1;
                }
            }
            Self::Index(reader) => {
                let mut cursor = reader.range::<Vec<u8>>(range.bounds())?;
                while cursor.next_ref()?.is_some() {
                    count += 1;
                }
            }
        }

        Ok(count)
    }

    /// Returns the name of the table for JSON; an index has none.
    pub(crate) fn name<'a>(&self, table: &'a TableName) -> Option<&'a str> {
        matches!(self, Self::Table(..)).then(|| table.as_str())
    }
}

/// Opens a snapshot, whatever its label. Labels keep programs apart that share a store; a person
/// who names a snapshot means this one.
///
/// # Errors
/// [`Failure`].
pub(crate) fn open_snapshot(reader: &StoreReader, name: &SnapshotName) -> Result<Table, Failure> {
    let session = reader.session();
    let label = session.snapshot_info(name)?.label;
    Ok(session.open_snapshot(name, &label)?)
}

/// Returns the failure of a table that cannot be opened. If the store has only snapshots, the
/// message ends with a command that reads one.
fn missing_table(dir: &Path, reader: &StoreReader, error: terrane::lsm::Error) -> Failure {
    let is_missing = matches!(error, terrane::lsm::Error::TableDoesNotExist { .. });
    let has_no_table = reader.tables().is_empty();
    let failure = Failure::from(error);
    let snapshots = reader.session().list_snapshots().unwrap_or_default();
    match snapshots.last() {
        Some(name) if is_missing && has_no_table => {
            let dir = dir.display();
            failure.with_note(&format!("next: terrane scan --snapshot {name} --store {dir}"))
        }
        _ => failure,
    }
}

impl KeyRange {
    fn cursor(self, table: &Table) -> Result<Cursor, Failure> {
        Ok(match self {
            Self::Prefix(prefix) => table.prefix(&prefix)?,
            Self::Between(from, to) => table.range::<Vec<u8>, _>((from, to))?,
        })
    }

    /// Returns the bounds of the range.
    pub(crate) fn bounds(self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        match self {
            Self::Between(from, to) => (from, to),
            Self::Prefix(prefix) => {
                // The next prefix of the same length or shorter: drop all 255s at the end, and add
                // one to the byte before them.
                let kept = prefix.iter().rposition(|byte| *byte < 0xFF).map_or(0, |at| at + 1);
                let mut next = prefix[..kept].to_vec();
                let to = match next.last_mut() {
                    Some(last) => {
                        *last += 1;
                        Bound::Excluded(next)
                    }
                    None => Bound::Unbounded,
                };
                (Bound::Included(prefix), to)
            }
        }
    }
}

impl Entries<'_> {
    /// Returns the next `count` entries, or fewer at the end.
    pub(crate) fn take(&mut self, count: usize) -> Result<Vec<(Vec<u8>, StoredValue)>, Failure> {
        match self {
            Self::Table { session, cursor, reverse } => {
                let records =
                    if *reverse { cursor.prev_many(count)? } else { cursor.next_many(count)? };
                let blobs = blobs(session, records.iter().map(|record| record.blob.as_ref()))?;
                let entry = |(Record { key, value, .. }, blob): (Record, _)| {
                    (key.as_slice().to_vec(), StoredValue { value: value.to_vec(), blob })
                };
                Ok(records.into_iter().zip(blobs).map(entry).collect())
            }
            Self::Index(cursor) => {
                let mut entries = Vec::new();
                while entries.len() < count
                    && let Some((key, value)) = cursor.next_ref()?
                {
                    entries.push((key.to_vec(), StoredValue { value: value.to_vec(), blob: None }));
                }
                Ok(entries)
            }
        }
    }
}

/// Returns the blobs of entries, in their order.
fn blobs<'a>(
    session: &Session,
    refs: impl Iterator<Item = Option<&'a BlobRef>>,
) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let refs: Vec<Option<&BlobRef>> = refs.collect();
    let present: Vec<BlobRef> = refs.iter().flatten().copied().cloned().collect();
    // One call reads all blobs; the answers go back to their entries in order.
    let mut read = session.retrieve_blobs(&present)?.into_iter();
    assert_eq!(read.len(), present.len(), "each blob has an answer");

    Ok(refs.into_iter().map(|blob| blob.and_then(|_| read.next())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one_of_its_kind() {
        let end = |prefix: &[u8]| KeyRange::Prefix(prefix.to_vec()).bounds().1;
        assert_eq!(end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(end(b"a\xFF\xFF"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(end(b"\xFF"), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }
}

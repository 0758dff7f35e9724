//! The keys of a range that one commit is to delete.
//!
//! They are read from a view, while commits go on, and then brought up to date by what differs between that view
//! and the table as it is when they are deleted, so that only this is read while other commits wait.
//!
//! Invariant: the keys come to no more than a record of the log can take, whether the store has a log or not: that
//! bounds the memory, and a range that is too large is refused as soon as so much of it has been read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::entry::Update;
use crate::error::{Error, Result};
use crate::key_range::KeyRange;
use crate::log::{RECORD_BYTES_MAX, UPDATE_BYTES};
use crate::table::Table;

/// The keys of a range at some moment.
#[derive(Debug)]
pub(crate) struct Doomed {
    range: KeyRange,
    /// What the keys are up to date with.
    view: Arc<Table>,
    /// Those of the first view, back to back, ascending, and where each of them ends.
    keys: Vec<u8>,
    ends: Vec<u32>,
    /// What has changed since: keys that came and are not among `keys` (true), and keys of these that went.
    changes: BTreeMap<Vec<u8>, bool>,
    /// What deleting them takes in the log.
    bytes: usize,
    limit: usize,
}

impl Doomed {
    /// Those of a view.
    ///
    /// # Errors
    /// [`Error::CommitTooLarge`]; those of a cursor.
    pub(crate) fn read(view: Arc<Table>, range: KeyRange) -> Result<Self> {
        Self::read_up_to(RECORD_BYTES_MAX, view, range)
    }

    fn read_up_to(limit: usize, view: Arc<Table>, range: KeyRange) -> Result<Self> {
        let mut cursor = view.cursor_over(range.clone())?;
        let (keys, ends, changes) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut doomed = Self { range, view, keys, ends, changes, bytes: 0, limit };
        while let Some(record) = cursor.next_ref()? {
            doomed.add(record.key)?;
            doomed.keys.extend_from_slice(record.key);
            doomed.ends.push(doomed.keys.len() as u32);
        }
        Ok(doomed)
    }

    fn add(&mut self, key: &[u8]) -> Result<()> {
        self.bytes += key.len() + UPDATE_BYTES;
        if self.bytes > self.limit {
            return Err(Error::CommitTooLarge { bytes: self.bytes, limit: self.limit });
        }
        Ok(())
    }

    /// Brings them up to date with a later view, and goes on from there.
    ///
    /// # Errors
    /// As [`catch_up`](Self::catch_up).
    pub(crate) fn catch_up_with(&mut self, view: Arc<Table>) -> Result<()> {
        self.catch_up(&view)?;
        self.view = view;
        Ok(())
    }

    /// Brings them up to date with the table as it is now; once, since the next time would begin with the view again.
    ///
    /// Cost: that of [`Table::diff`].
    ///
    /// # Errors
    /// [`Error::CommitTooLarge`]; those of a diff.
    pub(crate) fn catch_up(&mut self, now: &Table) -> Result<()> {
        let mut diff = self.view.diff(now)?;
        while let Some(change) = diff.next()? {
            let key = change.key;
            let is_new = change.new.is_found();
            let is_outside = self.range.is_below(&key) || self.range.is_above(&key);
            if is_outside || is_new == change.old.is_found() {
                continue;
            }
            if is_new {
                self.add(&key)?;
            } else {
                self.bytes -= key.len() + UPDATE_BYTES;
            }
            // What came and went again, or the other way round, is as it was at first.
            if self.changes.get(&key) == Some(&!is_new) {
                self.changes.remove(&key);
            } else {
                self.changes.insert(key, is_new);
            }
        }
        Ok(())
    }

    /// Their deletions.
    pub(crate) fn deletions(&self) -> Vec<(&[u8], Update<'static>)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let keys = starts.zip(&self.ends).map(|(from, to)| &self.keys[from as usize..*to as usize]);
        let kept = keys.filter(|key| !self.changes.contains_key(*key));
        let new = self.changes.iter().filter(|(_, is_new)| **is_new).map(|(key, _)| key.as_slice());
        kept.chain(new).map(|key| (key, Update::Delete)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::path::Path;

    use terrane_io::{Disk, SimDisk};

    use super::*;
    use crate::config::{TableConfig, WriteBuffer};
    use crate::session::{Session, SessionOptions};

    fn table() -> Table {
        let options = SessionOptions::with_salt(1).create_dir();
        let disk = SimDisk::new(1) as Arc<dyn Disk>;
        let session = Session::open(disk, Path::new("/session"), &options).unwrap();
        let write_buffer = WriteBuffer::Entries(4);
        session.new_table(&TableConfig { write_buffer, ..TableConfig::default() }).unwrap()
    }

    fn keys(doomed: &Doomed) -> Vec<u8> {
        let mut keys: Vec<u8> = doomed.deletions().iter().map(|(key, _)| key[0]).collect();
        keys.sort_unstable();
        keys
    }

    /// Keys 10 to 20 of a table that changes: each key comes and goes in every way, twice.
    #[test]
    fn the_keys_are_those_of_the_table_at_the_last_look() {
        let mut table = table();
        let range = KeyRange { from: Bound::Included(vec![10]), to: Bound::Excluded(vec![20]) };
        for history in 0..8_u8 {
            for key in 8..24 {
                table.delete(&[key]).unwrap();
            }
            let is_there =
                |moment: u8, key: u8| (history.rotate_left(key.into()) >> moment) & 1 == 1;
            let write = |table: &mut Table, moment| {
                for key in 8..24 {
                    if is_there(moment, key) {
                        table.insert(&[key], &[moment]).unwrap();
                    } else {
                        table.delete(&[key]).unwrap();
                    }
                }
                Arc::new(table.duplicate().unwrap())
            };
            let expected =
                |moment| (10..20).filter(|key| is_there(moment, *key)).collect::<Vec<u8>>();
            let mut doomed = Doomed::read(write(&mut table, 0), range.clone()).unwrap();
            assert_eq!(keys(&doomed), expected(0));
            doomed.catch_up_with(write(&mut table, 1)).unwrap();
            assert_eq!(keys(&doomed), expected(1));
            doomed.catch_up(&write(&mut table, 2)).unwrap();
            assert_eq!(keys(&doomed), expected(2));
            assert_eq!(doomed.bytes, expected(2).len() * (1 + UPDATE_BYTES));
        }
    }

    #[test]
    fn more_than_fits_is_refused_before_all_of_it_is_read() {
        let mut table = table();
        for key in 0..100 {
            table.insert(&[key], b"").unwrap();
        }
        let view = Arc::new(table.duplicate().unwrap());
        let limit = 50 * (1 + UPDATE_BYTES);
        let read = |to: u8| {
            let range = KeyRange { from: Bound::Unbounded, to: Bound::Excluded(vec![to]) };
            Doomed::read_up_to(limit, Arc::clone(&view), range)
        };
        let mut doomed = read(50).unwrap();
        assert_eq!(keys(&doomed).len(), 50);
        let too_large = |done: Result<()>, bytes| {
            let expected = (limit + bytes, limit);
            assert!(
                matches!(&done, Err(Error::CommitTooLarge { bytes, limit }) if (*bytes, *limit) == expected),
                "{done:?}"
            );
        };
        // The error tells how far it came: to the first key too many.
        too_large(read(100).map(drop), 1 + UPDATE_BYTES);
        table.insert(&[40, 1], b"").unwrap();
        too_large(doomed.catch_up(&table), 2 + UPDATE_BYTES);
    }
}

//! Execution of reading actions: lookups, ranges, cursors, blobs.

use std::collections::BTreeSet;
use std::ops::Bound;

use terrane_lsm::{Error, Record, Result};
use terrane_testkit::model::Entry;

use super::action::{Action, Slot};
use super::compare::{
    Blobs, agree, check_lookups, excerpt, is_of_disk, match_lookups, match_records, pairs,
};
use super::world::{HeldCursor, KeptRefs, World};

/// A bound of borrowed bytes.
fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Whether an entry is wanted by a `take_while` of this seed.
fn is_wanted(seed: u64, key: &[u8]) -> bool {
    let last = key.last().copied().unwrap_or(0);
    !seed.wrapping_add(u64::from(last)).is_multiple_of(5)
}

/// Tables.
impl World {
    pub(super) fn look_up(&mut self, slot: Slot, seed: u64, len: usize) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let keys = self.swarm.any_keys(seed, len);
        let content = self.forest.content(held.id).unwrap();
        check_lookups(self.session(), &held.table, content, &keys)?;
        Ok(true)
    }

    pub(super) fn member(&mut self, slot: Slot, seed: u64) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let keys = self.swarm.any_keys(seed, 3);
        let found = held.table.contains(&keys)?;
        for (key, is_found) in keys.iter().zip(found) {
            let expected = self.forest.get(held.id, key).unwrap().is_some();
            assert_eq!(is_found, expected, "key {}", excerpt(key));
        }
        assert_eq!(held.table.get(&keys[0])?.is_found(), held.table.contains(&keys[..1])?[0]);
        Ok(true)
    }

    /// Reads a range in pieces of a few sizes, to its end or from its end back.
    pub(super) fn range(&mut self, slot: Slot, seed: u64, is_back: bool) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let (from, to) = self.swarm.bounds(seed);

        let mut expected = self.forest.range(held.id, borrowed(&from), borrowed(&to)).unwrap();
        let mut cursor = held.table.range::<Vec<u8>, _>((from, to))?;
        if is_back {
            expected.reverse();
            cursor.seek_to_end();
        }

        let mut records = Vec::new();
        for count in [1, 0, 7, 500, usize::MAX, 1] {
            records.extend(if is_back {
                cursor.prev_many(count)
            } else {
                cursor.next_many(count)
            }?);
        }
        match_records(&records, pairs(&expected)).check(self.session())?;
        Ok(true)
    }

    pub(super) fn prefix(&mut self, slot: Slot, seed: u64) -> Result<bool> {
        let Some(held) = &self.tables[slot] else { return Ok(false) };
        let prefix = self.swarm.prefix(seed);
        let expected = self.forest.prefix(held.id, &prefix).unwrap();
        let mut cursor = held.table.prefix(&prefix)?;
        let records = cursor.next_many(usize::MAX)?;
        match_records(&records, pairs(&expected)).check(self.session())?;
        Ok(true)
    }
}

/// Two tables.
impl World {
    pub(super) fn diff(&mut self, older: Slot, newer: Slot) -> Result<bool> {
        let (Some(older), Some(newer)) = (&self.tables[older], &self.tables[newer]) else {
            return Ok(false);
        };
        let old_content = self.forest.content(older.id).unwrap();
        let new_content = self.forest.content(newer.id).unwrap();

        let mut keys = Vec::new();
        let mut old = Vec::new();
        let mut new = Vec::new();
        let mut diff = older.table.diff(&newer.table)?;
        loop {
            let change = diff.next();
            if matches!(change, Some(Err(_))) {
                assert!(diff.next().is_none(), "a failed diff goes on");
            }
            let Some(change) = change.transpose()? else { break };
            keys.push(change.key);
            old.push(change.old);
            new.push(change.new);
        }

        let all: BTreeSet<&Vec<u8>> = old_content.keys().chain(new_content.keys()).collect();
        let differ = all.into_iter().filter(|&key| old_content.get(key) != new_content.get(key));
        assert!(keys.iter().eq(differ), "{} keys that differ", keys.len());
        match_lookups(&old, &keys, old_content).check(self.session())?;
        match_lookups(&new, &keys, new_content).check(self.session())?;
        Ok(true)
    }
}

/// Cursors.
impl World {
    pub(super) fn new_cursor(&mut self, table: Slot, to: Slot, seed: u64) -> Result<bool> {
        let version = self.new_version();
        let Some(held) = &self.tables[table] else { return Ok(false) };
        let (from, until) = self.swarm.bounds(seed);
        let got = held.table.range::<Vec<u8>, _>((from.clone(), until.clone()));
        let expected = || self.forest.new_cursor(held.id, borrowed(&from), borrowed(&until));
        let Some((cursor, id)) = agree(got, expected)? else { return Ok(true) };
        self.drop_cursor(to);
        self.cursors[to] = Some(HeldCursor { cursor, id, version });
        Ok(true)
    }

    pub(super) fn new_prefix_cursor(&mut self, table: Slot, to: Slot, seed: u64) -> Result<bool> {
        let version = self.new_version();
        let Some(held) = &self.tables[table] else { return Ok(false) };
        let prefix = self.swarm.prefix(seed);
        let got = held.table.prefix(&prefix);
        let expected = || self.forest.new_prefix_cursor(held.id, &prefix);
        let Some((cursor, id)) = agree(got, expected)? else { return Ok(true) };
        self.drop_cursor(to);
        self.cursors[to] = Some(HeldCursor { cursor, id, version });
        Ok(true)
    }

    /// Moves a cursor and compares what it passes. One that fails says so again, and is given up.
    pub(super) fn move_cursor(&mut self, slot: Slot, action: &Action) -> Result<bool> {
        let Some(mut held) = self.cursors[slot].take() else { return Ok(false) };
        let moved = self.move_both(&mut held, action);
        if moved.is_err() {
            assert!(held.cursor.next_ref().is_err(), "a failed cursor goes on");
            self.forest.close_cursor(held.id);
        } else {
            self.cursors[slot] = Some(held);
        }
        moved?.check(self.session()).map(|()| true)
    }

    fn move_both(&mut self, held: &mut HeldCursor, action: &Action) -> Result<Blobs> {
        let HeldCursor { cursor, id, .. } = held;

        let model = &mut self.forest;
        let key = |seed: u64| self.swarm.any_keys(seed, 1).remove(0);
        match action {
            Action::Seek { seed, .. } => {
                let key = key(*seed);
                cursor.seek(&key);
                model.seek(*id, &key).unwrap();
            }
            Action::SeekAfter { seed, .. } => {
                let key = key(*seed);
                cursor.seek_after(&key);
                model.seek_after(*id, &key).unwrap();
            }
            Action::SeekToStart { .. } => {
                cursor.seek_to_start();
                model.seek_to_start(*id).unwrap();
            }
            Action::SeekToEnd { .. } => {
                cursor.seek_to_end();
                model.seek_to_end(*id).unwrap();
            }
            _ => {}
        }

        let (records, expected): (Vec<Record>, Vec<Entry>) = match action {
            Action::Next { count, .. } => {
                let mut records = Vec::new();
                let mut entries = Vec::new();
                for _ in 0..*count {
                    records.extend(cursor.next().transpose()?);
                    entries.extend(model.next(*id).unwrap());
                }
                (records, entries)
            }
            Action::Prev { count, .. } => {
                let mut records = Vec::new();
                let mut entries = Vec::new();
                for _ in 0..*count {
                    records.extend(cursor.prev().transpose()?);
                    entries.extend(model.prev(*id).unwrap());
                }
                (records, entries)
            }
            Action::Take { count, .. } => {
                (cursor.next_many(*count)?, model.take(*id, *count).unwrap())
            }
            Action::TakeBack { count, .. } => {
                let entries = model.take_while_back(*id, *count, |_| true);
                (cursor.prev_many(*count)?, entries.unwrap())
            }
            Action::TakeWhile { count, seed, .. } => {
                let records = cursor.next_while(*count, |record| is_wanted(*seed, record.key))?;
                let entries = model.take_while(*id, *count, |(key, _)| is_wanted(*seed, key));
                (records, entries.unwrap())
            }
            Action::TakeWhileBack { count, seed, .. } => {
                let records = cursor.prev_while(*count, |record| is_wanted(*seed, record.key))?;
                let entries = model.take_while_back(*id, *count, |(key, _)| is_wanted(*seed, key));
                (records, entries.unwrap())
            }
            Action::PeekPrev { .. } => {
                let record = cursor.peek_prev()?.map(|record| record.to_record());
                (Vec::from_iter(record), Vec::from_iter(model.peek_prev(*id).unwrap()))
            }
            // A look at where it went.
            _ => {
                let record = cursor.peek()?.map(|record| record.to_record());
                (Vec::from_iter(record), Vec::from_iter(model.peek(*id).unwrap()))
            }
        };

        Ok(match_records(&records, pairs(&expected)))
    }
}

/// Blobs.
impl World {
    pub(super) fn keep_blobs(
        &mut self,
        table: Slot,
        to: Slot,
        seed: u64,
        len: usize,
    ) -> Result<bool> {
        let Some(held) = &self.tables[table] else { return Ok(false) };
        let keys = self.swarm.any_keys(seed, len);
        let results = held.table.get_many(&keys)?;
        let blobs = match_lookups(&results, &keys, self.forest.content(held.id).unwrap());
        self.kept[to] = KeptRefs { refs: blobs.refs, blobs: blobs.expected, version: held.version };
        Ok(true)
    }

    pub(super) fn keep_cursor_blobs(&mut self, slot: Slot, to: Slot, count: usize) -> Result<bool> {
        let Some(held) = &mut self.cursors[slot] else { return Ok(false) };
        let version = held.version;
        let records = match held.cursor.next_many(count) {
            Ok(records) => records,
            Err(error) => {
                self.drop_cursor(slot);
                return Err(error);
            }
        };

        let expected = self.forest.take(held.id, count).unwrap();
        let blobs = match_records(&records, pairs(&expected));
        self.kept[to] = KeptRefs { refs: blobs.refs, blobs: blobs.expected, version };
        Ok(true)
    }

    /// Whether something that is open keeps references of this version valid.
    fn is_kept_valid(&self, version: u64) -> bool {
        let tables = self.tables.iter().flatten().map(|held| held.version);
        let cursors = self.cursors.iter().flatten().map(|held| held.version);
        tables.chain(cursors).any(|other| other == version)
    }

    /// Exactly the blobs, or the error that tells the first reference that is not valid any more.
    pub(super) fn retrieve_blobs(&mut self, slot: Slot) -> Result<bool> {
        let kept = &self.kept[slot];
        let refs = match self.session().retrieve_blobs(&kept.refs) {
            Ok(blobs) => {
                assert!(blobs == kept.blobs, "{} kept blobs, one of them wrong", blobs.len());
                return Ok(!blobs.is_empty());
            }
            Err(Error::BlobRefInvalid { index }) => {
                let is_valid = self.is_kept_valid(kept.version);
                assert!(!is_valid, "reference {index} of {} is lost", kept.refs.len());
                &kept.refs[..index]
            }
            Err(error) => {
                assert!(is_of_disk(&error), "{error:?}");
                return Err(error);
            }
        };

        // The ones before it are valid.
        let blobs = self.session().retrieve_blobs(refs)?;
        assert!(blobs == kept.blobs[..refs.len()], "a kept blob is wrong");
        Ok(true)
    }
}

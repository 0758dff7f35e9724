//! Undo: values that commits replaced, kept while a snapshot needs them, since the database below
//! keeps only the present.
//!
//! Before a commit changes the database, the writer notes the old values of its keys here under
//! the number of the commit. A snapshot of commit `s` takes the value that the first later commit
//! of the key replaced, or the database's value if there is no such commit. A reader asks the
//! database first and the undo afterwards: a commit that the answer may show was noted before.
//!
//! Invariant: commit `n` is noted only while a snapshot of a commit below `n` lives. The commit
//! under way counts as a snapshot of the commit before it.
//! Memory: the replaced values, and a few hundred bytes for each changed key.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::gap::KeyRange;

/// Value of a key before a commit; `None` where there was none.
pub type Old = Option<Vec<u8>>;

#[derive(Debug, Default)]
struct TableUndo {
    /// For each key what commits found, by their numbers.
    values: BTreeMap<Vec<u8>, BTreeMap<u64, Old>>,
    /// How many entries commits found, by their numbers.
    counts: BTreeMap<u64, u64>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Undo {
    tables: Vec<TableUndo>,
    /// The keys that each commit changed, in the order in which they were noted.
    commits: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
    /// How many snapshots of each commit live.
    snapshots: BTreeMap<u64, usize>,
}

impl Undo {
    /// An undo of so many tables, with nothing noted.
    #[must_use]
    pub fn new(tables: usize) -> Self {
        Self { tables: (0..tables).map(|_| TableUndo::default()).collect(), ..Self::default() }
    }

    /// Whether any snapshot lives.
    pub fn is_needed(&self) -> bool {
        !self.snapshots.is_empty()
    }

    /// Begins a snapshot of `version`.
    pub fn begin(&mut self, version: u64) {
        *self.snapshots.entry(version).or_default() += 1;
    }

    /// Ends a snapshot. Cost: in proportion to the values that no other snapshot needs.
    pub fn end(&mut self, version: u64) {
        if let Some(count) = self.snapshots.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                self.snapshots.remove(&version);
            }
        }

        let oldest = self.snapshots.keys().next().copied();
        // Only snapshots from before a commit need its old values.
        while let Some((&commit, _)) = self.commits.first_key_value() {
            if oldest.is_some_and(|oldest| commit > oldest) {
                break;
            }
            self.forget(commit);
        }
    }

    /// Notes the value that commit `commit` replaces under a key.
    pub fn note(&mut self, commit: u64, table: usize, key: &[u8], old: Old) {
        debug_assert!(self.is_needed_by(commit));
        let values = self.tables[table].values.entry(key.to_vec()).or_default();
        let noted = values.insert(commit, old);
        debug_assert!(noted.is_none(), "only the value before the first change counts");
        self.commits.entry(commit).or_default().push((table, key.to_vec()));
    }

    /// Notes how many entries a table has before commit `commit`.
    pub fn note_count(&mut self, commit: u64, table: usize, count: u64) {
        debug_assert!(self.is_needed_by(commit));
        // A commit without old values is noted too, so that its counts go with it.
        self.commits.entry(commit).or_default();
        self.tables[table].counts.insert(commit, count);
    }

    fn is_needed_by(&self, commit: u64) -> bool {
        self.snapshots.keys().next().is_some_and(|oldest| *oldest < commit)
    }

    /// Whether the old value of a key is noted for commit `commit`.
    pub fn is_noted(&self, commit: u64, table: usize, key: &[u8]) -> bool {
        self.tables[table].values.get(key).is_some_and(|values| values.contains_key(&commit))
    }

    /// Keys that commit `commit` changed, with their old values, in the order of the notes.
    pub fn noted(&self, commit: u64) -> impl Iterator<Item = (usize, &[u8], &Old)> {
        self.commits.get(&commit).into_iter().flatten().filter_map(move |(table, key)| {
            let old = self.tables[*table].values.get(key)?.get(&commit)?;
            Some((*table, key.as_slice(), old))
        })
    }

    /// Drops the notes of a commit that no snapshot needs or that did not take place.
    pub fn forget(&mut self, commit: u64) {
        for (table, key) in self.commits.remove(&commit).unwrap_or_default() {
            let values = &mut self.tables[table].values;
            if let Some(versions) = values.get_mut(&key) {
                versions.remove(&commit);
                // A key without old values needs no entry.
                if versions.is_empty() {
                    values.remove(&key);
                }
            }
        }

        for table in &mut self.tables {
            table.counts.remove(&commit);
        }
    }

    /// The value of a key as of `version`, if a later commit changed it.
    pub fn value(&self, table: usize, key: &[u8], version: u64) -> Option<&Old> {
        as_of(self.tables[table].values.get(key)?, version)
    }

    /// The entries of a table as of `version`, if a later commit changed it.
    pub fn count(&self, table: usize, version: u64) -> Option<u64> {
        as_of(&self.tables[table].counts, version).copied()
    }

    /// Whether nothing is noted of `table`.
    pub fn is_empty(&self, table: usize) -> bool {
        self.tables[table].values.is_empty()
    }

    /// The keys of a range that a commit after `version` changed, with their values as of it,
    /// ascending.
    pub fn range(
        &self,
        table: usize,
        version: u64,
        range: KeyRange<'_>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &Old)> {
        self.tables[table]
            .values
            .range::<[u8], _>(range)
            .filter_map(move |(key, versions)| Some((key.as_slice(), as_of(versions, version)?)))
    }
}

/// The value before the first commit after `version`.
fn as_of<T>(versions: &BTreeMap<u64, T>, version: u64) -> Option<&T> {
    versions.range((Bound::Excluded(version), Bound::Unbounded)).next().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(undo: &mut Undo, commit: u64, count: u64, values: &[(&str, Option<&str>)]) {
        undo.note_count(commit, 0, count);
        for (key, old) in values {
            undo.note(commit, 0, key.as_bytes(), old.map(|old| old.as_bytes().to_vec()));
        }
    }

    /// Commit 1 has a = 1; commit 2 sets a to 2 and b to 1; commit 3 removes a.
    fn three() -> Undo {
        let mut undo = Undo::new(2);
        undo.begin(1);
        note(&mut undo, 2, 1, &[("a", Some("1")), ("b", None)]);
        undo.begin(2);
        note(&mut undo, 3, 2, &[("a", Some("2"))]);
        undo.begin(3);
        undo
    }

    #[test]
    fn a_snapshot_reads_what_the_first_later_commit_found() {
        let undo = three();
        let value = |key: &str, version| undo.value(0, key.as_bytes(), version).cloned();
        assert_eq!(value("a", 1), Some(Some(b"1".to_vec())));
        assert_eq!(value("b", 1), Some(None));
        assert_eq!(value("a", 2), Some(Some(b"2".to_vec())));
        assert_eq!((value("b", 2), value("a", 3)), (None, None), "as the server has them");

        assert_eq!(
            (undo.count(0, 1), undo.count(0, 2), undo.count(0, 3)),
            (Some(1), Some(2), None)
        );

        assert_eq!(undo.count(1, 1), None);
        let range: Vec<_> = undo.range(0, 1, (Bound::Unbounded, Bound::Unbounded)).collect();

        assert_eq!(range, [(&b"a"[..], &Some(b"1".to_vec())), (&b"b"[..], &None)]);
    }

    #[test]
    fn what_no_snapshot_needs_is_forgotten() {
        let mut undo = three();
        undo.end(2);
        assert_eq!(undo.commits.len(), 2, "snapshot 1 needs both");
        undo.end(1);
        assert!(undo.commits.is_empty() && undo.is_empty(0), "snapshot 3 needs neither");
        assert!(undo.is_needed());
        undo.end(3);
        assert!(!undo.is_needed());
    }

    #[test]
    fn a_commit_that_did_not_take_place_leaves_nothing() {
        let mut undo = three();
        undo.forget(3);
        assert_eq!(undo.value(0, b"a", 2), None);
        assert_eq!(undo.value(0, b"a", 1), Some(&Some(b"1".to_vec())));
        assert_eq!(undo.count(0, 2), None);
    }

    #[test]
    fn a_commit_lists_its_keys_in_the_order_of_its_notes() {
        let undo = three();
        let noted: Vec<_> = undo.noted(2).collect();
        assert_eq!(noted, [(0, &b"a"[..], &Some(b"1".to_vec())), (0, b"b", &None)]);
        assert!(undo.is_noted(3, 0, b"a") && !undo.is_noted(3, 0, b"b"));
        assert!(!undo.is_noted(3, 1, b"a"));
        assert_eq!(undo.noted(4).count(), 0);
    }
}

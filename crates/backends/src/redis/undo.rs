//! Undo: values that commits replaced, kept while a snapshot needs them, since a server keeps only
//! the present.
//!
//! Before a commit is sent, the writer notes the old values of its keys here under the number of
//! the commit, if a snapshot lives. A snapshot of commit `s` takes the value that the first later
//! commit of the key replaced, or the server's value if there is no such commit. A reader asks the
//! server first and the undo afterwards: a commit that the answer may show was noted before it was
//! sent.
//!
//! Invariant: commit `n` is noted only while a snapshot of a commit below `n` lives.
//! Memory: the replaced values, and a few hundred bytes for each changed key.

use std::collections::BTreeMap;
use std::ops::Bound;

/// The value of a key before a commit; `None` where there was none.
pub(crate) type Old = Option<Vec<u8>>;

#[derive(Debug, Default)]
struct TableUndo {
    /// For each key what commits found, by their numbers.
    values: BTreeMap<Vec<u8>, BTreeMap<u64, Old>>,
    /// How many entries commits found, by their numbers.
    counts: BTreeMap<u64, u64>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Undo {
    tables: Vec<TableUndo>,
    /// The keys that each commit changed.
    commits: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
    /// How many snapshots of each commit live.
    snapshots: BTreeMap<u64, usize>,
}

/// Values that a commit replaces in a table, with the number of entries before.
#[derive(Debug, Default)]
pub(crate) struct Replaced {
    pub(crate) count: u64,
    pub(crate) values: Vec<(Vec<u8>, Old)>,
}

impl Undo {
    pub(crate) fn new(tables: usize) -> Self {
        Self { tables: (0..tables).map(|_| TableUndo::default()).collect(), ..Self::default() }
    }

    /// Whether any snapshot lives.
    pub(crate) fn is_needed(&self) -> bool {
        !self.snapshots.is_empty()
    }

    /// Begins a snapshot of `version`.
    pub(crate) fn begin(&mut self, version: u64) {
        *self.snapshots.entry(version).or_default() += 1;
    }

    /// Ends a snapshot. Cost: in proportion to the values that no other snapshot needs.
    pub(crate) fn end(&mut self, version: u64) {
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

    /// Notes the values that commit `commit` replaces in a table.
    pub(crate) fn note(&mut self, commit: u64, table: usize, replaced: Replaced) {
        debug_assert!(self.snapshots.keys().next().is_some_and(|oldest| *oldest < commit));
        let keys = self.commits.entry(commit).or_default();
        let into = &mut self.tables[table];
        into.counts.insert(commit, replaced.count);
        for (key, old) in replaced.values {
            into.values.entry(key.clone()).or_default().insert(commit, old);
            keys.push((table, key));
        }
    }

    /// Drops the notes of a commit that no snapshot needs or that did not take place.
    pub(crate) fn forget(&mut self, commit: u64) {
        for (table, key) in self.commits.remove(&commit).unwrap_or_default() {
            let values = &mut self.tables[table].values;
            if let Some(versions) = values.get_mut(&key) {
                versions.remove(&commit);
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
    pub(crate) fn value(&self, table: usize, key: &[u8], version: u64) -> Option<&Old> {
        as_of(self.tables[table].values.get(key)?, version)
    }

    /// The entries of a table as of `version`, if a later commit changed it.
    pub(crate) fn count(&self, table: usize, version: u64) -> Option<u64> {
        as_of(&self.tables[table].counts, version).copied()
    }

    /// Whether nothing is noted of `table`.
    pub(crate) fn is_empty(&self, table: usize) -> bool {
        self.tables[table].values.is_empty()
    }

    /// The keys of a range that a commit after `version` changed, with their values as of it,
    /// ascending.
    pub(crate) fn range(
        &self,
        table: usize,
        version: u64,
        range: (Bound<&[u8]>, Bound<&[u8]>),
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

    fn replaced(count: u64, values: &[(&str, Option<&str>)]) -> Replaced {
        let old = |value: Option<&str>| value.map(|value| value.as_bytes().to_vec());
        let values = values.iter().map(|(key, value)| (key.as_bytes().to_vec(), old(*value)));
        Replaced { count, values: values.collect() }
    }

    /// Commit 1 has a = 1; commit 2 sets a to 2 and b to 1; commit 3 removes a.
    fn three() -> Undo {
        let mut undo = Undo::new(2);
        undo.begin(1);
        undo.note(2, 0, replaced(1, &[("a", Some("1")), ("b", None)]));
        undo.begin(2);
        undo.note(3, 0, replaced(2, &[("a", Some("2"))]));
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
}

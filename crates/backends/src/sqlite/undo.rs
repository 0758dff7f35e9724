//! Undo: old values of entries, so that the snapshots of a single connection keep their moment.
//!
//! Commits are numbered. A snapshot of number n has the outcome of commits 1 ..= n. The undo lists,
//! for a key, the value before each commit c that changed it. A snapshot sees the first of them
//! with c > n, or else the value in the database. Changes of the open transaction stand under the
//! number that its commit will get.
//!
//! Invariant: the numbers of one key ascend, and no two are equal.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrane_kv::Entry;

type TableKey = (usize, Vec<u8>);

/// An old value of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Old {
    /// The number of the commit that changed it.
    commit: u64,
    /// Its value before; `None` if it had none.
    pub(super) value: Option<Vec<u8>>,
}

/// Old values by table and key.
#[derive(Debug, Default)]
pub(super) struct Undo {
    olds: BTreeMap<TableKey, Vec<Old>>,
    /// Keys that the open transaction has changed, in the order of their first change.
    pending: Vec<TableKey>,
}

impl Undo {
    /// Whether the open transaction, which would be number `commit`, has changed a key before.
    pub(super) fn has_pending(&self, commit: u64, table: usize, key: &[u8]) -> bool {
        let olds = self.olds.get(&(table, key.to_vec()));
        olds.and_then(|olds| olds.last()).is_some_and(|old| old.commit == commit)
    }

    /// Notes the value of a key before the open transaction first changes it.
    pub(super) fn note(&mut self, commit: u64, table: usize, key: &[u8], value: Option<Vec<u8>>) {
        let key = (table, key.to_vec());
        debug_assert!(
            self.olds.get(&key).and_then(|olds| olds.last()).is_none_or(|old| old.commit < commit)
        );
        self.pending.push(key.clone());
        self.olds.entry(key).or_default().push(Old { commit, value });
    }

    /// Keys that the open transaction has changed, with their old values, in the order of the
    /// changes.
    pub(super) fn pending(&self) -> impl Iterator<Item = (usize, &[u8], Option<&[u8]>)> {
        self.pending.iter().filter_map(|key| {
            let old = self.olds.get(key)?.last()?;
            Some((key.0, key.1.as_slice(), old.value.as_deref()))
        })
    }

    /// The open transaction was committed.
    pub(super) fn committed(&mut self) {
        self.pending.clear();
    }

    /// The open transaction was taken back.
    pub(super) fn taken_back(&mut self) {
        for key in self.pending.drain(..) {
            if let Some(olds) = self.olds.get_mut(&key) {
                olds.pop();
                if olds.is_empty() {
                    self.olds.remove(&key);
                }
            }
        }
    }

    /// Forgets what no snapshot needs whose number is `oldest` or more. Cost: goes over all that is
    /// noted.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.olds.retain(|_, olds| {
            olds.retain(|old| old.commit > oldest);
            !olds.is_empty()
        });
    }

    /// Forgets all when a commit is done and no snapshot lives.
    pub(super) fn forget_if_unread(&mut self, is_unread: bool) {
        if is_unread {
            self.olds.clear();
        }
    }

    /// The old value that a snapshot sees; `None` if it sees the value in the database.
    pub(super) fn seen(&self, snapshot: u64, table: usize, key: &[u8]) -> Option<&Old> {
        seen(self.olds.get(&(table, key.to_vec()))?, snapshot)
    }

    /// Keys of a table from a bound on, ascending, of which a snapshot sees an old value.
    pub(super) fn after(
        &self,
        snapshot: u64,
        table: usize,
        from: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let from = match from {
            Bound::Unbounded => Bound::Included((table, Vec::new())),
            from => from.map(|key| (table, key.to_vec())),
        };
        let range = (from, Bound::Excluded((table + 1, Vec::new())));
        self.olds.range(range).filter_map(move |(key, olds)| {
            Some((key.1.as_slice(), seen(olds, snapshot)?.value.as_deref()))
        })
    }

    /// Keys of a table down from a bound, descending, of which a snapshot sees an old value.
    pub(super) fn before(
        &self,
        snapshot: u64,
        table: usize,
        to: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let to = match to {
            Bound::Unbounded => Bound::Excluded((table + 1, Vec::new())),
            to => to.map(|key| (table, key.to_vec())),
        };
        let range = (Bound::Included((table, Vec::new())), to);
        self.olds.range(range).rev().filter_map(move |(key, olds)| {
            Some((key.1.as_slice(), seen(olds, snapshot)?.value.as_deref()))
        })
    }
}

fn seen(olds: &[Old], snapshot: u64) -> Option<&Old> {
    olds.iter().find(|old| old.commit > snapshot)
}

/// Puts what a snapshot sees otherwise into a page of what the database has. `is_last`: the
/// database has nothing behind the page. `is_before` is the order of both. The result may be empty
/// although there is more behind the page.
pub(super) fn merged<'u>(
    page: Vec<Entry>,
    is_last: bool,
    olds: impl Iterator<Item = (&'u [u8], Option<&'u [u8]>)>,
    is_before: impl Fn(&[u8], &[u8]) -> bool,
    entries: usize,
) -> Vec<Entry> {
    let mut page = page.into_iter().peekable();

    let mut olds = olds.peekable();
    let mut merged = Vec::new();
    while merged.len() < entries {
        let old_is_next = match (page.peek(), olds.peek()) {
            (Some((key, _)), Some((old_key, _))) => !is_before(key, old_key),
            (Some(_), None) => false,
            (None, Some(_)) if is_last => true,
            (None, _) => break,
        };

        if !old_is_next {
            merged.extend(page.next());
            continue;
        }

        if let Some((key, old)) = olds.next() {
            page.next_if(|(page_key, _)| page_key == key);
            merged.extend(old.map(|old| (key.to_vec(), old.to_vec())));
        }
    }

    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_the_first_value_that_a_later_commit_replaced() {
        let mut undo = Undo::default();
        undo.note(1, 0, b"k", None);
        undo.committed();
        undo.note(2, 0, b"k", Some(b"one".to_vec()));
        undo.committed();
        undo.note(3, 0, b"k", Some(b"two".to_vec()));
        let seen =
            |undo: &Undo, snapshot| undo.seen(snapshot, 0, b"k").map(|old| old.value.clone());
        assert_eq!(seen(&undo, 0), Some(None));
        assert_eq!(seen(&undo, 1), Some(Some(b"one".to_vec())));
        assert_eq!(seen(&undo, 2), Some(Some(b"two".to_vec())), "not committed");
        assert_eq!(seen(&undo, 3), None);
        assert!(undo.has_pending(3, 0, b"k") && !undo.has_pending(3, 1, b"k"));
        undo.taken_back();
        assert_eq!(seen(&undo, 2), None);
        undo.forget(1);
        assert_eq!(seen(&undo, 1), Some(Some(b"one".to_vec())));
        undo.forget(2);

        assert!(undo.olds.is_empty());
    }

    #[test]
    fn a_page_is_merged_up_to_where_the_database_may_have_more() {
        let entry = |key: &str| (key.as_bytes().to_vec(), b"new".to_vec());
        let olds = [(&b"b"[..], Some(&b"old"[..])), (b"c", None), (b"e", Some(b"old"))];
        let merge = |is_last, entries| {
            let page = vec![entry("a"), entry("c"), entry("d")];
            let keys: Vec<String> =
                merged(page, is_last, olds.iter().copied(), |a, b| a < b, entries)
                    .into_iter()
                    .map(|(key, _)| String::from_utf8(key).unwrap())
                    .collect();
            keys.concat()
        };

        assert_eq!(merge(false, 9), "abd", "e may stand behind keys that were not read");
        assert_eq!(merge(true, 9), "abde");
        assert_eq!(merge(true, 2), "ab");
    }
}

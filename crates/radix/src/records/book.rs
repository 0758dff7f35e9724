//! The bookkeeping as a whole: all its records, read one by one, and those that versions need.
//!
//! [`Store::verify`](crate::Store::verify) and [`Store::repair`](crate::Store::repair) use it. A
//! record that breaks a rule is noted and left out, so that the rest can still be checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::node::node::Broken;
use crate::records::versions::{
    Head, Ids, TABLE, TreeId, Version, VersionId, check_parent, corrupt, head_in, number_body,
    number_in, older_key, older_of, own_format, put_ids, read, root_ids_in, root_key, sealed,
    tree_key, version_body, version_in, version_key, version_of_key,
};
use terrane_kv::Reader;

/// All records, read by themselves.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) head: Option<Head>,
    pub(crate) trees: BTreeMap<String, TreeId>,
    pub(crate) roots: BTreeMap<(TreeId, Root), Ids>,
    pub(crate) versions: BTreeMap<VersionId, Version>,
    /// By the key of the record that they are of.
    pub(crate) older: BTreeMap<Vec<u8>, Vec<VersionId>>,
    /// Keys of records that break a rule, of which nothing is in the rest.
    pub(crate) broken: Vec<Vec<u8>>,
    /// Why the back-end could not read further.
    pub(crate) unread: Option<Error>,
}

/// All records but the head, for trees and their versions, of which the neighbours are taken.
pub(crate) fn encode(
    trees: &BTreeMap<String, TreeId>,
    versions: &BTreeMap<VersionId, Version>,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::from([(b"f".to_vec(), own_format())]);
    records.extend(trees.iter().map(|(name, tree)| (tree_key(name), number_body(*tree))));

    let mut named: BTreeMap<Vec<u8>, Vec<VersionId>> = BTreeMap::new();
    for (id, version) in versions {
        let root = root_key(version.tree, &version.edge.top).to_vec();
        let neighbour = version.neighbour.map(|neighbour| version_key(neighbour).to_vec());
        // A version is named by its root, and by its neighbour if it has one.
        for owner in std::iter::once(root).chain(neighbour) {
            named.entry(owner).or_default().push(*id);
        }
    }

    let ids_of = |owner: &[u8]| {
        let all = named.get(owner).map_or(&[][..], Vec::as_slice);
        Ids { newest: all.last().copied(), older: all.len().saturating_sub(1) as u64 }
    };

    for (id, version) in versions {
        let key = version_key(*id);
        let dependents = ids_of(&key);
        records.insert(key.to_vec(), version_body(&Version { dependents, ..version.clone() }));
        let key = root_key(version.tree, &version.edge.top);
        let of_root = ids_of(&key);
        debug_assert!(of_root.newest >= Some(*id), "the root of a version names it");
        let mut body = Vec::new();
        put_ids(&mut body, of_root);
        records.insert(key.to_vec(), body);
    }

    for (owner, all) in &named {
        debug_assert!(all.is_sorted_by(|one, other| one < other), "the newest is the last");
        let older = all.split_last().map_or(&[][..], |(_, older)| older);
        records.extend(older.iter().map(|id| (older_key(owner, *id), Vec::new())));
    }

    records.into_iter().map(|(key, body)| (key.clone(), sealed(&key, body))).collect()
}

impl Book {
    /// Reads the whole index; hands out the errors of those records that break a rule.
    pub(crate) fn read(
        reader: &(impl Reader + ?Sized),
        note: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<Self> {
        let mut book = Self::default();
        let mut cursor = reader.cursor(TABLE)?;
        loop {
            match cursor.next() {
                Ok(Some((key, record))) => {
                    if let Err(error) = book.take(&key, &record) {
                        note(error)?;
                        book.broken.push(key);
                    }
                }
                Ok(None) => return Ok(book),
                // Where the cursor stands then nobody knows.
                Err(error @ terrane_kv::Error::Corruption { .. }) => {
                    book.unread = Some(error.into());
                    return Ok(book);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
    fn take(&mut self, key: &[u8], record: &[u8]) -> Result<()> {
        let wrong_key = || corrupt(key, "it belongs to nothing");
        let (kind, rest) = key.split_first().ok_or_else(wrong_key)?;
        match kind {
            b'f' if rest.is_empty() => {}
            b'n' if rest.is_empty() => self.head = Some(read(key, record, head_in)?),
            b't' => {
                let name = std::str::from_utf8(rest).map_err(|_| wrong_key())?;
                self.trees.insert(name.to_owned(), read(key, record, number_in)?);
            }
            b'r' => {
                let (tree, root) = rest.split_first_chunk().ok_or_else(wrong_key)?;
                let root = NodeHash(root.try_into().map_err(|_| wrong_key())?);
                let ids = read(key, record, root_ids_in)?;
                self.roots.insert((u32::from_be_bytes(*tree), root), ids);
            }
            b'v' => {
                let id = version_of_key(key).ok_or_else(wrong_key)?;
                let version = read(key, record, version_in)?;
                check_parent(id, &version).map_err(|Broken(rule)| corrupt(key, rule))?;
                self.versions.insert(id, version);
            }
            b'o' => {
                let (owner, id) = older_of(key, record)?;
                self.older.entry(owner.to_vec()).or_default().push(id);
            }
            _ => return Err(wrong_key()),
        }

        Ok(())
    }

    /// The versions of a root; those that depend on a version.
    pub(crate) fn of_root(&self, tree: TreeId, root: &Root, ids: Ids) -> Vec<VersionId> {
        self.all(&root_key(tree, root), ids)
    }

    pub(crate) fn dependents(&self, id: VersionId, ids: Ids) -> Vec<VersionId> {
        self.all(&version_key(id), ids)
    }

    fn all(&self, owner: &[u8], ids: Ids) -> Vec<VersionId> {
        let older = self.older.get(owner).into_iter().flatten().copied();
        older.chain(ids.newest).collect()
    }

    /// How many versions the records speak of, or have been of, that cannot be read.
    pub(crate) fn lost_versions(&self) -> u64 {
        let mut named: BTreeSet<VersionId> =
            self.broken.iter().filter_map(|key| version_of_key(key)).collect();
        named.extend(self.roots.values().filter_map(|ids| ids.newest));
        named.extend(self.older.values().flatten());
        named.extend(self.versions.values().filter_map(|version| version.neighbour));
        named.extend(self.versions.values().filter_map(|version| version.dependents.newest));
        named.iter().filter(|id| !self.versions.contains_key(id)).count() as u64
    }

    /// How many records of trees there are that cannot be read.
    pub(crate) fn lost_trees(&self) -> u64 {
        self.broken.iter().filter(|key| key.first() == Some(&b't')).count() as u64
    }

    /// The number of the version that was made last of those that have a record, also one that
    /// cannot be read; 0 if there is none.
    pub(crate) fn last_version(&self) -> u64 {
        let broken = self.broken.iter().filter_map(|key| version_of_key(key));
        self.versions.keys().copied().chain(broken).max().map_or(0, |id| id.0)
    }

    /// Keys of records whose older versions are there although the record is not.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = &[u8]> {
        let roots = self.roots.keys().map(|(tree, root)| root_key(*tree, root).to_vec());
        let versions = self.versions.keys().map(|id| version_key(*id).to_vec());
        let owners: BTreeSet<Vec<u8>> = roots.chain(versions).collect();
        self.older.keys().filter(move |owner| !owners.contains(*owner)).map(Vec::as_slice)
    }
}

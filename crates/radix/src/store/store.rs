//! Handles of users: a store of named trees, and one of its trees.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::change::Change;
use crate::base::error::{Error, Result};
use crate::base::node_hash::Root;
use crate::node::node::Edge;
use crate::records::node_store::find_in_memory;
use crate::records::versions::{self, VERSIONS, Version, VersionId};
use crate::store::inner::{Inner, Snapshot, edge_of};
use crate::store::leaves::{Leaves, Order, View};
use crate::store::options::Options;
use crate::store::transaction::{
    Committed, METADATA, PruneOptions, Pruned, Transaction, TreeName, build_on, find,
    metadata_entries_of, metadata_of,
};
use terrane_kv::{Database, Reader, Table};

/// The indexes that a database must be opened with to hold a [`Store`].
pub const INDEXES: [&str; 2] = [VERSIONS, METADATA];

/// A store of named trees in a database. Clones are the same store; threads may share it.
///
/// Several stores may be open in one database, in one process or, if the back-end allows it, in
/// several. Each sees what the others committed before the call began. The main table and the index
/// of versions belong to the store alone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

/// A named tree of a store. Clones are the same tree; threads may share it.
#[derive(Debug, Clone)]
pub struct Tree {
    inner: Arc<Inner>,
    tree: TreeName,
}

/// A retained version of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VersionInfo {
    /// Its number; later commits have greater ones.
    pub id: VersionId,
    /// Its root.
    pub root: Root,
    /// Its nearest retained ancestor; `None` if that is the empty state.
    pub parent: Option<VersionId>,
    /// Versions whose parent it is, ascending.
    pub children: Vec<VersionId>,
    /// Metadata that the commit was given.
    pub metadata: Vec<u8>,
}

impl Store {
    /// Opens the store in a database with the indexes [`INDEXES`]; creates the store if there is
    /// none. In a read-only database nothing is created, and calls that change the store are
    /// [`Error::ReadOnly`].
    ///
    /// Cost: a record for each tree; a commit for a new store.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has another format; [`Error::CorruptRecord`] if the
    /// database holds something else, or the bookkeeping is damaged (see
    /// [`repair`](Self::repair)); those of the back-end.
    pub fn open(database: Arc<dyn Database>, options: &Options) -> Result<Self> {
        // Looked up without the writer, which may belong to another process, or not be there to
        // have.
        if !versions::is_formatted(&*database.reader()?)? {
            let mut writer = database.writer()?;
            // Another store may have created the records since the snapshot.
            if !versions::is_formatted(&*writer)? {
                if writer.count(Table::Main)? > 0 || writer.count(Table::Index(VERSIONS))? > 0 {
                    return Err(Error::CorruptRecord {
                        what: "the database has entries, but no radix state".into(),
                    });
                }
                versions::format(&mut *writer)?;
                let receipt = writer.commit()?;
                database.settle(receipt)?;
            }
        }

        let reader = database.reader()?;
        versions::check_format(&*reader, database.name())?;
        let head = versions::head(&*reader)?;
        let last_tree = versions::trees(&*reader)?.into_iter().map(|(_, id)| id).max();
        versions::check_head(&head, last_tree, versions::last_version(&*reader)?)?;
        drop(reader);

        Ok(Self { inner: Arc::new(Inner::new(database, *options)) })
    }

    /// Whether a database holds a store. If not, [`open`](Self::open) would create one.
    ///
    /// # Errors
    /// Those of the back-end.
    pub fn is_in(database: &dyn Database) -> Result<bool> {
        versions::is_formatted(&*database.reader()?)
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Arc<dyn Database> {
        &self.inner.database
    }

    /// Begins a transaction; waits for the transaction of another thread.
    ///
    /// # Errors
    /// [`Error::Busy`], also if this thread has a transaction; [`Error::ReadOnly`] and those of the
    /// back-end.
    pub fn transaction(&self) -> Result<Transaction<'_>> {
        Transaction::new(&self.inner)
    }

    fn handle(&self, name: &str, id: versions::TreeId) -> Tree {
        Tree { inner: Arc::clone(&self.inner), tree: TreeName { name: name.to_owned(), id } }
    }

    /// Creates a tree, which holds the empty state.
    ///
    /// # Errors
    /// [`Error::TreeExists`], [`Error::InvalidTreeName`] and those of the back-end.
    pub fn create_tree(&self, name: &str) -> Result<Tree> {
        let mut transaction = self.transaction()?;
        let id = transaction.make_tree(name)?;
        transaction.finish()?;
        Ok(self.handle(name, id))
    }

    /// Returns an existing tree.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::InvalidTreeName`] and those of the back-end.
    pub fn tree(&self, name: &str) -> Result<Tree> {
        match versions::tree(&*self.inner.database.reader()?, name)? {
            Some(id) => Ok(self.handle(name, id)),
            None => Err(Error::UnknownTree { name: name.to_owned() }),
        }
    }

    /// Returns a tree, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidTreeName`] and those of the back-end.
    pub fn tree_or_create(&self, name: &str) -> Result<Tree> {
        match self.tree(name) {
            // Another caller may create the tree between both calls.
            Err(Error::UnknownTree { .. }) => match self.create_tree(name) {
                Err(Error::TreeExists { .. }) => self.tree(name),
                made => made,
            },
            found => found,
        }
    }

    /// Names of all trees, in their order.
    ///
    /// # Errors
    /// Those of the back-end.
    pub fn trees(&self) -> Result<Vec<String>> {
        let reader = self.inner.database.reader()?;
        Ok(versions::trees(&*reader)?.into_iter().map(|(name, _)| name).collect())
    }

    /// Removes a tree with all its versions. Returns whether it existed.
    ///
    /// # Errors
    /// Those of [`Transaction::delete_tree`].
    pub fn delete_tree(&self, name: &str) -> Result<bool> {
        let mut transaction = self.transaction()?;
        let was_there = transaction.delete_tree(name)?;
        transaction.finish()?;
        Ok(was_there)
    }

    /// Renames a tree. Handles on the tree stay valid.
    ///
    /// # Errors
    /// Those of [`Transaction::rename_tree`].
    pub fn rename_tree(&self, from: &str, to: &str) -> Result<()> {
        let mut transaction = self.transaction()?;
        transaction.rename_tree(from, to)?;
        transaction.finish()
    }

    /// The value of a key of the metadata map.
    ///
    /// # Errors
    /// [`Error::Size`] and those of the back-end.
    pub fn metadata(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        metadata_of(&*self.inner.database.reader()?, key)
    }

    /// Binds a key of the metadata map, or with `None` removes it.
    ///
    /// # Errors
    /// [`Error::Size`] and those of the back-end.
    pub fn set_metadata(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let mut transaction = self.transaction()?;
        transaction.set_metadata(key, value)?;
        transaction.finish()
    }

    /// Entries of the metadata map whose keys have a prefix, in the order of the keys.
    ///
    /// # Errors
    /// Those of the back-end.
    pub fn metadata_entries(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        metadata_entries_of(&*self.inner.database.reader()?, prefix)
    }

    /// Bytes of nodes in memory.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.inner.cache.bytes() as u64
    }

    /// Closes the database.
    ///
    /// # Errors
    /// Those of the back-end. It is closed in any case.
    pub fn close(&self) -> Result<()> {
        Ok(self.inner.database.close()?)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

impl Tree {
    /// Its name, as it was when the handle was made.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.tree.name
    }

    /// Refuses a tree that was deleted.
    fn check(&self, reader: &(impl Reader + ?Sized), transactions: u64) -> Result<()> {
        if self.inner.has_tree(self.tree.id, reader, transactions)? {
            return Ok(());
        }
        Err(Error::UnknownTree { name: self.tree.name.clone() })
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn tree_name(&self) -> &TreeName {
        &self.tree
    }

    /// Begins a transaction, in which the tree is not deleted by another.
    pub(crate) fn transaction(&self) -> Result<Transaction<'_>> {
        let transaction = Transaction::new(&self.inner)?;
        let (reader, transactions) = transaction.reading();
        self.check(reader, transactions)?;
        Ok(transaction)
    }

    /// A snapshot, in which the tree is.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = self.inner.snapshot()?;
        self.check(&*snapshot.reader, snapshot.transactions)?;
        Ok(snapshot)
    }

    /// A snapshot, and the edge of a root in it.
    pub(crate) fn open(&self, root: &Root) -> Result<(Box<dyn Reader + Send>, Option<Edge>)> {
        self.open_in(self.snapshot()?, root)
    }

    fn open_in(
        &self,
        snapshot: Snapshot,
        root: &Root,
    ) -> Result<(Box<dyn Reader + Send>, Option<Edge>)> {
        let Snapshot { reader, transactions } = snapshot;
        let edge = edge_of(&*reader, self.tree.id, &self.tree.name, root)?;
        if let Some(edge) = &edge {
            self.inner.found(self.tree.id, root, edge, transactions);
        }
        Ok((reader, edge))
    }

    /// Applies a batch of changes to a retained root, and retains the outcome as a new version.
    ///
    /// Cost: that of [`Transaction::commit`] and [`Transaction::finish`].
    ///
    /// # Errors
    /// Those of [`Transaction::commit`] and [`Transaction::finish`].
    pub fn commit(&self, parent: &Root, changes: &[Change]) -> Result<Committed> {
        self.commit_with(parent, changes, &[])
    }

    /// Commits as [`commit`](Self::commit) does, and gives the version metadata, such as a height.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit), and [`Error::Size`].
    pub fn commit_with(
        &self,
        parent: &Root,
        changes: &[Change],
        metadata: &[u8],
    ) -> Result<Committed> {
        let mut transaction = self.transaction()?;
        let committed = transaction.commit_to(&self.tree, parent, changes, metadata)?;
        // Without a new version there is nothing to commit.
        if committed.version.is_some() {
            transaction.finish()?;
        }
        Ok(committed)
    }

    /// Computes the root that a batch would give. Stores nothing; the root cannot be read.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn compute_root(&self, parent: &Root, changes: &[Change]) -> Result<Root> {
        let (reader, edge) = self.open(parent)?;
        if changes.is_empty() {
            return Ok(*parent);
        }
        let nodes = self.inner.nodes(&*reader, parent);
        Ok(build_on(&nodes, edge.as_ref(), changes, self.inner.options.threads)?.root_hash())
    }

    /// Whether a root is retained.
    ///
    /// # Errors
    /// [`Error::UnknownTree`] and those of the back-end.
    pub fn has_root(&self, root: &Root) -> Result<bool> {
        match self.open(root) {
            Ok(_) => Ok(true),
            Err(Error::UnknownRoot { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The values of addresses, in their order; `None` for an address without a value.
    ///
    /// Cost: reads the nodes on the paths that are not in memory, those of a level side by side.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn get(&self, root: &Root, addresses: &[Address]) -> Result<Vec<Option<Vec<u8>>>> {
        let snapshot = self.inner.refresh()?;

        // With all of it in memory nothing else is needed: a root that is known is retained, and
        // nodes do not change.
        if let Some(edge) = self.inner.known(self.tree.id, root)
            && let Ok(values) = addresses
                .iter()
                .map(|address| find_in_memory(&self.inner.cache, &edge, address.as_bytes()))
                .collect()
        {
            return Ok(values);
        }

        let (reader, edge) = match snapshot {
            Some(snapshot) => {
                self.check(&*snapshot.reader, snapshot.transactions)?;
                self.open_in(snapshot, root)?
            }
            None => self.open(root)?,
        };

        match edge {
            Some(edge) => find(&self.inner.nodes(&*reader, root), &edge, addresses),
            None => Ok(vec![None; addresses.len()]),
        }
    }

    /// The value of one address.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn get_one(&self, root: &Root, address: &Address) -> Result<Option<Vec<u8>>> {
        Ok(self.get(root, std::slice::from_ref(address))?.pop().flatten())
    }

    /// Whether an address has a value.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn contains(&self, root: &Root, address: &Address) -> Result<bool> {
        Ok(self.get_one(root, address)?.is_some())
    }

    /// The values whose addresses begin with a prefix, ascending, from one snapshot: later commits
    /// and prunes do not change them.
    ///
    /// Cost: the nodes down to the prefix, then each node below it once, where they are not in
    /// memory.
    ///
    /// # Errors
    /// [`Error::PrefixNotFound`] if there is none, unless the prefix is empty; as
    /// [`get`](Self::get).
    pub fn leaves(&self, root: &Root, prefix: &Prefix) -> Result<Leaves<'static>> {
        let (reader, edge) = self.open(root)?;
        let view = View::Snapshot(reader);
        Leaves::below(Arc::clone(&self.inner), view, *root, edge.as_ref(), prefix)
    }

    /// The values from an address on, or all: ascending from the address, or descending from it.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn leaves_from(
        &self,
        root: &Root,
        from: Option<&Address>,
        order: Order,
    ) -> Result<Leaves<'static>> {
        let (reader, edge) = self.open(root)?;
        let view = View::Snapshot(reader);
        Leaves::from(Arc::clone(&self.inner), view, *root, edge.as_ref(), from, order)
    }

    /// Drops the oldest retained version of a root, and lists the nodes that are gone.
    ///
    /// # Errors
    /// Those of [`Transaction::prune`].
    pub fn prune(&self, root: &Root) -> Result<Pruned> {
        self.prune_with(root, &PruneOptions { list: true, ..PruneOptions::default() })
    }

    /// Prunes as [`prune`](Self::prune) does, with options.
    ///
    /// # Errors
    /// Those of [`Transaction::prune`].
    pub fn prune_with(&self, root: &Root, options: &PruneOptions) -> Result<Pruned> {
        let mut transaction = self.transaction()?;
        let pruned = transaction.prune_in(&self.tree, root, *options)?;
        // Nothing was changed otherwise.
        if matches!(pruned, Pruned::Removed { .. } | Pruned::Counted(_)) {
            transaction.finish()?;
        }
        Ok(pruned)
    }

    /// Prunes the ancestors of a root beyond a depth. As [`Transaction::prune_below`].
    ///
    /// # Errors
    /// Those of [`Transaction::prune_below`].
    pub fn prune_below(&self, tip: &Root, depth: u64) -> Result<u64> {
        let mut transaction = self.transaction()?;
        let pruned = transaction.prune_below_in(&self.tree, tip, depth)?;
        transaction.finish()?;
        Ok(pruned)
    }

    /// Prunes all versions but those of some roots. As [`Transaction::retain`].
    ///
    /// # Errors
    /// Those of [`Transaction::retain`].
    pub fn retain(&self, roots: &BTreeSet<Root>) -> Result<u64> {
        let mut transaction = self.transaction()?;
        let pruned = transaction.retain_in(&self.tree, roots)?;
        transaction.finish()?;
        Ok(pruned)
    }

    /// All retained versions, in the order of their commits.
    ///
    /// Cost: a record for each root and each version, and one more for each version whose root has
    /// a newer one.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::CorruptRecord`] and those of the back-end.
    pub fn versions(&self) -> Result<Vec<VersionInfo>> {
        let Snapshot { reader, .. } = self.snapshot()?;
        let info = |(id, version): (VersionId, Version)| VersionInfo {
            id,
            root: version.edge.top,
            parent: version.neighbour.filter(|_| version.is_child),
            children: Vec::new(),
            metadata: version.metadata,
        };

        let mut infos: Vec<VersionInfo> = self.records(&*reader)?.into_iter().map(info).collect();
        for at in 0..infos.len() {
            let child = infos[at].id;
            let Some(parent) = infos[at].parent else { continue };
            // Records ascend by number.
            match infos.binary_search_by_key(&parent, |info| info.id) {
                Ok(parent) => infos[parent].children.push(child),
                Err(_) => {
                    let what =
                        format!("version {child} names version {parent}, which is not there");
                    return Err(Error::CorruptRecord { what });
                }
            }
        }

        Ok(infos)
    }

    /// All versions as they are stored, ascending.
    pub(crate) fn records(&self, reader: &dyn Reader) -> Result<Vec<(VersionId, Version)>> {
        let mut records = Vec::new();
        for (root, ids) in versions::roots(reader, self.tree.id)? {
            for id in ids {
                let version = versions::version(reader, id)?;
                if version.edge.top != root {
                    let what = format!("version {id} is not one of root {root}");
                    return Err(Error::CorruptRecord { what });
                }
                records.push((id, version));
            }
        }

        records.sort_unstable_by_key(|(id, _)| *id);
        Ok(records)
    }
}

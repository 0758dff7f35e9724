//! Transaction: commits, prunes and metadata that become visible and durable together, or not at
//! all.
//!
//! A transaction reads its own changes. If it is dropped before [`finish`](Transaction::finish),
//! nothing is changed. A call that fails half way poisons the transaction ([`Error::Aborted`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::change::{Change, sorted};
use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::commit::build::build;
use crate::commit::hashing::end_hash;
use crate::commit::new_tree::{Built, NewNode};
use crate::commit::record_changes::{Effect, RecordChanges};
use crate::node::node::{Edge, INLINE_VALUE_BYTES_MAX, Node};
use crate::records::node_store::{Loaded, NodeCache, Nodes};
use crate::records::record::Content;
use crate::records::ref_counts::each_edge_not_in;
use crate::records::versions::{self, Head, Ids, TreeId, Version, VersionId};
use crate::store::inner::{Inner, TreeChanges, edge_of};
use crate::store::leaves::{Leaves, Order, View};
use terrane_kv::turn::TurnGuard;
use terrane_kv::{Entry, KEY_BYTES_MAX, Reader, Table, VALUE_BYTES_MAX, Writer};

/// The index of the metadata map.
pub const METADATA: &str = "metadata";
/// Most bytes of a tree's name.
pub const TREE_NAME_BYTES_MAX: usize = 255;
/// Most bytes of a version's metadata.
pub const VERSION_METADATA_BYTES_MAX: usize = 4096;

const METADATA_TABLE: Table<'static> = Table::Index(METADATA);

/// A tree by its name and number.
#[derive(Debug, Clone)]
pub(crate) struct TreeName {
    pub(crate) name: String,
    pub(crate) id: TreeId,
}

/// Outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The new root.
    pub root: Root,
    /// The new version; `None` if the batch or the new state is empty.
    pub version: Option<VersionId>,
    /// Number of plain nodes that no retained version of any tree had before.
    pub added: u64,
}

/// Options of pruning a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct PruneOptions {
    /// Keeps the last version of a root that has two or more retained children.
    pub keep_fork_points: bool,
    /// Returns the hashes of the removed nodes, and not only their number. Costs hashing them.
    pub list: bool,
}

impl PruneOptions {
    terrane_io::setters! {
        keep_fork_points: bool,
        list: bool,
    }
}

/// Outcome of pruning a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pruned {
    /// The root is gone, and so are the nodes that no retained version of any tree reaches.
    Removed {
        /// Number of removed plain nodes.
        count: u64,
        /// Their hashes, if they were asked for.
        hashes: BTreeSet<NodeHash>,
    },
    /// One version is gone. The root stays with this many other versions.
    Counted(usize),
    /// No retained version has this root. Nothing was changed.
    Unknown,
    /// The version is a fork point with this many children, and was to be kept. Nothing was
    /// changed.
    ForkPoint(usize),
    /// The empty root is always retained. Nothing was changed.
    EmptyRoot,
}

/// Several changes as one. Dropped before [`finish`](Self::finish), it changes nothing.
///
/// A store has one transaction at a time. While a thread has one, its calls that need another one
/// fail with [`Error::Busy`]: [`Tree::commit`](crate::Tree::commit),
/// [`prune`](crate::Tree::prune), [`Store::set_metadata`](crate::Store::set_metadata)
/// and the like. The calls of other threads wait. A transaction stays in its thread, as LMDB's do.
pub struct Transaction<'a> {
    inner: &'a Arc<Inner>,
    writer: Box<dyn Writer + 'a>,
    head: Head,
    moves: TreeChanges,
    /// Whether trees or versions were changed.
    is_changed: bool,
    /// Whether a call failed that had changed something.
    is_aborted: bool,
    /// Given back last.
    turn: TurnGuard<'a>,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

/// Refuses names that a tree cannot have.
fn check_name(name: &str) -> Result<()> {
    if (1..=TREE_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::InvalidTreeName { bytes: name.len(), max: TREE_NAME_BYTES_MAX })
}

fn check_size(what: &'static str, bytes: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&bytes) {
        return Ok(());
    }
    Err(Error::Size { what, bytes, min, max })
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>) -> Result<Self> {
        let turn = inner.turn()?;
        let writer = inner.database.writer()?;
        let head = versions::head(&*writer)?;
        inner.follow(&head);
        let moves = TreeChanges::default();
        Ok(Self { inner, writer, head, moves, is_changed: false, is_aborted: false, turn })
    }

    /// The writer to read from, and the count of transactions in the head.
    pub(crate) fn reading(&self) -> (&(dyn Writer + 'a), u64) {
        (&*self.writer, self.head.transactions)
    }

    /// Commits, and returns when the commit is as durable as the database promises.
    ///
    /// # Errors
    /// [`Error::Aborted`], [`Error::StoreFull`], [`Error::Busy`], [`Error::BackEnd`]: nothing was
    /// done, unless the source says that the outcome is unknown or the database poisoned.
    pub fn finish(self) -> Result<()> {
        let Self { inner, mut writer, mut head, moves, is_changed, is_aborted, turn } = self;
        if is_aborted {
            return Err(Error::Aborted);
        }

        if is_changed {
            // Other stores forget their roots when the count grows; the metadata map alone changes
            // no root.
            head.transactions += 1;
            versions::put_head(&mut *writer, &head)?;
        }

        let receipt = match writer.commit() {
            Ok(receipt) => receipt,
            Err(error) => {
                // The commit may have taken place although it failed, so no root in memory is known
                // to hold.
                inner.forget();
                return Err(error.into());
            }
        };

        // Noted before the turn is given up: the next transaction relies on it. Other threads may
        // commit while this one waits for its sync.
        inner.note(moves, head.transactions);
        drop(turn);
        Ok(inner.database.settle(receipt)?)
    }

    /// Runs a change that leaves the transaction half changed if it fails.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.is_changed = true;
        // Set before the change runs, so that an error leaves the transaction aborted.
        let was_aborted = std::mem::replace(&mut self.is_aborted, true);
        let changed = change(self)?;
        self.is_aborted = was_aborted;
        Ok(changed)
    }

    /// The number of a tree.
    pub(crate) fn tree_id(&self, name: &str) -> Result<TreeId> {
        check_name(name)?;
        versions::tree(&*self.writer, name)?
            .ok_or_else(|| Error::UnknownTree { name: name.to_owned() })
    }

    /// Creates a tree, which holds the empty state.
    ///
    /// # Errors
    /// [`Error::TreeExists`], [`Error::InvalidTreeName`] and those of the back-end.
    pub fn create_tree(&mut self, name: &str) -> Result<()> {
        self.make_tree(name).map(drop)
    }

    pub(crate) fn make_tree(&mut self, name: &str) -> Result<TreeId> {
        check_name(name)?;
        if versions::tree(&*self.writer, name)?.is_some() {
            return Err(Error::TreeExists { name: name.to_owned() });
        }
        let id =
            self.change(|this| versions::create_tree(&mut *this.writer, name, &mut this.head))?;
        self.moves.trees.push((id, true));
        Ok(id)
    }

    /// Renames a tree.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::TreeExists`], [`Error::InvalidTreeName`] and those of the
    /// back-end.
    pub fn rename_tree(&mut self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let id = self.tree_id(from)?;
        if versions::tree(&*self.writer, to)?.is_some() {
            return Err(Error::TreeExists { name: to.to_owned() });
        }
        self.change(|this| versions::rename_tree(&mut *this.writer, from, to, id))
    }

    /// Removes a tree with all its versions, and the nodes that no other tree needs. Returns
    /// whether it existed.
    ///
    /// Cost: that of pruning each version; the changes are in memory until the end.
    ///
    /// # Errors
    /// [`Error::Corruption`], [`Error::InvalidTreeName`] and those of the back-end.
    pub fn delete_tree(&mut self, name: &str) -> Result<bool> {
        check_name(name)?;
        let Some(id) = versions::tree(&*self.writer, name)? else { return Ok(false) };
        let tree = TreeName { name: name.to_owned(), id };

        let mut ids: Vec<(VersionId, Root)> = Vec::new();
        for (root, of_root) in versions::roots(&*self.writer, id)? {
            ids.extend(of_root.into_iter().map(|version| (version, root)));
        }

        ids.sort_unstable();
        self.change(|this| {
            // Newest first: each version is a tip then, and what it shares with older versions is
            // not walked.
            for (version, root) in ids.into_iter().rev() {
                this.remove_version(&tree, &root, version, false)?;
            }
            versions::remove_tree(&mut *this.writer, name)
        })?;

        self.moves.trees.push((id, false));
        Ok(true)
    }

    /// Names of all trees, in their order.
    ///
    /// # Errors
    /// Those of the back-end.
    pub fn trees(&self) -> Result<Vec<String>> {
        Ok(versions::trees(&*self.writer)?.into_iter().map(|(name, _)| name).collect())
    }

    /// Applies a batch of changes to a retained root of a tree, and retains the outcome as a new
    /// version. An empty batch makes no version and returns the parent.
    ///
    /// Cost: reads the nodes that the changes lead through and are not in memory, side by side
    /// where one level of the tree has several; hashes each node that changes once; reads and
    /// writes a record for each node that changes.
    ///
    /// # Errors
    /// In this order: [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::ValueTooLarge`],
    /// [`Error::DuplicateAddress`], [`Error::AddressNotFound`] or [`Error::PrefixNotFound`];
    /// nothing was done then. [`Error::Corruption`] and those of the back-end: the transaction
    /// should be dropped.
    pub fn commit(&mut self, tree: &str, parent: &Root, changes: &[Change]) -> Result<Committed> {
        self.commit_with(tree, parent, changes, &[])
    }

    /// Commits as [`commit`](Self::commit) does, and gives the version metadata, such as a height.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit), and [`Error::Size`].
    pub fn commit_with(
        &mut self,
        tree: &str,
        parent: &Root,
        changes: &[Change],
        metadata: &[u8],
    ) -> Result<Committed> {
        let id = self.tree_id(tree)?;
        self.commit_to(&TreeName { name: tree.to_owned(), id }, parent, changes, metadata)
    }

    pub(crate) fn commit_to(
        &mut self,
        tree: &TreeName,
        parent: &Root,
        changes: &[Change],
        metadata: &[u8],
    ) -> Result<Committed> {
        check_size("metadata of a version", metadata.len(), 0, VERSION_METADATA_BYTES_MAX)?;
        // Looked up first: an unknown root is refused also with an empty batch.
        let edge = self.edge(tree, parent)?;
        if changes.is_empty() {
            return Ok(Committed { root: *parent, version: None, added: 0 });
        }
        let built = self.built(edge.as_ref(), parent, changes)?;
        // The empty state needs no version: it is retained in each tree.
        let Some(at) = built.root else {
            return Ok(Committed { root: Root::EMPTY, version: None, added: 0 });
        };
        // A prune drops the oldest version of a root first, so the newest is a neighbour for
        // longest.
        let neighbour = versions::newest_of_root(&*self.writer, tree.id, parent)?;
        self.change(|this| this.add(tree, edge.as_ref(), neighbour, &built, at, metadata))
    }

    /// Retains the outcome of changes to a version, also without changes, and joins it to that
    /// version. Returns the edge of the whole tree too; `None` if the outcome is the empty state.
    pub(crate) fn commit_on(
        &mut self,
        tree: &TreeName,
        (neighbour, edge): &(VersionId, Edge),
        changes: &[Change],
        metadata: &[u8],
    ) -> Result<Option<(Committed, Edge)>> {
        if changes.is_empty() {
            // The version has each edge of its neighbour at the same place, so no reference is
            // counted.
            let edge = edge.clone();
            let version = self.add_version(tree, edge.clone(), Some(*neighbour), metadata)?;
            let committed = Committed { root: edge.top, version: Some(version), added: 0 };
            return Ok(Some((committed, edge)));
        }
        let built = self.built(Some(edge), &edge.top, changes)?;
        let Some(at) = built.root else { return Ok(None) };
        let add =
            |this: &mut Self| this.add(tree, Some(edge), Some(*neighbour), &built, at, metadata);
        Ok(Some((self.change(add)?, built.edge(at))))
    }

    /// Retains what a batch made of a root.
    fn add(
        &mut self,
        tree: &TreeName,
        edge: Option<&Edge>,
        neighbour: Option<VersionId>,
        built: &Built,
        at: usize,
        metadata: &[u8],
    ) -> Result<Committed> {
        let mut records = RecordChanges::with_capacity(built.nodes.len());
        let parent = edge.map_or(Root::EMPTY, |edge| edge.top);
        // Edges that the neighbour has at the same place have their references already.
        add_new(built, at, edge.map(|edge| edge.top), &mut records, &self.inner.cache);
        let Effect { added, .. } =
            records.apply(&mut *self.writer, false).map_err(|error| error.below(&parent))?;

        let edge = built.edge(at);
        let root = edge.top;
        let version = self.add_version(tree, edge, neighbour, metadata)?;
        Ok(Committed { root, version: Some(version), added })
    }

    /// Retains a tree whose records are written as a version that is joined to another.
    pub(crate) fn add_version(
        &mut self,
        tree: &TreeName,
        edge: Edge,
        neighbour: Option<VersionId>,
        metadata: &[u8],
    ) -> Result<VersionId> {
        let root = edge.top;
        self.is_changed = true;
        // Counted up also when versions are pruned, so that no number is given twice.
        self.head.last_version += 1;
        let version = VersionId(self.head.last_version);
        debug_assert!(
            neighbour.is_none_or(|neighbour| neighbour < version),
            "a version is joined to an older one"
        );

        if let Some(neighbour) = neighbour {
            self.with_version(neighbour, |writer, record| {
                versions::add_dependent(writer, neighbour, record, version)
            })?;
        }

        let record = Version {
            tree: tree.id,
            edge: edge.clone(),
            neighbour,
            is_child: neighbour.is_some(),
            dependents: Ids::default(),
            metadata: metadata.to_vec(),
        };

        versions::add_version(&mut *self.writer, version, &record)?;
        versions::add_to_root(&mut *self.writer, tree.id, &root, version)?;
        self.moves.roots.push((tree.id, root, Some(edge)));
        Ok(version)
    }

    pub(crate) fn writer(&mut self) -> &mut (dyn Writer + 'a) {
        &mut *self.writer
    }

    /// Computes the root that a batch would give. Stores nothing.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn compute_root(&self, tree: &str, parent: &Root, changes: &[Change]) -> Result<Root> {
        let id = self.tree_id(tree)?;
        let edge = self.edge(&TreeName { name: tree.to_owned(), id }, parent)?;
        if changes.is_empty() {
            return Ok(*parent);
        }
        Ok(self.built(edge.as_ref(), parent, changes)?.root_hash())
    }

    fn built(&self, edge: Option<&Edge>, parent: &Root, changes: &[Change]) -> Result<Built> {
        build_on(&self.nodes(parent), edge, changes, self.inner.options.threads)
    }

    fn nodes(&self, root: &Root) -> Nodes<'_> {
        self.inner.nodes(&*self.writer, root)
    }

    /// The edge of a root of a tree, as the transaction sees it.
    fn edge(&self, tree: &TreeName, root: &Root) -> Result<Option<Edge>> {
        // The last change of a root counts: a transaction may make a root and prune it again.
        let moved = self
            .moves
            .roots
            .iter()
            .rev()
            .find(|(of, of_root, _)| (*of, of_root) == (tree.id, root));

        match moved {
            Some((_, _, Some(edge))) => return Ok(Some(edge.clone())),
            // Nobody else commits meanwhile, so a known root that this transaction left alone is
            // current.
            None => {
                if let Some(edge) = self.inner.known(tree.id, root) {
                    return Ok(Some(edge));
                }
            }
            // `edge_of` gives the error of a root that is gone.
            Some((_, _, None)) => {}
        }

        edge_of(&*self.writer, tree.id, &tree.name, root)
    }

    /// The values of addresses, in their order. As [`Tree::get`](crate::Tree::get).
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn get(
        &self,
        tree: &str,
        root: &Root,
        addresses: &[Address],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let id = self.tree_id(tree)?;
        let Some(edge) = self.edge(&TreeName { name: tree.to_owned(), id }, root)? else {
            return Ok(vec![None; addresses.len()]);
        };
        find(&self.nodes(root), &edge, addresses)
    }

    /// The leaves below a prefix. As [`Tree::leaves`](crate::Tree::leaves).
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::PrefixNotFound`],
    /// [`Error::Corruption`] and those of the back-end.
    pub fn leaves(&self, tree: &str, root: &Root, prefix: &Prefix) -> Result<Leaves<'_>> {
        let id = self.tree_id(tree)?;
        let edge = self.edge(&TreeName { name: tree.to_owned(), id }, root)?;
        let view = View::Transaction(&*self.writer);
        Leaves::below(Arc::clone(self.inner), view, *root, edge.as_ref(), prefix)
    }

    /// The leaves from an address on. As [`Tree::leaves_from`](crate::Tree::leaves_from).
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn leaves_from(
        &self,
        tree: &str,
        root: &Root,
        from: Option<&Address>,
        order: Order,
    ) -> Result<Leaves<'_>> {
        let id = self.tree_id(tree)?;
        let edge = self.edge(&TreeName { name: tree.to_owned(), id }, root)?;
        let view = View::Transaction(&*self.writer);
        Leaves::from(Arc::clone(self.inner), view, *root, edge.as_ref(), from, order)
    }

    /// Drops the oldest retained version of a root; with the last one the root is gone, and with it
    /// the nodes that nothing else reaches.
    ///
    /// Cost: reads the nodes in which the version differs from those that it was made of and that
    /// were made of it; writes a record for each that goes.
    ///
    /// # Errors
    /// [`Error::UnknownTree`]; [`Error::Corruption`] and those of the back-end: the transaction
    /// should be dropped.
    pub fn prune(&mut self, tree: &str, root: &Root, options: &PruneOptions) -> Result<Pruned> {
        let id = self.tree_id(tree)?;
        self.prune_in(&TreeName { name: tree.to_owned(), id }, root, *options)
    }

    pub(crate) fn prune_in(
        &mut self,
        tree: &TreeName,
        root: &Root,
        options: PruneOptions,
    ) -> Result<Pruned> {
        if *root == Root::EMPTY {
            return Ok(Pruned::EmptyRoot);
        }

        let Some((oldest, count)) = versions::oldest_of_root(&*self.writer, tree.id, root)? else {
            return Ok(Pruned::Unknown);
        };

        // Another version of the root would still stand for the fork.
        if options.keep_fork_points && count == 1 {
            let children = self.children(oldest)?;
            if children > 1 {
                return Ok(Pruned::ForkPoint(children));
            }
        }

        let effect = self.change(|this| this.remove_version(tree, root, oldest, options.list))?;
        // Another version of the root needs the same nodes, so none of them is gone.
        if count > 1 {
            return Ok(Pruned::Counted(usize::try_from(count - 1).unwrap_or(usize::MAX)));
        }

        let hashes = effect.removed_hashes.into_iter().collect();
        Ok(Pruned::Removed { count: effect.removed, hashes })
    }

    /// Number of versions whose nearest retained ancestor is this version.
    fn children(&self, id: VersionId) -> Result<usize> {
        let version = versions::version(&*self.writer, id)?;
        let mut children = 0;
        for id in versions::dependents(&*self.writer, id, &version)? {
            children += usize::from(versions::version(&*self.writer, id)?.is_child);
        }
        Ok(children)
    }

    /// Keeps, of the ancestors of a root, the nearest `depth` versions, and prunes those beyond.
    /// Forks are left alone. Returns the number of removed versions.
    ///
    /// # Errors
    /// Those of [`prune`](Self::prune), and [`Error::UnknownRoot`].
    pub fn prune_below(&mut self, tree: &str, tip: &Root, depth: u64) -> Result<u64> {
        let id = self.tree_id(tree)?;
        self.prune_below_in(&TreeName { name: tree.to_owned(), id }, tip, depth)
    }

    pub(crate) fn prune_below_in(
        &mut self,
        tree: &TreeName,
        tip: &Root,
        depth: u64,
    ) -> Result<u64> {
        // An unknown tip and the empty root both have no version; only the unknown tip is refused.
        self.edge(tree, tip)?;
        let mut next = versions::newest_of_root(&*self.writer, tree.id, tip)?;
        let mut beyond = Vec::new();

        // A parent is older than its child, so the walk ends.
        let mut passed = 0;
        while let Some(version) = next {
            let record = versions::version(&*self.writer, version)?;
            if passed > depth {
                beyond.push((version, record.edge.top));
            }
            passed += 1;
            // A neighbour that is no parent is no ancestor, so the ancestors end there.
            next = record.neighbour.filter(|_| record.is_child);
        }

        // Oldest first: each version differs from its only child by the changes of the child alone.
        self.remove_from_last(tree, &beyond)
    }

    /// Prunes all versions of a tree whose root is not one of `roots`. Returns how many
    /// it removed.
    ///
    /// # Errors
    /// Those of [`prune`](Self::prune).
    pub fn retain(&mut self, tree: &str, roots: &BTreeSet<Root>) -> Result<u64> {
        let id = self.tree_id(tree)?;
        self.retain_in(&TreeName { name: tree.to_owned(), id }, roots)
    }

    pub(crate) fn retain_in(&mut self, tree: &TreeName, roots: &BTreeSet<Root>) -> Result<u64> {
        let mut beyond = Vec::new();
        for (root, versions) in versions::roots(&*self.writer, tree.id)? {
            if !roots.contains(&root) {
                beyond.extend(versions.into_iter().map(|version| (version, root)));
            }
        }

        // Newest first: forks go before their ancestors.
        beyond.sort_unstable();
        self.remove_from_last(tree, &beyond)
    }

    /// Removes versions of a tree, from the last of the list to the first. Returns how many.
    fn remove_from_last(&mut self, tree: &TreeName, versions: &[(VersionId, Root)]) -> Result<u64> {
        if versions.is_empty() {
            return Ok(0);
        }

        self.change(|this| {
            for (version, root) in versions.iter().rev() {
                this.remove_version(tree, root, *version, false)?;
            }
            Ok(())
        })?;

        Ok(versions.len() as u64)
    }

    /// Removes one version of a root.
    fn remove_version(
        &mut self,
        tree: &TreeName,
        root: &Root,
        id: VersionId,
        wants_hashes: bool,
    ) -> Result<Effect> {
        let version = versions::version(&*self.writer, id)?;
        let dependents = versions::dependents(&*self.writer, id, &version)?;
        let neighbours: Vec<VersionId> =
            version.neighbour.iter().chain(&dependents).copied().collect();

        let mut edges = Vec::with_capacity(neighbours.len());
        for neighbour in &neighbours {
            edges.push(versions::version(&*self.writer, *neighbour)?.edge);
        }

        // The dependents are joined to the first neighbour, `first`. An edge of the version that
        // the first neighbour lacks loses its reference, and gains one for each other neighbour
        // that has it, which is then the start of a run of its own. See `ref_counts`.
        let mut records = RecordChanges::default();
        {
            let nodes = self.nodes(root);
            let own = Some(&version.edge);
            let first = edges.first();
            let others: Vec<Option<&Edge>> = edges.iter().skip(1).map(Some).collect();
            each_edge_not_in(&nodes, own, first, &others, &mut |_, edge, count| {
                records.add(end_hash(edge), &edge.extension, count - 1, None);
            })?;

            // An edge that the first neighbour has and the version lacks joins the runs of others.
            if !others.is_empty() {
                each_edge_not_in(&nodes, first, own, &others, &mut |_, edge, count| {
                    records.add(end_hash(edge), &edge.extension, -count, None);
                })?;
            }
        }

        let effect =
            records.apply(&mut *self.writer, wants_hashes).map_err(|error| error.below(root))?;

        // Only readers of an older snapshot ask for these nodes again.
        effect.gone.iter().for_each(|node| self.inner.cache.remove(*node));
        self.take_out(id, &version, &dependents)?;
        // The edge stays in memory as long as one version of the root is left.
        if versions::take_from_root(&mut *self.writer, tree.id, root, id)? == 0 {
            self.moves.roots.push((tree.id, *root, None));
        }

        Ok(effect)
    }

    /// Takes a version out of the forest: joins its dependents to its neighbour, or, without one,
    /// to the first of them.
    fn take_out(
        &mut self,
        id: VersionId,
        version: &Version,
        dependents: &[VersionId],
    ) -> Result<()> {
        versions::remove_version(&mut *self.writer, id, dependents)?;
        // Without a neighbour the oldest dependent takes the place of the version.
        let hub = version.neighbour.or(dependents.first().copied());
        for dependent in dependents {
            self.with_version(*dependent, |_, record| {
                record.neighbour = hub.filter(|hub| hub != dependent);
                // The ancestor of a child of the version is its parent only if the version is a
                // child too.
                record.is_child &= version.is_child;
                Ok(())
            })?;
        }

        let Some(hub) = hub else { return Ok(()) };
        self.with_version(hub, |writer, record| {
            // Only a neighbour names the version; a dependent that takes its place does not.
            if version.neighbour.is_some() {
                versions::take_dependent(writer, hub, record, id)?;
            }
            for dependent in dependents.iter().filter(|dependent| **dependent != hub) {
                versions::add_dependent(writer, hub, record, *dependent)?;
            }
            Ok(())
        })
    }

    fn with_version(
        &mut self,
        id: VersionId,
        change: impl FnOnce(&mut dyn Writer, &mut Version) -> Result<()>,
    ) -> Result<()> {
        let mut record = versions::version(&*self.writer, id)?;
        change(&mut *self.writer, &mut record)?;
        versions::put_version(&mut *self.writer, id, &record)
    }

    /// The value of a key of the metadata map.
    ///
    /// # Errors
    /// [`Error::Size`] and those of the back-end.
    pub fn metadata(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        metadata_of(&*self.writer, key)
    }

    /// Entries of the metadata map whose keys have a prefix, in the order of the keys.
    ///
    /// # Errors
    /// Those of the back-end.
    pub fn metadata_entries(&self, prefix: &[u8]) -> Result<Vec<Entry>> {
        metadata_entries_of(&*self.writer, prefix)
    }

    /// Binds a key of the metadata map, or with `None` removes it.
    ///
    /// # Errors
    /// [`Error::Size`] and those of the back-end.
    pub fn set_metadata(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        check_size("key of the metadata", key.len(), 1, KEY_BYTES_MAX)?;
        check_size("value of the metadata", value.map_or(0, <[u8]>::len), 0, VALUE_BYTES_MAX)?;
        match value {
            Some(value) => self.writer.overwrite(METADATA_TABLE, key, value)?,
            None => self.writer.remove(METADATA_TABLE, key)?,
        }
        Ok(())
    }
}

/// The value of a key of the metadata map.
pub(crate) fn metadata_of(reader: &(impl Reader + ?Sized), key: &[u8]) -> Result<Option<Vec<u8>>> {
    check_size("key of the metadata", key.len(), 1, KEY_BYTES_MAX)?;
    Ok(reader.get(METADATA_TABLE, key)?)
}

/// The entries of the metadata map whose keys have a prefix.
pub(crate) fn metadata_entries_of(
    reader: &(impl Reader + ?Sized),
    prefix: &[u8],
) -> Result<Vec<Entry>> {
    let mut cursor = reader.cursor(METADATA_TABLE)?;
    cursor.seek(prefix)?;
    let mut entries = Vec::new();
    while let Some((key, value)) = cursor.next()? {
        if !key.starts_with(prefix) {
            break;
        }
        entries.push((key, value));
    }
    Ok(entries)
}

/// Builds the tree of a batch; first reads the nodes on its paths, level by level.
pub(crate) fn build_on(
    nodes: &Nodes<'_>,
    edge: Option<&Edge>,
    changes: &[Change],
    threads: usize,
) -> Result<Built> {
    let steps = sorted(changes)?;
    // One step has no node to read beside another.
    if let (Some(edge), true) = (edge, steps.len() > 1) {
        let addresses: Vec<&[u8]> = steps.iter().map(|step| step.prefix.as_bytes()).collect();
        nodes.find(edge, &addresses)?;
    }
    build(nodes, edge, &steps, threads)
}

/// The values of addresses in any order.
pub(crate) fn find(
    nodes: &Nodes<'_>,
    edge: &Edge,
    addresses: &[Address],
) -> Result<Vec<Option<Vec<u8>>>> {
    // `Nodes::find` takes addresses that ascend.
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(|&at| addresses[at]);
    let sorted: Vec<&[u8]> = order.iter().map(|&at| addresses[at].as_bytes()).collect();
    let mut values = vec![None; addresses.len()];
    for (at, value) in order.into_iter().zip(nodes.find(edge, &sorted)?) {
        values[at] = value.map(|value| value.to_vec());
    }
    Ok(values)
}

/// Counts a reference for each edge that is new at its place, and keeps its branch in memory.
fn add_new(
    built: &Built,
    at: usize,
    old: Option<NodeHash>,
    records: &mut RecordChanges,
    cache: &NodeCache,
) {
    let new = &built.nodes[at];
    // Below an edge that the older tree has at this place, everything has its reference.
    if old == Some(new.top) {
        return;
    }

    let content = match &new.end {
        // An old node keeps its record; only the edge above it is new.
        NewNode::Kept(Node::Stored(_)) => None,
        NewNode::Kept(Node::Leaf(_)) => Some(Content::Inline),
        NewNode::Leaf(value) if value.len() <= INLINE_VALUE_BYTES_MAX => Some(Content::Inline),
        NewNode::Leaf(value) => {
            cache.insert(new.end_hash, Loaded::Value(Arc::clone(value)));
            Some(Content::Value(Arc::clone(value)))
        }
        NewNode::Branch(branch) => {
            // At most 36 deep: each branch on the way takes a token of the address.
            for at in branch.new_children() {
                add_new(built, at, built.nodes[at].old, records, cache);
            }
            let branch = Arc::new(built.branch(branch));
            cache.insert(new.end_hash, Loaded::Branch(Arc::clone(&branch)));
            Some(Content::Branch(branch))
        }
    };

    records.add(new.end_hash, &new.extension, 1, content);
}

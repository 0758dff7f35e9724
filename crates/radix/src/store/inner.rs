//! What all handles of a store share: the database, what is in memory of it, and which trees and
//! roots there are.
//!
//! Other stores, of this process or another, may change the same database. So what is in memory of
//! trees and roots is that of one transaction, by the count in the head of the bookkeeping, and is
//! forgotten as soon as a snapshot or a writer has another count. Nodes are named by their hashes
//! and stay right.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::error::{Error, Result};
use crate::base::node_hash::Root;
use crate::node::node::Edge;
use crate::records::node_store::{NodeCache, Nodes};
use crate::records::versions::{self, Head, TreeId, Version};
use crate::store::options::Options;
use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{Database, Reader};

/// Roots in memory, at most.
const ROOTS_MAX: usize = 4096;

/// Roots that are retained, with the edges of their trees. Not all of them.
#[derive(Debug, Default)]
struct Roots {
    edges: HashMap<(TreeId, Root), Edge>,
    /// All trees; `None` if they must be read again.
    trees: Option<HashSet<TreeId>>,
    /// The transaction, by its count, after which it is so.
    transactions: u64,
    /// What [`Database::last_commit`] told not later than that.
    commit: Option<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) cache: NodeCache,
    pub(crate) options: Options,
    roots: Mutex<Roots>,
    /// Held by a transaction until what it did is noted: the next one must not rely on what is no
    /// longer so.
    turn: Turn,
}

/// A state of the database, and the count of the transactions that made it.
pub(crate) struct Snapshot {
    pub(crate) reader: Box<dyn Reader + Send>,
    pub(crate) transactions: u64,
}

/// What a transaction did to trees and roots.
#[derive(Debug, Default)]
pub(crate) struct TreeChanges {
    pub(crate) trees: Vec<(TreeId, bool)>,
    pub(crate) roots: Vec<(TreeId, Root, Option<Edge>)>,
}

impl Inner {
    pub(crate) fn new(database: Arc<dyn Database>, options: Options) -> Self {
        Self {
            database,
            cache: NodeCache::new(options.cache_bytes),
            options,
            roots: Mutex::default(),
            turn: Turn::default(),
        }
    }

    fn roots(&self) -> MutexGuard<'_, Roots> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to make a transaction, when no other thread has it.
    ///
    /// # Errors
    /// [`Error::Busy`] if this thread has it.
    pub(crate) fn turn(&self) -> Result<TurnGuard<'_>> {
        Ok(self.turn.take(self.database.name())?)
    }

    /// Forgets which roots and trees there are: a commit failed, perhaps after it took place.
    pub(crate) fn forget(&self) {
        let mut roots = self.roots();
        *roots = Roots { transactions: roots.transactions, ..Roots::default() };
    }

    /// Forgets what is not of the transaction that a writer comes after.
    pub(crate) fn follow(&self, head: &Head) {
        let mut roots = self.roots();
        if roots.transactions != head.transactions {
            *roots = Roots { transactions: head.transactions, ..Roots::default() };
        }
    }

    /// Notes what a transaction did that is visible now; after it there were so many.
    pub(crate) fn note(&self, moves: TreeChanges, transactions: u64) {
        let mut roots = self.roots();
        // A snapshot may have come before, and may have seen more.
        if roots.transactions > transactions {
            return;
        }

        roots.transactions = transactions;
        for (tree, is_there) in moves.trees {
            if let Some(trees) = &mut roots.trees {
                if is_there {
                    trees.insert(tree)
                } else {
                    trees.remove(&tree)
                };
            }
            if !is_there {
                roots.edges.retain(|(of, _), _| *of != tree);
            }
        }

        for (tree, root, edge) in moves.roots {
            match edge {
                Some(edge) => roots.keep((tree, root), edge),
                None => drop(roots.edges.remove(&(tree, root))),
            }
        }
    }

    /// The edge of a root, if it is in memory that it is retained.
    pub(crate) fn known(&self, tree: TreeId, root: &Root) -> Option<Edge> {
        self.roots().edges.get(&(tree, *root)).cloned()
    }

    /// Whether a tree is there, as a reader sees it after so many transactions.
    pub(crate) fn has_tree(
        &self,
        tree: TreeId,
        reader: &(impl Reader + ?Sized),
        transactions: u64,
    ) -> Result<bool> {
        {
            let roots = self.roots();
            if let (true, Some(trees)) = (roots.transactions == transactions, &roots.trees) {
                return Ok(trees.contains(&tree));
            }
        }

        let trees: HashSet<TreeId> =
            versions::trees(reader)?.into_iter().map(|(_, id)| id).collect();
        let is_there = trees.contains(&tree);
        let mut roots = self.roots();
        if roots.transactions == transactions {
            roots.trees = Some(trees);
        }

        Ok(is_there)
    }

    /// A snapshot. What is in memory is not older afterwards.
    ///
    /// Cost: a record.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let commit = self.database.last_commit();
        let reader = self.database.reader()?;
        let transactions = versions::head(&*reader)?.transactions;
        let mut roots = self.roots();
        if roots.transactions < transactions {
            *roots = Roots { transactions, ..Roots::default() };
        }
        if roots.transactions == transactions {
            roots.commit = commit;
        }
        Ok(Snapshot { reader, transactions })
    }

    /// Sees to it that what is in memory is that of the last transaction, whoever made it. Answers
    /// a snapshot if it took one.
    ///
    /// Cost: nothing if the database tells that there was no commit.
    pub(crate) fn refresh(&self) -> Result<Option<Snapshot>> {
        let commit = self.database.last_commit();
        if commit.is_some() && self.roots().commit == commit {
            return Ok(None);
        }
        self.snapshot().map(Some)
    }

    /// Notes a root that a snapshot has.
    pub(crate) fn found(&self, tree: TreeId, root: &Root, edge: &Edge, transactions: u64) {
        let mut roots = self.roots();
        if roots.transactions == transactions {
            roots.keep((tree, *root), edge.clone());
        }
    }

    pub(crate) fn nodes<'a>(&'a self, reader: &'a dyn Reader, root: &Root) -> Nodes<'a> {
        Nodes { cache: &self.cache, reader, root: Some(*root) }
    }
}

impl Roots {
    fn keep(&mut self, key: (TreeId, Root), edge: Edge) {
        if self.edges.len() >= ROOTS_MAX {
            self.edges.clear();
        }
        self.edges.insert(key, edge);
    }
}

/// The newest version of a root that a tree has; `None` for the empty one.
///
/// # Errors
/// [`Error::UnknownRoot`].
pub(crate) fn version_of(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
    name: &str,
    root: &Root,
) -> Result<Option<Version>> {
    if *root == Root::EMPTY {
        return Ok(None);
    }

    let Some(id) = versions::newest_of_root(reader, tree, root)? else {
        return Err(Error::UnknownRoot { root: *root, tree: name.to_owned() });
    };

    let version = versions::version(reader, id)?;
    if version.edge.top != *root || version.tree != tree {
        return Err(Error::CorruptRecord {
            what: format!("version {id} is not one of root {root}"),
        });
    }

    Ok(Some(version))
}

/// The edge of a root that a tree has; `None` for the empty one.
///
/// # Errors
/// [`Error::UnknownRoot`].
pub(crate) fn edge_of(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
    name: &str,
    root: &Root,
) -> Result<Option<Edge>> {
    Ok(version_of(reader, tree, name, root)?.map(|version| version.edge))
}

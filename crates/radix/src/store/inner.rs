//! State that all handles of a store share: the database, the cache of nodes, the known roots.
//!
//! Another store, of this process or another, may change the same database. The known trees and
//! roots therefore belong to one transaction, by the count in the head of the bookkeeping. They are
//! forgotten when a snapshot or writer has another count. The cache of nodes needs no such check:
//! nodes are named by their hashes.
//!
//! Lock order: the turn, the writer of the database, the mutex of the roots. No call of the
//! database runs under the mutex.

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

/// Most roots in memory.
const ROOTS_MAX: usize = 4096;

/// Some of the retained roots, with the edges of their trees.
#[derive(Debug, Default)]
struct Roots {
    edges: HashMap<(TreeId, Root), Edge>,
    /// All trees; `None` if they must be read again.
    trees: Option<HashSet<TreeId>>,
    /// Count of the transaction after which all this holds.
    transactions: u64,
    /// Answer of [`Database::last_commit`] from before this state was read.
    commit: Option<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) cache: NodeCache,
    pub(crate) options: Options,
    roots: Mutex<Roots>,
    /// Held by a transaction until its outcome is noted: the next transaction relies on the roots.
    turn: Turn,
}

/// A state of the database, and the count of the transactions that made it.
pub(crate) struct Snapshot {
    pub(crate) reader: Box<dyn Reader + Send>,
    pub(crate) transactions: u64,
}

/// Trees and roots that a transaction made or removed.
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

    /// Waits for the right to make a transaction.
    ///
    /// # Errors
    /// [`Error::Busy`] if this thread has it.
    pub(crate) fn turn(&self) -> Result<TurnGuard<'_>> {
        Ok(self.turn.take(self.database.name())?)
    }

    /// Forgets all roots and trees: a commit failed, perhaps after it took place.
    pub(crate) fn forget(&self) {
        let mut roots = self.roots();
        *roots = Roots { transactions: roots.transactions, ..Roots::default() };
    }

    /// Forgets roots and trees of another transaction than the last, which the writer has read.
    pub(crate) fn follow(&self, head: &Head) {
        let mut roots = self.roots();
        if roots.transactions != head.transactions {
            *roots = Roots { transactions: head.transactions, ..Roots::default() };
        }
    }

    /// Notes the outcome of a transaction that is now visible; `transactions` includes it.
    pub(crate) fn note(&self, moves: TreeChanges, transactions: u64) {
        let mut roots = self.roots();

        // A snapshot of a later transaction may have been noted already.
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
            // No number is given twice, so nothing asks for these roots again.
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

    /// The edge of a root, if the root is known to be retained.
    pub(crate) fn known(&self, tree: TreeId, root: &Root) -> Option<Edge> {
        self.roots().edges.get(&(tree, *root)).cloned()
    }

    /// Whether a tree exists in a snapshot of this count of transactions.
    pub(crate) fn has_tree(
        &self,
        tree: TreeId,
        reader: &(impl Reader + ?Sized),
        transactions: u64,
    ) -> Result<bool> {
        // The lock is given back before the trees are read.
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
        // Another transaction may have been noted while the trees were read.
        if roots.transactions == transactions {
            roots.trees = Some(trees);
        }

        Ok(is_there)
    }

    /// Takes a snapshot. The known roots are not older than the snapshot afterwards.
    ///
    /// Cost: reads one record.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        // Asked before the snapshot is taken: an answer from afterwards could name a later commit.
        let commit = self.database.last_commit();
        let reader = self.database.reader()?;
        let transactions = versions::head(&*reader)?.transactions;
        let mut roots = self.roots();
        // Threads note their snapshots in any order; the known roots never go back.
        if roots.transactions < transactions {
            *roots = Roots { transactions, ..Roots::default() };
        }
        // After a later transaction the commit is not that of the known roots.
        if roots.transactions == transactions {
            roots.commit = commit;
        }
        Ok(Snapshot { reader, transactions })
    }

    /// Brings the known roots up to the last transaction of any store. Returns the snapshot if it
    /// took one.
    ///
    /// Cost: none if the database can tell that nothing was committed.
    pub(crate) fn refresh(&self) -> Result<Option<Snapshot>> {
        // An answer that has not changed saves the read of the head.
        let commit = self.database.last_commit();
        if commit.is_some() && self.roots().commit == commit {
            return Ok(None);
        }
        self.snapshot().map(Some)
    }

    /// Notes a root that a snapshot has as retained.
    pub(crate) fn found(&self, tree: TreeId, root: &Root, edge: &Edge, transactions: u64) {
        let mut roots = self.roots();
        // A root of an older snapshot may be pruned by now.
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
        // Two reads find a root again, so a full map is emptied and not ordered by age.
        if self.edges.len() >= ROOTS_MAX {
            self.edges.clear();
        }
        debug_assert!(edge.top == key.1);
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

//! What all handles of a store share: the database, what is in memory of it, and which trees and roots there are.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Database, Reader};
use crate::radix::error::{Error, Result};
use crate::radix::node::Edge;
use crate::radix::node_hash::Root;
use crate::radix::nodes::{NodeCache, Nodes};
use crate::radix::options::Options;
use crate::radix::versions::{self, TreeId};

/// Roots in memory, at most.
const ROOTS_MAX: usize = 4096;

/// Roots that are retained, with the edges of their trees. Not all of them.
#[derive(Debug, Default)]
struct Roots {
    edges: HashMap<(TreeId, Root), Edge>,
    /// All trees; `None` if they must be read again.
    trees: Option<HashSet<TreeId>>,
    /// Changes with each transaction: what was read from a snapshot that is older is not noted.
    generation: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) database: Arc<dyn Database>,
    pub(crate) cache: NodeCache,
    pub(crate) options: Options,
    /// The number of the version that was made last.
    pub(crate) last_version: AtomicU64,
    roots: Mutex<Roots>,
    /// Held by a transaction until what it did is noted: the next one must not rely on what is no longer so.
    turn: Mutex<()>,
}

/// What a transaction did to trees and roots.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) trees: Vec<(TreeId, bool)>,
    pub(crate) roots: Vec<(TreeId, Root, Option<Edge>)>,
}

impl Core {
    pub(crate) fn new(
        database: Arc<dyn Database>,
        options: Options,
        trees: impl Iterator<Item = TreeId>,
        last_version: u64,
    ) -> Self {
        let roots = Roots { trees: Some(trees.collect()), ..Roots::default() };
        Self {
            database,
            cache: NodeCache::new(options.cache_bytes),
            options,
            last_version: AtomicU64::new(last_version),
            roots: Mutex::new(roots),
            turn: Mutex::new(()),
        }
    }

    fn roots(&self) -> MutexGuard<'_, Roots> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to make a transaction.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets which roots and trees there are: a commit failed, perhaps after it took place.
    pub(crate) fn forget(&self) {
        let mut roots = self.roots();
        let generation = roots.generation + 1;
        *roots = Roots { generation, ..Roots::default() };
    }

    /// Notes what a transaction did that is visible now.
    pub(crate) fn note(&self, moves: Moves) {
        let mut roots = self.roots();
        roots.generation += 1;
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

    pub(crate) fn has_tree(&self, tree: TreeId) -> Result<bool> {
        if let Some(trees) = &self.roots().trees {
            return Ok(trees.contains(&tree));
        }
        let (reader, generation) = self.snapshot()?;
        let trees: HashSet<TreeId> =
            versions::trees(&*reader)?.into_iter().map(|(_, id)| id).collect();
        let is_there = trees.contains(&tree);
        let mut roots = self.roots();
        if roots.generation == generation {
            roots.trees = Some(trees);
        }
        Ok(is_there)
    }

    /// A snapshot, and what to note roots by that are read from it.
    pub(crate) fn snapshot(&self) -> Result<(Box<dyn Reader + Send>, u64)> {
        let generation = self.roots().generation;
        Ok((self.database.reader()?, generation))
    }

    /// Notes a root that a snapshot has.
    pub(crate) fn found(&self, tree: TreeId, root: &Root, edge: &Edge, generation: u64) {
        let mut roots = self.roots();
        if roots.generation == generation {
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
    if *root == Root::EMPTY {
        return Ok(None);
    }
    let ids = versions::of_root(reader, tree, root)?;
    let Some(id) = ids.last() else {
        return Err(Error::UnknownRoot { root: *root, tree: name.to_owned() });
    };
    let version = versions::version(reader, *id)?;
    if version.edge.top != *root || version.tree != tree {
        return Err(Error::CorruptRow { what: format!("version {id} is not one of root {root}") });
    }
    Ok(Some(version.edge))
}

//! Walks through directories that keep no loaded node in the tree, so a walk over a large tree
//! takes the memory of one path.
//!
//! Nodes that are in memory are used.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::hashing::BRANCHING_MAX;
use crate::tree::digest::spot_hash;
use crate::tree::node::{Content, EntriesRef, Env, Node, Shape, Spot};

/// Returns the directory at a spot; `None` for a value.
///
/// Cost: one read if it is not in memory.
pub(crate) fn dir(env: &Env, spot: Spot<'_>) -> Result<Option<Arc<Node>>> {
    if let Some(node) = spot.looked_at() {
        return Ok(Some(Arc::clone(node)));
    }
    match spot.content() {
        Content::DirAt(link) => env.load_at(&link, 0).map(Some),
        Content::Dir(node) => Ok(Some(Arc::clone(node))),
        Content::Blinded { is_value: false, hash } => Err(env.missing(hash)),
        _ => Ok(None),
    }
}

/// Step of a directory with its child.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Invariant: it is of entries, and has the item.
    node: Arc<Node>,
    item: usize,
}

impl Entry {
    fn entries(&self) -> EntriesRef<'_> {
        match self.node.shape() {
            Shape::Entries(entries) => entries,
            Shape::Inner(_) => unreachable!("inodes with buckets have no items"),
        }
    }

    pub(crate) fn step(&self) -> &[u8] {
        self.entries().step(self.item)
    }

    pub(crate) fn spot(&self) -> Spot<'_> {
        self.entries().spot(self.item)
    }
}

/// Returns whether two children of hashed trees have the same kind and hash.
pub(crate) fn same(left: (&Env, Spot<'_>), right: (&Env, Spot<'_>)) -> bool {
    // In Tezos an empty directory and an empty value have one hash, so the kinds are compared too.
    left.1.is_value() == right.1.is_value()
        && spot_hash(left.0, left.1) == spot_hash(right.0, right.1)
}

/// Iteration over the steps of one directory, in the order of storage.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Open inodes, each with its next item or bucket.
    stack: Vec<(Arc<Node>, usize)>,
}

impl Walk {
    pub(crate) fn new(dir: Arc<Node>) -> Self {
        Self { stack: vec![(dir, 0)] }
    }

    /// Cost: one read for each inode that is not in memory.
    pub(crate) fn next(&mut self, env: &Env) -> Result<Option<Entry>> {
        while let Some((node, next)) = self.stack.last_mut() {
            let item = *next;
            *next += 1;
            match node.shape() {
                Shape::Entries(entries) if item < entries.len() => {
                    return Ok(Some(Entry { node: Arc::clone(node), item }));
                }
                Shape::Inner(inner) if item < BRANCHING_MAX as usize => {
                    if let Some(below) = inner.fetch(env, item)? {
                        self.stack.push((below, 0));
                    }
                }
                Shape::Entries(_) | Shape::Inner(_) => drop(self.stack.pop()),
            }
        }

        Ok(None)
    }
}

/// Returns all steps of a directory, ascending.
pub(crate) fn sorted(env: &Env, dir: &Arc<Node>) -> Result<Vec<Entry>> {
    let mut walk = Walk::new(Arc::clone(dir));
    let mut all = Vec::new();
    while let Some(entry) = walk.next(env)? {
        all.push(entry);
    }
    all.sort_unstable_by(|a, b| a.step().cmp(b.step()));
    Ok(all)
}

//! Walking through directories without keeping in the tree what is loaded on the way, so that a walk over a large
//! tree takes the memory of one path.
//!
//! What is in memory already is used from there.

use std::sync::{Arc, OnceLock};

use crate::address::Link;
use crate::digest::spot_hash;
use crate::error::Result;
use crate::hash::Hash;
use crate::node::{Body, Child, EntriesNode, Env, InnerNode, Node, Slot, Spot};
use crate::record::Stored;

fn fetch(env: &Env, near: &OnceLock<Arc<Node>>, link: &Link) -> Result<Arc<Node>> {
    match near.get() {
        Some(node) => Ok(Arc::clone(node)),
        None => env.load(link),
    }
}

/// The directory at a spot, if it is one.
///
/// Cost: one read if it is not in memory.
pub(crate) fn dir(env: &Env, spot: Spot<'_>) -> Result<Option<Arc<Node>>> {
    match spot {
        Spot::Kept { entries, ordinal, near } => match entries.stored(ordinal as usize) {
            Stored::Dir(link) => fetch(env, near, &link).map(Some),
            Stored::Inline(_) | Stored::Value(_) => Ok(None),
        },
        Spot::Own(Child::DirAt(far)) => fetch(env, &far.1, &far.0).map(Some),
        Spot::Own(child) => Ok(child.dir(env)?.map(Arc::clone)),
    }
}

/// The inode of a bucket, if it is not empty.
///
/// Cost: one read if it is not in memory.
pub(crate) fn bucket(env: &Env, inner: &InnerNode, bucket: usize) -> Result<Option<Arc<Node>>> {
    match &inner.slots[bucket] {
        Slot::Kept(near) => fetch(env, near, inner.kept(bucket)).map(Some),
        _ => Ok(inner.bucket(env, bucket)?.map(Arc::clone)),
    }
}

/// The hash of a bucket that is not empty, of an inode that was hashed.
pub(crate) fn bucket_hash(inner: &InnerNode, bucket: usize) -> Option<Hash> {
    match &inner.slots[bucket] {
        Slot::Empty => None,
        Slot::Kept(_) => Some(inner.kept(bucket).hash),
        Slot::Own(node) => Some(*node.hash.get().expect("a part of what was hashed")),
        Slot::Blinded(hash) => Some(*hash),
    }
}

/// A step of a directory with what is bound to it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Invariant: its body is of entries, and has the item.
    node: Arc<Node>,
    item: usize,
}

impl Entry {
    fn entries(&self) -> &EntriesNode {
        match &self.node.body {
            Body::Entries(entries) => entries,
            Body::Inner(_) => unreachable!("inodes with buckets have no items"),
        }
    }

    pub(crate) fn step(&self) -> &[u8] {
        self.entries().step(self.item)
    }

    pub(crate) fn spot(&self) -> Spot<'_> {
        self.entries().spot(self.item)
    }
}

/// Whether two spots of trees that were hashed are of one kind and hash.
pub(crate) fn same(left: (&Env, Spot<'_>), right: (&Env, Spot<'_>)) -> bool {
    left.1.is_value() == right.1.is_value()
        && spot_hash(left.0, left.1) == spot_hash(right.0, right.1)
}

/// The steps of one directory in the order of storage.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The inodes on the way, each with what is next in it.
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
            match &node.body {
                Body::Entries(entries) if item < entries.items.len() => {
                    return Ok(Some(Entry { node: Arc::clone(node), item }));
                }
                Body::Inner(inner) if item < inner.slots.len() => {
                    if let Some(below) = bucket(env, inner, item)? {
                        self.stack.push((below, 0));
                    }
                }
                Body::Entries(_) | Body::Inner(_) => drop(self.stack.pop()),
            }
        }
        Ok(None)
    }
}

/// All steps of a directory, ascending.
pub(crate) fn sorted(env: &Env, dir: &Arc<Node>) -> Result<Vec<Entry>> {
    let mut walk = Walk::new(Arc::clone(dir));
    let mut all = Vec::new();
    while let Some(entry) = walk.next(env)? {
        all.push(entry);
    }
    all.sort_unstable_by(|a, b| a.step().cmp(b.step()));
    Ok(all)
}

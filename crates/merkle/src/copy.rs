//! Copies of trees that are in memory only, and whose nodes no other tree has: what a commit writes is noted in the
//! nodes, so a store never gets those that another store, or a tree without one, may have.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::digest::spot_hash;
use crate::error::Result;
use crate::hash::Hash;
use crate::node::{
    Binding, Body, Child, EntriesNode, EntriesRef, Env, InnerNode, InnerRef, Known, Node, Shape,
    Slot, Spot, Value,
};
use crate::rules::BRANCHING_MAX;
use crate::walk::dir;

/// What a copy does with parts of which only the hash is known. They are kept in trees without a store only, all of
/// whose nodes are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blinded {
    Keep,
    Refuse,
}

/// A copy of what is at a spot of a tree that was hashed. Parts that are shared stay shared.
///
/// Cost: one read for each directory, inode and value that is not in memory.
pub(crate) fn copy(env: &Env, spot: Spot<'_>, blinded: Blinded) -> Result<Child> {
    Copier { env, nodes: HashMap::new(), blinded }.spot(spot)
}

struct Copier<'a> {
    env: &'a Env,
    /// The copies of the nodes that were met; of partial trees also by what they are a copy of, since nodes of one hash may
    /// differ in what is blinded.
    nodes: HashMap<(Hash, *const Node), Arc<Node>>,
    blinded: Blinded,
}

// The pointers are compared, never followed.
impl Copier<'_> {
    fn spot(&mut self, spot: Spot<'_>) -> Result<Child> {
        if let (Blinded::Keep, Spot::Own(Child::Blinded { .. })) = (self.blinded, spot) {
            return Ok(spot.to_child());
        }
        if let Some(node) = dir(self.env, spot)? {
            return Ok(Child::Dir(self.node(&node)?));
        }
        let bytes = spot.value(self.env)?.unwrap_or_default();
        let hash = OnceLock::from(spot_hash(self.env, spot));
        Ok(Child::Value(Arc::new(Value { hash, ..Value::new(bytes.into()) })))
    }

    fn node(&mut self, node: &Node) -> Result<Arc<Node>> {
        let hash = *node.hash.get().expect("the tree was hashed");
        let met = match self.blinded {
            Blinded::Keep => std::ptr::from_ref(node),
            Blinded::Refuse => std::ptr::null(),
        };
        if let Some(copy) = self.nodes.get(&(hash, met)) {
            return Ok(Arc::clone(copy));
        }
        let body = match node.shape() {
            Shape::Entries(entries) => Body::Entries(self.entries(entries)?),
            Shape::Inner(inner) => Body::Inner(self.inner(inner)?),
        };
        let copy = Node { hash: OnceLock::from(hash), ..Node::new(body, node.height) };
        let copy = Arc::new(copy);
        self.nodes.insert((hash, met), Arc::clone(&copy));
        Ok(copy)
    }

    fn entries(&mut self, entries: EntriesRef<'_>) -> Result<EntriesNode> {
        let binding = |item| {
            let child = self.spot(entries.spot(item))?;
            Ok((entries.step(item).into(), child))
        };
        let bindings: Result<Vec<Binding>> = (0..entries.len()).map(binding).collect();
        Ok(EntriesNode::new(entries.is_leaf(), bindings?))
    }

    fn inner(&mut self, inner: InnerRef<'_>) -> Result<InnerNode> {
        let mut slots = Vec::new();
        for bucket in 0..BRANCHING_MAX as usize {
            if let (Blinded::Keep, Known::Blinded(hash)) = (self.blinded, inner.known(bucket)) {
                slots.push((bucket, Slot::Blinded(Box::new(*hash))));
            } else if let Some(below) = inner.fetch(self.env, bucket)? {
                slots.push((bucket, Slot::Node(self.node(&below)?)));
            }
        }
        Ok(InnerNode::new(inner.depth(), inner.count(), slots.into_iter()))
    }
}

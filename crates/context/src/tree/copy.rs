//! Copies of trees in memory, whose nodes no other tree has.
//!
//! A commit stores extents in the nodes of its tree. So a store never gets nodes that another
//! store, or a tree without a store, may have.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::base::error::Result;
use crate::base::hash::Hash;
use crate::base::hashing::BRANCHING_MAX;
use crate::tree::digest::spot_hash;
use crate::tree::node::{Binding, Child, Content, Env, Known, Node, Shape, Slot, Spot, Value};
use crate::tree::walk::dir;

/// Treatment of blinded parts, of which only the hash is known. Blinded parts are kept only in
/// trees without a store, all of whose nodes are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blinded {
    Keep,
    Refuse,
}

/// Copies the child at a spot of a hashed tree. Shared parts stay shared.
///
/// Cost: one read for each directory, inode and value that is not in memory.
pub(crate) fn copy(env: &Env, spot: Spot<'_>, blinded: Blinded) -> Result<Child> {
    Copier { env, nodes: HashMap::new(), blinded }.copy(spot)
}

struct Copier<'a> {
    env: &'a Env,
    /// Copies of the visited nodes, by hash. In partial trees also by address, since nodes of one
    /// hash may differ in their blinded parts.
    nodes: HashMap<(Hash, *const Node), Arc<Node>>,
    blinded: Blinded,
}

/// Node that is being copied, after the nodes below it.
struct Copying {
    node: Arc<Node>,
    /// The next item, or bucket.
    next: usize,
    bindings: Vec<Binding>,
    slots: Vec<(usize, Slot)>,
}

impl Copying {
    fn new(node: Arc<Node>) -> Self {
        Self { node, next: 0, bindings: Vec::new(), slots: Vec::new() }
    }

    /// Takes the copy of the node that the last call of [`Copier::go_on`] returned.
    fn put(&mut self, copy: Arc<Node>) {
        debug_assert!(self.next > 0, "a child was asked for");
        let last = self.next - 1;
        match self.node.shape() {
            Shape::Entries(entries) => {
                self.bindings.push((entries.step(last).into(), Child::Dir(copy)));
            }
            Shape::Inner(_) => self.slots.push((last, Slot::Node(copy))),
        }
    }
}

// Pointers are compared, never dereferenced.
impl Copier<'_> {
    /// Copies with a list of the open nodes: a path may have more nodes than a thread has stack
    /// for.
    fn copy(&mut self, spot: Spot<'_>) -> Result<Child> {
        let root = match self.spot(spot)? {
            Copied::Whole(child) => return Ok(child),
            Copied::Below(node) => node,
        };

        // Post-order: a copy of a node needs the copies below it.
        let mut way = vec![Copying::new(root)];
        let mut done = None;

        while let Some(copying) = way.last_mut() {
            if let Some(copy) = done.take() {
                copying.put(copy);
            }
            match self.go_on(copying)? {
                Some(below) => match self.nodes.get(&self.key(&below)) {
                    Some(copy) => done = Some(Arc::clone(copy)),
                    None => way.push(Copying::new(below)),
                },
                None => done = way.pop().map(|copied| self.end(copied)),
            }
        }

        Ok(Child::Dir(done.expect("the root was copied last")))
    }

    fn key(&self, node: &Arc<Node>) -> (Hash, *const Node) {
        // Of partial trees, nodes of one hash may differ in their blinded parts.
        let met = match self.blinded {
            Blinded::Keep => Arc::as_ptr(node),
            Blinded::Refuse => std::ptr::null(),
        };
        (*node.hash.get().expect("the tree was hashed"), met)
    }

    fn spot(&self, spot: Spot<'_>) -> Result<Copied> {
        if let (Blinded::Keep, Content::Blinded { .. }) = (self.blinded, spot.content()) {
            return Ok(Copied::Whole(spot.to_child()));
        }
        if let Some(node) = dir(self.env, spot)? {
            return Ok(Copied::Below(node));
        }
        let bytes = spot.value(self.env)?.unwrap_or_default();
        let hash = OnceLock::from(spot_hash(self.env, spot));
        Ok(Copied::Whole(Child::Value(Arc::new(Value { hash, ..Value::new(bytes.into()) }))))
    }

    /// Copies children up to the next node below; `None` if there is no other.
    fn go_on(&self, copying: &mut Copying) -> Result<Option<Arc<Node>>> {
        let Copying { node, next, bindings, slots } = copying;
        match node.shape() {
            Shape::Entries(entries) => {
                while *next < entries.len() {
                    let item = *next;
                    *next += 1;
                    match self.spot(entries.spot(item))? {
                        Copied::Whole(child) => bindings.push((entries.step(item).into(), child)),
                        Copied::Below(node) => return Ok(Some(node)),
                    }
                }
            }
            Shape::Inner(inner) => {
                while *next < BRANCHING_MAX as usize {
                    let bucket = *next;
                    *next += 1;
                    if let (Blinded::Keep, Known::Blinded(hash)) =
                        (self.blinded, inner.known(bucket))
                    {
                        slots.push((bucket, Slot::Blinded(Box::new(hash))));
                    } else if let Some(below) = inner.fetch(self.env, bucket)? {
                        return Ok(Some(below));
                    }
                }
            }
        }

        Ok(None)
    }

    fn end(&mut self, copied: Copying) -> Arc<Node> {
        let Copying { node, bindings, slots, .. } = copied;
        let key = self.key(&node);
        let mut copy = match node.shape() {
            Shape::Entries(entries) => {
                debug_assert_eq!(bindings.len(), entries.len(), "each entry was copied once");
                Node::of_bindings(entries.is_leaf(), &bindings, node.height())
            }
            Shape::Inner(inner) => {
                debug_assert!(
                    slots.windows(2).all(|pair| pair[0].0 < pair[1].0),
                    "buckets were copied in their order"
                );
                let slots = slots.into_iter();
                Node::of_slots((inner.depth(), inner.count()), slots, node.height())
            }
        };

        // The copy keeps the hash, so that it is not hashed again.
        copy.hash = OnceLock::from(key.0);
        let copy = Arc::new(copy);
        self.nodes.insert(key, Arc::clone(&copy));

        copy
    }
}

/// Child at a spot: copied, or a node to be copied first.
enum Copied {
    Whole(Child),
    Below(Arc<Node>),
}

//! Trees as plain data, and copies of trees that need no store.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::hash::Hash;
use crate::node::{Body, Child, EntriesNode, Env, InnerNode, Item, Node, Slot, Spot, Step, Value};
use crate::pins::Pins;
use crate::tree::Tree;
use crate::walk::{Entry, bucket, dir, sorted};

/// A tree as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concrete {
    /// A value.
    Value(Vec<u8>),
    /// A directory.
    Directory(BTreeMap<Box<[u8]>, Concrete>),
}

impl Tree {
    /// The whole tree as plain data.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn to_concrete(&self) -> Result<Concrete> {
        concrete(&self.env, Spot::Own(&self.root))
    }

    /// The tree of plain data, of the same store as this one. Directories without content are left out.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn of_concrete(&self, concrete: &Concrete) -> Result<Self> {
        match concrete {
            Concrete::Value(bytes) => Ok(self.of_value(bytes.as_slice())),
            Concrete::Directory(children) => {
                let mut tree = self.empty();
                for (step, child) in children {
                    tree.add_tree(&[step], &self.of_concrete(child)?)?;
                }
                Ok(tree)
            }
        }
    }

    /// A copy that is in memory only and belongs to no store. Parts that are shared stay shared.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory. The tree is hashed.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn to_memory(&self) -> Result<Self> {
        self.hash();
        let env = Env { rules: self.env.rules, source: None, proof: false };
        let root = Copier { env: &self.env, nodes: HashMap::new() }.spot(Spot::Own(&self.root))?;
        Ok(Self { env: Arc::new(env), root, pins: Pins::default() })
    }
}

fn concrete(env: &Env, spot: Spot<'_>) -> Result<Concrete> {
    let Some(node) = dir(env, spot)? else {
        return Ok(Concrete::Value(spot.value(env)?.unwrap_or_default()));
    };
    let child = |entry: Entry| Ok((entry.step().into(), concrete(env, entry.spot())?));
    let children: Result<BTreeMap<_, _>> = sorted(env, &node)?.into_iter().map(child).collect();
    Ok(Concrete::Directory(children?))
}

struct Copier<'a> {
    env: &'a Env,
    /// The copies of the nodes that were met.
    nodes: HashMap<Hash, Arc<Node>>,
}

impl Copier<'_> {
    fn spot(&mut self, spot: Spot<'_>) -> Result<Child> {
        if let Some(node) = dir(self.env, spot)? {
            return Ok(Child::Dir(self.node(&node)?));
        }
        let bytes = spot.value(self.env)?.unwrap_or_default();
        Ok(Child::Value(Arc::new(Value::new(bytes.into()))))
    }

    fn node(&mut self, node: &Node) -> Result<Arc<Node>> {
        let hash = *node.hash.get().expect("the tree was hashed");
        if let Some(copy) = self.nodes.get(&hash) {
            return Ok(Arc::clone(copy));
        }
        let body = match &node.body {
            Body::Entries(entries) => Body::Entries(self.entries(entries)?),
            Body::Inner(inner) => Body::Inner(self.inner(inner)?),
        };
        let copy = Node { hash: OnceLock::from(hash), ..Node::new(body, node.height) };
        let copy = Arc::new(copy);
        self.nodes.insert(hash, Arc::clone(&copy));
        Ok(copy)
    }

    fn entries(&mut self, entries: &EntriesNode) -> Result<EntriesNode> {
        let item = |item| {
            let child = self.spot(entries.spot(item))?;
            Ok(Item::Own { step: Step::Own(entries.step(item).into()), child })
        };
        let items: Result<Vec<Item>> = (0..entries.items.len()).map(item).collect();
        Ok(EntriesNode { leaf: entries.leaf, base: None, items: items? })
    }

    fn inner(&mut self, inner: &InnerNode) -> Result<InnerNode> {
        let slot = |number| {
            let below = bucket(self.env, inner, number)?;
            below.map_or(Ok(Slot::Empty), |below| Ok(Slot::Own(self.node(&below)?)))
        };
        let slots: Result<Box<[Slot]>> = (0..inner.slots.len()).map(slot).collect();
        Ok(InnerNode { depth: inner.depth, count: inner.count, base: None, slots: slots? })
    }
}

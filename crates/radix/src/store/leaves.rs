//! Iterator over the values of a state in the order of their addresses, from one snapshot.

use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::Root;
use crate::node::branch::Branch;
use crate::node::node::{Edge, Node};
use crate::records::node_store::{Loaded, NodePlace};
use crate::store::inner::Inner;
use terrane_kv::Reader;

/// A snapshot, or the view of a transaction.
pub(crate) enum View<'a> {
    Snapshot(Box<dyn Reader + Send>),
    Transaction(&'a dyn Reader),
}

impl View<'_> {
    pub(crate) fn reader(&self) -> &dyn Reader {
        match self {
            Self::Snapshot(reader) => &**reader,
            Self::Transaction(reader) => *reader,
        }
    }
}

/// Order of leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// From the least address on.
    #[default]
    Ascending,
    /// From the greatest address on.
    Descending,
}

/// Work that is left: a stack, the next on top.
enum Pending {
    Edge(Prefix, Edge),
    Leaf(Prefix, Arc<[u8]>),
    /// Children from a position on, or, descending, before it.
    Children(Prefix, Arc<Branch>, usize),
}

/// The leaves of a state; see [`Tree::leaves`](crate::Tree::leaves). After an error it ends.
///
/// Cost: reads each node once that is not in memory.
pub struct Leaves<'a> {
    inner: Arc<Inner>,
    view: View<'a>,
    root: Root,
    order: Order,
    pending: Vec<Pending>,
}

impl std::fmt::Debug for Leaves<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaves")
            .field("root", &self.root)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl<'a> Leaves<'a> {
    /// The leaves below a prefix.
    ///
    /// # Errors
    /// [`Error::PrefixNotFound`] if there is none, unless the prefix is empty.
    pub(crate) fn below(
        inner: Arc<Inner>,
        view: View<'a>,
        root: Root,
        edge: Option<&Edge>,
        prefix: &Prefix,
    ) -> Result<Self> {
        let found = match edge {
            Some(edge) => inner.nodes(view.reader(), &root).seek(edge, prefix)?,
            None => None,
        };
        if found.is_none() && *prefix != Prefix::EMPTY {
            return Err(Error::PrefixNotFound { prefix: *prefix });
        }
        let pending = found.map(|(path, edge)| Pending::Edge(path, edge)).into_iter().collect();
        Ok(Self { inner, view, root, order: Order::Ascending, pending })
    }

    /// The leaves from an address on: those that are not less, or, descending, not greater.
    pub(crate) fn from(
        inner: Arc<Inner>,
        view: View<'a>,
        root: Root,
        edge: Option<&Edge>,
        from: Option<&Address>,
        order: Order,
    ) -> Result<Self> {
        let mut leaves = Self { inner, view, root, order, pending: Vec::new() };
        let Some(edge) = edge else { return Ok(leaves) };
        leaves.pending.push(Pending::Edge(Prefix::EMPTY, edge.clone()));
        let Some(from) = from.map(Address::as_bytes) else { return Ok(leaves) };

        // Opens the nodes that the address leads through and drops all leaves before it.
        while let Some(next) = leaves.pending.pop() {
            match next {
                Pending::Edge(path, edge) => {
                    let mut end = path;
                    end.extend(edge.extension.as_bytes());
                    let end = end.as_bytes();
                    if from.starts_with(end) {
                        leaves.open(path, &edge)?;
                    } else if (end > from) == (order == Order::Ascending) {
                        leaves.pending.push(Pending::Edge(path, edge));
                        break;
                    }
                }
                Pending::Leaf(path, value) => {
                    let is_in = match order {
                        Order::Ascending => path.as_bytes() >= from,
                        Order::Descending => path.as_bytes() <= from,
                    };
                    if is_in {
                        leaves.pending.push(Pending::Leaf(path, value));
                        break;
                    }
                }
                children @ Pending::Children(..) => leaves.expand(children),
            }
        }

        Ok(leaves)
    }

    /// Replaces an edge by the value and children of its node.
    fn open(&mut self, mut path: Prefix, edge: &Edge) -> Result<()> {
        path.extend(edge.extension.as_bytes());
        let (value, branch) = match &edge.end {
            Node::Leaf(value) => (Some(Arc::clone(value)), None),
            Node::Stored(node) => {
                let nodes = self.inner.nodes(self.view.reader(), &self.root);
                match nodes.load_whole(&NodePlace { node: *node, path })? {
                    Loaded::Value(value) => (Some(value), None),
                    Loaded::Branch(branch) => (branch.value().map(Into::into), Some(branch)),
                }
            }
        };

        let value = value.map(|value| Pending::Leaf(path, value));
        let children = branch.map(|branch| {
            let at = if self.order == Order::Ascending { 0 } else { branch.len() };
            Pending::Children(path, branch, at)
        });

        // The value has the least address of all below, so it comes first, or last if descending.
        match self.order {
            Order::Ascending => self.pending.extend(children.into_iter().chain(value)),
            Order::Descending => self.pending.extend(value.into_iter().chain(children)),
        }

        Ok(())
    }

    /// Pushes the next child on top of the rest.
    fn expand(&mut self, children: Pending) {
        let Pending::Children(path, branch, at) = children else { return };
        let (next, rest) = match self.order {
            Order::Ascending => (at, at + 1),
            // Before position 0 there is nothing: the wrapped position lies behind all children.
            Order::Descending => (at.wrapping_sub(1), at.wrapping_sub(1)),
        };

        if next >= branch.len() {
            return;
        }

        let mut below = path;
        below.extend(&[branch.token_at(next)]);
        let edge = Pending::Edge(below, branch.edge_at(next).to_edge());
        self.pending.push(Pending::Children(path, branch, rest));

        self.pending.push(edge);
    }
}

impl Iterator for Leaves<'_> {
    type Item = Result<(Address, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop()? {
                Pending::Leaf(path, value) => {
                    let address = Address::try_from(path).map_err(|_| Error::Corruption {
                        root: Some(self.root),
                        path,
                        node: self.root,
                        what: "the empty address has a value".into(),
                    });
                    if address.is_err() {
                        self.pending.clear();
                    }
                    return Some(address.map(|address| (address, value.to_vec())));
                }
                Pending::Edge(path, edge) => {
                    if let Err(error) = self.open(path, &edge) {
                        self.pending.clear();
                        return Some(Err(error));
                    }
                }
                children @ Pending::Children(..) => self.expand(children),
            }
        }
    }
}

//! Iterator over the values of a state in the order of their addresses, from one snapshot.
//!
//! The work that is left is a sequence in the order of addresses. Each end of the iterator takes
//! work from its end of the sequence and puts the parts of a node back there. So the ends meet
//! without further care, and no leaf comes twice.

use std::collections::VecDeque;
use std::ops::Range;
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Order {
    /// From the least address on.
    #[default]
    Ascending,
    /// From the greatest address on.
    Descending,
}

impl Order {
    /// The order from the other end.
    fn reversed(self) -> Self {
        match self {
            Self::Ascending => Self::Descending,
            Self::Descending => Self::Ascending,
        }
    }
}

/// Work that is left.
enum Pending {
    Edge(Prefix, Edge),
    Leaf(Prefix, Arc<[u8]>),
    /// Children at these positions.
    Children(Prefix, Arc<Branch>, Range<usize>),
}

/// The leaves of a state, a double-ended iterator; see [`Tree::leaves`](crate::Tree::leaves). After
/// an error it ends.
///
/// Cost: reads each node once that is not in memory.
pub struct Leaves<'a> {
    inner: Arc<Inner>,
    view: View<'a>,
    root: Root,
    order: Order,
    /// By address, whatever the order.
    pending: VecDeque<Pending>,
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
        let mut leaves = Self { inner, view, root, order, pending: VecDeque::new() };
        let Some(edge) = edge else { return Ok(leaves) };
        leaves.pending.push_back(Pending::Edge(Prefix::EMPTY, edge.clone()));
        let Some(from) = from.map(Address::as_bytes) else { return Ok(leaves) };

        // Opens the nodes that the address leads through and drops all leaves before it.
        while let Some(next) = leaves.pop(order) {
            match next {
                Pending::Edge(path, edge) => {
                    let mut end = path;
                    end.extend(edge.extension.as_bytes());
                    let end = end.as_bytes();
                    if from.starts_with(end) {
                        leaves.open(order, path, &edge)?;
                    } else if (end > from) == (order == Order::Ascending) {
                        leaves.push(order, Pending::Edge(path, edge));
                        break;
                    }
                }
                Pending::Leaf(path, value) => {
                    let is_in = match order {
                        Order::Ascending => path.as_bytes() >= from,
                        Order::Descending => path.as_bytes() <= from,
                    };
                    if is_in {
                        leaves.push(order, Pending::Leaf(path, value));
                        break;
                    }
                }
                Pending::Children(path, branch, left) => leaves.expand(order, path, branch, left),
            }
        }

        Ok(leaves)
    }

    /// Takes the work at the end where an order begins.
    fn pop(&mut self, order: Order) -> Option<Pending> {
        match order {
            Order::Ascending => self.pending.pop_front(),
            Order::Descending => self.pending.pop_back(),
        }
    }

    /// Puts work to the end where an order begins.
    fn push(&mut self, order: Order, work: Pending) {
        match order {
            Order::Ascending => self.pending.push_front(work),
            Order::Descending => self.pending.push_back(work),
        }
    }

    /// Puts the value and children of the node of an edge in place of the edge.
    fn open(&mut self, order: Order, mut path: Prefix, edge: &Edge) -> Result<()> {
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
            let all = 0..branch.len();
            Pending::Children(path, branch, all)
        });

        // The value of a node has the least address below it, so the end that goes up puts it last.
        let parts = match order {
            Order::Ascending => [children, value],
            Order::Descending => [value, children],
        };
        for part in parts.into_iter().flatten() {
            self.push(order, part);
        }

        Ok(())
    }

    /// Puts the next child before the rest of them.
    fn expand(&mut self, order: Order, path: Prefix, branch: Arc<Branch>, mut left: Range<usize>) {
        let next = match order {
            Order::Ascending => left.next(),
            Order::Descending => left.next_back(),
        };
        // The two ends of the iterator may have met.
        let Some(next) = next else { return };

        let mut below = path;
        below.extend(&[branch.token_at(next)]);
        let edge = Pending::Edge(below, branch.edge_at(next).to_edge());
        // The other children go back first, so that this child comes next.
        self.push(order, Pending::Children(path, branch, left));
        self.push(order, edge);
    }

    /// Gives the next leaf in an order.
    fn give(&mut self, order: Order) -> Option<Result<(Address, Vec<u8>)>> {
        loop {
            match self.pop(order)? {
                Pending::Leaf(path, value) => {
                    let address = Address::try_from(path).map_err(|_| Error::Corruption {
                        root: Some(self.root),
                        path,
                        node: self.root,
                        what: "the empty address has a value".into(),
                    });
                    // After an error the iterator ends.
                    if address.is_err() {
                        self.pending.clear();
                    }
                    return Some(address.map(|address| (address, value.to_vec())));
                }
                Pending::Edge(path, edge) => {
                    if let Err(error) = self.open(order, path, &edge) {
                        self.pending.clear();
                        return Some(Err(error));
                    }
                }
                Pending::Children(path, branch, left) => self.expand(order, path, branch, left),
            }
        }
    }
}

impl Iterator for Leaves<'_> {
    type Item = Result<(Address, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.give(self.order)
    }
}

impl DoubleEndedIterator for Leaves<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.give(self.order.reversed())
    }
}

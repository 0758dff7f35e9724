//! New edges of a commit: a list, children before their parents, as edits of the older tree.
//!
//! [`build`](crate::commit::build) fills the list, [`hashing`](crate::commit::hashing) fills in the
//! hashes, and the transaction reads nodes and edges from it. Nothing is written here.

use std::sync::Arc;

use crate::base::address::Prefix;
use crate::base::node_hash::NodeHash;
use crate::node::branch::{Branch, BranchWriter};
use crate::node::node::{Edge, INLINE_VALUE_BYTES_MAX, Node};

/// About how many bytes an edge takes.
const EDGE_BYTES: usize = 90;

/// Node at the end of a new edge.
#[derive(Debug)]
pub(crate) enum NewNode {
    /// A value without children.
    Leaf(Arc<[u8]>),
    Branch(NewBranch),
    /// An old node at the same address, below another extension.
    Kept(Node),
}

/// A new branch, as edits of an old one.
#[derive(Debug)]
pub(crate) struct NewBranch {
    pub(crate) value: Option<Arc<[u8]>>,
    /// How many children it has.
    pub(crate) count: usize,
    /// The old branch and its hash.
    base: Option<(NodeHash, Arc<Branch>)>,
    /// Children that the base does not have so, ascending by token: their places in the list, or
    /// `None` for those that are gone.
    edits: Vec<(u8, Option<usize>)>,
}

/// A child of a new branch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Child<'a> {
    /// An edge of an old branch, by its position there.
    Old(&'a Branch, usize),
    /// A new edge, by its position in the list.
    New(usize),
}

impl NewBranch {
    /// The edits of `base` that make a branch of `count` children.
    pub(crate) fn new(
        value: Option<Arc<[u8]>>,
        count: usize,
        base: Option<(NodeHash, Arc<Branch>)>,
        edits: Vec<(u8, Option<usize>)>,
    ) -> Self {
        debug_assert!(edits.is_sorted_by(|one, other| one.0 < other.0), "edits ascend by token");
        let branch = Self { value, count, base, edits };
        debug_assert_eq!(branch.children().count(), count, "each child is counted once");
        branch
    }

    /// All children, ascending by token.
    pub(crate) fn children(&self) -> impl Iterator<Item = (u8, Child<'_>)> {
        let mut edits = self.edits.iter().copied().peekable();

        let base = self.base.as_ref().map(|(_, base)| &**base);
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let old = base.filter(|base| at < base.len()).map(|base| (base.token_at(at), base));
                match (old, edits.peek()) {
                    (Some((token, base)), edit)
                        if edit.is_none_or(|(edited, _)| token < *edited) =>
                    {
                        at += 1;
                        return Some((token, Child::Old(base, at - 1)));
                    }
                    (old, Some(&(token, new))) => {
                        // An edit of a token that the base has takes the place of the base's child.
                        at += usize::from(old.is_some_and(|(other, _)| other == token));
                        edits.next();
                        if let Some(new) = new {
                            return Some((token, Child::New(new)));
                        }
                    }
                    (_, None) => return None,
                }
            }
        })
    }

    /// Places in the list of those children that are in it.
    pub(crate) fn new_children(&self) -> impl Iterator<Item = usize> {
        self.edits.iter().filter_map(|(_, new)| *new)
    }
}

/// A new edge.
#[derive(Debug)]
pub(crate) struct NewEdge {
    pub(crate) extension: Prefix,
    pub(crate) end: NewNode,
    /// The edge that the older tree has at this place.
    pub(crate) old: Option<NodeHash>,
    /// Waves of hashing that come before this edge; 0 for leaves.
    pub(crate) height: usize,
    pub(crate) end_hash: NodeHash,
    pub(crate) top: NodeHash,
}

/// The tree that a batch makes.
#[derive(Debug)]
pub(crate) struct Built {
    /// Children before parents.
    pub(crate) nodes: Vec<NewEdge>,
    /// The place of the whole tree in the list; `None` for a tree without values.
    pub(crate) root: Option<usize>,
}

impl Built {
    pub(crate) fn root_hash(&self) -> NodeHash {
        self.root.map_or(NodeHash::EMPTY, |at| self.nodes[at].top)
    }

    /// An edge of the list as others refer to it.
    pub(crate) fn edge(&self, at: usize) -> Edge {
        let new = &self.nodes[at];
        debug_assert!(new.top != NodeHash::EMPTY, "every edge of the list is hashed");
        let end = match &new.end {
            NewNode::Kept(end) => end.clone(),
            NewNode::Leaf(value) if value.len() <= INLINE_VALUE_BYTES_MAX => {
                Node::Leaf(Arc::clone(value))
            }
            NewNode::Leaf(_) | NewNode::Branch(_) => Node::Stored(new.end_hash),
        };
        Edge { extension: new.extension, top: new.top, end }
    }

    /// A branch of the list with all its edges.
    pub(crate) fn branch(&self, new: &NewBranch) -> Branch {
        debug_assert!(
            new.count + usize::from(new.value.is_some()) >= 2,
            "fewer make a leaf or a longer extension"
        );

        let value = new.value.as_deref();
        if let Some((node, base)) = &new.base
            && base.may_be_edited(new.edits.len())
        {
            let edits = new.edits.iter().map(|(token, at)| (*token, at.map(|at| self.edge(at))));
            if let Some(branch) = base.edited(*node, value, &edits.collect::<Vec<_>>()) {
                return branch;
            }
        }

        let bytes = (new.count + 1) * EDGE_BYTES;
        let mut writer = BranchWriter::new(value, new.count, bytes);
        for (token, child) in new.children() {
            match child {
                Child::Old(branch, at) => writer.copy(branch, at),
                Child::New(at) => writer.push(token, &self.edge(at)),
            }
        }

        writer.finish()
    }
}

//! Edges in which two trees differ, and the reference counts that follow.
//!
//! The versions of a tree form a forest: each is joined to the one it was made of, its neighbour.
//! An edge at a place has a reference for each run of versions, joined to each other, that have it
//! there. As long as that is counted, what a change of the forest costs depends on what differs
//! between neighbours and not on the size of the trees:
//!
//! * A version that is added beside another has a new reference for each edge that the other does
//!   not have at that place.
//! * Of a version `v` that is removed, with neighbours `u1` to `uk`, the others are joined to `u1`.
//!   With the number of references being the number of versions that have the edge less the number
//!   of joints whose both ends have it, an edge changes its references by *(those of `u2`..`uk`
//!   that have it) - 1* if `v` has it at that place and `u1` does not; *-(those of `u2`..`uk` that
//!   have it)* if `u1` has it and `v` does not; and not at all else.

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::error::Result;
use crate::base::node_hash::NodeHash;
use crate::node::branch::Branch;
use crate::node::node::{Edge, Node};
use crate::records::node_store::{Loaded, NodePlace, Nodes};
use std::sync::Arc;

/// A place in a tree.
#[derive(Debug, Clone)]
enum Position {
    Nothing,
    /// An edge begins here.
    Edge(Edge),
    /// Within the extension of an edge, below this many of its tokens.
    Within(Edge, usize),
}

/// The place in one tree of a node of another tree.
enum Landing {
    Nothing,
    Within(Edge, usize),
    /// A node as well: its hash, if the node has a record.
    Node(Option<NodeHash>, Option<Arc<Branch>>),
}

impl Position {
    fn of(edge: Option<&Edge>) -> Self {
        edge.map_or(Self::Nothing, |edge| Self::Edge(edge.clone()))
    }

    fn child(branch: &Branch, token: u8) -> Self {
        branch.child(token).map_or(Self::Nothing, |edge| Self::Edge(edge.to_edge()))
    }

    fn has(&self, other: &Edge) -> bool {
        matches!(self, Self::Edge(edge) if edge.top == other.top)
    }

    /// Goes along the extension of another tree, to the place of its node.
    fn along(self, nodes: &Nodes<'_>, mut path: Prefix, extension: &Prefix) -> Result<Landing> {
        let mut rest = extension.as_bytes();
        let mut at = self;
        loop {
            let (edge, above) = match at {
                Self::Nothing => return Ok(Landing::Nothing),
                Self::Edge(edge) => (edge, 0),
                Self::Within(edge, above) => (edge, above),
            };

            debug_assert!(above <= edge.extension.as_bytes().len(), "it is within the extension");
            let own = &edge.extension.as_bytes()[above..];
            if own.len() > rest.len() {
                return Ok(if own.starts_with(rest) {
                    let above = above + rest.len();
                    debug_assert!(above < edge.extension.as_bytes().len(), "the node is below");
                    Landing::Within(edge, above)
                } else {
                    Landing::Nothing
                });
            }

            let Some(left) = rest.strip_prefix(own) else { return Ok(Landing::Nothing) };
            path.extend(own);
            let Node::Stored(node) = edge.end else {
                return Ok(if left.is_empty() {
                    Landing::Node(None, None)
                } else {
                    Landing::Nothing
                });
            };

            let Some((&token, further)) = left.split_first() else {
                let branch = match nodes.load(&NodePlace { node, path })? {
                    Loaded::Branch(branch) => Some(branch),
                    Loaded::Value(_) => None,
                };
                return Ok(Landing::Node(Some(node), branch));
            };

            let Loaded::Branch(branch) = nodes.load(&NodePlace { node, path })? else {
                return Ok(Landing::Nothing);
            };

            path.extend(&[token]);
            at = Self::child(&branch, token);
            rest = further;
        }
    }
}

impl Landing {
    /// One token further.
    fn child(&self, token: u8) -> Position {
        match self {
            Self::Within(edge, above) if edge.extension.as_bytes()[*above] == token => {
                let above = above + 1;
                Position::Within(edge.clone(), above)
            }
            Self::Node(_, Some(branch)) => Position::child(branch, token),
            Self::Nothing | Self::Within(..) | Self::Node(_, None) => Position::Nothing,
        }
    }
}

/// Calls `visit` with the path and each edge that `tree` has and `base` does not have at the same
/// place, and how many of `others` have it there.
///
/// Cost: the nodes that differ.
pub(crate) fn each_edge_not_in(
    nodes: &Nodes<'_>,
    tree: Option<&Edge>,
    base: Option<&Edge>,
    others: &[Option<&Edge>],
    visit: &mut dyn FnMut(&Prefix, &Edge, i64),
) -> Result<()> {
    let Some(tree) = tree else { return Ok(()) };
    let others = others.iter().map(|other| Position::of(*other)).collect();
    walk(nodes, Prefix::EMPTY, tree, Position::of(base), others, visit)
}

/// Goes down by one edge; at most 36 deep.
fn walk(
    nodes: &Nodes<'_>,
    mut path: Prefix,
    edge: &Edge,
    base: Position,
    others: Vec<Position>,
    visit: &mut dyn FnMut(&Prefix, &Edge, i64),
) -> Result<()> {
    debug_assert!(
        path.as_bytes().len() + edge.extension.as_bytes().len() <= ADDRESS_BYTES_MAX,
        "`load_whole` refuses a branch whose children lie deeper"
    );

    // Equal hashes stand for equal trees, in which every edge has its reference already.
    if base.has(edge) {
        return Ok(());
    }

    visit(&path, edge, others.iter().map(|other| i64::from(other.has(edge))).sum());

    let Node::Stored(node) = edge.end else { return Ok(()) };
    let base = base.along(nodes, path, &edge.extension)?;
    // Equal nodes have equal trees below them, although the extensions above may differ.
    if matches!(&base, Landing::Node(Some(other), _) if *other == node) {
        return Ok(());
    }

    // Below an edge that the base has, both trees are equal; so only differing edges are followed.
    let others: Vec<Landing> = others
        .into_iter()
        .map(|other| other.along(nodes, path, &edge.extension))
        .collect::<Result<_>>()?;

    path.extend(edge.extension.as_bytes());
    let Loaded::Branch(branch) = nodes.load_whole(&NodePlace { node, path })? else {
        return Ok(());
    };

    // Two differences from one base are compared by their entries alone.
    let apart = match &base {
        Landing::Node(_, Some(base)) => branch.places_apart(base),
        _ => None,
    };

    for at in apart.unwrap_or_else(|| (0..branch.len()).collect()) {
        let token = branch.token_at(at);
        let child = branch.edge_at(at);

        // Most children are the same in both trees: compare hashes before anything is copied.
        if let Landing::Node(_, Some(base)) = &base
            && base.child(token).is_some_and(|other| other.top == child.top)
        {
            continue;
        }

        let mut path = path;
        path.extend(&[token]);
        let others = others.iter().map(|other| other.child(token)).collect();
        walk(nodes, path, &child.to_edge(), base.child(token), others, visit)?;
    }

    Ok(())
}

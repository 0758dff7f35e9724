//! Applies a batch to a tree: one descent for all changes, then every new node hashed once, deepest
//! first.
//!
//! New edges stand in a list, children before their parents (see [`new_tree`]). Nothing is written
//! here.
//!
//! [`new_tree`]: crate::commit::new_tree

use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::change::{Action, Step};
use crate::base::error::{Error, Result};
use crate::base::node_hash::NodeHash;
use crate::commit::hashing;
use crate::commit::new_tree::{Built, Child, NewBranch, NewEdge, NewNode};
use crate::node::branch::Branch;
use crate::node::node::{Edge, Node, common};
use crate::records::node_store::{Loaded, NodePlace, Nodes};

/// A sub-tree after the changes.
#[derive(Debug)]
enum NewSubtree {
    None,
    New(usize),
}

/// An edge of the older tree, or what is left of one below a place within its extension.
#[derive(Clone)]
struct OldEdge {
    extension: Prefix,
    end: Node,
    /// The hash of the edge, if it begins at this place in the older tree.
    top: Option<NodeHash>,
}

impl OldEdge {
    fn of(edge: &Edge) -> Self {
        Self { extension: edge.extension, end: edge.end.clone(), top: Some(edge.top) }
    }
}

/// Applies changes, in the order of their addresses, to a tree.
///
/// # Errors
/// [`Error::AddressNotFound`] or [`Error::PrefixNotFound`] for the change that comes first in the
/// batch of those that remove what is not there; [`Error::Corruption`] and those of the back-end.
pub(crate) fn build(
    nodes: &Nodes<'_>,
    tree: Option<&Edge>,
    steps: &[Step],
    threads: usize,
) -> Result<Built> {
    debug_assert!(steps.is_sorted_by(|one, other| one.prefix < other.prefix), "steps ascend");

    // At most a leaf and a branch for each step; two more for a split of the root edge.
    let list = Vec::with_capacity(2 * steps.len() + 2);
    let mut builder = Builder { nodes, list, missing: None };
    let sub = match (tree, steps) {
        (_, []) => NewSubtree::None,
        (None, steps) => builder.grow(0, steps)?,
        (Some(edge), steps) => builder.update(&OldEdge::of(edge), 0, steps)?,
    };

    if let Some(step) = builder.missing {
        return Err(match (step.action, Address::try_from(step.prefix)) {
            (Action::Delete, Ok(address)) => Error::AddressNotFound { address, index: step.index },
            _ => Error::PrefixNotFound { prefix: step.prefix },
        });
    }

    // Children stand before parents in the list, which `hash_all` relies on.
    let root = match sub {
        NewSubtree::None => None,
        NewSubtree::New(at) => Some(at),
    };

    let mut list = builder.list;
    hashing::hash_all(&mut list, threads);
    Ok(Built { nodes: list, root })
}

struct Builder<'a> {
    nodes: &'a Nodes<'a>,
    list: Vec<NewEdge>,
    /// The first change of the batch that removes an address or prefix without a value.
    missing: Option<Step>,
}

/// The steps that have each token at a depth, which all of them are longer than.
fn by_token(steps: &[Step], depth: usize) -> impl Iterator<Item = (u8, &[Step])> {
    let token = move |step: &Step| step.prefix.as_bytes()[depth];
    steps.chunk_by(move |one, other| token(one) == token(other)).map(move |of| (token(&of[0]), of))
}

/// How far all steps go along `extension` from a depth on; they ascend.
fn along(extension: &[u8], depth: usize, steps: &[Step]) -> usize {
    debug_assert!(!steps.is_empty(), "a sub-tree is entered for a change");
    let of = |step: &Step| common(extension, &step.prefix.as_bytes()[depth..]);
    of(&steps[0]).min(of(&steps[steps.len() - 1]))
}

impl Builder<'_> {
    fn miss(&mut self, step: &Step) {
        // The error is that of the first change in the batch; steps come by address.
        if self.missing.as_ref().is_none_or(|missing| step.index < missing.index) {
            self.missing = Some(step.clone());
        }
    }

    fn push(&mut self, extension: Prefix, end: NewNode, old: Option<NodeHash>) -> NewSubtree {
        let height = match &end {
            NewNode::Leaf(_) | NewNode::Kept(_) => 0,
            NewNode::Branch(branch) => {
                branch.new_children().map(|at| self.list[at].height + 1).max().unwrap_or(0)
            }
        };
        let end_hash = NodeHash::EMPTY;
        let top = NodeHash::EMPTY;
        debug_assert!(height <= self.list.len(), "children stand before their parents");
        self.list.push(NewEdge { extension, end, old, height, end_hash, top });
        NewSubtree::New(self.list.len() - 1)
    }

    /// A sub-tree where there was none.
    fn grow(&mut self, depth: usize, steps: &[Step]) -> Result<NewSubtree> {
        // A single new address needs no branch: its rest is the extension of a leaf.
        if let [Step { prefix, action: Action::Set(value), .. }] = steps {
            return Ok(self.push(prefix.after(depth), NewNode::Leaf(Arc::clone(value)), None));
        }
        let extension = steps[0].prefix.after(depth);
        let along = along(extension.as_bytes(), depth, steps);
        let mut cut = extension;
        cut.truncate(along);
        self.change(cut, None, OldChildren::Branch(None), None, depth + along, steps)
    }

    /// A sub-tree that was there, after changes of which there is at least one.
    fn update(&mut self, old: &OldEdge, depth: usize, steps: &[Step]) -> Result<NewSubtree> {
        let extension = old.extension.as_bytes();
        let along = along(extension, depth, steps);

        let end = depth + along;
        // Nothing is read of a sub-tree that goes as a whole.
        if let [Step { prefix, action: Action::DeletePrefix, .. }] = steps
            && prefix.as_bytes().len() == end
        {
            return Ok(NewSubtree::None);
        }

        let mut above = old.extension;
        above.truncate(along);

        // A change leaves the extension half way: the old edge is split there.
        if along < extension.len() {
            let rest = OldEdge {
                extension: old.extension.after(along + 1),
                end: old.end.clone(),
                top: None,
            };

            return self.change(
                above,
                None,
                OldChildren::Rest(extension[along], rest),
                old.top,
                end,
                steps,
            );
        }

        let (value, base) = match &old.end {
            Node::Leaf(value) => (Some(Arc::clone(value)), None),
            Node::Stored(node) => {
                let mut path = steps[0].prefix;
                path.truncate(end);
                match self.nodes.load_whole(&NodePlace { node: *node, path })? {
                    Loaded::Value(value) => (Some(value), None),
                    Loaded::Branch(branch) => {
                        (branch.value().map(Into::into), Some((*node, branch)))
                    }
                }
            }
        };

        self.change(above, value, OldChildren::Branch(base), old.top, end, steps)
    }

    /// A node below `extension`, at a depth, after changes none of which ends above it.
    fn change(
        &mut self,
        extension: Prefix,
        mut value: Option<Arc<[u8]>>,
        below: OldChildren,
        old: Option<NodeHash>,
        depth: usize,
        steps: &[Step],
    ) -> Result<NewSubtree> {
        // At most one step ends here: steps ascend and no address is named twice.
        debug_assert!(!steps.is_empty());
        let here = steps.iter().take_while(|step| step.prefix.as_bytes().len() == depth).count();
        debug_assert!(here <= 1, "steps ascend, and no address is named twice");

        for step in &steps[..here] {
            match &step.action {
                Action::Set(new) => value = Some(Arc::clone(new)),
                Action::Delete if value.is_some() => value = None,
                Action::Delete | Action::DeletePrefix => self.miss(step),
            }
        }

        let (base, mut rest) = match below {
            OldChildren::Branch(base) => (base, None),
            OldChildren::Rest(token, rest) => (None, Some((token, rest))),
        };

        let mut count = base.as_ref().map_or(0, |(_, base)| base.len());
        let mut edits = Vec::new();
        for (token, steps) in by_token(&steps[here..], depth) {
            // Children ascend: an old child without changes goes before the first greater token.
            if let Some(before) = rest.take_if(|(other, _)| *other < token) {
                count += self.keep(before, &mut edits);
            }

            let in_base = base.as_ref().and_then(|(_, base)| base.child(token));
            let is_there = in_base.is_some();

            let child = in_base.map(|edge| OldEdge::of(&edge.to_edge()));
            let child = child.or_else(|| Some(rest.take_if(|(other, _)| *other == token)?.1));
            let sub = match child {
                Some(child) => self.update(&child, depth + 1, steps)?,
                None => self.grow(depth + 1, steps)?,
            };

            match sub {
                NewSubtree::New(at) => {
                    edits.push((token, Some(at)));
                    count += usize::from(!is_there);
                }
                NewSubtree::None if is_there => {
                    edits.push((token, None));
                    count -= 1;
                }
                NewSubtree::None => {}
            }
        }

        // An untouched rest of the old edge lies behind all changed children.
        if let Some(after) = rest {
            count += self.keep(after, &mut edits);
        }

        debug_assert!(count <= 256, "a token is a byte");
        Ok(self.finish(extension, NewBranch::new(value, count, base, edits), old))
    }

    /// Adds the rest of an old edge as a child; returns by how much the count of children grows.
    fn keep(
        &mut self,
        (token, rest): (u8, OldEdge),
        edits: &mut Vec<(u8, Option<usize>)>,
    ) -> usize {
        let NewSubtree::New(at) = self.push(rest.extension, NewNode::Kept(rest.end), None) else {
            return 0;
        };
        edits.push((token, Some(at)));
        1
    }

    /// Normalises a value and children: to nothing, a leaf, a longer extension, or a branch.
    fn finish(
        &mut self,
        mut extension: Prefix,
        branch: NewBranch,
        old: Option<NodeHash>,
    ) -> NewSubtree {
        // Each state has one tree: a branch of fewer than two entries would be a second form.
        match (branch.value.is_some(), branch.count) {
            (false, 0) => NewSubtree::None,
            (true, 0) => match branch.value {
                Some(value) => self.push(extension, NewNode::Leaf(value), old),
                None => NewSubtree::None,
            },
            (false, 1) => match branch.children().next() {
                Some((token, Child::Old(base, at))) => {
                    let edge = base.edge_at(at).to_edge();
                    extension.extend(&[token]);
                    extension.extend(edge.extension.as_bytes());
                    // The old node keeps its record, and gets a longer extension above it.
                    self.push(extension, NewNode::Kept(edge.end), old)
                }
                Some((token, Child::New(at))) => {
                    // The new edge is not hashed yet, so it is lengthened in place.
                    let new = &mut self.list[at];
                    extension.extend(&[token]);
                    extension.extend(new.extension.as_bytes());
                    new.extension = extension;
                    new.old = old;
                    NewSubtree::New(at)
                }
                None => NewSubtree::None,
            },
            _ => self.push(extension, NewNode::Branch(branch), old),
        }
    }
}

/// Children of a place before the changes.
enum OldChildren {
    /// The children of a branch, with its hash; `None` if there were no children.
    Branch(Option<(NodeHash, Arc<Branch>)>),
    /// One child: the rest of the old edge within whose extension the new node lies.
    Rest(u8, OldEdge),
}

//! Contexts: a tree and the commits it comes from.

use std::ops::{Deref, DerefMut};

use crate::base::hash::Hash;
use crate::tree::tree::Tree;

/// A tree that was checked out, with the parents that its commit will have. All calls of a [`Tree`] work on it.
///
/// Committing a context leaves its parents as they are: two commits of one context are siblings. For a chain, check the
/// new commit out, or [`advance`](Self::advance).
#[derive(Debug, Clone)]
pub struct Context {
    tree: Tree,
    parents: Vec<Hash>,
}

impl Context {
    pub(crate) fn new(tree: Tree, parents: Vec<Hash>) -> Self {
        Self { tree, parents }
    }

    /// The parents of a commit of this context.
    pub fn parents(&self) -> &[Hash] {
        &self.parents
    }

    /// Makes the next commit a child of these.
    pub fn set_parents(&mut self, parents: Vec<Hash>) {
        self.parents = parents;
    }

    /// Makes the next commit a child of `commit`, which is one of this context.
    /// What only older commits of it reach can be collected from then on, and what was loaded is loaded again.
    pub fn advance(&mut self, commit: Hash) {
        self.parents = vec![commit];
        self.tree.unpin_older();
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The tree, to be changed.
    pub fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }
}

impl Deref for Context {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl DerefMut for Context {
    fn deref_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }
}

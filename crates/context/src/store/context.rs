//! Contexts: a tree with the parents of its next commit.

use std::ops::{Deref, DerefMut};

use crate::base::hash::Hash;
use crate::tree::tree::Tree;

/// Working tree: a checked-out tree with the parents of its next commit. All calls of [`Tree`] work
/// on it.
///
/// Committing a context keeps its parents: two commits of one context are siblings. For a chain of
/// commits, check out the new commit, or [`advance`](Self::advance).
#[doc(alias = "WriteBatch")]
#[derive(Debug, Clone)]
pub struct Context {
    tree: Tree,
    parents: Vec<Hash>,
}

impl Context {
    pub(crate) fn new(tree: Tree, parents: Vec<Hash>) -> Self {
        Self { tree, parents }
    }

    /// Parents of the next commit.
    pub fn parents(&self) -> &[Hash] {
        &self.parents
    }

    /// Sets the parents of the next commit.
    pub fn set_parents(&mut self, parents: Vec<Hash>) {
        self.parents = parents;
    }

    /// Makes the next commit a child of `commit`, a commit of this context.
    ///
    /// Objects that only older commits reach can be collected from then on, and loaded nodes are
    /// loaded again.
    pub fn advance(&mut self, commit: Hash) {
        self.parents = vec![commit];
        self.tree.unpin_older();
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the tree alone.
    pub(crate) fn into_tree(self) -> Tree {
        self.tree
    }

    /// Returns the tree, for changes.
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

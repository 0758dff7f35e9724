//! Contexts: a tree with the parents of its next commit.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Weak;

use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::tree::into_value::IntoValue;
use crate::tree::tree::{Kind, Tree};

/// Limits of the changes that wait in memory. See [`Context::set_auto_flush`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoFlush {
    /// Number of changes after which the context is flushed.
    pub mutations: u64,
    /// Bytes of changed paths and values after which the context is flushed. Bound trees do not
    /// count.
    pub bytes: u64,
}

impl AutoFlush {
    /// Limits of Octez: 10,000 changes of any size.
    pub const OCTEZ: Self = Self { mutations: 10_000, bytes: u64::MAX };
}

/// Store to which a context is flushed.
pub(crate) trait FlushTarget: Send + Sync + Debug {
    /// Writes the changes of a tree.
    fn flush_tree(&self, tree: &Tree) -> Result<()>;
}

/// Automatic flush of a context, and the changes since the last one.
#[derive(Debug, Clone)]
struct AutoFlusher {
    target: Weak<dyn FlushTarget>,
    limits: AutoFlush,
    mutations: u64,
    bytes: u64,
}

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
    flusher: Option<AutoFlusher>,
}

impl Context {
    pub(crate) fn new(tree: Tree, parents: Vec<Hash>) -> Self {
        Self { tree, parents, flusher: None }
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

        // The commit wrote what waited.
        if let Some(flusher) = &mut self.flusher {
            (flusher.mutations, flusher.bytes) = (0, 0);
        }
    }

    /// Sets where changes are flushed to, and when.
    pub(crate) fn flush_to(&mut self, target: Option<(Weak<dyn FlushTarget>, AutoFlush)>) {
        let flusher = |(target, limits)| AutoFlusher { target, limits, mutations: 0, bytes: 0 };
        self.flusher = target.map(flusher);
    }

    /// Counts a change of so many bytes, and flushes if it is due.
    fn count<S: AsRef<[u8]>>(&mut self, changed: bool, path: &[S], bytes: usize) -> Result<bool> {
        let Some(flusher) = self.flusher.as_mut().filter(|_| changed) else { return Ok(changed) };
        let steps: usize = path.iter().map(|step| step.as_ref().len()).sum();
        flusher.mutations += 1;
        flusher.bytes += (steps + bytes) as u64;

        let AutoFlush { mutations, bytes } = flusher.limits;
        let is_due = mutations <= flusher.mutations || bytes <= flusher.bytes;
        // No store has a value as its root.
        if is_due && self.tree.kind() == Kind::Directory {
            // If the flush fails, the changes go on waiting, and the next change tries again.
            let target = flusher.target.upgrade().ok_or(Error::Closed)?;
            target.flush_tree(&self.tree)?;
            (flusher.mutations, flusher.bytes) = (0, 0);
            self.tree.clear();
        }
        Ok(changed)
    }

    /// Binds a value, like [`Tree::add`].
    ///
    /// # Errors
    /// Errors of [`Tree::add`]. With an [automatic flush](Self::set_auto_flush) also those of
    /// [`Store::flush`](crate::Store::flush), after the change was made.
    pub fn add<S: AsRef<[u8]>>(&mut self, path: &[S], value: impl IntoValue) -> Result<bool> {
        let bytes = value.bytes().len();
        let changed = self.tree.add(path, value)?;
        self.count(changed, path, bytes)
    }

    /// Binds a tree, like [`Tree::add_tree`].
    ///
    /// # Errors
    /// Errors of [`Tree::add_tree`], and of a flush as for [`add`](Self::add).
    pub fn add_tree<S: AsRef<[u8]>>(&mut self, path: &[S], tree: &Tree) -> Result<bool> {
        let changed = self.tree.add_tree(path, tree)?;
        self.count(changed, path, 0)
    }

    /// Unbinds a path, like [`Tree::remove`].
    ///
    /// # Errors
    /// Errors of [`Tree::remove`], and of a flush as for [`add`](Self::add).
    pub fn remove<S: AsRef<[u8]>>(&mut self, path: &[S]) -> Result<bool> {
        let changed = self.tree.remove(path)?;
        self.count(changed, path, 0)
    }

    /// Changes one binding, like [`Tree::update`].
    ///
    /// # Errors
    /// Errors of [`Tree::update`], and of a flush as for [`add`](Self::add).
    pub fn update<S: AsRef<[u8]>>(
        &mut self,
        path: &[S],
        change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>,
    ) -> Result<bool> {
        let mut bytes = 0;
        let changed = self.tree.update(path, |value| {
            let value = change(value);
            bytes = value.as_ref().map_or(0, Vec::len);
            value
        })?;
        self.count(changed, path, bytes)
    }

    /// Changes one binding, like [`Tree::update_tree`].
    ///
    /// # Errors
    /// Errors of [`Tree::update_tree`], and of a flush as for [`add`](Self::add).
    pub fn update_tree<S: AsRef<[u8]>>(
        &mut self,
        path: &[S],
        change: impl FnOnce(Option<Tree>) -> Option<Tree>,
    ) -> Result<bool> {
        let changed = self.tree.update_tree(path, change)?;
        self.count(changed, path, 0)
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

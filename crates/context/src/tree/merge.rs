//! Three-way merge of trees: changes of one side alone are taken, equal changes of both sides
//! agree, and a function of the caller merges other changes of one value.
//!
//! A directory merges child by child. A directory that a side removed counts as an empty one, so
//! removing a value does not conflict with adding another value beside it. A conflict is a removal
//! against a change of the same value, a value against a directory, and any conflict that the
//! function reports.

use std::sync::Arc;
use std::vec;

use crate::base::error::{Error, Result};
use crate::base::path::PathText;
use crate::tree::diff::{Envs, Pair, differing};
use crate::tree::node::{Child, Env, Node, Spot, Value};
use crate::tree::tree::Tree;
use crate::tree::walk::{Entry, dir, same};

/// Versions of a value that both sides changed differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions<'a> {
    /// Value of the base; `None` if the value is new.
    pub base: Option<&'a [u8]>,
    /// Value of our side.
    pub ours: &'a [u8],
    /// Value of their side.
    pub theirs: &'a [u8],
}

/// Merged value of a path, `None` to remove it, or the reason of a conflict.
pub type Merged = std::result::Result<Option<Vec<u8>>, String>;

type Merge<'a> = dyn FnMut(&[Box<[u8]>], Versions<'_>) -> Merged + 'a;

/// Path, and its new child or `None` to unbind it.
type BindingChange = (Vec<Box<[u8]>>, Option<Child>);

/// Merge of three trees, and the changes to make in ours.
struct Merger<'a> {
    base: &'a Env,
    ours: &'a Env,
    theirs: &'a Env,
    path: Vec<Box<[u8]>>,
    changes: Vec<BindingChange>,
    merge: &'a mut Merge<'a>,
}

/// Children of the three trees at one path.
#[derive(Clone, Copy)]
struct ThreeWay<'a> {
    base: Option<Spot<'a>>,
    ours: Option<Spot<'a>>,
    theirs: Option<Spot<'a>>,
}

/// Directories that are being merged child by child.
struct Directories {
    base: Option<Arc<Node>>,
    /// Differing steps that are not merged yet.
    pairs: vec::IntoIter<Pair>,
}

impl Tree {
    /// Merges the changes that this tree and `theirs` made to `base`.
    ///
    /// `merge` is called, in the order of the paths, for each value that both changed or added
    /// differently; it returns the merged value, or `None` to remove it.
    ///
    /// Cost: one read for each directory and inode in which this tree and `theirs` differ, and for
    /// the same ones of `base`, if they are not in memory. The trees are hashed.
    ///
    /// # Errors
    /// [`Conflict`](Error::Conflict) at the first path that cannot be merged; otherwise as
    /// [`mem`](Self::mem) and [`add_tree`](Self::add_tree).
    pub fn merge(
        &self,
        base: &Self,
        theirs: &Self,
        mut merge: impl FnMut(&[Box<[u8]>], Versions<'_>) -> Merged,
    ) -> Result<Self> {
        if self.rules() != theirs.rules() || self.rules() != base.rules() {
            return Err(Error::ForeignTree);
        }

        for tree in [base, self, theirs] {
            tree.hash();
        }

        let mut merger = Merger {
            base: &base.env,
            ours: &self.env,
            theirs: &theirs.env,
            path: Vec::new(),
            changes: Vec::new(),
            merge: &mut merge,
        };

        merger.run(ThreeWay {
            base: Some(Spot::Own(base.root())),
            ours: Some(Spot::Own(self.root())),
            theirs: Some(Spot::Own(theirs.root())),
        })?;

        let changes = merger.changes;

        // Changes are applied last, so that a conflict leaves nothing half merged.
        let mut merged = self.clone();
        for (path, child) in changes {
            match child {
                Some(child) => merged.add_tree(&path, &theirs.with_root(child))?,
                None => merged.remove(&path)?,
            };
        }

        Ok(merged)
    }
}

/// Returns whether two trees have the same child at a path.
fn agree(left: (&Env, Option<Spot<'_>>), right: (&Env, Option<Spot<'_>>)) -> bool {
    match (left.1, right.1) {
        (Some(l), Some(r)) => same((left.0, l), (right.0, r)),
        (None, None) => true,
        _ => false,
    }
}

impl Merger<'_> {
    /// Merges all below the roots, with a list of the open directories.
    fn run(&mut self, roots: ThreeWay<'_>) -> Result<()> {
        let mut way: Vec<Directories> = self.spots(roots)?.into_iter().collect();
        while let Some(directories) = way.last_mut() {
            let Some(pair) = directories.pairs.next() else {
                way.pop();
                self.path.pop();
                continue;
            };

            let base = match &directories.base {
                Some(node) => node.locate(self.base, pair.step())?,
                None => None,
            };

            let three = ThreeWay {
                base,
                ours: pair.left.as_ref().map(Entry::spot),
                theirs: pair.right.as_ref().map(Entry::spot),
            };

            self.path.push(pair.step().into());

            match self.spots(three)? {
                Some(below) => way.push(below),
                None => drop(self.path.pop()),
            }

            debug_assert_eq!(
                self.path.len() + 1,
                way.len(),
                "a step for each directory below the roots"
            );
        }

        Ok(())
    }

    /// Merges the children at one path; returns the directories to be merged child by child.
    fn spots(&mut self, three: ThreeWay<'_>) -> Result<Option<Directories>> {
        let ThreeWay { base, ours, theirs } = three;

        // Equal changes, or no change of theirs: ours stands.
        if agree((self.ours, ours), (self.theirs, theirs))
            || agree((self.base, base), (self.theirs, theirs))
        {
            return Ok(None);
        }

        // Only theirs changed: take it whole.
        if agree((self.base, base), (self.ours, ours)) {
            self.changes.push((self.path.clone(), theirs.map(Spot::to_child)));
            return Ok(None);
        }

        // Both changed: values by the function, directories child by child, and the rest conflicts.
        let was_value = base.is_some_and(Spot::is_value);
        match (ours.map(Spot::is_value), theirs.map(Spot::is_value)) {
            (Some(true), Some(true)) => self.values(three).map(|()| None),
            (None, _) | (_, None) if was_value => {
                Err(self.conflict("removed on one side and changed on the other"))
            }
            (Some(true), _) | (_, Some(true)) => {
                Err(self.conflict("a value on one side and a directory, or nothing, on the other"))
            }
            _ => self.directories(three).map(Some),
        }
    }

    fn values(&mut self, three: ThreeWay<'_>) -> Result<()> {
        let value = |env: &Env, spot: Option<Spot<'_>>| match spot {
            Some(spot) => spot.value(env),
            None => Ok(None),
        };

        let base = value(self.base, three.base)?;
        let ours = value(self.ours, three.ours)?.unwrap_or_default();
        let theirs = value(self.theirs, three.theirs)?.unwrap_or_default();
        let versions = Versions { base: base.as_deref(), ours: &ours, theirs: &theirs };

        match (self.merge)(&self.path, versions) {
            Ok(merged) => {
                let child = merged.map(|bytes| Child::Value(Arc::new(Value::new(bytes.into()))));
                self.changes.push((self.path.clone(), child));
                Ok(())
            }
            Err(message) => Err(self.conflict(&message)),
        }
    }

    fn directories(&self, three: ThreeWay<'_>) -> Result<Directories> {
        let open = |env: &Env, spot: Option<Spot<'_>>| -> Result<Option<Arc<Node>>> {
            spot.map_or(Ok(None), |spot| dir(env, spot))
        };
        let base = open(self.base, three.base)?;
        let ours = open(self.ours, three.ours)?;
        let theirs = open(self.theirs, three.theirs)?;
        let envs = Envs { left: self.ours, right: self.theirs };
        let pairs = differing(envs, ours.as_ref(), theirs.as_ref())?.into_iter();
        Ok(Directories { base, pairs })
    }

    fn conflict(&self, message: &str) -> Error {
        Error::Conflict { path: PathText::new(&self.path), message: message.to_owned() }
    }
}

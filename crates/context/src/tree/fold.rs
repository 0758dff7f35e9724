//! Folds: visits of every value and directory whose depth satisfies a test, a directory before its
//! content, without loading excluded nodes; and sequences and sums made with folds.

use std::vec;

use crate::base::error::{Error, Result};
use crate::base::path::Steps;
use crate::tree::node::{Child, Env, Spot};
use crate::tree::tree::{Kind, Tree, at_path};
use crate::tree::walk::{Entry, Walk, dir, sorted};

/// Depths that a fold visits; the root of the fold has depth 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// This depth only.
    Eq(usize),
    /// Smaller depths.
    Lt(usize),
    /// This depth and smaller depths.
    Le(usize),
    /// Larger depths.
    Gt(usize),
    /// This depth and larger depths.
    Ge(usize),
}

impl Depth {
    fn accepts(self, depth: usize) -> bool {
        match self {
            Self::Eq(bound) => depth == bound,
            Self::Lt(bound) => depth < bound,
            Self::Le(bound) => depth <= bound,
            Self::Gt(bound) => depth > bound,
            Self::Ge(bound) => depth >= bound,
        }
    }

    /// Returns whether the test accepts any depth below `depth`.
    fn descends(self, depth: usize) -> bool {
        match self {
            Self::Eq(bound) | Self::Le(bound) => depth < bound,
            Self::Lt(bound) => depth + 1 < bound,
            Self::Gt(_) | Self::Ge(_) => true,
        }
    }
}

/// Order of the children of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Ascending by the bytes of the steps. A directory is held in memory, without its values,
    /// while it is visited.
    #[default]
    Sorted,
    /// Order of storage, which needs the memory of one path only.
    Undefined,
}

/// Selection and order of a fold: all, sorted, by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Depths; `None` for all.
    pub depth: Option<Depth>,
    /// Order of children.
    pub order: Order,
    /// Upper bound of visited values and directories, [`PARTS_MAX`] by default.
    ///
    /// A shared part counts at each of its paths: a tree of a few kilobytes can have more of
    /// them than any computer can visit.
    pub parts_max: u64,
}

/// Default upper bound of the values and directories of a walk over a whole tree: three times those
/// of the largest public ledger.
pub const PARTS_MAX: u64 = 1 << 28;

impl Default for Fold {
    fn default() -> Self {
        Self { depth: None, order: Order::Sorted, parts_max: PARTS_MAX }
    }
}

/// Counter of the parts of a walk, with a limit.
pub(crate) struct PartCounter {
    left: u64,
    limit: u64,
}

impl PartCounter {
    pub(crate) fn new(limit: u64) -> Self {
        Self { left: limit, limit }
    }

    pub(crate) fn count(&mut self) -> Result<()> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Err(Error::LimitExceeded { limit: self.limit, unit: "parts" }),
        }
        debug_assert!(self.left < self.limit, "a part was counted");
        Ok(())
    }
}

/// Size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct TreeStats {
    /// Directories with the root; a shared one counts at each of its paths.
    pub nodes: u64,
    /// Values.
    pub leaves: u64,
    /// Length of the longest path.
    pub depth: usize,
    /// Largest number of children of a directory.
    pub width: u64,
}

/// Remaining children of an open directory.
enum Rest {
    Stored(Walk),
    Sorted(vec::IntoIter<Entry>),
}

impl Rest {
    fn next(&mut self, env: &Env) -> Result<Option<Entry>> {
        match self {
            Self::Stored(walk) => walk.next(env),
            Self::Sorted(entries) => Ok(entries.next()),
        }
    }
}

/// Iterator over the children of a directory, loaded on demand.
pub struct Children {
    tree: Tree,
    walk: Option<Walk>,
}

impl Iterator for Children {
    type Item = Result<(Box<[u8]>, Tree)>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.walk.as_mut()?.next(&self.tree.env);
        match found.transpose()? {
            Ok(entry) => {
                Some(Ok((entry.step().into(), self.tree.with_root(entry.spot().to_child()))))
            }
            Err(error) => {
                // After an error the walk ends.
                self.walk = None;
                Some(Err(error))
            }
        }
    }
}

impl Tree {
    /// Visits the values and directories at and below `path` that `fold` selects, each directory
    /// before its content.
    ///
    /// `visit` gets the path from `path` on, the tree there, and its former result, `init` at
    /// first; the last result is returned. A value or nothing at `path` visits nothing.
    ///
    /// Cost: one read for each directory and inode that holds what may be visited and is not in
    /// memory; values are not read. The tree keeps nothing of it.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), and [`LimitExceeded`](Error::LimitExceeded); the first error
    /// of `visit` ends the fold.
    pub fn fold<S: AsRef<[u8]>, A, E: From<Error>>(
        &self,
        path: &[S],
        fold: Fold,
        init: A,
        mut visit: impl FnMut(&[Box<[u8]>], Self, A) -> std::result::Result<A, E>,
    ) -> std::result::Result<A, E> {
        let steps = Steps::new(path);
        // Without a depth all that is below the path is visited.
        let depth = fold.depth.unwrap_or(Depth::Ge(0));
        let root = self.find_tree(path)?.filter(|root| root.kind() == Kind::Directory);
        let Some(root) = root else { return Ok(init) };
        let mut sum = init;

        // The root has no entry, so it is visited here.
        if depth.accepts(0) {
            sum = visit(&[], root.clone(), sum)?;
        }

        if !depth.descends(0) {
            return Ok(sum);
        }

        // Below the root: a list of open directories, each with its remaining children.
        let env = &*self.env;
        let mut parts = PartCounter::new(fold.parts_max);
        let open = |spot: Spot<'_>, below: &[Box<[u8]>]| {
            open(env, spot, fold.order).map_err(|error| under(error, steps.as_slice(), below))
        };
        let mut below: Vec<Box<[u8]>> = Vec::new();
        let mut stack: Vec<Rest> = open(Spot::Own(root.root()), &below)?.1.into_iter().collect();

        while let Some(rest) = stack.last_mut() {
            let next = rest.next(env).map_err(|error| under(error, steps.as_slice(), &below))?;
            let Some(entry) = next else {
                stack.pop();
                below.pop();
                continue;
            };

            parts.count()?;
            below.push(entry.step().into());

            // A directory below which no depth is accepted is not loaded.
            let (child, rest) = if depth.descends(below.len()) {
                open(entry.spot(), &below)?
            } else {
                (entry.spot().to_child(), None)
            };

            if depth.accepts(below.len()) {
                sum = visit(&below, self.with_root(child), sum)?;
            }

            match rest {
                Some(rest) => stack.push(rest),
                None => drop(below.pop()),
            }

            debug_assert_eq!(
                below.len() + 1,
                stack.len(),
                "a step for each directory below the root"
            );
        }

        Ok(sum)
    }

    /// Returns the children of the directory at `path` in the order of [`list`](Self::list); none
    /// for a value and where nothing is bound.
    ///
    /// Cost: as [`mem_tree`](Self::mem_tree); then one read for each inode when it is reached.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), here and from the sequence, which ends with an error.
    pub fn seq<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Children> {
        let walk = match self.find_tree(path)? {
            Some(tree) => dir(&self.env, Spot::Own(tree.root()))
                .map_err(|error| at_path(error, Steps::new(path).as_slice()))?,
            None => None,
        };
        Ok(Children { tree: self.clone(), walk: walk.map(Walk::new) })
    }

    /// Counts the parts of the tree, [`PARTS_MAX`] at most.
    ///
    /// Cost: one read for each directory and inode that is not in memory; values are not read.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), and [`LimitExceeded`](Error::LimitExceeded).
    pub fn stats(&self) -> Result<TreeStats> {
        let root: [&str; 0] = [];
        if self.kind() == Kind::Value {
            return Ok(TreeStats { leaves: 1, ..TreeStats::default() });
        }

        // The order does not matter, so no directory is held in memory.
        let fold = Fold { order: Order::Undefined, ..Fold::default() };
        self.fold(&root, fold, TreeStats::default(), |path, tree, mut stats| {
            stats.depth = stats.depth.max(path.len());
            if tree.kind() == Kind::Value {
                stats.leaves += 1;
            } else {
                stats.nodes += 1;
                stats.width = stats.width.max(tree.length(&root)?);
            }
            Ok(stats)
        })
    }
}

/// Child at a spot; a directory is loaded, and returned with its children.
fn open(env: &Env, spot: Spot<'_>, order: Order) -> Result<(Child, Option<Rest>)> {
    let Some(node) = dir(env, spot)? else { return Ok((spot.to_child(), None)) };
    let rest = match order {
        Order::Sorted => Rest::Sorted(sorted(env, &node)?.into_iter()),
        Order::Undefined => Rest::Stored(Walk::new(node.clone())),
    };
    Ok((Child::Dir(node), Some(rest)))
}

/// Adds the path to an error.
fn under(error: Error, path: &[&[u8]], below: &[Box<[u8]>]) -> Error {
    let whole: Vec<&[u8]> = path.iter().copied().chain(below.iter().map(|step| &**step)).collect();
    at_path(error, &whole)
}

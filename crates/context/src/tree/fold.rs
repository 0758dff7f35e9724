//! Folding: a visit of every value and directory of a tree whose depth satisfies a test, a directory before its
//! content, without loading what the test excludes; and the sequences and sums that are made with it.

use std::vec;

use crate::base::error::{Error, Result};
use crate::base::path::Steps;
use crate::tree::node::{Child, Env, Spot};
use crate::tree::tree::{Kind, Tree, at_path};
use crate::tree::walk::{Entry, Walk, dir, sorted};

/// Which depths are visited; the root of the fold has depth 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// That depth only.
    Eq(usize),
    /// Smaller depths.
    Lt(usize),
    /// That depth and smaller ones.
    Le(usize),
    /// Larger depths.
    Gt(usize),
    /// That depth and larger ones.
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

    /// Whether anything below `depth` may be accepted.
    fn descends(self, depth: usize) -> bool {
        match self {
            Self::Eq(bound) | Self::Le(bound) => depth < bound,
            Self::Lt(bound) => depth + 1 < bound,
            Self::Gt(_) | Self::Ge(_) => true,
        }
    }
}

/// In which order the children of a directory are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Ascending by the bytes of their steps. A directory is held in memory, without its values, while it is visited.
    #[default]
    Sorted,
    /// As they are stored, which needs the memory of one path only.
    Undefined,
}

/// What a fold visits, and in which order: everything, sorted, by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Which depths; all if none is given.
    pub depth: Option<Depth>,
    /// The order of children.
    pub order: Order,
    /// Values and directories that the fold meets at most, [`PARTS_MAX`] by default. A part that
    /// stands in several places counts in each: a tree of a few kilobytes can have more of them
    /// than any computer can visit.
    pub parts_max: u64,
}

/// Values and directories that a walk over a whole tree meets at most, unless the caller says
/// otherwise: three times those of the largest public ledger.
pub const PARTS_MAX: u64 = 1 << 28;

impl Default for Fold {
    fn default() -> Self {
        Self { depth: None, order: Order::Sorted, parts_max: PARTS_MAX }
    }
}

/// Counts what a walk meets, up to a limit.
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
        Ok(())
    }
}

/// What a tree consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeStats {
    /// Directories, the root included; one that stands in several places counts in each.
    pub nodes: u64,
    /// Values.
    pub leaves: u64,
    /// The length of the longest path.
    pub depth: usize,
    /// The most children of a directory.
    pub width: u64,
}

/// The rest of the children of a directory on the way.
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

/// The children of a directory, loaded as they are asked for.
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
                self.walk = None;
                Some(Err(error))
            }
        }
    }
}

impl Tree {
    /// Visits the values and directories at and below `path` that `fold` asks for, each directory before its content.
    /// `visit` gets the path from `path` on, the tree there, and what it gave before, `init` at first; what it gave last
    /// is returned. A value at `path`, and an absent one, visit nothing.
    ///
    /// Cost: one read for each directory and inode that holds what may be visited and is not in memory; values are not
    /// read. The tree keeps nothing of it.
    ///
    /// # Errors
    /// As [`mem`](Self::mem), and [`LimitExceeded`](Error::LimitExceeded); the first error of
    /// `visit` ends the fold.
    pub fn fold<S: AsRef<[u8]>, A, E: From<Error>>(
        &self,
        path: &[S],
        fold: Fold,
        init: A,
        mut visit: impl FnMut(&[Box<[u8]>], Self, A) -> std::result::Result<A, E>,
    ) -> std::result::Result<A, E> {
        let steps = Steps::new(path);
        let depth = fold.depth.unwrap_or(Depth::Ge(0));
        let root = self.find_tree(path)?.filter(|root| root.kind() == Kind::Directory);
        let Some(root) = root else { return Ok(init) };
        let mut sum = init;
        if depth.accepts(0) {
            sum = visit(&[], root.clone(), sum)?;
        }
        if !depth.descends(0) {
            return Ok(sum);
        }
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
        }
        Ok(sum)
    }

    /// The children of the directory at `path` in the order of [`list`](Self::list); none for a value and where nothing is.
    ///
    /// Cost: that of [`mem_tree`](Self::mem_tree); then one read for each inode when it is reached.
    ///
    /// # Errors
    /// As [`mem`](Self::mem), here and from the sequence, which ends with an error.
    pub fn seq<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Children> {
        let walk = match self.find_tree(path)? {
            Some(tree) => dir(&self.env, Spot::Own(tree.root()))
                .map_err(|error| at_path(error, Steps::new(path).as_slice()))?,
            None => None,
        };
        Ok(Children { tree: self.clone(), walk: walk.map(Walk::new) })
    }

    /// Counts what the tree consists of, [`PARTS_MAX`] parts at most.
    ///
    /// Cost: one read for each directory and inode that is not in memory; values are not read.
    ///
    /// # Errors
    /// As [`mem`](Self::mem), and [`LimitExceeded`](Error::LimitExceeded).
    pub fn stats(&self) -> Result<TreeStats> {
        let root: [&str; 0] = [];
        if self.kind() == Kind::Value {
            return Ok(TreeStats { leaves: 1, ..TreeStats::default() });
        }
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

/// What is at a spot, loaded if it is a directory, and then with its children.
fn open(env: &Env, spot: Spot<'_>, order: Order) -> Result<(Child, Option<Rest>)> {
    let Some(node) = dir(env, spot)? else { return Ok((spot.to_child(), None)) };
    let rest = match order {
        Order::Sorted => Rest::Sorted(sorted(env, &node)?.into_iter()),
        Order::Undefined => Rest::Stored(Walk::new(node.clone())),
    };
    Ok((Child::Dir(node), Some(rest)))
}

/// The error with the path that led to it.
fn under(error: Error, path: &[&[u8]], below: &[Box<[u8]>]) -> Error {
    let whole: Vec<&[u8]> = path.iter().copied().chain(below.iter().map(|step| &**step)).collect();
    at_path(error, &whole)
}

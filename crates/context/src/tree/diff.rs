//! Differences of two trees of the same rules. Parts of equal hash are skipped without being
//! loaded: whole directories, and whole inodes of large directories.

use std::cmp::Ordering;
use std::sync::Arc;
use std::vec;

use crate::base::error::{Error, Result};
use crate::base::hashing::BRANCHING_MAX;
use crate::tree::fold::{PARTS_MAX, PartCounter};
use crate::tree::node::{Env, Node, Shape, Spot};
use crate::tree::tree::Tree;
use crate::tree::walk::{Entry, dir, same, sorted};

/// Difference of the values at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Only the second tree has a value.
    Added,
    /// Only the first tree has a value.
    Removed,
    /// Both trees have a value, and the values differ.
    Changed,
}

/// Step whose children differ. At least one side has a child.
pub(crate) struct Pair {
    pub(crate) left: Option<Entry>,
    pub(crate) right: Option<Entry>,
}

impl Pair {
    pub(crate) fn step(&self) -> &[u8] {
        self.left.as_ref().or(self.right.as_ref()).map_or(&[], |entry| entry.step())
    }
}

/// Environments of the two sides.
#[derive(Clone, Copy)]
pub(crate) struct Envs<'a> {
    pub(crate) left: &'a Env,
    pub(crate) right: &'a Env,
}

impl Tree {
    /// Calls `visit` for each path at which the values of the two trees differ, ascending by path.
    ///
    /// A value that became a directory is removed, and the values of the directory are added.
    ///
    /// Cost: one read for each directory and inode that differs and is not in memory; values are
    /// not read. Both trees are hashed.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), and [`ForeignTree`](Error::ForeignTree) for a tree of other
    /// rules; the first error of `visit` ends the walk. [`LimitExceeded`](Error::LimitExceeded) if
    /// more than [`PARTS_MAX`] parts differ, each counted wherever it stands.
    pub fn diff<E: From<Error>>(
        &self,
        other: &Self,
        mut visit: impl FnMut(&[Box<[u8]>], Change) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.rules() != other.rules() {
            return Err(Error::ForeignTree.into());
        }
        self.hash();
        other.hash();

        // The walk compares hashes and loads only what differs.
        let envs = Envs { left: &self.env, right: &other.env };
        let roots = (Some(Spot::Own(self.root())), Some(Spot::Own(other.root())));
        let mut path = Vec::new();
        let mut parts = PartCounter::new(PARTS_MAX);
        let mut way: Vec<vec::IntoIter<Pair>> =
            diff_spots(envs, &path, roots, &mut visit)?.into_iter().collect();

        while let Some(rest) = way.last_mut() {
            let Some(pair) = rest.next() else {
                way.pop();
                path.pop();
                continue;
            };
            parts.count()?;
            path.push(pair.step().into());
            let spots = (pair.left.as_ref().map(Entry::spot), pair.right.as_ref().map(Entry::spot));
            match diff_spots(envs, &path, spots, &mut visit)? {
                Some(below) => way.push(below),
                None => drop(path.pop()),
            }
            debug_assert_eq!(path.len() + 1, way.len(), "a step for each directory below the root");
        }

        Ok(())
    }
}

type Spots<'a> = (Option<Spot<'a>>, Option<Spot<'a>>);
type Visit<'a, E> = dyn FnMut(&[Box<[u8]>], Change) -> std::result::Result<(), E> + 'a;

/// Visits a path if its values differ; returns the differing children of its directories.
fn diff_spots<E: From<Error>>(
    envs: Envs<'_>,
    path: &[Box<[u8]>],
    (left, right): Spots<'_>,
    visit: &mut Visit<'_, E>,
) -> std::result::Result<Option<vec::IntoIter<Pair>>, E> {
    if let (Some(left), Some(right)) = (left, right)
        && same((envs.left, left), (envs.right, right))
    {
        return Ok(None);
    }

    match (left.is_some_and(Spot::is_value), right.is_some_and(Spot::is_value)) {
        (true, true) => visit(path, Change::Changed)?,
        (true, false) => visit(path, Change::Removed)?,
        (false, true) => visit(path, Change::Added)?,
        (false, false) => {}
    }

    // A value against a directory also visits the values of the directory.
    let left = left.map_or(Ok(None), |spot| dir(envs.left, spot))?;
    let right = right.map_or(Ok(None), |spot| dir(envs.right, spot))?;
    if left.is_none() && right.is_none() {
        return Ok(None);
    }
    Ok(Some(differing(envs, left.as_ref(), right.as_ref())?.into_iter()))
}

/// Returns the differing steps of two directories, ascending. A missing directory has no steps.
pub(crate) fn differing(
    envs: Envs<'_>,
    left: Option<&Arc<Node>>,
    right: Option<&Arc<Node>>,
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    differing_inodes(envs, left, right, &mut pairs)?;
    // Buckets are not in the order of their steps.
    pairs.sort_unstable_by(|a, b| a.step().cmp(b.step()));
    Ok(pairs)
}

/// Recursion: at most 64 inodes of one directory.
fn differing_inodes(
    envs: Envs<'_>,
    left: Option<&Arc<Node>>,
    right: Option<&Arc<Node>>,
    out: &mut Vec<Pair>,
) -> Result<()> {
    let shapes = left.map(|node| node.shape()).zip(right.map(|node| node.shape()));
    if let Some((Shape::Inner(l), Shape::Inner(r))) = shapes {
        for bucket in 0..BRANCHING_MAX as usize {
            // Below equal hashes nothing differs, so nothing is read there.
            if l.bucket_hash(bucket) != r.bucket_hash(bucket) {
                let left = l.fetch(envs.left, bucket)?;
                let right = r.fetch(envs.right, bucket)?;
                differing_inodes(envs, left.as_ref(), right.as_ref(), out)?;
            }
        }
        return Ok(());
    }

    // One side is a leaf, or missing: compare the steps themselves.
    let entries = |env, node: Option<&Arc<Node>>| node.map_or(Ok(Vec::new()), |n| sorted(env, n));
    join(envs, entries(envs.left, left)?, entries(envs.right, right)?, out);
    Ok(())
}

/// Merges two ascending lists into pairs, without equal ones.
fn join(envs: Envs<'_>, left: Vec<Entry>, right: Vec<Entry>, out: &mut Vec<Pair>) {
    let mut left = left.into_iter().peekable();
    let mut right = right.into_iter().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(l), Some(r)) => l.step().cmp(r.step()),
        };

        let left = if order.is_le() { left.next() } else { None };
        let right = if order.is_ge() { right.next() } else { None };

        let equal = match (&left, &right) {
            (Some(l), Some(r)) => same((envs.left, l.spot()), (envs.right, r.spot())),
            _ => false,
        };

        if !equal {
            debug_assert!(left.is_some() || right.is_some(), "a pair has a step");
            out.push(Pair { left, right });
        }
    }
}

//! History: ancestors of commits and common ancestors.
//!
//! Invariant of the searches: a commit lies behind its parents in the pack. Only a parent imported
//! after its child breaks it; then a search may read more commits, and may return an ancestor of a
//! common ancestor beside it.
//!
//! Rejected: a search by generations, which ends at the first commit instead of the common
//! ancestors.

use std::collections::{BTreeSet, BinaryHeap};

use crate::base::address::Address;
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::path::Steps;
use crate::pack::commit::{Commit, CommitRecord};
use crate::store::inner::StoreInner;
use crate::store::reader::StoreReader;
use crate::store::store::Store;
use crate::tree::tree::Kind;

/// Ancestors of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Commits, newest first, linked by their parents.
    pub commits: Vec<Commit>,
    /// Missing parents: collected, or never imported.
    pub missing: Vec<Hash>,
}

/// Limits of a search for common ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Generations to search.
    pub depth: usize,
    /// Upper bound of common ancestors.
    pub ancestors: usize,
}

impl Reach {
    /// No limits.
    pub const ALL: Self = Self { depth: usize::MAX, ancestors: usize::MAX };
}

/// Flags: ancestor of one side, of the other side, of a common ancestor.
const OURS: u8 = 1;
const THEIRS: u8 = 2;
const BOTH: u8 = OURS | THEIRS;
const BELOW: u8 = 4;

struct SeenCommit {
    flags: u8,
    depth: usize,
    is_queued: bool,
    /// Address and parents; `None` if the commit is missing.
    found: Option<(Address, Vec<Hash>)>,
}

/// Search for common ancestors: visits the newest commit first, and passes its flags to its
/// parents.
struct Search<'a> {
    inner: &'a StoreInner,
    depth_max: usize,
    seen: FastMap<Hash, SeenCommit>,
    queue: BinaryHeap<(Address, Hash)>,
    /// Number of queued commits that are not known to be ancestors of a common ancestor.
    open: usize,
    /// Common ancestors that are not known to be ancestors of another one.
    common: BTreeSet<(Address, Hash)>,
}

impl<'a> Search<'a> {
    fn new(inner: &'a StoreInner, depth_max: usize) -> Self {
        Self {
            inner,
            depth_max,
            seen: FastMap::default(),
            queue: BinaryHeap::new(),
            open: 0,
            common: BTreeSet::new(),
        }
    }

    fn look_up(&mut self, hash: Hash, depth: usize) -> Result<()> {
        if !self.seen.contains_key(&hash) {
            let found = self.inner.find_commit(&hash)?;
            let found = found.map(|(extent, record)| (extent.at, record.commit.parents));
            if found.is_some() && depth > self.depth_max {
                return Err(Error::MaxDepthReached { depth: self.depth_max });
            }
            self.seen.insert(hash, SeenCommit { flags: 0, depth, is_queued: false, found });
        }
        Ok(())
    }

    /// Adds flags to a commit, and queues it if its flags changed.
    fn mark_ancestor(&mut self, hash: Hash, flags: u8, depth: usize) -> Result<()> {
        self.look_up(hash, depth)?;
        let Some(seen) = self.seen.get_mut(&hash) else { return Ok(()) };
        let Some((at, _)) = seen.found else { return Ok(()) };
        seen.depth = seen.depth.min(depth);

        // Flags only grow, so that a commit is queued a few times at most.
        if seen.flags & flags == flags {
            return Ok(());
        }

        let was_below = seen.flags & BELOW != 0;
        seen.flags |= flags;
        let is_below = seen.flags & BELOW != 0;

        if !seen.is_queued {
            seen.is_queued = true;
            self.queue.push((at, hash));
            self.open += usize::from(!is_below);
        } else if is_below && !was_below {
            self.open -= 1;
        }

        // An ancestor of a common ancestor is no lowest one.
        if is_below {
            self.common.remove(&(at, hash));
        } else if seen.flags == BOTH {
            self.common.insert((at, hash));
        }

        Ok(())
    }

    /// Returns whether another common ancestor may exist, or a known one may be an ancestor of
    /// another.
    fn goes_on(&self) -> bool {
        debug_assert!(self.open <= self.queue.len(), "only queued commits are open");
        let newest = self.queue.peek().map(|(at, _)| *at);
        let oldest = self.common.first().map(|(at, _)| *at);
        // Parents lie before children in the pack, so older commits cannot change the result.
        self.open > 0 || self.common.len() > 1 && newest > oldest
    }

    fn run(mut self) -> Result<Vec<Hash>> {
        while self.goes_on() {
            let Some((_, hash)) = self.queue.pop() else { break };
            let Some(seen) = self.seen.get_mut(&hash) else { continue };
            seen.is_queued = false;
            self.open -= usize::from(seen.flags & BELOW == 0);

            // Parents of a common ancestor are ancestors of it on both sides.
            let below = if seen.flags & BOTH == BOTH { BOTH | BELOW } else { seen.flags };
            let depth = seen.depth.saturating_add(1);
            let parents = seen.found.as_ref().map(|(_, parents)| parents.clone());
            for parent in parents.unwrap_or_default() {
                self.mark_ancestor(parent, below, depth)?;
            }
        }

        Ok(self.common.into_iter().rev().map(|(_, hash)| hash).collect())
    }
}

/// Iteration over commits and their ancestors, newest first, each once.
struct Ancestors<'a> {
    inner: &'a StoreInner,
    queue: BinaryHeap<(Address, Hash)>,
    /// Visited commits with their generation, and their record until it is returned.
    met: FastMap<Hash, (usize, Option<CommitRecord>)>,
    missing: Vec<Hash>,
}

impl<'a> Ancestors<'a> {
    fn new(inner: &'a StoreInner) -> Self {
        let queue = BinaryHeap::new();
        let met = FastMap::default();
        Self { inner, queue, met, missing: Vec::new() }
    }

    fn add(&mut self, hash: Hash, generation: usize) -> Result<()> {
        // Several paths lead to a commit; the shortest one counts.
        if let Some((known, _)) = self.met.get_mut(&hash) {
            *known = generation.min(*known);
            return Ok(());
        }
        let found = self.inner.find_commit(&hash)?;
        match &found {
            Some((extent, _)) => self.queue.push((extent.at, hash)),
            None => self.missing.push(hash),
        }
        self.met.insert(hash, (generation, found.map(|(_, record)| record)));
        Ok(())
    }

    /// Returns the next commit and its generation. The caller adds its parents.
    fn next(&mut self) -> Option<(usize, Commit)> {
        let (_, hash) = self.queue.pop()?;
        let (generation, record) = self.met.get_mut(&hash)?;
        Some((*generation, record.take()?.commit))
    }
}

impl StoreInner {
    pub(crate) fn history(&self, head: &Hash, depth: usize) -> Result<History> {
        self.commit_of(head)?;

        let mut ancestors = Ancestors::new(self);
        ancestors.add(*head, 0)?;
        let mut commits = Vec::new();

        while let Some((generation, commit)) = ancestors.next() {
            debug_assert!(generation <= depth, "no parents are added beyond the depth");
            if generation < depth {
                for parent in &commit.parents {
                    ancestors.add(*parent, generation + 1)?;
                }
            }
            commits.push(commit);
        }

        Ok(History { commits, missing: ancestors.missing })
    }

    /// Kind and hash of the tree of a commit at a path.
    fn at_path(&self, commit: &Hash, path: &[&[u8]]) -> Result<Option<(Kind, Hash)>> {
        let Some(context) = self.checkout(commit)? else { return Ok(None) };
        Ok(context.find_tree(path)?.map(|tree| (tree.kind(), tree.hash())))
    }

    fn last_modified(&self, head: &Hash, path: &[&[u8]], count: usize) -> Result<Vec<Hash>> {
        self.commit_of(head)?;
        let mut ancestors = Ancestors::new(self);
        ancestors.add(*head, 0)?;
        let mut modified = Vec::new();

        while modified.len() < count {
            let Some((generation, commit)) = ancestors.next() else { break };

            // Equal to one parent: the change came with that parent.
            let here = self.at_path(&commit.hash, path)?;
            let mut parents = 0;
            let mut is_same = false;

            for parent in &commit.parents {
                if self.find_commit(parent)?.is_some() {
                    parents += 1;
                    is_same |= self.at_path(parent, path)? == here;
                }
                ancestors.add(*parent, generation + 1)?;
            }

            if if parents == 0 { here.is_some() } else { !is_same } {
                modified.push(commit.hash);
            }
        }

        debug_assert!(modified.len() <= count, "the search ends at the count");
        Ok(modified)
    }

    /// Returns the lowest common ancestors of two sets of commits.
    pub(crate) fn lcas(&self, ours: &[Hash], theirs: &[Hash], reach: Reach) -> Result<Vec<Hash>> {
        let mut search = Search::new(self, reach.depth);
        for (side, flags) in [(ours, OURS), (theirs, THEIRS)] {
            for hash in side {
                search.mark_ancestor(*hash, flags, 0)?;
                if search.seen.get(hash).is_none_or(|seen| seen.found.is_none()) {
                    return Err(Error::UnknownCommit { hash: *hash });
                }
            }
        }

        let common = search.run()?;
        if common.len() > reach.ancestors {
            return Err(Error::TooManyLcas { limit: reach.ancestors });
        }
        Ok(common)
    }
}

macro_rules! searches {
    ($store:ty) => {
        impl $store {
            /// Returns `head` and its ancestors, at most `depth` generations back.
            ///
            /// Cost: one read for each commit, beside those of the index.
            ///
            /// # Errors
            /// [`UnknownCommit`](Error::UnknownCommit), [`Disk`](Error::Disk),
            /// [`Corrupt`](Error::Corrupt), [`Index`](Error::Index).
            pub fn history(&self, head: &Hash, depth: usize) -> Result<History> {
                self.inner.history(head, depth)
            }

            /// Returns the newest `count` commits among `head` and its ancestors whose tree at
            /// `path` differs from all their parents, newest first.
            ///
            /// A commit without present parents counts if anything is bound at `path`.
            ///
            /// Cost: for each commit that is looked at two reads, and those of
            /// [`find_tree`](crate::Tree::find_tree).
            ///
            /// # Errors
            /// Errors of [`history`](Self::history).
            pub fn last_modified<S: AsRef<[u8]>>(
                &self,
                head: &Hash,
                path: &[S],
                count: usize,
            ) -> Result<Vec<Hash>> {
                self.inner.last_modified(head, Steps::new(path).as_slice(), count)
            }

            /// Returns the lowest common ancestors of two commits, newest first; none for unrelated
            /// commits, several after crosswise merges.
            ///
            /// Cost: one read for each commit that is newer than the ancestors, beside those of the
            /// index.
            ///
            /// # Errors
            /// [`MaxDepthReached`](Error::MaxDepthReached), [`TooManyLcas`](Error::TooManyLcas),
            /// and those of [`history`](Self::history).
            pub fn lcas(&self, ours: &Hash, theirs: &Hash, reach: Reach) -> Result<Vec<Hash>> {
                self.inner.lcas(&[*ours], &[*theirs], reach)
            }
        }
    };
}

searches!(Store);
searches!(StoreReader);

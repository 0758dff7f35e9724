//! History: ancestors of commits, common ancestors, and the commits between two.
//!
//! Invariant of the searches: a commit lies behind its parents in the pack. Only a parent imported
//! after its child breaks it; then a search may read more commits, and that for common ancestors
//! may return an ancestor of one beside it. The commits between two are right in any case.
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

/// Commit that the search of a range has met.
struct RangeCommit {
    at: Address,
    /// Without author and message if it is excluded.
    commit: Commit,
    /// Whether it is the beginning or an ancestor of the beginning.
    is_excluded: bool,
    is_queued: bool,
}

/// Search for the commits between two: visits the newest commit first, and excludes the ancestors
/// of the beginning.
struct RangeSearch<'a> {
    inner: &'a StoreInner,
    /// `None` for missing commits.
    met: FastMap<Hash, Option<RangeCommit>>,
    queue: BinaryHeap<(Address, Hash)>,
    /// Number of queued commits that are not excluded.
    open: usize,
}

impl RangeSearch<'_> {
    /// Queues a commit if it is new, or newly excluded.
    fn mark(&mut self, hash: Hash, is_excluded: bool) -> Result<()> {
        let Some(met) = self.met.get_mut(&hash) else {
            let found = self.inner.find_commit(&hash)?;
            let met = found.map(|(extent, CommitRecord { commit, .. })| RangeCommit {
                at: extent.at,
                commit,
                is_excluded: false,
                is_queued: true,
            });
            if let Some(met) = &met {
                self.queue.push((met.at, hash));
                self.open += 1;
            }
            self.met.insert(hash, met);
            return if is_excluded { self.mark(hash, true) } else { Ok(()) };
        };

        let Some(met) = met.as_mut().filter(|met| is_excluded && !met.is_excluded) else {
            return Ok(());
        };
        met.is_excluded = true;
        (met.commit.author, met.commit.message) = (Vec::new(), Vec::new());

        // Its parents must be told.
        if met.is_queued {
            self.open -= 1;
        } else {
            met.is_queued = true;
            self.queue.push((met.at, hash));
        }
        Ok(())
    }

    /// Visits the newest queued commit; returns whether there was one.
    fn step(&mut self) -> Result<bool> {
        debug_assert!(self.open <= self.queue.len(), "only queued commits are open");
        let Some((_, hash)) = self.queue.pop() else { return Ok(false) };
        let Some(Some(met)) = self.met.get_mut(&hash) else { return Ok(true) };
        met.is_queued = false;
        let is_excluded = met.is_excluded;
        self.open -= usize::from(!is_excluded);
        for parent in met.commit.parents.clone() {
            self.mark(parent, is_excluded)?;
        }
        Ok(true)
    }

    /// Returns the commits that are not excluded, `to` first.
    fn wanted(&self, to: &Hash) -> Vec<(Hash, Vec<Hash>)> {
        let is_wanted = |met: &&RangeCommit| !met.is_excluded;
        let named = |met: &RangeCommit| (met.commit.hash, met.commit.parents.clone());
        let first = self.met.get(to).and_then(Option::as_ref).filter(is_wanted);
        let others = self.met.values().flatten().filter(is_wanted);
        let others = others.filter(|met| met.commit.hash != *to);
        first.into_iter().chain(others).map(named).collect()
    }
}

/// Returns the positions of commits with their parents, so that parents come before children.
///
/// Otherwise commits stand in the order given, and parents in the order in which their child names
/// them. So if all are ancestors of the first one, the order is a function of the first one and of
/// the set.
pub(crate) fn parents_first(commits: &[(Hash, Vec<Hash>)]) -> Vec<usize> {
    let numbered = commits.iter().enumerate().map(|(at, (hash, _))| (*hash, at));
    let positions: FastMap<Hash, usize> = numbered.collect();
    let mut is_open = vec![false; commits.len()];
    let mut order = Vec::with_capacity(commits.len());
    let mut stack = Vec::new();

    // Post-order with a list: a history may be longer than a thread has stack for.
    for start in 0..commits.len() {
        if !std::mem::replace(&mut is_open[start], true) {
            stack.push((start, commits[start].1.iter()));
        }
        while let Some((at, parents)) = stack.last_mut() {
            let at = *at;
            match parents.next().map(|parent| positions.get(parent)) {
                Some(Some(&parent)) if !is_open[parent] => {
                    is_open[parent] = true;
                    stack.push((parent, commits[parent].1.iter()));
                }
                Some(_) => {}
                None => {
                    order.push(at);
                    stack.pop();
                }
            }
        }
    }

    debug_assert_eq!(order.len(), commits.len(), "each commit once");
    order
}

impl StoreInner {
    /// Returns the ancestors of `to` that are not ancestors of `from`.
    pub(crate) fn commits_between(&self, from: &Hash, to: &Hash) -> Result<History> {
        self.commit_of(from)?;
        self.commit_of(to)?;
        let met = FastMap::default();
        let mut search = RangeSearch { inner: self, met, queue: BinaryHeap::new(), open: 0 };
        search.mark(*from, true)?;
        search.mark(*to, false)?;
        while search.open > 0 {
            search.step()?;
        }

        // A descendant of the beginning is no ancestor of it. Any other commit may be one, through
        // a child before it in the pack: then all ancestors of the beginning are visited.
        let mut wanted = search.wanted(to);
        let mut order = parents_first(&wanted);
        let mut below = FastMap::from_iter([(*from, ())]);
        let is_sure = order.iter().all(|at| {
            let (hash, parents) = &wanted[*at];
            let is_below = parents.iter().any(|parent| below.contains_key(parent));
            below.insert(*hash, ());
            is_below
        });
        if !is_sure {
            while search.step()? {}
            wanted = search.wanted(to);
            order = parents_first(&wanted);
        }

        let mut history = History::default();
        for at in order.into_iter().rev() {
            let (hash, parents) = &wanted[at];
            for parent in parents {
                // Taken out, so that each missing parent is named once.
                if matches!(search.met.get(parent), Some(None)) {
                    search.met.remove(parent);
                    history.missing.push(*parent);
                }
            }
            if let Some(Some(met)) = search.met.remove(hash) {
                history.commits.push(met.commit);
            }
        }
        Ok(history)
    }

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

            /// Returns `to` and its ancestors without `from` and the ancestors of `from`, children
            /// before parents; none if `to` is `from` or one of these. The order is a function of
            /// the commits.
            ///
            /// Cost: one read for each commit that is newer than `from`, beside those of the index.
            /// If some of the commits are no descendants of `from`, as after a merge, one read for
            /// each ancestor of `from`.
            ///
            /// # Errors
            /// Errors of [`history`](Self::history).
            pub fn commits_between(&self, from: &Hash, to: &Hash) -> Result<History> {
                self.inner.commits_between(from, to)
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

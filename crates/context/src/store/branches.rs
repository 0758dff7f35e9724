//! Heads of branches: changes of a tree that end in a commit and a new head, merges, and watches.

use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::path::Steps;
use crate::store::context::Context;
use crate::store::history::Reach;
use crate::store::reader::StoreReader;
use crate::store::store::{Meta, Store};
use crate::store::watch::{HeadChange, Watch, WatchId};
use crate::tree::merge::{Merged, Versions};
use crate::tree::tree::Tree;

/// Merges of merges are computed so deep at most.
const NESTING_MAX: usize = 32;

/// Merges two versions of a value.
pub type MergeValues<'a> = &'a dyn Fn(&[Box<[u8]>], Versions<'_>) -> Merged;

/// What a write does if the branch moved meanwhile.
#[derive(Clone, Copy)]
pub enum Strategy<'a> {
    /// The last one wins; what others have written meanwhile is not in the new head.
    Set,
    /// Begins anew on the new head.
    TestAndSet,
    /// Merges with the new head.
    Merge(MergeValues<'a>),
}

/// How a change of a branch is written.
#[derive(Clone)]
pub struct Write<'a> {
    /// What its commit says.
    pub meta: Meta<'a>,
    /// What happens if the branch moves meanwhile.
    pub strategy: Strategy<'a>,
    /// How often it is tried again.
    pub retries: usize,
    /// Whether a change that changes nothing makes a commit.
    pub allow_empty: bool,
    /// The parents of the commit; the head if none are given.
    pub parents: Option<Vec<Hash>>,
}

impl<'a> Write<'a> {
    /// On the head, again up to 10 times if the branch moves meanwhile, nothing if nothing changes.
    pub fn new(meta: Meta<'a>) -> Self {
        let strategy = Strategy::TestAndSet;
        Self { meta, strategy, retries: 10, allow_empty: false, parents: None }
    }
}

impl Store {
    fn context_of(&self, head: Option<Hash>) -> Result<Context> {
        match head {
            Some(hash) => self.checkout(&hash)?.ok_or(Error::UnknownCommit { hash }),
            None => Ok(self.empty()),
        }
    }

    /// The head of a branch and its context. A head that others move on may be collected before it is checked out: then the new
    /// one is looked for.
    fn head_of(&self, branch: &[u8]) -> Result<(Option<Hash>, Context)> {
        loop {
            let head = self.branch(branch);
            match self.context_of(head) {
                Err(Error::UnknownCommit { .. }) if self.branch(branch) != head => {}
                context => return Ok((head, context?)),
            }
        }
    }

    /// Changes the tree at a path of a branch, which is made if need be: `change` gets what is there and gives what is to be there,
    /// none for nothing. It may be called several times. Returns the new commit; none if nothing changed. Collections that run
    /// beside it take nothing away that it needs.
    ///
    /// Cost: that of a checkout and a commit, for each try.
    ///
    /// # Errors
    /// [`TooManyRetries`](Error::TooManyRetries); with [`Merge`](Strategy::Merge) those of [`merge_commit`](Self::merge_commit);
    /// those of [`commit_to`](Self::commit_to).
    pub fn with_tree<S: AsRef<[u8]>>(
        &self,
        branch: &[u8],
        path: &[S],
        write: &Write<'_>,
        mut change: impl FnMut(Option<Tree>) -> Option<Tree>,
    ) -> Result<Option<Hash>> {
        for _ in 0..=write.retries {
            let (head, mut context) = self.head_of(branch)?;
            let before = context.hash();
            context.update_tree(path, &mut change)?;
            if !write.allow_empty && context.hash() == before {
                return Ok(None);
            }
            if let Some(parents) = &write.parents {
                context.set_parents(parents.clone());
            }
            if let Strategy::Set = write.strategy {
                return self.commit_to(branch, &context, &write.meta).map(Some);
            }
            let commit = self.test_and_commit_to(branch, head.as_ref(), &context, &write.meta)?;
            if commit.is_some() {
                return Ok(commit);
            }
            if let Strategy::Merge(merge) = write.strategy {
                // The commit is no head of a branch until it is merged.
                let _held = self.hold(self.hash(&context, &write.meta));
                let commit = self.commit(&context, &write.meta)?;
                return self.merge_commit(branch, &commit, write, Reach::ALL, merge).map(Some);
            }
        }
        Err(Error::TooManyRetries { count: write.retries })
    }

    /// Moves a branch to a commit that its head leads to.
    ///
    /// Cost: that of [`lcas`](Self::lcas), and one write.
    ///
    /// # Errors
    /// [`NoChange`](Error::NoChange) if it is there already, [`Rejected`](Error::Rejected) if the head does not lead there, or the
    /// branch moved meanwhile, and those of [`lcas`](Self::lcas) and [`set_branch`](Self::set_branch).
    pub fn fast_forward(&self, branch: &[u8], commit: &Hash, reach: Reach) -> Result<()> {
        let head = self.branch(branch);
        let name = || String::from_utf8_lossy(branch).into_owned();
        if let Some(head) = head {
            if head == *commit {
                return Err(Error::NoChange { name: name() });
            }
            if self.lcas(&head, commit, reach)? != [head] {
                return Err(Error::Rejected { name: name() });
            }
        }
        if self.test_and_set_branch(branch, head.as_ref(), Some(commit))? {
            Ok(())
        } else {
            Err(Error::Rejected { name: name() })
        }
    }

    /// Merges the head of the branch `from` into the branch `into`. As [`merge_commit`](Self::merge_commit).
    ///
    /// # Errors
    /// As [`merge_commit`](Self::merge_commit), and [`UnknownBranch`](Error::UnknownBranch).
    pub fn merge_branch(
        &self,
        into: &[u8],
        from: &[u8],
        write: &Write<'_>,
        reach: Reach,
        merge: MergeValues<'_>,
    ) -> Result<Hash> {
        let Some(theirs) = self.branch(from) else {
            return Err(Error::UnknownBranch { name: String::from_utf8_lossy(from).into_owned() });
        };
        self.merge_commit(into, &theirs, write, reach, merge)
    }

    /// Merges a commit into a branch: what both sides changed since their common ancestor, values that both changed by
    /// `merge`. Several common ancestors are merged first, in the same way. Of `write` the meta data and the retries count.
    /// Returns the head of the branch after that: a commit with both as parents, or one of both that the other leads to.
    ///
    /// Cost: that of [`lcas`](Self::lcas), of [`Tree::merge`], and of a commit.
    ///
    /// # Errors
    /// [`Conflict`](Error::Conflict): the branch stays as it was; [`TooManyRetries`](Error::TooManyRetries); those of
    /// [`lcas`](Self::lcas) and [`commit`](Self::commit).
    pub fn merge_commit(
        &self,
        branch: &[u8],
        theirs: &Hash,
        write: &Write<'_>,
        reach: Reach,
        merge: MergeValues<'_>,
    ) -> Result<Hash> {
        let _theirs = self.hold(*theirs);
        for _ in 0..=write.retries {
            let head = self.branch(branch);
            let _ours = head.map(|ours| self.hold(ours));
            if self.branch(branch) != head {
                continue;
            }
            let merged = match head {
                Some(ours) => match self.merge_heads(&ours, theirs, &write.meta, reach, merge) {
                    // A common ancestor was collected meanwhile.
                    Err(Error::UnknownCommit { hash }) if hash != *theirs => continue,
                    merged => merged?,
                },
                None => *theirs,
            };
            let _merged = self.hold(merged);
            if self.test_and_set_branch(branch, head.as_ref(), Some(&merged))? {
                return Ok(merged);
            }
        }
        Err(Error::TooManyRetries { count: write.retries })
    }

    /// A commit that both lead to.
    fn merge_heads(
        &self,
        ours: &Hash,
        theirs: &Hash,
        meta: &Meta<'_>,
        reach: Reach,
        merge: MergeValues<'_>,
    ) -> Result<Hash> {
        let common = self.lcas(ours, theirs, reach)?;
        if common == [*theirs] {
            return Ok(*ours);
        }
        if common == [*ours] {
            return Ok(*theirs);
        }
        let base = self.merge_base(&common, reach, merge, 0)?;
        let mut context = self.context_of(Some(*ours))?;
        let other = self.context_of(Some(*theirs))?;
        *context.tree_mut() = context.merge(&base, other.tree(), merge)?;
        context.set_parents(vec![*ours, *theirs]);
        self.commit(&context, meta)
    }

    /// The tree that changes are counted from: that of the common ancestor, the merge of several, or the empty one.
    fn merge_base(
        &self,
        common: &[Hash],
        reach: Reach,
        merge: MergeValues<'_>,
        nesting: usize,
    ) -> Result<Tree> {
        if nesting > NESTING_MAX {
            return Err(Error::MaxDepthReached { depth: NESTING_MAX });
        }
        let mut tree = self.context_of(common.first().copied())?.tree().clone();
        for (count, next) in common.iter().enumerate().skip(1) {
            let below =
                self.inner.lcas(common.get(..count).unwrap_or_default(), &[*next], reach)?;
            let base = self.merge_base(&below, reach, merge, nesting + 1)?;
            tree = tree.merge(&base, self.context_of(Some(*next))?.tree(), merge)?;
        }
        Ok(tree)
    }
}

macro_rules! watches {
    ($store:ty, $when:literal) => {
        impl $store {
            /// Has `call` be called for each change of a branch,
            #[doc = $when]
            pub fn watch(
                &self,
                branch: &[u8],
                call: impl Fn(&HeadChange) + Send + Sync + 'static,
            ) -> WatchId {
                let branch = Some(branch.to_vec());
                self.inner.watches.add(Watch { branch, path: None, call: Box::new(call) })
            }

            /// As [`watch`](Self::watch), for all branches.
            pub fn watch_all(&self, call: impl Fn(&HeadChange) + Send + Sync + 'static) -> WatchId {
                self.inner.watches.add(Watch { branch: None, path: None, call: Box::new(call) })
            }

            /// As [`watch`](Self::watch), for changes of what a branch has at a path. A head that cannot be read any more counts as one
            /// that differs.
            ///
            /// Cost: two checkouts for each change of the branch.
            pub fn watch_key<S: AsRef<[u8]>>(
                &self,
                branch: &[u8],
                path: &[S],
                call: impl Fn(&HeadChange) + Send + Sync + 'static,
            ) -> WatchId {
                let path = Steps::new(path).as_slice().iter().map(|step| (*step).into()).collect();
                let (branch, path) = (Some(branch.to_vec()), Some(path));
                self.inner.watches.add(Watch { branch, path, call: Box::new(call) })
            }

            /// Ends a watch; says whether there was one. A call that is being made is not waited for.
            pub fn unwatch(&self, watch: WatchId) -> bool {
                self.inner.watches.remove(watch)
            }
        }
    };
}

watches!(
    Store,
    "in the thread that makes it, or in one that is making such calls at the time; after it is durable as a commit is, and in the order of \
     the changes."
);
watches!(StoreReader, "in the thread whose [`sync`](Self::sync) has found it: one for each sync.");

//! Branches: changes of a tree that end in a commit and a new head, merges, and watches.

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

/// Upper bound of the nesting of merges of common ancestors.
const NESTING_MAX: usize = 32;

/// Merge function of two versions of a value.
pub type MergeValues<'a> = &'a dyn Fn(&[Box<[u8]>], Versions<'_>) -> Merged;

/// Reaction of a write to a branch that moved meanwhile.
#[derive(Clone, Copy)]
pub enum Strategy<'a> {
    /// Last writer wins; the new head does not contain concurrent changes.
    Set,
    /// Repeats the change on the new head.
    TestAndSet,
    /// Merges with the new head.
    Merge(MergeValues<'a>),
}

/// Options of a change of a branch.
#[derive(Clone)]
pub struct Write<'a> {
    /// Date, author and message of the commit.
    pub meta: Meta<'a>,
    /// Reaction to a branch that moved meanwhile.
    pub strategy: Strategy<'a>,
    /// Upper bound of retries.
    pub retries: usize,
    /// Whether a change without effect makes a commit.
    pub allow_empty: bool,
    /// Parents of the commit; `None` for the head.
    pub parents: Option<Vec<Hash>>,
}

impl<'a> Write<'a> {
    /// Options that retry on the new head up to 10 times, and make no commit if nothing changes.
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

    /// Returns the head of a branch and its context. If a collection removes the head before the
    /// checkout, another thread has moved the branch: look again.
    fn head_of(&self, branch: &[u8]) -> Result<(Option<Hash>, Context)> {
        loop {
            let head = self.branch(branch);
            match self.context_of(head) {
                Err(Error::UnknownCommit { .. }) if self.branch(branch) != head => {}
                context => return Ok((head, context?)),
            }
        }
    }

    /// Changes the tree at a path of a branch, and creates the branch if it is missing. Returns the
    /// new commit; `None` if nothing changed.
    ///
    /// `change` gets the tree at the path and returns the new tree, `None` for none. It may be
    /// called several times. Concurrent collections keep all that the call needs.
    ///
    /// Cost: as a checkout and a commit, for each try.
    ///
    /// # Errors
    /// [`TooManyRetries`](Error::TooManyRetries); with [`Merge`](Strategy::Merge) those of
    /// [`merge_commit`](Self::merge_commit); those of [`commit_to`](Self::commit_to).
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

            // Without a test: the branch takes the commit wherever it is.
            if let Strategy::Set = write.strategy {
                return self.commit_to(branch, &context, &write.meta).map(Some);
            }

            // The test and the commit are one call under the writer's lock.
            let commit = self.test_and_commit_to(branch, head.as_ref(), &context, &write.meta)?;
            if commit.is_some() {
                return Ok(commit);
            }

            if let Strategy::Merge(merge) = write.strategy {
                // A collection must keep the commit, which is no head until it is merged.
                let _held = self.hold(self.hash(&context, &write.meta));
                let commit = self.commit(&context, &write.meta)?;
                return self.merge_commit(branch, &commit, write, Reach::ALL, merge).map(Some);
            }
        }

        Err(Error::TooManyRetries { count: write.retries })
    }

    /// Moves a branch to a descendant of its head.
    ///
    /// Cost: as [`lcas`](Self::lcas), and one write.
    ///
    /// # Errors
    /// [`NoChange`](Error::NoChange) if it is there already, [`Rejected`](Error::Rejected) if the
    /// head does not lead there, or the branch moved meanwhile, and those of [`lcas`](Self::lcas)
    /// and [`set_branch`](Self::set_branch).
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

        // Set only if the head is still the one that was tested.
        if self.test_and_set_branch(branch, head.as_ref(), Some(commit))? {
            Ok(())
        } else {
            Err(Error::Rejected { name: name() })
        }
    }

    /// Merges the head of the branch `from` into the branch `into`, like
    /// [`merge_commit`](Self::merge_commit).
    ///
    /// # Errors
    /// Errors of [`merge_commit`](Self::merge_commit), and [`UnknownBranch`](Error::UnknownBranch).
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

    /// Merges a commit into a branch: the changes of both sides since their common ancestor.
    /// `merge` decides values that both sides changed.
    ///
    /// Several common ancestors are merged first, in the same way. Of `write`, only the metadata
    /// and the retries count. Returns the new head: a commit with both as parents, or the
    /// descendant if one descends from the other.
    ///
    /// Cost: as [`lcas`](Self::lcas), of [`Tree::merge`], and of a commit.
    ///
    /// # Errors
    /// [`Conflict`](Error::Conflict): the branch stays as it was;
    /// [`TooManyRetries`](Error::TooManyRetries); those of [`lcas`](Self::lcas) and
    /// [`commit`](Self::commit).
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

            // The head may have moved, and been collected, before it was held.
            if self.branch(branch) != head {
                continue;
            }

            let merged = match head {
                Some(ours) => match self.merge_heads(&ours, theirs, &write.meta, reach, merge) {
                    // A collection removed a common ancestor meanwhile.
                    Err(Error::UnknownCommit { hash }) if hash != *theirs => continue,
                    merged => merged?,
                },
                None => *theirs,
            };

            // No branch names the merge yet.
            let _merged = self.hold(merged);
            if self.test_and_set_branch(branch, head.as_ref(), Some(&merged))? {
                return Ok(merged);
            }
        }

        Err(Error::TooManyRetries { count: write.retries })
    }

    /// Returns a commit that descends from both.
    fn merge_heads(
        &self,
        ours: &Hash,
        theirs: &Hash,
        meta: &Meta<'_>,
        reach: Reach,
        merge: MergeValues<'_>,
    ) -> Result<Hash> {
        let common = self.lcas(ours, theirs, reach)?;

        // One side contains the other: no new commit.
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

    /// Returns the base of a merge: the tree of the common ancestor, the merge of several, or the
    /// empty tree.
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

        // Ancestors merge one after the other, each over the common ancestors of those before.
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
            /// Registers `call` for each change of a branch,
            #[doc = $when]
            pub fn watch(
                &self,
                branch: &[u8],
                call: impl Fn(&HeadChange) + Send + Sync + 'static,
            ) -> WatchId {
                let branch = Some(branch.to_vec());
                self.inner.watches.add(Watch { branch, path: None, call: Box::new(call) })
            }

            /// Like [`watch`](Self::watch), for all branches.
            pub fn watch_all(&self, call: impl Fn(&HeadChange) + Send + Sync + 'static) -> WatchId {
                self.inner.watches.add(Watch { branch: None, path: None, call: Box::new(call) })
            }

            /// Like [`watch`](Self::watch), for changes of the tree at a path. An unreadable head
            /// counts as a change.
            ///
            /// Cost: two checkouts for each change of the branch.
            pub fn watch_key<S: AsRef<[u8]>>(
                &self,
                branch: &[u8],
                path: &[S],
                call: impl Fn(&HeadChange) + Send + Sync + 'static,
            ) -> WatchId {
                let path = Steps::new(path).as_slice().iter().map(|step| (*step).into()).collect();
                let branch = Some(branch.to_vec());
                let path = Some(path);
                self.inner.watches.add(Watch { branch, path, call: Box::new(call) })
            }

            /// Ends a watch; returns whether there was one. Does not wait for a running call.
            pub fn unwatch(&self, watch: WatchId) -> bool {
                self.inner.watches.remove(watch)
            }
        }
    };
}

watches!(
    Store,
    "in the thread that makes the change, or in a thread that is already making such calls; after the change is as durable \
     as a commit, and in the order of the changes."
);
watches!(
    StoreReader,
    "in the thread whose [`sync`](Self::sync) found the change: one call for each sync."
);

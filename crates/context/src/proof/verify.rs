//! Verification of proofs, which needs no store: builds a partial tree of the state, checks it
//! against the rules, and runs the computation on it.
//!
//! Invariant: the rules of a tree hold for the partial tree as far as it is known. A directory is
//! flat or divided by the number of its steps, steps ascend and are in their buckets, and no inode
//! has fewer steps than its children. So the code that changes trees works on it.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::hash::Hash;
use crate::base::hashing::{INODE_DEPTH_MAX, Rules, STEP_BYTES_MAX};
use crate::base::path::PathText;
use crate::object::pins::Pins;
use crate::proof::proof::{
    ExtenderProof, InodeProof, InodeTree, KindedHash, NESTING_MAX, Proof, ProofEntry, ProofError,
    ProofTree, Verified, kinded,
};
use crate::tree::node::{Child, Env, Node, Slot, Value};
use crate::tree::tree::Tree;

impl Proof {
    /// Checks the proof against the root of a tree that the caller trusts, and gives access to its
    /// content. The root of a commit is a [directory](KindedHash::directory).
    ///
    /// Cost: no I/O; hashes the state once.
    ///
    /// # Errors
    /// [`RootMismatch`](ProofError::RootMismatch) for a proof of another root, or of another kind
    /// of root; [`BeforeMismatch`](ProofError::BeforeMismatch), [`Shape`](ProofError::Shape) and
    /// [`TooDeep`](ProofError::TooDeep) for a forged state; [`Tree`](ProofError::Tree) for rules
    /// that no store has.
    #[doc(alias = "verify_tree_proof")]
    pub fn verify(
        &self,
        rules: &Rules,
        root: KindedHash,
    ) -> std::result::Result<Verified<'_>, ProofError> {
        rules.check()?;
        if self.before != root {
            return Err(ProofError::RootMismatch { expected: root, found: self.before });
        }

        let env = Env::new(*rules, None, true);
        let mut builder = Builder { rules, path: Vec::new(), buckets: Vec::new() };

        // A blinded root is a value by the word of the proof alone, and no path leads through a
        // value.
        let is_shown = !matches!(self.state, ProofTree::BlindedValue(_));
        builder.check(is_shown, "a value that is the whole tree is shown")?;
        let state = builder.tree(&self.state, 0)?;

        debug_assert!(builder.path.is_empty() && builder.buckets.is_empty(), "the root was left");
        let tree = Tree::at(Arc::new(env), state, Pins::default());

        // The hash of the built state is computed, never taken from the proof.
        let found = kinded(&tree);
        if found != root {
            return Err(ProofError::BeforeMismatch { expected: root, found });
        }
        Ok(Verified { proof: self, tree })
    }
}

impl Verified<'_> {
    /// Returns the part of the trusted tree that the proof has. Reading another part is
    /// [`NotProvided`](crate::Error::NotProvided).
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the content of the proof as plain data.
    pub fn state(&self) -> &ProofTree {
        &self.proof.state
    }

    /// Runs the proven computation `f`; returns the tree that it makes, and its result. Both are
    /// what `f` gives on the whole tree.
    ///
    /// In `f`, reading a part that the proof lacks is [`NotProvided`](crate::Error::NotProvided);
    /// `f` must pass that error on.
    ///
    /// Cost: what `f` does, and hashing of what it changes.
    ///
    /// # Errors
    /// [`AfterMismatch`](ProofError::AfterMismatch), [`NotProvided`](ProofError::NotProvided), and
    /// [`Tree`](ProofError::Tree) for any other error of `f`.
    pub fn replay<R>(
        &self,
        f: impl FnOnce(Tree) -> Result<(Tree, R)>,
    ) -> std::result::Result<(KindedHash, R), ProofError> {
        let (changed, result) = f(self.tree.clone())?;

        let found = kinded(&changed);
        if found != self.proof.after {
            return Err(ProofError::AfterMismatch { expected: self.proof.after, found });
        }
        Ok((found, result))
    }
}

/// Builder of a partial tree.
struct Builder<'a> {
    rules: &'a Rules,
    /// Path of the current part.
    path: Vec<&'a [u8]>,
    /// Buckets on the way to the current inode, within its directory.
    buckets: Vec<usize>,
}

type Built<T> = std::result::Result<T, ProofError>;

impl<'a> Builder<'a> {
    fn shape(&self, rule: &'static str) -> ProofError {
        ProofError::Shape { path: PathText::new(&self.path), rule }
    }

    fn check(&self, holds: bool, rule: &'static str) -> Built<()> {
        if holds { Ok(()) } else { Err(self.shape(rule)) }
    }

    fn blinded(&self, is_value: bool, hash: Hash) -> Built<Child> {
        let empty = !is_value && hash == self.rules.empty_hash();
        self.check(!empty, "an empty directory is not blinded")?;
        Ok(Child::Blinded { is_value, hash: Box::new(hash) })
    }

    fn tree(&mut self, tree: &'a ProofTree, nesting: usize) -> Built<Child> {
        let node = match tree {
            ProofTree::Value(bytes) => {
                return Ok(Child::Value(Arc::new(Value::new(bytes.as_slice().into()))));
            }
            ProofTree::BlindedValue(hash) => return self.blinded(true, *hash),
            ProofTree::BlindedNode(hash) => return self.blinded(false, *hash),
            ProofTree::Node(entries) => self.directory(entries, nesting)?,
            ProofTree::Inode(inode) => {
                self.check(!self.rules.is_flat(inode.length), "a small directory lists its steps")?;
                self.within(|builder| builder.inner(inode, nesting))?
            }
            ProofTree::Extender(chain) => {
                self.check(!self.rules.is_flat(chain.length), "a small directory lists its steps")?;
                self.within(|builder| builder.chain(chain, nesting))?
            }
        };

        Ok(Child::Dir(Arc::new(node)))
    }

    /// Runs `make` at the root of a directory.
    fn within(&mut self, make: impl FnOnce(&mut Self) -> Built<Node>) -> Built<Node> {
        // Buckets count within one directory.
        let outer = std::mem::take(&mut self.buckets);
        let made = make(self);
        self.buckets = outer;
        made
    }

    /// Builds a directory that lists its steps: flat, or a leaf if the rules list more steps than
    /// they hash flat.
    fn directory(&mut self, entries: &'a [ProofEntry], nesting: usize) -> Built<Node> {
        let count = entries.len() as u64;
        let root = self.path.is_empty();
        self.check(root || count > 0, "an empty directory is not bound")?;
        let flat = self.rules.is_flat(count);
        self.check(flat || self.rules.is_leaf(0, count), "a large directory has buckets")?;
        self.within(|builder| builder.entries(!flat, entries, nesting))
    }

    fn entries(&mut self, leaf: bool, entries: &'a [ProofEntry], nesting: usize) -> Built<Node> {
        if nesting >= NESTING_MAX {
            return Err(ProofError::TooDeep);
        }
        let mut bindings = Vec::with_capacity(entries.len());
        let mut height = 1;
        let mut last: &[u8] = &[];

        for (step, tree) in entries {
            self.path.push(step);
            self.check(step.len() <= STEP_BYTES_MAX, "a step has at most 255 bytes")?;
            self.check(last < &**step, "steps ascend, and none is empty")?;

            // A step in a foreign bucket would be invisible to lookups, and so seem absent.
            let placed = (0..).zip(&self.buckets);
            let placed = placed.fold(true, |so_far, (depth, &bucket)| {
                so_far && self.rules.bucket(depth, step) == bucket
            });
            self.check(placed, "a step is in its bucket")?;
            let child = self.tree(tree, nesting + 1)?;

            if let Child::Dir(node) = &child {
                height = height.max(node.height() + 1);
            }
            bindings.push((step.clone(), child));
            last = step;

            self.path.pop();
        }

        Ok(Node::of_bindings(leaf, &bindings, height))
    }

    /// Builds the content of a bucket.
    fn bucket(&mut self, tree: &'a InodeTree, nesting: usize) -> Built<Slot> {
        let depth = self.buckets.len() as u8;
        let node = match tree {
            InodeTree::BlindedInode(hash) => return Ok(Slot::Blinded(Box::new(*hash))),
            InodeTree::Values(entries) => {
                let count = entries.len() as u64;
                self.check(count > 0, "a bucket that is there is not empty")?;
                self.check(self.rules.is_leaf(depth, count), "a large inode has buckets")?;
                self.entries(true, entries, nesting)?
            }
            InodeTree::Tree(inode) => self.inner(inode, nesting)?,
            InodeTree::Extender(chain) => self.chain(chain, nesting)?,
        };

        Ok(Slot::Node(Arc::new(node)))
    }

    fn inner(&mut self, inode: &'a InodeProof, nesting: usize) -> Built<Node> {
        let proofs = inode.proofs.iter().map(|(index, tree)| (*index, tree));
        self.buckets_node(inode.length, proofs, nesting)
    }

    /// Builds an inode with these buckets.
    fn buckets_node(
        &mut self,
        length: u64,
        proofs: impl Iterator<Item = (u8, &'a InodeTree)>,
        nesting: usize,
    ) -> Built<Node> {
        let depth = self.enter(length, nesting)?;
        let mut slots = Vec::new();
        let mut last = None;
        let mut below = 0u64;
        let mut blinded = 0;
        let mut height = 1;

        for (index, tree) in proofs {
            self.check(last < Some(index), "the indices of buckets ascend")?;
            last = Some(index);
            self.buckets.push(self.index(index)?);
            let slot = self.bucket(tree, nesting + 1)?;
            self.buckets.pop();

            match &slot {
                Slot::Node(node) => {
                    below = below.saturating_add(node.count());
                    height = height.max(node.height());
                }
                Slot::Blinded(_) => blinded += 1,
            }

            slots.push((usize::from(index), slot));
        }

        // Blinded buckets have at least one step each.
        let whole =
            if blinded == 0 { below == length } else { below.saturating_add(blinded) <= length };
        self.check(whole, "the length is that of what is below")?;
        Ok(Node::of_slots((depth, length), slots.into_iter(), height))
    }

    /// Builds the inodes of an extender; returns the first.
    fn chain(&mut self, chain: &'a ExtenderProof, nesting: usize) -> Built<Node> {
        let length = chain.length;
        self.check(!chain.segment.is_empty(), "a chain has an index")?;
        let outer = self.buckets.len();

        for (level, &index) in (nesting..).zip(&chain.segment) {
            self.enter(length, level)?;
            let bucket = self.index(index)?;
            self.buckets.push(bucket);
        }

        // From the bottom up: each index makes an inode around the one below.
        let mut slot = self.bucket(&chain.proof, nesting + chain.segment.len())?;
        let whole = match &slot {
            Slot::Node(node) => node.count() == length,
            Slot::Blinded(_) => true,
        };

        self.check(whole, "the length is that of what is below")?;

        while self.buckets.len() > outer {
            let height = if let Slot::Node(node) = &slot { node.height() } else { 1 };
            let bucket = self.buckets.pop().unwrap_or_default();
            let depth = self.buckets.len() as u8;
            let node = Node::of_slots((depth, length), [(bucket, slot)].into_iter(), height);
            slot = Slot::Node(Arc::new(node));
        }

        debug_assert_eq!(self.buckets.len(), outer, "the extender was left");
        match slot {
            Slot::Node(node) => Ok(Arc::unwrap_or_clone(node)),
            Slot::Blinded(_) => Err(self.shape("a chain has an index")),
        }
    }

    /// Checks that an inode of `length` steps has buckets here; returns its depth.
    fn enter(&self, length: u64, nesting: usize) -> Built<u8> {
        if nesting >= NESTING_MAX {
            return Err(ProofError::TooDeep);
        }
        let depth = u8::try_from(self.buckets.len()).unwrap_or(u8::MAX);
        self.check(depth < INODE_DEPTH_MAX, "inodes nest at most 64 deep")?;

        // A small inode with buckets would have another hash than the canonical one.
        self.check(!self.rules.is_leaf(depth, length), "a small inode lists its steps")?;
        self.check(i64::try_from(length).is_ok(), "a length has 63 bits")?;
        Ok(depth)
    }

    fn index(&self, index: u8) -> Built<usize> {
        self.check(u32::from(index) < self.rules.branching, "an index is below the branching")?;
        Ok(usize::from(index))
    }
}

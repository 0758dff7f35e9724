//! Proofs: partial trees that show what a computation looked at, and the hash of everything else.
//!
//! Whoever holds the hash of a tree can run the computation on such a state instead of the tree: the state has that
//! hash, and what the computation does not find in it is an error, never "absent". A directory that is hashed flat always
//! lists all its steps, since its hash takes all of them.
//!
//! A [`Proof`] may come from an adversary, and shows nothing of what it holds. [`Proof::verify`]
//! compares it with the root that the caller trusts, hash and kind, and gives a [`Verified`]: the
//! only way to the content.

use std::fmt;

use crate::base::corrupt::Corrupt;
use crate::base::error::Error;
use crate::base::hash::Hash;
use crate::base::path::PathText;
use crate::tree::tree::{Kind, Tree};

/// The version of proofs of trees with 32 buckets to an inode.
pub(crate) const VERSION: u16 = 0;

/// How deep a state nests: directories and inodes on one path. More is neither made nor read, so that no proof
/// exhausts the 2 MiB of stack of a thread, in a build without optimisation either. Paths of Tezos have a dozen.
pub const NESTING_MAX: usize = 256;

/// A proof that a computation makes one tree from another. It shows nothing until it is
/// [verified](Self::verify).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The tree that the computation starts from, as the proof says.
    pub(crate) before: KindedHash,
    /// The tree that it gives, as the proof says.
    pub(crate) after: KindedHash,
    /// What it looks at.
    pub(crate) state: ProofTree,
}

impl Proof {
    /// A proof of parts that the caller has made, which is as good as the parts are.
    pub fn new(before: KindedHash, after: KindedHash, state: ProofTree) -> Self {
        Self { before, after, state }
    }
}

/// A proof whose state is a part of the tree that the caller trusts.
///
/// Invariant: `tree` was built from the state of `proof`, and has the root that [`Proof::verify`]
/// was called with.
#[derive(Debug)]
pub struct Verified<'a> {
    pub(crate) proof: &'a Proof,
    pub(crate) tree: Tree,
}

/// A hash, and what it is of: an empty directory and an empty value have the same in Tezos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindedHash {
    /// Of a value or of a directory.
    pub kind: Kind,
    /// The hash.
    pub hash: Hash,
}

impl KindedHash {
    /// A directory, such as the root of the tree of every commit.
    pub const fn directory(hash: Hash) -> Self {
        Self { kind: Kind::Directory, hash }
    }

    /// A value.
    pub const fn value(hash: Hash) -> Self {
        Self { kind: Kind::Value, hash }
    }
}

impl fmt::Display for KindedHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Value { "value" } else { "directory" };
        write!(out, "the {kind} {}", self.hash)
    }
}

/// The kind and the hash of a tree.
pub(crate) fn kinded(tree: &Tree) -> KindedHash {
    KindedHash { kind: tree.kind(), hash: tree.hash() }
}

/// A step of a directory, and what is bound to it.
pub type ProofEntry = (Box<[u8]>, ProofTree);

/// A part of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProofTree {
    /// A value.
    Value(Vec<u8>),
    /// A value of which only the hash is known.
    BlindedValue(Hash),
    /// A directory that lists its steps, ascending.
    Node(Vec<ProofEntry>),
    /// A directory of which only the hash is known.
    BlindedNode(Hash),
    /// A directory that divides its steps among buckets.
    Inode(InodeProof),
    /// The same, where the first buckets are the only ones.
    Extender(ExtenderProof),
}

/// An inode with buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeProof {
    /// Steps of the directory from here down.
    pub length: u64,
    /// The buckets that are not empty, ascending by their indices, two or more.
    pub proofs: Vec<(u8, InodeTree)>,
}

/// A chain of inodes with one bucket each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtenderProof {
    /// Steps of the directory from here down.
    pub length: u64,
    /// The index of the bucket of each inode, one or more.
    pub segment: Vec<u8>,
    /// What is in the last bucket.
    pub proof: Box<InodeTree>,
}

/// What is in a bucket of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InodeTree {
    /// An inode of which only the hash is known.
    BlindedInode(Hash),
    /// An inode that lists its steps, ascending, one or more.
    Values(Vec<ProofEntry>),
    /// An inode with buckets.
    Tree(InodeProof),
    /// A chain of inodes.
    Extender(ExtenderProof),
}

/// Why there is no proof, or why a proof shows nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// The proof is about another tree than the caller trusts.
    #[error("the proof is about {found}, not {expected}")]
    RootMismatch {
        /// The root that the caller trusts.
        expected: KindedHash,
        /// The root that the proof names.
        found: KindedHash,
    },
    /// The state is not a part of the tree that the proof names: the proof is forged or damaged.
    #[error("the state is {found}, not {expected} as the proof says")]
    BeforeMismatch {
        /// What the proof says.
        expected: KindedHash,
        /// What its state is.
        found: KindedHash,
    },
    /// The computation gave another tree than the proof says: it is not the one that was proven, or the proof is forged.
    #[error("the computation gives {found}, not {expected} as the proof says")]
    AfterMismatch {
        /// What the proof says.
        expected: KindedHash,
        /// What the computation gave.
        found: KindedHash,
    },
    /// The computation looked at what the proof does not hold. It says nothing about whether that is there.
    #[error("the proof does not hold {path}")]
    NotProvided {
        /// The path.
        path: PathText,
    },
    /// The state is no part of a tree of these rules.
    #[error("the proof is malformed at {path}: {rule}")]
    Shape {
        /// The directory, or what is bound in it.
        path: PathText,
        /// What does not hold.
        rule: &'static str,
    },
    /// Another version of the format.
    #[error("the proof has version {found}; this program knows {VERSION}")]
    UnsupportedVersion {
        /// Its version.
        found: u16,
    },
    /// Too many directories and inodes within each other.
    #[error("the proof nests deeper than {NESTING_MAX} directories and inodes")]
    TooDeep,
    /// A list of the proof takes 4 GiB or more.
    #[error("a part of the proof takes 4 GiB or more")]
    TooLarge,
    /// The bytes are not those of a proof.
    #[error("byte {offset} of the proof: {what}")]
    Malformed {
        /// Where, counted from 0.
        offset: usize,
        /// The rule that is broken.
        what: Corrupt,
    },
    /// The computation failed for another reason.
    #[error(transparent)]
    Tree(Error),
}

impl From<Error> for ProofError {
    fn from(error: Error) -> Self {
        match error {
            Error::NotProvided { path } => Self::NotProvided { path },
            other => Self::Tree(other),
        }
    }
}

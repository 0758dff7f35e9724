//! Proofs: partial trees that show the parts that a computation read, and the hash of everything
//! else.
//!
//! A verifier that knows the hash of a tree runs the computation on the partial tree, which has the
//! same hash. A part that the proof lacks is an error, never "absent". A directory that is hashed
//! flat always lists all its steps, since its hash needs them.
//!
//! A [`Proof`] may come from an adversary, and its content is private. [`Proof::verify`] compares
//! the proof with the root (hash and kind) that the caller trusts, and returns a [`Verified`], the
//! only access to the content.

use std::fmt;

use crate::base::corrupt::Corrupt;
use crate::base::error::Error;
use crate::base::hash::Hash;
use crate::base::path::PathText;
use crate::tree::tree::{Kind, Tree};

/// Version of proofs of trees with 32 buckets to an inode.
pub(crate) const VERSION: u16 = 0;

/// Upper bound of the directories and inodes on one path of a proof, both in making and in reading.
///
/// The bound keeps recursion within the 2 MiB of stack of a thread, also without optimisation.
/// Paths of Tezos have about a dozen.
pub const NESTING_MAX: usize = 256;

/// Proof that a computation turns one tree into another. It shows nothing until it is
/// [verified](Self::verify).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Tree before the computation, as the proof states.
    pub(crate) before: KindedHash,
    /// Tree after the computation, as the proof states.
    pub(crate) after: KindedHash,
    /// Part of the tree that the computation read.
    pub(crate) state: ProofTree,
}

impl Proof {
    /// Creates a proof of parts that the caller made, and must vouch for.
    pub fn new(before: KindedHash, after: KindedHash, state: ProofTree) -> Self {
        Self { before, after, state }
    }
}

/// Proof whose state is a part of the tree that the caller trusts.
///
/// Invariant: `tree` was built from the state of `proof`, and has the root that [`Proof::verify`]
/// was called with.
#[derive(Debug)]
pub struct Verified<'a> {
    pub(crate) proof: &'a Proof,
    pub(crate) tree: Tree,
}

/// Hash and kind of a tree: an empty directory and an empty value have one hash in Tezos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KindedHash {
    /// Kind of the tree.
    pub kind: Kind,
    /// The hash.
    pub hash: Hash,
}

impl KindedHash {
    /// Hash of a directory, such as the root of every commit.
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

/// Returns the kind and the hash of a tree.
pub(crate) fn kinded(tree: &Tree) -> KindedHash {
    KindedHash { kind: tree.kind(), hash: tree.hash() }
}

/// Step of a directory and its child.
pub type ProofEntry = (Box<[u8]>, ProofTree);

/// Part of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProofTree {
    /// A value.
    Value(Vec<u8>),
    /// Blinded value: only its hash is known.
    BlindedValue(Hash),
    /// Directory that lists its steps, ascending.
    Node(Vec<ProofEntry>),
    /// Blinded directory: only its hash is known.
    BlindedNode(Hash),
    /// Directory that divides its steps among buckets.
    Inode(InodeProof),
    /// Directory whose first inodes have one bucket each.
    Extender(ExtenderProof),
}

/// An inode with buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeProof {
    /// Steps of the directory from here down.
    pub length: u64,
    /// Buckets that are not empty, ascending by their indices, at least two.
    pub proofs: Vec<(u8, InodeTree)>,
}

/// Extender: a chain of inodes with one bucket each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtenderProof {
    /// Steps of the directory from here down.
    pub length: u64,
    /// Index of the bucket of each inode, at least one.
    pub segment: Vec<u8>,
    /// Content of the last bucket.
    pub proof: Box<InodeTree>,
}

/// Content of a bucket of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InodeTree {
    /// Blinded inode: only its hash is known.
    BlindedInode(Hash),
    /// Inode that lists its steps, ascending, at least one.
    Values(Vec<ProofEntry>),
    /// An inode with buckets.
    Tree(InodeProof),
    /// A chain of inodes.
    Extender(ExtenderProof),
}

/// Reason why a proof cannot be made, or shows nothing.
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
        /// Tree that the proof states.
        expected: KindedHash,
        /// Tree of its state.
        found: KindedHash,
    },
    /// The computation gave another tree than the proof states: it is not the proven computation,
    /// or the proof is forged.
    #[error("the computation gives {found}, not {expected} as the proof says")]
    AfterMismatch {
        /// Tree that the proof states.
        expected: KindedHash,
        /// Tree that the computation gave.
        found: KindedHash,
    },
    /// The computation read a part that the proof lacks. The part may or may not exist.
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
        /// Broken rule.
        rule: &'static str,
    },
    /// The proof has another version of the format.
    #[error("the proof has version {found}; this program knows {VERSION}")]
    UnsupportedVersion {
        /// Version of the proof.
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
        /// Offset, counted from 0.
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

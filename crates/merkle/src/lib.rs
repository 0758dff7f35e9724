//! The Merkle context store: versioned trees with the hashes of Tezos, direct pointers and fast commits.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod corrupt;

mod quick;

mod hash;

mod path;

mod address;

mod error;

mod rules;

mod record;

mod node;

mod edit;

mod digest;

mod encode;

mod pins;

mod tree;

mod walk;

mod fold;

mod diff;

mod merge;

mod concrete;

mod proof;

mod proof_codec;

mod prove;

mod verify;

pub use address::Address;
pub use concrete::Concrete;
pub use corrupt::Corrupt;
pub use diff::Change;
pub use error::{Error, Result};
pub use fold::{Children, Depth, Fold, Order, TreeStats};
pub use hash::{Hash, HashTextError};
pub use merge::{Merged, Versions};
pub use path::PathText;
pub use proof::{
    ExtenderProof, InodeProof, InodeTree, KindedHash, NESTING_MAX, Proof, ProofEntry, ProofError,
    ProofTree,
};
pub use prove::{Target, merkle_tree, produce_tree_proof};
pub use rules::{CommitInfo, Rules, Scheme, ocaml_hash};
pub use tree::{Kind, Tree};
pub use verify::verify_tree_proof;

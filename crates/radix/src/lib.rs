//! The Merkle-radix state: versions of a map from addresses to values, each with the root that
//! Transact (Hyperledger Sawtooth, Splinter) gives it, in any [`Database`](terrane_kv::Database).
//!
//! A [`Store`] holds named [`Tree`]s. A commit applies a batch of [`Change`]s to a retained root
//! and retains the outcome as another version; nothing is changed in place, so that forks are
//! simply two commits on one root. Pruning a version removes exactly the nodes that no other
//! version of any tree reaches.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod base;
mod node;
mod records;
mod commit;
mod store;
mod check;
mod proof;
mod transfer;
mod transact;
mod constants;

pub use base::address::{ADDRESS_BYTES_MAX, Address, AddressError, Prefix};
pub use base::change::{Change, VALUE_BYTES_MAX, normalise};
pub use base::error::{Error, Result};
pub use base::node_hash::{NODE_HASH_BYTES, NodeHash, Root, RootTextError};
pub use check::repair::{Dropped, Repaired};
pub use check::verify::{Problem, Report};
pub use constants::constants;
pub use proof::proof::{Form, Proof, ProofError, verify_proof};
pub use records::versions::{SCHEME, VERSIONS, VersionId};
pub use store::diff::{Diff, Difference};
pub use store::leaves::{Leaves, Order};
pub use store::options::Options;
pub use store::store::{INDEXES, Store, Tree, VersionInfo};
pub use store::transaction::{
    Committed, METADATA, PruneOptions, Pruned, TREE_NAME_BYTES_MAX, Transaction,
    VERSION_METADATA_BYTES_MAX,
};
pub use terrane_io::Loss;
pub use transact::text::{
    Committer, DryRunCommitter, LeafReader, Pruner, Reader, State, StateChange, TextTree,
};
pub use transact::transact::StateNodes;
pub use transfer::tree::ExportedTree;
pub use transfer::version::{ExchangeError, Exported};

//! The Merkle-radix state: versions of a map from addresses to values, each with the root that Transact (Hyperledger Sawtooth,
//! Splinter) gives it, in any [`Database`](terrane_kv::Database).
//!
//! A [`Store`] holds named [`Tree`]s. A commit applies a batch of [`Change`]s to a retained root and retains the outcome as
//! another version; nothing is changed in place, so that forks are simply two commits on one root. Pruning a version removes
//! exactly the nodes that no other version of any tree reaches.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod node_hash;

mod address;

mod error;

mod change;

mod cbor;

mod node;

mod branch;

mod decode;

mod row;

mod nodes;

mod hashing;

mod proof;

mod build;

mod rows;

mod bulk;

mod spans;

mod versions;

mod options;

mod core;

mod leaves;

mod transaction;

mod store;

mod verify;

mod repair;

mod prove;

mod diff;

mod exchange;

mod exchange_all;

mod transact;

mod text;

pub use address::{ADDRESS_BYTES_MAX, Address, AddressError, Prefix};
pub use change::{Change, VALUE_BYTES_MAX, normalise};
pub use diff::{Diff, Difference};
pub use error::{Error, Result};
pub use exchange::{ExchangeError, Exported};
pub use exchange_all::ExportedTree;
pub use leaves::{Leaves, Order};
pub use node_hash::{NODE_HASH_BYTES, NodeHash, Root, RootTextError};
pub use options::Options;
pub use proof::{Form, Proof, ProofError, verify_proof};
pub use repair::{Dropped, Loss, Repaired};
pub use store::{INDEXES, Store, Tree, VersionInfo};
pub use text::{
    Committer, DryRunCommitter, LeafReader, Pruner, Reader, State, StateChange, TextTree,
};
pub use transact::StateNodes;
pub use transaction::{
    Committed, METADATA, PruneOptions, Pruned, TREE_NAME_BYTES_MAX, Transaction,
    VERSION_METADATA_BYTES_MAX,
};
pub use verify::{Problem, Report};
pub use versions::{SCHEME, VERSIONS, VersionId};

/// The constants of the formats of proofs and exports, by name.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    use exchange::{
        END_TAG, EXPORT_MAGIC, EXPORT_VERSION, MARK_BYTES, MARK_TAG, REMOVED, STATE_KIND,
        TREE_KIND, VERSION_TAG,
    };
    use proof::{BITMAP_FROM, CHAIN_TAG, COMPACT_FORM, FULL_FORM, NODE_TAG, PROOF_VERSION};
    vec![
        ("RADIX_PROOF_VERSION", PROOF_VERSION.to_string()),
        ("RADIX_PROOF_FULL_FORM", FULL_FORM.to_string()),
        ("RADIX_PROOF_COMPACT_FORM", COMPACT_FORM.to_string()),
        ("RADIX_PROOF_CHAIN_TAG", CHAIN_TAG.to_string()),
        ("RADIX_PROOF_NODE_TAG", NODE_TAG.to_string()),
        ("RADIX_PROOF_BITMAP_FROM", BITMAP_FROM.to_string()),
        ("RADIX_EXPORT_MAGIC", String::from_utf8_lossy(&EXPORT_MAGIC).into_owned()),
        ("RADIX_EXPORT_VERSION", EXPORT_VERSION.to_string()),
        ("RADIX_EXPORT_STATE_KIND", STATE_KIND.to_string()),
        ("RADIX_EXPORT_TREE_KIND", TREE_KIND.to_string()),
        ("RADIX_EXPORT_VERSION_TAG", VERSION_TAG.to_string()),
        ("RADIX_EXPORT_REMOVED", REMOVED.to_string()),
        ("RADIX_EXPORT_END_TAG", END_TAG.to_string()),
        ("RADIX_EXPORT_MARK_TAG", MARK_TAG.to_string()),
        ("RADIX_EXPORT_MARK_BYTES", MARK_BYTES.to_string()),
    ]
}

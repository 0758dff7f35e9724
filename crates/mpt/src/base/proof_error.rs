//! Errors of proofs.

use alloy_primitives::B256;

/// A proof that proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProofError {
    /// A node does not have the hash that the root, or the node above it, names.
    #[error("node {index} of the proof does not have the hash that was expected")]
    WrongHash {
        /// Index of the node.
        index: usize,
    },
    /// The bytes of a node are not those of one.
    #[error("node {index} of the proof is no node")]
    NotANode {
        /// Index of the node, or of the node that it is embedded in.
        index: usize,
    },
    /// The proof ends before its key has a value or is absent.
    #[error("the proof ends after {nodes} nodes, and the path goes on")]
    TooShort {
        /// Number of nodes.
        nodes: usize,
    },
    /// The proof has nodes behind the end of its path.
    #[error("the proof has {surplus} nodes too many")]
    TooLong {
        /// Number of nodes that are not needed.
        surplus: usize,
    },
    /// The proof is sound and proves something other than it states.
    #[error("the proof states another {field} than it proves")]
    Disagrees {
        /// The field of the account, or of a slot.
        field: &'static str,
    },
    /// A node that is needed is not among the nodes.
    #[error("node {hash} is missing")]
    MissingNode {
        /// Its hash.
        hash: B256,
    },
    /// The bytes of a node, which is named by its hash, are not those of one.
    #[error("node {hash} is no node of the trie")]
    MalformedNode {
        /// Its hash.
        hash: B256,
    },
    /// The entries of a range are not in order, not within its bounds, or not entries.
    #[error("entry {index} of the range {what}")]
    InvalidRange {
        /// Index of the entry.
        index: usize,
        /// The rule that is broken.
        what: &'static str,
    },
    /// A text that is no proof.
    #[error("no proof: {what}")]
    InvalidJson {
        /// The field that is missing or wrong.
        what: String,
    },
}

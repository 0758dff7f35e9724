//! Schemes: what a trie hashes. Begin with [`scheme`], the trait; [`keccak_mpt`] is Ethereum's
//! Merkle-Patricia trie, [`binary_tree`] the binary tree of EIP-7864, and [`binary_key`] its keys.
//!
//! The folder imports `base` only. A scheme says how many bits a digit has and how a leaf, an
//! extension and a branch are encoded; which of them there are follows from the keys alone, and
//! belongs to `trie`.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod scheme;
pub(crate) mod keccak_mpt;
pub(crate) mod binary_tree;
pub(crate) mod binary_key;

//! Transfer: a version, or all versions of a tree, as a stream of bytes, and back.
//!
//! Begin with [`version`]: one state as its values, ascending, with a checksum and a mark in each
//! 64 KiB, so that damage is located. [`tree`] adds the versions of a tree, each as its difference
//! from its parent. The folder imports [`store`](crate::store) and above;
//! `docs/format/radix-export.md` has the bytes.
//!
//! Invariant: an import is one transaction, and retains nothing unless the values hash to the root
//! that the stream names.
//!
//! A stream has values and no nodes: the importer hashes all nodes anyway.
//! [`transact`](crate::transact) writes and reads nodes, for Transact.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod version;
pub(crate) mod tree;

//! Vocabulary of the crate: addresses, changes, hashes, errors, and the bytes that are hashed.
//!
//! Every other folder imports from here; this folder imports `terrane_io`, `terrane_kv` and
//! `terrane_hash` only. Begin with [`address`] (1 to 35 bytes, the *tokens* of a path) and
//! [`change`] (a batch and its rules). [`node_hash`] has the hash of a node and the root of a
//! state, [`cbor`] the bytes that a hash is taken of.
//!
//! Invariants:
//!
//! * An [`Address`](address::Address) is valid by construction; no other module checks its length.
//! * A batch names no address twice, so that its outcome does not depend on the order of changes.
//! * [`cbor`] writes byte for byte what Transact writes. All roots depend on it.
//!
//! Rejected: a general CBOR library. One length head of the original is not the shortest form, and
//! an encoder that cannot make this head gives other roots.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod node_hash;
pub(crate) mod address;
pub(crate) mod error;
pub(crate) mod change;
pub(crate) mod cbor;

//! Vocabulary of the crate: paths, accounts, errors; threads.
//!
//! Every other folder imports from here; this folder imports `terrane_io` and the libraries of
//! types only. Begin with [`path`] (digits from the root, one a byte).
//!
//! Invariants:
//!
//! * A digit of a [`Path`](path::Path) is below the arity of its scheme, so that the order of paths
//!   is the order of keys and a parent sorts before its children.
//! * An account without storage or code has the hashes of an empty trie and of no bytes; its flat
//!   form leaves both out.
//!
//! Rejected: packed nibbles with a length for stored paths. They sort parents before children only
//! with a tag, and the store's pages leave out shared prefixes anyway.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod path;
pub(crate) mod error;
pub(crate) mod proof_error;
pub(crate) mod account;
pub(crate) mod keys;
pub(crate) mod workers;

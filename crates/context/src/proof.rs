//! Proofs: partial trees that a verifier without a store runs a computation on.
//!
//! May import `base`, `object` and `tree`; knows neither pack nor store.
//!
//! Begin with [`proof`](mod@proof) (types and errors). [`prove`] runs a computation on a tree that
//! records what it loads; [`verify`] checks a proof against a trusted root; [`codec`] is the
//! encoding, version 1 of irmin's format for Tezos.
//!
//! Invariants:
//! - A proof comes from an adversary. Only [`Verified`](proof::Verified) gives access to its
//!   content.
//! - A part that is missing in a proof is an error, never "absent".
//! - A proof has one encoding. Decoding refuses every other, and allocates for bytes that are there
//!   only.
//! - Recursion is bounded by [`NESTING_MAX`](proof::NESTING_MAX), both in making and in reading.
//!
//! Locks: [`prove`] holds its list of recorded nodes while the tree loads from the pack.
//!
//! Rejected: trusting the hash alone. An empty directory and an empty value have the same hash in
//! Tezos, so a root is a hash and a kind.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod proof;
pub(crate) mod codec;
pub(crate) mod prove;
pub(crate) mod verify;

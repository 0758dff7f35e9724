//! Proofs of accounts and slots in the shape of EIP-1186, and their verifier.
//!
//! Begin with [`walk`], which follows the nodes of a proof from a trusted root, then
//! [`account_proof`], the public form. [`json`] reads and writes the shape of `eth_getProof`,
//! [`prove`] makes proofs of a state. [`range`] verifies that entries are all of a range,
//! [`range_proof`] has the public forms.
//!
//! Invariants:
//!
//! * A verifier trusts nothing but the root. Each node is hashed before it is read.
//! * A proof has the nodes on the path of its key and no others, so a key has one proof.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod walk;
pub(crate) mod account_proof;
pub(crate) mod json;
pub(crate) mod prove;
pub(crate) mod range;
pub(crate) mod range_proof;

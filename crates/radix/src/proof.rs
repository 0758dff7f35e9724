//! Proofs: nodes that show what addresses hold in a state, or that they hold nothing.
//!
//! Begin with [`proof`]: the two forms of a proof and their verification, which needs no store.
//! [`prove`] makes a proof from a store. The folder imports [`store`](crate::store) and above;
//! `docs/format/radix-proof.md` has the bytes.
//!
//! Invariants:
//!
//! * No bytes of a stranger make the parser panic, recurse deeper than 36, or take more memory than
//!   a multiple of their length and 6 KB for each address asked for.
//! * The verifier hashes every node itself and trusts no hash but the root that its caller gives.
//! * The parser looks at the addresses first, and refuses a proof of other addresses than those
//!   asked for before it reads a node.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod proof;
pub(crate) mod prove;

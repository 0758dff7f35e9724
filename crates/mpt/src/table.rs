//! Tables of any keys and values that are committed to a root.
//!
//! Begin with [`committed`], a table of a caller's store beside which the nodes of its trie stand;
//! [`load`] fills one. Both import the trie core and the walk of proofs, and nothing of the
//! Ethereum state but its cache of nodes and its lookups by threads.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod committed;
pub(crate) mod load;

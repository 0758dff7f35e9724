//! Transact: the traits and the nodes of the original implementation.
//!
//! Begin with [`text`]: the traits of Transact (`Committer`, `Reader`, `Pruner`, …) for a
//! [`Tree`](crate::Tree), by bytes and by hex text. [`transact`] exports the nodes of a state as
//! Transact keeps them, and imports a state from them. The folder imports
//! [`transfer`](crate::transfer) and above.
//!
//! Invariant: roots, node bytes and the order of exported nodes are those of Transact; the vectors
//! in `crates/backends/tests` hold this.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod transact;
pub(crate) mod text;

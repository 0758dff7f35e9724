//! Nodes of the tree in memory and as bytes: edges, branches, and the plain nodes of the hash.
//!
//! Two trees have one shape. The hash is taken over *plain nodes*, one for each token of an address
//! ([`decode::PlainNode`]). The store keeps *nodes*: plain nodes with a value or at least two
//! children. A run of plain nodes with one child and no value is an *extension*, which is not
//! stored but stands in the [`node::Edge`] that leads to the node at its end. The format documents
//! call a stored node a *stop* and an extension a *chain*.
//!
//! Begin with [`node`]: edges and their bytes. [`branch`] has a node's children, whole or as a
//! difference from another branch; [`decode`] reads the bytes that are hashed. The folder imports
//! [`base`](crate::base) only.
//!
//! Invariant: a branch in memory is the bytes that are stored, checked when they are read, so that
//! its accessors cannot fail.
//!
//! Rejected: a record for each plain node. 96 of 100 have one child and no value, and an address of
//! 32 bytes would be 33 records instead of 3. Rejected: branches split into records of 16 children.
//! Hashing a wide branch that is not in memory would take 17 reads instead of 2.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod node;
pub(crate) mod branch;
pub(crate) mod decode;

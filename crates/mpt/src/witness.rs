//! Witnesses: the parts of a state that a block needs, and a state that has no more than those.
//!
//! Begin with [`witness`](mod@witness) (the lists and their JSON), then [`stateless`] (reads and
//! the new root from a witness). [`partial`] is the trie below it, of which some nodes are known
//! by their hashes only. [`record`] makes the witness of a block while the state still is that
//! before it.
//!
//! Invariants:
//!
//! * Every node that is read was found by the hash that the root, or the node above it, states. So
//!   a wrong or missing node ends in an error and never in a wrong value or root.
//! * A root is computed without inserting what was not read: a node that a deletion needs and that
//!   the witness lacks is an error, too.
//!
//! Rejected: running the update of the store over a witness. It needs to know which children are
//! leaves, which the hash of an unknown child does not tell.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod partial;
pub(crate) mod witness;
pub(crate) mod stateless;
pub(crate) mod record;

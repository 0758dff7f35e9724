//! Commit: from a batch of changes to new nodes, their hashes, and the records to write.
//!
//! 1. [`build`] goes down once for all changes, sorted, and lists the new nodes, children first, in
//!    the form that [`new_tree`] has.
//! 2. [`hashing`] hashes the list in waves from the leaves upwards, each wave side by side in the
//!    lanes of the processor and on several threads if there is enough to hash.
//! 3. [`record_changes`] brings the records up to date in the order of their keys, and says which
//!    nodes appear and which are gone.
//!
//! [`bulk`] does the same for a whole state whose values come ascending, in bounded memory. The
//! folder imports [`records`](crate::records) and above, and writes nothing but through the
//! [`Writer`](terrane_kv::Writer) it is given. Begin with [`build`].
//!
//! Invariants: no node is hashed twice; the result does not depend on the number of threads; what a
//! commit writes depends on what it changes and not on the size of the state.
//!
//! Rejected: nodes under numbers in the order of commits. Records would go to the end of a B+tree,
//! but equal nodes could not be found without an index of hashes beside it.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod new_tree;
pub(crate) mod hashing;
pub(crate) mod build;
pub(crate) mod record_changes;
pub(crate) mod bulk;

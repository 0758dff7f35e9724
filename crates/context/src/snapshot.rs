//! Snapshots: a commit as a stream of its objects, exported from one store and imported into
//! another.
//!
//! May import all folders above. Begin with [`snapshot`](mod@snapshot) (the stream), then
//! [`export`] and [`import`].
//!
//! Invariants:
//! - Children come before parents, each distinct object once, the commit last.
//! - A stream is a function of its commit, and of the base of an increment. It has no addresses, so
//!   the same commit gives the same bytes from any store.
//! - An import checks the hash of each element and the shape that its steps have under the rules.
//!   Hashes alone would admit steps in buckets where no lookup finds them.
//! - Imported objects are garbage until the commit is written. No collection runs during an import.
//!
//! Rejected:
//! - Chunks as they are on disk: they contain garbage and deltas on garbage, and fix one layout for
//!   ever.
//! - Hashes instead of element numbers: 32 more bytes for each child, and an index of all objects
//!   in the importing store.
//! - Increments against everything the base reaches: memory for a set as large as its tree, to
//!   spare objects that moved.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod snapshot;
pub(crate) mod export;
pub(crate) mod import;

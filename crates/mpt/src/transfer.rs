//! Whole states on their way: bulk import, and the stream of an export.
//!
//! Begin with [`import`], which takes sorted accounts and slots and builds all tries bottom-up.
//! [`stream`] is the file of an export, which the import reads.
//!
//! Invariants:
//!
//! * An import writes prefixes of its input only, each with the nodes that the prefix finishes. So
//!   what is stored says where to go on, and the tries can be continued from it.
//! * The state has no tip, and does not open, until the root of everything is right.
//!
//! Rejected: storing the open branches of the builders. They follow from the entries, which a
//! resumed import reads once.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod import;
pub(crate) mod stream;

//! Records of the database: nodes with their reference counts, versions, trees.
//!
//! The main table holds a record for each node ([`record`]), the index `versions` the bookkeeping
//! ([`versions`], and [`book`] for all of it at once). [`node_store`] reads nodes through a cache;
//! [`ref_counts`] walks the edges in which two trees differ. The folder imports
//! [`node`](crate::node) and above; `docs/format/radix-store.md` has the bytes.
//!
//! Begin with [`record`] and its counting of *references*. The versions of a tree form a forest:
//! each is joined to the version it was made of. An edge has a reference for each place in a tree
//! and run of joined versions that have the edge there; an edge without references is gone.
//!
//! Invariants:
//!
//! * A record is stored under the whole hash, 32 bytes, and checked together with its key.
//! * Nodes never change. A node in memory stays right whatever is committed or pruned.
//! * A record that is missing or broken is [`Corruption`](crate::Error::Corruption), never an
//!   absent value.
//!
//! Rejected: counting references to nodes (a new root would touch all 256 children of the old one);
//! a list of additions and removals for each version, as Transact has it (nodes that recur were
//! removed too early); mark and sweep (work in proportion to what is stored); keys of a part of the
//! hash (somebody could prepare two nodes with one key).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod record;
pub(crate) mod node_store;
pub(crate) mod ref_counts;
pub(crate) mod versions;
pub(crate) mod book;

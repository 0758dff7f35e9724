//! The trie core: records of nodes, plans of nodes, the bottom-up builder, and the update. It does
//! no I/O.
//!
//! Begin with [`record`] (which nodes are stored; [`difference`](mod@difference): how a record
//! changed), then [`nodes`] (plans of nodes, hashed level by level), then [`builder`] (sorted
//! leaves to nodes), then [`update`] (a batch of changes to stored nodes). [`memory`] is a trie in
//! memory, [`binary`] a binary tree by its keys.
//!
//! Invariants:
//!
//! * The entries alone determine the records. A record is stored for each branch whose encoding has
//!   a hash, and for each extension above such a branch.
//! * A child of a branch without a record below it stands for at most [`update::LEAVES_MAX`]
//!   entries: a leaf, or an embedded branch and what is in it.
//!
//! Rejected: hashes of branches only, as other flat states have them. A branch could then be hashed
//! again only after its leaves had been read, which costs one more read for most changed keys.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod record;
pub(crate) mod difference;
pub(crate) mod nodes;
pub(crate) mod builder;
pub(crate) mod update;
pub(crate) mod memory;
pub(crate) mod binary;

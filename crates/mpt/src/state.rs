//! The state of a chain in one LSM store: flat entries, nodes, blocks and changes.
//!
//! Begin with [`tables`] (names and keys), then [`changes`] (what a block does), then
//! [`commit`](mod@commit) (how a block becomes one atomic batch). [`state`] is the public handle,
//! [`block`] the batch that a caller fills, [`at`] reads of older heights, [`reader`] the state for
//! other processes, [`diff`](mod@diff) what differs between heights, [`check`] derives nodes from
//! entries again.
//!
//! Invariants:
//!
//! * A commit writes entries, nodes, values before, block and tip in one batch of the store, so a
//!   crash never parts the nodes from the entries.
//! * The root is computed, and compared with the expected one, before anything is written.
//! * An account's entry holds its storage root; the root of the account trie is that of the tip.
//!
//! Rejected: values in memory beside the store. The newest ones stand in memtables, which the
//! store's budget counts, and each is read once a block. Nodes of upper levels are read in every
//! block, so they have a cache ([`node_cache`]).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod tables;
pub(crate) mod changes;
pub(crate) mod accesses;
pub(crate) mod node_cache;
pub(crate) mod source;
pub(crate) mod known;
pub(crate) mod commit;
pub(crate) mod state;
pub(crate) mod block;
pub(crate) mod at;
pub(crate) mod diff;
pub(crate) mod reader;
pub(crate) mod check;
pub(crate) mod prune;

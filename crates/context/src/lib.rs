//! Merkle context store: versioned trees with a root hash for each commit, on an append-only pack
//! of files. The hashes are those of Tezos, or BLAKE3.
//!
//! Begin with [`Store`] (the writer), [`Context`] (a working tree with the parents of its commit)
//! and [`Tree`]. A [`StoreReader`] sees a *view*: the commits at its last sync. A [`Snapshot`] is
//! an exported commit.
//!
//! Folders, bottom-up; the header of each says what it is, where to begin, and what was rejected:
//! - `base` (hashes, addresses, rules), `object` (records), `tree` (nodes in memory);
//! - `pack` (files), `proof` (partial trees), `store` (commits, collection, repair; the lock
//!   order);
//! - `snapshot` (export and import).
//!
//! **Tezos** is in three places: [`Scheme::Tezos`] (the hashes), [`TezosContext`] (paths and
//! branches of a node), and the encoding of [`Proof`].

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod base;
mod object;
mod tree;
mod pack;
mod proof;
mod store;
mod snapshot;
mod constants;

pub use base::address::Address;
pub use base::corrupt::Corrupt;
pub use base::error::{Error, Result};
pub use base::hash::{Hash, HashTextError};
pub use base::hashing::{CommitInfo, Rules, Scheme, ocaml_hash};
pub use base::latency::{Latencies, Latency};
pub use base::path::PathText;
pub use base::stats::{CommitStats, HASH_BLOCK_BYTES, PreimageSizes, Stats};
pub use constants::constants;
pub use pack::commit::Commit;
pub use pack::control::Indexing;
pub use pack::index::{
    INDEX_KEY_BYTES, INDEX_VALUE_BYTES, IndexEngine, IndexKey, IndexResult, IndexValue, ObjectIndex,
};
pub use proof::proof::{
    ExtenderProof, InodeProof, InodeTree, KindedHash, NESTING_MAX, Proof, ProofEntry, ProofError,
    ProofTree, Verified,
};
pub use proof::prove::{Target, merkle_tree, produce_tree_proof};
pub use snapshot::snapshot::Snapshot;
pub use store::background_gc::{CollectionHandle, StartedCollection};
pub use store::branches::{MergeValues, Strategy, Write};
pub use store::check::{CheckOptions, CheckReport, KindCount, Kinds, Problem, check};
pub use store::context::{AutoFlush, Context};
pub use store::gc::{GcPace, GcPhase, GcProgress, GcReport, Retain};
pub use store::history::{History, Reach};
pub use store::options::Options;
pub use store::reader::StoreReader;
pub use store::repair::{Lost, RepairReport, repair};
pub use store::store::{Meta, Recovery, Store, is_store};
pub use store::syncer::Ticket;
pub use store::tezos::{ChainId, TestChain, TezosContext};
pub use store::watch::{HeadChange, WatchId};
pub use terrane_io::Loss;
pub use terrane_io::{Durability, ErrorKind};
pub use tree::concrete::Concrete;
pub use tree::diff::Change;
pub use tree::fold::{Children, Depth, Fold, Order, PARTS_MAX, TreeStats};
pub use tree::into_value::IntoValue;
pub use tree::merge::{Merged, Versions};
pub use tree::prefetch::Prefetch;
pub use tree::tree::{Kind, Tree};

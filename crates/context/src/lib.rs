//! The Merkle context store: versioned trees with the hashes of Tezos, direct pointers and fast commits.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod corrupt;

mod quick;

mod stats;

mod hash;

mod path;

mod address;

mod error;

mod rules;

mod record;

mod node;

mod edit;

mod digest;

mod encode;

mod pins;

mod walk;

mod copy;

mod pending;

mod tree;

mod prefetch;

mod fold;

mod diff;

mod merge;

mod concrete;

mod proof;

mod proof_codec;

mod prove;

mod verify;

mod cached;

mod frame;

mod chunk;

mod batch;

mod control;

mod commit;

mod index;

mod files;

mod marker;

mod volumes;

mod locations;

mod pack;

mod marks;

mod context;

mod options;

mod watch;

mod core;

mod reindex;

mod store;

mod reader;

mod gc;

mod check;

mod repair;

mod history;

mod heads;

mod tezos;

mod snapshot;

mod export;

mod import;

mod constants;

pub use address::Address;
pub use check::{CheckOptions, CheckReport, KindCount, Kinds, Problem, check};
pub use commit::Commit;
pub use concrete::Concrete;
pub use constants::constants;
pub use context::Context;
pub use control::Indexing;
pub use corrupt::Corrupt;
pub use diff::Change;
pub use error::{Error, Result};
pub use fold::{Children, Depth, Fold, Order, PARTS_MAX, TreeStats};
pub use gc::{GcPace, GcPhase, GcProgress, GcReport, Retain};
pub use hash::{Hash, HashTextError};
pub use heads::{MergeValues, Strategy, Write};
pub use history::{History, Reach};
pub use index::{
    INDEX_KEY_BYTES, INDEX_VALUE_BYTES, IndexEngine, IndexKey, IndexResult, IndexValue, ObjectIndex,
};
pub use merge::{Merged, Versions};
pub use options::{Durability, Options};
pub use path::PathText;
pub use prefetch::Prefetch;
pub use proof::{
    ExtenderProof, InodeProof, InodeTree, KindedHash, NESTING_MAX, Proof, ProofEntry, ProofError,
    ProofTree, Verified,
};
pub use prove::{Target, merkle_tree, produce_tree_proof};
pub use reader::StoreReader;
pub use repair::{Loss, Lost, RepairReport, repair};
pub use rules::{CommitInfo, Rules, Scheme, ocaml_hash};
pub use snapshot::Snapshot;
pub use stats::{CommitStats, HASH_BLOCK_BYTES, PreimageSizes, Stats};
pub use store::{Meta, Recovery, Store, is_store};
pub use tezos::{ChainId, TestChain, TezosContext};
pub use tree::{Kind, Tree};
pub use watch::{HeadChange, WatchId};

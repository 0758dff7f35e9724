//! Ethereum state: flat entries are the truth, and the nodes of the Merkle-Patricia trie are a
//! cache of hashes that can be rebuilt from them.
//!
//! The **trie core** does no I/O. An [`Update`] takes sorted changes and says which node records
//! and which flat entries it needs, level by level; its caller reads them in one batch and supplies
//! them. Its [`Outcome`] is the new root and the records to write. A [`TrieBuilder`] makes a trie
//! bottom-up from sorted leaves. A [`MemoryTrie`] is both with maps in memory.
//!
//! The [`Scheme`] (hash, arity, encoding of nodes) is a parameter: [`KeccakMpt`] is Ethereum's,
//! and [`BinaryTree`] that of EIP-7864, over which there are a [`MemoryBinaryTree`] and committed
//! tables.
//!
//! A [`State`] keeps the state of a chain in one store of LSM tables: a [`BlockBatch`] is one
//! atomic commit, reads cost one lookup, and [`State::reorg_to`] goes back.
//! With a history, [`State::at`] reads and proves older heights.
//!
//! A batch makes the [`Witness`] of its block, from which a [`StatelessState`] computes the same
//! root without a store. [`AccountRange`] and [`StorageRange`] are proved parts of a state, an
//! [`Import`] makes a state of them. A [`CommittedTable`] has a root without Ethereum's layout.
//!
//! Folders, bottom-up: `base` (paths, errors, accounts), `scheme` (encodings of nodes), `trie`
//! (records, builder, update), `state` (tables, commits, checks), `proof` (EIP-1186, ranges),
//! `witness` (witnesses, stateless states), `transfer` (import, export), `table` (committed
//! tables).

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod base;
mod scheme;
mod trie;
mod state;
mod proof;
mod witness;
mod transfer;
mod table;
mod constants;

pub use alloy_primitives::{Address, B256, Bytes, U256};
pub use base::account::{Account, EMPTY_CODE_HASH};
pub use base::error::{Error, Result};
pub use base::path::{KEY_BYTES_MAX, Path};
pub use base::proof_error::ProofError;
pub use constants::constants;
pub use proof::account_proof::{AccountProof, SlotProof};
pub use proof::range::{NodeSet, TrieRange};
pub use proof::range_proof::{AccountRange, StorageRange};
pub use proof::walk::verify_proof;
pub use scheme::binary_tree::{BinaryTree, STEM_BYTES, StemGroup, verify_binary_proof};
pub use scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
pub use scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Reference, Scheme, TableScheme};
pub use state::accesses::Accesses;
pub use state::at::StateAt;
pub use state::block::BlockBatch;
pub use state::changes::ChangeSet;
pub use state::check::{CheckReport, NodeTable, PROBLEMS_MAX, Problem};
pub use state::diff::{AccountDiff, SlotDiff, StateDiff};
pub use state::prune::Pruned;
pub use state::reader::{StateReader, is_state};
pub use state::state::{Committed, Options, State};
pub use state::tables::Block;
pub use table::committed::{CommittedTable, Staged};
pub use table::load::CommittedLoader;
pub use terrane_io::ErrorKind;
pub use transfer::import::{Import, ImportPosition};
pub use transfer::stream::{TransferError, Transferred};
pub use trie::binary::MemoryBinaryTree;
pub use trie::builder::TrieBuilder;
pub use trie::memory::MemoryTrie;
pub use trie::record::{BranchRecord, LinkRecord, Record};
pub use trie::update::{Answer, Change, LEAVES_MAX, NodeChange, Outcome, Update, Want};
pub use witness::partial::{PartialTrie, PartialTrieError};
pub use witness::stateless::StatelessState;
pub use witness::witness::{Witness, WitnessError};

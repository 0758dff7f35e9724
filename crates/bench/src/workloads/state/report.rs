//! Report of blocks on an Ethereum state. What stands in `per_block` and `keccak_floor` is a mean
//! over blocks.

use serde::Serialize;
use terrane_replay::latency::{LatencyReport, SpreadReport};

use crate::instruments::bare::BareReport;

/// A run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Load.
    pub load: &'static str,
    /// Distribution of accounts and slots.
    pub distribution: String,
    /// All of the workload follows from it.
    pub seed: u64,
    /// Accounts at first.
    pub accounts: u64,
    /// Contracts among them.
    pub contracts: u64,
    /// Slots at first.
    pub slots: u64,
    /// Whether blocks kept what reads at older heights need.
    pub history: bool,
    /// Whether lookups read past the page cache.
    pub direct: bool,
    /// Threads of the state; with more than one, compactions have another one.
    pub threads: usize,
    /// Memory budget of the store, in bytes; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_budget_bytes: Option<u64>,
    /// Memory for nodes beside it, in bytes.
    pub node_cache_bytes: u64,
    /// Blocks that were not measured.
    pub warm_up_blocks: u64,
    /// Blocks that were measured.
    pub blocks: u64,
    /// The state before the first block.
    pub set_up: SetUpReport,
    /// Reads, commit and sync of a block.
    pub block_latency_ms: SpreadReport,
    /// The two batches of reads before the commit, which find all that the block changes.
    pub read_latency_ms: SpreadReport,
    /// From the first change to the end of the commit, which is not durable yet.
    pub commit_latency_ms: SpreadReport,
    /// Waiting until the commit is durable.
    pub sync_latency_ms: SpreadReport,
    /// Commit and sync.
    pub durable_latency_ms: SpreadReport,
    /// Mean figures of a block.
    pub per_block: BlockReport,
    /// Resident memory after the blocks, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// The most resident memory during the blocks, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of all files after the blocks.
    pub store_bytes: u64,
    /// The host by itself, behind the blocks: appends of as many bytes as a block writes.
    pub bare: BareReport,
    /// Mean sync over the mean append with fdatasync of `bare`.
    pub sync_over_bare: f64,
    /// Bytes that blocks wrote for reads at older heights; absent without a history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_bytes: Option<HistoryReport>,
    /// Proofs at the tip, of an account and mostly a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proofs: Option<ProofReport>,
    /// Proofs at heights that are drawn evenly from all; absent without a history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_proofs: Option<ProofReport>,
    /// Going back over the last blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorg: Option<ReorgReport>,
    /// Time of hashing alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keccak_floor: Option<FloorReport>,
    /// Mean commit over the floor on all threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_floor: Option<f64>,
    /// Nodes derived from the entries again at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerifyReport>,
    /// The root at the end: the same for the same options.
    pub state_root: String,
    /// Whether it was to go on.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// The state before the first block.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SetUpReport {
    /// Whether it was there from an earlier run.
    pub reused: bool,
    /// Time in the import, in seconds; 0 of a reused state. Drawing and sorting are left out.
    pub import_s: f64,
    /// Accounts imported in a second of it, each with its slots.
    pub accounts_per_s: f64,
    /// Accounts and slots imported in a second of it.
    pub entries_per_s: f64,
    /// Bytes of all files then.
    pub store_bytes: u64,
}

/// Mean figures of a block.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BlockReport {
    /// Accounts that changed.
    pub accounts: f64,
    /// Slots that changed, without those that went with a contract.
    pub slots: f64,
    /// Slots that went with a contract.
    pub wiped_slots: f64,
    /// Keys looked up in all tables, nodes included.
    pub lookups: f64,
    /// Pages that lookups read, from the page cache or the device.
    pub page_reads: f64,
    /// Pages that lookups found in the cache of the store.
    pub cache_hits: f64,
    /// Updates of all tables.
    pub updates: f64,
    /// Bytes of their keys and values.
    pub update_bytes: f64,
    /// Bytes that the process made block devices read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<f64>,
    /// Bytes that the process made block devices write, compaction included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<f64>,
    /// Processor time of all threads, drawing and comparing included, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<f64>,
}

/// Bytes of keys and values that blocks wrote into the histories.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct HistoryReport {
    /// Nodes that changed.
    pub nodes: u64,
    /// Bytes of the history of nodes for each.
    pub bytes_per_node: f64,
    /// Accounts and slots that changed.
    pub values: u64,
    /// Bytes of the history of values, and of the changes by height, over those of the accounts and
    /// slots.
    pub over_values: f64,
}

/// Proofs, each of which was verified.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ProofReport {
    /// The lowest height.
    pub lowest_height: u64,
    /// Time of a proof.
    pub latency_us: LatencyReport,
}

/// Going back.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ReorgReport {
    /// Blocks.
    pub blocks: u64,
    /// Time until going back was durable, in milliseconds.
    pub wall_ms: f64,
    /// Time of the durable commits of the blocks, in milliseconds.
    pub apply_ms: f64,
    /// The first over the second.
    pub over_apply: f64,
}

/// Keccak-256 alone, of what a block has to hash: the changed nodes, and the keys.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FloorReport {
    /// Blocks whose nodes were taken.
    pub blocks: u64,
    /// Nodes of the account trie.
    pub account_nodes: f64,
    /// Nodes of storage tries.
    pub storage_nodes: f64,
    /// Addresses and slots.
    pub keys: f64,
    /// Bytes of all these.
    pub bytes: f64,
    /// Time to hash one after the other, on one thread.
    pub one_by_one_ms: f64,
    /// Time in vectors, on one thread.
    pub one_thread_ms: f64,
    /// Time in vectors, on all threads.
    pub all_threads_ms: f64,
    /// These threads.
    pub threads: usize,
}

/// Nodes derived from the entries again, without a difference.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct VerifyReport {
    /// Accounts.
    pub accounts: u64,
    /// Slots.
    pub slots: u64,
    /// Nodes.
    pub nodes: u64,
    /// Seconds.
    pub wall_s: f64,
}

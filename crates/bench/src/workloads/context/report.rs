//! Report of the workload of versioned trees. Times per block are means over the blocks of a
//! phase.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::instruments::bare::BareReport;
use crate::instruments::meter::store_bytes;
use terrane_replay::latency::SpreadReport;

/// A run.
#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the report")]
pub struct Report {
    /// Kind of a block.
    pub profile: &'static str,
    /// All of the workload follows from it.
    pub seed: u64,
    /// Values of the starting state.
    pub values: u64,
    /// Whether each commit was durable when its call returned, or, pipelined, the call after.
    pub durable: bool,
    /// Whether a block was built while the one before became durable.
    pub pipelined: bool,
    /// Threads that hashed a commit.
    pub hash_threads: usize,
    /// Whether the store was read past the page cache.
    pub direct: bool,
    /// Whether the paths of a block were read ahead, which counts as part of its operations.
    pub prefetch: bool,
    /// Memory for decoded objects, in bytes.
    pub cache_budget_bytes: u64,
    /// Transactions of a block; absent where they are not published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transactions_per_block: Option<u64>,
    /// Blocks before the first phase that were not measured.
    pub warm_up_blocks: u64,
    /// The starting state.
    pub load: LoadReport,
    /// Blocks: without collections, then with them if they were asked for.
    pub phases: Vec<PhaseReport>,
    /// The host by itself, behind the first phase.
    pub bare: BareReport,
    /// The blocks of the first phase once more, without a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_memory: Option<InMemoryReport>,
    /// The files at the end.
    pub files: FilesReport,
    /// Hash of the last commit: the same for the same options.
    pub last_commit: String,
    /// Whether it was to go on.
    #[serde(skip)]
    pub is_interrupted: bool,
}

/// Report of the starting state.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LoadReport {
    /// Whether it was there from an earlier run, and nothing was loaded.
    pub reused: bool,
    /// Time for it, in seconds.
    pub wall_s: f64,
    /// Time of the collection after it, of what flushes or an earlier run have left, in seconds.
    pub collect_s: f64,
    /// Bytes of all files then.
    pub store_bytes: u64,
}

/// Blocks that were built and committed one after the other.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseReport {
    /// Whether a second thread collected old commits.
    pub collecting: bool,
    /// Blocks.
    pub blocks: u64,
    /// Operations, without checkouts and commits; each read was compared with what it must find.
    pub ops: u64,
    /// Time in blocks: that for drawing them is left out.
    pub wall_s: f64,
    /// Blocks a second of that time.
    pub blocks_per_s: f64,
    /// Transactions a second of that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tps: Option<f64>,
    /// Transactions a second of processor time ([`cpu_s`](Self::cpu_s)), drawing included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tps_cpu: Option<f64>,
    /// From the checkout to the end of the commit.
    pub block_latency_ms: SpreadReport,
    /// The operations of a block, its checkout included.
    pub operations_latency_ms: SpreadReport,
    /// The commit of a block.
    pub commit_latency_ms: SpreadReport,
    /// Parts of the time of a block.
    pub split_ms: SplitReport,
    /// Mean figures of a block.
    pub per_block: BlockReport,
    /// Time of hashing alone.
    pub hashing_floor: FloorReport,
    /// Mean time of a block over that of hashing alone, on as many threads as commits were hashed
    /// on.
    pub over_floor: f64,
    /// Processor time of all threads, drawing of blocks included, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_s: Option<f64>,
    /// Resident memory at the end, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// The most resident memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of all files at the end.
    pub store_bytes: u64,
    /// The collections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collections: Option<CollectionsReport>,
}

/// The same blocks without a disk, on one thread.
#[derive(Debug, Clone, Serialize)]
pub struct InMemoryReport {
    /// A context tree, which keeps the version before and ends a block with its hash.
    pub tree: InMemoryPhase,
    /// A sorted map from whole paths to values, which is changed in place and has no hash.
    pub map: InMemoryPhase,
}

/// Blocks that were built in memory one after the other.
#[derive(Debug, Clone, Serialize)]
pub struct InMemoryPhase {
    /// Time for the starting state, in seconds, with its hash.
    pub load_s: f64,
    /// Blocks.
    pub blocks: u64,
    /// Operations, without commits; each read was compared with what it must find.
    pub ops: u64,
    /// Time in blocks: that for drawing them is left out.
    pub wall_s: f64,
    /// Blocks a second of that time.
    pub blocks_per_s: f64,
    /// Operations a second of the time in operations, without commits.
    pub ops_per_s: f64,
    /// From the first operation to the end of the commit.
    pub block_latency_ms: SpreadReport,
    /// The operations of a block.
    pub operations_latency_ms: SpreadReport,
    /// The commit of a block: its hash, and freeing the version before. Absent for the map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_latency_ms: Option<SpreadReport>,
}

/// Parts of the mean time of a block, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SplitReport {
    /// Checkout and operations.
    pub operations: f64,
    /// Hashing what changed, preimages included.
    pub hash: f64,
    /// Encoding what changed.
    pub encode: f64,
    /// Handing it to the disk.
    pub write: f64,
    /// Waiting until it is durable.
    pub sync: f64,
    /// The rest: beginning chunks, waiting for locks, freeing memory.
    pub rest: f64,
}

/// Mean figures of a block.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BlockReport {
    /// Nodes and values that were hashed.
    pub hashed: f64,
    /// Bytes of their preimages.
    pub hashed_bytes: f64,
    /// Values that are stored in nodes, hashed again for the nodes' sake; not in the floor.
    pub hashed_again: f64,
    /// Directories and inodes that were written.
    pub nodes: f64,
    /// Values that were written on their own.
    pub values: f64,
    /// Bytes appended to the pack.
    pub appended_bytes: f64,
    /// Objects that were read from the pack, by collections too.
    pub object_reads: f64,
    /// Batches that some of these were read in ahead.
    pub read_batches: f64,
    /// Bytes of the objects that were read.
    pub object_read_bytes: f64,
    /// Objects that were found in memory.
    pub cache_hits: f64,
    /// Bytes that the process made block devices read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<f64>,
    /// Bytes that the process made block devices write, those of collections included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<f64>,
}

/// Time of hashing the same number of preimages, of the same sizes in blocks of 128 bytes, as a
/// block of the workload has changed, with the code that commits hash with.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FloorReport {
    /// Preimages.
    pub preimages: f64,
    /// Bytes of them, in whole blocks of 128.
    pub bytes: f64,
    /// On one thread, in milliseconds.
    pub one_thread_ms: f64,
    /// On all threads that commits are hashed on, in milliseconds.
    pub all_threads_ms: f64,
    /// Number of these threads.
    pub threads: usize,
}

/// Collections beside the blocks of a phase.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CollectionsReport {
    /// Number of collections that ended.
    pub count: u64,
    /// Time of all, in seconds; the last one may have ended after the last block.
    pub wall_s: f64,
    /// The longest one, in seconds.
    pub longest_s: f64,
    /// Commits that were collected.
    pub commits: u64,
    /// Chunks that were rewritten without their garbage.
    pub compacted: u64,
    /// Chunks that were removed.
    pub removed: u64,
    /// Bytes that were given back to the file system.
    pub freed_bytes: u64,
    /// Bytes in use as the last one found them.
    pub live_bytes: u64,
    /// The most bytes of all files, looked at now and then while they ran.
    pub store_peak_bytes: u64,
}

/// Files by class, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FilesReport {
    /// Chunks of the pack.
    pub chunks: u64,
    /// Bytes of these chunks.
    pub chunk_bytes: u64,
    /// Bytes of the index of commits.
    pub index_bytes: u64,
    /// Bytes of the volumes of the archive.
    pub archive_bytes: u64,
    /// Bytes of the control record and the lock.
    pub other_bytes: u64,
}

impl FilesReport {
    /// Those of the store in `dir`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let mut files = Self::default();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            // A file that a collection takes away meanwhile has no bytes.
            let bytes = entry.metadata().map_or(0, |meta| meta.len());
            if name.to_string_lossy().starts_with("chunk-") {
                files.chunks += 1;
                files.chunk_bytes += bytes;
            } else if name == "index" {
                files.index_bytes += store_bytes(&entry.path())?;
            } else if name == "archive" {
                files.archive_bytes += volumes_bytes(&entry.path())?;
            } else {
                files.other_bytes += bytes;
            }
        }

        Ok(files)
    }
}

/// Bytes of the volumes in a directory, each of which may be a link.
fn volumes_bytes(archive: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for volume in std::fs::read_dir(archive)? {
        let volume = volume?.path();
        if volume.is_dir() {
            bytes += store_bytes(&volume)?;
        }
    }
    Ok(bytes)
}

//! Keccak floor: the cost of hashing exactly the nodes and keys that blocks hash.
//!
//! The nodes are those on the paths of all changed keys after a block, embedded ones left out: an
//! update hashes each of these once. They are taken from proofs of blocks that are not measured.

use std::collections::HashSet;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use terrane::mpt::AccountProof;
use terrane_hash::keccak256;

use super::report::FloorReport;

/// Rounds, of which the shortest counts: only noise of the machine makes a round longer.
const ROUNDS: usize = 5;

/// Preimages of blocks.
#[derive(Debug, Default)]
pub(super) struct Preimages {
    blocks: u64,
    account_nodes: u64,
    storage_nodes: u64,
    keys: u64,
    all: Vec<Vec<u8>>,
}

impl Preimages {
    /// Adds those of a block: its keys, and the proofs of all of them after it.
    pub(super) fn add(&mut self, keys: Vec<Vec<u8>>, proofs: &[AccountProof]) {
        self.blocks += 1;
        self.keys += keys.len() as u64;
        self.all.extend(keys);
        let mut taken: HashSet<&[u8]> = HashSet::new();
        for proof in proofs {
            for node in &proof.nodes {
                if taken.insert(node) {
                    self.account_nodes += 1;
                    self.all.push(node.to_vec());
                }
            }
        }

        for proof in proofs {
            // Equal nodes of several tries are hashed in each.
            let mut taken: HashSet<&[u8]> = HashSet::new();
            for node in proof.slots.iter().flat_map(|slot| &slot.nodes) {
                if taken.insert(node) {
                    self.storage_nodes += 1;
                    self.all.push(node.to_vec());
                }
            }
        }
    }

    /// Measures the floor; `None` without blocks.
    pub(super) fn measure(&self) -> Option<FloorReport> {
        let blocks = (self.blocks > 0).then_some(self.blocks)?;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let each = |count: u64| count as f64 / blocks as f64;
        let each_ms = |took: Duration| took.as_secs_f64() * 1e3 / blocks as f64;
        let bytes: usize = self.all.iter().map(Vec::len).sum();
        let all: Vec<&[u8]> = self.all.iter().map(Vec::as_slice).collect();
        Some(FloorReport {
            blocks,
            account_nodes: each(self.account_nodes),
            storage_nodes: each(self.storage_nodes),
            keys: each(self.keys),
            bytes: bytes as f64 / blocks as f64,
            one_by_one_ms: each_ms(shortest(|| {
                for preimage in &self.all {
                    black_box(keccak256::hash(preimage));
                }
            })),
            one_thread_ms: each_ms(shortest(|| hash_all(&all))),
            all_threads_ms: each_ms(shortest(|| on_threads(&all, threads))),
            threads,
        })
    }
}

fn on_threads(preimages: &[&[u8]], threads: usize) {
    let share = preimages.len().div_ceil(threads).max(1);
    let mut shares = preimages.chunks(share);
    let own = shares.next().unwrap_or_default();
    thread::scope(|scope| {
        for share in shares {
            scope.spawn(|| hash_all(share));
        }
        hash_all(own);
    });
}

fn hash_all(preimages: &[&[u8]]) {
    let mut hashes = vec![[0; keccak256::HASH_BYTES]; preimages.len()];
    keccak256::hash_many(preimages, &mut hashes);
    black_box(hashes);
}

fn shortest(work: impl Fn()) -> Duration {
    let round = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

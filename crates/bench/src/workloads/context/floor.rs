//! Hashing floor: the cost of BLAKE2b alone for the number and the sizes of the preimages that a
//! block changes.
//!
//! The floor runs the hashing code of commits: preimages are put into batches of 64
//! KiB, each of which goes through the processor's lanes. Sizes are those of a phase, in whole
//! blocks of 128 bytes, mixed by a seed, as a tree has them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use terrane::context::{HASH_BLOCK_BYTES, PreimageSizes, Rules};

use super::report::FloorReport;
use super::{Random, splitmix};

/// Blocks of the workload that are hashed, each several times over.
const BLOCKS_MAX: u64 = 32;
/// Rounds, of which the shortest counts: only noise of the machine makes a round longer.
const ROUNDS: usize = 5;
/// Bytes of a batch, as commits have them.
const BATCH_BYTES: usize = 64 << 10;
/// The preimage of a value begins with its length.
const LENGTH_BYTES: usize = 8;

/// Measures it, for preimages of `blocks` blocks of the workload; on one thread, and on `threads`.
pub(super) fn measure(
    rules: &Rules,
    sizes: &PreimageSizes,
    blocks: u64,
    threads: usize,
) -> FloorReport {
    let of = blocks.clamp(1, BLOCKS_MAX);
    let mut preimages: Vec<usize> = Vec::new();
    for (length, count) in sizes.iter() {
        let share = u128::from(count) * u128::from(of) / u128::from(blocks.max(1));
        preimages.extend((0..share).map(|_| length));
    }

    let mut random = Random(splitmix(blocks));
    for at in (1..preimages.len()).rev() {
        preimages.swap(at, random.below(at as u64 + 1) as usize);
    }
    let each_ms = |took: Duration| took.as_secs_f64() * 1e3 / of as f64;
    let bytes: usize = preimages.iter().map(|length| length * HASH_BLOCK_BYTES).sum();

    FloorReport {
        preimages: preimages.len() as f64 / of as f64,
        bytes: bytes as f64 / of as f64,
        one_thread_ms: each_ms(shortest(rules, &preimages, 1)),
        all_threads_ms: each_ms(shortest(rules, &preimages, threads)),
        threads,
    }
}

fn shortest(rules: &Rules, preimages: &[usize], threads: usize) -> Duration {
    let share = preimages.len().div_ceil(threads).max(1);
    let round = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for share in preimages.chunks(share).skip(1) {
                scope.spawn(|| hash(rules, share));
            }
            hash(rules, preimages.chunks(share).next().unwrap_or_default());
        });
        start.elapsed()
    };

    (0..ROUNDS).map(|_| round()).min().unwrap_or_default()
}

/// Hashes preimages of the given numbers of blocks.
fn hash(rules: &Rules, preimages: &[usize]) {
    let longest = preimages.iter().max().copied().unwrap_or(0) * HASH_BLOCK_BYTES;
    let content = vec![0xA5; longest];

    let mut batch: Vec<&[u8]> = Vec::new();
    let mut bytes = 0;
    for length in preimages {
        let length = length * HASH_BLOCK_BYTES;
        batch.push(&content[..length - LENGTH_BYTES]);
        bytes += length;
        if bytes >= BATCH_BYTES {
            black_box(rules.value_hashes(&batch));
            (bytes, batch) = (0, Vec::new());
        }
    }

    black_box(rules.value_hashes(&batch));
}

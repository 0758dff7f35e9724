//! SHA-512 of many messages at once, cut to its first 32 bytes: the hash of the nodes of the radix
//! state.
//!
//! Crate `sha2` hashes a single message. Several messages are hashed side by side, one in each lane
//! of the processor's vectors: eight or four with AVX-512, four with AVX2, and elsewhere one after
//! the other. A lane that is done takes the next message, the longest first, so that the lanes end
//! together.
//!
//! Most hashing of a commit is of *chains*, the extensions of the radix state: nodes with one child
//! and no value. Such a node is one block of SHA-512, and the hash of its child, which the step
//! before left in the lanes, is turned into hex digits there. The block, as 16 big-endian words of
//! 8 bytes:
//!
//! | bytes    | content           | meaning                                    |
//! |----------|-------------------|--------------------------------------------|
//! | 0..5     | `a2 61 63 a1 62`  | map of two, `"c"`, map of one, text of 2   |
//! | 5..7     | token             | its two hex digits                         |
//! | 7..9     | `78 40`           | text of 64                                 |
//! | 9..73    | hash of the child | its 64 hex digits                          |
//! | 73..76   | `61 76 f6`        | `"v"`, null                                |
//! | 76..120  | `80`, zeros       | padding                                    |
//! | 120..128 | 608               | bits of the node                           |
//!
//! Invariants: no word of a lane reaches another lane; the hashes are the same on every processor.
//! No function does I/O.
//!
//! Rejected: hashing node after node. A block of 128 bytes takes 190 ns alone, and 41 ns with
//! AVX-512 side by side.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "lanes are not used elsewhere")
)]
#![expect(clippy::big_endian_bytes, reason = "SHA-512 is big-endian")]
#![expect(
    clippy::inline_always,
    reason = "only what is inlined into `vectorize` is compiled with the processor's vectors"
)]

use std::ops::{Add, BitAnd, BitOr, Shl, Shr, Sub};

use fearless_simd::{Simd, SimdInt};
#[cfg(target_arch = "x86_64")]
use fearless_simd::{u64x4, u64x8};
use sha2::block_api::compress512;
use sha2::{Digest, Sha512};

use crate::lanes::{Engine, active, load, longest_first, rotate, set_lane, store};

/// Bytes of a hash: the first 32 of the 64 bytes of SHA-512.
pub const HASH_BYTES: usize = 32;

/// Bytes of a block of SHA-512.
pub const BLOCK_BYTES: usize = 128;

/// Hex digits of a hash.
pub const HEX_BYTES: usize = 2 * HASH_BYTES;

/// Bits of a node of a chain, which has 76 bytes.
const CHAIN_NODE_BITS: u64 = 608;

/// Smallest padding, in bytes: a byte that begins it, and the length of the message in bits.
const PADDING_BYTES: usize = 1 + size_of::<u128>();

/// Initial state of SHA-512 (FIPS 180-4, 5.3.5).
#[rustfmt::skip] // in rows
const INITIAL: [u64; 8] = [
    0x6A09_E667_F3BC_C908, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B, 0xA54F_F53A_5F1D_36F1,
    0x510E_527F_ADE6_82D1, 0x9B05_688C_2B3E_6C1F, 0x1F83_D9AB_FB41_BD6B, 0x5BE0_CD19_137E_2179,
];

/// Round constants of SHA-512 (FIPS 180-4, 4.2.3).
#[rustfmt::skip] // in rows
const ROUND: [u64; 80] = [
    0x428A_2F98_D728_AE22, 0x7137_4491_23EF_65CD, 0xB5C0_FBCF_EC4D_3B2F, 0xE9B5_DBA5_8189_DBBC,
    0x3956_C25B_F348_B538, 0x59F1_11F1_B605_D019, 0x923F_82A4_AF19_4F9B, 0xAB1C_5ED5_DA6D_8118,
    0xD807_AA98_A303_0242, 0x1283_5B01_4570_6FBE, 0x2431_85BE_4EE4_B28C, 0x550C_7DC3_D5FF_B4E2,
    0x72BE_5D74_F27B_896F, 0x80DE_B1FE_3B16_96B1, 0x9BDC_06A7_25C7_1235, 0xC19B_F174_CF69_2694,
    0xE49B_69C1_9EF1_4AD2, 0xEFBE_4786_384F_25E3, 0x0FC1_9DC6_8B8C_D5B5, 0x240C_A1CC_77AC_9C65,
    0x2DE9_2C6F_592B_0275, 0x4A74_84AA_6EA6_E483, 0x5CB0_A9DC_BD41_FBD4, 0x76F9_88DA_8311_53B5,
    0x983E_5152_EE66_DFAB, 0xA831_C66D_2DB4_3210, 0xB003_27C8_98FB_213F, 0xBF59_7FC7_BEEF_0EE4,
    0xC6E0_0BF3_3DA8_8FC2, 0xD5A7_9147_930A_A725, 0x06CA_6351_E003_826F, 0x1429_2967_0A0E_6E70,
    0x27B7_0A85_46D2_2FFC, 0x2E1B_2138_5C26_C926, 0x4D2C_6DFC_5AC4_2AED, 0x5338_0D13_9D95_B3DF,
    0x650A_7354_8BAF_63DE, 0x766A_0ABB_3C77_B2A8, 0x81C2_C92E_47ED_AEE6, 0x9272_2C85_1482_353B,
    0xA2BF_E8A1_4CF1_0364, 0xA81A_664B_BC42_3001, 0xC24B_8B70_D0F8_9791, 0xC76C_51A3_0654_BE30,
    0xD192_E819_D6EF_5218, 0xD699_0624_5565_A910, 0xF40E_3585_5771_202A, 0x106A_A070_32BB_D1B8,
    0x19A4_C116_B8D2_D0C8, 0x1E37_6C08_5141_AB53, 0x2748_774C_DF8E_EB99, 0x34B0_BCB5_E19B_48A8,
    0x391C_0CB3_C5C9_5A63, 0x4ED8_AA4A_E341_8ACB, 0x5B9C_CA4F_7763_E373, 0x682E_6FF3_D6B2_B8A3,
    0x748F_82EE_5DEF_B2FC, 0x78A5_636F_4317_2F60, 0x84C8_7814_A1F0_AB72, 0x8CC7_0208_1A64_39EC,
    0x90BE_FFFA_2363_1E28, 0xA450_6CEB_DE82_BDE9, 0xBEF9_A3F7_B2C6_7915, 0xC671_78F2_E372_532B,
    0xCA27_3ECE_EA26_619C, 0xD186_B8C7_21C0_C207, 0xEADA_7DD6_CDE0_EB1E, 0xF57D_4F7F_EE6E_D178,
    0x06F0_67AA_7217_6FBA, 0x0A63_7DC5_A2C8_98A6, 0x113F_9804_BEF9_0DAE, 0x1B71_0B35_131C_471B,
    0x28DB_77F5_2304_7D84, 0x32CA_AB7B_40C7_2493, 0x3C9E_BE0A_15C9_BEBC, 0x431D_67C4_9C10_0D4C,
    0x4CC5_D4BE_CB3E_42B6, 0x597F_299C_FC65_7E2A, 0x5FCB_6FAB_3AD6_FAEC, 0x6C44_198C_4A47_5817,
];

/// Half of a state that becomes the hash.
type Half = [u64; 4];

/// Returns the first 32 bytes of a message's SHA-512.
pub fn hash(message: &[u8]) -> [u8; HASH_BYTES] {
    let digest: [u8; 64] = Sha512::digest(message).into();
    std::array::from_fn(|at| digest[at])
}

/// Writes a hash as 64 lower-case hex digits.
pub fn write_hex(hash: &[u8; HASH_BYTES], digits: &mut [u8; HEX_BYTES]) {
    // Arithmetic and no table: the compiler makes vector instructions of it.
    let digit = |nibble: u8| nibble + b'0' + u8::from(nibble > 9) * (b'a' - b'0' - 10);
    for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(hash) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
}

/// Hashes independent messages: `hashes[i]` becomes the hash of `messages[i]`.
///
/// Cost: two lists of as many numbers as messages.
///
/// # Panics
/// If the numbers of hashes and messages differ.
pub fn hash_many(messages: &[&[u8]], hashes: &mut [[u8; HASH_BYTES]]) {
    hash_many_by(Engine::best(), messages, hashes);
}

/// Chain of nodes to be hashed from its bottom to its top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainJob<'a> {
    /// Hash of the node below the chain; after hashing, of the top of the chain.
    pub hash: [u8; HASH_BYTES],
    /// Tokens from the top down, as in an address: the last one is hashed first.
    pub tokens: &'a [u8],
}

/// Hashes every chain. A chain without tokens keeps its hash.
///
/// Cost: two lists of as many numbers as jobs.
pub fn hash_chains(jobs: &mut [ChainJob<'_>]) {
    hash_chains_by(Engine::best(), jobs, None);
}

/// Hashes every chain, and returns the hash of each of its nodes: those of the first job from the
/// bottom to the top, one for each token, then those of the next job.
///
/// Cost: that of [`hash_chains`], and the result.
pub fn hash_chain_steps(jobs: &mut [ChainJob<'_>]) -> Vec<[u8; HASH_BYTES]> {
    hash_chain_steps_by(Engine::best(), jobs)
}

fn hash_many_by(engine: Engine, messages: &[&[u8]], hashes: &mut [[u8; HASH_BYTES]]) {
    assert_eq!(messages.len(), hashes.len(), "as many hashes as messages");

    // Few messages leave half of eight lanes idle: four lanes are faster then.
    match (engine, messages.len()) {
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx512(simd), 5..) => simd.vectorize(
            #[inline(always)]
            || many_in_lanes::<_, u64x8<_>, 8>(simd, messages, hashes),
        ),
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx512(simd), 2..) => simd.vectorize(
            #[inline(always)]
            || many_in_lanes::<_, u64x4<_>, 4>(simd, messages, hashes),
        ),
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx2(simd), 2..) => simd.vectorize(
            #[inline(always)]
            || many_in_lanes::<_, u64x4<_>, 4>(simd, messages, hashes),
        ),
        _ => {
            for (message, out) in messages.iter().zip(hashes) {
                *out = hash(message);
            }
        }
    }
}

fn hash_chain_steps_by(engine: Engine, jobs: &mut [ChainJob<'_>]) -> Vec<[u8; HASH_BYTES]> {
    let mut starts = Vec::with_capacity(jobs.len());
    let mut count = 0;
    for job in &*jobs {
        starts.push(count);
        count += job.tokens.len();
    }

    let mut hashes = vec![[0; HASH_BYTES]; count];
    hash_chains_by(engine, jobs, Some(Steps { starts: &starts, hashes: &mut hashes }));
    hashes
}

fn hash_chains_by(engine: Engine, jobs: &mut [ChainJob<'_>], mut steps: Option<Steps<'_>>) {
    // Few chains leave half of eight lanes idle: four lanes are faster then.
    match (engine, jobs.len()) {
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx512(simd), 5..) => simd.vectorize(
            #[inline(always)]
            || chains_in_lanes::<_, u64x8<_>, 8>(simd, jobs, steps),
        ),
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx512(simd), 2..) => simd.vectorize(
            #[inline(always)]
            || chains_in_lanes::<_, u64x4<_>, 4>(simd, jobs, steps),
        ),
        #[cfg(target_arch = "x86_64")]
        (Engine::Avx2(simd), 2..) => simd.vectorize(
            #[inline(always)]
            || chains_in_lanes::<_, u64x4<_>, 4>(simd, jobs, steps),
        ),
        _ => {
            for (at, job) in jobs.iter_mut().enumerate() {
                let lane = ChainLane { job: at, tokens: job.tokens, done: 0 };
                job.hash = to_bytes(lane.finish(to_words(&job.hash), &mut steps));
            }
        }
    }
}

/// Target of the hashes of the nodes of chains.
struct Steps<'a> {
    /// Position of the first hash of each job.
    starts: &'a [usize],
    hashes: &'a mut [[u8; HASH_BYTES]],
}

impl Steps<'_> {
    fn set(&mut self, job: usize, step: usize, state: Half) {
        debug_assert!(self.starts[job] + step < self.hashes.len(), "each step has a hash");
        self.hashes[self.starts[job] + step] = to_bytes(state);
    }
}

/// Chain that a lane is hashing.
#[derive(Debug, Clone, Copy)]
struct ChainLane<'a> {
    job: usize,
    /// Tokens that are left.
    tokens: &'a [u8],
    /// Number of hashed tokens.
    done: usize,
}

impl ChainLane<'_> {
    /// Takes the next token on the way up.
    #[inline(always)]
    fn next_token(&mut self) -> u8 {
        let (&token, rest) = self.tokens.split_last().expect("a chain that has steps left");
        self.tokens = rest;
        self.done += 1;
        token
    }

    /// Hashes the rest of the chain without other lanes.
    fn finish(mut self, mut child: Half, steps: &mut Option<Steps<'_>>) -> Half {
        while !self.tokens.is_empty() {
            let mut node = [0; BLOCK_BYTES];
            let words = chain_node(child, u64::from(self.next_token()), CHAIN_NODE_BITS, 0);
            for (bytes, word) in node.as_chunks_mut().0.iter_mut().zip(words) {
                *bytes = word.to_be_bytes();
            }
            let mut state = INITIAL;
            compress512(&mut state, &[node]);
            child = half(&state);
            if let Some(steps) = steps {
                steps.set(self.job, self.done - 1, child);
            }
        }

        child
    }
}

/// Hashes chains, one in each lane.
#[inline(always)]
fn chains_in_lanes<S: Simd, V: SimdInt<S, Element = u64>, const LANES: usize>(
    simd: S,
    jobs: &mut [ChainJob<'_>],
    mut steps: Option<Steps<'_>>,
) {
    let splat = |word| V::splat(simd, word);
    let mut waiting = longest_first(jobs.iter().map(|job| job.tokens.len()));
    let mut words = [[0; LANES]; 4];
    let mut lanes: [Option<ChainLane<'_>>; LANES] = [None; LANES];

    loop {
        for (at, lane) in lanes.iter_mut().enumerate() {
            // A lane whose chain has ended takes the next one.
            if lane.is_none_or(|lane| lane.tokens.is_empty()) {
                if let Some(lane) = lane {
                    jobs[lane.job].hash = to_bytes(words.map(|word| word[at]));
                }
                *lane = waiting.next().map(|job| {
                    set_lane(&mut words, at, to_words(&jobs[job].hash));
                    ChainLane { job, tokens: jobs[job].tokens, done: 0 }
                });
            }
        }

        let Some((count, shortest)) = active(&lanes, |lane| lane.tokens.len()) else { return };

        // The last chain: one message at a time is faster than one lane of many.
        if count == 1 {
            for (at, lane) in lanes.iter_mut().enumerate() {
                if let Some(lane) = lane.take() {
                    let top = lane.finish(words.map(|word| word[at]), &mut steps);
                    jobs[lane.job].hash = to_bytes(top);
                }
            }
            return;
        }

        // All lanes go on together as long as the shortest lasts.
        let mut child: [V; 4] = load(simd, &words);
        for _ in 0..shortest {
            // A lane without a chain hashes a token of 0, which nobody reads.
            let mut tokens = [0; LANES];
            for (lane, token) in lanes.iter_mut().zip(&mut tokens) {
                *token = lane.as_mut().map_or(0, |lane| u64::from(lane.next_token()));
            }
            let token = V::from_slice(simd, &tokens);
            let node = chain_node(child, token, splat(CHAIN_NODE_BITS), splat(0));
            child = half(&compress(INITIAL.map(splat), node));

            // Every step has its hash given out, so the lanes are stored after each step.
            if let Some(steps) = &mut steps {
                store(child, &mut words);
                for (at, lane) in lanes.iter().enumerate() {
                    if let Some(lane) = lane {
                        steps.set(lane.job, lane.done - 1, words.map(|word| word[at]));
                    }
                }
            }
        }

        store(child, &mut words);
    }
}

/// Message that a lane is hashing.
struct MessageLane<'a> {
    index: usize,
    whole: &'a [[u8; BLOCK_BYTES]],
    tail: [[u8; BLOCK_BYTES]; 2],
    tail_blocks: usize,
    done: usize,
}

impl<'a> MessageLane<'a> {
    fn new(index: usize, message: &'a [u8]) -> Self {
        let (tail, tail_blocks) = padded_tail(message);
        Self { index, whole: message.as_chunks().0, tail, tail_blocks, done: 0 }
    }

    fn blocks_left(&self) -> usize {
        self.whole.len() + self.tail_blocks - self.done
    }

    #[inline(always)]
    fn next_block(&mut self) -> &[u8; BLOCK_BYTES] {
        debug_assert!(self.done < self.whole.len() + self.tail_blocks, "a block is left");
        let at = self.done;
        self.done += 1;
        self.whole.get(at).unwrap_or_else(|| &self.tail[at - self.whole.len()])
    }
}

/// Hashes messages, one in each lane.
#[inline(always)]
fn many_in_lanes<S: Simd, V: SimdInt<S, Element = u64>, const LANES: usize>(
    simd: S,
    messages: &[&[u8]],
    hashes: &mut [[u8; HASH_BYTES]],
) {
    let mut waiting = longest_first(messages.iter().map(|message| message.len()));
    let mut words = [[0; LANES]; 8];
    let mut lanes: [Option<MessageLane<'_>>; LANES] = [const { None }; LANES];

    loop {
        for (at, lane) in lanes.iter_mut().enumerate() {
            // A lane whose message has ended takes the next one.
            if lane.as_ref().is_none_or(|lane| lane.blocks_left() == 0) {
                if let Some(lane) = lane {
                    hashes[lane.index] = to_bytes(half(&words.map(|word| word[at])));
                }
                *lane = waiting.next().map(|index| {
                    set_lane(&mut words, at, INITIAL);
                    MessageLane::new(index, messages[index])
                });
            }
        }

        let Some((count, shortest)) = active(&lanes, MessageLane::blocks_left) else { return };

        // The last message: one message at a time is faster than one lane of many.
        if count == 1 {
            for (at, lane) in lanes.iter_mut().enumerate() {
                if let Some(lane) = lane {
                    let mut state = words.map(|word| word[at]);
                    for _ in 0..lane.blocks_left() {
                        compress512(&mut state, &[*lane.next_block()]);
                    }
                    hashes[lane.index] = to_bytes(half(&state));
                }
            }
            return;
        }

        // All lanes go on together as long as the shortest lasts.
        let mut state: [V; 8] = load(simd, &words);
        for _ in 0..shortest {
            // A lane without a message hashes zeros, which nobody reads.
            let mut block = [[0; LANES]; 16];
            for (at, lane) in lanes.iter_mut().enumerate() {
                if let Some(lane) = lane {
                    for (word, bytes) in block.iter_mut().zip(lane.next_block().as_chunks().0) {
                        word[at] = u64::from_be_bytes(*bytes);
                    }
                }
            }
            state = compress(state, load(simd, &block));
        }

        store(state, &mut words);
    }
}

/// Returns the rest of a message behind its whole blocks, with SHA-512's padding, and the number of
/// its blocks, one or two.
fn padded_tail(message: &[u8]) -> ([[u8; BLOCK_BYTES]; 2], usize) {
    let (_, rest) = message.as_chunks::<BLOCK_BYTES>();
    let blocks = (rest.len() + PADDING_BYTES).div_ceil(BLOCK_BYTES);
    debug_assert!(blocks <= 2, "the rest is shorter than a block");
    let mut tail = [[0; BLOCK_BYTES]; 2];
    let flat = &mut tail.as_flattened_mut()[..blocks * BLOCK_BYTES];
    flat[..rest.len()].copy_from_slice(rest);
    flat[rest.len()] = 0x80;

    let length = flat.last_chunk_mut().expect("a block is longer than the length");
    *length = (message.len() as u128 * 8).to_be_bytes();
    (tail, blocks)
}

#[inline(always)]
fn half<W: Copy>(state: &[W; 8]) -> [W; 4] {
    let [a, b, c, d, ..] = *state;
    [a, b, c, d]
}

fn to_words(hash: &[u8; HASH_BYTES]) -> Half {
    let bytes = hash.as_chunks().0;
    std::array::from_fn(|at| u64::from_be_bytes(bytes[at]))
}

fn to_bytes(state: Half) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    for (bytes, word) in hash.as_chunks_mut().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    hash
}

/// Word, or a word in each lane.
trait Word:
    Copy
    + Add<Output = Self>
    + Add<u64, Output = Self>
    + Sub<Output = Self>
    + BitAnd<u64, Output = Self>
    + BitOr<Output = Self>
    + BitOr<u64, Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
}

impl<W> Word for W where
    W: Copy
        + Add<Output = W>
        + Add<u64, Output = W>
        + Sub<Output = W>
        + BitAnd<u64, Output = W>
        + BitOr<Output = W>
        + BitOr<u64, Output = W>
        + Shl<u32, Output = W>
        + Shr<u32, Output = W>
{
}

/// Returns the eight hex digits of a word below 2^32.
#[inline(always)]
fn hex<W: Word>(half: W) -> W {
    // Each byte takes one nibble.
    let pairs = (half | half << 16) & 0x0000_FFFF_0000_FFFF;
    let bytes = (pairs | pairs << 8) & 0x00FF_00FF_00FF_00FF;
    let nibbles = (bytes | bytes << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    // 1 for a letter, which lies 39 further from its number than a figure.
    let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    nibbles + 0x3030_3030_3030_3030 + ((letters << 5 | letters << 3) - letters)
}

/// Returns the sixteen hex digits of a word.
#[inline(always)]
fn hex_pair<W: Word>(word: W) -> [W; 2] {
    [hex(word >> 32), hex(word & 0xFFFF_FFFF)]
}

/// Builds the block of a node of a chain, with its length in `bits`.
#[inline(always)]
fn chain_node<W: Word>(child: [W; 4], token: W, bits: W, zero: W) -> [W; 16] {
    let [a, b, c, d] = child;
    let digits = [hex_pair(a), hex_pair(b), hex_pair(c), hex_pair(d)];
    let [[h0, h1], [h2, h3], [h4, h5], [h6, h7]] = digits;

    // The digits begin one byte behind a word's boundary.
    [
        (hex(token) & 0xFFFF) << 8 | 0xA261_63A1_6200_0078,
        h0 >> 8 | 0x40 << 56,
        h0 << 56 | h1 >> 8,
        h1 << 56 | h2 >> 8,
        h2 << 56 | h3 >> 8,
        h3 << 56 | h4 >> 8,
        h4 << 56 | h5 >> 8,
        h5 << 56 | h6 >> 8,
        h6 << 56 | h7 >> 8,
        h7 << 56 | 0x0061_76F6_8000_0000,
        zero,
        zero,
        zero,
        zero,
        zero,
        bits,
    ]
}

/// Compresses a block in each lane (FIPS 180-4, 6.4.2).
#[inline(always)]
fn compress<S: Simd, V: SimdInt<S, Element = u64>>(state: [V; 8], mut w: [V; 16]) -> [V; 8] {
    let mut working = state;

    // Written out 16 times: the compiler does not unroll so long a loop, and without that the words
    // do not stay in registers (measured: half as fast).
    macro_rules! sixteen_rounds {
        ($group:expr, $schedule:expr) => {
            sixteen_rounds!($group, $schedule, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        };
        ($group:expr, $schedule:expr, $($t:literal)*) => {$({
            if $schedule {
                let w1 = w[($t + 1) % 16];
                let w14 = w[($t + 14) % 16];
                let sigma0 = rotate(w1, 1) ^ rotate(w1, 8) ^ w1 >> 7;
                let sigma1 = rotate(w14, 19) ^ rotate(w14, 61) ^ w14 >> 6;
                w[$t] = (w[$t] + sigma0) + (w[($t + 9) % 16] + sigma1);
            }
            let [a, b, c, d, e, f, g, h] = working;
            let sum1 = rotate(e, 14) ^ rotate(e, 18) ^ rotate(e, 41);
            let choice = g ^ (e & (f ^ g));
            let first = h + (w[$t] + ROUND[16 * $group + $t]) + choice + sum1;
            let sum0 = rotate(a, 28) ^ rotate(a, 34) ^ rotate(a, 39);
            let majority = (a & b) | (c & (a | b));
            working = [first + sum0 + majority, a, b, c, d + first, e, f, g];
        })*};
    }

    sixteen_rounds!(0, false);
    for group in 1..5 {
        sixteen_rounds!(group, true);
    }

    std::array::from_fn(
        #[inline(always)]
        |at| working[at] + state[at],
    )
}

#[cfg(test)]
mod tests {
    //! Every engine that this processor has against crate `sha2`, one message at a time.

    use std::fmt::Write;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::lanes::engines;

    fn hex_text(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes all");
            text
        })
    }

    /// The node as CBOR, byte by byte.
    fn chain_parent(child: &[u8; HASH_BYTES], token: u8) -> [u8; HASH_BYTES] {
        let mut node = b"\xa2\x61c\xa1\x62".to_vec();
        node.extend(hex_text(&[token]).bytes());
        node.extend(b"\x78\x40");
        node.extend(hex_text(child).bytes());
        node.extend(b"\x61v\xf6");
        assert_eq!(node.len(), 76);
        hash(&node)
    }

    fn chain_of(mut child: [u8; HASH_BYTES], tokens: &[u8]) -> Vec<[u8; HASH_BYTES]> {
        let up = tokens.iter().rev();
        up.map(|&token| {
            child = chain_parent(&child, token);
            child
        })
        .collect()
    }

    fn many_by(engine: Engine, messages: &[&[u8]]) -> Vec<[u8; HASH_BYTES]> {
        let mut hashes = vec![[0xEE; HASH_BYTES]; messages.len()];
        hash_many_by(engine, messages, &mut hashes);
        hashes
    }

    #[test]
    fn the_example_of_the_rules_has_its_root() {
        let leaf = hash(b"\xa2\x61c\xa0\x61v\x4adata_value");
        assert_eq!(
            hex_text(&leaf),
            "8e17180ee8ff130e100c2c52b7925f4a7240ed71d32e4927f99e15b4d66f188e"
        );

        let nodes = [
            "e0bbe378b6b59d1daf5491f0304a9059765a6658f1b80f70e167eb8a67972e7b",
            "4c5116ae4e7439e4355ac190cc595225259142c42fd9d19a88dc14c48653d870",
        ];

        for engine in engines() {
            for count in 1..=9 {
                let mut jobs = vec![ChainJob { hash: leaf, tokens: &[0xAB, 0xCD] }; count];
                let steps = hash_chain_steps_by(engine, &mut jobs);
                let steps: Vec<String> = steps.iter().map(|step| hex_text(step)).collect();
                assert_eq!(steps, nodes.repeat(count), "{engine:?}");
                assert!(jobs.iter().all(|job| hex_text(&job.hash) == nodes[1]), "{engine:?}");
            }
        }

        assert_eq!(
            hex_text(&hash(b"\xa2\x61c\xa0\x61v\xf6")),
            "708ca7fbb701799bb387f2e50deaca402e8502abe229f705693d2d4f350e1ad6"
        );
    }

    #[test]
    fn digits_are_those_of_the_formatter() {
        for first in 0..=u8::MAX {
            let bytes: [u8; HASH_BYTES] =
                std::array::from_fn(|at| first.wrapping_add((at * 37) as u8));
            let mut digits = [0; HEX_BYTES];
            write_hex(&bytes, &mut digits);
            assert_eq!(digits.as_slice(), hex_text(&bytes).as_bytes());
        }
    }

    #[test]
    fn messages_of_every_length_hash_as_one_by_one() {
        let bytes: Vec<u8> = (0..1100_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let messages: Vec<&[u8]> = (0..=bytes.len()).map(|length| &bytes[..length]).collect();
        let expected: Vec<_> = messages.iter().map(|message| hash(message)).collect();
        for engine in engines() {
            assert_eq!(many_by(engine, &messages), expected, "{engine:?}");
        }
        let mut hashes = vec![[0; HASH_BYTES]; messages.len()];
        hash_many(&messages, &mut hashes);
        assert_eq!(hashes, expected);
    }

    #[test]
    fn any_messages_hash_as_one_by_one() {
        for_each_seed("any_messages_hash_as_one_by_one", 10, |draw, _| {
            let longest = *draw.pick(&[10, 200, 1_000, 20_000]);
            let count = draw.index(101);
            let messages: Vec<Vec<u8>> = (0..count)
                .map(|_| {
                    let length = draw.index(longest);
                    draw.bytes(length)
                })
                .collect();
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            let expected: Vec<_> = messages.iter().map(|message| hash(message)).collect();
            for engine in engines() {
                assert_eq!(many_by(engine, &messages), expected, "{engine:?}");
            }
        });
    }

    /// Every count up to two more than twice the widest lanes, and one of more chains, of which
    /// most lanes take several.
    #[test]
    fn chains_of_every_count_and_length_hash_as_their_nodes() {
        for_each_seed("chains_of_every_count_and_length_hash_as_their_nodes", 2, |draw, _| {
            let many = 19 + draw.index(82);
            for count in (0..=18).chain([many]) {
                let tokens: Vec<Vec<u8>> = (0..count)
                    .map(|at| {
                        // Also all of one length, and a few of very different ones.
                        let length = if count % 3 == 0 { count % 36 } else { (at * count) % 36 };
                        draw.bytes(length)
                    })
                    .collect();
                let jobs: Vec<ChainJob<'_>> = tokens
                    .iter()
                    .map(|tokens| ChainJob {
                        hash: draw.bytes(HASH_BYTES).try_into().expect("32 bytes"),
                        tokens,
                    })
                    .collect();
                let steps: Vec<_> = jobs.iter().map(|job| chain_of(job.hash, job.tokens)).collect();
                let done: Vec<_> = jobs
                    .iter()
                    .zip(&steps)
                    .map(|(job, steps)| ChainJob {
                        hash: steps.last().copied().unwrap_or(job.hash),
                        tokens: job.tokens,
                    })
                    .collect();
                for engine in engines() {
                    let mut plain = jobs.clone();
                    hash_chains_by(engine, &mut plain, None);
                    assert_eq!(plain, done, "{engine:?}, {count} jobs");
                    let mut stepped = jobs.clone();
                    assert_eq!(hash_chain_steps_by(engine, &mut stepped), steps.concat());
                    assert_eq!(stepped, done, "{engine:?}, {count} jobs");
                }
                let mut best = jobs.clone();
                hash_chains(&mut best);
                assert_eq!(best, done);
                assert_eq!(hash_chain_steps(&mut best.clone()).len(), steps.concat().len());
            }
        });
    }
}

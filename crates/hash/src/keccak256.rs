//! Keccak-256 of many messages at once: the hash of Ethereum, with the padding of Keccak and not
//! that of SHA-3.
//!
//! Crate `sha3` hashes a single message. Several messages are hashed side by side, one in each lane
//! of the processor's vectors: eight or four with AVX-512, four with AVX2, and elsewhere one after
//! the other. The state of a lane has 25 words, which fit the 32 registers of AVX-512.
//!
//! Invariants: no word of a lane reaches another lane; the hashes are the same on every processor.
//! No function does I/O.
//!
//! Rejected: hashing message after message. `terrane bench state` prints the time of both for the
//! nodes of a block.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "lanes are not used elsewhere")
)]
#![expect(
    clippy::inline_always,
    reason = "only what is inlined into `vectorize` is compiled with the processor's vectors"
)]

use fearless_simd::{Simd, SimdInt};
#[cfg(target_arch = "x86_64")]
use fearless_simd::{u64x4, u64x8};
use sha3::{Digest, Keccak256};

use crate::lanes::{Engine, active, load, longest_first, rotate, set_lane, store};

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;

/// Bytes of a message that one permutation absorbs: the rate.
pub const BLOCK_BYTES: usize = 136;

/// Words of a block.
const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

/// Words of a state.
const STATE_WORDS: usize = 25;

/// First byte of the padding of Keccak; SHA-3 has 6.
const PADDING_FIRST: u8 = 1;

/// Bit of the last byte of the padding.
const PADDING_LAST: u8 = 0x80;

/// Round constants (FIPS 202, 3.2.5).
#[rustfmt::skip] // in rows
const ROUND: [u64; 24] = [
    0x0000_0000_0000_0001, 0x0000_0000_0000_8082, 0x8000_0000_0000_808A, 0x8000_0000_8000_8000,
    0x0000_0000_0000_808B, 0x0000_0000_8000_0001, 0x8000_0000_8000_8081, 0x8000_0000_0000_8009,
    0x0000_0000_0000_008A, 0x0000_0000_0000_0088, 0x0000_0000_8000_8009, 0x0000_0000_8000_000A,
    0x0000_0000_8000_808B, 0x8000_0000_0000_008B, 0x8000_0000_0000_8089, 0x8000_0000_0000_8003,
    0x8000_0000_0000_8002, 0x8000_0000_0000_0080, 0x0000_0000_0000_800A, 0x8000_0000_8000_000A,
    0x8000_0000_8000_8081, 0x8000_0000_0000_8080, 0x0000_0000_8000_0001, 0x8000_0000_8000_8008,
];

/// Returns the Keccak-256 of a message.
#[must_use]
pub fn hash(message: &[u8]) -> [u8; HASH_BYTES] {
    Keccak256::digest(message).into()
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

/// Message that a lane is hashing.
struct MessageLane<'a> {
    index: usize,
    whole: &'a [[u8; BLOCK_BYTES]],
    last: [u8; BLOCK_BYTES],
    done: usize,
}

impl<'a> MessageLane<'a> {
    fn new(index: usize, message: &'a [u8]) -> Self {
        let (whole, rest) = message.as_chunks();
        let mut last = [0; BLOCK_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        // Both may be the same byte.
        last[rest.len()] |= PADDING_FIRST;
        last[BLOCK_BYTES - 1] |= PADDING_LAST;
        Self { index, whole, last, done: 0 }
    }

    fn blocks_left(&self) -> usize {
        self.whole.len() + 1 - self.done
    }

    #[inline(always)]
    fn next_block(&mut self) -> &[u8; BLOCK_BYTES] {
        debug_assert!(self.done <= self.whole.len(), "a block is left");
        let at = self.done;
        self.done += 1;
        self.whole.get(at).unwrap_or(&self.last)
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
    let mut words = [[0_u64; LANES]; STATE_WORDS];
    let mut lanes: [Option<MessageLane<'_>>; LANES] = [const { None }; LANES];

    loop {
        for (at, lane) in lanes.iter_mut().enumerate() {
            // A lane whose message has ended takes the next one.
            if lane.as_ref().is_none_or(|lane| lane.blocks_left() == 0) {
                if let Some(lane) = lane {
                    let out = hashes[lane.index].as_chunks_mut().0;
                    for (bytes, word) in out.iter_mut().zip(&words) {
                        *bytes = word[at].to_le_bytes();
                    }
                }
                *lane = waiting.next().map(|index| {
                    set_lane(&mut words, at, [0; STATE_WORDS]);
                    MessageLane::new(index, messages[index])
                });
            }
        }

        let Some((count, shortest)) = active(&lanes, MessageLane::blocks_left) else { return };

        // The last message: one message at a time is faster than one lane of many.
        if count == 1
            && let Some(lane) = lanes.iter().flatten().find(|lane| lane.done == 0)
        {
            hashes[lane.index] = hash(messages[lane.index]);
            return;
        }

        // All lanes go on together as long as the shortest lasts.
        let mut state: [V; STATE_WORDS] = load(simd, &words);
        for _ in 0..shortest {
            // A lane without a message hashes zeros, which nobody reads.
            let mut block = [[0; LANES]; BLOCK_WORDS];
            for (at, lane) in lanes.iter_mut().enumerate() {
                if let Some(lane) = lane {
                    for (word, bytes) in block.iter_mut().zip(lane.next_block().as_chunks().0) {
                        word[at] = u64::from_le_bytes(*bytes);
                    }
                }
            }
            let block: [V; BLOCK_WORDS] = load(simd, &block);
            for (word, absorbed) in state.iter_mut().zip(block) {
                *word ^= absorbed;
            }
            state = permute(state);
        }

        store(state, &mut words);
    }
}

/// Rotates a word to the left; 0 bits leave it as it is.
#[inline(always)]
fn turn<S: Simd, V: SimdInt<S, Element = u64>>(word: V, bits: u32) -> V {
    if bits == 0 { word } else { rotate(word, 64 - bits) }
}

/// Permutes the state of each lane (FIPS 202, 3.3).
#[inline(always)]
fn permute<S: Simd, V: SimdInt<S, Element = u64>>(mut state: [V; STATE_WORDS]) -> [V; STATE_WORDS] {
    // Sources of the words after rho and pi, and by how many bits each is rotated. Written out by a
    // macro, so that the words stay in registers.
    macro_rules! rho_pi {
        ($state:expr, $theta:expr, $(($from:literal, $bits:literal),)*) => {
            [$(turn::<S, V>($state[$from] ^ $theta[$from % 5], $bits),)*]
        };
    }

    for round in ROUND {
        let parity: [V; 5] = std::array::from_fn(
            #[inline(always)]
            |x| state[x] ^ state[x + 5] ^ state[x + 10] ^ state[x + 15] ^ state[x + 20],
        );
        let theta: [V; 5] = std::array::from_fn(
            #[inline(always)]
            |x| parity[(x + 4) % 5] ^ turn(parity[(x + 1) % 5], 1),
        );

        #[rustfmt::skip] // in rows
        let moved: [V; STATE_WORDS] = rho_pi![state, theta,
            (0, 0), (6, 44), (12, 43), (18, 21), (24, 14),
            (3, 28), (9, 20), (10, 3), (16, 45), (22, 61),
            (1, 1), (7, 6), (13, 25), (19, 8), (20, 18),
            (4, 27), (5, 36), (11, 10), (17, 15), (23, 56),
            (2, 62), (8, 55), (14, 39), (15, 41), (21, 2),
        ];
        for y in (0..STATE_WORDS).step_by(5) {
            let row = [moved[y], moved[y + 1], moved[y + 2], moved[y + 3], moved[y + 4]];
            for x in 0..5 {
                state[y + x] = row[x] ^ (!row[(x + 1) % 5] & row[(x + 2) % 5]);
            }
        }
        state[0] ^= round;
    }
    state
}

#[cfg(test)]
mod tests {
    //! Every engine that this processor has against crate `sha3`, one message at a time.

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::lanes::engines;

    fn many_by(engine: Engine, messages: &[&[u8]]) -> Vec<[u8; HASH_BYTES]> {
        let mut hashes = vec![[0xEE; HASH_BYTES]; messages.len()];
        hash_many_by(engine, messages, &mut hashes);
        hashes
    }

    fn one_by_one(messages: &[&[u8]]) -> Vec<[u8; HASH_BYTES]> {
        messages.iter().map(|message| hash(message)).collect()
    }

    /// The hash of no bytes is that of accounts without code.
    #[test]
    fn nothing_has_the_published_hash() {
        let known = [0xC5, 0xD2, 0x46, 0x01, 0x86, 0xF7, 0x23, 0x3C];
        for engine in engines() {
            for count in 1..20 {
                let hashes = many_by(engine, &vec![&[][..]; count]);
                assert!(hashes.iter().all(|hash| hash[..8] == known), "{engine:?}, {count}");
            }
        }
    }

    #[test]
    fn messages_of_every_length_hash_as_one_by_one() {
        let bytes: Vec<u8> = (0..700_u32).map(|at| ((at * at) >> 3) as u8).collect();
        let messages: Vec<_> = (0..=bytes.len()).map(|length| &bytes[..length]).collect();
        let expected = one_by_one(&messages);
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
            let expected = one_by_one(&messages);
            for engine in engines() {
                assert_eq!(many_by(engine, &messages), expected, "{engine:?}");
            }
        });
    }
}

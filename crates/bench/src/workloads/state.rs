//! Blocks on an Ethereum state: a mix of changes over a large state, and loads that an attacker
//! would choose.
//!
//! Everything follows from a seed and numbers. An account has a number, from which its address
//! follows; a slot has a number, from which its contract and its key follow; how often it was
//! written is a byte. So the expected value of every read is known, and the state is never in
//! memory. See [`layout`] for the sizes of contracts and [`block`] for the blocks.
//!
//! A block reads all that it changes in two batches, as its execution would, and compares; then it
//! commits, and waits until the commit is durable. At the end all nodes are derived from the
//! entries again.
//!
//! Cost: a byte for each account and slot; drawing is outside of every measured interval.

// Bottom-up: a module imports only from modules above it.
pub mod layout;
pub mod block;
pub mod report;
mod floor;
mod import;
pub mod run;

use terrane::mpt::{Address, B256, U256};
use terrane_hash::keccak256;

/// Load on a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A block as the main network has it: 323 accounts and 990 slots.
    Mix,
    /// The mix, and in each block the largest contract that is left is deleted with its storage.
    WideWipe,
    /// Slots whose hashes share long prefixes, found by trying keys, so that paths are long.
    DeepPaths,
    /// Slots that are one of the two children of their branch, deleted and set again in turns.
    SiblingCollapse,
    /// All slots in one contract.
    BigContract,
}

impl Load {
    /// All, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::Mix, Self::WideWipe, Self::DeepPaths, Self::SiblingCollapse, Self::BigContract];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mix => "mix",
            Self::WideWipe => "wide-wipe",
            Self::DeepPaths => "deep-paths",
            Self::SiblingCollapse => "sibling-collapse",
            Self::BigContract => "big-contract",
        }
    }
}

/// A hash of bytes.
fn hash_of(bytes: &[u8]) -> B256 {
    B256::from(keccak256::hash(bytes))
}

/// Addresses or slots with the first eight bytes of their hashes, which are their order but for
/// rare ties.
type Order = Vec<(u64, u32)>;

/// Numbers that are hashed together.
const HASHED_TOGETHER: u64 = 1024;

/// Orders the numbers below `count` by the hashes of their keys.
///
/// Cost: 16 bytes for each.
fn order_by_hash<K: AsRef<[u8]>>(count: u64, key: impl Fn(u64) -> K) -> Order {
    let mut order = Order::with_capacity(count as usize);
    let mut hashes = Vec::new();
    for start in (0..count).step_by(HASHED_TOGETHER as usize) {
        let end = count.min(start + HASHED_TOGETHER);
        let keys: Vec<K> = (start..end).map(&key).collect();
        hashes.resize(keys.len(), [0; 32]);
        let messages: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keccak256::hash_many(&messages, &mut hashes);
        order.extend((start..end).zip(&hashes).map(|(number, hash)| (head(hash), number as u32)));
    }
    order.sort_unstable();
    order
}

/// The first eight bytes of a hash as a number of the same order.
#[expect(clippy::big_endian_bytes, reason = "the order of numbers is that of hashes")]
fn head(hash: &[u8; 32]) -> u64 {
    let (head, _) = hash.split_first_chunk().expect("a hash has 32 bytes");
    u64::from_be_bytes(*head)
}

/// The key of a slot of this index in its contract.
fn slot_at(index: u64) -> B256 {
    B256::from(U256::from(index))
}

/// The address of a number.
fn address_of(seed: u64, number: u64) -> Address {
    let mut bytes = [0; 20];
    super::fill_bytes(&mut bytes, super::draws::mix(seed, number));
    Address::from(bytes)
}

//! The hashing floor: the time to SHA-512 exactly the nodes that a load must hash, one after the
//! other on one thread.
//!
//! The nodes are found without any state: of addresses of one length a set in order is
//! kept, and of each prefix at which they part the number of children. A node that is hashed has a
//! size that follows from its children or its value (section "Node bytes" of the scheme), and the
//! content does not matter to the time.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::ops::Bound;
use std::time::Instant;

use serde::Serialize;
use sha2::{Digest as _, Sha512};

/// Rounds, of which the shortest counts: only noise of the machine makes a round longer.
const ROUNDS: usize = 3;
/// Bytes hashed in a round at most. Of more bytes a share is hashed, and its time multiplied.
const ROUND_BYTES_MAX: u64 = 256 << 20;

/// Step of a batch on an address: sets a value of that many bytes, or deletes the address with
/// `None`.
pub type Step<'a> = (&'a [u8], Option<usize>);

/// Addresses of one length, and the nodes that batches have hashed.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    values: BTreeMap<Vec<u8>, usize>,
    /// Children of the prefixes that have more than one.
    forks: HashMap<Vec<u8>, u32>,
    /// Number of hashed nodes of a size.
    hashed: BTreeMap<usize, u64>,
}

/// Hashing floor of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Floor {
    /// Nodes that are hashed.
    pub nodes: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Time for them.
    pub wall_s: f64,
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Bytes of a node without a value.
fn branch_bytes(children: u32) -> usize {
    let head = match children {
        0..=23 => 1,
        24..=255 => 2,
        _ => 3,
    };
    6 + head + 69 * children as usize
}

/// Bytes of a node without children.
fn leaf_bytes(value: usize) -> usize {
    let head = match value {
        0..=23 => 1,
        24..=255 => 2,
        256..=65_535 => 3,
        1_048_576..=0xFFFF_FFFF => 5,
        // Lengths of 65,536 to 1,048,575 take nine bytes as well: a quirk of the scheme.
        _ => 9,
    };
    6 + head + value
}

impl Shape {
    /// Number of first bytes that an address shares with any other address.
    fn shared(&self, address: &[u8]) -> Option<usize> {
        let below = self.values.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(address)));
        let above = self.values.range::<[u8], _>((Bound::Excluded(address), Bound::Unbounded));
        let neighbours = below.last().into_iter().chain(above.take(1));
        neighbours.map(|(other, _)| common(address, other)).max()
    }

    /// Applies a batch, which names no address twice, and counts the nodes that it hashes.
    pub fn commit(&mut self, steps: &[Step<'_>]) {
        let mut steps = steps.to_vec();
        steps.sort_unstable();
        for (address, value) in &steps {
            let is_new = !self.values.contains_key(*address);
            match value {
                Some(value) => drop(self.values.insert(address.to_vec(), *value)),
                None => drop(self.values.remove(*address)),
            }

            let Some(shared) = self.shared(address) else { continue };
            let fork = address[..shared].to_vec();
            match value {
                Some(_) if is_new => *self.forks.entry(fork).or_insert(1) += 1,
                None if !is_new => {
                    let children = self.forks.entry(fork.clone()).or_insert(1);
                    *children -= 1;
                    if *children <= 1 {
                        self.forks.remove(&fork);
                    }
                }
                _ => {}
            }
        }

        let mut before: Option<&[u8]> = None;
        for (address, value) in &steps {
            let first = before.map_or(0, |before| common(before, address) + 1);
            let last = match value {
                Some(_) => address.len(),
                None => self.shared(address).unwrap_or(0),
            };
            for depth in first..=last {
                let bytes = match value {
                    Some(value) if depth == address.len() => leaf_bytes(*value),
                    _ if self.values.is_empty() => branch_bytes(0),
                    _ => branch_bytes(self.forks.get(&address[..depth]).copied().unwrap_or(1)),
                };
                *self.hashed.entry(bytes).or_default() += 1;
            }
            before = Some(address);
        }
    }

    /// Nodes that were hashed, and their bytes.
    #[must_use]
    pub fn hashed(&self) -> (u64, u64) {
        let sum = |(nodes, bytes), (size, count): (&usize, &u64)| {
            (nodes + count, bytes + count * *size as u64)
        };
        self.hashed.iter().fold((0, 0), sum)
    }

    /// Counts the nodes that another one has hashed.
    pub fn add(&mut self, other: &Self) {
        for (size, count) in &other.hashed {
            *self.hashed.entry(*size).or_default() += count;
        }
    }

    /// Forgets which nodes were hashed, and goes on from the present addresses.
    pub fn reset(&mut self) {
        self.hashed.clear();
    }

    /// Measures the time for the nodes that were hashed.
    #[must_use]
    pub fn measure(&self) -> Floor {
        let (nodes, bytes) = self.hashed();
        let longest = self.hashed.keys().last().copied().unwrap_or(0);

        let content = vec![0xA5; longest];
        let share = bytes.div_ceil(ROUND_BYTES_MAX).max(1);
        let round = || {
            let start = Instant::now();
            let mut hashed = 0;
            for (size, count) in &self.hashed {
                for _ in 0..count.div_ceil(share) {
                    black_box(Sha512::digest(black_box(&content[..*size])));
                    hashed += *size as u64;
                }
            }
            let scale = if hashed == 0 { 1.0 } else { bytes as f64 / hashed as f64 };
            start.elapsed().as_secs_f64() * scale
        };

        let wall_s = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
        Floor { nodes, bytes, wall_s }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use terrane_testkit::draw::Draw as _;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    /// The nodes of a plain tree that a batch must hash: those that begin a changed address and are
    /// there after it.
    fn expected(values: &BTreeMap<Vec<u8>, usize>, steps: &[Step<'_>]) -> (u64, u64) {
        let mut touched = BTreeSet::new();
        for (address, _) in steps {
            for depth in 0..=address.len() {
                let prefix = &address[..depth];
                let is_there = values.keys().any(|other| other.starts_with(prefix));
                if is_there || prefix.is_empty() {
                    touched.insert(prefix.to_vec());
                }
            }
        }

        let bytes = |prefix: &Vec<u8>| match values.get(prefix) {
            Some(value) => leaf_bytes(*value),
            None => {
                let below = values.keys().filter(|address| address.starts_with(prefix));
                let tokens: BTreeSet<u8> = below.map(|address| address[prefix.len()]).collect();
                branch_bytes(tokens.len() as u32)
            }
        };

        (touched.len() as u64, touched.iter().map(|prefix| bytes(prefix) as u64).sum())
    }

    #[test]
    fn the_nodes_are_those_of_a_plain_tree() {
        for_each_seed("the_nodes_are_those_of_a_plain_tree", 32, |rng, _| {
            let mut shape = Shape::default();
            let mut values = BTreeMap::new();
            for _ in 0..40 {
                let mut batch: BTreeMap<Vec<u8>, Option<usize>> = BTreeMap::new();
                for _ in 0..=rng.index(6) {
                    let address: Vec<u8> = (0..4).map(|_| rng.below(3) as u8).collect();
                    let is_there = values.contains_key(&address);
                    let size = 65_530 * rng.index(2) + rng.index(300);
                    let value = (!is_there || rng.chance(1, 2)).then_some(size);
                    batch.insert(address, value);
                }
                for (address, value) in &batch {
                    match value {
                        Some(value) => values.insert(address.clone(), *value),
                        None => values.remove(address),
                    };
                }
                let steps: Vec<Step<'_>> =
                    batch.iter().map(|(address, value)| (address.as_slice(), *value)).collect();
                shape.reset();
                shape.commit(&steps);
                assert_eq!(shape.hashed(), expected(&values, &steps), "{steps:?}");
            }
        });
    }

    #[test]
    fn sizes_are_those_of_the_scheme() {
        assert_eq!([0, 1, 256].map(branch_bytes), [7, 76, 17_673]);
        assert_eq!([0, 10, 24, 65_536].map(leaf_bytes), [7, 17, 32, 65_551]);
    }
}

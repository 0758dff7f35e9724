//! A set of hashes that answers "no" or "perhaps": with it a lookup passes over most of a write
//! buffer.
//!
//! Hashes are added while others ask, and none is ever taken out. So all versions of a memtable
//! share one sketch: the older ones say "perhaps" a little more often than they need to.

use terrane_io::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Fewest bits for a hash: at this load, a false "perhaps" for one hash in twenty.
const BITS_PER_HASH: usize = 8;

/// Hashes in words of 64 bits, three bits for each.
#[derive(Debug)]
pub(crate) struct Sketch {
    words: Box<[AtomicU64]>,
    /// Hashes added.
    count: AtomicUsize,
}

impl Sketch {
    /// A set for this many hashes.
    pub(crate) fn new(hashes: usize) -> Self {
        let words = (hashes * BITS_PER_HASH).div_ceil(64).max(1);
        debug_assert!(hashes * BITS_PER_HASH <= words * 64);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), count: AtomicUsize::new(0) }
    }

    /// Whether there is room for this many more.
    pub(crate) fn has_room(&self, hashes: usize) -> bool {
        let count = self.count.load(Ordering::Relaxed) + hashes;
        count * BITS_PER_HASH <= self.words.len() * 64
    }

    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = ((hash >> 32) * self.words.len() as u64) >> 32;
        debug_assert!((word as usize) < self.words.len());
        let bit = |shift: u32| 1_u64 << (hash >> shift & 63);
        (&self.words[word as usize], bit(0) | bit(6) | bit(12))
    }

    pub(crate) fn add(&self, hashes: impl Iterator<Item = u64>) {
        let mut count = 0;
        for hash in hashes {
            let (word, bits) = self.place(hash);
            // A thread that asks for this hash received the part from the thread that adds the
            // hash.
            word.fetch_or(bits, Ordering::Relaxed);
            count += 1;
        }
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    /// Whether the hash may have been added.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        word.load(Ordering::Relaxed) & bits == bits
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::entry::key_hash;

    #[test]
    fn what_was_added_is_perhaps_there_and_most_else_is_not() {
        for count in [1, 5, 512, 40_000_u64] {
            let sketch = Sketch::new(count as usize);
            let hash = |n: u64| key_hash(7, &n.to_le_bytes());
            assert!(!sketch.may_hold(hash(0)));
            assert!(sketch.has_room(count as usize));
            sketch.add((0..count).map(hash));
            assert!(!sketch.has_room(16));
            assert!((0..count).all(|n| sketch.may_hold(hash(n))));
            let wrong = (count..count + 10_000).filter(|&n| sketch.may_hold(hash(n))).count();
            assert!(wrong < 800, "{wrong} of 10,000 with {count} hashes");
        }
    }
}

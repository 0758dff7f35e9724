//! A cache of decoded objects, up to a number of bytes: a clock, divided into parts with a lock
//! each. The hand of the clock goes over the buckets of the table, so that an object is found by as
//! few lines of memory as can be.
//!
//! Invariant: what is held never weighs more than the budget.

use crate::sync::{Mutex, MutexGuard, PoisonError};
use hashbrown::HashTable;

/// Number of shards, each with a lock.
const SHARDS: usize = 16;
/// Bytes of a cached object besides its own: its place in the table.
const SLOT_BYTES: usize = 72;

/// A key of cached objects.
pub trait Key: Copy + Eq {
    /// A hash whose bits are all equally good.
    fn hash(self) -> u64;
}

/// A cached object; cheap to clone.
pub trait Weigh: Clone {
    /// Bytes of the object.
    fn weight(&self) -> usize;
}

#[derive(Debug)]
struct Slot<K, V> {
    at: K,
    object: V,
    weight: usize,
    was_used: bool,
}

#[derive(Debug)]
struct Shard<K, V> {
    table: HashTable<Slot<K, V>>,
    /// The next bucket to be considered for eviction.
    hand: usize,
    bytes: usize,
}

impl<K, V> Default for Shard<K, V> {
    fn default() -> Self {
        Self { table: HashTable::new(), hand: 0, bytes: 0 }
    }
}

/// Objects by their keys. See the [module](self).
#[derive(Debug)]
pub struct Cache<K, V> {
    shards: [Mutex<Shard<K, V>>; SHARDS],
    /// Most bytes of each shard.
    budget: usize,
}

impl<K: Key, V: Weigh> Cache<K, V> {
    /// Makes a cache that holds objects of at most `bytes` bytes together.
    pub fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), budget: bytes / SHARDS }
    }

    /// The shard of a hash, by bits that its table does not use.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        // The shard goes by other bits of the hash than the table within it.
        let shard = &self.shards[(hash >> 48) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a clone of the object of a key, if the cache holds it.
    pub fn get(&self, at: K) -> Option<V> {
        let hash = at.hash();
        let mut shard = self.shard(hash);
        let slot = shard.table.find_mut(hash, |slot| slot.at == at)?;
        // An object that was used survives the next round of the hand.
        slot.was_used = true;
        Some(slot.object.clone())
    }

    /// Adds an object, evicting others to make room. Does nothing if the key is present or the
    /// object is larger than a shard.
    pub fn insert(&self, at: K, object: V) {
        let hash = at.hash();

        let weight = SLOT_BYTES + object.weight();
        let mut shard = self.shard(hash);
        // An object above the budget of a shard would drive out everything else.
        if weight > self.budget || shard.table.find(hash, |slot| slot.at == at).is_some() {
            return;
        }

        // Ends: the object fits into an empty shard.
        while shard.bytes + weight > self.budget {
            shard.evict();
        }
        shard.bytes += weight;
        debug_assert!(shard.bytes <= self.budget, "a shard keeps to its budget");
        let slot = Slot { at, object, weight, was_used: false };
        shard.table.insert_unique(hash, slot, |slot| slot.at.hash());
    }

    /// Removes an object.
    pub fn remove(&self, at: K) {
        let hash = at.hash();
        let mut shard = self.shard(hash);
        if let Ok(found) = shard.table.find_entry(hash, |slot| slot.at == at) {
            let (slot, _) = found.remove();
            shard.bytes -= slot.weight;
        }
    }

    /// Removes all objects.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }

    /// Bytes of all cached objects.
    pub fn bytes(&self) -> usize {
        let bytes =
            |shard: &Mutex<Shard<K, V>>| shard.lock().unwrap_or_else(PoisonError::into_inner).bytes;
        self.shards.iter().map(bytes).sum()
    }
}

impl<K, V> Shard<K, V> {
    /// Evicts an object that was not used since the hand last passed. The shard must have an
    /// object.
    fn evict(&mut self) {
        debug_assert!(!self.table.is_empty(), "a shard over its budget has an object");
        // Ends: each round of the hand clears the marks that it passes.
        loop {
            let bucket = self.hand;
            self.hand = (bucket + 1) % self.table.num_buckets();
            match self.table.get_bucket_mut(bucket) {
                Some(slot) if slot.was_used => slot.was_used = false,
                Some(_) => {
                    if let Ok(found) = self.table.get_bucket_entry(bucket) {
                        let (slot, _) = found.remove();
                        self.bytes -= slot.weight;
                        return;
                    }
                }
                None => {}
            }
        }
    }
}

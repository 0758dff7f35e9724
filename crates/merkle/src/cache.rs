//! Decoded records and values in memory, up to a number of bytes: a clock, divided into parts with a lock each. The hand of
//! the clock goes over the buckets of the table, so that an object is found by as few lines of memory as can be.
//!
//! Invariant: what is held never weighs more than the budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::address::Address;
use crate::record::Record;

/// Parts with a lock each.
const SHARDS: usize = 16;
/// What an object costs besides its bytes: its place in the table.
const SLOT_BYTES: usize = 72;

/// What is cached of an address.
#[derive(Debug, Clone)]
pub(crate) enum Cached {
    Record(Arc<Record>),
    Value(Arc<[u8]>),
}

impl Cached {
    fn weight(&self) -> usize {
        SLOT_BYTES
            + match self {
                Self::Record(record) => record.weight(),
                Self::Value(value) => value.len(),
            }
    }
}

#[derive(Debug)]
struct Slot {
    at: Address,
    object: Cached,
    weight: usize,
    was_used: bool,
}

#[derive(Debug, Default)]
struct Shard {
    table: HashTable<Slot>,
    /// The bucket that is looked at next when something must go.
    hand: usize,
    bytes: usize,
}

/// Objects by their addresses. See the [module](self).
#[derive(Debug)]
pub(crate) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes of each shard at most.
    budget: usize,
}

/// Of addresses, which nobody chooses.
fn hash(at: Address) -> u64 {
    let wide = u128::from(at.to_u64() ^ 0x9E37_79B9_7F4A_7C15) * 0xA076_1D64_78BD_642F;
    (wide >> 64) as u64 ^ wide as u64
}

impl Cache {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), budget: bytes / SHARDS }
    }

    /// The shard of a hash: by bits that its table does not go by.
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(hash >> 48) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, at: Address) -> Option<Cached> {
        let hash = hash(at);
        let mut shard = self.shard(hash);
        let slot = shard.table.find_mut(hash, |slot| slot.at == at)?;
        slot.was_used = true;
        Some(slot.object.clone())
    }

    pub(crate) fn insert(&self, at: Address, object: Cached) {
        let (hash, weight) = (hash(at), object.weight());
        let mut shard = self.shard(hash);
        if weight > self.budget || shard.table.find(hash, |slot| slot.at == at).is_some() {
            return;
        }
        while shard.bytes + weight > self.budget {
            shard.evict();
        }
        shard.bytes += weight;
        let slot = Slot { at, object, weight, was_used: false };
        shard.table.insert_unique(hash, slot, |slot| self::hash(slot.at));
    }

    /// Forgets an object.
    pub(crate) fn remove(&self, at: Address) {
        let hash = hash(at);
        let mut shard = self.shard(hash);
        if let Ok(found) = shard.table.find_entry(hash, |slot| slot.at == at) {
            let (slot, _) = found.remove();
            shard.bytes -= slot.weight;
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = Shard::default();
        }
    }

    /// What is held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let bytes =
            |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).bytes;
        self.shards.iter().map(bytes).sum()
    }
}

impl Shard {
    /// Removes one object that was not used since the hand last passed. There is one.
    fn evict(&mut self) {
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

//! Decoded records and values in memory, up to a number of bytes: a clock, divided into parts with a lock each.
//!
//! Invariant: what is held never weighs more than the budget.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::address::Address;
use crate::quick::QuickMap;
use crate::record::Record;

/// Parts with a lock each.
const SHARDS: usize = 16;
/// What an object costs besides its bytes: its place in the clock and in the table.
const SLOT_BYTES: usize = 96;

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
    was_used: bool,
}

#[derive(Debug, Default)]
struct Shard {
    places: QuickMap<Address, usize>,
    slots: Vec<Slot>,
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

impl Cache {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { shards: Default::default(), budget: bytes / SHARDS }
    }

    fn shard(&self, at: Address) -> MutexGuard<'_, Shard> {
        let mixed = at.to_u64().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        self.shards[mixed as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, at: Address) -> Option<Cached> {
        let mut shard = self.shard(at);
        let slot = *shard.places.get(&at)?;
        let slot = &mut shard.slots[slot];
        slot.was_used = true;
        Some(slot.object.clone())
    }

    pub(crate) fn insert(&self, at: Address, object: Cached) {
        let weight = object.weight();
        let mut shard = self.shard(at);
        if weight > self.budget || shard.places.contains_key(&at) {
            return;
        }
        while shard.bytes + weight > self.budget {
            shard.evict();
        }
        shard.bytes += weight;
        let slot = shard.slots.len();
        shard.slots.push(Slot { at, object, was_used: false });
        shard.places.insert(at, slot);
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
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = &mut self.slots[self.hand];
            if !slot.was_used {
                break;
            }
            slot.was_used = false;
            self.hand += 1;
        }
        let slot = self.slots.swap_remove(self.hand);
        self.bytes -= slot.object.weight();
        self.places.remove(&slot.at);
        if let Some(moved) = self.slots.get(self.hand) {
            self.places.insert(moved.at, self.hand);
        }
    }
}

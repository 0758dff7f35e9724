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
    slots: Vec<Option<Slot>>,
    /// Slots without an object.
    free: Vec<usize>,
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
        let slot = shard.slots[slot].as_mut()?;
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
        let slot = Some(Slot { at, object, was_used: false });
        let number = match shard.free.pop() {
            Some(number) => {
                shard.slots[number] = slot;
                number
            }
            None => {
                shard.slots.push(slot);
                shard.slots.len() - 1
            }
        };
        shard.places.insert(at, number);
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
            let number = self.hand;
            self.hand = (number + 1) % self.slots.len();
            match &mut self.slots[number] {
                Some(slot) if slot.was_used => slot.was_used = false,
                Some(slot) => {
                    self.bytes -= slot.object.weight();
                    self.places.remove(&slot.at);
                    self.slots[number] = None;
                    self.free.push(number);
                    return;
                }
                None => {}
            }
        }
    }
}

//! The page cache, level by level: the nearer a page is to the root, the longer it stays.
//!
//! Every access to a page goes through the pages above it, so for uniform keys the order of levels
//! is the best order to keep pages in. When room is needed, a page of the lowest cached level goes:
//! one that was not used lately, by a clock in each level. That gives three tiers without any
//! setting:
//!
//! - The levels that fit as a whole stay (*top*).
//! - Of the next level, the recently used pages stay (*recent*).
//! - Pages below are held for one operation, unless all above fits (*leaves*).
//!
//! Cursors leave the cache alone.
//!
//! Invariant: a shard never holds more pages than the capacity, which can change at any time. Pages
//! are found by number *and* checksum, so a page whose number was reused is never found.
//!
//! Rejected: computing which level belongs to which tier (it changes as the tree grows).

use std::collections::HashMap;

use terrane_io::sync::atomic::{AtomicUsize, Ordering};
use terrane_io::sync::{Mutex, MutexGuard, PoisonError};

use crate::page::page::{PAGE_SIZE, Page, PageNo, PageRef, u32_at};

/// Number of shards, each with a lock.
const SHARDS: usize = 16;

/// Bytes of a cached page besides the page itself: counters, its place in the clock and in the
/// table of numbers.
const SLOT_OVERHEAD_BYTES: usize = 96;

/// Memory of a cached page, in bytes.
pub(crate) const CACHED_PAGE_BYTES: usize = PAGE_SIZE + SLOT_OVERHEAD_BYTES;

/// Most levels of a tree. Nodes of 300 children reach 2^32 pages in four levels; nodes of half as
/// many reach them in six.
pub(crate) const LEVELS_MAX: usize = 16;

#[derive(Debug)]
struct Slot {
    number: PageNo,
    page: Page,
    was_used: bool,
}

/// The cached pages of one level.
#[derive(Debug, Default)]
struct Clock {
    slots: Vec<Slot>,
    hand: usize,
}

#[derive(Debug, Default)]
struct Shard {
    places: HashMap<PageNo, (u8, u32)>,
    levels: [Clock; LEVELS_MAX],
}

/// Cached pages of one tree. See the [module](self).
#[derive(Debug)]
pub(crate) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// Most pages of each shard.
    capacity: AtomicUsize,
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// An empty cache of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let cache = Self { shards: Default::default(), capacity: AtomicUsize::new(0) };
        cache.set_bytes(bytes);
        cache
    }

    /// Changes the capacity, and evicts pages above it.
    pub(crate) fn set_bytes(&self, bytes: usize) {
        let capacity = bytes / CACHED_PAGE_BYTES / SHARDS;
        let before = self.capacity.swap(capacity, Ordering::Relaxed);
        if capacity < before {
            for shard in &self.shards {
                lock(shard).shrink(capacity);
            }
        }
    }

    fn shard(&self, number: PageNo) -> MutexGuard<'_, Shard> {
        // Neighbours go to different shards.
        lock(&self.shards[number as usize % SHARDS])
    }

    /// The page that a reference means, if it is cached.
    pub(crate) fn get(&self, page: PageRef) -> Option<Page> {
        let mut shard = self.shard(page.number);
        let (level, at) = *shard.places.get(&page.number)?;
        let slot = &mut shard.levels[usize::from(level)].slots[at as usize];
        // Another page may have the number by now: the checksum tells.
        let is_meant = u32_at(slot.page.bytes(), 0) == page.crc;
        slot.was_used |= is_meant;
        is_meant.then(|| slot.page.clone())
    }

    /// Caches a sealed page, which counts as not used yet.
    pub(crate) fn put(&self, number: PageNo, page: Page) {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let mut shard = self.shard(number);
        // A number has one page: an older one would be found in its place.
        shard.remove(number);

        let level = page.level();
        if capacity == 0 || !shard.make_room(capacity - 1, level) {
            return;
        }

        let clock = &mut shard.levels[usize::from(level)];
        let at = clock.slots.len() as u32;
        clock.slots.push(Slot { number, page, was_used: false });
        shard.places.insert(number, (level, at));
        debug_assert!(shard.places.len() <= capacity, "a shard keeps to its capacity");
    }

    /// Removes a page.
    pub(crate) fn remove(&self, number: PageNo) {
        self.shard(number).remove(number);
    }

    /// Number of cached pages of each level.
    pub(crate) fn pages_by_level(&self) -> [usize; LEVELS_MAX] {
        let mut pages = [0; LEVELS_MAX];
        for shard in &self.shards {
            let shard = lock(shard);
            for (sum, clock) in pages.iter_mut().zip(&shard.levels) {
                *sum += clock.slots.len();
            }
        }
        pages
    }
}

impl Shard {
    /// Evicts pages until no more than `capacity` are left.
    fn shrink(&mut self, capacity: usize) {
        while self.places.len() > capacity {
            self.evict(LEVELS_MAX);
        }
    }

    /// Makes room for a page of a level, at the expense of its own level and of lower ones. Returns
    /// false if only higher levels are cached.
    fn make_room(&mut self, capacity: usize, level: u8) -> bool {
        while self.places.len() > capacity {
            if !self.evict(usize::from(level) + 1) {
                return false;
            }
        }
        true
    }

    /// Evicts a page of the lowest level below `levels` that has any.
    fn evict(&mut self, levels: usize) -> bool {
        let Some(clock) = self.levels[..levels].iter_mut().find(|clock| !clock.slots.is_empty())
        else {
            return false;
        };

        // Ends after two rounds at most, as the first round clears every mark.
        let number = loop {
            clock.hand = if clock.hand + 1 < clock.slots.len() { clock.hand + 1 } else { 0 };
            let slot = &mut clock.slots[clock.hand];
            if !std::mem::take(&mut slot.was_used) {
                break slot.number;
            }
        };

        self.remove(number);
        true
    }

    fn remove(&mut self, number: PageNo) {
        let Some((level, at)) = self.places.remove(&number) else { return };
        let slots = &mut self.levels[usize::from(level)].slots;
        debug_assert_eq!(
            slots[at as usize].number, number,
            "the table knows the place of the page"
        );
        slots.swap_remove(at as usize);
        // The last slot has moved into the place of the removed one.
        if let Some(moved) = slots.get(at as usize) {
            self.places.insert(moved.number, (level, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::page::{Header, Kind, seal};

    fn page(number: PageNo, level: u8) -> (PageRef, Page) {
        let mut bytes = [0; PAGE_SIZE];
        let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
        let header = Header { kind, level, count: 0, tree: 1, generation: 1, number, step: 0 };
        let crc = seal(&mut bytes, &header);
        (PageRef { number, crc }, Page::new(&bytes))
    }

    fn put(cache: &Cache, number: PageNo, level: u8) -> PageRef {
        let (page_ref, page) = page(number, level);
        cache.put(number, page);
        page_ref
    }

    #[test]
    fn pages_go_from_the_lowest_level_up() {
        let cache = Cache::new(SHARDS * 4 * CACHED_PAGE_BYTES);

        // Numbers of one shard.
        let number = |at: u32| at * SHARDS as u32;
        let root = put(&cache, number(0), 2);
        let nodes: Vec<_> = (1..4).map(|at| put(&cache, number(at), 1)).collect();
        let leaf = put(&cache, number(9), 0);

        // Full of nodes: no leaf comes in.
        assert!(cache.get(leaf).is_none());
        assert!(cache.get(nodes[0]).is_some() && cache.get(nodes[2]).is_some());
        let next = put(&cache, number(5), 1);
        assert!(cache.get(nodes[1]).is_none() && cache.get(next).is_some());

        for at in 10..30 {
            put(&cache, number(at), 1);
            assert!(cache.get(root).is_some());
        }

        assert_eq!(cache.pages_by_level()[..3], [0, 3, 1]);
        cache.set_bytes(SHARDS * CACHED_PAGE_BYTES);
        assert_eq!(cache.pages_by_level()[..3], [0, 0, 1]);
        cache.set_bytes(0);
        assert!(cache.get(root).is_none());
    }

    #[test]
    fn a_page_whose_number_was_given_away_is_not_found() {
        let cache = Cache::new(1 << 20);
        let old = put(&cache, 7, 0);
        assert!(cache.get(PageRef { crc: old.crc ^ 1, ..old }).is_none());
        let new = put(&cache, 7, 1);
        assert!(cache.get(old).is_none() && cache.get(new).is_some());
        cache.remove(7);
        assert!(cache.get(new).is_none());
    }
}

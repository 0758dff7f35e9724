//! Pages that lookups have read, kept in memory for later ones: what is left of the memory budget
//! of a table, or of a session.
//!
//! A table shares its cache with its forks, as it shares its runs with them. Each of them says
//! how much of its own budget is left, and the cache is as large as the least of these; so each
//! stays within its budget. Tables without a budget of their own share one cache in a session that
//! has a budget, and the session says how large that cache may be.
//!
//! Only pages of runs come in that are read past the system's page cache: those of lookups, and
//! the first one of each run that a cursor reads. Merges, and cursors that go on, read everything
//! once. A page comes in when its checksum has been found right. Lookups search it in place,
//! without a copy and without looking at the checksum again.
//!
//! **Which pages stay** is the business of a clock: a page is marked each time that it is found, up
//! to three times; the hand takes a mark off each page that it passes, and the first one without a
//! mark makes room. A new page has none, so what is read once drives out nothing that is read again
//! and again; and in a full cache only one in [`ADMITTED_ONE_IN`] gets in at all, since copying
//! each page that is read costs more than most of them will ever save. The pages of runs that no
//! table has any more go when the table that had them is flushed.
//!
//! **Layout.** The cache is cut into shards by a hash of run and page; each has a lock, which is
//! held while a page is searched. A shard has its pages in chunks, a table from keys to slots, and
//! a key and a mark for each slot: with the page, [`SLOT_BYTES`] for each of them. Chunks are
//! allocated as pages come in, and freed as soon as the cache gets a smaller limit.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex};

use crate::block::page::PAGE_SIZE;
use crate::files::file_set::lock;

/// Pages that are allocated together.
const CHUNK_PAGES: usize = 16;

/// Memory of a page in the cache: beside the page itself a key, a mark, and up to 12 bytes in the
/// table, half as much again while that grows.
const SLOT_BYTES: u64 = PAGE_SIZE as u64 + 32;

/// Memory of a chunk.
const CHUNK_BYTES: u64 = CHUNK_PAGES as u64 * SLOT_BYTES;

/// Most shards.
const SHARDS_MAX: u64 = 64;

/// Bytes of a budget for which there is one more shard: small caches are not cut up.
const SHARD_BYTES_MIN: u64 = 2 << 20;

/// A full cache takes in one in this many new pages.
const ADMITTED_ONE_IN: u32 = 8;

/// Marks that a page can have.
const MARKS_MAX: u8 = 3;

/// 2^64 over the golden ratio, odd.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Run and page in one number; `None` for a run that is not cached, as its number is too large.
fn key_of(run: u64, page: u32) -> Option<u64> {
    u32::try_from(run).ok().map(|run| u64::from(run) << 32 | u64::from(page))
}

fn hash_of(key: u64) -> u64 {
    let product = u128::from(key ^ MULTIPLIER) * u128::from(MULTIPLIER);
    (product >> 64) as u64 ^ product as u64
}

#[derive(Debug, Default)]
struct Shard {
    chunks: Vec<Box<[u8]>>,
    /// Key of each slot that has been used.
    keys: Vec<u64>,
    marks: Vec<u8>,
    /// Slots by the hashes of their keys.
    slots: HashTable<u32>,
    /// Slots whose pages have gone.
    free: Vec<u32>,
    hand: usize,
    /// New pages since the last one that got in.
    turned_away: u32,
    chunks_max: usize,
}

impl Shard {
    fn find(&self, key: u64) -> Option<usize> {
        let slot = self.slots.find(hash_of(key), |&slot| self.keys[slot as usize] == key)?;
        Some(*slot as usize)
    }

    fn page(&self, slot: usize) -> &[u8] {
        let start = slot % CHUNK_PAGES * PAGE_SIZE;
        &self.chunks[slot / CHUNK_PAGES][start..start + PAGE_SIZE]
    }

    /// Inserts a page, unless it is there.
    fn insert(&mut self, key: u64, page: &[u8]) {
        if self.chunks_max == 0 {
            return;
        }

        // Copying each page that is read costs more than most of them will save.
        if self.free.is_empty() && self.keys.len() == self.chunks_max * CHUNK_PAGES {
            self.turned_away += 1;
            if self.turned_away < ADMITTED_ONE_IN {
                return;
            }
            self.turned_away = 0;
        }

        if self.find(key).is_some() {
            return;
        }

        let slot = self.slot();
        debug_assert!(slot < self.keys.len() && slot / CHUNK_PAGES < self.chunks.len());
        (self.keys[slot], self.marks[slot]) = (key, 0);
        debug_assert_eq!(page.len(), PAGE_SIZE);
        let start = slot % CHUNK_PAGES * PAGE_SIZE;
        self.chunks[slot / CHUNK_PAGES][start..start + PAGE_SIZE].copy_from_slice(page);
        let keys = &self.keys;
        let hash = |slot: &u32| hash_of(keys[*slot as usize]);

        self.slots.insert_unique(hash_of(key), slot as u32, hash);
        debug_assert_eq!(self.slots.len() + self.free.len(), self.keys.len());
    }

    /// Returns a free slot, evicting a page if there is none.
    fn slot(&mut self) -> usize {
        if let Some(slot) = self.free.pop() {
            return slot as usize;
        }

        debug_assert_eq!(self.marks.len(), self.keys.len());
        let slot = self.keys.len();
        if slot < self.chunks_max * CHUNK_PAGES {
            // Chunks come with the pages, so a cache that is little used takes little memory.
            if slot == self.chunks.len() * CHUNK_PAGES {
                self.chunks.push(vec![0; CHUNK_PAGES * PAGE_SIZE].into_boxed_slice());
                self.keys.reserve_exact(CHUNK_PAGES);
                self.marks.reserve_exact(CHUNK_PAGES);
            }
            self.keys.push(0);
            self.marks.push(0);
            return slot;
        }

        // Ends: each pass of the hand takes a mark off, and a page has at most `MARKS_MAX`.
        loop {
            let slot = self.hand;
            self.hand = (slot + 1) % self.keys.len();
            if self.marks[slot] == 0 {
                self.forget(slot);
                return slot;
            }
            self.marks[slot] -= 1;
        }
    }

    /// Removes a slot that has a page from the table.
    fn forget(&mut self, slot: usize) {
        let found = self.slots.find_entry(hash_of(self.keys[slot]), |&at| at as usize == slot);
        debug_assert!(found.is_ok(), "a slot in use is in the table");
        if let Ok(entry) = found {
            entry.remove();
        }
    }

    /// Drops the pages of some runs.
    fn forget_runs(&mut self, gone: &[u64]) {
        let keys = &self.keys;
        let free = &mut self.free;
        self.slots.retain(|&mut slot| {
            // The number of the run is the upper half of the key.
            let is_gone = gone.contains(&(keys[slot as usize] >> 32));
            if is_gone {
                free.push(slot);
            }
            !is_gone
        });
        debug_assert_eq!(self.slots.len() + self.free.len(), self.keys.len());
    }

    /// Sets how many chunks there may be, and frees those that are too many.
    fn set_chunks_max(&mut self, chunks_max: usize) {
        self.chunks_max = chunks_max;
        let slots_max = chunks_max * CHUNK_PAGES;
        if self.keys.len() <= slots_max {
            return;
        }

        // Slots behind the limit go with their chunks.
        self.slots.retain(|&mut slot| (slot as usize) < slots_max);
        self.free.retain(|&slot| (slot as usize) < slots_max);
        self.chunks.truncate(chunks_max);
        self.chunks.shrink_to_fit();
        self.keys.truncate(slots_max);
        self.keys.shrink_to_fit();
        self.marks.truncate(slots_max);
        self.marks.shrink_to_fit();
        let keys = &self.keys;
        self.slots.shrink_to_fit(|&slot| hash_of(keys[slot as usize]));
        self.free.shrink_to_fit();

        // The hand may stand behind the new end.
        self.hand = 0;
        debug_assert!(self.chunks.len() <= chunks_max);
        debug_assert_eq!(self.marks.len(), self.keys.len());
        debug_assert_eq!(
            self.slots.len() + self.free.len(),
            self.keys.len(),
            "a slot is used or free"
        );
    }
}

/// Share of one table: the bytes that it leaves for the cache, and its runs.
#[derive(Debug, Clone, Default)]
struct Member {
    /// Bytes of its budget that nothing else needs.
    bytes_max: u64,
    /// Numbers of its runs, sorted.
    runs: Vec<u64>,
}

#[derive(Debug, Default)]
struct Members {
    by_number: BTreeMap<u64, Member>,
    next: u64,
}

/// A cache of pages.
#[derive(Debug)]
pub(crate) struct PageCache {
    shards: Vec<Mutex<Shard>>,
    members: Mutex<Members>,
    /// Chunks that each shard may have; a look at it spares a small table all the rest.
    chunks_max: AtomicU64,
    /// Chunks of all shards.
    chunks: AtomicU64,
}

impl PageCache {
    fn shard(&self, key: u64) -> &Mutex<Shard> {
        // The table of a shard goes by other bits.
        let at = hash_of(key).rotate_left(20) as usize % self.shards.len();
        &self.shards[at]
    }

    fn is_off(&self) -> bool {
        self.chunks_max.load(Ordering::Relaxed) == 0
    }

    /// Calls `look` with a page, if the cache has it.
    pub(crate) fn look<T>(&self, run: u64, page: u32, look: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if self.is_off() {
            return None;
        }
        let key = key_of(run, page)?;
        let mut shard = lock(self.shard(key));
        let slot = shard.find(key)?;
        // More marks would keep a page long after its last use.
        shard.marks[slot] = (shard.marks[slot] + 1).min(MARKS_MAX);
        debug_assert!(shard.keys[slot] == key, "the slot is that of the page");
        Some(look(shard.page(slot)))
    }

    /// Whether the cache has a page.
    pub(crate) fn has(&self, run: u64, page: u32) -> bool {
        let key = key_of(run, page).filter(|_| !self.is_off());
        key.is_some_and(|key| lock(self.shard(key)).find(key).is_some())
    }

    /// Keeps a page that has been read, and found to be whole.
    pub(crate) fn insert(&self, run: u64, page: u32, bytes: &[u8]) {
        if !self.is_off()
            && let Some(key) = key_of(run, page)
        {
            let mut shard = lock(self.shard(key));
            let before = shard.chunks.len();
            shard.insert(key, bytes);
            self.count_chunks(before, &shard);
        }
    }

    /// Notes how many chunks a shard has now.
    fn count_chunks(&self, before: usize, shard: &Shard) {
        let more = (shard.chunks.len() as u64).wrapping_sub(before as u64);
        if more != 0 {
            // Wraps if there are fewer, and so subtracts.
            self.chunks.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Memory of the pages.
    fn bytes(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed) * CHUNK_BYTES
    }

    /// Drops the pages of runs that no member has any more, and more pages if the cache is too
    /// large.
    fn apply_limits(&self, members: &Members, gone: &[u64]) {
        let has = |run: &u64| members.by_number.values().any(|m| m.runs.binary_search(run).is_ok());
        let gone: Vec<u64> = gone.iter().copied().filter(|run| !has(run)).collect();
        // The cache is as large as the least that a member leaves for it.
        let bytes_max = members.by_number.values().map(|member| member.bytes_max).min();
        let count = self.shards.len() as u64;
        let fixed = count * size_of::<Mutex<Shard>>() as u64;
        let chunks_max = bytes_max.unwrap_or(0).saturating_sub(fixed) / count / CHUNK_BYTES;
        let before = self.chunks_max.swap(chunks_max, Ordering::Relaxed);
        if gone.is_empty() && before == chunks_max {
            // Limits are applied with the members locked, so the shards have this one.
            return;
        }

        for shard in &self.shards {
            let mut shard = lock(shard);
            let before = shard.chunks.len();
            if !gone.is_empty() {
                shard.forget_runs(&gone);
            }
            shard.set_chunks_max(chunks_max as usize);
            self.count_chunks(before, &shard);
        }
    }
}

/// Membership of a table in a cache.
#[derive(Debug)]
pub(crate) struct CacheShare {
    cache: Arc<PageCache>,
    member: u64,
}

impl CacheShare {
    /// Returns a share in a new cache, for a table with this budget. The cache holds nothing before
    /// it gets a limit.
    pub(crate) fn new(budget: u64) -> Self {
        let count = (budget / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let cache = PageCache {
            shards: (0..count).map(|_| Mutex::default()).collect(),
            members: Mutex::default(),
            chunks_max: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
        };
        Self::join(&Arc::new(cache), Member::default())
    }

    fn join(cache: &Arc<PageCache>, member: Member) -> Self {
        let mut members = lock(&cache.members);
        let number = members.next;
        members.next += 1;
        let earlier = members.by_number.insert(number, member);
        debug_assert!(earlier.is_none(), "each member has a number of its own");
        Self { cache: Arc::clone(cache), member: number }
    }

    /// A part for a fork, which has what the table has.
    pub(crate) fn share(&self) -> Self {
        let member = lock(&self.cache.members).by_number.get(&self.member).cloned();
        Self::join(&self.cache, member.unwrap_or_default())
    }

    /// A share for a table that leaves the size of the cache to another member.
    pub(crate) fn share_unlimited(&self) -> Self {
        Self::join(&self.cache, Member { bytes_max: u64::MAX, runs: Vec::new() })
    }

    pub(crate) fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Memory of the cache.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Says how much of the table's budget is left, and what its runs are. When this returns the
    /// cache holds no more than that.
    ///
    /// Cost: no I/O; a look at each page if the table has lost a run.
    pub(crate) fn set(&self, bytes_max: u64, mut runs: Vec<u64>) {
        runs.sort_unstable();
        let mut members = lock(&self.cache.members);
        let before = members.by_number.insert(self.member, Member { bytes_max, runs });
        debug_assert!(before.is_some(), "a share is a member");
        self.cache.apply_limits(&members, &before.unwrap_or_default().runs);
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        let mut members = lock(&self.cache.members);
        let before = members.by_number.remove(&self.member);
        debug_assert!(before.is_some(), "a share is a member once");
        // The last member takes the cache with it.
        if !members.by_number.is_empty() {
            self.cache.apply_limits(&members, &before.unwrap_or_default().runs);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is found is what was put in, within the bytes given at all times; what is used
    //! stays. Method: pages that tell which one they are, and random calls on a few shards.

    use super::*;

    fn page_of(run: u64, page: u32) -> Vec<u8> {
        let hash = hash_of(run << 32 | u64::from(page));
        hash.to_le_bytes().repeat(PAGE_SIZE / 8)
    }

    fn is_here(cache: &PageCache, run: u64, page: u32) -> bool {
        let found = cache.look(run, page, |bytes| assert!(bytes == page_of(run, page)));
        found.is_some()
    }

    /// Reads a page through the cache; whether it was there.
    fn read(cache: &PageCache, run: u64, page: u32) -> bool {
        let found = is_here(cache, run, page);
        if !found {
            cache.insert(run, page, &page_of(run, page));
        }
        found
    }

    fn read_all(cache: &PageCache, run: u64, pages: std::ops::Range<u32>) {
        for page in pages {
            read(cache, run, page);
        }
    }

    /// A cache with room for about this many pages in this many shards.
    fn cache_of(pages: u64, shards: u64) -> CacheShare {
        let share = CacheShare::new(shards * SHARD_BYTES_MIN);
        assert_eq!(share.cache.shards.len() as u64, shards);
        share.set(pages * SLOT_BYTES + shards * 1_000, vec![1, 2]);
        share
    }

    fn draws(seed: u64) -> impl Iterator<Item = u64> {
        (0..).map(move |n| hash_of(seed << 32 | n))
    }

    #[test]
    fn what_is_found_is_what_was_read_and_never_takes_more_than_is_given() {
        let share = cache_of(400, 3);
        let mut bytes_max = u64::MAX;
        for (at, draw) in draws(1).take(30_000).enumerate() {
            read(share.cache(), 1 + draw % 2, (draw >> 8) as u32 % 700);
            if at % 500 == 499 {
                bytes_max = draw % (500 * SLOT_BYTES);
                share.set(bytes_max, vec![1, 2]);
            }
            assert!(share.bytes() <= bytes_max, "{} of {bytes_max}", share.bytes());
        }

        share.set(0, vec![1, 2]);
        assert_eq!(share.bytes(), 0);
        read(share.cache(), 1, 1);
        assert!(!is_here(share.cache(), 1, 1));
    }

    #[test]
    fn of_pages_read_at_random_as_many_are_found_as_fit() {
        let share = cache_of(1_600, 2);
        let count = |draws: &mut dyn Iterator<Item = u64>| {
            draws.filter(|draw| read(share.cache(), 1, *draw as u32 % 10_000)).count()
        };
        count(&mut draws(2).take(20_000));
        let found = count(&mut draws(3).take(50_000));
        assert!((7_000..8_500).contains(&found), "{found} of 50,000");
    }

    #[test]
    fn pages_that_are_read_again_outlive_a_scan() {
        let share = cache_of(800, 1);
        for _ in 0..3 {
            read_all(share.cache(), 1, 0..400);
        }
        for page in 0..1_000 {
            read(share.cache(), 2, page);
        }
        let left = (0..400).filter(|&page| is_here(share.cache(), 1, page)).count();
        assert!(left >= 390, "{left}");
    }

    #[test]
    fn pages_of_runs_that_no_table_has_make_room() {
        let share = cache_of(800, 1);
        let duplicate = share.share();
        read_all(share.cache(), 1, 0..100);
        read_all(share.cache(), 2, 0..100);
        share.set(800 * SLOT_BYTES, vec![2, 3]);
        assert!(is_here(share.cache(), 1, 7), "the duplicate has it");
        drop(duplicate);
        assert!(!is_here(share.cache(), 1, 7) && is_here(share.cache(), 2, 7));
        let bytes = share.bytes();
        read_all(share.cache(), 3, 0..100);
        assert_eq!(share.bytes(), bytes, "in the same slots");

        assert!((0..100).all(|page| is_here(share.cache(), 3, page)));
    }

    #[test]
    fn a_cache_is_as_large_as_the_least_of_what_its_tables_leave() {
        let share = cache_of(800, 1);
        let duplicate = share.share();
        read_all(share.cache(), 1, 0..800);
        assert!(share.bytes() > 700 * SLOT_BYTES);
        duplicate.set(100 * SLOT_BYTES, vec![1]);
        assert!(share.bytes() <= 100 * SLOT_BYTES && share.bytes() > 50 * SLOT_BYTES);
        drop(duplicate);
        read_all(share.cache(), 1, 0..800);
        assert!(share.bytes() > 700 * SLOT_BYTES);

        // A number that does not fit is not mixed up with one that does.
        share.cache.insert(1 << 32 | 1, 799, &page_of(5, 5));
        assert!(share.cache.look(1 << 32 | 1, 799, |_| ()).is_none());
        assert!(is_here(share.cache(), 1, 799));
    }

    #[test]
    fn a_slot_takes_no_more_than_is_said() {
        let share = CacheShare::new(SHARD_BYTES_MIN);
        share.set(20_000 * SLOT_BYTES, Vec::new());
        for page in 0..20_000 {
            read(share.cache(), 1, page);
            let shard = lock(&share.cache.shards[0]);
            let beside = shard.keys.capacity() * 8
                + shard.marks.capacity()
                + shard.slots.allocation_size()
                + shard.chunks.capacity() * size_of::<Box<[u8]>>();
            let slots = shard.chunks.len() * CHUNK_PAGES;
            assert!(beside <= slots * 32 + 256, "{beside} for {slots} slots");
        }
    }
}

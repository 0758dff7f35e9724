//! Handles: the most recently used files of chunks, up to a bound. A closed file is opened again on
//! demand; a caller that holds a chunk keeps its file open.
//!
//! Eviction is a clock: the hand clears the use flag of each file that it passes, and closes the
//! first file without one.
//!
//! Invariant: after a file was replaced or removed, no caller gets the old file.
//!
//! Rejected: a file for each chunk that stays open, since descriptors and maps of compacted chunks
//! would grow with the store.

use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, PoisonError, RwLock};

use crate::base::error::Result;
use crate::base::fast_map::FastMap;
use crate::pack::chunk::Chunk;

/// Key of a file: the number of its chunk; `None` for the chunk itself, or its part in a volume.
pub(crate) type FileKey = (u32, Option<(u16, u32)>);

#[derive(Debug)]
struct Slot {
    chunk: Arc<Chunk>,
    /// Use since the hand last passed.
    is_used: AtomicBool,
}

#[derive(Debug, Default)]
struct OpenSet {
    slots: FastMap<FileKey, Slot>,
    /// Keys of all slots, in the order of the hand.
    ring: Vec<FileKey>,
    hand: usize,
    /// Number of replacements and removals.
    changes: u64,
}

/// Bounded set of open files. See the [module](self).
#[derive(Debug)]
pub(crate) struct ChunkHandles {
    open: RwLock<OpenSet>,
    files_max: usize,
}

impl ChunkHandles {
    /// Creates a set of at most `files_max` open files, at least one.
    pub(crate) fn new(files_max: usize) -> Self {
        Self { open: RwLock::default(), files_max: files_max.max(1) }
    }

    /// Returns the chunk of a key, and calls `open` if its file is closed.
    pub(crate) fn get(&self, key: FileKey, open: impl Fn() -> Result<Chunk>) -> Result<Arc<Chunk>> {
        loop {
            let changes = {
                let files = self.open.read().unwrap_or_else(PoisonError::into_inner);
                if let Some(slot) = files.slots.get(&key) {
                    slot.is_used.store(true, Ordering::Relaxed);
                    return Ok(Arc::clone(&slot.chunk));
                }
                files.changes
            };

            // No lock is held during the open, so readers of other chunks do not wait for the disk.
            let chunk = Arc::new(open()?);
            let mut files = self.open.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(slot) = files.slots.get(&key) {
                return Ok(Arc::clone(&slot.chunk));
            }

            // If another thread replaced the file meanwhile, the opened file may be the old one:
            // try again.
            if files.changes == changes {
                files.insert(key, Arc::clone(&chunk), self.files_max);
                return Ok(chunk);
            }
        }
    }

    /// Returns the chunk of a key if its file is open.
    pub(crate) fn find(&self, key: FileKey) -> Option<Arc<Chunk>> {
        let files = self.open.read().unwrap_or_else(PoisonError::into_inner);
        files.slots.get(&key).map(|slot| Arc::clone(&slot.chunk))
    }

    /// Replaces the open file of a key. A closed file is opened on demand.
    pub(crate) fn replace(&self, key: FileKey, chunk: Arc<Chunk>) {
        let mut files = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if files.remove(&key) {
            files.insert(key, chunk, self.files_max);
        }
    }

    /// Sets the file of a key.
    pub(crate) fn put(&self, key: FileKey, chunk: Arc<Chunk>) {
        let mut files = self.open.write().unwrap_or_else(PoisonError::into_inner);
        files.remove(&key);
        files.insert(key, chunk, self.files_max);
    }

    pub(crate) fn remove(&self, key: FileKey) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    pub(crate) fn clear(&self) {
        // The count survives, so that opens that began before are not kept.
        let mut files = self.open.write().unwrap_or_else(PoisonError::into_inner);
        *files = OpenSet { changes: files.changes + 1, ..OpenSet::default() };
    }
}

impl OpenSet {
    fn insert(&mut self, key: FileKey, chunk: Arc<Chunk>, files_max: usize) {
        debug_assert!(files_max > 0, "at least one file may be open");
        debug_assert!(!self.slots.contains_key(&key), "a file is put in once");
        let slot = Slot { chunk, is_used: AtomicBool::new(false) };
        if self.ring.len() < files_max {
            self.ring.push(key);
        } else {
            // At most two rounds: the first round clears all use flags.
            while self.ring.get(self.hand).is_some_and(|key| self.take_use(key)) {
                self.hand = (self.hand + 1) % self.ring.len();
            }
            if let Some(old) = self.ring.get_mut(self.hand) {
                self.slots.remove(old);
                *old = key;
            }
            self.hand = (self.hand + 1) % self.ring.len();
        }

        self.slots.insert(key, slot);
        debug_assert_eq!(self.ring.len(), self.slots.len(), "the clock has each open file once");
        debug_assert!(self.ring.len() <= files_max, "the bound of open files");
        debug_assert!(self.hand < self.ring.len(), "the hand points at a file");
    }

    fn take_use(&self, key: &FileKey) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.is_used.swap(false, Ordering::Relaxed))
    }

    /// Removes a file; returns whether it was open.
    fn remove(&mut self, key: &FileKey) -> bool {
        // Also if the file was closed: a concurrent open may have read the old file.
        self.changes += 1;
        let was_open = self.slots.remove(key).is_some();
        if was_open {
            self.ring.retain(|other| other != key);
            self.hand = self.hand.min(self.ring.len().saturating_sub(1));
        }
        debug_assert_eq!(self.ring.len(), self.slots.len(), "the clock has each open file once");
        debug_assert!(
            self.ring.is_empty() || self.hand < self.ring.len(),
            "the hand points at a file"
        );
        was_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::chunk::{CHUNK_VERSION, ChunkHead};
    use std::cell::Cell;
    use std::path::Path;
    use terrane_io::MemoryDisk;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    fn chunk(number: u32) -> Result<Chunk> {
        let version = CHUNK_VERSION;
        let head = ChunkHead { version, number, store: 1, before: 0, chain: 0, map: None };
        Chunk::create(&*MemoryDisk::new(), Path::new(""), head)
    }

    #[test]
    fn what_is_asked_for_stays_open_within_the_bound() {
        let files = ChunkHandles::new(8);
        let opened = Cell::new(0);

        let get = |number: u32| {
            let open = || {
                opened.set(opened.get() + 1);
                chunk(number)
            };
            assert_eq!(files.get((number, None), open).unwrap().head.number, number);
        };

        for number in 0..100 {
            get(number);
            get(7);
        }

        assert_eq!(opened.get(), 100, "chunk 7 was used all the time");

        // A lookup or a replacement does not open a closed file.
        assert!(files.find((7, None)).is_some() && files.find((1, None)).is_none());
        let new = Arc::new(chunk(7).unwrap());
        files.replace((7, None), Arc::clone(&new));
        files.replace((1, None), Arc::new(chunk(1).unwrap()));
        assert!(files.find((7, None)).is_some_and(|chunk| Arc::ptr_eq(&chunk, &new)));
        assert!(files.find((1, None)).is_none());

        for_each_seed("what_is_asked_for_stays_open_within_the_bound", 20, |rng, _| {
            for _ in 0..200 {
                let number = rng.below(20) as u32;
                match rng.below(10) {
                    0 => files.remove((number, None)),
                    1 => files.put((number, None), Arc::new(chunk(number).unwrap())),
                    _ => get(number),
                }
                let open = files.open.read().unwrap();
                assert!(open.ring.len() <= 8 && open.ring.len() == open.slots.len());
                assert!(open.ring.iter().all(|key| open.slots.contains_key(key)));
            }
        });

        files.clear();
        let before = opened.get();
        get(7);

        assert_eq!(opened.get(), before + 1);
    }

    /// A chunk that is replaced while its old file is being opened.
    #[test]
    fn a_file_that_was_replaced_is_never_given() {
        let files = ChunkHandles::new(2);
        let new = Arc::new(chunk(3).unwrap());
        let times = Cell::new(0);

        let open = || {
            times.set(times.get() + 1);
            if times.get() == 1 {
                files.put((3, None), Arc::clone(&new));
                // And it is closed again, so that nothing is found there.
                files.put((4, None), Arc::new(chunk(4)?));
                files.put((5, None), Arc::new(chunk(5)?));
            }
            chunk(3)
        };

        files.get((3, None), open).unwrap();
        assert_eq!(times.get(), 2, "the first file is not kept");
    }
}

//! Page buffers that wait for the next batch of lookups.
//!
//! They lie in shards, and a thread uses one shard all its life. With one list for all threads the
//! first batch took every buffer, batches beside it allocated theirs, and the bytes of a buffer
//! moved between the caches of the processor's cores.
//!
//! Invariant: a shard has no more than [`SHARD_PAGES_MAX`] buffers, each of one page.

use terrane_io::AlignedBuf;
use terrane_io::sync::Mutex;

use crate::block::page::PAGE_SIZE;
use crate::files::file_set::lock;

/// Shards; threads beyond that share them. A session keeps up to 8 MiB of buffers if as many
/// threads look up with deep queues.
const SHARDS: usize = 8;

/// Buffers of a shard; 1 MiB. A batch uses no more than its queue is deep, 128 by default; a deeper
/// queue than this allocates the rest for each batch.
pub(crate) const SHARD_PAGES_MAX: usize = 256;

/// Page buffers that no lookup uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct SparePages {
    shards: [Shard; SHARDS],
}

/// Buffers of some threads. Apart by two lines of memory, which processors fetch together: a lock
/// must not slow down its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Vec<AlignedBuf>>);

/// The number of this thread among those of the process that have looked up.
fn thread_number() -> usize {
    // Beyond the schedules that tests explore.
    use std::sync::atomic::{AtomicUsize, Ordering};

    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending uses any.
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

impl SparePages {
    fn shard(&self, thread: usize) -> &Mutex<Vec<AlignedBuf>> {
        &self.shards[thread % SHARDS].0
    }

    /// Takes the buffers that are there for this thread, perhaps none.
    pub(crate) fn take(&self) -> Vec<AlignedBuf> {
        self.take_of(thread_number())
    }

    fn take_of(&self, thread: usize) -> Vec<AlignedBuf> {
        std::mem::take(&mut *lock(self.shard(thread)))
    }

    /// Puts buffers back, of which those are dropped that are too many.
    pub(crate) fn put(&self, buffers: Vec<AlignedBuf>) {
        self.put_of(thread_number(), buffers);
    }

    fn put_of(&self, thread: usize, mut buffers: Vec<AlignedBuf>) {
        debug_assert!(buffers.iter().all(|buffer| buffer.len() == PAGE_SIZE), "pages");
        let mut shard = lock(self.shard(thread));
        // Usually no other thread of this shard has put buffers back in the meantime.
        if shard.is_empty() {
            std::mem::swap(&mut *shard, &mut buffers);
        } else {
            shard.append(&mut buffers);
        }
        shard.truncate(SHARD_PAGES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize) -> Vec<AlignedBuf> {
        (0..count).map(|_| AlignedBuf::zeroed(PAGE_SIZE)).collect()
    }

    #[test]
    fn a_thread_gets_back_what_it_has_put_and_a_shard_is_bounded() {
        let spare = SparePages::default();
        assert!(spare.take().is_empty());
        spare.put(pages(3));
        spare.put(pages(2));
        assert_eq!(spare.take().len(), 5);
        assert!(spare.take().is_empty());
        spare.put(pages(SHARD_PAGES_MAX));
        spare.put(pages(1));
        assert_eq!(spare.take().len(), SHARD_PAGES_MAX);
    }

    #[test]
    fn threads_have_shards_of_their_own_up_to_a_number() {
        let spare = SparePages::default();
        (0..SHARDS).for_each(|thread| spare.put_of(thread, pages(thread + 1)));
        for thread in 0..SHARDS {
            assert_eq!(spare.take_of(thread).len(), thread + 1);
        }
        spare.put_of(1, pages(2));
        assert_eq!(spare.take_of(1 + SHARDS).len(), 2);

        let number_of_another = || std::thread::spawn(thread_number).join().unwrap();
        let numbers = [thread_number(), number_of_another(), number_of_another()];
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
        assert_eq!(thread_number(), numbers[0]);
    }
}

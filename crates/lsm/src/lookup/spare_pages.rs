//! Page buffers that wait for the next batch of lookups.
//!
//! They lie on shelves, and a thread uses one shelf all its life. With one shelf for all threads
//! the first batch took every buffer, batches beside it allocated theirs, and the bytes of a buffer
//! moved between the caches of the processor's cores.
//!
//! Invariant: a shelf has no more than [`SHELF_PAGES_MAX`] buffers, each of one page.

use terrane_io::AlignedBuf;
use terrane_io::sync::Mutex;

use crate::block::page::PAGE_SIZE;
use crate::files::file_set::lock;

/// Shelves; threads beyond that share them.
const SHELVES: usize = 8;

/// Buffers of a shelf; 1 MiB. A batch has no more than its queue is deep.
pub(crate) const SHELF_PAGES_MAX: usize = 256;

/// Page buffers that no lookup uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct SparePages {
    shelves: [Shelf; SHELVES],
}

/// Buffers of some threads. Apart by two lines of memory, which processors fetch together: a lock
/// must not slow down its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shelf(Mutex<Vec<AlignedBuf>>);

/// Number of the shelf of this thread.
fn shelf_number() -> usize {
    // Of the whole process, beyond the schedules that tests explore.
    use std::sync::atomic::{AtomicUsize, Ordering};

    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| number % SHELVES)
}

impl SparePages {
    fn shelf(&self) -> &Mutex<Vec<AlignedBuf>> {
        &self.shelves[shelf_number()].0
    }

    /// Takes the buffers that are there for this thread, perhaps none.
    pub(crate) fn take(&self) -> Vec<AlignedBuf> {
        std::mem::take(&mut *lock(self.shelf()))
    }

    /// Puts buffers back, of which those are dropped that are too many.
    pub(crate) fn put(&self, mut buffers: Vec<AlignedBuf>) {
        debug_assert!(buffers.iter().all(|buffer| buffer.len() == PAGE_SIZE), "pages");
        let mut shelf = lock(self.shelf());
        // Mostly nobody has put any meanwhile.
        if shelf.is_empty() {
            std::mem::swap(&mut *shelf, &mut buffers);
        } else {
            shelf.append(&mut buffers);
        }
        shelf.truncate(SHELF_PAGES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize) -> Vec<AlignedBuf> {
        (0..count).map(|_| AlignedBuf::zeroed(PAGE_SIZE)).collect()
    }

    #[test]
    fn a_thread_gets_back_what_it_has_put_and_a_shelf_is_bounded() {
        let spare = SparePages::default();
        assert!(spare.take().is_empty());
        spare.put(pages(3));
        spare.put(pages(2));
        assert_eq!(spare.take().len(), 5);
        assert!(spare.take().is_empty());
        spare.put(pages(SHELF_PAGES_MAX));
        spare.put(pages(1));
        assert_eq!(spare.take().len(), SHELF_PAGES_MAX);
    }

    /// Two threads that begin one after the other never take each other's buffers.
    #[test]
    fn threads_have_shelves_of_their_own() {
        let spare = SparePages::default();
        let of_thread = |count: usize| {
            let run = || {
                let before = spare.take().len();
                spare.put(pages(count));
                (shelf_number(), before)
            };
            std::thread::scope(|scope| scope.spawn(run).join().unwrap())
        };
        let found = [of_thread(1), of_thread(2), of_thread(3)];
        // Threads of other tests may begin in between, so two of these may share a shelf.
        for (at, (shelf, before)) in found.iter().enumerate() {
            let is_shared = found[..at].iter().any(|(other, _)| other == shelf);
            assert_eq!(*before > 0, is_shared, "{found:?}");
        }
        let all: usize = spare.shelves.iter().map(|shelf| lock(&shelf.0).len()).sum();
        assert!((1..=6).contains(&all), "{all}");
    }
}

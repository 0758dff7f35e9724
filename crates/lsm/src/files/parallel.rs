//! Parallel work: one function applied to many items by a few threads.

// On a simulated disk there is one thread, so these need not be those of `terrane_io::sync`.
use std::thread;

use terrane_io::sync::Mutex;
use terrane_io::sync::atomic::{AtomicUsize, Ordering};
use terrane_io::{Disk, QueueKind};

use crate::error::Result;
use crate::files::file_set::lock;

/// Threads worth having for reads of which at most `queue_depth` are in flight. One on a simulated
/// disk, whose calls are to come in the same order each time.
pub(crate) fn threads(disk: &dyn Disk, queue_depth: usize) -> usize {
    if disk.queue_kind() == QueueKind::Simulated {
        return 1;
    }
    thread::available_parallelism().map_or(1, usize::from).min(queue_depth)
}

/// Does `work` for each number below `count` and returns the results in their order, or the error
/// of the lowest number that failed: the same whatever the number of threads. No thread is left
/// when this returns. With one thread, or if the system refuses others, all is done on the
/// caller's.
pub(crate) fn map<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let take_turns = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let result = work(number);
            if result.is_err() {
                // Numbers are begun in order, so all below this one have been begun.
                next.fetch_max(count, Ordering::Relaxed);
            }
            lock(&results).push((number, result));
        }
    };

    thread::scope(|scope| {
        // The caller's thread takes part, so one less is started.
        for _ in 1..threads.min(count) {
            let named = thread::Builder::new().name("terrane-read".into());
            if named.spawn_scoped(scope, take_turns).is_err() {
                break;
            }
        }
        take_turns();
    });

    let mut results = lock(&results);
    debug_assert!(results.len() <= count, "each number is done once");
    results.sort_unstable_by_key(|(number, _)| *number);
    debug_assert!(
        results.len() == count || results.iter().any(|(_, result)| result.is_err()),
        "only an error ends the work early"
    );
    debug_assert!(
        results.iter().map(|(number, _)| *number).eq(0..results.len()),
        "none is left out"
    );
    results.drain(..).map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corrupt::Corrupt;
    use crate::error::Error;

    #[test]
    fn results_come_in_order_from_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let squares = map(100, threads, |number| Ok(number * number)).unwrap();
            assert!(squares.into_iter().eq((0..100).map(|number| number * number)));
            assert_eq!(map(0, threads, |_| Ok(())).unwrap(), []);
        }
    }

    #[test]
    fn the_error_is_that_of_the_lowest_number() {
        for threads in [1, 2, 7] {
            let done = AtomicUsize::new(0);
            let error = map(1000, threads, |number| {
                done.fetch_add(1, Ordering::Relaxed);
                if number % 10 < 7 {
                    return Ok(());
                }
                Err(Error::corrupt("file".as_ref(), Corrupt::rule("rule", 0, number as u64)))
            });

            let found = match error {
                Err(Error::Corrupt { what, .. }) => what.found,
                other => panic!("{other:?}"),
            };

            assert_eq!(found, 7);
            if threads == 1 {
                assert_eq!(done.into_inner(), 8, "nothing is begun after an error");
            }
        }
    }
}

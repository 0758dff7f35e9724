//! Threads beside the caller, for the work of a large block: lookups, decoding, encoding, hashing.
//! They begin with the first large block and stay as long as the state is open.
//!
//! Invariant: results are in the order of the shares, and do not depend on the number of threads.

use std::sync::OnceLock;

use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// Threads, the caller included.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: usize,
    /// Threads beside the caller; `None` if there are none.
    helpers: OnceLock<Option<ThreadPool>>,
}

/// A share of work, and its result.
struct Share<T, R> {
    work: Option<T>,
    done: Option<R>,
}

impl Workers {
    /// Returns `threads` threads, the caller included, that have not begun yet.
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: threads.max(1), helpers: OnceLock::new() }
    }

    /// The caller alone.
    pub(crate) fn caller() -> Self {
        Self::new(1)
    }

    /// Threads beside the caller. If the system refuses them, the caller works alone.
    fn helpers(&self) -> Option<&ThreadPool> {
        let begin = || {
            let name = |number| format!("terrane-mpt-{number}");
            let helpers = ThreadPoolBuilder::new().num_threads(self.threads - 1).thread_name(name);
            helpers.build().ok()
        };
        (self.threads > 1).then(|| self.helpers.get_or_init(begin).as_ref()).flatten()
    }

    /// Divides a list into equal parts, in order: one for each thread that has `least` to do.
    pub(crate) fn parts<'w, T>(&self, work: &'w [T], least: usize) -> Vec<&'w [T]> {
        let count = self.threads.min(work.len() / least).max(1);
        work.chunks(work.len().div_ceil(count).max(1)).collect()
    }

    /// Divides work into shares of about equal weight, in order: one for each thread that has
    /// `least` to do. No share is empty.
    pub(crate) fn shares<T>(
        &self,
        work: Vec<T>,
        least: usize,
        weight: impl Fn(&T) -> usize,
    ) -> Vec<Vec<T>> {
        let total: usize = work.iter().map(&weight).sum();
        let count = self.threads.min(total / least).max(1);
        let mut shares: Vec<Vec<T>> = std::iter::repeat_with(Vec::new).take(count).collect();
        let mut done = 0;
        for item in work {
            // The share in which the middle of the item lies.
            let middle = done + weight(&item) / 2;
            done += weight(&item);
            shares[(middle * count / total.max(1)).min(count - 1)].push(item);
        }
        shares.retain(|share| !share.is_empty());
        shares
    }

    /// The results of a list of work, in its order: its parts are done side by side, each whole.
    pub(crate) fn collect<T: Sync, R: Send, E: Send>(
        &self,
        work: &[T],
        least: usize,
        each: impl Fn(&[T]) -> Result<Vec<R>, E> + Sync,
    ) -> Result<Vec<R>, E> {
        let mut all = Vec::with_capacity(work.len());
        for part in self.map(self.parts(work, least), each) {
            all.extend(part?);
        }
        Ok(all)
    }

    /// Does each share of work, the first one on this thread.
    pub(crate) fn map<T: Send, R: Send>(
        &self,
        shares: Vec<T>,
        work: impl Fn(T) -> R + Sync,
    ) -> Vec<R> {
        // One share wakes no thread.
        let helpers = if shares.len() > 1 { self.helpers() } else { None };
        let Some(helpers) = helpers else {
            return shares.into_iter().map(work).collect();
        };

        let share = |work| Share { work: Some(work), done: None };
        let mut shares: Vec<Share<T, R>> = shares.into_iter().map(share).collect();
        let finish = |share: &mut Share<T, R>| share.done = share.work.take().map(&work);
        helpers.in_place_scope(|scope| {
            let mut all = shares.iter_mut();
            let own = all.next();
            for share in all {
                scope.spawn(|_| finish(share));
            }
            own.into_iter().for_each(finish);
        });
        let done = |share: Share<T, R>| share.done.expect("each share was done");
        shares.into_iter().map(done).collect()
    }
}

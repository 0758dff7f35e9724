//! Watches: callbacks for changes of the heads of branches.
//!
//! No thread waits for changes. The thread that changes a branch makes the calls, once the change
//! is as durable as a commit, and with no lock of the store held.
//!
//! If another thread is making calls, that thread makes these too. So calls come one after the
//! other, in the order of the changes, and a call may itself change branches.
//!
//! Rejected: calls under the lock of the writer (a call that commits would wait for itself); a
//! channel for each watch (grows while nobody reads).

use std::collections::VecDeque;
use std::fmt;

use terrane_io::sync::{Arc, Mutex};

use crate::base::address::Address;
use crate::base::hash::Hash;
use crate::base::lock::lock;
use crate::pack::commit::Branches;

/// Change of the head of a branch.
#[doc(alias = "EventListener")]
#[doc(alias = "update_hook")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadChange {
    /// The branch.
    pub branch: Vec<u8>,
    /// Head before; `None` if the branch was added.
    pub before: Option<Hash>,
    /// Head now; `None` if the branch was removed.
    pub after: Option<Hash>,
}

/// Identity of a watch, to [end](crate::Store::unwatch) it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchId(u64);

/// Predicate: whether the heads of a change differ at a path.
type Differs<'a> = dyn Fn(&HeadChange, &[Box<[u8]>]) -> bool + 'a;

type Call = Box<dyn Fn(&HeadChange) + Send + Sync>;

/// Watched branch and path, and the callback.
pub(crate) struct Watch {
    /// `None` for all branches.
    pub(crate) branch: Option<Vec<u8>>,
    /// Path at which the heads must differ; `None` for any change.
    pub(crate) path: Option<Vec<Box<[u8]>>>,
    pub(crate) call: Call,
}

#[derive(Default)]
struct List {
    next: u64,
    watches: Vec<(WatchId, Arc<Watch>)>,
}

#[derive(Default)]
struct Queue {
    /// Changes, each with the end of the pack behind its frame.
    pending: VecDeque<(Address, HeadChange)>,
    /// Durable end of the pack.
    durable: Option<Address>,
    is_calling: bool,
}

/// Watches of a store.
#[derive(Default)]
pub(crate) struct Watches {
    list: Mutex<List>,
    queue: Mutex<Queue>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Watches({})", lock(&self.list).watches.len())
    }
}

/// Guard that ends the calling, also after a panic of a callback.
struct Calling<'a>(&'a Watches);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).is_calling = false;
    }
}

/// Returns the differences of two maps of branches.
pub(crate) fn changes(before: &Branches, after: &Branches) -> Vec<HeadChange> {
    let mut changes = Vec::new();
    for (branch, head) in before {
        let after = after.get(branch).copied();
        if after != Some(*head) {
            changes.push(HeadChange { branch: branch.clone(), before: Some(*head), after });
        }
    }

    // Branches that exist on one side only were added or removed.
    for (branch, head) in after {
        if !before.contains_key(branch) {
            changes.push(HeadChange { branch: branch.clone(), before: None, after: Some(*head) });
        }
    }

    debug_assert!(changes.iter().all(|change| change.before != change.after), "heads differ");
    changes
}

impl Watches {
    pub(crate) fn add(&self, watch: Watch) -> WatchId {
        let mut list = lock(&self.list);
        let id = WatchId(list.next);
        list.next += 1;
        debug_assert!(
            list.watches.last().is_none_or(|(last, _)| last.0 < id.0),
            "each watch has a number of its own"
        );
        list.watches.push((id, Arc::new(watch)));
        id
    }

    pub(crate) fn remove(&self, id: WatchId) -> bool {
        let mut list = lock(&self.list);
        let count = list.watches.len();
        list.watches.retain(|(other, _)| *other != id);
        list.watches.len() < count
    }

    /// Queues a change, in the order of the pack.
    pub(crate) fn push(&self, end: Address, change: HeadChange) {
        lock(&self.queue).pending.push_back((end, change));
    }

    /// Makes the calls for the changes before `end`, up to which the pack is durable.
    pub(crate) fn call(&self, end: Address, differs: &Differs<'_>) {
        let mut queue = lock(&self.queue);
        queue.durable = queue.durable.max(Some(end));

        // The calling thread makes these calls too, so that calls keep the order of the pack.
        if queue.is_calling {
            return;
        }
        queue.is_calling = true;
        drop(queue);

        // No lock is held during the calls.
        let calling = Calling(self);
        while let Some(change) = self.next() {
            let watches = lock(&self.list).watches.clone();
            for (_, watch) in watches {
                let is_meant = watch.branch.as_ref().is_none_or(|branch| *branch == change.branch)
                    && watch.path.as_ref().is_none_or(|path| differs(&change, path));
                if is_meant {
                    (watch.call)(&change);
                }
            }
        }

        // `next` reset the flag under the lock under which it found no change.
        std::mem::forget(calling);
    }

    /// Returns the next durable change; if there is none, ends the calling.
    fn next(&self) -> Option<HeadChange> {
        let mut queue = lock(&self.queue);
        let durable = queue.durable;
        let is_durable = queue.pending.front().is_some_and(|(end, _)| Some(*end) <= durable);
        let next = if is_durable { queue.pending.pop_front() } else { None };
        queue.is_calling = next.is_some();
        next.map(|(_, change)| change)
    }
}

//! Pins: roots that live trees may still read. A collection keeps the objects that a pin reaches.

use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::base::address::Extent;

/// Root that a live tree may still read: the root of a commit, or of a tree that was flushed.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) root: Extent,
}

/// Pins of a tree, its clones, and all trees that share nodes with it: a record written for one may
/// be referred to by the others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Mutex<PinList>>);

#[derive(Debug)]
enum PinList {
    Own {
        pins: Vec<Arc<Pin>>,
        /// Upper bound of the lists that lead to this one, one through the other. Two lists of one
        /// rank make one of the next, so a rank is at most the logarithm of the number of trees.
        rank: u32,
    },
    /// The pins moved to the list of another tree that shares nodes.
    Joined(Pins),
}

impl Default for PinList {
    fn default() -> Self {
        Self::Own { pins: Vec::new(), rank: 0 }
    }
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, PinList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the list that has the pins.
    fn with<R>(&self, work: impl FnOnce(&mut Vec<Arc<Pin>>) -> R) -> R {
        let mut at = self.clone();
        loop {
            let next = match &mut *at.lock() {
                PinList::Own { pins, .. } => return work(pins),
                PinList::Joined(next) => next.clone(),
            };
            at = next;
        }
    }

    /// Returns the end of the path of joined lists.
    fn last(&self) -> Self {
        let mut at = self.clone();
        loop {
            let next = match &*at.lock() {
                PinList::Own { .. } => None,
                PinList::Joined(next) => Some(next.clone()),
            };
            match next {
                Some(next) => at = next,
                None => return at,
            }
        }
    }

    pub(crate) fn add(&self, pin: Arc<Pin>) {
        self.with(|own| {
            if !own.iter().any(|held| Arc::ptr_eq(held, &pin)) {
                own.push(pin);
            }
        });
    }

    /// Returns a new list with the pin of `root` alone; `None` if the list has no such pin.
    pub(crate) fn only(&self, root: Extent) -> Option<Self> {
        let pin = self.with(|own| own.iter().rfind(|pin| pin.root == root).map(Arc::clone))?;
        Some(Self(Arc::new(Mutex::new(PinList::Own { pins: vec![pin], rank: 0 }))))
    }

    /// Merges the lists of two trees, for all pins that either has or gets later.
    pub(crate) fn join(&self, other: &Self) {
        loop {
            // Lists may be joined by other threads between these lines and the locks.
            let own = self.last();
            let others = other.last();
            if Arc::ptr_eq(&own.0, &others.0) {
                return;
            }

            // Locks in the order of the addresses, so that two concurrent joins do not deadlock.
            let own_first = Arc::as_ptr(&own.0) < Arc::as_ptr(&others.0);
            let (first, second) = if own_first { (&own, &others) } else { (&others, &own) };
            let mut first = first.lock();
            let mut second = second.lock();
            let (held, moved) =
                if own_first { (&mut *first, &mut *second) } else { (&mut *second, &mut *first) };

            // If the pattern does not match, another thread joined one of the lists meanwhile: look
            // again.
            if let (
                PinList::Own { pins: held_pins, rank: held_rank },
                PinList::Own { pins: moved_pins, rank: moved_rank },
            ) = (&mut *held, &mut *moved)
            {
                // The list of the lower rank is merged into the other, so that paths stay short.
                if *held_rank >= *moved_rank {
                    held_pins.append(moved_pins);
                    *held_rank = (*held_rank).max(*moved_rank + 1);
                    debug_assert!(*moved_rank < *held_rank, "ranks rise on the way to the pins");
                    *moved = PinList::Joined(own.clone());
                } else {
                    debug_assert!(*held_rank < *moved_rank, "ranks rise on the way to the pins");
                    moved_pins.append(held_pins);
                    *held = PinList::Joined(others.clone());
                }
                return;
            }
        }
    }
}

/// All pins of a store. Dropped pins are swept when the list would grow.
#[derive(Debug, Default)]
pub(crate) struct Pinned(Mutex<Vec<Weak<Pin>>>);

impl Pinned {
    pub(crate) fn pin(&self, root: Extent) -> Arc<Pin> {
        let pin = Arc::new(Pin { root });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);

        // Sweeping only before growth makes the cost constant for each pin.
        if all.len() == all.capacity() {
            all.retain(|pin| pin.strong_count() > 0);
        }
        all.push(Arc::downgrade(&pin));
        pin
    }

    /// Returns the pinned roots.
    pub(crate) fn roots(&self) -> Vec<Extent> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|pin| Some(pin.upgrade()?.root)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each tree that took a part of the one before led to the next one's list; letting go of the
    /// first then took more stack than a thread has.
    #[test]
    fn lists_that_were_joined_one_after_the_other_lead_nowhere_far() {
        let mut all: Vec<Pins> = (0..200_000).map(|_| Pins::default()).collect();
        for pair in all.windows(2) {
            pair[1].join(&pair[0]);
        }
        let first = all.swap_remove(0);
        drop(all);
        drop(first);
    }
}

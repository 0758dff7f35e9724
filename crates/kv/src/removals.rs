//! Removed keys of a transaction, joined to ranges that a cursor of the transaction jumps over in
//! one step.
//!
//! Without the ranges a cursor would walk over each removal between two keys that are left. A
//! transaction that removes most keys of a table and looks beside each of them would do quadratic
//! work.
//!
//! Invariant: as the transaction sees its table, no key is left from the first key of a range to
//! the last one, both included. Ranges do not overlap. The ends of a range are keys that the
//! transaction has removed.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Removals that a cursor steps over one by one before it notes their range.
const STEPS_MIN: usize = 8;

/// Ranges of removed keys. See the [module](self).
#[derive(Debug, Clone)]
pub struct Removals<K> {
    /// The first key of each range, and the last one.
    ranges: BTreeMap<K, K>,
}

impl<K: Ord> Default for Removals<K> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<K: Ord + Clone + Borrow<[u8]>> Removals<K> {
    /// The first and the last key of the range that holds `key`. Cost: O(log n) for n ranges.
    #[must_use]
    pub fn range_of(&self, key: &[u8]) -> Option<(&K, &K)> {
        let below = (Bound::Unbounded, Bound::Included(key));
        let (first, last) = self.ranges.range::<[u8], _>(below).next_back()?;

        (key <= last.borrow()).then_some((first, last))
    }

    /// Notes what a cursor has crossed in one step. Cost: O(log n) for each range that it joins.
    pub fn note(&mut self, crossed: &Crossed<K>) {
        let Some((one, other)) = &crossed.ends else { return };
        if crossed.steps < STEPS_MIN {
            return;
        }

        let (mut first, mut last) = if one <= other { (one, other) } else { (other, one) };
        let mut joined = Vec::new();
        let up_to = (Bound::Unbounded, Bound::Included(last.borrow()));

        // Ranges do not overlap, so the first one that ends before ends the search.
        for (from, to) in self.ranges.range::<[u8], _>(up_to).rev() {
            if to < first {
                break;
            }
            joined.push(from.clone());
            last = last.max(to);
            first = first.min(from);
        }

        let first = first.clone();
        let last = last.clone();
        for from in joined {
            self.ranges.remove::<[u8]>(from.borrow());
        }

        debug_assert!(first <= last);
        self.ranges.insert(first, last);
    }

    /// Takes a key that the transaction binds out of its range. `changes` are those of the
    /// transaction. Cost: O(log n).
    pub fn bind<V>(&mut self, key: &[u8], changes: &BTreeMap<K, V>) {
        let Some((first, last)) = self.range_of(key) else { return };
        let first = first.clone();
        let last = last.clone();

        // The changes beside the key are removals, since they are in the range.
        let below = changes.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back();
        let above = changes.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next();
        self.ranges.remove::<[u8]>(first.borrow());

        if let Some((below, _)) = below.filter(|(below, _)| first <= **below) {
            self.ranges.insert(first, below.clone());
        }

        if let Some((above, _)) = above.filter(|(above, _)| **above <= last) {
            self.ranges.insert(above.clone(), last);
        }
    }
}

/// Removals that a cursor has crossed in one step, with no key left among them.
#[derive(Debug)]
pub struct Crossed<K> {
    ends: Option<(K, K)>,
    steps: usize,
}

impl<K> Default for Crossed<K> {
    fn default() -> Self {
        Self { ends: None, steps: 0 }
    }
}

impl<K: Clone> Crossed<K> {
    /// One removal more, in the direction of the cursor.
    pub fn step(&mut self, key: &K) {
        let first = self.ends.take().map_or_else(|| key.clone(), |(first, _)| first);
        self.ends = Some((first, key.clone()));
        self.steps += 1;
    }

    /// A noted range, which the cursor enters at `near` and jumps over to `far`.
    pub fn jump(&mut self, near: &K, far: &K) {
        self.step(near);
        self.step(far);
        // A jump stands for as many steps as make a range.
        self.steps += STEPS_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> Vec<u8> {
        vec![number]
    }

    fn crossed(keys: impl Iterator<Item = u8>) -> Crossed<Vec<u8>> {
        let mut crossed = Crossed::default();
        keys.for_each(|number| crossed.step(&key(number)));
        crossed
    }

    fn ranges(removals: &Removals<Vec<u8>>) -> Vec<(u8, u8)> {
        removals.ranges.iter().map(|(first, last)| (first[0], last[0])).collect()
    }

    #[test]
    fn ranges_that_meet_are_joined_whichever_way_the_cursor_goes() {
        let mut removals = Removals::default();
        removals.note(&crossed(10..20));
        removals.note(&crossed((40..50).rev()));
        removals.note(&crossed(60..62));
        assert_eq!(ranges(&removals), [(10, 19), (40, 49)], "two removals are not worth a range");

        let mut through = crossed(18..19);
        through.jump(&key(19), &key(19));
        (20..41).for_each(|number| through.step(&key(number)));
        removals.note(&through);
        assert_eq!(ranges(&removals), [(10, 49)]);
        assert_eq!(removals.range_of(&key(30)), Some((&key(10), &key(49))));
        assert_eq!(removals.range_of(&key(50)), None);

        assert_eq!(removals.range_of(&key(9)), None);
    }

    #[test]
    fn a_key_that_is_bound_again_divides_its_range() {
        let changes: BTreeMap<Vec<u8>, bool> =
            (10..20).map(|number| (key(number), false)).collect();
        let mut removals = Removals::default();
        removals.note(&crossed(10..20));

        removals.bind(&key(14), &changes);
        assert_eq!(ranges(&removals), [(10, 13), (15, 19)]);
        removals.bind(&key(10), &changes);
        removals.bind(&key(19), &changes);
        assert_eq!(ranges(&removals), [(11, 13), (15, 18)]);
        removals.bind(&key(30), &changes);

        assert_eq!(ranges(&removals), [(11, 13), (15, 18)]);
    }
}

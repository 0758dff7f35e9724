//! Changes of a transaction, and a cursor that merges them with the entries below.
//!
//! Where a key has both a change and an entry below, the change counts. A step that crosses
//! removals notes the range they cover, so later steps jump over the range.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use crate::database::{Cursor, Entry, Result};
use crate::gap::{Gap, GapCursor, Way};
use crate::removals::{Crossed, Removals};

/// Changes of one table, by key; `None` removes the key.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Keys of one table that a writer has read from its snapshot, with the length of the value, if
/// any.
pub type Known = HashMap<Vec<u8>, Option<usize>>;

/// Cursor over the changes of a writer and the entries below.
///
/// Invariant: the cursor below stands at the same gap, or one entry further if `ahead` has an
/// entry.
///
/// Cost: the first step over a run of removals crosses them one by one; later steps jump over it.
pub struct ChangedCursor<'a> {
    below: Box<dyn Cursor + 'a>,
    changes: &'a Changes,
    removals: &'a RefCell<Removals<Vec<u8>>>,
    gap: Gap<Vec<u8>>,
    /// Entry that the cursor below has returned in this direction, and that is not used yet.
    ahead: Option<(Way, Option<Entry>)>,
}

impl<'a> ChangedCursor<'a> {
    /// A cursor before the first entry. `below` must stand there too.
    pub fn new(
        below: Box<dyn Cursor + 'a>,
        changes: &'a Changes,
        removals: &'a RefCell<Removals<Vec<u8>>>,
    ) -> Self {
        Self { below, changes, removals, gap: Gap::First, ahead: None }
    }

    /// Reads the next entry of the cursor below, unless `ahead` has it.
    fn look_ahead(&mut self, way: Way) -> Result<()> {
        match &self.ahead {
            Some((looked, _)) if *looked == way => return Ok(()),
            // The cursor turns: the one below goes back over the unused entry first.
            Some((Way::Forward, Some(_))) => drop(self.below.prev()?),
            Some((Way::Backward, Some(_))) => drop(self.below.next()?),
            _ => {}
        }

        self.ahead = None;
        let entry = match way {
            Way::Forward => self.below.next()?,
            Way::Backward => self.below.prev()?,
        };

        self.ahead = Some((way, entry));
        Ok(())
    }

    /// The next change in this direction.
    fn change(&self, way: Way) -> Option<(&Vec<u8>, &Option<Vec<u8>>)> {
        let mut ahead = self.changes.range::<[u8], _>(self.gap.ahead(way)?);
        match way {
            Way::Forward => ahead.next(),
            Way::Backward => ahead.next_back(),
        }
    }

    /// Steps to the next entry; collects the removals that the step crosses.
    fn step_over(&mut self, way: Way, crossed: &mut Crossed<Vec<u8>>) -> Result<Option<Entry>> {
        loop {
            self.look_ahead(way)?;

            let below = self.ahead.as_ref().and_then(|(_, entry)| entry.as_ref());
            let change = self.change(way);
            let order = match (below, change) {
                (None, None) => return Ok(None),
                (Some((key, _)), Some((changed, _))) => match way {
                    Way::Forward => key.cmp(changed),
                    Way::Backward => changed.cmp(key),
                },
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
            };

            // A removal hides the entry below with the same key.
            if let (Some((key, None)), true) = (change, order.is_ge()) {
                let key = key.clone();
                // A long run of removals is passed at once.
                if !self.jump(way, &key, crossed)? {
                    crossed.step(&key);
                    if order.is_eq() {
                        self.ahead = None;
                    }
                    self.gap = way.past(key);
                }
                continue;
            }

            if let (Some((key, Some(value))), true) = (change, order.is_ge()) {
                let entry = (key.clone(), value.clone());
                // The change takes the place of the entry below.
                if order.is_eq() {
                    self.ahead = None;
                }
                self.gap = way.past(entry.0.clone());
                return Ok(Some(entry));
            }

            let entry = self.ahead.take().and_then(|(_, entry)| entry);
            if let Some((key, _)) = &entry {
                self.gap = way.past(key.clone());
            }

            return Ok(entry);
        }
    }

    /// Jumps to the far end of the range of removals that holds `key`, without crossing the key at
    /// that end. Returns whether there was a range to jump over.
    fn jump(&mut self, way: Way, key: &Vec<u8>, crossed: &mut Crossed<Vec<u8>>) -> Result<bool> {
        let removals = self.removals.borrow();
        let Some((first, last)) = removals.range_of(key) else { return Ok(false) };
        let far = match way {
            Way::Forward => last,
            Way::Backward => first,
        };

        if far == key {
            return Ok(false);
        }

        debug_assert!(first <= key && key <= last);
        crossed.jump(key, far);
        // The cursor below must stand at the same gap.
        self.below.seek(far)?;
        let gap = Gap::Before(far.clone());
        drop(removals);
        self.gap = gap;
        self.ahead = None;

        Ok(true)
    }
}

impl GapCursor for ChangedCursor<'_> {
    type Key = Vec<u8>;

    fn go_to(&mut self, gap: Gap<Vec<u8>>) -> Result<()> {
        self.gap = gap;
        self.ahead = None;
        match &self.gap {
            Gap::First => self.below.seek_first(),
            Gap::Last => self.below.seek_last(),
            Gap::Before(key) | Gap::After(key) => self.below.seek(key),
        }
    }

    fn step(&mut self, way: Way) -> Result<Option<Entry>> {
        let mut crossed = Crossed::default();
        let found = self.step_over(way, &mut crossed);
        self.removals.borrow_mut().note(&crossed);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A sorted list, which counts what is asked of its cursor.
    struct Listed<'a> {
        entries: &'a [Entry],
        at: usize,
        calls: &'a Cell<u64>,
    }

    impl Listed<'_> {
        fn call(&self) {
            self.calls.set(self.calls.get() + 1);
        }
    }

    impl Cursor for Listed<'_> {
        fn seek_first(&mut self) -> Result<()> {
            self.call();
            self.at = 0;
            Ok(())
        }

        fn seek_last(&mut self) -> Result<()> {
            self.call();
            self.at = self.entries.len();
            Ok(())
        }

        fn seek(&mut self, key: &[u8]) -> Result<()> {
            self.call();
            self.at = self.entries.partition_point(|(other, _)| other.as_slice() < key);
            Ok(())
        }

        fn next(&mut self) -> Result<Option<Entry>> {
            self.call();
            let entry = self.entries.get(self.at).cloned();
            self.at += usize::from(entry.is_some());
            Ok(entry)
        }

        fn prev(&mut self) -> Result<Option<Entry>> {
            self.call();
            let Some(at) = self.at.checked_sub(1) else { return Ok(None) };
            self.at = at;
            Ok(Some(self.entries[at].clone()))
        }
    }

    /// A writer that removes all keys but the first and the last, and looks at both neighbours of
    /// each removed key, asked its snapshot for a number of entries that grew with the square of
    /// the removals: each look crossed all of them.
    #[test]
    fn looking_beside_each_of_many_removals_takes_steps_in_proportion_to_them() {
        let key = |number: u32| format!("{number:08}").into_bytes();
        let steps = |count: u32| {
            let entries: Vec<Entry> = (0..count).map(|number| (key(number), vec![1])).collect();
            let calls = Cell::new(0);
            let removals = RefCell::default();

            let mut changes = Changes::new();
            for number in 1..count - 1 {
                changes.insert(key(number), None);
                let below = Box::new(Listed { entries: &entries, at: 0, calls: &calls });
                let mut cursor = ChangedCursor::new(below, &changes, &removals);
                cursor.seek(&key(number)).unwrap();
                let after = cursor.next().unwrap().unwrap();
                assert_eq!(after.0, key(number + 1));
                cursor.seek(&key(number)).unwrap();
                assert_eq!(cursor.prev().unwrap().unwrap().0, key(0));
            }

            calls.get()
        };

        let few = steps(200);
        let many = steps(2_000);
        assert!(many < 12 * few, "{many} steps for ten times what took {few}");
    }
}

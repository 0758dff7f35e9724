//! Position of a cursor: a gap between two entries, named by a key beside it.
//!
//! A cursor keeps a [`Gap`] and no pointer into its source, so that the source may change or be
//! locked between two steps. All back-ends share the arithmetic: [`Gap::ahead`] answers the keys
//! that a step may reach, [`Way::past`] the gap behind an entry that a step has returned.

use std::borrow::Borrow;
use std::ops::Bound;

use crate::database::{Cursor, Entry, Result};

/// Bounds of a range of keys.
pub type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Direction of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To greater keys.
    Forward,
    /// To smaller keys.
    Backward,
}

impl Way {
    /// The gap beyond `key` for a cursor that goes this way.
    #[must_use]
    pub fn past<K>(self, key: K) -> Gap<K> {
        match self {
            Self::Forward => Gap::After(key),
            Self::Backward => Gap::Before(key),
        }
    }
}

/// Position of a cursor between two entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap<K> {
    /// Before all entries.
    First,
    /// Behind all entries.
    Last,
    /// Before this key, whether the table has the key or not.
    Before(K),
    /// Behind this key, whether the table has the key or not.
    After(K),
}

impl<K: Borrow<[u8]>> Gap<K> {
    /// The keys that lie one way from the gap; `None` if there can be none.
    pub fn ahead(&self, way: Way) -> Option<KeyRange<'_>> {
        // The key at a gap is ahead on one side and behind on the other.
        let bound = match (self, way) {
            (Self::First, Way::Forward) | (Self::Last, Way::Backward) => Bound::Unbounded,
            (Self::First, Way::Backward) | (Self::Last, Way::Forward) => return None,
            (Self::Before(key), Way::Forward) | (Self::After(key), Way::Backward) => {
                Bound::Included(key.borrow())
            }
            (Self::After(key), Way::Forward) | (Self::Before(key), Way::Backward) => {
                Bound::Excluded(key.borrow())
            }
        };

        Some(match way {
            Way::Forward => (bound, Bound::Unbounded),
            Way::Backward => (Bound::Unbounded, bound),
        })
    }
}

/// Cursor that is a gap, and steps from it: a [`Cursor`] by the methods that all of them share.
pub trait GapCursor {
    /// Key as the cursor keeps it.
    type Key: for<'k> From<&'k [u8]>;

    /// Goes to a gap: [`Gap::First`], [`Gap::Last`] or [`Gap::Before`].
    ///
    /// # Errors
    /// Those of the back-end.
    fn go_to(&mut self, gap: Gap<Self::Key>) -> Result<()>;

    /// The next entry in a direction, which the cursor steps over.
    ///
    /// # Errors
    /// Those of the back-end.
    fn step(&mut self, way: Way) -> Result<Option<Entry>>;
}

impl<C: GapCursor> Cursor for C {
    fn seek_first(&mut self) -> Result<()> {
        self.go_to(Gap::First)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.go_to(Gap::Last)
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.go_to(Gap::Before(key.into()))
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        self.step(Way::Forward)
    }

    fn prev(&mut self) -> Result<Option<Entry>> {
        self.step(Way::Backward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_its_reverse_cross_the_same_key() {
        let key: &[u8] = &[7];
        for way in [Way::Forward, Way::Backward] {
            let back = if way == Way::Forward { Way::Backward } else { Way::Forward };
            let past = way.past(key);
            let (low, high) = past.ahead(back).unwrap();
            assert!(matches!((low, high), (Bound::Included(_), _) | (_, Bound::Included(_))));
            let (low, high) = past.ahead(way).unwrap();
            assert!(matches!((low, high), (Bound::Excluded(_), _) | (_, Bound::Excluded(_))));
        }
    }

    #[test]
    fn no_key_lies_beyond_the_ends() {
        assert!(Gap::<Vec<u8>>::First.ahead(Way::Backward).is_none());
        assert!(Gap::<Vec<u8>>::Last.ahead(Way::Forward).is_none());
    }
}

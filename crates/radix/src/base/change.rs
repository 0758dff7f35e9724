//! Batch of changes: its rules, and the order in which it is applied.
//!
//! Invariant: a batch names no address twice, so its outcome is the plain update of a map and does
//! not depend on the order of the changes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::error::{Error, Result};

/// Most bytes of a value on every back-end: those of a record, less what a node has beside its
/// value. A server may be configured to take less; such a value is [`Error::Size`].
pub const VALUE_BYTES_MAX: usize = terrane_kv::VALUE_BYTES_MAX - NODE_BYTES_MAX;
/// Upper bound of the bytes of a record besides its value: 256 children of up to 134 bytes, and 8
/// extensions of up to 46.
const NODE_BYTES_MAX: usize = 64 << 10;

/// Refuses a value that no record can hold.
///
/// # Errors
/// [`Error::ValueTooLarge`].
pub(crate) fn check_value(address: &Address, value: &[u8], index: Option<usize>) -> Result<()> {
    let address = *address;
    let bytes = value.len();
    let max = VALUE_BYTES_MAX;
    if bytes <= max { Ok(()) } else { Err(Error::ValueTooLarge { address, index, bytes, max }) }
}

/// A change of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of an address, whether it has one or not.
    Set(Address, Vec<u8>),
    /// Removes the value of an address, which must have one.
    Delete(Address),
    /// Removes all values whose addresses begin with a prefix; there must be one. Overlaps with no
    /// other change of the batch.
    DeletePrefix(Prefix),
}

impl Change {
    /// The address, or the prefix.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        match self {
            Self::Set(address, _) | Self::Delete(address) => (*address).into(),
            Self::DeletePrefix(prefix) => *prefix,
        }
    }
}

/// Keeps the last change of each address, for callers who want it so. A prefix that is deleted
/// takes what came before it and begins with it along; what comes after it stays. Ordered by
/// address.
///
/// A batch in which values come and go under a prefix that it deletes as well has no plain form;
/// what follows the deletion is kept and the batch still refused as overlapping.
///
/// Cost: O(n log n) for n changes.
#[must_use]
pub fn normalise(changes: Vec<Change>) -> Vec<Change> {
    let mut last: BTreeMap<(Prefix, bool), Change> = BTreeMap::new();
    for change in changes {
        let prefix = change.prefix();
        let is_prefix = matches!(change, Change::DeletePrefix(_));
        if is_prefix {
            // Each is taken away once, and those that begin with a prefix follow each other.
            let from = (Bound::Included((prefix, false)), Bound::Unbounded);
            let next = |last: &BTreeMap<(Prefix, bool), Change>| {
                let (key, _) = last.range(from).next()?;
                key.0.as_bytes().starts_with(prefix.as_bytes()).then_some(*key)
            };
            while let Some(key) = next(&last) {
                last.remove(&key);
            }
        }

        last.insert((prefix, is_prefix), change);
    }

    last.into_values().collect()
}

/// Effect of a change at an address, or below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Set(Arc<[u8]>),
    Delete,
    DeletePrefix,
}

/// A change in its place in the order of addresses.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) prefix: Prefix,
    pub(crate) action: Action,
    /// Its place in the batch.
    pub(crate) index: usize,
}

/// Brings changes into the order of their addresses.
///
/// # Errors
/// [`Error::ValueTooLarge`]; [`Error::DuplicateAddress`] if two of them overlap: those of which the
/// later one comes first in the batch.
pub(crate) fn sorted(changes: &[Change]) -> Result<Vec<Step>> {
    // Sizes first: the order of errors is part of the interface.
    for (index, change) in changes.iter().enumerate() {
        if let Change::Set(address, value) = change {
            check_value(address, value, Some(index))?;
        }
    }

    let mut steps: Vec<Step> = changes
        .iter()
        .enumerate()
        .map(|(index, change)| Step {
            prefix: change.prefix(),
            action: match change {
                Change::Set(_, value) => Action::Set(value.as_slice().into()),
                Change::Delete(_) => Action::Delete,
                Change::DeletePrefix(_) => Action::DeletePrefix,
            },
            index,
        })
        .collect();

    // A deleted prefix comes before all that it overlaps with.
    let is_address = |step: &Step| step.action != Action::DeletePrefix;
    steps.sort_by(|one, other| {
        (one.prefix, is_address(one), one.index).cmp(&(
            other.prefix,
            is_address(other),
            other.index,
        ))
    });

    // Of all overlaps the one whose later change comes first in the batch, as if changes were
    // checked one by one.
    let mut found: Option<(usize, usize, Prefix)> = None;
    let mut note = |one: &Step, other: &Step| {
        let first = one.index.min(other.index);
        let second = one.index.max(other.index);
        if found.is_none_or(|(_, earliest, _)| second < earliest) {
            found = Some((first, second, other.prefix));
        }
    };

    // Deleted prefixes that the step begins with, the longest last.
    let mut above: Vec<&Step> = Vec::new();
    let mut before: Option<&Step> = None;
    for step in &steps {
        let is_below = |prefix: &Step| step.prefix.as_bytes().starts_with(prefix.prefix.as_bytes());
        while above.pop_if(|prefix| !is_below(prefix)).is_some() {}
        for prefix in &above {
            note(prefix, step);
        }

        let same = before.filter(|before| before.prefix == step.prefix);
        if let Some(same) = same {
            note(same, step);
        }

        if step.action == Action::DeletePrefix && same.is_none() {
            above.push(step);
        }

        before = Some(step);
    }

    match found {
        Some((first, second, address)) => Err(Error::DuplicateAddress { address, first, second }),
        None => Ok(steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Change {
        Change::Set(text.parse().unwrap(), b"v".to_vec())
    }

    fn delete(text: &str) -> Change {
        Change::Delete(text.parse().unwrap())
    }

    fn delete_prefix(text: &str) -> Change {
        Change::DeletePrefix(text.parse().unwrap())
    }

    #[test]
    fn an_address_that_is_named_twice_is_refused_with_both_places() {
        for (changes, expected) in [
            (vec![set("aa"), set("bb"), set("aa")], Some((0, 2))),
            (vec![delete("aa"), delete("aa"), set("aa")], Some((0, 1))),
            (vec![set("cc"), set("bb"), set("bb"), set("cc")], Some((1, 2))),
            (vec![set("aabb"), set("bb"), delete_prefix("aa")], Some((0, 2))),
            (vec![delete_prefix("aa"), delete("ab"), set("aaff00")], Some((0, 2))),
            (vec![delete_prefix("aabb"), delete_prefix("aa")], Some((0, 1))),
            (vec![set("aabb"), delete_prefix("aabb"), set("aacc")], Some((0, 1))),
            (vec![delete_prefix(""), set("00")], Some((0, 1))),
            (vec![delete_prefix("aabb"), set("aabbcc"), delete_prefix("aa")], Some((0, 1))),
            (vec![set("aabb"), delete_prefix("aa"), delete_prefix("aa")], Some((0, 1))),
            (vec![set("aa"), set("aabb"), delete_prefix("aacc")], None),
            (vec![delete_prefix("aa"), set("ab"), set("a9")], None),
        ] {
            let found = match sorted(&changes) {
                Err(Error::DuplicateAddress { first, second, .. }) => Some((first, second)),
                other => {
                    assert!(other.unwrap().is_sorted_by_key(|step| step.prefix));
                    None
                }
            };
            assert_eq!(found, expected, "{changes:?}");
        }
    }

    #[test]
    fn normalising_keeps_the_last_change_of_an_address() {
        let changes = vec![set("bb"), set("aa00"), delete("bb"), delete_prefix("aa"), set("cc")];
        assert_eq!(normalise(changes), [delete_prefix("aa"), delete("bb"), set("cc")]);
        let prefixes = ["aa00", "aa", "ab", "ab"].map(delete_prefix);
        let changes = [vec![set("aa00"), set("ab")], prefixes.to_vec(), vec![set("aa")]].concat();
        assert_eq!(normalise(changes), [set("aa"), delete_prefix("aa"), delete_prefix("ab")]);
    }
}

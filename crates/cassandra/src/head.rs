//! Head of a store: the last commit, who may write the next, and which numbers count for nothing.
//!
//! A commit number is `epoch << 40 | sequence`, so two writers never use the same number, and a
//! greater number is a later commit. Raising the epoch is the fence: the conditional write of an
//! older epoch can never apply any more. Numbers between the last commit of an old epoch and the
//! first of the new one are a [`Gap`]. Rows of a gap are what a dead or failed writer left; they
//! are seen by nobody and removed by the collector.
//!
//! Invariants:
//! - `collected <= pruned <= commit`, unless `collected` is in or at the end of a gap.
//! - Gaps ascend and do not overlap. Each begins with the one number that its writer may have used.
//! - All numbers from `collected + 1` to `commit` that are in no gap are commits.

use std::collections::BTreeMap;

use terrane_kv::Result;

use crate::error::{corrupt, unsupported};

/// Name in the counts of the divided values that were ever written; no table has it.
pub(crate) const DIVIDED: &str = "divided";
/// Version of the layout of a store.
pub(crate) const FORMAT: i32 = 1;
/// Bits of a commit number below the epoch.
const SEQUENCE_BITS: u32 = 40;
/// Epochs that a store can have: openings for writing, and takeovers.
const EPOCH_MAX: i64 = (1 << 22) - 1;

/// Numbers that count for nothing, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// Whether rows of number `from` may exist.
    pub(crate) is_dirty: bool,
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Identity of the store in the partition keys of its rows.
    pub(crate) id: i64,
    pub(crate) commit: i64,
    pub(crate) epoch: i64,
    pub(crate) gaps: Vec<Gap>,
    /// Entries of each table.
    pub(crate) counts: BTreeMap<String, i64>,
    /// Bytes of the rows that are not collected yet.
    pub(crate) bytes: i64,
    /// Snapshots before this commit may be incomplete.
    pub(crate) pruned: i64,
    /// Whatever commits up to this one replaced is removed.
    pub(crate) collected: i64,
    /// Whether the last writer closed the store and left no rows behind.
    pub(crate) is_closed: bool,
}

/// Next work of the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Remove what this commit replaced.
    Commit(i64),
    /// Remove what a writer left in this gap.
    Gap(Gap),
}

impl Work {
    /// `collected` once it is done.
    pub(crate) fn end(self) -> i64 {
        match self {
            Self::Commit(commit) => commit,
            Self::Gap(gap) => gap.to,
        }
    }
}

/// Number before the first commit of an epoch.
fn base(epoch: i64) -> i64 {
    epoch << SEQUENCE_BITS
}

impl Head {
    /// The head of a new store.
    pub(crate) fn new(id: i64) -> Self {
        Self {
            id,
            commit: 0,
            epoch: 0,
            gaps: Vec::new(),
            counts: BTreeMap::new(),
            bytes: 0,
            pruned: 0,
            collected: 0,
            is_closed: true,
        }
    }

    /// Number of the next commit of this epoch.
    pub(crate) fn next_commit(&self) -> i64 {
        self.commit.max(base(self.epoch)) + 1
    }

    /// The head under the next epoch. `is_clean` says that the writer of this one left no rows.
    ///
    /// # Errors
    /// [`Error::Unsupported`](terrane_kv::Error::Unsupported) if there are no more epochs.
    pub(crate) fn raised(&self, is_clean: bool) -> Result<Self> {
        if self.epoch >= EPOCH_MAX {
            let why = "the store has been opened for writing too often; copy it to another store";
            return Err(unsupported("opening for writing", why));
        }

        let epoch = self.epoch + 1;
        let gap = Gap { from: self.next_commit(), to: base(epoch), is_dirty: !is_clean };
        let mut gaps = self.gaps.clone();
        match gaps.last_mut() {
            // Numbers that nobody used need no beginning of their own.
            Some(last) if last.to + 1 == gap.from && is_clean => last.to = gap.to,
            _ => gaps.push(gap),
        }

        debug_assert!(gaps.is_sorted_by(|a, b| a.to < b.from), "gaps ascend");
        Ok(Self { epoch, gaps, is_closed: false, ..self.clone() })
    }

    /// The gap that a number is in.
    pub(crate) fn gap_of(&self, number: i64) -> Option<Gap> {
        self.gaps.iter().copied().find(|gap| (gap.from..=gap.to).contains(&number))
    }

    /// The next work of the collector, if there is any up to the last commit.
    pub(crate) fn work(&self) -> Option<Work> {
        let next = self.collected + 1;
        match self.gap_of(next) {
            Some(gap) => Some(Work::Gap(gap)),
            None if next <= self.commit => Some(Work::Commit(next)),
            None => None,
        }
    }

    /// Notes that work is done.
    pub(crate) fn collect(&mut self, work: Work, freed: i64) {
        debug_assert!(self.collected < work.end());
        self.collected = work.end();
        self.bytes = (self.bytes - freed).max(0);
        let collected = self.collected;
        self.gaps.retain(|gap| gap.to > collected);
    }

    /// Gaps as the table has them: three numbers each.
    pub(crate) fn gap_numbers(&self) -> Vec<i64> {
        let numbers = |gap: &Gap| [gap.from, gap.to, i64::from(gap.is_dirty)];
        self.gaps.iter().flat_map(numbers).collect()
    }

    /// Reads gaps from the table.
    ///
    /// # Errors
    /// [`Error::Corruption`](terrane_kv::Error::Corruption).
    pub(crate) fn gaps_of(numbers: &[i64]) -> Result<Vec<Gap>> {
        let (triples, rest) = numbers.as_chunks::<3>();
        let gaps: Vec<Gap> = triples
            .iter()
            .map(|&[from, to, is_dirty]| Gap { from, to, is_dirty: is_dirty > 0 })
            .collect();
        let is_valid = rest.is_empty()
            && gaps.iter().all(|gap| gap.from <= gap.to)
            && gaps.is_sorted_by(|a, b| a.to < b.from);
        if is_valid { Ok(gaps) } else { Err(corrupt("the list of gaps breaks its rules")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_never_use_the_same_number() {
        let first = Head::new(1).raised(true).unwrap();
        let mut second = first.raised(false).unwrap();
        assert_ne!(first.next_commit(), second.next_commit());
        assert_eq!(second.gap_of(first.next_commit()).unwrap().from, first.next_commit());
        assert_eq!(second.gap_of(second.next_commit()), None);

        second.commit = second.next_commit();
        let third = second.raised(false).unwrap();
        assert_eq!(third.gap_of(second.commit), None, "a commit stays one");
        assert!(third.gap_of(second.next_commit()).is_some());
        assert!(third.next_commit() > second.next_commit());
    }

    #[test]
    fn openings_without_commits_leave_one_gap() {
        let mut head = Head::new(1);
        for _ in 0..100 {
            head = head.raised(true).unwrap();
        }
        assert_eq!(head.gaps.len(), 1);
        assert_eq!(Head::gaps_of(&head.gap_numbers()).unwrap(), head.gaps);

        // Each of these may have left rows under its first number.
        for _ in 0..5 {
            head = head.raised(false).unwrap();
        }
        assert_eq!(head.gaps.len(), 6);
    }

    #[test]
    fn the_collector_goes_over_commits_and_gaps_in_their_order() {
        let mut head = Head::new(1).raised(true).unwrap();
        let mut expected = vec![head.gaps[0].to];
        for epoch in 0..3 {
            for _ in 0..4 {
                head.commit = head.next_commit();
                expected.push(head.commit);
            }
            head = head.raised(epoch % 2 == 0).unwrap();
            expected.push(head.gaps.last().unwrap().to);
        }

        let mut found = Vec::new();
        while let Some(work) = head.work() {
            head.collect(work, 0);
            found.push(head.collected);
        }
        assert_eq!(found, expected);
        assert!(head.gaps.is_empty());
        assert_eq!(head.collected + 1, head.next_commit(), "the next commit is the next work");
    }

    #[test]
    fn lists_that_break_the_rules_are_refused() {
        for numbers in [&[1, 2][..], &[2, 1, 0], &[5, 9, 0, 7, 12, 0], &[5, 9, 0, 1, 2, 1]] {
            assert!(Head::gaps_of(numbers).is_err(), "{numbers:?}");
        }
    }

    #[test]
    fn epochs_end_before_their_numbers_do() {
        let mut head = Head::new(1);
        head.epoch = EPOCH_MAX;
        assert!(head.next_commit() > 0 && head.raised(true).is_err());
    }
}

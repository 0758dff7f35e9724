//! A merge of sorted runs: a loser tree over their readers.
//!
//! The runs are the leaves; each inner node keeps the loser of the match played there. Taking the
//! smallest record replays one path, log2(runs) comparisons, most of them of the first eight bytes
//! of keys.
//!
//! Invariant: of records with equal keys, that of the newest run comes first, and is the only one
//! that the merge gives.

use terrane_io::key_order::key_prefix;

use super::run::{Record, RunReader};
use crate::page::error::{Error, Result};

/// A run in a match.
#[derive(Debug, Clone, Copy)]
struct Contender {
    prefix: u64,
    run: u32,
    has_ended: bool,
}

/// The merge of some runs.
#[derive(Debug)]
pub(super) struct Merge {
    /// Readers in the order of the input, oldest first.
    readers: Vec<RunReader>,
    /// Losers of the inner nodes `1..readers`; node 0 has the winner.
    tree: Vec<Contender>,
    /// Whether the merge has given a record.
    is_given: bool,
    /// Key and position of the record given last.
    last: Vec<u8>,
    last_position: u64,
    is_unique: bool,
}

impl Merge {
    /// A merge before its first record.
    pub(super) fn new(readers: Vec<RunReader>, is_unique: bool) -> Self {
        let mut merge = Self {
            readers,
            tree: Vec::new(),
            is_given: false,
            last: Vec::new(),
            last_position: 0,
            is_unique,
        };

        if !merge.readers.is_empty() {
            merge.tree = vec![merge.contender(0); merge.readers.len()];
            merge.tree[0] = merge.play(1);
        }

        merge
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let readers: usize = self.readers.iter().map(RunReader::memory_bytes).sum();
        readers + self.tree.capacity() * size_of::<Contender>() + self.last.capacity()
    }

    /// The current record of a run, for a match.
    fn contender(&self, run: usize) -> Contender {
        let current = self.readers[run].current();
        let prefix = current.map_or(u64::MAX, |record| key_prefix(record.key));
        Contender { prefix, run: run as u32, has_ended: current.is_none() }
    }

    /// Whether the left record comes before the right one; of equal keys, that of the newer run.
    fn is_before(&self, left: &Contender, right: &Contender) -> bool {
        if left.prefix != right.prefix {
            return left.prefix < right.prefix;
        }
        // An ended run has the highest prefix, which a key can have as well.
        if left.has_ended || right.has_ended {
            return right.has_ended;
        }
        let key = |of: &Contender| self.readers[of.run as usize].current().map(|record| record.key);
        key(left).cmp(&key(right)).then(right.run.cmp(&left.run)).is_lt()
    }

    /// Plays all matches below `node`, and returns the winner. The depth is log2 of the runs.
    fn play(&mut self, node: usize) -> Contender {
        let count = self.readers.len();
        if node >= count {
            return self.contender(node - count);
        }
        let left = self.play(2 * node);
        let right = self.play(2 * node + 1);
        let is_left = self.is_before(&left, &right);
        let (winner, loser) = if is_left { (left, right) } else { (right, left) };
        self.tree[node] = loser;
        winner
    }

    /// The run whose record comes next; `None` if all runs have ended.
    fn winner(&self) -> Option<usize> {
        let winner = self.tree.first()?;
        (!winner.has_ended).then_some(winner.run as usize)
    }

    /// Passes over the winner's record and finds the next winner.
    fn advance(&mut self, winner: usize) -> Result<()> {
        self.readers[winner].advance()?;

        // Only the matches on the path of this run can have another outcome now.
        let mut best = self.contender(winner);

        let mut node = (winner + self.readers.len()) / 2;
        while node > 0 {
            if self.is_before(&self.tree[node], &best) {
                std::mem::swap(&mut self.tree[node], &mut best);
            }
            node /= 2;
        }

        self.tree[0] = best;
        Ok(())
    }

    /// Returns the next record, of another key than the last one; `None` at the end.
    ///
    /// # Errors
    /// Those of the disk, [`Error::Corrupt`], and [`Error::DuplicateKey`] where keys are unique.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>> {
        while let Some(winner) = self.winner()
            && let Some(record) = self.readers[winner].current()
        {
            if !self.is_given || record.key != self.last {
                self.is_given = true;
                self.last.clear();
                self.last.extend_from_slice(record.key);
                self.last_position = record.position;
                return Ok(self.readers[winner].current());
            }

            // The record given last, or an older record of its key.
            if self.is_unique && record.position != self.last_position {
                return Err(Error::DuplicateKey { position: self.last_position });
            }

            self.advance(winner)?;
        }

        Ok(None)
    }
}

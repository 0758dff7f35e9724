//! Several sorted runs as one: a loser tree over their readers.
//!
//! The runs are the leaves, each inner node remembers the loser of the match played there, and
//! taking the smallest record replays one path, log2(runs) comparisons; most of them look at the
//! first eight bytes of keys only.
//!
//! Invariant: of records of one key that of the newest run comes first, and is the only one that is
//! given.

use super::run::{Record, RunReader, key_prefix};
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
    /// In the order of the input, oldest first.
    readers: Vec<RunReader>,
    /// Losers of the inner nodes `1..readers`; node 0 has the winner.
    tree: Vec<Contender>,
    /// Whether a record has been given.
    is_given: bool,
    /// Key and position of the record given last.
    last: Vec<u8>,
    last_position: u64,
    is_unique: bool,
}

impl Merge {
    /// A merge before its first record.
    pub(super) fn new(readers: Vec<RunReader>, is_unique: bool) -> Self {
        let (last, last_position, is_given) = (Vec::new(), 0, false);
        let mut merge =
            Self { readers, tree: Vec::new(), is_given, last, last_position, is_unique };
        if !merge.readers.is_empty() {
            merge.tree = vec![merge.contender(0); merge.readers.len()];
            merge.tree[0] = merge.play(1);
        }
        merge
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let readers: usize = self.readers.iter().map(RunReader::memory_bytes).sum();
        readers + self.tree.capacity() * size_of::<Contender>() + self.last.capacity()
    }

    fn contender(&self, run: usize) -> Contender {
        let current = self.readers[run].current();
        let prefix = current.map_or(u64::MAX, |record| key_prefix(record.key));
        Contender { prefix, run: run as u32, has_ended: current.is_none() }
    }

    fn is_before(&self, left: &Contender, right: &Contender) -> bool {
        if left.prefix != right.prefix {
            return left.prefix < right.prefix;
        }
        if left.has_ended || right.has_ended {
            return right.has_ended;
        }
        let key = |of: &Contender| self.readers[of.run as usize].current().map(|record| record.key);
        key(left).cmp(&key(right)).then(right.run.cmp(&left.run)).is_lt()
    }

    /// Plays all matches below `node` and returns the winner. The depth is log2 of the runs.
    fn play(&mut self, node: usize) -> Contender {
        let count = self.readers.len();
        if node >= count {
            return self.contender(node - count);
        }
        let (left, right) = (self.play(2 * node), self.play(2 * node + 1));
        let is_left = self.is_before(&left, &right);
        let (winner, loser) = if is_left { (left, right) } else { (right, left) };
        self.tree[node] = loser;
        winner
    }

    /// The run whose record comes next, unless all have ended.
    fn winner(&self) -> Option<usize> {
        let winner = self.tree.first()?;
        (!winner.has_ended).then_some(winner.run as usize)
    }

    /// Passes the record of the winner and finds the next one.
    fn advance(&mut self, winner: usize) -> Result<()> {
        self.readers[winner].advance()?;
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

    /// The next record, of another key than the last one; `None` at the end.
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
            // What was given, or an older record of its key.
            if self.is_unique && record.position != self.last_position {
                return Err(Error::DuplicateKey { position: self.last_position });
            }
            self.advance(winner)?;
        }
        Ok(None)
    }
}

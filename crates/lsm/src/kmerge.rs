//! Several sorted sources as one: the newest entry of each key, in key order.
//!
//! A loser tree: the sources are the leaves, each inner node remembers the loser of the match played
//! there, and taking the smallest entry replays one path, log2(sources) comparisons. Comparisons look at
//! the first eight bytes of the keys as one number before they look at the keys.
//!
//! Invariant: source 0 is the newest; among equal keys the newest wins and the others are passed over.

use crate::entry::{EntryRef, key_prefix};
use crate::error::Result;
use crate::run_reader::RunReader;
use crate::write_buffer::SegmentReader;

/// A sorted source.
#[derive(Debug)]
pub(crate) enum Source {
    Run(Box<RunReader>),
    Segment(SegmentReader),
}

impl Source {
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        match self {
            Self::Run(reader) => reader.current(),
            Self::Segment(reader) => reader.current(),
        }
    }

    /// The current key; `None` at the end.
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Run(reader) => reader.key(),
            Self::Segment(reader) => reader.key(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Self::Run(reader) => reader.advance(),
            Self::Segment(reader) => {
                reader.advance();
                Ok(())
            }
        }
    }
}

/// What a source offers in a match.
#[derive(Debug, Clone, Copy)]
struct Head {
    prefix: u64,
    ended: bool,
}

/// The merge of some sources.
#[derive(Debug)]
pub(crate) struct KMerge {
    sources: Vec<Source>,
    heads: Vec<Head>,
    /// Losers of the inner nodes `1..sources`; node 0 holds the winner.
    tree: Vec<u32>,
    /// The key that was passed last.
    passed: Vec<u8>,
    /// Whether a source failed, so that nobody knows where it stands.
    failed: bool,
}

impl KMerge {
    /// A merge of `sources`, newest first.
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let mut merge = Self {
            heads: Vec::new(),
            tree: vec![0; sources.len()],
            sources,
            passed: Vec::new(),
            failed: false,
        };
        merge.heads = merge.sources.iter().map(Self::head).collect();
        if merge.sources.len() > 1 {
            merge.tree[0] = merge.play(1);
        }
        merge
    }

    fn head(source: &Source) -> Head {
        match source.key() {
            Some(key) => Head { prefix: key_prefix(key), ended: false },
            None => Head { prefix: u64::MAX, ended: true },
        }
    }

    /// Plays all matches below `node` and returns the winner. The depth is log2 of the sources.
    fn play(&mut self, node: usize) -> u32 {
        let count = self.sources.len();
        if node >= count {
            return (node - count) as u32;
        }
        let (left, right) = (self.play(2 * node), self.play(2 * node + 1));
        let (winner, loser) = if self.before(left, right) { (left, right) } else { (right, left) };
        self.tree[node] = loser;
        winner
    }

    /// Whether source `a` comes out before source `b`.
    fn before(&self, a: u32, b: u32) -> bool {
        let (head_a, head_b) = (self.heads[a as usize], self.heads[b as usize]);
        if head_a.ended != head_b.ended {
            return head_b.ended;
        }
        if head_a.prefix != head_b.prefix {
            return head_a.prefix < head_b.prefix;
        }
        let key = |source: u32| self.sources[source as usize].key();
        key(a).cmp(&key(b)).then(a.cmp(&b)).is_lt()
    }

    fn winner(&self) -> Option<usize> {
        self.tree.first().map(|&winner| winner as usize)
    }

    /// The entry with the smallest key, from the newest source that has it; `None` at the end.
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        self.sources[self.winner()?].current()
    }

    /// The salted hash of the current key, where the source has it at hand.
    pub(crate) fn hash(&self) -> Option<u64> {
        match &self.sources[self.winner()?] {
            Source::Segment(reader) => reader.hash(),
            Source::Run(_) => None,
        }
    }

    /// Passes the current key in all sources.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let mut passed = std::mem::take(&mut self.passed);
        passed.clear();
        if let Some(winner) = self.winner()
            && let Some(key) = self.sources[winner].key()
        {
            passed.extend_from_slice(key);
            let prefix = self.heads[winner].prefix;
            loop {
                self.advance_winner()?;
                let same = self.winner().is_some_and(|winner| {
                    let head = self.heads[winner];
                    !head.ended
                        && head.prefix == prefix
                        && self.sources[winner].key() == Some(passed.as_slice())
                });
                if !same {
                    break;
                }
            }
        }
        self.passed = passed;
        Ok(())
    }

    fn advance_winner(&mut self) -> Result<()> {
        let Some(mut winner) = self.winner() else { return Ok(()) };
        if let Err(error) = self.sources[winner].advance() {
            self.failed = true;
            return Err(error);
        }
        self.heads[winner] = Self::head(&self.sources[winner]);
        let mut node = (winner + self.sources.len()) / 2;
        while node > 0 {
            let other = self.tree[node];
            if self.before(other, winner as u32) {
                self.tree[node] = winner as u32;
                winner = other as usize;
            }
            node /= 2;
        }
        self.tree[0] = winner as u32;
        Ok(())
    }

    /// Whether all sources stand at an entry or at their end: until one has failed.
    pub(crate) fn is_whole(&self) -> bool {
        !self.failed
    }

    /// Pages passed in all runs together.
    pub(crate) fn pages_passed(&self) -> u64 {
        let pages = |source: &Source| match source {
            Source::Run(reader) => u64::from(reader.pages_passed()),
            Source::Segment(_) => 0,
        };
        self.sources.iter().map(pages).sum()
    }
}

//! Several sorted sources as one: what all entries of a key together amount to, in key order.
//!
//! A loser tree: the sources are the leaves, each inner node remembers the loser of the match played
//! there, and taking the smallest entry replays one path, log2(sources) comparisons. Comparisons look at
//! the first eight bytes of the keys as one number before they look at the keys.
//!
//! A source that has not been read takes part with a bound of its first key, and is read when it wins. So
//! of sources that follow each other only one is read at a time, and none before the first entry is wanted.
//!
//! The sources are the levels of one table, newest first: then the newest entry of a key counts, unless it
//! is an upsert, which combines with what is older (table in [`crate::entry`]). Or they are the tables of
//! a union, left to right, each giving only what it amounts to itself; then
//!
//! | left          | right         | result                                                        |
//! |---------------|---------------|---------------------------------------------------------------|
//! | absent        | absent        | absent, given as a deletion                                   |
//! | absent        | present       | the right entry, with its blob                                |
//! | present       | absent        | the left entry, with its blob                                 |
//! | present (*u*) | present (*v*) | *f*(*u*, *v*), with the left's blob if the left has one       |
//!
//! Invariant: among equal keys source 0 comes first; each key comes out once. Once the merge is loaded, the
//! winner is.

use crate::blob::Blob;
use crate::entry::{BlobSpan, EntryRef, Kind, Order, key_prefix};
use crate::error::Result;
use crate::resolve::Resolve;
use crate::run_reader::RunReader;
use crate::write_buffer::SegmentReader;

/// A sorted source.
#[derive(Debug)]
pub(crate) enum Source {
    Run(Box<RunReader>),
    Segment(SegmentReader),
    /// A table of a union, or a union below a table.
    Merge(Box<KMerge>),
}

impl Source {
    fn is_loaded(&self) -> bool {
        match self {
            Self::Run(reader) => reader.is_loaded(),
            Self::Segment(_) => true,
            Self::Merge(merge) => merge.is_loaded,
        }
    }

    fn load(&mut self) -> Result<()> {
        match self {
            Self::Run(reader) => reader.load(),
            Self::Segment(_) => Ok(()),
            Self::Merge(merge) => merge.load(),
        }
    }

    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        match self {
            Self::Run(reader) => reader.current(),
            Self::Segment(reader) => reader.current(),
            Self::Merge(merge) => merge.current(),
        }
    }

    /// The current key, or a bound of the first one before the source is loaded; `None` at the end.
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Run(reader) => reader.key(),
            Self::Segment(reader) => reader.key(),
            Self::Merge(merge) => merge.key(),
        }
    }

    /// The blob of the current entry, if it has one.
    fn blob(&self) -> Option<Blob> {
        match self {
            Self::Run(reader) => reader.blob(),
            Self::Segment(reader) => reader.blob(),
            Self::Merge(merge) => merge.blob(),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Self::Run(reader) => reader.advance(),
            Self::Segment(reader) => {
                reader.advance();
                Ok(())
            }
            Self::Merge(merge) => merge.advance(),
        }
    }
}

/// What the sources of a merge are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    /// Levels of one table, newest first.
    Levels,
    /// Tables of a union, left to right.
    Union,
}

/// How entries of one key become one, and in which order keys come.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) combine: Combine,
    pub(crate) resolve: Resolve,
    pub(crate) order: Order,
}

/// What a source offers in a match.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// First bytes of the key, such that the smaller number comes first in the order of the merge.
    prefix: u64,
    ended: bool,
}

/// An entry made of several.
#[derive(Debug)]
struct Combined {
    key: Vec<u8>,
    kind: Kind,
    value: Vec<u8>,
    blob: Option<Blob>,
}

/// The merge of some sources.
#[derive(Debug)]
pub(crate) struct KMerge {
    sources: Vec<Source>,
    rules: Rules,
    heads: Vec<Head>,
    /// Losers of the inner nodes `1..sources`; node 0 holds the winner.
    tree: Vec<u32>,
    /// The current entry if it is made of several, which all sources have passed then; otherwise the
    /// winner's entry is current.
    combined: Combined,
    is_combined: bool,
    is_loaded: bool,
    /// The key that was passed last.
    passed: Vec<u8>,
    /// Whether a source failed, so that nobody knows where it stands.
    failed: bool,
}

impl KMerge {
    /// A merge of `sources`, before its first entry. Reads nothing.
    pub(crate) fn new(sources: Vec<Source>, rules: Rules) -> Self {
        let combined =
            Combined { key: Vec::new(), kind: Kind::Delete, value: Vec::new(), blob: None };
        let mut merge = Self {
            heads: sources.iter().map(|source| Self::head(source, rules.order)).collect(),
            tree: vec![0; sources.len()],
            sources,
            rules,
            combined,
            is_combined: false,
            is_loaded: false,
            passed: Vec::new(),
            failed: false,
        };
        if merge.sources.len() > 1 {
            merge.tree[0] = merge.play(1);
        }
        merge
    }

    /// Goes to the first entry, unless that has been done.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub(crate) fn load(&mut self) -> Result<()> {
        if !self.is_loaded {
            self.load_winner()?;
            self.is_loaded = true;
            self.settle()?;
        }
        Ok(())
    }

    /// Reads from the winner, and from whoever wins then, until the winner is known.
    fn load_winner(&mut self) -> Result<()> {
        while let Some(winner) = self.winner()
            && !self.sources[winner].is_loaded()
        {
            if let Err(error) = self.sources[winner].load() {
                self.failed = true;
                return Err(error);
            }
            self.replay(winner);
        }
        Ok(())
    }

    fn head(source: &Source, order: Order) -> Head {
        match (source.key(), order) {
            (Some(key), Order::Ascending) => Head { prefix: key_prefix(key), ended: false },
            (Some(key), Order::Descending) => Head { prefix: !key_prefix(key), ended: false },
            (None, _) => Head { prefix: u64::MAX, ended: true },
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
        let order = head_a.prefix.cmp(&head_b.prefix).then_with(|| {
            let key = |source: u32| self.sources[source as usize].key();
            match self.rules.order {
                Order::Ascending => key(a).cmp(&key(b)),
                Order::Descending => key(b).cmp(&key(a)),
            }
        });
        order.then(a.cmp(&b)).is_lt()
    }

    /// The source whose entry comes next, unless all have ended.
    fn winner(&self) -> Option<usize> {
        let winner = *self.tree.first()? as usize;
        (!self.heads[winner].ended).then_some(winner)
    }

    /// The current key, or a bound of the first one; `None` at the end.
    fn key(&self) -> Option<&[u8]> {
        if self.is_combined { Some(&self.combined.key) } else { self.sources[self.winner()?].key() }
    }

    /// The entry with the smallest key (in descending order: the largest) of a merge that is loaded; `None`
    /// at the end. The place of its blob means nothing here, see [`blob`](Self::blob).
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        if self.is_combined {
            let Combined { key, kind, value, .. } = &self.combined;
            return Some(EntryRef { key, kind: *kind, value, blob: BlobSpan::default() });
        }
        self.sources[self.winner()?].current()
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        if self.is_combined {
            return self.combined.blob.clone();
        }
        self.sources[self.winner()?].blob()
    }

    /// The salted hash of the current key, where the source has it at hand.
    pub(crate) fn hash(&self) -> Option<u64> {
        match &self.sources[self.winner()?] {
            Source::Segment(reader) if !self.is_combined => reader.hash(),
            _ => None,
        }
    }

    /// Passes the current key in all sources.
    ///
    /// # Errors
    /// Those of the sources, and [`ValueTooLarge`](crate::Error::ValueTooLarge) from combining.
    pub(crate) fn advance(&mut self) -> Result<()> {
        if self.is_combined {
            self.is_combined = false;
            self.combined.blob = None;
        } else if let Some(winner) = self.winner() {
            let mut passed = std::mem::take(&mut self.passed);
            passed.clear();
            passed.extend_from_slice(self.sources[winner].key().unwrap_or_default());
            let prefix = self.heads[winner].prefix;
            loop {
                self.advance_winner()?;
                if !self.is_at(&passed, prefix) {
                    break;
                }
            }
            self.passed = passed;
        }
        self.settle()
    }

    /// Whether the winner stands at `key`, whose first bytes are `prefix`.
    fn is_at(&self, key: &[u8], prefix: u64) -> bool {
        self.winner().is_some_and(|winner| {
            self.heads[winner].prefix == prefix && self.sources[winner].key() == Some(key)
        })
    }

    /// Makes one entry of all those of the winner's key, where the rules ask for it.
    fn settle(&mut self) -> Result<()> {
        let Some(entry) = self.winner().and_then(|winner| self.sources[winner].current()) else {
            return Ok(());
        };
        if self.rules.combine == Combine::Levels && entry.kind.is_decisive() {
            return Ok(());
        }
        // A resolve function that panics leaves nothing whole behind.
        self.failed = true;
        self.combine()?;
        self.failed = false;
        Ok(())
    }

    fn combine(&mut self) -> Result<()> {
        let Some(first) = self.winner() else { return Ok(()) };
        let prefix = self.heads[first].prefix;
        let mut key = std::mem::take(&mut self.combined.key);
        key.clear();
        key.extend_from_slice(self.sources[first].key().unwrap_or_default());
        // Nothing yet: what an upsert of the table's own levels, or the leftmost table, comes upon.
        let mut kind = None;
        while self.is_at(&key, prefix) {
            let Self { sources, rules, combined, tree, .. } = self;
            let source = &sources[tree[0] as usize];
            let Some(older) = source.current() else { break };
            match (rules.combine, kind) {
                (_, None) if rules.combine == Combine::Levels || older.kind != Kind::Delete => {
                    kind = Some(older.kind);
                    combined.value.clear();
                    combined.value.extend_from_slice(older.value);
                    combined.blob = source.blob();
                }
                (Combine::Levels, Some(Kind::Upsert)) => {
                    if older.kind != Kind::Delete {
                        rules.resolve.combine(&mut combined.value, older.value)?;
                    }
                    kind = Some(older.kind.under_upsert());
                }
                (Combine::Union, Some(_)) if older.kind != Kind::Delete => {
                    rules.resolve.combine(&mut combined.value, older.value)?;
                }
                _ => {}
            }
            self.advance_winner()?;
        }
        self.combined.kind = match (self.rules.combine, kind) {
            (_, None) => Kind::Delete,
            (Combine::Levels, Some(kind)) => kind,
            (Combine::Union, Some(_)) if self.combined.blob.is_some() => Kind::InsertBlob,
            (Combine::Union, Some(_)) => Kind::Insert,
        };
        if self.combined.kind == Kind::Delete {
            self.combined.value.clear();
        }
        self.combined.key = key;
        self.is_combined = true;
        Ok(())
    }

    fn advance_winner(&mut self) -> Result<()> {
        let Some(&winner) = self.tree.first() else { return Ok(()) };
        if let Err(error) = self.sources[winner as usize].advance() {
            self.failed = true;
            return Err(error);
        }
        self.replay(winner as usize);
        self.load_winner()
    }

    /// Plays the matches of a source again that has changed; it must be the winner.
    fn replay(&mut self, source: usize) {
        let mut winner = source as u32;
        self.heads[source] = Self::head(&self.sources[source], self.rules.order);
        let mut node = (source + self.sources.len()) / 2;
        while node > 0 {
            let other = self.tree[node];
            if self.before(other, winner) {
                self.tree[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.tree[0] = winner;
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
            Source::Merge(merge) => merge.pages_passed(),
        };
        self.sources.iter().map(pages).sum()
    }

    /// Entries passed in all runs together.
    pub(crate) fn entries_passed(&self) -> u64 {
        let entries = |source: &Source| match source {
            Source::Run(reader) => reader.entries_passed(),
            Source::Segment(_) => 0,
            Source::Merge(merge) => merge.entries_passed(),
        };
        self.sources.iter().map(entries).sum()
    }
}

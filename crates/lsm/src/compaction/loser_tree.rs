//! Merge iterator: several sorted sources as one, in key order, with the entries of each key
//! combined.
//!
//! A loser tree: the sources are the leaves, each inner node remembers the loser of the match
//! played there, and taking the smallest entry replays one path, log2(sources) comparisons.
//! Comparisons look at the first eight bytes of the keys as one number before they look at the
//! keys. A source that stays below all others, as a large one beside small ones mostly does, plays
//! no match; a compaction takes its entries by the run ([`MergeIterator::pass_to`]).
//!
//! A source that has not been read takes part with a bound of its first key, and is read when it
//! wins. So of sources that follow each other only one is read at a time, and none before the first
//! entry is wanted.
//!
//! The sources are the levels of one table, newest first: then the newest entry of a key counts,
//! unless it is an upsert, which combines with what is older (table in [`crate::entry::entry`]). Or
//! they are the tables of a union, left to right, each giving only what it amounts to itself; then
//!
//! | left          | right         | result                                                        |
//! |---------------|---------------|---------------------------------------------------------------|
//! | absent        | absent        | absent, given as a deletion                                   |
//! | absent        | present       | the right entry, with its blob                                |
//! | present       | absent        | the left entry, with its blob                                 |
//! | present (*u*) | present (*v*) | *f*(*u*, *v*), with the left's blob if the left has one       |
//!
//! Invariant: among equal keys source 0 comes first; each key comes out once. Once the merge is
//! loaded, the winner is.

use terrane_io::key_order::key_prefix;

use crate::entry::entry::{BlobSpan, EntryRef, Kind, Order};
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::memtable::part::MemtablePartReader;
use crate::run::blob::Blob;
use crate::run::slices::SlicesReader;

/// A sorted source.
#[derive(Debug)]
pub(crate) enum Source {
    /// One run, or slices.
    Runs(Box<SlicesReader>),
    Memtable(MemtablePartReader),
    /// A table of a union, or a union below a table.
    Merge(Box<MergeIterator>),
}

impl Source {
    #[inline]
    fn is_loaded(&self) -> bool {
        match self {
            Self::Runs(reader) => reader.is_loaded(),
            Self::Memtable(_) => true,
            Self::Merge(merge) => merge.is_loaded,
        }
    }

    /// Asks for what [`load`](Self::load) reads first.
    fn ask_first(&mut self) {
        match self {
            Self::Runs(reader) => reader.ask_first(),
            Self::Memtable(_) => {}
            Self::Merge(merge) => merge.ask_first(),
        }
    }

    fn load(&mut self) -> Result<()> {
        match self {
            Self::Runs(reader) => reader.load(),
            Self::Memtable(_) => Ok(()),
            Self::Merge(merge) => merge.load(),
        }
    }

    #[inline]
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        match self {
            Self::Runs(reader) => reader.current(),
            Self::Memtable(reader) => reader.current(),
            Self::Merge(merge) => merge.current(),
        }
    }

    /// The kind of the current entry; `None` at the end.
    #[inline]
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Runs(reader) => reader.kind(),
            Self::Memtable(reader) => reader.kind(),
            Self::Merge(merge) => merge.kind(),
        }
    }

    /// The current key, or a bound of the first one before the source is loaded; `None` at the end.
    #[inline]
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Runs(reader) => reader.key(),
            Self::Memtable(reader) => reader.key(),
            Self::Merge(merge) => merge.key(),
        }
    }

    /// First bytes of [`key`](Self::key) as a number; `None` at the end.
    #[inline]
    fn key_prefix(&self) -> Option<u64> {
        match self {
            Self::Runs(reader) => reader.key_prefix(),
            Self::Memtable(reader) => reader.key().map(key_prefix),
            Self::Merge(merge) => merge.key().map(key_prefix),
        }
    }

    /// The blob of the current entry, if it has one.
    fn blob(&self) -> Option<Blob> {
        match self {
            Self::Runs(reader) => reader.blob(),
            Self::Memtable(reader) => reader.blob(),
            Self::Merge(merge) => merge.blob(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        match self {
            Self::Runs(reader) => reader.advance(),
            Self::Memtable(reader) => {
                reader.advance();
                Ok(())
            }
            Self::Merge(merge) => merge.advance(),
        }
    }
}

/// Position in a source.
trait Position {
    /// The current entry; `None` at the end.
    fn current(&self) -> Option<EntryRef<'_>>;

    /// The salted hash of the current key, if the source has it at hand.
    fn hash(&self) -> Option<u64>;

    /// First bytes of the current key as a number, and the kind of the entry; `None` at the end.
    fn head(&self) -> Option<(u64, Kind)>;

    fn advance(&mut self) -> Result<()>;
}

impl Position for SlicesReader {
    #[inline]
    fn current(&self) -> Option<EntryRef<'_>> {
        Self::current(self)
    }

    #[inline]
    fn hash(&self) -> Option<u64> {
        None
    }

    #[inline]
    fn head(&self) -> Option<(u64, Kind)> {
        Some((self.key_prefix()?, self.kind()?))
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        Self::advance(self)
    }
}

impl Position for MemtablePartReader {
    #[inline]
    fn current(&self) -> Option<EntryRef<'_>> {
        Self::current(self)
    }

    #[inline]
    fn hash(&self) -> Option<u64> {
        Self::hash(self)
    }

    #[inline]
    fn head(&self) -> Option<(u64, Kind)> {
        Some((key_prefix(self.key()?), self.kind()?))
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        Self::advance(self);
        Ok(())
    }
}

impl Position for MergeIterator {
    fn current(&self) -> Option<EntryRef<'_>> {
        Self::current(self)
    }

    fn hash(&self) -> Option<u64> {
        None
    }

    fn head(&self) -> Option<(u64, Kind)> {
        Some((key_prefix(self.key()?), self.kind()?))
    }

    fn advance(&mut self) -> Result<()> {
        Self::advance(self)
    }
}

/// Hands entries of one source to `sink`, up to `limit`, while their keys are surely below those of
/// all other sources, as `is_alone` says by their first bytes. Stops before an entry with a blob.
/// The first entry must be such a one. Returns how many `sink` has taken.
#[inline]
fn pass_alone<P: Position>(
    position: &mut P,
    limit: usize,
    is_alone: impl Fn(u64) -> bool,
    sink: &mut impl FnMut(EntryRef<'_>, Option<&Blob>, Option<u64>) -> Result<()>,
) -> (usize, Passing) {
    let mut count = 0;
    while let Some(entry) = position.current() {
        if let Err(error) = sink(entry, None, position.hash()) {
            return (count, Passing::Refused(error));
        }
        if let Err(error) = position.advance() {
            return (count, Passing::Failed(error));
        }
        count += 1;
        let head = position.head();
        let goes_on = |(prefix, kind)| is_alone(prefix) && kind != Kind::InsertBlob;
        if count >= limit || !head.is_some_and(goes_on) {
            break;
        }
    }
    (count, Passing::Whole)
}

/// How the passing of some entries has ended.
#[derive(Debug)]
enum Passing {
    Whole,
    /// The receiver has not taken the current entry.
    Refused(Error),
    /// The source has failed, so its position is unknown.
    Failed(Error),
}

/// Relation of the sources of a merge to each other.
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
    pub(crate) operator: MergeOperator,
    pub(crate) order: Order,
}

/// A source in a match of the loser tree.
#[derive(Debug, Clone, Copy)]
struct Contender {
    /// First bytes of the key, such that the smaller number comes first in the order of the merge.
    prefix: u64,
    source: u32,
    ended: bool,
}

impl Contender {
    /// Whether it comes out before another contender.
    #[inline]
    fn is_before(&self, other: &Self, sources: &[Source], order: Order) -> bool {
        if self.prefix == other.prefix {
            self.is_before_by_key(other, sources, order)
        } else {
            self.prefix < other.prefix
        }
    }

    fn is_before_by_key(&self, other: &Self, sources: &[Source], order: Order) -> bool {
        // An ended source has the largest prefix, which a key of 0xFF bytes may have too.
        if self.ended != other.ended {
            return other.ended;
        }
        let key = |of: &Self| sources[of.source as usize].key();
        let order = match order {
            Order::Ascending => key(self).cmp(&key(other)),
            Order::Descending => key(other).cmp(&key(self)),
        };
        // Among equal keys the newer source comes first, in both directions.
        order.then(self.source.cmp(&other.source)).is_lt()
    }
}

/// An entry that was combined from several sources.
#[derive(Debug)]
struct Combined {
    key: Vec<u8>,
    kind: Kind,
    value: Vec<u8>,
    blob: Option<Blob>,
}

/// Merge iterator over some sources (RocksDB: the same name).
#[derive(Debug)]
pub(crate) struct MergeIterator {
    sources: Vec<Source>,
    rules: Rules,
    /// Losers of the inner nodes `1..sources`; node 0 holds the winner. Invariant: as long as
    /// `sources`.
    tree: Vec<Contender>,
    /// The smallest prefix of all sources but the winner.
    runner_up: u64,
    /// The current entry if it is made of several, which all sources have passed then; otherwise
    /// the winner's entry is current.
    combined: Combined,
    is_combined: bool,
    /// Kind of the current entry, if there is one.
    kind: Option<Kind>,
    is_loaded: bool,
    /// Sources that have not been read.
    unread: usize,
    /// The key that was passed last.
    passed: Vec<u8>,
    /// Whether a source failed, so that its position is unknown.
    failed: bool,
}

impl MergeIterator {
    /// Returns the merge of `sources`, before its first entry. Reads nothing.
    pub(crate) fn new(sources: Vec<Source>, rules: Rules) -> Self {
        let combined =
            Combined { key: Vec::new(), kind: Kind::Delete, value: Vec::new(), blob: None };
        let mut merge = Self {
            tree: Vec::new(),
            runner_up: u64::MAX,
            unread: sources.iter().filter(|source| !source.is_loaded()).count(),
            sources,
            rules,
            combined,
            is_combined: false,
            kind: None,
            is_loaded: false,
            passed: Vec::new(),
            failed: false,
        };

        assert!(u32::try_from(merge.sources.len()).is_ok(), "contenders number sources by u32");
        if !merge.sources.is_empty() {
            merge.tree = vec![merge.contender(0); merge.sources.len()];
            merge.tree[0] = merge.play(1);
            merge.runner_up = merge.find_runner_up();
        }

        merge
    }

    /// Asks for the first pages of all sources, for a merge that will soon be at an end: sources
    /// that it does not get to are read in vain. The recursion is as deep as unions are nested.
    pub(crate) fn ask_first(&mut self) {
        self.sources.iter_mut().for_each(Source::ask_first);
    }

    /// Goes to the first entry, unless that has been done.
    ///
    /// # Errors
    /// Those of [`advance`](Self::advance).
    pub(crate) fn load(&mut self) -> Result<()> {
        if !self.is_loaded {
            self.load_winner()?;
            self.is_loaded = true;
            self.combine_current()?;
        }
        Ok(())
    }

    /// Loads the winner, and each new winner after it, until the winner is loaded.
    fn load_winner(&mut self) -> Result<()> {
        while self.unread > 0
            && let Some(winner) = self.winner()
            && !self.sources[winner].is_loaded()
        {
            self.unread -= 1;
            if let Err(error) = self.sources[winner].load() {
                self.failed = true;
                return Err(error);
            }
            self.replay(self.contender(winner));
        }

        debug_assert!(
            self.failed || self.winner().is_none_or(|winner| self.sources[winner].is_loaded()),
            "a winner is loaded"
        );
        Ok(())
    }

    #[inline]
    fn contender(&self, source: usize) -> Contender {
        let (prefix, ended) = match (self.sources[source].key_prefix(), self.rules.order) {
            (Some(prefix), Order::Ascending) => (prefix, false),
            (Some(prefix), Order::Descending) => (!prefix, false),
            (None, _) => (u64::MAX, true),
        };
        Contender { prefix, source: source as u32, ended }
    }

    /// Plays all matches below `node` and returns the winner. The depth is log2 of the sources.
    fn play(&mut self, node: usize) -> Contender {
        let count = self.sources.len();
        debug_assert!(0 < node && node < 2 * count, "a node of the tree");
        // Nodes from `count` on are the leaves, in the order of the sources.
        if node >= count {
            return self.contender(node - count);
        }
        let left = self.play(2 * node);
        let right = self.play(2 * node + 1);
        let is_left = left.is_before(&right, &self.sources, self.rules.order);
        let (winner, loser) = if is_left { (left, right) } else { (right, left) };
        self.tree[node] = loser;
        winner
    }

    /// The source whose entry comes next, unless all have ended.
    #[inline]
    fn winner(&self) -> Option<usize> {
        let winner = self.tree.first()?;
        (!winner.ended).then_some(winner.source as usize)
    }

    /// Returns the smallest prefix of all sources but the winner. The source that has it lost to
    /// the winner, so it stands on the winner's path.
    #[inline]
    fn find_runner_up(&self) -> u64 {
        debug_assert_eq!(self.tree.len(), self.sources.len(), "a node for each source");
        let mut smallest = u64::MAX;
        let mut node = (self.tree[0].source as usize + self.sources.len()) / 2;
        while node > 0 {
            smallest = smallest.min(self.tree[node].prefix);
            node /= 2;
        }
        debug_assert!(self.tree[0].prefix <= smallest, "the winner comes first");
        smallest
    }

    /// Whether the key of the winner may be that of another source, too.
    #[inline]
    fn is_contested(&self) -> bool {
        self.tree.first().is_some_and(|winner| winner.prefix == self.runner_up)
    }

    /// The current key, or a bound of the first one; `None` at the end.
    fn key(&self) -> Option<&[u8]> {
        if self.is_combined { Some(&self.combined.key) } else { self.sources[self.winner()?].key() }
    }

    /// Returns the entry with the smallest key (in descending order: the largest) of a loaded
    /// merge; `None` at the end. Its blob span is meaningless here, see [`blob`](Self::blob).
    pub(crate) fn current(&self) -> Option<EntryRef<'_>> {
        if self.is_combined {
            let Combined { key, kind, value, .. } = &self.combined;
            return Some(EntryRef { key, kind: *kind, value, blob: BlobSpan::default() });
        }
        self.sources[self.winner()?].current()
    }

    /// The kind of the current entry; `None` at the end.
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// The blob of the current entry, if it has one.
    pub(crate) fn blob(&self) -> Option<Blob> {
        if self.is_combined {
            return self.combined.blob.clone();
        }
        self.sources[self.winner()?].blob()
    }

    /// Hands up to `limit` entries to `sink` and goes behind those that it takes. Each comes with
    /// its blob, and with the salted hash of its key where the source has that at hand. Returns
    /// whether the merge has ended before.
    ///
    /// # Errors
    /// Those of the sources, and of `sink`, to which the same entry is handed again.
    #[inline]
    pub(crate) fn pass_to(
        &mut self,
        limit: usize,
        mut sink: impl FnMut(EntryRef<'_>, Option<&Blob>, Option<u64>) -> Result<()>,
    ) -> Result<bool> {
        debug_assert!(self.is_loaded, "a merge is loaded before it is advanced");
        let mut left = limit;
        while left > 0 {
            let is_plain = self.kind.is_some_and(|kind| kind != Kind::InsertBlob);
            if is_plain && !self.is_combined && !self.is_contested() {
                left -= self.pass_winner_to(left, &mut sink)?;
                continue;
            }

            let Some(entry) = self.current() else { return Ok(true) };
            let blob = if entry.kind == Kind::InsertBlob { self.blob() } else { None };
            sink(entry, blob.as_ref(), None)?;
            self.advance()?;
            left -= 1;
        }
        Ok(false)
    }

    /// Hands entries of the winner to `sink`, at least one, while no other source can have a
    /// smaller key or the same one.
    #[inline]
    fn pass_winner_to(
        &mut self,
        limit: usize,
        sink: &mut impl FnMut(EntryRef<'_>, Option<&Blob>, Option<u64>) -> Result<()>,
    ) -> Result<usize> {
        let Some(winner) = self.winner() else { return Ok(0) };
        let runner_up = self.runner_up;
        let is_descending = self.rules.order == Order::Descending;
        let is_alone = |prefix: u64| (if is_descending { !prefix } else { prefix }) < runner_up;

        let (count, passing) = match &mut self.sources[winner] {
            Source::Runs(reader) => pass_alone(&mut **reader, limit, is_alone, sink),
            Source::Memtable(reader) => pass_alone(reader, limit, is_alone, sink),
            Source::Merge(merge) => pass_alone(&mut **merge, limit, is_alone, sink),
        };

        match passing {
            Passing::Whole => {
                self.settle_winner(winner)?;
                self.combine_current()?;
                Ok(count)
            }
            Passing::Refused(error) => {
                // The winner stands at the entry that was refused, below all others.
                self.tree[0] = self.contender(winner);
                self.kind = self.sources[winner].kind();
                Err(error)
            }
            Passing::Failed(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Advances all sources behind the current key.
    ///
    /// # Errors
    /// Those of the sources.
    pub(crate) fn advance(&mut self) -> Result<()> {
        debug_assert!(self.is_loaded, "a merge is loaded before it is advanced");
        // Nearly always one source stands at the current key.
        if !self.is_combined && !self.is_contested() {
            self.advance_winner()?;
        } else if self.is_combined {
            self.is_combined = false;
            self.combined.blob = None;
        } else {
            self.advance_all()?;
        }
        self.combine_current()
    }

    /// Advances every source that stands at the winner's key.
    fn advance_all(&mut self) -> Result<()> {
        let Some(winner) = self.winner() else { return Ok(()) };
        // The buffer leaves `self` for the loop and returns with its memory for the next key.
        let mut passed = std::mem::take(&mut self.passed);
        passed.clear();
        passed.extend_from_slice(self.sources[winner].key().unwrap_or_default());
        while self.is_at(&passed) {
            self.advance_winner()?;
        }
        self.passed = passed;
        Ok(())
    }

    /// Whether the winner stands at `key`.
    fn is_at(&self, key: &[u8]) -> bool {
        self.winner().is_some_and(|winner| self.sources[winner].key() == Some(key))
    }

    /// Combines all entries of the winner's key into one, if the rules ask for it and there are
    /// several.
    #[inline]
    fn combine_current(&mut self) -> Result<()> {
        self.kind = self.winner().and_then(|winner| self.sources[winner].kind());
        let Some(kind) = self.kind else { return Ok(()) };
        if self.rules.combine == Combine::Levels && (kind.is_decisive() || !self.is_contested()) {
            return Ok(());
        }
        // A merge operator that panics leaves the sources at unknown positions.
        self.failed = true;
        self.combine()?;
        self.failed = false;
        Ok(())
    }

    fn combine(&mut self) -> Result<()> {
        let Some(first) = self.winner() else { return Ok(()) };
        let mut key = std::mem::take(&mut self.combined.key);
        key.clear();
        key.extend_from_slice(self.sources[first].key().unwrap_or_default());

        // Nothing yet: what an upsert of the table's own levels, or the leftmost table, comes upon.
        let mut kind = None;
        while self.is_at(&key) {
            let Self { sources, rules, combined, tree, .. } = self;
            let source = &sources[tree[0].source as usize];
            let Some(older) = source.current() else { break };

            match (rules.combine, kind) {
                // In a union an absent entry on the left has no say; in a table a deletion decides.
                (_, None) if rules.combine == Combine::Levels || older.kind != Kind::Delete => {
                    kind = Some(older.kind);
                    combined.value.clear();
                    combined.value.extend_from_slice(older.value);
                    combined.blob = source.blob();
                }
                (Combine::Levels, Some(Kind::Upsert)) => {
                    let older_entry = (older.kind, older.value);
                    let is_too_large = older.kind != Kind::Delete
                        && rules.operator.combine_stored(&mut combined.value, older_entry, false);
                    let combined_kind =
                        if is_too_large { Kind::TooLarge } else { older.kind.under_upsert() };
                    kind = Some(combined_kind);
                }
                // It stays what it is.
                (Combine::Union, Some(Kind::TooLarge)) => {}
                (Combine::Union, Some(_)) if older.kind != Kind::Delete => {
                    let older = (older.kind, older.value);
                    let has_blob = combined.blob.is_some();
                    if rules.operator.combine_stored(&mut combined.value, older, has_blob) {
                        kind = Some(Kind::TooLarge);
                        combined.blob = None;
                    }
                }
                // A decisive entry hides what is older, and an absent table adds nothing.
                _ => {}
            }

            self.advance_winner()?;
        }

        self.combined.kind = match (self.rules.combine, kind) {
            (_, None) => Kind::Delete,
            (Combine::Levels, Some(kind)) | (_, Some(kind @ Kind::TooLarge)) => kind,
            (Combine::Union, Some(_)) if self.combined.blob.is_some() => Kind::InsertBlob,
            (Combine::Union, Some(_)) => Kind::Insert,
        };

        // If nothing was combined, the buffer holds the value of an earlier key.
        if self.combined.kind == Kind::Delete {
            self.combined.value.clear();
        }

        self.combined.key = key;
        self.is_combined = true;
        self.kind = Some(self.combined.kind);
        Ok(())
    }

    fn advance_winner(&mut self) -> Result<()> {
        let Some(&Contender { source, .. }) = self.tree.first() else { return Ok(()) };
        if let Err(error) = self.sources[source as usize].advance() {
            self.failed = true;
            return Err(error);
        }

        self.settle_winner(source as usize)
    }

    /// Finds the next winner after the winner has been advanced.
    #[inline]
    fn settle_winner(&mut self, winner: usize) -> Result<()> {
        // A source that stays below all others plays no match: the common case of one large source.
        let now = self.contender(winner);
        if now.prefix < self.runner_up {
            self.tree[0] = now;
            return Ok(());
        }

        self.replay(now);
        // The next winner may be a source that has only shown a bound of its first key.
        if self.unread > 0 { self.load_winner() } else { Ok(()) }
    }

    /// Replays the matches of a source that has changed; it must have been the winner.
    #[inline]
    fn replay(&mut self, mut winner: Contender) {
        debug_assert_eq!(winner.source, self.tree[0].source);
        let Self { sources, tree, rules, .. } = self;
        let mut node = (winner.source as usize + tree.len()) / 2;
        while node > 0 {
            let other = tree[node];
            let is_before = if other.prefix == winner.prefix {
                other.is_before_by_key(&winner, sources, rules.order)
            } else {
                other.prefix < winner.prefix
            };

            // Which of two sources comes first is as good as random: both ways take the same steps.
            let loser;
            (winner, loser) = if is_before { (other, winner) } else { (winner, other) };
            tree[node] = loser;
            node /= 2;
        }
        tree[0] = winner;
        self.runner_up = self.find_runner_up();
    }

    /// Whether advancing past some entries may wait for a read; a union is never asked.
    pub(crate) fn may_wait(&self) -> bool {
        self.sources.iter().any(|source| match source {
            Source::Runs(reader) => reader.may_wait(),
            Source::Memtable(_) | Source::Merge(_) => false,
        })
    }

    /// Sources, also those that have ended.
    pub(crate) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// Whether every source stands at an entry or at its end, which holds until one fails.
    pub(crate) fn is_whole(&self) -> bool {
        !self.failed
    }

    /// Pages passed in all runs together.
    pub(crate) fn pages_passed(&self) -> u64 {
        let pages = |source: &Source| match source {
            Source::Runs(reader) => reader.pages_passed(),
            Source::Memtable(_) => 0,
            Source::Merge(merge) => merge.pages_passed(),
        };
        self.sources.iter().map(pages).sum()
    }

    /// Entries passed in all runs together.
    pub(crate) fn entries_passed(&self) -> u64 {
        let entries = |source: &Source| match source {
            Source::Runs(reader) => reader.entries_passed(),
            Source::Memtable(_) => 0,
            Source::Merge(merge) => merge.entries_passed(),
        };
        self.sources.iter().map(entries).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::entry::entry::key_hash;
    use crate::entry::key_range::KeyRange;
    use crate::memtable::memtable::Memtable;
    use crate::memtable::part::{NewEntry, Room};

    /// A part whose entry for key `n` has the kind that digit `n` of `code` names, if it names
    /// one.
    fn buffer(code: usize, value: &str) -> Memtable {
        let mut buffer = Memtable::default();
        let operator = MergeOperator::concatenate();
        buffer.begin(Room::default(), &operator).unwrap();

        for n in 0..KEYS {
            let kind = match code / 4_usize.pow(u32::from(n)) % 4 {
                0 => continue,
                1 => Kind::Insert,
                2 => Kind::Upsert,
                _ => Kind::Delete,
            };
            // The first eight bytes are the same for all.
            let key = [b"the same", [n].as_slice()].concat();
            let value = if kind == Kind::Delete { b"" } else { value.as_bytes() };
            let entry = NewEntry { key: &key, hash: key_hash(1, &key), kind, value, blob: None };
            buffer.put(entry, &operator, None).unwrap();
        }

        buffer
    }

    const KEYS: u8 = 3;

    fn merge(sources: Vec<Source>, combine: Combine, order: Order) -> MergeIterator {
        MergeIterator::new(
            sources,
            Rules { combine, operator: MergeOperator::concatenate(), order },
        )
    }

    fn parts(buffers: &[&Memtable], order: Order) -> Vec<Source> {
        let parts = buffers.iter().flat_map(|buffer| buffer.parts().iter().rev());
        let reader = |part| MemtablePartReader::new(part, &KeyRange::ALL, order);
        parts.map(|part| Source::Memtable(reader(part))).collect()
    }

    type Entry = (u8, Kind, Vec<u8>);

    fn all(mut merge: MergeIterator) -> Vec<Entry> {
        merge.load().unwrap();
        let mut entries = Vec::new();
        while let Some(EntryRef { key, kind, value, .. }) = merge.current() {
            assert_eq!(merge.kind(), Some(kind));
            entries.push((key[8], kind, value.to_vec()));
            merge.advance().unwrap();
        }
        assert_eq!(merge.kind(), None);
        entries
    }

    /// Combines two entries of a table.
    fn over(newer: (Kind, Vec<u8>), older: Option<(Kind, Vec<u8>)>) -> (Kind, Vec<u8>) {
        match (newer, older) {
            ((Kind::Upsert, value), Some((Kind::Delete, _))) => (Kind::Insert, value),
            ((Kind::Upsert, value), Some((kind, older))) => (kind, [older, value].concat()),
            (newer, _) => newer,
        }
    }

    /// Every kind for every key in each of three sources; in both orders; as levels of a table, as
    /// tables of a union, and as a union below a level.
    #[test]
    fn both_orders_give_what_the_entries_of_each_key_amount_to() {
        let codes = 4_usize.pow(u32::from(KEYS));
        for code in (0..codes * codes * codes).step_by(61) {
            let buffers =
                [(code / codes / codes, "a"), (code / codes % codes, "b"), (code % codes, "c")];
            let buffers = buffers.map(|(code, value)| buffer(code, value));
            let [a, b, c] = buffers.each_ref();
            let mut levels = BTreeMap::new();
            let mut union = BTreeMap::new();

            let mut both = BTreeMap::new();
            for key in 0..KEYS {
                let entry = |buffer| {
                    let all = all(merge(
                        parts(&[buffer], Order::Ascending),
                        Combine::Levels,
                        Order::Ascending,
                    ));
                    all.into_iter()
                        .find(|entry| entry.0 == key)
                        .map(|(_, kind, value)| (kind, value))
                };

                let older = [entry(c), entry(b), entry(a)].into_iter().flatten();
                let level = older.fold(None, |older, newer| Some(over(newer, older)));
                levels.extend(level.map(|entry| (key, entry)));
                let present = |buffer| entry(buffer).filter(|(kind, _)| *kind != Kind::Delete);
                let values = [present(b), present(c)].into_iter().flatten().map(|(_, value)| value);
                let united = values.reduce(|left, right| [right, left].concat());
                let is_known = entry(b).is_some() || entry(c).is_some();
                let united =
                    is_known.then(|| united.map_or((Kind::Delete, vec![]), |v| (Kind::Insert, v)));
                union.extend(united.clone().map(|entry| (key, entry)));
                let top = entry(a).map_or(united.clone(), |newer| Some(over(newer, united)));
                both.extend(top.map(|entry| (key, entry)));
            }

            for order in [Order::Ascending, Order::Descending] {
                let table = |buffer| {
                    let merge = merge(parts(&[buffer], order), Combine::Levels, order);
                    Source::Merge(Box::new(merge))
                };

                let of_union = || merge(vec![table(b), table(c)], Combine::Union, order);
                let mut below = parts(&[a], order);
                below.push(Source::Merge(Box::new(of_union())));

                for (merge, expected) in [
                    (merge(parts(&[a, b, c], order), Combine::Levels, order), &levels),
                    (of_union(), &union),
                    (merge(below, Combine::Levels, order), &both),
                ] {
                    let mut found = all(merge);
                    if order == Order::Descending {
                        found.reverse();
                    }
                    let expected =
                        expected.iter().map(|(&key, (kind, value))| (key, *kind, value.clone()));
                    assert_eq!(found, expected.collect::<Vec<Entry>>(), "code {code}, {order:?}");
                }
            }
        }
    }

    /// A part with about half of the keys below 1,000, some of them deleted.
    fn scattered(seed: u64) -> Memtable {
        let mut buffer = Memtable::default();
        let operator = MergeOperator::concatenate();
        buffer.begin(Room::default(), &operator).unwrap();
        let mut state = seed;

        for n in 0..1_000_u16 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let kind = match state >> 61 {
                0 => Kind::Delete,
                1 => Kind::Upsert,
                2 | 3 => Kind::Insert,
                _ => continue,
            };
            let [high, low] = [(n / 256) as u8, (n % 256) as u8];
            let value = if kind == Kind::Delete { vec![] } else { vec![low; seed as usize] };
            let hash = key_hash(1, &[high, low]);
            let entry = NewEntry { key: &[high, low], hash, kind, value: &value, blob: None };
            buffer.put(entry, &operator, None).unwrap();
        }

        buffer
    }

    /// Entries that are handed over by the run are those of one step after the other, also if the
    /// receiver refuses some of them at first.
    #[test]
    fn entries_handed_over_by_the_run_are_those_of_single_steps() {
        let buffers = [1, 2, 3].map(scattered);
        let orders = [Order::Ascending, Order::Descending];
        for (count, order) in [1, 3, 2, 3].into_iter().zip(orders.into_iter().cycle()) {
            let sources = || parts(&buffers.each_ref()[..count], order);
            let mut stepped = merge(sources(), Combine::Levels, order);
            stepped.load().unwrap();
            let mut expected = Vec::new();
            while let Some(EntryRef { key, kind, value, .. }) = stepped.current() {
                expected.push((key.to_vec(), kind, value.to_vec()));
                stepped.advance().unwrap();
            }
            assert!(expected.len() > 400);

            for limit in [1, 2, 7, 10_000] {
                let mut handed = merge(sources(), Combine::Levels, order);
                handed.load().unwrap();
                let mut found = Vec::new();
                let mut calls = 0;
                loop {
                    let passed = handed.pass_to(limit, |entry, blob, hash| {
                        calls += 1;
                        if calls % 5 == 0 {
                            return Err(Error::TableTooLarge { limit: 0 });
                        }
                        assert!(blob.is_none());
                        assert!(hash.is_none_or(|hash| hash == key_hash(1, entry.key)));
                        found.push((entry.key.to_vec(), entry.kind, entry.value.to_vec()));
                        Ok(())
                    });
                    match passed {
                        Ok(true) => break,
                        Ok(false) => {}
                        Err(_) => assert!(handed.is_whole(), "a refused entry is no failure"),
                    }
                }
                assert!(found == expected, "{count} sources, {limit} at a time, {order:?}");
            }
        }
    }
}

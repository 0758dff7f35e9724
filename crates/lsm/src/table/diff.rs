//! The keys whose content differs between two tables, in key order.
//!
//! Only layers that are newer than all that the tables share are read
//! ([`crate::table::divergence`]): merged for each table on its own, and both merges followed in
//! key order side by side. A key of which they amount to the same is passed over; where one is
//! decisive it is what the table has, where not the key is looked up there. Such *suspects* are
//! gathered by the thousand, so that these lookups, and the reads of blobs to be compared, go side
//! by side.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::compaction::levels::Levels;
use crate::compaction::loser_tree::MergeIterator;
use crate::compaction::sources::Scan;
use crate::config::TableConfig;
use crate::entry::entry::{Kind, Order};
use crate::error::Result;
use crate::lookup::lookup::{LookupEnv, lookup_in};
use crate::lookup::plan::Plan;
use crate::lookup::result::Lookup;
use crate::run::blob::{Blob, BlobRef, READS_IN_FLIGHT, retrieve};
use crate::run::chunk_reader::Reading;
use crate::session::inner::{Registered, SessionInner};
use crate::table::divergence::{Difference, Layer, layers_of, merge_of};
use crate::trace::event;

/// Suspects that are looked up side by side.
const SUSPECTS_MAX: usize = 1_000;

/// Bytes of keys and values of suspects beyond which no more are gathered.
const SUSPECT_BYTES_MAX: usize = 4 << 20;

/// Bytes of blobs beyond which no more are compared side by side.
const BLOB_BYTES_MAX: usize = 4 << 20;

/// A key whose content differs between two tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// Entry of the older table.
    pub old: Lookup,
    /// Entry of the newer table; never equal to `old`.
    pub new: Lookup,
}

/// A table as it was when the diff began.
#[derive(Debug)]
struct View {
    plan: Arc<Plan>,
    config: TableConfig,
}

impl View {
    /// Looks up those suspects that `place` has nothing for yet.
    fn look_up(
        &self,
        session: &SessionInner,
        suspects: &mut [Suspect],
        place: fn(&mut Suspect) -> &mut Option<Lookup>,
    ) -> Result<()> {
        let unknown: Vec<usize> =
            (0..suspects.len()).filter(|&at| place(&mut suspects[at]).is_none()).collect();
        let keys: Vec<&[u8]> = unknown.iter().map(|&at| suspects[at].key.as_slice()).collect();

        // A diff looks up each suspect once, so the page cache of the table is left alone.
        let context = LookupEnv {
            cache: None,
            salt: session.salt(),
            queue_depth: self.config.queue_depth as usize,
            operator: &self.config.merge_operator,
            spare: session.spare_pages(),
            idle: None,
        };

        let buffers: Vec<_> = self.plan.buffers.iter().collect();
        let (found, _) = lookup_in(&buffers, &self.plan, &context, &keys)?;
        debug_assert_eq!(found.len(), keys.len(), "a result for each key");
        for (at, found) in unknown.into_iter().zip(found) {
            *place(&mut suspects[at]) = Some(found);
        }
        Ok(())
    }
}

/// Result of the sources that a diff reads of one table, for one key.
struct Part<'a> {
    kind: Kind,
    value: &'a [u8],
    blob: Option<Blob>,
}

impl<'a> Part<'a> {
    /// Makes the result for the current key of a merge; `is_all` says that no source is older.
    fn of(merge: &'a MergeIterator, key: &[u8], is_all: bool) -> Option<Self> {
        let entry = merge.current().filter(|entry| entry.key == key)?;
        let kind = match entry.kind {
            Kind::Delete if is_all => return None,
            Kind::Upsert if is_all => Kind::Insert,
            kind => kind,
        };
        let blob = if kind == Kind::InsertBlob { merge.blob() } else { None };
        Some(Self { kind, value: entry.value, blob })
    }

    /// Entry of the table, if older sources cannot change it.
    fn get(&self, key: &[u8]) -> Result<Option<Lookup>> {
        let lookup = || Lookup::from_entry(key, (self.kind, self.value), self.blob.as_ref());
        self.kind.is_decisive().then(lookup).transpose()
    }
}

/// Whether two parts have the same effect, as far as can be told without reading blobs.
fn are_same(older: Option<&Part<'_>>, newer: Option<&Part<'_>>) -> bool {
    match (older, newer) {
        (Some(older), Some(newer)) => {
            let blobs = match (&older.blob, &newer.blob) {
                (Some(older), Some(newer)) => older.is_same_place(newer),
                (None, None) => true,
                _ => false,
            };
            blobs && older.kind == newer.kind && older.value == newer.value
        }
        (None, None) => true,
        _ => false,
    }
}

/// A key that may differ, with what is known of it.
#[derive(Debug)]
struct Suspect {
    key: Vec<u8>,
    old: Option<Lookup>,
    new: Option<Lookup>,
}

/// An iterator over the keys whose content differs between two tables of a session, in key order;
/// see [`Table::diff`](crate::Table::diff).
///
/// Later updates of the tables, and dropping them, do not disturb a diff, because it keeps their
/// files and memtables. References to blobs in its changes are valid for as long as the diff
/// exists. After an error it ends. Dropping a diff early costs nothing.
///
/// **Errors.** The errors of [`Table::get_many`](crate::Table::get_many) and of
/// [`Cursor::next_ref`](crate::Cursor::next_ref).
#[derive(Debug)]
pub struct Diff {
    // Fields drop in order: readers before what keeps the session's lock.
    older_merge: MergeIterator,
    newer_merge: MergeIterator,
    /// The layers that are merged. Changes refer to blobs of runs that nothing else may keep, and
    /// that the merges have passed.
    difference: Difference,
    ready: VecDeque<Change>,
    older: View,
    newer: View,
    /// Whether an error was given.
    has_failed: bool,
    session: Registered,
}

impl Diff {
    /// The difference of two trees, each with the configuration of its table.
    pub(crate) fn new(
        session: Registered,
        older: (&Levels, &TableConfig),
        newer: (&Levels, &TableConfig),
    ) -> Self {
        let mut sources = [older, newer].map(|(tree, _)| {
            // The memtable is the newest source of its table.
            let mut all = tree.sources();
            all.buffers.insert(0, tree.buffer.clone());
            all
        });

        if let (Some(one), Some(other)) = (&older.0.union, &newer.0.union)
            && Arc::ptr_eq(one, other)
        {
            // Also if somebody has paid for it in between.
            let united = one.sources();
            for ((tree, _), sources) in [older, newer].into_iter().zip(&mut sources) {
                sources.union = Some(Box::new(united.clone().under_mask(&tree.union_mask)));
            }
        }

        let [of_older, of_newer] = [&sources[0], &sources[1]].map(layers_of);
        let difference = if older.1.merge_operator == newer.1.merge_operator {
            Difference::new(of_older, of_newer)
        } else {
            // What combines in another way is not the same.
            Difference { older: of_older, newer: of_newer, is_everything: true }
        };

        let reading = Reading::Scan(session.prefetcher(), None);
        let merge = |layers: &[Layer], config: &TableConfig| {
            let order = Order::Ascending;
            let operator = config.merge_operator.clone();
            merge_of(layers, &Scan { order, operator, reading: reading.clone() })
        };

        let [of_older, of_newer] = sources;
        Self {
            older_merge: merge(&difference.older, older.1),
            newer_merge: merge(&difference.newer, newer.1),
            difference,
            ready: VecDeque::new(),
            older: View { plan: Arc::new(Plan::new(of_older)), config: older.1.clone() },
            newer: View { plan: Arc::new(Plan::new(of_newer)), config: newer.1.clone() },
            has_failed: false,
            session,
        }
    }

    fn read(&mut self) -> Result<Option<Change>> {
        self.session.check_open()?;
        event!(TRACE, "diff.read", self.session.dir(), cursor = self.session.id());
        // Suspects may all turn out equal, so one gathering may give no change.
        while self.ready.is_empty() {
            if !self.gather()? {
                return Ok(None);
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Gathers suspects and makes changes ready of those that differ; false if there are no more
    /// suspects.
    fn gather(&mut self) -> Result<bool> {
        let mut suspects = self.suspects()?;
        if suspects.is_empty() {
            return Ok(false);
        }
        self.older.look_up(&self.session, &mut suspects, |suspect| &mut suspect.old)?;
        self.newer.look_up(&self.session, &mut suspects, |suspect| &mut suspect.new)?;

        let both = suspects.into_iter().map(|Suspect { key, old, new }| {
            let looked_up = |side: Option<Lookup>| side.unwrap_or(Lookup::NotFound);
            Change { key, old: looked_up(old), new: looked_up(new) }
        });

        // Values are compared before blobs: only blobs need reads.
        let mut changes: Vec<Change> = both.filter(Change::may_be_one).collect();
        let are_same = same_blobs(&self.session, &changes)?;
        debug_assert_eq!(are_same.len(), changes.len(), "each change is compared");
        let mut are_same = are_same.into_iter();
        changes.retain(|_| !are_same.next().unwrap_or_default());
        self.ready.extend(changes);
        Ok(true)
    }

    /// The next suspects, as many as are looked up side by side; none at the end.
    fn suspects(&mut self) -> Result<Vec<Suspect>> {
        let Self { older_merge: older, newer_merge: newer, difference, .. } = self;
        let is_everything = difference.is_everything;
        older.load()?;
        newer.load()?;
        let mut suspects = Vec::new();
        let mut bytes = 0;

        let mut key = Vec::new();
        while suspects.len() < SUSPECTS_MAX && bytes < SUSPECT_BYTES_MAX {
            let heads = [&*older, &*newer].map(MergeIterator::current);
            let Some(next) = heads.into_iter().flatten().map(|entry| entry.key).min() else {
                break;
            };
            key.clear();
            key.extend_from_slice(next);

            let old = Part::of(older, &key, is_everything);
            let new = Part::of(newer, &key, is_everything);
            // If the newer layers amount to the same for a key, the tables do: all older layers are
            // shared.
            if !are_same(old.as_ref(), new.as_ref()) {
                let part_bytes = |part: &Part<'_>| part.value.len();
                bytes +=
                    key.len() + [&old, &new].into_iter().flatten().map(part_bytes).sum::<usize>();
                let known = |part: Option<Part<'_>>| match part {
                    Some(part) => part.get(&key),
                    None => Ok(is_everything.then_some(Lookup::NotFound)),
                };
                suspects.push(Suspect { key: key.clone(), old: known(old)?, new: known(new)? });
            }

            for merge in [&mut *older, &mut *newer] {
                if merge.current().is_some_and(|entry| entry.key == key) {
                    merge.advance()?;
                }
            }
        }

        debug_assert!(suspects.len() <= SUSPECTS_MAX, "suspects are gathered up to a number");
        debug_assert!(suspects.is_sorted_by(|one, next| one.key < next.key), "keys rise");
        Ok(suspects)
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let change = self.read();
        self.has_failed = change.is_err();
        change.transpose()
    }
}

impl Change {
    /// Whether the two sides differ, as far as can be told without reading blobs.
    fn may_be_one(&self) -> bool {
        let are_same_blobs = match (self.old.blob(), self.new.blob()) {
            (Some(old), Some(new)) => old == new,
            (None, None) => true,
            _ => false,
        };
        !are_same_blobs || self.old.value() != self.new.value()
    }

    /// The blobs, if nothing but these can tell whether the sides differ.
    fn blobs_to_compare(&self) -> Option<[&BlobRef; 2]> {
        let old = self.old.blob()?;
        let new = self.new.blob()?;
        let is_open = self.old.value() == self.new.value() && old.len() == new.len();
        is_open.then_some([old, new])
    }
}

/// For each change, whether only blobs could differ and these are equal.
fn same_blobs(session: &SessionInner, changes: &[Change]) -> Result<Vec<bool>> {
    let mut are_same = vec![false; changes.len()];
    let mut open = changes.iter().enumerate().peekable();
    while open.peek().is_some() {
        let mut refs = Vec::new();

        let mut places = Vec::new();
        let mut bytes = 0;
        // The limit bounds the memory of blobs that are compared side by side.
        while bytes < BLOB_BYTES_MAX
            && let Some((at, change)) = open.next()
        {
            let Some([old, new]) = change.blobs_to_compare() else { continue };
            bytes += 2 * old.len();
            refs.extend([old.clone(), new.clone()]);
            places.push(at);
        }

        debug_assert_eq!(refs.len(), 2 * places.len(), "blobs are compared in pairs");
        let blobs = retrieve(session.disk(), READS_IN_FLIGHT, &refs)?;
        debug_assert_eq!(blobs.len(), refs.len(), "a blob for each reference");
        for (pair, at) in blobs.chunks_exact(2).zip(places) {
            are_same[at] = pair[0] == pair[1];
        }
    }

    Ok(are_same)
}

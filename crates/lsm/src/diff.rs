//! The keys whose content differs between two tables, in key order.
//!
//! Only what the tables do not share is read ([`crate::layers`]): blocks of layers, each merged for both tables
//! on its own, and all of them followed in key order side by side. A key in them that amounts to the same in
//! both tables, block by block, is passed over. Of the others, *suspects*, the newest block often says what one
//! of the tables has; where it does not, the key is looked up there. Suspects are gathered by the thousand, so that
//! these lookups, and the reads of blobs to be compared, go side by side.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::answer::Lookup;
use crate::blob::{Blob, BlobRef, retrieve};
use crate::chunks::Reading;
use crate::config::TableConfig;
use crate::entry::{Kind, Order};
use crate::error::{Error, Result};
use crate::kmerge::KMerge;
use crate::layers::{Block, blocks_of, layers_of, merge_of};
use crate::levels::Tree;
use crate::lookup::{LookupContext, lookup_in};
use crate::plan::Plan;
use crate::read_ahead::ReadAhead;
use crate::session_core::{Registered, SessionCore};
use crate::sources::Scan;
use crate::trace::event;

/// Suspects that are looked up side by side.
const SUSPECTS_MAX: usize = 1_000;

/// Bytes of keys and values of suspects beyond which no more are gathered.
const SUSPECT_BYTES_MAX: usize = 4 << 20;

/// Reads of blobs that are in flight at once.
const BLOB_READS_IN_FLIGHT: usize = 64;

/// Bytes of blobs beyond which no more are compared side by side.
const BLOB_BYTES_MAX: usize = 4 << 20;

/// A key whose content differs between two tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// What the older table has.
    pub old: Lookup,
    /// What the newer table has; never the same as `old`.
    pub new: Lookup,
}

/// A table as it was when the diff began.
#[derive(Debug)]
struct View {
    plan: Plan,
    config: TableConfig,
}

impl View {
    /// Looks up those suspects that `place` has nothing for yet.
    fn look_up(
        &self,
        session: &SessionCore,
        suspects: &mut [Suspect],
        place: fn(&mut Suspect) -> &mut Option<Lookup>,
    ) -> Result<()> {
        let unknown: Vec<usize> =
            (0..suspects.len()).filter(|&at| place(&mut suspects[at]).is_none()).collect();
        let keys: Vec<&[u8]> = unknown.iter().map(|&at| suspects[at].key.as_slice()).collect();
        let context = LookupContext {
            salt: session.salt(),
            queue_depth: self.config.queue_depth as usize,
            resolve: &self.config.resolve,
            spare: session.spare_pages(),
        };
        let buffers: Vec<_> = self.plan.buffers.iter().collect();
        let (found, _) = lookup_in(&buffers, &self.plan, &context, &keys)?;
        for (at, found) in unknown.into_iter().zip(found) {
            *place(&mut suspects[at]) = Some(found);
        }
        Ok(())
    }
}

/// What the layers of a block amount to, in both tables.
#[derive(Debug)]
struct Merges {
    older: KMerge,
    newer: KMerge,
    /// Whether nothing that the tables share is newer.
    is_newest: bool,
    /// Whether nothing that the tables share is older, so that nothing at all is.
    is_oldest: bool,
}

/// What the layers of a block amount to for one key.
struct Part<'a> {
    kind: Kind,
    value: &'a [u8],
    blob: Option<Blob>,
}

impl Part<'_> {
    /// What it means, if nothing older matters.
    fn lookup(&self) -> Lookup {
        Lookup::from_entry(self.kind, self.value, self.blob.as_ref())
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

impl Merges {
    fn new(block: &Block, older: &Scan, newer: &Scan, place: (bool, bool)) -> Self {
        let (older, newer) = (merge_of(&block.older, older), merge_of(&block.newer, newer));
        Self { older, newer, is_newest: place.0, is_oldest: place.1 }
    }

    fn both(&self) -> [&KMerge; 2] {
        [&self.older, &self.newer]
    }

    fn both_mut(&mut self) -> [&mut KMerge; 2] {
        [&mut self.older, &mut self.newer]
    }

    fn part<'a>(&self, merge: &'a KMerge, key: &[u8]) -> Option<Part<'a>> {
        let entry = merge.current().filter(|entry| entry.key == key)?;
        let kind = match entry.kind {
            Kind::Delete if self.is_oldest => return None,
            Kind::Upsert if self.is_oldest => Kind::Insert,
            kind => kind,
        };
        let blob = if kind == Kind::InsertBlob { merge.blob() } else { None };
        Some(Part { kind, value: entry.value, blob })
    }

    /// What a table has of a key of which it has this part, if that decides it.
    fn known(&self, part: Option<&Part<'_>>) -> Option<Lookup> {
        match part {
            _ if !self.is_newest => None,
            Some(part) => part.kind.is_decisive().then(|| part.lookup()),
            None => self.is_oldest.then_some(Lookup::NotFound),
        }
    }
}

/// The keys whose content differs between two tables of a session, in key order; see
/// [`Table::diff`](crate::Table::diff).
///
/// Later updates of the tables, and dropping them, do not disturb it; it keeps their files and write buffers, and
/// so that what the references to blobs that it gives point into. After an error it gives that error again.
#[derive(Debug)]
pub struct Diff {
    // Fields drop in order: readers before what keeps the session's lock.
    blocks: Vec<Merges>,
    ready: VecDeque<Change>,
    older: View,
    newer: View,
    /// Whether the merges stand at their first entries.
    has_begun: bool,
    failed: Option<Error>,
    session: Registered,
}

impl Diff {
    /// The difference of two trees, each with the configuration of its table.
    pub(crate) fn new(
        session: Registered,
        older: (&Tree, &TableConfig),
        newer: (&Tree, &TableConfig),
    ) -> Self {
        let mut sources = [older, newer].map(|(tree, _)| {
            let mut all = tree.sources();
            all.buffers.insert(0, tree.buffer.clone());
            all
        });
        if let (Some(one), Some(other)) = (&older.0.union, &newer.0.union)
            && Arc::ptr_eq(one, other)
        {
            // Also if somebody has paid for it in between.
            sources[1].union = sources[0].union.clone();
        }
        let layers = [&sources[0], &sources[1]].map(layers_of);
        let [of_older, of_newer] = layers;
        let blocks = if older.1.resolve == newer.1.resolve {
            blocks_of(of_older, of_newer)
        } else {
            // What combines in another way is not the same.
            vec![Block { older: of_older, newer: of_newer }]
        };
        let reading = Reading::Scan(ReadAhead::new(Arc::clone(session.files().open_files())));
        let scan = |config: &TableConfig| {
            let (order, resolve) = (Order::Ascending, config.resolve.clone());
            Scan { order, resolve, reading: reading.clone() }
        };
        let (scan_older, scan_newer) = (scan(older.1), scan(newer.1));
        let last = blocks.len() - 1;
        let blocks = blocks.iter().enumerate();
        let blocks = blocks
            .filter(|(_, block)| !block.is_empty())
            .map(|(at, block)| Merges::new(block, &scan_older, &scan_newer, (at == 0, at == last)));
        let blocks = blocks.collect();
        let [of_older, of_newer] = sources;
        Self {
            blocks,
            ready: VecDeque::new(),
            older: View { plan: Plan::new(of_older), config: older.1.clone() },
            newer: View { plan: Plan::new(of_newer), config: newer.1.clone() },
            has_begun: false,
            failed: None,
            session,
        }
    }

    /// The next key, with what both tables have of it; `None` at the end, also when asked again.
    ///
    /// Each change is made in memory of its own anyway, so nothing is gained by borrowing it.
    ///
    /// # Errors
    /// Those of [`Table::lookups`](crate::Table::lookups) and of [`Cursor::next`](crate::Cursor::next).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot fail once for good")]
    pub fn next(&mut self) -> Result<Option<Change>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.session.check_open()?;
        event!(TRACE, "diff.read", self.session.dir(), cursor = self.session.id());
        while self.ready.is_empty() {
            match self.gather() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Gathers suspects and makes changes ready of those that differ; false if there are no more suspects.
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
        let mut changes: Vec<Change> = both.filter(Change::may_be_one).collect();
        let are_same = same_blobs(&self.session, &changes)?;
        let mut are_same = are_same.into_iter();
        changes.retain(|_| !are_same.next().unwrap_or_default());
        self.ready.extend(changes);
        Ok(true)
    }

    /// The next suspects, as many as are looked up side by side; none at the end.
    fn suspects(&mut self) -> Result<Vec<Suspect>> {
        if !mem::replace(&mut self.has_begun, true) {
            let merges = self.blocks.iter_mut().flat_map(Merges::both_mut);
            merges.into_iter().try_for_each(KMerge::load)?;
        }
        let (mut suspects, mut bytes) = (Vec::new(), 0);
        let mut key = Vec::new();
        while suspects.len() < SUSPECTS_MAX && bytes < SUSPECT_BYTES_MAX {
            let merges = self.blocks.iter().flat_map(Merges::both);
            let Some(next) = merges.filter_map(|merge| Some(merge.current()?.key)).min() else {
                break;
            };
            key.clear();
            key.extend_from_slice(next);
            if let Some((old, new)) = suspicion(&self.blocks, &key) {
                let value_bytes = |side: &Option<Lookup>| {
                    side.as_ref().and_then(Lookup::value).map_or(0, <[u8]>::len)
                };
                bytes += key.len() + value_bytes(&old) + value_bytes(&new);
                suspects.push(Suspect { key: key.clone(), old, new });
            }
            for merge in self.blocks.iter_mut().flat_map(Merges::both_mut) {
                if merge.current().is_some_and(|entry| entry.key == key) {
                    merge.advance()?;
                }
            }
        }
        Ok(suspects)
    }
}

/// What blocks say of a key, at which at least one of them stands: `None` if both tables have the same, else what
/// is known that they have.
fn suspicion(blocks: &[Merges], key: &[u8]) -> Option<(Option<Lookup>, Option<Lookup>)> {
    for block in blocks {
        let older = block.part(&block.older, key);
        let newer = block.part(&block.newer, key);
        if !are_same(older.as_ref(), newer.as_ref()) {
            return Some((block.known(older.as_ref()), block.known(newer.as_ref())));
        }
        if older.is_some_and(|part| part.kind.is_decisive()) {
            return None;
        }
    }
    None
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
        let (old, new) = (self.old.blob()?, self.new.blob()?);
        let is_open = self.old.value() == self.new.value() && old.len() == new.len();
        is_open.then_some([old, new])
    }
}

/// Of each change whether only its blobs may differ, and do not.
fn same_blobs(session: &SessionCore, changes: &[Change]) -> Result<Vec<bool>> {
    let mut are_same = vec![false; changes.len()];
    let mut open = changes.iter().enumerate().peekable();
    while open.peek().is_some() {
        let (mut refs, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
        while bytes < BLOB_BYTES_MAX
            && let Some((at, change)) = open.next()
        {
            let Some([old, new]) = change.blobs_to_compare() else { continue };
            bytes += 2 * old.len();
            refs.extend([old.clone(), new.clone()]);
            places.push(at);
        }
        let blobs = retrieve(session.disk(), BLOB_READS_IN_FLIGHT, &refs)?;
        for (pair, at) in blobs.chunks_exact(2).zip(places) {
            are_same[at] = pair[0] == pair[1];
        }
    }
    Ok(are_same)
}

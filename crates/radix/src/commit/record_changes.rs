//! Updates the records of nodes: their extensions, their reference counts, and their existence.
//!
//! The caller adds a change for each edge that gains or loses references ([`RecordChanges::add`]).
//! [`RecordChanges::apply`] sums the changes of each record, reads and writes the records in the
//! order of their keys, and returns which nodes appeared and which are gone ([`Effect`]).
//!
//! Invariant: a base stays stored as long as differences from it are stored. The number of these
//! differences, its *users*, has a record of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::NodeHash;
use crate::commit::hashing::extension_hashes;
use crate::node::branch::BASE_BYTES_MIN;
use crate::node::node::{Broken, common};
use crate::records::record::{
    CHAINS_IN_ROW_MAX, Content, Extensions, Kind, Record, RecordKey, decode_number, encode_number,
    extension_key, extension_of_key, key_of, reversed, users_key,
};
use terrane_kv::{Entry, Table, Writer};

/// Records of nodes that are read at a time.
const ROWS_AT_ONCE: usize = 256;
/// Spilled extensions of one node that are read at a time.
const CHAINS_AT_ONCE: usize = 4096;

/// Change of the reference count of an edge.
#[derive(Debug)]
struct ReferenceChange {
    key: RecordKey,
    /// Its extension, from below.
    extension: Prefix,
    /// References gained or lost.
    references: i64,
    node: NodeHash,
    /// Content for a new record; `None` if the record must exist.
    content: Option<Content>,
}

/// Changes of records.
#[derive(Debug, Default)]
pub(crate) struct RecordChanges {
    edges: Vec<ReferenceChange>,
}

/// Outcome of the changes.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// Number of plain nodes that were not stored before.
    pub(crate) added: u64,
    /// Number of plain nodes that are gone.
    pub(crate) removed: u64,
    /// Hashes of the plain nodes that are gone, in no order, if the caller asked for them.
    pub(crate) removed_hashes: Vec<NodeHash>,
    /// Nodes whose records are gone.
    pub(crate) gone: Vec<NodeHash>,
}

impl RecordChanges {
    /// No changes yet, with room for this many.
    pub(crate) fn with_capacity(edges: usize) -> Self {
        Self { edges: Vec::with_capacity(edges) }
    }

    /// Adds references to an edge, or takes them away. `content` is needed if the node may be new.
    pub(crate) fn add(
        &mut self,
        node: NodeHash,
        extension: &Prefix,
        references: i64,
        content: Option<Content>,
    ) {
        debug_assert!(extension.as_bytes().len() <= ADDRESS_BYTES_MAX);
        // References that cancel out need no record.
        if references != 0 {
            let key = key_of(&node);
            let extension = reversed(extension);
            self.edges.push(ReferenceChange { key, extension, references, node, content });
        }
    }

    /// Writes the records. Cost: reads each record, side by side, and writes it. A node with many
    /// extensions also costs a record for each extension that changes, and one walk beside those
    /// that come or go. A difference costs the number of its base's users.
    pub(crate) fn apply(mut self, writer: &mut dyn Writer, wants_hashes: bool) -> Result<Effect> {
        self.edges.sort_unstable_by(|one, other| {
            (&one.key, &one.extension).cmp(&(&other.key, &other.extension))
        });

        // Sorted by record and extension: each record is read and written once.
        let mut nodes: Vec<&mut [ReferenceChange]> =
            self.edges.chunk_by_mut(|one, other| one.key == other.key).collect();

        let mut effect = Effect::default();
        let mut bases = Bases::default();
        // The number of records at a time bounds the memory.
        for nodes in nodes.chunks_mut(ROWS_AT_ONCE) {
            let keys: Vec<RecordKey> = nodes.iter().map(|of| of[0].key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(RecordKey::as_slice).collect();
            let records = writer.get_many(Table::Main, &keys)?;
            for (changes, record) in nodes.iter_mut().zip(records) {
                // All changes of one record are of the same node, so the first one names it.
                let ReferenceChange { key, node, .. } = changes[0];
                let effect = &mut effect;
                let bases = &mut bases;
                let mut record_of = NodeRecord { key, node, wants_hashes, writer, effect, bases };
                record_of.change(changes, record.as_deref())?;
            }
        }

        bases.finish(writer, &mut effect.gone)?;
        Ok(effect)
    }
}

/// Number of records that are differences from one base.
#[derive(Debug, Clone, Copy)]
struct Users {
    stored: u64,
    now: u64,
    was_released: bool,
}

/// Bases of the records that are written or removed: each is read once, and written at the end.
#[derive(Debug, Default)]
struct Bases(BTreeMap<NodeHash, Users>);

impl Bases {
    fn users(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<&mut Users> {
        Ok(match self.0.entry(base) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let key = users_key(&key_of(&base));
                let stored = match writer.get(Table::Main, &key)? {
                    Some(record) => {
                        decode_number(&key, &record).map_err(|Broken(rule)| broken(base, rule))?
                    }
                    None => 0,
                };
                new.insert(Users { stored, now: stored, was_released: false })
            }
        })
    }

    /// Counts one more user, if the base is stored and can be a base. A branch in memory may name a
    /// base that was removed since.
    fn acquire(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<bool> {
        let users = self.users(writer, base)?;
        // Users hold the base, so only the first one looks for its record.
        if users.now == 0 {
            let key = key_of(&base);
            let Some(record) = writer.get(Table::Main, &key)? else { return Ok(false) };
            let record =
                Record::decode(&key, &record).map_err(|Broken(rule)| broken(base, rule))?;
            // A difference as a base would need the read of its own base.
            if record.kind != Kind::Branch {
                return Ok(false);
            }
        }

        users.now += 1;
        Ok(true)
    }

    fn release(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<()> {
        let users = self.users(writer, base)?;
        users.now = users.now.checked_sub(1).ok_or_else(|| broken(base, "it has too few users"))?;
        users.was_released = true;
        Ok(())
    }

    /// Writes the numbers of users, and removes each base that only differences kept and that has
    /// no users left.
    fn finish(self, writer: &mut dyn Writer, gone: &mut Vec<NodeHash>) -> Result<()> {
        for (base, users) in self.0 {
            let key = key_of(&base);
            let of_users = users_key(&key);
            // A release and a new user leave the number as it is stored.
            if users.now > 0 && users.now != users.stored {
                let record = encode_number(&of_users, users.now);
                writer.overwrite(Table::Main, &of_users, &record)?;
            }

            // A base that was only looked at keeps its record.
            if users.now > 0 || !users.was_released {
                continue;
            }

            if users.stored > 0 {
                writer.remove(Table::Main, &of_users)?;
            }

            let record = writer.get(Table::Main, &key)?;
            let record = record.ok_or_else(|| broken(base, "the record is missing"))?;

            let record =
                Record::decode(&key, &record).map_err(|Broken(rule)| broken(base, rule))?;
            // Extensions hold the record too, so it goes only without any.
            if record.extensions == Extensions::default() {
                writer.remove(Table::Main, &key)?;
                gone.push(base);
            }
        }

        Ok(())
    }
}

fn broken(node: NodeHash, what: &'static str) -> Error {
    Error::Corruption { root: None, path: Prefix::EMPTY, node, what: what.into() }
}

/// Extensions of the changes of one node, each with the sum of its changes.
fn by_extension(changes: &[ReferenceChange]) -> impl Iterator<Item = (Prefix, i64)> {
    debug_assert!(changes.is_sorted_by_key(|change| change.extension), "`apply` has sorted them");
    changes
        .chunk_by(|one, other| one.extension == other.extension)
        .map(|of| (of[0].extension, of.iter().map(|change| change.references).sum()))
        .filter(|(_, references)| *references != 0)
}

/// A spilled extension, with its references before and after a change.
#[derive(Debug)]
struct SpilledChange {
    extension: Prefix,
    key: Vec<u8>,
    before: u64,
    after: u64,
}

impl SpilledChange {
    /// Whether the extension appears or is gone.
    fn is_move(&self) -> bool {
        (self.before == 0) != (self.after == 0)
    }
}

/// The record of one node during an update.
struct NodeRecord<'a> {
    key: RecordKey,
    node: NodeHash,
    wants_hashes: bool,
    writer: &'a mut dyn Writer,
    effect: &'a mut Effect,
    bases: &'a mut Bases,
}

impl NodeRecord<'_> {
    fn broken(&self, what: &'static str) -> Error {
        broken(self.node, what)
    }

    fn change(&mut self, changes: &mut [ReferenceChange], record: Option<&[u8]>) -> Result<()> {
        debug_assert!(changes.iter().all(|change| change.key == self.key), "changes of one record");

        // Equal nodes have equal contents, so the content may come from any of the changes.
        let content = changes.iter_mut().find_map(|change| change.content.take());
        let changes = by_extension(changes);
        let Some(record) = record else {
            let mut extensions = Vec::new();
            self.change_here(&mut extensions, changes)?;
            // References were gained and lost in one batch, so the node gets no record.
            if extensions.is_empty() {
                return Ok(());
            }

            let content = content.ok_or_else(|| self.broken("the record is missing"))?;
            let (kind, content) = self.stored(&content)?;
            return self.write(Record {
                extensions: Extensions::Here(extensions),
                kind,
                content: &content,
            });
        };

        let mut record =
            Record::decode(&self.key, record).map_err(|Broken(rule)| self.broken(rule))?;

        // Written again only if the extensions changed: the content never does.
        let before = record.extensions.clone();
        match &mut record.extensions {
            Extensions::Here(extensions) => self.change_here(extensions, changes)?,
            Extensions::Spilled(count) => {
                let changes: Vec<(Prefix, i64)> = changes.collect();
                for changes in changes.chunks(CHAINS_AT_ONCE) {
                    self.change_spilled(count, changes)?;
                }
            }
        }

        // No extension is left to have a record of its own.
        if matches!(&record.extensions, Extensions::Spilled(0)) {
            record.extensions = Extensions::default();
        }

        if record.extensions == Extensions::default() && !self.is_base(&record)? {
            // A difference that goes does not use its base any more.
            if let Some(base) = record.base().map_err(|Broken(rule)| self.broken(rule))? {
                self.bases.release(self.writer, base)?;
            }
            self.effect.gone.push(self.node);
            return Ok(self.writer.remove(Table::Main, &self.key)?);
        }

        if record.extensions == before { Ok(()) } else { self.write(record) }
    }

    /// Whether differences from this record are stored.
    fn is_base(&mut self, record: &Record<'_>) -> Result<bool> {
        // A smaller branch never is a base, so its counter is not read.
        if record.kind != Kind::Branch || record.content.len() < BASE_BYTES_MIN {
            return Ok(false);
        }
        Ok(self.bases.users(self.writer, self.node)?.now > 0)
    }

    /// Stored form of a new record's content: a difference if the base is still stored.
    fn stored<'b>(&mut self, content: &'b Content) -> Result<(Kind, Cow<'b, [u8]>)> {
        Ok(match content {
            Content::Inline => (Kind::Inline, Cow::Borrowed(&[])),
            Content::Value(value) => (Kind::Value, Cow::Borrowed(value)),
            Content::Branch(branch) => match branch.difference() {
                Some((base, difference)) if self.bases.acquire(self.writer, base)? => {
                    (Kind::Difference, Cow::Borrowed(difference))
                }
                _ => (Kind::Branch, branch.to_whole()),
            },
        })
    }

    fn write(&mut self, mut record: Record<'_>) -> Result<()> {
        // With all extensions in one record, each change of one would write all of them.
        if let Extensions::Here(extensions) = &record.extensions
            && extensions.len() > CHAINS_IN_ROW_MAX
        {
            for (extension, references) in extensions {
                self.put_references(extension, *references)?;
            }
            record.extensions = Extensions::Spilled(extensions.len() as u64);
        }
        Ok(self.writer.overwrite(Table::Main, &self.key, &record.encode(&self.key))?)
    }

    fn put_references(&mut self, extension: &Prefix, references: u64) -> Result<()> {
        let key = extension_key(&self.key, extension);
        Ok(self.writer.overwrite(Table::Main, &key, &encode_number(&key, references))?)
    }

    /// `references` plus `by`; an error if that is below 0.
    fn sum(&self, references: u64, by: i64) -> Result<u64> {
        references
            .checked_add_signed(by)
            .ok_or_else(|| self.broken("it has fewer references than are removed"))
    }

    fn change_here(
        &mut self,
        extensions: &mut Vec<(Prefix, u64)>,
        changes: impl Iterator<Item = (Prefix, i64)>,
    ) -> Result<()> {
        for (extension, by) in changes {
            // Extensions ascend, so the extension that shares most with another is its neighbour.
            let shared = |extensions: &[(Prefix, u64)], at: usize| {
                let beside = &extensions[at.saturating_sub(1)..extensions.len().min(at + 1)];
                let with =
                    |(other, _): &(Prefix, u64)| common(other.as_bytes(), extension.as_bytes());
                beside.iter().map(with).max()
            };

            match extensions.binary_search_by_key(&extension, |(extension, _)| *extension) {
                Ok(at) => {
                    let references = self.sum(extensions[at].1, by)?;
                    if references == 0 {
                        // Removed first: what it shares is counted with the extensions that stay.
                        extensions.remove(at);
                        self.removed(&extension, shared(extensions, at));
                    } else {
                        extensions[at].1 = references;
                    }
                }
                Err(at) => {
                    let references = self.sum(0, by)?;
                    // Counted before it is inserted, so that it is not compared with itself.
                    self.added(&extension, shared(extensions, at));
                    extensions.insert(at, (extension, references));
                }
            }
        }

        debug_assert!(extensions.is_sorted_by(|one, other| one.0 < other.0), "extensions ascend");
        Ok(())
    }

    /// Changes the references of spilled extensions, which ascend.
    ///
    /// Cost: one lookup of each extension, side by side. For extensions that appear or are gone one
    /// walk of a cursor, with a seek for each run of them that has no other extension in between.
    fn change_spilled(&mut self, count: &mut u64, changes: &[(Prefix, i64)]) -> Result<()> {
        debug_assert!(changes.is_sorted_by(|one, other| one.0 < other.0), "extensions ascend");
        let keys: Vec<Vec<u8>> =
            changes.iter().map(|(extension, _)| extension_key(&self.key, extension)).collect();
        let by_reference: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let stored = self.writer.get_many(Table::Main, &by_reference)?;

        let mut spilled = Vec::with_capacity(changes.len());
        for (((extension, by), key), record) in changes.iter().zip(keys).zip(stored) {
            let before = match record {
                Some(record) => {
                    decode_number(&key, &record).map_err(|Broken(rule)| self.broken(rule))?
                }
                None => 0,
            };
            let after = self.sum(before, *by)?;
            spilled.push(SpilledChange { extension: *extension, key, before, after });
        }

        let shared = self.shared_with_neighbours(&spilled)?;
        for (change, shared) in spilled.iter().zip(shared) {
            debug_assert_ne!(change.before, change.after, "changes of 0 are left out");
            if change.before == 0 {
                self.added(&change.extension, shared);
                *count += 1;
            }

            if change.after > 0 {
                self.put_references(&change.extension, change.after)?;
            } else {
                self.writer.remove(Table::Main, &change.key)?;
                self.removed(&change.extension, shared);
                *count =
                    count.checked_sub(1).ok_or_else(|| self.broken("it has too few extensions"))?;
            }
        }

        Ok(())
    }

    /// Tokens that each appearing or removed extension shares, from the node upwards, with a
    /// neighbour. The lower neighbour is taken after the changes, the upper one before them:
    /// changes are applied in ascending order.
    fn shared_with_neighbours(&self, changes: &[SpilledChange]) -> Result<Vec<Option<usize>>> {
        if !changes.iter().any(SpilledChange::is_move) {
            return Ok(vec![None; changes.len()]);
        }

        let mut cursor = self.writer.cursor(Table::Main)?;
        let extension_of = |entry: Option<Entry>| extension_of_key(&self.key, &entry?.0);
        let mut below: Option<Prefix> = None;

        // First stored extension at or above the position of the last seek that the walk has not
        // passed.
        let mut ahead: Option<Prefix> = None;

        let mut is_sought = false;
        let mut shared = Vec::with_capacity(changes.len());
        for change in changes {
            let SpilledChange { extension, key, after, .. } = change;
            if !change.is_move() {
                shared.push(None);
                continue;
            }

            // The cursor stays in place unless other extensions lie in between.
            if !is_sought || ahead.as_ref().is_some_and(|ahead| ahead < extension) {
                cursor.seek(key)?;
                below = extension_of(cursor.prev()?);
                cursor.seek(key)?;
                ahead = extension_of(cursor.next()?);
                is_sought = true;
            }

            // An extension that is removed is still stored, and is not its own neighbour.
            if ahead.as_ref() == Some(extension) {
                ahead = extension_of(cursor.next()?);
            }

            let with = |other: &Prefix| common(other.as_bytes(), extension.as_bytes());
            shared.push(below.as_ref().map(with).max(ahead.as_ref().map(with)));
            if *after > 0 {
                below = Some(*extension);
            }
        }

        debug_assert_eq!(shared.len(), changes.len(), "one result for each change");
        Ok(shared)
    }

    /// Plain nodes that only this extension has: those above the shared tokens, or all and the node
    /// itself if no other extension is there.
    fn nodes(extension: &Prefix, shared: Option<usize>) -> usize {
        debug_assert!(shared.is_none_or(|shared| shared <= extension.as_bytes().len()));
        extension.as_bytes().len() + 1 - shared.map_or(0, |shared| shared + 1)
    }

    fn added(&mut self, extension: &Prefix, shared: Option<usize>) {
        self.effect.added += Self::nodes(extension, shared) as u64;
    }

    fn removed(&mut self, extension: &Prefix, shared: Option<usize>) {
        let nodes = Self::nodes(extension, shared);
        self.effect.removed += nodes as u64;
        if self.wants_hashes && nodes > 0 {
            let upwards = reversed(extension);
            let all =
                std::iter::once(self.node).chain(extension_hashes(self.node, upwards.as_bytes()));
            // Nodes that another extension shares lie nearest to the node, and stay.
            self.effect.removed_hashes.extend(all.skip(extension.as_bytes().len() + 1 - nodes));
        }
    }
}

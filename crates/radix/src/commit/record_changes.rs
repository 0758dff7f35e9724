//! Brings the records of nodes up to date: which extensions lead to them, over how many references;
//! and says which nodes appear and which are gone by that.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::base::address::Prefix;
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

/// Records of nodes that are in memory at a time.
const ROWS_AT_ONCE: usize = 256;
/// Extensions of one node with records of their own that are in memory at a time.
const CHAINS_AT_ONCE: usize = 4096;

/// What happens to an edge.
#[derive(Debug)]
struct ReferenceChange {
    key: RecordKey,
    /// Its extension, from below.
    extension: Prefix,
    /// By how much its references change.
    references: i64,
    node: NodeHash,
    /// What a new record of its node holds; `None` if there must be one.
    content: Option<Content>,
}

/// Changes of records.
#[derive(Debug, Default)]
pub(crate) struct RecordChanges {
    edges: Vec<ReferenceChange>,
}

/// What the changes come to.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// Nodes that were not stored before.
    pub(crate) added: u64,
    /// Nodes that are stored no more.
    pub(crate) removed: u64,
    /// The hashes of those, in no order, if they were wanted.
    pub(crate) removed_hashes: Vec<NodeHash>,
    /// Nodes whose records are gone.
    pub(crate) gone: Vec<NodeHash>,
}

impl RecordChanges {
    /// None yet, with room for so many.
    pub(crate) fn with_capacity(edges: usize) -> Self {
        Self { edges: Vec::with_capacity(edges) }
    }

    /// Counts references of an edge. `content` is what its node holds if it may be new.
    pub(crate) fn add(
        &mut self,
        node: NodeHash,
        extension: &Prefix,
        references: i64,
        content: Option<Content>,
    ) {
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

        let mut ends: Vec<&mut [ReferenceChange]> =
            self.edges.chunk_by_mut(|one, other| one.key == other.key).collect();
        let mut effect = Effect::default();
        let mut bases = Bases::default();
        for ends in ends.chunks_mut(ROWS_AT_ONCE) {
            let keys: Vec<RecordKey> = ends.iter().map(|of| of[0].key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(RecordKey::as_slice).collect();
            let records = writer.get_many(Table::Main, &keys)?;
            for (changes, record) in ends.iter_mut().zip(records) {
                let ReferenceChange { key, node, .. } = changes[0];
                let effect = &mut effect;
                let bases = &mut bases;
                let mut end = NodeRecord { key, node, wants_hashes, writer, effect, bases };
                end.change(changes, record.as_deref())?;
            }
        }

        bases.finish(writer, &mut effect.gone)?;
        Ok(effect)
    }
}

/// How many records are differences from another.
#[derive(Debug, Clone, Copy)]
struct Users {
    stored: u64,
    now: u64,
    was_released: bool,
}

/// The bases of the records that are written or removed, which are asked for once and written at
/// the end.
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

    /// Counts one user more, unless the record is not there, or is none that can be a base: what is
    /// in memory may be older than what is stored.
    fn acquire(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<bool> {
        let users = self.users(writer, base)?;
        if users.now == 0 {
            let key = key_of(&base);
            let Some(record) = writer.get(Table::Main, &key)? else { return Ok(false) };
            let record =
                Record::decode(&key, &record).map_err(|Broken(rule)| broken(base, rule))?;
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

    /// Writes the numbers, and removes the records that were kept only for others and are needed no
    /// more.
    fn finish(self, writer: &mut dyn Writer, gone: &mut Vec<NodeHash>) -> Result<()> {
        for (base, users) in self.0 {
            let key = key_of(&base);
            let of_users = users_key(&key);
            if users.now > 0 && users.now != users.stored {
                let record = encode_number(&of_users, users.now);
                writer.overwrite(Table::Main, &of_users, &record)?;
            }

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

/// The extensions of changes of one node, and by how much their references change in all.
fn by_extension(changes: &[ReferenceChange]) -> impl Iterator<Item = (Prefix, i64)> {
    changes
        .chunk_by(|one, other| one.extension == other.extension)
        .map(|of| (of[0].extension, of.iter().map(|change| change.references).sum()))
        .filter(|(_, references)| *references != 0)
}

/// A extension with a record of its own, and its references before and after a change.
#[derive(Debug)]
struct SpilledChange {
    extension: Prefix,
    key: Vec<u8>,
    before: u64,
    after: u64,
}

impl SpilledChange {
    /// Whether the extension comes or goes.
    fn is_move(&self) -> bool {
        (self.before == 0) != (self.after == 0)
    }
}

/// One record that is brought up to date.
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
        let content = changes.iter_mut().find_map(|change| change.content.take());
        let changes = by_extension(changes);
        let Some(record) = record else {
            let mut extensions = Vec::new();
            self.change_here(&mut extensions, changes)?;
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

        if matches!(&record.extensions, Extensions::Spilled(0)) {
            record.extensions = Extensions::default();
        }

        if record.extensions == Extensions::default() && !self.is_base(&record)? {
            if let Some(base) = record.base().map_err(|Broken(rule)| self.broken(rule))? {
                self.bases.release(self.writer, base)?;
            }
            self.effect.gone.push(self.node);
            return Ok(self.writer.remove(Table::Main, &self.key)?);
        }

        if record.extensions == before { Ok(()) } else { self.write(record) }
    }

    /// Whether others are stored as differences from a record.
    fn is_base(&mut self, record: &Record<'_>) -> Result<bool> {
        if record.kind != Kind::Branch || record.content.len() < BASE_BYTES_MIN {
            return Ok(false);
        }
        Ok(self.bases.users(self.writer, self.node)?.now > 0)
    }

    /// How a content is stored that has no record yet.
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

    /// `references` changed by so many.
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
            // Extensions ascend, so the one that is most like another is beside the place where
            // that would be.
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
                        extensions.remove(at);
                        self.removed(&extension, shared(extensions, at));
                    } else {
                        extensions[at].1 = references;
                    }
                }
                Err(at) => {
                    let references = self.sum(0, by)?;
                    self.added(&extension, shared(extensions, at));
                    extensions.insert(at, (extension, references));
                }
            }
        }

        Ok(())
    }

    /// Changes the references of extensions that have records of their own; the extensions ascend.
    ///
    /// Cost: one lookup of each extension, side by side; of extensions that come or go one walk of
    /// one cursor, with one seek for each that has other extensions between it and the one before.
    fn change_spilled(&mut self, count: &mut u64, changes: &[(Prefix, i64)]) -> Result<()> {
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

    /// How far up from the node each extension that comes or goes is like one that is there beside
    /// it: like one below it that stays or comes, or like one above it that is stored. Extensions
    /// below it have changed already then, those above it have not.
    fn shared_with_neighbours(&self, changes: &[SpilledChange]) -> Result<Vec<Option<usize>>> {
        if !changes.iter().any(SpilledChange::is_move) {
            return Ok(vec![None; changes.len()]);
        }

        let mut cursor = self.writer.cursor(Table::Main)?;
        let extension_of = |entry: Option<Entry>| extension_of_key(&self.key, &entry?.0);
        let mut below: Option<Prefix> = None;

        // The first stored extension that is not below where the cursor was sought, nor one that
        // the walk has passed.
        let mut ahead: Option<Prefix> = None;
        let mut is_sought = false;
        let mut shared = Vec::with_capacity(changes.len());
        for change in changes {
            let SpilledChange { extension, key, after, .. } = change;
            if !change.is_move() {
                shared.push(None);
                continue;
            }

            if !is_sought || ahead.as_ref().is_some_and(|ahead| ahead < extension) {
                cursor.seek(key)?;
                below = extension_of(cursor.prev()?);
                cursor.seek(key)?;
                ahead = extension_of(cursor.next()?);
                is_sought = true;
            }

            if ahead.as_ref() == Some(extension) {
                ahead = extension_of(cursor.next()?);
            }

            let with = |other: &Prefix| common(other.as_bytes(), extension.as_bytes());
            shared.push(below.as_ref().map(with).max(ahead.as_ref().map(with)));
            if *after > 0 {
                below = Some(*extension);
            }
        }

        Ok(shared)
    }

    /// Nodes of an extension and its node that others do not have: all above so many, or all and
    /// the node.
    fn nodes(extension: &Prefix, shared: Option<usize>) -> usize {
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
            self.effect.removed_hashes.extend(all.skip(extension.as_bytes().len() + 1 - nodes));
        }
    }
}

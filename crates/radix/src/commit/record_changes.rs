//! Brings the rows of stops up to date: which chains lead to them, over how many spans; and says which nodes appear and
//! which are gone by that.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::base::address::Prefix;
use crate::base::error::{Error, Result};
use crate::base::node_hash::NodeHash;
use crate::commit::hashing::chain_hashes;
use crate::node::branch::BASE_BYTES_MIN;
use crate::node::node::{Broken, common};
use crate::records::record::{
    CHAINS_IN_ROW_MAX, Chains, Content, Kind, Row, RowKey, chain_key, chain_of_key, decode_number,
    encode_number, key_of, reversed, users_key,
};
use terrane_kv::{Entry, Table, Writer};

/// Rows of stops that are in memory at a time.
const ROWS_AT_ONCE: usize = 256;
/// Chains of one stop with rows of their own that are in memory at a time.
const CHAINS_AT_ONCE: usize = 4096;

/// What happens to an edge.
#[derive(Debug)]
struct Change {
    key: RowKey,
    /// Its chain, from below.
    chain: Prefix,
    /// By how much its spans change.
    spans: i64,
    node: NodeHash,
    /// What a new row of its stop holds; `None` if there must be one.
    content: Option<Content>,
}

/// Changes of rows.
#[derive(Debug, Default)]
pub(crate) struct RowChanges {
    edges: Vec<Change>,
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
    /// Stops whose rows are gone.
    pub(crate) gone: Vec<NodeHash>,
}

impl RowChanges {
    /// None yet, with room for so many.
    pub(crate) fn with_capacity(edges: usize) -> Self {
        Self { edges: Vec::with_capacity(edges) }
    }

    /// Counts spans of an edge. `content` is what its stop holds if it may be new.
    pub(crate) fn add(
        &mut self,
        node: NodeHash,
        chain: &Prefix,
        spans: i64,
        content: Option<Content>,
    ) {
        if spans != 0 {
            let (key, chain) = (key_of(&node), reversed(chain));
            self.edges.push(Change { key, chain, spans, node, content });
        }
    }

    /// Writes the rows. Cost: reads each row, side by side, and writes it. A stop with many chains
    /// also costs a row for each chain that changes, and one walk beside those that come or go. A
    /// difference costs the number of its base's users.
    pub(crate) fn apply(mut self, writer: &mut dyn Writer, wants_hashes: bool) -> Result<Effect> {
        self.edges
            .sort_unstable_by(|one, other| (&one.key, &one.chain).cmp(&(&other.key, &other.chain)));
        let mut stops: Vec<&mut [Change]> =
            self.edges.chunk_by_mut(|one, other| one.key == other.key).collect();
        let mut effect = Effect::default();
        let mut bases = Bases::default();
        for stops in stops.chunks_mut(ROWS_AT_ONCE) {
            let keys: Vec<RowKey> = stops.iter().map(|of| of[0].key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(RowKey::as_slice).collect();
            let rows = writer.get_many(Table::Main, &keys)?;
            for (changes, row) in stops.iter_mut().zip(rows) {
                let Change { key, node, .. } = changes[0];
                let (effect, bases) = (&mut effect, &mut bases);
                let mut stop = StopRow { key, node, wants_hashes, writer, effect, bases };
                stop.change(changes, row.as_deref())?;
            }
        }
        bases.finish(writer, &mut effect.gone)?;
        Ok(effect)
    }
}

/// How many rows are differences from another.
#[derive(Debug, Clone, Copy)]
struct Users {
    stored: u64,
    now: u64,
    was_released: bool,
}

/// The bases of the rows that are written or removed, which are asked for once and written at the end.
#[derive(Debug, Default)]
struct Bases(BTreeMap<NodeHash, Users>);

impl Bases {
    fn users(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<&mut Users> {
        Ok(match self.0.entry(base) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let key = users_key(&key_of(&base));
                let stored = match writer.get(Table::Main, &key)? {
                    Some(row) => {
                        decode_number(&key, &row).map_err(|Broken(rule)| broken(base, rule))?
                    }
                    None => 0,
                };
                new.insert(Users { stored, now: stored, was_released: false })
            }
        })
    }

    /// Counts one user more, unless the row is not there, or is none that can be a base: what is in memory may be older than
    /// what is stored.
    fn acquire(&mut self, writer: &dyn Writer, base: NodeHash) -> Result<bool> {
        let users = self.users(writer, base)?;
        if users.now == 0 {
            let key = key_of(&base);
            let Some(row) = writer.get(Table::Main, &key)? else { return Ok(false) };
            let row = Row::decode(&key, &row).map_err(|Broken(rule)| broken(base, rule))?;
            if row.kind != Kind::Branch {
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

    /// Writes the numbers, and removes the rows that were kept only for others and are needed no more.
    fn finish(self, writer: &mut dyn Writer, gone: &mut Vec<NodeHash>) -> Result<()> {
        for (base, users) in self.0 {
            let key = key_of(&base);
            let of_users = users_key(&key);
            if users.now > 0 && users.now != users.stored {
                let row = encode_number(&of_users, users.now);
                writer.overwrite(Table::Main, &of_users, &row)?;
            }
            if users.now > 0 || !users.was_released {
                continue;
            }
            if users.stored > 0 {
                writer.remove(Table::Main, &of_users)?;
            }
            let row = writer.get(Table::Main, &key)?;
            let row = row.ok_or_else(|| broken(base, "the row is missing"))?;
            let row = Row::decode(&key, &row).map_err(|Broken(rule)| broken(base, rule))?;
            if row.chains == Chains::default() {
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

/// The chains of changes of one stop, and by how much their spans change in all.
fn by_chain(changes: &[Change]) -> impl Iterator<Item = (Prefix, i64)> {
    changes
        .chunk_by(|one, other| one.chain == other.chain)
        .map(|of| (of[0].chain, of.iter().map(|change| change.spans).sum()))
        .filter(|(_, spans)| *spans != 0)
}

/// A chain with a row of its own, and its spans before and after a change.
#[derive(Debug)]
struct SpilledChange {
    chain: Prefix,
    key: Vec<u8>,
    before: u64,
    after: u64,
}

impl SpilledChange {
    /// Whether the chain comes or goes.
    fn is_move(&self) -> bool {
        (self.before == 0) != (self.after == 0)
    }
}

/// One row that is brought up to date.
struct StopRow<'a> {
    key: RowKey,
    node: NodeHash,
    wants_hashes: bool,
    writer: &'a mut dyn Writer,
    effect: &'a mut Effect,
    bases: &'a mut Bases,
}

impl StopRow<'_> {
    fn broken(&self, what: &'static str) -> Error {
        broken(self.node, what)
    }

    fn change(&mut self, changes: &mut [Change], row: Option<&[u8]>) -> Result<()> {
        let content = changes.iter_mut().find_map(|change| change.content.take());
        let changes = by_chain(changes);
        let Some(row) = row else {
            let mut chains = Vec::new();
            self.change_here(&mut chains, changes)?;
            if chains.is_empty() {
                return Ok(());
            }
            let content = content.ok_or_else(|| self.broken("the row is missing"))?;
            let (kind, content) = self.stored(&content)?;
            return self.write(Row { chains: Chains::Here(chains), kind, content: &content });
        };
        let mut row = Row::decode(&self.key, row).map_err(|Broken(rule)| self.broken(rule))?;
        let before = row.chains.clone();
        match &mut row.chains {
            Chains::Here(chains) => self.change_here(chains, changes)?,
            Chains::Spilled(count) => {
                let changes: Vec<(Prefix, i64)> = changes.collect();
                for changes in changes.chunks(CHAINS_AT_ONCE) {
                    self.change_spilled(count, changes)?;
                }
            }
        }
        if matches!(&row.chains, Chains::Spilled(0)) {
            row.chains = Chains::default();
        }
        if row.chains == Chains::default() && !self.is_base(&row)? {
            if let Some(base) = row.base().map_err(|Broken(rule)| self.broken(rule))? {
                self.bases.release(self.writer, base)?;
            }
            self.effect.gone.push(self.node);
            return Ok(self.writer.remove(Table::Main, &self.key)?);
        }
        if row.chains == before { Ok(()) } else { self.write(row) }
    }

    /// Whether others are stored as differences from a row.
    fn is_base(&mut self, row: &Row<'_>) -> Result<bool> {
        if row.kind != Kind::Branch || row.content.len() < BASE_BYTES_MIN {
            return Ok(false);
        }
        Ok(self.bases.users(self.writer, self.node)?.now > 0)
    }

    /// How a content is stored that has no row yet.
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

    fn write(&mut self, mut row: Row<'_>) -> Result<()> {
        if let Chains::Here(chains) = &row.chains
            && chains.len() > CHAINS_IN_ROW_MAX
        {
            for (chain, spans) in chains {
                self.put_spans(chain, *spans)?;
            }
            row.chains = Chains::Spilled(chains.len() as u64);
        }
        Ok(self.writer.overwrite(Table::Main, &self.key, &row.encode(&self.key))?)
    }

    fn put_spans(&mut self, chain: &Prefix, spans: u64) -> Result<()> {
        let key = chain_key(&self.key, chain);
        Ok(self.writer.overwrite(Table::Main, &key, &encode_number(&key, spans))?)
    }

    /// `spans` changed by so many.
    fn sum(&self, spans: u64, by: i64) -> Result<u64> {
        spans
            .checked_add_signed(by)
            .ok_or_else(|| self.broken("it has fewer spans than are removed"))
    }

    fn change_here(
        &mut self,
        chains: &mut Vec<(Prefix, u64)>,
        changes: impl Iterator<Item = (Prefix, i64)>,
    ) -> Result<()> {
        for (chain, by) in changes {
            // Chains ascend, so the one that is most like another is beside the place where that would be.
            let shared = |chains: &[(Prefix, u64)], at: usize| {
                let beside = &chains[at.saturating_sub(1)..chains.len().min(at + 1)];
                let with = |(other, _): &(Prefix, u64)| common(other.as_bytes(), chain.as_bytes());
                beside.iter().map(with).max()
            };
            match chains.binary_search_by_key(&chain, |(chain, _)| *chain) {
                Ok(at) => {
                    let spans = self.sum(chains[at].1, by)?;
                    if spans == 0 {
                        chains.remove(at);
                        self.removed(&chain, shared(chains, at));
                    } else {
                        chains[at].1 = spans;
                    }
                }
                Err(at) => {
                    let spans = self.sum(0, by)?;
                    self.added(&chain, shared(chains, at));
                    chains.insert(at, (chain, spans));
                }
            }
        }
        Ok(())
    }

    /// Changes the spans of chains that have rows of their own; the chains ascend.
    ///
    /// Cost: one lookup of each chain, side by side; of chains that come or go one walk of one
    /// cursor, with one seek for each that has other chains between it and the one before.
    fn change_spilled(&mut self, count: &mut u64, changes: &[(Prefix, i64)]) -> Result<()> {
        let keys: Vec<Vec<u8>> =
            changes.iter().map(|(chain, _)| chain_key(&self.key, chain)).collect();
        let by_reference: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let stored = self.writer.get_many(Table::Main, &by_reference)?;

        let mut spilled = Vec::with_capacity(changes.len());
        for (((chain, by), key), row) in changes.iter().zip(keys).zip(stored) {
            let before = match row {
                Some(row) => decode_number(&key, &row).map_err(|Broken(rule)| self.broken(rule))?,
                None => 0,
            };
            let after = self.sum(before, *by)?;
            spilled.push(SpilledChange { chain: *chain, key, before, after });
        }

        let shared = self.shared_with_neighbours(&spilled)?;
        for (change, shared) in spilled.iter().zip(shared) {
            if change.before == 0 {
                self.added(&change.chain, shared);
                *count += 1;
            }
            if change.after > 0 {
                self.put_spans(&change.chain, change.after)?;
            } else {
                self.writer.remove(Table::Main, &change.key)?;
                self.removed(&change.chain, shared);
                *count =
                    count.checked_sub(1).ok_or_else(|| self.broken("it has too few chains"))?;
            }
        }
        Ok(())
    }

    /// How far up from the stop each chain that comes or goes is like one that is there beside it:
    /// like one below it that stays or comes, or like one above it that is stored. Chains below it
    /// have changed already then, those above it have not.
    fn shared_with_neighbours(&self, changes: &[SpilledChange]) -> Result<Vec<Option<usize>>> {
        if !changes.iter().any(SpilledChange::is_move) {
            return Ok(vec![None; changes.len()]);
        }

        let mut cursor = self.writer.cursor(Table::Main)?;
        let chain_of = |entry: Option<Entry>| chain_of_key(&self.key, &entry?.0);
        let mut below: Option<Prefix> = None;
        // The first stored chain that is not below where the cursor was sought, nor one that the
        // walk has passed.
        let mut ahead: Option<Prefix> = None;
        let mut is_sought = false;
        let mut shared = Vec::with_capacity(changes.len());
        for change in changes {
            let SpilledChange { chain, key, after, .. } = change;
            if !change.is_move() {
                shared.push(None);
                continue;
            }
            if !is_sought || ahead.as_ref().is_some_and(|ahead| ahead < chain) {
                cursor.seek(key)?;
                below = chain_of(cursor.prev()?);
                cursor.seek(key)?;
                ahead = chain_of(cursor.next()?);
                is_sought = true;
            }
            if ahead.as_ref() == Some(chain) {
                ahead = chain_of(cursor.next()?);
            }
            let with = |other: &Prefix| common(other.as_bytes(), chain.as_bytes());
            shared.push(below.as_ref().map(with).max(ahead.as_ref().map(with)));
            if *after > 0 {
                below = Some(*chain);
            }
        }
        Ok(shared)
    }

    /// Nodes of a chain and its stop that others do not have: all above so many, or all and the stop.
    fn nodes(chain: &Prefix, shared: Option<usize>) -> usize {
        chain.as_bytes().len() + 1 - shared.map_or(0, |shared| shared + 1)
    }

    fn added(&mut self, chain: &Prefix, shared: Option<usize>) {
        self.effect.added += Self::nodes(chain, shared) as u64;
    }

    fn removed(&mut self, chain: &Prefix, shared: Option<usize>) {
        let nodes = Self::nodes(chain, shared);
        self.effect.removed += nodes as u64;
        if self.wants_hashes && nodes > 0 {
            let upwards = reversed(chain);
            let all = std::iter::once(self.node).chain(chain_hashes(self.node, upwards.as_bytes()));
            self.effect.removed_hashes.extend(all.skip(chain.as_bytes().len() + 1 - nodes));
        }
    }
}

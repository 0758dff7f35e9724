//! Stops by their hashes: from memory, or from the back-end, whose rows are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::error::{Error, Result, told};
use crate::base::node_hash::{NodeHash, Root};
use crate::node::branch::Branch;
use crate::node::node::{Broken, Edge, Stop, StopRef, common};
use crate::records::record::{Content, Row, RowKey, key_of};
use terrane_io::cache::{Cache, Key, Weigh};
use terrane_kv::{Reader, Table};

/// A stop that has been read.
#[derive(Debug, Clone)]
pub(crate) enum Loaded {
    Branch(Arc<Branch>),
    Value(Arc<[u8]>),
}

impl Weigh for Loaded {
    fn weight(&self) -> usize {
        match self {
            Self::Branch(branch) => branch.weight(),
            Self::Value(value) => value.len(),
        }
    }
}

impl Key for NodeHash {
    /// A cryptographic hash needs no other: who wants to slow the table down must find hashes with equal beginnings.
    fn hash(self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// Stops in memory. Nodes are named by their hashes and never change, so what is held stays right whatever is committed or
/// pruned; whether a root may be read is not asked here.
pub(crate) type NodeCache = Cache<NodeHash, Loaded>;

/// Something on the way is not in memory.
pub(crate) struct NotInMemory;

/// The value of an address below an edge at the empty address.
pub(crate) fn find_in_memory(
    cache: &NodeCache,
    edge: &Edge,
    address: &[u8],
) -> std::result::Result<Option<Vec<u8>>, NotInMemory> {
    let mut rest = address;
    let mut chain = edge.chain;
    let mut stop = edge.stop.clone();
    loop {
        let Some(below) = rest.strip_prefix(chain.as_bytes()) else { return Ok(None) };
        let node = match &stop {
            Stop::Leaf(value) => return Ok(below.is_empty().then(|| value.to_vec())),
            Stop::Row(node) => node,
        };
        let branch = match cache.get(*node).ok_or(NotInMemory)? {
            Loaded::Value(value) => return Ok(below.is_empty().then(|| value.to_vec())),
            Loaded::Branch(branch) => branch,
        };
        let Some((token, below)) = below.split_first() else {
            return Ok(branch.value().map(<[u8]>::to_vec));
        };
        let Some(child) = branch.child(*token) else { return Ok(None) };
        if let StopRef::Leaf(value) = child.stop {
            return Ok((below == child.chain).then(|| value.to_vec()));
        }
        Edge { chain, stop, .. } = child.to_edge();
        rest = below;
    }
}

/// What a stop is read for, to be named if it cannot be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) node: NodeHash,
    /// Its address.
    pub(crate) path: Prefix,
}

/// Reads stops below one root.
pub(crate) struct Nodes<'a> {
    pub(crate) cache: &'a NodeCache,
    pub(crate) reader: &'a dyn Reader,
    pub(crate) root: Option<Root>,
}

impl Nodes<'_> {
    fn corruption(&self, place: &Place, what: impl Into<String>) -> Error {
        Error::Corruption { root: self.root, path: place.path, node: place.node, what: what.into() }
    }

    /// What the back-end says when it is asked for a stop.
    fn failure(&self, place: &Place, error: terrane_kv::Error) -> Error {
        match error {
            terrane_kv::Error::Corruption { .. } => self.corruption(place, told(&error)),
            error => error.into(),
        }
    }

    fn row(&self, place: &Place) -> Result<Option<Vec<u8>>> {
        let row = self.reader.get(Table::Main, &key_of(&place.node));
        row.map_err(|error| self.failure(place, error))
    }

    /// A row of a stop. `base` gives the branch that a difference is from.
    fn decode(
        &self,
        place: &Place,
        row: Option<Vec<u8>>,
        base: impl FnOnce(NodeHash) -> Result<Arc<Branch>>,
    ) -> Result<Loaded> {
        let row = row.ok_or_else(|| self.corruption(place, "the row is missing"))?;
        let broken = |broken: Broken| self.corruption(place, broken.0);
        let row = Row::decode(&key_of(&place.node), &row).map_err(broken)?;
        let loaded = match self.read(place, &row, base)? {
            Content::Branch(branch) => Loaded::Branch(branch),
            Content::Value(value) => Loaded::Value(value),
            Content::Inline => return Err(self.corruption(place, "the row has no content")),
        };
        self.cache.insert(place.node, loaded.clone());
        Ok(loaded)
    }

    /// What a row of a stop holds; `base` gets the base of a difference.
    fn read(
        &self,
        place: &Place,
        row: &Row<'_>,
        base: impl FnOnce(NodeHash) -> Result<Arc<Branch>>,
    ) -> Result<Content> {
        let broken = |broken: Broken| self.corruption(place, broken.0);
        let base = row.base().map_err(broken)?.map(base).transpose()?;
        row.read(base.as_deref()).map_err(broken)
    }

    /// What a row of a stop holds. Cost: a row for the base of a difference that is not in memory.
    pub(crate) fn content(&self, place: &Place, row: &Row<'_>) -> Result<Content> {
        self.read(place, row, |base| self.base(place, base))
    }

    /// The base of a stop, if it is in memory, and is the one that is stored.
    fn base_in_memory(&self, base: NodeHash) -> Option<Arc<Branch>> {
        match self.cache.get(base) {
            Some(Loaded::Branch(branch)) if branch.difference().is_none() => Some(branch),
            _ => None,
        }
    }

    /// The base of a stop. Cost: a row, if it is not in memory.
    fn base(&self, place: &Place, base: NodeHash) -> Result<Arc<Branch>> {
        if let Some(branch) = self.base_in_memory(base) {
            return Ok(branch);
        }
        let row = self.row(&Place { node: base, path: place.path })?;
        self.decode_base(place, base, row)
    }

    fn decode_base(
        &self,
        place: &Place,
        base: NodeHash,
        row: Option<Vec<u8>>,
    ) -> Result<Arc<Branch>> {
        let at = Place { node: base, path: place.path };
        let nested = |_| Err(self.corruption(&at, "it is the base of another, and a difference"));
        match self.decode(&at, row, nested)? {
            Loaded::Branch(branch) => Ok(branch),
            Loaded::Value(_) => Err(self.corruption(&at, "it is the base of another, and a value")),
        }
    }

    /// A stop. Cost: a row, if it is not in memory, and one more of a difference whose base is not.
    pub(crate) fn load(&self, place: &Place) -> Result<Loaded> {
        if let Some(loaded) = self.cache.get(place.node) {
            return Ok(loaded);
        }
        self.decode(place, self.row(place)?, |base| self.base(place, base))
    }

    /// A stop below which all is gone over: none of its children lies deeper than an address can be.
    pub(crate) fn load_whole(&self, place: &Place) -> Result<Loaded> {
        let loaded = self.load(place)?;
        if let Loaded::Branch(branch) = &loaded
            && place.path.as_bytes().len() + branch.depth() > ADDRESS_BYTES_MAX
        {
            return Err(self.corruption(place, "a child lies deeper than an address can be"));
        }
        Ok(loaded)
    }

    /// Several, in their order. Cost: the rows that are not in memory, side by side, and then the bases of those that are
    /// differences.
    fn load_many(&self, places: &[Place]) -> Result<Vec<Loaded>> {
        let mut loaded: Vec<Option<Loaded>> =
            places.iter().map(|place| self.cache.get(place.node)).collect();
        let missing: Vec<usize> = (0..places.len()).filter(|&at| loaded[at].is_none()).collect();
        let one_by_one = || places.iter().map(|place| self.load(place)).collect();
        let rows = match self.rows(missing.iter().map(|&at| places[at].node)) {
            // To see which it is.
            Err(terrane_kv::Error::Corruption { .. }) => return one_by_one(),
            rows => rows?,
        };
        let mut bases = BTreeMap::new();
        for (&at, row) in missing.iter().zip(&rows) {
            let row = row.as_deref().map(|row| Row::decode(&key_of(&places[at].node), row));
            // What is wrong with a row is said below.
            if let Some(Ok(row)) = row
                && let Ok(Some(base)) = row.base()
            {
                bases.entry(base).or_insert((places[at], self.base_in_memory(base)));
            }
        }
        let wanted: Vec<NodeHash> = bases
            .iter()
            .filter(|(_, (_, branch))| branch.is_none())
            .map(|(base, _)| *base)
            .collect();
        let base_rows = match self.rows(wanted.iter().copied()) {
            Err(terrane_kv::Error::Corruption { .. }) => return one_by_one(),
            rows => rows?,
        };
        for (base, row) in wanted.iter().zip(base_rows) {
            if let Some((place, branch)) = bases.get_mut(base) {
                *branch = Some(self.decode_base(place, *base, row)?);
            }
        }
        for (at, row) in missing.into_iter().zip(rows) {
            let base = |base: NodeHash| match bases.get(&base) {
                Some((_, Some(branch))) => Ok(Arc::clone(branch)),
                _ => self.base(&places[at], base),
            };
            loaded[at] = Some(self.decode(&places[at], row, base)?);
        }
        Ok(loaded.into_iter().flatten().collect())
    }

    fn rows(
        &self,
        nodes: impl Iterator<Item = NodeHash>,
    ) -> terrane_kv::Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<RowKey> = nodes.map(|node| key_of(&node)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(RowKey::as_slice).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.reader.get_many(Table::Main, &keys)
    }

    /// The values of addresses, which ascend, below an edge at the empty address; they go down together, and each stop is
    /// read once.
    ///
    /// Cost: the stops on the way that are not in memory; those of one level side by side.
    pub(crate) fn find(&self, edge: &Edge, addresses: &[&[u8]]) -> Result<Vec<Option<Arc<[u8]>>>> {
        let mut found = vec![None; addresses.len()];
        let mut level = vec![Below { edge: edge.clone(), depth: 0, range: 0..addresses.len() }];
        while !level.is_empty() {
            let mut places = Vec::new();
            let mut reached = Vec::new();
            for below in level {
                let depth = below.depth + below.edge.chain.as_bytes().len();
                let chain = below.edge.chain.as_bytes();
                let goes_on = |at: &usize| {
                    addresses[*at].len() >= depth
                        && addresses[*at][below.depth..].starts_with(chain)
                };
                // Those that go along the whole chain are neighbours.
                let Some(first) = below.range.clone().find(goes_on) else { continue };
                let count = (first..below.range.end).take_while(goes_on).count();
                match &below.edge.stop {
                    Stop::Leaf(value) => {
                        for at in first..first + count {
                            if addresses[at].len() == depth {
                                found[at] = Some(Arc::clone(value));
                            }
                        }
                    }
                    Stop::Row(node) => {
                        let path = Prefix::new(&addresses[first][..depth]).unwrap_or(Prefix::EMPTY);
                        places.push(Place { node: *node, path });
                        reached.push((depth, first..first + count));
                    }
                }
            }
            level = Vec::new();
            for ((depth, range), loaded) in reached.into_iter().zip(self.load_many(&places)?) {
                let (value, branch) = match &loaded {
                    Loaded::Value(value) => (Some(value), None),
                    Loaded::Branch(branch) => (None, Some(branch)),
                };
                let mut at = range.start;
                while at < range.end {
                    let Some(&token) = addresses[at].get(depth) else {
                        found[at] = match branch {
                            Some(branch) => branch.value().map(Into::into),
                            None => value.cloned(),
                        };
                        at += 1;
                        continue;
                    };
                    let has_token = |at: &usize| addresses[*at].get(depth) == Some(&token);
                    let count = (at..range.end).take_while(has_token).count();
                    if let Some(edge) = branch.and_then(|branch| branch.child(token)) {
                        let (edge, range) = (edge.to_edge(), at..at + count);
                        level.push(Below { edge, depth: depth + 1, range });
                    }
                    at += count;
                }
            }
        }
        Ok(found)
    }

    /// The edge at the first place on the way to `prefix` that is not above it, and that place; `None` if nothing is below
    /// `prefix`.
    pub(crate) fn seek(&self, edge: &Edge, prefix: &Prefix) -> Result<Option<(Prefix, Edge)>> {
        let wanted = prefix.as_bytes();
        let mut edge = edge.clone();
        let mut path = Prefix::EMPTY;
        loop {
            let rest = &wanted[path.as_bytes().len()..];
            let chain = edge.chain.as_bytes();
            let along = common(chain, rest);
            if along == rest.len() {
                return Ok(Some((path, edge)));
            }
            if along < chain.len() {
                return Ok(None);
            }
            let Stop::Row(node) = edge.stop else { return Ok(None) };
            path.extend(chain);
            let Loaded::Branch(branch) = self.load_whole(&Place { node, path })? else {
                return Ok(None);
            };
            let token = rest[along];
            path.extend(&[token]);
            match branch.child(token) {
                Some(child) => edge = child.to_edge(),
                None => return Ok(None),
            }
        }
    }
}

/// Addresses that lead to one edge.
struct Below {
    edge: Edge,
    /// Tokens above it.
    depth: usize,
    /// Which of the addresses.
    range: std::ops::Range<usize>,
}

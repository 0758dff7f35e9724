//! Nodes by their hashes, from the cache or from the back-end, whose records are checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::error::{Error, Result, with_causes};
use crate::base::node_hash::{NodeHash, Root};
use crate::node::branch::Branch;
use crate::node::node::{Broken, Edge, Node, NodeRef, common};
use crate::records::record::{Content, Record, RecordKey, key_of};
use terrane_io::cache::{Cache, Key, Weigh};
use terrane_kv::{Reader, Table};

/// A node that has been read.
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
    /// The first bytes of the node's hash: an attacker who wants to slow the table down must find
    /// SHA-512 hashes with equal beginnings.
    fn hash(self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// Nodes in memory. A node is named by its hash and never changes, so an entry stays right whatever
/// is committed or pruned. The cache does not know which roots are retained.
pub(crate) type NodeCache = Cache<NodeHash, Loaded>;

/// A node on the path is not in memory.
pub(crate) struct NotInMemory;

/// The value of an address below an edge at the empty address.
pub(crate) fn find_in_memory(
    cache: &NodeCache,
    edge: &Edge,
    address: &[u8],
) -> std::result::Result<Option<Vec<u8>>, NotInMemory> {
    let mut rest = address;

    let mut extension = edge.extension;
    let mut end = edge.end.clone();
    loop {
        // An extension that the address leaves, or within which it ends, leads to no value.
        let Some(below) = rest.strip_prefix(extension.as_bytes()) else { return Ok(None) };
        let node = match &end {
            Node::Leaf(value) => return Ok(below.is_empty().then(|| value.to_vec())),
            Node::Stored(node) => node,
        };

        let branch = match cache.get(*node).ok_or(NotInMemory)? {
            Loaded::Value(value) => return Ok(below.is_empty().then(|| value.to_vec())),
            Loaded::Branch(branch) => branch,
        };

        let Some((token, below)) = below.split_first() else {
            return Ok(branch.value().map(<[u8]>::to_vec));
        };

        let Some(child) = branch.child(*token) else { return Ok(None) };
        if let NodeRef::Leaf(value) = child.end {
            return Ok((below == child.extension).then(|| value.to_vec()));
        }

        Edge { extension, end, .. } = child.to_edge();
        rest = below;
    }
}

/// A node to read, with its address, which an error names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePlace {
    pub(crate) node: NodeHash,
    /// Its address.
    pub(crate) path: Prefix,
}

/// Reader of nodes below one root.
pub(crate) struct Nodes<'a> {
    pub(crate) cache: &'a NodeCache,
    pub(crate) reader: &'a dyn Reader,
    pub(crate) root: Option<Root>,
}

impl Nodes<'_> {
    fn corruption(&self, place: &NodePlace, what: impl Into<String>) -> Error {
        Error::Corruption { root: self.root, path: place.path, node: place.node, what: what.into() }
    }

    /// An error of the back-end while it reads a node.
    fn failure(&self, place: &NodePlace, error: terrane_kv::Error) -> Error {
        match error {
            terrane_kv::Error::Corruption { .. } => self.corruption(place, with_causes(&error)),
            error => error.into(),
        }
    }

    fn record(&self, place: &NodePlace) -> Result<Option<Vec<u8>>> {
        let record = self.reader.get(Table::Main, &key_of(&place.node));
        record.map_err(|error| self.failure(place, error))
    }

    /// A record of a node. `base` gives the branch that a difference is from.
    fn decode(
        &self,
        place: &NodePlace,
        record: Option<Vec<u8>>,
        base: impl FnOnce(NodeHash) -> Result<Arc<Branch>>,
    ) -> Result<Loaded> {
        let record = record.ok_or_else(|| self.corruption(place, "the record is missing"))?;
        let broken = |broken: Broken| self.corruption(place, broken.0);
        let record = Record::decode(&key_of(&place.node), &record).map_err(broken)?;
        let loaded = match self.read(place, &record, base)? {
            Content::Branch(branch) => Loaded::Branch(branch),
            Content::Value(value) => Loaded::Value(value),
            Content::Inline => return Err(self.corruption(place, "the record has no content")),
        };
        // Kept only once it is decoded, so that damage is reported on every read.
        self.cache.insert(place.node, loaded.clone());
        Ok(loaded)
    }

    /// Decodes the content of a record; `base` gets the base of a difference.
    fn read(
        &self,
        place: &NodePlace,
        record: &Record<'_>,
        base: impl FnOnce(NodeHash) -> Result<Arc<Branch>>,
    ) -> Result<Content> {
        let broken = |broken: Broken| self.corruption(place, broken.0);
        let base = record.base().map_err(broken)?.map(base).transpose()?;
        record.read(base.as_deref()).map_err(broken)
    }

    /// Decodes the content of a record. Cost: one more record if the base of a difference is not in
    /// memory.
    pub(crate) fn content(&self, place: &NodePlace, record: &Record<'_>) -> Result<Content> {
        self.read(place, record, |base| self.base(place, base))
    }

    /// The base of a node, if it is in memory, and is the one that is stored.
    fn base_in_memory(&self, base: NodeHash) -> Option<Arc<Branch>> {
        match self.cache.get(base) {
            Some(Loaded::Branch(branch)) if branch.difference().is_none() => Some(branch),
            _ => None,
        }
    }

    /// The base of a node. Cost: a record, if it is not in memory.
    fn base(&self, place: &NodePlace, base: NodeHash) -> Result<Arc<Branch>> {
        if let Some(branch) = self.base_in_memory(base) {
            return Ok(branch);
        }
        let record = self.record(&NodePlace { node: base, path: place.path })?;
        self.decode_base(place, base, record)
    }

    fn decode_base(
        &self,
        place: &NodePlace,
        base: NodeHash,
        record: Option<Vec<u8>>,
    ) -> Result<Arc<Branch>> {
        let at = NodePlace { node: base, path: place.path };
        let nested = |_| Err(self.corruption(&at, "it is the base of another, and a difference"));
        match self.decode(&at, record, nested)? {
            Loaded::Branch(branch) => {
                debug_assert!(branch.difference().is_none(), "a base is stored whole");
                Ok(branch)
            }
            Loaded::Value(_) => Err(self.corruption(&at, "it is the base of another, and a value")),
        }
    }

    /// A node. Cost: a record, if it is not in memory, and one more of a difference whose base is
    /// not.
    pub(crate) fn load(&self, place: &NodePlace) -> Result<Loaded> {
        if let Some(loaded) = self.cache.get(place.node) {
            return Ok(loaded);
        }
        self.decode(place, self.record(place)?, |base| self.base(place, base))
    }

    /// A node whose children will all be visited: refuses one that lies deeper than an address can.
    pub(crate) fn load_whole(&self, place: &NodePlace) -> Result<Loaded> {
        let loaded = self.load(place)?;
        // Only a walk over all children needs the bound: a lookup ends with its address.
        if let Loaded::Branch(branch) = &loaded
            && place.path.as_bytes().len() + branch.depth() > ADDRESS_BYTES_MAX
        {
            return Err(self.corruption(place, "a child lies deeper than an address can be"));
        }
        Ok(loaded)
    }

    /// Several nodes, in their order. Cost: two reads side by side, of the records that are not in
    /// memory and of the bases of those that are differences.
    fn load_many(&self, places: &[NodePlace]) -> Result<Vec<Loaded>> {
        let mut loaded: Vec<Option<Loaded>> =
            places.iter().map(|place| self.cache.get(place.node)).collect();

        let missing: Vec<usize> = (0..places.len()).filter(|&at| loaded[at].is_none()).collect();
        let one_by_one = || places.iter().map(|place| self.load(place)).collect();
        let records = match self.records(missing.iter().map(|&at| places[at].node)) {
            // Reading one by one names the damaged node.
            Err(terrane_kv::Error::Corruption { .. }) => return one_by_one(),
            records => records?,
        };

        // First the bases of all differences, so that they are read side by side too.
        let mut bases = BTreeMap::new();
        for (&at, record) in missing.iter().zip(&records) {
            let record =
                record.as_deref().map(|record| Record::decode(&key_of(&places[at].node), record));
            // `decode` below reports a broken record.
            if let Some(Ok(record)) = record
                && let Ok(Some(base)) = record.base()
            {
                bases.entry(base).or_insert((places[at], self.base_in_memory(base)));
            }
        }

        let wanted: Vec<NodeHash> = bases
            .iter()
            .filter(|(_, (_, branch))| branch.is_none())
            .map(|(base, _)| *base)
            .collect();

        let base_records = match self.records(wanted.iter().copied()) {
            Err(terrane_kv::Error::Corruption { .. }) => return one_by_one(),
            records => records?,
        };

        for (base, record) in wanted.iter().zip(base_records) {
            if let Some((place, branch)) = bases.get_mut(base) {
                *branch = Some(self.decode_base(place, *base, record)?);
            }
        }

        for (at, record) in missing.into_iter().zip(records) {
            let base = |base: NodeHash| match bases.get(&base) {
                Some((_, Some(branch))) => Ok(Arc::clone(branch)),
                _ => self.base(&places[at], base),
            };
            loaded[at] = Some(self.decode(&places[at], record, base)?);
        }

        debug_assert!(loaded.iter().all(Option::is_some));
        Ok(loaded.into_iter().flatten().collect())
    }

    fn records(
        &self,
        nodes: impl Iterator<Item = NodeHash>,
    ) -> terrane_kv::Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<RecordKey> = nodes.map(|node| key_of(&node)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(RecordKey::as_slice).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.reader.get_many(Table::Main, &keys)
    }

    /// The values of addresses, which ascend, below the edge of a whole tree. All addresses go down
    /// level by level, and each node is read once.
    ///
    /// Cost: the nodes on the way that are not in memory; those of one level side by side.
    pub(crate) fn find(&self, edge: &Edge, addresses: &[&[u8]]) -> Result<Vec<Option<Arc<[u8]>>>> {
        debug_assert!(addresses.is_sorted());
        let mut found = vec![None; addresses.len()];
        let mut level =
            vec![AddressGroup { edge: edge.clone(), depth: 0, range: 0..addresses.len() }];

        // Each round reads one level of the tree, side by side.
        while !level.is_empty() {
            let mut places = Vec::new();
            let mut reached = Vec::new();
            for group in level {
                let Some((depth, range)) = group.follow(addresses) else { continue };
                match &group.edge.end {
                    Node::Leaf(value) => {
                        for at in range {
                            if addresses[at].len() == depth {
                                found[at] = Some(Arc::clone(value));
                            }
                        }
                    }
                    Node::Stored(node) => {
                        let path = Prefix::new(&addresses[range.start][..depth]);
                        let path = path.unwrap_or(Prefix::EMPTY);
                        places.push(NodePlace { node: *node, path });
                        reached.push((depth, range));
                    }
                }
            }

            debug_assert_eq!(places.len(), reached.len(), "each node is read for one group");
            level = Vec::new();
            for ((depth, range), loaded) in reached.into_iter().zip(self.load_many(&places)?) {
                spread(&loaded, depth, range, addresses, &mut found, &mut level);
            }
        }

        Ok(found)
    }

    /// The edge at the first place on the way to `prefix` that is not above it, and that place;
    /// `None` if nothing is below `prefix`.
    pub(crate) fn seek(&self, edge: &Edge, prefix: &Prefix) -> Result<Option<(Prefix, Edge)>> {
        let wanted = prefix.as_bytes();

        let mut edge = edge.clone();
        let mut path = Prefix::EMPTY;
        loop {
            debug_assert!(
                path.as_bytes().len() <= wanted.len(),
                "the path is not below the prefix"
            );

            let rest = &wanted[path.as_bytes().len()..];
            let extension = edge.extension.as_bytes();

            let along = common(extension, rest);
            // The prefix ends within this edge, so all below the edge begins with the prefix.
            if along == rest.len() {
                return Ok(Some((path, edge)));
            }

            // The prefix leaves the extension on its way.
            if along < extension.len() {
                return Ok(None);
            }

            // Nothing is below a leaf, and the prefix goes on.
            let Node::Stored(node) = edge.end else { return Ok(None) };
            path.extend(extension);
            let Loaded::Branch(branch) = self.load_whole(&NodePlace { node, path })? else {
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

/// Enters the value of a node for the addresses that end at it, and groups the others by child.
fn spread(
    loaded: &Loaded,
    depth: usize,
    range: std::ops::Range<usize>,
    addresses: &[&[u8]],
    found: &mut [Option<Arc<[u8]>>],
    level: &mut Vec<AddressGroup>,
) {
    debug_assert!(
        addresses[range.clone()].iter().all(|address| address.len() >= depth),
        "each address of the group leads to the node"
    );

    let (value, branch) = match loaded {
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

        // Addresses ascend, so those with one token are neighbours.
        let has_token = |at: &usize| addresses[*at].get(depth) == Some(&token);
        let count = (at..range.end).take_while(has_token).count();
        if let Some(edge) = branch.and_then(|branch| branch.child(token)) {
            let edge = edge.to_edge();
            level.push(AddressGroup { edge, depth: depth + 1, range: at..at + count });
        }

        at += count;
    }
}

/// A run of addresses that lead to one edge.
struct AddressGroup {
    edge: Edge,
    /// Tokens above it.
    depth: usize,
    /// Positions among the addresses.
    range: std::ops::Range<usize>,
}

impl AddressGroup {
    /// The depth of the edge's node, and the addresses that follow the whole extension to it;
    /// `None` if there are none.
    fn follow(&self, addresses: &[&[u8]]) -> Option<(usize, std::ops::Range<usize>)> {
        debug_assert!(self.range.end <= addresses.len(), "a group is a run of the addresses");
        let extension = self.edge.extension.as_bytes();
        let depth = self.depth + extension.len();
        let goes_on = |at: &usize| {
            addresses[*at].len() >= depth && addresses[*at][self.depth..].starts_with(extension)
        };

        // Addresses ascend, so those that follow the whole extension are neighbours.
        let first = self.range.clone().find(goes_on)?;
        let count = (first..self.range.end).take_while(goes_on).count();
        Some((depth, first..first + count))
    }
}

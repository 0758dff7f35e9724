//! Encoding: writes every directory, inode and large value below a root that has no extent yet,
//! children before parents, a subtree next to its siblings. So the records of one block lie
//! together.
//!
//! Bytes of a record do not depend on where its frame is. So the threads of a commit encode
//! [parts](EncodedPart) of the tree, and the frame takes their records over.

use std::sync::Arc;

use crate::base::address::{Address, Extent, Link, NOWHERE, Origin, UNIT_BYTES, record_bytes};
use crate::base::error::{Error, Result};
use crate::base::fast_map::{FastMap, FastSet};
use crate::base::hash::Hash;
use crate::base::path::{HEIGHT_MAX, PathText};
use crate::object::record::{Form, RecordBody, VALUE};
use crate::tree::node::{Child, Content, Env, Member, Node, Place, Shape, Spot, Value};

/// Target of records.
pub(crate) trait Sink {
    /// Where the next record goes.
    fn next(&self) -> Origin;

    /// Appends a record, whose body `write` writes.
    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent>;

    /// Appends records that refer to each other, all in one frame; `false` if it has no room.
    fn append(&mut self, records: &Records) -> Result<bool>;

    /// Returns an object of this hash that is already stored, if the sink knows one.
    fn known(&mut self, is_value: bool, hash: &Hash) -> Result<Option<Extent>>;
}

/// Bodies of records, without the frame that they will be in.
#[derive(Debug)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// End of each body.
    ends: Vec<usize>,
    /// Units of all records.
    units: u32,
    /// Bytes that all bodies may take.
    limit: usize,
}

impl Records {
    /// Prepares bodies of at most `limit` bytes in all, of about `expected` records.
    pub(crate) fn new(limit: usize, expected: usize) -> Self {
        /// Bytes of most bodies.
        const EXPECTED_BYTES: usize = 160;

        let bytes = Vec::with_capacity(limit.min(expected * EXPECTED_BYTES));
        Self { bytes, ends: Vec::with_capacity(expected), units: 0, limit }
    }

    /// Bytes that all records take in a frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    pub(crate) fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut start, *end)..*end])
    }
}

/// Address of the first record of a part: in a chunk that no pack has, behind all others.
const APART: Address = Address { chunk: u32::MAX, unit: 0 };

impl Sink for Records {
    fn next(&self) -> Origin {
        Origin { at: Address { unit: self.units, ..APART }, frame: APART }
    }

    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent> {
        let at = self.next().at;
        let start = self.bytes.len();
        write(&mut self.bytes);
        if self.bytes.len() > self.limit {
            return Err(Error::CommitTooLarge { limit: self.limit });
        }
        self.ends.push(self.bytes.len());
        let bytes = record_bytes(self.bytes.len() - start);
        self.units += (bytes as u64).div_ceil(UNIT_BYTES) as u32;
        Ok(Extent { at, bytes: bytes as u32 })
    }

    fn append(&mut self, _: &Records) -> Result<bool> {
        Ok(false)
    }

    fn known(&mut self, _: bool, _: &Hash) -> Result<Option<Extent>> {
        Ok(None)
    }
}

/// Subtree that a thread encoded, before the address of its frame was known.
///
/// Invariant: the subtree has no node or value that stands elsewhere too, so each is written once.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    records: Records,
    /// The root comes last.
    nodes: Vec<(Arc<Node>, Place, u16)>,
    values: Vec<(Arc<Value>, Extent)>,
}

impl EncodedPart {
    /// Encodes the subtree of an inode, below which all has hashes, as `records`. `buffered` are
    /// large values that the write buffer and the change hold, too.
    ///
    /// Returns `None` if there is nothing to write, and if a commit must write the subtree: a node
    /// or value may stand elsewhere, or is known by its hash only, or the records are too large.
    pub(crate) fn encode(
        env: &Env,
        node: &Arc<Node>,
        buffered: FastSet<*const Value>,
        mut records: Records,
    ) -> Option<Self> {
        if node.is_stored() || Arc::strong_count(node) > 1 {
            return None;
        }
        debug_assert!(records.ends.is_empty(), "a part has records of its own");
        let nodes = Vec::with_capacity(records.ends.capacity());
        let mut written = Written { nodes, buffered, refuses_shared: true, ..Written::default() };
        // A commit writes a part that is too large itself; it meets other errors again.
        written.subtree(env, node, &mut records).ok().flatten()?;
        debug_assert_eq!(
            written.nodes.len() + written.values.len(),
            records.ends.len(),
            "a record for each node and value"
        );
        let Written { nodes, values, .. } = written;
        Some(Self { records, nodes, values })
    }

    /// Bytes that the records take in a frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.records.frame_bytes()
    }

    /// Returns whether a commit has written a node or value of the part since it was encoded: one
    /// of a clone of the tree.
    fn is_outdated(&self) -> bool {
        self.nodes.iter().any(|(node, ..)| node.is_stored())
            || self.values.iter().any(|(value, _)| value.extent.get().is_some())
    }

    fn root(&self) -> &Arc<Node> {
        &self.nodes.last().expect("the root was written").0
    }
}

/// Written nodes and values, to be [kept](Written::keep) once their frame is in the pack.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Each node with its place, and the height of its record.
    nodes: Vec<(Arc<Node>, Place, u16)>,
    values: Vec<(Arc<Value>, Extent)>,
    /// Written nodes that may occur again in the tree.
    shared: FastMap<*const Node, (Extent, u16)>,
    /// Written values that may occur again in the tree.
    shared_values: FastMap<*const Value, Extent>,
    /// Whether a node or value that is not stored may occur again, in this tree or another one.
    has_shared: bool,
    /// Whether that ends the writing.
    refuses_shared: bool,
    /// Values that the write buffer and a change hold, too.
    buffered: FastSet<*const Value>,
    /// Parts that were encoded already, by their roots.
    parts: FastMap<*const Node, EncodedPart>,
    /// Lists of links of nodes that were written, to be used again.
    lists: Vec<Vec<Link>>,
}

/// Holders of a large value that waited in the write buffer: the buffer, the change, and the node.
const HOLDERS_BUFFERED: usize = 3;

// Pointers are compared, never dereferenced.
impl Written {
    /// Prepares the writing of a tree of which parts are encoded.
    pub(crate) fn with_parts(parts: Vec<EncodedPart>) -> Self {
        let parts = parts.into_iter().map(|part| (Arc::as_ptr(part.root()), part)).collect();
        Self { parts, ..Self::default() }
    }

    /// Stores the places in the nodes and values.
    ///
    /// A node above a blinded part may be lower than its record. Such a node gets no place, so
    /// that a later commit looks at it again.
    pub(crate) fn keep(self) {
        for (node, place, height) in self.nodes {
            // The place would make later commits trust a height that is too low.
            if height <= node.height() {
                node.store_at(place);
            }
        }
        for (value, extent) in self.values {
            value.extent.get_or_init(|| extent);
        }
    }

    /// Returns the written objects: whether each is a value, its hash and its extent, for an index
    /// of all objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (bool, Hash, Extent)> + '_ {
        // Directories and inodes first, then values: the index sorts them anyway.
        let nodes = self
            .nodes
            .iter()
            .filter_map(|(node, place, _)| Some((false, *node.hash.get()?, place.extent)));
        let values = self
            .values
            .iter()
            .filter_map(|(value, extent)| Some((true, *value.hash.get()?, *extent)));
        nodes.chain(values)
    }

    /// Number of written nodes and values.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.nodes.len() as u64, self.values.len() as u64)
    }

    /// Writes a node and all below it, which have hashes; returns its extent and height.
    fn node(&mut self, env: &Env, node: &Arc<Node>, sink: &mut dyn Sink) -> Result<(Extent, u16)> {
        match self.known(env, node, sink)? {
            Some(known) => Ok(known),
            None => {
                debug_assert!(!self.refuses_shared, "a part begins with its root");
                let written = self.subtree(env, node, sink)?;
                Ok(written.expect("a commit writes what occurs again, too"))
            }
        }
    }

    /// Writes a node that is not known, and all below it. Ends without a result at what may occur
    /// again, if that is refused.
    ///
    /// Keeps a list of the open nodes: a path may have more nodes than a thread has stack for.
    fn subtree(
        &mut self,
        env: &Env,
        node: &Arc<Node>,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Extent, u16)>> {
        // Post-order: a record refers to the records of its children.
        let mut way = Vec::new();
        let mut writing = self.begin(node);

        loop {
            let below = self.next_below(env, &mut writing, sink)?;
            if self.refuses_shared && self.has_shared {
                return Ok(None);
            }
            if let Some(below) = below {
                match self.known(env, below, sink)? {
                    Some((extent, height)) => writing.put(link(below, extent), height),
                    None => {
                        let below = self.begin(below);
                        way.push(std::mem::replace(&mut writing, below));
                    }
                }
                continue;
            }

            let node = writing.node;
            let (extent, height) = self.write(writing, sink)?;
            match way.pop() {
                Some(above) => writing = above,
                None => return Ok(Some((extent, height))),
            }

            writing.put(link(node, extent), height);
        }
    }

    /// Begins a node, with a list that was used before.
    fn begin<'a>(&mut self, node: &'a Arc<Node>) -> Writing<'a> {
        let links = self.lists.pop().unwrap_or_default();
        Writing { node, next: 0, links, height: node.height() }
    }

    /// Returns the extent and height of a node that is stored, or was written before.
    fn known(
        &mut self,
        env: &Env,
        node: &Arc<Node>,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Extent, u16)>> {
        if let Some(link) = node.link() {
            return Ok(Some((link.extent, node.height())));
        }

        // A node with one owner is met once, so only shared ones are looked up.
        let shared = (Arc::strong_count(node) > 1).then_some(Arc::as_ptr(node));
        self.has_shared |= shared.is_some();
        if let Some(written) = shared.and_then(|node| self.shared.get(&node)) {
            return Ok(Some(*written));
        }

        // A part that was encoded has another owner, the list of its nodes.
        if let Some(part) = shared.and_then(|node| self.parts.remove(&node))
            && let Some(written) = self.take_over(part, sink)?
        {
            return Ok(Some(written));
        }

        // An index of all objects may have the node, from any commit.
        let hash = node.hash.get().expect(HASHED);
        let Some((extent, stored)) = known_dir(env, hash, sink)? else { return Ok(None) };

        let height = stored.height();
        self.nodes.push((Arc::clone(node), Place { extent, form: Form::Other }, height));
        if let Some(node) = shared {
            self.shared.insert(node, (extent, height));
        }

        Ok(Some((extent, height)))
    }

    /// Writes an encoded part; returns extent and height of its root. Returns `None` if the frame
    /// has no room for all of it, or if nodes of the part are stored by now.
    fn take_over(
        &mut self,
        part: EncodedPart,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Extent, u16)>> {
        let start = sink.next().at;
        // What is stored would be written twice, and the place in memory be that of the other one.
        if part.is_outdated() || !sink.append(&part.records)? {
            return Ok(None);
        }

        let moved = |extent: Extent| {
            debug_assert_eq!(extent.at.chunk, APART.chunk, "the record was encoded in a part");
            let unit = start.unit + (extent.at.unit - APART.unit);
            Extent { at: Address { unit, ..start }, ..extent }
        };
        let root = Arc::as_ptr(part.root());
        let nodes = part.nodes.into_iter().map(|(node, place, height)| {
            (node, Place { extent: moved(place.extent), ..place }, height)
        });
        self.nodes.extend(nodes);
        let values = part.values.into_iter();
        self.values.extend(values.map(|(value, extent)| (value, moved(extent))));

        let (_, place, height) = self.nodes.last().expect("the root was written");
        let written = (place.extent, *height);
        self.shared.insert(root, written);
        Ok(Some(written))
    }

    /// Returns the next node below that may have to be written first. Writes other children on the
    /// way.
    fn next_below<'a>(
        &mut self,
        env: &Env,
        writing: &mut Writing<'a>,
        sink: &mut dyn Sink,
    ) -> Result<Option<&'a Arc<Node>>> {
        let node = &**writing.node;
        match node.shape() {
            Shape::Entries(shape) => {
                let entries = shape.entries();
                while let Some(item) = entries.nowhere_from(writing.next).next() {
                    writing.next = item + 1;
                    match node.member(item) {
                        Some(Member::Node(node)) => return Ok(Some(node)),
                        Some(Member::Value(value)) => {
                            writing.put(self.value(value, sink)?, 0);
                        }
                        None => {
                            let (link, height) = blinded(env, shape.spot(item), sink)?;
                            writing.put(link, height);
                        }
                    }
                }
            }
            Shape::Inner(shape) => {
                let inner = shape.inner();
                while writing.next < inner.len() {
                    let rank = writing.next;
                    writing.next += 1;
                    if inner.extent(rank) != NOWHERE {
                        continue;
                    }
                    match node.member(rank) {
                        Some(Member::Node(node)) => return Ok(Some(node)),
                        Some(Member::Value(_)) | None => {
                            let path = PathText::default();
                            return Err(Error::DanglingHash { hash: inner.hash(rank), path });
                        }
                    }
                }
            }
        }

        Ok(None)
    }

    /// Writes a node whose children are written.
    fn write(&mut self, writing: Writing<'_>, sink: &mut dyn Sink) -> Result<(Extent, u16)> {
        let Writing { node, mut links, height, .. } = writing;
        debug_assert!(height >= node.height(), "children only add to the height");
        let body = &node.record().body;
        if matches!(body, RecordBody::Entries(_)) && height > HEIGHT_MAX {
            return Err(Error::TooDeep { levels: height.into() });
        }

        let origin = sink.next();
        let mut form = Form::Full;
        let extent = sink.put(&mut |out| {
            let mut links = links.iter().copied();
            form = match body {
                RecordBody::Entries(entries) => entries.put(origin, height, &mut links, out),
                RecordBody::Inner(inner) => inner.put(origin, height, &mut links, out),
            };
        })?;

        debug_assert_eq!(extent.at, origin.at, "references are relative to where the record is");
        debug_assert!(extent.bytes > 0, "a record has a length");
        if Arc::strong_count(node) > 1 {
            self.shared.insert(Arc::as_ptr(node), (extent, height));
        }
        self.nodes.push((Arc::clone(node), Place { extent, form }, height));

        links.clear();
        self.lists.push(links);
        Ok((extent, height))
    }

    /// Writes the root of a tree; returns its link and its height, 0 for a value.
    pub(crate) fn root(
        &mut self,
        env: &Env,
        root: &Child,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Link, u16)>> {
        Ok(match root {
            Child::Value(_) | Child::ValueAt(_) => None,
            Child::Dir(node) => {
                let (extent, height) = self.node(env, node, sink)?;
                Some((link(node, extent), height))
            }
            Child::DirAt(far) => Some((far.0, 0)),
            Child::Blinded { .. } => Some(blinded(env, Spot::Own(root), sink)?),
        })
    }

    fn value(&mut self, value: &Arc<Value>, sink: &mut dyn Sink) -> Result<Link> {
        let hash = *value.hash.get().expect("hashed before it is written");
        let holders = Arc::strong_count(value);
        let shared = (holders > 1).then_some(Arc::as_ptr(value));
        let written = || self.shared_values.get(&shared?);
        if let Some(&extent) = value.extent.get().or_else(written) {
            return Ok(Link { extent, hash });
        }
        self.has_shared |= shared
            .is_some_and(|value| holders > HOLDERS_BUFFERED || !self.buffered.contains(&value));

        // An index of all objects may have the value.
        let extent = match sink.known(true, &hash)? {
            Some(extent) => extent,
            None => sink.put(&mut |body| {
                body.push(VALUE);
                body.extend_from_slice(&value.bytes);
            })?,
        };

        self.values.push((Arc::clone(value), extent));
        if let Some(value) = shared {
            self.shared_values.insert(value, extent);
        }

        Ok(Link { extent, hash })
    }
}

const HASHED: &str = "hashed before it is written";

/// Link of a written node.
fn link(node: &Node, extent: Extent) -> Link {
    Link { extent, hash: *node.hash.get().expect(HASHED) }
}

/// Returns the link and the height of a blinded child that the sink knows.
fn blinded(env: &Env, spot: Spot<'_>, sink: &mut dyn Sink) -> Result<(Link, u16)> {
    let Content::Blinded { is_value, hash } = spot.content() else {
        unreachable!("what is in memory is written")
    };
    let known = if is_value {
        sink.known(true, &hash)?.map(|extent| (extent, 0))
    } else {
        let known = known_dir(env, &hash, sink)?;
        let whole = known.filter(|known| known.1.check_shape(&env.rules, 0).is_ok());
        whole.map(|(extent, node)| (extent, node.height()))
    };
    let dangling = || Error::DanglingHash { hash, path: PathText::default() };
    let (extent, height) = known.ok_or_else(dangling)?;
    Ok((Link { extent, hash }, height))
}

/// Node that is being written, after the nodes below it.
struct Writing<'a> {
    node: &'a Arc<Node>,
    /// The next item, or the rank of the next bucket.
    next: usize,
    /// Links of the children that were not stored.
    links: Vec<Link>,
    height: u16,
}

impl Writing<'_> {
    /// Takes the link and the height of a written child.
    fn put(&mut self, link: Link, below: u16) {
        let below = match self.node.shape() {
            Shape::Inner(_) => below,
            Shape::Entries(_) => below + 1,
        };
        self.links.push(link);
        self.height = self.height.max(below);
    }
}

/// Returns the extent and the node of a directory or inode that the sink knows. An unreadable one
/// counts as unknown.
///
/// Cost: one read, if it is known and not in memory.
fn known_dir(env: &Env, hash: &Hash, sink: &mut dyn Sink) -> Result<Option<(Extent, Arc<Node>)>> {
    let Some(extent) = sink.known(false, hash)? else { return Ok(None) };
    Ok(env.load(&Link { extent, hash: *hash }).ok().map(|node| (extent, node)))
}

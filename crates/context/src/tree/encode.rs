//! Encoding: writes every directory, inode and large value below a root that has no extent yet,
//! children before parents, a subtree next to its siblings. So the records of one block lie
//! together.

use std::sync::Arc;

use crate::base::address::{Address, Extent, Link};
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::BRANCHING_MAX;
use crate::base::path::{HEIGHT_MAX, PathText};
use crate::object::record::{
    EntriesBuffers, EntriesWriter, INLINE_BYTES_MAX, Inner, Record, RecordBody, Stored, VALUE,
    delta_base, inner_body, is_delta_worth,
};
use crate::tree::node::{Body, Child, EntriesNode, Env, InnerNode, Node, Slot, Spot, Value};

/// Target of records.
pub(crate) trait Sink {
    /// Address of the next record.
    fn next(&self) -> Address;

    /// Appends a record, whose body `write` writes.
    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Extent>;

    /// Returns an object of this hash that is already stored, if the sink knows one.
    fn known(&mut self, is_value: bool, hash: &Hash) -> Result<Option<Extent>>;
}

/// Written nodes and values, to be [kept](Written::keep) once their frame is in the pack.
#[derive(Debug, Default)]
pub(crate) struct Written<'a> {
    nodes: Vec<(&'a Node, Extent, Option<Arc<Record>>)>,
    values: Vec<(&'a Value, Extent)>,
    /// Written nodes that may occur again in the tree.
    shared: FastMap<*const Node, (Link, u16)>,
    /// Written values that may occur again in the tree.
    shared_values: FastMap<*const Value, Extent>,
    buffers: EntriesBuffers,
}

// Pointers are compared, never dereferenced.
impl<'a> Written<'a> {
    /// Stores the extents in the nodes; calls `cache` with each new record, its extent, and the
    /// extent of its predecessor.
    ///
    /// A node above a blinded part may be lower than its record. Such a node gets no extent, so
    /// that a later commit looks at it again.
    pub(crate) fn keep(self, mut cache: impl FnMut(Option<Extent>, Extent, Arc<Record>)) {
        for (node, extent, record) in self.nodes {
            // The extent would make later commits trust a height that is too low.
            if record.as_ref().is_none_or(|record| record.height <= node.height) {
                node.extent.get_or_init(|| extent);
            }
            if let Some(record) = record {
                cache(node.base().and_then(|base| base.extent.get().copied()), extent, record);
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
            .filter_map(|(node, extent, _)| Some((false, *node.hash.get()?, *extent)));
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

    /// Writes a node and all below it, which have hashes; returns its link and height.
    ///
    /// Keeps a list of the open nodes: a path may have more nodes than a thread has stack for.
    pub(crate) fn node(
        &mut self,
        env: &Env,
        node: &'a Arc<Node>,
        sink: &mut dyn Sink,
    ) -> Result<(Link, u16)> {
        if let Some(known) = self.known(env, node, sink)? {
            return Ok(known);
        }

        // Post-order: a record refers to the records of its children.
        let mut way = Vec::new();
        let mut writing = Writing::new(node);

        loop {
            if let Some(below) = self.next_below(env, &mut writing, sink)? {
                match self.known(env, below, sink)? {
                    Some(known) => writing.put(known),
                    None => way.push(std::mem::replace(&mut writing, Writing::new(below))),
                }
                continue;
            }

            let written = self.write(writing, sink)?;
            match way.pop() {
                Some(above) => writing = above,
                None => return Ok(written),
            }

            writing.put(written);
        }
    }

    /// Returns the link and height of a node that is stored, or was written before.
    fn known(
        &mut self,
        env: &Env,
        node: &'a Arc<Node>,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Link, u16)>> {
        if let Some(link) = node.link() {
            return Ok(Some((link, node.height)));
        }

        // A node with one owner is met once, so only shared ones are looked up.
        let shared = (Arc::strong_count(node) > 1).then_some(Arc::as_ptr(node));
        if let Some(written) = shared.and_then(|node| self.shared.get(&node)) {
            return Ok(Some(*written));
        }

        // An index of all objects may have the node, from any commit.
        let hash = *node.hash.get().expect(HASHED);
        let Some((extent, stored)) = known_dir(env, &hash, sink)? else { return Ok(None) };

        // A lower node would hide levels below a blinded part from the height limit.
        if stored.height <= node.height {
            self.nodes.push((node, extent, None));
        }

        let written = (Link { extent, hash }, stored.height);
        if let Some(node) = shared {
            self.shared.insert(node, written);
        }

        Ok(Some(written))
    }

    /// Returns the next node below that may have to be written first. Writes other children on the
    /// way.
    fn next_below(
        &mut self,
        env: &Env,
        writing: &mut Writing<'a>,
        sink: &mut dyn Sink,
    ) -> Result<Option<&'a Arc<Node>>> {
        match &writing.node.body {
            Body::Stored(_) => unreachable!("what is stored has a place"),
            Body::Entries(entries) => {
                while writing.next < entries.len() {
                    let spot = entries.spot(writing.next);
                    writing.next += 1;
                    match spot {
                        Spot::Own(Child::Dir(node)) => return Ok(Some(node)),
                        Spot::Own(child) => {
                            if let Some(written) = self.child(env, child, sink)? {
                                writing.put(written);
                            }
                        }
                        Spot::Stored { .. } => {}
                    }
                }
            }
            Body::Inner(inner) => {
                while writing.next < BRANCHING_MAX as usize {
                    let bucket = writing.next;
                    writing.next += 1;
                    match inner.slot(bucket) {
                        Some(Slot::Node(node)) => return Ok(Some(node)),
                        Some(Slot::Blinded(hash)) => {
                            let path = PathText::default();
                            return Err(Error::DanglingHash { hash: **hash, path });
                        }
                        None => writing.links.extend(inner.kept_link(bucket)),
                    }
                }
            }
        }

        Ok(None)
    }

    /// Writes a node whose children are written.
    fn write(&mut self, writing: Writing<'a>, sink: &mut dyn Sink) -> Result<(Link, u16)> {
        let Writing { node, links, height, .. } = writing;
        debug_assert!(writing.height >= writing.node.height, "children only add to the height");
        let hash = *node.hash.get().expect(HASHED);

        let (extent, record) = match &node.body {
            Body::Stored(_) => unreachable!("what is stored has a place"),
            Body::Entries(entries) => self.entries(entries, links, height, sink)?,
            Body::Inner(inner) => inner_written(inner, links, height, sink)?,
        };

        debug_assert!(extent.at < sink.next(), "a record is appended");
        debug_assert!(extent.bytes > 0, "a record has a length");
        self.nodes.push((node, extent, Some(Arc::new(record))));
        let written = (Link { extent, hash }, height);
        if Arc::strong_count(node) > 1 {
            self.shared.insert(Arc::as_ptr(node), written);
        }

        Ok(written)
    }

    /// `links` are the links of the children that are neither in the record nor stored in the node.
    fn entries(
        &mut self,
        entries: &'a EntriesNode,
        links: Vec<Link>,
        height: u16,
        sink: &mut dyn Sink,
    ) -> Result<(Extent, Record)> {
        let count = entries.len();
        if height > HEIGHT_MAX {
            return Err(Error::TooDeep { levels: height.into() });
        }
        let mut links = links.into_iter();

        // A delta refers to the full record, through the record that the node comes from.
        let based_on = entries.record();

        let in_full = |item: usize| match &based_on?.body {
            RecordBody::Entries(base) => base.ordinal_in_full(entries.kept(item)?),
            RecordBody::Inner(_) => None,
        };

        let kept = (0..count).filter(|&item| in_full(item).is_some()).count();
        let base = delta_base(based_on, kept, count);

        // Buffers are reused: a commit encodes thousands of nodes.
        let buffers = std::mem::take(&mut self.buffers);
        let at = sink.next();
        let mut out = EntriesWriter::new(entries.leaf, at, base, buffers);

        for item in 0..count {
            if let Some(ordinal) = in_full(item).filter(|_| base.is_some()) {
                out.keep(ordinal);
                continue;
            }

            let stored = match entries.spot(item).stored() {
                Ok(stored) => stored,
                Err(Child::Value(value)) if value.bytes.len() <= INLINE_BYTES_MAX => {
                    Stored::Inline(&value.bytes)
                }
                Err(child) => {
                    let link = links.next().expect("one for each child that is elsewhere");
                    if child.is_value() { Stored::Value(link) } else { Stored::Dir(link) }
                }
            };

            out.put(entries.step(item), stored);
        }

        debug_assert!(links.next().is_none(), "each link belongs to a child");

        out.end();
        let extent = sink.put(&mut |body| out.body(height, body))?;
        debug_assert_eq!(extent.at, at, "references are relative to where the record is");
        let (record, buffers) = out.record(height, extent);
        self.buffers = buffers;

        Ok((extent, record))
    }

    /// Returns the link of a child that is not stored in its directory, and its height; 0 if the
    /// height of the directory accounts for it.
    pub(crate) fn child(
        &mut self,
        env: &Env,
        child: &'a Child,
        sink: &mut dyn Sink,
    ) -> Result<Option<(Link, u16)>> {
        Ok(Some(match child {
            Child::Value(value) if value.bytes.len() <= INLINE_BYTES_MAX => return Ok(None),
            Child::Value(value) => (self.value(value, sink)?, 0),
            Child::ValueAt(link) => (**link, 0),
            Child::Dir(node) => self.node(env, node, sink)?,
            Child::DirAt(far) => (far.0, 0),
            Child::Blinded { hash, is_value } => {
                let known = if *is_value {
                    sink.known(true, hash)?.map(|extent| (extent, 0))
                } else {
                    let known = known_dir(env, hash, sink)?;
                    let whole = known.filter(|known| known.1.check_shape(&env.rules, 0).is_ok());
                    whole.map(|(extent, node)| (extent, node.height))
                };
                let dangling = || Error::DanglingHash { hash: **hash, path: PathText::default() };
                let (extent, height) = known.ok_or_else(dangling)?;
                (Link { extent, hash: **hash }, height)
            }
        }))
    }

    fn value(&mut self, value: &'a Arc<Value>, sink: &mut dyn Sink) -> Result<Link> {
        let hash = *value.hash.get().expect("hashed before it is written");
        let shared = (Arc::strong_count(value) > 1).then_some(Arc::as_ptr(value));

        let written = || self.shared_values.get(&shared?);
        if let Some(&extent) = value.extent.get().or_else(written) {
            return Ok(Link { extent, hash });
        }

        // An index of all objects may have the value.
        let extent = match sink.known(true, &hash)? {
            Some(extent) => extent,
            None => sink.put(&mut |body| {
                body.push(VALUE);
                body.extend_from_slice(&value.bytes);
            })?,
        };

        self.values.push((value, extent));
        if let Some(value) = shared {
            self.shared_values.insert(value, extent);
        }

        Ok(Link { extent, hash })
    }
}

const HASHED: &str = "hashed before it is written";

/// Node that is being written, after the nodes below it.
struct Writing<'a> {
    node: &'a Arc<Node>,
    /// The next item, or bucket.
    next: usize,
    /// Links of written children; of an inode, of all its buckets that are not empty.
    links: Vec<Link>,
    height: u16,
}

impl<'a> Writing<'a> {
    fn new(node: &'a Arc<Node>) -> Self {
        Self { node, next: 0, links: Vec::new(), height: node.height }
    }

    /// Takes the link and the height of a written child.
    fn put(&mut self, (link, below): (Link, u16)) {
        let below = match &self.node.body {
            Body::Inner(_) => below,
            Body::Stored(_) | Body::Entries(_) => below + 1,
        };
        self.links.push(link);
        self.height = self.height.max(below);
    }
}

/// Writes an inode with buckets, given the links of its buckets.
fn inner_written(
    inner: &InnerNode,
    links: Vec<Link>,
    height: u16,
    sink: &mut dyn Sink,
) -> Result<(Extent, Record)> {
    let mask = inner.mask();
    assert_eq!(links.len(), mask.count_ones() as usize, "each bucket that is not empty has a link");
    let buckets = (0..BRANCHING_MAX as usize).filter(|bucket| mask >> bucket & 1 == 1);
    let mut changed = 0;

    for (bucket, link) in buckets.zip(&links) {
        if inner.record().is_none_or(|base| base.link(bucket) != Some(link)) {
            changed |= 1 << bucket;
        }
    }

    let at = sink.next();
    let mut written = Inner {
        depth: inner.depth,
        count: inner.count,
        mask,
        links: links.into(),
        full: Extent { at, bytes: 0 },
        changed: 0,
    };

    // The base may itself be a delta: changes count against its full record.
    if let Some(base) = inner.record() {
        let changed = (changed | base.changed) & mask;
        if is_delta_worth(changed.count_ones() as usize, mask.count_ones() as usize) {
            (written.full, written.changed) = (base.full, changed);
        }
    }

    let extent = sink.put(&mut |body| inner_body(at, height, &written, body))?;
    debug_assert_eq!(extent.at, at, "references are relative to where the record is");
    if written.changed == 0 {
        written.full = extent;
    }
    debug_assert!(written.full.at <= extent.at, "a delta is based on an earlier record");
    Ok((extent, Record { height, body: RecordBody::Inner(written) }))
}

/// Returns the extent and the node of a directory or inode that the sink knows. An unreadable one
/// counts as unknown.
///
/// Cost: one read, if it is known and not in memory.
fn known_dir(env: &Env, hash: &Hash, sink: &mut dyn Sink) -> Result<Option<(Extent, Arc<Node>)>> {
    let Some(extent) = sink.known(false, hash)? else { return Ok(None) };
    Ok(env.load(&Link { extent, hash: *hash }).ok().map(|node| (extent, node)))
}

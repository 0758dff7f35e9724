//! Writing of what changed: every directory, inode and large value below a root that has no place yet, children before
//! parents, a subtree next to its siblings; so that what one block writes lies together.

use std::sync::Arc;

use crate::address::{Address, Link, Place};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::node::{Body, Child, EntriesNode, Env, InnerNode, Node, Slot, Spot, Value};
use crate::path::{HEIGHT_MAX, PathText};
use crate::quick::QuickMap;
use crate::record::{
    EntriesBuffers, EntriesWriter, INLINE_BYTES_MAX, Inner, Record, RecordBody, Stored, VALUE,
    delta_base, inner_body, is_delta_worth,
};
use crate::rules::BRANCHING_MAX;

/// Where records are put.
pub(crate) trait Sink {
    /// Where the next record will lie.
    fn next(&self) -> Address;

    /// Appends a record, whose body `write` makes.
    fn put(&mut self, write: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Place>;

    /// An object of this hash that is stored already, if the sink knows one.
    fn known(&mut self, is_value: bool, hash: &Hash) -> Result<Option<Place>>;
}

/// What was written, to be [kept](Written::keep) once it is in the pack.
#[derive(Debug, Default)]
pub(crate) struct Written<'a> {
    nodes: Vec<(&'a Node, Place, Option<Arc<Record>>)>,
    values: Vec<(&'a Value, Place)>,
    /// Nodes of a tree that stand in it several times.
    shared: QuickMap<*const Node, (Link, u16)>,
    /// Values of which the same holds.
    shared_values: QuickMap<*const Value, Place>,
    buffers: EntriesBuffers,
}

// The pointers are compared, never followed.
impl<'a> Written<'a> {
    /// Tells the nodes where they are; calls `cache` with each new record, and where the one lies that it comes from. A node
    /// above a part of which it only knows the hash may be less high than its record, and gets no place, so that what is made
    /// of it is looked at again.
    pub(crate) fn keep(self, mut cache: impl FnMut(Option<Place>, Place, Arc<Record>)) {
        for (node, place, record) in self.nodes {
            if record.as_ref().is_none_or(|record| record.height <= node.height) {
                node.place.get_or_init(|| place);
            }
            if let Some(record) = record {
                cache(node.base().and_then(|base| base.place.get().copied()), place, record);
            }
        }
        for (value, place) in self.values {
            value.place.get_or_init(|| place);
        }
    }

    /// Objects of each kind: directories and inodes, values. Those under which a dedup index may file them.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (bool, Hash, Place)> + '_ {
        let nodes = self
            .nodes
            .iter()
            .filter_map(|(node, place, _)| Some((false, *node.hash.get()?, *place)));
        let values = self
            .values
            .iter()
            .filter_map(|(value, place)| Some((true, *value.hash.get()?, *place)));
        nodes.chain(values)
    }

    /// How many nodes and values were written.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.nodes.len() as u64, self.values.len() as u64)
    }

    /// Writes a node and what is below it, all of which have hashes; where it is, and its height.
    pub(crate) fn node(
        &mut self,
        env: &Env,
        node: &'a Arc<Node>,
        sink: &mut dyn Sink,
    ) -> Result<(Link, u16)> {
        if let Some(link) = node.link() {
            return Ok((link, node.height));
        }
        let shared = (Arc::strong_count(node) > 1).then_some(Arc::as_ptr(node));
        if let Some(written) = shared.and_then(|node| self.shared.get(&node)) {
            return Ok(*written);
        }
        let hash = *node.hash.get().expect("hashed before it is written");
        let (place, height) = if let Some(known) = known_dir(env, &hash, sink)? {
            let (place, height) = (known.0, known.1.height);
            if height <= node.height {
                self.nodes.push((node, place, None));
            }
            (place, height)
        } else {
            let (place, record) = match &node.body {
                Body::Stored(_) => unreachable!("what is stored has a place"),
                Body::Entries(entries) => self.entries(env, entries, node.height, sink)?,
                Body::Inner(inner) => self.inner(env, inner, node.height, sink)?,
            };
            let height = record.height;
            self.nodes.push((node, place, Some(Arc::new(record))));
            (place, height)
        };
        let written = (Link { place, hash }, height);
        if let Some(node) = shared {
            self.shared.insert(node, written);
        }
        Ok(written)
    }

    fn entries(
        &mut self,
        env: &Env,
        entries: &'a EntriesNode,
        mut height: u16,
        sink: &mut dyn Sink,
    ) -> Result<(Place, Record)> {
        let count = entries.len();
        let mut links = Vec::new();
        for item in 0..count {
            if let Spot::Own(child) = entries.spot(item)
                && let Some((link, below)) = self.child(env, child, sink)?
            {
                links.push(link);
                height = height.max(below + 1);
            }
        }
        if height > HEIGHT_MAX {
            return Err(Error::TooDeep { levels: height.into() });
        }
        let mut links = links.into_iter();
        let based_on = entries.record();
        let in_full = |item: usize| match &based_on?.body {
            RecordBody::Entries(base) => base.ordinal_in_full(entries.kept(item)?),
            RecordBody::Inner(_) => None,
        };
        let kept = (0..count).filter(|&item| in_full(item).is_some()).count();
        let base = delta_base(based_on, kept, count);
        let buffers = std::mem::take(&mut self.buffers);
        let mut out = EntriesWriter::new(entries.leaf, sink.next(), base, buffers);
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
        out.end();
        let place = sink.put(&mut |body| out.body(height, body))?;
        let (record, buffers) = out.record(height, place);
        self.buffers = buffers;
        Ok((place, record))
    }

    /// The link of a child that is not stored in its directory, and its height, or 0 where the directory's accounts for it.
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
                    sink.known(true, hash)?.map(|place| (place, 0))
                } else {
                    let known = known_dir(env, hash, sink)?;
                    let whole = known.filter(|known| known.1.check_shape(&env.rules, 0).is_ok());
                    whole.map(|(place, node)| (place, node.height))
                };
                let dangling = || Error::DanglingHash { hash: **hash, path: PathText::default() };
                let (place, height) = known.ok_or_else(dangling)?;
                (Link { place, hash: **hash }, height)
            }
        }))
    }

    fn value(&mut self, value: &'a Arc<Value>, sink: &mut dyn Sink) -> Result<Link> {
        let hash = *value.hash.get().expect("hashed before it is written");
        let shared = (Arc::strong_count(value) > 1).then_some(Arc::as_ptr(value));
        let written = || self.shared_values.get(&shared?);
        if let Some(&place) = value.place.get().or_else(written) {
            return Ok(Link { place, hash });
        }
        let place = match sink.known(true, &hash)? {
            Some(place) => place,
            None => sink.put(&mut |body| {
                body.push(VALUE);
                body.extend_from_slice(&value.bytes);
            })?,
        };
        self.values.push((value, place));
        if let Some(value) = shared {
            self.shared_values.insert(value, place);
        }
        Ok(Link { place, hash })
    }

    fn inner(
        &mut self,
        env: &Env,
        inner: &'a InnerNode,
        mut height: u16,
        sink: &mut dyn Sink,
    ) -> Result<(Place, Record)> {
        let mask = inner.mask();
        let mut links = Vec::with_capacity(mask.count_ones() as usize);
        let mut changed = 0;
        for bucket in (0..BRANCHING_MAX as usize).filter(|bucket| mask >> bucket & 1 == 1) {
            let link = match inner.slot(bucket) {
                None => *inner.kept_link(bucket).expect("a bucket that is kept is in the record"),
                Some(Slot::Node(node)) => {
                    let (link, below) = self.node(env, node, sink)?;
                    height = height.max(below);
                    link
                }
                Some(Slot::Blinded(hash)) => {
                    return Err(Error::DanglingHash { hash: **hash, path: PathText::default() });
                }
            };
            if inner.record().is_none_or(|base| base.link(bucket) != Some(&link)) {
                changed |= 1 << bucket;
            }
            links.push(link);
        }
        let at = sink.next();
        let mut written = Inner {
            depth: inner.depth,
            count: inner.count,
            mask,
            links: links.into(),
            full: Place { at, bytes: 0 },
            changed: 0,
        };
        if let Some(base) = inner.record() {
            let changed = (changed | base.changed) & mask;
            if is_delta_worth(changed.count_ones() as usize, mask.count_ones() as usize) {
                (written.full, written.changed) = (base.full, changed);
            }
        }
        let place = sink.put(&mut |body| inner_body(at, height, &written, body))?;
        if written.changed == 0 {
            written.full = place;
        }
        Ok((place, Record { height, body: RecordBody::Inner(written) }))
    }
}

/// Where a directory, or an inode, is stored that the sink knows, and what is there. One that cannot be read counts as unknown.
///
/// Cost: one read, if it is known and not in memory.
fn known_dir(env: &Env, hash: &Hash, sink: &mut dyn Sink) -> Result<Option<(Place, Arc<Node>)>> {
    let Some(place) = sink.known(false, hash)? else { return Ok(None) };
    Ok(env.load(&Link { place, hash: *hash }).ok().map(|node| (place, node)))
}

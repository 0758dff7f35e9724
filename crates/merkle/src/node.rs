//! Nodes of a tree in memory: directories whose children are loaded when they are looked at, and changed in place
//! where nobody else holds them.
//!
//! A directory is one [`Node`] with entries, flat or the only leaf of its inode, or a tree of inodes: inner nodes over leaves. A node
//! that was read is a [`Record`], shared with the cache, and a list of the children that were looked at
//! ([`StoredNode`]). The first change makes items of it ([`EntriesNode`], [`InnerNode`]), which say "as in the record" until they
//! are changed themselves; so neither reading nor changing a node copies its steps.
//!
//! Invariants: the shape is a function of the set of steps alone (see [`rules`](crate::rules)); a node with a place
//! has the hash and the children that are stored there; a child that is a directory is never empty.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use crate::address::{Link, Place};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::path::PathText;
use crate::record::{Entries, Inner, Record, RecordBody, Stored};
use crate::rules::{BRANCHING_MAX, Rules};

/// Where records come from.
pub(crate) trait Source: Send + Sync + Debug {
    /// The directory node that is stored at a link.
    fn record(&self, link: &Link) -> Result<Arc<Record>>;

    /// The value that is stored at a link.
    fn value(&self, link: &Link) -> Result<Arc<[u8]>>;

    /// Reads those of these directory nodes and values that are not in memory, together, for calls that come later. Gives the
    /// nodes, none where it has failed; by default nothing is read.
    fn fetch(&self, nodes: &[Place], _values: &[Place]) -> Vec<Option<Arc<Record>>> {
        vec![None; nodes.len()]
    }
}

/// What a tree needs beside its nodes.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) rules: Rules,
    /// `None` for trees that are in memory only.
    pub(crate) source: Option<Arc<dyn Source>>,
    /// What a missing part means: a proof that does not hold it, not a store that lost it.
    pub(crate) proof: bool,
}

impl Env {
    fn source(&self) -> &dyn Source {
        self.source.as_deref().expect("a node with a place has a store")
    }

    pub(crate) fn load(&self, link: &Link) -> Result<Arc<Node>> {
        Ok(Arc::new(Node::of_record(self.source().record(link)?, link)))
    }

    pub(crate) fn load_value(&self, link: &Link) -> Result<Arc<[u8]>> {
        self.source().value(link)
    }

    /// The error of looking at what only has a hash.
    pub(crate) fn missing(&self, hash: Hash) -> Error {
        if self.proof {
            Error::NotProvided { path: PathText::default() }
        } else {
            Error::DanglingHash { hash, path: PathText::default() }
        }
    }

    /// The node behind `near`, loaded from `link` the first time.
    fn near<'a>(&self, near: &'a OnceLock<Arc<Node>>, link: &Link) -> Result<&'a Arc<Node>> {
        if let Some(node) = near.get() {
            return Ok(node);
        }
        let loaded = self.load(link)?;
        Ok(near.get_or_init(|| loaded))
    }
}

/// A directory, or an inode of one.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) body: Body,
    /// At least the number of levels of directories from here down, this one included.
    pub(crate) height: u16,
    pub(crate) hash: OnceLock<Hash>,
    pub(crate) place: OnceLock<Place>,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Stored(StoredNode),
    Entries(EntriesNode),
    Inner(InnerNode),
}

/// A node as it is stored, and those of its children that were looked at.
#[derive(Debug, Clone)]
pub(crate) struct StoredNode {
    record: Arc<Record>,
    /// One for each entry, or for each link.
    near: OnceLock<Box<[OnceLock<Arc<Node>>]>>,
}

impl StoredNode {
    /// Where the child of an ordinal is, once it was looked at.
    fn near(&self, ordinal: usize) -> &OnceLock<Arc<Node>> {
        let count = || match &self.record.body {
            RecordBody::Entries(entries) => entries.len(),
            RecordBody::Inner(inner) => inner.links.len(),
        };
        &self.near.get_or_init(|| (0..count()).map(|_| OnceLock::new()).collect())[ordinal]
    }

    /// The child of an ordinal, if it was looked at.
    pub(crate) fn get(&self, ordinal: usize) -> Option<&Arc<Node>> {
        self.near.get()?[ordinal].get()
    }
}

/// A flat directory, or a leaf of an inode.
#[derive(Debug, Clone)]
pub(crate) struct EntriesNode {
    pub(crate) leaf: bool,
    pub(crate) base: Option<Arc<Record>>,
    /// Ascending by step.
    pub(crate) items: Vec<Item>,
}

#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// As the record has it.
    Kept {
        ordinal: u32,
        near: OnceLock<Arc<Node>>,
    },
    Own {
        step: Step,
        child: Child,
    },
}

/// The step of an item: that of the record's entry, or its own.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Base(u32),
    Own(Box<[u8]>),
}

/// What is bound to a step.
#[derive(Debug, Clone)]
pub(crate) enum Child {
    Value(Arc<Value>),
    ValueAt(Box<Link>),
    Dir(Arc<Node>),
    DirAt(Box<(Link, OnceLock<Arc<Node>>)>),
    /// Only its hash is known.
    Blinded {
        is_value: bool,
        hash: Hash,
    },
}

/// A value that is in memory.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) hash: OnceLock<Hash>,
    pub(crate) place: OnceLock<Place>,
}

/// An inode with buckets.
#[derive(Debug, Clone)]
pub(crate) struct InnerNode {
    pub(crate) depth: u8,
    /// Entries below.
    pub(crate) count: u64,
    pub(crate) base: Option<Arc<Record>>,
    pub(crate) slots: Box<[Slot]>,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Slot {
    #[default]
    Empty,
    /// As the record has it.
    Kept(OnceLock<Arc<Node>>),
    Own(Arc<Node>),
    /// Only its hash is known.
    Blinded(Hash),
}

impl Value {
    pub(crate) fn new(bytes: Box<[u8]>) -> Self {
        Self { bytes, hash: OnceLock::new(), place: OnceLock::new() }
    }
}

impl Child {
    pub(crate) fn is_value(&self) -> bool {
        match self {
            Self::Value(_) | Self::ValueAt(_) => true,
            Self::Dir(_) | Self::DirAt(_) => false,
            Self::Blinded { is_value, .. } => *is_value,
        }
    }

    /// The directory, if it is one.
    pub(crate) fn dir(&self, env: &Env) -> Result<Option<&Arc<Node>>> {
        match self {
            Self::Dir(node) => Ok(Some(node)),
            Self::DirAt(far) => env.near(&far.1, &far.0).map(Some),
            Self::Blinded { is_value: false, hash } => Err(env.missing(*hash)),
            Self::Value(_) | Self::ValueAt(_) | Self::Blinded { .. } => Ok(None),
        }
    }
}

/// An item as it is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot<'a> {
    Stored { node: &'a StoredNode, entries: &'a Entries, ordinal: u32 },
    Kept { entries: &'a Entries, ordinal: u32, near: &'a OnceLock<Arc<Node>> },
    Own(&'a Child),
}

impl<'a> Spot<'a> {
    /// What the record has, if the item is as it is there.
    pub(crate) fn stored(self) -> std::result::Result<Stored<'a>, &'a Child> {
        match self {
            Self::Stored { entries, ordinal, .. } | Self::Kept { entries, ordinal, .. } => {
                Ok(entries.stored(ordinal as usize))
            }
            Self::Own(child) => Err(child),
        }
    }

    pub(crate) fn is_value(self) -> bool {
        match self {
            Self::Stored { entries, ordinal, .. } | Self::Kept { entries, ordinal, .. } => {
                entries.is_value(ordinal as usize)
            }
            Self::Own(child) => child.is_value(),
        }
    }

    /// The directory, if it is one.
    pub(crate) fn dir(self, env: &Env) -> Result<Option<&'a Arc<Node>>> {
        if self.is_value() {
            return Ok(None);
        }
        let near = match self {
            Self::Stored { node, ordinal, .. } => node.near(ordinal as usize),
            Self::Kept { near, .. } => near,
            Self::Own(child) => return child.dir(env),
        };
        if let Some(node) = near.get() {
            return Ok(Some(node));
        }
        match self.stored() {
            Ok(Stored::Dir(link)) => env.near(near, &link).map(Some),
            _ => Ok(None),
        }
    }

    /// The value, if it is one.
    pub(crate) fn value(self, env: &Env) -> Result<Option<Vec<u8>>> {
        match self.stored() {
            Ok(Stored::Inline(bytes)) => Ok(Some(bytes.to_vec())),
            Ok(Stored::Value(link)) => Ok(Some(env.load_value(&link)?.to_vec())),
            Err(Child::Value(value)) => Ok(Some(value.bytes.to_vec())),
            Err(Child::ValueAt(link)) => Ok(Some(env.load_value(link)?.to_vec())),
            Err(Child::Blinded { is_value: true, hash }) => Err(env.missing(*hash)),
            Ok(Stored::Dir(_)) | Err(Child::Dir(_) | Child::DirAt(_) | Child::Blinded { .. }) => {
                Ok(None)
            }
        }
    }

    /// The directory, if it was looked at before.
    pub(crate) fn looked_at(self) -> Option<&'a Arc<Node>> {
        match self {
            Self::Stored { node, ordinal, .. } => node.get(ordinal as usize),
            Self::Kept { near, .. } => near.get(),
            Self::Own(_) => None,
        }
    }

    /// What is there, for another node.
    pub(crate) fn to_child(self) -> Child {
        match self.stored() {
            Err(child) => child.clone(),
            Ok(Stored::Inline(bytes)) => Child::Value(Arc::new(Value::new(bytes.into()))),
            Ok(Stored::Value(link)) => Child::ValueAt(Box::new(link)),
            Ok(Stored::Dir(link)) => match self.looked_at() {
                Some(node) => Child::Dir(Arc::clone(node)),
                None => Child::DirAt(Box::new((link, OnceLock::new()))),
            },
        }
    }
}

/// The entries of a node, stored or changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntriesRef<'a> {
    Stored(&'a StoredNode, &'a Entries),
    Own(&'a EntriesNode),
}

impl<'a> EntriesRef<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Stored(_, entries) => entries.len(),
            Self::Own(own) => own.items.len(),
        }
    }

    /// Whether they are those of an inode.
    pub(crate) fn is_leaf(self) -> bool {
        match self {
            Self::Stored(_, entries) => entries.leaf,
            Self::Own(own) => own.leaf,
        }
    }

    pub(crate) fn step(self, item: usize) -> &'a [u8] {
        match self {
            Self::Stored(_, entries) => entries.step(item),
            Self::Own(own) => own.step(item),
        }
    }

    pub(crate) fn spot(self, item: usize) -> Spot<'a> {
        match self {
            Self::Stored(node, entries) => Spot::Stored { node, entries, ordinal: item as u32 },
            Self::Own(own) => own.spot(item),
        }
    }

    pub(crate) fn find(self, step: &[u8]) -> Option<Spot<'a>> {
        let item = match self {
            Self::Stored(_, entries) => entries.find(step),
            Self::Own(own) => own.position(step).ok(),
        };
        item.map(|item| self.spot(item))
    }
}

/// An inode with buckets, stored or changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InnerRef<'a> {
    Stored(&'a StoredNode, &'a Inner),
    Own(&'a InnerNode),
}

impl<'a> InnerRef<'a> {
    pub(crate) fn depth(self) -> u8 {
        match self {
            Self::Stored(_, inner) => inner.depth,
            Self::Own(own) => own.depth,
        }
    }

    /// Entries below.
    pub(crate) fn count(self) -> u64 {
        match self {
            Self::Stored(_, inner) => inner.count,
            Self::Own(own) => own.count,
        }
    }

    /// The inode of a bucket.
    pub(crate) fn bucket(self, env: &Env, bucket: usize) -> Result<Option<&'a Arc<Node>>> {
        match self {
            Self::Stored(node, inner) => match inner.rank(bucket) {
                Some(rank) => env.near(node.near(rank), &inner.links[rank]).map(Some),
                None => Ok(None),
            },
            Self::Own(own) => own.bucket(env, bucket),
        }
    }

    /// The inode of a bucket; the node does not keep it if it is loaded.
    pub(crate) fn fetch(self, env: &Env, bucket: usize) -> Result<Option<Arc<Node>>> {
        let (near, link) = match self {
            Self::Stored(node, inner) => match inner.rank(bucket) {
                Some(rank) => (node.get(rank), &inner.links[rank]),
                None => return Ok(None),
            },
            Self::Own(own) => match &own.slots[bucket] {
                Slot::Kept(near) => (near.get(), own.kept(bucket)),
                _ => return Ok(own.bucket(env, bucket)?.map(Arc::clone)),
            },
        };
        near.map_or_else(|| env.load(link), |node| Ok(Arc::clone(node))).map(Some)
    }

    /// Where the inode of a bucket is stored, if the node is as it was stored.
    pub(crate) fn stored_link(self, bucket: usize) -> Option<&'a Link> {
        match self {
            Self::Stored(_, inner) => inner.link(bucket),
            Self::Own(_) => None,
        }
    }

    /// The hash of the inode of a bucket, which has one.
    pub(crate) fn bucket_hash(self, bucket: usize) -> Option<&'a Hash> {
        match self {
            Self::Stored(_, inner) => inner.link(bucket).map(|link| &link.hash),
            Self::Own(own) => match &own.slots[bucket] {
                Slot::Empty => None,
                Slot::Kept(_) => Some(&own.kept(bucket).hash),
                Slot::Own(node) => node.hash.get(),
                Slot::Blinded(hash) => Some(hash),
            },
        }
    }
}

/// What a node is, stored or changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    Entries(EntriesRef<'a>),
    Inner(InnerRef<'a>),
}

impl EntriesNode {
    pub(crate) fn record(&self) -> Option<&Entries> {
        match self.base.as_deref() {
            Some(Record { body: RecordBody::Entries(entries), .. }) => Some(entries),
            _ => None,
        }
    }

    fn base_step(&self, ordinal: u32) -> &[u8] {
        self.record().expect("items that are kept have a record").step(ordinal as usize)
    }

    pub(crate) fn step(&self, item: usize) -> &[u8] {
        match &self.items[item] {
            Item::Kept { ordinal, .. } | Item::Own { step: Step::Base(ordinal), .. } => {
                self.base_step(*ordinal)
            }
            Item::Own { step: Step::Own(step), .. } => step,
        }
    }

    /// The item of `step`, or where it would stand.
    pub(crate) fn position(&self, step: &[u8]) -> std::result::Result<usize, usize> {
        let (mut low, mut high) = (0, self.items.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.step(middle).cmp(step) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    pub(crate) fn spot(&self, item: usize) -> Spot<'_> {
        match &self.items[item] {
            Item::Kept { ordinal, near } => Spot::Kept {
                entries: self.record().expect("items that are kept have a record"),
                ordinal: *ordinal,
                near,
            },
            Item::Own { child, .. } => Spot::Own(child),
        }
    }
}

impl InnerNode {
    pub(crate) fn record(&self) -> Option<&Inner> {
        match self.base.as_deref() {
            Some(Record { body: RecordBody::Inner(inner), .. }) => Some(inner),
            _ => None,
        }
    }

    /// What the record says about a bucket that is kept.
    pub(crate) fn kept(&self, bucket: usize) -> &Link {
        let inner = self.record().expect("slots that are kept have a record");
        inner.link(bucket).expect("a slot that is kept is in the record")
    }

    /// The inode of a bucket.
    pub(crate) fn bucket(&self, env: &Env, bucket: usize) -> Result<Option<&Arc<Node>>> {
        match &self.slots[bucket] {
            Slot::Empty => Ok(None),
            Slot::Kept(near) => env.near(near, self.kept(bucket)).map(Some),
            Slot::Own(node) => Ok(Some(node)),
            Slot::Blinded(hash) => Err(env.missing(*hash)),
        }
    }
}

impl Node {
    /// An empty directory, or an empty leaf.
    pub(crate) fn empty(leaf: bool) -> Self {
        Self::of_items(leaf, Vec::new(), 1)
    }

    pub(crate) fn of_items(leaf: bool, items: Vec<Item>, height: u16) -> Self {
        Self::new(Body::Entries(EntriesNode { leaf, base: None, items }), height)
    }

    pub(crate) fn new(body: Body, height: u16) -> Self {
        Self { body, height, hash: OnceLock::new(), place: OnceLock::new() }
    }

    /// The node of a record that is stored at `link`.
    pub(crate) fn of_record(record: Arc<Record>, link: &Link) -> Self {
        let height = record.height;
        let body = Body::Stored(StoredNode { record, near: OnceLock::new() });
        Self { body, height, hash: link.hash.into(), place: link.place.into() }
    }

    /// Makes items of a node that is as it was stored, so that they can be changed.
    pub(crate) fn open_up(&mut self) {
        let Body::Stored(StoredNode { record, near }) = &mut self.body else { return };
        let base = Some(Arc::clone(record));
        let mut near = near.take().map(Vec::from).unwrap_or_default().into_iter();
        let mut next = || near.next().unwrap_or_default();
        self.body = match &record.body {
            RecordBody::Entries(entries) => {
                let kept = |ordinal| Item::Kept { ordinal, near: next() };
                let items = (0..entries.len() as u32).map(kept).collect();
                Body::Entries(EntriesNode { leaf: entries.leaf, base, items })
            }
            RecordBody::Inner(inner) => {
                let slot = |bucket: u32| match inner.mask >> bucket & 1 {
                    1 => Slot::Kept(next()),
                    _ => Slot::Empty,
                };
                let slots = (0..BRANCHING_MAX).map(slot).collect();
                Body::Inner(InnerNode { depth: inner.depth, count: inner.count, base, slots })
            }
        };
    }

    pub(crate) fn shape(&self) -> Shape<'_> {
        match &self.body {
            Body::Stored(node) => match &node.record.body {
                RecordBody::Entries(entries) => Shape::Entries(EntriesRef::Stored(node, entries)),
                RecordBody::Inner(inner) => Shape::Inner(InnerRef::Stored(node, inner)),
            },
            Body::Entries(own) => Shape::Entries(EntriesRef::Own(own)),
            Body::Inner(own) => Shape::Inner(InnerRef::Own(own)),
        }
    }

    /// How many steps there are, from here down to the next directories.
    pub(crate) fn count(&self) -> u64 {
        match self.shape() {
            Shape::Entries(entries) => entries.len() as u64,
            Shape::Inner(inner) => inner.count(),
        }
    }

    /// Whether it is a whole directory in flat form.
    pub(crate) fn is_flat(&self) -> bool {
        matches!(self.shape(), Shape::Entries(entries) if !entries.is_leaf())
    }

    /// Its place and hash, if it is stored.
    pub(crate) fn link(&self) -> Option<Link> {
        Some(Link { place: *self.place.get()?, hash: *self.hash.get()? })
    }

    /// Where `step` is bound in the directory.
    ///
    /// Cost: one read for each level of inodes that is not in memory.
    pub(crate) fn locate<'a>(&'a self, env: &Env, step: &[u8]) -> Result<Option<Spot<'a>>> {
        let mut node = self;
        loop {
            match node.shape() {
                Shape::Entries(entries) => return Ok(entries.find(step)),
                Shape::Inner(inner) => {
                    match inner.bucket(env, env.rules.bucket(inner.depth(), step))? {
                        Some(below) => node = below,
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Calls `visit` for each step of the directory in the order of storage, until it says no.
    pub(crate) fn each<'a>(
        &'a self,
        env: &Env,
        visit: &mut dyn FnMut(&'a [u8], Spot<'a>) -> Result<bool>,
    ) -> Result<bool> {
        match self.shape() {
            Shape::Entries(entries) => {
                for item in 0..entries.len() {
                    if !visit(entries.step(item), entries.spot(item))? {
                        return Ok(false);
                    }
                }
            }
            Shape::Inner(inner) => {
                for bucket in 0..BRANCHING_MAX as usize {
                    if let Some(below) = inner.bucket(env, bucket)?
                        && !below.each(env, visit)?
                    {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// All steps of the directory with what is bound to them, ascending.
    pub(crate) fn sorted<'a>(&'a self, env: &Env) -> Result<Vec<(&'a [u8], Spot<'a>)>> {
        let mut all = Vec::new(); // the count of a partial tree is not to be trusted
        self.each(env, &mut |step, spot| {
            all.push((step, spot));
            Ok(true)
        })?;
        all.sort_unstable_by(|a, b| a.0.cmp(b.0));
        Ok(all)
    }
}

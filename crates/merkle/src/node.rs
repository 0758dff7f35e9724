//! Nodes of a tree in memory: directories whose children are loaded when they are looked at, and changed in place
//! where nobody else holds them.
//!
//! A directory is one [`Node`] with [`Entries`](EntriesNode), flat or the only leaf of its inode, or a tree of inodes: [`Inner`](InnerNode) nodes
//! over leaves. A node that was read keeps its [`Record`], and its items say "as in the record" until they are changed; so
//! reading a node costs no copy of its steps.
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

use crate::rules::Rules;

/// Steps for which room is made at once: a count is stored, and may be wrong.
const CAPACITY_MAX: u64 = 1 << 16;

/// Where records come from.
pub(crate) trait Source: Send + Sync + Debug {
    /// The directory node that is stored at a link.
    fn record(&self, link: &Link) -> Result<Arc<Record>>;

    /// The value that is stored at a link.
    fn value(&self, link: &Link) -> Result<Arc<[u8]>>;
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
        Ok(Arc::new(Node::of_record(self.source().record(link)?, Some(*link))))
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
    Entries(EntriesNode),
    Inner(InnerNode),
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
            Self::Value(_) | Self::ValueAt(_) => Ok(None),
            Self::Dir(node) => Ok(Some(node)),
            Self::DirAt(far) => env.near(&far.1, &far.0).map(Some),
            Self::Blinded { is_value: true, .. } => Ok(None),
            Self::Blinded { hash, .. } => Err(env.missing(*hash)),
        }
    }
}

/// An item as it is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot<'a> {
    Kept { entries: &'a Entries, ordinal: u32, near: &'a OnceLock<Arc<Node>> },
    Own(&'a Child),
}

impl<'a> Spot<'a> {
    pub(crate) fn is_value(self) -> bool {
        match self {
            Self::Kept { entries, ordinal, .. } => entries.is_value(ordinal as usize),
            Self::Own(child) => child.is_value(),
        }
    }

    /// The directory, if it is one.
    pub(crate) fn dir(self, env: &Env) -> Result<Option<&'a Arc<Node>>> {
        match self {
            Self::Kept { entries, ordinal, near } => match entries.stored(ordinal as usize) {
                Stored::Dir(link) => env.near(near, &link).map(Some),
                Stored::Inline(_) | Stored::Value(_) => Ok(None),
            },
            Self::Own(child) => child.dir(env),
        }
    }

    /// The value, if it is one.
    pub(crate) fn value(self, env: &Env) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Kept { entries, ordinal, .. } => match entries.stored(ordinal as usize) {
                Stored::Inline(bytes) => Ok(Some(bytes.to_vec())),
                Stored::Value(link) => Ok(Some(env.load_value(&link)?.to_vec())),
                Stored::Dir(_) => Ok(None),
            },
            Self::Own(Child::Value(value)) => Ok(Some(value.bytes.to_vec())),
            Self::Own(Child::ValueAt(link)) => Ok(Some(env.load_value(link)?.to_vec())),
            Self::Own(Child::Blinded { is_value: true, hash }) => Err(env.missing(*hash)),
            Self::Own(Child::Dir(_) | Child::DirAt(_) | Child::Blinded { .. }) => Ok(None),
        }
    }

    /// What is there, for another node.
    pub(crate) fn to_child(self) -> Child {
        match self {
            Self::Own(child) => child.clone(),
            Self::Kept { entries, ordinal, near } => match entries.stored(ordinal as usize) {
                Stored::Inline(bytes) => Child::Value(Arc::new(Value::new(bytes.into()))),
                Stored::Value(link) => Child::ValueAt(Box::new(link)),
                Stored::Dir(link) => match near.get() {
                    Some(node) => Child::Dir(Arc::clone(node)),
                    None => Child::DirAt(Box::new((link, OnceLock::new()))),
                },
            },
        }
    }
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

    /// The node of a record, and where that is stored.
    pub(crate) fn of_record(record: Arc<Record>, link: Option<Link>) -> Self {
        let height = record.height;
        let body = match &record.body {
            RecordBody::Entries(entries) => {
                let kept = |ordinal| Item::Kept { ordinal, near: OnceLock::new() };
                Body::Entries(EntriesNode {
                    leaf: entries.leaf,
                    items: (0..entries.len() as u32).map(kept).collect(),
                    base: Some(record),
                })
            }
            RecordBody::Inner(inner) => {
                let slot = |bucket: u32| match inner.mask >> bucket & 1 {
                    1 => Slot::Kept(OnceLock::new()),
                    _ => Slot::Empty,
                };
                Body::Inner(InnerNode {
                    depth: inner.depth,
                    count: inner.count,
                    slots: (0..32).map(slot).collect(),
                    base: Some(record),
                })
            }
        };
        let node = Self::new(body, height);
        if let Some(link) = link {
            node.hash.get_or_init(|| link.hash);
            node.place.get_or_init(|| link.place);
        }
        node
    }

    /// How many steps there are, from here down to the next directories.
    pub(crate) fn count(&self) -> u64 {
        match &self.body {
            Body::Entries(entries) => entries.items.len() as u64,
            Body::Inner(inner) => inner.count,
        }
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
            match &node.body {
                Body::Entries(entries) => {
                    return Ok(entries.position(step).ok().map(|item| entries.spot(item)));
                }
                Body::Inner(inner) => {
                    match inner.bucket(env, env.rules.bucket(inner.depth, step))? {
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
        match &self.body {
            Body::Entries(entries) => {
                for item in 0..entries.items.len() {
                    if !visit(entries.step(item), entries.spot(item))? {
                        return Ok(false);
                    }
                }
            }
            Body::Inner(inner) => {
                for bucket in 0..inner.slots.len() {
                    if let Some(below) = inner.bucket(env, bucket)? {
                        if !below.each(env, visit)? {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// All steps of the directory with what is bound to them, ascending.
    pub(crate) fn sorted<'a>(&'a self, env: &Env) -> Result<Vec<(&'a [u8], Spot<'a>)>> {
        let mut all = Vec::with_capacity(self.count().min(CAPACITY_MAX) as usize);
        self.each(env, &mut |step, spot| {
            all.push((step, spot));
            Ok(true)
        })?;
        all.sort_unstable_by(|a, b| a.0.cmp(b.0));
        Ok(all)
    }
}

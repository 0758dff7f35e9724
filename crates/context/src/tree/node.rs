//! Nodes of a tree in memory: directories whose children are loaded on demand. A node that no other
//! tree holds is changed in place.
//!
//! A directory is one [`Node`] with entries (flat, or the only leaf of its inode), or a tree of
//! inodes: inner nodes over leaves. A loaded node ([`StoredNode`]) is its [`Record`], shared with
//! the cache, and the loaded children; it never changes. A changed node ([`EntriesNode`],
//! [`InnerNode`]) is a stored node and the differences. So neither reading nor changing a node
//! copies its steps or its links.
//!
//! Invariants:
//! - The shape is a function of the set of steps alone (see [`hashing`](crate::base::hashing)).
//! - A node with an extent has the hash and the children that are stored there.
//! - A child that is a directory is never empty.
//! - The base of a changed node is stored, and of its kind.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::base::address::{Address, Extent, Link};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::{BRANCHING_MAX, Rules};
use crate::base::path::PathText;
use crate::object::record::{Entries, Inner, Record, RecordBody, Stored};

/// Source of records.
pub(crate) trait Source: Send + Sync + Debug {
    /// Reads the directory node at a link.
    fn record(&self, link: &Link) -> Result<Arc<Record>>;

    /// Reads the value at a link.
    fn value(&self, link: &Link) -> Result<Arc<[u8]>>;

    /// Returns the error of a record whose content breaks a rule.
    fn damaged(&self, at: Address, what: Corrupt) -> Error {
        Error::Corrupt { path: PathBuf::new(), address: Some(at), what }
    }

    /// Reads the uncached ones of these directory nodes and values together, for later calls.
    /// Returns the nodes, `None` for failed reads; by default reads nothing.
    fn fetch(&self, nodes: &[Extent], _values: &[Extent]) -> Vec<Option<Arc<Record>>> {
        vec![None; nodes.len()]
    }
}

/// Environment of a tree: the rules and the source of its nodes.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) rules: Rules,
    /// `None` for trees that are in memory only.
    pub(crate) source: Option<Arc<dyn Source>>,
    /// Whether a missing part is one that a proof lacks, and not one that a store lost.
    pub(crate) proof: bool,
}

impl Env {
    fn source(&self) -> &dyn Source {
        self.source.as_deref().expect("a node with a place has a store")
    }

    /// Loads the node at a link, a directory or an inode of any level.
    pub(crate) fn load(&self, link: &Link) -> Result<Arc<Node>> {
        Ok(Arc::new(Node::of_record(self.source().record(link)?, link)))
    }

    /// Loads the inode of a level, or the directory for level 0, and checks its shape.
    pub(crate) fn load_at(&self, link: &Link, level: u8) -> Result<Arc<Node>> {
        let node = self.load(link)?;
        let fail = |what| self.source().damaged(link.extent.at, what);
        node.check_shape(&self.rules, level).map_err(fail)?;
        Ok(node)
    }

    pub(crate) fn load_value(&self, link: &Link) -> Result<Arc<[u8]>> {
        self.source().value(link)
    }

    /// Returns the error of reading a blinded part.
    pub(crate) fn missing(&self, hash: Hash) -> Error {
        if self.proof {
            Error::NotProvided { path: PathText::default() }
        } else {
            Error::DanglingHash { hash, path: PathText::default() }
        }
    }

    /// Returns the node in `near`, loaded from `link` the first time.
    fn near<'a>(&self, near: &'a OnceLock<Arc<Node>>, link: &Link) -> Result<&'a Arc<Node>> {
        if let Some(node) = near.get() {
            return Ok(node);
        }
        let loaded = self.load_at(link, 0)?;
        // Another reader may have loaded the node meanwhile; the first one stays.
        Ok(near.get_or_init(|| loaded))
    }
}

/// Directory, or inode of a directory.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) body: Body,
    /// Lower bound of the levels of directories from here down, this one included. Levels below a
    /// blinded part count once the part is written.
    pub(crate) height: u16,
    pub(crate) hash: OnceLock<Hash>,
    pub(crate) extent: OnceLock<Extent>,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Stored(StoredNode),
    Entries(EntriesNode),
    Inner(InnerNode),
}

/// Stored node and its loaded children, by their ordinals: of an entry, or of a link. Most nodes
/// are passed on the way to one child, which needs no list.
#[derive(Debug, Clone)]
pub(crate) struct StoredNode {
    record: Arc<Record>,
    first: OnceLock<(u32, Arc<Node>)>,
    rest: OnceLock<Box<[OnceLock<Arc<Node>>]>>,
}

impl StoredNode {
    /// Returns the child of an ordinal, loaded from `link` the first time.
    fn child(&self, env: &Env, ordinal: usize, link: &Link) -> Result<&Arc<Node>> {
        if let Some(node) = self.get(ordinal) {
            return Ok(node);
        }

        let level = match &self.record.body {
            RecordBody::Entries(_) => 0,
            RecordBody::Inner(inner) => inner.depth + 1,
        };

        let loaded = env.load_at(link, level)?;
        // The first loaded child needs no list: most nodes are passed on the way to one child.
        let (first, node) = self.first.get_or_init(|| (ordinal as u32, Arc::clone(&loaded)));
        if *first == ordinal as u32 {
            return Ok(node);
        }

        let count = || match &self.record.body {
            RecordBody::Entries(entries) => entries.len(),
            RecordBody::Inner(inner) => inner.links.len(),
        };

        let rest = self.rest.get_or_init(|| (0..count()).map(|_| OnceLock::new()).collect());
        Ok(rest[ordinal].get_or_init(|| loaded))
    }

    /// Returns the child of an ordinal, if it is loaded.
    fn get(&self, ordinal: usize) -> Option<&Arc<Node>> {
        match self.first.get()? {
            (first, node) if *first == ordinal as u32 => Some(node),
            _ => self.rest.get()?[ordinal].get(),
        }
    }
}

/// Changed flat directory, or changed leaf of an inode.
#[derive(Debug, Clone)]
pub(crate) struct EntriesNode {
    pub(crate) leaf: bool,
    base: Option<Arc<Node>>,
    /// Ascending by step.
    items: Vec<Item>,
    /// Items that the base lacks, or has otherwise.
    own: Vec<OwnItem>,
}

/// Number of an entry of the base, or number of an own item with [`OWN`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item(u32);

const OWN: u32 = 1 << 31;

/// Largest number of own items that are searched linearly.
const OWN_FEW: usize = 16;

impl Item {
    /// Returns the number of the own item, if the item is one.
    fn own(self) -> Option<usize> {
        (self.0 & OWN != 0).then_some((self.0 & !OWN) as usize)
    }
}

#[derive(Debug, Clone)]
struct OwnItem {
    step: Step,
    child: Child,
}

/// Step of an item: the step of an entry of the base, or its own.
#[derive(Debug, Clone)]
enum Step {
    Base(u32),
    Own(Box<[u8]>),
}

/// Step and its child.
pub(crate) type Binding = (Box<[u8]>, Child);

/// Child of a step.
#[derive(Debug, Clone)]
pub(crate) enum Child {
    Value(Arc<Value>),
    ValueAt(Box<Link>),
    Dir(Arc<Node>),
    DirAt(Box<(Link, OnceLock<Arc<Node>>)>),
    /// Only its hash is known.
    Blinded {
        is_value: bool,
        hash: Box<Hash>,
    },
}

/// Value in memory.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) hash: OnceLock<Hash>,
    pub(crate) extent: OnceLock<Extent>,
}

/// Changed inode with buckets.
#[derive(Debug, Clone)]
pub(crate) struct InnerNode {
    pub(crate) depth: u8,
    /// Entries below.
    pub(crate) count: u64,
    base: Option<Arc<Node>>,
    /// Mask of the buckets that are not empty.
    mask: u32,
    /// Mask of the buckets that differ from the base, and their content, ascending.
    changed: u32,
    own: Vec<Slot>,
}

/// Content of a bucket.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    Node(Arc<Node>),
    /// Only its hash is known.
    Blinded(Box<Hash>),
}

impl Value {
    pub(crate) fn new(bytes: Box<[u8]>) -> Self {
        Self { bytes, hash: OnceLock::new(), extent: OnceLock::new() }
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

    /// Lower bound of the levels of directories; 0 for a child that is not in memory.
    pub(crate) fn height(&self) -> u16 {
        match self {
            Self::Dir(node) => node.height,
            _ => 0,
        }
    }

    /// Returns whether the child is the empty directory.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Dir(node) if node.count() == 0)
    }

    /// The directory, if it is one.
    pub(crate) fn dir(&self, env: &Env) -> Result<Option<&Arc<Node>>> {
        match self {
            Self::Dir(node) => Ok(Some(node)),
            Self::DirAt(far) => env.near(&far.1, &far.0).map(Some),
            Self::Blinded { is_value: false, hash } => Err(env.missing(**hash)),
            Self::Value(_) | Self::ValueAt(_) | Self::Blinded { .. } => Ok(None),
        }
    }
}

/// Reference to the child of an item, in a record or in a changed node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot<'a> {
    Stored { node: &'a StoredNode, entries: &'a Entries, ordinal: u32 },
    Own(&'a Child),
}

impl<'a> Spot<'a> {
    /// Returns the stored entry, or the own child if the item differs from the record.
    pub(crate) fn stored(self) -> std::result::Result<Stored<'a>, &'a Child> {
        match self {
            Self::Stored { entries, ordinal, .. } => Ok(entries.stored(ordinal as usize)),
            Self::Own(child) => Err(child),
        }
    }

    pub(crate) fn is_value(self) -> bool {
        match self {
            Self::Stored { entries, ordinal, .. } => entries.is_value(ordinal as usize),
            Self::Own(child) => child.is_value(),
        }
    }

    /// The directory, if it is one.
    pub(crate) fn dir(self, env: &Env) -> Result<Option<&'a Arc<Node>>> {
        let (node, entries, ordinal) = match self {
            Self::Stored { node, entries, ordinal } => (node, entries, ordinal as usize),
            Self::Own(child) => return child.dir(env),
        };

        if entries.is_value(ordinal) {
            return Ok(None);
        }

        if let Some(node) = node.get(ordinal) {
            return Ok(Some(node));
        }

        match entries.stored(ordinal) {
            Stored::Dir(link) => node.child(env, ordinal, &link).map(Some),
            Stored::Inline(_) | Stored::Value(_) => Ok(None),
        }
    }

    /// The value, if it is one.
    pub(crate) fn value(self, env: &Env) -> Result<Option<Vec<u8>>> {
        match self.stored() {
            Ok(Stored::Inline(bytes)) => Ok(Some(bytes.to_vec())),
            Ok(Stored::Value(link)) => Ok(Some(env.load_value(&link)?.to_vec())),
            Err(Child::Value(value)) => Ok(Some(value.bytes.to_vec())),
            Err(Child::ValueAt(link)) => Ok(Some(env.load_value(link)?.to_vec())),
            Err(Child::Blinded { is_value: true, hash }) => Err(env.missing(**hash)),
            Ok(Stored::Dir(_)) | Err(Child::Dir(_) | Child::DirAt(_) | Child::Blinded { .. }) => {
                Ok(None)
            }
        }
    }

    /// Returns the directory, if it is loaded.
    pub(crate) fn looked_at(self) -> Option<&'a Arc<Node>> {
        match self {
            Self::Stored { node, ordinal, .. } => node.get(ordinal as usize),
            Self::Own(_) => None,
        }
    }

    /// Returns the child, independent of its node.
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

/// Entries of a node, stored or changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntriesRef<'a> {
    Stored(&'a StoredNode, &'a Entries),
    Own(&'a EntriesNode),
}

impl<'a> EntriesRef<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Stored(_, entries) => entries.len(),
            Self::Own(own) => own.len(),
        }
    }

    /// Returns whether the entries are those of an inode.
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

/// Inode with buckets, stored or changed.
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
                Some(rank) => node.child(env, rank, &inner.links[rank]).map(Some),
                None => Ok(None),
            },
            Self::Own(own) => own.bucket(env, bucket),
        }
    }

    /// Returns what is known of a bucket without loading it.
    pub(crate) fn known(self, bucket: usize) -> Known<'a> {
        let stored = match self {
            Self::Stored(node, inner) => Some((node, inner)),
            Self::Own(own) => match own.slot(bucket) {
                Some(Slot::Node(node)) => return Known::Node(node),
                Some(Slot::Blinded(hash)) => return Known::Blinded(hash),
                None => own.kept(bucket),
            },
        };

        let ranked = stored.and_then(|(node, inner)| Some((node, inner, inner.rank(bucket)?)));
        match ranked {
            None => Known::Empty,
            Some((node, inner, rank)) => match node.get(rank) {
                Some(node) => Known::Node(node),
                None => Known::At(&inner.links[rank]),
            },
        }
    }

    /// Returns the inode of a bucket; the node does not keep a loaded one.
    pub(crate) fn fetch(self, env: &Env, bucket: usize) -> Result<Option<Arc<Node>>> {
        match self.known(bucket) {
            Known::Empty => Ok(None),
            Known::Node(node) => Ok(Some(Arc::clone(node))),
            Known::At(link) => env.load_at(link, self.depth() + 1).map(Some),
            Known::Blinded(hash) => Err(env.missing(*hash)),
        }
    }

    /// Returns the link of a bucket of a stored node.
    pub(crate) fn stored_link(self, bucket: usize) -> Option<&'a Link> {
        match self {
            Self::Stored(_, inner) => inner.link(bucket),
            Self::Own(_) => None,
        }
    }

    /// Returns the hash of the inode of a bucket, which has one.
    pub(crate) fn bucket_hash(self, bucket: usize) -> Option<&'a Hash> {
        match self {
            Self::Stored(_, inner) => inner.link(bucket).map(|link| &link.hash),
            Self::Own(own) => match own.slot(bucket) {
                Some(Slot::Node(node)) => node.hash.get(),
                Some(Slot::Blinded(hash)) => Some(hash),
                None => own.kept_link(bucket).map(|link| &link.hash),
            },
        }
    }
}

/// Knowledge of a bucket without loading.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<'a> {
    Empty,
    Node(&'a Arc<Node>),
    /// The inode is not loaded.
    At(&'a Link),
    Blinded(&'a Hash),
}

/// Form of a node, stored or changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    Entries(EntriesRef<'a>),
    Inner(InnerRef<'a>),
}

impl EntriesNode {
    /// Creates entries without a base.
    pub(crate) fn new(leaf: bool, bindings: Vec<Binding>) -> Self {
        debug_assert!(bindings.windows(2).all(|pair| pair[0].0 < pair[1].0), "steps ascend");
        debug_assert!(bindings.len() < OWN as usize, "numbers of items leave a bit for own ones");
        let own = |(step, child)| OwnItem { step: Step::Own(step), child };
        // Without a base all items are own.
        let items = (0..bindings.len() as u32).map(|number| Item(number | OWN)).collect();
        Self { leaf, base: None, items, own: bindings.into_iter().map(own).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the base.
    fn stored(&self) -> Option<(&StoredNode, &Entries)> {
        match &self.base.as_deref()?.body {
            Body::Stored(node) => match &node.record.body {
                RecordBody::Entries(entries) => Some((node, entries)),
                RecordBody::Inner(_) => None,
            },
            Body::Entries(_) | Body::Inner(_) => None,
        }
    }

    fn base(&self) -> (&StoredNode, &Entries) {
        self.stored().expect("items that are kept have a record")
    }

    /// The record that it is based on.
    pub(crate) fn record(&self) -> Option<&Arc<Record>> {
        self.stored().map(|(node, _)| &node.record)
    }

    /// Returns the number of the entry of the record that an item is.
    pub(crate) fn kept(&self, item: usize) -> Option<usize> {
        let item = self.items[item];
        item.own().is_none().then_some(item.0 as usize)
    }

    /// Returns the child of an own item by its number, in no order.
    pub(crate) fn own_child(&self, number: usize) -> Option<&Child> {
        self.own.get(number).map(|own| &own.child)
    }

    pub(crate) fn step(&self, item: usize) -> &[u8] {
        match self.items[item].own().map(|own| &self.own[own].step) {
            Some(Step::Own(step)) => step,
            Some(Step::Base(ordinal)) => self.base().1.step(*ordinal as usize),
            None => self.base().1.step(self.items[item].0 as usize),
        }
    }

    /// Returns the item of `step`, if few items are own.
    fn find_near(&self, step: &[u8]) -> Option<usize> {
        // With few own items, one search in the record and a look at each own item are enough.
        let (_, entries) = self.stored().filter(|_| self.own.len() <= OWN_FEW)?;
        let ordinal = entries.find(step);
        let is_own = |own: &OwnItem| match &own.step {
            Step::Own(own) => **own == *step,
            Step::Base(own) => ordinal == Some(*own as usize),
        };
        let item = match (self.own.iter().position(is_own), ordinal) {
            (Some(own), _) => Item(own as u32 | OWN),
            (None, Some(ordinal)) => Item(ordinal as u32),
            (None, None) => return None,
        };
        self.items.iter().position(|there| *there == item)
    }

    /// Returns the item of `step`, or its insertion point.
    pub(crate) fn position(&self, step: &[u8]) -> std::result::Result<usize, usize> {
        if let Some(item) = self.find_near(step) {
            return Ok(item);
        }

        // Kept and own items ascend together by their steps.
        let mut low = 0;
        let mut high = self.items.len();
        while low < high {
            let middle = low.midpoint(high);
            match self.step(middle).cmp(step) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }

        debug_assert!(low == high && low <= self.items.len(), "one insertion point");
        Err(low)
    }

    pub(crate) fn spot(&self, item: usize) -> Spot<'_> {
        match self.items[item].own() {
            Some(own) => Spot::Own(&self.own[own].child),
            None => {
                let (node, entries) = self.base();
                Spot::Stored { node, entries, ordinal: self.items[item].0 }
            }
        }
    }

    /// Returns the own child of an item, for changes.
    pub(crate) fn child_mut(&mut self, item: usize) -> Option<&mut Child> {
        let own = self.items[item].own()?;
        Some(&mut self.own[own].child)
    }

    /// Replaces the child of an item.
    pub(crate) fn set(&mut self, item: usize, child: Child) {
        match self.items[item].own() {
            Some(own) => self.own[own].child = child,
            None => {
                // The step stays in the record: only the child is the node's own.
                let step = Step::Base(self.items[item].0);
                debug_assert!(self.own.len() < OWN as usize, "numbers of items leave a bit");
                self.items[item] = Item(self.own.len() as u32 | OWN);
                self.own.push(OwnItem { step, child });
            }
        }
        debug_assert!(self.own.len() <= self.items.len(), "each own item is an item");
    }

    /// Inserts an item at a [`position`](Self::position).
    pub(crate) fn insert(&mut self, position: usize, step: &[u8], child: Child) {
        debug_assert!(position == 0 || self.step(position - 1) < step, "steps ascend");
        debug_assert!(position == self.len() || step < self.step(position), "steps ascend");
        self.items.insert(position, Item(self.own.len() as u32 | OWN));
        self.own.push(OwnItem { step: Step::Own(step.into()), child });
        debug_assert!(self.own.len() <= self.items.len(), "each own item is an item");
    }

    pub(crate) fn remove(&mut self, item: usize) {
        let Some(own) = self.items.remove(item).own() else { return };
        self.own.swap_remove(own);
        // The last own item has taken the free place, so its number changes.
        let moved = Item(self.own.len() as u32 | OWN);
        if let Some(item) = self.items.iter_mut().find(|item| **item == moved) {
            *item = Item(own as u32 | OWN);
        }
        debug_assert!(self.own.len() <= self.items.len(), "each own item is an item");
    }
}

impl InnerNode {
    /// Creates an inode of ascending buckets without a base.
    pub(crate) fn new(depth: u8, count: u64, slots: impl Iterator<Item = (usize, Slot)>) -> Self {
        let mut inner = Self { depth, count, base: None, mask: 0, changed: 0, own: Vec::new() };
        slots.for_each(|(bucket, slot)| inner.set(bucket, slot));
        inner
    }

    fn stored(&self) -> Option<(&StoredNode, &Inner)> {
        match &self.base.as_deref()?.body {
            Body::Stored(node) => match &node.record.body {
                RecordBody::Inner(inner) => Some((node, inner)),
                RecordBody::Entries(_) => None,
            },
            Body::Entries(_) | Body::Inner(_) => None,
        }
    }

    /// The record that it is based on.
    pub(crate) fn record(&self) -> Option<&Inner> {
        self.stored().map(|(_, inner)| inner)
    }

    /// Mask of the buckets that are not empty.
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Returns whether a bucket is own, and its position in the own slots.
    fn rank(&self, bucket: usize) -> (bool, usize) {
        debug_assert!(bucket < 32, "an inode has at most 32 buckets");
        let bit = 1u32 << bucket;
        (self.changed & bit != 0, (self.changed & (bit - 1)).count_ones() as usize)
    }

    /// Returns the own slot of a bucket.
    pub(crate) fn slot(&self, bucket: usize) -> Option<&Slot> {
        let (is_own, rank) = self.rank(bucket);
        is_own.then(|| &self.own[rank])
    }

    pub(crate) fn slot_mut(&mut self, bucket: usize) -> Option<&mut Slot> {
        let (is_own, rank) = self.rank(bucket);
        is_own.then(|| &mut self.own[rank])
    }

    /// The own slots, ascending.
    pub(crate) fn own(&self) -> &[Slot] {
        &self.own
    }

    /// Returns the base, if a bucket is as in the base.
    fn kept(&self, bucket: usize) -> Option<(&StoredNode, &Inner)> {
        // A bucket is kept from the base if it is there and was not changed.
        let is_kept = self.mask & !self.changed & 1 << bucket != 0;
        self.stored().filter(|_| is_kept)
    }

    /// Returns the link of a bucket that is as in the record.
    pub(crate) fn kept_link(&self, bucket: usize) -> Option<&Link> {
        self.kept(bucket)?.1.link(bucket)
    }

    /// The inode of a bucket.
    pub(crate) fn bucket(&self, env: &Env, bucket: usize) -> Result<Option<&Arc<Node>>> {
        match self.slot(bucket) {
            Some(Slot::Node(node)) => Ok(Some(node)),
            Some(Slot::Blinded(hash)) => Err(env.missing(**hash)),
            None => match self.kept(bucket) {
                Some((node, inner)) => InnerRef::Stored(node, inner).bucket(env, bucket),
                None => Ok(None),
            },
        }
    }

    /// Replaces the content of a bucket.
    pub(crate) fn set(&mut self, bucket: usize, slot: Slot) {
        let (is_own, rank) = self.rank(bucket);
        if is_own {
            self.own[rank] = slot;
        } else {
            self.own.insert(rank, slot);
        }
        self.changed |= 1 << bucket;
        self.mask |= 1 << bucket;
        debug_assert_eq!(self.changed & !self.mask, 0, "own buckets are not empty");
        debug_assert_eq!(self.own.len(), self.changed.count_ones() as usize, "a slot each");
    }

    /// Updates the count of entries, and removes a bucket without entries.
    pub(crate) fn counted(&mut self, bucket: usize, before: u64, after: u64) {
        // The counts of a partial tree are not to be trusted, so the sum saturates.
        self.count = self.count.saturating_add(after).saturating_sub(before);
        if after == 0 {
            self.clear(bucket);
        }
    }

    fn clear(&mut self, bucket: usize) {
        let (is_own, rank) = self.rank(bucket);
        if is_own {
            self.own.remove(rank);
        }
        self.changed &= !(1 << bucket);
        self.mask &= !(1 << bucket);
        debug_assert_eq!(self.changed & !self.mask, 0, "own buckets are not empty");
        debug_assert_eq!(self.own.len(), self.changed.count_ones() as usize, "a slot each");
    }
}

/// Frees the nodes below with a list: a path may have more nodes than a thread has stack for.
impl Drop for Node {
    fn drop(&mut self) {
        let mut below = Vec::new();
        self.body.take_nodes(&mut below);
        while let Some(node) = below.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                node.body.take_nodes(&mut below);
            }
        }
    }
}

impl Body {
    /// Moves all nodes below into `out`.
    fn take_nodes(&mut self, out: &mut Vec<Arc<Node>>) {
        match self {
            Self::Stored(StoredNode { first, rest, .. }) => {
                out.extend(first.take().map(|(_, node)| node));
                let rest = rest.take().into_iter().flatten();
                out.extend(rest.filter_map(OnceLock::into_inner));
            }
            Self::Entries(EntriesNode { base, own, .. }) => {
                out.extend(base.take());
                out.extend(own.drain(..).filter_map(|own| match own.child {
                    Child::Dir(node) => Some(node),
                    Child::DirAt(far) => far.1.into_inner(),
                    Child::Value(_) | Child::ValueAt(_) | Child::Blinded { .. } => None,
                }));
            }
            Self::Inner(InnerNode { base, own, .. }) => {
                out.extend(base.take());
                out.extend(own.drain(..).filter_map(|slot| match slot {
                    Slot::Node(node) => Some(node),
                    Slot::Blinded(_) => None,
                }));
            }
        }
    }
}

impl Node {
    /// Creates an empty directory, or an empty leaf.
    pub(crate) fn empty(leaf: bool) -> Self {
        Self::of_bindings(leaf, Vec::new(), 1)
    }

    /// Creates a directory or a leaf of ascending steps.
    pub(crate) fn of_bindings(leaf: bool, bindings: Vec<Binding>, height: u16) -> Self {
        Self::new(Body::Entries(EntriesNode::new(leaf, bindings)), height)
    }

    pub(crate) fn new(body: Body, height: u16) -> Self {
        Self { body, height, hash: OnceLock::new(), extent: OnceLock::new() }
    }

    /// Creates the node of a record at `link`.
    pub(crate) fn of_record(record: Arc<Record>, link: &Link) -> Self {
        let height = record.height;
        let body =
            Body::Stored(StoredNode { record, first: OnceLock::new(), rest: OnceLock::new() });
        Self { body, height, hash: link.hash.into(), extent: link.extent.into() }
    }

    /// Refuses a node of a shape that cannot stand at a level of inodes, 0 for directories: changes
    /// rely on the shape, and so does the position of each step.
    pub(crate) fn check_shape(&self, rules: &Rules, level: u8) -> std::result::Result<(), Corrupt> {
        let count = self.count();
        let is_dir = level == 0;

        // The shape follows from the number of steps alone, so another shape is damage.
        let is_flat = is_dir && rules.is_flat(count);
        let (is_right, rule) = match self.shape() {
            Shape::Entries(entries) if !entries.is_leaf() => {
                (is_flat, "a flat directory is one, and has few steps")
            }
            Shape::Entries(_) => {
                (!is_flat && count > 0 && rules.is_leaf(level, count), "a leaf has few steps")
            }
            Shape::Inner(inner) => {
                let divides = !is_flat && !rules.is_leaf(level, count);
                (divides && inner.depth() == level, "an inode has its level, and many steps")
            }
        };

        if is_right { Ok(()) } else { Err(Corrupt::rule(rule, u64::from(level), count)) }
    }

    /// Returns a changeable node with the content of this stored one; `None` if the node is not
    /// stored.
    pub(crate) fn opened(self: &Arc<Self>) -> Option<Self> {
        let Body::Stored(StoredNode { record, .. }) = &self.body else { return None };
        let base = Some(Arc::clone(self));
        let body = match &record.body {
            RecordBody::Entries(entries) => {
                // All entries of the base are kept at first.
                let items = (0..entries.len() as u32).map(Item).collect();
                Body::Entries(EntriesNode { leaf: entries.leaf, base, items, own: Vec::new() })
            }
            RecordBody::Inner(inner) => {
                let Inner { depth, count, mask, .. } = *inner;
                Body::Inner(InnerNode { depth, count, base, mask, changed: 0, own: Vec::new() })
            }
        };

        let opened = Self::new(body, self.height);
        debug_assert_eq!(opened.count(), self.count(), "nothing was changed yet");
        Some(opened)
    }

    /// Returns the stored node that a changed node is based on.
    pub(crate) fn base(&self) -> Option<&Arc<Self>> {
        match &self.body {
            Body::Stored(_) => None,
            Body::Entries(own) => own.base.as_ref(),
            Body::Inner(own) => own.base.as_ref(),
        }
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

    /// Number of steps of the directory from here down.
    pub(crate) fn count(&self) -> u64 {
        match self.shape() {
            Shape::Entries(entries) => entries.len() as u64,
            Shape::Inner(inner) => inner.count(),
        }
    }

    /// Returns whether the node is a flat directory.
    pub(crate) fn is_flat(&self) -> bool {
        matches!(self.shape(), Shape::Entries(entries) if !entries.is_leaf())
    }

    /// Returns the link of a stored node.
    pub(crate) fn link(&self) -> Option<Link> {
        Some(Link { extent: *self.extent.get()?, hash: *self.hash.get()? })
    }

    /// Returns the child of `step` in the directory.
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

    /// Returns whether the directory, or an inode on the way to `step`, changes its shape with a
    /// step less.
    ///
    /// Cost: as [`locate`](Self::locate).
    pub(crate) fn is_at_limit(&self, env: &Env, step: &[u8]) -> Result<bool> {
        let mut node = self;
        // One step fewer may make the directory flat, or an inode on the way a leaf.
        let mut is_at_limit = !self.is_flat() && env.rules.is_flat(self.count().saturating_sub(1));
        while let Shape::Inner(inner) = node.shape() {
            is_at_limit |= env.rules.is_leaf(inner.depth(), inner.count().saturating_sub(1));
            match inner.bucket(env, env.rules.bucket(inner.depth(), step))? {
                Some(below) => node = below,
                None => break,
            }
        }
        Ok(is_at_limit)
    }

    /// Calls `visit` for each step of the directory in the order of storage, until `visit` returns
    /// false. Recursion: at most 64 inodes.
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

    /// Returns all steps of the directory with their children, ascending.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::edit::bind;

    /// Gives one record for whatever is asked.
    #[derive(Debug)]
    struct Forged(Arc<Record>);

    impl Source for Forged {
        fn record(&self, _: &Link) -> Result<Arc<Record>> {
            Ok(Arc::clone(&self.0))
        }

        fn value(&self, _: &Link) -> Result<Arc<[u8]>> {
            Ok([].into())
        }
    }

    #[test]
    fn a_record_that_cannot_stand_there_is_damaged() {
        let at = Address { chunk: 1, unit: 9 };
        let link = Link { extent: Extent { at, bytes: 50 }, hash: Hash([1; 32]) };
        let inner = |depth, count| {
            let mask = u32::MAX;
            let links = [link; 32].into();
            let inner = Inner { depth, count, mask, links, full: link.extent, changed: 0 };
            Record { height: 1, body: RecordBody::Inner(inner) }
        };

        // Too few steps for buckets, another level, and as many steps as cannot be counted on.
        for (depth, count) in [(0, 2), (0, 256), (1, 300), (64, 300), (0, u64::MAX)] {
            let source: Arc<dyn Source> = Arc::new(Forged(Arc::new(inner(depth, count))));
            let env = Env { rules: Rules::TEZOS, source: Some(source), proof: false };
            let mut root = Child::DirAt(Box::new((link, OnceLock::new())));
            let new = Child::Value(Arc::new(Value::new([].into())));
            // Below a sound root the same record stands at level 1, where it cannot be.
            let error = bind(&env, &mut root, &[b"step"], new).unwrap_err();
            assert!(matches!(error, Error::Corrupt { address: Some(_), .. }), "{error}");
        }
    }
}

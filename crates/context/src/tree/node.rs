//! Nodes of a tree in memory: directories whose children are loaded on demand, and which are
//! changed in place where no other tree holds them.
//!
//! A directory is one [`Node`] with entries (flat, or the only leaf of its inode), or a tree of
//! inodes: inner nodes over leaves. A node is its [`Record`] and those of its children that are in
//! memory. A commit leaves the nodes in place: it gives each a hash and a place, and the next
//! change of a node [settles](Node::settle) what the commit found out about its children. So a tree
//! that is committed block after block neither reads nor copies a node twice.
//!
//! Invariants:
//! - The shape is a function of the set of steps alone (see [`hashing`](crate::base::hashing)).
//! - A node with a place has the hash and the children that are stored there.
//! - A child that is not in memory is stored, or blinded: only its hash is known.
//! - A child that is a directory is never empty.
//!
//! Rejected: nodes of one arena by number (every call of every thread would take the lock of the
//! arena); changed nodes as a stored node and differences (an allocation, and a search in two
//! places, for each node that a block changes).

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use terrane_io::prefetch;
use terrane_io::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::base::address::{Address, Extent, Link, NOWHERE};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::{BRANCHING_MAX, Rules};
use crate::base::latency::{FindSampler, FindTimer};
use crate::base::path::PathText;
use crate::object::entries::{Entries, INLINE_BYTES_MAX, Stored};
use crate::object::inner::Inner;
use crate::object::record::{Form, Record, RecordBody};

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
    /// Weight of the nodes that were loaded since it was last taken, in bytes.
    loaded: AtomicUsize,
    /// Sampler of the latencies of finds, for trees of a store.
    finds: Option<FindSampler>,
}

impl Env {
    pub(crate) fn new(rules: Rules, source: Option<Arc<dyn Source>>, proof: bool) -> Self {
        Self { rules, source, proof, loaded: AtomicUsize::new(0), finds: None }
    }

    pub(crate) fn with_finds(self, finds: FindSampler) -> Self {
        Self { finds: Some(finds), ..self }
    }

    /// Begins to time a find, if it is one of the sample.
    pub(crate) fn time_find(&self) -> Option<FindTimer<'_>> {
        self.finds.as_ref()?.begin()
    }

    /// Returns the weight of the nodes that were loaded since the last call, in bytes.
    pub(crate) fn take_loaded(&self) -> usize {
        self.loaded.swap(0, Ordering::Relaxed)
    }

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
///
/// The fields stand in the order in which a path meets them: a path that goes through a node loads
/// the first line of memory or two.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Node {
    was_used: Used,
    /// Children in memory, by the number of the entry, or by the rank of the bucket.
    children: OnceLock<Vec<OnceLock<Member>>>,
    record: Record,
    /// Hashes of the stale values that are stored in the node, in their order.
    inline_hashes: OnceLock<Box<[Hash]>>,
    /// Hash, which the node above reads with the place when it settles.
    pub(crate) hash: OnceLock<Hash>,
    place: OnceLock<Place>,
}

/// Where a node is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) extent: Extent,
    pub(crate) form: Form,
}

/// Child in memory, in its node.
#[derive(Debug, Clone)]
pub(crate) enum Member {
    Node(Arc<Node>),
    Value(Arc<Value>),
}

/// Whether a call passed a node since the mark was last taken.
#[derive(Debug, Default)]
struct Used(AtomicBool);

impl Clone for Used {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Used {
    fn mark(&self) {
        // A write would take the line of memory from other threads.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Step and its child.
pub(crate) type Binding = (Box<[u8]>, Child);

/// Root of a tree, or child of a step apart from its node.
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

/// Value or tree that a step is bound to.
#[derive(Debug)]
pub(crate) enum Bound<'a> {
    /// Value of at most [`INLINE_BYTES_MAX`] bytes.
    Short(&'a [u8]),
    Child(Child),
}

/// Value in memory.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) hash: OnceLock<Hash>,
    pub(crate) extent: OnceLock<Extent>,
}

/// Content of a bucket of a new inode.
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

    /// Returns the link of a stored value.
    pub(crate) fn link(&self) -> Option<Link> {
        Some(Link { extent: *self.extent.get()?, hash: *self.hash.get()? })
    }
}

impl Member {
    /// Hash of the child, if it was hashed.
    pub(crate) fn hash(&self) -> Option<&Hash> {
        match self {
            Self::Node(node) => node.hash.get(),
            Self::Value(value) => value.hash.get(),
        }
    }

    /// Returns the link of a stored child.
    pub(crate) fn link(&self) -> Option<Link> {
        match self {
            Self::Node(node) => node.link(),
            Self::Value(value) => value.link(),
        }
    }

    fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Node(node) => Some(node),
            Self::Value(_) => None,
        }
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
            Self::Dir(node) => node.height(),
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

    /// Returns what a directory stores of the child, and the child itself if it is in memory.
    fn parts(&self) -> (Stored<'_>, Option<Member>) {
        let nowhere = |is_value, hash| Stored::Nowhere { is_value, hash };
        match self {
            Self::Value(value) if value.bytes.len() <= INLINE_BYTES_MAX => {
                (Stored::Inline(&value.bytes), None)
            }
            Self::Value(value) => match value.link() {
                Some(link) => (Stored::Value(link), None),
                None => (nowhere(true, None), Some(Member::Value(Arc::clone(value)))),
            },
            Self::ValueAt(link) => (Stored::Value(**link), None),
            Self::Dir(node) => {
                let member = Some(Member::Node(Arc::clone(node)));
                (node.link().map_or(nowhere(false, None), Stored::Dir), member)
            }
            Self::DirAt(far) => {
                (Stored::Dir(far.0), far.1.get().map(|node| Member::Node(Arc::clone(node))))
            }
            Self::Blinded { is_value, hash } => (nowhere(*is_value, Some(**hash)), None),
        }
    }
}

impl Bound<'_> {
    /// Lower bound of the levels of directories; 0 for a child that is not in memory.
    pub(crate) fn height(&self) -> u16 {
        match self {
            Self::Short(_) => 0,
            Self::Child(child) => child.height(),
        }
    }

    /// Returns what a directory stores of it, and the child itself if it is in memory.
    fn parts(&self) -> (Stored<'_>, Option<Member>) {
        match self {
            Self::Short(value) => (Stored::Inline(value), None),
            Self::Child(child) => child.parts(),
        }
    }
}

/// Reference to a child: of an item of a node, or by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Spot<'a> {
    Item { node: &'a Node, entries: &'a Entries, item: usize },
    Own(&'a Child),
}

/// Content of a spot.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// Value in its directory.
    Inline(&'a [u8]),
    /// Stored value.
    ValueAt(Link),
    /// Stored directory.
    DirAt(Link),
    /// Value in memory that is not stored.
    Value(&'a Arc<Value>),
    /// Directory in memory that is not stored.
    Dir(&'a Arc<Node>),
    /// Only its hash is known.
    Blinded { is_value: bool, hash: Hash },
}

impl<'a> Spot<'a> {
    pub(crate) fn content(self) -> Content<'a> {
        match self {
            Self::Item { node, entries, item } => match entries.stored(item) {
                Stored::Inline(bytes) => Content::Inline(bytes),
                Stored::Value(link) => Content::ValueAt(link),
                Stored::Dir(link) => Content::DirAt(link),
                Stored::Nowhere { is_value, hash } => match (node.member(item), hash) {
                    (Some(member), _) => Content::of_member(member),
                    (None, hash) => Content::Blinded { is_value, hash: hash.expect(NEAR) },
                },
            },
            Self::Own(child) => match child {
                Child::Value(value) => match value.link() {
                    Some(link) => Content::ValueAt(link),
                    None => Content::Value(value),
                },
                Child::ValueAt(link) => Content::ValueAt(**link),
                Child::Dir(node) => Content::of_node(node),
                Child::DirAt(far) => Content::DirAt(far.0),
                Child::Blinded { is_value, hash } => {
                    Content::Blinded { is_value: *is_value, hash: **hash }
                }
            },
        }
    }

    pub(crate) fn is_value(self) -> bool {
        match self {
            Self::Item { entries, item, .. } => entries.is_value(item),
            Self::Own(child) => child.is_value(),
        }
    }

    /// The directory, if it is one.
    pub(crate) fn dir(self, env: &Env) -> Result<Option<&'a Arc<Node>>> {
        let (node, entries, item) = match self {
            Self::Item { node, entries, item } => (node, entries, item),
            Self::Own(child) => return child.dir(env),
        };

        if entries.is_value(item) {
            return Ok(None);
        }
        if let Some(found) = node.node_at(item) {
            return Ok(Some(found));
        }
        match entries.stored(item) {
            Stored::Dir(link) => node.load_child(env, item, &link, 0).map(Some),
            Stored::Nowhere { hash, .. } => Err(env.missing(hash.expect(NEAR))),
            Stored::Inline(_) | Stored::Value(_) => Ok(None),
        }
    }

    /// The value, if it is one.
    pub(crate) fn value(self, env: &Env) -> Result<Option<Vec<u8>>> {
        self.with_value(env, <[u8]>::to_vec)
    }

    /// Calls `read` with the value in place, if the child is one.
    pub(crate) fn with_value<R>(
        self,
        env: &Env,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        // The value of a tree that was committed is at hand still.
        if let Self::Own(Child::Value(value)) = self {
            return Ok(Some(read(&value.bytes)));
        }
        match self.content() {
            Content::Inline(bytes) => Ok(Some(read(bytes))),
            Content::ValueAt(link) => Ok(Some(read(&env.load_value(&link)?))),
            Content::Value(value) => Ok(Some(read(&value.bytes))),
            Content::Blinded { is_value: true, hash } => Err(env.missing(hash)),
            Content::Dir(_) | Content::DirAt(_) | Content::Blinded { .. } => Ok(None),
        }
    }

    /// Returns the directory, if it is in memory.
    pub(crate) fn looked_at(self) -> Option<&'a Arc<Node>> {
        match self {
            Self::Item { node, entries, item } if !entries.is_value(item) => node.node_at(item),
            Self::Own(Child::Dir(node)) => Some(node),
            Self::Own(Child::DirAt(far)) => far.1.get(),
            Self::Item { .. } | Self::Own(_) => None,
        }
    }

    /// Returns the child, independent of its node.
    pub(crate) fn to_child(self) -> Child {
        if let Self::Own(child) = self {
            return child.clone();
        }
        match self.content() {
            Content::Inline(bytes) => Child::Value(Arc::new(Value::new(bytes.into()))),
            Content::ValueAt(link) => Child::ValueAt(Box::new(link)),
            Content::DirAt(link) => match self.looked_at() {
                Some(node) => Child::Dir(Arc::clone(node)),
                None => Child::DirAt(Box::new((link, OnceLock::new()))),
            },
            Content::Value(value) => Child::Value(Arc::clone(value)),
            Content::Dir(node) => Child::Dir(Arc::clone(node)),
            Content::Blinded { is_value, hash } => {
                Child::Blinded { is_value, hash: Box::new(hash) }
            }
        }
    }
}

/// Invariant of a child that is neither stored nor blinded.
const NEAR: &str = "what is neither stored nor in memory has its hash";

impl<'a> Content<'a> {
    fn of_node(node: &'a Arc<Node>) -> Self {
        node.link().map_or(Self::Dir(node), Self::DirAt)
    }

    fn of_member(member: &'a Member) -> Self {
        match member {
            Member::Node(node) => Self::of_node(node),
            Member::Value(value) => value.link().map_or(Self::Value(value), Self::ValueAt),
        }
    }
}

/// Entries of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntriesRef<'a> {
    node: &'a Node,
    entries: &'a Entries,
}

impl<'a> EntriesRef<'a> {
    pub(crate) fn len(self) -> usize {
        self.entries.len()
    }

    /// Returns whether the entries are those of an inode.
    pub(crate) fn is_leaf(self) -> bool {
        self.entries.leaf
    }

    pub(crate) fn step(self, item: usize) -> &'a [u8] {
        self.entries.step(item)
    }

    pub(crate) fn spot(self, item: usize) -> Spot<'a> {
        Spot::Item { node: self.node, entries: self.entries, item }
    }

    pub(crate) fn find(self, step: &[u8]) -> Option<Spot<'a>> {
        self.entries.find(step).map(|item| self.spot(item))
    }

    /// The entries as they are stored and hashed.
    pub(crate) fn entries(self) -> &'a Entries {
        self.entries
    }
}

/// Inode with buckets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InnerRef<'a> {
    node: &'a Node,
    inner: &'a Inner,
}

impl<'a> InnerRef<'a> {
    pub(crate) fn depth(self) -> u8 {
        self.inner.depth
    }

    /// Entries below.
    pub(crate) fn count(self) -> u64 {
        self.inner.count
    }

    /// The buckets as they are stored and hashed.
    pub(crate) fn inner(self) -> &'a Inner {
        self.inner
    }

    /// The inode of a bucket.
    pub(crate) fn bucket(self, env: &Env, bucket: usize) -> Result<Option<&'a Arc<Node>>> {
        let Some(rank) = self.inner.rank(bucket) else { return Ok(None) };
        if let Some(node) = self.node.node_at(rank) {
            return Ok(Some(node));
        }
        match self.inner.link(rank) {
            Some(link) => self.node.load_child(env, rank, &link, self.inner.depth + 1).map(Some),
            None => Err(env.missing(self.inner.hash(rank))),
        }
    }

    /// Returns what is known of a bucket without loading it.
    pub(crate) fn known(self, bucket: usize) -> Known<'a> {
        let Some(rank) = self.inner.rank(bucket) else { return Known::Empty };
        match (self.node.node_at(rank), self.inner.link(rank)) {
            (Some(node), _) => Known::Node(node),
            (None, Some(link)) => Known::At(link),
            (None, None) => Known::Blinded(self.inner.hash(rank)),
        }
    }

    /// Returns the inode of a bucket; the node does not keep a loaded one.
    pub(crate) fn fetch(self, env: &Env, bucket: usize) -> Result<Option<Arc<Node>>> {
        match self.known(bucket) {
            Known::Empty => Ok(None),
            Known::Node(node) => Ok(Some(Arc::clone(node))),
            Known::At(link) => env.load_at(&link, self.depth() + 1).map(Some),
            Known::Blinded(hash) => Err(env.missing(hash)),
        }
    }

    /// Returns the link of a stored bucket.
    pub(crate) fn stored_link(self, bucket: usize) -> Option<Link> {
        self.inner.link(self.inner.rank(bucket)?)
    }

    /// Returns the hash of the inode of a bucket, which has one.
    pub(crate) fn bucket_hash(self, bucket: usize) -> Option<Hash> {
        let rank = self.inner.rank(bucket)?;
        if self.inner.stale() >> bucket & 1 == 1 {
            return self.node.member(rank).and_then(Member::hash).copied();
        }
        Some(self.inner.hash(rank))
    }
}

/// Knowledge of a bucket without loading.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<'a> {
    Empty,
    Node(&'a Arc<Node>),
    /// The inode is not in memory.
    At(Link),
    Blinded(Hash),
}

/// Form of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    Entries(EntriesRef<'a>),
    Inner(InnerRef<'a>),
}

/// Frees the nodes below with a list: a path may have more nodes than a thread has stack for.
impl Drop for Node {
    fn drop(&mut self) {
        let Some(children) = self.children.take() else { return };
        let mut below = Vec::new();
        let take = |children: Vec<OnceLock<Member>>, below: &mut Vec<Arc<Self>>| {
            below.extend(children.into_iter().filter_map(|child| match child.into_inner() {
                Some(Member::Node(node)) => Some(node),
                Some(Member::Value(_)) | None => None,
            }));
        };
        take(children, &mut below);
        while let Some(node) = below.pop() {
            if let Some(mut node) = Arc::into_inner(node)
                && let Some(children) = node.children.take()
            {
                take(children, &mut below);
            }
        }
    }
}

impl Node {
    fn new(height: u16, body: RecordBody) -> Self {
        Self {
            was_used: Used::default(),
            children: OnceLock::new(),
            record: Record { height, body },
            inline_hashes: OnceLock::new(),
            hash: OnceLock::new(),
            place: OnceLock::new(),
        }
    }

    /// Creates an empty directory, or an empty leaf.
    pub(crate) fn empty(leaf: bool) -> Self {
        Self::of_bindings(leaf, &[], 1)
    }

    /// Creates a directory or a leaf of ascending steps.
    pub(crate) fn of_bindings(leaf: bool, bindings: &[Binding], height: u16) -> Self {
        debug_assert!(bindings.windows(2).all(|pair| pair[0].0 < pair[1].0), "steps ascend");
        let mut entries = Vec::with_capacity(bindings.len());
        let mut members = Vec::with_capacity(bindings.len());
        for (step, child) in bindings {
            let (stored, member) = child.parts();
            entries.push((&**step, stored));
            members.push(member.map_or_else(OnceLock::new, OnceLock::from));
        }
        let mut node = Self::new(height, RecordBody::Entries(Entries::new(leaf, &entries)));
        if members.iter().any(|member| member.get().is_some()) {
            node.children = members.into();
        }
        node
    }

    /// Creates an inode of ascending buckets.
    pub(crate) fn of_slots(
        (depth, count): (u8, u64),
        slots: impl ExactSizeIterator<Item = (usize, Slot)>,
        height: u16,
    ) -> Self {
        let mut inner = Inner::new(depth, count, slots.len());
        let mut members = Vec::with_capacity(slots.len());
        for (bucket, slot) in slots {
            match slot {
                Slot::Node(node) => {
                    inner.insert(bucket, None);
                    if let Some(link) = node.link() {
                        inner.settle(bucket, &link);
                    }
                    members.push(Member::Node(node).into());
                }
                Slot::Blinded(hash) => {
                    inner.insert(bucket, Some(&hash));
                    members.push(OnceLock::new());
                }
            }
        }
        let mut node = Self::new(height, RecordBody::Inner(inner));
        node.children = members.into();
        node
    }

    /// Creates the node of a record at `link`.
    pub(crate) fn of_record(record: Arc<Record>, link: &Link) -> Self {
        Self {
            was_used: Used::default(),
            children: OnceLock::new(),
            // A copy, if the cache has the record too.
            record: Arc::unwrap_or_clone(record),
            inline_hashes: OnceLock::new(),
            hash: link.hash.into(),
            place: Place { extent: link.extent, form: Form::Read }.into(),
        }
    }

    /// Lower bound of the levels of directories from here down, this one included. Levels below a
    /// blinded part count once the part is written.
    pub(crate) fn height(&self) -> u16 {
        self.record.height
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the child of a number, if it is in memory.
    pub(crate) fn member(&self, number: usize) -> Option<&Member> {
        self.children.get()?.get(number)?.get()
    }

    /// Returns the node of a number, if it is in memory.
    fn node_at(&self, number: usize) -> Option<&Arc<Self>> {
        let node = self.member(number)?.node()?;
        node.was_used.mark();
        Some(node)
    }

    /// Number of entries or buckets.
    pub(crate) fn len(&self) -> usize {
        match &self.record.body {
            RecordBody::Entries(entries) => entries.len(),
            RecordBody::Inner(inner) => inner.len(),
        }
    }

    /// Loads the child of a number, at a level of inodes, 0 for directories.
    fn load_child(&self, env: &Env, number: usize, link: &Link, level: u8) -> Result<&Arc<Self>> {
        let loaded = env.load_at(link, level)?;
        env.loaded.fetch_add(loaded.weight(), Ordering::Relaxed);
        let none = || {
            env.loaded.fetch_add(self.len() * size_of::<OnceLock<Member>>(), Ordering::Relaxed);
            (0..self.len()).map(|_| OnceLock::new()).collect()
        };
        // Another reader may have loaded the node meanwhile; the first one stays.
        let member = self.children.get_or_init(none)[number].get_or_init(|| Member::Node(loaded));
        Ok(member.node().expect("a directory is there"))
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

    pub(crate) fn shape(&self) -> Shape<'_> {
        match &self.record.body {
            RecordBody::Entries(entries) => Shape::Entries(EntriesRef { node: self, entries }),
            RecordBody::Inner(inner) => Shape::Inner(InnerRef { node: self, inner }),
        }
    }

    /// Number of steps of the directory from here down.
    pub(crate) fn count(&self) -> u64 {
        match &self.record.body {
            RecordBody::Entries(entries) => entries.len() as u64,
            RecordBody::Inner(inner) => inner.count,
        }
    }

    /// Returns whether the node is a flat directory.
    pub(crate) fn is_flat(&self) -> bool {
        matches!(&self.record.body, RecordBody::Entries(entries) if !entries.leaf)
    }

    /// Returns the link of a stored node.
    pub(crate) fn link(&self) -> Option<Link> {
        Some(Link { extent: self.place.get()?.extent, hash: *self.hash.get()? })
    }

    /// Returns whether the node is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.place.get().is_some()
    }

    /// Notes where the node was stored, unless it is known.
    pub(crate) fn store_at(&self, place: Place) {
        self.place.get_or_init(|| place);
    }

    /// Notes the hashes of the stale values that are stored in the node.
    pub(crate) fn keep_inline_hashes(&self, hashes: &[Hash]) {
        if !hashes.is_empty() {
            self.inline_hashes.get_or_init(|| hashes.into());
        }
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

    /// Prepares the node for a change: adopts what a commit found out about it, the links of its
    /// children and its own place.
    pub(crate) fn settle(&mut self) {
        let Some(place) = self.place.get().copied().filter(|place| place.form != Form::Read) else {
            return;
        };
        let inline_hashes = self.inline_hashes.take().unwrap_or_default();
        let record = &mut self.record;
        let children = self.children.get_mut().map_or(&mut [][..], Vec::as_mut_slice);
        match &mut record.body {
            RecordBody::Entries(entries) => {
                let mut inline = inline_hashes.iter();
                for item in 0..entries.len() {
                    if !entries.is_stale(item) {
                        continue;
                    }
                    if entries.is_inline(item) {
                        if let Some(hash) = inline.next() {
                            entries.put_hash(item, hash);
                        }
                        continue;
                    }
                    let Some(slot) = children.get_mut(item) else { continue };
                    // A record that was there already may have children that were never written
                    // from here.
                    let Some(link) = slot.get().and_then(Member::link) else { continue };
                    entries.settle(item, &link);
                    // A stored value need not stay in memory.
                    if matches!(slot.get(), Some(Member::Value(_))) {
                        slot.take();
                    }
                }
            }
            RecordBody::Inner(inner) => {
                let stale = inner.stale();
                for bucket in (0..BRANCHING_MAX as usize).filter(|bucket| stale >> bucket & 1 == 1)
                {
                    let rank = inner.rank(bucket).expect("stale buckets are there");
                    if let Some(link) = children.get(rank).and_then(|slot| slot.get()?.link()) {
                        inner.settle(bucket, &link);
                    }
                }
            }
        }
        let full = (place.form == Form::Full).then_some(place.extent);
        match (&mut record.body, place.form) {
            (_, Form::Delta) => {}
            (RecordBody::Inner(inner), Form::Middle) => inner.rebase_middle(place.extent),
            (RecordBody::Entries(entries), Form::Middle) => entries.rebase_middle(place.extent),
            (RecordBody::Entries(entries), _) => entries.rebase(full),
            (RecordBody::Inner(inner), _) => inner.rebase(full),
        }
        if let Some(place) = self.place.get_mut() {
            place.form = Form::Read;
        }
    }

    /// Forgets hash and place, since the content changed.
    fn touch(&mut self) {
        self.hash.take();
        self.place.take();
        self.inline_hashes.take();
    }

    fn entries_mut(&mut self) -> Option<&mut Entries> {
        match &mut self.record.body {
            RecordBody::Entries(entries) => Some(entries),
            RecordBody::Inner(_) => None,
        }
    }

    fn inner_mut(&mut self) -> Option<&mut Inner> {
        match &mut self.record.body {
            RecordBody::Entries(_) => None,
            RecordBody::Inner(inner) => Some(inner),
        }
    }

    /// Raises the height, which is a lower bound.
    pub(crate) fn raise(&mut self, height: u16) {
        if self.record.height < height {
            self.record.height = height;
        }
    }

    /// Children in memory, for changes.
    fn children_mut(&mut self) -> &mut Vec<OnceLock<Member>> {
        let len = self.len();
        if self.children.get().is_none() {
            self.children = (0..len).map(|_| OnceLock::new()).collect::<Vec<_>>().into();
        }
        self.children.get_mut().expect("it is there now")
    }

    /// Takes a child out of the node, if it is a node in memory. Its place in the node stays.
    pub(crate) fn take_node(&mut self, number: usize) -> Option<Arc<Self>> {
        let child = self.children.get_mut()?.get_mut(number)?;
        match child.take()? {
            Member::Node(node) => Some(node),
            value @ Member::Value(_) => {
                *child = value.into();
                None
            }
        }
    }

    /// Puts an unchanged child back, or keeps one that was loaded.
    pub(crate) fn put_node(&mut self, number: usize, node: Arc<Self>) {
        self.children_mut()[number] = Member::Node(node).into();
    }

    /// Binds the step of an item anew.
    pub(crate) fn set_item(&mut self, item: usize, bound: &Bound<'_>) {
        self.settle();
        let (stored, member) = bound.parts();
        let Some(entries) = self.entries_mut() else { return };
        entries.set(item, stored);
        if member.is_some() || self.children.get().is_some() {
            self.children_mut()[item] = member.map_or_else(OnceLock::new, OnceLock::from);
        }
        self.touch();
    }

    /// Binds a new step at its insertion point.
    pub(crate) fn insert_item(&mut self, item: usize, step: &[u8], bound: &Bound<'_>) {
        self.settle();
        let (stored, member) = bound.parts();
        let has_children = self.children.get().is_some();
        let Some(entries) = self.entries_mut() else { return };
        entries.insert(item, step, stored);
        if has_children {
            let member = member.map_or_else(OnceLock::new, OnceLock::from);
            self.children_mut().insert(item, member);
        } else if let Some(member) = member {
            self.children_mut()[item] = member.into();
        }
        self.touch();
    }

    /// Unbinds an item.
    pub(crate) fn remove_item(&mut self, item: usize) {
        self.settle();
        let Some(entries) = self.entries_mut() else { return };
        entries.remove(item);
        if let Some(children) = self.children.get_mut() {
            children.remove(item);
        }
        self.touch();
    }

    /// Replaces the inode of a bucket, which had `before` entries; one without entries empties the
    /// bucket.
    pub(crate) fn set_bucket(&mut self, bucket: usize, below: Arc<Self>, before: u64) {
        self.settle();
        let after = below.count();
        let has_children = self.children.get().is_some();
        let Some(inner) = self.inner_mut() else { return };
        // The counts of a partial tree are not to be trusted, so the sum saturates.
        inner.count = inner.count.saturating_add(after).saturating_sub(before);
        let rank = inner.rank(bucket);
        match (rank, after) {
            (None, 0) => {}
            (Some(_), 0) => {
                let rank = inner.remove(bucket);
                if let Some(children) = self.children.get_mut() {
                    children.remove(rank);
                }
            }
            (Some(rank), _) => {
                inner.change(bucket);
                self.put_node(rank, below);
            }
            (None, _) => {
                let rank = inner.insert(bucket, None);
                if has_children {
                    self.children_mut().insert(rank, Member::Node(below).into());
                } else {
                    self.put_node(rank, below);
                }
            }
        }
        self.touch();
    }

    /// Returns whether a call passed the node since the last call of this function.
    pub(crate) fn take_used(&mut self) -> bool {
        std::mem::take(self.was_used.0.get_mut())
    }

    /// Returns the number of the first child in memory that is a node, from a number on.
    pub(crate) fn next_node(&self, from: usize) -> Option<usize> {
        let children = self.children.get()?.get(from..)?;
        let is_node = |child: &OnceLock<Member>| matches!(child.get(), Some(Member::Node(_)));
        Some(from + children.iter().position(is_node)?)
    }

    /// Returns whether there may be children in memory.
    pub(crate) fn has_children(&self) -> bool {
        self.children.get().is_some()
    }

    /// Returns whether the record leads to the child of a number, a directory or an inode.
    pub(crate) fn can_load(&self, number: usize) -> bool {
        match &self.record.body {
            RecordBody::Entries(entries) => entries.is_stored_dir(number),
            RecordBody::Inner(inner) => inner.extent(number) != NOWHERE,
        }
    }

    /// Returns the child of a number if it is a node in memory that can be loaded again and that no
    /// other tree has.
    pub(crate) fn spare_child(&mut self, number: usize) -> Option<&mut Self> {
        if !self.can_load(number) {
            return None;
        }
        let child = self.children.get_mut()?.get_mut(number)?.get_mut()?;
        let Member::Node(node) = child else { return None };
        let spare = Arc::get_mut(node)?;
        debug_assert!(spare.is_stored(), "the record leads to what is stored");
        Some(spare)
    }

    /// Prefetches the first lines of the nodes below in memory, from a number on.
    pub(crate) fn prefetch_nodes(&self, from: usize) {
        /// Children that are prefetched, as many as an inode has: more would leave the cache before
        /// their turn.
        const NODES: usize = 32;
        let children = self.children.get().and_then(|children| children.get(from..));
        for child in children.unwrap_or_default().iter().take(NODES) {
            if let Some(Member::Node(node)) = child.get() {
                prefetch(&node.was_used);
            }
        }
    }

    /// Forgets the child of a number, which can be loaded again.
    pub(crate) fn forget(&mut self, number: usize) {
        debug_assert!(self.can_load(number), "the record leads to it");
        if let Some(child) = self.children.get_mut().and_then(|children| children.get_mut(number)) {
            child.take();
        }
    }

    /// Approximate size in memory, without the nodes below, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let children = self.children.get().map_or(0, Vec::capacity);
        // The counts of holders stand before the node.
        let own = size_of::<Self>() + 2 * size_of::<usize>();
        let beside = self.record.beside() + children * size_of::<OnceLock<Member>>();
        // Allocators round up to their size classes.
        own + beside + beside / 8
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
            let mut inner = Inner::new(depth, count, 32);
            for bucket in (0..32).filter(|bucket| mask >> bucket & 1 == 1) {
                inner.insert(bucket, None);
                inner.settle(bucket, &link);
            }
            Record { height: 1, body: RecordBody::Inner(inner) }
        };

        // Too few steps for buckets, another level, and as many steps as cannot be counted on.
        for (depth, count) in [(0, 2), (0, 256), (1, 300), (64, 300), (0, u64::MAX)] {
            let source: Arc<dyn Source> = Arc::new(Forged(Arc::new(inner(depth, count))));
            let env = Env::new(Rules::TEZOS, Some(source), false);
            let mut root = Child::DirAt(Box::new((link, OnceLock::new())));
            let new = Child::Value(Arc::new(Value::new([].into())));
            // Below a sound root the same record stands at level 1, where it cannot be.
            let error = bind(&env, &mut root, &[b"step"], new).unwrap_err();
            assert!(matches!(error, Error::Corrupt { address: Some(_), .. }), "{error}");
        }
    }
}

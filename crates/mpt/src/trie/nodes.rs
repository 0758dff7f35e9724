//! Nodes in the making: planned as their children become known, hashed level by level.
//!
//! The shape of a trie does not depend on hashes, so a builder or an update plans all of its nodes
//! first. The height of a node above the leaves that were planned with it says when it is hashed:
//! nodes of one height need no hash of each other, and the scheme hashes them side by side. Plans
//! of several tries stand in one list, so that levels of small tries are hashed together.
//!
//! Invariants: a plan stands behind the plans of its children. A plan is encoded once, after its
//! children were hashed.

use std::ops::Range;

use alloy_primitives::B256;
use smallvec::SmallVec;

use crate::base::path::Path;
use crate::base::workers::Workers;
use crate::scheme::scheme::{CHILDREN_MAX, HASH_BYTES, Reference, Scheme};
use crate::trie::record::{BranchRecord, LinkRecord, Record, RecordedChild};

/// Bytes of encodings that are hashed together, so that they stay in the processor's cache.
const BATCH_BYTES: usize = 128 << 10;

/// Fewest nodes for which a thread is woken: below, waking costs more than it saves.
const SHARE_NODES: usize = 48;

/// Typical bytes of an encoding, for the first size of a buffer.
const NODE_BYTES: usize = 544;

/// A part of a trie, whatever its place: the place decides only how it is encoded.
#[derive(Debug, Clone)]
pub(crate) enum Subtree {
    Empty,
    /// One entry.
    Leaf {
        path: Path,
        value: Vec<u8>,
    },
    /// Two entries or more, which share the digits of `path` and no more.
    Branch {
        path: Path,
        node: Child,
    },
}

/// A node, as its parent states it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Child {
    /// Rebuilt from its entries: embedded, or an extension above an embedded branch.
    Flat(Reference),
    /// A leaf of this hash.
    Leaf(B256),
    /// A record stands at its path; the node has this hash.
    Stored(B256),
    /// The plan of this number: not hashed yet.
    Planned(u32),
}

/// Changed children of a branch that memory of its own is not taken for: most branches have one or
/// two.
const INLINE_CHANGED: usize = 2;

/// The children of a branch.
#[derive(Debug)]
pub(crate) enum Children {
    /// All of them, by their digits.
    All(Box<[Option<Child>; CHILDREN_MAX]>),
    /// Those of a record, but for some.
    Over(BranchRecord, SmallVec<[ChangedChild; INLINE_CHANGED]>),
}

/// A child that changed, by its digit; `None` if it went.
type ChangedChild = (u8, Option<Child>);

impl Children {
    /// Those that are no child of a record, with their digits.
    fn changed(&self) -> impl Iterator<Item = ChangedChild> + '_ {
        let (all, some) = match self {
            Self::All(all) => (&all[..], &[][..]),
            Self::Over(_, changed) => (&[][..], &changed[..]),
        };
        (0..).zip(all.iter().copied()).chain(some.iter().copied())
    }

    /// All children by their digits, mapped; `none` where there is none.
    fn map<T: Copy>(&self, none: T, map: impl Fn(Child) -> T) -> [T; CHILDREN_MAX] {
        let mut children = [none; CHILDREN_MAX];
        if let Self::Over(record, _) = self {
            for digit in record.digits() {
                let child = Child::of_record(record.child(digit));
                children[usize::from(digit)] = child.map_or(none, &map);
            }
        }
        for (digit, child) in self.changed() {
            children[usize::from(digit)] = child.map_or(none, &map);
        }
        children
    }
}

impl Child {
    /// A child that a record states by its hash.
    pub(crate) fn of_record(recorded: RecordedChild) -> Option<Self> {
        match recorded {
            RecordedChild::None | RecordedChild::Flat => None,
            RecordedChild::Leaf(hash) => Some(Self::Leaf(hash)),
            RecordedChild::Stored(hash) => Some(Self::Stored(hash)),
        }
    }

    /// The way in which a parent names the node, which is hashed.
    pub(crate) fn reference(&self) -> Reference {
        match self {
            Self::Flat(reference) => *reference,
            Self::Leaf(hash) | Self::Stored(hash) => Reference::hash(*hash),
            Self::Planned(_) => unreachable!("children are hashed before their parents"),
        }
    }

    /// The node in the record of its branch.
    fn recorded(&self) -> RecordedChild {
        match self {
            Self::Flat(_) => RecordedChild::Flat,
            Self::Leaf(hash) => RecordedChild::Leaf(*hash),
            Self::Stored(hash) => RecordedChild::Stored(*hash),
            Self::Planned(_) => unreachable!("children are hashed before records are made"),
        }
    }
}

/// A node that has a place in its trie.
#[derive(Debug)]
struct Plan {
    /// The whole key of a leaf; else the path of the branch.
    path: Path,
    /// Digits above the node: where it begins.
    depth: usize,
    height: usize,
    shape: Shape,
}

#[derive(Debug)]
enum Shape {
    Leaf { value: Vec<u8> },
    Extension { branch: Child },
    Branch { children: Children, value: Option<Vec<u8>> },
}

/// Encodings of nodes with the numbers of their plans and the paths where they begin.
type Encodings = Vec<(u32, Path, Vec<u8>)>;

/// The nodes that a builder or updates have made.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    plans: Vec<Plan>,
    /// The node of each plan once it is hashed.
    done: Vec<Option<Child>>,
    /// Numbers of plans to hash, by their heights.
    levels: Vec<Vec<u32>>,
    /// The encodings of hashed nodes, if they are wanted.
    encodings: Option<Encodings>,
}

impl Nodes {
    /// Nodes whose encodings are kept.
    pub(crate) fn with_encodings() -> Self {
        Self { encodings: Some(Vec::new()), ..Self::default() }
    }

    /// The number of plans.
    pub(crate) fn count(&self) -> usize {
        self.plans.len()
    }

    /// Turns a subtree into the child that begins behind `depth` digits of its path: a leaf with
    /// the digits that are left, a branch, or an extension above one. Empty subtrees are no child.
    pub(crate) fn attach(&mut self, subtree: Subtree, depth: usize) -> Option<Child> {
        match subtree {
            Subtree::Empty => None,
            Subtree::Leaf { path, value } => {
                debug_assert!(depth <= path.len());
                Some(self.add(Plan { path, depth, height: 0, shape: Shape::Leaf { value } }))
            }
            Subtree::Branch { path, node } if path.len() == depth => Some(node),
            Subtree::Branch { path, node } => {
                debug_assert!(depth < path.len());
                let height = self.height_above(&node);
                let shape = Shape::Extension { branch: node };
                Some(self.add(Plan { path, depth, height, shape }))
            }
        }
    }

    /// Plans a branch of at least two children, one of which may be its value.
    pub(crate) fn close(
        &mut self,
        path: Path,
        children: Children,
        value: Option<Vec<u8>>,
    ) -> Subtree {
        let changed = children.changed().filter_map(|(_, child)| child);
        let height = changed.map(|child| self.height_above(&child)).max().unwrap_or_default();
        let (depth, shape) = (path.len(), Shape::Branch { children, value });
        let node = self.add(Plan { path: path.clone(), depth, height, shape });
        Subtree::Branch { path, node }
    }

    fn height_above(&self, child: &Child) -> usize {
        match child {
            Child::Planned(number) => self.plans[*number as usize].height + 1,
            _ => 0,
        }
    }

    fn add(&mut self, plan: Plan) -> Child {
        let number = self.plans.len() as u32;
        if self.levels.len() <= plan.height {
            self.levels.resize_with(plan.height + 1, Vec::new);
        }
        self.levels[plan.height].push(number);
        self.plans.push(plan);
        self.done.push(None);
        Child::Planned(number)
    }

    /// Encodes and hashes all plans that are not hashed yet.
    pub(crate) fn hash<S: Scheme>(&mut self, workers: &Workers) {
        for level in std::mem::take(&mut self.levels) {
            let shares = workers.parts(&level, SHARE_NODES);
            let hashed = workers.map(shares, |share| self.hash_share::<S>(share));

            let mut numbers = level.iter();
            for (done, encodings) in hashed {
                for (node, number) in done.into_iter().zip(&mut numbers) {
                    self.done[*number as usize] = Some(node);
                }
                if let Some(all) = &mut self.encodings {
                    all.extend(encodings);
                }
            }
            debug_assert!(numbers.next().is_none(), "each node of the level was hashed");
        }
    }

    /// Encodes and hashes plans of one level.
    fn hash_share<S: Scheme>(&self, share: &[u32]) -> (Vec<Child>, Encodings) {
        let mut done = Vec::with_capacity(share.len());
        let mut encodings = Vec::new();
        let mut bytes = Vec::with_capacity(BATCH_BYTES.min(share.len() * NODE_BYTES));
        let mut ends: Vec<usize> = Vec::with_capacity(share.len());
        for (at, number) in share.iter().enumerate() {
            self.encode::<S>(*number, &mut bytes);
            ends.push(bytes.len());
            if BATCH_BYTES <= bytes.len() || at + 1 == share.len() {
                let numbers = &share[at + 1 - ends.len()..=at];
                self.hash_batch::<S>(numbers, (&bytes, &ends), &mut done, &mut encodings);
                bytes.clear();
                ends.clear();
            }
        }
        (done, encodings)
    }

    /// Hashes encodings that stand one behind the other.
    fn hash_batch<S: Scheme>(
        &self,
        numbers: &[u32],
        (bytes, ends): (&[u8], &[usize]),
        done: &mut Vec<Child>,
        encodings: &mut Encodings,
    ) {
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let all = starts.zip(ends).map(|(start, end)| &bytes[start..*end]);
        let messages: Vec<&[u8]> =
            all.clone().filter(|encoding| S::EMBED_BELOW <= encoding.len()).collect();
        let mut hashes = vec![[0; HASH_BYTES]; messages.len()];
        S::hash_many(&messages, &mut hashes);

        let mut hashes = hashes.into_iter();
        for (number, encoding) in numbers.iter().zip(all) {
            let is_embedded = encoding.len() < S::EMBED_BELOW;
            let hash = if is_embedded { None } else { hashes.next().map(B256::new) };
            let reference = hash.map_or_else(|| Reference::embedded(encoding), Reference::hash);
            done.push(self.node_of(*number, hash, reference));
            if self.encodings.is_some() {
                self.keep_encodings::<S>(*number, (encoding, hash.is_some()), encodings);
            }
        }
    }

    /// The node of a plan whose encoding has this reference.
    fn node_of(&self, number: u32, hash: Option<B256>, reference: Reference) -> Child {
        let Some(hash) = hash else { return Child::Flat(reference) };
        match &self.plans[number as usize].shape {
            Shape::Leaf { .. } => Child::Leaf(hash),
            Shape::Branch { .. } => Child::Stored(hash),
            // An extension above an embedded branch has no record, whatever its length.
            Shape::Extension { branch } => match self.resolve(*branch) {
                Child::Stored(_) => Child::Stored(hash),
                _ => Child::Flat(reference),
            },
        }
    }

    /// Keeps the encoding of a node if it is hashed, and the nodes inside of an extension.
    fn keep_encodings<S: Scheme>(
        &self,
        number: u32,
        (encoding, is_hashed): (&[u8], bool),
        encodings: &mut Encodings,
    ) {
        let Plan { path, depth, shape, .. } = &self.plans[number as usize];
        if is_hashed {
            encodings.push((number, Path::new(&path[..*depth]), encoding.to_vec()));
        }
        if let Shape::Extension { branch } = shape {
            let branch = self.resolve(*branch).reference();
            S::inner_nodes(&path[*depth..], &branch, &mut |above, encoding| {
                encodings.push((number, Path::new(&path[..depth + above]), encoding.to_vec()));
            });
        }
    }

    /// Appends the encoding of a plan whose children are hashed.
    fn encode<S: Scheme>(&self, number: u32, out: &mut Vec<u8>) {
        let Plan { path, depth, shape, .. } = &self.plans[number as usize];
        match shape {
            Shape::Leaf { value } => S::leaf(&path[*depth..], value, out),
            Shape::Extension { branch } => {
                S::extension(&path[*depth..], &self.resolve(*branch).reference(), out);
            }
            Shape::Branch { children, value } => {
                let reference = |child: Child| Some(self.resolve(child).reference());
                let references = children.map(None, reference);
                S::branch(&references, value.as_deref(), out);
            }
        }
    }

    /// A node, of a plan that is hashed.
    pub(crate) fn resolve(&self, child: Child) -> Child {
        match child {
            Child::Planned(number) => self.done[number as usize].expect("the plan is hashed"),
            known => known,
        }
    }

    /// The root of a trie whose topmost node is hashed, and the encoding of this node if it is so
    /// short that it would be embedded.
    pub(crate) fn root<S: Scheme>(&self, top: Option<Child>) -> (B256, Option<Vec<u8>>) {
        let Some(top) = top else { return (S::EMPTY_ROOT, None) };
        let reference = self.resolve(top).reference();
        match reference.as_hash() {
            Some(hash) => (hash, None),
            None => (S::hash(reference.as_bytes()), Some(reference.as_bytes().to_vec())),
        }
    }

    /// The records of plans that are hashed, children before their parents. The plans lose their
    /// paths.
    pub(crate) fn take_records(&mut self, plans: Range<usize>) -> Vec<(Path, Record)> {
        let mut records = Vec::with_capacity(plans.len());
        for number in plans {
            let path = std::mem::take(&mut self.plans[number].path);
            let Plan { depth, shape, .. } = &self.plans[number];
            match (shape, self.done[number]) {
                (Shape::Branch { children, value }, Some(Child::Stored(_))) => {
                    let recorded = |child: Child| self.resolve(child).recorded();
                    let recorded = children.map(RecordedChild::None, recorded);
                    let record = BranchRecord::new(&recorded, value.is_some());
                    records.push((path, Record::Branch(record)));
                }
                (Shape::Extension { branch }, Some(Child::Stored(_))) => {
                    let hash = self.resolve(*branch).reference().as_hash();
                    let hash = hash.expect("a branch with a record has a hash");
                    let digits = Path::new(&path[*depth..]);
                    let link = LinkRecord { digits, hash };
                    records.push((Path::new(&path[..*depth]), Record::Link(link)));
                }
                _ => {}
            }
        }
        records
    }

    /// The encodings that were kept of plans.
    pub(crate) fn encodings_of(&self, plans: &Range<usize>) -> Vec<(Path, Vec<u8>)> {
        let all = self.encodings.iter().flatten();
        let own = all.filter(|(number, ..)| plans.contains(&(*number as usize)));
        own.map(|(_, path, encoding)| (path.clone(), encoding.clone())).collect()
    }

    /// Forgets all plans. Children that name them must have been resolved.
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.levels.is_empty(), "all plans were hashed");
        self.plans.clear();
        self.done.clear();
    }
}

//! Making of proofs: a computation runs on a view of the tree that records what it loads.
//!
//! The view is a tree whose [`Source`] is the tree itself. Each child gets a number when its parent
//! is loaded, and is a link to that number. So each loaded child is recorded at its own path,
//! however the tree shares it.
//!
//! A verifier runs the same code on the recorded parts. The code loads the nodes that it decides
//! by: a lookup loads the inodes on the way, the last of which shows that a step is absent; a
//! removal loads all inodes that it may have to merge; a page of a list loads the inodes that it
//! counts; the length loads the first one.

use terrane_io::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::base::address::{Address, Extent, Link};
use crate::base::error::Result;
use crate::base::hash::Hash;
use crate::base::hashing::BRANCHING_MAX;
use crate::object::entries::{Entries, Stored};
use crate::object::inner::Inner;
use crate::object::record::{Record, RecordBody};
use crate::proof::proof::{
    ExtenderProof, InodeProof, InodeTree, NESTING_MAX, Proof, ProofEntry, ProofError, ProofTree,
    kinded,
};
use crate::tree::digest::spot_hash;
use crate::tree::fold::Fold;
use crate::tree::node::{Child, EntriesRef, Env, InnerRef, Node, Shape, Source, Spot};
use crate::tree::tree::{Kind, Tree, empty_dir};
use crate::tree::walk;

/// Upper bound of the values and directories of a target that is proven as a whole; a proof of more
/// exceeds the default limits of a verifier.
const RAW_PARTS_MAX: u64 = 1 << 22;

/// Part of the target that a proof of one path shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Hash of the target.
    Hole,
    /// The whole target.
    Raw,
}

/// Runs `f` on `tree`; returns the proof of what `f` read and changed, and the result of `f`.
///
/// `f` must be deterministic: the verifier runs it again.
///
/// Cost: that of `f`, and the memory of what it looks at. The tree is hashed before, and the one
/// that `f` gives after.
///
/// # Errors
/// The error of `f`; [`TooDeep`](ProofError::TooDeep).
pub fn produce_tree_proof<R>(
    tree: &Tree,
    f: impl FnOnce(Tree) -> Result<(Tree, R)>,
) -> std::result::Result<(Proof, R), ProofError> {
    let before = kinded(tree);
    let hash = before.hash;

    // The view loads every node through the recorder, also nodes that are in memory.
    let recorder = Arc::new(Recorder {
        env: Arc::clone(&tree.env),
        root: tree.root().clone(),
        spots: Mutex::new(vec![Noted { parent: None, item: 0, seen: Seen::Nothing }]),
    });

    let empty = before.kind == Kind::Directory && hash == tree.rules().empty_hash();
    let link = Link { extent: Recorder::extent(0), hash };
    let root = match before.kind {
        Kind::Directory if empty => empty_dir(),
        Kind::Directory => Child::DirAt(Box::new((link, OnceLock::new()))),
        Kind::Value => Child::ValueAt(Box::new(link)),
    };

    let source: Arc<dyn Source> = Arc::clone(&recorder) as Arc<dyn Source>;
    let env = Env::new(*tree.rules(), Some(source), false);
    let view = Tree::at(Arc::new(env), root, tree.pins.clone());

    // Only what `f` loads is recorded.
    let (changed, result) = f(view)?;
    let state = if empty { ProofTree::Node(Vec::new()) } else { recorder.state()? };

    Ok((Proof { before, after: kinded(&changed), state }, result))
}

/// Proves the child at one path for a verifier that knows the hash of the tree: the nodes on the
/// way with the hashes of their siblings, and the hash or all of the target.
///
/// Cost: as [`find_tree`](Tree::find_tree), and of reading the target through for
/// [`Target::Raw`].
///
/// # Errors
/// Errors of [`produce_tree_proof`], and [`LimitExceeded`](crate::Error::LimitExceeded) for a
/// target of more than 4,194,304 parts.
pub fn merkle_tree<S: AsRef<[u8]>>(
    tree: &Tree,
    path: &[S],
    target: Target,
) -> std::result::Result<Proof, ProofError> {
    let (proof, ()) = produce_tree_proof(tree, |tree| {
        let found = tree.find_tree(path)?;

        // Reading the whole target records all of it.
        if let (Some(found), Target::Raw) = (found, target) {
            found.to_value()?;
            let root: [&str; 0] = [];
            let fold = Fold { parts_max: RAW_PARTS_MAX, ..Fold::default() };
            found.fold(&root, fold, (), |_, tree, ()| tree.to_value().map(drop))?;
        }
        Ok((tree, ()))
    })?;

    Ok(proof)
}

/// Recorder of the loaded parts of a tree.
#[derive(Debug)]
struct Recorder {
    env: Arc<Env>,
    root: Child,
    /// Numbered children, by their numbers; the root is 0.
    spots: Mutex<Vec<Noted>>,
}

/// Numbered child in the tree.
#[derive(Debug)]
struct Noted {
    /// Parent, and the item or bucket there; `None` for the root.
    parent: Option<Arc<Node>>,
    item: usize,
    seen: Seen,
}

#[derive(Debug, Clone)]
enum Seen {
    Nothing,
    Value(Arc<[u8]>),
    /// Loaded node. The numbers of its items, or of its buckets that are not empty, begin with
    /// `first`.
    Node {
        node: Arc<Node>,
        record: Arc<Record>,
        first: usize,
    },
}

impl Source for Recorder {
    fn record(&self, link: &Link) -> Result<Arc<Record>> {
        let number = Self::number(link);
        let mut spots = self.lock();
        // A second load gives the same record, so that a child has one number.
        if let Seen::Node { record, .. } = &spots[number].seen {
            return Ok(Arc::clone(record));
        }

        // The children get numbers now, so that each is a link to follow.
        let node = self.load_node(&spots[number])?;

        let first = spots.len();
        debug_assert!(number < first, "parents are numbered before their children");
        let item = |item| Noted { parent: Some(Arc::clone(&node)), item, seen: Seen::Nothing };
        let record = match node.shape() {
            Shape::Entries(entries) => {
                spots.extend((0..entries.len()).map(item));
                debug_assert_eq!(spots.len(), first + entries.len(), "a number for each entry");
                self.entries_record(entries, node.height(), first)
            }
            Shape::Inner(inner) => {
                spots.extend(filled(inner).map(|(bucket, _)| item(bucket)));
                inner_record(inner, node.height(), first)
            }
        };

        let record = Arc::new(record);
        spots[number].seen = Seen::Node { record: Arc::clone(&record), first, node };

        Ok(record)
    }

    fn value(&self, link: &Link) -> Result<Arc<[u8]>> {
        let number = Self::number(link);
        let mut spots = self.lock();
        if let Seen::Value(bytes) = &spots[number].seen {
            return Ok(Arc::clone(bytes));
        }

        let bytes = self.spot(&spots[number]).value(&self.env)?;
        let bytes: Arc<[u8]> = bytes.expect("the link is of a value").into();
        spots[number].seen = Seen::Value(Arc::clone(&bytes));
        Ok(bytes)
    }
}

/// Inode with buckets, or extender.
enum Inodes {
    Tree(InodeProof),
    Chain(ExtenderProof),
}

/// Returns the buckets that are not empty, and their hashes.
fn filled(inner: InnerRef<'_>) -> impl Iterator<Item = (usize, Hash)> + '_ {
    let hash = move |bucket| inner.bucket_hash(bucket).map(|hash| (bucket, hash));
    (0..BRANCHING_MAX as usize).filter_map(hash)
}

fn inner_record(inner: InnerRef<'_>, height: u16, first: usize) -> Record {
    let mut record = Inner::new(inner.depth(), inner.count(), inner.inner().len());
    for (number, (bucket, hash)) in (first..).zip(filled(inner)) {
        record.insert(bucket, None);
        record.settle(bucket, &Link { extent: Recorder::extent(number), hash });
    }
    Record { height, body: RecordBody::Inner(record) }
}

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.spots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an extent that stands for a number. Parents are numbered before their children, so
    /// their addresses are higher.
    fn extent(number: usize) -> Extent {
        let number = u32::try_from(number).expect("fewer places than addresses fit in memory");
        Extent { at: Address { chunk: 0, unit: u32::MAX - number }, bytes: 0 }
    }

    fn number(link: &Link) -> usize {
        (u32::MAX - link.extent.at.unit) as usize
    }

    /// Returns the child of a number that is not a bucket.
    fn spot<'a>(&'a self, noted: &'a Noted) -> Spot<'a> {
        match noted.parent.as_deref().map(Node::shape) {
            None => Spot::Own(&self.root),
            Some(Shape::Entries(entries)) => entries.spot(noted.item),
            Some(Shape::Inner(_)) => unreachable!("buckets hold no values"),
        }
    }

    fn load_node(&self, noted: &Noted) -> Result<Arc<Node>> {
        let node = match noted.parent.as_deref().map(Node::shape) {
            Some(Shape::Inner(inner)) => inner.fetch(&self.env, noted.item)?,
            _ => walk::dir(&self.env, self.spot(noted))?,
        };
        Ok(node.expect("the link is of a node"))
    }

    fn entries_record(&self, entries: EntriesRef<'_>, height: u16, first: usize) -> Record {
        let entry = |item| {
            let spot = entries.spot(item);
            let link =
                Link { extent: Self::extent(first + item), hash: spot_hash(&self.env, spot) };
            let stored = if spot.is_value() { Stored::Value(link) } else { Stored::Dir(link) };
            (entries.step(item), stored)
        };
        let list: Vec<_> = (0..entries.len()).map(entry).collect();
        let record = Entries::new(entries.is_leaf(), &list);
        Record { height, body: RecordBody::Entries(record) }
    }

    fn state(&self) -> std::result::Result<ProofTree, ProofError> {
        self.tree(&self.lock(), 0, 0)
    }

    /// Returns the recorded part of a child that is not a bucket.
    fn tree(
        &self,
        spots: &[Noted],
        number: usize,
        nesting: usize,
    ) -> std::result::Result<ProofTree, ProofError> {
        debug_assert!(nesting <= NESTING_MAX, "deeper parts were refused above");
        let noted = &spots[number];
        let (node, first) = match &noted.seen {
            Seen::Value(bytes) => return Ok(ProofTree::Value(bytes.to_vec())),
            Seen::Node { node, first, .. } => (node, *first),
            Seen::Nothing => {
                let spot = self.spot(noted);
                if noted.parent.is_none() && spot.is_value() {
                    // The bytes show that the root is a value; its hash alone does not.
                    let bytes = spot.value(&self.env)?;
                    return Ok(ProofTree::Value(bytes.expect("the root is a value")));
                }
                let hash = spot_hash(&self.env, spot);
                let blind =
                    if spot.is_value() { ProofTree::BlindedValue } else { ProofTree::BlindedNode };
                return Ok(blind(hash));
            }
        };

        match node.shape() {
            Shape::Entries(entries) => {
                Ok(ProofTree::Node(self.entries(spots, entries, first, nesting)?))
            }
            Shape::Inner(inner) => Ok(match self.inner(spots, inner, first, nesting)? {
                Inodes::Tree(tree) => ProofTree::Inode(tree),
                Inodes::Chain(chain) => ProofTree::Extender(chain),
            }),
        }
    }

    fn entries(
        &self,
        spots: &[Noted],
        entries: EntriesRef<'_>,
        first: usize,
        nesting: usize,
    ) -> std::result::Result<Vec<ProofEntry>, ProofError> {
        if nesting >= NESTING_MAX {
            return Err(ProofError::TooDeep);
        }
        let entry =
            |item| Ok((entries.step(item).into(), self.tree(spots, first + item, nesting + 1)?));
        (0..entries.len()).map(entry).collect()
    }

    /// Returns the recorded inode with buckets, or the extender that it begins.
    fn inner(
        &self,
        spots: &[Noted],
        inner: InnerRef<'_>,
        first: usize,
        nesting: usize,
    ) -> std::result::Result<Inodes, ProofError> {
        if nesting >= NESTING_MAX {
            return Err(ProofError::TooDeep);
        }

        let mut proofs = Vec::new();
        for (number, (bucket, hash)) in (first..).zip(filled(inner)) {
            let below = match &spots[number].seen {
                Seen::Node { node, first, .. } => match node.shape() {
                    Shape::Entries(entries) => {
                        InodeTree::Values(self.entries(spots, entries, *first, nesting + 1)?)
                    }
                    Shape::Inner(inner) => match self.inner(spots, inner, *first, nesting + 1)? {
                        Inodes::Tree(tree) => InodeTree::Tree(tree),
                        Inodes::Chain(chain) => InodeTree::Extender(chain),
                    },
                },
                Seen::Nothing | Seen::Value(_) => InodeTree::BlindedInode(hash),
            };
            proofs.push((bucket as u8, below));
        }

        // One bucket: the inode is a link of an extender, merged with the extender below it.
        debug_assert!(proofs.len() <= BRANCHING_MAX as usize, "a proof for each bucket at most");
        let length = inner.count();
        if proofs.len() != 1 {
            return Ok(Inodes::Tree(InodeProof { length, proofs }));
        }
        let mut segment = Vec::new();
        let mut proof = InodeTree::Values(Vec::new());

        for (bucket, below) in proofs {
            segment.push(bucket);
            proof = below;
        }

        if let InodeTree::Extender(chain) = proof {
            segment.extend(chain.segment);
            proof = *chain.proof;
        }

        debug_assert!(!segment.is_empty(), "a chain has an index");
        Ok(Inodes::Chain(ExtenderProof { length, segment, proof: Box::new(proof) }))
    }
}

//! Export: the objects of one commit or several in the order of a
//! [snapshot](crate::snapshot::snapshot), children before parents, each distinct one once; to a
//! stream, or directly into a new store.
//!
//! The commits are checked out, so no collection removes them. Memory: their root directories, one
//! path of a tree, and the hash of each written object.

use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::BRANCHING_MAX;
use crate::pack::commit::Commit;
use crate::snapshot::snapshot::{
    BasePosition, Bound, CommitElement, Element, Elements, Header, InnerElement, Snapshot,
    StreamWriter,
};
use crate::store::context::Context;
use crate::store::history::parents_first;
use crate::store::inner::StoreInner;
use crate::store::reader::StoreReader;
use crate::store::store::Store;
use crate::tree::node::{Child, Content, EntriesRef, Env, InnerRef, Node, Shape, Spot};

/// Commits to export, checked out so that no collection removes them.
pub(crate) struct ExportSource {
    pub(crate) header: Header,
    env: Arc<Env>,
    /// Parents come before children.
    commits: Vec<(Commit, Context)>,
    base: Option<Context>,
}

impl ExportSource {
    /// Checks out commits, given in any order, and the base.
    ///
    /// # Errors
    /// [`UnknownCommit`](Error::UnknownCommit), [`NothingToExport`](Error::NothingToExport) without
    /// commits, [`LimitExceeded`](Error::LimitExceeded) for more than a head can count.
    pub(crate) fn open(inner: &StoreInner, hashes: &[Hash], base: Option<&Hash>) -> Result<Self> {
        let checkout =
            |hash: &Hash| inner.checkout(hash)?.ok_or(Error::UnknownCommit { hash: *hash });

        let mut commits = Vec::with_capacity(hashes.len());
        let mut seen = FastMap::default();
        for hash in hashes {
            if seen.insert(*hash, ()).is_none() {
                let context = checkout(hash)?;
                commits.push((inner.commit_of(hash)?, context));
            }
        }

        // Parents first, so that an import keeps the order of the pack.
        let parents = |(commit, _): &(Commit, Context)| (commit.hash, commit.parents.clone());
        let order = parents_first(&commits.iter().map(parents).collect::<Vec<_>>());
        let mut commits: Vec<_> = commits.into_iter().map(Some).collect();
        let commits: Vec<_> = order.into_iter().filter_map(|at| commits[at].take()).collect();

        let Some((last, _)) = commits.last() else { return Err(Error::NothingToExport) };
        let limit = u64::from(u32::MAX);
        let count = u32::try_from(commits.len());
        let count = count.map_err(|_| Error::LimitExceeded { limit, unit: "commits" })?;
        let rules = inner.env.rules;
        let header = Header { rules, commit: last.hash, base: base.copied(), commits: count };
        let base = base.map(checkout).transpose()?;
        Ok(Self { header, env: Arc::clone(&inner.env), commits, base })
    }

    /// Returns the hashes of the commits, parents before children.
    pub(crate) fn commits(&self) -> Vec<Hash> {
        self.commits.iter().map(|(commit, _)| commit.hash).collect()
    }

    /// Writes all elements; returns their number.
    pub(crate) fn elements(self, out: &mut dyn Elements) -> Result<u64> {
        let base = match &self.base {
            Some(base) => root(base)?.map(|node| BaseSpot::new(node, None)),
            None => None,
        };

        let mut exporter = Exporter {
            env: &self.env,
            out,
            count: 0,
            written: FastMap::default(),
            base_numbers: FastMap::default(),
            stack: Vec::new(),
        };

        // Each context is dropped with the nodes that its export loaded.
        for (commit, context) in self.commits {
            let root = match root(&context)? {
                Some(node) => Some(exporter.tree(node, base.clone())?),
                None => None,
            };

            let Commit { parents, date, author, message, hash, .. } = commit;
            let commit = CommitElement { root, parents, date, author, message };
            exporter.put(&hash, Element::Commit(commit))?;
        }

        Ok(exporter.count as u64)
    }

    fn stream(self, out: &mut dyn Write) -> Result<Snapshot> {
        let commit = self.header.commit;
        let commits = self.commits();
        let mut stream = StreamWriter::begin(out, &self.header)?;
        let elements = self.elements(&mut stream)?;
        Ok(Snapshot { commit, commits, elements, bytes: stream.end()? })
    }
}

/// Returns the root directory of a commit; `None` if it is empty.
fn root(context: &Context) -> Result<Option<Arc<Node>>> {
    match context.tree().root() {
        // The empty directory is never stored.
        Child::Dir(node) if node.count() == 0 => Ok(None),
        Child::Dir(node) => Ok(Some(Arc::clone(node))),
        _ => Err(Error::NotADirectory),
    }
}

/// Directory or inode of the base, at the path of one that is exported.
struct BaseSpot {
    node: Arc<Node>,
    above: Option<(Rc<BaseSpot>, BaseStep)>,
}

/// Step from a directory or an inode of the base to its child.
enum BaseStep {
    Step(Box<[u8]>),
    Bucket(u8),
}

impl BaseSpot {
    fn new(node: Arc<Node>, above: Option<(Rc<BaseSpot>, BaseStep)>) -> Rc<Self> {
        Rc::new(Self { node, above })
    }

    /// Returns the directory at a step.
    fn below(self: &Rc<Self>, env: &Env, step: &[u8]) -> Result<Option<Rc<Self>>> {
        let Some(spot) = self.node.locate(env, step)? else { return Ok(None) };
        let below = crate::tree::walk::dir(env, spot)?;
        Ok(below.map(|node| Self::new(node, Some((Rc::clone(self), BaseStep::Step(step.into()))))))
    }

    /// Returns the inode of a bucket.
    fn bucket(self: &Rc<Self>, env: &Env, depth: u8, bucket: usize) -> Result<Option<Rc<Self>>> {
        let Shape::Inner(inner) = self.node.shape() else { return Ok(None) };
        // Inodes of other depths divide the steps otherwise, so their buckets do not correspond.
        if inner.depth() != depth {
            return Ok(None);
        }

        let above = || Some((Rc::clone(self), BaseStep::Bucket(bucket as u8)));
        Ok(inner.fetch(env, bucket)?.map(|node| Self::new(node, above())))
    }

    /// Returns whether the base has the same object at a step.
    fn keeps(&self, env: &Env, step: &[u8], stored: Content<'_>) -> Result<bool> {
        let found = self.node.locate(env, step)?.map(Spot::content);
        Ok(match (found, stored) {
            (Some(Content::ValueAt(ours)), Content::ValueAt(link))
            | (Some(Content::DirAt(ours)), Content::DirAt(link)) => ours.hash == link.hash,
            _ => false,
        })
    }

    /// Returns the hash of the inode of a bucket.
    fn bucket_hash(&self, depth: u8, bucket: usize) -> Option<Hash> {
        match self.node.shape() {
            Shape::Inner(inner) if inner.depth() == depth => inner.bucket_hash(bucket),
            _ => None,
        }
    }
}

/// Open directory or inode of the export.
struct OpenNode {
    node: Arc<Node>,
    /// Directory of the base at the same path.
    dir: Option<Rc<BaseSpot>>,
    /// Inode of the base at the same position in the directory.
    inode: Option<Rc<BaseSpot>>,
    /// Next item, or bucket.
    next: usize,
    entries: Vec<(Box<[u8]>, Bound)>,
    /// Finished buckets, and those of them that the base has.
    mask: u32,
    kept: u32,
    below: Vec<usize>,
}

impl OpenNode {
    fn new(node: Arc<Node>, dir: Option<Rc<BaseSpot>>, inode: Option<Rc<BaseSpot>>) -> Self {
        let entries = Vec::new();
        let below = Vec::new();
        Self { node, dir, inode, next: 0, entries, mask: 0, kept: 0, below }
    }

    /// Takes the number of the child that had to be exported first.
    fn take(&mut self, number: usize) {
        match self.node.shape() {
            Shape::Entries(entries) => {
                self.entries.push((entries.step(self.next).into(), Bound::Dir(number)));
            }
            Shape::Inner(_) => {
                debug_assert_eq!(self.mask & 1 << self.next, 0, "a bucket is exported once");
                self.mask |= 1 << self.next;
                self.below.push(number);
            }
        }
        self.next += 1;
    }
}

struct Exporter<'a> {
    env: &'a Env,
    out: &'a mut dyn Elements,
    count: usize,
    /// Numbers of written objects: whether each is a value, and its hash.
    written: FastMap<(bool, Hash), usize>,
    /// Numbers of the elements of directories and inodes of the base, by their hashes.
    base_numbers: FastMap<Hash, usize>,
    stack: Vec<OpenNode>,
}

/// Returns the hash of a loaded node.
fn hash_of(node: &Node) -> Hash {
    *node.hash.get().expect("what is stored has a hash")
}

impl Exporter<'_> {
    fn put(&mut self, hash: &Hash, element: Element) -> Result<usize> {
        self.out.element(hash, element)?;
        self.count += 1;
        Ok(self.count - 1)
    }

    /// Exports the root directory; returns its number.
    fn tree(&mut self, node: Arc<Node>, base: Option<Rc<BaseSpot>>) -> Result<usize> {
        // An earlier commit has the whole tree.
        if let Some(number) = self.written.get(&(false, hash_of(&node))) {
            return Ok(*number);
        }

        // Equal hashes: the base has the whole tree.
        if let Some(base) = base.as_ref().filter(|base| hash_of(&base.node) == hash_of(&node)) {
            return self.base(base);
        }

        // Post-order with a list: a path may have more nodes than a thread has stack for.
        self.stack.push(OpenNode::new(node, base.clone(), base));
        loop {
            let mut open = self.stack.pop().expect("the root is the last to go");
            let node = Arc::clone(&open.node);
            let below = match node.shape() {
                Shape::Entries(entries) => self.entries(&mut open, entries)?,
                Shape::Inner(inner) => self.inner(&mut open, inner)?,
            };

            if let Some(below) = below {
                self.stack.extend([open, below]);
                continue;
            }

            let number = self.node(open)?;
            match self.stack.last_mut() {
                Some(above) => above.take(number),
                None => return Ok(number),
            }
        }
    }

    /// Exports entries up to a directory that must be exported first.
    fn entries(
        &mut self,
        open: &mut OpenNode,
        entries: EntriesRef<'_>,
    ) -> Result<Option<OpenNode>> {
        while open.next < entries.len() {
            let step = entries.step(open.next);
            let spot = entries.spot(open.next);
            let stored = spot.content();

            let bound = match stored {
                Content::Inline(bytes) => Bound::Inline(bytes.to_vec()),
                _ if self.is_kept(open, step, stored)? => Bound::Kept,
                Content::ValueAt(link) => Bound::Value(self.value(spot, link.hash)?),
                Content::DirAt(link) => match self.written.get(&(false, link.hash)) {
                    Some(number) => Bound::Dir(*number),
                    None => return self.below(open, step, spot),
                },
                Content::Value(_) | Content::Dir(_) | Content::Blinded { .. } => {
                    unreachable!("a commit is stored")
                }
            };

            open.entries.push((step.into(), bound));

            open.next += 1;
        }

        Ok(None)
    }

    fn is_kept(&self, open: &OpenNode, step: &[u8], stored: Content<'_>) -> Result<bool> {
        open.dir.as_ref().map_or(Ok(false), |dir| dir.keeps(self.env, step, stored))
    }

    fn below(&self, open: &OpenNode, step: &[u8], spot: Spot<'_>) -> Result<Option<OpenNode>> {
        let base = match &open.dir {
            Some(dir) => dir.below(self.env, step)?,
            None => None,
        };
        let node = crate::tree::walk::dir(self.env, spot)?;
        Ok(node.map(|node| OpenNode::new(node, base.clone(), base)))
    }

    fn value(&mut self, spot: Spot<'_>, hash: Hash) -> Result<usize> {
        // A value at several paths is written once.
        if let Some(number) = self.written.get(&(true, hash)) {
            return Ok(*number);
        }
        let bytes = spot.value(self.env)?.unwrap_or_default();
        let number = self.put(&hash, Element::Value(bytes))?;
        self.written.insert((true, hash), number);
        Ok(number)
    }

    /// Exports buckets up to an inode that must be exported first.
    fn inner(&mut self, open: &mut OpenNode, inner: InnerRef<'_>) -> Result<Option<OpenNode>> {
        while open.next < BRANCHING_MAX as usize {
            let bucket = open.next;
            if let Some(hash) = inner.bucket_hash(bucket) {
                // Kept from the base, written before, or to be exported first.
                let base = open.inode.as_ref();
                if base.and_then(|base| base.bucket_hash(inner.depth(), bucket)) == Some(hash) {
                    open.mask |= 1 << bucket;
                    open.kept |= 1 << bucket;
                } else if let Some(number) = self.written.get(&(false, hash)) {
                    open.mask |= 1 << bucket;
                    open.below.push(*number);
                } else if let Some(node) = inner.fetch(self.env, bucket)? {
                    let inode = match base {
                        Some(base) => base.bucket(self.env, inner.depth(), bucket)?,
                        None => None,
                    };
                    return Ok(Some(OpenNode::new(node, open.dir.clone(), inode)));
                }
            }

            open.next += 1;
        }

        Ok(None)
    }

    /// Writes a node whose children have numbers.
    fn node(&mut self, open: OpenNode) -> Result<usize> {
        let hash = hash_of(&open.node);
        let element = match open.node.shape() {
            Shape::Entries(entries) => {
                debug_assert_eq!(open.entries.len(), entries.len(), "each entry was exported once");
                let keeps = open.entries.iter().any(|(_, bound)| *bound == Bound::Kept);
                let base = self.base_of(open.dir.as_ref().filter(|_| keeps))?;
                Element::Entries { leaf: entries.is_leaf(), base, entries: open.entries }
            }
            Shape::Inner(inner) => {
                debug_assert_eq!(
                    (open.mask & !open.kept).count_ones() as usize,
                    open.below.len(),
                    "each bucket that is not kept has a number"
                );
                debug_assert_eq!(open.kept & !open.mask, 0, "kept buckets are there");
                debug_assert!(
                    open.below.iter().all(|number| *number < self.count),
                    "elements refer to earlier ones"
                );
                let base = self.base_of(open.inode.as_ref().filter(|_| open.kept != 0))?;
                Element::Inner(InnerElement {
                    base,
                    depth: inner.depth(),
                    count: inner.count(),
                    mask: open.mask,
                    kept: open.kept,
                    below: open.below,
                })
            }
        };

        let number = self.put(&hash, element)?;
        self.written.insert((false, hash), number);

        Ok(number)
    }

    fn base_of(&mut self, base: Option<&Rc<BaseSpot>>) -> Result<Option<usize>> {
        base.map(|base| self.base(base)).transpose()
    }

    /// Returns the number of a directory or inode of the base; writes elements for it and its
    /// ancestors if they have none.
    fn base(&mut self, base: &Rc<BaseSpot>) -> Result<usize> {
        let mut path = Vec::new();
        let mut known = None;
        let mut next = Some(base);
        while let Some(spot) = next {
            known = self.base_numbers.get(&hash_of(&spot.node)).copied();
            if known.is_some() {
                break;
            }
            path.push(spot);
            next = spot.above.as_ref().map(|(above, _)| above);
        }

        // From the root of the base down: an element refers to its parent's.
        let mut number = known.unwrap_or(0);
        for spot in path.into_iter().rev() {
            let position = match &spot.above {
                None => BasePosition::Root,
                Some((_, BaseStep::Step(step))) => BasePosition::Step(number, step.clone()),
                Some((_, BaseStep::Bucket(bucket))) => BasePosition::Bucket(number, *bucket),
            };
            let hash = hash_of(&spot.node);
            number = self.put(&hash, Element::Base(position))?;
            self.base_numbers.insert(hash, number);
        }

        debug_assert!(number < self.count, "the element was written");
        Ok(number)
    }
}

impl Store {
    /// Exports a commit with its tree to a stream, while commits and a collection go on: its
    /// objects in post-order, each distinct one once. The same commit gives the same bytes from any
    /// store.
    ///
    /// Cost: one read for each directory, inode and value of more than 48 bytes that is not in
    /// memory; memory for the hash of each. Writes are small: give it a buffered stream.
    ///
    /// # Errors
    /// [`UnknownCommit`](Error::UnknownCommit), [`Stream`](Error::Stream), [`Disk`](Error::Disk),
    /// [`Corrupt`](Error::Corrupt), [`Index`](Error::Index).
    pub fn export(&self, commit: &Hash, out: &mut dyn Write) -> Result<Snapshot> {
        self.export_commits(&[*commit], out)
    }

    /// Exports the objects that a commit has and an older commit, `base`, lacks at the same path,
    /// for stores that have `base`. Moved objects are written again.
    ///
    /// Cost: one read for each directory and inode in which the two differ, twice.
    ///
    /// # Errors
    /// Errors of [`export`](Self::export).
    pub fn export_since(
        &self,
        base: &Hash,
        commit: &Hash,
        out: &mut dyn Write,
    ) -> Result<Snapshot> {
        self.export_commits_since(base, &[*commit], out)
    }

    /// Exports several commits to one stream, parents before children and otherwise in the order
    /// given: the first one whole, then of each commit the objects that no commit before it has.
    /// An import makes all of them or none.
    ///
    /// Cost: that of an export of the first commit; of each other one read for each directory,
    /// inode and long value that no commit before it has. Memory for the hash of each object, and
    /// for the root directory of each commit.
    ///
    /// # Errors
    /// Errors of [`export`](Self::export), and [`NothingToExport`](Error::NothingToExport) for no
    /// commits.
    pub fn export_commits(&self, commits: &[Hash], out: &mut dyn Write) -> Result<Snapshot> {
        ExportSource::open(&self.inner, commits, None)?.stream(out)
    }

    /// Exports several commits like [`export_commits`](Self::export_commits), without the objects
    /// that an older commit, `base`, has at the same path, for stores that have `base`.
    ///
    /// Cost: that of [`export_since`](Self::export_since) for each commit.
    ///
    /// # Errors
    /// Errors of [`export_commits`](Self::export_commits).
    pub fn export_commits_since(
        &self,
        base: &Hash,
        commits: &[Hash],
        out: &mut dyn Write,
    ) -> Result<Snapshot> {
        ExportSource::open(&self.inner, commits, Some(base))?.stream(out)
    }

    /// Exports the commits [between](Self::commits_between) `from` and `to`, with `to` and without
    /// `from`, for stores that have `from`.
    ///
    /// Cost: that of [`commits_between`](Self::commits_between) and of
    /// [`export_commits_since`](Self::export_commits_since).
    ///
    /// # Errors
    /// Errors of [`export_commits`](Self::export_commits); nothing is exported if `to` is `from` or
    /// an ancestor.
    pub fn export_range(&self, from: &Hash, to: &Hash, out: &mut dyn Write) -> Result<Snapshot> {
        range(&self.inner, from, to)?.stream(out)
    }
}

/// Checks out the commits of a range, with its beginning as the base.
fn range(inner: &StoreInner, from: &Hash, to: &Hash) -> Result<ExportSource> {
    let between = inner.commits_between(from, to)?.commits;
    let commits: Vec<Hash> = between.iter().rev().map(|commit| commit.hash).collect();
    ExportSource::open(inner, &commits, Some(from))
}

impl StoreReader {
    /// Exports like [`Store::export`] a commit that exists now. A collection may remove it
    /// meanwhile.
    ///
    /// # Errors
    /// Errors of [`Store::export`], and [`Collected`](Error::Collected).
    pub fn export(&self, commit: &Hash, out: &mut dyn Write) -> Result<Snapshot> {
        self.export_commits(&[*commit], out)
    }

    /// Exports like [`Store::export_since`] commits that exist now.
    ///
    /// # Errors
    /// Errors of [`export`](Self::export).
    pub fn export_since(
        &self,
        base: &Hash,
        commit: &Hash,
        out: &mut dyn Write,
    ) -> Result<Snapshot> {
        self.export_commits_since(base, &[*commit], out)
    }

    /// Exports like [`Store::export_commits`] commits that exist now.
    ///
    /// # Errors
    /// Errors of [`Store::export_commits`], and [`Collected`](Error::Collected).
    pub fn export_commits(&self, commits: &[Hash], out: &mut dyn Write) -> Result<Snapshot> {
        self.sync()?;
        ExportSource::open(&self.inner, commits, None)?.stream(out)
    }

    /// Exports like [`Store::export_commits_since`] commits that exist now.
    ///
    /// # Errors
    /// Errors of [`export_commits`](Self::export_commits).
    pub fn export_commits_since(
        &self,
        base: &Hash,
        commits: &[Hash],
        out: &mut dyn Write,
    ) -> Result<Snapshot> {
        self.sync()?;
        ExportSource::open(&self.inner, commits, Some(base))?.stream(out)
    }

    /// Exports like [`Store::export_range`] commits that exist now.
    ///
    /// # Errors
    /// Errors of [`export_commits`](Self::export_commits).
    pub fn export_range(&self, from: &Hash, to: &Hash, out: &mut dyn Write) -> Result<Snapshot> {
        self.sync()?;
        range(&self.inner, from, to)?.stream(out)
    }
}

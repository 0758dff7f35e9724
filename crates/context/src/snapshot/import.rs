//! Import: the objects of a [snapshot](crate::snapshot::snapshot), verified as they arrive, written
//! to a store, and made commits after the last one is verified.
//!
//! Every element must have the hash in the stream, be of the one shape that its steps have under
//! the rules, and be used by a later element. Written objects are garbage until the commits are
//! written, all with one frame. A new store has a file `importing` until then, and is not opened
//! while the file exists.
//!
//! Memory: 1 MiB or one element, and 128 bytes for each element, for inodes also one step; for as
//! many elements at most as [`Options`] say. Commits wait in memory, up to the size of a frame.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use terrane_io::files::create_dirs;
use terrane_io::sync::{Arc, MutexGuard, TryLockError};
use terrane_io::{Access, Disk, OpenMode};

use crate::base::address::{Extent, Link};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::{HASH_BYTES, Hash};
use crate::base::hashing::{CommitInfo, INODE_DEPTH_MAX, Preimages, Rules, VALUE_BYTES_MAX};
use crate::base::lock::lock;
use crate::base::path::HEIGHT_MAX;
use crate::object::entries::{INLINE_BYTES_MAX, Stored};
use crate::object::inner::Inner;
use crate::object::record::{VALUE, put_entries};
use crate::pack::archive::NEW_SUFFIX;
use crate::pack::chunk::chunk_number;
use crate::pack::commit::Commit;
use crate::pack::control::{CONTROL, Indexing};
use crate::pack::frame::FRAME_BYTES_MAX;
use crate::pack::locations::INDEX;
use crate::snapshot::export::ExportSource;
use crate::snapshot::snapshot::{
    BasePosition, Bound, CommitElement, Element, Elements, Header, InnerElement, Snapshot,
    StreamReader,
};
use crate::store::context::Context;
use crate::store::options::Options;
use crate::store::reader::StoreReader;
use crate::store::store::{IMPORTING, Store, check_branch_name, enter, take_lock};
use crate::tree::encode::Sink;
use crate::tree::node::{Child, Content, Env, Node, Shape, Spot};

/// Bytes of elements that one frame collects.
const BATCH_BYTES: usize = 1 << 20;

/// Imported element, without its content.
///
/// Invariant: at most 128 bytes, as [`Options::import_elements_max`] says.
#[derive(Debug)]
struct ImportedElement {
    hash: Hash,
    /// Extent, once the element is written.
    extent: Option<Extent>,
    kind: ElementKind,
    /// Lower bound of the levels of directories from here down.
    height: u16,
    /// Whether the element is an object of the base, in which kept children are looked up.
    is_base: bool,
    is_used: bool,
}

#[derive(Debug, Clone)]
enum ElementKind {
    Value,
    Flat,
    /// `shared`: depth down to which all steps have the same buckets; `step`: one of them.
    Leaf {
        count: u64,
        shared: u8,
        step: Box<[u8]>,
    },
    Inner {
        depth: u8,
        count: u64,
        step: Box<[u8]>,
    },
    /// Nothing refers to it.
    Commit,
}

/// Verified element, to be written.
enum Ready {
    Value(Vec<u8>),
    Entries { leaf: bool, entries: Vec<(Box<[u8]>, Reference)> },
    Inner { depth: u8, count: u64, mask: u32, targets: Vec<Reference> },
}

/// Reference of a directory or an inode.
enum Reference {
    Inline(Vec<u8>),
    Element {
        is_value: bool,
        number: usize,
    },
    /// Object of the base.
    Stored {
        is_value: bool,
        link: Link,
    },
}

type Checked<T> = std::result::Result<T, Refusal>;

/// Reason to refuse an element.
enum Refusal {
    Rule(Corrupt),
    Hash,
    Other(Error),
}

impl From<Corrupt> for Refusal {
    fn from(what: Corrupt) -> Self {
        Self::Rule(what)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

fn refuse<T>(rule: &'static str, expected: u64, found: u64) -> Checked<T> {
    Err(Corrupt::rule(rule, expected, found).into())
}

pub(crate) struct Importer<'a> {
    store: &'a Store,
    header: Header,
    /// Base, checked out so that no collection removes it.
    base: Option<Context>,
    imported: Vec<ImportedElement>,
    /// Verified elements to be written, with their numbers.
    batch: Vec<(usize, Ready)>,
    batch_bytes: usize,
    /// Commits so far, each with the number of its root.
    commits: Vec<(Commit, Option<usize>)>,
    /// Their hashes, and those of their parents.
    named: HashSet<Hash>,
    /// Lower bound of the bytes of their records.
    commit_bytes: usize,
    /// Number of the first element behind the last commit. Earlier ones are all used.
    unchecked: usize,
    /// Excludes collections, which would remove objects without a commit.
    no_collection: MutexGuard<'a, ()>,
}

/// Returns the depth down to which all steps have the same buckets.
fn shared_depth(rules: &Rules, entries: &[(Box<[u8]>, Bound)]) -> u8 {
    let Some(((first, _), rest)) = entries.split_first() else { return 0 };
    let is_shared = |depth: &u8| {
        rest.iter().all(|(step, _)| rules.bucket(*depth, step) == rules.bucket(*depth, first))
    };
    (0..INODE_DEPTH_MAX).take_while(is_shared).count() as u8
}

/// Returns any step of a node of the base.
fn any_step(env: &Env, node: &Node) -> Result<Box<[u8]>> {
    let mut step = Box::default();
    node.each(env, &mut |found, _| {
        step = found.into();
        Ok(false)
    })?;
    Ok(step)
}

impl ElementKind {
    /// Returns the kind of a node of the base.
    fn of_node(env: &Env, node: &Node) -> Result<Self> {
        // The base is stored here, so its shape can be trusted.
        Ok(match node.shape() {
            Shape::Entries(entries) if entries.is_leaf() => {
                let steps: Vec<(Box<[u8]>, Bound)> = (0..entries.len())
                    .map(|item| (entries.step(item).into(), Bound::Kept))
                    .collect();
                let shared = shared_depth(&env.rules, &steps);
                Self::Leaf { count: node.count(), shared, step: any_step(env, node)? }
            }
            Shape::Entries(_) => Self::Flat,
            Shape::Inner(inner) => {
                let depth = inner.depth();
                let count = inner.count();
                Self::Inner { depth, count, step: any_step(env, node)? }
            }
        })
    }

    /// Returns whether the element is a whole directory.
    fn is_dir(&self, rules: &Rules) -> bool {
        match self {
            Self::Value | Self::Commit => false,
            Self::Flat => true,
            Self::Leaf { count, .. } => !rules.is_flat(*count) && rules.is_leaf(0, *count),
            Self::Inner { depth, count, .. } => *depth == 0 && !rules.is_flat(*count),
        }
    }

    /// Returns the count and a step of an inode that may stand at depth `at`.
    fn at_depth(&self, rules: &Rules, at: u8) -> Option<(u64, &[u8])> {
        match self {
            Self::Leaf { count, shared, step } if *shared >= at && rules.is_leaf(at, *count) => {
                Some((*count, step))
            }
            Self::Inner { depth, count, step } if *depth == at => Some((*count, step)),
            _ => None,
        }
    }
}

impl<'a> Importer<'a> {
    pub(crate) fn new(store: &'a Store, header: Header) -> Result<Self> {
        if header.rules != *store.rules() {
            return Err(Error::ConfigMismatch {
                path: store.inner.dir.clone(),
                option: "rules",
                stored: format!("{:?}", store.rules()),
                given: format!("{:?}", header.rules),
            });
        }

        // Held until the commit is written: its objects are garbage before.
        let no_collection = match store.collection.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Error::GcRunning),
        };

        let checkout = |hash| store.checkout(&hash)?.ok_or(Error::UnknownCommit { hash });
        Ok(Self {
            store,
            header,
            base: header.base.map(checkout).transpose()?,
            imported: Vec::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            commits: Vec::new(),
            named: HashSet::new(),
            commit_bytes: 0,
            unchecked: 0,
            no_collection,
        })
    }

    fn env(&self) -> &'a Env {
        &self.store.inner.env
    }

    /// Checks and keeps the element of number `own`.
    fn take(&mut self, own: usize, hash: &Hash, element: Element) -> Checked<()> {
        let promised = u64::from(self.header.commits);
        if self.commits.len() as u64 == promised {
            return refuse("nothing follows the last commit", promised, promised + 1);
        }
        match element {
            Element::Value(bytes) => self.value(own, hash, bytes),
            Element::Entries { leaf, base, entries } => {
                self.entries(own, hash, leaf, base, entries)
            }
            Element::Inner(inner) => self.inner(own, hash, inner),
            Element::Base(position) => self.base_object(hash, position),
            Element::Commit(commit) => self.commit(own, hash, commit),
        }
    }

    fn keep(
        &mut self,
        own: usize,
        bytes: usize,
        object: ImportedElement,
        ready: Ready,
    ) -> Checked<()> {
        if object.height > HEIGHT_MAX {
            return refuse(
                "levels of directories",
                u64::from(HEIGHT_MAX),
                u64::from(object.height),
            );
        }

        debug_assert_eq!(own, self.imported.len(), "elements are numbered in their order");
        self.imported.push(object);
        self.batch.push((own, ready));
        self.batch_bytes += bytes;

        // Frames of about 1 MiB bound the memory of an import.
        if self.batch_bytes >= BATCH_BYTES { Ok(self.write()?) } else { Ok(()) }
    }

    fn value(&mut self, own: usize, hash: &Hash, bytes: Vec<u8>) -> Checked<()> {
        if bytes.len() <= INLINE_BYTES_MAX || bytes.len() > VALUE_BYTES_MAX {
            return refuse("length of a value of its own", 49, bytes.len() as u64);
        }

        // The hash is checked before the bytes can reach the store.
        if self.env().rules.value_hash(&bytes) != *hash {
            return Err(Refusal::Hash);
        }
        let object = ImportedElement::new(*hash, ElementKind::Value, 0);
        self.keep(own, bytes.len(), object, Ready::Value(bytes))
    }

    /// Returns an element, and marks it as used.
    fn used(&mut self, number: usize) -> &ImportedElement {
        // Elements that no later element uses are refused at the end.
        let object = &mut self.imported[number];
        object.is_used = true;
        object
    }

    /// Loads the node of the base whose children are kept.
    fn base_node(&mut self, base: Option<usize>) -> Checked<Option<Arc<Node>>> {
        let Some(number) = base else { return Ok(None) };
        let env = self.env();
        let object = self.used(number);
        match object.extent.filter(|_| object.is_base) {
            Some(extent) => Ok(Some(env.load(&Link { extent, hash: object.hash })?)),
            None => refuse("a base is of the base", 1, 0),
        }
    }

    fn entries(
        &mut self,
        own: usize,
        hash: &Hash,
        leaf: bool,
        base: Option<usize>,
        entries: Vec<(Box<[u8]>, Bound)>,
    ) -> Checked<()> {
        let env = self.env();
        let count = entries.len() as u64;
        if count == 0 || !leaf && !env.rules.is_flat(count) {
            return refuse("number of steps", u64::from(env.rules.flat_limit), count);
        }

        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return refuse("steps ascend", pair[0].0.len() as u64, pair[1].0.len() as u64);
        }

        if base.is_some_and(|base| !self.imported[base].kind.is_dir(&env.rules)) {
            return refuse("the base of steps is a directory", 1, 0);
        }

        // Buckets of the steps, for the check of the inode above.
        let shared = if leaf { shared_depth(&env.rules, &entries) } else { 0 };
        let base = self.base_node(base)?;

        // Kept children are no higher than the node of the base.
        let mut height = base.as_ref().map_or(1, |base| base.height());

        // The hash is computed from the references, whose hashes were checked before.
        let mut preimage = Preimages::new(env.rules);
        if leaf {
            preimage.leaf(count);
        } else {
            preimage.flat(count);
        }

        let mut targets = Vec::with_capacity(entries.len());
        let mut bytes = 0;
        for (step, bound) in entries {
            let (target, hash, below) = self.target(base.as_deref(), &step, bound)?;
            let is_value = target.is_value();
            preimage.entry(leaf, &step, is_value, &hash);
            height = height.max(below + 1);
            bytes += step.len() + 80;
            targets.push((step, target));
        }

        if preimage.finish().first() != Some(hash) {
            return Err(Refusal::Hash);
        }

        let step = targets.first().map(|(step, _)| step.clone()).unwrap_or_default();
        let kind = if leaf { ElementKind::Leaf { count, shared, step } } else { ElementKind::Flat };
        let ready = Ready::Entries { leaf, entries: targets };

        self.keep(own, bytes, ImportedElement::new(*hash, kind, height), ready)
    }

    /// Returns the reference of an entry, its hash and height.
    fn target(
        &mut self,
        base: Option<&Node>,
        step: &[u8],
        bound: Bound,
    ) -> Checked<(Reference, Hash, u16)> {
        let env = self.env();
        let (number, is_value) = match bound {
            Bound::Inline(value) => {
                let hash = env.rules.value_hash(&value);
                return Ok((Reference::Inline(value), hash, 0));
            }
            Bound::Kept => return kept(env, base, step),
            Bound::Value(number) => (number, true),
            Bound::Dir(number) => (number, false),
        };

        // The kind of the element must fit the tag of the entry.
        let object = self.used(number);
        let fits = match &object.kind {
            ElementKind::Value => is_value,
            kind => !is_value && kind.is_dir(&env.rules),
        };

        if !fits {
            return refuse("kind of what a step is bound to", 1, 0);
        }

        Ok((Reference::Element { is_value, number }, object.hash, object.height))
    }

    fn inner(&mut self, own: usize, hash: &Hash, inner: InnerElement) -> Checked<()> {
        let InnerElement { base, depth, count, mask, kept, below } = inner;
        let env = self.env();
        let rules = &env.rules;
        let reach = u64::from(rules.branching.trailing_zeros());

        if depth >= INODE_DEPTH_MAX
            || mask.checked_shr(rules.branching).is_some_and(|rest| rest != 0)
        {
            return refuse("depth and buckets of an inode", reach, u64::from(mask));
        }

        if rules.is_leaf(depth, count) {
            return refuse("entries of an inode with buckets", u64::from(rules.branching), count);
        }

        let base = self.base_node(base)?;
        let mut buckets = BucketCheck { rules, depth, step: None, count: 0 };
        let mut targets = Vec::new();
        let mut height = 1;
        let mut preimage = Preimages::new(*rules);
        preimage.inner(depth, count, mask.count_ones());

        // Each bucket is one of the base, or an earlier element.
        let mut below = below.into_iter();
        for bucket in (0..32usize).filter(|bucket| mask >> bucket & 1 == 1) {
            let target = if kept >> bucket & 1 == 1 {
                let node = kept_bucket(env, base.as_deref(), depth, bucket)?;
                let kind = ElementKind::of_node(env, &node)?;
                buckets.add(bucket, &kind)?;
                height = height.max(node.height());
                let link = node.link().ok_or(Corrupt::rule("a base is stored", 1, 0))?;
                preimage.bucket(bucket, &link.hash);
                Reference::Stored { is_value: false, link }
            } else {
                let number = below.next().expect("one for each bit of the mask");
                let object = self.used(number);
                buckets.add(bucket, &object.kind)?;
                height = height.max(object.height);
                preimage.bucket(bucket, &object.hash);
                Reference::Element { is_value: false, number }
            };

            targets.push(target);
        }

        let BucketCheck { step: Some(step), count: found, .. } = buckets else {
            return refuse("buckets of an inode", 1, 0);
        };

        if found != count {
            return refuse("entries below an inode", found, count);
        }

        if preimage.finish().first() != Some(hash) {
            return Err(Refusal::Hash);
        }
        let object = ImportedElement::new(*hash, ElementKind::Inner { depth, count, step }, height);

        self.keep(own, 2048, object, Ready::Inner { depth, count, mask, targets })
    }

    fn base_object(&mut self, hash: &Hash, position: BasePosition) -> Checked<()> {
        let env = self.env();
        let link = match position {
            BasePosition::Root => match self.base.as_ref().map(|base| base.tree().root()) {
                Some(Child::Dir(node)) => node.link(),
                _ => None,
            },
            BasePosition::Step(parent, step) => {
                let is_dir = self.imported[parent].kind.is_dir(&env.rules);
                match self.base_node(Some(parent).filter(|_| is_dir))? {
                    Some(node) => match node.locate(env, &step)?.map(Spot::content) {
                        Some(Content::DirAt(link)) => Some(link),
                        _ => None,
                    },
                    None => None,
                }
            }
            BasePosition::Bucket(parent, bucket) => {
                let node = self.base_node(Some(parent))?;
                match node.as_deref().map(Node::shape) {
                    Some(Shape::Inner(inner)) if bucket < 32 => {
                        inner.fetch(env, usize::from(bucket))?.and_then(|node| node.link())
                    }
                    _ => None,
                }
            }
        };

        let Some(link) = link else { return refuse("an object is in the base", 1, 0) };
        if link.hash != *hash {
            return Err(Refusal::Hash);
        }

        let node = env.load(&link)?;
        let object = ImportedElement {
            extent: Some(link.extent),
            is_base: true,
            ..ImportedElement::new(*hash, ElementKind::of_node(env, &node)?, node.height())
        };

        self.imported.push(object);

        Ok(())
    }

    fn commit(&mut self, own: usize, hash: &Hash, commit: CommitElement) -> Checked<()> {
        let rules = self.env().rules;
        let CommitElement { root, parents, date, author, message } = commit;
        let root_hash = match root {
            Some(number) => {
                let object = self.used(number);
                if !object.kind.is_dir(&rules) {
                    return refuse("the root is a directory", 1, 0);
                }
                object.hash
            }
            None => rules.empty_hash(),
        };

        // An unused element would be garbage that the stream's sender chose.
        let unchecked = &self.imported[self.unchecked..];
        if let Some(unused) = unchecked.iter().position(|object| !object.is_used) {
            return refuse("elements that are not used", 0, (self.unchecked + unused) as u64);
        }

        let info = CommitInfo {
            root: &root_hash,
            parents: &parents,
            date,
            author: &author,
            message: &message,
        };

        if rules.commit_hash(&info) != *hash {
            return Err(Refusal::Hash);
        }

        // The hash fits the content; it must also be the commit that the head promised.
        let is_last = self.commits.len() as u64 + 1 == u64::from(self.header.commits);
        let expected = self.header.commit;
        let found = *hash;
        if is_last && found != expected {
            return Err(Error::RootMismatch { expected, found }.into());
        }

        // The searches of the history rely on the order.
        if !self.named.insert(*hash) {
            return refuse("each commit once, before its children", 1, 2);
        }
        self.named.extend(&parents);

        self.commit_bytes += (parents.len() + 1) * HASH_BYTES + author.len() + message.len();
        if self.commit_bytes > FRAME_BYTES_MAX {
            return Err(Error::CommitTooLarge { limit: FRAME_BYTES_MAX }.into());
        }
        let commit = Commit { hash: *hash, root: root_hash, parents, date, author, message };
        self.commits.push((commit, root));

        // Numbers of elements count commits too.
        debug_assert_eq!(own, self.imported.len(), "elements are numbered in their order");
        let element = ImportedElement::new(*hash, ElementKind::Commit, 0);
        self.imported.push(ImportedElement { is_used: true, ..element });
        self.unchecked = self.imported.len();

        Ok(())
    }

    fn link(&self, number: usize) -> Link {
        let object = &self.imported[number];
        Link { extent: object.extent.expect("written before what refers to it"), hash: object.hash }
    }

    /// Writes the verified elements.
    fn write(&mut self) -> Result<()> {
        let store = self.store;
        let mut writer = lock(&store.writer);
        store.check_writable(&writer)?;

        debug_assert!(!self.batch.is_empty(), "a frame has elements");
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;

        let mut written = Vec::new();
        store.write_frame(&mut writer, None, &mut |sink| {
            for (number, ready) in &batch {
                let extent = self.put(*number, ready, sink)?;
                let object = &mut self.imported[*number];
                debug_assert!(object.extent.is_none(), "an element is written once");
                object.extent = Some(extent);
                written.push((matches!(ready, Ready::Value(_)), object.hash, extent));
            }
            Ok(None)
        })?;

        if store.options.indexing == Indexing::Always {
            writer.index(written.into_iter());
        }

        Ok(())
    }

    fn put(&self, number: usize, ready: &Ready, sink: &mut dyn Sink) -> Result<Extent> {
        let ImportedElement { hash, height, .. } = self.imported[number];

        // An index of all objects may have the object already.
        if let Some(extent) = sink.known(matches!(ready, Ready::Value(_)), &hash)? {
            return Ok(extent);
        }

        match ready {
            Ready::Value(bytes) => sink.put(&mut |body| {
                body.push(VALUE);
                body.extend_from_slice(bytes);
            }),
            Ready::Entries { leaf, entries } => {
                let at = sink.next();
                sink.put(&mut |body| {
                    let entries = entries.iter();
                    let entries = entries.map(|(step, target)| (&**step, self.stored(target)));
                    put_entries(at, (*leaf, height), entries, body);
                })
            }
            Ready::Inner { depth, count, mask, targets } => {
                let at = sink.next();
                let links = targets.iter().map(|target| match target {
                    Reference::Element { number, .. } => self.link(*number),
                    Reference::Stored { link, .. } => *link,
                    Reference::Inline(_) => unreachable!("inodes refer to inodes"),
                });
                let mut inner = Inner::new(*depth, *count, targets.len());
                let buckets = (0..32).filter(|bucket| mask >> bucket & 1 == 1);
                for (bucket, link) in buckets.zip(links) {
                    inner.insert(bucket, None);
                    inner.settle(bucket, &link);
                }
                sink.put(&mut |body| {
                    inner.put(at, height, &mut std::iter::empty(), body);
                })
            }
        }
    }

    fn stored<'t>(&self, target: &'t Reference) -> Stored<'t> {
        let (is_value, link) = match target {
            Reference::Inline(bytes) => return Stored::Inline(bytes),
            Reference::Element { is_value, number } => (*is_value, self.link(*number)),
            Reference::Stored { is_value, link } => (*is_value, *link),
        };
        if is_value { Stored::Value(link) } else { Stored::Dir(link) }
    }

    /// Writes the commits durably, and sets a branch to the last one; returns all commits and the
    /// number of elements.
    pub(crate) fn finish(mut self, branch: Option<&[u8]>) -> Result<(Vec<Hash>, u64)> {
        let count = self.imported.len() as u64;
        let promised = u64::from(self.header.commits);
        let commits = std::mem::take(&mut self.commits);
        if (commits.len() as u64) < promised {
            let what = Corrupt::rule("number of commits", promised, commits.len() as u64);
            return Err(Error::UnexpectedElement { index: count, what });
        }

        if !self.batch.is_empty() {
            self.write()?;
        }

        let hashes: Vec<Hash> = commits.iter().map(|(commit, _)| commit.hash).collect();
        let head = self.header.commit;
        let end = {
            let mut writer = lock(&self.store.writer);
            self.store.check_writable(&writer)?;

            // Commits that exist already stay as they are.
            let mut new = Vec::with_capacity(commits.len());
            for (commit, root) in commits {
                if self.store.inner.find_commit(&commit.hash)?.is_none() {
                    new.push((commit, root.map(|number| self.link(number))));
                }
            }

            if !new.is_empty() {
                let branch = branch.map(|name| (name, head));
                self.store.write_commits(&mut writer, new, branch)?;
            } else if let Some(branch) = branch {
                self.store.move_branch(&mut writer, branch, Some(head))?;
            }
            writer.tail.end
        };

        // One sync for all frames of the import.
        let Self { store, no_collection, .. } = self;
        store.sync()?;

        // A watch may close the store, which waits for whoever excludes collections.
        drop(no_collection);
        store.inner.call_watches(end);

        Ok((hashes, count))
    }
}

const _: () = assert!(size_of::<ImportedElement>() <= 128);

impl ImportedElement {
    fn new(hash: Hash, kind: ElementKind, height: u16) -> Self {
        Self { hash, extent: None, kind, height, is_base: false, is_used: false }
    }
}

impl Reference {
    fn is_value(&self) -> bool {
        match self {
            Self::Inline(_) => true,
            Self::Element { is_value, .. } | Self::Stored { is_value, .. } => *is_value,
        }
    }
}

/// Returns the object of the base at a step, and its hash. Its height counts as 0, since the height
/// of the base is known.
fn kept(env: &Env, base: Option<&Node>, step: &[u8]) -> Checked<(Reference, Hash, u16)> {
    let found = match base {
        Some(base) => base.locate(env, step)?.map(Spot::content),
        None => None,
    };

    let (is_value, link) = match found {
        Some(Content::ValueAt(link)) => (true, link),
        Some(Content::DirAt(link)) => (false, link),
        _ => return refuse("what is kept is in the base", 1, 0),
    };
    Ok((Reference::Stored { is_value, link }, link.hash, 0))
}

/// Returns the inode of a bucket of the base at the same depth.
fn kept_bucket(env: &Env, base: Option<&Node>, depth: u8, bucket: usize) -> Checked<Arc<Node>> {
    let node = match base.map(Node::shape) {
        Some(Shape::Inner(inner)) if inner.depth() == depth => inner.fetch(env, bucket)?,
        _ => None,
    };
    match node {
        Some(node) => Ok(node),
        None => refuse("a kept bucket is in the base", 1, 0),
    }
}

/// Check of the buckets of an inode: their steps belong there, and their number.
struct BucketCheck<'a> {
    rules: &'a Rules,
    depth: u8,
    /// Step of the first bucket.
    step: Option<Box<[u8]>>,
    count: u64,
}

impl BucketCheck<'_> {
    fn add(&mut self, bucket: usize, kind: &ElementKind) -> Checked<()> {
        let Some((count, step)) = kind.at_depth(self.rules, self.depth + 1) else {
            return refuse("an inode is at its depth", u64::from(self.depth) + 1, 0);
        };
        let first: &[u8] = self.step.get_or_insert_with(|| step.into());

        // All steps of an inode share the buckets above it.
        let is_beside = (0..self.depth)
            .all(|depth| self.rules.bucket(depth, step) == self.rules.bucket(depth, first));
        if !is_beside || self.rules.bucket(self.depth, step) != bucket {
            return refuse("steps are in their buckets", bucket as u64, u64::from(self.depth));
        }
        self.count = self.count.saturating_add(count);
        Ok(())
    }
}

impl Elements for Importer<'_> {
    fn element(&mut self, hash: &Hash, element: Element) -> Result<()> {
        let limit = self.store.options.import_elements_max;
        if self.imported.len() as u64 >= limit {
            return Err(Error::LimitExceeded { limit, unit: "elements" });
        }
        let own = self.imported.len();
        self.take(own, hash, element).map_err(|refusal| match refusal {
            Refusal::Rule(what) => Error::UnexpectedElement { index: own as u64, what },
            Refusal::Hash => Error::WrongHash { index: own as u64 },
            Refusal::Other(error) => error,
        })
    }
}

fn read_into(
    store: &Store,
    stream: &mut StreamReader<'_>,
    header: Header,
    branch: Option<&[u8]>,
) -> Result<Snapshot> {
    let mut importer = Importer::new(store, header)?;
    while let Some((hash, element)) = stream.next()? {
        importer.element(&hash, element)?;
    }
    let (commits, elements) = importer.finish(branch)?;
    Ok(Snapshot { commit: header.commit, commits, elements, bytes: stream.bytes })
}

/// Creates a store, fills it, and marks it complete.
fn new_store(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: &Options,
    fill: impl FnOnce(&Store) -> Result<Snapshot>,
) -> Result<(Store, Snapshot)> {
    create_dirs(&*disk, dir)?;
    let (dir, anchor) = enter(&*disk, dir)?;
    let dir = dir.as_path();
    let guard = take_lock(&*disk, dir)?;
    let marker = dir.join(IMPORTING);

    if disk.kind(&marker)?.is_some() {
        clear(&*disk, dir, options)?;
    } else if disk.kind(&dir.join(CONTROL))?.is_some() {
        return Err(Error::AlreadyExists { path: dir.to_owned() });
    } else {
        disk.open(&marker, OpenMode::CreateNew, Access::Buffered)?.sync()?;
        disk.sync_dir(dir)?;
    }

    // The marker exists until the store is complete, and keeps every opener out.
    let store = Store::create_locked(disk, (dir, &anchor), options, guard)?;
    let snapshot = fill(&store)?;
    store.inner.disk.remove(&marker)?;
    store.inner.disk.sync_dir(dir)?;

    Ok((store, snapshot))
}

/// Removes the files of an interrupted import.
fn clear(disk: &dyn Disk, dir: &Path, options: &Options) -> Result<()> {
    for entry in disk.list(dir)? {
        let name = entry.name.strip_suffix(NEW_SUFFIX).unwrap_or(&entry.name);
        if name == CONTROL || chunk_number(name).is_some() {
            disk.remove(&dir.join(&entry.name))?;
        }
    }

    // The index may be of the interrupted import.
    options.index.remove(disk, &dir.join(INDEX)).map_err(Error::index)?;
    Ok(disk.sync_dir(dir)?)
}

/// Exports commits into a new store.
fn copy_out(
    source: ExportSource,
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: &Options,
) -> Result<Snapshot> {
    // The new store has the rules of this one, whatever the options say.
    let header = source.header;
    let options = Options { rules: header.rules, ..options.clone() };
    options.check()?;
    let (store, snapshot) = new_store(disk, dir, &options, |store| {
        let mut importer = Importer::new(store, header)?;
        source.elements(&mut importer)?;
        let (commits, elements) = importer.finish(None)?;
        Ok(Snapshot { commit: header.commit, commits, elements, bytes: 0 })
    })?;
    store.close()?;
    Ok(snapshot)
}

impl Store {
    /// Imports a snapshot from a stream; its commits are durable when the call returns. They are
    /// seen all at once, and a crash leaves all or none; those that exist already stay as they are.
    /// Reads nothing behind the snapshot. After an error, the imported objects are garbage, which a
    /// collection removes.
    ///
    /// Cost: one write for each MiB. Reads are small: give it a buffered stream.
    ///
    /// # Errors
    /// [`NotASnapshot`](Error::NotASnapshot), [`SnapshotVersion`](Error::SnapshotVersion),
    /// [`TruncatedStream`](Error::TruncatedStream), [`DamagedStream`](Error::DamagedStream),
    /// [`WrongHash`](Error::WrongHash), [`UnexpectedElement`](Error::UnexpectedElement),
    /// [`RootMismatch`](Error::RootMismatch), [`Stream`](Error::Stream);
    /// [`ConfigMismatch`](Error::ConfigMismatch) for one of other rules,
    /// [`UnknownCommit`](Error::UnknownCommit) for an increment on a commit that is not here,
    /// [`GcRunning`](Error::GcRunning) during a collection; and those of [`commit`](Self::commit).
    pub fn import(&self, input: &mut dyn Read) -> Result<Snapshot> {
        let (mut stream, header) = StreamReader::begin(input)?;
        read_into(self, &mut stream, header, None)
    }

    /// Imports like [`import`](Self::import), and sets the head of a branch to the last commit: all
    /// or nothing, with one sync.
    ///
    /// Cost: that of an import.
    ///
    /// # Errors
    /// Errors of [`import`](Self::import), and [`BranchName`](Error::BranchName), before anything
    /// is read.
    pub fn import_to(&self, branch: &[u8], input: &mut dyn Read) -> Result<Snapshot> {
        check_branch_name(branch)?;
        let (mut stream, header) = StreamReader::begin(input)?;
        read_into(self, &mut stream, header, Some(branch))
    }

    /// Imports a snapshot into a new store in `dir`, with the rules of the snapshot. An interrupted
    /// import in `dir` is repeated.
    ///
    /// Cost: as [`import`](Self::import).
    ///
    /// # Errors
    /// Errors of [`import`](Self::import) and [`create`](Self::create). After one the directory is
    /// refused, until an import ends.
    pub fn import_new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        input: &mut dyn Read,
    ) -> Result<(Self, Snapshot)> {
        Self::import_new_as(disk, dir, options, None, input)
    }

    /// Imports like [`import_new`](Self::import_new), and sets the head of a branch to the last
    /// commit.
    ///
    /// Cost: that of an import.
    ///
    /// # Errors
    /// Errors of [`import_new`](Self::import_new), and [`BranchName`](Error::BranchName), before
    /// anything is read or made.
    pub fn import_new_to(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        branch: &[u8],
        input: &mut dyn Read,
    ) -> Result<(Self, Snapshot)> {
        check_branch_name(branch)?;
        Self::import_new_as(disk, dir, options, Some(branch), input)
    }

    fn import_new_as(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        branch: Option<&[u8]>,
        input: &mut dyn Read,
    ) -> Result<(Self, Snapshot)> {
        let (mut stream, header) = StreamReader::begin(input)?;

        // A new store has no commit that an increment could build on.
        if let Some(hash) = header.base {
            return Err(Error::UnknownCommit { hash });
        }
        let options = Options { rules: header.rules, ..options.clone() };
        options.check()?;
        new_store(disk, dir, &options, |store| read_into(store, &mut stream, header, branch))
    }

    /// Creates a store in `dir` with one commit of this store and its rules, and closes it.
    ///
    /// Cost: as [`export`](Self::export) and [`import`](Self::import).
    ///
    /// # Errors
    /// Errors of [`export`](Self::export) and [`import_new`](Self::import_new).
    pub fn export_store(
        &self,
        commit: &Hash,
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
    ) -> Result<Snapshot> {
        self.export_commits_store(&[*commit], disk, dir, options)
    }

    /// Creates a store in `dir` with several commits of this store and its rules, and closes it.
    ///
    /// Cost: as [`export_commits`](Self::export_commits) and [`import`](Self::import).
    ///
    /// # Errors
    /// Errors of [`export_commits`](Self::export_commits) and [`import_new`](Self::import_new).
    pub fn export_commits_store(
        &self,
        commits: &[Hash],
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
    ) -> Result<Snapshot> {
        copy_out(ExportSource::open(&self.inner, commits, None)?, disk, dir, options)
    }
}

impl StoreReader {
    /// Exports like [`Store::export_store`] a commit that exists now.
    ///
    /// # Errors
    /// Errors of [`Store::export_store`], and [`Collected`](Error::Collected).
    pub fn export_store(
        &self,
        commit: &Hash,
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
    ) -> Result<Snapshot> {
        self.export_commits_store(&[*commit], disk, dir, options)
    }

    /// Exports like [`Store::export_commits_store`] commits that exist now.
    ///
    /// # Errors
    /// Errors of [`Store::export_commits_store`], and [`Collected`](Error::Collected).
    pub fn export_commits_store(
        &self,
        commits: &[Hash],
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
    ) -> Result<Snapshot> {
        self.sync()?;
        copy_out(ExportSource::open(&self.inner, commits, None)?, disk, dir, options)
    }
}

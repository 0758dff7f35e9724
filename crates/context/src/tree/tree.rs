//! Trees: values or directories, loaded lazily, changed in memory, written by a commit.
//!
//! A [`Tree`] is cheap to clone, and clones do not see each other's changes (copy-on-write). A
//! change of a tree that no clone shares happens in place. Bound values
//! [wait](crate::tree::write_buffer) in a buffer until a call needs the tree as a whole.

use std::cell::Cell;
use std::fmt;

use terrane_io::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::base::address::Link;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::{BRANCHING_MAX, Rules, STEP_BYTES_MAX, VALUE_BYTES_MAX};
use crate::base::path::{HEIGHT_MAX, PathText, Steps};
use crate::object::pins::Pins;
use crate::tree::copy::{Blinded, copy};
use crate::tree::digest::{self, Hasher};
use crate::tree::edit::{PassWork, Sharing, bind, bind_all, unbind};
use crate::tree::head::Head;
use crate::tree::into_value::IntoValue;
use crate::tree::node::{Child, Content, Env, Node, Shape, Spot, Value};
use crate::tree::write_buffer::{WRITE_BUFFER_MAX, WriteBuffer};

/// Kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Kind {
    /// A byte string.
    Value,
    /// A map from steps to trees.
    Directory,
}

/// Value or directory: a version of a map from paths to values.
#[doc(alias = "view")]
pub struct Tree {
    pub(crate) env: Arc<Env>,
    /// The tree, unless values wait in the buffer for a call that needs the tree as a whole.
    root: OnceLock<Child>,
    /// The tree without the values that wait.
    base: RwLock<Option<Child>>,
    buffer: WriteBuffer,
    /// Approximate weight of what was added since the tree was checked out, in bytes.
    added: usize,
    /// Nodes of the newest commit of the store.
    head: Option<Arc<Head>>,
    /// Pins of the objects that the tree may still read.
    pub(crate) pins: Pins,
}

/// Cost: applies the buffered values.
impl Clone for Tree {
    fn clone(&self) -> Self {
        self.with_root(self.root().clone())
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Tree({:?}, {})", self.kind(), self.hash())
    }
}

/// Two trees are equal if their kinds and hashes are.
impl PartialEq for Tree {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.hash() == other.hash()
    }
}

impl Eq for Tree {}

/// Decision on a value to be bound.
enum Waits {
    /// The value may wait in the buffer; whether the nodes have nothing at its path.
    Yes {
        is_new: bool,
    },
    No,
    /// The value goes into the nodes, after a buffered value at this many first steps.
    Below(usize),
    /// The value goes into the nodes after all buffered ones.
    Apply,
}

/// Bytes that a binding takes in memory beside its step and value.
const BINDING_BYTES: usize = 100;

const ROOT: &str = "the root is in one of two places";

/// A new directory without steps.
pub(crate) fn empty_dir() -> Child {
    Child::Dir(Arc::new(Node::empty(false)))
}

fn check_value(bytes: &[u8]) -> Result<()> {
    if bytes.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::ValueSize { bytes: bytes.len() })
}

pub(crate) fn check_steps(path: &[&[u8]]) -> Result<()> {
    match path.iter().find(|step| step.is_empty() || step.len() > STEP_BYTES_MAX) {
        Some(step) => Err(Error::StepSize { bytes: step.len() }),
        None => Ok(()),
    }
}

/// Adds the path to an error that has one.
pub(crate) fn at_path(error: Error, path: &[&[u8]]) -> Error {
    let text = || PathText::new(path);
    match error {
        Error::DanglingHash { hash, path } if path.0.is_empty() => {
            Error::DanglingHash { hash, path: text() }
        }
        Error::NotProvided { path } if path.0.is_empty() => Error::NotProvided { path: text() },
        other => other,
    }
}

/// State of a path in a tree.
enum Standing<'a> {
    /// A value is bound, in a directory with this number of steps.
    Value(Spot<'a>, u64),
    /// Nothing is bound, in a directory that exists.
    Free,
    /// Nothing is bound at this many first steps, in a directory that exists.
    Missing(usize),
    /// A directory is bound, or a value on the way.
    Taken,
}

impl Tree {
    pub(crate) fn at(env: Arc<Env>, root: Child, pins: Pins) -> Self {
        let base = RwLock::new(None);
        let buffer = WriteBuffer::default();
        Self { env, root: root.into(), base, buffer, added: 0, head: None, pins }
    }

    /// Returns the tree of a commit of a store that keeps these nodes in memory.
    pub(crate) fn with_head(self, head: &Arc<Head>) -> Self {
        Self { head: Some(Arc::clone(head)), ..self }
    }

    /// Approximate weight of what was added since the tree was checked out, in bytes.
    pub(crate) fn added(&self) -> usize {
        self.added
    }

    /// Returns the root with the buffered values.
    pub(crate) fn root(&self) -> &Child {
        self.root_by(None).0
    }

    /// Returns the root with the buffered values, which threads apply if there are any, and the
    /// work of these.
    fn root_by(&self, sharing: Option<Sharing<'_>>) -> (&Child, PassWork) {
        let mut work = PassWork::default();
        // Several threads may share the tree: the first one applies the buffer.
        let root = self.root.get_or_init(|| {
            let mut base = self.base.write().unwrap_or_else(PoisonError::into_inner);
            let mut root = base.take().expect(ROOT);
            let applied = self.apply_all(&mut root, sharing);
            applied.0.expect("all on the way was looked at");
            work = applied.1;
            root
        });
        (root, work)
    }

    /// Calls `f` with the tree, with the buffered values or without them.
    pub(crate) fn with_base<R>(&self, f: impl Fn(&Child) -> R) -> R {
        if let Some(root) = self.root.get() {
            return f(root);
        }
        if let Some(base) = &*self.base.read().unwrap_or_else(PoisonError::into_inner) {
            return f(base);
        }
        // Another thread applies the buffer.
        f(self.root())
    }

    /// The tree, without the buffered values if they were not applied yet.
    pub(crate) fn base_mut(&mut self) -> &mut Child {
        let base = self.base.get_mut().unwrap_or_else(PoisonError::into_inner);
        match self.root.get_mut() {
            Some(root) => root,
            None => base.as_mut().expect(ROOT),
        }
    }

    /// Prepares the tree for a change: takes its nodes from the head, so that the change is made in
    /// place, and empties a buffer that was applied.
    fn begin_change(&mut self) {
        self.adopt();
        if let (Some(head), true) = (&self.head, self.buffer.is_empty()) {
            let base = self.base.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(root) = self.root.get_mut().or(base.as_mut()) {
                head.take(root, &self.env);
            }
        }
    }

    /// Applies the buffered values to a root.
    fn apply_all(&self, root: &mut Child, sharing: Option<Sharing<'_>>) -> (Result<()>, PassWork) {
        // Another tree of the commit may have given the nodes to the head meanwhile.
        if let Some(head) = &self.head {
            head.let_go(root);
        }
        bind_all(&self.env, root, self.buffer.iter(), sharing)
    }

    /// Empties the buffer if a call applied it since the last change.
    pub(crate) fn adopt(&mut self) {
        if self.root.get().is_some() {
            self.buffer.clear();
        }
    }

    /// Applies the buffered values to the nodes.
    pub(crate) fn apply_buffer(&mut self) -> Result<()> {
        if self.root.get().is_none() {
            let base = self.base.get_mut().unwrap_or_else(PoisonError::into_inner);
            let mut root = base.take().expect(ROOT);
            let (applied, _) = self.apply_all(&mut root, None);
            if applied.is_err() {
                // A change that failed has changed nothing, and values may be applied twice.
                *self.base.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(root);
                return applied;
            }
            self.root = root.into();
        }
        self.adopt();
        debug_assert!(self.buffer.is_empty(), "all values are in the nodes");
        Ok(())
    }

    /// Adds a value to the buffer.
    fn buffer(&mut self, hashed_path: (u64, &[&[u8]]), value: impl IntoValue, is_new: bool) {
        if let Some(root) = self.root.take() {
            *self.base.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(root);
        }
        self.buffer.insert(hashed_path, value, is_new);
    }

    /// Changes the tree at a path: binds `child`, or unbinds what is there if there is none.
    fn change(&mut self, path: &[&[u8]], child: Option<Child>) -> Result<()> {
        let env = Arc::clone(&self.env);
        let head = self.head.clone();
        let root = self.base_mut();
        if let Some(head) = head {
            head.let_go(root);
        }
        match child {
            Some(child) => bind(&env, root, path, child),
            None => unbind(&env, root, path),
        }
    }

    /// Returns an empty directory without a store.
    ///
    /// # Errors
    /// [`InvalidConfig`](Error::InvalidConfig) for rules that no store has.
    pub fn new(rules: Rules) -> Result<Self> {
        rules.check()?;
        let env = Arc::new(Env::new(rules, None, false));
        Ok(Self::at(env, empty_dir(), Pins::default()))
    }

    pub(crate) fn with_root(&self, root: Child) -> Self {
        let tree = Self::at(Arc::clone(&self.env), root, self.pins.clone());
        Self { head: self.head.clone(), ..tree }
    }

    /// Returns an empty directory of the same store.
    #[must_use]
    pub fn empty(&self) -> Self {
        self.with_root(empty_dir())
    }

    /// Returns a value of the same store.
    #[must_use]
    pub fn of_value(&self, value: impl IntoValue) -> Self {
        self.with_root(Child::Value(Arc::new(Value::new(value.into_value()))))
    }

    /// Returns a shallow tree, of which only the hash is known.
    ///
    /// A shallow tree can be bound and compared; reading it is an error.
    /// [`Store::find_object`](crate::Store::find_object) returns a tree that can be read. The hash
    /// of the empty directory gives that directory.
    #[must_use]
    pub fn shallow(&self, kind: Kind, hash: Hash) -> Self {
        if kind == Kind::Directory && hash == self.env.rules.empty_hash() {
            return self.empty();
        }
        self.with_root(Child::Blinded { is_value: kind == Kind::Value, hash: Box::new(hash) })
    }

    /// Returns whether only the hash is known.
    pub fn is_shallow(&self) -> bool {
        self.with_base(|base| matches!(base, Child::Blinded { .. }))
    }

    /// Hashing rules of the tree.
    pub fn rules(&self) -> &Rules {
        &self.env.rules
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        if self.with_base(Child::is_value) { Kind::Value } else { Kind::Directory }
    }

    /// Returns whether the tree is the empty directory. No I/O.
    pub fn is_empty(&self) -> bool {
        match self.root.get() {
            Some(root) => root.is_empty(),
            None => self.buffer.is_empty() && self.with_base(Child::is_empty),
        }
    }

    /// Returns the value; `None` for a directory.
    ///
    /// # Errors
    /// Errors of [`find`](Self::find).
    pub fn to_value(&self) -> Result<Option<Vec<u8>>> {
        Spot::Own(self.root()).value(&self.env)
    }

    /// Returns the hash. Hashes all changes since the last call, on one thread.
    pub fn hash(&self) -> Hash {
        self.hash_by(&Hasher::new(1))
    }

    pub(crate) fn hash_by(&self, hasher: &Hasher) -> Hash {
        self.root_hash(Sharing { hasher, encoded_max: 0 }).0
    }

    /// Returns the hash, and the work of the threads.
    pub(crate) fn root_hash(&self, sharing: Sharing<'_>) -> (Hash, PassWork) {
        let (root, mut work) = self.root_by(Some(sharing));
        let hash = match root {
            Child::Dir(node) => {
                let (hash, rest) = sharing.hasher.hash(&self.env, node);
                work.hashed.merge(&rest);
                hash
            }
            Child::Value(value) => {
                *value.hash.get_or_init(|| self.env.rules.value_hash(&value.bytes))
            }
            other => digest::spot_hash(&self.env, Spot::Own(other)),
        };
        (hash, work)
    }

    /// Returns the child at a path, with the buffered values.
    fn locate(&self, path: &[&[u8]]) -> Result<Option<Spot<'_>>> {
        locate(&self.env, self.root(), path)
    }

    /// Returns whether a value is bound at `path`.
    ///
    /// Cost: one read for each directory and inode on the way that is not in memory.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), [`Corrupt`](Error::Corrupt), [`Collected`](Error::Collected),
    /// [`VolumeMissing`](Error::VolumeMissing), [`DanglingHash`](Error::DanglingHash) behind a
    /// shallow tree, and in a proof [`NotProvided`](Error::NotProvided).
    pub fn mem<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        let steps = Steps::new(path);
        let path = steps.as_slice();
        let is_value = |base: &Child| -> Result<bool> {
            Ok(locate(&self.env, base, path)?.is_some_and(Spot::is_value))
        };
        Ok(self.buffer.get(path).is_some() || self.with_base(is_value)?)
    }

    /// Returns whether a value or a directory is bound at `path`.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn mem_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        let steps = Steps::new(path);
        let path = steps.as_slice();
        let is_bound =
            |base: &Child| -> Result<bool> { Ok(locate(&self.env, base, path)?.is_some()) };
        Ok(self.buffer.get(path).is_some() || self.with_base(is_bound)?)
    }

    /// Returns the value at `path`; `None` for a directory, an absent path, and a path through a
    /// value.
    ///
    /// Cost: as [`mem`](Self::mem), and one read for a value of more than 48 bytes.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn find<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Vec<u8>>> {
        let _timer = self.env.time_find();
        let steps = Steps::new(path);
        let path = steps.as_slice();

        // The buffer is newer than the nodes.
        if let Some(value) = self.buffer.get(path) {
            return Ok(Some(value.to_vec()));
        }
        self.with_base(|base| match locate(&self.env, base, path)? {
            Some(spot) => spot.value(&self.env).map_err(|error| at_path(error, path)),
            None => Ok(None),
        })
    }

    /// Calls `read` with the value at `path` in place, without copying it. Returns the result of
    /// `read`; `None` where [`find`](Self::find) returns `None`.
    ///
    /// ```
    /// use terrane_context::{Rules, Tree};
    ///
    /// let mut tree = Tree::new(Rules::TEZOS)?;
    /// tree.add(&["a", "b"], "value")?;
    /// assert_eq!(tree.find_with(&["a", "b"], <[u8]>::len)?, Some(5));
    /// # Ok::<(), terrane_context::Error>(())
    /// ```
    ///
    /// Cost: as [`find`](Self::find), without the allocation.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn find_with<S: AsRef<[u8]>, R>(
        &self,
        path: &[S],
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let _timer = self.env.time_find();
        let steps = Steps::new(path);
        let path = steps.as_slice();

        // The buffer is newer than the nodes.
        if let Some(value) = self.buffer.get(path) {
            return Ok(Some(read(value)));
        }
        let read = Cell::new(Some(read));
        self.with_base(|base| match locate(&self.env, base, path)? {
            Some(spot) => {
                let read = read.take().expect("the nodes are looked at once");
                spot.with_value(&self.env, read).map_err(|error| at_path(error, path))
            }
            None => Ok(None),
        })
    }

    /// Returns the tree at `path`, if one is bound.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn find_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Self>> {
        let found = self.locate(Steps::new(path).as_slice())?;
        Ok(found.map(|spot| self.with_root(spot.to_child())))
    }

    /// Number of children of the directory at `path`; 0 for a value and where nothing is bound.
    ///
    /// Cost: as [`mem_tree`](Self::mem_tree), and one read at most, whatever the number.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn length<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<u64> {
        let steps = Steps::new(path);
        let Some(spot) = self.locate(steps.as_slice())? else { return Ok(0) };
        let dir = spot.dir(&self.env).map_err(|error| at_path(error, steps.as_slice()))?;
        Ok(dir.map_or(0, |dir| dir.count()))
    }

    /// Returns at most `length` children of the directory at `path`, from `offset` on; none for a
    /// value and where nothing is bound.
    ///
    /// The order is the order of storage, which is a function of the tree, so pages concatenate.
    ///
    /// Cost: one read for each inode that is looked at, and for the heads of those that are
    /// skipped.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn list<S: AsRef<[u8]>>(
        &self,
        path: &[S],
        offset: usize,
        length: usize,
    ) -> Result<Vec<(Box<[u8]>, Self)>> {
        let steps = Steps::new(path);
        let fail = |error| at_path(error, steps.as_slice());
        let Some(spot) = self.locate(steps.as_slice())? else { return Ok(Vec::new()) };
        let Some(dir) = spot.dir(&self.env).map_err(fail)? else { return Ok(Vec::new()) };
        let mut page = Vec::new();
        list_page(&self.env, dir, &mut (offset as u64), length, &mut |step, spot| {
            page.push((step.into(), self.with_root(spot.to_child())));
            page.len()
        })
        .map_err(fail)?;
        Ok(page)
    }

    /// Binds a value at `path`, and replaces a directory there or a value on the way. Returns
    /// whether anything changed: an equal binding changes nothing. With the empty path the tree
    /// becomes the value.
    ///
    /// Cost: as [`mem`](Self::mem).
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), and [`StepSize`](Error::StepSize),
    /// [`TooDeep`](Error::TooDeep), [`ValueSize`](Error::ValueSize).
    pub fn add<S: AsRef<[u8]>>(&mut self, path: &[S], value: impl IntoValue) -> Result<bool> {
        check_value(value.bytes())?;
        let steps = Steps::new(path);
        let path = steps.as_slice();
        check_steps(path)?;

        // The common case first: the path is in the buffer already.
        self.begin_change();
        let hashed_path = (self.buffer.hash(path), path);
        let value = match self.buffer.replace(hashed_path, value) {
            Ok(changed) => return Ok(changed),
            Err(value) => value,
        };

        // The state of the path in the nodes decides whether the value may wait in the buffer.
        check_height(path, 0)?;
        let mut changes = true;
        let env = Arc::clone(&self.env);
        let standing = match standing(&env, self.base_mut(), path)? {
            Standing::Value(spot, _) if is_value(&env, spot, value.bytes()) => {
                // The value was known by its hash only, and is now known.
                if !matches!(spot.content(), Content::Blinded { .. }) {
                    return Ok(false);
                }
                changes = false;
                Waits::No
            }
            Standing::Value(_, count) if count > 0 => Waits::Yes { is_new: false },
            Standing::Value(..) => Waits::No,
            Standing::Free => Waits::Yes { is_new: true },
            Standing::Missing(depth) => Waits::Below(depth),
            Standing::Taken => Waits::Apply,
        };
        self.added +=
            value.bytes().len() + path.last().map_or(0, |step| step.len()) + BINDING_BYTES;

        let waits = match standing {
            Waits::Yes { is_new } => Some(is_new),
            Waits::No => None,
            Waits::Below(depth) => {
                // No buffered value is on the way, so the others may wait on.
                if self.buffer.get(&path[..depth]).is_some() {
                    self.apply_buffer()?;
                }
                None
            }
            Waits::Apply => {
                self.apply_buffer()?;
                None
            }
        };

        if let Some(is_new) = waits {
            // The bound keeps clones and hashes, which apply the buffer, short.
            if self.buffer.len() == WRITE_BUFFER_MAX {
                self.apply_buffer()?;
            }
            self.buffer(hashed_path, value, is_new);
            debug_assert!(self.buffer.len() <= WRITE_BUFFER_MAX, "the buffer is bounded");
        } else {
            let child = Child::Value(Arc::new(Value::new(value.into_value())));
            self.change(path, Some(child)).map_err(|error| at_path(error, path))?;
        }

        Ok(changes)
    }

    /// Binds a tree at `path`, and shares its objects; an empty directory unbinds `path`. A tree
    /// without a store is copied. Returns whether anything changed.
    ///
    /// # Errors
    /// Errors of [`add`](Self::add), and [`ForeignTree`](Error::ForeignTree) for a tree of another
    /// store, or of other rules.
    pub fn add_tree<S: AsRef<[u8]>>(&mut self, path: &[S], tree: &Self) -> Result<bool> {
        if tree.is_empty() {
            return self.remove(path);
        }

        if let Child::Value(value) = tree.root() {
            check_value(&value.bytes)?;
        }

        // Nodes of another store have extents that mean nothing here.
        let child = if Arc::ptr_eq(&self.env, &tree.env) {
            tree.root().clone()
        } else if tree.env.source.is_some() || tree.env.rules != self.env.rules {
            return Err(Error::ForeignTree);
        } else {
            tree.hash();
            copy(&tree.env, Spot::Own(tree.root()), Blinded::Keep)?
        };

        let changed = self.bind(Steps::new(path).as_slice(), child)?;

        // From here on either tree may read what commits write for the other.
        self.pins.join(&tree.pins);

        Ok(changed)
    }

    fn bind(&mut self, path: &[&[u8]], child: Child) -> Result<bool> {
        check_steps(path)?;

        // The child is loaded, so that its height is known here and above.
        let child = match child.dir(&self.env) {
            Ok(Some(node)) => Child::Dir(Arc::clone(node)),
            Ok(None) | Err(_) if !matches!(child, Child::DirAt(_)) => child,
            other => return other.map(|_| false),
        };

        check_height(path, child.height())?;
        self.apply_buffer()?;

        // An equal binding must not make the tree differ from its record.
        if let Some(old) = self.locate(path)?
            && is_same(&self.env, old, &child)
        {
            return Ok(false);
        }

        self.change(path, Some(child)).map_err(|error| at_path(error, path))?;
        Ok(true)
    }

    /// Unbinds the value or directory at `path`, and directories left empty. Returns whether `path`
    /// was bound. With the empty path the tree becomes the empty directory.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn remove<S: AsRef<[u8]>>(&mut self, path: &[S]) -> Result<bool> {
        let steps = Steps::new(path);
        let path = steps.as_slice();
        self.begin_change();

        if path.is_empty() {
            let changed = !self.is_empty();
            self.root = empty_dir().into();
            self.buffer.clear();
            return Ok(changed);
        }

        let env = Arc::clone(&self.env);
        let count = match standing(&env, self.base_mut(), path)? {
            Standing::Free | Standing::Missing(_) => return Ok(self.buffer.remove(path)),
            Standing::Value(_, count) => count,
            Standing::Taken => 0,
        };
        if self.must_apply(path, count)? {
            self.apply_buffer()?;
        }

        // Directories that would be left empty go too: the path is cut at the highest one.
        let Some(gone) = kept_above(&env, self.base_mut(), path)? else { return Ok(false) };
        self.change(&path[..gone], None).map_err(|error| at_path(error, path))?;
        self.buffer.remove(path);

        Ok(true)
    }

    /// Returns whether the removal of what is bound at `path` depends on values that wait: a value
    /// in a directory of `count` steps in the nodes, or else a directory, with 0.
    fn must_apply(&self, path: &[&[u8]], count: u64) -> Result<bool> {
        let Some((last, dir)) = path.split_last().filter(|_| !self.buffer.is_empty()) else {
            return Ok(false);
        };
        match count {
            // What waits below goes too.
            0 => Ok(true),
            // The directories that the removal empties, and the shape of the one that stays, follow
            // from the nodes if no new value is in any of them.
            1 => Ok((0..=dir.len()).any(|depth| self.buffer.may_grow(&dir[..depth]))),
            // The directory stays, and its shape changes at a limit only.
            _ => Ok(self.buffer.may_grow(dir) && self.is_at_limit(dir, last)?),
        }
    }

    /// Returns whether the loss of one step changes the shape of the nodes of a directory, or of an
    /// inode on the way to the step.
    fn is_at_limit(&self, dir: &[&[u8]], step: &[u8]) -> Result<bool> {
        self.with_base(|base| {
            let nodes = match locate(&self.env, base, dir)? {
                Some(spot) => spot.dir(&self.env).map_err(|error| at_path(error, dir))?,
                None => None,
            };
            nodes.map_or(Ok(false), |nodes| nodes.is_at_limit(&self.env, step))
        })
    }

    /// Changes one binding: `change` gets the value at `path` and returns the new one, or `None` to
    /// unbind it.
    ///
    /// # Errors
    /// Errors of [`add`](Self::add).
    pub fn update<S: AsRef<[u8]>>(
        &mut self,
        path: &[S],
        change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>>,
    ) -> Result<bool> {
        match change(self.find(path)?) {
            Some(value) => self.add(path, value),
            None if self.mem(path)? => self.remove(path),
            None => Ok(false),
        }
    }

    /// Changes one binding: `change` gets the tree at `path` and returns the new one; `None` or an
    /// empty directory unbinds it.
    ///
    /// # Errors
    /// Errors of [`add_tree`](Self::add_tree).
    pub fn update_tree<S: AsRef<[u8]>>(
        &mut self,
        path: &[S],
        change: impl FnOnce(Option<Self>) -> Option<Self>,
    ) -> Result<bool> {
        self.apply_buffer()?;
        match change(self.find_tree(path)?) {
            Some(tree) => self.add_tree(path, &tree),
            None => self.remove(path),
        }
    }

    /// Returns a tree of the same store that binds only `value` at `path`.
    ///
    /// # Errors
    /// Errors of [`add`](Self::add).
    pub fn singleton<S: AsRef<[u8]>>(&self, path: &[S], value: impl IntoValue) -> Result<Self> {
        let mut tree = self.empty();
        tree.add(path, value)?;
        Ok(tree)
    }

    /// If the root is as it was stored, drops all pins but that of the root. Forgets loaded nodes:
    /// they may refer to records that were since replaced.
    pub(crate) fn unpin_older(&mut self) {
        self.clear();

        // Only a stored root has a pin that covers all that the tree may read.
        if let Some(Child::DirAt(far)) = self.root.get()
            && let Some(pins) = self.pins.only(far.0.extent)
        {
            self.pins = pins;
        }
    }

    /// Forgets all loaded nodes that can be loaded again. Unstored changes stay.
    ///
    /// Cost: none; later reads load again.
    pub fn clear(&mut self) {
        self.adopt();

        if let Some(Child::Dir(node)) = self.root.get()
            && let Some(link) = node.link()
        {
            self.root = Child::DirAt(Box::new((link, OnceLock::new()))).into();
        }
    }
}

/// Returns the child at a path below a root.
fn locate<'a>(env: &Env, root: &'a Child, path: &[&[u8]]) -> Result<Option<Spot<'a>>> {
    let mut spot = Spot::Own(root);
    for (depth, step) in path.iter().enumerate() {
        let here = |error| at_path(error, &path[..depth]);
        let Some(dir) = spot.dir(env).map_err(here)? else { return Ok(None) };
        match dir.locate(env, step).map_err(|error| at_path(error, &path[..=depth]))? {
            Some(found) => spot = found,
            None => return Ok(None),
        }
    }
    Ok(Some(spot))
}

/// Number of steps of `path`, which has some, that lead to the highest directory left without
/// steps by a removal, or to the child itself; `None` if nothing is bound.
fn kept_above(env: &Env, root: &Child, path: &[&[u8]]) -> Result<Option<usize>> {
    let mut spot = Spot::Own(root);
    let mut gone = 1;
    for (depth, step) in path.iter().enumerate() {
        let here = |error| at_path(error, &path[..=depth]);
        let Some(dir) = spot.dir(env).map_err(here)? else { return Ok(None) };
        if dir.count() > 1 {
            gone = depth + 1;
        }
        match dir.locate(env, step).map_err(here)? {
            Some(found) => spot = found,
            None => return Ok(None),
        }
    }

    debug_assert!((1..=path.len()).contains(&gone), "a path is cut at one of its steps");
    Ok(Some(gone))
}

/// Returns the state of a path in the nodes below a root.
fn standing<'a>(env: &Env, root: &'a Child, path: &[&[u8]]) -> Result<Standing<'a>> {
    let mut spot = Spot::Own(root);

    let mut count = 0;
    for (depth, step) in path.iter().enumerate() {
        let here = |error| at_path(error, &path[..depth]);
        let Some(dir) = spot.dir(env).map_err(here)? else {
            return Ok(Standing::Taken);
        };
        count = dir.count();
        match dir.locate(env, step).map_err(|error| at_path(error, &path[..=depth]))? {
            Some(found) => spot = found,
            None if depth + 1 == path.len() => return Ok(Standing::Free),
            None => return Ok(Standing::Missing(depth + 1)),
        }
    }

    Ok(if spot.is_value() { Standing::Value(spot, count) } else { Standing::Taken })
}

fn check_height(path: &[&[u8]], below: u16) -> Result<()> {
    let levels = path.len() + usize::from(below);
    if levels > usize::from(HEIGHT_MAX) { Err(Error::TooDeep { levels }) } else { Ok(()) }
}

/// Visits up to `length` children behind `offset`; skips whole buckets by their counts. `visit`
/// returns the number of its calls.
fn list_page<'a>(
    env: &Env,
    node: &'a Node,
    offset: &mut u64,
    length: usize,
    visit: &mut dyn FnMut(&'a [u8], Spot<'a>) -> usize,
) -> Result<bool> {
    if length == 0 {
        return Ok(false);
    }

    if node.count() <= *offset {
        *offset -= node.count();
        return Ok(true);
    }

    match node.shape() {
        Shape::Entries(entries) => {
            for item in *offset as usize..entries.len() {
                if visit(entries.step(item), entries.spot(item)) >= length {
                    return Ok(false);
                }
            }
            *offset = 0;
        }
        Shape::Inner(inner) => {
            for bucket in 0..BRANCHING_MAX as usize {
                if let Some(below) = inner.bucket(env, bucket)?
                    && !list_page(env, below, offset, length, visit)?
                {
                    return Ok(false);
                }
            }
        }
    }

    Ok(true)
}

/// Returns whether a path already has the child to be bound. Known hashes decide; otherwise values
/// are compared by bytes, and directories by identity, so that no directory is hashed.
fn is_same(env: &Env, old: Spot<'_>, new: &Child) -> bool {
    if old.is_value() != new.is_value() {
        return false;
    }

    // Hashing a large new directory only to compare it would cost more than binding it.
    if let (Some(old), Some(new)) = (known_hash(old), known_hash(Spot::Own(new))) {
        return old == new;
    }

    match (new, old.looked_at()) {
        (Child::Value(value), _) => is_value(env, old, &value.bytes),
        (Child::Dir(new), Some(old)) => Arc::ptr_eq(old, new),
        _ => false,
    }
}

/// Returns whether a value of these bytes is bound. A value stored on its own is compared by its
/// hash.
fn is_value(env: &Env, old: Spot<'_>, bytes: &[u8]) -> bool {
    match old.content() {
        Content::Inline(old) => old == bytes,
        Content::Value(old) => *old.bytes == *bytes,
        Content::ValueAt(Link { hash, .. }) | Content::Blinded { is_value: true, hash } => {
            env.rules.value_hash(bytes) == hash
        }
        Content::Dir(_) | Content::DirAt(_) | Content::Blinded { .. } => false,
    }
}

/// Returns the hash of a child, if it needs no hashing.
fn known_hash(spot: Spot<'_>) -> Option<Hash> {
    match spot.content() {
        Content::Inline(_) => None,
        Content::ValueAt(link) | Content::DirAt(link) => Some(link.hash),
        Content::Value(value) => value.hash.get().copied(),
        Content::Dir(node) => node.hash.get().copied(),
        Content::Blinded { hash, .. } => Some(hash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tree with directories of 300, 258, 2 and 1 values, and three values that wait: two that
    /// replace others, and a new one.
    fn waiting() -> Tree {
        let mut tree = Tree::new(Rules::TEZOS).unwrap();
        for (dir, count) in [("wide", 300), ("limit", 258), ("two", 2), ("one", 1)] {
            for number in 0..count {
                tree.add(&["x", dir, &number.to_string()], "first").unwrap();
            }
        }
        tree.apply_buffer().unwrap();
        tree.add(&["x", "wide", "0"], "second").unwrap();
        tree.add(&["x", "limit", "0"], "second").unwrap();
        tree.add(&["x", "wide", "new"], "first").unwrap();
        assert_eq!(tree.buffer.len(), 3);
        tree
    }

    /// A removal of the last value of a directory, or at a limit of its shape, applied all values.
    #[test]
    fn a_removal_lets_values_wait_unless_it_depends_on_them() {
        // Values that replace others change no number of steps, nor do new ones elsewhere.
        let mut tree = waiting();
        for path in [["wide", "1"], ["limit", "1"], ["limit", "2"], ["one", "0"], ["two", "0"]] {
            assert!(tree.remove(&["x", path[0], path[1]]).unwrap(), "{path:?}");
            assert_eq!(tree.buffer.len(), 3, "{path:?}");
        }
        assert!(!tree.mem_tree(&["x", "one"]).unwrap());

        // A value that waits goes alone.
        assert!(tree.remove(&["x", "wide", "new"]).unwrap());
        assert!(tree.remove(&["x", "limit", "0"]).unwrap());
        assert_eq!(tree.buffer.len(), 1);

        // A new value in the directory keeps it.
        assert!(tree.add(&["x", "two", "new"], "first").unwrap());
        assert!(tree.remove(&["x", "two", "1"]).unwrap());
        assert_eq!(tree.buffer.len(), 0);
        assert_eq!(tree.length(&["x", "two"]).unwrap(), 1);

        // So does one in a directory above.
        let mut tree = waiting();
        assert!(tree.add(&["x", "new"], "first").unwrap());
        assert!(tree.remove(&["x", "one", "0"]).unwrap());
        assert_eq!(tree.buffer.len(), 0);

        // What waits below a directory goes with it.
        let mut tree = waiting();
        assert!(tree.remove(&["x", "limit"]).unwrap());
        assert_eq!(tree.buffer.len(), 0);
        assert_eq!(tree.find(&["x", "limit", "0"]).unwrap(), None);
    }
}

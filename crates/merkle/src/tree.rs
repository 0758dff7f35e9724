//! Trees: immutable values or directories, read lazily, changed in memory, written by a commit.
//!
//! A [`Tree`] is cheap to clone; a clone and the original do not see each other's changes. Changing a tree that nobody
//! else holds happens in place.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::copy::{Blinded, copy};
use crate::digest;
use crate::edit::edit;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::node::{Child, Env, Node, Shape, Spot, Value};
use crate::path::{HEIGHT_MAX, PathText, Steps};
use crate::pins::Pins;
use crate::rules::{BRANCHING_MAX, Rules, STEP_BYTES_MAX};

/// What a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A byte string.
    Value,
    /// A map from steps to trees.
    Directory,
}

/// A value or a directory.
#[derive(Clone)]
pub struct Tree {
    pub(crate) env: Arc<Env>,
    pub(crate) root: Child,
    /// What keeps the objects that it may still read from being collected.
    pub(crate) pins: Pins,
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

/// A new directory without steps.
pub(crate) fn empty_dir() -> Child {
    Child::Dir(Arc::new(Node::empty(false)))
}

pub(crate) fn check_steps(path: &[&[u8]]) -> Result<()> {
    match path.iter().find(|step| step.is_empty() || step.len() > STEP_BYTES_MAX) {
        Some(step) => Err(Error::StepSize { bytes: step.len() }),
        None => Ok(()),
    }
}

/// What leads to the error, for errors that tell.
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

impl Tree {
    /// An empty directory that belongs to no store.
    ///
    /// # Errors
    /// [`InvalidConfig`](Error::InvalidConfig) for rules that no store has.
    pub fn new(rules: Rules) -> Result<Self> {
        rules.check()?;
        let env = Arc::new(Env { rules, source: None, proof: false });
        Ok(Self { env, root: empty_dir(), pins: Pins::default() })
    }

    pub(crate) fn with_root(&self, root: Child) -> Self {
        Self { env: Arc::clone(&self.env), root, pins: self.pins.clone() }
    }

    /// An empty directory, of the same store.
    #[must_use]
    pub fn empty(&self) -> Self {
        self.with_root(empty_dir())
    }

    /// A value, of the same store.
    #[must_use]
    pub fn of_value(&self, value: impl Into<Box<[u8]>>) -> Self {
        self.with_root(Child::Value(Arc::new(Value::new(value.into()))))
    }

    /// A tree of which only the hash is known. It can be bound and compared; looking into it is an error;
    /// [`Store::find_object`](crate::Store::find_object) gives one that can be looked into.
    #[must_use]
    pub fn shallow(&self, kind: Kind, hash: Hash) -> Self {
        self.with_root(Child::Blinded { is_value: kind == Kind::Value, hash })
    }

    /// Whether only its hash is known.
    pub fn is_shallow(&self) -> bool {
        matches!(self.root, Child::Blinded { .. })
    }

    /// The hashing rules.
    pub fn rules(&self) -> &Rules {
        &self.env.rules
    }

    /// Whether it is a value or a directory.
    pub fn kind(&self) -> Kind {
        if self.root.is_value() { Kind::Value } else { Kind::Directory }
    }

    /// Whether it is the empty directory. No I/O.
    pub fn is_empty(&self) -> bool {
        matches!(&self.root, Child::Dir(node) if node.count() == 0)
    }

    /// The value, if it is one.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn to_value(&self) -> Result<Option<Vec<u8>>> {
        Spot::Own(&self.root).value(&self.env)
    }

    /// The hash: of everything that has changed since it was last asked for, on one thread.
    pub fn hash(&self) -> Hash {
        self.hash_on(1)
    }

    pub(crate) fn hash_on(&self, threads: usize) -> Hash {
        match &self.root {
            Child::Dir(node) => digest::hash(&self.env, node, threads).0,
            Child::Value(value) => {
                *value.hash.get_or_init(|| self.env.rules.value_hash(&value.bytes))
            }
            other => digest::spot_hash(&self.env, Spot::Own(other)),
        }
    }

    /// What is bound at a path of at least one step.
    fn locate<'a>(&'a self, path: &[&[u8]]) -> Result<Option<Spot<'a>>> {
        let mut spot = Spot::Own(&self.root);
        for (depth, step) in path.iter().enumerate() {
            let here = |error| at_path(error, path.get(..depth).unwrap_or_default());
            let Some(dir) = spot.dir(&self.env).map_err(here)? else { return Ok(None) };
            match dir.locate(&self.env, step).map_err(|error| at_path(error, &path[..=depth]))? {
                Some(found) => spot = found,
                None => return Ok(None),
            }
        }
        Ok(Some(spot))
    }

    /// Whether a value is bound at `path`.
    ///
    /// Cost: one read for each directory and inode on the way that is not in memory.
    ///
    /// # Errors
    /// [`Disk`](Error::Disk), [`Corrupt`](Error::Corrupt), [`Collected`](Error::Collected),
    /// [`DanglingHash`](Error::DanglingHash) behind a shallow tree, and in a proof [`NotProvided`](Error::NotProvided).
    pub fn mem<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        let steps = Steps::new(path);
        Ok(self.locate(steps.as_slice())?.is_some_and(Spot::is_value))
    }

    /// Whether a value or a directory is bound at `path`.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn mem_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<bool> {
        Ok(self.locate(Steps::new(path).as_slice())?.is_some())
    }

    /// The value at `path`; none for a directory, an absent path, and a path that runs through a value.
    ///
    /// Cost: that of [`mem`](Self::mem), and one read for a value of more than 48 bytes.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn find<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Vec<u8>>> {
        let steps = Steps::new(path);
        match self.locate(steps.as_slice())? {
            Some(spot) => spot.value(&self.env).map_err(|error| at_path(error, steps.as_slice())),
            None => Ok(None),
        }
    }

    /// The tree at `path`, if there is one.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn find_tree<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<Option<Self>> {
        let found = self.locate(Steps::new(path).as_slice())?;
        Ok(found.map(|spot| self.with_root(spot.to_child())))
    }

    /// How many children the directory at `path` has; 0 for a value and where nothing is.
    ///
    /// Cost: that of [`mem_tree`](Self::mem_tree), and one read at most, whatever the number.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn length<S: AsRef<[u8]>>(&self, path: &[S]) -> Result<u64> {
        let steps = Steps::new(path);
        let Some(spot) = self.locate(steps.as_slice())? else { return Ok(0) };
        let dir = spot.dir(&self.env).map_err(|error| at_path(error, steps.as_slice()))?;
        Ok(dir.map_or(0, |dir| dir.count()))
    }

    /// Children of the directory at `path`, from the `offset`-th on, at most `length`: none for a value and where
    /// nothing is. Their order is that of storage; the same tree has the same order always, so that pages concatenate.
    ///
    /// Cost: one read for each inode that is looked at, and for the heads of those that are skipped.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
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

    /// Binds a value at `path`. A directory there is replaced, and so is a value on the way. Says whether anything
    /// changed: an equal binding changes nothing. With the empty path the tree becomes the value.
    ///
    /// Cost: that of [`mem`](Self::mem).
    ///
    /// # Errors
    /// As [`mem`](Self::mem), and [`StepSize`](Error::StepSize), [`TooDeep`](Error::TooDeep), [`ValueSize`](Error::ValueSize).
    pub fn add<S: AsRef<[u8]>>(&mut self, path: &[S], value: impl Into<Box<[u8]>>) -> Result<bool> {
        let bytes = value.into();
        if bytes.len() >= 1 << 31 {
            return Err(Error::ValueSize { bytes: bytes.len() });
        }
        self.bind(Steps::new(path).as_slice(), Child::Value(Arc::new(Value::new(bytes))))
    }

    /// Binds a tree at `path`, sharing its objects; an empty directory unbinds what is there. A tree that belongs to no
    /// store is copied. Says whether anything changed.
    ///
    /// # Errors
    /// As [`add`](Self::add), and [`ForeignTree`](Error::ForeignTree) for a tree of another store that is not in memory.
    pub fn add_tree<S: AsRef<[u8]>>(&mut self, path: &[S], tree: &Self) -> Result<bool> {
        if tree.is_empty() {
            return self.remove(path);
        }
        let child = if Arc::ptr_eq(&self.env, &tree.env) {
            tree.root.clone()
        } else if tree.env.source.is_some() || tree.env.rules != self.env.rules {
            return Err(Error::ForeignTree);
        } else {
            tree.hash();
            copy(&tree.env, Spot::Own(&tree.root), Blinded::Keep)?
        };
        let changed = self.bind(Steps::new(path).as_slice(), child)?;
        self.pins.join(&tree.pins);
        Ok(changed)
    }

    fn bind(&mut self, path: &[&[u8]], child: Child) -> Result<bool> {
        check_steps(path)?;
        // Loaded, so that its height is known, here and above.
        let child = match child.dir(&self.env) {
            Ok(Some(node)) => Child::Dir(Arc::clone(node)),
            Ok(None) | Err(_) if !matches!(child, Child::DirAt(_)) => child,
            other => return other.map(|_| false),
        };
        let height = match &child {
            Child::Dir(node) => usize::from(node.height),
            _ => 0,
        };
        if path.len() + height > usize::from(HEIGHT_MAX) {
            return Err(Error::TooDeep { levels: path.len() + height });
        }
        let mut root = Some(self.take_root());
        let mut child = Some(child);
        let outcome = put(&self.env, &mut root, path, &mut child);
        self.root = root.unwrap_or_else(empty_dir);
        outcome.map_err(|error| at_path(error, path))
    }

    /// The root, so that it is held once while it is changed; a root that only has a link is loaded when it is needed.
    fn take_root(&mut self) -> Child {
        std::mem::replace(&mut self.root, Child::Blinded { is_value: true, hash: Hash([0; 32]) })
    }

    /// Unbinds the value or directory at `path`, and directories that are left empty. Says whether anything was
    /// there. With the empty path the tree becomes the empty directory.
    ///
    /// # Errors
    /// As [`mem`](Self::mem).
    pub fn remove<S: AsRef<[u8]>>(&mut self, path: &[S]) -> Result<bool> {
        let steps = Steps::new(path);
        if steps.as_slice().is_empty() {
            let changed = !self.is_empty();
            self.root = empty_dir();
            return Ok(changed);
        }
        if self.locate(steps.as_slice())?.is_none() {
            return Ok(false);
        }
        let mut root = Some(self.take_root());
        let outcome = unbind(&self.env, &mut root, steps.as_slice());
        self.root = root.unwrap_or_else(empty_dir);
        outcome.map_err(|error| at_path(error, steps.as_slice()))
    }

    /// Changes one binding: `change` gets the value at `path` and gives the new one, or none to unbind it.
    ///
    /// # Errors
    /// As [`add`](Self::add).
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

    /// Changes one binding: `change` gets the tree at `path` and gives the new one; none, or an empty directory, unbinds
    /// it.
    ///
    /// # Errors
    /// As [`add_tree`](Self::add_tree).
    pub fn update_tree<S: AsRef<[u8]>>(
        &mut self,
        path: &[S],
        change: impl FnOnce(Option<Self>) -> Option<Self>,
    ) -> Result<bool> {
        match change(self.find_tree(path)?) {
            Some(tree) => self.add_tree(path, &tree),
            None => self.remove(path),
        }
    }

    /// A tree of the same store that binds `value` at `path` and nothing else.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn singleton<S: AsRef<[u8]>>(
        &self,
        path: &[S],
        value: impl Into<Box<[u8]>>,
    ) -> Result<Self> {
        let mut tree = self.empty();
        tree.add(path, value)?;
        Ok(tree)
    }

    /// Keeps nothing from being collected but what the root reaches, if it is as it was stored: everything below is.
    pub(crate) fn unpin_older(&mut self) {
        let place = match &self.root {
            Child::Dir(node) => node.place.get().copied(),
            Child::DirAt(far) => Some(far.0.place),
            _ => None,
        };
        if let Some(pins) = place.and_then(|place| self.pins.only(place)) {
            self.pins = pins;
        }
    }

    /// Forgets what was loaded and can be loaded again. Changes that are not stored stay.
    ///
    /// Cost: none; later reads load again.
    pub fn clear(&mut self) {
        if let Child::Dir(node) = &self.root
            && let Some(link) = node.link()
        {
            self.root = Child::DirAt(Box::new((link, OnceLock::new())));
        }
    }
}

/// Visits up to `length` children after skipping `offset`; whole buckets are skipped by their counts. `visit` gives how
/// many it has had.
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

/// Binds `child` at `path` below `slot`; says whether that changed anything.
fn put(
    env: &Env,
    slot: &mut Option<Child>,
    path: &[&[u8]],
    child: &mut Option<Child>,
) -> Result<bool> {
    let Some((step, rest)) = path.split_first() else {
        let new = child.take().expect("bound once");
        if let Some(old) = slot.as_ref()
            && is_same(env, old, &new)?
        {
            return Ok(false);
        }
        *slot = Some(new);
        return Ok(true);
    };
    let (mut dir, kept) = match take_dir(env, slot)? {
        Some(dir) => (dir, None),
        None => (Arc::new(Node::empty(false)), slot.take()),
    };
    let outcome = edit(env, &mut dir, step, false, &mut |below| put(env, below, rest, child));
    *slot = match (&outcome, kept) {
        (Ok(true), _) | (_, None) => (dir.count() > 0).then_some(Child::Dir(dir)),
        (_, kept) => kept,
    };
    outcome
}

/// Takes a directory out, so that it is held once; leaves a value, or nothing, where it is.
fn take_dir(env: &Env, slot: &mut Option<Child>) -> Result<Option<Arc<Node>>> {
    let Some(child) = slot else { return Ok(None) };
    let Some(dir) = child.dir(env)?.map(Arc::clone) else { return Ok(None) };
    *slot = None;
    Ok(Some(dir))
}

/// Unbinds `path`, which is bound, below `slot`.
fn unbind(env: &Env, slot: &mut Option<Child>, path: &[&[u8]]) -> Result<bool> {
    let Some((step, rest)) = path.split_first() else {
        *slot = None;
        return Ok(true);
    };
    let Some(mut dir) = take_dir(env, slot)? else { return Ok(false) };
    let outcome = edit(env, &mut dir, step, true, &mut |below| unbind(env, below, rest));
    *slot = (dir.count() > 0).then_some(Child::Dir(dir));
    outcome
}

/// Whether a binding is the one that is to be made. Where both hashes are known they decide; otherwise values are compared
/// by their bytes, and directories by being the very same, so that no directory is hashed.
fn is_same(env: &Env, old: &Child, new: &Child) -> Result<bool> {
    if old.is_value() != new.is_value() {
        return Ok(false);
    }
    if let (Some(old), Some(new)) = (known_hash(old), known_hash(new)) {
        return Ok(old == new);
    }
    Ok(match (old, new) {
        (Child::Value(old), Child::Value(new)) => old.bytes == new.bytes,
        (Child::ValueAt(link), Child::Value(new)) => {
            new.bytes.len() + 16 > link.place.bytes as usize && *env.load_value(link)? == *new.bytes
        }
        (Child::Blinded { hash, .. }, Child::Value(new)) => {
            env.rules.value_hash(&new.bytes) == *hash
        }
        (Child::Dir(old), Child::Dir(new)) => Arc::ptr_eq(old, new),
        _ => false,
    })
}

/// The hash, if it takes no hashing.
fn known_hash(child: &Child) -> Option<Hash> {
    match child {
        Child::Value(value) => value.hash.get().copied(),
        Child::Dir(node) => node.hash.get().copied(),
        Child::ValueAt(link) => Some(link.hash),
        Child::DirAt(far) => Some(far.0.hash),
        Child::Blinded { hash, .. } => Some(*hash),
    }
}

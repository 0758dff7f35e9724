//! Differences of two states of a tree, address by address.
//!
//! The walk goes down both trees side by side and skips every edge with one hash in both.

use std::sync::Arc;

use crate::base::address::{ADDRESS_BYTES_MAX, Address, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::Root;
use crate::node::branch::Branch;
use crate::node::node::{Edge, EdgeRef, Node, common};
use crate::records::node_store::{Loaded, NodePlace};
use crate::store::inner::{Inner, edge_of};
use crate::store::leaves::View;
use crate::store::store::Tree;

/// An address whose values differ in two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The address.
    pub address: Address,
    /// Its value in the first state.
    pub before: Option<Vec<u8>>,
    /// Its value in the second state. At least one of both values is present.
    pub after: Option<Vec<u8>>,
}

/// A place in a tree.
#[derive(Debug, Clone)]
enum Position {
    Nothing,
    /// An edge, and how many tokens of its extension lie above the place.
    Edge(Edge, usize),
}

/// Subtrees below a node, or below a place within an extension.
#[derive(Debug, Clone)]
enum Subtrees {
    Nothing,
    One(u8, Position),
    Branch(Arc<Branch>),
}

type Value = Option<Arc<[u8]>>;

/// Work that is left: a stack, the next on top.
enum Pending {
    Both(Prefix, Position, Position),
    /// Children from these tokens on.
    Children(Prefix, Subtrees, Subtrees, u16),
    Value(Prefix, Value, Value),
}

/// The differences of two states; see [`Tree::diff`]. After an error it ends.
pub struct Diff<'a> {
    inner: Arc<Inner>,
    view: View<'a>,
    from: Root,
    to: Root,
    pending: Vec<Pending>,
}

impl std::fmt::Debug for Diff<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Diff")
            .field("from", &self.from)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// Addresses whose values differ in two states, ascending. The iterator reads lazily from one
    /// snapshot.
    ///
    /// Cost: reads the nodes above the differences that are not in memory; skips what both states
    /// share at the same place. Memory: one path of both trees.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn diff(&self, from: &Root, to: &Root) -> Result<Diff<'static>> {
        let (reader, before) = self.open(from)?;
        let after = edge_of(&*reader, self.tree_name().id, self.name(), to)?;
        let inner = Arc::clone(self.inner());
        Ok(Diff::new(inner, View::Snapshot(reader), before.as_ref(), after.as_ref()))
    }
}

impl Position {
    fn of(edge: Option<&Edge>) -> Self {
        edge.map_or(Self::Nothing, |edge| Self::Edge(edge.clone(), 0))
    }

    /// The rest of the extension.
    fn extension(&self) -> Option<&[u8]> {
        match self {
            Self::Nothing => None,
            Self::Edge(edge, above) => Some(&edge.extension.as_bytes()[*above..]),
        }
    }

    /// Whether both subtrees are known to be equal without a read.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Edge(one, 0), Self::Edge(two, 0)) => one.top == two.top,
            // Within an extension no hash is stored: the rest of it and the node below tell.
            (Self::Edge(one, _), Self::Edge(two, _)) => {
                self.extension() == other.extension() && one.end == two.end
            }
            _ => false,
        }
    }
}

impl Subtrees {
    /// The first token from `from` on.
    fn token(&self, from: u16) -> Option<u8> {
        match self {
            Self::Nothing => None,
            Self::One(token, _) => Some(*token).filter(|token| u16::from(*token) >= from),
            Self::Branch(branch) => (0..branch.len())
                .map(|at| branch.token_at(at))
                .find(|token| u16::from(*token) >= from),
        }
    }

    fn child(&self, token: u8) -> Position {
        match self {
            Self::One(own, at) if *own == token => at.clone(),
            Self::Nothing | Self::One(..) => Position::Nothing,
            Self::Branch(branch) => {
                Position::of(branch.child(token).map(EdgeRef::to_edge).as_ref())
            }
        }
    }

    /// Whether the child of a token has one hash in both branches. Copies nothing: most children
    /// do.
    fn has_same_child(&self, other: &Self, token: u8) -> bool {
        let (Self::Branch(one), Self::Branch(two)) = (self, other) else { return false };
        match (one.child(token), two.child(token)) {
            (Some(one), Some(two)) => one.top == two.top,
            _ => false,
        }
    }
}

impl<'a> Diff<'a> {
    /// The differences of two whole trees.
    pub(crate) fn new(
        inner: Arc<Inner>,
        view: View<'a>,
        before: Option<&Edge>,
        after: Option<&Edge>,
    ) -> Self {
        let root = |edge: Option<&Edge>| edge.map_or(Root::EMPTY, |edge| edge.top);
        let both = Pending::Both(Prefix::EMPTY, Position::of(before), Position::of(after));
        Self { inner, view, from: root(before), to: root(after), pending: vec![both] }
    }

    /// The value and the subtrees `along` tokens further, where `path` leads.
    fn open(
        &self,
        root: &Root,
        path: Prefix,
        at: Position,
        along: usize,
    ) -> Result<(Value, Subtrees)> {
        let Position::Edge(edge, above) = at else { return Ok((None, Subtrees::Nothing)) };
        let above = above + along;
        if let Some(&token) = edge.extension.as_bytes().get(above) {
            return Ok((None, Subtrees::One(token, Position::Edge(edge, above + 1))));
        }

        let node = match edge.end {
            Node::Leaf(value) => return Ok((Some(value), Subtrees::Nothing)),
            Node::Stored(node) => node,
        };

        Ok(
            match self
                .inner
                .nodes(self.view.reader(), root)
                .load_whole(&NodePlace { node, path })?
            {
                Loaded::Value(value) => (Some(value), Subtrees::Nothing),
                Loaded::Branch(branch) => {
                    (branch.value().map(Into::into), Subtrees::Branch(branch))
                }
            },
        )
    }

    /// Follows the common part of both extensions, and opens the place behind it.
    fn both(&mut self, mut path: Prefix, one: Position, two: Position) -> Result<()> {
        if one.is_same(&two) {
            return Ok(());
        }

        debug_assert!(path.as_bytes().len() <= ADDRESS_BYTES_MAX);
        let along = match (one.extension(), two.extension()) {
            (Some(one), Some(two)) => common(one, two),
            // Where one tree has nothing, all of the other's extension is followed.
            (one, two) => one.or(two).unwrap_or_default().len(),
        };

        path.extend(&one.extension().or(two.extension()).unwrap_or_default()[..along]);
        let (before, ones) = self.open(&self.from, path, one, along)?;
        let (after, twos) = self.open(&self.to, path, two, along)?;
        // Pushed first, so that the value, whose address is shorter, comes first.
        self.pending.push(Pending::Children(path, ones, twos, 0));

        if before != after {
            self.pending.push(Pending::Value(path, before, after));
        }

        Ok(())
    }

    /// Pushes the next children that differ on top of the rest.
    fn children(&mut self, path: Prefix, ones: Subtrees, twos: Subtrees, mut from: u16) {
        loop {
            let token = match (ones.token(from), twos.token(from)) {
                (Some(one), Some(two)) => one.min(two),
                (one, two) => match one.or(two) {
                    Some(token) => token,
                    None => return,
                },
            };

            from = u16::from(token) + 1;
            if ones.has_same_child(&twos, token) {
                continue;
            }

            let both = (ones.child(token), twos.child(token));
            let mut below = path;
            below.extend(&[token]);
            // The rest lies below the child on the stack, so that addresses ascend.
            self.pending.push(Pending::Children(path, ones, twos, from));
            return self.pending.push(Pending::Both(below, both.0, both.1));
        }
    }
}

impl Iterator for Diff<'_> {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.pending.pop()? {
                Pending::Both(path, one, two) => {
                    if let Err(error) = self.both(path, one, two) {
                        // The place is lost, so nothing may follow the error.
                        self.pending.clear();
                        return Some(Err(error));
                    }
                }
                Pending::Children(path, ones, twos, from) => self.children(path, ones, twos, from),
                Pending::Value(path, before, after) => {
                    let root = if before.is_some() { self.from } else { self.to };
                    let address = Address::try_from(path).map_err(|_| Error::Corruption {
                        root: Some(root),
                        path,
                        node: root,
                        what: "the empty address has a value".into(),
                    });

                    if address.is_err() {
                        self.pending.clear();
                    }

                    let bytes = |value: Value| value.map(|value| value.to_vec());
                    return Some(address.map(|address| Difference {
                        address,
                        before: bytes(before),
                        after: bytes(after),
                    }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::base::change::Change;
    use crate::store::options::Options;
    use crate::store::store::{INDEXES, Store};
    use terrane_kv::Memory;
    use terrane_kv::{Cursor, Reader, Table};

    /// Counts the records that are read.
    struct Counting {
        reader: Box<dyn Reader + Send>,
        reads: Arc<AtomicU64>,
    }

    impl Reader for Counting {
        fn get(&self, table: Table<'_>, key: &[u8]) -> terrane_kv::Result<Option<Vec<u8>>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.reader.get(table, key)
        }

        fn cursor(&self, table: Table<'_>) -> terrane_kv::Result<Box<dyn Cursor + '_>> {
            self.reader.cursor(table)
        }

        fn count(&self, table: Table<'_>) -> terrane_kv::Result<u64> {
            self.reader.count(table)
        }
    }

    /// Differences, and how many records they took.
    fn counted(tree: &Tree, from: &Root, to: &Root, count: usize) -> (Vec<Difference>, u64) {
        let mut diff = tree.diff(from, to).unwrap();
        let reads = Arc::new(AtomicU64::new(0));
        let View::Snapshot(reader) = diff.view else { panic!("it has a snapshot") };
        diff.view = View::Snapshot(Box::new(Counting { reader, reads: Arc::clone(&reads) }));
        let found = diff.take(count).map(Result::unwrap).collect();
        (found, reads.load(Ordering::Relaxed))
    }

    #[test]
    fn only_what_differs_is_read_and_only_when_it_is_asked_for() {
        let database = Arc::new(Memory::new(&INDEXES).unwrap());
        let store = Store::open(database, &Options { cache_bytes: 0, threads: 1 }).unwrap();
        let tree = store.create_tree("tree").unwrap();

        let address = |at: u64| {
            let spread = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            Address::new(&spread.to_le_bytes()).unwrap()
        };

        let set = |at| Change::Set(address(at), b"value".to_vec());
        let all: Vec<Change> = (1..=4_000).map(set).collect();
        let one = tree.commit(&Root::EMPTY, &all).unwrap().root;
        let changes = [Change::Delete(address(7)), Change::Set(address(700), b"other".to_vec())];
        let two = tree.commit(&one, &changes).unwrap().root;

        let (found, reads) = counted(&tree, &one, &two, usize::MAX);
        let mut changed: Vec<Address> = vec![address(7), address(700)];
        changed.sort();
        assert_eq!(found.iter().map(|found| found.address).collect::<Vec<_>>(), changed);

        // Two ways of at most three branches, in both trees.
        assert!((2..=12).contains(&reads), "{reads} records");

        assert_eq!(counted(&tree, &one, &one, usize::MAX), (Vec::new(), 0));
        let (found, reads) = counted(&tree, &Root::EMPTY, &two, 1);
        assert_eq!(found.len(), 1);
        assert!((1..=3).contains(&reads), "{reads} records for the first one");
        let (found, reads) = counted(&tree, &two, &Root::EMPTY, usize::MAX);
        assert_eq!(found.len(), 3_999);

        assert!(reads > 256, "{reads} records for all");
    }
}

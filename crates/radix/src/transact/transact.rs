//! Nodes of a state as Transact keeps them in the main table of its database: the hash as 64 hex
//! digits, and the CBOR bytes.
//!
//! The export has a defined order; the import takes the entries that Transact wrote.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::commit::bulk::Bulk;
use crate::commit::hashing::hash_node;
use crate::node::decode::PlainNode;
use crate::node::node::{Broken, Edge, Node};
use crate::records::node_store::{Loaded, NodePlace};
use crate::store::inner::Inner;
use crate::store::store::Tree;
use crate::store::transaction::Committed;
use crate::transfer::version::{ExchangeError, take};
use terrane_kv::Reader;

/// The nodes of a state; see [`Tree::export_nodes`]. After an error it ends.
pub struct StateNodes {
    inner: Arc<Inner>,
    reader: Box<dyn Reader + Send>,
    root: Root,
    /// Edges still to come, the next on top.
    pending: Vec<(Prefix, Edge)>,
    ready: VecDeque<(NodeHash, Vec<u8>)>,
    known: BTreeSet<NodeHash>,
}

impl std::fmt::Debug for StateNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateNodes").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Tree {
    /// Exports the nodes of a state, hash and CBOR bytes, each once: the root first, then the nodes
    /// below each child, children ascending by token. The iterator reads lazily from one snapshot.
    ///
    /// Cost: reads each node once, hashes every node and compares. Memory: the hash of each node.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn export_nodes(&self, root: &Root) -> Result<StateNodes> {
        let (reader, edge) = self.open(root)?;
        let mut ready = VecDeque::new();
        if edge.is_none() {
            ready.push_back((NodeHash::EMPTY, PlainNode::default().encode()));
        }

        Ok(StateNodes {
            inner: Arc::clone(self.inner()),
            reader,
            root: *root,
            pending: edge.into_iter().map(|edge| (Prefix::EMPTY, edge)).collect(),
            ready,
            known: BTreeSet::new(),
        })
    }

    /// Imports a state from the nodes that Transact keeps: entries of its main table in any order,
    /// hash as 64 hex digits and CBOR bytes. The call takes the entries that `root` reaches, and
    /// retains the state as [`import`](Self::import) does. It refuses a state of more than
    /// `values_max` values: nodes that recur can stand for more values than can be counted.
    ///
    /// Cost: that of `import`, and memory for all entries.
    /// [`import_nodes_by`](Self::import_nodes_by) needs less.
    ///
    /// # Errors
    /// [`ExchangeError::BrokenNode`] for any entry that does not hash to its name or is not in the
    /// form that Transact gives it, [`ExchangeError::MissingNode`],
    /// [`ExchangeError::TooManyValues`], and as `import`.
    pub fn import_nodes<E>(
        &self,
        root: &Root,
        entries: impl IntoIterator<Item = std::io::Result<(E, Vec<u8>)>>,
        values_max: u64,
    ) -> std::result::Result<Committed, ExchangeError>
    where
        E: AsRef<str>,
    {
        let mut nodes = BTreeMap::new();
        for (at, entry) in (0..).zip(entries) {
            let (hash, bytes) = entry.map_err(|source| ExchangeError::Io { at, source })?;
            let hash: NodeHash = hash.as_ref().parse().map_err(|why| {
                ExchangeError::from(Error::InvalidRoot { text: hash.as_ref().into(), why })
            })?;
            nodes.insert(hash, checked(&hash, &bytes)?);
        }
        let mut find = |hash: &NodeHash| Ok(nodes.get(hash).cloned());
        self.import_nodes_from(root, &mut find, values_max)
    }

    /// Imports a state through a function that returns the bytes of a node by its hash, as a
    /// database of Transact can. Memory: one path.
    ///
    /// # Errors
    /// Those of [`import_nodes`](Self::import_nodes).
    pub fn import_nodes_by(
        &self,
        root: &Root,
        mut lookup: impl FnMut(&NodeHash) -> std::io::Result<Option<Vec<u8>>>,
        values_max: u64,
    ) -> std::result::Result<Committed, ExchangeError> {
        let mut find = |hash: &NodeHash| {
            let bytes = lookup(hash).map_err(|source| ExchangeError::Io { at: 0, source })?;
            bytes.map(|bytes| checked(hash, &bytes)).transpose()
        };
        self.import_nodes_from(root, &mut find, values_max)
    }

    fn import_nodes_from(
        &self,
        root: &Root,
        find: &mut Find<'_>,
        values_max: u64,
    ) -> std::result::Result<Committed, ExchangeError> {
        let mut transaction = self.transaction()?;
        let mut bulk = Bulk::new();
        let mut values = 0;

        // Nodes still to come, the next on top.
        let mut pending = vec![(Prefix::EMPTY, *root)];
        while let Some((path, hash)) = pending.pop() {
            let node = match find(&hash)? {
                Some(node) => node,
                None if hash == NodeHash::EMPTY => Arc::default(),
                None => return Err(ExchangeError::MissingNode { node: hash, path }),
            };

            node.check(path.as_bytes().len()).map_err(|Broken(rule)| {
                let rule = format!("at {path:?}: {rule}");
                ExchangeError::BrokenNode { node: hash, rule }
            })?;

            if let (Some(value), Ok(address)) = (&node.value, Address::try_from(path)) {
                // Nodes that recur can stand for more values than can be counted.
                values += 1;
                if values > values_max {
                    return Err(ExchangeError::TooManyValues { max: values_max });
                }
                bulk.push(transaction.writer(), &address, value.to_vec())?;
            }

            // The least token goes on top, since `Bulk` takes addresses that ascend.
            for (token, hash) in node.children.iter().rev() {
                let mut path = path;
                path.extend(&[*token]);
                pending.push((path, *hash));
            }
        }

        take(self, transaction, bulk, root, &[])
    }
}

/// Finds a node whose bytes are checked.
type Find<'a> =
    dyn FnMut(&NodeHash) -> std::result::Result<Option<Arc<PlainNode>>, ExchangeError> + 'a;

/// Parses a node; refuses bytes that do not hash to its name or are not the one encoding.
fn checked(hash: &NodeHash, bytes: &[u8]) -> std::result::Result<Arc<PlainNode>, ExchangeError> {
    let broken = |rule: String| ExchangeError::BrokenNode { node: *hash, rule };
    let found = hash_node(bytes);
    if found != *hash {
        return Err(broken(format!("its bytes hash to {found}")));
    }
    PlainNode::decode(bytes).map(Arc::new).map_err(|Broken(rule)| broken(rule.into()))
}

impl StateNodes {
    fn corruption(&self, path: Prefix, node: NodeHash, found: NodeHash) -> Error {
        let what = format!("a node that hashes to {found}");
        Error::Corruption { root: Some(self.root), path, node, what }
    }

    /// Queues the nodes of an edge that were not returned yet. All nodes below a returned node are
    /// returned or pending.
    fn open(&mut self, mut path: Prefix, edge: &Edge) -> Result<()> {
        if self.known.contains(&edge.top) {
            return Ok(());
        }

        let mut end_path = path;
        end_path.extend(edge.extension.as_bytes());
        let loaded = match &edge.end {
            Node::Leaf(value) => Loaded::Value(Arc::clone(value)),
            Node::Stored(node) => {
                let nodes = self.inner.nodes(&*self.reader, &self.root);
                nodes.load_whole(&NodePlace { node: *node, path: end_path })?
            }
        };

        let end = match &loaded {
            Loaded::Value(value) => {
                PlainNode { value: Some(Arc::clone(value)), children: Vec::new() }
            }
            Loaded::Branch(branch) => PlainNode::of(branch),
        };

        let mut bytes = end.encode();
        let mut hash = hash_node(&bytes);
        // A wrong hash in the store would give nodes that an importer refuses.
        if let Node::Stored(node) = &edge.end
            && hash != *node
        {
            return Err(self.corruption(end_path, *node, hash));
        }

        let is_new = !self.known.contains(&hash);
        let mut upwards = Vec::with_capacity(edge.extension.as_bytes().len() + 1);
        for token in edge.extension.as_bytes().iter().rev() {
            let above = PlainNode { value: None, children: vec![(*token, hash)] };
            upwards.push((hash, std::mem::replace(&mut bytes, above.encode())));
            hash = hash_node(&bytes);
        }

        upwards.push((hash, bytes));
        if hash != edge.top {
            return Err(self.corruption(path, edge.top, hash));
        }

        for (hash, bytes) in upwards.into_iter().rev() {
            // All nodes below a known node are known, and so is the rest of the extension.
            if !self.known.insert(hash) {
                break;
            }
            self.ready.push_back((hash, bytes));
        }

        path.extend(edge.extension.as_bytes());
        if let (true, Loaded::Branch(branch)) = (is_new, loaded) {
            for at in (0..branch.len()).rev() {
                let mut path = path;
                path.extend(&[branch.token_at(at)]);
                self.pending.push((path, branch.edge_at(at).to_edge()));
            }
        }

        Ok(())
    }
}

impl Iterator for StateNodes {
    type Item = Result<(NodeHash, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(node) = self.ready.pop_front() {
                return Some(Ok(node));
            }
            let (path, edge) = self.pending.pop()?;
            if let Err(error) = self.open(path, &edge) {
                self.pending.clear();
                return Some(Err(error));
            }
        }
    }
}

//! A table of a caller's store, committed to a root.
//!
//! ```text
//! NAME          key               value
//! NAME_hashes   hash of key       key
//! NAME_nodes    path              record
//! ```
//!
//! The trie is secure: its keys are the hashes of the table's keys. In a Merkle-Patricia trie its
//! values are the table's values as they are, empty ones included; in a binary tree, their hashes.
//! `NAME_hashes` gives the entries in the order of the trie, where a leaf moves up or is split.
//!
//! Nodes that batches have visited stay in memory. The root that a batch finds tells whether the
//! one before was written.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};

use alloy_primitives::{B256, Bytes};
use terrane_lsm::{Cursor, NamedTable, RecordRef, Store, Table, TableConfig, WriteBatch};

use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::base::proof_error::ProofError;
use crate::proof::walk::{EmptyValues, verify};
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::TableScheme;
use crate::state::node_cache::{NODE_CACHE_BYTES, NodeCache, NodeChanges, NodeKind};
use crate::state::source::value;
use crate::trie::binary::nearest;
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;
use crate::trie::update::{Answer, Change, LEAVES_MAX, Outcome, Update, Want};

/// Records that are compared together.
const COMPARED_TOGETHER: usize = 1024;

/// A table of any keys and values whose content has a root, in a store that the caller has open.
///
/// The table is read like any other one. Changes go through [`stage`](Self::stage), which adds them
/// and the nodes to a batch of the caller: other tables of the store can change in the same commit.
///
/// ```
/// use terrane_lsm::{Store, StoreOptions, WriteBatch};
/// use terrane_mpt::CommittedTable;
///
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let table = CommittedTable::open(&store, "ledger")?;
///
/// let mut batch = WriteBatch::new();
/// let staged = table.stage(&[(b"alice".to_vec(), Some(b"100".to_vec()))], &mut batch)?;
/// store.write_if(&batch, staged.commit)?.wait()?;
///
/// assert_eq!(table.root()?, staged.root);
/// let proof = table.prove(b"alice")?;
/// let proved = CommittedTable::verify_proof(staged.root, b"alice", &proof)?;
/// assert_eq!(proved.as_deref(), Some(&b"100"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With another scheme, [`BinaryTree`](crate::BinaryTree), the root is that of EIP-7864 over the
/// BLAKE3 hashes of keys and values:
///
/// ```
/// use terrane_lsm::{Store, StoreOptions, WriteBatch};
/// use terrane_mpt::{BinaryTree, CommittedTable, TableScheme, verify_binary_proof};
///
/// # let folder = tempfile::tempdir()?;
/// # let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let table = CommittedTable::<BinaryTree>::open_with_scheme(&store, "ledger")?;
/// let mut batch = WriteBatch::new();
/// let staged = table.stage(&[(b"alice".to_vec(), Some(b"100".to_vec()))], &mut batch)?;
/// store.write_if(&batch, staged.commit)?.wait()?;
///
/// let proof = table.prove(b"alice")?;
/// let proved = verify_binary_proof(staged.root, &BinaryTree::hash_key(b"alice"), &proof)?;
/// assert_eq!(proved, Some(BinaryTree::hash_key(b"100")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CommittedTable<S = KeccakMpt> {
    store: Store,
    entries: NamedTable,
    hashes: NamedTable,
    nodes: NamedTable,
    cache: Arc<Mutex<TableCache>>,
    scheme: PhantomData<S>,
}

/// Nodes in memory, shared by all clones of a handle.
#[derive(Debug)]
struct TableCache {
    nodes: NodeCache,
    /// The batch that was staged last: the root before it, its nodes, the root after it.
    staged: Option<(B256, NodeChanges, B256)>,
}

impl TableCache {
    fn new(bytes: u64) -> Self {
        Self { nodes: NodeCache::new(bytes), staged: None }
    }

    /// The cache at the root that a view has, which tells whether the last batch was written.
    fn at(&mut self, root: B256) -> &mut NodeCache {
        if let Some((before, nodes, after)) = self.staged.take()
            && root == after
        {
            self.nodes.advance(before, nodes, after);
        }
        self.nodes.at(root)
    }
}

/// Changes that were added to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the root is that of the table once the batch is written"]
pub struct Staged {
    /// The root after the batch.
    pub root: B256,
    /// The last commit that the root relies on, for
    /// [`Store::write_if`](terrane_lsm::Store::write_if).
    pub commit: u64,
}

/// The three tables as one commit left them.
struct TableViews<S> {
    commit: u64,
    entries: Arc<Table>,
    hashes: Arc<Table>,
    nodes: Arc<Table>,
    scheme: PhantomData<S>,
}

impl CommittedTable {
    /// Opens the table of a name, or makes it: the tables `NAME`, `NAME_hashes` and `NAME_nodes` of
    /// the store. Nobody else may write to them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open(store: &Store, name: &str) -> Result<Self> {
        Self::open_with_scheme(store, name)
    }

    /// Returns the value of a key in a table of this root, or `None` if the nodes prove that the
    /// table does not have it.
    ///
    /// Cost: no I/O; hashes each node once.
    ///
    /// # Errors
    /// [`ProofError`] if the nodes prove neither.
    pub fn verify_proof(
        root: B256,
        key: &[u8],
        nodes: &[Bytes],
    ) -> std::result::Result<Option<Vec<u8>>, ProofError> {
        verify(root, KeccakMpt::hash_key(key).as_slice(), nodes, EmptyValues::Taken)
    }
}

impl<S: TableScheme> CommittedTable<S> {
    /// Opens the table of a name with the root of a scheme, or makes it, as
    /// [`open`](CommittedTable::open). A table has one scheme for good.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open_with_scheme(store: &Store, name: &str) -> Result<Self> {
        let table = |name: &str| store.table_or_create(name, &TableConfig::default());
        Ok(Self {
            store: store.clone(),
            entries: table(name)?,
            hashes: table(&format!("{name}_hashes"))?,
            nodes: table(&format!("{name}_nodes"))?,
            cache: Arc::new(Mutex::new(TableCache::new(NODE_CACHE_BYTES))),
            scheme: PhantomData,
        })
    }

    /// The same table with so many bytes of memory for nodes that batches have visited, beside the
    /// memory of the store: 64 MiB unless set; 0 keeps none.
    #[must_use]
    pub fn node_cache(mut self, bytes: u64) -> Self {
        self.cache = Arc::new(Mutex::new(TableCache::new(bytes)));
        self
    }

    /// The table of keys and values, for reading.
    #[must_use]
    pub fn entries(&self) -> &NamedTable {
        &self.entries
    }

    /// The root of all entries.
    ///
    /// Cost: a lookup, and a cursor if the table has few entries.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Corruption`], [`Error::CorruptEntry`].
    pub fn root(&self) -> Result<B256> {
        self.views()?.root()
    }

    /// Adds changes of entries (`None` deletes) to a batch, with the changes of nodes, and returns
    /// the root after them. Deleting an absent key changes nothing. The caller writes the batch
    /// unless another commit came between, and stages nothing else for this table meanwhile.
    ///
    /// Cost: a batch of lookups for the entries, that of [`root`](Self::root), and a batch of
    /// lookups for each level of the trie, of nodes that are not in memory.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] for a key that is named twice; [`Error::Store`];
    /// [`Error::Corruption`], [`Error::CorruptEntry`]. The batch is as before then.
    pub fn stage(
        &self,
        changes: &[(Vec<u8>, Option<Vec<u8>>)],
        batch: &mut WriteBatch,
    ) -> Result<Staged> {
        let views = self.views()?;
        let keys: Vec<&[u8]> = changes.iter().map(|(key, _)| key.as_slice()).collect();
        let found = views.entries.get_many(&keys)?;

        let mut updates = Vec::new();
        let mut staged = Vec::new();
        for ((key, after), before) in changes.iter().zip(&found) {
            let hash = S::hash_key(key);
            let existed = before.value().is_some();
            let leaf = after.as_deref().map(|value| S::leaf_value(&hash, value));
            let change = Change { key: hash[..S::PATH_BYTES].to_vec(), existed, after: leaf };
            updates.push(change);
            if before.value() != after.as_deref() {
                staged.push((hash, key, after, existed));
            }
        }

        let update = Update::new_of_any_values(updates)?;
        let root = views.root()?;
        let mut cache = self.cache();
        let outcome = views.finish(update, cache.at(root))?;
        let mut nodes = NodeChanges::default();
        for change in outcome.nodes {
            let record = change.after.as_ref().map(Record::to_bytes);
            match &record {
                Some(record) => batch.insert(&self.nodes, &change.path, record),
                None => batch.delete(&self.nodes, &change.path),
            }
            nodes.put(NodeKind::Account, change.path.to_vec(), record);
        }
        cache.staged = Some((root, nodes, outcome.root));
        drop(cache);
        for (hash, key, after, existed) in staged {
            match after {
                Some(value) => {
                    batch.insert(&self.entries, key, value);
                    if !existed {
                        batch.insert(&self.hashes, hash, key);
                    }
                }
                None => {
                    batch.delete(&self.entries, key);
                    batch.delete(&self.hashes, hash);
                }
            }
        }
        Ok(Staged { root: outcome.root, commit: views.commit })
    }

    /// Adds the deletion of all entries and nodes to a batch.
    pub fn stage_clear(&self, batch: &mut WriteBatch) -> Staged {
        let commit = self.store.last_commit();
        for table in [&self.entries, &self.hashes, &self.nodes] {
            batch.delete_range::<[u8], _>(table, ..);
        }
        Staged { root: S::EMPTY_ROOT, commit }
    }

    /// Proves the value of a key, or its absence: the nodes on its path, from the root down. In a
    /// binary tree the nodes that prove an absence lead to the nearest other key.
    ///
    /// Cost: a lookup for the entry, and one for each level of the trie.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Corruption`] if entries and nodes disagree on the path.
    pub fn prove(&self, key: &[u8]) -> Result<Vec<Bytes>> {
        let views = self.views()?;
        let mut hash = S::hash_key(key);
        let mut after = value(views.entries.get(key)?);
        if S::PROVES_BY_NEIGHBOUR && after.is_none() {
            let Some((other, found)) = views.neighbour(&hash)? else { return Ok(Vec::new()) };
            (hash, after) = (other, Some(found));
        }

        let existed = after.is_some();
        let after = after.map(|value| S::leaf_value(&hash, &value));
        let touch = Change { key: hash[..S::PATH_BYTES].to_vec(), existed, after };
        let update = Update::new_of_any_values(vec![touch])?.with_encodings();
        let outcome = views.finish(update, &mut NodeCache::new(0))?;
        if !outcome.nodes.is_empty() {
            let what = "nodes that are not those of the entries";
            return Err(Error::corruption(&Path::default(), what));
        }
        Ok(outcome.encodings.into_iter().map(|(_, encoding)| encoding.into()).collect())
    }

    /// Derives all nodes from the entries again and compares them with the stored ones. Returns the
    /// number of entries.
    ///
    /// Cost: reads the table once, and its nodes in batches of lookups; hashes every node.
    ///
    /// # Errors
    /// [`Error::Corruption`] or [`Error::CorruptEntry`] for the first disagreement;
    /// [`Error::Store`].
    pub fn verify(&self) -> Result<u64> {
        let views = self.views()?;
        let mut builder = TrieBuilder::<S>::of_any_values();
        let mut cursor = views.hashes.cursor()?;
        let mut count = 0;
        let mut node_count = 0;
        loop {
            let page = views.next_page(&mut cursor, None, COMPARED_TOGETHER)?;
            for (path, leaf) in &page {
                builder.push(path, leaf)?;
            }
            count += page.len() as u64;
            node_count += views.compare(builder.take_nodes())?;
            if page.len() < COMPARED_TOGETHER {
                break;
            }
        }

        let (_, nodes) = builder.finish();
        node_count += views.compare(nodes)?;
        if views.entries.count_exact()? != count {
            return Err(Error::corrupt_entry("the number of hashes, or of entries"));
        }
        if views.nodes.count_exact()? != node_count {
            return Err(Error::corruption(&Path::default(), "a node without entries"));
        }
        Ok(count)
    }

    /// The nodes in memory: none, if a thread panicked while it changed them.
    fn cache(&self) -> MutexGuard<'_, TableCache> {
        self.cache.lock().unwrap_or_else(|poisoned| {
            let mut cache = poisoned.into_inner();
            cache.nodes.clear();
            cache.staged = None;
            self.cache.clear_poison();
            cache
        })
    }

    fn views(&self) -> Result<TableViews<S>> {
        // Taken first, so that a commit between makes the number too small.
        let commit = self.store.last_commit();
        let all = self.store.views(&[&self.entries, &self.hashes, &self.nodes])?;
        let mut views = all.into_iter();
        let mut next = || views.next().expect("a view of each table");
        let scheme = PhantomData;
        Ok(TableViews { commit, entries: next(), hashes: next(), nodes: next(), scheme })
    }
}

impl<S: TableScheme> TableViews<S> {
    /// The root, from the nodes alone.
    ///
    /// Cost: a lookup, and a cursor if the table has few entries.
    fn root(&self) -> Result<B256> {
        Ok(self.finish(Update::new_of_any_values(Vec::new())?, &mut NodeCache::new(0))?.root)
    }

    /// Supplies all that an update wants, with a cache at the root of the table, and finishes it.
    fn finish(&self, mut update: Update<S>, cache: &mut NodeCache) -> Result<Outcome> {
        while !update.wanted().is_empty() {
            let path = |want: &Want| match want {
                Want::Node(path) => Some(path.to_vec()),
                _ => None,
            };
            let keys: Vec<Vec<u8>> = update.wanted().iter().filter_map(path).collect();
            let nodes = cache.read(NodeKind::Account, &keys, |missing| {
                Ok(self.nodes.get_many(missing)?.into_iter().map(value).collect())
            })?;
            let mut nodes = nodes.into_iter();
            let answers = update.wanted().iter().map(|want| match want {
                Want::Node(_) => Ok(Answer::Node(nodes.next().flatten())),
                Want::Leaves(path) => self.leaves(path).map(Answer::Leaves),
                // All keys of the trie have one length, so none ends at a branch.
                Want::Value(path) => Err(Error::corruption(path, "a value in a branch")),
            });
            let answers = answers.collect::<Result<Vec<_>>>()?;
            update.supply(answers)?;
        }
        update.finish()
    }

    /// The leaves below a path, one more than an update takes at most.
    fn leaves(&self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (start, end) = path.key_range(S::DIGIT_BITS);
        let mut cursor = self.hashes.cursor_at(&start)?;
        self.next_page(&mut cursor, end.as_deref(), LEAVES_MAX + 1)
    }

    /// The next leaves: their paths as bytes, and their values.
    fn next_page(
        &self,
        cursor: &mut Cursor,
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut hashes = Vec::new();
        let mut keys = Vec::new();
        while hashes.len() < limit {
            let Some(record) = cursor.peek()? else { break };
            if end.is_some_and(|end| end <= record.key) {
                break;
            }
            hashes.push(hash_of::<S>(&record)?);
            keys.push(record.value.to_vec());
            cursor.next_ref()?;
        }

        let missing = || Error::corrupt_entry("a hash whose key has no value");
        let values = self.entries.get_many(&keys)?;
        let values = values.into_iter().map(|found| value(found).ok_or_else(missing));
        let leaf = |(hash, value): (B256, Result<Vec<u8>>)| {
            Ok((hash[..S::PATH_BYTES].to_vec(), S::leaf_value(&hash, &value?)))
        };
        hashes.into_iter().zip(values).map(leaf).collect()
    }

    /// The hash and the value of the key that is nearest to an absent one.
    fn neighbour(&self, hash: &B256) -> Result<Option<(B256, Vec<u8>)>> {
        let mut cursor = self.hashes.cursor()?;
        cursor.seek(hash.as_slice());
        let behind = cursor.peek()?.map(|record| record.key.to_vec());
        let before = cursor.peek_prev()?.map(|record| record.key.to_vec());
        let nearest = nearest(hash.as_slice(), before.as_deref(), behind.as_deref());
        let Some(nearest) = nearest else { return Ok(None) };

        let found = self.hashes.get(nearest)?;
        let key = found.value().ok_or(Error::corrupt_entry("a hash without a key"))?;
        let missing = Error::corrupt_entry("a hash whose key has no value");
        let value = value(self.entries.get(key)?).ok_or(missing)?;
        Ok(Some((S::hash_key(key), value)))
    }

    /// Compares derived records with the stored ones; returns their number.
    fn compare(&self, nodes: Vec<(Path, Record)>) -> Result<u64> {
        let derived: BTreeMap<Path, Record> = nodes.into_iter().collect();
        let keys: Vec<&[u8]> = derived.keys().map(|path| &path[..]).collect();
        for ((path, record), found) in derived.iter().zip(self.nodes.get_many(&keys)?) {
            if found.value() != Some(&record.to_bytes()) {
                return Err(Error::corruption(path, "a node that is not that of the entries"));
            }
        }
        Ok(derived.len() as u64)
    }
}

/// The hash that an entry of `NAME_hashes` stands at, which must be that of its key.
fn hash_of<S: TableScheme>(record: &RecordRef<'_>) -> Result<B256> {
    let hash = S::hash_key(record.value);
    (hash == *record.key).then_some(hash).ok_or(Error::corrupt_entry("the hash of a key"))
}

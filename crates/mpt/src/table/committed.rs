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
//! one before was written. Values that were read stay until the next commit of the store.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};

use alloy_primitives::{B256, Bytes};
use terrane_lsm::{Cursor, NamedTable, Store, Table, TableConfig, WriteBatch};

use crate::base::error::{Error, Result};
use crate::base::keys::NodeKey;
use crate::base::path::Path;
use crate::base::proof_error::ProofError;
use crate::base::workers::Workers;
use crate::proof::walk::{EmptyValues, verify};
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::TableScheme;
use crate::state::node_cache::{NODE_CACHE_BYTES, NodeCache, NodeChanges, NodeKind};
use crate::state::source::{KeyBounds, bounds_below, scan_many, value, values};
use crate::state::state::threads_default;
use crate::state::tables::node_key;
use crate::trie::binary::nearest;
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;
use crate::trie::update::{Answer, Change, Outcome, Update, Want};

/// Records that are compared together.
const COMPARED_TOGETHER: usize = 1024;

/// Bytes of values that are kept for the next batch at most.
const KNOWN_BYTES_MAX: usize = 16 << 20;

/// Bytes that such a value takes beside its key and itself.
const KNOWN_ENTRY_BYTES: usize = 80;

/// Paths as bytes and values of leaves, in order.
type Leaves = Vec<(Vec<u8>, Vec<u8>)>;

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
    workers: Arc<Workers>,
    scheme: PhantomData<S>,
}

/// Nodes and values in memory, shared by all clones of a handle.
#[derive(Debug)]
struct TableCache {
    nodes: NodeCache,
    /// The batch that was staged last: the root before it, its nodes, the root after it.
    staged: Option<(B256, NodeChanges, B256)>,
    known: Known,
}

/// Values that were read since the last commit of the store.
#[derive(Debug, Default)]
struct Known {
    /// The number of the commit.
    commit: u64,
    values: HashMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl Known {
    /// Keeps values that were read at a commit, as long as there is room.
    fn add(&mut self, commit: u64, key: &[u8], value: Option<&[u8]>) {
        if self.commit != commit {
            *self = Self { commit, ..Self::default() };
        }
        self.bytes += key.len() + value.map_or(0, <[u8]>::len) + KNOWN_ENTRY_BYTES;
        if self.bytes <= KNOWN_BYTES_MAX {
            self.values.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        }
    }

    /// The values of keys at a commit, in their order; those that are not known are read.
    fn complete(
        &self,
        commit: u64,
        keys: &[&[u8]],
        read: impl FnOnce(&[&[u8]]) -> Result<Vec<Option<Vec<u8>>>>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let known = |key: &[u8]| self.values.get(key).filter(|_| self.commit == commit);
        let missing: Vec<&[u8]> = keys.iter().copied().filter(|key| known(key).is_none()).collect();
        let mut found = read(&missing)?.into_iter();
        let mut value = |key: &&[u8]| match known(key) {
            Some(value) => value.clone(),
            None => found.next().expect("a value of each missing key"),
        };
        Ok(keys.iter().map(&mut value).collect())
    }
}

impl TableCache {
    fn new(bytes: u64) -> Self {
        Self { nodes: NodeCache::new(bytes), staged: None, known: Known::default() }
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
        drop_ended_load(store, name)?;
        let [hashes, nodes] = other_tables(name);
        let table = |name: &str| store.table_or_create(name, &TableConfig::default());
        Ok(Self {
            store: store.clone(),
            entries: table(name)?,
            hashes: table(&hashes)?,
            nodes: table(&nodes)?,
            cache: Arc::new(Mutex::new(TableCache::new(NODE_CACHE_BYTES))),
            workers: Arc::new(Workers::new(threads_default())),
            scheme: PhantomData,
        })
    }

    /// The same table with so many threads, the caller included, for the lookups and hashes of a
    /// large batch: as many as the machine has, four at most, unless set.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.workers = Arc::new(Workers::new(threads));
        self
    }

    /// The same table with so many bytes of memory for nodes that batches have visited, beside the
    /// memory of the store: 64 MiB unless set; 0 keeps none.
    #[must_use]
    pub fn node_cache(mut self, bytes: u64) -> Self {
        self.cache = Arc::new(Mutex::new(TableCache::new(bytes)));
        self
    }

    /// The values of keys, in their order. A batch that is staged before the next commit of the
    /// store does not look them up again: reads of a block, and then its changes.
    ///
    /// Cost: one batch of lookups; keeps up to 16 MiB of values until the next commit.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn get_many<K: AsRef<[u8]> + Sync>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let views = self.views()?;
        let found = values(&views.entries, keys, &self.workers)?;
        // A batch that is being staged has no use for more values, and is not waited for.
        if let Ok(mut cache) = self.cache.try_lock() {
            for (key, value) in keys.iter().zip(&found) {
                cache.known.add(views.commit, key.as_ref(), value.as_deref());
            }
        }
        Ok(found)
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
    /// Cost: a batch of lookups for the entries that [`get_many`](Self::get_many) has not read
    /// since the last commit, that of [`root`](Self::root), and a batch of lookups for each level
    /// of the trie, of nodes that are not in memory.
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
        let mut cache = self.cache();
        let found = cache.known.complete(views.commit, &keys, |missing| {
            values(&views.entries, missing, &self.workers)
        })?;

        let mut updates = Vec::new();
        let mut staged = Vec::new();
        for ((key, after), before) in changes.iter().zip(&found) {
            let hash = S::hash_key(key);
            let existed = before.is_some();
            let leaf = after.as_deref().map(|value| S::leaf_value(&hash, value));
            let change = Change { key: hash[..S::PATH_BYTES].to_vec(), existed, after: leaf };
            updates.push(change);
            if before != after {
                staged.push((hash, key, after, existed));
            }
        }

        let update = Update::new_of_any_values(updates)?;
        let root = views.root()?;
        let outcome = views.finish(update, cache.at(root), &self.workers)?;
        let mut nodes = NodeChanges::default();
        for change in outcome.nodes {
            let record = change.after.as_ref().map(Record::to_bytes);
            match &record {
                Some(record) => batch.insert(&self.nodes, &change.path, record),
                None => batch.delete(&self.nodes, &change.path),
            }
            nodes.put(NodeKind::Account, node_key(None, &change.path), record);
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
        let outcome = views.finish(update, &mut NodeCache::new(0), &Workers::caller())?;
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
            let page = views.next_page(&mut cursor, COMPARED_TOGETHER)?;
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
            cache.known = Known::default();
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

/// Whether a store has a table of a name.
pub(crate) fn is_named(store: &Store, name: &str) -> Result<bool> {
    match store.table(name) {
        Ok(_) => Ok(true),
        Err(terrane_lsm::Error::TableDoesNotExist { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The names of the tables beside the entries: hashes and nodes.
pub(crate) fn other_tables(name: &str) -> [String; 2] {
    [format!("{name}_hashes"), format!("{name}_nodes")]
}

/// The name of the empty table that is there while a load names its tables.
pub(crate) fn load_marker(name: &str) -> String {
    format!("{name}_load")
}

/// Drops what a load has left that ended while it named its tables. The entries are named last.
pub(crate) fn drop_ended_load(store: &Store, name: &str) -> Result<()> {
    let marker = load_marker(name);
    if !is_named(store, &marker)? {
        return Ok(());
    }
    if !is_named(store, name)? {
        for other in other_tables(name) {
            if is_named(store, &other)? {
                store.drop_table(&other)?;
            }
        }
    }
    Ok(store.drop_table(&marker)?)
}

impl<S: TableScheme> TableViews<S> {
    /// The root, from the nodes alone.
    ///
    /// Cost: a lookup, and a cursor if the table has few entries.
    fn root(&self) -> Result<B256> {
        let update = Update::new_of_any_values(Vec::new())?;
        Ok(self.finish(update, &mut NodeCache::new(0), &Workers::caller())?.root)
    }

    /// Supplies all that an update wants, with a cache at the root of the table, and finishes it.
    fn finish(
        &self,
        mut update: Update<S>,
        cache: &mut NodeCache,
        workers: &Workers,
    ) -> Result<Outcome> {
        while !update.wanted().is_empty() {
            let path = |want: &Want| match want {
                Want::Node(path) => Some(node_key(None, path)),
                _ => None,
            };
            let keys: Vec<NodeKey> = update.wanted().iter().filter_map(path).collect();
            let nodes = cache
                .read(NodeKind::Account, &keys, |missing| values(&self.nodes, missing, workers))?;
            let place = |want: &Want| match want {
                Want::Leaves(path) => Some(bounds_below::<S>(&[], path)),
                _ => None,
            };
            let places: Vec<_> = update.wanted().iter().filter_map(place).collect();
            let mut leaves = self.leaves(&places, workers)?.into_iter();

            let mut nodes = nodes.into_iter();
            let answers = update.wanted().iter().map(|want| match want {
                Want::Node(_) => Ok(Answer::Node(nodes.next().flatten())),
                Want::Leaves(_) => {
                    Ok(Answer::Leaves(leaves.next().expect("the leaves of each place")))
                }
                // All keys of the trie have one length, so none ends at a branch.
                Want::Value(path) => Err(Error::corruption(path, "a value in a branch")),
            });
            let answers = answers.collect::<Result<Vec<_>>>()?;
            update.supply(answers)?;
        }
        Ok(Update::finish_all(vec![update], workers)?.pop().expect("the outcome of the update"))
    }

    /// The leaves in ranges of hashes, for each range one more than an update takes at most.
    fn leaves(&self, ranges: &[KeyBounds], workers: &Workers) -> Result<Vec<Leaves>> {
        let found = scan_many(&self.hashes, ranges, workers)?;
        let counts: Vec<usize> = found.iter().map(Vec::len).collect();
        let mut all = self.leaves_of(found.into_iter().flatten(), workers)?.into_iter();
        Ok(counts.into_iter().map(|count| all.by_ref().take(count).collect()).collect())
    }

    /// The next leaves: their paths as bytes, and their values.
    fn next_page(&self, cursor: &mut Cursor, limit: usize) -> Result<Leaves> {
        self.leaves_of(cursor.next_many(limit)?, &Workers::caller())
    }

    /// The leaves that entries of `NAME_hashes` name.
    fn leaves_of(
        &self,
        records: impl IntoIterator<Item = terrane_lsm::Record>,
        workers: &Workers,
    ) -> Result<Leaves> {
        let mut hashes = Vec::new();
        let mut keys = Vec::new();
        for record in records {
            let hash = S::hash_key(&record.value);
            if hash != *record.key {
                return Err(Error::corrupt_entry("the hash of a key"));
            }
            hashes.push(hash);
            keys.push(record.value);
        }

        let missing = || Error::corrupt_entry("a hash whose key has no value");
        let values = values(&self.entries, &keys, workers)?;
        let values = values.into_iter().map(|found| found.ok_or_else(missing));
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
            if found.value() != Some(&record.to_bytes()[..]) {
                return Err(Error::corruption(path, "a node that is not that of the entries"));
            }
        }
        Ok(derived.len() as u64)
    }
}

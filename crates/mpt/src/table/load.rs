//! The load of a committed table: entries in any order, sorted on the disk.
//!
//! Three sorts run side by side, of the entries by key and of keys and leaves by hash. The leaves
//! in the order of their hashes give the nodes and the root in one pass.
//!
//! Invariant: an empty table `NAME_load` is there while the three tables are named, and the table
//! of entries is named last. So a load that ended before has left no table of the name, and what it
//! has left is known, and dropped when the name is opened or loaded again.

use alloy_primitives::B256;
use terrane_lsm::{BulkLoader, Store, TableConfig, Update};

use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::scheme::scheme::TableScheme;
use crate::table::committed::{
    CommittedTable, drop_ended_load, is_named, load_marker, other_tables,
};
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;

/// Entries that are hashed and sorted together.
const ENTRIES_TOGETHER: usize = 1024;

/// Nodes that wait before they are hashed.
const NODES_TOGETHER: usize = 4096;

/// Loads a [`CommittedTable`] from entries in any order: see [`CommittedTable::bulk_load`].
/// Dropping the loader discards the entries.
///
/// Cost: each entry is written four times and its hash twice, in large blocks; each node is hashed
/// once and written twice. Memory: that of four [`BulkLoader`]s.
#[derive(Debug)]
pub struct CommittedLoader<S = KeccakMpt> {
    store: Store,
    name: String,
    config: TableConfig,
    waiting: Vec<(Vec<u8>, Vec<u8>)>,
    entries: BulkLoader,
    /// Keys by their hashes.
    hashes: BulkLoader,
    /// Values of leaves by the hashes of their keys.
    leaves: BulkLoader,
    scheme: std::marker::PhantomData<S>,
}

impl CommittedTable {
    /// Loads the table of a name from entries in any order: see
    /// [`bulk_load_with_scheme`](Self::bulk_load_with_scheme).
    ///
    /// # Errors
    /// [`Error::Store`], also for a name that is taken.
    pub fn bulk_load(store: &Store, name: &str, config: &TableConfig) -> Result<CommittedLoader> {
        Self::bulk_load_with_scheme(store, name, config)
    }
}

impl<S: TableScheme> CommittedTable<S> {
    /// Loads the table of a name, which must not exist, from entries in any order: many times
    /// faster than batches of changes, and without the log. All three tables have the
    /// configuration.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig};
    /// use terrane_mpt::CommittedTable;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let mut loader = CommittedTable::bulk_load(&store, "ledger", &TableConfig::default())?;
    /// for number in 0..100_u32 {
    ///     loader.insert(number.to_le_bytes(), "a balance")?;
    /// }
    /// let (table, root) = loader.finish()?;
    /// assert_eq!(table.root()?, root);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: no I/O; see [`CommittedLoader`].
    ///
    /// # Errors
    /// [`Error::Store`], also for a name that is taken.
    pub fn bulk_load_with_scheme(
        store: &Store,
        name: &str,
        config: &TableConfig,
    ) -> Result<CommittedLoader<S>> {
        CommittedLoader::new(store, name, config)
    }
}

impl<S: TableScheme> CommittedLoader<S> {
    fn new(store: &Store, name: &str, config: &TableConfig) -> Result<Self> {
        drop_ended_load(store, name)?;
        let [hashes, nodes] = other_tables(name);
        for name in [name, &hashes, &nodes] {
            if is_named(store, name)? {
                return Err(terrane_lsm::Error::TableExists { name: name.to_owned() }.into());
            }
        }
        let session = store.session();
        let loader = || session.bulk_load(config);
        Ok(Self {
            store: store.clone(),
            name: name.to_owned(),
            config: config.clone(),
            waiting: Vec::new(),
            entries: loader()?,
            hashes: loader()?,
            leaves: loader()?,
            scheme: std::marker::PhantomData,
        })
    }

    /// Adds an entry. If its key came before, the later value counts.
    ///
    /// # Errors
    /// [`Error::Store`]; the loader is of no use then.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.waiting.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        if self.waiting.len() < ENTRIES_TOGETHER { Ok(()) } else { self.sort_waiting() }
    }

    fn sort_waiting(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let hashes: Vec<B256> = waiting.iter().map(|(key, _)| S::hash_key(key)).collect();
        let leaf = |((_, value), hash): (&(Vec<u8>, Vec<u8>), &B256)| S::leaf_value(hash, value);
        let leaves: Vec<Vec<u8>> = waiting.iter().zip(&hashes).map(leaf).collect();

        let entries = waiting.iter().map(|(key, value)| (key, Update::Insert(value)));
        self.entries.write_batch(&entries.collect::<Vec<_>>())?;
        let keys = hashes.iter().zip(&waiting).map(|(hash, (key, _))| (hash, Update::Insert(key)));
        self.hashes.write_batch(&keys.collect::<Vec<_>>())?;
        let leaves = hashes.iter().zip(&leaves).map(|(hash, leaf)| (hash, Update::Insert(leaf)));
        self.leaves.write_batch(&leaves.collect::<Vec<_>>())?;
        Ok(())
    }

    /// Makes the table, durably, and returns it with its root.
    ///
    /// # Errors
    /// [`Error::Store`], also if a table of the name was made meanwhile. After an error, or a
    /// crash, there is no table of the name, or all of it.
    pub fn finish(mut self) -> Result<(CommittedTable<S>, B256)> {
        self.sort_waiting()?;
        let leaves = self.leaves.finish()?;
        let mut nodes = self.store.session().bulk_load(&self.config)?;
        let mut builder = TrieBuilder::<S>::of_any_values();
        let mut cursor = leaves.cursor()?;
        let mut write = |records: Vec<(Path, Record)>| {
            let bytes: Vec<_> =
                records.iter().map(|(path, record)| (path, record.to_bytes())).collect();
            let updates = bytes.iter().map(|(path, bytes)| (path, Update::Insert(bytes)));
            nodes.write_batch(&updates.collect::<Vec<_>>())
        };
        while let Some(leaf) = cursor.next_ref()? {
            builder.push(&leaf.key[..S::PATH_BYTES], leaf.value)?;
            if NODES_TOGETHER <= builder.waiting() {
                write(builder.take_nodes())?;
            }
        }
        let (root, rest) = builder.finish();
        write(rest)?;
        drop(cursor);
        drop(leaves);

        let loaded = [self.hashes.finish()?, nodes.finish()?];
        let entries = self.entries.finish()?;
        self.store.create_table(&load_marker(&self.name), &TableConfig::default())?;
        for (name, table) in other_tables(&self.name).iter().zip(&loaded) {
            self.store.install(name, table)?;
        }
        self.store.install(&self.name, &entries)?;
        let table = CommittedTable::open_with_scheme(&self.store, &self.name)?;
        let stored = table.root()?;
        if stored == root {
            Ok((table, root))
        } else {
            Err(Error::corrupt_entry("the root loaded"))
        }
    }
}

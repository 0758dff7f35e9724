//! Terrane's committed table: entries whose root is that of Ethereum's secure Merkle-Patricia trie,
//! as a user of `terrane::mpt::CommittedTable` would have it.
//!
//! Settings: half of the memory for the store and a quarter for nodes, direct reads, compaction on
//! its own thread, and a log with an fsync for each commit. Entries are loaded in bulk. A commit
//! stages the changes, which gives the root, and waits until the log is durable.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use terrane::lsm::{CompactionThread, DiskCache, Durability as Log, Error as LsmError};
use terrane::lsm::{Store, StoreOptions, TableConfig, WriteBatch};
use terrane::mpt::{CommittedLoader, CommittedTable};

use crate::engine::{About, Batch, Engine, Error, IoMode, Result, Root, Terms, of};

const NAME: &str = "terrane";
const TABLE: &str = "state";

/// Scheme of its roots.
pub const SCHEME: &str = "keccak-mpt";

struct TerraneState {
    store: Store,
    budget: u64,
    nodes: u64,
    content: Content,
}

enum Content {
    /// A store without the table, until the load has ended.
    Loading(Mutex<Option<CommittedLoader>>),
    Table(CommittedTable),
}

/// Opens the store and its table.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    // Not among them: code, stacks, and the workload's own.
    let (budget, nodes) = (terms.memory / 2, terms.memory / 4);
    let options = StoreOptions::default().durability(Log::Each).memory_budget(budget).create_dir();
    let store = Store::open_dir(dir, &options).map_err(of(NAME))?;

    let content = match store.table(TABLE) {
        Ok(_) => {
            let table = CommittedTable::open(&store, TABLE).map_err(of(NAME))?;
            Content::Table(table.node_cache(nodes))
        }
        Err(LsmError::TableDoesNotExist { .. }) => {
            let config = TableConfig::default()
                .disk_cache(DiskCache::None)
                .compaction_thread(CompactionThread::Background);
            let loader = CommittedTable::bulk_load(&store, TABLE, &config).map_err(of(NAME))?;
            Content::Loading(Mutex::new(Some(loader)))
        }
        Err(error) => return Err(of(NAME)(error)),
    };
    Ok(Box::new(TerraneState { store, budget, nodes, content }))
}

impl TerraneState {
    fn table(&self) -> Result<&CommittedTable> {
        match &self.content {
            Content::Table(table) => Ok(table),
            Content::Loading(_) => Err(Error::Cannot("a table that is loaded has no blocks yet")),
        }
    }

    fn loader(&self) -> Result<MutexGuard<'_, Option<CommittedLoader>>> {
        match &self.content {
            Content::Loading(loader) => Ok(loader.lock().expect("no thread panics with this lock")),
            Content::Table(_) => Err(Error::Cannot("entries are loaded into a new store")),
        }
    }
}

impl Engine for TerraneState {
    fn about(&self) -> About {
        About::new(
            env!("CARGO_PKG_VERSION"),
            IoMode::Direct,
            [
                ("memory_budget", self.budget.to_string()),
                ("node_cache", self.nodes.to_string()),
                ("compaction_thread", "background".to_owned()),
                ("disk_cache", "none".to_owned()),
                ("durability", Log::Each.name().to_owned()),
                ("scheme", SCHEME.to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        let mut loader = self.loader()?;
        let loader = loader.as_mut().ok_or(Error::Cannot("the load has ended"))?;
        for (key, value) in batch.iter() {
            loader.insert(key, value.unwrap_or_default()).map_err(of(NAME))?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        let loader = self.loader()?.take();
        loader.map_or(Ok(()), |loader| loader.finish().map(drop).map_err(of(NAME)))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let values = self.table()?.get_many(keys).map_err(of(NAME))?;
        (0..).zip(&values).try_for_each(|(position, value)| found(position, value.as_deref()))
    }

    fn commit(&self, batch: &Batch) -> Result<Root> {
        let changes: Vec<_> =
            batch.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect();
        let mut writes = WriteBatch::new();
        let staged = self.table()?.stage(&changes, &mut writes).map_err(of(NAME))?;
        let ticket = self.store.write_if(&writes, staged.commit).map_err(of(NAME))?;
        ticket.wait().map_err(of(NAME))?;
        Ok(Root::new(SCHEME, staged.root.as_slice()))
    }

    fn root(&self) -> Result<Root> {
        let root = self.table()?.root().map_err(of(NAME))?;
        Ok(Root::new(SCHEME, root.as_slice()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.close().map_err(of(NAME))
    }
}

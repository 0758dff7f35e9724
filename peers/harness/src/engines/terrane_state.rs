//! Terrane's committed table: entries whose root is that of Ethereum's secure Merkle-Patricia trie,
//! as a user of `terrane::mpt::CommittedTable` would have it.
//!
//! Settings: the memory budget of the store, direct reads, and a log with an fsync for each commit.
//! A commit stages the changes, which gives the root, and waits until the log is durable.

use std::path::Path;

use terrane::lsm::{DiskCache, Durability as Log, Lookup, Store, StoreOptions, TableConfig};
use terrane::lsm::{Ticket, WriteBatch};
use terrane::mpt::CommittedTable;

use crate::engine::{About, Batch, Engine, IoMode, Result, Root, Terms, of};

const NAME: &str = "terrane";
const TABLE: &str = "state";

/// Scheme of its roots.
pub const SCHEME: &str = "keccak-mpt";

struct TerraneState {
    store: Store,
    table: CommittedTable,
    budget: u64,
}

/// Opens the store and its table.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    // Not in the budget: code, stacks, and the workload's own.
    let budget = terms.memory * 3 / 4;
    let options = StoreOptions::default().durability(Log::Each).memory_budget(budget).create_dir();
    let store = Store::open_dir(dir, &options).map_err(of(NAME))?;

    // A committed table keeps the configuration of tables that are there.
    let config = TableConfig::default().disk_cache(DiskCache::None);
    for suffix in ["", "_hashes", "_nodes"] {
        store.table_or_create(&format!("{TABLE}{suffix}"), &config).map_err(of(NAME))?;
    }
    let table = CommittedTable::open(&store, TABLE).map_err(of(NAME))?;
    Ok(Box::new(TerraneState { store, table, budget }))
}

impl TerraneState {
    fn stage(&self, batch: &Batch) -> Result<(Root, Ticket)> {
        let changes: Vec<_> =
            batch.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect();
        let mut writes = WriteBatch::new();
        let staged = self.table.stage(&changes, &mut writes).map_err(of(NAME))?;
        let ticket = self.store.write_if(&writes, staged.commit).map_err(of(NAME))?;
        Ok((Root::new(SCHEME, staged.root.as_slice()), ticket))
    }
}

impl Engine for TerraneState {
    fn about(&self) -> About {
        About::new(
            env!("CARGO_PKG_VERSION"),
            IoMode::Direct,
            [
                ("memory_budget", self.budget.to_string()),
                ("disk_cache", "none".to_owned()),
                ("durability", Log::Each.name().to_owned()),
                ("scheme", SCHEME.to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        drop(self.stage(batch)?);
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.store.checkpoint().map_err(of(NAME))
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let values = self.table.entries().get_many(keys).map_err(of(NAME))?;
        for (position, value) in values.iter().enumerate() {
            match value {
                Lookup::Found(value) => found(position, Some(value))?,
                _ => found(position, None)?,
            }
        }
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Root> {
        let (root, ticket) = self.stage(batch)?;
        ticket.wait().map_err(of(NAME))?;
        Ok(root)
    }

    fn root(&self) -> Result<Root> {
        let root = self.table.root().map_err(of(NAME))?;
        Ok(Root::new(SCHEME, root.as_slice()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.store.close().map_err(of(NAME))
    }
}

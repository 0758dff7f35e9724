//! The databases that a cell works in, one after the other, each new, and what they have cost
//! together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use terrane::kv::{self, Database, Durability, Table};
use terrane::radix::{INDEXES, Options, Store, Tree};

use super::super::{Error, Result};
use super::Cell;
use terrane::state_dir::{BackEnd, CassandraAddress, Password, RedisAddress, open_database};

/// The tree of all loads.
const TREE: &str = "bench";

/// Totals of all databases of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) transactions: u64,
    pub(super) syncs: u64,
    pub(super) bytes_written: u64,
    pub(super) bytes_read: u64,
    /// Bytes of the databases when they were closed, by their own account.
    pub(super) database_bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Databases {
    back_end: BackEnd,
    dir: PathBuf,
    durability: Durability,
    redis_urls: Vec<String>,
    redis_password: Password,
    cassandra_url: Option<String>,
    made: u32,
    pub(super) totals: Totals,
    pub(super) guarantee: String,
    pub(super) settings: BTreeMap<String, String>,
}

/// A store with the tree that a load works on.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) store: Store,
    pub(super) tree: Tree,
}

impl Databases {
    pub(super) fn new(cell: &Cell<'_>) -> Self {
        Self {
            back_end: cell.back_end,
            dir: cell.dir.to_owned(),
            durability: cell.durability,
            redis_urls: cell.redis_urls.clone(),
            redis_password: cell.redis_password.clone(),
            cassandra_url: cell.cassandra_url.clone(),
            made: 0,
            totals: Totals::default(),
            guarantee: String::new(),
            settings: BTreeMap::new(),
        }
    }

    /// A store in a database that is made for it.
    pub(super) fn bed(&mut self) -> Result<Bed> {
        self.made += 1;
        let path = self.dir.join(format!("database-{}", self.made));
        let redis = match self.back_end {
            BackEnd::Redis => Some(RedisAddress {
                password: self.redis_password.clone(),
                ..RedisAddress::new(self.redis_urls.clone())
            }),
            _ => None,
        };

        let cassandra = match self.back_end {
            BackEnd::Cassandra => self.cassandra_url.clone().map(CassandraAddress::new),
            _ => None,
        };

        let (redis, cassandra) = (redis.as_ref(), cassandra.as_ref());
        let database = open_database(self.back_end, &path, redis, cassandra, self.durability)?;
        self.guarantee = database.guarantee().text;
        let settings = database.settings().into_iter();
        self.settings = settings.map(|(name, value)| (name.to_owned(), value)).collect();

        // These name the database and say nothing of its use.
        self.settings.retain(|name, _| !["path", "prefix", "store"].contains(&name.as_str()));
        let store = Store::open(database, &Options::default())?;
        let tree = store.create_tree(TREE)?;

        Ok(Bed { store, tree })
    }

    /// Closes a store, and counts what it has cost.
    pub(super) fn close(&mut self, bed: &Bed) -> Result<()> {
        let database: &Arc<dyn Database> = bed.store.database();
        let counts = database.counts();
        self.totals.database_bytes += database.disk_bytes().map_err(Error::database)?;
        self.totals.transactions += counts.transactions;
        self.totals.syncs += counts.syncs;
        self.totals.bytes_written += counts.bytes_written;
        self.totals.bytes_read += counts.bytes_read;

        if matches!(self.back_end, BackEnd::Redis | BackEnd::Cassandra) {
            // The servers may outlive the cell, so its keys are removed.
            clear(&**database).map_err(Error::database)?;
        }

        Ok(bed.store.close()?)
    }
}

/// Removes all entries of a database.
fn clear(database: &dyn Database) -> kv::Result<()> {
    let mut writer = database.writer()?;
    let tables = INDEXES.iter().map(|name| Table::Index(name));
    for table in tables.chain([Table::Main]) {
        let mut keys = Vec::new();
        let mut cursor = writer.cursor(table)?;
        while let Some((key, _)) = cursor.next()? {
            keys.push(key);
        }
        drop(cursor);
        for key in keys {
            writer.remove(table, &key)?;
        }
    }

    let receipt = writer.commit()?;
    database.settle(receipt)
}

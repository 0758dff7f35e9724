//! Embedded, on-disk storage for the state of blockchain nodes and other ledgers.
//!
//! ```
//! use terrane::lsm::{Store, StoreOptions, TableConfig, WriteBatch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let dir = place.path().join("demo");
//! let store = Store::open_dir(&dir, &StoreOptions::default().create_dir())?;
//! let accounts = store.table_or_create("accounts", &TableConfig::default())?;
//!
//! let mut block = WriteBatch::new();
//! block.insert(&accounts, "alice", "100");
//! block.insert(&accounts, "bob", "7");
//! store.write(&block)?.wait()?; // atomic; durable when `wait` returns
//! let version = store.retain(None)?; // all tables as of this commit
//!
//! accounts.delete(b"alice")?.wait()?;
//! store.roll_back(version)?;
//! assert_eq!(accounts.get(b"alice")?.value(), Some(b"100".as_slice()));
//! # store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Engines
//!
//! | you keep | begin with |
//! |---|---|
//! | named tables with atomic commits, transactions, ranges, versions, roll-back | [`lsm::Store`] |
//! | places of objects by hash, read by other processes | [`btree::Index`] |
//! | versioned trees with the hashes of Tezos | [`context::Store`] |
//! | address maps with the roots of Hyperledger Transact | [`radix::Store`] |
//! | the accounts and slots of an Ethereum chain, with roots and proofs | [`mpt::State`] |
//! | a radix state in another database | [`kv::open`], [`backends`] |
//! | a directory with a radix state of any back-end | [`state_dir::open`] |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `lmdb` | LMDB under a radix state; its C source comes with the crate `heed` |
//! | `sqlite` | SQLite under a radix state; its C source comes with the crate `rusqlite` |
//! | `redis`, `redis-tls` | a Redis server or cluster under a radix state, without and with TLS |
//! | `cassandra` | a cluster of Apache Cassandra or ScyllaDB under a radix state |
//! | `sim` | the simulated disk of [`io`], for tests of programs that build on Terrane |
//!
//! # Platforms
//!
//! Linux on 64-bit processors is tested. On macOS the crates compile without io_uring; nobody has
//! run their tests there. Windows is not supported: directories cannot be synced there as
//! [`io::RealDisk`] needs it.
//!
//! # Threads and async
//!
//! All handles are `Send + Sync`. Calls block. In an asynchronous program, call them from the
//! runtime's threads for blocking work (`spawn_blocking` in Tokio).

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
mod back_end;
pub mod kv;
pub mod state_dir;
pub mod radix;
mod error;
#[cfg(test)]
mod serde_forms;

#[doc(inline)]
pub use terrane_backends as backends;
#[doc(inline)]
pub use terrane_btree as btree;
#[cfg(feature = "cassandra")]
#[doc(inline)]
pub use terrane_cassandra as cassandra;
#[doc(inline)]
pub use terrane_context as context;
#[doc(inline)]
pub use terrane_io as io;
#[doc(inline)]
pub use terrane_lsm as lsm;
#[doc(inline)]
pub use terrane_mpt as mpt;

pub use error::{Error, Result};

/// Names that a program with named tables uses first.
pub mod prelude {
    pub use terrane_lsm::{
        Durability, ErrorKind, NamedTable, Record, SnapshotName, Store, StoreOptions, TableConfig,
        TableName, Ticket, Transaction, Update, Version, WriteBatch,
    };
}

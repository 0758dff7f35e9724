//! Terrane's key-value database in Apache Cassandra or ScyllaDB.
//!
//! ```no_run
//! use terrane_cassandra::{Cassandra, Options};
//! use terrane_kv::{Database, Table};
//!
//! let options = Options::parse("cassandra://db1,db2,db3/ledger/main?dc=east")?.environment()?;
//! let database = Cassandra::open(options.indexes(["owners"]))?;
//! let mut writer = database.writer()?;
//! writer.put(Table::Main, b"alice", b"100")?;
//! writer.commit()?; // on a majority of the replicas
//! # Ok::<(), terrane_kv::Error>(())
//! ```
//!
//! * **Layout.** A row for each version of a key; see `schema`. A reader is a snapshot of the
//!   commit that the head names: it takes the newest row of a key that is not later.
//! * **Atomicity.** A commit writes its rows under a new number, then moves the head by one
//!   lightweight transaction. Until then nobody sees the rows. `commit` has the steps.
//! * **One process writes.** Opening takes a lease whose end the nodes count, and raises the epoch
//!   of the head. An older writer is fenced: none of its commits can apply, whatever its clock
//!   says, and its calls are [`Error::Locked`].
//! * **Unknown outcomes.** A commit without an answer is looked up at serial consistency, and ruled
//!   out if it has not applied. Only if the cluster stays away the commit is [`Error::Unknown`],
//!   and the next reader or writer finds out first.
//! * **Reading beside a writing process**, [`Options::read_only`], takes no lease. A snapshot is
//!   whole for the retention of the store; later each read asks the head, and is [`Error::Busy`]
//!   once versions that it needs may be gone. It never mixes two commits.
//! * **Failures.** While a majority of the replicas answers, requests are repeated, and nothing
//!   fails. Without a majority calls fail with [`Error::Busy`] after [`Options::timeouts`].
//! * **Collection.** Each commit removes what two earlier ones replaced, once no snapshot and no
//!   retention needs it; see `collect`. Deletions must reach all replicas within the
//!   `gc_grace_seconds` of the tables, or a removed key may come back: repair nodes in that time.
//! * **Values** above 64 KiB are divided into rows of 256 KiB.
//!
//! Begin with `database` and `store`.
//!
//! [`Error::Locked`]: terrane_kv::Error::Locked
//! [`Error::Busy`]: terrane_kv::Error::Busy
//! [`Error::Unknown`]: terrane_kv::Error::Unknown

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod error;
mod options;
mod tls;
mod runtime;
mod body;
mod head;
mod schema;
mod cluster;
mod lease;
mod heads;
mod read;
mod collect;
mod commit;
mod store;
mod snapshot;
mod remove;
mod database;

pub use database::Cassandra;
pub use options::{Options, SCHEME, STORE_CHARS_MAX, Tls};

//! Redis back-end: a store in the memory of a server, or of one server of a cluster.
//!
//! Needs Redis 7.0 or later. All keys of a store have one hash tag, so in a cluster **the whole
//! store is in one slot**, in the memory of one server; `script` describes the keys and the
//! scripts. Begin with `database` and `inner`. Only `tls` knows of certificates.
//!
//! * **Atomicity.** A commit is one script, which the server executes as a whole. If a transaction
//!   does not fit into one request, the writer first stages it beside the store in batches;
//!   meanwhile the server holds it in memory twice.
//! * **One process writes.** Opening takes a lock with a lease, which every use of the store
//!   renews. A second process gets [`Error::Locked`] until the store is closed or the lease has run
//!   out. If the lease runs out, the process goes on unless another process has taken the lock;
//!   then all calls are `Locked`, and a fence in the server refuses late commits. A process that
//!   idles for longer than the lease calls [`Redis::renew`].
//! * **Snapshots.** Redis keeps only the present. While snapshots live, each commit first reads the
//!   values that it replaces, and this process keeps them until no snapshot needs them. Cost: up to
//!   two round trips for each table that the commit changes, and the memory.
//! * **Reading beside a writing process**, [`Options::read_only`], takes no lock, and its snapshots
//!   promise less. Each answer is checked to be of the snapshot's commit; after another commit the
//!   snapshot answers [`Error::Busy`] for good. It never mixes two commits.
//! * **A lost connection** is opened again. The back-end looks a commit without an answer up by its
//!   id and reports the outcome. Only if the server stays away the commit is [`Error::Unknown`],
//!   and the next reader or writer finds out first.
//! * **A restart that lost commits** (a log without a sync at each commit, a failover) shows in the
//!   numbers of commits. All calls fail from then on, since values read before may be gone. Open
//!   the store again to go on.
//! * **A full memory** (`maxmemory`) is [`Error::StoreFull`]. Transactions that remove at least as
//!   many keys as they write pass, to make room. Opening refuses a server that may evict any key.
//! * **Durability** is that of the server's settings at opening: see
//!   [`guarantee`](terrane_kv::Database::guarantee). Later changes of the settings are not seen.
//!   While a server rewrites its log, it does not tell whether the log already has all commits. If
//!   the options need durability, opening waits for the end of the rewrite, for the read timeout at
//!   most, and then fails with [`Error::Busy`].
//!
//! Limits: a value has at most `proto-max-bulk-len` bytes and about 256 KiB less than
//! `client-query-buffer-limit`, by default 256 MiB; a larger value is [`Error::Size`].
//!
//! TLS: with the cargo feature `redis-tls`, URLs of the scheme `rediss` are encrypted, and the
//! server's certificate is checked for the host of the URL; [`Options::ca_file`] sets the
//! authorities. Client certificates are not supported. Without the feature such a URL is
//! [`Error::Unsupported`]; the back-end never falls back to a connection without TLS.
//!
//! [`Error::Locked`]: terrane_kv::Error::Locked
//! [`Error::Busy`]: terrane_kv::Error::Busy
//! [`Error::Unknown`]: terrane_kv::Error::Unknown
//! [`Error::StoreFull`]: terrane_kv::Error::StoreFull
//! [`Error::Size`]: terrane_kv::Error::Size
//! [`Error::Unsupported`]: terrane_kv::Error::Unsupported

// Bottom-up: a module imports only from modules above it.
mod error;
mod tls;
mod options;
mod script;
mod connection;
mod server_info;
mod batches;
mod inner;
mod cursor;
mod reader;
mod writer;
mod database;
pub mod server;

pub use database::Redis;
pub use options::{Options, PREFIX_CHARS_MAX};

//! The engines behind [`Engine`](crate::engine::Engine), a file each. A file says which guide of
//! the engine its settings follow.

#[cfg(feature = "canopydb")]
pub mod canopydb;
#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "mdbx")]
pub mod mdbx;
#[cfg(feature = "nomt")]
pub mod nomt;
#[cfg(feature = "paritydb")]
pub mod paritydb;
#[cfg(feature = "qmdb")]
pub mod qmdb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "surrealkv")]
pub mod surrealkv;
pub mod terrane;
pub mod terrane_state;

use std::path::Path;

use crate::engine::{Engine, Error, Result, Terms};
use crate::kind::Kind;

/// Opens an engine in `dir`, which exists and is empty or was closed by the same engine.
///
/// # Errors
/// Those of the engine; [`Error::Cannot`] of engines that cannot do the workload, and of engines in
/// Go, which `go` runs.
pub fn open(kind: Kind, dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    if let Some(why) = kind.cannot(terms.has_root) {
        return Err(Error::Cannot(why));
    }
    match kind {
        Kind::Terrane if terms.has_root => terrane_state::open(dir, terms),
        Kind::Terrane => terrane::open(dir, terms),
        Kind::Pebble | Kind::Badger | Kind::Pathdb => {
            Err(Error::Cannot("engines in Go run in a program of their own"))
        }
        #[cfg(feature = "rocksdb")]
        Kind::RocksDb => rocksdb::open(dir, terms),
        #[cfg(feature = "fjall")]
        Kind::Fjall => fjall::open(dir, terms),
        #[cfg(feature = "redb")]
        Kind::Redb => redb::open(dir, terms),
        #[cfg(feature = "lmdb")]
        Kind::Lmdb => lmdb::open(dir, terms),
        #[cfg(feature = "sqlite")]
        Kind::Sqlite => sqlite::open(dir, terms),
        #[cfg(feature = "mdbx")]
        Kind::Mdbx => mdbx::open(dir, terms),
        #[cfg(feature = "paritydb")]
        Kind::ParityDb => paritydb::open(dir, terms),
        #[cfg(feature = "canopydb")]
        Kind::CanopyDb => canopydb::open(dir, terms),
        #[cfg(feature = "surrealkv")]
        Kind::SurrealKv => surrealkv::open(dir, terms),
        #[cfg(feature = "nomt")]
        Kind::Nomt => nomt::open(dir, terms),
        #[cfg(feature = "qmdb")]
        Kind::Qmdb => qmdb::open(dir, terms),
    }
}

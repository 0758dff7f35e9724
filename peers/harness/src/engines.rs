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
#[cfg(feature = "paritydb")]
pub mod paritydb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "surrealkv")]
pub mod surrealkv;
pub mod terrane;

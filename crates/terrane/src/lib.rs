#![doc = include_str!("../../../README.md")]
#![forbid(unsafe_code)]

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
#[doc(inline)]
pub use terrane_context as context;
#[doc(inline)]
pub use terrane_io as io;
#[doc(inline)]
pub use terrane_lsm as lsm;

pub use error::{Error, Result};

/// Names that a program with named tables uses first.
pub mod prelude {
    pub use terrane_lsm::{
        Durability, ErrorKind, NamedTable, Record, SnapshotName, Store, StoreOptions, TableConfig,
        TableName, Update, Version,
    };
}

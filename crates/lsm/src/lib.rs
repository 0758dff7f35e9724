//! LSM tables.
#![forbid(unsafe_code)]

pub mod corrupt;

pub mod error;

pub mod entry;

pub mod page;

pub use corrupt::Corrupt;
pub use entry::{KEY_BYTES_MAX, Lookup, Record, Update, VALUE_BYTES_MAX, Value};
pub use error::{Error, Result};
pub use page::PAGE_SIZE;

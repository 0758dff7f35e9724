//! Traces of operations on a versioned tree, as the benchmarks of irmin and Octez have recorded
//! them.
//!
//! There are three families, which share a container and the codes of numbers, strings and lists:
//!
//! | family | magic | a row is | read by |
//! |---|---|---|---|
//! | benchmark of irmin | `IrmRepBT` | an operation | [`irmin::Operations`] |
//! | Octez, replayable | `TezosRep` | a block: its statistics and its events | [`replayable::Blocks`] |
//! | Octez, raw | `TezosRaw` | an event | [`raw::Events`] |
//!
//! | bytes of the container | meaning |
//! |---|---|
//! | 8 | magic |
//! | 4 | version, i32 big-endian; 0 is the only one |
//! | varint, and as many bytes | header |
//! | varint, and as many bytes, until the file ends | rows; each uses exactly its length |
//!
//! A last row that is cut is common: it is [`Error::TruncatedTrace`] after all that are whole, and
//! readers treat it as an end. One row is in memory at a time, and what is read of it borrows its
//! bytes, so memory does not depend on what a damaged file says of lengths and counts. Rows are
//! counted from 0; offsets are in bytes from the start of the file.

// Bottom-up: a module imports only from modules above it.
mod limits;
mod error;
mod codes;
mod rows;
mod events;
pub mod irmin;
pub mod replayable;
pub mod raw;

pub use self::codes::{Items, Key, KeyBuf, List, Scoped};
pub use self::error::{Error, Malformed, Result};
pub use self::events::{
    Depth, DepthKind, Fold, Listing, Order, RawTree, Status, TreeKind, TreeOperation,
};
pub use self::limits::Family;
use crate::engines::context::StepsBuf;

/// The step below which users' keys lie.
const DATA: &[u8] = b"data";

/// Makes `path` the physical path of a user's key: below `data`.
pub fn physical(key: Key<'_>, path: &mut StepsBuf) {
    path.clear();
    path.push(DATA);
    key.items().for_each(|step| path.push(step));
}

/// Makes `path` the path that `key` is.
pub fn as_it_is(key: Key<'_>, path: &mut StepsBuf) {
    path.clear();
    key.items().for_each(|step| path.push(step));
}

#[cfg(test)]
pub(crate) mod tests;

//! The memtable: the newest entries of a table, in memory, before a flush makes them a run.
//!
//! The configuration calls its size the *write buffer*. This folder imports `entry`, `filter`,
//! `run` (for references to saved images) and what stands below.
//!
//! Begin with [`memtable`](self::memtable::Memtable): a list of parts, of which only the last one
//! is written to. [`part`] is one part: an arena with a hash table, or several folded under one
//! table.
//!
//! Invariants: a part that somebody shares is frozen, and the next update begins another one, so a
//! fork costs a few reference counts; an entry of a newer part hides one of an older part, or
//! combines with it; each batch can be undone, so `write_batch` is all or nothing even if a flush
//! fails in the middle.
//!
//! Rejected:
//! - a balanced tree with path copying: a kilobyte copied for each update after a fork;
//! - a plain `BTreeMap`: a fork copies everything;
//! - copying entries when parts are folded: three to four times the memory for versions that are
//!   kept;
//! - one hash table for all versions: readers and writers of independent tables share its lock.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod part;
pub(crate) mod memtable;

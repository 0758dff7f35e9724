//! Map that the workloads of the index ask of an engine: ordered, from keys of 32 bytes to values
//! of 13.

use std::fmt::Debug;

use terrane::btree::Stats;
use terrane::io::Counts;

use super::{Key, Result, Value};

/// A map that an engine holds.
///
/// A replaced value is found at once, and survives a loss of power after a [`flush`](Self::flush).
pub trait Map: Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// Those of the engine.
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>>;

    /// Sets the values of some keys, all or none.
    ///
    /// # Errors
    /// Those of the engine.
    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()>;

    /// The value of a key as a reader sees it that is as far as the last flush, where the engine
    /// has such readers.
    ///
    /// # Errors
    /// Those of the engine.
    fn find_as_reader(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.find(key)
    }

    /// Fills an empty map with entries in the order of their keys.
    ///
    /// # Errors
    /// Those of the engine.
    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()>;

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// Those of the engine.
    fn remove(&mut self, key: &Key) -> Result<()>;

    /// Removes all entries.
    ///
    /// # Errors
    /// Those of the engine.
    fn clear(&mut self) -> Result<()>;

    /// Makes what was done durable.
    ///
    /// # Errors
    /// Those of the engine.
    fn flush(&mut self) -> Result<()>;

    /// Entries; `None` if the engine would have to read them all to tell.
    ///
    /// # Errors
    /// Those of the engine.
    fn entries(&self) -> Result<Option<u64>>;

    /// Returns the calls of the engine to its disk; `None` if the disk does not count them.
    fn counts(&self) -> Option<Counts>;

    /// The B+tree's own counts.
    ///
    /// # Errors
    /// Those of the engine.
    fn stats(&self) -> Result<Option<Stats>> {
        Ok(None)
    }

    /// Ends it, with everything durable.
    ///
    /// # Errors
    /// Those of the engine.
    fn close(self: Box<Self>) -> Result<()>;
}

//! A sorted map in memory: what generating and checking entries takes, and nothing besides.

use std::collections::BTreeMap;

use terrane::io::Counts;

use super::super::map::Map;
use super::super::{Key, Result, Value};

/// The map.
#[derive(Debug, Default)]
pub(in super::super) struct MemoryMap(BTreeMap<Key, Value>);

impl Map for MemoryMap {
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.0.get(key).map(|value| value.to_vec()))
    }

    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        self.0.extend(entries.iter().copied());
        Ok(())
    }

    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        self.0.extend(sorted);
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        self.0.remove(key);
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        self.0.clear();
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn entries(&self) -> Result<Option<u64>> {
        Ok(Some(self.0.len() as u64))
    }

    fn counts(&self) -> Option<Counts> {
        None
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

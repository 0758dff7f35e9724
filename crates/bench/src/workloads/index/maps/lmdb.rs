//! LMDB as a map of the workloads: its memory is the page cache, and its reads are the system's.

use std::path::Path;

use terrane::io::Counts;
use terrane_lmdb::Lmdb;

use super::super::map::Map;
use super::super::{Error, Key, Result, Value};

/// Entries that are loaded with one commit.
const LOADED_ENTRIES: usize = 100_000;

/// A map that LMDB holds.
#[derive(Debug)]
pub(in super::super) struct LmdbMap(Lmdb);

impl LmdbMap {
    pub(in super::super) fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, error))?;
        Ok(Self(Lmdb::open(dir)?))
    }
}

impl Map for LmdbMap {
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.0.find_each(&[key], |value| found = value.map(<[u8]>::to_vec))?;
        Ok(found)
    }

    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        Ok(self.0.apply(entries.iter().map(|(key, value)| (&key[..], Some(&value[..]))))?)
    }

    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        loop {
            let part: Vec<(Key, Value)> = sorted.take(LOADED_ENTRIES).collect();
            if part.is_empty() {
                return Ok(());
            }
            self.0.append(part.iter().map(|(key, value)| (&key[..], &value[..])))?;
        }
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        Ok(self.0.apply([(&key[..], None)])?)
    }

    fn clear(&mut self) -> Result<()> {
        Ok(self.0.clear()?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush()?)
    }

    fn entries(&self) -> Result<Option<u64>> {
        Ok(Some(self.0.len()?))
    }

    fn counts(&self) -> Option<Counts> {
        None
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

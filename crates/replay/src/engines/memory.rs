//! A sorted map in memory: the model that the other engines are held against.
//!
//! The engine keeps nothing: a new process starts empty, and saving a snapshot does nothing.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::engines::engine::{Change, Cursor, Engine, EngineError, Entry, Result, State, Table};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Replays write the length of keys and values in four bytes.
const BYTES_MAX: usize = u32::MAX as usize;

/// The engine; it has no state of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory;

#[derive(Debug)]
struct MemoryTable {
    entries: Map,
}

impl Engine for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn forks_max(&self) -> usize {
        0
    }

    fn key_bytes_max(&self) -> usize {
        BYTES_MAX
    }

    fn value_bytes_max(&self) -> usize {
        BYTES_MAX
    }

    fn new_table(&self) -> Result<Box<dyn Table>> {
        Ok(Box::new(MemoryTable { entries: Map::new() }))
    }

    fn snapshots(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn open(&self, snapshot: &str, _: &str) -> Result<Box<dyn Table>> {
        Err(EngineError::Refused(format!("memory keeps no snapshot {snapshot:?}").into()))
    }

    fn delete(&self, _: &str) -> Result<()> {
        Ok(())
    }
}

impl State for MemoryTable {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        Ok(keys.iter().map(|&key| self.entries.get(key).cloned()).collect())
    }

    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>> {
        let range = (Bound::Included(from), Bound::Unbounded);
        Ok(Box::new(MemoryCursor(self.entries.range::<[u8], _>(range))))
    }
}

impl Table for MemoryTable {
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()> {
        for change in changes {
            match change.value {
                Some(value) => self.entries.insert(change.key.to_vec(), value.to_vec()),
                None => self.entries.remove(change.key),
            };
        }
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn Table>> {
        Ok(Box::new(MemoryTable { entries: self.entries.clone() }))
    }

    fn save(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}

struct MemoryCursor<'a>(std::collections::btree_map::Range<'a, Vec<u8>, Vec<u8>>);

impl Cursor for MemoryCursor<'_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        Ok(self.0.next().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }))
    }
}

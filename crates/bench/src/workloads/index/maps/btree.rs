//! Terrane's B+tree as a map of the workloads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane::btree::{Config, Index, IndexReader, Records, Stats};
use terrane::io::{CountedDisk, Counts};

use super::super::map::Map;
use super::super::{KEY_BYTES, Key, Result, VALUE_BYTES, Value};
use super::counted_disk;

/// An index, and the disk that counts for it.
#[derive(Debug)]
pub(in super::super) struct BtreeMap {
    index: Index,
    disk: Arc<CountedDisk>,
    dir: PathBuf,
    /// Opened when it is first asked.
    reader: Option<IndexReader>,
    /// Whether the reader has not seen the last flush.
    is_behind: bool,
}

/// Memory of the reader, in bytes.
const READER_BYTES: usize = 64 << 20;

/// Fill of the pages of a sorted build, in per cent.
const FILL_PERCENT: u32 = 90;

impl BtreeMap {
    pub(in super::super) fn create(dir: &Path, memory_budget: u64) -> Result<Self> {
        let disk = counted_disk(dir)?;
        let memory = usize::try_from(memory_budget).unwrap_or(usize::MAX);
        let config = Config::fixed(KEY_BYTES, VALUE_BYTES).memory_bytes(memory);
        let index = Index::create(disk.clone(), dir, &config)?;
        Ok(Self { index, disk, dir: dir.to_owned(), reader: None, is_behind: false })
    }
}

/// Entries as the index takes them, without an allocation for each.
struct Sorted<'a> {
    entries: &'a mut dyn Iterator<Item = (Key, Value)>,
    current: Option<(Key, Value)>,
}

impl Records for Sorted<'_> {
    fn next_ref(&mut self) -> terrane::btree::Result<Option<(&[u8], &[u8])>> {
        self.current = self.entries.next();
        Ok(self.current.as_ref().map(|(key, value)| (&key[..], &value[..])))
    }
}

impl Map for BtreeMap {
    fn find(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(self.index.find(key)?)
    }

    fn replace_many(&mut self, entries: &[(Key, Value)]) -> Result<()> {
        if let [(key, value)] = entries {
            return Ok(self.index.replace(key, value)?);
        }
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        Ok(self.index.replace_many(&entries)?)
    }

    fn find_as_reader(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let config = Config::fixed(KEY_BYTES, VALUE_BYTES).memory_bytes(READER_BYTES);
                IndexReader::open(self.disk.clone(), &self.dir, &config)?
            }
        };

        if std::mem::take(&mut self.is_behind) {
            reader.sync()?;
        }
        let found = reader.find(key)?;
        self.reader = Some(reader);

        Ok(found)
    }

    fn load(&mut self, sorted: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        let mut entries = Sorted { entries: sorted, current: None };
        self.index.build_sorted(&mut entries, FILL_PERCENT, |_| {})?;
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Result<()> {
        self.index.remove(key)?;
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        self.is_behind = true;
        Ok(self.index.clear()?)
    }

    fn flush(&mut self) -> Result<()> {
        self.is_behind = true;
        Ok(self.index.flush(true)?)
    }

    fn entries(&self) -> Result<Option<u64>> {
        Ok(Some(self.index.len()?))
    }

    fn counts(&self) -> Option<Counts> {
        Some(self.disk.counts())
    }

    fn stats(&self) -> Result<Option<Stats>> {
        Ok(Some(self.index.stats()?))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.index.close()?)
    }
}

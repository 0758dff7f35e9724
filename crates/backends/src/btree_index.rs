//! The index of objects of a context store, in a B+tree of fixed keys and values.

use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Index, Update};
use terrane_io::{Disk, EntryKind};
use terrane_merkle::{
    INDEX_KEY_BYTES, INDEX_VALUE_BYTES, IndexEngine, IndexKey, IndexResult, IndexValue, ObjectIndex,
};

/// Makes and opens B+trees for context stores.
#[derive(Debug, Clone, Copy)]
pub struct BtreeIndexes {
    memory_bytes: usize,
}

impl Default for BtreeIndexes {
    fn default() -> Self {
        Self::new(4 << 20)
    }
}

impl BtreeIndexes {
    /// B+trees that take so much memory each, at least 1 MiB. A store that indexes its commits only needs 4 MiB; one that indexes
    /// every object wants all but the leaves in memory, 1 byte in 100.
    pub fn new(memory_bytes: usize) -> Self {
        Self { memory_bytes }
    }

    fn config(self) -> Config {
        Config::fixed(INDEX_KEY_BYTES, INDEX_VALUE_BYTES).with_memory(self.memory_bytes)
    }
}

impl IndexEngine for BtreeIndexes {
    fn open(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Box<dyn ObjectIndex>> {
        Ok(Box::new(BtreeIndex(Index::open_or_create(disk, dir, &self.config())?)))
    }

    fn remove(&self, disk: &dyn Disk, dir: &Path) -> IndexResult<()> {
        if disk.kind(dir)? != Some(EntryKind::Directory) {
            return Ok(());
        }
        for entry in disk.list(dir)? {
            let path = dir.join(&entry.name);
            match entry.kind {
                EntryKind::Directory => self.remove(disk, &path)?,
                EntryKind::File | EntryKind::Link | EntryKind::Other => disk.remove(&path)?,
            }
        }
        Ok(disk.remove_dir(dir)?)
    }
}

fn value_of(bytes: &[u8]) -> IndexResult<IndexValue> {
    Ok(bytes.try_into()?)
}

#[derive(Debug)]
struct BtreeIndex(Index);

impl ObjectIndex for BtreeIndex {
    fn find(&self, key: &IndexKey) -> IndexResult<Option<IndexValue>> {
        self.0.find(key)?.map(|value| value_of(&value)).transpose()
    }

    fn insert(&self, entries: &[(IndexKey, IndexValue)]) -> IndexResult<()> {
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        Ok(self.0.replace_many(&entries)?)
    }

    fn remove(&self, keys: &[IndexKey]) -> IndexResult<()> {
        let removals: Vec<Update<'_>> = keys.iter().map(|key| Update::Remove(key)).collect();
        self.0.apply(&removals)?;
        Ok(())
    }

    fn each_from(
        &self,
        first: &IndexKey,
        visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
    ) -> IndexResult<()> {
        let mut entries = self.0.range(first.as_slice()..)?;
        while let Some((key, value)) = entries.next()? {
            if !visit(key.try_into()?, value.try_into()?) {
                break;
            }
        }
        Ok(())
    }

    fn flush(&self) -> IndexResult<()> {
        Ok(self.0.flush(true)?)
    }

    fn close(&self) -> IndexResult<()> {
        Ok(self.0.close()?)
    }
}

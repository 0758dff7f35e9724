//! The index of objects of a context store, in a B+tree of fixed keys and values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::{Config, Cursor, Index, IndexReader, Update};
use terrane_context::{
    INDEX_KEY_BYTES, INDEX_VALUE_BYTES, IndexEngine, IndexKey, IndexResult, IndexValue, ObjectIndex,
};
use terrane_io::{Disk, Entry, EntryKind};

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
        clear(&*disk, &aside(dir, 0))?;
        Ok(Box::new(BtreeIndex(Index::open_or_create(disk, dir, &self.config())?)))
    }

    fn read(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Option<Box<dyn ObjectIndex>>> {
        if disk.kind(&dir.join(TREE))?.is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(ReadIndex(IndexReader::open(disk, dir, &self.config())?))))
    }

    fn remove(&self, disk: &dyn Disk, dir: &Path) -> IndexResult<()> {
        match disk.kind(dir)? {
            None => return Ok(()),
            Some(EntryKind::Directory) => {}
            Some(found) => {
                return Err(terrane_io::Error::WrongKind { path: dir.to_owned(), found }.into());
            }
        }
        // The directory goes at once, so that no part of an index is taken for all of one after a crash.
        let mut number = 0;
        let aside = loop {
            let aside = aside(dir, number);
            clear(disk, &aside)?;
            if disk.kind(&aside)?.is_none() {
                break aside;
            }
            number += 1;
        };
        disk.rename(dir, &aside)?;
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent)?;
        }
        clear(disk, &aside)
    }
}

/// Names of what a B+tree has in its directory.
const TREE: &str = "tree";
const FILES: [&str; 5] = [TREE, "tree.tmp", "lock", "sort.lock", "synced"];
const LOG: &str = "log";
const READERS: &str = "readers";

/// Where an index goes that is being removed.
fn aside(dir: &Path, number: u32) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(if number == 0 { ".old".to_owned() } else { format!(".old.{number}") });
    PathBuf::from(path)
}

/// Removes the files of a B+tree from a directory, by their names, and the directory if nothing else is in it. No link is
/// followed.
fn clear(disk: &dyn Disk, dir: &Path) -> IndexResult<()> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Ok(());
    }
    let numbered = |name: &str, suffix: &str| {
        let digits = name.strip_suffix(suffix);
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let clear_dir = |dir: &Path, is_ours: &dyn Fn(&str) -> bool| -> IndexResult<()> {
        let entries = disk.list(dir)?;
        let is_removed = |entry: &Entry| entry.kind != EntryKind::Directory && is_ours(&entry.name);
        for entry in entries.iter().filter(|entry| is_removed(entry)) {
            disk.remove(&dir.join(&entry.name))?;
        }
        if entries.iter().all(is_removed) {
            disk.remove_dir(dir)?;
        }
        Ok(())
    };

    for (name, suffix) in [(LOG, ".log"), (READERS, ".lease")] {
        let inner = dir.join(name);
        if disk.kind(&inner)? == Some(EntryKind::Directory) {
            clear_dir(&inner, &|name| numbered(name, suffix))?;
        }
    }
    clear_dir(dir, &|name| FILES.contains(&name))
}

fn value_of(bytes: &[u8]) -> IndexResult<IndexValue> {
    Ok(bytes.try_into()?)
}

fn visit_all(
    mut entries: Cursor,
    visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
) -> IndexResult<()> {
    while let Some((key, value)) = entries.next()? {
        if !visit(key.try_into()?, value.try_into()?) {
            break;
        }
    }
    Ok(())
}

/// An index that is only looked at.
#[derive(Debug)]
struct ReadIndex(IndexReader);

impl ObjectIndex for ReadIndex {
    fn find(&self, key: &IndexKey) -> IndexResult<Option<IndexValue>> {
        self.0.find(key)?.map(|value| value_of(&value)).transpose()
    }

    fn insert(&self, _entries: &[(IndexKey, IndexValue)]) -> IndexResult<()> {
        Err(terrane_btree::Error::ReadOnly.into())
    }

    fn remove(&self, _keys: &[IndexKey]) -> IndexResult<()> {
        Err(terrane_btree::Error::ReadOnly.into())
    }

    fn each_from(
        &self,
        first: &IndexKey,
        visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
    ) -> IndexResult<()> {
        visit_all(self.0.range(first.as_slice()..)?, visit)
    }

    fn flush(&self) -> IndexResult<()> {
        Ok(())
    }

    fn close(&self) -> IndexResult<()> {
        self.0.close();
        Ok(())
    }
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
        visit_all(self.0.range(first.as_slice()..)?, visit)
    }

    fn flush(&self) -> IndexResult<()> {
        Ok(self.0.flush(true)?)
    }

    fn close(&self) -> IndexResult<()> {
        Ok(self.0.close()?)
    }
}

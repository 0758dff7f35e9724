//! Index of objects of a context store, in a B+tree of fixed keys and values.
//!
//! `terrane_context` defines the traits and knows no engine; this file implements them over
//! `terrane_btree`. Removal of an index renames its directory first, so that a crash never leaves
//! a part of an index where the context store would take it for a whole one.

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
    /// B+trees of this much memory each, at least 1 MiB. A store that indexes only its commits
    /// needs 4 MiB. A store that indexes every object wants all inner pages in memory: 1 % of its
    /// size.
    pub fn new(memory_bytes: usize) -> Self {
        Self { memory_bytes }
    }

    fn config(self) -> Config {
        Config::fixed(INDEX_KEY_BYTES, INDEX_VALUE_BYTES).memory_bytes(self.memory_bytes)
    }
}

impl IndexEngine for BtreeIndexes {
    fn open(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Box<dyn ObjectIndex>> {
        // An interrupted removal may have left the former index aside.
        clear(&*disk, &aside(dir, 0))?;
        Ok(Box::new(BtreeIndex::Writer(Box::new(Index::open_or_create(
            disk,
            dir,
            &self.config(),
        )?))))
    }

    fn read(&self, disk: Arc<dyn Disk>, dir: &Path) -> IndexResult<Option<Box<dyn ObjectIndex>>> {
        // Without a tree there is no index to read.
        if disk.kind(&dir.join(TREE))?.is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(BtreeIndex::Reader(Box::new(IndexReader::open(
            disk,
            dir,
            &self.config(),
        )?)))))
    }

    fn remove(&self, disk: &dyn Disk, dir: &Path) -> IndexResult<()> {
        match disk.kind(dir)? {
            None => return Ok(()),
            Some(EntryKind::Directory) => {}
            Some(found) => {
                return Err(terrane_io::Error::WrongKind { path: dir.to_owned(), found }.into());
            }
        }

        // The rename removes the whole index at once. File by file, a crash would leave a part of
        // the index, which the next opening would take for all of it.
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

/// Name of the tree in the directory of a B+tree.
const TREE: &str = "tree";
/// Files of a B+tree's directory.
const FILES: [&str; 5] = [TREE, "tree.tmp", "lock", "sort.lock", "synced"];
/// Directory of the WAL.
const LOG: &str = "log";
/// Directory of the leases of readers.
const READERS: &str = "readers";

/// The path that an index is renamed to before its files are removed.
fn aside(dir: &Path, number: u32) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(if number == 0 { ".old".to_owned() } else { format!(".old.{number}") });
    PathBuf::from(path)
}

/// Removes the files of a B+tree from a directory by their names, and the directory if nothing
/// else is in it. Follows no link.
fn clear(disk: &dyn Disk, dir: &Path) -> IndexResult<()> {
    if disk.kind(dir)? != Some(EntryKind::Directory) {
        return Ok(());
    }

    // Only files of an index go; others stay.
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
        // A directory with other files stays.
        if entries.iter().all(is_removed) {
            disk.remove_dir(dir)?;
        }
        Ok(())
    };

    // The files of the folders inside go before the index itself.
    for (name, suffix) in [(LOG, ".log"), (READERS, ".lease")] {
        let inner = dir.join(name);
        if disk.kind(&inner)? == Some(EntryKind::Directory) {
            clear_dir(&inner, &|name| numbered(name, suffix))?;
        }
    }

    clear_dir(dir, &|name| FILES.contains(&name))
}

/// An index of objects: open for writing, or a reader of one.
#[derive(Debug)]
enum BtreeIndex {
    Writer(Box<Index>),
    Reader(Box<IndexReader>),
}

impl BtreeIndex {
    fn writer(&self) -> IndexResult<&Index> {
        match self {
            Self::Writer(index) => Ok(index),
            Self::Reader(_) => Err(terrane_btree::Error::ReadOnly.into()),
        }
    }

    fn range_from(&self, first: &IndexKey) -> terrane_btree::Result<Cursor> {
        match self {
            Self::Writer(index) => index.range(first.as_slice()..),
            Self::Reader(reader) => reader.range(first.as_slice()..),
        }
    }
}

impl ObjectIndex for BtreeIndex {
    fn find(&self, key: &IndexKey) -> IndexResult<Option<IndexValue>> {
        let value = match self {
            Self::Writer(index) => index.find(key)?,
            Self::Reader(reader) => reader.find(key)?,
        };
        Ok(value.map(|value| value.as_slice().try_into()).transpose()?)
    }

    fn insert(&self, entries: &[(IndexKey, IndexValue)]) -> IndexResult<()> {
        let entries: Vec<(&[u8], &[u8])> =
            entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        Ok(self.writer()?.replace_many(&entries)?)
    }

    fn remove(&self, keys: &[IndexKey]) -> IndexResult<()> {
        let removals: Vec<Update<'_>> = keys.iter().map(|key| Update::Remove(key)).collect();
        self.writer()?.apply(&removals)?;
        Ok(())
    }

    fn each_from(
        &self,
        first: &IndexKey,
        visit: &mut dyn FnMut(&IndexKey, &IndexValue) -> bool,
    ) -> IndexResult<()> {
        let mut entries = self.range_from(first)?;
        while let Some((key, value)) = entries.next_ref()? {
            if !visit(key.try_into()?, value.try_into()?) {
                break;
            }
        }
        Ok(())
    }

    fn flush(&self) -> IndexResult<()> {
        match self {
            Self::Writer(index) => Ok(index.flush(true)?),
            Self::Reader(_) => Ok(()),
        }
    }

    fn close(&self) -> IndexResult<()> {
        match self {
            Self::Writer(index) => index.close()?,
            Self::Reader(reader) => reader.close(),
        }
        Ok(())
    }
}

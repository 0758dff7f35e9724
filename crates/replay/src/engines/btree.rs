//! Terrane's B+tree as an engine of replays: all tables in one index, which a durable point changes
//! by one batch.
//!
//! | key of the index                             | value                                                      |
//! |----------------------------------------------|------------------------------------------------------------|
//! | `00 00 00 00` ‖ name                         | a snapshot: number of its table, u32-LE ‖ its label        |
//! | table, u32-BE ‖ `00` ‖ key                   | `00` ‖ value; or `01` ‖ its length, u32-LE, if it is longer than 700 bytes |
//! | table, u32-BE ‖ `01` ‖ key ‖ piece, u32-BE   | such a value, in pieces of 700 bytes                       |

use std::path::Path;
use std::sync::Arc;

use terrane::btree::{Config, Error, Index, KEY_BYTES_MAX, Update, inspect};
use terrane::io::files::create_parents;
use terrane::io::{Disk, RealDisk};

use crate::engines::engine::{Cause, EngineError, Result};
use crate::engines::pending::{
    Changed, Changes, Saved, SingleState, SingleStateEngine, Snapshot, Stored, corrupt, refused,
};
use crate::error::Class;

/// Memory of the index, in bytes.
const MEMORY_BYTES: usize = 256 << 20;

/// Bytes of a piece of a long value, and of the longest value that is stored whole.
const PIECE_BYTES: usize = 700;

/// Bytes of a key of the index beside the key of the table: table, kind and piece.
const KEY_OVERHEAD_BYTES: usize = 9;

/// Bytes of a value at most, because all its pieces are read at once.
const VALUE_BYTES_LIMIT: usize = 1 << 30;

/// Keys looked up or removed at once.
const CHUNK: usize = 4096;

/// Bytes of a key of the index before the key of the table: table and kind.
const KEY_START: usize = 5;

/// Kind of the keys of heads.
const VALUES: u8 = 0;
/// Kind of the keys of pieces.
const PIECES: u8 = 1;

/// Engine over an index in a directory.
pub type Btree = SingleStateEngine<IndexTables>;

/// Tables in an index.
#[derive(Debug)]
pub struct IndexTables {
    index: Index,
}

/// Returns the prefix of all keys of one kind of a table.
#[expect(clippy::big_endian_bytes, reason = "so that tables lie one after the other")]
fn prefix(table: u32, kind: u8) -> Vec<u8> {
    let mut prefix = table.to_be_bytes().to_vec();
    prefix.push(kind);
    prefix
}

fn value_key(table: u32, key: &[u8]) -> Vec<u8> {
    [&prefix(table, VALUES), key].concat()
}

#[expect(clippy::big_endian_bytes, reason = "so that pieces lie one after the other")]
fn piece_key(table: u32, key: &[u8], piece: usize) -> Vec<u8> {
    [&prefix(table, PIECES), key, &(piece as u32).to_be_bytes()[..]].concat()
}

fn snapshot_key(name: &str) -> Vec<u8> {
    [&[0; 4], name.as_bytes()].concat()
}

/// Head of a value: the part that lies under its key.
enum Head<'a> {
    Whole(&'a [u8]),
    /// Number of bytes, which lie in pieces.
    Pieces(usize),
}

impl<'a> Head<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((0, value)) => Ok(Self::Whole(value)),
            Some((1, length)) => {
                let length = length.try_into().map_err(|_| corrupt("a length is cut off"))?;
                Ok(Self::Pieces(u32::from_le_bytes(length) as usize))
            }
            _ => Err(corrupt("a value is neither whole nor in pieces")),
        }
    }

    fn pieces(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Pieces(length) => length.div_ceil(PIECE_BYTES),
        }
    }
}

impl Btree {
    /// Opens the index in `dir`, or creates it. One process can hold an index at a time.
    ///
    /// # Errors
    /// [`EngineError::Environment`] if another process holds the index or the system refuses a
    /// call; [`EngineError::Refused`] if the directory is something else, which is left as it is.
    pub fn open(dir: &Path) -> Result<Self> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        Self::open_on(&disk, dir)
    }

    /// Opens the index in `dir` of a disk, or creates the index and its missing parents, durably.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Self> {
        // A directory with other files must not become an index.
        if !inspect::is_index(disk.as_ref(), dir)? {
            refuse_foreign(disk.as_ref(), dir)?;
            create_parents(disk.as_ref(), dir).map_err(Error::from)?;
        }

        let config = Config::variable().memory_bytes(MEMORY_BYTES);
        let index = Index::open_or_create(disk.clone(), dir, &config)?;
        Self::over(IndexTables { index })
    }
}

/// Refuses a directory that holds more than an interrupted creation leaves.
fn refuse_foreign(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if disk.kind(dir).map_err(Error::from)?.is_none() {
        return Ok(());
    }
    // An interrupted creation leaves these.
    let is_ours = |name: &str| ["lock", "log", "readers", "tree.tmp"].contains(&name);
    let entries = disk.list(dir).map_err(Error::from)?;

    match entries.iter().find(|entry| !is_ours(&entry.name)) {
        None => Ok(()),
        Some(entry) => {
            let dir = dir.display();
            let name = &entry.name;
            let message = format!("{dir} is not a B+tree of Terrane: it has {name:?}");
            refused(message)
        }
    }
}

impl IndexTables {
    /// Returns the head of each of `keys` of a table.
    fn heads(&self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| value_key(table, key)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        Ok(self.index.find_many(&keys)?)
    }

    /// Returns the value of a head.
    fn value(&self, table: u32, key: &[u8], head: &[u8]) -> Result<Vec<u8>> {
        let head = Head::decode(head)?;
        let length = match head {
            Head::Whole(value) => return Ok(value.to_vec()),
            Head::Pieces(length) => length,
        };

        // All pieces of a value are read in one call.
        let keys: Vec<Vec<u8>> =
            (0..head.pieces()).map(|piece| piece_key(table, key, piece)).collect();

        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut value = Vec::new();
        for piece in self.index.find_many(&keys)? {
            value.extend(piece.ok_or_else(|| corrupt("a piece of a value is missing"))?);
        }

        // Another length shows a missing or a foreign piece.
        if value.len() != length {
            return Err(corrupt("the pieces of a value add up to another length"));
        }

        Ok(value)
    }

    /// Adds the updates of the index for the changes of a table to `batch`.
    fn batch(&self, table: u32, changes: &Changes, batch: &mut Batch) -> Result<()> {
        let changes: Vec<_> = changes.iter().collect();
        // The heads of a chunk of keys are read in one call.
        for chunk in changes.chunks(CHUNK) {
            let keys: Vec<&[u8]> = chunk.iter().map(|(key, _)| key.as_slice()).collect();
            for ((key, value), old) in chunk.iter().zip(self.heads(table, &keys)?) {
                let old = old.as_deref().map(Head::decode).transpose()?;
                let old_pieces = old.map_or(0, |head| head.pieces());
                batch.put(table, key, value.as_deref(), old_pieces);
            }
        }
        Ok(())
    }

    /// Removes all keys with a prefix, a bounded number at a time.
    fn remove_all(&self, prefix: &[u8]) -> Result<()> {
        loop {
            let mut keys = Vec::new();
            let mut cursor = self.index.prefix(prefix)?;
            while keys.len() < CHUNK
                && let Some((key, _)) = cursor.next_ref()?
            {
                keys.push(key.to_vec());
            }
            // The cursor goes before the batch is applied.
            drop(cursor);
            if keys.is_empty() {
                return Ok(());
            }
            let batch: Vec<Update<'_>> = keys.iter().map(|key| Update::Remove(key)).collect();
            self.index.apply(&batch)?;
        }
    }
}

/// Updates of the index, to be applied at once.
#[derive(Default)]
struct Batch(Vec<Changed>);

impl Batch {
    /// Replaces a value that has `old_pieces` pieces by `value`, or removes it.
    fn put(&mut self, table: u32, key: &[u8], value: Option<&[u8]>, old_pieces: usize) {
        let is_long = |value: &&[u8]| value.len() > PIECE_BYTES;
        let head = value.map(|value| {
            if is_long(&value) {
                [&[1], &(value.len() as u32).to_le_bytes()[..]].concat()
            } else {
                [&[0], value].concat()
            }
        });

        self.0.push((value_key(table, key), head));
        // A long value stands in pieces beside its head.
        let mut pieces = 0;
        for piece in value.filter(is_long).unwrap_or_default().chunks(PIECE_BYTES) {
            self.0.push((piece_key(table, key, pieces), Some(piece.to_vec())));
            pieces += 1;
        }

        // A shorter value leaves pieces of the old value behind, which the batch removes.
        self.0.extend((pieces..old_pieces).map(|piece| (piece_key(table, key, piece), None)));
    }
}

impl SingleState for IndexTables {
    fn name(&self) -> &'static str {
        "btree"
    }

    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX - KEY_OVERHEAD_BYTES
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_LIMIT
    }

    fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let mut snapshots = Vec::new();
        // The keys of table 0 are the names of snapshots.
        let mut cursor = self.index.prefix(&[0; 4])?;
        while let Some((key, value)) = cursor.next_ref()? {
            snapshots.push(Snapshot::decode(&key[4..], value)?);
        }
        Ok(snapshots)
    }

    fn get_many(&self, table: u32, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let heads = self.heads(table, keys)?.into_iter();
        heads
            .zip(keys)
            .map(|(head, key)| head.map(|head| self.value(table, key, &head)).transpose())
            .collect()
    }

    fn scan(&self, table: u32, from: &[u8]) -> Result<Box<dyn Stored + '_>> {
        // The heads of a table stand before its pieces.
        let cursor = self.index.range(value_key(table, from)..prefix(table, PIECES))?;
        Ok(Box::new(StoredHeads { tables: self, table, cursor }))
    }

    fn write(&self, saved: &[Saved], older: &[Snapshot]) -> Result<()> {
        let mut batch = Batch::default();
        // The last update of a key counts, so a name that is saved again comes after its removal.
        batch.0.extend(older.iter().map(|older| (snapshot_key(&older.name), None)));
        for saved in saved {
            self.batch(saved.table, &saved.changes(), &mut batch)?;
            batch.0.push((snapshot_key(&saved.name), Some(saved.value())));
        }

        let updates: Vec<Update<'_>> = batch
            .0
            .iter()
            .map(|(key, value)| match value {
                Some(value) => Update::Replace(key, value),
                None => Update::Remove(key),
            })
            .collect();

        self.index.apply(&updates)?;
        Ok(self.index.flush(true)?)
    }

    fn delete(&self, snapshot: &Snapshot) -> Result<()> {
        for kind in [VALUES, PIECES] {
            self.remove_all(&prefix(snapshot.table, kind))?;
        }
        // The name goes last, so that a repeated call deletes the rest of an interrupted deletion.
        self.index.remove(&snapshot_key(&snapshot.name))?;
        Ok(self.index.flush(true)?)
    }
}

/// Keys of a table in the index, with the heads of their values.
struct StoredHeads<'a> {
    tables: &'a IndexTables,
    table: u32,
    cursor: terrane::btree::Cursor,
}

impl Stored for StoredHeads<'_> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let next = self.cursor.next_ref()?;
        Ok(next.map(|(key, head)| (key[KEY_START..].to_vec(), head.to_vec())))
    }

    fn value(&self, key: &[u8], head: Vec<u8>) -> Result<Vec<u8>> {
        self.tables.value(self.table, key, &head)
    }
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        let class: fn(Cause) -> Self = match Class::from(&error) {
            Class::Check => Self::Corrupt,
            Class::Input => Self::Refused,
            Class::Environment | Class::Interrupted => Self::Environment,
        };
        class(Box::new(error))
    }
}

#[cfg(test)]
mod tests;

//! Blocks on a table that is committed to a Merkle-Patricia root.
//!
//! The tables of the store:
//!
//! | table                                  | key           | value                                |
//! |----------------------------------------|---------------|--------------------------------------|
//! | `state`, `state_hashes`, `state_nodes` |               | the [`CommittedTable`]               |
//! | `replay`                               | `format`      | version, one byte                    |
//! | `blocks`                               | number        | number of the block before (u64), then the note |
//! | `undo`                                 | number, key   | 1, or 2 and the value: the entry before the block |
//!
//! Numbers in keys are big-endian, so that they sort by block; the first kept block names itself as
//! the block before. One commit writes a block, its undo records and the removal of forgotten
//! blocks, so a store never has a part of a block.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use terrane::io::files::create_dirs;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::{
    KEY_BYTES_MAX, NamedTable, SessionOptions, Store, StoreOptions, TableConfig, VALUE_BYTES_MAX,
    WriteBatch,
};
use terrane::mpt::{self, CommittedTable};

use super::blocks::Ledger;
use super::history::{Error, NetChange, Result, Tip};
use crate::engines::engine::{self, Cause, Cursor, EngineError, Entry, State};
use crate::error::Class;

/// Name of the committed table.
const TABLE: &str = "state";
/// Names of all tables.
const TABLES: [&str; 6] = ["state", "state_hashes", "state_nodes", "replay", "blocks", "undo"];
/// Key of the version of the format.
const FORMAT_KEY: &[u8] = b"format";
/// Version of the format.
const FORMAT_VERSION: u8 = 1;
/// Blocks that are undone in one commit.
const UNDONE_AT_ONCE: usize = 256;
/// First byte of an undo record: there was no entry.
const ABSENT: u8 = 1;
/// First byte of an undo record: the value follows.
const PRESENT: u8 = 2;

/// State of blocks in a committed table.
#[derive(Debug)]
pub struct MptLedger {
    store: Store,
    state: MptState,
    replay: NamedTable,
    blocks: NamedTable,
    undo: NamedTable,
    tip: Option<Tip>,
    /// Ascending; the last one is the tip.
    kept: VecDeque<u64>,
    keep_max: Option<u64>,
    /// Whether commits may not be durable yet.
    unsaved: bool,
}

#[derive(Debug)]
struct MptState(CommittedTable);

struct MptCursor(terrane::lsm::Cursor);

impl From<mpt::Error> for EngineError {
    fn from(error: mpt::Error) -> Self {
        let class: fn(Cause) -> Self = match Class::from(&error) {
            Class::Check => Self::Corrupt,
            Class::Input => Self::Refused,
            Class::Environment | Class::Interrupted => Self::Environment,
        };
        class(Box::new(error))
    }
}

impl From<mpt::Error> for Error {
    fn from(error: mpt::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<terrane::lsm::Error> for Error {
    fn from(error: terrane::lsm::Error) -> Self {
        Self::Engine(error.into())
    }
}

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn block_key(block: u64) -> [u8; 8] {
    block.to_be_bytes()
}

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn block_number(key: &[u8]) -> Result<u64> {
    let bytes = key.try_into().map_err(|_| Error::Corrupt("a key has a wrong length"))?;
    Ok(u64::from_be_bytes(bytes))
}

impl MptLedger {
    /// Opens the store of a ledger in `dir`, or makes one. The caller closes the store behind the
    /// ledger.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open_store(dir: &Path) -> Result<Store> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        if let Some(parent) = dir.parent() {
            create_dirs(disk.as_ref(), parent).map_err(terrane::lsm::Error::from)?;
        }
        let options = StoreOptions::default().session(SessionOptions::default().create_dir());
        Ok(Store::open(disk, dir, &options)?)
    }

    /// Continues from the newest block of a store, or begins with the empty state. The ledger keeps
    /// the newest `keep_max` blocks, or all with `None`.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the store was not made by a replay; [`Error::Version`],
    /// [`Error::Corrupt`], and those of the store.
    pub fn open(store: Store, keep_max: Option<u64>) -> Result<Self> {
        if store.tables()?.iter().any(|table| !TABLES.contains(&table.name.as_str())) {
            let message = "the store was not made by `terrane replay changes --engine mpt`";
            return Err(EngineError::Refused(message.into()).into());
        }
        let table = |name: &str| store.table_or_create(name, &TableConfig::default());
        let mut ledger = Self {
            state: MptState(CommittedTable::open(&store, TABLE)?),
            replay: table("replay")?,
            blocks: table("blocks")?,
            undo: table("undo")?,
            store,
            tip: None,
            kept: VecDeque::new(),
            keep_max,
            unsaved: false,
        };
        ledger.check_format()?;
        ledger.read_blocks()?;
        Ok(ledger)
    }

    fn check_format(&self) -> Result<()> {
        match self.replay.get(FORMAT_KEY)?.value() {
            Some(&[FORMAT_VERSION]) => Ok(()),
            Some(&[found]) => Err(Error::Version { found }),
            Some(_) => Err(Error::Corrupt("its version is missing")),
            None => {
                let is_new = self.state.0.entries().cursor()?.peek()?.is_none();
                if !is_new || self.blocks.cursor()?.peek()?.is_some() {
                    return Err(Error::Corrupt("its version is missing"));
                }
                self.replay.insert(FORMAT_KEY, &[FORMAT_VERSION])?.wait()?;
                Ok(())
            }
        }
    }

    /// Reads the kept blocks. Each names the one before.
    fn read_blocks(&mut self) -> Result<()> {
        let mut cursor = self.blocks.cursor()?;
        while let Some(record) = cursor.next_ref()? {
            let number = block_number(record.key)?;
            let (before, note) = parse(record.value)?;
            if self.kept.back().is_some_and(|last| *last != before) {
                return Err(Error::Corrupt("a block is missing between two that are kept"));
            }
            self.tip = Some(Tip { block: number, note: note.to_vec() });
            self.kept.push_back(number);
        }
        Ok(())
    }

    /// Undoes the blocks from `target` on in the list of the kept ones, in one commit.
    fn undo_from(&mut self, target: usize) -> Result<()> {
        // Blocks come from the newest, so the oldest undo record of a key counts.
        let mut changes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        let mut batch = WriteBatch::new();
        for &number in self.kept.range(target..).rev() {
            let prefix = block_key(number);
            let view = self.undo.view()?;
            let mut cursor = view.prefix(&prefix)?;
            while let Some(record) = cursor.next_ref()? {
                let before = match record.value.split_first() {
                    Some((&ABSENT, [])) => None,
                    Some((&PRESENT, value)) => Some(value.to_vec()),
                    _ => return Err(Error::Corrupt("an undo record cannot be read")),
                };
                changes.insert(record.key[prefix.len()..].to_vec(), before);
            }
            batch.delete(&self.blocks, prefix);
            batch.delete_prefix(&self.undo, prefix);
        }

        let tip = match target.checked_sub(1).map(|newest| self.kept[newest]) {
            Some(block) => Some(Tip { block, note: self.note(block)? }),
            None => None,
        };
        let changes: Vec<_> = changes.into_iter().collect();
        let staged = self.state.0.stage(&changes, &mut batch)?;
        drop(self.store.write_if(&batch, staged.commit)?);
        self.kept.truncate(target);
        self.tip = tip;
        Ok(())
    }

    /// Empties the store, with the undo records of all blocks.
    fn clear(&mut self) -> Result<()> {
        let mut batch = WriteBatch::new();
        let staged = self.state.0.stage_clear(&mut batch);
        batch.delete_range::<[u8], _>(&self.blocks, ..);
        batch.delete_range::<[u8], _>(&self.undo, ..);
        drop(self.store.write_if(&batch, staged.commit)?);
        self.kept.clear();
        self.tip = None;
        self.unsaved = true;
        Ok(())
    }
}

/// The number of the block before, and the note.
fn parse(value: &[u8]) -> Result<(u64, &[u8])> {
    let parts = value.split_first_chunk();
    let (before, note) = parts.ok_or(Error::Corrupt("a note cannot be read"))?;
    Ok((u64::from_le_bytes(*before), note))
}

impl Ledger for MptLedger {
    fn tip(&self) -> Option<&Tip> {
        self.tip.as_ref()
    }

    fn oldest(&self) -> Option<u64> {
        self.kept.front().copied()
    }

    fn kept_below(&self, block: u64) -> Option<u64> {
        self.kept.iter().rev().copied().find(|kept| *kept < block)
    }

    fn note(&self, block: u64) -> Result<Vec<u8>> {
        let found = self.blocks.get(&block_key(block))?;
        let value = found.value().ok_or(Error::Unknown { block })?;
        Ok(parse(value)?.1.to_vec())
    }

    fn state(&self) -> &dyn State {
        &self.state
    }

    fn key_bytes_max(&self) -> usize {
        // An undo record has the number of its block before the key.
        KEY_BYTES_MAX - block_key(0).len()
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX - 1
    }

    fn append(&mut self, number: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()> {
        debug_assert!(self.tip.as_ref().is_none_or(|tip| tip.block < number), "block numbers rise");
        let mut batch = WriteBatch::new();
        let new: Vec<_> =
            changes.iter().map(|change| (change.key.clone(), change.new.clone())).collect();
        let staged = self.state.0.stage(&new, &mut batch)?;

        let before = self.tip.as_ref().map_or(number, |tip| tip.block);
        let value = [&before.to_le_bytes()[..], &note].concat();
        batch.insert(&self.blocks, block_key(number), value);
        for NetChange { key, old, .. } in changes {
            let record = match old {
                None => vec![ABSENT],
                Some(old) => [&[PRESENT], &old[..]].concat(),
            };
            batch.insert(&self.undo, [&block_key(number)[..], key].concat(), record);
        }

        // The oldest blocks beyond the limit are forgotten in the same commit.
        let keep_max = self.keep_max.map_or(usize::MAX, |max| max.max(1) as usize);
        let forgotten = (self.kept.len() + 1).saturating_sub(keep_max);
        for &oldest in self.kept.range(..forgotten) {
            batch.delete(&self.blocks, block_key(oldest));
            batch.delete_prefix(&self.undo, block_key(oldest));
        }

        // Memory follows only after the commit, so a failed one changes nothing.
        drop(self.store.write_if(&batch, staged.commit)?);
        self.kept.drain(..forgotten);
        self.kept.push_back(number);
        self.tip = Some(Tip { block: number, note });
        self.unsaved = true;
        Ok(())
    }

    fn rollback(
        &mut self,
        block: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let Some(block) = block else { return self.clear() };
        let tip = self.tip.as_ref().map(|tip| tip.block);
        let oldest = self.oldest().filter(|_| tip >= Some(block));
        let oldest = oldest.ok_or(Error::Ahead { block, tip })?;
        if block < oldest {
            return Err(Error::NotKept { block, oldest });
        }
        let place = self.kept.binary_search(&block).map_err(|_| Error::Unknown { block })?;

        // Each commit undoes a bounded number of blocks, so an interrupted rollback keeps its
        // progress.
        let left = place + 1;
        let total = (self.kept.len() - left) as u64;
        while left < self.kept.len() {
            let target = left.max(self.kept.len().saturating_sub(UNDONE_AT_ONCE));
            self.undo_from(target)?;
            self.unsaved = true;
            if !progress(total - (self.kept.len() - left) as u64, total) {
                break;
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        if self.unsaved {
            self.store.sync()?;
            self.unsaved = false;
        }
        Ok(())
    }
}

impl State for MptState {
    fn get_many(&self, keys: &[&[u8]]) -> engine::Result<Vec<Option<Vec<u8>>>> {
        let found = self.0.entries().get_many(keys)?;
        Ok(found.iter().map(|lookup| lookup.value().map(<[u8]>::to_vec)).collect())
    }

    fn scan(&self, from: &[u8]) -> engine::Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(MptCursor(self.0.entries().view()?.cursor_at(from)?)))
    }

    fn roots(&self) -> engine::Result<BTreeMap<String, String>> {
        let root = self.0.root()?;
        Ok(BTreeMap::from([("mpt".to_owned(), crate::hex::encode(root.as_slice()))]))
    }
}

impl Cursor for MptCursor {
    fn next(&mut self) -> engine::Result<Option<Entry>> {
        let record = self.0.next().transpose()?;
        Ok(record.map(|record| Entry { key: record.key, value: record.value.into_vec() }))
    }
}

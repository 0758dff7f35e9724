//! Database over one index: opening, commits, and the rest of the contract.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use terrane_btree::{Index, PAGE_SIZE};
use terrane_io::Disk;
use terrane_kv::overlay::changes::{Changes, Known};
use terrane_kv::overlay::engine::{Common, Engine};
use terrane_kv::overlay::failure::check_dir;
use terrane_kv::{Durability, Error, Receipt, Result};

use super::changes::{Before, Rows};
use super::options::{BtreeOptions, NAME, broken, error};
use super::row::{self, PIECES};
use super::snapshot::{BtreeSnapshot, Source};
use super::tables::{entries_of, open_tables};

/// Database in one B+tree; `docs/format/tables.md` has the bytes.
///
/// Cost: a lookup is one lookup of the index, and one of each piece of a value of 768 bytes or
/// more, side by side; `count` is one lookup. A commit looks up each key that it changes and its
/// writer has not read, writes its keys and values once to the WAL, and does its share of applying
/// pending updates; with [`Durability::Each`] it syncs the WAL.
#[derive(Debug)]
pub struct BtreeDatabase {
    common: Common,
    options: BtreeOptions,
    /// Shared with the snapshots: the index keeps their pages.
    index: Arc<Index>,
    /// The main table and the indexes: the key of each table's row, and its number.
    tables: Arc<[(Vec<u8>, u8)]>,
    /// Number of the next value in pieces.
    next_value: AtomicU64,
}

impl BtreeDatabase {
    /// Opens the database in a directory with these indexes. Creates the directory and the indexes
    /// that are missing; leaves other indexes alone.
    ///
    /// Cost: in proportion to the WAL, as of opening an index.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an option or the name of an index that cannot be, and for more
    /// than 253 indexes over all openings; [`Error::Locked`]; [`Error::Corruption`], also if the
    /// directory holds something else; [`Error::StoreFull`], [`Error::BackEnd`].
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        indexes: &[&str],
        options: &BtreeOptions,
    ) -> Result<Self> {
        let config = options.config()?;
        let (common, disk) = Common::new(NAME, disk, dir, indexes, options.durability)?;
        let call = check_dir(NAME, disk.as_ref(), dir)?;
        let failed = |failure| error(call, failure);
        let index = Index::open_or_create(disk, dir, &config).map_err(failed)?;
        let tables = open_tables(&index, indexes)?;

        // Pieces ascend by the number of their value, so the last key has the greatest number.
        let mut last = index.range_back([PIECES]..).map_err(failed)?;
        let next_value = match last.next_ref().map_err(failed)? {
            None => 0,
            Some((key, _)) => {
                let id = row::piece_id(key).and_then(|id| id.checked_add(1));
                id.ok_or_else(|| broken(format!("key {key:02x?} of a piece")))?
            }
        };

        Ok(Self {
            common,
            options: options.clone(),
            index: Arc::new(index),
            tables: tables.into(),
            next_value: AtomicU64::new(next_value),
        })
    }

    /// An error of a write: [`Error::Poisoned`] if a sync failed.
    fn error(&self, call: &'static str, failure: terrane_btree::Error) -> Error {
        match failure {
            terrane_btree::Error::Disk(_) if self.index.is_poisoned() => {
                Error::Poisoned { back_end: NAME }
            }
            failure => error(call, failure),
        }
    }
}

impl Engine for BtreeDatabase {
    const NAME: &'static str = NAME;

    type Snapshot = BtreeSnapshot;

    const WANTS_KNOWN: bool = true;

    fn common(&self) -> &Common {
        &self.common
    }

    fn is_poisoned(&self) -> bool {
        self.index.is_poisoned()
    }

    fn snapshot(&self) -> Result<BtreeSnapshot> {
        let snapshot = self.index.snapshot().map_err(|failure| error("reader", failure))?;
        let tables = self.tables.clone();
        Ok(BtreeSnapshot { source: Source::Own { snapshot, _index: self.index.clone() }, tables })
    }

    fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt> {
        let failed = |failure| self.error("commit", failure);
        let mut rows = Rows::default();
        for (((name, number), changes), known) in self.tables.iter().zip(changes).zip(known) {
            if changes.is_empty() {
                continue;
            }

            let keys: Vec<Vec<u8>> = changes.keys().map(|key| row::key(*number, key)).collect();

            // Keys that the writer has read need no lookup here. The row of the table is read with
            // the others, in one batch.
            let known = |key: &Vec<u8>| known.get(key).copied().and_then(Before::of_value);
            let known: Vec<Option<Before>> = changes.keys().map(known).collect();
            let unknown = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
            let unknown = unknown.map(|(key, _)| key.as_slice());
            let refs: Vec<&[u8]> = std::iter::once(name.as_slice()).chain(unknown).collect();
            let mut found = self.index.find_many(&refs).map_err(failed)?.into_iter();
            let name_row = found.next().flatten();

            // The row of the table holds its number of entries.
            let mut more = 0;
            for ((key, after), known) in keys.into_iter().zip(changes.values()).zip(known) {
                let before = match known {
                    Some(before) => before,
                    None => Before::of_row(&key, found.next().flatten().as_deref())?,
                };
                more += rows.change(key, before, after.as_deref(), &self.next_value);
            }

            // With as many entries as before, the row of the table stays as it is.
            if more != 0 {
                let entries = entries_of(name, name_row.as_deref())?;
                let entries = entries.checked_add_signed(more).ok_or_else(|| {
                    broken(format!("row {name:02x?} says {entries} entries, too few"))
                })?;
                rows.put.push((name.clone(), row::name_value(*number, entries), true));
            }
        }

        let (put, gone) = rows.piece_keys();
        let (updates, was_there) = rows.updates(&put, &gone);

        let position = self.index.commit_known(&updates, was_there).map_err(failed)?;
        if self.options.durability == Durability::Each {
            self.index.sync_to(position).map_err(failed)?;
        }

        Ok(Receipt(position))
    }

    fn sync_to(&self, receipt: Receipt) -> Result<()> {
        self.index.sync_to(receipt.0).map_err(|failure| self.error("settle", failure))
    }

    fn sync_all(&self) -> Result<()> {
        self.index.flush(true).map_err(|failure| self.error("sync", failure))
    }

    fn own_settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let buffer_bytes = options.buffer_bytes.unwrap_or(options.memory_bytes / 3);
        vec![
            ("memory_bytes", options.memory_bytes.to_string()),
            ("buffer_bytes", buffer_bytes.to_string()),
            ("page_bytes", PAGE_SIZE.to_string()),
            ("log_bytes_max", options.log_bytes_max.to_string()),
        ]
    }

    /// Packs half-empty leaves, moves pages from the end of the file into free ones, and cuts the
    /// file. Pages that snapshots need stay.
    fn compact_files(&self) -> Result<()> {
        self.index.compact().map(drop).map_err(|failure| self.error("compact", failure))
    }

    fn close_files(&self) -> Result<()> {
        self.index.close().map_err(|failure| error("close", failure))
    }
}

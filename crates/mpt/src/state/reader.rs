//! A state that another process writes, or nobody.

use std::path::Path as FilePath;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_lsm::{ReaderOptions, StoreReader, inspect};

#[cfg(doc)]
use crate::base::error::Error;
use crate::base::error::Result;
use crate::state::at::StateAt;
use crate::state::diff::{StateDiff, diff};
use crate::state::tables::{Block, NAMES, Views};

/// A state that is open for reading beside the process that writes it, on read-only media too.
///
/// Its view changes only by [`refresh`](Self::refresh). Each [`StateAt`] stays as it is.
#[derive(Debug)]
pub struct StateReader {
    reader: StoreReader,
    pub(crate) views: Views,
}

impl StateReader {
    /// Opens the state in `dir` for reading. Nothing is written but a lease, and nobody is waited
    /// for.
    ///
    /// Cost: that of opening a reader of a store, and a few lookups.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::NotAState`] for a store of other tables;
    /// [`Error::UnknownVersion`].
    pub fn open(disk: Arc<dyn Disk>, dir: &FilePath, options: &ReaderOptions) -> Result<Self> {
        let reader = StoreReader::open(disk, dir, options)?;
        let views = Views::of_reader(&reader)?;
        Ok(Self { reader, views })
    }

    /// Goes on to the newest commit that the writer has made. Returns the tip.
    ///
    /// # Errors
    /// [`Error::Store`]; the view is as before then.
    pub fn refresh(&mut self) -> Result<Option<Block>> {
        self.reader.refresh()?;
        self.views = Views::of_reader(&self.reader)?;
        self.tip()
    }

    /// The last block; `None` before the first.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn tip(&self) -> Result<Option<Block>> {
        self.views.tip()
    }

    /// The block at a height, if the state knows it.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn block_at(&self, height: u64) -> Result<Option<Block>> {
        self.views.block(height)
    }

    /// The state after the block at `height`, as [`State::at`](crate::State::at).
    ///
    /// # Errors
    /// The errors of [`State::at`](crate::State::at).
    pub fn at(&self, height: u64) -> Result<StateAt> {
        StateAt::of(self.views.clone(), Some(height))
    }

    /// The state after the last block.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] before the first block; [`Error::Store`].
    pub fn latest(&self) -> Result<StateAt> {
        StateAt::of(self.views.clone(), None)
    }

    /// The accounts and slots that differ between two heights, as
    /// [`State::diff`](crate::State::diff).
    ///
    /// # Errors
    /// The errors of [`State::diff`](crate::State::diff).
    pub fn diff(&self, from: u64, to: u64) -> Result<StateDiff> {
        diff(&self.views, from, to)
    }

    /// Whether an [import](crate::Import) into the state has not been finished.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn is_import_unfinished(&self) -> Result<bool> {
        self.views.is_importing()
    }

    /// The lowest height that can be read, if there is a history, and the lowest that a reorg or a
    /// diff can reach, if histories were pruned.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn floors(&self) -> Result<(Option<u64>, Option<u64>)> {
        Ok((self.views.history_floor()?, self.views.reorg_floor()?))
    }
}

/// Whether a directory holds the tables of a state, also if they are damaged.
///
/// Cost: reads the manifest.
///
/// # Errors
/// [`Error::Store`]: the directory is not a store, or cannot be read.
pub fn is_state(disk: &dyn Disk, dir: &FilePath) -> Result<bool> {
    let found = inspect::table_names(disk, dir)?;
    let has = |name: &str| found.iter().any(|found| found.as_str() == name);
    Ok(NAMES.iter().all(|name| has(name)) && found.len() == NAMES.len())
}

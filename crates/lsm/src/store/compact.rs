//! Compaction on demand: everything that a table holds becomes one run, or slices of one if it is
//! large, without what was deleted or replaced.
//!
//! The write buffer is flushed, and then all runs are the inputs of one merge on the last level,
//! which is done at once by whoever asks for it. It is a merge like any other: readers look into
//! its inputs until it is complete, updates go on above it, a snapshot made meanwhile keeps it with
//! its inputs, and after a crash it goes on from the last checkpoint. If it fails its inputs stay,
//! to be merged in their time.
//!
//! Invariant: the locks of a store are held only for a moment, to begin and to end a flush or a
//! merge, and no commit waits for a merge that is not due.

use std::sync::Arc;

use crate::compaction::compaction::Compaction;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::run::check::Progress;
use crate::store::inner::LogRoom;
use crate::store::options::TableName;
use crate::store::store::{NamedTable, Store};
use crate::table::table::Table;
use crate::trace::event;

/// Pages of work between two looks at the session, for which an update may wait whose merge is due.
const PAGES_AT_ONCE: u64 = 256;

/// A table that is compacted, wherever it is.
trait Place {
    /// Does something to the table that changes nothing of what it holds.
    fn change<T>(&mut self, act: impl FnOnce(&mut Table) -> Result<T>) -> Result<T>;

    /// Returns the same as [`Table::work_ahead`].
    fn work_ahead(&mut self) -> Result<Vec<(Arc<Compaction>, u64)>>;

    fn check_writable(&mut self) -> Result<()>;
}

impl Place for &mut Table {
    fn change<T>(&mut self, act: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        act(self)
    }

    fn work_ahead(&mut self) -> Result<Vec<(Arc<Compaction>, u64)>> {
        Ok(Table::work_ahead(self))
    }

    fn check_writable(&mut self) -> Result<()> {
        Table::check_writable(self)
    }
}

impl Place for &NamedTable {
    fn change<T>(&mut self, act: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        self.rearrange(act)
    }

    fn work_ahead(&mut self) -> Result<Vec<(Arc<Compaction>, u64)>> {
        NamedTable::work_ahead(self)
    }

    fn check_writable(&mut self) -> Result<()> {
        NamedTable::check_writable(self)
    }
}

fn compact(mut place: impl Place, progress: Progress<'_>) -> Result<()> {
    place.check_writable()?;
    for (compaction, target) in place.work_ahead()? {
        advance(&mut place, &compaction, target, &mut |_, _| {})?;
    }

    if let Some(flush) = place.change(Table::begin_flush)? {
        advance(&mut place, &flush, u64::MAX, &mut |_, _| {})?;
    }

    let Some(compaction) = place.change(|table| Ok(table.begin_compaction()))? else {
        return Ok(());
    };
    let merged = advance(&mut place, &compaction, u64::MAX, progress);

    let ended = place.change(|table| {
        table.end_compaction(&compaction);
        Ok(())
    });

    merged.and(ended)
}

/// Does the work of a merge up to some page of it, step by step.
fn advance(
    place: &mut impl Place,
    compaction: &Arc<Compaction>,
    target: u64,
    progress: Progress<'_>,
) -> Result<()> {
    while !compaction.is_complete() && compaction.done() < target {
        place.check_writable()?;
        compaction
            .advance_to((compaction.done() + PAGES_AT_ONCE).min(target).min(compaction.total()))?;
        progress(compaction.done(), compaction.total());
    }
    Ok(())
}

impl Table {
    /// Merges all that the table holds into one run, in which no key is twice and none is deleted;
    /// that of a large table is cut into slices.
    /// The content stays the same. Duplicates, cursors and snapshots keep the runs that they have,
    /// which take room as long as they do. `progress` is told of pages. A union that is not
    /// complete is completed first.
    ///
    /// Cost: that of the next flush of the write buffer; then reads and writes each page once, in
    /// large chunks. Memory for these, and for the filter and the index of the run. Until it is
    /// done the disk holds the table twice, without what was deleted, but for old slices, which go
    /// as the new ones come. On a full disk that needs as much room as the live entries take; where
    /// there is less, the run that was being written is removed again. Held by the test
    /// `compaction`.
    ///
    /// # Errors
    /// [`Error::Disk`] (also of a full disk), [`Error::Corrupt`] (damage in a page),
    /// [`Error::TableTooLarge`], [`Error::Poisoned`], [`Error::ReadOnly`],
    /// [`Error::SessionClosed`]. The content is the same then, too, and nothing is left to be done
    /// for the updates that follow.
    pub fn compact(&mut self, progress: Progress<'_>) -> Result<()> {
        self.supply_union_credits(u64::MAX)?;
        compact(self, progress)
    }
}

impl Store {
    /// Compacts each named table as [`Table::compact`] does, durably, and lets go of the log but
    /// for its smallest segment. Reads and commits go on meanwhile; what is committed while a table
    /// is merged is not in its run. Retained versions, snapshots, backups under way and readers
    /// keep the runs that they need. `progress` is told of pages, of which more may turn out to be
    /// to do.
    ///
    /// Cost: that of [`Table::compact`] for one table after the other, each with a
    /// [`checkpoint`](Self::checkpoint), which frees what was merged; so the disk holds no more
    /// than the largest one twice. The next commit may have to make a segment of the log.
    ///
    /// # Errors
    /// Those of [`Table::compact`] and of [`checkpoint`](Self::checkpoint). What was compacted
    /// before stays so.
    pub fn compact(&self, progress: Progress<'_>) -> Result<()> {
        let names: Vec<TableName> = self.tables()?.into_iter().map(|info| info.name).collect();
        self.compact_tables(&names, progress)
    }

    /// Compacts one named table as [`compact`](Self::compact) compacts all.
    ///
    /// Cost: that of [`compact`](Self::compact) for this table.
    ///
    /// # Errors
    /// [`Error::TableDoesNotExist`], and those of [`compact`](Self::compact).
    pub fn compact_table(&self, name: &TableName, progress: Progress<'_>) -> Result<()> {
        self.table(name)?;
        self.compact_tables(std::slice::from_ref(name), progress)
    }

    fn compact_tables(&self, names: &[TableName], progress: Progress<'_>) -> Result<()> {
        let shared = &self.shared;

        let mut before = 0;
        let mut made = 0;
        for name in names {
            let named = match self.table(name) {
                // Another thread dropped the table meanwhile.
                Err(Error::TableDoesNotExist { .. }) => continue,
                named => named?,
            };

            event!(DEBUG, "store.compact", shared.inner.dir(), name = %name);
            let compacted = compact(&named, &mut |done, total| {
                made = total;
                progress(before + done, before + total);
            });

            match compacted {
                Err(Error::TableDoesNotExist { .. }) => continue,
                compacted => compacted?,
            }

            before += std::mem::take(&mut made);
            shared.checkpoint()?;
        }

        shared.checkpoint_leaving(&mut lock(&shared.published), LogRoom::Least)
    }
}

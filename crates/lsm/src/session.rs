//! A session: one directory on disk, held by one process, with its tables and snapshots.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, RealDisk};

use crate::blob::{self, BlobRef};
use crate::config::TableConfig;
use crate::error::Result;
use crate::files::lock;
use crate::levels::Tree;
use crate::session_core::SessionCore;
use crate::snapshot::{self, SnapshotName};
use crate::table::Table;

/// Reads of blobs that are in flight at once.
const BLOB_READS_IN_FLIGHT: usize = 64;

/// How a session is opened.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Salt of all hashes of a session that is created, drawn at random if not given. A session that
    /// exists keeps its own.
    pub salt: Option<u64>,
    /// Whether a missing directory is created (its parent must exist).
    pub create_dir: bool,
}

impl SessionOptions {
    /// Options with a given salt, for runs that are to be repeatable to the byte.
    #[must_use]
    pub fn with_salt(salt: u64) -> Self {
        Self { salt: Some(salt), ..Self::default() }
    }

    /// The same, creating a missing directory.
    #[must_use]
    pub fn create_dir(self) -> Self {
        Self { create_dir: true, ..self }
    }
}

/// A handle on a session; clones are the same session. The lock is held until [`close`](Self::close), or
/// until the last handle, table and cursor is gone.
#[derive(Debug, Clone)]
pub struct Session {
    core: Arc<SessionCore>,
}

impl Session {
    /// Opens a session on the real disk: [`open`](Self::open) with [`RealDisk::auto`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<Path>, options: &SessionOptions) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the session in `dir`, or creates one if the directory is empty.
    ///
    /// Tables that were not saved in a snapshot before the last close or crash are gone.
    ///
    /// Cost: reads the metadata of all snapshots; removes the files of lost tables.
    ///
    /// # Errors
    /// [`SessionDirDoesNotExist`](crate::Error::SessionDirDoesNotExist),
    /// [`SessionDirLocked`](crate::Error::SessionDirLocked),
    /// [`SessionDirCorrupted`](crate::Error::SessionDirCorrupted) (also for a directory of something else,
    /// which is left as it is), [`UnknownVersion`](crate::Error::UnknownVersion),
    /// [`Disk`](crate::Error::Disk).
    #[expect(clippy::needless_pass_by_value, reason = "a session keeps its disk")]
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &SessionOptions) -> Result<Self> {
        if options.create_dir {
            let is_missing = disk.kind(dir)?.is_none();
            if is_missing {
                disk.create_dir(dir)?;
            }
            // Even if it was there: an earlier attempt may have ended before the name was durable.
            if let Some(parent) = dir.parent() {
                let synced = disk.sync_dir(parent);
                if synced.is_err() && is_missing {
                    // No later sync can be trusted with this name; the next attempt makes a new one.
                    let _ = disk.remove_dir(dir);
                }
                synced?;
            }
        }
        let salt = options.salt.unwrap_or_else(|| RandomState::new().hash_one(0));
        Ok(Self { core: SessionCore::open(&disk, dir, salt)? })
    }

    /// A new, empty table.
    ///
    /// Cost: no I/O.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::Error::InvalidConfig), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn new_table(&self, config: &TableConfig) -> Result<Table> {
        self.core.check_open()?;
        config.validate()?;
        Ok(Table::new(Arc::clone(&self.core), Tree::default(), config.clone()))
    }

    /// The union of some tables, complete: [`incremental_union`](Self::incremental_union) with its whole debt
    /// paid.
    ///
    /// Cost: reads the runs of all tables, writes and reads and writes the result.
    ///
    /// # Errors
    /// As [`incremental_union`](Self::incremental_union) and [`Table::supply_union_credits`].
    pub fn union(&self, tables: &[&Table]) -> Result<Table> {
        let mut table = self.incremental_union(tables)?;
        table.supply_union_credits(u64::MAX)?;
        Ok(table)
    }

    /// A new table with what several tables hold together. Where more than one has a key, the table's resolve
    /// function combines the values, left to right, the left one being the newer; the blob is that of the
    /// leftmost one. A deletion in one table hides nothing in another. The tables stay as they are and
    /// independent; the new one has the configuration of the last.
    ///
    /// It can be used at once; the work of making it one run is paid in instalments with
    /// [`Table::supply_union_credits`], and lookups get faster as it is.
    ///
    /// Cost: writes the write buffer of each table; nothing else. Until the debt is paid a lookup costs what it
    /// costs in each of the tables, and afterwards what it costs in one.
    ///
    /// # Errors
    /// [`TableUnionNotCompatible`](crate::Error::TableUnionNotCompatible) for tables of another session or with
    /// another resolve function, [`UnionOfNothing`](crate::Error::UnionOfNothing),
    /// [`UnionTooDeep`](crate::Error::UnionTooDeep), [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn incremental_union(&self, tables: &[&Table]) -> Result<Table> {
        Table::incremental_union(&self.core, tables)
    }

    /// A new table with the content of a snapshot; any number of them may be opened.
    ///
    /// Cost: reads footer, filter and index of each run that is not open yet; data pages are checked when
    /// they are read. A merge that was under way goes on where it stood: shared with the table that has it, or,
    /// after another session, with reading again what it had written, in steps with the updates to come. If
    /// these would be too few for that, part of it is done here, so that each of them does little.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist),
    /// [`SnapshotNotCompatible`](crate::Error::SnapshotNotCompatible) for another label,
    /// [`SnapshotCorrupted`](crate::Error::SnapshotCorrupted),
    /// [`UnknownVersion`](crate::Error::UnknownVersion), [`Disk`](crate::Error::Disk).
    pub fn open_snapshot(&self, name: &SnapshotName, label: &str) -> Result<Table> {
        let (tree, config) = snapshot::open(&self.core, name, label, None)?;
        Ok(Table::new(Arc::clone(&self.core), tree, config))
    }

    /// Deletes a snapshot, durably. Tables opened from it go on working.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist), [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned).
    pub fn delete_snapshot(&self, name: &SnapshotName) -> Result<()> {
        snapshot::delete(&self.core, name)
    }

    /// The names of all snapshots, sorted; damaged ones too. Cost: no I/O.
    ///
    /// # Errors
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotName>> {
        snapshot::list(&self.core)
    }

    /// Whether there is a snapshot of that name. Cost: no I/O.
    ///
    /// # Errors
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn snapshot_exists(&self, name: &SnapshotName) -> Result<bool> {
        self.core.check_open()?;
        Ok(lock(&self.core.snapshots).contains_key(name.as_str()))
    }

    /// Reads blobs, in the order of the references, all pages side by side.
    ///
    /// Cost: for each blob that is not in memory, one read of the pages that it stands in (several if it is
    /// longer than 256 KiB).
    ///
    /// # Errors
    /// [`BlobRefInvalid`](crate::Error::BlobRefInvalid), [`Disk`](crate::Error::Disk),
    /// [`Corrupt`](crate::Error::Corrupt), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn retrieve_blobs(&self, refs: &[BlobRef]) -> Result<Vec<Vec<u8>>> {
        self.core.check_open()?;
        blob::retrieve(self.core.disk(), BLOB_READS_IN_FLIGHT, refs)
    }

    /// The salt of the session's hashes.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.core.salt()
    }

    /// Ends the session: removes what is in no snapshot, releases the lock; from then on every call on
    /// the session, its tables and its cursors gives [`SessionClosed`](crate::Error::SessionClosed).
    /// Closing twice is harmless.
    ///
    /// # Errors
    /// [`Disk`](crate::Error::Disk) if a file could not be removed now or earlier; the session is closed
    /// all the same.
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }
}

//! A session: one directory on disk, held by one process, with its tables and snapshots.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, RealDisk};

use crate::compaction::levels::Levels;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::files::handles::{OPEN_FILES_DEFAULT, OPEN_FILES_MAX};
use crate::files::reserve::{RESERVE_BYTES_MAX, RESERVE_BYTES_MIN, WantedReserve, check_room_for};
use crate::memory::grants::check_session_budget;
use crate::run::blob::{self, BlobRef};
use crate::run::check::Progress;
use crate::session::inner::{Holder, OpenSettings, SessionInner, make_dir};
use crate::session::snapshot::{self, OpenOptions, SnapshotInfo, SnapshotName};
use crate::session::transfer::{self, ExportReport, ImportReport, SnapshotPlace};
use crate::stats::SessionStats;
use crate::table::bulk_load::BulkLoader;
use crate::table::canonical::{self, CanonicalSummary};
use crate::table::table::Table;
use crate::trace::event;

/// How a session is opened.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct SessionOptions {
    /// Salt of all hashes of a session that is created, drawn at random if not given. A session
    /// that exists keeps its own.
    pub salt: Option<u64>,
    /// Whether a missing directory is created (its parent must exist).
    pub create_dir: bool,
    /// Files of runs that are kept open, 4 to 65,536; 128 unless set. A run whose file is closed
    /// has it opened again by the next call that reads it, which costs a few microseconds.
    ///
    /// A cursor that reads ahead counts as a file. Beside these a session has up to one descriptor
    /// for each call that runs at the same time, its lock, and with `io_uring` a ring for each
    /// thread that looks up at the same time, of which up to 16 are kept. So the default needs less
    /// than 256 descriptors (`RLIMIT_NOFILE`), and 24 need less than 64. Where there are fewer,
    /// files are closed when one more cannot be opened.
    pub open_files_max: usize,
    /// Bytes of the disk that the session keeps in reserve, 64 KiB to 1 TiB; 0 for none. A session
    /// remembers what it was told: unless set, it keeps the reserve that it has. A new one has
    /// none, but a new [`Store`](crate::Store) has 1 MiB, or a 16th of what is free if that is less
    /// and no less than 64 KiB: enough to delete entries and drop tables on a full disk. More than
    /// is free is refused.
    ///
    /// When a write finds the disk full, the reserve is given up for it, and from then on only what
    /// makes room in the end goes on: batches of deletions alone, and the merges, checkpoints,
    /// snapshots and changes of tables beside them. Insertions, upserts and imports are refused
    /// with [`OutOfSpace`](crate::Error::OutOfSpace) until there is room for the whole reserve
    /// again, which the first of them that finds it takes back. Deleting a snapshot or dropping a
    /// table gives its room back at once. Deleting entries does so when merges have carried the
    /// deletions to the last level, and merges write their output before they remove their inputs:
    /// to be sure that this ends well the reserve must have room for the largest run of a table
    /// besides a segment of the log (a quarter of it) and the write buffers.
    ///
    /// Cost: allocated, not written, when the session is created; nothing until the disk is full.
    /// On a file system that cannot allocate in advance it is no reserve.
    pub reserve_bytes: Option<u64>,
    /// Memory budget in bytes for all tables, cursors and caches of the session together:
    /// [`SESSION_MEMORY_BUDGET_MIN`](crate::SESSION_MEMORY_BUDGET_MIN) to
    /// [`MEMORY_BUDGET_MAX`](crate::MEMORY_BUDGET_MAX), none unless set. Each opening states its
    /// own.
    ///
    /// | consumer | share | when it is used up |
    /// |---|---|---|
    /// | write buffers | a quarter | the largest one is flushed first |
    /// | cursors and diffs | an eighth | they read ahead less, down to a page |
    /// | filters and indexes | what they need | the page cache gives way, then the write buffers |
    /// | page cache | what is left | pages are evicted |
    ///
    /// A table counts from its first update on, with a write buffer of up to its
    /// [`write_buffer`](TableConfig::write_buffer): less if many tables are written, and 16 KiB at
    /// least. Filters stay as configured. One page cache serves all tables whose
    /// [`disk_cache`](TableConfig::disk_cache) reads past the system's. A table with a
    /// [`memory_budget`](TableConfig::memory_budget) of its own keeps to that, and the session sets
    /// it aside; a new table whose budget does not fit is refused.
    ///
    /// No call fails because the budget is used up. The sum is
    /// [`SessionStats::memory`](crate::SessionStats::memory); it exceeds the budget only by
    ///
    /// - 48 KiB for each table that is written, if there are too many for the share;
    /// - a batch of updates, for each table;
    /// - filters and indexes that need more than thirteen sixteenths;
    /// - memtables that were opened with a snapshot or applied from a log that another process
    ///   writes, until the table is updated;
    /// - forks of tables with a budget of their own.
    ///
    /// The sum excludes what a table's budget excludes: the chunks of pages that lookups and
    /// compactions work on, and a page for each run that a cursor reads.
    #[doc(alias("write_buffer_manager", "db_write_buffer_size", "block_cache"))]
    pub memory_budget: Option<u64>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            salt: None,
            create_dir: false,
            open_files_max: OPEN_FILES_DEFAULT,
            reserve_bytes: None,
            memory_budget: None,
        }
    }
}

impl SessionOptions {
    /// Options with a given salt, for runs that are to be repeatable to the byte.
    #[must_use]
    pub fn with_salt(salt: u64) -> Self {
        Self { salt: Some(salt), ..Self::default() }
    }

    /// Sets [`salt`](Self::salt), for runs that are to be repeatable to the byte.
    #[must_use]
    pub fn salt(self, salt: u64) -> Self {
        Self { salt: Some(salt), ..self }
    }

    /// The same, creating a missing directory.
    #[must_use]
    pub fn create_dir(self) -> Self {
        Self { create_dir: true, ..self }
    }

    /// The same, keeping up to so many files of runs open.
    #[must_use]
    pub fn open_files_max(self, open_files_max: usize) -> Self {
        Self { open_files_max, ..self }
    }

    /// The same, keeping so many bytes of the disk in reserve, or none any more.
    #[must_use]
    pub fn reserve_bytes(self, reserve_bytes: u64) -> Self {
        Self { reserve_bytes: Some(reserve_bytes), ..self }
    }

    /// The same with a [`memory_budget`](Self::memory_budget) for the whole session, in bytes.
    #[must_use]
    pub fn memory_budget(self, memory_budget: impl Into<Option<u64>>) -> Self {
        Self { memory_budget: memory_budget.into(), ..self }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if let Some(budget) = self.memory_budget {
            check_session_budget(budget, 0)?;
        }
        if !OPEN_FILES_MAX.contains(&self.open_files_max) {
            return Err(Error::InvalidConfig {
                option: "open_files_max",
                value: self.open_files_max.to_string(),
                allowed: format!("{} to {}", OPEN_FILES_MAX.start(), OPEN_FILES_MAX.end()),
            });
        }

        match self.reserve_bytes {
            None | Some(0 | RESERVE_BYTES_MIN..=RESERVE_BYTES_MAX) => Ok(()),
            Some(bytes) => Err(Error::InvalidConfig {
                option: "reserve_bytes",
                value: bytes.to_string(),
                allowed: format!("0, or {RESERVE_BYTES_MIN} to {RESERVE_BYTES_MAX}"),
            }),
        }
    }
}

/// A handle on a session; clones are the same session. The lock is held until
/// [`close`](Self::close), or until the last handle, table and cursor is gone.
#[derive(Debug, Clone)]
pub struct Session {
    inner: Arc<SessionInner>,
}

impl Session {
    /// Opens a session on the real disk: [`open`](Self::open) with [`RealDisk::auto`].
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<Path>, options: &SessionOptions) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the session in `dir`, or creates one if the directory is empty.
    ///
    /// Tables that were not saved in a snapshot before the last close or crash are gone; what the
    /// named tables of a [`Store`](crate::Store) need stays.
    ///
    /// Cost: reads the metadata of all snapshots; removes the files of lost tables.
    ///
    /// # Errors
    /// [`SessionDirDoesNotExist`](crate::Error::SessionDirDoesNotExist),
    /// [`SessionDirLocked`](crate::Error::SessionDirLocked),
    /// [`SessionDirCorrupted`](crate::Error::SessionDirCorrupted) (also for a directory of
    /// something else, which is left as it is), [`UnknownVersion`](crate::Error::UnknownVersion),
    /// [`InvalidConfig`](crate::Error::InvalidConfig),
    /// [`ReserveTooLarge`](crate::Error::ReserveTooLarge), [`Disk`](crate::Error::Disk).
    #[expect(clippy::needless_pass_by_value, reason = "a session keeps its disk")]
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &SessionOptions) -> Result<Self> {
        let reserve = options.reserve_bytes.map_or(WantedReserve::AsItIs, WantedReserve::Bytes);
        Self::open_with(&disk, dir, options, reserve)
    }

    /// The same for a store, which has a reserve by default.
    pub(crate) fn open_for_store(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        options: &SessionOptions,
    ) -> Result<Self> {
        let reserve =
            options.reserve_bytes.map_or(WantedReserve::DefaultIfNew, WantedReserve::Bytes);
        Self::open_with(disk, dir, options, reserve)
    }

    fn open_with(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        options: &SessionOptions,
        reserve: WantedReserve,
    ) -> Result<Self> {
        options.validate()?;
        event!(DEBUG, "session.open", dir);
        // From here on a change of the working directory changes nothing.
        let dir = &disk.absolute(dir)?;
        // The room is checked before anything is made.
        check_room_for(disk.as_ref(), dir, options.reserve_bytes)?;
        if options.create_dir {
            make_dir(disk.as_ref(), dir)?;
        }
        // A random salt keeps callers from choosing keys whose hashes collide.
        let salt = options.salt.unwrap_or_else(|| RandomState::new().hash_one(0));
        let SessionOptions { open_files_max, memory_budget, .. } = *options;
        let settings = OpenSettings { salt, open_files_max, reserve, memory_budget };
        let inner = SessionInner::open(disk, dir, settings)?;
        event!(DEBUG, "session.opened", dir);
        Ok(Self { inner })
    }

    /// Opens the session in `dir` for reading only, whether another process has it open for writing
    /// or nobody has: snapshots can be listed, opened, compared and exported, and whatever would
    /// change something is refused with [`ReadOnly`](crate::Error::ReadOnly). Of the options only
    /// [`open_files_max`](SessionOptions::open_files_max) and
    /// [`memory_budget`](SessionOptions::memory_budget) count.
    ///
    /// A lease, a small file in the directory, protects the files that are read. Where none can be
    /// written, on a read-only medium, or without the right to write, the session is read under a
    /// shared lock, which keeps writers out meanwhile; where there is nothing to lock either,
    /// without one.
    ///
    /// Cost: reads `metadata`. Opening a snapshot reads its metadata twice.
    ///
    /// # Errors
    /// [`SessionDirDoesNotExist`](crate::Error::SessionDirDoesNotExist),
    /// [`NotTerrane`](crate::Error::NotTerrane),
    /// [`SessionDirCorrupted`](crate::Error::SessionDirCorrupted),
    /// [`UnknownVersion`](crate::Error::UnknownVersion),
    /// [`InvalidConfig`](crate::Error::InvalidConfig), [`Disk`](crate::Error::Disk). From the calls
    /// that read: [`SessionDirLocked`](crate::Error::SessionDirLocked) if no lease can be written
    /// and somebody has the session open for writing.
    #[expect(clippy::needless_pass_by_value, reason = "a session keeps its disk")]
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &SessionOptions,
    ) -> Result<Self> {
        options.validate()?;
        event!(DEBUG, "session.open", dir);
        let SessionOptions { open_files_max, memory_budget, .. } = *options;
        let inner = SessionInner::open_read_only(&disk, dir, open_files_max, memory_budget)?;
        event!(DEBUG, "session.opened", dir);
        Ok(Self { inner })
    }

    /// A handle on what was opened for reading only.
    pub(crate) fn of(inner: Arc<SessionInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<SessionInner> {
        &self.inner
    }

    /// A new, empty table.
    ///
    /// Cost: no I/O.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::Error::InvalidConfig),
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn new_table(&self, config: &TableConfig) -> Result<Table> {
        if self.inner.is_read_only() {
            self.inner.check_writable()?;
        }
        self.inner.check_open()?;
        config.validate()?;
        self.inner.check_own_budget(config, 0)?;
        let session = self.inner.register(Holder::Table);
        event!(DEBUG, "table.new", self.inner.dir(), table = session.id());
        Ok(Table::new(session, Levels::default(), config.clone()))
    }

    /// Loads a new table from entries in any order, several times faster than updates do; the table
    /// is one run on its last level.
    ///
    /// Cost: no I/O; see [`BulkLoader`].
    ///
    /// # Errors
    /// The errors of [`new_table`](Self::new_table); [`ReadOnly`](crate::Error::ReadOnly).
    pub fn bulk_load(&self, config: &TableConfig) -> Result<BulkLoader> {
        self.inner.check_writable()?;
        self.inner.check_open()?;
        config.validate()?;
        self.inner.check_own_budget(config, 0)?;
        Ok(BulkLoader::new(self.inner.register(Holder::Table), config.clone()))
    }

    /// The union of some tables, complete: [`incremental_union`](Self::incremental_union) with its
    /// whole debt paid.
    ///
    /// Cost: reads the runs of all tables, writes and reads and writes the result.
    ///
    /// # Errors
    /// The errors of [`incremental_union`](Self::incremental_union) and
    /// [`Table::supply_union_credits`].
    pub fn union(&self, tables: &[&Table]) -> Result<Table> {
        let mut table = self.incremental_union(tables)?;
        // No union has as many entries as these credits, so the whole debt is paid.
        table.supply_union_credits(u64::MAX)?;
        Ok(table)
    }

    /// A new table with what several tables hold together. Where more than one has a key, the
    /// table's merge operator combines the values, left to right, the left one being the newer;
    /// the blob is that of the leftmost one. A deletion in one table hides nothing in another. The
    /// tables stay as they are and independent; the new one has the configuration of the last.
    ///
    /// It can be used at once; the work of making it one run is paid in instalments with
    /// [`Table::supply_union_credits`], and lookups get faster as it is.
    ///
    /// Cost: finishes the flush under way of each table and writes its write buffer; nothing else.
    /// Until the debt is paid a lookup costs what it costs in each of the tables, and afterwards
    /// what it costs in one.
    ///
    /// # Errors
    /// [`TableUnionNotCompatible`](crate::Error::TableUnionNotCompatible) for tables of another
    /// session or with another merge operator, [`UnionOfNothing`](crate::Error::UnionOfNothing),
    /// [`UnionTooDeep`](crate::Error::UnionTooDeep), [`UnionTooLarge`](crate::Error::UnionTooLarge)
    /// for more than 65,536 runs, [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn incremental_union(&self, tables: &[&Table]) -> Result<Table> {
        Table::incremental_union(&self.inner, tables)
    }

    /// A new table with the content of a snapshot; any number of them may be opened.
    ///
    /// Cost: reads footer, filter and index of each run that is not open yet, several runs at once,
    /// and asks for the length of each file of blobs; data pages are checked when they are read. A
    /// merge that was under way goes on where it stood: shared with the table that has it, or,
    /// after another session, with reading again what it had written, in steps with the updates to
    /// come. If these would be too few for that, part of it is done here, so that each of them does
    /// little.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist),
    /// [`SnapshotNotCompatible`](crate::Error::SnapshotNotCompatible) for another label,
    /// [`MergeOperatorMismatch`](crate::Error::MergeOperatorMismatch) for a merge operator that is
    /// not ready-made, which [`open_snapshot_with`](Self::open_snapshot_with) takes,
    /// [`SnapshotCorrupted`](crate::Error::SnapshotCorrupted),
    /// [`UnknownVersion`](crate::Error::UnknownVersion), [`Disk`](crate::Error::Disk),
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn open_snapshot(&self, name: &SnapshotName, label: &str) -> Result<Table> {
        self.open_snapshot_with(name, label, &OpenOptions::default())
    }

    /// The same with parts of the configuration changed, or with everything checked first.
    ///
    /// Cost: as [`open_snapshot`](Self::open_snapshot); with [`Verify::Full`](crate::Verify::Full)
    /// every page of every run is read besides, by several threads.
    ///
    /// # Errors
    /// The errors of [`open_snapshot`](Self::open_snapshot);
    /// [`InvalidConfig`](crate::Error::InvalidConfig).
    pub fn open_snapshot_with(
        &self,
        name: &SnapshotName,
        label: &str,
        options: &OpenOptions,
    ) -> Result<Table> {
        let session = self.inner.register(Holder::Table);
        event!(DEBUG, "table.new", self.inner.dir(), table = session.id(), snapshot = %name);
        let (tree, config) = snapshot::open(&session, name, Some(label), options)?;
        self.inner.check_own_budget(&config, 0)?;
        Ok(Table::new(session, tree, config))
    }

    /// Gives a snapshot another name, atomically and durably.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist),
    /// [`SnapshotExists`](crate::Error::SnapshotExists), [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn rename_snapshot(&self, from: &SnapshotName, to: &SnapshotName) -> Result<()> {
        event!(DEBUG, "session.rename_snapshot", self.inner.dir(), snapshot = %from, %to);
        snapshot::rename(&self.inner, from, to)?;
        event!(DEBUG, "session.renamed", self.inner.dir(), snapshot = %from, %to);
        Ok(())
    }

    /// Deletes a snapshot, durably. Tables opened from it go on working.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist), [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn delete_snapshot(&self, name: &SnapshotName) -> Result<()> {
        event!(DEBUG, "session.delete_snapshot", self.inner.dir(), snapshot = %name);
        snapshot::delete(&self.inner, name)?;
        event!(DEBUG, "session.deleted", self.inner.dir(), snapshot = %name);
        Ok(())
    }

    /// Deletes a snapshot if there is one of that name, and says whether there was: for a program
    /// that goes on after a crash and does not know how far it had come.
    ///
    /// # Errors
    /// The errors of [`delete_snapshot`](Self::delete_snapshot), but for a missing one.
    pub fn delete_snapshot_if_exists(&self, name: &SnapshotName) -> Result<bool> {
        match self.delete_snapshot(name) {
            Ok(()) => Ok(true),
            Err(Error::SnapshotDoesNotExist { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies a snapshot to the directory of another session on the same disk, under its own name:
    /// the whole of [`export_snapshot_to`](Self::export_snapshot_to) for the ordinary case.
    ///
    /// # Errors
    /// The errors of [`export_snapshot_to`](Self::export_snapshot_to).
    pub fn export_snapshot(
        &self,
        name: &SnapshotName,
        dir: impl AsRef<Path>,
    ) -> Result<ExportReport> {
        let place = SnapshotPlace::new(dir.as_ref(), name.clone());
        self.export_snapshot_to(name, &place, &mut |_, _| {})
    }

    /// Copies a snapshot to the directory of another session, durably. The directory is made if it
    /// is missing (its parent must exist) or empty, with the salt of this session; `progress` is
    /// told of bytes. The copy shares nothing with this session, and is opened, inspected and
    /// verified like any session. If the session there has another salt, filters and indexes are
    /// made anew.
    ///
    /// Cost: reads and writes each run that an earlier export has not brought there, once and in
    /// large chunks, and checks every page's checksum. While it goes on, this session can be used;
    /// it must not be closed by `progress` itself, since closing waits for the export to end.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist);
    /// [`SnapshotExportDirExists`](crate::Error::SnapshotExportDirExists) if something else is
    /// there, which is left as it is; [`SnapshotExists`](crate::Error::SnapshotExists) if the
    /// session there has that name; [`SessionDirLocked`](crate::Error::SessionDirLocked);
    /// [`SnapshotCorrupted`](crate::Error::SnapshotCorrupted); [`Disk`](crate::Error::Disk);
    /// [`SessionClosed`](crate::Error::SessionClosed). After an error, or a crash, there is no
    /// snapshot of that name there, or a whole one.
    pub fn export_snapshot_to(
        &self,
        name: &SnapshotName,
        place: &SnapshotPlace,
        progress: Progress<'_>,
    ) -> Result<ExportReport> {
        let dir = self.inner.dir();
        event!(DEBUG, "session.export_snapshot", dir, snapshot = %name);
        let report = transfer::export(&self.inner, name, place, progress)?;
        event!(DEBUG, "session.exported", dir, snapshot = %name);
        Ok(report)
    }

    /// Takes in a snapshot from the directory of another session on the same disk: the whole of
    /// [`import_snapshot_from`](Self::import_snapshot_from) for the ordinary case.
    ///
    /// # Errors
    /// The errors of [`import_snapshot_from`](Self::import_snapshot_from).
    pub fn import_snapshot(
        &self,
        dir: impl AsRef<Path>,
        from: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<ImportReport> {
        let place = SnapshotPlace::new(dir.as_ref(), from.clone());
        self.import_snapshot_from(&place, to, &mut |_, _| {})
    }

    /// Takes in a snapshot from the directory of another session, which nobody may hold, under the
    /// name `to`, durably; `progress` is told of bytes. Every page is checked on the way, the order
    /// and number of keys, and that filters and indexes lead to every key; if the session there has
    /// another salt, filters and indexes are made anew. In the other directory at most a file
    /// `lock` is made.
    ///
    /// Cost: reads and writes each run of the snapshot once, or with another salt reads it twice;
    /// runs of this session are never shared. While it goes on, this session can be used; it must
    /// not be closed by `progress` itself, since closing waits for the import to end.
    ///
    /// # Errors
    /// [`SnapshotImportDirDoesNotExist`](crate::Error::SnapshotImportDirDoesNotExist),
    /// [`NotTerrane`](crate::Error::NotTerrane) for a directory that is no session,
    /// [`SessionDirLocked`](crate::Error::SessionDirLocked),
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist) there,
    /// [`SnapshotExists`](crate::Error::SnapshotExists) here,
    /// [`SnapshotCorrupted`](crate::Error::SnapshotCorrupted), naming the other directory's file;
    /// [`UnknownVersion`](crate::Error::UnknownVersion), [`Disk`](crate::Error::Disk),
    /// [`Poisoned`](crate::Error::Poisoned), [`SessionClosed`](crate::Error::SessionClosed). After
    /// an error, or a crash, there is no snapshot of that name, or a whole one.
    pub fn import_snapshot_from(
        &self,
        place: &SnapshotPlace,
        to: &SnapshotName,
        progress: Progress<'_>,
    ) -> Result<ImportReport> {
        let dir = self.inner.dir();
        event!(DEBUG, "session.import_snapshot", dir, snapshot = %to);
        let report = transfer::import(&self.inner, place, to, progress)?;
        event!(DEBUG, "session.imported", dir, snapshot = %to);
        Ok(report)
    }

    /// Writes what a snapshot holds, whatever its label: [`Table::export_canonical`] of a table
    /// opened from it.
    ///
    /// # Errors
    /// The errors of [`open_snapshot`](Self::open_snapshot), but for the label, and
    /// [`Table::export_canonical`].
    pub fn export_canonical(
        &self,
        name: &SnapshotName,
        out: impl Write,
    ) -> Result<CanonicalSummary> {
        let session = self.inner.register(Holder::Table);
        event!(DEBUG, "table.new", self.inner.dir(), table = session.id(), snapshot = %name);
        let (tree, config) = snapshot::open(&session, name, None, &OpenOptions::default())?;
        Table::new(session, tree, config).export_canonical(out)
    }

    /// A new table with the content of a stream that [`Table::export_canonical`] wrote. It is
    /// given only once the whole stream has been read and found to be as it was written.
    ///
    /// Cost: that of inserting all entries.
    ///
    /// # Errors
    /// [`CanonicalMalformed`](crate::Error::CanonicalMalformed) with the place in the stream,
    /// [`CanonicalDigestMismatch`](crate::Error::CanonicalDigestMismatch),
    /// [`Stream`](crate::Error::Stream) if `input` fails; those of [`new_table`](Self::new_table)
    /// and [`Table::write_batch`].
    pub fn import_canonical(
        &self,
        input: impl Read,
        config: &TableConfig,
    ) -> Result<(Table, CanonicalSummary)> {
        let dir = self.inner.dir();
        event!(DEBUG, "session.import_canonical", dir);
        let mut table = self.new_table(config)?;
        // Entries come in batches, so the export need not fit into memory.
        let summary = canonical::import(input, |entries| {
            let batch: Vec<_> = entries.iter().map(|entry| (&entry.key, entry.update())).collect();
            table.write_batch(&batch)
        })?;
        event!(DEBUG, "session.canonical_imported", dir);
        Ok((table, summary))
    }

    /// Returns label, time, configuration and size of a snapshot. Cost: reads its metadata.
    ///
    /// # Errors
    /// [`SnapshotDoesNotExist`](crate::Error::SnapshotDoesNotExist),
    /// [`SnapshotCorrupted`](crate::Error::SnapshotCorrupted),
    /// [`UnknownVersion`](crate::Error::UnknownVersion), [`Disk`](crate::Error::Disk),
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn snapshot_info(&self, name: &SnapshotName) -> Result<SnapshotInfo> {
        event!(DEBUG, "session.snapshot_info", self.inner.dir(), snapshot = %name);
        snapshot::info(&self.inner, name)
    }

    /// The names of all snapshots, sorted; damaged ones too, but none that is still being saved.
    /// Cost: no I/O; of a [reader](crate::StoreReader) those of a directory.
    ///
    /// # Errors
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn list_snapshots(&self) -> Result<Vec<SnapshotName>> {
        event!(DEBUG, "session.list_snapshots", self.inner.dir());
        snapshot::list(&self.inner)
    }

    /// Whether there is a snapshot of that name. Cost: as [`list_snapshots`](Self::list_snapshots).
    ///
    /// # Errors
    /// [`SessionClosed`](crate::Error::SessionClosed).
    pub fn snapshot_exists(&self, name: &SnapshotName) -> Result<bool> {
        event!(DEBUG, "session.snapshot_exists", self.inner.dir(), snapshot = %name);
        snapshot::exists(&self.inner, name)
    }

    /// Reads blobs, in the order of the references, all pages side by side.
    ///
    /// Cost: for each blob that is not in memory, one read of the pages that it stands in (several
    /// if it is longer than 256 KiB).
    ///
    /// # Errors
    /// [`BlobRefInvalid`](crate::Error::BlobRefInvalid), [`Disk`](crate::Error::Disk),
    /// [`Corrupt`](crate::Error::Corrupt), [`SessionClosed`](crate::Error::SessionClosed).
    pub fn retrieve_blobs(&self, refs: &[BlobRef]) -> Result<Vec<Vec<u8>>> {
        self.inner.check_open()?;
        event!(TRACE, "session.retrieve_blobs", self.inner.dir(), count = refs.len());
        let _call = self.inner.register(Holder::Call);
        blob::retrieve(self.inner.disk(), blob::READS_IN_FLIGHT, refs)
    }

    /// Returns the statistics of the session and of all its handles since it was opened. Cost: no
    /// I/O.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.inner.stats()
    }

    /// The salt of the session's hashes.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.inner.salt()
    }

    /// Ends the session: removes what is in no snapshot and no named table, releases the lock; from
    /// then on every call on the session, its tables and its cursors gives
    /// [`SessionClosed`](crate::Error::SessionClosed). Snapshots being saved or deleted at the
    /// moment are waited for; those being opened are given up. Closing twice is harmless.
    ///
    /// # Errors
    /// [`Disk`](crate::Error::Disk) if a file could not be removed now or earlier; the session is
    /// closed all the same.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

//! Salvage: takes what is whole out of a damaged store into a new one, and names what is lost.
//!
//! Salvage copies the files that a whole manifest or snapshot refers to, repairs the copy with
//! accepted loss ([`verify::repair`]), and then goes further than a repair in two ways:
//!
//! - A repair may show replaced values again where newer entries were on a damaged page. Salvage
//!   moves such entries to a table of their own, `NAME-doubtful` (module `doubt`).
//! - Without a whole manifest, a repair has no tables. Salvage makes a table of each run that no
//!   snapshot refers to, `recovered-N` with the number of the run, and one of each table in the
//!   log, `recovered-log-N` with the number of the table (module `orphans`).
//!
//! Invariants:
//! - Salvage writes nothing to the damaged directory, which may be on a read-only medium. Sectors
//!   that cannot be read count as zeros, which fail their checksums.
//! - An entry in a table of the old name was the table's newest one at the commit that the report
//!   names. Entries of which that is not certain are in tables of other names.
//! - [`UNFINISHED`] stands in the new directory until salvage has ended.
//!
//! Rejected: hard links instead of copies, which a repair or a later writer of the new store would
//! share with the damaged one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::files::create_dirs;
use terrane_io::{Access, Disk, Durability, EntryKind, OpenMode};

use crate::check::store::{ManifestCopies, ManifestCopy};
use crate::check::verify::{self, Loss, Lost, LostWhat, Problem, Progress};
use crate::error::{Error, Result};
use crate::files::file_set::{blobs_name, file_name};
use crate::files::lost_found::LOST_FOUND;
use crate::manifest::manifest::{COPIES, StoreManifest};
use crate::manifest::snapshot_meta::{Refused, SnapshotMeta};
use crate::manifest::wal::{LOG, segment_name, segments};
use crate::session::inner::{
    ACTIVE, METADATA, SNAPSHOTS, STORE, anchor_dir, is_session_like, lock_dir_shared,
    read_snapshot, snapshot_name, snapshot_names, snapshot_path,
};
use crate::store::options::StoreOptions;
use crate::store::store::Store;
use crate::table::session::SessionOptions;

mod copy;
mod doubt;
mod orphans;

use self::copy::Copier;

/// File in the new directory as long as salvage has not ended: remove the directory and begin anew.
pub const UNFINISHED: &str = "salvage-unfinished";

/// Table of the new store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SalvagedTable {
    /// Name of the table.
    pub name: String,
    /// Live entries; `None` if this program cannot open the table.
    pub entries: Option<u64>,
}

/// Report of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Salvaged {
    /// Tables of the new store, sorted by name.
    pub tables: Vec<SalvagedTable>,
    /// Snapshots of the new store, sorted by name.
    pub snapshots: Vec<String>,
    /// Damage that was found; paths are those in the damaged store.
    pub problems: Vec<Problem>,
    /// Data that are not in the new store; paths are those in the damaged store.
    pub lost: Vec<Lost>,
    /// Entries in tables and snapshots whose names end with `-doubtful`: older entries of keys
    /// whose newest entries are perhaps lost.
    pub doubtful: u64,
    /// Whether more may be lost than the numbers in `lost` say.
    pub is_lower_bound: bool,
}

impl Salvaged {
    /// Whether the new store has everything that the damaged one had.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lost.is_empty() && self.doubtful == 0
    }

    fn lose(&mut self, path: PathBuf, what: LostWhat) {
        self.lost.push(Lost { path, what, snapshots: Vec::new(), tables: Vec::new() });
    }
}

/// A damaged store, open for reading.
struct Damaged<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    /// The newest whole copy.
    manifest: Option<StoreManifest>,
    /// Snapshots that are whole, by name.
    snapshots: Vec<(String, SnapshotMeta)>,
}

/// Salvages the store in `damaged`, which no process may hold for writing, into the directory
/// `new`, which must be missing or empty. The new store has no retained versions if entries were
/// lost that older entries could stand in for.
///
/// Cost: reads every file of the store and writes a copy; reads the copy as [`verify::repair`]
/// does, and every table once more to count its entries. `progress` gets bytes copied, and then
/// bytes checked. Memory: keys in the ranges that are lost.
///
/// # Errors
/// [`Error::NotTerrane`] if `damaged` is no store or `new` is not empty, [`Error::UnknownVersion`]
/// for a store of a newer program, [`Error::SessionDirLocked`], [`Error::StoreCorrupted`] for
/// damage that neither can be repaired nor let go of, [`Error::Disk`]. The new directory is then of
/// no use; it has the file [`UNFINISHED`].
pub fn salvage(
    disk: &Arc<dyn Disk>,
    damaged: &Path,
    new: &Path,
    progress: Progress<'_>,
) -> Result<Salvaged> {
    let _anchor = anchor_dir(disk.as_ref(), damaged)?;
    if !is_session_like(disk.as_ref(), damaged)? {
        let found = "no part of a store".to_owned();
        return Err(Error::NotTerrane { path: damaged.to_owned(), expected: STORE, found });
    }
    // The shared lock keeps writers out without changing the damaged directory.
    let _lock = lock_dir_shared(disk.as_ref(), damaged)?;
    begin(disk.as_ref(), new)?;

    let mut report = Salvaged::default();
    let old = Damaged::read(disk, damaged, &mut report)?;
    old.copy(new, progress)?;
    old.repair(new, progress, &mut report)?;

    // Opening the store applies the log and may rewrite it, so its keys are read first.
    let decided = doubt::keys_in_log(&old, new)?;
    // An interrupted salvage begins anew, so its commits need not be durable one by one.
    let session = SessionOptions::default().create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    let store = Store::open(Arc::clone(disk), new, &options)?;
    doubt::set_aside(&old, &store, &decided, &mut report)?;
    if old.manifest.is_none() {
        orphans::recover(&old, &store, &mut report)?;
    }

    count(&store, &mut report)?;
    store.close()?;
    // The mark goes last, when the new store is complete and closed.
    disk.remove(&new.join(UNFINISHED))?;
    disk.sync_dir(new)?;

    report.is_lower_bound = report.lost.iter().any(|lost| !is_counted(&lost.what));
    Ok(report)
}

/// Makes the new directory, with the file that says that it is unfinished.
fn begin(disk: &dyn Disk, new: &Path) -> Result<()> {
    if disk.kind(new)?.is_some() && !disk.list(new)?.is_empty() {
        let expected = "an empty directory";
        let found = "files".to_owned();
        return Err(Error::NotTerrane { path: new.to_owned(), expected, found });
    }
    create_dirs(disk, new)?;
    // The mark must be durable before the first file of the copy.
    disk.open(&new.join(UNFINISHED), OpenMode::CreateNew, Access::Buffered)?.sync()?;
    Ok(disk.sync_dir(new)?)
}

/// Whether a loss says how many entries or commits it is.
fn is_counted(what: &LostWhat) -> bool {
    match what {
        LostWhat::Entries { entries, .. } => entries.is_some(),
        LostWhat::Commits { until, .. } => until.is_some(),
        LostWhat::Blobs { .. } | LostWhat::Version { .. } => true,
        LostWhat::Snapshot | LostWhat::Tables | LostWhat::Directory | LostWhat::FeedCursor => false,
    }
}

impl<'a> Damaged<'a> {
    /// Reads manifest and snapshots; adds the damaged ones to the report.
    fn read(disk: &'a Arc<dyn Disk>, dir: &'a Path, report: &mut Salvaged) -> Result<Self> {
        let copies = ManifestCopies::read(disk.as_ref(), dir)?;
        // Files of a newer program are whole: this program must not take them for damage.
        for (path, copy) in &copies.0 {
            if let ManifestCopy::Refused(Refused::Version { found, newest }) = copy {
                let path = path.clone();
                return Err(Error::UnknownVersion { path, found: *found, newest: *newest });
            }
        }

        let manifest = copies.newest().cloned();
        // A session that never had named tables has no manifest to lose.
        if manifest.is_none() && has_named_tables(disk.as_ref(), dir, &copies)? {
            report.lose(dir.join(COPIES[0]), LostWhat::Tables);
        }

        let mut snapshots = Vec::new();
        let has_snapshots = disk.kind(&dir.join(SNAPSHOTS))? == Some(EntryKind::Directory);
        if !has_snapshots {
            report.lose(dir.join(SNAPSHOTS), LostWhat::Directory);
        }
        let names = if has_snapshots { snapshot_names(disk.as_ref(), dir)? } else { Vec::new() };
        let strange = if has_snapshots { disk.list(&dir.join(SNAPSHOTS))? } else { Vec::new() };
        for entry in strange.into_iter().filter(|entry| entry.kind != EntryKind::File) {
            // A link or a special file in the place of a snapshot.
            let Some(name) = snapshot_name(&entry.name) else { continue };
            report.lost.push(Lost {
                path: snapshot_path(dir, name),
                what: LostWhat::Snapshot,
                snapshots: vec![name.to_owned()],
                tables: Vec::new(),
            });
        }

        for name in names {
            match read_snapshot(disk.as_ref(), dir, &name) {
                Ok(meta) => snapshots.push((name, meta)),
                Err(Error::SnapshotCorrupted { path, .. }) => {
                    let what = LostWhat::Snapshot;
                    let snapshots = vec![name];
                    report.lost.push(Lost { path, what, snapshots, tables: Vec::new() });
                }
                Err(error) => return Err(error),
            }
        }

        Ok(Self { disk, dir, manifest, snapshots })
    }

    /// Numbers of the runs that the manifest or a snapshot refers to.
    fn wanted(&self) -> BTreeSet<u64> {
        let of_manifest = self.manifest.iter().flat_map(StoreManifest::numbers);
        let of_snapshots = self.snapshots.iter().flat_map(|(_, meta)| meta.numbers());
        of_manifest.chain(of_snapshots).collect()
    }

    /// Copies everything that is referred to. Missing files are left to the repair, which names
    /// them.
    fn copy(&self, new: &Path, progress: Progress<'_>) -> Result<()> {
        let disk = self.disk.as_ref();
        for name in [ACTIVE, SNAPSHOTS] {
            disk.create_dir(&new.join(name))?;
        }

        let mut files = vec![(self.dir.join(METADATA), new.join(METADATA))];
        for number in self.wanted() {
            for name in [file_name(number), blobs_name(number)] {
                // An opening after a crash may have moved the file away.
                let from = self.dir.join(ACTIVE).join(&name);
                let is_there = disk.kind(&from)?.is_some();
                let moved = self.dir.join(LOST_FOUND).join(&name);
                files.push((if is_there { from } else { moved }, new.join(ACTIVE).join(&name)));
            }
        }
        for (name, _) in &self.snapshots {
            files.push((snapshot_path(self.dir, name), snapshot_path(new, name)));
        }

        if self.manifest.is_some() {
            files.extend(COPIES.map(|name| (self.dir.join(name), new.join(name))));
            if disk.kind(&self.dir.join(LOG))? == Some(EntryKind::Directory) {
                disk.create_dir(&new.join(LOG))?;
                for number in segments(disk, self.dir)? {
                    let name = segment_name(number);
                    files.push((self.dir.join(LOG).join(&name), new.join(LOG).join(&name)));
                }
            }
        }

        Copier::new(disk, files)?.run(progress)?;
        for dir in [ACTIVE, SNAPSHOTS, LOG] {
            if disk.kind(&new.join(dir))?.is_some() {
                disk.sync_dir(&new.join(dir))?;
            }
        }
        Ok(disk.sync_dir(new)?)
    }

    /// Repairs the copy, whatever that loses.
    fn repair(&self, new: &Path, progress: Progress<'_>, report: &mut Salvaged) -> Result<()> {
        let repaired = verify::repair(self.disk, new, Loss::Accepted, progress)?;
        // A problem that is left would be found again by every check, so the copy is of no use.
        if let Some(problem) = repaired.problems.iter().find(|found| !found.is_ended()) {
            let path = self.old_path(new, &problem.path);
            return Err(Error::StoreCorrupted { path, reason: problem.rule.clone() });
        }

        let problems = repaired.problems.into_iter();
        report.problems.extend(
            problems.map(|problem| Problem { path: self.old_path(new, &problem.path), ..problem }),
        );
        let lost = repaired.lost.into_iter();
        report.lost.extend(lost.map(|lost| Lost { path: self.old_path(new, &lost.path), ..lost }));
        Ok(())
    }

    /// Path in the damaged store for one in the new store.
    fn old_path(&self, new: &Path, path: &Path) -> PathBuf {
        path.strip_prefix(new).map_or_else(|_| path.to_owned(), |part| self.dir.join(part))
    }
}

/// Counts the entries of all tables of the new store, which reads them once.
fn count(store: &Store, report: &mut Salvaged) -> Result<()> {
    for info in store.tables()? {
        let name = info.name.to_string();
        let entries = match store.table(&info.name) {
            Err(Error::MergeOperatorMismatch { .. }) => None,
            table => Some(table?.view()?.count_exact()?),
        };
        report.tables.push(SalvagedTable { name, entries });
    }
    report.tables.sort_by(|left, right| left.name.cmp(&right.name));

    let snapshots = store.session().list_snapshots()?;
    report.snapshots = snapshots.iter().map(ToString::to_string).collect();
    Ok(())
}

/// Whether a store without a whole manifest ever had named tables.
fn has_named_tables(disk: &dyn Disk, dir: &Path, copies: &ManifestCopies) -> Result<bool> {
    Ok(!copies.are_missing() || disk.kind(&dir.join(LOG))?.is_some())
}

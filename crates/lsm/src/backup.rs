//! Backups: a copy of a whole store in another directory, made while the store is in use, and made newer by
//! bringing only what is not there yet.
//!
//! A backup is a store itself, all tables as of one commit, the retained versions, the snapshots, and no log. It can be
//! read, inspected and verified; opening it as a store and committing to it makes it a store of its own,
//! which no later backup overwrites. (Snapshots that somebody saves in it without a commit go with the next one.)
//!
//! **Order.** Runs are copied, every page checked, and synced; then the manifest is written, which moves all tables
//! to the newer commit at once; then snapshots, one by one. So after a crash at any point the tables are those of the
//! earlier backup or of this one, and each snapshot is whole.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::Disk;

use crate::error::{Error, Result};
use crate::exchange::{Copier, ExportReport, open_target, with_room};
use crate::manifest::SnapshotMeta;
use crate::published::Published;
use crate::run_check::Progress;
use crate::session_core::SessionCore;
use crate::snapshot::{self, SnapshotName, WrittenOut};
use crate::store_core::damaged;
use crate::store_manifest::{self, NamedMeta, StoreManifest, VersionMeta};
use crate::table::Table;
use crate::trace::event;

/// Where a backup is.
#[derive(Debug, Clone)]
pub struct BackupPlace {
    disk: Option<Arc<dyn Disk>>,
    dir: PathBuf,
}

impl BackupPlace {
    /// The directory `dir` of the disk that the store is on.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { disk: None, dir: dir.into() }
    }

    /// The same on another disk.
    #[must_use]
    pub fn on_disk(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk: Some(disk), ..self }
    }
}

/// What a backup has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BackupReport {
    /// The last commit in it.
    pub commit: u64,
    /// Its tables.
    pub tables: u64,
    /// Its retained versions.
    pub versions: u64,
    /// Its snapshots.
    pub snapshots: u64,
    /// Files of runs that were copied, and those written of what is in memory or in the log.
    pub files_copied: u64,
    /// Bytes of these.
    pub bytes_copied: u64,
    /// Files of runs that were there already; a file counts for each table, version and snapshot that
    /// has it.
    pub files_shared: u64,
    /// Bytes of these.
    pub bytes_shared: u64,
}

/// What is to be copied. Its files stay meanwhile.
pub(crate) struct Source<'a> {
    pub(crate) core: &'a SessionCore,
    pub(crate) manifest: &'a StoreManifest,
    /// The last commit.
    pub(crate) commit: u64,
    /// Tables that are ahead of the manifest, by number.
    pub(crate) changed: BTreeMap<u64, &'a Table>,
}

/// Makes or renews a backup.
pub(crate) fn back_up(
    source: &Source<'_>,
    place: &BackupPlace,
    progress: Progress<'_>,
) -> Result<BackupReport> {
    let dir = place.dir.as_path();
    event!(DEBUG, "store.back_up", source.core.dir(), commit = source.commit);
    let disk = Arc::clone(place.disk.as_ref().unwrap_or(source.core.files().disk()));
    let open = || open_target(&disk, dir, source.core.salt());
    let target = match with_room(&[source.core.files().open_files()], open) {
        Err(Error::SnapshotExportDirExists { path }) => {
            return Err(Error::NotABackup { path, reason: "something else is there".to_owned() });
        }
        target => target?,
    };
    let made = renew(source, &target, progress);
    // What was copied in vain goes before the lock does.
    let report = made.and_then(|report| target.close().map(|()| report))?;
    event!(DEBUG, "store.backed_up", source.core.dir(), commit = source.commit);
    Ok(report)
}

/// The manifest of an earlier backup, or an empty one.
fn published(source: &Source<'_>, target: &SessionCore) -> Result<Published> {
    let refused = |reason: String| Error::NotABackup { path: target.dir().to_owned(), reason };
    if target.salt() != source.core.salt() {
        return Err(refused("it is another store, with another salt".to_owned()));
    }
    let found = store_manifest::read(target.disk(), target.dir())?;
    let older = found.older.iter().flat_map(StoreManifest::numbers).collect();
    let manifest = match found.manifest {
        Some(manifest) if !manifest.is_backup => {
            return Err(refused("it is a store that was committed to".to_owned()));
        }
        Some(manifest) if manifest.commit > source.commit => {
            let (there, here) = (manifest.commit, source.commit);
            return Err(refused(format!("it has commit {there}, the store only commit {here}")));
        }
        Some(manifest) => manifest,
        None if target.snapshots().names()?.is_empty() => StoreManifest::default(),
        None => return Err(refused("it has snapshots of its own".to_owned())),
    };
    Ok(Published { manifest, older })
}

fn renew(
    source: &Source<'_>,
    target: &SessionCore,
    progress: Progress<'_>,
) -> Result<BackupReport> {
    let mut published = published(source, target)?;
    if published.manifest.sequence == 0 {
        // What is there from now on is known to be a backup that was begun.
        let empty = StoreManifest { is_backup: true, ..StoreManifest::default() };
        published.publish(target, empty)?;
    }
    let known = published.manifest.all_tables().flat_map(|table| table.meta.runs()).copied();
    let known = target.snapshots().runs().into_iter().chain(known);
    let go_on = || source.core.check_open();
    // Files of a store that was closed meanwhile may be gone for good reason.
    let damage = |error| go_on().err().unwrap_or_else(|| damaged(error));
    let mut copier = Copier::new(source.core.files(), target, known, &go_on, progress);
    let mut images = Vec::new();
    let mut next = StoreManifest {
        is_backup: true,
        commit: source.commit,
        next_table: source.manifest.next_table,
        ..StoreManifest::default()
    };
    for named in &source.manifest.tables {
        let mut meta = named.meta.clone();
        let mut image = None;
        if let Some(table) = source.changed.get(&named.id) {
            let written = table.write_out_to(target)?;
            meta.clone_from(&written.meta);
            // It is there already.
            image = meta.image.take();
            images.push(written);
        }
        let copied = copier.copy(&meta).map_err(damage)?;
        let meta = SnapshotMeta { image: image.or(copied.image), ..copied };
        next.tables.push(NamedMeta { meta, ..named.clone() });
    }
    for version in &source.manifest.versions {
        let mut tables = Vec::new();
        for named in &version.tables {
            let meta = copier.copy(&named.meta).map_err(damage)?;
            tables.push(NamedMeta { meta, ..named.clone() });
        }
        next.versions.push(VersionMeta { tables, ..version.clone() });
    }
    published.publish(target, next)?;
    let images_bytes = images.iter().map(WrittenOut::image_bytes).sum::<u64>();
    let image_count = images.iter().filter(|written| written.meta.image.is_some()).count() as u64;
    drop(images);
    let snapshots = renew_snapshots(source.core, target, &mut copier)?;
    let ExportReport { files_copied, bytes_copied, files_shared, bytes_shared, .. } = copier.report;
    Ok(BackupReport {
        commit: source.commit,
        tables: source.manifest.tables.len() as u64,
        versions: source.manifest.versions.len() as u64,
        snapshots,
        files_copied: files_copied + image_count,
        bytes_copied: bytes_copied + images_bytes,
        files_shared,
        bytes_shared,
    })
}

/// Brings the snapshots that are new or others now, and removes those that the store has no more. Returns
/// how many there are. One that cannot be read keeps the others from nothing.
fn renew_snapshots(
    core: &SessionCore,
    target: &SessionCore,
    copier: &mut Copier<'_>,
) -> Result<u64> {
    let names = snapshot::list(core)?;
    let mut damage = Ok(());
    for name in &names {
        match renew_snapshot(core, target, name, copier) {
            // Deleted in the meantime.
            Err(Error::SnapshotDoesNotExist { .. }) => {}
            Err(error @ Error::SnapshotCorrupted { .. }) => damage = damage.and(Err(error)),
            renewed => renewed?,
        }
    }
    // Last, since others may have had what they have by another name.
    for old in snapshot::list(target)?.iter().filter(|name| !names.contains(name)) {
        snapshot::delete(target, old)?;
    }
    damage.map(|()| names.len() as u64)
}

fn renew_snapshot(
    core: &SessionCore,
    target: &SessionCore,
    name: &SnapshotName,
    copier: &mut Copier<'_>,
) -> Result<()> {
    let reading = snapshot::read(core, name)?;
    let there = snapshot::list(target)?.contains(name);
    if there && target.read_snapshot(name.as_str()).is_ok_and(|old| is_copy(&old, &reading.meta)) {
        return Ok(());
    }
    let copied = copier.copy(&reading.meta);
    let copied = copied.map_err(|error| snapshot::damaged(core.dir(), name.as_str(), error))?;
    if there {
        snapshot::delete(target, name)?;
    }
    let reservation = target.snapshots().reserve(name.as_str())?;
    snapshot::publish(target, reservation, &copied)
}

/// Whether one snapshot is a copy of the other: saved at the same time, of the same runs.
fn is_copy(one: &SnapshotMeta, other: &SnapshotMeta) -> bool {
    let identities =
        |meta: &SnapshotMeta| -> Vec<u64> { meta.runs().map(|run| run.identity).collect() };
    (one.created_ns, &one.label, one.now) == (other.created_ns, &other.label, other.now)
        && identities(one) == identities(other)
}

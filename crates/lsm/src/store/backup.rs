//! Backups: a copy of a whole store in another directory, made while the store is in use, and made
//! newer by bringing only what is not there yet.
//!
//! A backup is a store itself, all tables as of one commit, the retained versions, the snapshots,
//! and of the log what versions need. It can be read, inspected and verified; opening it as a store
//! and committing to it makes it a store of its own, which no later backup overwrites. (Snapshots
//! that somebody saves in it without a commit go with the next one.)
//!
//! **Order.** Runs are copied, every page checked, and synced, and so are segments of the log; then
//! the manifest is written, which moves all tables to the newer commit at once; then snapshots, one
//! by one. So after a crash at any point the tables are those of the earlier backup or of this one,
//! and each snapshot is whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::error::{Error, Result};
use crate::manifest::manifest::{self, NamedMeta, StoreManifest, VersionBase, VersionMeta};
use crate::manifest::snapshot_meta::SnapshotMeta;
use crate::manifest::wal::{LOG, segment_name, segments};
use crate::run::check::Progress;
use crate::session::current_manifest::CurrentManifest;
use crate::session::inner::{SessionInner, TMP_SUFFIX};
use crate::session::snapshot::{self, SnapshotName};
use crate::session::transfer::{Copier, ExportReport, open_target, with_room};
use crate::store::inner::damaged;
use crate::table::table::Table;
use crate::trace::event;

/// Bytes of a segment of the log that are copied at once.
const COPIED_BYTES: usize = 1 << 20;

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

/// Report of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Files of runs that were there already; a file counts for each table, version and snapshot
    /// that has it.
    pub files_shared: u64,
    /// Bytes of these.
    pub bytes_shared: u64,
}

/// Source of a backup. Its files stay meanwhile.
pub(crate) struct Source<'a> {
    pub(crate) inner: &'a SessionInner,
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
    event!(DEBUG, "store.back_up", source.inner.dir(), commit = source.commit);
    let disk = Arc::clone(place.disk.as_ref().unwrap_or(source.inner.files().disk()));

    let open = || open_target(&disk, dir, source.inner.salt());
    let target = match with_room(&[source.inner.files().handles()], open) {
        Err(Error::SnapshotExportDirExists { path }) => {
            return Err(Error::NotABackup { path, reason: "something else is there".to_owned() });
        }
        target => target?,
    };

    let made = renew(source, &target, progress);

    // What was copied in vain goes before the lock does.
    let report = made.and_then(|report| target.close().map(|()| report))?;
    event!(DEBUG, "store.backed_up", source.inner.dir(), commit = source.commit);
    Ok(report)
}

/// The manifest of an earlier backup, or an empty one.
fn published(source: &Source<'_>, target: &SessionInner) -> Result<CurrentManifest> {
    let refused = |reason: String| Error::NotABackup { path: target.dir().to_owned(), reason };
    if target.salt() != source.inner.salt() {
        return Err(refused("it is another store, with another salt".to_owned()));
    }
    let found = manifest::read(target.disk(), target.dir())?;
    let older = found.older.iter().flat_map(StoreManifest::numbers).collect();

    let manifest = match found.manifest {
        Some(manifest) if !manifest.is_backup => {
            return Err(refused("it is a store that was committed to".to_owned()));
        }
        Some(manifest) if manifest.commit > source.commit => {
            let there = manifest.commit;
            let here = source.commit;
            return Err(refused(format!("it has commit {there}, the store only commit {here}")));
        }
        Some(manifest) => manifest,
        None if target.snapshots().names()?.is_empty() => StoreManifest::default(),
        None => return Err(refused("it has snapshots of its own".to_owned())),
    };

    Ok(CurrentManifest::found(manifest, older))
}

fn renew(
    source: &Source<'_>,
    target: &SessionInner,
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

    let go_on = || source.inner.check_open();

    // Files of a store that was closed meanwhile may be gone for good reason.
    let damage = |error| go_on().err().unwrap_or_else(|| damaged(error));
    let mut copier = Copier::new(source.inner.files(), target, known, &go_on, progress);
    let mut images = Vec::new();

    let mut next = StoreManifest {
        is_backup: true,
        commit: source.commit,
        next_table: source.manifest.next_table,
        has_indexes: source.manifest.has_indexes,
        ..StoreManifest::default()
    };

    for named in &source.manifest.tables {
        let mut meta = named.meta.clone();
        let mut images_there = None;
        if let Some(table) = source.changed.get(&named.id) {
            let written = table.write_out_to(target)?;
            meta.clone_from(&written.meta);
            // They are there already.
            images_there = Some(std::mem::take(&mut meta.images));
            images.push(written);
        }
        let copied = copier.copy(&meta).map_err(damage)?;
        let meta = SnapshotMeta { images: images_there.unwrap_or(copied.images), ..copied };
        next.tables.push(NamedMeta { meta, ..named.clone() });
    }

    for group in source.manifest.groups() {
        let mut tables = Vec::new();
        for named in &group.base().tables {
            let meta = copier.copy(&named.meta).map_err(damage)?;
            tables.push(NamedMeta { meta, ..named.clone() });
        }
        let VersionBase { commit, segment, .. } = **group.base();
        let base = Arc::new(VersionBase { commit, segment, tables });
        let moved =
            |version: &VersionMeta| VersionMeta { base: Arc::clone(&base), ..version.clone() };
        next.versions.extend(group.0.iter().map(moved));
    }

    let logs = copy_log(source.inner, target, &next).map_err(damage)?;
    let both = published.publish(target, next)?;
    let images_bytes = images.iter().map(|written| written.image_bytes).sum::<u64>();
    let image_count = images.iter().map(|written| written.meta.images.len() as u64).sum::<u64>();
    drop(images);

    if both {
        remove_log(target, &published.manifest)?;
    }
    let snapshots = renew_snapshots(source.inner, target, &mut copier)?;
    let ExportReport { files_copied, bytes_copied, files_shared, bytes_shared, .. } = copier.report;

    Ok(BackupReport {
        commit: source.commit,
        tables: source.manifest.tables.len() as u64,
        versions: source.manifest.versions.len() as u64,
        snapshots,
        files_copied: files_copied + image_count + logs.files_copied,
        bytes_copied: bytes_copied + images_bytes + logs.bytes_copied,
        files_shared: files_shared + logs.files_shared,
        bytes_shared: bytes_shared + logs.bytes_shared,
    })
}

/// Copies the segments of the log that versions need, unless they are there.
///
/// Each is whole under its name. A store that a loss of power has thrown back uses a number again,
/// so only equal bytes count as the same segment.
fn copy_log(
    source: &SessionInner,
    target: &SessionInner,
    manifest: &StoreManifest,
) -> Result<ExportReport> {
    let mut report = ExportReport::default();
    let mut numbers = Vec::new();
    for group in manifest.groups().filter(|group| group.until() > 0) {
        numbers.extend(group.base().segment..=group.until());
    }
    numbers.dedup();

    if numbers.is_empty() {
        return Ok(report);
    }

    let dir = target.dir().join(LOG);
    if target.disk().kind(&dir)?.is_none() {
        target.disk().create_dir(&dir)?;
        target.sync_root()?;
    }

    for number in numbers {
        source.check_open()?;
        let name = segment_name(number);
        let open = || {
            let path = source.dir().join(LOG).join(&name);
            source.disk().open(&path, OpenMode::Read, Access::Buffered)
        };

        let file = source.files().handles().with_room(open)?;

        let path = dir.join(&name);
        let is_there = is_copy_of(file.as_ref(), target, &path)?;
        if !is_there {
            copy_segment(file.as_ref(), target, &path)?;
        }

        let (files, sum) = if is_there {
            (&mut report.files_shared, &mut report.bytes_shared)
        } else {
            (&mut report.files_copied, &mut report.bytes_copied)
        };

        *files += 1;
        *sum += file.len()?;
    }

    target.sync_dir(LOG)?;
    Ok(report)
}

/// Whether the file at `path` has the same bytes.
fn is_copy_of(file: &dyn DiskFile, target: &SessionInner, path: &Path) -> Result<bool> {
    if target.disk().kind(path)?.is_none() {
        return Ok(false);
    }
    let open = || target.disk().open(path, OpenMode::Read, Access::Buffered);

    let other = target.files().handles().with_room(open)?;
    let len = file.len()?;
    if other.len()? != len {
        return Ok(false);
    }
    let mut one = Vec::new();
    let mut copy = Vec::new();

    for at in (0..len).step_by(COPIED_BYTES) {
        let bytes = (len - at).min(COPIED_BYTES as u64) as usize;
        one.resize(bytes, 0);
        copy.resize(bytes, 0);
        file.read_at(&mut one, at)?;
        other.read_at(&mut copy, at)?;
        if one != copy {
            return Ok(false);
        }
    }

    Ok(true)
}

/// Copies a segment, which is whole when it gets its name.
fn copy_segment(file: &dyn DiskFile, target: &SessionInner, path: &Path) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(TMP_SUFFIX);

    let temporary = PathBuf::from(temporary);
    match target.disk().remove(&temporary) {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {}
    }

    let copy = || -> Result<()> {
        let open = || target.disk().open(&temporary, OpenMode::CreateNew, Access::Buffered);
        let copy = target.files().handles().with_room(open)?;
        let len = file.len()?;
        let mut bytes = Vec::new();
        for at in (0..len).step_by(COPIED_BYTES) {
            bytes.resize((len - at).min(COPIED_BYTES as u64) as usize, 0);
            file.read_at(&mut bytes, at)?;
            copy.write_at(&bytes, at)?;
        }
        target.files().synced(&temporary, copy.sync())?;
        Ok(target.disk().rename(&temporary, path)?)
    };

    copy().inspect_err(|_| {
        // The first error is the one to report; the next backup removes what is left.
        if let Err(error) = target.disk().remove(&temporary) {
            event!(WARN, "cleanup.failed", target.dir(), %error);
        }
    })
}

/// Removes the segments of the log that no version of a backup needs any more.
fn remove_log(target: &SessionInner, manifest: &StoreManifest) -> Result<()> {
    let dir = target.dir().join(LOG);
    if target.disk().kind(&dir)?.is_none() {
        return Ok(());
    }
    let readers = target.leased_segment()?;
    for number in segments(target.disk(), target.dir())? {
        if number < readers && !manifest.needs_segment(number) {
            target.disk().remove(&dir.join(segment_name(number)))?;
        }
    }
    Ok(())
}

/// Brings the snapshots that are new or others now, and removes those that the store has no more.
/// Returns how many there are. One that cannot be read keeps the others from nothing.
fn renew_snapshots(
    inner: &SessionInner,
    target: &SessionInner,
    copier: &mut Copier<'_>,
) -> Result<u64> {
    let names = snapshot::list(inner)?;
    let mut damage = Ok(());
    for name in &names {
        match renew_snapshot(inner, target, name, copier) {
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
    inner: &SessionInner,
    target: &SessionInner,
    name: &SnapshotName,
    copier: &mut Copier<'_>,
) -> Result<()> {
    let reading = snapshot::read(inner, name)?;
    let there = snapshot::list(target)?.contains(name);
    if there && target.read_snapshot(name.as_str()).is_ok_and(|old| is_copy(&old, &reading.meta)) {
        return Ok(());
    }
    let copied = copier.copy(&reading.meta);
    let copied = copied.map_err(|error| snapshot::damaged(inner.dir(), name.as_str(), error))?;
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

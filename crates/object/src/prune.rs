//! Retention: drops backups, and deletes what no backup needs any more.
//!
//! **Order.** A catalog without the dropped backups is put first. Then objects are listed, and then
//! the catalog is read once more. An object goes if that catalog names it in no backup, and the
//! upload in its name is not entered there. An uploader enters itself before its first object, so
//! a listed object of a running upload is always protected. An uploader that uses objects of others
//! makes sure in its last change that each was still protected; so what a drop lets go of is never
//! named again.
//!
//! An upload that was interrupted protects its objects, so that the next one goes on with them. A
//! drop gives up uploads that began longer ago than a day, or as the caller says. The clocks of two
//! machines only decide when; an uploader that was given up is told so, and names nothing.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::bucket::Bucket;
use crate::catalog::{BackupInfo, CATALOGS, CATALOGS_KEPT, Catalog, catalog_number, now_unix_s};
use crate::error::{Error, Result};
use crate::manifest::{DATA, MANIFESTS, upload_of};

/// Age at which an upload counts as abandoned, in seconds: a day.
pub const ABANDONED_AFTER_S: u64 = 24 * 60 * 60;

/// Which backups go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    ids: Vec<String>,
    keep_last: Option<u64>,
    before_unix_s: Option<u64>,
    abandoned_after_s: Option<u64>,
}

impl Retention {
    /// Drops no backup, and deletes what nothing needs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, and the backup of this name goes.
    #[must_use]
    pub fn drop(mut self, id: impl Into<String>) -> Self {
        self.ids.push(id.into());
        self
    }

    /// The same, and all but the newest `count` backups go. 0 counts as 1.
    #[must_use]
    pub fn keep_last(self, count: u64) -> Self {
        Self { keep_last: Some(count.max(1)), ..self }
    }

    /// The same, and backups go whose base was uploaded before this time, in seconds since the Unix
    /// epoch. The newest backup stays.
    #[must_use]
    pub fn before(self, unix_s: u64) -> Self {
        Self { before_unix_s: Some(unix_s), ..self }
    }

    /// The same, giving up uploads that began so many seconds ago; [`ABANDONED_AFTER_S`] otherwise.
    #[must_use]
    pub fn abandoned_after(self, seconds: u64) -> Self {
        Self { abandoned_after_s: Some(seconds), ..self }
    }

    /// Whether a backup goes; `newer` is how many are newer.
    fn drops(&self, info: &BackupInfo, newer: u64) -> bool {
        self.ids.contains(&info.id)
            || self.keep_last.is_some_and(|kept| newer >= kept)
            || (newer > 0 && self.before_unix_s.is_some_and(|time| info.created_unix_s < time))
    }
}

/// Report of a drop.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct DropReport {
    /// Names of the backups that were dropped.
    pub dropped: Vec<String>,
    /// Backups that are left.
    pub left: u64,
    /// Uploads that were given up.
    pub uploads_given_up: u64,
    /// Objects that were deleted.
    pub objects_deleted: u64,
    /// Bytes of these.
    pub bytes_deleted: u64,
}

impl Bucket {
    /// Drops backups, and deletes the objects that no backup and no running upload needs. Safe
    /// beside uploads and other drops.
    ///
    /// Cost: a read for each backup that is left, a list of all objects, and a deletion for each
    /// object that goes; about ten requests besides.
    ///
    /// # Errors
    /// [`Error::UnknownBackup`], before anything is changed; [`Error::Missing`] and
    /// [`Error::Damaged`] if a manifest of a backup that is left cannot be read, and then no object
    /// is deleted; [`Error::Request`] and the errors of the catalog. The next call goes on.
    pub fn drop_backups(&self, retention: &Retention) -> Result<DropReport> {
        let mut report = DropReport::default();
        let age = retention.abandoned_after_s.unwrap_or(ABANDONED_AFTER_S);
        let abandoned = now_unix_s().saturating_sub(age);

        let found = self
            .newest_catalog()?
            .ok_or_else(|| Error::NoBackup { address: self.address().to_owned() })?;
        for id in &retention.ids {
            if !found.backups.iter().any(|info| info.id == *id) {
                let address = self.address().to_owned();
                return Err(Error::UnknownBackup { address, id: id.clone() });
            }
        }

        let next_of = |old: &Catalog| {
            let count = old.backups.len() as u64;
            let mut next = old.clone();
            let mut newer = count;
            next.backups.retain(|info| {
                newer -= 1;
                !retention.drops(info, newer)
            });
            next.uploads.retain(|upload| upload.started_unix_s > abandoned);
            next
        };
        let next = next_of(&found);
        if (&next.backups, &next.uploads) != (&found.backups, &found.uploads) {
            self.change_catalog(&mut |old| {
                let next = next_of(old);
                let is_kept =
                    |info: &&BackupInfo| next.backups.iter().any(|kept| kept.id == info.id);
                let dropped = old.backups.iter().filter(|info| !is_kept(info));
                report.dropped = dropped.map(|info| info.id.clone()).collect();
                report.uploads_given_up = (old.uploads.len() - next.uploads.len()) as u64;
                Ok(next)
            })?;
        }

        self.delete_unneeded(&mut report)?;
        Ok(report)
    }

    fn delete_unneeded(&self, report: &mut DropReport) -> Result<()> {
        let mut listed = self.list(DATA)?;
        listed.extend(self.list(MANIFESTS)?);

        // Read after the lists: every upload whose objects were listed is entered, ended or given
        // up there.
        let catalog = self.newest_catalog()?;
        let catalog =
            catalog.ok_or_else(|| Error::NoBackup { address: self.address().to_owned() })?;
        report.left = catalog.backups.len() as u64;
        let mut needed: BTreeSet<String> = BTreeSet::new();
        for info in &catalog.backups {
            needed.insert(info.manifest.clone());
            needed.extend(self.manifest(info)?.files.into_iter().map(|file| file.object));
        }
        let entered: BTreeSet<&str> =
            catalog.uploads.iter().map(|upload| upload.id.as_str()).collect();

        for object in listed {
            // A name without an upload is not of this program's making.
            let Some(upload) = upload_of(&object.key) else { continue };
            if !needed.contains(&object.key) && !entered.contains(upload) {
                self.delete(&object.key)?;
                report.objects_deleted += 1;
                report.bytes_deleted += object.bytes;
            }
        }

        // Ascending, and never near the newest: see the module `catalog`.
        for object in self.list(CATALOGS)? {
            let number = catalog_number(&object.key);
            if number.is_some_and(|number| number + CATALOGS_KEPT < catalog.number) {
                self.delete(&object.key)?;
            }
        }
        Ok(())
    }
}

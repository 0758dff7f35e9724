//! Backup: uploads what is new of a store, and extends what is there to later commits.
//!
//! A backup is a *base*, the files of one checkpoint, and the WAL behind it, so every commit from
//! the base's to the last one can be restored. Three things can happen:
//!
//! - The bucket has the same base, and the WAL goes on: the backup gets the new segments.
//! - The store has a newer base: a backup is added. If the WAL leads from the newest backup to the
//!   new base without a gap, and no table was made, renamed or dropped on the way, the newest
//!   backup is extended as well, so every commit in between can be restored.
//! - Otherwise a backup is added, and commits in between cannot be restored.
//!
//! **Order.** The upload is entered in the catalog. Objects are put, then manifests, then the
//! catalog that names them and ends the upload. A crash at any request leaves the catalog before or
//! after.
//!
//! **Resuming.** Objects of an interrupted upload are found by their names in a list, and used if
//! their run has the same identity, sum and length. The final change of the catalog makes sure that
//! each object used was still protected: by a backup, or by an upload that is entered.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sha2::{Digest, Sha256};
use terrane_lsm::{StoreFile, StoreFileKind, StoreFiles, StoreReader};

use crate::bucket::{Bucket, Put};
use crate::catalog::{BackupInfo, Catalog, RunningUpload, hex, now_unix_s, random_id, sha256_hex};
use crate::error::{Error, Result};
use crate::manifest::{DATA, FileEntry, Kind, Manifest, TableEntry, data_key, stem_of, upload_of};

/// Report of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UploadReport {
    /// Name of the backup.
    pub id: String,
    /// First commit that it can restore.
    pub base_commit: u64,
    /// Last commit that it can restore.
    pub commit: u64,
    /// Whether every commit from the one before the last of the bucket until then on can be
    /// restored; true for the first backup.
    pub contiguous: bool,
    /// Files that were uploaded.
    pub files_uploaded: u64,
    /// Bytes of these.
    pub bytes_uploaded: u64,
    /// Files that the bucket had already.
    pub files_shared: u64,
    /// Bytes of these.
    pub bytes_shared: u64,
}

/// Objects that may stand for files of the store.
#[derive(Debug, Default)]
struct Reusable {
    /// Runs of backups, by kind and identity.
    runs: BTreeMap<(String, u64), FileEntry>,
    /// Other files of backups, by checksum.
    by_sha256: BTreeMap<String, FileEntry>,
    /// Runs of interrupted uploads, by stem and length.
    orphans: BTreeMap<(String, u64), String>,
}

/// An upload that is entered in the catalog.
struct Upload<'a> {
    bucket: &'a Bucket,
    id: String,
    /// Names of the next objects.
    place: usize,
    reusable: Reusable,
    /// Objects of others that the new manifests name.
    reused: BTreeSet<String>,
    report: UploadReport,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// A backup to be entered.
struct Entered {
    info: BackupInfo,
    /// Whether it is an earlier backup with later commits, which is not entered if that was
    /// dropped.
    is_extension: bool,
}

impl Bucket {
    /// Backs the store up as it is now: uploads what is new, checks every page on the way, and
    /// enters the backup in the catalog. The process that writes the store is not disturbed.
    ///
    /// From the segment of [`StoreReader::keep_log_from`] on, earlier segments of the WAL are
    /// uploaded too: a reader that keeps the log between two calls makes backups without a gap.
    ///
    /// Cost: a put for each new file, or one for each 8 MiB of it; 15 requests besides, and two
    /// reads for each backup in the bucket.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::ForeignStore`], [`Error::StoreIsOlder`],
    /// [`Error::UploadRevoked`], [`Error::Request`] and the errors of the catalog. Earlier backups
    /// are whole then, and the next call goes on with what is there.
    pub fn back_up(
        &self,
        reader: &mut StoreReader,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<UploadReport> {
        let files = reader.files()?;
        let store = fingerprint(&files)?;
        let found = self.make_catalog(&store)?;
        if let Some(last) = found.backups.iter().map(|backup| backup.commit).max()
            && last > files.commit()
        {
            return Err(Error::StoreIsOlder {
                address: self.address().to_owned(),
                there: last,
                here: files.commit(),
            });
        }

        let id = random_id();
        let started_unix_s = now_unix_s();
        let entered = self.change_catalog(&mut |old| {
            let mut next = old.clone();
            if next.store != store {
                return Err(Error::ForeignStore { address: self.address().to_owned() });
            }
            next.uploads.push(RunningUpload { id: id.clone(), started_unix_s });
            Ok(next)
        })?;

        let manifests: Vec<(BackupInfo, Manifest)> = entered
            .backups
            .iter()
            .filter_map(|info| Some((info.clone(), self.manifest(info).ok()?)))
            .collect();
        let reusable = self.reusable(&entered, &id, &manifests)?;
        let report = UploadReport {
            id: String::new(),
            base_commit: files.base_commit(),
            commit: files.commit(),
            contiguous: true,
            files_uploaded: 0,
            bytes_uploaded: 0,
            files_shared: 0,
            bytes_shared: 0,
        };
        let total = files.files().iter().map(|file| file.bytes).sum();
        let mut upload = Upload {
            bucket: self,
            id,
            place: 0,
            reusable,
            reused: BTreeSet::new(),
            report,
            done: 0,
            total,
            progress,
        };
        upload.run(&files, &store, &manifests)
    }

    /// The segment of the WAL from which on a reader keeps the log, so that the next backup follows
    /// without a gap: the last one of the newest backup. `None` if there is no backup with a log; a
    /// reader that goes on after its first backup keeps the log from segment 1 on meanwhile. For
    /// [`StoreReader::keep_log_from`].
    ///
    /// Cost: three reads and a list.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Request`], [`Error::StaleList`].
    pub fn log_to_keep(&self) -> Result<Option<u64>> {
        let Some(catalog) = self.newest_catalog()? else { return Ok(None) };
        let Some(info) = catalog.backups.iter().max_by_key(|info| info.commit) else {
            return Ok(None);
        };
        let manifest = self.manifest(info)?;
        Ok(manifest.log().last().and_then(|tail| tail.kind.log()).map(|(number, ..)| number))
    }

    /// Objects that earlier uploads have put.
    fn reusable(
        &self,
        catalog: &Catalog,
        own: &str,
        manifests: &[(BackupInfo, Manifest)],
    ) -> Result<Reusable> {
        let mut reusable = Reusable::default();
        for file in manifests.iter().flat_map(|(_, manifest)| &manifest.files) {
            if file.kind.is_sealed_run() {
                reusable.runs.insert((file.kind.stem(), file.bytes), file.clone());
            } else {
                reusable.by_sha256.insert(file.sha256.clone(), file.clone());
            }
        }

        // Only uploads that are entered protect what they have put.
        let others: BTreeSet<&str> = catalog
            .uploads
            .iter()
            .map(|upload| upload.id.as_str())
            .filter(|upload| *upload != own)
            .collect();
        if !others.is_empty() {
            for object in self.list(DATA)? {
                let is_protected =
                    upload_of(&object.key).is_some_and(|upload| others.contains(upload));
                if let Some(stem) = stem_of(&object.key).filter(|_| is_protected) {
                    let named = (stem.to_owned(), object.bytes);
                    reusable.orphans.insert(named, object.key.clone());
                }
            }
        }
        Ok(reusable)
    }
}

/// Fingerprint of a store: of the file that all of its copies share.
fn fingerprint(files: &StoreFiles<'_>) -> Result<String> {
    let metadata = files.files().iter().find(|file| matches!(file.kind, StoreFileKind::Metadata));
    let mut bytes = Vec::new();
    if let Some(metadata) = metadata {
        files.read(metadata, &mut |piece| -> Result<()> {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
    }
    // The salt is a secret, and stands in the file.
    Ok(sha256_hex(&bytes)[..32].to_owned())
}

impl Upload<'_> {
    fn run(
        &mut self,
        files: &StoreFiles<'_>,
        store: &str,
        manifests: &[(BackupInfo, Manifest)],
    ) -> Result<UploadReport> {
        let mut entries = Vec::new();
        for file in files.files() {
            entries.push(self.put(files, file)?);
        }

        // The newest backup is the one to go on from.
        let newest = manifests.iter().max_by_key(|(info, _)| info.commit);
        let mut entered = Vec::new();
        let mut id = random_id();
        let mut created = now_unix_s();
        match newest {
            None => {}
            Some((info, manifest)) if Self::goes_on(files, manifest)? => {
                if manifest.sequence == files.sequence()
                    && manifest.base_commit == files.base_commit()
                {
                    id.clone_from(&info.id);
                    created = info.created_unix_s;
                } else {
                    let extended = self.extend(files, manifest, &entries)?;
                    entered.push(self.enter(&extended, info.created_unix_s, true)?);
                }
            }
            Some(_) => self.report.contiguous = false,
        }

        let tables = files.tables();
        let table = |(id, name): &(u64, String)| TableEntry { id: *id, name: name.clone() };
        let manifest = Manifest {
            id,
            store: store.to_owned(),
            sequence: files.sequence(),
            base_commit: files.base_commit(),
            commit: files.commit(),
            next_table: tables.next_table,
            tables: tables.tables.iter().map(table).collect(),
            files: entries,
        };
        self.report.id.clone_from(&manifest.id);
        entered.push(self.enter(&manifest, created, false)?);
        self.publish(&entered)?;
        Ok(self.report.clone())
    }

    /// Segments that lead up to the last commit of these files, without a gap. Those that only a
    /// retained version needs may stand apart: a rollback or an installation is a commit without a
    /// record.
    fn leading<'a>(files: &'a StoreFiles<'_>) -> Vec<&'a StoreFile> {
        let mut log = Vec::new();
        for file in files.files().iter().chain(files.earlier_log()) {
            if let StoreFileKind::Log { number, first, last, .. } = file.kind {
                log.push((number, first, last, file));
            }
        }
        log.sort_unstable_by_key(|(number, ..)| std::cmp::Reverse(*number));
        log.dedup_by_key(|(number, ..)| *number);

        let mut leading = Vec::new();
        let mut next: Option<(u64, u64)> = None;
        for (number, first, last, file) in log {
            if next.is_some_and(|next| next != (number + 1, last + 1)) {
                break;
            }
            next = Some((number, first));
            leading.push(file);
        }
        leading
    }

    /// Whether the log leads from a backup to these files: the end of its last segment is in the
    /// log here, and the tables are the same.
    fn goes_on(files: &StoreFiles<'_>, manifest: &Manifest) -> Result<bool> {
        if !manifest.has_tables(files.tables()) {
            return Ok(false);
        }
        let Some(tail) = manifest.log().last().copied().cloned() else { return Ok(false) };
        let Kind::Log { number, first, .. } = tail.kind else { return Ok(false) };
        let here = Self::leading(files).into_iter().find(|file| {
            matches!(file.kind, StoreFileKind::Log { number: n, first: f, .. } if (n, f) == (number, first))
        });
        let Some(here) = here.filter(|here| here.bytes >= tail.bytes) else { return Ok(false) };

        // A store that was restored, or lost commits, uses a number again.
        let mut unsealed = here.clone();
        if let StoreFileKind::Log { sealed, .. } = &mut unsealed.kind {
            *sealed = false;
        }
        let mut sum = Sha256::new();
        let mut left = tail.bytes;
        files.read(&unsealed, &mut |piece| -> Result<()> {
            let taken = left.min(piece.len() as u64);
            sum.update(&piece[..taken as usize]);
            left -= taken;
            Ok(())
        })?;
        Ok(hex(&sum.finalize()) == tail.sha256)
    }

    /// A backup with the log up to the last commit of these files.
    fn extend(
        &mut self,
        files: &StoreFiles<'_>,
        manifest: &Manifest,
        entries: &[FileEntry],
    ) -> Result<Manifest> {
        let mut extended = manifest.clone();
        let from = manifest.log().last().and_then(|tail| tail.kind.log()).map_or(0, |log| log.0);
        let mut segments = Vec::new();
        for file in files.earlier_log() {
            if matches!(file.kind, StoreFileKind::Log { number, .. } if number >= from) {
                self.total += file.bytes;
                segments.push(self.put(files, file)?);
            }
        }
        let later =
            entries.iter().filter(|entry| entry.kind.log().is_some_and(|log| log.0 >= from));
        segments.extend(later.cloned());

        let replaced: BTreeSet<&str> =
            segments.iter().map(|segment| segment.path.as_str()).collect();
        extended.files.retain(|file| !replaced.contains(file.path.as_str()));
        extended.files.extend(segments);
        extended.commit = files.commit();
        Ok(extended)
    }

    /// Puts a manifest.
    fn enter(
        &self,
        manifest: &Manifest,
        created_unix_s: u64,
        is_extension: bool,
    ) -> Result<Entered> {
        let (info, document) = manifest.entry(&self.id, created_unix_s);
        match self.bucket.put_new(&info.manifest, &document)? {
            Put::Done => Ok(Entered { info, is_extension }),
            Put::Taken => Err(Error::damaged(&info.manifest, "somebody else has used this name")),
        }
    }

    /// Names the backups in the catalog, and ends the upload.
    fn publish(&self, entered: &[Entered]) -> Result<()> {
        // What an earlier catalog protected may be going now.
        let mut manifests: BTreeMap<String, Manifest> = BTreeMap::new();
        self.bucket.change_catalog(&mut |old| {
            if old.upload(&self.id).is_none() {
                let is_done = entered
                    .iter()
                    .all(|new| old.backups.iter().any(|info| info.manifest == new.info.manifest));
                // An earlier attempt of this very change may have been made.
                return if is_done {
                    Ok(old.clone())
                } else {
                    Err(Error::UploadRevoked { id: self.id.clone() })
                };
            }

            for info in &old.backups {
                if !manifests.contains_key(&info.manifest)
                    && let Ok(manifest) = self.bucket.manifest(info)
                {
                    manifests.insert(info.manifest.clone(), manifest);
                }
            }
            let named = old.backups.iter().filter_map(|info| manifests.get(&info.manifest));
            let protected: BTreeSet<&str> = named
                .flat_map(|manifest| &manifest.files)
                .map(|file| file.object.as_str())
                .collect();
            let is_safe = |object: &&String| {
                let is_entered = upload_of(object).is_some_and(|id| old.upload(id).is_some());
                is_entered || protected.contains(object.as_str())
            };
            if !self.reused.iter().all(|object| is_safe(&object)) {
                // Begun again, the upload puts them anew.
                return Err(Error::UploadRevoked { id: self.id.clone() });
            }

            let mut next = old.clone();
            next.uploads.retain(|upload| upload.id != self.id);
            for new in entered {
                match next.backups.iter_mut().find(|info| info.id == new.info.id) {
                    // Another writer may have added more commits to it meanwhile.
                    Some(info) if info.commit > new.info.commit => {}
                    Some(info) => *info = new.info.clone(),
                    None if new.is_extension => {}
                    None => next.backups.push(new.info.clone()),
                }
            }
            Ok(next)
        })?;
        Ok(())
    }

    /// Uploads a file, unless the bucket has it.
    fn put(&mut self, files: &StoreFiles<'_>, file: &StoreFile) -> Result<FileEntry> {
        let kind = Kind::of(file)?;
        if kind.is_sealed_run()
            && let Some(there) = self.reusable.runs.get(&(kind.stem(), file.bytes)).cloned()
        {
            return Ok(self.share(file, kind, &there));
        }

        // What is not a run is small, or is hashed before it is put.
        if !kind.is_sealed_run() {
            let sha256 = Self::hash(files, file)?;
            if let Some(there) = self.reusable.by_sha256.get(&sha256).cloned()
                && there.bytes == file.bytes
            {
                return Ok(self.share(file, kind, &there));
            }
        } else if let Some(object) = self.reusable.orphans.get(&(kind.stem(), file.bytes)).cloned()
        {
            let sha256 = Self::hash(files, file)?;
            let there = FileEntry {
                path: file.path.clone(),
                bytes: file.bytes,
                sha256,
                object,
                kind: kind.clone(),
            };
            return Ok(self.share(file, kind, &there));
        }

        let key = data_key(&kind, self.place, &self.id);
        self.place += 1;
        let mut writer = self.bucket.writer(key, file.bytes);
        let mut sum = Sha256::new();
        files.read(file, &mut |piece| -> Result<()> {
            sum.update(piece);
            writer.write(piece)?;
            self.done += piece.len() as u64;
            (self.progress)(self.done, self.total);
            Ok(())
        })?;
        let (object, bytes) = writer.finish()?;
        if bytes != file.bytes {
            return Err(Error::damaged(&object, "the file changed its length meanwhile"));
        }

        self.report.files_uploaded += 1;
        self.report.bytes_uploaded += bytes;
        let sha256 = hex(&sum.finalize());
        let entry = FileEntry { path: file.path.clone(), bytes, sha256, object, kind };
        // Another path may have the same bytes: both copies of the manifest do.
        self.reusable.by_sha256.insert(entry.sha256.clone(), entry.clone());
        Ok(entry)
    }

    fn share(&mut self, file: &StoreFile, kind: Kind, there: &FileEntry) -> FileEntry {
        self.done += file.bytes;
        (self.progress)(self.done, self.total);
        self.report.files_shared += 1;
        self.report.bytes_shared += file.bytes;
        if upload_of(&there.object) != Some(self.id.as_str()) {
            self.reused.insert(there.object.clone());
        }
        FileEntry { path: file.path.clone(), kind, ..there.clone() }
    }

    fn hash(files: &StoreFiles<'_>, file: &StoreFile) -> Result<String> {
        let mut sum = Sha256::new();
        files.read(file, &mut |piece| -> Result<()> {
            sum.update(piece);
            Ok(())
        })?;
        Ok(hex(&sum.finalize()))
    }
}

//! Follower of a bucket: a copy of a store that begins with a restore and then takes over the
//! commits that are shipped, one for one.
//!
//! **Beginning.** The newest backup is restored beside the copy's directory, under the name with
//! `.restoring` at its end, made a copy there, and renamed. So the directory is missing or a copy,
//! and an interrupted beginning goes on where it was.
//!
//! **Going on.** The copy notes with each commit which backup the commit is from. While that backup
//! has more commits, they are read from its WAL. Then a later backup follows on it if the end of
//! the earlier one's WAL is in the later one's, byte for byte, and both begin with the same tables:
//! the store has gone on from the commit that the copy has. Otherwise (tables made, renamed or
//! dropped, a roll-back, a bulk load, a gap, another store of the same origin) the copy takes over
//! a view of the later backup: it compares all tables and commits the differences.
//!
//! Invariant: between two calls the copy is its source as of one shipped commit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use terrane_io::files::{create_parents, read_file};
use terrane_io::{Disk, EntryKind};
use terrane_lsm::{
    Changes, Error as StoreError, FeedOptions, FollowOptions, FollowReport, FollowedCopy,
    FollowedTable, LOG_RECORDS_OFFSET, ReaderOptions, Store, StoreReader,
};

use crate::bucket::Bucket;
use crate::catalog::{BackupInfo, sha256_hex};
use crate::disk::{BucketDisk, CACHE_BYTES_DEFAULT};
use crate::error::{Error, Result};
use crate::manifest::{FileEntry, Manifest};
use crate::restore::{METADATA, METADATA_BYTES_MAX, Restoring};
use crate::stream::{Piece, Wanted};

/// End of the name of a directory that is not a copy yet.
const RESTORING: &str = ".restoring";

/// Note of a copy whose beginning was interrupted: from no backup that is known.
const UNKNOWN: &str = "unknown";

/// A copy of the store in a bucket, which takes over what is shipped there.
///
/// ```no_run
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use terrane_io::{Disk, RealDisk};
/// use terrane_lsm::FollowOptions;
/// use terrane_object::{Bucket, BucketFollower};
///
/// let bucket = Bucket::open("s3://ledger-backups/main")?;
/// let disk: Arc<dyn Disk> = RealDisk::auto();
/// let copy = (&disk, Path::new("/copy/ledger"));
/// let options = FollowOptions::default();
/// let mut follower = BucketFollower::open(&bucket, copy, &options, &mut |_done, _total| {})?;
/// follower.catch_up()?; // again and again, as often as news are wanted
/// assert!(follower.verify()?.iter().all(|table| table.is_equal()));
/// # Ok::<(), terrane_object::Error>(())
/// ```
#[derive(Debug)]
pub struct BucketFollower {
    bucket: Bucket,
    copy: FollowedCopy,
    reader_options: ReaderOptions,
    /// A backup without later commits that the copy was found equal to.
    seen: Option<String>,
}

impl BucketFollower {
    /// Opens the copy of the store in a bucket, or makes it: a restore of the newest backup in a
    /// directory that is missing (its parents are made) or empty. `progress` is told of the bytes
    /// of the restore.
    ///
    /// Cost: three requests to open a copy; the first time, those of [`Bucket::restore`].
    ///
    /// # Errors
    /// [`StoreError::NotAFollower`] if something else is in the directory, or a copy that was
    /// changed or follows another store; those of [`Bucket::restore`] and of opening a store.
    pub fn open(
        bucket: &Bucket,
        copy: (&Arc<dyn Disk>, &Path),
        options: &FollowOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let (disk, dir) = copy;
        let is_missing = match disk.kind(dir)? {
            None => true,
            Some(EntryKind::Directory) => disk.list(dir)?.is_empty(),
            Some(_) => false,
        };
        if is_missing {
            make(bucket, copy, options, progress)?;
        } else if !FollowedCopy::is_begun(copy, options)? {
            let reason = "it holds something else".to_owned();
            return Err(StoreError::NotAFollower { path: dir.to_owned(), reason }.into());
        }

        // The store's own file, which all of its copies share.
        let metadata = read_file(disk.as_ref(), &dir.join(METADATA), METADATA_BYTES_MAX)?;
        let catalog = bucket.catalog_with_backups()?;
        if sha256_hex(&metadata)[..32] != catalog.store {
            let reason = format!("it is no copy of the store in {}", bucket.address());
            return Err(StoreError::NotAFollower { path: dir.to_owned(), reason }.into());
        }
        let copy = FollowedCopy::open(copy, options)?;
        if copy.origin().is_empty() {
            let reason = "it follows a directory".to_owned();
            return Err(StoreError::NotAFollower { path: dir.to_owned(), reason }.into());
        }
        let mut reader_options = ReaderOptions::default();
        for operator in &options.merge_operators {
            reader_options = reader_options.merge_operator(operator.clone());
        }
        Ok(Self { bucket: bucket.clone(), copy, reader_options, seen: None })
    }

    /// The copy, for reading. Whoever commits to it ends its following.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.copy.store()
    }

    /// Where the copy is, and what was done since it was opened.
    #[must_use]
    pub fn report(&self) -> FollowReport {
        self.copy.report()
    }

    /// Takes over everything that was shipped, and makes it durable here. Returns where the copy is
    /// then.
    ///
    /// Cost: without news two reads and a list. With news 10 to 25 reads, and a read for each 1 MiB
    /// of the WAL; a view that is taken over is read as a whole.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::Missing`] (also if a backup is dropped meanwhile),
    /// [`Error::Damaged`], [`Error::Request`], [`Error::Store`]. The copy is at some commit of its
    /// source; the call may be repeated.
    pub fn catch_up(&mut self) -> Result<FollowReport> {
        loop {
            let backups = self.bucket.catalog_with_backups()?.backups;
            match self.step(&backups) {
                Ok(true) => {}
                Ok(false) => return Ok(self.report()),
                // A backup that is being read may be dropped.
                Err(error) => match self.bucket.catalog_with_backups() {
                    Ok(catalog) if catalog.backups != backups => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Compares all tables with those of the bucket as of the commit that the copy has, by their
    /// digests.
    ///
    /// Cost: a scan of all tables on both sides: a read for each 64 KiB to 1 MiB of the backup.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if that commit was dropped; those of [`catch_up`](Self::catch_up).
    pub fn verify(&mut self) -> Result<Vec<FollowedTable>> {
        self.catch_up()?;
        let disk = self.bucket.open_disk(Some(self.copy.source_commit()), CACHE_BYTES_DEFAULT)?;
        self.copy.compare(&self.reader(disk)?).map_err(of_store)
    }

    /// Makes everything durable and closes the copy.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(self) -> Result<()> {
        Ok(self.copy.close()?)
    }

    fn reader(&self, disk: Arc<BucketDisk>) -> Result<StoreReader> {
        let dir = disk.dir().to_owned();
        StoreReader::open(disk, &dir, &self.reader_options).map_err(of_store)
    }

    /// Takes over some of what the backups have; false if there is nothing more.
    fn step(&mut self, backups: &[BackupInfo]) -> Result<bool> {
        let at = self.copy.source_commit();
        let current = backups.iter().find(|info| info.id == self.copy.origin());
        let leads_on = |info: &&BackupInfo| info.base_commit <= at && at < info.commit;
        if let Some(info) = current.filter(leads_on) {
            self.apply(info)?;
            return Ok(true);
        }

        // The one that needs the fewest steps more, and of these the one with the least log.
        let age = |info: &&BackupInfo| (info.commit, info.base_commit);
        let Some(newest) = backups.iter().filter(|info| info.commit > at).max_by_key(age) else {
            return self.step_in_place(backups, current);
        };
        match backups.iter().filter(leads_on).max_by_key(age) {
            Some(info) if self.goes_on(current, info)? => self.apply(info)?,
            _ => self.take_over(newest)?,
        }
        Ok(true)
    }

    /// Without later commits: takes over a newer backup of the same commit, if its list of tables
    /// is another one.
    fn step_in_place(
        &mut self,
        backups: &[BackupInfo],
        current: Option<&BackupInfo>,
    ) -> Result<bool> {
        let at = self.copy.source_commit();
        // Backups stand in the order in which they were made.
        let Some(newest) = backups.iter().rfind(|info| info.commit == at) else { return Ok(false) };
        let is_known = newest.id == self.copy.origin() || self.seen.as_ref() == Some(&newest.id);
        if is_known || self.goes_on(current, newest)? {
            self.seen = Some(newest.id.clone());
            return Ok(false);
        }
        self.take_over(newest)?;
        self.seen = Some(newest.id.clone());
        Ok(true)
    }

    /// Applies the commits that a backup has behind that of the copy.
    fn apply(&mut self, info: &BackupInfo) -> Result<()> {
        let disk = self.bucket.disk_of_backup(info, CACHE_BYTES_DEFAULT)?;
        let dir = disk.dir().to_owned();
        let from = self.copy.source_commit() + 1;
        let feed = FeedOptions::default();
        let told = match Changes::open(disk, &dir, &self.reader_options, from, &feed) {
            Ok(changes) => self.copy.take_all(&mut changes.of_copy(), &info.id),
            Err(error) => Err(error),
        };
        match told {
            Ok(true) if self.copy.source_commit() == info.commit => Ok(()),
            // The WAL does not tell all of it.
            Ok(_) | Err(StoreError::FeedGap { .. }) => self.take_over(info),
            Err(error) => Err(of_store(error)),
        }
    }

    fn take_over(&mut self, info: &BackupInfo) -> Result<()> {
        let reader = self.reader(self.bucket.disk_of_backup(info, CACHE_BYTES_DEFAULT)?)?;
        self.copy.take_over(&reader, &info.id).map_err(of_store)
    }

    /// Whether a store has gone on from the end of one backup to another one: the end of the first
    /// one's WAL is in the second one's, and the tables at both bases are the same.
    fn goes_on(&self, current: Option<&BackupInfo>, next: &BackupInfo) -> Result<bool> {
        let Some(current) = current else { return Ok(false) };
        let (current, next) = (self.bucket.manifest(current)?, self.bucket.manifest(next)?);
        if (&current.tables, current.next_table) != (&next.tables, next.next_table) {
            return Ok(false);
        }
        let Some((one, other)) = segment_in_both(&current, &next) else { return Ok(false) };
        // The header has the seal, which comes later.
        let end = one.bytes;
        Ok(end <= other.bytes && self.records(one, end)? == self.records(other, end)?)
    }

    /// SHA-256 of the records of a segment up to a byte.
    fn records(&self, segment: &FileEntry, end: u64) -> Result<[u8; 32]> {
        let mut records = Sha256::new();
        let wanted = [Wanted { key: segment.object.clone(), from: LOG_RECORDS_OFFSET, bytes: end }];
        self.bucket.stream(&wanted, &mut |Piece { bytes, .. }| {
            records.update(&bytes?);
            Ok(())
        })?;
        Ok(records.finalize().into())
    }
}

/// An error of the engine; the error of a request if one is its cause.
fn of_store(error: StoreError) -> Error {
    let request = match &error {
        StoreError::Disk(terrane_io::Error::Io { source, .. }) => {
            source.get_ref().and_then(|cause| cause.downcast_ref::<Error>()).cloned()
        }
        _ => None,
    };
    request.unwrap_or_else(|| error.into())
}

/// The last segment of one backup, in this one and in another one.
fn segment_in_both<'a>(
    one: &'a Manifest,
    other: &'a Manifest,
) -> Option<(&'a FileEntry, &'a FileEntry)> {
    let tail = one.log().last().copied()?;
    let (number, first, _) = tail.kind.log()?;
    let is_it =
        |file: &&&FileEntry| file.kind.log().is_some_and(|(n, f, _)| (n, f) == (number, first));
    Some((tail, other.log().iter().find(is_it)?))
}

/// Makes the copy in a directory that is missing or empty.
fn make(
    bucket: &Bucket,
    (disk, dir): (&Arc<dyn Disk>, &Path),
    options: &FollowOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    create_parents(disk.as_ref(), dir)?;
    let mut beside = OsString::from(dir);
    beside.push(RESTORING);
    let beside = PathBuf::from(beside);

    // A store there is a restore that has ended, and perhaps a copy.
    let is_restored = disk.kind(&beside.join(METADATA))?.is_some();
    let origin = if is_restored {
        UNKNOWN.to_owned()
    } else {
        let restoring = Restoring::new(&beside).on_disk(Arc::clone(disk));
        bucket.restore(&restoring, progress)?.id
    };
    if !FollowedCopy::is_begun((disk, &beside), options)? {
        FollowedCopy::begin((disk, &beside), options, &origin)?;
    }

    if disk.kind(dir)?.is_some() {
        disk.remove_dir(dir)?;
    }
    disk.rename(&beside, dir)?;
    disk.sync_dir(dir.parent().unwrap_or(Path::new(".")))?;
    Ok(())
}

//! Restore: a store in an empty directory, as of a commit that a backup reaches.
//!
//! **Order.** The file `metadata.restoring`, a copy of `metadata`, is written first. Each file is
//! written under a temporary name, checked against its SHA-256, synced and renamed. The manifests
//! follow, and last `metadata.restoring` gets its real name. A directory without `metadata` is no
//! store, so a crash at any point leaves no store or the whole one.
//!
//! **Resuming.** A directory with `metadata.restoring` of the same store is gone on with: files
//! that are whole stay, a file that was cut short is continued, files of another commit are
//! removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use sha2::{Digest, Sha256};
use terrane_io::files::{create_dirs, read_file, replace_file_as};
use terrane_io::{Access, Disk, DiskFile, EntryKind, OpenMode, RealDisk};

use crate::bucket::Bucket;
use crate::catalog::{hex, sha256_hex};
use crate::error::{Error, Result};
use crate::point::{Content, Point, PointFile};
use crate::stream::{Piece, Wanted};

/// Name of `metadata` until the restore is whole.
const RESTORING: &str = "metadata.restoring";

/// Name of `metadata`.
pub(crate) const METADATA: &str = "metadata";

/// End of the name of a file that is not whole yet.
const PARTIAL: &str = ".partial";

/// Folders of a store that a restore makes.
const FOLDERS: [&str; 3] = ["active", "log", "snapshots"];

/// Longest `metadata` that is read.
pub(crate) const METADATA_BYTES_MAX: u64 = 4096;

/// Bytes of a local file that are hashed at once.
const HASHED_BYTES: u64 = 1 << 20;

/// How a store is restored.
#[derive(Debug, Clone)]
pub struct Restoring {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    commit: Option<u64>,
}

impl Restoring {
    /// Into a directory of the real disk, which is missing, empty, or holds an interrupted restore:
    /// the last commit.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { disk: RealDisk::auto(), dir: dir.into(), commit: None }
    }

    /// The same on another disk.
    #[must_use]
    pub fn on_disk(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk, ..self }
    }

    /// The same, as of this commit.
    #[must_use]
    pub fn commit(self, commit: impl Into<Option<u64>>) -> Self {
        Self { commit: commit.into(), ..self }
    }
}

/// Report of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Name of the backup.
    pub id: String,
    /// The commit that the store has now.
    pub commit: u64,
    /// Files that were written.
    pub files_written: u64,
    /// Bytes that were downloaded.
    pub bytes_downloaded: u64,
    /// Files that an interrupted restore had written.
    pub files_kept: u64,
}

impl Bucket {
    /// Restores a store: downloads the files of a backup, several ranges at a time, and checks each
    /// file. Called again after an interruption, it goes on where it was.
    ///
    /// Cost: a read for each file, or for each 4 MiB of it; five requests besides. Memory: 64 MiB.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::Unreachable`], [`Error::TargetNotEmpty`], [`Error::Missing`],
    /// [`Error::Damaged`], [`Error::Request`], [`Error::Disk`].
    pub fn restore(
        &self,
        restoring: &Restoring,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RestoreReport> {
        let Restoring { disk, dir, commit } = restoring;
        let point = self.point(*commit)?;
        let mut target = Target { disk: disk.as_ref(), dir };
        let is_begun = target.is_begun(&point)?;
        if !is_begun {
            create_dirs(disk.as_ref(), dir)?;
            let path = dir.join(RESTORING);
            replace_file_as(disk.as_ref(), &path, &point.metadata, OpenMode::CreatePrivate)?;
        }
        for folder in FOLDERS.map(|folder| dir.join(folder)) {
            if disk.kind(&folder)?.is_none() {
                disk.create_dir(&folder)?;
            }
        }
        disk.sync_dir(dir)?;
        if is_begun {
            target.remove_others(&point)?;
        }
        let report = self.download(&point, &mut target, progress)?;
        target.publish(&point)?;
        Ok(report)
    }

    fn download(
        &self,
        point: &Point,
        target: &mut Target<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RestoreReport> {
        let mut report = RestoreReport {
            id: point.info.id.clone(),
            commit: point.commit,
            files_written: 0,
            bytes_downloaded: 0,
            files_kept: 0,
        };
        let total: u64 = point.files.iter().map(|file| file.bytes).sum();
        let mut done = 0;

        let mut missing = Vec::new();
        for file in &point.files {
            let is_last = file.path == METADATA || file.path.starts_with("manifest.");
            match &file.content {
                _ if is_last => done += file.bytes,
                Content::Bytes(bytes) => {
                    let path = target.dir.join(&file.path);
                    replace_file_as(target.disk, &path, bytes, OpenMode::CreateNew)?;
                    report.files_written += 1;
                    done += file.bytes;
                }
                Content::Object { sha256, .. } if target.has(file, sha256)? => {
                    report.files_kept += 1;
                    done += file.bytes;
                }
                Content::Object { .. } => missing.push(file),
            }
        }

        // Comes to an end: what is fetched again is not gone on with, and fails if it is wrong.
        while !missing.is_empty() {
            let mut begun = Vec::new();
            let mut wanted = Vec::new();
            for file in &missing {
                let Content::Object { key, sha256 } = &file.content else { continue };
                let unfinished = target.begin(file, key, sha256)?;
                done += unfinished.written;
                let from = unfinished.written;
                wanted.push(Wanted { key: key.clone(), from, bytes: file.bytes });
                begun.push(unfinished);
            }
            progress(done, total);

            self.stream(&wanted, &mut |Piece { at, bytes }| {
                let bytes = bytes?;
                report.bytes_downloaded += bytes.len() as u64;
                done += bytes.len() as u64;
                begun[at].write(&bytes)?;
                progress(done, total);
                // Few files are open and not synced at a time.
                if begun[at].is_whole() { begun[at].finish(target.disk) } else { Ok(()) }
            })?;

            let mut again = Vec::new();
            for (file, mut unfinished) in missing.into_iter().zip(begun) {
                if unfinished.state == State::Open {
                    unfinished.finish(target.disk)?;
                }
                if unfinished.state == State::Discarded {
                    done -= file.bytes;
                    again.push(file);
                } else {
                    report.files_written += 1;
                }
            }
            missing = again;
        }

        for folder in FOLDERS {
            target.disk.sync_dir(&target.dir.join(folder))?;
        }
        for file in point.files.iter().filter(|file| file.path.starts_with("manifest.")) {
            let bytes = match &file.content {
                Content::Bytes(bytes) => bytes.to_vec(),
                Content::Object { key, sha256 } => {
                    let bytes =
                        self.get(key)?.ok_or_else(|| Error::Missing { key: key.clone() })?;
                    if sha256_hex(&bytes) != *sha256 {
                        return Err(Error::damaged(key, "its bytes are not those that were put"));
                    }
                    report.bytes_downloaded += bytes.len() as u64;
                    bytes.to_vec()
                }
            };
            let path = target.dir.join(&file.path);
            replace_file_as(target.disk, &path, &bytes, OpenMode::CreateNew)?;
            report.files_written += 1;
        }
        Ok(report)
    }
}

/// The directory of a restore.
struct Target<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
}

impl Target<'_> {
    /// Whether an interrupted restore of this store is there; otherwise the directory is empty or
    /// missing.
    fn is_begun(&self, point: &Point) -> Result<bool> {
        let not_empty = || Error::TargetNotEmpty { path: self.dir.to_owned() };
        match self.disk.kind(self.dir)? {
            None => return Ok(false),
            Some(EntryKind::Directory) => {}
            Some(_) => return Err(not_empty()),
        }
        let entries = self.disk.list(self.dir)?;
        let is_rest = |name: &str| name == format!("{RESTORING}.tmp");
        if entries.iter().all(|entry| is_rest(&entry.name)) {
            return Ok(false);
        }
        if entries.iter().any(|entry| entry.name == METADATA)
            || !entries.iter().any(|entry| entry.name == RESTORING)
        {
            return Err(not_empty());
        }
        let there = read_file(self.disk, &self.dir.join(RESTORING), METADATA_BYTES_MAX)?;
        if there == point.metadata { Ok(true) } else { Err(not_empty()) }
    }

    /// Removes files that this restore does not have, as of another commit.
    fn remove_others(&self, point: &Point) -> Result<()> {
        for folder in FOLDERS {
            for entry in self.disk.list(&self.dir.join(folder))? {
                let path = format!("{folder}/{}", entry.name);
                let whole = path.strip_suffix(PARTIAL).unwrap_or(&path);
                if entry.kind == EntryKind::File
                    && !point.files.iter().any(|file| file.path == whole)
                {
                    self.disk.remove(&self.dir.join(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Whether a whole file is there.
    fn has(&self, file: &PointFile, sha256: &str) -> Result<bool> {
        let path = self.dir.join(&file.path);
        if self.disk.kind(&path)? != Some(EntryKind::File) {
            return Ok(false);
        }
        let there = self.disk.open(&path, OpenMode::Read, Access::Buffered)?;
        let is_whole = there.len()? == file.bytes
            && hex(&hash(there.as_ref(), file.bytes)?.finalize()) == sha256;
        drop(there);
        if !is_whole {
            self.disk.remove(&path)?;
        }
        Ok(is_whole)
    }

    /// Begins a file, or goes on with it.
    fn begin(&self, file: &PointFile, key: &str, sha256: &str) -> Result<Unfinished> {
        let path = self.dir.join(&file.path);
        let mut partial = path.clone().into_os_string();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);

        let mut sum = Sha256::new();
        let mut written = 0;
        let open = |mode| self.disk.open(&partial, mode, Access::Buffered);
        let there = if self.disk.kind(&partial)? == Some(EntryKind::File) {
            let there = open(OpenMode::ReadWrite)?;
            written = there.len()?;
            if written > file.bytes {
                there.set_len(0)?;
                written = 0;
            }
            sum = hash(there.as_ref(), written)?;
            there
        } else {
            open(OpenMode::CreateNew)?
        };
        Ok(Unfinished {
            file: there,
            temporary: partial,
            path,
            key: key.to_owned(),
            sha256: sha256.to_owned(),
            bytes: file.bytes,
            written,
            is_resumed: written > 0,
            sum,
            state: State::Open,
        })
    }

    /// Makes the directory a store.
    fn publish(&self, point: &Point) -> Result<()> {
        debug_assert!(!point.metadata.is_empty(), "a store has metadata");
        self.disk.sync_dir(self.dir)?;
        self.disk.rename(&self.dir.join(RESTORING), &self.dir.join(METADATA))?;
        self.disk.sync_dir(self.dir)?;
        Ok(())
    }
}

/// SHA-256 of the first bytes of a file.
fn hash(file: &dyn DiskFile, bytes: u64) -> Result<Sha256> {
    let mut sum = Sha256::new();
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < bytes {
        buffer.resize((bytes - at).min(HASHED_BYTES) as usize, 0);
        file.read_at(&mut buffer, at)?;
        sum.update(&buffer);
        at += buffer.len() as u64;
    }
    Ok(sum)
}

/// State of a file that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Whole, checked, synced and renamed.
    Finished,
    /// Removed, since the part that an earlier restore had written was wrong.
    Discarded,
}

/// A file that is being written. Invariant: `sum` is that of the first `written` bytes.
struct Unfinished {
    file: Arc<dyn DiskFile>,
    temporary: PathBuf,
    path: PathBuf,
    key: String,
    sha256: String,
    bytes: u64,
    written: u64,
    is_resumed: bool,
    sum: Sha256,
    state: State,
}

impl Unfinished {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(bytes, self.written)?;
        self.sum.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.written == self.bytes
    }

    /// Checks the file and gives it its name. Removes a file that is not what was put: after a loss
    /// of power the part from before may lack sectors, and the object is fetched once more.
    fn finish(&mut self, disk: &dyn Disk) -> Result<()> {
        debug_assert!(self.is_whole(), "all bytes were written");
        let found = hex(&std::mem::take(&mut self.sum).finalize());
        if found == self.sha256 {
            self.file.sync()?;
            disk.rename(&self.temporary, &self.path)?;
            self.state = State::Finished;
            return Ok(());
        }

        disk.remove(&self.temporary)?;
        self.state = State::Discarded;
        if self.is_resumed {
            return Ok(());
        }
        Err(Error::damaged(&self.key, "its bytes are not those that were put"))
    }
}

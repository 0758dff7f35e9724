//! Point in time: the files of a store as of a commit that a backup reaches.
//!
//! All files but three are objects as they are. If the commit is not the last one of the backup,
//! the segment with the commit is cut behind its record, later segments are left out, and both
//! copies of the manifest lose the versions behind it.

use std::sync::Arc;

use terrane_lsm::{cut_log, manifest_until};

use crate::bucket::Bucket;
use crate::catalog::{BackupInfo, sha256_hex};
use crate::error::{Error, Result};
use crate::manifest::{FileEntry, Kind, Manifest};

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// In an object.
    Object { key: String, sha256: String },
    /// Here.
    Bytes(Arc<Vec<u8>>),
}

/// A file of a store as of a commit.
#[derive(Debug, Clone)]
pub(crate) struct PointFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) content: Content,
}

/// A store as of a commit.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) info: BackupInfo,
    pub(crate) commit: u64,
    pub(crate) files: Vec<PointFile>,
    /// The file `metadata`.
    pub(crate) metadata: Vec<u8>,
}

/// Ranges of commits that backups reach, merged, as text.
pub(crate) fn reachable(backups: &[BackupInfo]) -> String {
    let mut ranges: Vec<(u64, u64)> =
        backups.iter().map(|backup| (backup.base_commit, backup.commit)).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    let shown = merged.iter().map(|(first, last)| format!("{first} to {last}"));
    shown.collect::<Vec<_>>().join(", ")
}

impl Bucket {
    /// The store as of a commit, or as of the last one.
    ///
    /// # Errors
    /// [`Error::NoBackup`], [`Error::Unreachable`], and those of reading catalog, manifest and
    /// files.
    pub(crate) fn point(&self, commit: Option<u64>) -> Result<Point> {
        let backups = self.catalog_with_backups()?.backups;
        // The newest base needs the least of the log.
        let reaches = |backup: &&BackupInfo| {
            commit.is_none_or(|at| (backup.base_commit..=backup.commit).contains(&at))
        };
        let age = |backup: &&BackupInfo| match commit {
            Some(_) => (backup.base_commit, backup.commit),
            None => (backup.commit, backup.base_commit),
        };
        let Some(info) = backups.iter().filter(reaches).max_by_key(age) else {
            let reachable = reachable(&backups);
            return Err(Error::Unreachable { commit: commit.unwrap_or(0), reachable });
        };
        let manifest = self.manifest(info)?;
        let at = commit.unwrap_or(info.commit);
        self.point_of(info.clone(), &manifest, at)
    }

    /// The store as of the last commit of a backup.
    ///
    /// # Errors
    /// Those of reading manifest and files.
    pub(crate) fn point_of_backup(&self, info: &BackupInfo) -> Result<Point> {
        self.point_of(info.clone(), &self.manifest(info)?, info.commit)
    }

    fn point_of(&self, info: BackupInfo, manifest: &Manifest, commit: u64) -> Result<Point> {
        let whole = |path: &str| -> Result<Vec<u8>> {
            let file = manifest.file(path);
            let file = file.ok_or_else(|| Error::Missing { key: path.to_owned() })?;
            self.whole(file)
        };
        let metadata = whole("metadata")?;
        let as_is = |file: &FileEntry| PointFile {
            path: file.path.clone(),
            bytes: file.bytes,
            content: Content::Object { key: file.object.clone(), sha256: file.sha256.clone() },
        };
        if commit == manifest.commit {
            let files = manifest.files.iter().map(as_is).collect();
            return Ok(Point { info, commit, files, metadata });
        }

        let here = |path: &str, bytes: Vec<u8>| PointFile {
            path: path.to_owned(),
            bytes: bytes.len() as u64,
            content: Content::Bytes(Arc::new(bytes)),
        };
        let until = manifest_until(&whole("manifest.a")?, commit)?;
        // Of two segments that meet at the commit the later one is cut, before its first record:
        // the base may name it.
        let last = manifest
            .log()
            .into_iter()
            .rfind(|file| file.kind.log().is_some_and(|(_, first, _)| first <= commit + 1));
        let last = last.and_then(|file| file.kind.log()).map_or(0, |(number, ..)| number);

        let mut files = Vec::new();
        for file in &manifest.files {
            match file.kind {
                Kind::Manifest => files.push(here(&file.path, until.clone())),
                Kind::Log { number, .. } if number > last => {}
                Kind::Log { number, .. } if number == last => {
                    let segment = self.whole(file)?;
                    files.push(here(&file.path, cut_log(&metadata, number, &segment, commit)?));
                }
                _ => files.push(as_is(file)),
            }
        }
        Ok(Point { info, commit, files, metadata })
    }

    /// Reads the whole copy of a small file, and checks it.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Request`].
    pub(crate) fn whole(&self, file: &FileEntry) -> Result<Vec<u8>> {
        let key = &file.object;
        let bytes = self.get(key)?.ok_or_else(|| Error::Missing { key: key.clone() })?;
        if bytes.len() as u64 != file.bytes || sha256_hex(&bytes) != file.sha256 {
            return Err(Error::damaged(key, "its bytes are not those that were put"));
        }
        Ok(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let backup = |base_commit, commit| BackupInfo {
            id: String::new(),
            base_commit,
            commit,
            created_unix_s: 0,
            bytes: 0,
            files: 0,
            manifest: String::new(),
            manifest_sha256: String::new(),
        };
        let backups = [backup(9, 12), backup(1, 4), backup(5, 7), backup(3, 6)];
        assert_eq!(reachable(&backups), "1 to 7, 9 to 12");
    }
}

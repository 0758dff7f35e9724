//! Manifest of a backup: the files of a store as of one commit, and the objects that hold them.
//!
//! Invariants: a manifest never changes. Segments of the WAL have all numbers and all commits
//! without a gap, from the base to the last commit of the backup.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use terrane_lsm::{StoreFile, StoreFileKind, TableSet};

use crate::bucket::Bucket;
use crate::catalog::{BackupInfo, decode_document, encode_document, sha256_hex};
use crate::error::{Error, Result};

/// Folder of the manifests.
pub(crate) const MANIFESTS: &str = "backups";

/// Folder of the copies of files.
pub(crate) const DATA: &str = "data";

/// First word of a manifest.
pub(crate) const MANIFEST_KIND: &str = "terrane-backup";

/// Kind of a file, with its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Kind {
    Metadata,
    Manifest,
    Snapshot,
    /// `name` is identity and footer sum of the run.
    Run {
        name: String,
    },
    Blobs {
        name: String,
    },
    Log {
        number: u64,
        first: u64,
        last: u64,
        sealed: bool,
    },
}

/// A file of the store, and its copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// Path in the store's directory.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// Name of the object.
    pub(crate) object: String,
    #[serde(flatten)]
    pub(crate) kind: Kind,
}

/// A named table at the base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableEntry {
    pub(crate) id: u64,
    pub(crate) name: String,
}

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) id: String,
    pub(crate) store: String,
    /// Number of the store's manifest.
    pub(crate) sequence: u64,
    pub(crate) base_commit: u64,
    pub(crate) commit: u64,
    pub(crate) next_table: u64,
    pub(crate) tables: Vec<TableEntry>,
    pub(crate) files: Vec<FileEntry>,
}

impl Kind {
    /// The kind of a file of a store.
    pub(crate) fn of(file: &StoreFile) -> Result<Self> {
        let name = |identity: u64, sum: u32| format!("{identity:016x}-{sum:08x}");
        Ok(match file.kind {
            StoreFileKind::Metadata => Self::Metadata,
            StoreFileKind::Manifest => Self::Manifest,
            StoreFileKind::Snapshot => Self::Snapshot,
            StoreFileKind::Run { identity, sum } => Self::Run { name: name(identity, sum) },
            StoreFileKind::Blobs { identity, sum } => Self::Blobs { name: name(identity, sum) },
            StoreFileKind::Log { number, first, last, sealed } => {
                Self::Log { number, first, last, sealed }
            }
            // A kind that a later engine lists cannot be restored by this program.
            _ => return Err(Error::damaged(&file.path, "unknown kind of file")),
        })
    }

    /// Beginning of the object's name.
    pub(crate) fn stem(&self) -> String {
        match self {
            Self::Metadata => "metadata".to_owned(),
            Self::Manifest => "manifest".to_owned(),
            Self::Snapshot => "snapshot".to_owned(),
            Self::Run { name } => format!("run-{name}"),
            Self::Blobs { name } => format!("blobs-{name}"),
            Self::Log { number, first, last, .. } => format!("log-{number:08}-{first}-{last}"),
        }
    }

    /// Whether name and length alone say what the bytes are.
    pub(crate) fn is_sealed_run(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::Blobs { .. })
    }

    pub(crate) fn log(&self) -> Option<(u64, u64, u64)> {
        match *self {
            Self::Log { number, first, last, .. } => Some((number, first, last)),
            _ => None,
        }
    }
}

/// Name of the object of a file that an upload puts.
pub(crate) fn data_key(kind: &Kind, place: usize, upload: &str) -> String {
    format!("{DATA}/{}-{place}.{upload}", kind.stem())
}

/// The upload in the name of an object, whether copy or manifest.
pub(crate) fn upload_of(key: &str) -> Option<&str> {
    key.strip_suffix(".json").unwrap_or(key).rsplit_once('.').map(|(_, upload)| upload)
}

/// Beginning of an object's name up to its place in the upload, and folder.
pub(crate) fn stem_of(key: &str) -> Option<&str> {
    let name = key.strip_prefix(DATA)?.strip_prefix('/')?;
    let (stem, _upload) = name.rsplit_once('.')?;
    stem.rsplit_once('-').map(|(stem, _place)| stem)
}

pub(crate) fn manifest_key(id: &str, upload: &str) -> String {
    format!("{MANIFESTS}/{id}.{upload}.json")
}

impl Manifest {
    pub(crate) fn has_tables(&self, tables: &TableSet) -> bool {
        let own = self.tables.iter().map(|table| (table.id, table.name.as_str()));
        self.next_table == tables.next_table
            && own.eq(tables.tables.iter().map(|(id, name)| (*id, name.as_str())))
    }

    /// Segments of the WAL, ascending.
    pub(crate) fn log(&self) -> Vec<&FileEntry> {
        let mut log: Vec<&FileEntry> =
            self.files.iter().filter(|file| file.kind.log().is_some()).collect();
        log.sort_by_key(|file| file.kind.log());
        log
    }

    /// The file at a path.
    pub(crate) fn file(&self, path: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The entry of a catalog about this backup, with the bytes of the manifest.
    pub(crate) fn entry(&self, upload: &str, created_unix_s: u64) -> (BackupInfo, bytes::Bytes) {
        let document = encode_document(MANIFEST_KIND, self);
        let info = BackupInfo {
            id: self.id.clone(),
            base_commit: self.base_commit,
            commit: self.commit,
            created_unix_s,
            bytes: self.bytes(),
            files: self.files.len() as u64,
            manifest: manifest_key(&self.id, upload),
            manifest_sha256: sha256_hex(&document),
        };
        (info, document)
    }

    /// Whether all paths are those of a store's files, so that none leads out of a directory.
    fn check(&self, key: &str, info: &BackupInfo) -> Result<()> {
        let broken = |reason: String| Err(Error::damaged(key, reason));
        let is_told = (self.base_commit, self.commit) == (info.base_commit, info.commit)
            && self.id == info.id;
        if !is_told {
            return broken("the catalog tells something else".to_owned());
        }

        let mut paths = BTreeSet::new();
        for file in &self.files {
            let parts: Vec<&str> = file.path.split('/').collect();
            let is_name = |part: &&str| {
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_letter)
            };
            if parts.len() > 2 || !parts.iter().all(is_name) || !paths.insert(&file.path) {
                return broken(format!("`{}` is no file of a store, or there twice", file.path));
            }
            if !file.object.starts_with(DATA) {
                return broken(format!("`{}` is no copy of a file", file.object));
            }
        }
        for path in ["metadata", "manifest.a", "manifest.b"] {
            if !paths.contains(&path.to_owned()) {
                return broken(format!("no {path}"));
            }
        }
        Ok(())
    }
}

impl Bucket {
    /// The manifest of a backup.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::UnknownVersion`], [`Error::Request`].
    pub(crate) fn manifest(&self, info: &BackupInfo) -> Result<Manifest> {
        let key = &info.manifest;
        let bytes = self.get(key)?.ok_or_else(|| Error::Missing { key: key.clone() })?;
        if sha256_hex(&bytes) != info.manifest_sha256 {
            return Err(Error::damaged(key, "its checksum is not the catalog's"));
        }
        let manifest: Manifest = decode_document(MANIFEST_KIND, key, &bytes)?;
        manifest.check(key, info)?;
        Ok(manifest)
    }
}

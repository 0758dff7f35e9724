//! The manifest of a store: its named tables, the files that they need, and where the log goes on from there.
//!
//! There are two copies, each whole when it gets its name. So a copy that is damaged later costs nothing: it is
//! written again when the store is opened. A store that never had a named table has none.
//!
//! Nothing is committed before a manifest is durable, and none is ever removed. So where both copies are missing and the
//! log has been written to, they were lost. (A store without a log, or without commits, cannot be told from a
//! session that has no named tables then.)
//!
//! Invariant: what a manifest names is durable before the manifest is written, and stays until both copies
//! name it no more.

#![doc = include_str!("../../../docs/format/store.md")]

use std::path::{Path, PathBuf};

use terrane_io::Disk;
use terrane_io::bytes::Writer;
use terrane_io::disk::read_file;

use crate::error::{Error, Result};
use crate::log;
use crate::manifest::{self, MANIFEST_BYTES_MAX, Refused, SnapshotMeta};

/// First bytes of a manifest.
pub(crate) const STORE_MAGIC: [u8; 8] = *b"TerraMan";

/// Version of manifests.
pub(crate) const STORE_VERSION: u32 = 1;

/// The names of its copies.
pub(crate) const COPIES: [&str; 2] = ["manifest.a", "manifest.b"];

/// A named table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedMeta {
    /// Never used again, also after the table was dropped.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) meta: SnapshotMeta,
}

/// The state of all named tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StoreManifest {
    /// Counts manifests.
    pub(crate) sequence: u64,
    /// The last commit that is in the tables.
    pub(crate) commit: u64,
    /// The first segment of the log that is needed.
    pub(crate) segment: u64,
    /// The number of the next table.
    pub(crate) next_table: u64,
    /// By number.
    pub(crate) tables: Vec<NamedMeta>,
}

impl Found {
    /// Both manifests.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &StoreManifest> {
        self.manifest.iter().chain(&self.older)
    }
}

impl StoreManifest {
    /// The numbers of all run files that the tables need; of several tables as often.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.tables.iter().flat_map(|table| table.meta.numbers())
    }

    /// Whether both have the same tables under the same names.
    pub(crate) fn has_tables_of(&self, other: &Self) -> bool {
        let is_same =
            |(one, other): (&NamedMeta, &NamedMeta)| (one.id, &one.name) == (other.id, &other.name);
        self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(is_same)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&STORE_MAGIC).u32(STORE_VERSION);
        out.u64(self.sequence).u64(self.commit).u64(self.segment).u64(self.next_table);
        out.u32(self.tables.len() as u32);
        for table in &self.tables {
            out.u64(table.id).string(table.name.as_bytes()).string(&table.meta.encode());
        }
        manifest::close(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refused> {
        let mut input = manifest::open(bytes, STORE_MAGIC, STORE_VERSION)?;
        let (sequence, commit) = (input.u64()?, input.u64()?);
        let (segment, next_table) = (input.u64()?, input.u64()?);
        let mut tables: Vec<NamedMeta> = Vec::new();
        for _ in 0..input.u32()? {
            let id = input.u64()?;
            let Ok(name) = std::str::from_utf8(input.string()?) else {
                return manifest::damaged("name of a table is not UTF-8");
            };
            let meta = SnapshotMeta::decode(input.string()?)?;
            if id >= next_table || tables.last().is_some_and(|last| last.id >= id) {
                return manifest::damaged("numbers of tables out of order");
            }
            if tables.iter().any(|table| table.name == name) {
                return manifest::damaged("two tables of one name");
            }
            tables.push(NamedMeta { id, name: name.to_owned(), meta });
        }
        if !input.rest().is_empty() {
            return manifest::damaged("bytes after the end");
        }
        Ok(Self { sequence, commit, segment, next_table, tables })
    }
}

/// What the copies of a manifest say.
#[derive(Debug)]
pub(crate) struct Found {
    /// The newest; `None` if there never was one.
    pub(crate) manifest: Option<StoreManifest>,
    /// The other one, if it is whole and older. What it names must stay until it is written anew: the newest may
    /// be seen and yet not be durable.
    pub(crate) older: Option<StoreManifest>,
    /// Copies that are missing or not whole.
    pub(crate) stale: Vec<PathBuf>,
    /// What is wrong with those that are there and not whole.
    pub(crate) damage: Vec<(PathBuf, String)>,
}

/// Reads the manifest of the store in `dir`.
///
/// # Errors
/// [`Error::StoreCorrupted`] if there was one and no copy is whole, [`Error::UnknownVersion`],
/// [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Found> {
    let mut found = Found { manifest: None, older: None, stale: Vec::new(), damage: Vec::new() };
    let mut whole = Vec::new();
    for name in COPIES {
        let path = dir.join(name);
        let bytes = match read_file(disk, &path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                found.stale.push(path);
                continue;
            }
            Err(error) if error.kind() == Some(std::io::ErrorKind::FileTooLarge) => {
                found.damage.push((path, "larger than any manifest".to_owned()));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        match StoreManifest::decode(&bytes) {
            Ok(manifest) => whole.push(manifest),
            Err(Refused::Damaged(reason)) => found.damage.push((path, reason)),
            Err(Refused::Version { found, newest }) => {
                return Err(Error::UnknownVersion { path, found, newest });
            }
        }
    }
    let newest = whole.iter().map(|manifest: &StoreManifest| manifest.sequence).max();
    for manifest in whole {
        if Some(manifest.sequence) == newest {
            found.manifest.get_or_insert(manifest);
        } else {
            found.older = Some(manifest);
        }
    }
    if found.manifest.is_none() {
        let damage = match found.damage.first().cloned() {
            Some(damage) => Some(damage),
            None => lost(disk, dir)?,
        };
        if let Some((path, reason)) = damage {
            return Err(Error::StoreCorrupted { path, reason });
        }
    }
    found.stale.extend(found.damage.iter().map(|(path, _)| path.clone()));
    Ok(found)
}

/// Where there is no copy of the manifest: whether there must have been one; the path of a copy and the reason.
///
/// # Errors
/// [`Error::UnknownVersion`], [`Error::Disk`].
pub(crate) fn lost(disk: &dyn Disk, dir: &Path) -> Result<Option<(PathBuf, String)>> {
    let Some(number) = log::written_segment(disk, dir)? else { return Ok(None) };
    for name in COPIES {
        // Beside a writer the first one may have come meanwhile; it came before any commit.
        if disk.kind(&dir.join(name))?.is_some() {
            return Ok(None);
        }
    }
    let segment = log::segment_name(number);
    let reason = format!("both copies of the manifest are missing, and {segment} has commits");
    Ok(Some((dir.join(COPIES[0]), reason)))
}

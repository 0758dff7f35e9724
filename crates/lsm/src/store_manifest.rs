//! The manifest of a store: its named tables, the files that they need, and where the log goes on from there.
//!
//! There are two copies, each whole when it gets its name. So a copy that is damaged later costs nothing: it is
//! written again when the store is opened. A store that never had a named table has none.
//!
//! Nothing is committed before a manifest is durable, and none is ever removed. So where both copies are missing and the
//! log has been written to, or has had more than one segment, they were lost. (A store without a log cannot be told from
//! a session that has no named tables then.)
//!
//! Invariant: what a manifest names is durable before the manifest is written, and stays until both copies
//! name it no more.

#![doc = include_str!("../../../docs/format/store.md")]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrane_io::Disk;
use terrane_io::bytes::{Reader, Writer};
use terrane_io::disk::read_file;

use crate::error::{Error, Result, unreadable};
use crate::log;
use crate::manifest::{self, MANIFEST_BYTES_MAX, Refused, SnapshotMeta};
use crate::trace::event;

/// First bytes of a manifest.
pub(crate) const STORE_MAGIC: [u8; 8] = *b"TerraMan";

/// Version of manifests.
pub(crate) const STORE_VERSION: u32 = 1;

/// The largest number in a manifest. No store reaches it, and there is room to count on from it.
const COUNT_MAX: u64 = 1 << 62;

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

impl NamedMeta {
    /// Whether both are the same table under the same name.
    fn is_same_table(&self, other: &Self) -> bool {
        (self.id, &self.name) == (other.id, &other.name)
    }
}

/// The state of all named tables after a commit, kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VersionMeta {
    /// That commit.
    pub(crate) number: u64,
    /// Empty for none.
    pub(crate) name: String,
    /// By number.
    pub(crate) tables: Vec<NamedMeta>,
}

/// The state of all named tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StoreManifest {
    /// Whether it is the manifest of a backup, which nobody has committed to.
    pub(crate) is_backup: bool,
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
    /// Retained versions, ascending.
    pub(crate) versions: Vec<VersionMeta>,
}

impl VersionMeta {
    /// Whether it has these tables, under these names and with this configuration.
    pub(crate) fn has_tables(&self, tables: &[NamedMeta]) -> bool {
        let is_same = |(one, other): (&NamedMeta, &NamedMeta)| {
            one.is_same_table(other) && one.meta.config == other.meta.config
        };
        self.tables.len() == tables.len() && self.tables.iter().zip(tables).all(is_same)
    }

    /// Its tables, for whoever asks what needs a file.
    pub(crate) fn users(&self) -> impl Iterator<Item = (String, &NamedMeta)> {
        let version =
            if self.name.is_empty() { self.number.to_string() } else { self.name.clone() };
        self.tables.iter().map(move |table| (format!("{}@{version}", table.name), table))
    }
}

impl Found {
    /// Both manifests.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &StoreManifest> {
        self.manifest.iter().chain(&self.older)
    }
}

impl StoreManifest {
    /// All tables, those of versions too.
    pub(crate) fn all_tables(&self) -> impl Iterator<Item = &NamedMeta> {
        self.tables.iter().chain(self.versions.iter().flat_map(|version| &version.tables))
    }

    /// The numbers of all run files that the tables need; of several tables as often.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.all_tables().flat_map(|table| table.meta.numbers())
    }

    /// Whether both have the same tables under the same names.
    pub(crate) fn has_tables_of(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&NamedMeta, &NamedMeta)| one.is_same_table(other);
        self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(is_same)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&STORE_MAGIC).u32(STORE_VERSION).u8(1 + u8::from(self.is_backup));
        out.u64(self.sequence).u64(self.commit).u64(self.segment).u64(self.next_table);
        put_tables(&mut out, &self.tables);
        out.u32(self.versions.len() as u32);
        for version in &self.versions {
            out.u64(version.number).string(version.name.as_bytes());
            put_tables(&mut out, &version.tables);
        }
        manifest::close(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refused> {
        let mut input = manifest::open(bytes, STORE_MAGIC, STORE_VERSION)?;
        let is_backup = match input.u8()? {
            1 => false,
            2 => true,
            _ => return manifest::damaged("unknown kind of store"),
        };
        let (sequence, commit) = (input.u64()?, input.u64()?);
        let (segment, next_table) = (input.u64()?, input.u64()?);
        let counts = [sequence, commit, segment, next_table];
        if sequence == 0 || counts.iter().any(|&count| count > COUNT_MAX) {
            return manifest::damaged("a count that no store reaches");
        }
        let tables = take_tables(&mut input, next_table)?;
        let mut versions: Vec<VersionMeta> = Vec::new();
        for _ in 0..input.u32()? {
            let number = input.u64()?;
            let name = take_name(&mut input)?;
            let last = versions.last().map(|version| version.number);
            if number > commit || last.is_some_and(|last| last >= number) {
                return manifest::damaged("numbers of versions out of order");
            }
            if !name.is_empty() && versions.iter().any(|version| version.name == name) {
                return manifest::damaged("two versions of one name");
            }
            versions.push(VersionMeta {
                number,
                name,
                tables: take_tables(&mut input, next_table)?,
            });
        }
        if !input.rest().is_empty() {
            return manifest::damaged("bytes after the end");
        }
        Ok(Self { is_backup, sequence, commit, segment, next_table, tables, versions })
    }
}

fn put_tables(out: &mut Writer, tables: &[NamedMeta]) {
    out.u32(tables.len() as u32);
    for table in tables {
        out.u64(table.id).string(table.name.as_bytes()).string(&table.meta.encode());
    }
}

fn take_name(input: &mut Reader<'_>) -> std::result::Result<String, Refused> {
    match std::str::from_utf8(input.string()?) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => manifest::damaged("a name is not UTF-8"),
    }
}

fn take_tables(
    input: &mut Reader<'_>,
    next_table: u64,
) -> std::result::Result<Vec<NamedMeta>, Refused> {
    let mut tables: Vec<NamedMeta> = Vec::new();
    for _ in 0..input.u32()? {
        let id = input.u64()?;
        let name = take_name(input)?;
        let meta = SnapshotMeta::decode(input.string()?)?;
        if id >= next_table || tables.last().is_some_and(|last| last.id >= id) {
            return manifest::damaged("numbers of tables out of order");
        }
        if tables.iter().any(|table| table.name == name) {
            return manifest::damaged("two tables of one name");
        }
        tables.push(NamedMeta { id, name, meta });
    }
    Ok(tables)
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

/// Why a copy of the manifest that cannot be read is as a damaged one, if it is: the other copy may be whole.
pub(crate) fn read_fault(error: &terrane_io::Error) -> Option<String> {
    match error.kind() {
        Some(ErrorKind::FileTooLarge) => Some("larger than any manifest".to_owned()),
        _ => unreadable(error),
    }
}

/// Reads the manifest of the store in `dir`. A copy that cannot be read is a damaged one.
///
/// # Errors
/// [`Error::StoreCorrupted`] if there was one and no copy is whole, [`Error::UnknownVersion`],
/// [`Error::Disk`].
pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Found> {
    let mut found = Found { manifest: None, older: None, stale: Vec::new(), damage: Vec::new() };
    let mut whole = Vec::new();
    let mut refused = None;
    for name in COPIES {
        let path = dir.join(name);
        let bytes = match read_file(disk, &path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => {
                found.stale.push(path);
                continue;
            }
            Err(error) => {
                let reason = read_fault(&error).ok_or_else(|| error.clone())?;
                found.damage.push((path, reason));
                refused.get_or_insert(error);
                continue;
            }
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
        if let Some(error) = refused.filter(|error| error.kind() != Some(ErrorKind::FileTooLarge)) {
            return Err(error.into());
        }
        if let Some((path, reason)) = damage {
            return Err(Error::StoreCorrupted { path, reason });
        }
    }
    for (path, reason) in &found.damage {
        event!(WARN, "store.manifest_damaged", dir, path = %path.display(), reason);
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
    let reason = format!(
        "both copies of the manifest are missing, and {segment} tells that there was one: put a copy back"
    );
    Ok(Some((dir.join(COPIES[0]), reason)))
}

//! Inspection of a file or directory of the engine, for people and tools that look at it from
//! outside.
//!
//! Inspecting takes no lock and changes nothing, so it also works beside a process that has the
//! session open; what it then says of files that come and go is as good as the moment it looked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::files::read_file;
use terrane_io::{Access, Disk, DiskFile, EntryKind, OpenMode};

use crate::block::codec::Codec;
use crate::block::page::{
    HEADER_SIZE, IMAGE_SIZE_MAX, PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageKind, PageLayout, check,
    codec_of,
};
use crate::check::store::{self, Fault, ManifestCopies, ManifestCopy};
pub use crate::check::store::{RecordsInfo, SegmentInfo, SegmentUse};
use crate::compaction::levels::TICKS_PER_FLUSH;
use crate::config::TableConfig;
use crate::corrupt::Corrupt;
use crate::entry::entry::{KEY_BYTES_MAX, Kind, VALUE_BYTES_MAX};
use crate::error::{Error, Result};
use crate::files::file_set::{RUN_NUMBER_MAX, blobs_number, file_name, file_number};
use crate::files::lost_found::LOST_FOUND;
use crate::files::reserve::{
    self, RESERVE, RESERVE_BYTES_MAX, RESERVE_BYTES_MIN, RESERVE_HEADER_SIZE, RESERVE_MAGIC,
    RESERVE_VERSION,
};
use crate::manifest::feed_cursor::{self, CURSOR_MAGIC, CURSOR_SLOT_SIZE, CURSOR_VERSION, FEEDS};
use crate::manifest::history::{HISTORY_MAX, LOADS_MAX};
use crate::manifest::lease::{LEASE_MAGIC, LEASE_OFFSET, LEASE_VERSION, LEASES_MAX, READERS};
use crate::manifest::manifest::{
    self, COPIES, NamedMeta, STORE_MAGIC, STORE_VERSION, STORE_VERSION_HISTORY,
    STORE_VERSION_INDEXES, STORE_VERSION_LOADS, StoreManifest,
};
use crate::manifest::snapshot_meta::SNAPSHOT_NAME_LEN_MAX;
use crate::manifest::snapshot_meta::{
    IncomingRef, MANIFEST_BYTES_MAX, MaskedRef, Refused, SESSION_MAGIC, SESSION_VERSION,
    SNAPSHOT_MAGIC, SNAPSHOT_VERSION, SessionMeta, SnapshotMeta, UnionRef, snapshot_version,
};
use crate::manifest::wal::{
    LOG, MARK_MAGIC, MARK_OFFSET, RECORD_ALIGN, RECORD_BYTES_MAX, RECORD_HEADER_SIZE, SEAL_MAGIC,
    SEAL_OFFSET, SEGMENT_HEADER_SIZE, SEGMENT_MAGIC, SEGMENT_VERSION, segment_number,
};
use crate::run::run::{
    FILTER_KIND_BLOOM, FILTER_KIND_RIBBON, FILTER_WORDS_PER_PAGE, Purpose, RUN_MAGIC,
    RUN_PAGES_MAX, RUN_VERSION, RunMeta, read_meta, read_sections,
};
use crate::run::writer::CHUNK_PAGES;
use crate::session::inner::{
    ACTIVE, METADATA, SNAPSHOT_SUFFIX, SNAPSHOTS, anchor_dir, foreign_dir, is_session_like,
    snapshot_names, snapshot_path,
};
use crate::store::options::TableName;
use crate::store::versions::VersionInfo;
use crate::table::canonical::{
    self, CANONICAL_MAGIC, CANONICAL_VERSION, CanonicalSummary, TAG_END, TAG_ENTRY,
    TAG_ENTRY_WITH_BLOB,
};

/// Description of a file or directory.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Inspection {
    /// The directory of a session.
    Session(SessionInfo),
    /// The metadata of a session.
    Metadata(MetadataInfo),
    /// The reserve of a session.
    Reserve(ReserveInfo),
    /// A snapshot's metadata, with the runs it names.
    Snapshot(Box<SnapshotInfo>),
    /// A run file.
    Run(RunInfo),
    /// A copy of the manifest of named tables.
    Manifest(Box<ManifestInfo>),
    /// A segment of the log, and what is wrong with it.
    Segment(SegmentInfo, Vec<String>),
    /// A canonical export.
    Canonical(CanonicalInfo),
    /// The cursor of a change feed.
    Cursor(CursorInfo),
}

/// Place of the consumer of a change feed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CursorInfo {
    /// Format version.
    pub version: u32,
    /// Times that the cursor was moved.
    pub sequence: u64,
    /// The last commit that the consumer has acknowledged.
    pub acknowledged: u64,
    /// The first segment of the log that the commits behind it need; 0 for none.
    pub segment: u64,
    /// Bytes of the log that the cursor may hold.
    pub held_bytes_max: u64,
}

/// Header and trailer of a canonical export; its entries have not been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CanonicalInfo {
    /// Format version.
    pub version: u32,
    /// Number of entries, and their digest, by the end record; length of the file.
    pub summary: CanonicalSummary,
}

/// A session's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MetadataInfo {
    /// Format version.
    pub version: u32,
    /// When the session was created, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
}

/// The file of a session's reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReserveInfo {
    /// Format version.
    pub version: u32,
    /// Bytes that it is to have.
    pub bytes: u64,
    /// Whether it has them; if not, they were given up because the disk was full.
    pub is_held: bool,
}

/// A session directory.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its metadata.
    pub metadata: MetadataInfo,
    /// Its snapshots by name; those that cannot be read with the error.
    #[cfg_attr(feature = "serde", serde(serialize_with = "write_snapshots"))]
    pub snapshots: Vec<(String, Result<SnapshotInfo>)>,
    /// Its named tables, if it ever had any.
    pub store: Option<StoreInfo>,
    /// Its reserve, if it has one.
    pub reserve: Option<ReserveInfo>,
    /// Run files in the directory.
    pub run_files: u64,
    /// How many of them no snapshot and no named table refers to: they belong to open tables, or go
    /// at the next opening.
    pub run_files_unreferenced: u64,
    /// Bytes of all run files and of their blobs.
    pub run_bytes: u64,
}

/// Writes each snapshot as an object of `name` and `info`, or `name` and the text `damage`.
#[cfg(feature = "serde")]
fn write_snapshots<S: serde::Serializer>(
    snapshots: &[(String, Result<SnapshotInfo>)],
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Found<'a> {
        Info(&'a SnapshotInfo),
        Damage(String),
    }

    #[derive(serde::Serialize)]
    struct Named<'a> {
        name: &'a str,
        #[serde(flatten)]
        found: Found<'a>,
    }

    serializer.collect_seq(snapshots.iter().map(|(name, info)| {
        let found = match info {
            Ok(info) => Found::Info(info),
            Err(error) => Found::Damage(error.to_string()),
        };
        Named { name, found }
    }))
}

/// The named tables of a session, as the last checkpoint has left them, and the log since then.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StoreInfo {
    /// The copy of the manifest that counts, if one is whole.
    pub manifest: Option<ManifestInfo>,
    /// All segments of the log, by number.
    pub segments: Vec<SegmentInfo>,
    /// Damage of the copies of the manifest, and of the WAL.
    pub damage: Vec<String>,
}

/// A manifest of named tables.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ManifestInfo {
    /// Format version.
    pub version: u32,
    /// Counts manifests.
    pub sequence: u64,
    /// The last commit that is in the tables' runs.
    pub commit: u64,
    /// The first segment of the log that is needed; 0 if none is.
    pub segment: u64,
    /// Whether it is a backup that nobody has committed to.
    pub is_backup: bool,
    /// The tables by number.
    pub tables: Vec<NamedTableInfo>,
    /// The retained versions, oldest first.
    pub versions: Vec<VersionInfo>,
}

/// The table that an index is derived from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IndexSource {
    /// Its name.
    pub table: String,
    /// Version of the function that made the index; 0 if the index must be made anew.
    pub function_version: u32,
}

/// A named table in a manifest.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NamedTableInfo {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The name of its merge operator.
    pub resolve: String,
    /// The table whose index it is; `None` for an ordinary table.
    pub index_of: Option<IndexSource>,
    /// Its configuration.
    pub config: TableConfig,
    /// Its runs, as those of a snapshot; or why they cannot be read.
    pub shape: std::result::Result<SnapshotInfo, String>,
}

/// A merge that a snapshot found under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MergeInfo {
    /// How many of the level's runs are slices that it has written: the first ones.
    pub slices: u64,
    /// How many of the level's runs are its inputs: those behind the slices.
    pub input_runs: u64,
    /// Pages of its inputs, those of their blobs included.
    pub input_pages: u64,
    /// How many of them it had passed, as far as what it had written is kept.
    pub passed_pages: u64,
    /// Flushes until it is due, in thousandths.
    pub due_in_milliflushes: u64,
    /// Whether it drops deletions.
    pub drops_deletes: bool,
    /// Ranges of keys that the table has deleted since it began: what it writes may have them.
    pub deleted_ranges: u64,
}

/// A level of a snapshot.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LevelInfo {
    /// Its runs, newest first; the inputs of a merge come first.
    pub runs: Vec<RunInfo>,
    /// The merge under way, if any.
    pub merge: Option<MergeInfo>,
    /// Finished pages of that compaction, if any.
    pub output: Option<OutputInfo>,
}

/// Finished pages of a compaction at the time a snapshot was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OutputInfo {
    /// The file. It may hold more by now, or be a run that another snapshot refers to.
    pub path: PathBuf,
    /// Pages of entries.
    pub pages: u64,
    /// Bytes of blobs.
    pub blob_bytes: u64,
}

/// A snapshot.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Format version.
    pub version: u32,
    /// The label.
    pub label: String,
    /// When it was saved, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// The table's configuration.
    pub config: TableConfig,
    /// Images of the write buffer, oldest first: runs that neighbouring snapshots may share.
    pub buffer: Vec<RunInfo>,
    /// The last flush, if it is not in the levels yet.
    pub flushed: Option<RunInfo>,
    /// Level 1 first.
    pub levels: Vec<LevelInfo>,
    /// The runs of a union that is not paid for yet.
    pub union: Vec<RunInfo>,
}

impl SnapshotInfo {
    /// All runs that have a filter: those of the levels, the last flush and the union.
    pub fn level_runs(&self) -> impl Iterator<Item = &RunInfo> {
        let levels = self.levels.iter().flat_map(|level| &level.runs);
        self.flushed.iter().chain(levels).chain(&self.union)
    }

    /// Pages of merge work not yet done: those of the inputs of all merges that they had not
    /// passed.
    #[must_use]
    pub fn merge_debt_pages(&self) -> u64 {
        let merges = self.levels.iter().filter_map(|level| level.merge);
        merges.map(|merge| merge.input_pages - merge.passed_pages).sum()
    }
}

/// A run file.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RunInfo {
    /// The file.
    pub path: PathBuf,
    /// Format version.
    pub version: u32,
    /// Its footer.
    pub meta: RunMeta,
    /// Bytes of the file, and of that of its blobs.
    pub bytes: u64,
    /// Ranges of keys that the table has deleted and that the run still has; 0 of a run file by
    /// itself.
    pub deleted_ranges: u64,
}

/// Kind and content of a page of a run file.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PageInfo {
    /// Number of the page.
    pub page: u32,
    /// Its kind.
    pub kind: &'static str,
    /// Its checksum, which is right.
    pub crc: u32,
    /// The codec of a key page that is compressed: `lz4` or `zstd`.
    pub codec: Option<&'static str>,
    /// Entries of a key page: key, whether it is a deletion, length of the value, the value as far
    /// as it stands in the page.
    pub entries: Vec<EntryInfo>,
    /// Content of any other page.
    pub content: Vec<u8>,
}

/// An entry of a key page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EntryInfo {
    /// The key.
    pub key: Vec<u8>,
    /// `insert`, `insert with blob`, `upsert` or `delete`.
    pub kind: &'static str,
    /// Length of the value.
    pub value_len: u64,
    /// The value, as far as it stands in the page.
    pub value: Vec<u8>,
}

/// Refuses a file that is none of ours.
fn foreign<T>(path: &Path, found: String) -> Result<T> {
    let expected = "a run (its last page begins with `TerraRun`), a snapshot (`TerraSnp`), the \
                    metadata of a store (`TerraSes`), its manifest (`TerraMan`), a segment of its log \
                    (`TerraLog`) or its reserve (`TerraRes`)";
    Err(Error::NotTerrane { path: path.to_owned(), expected, found })
}

/// Tells the kind of a file by its length and its first bytes.
fn describe(len: u64, start: [u8; 8]) -> String {
    match len {
        0 => "an empty file".to_owned(),
        1..8 => format!("a file of {len} bytes"),
        _ => {
            let start = start.map(|byte| format!("{byte:02x}")).concat();
            format!("a file of {len} bytes that begins with {start}")
        }
    }
}

/// Role of a file of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Metadata,
    Snapshot,
    Run,
    Manifest,
    Segment,
    Reserve,
    Cursor,
}

/// Tells the role of a file by its place and name: with damaged bytes it is a damaged file, not a
/// foreign one.
fn role(disk: &dyn Disk, path: &Path) -> Option<Role> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent()?;
    let (role, dir) = if name == METADATA {
        (Role::Metadata, parent)
    } else if name == RESERVE {
        (Role::Reserve, parent)
    } else if COPIES.contains(&name) {
        (Role::Manifest, parent)
    } else if segment_number(name).is_some() && parent.ends_with(LOG) {
        (Role::Segment, parent.parent()?)
    } else if file_number(name).is_some() && parent.ends_with(ACTIVE) {
        (Role::Run, parent.parent()?)
    } else if name.ends_with(SNAPSHOT_SUFFIX) && parent.ends_with(SNAPSHOTS) {
        (Role::Snapshot, parent.parent()?)
    } else if feed_cursor::cursor_name(name).is_some() && parent.ends_with(FEEDS) {
        (Role::Cursor, parent.parent()?)
    } else {
        return None;
    };

    // A file of that name outside a session is foreign.
    is_session_like(disk, dir).is_ok_and(|is| is).then_some(role)
}

/// Whether the last whole page of a file begins like a footer.
fn ends_like_run(file: &dyn DiskFile, len: u64) -> Result<bool> {
    let Some(last) = (len / PAGE_SIZE as u64).checked_sub(1) else { return Ok(false) };
    let mut magic = [0; 8];
    file.read_at(&mut magic, last * PAGE_SIZE as u64 + HEADER_SIZE as u64)?;
    Ok(magic == RUN_MAGIC)
}

fn refused(path: &Path, refused: Refused) -> Error {
    let path = path.to_owned();
    match refused {
        Refused::Damaged(reason) => Error::SnapshotCorrupted {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            path,
            reason,
        },
        Refused::Version { found, newest } => Error::UnknownVersion { path, found, newest },
    }
}

/// Says what `path` is: a session directory, or one of the files in it.
///
/// Cost: reads metadata and footers.
///
/// # Errors
/// [`Error::Disk`]; [`Error::NotTerrane`] for anything foreign; [`Error::Corrupt`] and its like for
/// what is damaged, [`Error::UnknownVersion`] for another format version.
pub fn inspect(disk: &Arc<dyn Disk>, path: &Path) -> Result<Inspection> {
    match disk.kind(path)? {
        Some(EntryKind::Directory) => return Ok(Inspection::Session(inspect_session(disk, path)?)),
        // A pipe would never end.
        Some(EntryKind::Link | EntryKind::Other) => {
            return foreign(path, "neither a file nor a directory".to_owned());
        }
        Some(EntryKind::File) | None => {}
    }

    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;

    let len = file.len()?;
    let mut magic = [0; 8];
    // A shorter file leaves the zeros, which are no magic.
    if len >= 8 {
        file.read_at(&mut magic, 0)?;
    }

    // A damaged magic must not hide the role of a file, so place and name count too.
    let standing = role(disk.as_ref(), path);
    match magic {
        SESSION_MAGIC => Ok(Inspection::Metadata(inspect_metadata(disk.as_ref(), path)?)),
        SNAPSHOT_MAGIC => {
            let dir = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
            Ok(Inspection::Snapshot(Box::new(inspect_snapshot(disk, dir, path)?)))
        }
        CANONICAL_MAGIC => {
            let summary = canonical::summary(file.as_ref())?;
            let version = CANONICAL_VERSION;
            Ok(Inspection::Canonical(CanonicalInfo { version, summary }))
        }
        STORE_MAGIC => Ok(Inspection::Manifest(Box::new(inspect_manifest(disk, path)?))),
        _ if magic == RESERVE_MAGIC || standing == Some(Role::Reserve) => {
            let (path, reason) = (path.to_owned(), "damaged header of the reserve".to_owned());
            let info = inspect_reserve(file.as_ref())?;
            info.map(Inspection::Reserve).ok_or(Error::SessionDirCorrupted { path, reason })
        }
        _ if magic == CURSOR_MAGIC || standing == Some(Role::Cursor) => {
            let place = feed_cursor::read_place(file.as_ref())?;
            Ok(Inspection::Cursor(CursorInfo {
                version: CURSOR_VERSION,
                sequence: place.sequence,
                acknowledged: place.commit,
                segment: place.segment,
                held_bytes_max: place.bytes_max,
            }))
        }
        _ if standing == Some(Role::Segment) => inspect_segment(disk.as_ref(), path),
        SEGMENT_MAGIC => {
            let info = store::read_header(disk.as_ref(), path)?;
            Ok(Inspection::Segment(info, Vec::new()))
        }
        // A run's magic is in its last page.
        _ if standing == Some(Role::Run) || ends_like_run(file.as_ref(), len)? => {
            Ok(Inspection::Run(run_info(path, file.as_ref())?))
        }
        _ => match standing {
            None => foreign(path, describe(len, magic)),
            Some(Role::Metadata) => {
                Ok(Inspection::Metadata(inspect_metadata(disk.as_ref(), path)?))
            }
            Some(Role::Manifest) => {
                Ok(Inspection::Manifest(Box::new(inspect_manifest(disk, path)?)))
            }
            Some(_) => Err(refused(path, Refused::Damaged("wrong magic".to_owned()))),
        },
    }
}

fn read_metadata(disk: &dyn Disk, path: &Path) -> Result<SessionMeta> {
    let bytes = read_file(disk, path, MANIFEST_BYTES_MAX)?;
    SessionMeta::decode(&bytes).map_err(|error| match error {
        Refused::Damaged(reason) => {
            let path = path.to_owned();
            Error::SessionDirCorrupted { path, reason: format!("metadata: {reason}") }
        }
        Refused::Version { .. } => refused(path, error),
    })
}

fn inspect_metadata(disk: &dyn Disk, path: &Path) -> Result<MetadataInfo> {
    let meta = read_metadata(disk, path)?;
    Ok(MetadataInfo { version: SESSION_VERSION, created_ns: meta.created_ns })
}

/// A reserve, if its header is whole.
fn inspect_reserve(file: &dyn DiskFile) -> Result<Option<ReserveInfo>> {
    let len = file.len()?;
    let bytes = reserve::read_header(file)?;
    Ok(bytes.map(|bytes| ReserveInfo { version: RESERVE_VERSION, bytes, is_held: len >= bytes }))
}

/// Directories that a session has, or may have.
const DIRECTORIES: [&str; 6] = [ACTIVE, SNAPSHOTS, LOG, READERS, FEEDS, LOST_FOUND];

fn inspect_session(disk: &Arc<dyn Disk>, dir: &Path) -> Result<SessionInfo> {
    if !is_session_like(disk.as_ref(), dir)? {
        return foreign_dir(disk.as_ref(), dir);
    }

    // Without these three there is no session, whatever else is there.
    for name in [METADATA, ACTIVE, SNAPSHOTS] {
        if disk.kind(&dir.join(name))?.is_none() {
            let reason = format!("missing {name}");
            return Err(Error::SessionDirCorrupted { path: dir.to_owned(), reason });
        }
    }

    // Links could lead out of the session, so no link is followed.
    for name in DIRECTORIES {
        let path = dir.join(name);
        if let Some(found @ (EntryKind::Link | EntryKind::Other)) = disk.kind(&path)? {
            return Err(terrane_io::Error::WrongKind { path, found }.into());
        }
    }

    let metadata = inspect_metadata(disk.as_ref(), &dir.join(METADATA))?;

    let mut snapshots = Vec::new();
    let mut referenced = std::collections::BTreeSet::new();
    for name in snapshot_names(disk.as_ref(), dir)? {
        let path = snapshot_path(dir, &name);
        let info = inspect_snapshot(disk, dir, &path);
        // A damaged snapshot is shown as such; its runs count as unreferenced.
        if let Ok(info) = &info {
            let paths = info.buffer.iter().chain(info.level_runs()).map(|run| run.path.clone());
            let outputs = info.levels.iter().filter_map(|level| level.output.as_ref());
            referenced.extend(paths.chain(outputs.map(|output| output.path.clone())));
        }
        snapshots.push((name, info));
    }

    // Both copies count: after a crash each may name runs that the other does not.
    let copies = ManifestCopies::read(disk.as_ref(), dir)?;
    let named = copies.manifests().flat_map(StoreManifest::numbers);
    referenced.extend(named.map(|number| dir.join(ACTIVE).join(file_name(number))));
    let store = inspect_store(disk, dir, &copies)?;

    // The reserve is optional: a session without one is whole.
    let reserve = match disk.open(&dir.join(RESERVE), OpenMode::Read, Access::Buffered) {
        Err(error) if error.is_not_found() => None,
        opened => {
            let opened = opened.map_err(Error::from);
            match opened.and_then(|file| inspect_reserve(file.as_ref())) {
                // It holds nothing but room, and the next opening makes it anew.
                Err(error) if reserve::is_unreadable(&error) => None,
                read => read?,
            }
        }
    };

    let active = dir.join(ACTIVE);
    let mut run_files = 0;

    let mut run_files_unreferenced = 0;
    let mut run_bytes = 0;
    for entry in disk.list(&active)? {
        let is_run = file_number(&entry.name).is_some();
        if !is_run && blobs_number(&entry.name).is_none() {
            continue;
        }
        let path = active.join(&entry.name);
        // The file may go while we look.
        let Ok(file) = disk.open(&path, OpenMode::Read, Access::Buffered) else { continue };
        run_bytes += file.len()?;
        // A blob file has bytes, but is no run.
        if !is_run {
            continue;
        }
        run_files += 1;
        run_files_unreferenced += u64::from(!referenced.contains(&path));
    }

    Ok(SessionInfo {
        metadata,
        snapshots,
        store,
        reserve,
        run_files,
        run_files_unreferenced,
        run_bytes,
    })
}

/// Names of the named tables of the store in `dir`, sorted, as its manifest has them. Changes
/// nothing and takes no lock: a command that must be refused finds out here, before it opens the
/// store.
///
/// Cost: reads both copies of the manifest.
///
/// # Errors
/// [`Error::SessionDirDoesNotExist`], [`Error::StoreCorrupted`] if no copy is whole,
/// [`Error::UnknownVersion`], [`Error::Disk`].
pub fn table_names(disk: &dyn Disk, dir: &Path) -> Result<Vec<TableName>> {
    // Nobody can put another directory in the place of this one while it is read.
    let _anchor = anchor_dir(disk, dir)?;
    let manifest = manifest::read(disk, dir)?.manifest.unwrap_or_default();

    let mut names: Vec<_> =
        manifest.tables.into_iter().map(|table| TableName(table.name)).collect();
    names.sort();
    Ok(names)
}

/// Describes a fault in words.
fn text_of(fault: &Fault) -> String {
    format!("{}: offset {}: {}", fault.path.display(), fault.offset, fault.rule)
}

fn inspect_store(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    copies: &ManifestCopies,
) -> Result<Option<StoreInfo>> {
    let mut damage = Vec::new();
    // A log without a manifest shows a store that has lost it.
    if copies.are_missing() {
        match store::lost_manifest(disk.as_ref(), dir)? {
            Some(fault) => damage.push(text_of(&fault)),
            None => return Ok(None),
        }
    }

    // A copy that cannot be read is damage, even if the other one is whole.
    for (path, copy) in &copies.0 {
        if let ManifestCopy::Refused(refused) = copy {
            damage.push(format!("{}: {refused}", path.display()));
        }
    }

    // The salt in the metadata is part of the checksum of every record.
    let meta = read_metadata(disk.as_ref(), &dir.join(METADATA))?;
    let newest = copies.newest();
    let walk = store::walk_log(disk.as_ref(), dir, meta.salt, newest)?;
    damage.extend(walk.faults.iter().map(text_of));
    let manifest = newest.map(|manifest| manifest_info(disk, dir, manifest));
    Ok(Some(StoreInfo { manifest, segments: walk.segments, damage }))
}

fn manifest_info(disk: &Arc<dyn Disk>, dir: &Path, manifest: &StoreManifest) -> ManifestInfo {
    let table = |table: &NamedMeta| {
        let damaged = |reason: &str| {
            let reason = format!("table `{}`: {reason}", table.name);
            Error::StoreCorrupted { path: dir.to_owned(), reason }
        };
        NamedTableInfo {
            id: table.id,
            name: table.name.clone(),
            resolve: table.meta.resolve.clone(),
            index_of: table.derived.and_then(|derived| {
                let source = manifest.tables.iter().find(|source| source.id == derived.source)?;
                let (table, function_version) = (source.name.clone(), derived.version);
                Some(IndexSource { table, function_version })
            }),
            config: table.meta.config.clone(),
            shape: shape(disk, dir, &table.meta, &damaged).map_err(|error| error.to_string()),
        }
    };

    ManifestInfo {
        version: manifest.version_of_format(),
        sequence: manifest.sequence,
        commit: manifest.commit,
        segment: manifest.segment,
        is_backup: manifest.is_backup,
        tables: manifest.tables.iter().map(table).collect(),
        versions: manifest.version_infos(),
    }
}

fn inspect_manifest(disk: &Arc<dyn Disk>, path: &Path) -> Result<ManifestInfo> {
    let dir = path.parent().unwrap_or(Path::new(""));
    match store::read_copy(disk.as_ref(), path)? {
        ManifestCopy::Whole(manifest) => Ok(manifest_info(disk, dir, &manifest)),
        ManifestCopy::Refused(Refused::Version { found, newest }) => {
            Err(Error::UnknownVersion { path: path.to_owned(), found, newest })
        }
        ManifestCopy::Refused(Refused::Damaged(reason)) => {
            Err(Error::StoreCorrupted { path: path.to_owned(), reason })
        }
        ManifestCopy::Missing => {
            let reason = "the file is missing".to_owned();
            Err(Error::StoreCorrupted { path: path.to_owned(), reason })
        }
    }
}

/// A segment in its place: the salt of the store is in the checksums of its records.
fn inspect_segment(disk: &dyn Disk, path: &Path) -> Result<Inspection> {
    let dir = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = segment_number(name).unwrap_or_default();
    // The salt in the metadata is part of the checksum of every record.
    let meta = read_metadata(disk, &dir.join(METADATA))?;
    let (mut info, faults) = store::read_segment(disk, dir, meta.salt, number)?;
    path.clone_into(&mut info.path);
    Ok(Inspection::Segment(info, faults.iter().map(text_of).collect()))
}

fn inspect_snapshot(disk: &Arc<dyn Disk>, dir: &Path, path: &Path) -> Result<SnapshotInfo> {
    let bytes = read_file(disk.as_ref(), path, MANIFEST_BYTES_MAX)?;
    let meta = SnapshotMeta::decode(&bytes).map_err(|error| refused(path, error))?;
    let damaged = |reason: &str| refused(path, Refused::Damaged(reason.to_owned()));
    let info = shape(disk, dir, &meta, &damaged)?;
    Ok(SnapshotInfo { version: snapshot_version(&bytes), ..info })
}

/// The runs of a snapshot or a named table, of a session in `dir`; `damaged` makes an error of a
/// reason.
fn shape(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    meta: &SnapshotMeta,
    damaged: &dyn Fn(&str) -> Error,
) -> Result<SnapshotInfo> {
    let run_path = |number| dir.join(ACTIVE).join(file_name(number));
    let open = |MaskedRef { run, mask }: &MaskedRef| -> Result<RunInfo> {
        let run_path = run_path(run.number);
        let file = match disk.open(&run_path, OpenMode::Read, Access::Buffered) {
            Err(error) if error.is_not_found() => {
                return Err(damaged(&format!("its run {} is missing", run_path.display())));
            }
            opened => opened?,
        };
        let info = run_info(&run_path, file.as_ref())?;
        // The name of a file does not tell which run it holds, so its identity is compared.
        if (info.meta.identity, info.meta.data_pages) != (run.identity, run.data_pages) {
            let reason = format!("{} is another run than it refers to", run_path.display());
            return Err(damaged(&reason));
        }
        Ok(RunInfo { deleted_ranges: mask.spans().len() as u64, ..info })
    };

    let mut levels = Vec::new();
    for level in &meta.levels {
        let runs: Vec<RunInfo> = level.sources().map(open).collect::<Result<_>>()?;
        let merge = match &level.incoming {
            IncomingRef::Compaction(merge) => Some(merge),
            IncomingRef::Nothing | IncomingRef::Single(_) => None,
        };

        let output = merge.and_then(|merge| merge.output).map(|output| OutputInfo {
            path: run_path(output.number),
            pages: u64::from(output.data_pages),
            blob_bytes: output.blob_bytes,
        });

        let merge = merge.map(|merge| {
            // Its slices come first among the runs of the level, and then its inputs.
            let inputs = runs[merge.slices.len()..][..merge.inputs.len()].iter();
            let inputs = inputs.map(|run| run.meta);
            let input_pages = inputs.map(|run| u64::from(run.data_pages) + run.blob_pages()).sum();
            MergeInfo {
                slices: merge.slices.len() as u64,
                input_runs: merge.inputs.len() as u64,
                input_pages,
                passed_pages: merge.output.map_or(0, |output| output.work.min(input_pages)),
                due_in_milliflushes: merge.due.saturating_sub(meta.now) / (TICKS_PER_FLUSH / 1000),
                drops_deletes: merge.drop_deletes,
                deleted_ranges: merge.mask.spans().len() as u64,
            }
        });

        levels.push(LevelInfo { runs, merge, output });
    }

    Ok(SnapshotInfo {
        version: SNAPSHOT_VERSION,
        label: meta.label.clone(),
        created_ns: meta.created_ns,
        config: meta.config.clone(),
        buffer: meta.images.iter().map(open).collect::<Result<_>>()?,
        flushed: meta.flushed.as_ref().map(open).transpose()?,
        levels,
        union: meta.union.iter().flat_map(UnionRef::sources).map(open).collect::<Result<_>>()?,
    })
}

fn run_info(path: &Path, file: &dyn DiskFile) -> Result<RunInfo> {
    let meta = read_meta(path, file)?;
    let bytes = (meta.pages() + meta.blob_pages()) * PAGE_SIZE as u64;
    let version = meta.format_version();
    Ok(RunInfo { path: path.to_owned(), version, meta, bytes, deleted_ranges: 0 })
}

/// The index of a run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct IndexInfo {
    /// `compact` or `ordinary`.
    pub kind: &'static str,
    /// Memory when open.
    pub bytes: usize,
    /// Reads that all present keys together take beyond one each.
    pub extra_reads: u64,
}

/// Reads the index of a run file.
///
/// Cost: reads filter and index.
///
/// # Errors
/// The errors of [`inspect`].
pub fn inspect_index(disk: &Arc<dyn Disk>, path: &Path) -> Result<IndexInfo> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
    let (_, _, section) = read_sections(path, file.as_ref())?;
    let index = section.index;
    let kind = index.kind_name();
    let bytes = index.memory_bytes();
    Ok(IndexInfo { kind, bytes, extra_reads: index.extra_reads() })
}

/// Reads and checks one page of a run file.
///
/// Cost: two page reads.
///
/// # Errors
/// The errors of [`inspect`]; [`Error::Corrupt`] also for a page beyond the end.
pub fn inspect_page(disk: &Arc<dyn Disk>, path: &Path, page: u32) -> Result<PageInfo> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;

    let meta = read_meta(path, file.as_ref())?;
    let corrupt = |what| Error::corrupt(path, what);
    if u64::from(page) >= meta.pages() {
        let expected = meta.pages() - 1;
        let found = u64::from(page);
        return Err(corrupt(Corrupt { page, rule: "page number", expected, found }));
    }

    let bytes = crate::run::run::read_pages(file.as_ref(), page, 1)?;
    let place = PageAddress { identity: meta.identity, page };
    let crc = bytes.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
    let mut info =
        PageInfo { page, kind: "key", crc, codec: None, entries: Vec::new(), content: Vec::new() };

    let kinds = [
        (PageKind::Overflow, "overflow"),
        (PageKind::Filter, "filter"),
        (PageKind::Index, "index"),
        (PageKind::Footer, "footer"),
    ];

    if let Some((_, kind)) = kinds.iter().find(|(kind, _)| check(&bytes, place, *kind).is_ok()) {
        info.kind = kind;
        info.content = bytes[HEADER_SIZE..].to_vec();
        return Ok(info);
    }

    let mut image = Vec::new();
    let layout = PageLayout::open(&bytes, place, &mut image).map_err(corrupt)?;
    info.codec = codec_of(&bytes);
    let bytes = layout.bytes(&bytes, &image);
    for index in 0..layout.count() {
        let value = layout.stored_value(bytes, index);
        info.entries.push(EntryInfo {
            key: [layout.prefix(bytes), layout.suffix(bytes, index)].concat(),
            kind: match layout.kind(bytes, index) {
                Kind::Insert => "insert",
                Kind::Delete => "delete",
                Kind::Upsert => "upsert",
                Kind::InsertBlob => "insert with blob",
                Kind::TooLarge => "too large",
            },
            value_len: layout.large_value_len().unwrap_or(value.len()) as u64,
            value: value.to_vec(),
        });
    }

    Ok(info)
}

/// Every constant of the formats, by name.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    let text = |magic: [u8; 8]| String::from_utf8_lossy(&magic).into_owned();
    vec![
        ("PAGE_SIZE", PAGE_SIZE.to_string()),
        ("HEADER_SIZE", HEADER_SIZE.to_string()),
        ("PAYLOAD_SIZE", PAYLOAD_SIZE.to_string()),
        ("IMAGE_SIZE_MAX", IMAGE_SIZE_MAX.to_string()),
        ("KEY_BYTES_MAX", KEY_BYTES_MAX.to_string()),
        ("VALUE_BYTES_MAX", VALUE_BYTES_MAX.to_string()),
        ("RUN_MAGIC", text(RUN_MAGIC)),
        ("RUN_VERSION", RUN_VERSION.to_string()),
        ("FILTER_KIND_BLOOM", FILTER_KIND_BLOOM.to_string()),
        ("FILTER_KIND_RIBBON", FILTER_KIND_RIBBON.to_string()),
        ("RUN_PAGES_MAX", RUN_PAGES_MAX.to_string()),
        ("RUN_NUMBER_MAX", RUN_NUMBER_MAX.to_string()),
        ("FILTER_WORDS_PER_PAGE", FILTER_WORDS_PER_PAGE.to_string()),
        ("CHUNK_PAGES", CHUNK_PAGES.to_string()),
        ("SESSION_MAGIC", text(SESSION_MAGIC)),
        ("SESSION_VERSION", SESSION_VERSION.to_string()),
        ("SNAPSHOT_MAGIC", text(SNAPSHOT_MAGIC)),
        ("SNAPSHOT_VERSION", SNAPSHOT_VERSION.to_string()),
        ("RESERVE_MAGIC", text(RESERVE_MAGIC)),
        ("RESERVE_VERSION", RESERVE_VERSION.to_string()),
        ("RESERVE_HEADER_SIZE", RESERVE_HEADER_SIZE.to_string()),
        ("RESERVE_BYTES_MIN", RESERVE_BYTES_MIN.to_string()),
        ("RESERVE_BYTES_MAX", RESERVE_BYTES_MAX.to_string()),
        ("STORE_MAGIC", text(STORE_MAGIC)),
        ("STORE_VERSION", STORE_VERSION.to_string()),
        ("STORE_VERSION_HISTORY", STORE_VERSION_HISTORY.to_string()),
        ("STORE_VERSION_INDEXES", STORE_VERSION_INDEXES.to_string()),
        ("STORE_VERSION_LOADS", STORE_VERSION_LOADS.to_string()),
        ("HISTORY_MAX", HISTORY_MAX.to_string()),
        ("LOADS_MAX", LOADS_MAX.to_string()),
        ("CURSOR_MAGIC", text(CURSOR_MAGIC)),
        ("CURSOR_VERSION", CURSOR_VERSION.to_string()),
        ("CURSOR_SLOT_SIZE", CURSOR_SLOT_SIZE.to_string()),
        ("LEASE_MAGIC", text(LEASE_MAGIC)),
        ("LEASE_VERSION", LEASE_VERSION.to_string()),
        ("LEASE_OFFSET", LEASE_OFFSET.to_string()),
        ("LEASES_MAX", LEASES_MAX.to_string()),
        ("SEGMENT_MAGIC", text(SEGMENT_MAGIC)),
        ("SEGMENT_VERSION", SEGMENT_VERSION.to_string()),
        ("SEAL_MAGIC", text(SEAL_MAGIC)),
        ("SEAL_OFFSET", SEAL_OFFSET.to_string()),
        ("MARK_MAGIC", text(MARK_MAGIC)),
        ("MARK_OFFSET", MARK_OFFSET.to_string()),
        ("SEGMENT_HEADER_SIZE", SEGMENT_HEADER_SIZE.to_string()),
        ("RECORD_HEADER_SIZE", RECORD_HEADER_SIZE.to_string()),
        ("RECORD_ALIGN", RECORD_ALIGN.to_string()),
        ("RECORD_BYTES_MAX", RECORD_BYTES_MAX.to_string()),
        ("CANONICAL_MAGIC", text(CANONICAL_MAGIC)),
        ("CANONICAL_VERSION", CANONICAL_VERSION.to_string()),
        ("CANONICAL_TAG_ENTRY", TAG_ENTRY.to_string()),
        ("CANONICAL_TAG_ENTRY_WITH_BLOB", TAG_ENTRY_WITH_BLOB.to_string()),
        ("CANONICAL_TAG_END", TAG_END.to_string()),
        ("SNAPSHOT_NAME_LEN_MAX", SNAPSHOT_NAME_LEN_MAX.to_string()),
        ("MANIFEST_BYTES_MAX", MANIFEST_BYTES_MAX.to_string()),
        ("TICKS_PER_FLUSH", TICKS_PER_FLUSH.to_string()),
        ("PAGE_KIND_KEY", (PageKind::Key as u8).to_string()),
        ("PAGE_KIND_OVERFLOW", (PageKind::Overflow as u8).to_string()),
        ("PAGE_KIND_FILTER", (PageKind::Filter as u8).to_string()),
        ("PAGE_KIND_INDEX", (PageKind::Index as u8).to_string()),
        ("PAGE_KIND_FOOTER", (PageKind::Footer as u8).to_string()),
        ("PAGE_KIND_BLOB", (PageKind::Blob as u8).to_string()),
        ("PAGE_KIND_COMPRESSED_KEY", (PageKind::CompressedKey as u8).to_string()),
        ("CODEC_LZ4", (Codec::Lz4 as u8).to_string()),
        ("CODEC_ZSTD", (Codec::Zstd as u8).to_string()),
        ("ENTRY_KIND_INSERT", (Kind::Insert as u8).to_string()),
        ("ENTRY_KIND_DELETE", (Kind::Delete as u8).to_string()),
        ("ENTRY_KIND_UPSERT", (Kind::Upsert as u8).to_string()),
        ("ENTRY_KIND_INSERT_WITH_BLOB", (Kind::InsertBlob as u8).to_string()),
        ("ENTRY_KIND_TOO_LARGE", (Kind::TooLarge as u8).to_string()),
        ("PURPOSE_LEVEL", (Purpose::Level as u8).to_string()),
        ("PURPOSE_BUFFER_IMAGE", (Purpose::BufferImage as u8).to_string()),
    ]
}

//! Files of a store as one commit left it, pinned, so that a copy can be made elsewhere: in a
//! bucket of objects, for one.
//!
//! [`StoreReader::files`] lists every file that a copy needs, and keeps the writer from removing
//! any of them until the list is dropped. The list holds the manifest, the runs and blobs that the
//! manifest and the snapshots name, the snapshots, and the WAL from the checkpoint to the last
//! commit. A directory with exactly these files is a store: opening it recovers the commit.
//!
//! A copy differs from the directory in three points. Output of unfinished compactions is left
//! out, so every run file is sealed and never changes again. A segment of the WAL ends with its
//! last record and has no mark; each segment but the last one has a seal. Both copies of the
//! manifest are equal and have no edits.
//!
//! **Point in time.** The WAL is longer than the checkpoint needs if the reader keeps older
//! segments ([`StoreReader::keep_log_from`]). [`cut_log`] and [`manifest_until`] turn a copy into
//! the copy of an earlier commit, not below the commit of its manifest.
//!
//! Invariants: segments of a list have all numbers and all commits without a gap. Every page and
//! every record is checked when it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::files::read_file;
use terrane_io::{Access, AlignedBuf, Disk, DiskFile, MemoryDisk, OpenMode};

use crate::block::page::{PAGE_SIZE, PageAddress, check_crc};
use crate::corrupt::Corrupt;
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, RunRef, blobs_name, file_name};
use crate::manifest::manifest::{COPIES, StoreManifest};
use crate::manifest::snapshot_meta::{MANIFEST_BYTES_MAX, Refused, SessionMeta, SnapshotMeta};
use crate::manifest::wal::{
    LOG, SEGMENT_HEADER_SIZE, SegmentHeader, SegmentScan, segment_name, segment_start,
};
use crate::run::check::{CHUNK_PAGES, check_blobs_len, page_offset};
use crate::run::run::read_meta;
use crate::session::inner::{ACTIVE, METADATA, SNAPSHOT_SUFFIX, SNAPSHOTS, SessionInner};
use crate::session::snapshot;
use crate::session::transfer::check_blob_page;
use crate::store::inner::damaged;
use crate::store::reader::StoreReader;

/// Offset of the first record in a segment of the WAL: what comes before differs between copies of
/// one segment.
pub const LOG_RECORDS_OFFSET: u64 = SEGMENT_HEADER_SIZE;

/// Bytes of a log that are read with one call.
const LOG_CHUNK: u64 = 1 << 20;

/// Longest `metadata` that is read; the format fixes its length.
const METADATA_BYTES_MAX: u64 = 4096;

/// A file of a store that a copy needs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreFile {
    /// Path below the directory of the store, with `/` between names.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Kind of the file, with its identity.
    pub kind: StoreFileKind,
}

/// Kind of a file of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFileKind {
    /// Salt and creation of the session: the same in all copies of a store.
    Metadata,
    /// A copy of the manifest.
    Manifest,
    /// Metadata of a snapshot.
    Snapshot,
    /// A run. Two files of one identity and sum have equal bytes.
    Run {
        /// Identity of the run.
        identity: u64,
        /// CRC-32C of the footer page, which counts and sums all other pages.
        sum: u32,
    },
    /// The blobs of the run of that identity.
    Blobs {
        /// Identity of the run.
        identity: u64,
        /// The sum of the run.
        sum: u32,
    },
    /// A segment of the WAL.
    Log {
        /// Number of the segment.
        number: u64,
        /// Number of its first commit.
        first: u64,
        /// Number of its last commit; `first - 1` if it has none.
        last: u64,
        /// Whether it ends with a seal: a later segment follows.
        sealed: bool,
    },
}

/// Identity of the tables that a log applies to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TableSet {
    /// Number that the next table gets.
    pub next_table: u64,
    /// Numbers and names of the tables.
    pub tables: Vec<(u64, String)>,
}

/// Files of a store as of one commit; see the head of this module's source. The writer keeps them
/// until this is dropped.
#[derive(Debug)]
pub struct StoreFiles<'a> {
    reader: &'a StoreReader,
    parts: Parts,
}

impl Drop for StoreFiles<'_> {
    fn drop(&mut self) {
        // The lease of the log is renewed here; handles go by themselves, with the next lease.
        self.reader.let_log_go();
    }
}

/// Check of a page, by its number.
type PageCheck<'a> = &'a dyn Fn(&[u8], u32) -> std::result::Result<(), Corrupt>;

/// A segment, as far as its records belong to a list.
#[derive(Debug, Clone, Copy)]
struct Segment {
    number: u64,
    first: u64,
    last: u64,
    end: u64,
}

impl StoreReader {
    /// Refreshes the view and lists the files of the store as it is then, from the segment of
    /// [`keep_log_from`](Self::keep_log_from) on if that is still there. The writer is not
    /// disturbed, and removes none of the files until the list is dropped.
    ///
    /// Cost: as [`refresh`](Self::refresh); reads the footer of each run, each snapshot twice, and
    /// each listed segment of the WAL.
    ///
    /// # Errors
    /// The errors of [`refresh`](Self::refresh); [`Error::StoreCorrupted`] if a file is missing or
    /// damaged, [`Error::SnapshotCorrupted`].
    pub fn files(&mut self) -> Result<StoreFiles<'_>> {
        let listed = self.list_files();
        if listed.is_err() {
            self.let_log_go();
        }
        let parts = listed?;
        Ok(StoreFiles { reader: self, parts })
    }

    fn list_files(&mut self) -> Result<Parts> {
        let (commit, held, mut manifest, end) = self.refresh_pinned()?;
        let inner = self.inner();
        manifest.change_tables(&|meta| *meta = meta.clone().without_progress());
        // No feed of this store reads the copy.
        manifest.let_go_of_loads();

        let mut parts = Parts {
            commit,
            base_commit: manifest.commit,
            sequence: manifest.sequence,
            tables: manifest.table_set(),
            held,
            ..Parts::default()
        };

        let metadata = read_file(inner.disk(), &inner.dir().join(METADATA), METADATA_BYTES_MAX)?;
        parts.add_small(METADATA.to_owned(), StoreFileKind::Metadata, metadata);

        let mut runs: Vec<RunRef> =
            manifest.all_tables().flat_map(|table| table.meta.runs()).copied().collect();
        for name in snapshot::list(inner)? {
            let reading = match snapshot::read(inner, &name) {
                // Deleted in the meantime.
                Err(Error::SnapshotDoesNotExist { .. }) => continue,
                reading => reading?,
            };
            let meta: SnapshotMeta = reading.meta.clone().without_progress();
            parts.held.extend(inner.hold(meta.numbers())?);
            runs.extend(meta.runs().copied());
            let path = format!("{SNAPSHOTS}/{name}{SNAPSHOT_SUFFIX}");
            parts.add_small(path, StoreFileKind::Snapshot, meta.encode());
        }

        runs.sort_unstable_by_key(|run| run.number);
        runs.dedup_by_key(|run| run.number);
        for run in &runs {
            parts.add_run(inner, run).map_err(damaged)?;
        }

        parts.add_log(inner, &manifest, end, self.log_floor())?;
        let bytes = manifest.encode();
        for copy in COPIES {
            parts.add_small(copy.to_owned(), StoreFileKind::Manifest, bytes.clone());
        }
        Ok(parts)
    }
}

/// Files of a store, and what keeps them.
#[derive(Debug, Default)]
struct Parts {
    commit: u64,
    base_commit: u64,
    sequence: u64,
    tables: TableSet,
    files: Vec<StoreFile>,
    earlier_log: Vec<StoreFile>,
    /// Content of files that are not read from the directory, by path.
    small: BTreeMap<String, Vec<u8>>,
    /// Where the last record of each segment ends.
    log_ends: BTreeMap<u64, u64>,
    held: Vec<FileHandle>,
}

impl StoreManifest {
    fn table_set(&self) -> TableSet {
        let tables = self.tables.iter().map(|table| (table.id, table.name.clone())).collect();
        TableSet { next_table: self.next_table, tables }
    }
}

impl Parts {
    fn add_small(&mut self, path: String, kind: StoreFileKind, bytes: Vec<u8>) {
        self.files.push(StoreFile { path: path.clone(), bytes: bytes.len() as u64, kind });
        self.small.insert(path, bytes);
    }

    /// Adds the files of a run, whose footer must be the one that the manifest means.
    fn add_run(&mut self, inner: &SessionInner, run: &RunRef) -> Result<()> {
        let file = open_run_file(inner, &file_name(run.number))?;
        let footer = read_meta(file.path(), file.as_ref())?;
        snapshot::check_footer(file.path(), &footer, run)?;

        let mut page = AlignedBuf::zeroed(PAGE_SIZE);
        let bytes = file.len()?;
        file.read_at(&mut page, bytes - PAGE_SIZE as u64)?;
        let identity = run.identity;
        let sum = crc32c(&page);
        let path = format!("{ACTIVE}/{}", file_name(run.number));
        self.files.push(StoreFile { path, bytes, kind: StoreFileKind::Run { identity, sum } });

        if footer.blob_bytes > 0 {
            let name = blobs_name(run.number);
            let blobs = open_run_file(inner, &name)?;
            check_blobs_len(blobs.path(), blobs.as_ref(), &footer)?;
            let bytes = blobs.len()?;
            let kind = StoreFileKind::Blobs { identity, sum };
            self.files.push(StoreFile { path: format!("{ACTIVE}/{name}"), bytes, kind });
        }
        Ok(())
    }

    /// Adds the segments from the manifest's to `end`, those of versions, and the earlier ones from
    /// `floor` on that lead up to them.
    fn add_log(
        &mut self,
        inner: &SessionInner,
        manifest: &StoreManifest,
        end: Option<u64>,
        floor: u64,
    ) -> Result<()> {
        let Some(end) = end else { return Ok(()) };
        let mut numbers: BTreeSet<u64> = (manifest.segment..=end).collect();
        for group in manifest.groups().filter(|group| group.until() > 0) {
            numbers.extend(group.base().segment..=group.until());
        }

        let mut next = None;
        for number in numbers.iter().rev().copied() {
            let segment = scan(inner, number, self.commit).map_err(damaged)?;
            let segment = segment.ok_or_else(|| missing(inner, number))?;
            if number >= manifest.segment {
                let expected = next.unwrap_or(self.commit + 1);
                if segment.last + 1 != expected {
                    return Err(missing(inner, number));
                }
                next = Some(segment.first);
            }
            self.log_ends.insert(number, segment.end);
            self.files.push(segment.file(number < end));
        }

        // Earlier segments end where one is missing or does not lead up to the next one: a rollback
        // or an install is a commit without a record.
        let mut number = manifest.segment;
        let mut first = next.unwrap_or(self.commit + 1);
        while number > floor.max(1) {
            number -= 1;
            let Ok(Some(segment)) = scan(inner, number, self.commit) else { break };
            if segment.last + 1 != first {
                break;
            }
            first = segment.first;
            self.log_ends.insert(number, segment.end);
            self.earlier_log.push(segment.file(true));
        }
        self.earlier_log.reverse();
        Ok(())
    }
}

impl Segment {
    fn file(&self, sealed: bool) -> StoreFile {
        let Self { number, first, last, end } = *self;
        StoreFile {
            path: format!("{LOG}/{}", segment_name(number)),
            bytes: end,
            kind: StoreFileKind::Log { number, first, last, sealed },
        }
    }
}

/// Reads a segment up to the record of commit `until`; `None` if there is no such segment.
fn scan(inner: &SessionInner, number: u64, until: u64) -> Result<Option<Segment>> {
    let open = || match SegmentScan::open(inner.disk(), inner.dir(), inner.salt(), number) {
        Err(Error::Disk(error)) if error.is_not_found() => Ok(None),
        found => found,
    };
    let Some(mut scan) = open()? else { return Ok(None) };
    let (last, end) = pass(&mut scan, until)?;
    Ok(Some(Segment { number, first: scan.header.first, last, end }))
}

/// Passes the records up to commit `until`; returns the last commit, and where its record ends.
fn pass(scan: &mut SegmentScan, until: u64) -> Result<(u64, u64)> {
    let first = scan.header.first;
    let mut last = first.saturating_sub(1);
    let mut end = scan.position();
    while last < until && scan.advance()? {
        let expected = last + 1;
        if let Some(record) = scan.record().filter(|record| record.commit != expected) {
            return Err(record.damage("number of the commit", expected, record.commit));
        }
        last = expected;
        end = scan.position();
    }
    Ok((last, end))
}

fn missing(inner: &SessionInner, number: u64) -> Error {
    let path = inner.dir().join(LOG).join(segment_name(number));
    let reason = "the segment, or records in it, are missing".to_owned();
    Error::StoreCorrupted { path, reason }
}

fn open_run_file(inner: &SessionInner, name: &str) -> Result<Arc<dyn DiskFile>> {
    let path = inner.dir().join(ACTIVE).join(name);
    let open = || inner.disk().open(&path, OpenMode::Read, Access::Buffered);
    Ok(inner.files().handles().with_room(open)?)
}

impl StoreFiles<'_> {
    /// The last commit that the files have.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.parts.commit
    }

    /// The commit of the manifest: the WAL leads from there to [`commit`](Self::commit).
    #[must_use]
    pub fn base_commit(&self) -> u64 {
        self.parts.base_commit
    }

    /// Counts the manifests of the store: lists of one number have one base.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.parts.sequence
    }

    /// The named tables at the base. Records about other tables are passed over when the WAL is
    /// applied, so a log leads from one base over another only if the tables are equal.
    #[must_use]
    pub fn tables(&self) -> &TableSet {
        &self.parts.tables
    }

    /// All files, each path once.
    #[must_use]
    pub fn files(&self) -> &[StoreFile] {
        &self.parts.files
    }

    /// Segments of the WAL before the manifest's, ascending, that lead up to it without a gap.
    #[must_use]
    pub fn earlier_log(&self) -> &[StoreFile] {
        &self.parts.earlier_log
    }

    /// Reads a listed file from front to back, checks every page of a run, and hands the bytes on
    /// in pieces of at most 1 MiB.
    ///
    /// # Errors
    /// [`Error::StoreCorrupted`] for a page whose checksum is wrong, [`Error::Disk`],
    /// [`Error::SessionClosed`]; those of `take`.
    pub fn read<E: From<Error>>(
        &self,
        file: &StoreFile,
        take: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let inner = self.reader.inner();
        inner.check_open()?;
        if let Some(bytes) = self.parts.small.get(&file.path) {
            return take(bytes);
        }

        match file.kind {
            StoreFileKind::Log { number, first, last, sealed } => {
                let header = SegmentHeader { number, first };
                let end = self.parts.log_ends.get(&number).copied().unwrap_or(LOG_RECORDS_OFFSET);
                take(&segment_start(header, sealed.then_some(last)))?;

                let source = inner
                    .disk()
                    .open(&inner.dir().join(&file.path), OpenMode::Read, Access::Buffered)
                    .map_err(Error::from)?;
                let mut bytes = Vec::new();
                for at in (LOG_RECORDS_OFFSET..end).step_by(LOG_CHUNK as usize) {
                    bytes.resize((end - at).min(LOG_CHUNK) as usize, 0);
                    source.read_at(&mut bytes, at).map_err(Error::from)?;
                    take(&bytes)?;
                }
                Ok(())
            }
            StoreFileKind::Run { identity, .. } => self.read_pages(file, take, &|bytes, page| {
                check_crc(bytes, PageAddress { identity, page })
            }),
            StoreFileKind::Blobs { identity, .. } => self.read_pages(file, take, &|bytes, page| {
                check_blob_page(bytes, PageAddress { identity, page })
            }),
            _ => Ok(()),
        }
    }

    fn read_pages<E: From<Error>>(
        &self,
        file: &StoreFile,
        take: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
        check: PageCheck<'_>,
    ) -> std::result::Result<(), E> {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let source = open_run_file(self.reader.inner(), name)?;
        let pages = (file.bytes / PAGE_SIZE as u64) as u32;
        let mut chunk = AlignedBuf::zeroed(CHUNK_PAGES as usize * PAGE_SIZE);

        for first in (0..pages).step_by(CHUNK_PAGES as usize) {
            let count = CHUNK_PAGES.min(pages - first);
            let bytes = &mut chunk[..count as usize * PAGE_SIZE];
            source.read_at(bytes, page_offset(first)).map_err(Error::from)?;
            for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_SIZE)) {
                check(bytes, page).map_err(|what| damaged(Error::corrupt(source.path(), what)))?;
            }
            take(bytes)?;
        }
        Ok(())
    }
}

/// Name of the segment in the disk that [`cut_log`] scans.
const CUT_DIR: &str = "/cut";

/// Cuts a segment of the WAL behind the record of commit `last` and takes off its seal, so that it
/// can be the last one of a store. `metadata` is the file of that name.
///
/// # Errors
/// [`Error::StoreCorrupted`] if the bytes are no segment of that number, or end before the commit;
/// [`Error::UnknownVersion`].
pub fn cut_log(metadata: &[u8], number: u64, segment: &[u8], last: u64) -> Result<Vec<u8>> {
    let name = segment_name(number);
    let broken = |reason: String| {
        let path = Path::new(LOG).join(&name);
        Error::StoreCorrupted { path, reason }
    };
    let salt = match SessionMeta::decode(metadata) {
        Ok(meta) => meta.salt,
        Err(refused) => return Err(refused_at(METADATA, refused)),
    };

    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let dir = Path::new(CUT_DIR);
    for dir in [dir, &dir.join(LOG)] {
        disk.create_dir(dir)?;
    }
    let path = dir.join(LOG).join(&name);
    disk.open(&path, OpenMode::CreateNew, Access::Buffered)?.write_at(segment, 0)?;

    let scan = SegmentScan::open(disk.as_ref(), dir, salt, number)?;
    let mut scan = scan.ok_or_else(|| broken("not a segment of this number".to_owned()))?;
    let (found, end) = pass(&mut scan, last)?;
    if found != last {
        return Err(broken(format!("it ends with commit {found}, before commit {last}")));
    }

    let mut cut = segment_start(scan.header, None);
    cut.extend_from_slice(&segment[LOG_RECORDS_OFFSET as usize..end as usize]);
    Ok(cut)
}

/// The manifest as of an earlier commit, at which the WAL is cut: without the versions behind it.
///
/// # Errors
/// [`Error::StoreCorrupted`] if the bytes are no manifest, or `commit` is before the manifest's;
/// [`Error::UnknownVersion`].
pub fn manifest_until(manifest: &[u8], commit: u64) -> Result<Vec<u8>> {
    if manifest.len() as u64 > MANIFEST_BYTES_MAX {
        let reason = "longer than any manifest".to_owned();
        return Err(Error::StoreCorrupted { path: COPIES[0].into(), reason });
    }
    let mut manifest =
        StoreManifest::decode(manifest).map_err(|refused| refused_at(COPIES[0], refused))?;
    if commit < manifest.commit {
        let reason = format!("it begins with commit {}, after commit {commit}", manifest.commit);
        return Err(Error::StoreCorrupted { path: COPIES[0].into(), reason });
    }
    manifest.versions.retain(|version| version.number <= commit);
    Ok(manifest.encode())
}

fn refused_at(name: &str, refused: Refused) -> Error {
    let path = Path::new(name).to_owned();
    match refused {
        Refused::Damaged(reason) => Error::StoreCorrupted { path, reason },
        Refused::Version { found, newest } => Error::UnknownVersion { path, found, newest },
    }
}

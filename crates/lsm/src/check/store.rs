//! Looks at the manifest and the log of a store from outside, for `inspect` and `verify`: what is
//! there, and what of it is not as the formats say. Nothing is changed.
//!
//! The rules are those that opening a store follows. What no opening would mind is no fault:
//! segments that are not needed any more, one that was being made, the torn end of the log.

use std::path::{Path, PathBuf};

use terrane_io::files::read_file;
use terrane_io::{Access, Disk, EntryKind, OpenMode};

use crate::error::{Error, Result, unreadable};
use crate::manifest::manifest::{self, COPIES, StoreManifest, VersionGroup};
use crate::manifest::snapshot_meta::{MANIFEST_BYTES_MAX, Refused};
use crate::manifest::wal::{
    LOG, SEAL_OFFSET, SEGMENT_HEADER_SIZE, SegmentHeader, SegmentScan, segment_name, segments,
};
use crate::store::recovery;

/// How often a copy is read that another process may be writing.
const ATTEMPTS_MAX: usize = 16;

/// Something that is not as the formats say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    pub(crate) rule: String,
}

/// A copy of the manifest.
#[derive(Debug)]
pub(crate) enum ManifestCopy {
    Missing,
    Whole(StoreManifest),
    Refused(Refused),
}

impl ManifestCopy {
    pub(crate) fn manifest(&self) -> Option<&StoreManifest> {
        match self {
            Self::Whole(manifest) => Some(manifest),
            Self::Missing | Self::Refused(_) => None,
        }
    }
}

/// Both copies, each with its file.
#[derive(Debug)]
pub(crate) struct ManifestCopies(pub(crate) [(PathBuf, ManifestCopy); 2]);

impl ManifestCopies {
    /// Reads them.
    ///
    /// # Errors
    /// [`Error::Disk`]. Damage is none.
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Self> {
        let read = |name: &str| -> Result<_> {
            let path = dir.join(name);
            let copy = read_copy(disk, &path)?;
            Ok((path, copy))
        };
        Ok(Self([read(COPIES[0])?, read(COPIES[1])?]))
    }

    pub(crate) fn manifests(&self) -> impl Iterator<Item = &StoreManifest> {
        self.0.iter().filter_map(|(_, copy)| copy.manifest())
    }

    /// The one that counts.
    pub(crate) fn newest(&self) -> Option<&StoreManifest> {
        self.manifests().max_by_key(|manifest| manifest.age())
    }

    /// Whether a copy lacks edits of the other one that no crash takes away: they are appended to
    /// the first copy, and are durable there before they go to the second.
    pub(crate) fn has_lost_edits(&self, at: usize) -> bool {
        let [first, second] = [0, 1].map(|at: usize| self.0[at].1.manifest());
        let (Some(first), Some(second)) = (first, second) else { return false };
        first.sequence == second.sequence
            && match at {
                0 => first.edits < second.edits,
                // The second copy may lack the last edit, since a crash can leave that edit in the
                // first only.
                _ => second.edits + 1 < first.edits,
            }
    }

    /// The bytes of the copy that counts, with its whole edits.
    pub(crate) fn newest_bytes(&self, disk: &dyn Disk) -> Result<Vec<u8>> {
        let age = self.newest().map(StoreManifest::age);
        for (path, copy) in &self.0 {
            if copy.manifest().map(StoreManifest::age) == age {
                let mut bytes = read_file(disk, path, MANIFEST_BYTES_MAX)?;
                // Bytes behind the last whole edit are a torn edit.
                bytes.truncate(StoreManifest::whole_len(&bytes));
                return Ok(bytes);
            }
        }
        Ok(Vec::new())
    }

    pub(crate) fn are_missing(&self) -> bool {
        self.0.iter().all(|(_, copy)| matches!(copy, ManifestCopy::Missing))
    }
}

/// Reads a copy of the manifest. What a writer is just overwriting is read again.
pub(crate) fn read_copy(disk: &dyn Disk, path: &Path) -> Result<ManifestCopy> {
    let damaged = |reason: &str| ManifestCopy::Refused(Refused::Damaged(reason.to_owned()));
    let mut before = None;
    for _ in 0..ATTEMPTS_MAX {
        let bytes = match read_file(disk, path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(ManifestCopy::Missing),
            Err(terrane_io::Error::ShortRead { .. }) => continue,
            Err(error) => {
                return Ok(damaged(&manifest::read_fault(&error).ok_or(error)?));
            }
        };

        match StoreManifest::decode(&bytes) {
            Ok(manifest) => return Ok(ManifestCopy::Whole(manifest)),
            // Equal bytes in two reads mean damage: a writer at work would have changed them.
            Err(refused) if before.as_ref() == Some(&bytes) => {
                return Ok(ManifestCopy::Refused(refused));
            }
            Err(_) => before = Some(bytes),
        }
    }

    Ok(damaged("changes whenever it is read"))
}

/// Where there is no copy of the manifest: what tells that there must have been one, if anything
/// does.
///
/// # Errors
/// [`Error::Disk`].
pub(crate) fn lost_manifest(disk: &dyn Disk, dir: &Path) -> Result<Option<Fault>> {
    match manifest::lost(disk, dir) {
        Ok(lost) => Ok(lost.map(|(path, rule)| Fault { path, offset: 0, rule })),
        Err(Error::UnknownVersion { path, found, newest }) => {
            let rule = Refused::Version { found, newest }.to_string();
            Ok(Some(Fault { path, offset: 0, rule }))
        }
        Err(error) => Err(error),
    }
}

/// Purpose of a WAL segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SegmentUse {
    /// Opening the store, or one of its versions, applies its records.
    Needed,
    /// A checkpoint holds all of it: to be written again or removed.
    Old,
    /// It was being made when the process ended, or is just now: nothing is in it yet.
    Unfinished,
    /// Nothing says what it is a part of.
    Unknown,
}

/// A segment of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The file.
    pub path: PathBuf,
    /// Its number.
    pub number: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Purpose of the segment.
    pub usage: SegmentUse,
    /// Records of the segment; `None` if the segment is not needed or cannot be read.
    pub records: Option<RecordsInfo>,
}

/// The records of a segment, up to the first one that is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RecordsInfo {
    /// The number of the first commit, also if it is not there yet.
    pub first_commit: u64,
    /// How many commits there are.
    pub commits: u64,
    /// How many updates they have.
    pub updates: u64,
    /// Where they end, in bytes.
    pub end: u64,
    /// Whether the segment is sealed, as all but the last two are.
    pub is_sealed: bool,
}

impl RecordsInfo {
    fn next_commit(&self) -> u64 {
        self.first_commit.saturating_add(self.commits)
    }
}

/// The log of a store as far as its manifest needs it, and the other segments that are there.
#[derive(Debug, Default)]
pub(crate) struct LogWalk {
    /// By number.
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) faults: Vec<Fault>,
}

/// Reads the log of a store, as opening it does with that manifest.
///
/// Cost: reads the needed segments.
///
/// # Errors
/// [`Error::Disk`]. Damage is none.
pub(crate) fn walk_log(
    disk: &dyn Disk,
    dir: &Path,
    salt: u64,
    manifest: Option<&StoreManifest>,
) -> Result<LogWalk> {
    let mut walk = LogWalk::default();
    let has_log = disk.kind(&dir.join(LOG))? == Some(EntryKind::Directory);
    let numbers = if has_log { segments(disk, dir)? } else { Vec::new() };
    let needed_from = manifest.map_or(0, |manifest| manifest.segment);

    let mut needed_to = needed_from;
    if let Some(manifest) = manifest.filter(|manifest| manifest.segment > 0) {
        needed_to = walk.needed(disk, (dir, salt), &numbers, manifest)?;
    }

    for group in manifest.iter().flat_map(|manifest| manifest.groups()) {
        let next_table = manifest.map_or(0, |manifest| manifest.next_table);
        walk.needed_by_versions(disk, (dir, salt), &numbers, (group, next_table))?;
    }

    for number in numbers {
        if walk.segments.iter().any(|segment| segment.number == number) {
            continue;
        }

        // What stands behind damage may be needed and cannot be judged.
        let is_sound = walk.faults.is_empty();
        let usage = if manifest.is_none() {
            SegmentUse::Unknown
        } else if needed_from == 0 || number < needed_from {
            SegmentUse::Old
        } else if number > needed_to && is_sound {
            SegmentUse::Unfinished
        } else {
            SegmentUse::Unknown
        };

        let path = dir.join(LOG).join(segment_name(number));

        // Beside a process that has the store open it may go meanwhile.
        let Ok(file) = disk.open(&path, OpenMode::Read, Access::Buffered) else { continue };
        let bytes = file.len()?;
        walk.segments.push(SegmentInfo { path, number, bytes, usage, records: None });
    }

    walk.segments.sort_by_key(|segment| segment.number);
    Ok(walk)
}

impl LogWalk {
    /// Reads a segment that follows on some commit, unless that has been done; `None` if it cannot
    /// be read.
    fn needed_segment(
        &mut self,
        disk: &dyn Disk,
        (dir, salt): (&Path, u64),
        numbers: &[u64],
        (number, next_commit, next_table): (u64, u64, u64),
    ) -> Result<Option<RecordsInfo>> {
        // Tables and versions may need the same segment, which is read once.
        if let Some(known) = self.segments.iter().find(|segment| segment.number == number) {
            return Ok(known.records);
        }
        let path = dir.join(LOG).join(segment_name(number));

        let fault =
            |offset, rule: &str| Fault { path: path.clone(), offset, rule: rule.to_owned() };
        if !numbers.contains(&number) {
            self.faults.push(fault(0, "the file is missing"));
            return Ok(None);
        }

        let not_one = || fault(0, "not a segment of the log");
        let opened = open_segment(disk, (dir, salt), number)?;
        let scan = match opened.and_then(|scan| scan.ok_or_else(not_one)) {
            Ok(scan) => scan,
            Err(fault) => {
                self.faults.push(fault);
                return Ok(None);
            }
        };

        let first = scan.header.first;
        // Commits are numbered without gaps across segments.
        if first != next_commit {
            let what = "first commit of the segment";
            let rule = format!("{what}: expected {next_commit}, found {first}");
            self.faults.push(fault(0, &rule));
        }

        let bytes = scan.file_bytes();
        let records = walk_segment(scan, &path, Some(next_table), &mut self.faults)?;
        let usage = SegmentUse::Needed;
        self.segments.push(SegmentInfo { path, number, bytes, usage, records: Some(records) });
        Ok(Some(records))
    }

    /// Reads the segments that a manifest needs for its tables. Returns the number of the last one.
    fn needed(
        &mut self,
        disk: &dyn Disk,
        (dir, salt): (&Path, u64),
        numbers: &[u64],
        manifest: &StoreManifest,
    ) -> Result<u64> {
        let mut number = manifest.segment;
        let mut next_commit = manifest.commit.saturating_add(1);
        loop {
            let wanted = (number, next_commit, manifest.next_table);
            let Some(records) = self.needed_segment(disk, (dir, salt), numbers, wanted)? else {
                return Ok(number);
            };

            let following = number.saturating_add(1);
            if !records.is_sealed
                && !self.is_followed(disk, (dir, salt), numbers, (number, &records))?
            {
                return Ok(number);
            }

            next_commit = records.next_commit();
            number = following;
        }
    }

    /// Whether the log goes on behind a segment that is not sealed: the process may have died
    /// between its switch to the next one and the seal.
    fn is_followed(
        &mut self,
        disk: &dyn Disk,
        (dir, salt): (&Path, u64),
        numbers: &[u64],
        (number, records): (u64, &RecordsInfo),
    ) -> Result<bool> {
        let following = number.saturating_add(1);
        if !numbers.contains(&following) {
            return Ok(false);
        }
        let mut next = match open_segment(disk, (dir, salt), following)? {
            Ok(Some(next)) => next,
            Ok(None) => return Ok(false),
            Err(fault) => {
                self.faults.push(fault);
                return Ok(false);
            }
        };

        let next_commit = records.next_commit();
        let is_followed = next.header.first == next_commit;
        let told = match next.told_durable() {
            // The walk comes to that place, or finds that nobody needs the segment.
            Err(Error::Disk(error)) if unreadable(&error).is_some() => 0,
            told => told?,
        };
        if told < next_commit {
            return Ok(is_followed);
        }

        // Something behind was durable, so that the seal was, too.
        let path = dir.join(LOG).join(segment_name(number));
        if is_followed {
            let rule = "the seal is missing".to_owned();
            self.faults.push(Fault { path, offset: SEAL_OFFSET, rule });
        } else {
            let last = next_commit.saturating_sub(1);
            let rule = format!("last commit known to be durable: expected {told}, found {last}");
            self.faults.push(Fault { path, offset: records.end, rule });
        }
        Ok(is_followed)
    }

    /// Reads the segments that lead from a base to its versions; tables have numbers below the one
    /// given.
    fn needed_by_versions(
        &mut self,
        disk: &dyn Disk,
        (dir, salt): (&Path, u64),
        numbers: &[u64],
        (group, next_table): (VersionGroup<'_>, u64),
    ) -> Result<()> {
        let mut next_commit = group.base().commit.saturating_add(1);
        let mut number = group.base().segment;
        while number <= group.until() {
            let wanted = (number, next_commit, next_table);
            let Some(records) = self.needed_segment(disk, (dir, salt), numbers, wanted)? else {
                return Ok(());
            };
            next_commit = records.next_commit();
            let is_last = number == group.until();

            let last = group.0.last().map_or(0, |version| version.number);
            // Only the last segment may end without a seal, and the last version must be in it.
            let is_short = if is_last { next_commit <= last } else { !records.is_sealed };
            if is_short {
                let path = dir.join(LOG).join(segment_name(number));
                let rule = recovery::ends_before(last, next_commit.saturating_sub(1));
                self.faults.push(Fault { path, offset: records.end, rule });
                return Ok(());
            }

            number += 1;
        }

        Ok(())
    }
}

/// A segment before its first record; `None` if it was never finished. One of another version is a
/// fault.
fn open_segment(
    disk: &dyn Disk,
    (dir, salt): (&Path, u64),
    number: u64,
) -> Result<std::result::Result<Option<SegmentScan>, Fault>> {
    match SegmentScan::open(disk, dir, salt, number) {
        Err(Error::UnknownVersion { path, found, newest }) => {
            let rule = Refused::Version { found, newest }.to_string();
            Ok(Err(Fault { path, offset: 0, rule }))
        }
        Err(Error::Disk(error)) => {
            let path = dir.join(LOG).join(segment_name(number));
            let rule = unreadable(&error).ok_or(error)?;
            Ok(Err(Fault { path, offset: 0, rule }))
        }
        opened => opened.map(Ok),
    }
}

/// Reads the records of a segment; tables have numbers below `next_table`, if that is known.
fn walk_segment(
    mut scan: SegmentScan,
    path: &Path,
    next_table: Option<u64>,
    faults: &mut Vec<Fault>,
) -> Result<RecordsInfo> {
    let first_commit = scan.header.first;
    let mut records = RecordsInfo {
        first_commit,
        commits: 0,
        updates: 0,
        end: SEGMENT_HEADER_SIZE,
        is_sealed: scan.sealed().is_some(),
    };

    let mut fault = |offset, rule| faults.push(Fault { path: path.to_owned(), offset, rule });
    loop {
        let at = scan.position();
        let record = match scan.next() {
            Err(Error::Disk(error)) => {
                fault(at, unreadable(&error).ok_or(error)?);
                return Ok(records);
            }
            record => record?,
        };

        let Some(record) = record else { break };

        let expected = records.next_commit();
        let found = record.commit;
        // A gap in the numbers means that a record is lost or misplaced.
        if found != expected {
            fault(at, format!("number of the commit: expected {expected}, found {found}"));
        }

        match record.parts() {
            Err(overrun) => fault(at, format!("updates of commit {found}: {overrun}")),
            Ok(parts) => {
                for part in &parts {
                    records.updates += part.updates.len() as u64;
                    // The manifest never gave out a table number from `next_table` on.
                    if next_table.is_some_and(|next| part.table >= next) {
                        let table = part.table;
                        fault(at, format!("commit {found} is of table {table}, which never was"));
                    }
                }
            }
        }

        records.commits += 1;
        records.end = scan.position();
    }

    // The end comes last: the segment may tell of commits beyond its last whole record.
    let last = records.next_commit().saturating_sub(1);
    match scan.check_end(last) {
        Err(Error::Corrupt { what, .. }) => {
            let expected = what.expected;
            let found = what.found;
            fault(records.end, format!("{}: expected {expected}, found {found}", what.rule));
        }
        checked => checked?,
    }

    Ok(records)
}

/// Reads one segment, which stands in the log of a store with that salt.
///
/// # Errors
/// [`Error::Disk`]; [`Error::StoreCorrupted`] if it is none; [`Error::UnknownVersion`].
pub(crate) fn read_segment(
    disk: &dyn Disk,
    dir: &Path,
    salt: u64,
    number: u64,
) -> Result<(SegmentInfo, Vec<Fault>)> {
    let path = dir.join(LOG).join(segment_name(number));
    let bytes = disk.open(&path, OpenMode::Read, Access::Buffered)?.len()?;
    let Some(scan) = SegmentScan::open(disk, dir, salt, number)? else {
        let reason = "not a segment of the log".to_owned();
        return Err(Error::StoreCorrupted { path, reason });
    };
    let mut faults = Vec::new();
    let records = walk_segment(scan, &path, None, &mut faults)?;
    let usage = SegmentUse::Unknown;
    Ok((SegmentInfo { path, number, bytes, usage, records: Some(records) }, faults))
}

/// Describes a segment outside a store by its own header.
///
/// # Errors
/// [`Error::Disk`]; [`Error::StoreCorrupted`] if it is none; [`Error::UnknownVersion`].
pub(crate) fn read_header(disk: &dyn Disk, path: &Path) -> Result<SegmentInfo> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
    let bytes = file.len()?;
    let mut start = vec![0; bytes.min(SEGMENT_HEADER_SIZE) as usize];
    file.read_at(&mut start, 0)?;

    let header = SegmentHeader::decode(&start).map_err(|refused| match refused {
        Refused::Damaged(_) => {
            let reason = "damaged header of a segment of the log".to_owned();
            Error::StoreCorrupted { path: path.to_owned(), reason }
        }
        Refused::Version { found, newest } => {
            Error::UnknownVersion { path: path.to_owned(), found, newest }
        }
    })?;

    let number = header.number;
    let usage = SegmentUse::Unknown;
    Ok(SegmentInfo { path: path.to_owned(), number, bytes, usage, records: None })
}

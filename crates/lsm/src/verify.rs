//! Checks everything of a session directory, and repairs what can be repaired without loss.
//!
//! What is checked: the session's metadata; each snapshot's metadata; that each run it names is there, with
//! the identity and length that the snapshot says; and of each run every page's checksum and place, the
//! order and number of the keys, that the filter contains every key, that the index leads to every key,
//! and that the footer's sums are right.
//!
//! What is repaired: a run whose data pages are all whole is written anew if its filter, index or footer is
//! not; `metadata` is written anew from the salt in the runs. Both go into a new file that takes the place
//! of the damaged one by a rename; nothing else is touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::disk::{read_file, replace_file};
use terrane_io::{Access, AlignedBuf, Disk, DiskFile, EntryKind, OpenMode};

use crate::corrupt::Corrupt;
use crate::entry::{EntryRef, Kind, key_hash};
use crate::error::{Error, Result};
use crate::files::{FileSet, file_number};
use crate::filter::FilterAllocation;
use crate::index::IndexKind;
use crate::manifest::{MANIFEST_BYTES_MAX, RunRef, SessionMeta};
use crate::page::{PAGE_SIZE, PageKind, PageLayout, Place, decode_payload, overflow_pages};
use crate::run::{Purpose, Run, RunMeta, read_meta};
use crate::run_builder::{RunBuilder, RunPlan};
use crate::session_core::{
    ACTIVE, METADATA, SNAPSHOT_SUFFIX, SNAPSHOTS, lock_dir, read_snapshot, snapshot_names,
};

/// Pages that are read with one call.
const CHUNK_PAGES: u32 = 64;

/// Something that is not as the formats say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the directory that lacks one.
    pub path: PathBuf,
    /// Where in the file, in bytes; a multiple of 4096 for run files.
    pub offset: u64,
    /// What is wrong.
    pub rule: String,
    /// Whether it has been repaired.
    pub repaired: bool,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order of the check; empty if all is well.
    pub problems: Vec<Problem>,
    /// What is worth knowing but wrong in no way.
    pub notes: Vec<String>,
    /// Snapshots checked.
    pub snapshots: u64,
    /// Run files checked.
    pub runs: u64,
    /// Pages checked.
    pub pages: u64,
    /// Entries checked.
    pub entries: u64,
}

impl Report {
    /// Whether nothing is wrong (any more).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    fn add(&mut self, path: &Path, offset: u64, rule: impl Into<String>) {
        let (path, rule) = (path.to_owned(), rule.into());
        self.problems.push(Problem { path, offset, rule, repaired: false });
    }

    /// Notes an error that is a finding; an error of the disk is not one, unless bytes are missing.
    fn add_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { path, what } => {
                let rule =
                    format!("{}: expected {}, found {}", what.rule, what.expected, what.found);
                self.add(&path, u64::from(what.page) * PAGE_SIZE as u64, rule);
            }
            Error::SnapshotCorrupted { path, reason, .. }
            | Error::SessionDirCorrupted { path, reason } => self.add(&path, 0, reason),
            Error::UnknownVersion { ref path, .. } => self.add(path, 0, error.to_string()),
            Error::Disk(terrane_io::Error::ShortRead { path, offset, .. }) => {
                self.add(&path, offset, "the file ends early");
            }
            Error::Disk(terrane_io::Error::Io { path, source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                self.add(&path, 0, "the file is missing");
            }
            error => return Err(error),
        }
        Ok(())
    }
}

/// Told about progress: bytes checked, and bytes to check in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Checks the session in `dir`, which nobody may hold.
///
/// Cost: reads every page of every run that a snapshot refers to, once.
///
/// # Errors
/// [`Error::SessionDirDoesNotExist`], [`Error::SessionDirLocked`], [`Error::Disk`]. Damage is no error but
/// part of the report.
pub fn verify(disk: &Arc<dyn Disk>, dir: &Path, progress: Progress<'_>) -> Result<Report> {
    Check::new(disk, dir, false)?.run(progress)
}

/// Checks the session in `dir` and repairs what can be repaired without loss.
///
/// Cost: that of [`verify`], and writing each run that is repaired.
///
/// # Errors
/// As [`verify`].
pub fn repair(disk: &Arc<dyn Disk>, dir: &Path, progress: Progress<'_>) -> Result<Report> {
    Check::new(disk, dir, true)?.run(progress)
}

struct Check<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    repair: bool,
    report: Report,
    done_bytes: u64,
    total_bytes: u64,
    // Held until the check ends.
    _lock: Box<dyn terrane_io::LockGuard>,
}

/// An entry met on the way through a run, and where.
struct Met<'a> {
    entry: EntryRef<'a>,
    /// Ordinal of its key page.
    ordinal: u32,
    /// Number of its key page, and pages of the entry.
    page: u32,
    pages: u32,
}

impl<'a> Check<'a> {
    fn new(disk: &'a Arc<dyn Disk>, dir: &'a Path, repair: bool) -> Result<Self> {
        // The lock file would be created in any directory: a foreign one is to be left as it is.
        let parts = [METADATA, ACTIVE, SNAPSHOTS];
        if disk.kind(dir)? == Some(EntryKind::Directory) {
            let entries = disk.list(dir)?;
            if !entries.iter().any(|entry| parts.contains(&&*entry.name)) {
                let reason = "it holds no part of a session".to_owned();
                return Err(Error::SessionDirCorrupted { path: dir.to_owned(), reason });
            }
        }
        Ok(Self {
            disk,
            dir,
            repair,
            report: Report::default(),
            done_bytes: 0,
            total_bytes: 0,
            _lock: lock_dir(disk.as_ref(), dir)?,
        })
    }

    fn run(mut self, progress: Progress<'_>) -> Result<Report> {
        for name in [ACTIVE, SNAPSHOTS] {
            if self.disk.kind(&self.dir.join(name))? != Some(EntryKind::Directory) {
                self.report.add(self.dir, 0, format!("missing {name} directory"));
            }
        }
        if !self.report.problems.is_empty() {
            return Ok(self.report);
        }
        let wanted = self.check_snapshots()?;
        let salt = self.check_metadata(&wanted)?;
        self.note_strays(&wanted)?;
        let next_number = wanted.keys().max().map_or(0, |number| number.saturating_add(1));
        let active = self.dir.join(ACTIVE);
        let free =
            self.disk.list(&active)?.iter().filter_map(|entry| file_number(&entry.name)).max();
        let next_number = next_number.max(free.map_or(0, |number| number.saturating_add(1)));
        let files = Arc::new(FileSet::new(Arc::clone(self.disk), active, next_number));
        // Pinned, so that no handle removes a file when it goes.
        files.pin(wanted.keys().copied());
        let bytes = |run: &RunRef| u64::from(run.data_pages) * PAGE_SIZE as u64;
        self.total_bytes = wanted.values().map(|(run, _)| bytes(run)).sum();
        for (run, purpose) in wanted.values() {
            progress(self.done_bytes, self.total_bytes);
            self.check_run(&files, run, *purpose, salt)?;
            self.done_bytes += bytes(run);
        }
        progress(self.done_bytes, self.total_bytes);
        Ok(self.report)
    }

    /// The runs that snapshots refer to, by number.
    fn check_snapshots(&mut self) -> Result<BTreeMap<u64, (RunRef, Purpose)>> {
        let mut wanted: BTreeMap<u64, (RunRef, Purpose)> = BTreeMap::new();
        for name in snapshot_names(self.disk.as_ref(), self.dir)? {
            self.report.snapshots += 1;
            let path = self.dir.join(SNAPSHOTS).join(format!("{name}{SNAPSHOT_SUFFIX}"));
            let meta = match read_snapshot(self.disk.as_ref(), self.dir, &name) {
                Ok(meta) => meta,
                Err(error) => {
                    self.report.add_error(error)?;
                    continue;
                }
            };
            for run in meta.runs() {
                let image = meta.image.as_ref() == Some(run);
                let purpose = if image { Purpose::BufferImage } else { Purpose::Level };
                let known = wanted.entry(run.number).or_insert((*run, purpose));
                if *known != (*run, purpose) {
                    let rule =
                        format!("refers to another run {} than an earlier snapshot", run.number);
                    self.report.add(&path, 0, rule);
                }
            }
        }
        Ok(wanted)
    }

    /// Checks `metadata` and returns the salt, if anything tells it.
    fn check_metadata(&mut self, wanted: &BTreeMap<u64, (RunRef, Purpose)>) -> Result<Option<u64>> {
        let path = self.dir.join(METADATA);
        let reason = match read_file(self.disk.as_ref(), &path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => match SessionMeta::decode(&bytes) {
                Ok(meta) => return Ok(Some(meta.salt)),
                Err(refused) => refused.to_string(),
            },
            Err(error) if error.is_not_found() => "the file is missing".to_owned(),
            Err(error) => return Err(error.into()),
        };
        self.report.add(&path, 0, reason);
        let salt = wanted.values().find_map(|(run, _)| {
            let path = self.run_path(run.number);
            let file = self.disk.open(&path, OpenMode::Read, Access::Buffered).ok()?;
            let meta = read_meta(&path, file.as_ref()).ok()?;
            (meta.identity == run.identity).then_some(meta.salt)
        });
        if let (true, Some(salt)) = (self.repair, salt) {
            let meta = SessionMeta { salt, created_ns: 0 };
            replace_file(self.disk.as_ref(), &path, &meta.encode())?;
            self.mark_repaired();
        }
        Ok(salt)
    }

    fn run_path(&self, number: u64) -> PathBuf {
        self.dir.join(ACTIVE).join(crate::files::file_name(number))
    }

    fn mark_repaired(&mut self) {
        if let Some(problem) = self.report.problems.last_mut() {
            problem.repaired = true;
        }
    }

    fn note_strays(&mut self, wanted: &BTreeMap<u64, (RunRef, Purpose)>) -> Result<()> {
        let entries = self.disk.list(&self.dir.join(ACTIVE))?;
        let stray = |name: &str| !file_number(name).is_some_and(|n| wanted.contains_key(&n));
        let strays = entries.iter().filter(|entry| stray(&entry.name)).count();
        if strays > 0 {
            let note =
                format!("{strays} files in {ACTIVE} belong to no snapshot; opening removes them");
            self.report.notes.push(note);
        }
        Ok(())
    }

    fn check_run(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &RunRef,
        purpose: Purpose,
        salt: Option<u64>,
    ) -> Result<()> {
        self.report.runs += 1;
        let before = self.report.problems.len();
        let path = self.run_path(wanted.number);
        let run = match Run::open(files, wanted.number, Access::Buffered) {
            Ok(run) => run,
            Err(error) => {
                self.report.add_error(error)?;
                return self.repair_run(files, wanted, purpose, salt, before);
            }
        };
        let meta = *run.meta();
        let footer = (meta.pages() - 1) * PAGE_SIZE as u64;
        if (meta.identity, meta.data_pages) != (wanted.identity, wanted.data_pages) {
            self.report.add(&path, footer, "is not the run that the snapshot refers to");
            return Ok(());
        }
        if salt.is_some_and(|salt| salt != meta.salt) {
            self.report.add(&path, footer, "salt differs from that of the session");
        }
        if meta.purpose != purpose {
            self.report.add(&path, footer, "purpose differs from that in the snapshot");
        }
        let mut sums = RunMeta::new(meta.purpose, meta.identity, meta.salt);
        let mut last_page = None;
        let mut broken: Option<Problem> = None;
        let walked = walk(&path, run.file().as_ref(), wanted.identity, meta.data_pages, |met| {
            let Met { entry, ordinal, page, pages } = met;
            add_to_sums(&mut sums, &entry);
            if last_page != Some(page) {
                last_page = Some(page);
                sums.key_pages += 1;
                sums.data_pages = page + pages;
            }
            let rule = if run.entry_pages(ordinal) != (page, pages) {
                "the index section misplaces a page"
            } else if meta.purpose == Purpose::Level
                && !run.filter().contains(key_hash(meta.salt, entry.key))
            {
                "the filter lacks a key"
            } else if !leads_to(&run, entry.key, page) {
                "the index does not lead to a key"
            } else {
                return;
            };
            broken.get_or_insert_with(|| Problem {
                path: path.clone(),
                offset: u64::from(page) * PAGE_SIZE as u64,
                rule: rule.to_owned(),
                repaired: false,
            });
        });
        self.report.pages += meta.pages();
        self.report.entries += sums.entries;
        if let Err(error) = walked {
            // Data is lost: nothing to repair it from.
            return self.report.add_error(error);
        }
        self.report.problems.extend(broken);
        let expected = RunMeta {
            entries: sums.entries,
            deletes: sums.deletes,
            key_bytes: sums.key_bytes,
            value_bytes: sums.value_bytes,
            key_pages: sums.key_pages,
            data_pages: sums.data_pages,
            ..meta
        };
        if expected != meta {
            self.report.add(&path, footer, "the footer's sums are not those of the entries");
        }
        drop(run);
        if self.report.problems.len() > before {
            return self.repair_run(files, wanted, purpose, salt, before);
        }
        Ok(())
    }

    /// Writes a run anew from its data pages, if they are whole, and marks the problems found since
    /// `before` as repaired.
    fn repair_run(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &RunRef,
        purpose: Purpose,
        salt: Option<u64>,
        before: usize,
    ) -> Result<()> {
        let path = self.run_path(wanted.number);
        let Some(salt) = salt.filter(|_| self.repair) else { return Ok(()) };
        let Ok(file) = self.disk.open(&path, OpenMode::Read, Access::Buffered) else {
            return Ok(());
        };
        let data_pages = wanted.data_pages;
        // The first pass finds out whether all is whole, and what there is; the second one copies.
        let mut sums = RunMeta::new(purpose, wanted.identity, salt);
        let (mut lower, mut upper) = (None, Vec::new());
        let counted = walk(&path, file.as_ref(), wanted.identity, data_pages, |met| {
            add_to_sums(&mut sums, &met.entry);
            lower.get_or_insert_with(|| met.entry.key.to_vec());
            upper.clear();
            upper.extend_from_slice(met.entry.key);
        });
        if counted.is_err() || sums.entries == 0 {
            return Ok(());
        }
        let plan = RunPlan {
            purpose,
            salt,
            access: Access::Buffered,
            lower: lower.unwrap_or_default(),
            upper,
            entries_max: sums.entries,
            pages_max: u64::from(data_pages),
            filter: (purpose == Purpose::Level).then_some(FilterAllocation::Fpr(1e-3)),
            index: IndexKind::Auto,
        };
        let mut builder = RunBuilder::replacing(files, &plan, wanted.identity)?;
        let mut failed = Ok(());
        walk(&path, file.as_ref(), wanted.identity, data_pages, |met| {
            if failed.is_ok() {
                failed = builder.push(met.entry, || key_hash(salt, met.entry.key));
            }
        })?;
        failed?;
        let Some(run) = builder.finish()? else { return Ok(()) };
        run.file().sync()?;
        self.disk.rename(run.path(), &path)?;
        self.disk.sync_dir(&self.dir.join(ACTIVE))?;
        self.report.problems[before..].iter_mut().for_each(|problem| problem.repaired = true);
        Ok(())
    }
}

fn add_to_sums(sums: &mut RunMeta, entry: &EntryRef<'_>) {
    sums.entries += 1;
    sums.deletes += u64::from(entry.kind == Kind::Delete);
    sums.key_bytes += entry.key.len() as u64;
    sums.value_bytes += entry.value.len() as u64;
}

/// Whether a lookup of `key` comes to `page`.
fn leads_to(run: &Run, key: &[u8], page: u32) -> bool {
    let mut location = run.locate(key);
    while let Some(found) = location {
        if found.page <= page {
            return found.page == page;
        }
        location = run.locate_before(found, key);
    }
    false
}

/// Reads all data pages of a file in order and tells `visit` of each entry.
fn walk(
    path: &Path,
    file: &dyn DiskFile,
    identity: u64,
    data_pages: u32,
    mut visit: impl FnMut(Met<'_>),
) -> Result<()> {
    let corrupt = |what| Error::corrupt(path, what);
    let mut chunk = AlignedBuf::zeroed(CHUNK_PAGES as usize * PAGE_SIZE);
    let (mut first, mut count) = (0, 0);
    let mut load = |page: u32, into: &mut [u8]| -> Result<()> {
        if page < first || page >= first + count {
            if page >= data_pages {
                return Err(corrupt(Corrupt {
                    page,
                    rule: "overflow pages within the data pages",
                    expected: u64::from(data_pages),
                    found: u64::from(page),
                }));
            }
            (first, count) = (page, CHUNK_PAGES.min(data_pages - page));
            let bytes = count as usize * PAGE_SIZE;
            file.read_at(&mut chunk[..bytes], u64::from(page) * PAGE_SIZE as u64)?;
        }
        let at = (page - first) as usize * PAGE_SIZE;
        into.copy_from_slice(&chunk[at..at + PAGE_SIZE]);
        Ok(())
    };
    let mut bytes = vec![0; PAGE_SIZE];
    let mut overflow = vec![0; PAGE_SIZE];
    let (mut key, mut previous) = (Vec::new(), None::<Vec<u8>>);
    let (mut page, mut ordinal) = (0, 0);
    while page < data_pages {
        load(page, &mut bytes)?;
        let layout = PageLayout::parse(&bytes, Place { identity, page }).map_err(corrupt)?;
        let mut pages = 1;
        let mut large = None;
        if let Some(len) = layout.large_value_len() {
            let key_len = layout.prefix(&bytes).len() + layout.suffix(&bytes, 0).len();
            pages += overflow_pages(key_len, len);
            let mut value = layout.value(&bytes, 0).to_vec();
            for position in 1..pages {
                load(page + position, &mut overflow)?;
                let place = Place { identity, page: page + position };
                let content = decode_payload(&overflow, place, PageKind::Overflow, position);
                let content = content.map_err(corrupt)?;
                value.extend_from_slice(&content[..content.len().min(len - value.len())]);
            }
            large = Some(value);
        }
        for index in 0..layout.count() {
            key.clear();
            key.extend_from_slice(layout.prefix(&bytes));
            key.extend_from_slice(layout.suffix(&bytes, index));
            if previous.as_ref().is_some_and(|previous| *previous >= key) {
                let (expected, found) = (index as u64 + 1, index as u64);
                return Err(corrupt(Corrupt { page, rule: "keys rise", expected, found }));
            }
            let value = large.as_deref().unwrap_or_else(|| layout.value(&bytes, index));
            let entry = EntryRef { key: &key, kind: layout.kind(&bytes, index), value };
            visit(Met { entry, ordinal, page, pages });
            previous.get_or_insert_default().clone_from(&key);
        }
        page += pages;
        ordinal += 1;
    }
    Ok(())
}

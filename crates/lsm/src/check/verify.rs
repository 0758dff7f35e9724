//! Checks everything of a session directory, and repairs what can be repaired without loss.
//!
//! Checked are the session's metadata; each snapshot's metadata, and both copies of the manifest of
//! the named tables; that each run they name is there, with the identity and length that they say;
//! the log, as far as opening the store needs it; and of each run every page's checksum and place,
//! the order and number of the keys, that the filter contains every key, that the index leads to
//! every key, that the footer's sums are right, and that the blobs it refers to are there. Of what
//! an unfinished merge has written: every page's checksum and place, and the order of the keys.
//! Damage there is no loss, since the merge can begin anew, and is not repaired.
//!
//! Repairs: a run whose data pages are all whole is written anew if its filter, index or footer is
//! not; `metadata` is written anew from the salt in the runs, a copy of the manifest from the other
//! one. All go into a new file, which is checked and made durable before it takes the place of the
//! damaged one by a rename; nothing else is touched. So after a crash in the middle of a repair
//! every file is as it was or repaired, and what is left over is removed when the session is
//! opened. What a newer program wrote is reported and left alone.
//!
//! With accepted loss, `verify` drops the damage that no repair can mend: see [`Loss`] and
//! [`LostWhat`].

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::files::{read_file, replace_file, replace_file_as};
use terrane_io::{Access, Disk, DiskFile, EntryKind, OpenMode};

use crate::block::page::{PAGE_SIZE, PAYLOAD_SIZE};
use crate::check::store::{Fault, ManifestCopies, ManifestCopy, lost_manifest, walk_log};
use crate::corrupt::Corrupt;
use crate::entry::entry::key_hash;
use crate::error::{Error, Result, unreadable};
use crate::files::file_set::{
    FileSet, Partial, RunRef, blobs_name, blobs_number, file_name, file_number,
};
use crate::files::handles::{FileHandles, OPEN_FILES_DEFAULT};
use crate::files::lost_found::{self, LOST_FOUND};
use crate::files::reserve::{RESERVE, RESERVE_HEADER_SIZE, is_denied, is_unreadable, read_header};
use crate::manifest::feed_cursor;
use crate::manifest::lease::READERS;
use crate::manifest::manifest::StoreManifest;
use crate::manifest::snapshot_meta::{MANIFEST_BYTES_MAX, Refused, SessionMeta, SnapshotMeta};
use crate::manifest::wal::{LOG, segment_name};
pub use crate::run::check::Progress;
use crate::run::check::{CHUNK_PAGES, Pages, Step, Sums, misled, page_offset};
use crate::run::run::{Run, read_meta};
pub use crate::run::salvage::KeyGap;
use crate::run::writer::{AdoptedPage, RunBuild, RunBuilder, blob_end};
use crate::session::inner::{
    ACTIVE, METADATA, SNAPSHOT_SUFFIX, SNAPSHOTS, STORE, anchor_dir, foreign_dir, is_session_like,
    lock_dir, lock_dir_shared, read_snapshot, snapshot_name, snapshot_names, snapshot_path,
};

/// Damaged data pages of one run that are listed one by one.
const DAMAGE_LISTED_MAX: usize = 16;

mod loss;

pub use loss::{Lost, LostWhat};
pub use terrane_io::Loss;

use loss::Damaged;

/// Something that is not as the formats say.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "two questions, each before and after a repair")]
pub struct Problem {
    /// The file, or the directory that lacks one.
    pub path: PathBuf,
    /// Where in the file, in bytes; a multiple of 4096 for run files.
    pub offset: u64,
    /// Damage, in words.
    pub rule: String,
    /// The snapshots that need the file, by name; empty, as `tables`, if all do.
    pub snapshots: Vec<String>,
    /// The named tables that need it.
    pub tables: Vec<String>,
    /// Keys whose entries in this file nobody can rely on, if pages of entries are damaged.
    pub keys: Option<KeyGap>,
    /// Whether [`repair`] mends it, or has.
    pub repairable: bool,
    /// Whether it has been repaired.
    pub repaired: bool,
    /// Whether a repair with [`Loss::Accepted`] lets go of what is damaged, or has, so that it is
    /// no problem any more.
    pub droppable: bool,
    /// Whether it has let go of that: [`Report::lost`] says what is lost, if anything is.
    pub dropped: bool,
}

impl Problem {
    fn new(path: &Path, offset: u64, rule: &str) -> Self {
        Self {
            path: path.to_owned(),
            offset,
            rule: rule.to_owned(),
            snapshots: Vec::new(),
            tables: Vec::new(),
            keys: None,
            repairable: false,
            repaired: false,
            droppable: false,
            dropped: false,
        }
    }

    /// Whether nothing is left of the problem.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.repaired || self.dropped
    }

    fn droppable(self) -> Self {
        Self { droppable: true, ..self }
    }

    fn rule_of(what: &Corrupt) -> String {
        format!("{}: expected {}, found {}", what.rule, what.expected, what.found)
    }

    /// An error as a finding; an error of the disk is none, unless bytes are missing or cannot be
    /// read.
    fn of(error: Error) -> Result<Self> {
        use std::io::ErrorKind;
        match error {
            Error::Corrupt { path, what } => {
                Ok(Self::new(&path, page_offset(what.page), &Self::rule_of(&what)))
            }
            Error::SnapshotCorrupted { path, reason, .. }
            | Error::StoreCorrupted { path, reason }
            | Error::SessionDirCorrupted { path, reason } => Ok(Self::new(&path, 0, &reason)),
            Error::UnknownVersion { path, found, newest } => {
                let version = Refused::Version { found, newest };
                Ok(Self::new(&path, 0, &version.to_string()))
            }
            Error::FileMissing { path } => Ok(Self::new(&path, 0, "the file is missing")),
            Error::Disk(terrane_io::Error::WrongKind { path, found }) => {
                let rule = format!("it is a {}", found.name());
                Ok(Self::new(&path, 0, &rule))
            }
            Error::Disk(terrane_io::Error::Io { path, source, .. })
                if source.kind() == ErrorKind::NotFound =>
            {
                Ok(Self::new(&path, 0, "the file is missing"))
            }
            Error::Disk(terrane_io::Error::Io { path, source, .. })
                if source.kind() == ErrorKind::FileTooLarge =>
            {
                Ok(Self::new(&path, 0, "the file is larger than it can be"))
            }
            Error::Disk(error) => match (unreadable(&error), &error) {
                (Some(rule), terrane_io::Error::Io { path, .. }) => Ok(Self::new(path, 0, &rule)),
                _ => Err(error.into()),
            },
            error => Err(error),
        }
    }
}

/// Report of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Report {
    /// In the order of the check; empty if all is well.
    pub problems: Vec<Problem>,
    /// Notes: worth knowing, and no damage.
    pub notes: Vec<String>,
    /// Data that a repair with [`Loss::Accepted`] dropped.
    pub lost: Vec<Lost>,
    /// Snapshots checked.
    pub snapshots: u64,
    /// Named tables checked.
    pub tables: u64,
    /// Commits checked that are in the log only.
    pub commits: u64,
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
        self.problems.iter().all(Problem::is_ended)
    }

    fn add(&mut self, path: &Path, offset: u64, rule: impl AsRef<str>) {
        self.problems.push(Problem::new(path, offset, rule.as_ref()));
    }
}

/// Checks the session in `dir`, which nobody may hold for writing. Changes nothing in it, but
/// leaves a file `lock`; where nothing can be written, on a read-only medium, on a full disk or in
/// somebody else's directory, not even that.
///
/// An unreadable sector is a problem like any other damage; the check goes on.
///
/// Cost: reads every page of every run that a snapshot refers to, once.
///
/// # Errors
/// [`Error::SessionDirDoesNotExist`], [`Error::NotTerrane`], [`Error::SessionDirLocked`],
/// [`Error::Disk`]. Damage is no error but part of the report.
pub fn verify(disk: &Arc<dyn Disk>, dir: &Path, progress: Progress<'_>) -> Result<Report> {
    Check::new(disk, dir, None, progress)?.run()
}

/// Checks the session in `dir` and repairs what can be repaired without loss; with
/// [`Loss::Accepted`] also the rest, by letting go of what is damaged. [`Report::lost`] names all
/// of that. The session can be opened and written then, and a check finds no problem.
///
/// Cost: that of [`verify`]; and, for each run that is repaired, writing it and reading it twice.
///
/// # Errors
/// The errors of [`verify`]. What had been repaired before the error stays so, and the repair can
/// be made again.
pub fn repair(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    loss: Loss,
    progress: Progress<'_>,
) -> Result<Report> {
    Check::new(disk, dir, Some(loss), progress)?.run()
}

/// Snapshots and tables that refer to a run.
#[derive(Debug, Clone, Default)]
struct Users {
    snapshots: Vec<String>,
    tables: Vec<String>,
}

impl Users {
    fn add(&mut self, other: &Self) {
        for (names, added) in
            [(&mut self.snapshots, &other.snapshots), (&mut self.tables, &other.tables)]
        {
            for name in added {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
    }

    fn mark(&self, problem: &mut Problem) {
        problem.snapshots.clone_from(&self.snapshots);
        problem.tables.clone_from(&self.tables);
    }
}

/// A run that snapshots or named tables refer to.
struct Wanted {
    run: RunRef,
    /// How it is made, should it have to be made anew.
    build: RunBuild,
    users: Users,
    /// Whether they all say the same of it.
    consistent: bool,
    /// Whether one of them has older runs, which show where this one has lost entries.
    has_older: bool,
}

/// Finished pages of an unfinished compaction, as far as a snapshot or a table refers to them.
struct WantedPartial {
    partial: Partial,
    users: Users,
    /// The file that refers to it.
    path: PathBuf,
}

/// Runs that snapshots and named tables refer to, by number.
#[derive(Default)]
struct AllWanted {
    runs: BTreeMap<u64, Wanted>,
    partials: BTreeMap<u64, WantedPartial>,
}

impl AllWanted {
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.runs.keys().chain(self.partials.keys()).copied()
    }

    fn contains(&self, number: u64) -> bool {
        self.runs.contains_key(&number) || self.partials.contains_key(&number)
    }

    fn bytes(&self) -> u64 {
        let runs = self.runs.values().map(|run| data_bytes(&run.run));
        let partials = self.partials.values().map(|wanted| page_offset(wanted.partial.data_pages));
        runs.chain(partials).fold(0, u64::saturating_add)
    }
}

struct Check<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    repair: bool,
    accepts_loss: bool,
    progress: Progress<'a>,
    report: Report,
    damaged: Damaged,
    done_bytes: u64,
    total_bytes: u64,
    // Held until the check ends.
    _lock: Option<Box<dyn terrane_io::LockGuard>>,
    _anchor: Box<dyn terrane_io::Anchor>,
}

/// Findings in a run file.
struct Findings {
    problems: Vec<Problem>,
    /// The sums of its entries if all of its data pages are whole and are those of the run wanted.
    whole: Option<Sums>,
}

/// A run file, and the run if it opens.
struct OpenedRun {
    run: Option<Run>,
    file: Arc<dyn DiskFile>,
}

/// Findings on the data pages of a run file.
struct Walked<'a> {
    sums: Sums,
    damage: Damage<'a>,
    /// The first entry that filter or index does not lead to.
    broken: Option<Problem>,
}

impl<'a> Check<'a> {
    fn new(
        disk: &'a Arc<dyn Disk>,
        dir: &'a Path,
        loss: Option<Loss>,
        progress: Progress<'a>,
    ) -> Result<Self> {
        match disk.kind(dir)? {
            Some(EntryKind::Directory) | None => {}
            Some(_) => {
                let found = "a file".to_owned();
                return Err(Error::NotTerrane { path: dir.to_owned(), expected: STORE, found });
            }
        }

        let anchor = anchor_dir(disk.as_ref(), dir)?;

        // The lock file would be created in any directory: a foreign one is to be left as it is.
        if !is_session_like(disk.as_ref(), dir)? {
            return foreign_dir(disk.as_ref(), dir);
        }

        let repair = loss.is_some();
        let lock = match lock_dir(disk.as_ref(), dir) {
            Err(Error::Disk(error)) if error.cannot_write() && !repair => {
                lock_dir_shared(disk.as_ref(), dir)?
            }
            lock => Some(lock?),
        };

        let report = Report::default();

        let done_bytes = 0;
        let total_bytes = 0;
        Ok(Self {
            disk,
            dir,
            repair,
            accepts_loss: loss == Some(Loss::Accepted),
            progress,
            report,
            damaged: Damaged::default(),
            done_bytes,
            total_bytes,
            _lock: lock,
            _anchor: anchor,
        })
    }

    fn run(mut self) -> Result<Report> {
        for name in [ACTIVE, SNAPSHOTS] {
            if self.disk.kind(&self.dir.join(name))? != Some(EntryKind::Directory) {
                self.damaged.dirs.push(name);
                let problem = Problem::new(self.dir, 0, &format!("missing {name} directory"));
                self.report.problems.push(problem.droppable());
            }
        }

        let mut wanted = AllWanted::default();
        self.check_snapshots(&mut wanted)?;
        let manifest = self.check_manifest()?;

        // A damaged copy of the manifest takes nothing away as long as the other one is whole.
        let damaged = self.report.problems.iter().any(|problem| !problem.repairable);
        if let Some((path, manifest)) = &manifest {
            for table in &manifest.tables {
                self.report.tables += 1;
                let users = Users { tables: vec![table.name.clone()], ..Users::default() };
                self.want(&mut wanted, path, &table.meta, &users);
            }
            for (name, table) in manifest.groups().flat_map(|group| group.users()) {
                let users = Users { tables: vec![name], ..Users::default() };
                self.want(&mut wanted, path, &table.meta, &users);
            }
            for (_, table) in manifest.loads() {
                let name = format!("{}, as a feed is to tell it", table.name);
                let users = Users { tables: vec![name], ..Users::default() };
                self.want(&mut wanted, path, &table.meta, &users);
            }
        }

        // A number that one file names as whole and another as unfinished is checked once, as a
        // whole run.
        self.settle_partials(&mut wanted);
        let manifest = manifest.map(|(_, manifest)| manifest);
        // Checksums of the log include the salt, so a log makes the salt irreplaceable.
        let has_log = manifest.as_ref().is_some_and(|manifest| {
            manifest.segment > 0 || manifest.first_segment_of_versions() < u64::MAX
        });
        let salt = self.check_metadata(&wanted.runs, damaged || has_log)?;
        self.check_log(manifest.as_ref(), salt)?;
        self.check_cursors(manifest.as_ref())?;
        self.check_reserve()?;
        self.check_kinds()?;
        let mut next_number = wanted.numbers().max().map_or(0, |number| number + 1);
        let active = self.dir.join(ACTIVE);

        let mut listed = self.list(ACTIVE)?;
        let has_active = !self.damaged.dirs.contains(&ACTIVE);
        if self.repair && has_active && self.take_back_lost(&listed, &wanted)? {
            // Files that came back from `lost+found` change the listing.
            listed = self.list(ACTIVE)?;
        }
        self.check_strays(&listed, &wanted, (damaged, manifest.is_none()))?;
        let lost = lost_found::names(self.disk.as_ref(), self.dir)?;
        let lost = lost.iter().filter_map(|name| lost_found::run_number(name));
        let numbers = listed.iter().filter_map(|entry| file_number(&entry.name)).chain(lost);
        // New runs get numbers above those of all files, including files in `lost+found`.
        next_number = numbers.fold(next_number, |next, number| next.max(number + 1));
        debug_assert!(
            wanted.numbers().all(|number| number < next_number),
            "a repaired run takes no number that is in use"
        );
        let open = FileHandles::new(Arc::clone(self.disk), OPEN_FILES_DEFAULT);

        let files = Arc::new(FileSet::new(open, active, next_number));

        // Pinned, so that no handle removes a file when it goes.
        files.pin(wanted.numbers());
        self.total_bytes = wanted.bytes();
        for run in wanted.runs.values() {
            self.check_run(&files, run, salt)?;
            self.done_bytes = self.done_bytes.saturating_add(data_bytes(&run.run));
        }

        for wanted in wanted.partials.values() {
            self.check_partial(wanted)?;
            let bytes = page_offset(wanted.partial.data_pages);
            self.done_bytes = self.done_bytes.saturating_add(bytes);
        }

        (self.progress)(self.done_bytes, self.total_bytes);
        // Only after every file was checked is it known whether enough is left to drop the rest.
        self.settle_droppable(manifest.is_some());
        if self.accepts_loss {
            self.let_go(&files, &wanted, manifest, salt)?;
        }
        Ok(self.report)
    }

    /// Finds links and special files in the place of directories of which no snapshot and no table
    /// needs a byte. A repair removes them; the next writer makes the directories anew.
    fn check_kinds(&mut self) -> Result<()> {
        for name in [READERS, LOST_FOUND] {
            let path = self.dir.join(name);
            let Some(found @ (EntryKind::Link | EntryKind::Other)) = self.disk.kind(&path)? else {
                continue;
            };
            let mut problem = Problem::of(terrane_io::Error::WrongKind { path, found }.into())?;
            problem.repairable = true;
            if self.repair {
                self.disk.remove(&problem.path)?;
                // The removal must be durable before the problem counts as repaired.
                self.disk.sync_dir(self.dir)?;
                problem.repaired = true;
            }
            self.report.problems.push(problem);
        }

        Ok(())
    }

    /// Lists a directory of the session; a missing one is empty.
    fn list(&self, name: &str) -> Result<Vec<terrane_io::Entry>> {
        if self.damaged.dirs.contains(&name) {
            // The missing directory is reported already.
            return Ok(Vec::new());
        }
        Ok(self.disk.list(&self.dir.join(name))?)
    }

    /// Checks the metadata of all snapshots and gathers what they refer to.
    fn check_snapshots(&mut self, wanted: &mut AllWanted) -> Result<()> {
        let dir = self.dir.join(SNAPSHOTS);
        for entry in self.list(SNAPSHOTS)? {
            let rule = if snapshot_name(&entry.name).is_none() {
                "no snapshot can have this name, so nothing opens it; move the file away"
            } else if entry.kind != EntryKind::File {
                "not a file; move it away"
            } else {
                continue;
            };
            // Files without the suffix of snapshots are foreign and left alone.
            if entry.name.ends_with(SNAPSHOT_SUFFIX) {
                let problem = Problem::new(&dir.join(&entry.name), 0, rule);
                self.report.problems.push(problem.droppable());
                self.damaged.snapshots.push((entry.name, entry.kind));
            }
        }

        if self.damaged.dirs.contains(&SNAPSHOTS) {
            return Ok(());
        }

        for name in snapshot_names(self.disk.as_ref(), self.dir)? {
            self.report.snapshots += 1;

            let path = snapshot_path(self.dir, &name);
            let users = Users { snapshots: vec![name.clone()], ..Users::default() };
            match read_snapshot(self.disk.as_ref(), self.dir, &name) {
                Ok(meta) => {
                    self.want(wanted, &path, &meta, &users);
                    self.damaged.whole.push((name, meta));
                }
                Err(error) => {
                    self.damaged.is_newer |= matches!(error, Error::UnknownVersion { .. });
                    let mut problem = Problem::of(error)?.droppable();
                    self.damaged
                        .snapshots
                        .push((format!("{name}{SNAPSHOT_SUFFIX}"), EntryKind::File));
                    users.mark(&mut problem);
                    self.report.problems.push(problem);
                }
            }
        }

        Ok(())
    }

    /// Gathers what a snapshot or a named table refers to; `path` is the file that says so.
    fn want(&mut self, wanted: &mut AllWanted, path: &Path, meta: &SnapshotMeta, users: &Users) {
        let AllWanted { runs, partials } = wanted;
        for partial in meta.partials() {
            let new = || WantedPartial {
                partial: *partial,
                users: Users::default(),
                path: path.to_owned(),
            };
            let known = partials.entry(partial.number).or_insert_with(new);
            known.users.add(users);
            // One number names one run, so two identities for it are damage.
            if known.partial.identity != partial.identity {
                let problem = Problem::new(path, 0, &another_run(partial.number));
                self.report.problems.push(problem.droppable());
                self.damaged.partials.insert(partial.number);
            } else if known.partial.data_pages < partial.data_pages {
                known.partial = *partial;
            }
        }

        for (run, level) in meta.leveled_runs() {
            let build = meta.build(level);
            let known = runs.entry(run.number).or_insert_with(|| Wanted {
                run: *run,
                build,
                users: Users::default(),
                consistent: true,
                has_older: false,
            });

            known.users.add(users);
            // Where the oldest run of a table loses entries, nothing older can show.
            known.has_older |= meta.oldest() != Some(run);
            if (known.run, known.build.purpose) != (*run, build.purpose) {
                known.consistent = false;
                let problem = Problem::new(path, 0, &another_run(run.number));
                self.report.problems.push(problem.droppable());
                self.damaged.runs.insert(run.number);
            }
        }
    }

    /// Checks a run that a snapshot or a table refers to as whole.
    fn settle_partials(&mut self, wanted: &mut AllWanted) {
        // The check of a whole run covers the pages that an unfinished reference names.
        for (number, run) in &wanted.runs {
            if let Some(partial) = wanted.partials.remove(number)
                && partial.partial.identity != run.run.identity
            {
                let problem = Problem::new(&partial.path, 0, &another_run(*number));
                self.report.problems.push(problem.droppable());
                self.damaged.partials.insert(*number);
            }
        }
    }

    /// Checks both copies of the manifest. Returns the one that counts, with its file.
    fn check_manifest(&mut self) -> Result<Option<(PathBuf, StoreManifest)>> {
        let copies = ManifestCopies::read(self.disk.as_ref(), self.dir)?;
        if copies.are_missing() {
            // Missing copies are damage only if something else shows that there were named tables.
            if let Some(fault) = lost_manifest(self.disk.as_ref(), self.dir)? {
                let problem = Problem::new(&fault.path, fault.offset, &fault.rule);
                self.report.problems.push(problem.droppable());
                self.damaged.manifest = true;
            }
            return Ok(None);
        }

        let newest = copies.newest();
        for (at, (path, copy)) in copies.0.iter().enumerate() {
            let reason = match copy {
                ManifestCopy::Whole(_) if copies.has_lost_edits(at) => {
                    "versions are missing that the other copy has".to_owned()
                }
                ManifestCopy::Whole(manifest) => {
                    if let Some(newest) = newest.filter(|n| n.sequence > manifest.sequence) {
                        let old = manifest.sequence;
                        let new = newest.sequence;
                        let what = format!("is older, {old} instead of {new}");
                        self.note_copy(path, &what);
                    }
                    continue;
                }
                // The process ended before it had written both for the first time.
                ManifestCopy::Missing if newest.is_some_and(|newest| newest.sequence == 1) => {
                    self.note_copy(path, "is not there yet");
                    continue;
                }
                ManifestCopy::Missing => "the file is missing".to_owned(),
                ManifestCopy::Refused(refused) => refused.to_string(),
            };

            // What a newer program wrote is whole, and not for this one to replace.
            let is_newer = matches!(copy, ManifestCopy::Refused(Refused::Version { .. }));
            self.damaged.is_newer |= is_newer;
            self.damaged.manifest |= newest.is_none();
            let mut problem = Problem::new(path, 0, &reason);
            problem.droppable = newest.is_none();

            // The other copy holds everything, so replacing the damaged one loses nothing.
            if newest.is_some() && !is_newer {
                problem.repairable = true;
                if self.repair {
                    let bytes = copies.newest_bytes(self.disk.as_ref())?;
                    replace_file(self.disk.as_ref(), path, &bytes)?;
                    problem.repaired = true;
                }
            }

            self.report.problems.push(problem);
        }

        let whole = copies.0.iter().filter_map(|(path, copy)| Some((path, copy.manifest()?)));
        let counts = whole.max_by_key(|(_, manifest)| manifest.age());
        Ok(counts.map(|(path, manifest)| (path.clone(), manifest.clone())))
    }

    fn note_copy(&mut self, path: &Path, what: &str) {
        let fate = "the next checkpoint writes it anew";
        self.report.notes.push(format!("{} {what}: {fate}", path.display()));
    }

    /// Checks the cursors of feeds. A damaged one keeps nothing of the log, so its consumer must
    /// begin anew; letting go removes it.
    fn check_cursors(&mut self, manifest: Option<&StoreManifest>) -> Result<()> {
        for name in feed_cursor::names(self.disk.as_ref(), self.dir)? {
            let place = match feed_cursor::read(self.disk.as_ref(), self.dir, &name) {
                Ok(place) => place,
                // Nobody holds the lock of a cursor to drop it.
                Err(Error::FeedDoesNotExist { .. }) => continue,
                Err(error) => {
                    self.report.problems.push(Problem::of(error)?.droppable());
                    self.damaged.cursors.push(name);
                    continue;
                }
            };
            let path = feed_cursor::path_of(self.dir, &name);
            let first = manifest.map_or(0, |manifest| manifest.segment);
            let segment = self.dir.join(LOG).join(segment_name(place.segment));
            let is_needed = 0 < place.segment && place.segment < first;
            if is_needed && self.disk.kind(&segment)?.is_none() {
                let fate = "its consumer will find a gap";
                let note = format!("{}: the log behind it is gone: {fate}", path.display());
                self.report.notes.push(note);
            }
        }
        Ok(())
    }

    /// Checks the log as far as the manifest needs it.
    fn check_log(&mut self, manifest: Option<&StoreManifest>, salt: Option<u64>) -> Result<()> {
        // No manifest, or one without segments, needs no log.
        if manifest.is_none_or(|manifest| {
            manifest.segment == 0 && manifest.first_segment_of_versions() == u64::MAX
        }) {
            return Ok(());
        }

        // Checksums of records include the salt: without it every record would look damaged.
        let Some(salt) = salt else {
            self.report.notes.push("the log was not checked: no salt is known".to_owned());
            self.damaged.log = true;
            return Ok(());
        };

        let walk = walk_log(self.disk.as_ref(), self.dir, salt, manifest)?;
        self.damaged.log |= !walk.faults.is_empty();
        for Fault { path, offset, rule } in walk.faults {
            self.report.problems.push(Problem::new(&path, offset, &rule).droppable());
        }
        let records = walk.segments.iter().filter_map(|segment| segment.records);
        self.report.commits += records.map(|records| records.commits).sum::<u64>();
        Ok(())
    }

    /// Checks what an unfinished merge has written, as far as somebody refers to it.
    fn check_partial(&mut self, wanted: &WantedPartial) -> Result<()> {
        let Partial { number, identity, data_pages, blob_bytes, .. } = wanted.partial;

        // Findings are gathered apart, since all of them get the same introduction below.
        let mut found = Report::default();
        let path = self.run_path(number);
        match self.disk.open(&path, OpenMode::Read, Access::Buffered) {
            Err(error) => found.problems.push(Problem::of(error.into())?),
            Ok(file) => {
                let len = file.len()?;
                // Pages beyond the end of the file cannot be read: all of them together are one
                // finding.
                let end = u64::from(data_pages).min(len / PAGE_SIZE as u64) as u32;
                let mut damage = Damage::new(&path);
                if end < data_pages {
                    damage.add(len, "the file ends within the data pages");
                }
                Pages::new(file.as_ref(), identity, end).going_on().walk(&mut |step| {
                    match step {
                        Step::Damage(what) => {
                            damage.add(page_offset(what.page), &Problem::rule_of(&what));
                        }
                        Step::Entry(met) if blob_end(met.entry) > blob_bytes => {
                            damage.add(page_offset(met.page), "a blob beyond the blobs");
                        }
                        Step::Entry(_) => {}
                    }
                    Ok(())
                })?;
                self.report.pages += u64::from(end);
                found.problems.append(&mut damage.finish());
            }
        }

        // The file may hold more blobs than the snapshot refers to, so a greater length is no
        // damage.
        let blob_pages = blob_bytes.div_ceil(PAYLOAD_SIZE as u64);
        self.check_blobs((number, identity), (blob_pages, false), &mut found)?;
        for problem in &mut found.problems {
            let rule = "what an unfinished merge has written, without which it begins anew";
            problem.rule = format!("{rule}: {}", problem.rule);
            problem.droppable = true;
            self.damaged.partials.insert(number);
            wanted.users.mark(problem);
        }

        self.report.problems.append(&mut found.problems);
        Ok(())
    }

    /// Checks `metadata` and returns the salt, if anything tells it.
    fn check_metadata(
        &mut self,
        wanted: &BTreeMap<u64, Wanted>,
        salt_matters: bool,
    ) -> Result<Option<u64>> {
        let path = self.dir.join(METADATA);
        let reason = match read_file(self.disk.as_ref(), &path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => match SessionMeta::decode(&bytes) {
                Ok(meta) => return Ok(Some(meta.salt)),
                Err(refused @ Refused::Version { .. }) => {
                    // What a newer program wrote is whole, and not for this one to replace.
                    self.report.add(&path, 0, refused.to_string());
                    self.damaged.is_newer = true;
                    return Ok(None);
                }
                Err(Refused::Damaged(reason)) => reason,
            },
            Err(error) => Problem::of(error.into())?.rule,
        };

        let salt_of = |run: &Wanted| {
            let path = self.run_path(run.run.number);
            let file = self.disk.open(&path, OpenMode::Read, Access::Buffered).ok()?;
            let meta = read_meta(&path, file.as_ref()).ok()?;
            (meta.identity == run.run.identity).then_some(meta.salt)
        };

        // Without any run and any log, nothing depends on the salt.
        let is_free = wanted.is_empty() && !salt_matters;
        let any_salt = || is_free.then(|| RandomState::new().hash_one(0));
        let salt = wanted.values().find_map(salt_of).or_else(any_salt);
        let mut problem = Problem::new(&path, 0, &reason);
        problem.repairable = salt.is_some();
        problem.droppable = salt.is_none();

        if let Some(salt) = salt.filter(|_| self.repair) {
            self.write_metadata(salt)?;
            problem.repaired = true;
        }

        self.report.problems.push(problem);
        Ok(salt)
    }

    /// Writes `metadata` anew.
    fn write_metadata(&mut self, salt: u64) -> Result<()> {
        let created_ns = self.disk.clock().wall().as_nanos() as u64;
        let meta = SessionMeta { salt, created_ns };
        let path = self.dir.join(METADATA);
        let private = OpenMode::CreatePrivate;
        replace_file_as(self.disk.as_ref(), &path, &meta.encode(), private)?;
        let note = "metadata was written anew: its time of creation is that of the repair";
        self.report.notes.push(note.to_owned());
        Ok(())
    }

    /// Finds a reserve that holds room for nobody. One without a byte behind its header was only
    /// begun.
    fn check_reserve(&mut self) -> Result<()> {
        let path = self.dir.join(RESERVE);
        let read = match self.disk.open(&path, OpenMode::Read, Access::Buffered) {
            Err(error) if error.is_not_found() => return Ok(()),
            opened => opened.map_err(Error::from).and_then(|file| {
                let stored = read_header(file.as_ref())?;
                Ok((stored, file.len()?))
            }),
        };

        let rule = match read {
            Ok((None, len)) if len > RESERVE_HEADER_SIZE => {
                let remedy = "give the session a reserve again, or 0 for none";
                format!("the header of the reserve is damaged; {remedy}")
            }
            Err(Error::UnknownVersion { found, newest, .. }) => {
                self.report.add(&path, 0, Refused::Version { found, newest }.to_string());
                return Ok(());
            }
            Err(error) if is_denied(&error) => {
                let remedy = "let this user read and write it, or give the session a reserve again";
                format!("cannot be read ({error}), so the session has no reserve; {remedy}")
            }
            Err(error) if is_unreadable(&error) => {
                format!("cannot be read ({error}); the next opening makes it anew")
            }
            read => return read.map(drop),
        };

        let mut problem = Problem::new(&path, 0, &rule).droppable();
        // A reserve holds no data, so dropping it loses nothing but the reserved room.
        if self.accepts_loss {
            self.disk.remove(&path)?;
            self.disk.sync_dir(self.dir)?;
            problem.dropped = true;
        }

        self.report.problems.push(problem);
        Ok(())
    }

    fn run_path(&self, number: u64) -> PathBuf {
        self.dir.join(ACTIVE).join(file_name(number))
    }

    /// Takes back from `lost+found` what a snapshot or a table names and `active` lacks; says
    /// whether there was any.
    fn take_back_lost(&mut self, listed: &[terrane_io::Entry], wanted: &AllWanted) -> Result<bool> {
        let number_of = |name: &str| file_number(name).or_else(|| blobs_number(name));
        let mut names = lost_found::names(self.disk.as_ref(), self.dir)?;
        names.retain(|name| {
            number_of(name).is_some_and(|number| wanted.contains(number))
                && listed.iter().all(|entry| entry.name != *name)
        });

        let active = self.dir.join(ACTIVE);
        lost_found::take_back(self.disk.as_ref(), self.dir, &active, &names)?;
        for name in &names {
            let mut problem = Problem::new(&active.join(name), 0, "the file was in lost+found");
            (problem.repairable, problem.repaired) = (true, true);
            self.report.problems.push(problem);
        }

        Ok(!names.is_empty())
    }

    /// Runs that nobody refers to: worth a note beside others, and a problem where there is no
    /// snapshot and no manifest, since these may have been lost.
    fn check_strays(
        &mut self,
        listed: &[terrane_io::Entry],
        wanted: &AllWanted,
        (is_damaged, has_no_manifest): (bool, bool),
    ) -> Result<()> {
        let lost = lost_found::names(self.disk.as_ref(), self.dir)?;
        if !lost.is_empty() {
            let what = "files in lost+found, which nothing referred to when the session was opened";
            let fate = "opening it after another crash, or a full disk, removes those of runs";
            self.report.notes.push(format!("{what}: {}; {fate}", lost.len()));
        }
        let number_of = |name: &str| file_number(name).or_else(|| blobs_number(name));
        let strays: Vec<String> = listed
            .iter()
            .filter(|entry| number_of(&entry.name).is_some_and(|number| !wanted.contains(number)))
            .map(|entry| entry.name.clone())
            .collect();
        let count = strays.iter().filter(|name| file_number(name).is_some()).count();
        if strays.is_empty() {
            return Ok(());
        }
        let nobody = "run files that no snapshot and no table refers to";
        // Beside a snapshot or a manifest, such runs are ordinary leftovers of tables that nobody
        // saved.
        if is_damaged || self.report.snapshots > 0 || !has_no_manifest {
            let kept = "kept while a snapshot or the manifest is damaged";
            let moved = "opening the session moves them to lost+found";
            let fate = if is_damaged { kept } else { moved };
            self.report.notes.push(format!("{nobody}: {count}; {fate}"));
            return Ok(());
        }

        let active = self.dir.join(ACTIVE);
        let way_out = "put lost snapshots or manifests back; if there never were any, \
                       opening the session, or a repair, moves the files to lost+found";
        let rule =
            format!("{nobody}: {count}, and there is no snapshot and no manifest; {way_out}");
        let mut problem = Problem::new(&active, 0, &rule);
        problem.repairable = true;
        if self.repair {
            lost_found::keep(self.disk.as_ref(), self.dir, &active, &strays)?;
            problem.repaired = true;
        }
        self.report.problems.push(problem);
        Ok(())
    }

    fn check_run(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &Wanted,
        salt: Option<u64>,
    ) -> Result<()> {
        self.report.runs += 1;
        let Findings { mut problems, whole } =
            self.examine(files, wanted.run.number, wanted, salt)?;

        if let Some(sums) = &whole {
            self.report.entries += sums.meta.entries;
        }

        if problems.is_empty() {
            return Ok(());
        }
        // Only a run whose data pages are whole, and on which all users agree, can be written anew.
        let rebuildable = whole.zip(salt).filter(|_| wanted.consistent);
        let repairable = rebuildable.is_some();

        let repaired = match rebuildable {
            Some((sums, salt)) if self.repair => self.rebuild(files, wanted, &sums, salt)?,
            _ => false,
        };

        if !repaired {
            self.damaged.runs.insert(wanted.run.number);
        }

        for problem in &mut problems {
            (problem.repairable, problem.repaired) = (repairable, repaired);
            // If the rebuilt run failed its checks, the damage can only be dropped.
            problem.droppable = !repairable || self.repair && !repaired;
            wanted.users.mark(problem);
        }

        self.report.problems.append(&mut problems);
        Ok(())
    }

    /// Checks a file that is to be the run wanted.
    fn examine(
        &mut self,
        files: &Arc<FileSet>,
        number: u64,
        wanted: &Wanted,
        salt: Option<u64>,
    ) -> Result<Findings> {
        let path = self.run_path(number);
        let mut found = Report::default();
        let nothing = |found: Report| Ok(Findings { problems: found.problems, whole: None });
        let Some(OpenedRun { run, file }) = self.open_run(files, number, &mut found)? else {
            return nothing(found);
        };
        if let Some(run) = &run {
            // Nothing can be expected of another run, so its pages are not walked.
            if !check_footer(run, wanted, salt, &mut found) {
                return nothing(found);
            }
            self.report.pages += run.meta().pages() - u64::from(run.meta().data_pages);
        }

        let len = file.len()?;
        // Pages that the file lacks cannot be walked; together they are one finding below.
        let end = u64::from(wanted.run.data_pages).min(len / PAGE_SIZE as u64) as u32;
        let build = &wanted.build;
        let prefix_bytes = run.as_ref().map_or(build.prefix_bytes, |run| run.meta().prefix_bytes);
        let salt = salt.unwrap_or_default();
        let sums = Sums::new(build.purpose, wanted.run.identity, salt, prefix_bytes);
        let mut walked = Walked { sums, damage: Damage::new(&path), broken: None };
        self.walk_pages(file.as_ref(), run.as_ref(), end, &mut walked)?;
        let Walked { sums, mut damage, broken } = walked;
        if end < wanted.run.data_pages {
            let after = (sums.meta.entries > 0).then_some(sums.upper.as_slice());
            damage.add_after(len, "the file ends within the data pages", after);
        }

        self.report.pages += u64::from(end);
        let mut whole = true;
        // No run is empty, so a file without entries is damaged.
        let is_whole = damage.is_none()
            && sums.meta.entries > 0
            && sums.meta.data_pages == wanted.run.data_pages;
        found.problems.append(&mut damage.finish());
        found.problems.extend(broken);

        // Sums are comparable with the footer only if no page was left out.
        if let Some(run) = run.as_ref().filter(|_| is_whole) {
            for flaw in sums.flaws(run) {
                found.add(&path, page_offset(flaw.page), flaw.rule);
            }
        }

        // A rebuilt run keeps the blobs of the original, which the first examination has checked.
        if is_whole && number == wanted.run.number {
            let run = (number, wanted.run.identity);
            whole = self.check_blobs(run, (sums.meta.blob_pages(), true), &mut found)?;
        }

        Ok(Findings { problems: found.problems, whole: (is_whole && whole).then_some(sums) })
    }

    /// Opens the file of a run, and the run if it opens: even then the file may have whole data
    /// pages. `None` if there is nothing to walk.
    fn open_run(
        &mut self,
        files: &Arc<FileSet>,
        number: u64,
        found: &mut Report,
    ) -> Result<Option<OpenedRun>> {
        let run = match Run::open(files, number, Access::Buffered) {
            Ok(run) => Some(run),
            Err(error) => {
                let another_version = matches!(error, Error::UnknownVersion { .. });
                self.damaged.is_newer |= another_version;
                found.problems.push(Problem::of(error)?);
                // Pages of another version cannot be judged by the rules of this one.
                if another_version {
                    return Ok(None);
                }
                None
            }
        };

        match self.disk.open(&self.run_path(number), OpenMode::Read, Access::Buffered) {
            Ok(file) => Ok(Some(OpenedRun { run, file })),
            Err(error) => {
                let problem = Problem::of(error.into())?;
                // Otherwise `Run::open` has met the same.
                found.problems.extend(run.is_some().then_some(problem));
                Ok(None)
            }
        }
    }

    /// Walks the data pages of a run file up to `end`, and adds them up.
    fn walk_pages(
        &mut self,
        file: &dyn DiskFile,
        run: Option<&Run>,
        end: u32,
        walked: &mut Walked<'_>,
    ) -> Result<()> {
        let Walked { sums, damage, broken } = walked;
        let Self { progress, done_bytes, total_bytes, .. } = self;
        let filter = run.map(Run::filter);
        let looked_at = run.zip(filter.as_deref());
        // Progress is reported once a chunk of pages, not for each entry.
        let mut told = 0;

        let mut pages = Pages::new(file, sums.meta.identity, end).going_on();
        pages.walk(&mut |step| {
            let met = match step {
                Step::Entry(met) => met,
                Step::Damage(what) => {
                    let after = (sums.meta.entries > 0).then_some(sums.upper.as_slice());
                    damage.add_after(page_offset(what.page), &Problem::rule_of(&what), after);
                    return Ok(());
                }
            };
            // The first readable key behind damage bounds the range of lost keys.
            damage.end_gap(met.entry.key);
            if met.page >= told {
                progress(done_bytes.saturating_add(page_offset(met.page)), *total_bytes);
                told = met.page + CHUNK_PAGES;
            }
            sums.add(&met);
            // After the first finding, filter and index are judged no more: one finding condemns
            // the file.
            if let Some((run, filter)) = looked_at.filter(|_| broken.is_none() && damage.is_none())
                && let Some(rule) = misled(run, filter, &met)
            {
                let offset = page_offset(met.page);
                *broken = Some(Problem::new(damage.path, offset, rule));
            }
            Ok(())
        })
    }

    /// Checks so many pages of a run's blobs, and whether those are all; returns whether all is
    /// well. Damage there cannot be repaired.
    fn check_blobs(
        &mut self,
        (number, identity): (u64, u64),
        (pages, are_all): (u64, bool),
        found: &mut Report,
    ) -> Result<bool> {
        if pages == 0 {
            return Ok(true);
        }

        let path = self.dir.join(ACTIVE).join(blobs_name(number));
        let file = match self.disk.open(&path, OpenMode::Read, Access::Buffered) {
            Ok(file) => file,
            Err(error) => {
                found.problems.push(Problem::of(error.into())?);
                return Ok(false);
            }
        };

        let len = file.len()?;

        let mut damage = Damage::new(&path);
        let expected = pages * PAGE_SIZE as u64;
        // Only the blobs of a finished run must fill their file exactly.
        if len < expected || are_all && len > expected {
            let rule = format!("length of the blobs: expected {expected}, found {len}");
            damage.add(len, &rule);
        }

        let end = pages.min(len / PAGE_SIZE as u64) as u32;
        let mut pages = Pages::new(file.as_ref(), identity, end).going_on();
        for page in 0..end {
            if let Err(what) = pages.blobs(page)? {
                damage.add(page_offset(page), &Problem::rule_of(&what));
            }
        }

        self.report.pages += u64::from(end);
        let is_whole = damage.is_none();
        found.problems.append(&mut damage.finish());
        Ok(is_whole)
    }

    /// Writes a run anew from its data pages, which are whole, and puts it in the place of the
    /// damaged one if it then passes every check. Returns whether it did.
    fn rebuild(
        &mut self,
        files: &Arc<FileSet>,
        wanted: &Wanted,
        sums: &Sums,
        salt: u64,
    ) -> Result<bool> {
        let path = self.run_path(wanted.run.number);
        let file = self.disk.open(&path, OpenMode::Read, Access::Buffered)?;
        let plan = sums.plan(salt, &wanted.build);

        // The blobs stay where they are.
        let blob_bytes = sums.meta.blob_bytes;

        let mut builder = RunBuilder::replacing(files, &plan, wanted.run.identity, blob_bytes)?;
        let mut pages = Pages::new(file.as_ref(), wanted.run.identity, wanted.run.data_pages);
        // The pages stay as they are, whatever this version would fill them with.
        let mut end = 0;
        let walked = pages.walk(&mut |step| match step {
            Step::Entry(met) => {
                // An entry behind all pages so far begins a key page.
                let starts_page = (end < met.page + met.pages).then_some(AdoptedPage {
                    overflow: met.pages - 1,
                    is_compressed: met.is_compressed,
                });
                end = met.page + met.pages;
                builder.adopt(met.entry, starts_page, || key_hash(salt, met.entry.key));
                Ok(())
            }
            // It was whole a moment ago; what cannot be read twice is not to be copied.
            Step::Damage(what) => Err(Error::corrupt(&path, what)),
        });

        let copied = walked.and_then(|()| builder.copy_pages(file.as_ref(), end));
        match copied {
            Err(Error::Corrupt { .. }) => return Ok(false),
            copied => copied?,
        }

        drop(file);
        let Some(run) = builder.finish()? else { return Ok(false) };
        // The second examination must not count pages and entries twice.
        let counted = (self.report.pages, self.report.entries);
        let again = self.examine(files, run.number(), wanted, Some(salt))?;
        (self.report.pages, self.report.entries) = counted;

        if !again.problems.is_empty() {
            let why = "what was rebuilt from it is not as it should be: left as it was";
            self.report.notes.push(format!("{}: {why}", path.display()));
            return Ok(false);
        }

        // The new run must be durable before the rename lets it replace the damaged one.
        run.sync()?;
        self.disk.rename(run.path(), &path)?;
        self.disk.sync_dir(&self.dir.join(ACTIVE))?;
        Ok(true)
    }
}

/// Compares the footer with what the snapshot and the session say; `false` if this is another run,
/// of which nothing can be expected.
fn check_footer(run: &Run, wanted: &Wanted, salt: Option<u64>, found: &mut Report) -> bool {
    let meta = run.meta();
    let offset = footer_offset(run);
    if (meta.identity, meta.data_pages) != (wanted.run.identity, wanted.run.data_pages) {
        found.add(run.path(), offset, "is not the run that is referred to");
        return false;
    }

    if salt.is_some_and(|salt| salt != meta.salt) {
        found.add(run.path(), offset, "salt differs from that of the session");
    }

    if meta.purpose != wanted.build.purpose {
        found.add(run.path(), offset, "purpose differs from that in the snapshot");
    }
    true
}

fn another_run(number: u64) -> String {
    format!("refers to another run {number} than another snapshot or table")
}

fn footer_offset(run: &Run) -> u64 {
    (run.meta().pages() - 1) * PAGE_SIZE as u64
}

fn data_bytes(run: &RunRef) -> u64 {
    page_offset(run.data_pages)
}

/// Collects what is wrong with the data pages of a run, the first [`DAMAGE_LISTED_MAX`] of it one
/// by one.
struct Damage<'a> {
    path: &'a Path,
    problems: Vec<Problem>,
    left_out: u64,
    /// Problems at the end of the list behind which no key has been read yet.
    open_gaps: usize,
}

impl<'a> Damage<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, problems: Vec::new(), left_out: 0, open_gaps: 0 }
    }

    /// Adds damage of entries, behind that key.
    fn add_after(&mut self, offset: u64, rule: &str, after: Option<&[u8]>) {
        let listed = self.problems.len();
        self.add(offset, rule);
        // Beyond the limit of listed damage nothing was added, so there is no gap to close.
        if self.problems.len() > listed {
            self.problems[listed].keys =
                Some(KeyGap { after: after.map(<[u8]>::to_vec), before: None });
            self.open_gaps += 1;
        }
    }

    /// Notes the first key behind damage.
    fn end_gap(&mut self, key: &[u8]) {
        let open = std::mem::take(&mut self.open_gaps);
        // Damaged pages in a row all end at the same key.
        for problem in self.problems.iter_mut().rev().take(open) {
            if let Some(keys) = &mut problem.keys {
                keys.before = Some(key.to_vec());
            }
        }
    }

    fn is_none(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, offset: u64, rule: &str) {
        if self.problems.len() < DAMAGE_LISTED_MAX {
            self.problems.push(Problem::new(self.path, offset, rule));
        } else {
            self.left_out += 1;
        }
    }

    fn finish(mut self) -> Vec<Problem> {
        if let (Some(last), 1..) = (self.problems.last_mut(), self.left_out) {
            last.rule = format!("{} (and {} more places after it)", last.rule, self.left_out);
        }
        self.problems
    }
}

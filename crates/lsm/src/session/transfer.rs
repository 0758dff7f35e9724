//! Snapshots on their way to the directory of another session and back: export and import.
//!
//! The target of an export is the directory of a session, so whatever opens, inspects or verifies
//! one works on it, and a second export into it copies only the runs that are not there yet. Copies
//! are independent: no file is ever linked.
//!
//! **A copy** takes new numbers for the runs in the directory that it goes to, where the old ones
//! may be taken, writes and syncs their files, and only then the snapshot's metadata, as saving
//! does. So after a crash at any point the snapshot is absent there or whole, and what was copied
//! in vain is removed when that session is opened. A run goes byte by byte if both sessions hash
//! with the same salt, and keeps its identity then; else it is written anew from its entries, with
//! filter and index for the other salt, and gets an identity of its own.
//!
//! **Checks.** No page is copied whose checksum is wrong. An import checks besides, on the same way
//! through the run, all that [`run_check`](crate::run::check) knows of: it takes in files that
//! anybody may have made.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, AlignedBuf, Disk, DiskFile, EntryKind, OpenMode};

use crate::block::page::{PAGE_SIZE, PageAddress, PageKind, check_crc, decode_payload};
use crate::corrupt::Corrupt;
use crate::entry::entry::{EntryRef, Kind, key_hash};
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, FileSet, RunRef};
use crate::files::handles::{FileHandles, OPEN_FILES_DEFAULT};
use crate::manifest::snapshot_meta::SnapshotMeta;
use crate::run::blob::Blob;
use crate::run::check::{
    CHUNK_PAGES, Flaw, Pages, Progress, Step, Sums, check_blobs_len, flawed, misled, page_offset,
};
use crate::run::run::{Run, RunMeta, read_meta};
use crate::run::writer::{RunBuild, RunBuilder};
use crate::session::inner::{
    ACTIVE, OpenSettings, STORE, SessionInner, anchor_dir, check_dir, foreign_dir, is_session_like,
    lock_dir, make_dir, read_snapshot,
};
use crate::session::snapshot::{self, SnapshotName};

/// A snapshot in the directory of another session, to export to or to import from.
#[derive(Debug, Clone)]
pub struct SnapshotPlace {
    disk: Option<Arc<dyn Disk>>,
    dir: PathBuf,
    name: SnapshotName,
}

impl SnapshotPlace {
    /// The snapshot `name` in the directory `dir` of the disk that the session is on.
    pub fn new(dir: impl Into<PathBuf>, name: SnapshotName) -> Self {
        Self { disk: None, dir: dir.into(), name }
    }

    /// The same on another disk.
    #[must_use]
    pub fn on_disk(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk: Some(disk), ..self }
    }

    fn disk_or(&self, disk: &Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::clone(self.disk.as_ref().unwrap_or(disk))
    }
}

/// Report of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ExportReport {
    /// Files of runs that were copied.
    pub files_copied: u64,
    /// Bytes of these.
    pub bytes_copied: u64,
    /// Files of runs that were there already, from an earlier export.
    pub files_shared: u64,
    /// Bytes of these.
    pub bytes_shared: u64,
    /// How many of the files copied were written anew, because the other session has another salt.
    pub files_rebuilt: u64,
}

/// Report of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ImportReport {
    /// Files of runs that were copied.
    pub files_copied: u64,
    /// Bytes of these.
    pub bytes_copied: u64,
    /// How many of them were written anew, because the other session has another salt.
    pub files_rebuilt: u64,
}

/// Exports a snapshot.
pub(crate) fn export(
    inner: &SessionInner,
    name: &SnapshotName,
    place: &SnapshotPlace,
    progress: Progress<'_>,
) -> Result<ExportReport> {
    let reading = snapshot::read(inner, name)?;
    let disk = place.disk_or(inner.files().disk());
    let open = || open_target(&disk, &place.dir, inner.salt());

    let target = with_room(&[inner.files().handles()], open)?;
    let exported = (|| {
        let reservation = target.snapshots().reserve(place.name.as_str())?;
        let known = target.snapshots().runs();
        let go_on = || inner.check_open();
        let mut copier = Copier::new(inner.files(), &target, known, &go_on, progress);
        let meta = copier.copy(&reading.meta);
        let meta = meta.map_err(|error| snapshot::damaged(inner.dir(), name.as_str(), error))?;
        snapshot::publish(&target, reservation, &meta)?;
        Ok(copier.report)
    })();

    // What was copied in vain goes before the lock does.
    exported.and_then(|report| target.close().map(|()| report))
}

/// Makes a call that opens files; if the system has too many open, once more after those have been
/// closed that nobody uses in any of the sessions.
pub(crate) fn with_room<T>(
    sessions: &[&Arc<FileHandles>],
    call: impl Fn() -> Result<T>,
) -> Result<T> {
    match call() {
        Err(Error::Disk(error)) if error.is_too_many_files() => {
            sessions.iter().try_for_each(|files| files.close_idle())?;
            call()
        }
        result => result,
    }
}

/// Opens or makes the session to export to.
pub(crate) fn open_target(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    salt: u64,
) -> Result<Arc<SessionInner>> {
    let foreign = || Err(Error::SnapshotExportDirExists { path: dir.to_owned() });
    match disk.kind(dir)? {
        None => {}
        Some(EntryKind::Directory) => match check_dir(disk.as_ref(), dir) {
            Err(Error::SessionDirCorrupted { .. }) if !is_session_like(disk.as_ref(), dir)? => {
                return foreign();
            }
            checked => checked?,
        },
        Some(_) => return foreign(),
    }

    make_dir(disk.as_ref(), dir)?;
    SessionInner::open(disk, dir, OpenSettings::new(salt, OPEN_FILES_DEFAULT))
}

/// Imports a snapshot.
pub(crate) fn import(
    inner: &Arc<SessionInner>,
    place: &SnapshotPlace,
    name: &SnapshotName,
    progress: Progress<'_>,
) -> Result<ImportReport> {
    inner.check_writable()?;
    inner.check_room()?;

    let disk = place.disk_or(inner.files().disk());
    let dir = &disk.absolute(&place.dir)?;
    match disk.kind(dir)? {
        None => return Err(Error::SnapshotImportDirDoesNotExist { path: dir.to_owned() }),
        Some(EntryKind::Directory) if is_session_like(disk.as_ref(), dir)? => {}
        Some(EntryKind::Directory) => return foreign_dir(disk.as_ref(), dir),
        Some(_) => {
            let found = "a file".to_owned();
            return Err(Error::NotTerrane { path: dir.to_owned(), expected: STORE, found });
        }
    }

    let _anchor = anchor_dir(disk.as_ref(), dir)?;
    let _lock = lock_dir(disk.as_ref(), dir)?;

    let from = place.name.as_str();
    let damaged = |error| snapshot::damaged(dir, from, error);
    let meta = match read_snapshot(disk.as_ref(), dir, from) {
        Err(Error::Disk(error)) if error.is_not_found() => {
            return Err(Error::SnapshotDoesNotExist { name: from.to_owned() });
        }
        read => read.map_err(damaged)?,
    };

    let reservation = inner.snapshots().reserve(name.as_str())?;
    let open = FileHandles::new(disk, OPEN_FILES_DEFAULT);

    let files = Arc::new(FileSet::read_only(open, dir.join(ACTIVE)));

    let go_on = || inner.check_open();
    // No run of this session is shared: it may be the very one that is damaged.
    let copier = Copier::new(&files, inner, [], &go_on, progress);
    let mut copier = Copier { snapshot: from, checks_entries: true, ..copier };
    let meta = copier.copy(&meta).map_err(damaged)?;
    snapshot::publish(inner, reservation, &meta)?;
    let ExportReport { files_copied, bytes_copied, files_rebuilt, .. } = copier.report;
    Ok(ImportReport { files_copied, bytes_copied, files_rebuilt })
}

/// A run to be copied.
struct Item<'a> {
    wanted: &'a RunRef,
    footer: RunMeta,
    /// How it is made, should it have to be made anew.
    build: RunBuild,
}

/// Copies the runs of snapshots from the files of one session to another session.
pub(crate) struct Copier<'a> {
    /// The snapshot, for errors.
    snapshot: &'a str,
    from: &'a Arc<FileSet>,
    to: &'a SessionInner,
    /// Runs that are in the other session already, by identity.
    known: BTreeMap<u64, RunRef>,
    /// Whether everything is checked, or only each page for itself.
    checks_entries: bool,
    /// Asked after each write.
    go_on: &'a dyn Fn() -> Result<()>,
    progress: Progress<'a>,
    done_bytes: u64,
    total_bytes: u64,
    /// Keeps the copies until a snapshot pins them.
    held: Vec<FileHandle>,
    pub(crate) report: ExportReport,
}

impl<'a> Copier<'a> {
    /// Copies what is not among the `known` runs of the other session.
    pub(crate) fn new(
        from: &'a Arc<FileSet>,
        to: &'a SessionInner,
        known: impl IntoIterator<Item = RunRef>,
        go_on: &'a dyn Fn() -> Result<()>,
        progress: Progress<'a>,
    ) -> Self {
        Self {
            snapshot: "",
            from,
            to,
            known: known.into_iter().map(|run| (run.identity, run)).collect(),
            checks_entries: false,
            go_on,
            progress,
            done_bytes: 0,
            total_bytes: 0,
            held: Vec::new(),
            report: ExportReport::default(),
        }
    }
}

impl Copier<'_> {
    /// Copies all runs of a snapshot, and makes their bytes durable; returns the snapshot as it is
    /// there.
    pub(crate) fn copy(&mut self, meta: &SnapshotMeta) -> Result<SnapshotMeta> {
        let mut items = BTreeMap::new();
        let mut there = BTreeMap::new();
        for (wanted, level) in meta.leveled_runs() {
            if items.contains_key(&wanted.number) {
                continue;
            }
            let item = self.item(meta, wanted, level)?;
            if let Some(run) = self.shared(&item.footer)? {
                self.report.files_shared += files_of(&item.footer);
                self.report.bytes_shared += bytes_of(&item.footer);
                // Whoever has it there may let it go before a snapshot pins it.
                self.held.push(self.to.files().attach(run.number));
                there.insert(wanted.number, run);
            }
            items.insert(wanted.number, item);
        }

        items.retain(|number, _| !there.contains_key(number));
        // A copier may copy several snapshots, so bytes already done stay in the total.
        self.total_bytes =
            self.done_bytes + items.values().map(|item| self.work_bytes(item)).sum::<u64>();

        for (number, item) in items {
            let run = if item.footer.salt == self.to.salt() {
                self.copy_run(&item)?
            } else {
                self.rebuild_run(&item)?
            };
            // A later snapshot of the same copy may share the run.
            self.known.insert(run.identity, run);
            there.insert(number, run);
        }

        let mut copied = meta.clone();
        for run in copied.runs_mut() {
            *run = there[&run.number];
        }

        // What is unfinished is not copied.
        Ok(copied.without_progress())
    }

    fn item<'b>(
        &self,
        meta: &'b SnapshotMeta,
        wanted: &'b RunRef,
        level: Option<u32>,
    ) -> Result<Item<'b>> {
        let file = self.open(&self.from.path(wanted.number))?;
        let footer = read_meta(file.path(), file.as_ref())?;
        // The file must be the very run that the snapshot means before anything is copied.
        snapshot::check_footer(file.path(), &footer, wanted)?;

        if footer.blob_bytes > 0 {
            let blobs = self.open(&self.from.blobs_path(wanted.number))?;
            check_blobs_len(blobs.path(), blobs.as_ref(), &footer)?;
        }

        let build = meta.build(level);
        if footer.purpose != build.purpose {
            let expected = build.purpose as u64;
            let found = footer.purpose as u64;
            let what = Corrupt::rule("purpose in the snapshot", expected, found);
            return Err(Error::corrupt(file.path(), what));
        }

        Ok(Item { wanted, footer, build })
    }

    /// A rebuilt run is read twice, its blobs once.
    fn work_bytes(&self, item: &Item<'_>) -> u64 {
        let RunMeta { data_pages, blob_bytes, salt, .. } = item.footer;
        let is_copied = salt == self.to.salt();
        if is_copied { bytes_of(&item.footer) } else { 2 * page_offset(data_pages) + blob_bytes }
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn DiskFile>> {
        let open = || Ok(self.from.disk().open(path, OpenMode::Read, Access::Buffered)?);
        self.with_room(open)
    }

    fn with_room<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        with_room(&[self.from.handles(), self.to.files().handles()], call)
    }

    /// The same run in the other session, if it is there and its footer is whole.
    fn shared(&self, footer: &RunMeta) -> Result<Option<RunRef>> {
        let Some(run) = self.known.get(&footer.identity) else { return Ok(None) };
        let open = |path: &Path| self.to.disk().open(path, OpenMode::Read, Access::Buffered);
        let read = || {
            let file = open(&self.to.files().path(run.number))?;
            let found = read_meta(file.path(), file.as_ref())?;
            if found.blob_bytes > 0 {
                let blobs = open(&self.to.files().blobs_path(run.number))?;
                check_blobs_len(blobs.path(), blobs.as_ref(), &found)?;
            }
            Ok(found)
        };

        match self.with_room(read) {
            // Filter and index may have been repaired since.
            Ok(found) => Ok(found.has_entries_of(footer).then_some(*run)),
            Err(Error::Corrupt { .. } | Error::UnknownVersion { .. }) => Ok(None),
            Err(Error::Disk(error)) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies the files of a run as they are.
    fn copy_run(&mut self, item: &Item<'_>) -> Result<RunRef> {
        let source = self.open(&self.from.path(item.wanted.number))?;
        let (mut handle, copy) = self.with_room(|| self.to.files().create(Access::Buffered))?;
        let target = copy.get()?;
        let RunMeta { identity, data_pages, .. } = item.footer;

        let way = Way { source: source.as_ref(), target: target.as_ref(), identity };
        // An import takes in foreign files, so it checks their entries on the same way.
        if self.checks_entries {
            self.check_entries(item, way.source, &mut |first, bytes| {
                Ok(target.write_at(bytes, page_offset(first))?)
            })?;
        } else {
            self.copy_pages(&way, 0..data_pages, check_crc)?;
        }

        self.copy_pages(&way, data_pages..item.footer.pages() as u32, check_crc)?;
        // The bytes are durable before a snapshot names the run.
        copy.sync()?;
        if item.footer.blob_bytes > 0 {
            let source = self.open(&self.from.blobs_path(item.wanted.number))?;
            let copy =
                self.with_room(|| self.to.files().create_blobs(&handle, Access::Buffered))?;
            let target = copy.get()?;
            let way = Way { source: source.as_ref(), target: target.as_ref(), identity };
            self.copy_pages(&way, 0..item.footer.blob_pages() as u32, check_blob_page)?;
            copy.sync()?;
        }

        handle.finish_writing();
        handle.note_synced();
        let run = RunRef { number: handle.number(), ..*item.wanted };
        self.keep(handle, &item.footer);
        Ok(run)
    }

    /// Writes a run anew for the salt of the other session.
    fn rebuild_run(&mut self, item: &Item<'_>) -> Result<RunRef> {
        let source = self.open(&self.from.path(item.wanted.number))?;

        // Filter and index are laid out by what the entries are, not by what a footer says.
        let (run, sums) = self.check_entries(item, source.as_ref(), &mut |_, _| Ok(()))?;
        let salt = self.to.salt();
        let plan = sums.plan(salt, &item.build);
        let mut builder = self.with_room(|| RunBuilder::new(self.to.files(), &plan))?;
        let RunMeta { identity, data_pages, .. } = item.footer;

        let mut told_pages = 0;
        Pages::new(source.as_ref(), identity, data_pages).walk(&mut |step| {
            let met = match step {
                Step::Damage(what) => return Err(Error::corrupt(source.path(), what)),
                Step::Entry(met) => met,
            };
            let EntryRef { key, kind, blob, .. } = met.entry;
            let run = || Blob::Run { run: Arc::clone(&run), span: blob };
            let copied = (kind == Kind::InsertBlob).then(run);
            builder.push(met.entry, copied.as_ref(), || key_hash(salt, key))?;
            let pages = met.page + met.pages;
            let bytes = page_offset(pages - told_pages) + u64::from(blob.len);
            told_pages = pages;
            // Entries on one page move the progress once.
            if bytes > 0 { self.tick(bytes) } else { Ok(()) }
        })?;

        // No run is without entries, so the source is damaged.
        let Some(built) = builder.finish()? else {
            let what = Corrupt::rule("entries", sums.meta.entries, 0);
            return Err(Error::corrupt(source.path(), what));
        };

        // The bytes are durable before a snapshot names the run.
        built.sync()?;
        self.report.files_rebuilt += files_of(built.meta());
        self.keep(self.to.files().attach(built.number()), built.meta());
        Ok(snapshot::run_ref(&built))
    }

    /// Keeps a copy until a snapshot pins it.
    fn keep(&mut self, handle: FileHandle, footer: &RunMeta) {
        self.report.files_copied += files_of(footer);
        self.report.bytes_copied += bytes_of(footer);
        self.held.push(handle);
    }

    /// Copies pages, each of which is checked for itself.
    fn copy_pages(
        &mut self,
        way: &Way<'_>,
        pages: Range<u32>,
        check: fn(&[u8], PageAddress) -> std::result::Result<(), Corrupt>,
    ) -> Result<()> {
        let mut chunk = AlignedBuf::zeroed(CHUNK_PAGES as usize * PAGE_SIZE);
        for first in pages.clone().step_by(CHUNK_PAGES as usize) {
            let count = CHUNK_PAGES.min(pages.end - first);
            let bytes = &mut chunk[..count as usize * PAGE_SIZE];
            way.source.read_at(bytes, page_offset(first))?;
            for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_SIZE)) {
                check(bytes, PageAddress { identity: way.identity, page })
                    .map_err(|what| Error::corrupt(way.source.path(), what))?;
            }
            way.target.write_at(bytes, page_offset(first))?;
            self.tick(bytes.len() as u64)?;
        }

        Ok(())
    }

    /// Goes through the entries of a run and checks everything of its file; `take` is given the
    /// data pages.
    fn check_entries(
        &mut self,
        item: &Item<'_>,
        source: &dyn DiskFile,
        take: &mut dyn FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<(Arc<Run>, Sums)> {
        let run = Arc::new(Run::open(self.from, item.wanted.number, Access::Buffered)?);
        let filter = run.filter();
        let flawed = |flaw| Err(flawed(self.snapshot, &run, flaw));
        let RunMeta { purpose, identity, salt, prefix_bytes, data_pages, .. } = item.footer;
        let mut sums = Sums::new(purpose, identity, salt, prefix_bytes);

        let mut tap = |first: u32, bytes: &[u8]| {
            take(first, bytes)?;
            self.tick(bytes.len() as u64)
        };

        Pages::new(source, identity, data_pages).tapped(&mut tap).walk(&mut |step| {
            let met = match step {
                Step::Damage(what) => return Err(Error::corrupt(source.path(), what)),
                Step::Entry(met) => met,
            };
            sums.add(&met);
            let rule = misled(&run, &filter, &met);
            rule.map_or(Ok(()), |rule| flawed(Flaw { page: met.page, rule }))
        })?;

        sums.flaws(&run).first().map_or(Ok(()), |&flaw| flawed(flaw))?;
        Ok((run, sums))
    }

    /// Tells of bytes that are done, and asks whether to go on.
    fn tick(&mut self, bytes: u64) -> Result<()> {
        self.done_bytes += bytes;
        (self.progress)(self.done_bytes, self.total_bytes);
        (self.go_on)()
    }
}

/// Two files, of which one becomes what the other is.
struct Way<'a> {
    source: &'a dyn DiskFile,
    target: &'a dyn DiskFile,
    /// Identity of the run.
    identity: u64,
}

/// Checks a page of blobs.
pub(crate) fn check_blob_page(
    bytes: &[u8],
    place: PageAddress,
) -> std::result::Result<(), Corrupt> {
    decode_payload(bytes, place, PageKind::Blob, place.page).map(drop)
}

/// Files of a run, and their length.
fn files_of(footer: &RunMeta) -> u64 {
    1 + u64::from(footer.blob_bytes > 0)
}

fn bytes_of(footer: &RunMeta) -> u64 {
    (footer.pages() + footer.blob_pages()) * PAGE_SIZE as u64
}

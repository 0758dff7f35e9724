//! Salvage of damaged stores: everything whole is in the new store, nothing there is false, and the
//! damaged store keeps every byte.
//!
//! Goal: an entry in a salvaged table is the one that the table had after the commit that the
//! report names. An entry that is not there is in a range that the report names, and there are no
//! more of them than the report says. Entries that are perhaps out of date are in a table of
//! another name.
//!
//! Method: the store of the tests of `loss`, whose state after every commit is known. Each case
//! damages a copy of it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_io::{Access, BadMedia, Disk, DiskFile, LockGuard, OpenMode, SimDisk, forward};
use terrane_lsm::salvage::{Salvaged, UNFINISHED, salvage};
use terrane_lsm::verify::{LostWhat, Problem, verify};
use terrane_lsm::{Error, PAGE_SIZE, Result, SnapshotName, Store, TableName};
use terrane_testkit::effort::by_effort;

use crate::hostile::Damage;
use crate::loss::{
    COMMITS, Content, DIR, Specimen, as_disk, content, is_in, name, options, specimen,
};

const NEW: &str = "/new";

/// Kinds of damage of a whole file. A denied file is no damage: the caller mends the permissions.
const DAMAGES: [Damage; 7] = [
    Damage::Remove,
    Damage::Empty,
    Damage::Cut,
    Damage::Shift,
    Damage::Swap,
    Damage::Fifo,
    Damage::BadSectors,
];

fn run(disk: &Arc<SimDisk>) -> Result<Salvaged> {
    salvage(&as_disk(disk), Path::new(DIR), Path::new(NEW), &mut |done, total| {
        assert!(done <= total);
    })
}

fn problems(disk: &Arc<SimDisk>, dir: &str) -> Vec<Problem> {
    verify(&as_disk(disk), Path::new(dir), &mut |_, _| {}).unwrap().problems
}

/// Bytes of all files of the damaged store.
fn files_below(disk: &Arc<SimDisk>, dir: &str) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let files = disk.files().into_iter().filter(|path| path.starts_with(dir));
    files.map(|path| (path.clone(), disk.read_raw(&path))).collect()
}

/// Tables and the snapshot of the new store.
struct Found {
    tables: Vec<(String, Content)>,
    snapshot: Option<Content>,
    doubtful_snapshot: Content,
}

impl Found {
    fn table(&self, name: &str) -> Content {
        let found = self.tables.iter().find(|(of, _)| of == name);
        found.map(|(_, content)| content.clone()).unwrap_or_default()
    }
}

/// Salvages a damaged disk and reads the new store.
fn salvaged(disk: &Arc<SimDisk>, place: &str) -> (Salvaged, Found) {
    let before = files_below(disk, DIR);
    let report = run(disk).unwrap_or_else(|error| panic!("{place}: {error:?}"));
    assert_eq!(files_below(disk, DIR), before, "{place}: the damaged store has changed");
    assert!(!disk.files().contains(&Path::new(NEW).join(UNFINISHED)), "{place}");

    assert_eq!(problems(disk, NEW), [], "{place}");
    let store = Store::open(as_disk(disk), Path::new(NEW), &options()).unwrap();
    let mut tables = Vec::new();
    for info in store.tables().unwrap() {
        let view = store.table(&info.name).unwrap().view().unwrap();
        let found = content(store.session(), &view).unwrap();
        let told = report.tables.iter().find(|table| table.name == info.name.as_str()).unwrap();
        assert_eq!(told.entries, Some(found.len() as u64), "{place}: {}", told.name);
        tables.push((info.name.to_string(), found));
    }
    assert_eq!(tables.len(), report.tables.len());

    let read = |snapshot: &str| {
        let opened = store.session().open_snapshot(&name(snapshot), "").ok()?;
        Some(content(store.session(), &opened).unwrap())
    };
    let snapshot = read("kept");
    let doubtful_snapshot = read("kept-doubtful").unwrap_or_default();
    store.close().unwrap();

    (report, Found { tables, snapshot, doubtful_snapshot })
}

impl Specimen {
    /// Compares a salvaged content with the state after a commit. Returns how many keys are
    /// missing.
    fn compare_salvaged(
        &self,
        (found, doubtful): (&Content, &Content),
        commit: u64,
        report: &Salvaged,
        place: &str,
    ) -> u64 {
        let expected = &self.states[commit as usize];
        let is_lost = |key: &[u8]| {
            report.lost.iter().any(|lost| match &lost.what {
                LostWhat::Entries { keys, .. } => keys.iter().any(|gap| is_in(gap, key)),
                _ => false,
            })
        };
        let has_lost_blob = |key: &[u8]| {
            report.lost.iter().any(|lost| match &lost.what {
                LostWhat::Blobs { keys, .. } => keys.iter().any(|gap| is_in(gap, key)),
                _ => false,
            })
        };

        for (key, value) in found {
            let text = String::from_utf8_lossy(key);
            let right = expected.get(key);
            let is_right = right == Some(value)
                || right.is_some_and(|right| right.starts_with(value) && has_lost_blob(key));
            assert!(is_right, "{place}: {text} is false");
        }
        for (key, value) in doubtful {
            let text = String::from_utf8_lossy(key);
            assert!(is_lost(key) && !found.contains_key(key), "{place}: {text} is not doubtful");
            assert!(self.history[key].contains(value), "{place}: {text} was never so");
        }

        let mut missing = 0;
        for (key, value) in expected {
            if found.contains_key(key) || doubtful.get(key) == Some(value) {
                continue;
            }
            let text = String::from_utf8_lossy(key);
            assert!(is_lost(key), "{place}: {text} is missing and not named");
            missing += 1;
        }
        missing
    }

    /// Salvages a damaged disk whose manifest is whole, and compares all of it.
    fn salvage(&self, disk: &Arc<SimDisk>, place: &str) -> Salvaged {
        let (report, found) = salvaged(disk, place);
        let mut commit = COMMITS;
        let mut has_snapshot = true;
        for lost in &report.lost {
            match &lost.what {
                LostWhat::Commits { after, .. } => commit = *after,
                LostWhat::Snapshot | LostWhat::Directory => has_snapshot = false,
                _ => {}
            }
        }

        let table = (&found.table("main"), &found.table("main-doubtful"));
        let mut missing = self.compare_salvaged(table, commit, &report, place);
        assert_eq!(found.snapshot.is_some(), has_snapshot, "{place}: {report:?}");
        if let Some(snapshot) = &found.snapshot {
            let snapshot = (snapshot, &found.doubtful_snapshot);
            missing = missing.max(self.compare_salvaged(snapshot, self.snapshot, &report, place));
        }

        let lost: Option<u64> = report
            .lost
            .iter()
            .map(|lost| match &lost.what {
                LostWhat::Entries { entries, .. } => *entries,
                _ => Some(0),
            })
            .sum();
        assert!(lost.is_none_or(|lost| missing <= lost), "{place}: {missing} of {lost:?}");
        let doubtful = table.1.len() + found.doubtful_snapshot.len();
        assert_eq!(report.doubtful, doubtful as u64, "{place}");
        assert_eq!(report.is_complete(), report.lost.is_empty() && doubtful == 0, "{place}");
        report
    }
}

#[test]
fn a_whole_store_is_copied_without_loss() {
    let specimen = specimen();
    let disk = specimen.disk.clone_disk();
    let report = specimen.salvage(&disk, "whole");
    assert!(report.is_complete() && !report.is_lower_bound, "{report:?}");
    let store = Store::open(as_disk(&disk), Path::new(NEW), &options()).unwrap();
    assert_eq!(store.versions().unwrap().len(), 3);
}

/// A bit of each page of each run, or a sector that cannot be read.
#[test]
fn of_a_damaged_page_nothing_else_is_lost_and_nothing_false_shows() {
    let specimen = specimen();
    let step = by_effort(7, 1);
    let mut lossy = 0;
    let mut doubtful = 0;
    let mut cases = 0;
    for (path, pages) in specimen.runs() {
        for page in (0..pages).step_by(step) {
            let disk = specimen.disk.clone_disk();
            let offset = page * PAGE_SIZE as u64;
            if cases % 2 == 0 {
                disk.flip_bit(&path, (offset + 300) * 8);
            } else {
                disk.add_bad_range(&path, offset..offset + 512, BadMedia::Both);
            }
            cases += 1;
            let report = specimen.salvage(&disk, &format!("{} page {page}", path.display()));
            lossy += u32::from(!report.lost.is_empty());
            doubtful += report.doubtful;
        }
    }
    assert!(lossy > 5, "{lossy} of {cases}");
    assert!(doubtful > 0, "older entries of lost keys are set aside");
}

/// A flipped bit in a file of every other kind, at several places.
#[test]
fn a_flipped_bit_in_any_file_is_survived() {
    let specimen = specimen();
    for path in specimen.disk.files() {
        let is_run = path.extension().is_some_and(|end| end == "run");
        if is_run || ["lock", "reserve"].iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let len = specimen.disk.read_raw(&path).unwrap().len() as u64;
        let places = by_effort(3, 24);
        for at in (0..len).step_by((len / places as u64).max(1) as usize) {
            let disk = specimen.disk.clone_disk();
            disk.flip_bit(&path, at * 8 + 3);
            specimen.salvage(&disk, &format!("{} byte {at}", path.display()));
        }
    }
}

/// Disk on which the damaged store lies on a medium that refuses every change.
#[derive(Debug)]
struct ReadOnlySource {
    inner: Arc<SimDisk>,
    refused: AtomicU64,
}

impl ReadOnlySource {
    fn check(&self, call: &'static str, path: &Path) -> terrane_io::Result<()> {
        if !path.starts_with(DIR) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(terrane_io::Error::io(call, path, ErrorKind::ReadOnlyFilesystem.into()))
    }
}

impl Disk for ReadOnlySource {
    forward!(
        inner: anchor, list, kind, sync_dir, lock_shared, is_locked, free_bytes, allocated_bytes,
        clock, queue, queue_kind
    );

    fn open(
        &self,
        path: &Path,
        mode: OpenMode,
        access: Access,
    ) -> terrane_io::Result<Arc<dyn DiskFile>> {
        if mode != OpenMode::Read {
            self.check("open", path)?;
        }
        self.inner.open(path, mode, access)
    }

    fn create_dir(&self, path: &Path) -> terrane_io::Result<()> {
        self.check("mkdir", path)?;
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> terrane_io::Result<()> {
        self.check("rmdir", path)?;
        self.inner.remove_dir(path)
    }

    fn remove(&self, path: &Path) -> terrane_io::Result<()> {
        self.check("unlink", path)?;
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> terrane_io::Result<()> {
        self.check("rename", from)?;
        self.check("rename", to)?;
        self.inner.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> terrane_io::Result<()> {
        self.check("link", from)?;
        self.check("link", to)?;
        self.inner.hard_link(from, to)
    }

    fn lock(&self, path: &Path) -> terrane_io::Result<Box<dyn LockGuard>> {
        self.check("open", path)?;
        self.inner.lock(path)
    }
}

/// The store of a broken machine is on a medium that is mounted for reading only: salvage asks for
/// no change there, and finds as much as on a medium that could be written.
#[test]
fn a_store_on_a_read_only_medium_is_salvaged_like_any_other() {
    let specimen = specimen();

    for is_damaged in [false, true] {
        let writable = specimen.disk.clone_disk();
        if is_damaged {
            for (path, _) in specimen.runs() {
                writable.flip_bit(&path, 8 * 300);
            }
        }
        let frozen = writable.clone_disk();
        let expected = run(&writable).unwrap();
        assert_eq!(expected.is_complete(), !is_damaged);

        let before = files_below(&frozen, DIR);
        let source =
            Arc::new(ReadOnlySource { inner: Arc::clone(&frozen), refused: AtomicU64::new(0) });
        let disk = Arc::clone(&source) as Arc<dyn Disk>;
        let salvaged = salvage(&disk, Path::new(DIR), Path::new(NEW), &mut |_, _| {}).unwrap();
        assert_eq!(format!("{salvaged:?}"), format!("{expected:?}"));
        assert_eq!(source.refused.load(Ordering::Relaxed), 0, "nothing was tried to be changed");
        assert_eq!(files_below(&frozen, DIR), before);
        assert_eq!(problems(&frozen, NEW), []);
    }
}

#[test]
fn whatever_becomes_of_a_file_the_rest_is_salvaged() {
    let specimen = specimen();
    let step = by_effort(13, 1);
    let mut turn = 0;
    let mut lossy = 0;
    for path in specimen.disk.files() {
        if ["lock", "reserve"].iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let is_run = path.starts_with("/store/active");
        for damage in DAMAGES {
            turn += 1;
            if is_run && turn % step != 0 {
                continue;
            }
            let disk = specimen.disk.clone_disk();
            // Nothing tells of a snapshot whose file is gone.
            if damage.apply(&disk, &path) && !problems(&disk.clone_disk(), DIR).is_empty() {
                let place = format!("{damage:?} {}", path.display());
                lossy += u32::from(!specimen.salvage(&disk, &place).lost.is_empty());
            }
        }
    }
    assert!(lossy > 5, "{lossy}");
}

/// Both copies of the manifest are gone: values are in tables by the number of their run, and in
/// tables of the log.
#[test]
fn without_a_manifest_every_value_is_in_some_recovered_table() {
    let specimen = specimen();
    for damage in [Damage::Remove, Damage::Empty, Damage::Shift] {
        let disk = specimen.disk.clone_disk();
        for copy in ["manifest.a", "manifest.b"] {
            assert!(damage.apply(&disk, &Path::new(DIR).join(copy)));
        }
        let place = format!("{damage:?}");
        let (report, found) = salvaged(&disk, &place);
        assert!(report.lost.iter().any(|lost| lost.what == LostWhat::Tables), "{place}");
        assert!(report.is_lower_bound, "{place}");
        assert!(found.tables.iter().all(|(name, _)| name.starts_with("recovered-")), "{place}");
        assert_eq!(found.snapshot.as_ref(), Some(&specimen.states[specimen.snapshot as usize]));

        let all: Vec<&Content> =
            found.tables.iter().map(|(_, content)| content).chain(&found.snapshot).collect();
        for content in &all {
            for (key, value) in *content {
                assert!(specimen.history[key].contains(value), "{place}: {key:?} was never so");
            }
        }
        for (key, value) in &specimen.states[COMMITS as usize] {
            let is_there = all.iter().any(|content| content.get(key) == Some(value));
            assert!(is_there, "{place}: {} is nowhere", String::from_utf8_lossy(key));
        }
    }
}

/// Nothing that names anything is left: no manifest, no snapshot, no metadata.
#[test]
fn runs_alone_are_enough_to_recover_their_entries() {
    let specimen = specimen();
    let disk = specimen.disk.clone_disk();
    for path in disk.files() {
        if !path.starts_with("/store/active") {
            disk.remove(&path).unwrap();
        }
    }
    let (report, found) = salvaged(&disk, "runs alone");
    let runs: BTreeSet<String> = specimen
        .runs()
        .iter()
        .map(|(path, _)| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap())
        .map(|number| format!("recovered-{number}"))
        .collect();
    let tables: BTreeSet<String> = found.tables.iter().map(|(name, _)| name.clone()).collect();
    assert!(runs.is_subset(&tables), "{runs:?} {tables:?}");
    assert!(report.doubtful == 0 && found.snapshot.is_none());
    for (name, content) in &found.tables {
        for (key, value) in content {
            assert!(specimen.history[key].contains(value), "{name}: {key:?} was never so");
        }
    }
}

#[test]
fn a_new_directory_must_be_empty_and_the_damaged_one_a_store() {
    let specimen = specimen();
    let disk = specimen.disk.clone_disk();
    let refused = salvage(&as_disk(&disk), Path::new("/none"), Path::new(NEW), &mut |_, _| {});
    assert!(refused.is_err());
    assert!(!disk.files().iter().any(|path| path.starts_with(NEW)));
    run(&disk).unwrap();
    let files = files_below(&disk, NEW);
    assert!(matches!(run(&disk), Err(Error::NotTerrane { .. })));
    assert_eq!(files_below(&disk, NEW), files);

    let store = Store::open(as_disk(&disk), Path::new(DIR), &options()).unwrap();
    let other = Path::new("/other");
    let locked = salvage(&as_disk(&disk), Path::new(DIR), other, &mut |_, _| {});
    assert!(matches!(locked, Err(Error::SessionDirLocked { .. })), "{locked:?}");
    drop(store);
}

/// A doubtful entry belongs to a table of its own, whose name has room.
#[test]
fn a_long_name_gets_a_short_one_for_its_doubtful_entries() {
    let long = "n".repeat(64);
    assert!(TableName::new(&long).is_ok() && TableName::new(&format!("{long}-doubtful")).is_err());
    assert!(SnapshotName::new("doubtful-7").is_ok());
}

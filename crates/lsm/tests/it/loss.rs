//! Repairs with accepted loss: only damaged data goes, the report names all of it, and the rest
//! survives.
//!
//! Goal: after a repair with accepted loss the store opens, a check finds nothing, and it can be
//! written; of each key outside the ranges that the report names the right value is there, and
//! inside them the right one, an older one or none; of the log all commits up to the one that the
//! report names are there, and none behind it.
//!
//! Method: a store with runs of many pages on several levels, blobs, versions, a snapshot and a
//! log, on the simulated disk, whose state after every commit is known. Each case damages a copy of
//! it. Crashes at each call of a repair lead to the content that the repair leads to without one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{BadMedia, Disk, SimDisk, Survival};
use terrane_lsm::inspect::{Inspection, inspect};
use terrane_lsm::verify::{KeyGap, Loss, LostWhat, Report, repair, verify};
use terrane_lsm::{
    CheckpointThread, Durability, Error, PAGE_SIZE, Result, Session, SessionOptions, SnapshotName,
    Store, StoreOptions, Table, TableConfig, TableName, Update, WriteBuffer,
};
use terrane_testkit::effort::by_effort;
use terrane_testkit::sweep::Sweep;

use crate::SALT;
use crate::hostile::Damage;

const DIR: &str = "/store";
/// Commits of the history, of [`BATCH`] keys each.
const COMMITS: u64 = 40;
const BATCH: u64 = 30;
const KEYS: u64 = 701;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn as_disk(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    Arc::clone(disk) as Arc<dyn Disk>
}

fn options() -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    options.log_bytes_max(160 << 10).checkpoint_thread(CheckpointThread::Caller)
}

fn open(disk: &Arc<SimDisk>) -> Result<Store> {
    Store::open(as_disk(disk), Path::new(DIR), &options())
}

fn check(disk: &Arc<SimDisk>) -> Report {
    verify(&as_disk(disk), Path::new(DIR), &mut |_, _| {}).unwrap()
}

fn mend(disk: &Arc<SimDisk>) -> Result<Report> {
    repair(&as_disk(disk), Path::new(DIR), Loss::Accepted, &mut |_, _| {})
}

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).unwrap()
}

fn content(session: &Session, table: &Table) -> Result<Content> {
    let mut content = Content::new();
    let mut cursor = table.cursor()?;
    while let Some(record) = cursor.next().transpose()? {
        let mut value = record.value.into_vec();
        if let Some(blob) = record.blob {
            value.extend(session.retrieve_blobs(&[blob])?.concat());
        }
        content.insert(record.key, value);
    }
    Ok(content)
}

/// A store, and what is known of it.
struct Specimen {
    disk: Arc<SimDisk>,
    /// Content of the table before the first commit and after each commit.
    states: Vec<Content>,
    /// All values that each key ever had.
    history: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// Commits of the snapshot and of the versions.
    snapshot: u64,
    versions: Vec<u64>,
}

/// Content of a store.
#[derive(Debug, Clone, PartialEq)]
struct StoreContent {
    table: Content,
    snapshot: Option<Content>,
    versions: BTreeMap<u64, Content>,
}

fn specimen() -> Specimen {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(60));
    let table = store.create_table(&TableName::default(), &config).unwrap();
    let mut states = vec![Content::new()];
    let mut history: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();

    let mut snapshot = 0;
    let mut versions = Vec::new();
    for commit in 1..=COMMITS {
        let mut state = states.last().unwrap().clone();
        if commit % 12 == 1 {
            let bound = |number: u64| format!("key {:05}", number % KEYS).into_bytes();
            let from = bound(commit * 13);
            let to = bound(commit * 13 + 90);
            drop(table.delete_range(&from[..]..&to[..]).unwrap());
            state.retain(|key, _| !(&from..&to).contains(&key));
            states.push(state);
            continue;
        }

        let mut batch = Vec::new();
        for at in 0..BATCH {
            let key = (commit * BATCH + at) * 89 % KEYS;
            let key = format!("key {key:05}").into_bytes();
            let value = format!("{commit:03}").repeat(60).into_bytes();
            let blob = format!("{at:02}").repeat(100 * (at % 5) as usize + 1).into_bytes();
            batch.push((key, value, blob, at % 7));
        }

        let updates = batch.iter().map(|(key, value, blob, kind)| {
            let update = match kind {
                0 => Update::Delete,
                1 | 2 => Update::InsertWithBlob(value, blob),
                _ => Update::Insert(value),
            };
            (key.as_slice(), update)
        });

        let updates: Vec<_> = updates.collect();
        drop(table.write_batch(&updates).unwrap());
        for (key, value, blob, kind) in &batch {
            let held = match kind {
                0 => None,
                1 | 2 => Some([value.as_slice(), blob].concat()),
                _ => Some(value.clone()),
            };
            let known = history.entry(key.clone()).or_default();
            // A blob may be lost alone.
            known.extend(held.iter().cloned().chain([value.clone()]));
            match held {
                Some(value) => state.insert(key.clone(), value),
                None => state.remove(key),
            };
        }

        states.push(state);
        match commit {
            20 => {
                table.save_snapshot(&name("kept"), "").unwrap();
                snapshot = commit;
            }
            30 => store.checkpoint().unwrap(),
            27 | 33 | 36 => versions.push(store.retain(None).unwrap()),
            _ => {}
        }
    }

    assert_eq!(store.last_commit(), COMMITS);
    let killed = disk.process_kill();
    drop((table, store));
    Specimen { disk: killed, states, history, snapshot, versions }
}

/// Reads all that a store holds, and writes to it; every part of it is whole.
fn held(disk: &Arc<SimDisk>) -> Result<StoreContent> {
    let store = open(disk)?;
    let table = store.table(&TableName::default())?;
    let found = content(store.session(), &*table.view()?)?;

    let snapshot = match store.session().open_snapshot(&name("kept"), "") {
        Err(Error::SnapshotDoesNotExist { .. }) => None,
        opened => Some(content(store.session(), &opened?)?),
    };

    let mut versions = BTreeMap::new();
    for info in store.versions()? {
        let version = store.version(info.number)?;
        let table = version.table(&TableName::default())?;
        versions.insert(info.number, content(store.session(), &table)?);
    }

    drop(table.insert(b"later", b"1")?);
    store.checkpoint()?;
    drop(table.delete(b"later")?);
    store.close()?;
    let store = open(disk)?;
    let again = content(store.session(), &*store.table(&TableName::default())?.view()?)?;
    assert_eq!(again, found);
    store.close()?;
    Ok(StoreContent { table: found, snapshot, versions })
}

fn is_in(gap: &KeyGap, key: &[u8]) -> bool {
    gap.after.as_ref().is_none_or(|after| after.as_slice() < key)
        && gap.before.as_ref().is_none_or(|before| key < before.as_slice())
}

impl Specimen {
    /// Compares a content with the state after a commit, but for the ranges that are lost; at most
    /// as many keys differ as the report says.
    fn compare(&self, found: &Content, commit: u64, report: &Report, place: &str) {
        let expected = &self.states[commit as usize];
        let losses = || {
            report.lost.iter().filter_map(|lost| match &lost.what {
                LostWhat::Entries { keys, entries, .. } => Some((keys, *entries)),
                LostWhat::Blobs { keys, blobs } => Some((keys, Some(*blobs))),
                _ => None,
            })
        };

        let lost: Option<u64> = losses().map(|(_, entries)| entries).sum();

        let keys: BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
        let mut differing = 0;
        for key in keys {
            if expected.get(key) == found.get(key) {
                continue;
            }
            differing += 1;
            let is_named = losses().any(|(keys, _)| keys.iter().any(|gap| is_in(gap, key)));
            let text = String::from_utf8_lossy(key);
            assert!(is_named, "{place}: {text} differs and is not named: {:?}", report.lost);
            if let Some(value) = found.get(key) {
                assert!(self.history[key].contains(value), "{place}: {text} was never so");
            }
        }

        assert!(lost.is_none_or(|lost| differing <= lost), "{place}: {differing} of {lost:?}");
    }

    /// Repairs a damaged copy and compares what is left with what is named. Returns the report.
    fn repair(&self, disk: &Arc<SimDisk>, place: &str) -> Report {
        let found = check(&disk.clone_disk());
        let report = mend(disk).unwrap_or_else(|error| panic!("{place}: {error:?}"));
        assert_eq!(report.problems.len(), found.problems.len(), "{place}");

        for (found, mended) in found.problems.iter().zip(&report.problems) {
            assert_eq!((&found.path, &found.rule), (&mended.path, &mended.rule), "{place}");
            let is_gone = mended.repaired || mended.dropped;
            assert!((found.repairable || found.droppable) && is_gone, "{place}: {mended:?}");
        }

        assert_eq!(check(disk).problems, [], "{place}: {report:?}");
        let held = held(disk).unwrap_or_else(|error| panic!("{place}: {error:?}\n{report:?}"));
        assert_eq!(check(disk).problems, [], "{place}, after writing: {report:?}");

        let mut commit = COMMITS;

        let mut has_snapshot = true;
        let mut dropped = Vec::new();
        for lost in &report.lost {
            match &lost.what {
                LostWhat::Commits { after, until } => {
                    assert!(until.is_none_or(|until| *after < until && until <= COMMITS));
                    commit = *after;
                }
                LostWhat::Version { number, .. } => dropped.push(*number),
                LostWhat::Snapshot | LostWhat::Directory => has_snapshot = false,
                _ => {}
            }
        }

        self.compare(&held.table, commit, &report, place);
        assert_eq!(held.snapshot.is_some(), has_snapshot, "{place}: {report:?}");
        if let Some(snapshot) = &held.snapshot {
            self.compare(snapshot, self.snapshot, &report, place);
        }
        let kept: Vec<u64> = held.versions.keys().copied().collect();
        let expected = self.versions.iter().copied().filter(|number| !dropped.contains(number));
        assert_eq!(kept, expected.collect::<Vec<_>>(), "{place}: {report:?}");

        for (number, version) in &held.versions {
            self.compare(version, *number, &report, place);
        }
        report
    }

    /// The runs, with how many pages of entries they have.
    fn runs(&self) -> Vec<(PathBuf, u64)> {
        let runs = self.disk.files().into_iter();
        let runs = runs.filter(|path| path.extension().is_some_and(|e| e == "run"));
        let runs = runs.filter_map(|path| match inspect(&as_disk(&self.disk), &path) {
            Ok(Inspection::Run(run)) => Some((path, u64::from(run.meta.data_pages))),
            _ => None,
        });
        runs.collect()
    }
}

const DAMAGES: [Damage; 8] = [
    Damage::Remove,
    Damage::Empty,
    Damage::Cut,
    Damage::Shift,
    Damage::Swap,
    Damage::Fifo,
    Damage::Deny,
    Damage::BadSectors,
];

#[test]
fn the_specimen_has_of_everything() {
    let specimen = specimen();
    assert_eq!(check(&specimen.disk).problems, []);
    let report = specimen.repair(&specimen.disk.clone_disk(), "whole");
    assert_eq!(report.lost, []);
    let runs = specimen.runs();
    assert!(runs.len() > 4 && runs.iter().any(|(_, pages)| *pages > 20), "{runs:?}");
    let files = specimen.disk.files();
    let count =
        |end: &str| files.iter().filter(|path| path.to_str().unwrap().ends_with(end)).count();
    assert!(count(".blobs") > 2 && count(".log") > 2 && count(".snapshot") == 1, "{files:?}");
}

/// Damaged pages of a run: exactly their entries go.
#[test]
fn the_entries_of_damaged_pages_go_and_no_others() {
    let specimen = specimen();
    let step = by_effort(11, 1);

    let mut cases = 0;
    let mut named = 0;
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
            let place = format!("{} page {page}", path.display());

            let report = specimen.repair(&disk, &place);
            // What a merge has written goes without loss.
            let Some(lost) = report.lost.first() else { continue };
            assert_eq!(report.lost.len(), 1, "{place}: {report:?}");
            named += 1;
            assert_eq!(lost.path, path, "{place}");

            let LostWhat::Entries { keys, entries, pages: lost_pages, .. } = &lost.what else {
                panic!("{place}: {report:?}");
            };
            assert_eq!((keys.len(), *lost_pages), (1, 1), "{place}: {report:?}");

            // A page has room for some twenty of them.
            assert!(entries.is_some_and(|lost| (1..40).contains(&lost)), "{place}: {report:?}");
            assert!(pages < 3 || keys[0].after.is_some() || keys[0].before.is_some(), "{place}");
            assert!(!lost.tables.is_empty() || !lost.snapshots.is_empty(), "{place}");
        }
    }

    assert!(named > 8, "{named} of {cases}");
}

/// Damaged blobs: the blobs of their keys go, and the values stay.
#[test]
fn values_outlive_their_damaged_blobs() {
    let specimen = specimen();
    let files = specimen.disk.files();

    let blobs = files.iter().filter(|path| path.extension().is_some_and(|end| end == "blobs"));
    for path in blobs {
        let disk = specimen.disk.clone_disk();
        disk.flip_bit(path, 800);
        let place = path.display().to_string();
        let report = specimen.repair(&disk, &place);
        // What a merge has written goes without loss.
        let Some(lost) = report.lost.first() else { continue };
        let LostWhat::Blobs { keys, blobs } = &lost.what else { panic!("{place}: {report:?}") };
        assert!(report.lost.len() == 1 && *blobs > 0 && !keys.is_empty(), "{place}: {report:?}");
        let table = held(&disk).unwrap().table;
        let expected = &specimen.states[COMMITS as usize];
        assert_eq!(table.len(), expected.len(), "{place}: no key is gone");
        for (key, value) in expected {
            assert!(value.starts_with(&table[key]), "{place}: the value of {key:?}");
        }
    }
}

/// Any file missing, cut, shifted, swapped, or unreadable.
#[test]
fn whatever_becomes_of_a_file_the_rest_is_there_after_a_repair() {
    let specimen = specimen();
    let mut lossy = 0;

    let step = by_effort(17, 1);
    let mut turn = 0;
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
            // What nothing needs is nobody's to repair.
            if damage.apply(&disk, &path) && !check(&disk).problems.is_empty() {
                let report = specimen.repair(&disk, &format!("{damage:?} {}", path.display()));
                lossy += u32::from(!report.lost.is_empty());
            }
        }
    }

    assert!(lossy > 10, "{lossy}");
}

/// A lost log: the tables are as the manifest has them, and the report names the commit that this
/// is.
#[test]
fn a_store_without_its_log_goes_back_to_its_manifest() {
    let specimen = specimen();
    for is_removed in [false, true] {
        let disk = specimen.disk.clone_disk();
        let log = Path::new(DIR).join("log");
        for file in disk.files().into_iter().filter(|path| path.starts_with(&log)) {
            disk.remove(&file).unwrap();
        }

        if is_removed {
            disk.remove_dir(&log).unwrap();
        }
        assert!(matches!(open(&disk.clone_disk()), Err(Error::StoreCorrupted { .. })));
        let refused = disk.clone_disk();
        let report = repair(&as_disk(&refused), Path::new(DIR), Loss::Refused, &mut |_, _| {});
        assert!(!report.unwrap().is_clean() && open(&refused).is_err());

        let report = specimen.repair(&disk, "no log");
        let commits = report.lost.iter().find_map(|lost| match lost.what {
            LostWhat::Commits { after, until } => Some((after, until)),
            _ => None,
        });

        let (after, until) = commits.unwrap();
        assert!((30..COMMITS).contains(&after) && until.is_none(), "{report:?}");
    }
}

/// A damaged record: the commits before it stay. A header and a seal are no loss.
#[test]
fn of_a_damaged_log_the_commits_before_the_damage_stay() {
    let specimen = specimen();
    let log = Path::new(DIR).join("log");

    let segments: Vec<_> =
        specimen.disk.files().into_iter().filter(|path| path.starts_with(&log)).collect();
    let mut ends = BTreeSet::new();
    for path in &segments {
        let len = specimen.disk.read_raw(path).unwrap().len() as u64;
        let places = (1600..len).step_by((len / 32) as usize).take(by_effort(4, 32));
        for at in [3, 515, 1027].into_iter().chain(places) {
            let disk = specimen.disk.clone_disk();
            disk.flip_bit(path, at * 8);
            let report = specimen.repair(&disk, &format!("{} byte {at}", path.display()));
            let is_note = at < 1536;
            assert!(!is_note || report.lost.is_empty(), "{} byte {at}: {report:?}", path.display());
            ends.extend(report.lost.iter().filter_map(|lost| match lost.what {
                LostWhat::Commits { after, .. } => Some(after),
                _ => None,
            }));
        }
    }

    assert!(ends.len() > 1, "{ends:?}");
}

/// Neither a manifest nor a snapshot is left: nothing is done.
#[test]
fn a_store_of_which_nothing_is_whole_is_left_as_it_is() {
    let specimen = specimen();
    let disk = specimen.disk.clone_disk();
    for file in ["manifest.a", "manifest.b"] {
        disk.write_raw(Path::new(DIR).join(file), b"");
    }
    let with_snapshot = disk.clone_disk();
    disk.write_raw(Path::new(DIR).join("snapshots/kept.snapshot"), b"");
    let files = disk.files();
    let report = mend(&disk).unwrap();
    assert!(!report.is_clean() && report.lost.is_empty(), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("restore a copy")), "{report:?}");
    assert_eq!(disk.files(), files);

    // With a snapshot that is the state that is left.
    let report = mend(&with_snapshot).unwrap();
    assert!(report.lost.iter().any(|lost| lost.what == LostWhat::Tables), "{report:?}");
    assert!(check(&with_snapshot).is_clean());
    let session =
        Session::open(as_disk(&with_snapshot), Path::new(DIR), &options().session).unwrap();
    let table = session.open_snapshot(&name("kept"), "").unwrap();
    let found = content(&session, &table).unwrap();
    assert_eq!(found, specimen.states[specimen.snapshot as usize]);
}

#[test]
fn a_crash_at_any_call_of_a_repair_leaves_what_can_be_repaired_again() {
    let specimen = specimen();
    let disk = specimen.disk.clone_disk();
    let runs = specimen.runs();
    let (largest, _) = runs.iter().max_by_key(|(_, pages)| *pages).unwrap();
    disk.flip_bit(largest, (3 * PAGE_SIZE as u64 + 70) * 8);
    let (smallest, _) = runs.iter().min_by_key(|(_, pages)| *pages).unwrap();
    disk.write_raw(smallest, b"");
    disk.flip_bit(Path::new(DIR).join("snapshots/kept.snapshot"), 99);
    let log = Path::new(DIR).join("log");
    let segment = disk.files().into_iter().rfind(|path| path.starts_with(&log)).unwrap();
    disk.flip_bit(&segment, 1600 * 8);

    let whole = disk.clone_disk();
    let report = mend(&whole).unwrap();
    assert!(report.lost.len() > 2 && check(&whole).is_clean(), "{report:?}");

    let expected = held(&whole).unwrap();
    let every = 1 + (whole.calls() - disk.calls()) / 60;
    Sweep::sampled(1, every).on(&disk).crash(
        |disk| assert_eq!(mend(disk).is_err(), disk.has_crashed()),
        |crash| {
            let call = crash.call;
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Torn(call)];
            crash.power_losses([survivals[call as usize % survivals.len()]], |image| {
                let report = mend(&image.disk).unwrap();
                assert!(report.is_clean() && check(&image.disk).is_clean(), "{report:?}");
                assert_eq!(held(&image.disk).unwrap(), expected);
            })
        },
    );
}

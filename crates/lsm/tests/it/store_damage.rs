//! Damaged manifests and WALs of stores: opening, checking and repairing them.
//!
//! Goal: damage of a copy of the manifest costs nothing; damage of the log gives exactly the right
//! data or a typed error, never a part of a commit, never a panic; a check finds all of it that
//! could do harm. Only the records of the last sync before a loss of power may be gone without an
//! error. Legal states are no problem to a check.
//!
//! Method: a store whose process was killed, with two tables in runs and in a log of several
//! segments. Every bit that has a meaning is flipped (of long values some), the store opened on a
//! copy of the disk and compared with what it was after each commit.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::{Disk, SimDisk, Survival};
use terrane_lsm::inspect::{Inspection, SegmentUse, SessionInfo, inspect};
use terrane_lsm::verify::{Loss, Report, repair, verify};
use terrane_lsm::{
    CheckpointThread, Durability, Error, Result, Session, SessionOptions, Store, StoreOptions,
    TableConfig, TableName, Update, WriteBuffer,
};

use crate::SALT;
use terrane_testkit::sweep::Sweep;

const DIR: &str = "/store";

/// Bytes before the first record of a segment, and of a record before its parts; see
/// `docs/format/log.md`.
const FIRST_RECORD: usize = 1536;
const RECORD_HEADER: usize = 36;

/// Bytes of the mark in a segment.
const MARK: Range<usize> = 1024..1052;

/// Distance between the flipped bytes of long values.
const STRIDE: usize = 61;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;
type State = BTreeMap<String, Content>;

fn options() -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller)
}

fn open(disk: &Arc<SimDisk>) -> Result<Store> {
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new(DIR), &options())
}

fn state(store: &Store) -> Result<State> {
    let mut state = State::new();
    for info in store.tables()? {
        let mut cursor = store.table(&info.name)?.cursor()?;
        let content = state.entry(info.name.to_string()).or_default();
        while let Some(record) = cursor.next().transpose()? {
            content.insert(record.key, record.value.into_vec());
        }
    }
    Ok(state)
}

/// A store whose process was killed, and its state after each commit that no checkpoint holds.
struct Specimen {
    disk: Arc<SimDisk>,
    states: BTreeMap<u64, State>,
}

fn specimen() -> Specimen {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(8));

    let tables = ["main", "other"]
        .map(|name| store.create_table(&TableName::new(name).unwrap(), &config).unwrap());
    let mut states = BTreeMap::new();
    for number in 0..60_u8 {
        if number == 40 {
            store.checkpoint().unwrap();
            states.clear();
        }

        let value = vec![number; if number % 7 == 0 { 1_800 } else { 20 }];
        let mut updates = vec![
            (vec![number % 16], Update::Insert(&value)),
            (vec![number % 5, 1], Update::Upsert(&value)),
            (vec![(number + 9) % 16], Update::Delete),
        ];

        let end = [number % 16 + 3];
        match number {
            38 | 49 => updates.push((vec![number % 16], Update::DeleteRange(Some(&end)))),
            52 => updates.push((vec![14], Update::DeleteRange(None))),
            _ => {}
        }

        let ticket = store.commit(&[(&tables[0], &updates[..]), (&tables[1], &updates[..2])]);
        states.insert(ticket.unwrap().commit(), state(&store).unwrap());
    }

    let killed = disk.process_kill();
    drop((tables, store));
    Specimen { disk: killed, states }
}

fn segment_path(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("log/{number:08}.log"))
}

fn info(disk: &Arc<SimDisk>) -> SessionInfo {
    match inspect(&(Arc::clone(disk) as Arc<dyn Disk>), Path::new(DIR)).unwrap() {
        Inspection::Session(info) => info,
        other => panic!("{other:?}"),
    }
}

fn check(disk: &Arc<SimDisk>) -> Report {
    verify(&(Arc::clone(disk) as Arc<dyn Disk>), Path::new(DIR), &mut |_, _| {}).unwrap()
}

fn mend(disk: &Arc<SimDisk>) -> Report {
    repair(&(Arc::clone(disk) as Arc<dyn Disk>), Path::new(DIR), Loss::Refused, &mut |_, _| {})
        .unwrap()
}

impl Specimen {
    fn last(&self) -> u64 {
        *self.states.keys().next_back().unwrap()
    }

    /// The segments that are needed, by number, with whether they are sealed.
    fn needed(&self) -> Vec<(u64, bool)> {
        let segments = info(&self.disk).store.unwrap().segments.into_iter();
        let needed = segments.filter(|segment| segment.usage == SegmentUse::Needed);
        needed.map(|segment| (segment.number, segment.records.unwrap().is_sealed)).collect()
    }

    /// Opens a damaged copy. What opens is a state that the store was in; returns its last commit.
    fn reopen(&self, disk: &Arc<SimDisk>) -> Option<u64> {
        // Opening changes things: not on the disk that is looked at.
        let disk = disk.clone_disk();
        match open(&disk) {
            Ok(store) => {
                let last = store.last_commit();
                let expected = self.states.get(&last);
                assert_eq!(Some(&state(&store).unwrap()), expected, "after commit {last}");
                Some(last)
            }
            Err(Error::StoreCorrupted { .. } | Error::UnknownVersion { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Returns the byte ranges of the records of a segment.
fn records(bytes: &[u8], number: u64) -> Vec<Range<usize>> {
    let mut records: Vec<Range<usize>> = Vec::new();
    loop {
        let at = records.last().map_or(FIRST_RECORD, |last| last.end.next_multiple_of(8));
        let Some(header) = bytes.get(at..at + RECORD_HEADER) else { return records };
        if header[8..16] != number.to_le_bytes() {
            return records;
        }
        let len = u32::from_le_bytes(*header.first_chunk().unwrap());
        records.push(at..at + len as usize);
    }
}

#[test]
fn a_killed_store_is_clean_and_all_of_it_is_counted() {
    let specimen = specimen();
    let needed = specimen.needed();
    assert!(needed.len() >= 2, "{needed:?}");

    assert!(
        needed.iter().rev().skip(1).all(|(_, is_sealed)| *is_sealed) && !needed.last().unwrap().1
    );
    let report = check(&specimen.disk);
    assert_eq!(report.problems, []);
    assert!(report.notes.iter().all(|note| note.contains("run files")), "{:?}", report.notes);
    assert_eq!((report.tables, report.snapshots), (2, 0));
    assert_eq!(report.commits, specimen.states.len() as u64);
    assert!(report.runs > 0 && report.entries > 0);
    let store = info(&specimen.disk).store.unwrap();
    assert_eq!(store.damage, Vec::<String>::new());
    let manifest = store.manifest.unwrap();
    assert_eq!(manifest.commit, *specimen.states.keys().next().unwrap() - 1);
    assert_eq!(manifest.segment, needed[0].0);
    let names: Vec<_> = manifest.tables.iter().map(|table| (table.id, &*table.name)).collect();
    assert_eq!(names, [(0, "main"), (1, "other")]);
    assert!(manifest.tables.iter().all(|table| table.shape.is_ok()));
    assert_eq!(specimen.reopen(&specimen.disk), Some(specimen.last()));
}

#[test]
fn every_bit_of_the_manifest_is_guarded_by_the_other_copy() {
    let specimen = specimen();
    let disk = &specimen.disk;
    let [first, second] = ["manifest.a", "manifest.b"].map(|name| Path::new(DIR).join(name));

    let bits = disk.read_raw(&first).unwrap().len() as u64 * 8;
    let mut unknown_versions = 0;
    for (path, other) in [(&first, &second), (&second, &first)] {
        for bit in (0..bits).filter(|bit| bit % if *bit < 48 * 8 { 3 } else { 61 } == 0) {
            disk.flip_bit(path, bit);
            let report = check(disk);
            assert_eq!(report.problems.len(), 1, "bit {bit}: {:?}", report.problems);
            assert_eq!((&report.problems[0].path, report.problems[0].offset), (path, 0));
            assert!(report.problems[0].repairable);
            assert_eq!(specimen.reopen(disk), Some(specimen.last()), "bit {bit}");
            let damage = info(disk).store.unwrap().damage;
            assert!(damage.len() == 1 && damage[0].contains("manifest"), "{damage:?}");

            if bit % 183 == 0 {
                let mended = disk.clone_disk();
                assert!(mend(&mended).is_clean());
                assert_eq!(mended.read_raw(path).unwrap(), mended.read_raw(other).unwrap());
                assert_eq!(check(&mended).problems, []);
                // With both damaged nothing opens and nothing is repaired.
                disk.flip_bit(other, bit);
                assert_eq!(specimen.reopen(disk), None);
                assert!(info(disk).store.unwrap().manifest.is_none());
                let report = mend(disk);
                assert_eq!(report.problems.len(), 2);
                assert!(report.problems.iter().all(|problem| !problem.repairable));
                disk.flip_bit(other, bit);
                unknown_versions += 1;
            }

            disk.flip_bit(path, bit);
        }
    }

    assert!(unknown_versions > 0);
    assert_eq!(specimen.reopen(disk), Some(specimen.last()));
}

#[test]
fn every_bit_of_the_log_is_guarded() {
    let specimen = specimen();
    let disk = &specimen.disk;
    let last = specimen.last();

    let needed = specimen.needed();
    let mut flips = 0;
    for &(number, is_sealed) in &needed {
        let path = segment_path(number);
        let bytes = disk.read_raw(&path).unwrap();

        let records = records(&bytes, number);
        // Headers of records, wholly or some bytes of each.
        let ends = [records[0].start, records[records.len() - 1].start];
        let is_dense = |record: &Range<usize>, at: usize| {
            at < record.start + RECORD_HEADER + 8
                && (ends.contains(&record.start) || at.is_multiple_of(5))
        };

        let of_records = records.iter().flat_map(|record| {
            record.clone().filter(|at| is_dense(record, *at) || at % STRIDE == 0)
        });

        let note = if is_sealed { 512..540 } else { MARK };
        for at in (0..32).chain(note).chain(of_records) {
            let bit = at as u64 * 8 + (at % 8) as u64;
            disk.flip_bit(&path, bit);
            flips += 1;
            let found = specimen.reopen(disk);

            let problems = check(disk).problems;
            let place = format!("{}: byte {at}: {found:?}, {problems:?}", path.display());
            if MARK.contains(&at) {
                // Without a mark the records still tell all there is.
                assert_eq!((found, problems), (Some(last), Vec::new()), "{place}");
            } else {
                assert_eq!(found, None, "{place}");
                assert!(!problems.is_empty(), "{place}");
                assert!(problems.iter().all(|problem| !problem.repairable), "{place}");
                assert!(!info(disk).store.unwrap().damage.is_empty(), "{place}");
            }

            disk.flip_bit(&path, bit);
        }
    }

    assert!(flips > 500, "only {flips}");
    assert_eq!(specimen.reopen(disk), Some(last));
}

/// One flipped bit in the last WAL record used to turn an acknowledged commit into a torn end,
/// silently. The mark behind each sync now tells the two apart. A power loss can take the mark of
/// the very last sync, and no other mark.
#[test]
fn a_loss_of_power_leaves_nothing_undecided_but_the_records_of_the_very_last_sync() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();

    let table = store.create_table(&TableName::default(), &TableConfig::default()).unwrap();
    for number in 0..4_u8 {
        drop(table.insert(&[number], b"value").unwrap());
    }
    let lost_power = disk.after_crash(Survival::Nothing);
    let killed = disk.process_kill();
    drop((store, table));
    let path =
        lost_power.files().into_iter().find(|path| path.extension().is_some_and(|e| e == "log"));
    let path = path.unwrap();
    let bytes = killed.read_raw(&path).unwrap();
    let records = records(&bytes, u64::from_le_bytes(*bytes[12..].first_chunk().unwrap()));
    assert_eq!(records.len(), 4);

    for (disk, is_killed) in [(&killed, true), (&lost_power, false)] {
        for (record, commit) in records.iter().zip(1..) {
            disk.flip_bit(&path, record.start as u64 * 8 + 300);
            let opened = open(&disk.clone_disk()).map(|store| store.last_commit());
            let is_clean = check(disk).is_clean();
            if commit == 4 && !is_killed {
                assert_eq!((opened.unwrap(), is_clean), (3, true));
            } else {
                assert!(
                    matches!(opened, Err(Error::StoreCorrupted { .. })),
                    "{commit}: {opened:?}"
                );
                assert!(!is_clean, "{commit}");
            }
            disk.flip_bit(&path, record.start as u64 * 8 + 300);
        }

        assert_eq!(open(&disk.clone_disk()).unwrap().last_commit(), 4);
    }
}

/// The last record of a segment goes together with seal and mark, as a forger would take them: what
/// the next segment says was durable is then all that tells the loss from a torn end.
#[test]
fn records_that_only_the_next_segment_knows_were_durable_are_missed() {
    let specimen = specimen();
    let needed = specimen.needed();
    assert!(needed.len() >= 2, "{needed:?}");

    for pair in needed.windows(2) {
        let [path, next_path] = [pair[0].0, pair[1].0].map(segment_path);
        let bytes = specimen.disk.read_raw(&path).unwrap();
        let record = records(&bytes, pair[0].0).pop().unwrap();
        let lost = u64::from_le_bytes(*bytes[record.start + 16..].first_chunk().unwrap());
        let mut torn = bytes;
        torn[512..FIRST_RECORD].fill(0);
        torn[record.start..].fill(0);
        let next = specimen.disk.read_raw(&next_path).unwrap();

        // Its notes tell, or its records alone, or nothing: then the record may never have been
        // durable, and is the torn end of the log.
        for (erased, is_told) in [
            (0..0, true),
            (512..FIRST_RECORD, true),
            (FIRST_RECORD..next.len(), true),
            (512..next.len(), false),
        ] {
            let disk = specimen.disk.clone_disk();
            let mut next = next.clone();
            next[erased.clone()].fill(0);
            disk.write_raw(&path, &torn);
            disk.write_raw(&next_path, &next);
            for &(number, _) in needed.iter().filter(|(number, _)| *number > pair[1].0) {
                disk.remove(&segment_path(number)).unwrap();
            }

            let found = specimen.reopen(&disk);
            let problems = check(&disk).problems;
            let place = format!("{} and {erased:?}: {problems:?}", path.display());
            assert_eq!(found, (!is_told).then_some(lost - 1), "{place}");
            assert_eq!(problems.is_empty(), !is_told, "{place}");
        }
    }
}

#[test]
fn files_of_the_log_that_are_missing_or_cut_are_noticed_and_others_are_not_needed() {
    let specimen = specimen();
    for &(number, _) in &specimen.needed() {
        let path = segment_path(number);
        let disk = specimen.disk.clone_disk();
        disk.remove(&path).unwrap();
        assert_eq!(specimen.reopen(&disk), None);
        let problems = check(&disk).problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!((&problems[0].path, &*problems[0].rule), (&path, "the file is missing"));
        let bytes = specimen.disk.read_raw(&path).unwrap();
        let records = records(&bytes, number);

        let second = records[1].start;
        let end = records.last().unwrap().end;
        for len in [0, 100, FIRST_RECORD, second, second + 20, end - 9] {
            let disk = specimen.disk.clone_disk();
            disk.write_raw(&path, &bytes[..len]);
            let found = specimen.reopen(&disk);
            assert!(found.is_none() && !check(&disk).is_clean(), "{len} bytes: {found:?}");
        }
    }

    // What nobody needs may be anything.
    for number in [1, 99] {
        let disk = specimen.disk.clone_disk();
        disk.write_raw(segment_path(number), b"of no use");
        assert_eq!(check(&disk).problems, []);
        assert_eq!(specimen.reopen(&disk), Some(specimen.last()));
    }
}

#[test]
fn a_damaged_run_names_the_tables_that_need_it() {
    let specimen = specimen();
    let tables = info(&specimen.disk).store.unwrap().manifest.unwrap().tables;
    for table in &tables {
        let shape = table.shape.as_ref().unwrap();
        let run = shape.level_runs().chain(&shape.buffer).next().unwrap().path.clone();
        let disk = specimen.disk.clone_disk();
        disk.flip_bit(&run, 50 * 8);
        let problems = check(&disk).problems;
        assert!(!problems.is_empty());

        for problem in &problems {
            assert_eq!((&problem.path, &problem.tables), (&run, &vec![table.name.clone()]));
            assert!(problem.snapshots.is_empty());
        }

        disk.remove(&run).unwrap();
        assert_eq!(specimen.reopen(&disk), None);
        let problems = check(&disk).problems;
        assert_eq!((problems.len(), &*problems[0].rule), (1, "the file is missing"));
        let damaged = info(&disk).store.unwrap().manifest.unwrap().tables;
        let broken: Vec<&str> =
            damaged.iter().filter(|t| t.shape.is_err()).map(|t| &*t.name).collect();
        assert_eq!(broken, [&*table.name]);
    }
}

/// A store that has lost both copies of its manifest is no new one: nothing of it is removed.
#[test]
fn a_store_without_a_manifest_whose_log_has_commits_is_refused_and_kept() {
    let specimen = specimen();
    let disk = &specimen.disk;
    let [first, second] = ["manifest.a", "manifest.b"].map(|name| Path::new(DIR).join(name));
    let bytes = disk.read_raw(&first).unwrap();
    disk.remove(&first).unwrap();
    disk.remove(&second).unwrap();
    let files = disk.files();
    let Err(Error::StoreCorrupted { path, reason }) = open(disk) else { panic!("it is damaged") };
    assert_eq!(path, first);
    assert!(reason.contains("both copies of the manifest are missing"), "{reason}");
    let problems = mend(disk).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!((&problems[0].path, &problems[0].rule), (&first, &reason));
    assert!(!problems[0].repairable);
    let store = info(disk).store.unwrap();
    assert!(store.manifest.is_none() && store.damage.len() == 1, "{:?}", store.damage);

    // The session opens, for its snapshots.
    let session =
        Session::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new(DIR), &options().session);
    session.unwrap().close().unwrap();
    assert_eq!(disk.files(), files);

    // Somebody has a copy.
    disk.write_raw(&second, &bytes);
    assert_eq!(specimen.reopen(disk), Some(specimen.last()));
}

#[test]
fn a_segment_of_another_version_is_refused_by_name() {
    let specimen = specimen();

    let needed = specimen.needed();
    let last = needed.last().unwrap().0;
    // Also where the next segment would be: a newer program may have begun it.
    for number in [needed[0].0, last, last + 1] {
        let disk = specimen.disk.clone_disk();
        let path = segment_path(number);
        let mut bytes = disk.read_raw(segment_path(number.min(last))).unwrap();
        bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
        bytes[12..20].copy_from_slice(&number.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        disk.write_raw(&path, &bytes);

        let refused = open(&disk.clone_disk());
        assert!(
            matches!(&refused, Err(Error::UnknownVersion { path: found, found: 7, newest: 3 })
                if *found == path),
            "{refused:?}"
        );

        let refused = inspect(&(Arc::clone(&disk) as Arc<dyn Disk>), &path).unwrap_err();
        assert!(matches!(refused, Error::UnknownVersion { found: 7, .. }), "{refused:?}");
        let problems = check(&disk).problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        let path_found = &problems[0].path;
        let rule = &*problems[0].rule;
        assert_eq!((path_found, rule), (&path, "format version 7; this program reads 3"));
    }
}

/// Metadata are not made up where the log needs the salt in them.
#[test]
fn lost_metadata_of_a_store_that_is_only_a_log_are_not_replaced_by_others() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let table = store.create_table(&TableName::default(), &TableConfig::default()).unwrap();
    drop(table.insert(b"key", b"value").unwrap());
    let killed = disk.process_kill();
    drop((store, table));
    assert_eq!(check(&killed).problems, []);
    killed.remove(&Path::new(DIR).join("metadata")).unwrap();
    let report = mend(&killed);
    assert_eq!(report.problems.len(), 1);
    assert!(!report.problems[0].repairable, "{:?}", report.problems);
    assert!(report.notes.iter().any(|note| note.contains("no salt")), "{:?}", report.notes);
}

/// A crash at any call of creating a table and of its first commits leaves a store that a check
/// finds clean, except for a copy of the manifest that was being overwritten, which is repaired.
#[test]
fn a_crash_at_any_call_leaves_nothing_that_a_check_minds() {
    let run = |disk: &Arc<SimDisk>| -> Result<()> {
        let store = open(disk)?;
        let table = store.create_table(&TableName::default(), &TableConfig::default())?;
        drop(table.insert(b"key", b"value")?);
        store.checkpoint()?;
        drop(table.insert(b"key", b"another")?);
        store.close()
    };

    Sweep::whole(1).crash(
        |disk| drop(run(disk)),
        |crash| {
            crash.power_losses([Survival::Nothing, Survival::Everything], |image| {
                let disk = &image.disk;
                if disk.kind(&Path::new(DIR).join("metadata")).unwrap().is_none() {
                    return;
                }
                let report = check(disk);
                let torn = |path: &Path| path.to_str().unwrap().contains("manifest.");
                let minded = report.problems.iter().filter(|problem| !torn(&problem.path));
                assert_eq!(minded.count(), 0, "{:?}", report.problems);
                assert!(mend(disk).is_clean());
            })
        },
    );
}

//! Checking and repairing damaged sessions.
//!
//! Goal: no bytes make a check panic; whatever is damaged is reported with its place; a repair
//! brings back all that the data pages still hold, and never leaves less than there was, not even
//! if it is cut short. Method: a session with runs on several levels, large values, deletions and
//! the image of a write buffer, on a simulated disk; each case damages a copy of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Disk, Fault, FaultKind, FaultPlan, Repeat, SimDisk, Survival};
use terrane_lsm::inspect::{Inspection, inspect, inspect_index, inspect_page};
use terrane_lsm::verify::{Loss, Report, repair, verify};
use terrane_lsm::{
    Compression, Error, FilterPolicy, LevelFilter, PAGE_SIZE, Purpose, Session, SessionOptions,
    SnapshotName, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;

const DIR: &str = "/ledger";
const LABEL: &str = "ledger";
const SALT: u64 = 7;

type Content = Vec<(Vec<u8>, Vec<u8>)>;

fn disk_of(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    disk.clone()
}

/// A session with two snapshots that share runs.
fn damaged_later() -> Arc<SimDisk> {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new(DIR)).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let session =
        Session::open(disk_of(&disk), Path::new(DIR), &SessionOptions::with_salt(SALT)).unwrap();

    // Both kinds.
    let filters = vec![LevelFilter::BitsPerEntry(12.0), LevelFilter::Ribbon(7)];
    let config = TableConfig::default()
        .write_buffer(WriteBuffer::Entries(100))
        .filter(FilterPolicy::PerLevel(filters))
        .compression(Compression::Lz4);

    let mut table = session.new_table(&config).unwrap();
    for number in 0..1_550_u32 {
        let key = crc32c(&number.to_le_bytes()).to_le_bytes();
        let len = if number % 97 == 0 { 9_000 } else { 60 };
        table.write_batch(&[(key, Update::Insert(&vec![number as u8; len]))]).unwrap();
        if number % 5 == 0 {
            let earlier = crc32c(&(number / 2).to_le_bytes()).to_le_bytes();
            table.delete(&earlier).unwrap();
        }
        if number == 1_200 {
            table.save_snapshot(&SnapshotName::new("early").unwrap(), LABEL).unwrap();
        }
    }

    table.save_snapshot(&SnapshotName::new("late").unwrap(), LABEL).unwrap();
    drop(table);
    session.close().unwrap();
    disk
}

/// Reads the content of a snapshot; `None` if part of it cannot be read.
fn content(disk: &Arc<SimDisk>, name: &str) -> Option<Content> {
    // Opening removes files: not from the disk that is looked at.
    let disk = disk.clone_disk();
    let session = Session::open(disk_of(&disk), Path::new(DIR), &SessionOptions::default()).ok()?;
    let table = session.open_snapshot(&SnapshotName::new(name).unwrap(), LABEL).ok()?;

    let mut cursor = table.cursor().ok()?;
    let mut content = Vec::new();
    while let Some(record) = cursor.next().transpose().ok()? {
        content.push((record.key, record.value.into_vec()));
    }

    // Filter and index as well.
    let keys: Vec<&[u8]> = content.iter().map(|(key, _)| key.as_slice()).collect();
    let found = table.get_many(&keys).ok()?;
    let agree = found.iter().zip(&content).all(|(found, (_, value))| found.value() == Some(value));
    agree.then_some(content)
}

fn contents(disk: &Arc<SimDisk>) -> BTreeMap<&'static str, Option<Content>> {
    ["early", "late"].map(|name| (name, content(disk, name))).into()
}

fn check(disk: &Arc<SimDisk>) -> Report {
    verify(&disk_of(disk), Path::new(DIR), &mut |_, _| {}).unwrap()
}

fn mend(disk: &Arc<SimDisk>) -> Report {
    repair(&disk_of(disk), Path::new(DIR), Loss::Refused, &mut |_, _| {}).unwrap()
}

/// The first page of each section of the runs, by file: data, filter (if any), index, footer.
fn run_sections(disk: &Arc<SimDisk>) -> BTreeMap<PathBuf, [Option<u64>; 4]> {
    let runs = disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "run"));
    runs.map(|path| {
        let Inspection::Run(run) = inspect(&disk_of(disk), &path).unwrap() else {
            panic!("{} is a run", path.display());
        };
        let data = u64::from(run.meta.data_pages);
        let filter = u64::from(run.meta.filter_pages);
        let sections = [
            Some(0),
            (filter > 0).then_some(data),
            Some(data + filter),
            Some(run.meta.pages() - 1),
        ];
        (path, sections)
    })
    .collect()
}

/// Writes the checksum of a page of a run anew, as a hostile writer would.
fn reseal(bytes: &mut [u8], identity: u64, page: u32) {
    let at = page as usize * PAGE_SIZE;
    let seed = [&identity.to_le_bytes()[..], &page.to_le_bytes()].concat();
    let crc = crc32c_append(crc32c(&seed), &bytes[at + 4..at + PAGE_SIZE]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Writes the checksum of a metadata file anew.
fn reseal_manifest(bytes: &mut [u8]) {
    let content = bytes.len() - 4;
    let crc = crc32c(&bytes[..content]);
    bytes[content..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_sound_session_is_clean_and_all_of_it_is_counted() {
    let disk = damaged_later();
    let before = contents(&disk);
    assert!(before.values().all(Option::is_some));
    let sections = run_sections(&disk);

    let mut reports = Vec::new();
    let report =
        verify(&disk_of(&disk), Path::new(DIR), &mut |done, total| reports.push((done, total)))
            .unwrap();
    assert_eq!(report.problems, []);
    assert_eq!((report.snapshots, report.runs), (2, sections.len() as u64));
    let pages: u64 = sections.values().map(|section| section[3].unwrap() + 1).sum();
    assert_eq!(report.pages, pages);
    assert!(report.entries > 1_550);
    assert!(reports.is_sorted() && reports.last().is_some_and(|(done, total)| done == total));

    let kinds = sections.keys().map(|path| match inspect(&disk_of(&disk), path).unwrap() {
        Inspection::Run(run) => run.meta.has_ribbon(),
        _ => panic!("{} is a run", path.display()),
    });

    let ribbons = kinds.filter(|has_ribbon| *has_ribbon).count();
    assert!(ribbons > 0 && ribbons + 1 < sections.len(), "{ribbons} of {}", sections.len());
    let images = sections.values().filter(|section| section[1].is_none()).count();
    assert!(images > 0 && sections.len() > images + 3, "the session is a fair sample");
    assert_eq!(mend(&disk).problems, []);
    assert_eq!(contents(&disk), before);
}

#[test]
fn filter_index_and_footer_are_rebuilt_and_data_pages_are_not() {
    let disk = damaged_later();
    let before = contents(&disk);
    for (path, sections) in run_sections(&disk) {
        for (section, page) in sections.into_iter().enumerate() {
            let Some(page) = page else { continue };
            let damaged = disk.clone_disk();
            damaged.flip_bit(&path, (page * PAGE_SIZE as u64 + 700) * 8);
            let report = check(&damaged);
            let case = format!("{} page {page}: {:?}", path.display(), report.problems);
            assert_eq!(report.problems.len(), 1, "{case}");
            let problem = &report.problems[0];
            assert_eq!(problem.path, path, "{case}");
            assert_eq!(problem.offset, page * PAGE_SIZE as u64, "{case}");
            assert!(!problem.snapshots.is_empty(), "{case}");
            assert_eq!((problem.repairable, problem.repaired), (section > 0, false), "{case}");
            let report = mend(&damaged);
            assert_eq!(report.is_clean(), section > 0, "{case}");

            if section > 0 {
                assert_eq!(check(&damaged).problems, [], "{case}");
                assert_eq!(contents(&damaged), before, "{case}");
            } else {
                assert_eq!(check(&damaged).problems.len(), 1, "{case}");
                let intact = contents(&damaged);
                for (name, content) in &before {
                    let lost = problem.snapshots.iter().any(|needs| needs == name);
                    assert!(lost || intact[name] == *content, "{case}: {name}");
                }
            }
        }
    }
}

#[test]
fn every_damaged_page_of_a_run_is_listed() {
    let disk = damaged_later();
    let (path, sections) = run_sections(&disk).into_iter().max_by_key(|(_, s)| s[3]).unwrap();
    for page in [0, 5, 6] {
        disk.flip_bit(&path, (page * PAGE_SIZE as u64 + 99) * 8);
    }
    disk.flip_bit(&path, (sections[3].unwrap() * PAGE_SIZE as u64 + 99) * 8);
    let report = mend(&disk);
    let pages: Vec<u64> =
        report.problems.iter().map(|problem| problem.offset / PAGE_SIZE as u64).collect();
    assert_eq!(pages, [sections[3].unwrap(), 0, 5, 6]);
    assert!(report.problems.iter().all(|problem| !problem.repairable), "{:?}", report.problems);
}

/// Any damage at all, without or with checksums that are right again.
#[test]
fn no_bytes_make_a_check_panic_and_a_repair_loses_nothing() {
    let disk = damaged_later();
    let before = contents(&disk);

    let files: Vec<PathBuf> =
        disk.files().into_iter().filter(|path| !path.ends_with("lock")).collect();
    let seeds = by_effort(50, 150);
    for_each_seed("no_bytes_make_a_check_panic_and_a_repair_loses_nothing", seeds, |rng, _| {
        let damaged = disk.clone_disk();
        for _ in 0..=rng.below(2) {
            let path = &files[rng.index(files.len())];
            let Some(mut bytes) = damaged.read_raw(path).filter(|bytes| !bytes.is_empty()) else {
                continue;
            };
            let identity = match inspect(&disk_of(&disk), path).unwrap() {
                Inspection::Run(run) => Some(run.meta.identity),
                _ => None,
            };
            let at = rng.index(bytes.len());
            match rng.below(5) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes.truncate(at),
                2 => {
                    let end = bytes.len().min(at + 5000);
                    bytes[at..end].fill(0);
                }
                3 => bytes.extend(rng.bytes(at % 9000)),
                _ => {
                    let page = at / PAGE_SIZE;
                    // Where headers and lengths are.
                    let start = page * PAGE_SIZE;
                    let width = (bytes.len() - start).min(200);
                    let target = start + rng.index(width);
                    bytes[target] = *rng.pick(&[0, 1, 0x7F, 0xFF]);
                    match identity {
                        Some(identity) => reseal(&mut bytes, identity, page as u32),
                        None => reseal_manifest(&mut bytes),
                    }
                }
            }
            damaged.write_raw(path, &bytes);
        }
        let readable = contents(&damaged);
        let found = check(&damaged);
        let mended = mend(&damaged);
        assert_eq!(mended.problems.len(), found.problems.len());
        for (found, mended) in found.problems.iter().zip(&mended.problems) {
            assert_eq!(
                (&found.path, found.offset, &found.rule),
                (&mended.path, mended.offset, &mended.rule)
            );
            assert!(mended.repairable || !mended.repaired);
        }
        let again = check(&damaged);
        assert_eq!(again.is_clean(), mended.is_clean());
        for (name, content) in contents(&damaged) {
            // What could be read can still be read, and as it was.
            assert!(readable[name].is_none() || readable[name] == content, "{name}");
            if found.problems.is_empty() {
                assert!(content.is_some(), "{name}");
            }
        }
        assert_eq!(before.len(), 2);
        for path in damaged.files() {
            if let Ok(Inspection::Run(run)) = inspect(&disk_of(&damaged), &path) {
                let _ = inspect_index(&disk_of(&damaged), &path);
                for page in 0..=run.meta.pages() {
                    let _ = inspect_page(&disk_of(&damaged), &path, page as u32);
                }
            }
        }
    });
}

#[test]
fn a_crash_at_any_call_of_a_repair_does_no_harm() {
    let disk = damaged_later();
    let before = contents(&disk);
    let metadata = Path::new(DIR).join("metadata");

    for (path, sections) in run_sections(&disk).into_iter().take(2) {
        disk.flip_bit(&path, (sections[2].unwrap() * PAGE_SIZE as u64 + 40) * 8);
    }

    for lost_metadata in [false, true] {
        let damaged = disk.clone_disk();
        if lost_metadata {
            damaged.remove(&metadata).unwrap();
            damaged.sync_dir(Path::new(DIR)).unwrap();
        } else {
            damaged.flip_bit(&metadata, 100);
        }

        let workload = |disk: &Arc<SimDisk>| {
            let done = repair(&disk_of(disk), Path::new(DIR), Loss::Refused, &mut |_, _| {});
            assert_eq!(done.is_err(), disk.has_crashed(), "{done:?}");
        };
        Sweep::sampled(1, 4).on(&damaged).crash(workload, |crash| {
            let call = crash.call;
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Torn(call)];
            let survival = survivals[call as usize % survivals.len()];
            crash.power_losses([survival], |image| {
                // Somebody opens it before it is repaired.
                let opened =
                    Session::open(disk_of(&image.disk), Path::new(DIR), &SessionOptions::default());
                if let Ok(session) = opened {
                    assert_eq!(session.salt(), SALT, "made anew over what is there");
                    session.close().unwrap();
                }

                assert!(mend(&image.disk).is_clean(), "metadata lost: {lost_metadata}");
                assert_eq!(contents(&image.disk), before, "metadata lost: {lost_metadata}");
            })
        });
    }
}

#[test]
fn a_failing_disk_ends_a_repair_and_does_no_harm() {
    let disk = damaged_later();
    let before = contents(&disk);
    let (path, sections) = run_sections(&disk).into_iter().next().unwrap();
    disk.flip_bit(&path, (sections[3].unwrap() * PAGE_SIZE as u64 + 20) * 8);

    let first = disk.calls();
    for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::ShortWrite] {
        let mut struck = 0;
        for call in places(0..400, 21, kind as u64) {
            let failing = disk.clone_disk();
            let fault = Fault { at_call: first + call, kind, repeat: Repeat::Once };
            failing.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
            let outcome = repair(&disk_of(&failing), Path::new(DIR), Loss::Refused, &mut |_, _| {});
            struck += failing.faults();
            // What could not be read at first is read once more, page by page.
            assert!(outcome.is_ok() || failing.faults() > 0, "{kind:?} at {call}: {outcome:?}");
            failing.set_plan(FaultPlan::default());
            assert!(mend(&failing).is_clean(), "{kind:?} at {call}");
            assert_eq!(contents(&failing), before, "{kind:?} at {call}");
        }
        assert!(struck > 0, "{kind:?} was tried");
    }
}

/// A newer program's files are whole: to write them anew would lose what only it understands.
#[test]
fn what_a_newer_program_wrote_is_reported_and_left_alone() {
    let disk = damaged_later();
    let (run, sections) = run_sections(&disk).into_iter().next().unwrap();
    let Inspection::Run(info) = inspect(&disk_of(&disk), &run).unwrap() else { panic!("a run") };

    let footer = sections[3].unwrap();
    let dir = Path::new(DIR);
    for path in [run, dir.join("metadata"), dir.join("snapshots/late.snapshot")] {
        let newer = disk.clone_disk();
        let mut bytes = newer.read_raw(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "run") {
            bytes[footer as usize * PAGE_SIZE + 16 + 8] = 9;
            reseal(&mut bytes, info.meta.identity, footer as u32);
        } else {
            bytes[8] = 9;
            reseal_manifest(&mut bytes);
        }

        newer.write_raw(&path, &bytes);
        let report = mend(&newer);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        let problem = &report.problems[0];
        assert_eq!(problem.path, path);

        let reads = match path.extension().and_then(OsStr::to_str) {
            Some("snapshot") => 6,
            Some("run") => 4,
            _ => 1,
        };

        let rule = format!("format version 9; this program reads {reads}");
        assert_eq!(problem.rule, rule);
        assert!(!problem.repairable && !problem.repaired);
        assert_eq!(newer.read_raw(&path).unwrap(), bytes);

        let refused = inspect(&disk_of(&newer), &path);
        assert!(
            matches!(refused, Err(Error::UnknownVersion { found: 9, newest, .. }) if newest == reads)
        );
    }
}

/// A snapshot that says something else of a run than another one does: neither is a reason to
/// write.
#[test]
fn snapshots_that_disagree_about_a_run_are_not_repaired_from() {
    let disk = damaged_later();
    let dir = Path::new(DIR);
    let (run, sections) = run_sections(&disk)
        .into_iter()
        .find(|(path, sections)| {
            sections[1].is_some() && {
                let copy = disk.clone_disk();
                copy.flip_bit(path, (sections[3].unwrap() * PAGE_SIZE as u64 + 20) * 8);
                check(&copy).problems[0].snapshots.len() == 2
            }
        })
        .expect("the snapshots share a run");

    let Inspection::Run(info) = inspect(&disk_of(&disk), &run).unwrap() else { panic!("a run") };
    let snapshot = dir.join("snapshots/early.snapshot");
    let mut bytes = disk.read_raw(&snapshot).unwrap();
    let wanted = info.meta.identity.to_le_bytes();
    let at = bytes.windows(8).position(|window| window == wanted).unwrap() + 8;
    let fewer = info.meta.data_pages - 1;
    bytes[at..at + 4].copy_from_slice(&fewer.to_le_bytes());
    reseal_manifest(&mut bytes);
    disk.write_raw(&snapshot, &bytes);
    disk.flip_bit(&run, (sections[3].unwrap() * PAGE_SIZE as u64 + 20) * 8);
    let run_bytes = disk.read_raw(&run).unwrap();
    let report = mend(&disk);
    assert!(report.problems.len() >= 2, "{:?}", report.problems);
    assert!(report.problems.iter().all(|problem| !problem.repaired), "{:?}", report.problems);
    assert_eq!(disk.read_raw(&run).unwrap(), run_bytes);
}

#[test]
fn the_metadata_of_a_session_without_runs_is_written_anew() {
    let disk = SimDisk::new(2);
    disk.create_dir(Path::new(DIR)).unwrap();
    let open = |disk| Session::open(disk, Path::new(DIR), &SessionOptions::default());
    open(disk_of(&disk)).unwrap().close().unwrap();
    disk.remove(&Path::new(DIR).join("metadata")).unwrap();
    assert!(matches!(open(disk_of(&disk)), Err(Error::SessionDirCorrupted { .. })));
    assert!(check(&disk).problems[0].repairable);
    assert!(mend(&disk).is_clean());
    assert_eq!(check(&disk).problems, []);
    open(disk_of(&disk)).unwrap();
}

#[test]
fn foreign_files_and_directories_are_told_from_damaged_ones() {
    let disk = damaged_later();
    disk.write_raw("/other/metadata", b"not a session");
    disk.write_raw("/other/notes.txt", b"whatever there is");
    disk.write_raw("/other/pages", &[7; 3 * PAGE_SIZE]);
    disk.create_dir(Path::new("/empty")).unwrap();

    for path in ["/other", "/other/metadata", "/other/notes.txt", "/other/pages", "/empty"] {
        let refused = inspect(&disk_of(&disk), Path::new(path));
        assert!(matches!(refused, Err(Error::NotTerrane { .. })), "{path}: {refused:?}");
        let refused = verify(&disk_of(&disk), Path::new(path), &mut |_, _| {});
        assert!(matches!(refused, Err(Error::NotTerrane { .. })), "{path}: {refused:?}");
    }

    assert!(!disk.files().contains(&PathBuf::from("/other/lock")), "nothing is written");
    let run = run_sections(&disk).into_keys().next().unwrap();
    for path in
        [run, Path::new(DIR).join("metadata"), Path::new(DIR).join("snapshots/late.snapshot")]
    {
        disk.write_raw(&path, &[0; PAGE_SIZE]);
        let refused = inspect(&disk_of(&disk), &path);
        assert!(!matches!(refused, Ok(_) | Err(Error::NotTerrane { .. })), "{refused:?}");
    }
}

#[test]
fn a_missing_run_is_damage_of_its_snapshots() {
    let disk = damaged_later();
    let (run, _) = run_sections(&disk).into_iter().next().unwrap();
    let Inspection::Run(info) = inspect(&disk_of(&disk), &run).unwrap() else { panic!("a run") };
    assert_eq!(info.meta.purpose, Purpose::Level);
    disk.remove(&run).unwrap();
    let report = mend(&disk);
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].rule, "the file is missing");
    assert!(!report.is_clean());
    let name = &report.problems[0].snapshots[0];
    let snapshot = Path::new(DIR).join(format!("snapshots/{name}.snapshot"));
    let refused = inspect(&disk_of(&disk), &snapshot);
    assert!(matches!(refused, Err(Error::SnapshotCorrupted { .. })), "{refused:?}");
}

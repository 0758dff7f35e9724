//! Snapshots exported to other directories and imported from them.
//!
//! Goal: a copy holds what the original held, shares nothing with it, and is a session like any
//! other; a second export brings only what is new; an import takes in nothing damaged; whatever
//! goes wrong, the error says what, nothing half is left, and what was there before is whole.
//! Method: both disks and copies from one to the other; damage of every kind of page, with
//! checksums wrong and right; operations held at a call while others go on. Crashes and faults at
//! every call are in `export_crash`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use terrane_io::{Access, Disk, FaultPlan, OpenMode, SimDisk};
use terrane_lsm::{
    DiskCache, Error, IndexKind, OpenOptions, PAGE_SIZE, Result, Session, SessionOptions,
    SnapshotPlace, Table, TableConfig, Verify, verify,
};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::gate::GateDisk;
use crate::opening::change_page;
use crate::union::{self, Entries};
use crate::{SALT, SessionDir, buffer_of, clear, content, exists, fill, key, name, value};

const LABEL: &str = "ledger";

type Content = Vec<(Vec<u8>, Vec<u8>)>;

impl SessionDir {
    /// A directory beside that of the session.
    fn beside(&self, name: &str) -> PathBuf {
        self.dir().parent().unwrap().join(name)
    }
}

/// Opens the session in a directory, which must be there.
fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Session {
    Session::open(Arc::clone(disk), dir, &SessionOptions::with_salt(7)).unwrap()
}

fn read(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn write(disk: &dyn Disk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Truncate, Access::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// The files of runs in a session, those of their blobs included, with their bytes.
fn files(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let active = dir.join("active");
    let paths = disk.list(&active).unwrap().into_iter().map(|entry| active.join(entry.name));
    paths.map(|path| (path.clone(), read(disk, &path))).collect()
}

/// The run files alone.
fn runs(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = files(disk, dir);
    files.retain(|(path, _)| path.extension().is_some_and(|end| end == "run"));
    files
}

fn bytes_of(runs: &[(PathBuf, Vec<u8>)]) -> u64 {
    runs.iter().map(|(_, bytes)| bytes.len() as u64).sum()
}

/// A table with several levels, a merge under way, a filled buffer, deletions, a large value, and
/// blobs in old runs, new ones and the buffer.
fn table(session: &Session, config: &TableConfig) -> Table {
    let mut table = session.new_table(config).unwrap();
    table.insert_with_blob(b"old", b"", &value(2, 20_000)).unwrap();
    fill(&mut table, 0..1_003);
    for number in 0..3u8 {
        table.insert_with_blob(&[number], b"blob", &value(3, 2_000)).unwrap();
    }
    clear(&mut table, (0..400).step_by(3));
    table.insert(b"large", &value(1, 9_000)).unwrap();
    table
}

#[track_caller]
fn is_verified(disk: &Arc<dyn Disk>, dir: &Path) {
    let report = verify::verify(disk, dir, &mut |_, _| {}).unwrap();
    assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
}

#[test]
fn an_export_is_a_session_with_the_snapshot() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        for (at, config) in [
            buffer_of(1),
            buffer_of(50),
            buffer_of(1_000).index(IndexKind::Ordinary),
            buffer_of(100).disk_cache(DiskCache::None),
        ]
        .into_iter()
        .enumerate()
        {
            let mut table = table(&session, &config);
            let (name, saved) = (name(&format!("a{at}")), content(&table));
            table.save_snapshot(&name, LABEL).unwrap();
            let mut last = (0, 0);
            let mut reports = 0;
            let report = session
                .export_snapshot_to(
                    &name,
                    &SnapshotPlace::new(&copy, name.clone()),
                    &mut |done, total| {
                        assert!(last.0 < done && done <= total);
                        (last, reports) = ((done, total), reports + 1);
                    },
                )
                .unwrap();
            let info = session.snapshot_info(&name).unwrap();
            // Some have a file of blobs.
            assert!((info.runs + 1..=2 * info.runs).contains(&report.files_copied), "{report:?}");
            assert_eq!((report.files_shared, report.bytes_shared), (0, 0));
            assert_eq!((report.bytes_copied, report.files_rebuilt), (last.0, 0));
            assert_eq!(last.0, last.1);
            assert!(reports > 1);

            is_verified(&disk, &copy);
            let exported = open(&disk, &copy);
            assert_eq!(exported.salt(), session.salt());
            assert_eq!(exported.snapshot_info(&name).unwrap(), info);
            let mut opened = exported.open_snapshot(&name, LABEL).unwrap();
            assert_eq!(content(&opened), saved);
            // Both go on in the same way.
            for table in [&mut table, &mut opened] {
                fill(table, 2_000..2_300);
                clear(table, 2_000..2_300);
                assert_eq!(content(table), saved);
            }
            drop((table, opened));
            exported.close().unwrap();
        }
    }
}

#[test]
fn copies_are_independent() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        let saved = content(&table);

        for text in ["a", "b"] {
            table.save_snapshot(&name(text), LABEL).unwrap();
            session.export_snapshot(&name(text), &copy).unwrap();
        }

        drop(table);

        // What becomes of the copy does not concern the session.
        for (path, bytes) in files(disk.as_ref(), &copy) {
            write(disk.as_ref(), &path, &vec![0; bytes.len()]);
        }
        session.close().unwrap();
        drop(session);
        is_verified(&disk, &place.dir());
        let session = place.open();
        assert_eq!(content(&session.open_snapshot(&name("a"), LABEL).unwrap()), saved);

        // And the reverse.
        let other = place.beside("other");
        session.export_snapshot(&name("a"), &other).unwrap();
        session.delete_snapshot(&name("a")).unwrap();
        session.delete_snapshot(&name("b")).unwrap();
        assert!(place.runs().is_empty());
        let exported = open(&disk, &other);
        assert_eq!(content(&exported.open_snapshot(&name("a"), LABEL).unwrap()), saved);
    }
}

#[test]
fn a_second_export_brings_only_what_is_new() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let mut table = table(&session, &buffer_of(50));
        let first = content(&table);
        table.save_snapshot(&name("a"), LABEL).unwrap();
        session.export_snapshot(&name("a"), &copy).unwrap();

        // Numbers are taken there by somebody else's runs.
        let exported = open(&disk, &copy);
        let mut foreign = exported.new_table(&buffer_of(5)).unwrap();
        fill(&mut foreign, 5_000..5_100);
        let foreign_content = content(&foreign);
        foreign.save_snapshot(&name("foreign"), "").unwrap();
        drop(foreign);
        exported.close().unwrap();
        drop(exported);

        let before = files(disk.as_ref(), &copy);
        fill(&mut table, 3_000..3_060);
        let second = content(&table);
        table.save_snapshot(&name("b"), LABEL).unwrap();
        let report = session.export_snapshot(&name("b"), &copy).unwrap();
        let after = files(disk.as_ref(), &copy);
        assert!(report.files_copied > 0 && report.files_shared > 2, "{report:?}");
        assert!(report.bytes_copied < report.bytes_shared, "{report:?}");
        assert_eq!(after.len() - before.len(), report.files_copied as usize);
        assert_eq!(bytes_of(&after) - bytes_of(&before), report.bytes_copied);
        assert!(before.iter().all(|run| after.contains(run)), "nothing was written again");

        // The same again under another name: nothing but a small file.
        let place_c = SnapshotPlace::new(&copy, name("c"));
        let report = session.export_snapshot_to(&name("b"), &place_c, &mut |_, _| {}).unwrap();
        assert_eq!((report.files_copied, report.bytes_copied), (0, 0));
        assert_eq!(files(disk.as_ref(), &copy), after);
        is_verified(&disk, &copy);

        let exported = open(&disk, &copy);
        for (text, label, expected) in [
            ("a", LABEL, &first),
            ("b", LABEL, &second),
            ("c", LABEL, &second),
            ("foreign", "", &foreign_content),
        ] {
            assert_eq!(&content(&exported.open_snapshot(&name(text), label).unwrap()), expected);
            exported.delete_snapshot(&name(text)).unwrap();
        }

        assert!(files(disk.as_ref(), &copy).is_empty());
    }
}

/// A run that is missing or damaged where it was exported to, or another one than it seems, is
/// brought again.
#[test]
fn an_export_does_not_rely_on_what_is_damaged() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        table.save_snapshot(&name("a"), LABEL).unwrap();
        let report = session.export_snapshot(&name("a"), &copy).unwrap();

        let all = files(disk.as_ref(), &copy);
        let (blobs, mut plain) = (
            all.iter().find(|(path, _)| path.extension().unwrap() == "blobs").unwrap(),
            runs(disk.as_ref(), &copy),
        );

        plain.retain(|(path, _)| !exists(disk.as_ref(), &path.with_extension("blobs")));
        let [(missing, _), (cut, _), (flipped, bytes), (other, other_bytes), ..] = &plain[..]
        else {
            panic!("{} runs", plain.len());
        };

        disk.remove(missing).unwrap();
        write(disk.as_ref(), cut, &[0; 10]);
        let mut bytes = bytes.clone();
        let footer = bytes.len() - 100;
        bytes[footer] ^= 1;
        write(disk.as_ref(), flipped, &bytes);
        let mut bytes = other_bytes.clone();
        let footer = bytes.len() / PAGE_SIZE - 1;
        change_page(&mut bytes, footer, |page| page[16 + 40] ^= 1);
        write(disk.as_ref(), other, &bytes);

        // A run that lacks a part of its blobs is brought with both of its files.
        write(disk.as_ref(), &blobs.0, &blobs.1[PAGE_SIZE..]);
        let place_b = SnapshotPlace::new(&copy, name("b"));
        let again = session.export_snapshot_to(&name("a"), &place_b, &mut |_, _| {}).unwrap();
        assert_eq!((again.files_copied, again.files_shared), (6, report.files_copied - 6));
        let exported = open(&disk, &copy);
        assert_eq!(content(&exported.open_snapshot(&name("b"), LABEL).unwrap()), content(&table));
        let error = exported.open_snapshot(&name("a"), LABEL).map(drop).unwrap_err();
        assert!(matches!(error, Error::SnapshotCorrupted { .. }), "{error}");
    }
}

/// Blobs, upserts that are not yet combined, and unions that are not yet paid for are copied like
/// the rest.
#[test]
fn blobs_upserts_and_unions_come_along() {
    for_each_seed("blobs_upserts_and_unions_come_along", by_effort(1, 2), |rng, _| {
        for place in SessionDir::both() {
            let (disk, copy) = (place.disk(), place.beside("copy"));
            let session = place.open();
            let inputs: Vec<(Table, Entries)> = (0..3)
                .map(|_| {
                    let mut input =
                        (session.new_table(&union::config(10)).unwrap(), Entries::new());
                    union::update(&mut input.0, &mut input.1, rng, 40, 200);
                    input
                })
                .collect();
            let tables: Vec<&Table> = inputs.iter().map(|(table, _)| table).collect();
            let mut table = session.incremental_union(&tables).unwrap();
            let models: Vec<&Entries> = inputs.iter().map(|(_, model)| model).collect();
            let mut model = union::united(&models);
            table.supply_union_credits(table.remaining_union_debt() / 3).unwrap();
            union::update(&mut table, &mut model, rng, 40, 15);
            assert!(table.remaining_union_debt() > 0);
            table.save_snapshot(&name("a"), LABEL).unwrap();
            session.export_snapshot(&name("a"), &copy).unwrap();
            is_verified(&disk, &copy);

            let check = |session: &Session, text: &str| {
                let mut opened = session.open_snapshot(&name(text), LABEL).unwrap();
                union::assert_holds(session, &opened, &model, "as copied");
                opened.supply_union_credits(u64::MAX).unwrap();
                union::assert_holds(session, &opened, &model, "paid for");
                let full = OpenOptions::default().verify(Verify::Full);
                session.open_snapshot_with(&name(text), LABEL, &full).unwrap();
            };
            check(&open(&disk, &copy), "a");
            session.import_snapshot(&copy, &name("a"), &name("back")).unwrap();
            check(&session, "back");
            let other = place.beside("other");
            let salted = SessionOptions::with_salt(SALT + 1).create_dir();
            let importing = Session::open(Arc::clone(&disk), &other, &salted).unwrap();
            let report = importing.import_snapshot(&copy, &name("a"), &name("salted")).unwrap();
            assert_eq!(report.files_rebuilt, report.files_copied);
            check(&importing, "salted");
            importing.close().unwrap();
            is_verified(&disk, &other);
            // The second export finds all of it there, blobs too.
            table.save_snapshot(&name("b"), LABEL).unwrap();
            let report = session.export_snapshot(&name("b"), &copy).unwrap();
            assert!(report.files_copied <= 2 && report.files_shared > 5, "{report:?}");
            for dir in [&copy, &other] {
                remove_session(disk.as_ref(), dir);
            }
            drop((table, inputs));
            for text in ["a", "b", "back"] {
                session.delete_snapshot(&name(text)).unwrap();
            }
            assert!(files(disk.as_ref(), &place.dir()).is_empty());
        }
    });
}

/// Everything in a directory and below it.
fn tree(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.kind == terrane_io::EntryKind::Directory {
            found.push((path.clone(), Vec::new()));
            found.extend(tree(disk, &path));
        } else if entry.name != "lock" {
            found.push((path.clone(), read(disk, &path)));
        }
    }
    found
}

#[test]
fn each_impossible_export_is_refused_by_its_reason() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        table.save_snapshot(&name("a"), LABEL).unwrap();

        let missing = session.export_snapshot(&name("b"), &copy);
        assert!(
            matches!(&missing, Err(Error::SnapshotDoesNotExist { name }) if name == "b"),
            "{missing:?}"
        );

        assert!(!exists(disk.as_ref(), &copy));
        let orphan = session.export_snapshot(&name("a"), copy.join("below"));
        assert!(matches!(&orphan, Err(Error::Disk(error)) if error.is_not_found()), "{orphan:?}");

        // Something else is there: a file, a directory of files, one of directories.
        let is_refused = |dir: &Path| {
            let refused = session.export_snapshot(&name("a"), dir);
            assert!(
                matches!(&refused, Err(Error::SnapshotExportDirExists { path }) if path == dir),
                "{refused:?}"
            );
        };

        let photos = place.beside("photos");
        write(disk.as_ref(), &photos, b"one");
        is_refused(&photos);
        assert_eq!(read(disk.as_ref(), &photos), b"one");
        disk.remove(&photos).unwrap();
        disk.create_dir(&photos).unwrap();
        disk.create_dir(&photos.join("sea")).unwrap();
        is_refused(&photos);
        write(disk.as_ref(), &photos.join("sea/1"), b"two");
        is_refused(&photos);
        assert_eq!(disk.list(&photos).unwrap().len(), 1);
        assert_eq!(read(disk.as_ref(), &photos.join("sea/1")), b"two");

        // The session itself, and one that somebody holds.
        let held = |dir: &Path| {
            let refused = session.export_snapshot(&name("a"), dir);
            assert!(
                matches!(&refused, Err(Error::SessionDirLocked { path, .. }) if path == dir),
                "{refused:?}"
            );
        };

        held(&place.dir());

        // An empty directory is as good as a missing one.
        disk.create_dir(&copy).unwrap();
        session.export_snapshot(&name("a"), &copy).unwrap();
        let exported = open(&disk, &copy);
        held(&copy);
        exported.close().unwrap();
        drop(exported);

        let before = tree(disk.as_ref(), &copy);
        let taken = session.export_snapshot(&name("a"), &copy);
        assert!(matches!(&taken, Err(Error::SnapshotExists { name }) if name == "a"), "{taken:?}");
        assert_eq!(tree(disk.as_ref(), &copy), before);

        // A session that lacks a part is not made whole by the way.
        disk.rename(&copy.join("snapshots"), &copy.join("elsewhere")).unwrap();
        let broken = session.export_snapshot(&name("a"), &copy);
        assert!(
            matches!(&broken, Err(Error::SessionDirCorrupted { path, .. }) if *path == copy),
            "{broken:?}"
        );

        disk.rename(&copy.join("elsewhere"), &copy.join("snapshots")).unwrap();
        assert_eq!(tree(disk.as_ref(), &copy), before);
    }
}

/// Damage is not copied: a backup that cannot be read is none.
#[test]
fn a_damaged_snapshot_is_not_exported() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        table.save_snapshot(&name("a"), LABEL).unwrap();

        for (path, whole) in files(disk.as_ref(), &place.dir()) {
            for offset in [500, whole.len() - PAGE_SIZE + 200, whole.len() - 1] {
                let mut bytes = whole.clone();
                bytes[offset] ^= 1;
                write(disk.as_ref(), &path, &bytes);
                let error = session.export_snapshot(&name("a"), &copy).unwrap_err();
                assert!(
                    matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                        if name == "a" && *found == path && reason.contains("crc")),
                    "{error}"
                );
                assert!(files(disk.as_ref(), &copy).is_empty());
            }
            write(disk.as_ref(), &path, &whole);
        }

        session.export_snapshot(&name("a"), &copy).unwrap();
        is_verified(&disk, &copy);
    }
}

#[test]
fn copies_go_from_disk_to_disk_and_back() {
    for (place, other) in [
        (SessionDir::real(), SessionDir::simulated(3)),
        (SessionDir::simulated(4), SessionDir::real()),
        (SessionDir::simulated(5), SessionDir::simulated(6)),
    ] {
        let (there, copy) = (other.disk(), other.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        let saved = content(&table);
        table.save_snapshot(&name("a"), LABEL).unwrap();
        let copy_place = SnapshotPlace::new(&copy, name("copy")).on_disk(Arc::clone(&there));
        session.export_snapshot_to(&name("a"), &copy_place, &mut |_, _| {}).unwrap();
        is_verified(&there, &copy);
        session.delete_snapshot(&name("a")).unwrap();
        let mut last = (0, 0);
        let progress = &mut |done, total| last = (done, total);
        let report = session.import_snapshot_from(&copy_place, &name("b"), progress).unwrap();
        assert_eq!((report.bytes_copied, report.bytes_copied), last);
        assert!(report.files_copied > session.snapshot_info(&name("b")).unwrap().runs);
        drop(table);
        session.close().unwrap();
        drop(session);
        is_verified(&place.disk(), &place.dir());
        let session = place.open();
        assert_eq!(content(&session.open_snapshot(&name("b"), LABEL).unwrap()), saved);
    }
}

/// Exports and imports rebuild filters and indexes for a session of another salt.
#[test]
fn copies_open_in_a_session_of_another_salt() {
    for place in SessionDir::both() {
        for config in [
            buffer_of(300),
            buffer_of(1_000).index(IndexKind::Compact),
            buffer_of(2).index(IndexKind::Ordinary),
        ] {
            let (disk, copy, other) = (place.disk(), place.beside("copy"), place.beside("other"));
            let session = place.open();
            let table = table(&session, &config);
            let saved = content(&table);
            table.save_snapshot(&name("a"), LABEL).unwrap();
            drop(table);
            let original = session.open_snapshot(&name("a"), LABEL).unwrap();
            let reads_before = absent_reads(&original);
            session.export_snapshot(&name("a"), &copy).unwrap();
            let salted = SessionOptions::with_salt(SALT + 1).create_dir();
            let importing = Session::open(Arc::clone(&disk), &other, &salted).unwrap();
            let mut last = (0, 0);
            let report = importing
                .import_snapshot_from(
                    &SnapshotPlace::new(&copy, name("a")),
                    &name("imported"),
                    &mut |done, total| last = (done, total),
                )
                .unwrap();
            assert!(report.files_rebuilt > 0 && report.files_rebuilt == report.files_copied);
            assert_eq!(last.0, last.1);
            importing.close().unwrap();
            drop(importing);
            let place_b = SnapshotPlace::new(&other, name("exported"));
            let report = session.export_snapshot_to(&name("a"), &place_b, &mut |_, _| {}).unwrap();
            assert_eq!((report.files_rebuilt, report.files_shared), (report.files_copied, 0));
            is_verified(&disk, &other);

            // No two of these files share an identity, nor one with its original.
            let mut identities: Vec<_> = [&place.dir(), &other]
                .into_iter()
                .flat_map(|dir| runs(disk.as_ref(), dir))
                // A merge may have made a file for its next run.
                .filter(|(_, bytes)| !bytes.is_empty())
                .map(|(_, bytes)| bytes[bytes.len() - PAGE_SIZE + 32..][..8].to_vec())
                .collect();
            let count = identities.len();
            identities.sort();
            identities.dedup();
            assert_eq!(identities.len(), count);

            let importing = open(&disk, &other);
            assert_eq!(importing.salt(), SALT + 1);
            for text in ["imported", "exported"] {
                let mut table = importing.open_snapshot(&name(text), LABEL).unwrap();
                assert_eq!(content(&table), saved);
                let keys: Vec<_> = saved.iter().map(|(key, _)| key.clone()).collect();
                for (lookup, (_, value)) in table.get_many(&keys).unwrap().iter().zip(&saved) {
                    assert_eq!(lookup.value(), Some(value.as_slice()));
                }
                // As few reads in vain as before, give or take chance.
                let reads = absent_reads(&table);
                assert!(reads <= reads_before + 60, "{reads} after {reads_before}");
                fill(&mut table, 2_000..2_300);
                clear(&mut table, 2_000..2_300);
                assert_eq!(content(&table), saved);
            }
            for text in ["imported", "exported"] {
                importing.delete_snapshot(&name(text)).unwrap();
            }
            assert!(files(disk.as_ref(), &other).is_empty());
            importing.close().unwrap();
            drop(original);
            session.delete_snapshot(&name("a")).unwrap();
            let exported = open(&disk, &copy);
            exported.delete_snapshot(&name("a")).unwrap();
        }
    }
}

/// Reads for 5,000 absent keys.
fn absent_reads(table: &Table) -> u64 {
    let keys: Vec<_> = (100_000..105_000).map(key).collect();
    let before = table.stats().lookup_reads;
    assert!(table.get_many(&keys).unwrap().iter().all(|lookup| !lookup.is_found()));
    table.stats().lookup_reads - before
}

#[test]
fn each_impossible_import_is_refused_by_its_reason() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        table.save_snapshot(&name("a"), LABEL).unwrap();

        let before = place.runs();
        let import = |dir: &Path, from: &str, to: &str| {
            let error = session.import_snapshot(dir, &name(from), &name(to)).unwrap_err();
            assert_eq!(place.runs(), before);
            assert_eq!(session.list_snapshots().unwrap(), [name("a")]);
            error
        };

        let error = import(&copy, "a", "b");
        assert!(
            matches!(&error, Error::SnapshotImportDirDoesNotExist { path } if *path == copy),
            "{error}"
        );

        let photos = place.beside("photos");
        disk.create_dir(&photos).unwrap();
        write(disk.as_ref(), &photos.join("1"), b"sea");

        for foreign in [&photos, &photos.join("1")] {
            let error = import(foreign, "a", "b");
            assert!(matches!(&error, Error::NotTerrane { path, .. } if path == foreign), "{error}");
        }

        assert_eq!(disk.list(&photos).unwrap().len(), 1);
        session.export_snapshot(&name("a"), &copy).unwrap();
        let error = import(&copy, "c", "b");
        assert!(matches!(&error, Error::SnapshotDoesNotExist { name } if name == "c"), "{error}");
        let error = import(&copy, "a", "a");
        assert!(matches!(&error, Error::SnapshotExists { name } if name == "a"), "{error}");
        let error = import(&place.dir(), "a", "b");
        assert!(matches!(&error, Error::SessionDirLocked { .. }), "{error}");
        let exported = open(&disk, &copy);
        let error = import(&copy, "a", "b");
        assert!(matches!(&error, Error::SessionDirLocked { path, .. } if *path == copy), "{error}");
        drop(exported);
        session.import_snapshot(&copy, &name("a"), &name("b")).unwrap();
        assert_eq!(content(&session.open_snapshot(&name("b"), LABEL).unwrap()), content(&table));
    }
}

/// A change of a page.
type Change<'a> = &'a dyn Fn(&mut [u8]);

/// A session with the snapshot `a`, exported to `copy`, and a session to import it into.
fn exported(place: &SessionDir, salt: u64) -> (Content, PathBuf, Session) {
    let copy = place.beside("copy");
    let session = place.open();
    let table = table(&session, &buffer_of(200));
    table.save_snapshot(&name("a"), LABEL).unwrap();
    let saved = content(&table);
    session.export_snapshot(&name("a"), &copy).unwrap();
    drop(table);
    session.close().unwrap();
    let salted = SessionOptions::with_salt(salt).create_dir();
    let importing = Session::open(place.disk(), &place.beside("other"), &salted).unwrap();
    (saved, copy, importing)
}

#[test]
fn nothing_damaged_is_imported_and_nothing_is_left_of_the_attempt() {
    for place in SessionDir::both() {
        for salt in [SALT, SALT + 1] {
            let (saved, copy, importing) = exported(&place, salt);
            let disk = place.disk();

            let other = place.beside("other");
            let import = || importing.import_snapshot(&copy, &name("a"), &name("b"));
            let is_refused = |path: &Path, rule: &str| {
                let error = import().unwrap_err();
                assert!(
                    matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                        if name == "a" && found == path && reason.contains(rule)),
                    "{rule}: {error}"
                );
                assert!(files(disk.as_ref(), &other).is_empty());
                assert_eq!(importing.list_snapshots().unwrap(), []);
            };

            for (path, whole) in files(disk.as_ref(), &copy) {
                for page in 0..whole.len() / PAGE_SIZE {
                    let mut bytes = whole.clone();
                    bytes[page * PAGE_SIZE + 40 + page * 7] ^= 0x20;
                    write(disk.as_ref(), &path, &bytes);
                    is_refused(&path, "");
                }
                write(disk.as_ref(), &path, &whole[..whole.len() - PAGE_SIZE]);
                is_refused(&path, "");
                disk.remove(&path).unwrap();
                is_refused(&path, "missing");
                write(disk.as_ref(), &path, &whole);
            }

            let snapshot = copy.join("snapshots/a.snapshot");
            let whole = read(disk.as_ref(), &snapshot);
            let mut bytes = whole.clone();
            bytes[30] ^= 1;
            write(disk.as_ref(), &snapshot, &bytes);
            is_refused(&snapshot, "checksum");
            write(disk.as_ref(), &snapshot, &whole);

            // Pages that are whole but not what they should be.
            let all = runs(disk.as_ref(), &copy);
            let (path, whole) = all.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();

            let footer = whole.len() / PAGE_SIZE - 1;
            let field = |at: usize| {
                let at = footer * PAGE_SIZE + 16 + at;
                u32::from_le_bytes(*whole[at..].first_chunk().unwrap()) as usize
            };

            let data_pages = field(80);
            let earlier = whole[PAGE_SIZE..2 * PAGE_SIZE].to_vec();
            let changes: [(usize, Change<'_>, &str); 5] = [
                (footer, &|page| page[16 + 32] ^= 1, "footer's sums"),
                // Far more entries than there is memory for.
                (footer, &|page| page[16 + 32 + 7] = 0x7F, "footer counts"),
                (footer, &|page| page[16 + 12] = 2, "purpose"),
                (data_pages, &|page| page[16..].fill(0), "the filter lacks a key"),
                (2, &|page| page.copy_from_slice(&earlier), "page 2: keys rise"),
            ];

            for (page, change, rule) in changes {
                let mut bytes = whole.clone();
                change_page(&mut bytes, page, change);
                write(disk.as_ref(), path, &bytes);
                is_refused(path, rule);
            }

            write(disk.as_ref(), path, whole);
            import().unwrap();
            assert_eq!(content(&importing.open_snapshot(&name("b"), LABEL).unwrap()), saved);
            importing.delete_snapshot(&name("b")).unwrap();
            importing.close().unwrap();

            for dir in [place.dir(), copy, other] {
                remove_session(disk.as_ref(), &dir);
            }
        }
    }
}

fn remove_session(disk: &dyn Disk, dir: &Path) {
    for (path, _) in tree(disk, dir).into_iter().rev() {
        match disk.kind(&path).unwrap() {
            Some(terrane_io::EntryKind::Directory) => disk.remove_dir(&path).unwrap(),
            _ => disk.remove(&path).unwrap(),
        }
    }
}

/// The run of this session that was exported once is damaged now: importing it back must not rely
/// on it.
#[test]
fn an_import_brings_back_what_was_damaged_since() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let session = place.open();
        let table = table(&session, &buffer_of(50));
        let saved = content(&table);
        table.save_snapshot(&name("a"), LABEL).unwrap();
        session.export_snapshot(&name("a"), &copy).unwrap();
        drop(table);

        for (path, mut bytes) in files(disk.as_ref(), &place.dir()) {
            bytes[700] ^= 1;
            write(disk.as_ref(), &path, &bytes);
        }

        session.import_snapshot(&copy, &name("a"), &name("b")).unwrap();
        session.delete_snapshot(&name("a")).unwrap();
        assert_eq!(content(&session.open_snapshot(&name("b"), LABEL).unwrap()), saved);

        // It is the same as ever, so an export finds all of it there.
        let report = {
            let place_b = SnapshotPlace::new(&copy, name("b"));
            session.export_snapshot_to(&name("b"), &place_b, &mut |_, _| {}).unwrap()
        };

        assert_eq!((report.files_copied, report.files_shared > 3), (0, true));
    }
}

/// A session on a disk with a gate, with the snapshot `a`.
fn gated(place: &SessionDir) -> (Arc<GateDisk>, Session, Content) {
    let gate = GateDisk::new(place.disk());
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&gate) as _, &place.dir(), &options).unwrap();
    let table = table(&session, &buffer_of(50));
    table.save_snapshot(&name("a"), LABEL).unwrap();
    let saved = content(&table);
    (gate, session, saved)
}

#[test]
fn work_goes_on_while_a_snapshot_is_exported_even_its_deletion() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let (gate, session, saved) = gated(&place);
        gate.close("open", copy.join("active/00000002.run"));

        let report = thread::scope(|scope| {
            let exporting = scope.spawn(|| session.export_snapshot(&name("a"), &copy));
            let held = gate.wait();
            assert_eq!(session.list_snapshots().unwrap(), [name("a")]);
            let mut table = session.open_snapshot(&name("a"), LABEL).unwrap();
            fill(&mut table, 5_000..5_100);
            table.save_snapshot(&name("b"), LABEL).unwrap();
            session.delete_snapshot(&name("a")).unwrap();
            session.delete_snapshot(&name("b")).unwrap();
            drop(held);
            exporting.join().unwrap().unwrap()
        });

        assert!(report.files_copied > 3, "{report:?}");
        assert!(place.runs().is_empty(), "{:?}", place.runs());
        let exported = open(&disk, &copy);
        assert_eq!(content(&exported.open_snapshot(&name("a"), LABEL).unwrap()), saved);
    }
}

/// Closes the session while some work waits at the gate; returns what becomes of the work.
fn close_during<T: Send>(
    gate: &GateDisk,
    session: &Session,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    thread::scope(|scope| {
        let working = scope.spawn(work);
        let held = gate.wait();
        let closing = scope.spawn(|| session.close());
        while session.list_snapshots().is_ok() {
            thread::yield_now();
        }
        drop(held);
        let result = working.join().unwrap();
        closing.join().unwrap().unwrap();
        result
    })
}

#[test]
fn closing_gives_up_an_export_and_an_import_under_way() {
    for place in SessionDir::both() {
        let (disk, copy) = (place.disk(), place.beside("copy"));
        let (gate, session, _) = gated(&place);
        gate.close("open", copy.join("active/00000002.run"));
        let exported = close_during(&gate, &session, || session.export_snapshot(&name("a"), &copy));
        assert!(matches!(exported, Err(Error::SessionClosed)), "{exported:?}");
        drop(session);
        let left = open(&disk, &copy);
        assert_eq!(left.list_snapshots().unwrap(), []);
        assert!(files(disk.as_ref(), &copy).is_empty());
        drop(left);

        let session = place.open();
        session.export_snapshot(&name("a"), &copy).unwrap();
        drop(session);
        let session = open(&(Arc::clone(&gate) as Arc<dyn Disk>), &place.dir());
        let before = place.runs();
        let last = before.iter().max().unwrap().file_stem().unwrap().to_str().unwrap();
        let second = last.parse::<u64>().unwrap() + 2;
        gate.close("open", place.dir().join(format!("active/{second:08}.run")));

        let imported = close_during(&gate, &session, || {
            session.import_snapshot(&copy, &name("a"), &name("b"))
        });
        assert!(matches!(imported, Err(Error::SessionClosed)), "{imported:?}");
        assert_eq!(place.runs(), before);
        drop(session);
        let session = place.open();
        assert_eq!(session.list_snapshots().unwrap(), [name("a")]);
    }
}

#[test]
fn an_export_costs_reading_and_writing_each_run_once_and_nothing_if_it_is_there() {
    let disk = SimDisk::new(1);
    let session = open_sim(&disk);
    let mut table = session.new_table(&buffer_of(500)).unwrap();
    fill(&mut table, 0..20_000);
    table.save_snapshot(&name("a"), LABEL).unwrap();
    let info = session.snapshot_info(&name("a")).unwrap();
    let before = disk.counts();
    let report = session.export_snapshot(&name("a"), "/copy").unwrap();

    let spent = disk.counts() - before;
    let pages = report.bytes_copied / PAGE_SIZE as u64;
    // A footer for each run beside, and the metadata.
    assert!((pages..pages + info.runs + 8).contains(&spent.read_pages), "{spent:?}");
    assert!((pages..pages + 8).contains(&spent.write_pages), "{spent:?}");

    // Large chunks.
    assert!(spent.writes < pages / 64 + 3 * info.runs + 8, "{spent:?}");
    assert_eq!(spent.syncs, info.runs + 2);
    assert_eq!(spent.links, 0);

    let before = disk.counts();
    let again = SnapshotPlace::new("/copy", name("again"));
    session.export_snapshot_to(&name("a"), &again, &mut |_, _| {}).unwrap();
    let spent = disk.counts() - before;
    assert!(spent.write_pages <= 2 && spent.syncs == 1, "{spent:?}");
    assert!(spent.read_pages <= 2 * info.runs + 8, "{spent:?}");
}

fn open_sim(disk: &Arc<SimDisk>) -> Session {
    let options = SessionOptions::with_salt(SALT).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new("/session"), &options).unwrap()
}

/// The session that is exported from has as many files open as the system allows, and uses none of
/// them.
#[test]
fn idle_files_of_the_session_make_room_for_an_export() {
    for salt in [SALT, 7] {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = Arc::clone(&disk) as _;
        let options = SessionOptions::with_salt(SALT).create_dir();
        let session = Session::open(Arc::clone(&shared), Path::new("/session"), &options).unwrap();
        let mut table = session.new_table(&buffer_of(100)).unwrap();
        fill(&mut table, 0..1_000);
        table.insert_with_blob(b"with a blob", b"value", b"blob").unwrap();
        let (there, later) = (name("there"), name("later"));
        table.save_snapshot(&there, LABEL).unwrap();
        let to = SessionOptions::with_salt(salt).create_dir();
        Session::open(Arc::clone(&shared), Path::new("/copy"), &to).unwrap().close().unwrap();

        for (at, to) in [&there, &later].into_iter().enumerate() {
            // All files of the session are open, and one more cannot be.
            let saved = content(&table);
            disk.set_plan(FaultPlan {
                open_files_max: Some(disk.open_files()),
                ..FaultPlan::default()
            });
            let place = SnapshotPlace::new("/copy", (*to).clone());
            // Somebody else reads on, and opens them again.
            let mut reads = |_, _| assert_eq!(content(&table), saved);
            let report = session.export_snapshot_to(&there, &place, &mut reads).unwrap();
            assert_eq!(report.files_shared > 0, at == 1 && salt == SALT, "{report:?}");
            disk.set_plan(FaultPlan::default());
            assert_eq!(content(&table), saved);
        }
    }
}

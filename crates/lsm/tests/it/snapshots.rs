//! Sessions, forks and snapshots.
//!
//! Goal: the acceptance cases of `lsm-tables` on opening, closing, durability and sharing;
//! `docs/requirements.md` names the test of each case. Method: each runs on the real and on the
//! simulated disk and, where it matters, with write buffers of 1, 2, 3 and 1,000 entries and both
//! schedules.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use terrane_io::{Access, Disk, OpenMode, RealDisk, SimDisk};
use terrane_lsm::{
    Error, IndexKind, LABEL_BYTES_MAX, OpenOptions, SNAPSHOT_NAME_LEN_MAX, Session, SessionOptions,
    SnapshotName, Table, TableConfig, Update,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::model::Content;
use terrane_testkit::seeds::for_each_seed;

use crate::{
    SALT, SessionDir, buffer_of, clear, content, exists, fill, key, name, small_configs, value,
};

#[test]
fn open_creates_and_the_stored_salt_wins() {
    for place in SessionDir::both() {
        let session = place.open();
        assert_eq!(session.salt(), SALT);
        let mut table = session.new_table(&buffer_of(1_000)).unwrap();
        fill(&mut table, 0..20_000);
        table.save_snapshot(&name("kept"), "label").unwrap();

        let reads = |table: &Table| {
            let absent: Vec<_> = (100_000..120_000).map(key).collect();
            let before = table.stats().lookup_reads;
            assert!(table.get_many(&absent).unwrap().iter().all(|result| !result.is_found()));
            table.stats().lookup_reads - before
        };

        let reads_before = reads(&table);
        session.close().unwrap();

        let session = place.try_open(SALT + 1).unwrap();
        assert_eq!(session.salt(), SALT);

        let table = session.open_snapshot(&name("kept"), "label").unwrap();
        let keys: Vec<_> = (0..20_000).map(key).collect();
        for (n, result) in (0..).zip(table.get_many(&keys).unwrap()) {
            assert_eq!(result.value(), Some(value(n, 60).as_slice()));
        }

        // The same filters, and a flush that was under way is now a run with one of its own.
        let reads_after = reads(&table);
        assert!(reads_after <= reads_before + 40, "{reads_after} after {reads_before}");
    }
}

#[test]
fn each_unusable_directory_is_refused_by_its_reason() {
    for place in SessionDir::both() {
        let disk = place.disk();
        let dir = place.dir();
        let open = || Session::open(place.disk(), &dir, &SessionOptions::with_salt(SALT));

        let error = open().unwrap_err();
        assert!(
            matches!(&error, Error::SessionDirDoesNotExist { path } if *path == dir),
            "{error}"
        );

        assert!(!exists(disk.as_ref(), &dir));

        // Only a directory that is none of a session's: not even a lock file is made beside it.
        disk.create_dir(&dir).unwrap();
        disk.create_dir(&dir.join("stray")).unwrap();

        let error = open().unwrap_err();
        assert!(
            matches!(&error, Error::SessionDirCorrupted { path, reason }
                if *path == dir && reason.contains("stray")),
            "{error}"
        );

        assert_eq!(disk.list(&dir).unwrap().len(), 1);
        disk.remove_dir(&dir.join("stray")).unwrap();

        // Only a lock file: as good as empty.
        drop(disk.lock(&dir.join("lock")).unwrap());
        open().unwrap().close().unwrap();

        for part in ["metadata", "active", "snapshots"] {
            disk.rename(&dir.join(part), &dir.join("elsewhere")).unwrap();
            let error = open().unwrap_err();
            assert!(
                matches!(&error, Error::SessionDirCorrupted { path, reason }
                    if *path == dir && reason.contains(&format!("missing {part}"))),
                "{error}"
            );
            disk.rename(&dir.join("elsewhere"), &dir.join(part)).unwrap();
            // Nothing was changed, so with the part back in its place all is well.
            open().unwrap().close().unwrap();
        }

        // What does not belong there does no harm.
        disk.create_dir(&dir.join("stranger")).unwrap();
        open().unwrap().close().unwrap();
        assert!(exists(disk.as_ref(), &dir.join("stranger")));
    }
}

/// The directory in which the child is to open a session.
const CHILD_DIR: &str = "TERRANE_TEST_CHILD_DIR";

#[test]
fn the_lock_holds_between_processes_and_ends_with_them() {
    // The test program runs this test again as a child, which opens the session and never closes
    // it.
    if let Some(dir) = env::var_os(CHILD_DIR) {
        let opened = Session::open_dir(Path::new(&dir), &SessionOptions::default());
        match opened {
            Ok(_session) => {
                println!("child: opened");
                std::io::stdin().lines().for_each(drop);
            }
            Err(error) => println!("child: {error}"),
        }
        return;
    }

    let place = SessionDir::real();
    let run_child = || {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "snapshots::the_lock_holds_between_processes_and_ends_with_them",
            "--nocapture",
        ]);
        command.env(CHILD_DIR, place.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.find(|line| line.starts_with("child: ")).unwrap();
        // The reader stays open, so that the child can go on to say how its test went.
        (child, said, lines)
    };

    let session = place.open();
    let (mut child, said, rest) = run_child();
    assert!(said.contains("in use"), "{said}");
    rest.for_each(drop);
    assert!(child.wait().unwrap().success());
    session.close().unwrap();

    let (mut child, said, _rest) = run_child();
    assert_eq!(said, "child: opened");

    let error = place.try_open(SALT).unwrap_err();
    let pid = Some(child.id());
    assert!(
        matches!(&error, Error::SessionDirLocked { pid: found, .. } if *found == pid),
        "{error}"
    );

    child.kill().unwrap();
    child.wait().unwrap();
    place.open().close().unwrap();
}

#[test]
fn reopening_leaves_snapshots_and_nothing_else() {
    for mut place in SessionDir::both() {
        for is_closed in [true, false] {
            let session = place.open();
            let mut table = session.new_table(&buffer_of(3)).unwrap();
            fill(&mut table, 0..50);
            table.save_snapshot(&name("kept"), "").unwrap();
            let kept = content(&table);
            fill(&mut table, 50..100);
            let mut lost = session.new_table(&buffer_of(3)).unwrap();
            fill(&mut lost, 0..50);

            if is_closed {
                session.close().unwrap();
            } else {
                place.kill();
            }

            drop((table, lost, session));

            let session = place.open();
            let at_open = place.runs();
            let table = session.open_snapshot(&name("kept"), "").unwrap();
            assert_eq!(content(&table), kept);
            drop(table);

            // All that is there belongs to the snapshot, and goes with it.
            assert_eq!(place.runs(), at_open);
            session.delete_snapshot(&name("kept")).unwrap();
            assert!(place.runs().is_empty());
            session.close().unwrap();
        }
    }
}

#[test]
fn closing_ends_everything_and_is_idempotent() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(2)).unwrap();
        fill(&mut table, 0..20);

        // A cursor outlives its table.
        let doomed = table.fork().unwrap();
        let mut cursor = doomed.cursor().unwrap();
        drop(doomed);
        assert!(cursor.next().transpose().unwrap().is_some());

        session.close().unwrap();
        session.close().unwrap();
        let key = key(1);
        let backup = place.dir().with_file_name("backup");
        let (late, later, options) = (name("late"), name("later"), OpenOptions::default());

        let new = TableConfig::default();
        let closed: Vec<Error> = vec![
            table.get(&key).unwrap_err(),
            table.get_many(&[key]).unwrap_err(),
            table.insert(&key, b"").unwrap_err(),
            table.delete(&key).unwrap_err(),
            table.write_batch(&[(key, Update::Delete)]).unwrap_err(),
            table.contains(&[key]).unwrap_err(),
            table.count_exact().unwrap_err(),
            table.insert_with_blob(&key, b"", b"").unwrap_err(),
            table.upsert(&key, b"").unwrap_err(),
            table.set_config(&buffer_of(3)).unwrap_err(),
            table.supply_union_credits(1).unwrap_err(),
            table.fork().unwrap_err(),
            table.cursor().unwrap_err(),
            table.cursor_at(&key).unwrap_err(),
            table.range(key..).unwrap_err(),
            table.prefix(b"").unwrap_err(),
            table.export_canonical(Vec::new()).unwrap_err(),
            table.save_snapshot(&name("late"), "").unwrap_err(),
            cursor.next().unwrap().unwrap_err(),
            cursor.prev().unwrap().unwrap_err(),
            cursor.peek().unwrap_err(),
            cursor.next_many(1).unwrap_err(),
            session.new_table(&new).unwrap_err(),
            session.union(&[&table]).unwrap_err(),
            session.incremental_union(&[&table]).unwrap_err(),
            session.retrieve_blobs(&[]).unwrap_err(),
            session.open_snapshot_with(&late, "", &options).unwrap_err(),
            session.export_snapshot(&late, &backup).unwrap_err(),
            session.import_snapshot(&backup, &late, &later).unwrap_err(),
            session.export_canonical(&late, Vec::new()).unwrap_err(),
            session.import_canonical(std::io::empty(), &new).unwrap_err(),
            session.open_snapshot(&name("late"), "").unwrap_err(),
            session.delete_snapshot(&name("late")).unwrap_err(),
            session.delete_snapshot_if_exists(&name("late")).unwrap_err(),
            session.rename_snapshot(&name("late"), &name("later")).unwrap_err(),
            session.snapshot_info(&name("late")).unwrap_err(),
            session.list_snapshots().unwrap_err(),
            session.snapshot_exists(&name("late")).unwrap_err(),
        ];

        for (at, error) in closed.iter().enumerate() {
            assert!(matches!(error, Error::SessionClosed), "call {at}: {error}");
        }
        assert!(!exists(place.disk().as_ref(), &backup));

        // Handles that are still around touch nothing of the next session.
        let next = place.open();
        let mut other = next.new_table(&buffer_of(2)).unwrap();
        fill(&mut other, 0..20);
        let files = place.runs();
        drop((table, cursor, session));
        assert_eq!(place.runs(), files);
        assert_eq!(content(&other).len(), 20);
    }
}

#[test]
fn duplicates_diverge_and_files_go_with_their_last_holder() {
    for place in SessionDir::both() {
        let session = place.open();
        for_each_seed(
            "duplicates_diverge_and_files_go_with_their_last_holder",
            by_effort(1, 2),
            |rng, _| {
                let mut model = Content::new();
                let mut table = session.new_table(&buffer_of(10)).unwrap();
                for n in 0..400 {
                    table.insert(&key(n), &value(n, 20)).unwrap();
                    model.insert(key(n).to_vec(), value(n, 20));
                }
                let mut family = vec![(table, model)];
                // Duplicates of duplicates, of whatever age.
                while family.len() < 50 {
                    let (table, model) = rng.pick(&family);
                    let copy = (table.fork().unwrap(), model.clone());
                    family.push(copy);
                    advance(&mut family, rng, 3);
                }
                advance(&mut family, rng, 1_000);
                let all: Vec<_> = (0..600).map(key).collect();
                while !family.is_empty() {
                    for (table, model) in family.iter().take(3) {
                        assert!(content(table).into_iter().eq(model.clone()));
                        for (key, result) in all.iter().zip(table.get_many(&all).unwrap()) {
                            assert_eq!(result.value(), model.get(&key[..]).map(Vec::as_slice));
                        }
                    }
                    assert!(!place.runs().is_empty());
                    family.swap_remove(rng.index(family.len()));
                }
                assert!(place.runs().is_empty(), "{:?}", place.runs());
            },
        );

        session.close().unwrap();
    }
}

/// Updates tables at random, each with its model.
fn advance(family: &mut [(Table, Content)], rng: &mut impl Draw, count: u64) {
    for round in 0..count {
        let at = rng.index(family.len());
        let (table, model) = &mut family[at];
        let key = key(rng.below(600));
        if rng.chance(1, 3) {
            table.delete(&key).unwrap();
            model.remove(&key[..]);
        } else {
            let value = value(rng.below(1 << 40) + round, 20);
            table.insert(&key, &value).unwrap();
            model.insert(key.to_vec(), value);
        }
    }
}

#[test]
fn snapshots_are_saved_opened_listed_and_deleted() {
    for place in SessionDir::both() {
        let session = place.open();
        for config in small_configs() {
            let mut table = session.new_table(&config).unwrap();
            fill(&mut table, 0..100);
            let saved = content(&table);
            table.save_snapshot(&name("a"), "ledger").unwrap();

            assert!(matches!(
                table.save_snapshot(&name("a"), "ledger"),
                Err(Error::SnapshotExists { name }) if name == "a"
            ));

            assert!(matches!(
                session.open_snapshot(&name("b"), "ledger"),
                Err(Error::SnapshotDoesNotExist { name }) if name == "b"
            ));

            assert!(matches!(
                session.delete_snapshot(&name("b")),
                Err(Error::SnapshotDoesNotExist { name }) if name == "b"
            ));

            assert!(matches!(
                session.open_snapshot(&name("a"), "stake"),
                Err(Error::SnapshotNotCompatible { name, expected, actual })
                    if name == "a" && expected == "stake" && actual == "ledger"
            ));

            // Later updates do not change it, and each opening is a table of its own.
            fill(&mut table, 100..200);
            clear(&mut table, 0..50);
            let mut first = session.open_snapshot(&name("a"), "ledger").unwrap();
            let second = session.open_snapshot(&name("a"), "ledger").unwrap();
            assert_eq!(first.config(), &config);
            assert_eq!(content(&first), saved);
            clear(&mut first, 0..100);
            assert_eq!(content(&first), []);
            assert_eq!(content(&second), saved);
            assert_eq!(content(&table).len(), 150);

            table.save_snapshot(&name("b"), "").unwrap();
            assert_eq!(session.list_snapshots().unwrap(), [name("a"), name("b")]);
            let opened = session.open_snapshot(&name("b"), "").unwrap();
            session.delete_snapshot(&name("b")).unwrap();
            assert_eq!(session.list_snapshots().unwrap(), [name("a")]);
            assert!(session.snapshot_exists(&name("a")).unwrap());
            assert!(!session.snapshot_exists(&name("b")).unwrap());

            // A table outlives the snapshot that it was opened from.
            assert_eq!(content(&opened).len(), 150);
            session.delete_snapshot(&name("a")).unwrap();
        }

        assert!(place.runs().is_empty(), "{:?}", place.runs());
    }
}

#[test]
fn snapshots_can_be_renamed() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(3)).unwrap();
        fill(&mut table, 0..100);
        let saved = content(&table);
        table.save_snapshot(&name("a"), "ledger").unwrap();
        fill(&mut table, 100..120);
        table.save_snapshot(&name("b"), "ledger").unwrap();

        let is_taken = |to: &str| {
            let error = session.rename_snapshot(&name("a"), &name(to)).unwrap_err();
            assert!(matches!(&error, Error::SnapshotExists { name } if name == to), "{error}");
        };

        is_taken("b");
        is_taken("a");
        assert!(matches!(
            session.rename_snapshot(&name("c"), &name("d")),
            Err(Error::SnapshotDoesNotExist { name }) if name == "c"
        ));

        let opened = session.open_snapshot(&name("a"), "ledger").unwrap();
        session.rename_snapshot(&name("a"), &name("c")).unwrap();
        assert_eq!(session.list_snapshots().unwrap(), [name("b"), name("c")]);
        assert_eq!(content(&opened), saved);
        assert_eq!(content(&session.open_snapshot(&name("c"), "ledger").unwrap()), saved);

        // The old name is free again, and the one snapshot does not keep the other's runs.
        table.save_snapshot(&name("a"), "ledger").unwrap();
        session.delete_snapshot(&name("a")).unwrap();
        drop((opened, table));
        session.close().unwrap();
        drop(session);
        let session = place.open();
        assert_eq!(session.list_snapshots().unwrap(), [name("b"), name("c")]);
        assert_eq!(content(&session.open_snapshot(&name("c"), "ledger").unwrap()), saved);

        for text in ["b", "c"] {
            assert!(session.delete_snapshot_if_exists(&name(text)).unwrap());
            assert!(!session.delete_snapshot_if_exists(&name(text)).unwrap());
        }

        assert!(place.runs().is_empty(), "{:?}", place.runs());
    }
}

#[test]
fn snapshot_info_describes_a_snapshot() {
    for place in SessionDir::both() {
        let session = place.open();
        let config = buffer_of(50);
        let mut table = session.new_table(&config).unwrap();
        let before_ns = place.disk().clock().wall().as_nanos() as u64;
        table.save_snapshot(&name("empty"), "").unwrap();
        fill(&mut table, 0..1_000);
        table.save_snapshot(&name("full"), "ledger").unwrap();
        let empty = session.snapshot_info(&name("empty")).unwrap();
        assert_eq!((empty.runs, empty.data_bytes, empty.label.as_str()), (0, 0, ""));
        let full = session.snapshot_info(&name("full")).unwrap();
        assert_eq!((&full.name, full.label.as_str()), (&name("full"), "ledger"));
        assert_eq!(full.config, config);
        assert!(before_ns <= empty.created_ns && empty.created_ns < full.created_ns);
        assert!(full.runs > 1);

        // Keys and values, without filters and indexes.
        assert!((94_000..place.run_bytes()).contains(&full.data_bytes), "{full:?}");
        assert!(matches!(
            session.snapshot_info(&name("other")),
            Err(Error::SnapshotDoesNotExist { name }) if name == "other"
        ));

        session.rename_snapshot(&name("full"), &name("other")).unwrap();
        let renamed = session.snapshot_info(&name("other")).unwrap();
        assert_eq!((renamed.created_ns, renamed.runs), (full.created_ns, full.runs));
    }
}

#[test]
fn valid_snapshot_names_are_taken_and_others_refused() {
    let longest = "a".repeat(SNAPSHOT_NAME_LEN_MAX);
    assert_eq!(longest.len(), 64);
    for text in ["main", "temporary-123-test_", "a", "-", "com0", "com10", "console", &longest] {
        assert_eq!(SnapshotName::new(text).unwrap().as_str(), text);
    }
    let too_long = "a".repeat(65);
    let hundred = "a".repeat(100);
    for text in [
        "UPPER",
        "dir/dot.exe",
        "..",
        "\\",
        "",
        "con",
        "prn",
        "aux",
        "nul",
        "com1",
        "lpt9",
        "white space",
        "ümlaut",
        "nul\0",
        &too_long,
        &hundred,
    ] {
        let error = SnapshotName::new(text).unwrap_err();
        assert!(
            matches!(&error, Error::InvalidSnapshotName { text: found } if found == text),
            "{error}"
        );
    }
}

#[test]
fn an_empty_table_can_be_saved() {
    for place in SessionDir::both() {
        let session = place.open();
        let table = session.new_table(&TableConfig::default()).unwrap();
        table.save_snapshot(&name("empty"), "ä label").unwrap();
        session.close().unwrap();
        let session = place.open();
        let mut table = session.open_snapshot(&name("empty"), "ä label").unwrap();
        assert_eq!(content(&table), []);
        table.insert(b"", b"").unwrap();
        assert_eq!(content(&table), [(vec![], vec![])]);
    }
}

/// Snapshots in the middle of merges: what was saved comes back, and updates of a table opened from
/// it go on through many further flushes.
#[test]
fn snapshots_in_mid_merge_open_and_take_updates() {
    for place in SessionDir::both() {
        let session = place.open();
        for index in [IndexKind::Compact, IndexKind::Ordinary] {
            let configs = if matches!(place, SessionDir::Real { .. }) {
                vec![buffer_of(3)]
            } else {
                small_configs()
            };

            for config in configs {
                let config = config.index(index).compaction_batch_pages(1);

                let mut table = session.new_table(&config).unwrap();
                let mut has_met_a_merge = false;
                for round in 0..25 {
                    fill(&mut table, round * 7..round * 7 + 7);
                    clear(&mut table, [round * 5]);
                    has_met_a_merge |= table.stats().merge_debt_pages > 0;
                    table.save_snapshot(&name("mid"), "").unwrap();
                    let saved = content(&table);

                    let mut opened = session.open_snapshot(&name("mid"), "").unwrap();
                    assert_eq!(content(&opened), saved, "{config:?}, round {round}");
                    fill(&mut opened, 1_000..1_030);
                    clear(&mut opened, 1_000..1_030);
                    assert_eq!(content(&opened), saved, "{config:?}, round {round}");
                    session.delete_snapshot(&name("mid")).unwrap();
                }

                let is_small = config.write_buffer != buffer_of(1_000).write_buffer;
                let is_incremental =
                    config.compaction_schedule == TableConfig::default().compaction_schedule;
                assert_eq!(has_met_a_merge, is_small && is_incremental, "{config:?}");
            }
        }

        assert!(place.runs().is_empty(), "{:?}", place.runs());
    }
}

/// A foreign directory is refused and left as it is, to the last file.
#[test]
fn a_foreign_directory_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("letters.txt"), "dear").unwrap();
    std::fs::create_dir(folder.path().join("photos")).unwrap();
    let disk = RealDisk::auto();
    let before = disk.list(folder.path()).unwrap();
    let error = Session::open_dir(folder.path(), &SessionOptions::default()).unwrap_err();
    assert!(
        matches!(&error, Error::SessionDirCorrupted { reason, .. } if reason.contains("letters.txt")),
        "{error}"
    );
    assert_eq!(disk.list(folder.path()).unwrap(), before);
    assert_eq!(std::fs::read(folder.path().join("letters.txt")).unwrap(), b"dear");
}

#[test]
fn a_label_has_a_limit_and_one_at_the_limit_can_be_opened() {
    for place in SessionDir::both() {
        let session = place.open();
        let table = session.new_table(&TableConfig::default()).unwrap();
        let longest = "x".repeat(LABEL_BYTES_MAX);
        let error = table.save_snapshot(&name("long"), &format!("{longest}x")).unwrap_err();
        assert!(matches!(error, Error::LabelTooLarge { .. }), "{error}");
        assert_eq!(session.list_snapshots().unwrap(), []);
        table.save_snapshot(&name("long"), &longest).unwrap();
        drop(table);
        drop(session);
        place.open().open_snapshot(&name("long"), &longest).unwrap();
    }
}

/// A snapshot's file that has grown beyond all bounds is a damaged snapshot, not a damaged session.
#[test]
fn a_snapshot_file_too_large_to_read_leaves_the_others_usable() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    table.insert(b"key", b"value").unwrap();
    table.save_snapshot(&name("whole"), "").unwrap();
    table.save_snapshot(&name("huge"), "").unwrap();
    drop(table);
    session.close().unwrap();
    drop(session);
    let huge = place.dir().join("snapshots").join("huge.snapshot");
    let file = place.disk().open(&huge, OpenMode::ReadWrite, Access::Buffered).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    drop(file);
    let session = place.open();
    let error = session.open_snapshot(&name("huge"), "").unwrap_err();
    assert!(matches!(error, Error::SnapshotCorrupted { .. }), "{error}");
    let table = session.open_snapshot(&name("whole"), "").unwrap();
    assert_eq!(table.get(b"key").unwrap().value(), Some(b"value".as_slice()));
    session.delete_snapshot(&name("huge")).unwrap();
}

/// Each save wrote the whole write buffer anew, 2.4 MiB for an entry of nine bytes. Snapshots share
/// the images of what they have in common; in the end nothing is left of any.
#[test]
fn saving_after_each_commit_writes_what_is_new() {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let dir = Path::new("/session");
    let session = Session::open(Arc::clone(&disk) as _, dir, &options).unwrap();

    let mut table = session.new_table(&TableConfig::default()).unwrap();
    for number in 0..10_000 {
        table.insert(&key(number), &value(number, 60)).unwrap();
    }
    let names: Vec<_> = (0..50).map(|n| name(&format!("at-{n}"))).collect();
    table.save_snapshot(&names[0], "").unwrap();
    let before = session.stats().image_bytes;
    assert!(before > 900_000, "{before} bytes");

    for (number, name) in (10_000..).zip(&names[1..]) {
        table.insert(&key(number), b"v").unwrap();
        if number % 20 == 0 {
            // As another process would go on with it.
            table = session.open_snapshot(&names[(number - 10_000) as usize], "").unwrap();
            table.insert(&key(number), b"v").unwrap();
        }
        table.save_snapshot(name, "").unwrap();
    }

    let written = session.stats().image_bytes - before;
    assert!(written < 50 * 16_384, "{written} bytes for 49 entries");
    for (at, name) in (0..).zip(&names) {
        let table = session.open_snapshot(name, "").unwrap();
        assert_eq!(table.count_exact().unwrap(), 10_000 + at);
    }

    drop(table);
    for name in &names {
        session.delete_snapshot(name).unwrap();
    }
    assert!(disk.list(&dir.join("active")).unwrap().is_empty());
}

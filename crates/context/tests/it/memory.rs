//! The database in memory: what it frees, what it refuses, and histories with snapshots of all
//! ages.
//!
//! Goal: what the conformance suite of `terrane-backends` cannot ask, because it is of this
//! back-end only: versions that nobody sees are freed, whatever the order in which readers go, and
//! none that somebody sees. Method: random histories beside maps that are copied for each snapshot;
//! the bytes are counted from the maps.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use terrane_kv::Memory;
use terrane_kv::{Counts, Database, Error, Reader, Table, Writer};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

const INDEX: Table<'_> = Table::Index("log");
const VERSION_BYTES: u64 = 96;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn put(database: &Memory, entries: &[(&[u8], &[u8])]) {
    let mut writer = database.writer().unwrap();
    for (key, value) in entries {
        writer.overwrite(Table::Main, key, value).unwrap();
    }
    writer.commit().unwrap();
}

/// Which commits changed a key of a table, and the bytes of what they bound it to.
type History = BTreeMap<(usize, Vec<u8>), Vec<(u64, Option<usize>)>>;

/// The bytes of all versions that one of `seen`, numbers of commits, sees; a removal counts if such
/// a value is before it.
fn bytes_of(history: &History, seen: &[u64]) -> u64 {
    let mut bytes = 0;
    for ((_, key), versions) in history {
        let mut is_bound = false;
        for (index, &(born, value)) in versions.iter().enumerate() {
            let died = versions.get(index + 1).map_or(u64::MAX, |next| next.0);
            is_bound |= value.is_some() && seen.iter().any(|number| (born..died).contains(number));
            if is_bound && seen.iter().any(|number| (born..died).contains(number)) {
                bytes += VERSION_BYTES + (key.len() + value.unwrap_or(0)) as u64;
            }
        }
    }
    bytes
}

fn assert_holds(reader: &dyn Reader, maps: &[Map; 2], what: &str) {
    for (table, map) in [Table::Main, INDEX].into_iter().zip(maps) {
        assert_eq!(reader.count(table).unwrap(), map.len() as u64, "{what}, {table}: count");
        let mut cursor = reader.cursor(table).unwrap();
        for (key, value) in map {
            assert_eq!(
                cursor.next().unwrap().as_ref(),
                Some(&(key.clone(), value.clone())),
                "{what}"
            );
        }

        assert_eq!(cursor.next().unwrap(), None, "{what}");
        for (key, value) in map.iter().rev() {
            assert_eq!(
                cursor.prev().unwrap().as_ref(),
                Some(&(key.clone(), value.clone())),
                "{what}"
            );
            assert_eq!(reader.get(table, key).unwrap().as_ref(), Some(value), "{what}");
        }

        assert_eq!(cursor.prev().unwrap(), None, "{what}");
    }
}

/// A change of a few keys; which, and the bytes of the new value.
fn change(
    writer: &mut dyn Writer,
    maps: &mut [Map; 2],
    rng: &mut ChaCha8Rng,
) -> ((usize, Vec<u8>), Option<usize>) {
    let number = rng.index(2);
    let table = if number == 0 { Table::Main } else { INDEX };
    let key = vec![b'k'; 1 + rng.index(4)];

    if rng.chance(2, 5) {
        writer.remove(table, &key).unwrap();
        maps[number].remove(&key);
        return ((number, key), None);
    }

    let bytes = rng.index(20);
    let value = rng.bytes(bytes);
    writer.overwrite(table, &key, &value).unwrap();
    maps[number].insert(key.clone(), value);

    ((number, key), Some(bytes))
}

/// With few keys and many snapshots every order of births, ends and removals comes up.
#[test]
fn snapshots_hold_what_they_saw_and_nothing_else_is_kept() {
    for_each_seed("snapshots_hold_what_they_saw_and_nothing_else_is_kept", 200, |rng, _| {
        let database = Memory::new(&["log"]).unwrap();
        let mut present: [Map; 2] = Default::default();
        let mut commits = 0;
        let mut history = History::new();
        let mut snapshots: Vec<(Box<dyn Reader + Send>, u64, [Map; 2])> = Vec::new();
        for step in 0..80 {
            // At the end they only go.
            match if step < 60 { rng.below(8) } else { 7 } {
                0..4 => {
                    let mut writer = database.writer().unwrap();
                    let mut maps = present.clone();
                    let changes: BTreeMap<_, _> =
                        (0..rng.below(6)).map(|_| change(&mut *writer, &mut maps, rng)).collect();
                    assert_holds(&*writer, &maps, "the writer");
                    if rng.chance(3, 4) {
                        writer.commit().unwrap();
                        present = maps;
                        commits += 1;
                        for (key, value) in changes {
                            let versions = history.entry(key).or_default();
                            // Removing what is absent changes nothing.
                            if value.is_some()
                                || versions.last().is_some_and(|last| last.1.is_some())
                            {
                                versions.push((commits, value));
                            }
                        }
                    }
                }
                4..6 => snapshots.push((database.reader().unwrap(), commits, present.clone())),
                _ if snapshots.is_empty() => {}
                _ => drop(snapshots.swap_remove(rng.index(snapshots.len()))),
            }
            for (reader, _, maps) in &snapshots {
                assert_holds(&**reader, maps, "a snapshot");
            }
            let mut seen: Vec<u64> = snapshots.iter().map(|snapshot| snapshot.1).collect();
            seen.push(commits);
            assert_eq!(database.disk_bytes().unwrap(), bytes_of(&history, &seen));
        }
        assert_holds(&*database.reader().unwrap(), &present, "the present");
    });
}

#[test]
fn a_version_is_freed_with_the_last_reader_that_sees_it() {
    let database = Memory::new(&[]).unwrap();
    let cost = |bytes: u64| VERSION_BYTES + 1 + bytes;
    put(&database, &[(b"k", b"1")]);
    let first = database.reader().unwrap();
    let second = database.reader().unwrap();
    put(&database, &[(b"k", b"22")]);
    put(&database, &[(b"k", b"333")]);

    // Nobody saw the second value.
    assert_eq!(database.disk_bytes().unwrap(), cost(1) + cost(3));
    drop(first);
    assert_eq!(database.disk_bytes().unwrap(), cost(1) + cost(3));
    drop(second);
    assert_eq!(database.disk_bytes().unwrap(), cost(3));
    let third = database.reader().unwrap();
    let mut writer = database.writer().unwrap();
    writer.delete(Table::Main, b"k").unwrap();
    writer.commit().unwrap();
    assert_eq!(third.get(Table::Main, b"k").unwrap().as_deref(), Some(b"333".as_slice()));
    drop(third);

    assert_eq!(database.disk_bytes().unwrap(), 0);
}

#[test]
fn a_commit_past_the_limit_changes_nothing_and_the_next_goes_on() {
    let limit = 3 * (VERSION_BYTES + 2);
    let database = Memory::new(&[]).unwrap().with_limit(limit);
    put(&database, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]);
    assert_eq!(database.disk_bytes().unwrap(), limit);
    let before = database.counts();
    let mut writer = database.writer().unwrap();
    writer.remove(Table::Main, b"a").unwrap();
    writer.put(Table::Main, b"d", b"44").unwrap();
    assert!(matches!(writer.commit(), Err(Error::StoreFull { .. })));
    assert_eq!(database.counts(), before);
    assert_eq!(database.disk_bytes().unwrap(), limit);
    let reader = database.reader().unwrap();
    assert_eq!(reader.count(Table::Main).unwrap(), 3);
    assert!(reader.get(Table::Main, b"a").unwrap().is_some());
    assert_eq!(reader.get(Table::Main, b"d").unwrap(), None);
    drop(reader);
    let mut writer = database.writer().unwrap();
    writer.remove(Table::Main, b"a").unwrap();
    writer.put(Table::Main, b"d", b"4").unwrap();
    writer.commit().unwrap();

    // One that shrinks is taken even where it does not shrink enough.
    let database = database.with_limit(1);
    let mut writer = database.writer().unwrap();
    writer.delete(Table::Main, b"d").unwrap();
    writer.commit().unwrap();

    assert_eq!(database.settings(), [("limit_bytes", "1".to_owned())]);
}

#[test]
fn a_snapshot_counts_against_the_limit_until_it_goes() {
    let database = Memory::new(&[]).unwrap().with_limit(VERSION_BYTES + 10);
    put(&database, &[(b"k", b"1")]);
    let reader = database.reader().unwrap();
    let overwrite = || {
        let mut writer = database.writer().unwrap();
        writer.overwrite(Table::Main, b"k", b"2").unwrap();
        writer.commit()
    };
    assert!(matches!(overwrite(), Err(Error::StoreFull { .. })));
    drop(reader);
    overwrite().unwrap();
}

#[test]
fn names_that_name_no_index_are_refused() {
    let long = "a".repeat(33);
    for names in [&[""][..], &["Log"], &["1"], &["a-b"], &["ä"], &[&long], &["a", "b", "a"]] {
        assert!(matches!(Memory::new(names), Err(Error::Unsupported { .. })), "{names:?}");
    }
    let many: Vec<String> = (0..17).map(|number| format!("i{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(Memory::new(&many), Err(Error::Unsupported { .. })));
    assert!(Memory::new(&many[..16]).is_ok());
    assert!(Memory::new(&[&long[..32], "a_1"]).is_ok());
}

fn refused<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::BackEnd { .. }))
}

#[test]
fn clones_are_one_database_which_closes_for_all() {
    let database = Memory::new(&["log"]).unwrap();
    put(&database, &[(b"k", b"12")]);
    let clone = database.clone();
    let reader = clone.reader().unwrap();
    assert_eq!(reader.get(Table::Main, b"k").unwrap().as_deref(), Some(b"12".as_slice()));
    let mut cursor = reader.cursor(Table::Main).unwrap();
    let mut writer = clone.writer().unwrap();
    writer.put(INDEX, b"k", b"").unwrap();
    database.close().unwrap();

    assert!(refused(&cursor.next()));
    assert!(refused(&cursor.prev()));
    assert!(refused(&reader.get(Table::Main, b"k")));
    assert!(refused(&reader.count(INDEX)));
    assert!(refused(&reader.cursor(INDEX)));
    assert!(refused(&writer.get(INDEX, b"k")));
    assert!(refused(&writer.count(INDEX)));
    assert!(refused(&writer.overwrite(INDEX, b"k", b"")));
    assert!(refused(&writer.remove(INDEX, b"k")));
    assert!(refused(&writer.commit()));
    assert!(refused(&clone.reader()));
    assert!(refused(&clone.writer()));
    assert!(refused(&clone.sync()));
    assert!(refused(&clone.disk_bytes()));
    assert!(refused(&clone.compact()));
    assert!(refused(&clone.close()));
    let counts = Counts { transactions: 1, bytes_written: 3, ..Counts::default() };

    assert_eq!(clone.counts(), counts);
}

/// A writer that panics gives its turn up and leaves nothing behind.
#[test]
fn a_panic_of_a_writer_is_a_rollback() {
    let database = Memory::new(&[]).unwrap();
    let clone = database.clone();
    let (sender, receiver) = mpsc::channel();
    let writing = thread::spawn(move || {
        let mut writer = clone.writer().unwrap();
        writer.put(Table::Main, b"k", b"v").unwrap();
        sender.send(()).unwrap();
        panic!("as planned");
    });
    receiver.recv().unwrap();
    let mut writer = database.writer().unwrap();
    assert!(writing.join().is_err());
    writer.put(Table::Main, b"k", b"w").unwrap();
    writer.commit().unwrap();

    assert_eq!(
        database.reader().unwrap().get(Table::Main, b"k").unwrap().as_deref(),
        Some(b"w".as_slice())
    );
}

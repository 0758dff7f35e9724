//! The bytes on disk: golden files of a context store, and what is refused.
//!
//! Goal: a change of any byte of a format does not pass unnoticed, and files of a released version
//! are read for ever. Method: a small store that has records and frames of each kind, and a
//! compacted chunk, is written to a simulated disk, whose clock follows from the calls; its files
//! are the golden files. They are then planted on an empty disk and read. So are streams of
//! snapshots, which are imported.

use std::path::Path;
use std::sync::Arc;

use terrane_context::{Error, Hash, Meta, Options, Retain, Rules, Store, StoreReader};
use terrane_io::Disk;
use terrane_io::SimDisk;
use terrane_io::checksum::crc32c;
use terrane_testkit::golden;

use crate::script::{Content, DIR, content_of, create, go, open, options, steps_of};

const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Golden files, with the files of the store that they are.
const FILES: [(&str, &str); 4] = [
    ("context.control", "control"),
    ("context.chunk-compacted", "chunk-00000000"),
    ("context.chunk-full", "chunk-00000001"),
    ("context.chunk-last", "chunk-00000002"),
];

/// Golden streams: a whole commit, and a range of two commits behind it.
const STREAMS: [&str; 2] = ["context.snapshot-whole", "context.snapshot-range"];

type Commits = Vec<(Hash, Content)>;

fn small() -> Options {
    options().rules(Rules { branching: 4, flat_limit: 6, ..Rules::TEZOS })
}

fn commit(store: &Store, parent: Option<&(Hash, Content)>, number: u8) -> (Hash, Content) {
    let (mut context, mut content) = match parent {
        Some((hash, content)) => (store.checkout(hash).unwrap().unwrap(), content.clone()),
        None => (store.empty(), Content::new()),
    };
    let mut changes = vec![(format!("inode/{number}"), 3), ("flat/large".to_owned(), 50)];
    if parent.is_none() {
        changes.extend((0..20).map(|name| (format!("inode/{name}"), 1)));
        // A step of hexadecimal digits takes half of its bytes.
        changes.push(("flat/00c0ffee".to_owned(), 2));
    }
    for (path, len) in changes {
        let value = vec![number; len];
        context.add(&steps_of(&path), value.as_slice()).unwrap();
        content.insert(path, value);
    }

    (store.commit(&context, &Meta::tezos(i64::from(number), "golden")).unwrap(), content)
}

/// The disk, and the commits that are there.
fn write() -> (Arc<SimDisk>, Commits) {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &small()).unwrap();
    let mut commits = Commits::new();
    for number in 1..4 {
        commits.push(commit(&store, commits.last(), number));
    }
    store.set_branch(b"main", &commits[2].0).unwrap();
    store.collect(&Retain::newest(1), &mut go).unwrap();
    commits.drain(..2);
    commits.push(commit(&store, commits.last(), 4));
    store.split().unwrap();
    commits.push(commit(&store, commits.last(), 5));
    store.set_branch(b"x", &commits[1].0).unwrap();
    store.remove_branch(b"main").unwrap();

    // Commits of another store, imported with one frame.
    let [_, (range, made)] = streams(&store, commits.last().unwrap());
    store.import_to(b"y", &mut &*range).unwrap();
    commits.extend(made);

    // As a process leaves it that is killed.
    let killed = disk.process_kill();
    drop(store);
    (killed, commits)
}

/// Streams of a commit, and of two commits on it that another store makes; with these commits.
fn streams(store: &Store, parent: &(Hash, Content)) -> [(Vec<u8>, Commits); 2] {
    let mut whole = Vec::new();
    store.export(&parent.0, &mut whole).unwrap();
    let shared: Arc<dyn Disk> = SimDisk::new(3);
    let other = create(&shared, &small()).unwrap();
    other.import(&mut &*whole).unwrap();
    let first = commit(&other, Some(parent), 8);
    let second = commit(&other, Some(&first), 9);

    let mut range = Vec::new();
    other.export_range(&parent.0, &second.0, &mut range).unwrap();
    [(whole, vec![parent.clone()]), (range, vec![first, second])]
}

fn path(file: &str) -> std::path::PathBuf {
    Path::new(DIR).join(file)
}

#[test]
fn golden_files_of_a_context_store_are_what_is_written_and_are_read() {
    let (disk, commits) = write();
    let is_ours = |path: &&std::path::PathBuf| {
        !path.ends_with("lock") && !path.to_string_lossy().contains("/index/")
    };
    let files = disk.files();
    assert_eq!(files.iter().filter(is_ours).count(), FILES.len(), "{files:?}");
    for (name, file) in FILES {
        golden::check(CRATE, name, &disk.read_raw(path(file)).unwrap());
    }

    let planted = SimDisk::new(2);
    for (name, file) in FILES {
        planted.write_raw(path(file), &golden::read(CRATE, name));
    }
    let shared: Arc<dyn Disk> = planted.clone();
    let reader = StoreReader::open(Arc::clone(&shared), Path::new(DIR), 1 << 20).unwrap();
    assert_eq!(reader.branches(), [(b"x".to_vec(), commits[1].0), (b"y".to_vec(), commits[4].0)]);
    let newest: Vec<Hash> = reader.newest().map(|commit| commit.unwrap().hash).collect();
    assert!(newest.iter().eq(commits.iter().rev().map(|(hash, _)| hash)), "{newest:?}");

    for (hash, content) in &commits {
        let context = reader.checkout(hash).unwrap().unwrap();
        assert_eq!(&content_of(&context).unwrap(), content);
    }

    // And it can be gone on with.
    let store = open(&shared, &small()).unwrap();
    assert_eq!(store.recovery().commits, 3);
    let next = commit(&store, commits.last(), 6);
    store.close().unwrap();

    assert!(reader.exists(&next.0).unwrap());
}

/// The file with another version, at an offset, and the checksum of so many bytes made good behind
/// them.
fn with_version(bytes: &mut [u8], at: usize, checked: usize) {
    bytes[at + 8..at + 12].copy_from_slice(&8_u32.to_le_bytes());
    let crc = crc32c(&bytes[at..at + checked]);
    bytes[at + checked..at + checked + 4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn golden_files_of_an_unknown_version_are_refused_by_name() {
    let (disk, _) = write();
    for (file, pages, checked, version) in
        [("control", [0, 4096].as_slice(), 4092, 2), ("chunk-00000002", &[0], 60, 7)]
    {
        let altered = disk.process_kill();
        let mut bytes = altered.read_raw(path(file)).unwrap();
        for &at in pages {
            with_version(&mut bytes, at, checked);
        }
        altered.write_raw(path(file), &bytes);
        let shared: Arc<dyn Disk> = altered.clone();
        let errors = [
            open(&shared, &small()).unwrap_err(),
            StoreReader::open(Arc::clone(&shared), Path::new(DIR), 0).unwrap_err(),
        ];

        for error in errors {
            assert!(
                matches!(&error, Error::UnsupportedVersion { path: found, found: 8, newest }
                    if *found == path(file) && *newest == version),
                "{error:?}"
            );
        }

        assert_eq!(altered.read_raw(path(file)).unwrap(), bytes);
    }
}

#[test]
fn golden_streams_are_what_is_exported_and_are_imported() {
    let disk: Arc<dyn Disk> = SimDisk::new(1);
    let store = create(&disk, &small()).unwrap();
    let parent = commit(&store, None, 1);
    let streams = streams(&store, &parent);
    for (name, (stream, _)) in STREAMS.into_iter().zip(&streams) {
        golden::check(CRATE, name, stream);
    }

    let disk: Arc<dyn Disk> = SimDisk::new(2);
    let copy = create(&disk, &small()).unwrap();
    for (name, (_, commits)) in STREAMS.into_iter().zip(&streams) {
        let imported = copy.import(&mut &*golden::read(CRATE, name)).unwrap();
        assert!(imported.commits.iter().eq(commits.iter().map(|(hash, _)| hash)), "{name}");
        for (hash, content) in commits {
            let context = copy.checkout(hash).unwrap().unwrap();
            assert_eq!(&content_of(&context).unwrap(), content);
        }
    }

    // A stream of another version is refused by name.
    for version in [1_u32, 3] {
        let mut stream = golden::read(CRATE, STREAMS[0]);
        stream[8..12].copy_from_slice(&version.to_le_bytes());
        let crc = crc32c(&stream[..92]);
        stream[92..96].copy_from_slice(&crc.to_le_bytes());
        let refused = copy.import(&mut &*stream);
        assert!(
            matches!(refused, Err(Error::SnapshotVersion { found, newest: 2 }) if found == version),
            "{refused:?}"
        );
    }
}

#[test]
fn golden_folder_is_complete() {
    let files = FILES.map(|(name, _)| name);
    golden::check_complete(CRATE, &[&files[..], &STREAMS[..]].concat());
}

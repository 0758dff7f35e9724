//! Damaged files.
//!
//! Goal: whatever byte of a store is changed, what comes out is what was written, or an error that
//! names the file and the record; never wrong data, never a panic; and damage of one object keeps
//! nobody from reading others.
//!
//! Method: a small store that has all there is (values, flat directories, inodes, deltas, commits,
//! branches, a compacted chunk, frames behind the control record) is written; each byte of its
//! files is changed in turn, and everything is read: by a reader, and at every fourth byte by a
//! writer too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    Error, GcPace, GcPhase, GcProgress, Hash, IndexEngine, Indexing, Kind, Loss, Meta, Options,
    Prefetch, Result, Retain, Rules, Store, StoreReader, repair,
};
use terrane_io::Disk;
use terrane_io::SimDisk;
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::seeds::for_each_seed;

use crate::script::{Content, DIR, content_of, create, go, open, options, steps_of};

/// Expected content of a store.
struct Expected {
    commits: Vec<(Hash, Content)>,
    branches: Vec<(Vec<u8>, Hash)>,
}

fn small() -> Options {
    let rules = Rules { branching: 4, flat_limit: 6, ..Rules::TEZOS };
    options().rules(rules).chunk_bytes(4 << 10)
}

fn commit(store: &Store, parent: Option<&(Hash, Content)>, number: u8) -> (Hash, Content) {
    let (mut context, mut content) = match parent {
        Some((hash, content)) => (store.checkout(hash).unwrap().unwrap(), content.clone()),
        None => (store.empty(), Content::new()),
    };
    let mut changes = BTreeMap::from([
        (format!("inode/{}", number % 20), vec![number; 3]),
        (format!("flat/{}", number % 4), vec![number; 50]),
    ]);
    if parent.is_none() {
        changes.extend((0..20).map(|name| (format!("inode/{name}"), vec![0; 3])));
    }
    for (path, value) in changes {
        context.add(&steps_of(&path), value.as_slice()).unwrap();
        content.insert(path, value);
    }

    (store.commit(&context, &Meta::tezos(i64::from(number), "")).unwrap(), content)
}

/// A store of some chunks, as a process leaves it that is killed.
fn write(seed: u64) -> (Arc<SimDisk>, Expected) {
    let disk = SimDisk::new(seed);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &small()).unwrap();
    let mut commits: Vec<(Hash, Content)> = Vec::new();
    for number in 0..6 {
        commits.push(commit(&store, commits.last(), number));
    }
    store.set_branch(b"main", &commits[4].0).unwrap();
    store.collect(&Retain::newest(2), &mut go).unwrap();
    commits.drain(..4);
    for number in 6..16 {
        commits.push(commit(&store, commits.last(), number));
    }
    store.set_branch(b"x", &commits[6].0).unwrap();
    store.sync().unwrap();
    let branches = store.branches();
    drop(store);

    (disk.process_kill(), Expected { commits, branches })
}

/// An error of damage says where it is.
fn check_error(error: &Error, damaged: &Path) {
    match error {
        Error::Corrupt { path, .. } | Error::NotAContextStore { path } => {
            assert_eq!(path, damaged, "{error}");
        }
        // The older control record is used; what a collection has taken since is gone.
        Error::Collected { .. } => assert!(damaged.ends_with("control"), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// Reads everything; how many of the commits were whole.
fn read_all(
    expected: &Expected,
    damaged: &Path,
    checkout: &dyn Fn(&Hash) -> Result<Option<terrane_context::Context>>,
) -> usize {
    let mut whole = 0;
    for (number, (hash, content)) in expected.commits.iter().enumerate() {
        let read = checkout(hash).and_then(|context| match context {
            Some(context) => {
                if number % 2 == 0 {
                    let paths: Vec<_> = content.keys().map(|path| steps_of(path)).collect();
                    context.prefetch(&paths, Prefetch::Target);
                }
                content_of(&context)
            }
            None => panic!("commit {number} has vanished"),
        });
        match read {
            Ok(found) => {
                assert!(found == *content, "commit {number}");
                whole += 1;
            }
            Err(error) => check_error(&error, damaged),
        }
    }

    whole
}

/// Where the last frame begins.
fn last_frame(disk: &SimDisk) -> (PathBuf, usize) {
    let last = chunks(disk).pop().unwrap();
    let bytes = disk.read_raw(&last).unwrap();
    let at = (0..bytes.len()).step_by(8).rfind(|&at| bytes[at..].starts_with(b"TMF1"));
    (last, at.unwrap())
}

fn chunks(disk: &SimDisk) -> Vec<PathBuf> {
    let is_chunk = |path: &PathBuf| path.to_string_lossy().contains("/chunk-");
    disk.files().into_iter().filter(is_chunk).collect()
}

#[test]
fn a_changed_byte_is_found_out_or_changes_nothing() {
    let mut opened = 0;
    let mut refused = 0;
    let mut in_part = 0;
    for_each_seed("a_changed_byte_is_found_out_or_changes_nothing", 1, |_, seed| {
        let (disk, expected) = write(seed);
        let mut files = chunks(&disk);
        assert!(files.len() > 2, "{files:?}");
        let compacted = |path: &PathBuf| disk.read_raw(path).unwrap()[32] == 2;
        assert!(files.iter().any(compacted), "a chunk is compacted");
        files.push(Path::new(DIR).join("control"));
        for file in files {
            let len = disk.read_raw(&file).unwrap().len() as u64;
            for at in places(0..len, 21, seed) {
                let at = at as usize;
                // What is behind the checksum of a control record, and what is zero between
                // records, is covered as well: by the record, or by the frame.
                let altered = disk.clone_disk();
                altered.flip_bit(&file, at as u64 * 8 + at as u64 % 8);
                let shared: Arc<dyn Disk> = altered.clone();
                let reader = StoreReader::open(Arc::clone(&shared), Path::new(DIR), 1 << 20);
                match &reader {
                    Ok(reader) => {
                        read_all(&expected, &file, &|hash| reader.checkout(hash));
                        assert_eq!(reader.branches(), expected.branches, "{} {at}", file.display());
                    }
                    Err(error) => check_error(error, &file),
                }
                if !at.is_multiple_of(4) && reader.is_ok() {
                    opened += 1;
                    continue;
                }
                let store = match open(&shared, &small()) {
                    Ok(store) => store,
                    Err(error) => {
                        assert!(reader.is_err(), "{} {at}: {error}", file.display());
                        check_error(&error, &file);
                        refused += 1;
                        continue;
                    }
                };
                assert!(reader.is_ok(), "{} {at}", file.display());
                assert_eq!(store.recovery().cut_bytes, 0, "{} {at}", file.display());
                assert_eq!(store.branches(), expected.branches);
                let whole = read_all(&expected, &file, &|hash| store.checkout(hash));
                in_part += usize::from(0 < whole && whole < expected.commits.len());
                opened += 1;
            }
        }
    });
    println!("{opened} opened, {in_part} of them read in part, {refused} refused");
    let [all, part, none] = by_effort([47, 14, 5], [1_000, 300, 100]);

    assert!(opened > all && in_part > part && refused > none, "{opened} {in_part} {refused}");
}

/// Bytes that one read gives wrongly are found out, or read once more; nothing durable is given up
/// for them.
#[test]
fn wrong_bytes_of_a_read_are_found_out() {
    let mut repaired = 0;
    for_each_seed("wrong_bytes_of_a_read_are_found_out", 1, |_, seed| {
        let (disk, expected) = write(seed);
        for kind in FaultKind::SILENT {
            for call in places(0..disk.calls() + 120, 4, seed) {
                let altered = disk.clone_disk();
                altered.set_plan(FaultPlan::fail(altered.calls() + call, kind, Repeat::Once));
                let shared: Arc<dyn Disk> = altered.clone();
                let is_damage = |error: &Error| {
                    matches!(
                        error,
                        Error::Corrupt { .. }
                            | Error::NotAContextStore { .. }
                            | Error::Index { .. }
                            | Error::Collected { .. }
                    )
                };
                match open(&shared, &small()) {
                    Ok(store) => {
                        for (number, (hash, content)) in expected.commits.iter().enumerate() {
                            let read = store.checkout(hash).and_then(|context| match context {
                                Some(context) => content_of(&context),
                                None => panic!("commit {number} has vanished"),
                            });
                            match read {
                                Ok(found) => assert!(found == *content, "commit {number}"),
                                Err(error) => assert!(is_damage(&error), "{error:?}"),
                            }
                        }
                    }
                    Err(error) => assert!(is_damage(&error), "{error:?}"),
                }
                altered.set_plan(FaultPlan::default());
                let store = match open(&shared, &small()) {
                    Ok(store) => store,
                    // The index has cut its log where it was read wrongly; the error says what to
                    // do.
                    Err(error @ Error::Index { .. }) => {
                        assert!(error.to_string().contains("verify --repair"), "{error}");
                        let engine: Arc<dyn IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
                        repair(&shared, Path::new(DIR), &engine, Loss::Refused, &mut |_| {})
                            .unwrap();
                        repaired += 1;
                        open(&shared, &small()).unwrap()
                    }
                    Err(error) => panic!("the bytes themselves are whole: {error}"),
                };
                assert_eq!(store.branches(), expected.branches, "{kind:?} {call}");
                let whole = read_all(&expected, Path::new(DIR), &|hash| store.checkout(hash));
                assert_eq!(whole, expected.commits.len());
            }
        }
    });
    assert!(repaired > 0, "some wrong read makes the index refuse to open");
}

/// When a collection takes away the first thing, both pages of the control record say what is kept:
/// the loss of either brings nothing back.
#[test]
fn either_page_of_the_control_record_knows_what_a_collection_keeps() {
    for_each_seed(
        "either_page_of_the_control_record_knows_what_a_collection_keeps",
        1,
        |_, seed| {
            let disk = SimDisk::new(seed);
            let shared: Arc<dyn Disk> = disk.clone();
            let store = create(&shared, &small()).unwrap();
            let mut commits: Vec<(Hash, Content)> = Vec::new();
            for number in 0..12 {
                commits.push(commit(&store, commits.last(), number));
            }
            let mut images = Vec::new();
            let mut pace = |progress: &GcProgress| {
                if progress.phase == GcPhase::Reclaim {
                    images.push(disk.process_kill());
                }
                GcPace::Go
            };
            store.collect(&Retain::newest(2), &mut pace).unwrap();
            assert!(images.len() > 5, "{}", images.len());
            for (number, image) in images.iter().enumerate() {
                for page in 0..2 {
                    let damaged = image.clone_disk();
                    damaged.flip_bit(Path::new(DIR).join("control"), page * 4096 * 8 + 300);
                    let shared: Arc<dyn Disk> = damaged;
                    let store = open(&shared, &small()).unwrap();
                    let newest: Vec<Hash> =
                        store.newest().map(|commit| commit.unwrap().hash).collect();
                    let kept = commits[10..].iter().rev().map(|(hash, _)| hash);
                    assert!(newest.iter().eq(kept), "{number}, page {page}");
                    for (hash, content) in &commits[10..] {
                        let context = store.checkout(hash).unwrap().unwrap();
                        assert!(content_of(&context).unwrap() == *content);
                    }
                }
            }
        },
    );
}

/// A collection of a store with damage stops before it takes anything away if the damage is in what
/// is kept; heads of frames are needed by nobody, and what follows them is kept.
#[test]
fn a_collection_loses_nothing_because_of_damage() {
    let mut stopped = 0;
    let mut done = 0;
    for_each_seed("a_collection_loses_nothing_because_of_damage", 1, |_, seed| {
        let disk = SimDisk::new(seed);
        let shared: Arc<dyn Disk> = disk.clone();
        let store = create(&shared, &small()).unwrap();
        let mut commits: Vec<(Hash, Content)> = Vec::new();
        for number in 0..14 {
            commits.push(commit(&store, commits.last(), number));
        }
        store.close().unwrap();
        drop(store);
        commits.drain(..11);
        let expected = Expected { commits, branches: Vec::new() };
        for file in chunks(&disk) {
            let bytes = disk.read_raw(&file).unwrap();
            for at in places(64..bytes.len() as u64, 12, seed).map(|at| at as usize) {
                let altered = disk.clone_disk();
                altered.flip_bit(&file, at as u64 * 8 + 3);
                let shared: Arc<dyn Disk> = altered.clone();
                let store = open(&shared, &small()).unwrap();
                let read = |store: &Store| read_all(&expected, &file, &|hash| store.checkout(hash));
                let before = read(&store);
                drop(store);
                let store = open(&shared, &small()).unwrap();
                match store.collect(&Retain::newest(3), &mut go) {
                    Ok(_) => done += 1,
                    Err(error) => {
                        check_error(&error, &file);
                        stopped += 1;
                    }
                }
                drop(store);
                let store = open(&shared, &small()).unwrap();
                assert_eq!(read(&store), before, "{} {at}", file.display());
            }
        }
    });
    println!("{done} done, {stopped} stopped");
    let [least_done, least_stopped] = by_effort([8, 4], [100, 50]);
    assert!(done > least_done && stopped > least_stopped, "{done} {stopped}");
}

/// Behind a directory that was damaged in the last chunk, the rest of its commit was once not known
/// to be there.
#[test]
fn objects_beside_a_damaged_one_are_found_after_a_crash() {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let options = options().indexing(Indexing::Always).chunk_bytes(1 << 20);
    let store = create(&shared, &options).unwrap();
    let mut context = store.empty();

    for dir in 0..20u8 {
        for name in 0..3u8 {
            let path = [vec![b'd', dir], vec![b'n', name]];
            context.add(&path, vec![dir * 3 + name; 100]).unwrap();
        }
    }

    let first = store.commit(&context, &Meta::tezos(1, "")).unwrap();
    let context = store.checkout(&first).unwrap().unwrap();
    let mut hashes = vec![(Kind::Directory, context.tree().hash())];

    for dir in 0..20u8 {
        let tree = context.find_tree(&[vec![b'd', dir]]).unwrap().unwrap();
        hashes.push((Kind::Directory, tree.hash()));
        for name in 0..3u8 {
            let value = tree.find_tree(&[vec![b'n', name]]).unwrap().unwrap();
            hashes.push((Kind::Value, value.hash()));
        }
    }

    // The frame that follows says that the first one was durable.
    let (file, start) = last_frame(&disk);
    let mut other = store.empty();
    other.add(&["x"], vec![200; 100]).unwrap();
    store.commit(&other, &Meta::tezos(2, "")).unwrap();
    let (_, end) = last_frame(&disk);
    drop((context, store));
    let mut in_dir = 0;

    for byte in (start + 32..end).step_by(16) {
        let damaged = disk.process_kill();
        damaged.flip_bit(&file, byte as u64 * 8);
        let shared: Arc<dyn Disk> = damaged;

        // The commit itself may be hit.
        let Ok(store) = open(&shared, &options) else { continue };
        let is_lost =
            |(kind, hash): &&(Kind, Hash)| !matches!(store.find_object(*kind, hash), Ok(Some(_)));
        let lost: Vec<_> = hashes.iter().filter(is_lost).collect();
        if lost.first().is_some_and(|lost| lost.1 == hashes[0].1) {
            continue; // the root
        }
        in_dir += usize::from(lost.len() == 4);

        assert!(matches!(lost.len(), 0 | 1 | 4), "byte {byte}: {lost:?}");
    }

    assert!(in_dir > 20, "{in_dir}");
}

//! Stores with hostile files.
//!
//! Goal: whatever stands in the place of a file of a store (nothing, a piece, a file of another
//! store, a link, a FIFO, a directory, a file that cannot be read), readers, checks, writers and
//! repairs give what was written or an error; no commit is lost without a word, and nothing outside
//! the store is touched.
//!
//! Method: a table of files times a table of acts on the simulated disk, and links on a real one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, Context, GcPace, Hash, IndexEngine, Loss, Meta, Options, Result, Retain, Store,
    StoreReader, check, repair,
};
use terrane_io::BadMedia;
use terrane_io::{Disk, EntryKind, RealDisk, SimDisk};

use crate::script::{Content, DIR, content_of, create, open, options};

fn engine() -> Arc<dyn IndexEngine> {
    Arc::new(BtreeIndexes::new(1 << 20))
}

fn small() -> Options {
    options().chunk_bytes(4 << 10)
}

/// A closed store with an archive, compacted chunks, and commits on a branch.
struct Victim {
    disk: Arc<SimDisk>,
    commits: Vec<(Hash, Content)>,
}

fn victim(seed: u64) -> Victim {
    let disk = SimDisk::new(seed);
    // The identity of a store comes of the time at which it was made.
    disk.advance(Duration::from_secs(seed));
    let shared: Arc<dyn Disk> = disk.clone();
    let store = create(&shared, &small()).unwrap();
    let mut commits: Vec<(Hash, Content)> = Vec::new();
    store.add_volume().unwrap();

    for number in 0..24u8 {
        let mut context = match commits.last() {
            Some((head, _)) => store.checkout(head).unwrap().unwrap(),
            None => store.empty(),
        };
        for name in 0..3 {
            let path = [format!("d{}", (number + name) % 5), format!("{}", number % 4)];
            context.add(&path, vec![number ^ seed as u8; 80]).unwrap();
        }

        let hash = store.commit_to(b"main", &context, &Meta::tezos(i64::from(number), "")).unwrap();
        commits.push((hash, content_of(&context).unwrap()));
        if number == 12 {
            drop(context);
            store.collect(&Retain::newest(2), &mut |_| GcPace::Go).unwrap();
        }
    }

    store.close().unwrap();
    drop(store);
    disk.write_raw("/outside", b"not ours");
    disk.sync_dir(Path::new("/")).unwrap();

    Victim { disk: disk.process_kill(), commits }
}

/// Change of a file.
#[derive(Debug, Clone, Copy)]
enum Act {
    Missing,
    Empty,
    Cut(usize),
    Half,
    Shifted,
    Twice,
    Zeroed,
    Noise,
    Foreign,
    Link,
    Fifo,
    Denied,
    Unreadable(u64, u64),
}

const ACTS: [Act; 16] = [
    Act::Missing,
    Act::Empty,
    Act::Cut(1),
    Act::Cut(40),
    Act::Half,
    Act::Shifted,
    Act::Twice,
    Act::Zeroed,
    Act::Noise,
    Act::Foreign,
    Act::Link,
    Act::Fifo,
    Act::Denied,
    Act::Unreadable(0, u64::MAX),
    Act::Unreadable(0, 512),
    Act::Unreadable(1536, 2048),
];

/// Does it; whether the file is still as it was, for whoever may read it.
fn act(disk: &SimDisk, foreign: &SimDisk, path: &Path, act: Act) {
    let good = disk.read_raw(path).unwrap();
    let put = |bytes: &[u8]| disk.write_raw(path, bytes);

    let special = |kind| {
        disk.remove(path).unwrap();
        disk.plant_special(path, kind);
    };

    match act {
        Act::Missing => disk.remove(path).unwrap(),
        Act::Empty => put(&[]),
        Act::Cut(bytes) => put(&good[..good.len().saturating_sub(bytes)]),
        Act::Half => put(&good[..good.len() / 2]),
        Act::Shifted => put(&[&[0; 8], good.as_slice()].concat()),
        Act::Twice => put(&[good.as_slice(), &good].concat()),
        Act::Zeroed => put(&vec![0; good.len()]),
        Act::Noise => {
            put(&good.iter().map(|byte| byte.wrapping_mul(97) ^ 0x5A).collect::<Vec<u8>>());
        }
        Act::Foreign => put(&foreign.read_raw(path).unwrap_or_default()),
        Act::Link => special(EntryKind::Link),
        Act::Fifo => special(EntryKind::Other),
        Act::Denied => disk.deny(path),
        Act::Unreadable(from, to) => disk.add_bad_range(path, from..to, BadMedia::Read),
    }
}

fn files_of(disk: &SimDisk) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    disk.files().into_iter().map(|path| (path.clone(), disk.read_raw(&path))).collect()
}

/// Every commit is right or an error; how many were errors.
fn read_all(
    victim: &Victim,
    what: &str,
    checkout: &dyn Fn(&Hash) -> Result<Option<Context>>,
) -> usize {
    let mut failed = 0;
    for (number, (hash, expected)) in victim.commits.iter().enumerate() {
        let found = checkout(hash).and_then(|context| match context {
            Some(context) => content_of(&context),
            None => panic!("{what}: commit {number} has vanished without a word"),
        });
        match found {
            Ok(found) => assert!(found == *expected, "{what}: commit {number} is another one"),
            Err(_) => failed += 1,
        }
    }
    failed
}

fn problems(disk: &Arc<SimDisk>) -> u64 {
    let shared: Arc<dyn Disk> = disk.clone();
    let engine = engine();
    let options = CheckOptions::default().index(&engine).hashes(true);
    let report = check(&shared, Path::new(DIR), &options, &mut |_| {});
    report.map_or(u64::MAX, |report| report.problem_count)
}

#[test]
fn hostile_files_give_right_data_or_an_error() {
    let victim = victim(1);
    let foreign = self::victim(2).disk;
    let files: Vec<PathBuf> =
        victim.disk.files().into_iter().filter(|path| path.starts_with(DIR)).collect();
    let kinds =
        ["control", "lock", "/chunk-", "/volume-00000000/volume", "index/tree", "index/log"];

    for kind in kinds {
        assert!(
            files.iter().any(|path| path.to_string_lossy().contains(kind)),
            "{kind}: {files:?}"
        );
    }

    let mut refused = 0;
    let mut in_part = 0;
    let mut repaired = 0;
    for path in &files {
        for one in ACTS {
            let what = format!("{} {one:?}", path.display());
            let disk = victim.disk.clone_disk();
            act(&disk, &foreign, path, one);
            let shared: Arc<dyn Disk> = disk.clone();
            let is_index = path.starts_with("/store/index");
            let before = files_of(&disk);

            let kept = |files: &BTreeMap<PathBuf, Option<Vec<u8>>>| -> Vec<PathBuf> {
                let changed = |path: &&PathBuf| before.get(*path) != files.get(*path);
                before.keys().chain(files.keys()).filter(changed).cloned().collect()
            };

            // A reader, which needs neither lock nor index.
            let failed = match StoreReader::open(Arc::clone(&shared), Path::new(DIR), 1 << 20) {
                Ok(reader) => read_all(&victim, &what, &|hash| reader.checkout(hash)),
                Err(_) => usize::MAX,
            };
            assert!(!is_index || failed == 0, "{what}: a reader has no need of the index");
            assert_eq!(kept(&files_of(&disk)), Vec::<PathBuf>::new(), "{what}: a reader");
            let found = problems(&disk);
            assert!(failed == 0 || found > 0, "{what}: a check finds what a reader does");
            let changed = kept(&files_of(&disk));
            let is_in_index = |path: &PathBuf| path.starts_with("/store/index");
            assert!(changed.iter().all(is_in_index), "{what}: a check changes {changed:?}");

            // A writer, and a repair that may lose nothing.
            let written = disk.clone_disk();
            let shared: Arc<dyn Disk> = written.clone();
            match open(&shared, &small()) {
                Ok(store) => {
                    assert_eq!(store.branch(b"main"), Some(victim.commits[23].0), "{what}");
                    let failed = read_all(&victim, &what, &|hash| store.checkout(hash));
                    in_part += usize::from(failed > 0);
                    let meta = Meta::tezos(100, "");
                    if let Ok(hash) = store.commit_to(b"new", &store.empty(), &meta) {
                        assert!(store.exists(&hash).unwrap(), "{what}");
                    }
                    store.close().ok();
                }
                Err(_) => refused += 1,
            }

            assert_eq!(written.read_raw("/outside").unwrap(), b"not ours");
            let shared: Arc<dyn Disk> = disk.clone();
            if repair(&shared, Path::new(DIR), &engine(), Loss::Refused, &mut |_| {}).is_ok() {
                repaired += usize::from(found > 0);
                let reader = StoreReader::open(Arc::clone(&shared), Path::new(DIR), 1 << 20);
                let reader = reader.unwrap_or_else(|error| panic!("{what}: repaired, {error}"));
                read_all(&victim, &what, &|hash| reader.checkout(hash));
                assert_eq!(reader.branch(b"main"), Some(victim.commits[23].0), "{what}");
            }

            assert_eq!(disk.read_raw("/outside").unwrap(), b"not ours");
        }
    }

    println!("{refused} refused, {in_part} read in part, {repaired} repaired");
    assert!(refused > 20 && in_part > 10 && repaired > 20, "{refused} {in_part} {repaired}");
}

/// Where a writer makes its next files, something stands already: it is not written through, and
/// not waited for.
#[test]
fn nothing_is_written_through_what_stands_in_the_place_of_a_new_file() {
    let victim = victim(1);
    let chunks = victim.disk.files();
    let last = chunks.iter().filter(|path| path.to_string_lossy().contains("/store/chunk-"));
    let number = last.clone().next_back().unwrap().to_string_lossy()[DIR.len() + 7..].to_owned();
    let next = u32::from_str_radix(&number, 16).unwrap() + 1;
    let places = [
        format!("{DIR}/chunk-{next:08x}"),
        format!("{DIR}/control.new"),
        format!("{DIR}/chunk-{:08x}.new", next - 1),
        format!("{DIR}/archive/volume-00000000/volume.new"),
        format!("{DIR}/archive/volume-00000001"),
        format!("{DIR}/index.old"),
    ];

    for place in places {
        for kind in [EntryKind::Link, EntryKind::Other] {
            let disk = victim.disk.clone_disk();
            disk.plant_special(&place, kind);
            let shared: Arc<dyn Disk> = disk.clone();

            if let Ok(store) = open(&shared, &small()) {
                assert_eq!(read_all(&victim, &place, &|hash| store.checkout(hash)), 0);
                store.split().ok();
                store.add_volume().ok();
                store.collect(&Retain::newest(2), &mut |_| GcPace::Go).ok();
                store.close().ok();
            }

            repair(&shared, Path::new(DIR), &engine(), Loss::Refused, &mut |_| {}).ok();
            match StoreReader::open(shared, Path::new(DIR), 1 << 20) {
                Ok(reader) => {
                    let failed = read_all(&victim, &place, &|hash| reader.checkout(hash));
                    assert_eq!(failed, 0, "{place}");
                }
                // A chunk that may follow is looked at, and is none.
                Err(error) => {
                    assert_eq!(error.kind().name(), "corrupt", "{place}");
                    assert!(place.contains("chunk-") && error.to_string().contains(&place));
                }
            }

            assert_eq!(disk.read_raw("/outside").unwrap(), b"not ours");
        }
    }
}

/// On a medium that nobody can write to, and on a full disk, everything can be read and checked.
#[test]
fn a_store_is_read_where_nothing_can_be_written() {
    let victim = victim(1);
    victim.disk.set_read_only(true);
    let shared: Arc<dyn Disk> = victim.disk.clone();
    let reader = Store::open_read_only(Arc::clone(&shared), Path::new(DIR), 1 << 20).unwrap();
    assert_eq!(read_all(&victim, "read-only", &|hash| reader.checkout(hash)), 0);
    assert_eq!(problems(&victim.disk), 0);
    let error = open(&shared, &small()).unwrap_err();
    assert_eq!(error.kind().name(), "read_only", "{error:?}");
}

fn real_store(dir: &Path) -> Hash {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let store = Store::create(disk, dir, &small()).unwrap();
    let mut context = store.empty();
    context.add(&["a"], *b"1").unwrap();
    let hash = store.commit_to(b"main", &context, &Meta::tezos(1, "")).unwrap();
    store.close().unwrap();
    hash
}

/// A repair, and an import, emptied the directory that a linked index led to; a lock, and the next
/// chunk, were written through links.
#[test]
fn no_link_is_followed_out_of_a_store() {
    let place = tempfile::tempdir().unwrap();
    let outside = place.path().join("outside");
    fs::create_dir_all(outside.join("sub")).unwrap();
    fs::write(outside.join("precious"), "mine").unwrap();
    fs::write(outside.join("sub/tree"), "mine").unwrap();

    let is_untouched = || {
        fs::read_to_string(outside.join("precious")).unwrap() == "mine"
            && fs::read_to_string(outside.join("sub/tree")).unwrap() == "mine"
            && fs::read_dir(&outside).unwrap().count() == 2
            && fs::read_dir(outside.join("sub")).unwrap().count() == 1
    };

    let disk: Arc<dyn Disk> = RealDisk::auto();
    let engine = engine();
    for (name, target) in [
        ("index", "sub"),
        ("lock", "precious"),
        ("chunk-00000001", "precious"),
        ("control", "precious"),
        ("control.new", "precious"),
        ("archive", "sub"),
        ("lost+found", "sub"),
    ] {
        let dir = place.path().join(format!("store-{name}"));
        let hash = real_store(&dir);
        let link = dir.join(name);

        if link.is_dir() {
            fs::remove_dir_all(&link).unwrap();
        } else if link.exists() {
            fs::remove_file(&link).unwrap();
        }

        symlink(outside.join(target), &link).unwrap();
        let check_options = CheckOptions::default().index(&engine).hashes(true);
        check(&disk, &dir, &check_options, &mut |_| {}).ok();
        assert!(is_untouched(), "{name}: check");

        if let Ok(store) = Store::open(Arc::clone(&disk), &dir, &small()) {
            assert!(store.exists(&hash).unwrap(), "{name}");
            store.split().ok();
            store.add_volume().ok();
            store.close().ok();
        }

        assert!(is_untouched(), "{name}: open");
        for loss in [Loss::Refused, Loss::Accepted] {
            repair(&disk, &dir, &engine, loss, &mut |_| {}).ok();
            assert!(is_untouched(), "{name}: repair");
        }

        let snapshot = place.path().join("tip");
        let source = place.path().join(format!("source-{name}"));
        let made = real_store(&source);
        let reader = StoreReader::open(Arc::clone(&disk), &source, 0).unwrap();
        reader.export(&made, &mut fs::File::create(&snapshot).unwrap()).unwrap();
        let target = place.path().join(format!("import-{name}"));
        fs::create_dir(&target).unwrap();
        fs::write(target.join("importing"), "").unwrap();
        symlink(&outside, target.join("index")).unwrap();
        let mut input = fs::File::open(&snapshot).unwrap();
        Store::import_new(Arc::clone(&disk), &target, &small(), &mut input).ok();

        assert!(is_untouched(), "{name}: import");
    }
}

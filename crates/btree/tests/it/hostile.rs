//! Hostile directories: links, special files, files that nobody may open, bad sectors, and files of
//! every kind that are missing, empty, cut, longer, shifted, or another's.
//!
//! Goal: every call gives the right entries or an error that says what is wrong; nothing outside of
//! the index is touched, and nothing is lost that was there. Method: a table of files times a table
//! of treatments, on the simulated disk; links on a real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::{
    Config, Error, Index, IndexReader, Loss, PAGE_SIZE, SortOptions, Sorter, Update, check, repair,
};
use terrane_io::BadMedia;
use terrane_io::EntryKind;
use terrane_io::FaultPlan;
use terrane_io::{Disk, ErrorKind, RealDisk, SimDisk};

use crate::damage::{Model, shared, tree_path};
use crate::model::DIR;

fn config() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(0).log_bytes_max(1 << 16)
}

fn path(file: &str) -> PathBuf {
    Path::new(DIR).join(file)
}

fn put(index: &Index, model: &mut Model, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let key = format!("{number:06}").into_bytes();
        let value = vec![number as u8; 40];
        let position = index.commit(&[Update::Replace(&key, &value)]).unwrap();
        index.sync_to(position).unwrap();
        model.insert(key, value);
    }
}

/// An index with leaves, nodes, two segments of log and a lease, whose process was killed.
fn killed() -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(5);
    let index = Index::create(shared(&disk), Path::new(DIR), &config()).unwrap();
    let mut model = Model::new();
    put(&index, &mut model, 0..600);
    index.checkpoint().unwrap();
    drop(IndexReader::open(shared(&disk), Path::new(DIR), &config()).unwrap());
    put(&index, &mut model, 600..700);
    (disk.process_kill(), model)
}

fn content(entries: Result<terrane_btree::Cursor, Error>) -> Result<Model, Error> {
    entries?.collect()
}

/// A change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    Missing,
    Empty,
    Halved,
    Longer,
    Shifted,
    Zeroed,
    Foreign,
    Link,
    Special,
    Denied,
    BadStart,
    BadEnd,
}

const TREATMENTS: [Treatment; 12] = [
    Treatment::Missing,
    Treatment::Empty,
    Treatment::Halved,
    Treatment::Longer,
    Treatment::Shifted,
    Treatment::Zeroed,
    Treatment::Foreign,
    Treatment::Link,
    Treatment::Special,
    Treatment::Denied,
    Treatment::BadStart,
    Treatment::BadEnd,
];

impl Treatment {
    fn apply(self, disk: &SimDisk, file: &Path) {
        let bytes = disk.read_raw(file).unwrap();
        let len = bytes.len() as u64;
        match self {
            Self::Missing => disk.remove(file).unwrap(),
            Self::Empty => disk.write_raw(file, &[]),
            Self::Halved => disk.write_raw(file, &bytes[..bytes.len() / 2]),
            Self::Longer => disk.write_raw(file, &[&bytes[..], &[0xA5; 700]].concat()),
            Self::Shifted => disk.write_raw(file, &[&[0x5A; 8], &bytes[..]].concat()),
            Self::Zeroed => disk.write_raw(file, &vec![0; bytes.len()]),
            Self::Foreign => disk.write_raw(file, &b"somebody else's text\n".repeat(500)),
            Self::Link => disk.plant_special(file, EntryKind::Link),
            Self::Special => disk.plant_special(file, EntryKind::Other),
            Self::Denied => disk.deny(file),
            Self::BadStart => disk.add_bad_range(file, 0..512.min(len), BadMedia::Read),
            Self::BadEnd => disk.add_bad_range(file, len.saturating_sub(600)..len, BadMedia::Both),
        }
    }
}

/// Whether an error names a file of the index, or the index itself.
fn names_a_place(error: &Error) -> bool {
    error.to_string().contains(DIR)
}

/// Every file in every state: the entries that there are, or an error.
#[test]
fn every_file_in_every_state_gives_the_entries_or_an_error() {
    let (disk, model) = killed();
    let dir = Path::new(DIR);
    let mut right = 0;
    let mut refused = 0;
    let mut mended = 0;
    for file in disk.files() {
        for treatment in TREATMENTS {
            let what = format!("{} {treatment:?}", file.display());
            let disk = disk.clone_disk();
            disk.write_raw("/outside/precious", b"precious");
            if disk.read_raw(&file).unwrap().is_empty() && treatment == Treatment::BadStart {
                continue;
            }
            treatment.apply(&disk, &file);
            let see = |found: Result<Model, Error>| match found {
                Ok(found) => assert!(found == model, "{what}: other entries"),
                Err(error) => {
                    assert!(names_a_place(&error), "{what}: {error}");
                    let says = error.kind();
                    assert!(
                        matches!(
                            says,
                            ErrorKind::Corrupt
                                | ErrorKind::Permission
                                | ErrorKind::NotFound
                                | ErrorKind::InvalidInput
                                | ErrorKind::Io
                        ),
                        "{what}: {says:?}: {error}"
                    );
                }
            };
            let reader = IndexReader::open(shared(&disk), dir, &config());
            see(reader.and_then(|reader| content(reader.iter())));
            let checked = check(&shared(&disk), dir, &mut |_, _| {});
            let is_whole = checked.as_ref().is_ok_and(|report| report.problems.is_empty());
            // A writer of the same: it may go on, or refuses and loses nothing.
            let written = disk.clone_disk();
            let opened = Index::open(shared(&written), dir, &config());
            let is_open = opened.is_ok();
            see(opened.and_then(|index| {
                let found = content(index.iter());
                if is_whole && found.is_ok() {
                    index.replace(b"more", b"").unwrap_or_else(|error| panic!("{what}: {error}"));
                    index.remove(b"more").unwrap_or_else(|error| panic!("{what}: {error}"));
                    let _ = index.close();
                }
                found
            }));
            if is_open {
                right += 1;
            } else {
                refused += 1;
            }
            assert_eq!(written.read_raw("/outside/precious").unwrap(), b"precious");
            // A repair that loses nothing, and one that does.
            for loss in [Loss::Refused, Loss::Accepted] {
                match repair(&shared(&disk), dir, loss, |_, _| {}) {
                    Ok(report) if report.was_refused => assert_eq!(loss, Loss::Refused, "{what}"),
                    Ok(report) => {
                        let index = Index::open(shared(&disk), dir, &config());
                        let index = index.unwrap_or_else(|error| panic!("{what}: {error}"));
                        let found = content(index.iter()).unwrap();
                        let loses = report.tree_lost
                            || !(report.lost.is_empty()
                                && report.stale.is_empty()
                                && report.log_lost.is_empty());
                        assert!(loses || found == model, "{what}: {report:?}");
                        assert!(found.iter().all(|(key, value)| model.get(key) == Some(value)));
                        mended += 1;
                        break;
                    }
                    Err(error) => assert!(names_a_place(&error), "{what}: {error}"),
                }
            }
        }
    }

    println!("{right} right, {refused} refused, {mended} mended");
    assert!(right > 15 && refused > 15 && mended > 15, "{right} {refused} {mended}");
}

/// One superblock that the device does not give stopped every call, the repair included.
#[test]
fn one_unreadable_superblock_is_a_damaged_copy() {
    let (disk, model) = killed();
    let dir = Path::new(DIR);
    for page in 0..2 {
        let disk = disk.clone_disk();
        let range = page * PAGE_SIZE as u64..(page + 1) * PAGE_SIZE as u64;
        disk.add_bad_range(tree_path(), range.clone(), BadMedia::Read);
        let report = check(&shared(&disk), dir, &mut |_, _| {}).unwrap();
        assert_eq!(report.damaged_superblocks, 1);
        assert!(report.problems.iter().any(|problem| problem.what.page == page), "{report:?}");
        let reader = IndexReader::open(shared(&disk), dir, &config());
        let reader = reader.and_then(|reader| content(reader.iter()));
        // The older tree may have lost pages to the newer one; then it says so.
        assert!(
            reader.map_or_else(|error| error.kind() == ErrorKind::Corrupt, |found| found == model)
        );
        let report = repair(&shared(&disk), dir, Loss::Refused, |_, _| {}).unwrap();
        assert!(!report.was_refused && !report.was_whole, "{report:?}");
        disk.heal();
        let report = check(&shared(&disk), dir, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, []);
        let index = Index::open(shared(&disk), dir, &config()).unwrap();
        assert_eq!(content(index.iter()).unwrap(), model);
    }
}

/// A check stopped at the first sector that could not be read.
#[test]
fn a_check_names_every_unreadable_page() {
    let (disk, _) = killed();
    let leaves = crate::damage::pages_of(&disk, |kind| kind == crate::damage::LEAF);
    let at = |page: usize| (page * PAGE_SIZE) as u64;
    for &page in &leaves {
        disk.add_bad_range(tree_path(), at(page) + 512..at(page) + 1024, BadMedia::Both);
    }

    let is_segment = |file: &PathBuf| file.starts_with(path("log"));
    for segment in disk.files().into_iter().filter(is_segment) {
        disk.add_bad_range(segment, 40..1 << 20, BadMedia::Read);
    }

    let report = check(&shared(&disk), Path::new(DIR), &mut |_, _| {}).unwrap();
    let named = report.problems.iter().filter(|problem| problem.keys.is_some()).count();
    assert!(named > 3 && report.problems.len() > named, "{report:?}");
}

/// Nothing could be read where no lease can be written.
#[test]
fn a_read_only_a_full_and_a_foreign_directory_can_be_read_and_checked() {
    let (disk, model) = killed();
    let dir = Path::new(DIR);
    let read = |disk: &Arc<SimDisk>| {
        let reader = Index::open_read_only(shared(disk), dir, &config())?;
        content(reader.iter())
    };

    let read_only = disk.clone_disk();
    read_only.set_read_only(true);
    assert_eq!(read(&read_only).unwrap(), model);
    assert_eq!(check(&shared(&read_only), dir, &mut |_, _| {}).unwrap().problems, []);
    let error = Index::open(shared(&read_only), dir, &config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    let error = repair(&shared(&read_only), dir, Loss::Refused, |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");

    // A full disk, on which no reader has been before.
    let full = disk.clone_disk();
    full.remove(&path("readers/0.lease")).unwrap();
    full.set_plan(FaultPlan::capacity(0));
    assert_eq!(read(&full).unwrap(), model);

    // Its own lease is another user's.
    let foreign = disk.clone_disk();
    foreign.deny(path("readers/0.lease"));
    assert_eq!(read(&foreign).unwrap(), model);

    // The shared lock keeps writers away, and only as long as the reader lives.
    let shared_disk = disk.clone_disk();
    shared_disk.deny(path("readers/0.lease"));
    let reader = Index::open_read_only(shared(&shared_disk), dir, &config()).unwrap();
    let error = Index::open(shared(&shared_disk), dir, &config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    drop(reader);
    drop(Index::open(shared(&shared_disk), dir, &config()).unwrap());
}

/// A reader without a lease beside a writer sees its state or learns that it is gone; never wrong
/// entries.
#[test]
fn a_reader_without_a_lease_beside_a_writer_never_sees_wrong_entries() {
    let (disk, mut model) = killed();
    let dir = Path::new(DIR);
    disk.deny(path("readers/0.lease"));
    let index = Index::open(shared(&disk), dir, &config()).unwrap();
    let reader = Index::open_read_only(shared(&disk), dir, &config()).unwrap();
    let before = model.clone();
    let mut stale = 0;
    for round in 0..6 {
        put(&index, &mut model, round * 100..round * 100 + 300);
        index.compact().unwrap();
        match content(reader.iter()) {
            Ok(found) => assert!(found == before),
            Err(Error::StaleReader { .. }) => stale += 1,
            Err(error) => panic!("{error}"),
        }
    }

    println!("{stale} of 6 stale");
    reader.sync().unwrap();
    assert!(content(reader.iter()).is_ok_and(|found| found == model));
}

/// Links in the place of files led calls out of the index: what they pointed at was overwritten or
/// emptied.
#[test]
fn links_of_a_real_directory_are_refused_and_their_targets_stay() {
    use std::fs;
    use std::os::unix::fs::symlink;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("index");
    let index = Index::create(RealDisk::auto(), &dir, &config()).unwrap();
    index.replace(b"a", b"1").unwrap();
    index.close().unwrap();
    drop(index);
    let precious = place.path().join("precious");
    let segment = fs::read_dir(dir.join("log")).unwrap().next().unwrap().unwrap().path();
    for name in ["lock", "tree", "synced", "readers/0.lease"].map(|name| dir.join(name)) {
        let kept = fs::read(&name).ok();
        fs::write(&precious, b"precious").unwrap();
        let _ = fs::remove_file(&name);
        symlink(&precious, &name).unwrap();
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let opened = Index::open(disk.clone(), &dir, &config());
        let read = IndexReader::open(disk.clone(), &dir, &config());
        assert!(opened.is_err() || read.is_err(), "{}", name.display());
        let error = opened.err().or_else(|| read.err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(name.to_str().unwrap()), "{error}");
        let _ = repair(&disk, &dir, Loss::Accepted, |_, _| {});
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        fs::remove_file(&name).unwrap();
        if let Some(bytes) = kept {
            fs::write(&name, bytes).unwrap();
        }
    }

    // A link where the next segment goes, and one in the place of the segment's directory.
    let kept = fs::read(&segment).unwrap();
    fs::remove_file(&segment).unwrap();
    symlink(&precious, &segment).unwrap();
    assert!(Index::open(RealDisk::auto(), &dir, &config()).is_err());
    fs::remove_file(&segment).unwrap();
    fs::write(&segment, kept).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");

    // The directory itself may be reached through a link.
    let link = place.path().join("link");
    symlink(&dir, &link).unwrap();
    let index = Index::open(RealDisk::auto(), &link, &config()).unwrap();
    assert_eq!(index.find(b"a").unwrap(), Some(b"1".to_vec()));
}

/// A run of a sort was written through whatever link had its name.
#[test]
fn a_sort_writes_through_no_link() {
    use std::fs;
    use std::os::unix::fs::symlink;
    let place = tempfile::tempdir().unwrap();
    let precious = place.path().join("precious");
    fs::write(&precious, b"precious").unwrap();
    let dir = place.path().join("sort");
    fs::create_dir(&dir).unwrap();
    let options = || {
        let mut options = SortOptions::new(&dir, 1);
        (options.memory_bytes, options.fan_in) = (64 << 10, 4);
        options
    };

    symlink(&precious, dir.join("sort.lock")).unwrap();
    let error = Sorter::open(RealDisk::auto(), options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    fs::remove_file(dir.join("sort.lock")).unwrap();

    symlink(&precious, dir.join("sort.00000000.run")).unwrap();
    symlink(&precious, dir.join("sort.manifest.tmp")).unwrap();
    let mut sorter = Sorter::open(RealDisk::auto(), options()).unwrap();
    for number in 0..4_000_u64 {
        sorter.push(&number.to_le_bytes(), b"some value of a record").unwrap();
    }

    assert!(sorter.stats().runs > 0);
    let mut sorted = sorter.finish(&mut |_| {}).unwrap();
    assert!(terrane_btree::Records::next_ref(&mut sorted).unwrap().is_some());
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

/// Cursors and snapshots that are left over keep neither the lock nor the pages of a closed index.
#[test]
fn handles_that_are_left_over_do_not_keep_the_index_locked() {
    let (disk, model) = killed();
    let index = Index::open(shared(&disk), Path::new(DIR), &config()).unwrap();
    let snapshot = index.snapshot().unwrap();
    let mut cursor = index.iter().unwrap();
    index.close().unwrap();
    let again = Index::open(shared(&disk), Path::new(DIR), &config()).unwrap();
    assert_eq!(content(again.iter()).unwrap(), model);
    assert!(matches!(snapshot.find(b"000001"), Err(Error::Closed)));
    assert!(matches!(cursor.next_ref(), Err(Error::Closed)));
}

/// A path that is relative means the same after a change of the working directory, as it is made
/// absolute at once.
#[test]
fn errors_name_the_absolute_path_of_an_index() {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let error = Index::open(disk, Path::new("no-such-index-here"), &config()).unwrap_err();
    let Error::NotFound { path } = &error else { panic!("{error}") };
    assert!(path.is_absolute() && path.ends_with("no-such-index-here"), "{error}");
}

/// The opening of a FIFO in the place of an input waited for ever.
#[test]
fn a_fifo_in_the_place_of_an_input_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("index");
    std::fs::create_dir(&data).unwrap();
    let fifo = data.join("data");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let error = terrane_btree::MirageIndex::open(disk.as_ref(), place.path(), 32, 13).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("data"), "{error}");
}

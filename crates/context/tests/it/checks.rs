//! Checks and repairs: damage is found and named, and derived files are rebuilt.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, CheckReport, Error, GcPace, Hash, IndexEngine, Indexing, Loss, Meta, Options,
    Retain, Store, check, repair,
};
use terrane_io::{Disk, SimDisk};

const DIR: &str = "/store";

fn index() -> Arc<dyn IndexEngine> {
    Arc::new(BtreeIndexes::new(1 << 20))
}

fn options(indexing: Indexing) -> Options {
    Options::new(index()).chunk_bytes(16 << 10).indexing(indexing)
}

/// A closed store of 60 commits, the first ones collected.
fn filled(indexing: Indexing) -> (Arc<SimDisk>, Vec<Hash>) {
    let disk = SimDisk::new(1);
    let shared: Arc<dyn Disk> = disk.clone();
    let store = Store::create(shared, Path::new(DIR), &options(indexing)).unwrap();
    let mut context = store.empty();
    let mut commits = Vec::new();

    for block in 0..60u32 {
        for name in 0..15u32 {
            let path = ["data".to_owned(), (block * 31 % 400 + name).to_string(), "v".to_owned()];
            context.add(&path, block.to_le_bytes()).unwrap();
        }
        context.add(&["data", "large"], vec![block as u8; 200]).unwrap();
        let hash = store.commit(&context, &Meta::tezos(i64::from(block), "")).unwrap();
        context = store.checkout(&hash).unwrap().unwrap();
        commits.push(hash);
    }

    store.set_branch(b"main", &commits[59]).unwrap();
    store.set_branch(b"old", &commits[20]).unwrap();
    drop(context);
    store.collect(&Retain::newest(30), &mut |_| GcPace::Go).unwrap();
    store.close().unwrap();
    let mut kept = vec![commits[20]];
    kept.extend_from_slice(&commits[30..]);

    (disk, kept)
}

fn checked(disk: &Arc<SimDisk>) -> CheckReport {
    let shared: Arc<dyn Disk> = disk.clone();
    let engine = index();
    let options = CheckOptions::default().index(&engine).hashes(true);
    check(&shared, Path::new(DIR), &options, &mut |_| {}).unwrap()
}

fn repaired(disk: &Arc<SimDisk>) -> terrane_context::RepairReport {
    let shared: Arc<dyn Disk> = disk.clone();
    repair(&shared, Path::new(DIR), &index(), Loss::Refused, &mut |_| {}).unwrap()
}

fn open(disk: &Arc<SimDisk>, indexing: Indexing) -> Result<Store, Error> {
    Store::open(disk.clone(), Path::new(DIR), &options(indexing))
}

#[test]
fn a_sound_store_has_no_problems() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let (disk, kept) = filled(indexing);
        let report = checked(&disk);
        assert_eq!(report.problems, [], "{indexing:?}");
        assert_eq!(report.commits, kept.len() as u64);
        assert!(report.objects > 300 && report.kinds.deltas.count > 10, "{report:?}");
        assert!(report.kinds.values.count >= 31 && report.chunks > 2, "{report:?}");
    }
}

#[test]
fn a_lost_index_is_made_again() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let (disk, kept) = filled(indexing);
        let before = repaired(&disk);
        assert_eq!(before.commits, kept.len() as u64);
        assert!(!before.control);
        assert_eq!(before.indexed > before.commits, indexing == Indexing::Always);
        let shared: Arc<dyn Disk> = disk.clone();
        index().remove(&*shared, &Path::new(DIR).join("index")).unwrap();
        let report = checked(&disk);
        assert_eq!(report.problem_count, 1, "one loss is one problem: {:?}", report.problems);
        assert!(report.problems[0].what.contains("--repair"), "{}", report.problems[0]);
        let index_files =
            disk.files().iter().filter(|path| path.starts_with("/store/index")).count();
        assert_eq!(index_files, 0, "a check makes nothing");
        assert_eq!(repaired(&disk), before, "the same once more");
        assert_eq!(checked(&disk).problems, []);
        let store = open(&disk, indexing).unwrap();

        assert!(kept.iter().all(|hash| store.exists(hash).unwrap()));
    }
}

#[test]
fn a_lost_control_record_is_made_again() {
    let (disk, kept) = filled(Indexing::Minimal);
    let control = Path::new(DIR).join("control");
    let good = disk.read_raw(&control).unwrap();

    for damage in 0..3 {
        let mut bytes = good.clone();
        match damage {
            0 => bytes.truncate(0),
            1 => bytes.fill(0xA5),
            _ => {
                for page in [100, 4096 + 100] {
                    bytes[page] ^= 1;
                }
            }
        }

        disk.write_raw(&control, &bytes);
        assert!(open(&disk, Indexing::Minimal).is_err());
        assert!(checked(&disk).problem_count > 0);
        let report = repaired(&disk);
        assert!(report.control);
        assert_eq!((report.commits, report.branches), (kept.len() as u64, 2));

        assert_eq!(checked(&disk).problems, []);
    }

    let store = open(&disk, Indexing::Minimal).unwrap();
    assert_eq!(store.branch(b"old"), Some(kept[0]));
    let newest: Vec<Hash> = store.newest().map(|commit| commit.unwrap().hash).collect();
    assert!(newest.iter().eq(kept.iter().rev()));
    let mut context = store.checkout(&kept[5]).unwrap().unwrap();
    context.add(&["new"], *b"1").unwrap();
    store.commit(&context, &Meta::tezos(99, "")).unwrap();
    store.close().unwrap();
    drop((store, context));

    assert_eq!(checked(&disk).problems, []);
}

/// Frames whose heads are damaged were left out without a word, and what follows them in the chunk.
#[test]
fn a_damaged_head_of_a_frame_is_named() {
    let (disk, _) = filled(Indexing::Minimal);
    let mut heads = 0;
    let chunks = disk.files().into_iter().filter(|path| path.to_string_lossy().contains("chunk-"));

    for path in chunks {
        let bytes = disk.read_raw(&path).unwrap();
        // In a compacted chunk there may be what only looks like one.
        let is_as_written = bytes[32] == 1;
        let starts = (64..bytes.len()).step_by(8).filter(|&at| bytes[at..].starts_with(b"TMF1"));

        for at in starts.filter(|_| is_as_written) {
            let damaged = disk.clone_disk();
            damaged.flip_bit(&path, at as u64 * 8 + 40);
            let report = checked(&damaged);
            let unit = u32::try_from(at / 8).unwrap();
            let named = report.problems.iter().any(|problem| {
                problem.path == path && problem.address.is_some_and(|at| at.unit == unit)
            });
            assert!(named, "{} {at}: {:?}", path.display(), report.problems);
            heads += 1;
        }
    }

    assert!(heads > 20, "{heads}");
}

#[test]
fn a_damaged_object_is_named_with_the_path_that_leads_there() {
    let (disk, _) = filled(Indexing::Minimal);
    let chunks: Vec<_> =
        disk.files().into_iter().filter(|path| path.to_string_lossy().contains("chunk-")).collect();
    let value = vec![45u8; 200];
    let (path, at) = chunks
        .iter()
        .find_map(|path| {
            let bytes = disk.read_raw(path).unwrap();
            let at = bytes.windows(value.len()).position(|window| window == value)?;
            Some((path, at))
        })
        .expect("the large value of a commit that is kept");
    disk.flip_bit(path, at as u64 * 8 + 300);
    let report = checked(&disk);
    assert_eq!(report.problem_count, 1, "one damage counts once: {:?}", report.problems);
    let named: Vec<_> =
        report.problems.iter().filter_map(|problem| problem.tree_path.as_deref()).collect();
    assert_eq!(named, ["/data/large"]);
    assert!(
        report.problems.iter().all(|problem| problem.path == *path && problem.address.is_some())
    );
    let store = open(&disk, Indexing::Minimal).unwrap();
    let mut damaged = 0;

    for commit in store.newest() {
        let context = store.checkout(&commit.unwrap().hash).unwrap().unwrap();
        damaged +=
            usize::from(matches!(context.find(&["data", "large"]), Err(Error::Corrupt { .. })));
        assert!(context.length(&["data"]).unwrap() > 30, "the rest can be used");
    }

    assert_eq!(damaged, 1);
}

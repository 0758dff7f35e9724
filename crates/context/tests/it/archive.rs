//! Archives: collections of a store with volumes move garbage to a volume, and every commit stays
//! readable, by writers, readers, exports and checks, after any collections, moves and losses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_backends::BtreeIndexes;
use terrane_context::{
    CheckOptions, CheckReport, Error, GcPace, Hash, IndexEngine, Indexing, Loss, Meta, Options,
    Retain, Store, StoreReader, check, repair,
};
use terrane_io::{Disk, SimDisk};

use crate::script::{Content, DIR, content_of, create, go, open, options, steps_of};

/// A store with the commits that it must have.
struct Bench {
    disk: Arc<SimDisk>,
    options: Options,
    store: Store,
    commits: Vec<(Hash, Content)>,
}

impl Bench {
    fn new(options: Options) -> Self {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let store = create(&shared, &options).unwrap();
        Self { disk, options, store, commits: Vec::new() }
    }

    fn shared(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    fn reopen(&mut self) {
        self.store.close().unwrap();
        self.store = open(&self.shared(), &self.options).unwrap();
    }

    /// Commits a child of a commit, or of nothing.
    fn commit(&mut self, parent: Option<usize>) {
        let number = self.commits.len();
        let (mut context, mut content) = match parent {
            Some(parent) => {
                let (hash, content) = &self.commits[parent];
                (self.store.checkout(hash).unwrap().unwrap(), content.clone())
            }
            None => (self.store.empty(), Content::new()),
        };
        for name in 0..20 {
            let path = format!("data/{}/{}", (number * 37 + name * 11) % 300, name % 3);
            let value = vec![number as u8; [3, 30, 90][name % 3]];
            context.add(&steps_of(&path), value.as_slice()).unwrap();
            content.insert(path, value);
        }

        let date = i64::try_from(number).unwrap();
        let hash = self.store.commit(&context, &Meta::tezos(date, "")).unwrap();
        self.commits.push((hash, content));
    }

    fn chain(&mut self, count: usize) {
        for _ in 0..count {
            self.commit(self.commits.len().checked_sub(1));
        }
    }

    fn bytes(&self, part: &str) -> u64 {
        let files = self.disk.files().into_iter();
        let of_part = files.filter(|path| path.to_string_lossy().contains(part));
        of_part.map(|path| self.disk.read_raw(&path).unwrap().len() as u64).sum()
    }

    fn upper_bytes(&self) -> u64 {
        self.bytes("/store/chunk-")
    }

    /// Every commit is there with its content, for writer and reader, in the order in which they
    /// were made.
    fn check(&self) {
        let reader = StoreReader::open(self.shared(), Path::new(DIR), 1 << 20).unwrap();
        for (number, (hash, content)) in self.commits.iter().enumerate() {
            for context in [self.store.checkout(hash).unwrap(), reader.checkout(hash).unwrap()] {
                let context = context.unwrap_or_else(|| panic!("commit {number} is there"));
                assert!(content_of(&context).unwrap() == *content, "commit {number}");
            }
        }
        let newest = |hashes: Vec<Hash>| {
            assert!(hashes.iter().eq(self.commits.iter().rev().map(|(hash, _)| hash)));
        };
        newest(self.store.newest().map(|commit| commit.unwrap().hash).collect());
        newest(reader.newest().map(|commit| commit.unwrap().hash).collect());
    }

    /// A check of the closed store.
    fn report(&self) -> CheckReport {
        checked(&self.shared())
    }
}

fn checked(disk: &Arc<dyn Disk>) -> CheckReport {
    let engine: Arc<dyn IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
    let options = CheckOptions::default().index(&engine).hashes(true);
    check(disk, Path::new(DIR), &options, &mut |_| {}).unwrap()
}

#[test]
fn after_two_collections_into_two_volumes_all_old_commits_are_readable() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let mut bench = Bench::new(options().indexing(indexing));
        bench.chain(60);
        let first = bench.store.add_volume().unwrap();
        assert_eq!(first, Path::new(DIR).join("archive/volume-00000000"));
        let before = bench.upper_bytes();
        let report = bench.store.collect(&Retain::newest(3), &mut go).unwrap();
        assert_eq!((report.kept, report.collected), (3, 0), "{report:?}");
        assert!(report.compacted + report.removed > 5, "{report:?}");
        assert!(bench.upper_bytes() * 3 < before, "{before} {report:?}");
        let volume = bench.bytes("/volume-00000000/chunk-");
        assert_eq!(volume, report.archived_bytes);
        assert!(volume > before / 2, "{volume} {before}");
        bench.check();

        bench.chain(40);
        let second = bench.store.add_volume().unwrap();
        assert_eq!(bench.store.volumes(), [first, second]);
        let report = bench.store.collect(&Retain::newest(2), &mut go).unwrap();
        assert_eq!(bench.bytes("/volume-00000000/chunk-"), volume, "a volume is only appended to");
        assert_eq!(bench.bytes("/volume-00000001/chunk-"), report.archived_bytes);
        assert!(report.archived_bytes > 10_000, "{report:?}");
        bench.check();
        bench.reopen();
        bench.check();

        // Nothing is moved twice.
        let again = bench.store.collect(&Retain::newest(2), &mut go).unwrap();
        assert!(again.archived_bytes < report.archived_bytes / 10, "{again:?}");

        // Work goes on from archived commits, and what comes of it is archived in turn.
        bench.commit(Some(5));
        bench.commit(Some(60));
        bench.store.set_branch(b"old", &bench.commits[5].0).unwrap();
        bench.store.collect(&Retain::newest(2), &mut go).unwrap();
        bench.store.collect(&Retain::default(), &mut go).unwrap();
        bench.check();
        bench.store.close().unwrap();
        let report = bench.report();
        assert_eq!(report.problems, [], "{indexing:?}");

        assert_eq!(report.commits, 102);
    }
}

#[test]
fn a_volume_is_added_only_behind_one_that_is_in_use() {
    let mut bench = Bench::new(options());
    bench.chain(20);
    let first = bench.store.add_volume().unwrap();
    let again = bench.store.add_volume();
    assert!(matches!(&again, Err(Error::EmptyVolume { path }) if *path == first), "{again:?}");
    let store = &bench.store;
    let mut during = None;

    let mut pace = |_: &terrane_context::GcProgress| {
        during.get_or_insert_with(|| store.add_volume());
        GcPace::Go
    };

    store.collect(&Retain::newest(2), &mut pace).unwrap();
    assert!(matches!(during, Some(Err(Error::GcRunning))), "{during:?}");
    bench.store.add_volume().unwrap();
    assert!(matches!(bench.store.add_volume(), Err(Error::EmptyVolume { .. })));

    // Who only reads has no such call; who is not the writer does not become one.
    let second = open(&bench.shared(), &bench.options);
    assert!(matches!(second, Err(Error::Locked { .. })));
    bench.reopen();
    assert_eq!(bench.store.volumes().len(), 2);
    bench.store.close().unwrap();

    assert!(matches!(bench.store.add_volume(), Err(Error::Closed)));
}

/// A half removed commit of a collection without an archive is no base for an archive.
#[test]
fn a_volume_waits_for_the_end_of_a_collection_that_was_interrupted() {
    let mut bench = Bench::new(options());
    bench.chain(40);

    let mut pace = |progress: &terrane_context::GcProgress| match progress.phase {
        terrane_context::GcPhase::Mark => GcPace::Go,
        terrane_context::GcPhase::Reclaim => GcPace::Cancel,
    };

    let cancelled = bench.store.collect(&Retain::newest(2), &mut pace);
    assert!(matches!(cancelled, Err(Error::GcCancelled)));
    bench.commits.drain(..38);
    assert!(matches!(bench.store.add_volume(), Err(Error::GcUnfinished)));
    bench.store.collect(&Retain::everything(), &mut go).unwrap();
    bench.store.add_volume().unwrap();
    bench.commit(None);
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();

    bench.check();
}

#[test]
fn an_archiving_collection_can_be_cancelled_anywhere_and_is_gone_on_with() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    bench.store.add_volume().unwrap();
    let mut cancelled = 0;

    for rounds in 0.. {
        let mut left = rounds;
        let mut pace = |_: &terrane_context::GcProgress| {
            left -= 1;
            if left < 0 { GcPace::Cancel } else { GcPace::Go }
        };
        match bench.store.collect(&Retain::newest(2), &mut pace) {
            Ok(_) => break,
            Err(Error::GcCancelled) => cancelled += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(!bench.store.has_unfinished_collection());
    }

    assert!(cancelled > 20, "{cancelled}");
    bench.check();
    let mut strays = bench.disk.files();
    strays.retain(|path| path.to_string_lossy().ends_with(".new"));
    assert_eq!(strays, Vec::<PathBuf>::new());
    bench.store.close().unwrap();

    assert_eq!(bench.report().problems, []);
}

/// A reader that was there before finds what has moved meanwhile, without looking at the control
/// record again.
#[test]
fn a_context_of_a_reader_goes_on_while_its_objects_move() {
    let mut bench = Bench::new(options());
    bench.chain(50);
    let reader = StoreReader::open(bench.shared(), Path::new(DIR), 0).unwrap();
    let contexts = [3, 30, 48].map(|number| {
        let (hash, content) = bench.commits[number].clone();
        (reader.checkout(&hash).unwrap().unwrap(), content)
    });

    for (keep, (context, content)) in [20, 10, 1].into_iter().zip(&contexts) {
        bench.store.add_volume().unwrap();
        let report = bench.store.collect(&Retain::newest(keep), &mut go).unwrap();
        assert!(report.archived_bytes > 0);
        assert!(content_of(context).unwrap() == *content, "{keep} are kept");
    }

    assert!(reader.exists(&bench.commits[0].0).unwrap());
}

#[test]
fn an_archived_commit_is_exported_and_imported() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    bench.store.add_volume().unwrap();
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    let reader = StoreReader::open(bench.shared(), Path::new(DIR), 1 << 20).unwrap();
    let (hash, content) = &bench.commits[2];
    let mut stream = Vec::new();
    reader.export(hash, &mut stream).unwrap();
    let (other, dir) = (SimDisk::new(2), Path::new("/other"));
    let mut source = stream.as_slice();
    let (store, snapshot) = Store::import_new(other, dir, &bench.options, &mut source).unwrap();
    assert_eq!(snapshot.commit, *hash);
    let context = store.checkout(hash).unwrap().unwrap();

    assert!(content_of(&context).unwrap() == *content);
}

#[test]
fn a_check_names_what_is_damaged_or_missing_in_an_archive() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    bench.store.add_volume().unwrap();
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    bench.store.close().unwrap();
    assert_eq!(bench.report().problems, []);
    let parts: Vec<PathBuf> = bench
        .disk
        .files()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("/volume-00000000/chunk-"))
        .collect();
    assert!(parts.len() > 3, "{parts:?}");

    for part in &parts {
        let damaged = bench.disk.clone_disk();
        damaged.flip_bit(part, 64 * 8 + 100);
        let shared: Arc<dyn Disk> = damaged;
        let report = checked(&shared);
        assert!(report.problems.iter().any(|problem| problem.path == *part), "{report:?}");
    }

    let lost: Arc<dyn Disk> = bench.disk.clone_disk();
    lost.remove(&parts[0]).unwrap();
    let report = checked(&lost);
    assert!(report.problems.iter().any(|problem| problem.what.contains("collected")), "{report:?}");

    // The rest can be used.
    let store = open(&lost, &bench.options).unwrap();
    let (hash, content) = bench.commits.last().unwrap();
    assert!(content_of(&store.checkout(hash).unwrap().unwrap()).unwrap() == *content);
    drop(store);
    for part in &parts {
        lost.remove(part).ok();
    }
    lost.remove(&parts[0].with_file_name("volume")).unwrap();

    let missing = |report: &CheckReport| {
        let dir = parts[0].parent().unwrap();
        report.problems.iter().any(|problem| problem.path == dir && problem.what.contains("mount"))
    };

    assert!(missing(&checked(&lost)), "the directory alone is a mount point");
    lost.remove_dir(parts[0].parent().unwrap()).unwrap();
    assert!(missing(&checked(&lost)));
}

/// A volume that is lost, or whose disk is not mounted, is named by who needs it; the rest can be
/// used.
#[test]
fn a_read_of_what_was_archived_names_the_volume_that_is_missing() {
    let mut bench = Bench::new(options());
    let first = bench.store.add_volume().unwrap();
    bench.chain(20);
    bench.store.collect(&Retain::newest(1), &mut go).unwrap();
    bench.store.add_volume().unwrap();
    bench.chain(1);
    bench.store.close().unwrap();
    let (old, _) = bench.commits[0];
    let (newest, content) = bench.commits.last().unwrap();

    for is_mount_point in [true, false] {
        let disk: Arc<dyn Disk> = bench.disk.clone_disk();
        for entry in disk.list(&first).unwrap() {
            disk.remove(&first.join(entry.name)).unwrap();
        }
        if !is_mount_point {
            disk.remove_dir(&first).unwrap();
        }
        let store = open(&disk, &bench.options).unwrap();
        let reader = StoreReader::open(Arc::clone(&disk), Path::new(DIR), 1 << 20).unwrap();

        for outcome in [store.checkout(&old), reader.checkout(&old)] {
            let error = outcome.unwrap_err();
            assert!(
                matches!(&error, Error::VolumeMissing { path, .. } if *path == first),
                "{error}"
            );
        }

        let checked_out = store.checkout(newest).unwrap().unwrap();
        assert!(content_of(&checked_out).unwrap() == *content);
    }
}

#[test]
fn index_and_control_record_of_an_archive_are_made_again() {
    for indexing in [Indexing::Minimal, Indexing::Always] {
        let mut bench = Bench::new(options().indexing(indexing));
        bench.chain(40);
        bench.store.add_volume().unwrap();
        bench.store.collect(&Retain::newest(1), &mut go).unwrap();
        bench.store.close().unwrap();
        let shared = bench.shared();
        let engine: Arc<dyn IndexEngine> = Arc::new(BtreeIndexes::new(1 << 20));
        bench.disk.write_raw(Path::new(DIR).join("control"), &[]);
        let report = repair(&shared, Path::new(DIR), &engine, Loss::Refused, &mut |_| {}).unwrap();
        assert!(report.control && report.commits == 40, "{report:?}");
        assert_eq!(report.indexed > 1000, indexing == Indexing::Always, "{report:?}");
        assert_eq!(bench.report().problems, []);
        bench.store = open(&shared, &bench.options).unwrap();
        assert_eq!(bench.store.volumes().len(), 1);

        bench.check();
    }
}

/// Each collection once went over all commits that were ever made, and failed at the first that
/// could not be read. The oldest ones are out of reach here.
#[test]
fn a_collection_looks_at_no_archived_commit_but_those_that_are_kept() {
    let mut bench = Bench::new(options());
    bench.chain(60);
    bench.store.set_branch(b"old", &bench.commits[55].0).unwrap();
    bench.store.add_volume().unwrap();
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    bench.store.add_volume().unwrap();

    for _ in 0..20 {
        bench.chain(5);
        bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    }

    bench.check();
    bench.store.close().unwrap();
    for file in bench.disk.files() {
        if file.to_string_lossy().contains("/volume-00000000/chunk-") {
            bench.disk.remove(&file).unwrap();
        }
    }

    bench.store = open(&bench.shared(), &bench.options).unwrap();
    let lost = |number: usize| bench.store.checkout(&bench.commits[number].0).is_err();
    assert!(lost(0) && lost(40), "the first commits were in the volume");
    bench.chain(5);
    let report = bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    assert_eq!(report.kept, 3, "two, and the head of the branch");
    assert!(report.archived_bytes > 0, "{report:?}");

    // Also one that is named, or all that follow one.
    let named = Retain::newest(2).and(bench.commits[80].0);
    assert_eq!(bench.store.collect(&named, &mut go).unwrap().kept, 4);
    let since = Retain::since(bench.commits[158].0);
    assert_eq!(bench.store.collect(&since, &mut go).unwrap().kept, 8);
    let unknown = Retain::newest(2).and(Hash([7; 32]));
    let refused = bench.store.collect(&unknown, &mut go);
    assert!(matches!(refused, Err(Error::UnknownCommit { .. })), "{refused:?}");

    for number in (61..bench.commits.len()).chain([55]) {
        let (hash, content) = &bench.commits[number];
        let context = bench.store.checkout(hash).unwrap().unwrap();
        assert!(content_of(&context).unwrap() == *content, "commit {number}");
    }
}

/// The disk of a volume is away: what is under its mount point is no volume. It is back, and
/// another one is.
#[test]
fn nothing_is_archived_under_the_mount_point_of_a_disk_that_is_away() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    let dir = bench.store.add_volume().unwrap();
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    let away = dir.with_file_name("away");
    bench.chain(20);
    bench.store.close().unwrap();
    let is_part = |path: &PathBuf| path.starts_with(&dir);

    let parts = |bench: &Bench| -> Vec<(PathBuf, Vec<u8>)> {
        let files = bench.disk.files().into_iter().filter(is_part);
        files.map(|path| (path.clone(), bench.disk.read_raw(&path).unwrap())).collect()
    };

    let before = parts(&bench);
    bench.disk.rename(&dir, &away).unwrap();
    bench.disk.create_dir(&dir).unwrap();

    // The volumes are looked through while it is away.
    bench.store = open(&bench.shared(), &bench.options).unwrap();
    assert!(bench.store.checkout(&bench.commits[0].0).is_err());
    let refused = bench.store.collect(&Retain::newest(2), &mut go);
    assert!(matches!(&refused, Err(Error::AbsentVolume { path }) if *path == dir), "{refused:?}");
    let refused = bench.store.add_volume();
    assert!(matches!(&refused, Err(Error::AbsentVolume { path }) if *path == dir), "{refused:?}");
    assert!(parts(&bench).is_empty());

    // It is back: nothing that it has is written over.
    bench.disk.remove_dir(&dir).unwrap();
    bench.disk.rename(&away, &dir).unwrap();
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();
    let after = parts(&bench);
    assert!(before.iter().all(|part| after.contains(part)) && after.len() > before.len());
    bench.check();

    // It goes while a collection runs.
    bench.chain(20);
    let mut is_away = false;

    let mut pace = |progress: &terrane_context::GcProgress| {
        if progress.phase == terrane_context::GcPhase::Reclaim && !is_away {
            bench.disk.rename(&dir, &away).unwrap();
            bench.disk.create_dir(&dir).unwrap();
            is_away = true;
        }
        GcPace::Go
    };

    let refused = bench.store.collect(&Retain::newest(2), &mut pace);
    assert!(matches!(refused, Err(Error::AbsentVolume { .. })), "{refused:?}");
    assert!(parts(&bench).is_empty());
    bench.disk.remove_dir(&dir).unwrap();
    bench.disk.rename(&away, &dir).unwrap();
    bench.check();

    // The next volume is a disk that is one already.
    let second = dir.with_file_name("volume-00000001");
    bench.disk.create_dir(&second).unwrap();
    let marker = bench.disk.read_raw(dir.join("volume")).unwrap();
    bench.disk.write_raw(second.join("volume"), &marker);
    let refused = bench.store.add_volume();
    assert!(matches!(&refused, Err(Error::ForeignVolume { path }) if *path == second));

    assert_eq!(bench.store.volumes().len(), 1);
}

#[test]
fn a_part_that_is_there_is_not_replaced() {
    let mut bench = Bench::new(options());
    bench.chain(40);
    let dir = bench.store.add_volume().unwrap();
    let part = dir.join("chunk-00000000-00000000");

    let mut pace = |_: &terrane_context::GcProgress| {
        bench.disk.write_raw(&part, b"of another");
        GcPace::Go
    };

    let refused = bench.store.collect(&Retain::newest(2), &mut pace);
    assert!(matches!(&refused, Err(Error::PartExists { path }) if *path == part), "{refused:?}");
    assert_eq!(bench.disk.read_raw(&part).unwrap(), b"of another");
    bench.disk.remove(&part).unwrap();
    bench.store.collect(&Retain::newest(2), &mut go).unwrap();

    bench.check();
}

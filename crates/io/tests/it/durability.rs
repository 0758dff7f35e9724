//! Survival of a loss of power on the simulated disk.
//!
//! Goal: nothing survives that was not synced, unless chance has it so, and everything does that
//! was; each promise of `disk` has its test here, with the crash that shows the promise to be kept
//! and the one that shows that no more is promised. Method: short scripts, then every kind of
//! survival.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use terrane_io::files::{allocated_below, create_dirs, replace_file};
use terrane_io::{
    Access, CountedDisk, Disk, DiskFile, FaultPlan, NoSyncDisk, OpenMode, RealDisk, SimDisk,
    Survival,
};

use Survival::{Everything, Nothing, Prefix, Random, Torn};

fn create(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(Path::new(path), OpenMode::CreateNew, Access::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

/// A file whose bytes and name are durable.
fn create_durable(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = create(disk, path, bytes);
    file.sync().unwrap();
    disk.sync_dir(Path::new(path).parent().unwrap()).unwrap();
    file
}

fn files(disk: &SimDisk) -> Vec<String> {
    disk.files().iter().map(|path| path.display().to_string()).collect()
}

/// Every outcome of a crash now, over `count` seeds: file names with their bytes.
fn outcomes(
    disk: &SimDisk,
    survival: fn(u64) -> Survival,
    count: u64,
) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    (0..count)
        .map(|seed| {
            let after = disk.after_crash(survival(seed));
            let bytes = |path: &String| after.read_raw(path).unwrap();
            files(&after).into_iter().map(|path| (path.clone(), bytes(&path))).collect()
        })
        .collect()
}

#[test]
fn bytes_are_durable_after_a_sync_and_not_before() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", b"old");
    file.write_at(b"newer", 0).unwrap();
    assert_eq!(disk.read_raw("/file").unwrap(), b"newer");
    assert_eq!(disk.after_crash(Nothing).read_raw("/file").unwrap(), b"old");
    assert_eq!(disk.after_crash(Everything).read_raw("/file").unwrap(), b"newer");
    file.sync().unwrap();
    assert_eq!(disk.pending(), 0);
    assert_eq!(disk.after_crash(Nothing).read_raw("/file").unwrap(), b"newer");
}

#[test]
fn a_synced_file_without_a_synced_name_is_lost() {
    let disk = SimDisk::new(1);
    create(&disk, "/file", b"bytes").sync().unwrap();
    assert_eq!(files(&disk.after_crash(Nothing)), [""; 0]);
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(disk.after_crash(Nothing).read_raw("/file").unwrap(), b"bytes");
}

#[test]
fn a_synced_name_without_synced_bytes_is_an_empty_file() {
    let disk = SimDisk::new(1);
    create(&disk, "/file", b"bytes");
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(disk.after_crash(Nothing).read_raw("/file").unwrap(), b"");
}

#[test]
fn a_name_is_lost_with_an_unsynced_directory_above() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/dir")).unwrap();
    create_durable(&disk, "/dir/file", b"bytes");
    let after = disk.after_crash(Nothing);
    assert_eq!(after.kind(Path::new("/dir")).unwrap(), None);
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(files(&disk.after_crash(Nothing)), ["/dir/file"]);
}

#[test]
fn an_unsynced_removal_comes_back() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", b"bytes");
    disk.remove(Path::new("/file")).unwrap();
    drop(file);
    assert_eq!(files(&disk), [""; 0]);
    assert_eq!(disk.after_crash(Nothing).read_raw("/file").unwrap(), b"bytes");
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(files(&disk.after_crash(Nothing)), [""; 0]);
}

#[test]
fn an_unsynced_rename_leaves_the_old_name_or_the_new_one() {
    let disk = SimDisk::new(1);
    create_durable(&disk, "/target", b"old");
    create_durable(&disk, "/source", b"new");
    disk.rename(Path::new("/source"), Path::new("/target")).unwrap();
    let before = vec![("/source".into(), b"new".to_vec()), ("/target".into(), b"old".to_vec())];
    let after = vec![("/target".into(), b"new".to_vec())];
    let expected = BTreeSet::from([before, after.clone()]);
    assert_eq!(outcomes(&disk, Random, 64), expected);
    assert_eq!(outcomes(&disk, Torn, 64), expected);
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(outcomes(&disk, Torn, 64), BTreeSet::from([after]));
}

/// Until either directory is synced a crash takes both sides or neither; a sync of one makes only
/// that side durable, so the order of the two decides whether a file may be lost or doubled.
#[test]
fn a_rename_across_directories_is_pending_in_both() {
    let disk = SimDisk::new(1);
    for dir in ["/from", "/to"] {
        disk.create_dir(Path::new(dir)).unwrap();
    }

    disk.sync_dir(Path::new("/")).unwrap();
    create_durable(&disk, "/from/file", b"bytes");
    disk.rename(Path::new("/from/file"), Path::new("/to/file")).unwrap();
    assert_eq!(disk.pending(), 1);
    let names = |disk: &SimDisk| {
        let seen = outcomes(disk, Random, 64).into_iter();
        seen.map(|files| files.into_iter().map(|(path, _)| path).collect::<Vec<_>>())
            .collect::<BTreeSet<_>>()
    };

    let one_of = |sets: &[&[&str]]| {
        sets.iter().map(|set| set.iter().map(ToString::to_string).collect()).collect()
    };

    assert_eq!(names(&disk), one_of(&[&["/from/file"], &["/to/file"]]));

    let source_first = disk.clone_disk();
    source_first.sync_dir(Path::new("/from")).unwrap();
    assert_eq!(names(&source_first), one_of(&[&[], &["/to/file"]]));

    disk.sync_dir(Path::new("/to")).unwrap();
    assert_eq!(names(&disk), one_of(&[&["/from/file", "/to/file"], &["/to/file"]]));
    disk.sync_dir(Path::new("/from")).unwrap();
    assert_eq!(names(&disk), one_of(&[&["/to/file"]]));
}

#[test]
fn links_share_the_file_but_not_the_durability_of_their_names() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/one", b"old");
    disk.hard_link(Path::new("/one"), Path::new("/two")).unwrap();
    file.write_at(b"new", 0).unwrap();
    file.sync().unwrap();
    let after = disk.after_crash(Nothing);
    assert_eq!(files(&after), ["/one"]);
    assert_eq!(after.read_raw("/one").unwrap(), b"new");
    disk.sync_dir(Path::new("/")).unwrap();
    disk.remove(Path::new("/one")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(disk.after_crash(Nothing).read_raw("/two").unwrap(), b"new");
}

#[test]
fn torn_writes_survive_by_sectors() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", &[b'o'; 4096]);
    file.write_at(&[b'n'; 2000], 300).unwrap();
    let mut torn = 0;
    for outcome in outcomes(&disk, Torn, 200) {
        let bytes = &outcome[0].1;
        assert_eq!(bytes.len(), 4096);
        let mut survivors = BTreeSet::new();
        for (sector, bytes) in bytes.chunks(512).enumerate() {
            let written = (300..2300).filter(|at| at / 512 == sector).count();
            match bytes.iter().map(|byte| usize::from(*byte == b'n')).sum() {
                0 => {}
                count => {
                    assert_eq!(count, written, "a sector survives in whole or not at all");
                    survivors.insert(sector);
                }
            }
        }
        torn += usize::from((1..5).contains(&survivors.len()));
    }

    assert!(torn >= 20, "only {torn} distinct torn images");
    assert_eq!(
        outcomes(&disk, Random, 64).len(),
        2,
        "an operation survives in whole or not at all"
    );
}

/// A sector that was written twice may be found as it was in between.
#[test]
fn earlier_versions_of_a_sector_may_survive() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", b"0");
    file.write_at(b"1", 0).unwrap();
    file.write_at(b"2", 0).unwrap();
    let found: BTreeSet<u8> =
        outcomes(&disk, Random, 64).iter().map(|outcome| outcome[0].1[0]).collect();
    assert_eq!(found, BTreeSet::from([b'0', b'1', b'2']));
}

#[test]
fn a_growing_file_may_have_grown_in_part_and_may_hold_zeros() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", b"");
    file.write_at(&[1; 2048], 0).unwrap();
    let outcomes = outcomes(&disk, Torn, 300);
    let lengths: BTreeSet<usize> = outcomes.iter().map(|outcome| outcome[0].1.len()).collect();
    assert_eq!(lengths, BTreeSet::from([0, 512, 1024, 1536, 2048]));
    assert!(outcomes.iter().any(|outcome| outcome[0].1.contains(&0)));
}

#[test]
fn an_unsynced_change_of_length_may_be_lost() {
    let disk = SimDisk::new(1);
    let file = create_durable(&disk, "/file", &[7; 1000]);
    file.set_len(10).unwrap();
    let lengths = |disk: &SimDisk| -> BTreeSet<usize> {
        outcomes(disk, Random, 64).iter().map(|outcome| outcome[0].1.len()).collect()
    };

    assert_eq!(lengths(&disk), BTreeSet::from([10, 1000]));
    file.sync().unwrap();
    file.set_len(5000).unwrap();
    assert_eq!(lengths(&disk), BTreeSet::from([10, 5000]));
    file.sync().unwrap();
    let bytes = disk.after_crash(Nothing).read_raw("/file").unwrap();
    assert!(bytes[..10] == [7; 10] && bytes[10..] == [0; 4990], "cut bytes must not come back");
}

#[test]
fn prefixes_keep_the_order_of_issue_across_files_and_names() {
    let disk = SimDisk::new(1);
    let one = create_durable(&disk, "/one", b"");
    one.write_at(b"a", 0).unwrap();
    create(&disk, "/two", b"b");
    disk.rename(Path::new("/one"), Path::new("/three")).unwrap();
    one.write_at(b"c", 1).unwrap();
    assert_eq!(disk.pending(), 5);
    let seen: Vec<Vec<(String, String)>> = (0..=5)
        .map(|count| {
            let after = disk.after_crash(Prefix(count));
            let text = |path: &String| String::from_utf8(after.read_raw(path).unwrap()).unwrap();
            files(&after).into_iter().map(|path| (path.clone(), text(&path))).collect()
        })
        .collect();
    let expected: [&[(&str, &str)]; 6] = [
        &[("/one", "")],
        &[("/one", "a")],
        &[("/one", "a"), ("/two", "")],
        &[("/one", "a"), ("/two", "b")],
        &[("/three", "a"), ("/two", "b")],
        &[("/three", "ac"), ("/two", "b")],
    ];
    for (seen, expected) in seen.iter().zip(expected) {
        let seen: Vec<(&str, &str)> = seen.iter().map(|(path, text)| (&**path, &**text)).collect();
        assert_eq!(seen, expected);
    }

    assert_eq!(files(&disk.after_crash(Prefix(u64::MAX))), files(&disk));
}

#[test]
fn the_death_of_the_process_loses_handles_and_locks_only() {
    let disk = SimDisk::new(1);
    let file = create(&disk, "/file", b"bytes");
    let _guard = disk.lock(Path::new("/lock")).unwrap();
    let unlinked = create(&disk, "/unlinked", b"gone");
    disk.remove(Path::new("/unlinked")).unwrap();
    let killed = disk.process_kill();
    assert_eq!(killed.read_raw("/file").unwrap(), b"bytes");
    let _again = killed.lock(Path::new("/lock")).unwrap();
    assert_eq!((killed.open_files(), disk.open_files()), (1, 3));
    assert_eq!(files(&killed.after_crash(Nothing)), [""; 0], "still not durable");

    // The two disks have gone their own ways.
    file.write_at(b"BYTES", 0).unwrap();
    assert_eq!(killed.read_raw("/file").unwrap(), b"bytes");
    unlinked.read_at(&mut [0; 4], 0).unwrap();
}

#[test]
fn replacing_a_file_leaves_the_old_content_or_the_new_at_every_call() {
    let script = |disk: &SimDisk| {
        replace_file(disk, Path::new("/meta"), b"old").unwrap();
        let calls = disk.calls();
        let outcome = replace_file(disk, Path::new("/meta"), b"the new one");
        (calls, outcome)
    };

    let whole = SimDisk::new(0);
    let (first, outcome) = script(&whole);
    outcome.unwrap();
    assert_eq!(whole.after_crash(Nothing).read_raw("/meta").unwrap(), b"the new one");
    for at in first..whole.calls() {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            disk.set_plan(FaultPlan::crash_at(at));
            let (_, outcome) = script(&disk);
            assert!(outcome.unwrap_err().to_string().contains("simulated crash"));
            for survival in [Nothing, Everything, Random(seed), Torn(seed)] {
                let found = disk.after_crash(survival).read_raw("/meta").unwrap();
                assert!(
                    found == b"old" || found == b"the new one",
                    "crash at call {at}, seed {seed}, {survival:?}: {found:?}"
                );
            }
        }
    }
}

/// A store asked for as `x1/x2/x3` had only the name of `x3` synced: after a loss of power the
/// whole path was gone, and every block reported as durable with it.
#[test]
fn directories_made_on_the_way_are_durable() {
    for path in ["/x1/x2/x3", "x1/x2/x3", "x1"] {
        let disk = SimDisk::new(1);
        create_dirs(&*disk, Path::new(path)).unwrap();
        let after = disk.after_crash(Nothing);
        assert!(after.kind(Path::new(path)).unwrap().is_some(), "{path}");
        create_dirs(&*after, Path::new(path)).unwrap();
    }
}

/// The parent of a bare name is the empty path, which the system knows no directory by.
#[test]
fn the_directory_of_a_bare_name_can_be_synced() {
    let disks: [Arc<dyn Disk>; 2] = [SimDisk::new(1), RealDisk::auto()];
    for disk in disks {
        disk.sync_dir(Path::new("name").parent().unwrap()).unwrap();
    }
}

#[test]
fn an_unsynced_disk_passes_on_everything_but_syncs() {
    let disk = SimDisk::new(1);
    let counted = CountedDisk::new(disk.clone());
    let unsynced = NoSyncDisk::new(counted.clone());
    let file = unsynced.open(Path::new("/file"), OpenMode::CreateNew, Access::Buffered).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.sync().unwrap();
    unsynced.sync_dir(Path::new("/")).unwrap();
    assert_eq!((counted.counts().syncs, counted.counts().dir_syncs), (0, 0));
    assert!(files(&disk.after_crash(Nothing)).is_empty());
    assert_eq!(disk.process_kill().read_raw("/file").unwrap(), b"bytes");
}

#[test]
fn a_directory_takes_what_its_files_take() {
    let disk = SimDisk::new(1);
    create_dirs(&*disk, Path::new("/a/b")).unwrap();
    create(&disk, "/a/one", &[1; 100]);
    create(&disk, "/a/b/two", &[2; 11]);
    assert_eq!(allocated_below(&*disk, Path::new("/a")).unwrap(), 111);

    // Blocks, not the length: a hole takes none.
    let place = tempfile::tempdir().unwrap();
    let real = RealDisk::auto();
    let path = place.path().join("file");
    let file = real.open(&path, OpenMode::CreateNew, Access::Buffered).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_at(&[1; 4096], 1 << 20).unwrap();
    file.sync().unwrap();
    let bytes = allocated_below(&*real, place.path()).unwrap();
    assert!((4096..1 << 20).contains(&bytes), "{bytes}");
}

//! Faults of the medium on the simulated disk.
//!
//! Goal: they strike the place that a test names and no other, and stay through restarts. Method:
//! one file, one fault, every call that may and may not meet it.

use std::io::ErrorKind;
use std::path::Path;

use terrane_io::files::{read_file, replace_file};
use terrane_io::{
    Access, BadMedia, Disk, DiskFile, EntryKind, Error, OpenMode, Reserve, SimDisk, Survival,
};
use terrane_io::{FaultKind, FaultPlan, Repeat};

const FILE: &str = "/dir/file";

fn disk_with_a_file() -> std::sync::Arc<SimDisk> {
    let disk = SimDisk::new(7);
    disk.write_raw(FILE, &[5; 10_000]);
    disk
}

fn open(disk: &SimDisk, mode: OpenMode) -> terrane_io::Result<std::sync::Arc<dyn DiskFile>> {
    disk.open(Path::new(FILE), mode, Access::Buffered)
}

fn kind_of<T>(result: terrane_io::Result<T>) -> Option<ErrorKind> {
    result.err().and_then(|error| error.system_kind())
}

#[test]
fn a_bad_sector_fails_every_call_that_touches_it_for_ever() {
    let disk = disk_with_a_file();
    disk.add_bad_range(FILE, 4096..4608, BadMedia::Both);
    for disk in [disk.clone_disk(), disk.process_kill(), disk.after_crash(Survival::Nothing)] {
        let file = open(&disk, OpenMode::ReadWrite).unwrap();
        let read = |offset| file.read_at(&mut [0; 100], offset);
        read(3996).unwrap();
        read(4608).unwrap();
        for offset in [3997, 4096, 4607] {
            assert!(read(offset).unwrap_err().is_unreadable(), "at {offset}");
            assert!(file.write_at(&[1; 100], offset).is_err(), "at {offset}");
        }
        file.write_at(&[1; 100], 4608).unwrap();
        disk.heal();
        read(4096).unwrap();
    }
}

#[test]
fn places_may_be_bad_for_reads_or_for_writes_alone() {
    let disk = disk_with_a_file();
    disk.add_bad_range(FILE, 0..1, BadMedia::Read);
    disk.add_bad_range(FILE, 5000..5001, BadMedia::Write);
    let file = open(&disk, OpenMode::ReadWrite).unwrap();
    file.write_at(b"x", 0).unwrap();
    file.read_at(&mut [0], 0).unwrap_err();
    file.read_at(&mut [0], 5000).unwrap();
    file.write_at(b"x", 5000).unwrap_err();

    // A file of the same name has other places.
    replace_file(&*disk, Path::new(FILE), b"anew").unwrap();
    assert_eq!(read_file(&*disk, Path::new(FILE), 10).unwrap(), b"anew");
}

#[test]
fn a_denied_file_or_directory_cannot_be_opened_and_can_be_replaced() {
    let disk = disk_with_a_file();
    disk.deny(FILE);
    let error = open(&disk, OpenMode::Read).unwrap_err();
    assert_eq!((error.is_permission(), error.kind().name()), (true, "permission"));
    assert!(disk.is_locked(Path::new(FILE)).unwrap_err().is_permission());
    assert_eq!(disk.kind(Path::new(FILE)).unwrap(), Some(EntryKind::File));
    replace_file(&*disk, Path::new(FILE), b"anew").unwrap();
    open(&disk, OpenMode::Read).unwrap();
    disk.deny("/dir");
    assert!(disk.list(Path::new("/dir")).unwrap_err().is_permission());
}

#[test]
fn a_read_only_disk_reads_and_locks_for_reading_and_does_nothing_else() {
    let disk = disk_with_a_file();
    disk.write_raw("/lock", b"");
    disk.set_read_only(true);
    let file = Path::new(FILE);
    let dir = Path::new("/dir");
    let new = Path::new("/new");
    open(&disk, OpenMode::Read).unwrap().read_at(&mut [0; 10], 0).unwrap();
    disk.lock_shared(Path::new("/lock")).unwrap();
    assert_eq!(disk.list(dir).unwrap().len(), 1);

    let refused = [
        open(&disk, OpenMode::ReadWrite).map(drop),
        open(&disk, OpenMode::Truncate).map(drop),
        disk.open(new, OpenMode::CreateNew, Access::Buffered).map(drop),
        disk.lock(Path::new("/lock")).map(drop),
        disk.create_dir(new),
        disk.remove(file),
        disk.remove_dir(dir),
        disk.rename(file, new),
        disk.hard_link(file, new),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(error.is_read_only() && error.cannot_write(), "call {index}: {error}");
        assert_eq!(error.kind().name(), "read_only");
    }

    assert_eq!(disk.files(), [file, Path::new("/lock")]);
}

#[test]
fn links_and_special_files_are_refused_by_kind_and_can_be_removed() {
    for kind in [EntryKind::Link, EntryKind::Other] {
        let disk = disk_with_a_file();
        disk.plant_special(FILE, kind);
        for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Truncate] {
            match open(&disk, mode).unwrap_err() {
                Error::WrongKind { found, .. } => assert_eq!(found, kind),
                error => panic!("{error}"),
            }
        }
        assert_eq!(kind_of(open(&disk, OpenMode::CreateNew)), Some(ErrorKind::AlreadyExists));
        assert_eq!(disk.kind(Path::new(FILE)).unwrap(), Some(kind));
        let after = disk.after_crash(Survival::Nothing);
        assert_eq!(after.kind(Path::new(FILE)).unwrap(), Some(kind));
        replace_file(&*disk, Path::new(FILE), b"anew").unwrap();
        assert_eq!(disk.kind(Path::new(FILE)).unwrap(), Some(EntryKind::File));
    }
}

/// Blocks behind the end of a file are freed by the length that the file has, on the real disk as
/// on the simulated one.
#[test]
fn a_reserve_takes_room_behind_a_file_and_gives_it_up_for_others() {
    let temporary = tempfile::tempdir().unwrap();
    let real = terrane_io::RealDisk::auto();
    let sim = SimDisk::new(1);
    let places: [(&dyn Disk, &Path); 2] = [(&*real, temporary.path()), (&*sim, Path::new("/"))];
    for (disk, dir) in places {
        let path = dir.join("file");
        let file = disk.open(&path, OpenMode::CreateNew, Access::Buffered).unwrap();
        file.write_at(b"content", 0).unwrap();
        let mut reserve = Reserve::open(file.clone(), 1 << 20);
        assert_eq!((reserve.bytes(), reserve.is_full(), file.len().unwrap()), (1 << 20, false, 7));
        assert!(reserve.give_up().unwrap() && !reserve.give_up().unwrap());
        assert!(disk.allocated_bytes(&path).unwrap() < 1 << 16);
        assert!(reserve.take_back(disk, dir).unwrap() && !reserve.is_full());
        let mut found = [0; 7];
        file.read_at(&mut found, 0).unwrap();
        assert_eq!((&found, file.len().unwrap()), (b"content", 7));
    }

    sim.set_plan(FaultPlan::capacity(1 << 16));
    let file = sim.open(Path::new("/other"), OpenMode::CreateNew, Access::Buffered).unwrap();
    let mut reserve = Reserve::open(file, 1 << 20);
    assert!(reserve.is_full() && !reserve.take_back(&*sim, Path::new("/")).unwrap());
    sim.set_plan(FaultPlan::default());
    assert!(reserve.take_back(&*sim, Path::new("/")).unwrap() && !reserve.is_full());
}

/// Growing in vain freed the reserve that there was, which counted as held nevertheless.
#[test]
fn a_reserve_that_cannot_grow_or_whose_sync_fails_is_what_it_says() {
    let sim = SimDisk::new(1);
    let root = Path::new("/");
    let file = sim.open(Path::new("/file"), OpenMode::CreateNew, Access::Buffered).unwrap();
    file.write_at(b"content", 0).unwrap();
    sim.set_plan(FaultPlan::capacity(1 << 20));
    let mut reserve = Reserve::open(file, 1 << 19);
    assert!(reserve.grow(1 << 21).unwrap_err().is_no_space());
    assert_eq!((reserve.bytes(), reserve.is_full()), (1 << 19, false));
    assert_eq!(sim.free_bytes(root).unwrap(), 1 << 19);
    reserve.grow(3 << 18).unwrap();
    assert_eq!(sim.free_bytes(root).unwrap(), 1 << 18);

    let capacity_bytes = Some(1 << 20);
    let fails = FaultPlan::fail(0, FaultKind::FailedSync, Repeat::Once);
    sim.set_plan(FaultPlan { capacity_bytes, ..fails });
    reserve.give_up().unwrap_err();
    assert!(reserve.is_full() && sim.free_bytes(root).unwrap() > 3 << 18);
    assert!(reserve.take_back(&*sim, root).unwrap() && !reserve.is_full());
    assert_eq!(sim.free_bytes(root).unwrap(), 1 << 18);
}
